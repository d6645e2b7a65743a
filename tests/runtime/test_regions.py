"""Parallel regions of several callers, small ones, and those whose workers lose their cores."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.native_bodies import bodies, run_count
from weft.core.errors import ArgumentError, WeftError
from weft.core.knobs import knobs
from weft.runtime import native_pool
from weft.runtime.abi import FUNCTIONS
from weft.runtime.jit import JitModule, cached_object, host_machine, host_triple, native_runtime
from weft.runtime.library import NativeRuntime
from weft.runtime.native import native_ir
from weft.runtime.threads import set_threads

BODY = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
PATIENCE = 20.0


def together(native: NativeRuntime, count: int, threads: int) -> set[int]:
    """The numbers of the threads of a region whose iterations all wait for each other."""
    barrier, seen = threading.Barrier(count), set()

    def body(begin: int, end: int, _: object) -> None:
        for _ in range(begin, end):
            seen.add(threading.get_native_id())
            barrier.wait(PATIENCE)

    native.parallel_for(ctypes.cast(BODY(body), ctypes.c_void_p), None, count, threads)
    return seen


def eager(**numbers: int) -> NativeRuntime:
    """A pool of its own that offers every region to all threads, with other numbers."""
    with pytest.MonkeyPatch.context() as patch:
        for name, number in {"order": 0, **numbers}.items():
            patch.setitem(native_pool._NUMBERS, name, number)
        text = native_ir(host_triple(), str(host_machine().target_data))
    code = JitModule([cached_object(text, host_machine())], FUNCTIONS, {})
    code.keep()
    return NativeRuntime({name: code.address(name) for name in FUNCTIONS})


@pytest.fixture(scope="module")
def insistent() -> NativeRuntime:
    """Bodies that wait for each other look like workers without a core: here these are claimed as well."""
    return eager(kept=1)


@contextlib.contextmanager
def regions_under_way(native: NativeRuntime, number: int, threads: int):
    """So many callers, each inside a region that it shares with one worker."""
    inside, over = threading.Barrier(2 * number + 1), threading.Event()

    def hold(begin: int, end: int, _: object) -> None:
        for _ in range(begin, end):
            inside.wait(PATIENCE)
            over.wait(PATIENCE)

    held = BODY(hold)
    run = native.parallel_for
    callers = [
        threading.Thread(target=run, args=(ctypes.cast(held, ctypes.c_void_p), None, 2, threads)) for _ in range(number)
    ]
    together(native, threads, threads)  # workers are there
    for caller in callers:
        caller.start()
    try:
        inside.wait(PATIENCE)
        yield
    finally:
        over.set()
        for caller in callers:
            caller.join()


def test_callers_share_the_workers(insistent):
    """While one caller's region lasts, another's is run by several threads as well."""
    with regions_under_way(insistent, 1, threads=4):
        assert len(together(insistent, 2, 4)) == 2


def test_callers_leave_the_others_their_share(insistent):
    """Of four threads a third caller gets one, itself, though a worker is idle."""
    with regions_under_way(insistent, 2, threads=4):
        for _ in range(20):
            seen = np.zeros(64, np.int64)
            insistent.parallel_for(bodies().address("who"), seen.ctypes.data, 64, 4)
            assert len(set(seen)) == 1


def test_a_small_region_stays_with_its_caller():
    """What an iteration takes is known after a few calls: nanoseconds are not worth an order."""
    run_count(64, 4)
    own = ctypes.CFUNCTYPE(ctypes.c_int64)(bodies().address("own"))()
    for turn in range(300):
        seen = np.zeros(4, np.int64)
        native_runtime().parallel_for(bodies().address("who"), seen.ctypes.data, 4, 4)
        assert turn < 250 or set(seen) == {own}


@pytest.mark.parametrize("place", [0, 8, 1 << 46, -64])
def test_what_a_waiting_thread_fetches_need_not_exist(insistent, place):
    """Weights of a model that is gone, or of another caller: a thread fetches them in vain."""
    ahead = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(insistent.addresses["weft_ahead"])
    ahead(place, 1 << 40, 1 << 16)
    for _ in range(20):
        assert len(together(insistent, 3, 3)) == 3
    ahead(0, 0, 0)


def test_many_regions_of_many_callers():
    """Random sizes, threads that multiply, nested regions, workers that end in between; every index once."""
    native = eager(spin=5_000, ask=2_000, nap=20_000, unbegun=2, least_rest=1_000, most_rest=8_000)
    failures: list[int] = []

    def caller(seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(120):
            count = chosen.randrange(1, 300)
            counts = np.zeros(count, np.int32)
            body = chosen.choice(["count", "toil"])
            native.parallel_for(bodies().address(body), counts.ctypes.data, count, chosen.randrange(0, 9))
            if not (counts == 1).all():
                failures.append(count)
            if chosen.random() < 0.02:
                native.pool_shutdown()

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert native.pool_shutdown() == 1 and native.pool_size() == 0


def test_a_child_of_a_fork_in_the_middle_of_regions():
    native = eager()
    over = threading.Event()

    def regions() -> None:
        counts = np.zeros(100, np.int32)
        while not over.is_set():
            native.parallel_for(bodies().address("toil"), counts.ctypes.data, 100, 4)

    busy = [threading.Thread(target=regions) for _ in range(2)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                counts = np.zeros(500, np.int32)
                native.parallel_for(bodies().address("toil"), counts.ctypes.data, 500, 4)
                os._exit(0 if (counts == 1).all() and native.pool_size() == 3 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        over.set()
        for thread in busy:
            thread.join()


# ---------------------------------------------------------------- where workers run


@pytest.fixture
def placed():
    yield
    set_threads(None)


def ends_on(worker: int, cores: set[int]) -> bool:
    """Whether a worker may use these cores, when it has come home from where it was lent one."""
    for _ in range(1000):
        if os.sched_getaffinity(worker) == cores:
            return True
        threading.Event().wait(0.002)
    return False


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_workers_are_pinned_and_give_way(placed):
    core = max(os.sched_getaffinity(0))
    set_threads(2, pin=str(core), priority=3)
    worker = (together(native_runtime(), 2, 2) - {threading.get_native_id()}).pop()
    assert ends_on(worker, {core})
    assert os.getpriority(os.PRIO_PROCESS, worker) == min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
    set_threads(None)
    worker = (together(native_runtime(), 2, 2) - {threading.get_native_id()}).pop()
    assert ends_on(worker, os.sched_getaffinity(0))


def test_places_that_are_none(placed):
    with pytest.raises(ArgumentError, match="processor 4000"):
        set_threads(2, pin="4000")
    for pin, priority in (("all", 0), ("1-", 0), ("no", 40)):
        with pytest.raises(WeftError, match="pin_threads|thread_priority"):
            set_threads(2, pin=pin, priority=priority)
    assert (knobs.pin_threads, knobs.thread_priority) == ("no", 0)


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_worker_without_a_core_is_lent_one():
    """A worker on a core where another process spins gets its caller's core, and then its own back."""
    done = subprocess.run(
        [sys.executable, "-c", STARVED], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True", "True", "True"], done.stdout + done.stderr


STARVED = """
import os, subprocess, sys, threading
from tests.runtime.test_regions import ends_on, run_count, set_threads, together
from weft.runtime.jit import native_runtime
first, second = sorted(os.sched_getaffinity(0))[:2]
set_threads(2, pin=str(second))
worker = (together(native_runtime(), 2, 2) - {threading.get_native_id()}).pop()
os.sched_setaffinity(0, {first})
spin = f"import os; os.sched_setaffinity(0, {{{second}}})\\nwhile True: pass"
spinner = subprocess.Popen([sys.executable, "-c", spin])
try:
    before = native_runtime().pool_stalls()
    right = all((run_count(20_000, 2) == 1).all() for _ in range(60))
    print(right, native_runtime().pool_stalls() > before, ends_on(worker, {second}))
finally:
    spinner.kill()
"""

# ---------------------------------------------------------------- races

CLIENTS = """
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <string.h>
void weft_parallel_for(void (*)(int64_t, int64_t, void *), void *, int64_t, int64_t);
int32_t weft_pool_shutdown(void);
void *__tsan_memset(void *to, int value, unsigned long bytes) { return memset(to, value, bytes); }
void *__tsan_memcpy(void *to, const void *from, unsigned long bytes) { return memcpy(to, from, bytes); }
struct region { int *counts; int toil; };
static void body(int64_t begin, int64_t end, void *environment) {
    struct region *region = environment;
    for (int64_t i = begin; i < end; i++) {
        region->counts[i]++;
        for (volatile int turn = 0; turn < region->toil; turn++) {}
    }
}
static void *client(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int round = 0; round < 100; round++) {
        int count = rand_r(&seed) % 300 + 1, threads = rand_r(&seed) % 9;
        struct region region = {calloc(count, sizeof(int)), rand_r(&seed) % 3000};
        for (int again = 0; again < 3; again++) weft_parallel_for(body, &region, count, threads);
        for (int i = 0; i < count; i++) if (region.counts[i] != 3) abort();
        free(region.counts);
        if (rand_r(&seed) % 50 == 0) usleep(500);
        if (rand_r(&seed) % 97 == 0) weft_pool_shutdown();
    }
    return 0;
}
int main(void) {
    pthread_t clients[4];
    for (uintptr_t i = 0; i < 4; i++) pthread_create(&clients[i], 0, client, (void *)(i + 1));
    for (int i = 0; i < 4; i++) pthread_join(clients[i], 0);
    return weft_pool_shutdown() ? 0 : 1;
}
"""


@pytest.mark.slow
def test_no_data_race(tmp_path):
    """The pool under ThreadSanitizer: counts are plain integers, so a lost order between two regions is a race."""
    zig = pytest.importorskip("ziglang")
    if shutil.which("gcc") is None:
        pytest.skip("no gcc, whose library of ThreadSanitizer this needs")
    with pytest.MonkeyPatch.context() as patch:
        for name, number in {"order": 0, "spin": 2_000, "ask": 1_000, "unbegun": 2, "least_rest": 1_000}.items():
            patch.setitem(native_pool._NUMBERS, name, number)
        text = native_ir(host_triple()).replace(" nounwind {", " nounwind sanitize_thread {")
    (tmp_path / "pool.ll").write_text(text)
    (tmp_path / "clients.c").write_text(CLIENTS)
    clang = [sys.executable, "-m", zig.__name__, "clang", "-w", "-c", "-O1", "-fPIC", "-fsanitize=thread"]
    subprocess.run([*clang, "pool.ll", "-o", "pool.o"], cwd=tmp_path, check=True)
    built = subprocess.run(
        ["gcc", "-O1", "-fsanitize=thread", "clients.c", "pool.o", "-o", "clients", "-lpthread"],
        cwd=tmp_path,
        check=False,
    )
    if built.returncode:
        pytest.skip("gcc has no library of ThreadSanitizer")
    done = subprocess.run([tmp_path / "clients"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[:3000]

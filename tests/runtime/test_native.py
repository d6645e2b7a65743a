"""The thread pool and the allocator."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.runtime.native_bodies import bodies, run_count
from weft.core import model
from weft.core.errors import TargetError
from weft.runtime.abi import FUNCTIONS
from weft.runtime.jit import host_triple, native_runtime
from weft.runtime.native import MAXIMUM_THREADS, native_ir

ROOT = Path(__file__).parents[2]


def run_script(text: str) -> subprocess.CompletedProcess[str]:
    """A Python process that sees the package and the bodies of these tests."""
    path = str(ROOT)
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


# ---------------------------------------------------------------- the text


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_the_module_compiles_for_every_architecture(triple):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(native_ir(triple))
    module.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=3, reloc="pic")
    assert machine.emit_object(module)[:4] == b"\x7fELF"
    defined = {function.name for function in module.functions if not function.is_declaration}
    assert set(FUNCTIONS) <= defined
    assert "asm" not in native_ir(triple)


@pytest.mark.parametrize("triple", ["", "wasm32-unknown-unknown", "x86_64-pc-windows-msvc", "arm64-apple-darwin"])
def test_an_unknown_triple_is_refused(triple):
    with pytest.raises(TargetError, match="x86_64-linux"):
        native_ir(triple)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to link with")
def test_the_module_links_into_a_library(tmp_path):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(host_triple()).create_target_machine(opt=3, reloc="pic")
    module = llvm.parse_assembly(native_ir(host_triple(), str(machine.target_data)))
    (tmp_path / "runtime.o").write_bytes(machine.emit_object(module))
    subprocess.run(["cc", "-shared", "-o", tmp_path / "runtime.so", tmp_path / "runtime.o", "-lpthread"], check=True)
    done = run_script(
        "import ctypes, _ctypes, os, numpy, time\nfrom tests.runtime.native_bodies import bodies\n"
        "body = ctypes.c_void_p(bodies().address('count'))\n"
        "for again in range(3):\n"
        f"  library = ctypes.CDLL({str(tmp_path / 'runtime.so')!r})\n"
        "  counts = numpy.zeros(1000, numpy.int32)\n"
        "  data = ctypes.c_void_p(counts.ctypes.data)\n"
        "  library.weft_parallel_for(body, data, ctypes.c_int64(1000), ctypes.c_int64(3))\n"
        "  threads = len(os.listdir('/proc/self/task'))\n"
        "  if again < 2: _ctypes.dlclose(library._handle)\n"
        "  time.sleep(0.05)\n"
        "  print((counts == 1).all(), threads - len(os.listdir('/proc/self/task')))\n"
    )
    assert done.stdout.split() == ["True", "2", "True", "2", "True", "0"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- the thread pool


@pytest.mark.parametrize("threads", [-1, 0, 1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 1000, 12345])
def test_every_index_is_visited_once(count, threads):
    for _ in range(5):
        assert (run_count(count, threads) == 1).all()


def test_a_negative_count_does_nothing():
    native_runtime().parallel_for(bodies().address("count"), None, -5, 4)


def test_the_pool_stays_within_its_bound_and_shuts_down():
    assert (run_count(5000, 10**9) == 1).all()
    # Where there are many cores, the first workers are idle again before the last ones would be made.
    assert 2 <= native_runtime().pool_size() <= MAXIMUM_THREADS - 1
    assert native_runtime().pool_shutdown() == 1
    assert native_runtime().pool_size() == 0
    assert (run_count(5000, 3) == 1).all()
    assert native_runtime().pool_size() == 2


def test_a_region_inside_a_region():
    for _ in range(50):
        assert (run_count(40, 4, "nested", 64) == 1).all()


def test_oversubscription_makes_progress():
    for _ in range(300):
        assert (run_count(97, 8) == 1).all()


def test_regions_after_pauses_find_sleeping_workers():
    for _ in range(20):
        threading.Event().wait(0.002)
        assert (run_count(1000, 3) == 1).all()


def test_many_python_threads_at_once():
    failures = []

    def work(seed: int) -> None:
        sizes = np.random.default_rng(seed).integers(1, 500, 100)
        for size in sizes:
            if not (run_count(int(size), int(size) % 5 + 1) == 1).all():
                failures.append(size)

    run_in_threads(work, 6)
    assert failures == []


def run_in_threads(work, count):
    threads = [threading.Thread(target=work, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_region_takes_less_than_five_microseconds():
    """Fork and join with both participants inside at one time; the quickest of many, with a core each."""
    done = run_script(
        "import os\nfrom tests.runtime.native_bodies import quickest_meeting, run_count\n"
        "before = set(os.listdir('/proc/self/task'))\nrun_count(100, 2)\n"
        "workers = set(os.listdir('/proc/self/task')) - before\n"
        "first, second = sorted(os.sched_getaffinity(0))[:2]\nos.sched_setaffinity(0, {first})\n"
        "for worker in workers: os.sched_setaffinity(int(worker), {second})\n"
        "print(min(quickest_meeting(1000) for _ in range(20)))\n"
    )
    assert int(done.stdout) < 5000, done.stderr


def test_a_fork_gets_its_own_pool():
    assert (run_count(1000, 3) == 1).all()
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            run_count(500, 3)
            native_runtime().release(native_runtime().allocate(1000))

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(10):
            assert exit_code_of_child() == 0
    finally:
        stop.set()
        busy.join()
    assert (run_count(1000, 3) == 1).all()


def exit_code_of_child() -> int:
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        pointer = native_runtime().allocate(1000)
        fine = pointer and (run_count(1000, 3) == 1).all() and native_runtime().pool_size() == 2
        os._exit(0 if fine else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_interpreter_exits_cleanly_with_workers():
    done = run_script("from tests.runtime.native_bodies import run_count; run_count(100, 4); run_count(100, 4)")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_exits_cleanly_in_the_middle_of_a_region():
    done = run_script(
        "import threading, time\nfrom tests.runtime.native_bodies import run_count\n"
        "def forever():\n  while True: run_count(100000, 4)\n"
        "threading.Thread(target=forever, daemon=True).start()\ntime.sleep(0.3)\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_more_threads_to_be_had():
    """With no room for a thread's stack the region runs in its caller."""
    done = run_script(
        "import resource\nfrom tests.runtime.native_bodies import bodies, run_count\n"
        "from weft.runtime.jit import native_runtime\n"
        "bodies()\nrun_count(10, 1)\npages = int(open('/proc/self/statm').read().split()[0])\n"
        "limit = pages * resource.getpagesize() + (4 << 20)\nresource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "ok = all((run_count(1000, 4) == 1).all() for _ in range(100))\nprint(ok, native_runtime().pool_size())\n"
    )
    assert done.stdout.split() == ["True", "0"], done.stderr


def test_workers_leave_signals_to_the_host():
    done = run_script(
        "import os, signal, threading\nfrom tests.runtime.native_bodies import run_count\nrun_count(100, 4)\n"
        "seen = []\nsignal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread().name))\n"
        "masks = [line for t in os.listdir('/proc/self/task') if int(t) != os.getpid()"
        " for line in open(f'/proc/self/task/{t}/status') if line.startswith('SigBlk')]\n"
        "print(sum(int(m.split()[1], 16) >> 9 & 1 for m in masks) >= 3)\n"
    )
    assert done.stdout.strip() == "True", done.stderr


# ---------------------------------------------------------------- the allocator


@pytest.mark.parametrize("size", [0, 1, 63, 64, 192, 193, 4096, 100_000, 2 << 20, (2 << 20) - 64, 5_000_000])
def test_memory_is_aligned_and_reused(size):
    native = native_runtime()
    pointer = native.allocate(size)
    assert pointer % 64 == 0
    ctypes.memset(pointer, 0xAB, size)
    native.release(pointer)
    again = native.allocate(size)
    assert again == pointer
    native.release(again)


@pytest.mark.parametrize("size", [-1, -(2**63), 2**62, 2**63 - 1, 1 << 55])
def test_absurd_sizes_give_null(size):
    assert native_runtime().allocate(size) is None


def test_releasing_null_does_nothing():
    native_runtime().release(None)


def test_blocks_do_not_overlap():
    native = native_runtime()
    sizes = [int(size) for size in np.random.default_rng(0).integers(1, 50_000, 300)]
    spans = sorted((native.allocate(size), size) for size in sizes)
    for (start, size), (following, _) in zip(spans, spans[1:]):
        assert start + size <= following
    for start, _ in spans:
        native.release(start)


def test_the_cache_is_bounded_and_can_be_emptied():
    native = native_runtime()
    native.trim()
    assert native.cached_bytes() == 0
    for pointer in [native.allocate(40 << 20) for _ in range(12)]:
        native.release(pointer)
        assert 0 < native.cached_bytes() <= model.ALLOCATOR_KEPT_BYTES
    native.release(native.allocate(model.ALLOCATOR_KEPT_BYTES + 1))
    assert native.cached_bytes() <= model.ALLOCATOR_KEPT_BYTES
    native.trim()
    assert native.cached_bytes() == 0


def test_reuse_costs_no_page_faults():
    native = native_runtime()
    size = 8 << 20
    for round_ in range(3):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        pointer = native.allocate(size)
        ctypes.memset(pointer, 1, size)
        native.release(pointer)
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
        assert round_ == 0 or faults < 50


def test_many_threads_allocate_at_once():
    native = native_runtime()
    failures = []

    def work(seed: int) -> None:
        sizes = np.random.default_rng(seed).integers(1, 20_000, 200)
        held = []
        for size in map(int, sizes):
            pointer = native.allocate(size)
            ctypes.memset(pointer, seed + 1, size)
            held.append((pointer, size))
            if len(held) > 8:
                pointer, size = held.pop(0)
                if ctypes.string_at(pointer, size) != bytes([seed + 1]) * size:
                    failures.append(size)
                native.release(pointer)
        for pointer, _ in held:
            native.release(pointer)

    run_in_threads(work, 4)
    assert failures == []

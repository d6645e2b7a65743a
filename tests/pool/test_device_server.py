"""The device server: right results and times, here and under emulators; crashes, hangs, garbage, strangers."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import secrets
import shutil
import socket
import struct
import subprocess
import threading
from contextlib import ExitStack, suppress

import numpy as np
import pytest

from tests.pool.libraries import TRIPLES, from_c, need_compiler, need_emulator, product
from weft.pool.device import INFO, MAGIC, RUN, Call, Connection, PoolError, Result, read_key
from weft.pool.server import host_architecture, make_server, start_server
from weft.tuner.records import Status

KERNELS = """
static volatile int32_t zero = 0;
int32_t twice(const int64_t *a, int64_t threads) {
    float *x = (float *)(uintptr_t)a[0], *y = (float *)(uintptr_t)a[1];
    for (int i = 0; i < 16; i++) y[i] = 2 * x[i];
    return 0;
}
int32_t crash(const int64_t *a, int64_t threads) { *(volatile int *)8 = 1; return 0; }
int32_t past(const int64_t *a, int64_t threads) { ((volatile char *)(uintptr_t)a[1])[65536] = 1; return 0; }
int32_t hang(const int64_t *a, int64_t threads) { while (!zero) {} return 0; }
int32_t fault(const int64_t *a, int64_t threads) { return 7; }
extern void *weft_allocate(int64_t);
int32_t hungry(const int64_t *a, int64_t threads) {
    volatile char *p = weft_allocate((int64_t)1 << 30);
    if (!p) return 9;
    p[1 << 29] = 1;
    return 0;
}
extern int32_t system(const char *);
int32_t shell(const int64_t *a, int64_t threads) { return zero ? system("true") : 0; }
"""


@pytest.fixture(scope="module")
def server():
    need_compiler()
    made = start_server(megabytes=8)
    yield made
    made.stop()


@pytest.fixture
def device(server):
    with server.connect() as one:
        yield one


@pytest.fixture(scope="module")
def kernels():
    need_compiler()
    whole = from_c(KERNELS.replace("extern int32_t system", "//").replace("int32_t shell", "//"))
    return whole


X = np.arange(16, dtype=np.float32)


def call(kernels, name):
    return Call(kernels, name, [X.tobytes(), Result(64)])


def works(device, kernels):
    ran = device.run([call(kernels, "twice")], rounds=2, sample=1e-5)
    return ran.status is Status.OK and np.array_equal(np.frombuffer(ran.results[0][0], np.float32), 2 * X)


def test_results_and_times(device, kernels):
    ran = device.run([call(kernels, "twice")] * 2, rounds=3, sample=1e-4)
    assert ran.status is Status.OK and [part[0] for part in ran.results] == [(2 * X).tobytes()] * 2
    for one in ran.samples:
        assert len(one.rounds) == 3 and one.repeats > 1 and all(own > 0 and wall > 0 for own, wall in one.rounds)
    assert device.info()["architecture"] == host_architecture()


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("crash", Status.CRASH, "SIGSEGV"),
        ("past", Status.CRASH, "SIGSEGV"),
        ("fault", Status.FAULT, "code 7"),
        ("hang", Status.HANG, "1 s"),
        ("nothing", Status.BUILD_ERROR, "no function nothing"),
    ],
)
def test_a_kernel_that_fails_is_told_and_the_next_one_runs(device, kernels, name, status, text):
    ran = device.run([call(kernels, name)], seconds=1)
    assert ran.status is status and text in ran.detail, ran
    assert works(device, kernels)


def test_memory_has_a_limit(device, kernels):
    ran = device.run([call(kernels, "hungry")], memory=256 << 20)
    assert ran.status is Status.FAULT and "code 9" in ran.detail, ran


def test_libraries_that_are_none(device, kernels):
    foreign = "armv7" if host_architecture() != "armv7" else "aarch64"
    damaged = bytearray(kernels)
    damaged[40:60] = secrets.token_bytes(20)
    for library in (
        b"",
        b"\x7fELF",
        secrets.token_bytes(4000),
        bytes(damaged),
        from_c("int32_t twice(void) { return 0; }", foreign),
    ):
        ran = device.run([call(library, "twice")], seconds=2)
        assert ran.status in (Status.BUILD_ERROR, Status.CRASH), ran
    ran = device.run([call(from_c(KERNELS), "shell")])
    assert ran.status is Status.BUILD_ERROR and "does not have: system" in ran.detail
    assert works(device, kernels)


def test_damaged_libraries_harm_nobody(device, kernels):
    random = np.random.default_rng(0)
    for _ in range(25):
        damaged = bytearray(kernels)
        for at in random.integers(0, min(len(damaged), 1500), 8):
            damaged[int(at)] = int(random.integers(256))
        ran = device.run([call(bytes(damaged), "twice")], seconds=1, rounds=1, sample=0)
        assert ran.status in set(Status)
    assert works(device, kernels)


def test_hashes_of_all_lengths(device):
    for size in (0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1000):
        data = bytes(range(256)) * 4
        assert device.put(data[:size]) == hashlib.sha256(data[:size]).digest()


def test_requests_that_make_no_sense(device, kernels):
    for body in (b"", b"\0" * 32, struct.pack("<IIIIQQ", 1, 1, 0, 1, 0, 0), secrets.token_bytes(500)):
        with pytest.raises(PoolError, match="says"):
            device.ask(RUN, body, 5)
    with pytest.raises(PoolError, match="no such message"):
        device.ask(99, b"", 5)
    with pytest.raises(PoolError, match="nothing is counted here"):
        device.run([call(kernels, "twice")], counts=True)
    assert works(device, kernels)


def test_what_was_forgotten_is_put_again(server, kernels):
    with server.connect() as device:
        assert works(device, kernels)
        for number in range(3):  # more than the server keeps
            device.put(bytes([number]) * (3 << 20))
        assert works(device, kernels)


# Strangers.


def raw(server):
    one = socket.create_connection(("127.0.0.1", server.port), 20)
    one.settimeout(20)
    return one


def is_closed(one):
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "data",
    [b"GET / HTTP/1.1\r\n\r\n" + b"x" * 22, b"\0" * 40, random.Random(1).randbytes(1 << 16)],
    ids=["http", "zeros", "noise"],
)
def test_garbage_before_the_key_is_closed_without_a_word(server, data):
    with raw(server) as one:
        one.sendall(data)
        assert is_closed(one)


def test_strangers_who_say_nothing_keep_nobody_out(server, kernels):
    """Slow ones and half-open connections: more than the server has places for, and each is younger than a client."""
    with server.connect() as device, ExitStack() as stack:
        silent = [stack.enter_context(raw(server)) for _ in range(40)]
        for one in silent[::2]:
            one.sendall(MAGIC[:3])  # a byte now and then
        assert works(device, kernels)
        for _ in range(3):
            with server.connect() as other:
                assert works(other, kernels)
        assert any(map(is_closed, silent))


def test_a_server_of_another_version_is_said():
    with socket.create_server(("127.0.0.1", 0)) as old:

        def hang_up():
            with old.accept()[0] as one:
                one.recv(40)

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(PoolError, match="hung up; if it is one of another version, weft pool server makes ours"):
            Connection("127.0.0.1", old.getsockname()[1], secrets.token_bytes(32))
        thread.join()


def test_without_zig_the_systems_compiler_does(tmp_path, monkeypatch):
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler here")
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "ziglang" else real(name, *more)
    )
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    code, name, a, b = product("native")
    made = start_server()
    try:
        with made.connect() as device:
            ran = device.run([Call(code, name, [a.tobytes(), b.tobytes(), Result(24 * 36 * 4)])])
    finally:
        made.stop()
    assert ran.status is Status.OK, ran
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(PoolError, match="there is no compiler: .*link"):
        make_server("riscv64")


def test_nobody_without_the_key_runs_anything(server, device, kernels):
    with pytest.raises(PoolError, match="does not have our key: nothing was sent"):
        Connection("127.0.0.1", server.port, secrets.token_bytes(32))
    with raw(server) as one:  # a client that goes on as if it had the key
        one.sendall(MAGIC + secrets.token_bytes(32))
        assert len(one.makefile("rb").read(64)) == 64  # its number and its proof, which may come apart
        with suppress(ConnectionError):  # it may be closed before the second of the two
            one.sendall(secrets.token_bytes(32))
            one.sendall(struct.pack("<II", 0, INFO) + secrets.token_bytes(64))
        assert is_closed(one)
    assert works(device, kernels)


@pytest.mark.parametrize("what", ["changed", "again", "oversized", "cut"])
def test_messages_that_were_tampered_with(server, device, kernels, what):
    with server.connect() as other:
        header = struct.pack("<II", 1 << 31 if what == "oversized" else 0, INFO)
        message = header + other._out.mac(b"h", header) + other._out.mac(b"b", b"")
        if what == "changed":
            message = message[:4] + b"\3" + message[5:]
        if what == "cut":
            message = message[:-5]
        other._socket.sendall(message)
        if what == "again":
            assert len(other._receive(8)) == 8
            other._socket.sendall(message)
        if what == "cut":
            other._socket.shutdown(socket.SHUT_WR)
        other._socket.settimeout(20)
        try:
            while other._socket.recv(1 << 16):
                pass  # what it said before it closed
        except ConnectionResetError:
            pass
    assert works(device, kernels)


def test_a_key_that_others_can_read_is_refused(tmp_path):
    need_compiler()
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    os.chmod(key, 0o644)
    with pytest.raises(PoolError, match="others may read"):
        read_key(key)
    done = subprocess.run(
        [make_server(host_architecture(), True), "-k", str(key)], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 1 and "chmod 600" in done.stderr
    os.chmod(key, 0o600)
    assert read_key(key) == bytes.fromhex("ab" * 32)
    key.write_text("short")
    with pytest.raises(PoolError, match="holds no key"):
        read_key(key)


# Other machines.


@pytest.mark.slow  # a C library for each of them is built first
@pytest.mark.parametrize("architecture", list(TRIPLES))
def test_other_machines_under_emulation(architecture):
    """Right results; counts that are the same each time, and named as what they are."""
    need_emulator(architecture, counts=True)
    code, name, a, b = product(TRIPLES[architecture])
    made = start_server(architecture, counts=True)
    try:
        with made.connect() as device:
            asked = [Call(code, name, [a.tobytes(), b.tobytes(), Result(24 * 36 * 4)])]
            first, again = (device.run(asked, counts=True) for _ in range(2))
    finally:
        made.stop()
    assert first.status is Status.OK, first
    np.testing.assert_allclose(np.frombuffer(first.results[0][0], np.float32).reshape(24, 36), a @ b, 1e-4, 1e-5)
    (instructions, misses), (others, _) = first.samples[0].rounds[0], again.samples[0].rounds[0]
    assert instructions == others and 24 * 36 * 40 / 16 < instructions < 24 * 36 * 40 * 8
    assert 0 < misses < instructions

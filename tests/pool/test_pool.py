"""A pool with a mixed fleet: measuring on each kind, strangers refused.

One pool serves all tests of this file.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import pickle
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.graphs import mlp
from tests.pool.libraries import TRIPLES, need_compiler
from tests.tuner.small import product
from weft import te
from weft.expr.nodes import Buffer
from weft.graph.interpreter import interpret_graph
from weft.pool.guard import Refused, _Pickle
from weft.pool.kinds import facts_of, make_arrays, packing_of, parameters_of, target_of
from weft.pool.server import can_count, emulator_of
from weft.targets.registry import find_target
from weft.tuner.bench import Bench
from weft.tuner.cost_models import cost_model
from weft.tuner.database import Database
from weft.tuner.records import Status, machine_key
from weft.tuner.search import Proposer, Search
from weft.tuner.space import space_of
from weft.tuner.task import task_of_schedule

HAS_DASK = all(importlib.util.find_spec(name) is not None for name in ("distributed", "cryptography"))
needs_dask = pytest.mark.skipif(not HAS_DASK, reason="there is no distributed or cryptography: weft-compiler[pool]")


def fleet(test):
    """Of the slow suite: a fleet of all kinds takes its time to come up."""
    return needs_dask(pytest.mark.slow(test))


EMULATED = {name: TRIPLES[name] for name in ("aarch64", "armv7", "riscv64")}
WASM = "wasm32-unknown-unknown"


BEFORE = (Status.REFUSED, Status.BUILD_ERROR)
"""What is known of a point before a device gets it."""


# Without a pool.


@pytest.mark.parametrize("what", [os.system, eval, getattr, subprocess.Popen])
def test_pickles_name_nothing_but_jobs(what):
    with pytest.raises(Refused, match="its own jobs"):
        _Pickle.loads(pickle.dumps(what))


def test_pickles_of_data_and_jobs_are_read():
    from weft.pool import jobs

    data = {"a": [1, b"x", {2.5, "y"}], "job": jobs.measure}
    assert _Pickle.loads(pickle.dumps(data)) == data
    with pytest.raises(Refused):  # a name that `jobs` only imports
        _Pickle.loads(b"cweft.pool.jobs\njson\n.")


@pytest.mark.parametrize("text", ["native", "x86_64-unknown-linux-gnu,cpu=skylake-avx512", *EMULATED.values(), "vdla"])
def test_machines_survive_the_way(text):
    target = find_target(text)
    again = target_of(json.loads(json.dumps(facts_of(target))))
    assert machine_key(again) == machine_key(target) and again == target
    assert machine_key(target, "instructions") == f"{machine_key(target)} instructions"


def test_arrays_and_packings_survive_the_way():
    from weft.compiler.kernels.build import Packing
    from weft.expr.digits import Digit

    made = make_arrays(
        '[{"dtype": "float32", "shape": [2, 3], "seed": 1}, {"dtype": "int8", "shape": [2], "data": "AQI="}]'
    )
    assert made[0].shape == (2, 3) and made[1].tolist() == [1, 2]
    packing = Packing(0, (6,), ((0, Digit(4, 0)), None, (0, Digit(1, 4))))
    sent = json.loads(json.dumps(parameters_of([3, packing])))
    assert [packing_of(one) for one in sent] == [3, packing]
    assert packing_of(sent[1]).apply(np.arange(6)).tolist() == packing.apply(np.arange(6)).tolist()


# With one.


def devices() -> dict:
    """A fleet of what there is here."""
    found = {
        "desk-1": {"kind": "desk"},
        "accelerator-1": {"kind": "accelerator", "target": "vdla"},
        **{f"sim-{at}": {"kind": "sim", "device": "simulated:0.15"} for at in range(2)},
    }
    if shutil.which("node"):
        found["page-1"] = {"kind": "wasm", "target": WASM}
    for name, triple in EMULATED.items():
        emulator = emulator_of(name)
        if emulator is not None and can_count(emulator):
            found[f"{name}-1"] = {"kind": name, "device": "counted", "target": triple}
    return found


@pytest.fixture(scope="module")
def pool(folder):
    if not HAS_DASK:
        pytest.skip("there is no distributed or cryptography: weft-compiler[pool]")
    need_compiler()
    from weft.pool.node import LocalPool

    with LocalPool(folder, builders=1, devices=devices()) as made:
        yield made


def runner_of(pool, folder, kind, deadline=180.0):
    from weft.pool.runner import PoolRunner

    return PoolRunner(pool.url, kind, folder, deadline)


def search_of(runner, path, what=product) -> Search:
    *inputs, made = what()
    task = task_of_schedule(te.create_schedule(made.op), [*inputs, made], runner.target)
    space = space_of(task)
    proposer = Proposer(space, cost_model("analytic"))
    return Search(task, Bench(task, 1), proposer, runner, Database(path))


def accelerated() -> tuple[Buffer, Buffer, Buffer]:
    x, w = te.placeholder((4, 2, 16), "int8", name="x"), te.placeholder((2, 2, 16, 16), "int8", name="w")
    d, k = te.reduce_axis(2, "d"), te.reduce_axis(16, "k")
    return x, w, te.compute(
        (4, 2, 16), lambda i, f, o: te.sum(x[i, d, k].astype("int32") * w[f, d, o, k].astype("int32"), axis=[d, k]),
        name="y",
    )  # fmt: skip


@needs_dask
def test_keys_are_for_their_owner(folder):
    from weft.pool.ca import init_pool
    from weft.pool.device import PoolError

    files = sorted(path.name for path in folder.iterdir())
    assert {"ca.pem", "ca.key", "client.pem", "worker.key", "device.key"} <= set(files)
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    with pytest.raises(PoolError, match="holds a pool already"):
        init_pool(folder)


@fleet
@pytest.mark.parametrize("kind", ["desk", "accelerator", "wasm", *EMULATED])
def test_every_kind_of_the_fleet_measures(pool, folder, kind, tmp_path):
    """Kernels, and a whole model where devices of the kind run any."""
    if kind not in {one["kind"] for one in devices().values()}:
        pytest.skip(f"nothing runs {kind} here (Debian: qemu-user, nodejs)")
    runner = runner_of(pool, folder, kind)
    counts = kind in EMULATED
    assert runner.unit == ("instructions" if counts else "seconds")
    search = search_of(runner, tmp_path / "records.sqlite", accelerated if kind == "accelerator" else product)
    records = list(search.round(3))
    check_whole(runner)
    runner.close()
    good = [record for record in records if record.outcome.status is Status.OK]
    found = [(record.outcome.status, record.outcome.detail) for record in records]
    assert good and {status for status, _ in found} <= {Status.OK, *BEFORE}, found
    assert all(record.unit == runner.unit and record.outcome.trace for record in good)
    stored = search.database.records(search.task.key, machine_key(runner.target, runner.unit))
    assert len(stored) == len(records) == search.trials
    if counts:
        assert all(record.outcome.seconds == int(record.outcome.seconds) > 1000 for record in good)
        assert all("missed a modelled cache" in record.outcome.detail for record in good)
        assert not search.database.records(machine=machine_key(runner.target))  # never taken for times


def check_whole(runner) -> None:
    from weft.pool.device import PoolError
    from weft.pool.models import bench_whole

    graph = mlp()
    if runner.kind == "accelerator":
        with pytest.raises(PoolError, match="run kernels, and no whole models"):
            bench_whole(graph, runner)
        return
    found = bench_whole(graph, runner)
    np.testing.assert_allclose(found["outputs"][0], interpret_graph(graph, found["inputs"])[0], 1e-4, 1e-5)
    assert found["unit"] == runner.unit and found[runner.unit] > 0 and found["weight_bytes"] > 4 * 20 * 33


@fleet
def test_a_wrong_kernel_is_a_row(pool, folder, tmp_path, monkeypatch):
    """The candidate's program is that of another product: its result is compared with the default's."""
    runner = runner_of(pool, folder, "desk")
    search = search_of(runner, tmp_path / "records.sqlite")
    real = runner.job_of

    def spoilt(bench, region, point):
        job = copy.deepcopy(real(bench, region, point))
        job["programs"][1] = job["programs"][1].replace("+ A[", "- A[")
        return job

    runner.job_of = spoilt
    numbers = [search.space.default]
    outcomes = [record.outcome for record in search.measure(numbers)]
    runner.close()
    assert [one.status for one in outcomes] == [Status.WRONG], outcomes


@fleet
def test_a_kind_without_a_worker_is_said(pool, folder):
    from weft.pool.device import PoolError

    with pytest.raises(PoolError, match="no worker of kind 'phone' has been in the pool for 1 s.*--kind phone"):
        runner_of(pool, folder, "phone", 1.0)


@needs_dask
def test_a_small_pool(folder, tmp_path):
    """The quick suite's: two simulated devices measure, a stranger is refused, and a member calls nothing but jobs."""
    from weft.pool.node import LocalPool
    from weft.pool.runner import connect

    sims = {f"small-{at}": {"kind": "small", "device": "simulated:0.02"} for at in range(2)}
    with LocalPool(folder, builders=0, devices=sims) as small:
        runner = runner_of(small, folder, "small")
        search = search_of(runner, tmp_path / "records.sqlite")
        records = list(search.round(6))
        assert {one.outcome.status for one in records} <= {Status.OK, *BEFORE} and len(records) == search.trials == 6
        # Two clients with the same job, at the same time: it is measured once, and both are told.
        other, job = runner_of(small, folder, "small"), runner.job_of(search.bench, None, {})
        with ThreadPoolExecutor() as both:
            told = list(both.map(lambda one: list(one.outcomes([job])), (runner, other)))
        assert told[0] == told[1] and told[0][0].status is Status.OK
        other.close()
        runner.close()
        plain = ssl.create_default_context()
        plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
        assert is_refused(small.port, plain)
        with connect(small.url, folder, 20.0) as client:
            with pytest.raises(Exception):  # noqa: B017, PT011 — Dask's own, of many kinds
                client.submit(os.system, f"touch {tmp_path}/executed").result(timeout=5)
        assert not (tmp_path / "executed").exists()


# Strangers.


def ports_of(pool, folder) -> list[int]:
    """Of the scheduler and of every worker."""
    from weft.pool.runner import connect, fleet

    with connect(pool.url, folder, 20.0) as client:
        workers = [int(one["address"].rsplit(":", 1)[1]) for one in fleet(client)]
    return [pool.port, *workers]


def is_refused(port, context) -> bool:
    with socket.create_connection(("127.0.0.1", port), 20) as one:
        try:
            with context.wrap_socket(one) as talk:
                talk.sendall(b"\x01\0\0\0\0\0\0\0" * 4)
                return not talk.recv(100)
        except (ssl.SSLError, ConnectionError):
            return True


@fleet
def test_strangers_are_refused_on_every_port(pool, folder, tmp_path):
    from weft.pool.ca import init_pool

    runner = runner_of(pool, folder, "sim")
    foreign = tmp_path / "foreign"
    init_pool(foreign)
    plain = ssl.create_default_context()
    plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
    other = ssl.create_default_context()
    other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
    other.load_cert_chain(foreign / "worker.pem", foreign / "worker.key")
    for port in ports_of(pool, folder):
        for data in (b"GET / HTTP/1.0\r\n\r\n", os.urandom(1 << 16), b"\xff" * 64 + os.urandom(1 << 20)):
            with socket.create_connection(("127.0.0.1", port), 20) as one:
                one.settimeout(20)
                try:
                    one.sendall(data)
                    one.shutdown(socket.SHUT_WR)
                    while one.recv(1 << 16):
                        pass
                except OSError:
                    pass  # it was closed while we spoke
        for context in (plain, other):  # nobody's certificate, a foreign one
            assert is_refused(port, context)
    with ExitStack() as stack:  # such as say nothing
        for port in ports_of(pool, folder) * 8:
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)).sendall(b"\x16\x03")
        assert runner.width == 2  # the pool is as it was
    runner.close()


@fleet
def test_a_client_or_worker_of_another_pool_does_not_get_in(pool, folder, tmp_path):
    from weft.pool.ca import init_pool
    from weft.pool.device import PoolError
    from weft.pool.runner import PoolRunner, connect, fleet

    init_pool(tmp_path / "foreign")
    with pytest.raises(PoolError, match="with our certificates"):
        PoolRunner(pool.url, "sim", tmp_path / "foreign", 0.5)
    from weft.pool.node import Supervisor, worker_command

    stranger = Supervisor({"x": worker_command(tmp_path / "foreign", pool.url, "stranger", {"kind": "build"})})
    stranger.look()
    try:
        with connect(pool.url, folder, 20.0) as client:
            end = time.monotonic() + 6
            while time.monotonic() < end and stranger.processes["x"].poll() is None:
                assert "stranger" not in {one["name"] for one in fleet(client)}
                time.sleep(0.5)
    finally:
        stranger.stop()


@fleet
def test_a_member_runs_jobs_and_nothing_else(pool, folder, tmp_path):
    """With a right certificate: functions that are no jobs are refused by scheduler and workers, and none is called."""
    from weft.pool.runner import connect, fleet

    marker = tmp_path / "executed"
    client = connect(pool.url, folder, 20.0)
    try:
        tries = [
            lambda: client.submit(os.system, f"touch {marker}").result(timeout=5),
            lambda: client.run(os.system, f"touch {marker}"),
            lambda: client.run_on_scheduler(os.system, f"touch {marker}"),
            lambda: client.submit(lambda: Path(marker).touch()).result(timeout=5),
        ]
        for one in tries:
            with pytest.raises(Exception):  # noqa: B017, PT011 — Dask's own, of many kinds
                one()
        assert not marker.exists()
        assert len(fleet(client)) == len(devices()) + 1
    finally:
        client.close(timeout=2)


@fleet
def test_the_command_measures_a_whole_model(pool, folder):
    words = ["bench", "dqn", "--pool", pool.url, "--target", "desk", "--certificates", str(folder), "--json"]
    command = [sys.executable, "-m", "weft", *words, "--against", "interpreter"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["error"] < 1e-4 and 1e-5 < found["seconds"] < 10 and len(found["rounds"]) > 1


@fleet
def test_the_command_lists_the_fleet(pool, folder):
    command = [sys.executable, "-m", "weft", "devices", "--pool", pool.url, "--certificates", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = {one["name"]: one for one in json.loads(done.stdout)["workers"]}
    assert found.keys() == {*devices(), "builder-0"} and found["sim-0"]["kind"] == "sim"

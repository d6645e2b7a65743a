"""Kernels made by forked processes: the same, each kept as it is made, and none lost by a child that dies or hangs."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import weft
from tests.compiler.graphs import convnet, random_inputs
from weft.codegen.llvm import child as llvm_child
from weft.compiler.kernels import build as kernels
from weft.compiler.kernels import workers
from weft.compiler.kernels.workers import Job, Workers
from weft.core import model
from weft.core.errors import InternalError
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only"),
    pytest.mark.filterwarnings("ignore:os.fork"),  # another test of this process may have imported JAX
]
OPS = ("Exp", "Sigmoid", "Tanh", "Abs", "Neg", "Sqrt")


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    monkeypatch.setattr(workers, "_is_warm", True)
    monkeypatch.setattr(model, "ENOUGH_SECONDS", 0.0)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    with knobs.override(num_threads=2):
        yield


def made(count: int, make) -> list[object]:
    """The results of jobs that are told their number."""
    crew = Workers()
    jobs = [Job(lambda at=at: make(at)) for at in range(count)]
    for job in jobs:
        crew.submit(job)
    crew.finish()
    crew.close()
    return [job.result() for job in jobs]


def test_two_processes_make_jobs():
    def slowly(at: int) -> tuple[int, int]:
        time.sleep(0.01)
        return at, os.getpid()

    found = made(20, slowly)
    assert [at for at, _ in found] == list(range(20))
    assert len({process for _, process in found}) >= 2


def test_jobs_are_given_away_while_this_process_does_something_else():
    crew = Workers()
    jobs = [Job(os.getpid) for _ in range(12)]
    for job in jobs:
        crew.submit(job)
    while not all(job.is_made for job in jobs[:10]):  # fewer than are worth a child may wait at the end
        crew.tend()
    assert os.getpid() not in {job.result() for job in jobs[:10]}
    crew.finish()
    crew.close()


def test_nobody_forks_for_jobs_that_take_no_time(monkeypatch):
    monkeypatch.setattr(model, "ENOUGH_SECONDS", 0.3)
    monkeypatch.setattr(workers, "_spent", 0.01)
    assert set(made(20, lambda at: os.getpid())) == {os.getpid()}


def test_what_jobs_take_is_known_by_the_last_ones_and_their_programs(monkeypatch):
    """Short jobs before say what long ones take: a child is forked for few of these, and for none of those."""
    monkeypatch.setattr(model, "ENOUGH_SECONDS", 0.3)
    monkeypatch.setattr(workers, "_spent", 0.1)
    monkeypatch.setattr(workers, "_letters", 4_000.0)
    for _ in range(20):
        workers._note(0.01, 500)
    for size, forks in ((500, False), (20_000, True)):
        crew = Workers()
        for _ in range(3):
            crew.submit(Job(lambda: time.sleep(0.01), size))
        assert bool(crew._children) == forks
        crew.finish()
        crew.close()


def test_the_longest_jobs_are_made_first():
    order = []
    with knobs.override(num_threads=1):
        crew = Workers()
        for size in (30, 10, 40, 20):
            crew.submit(Job(lambda size=size: order.append(size), size))
        crew.finish()
    assert order == [40, 30, 20, 10]


def test_beside_jax_nobody_forks(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", os)
    assert set(made(6, lambda at: os.getpid())) == {os.getpid()}


@pytest.mark.parametrize("kind", ["raises", "dies", "hangs"])
def test_what_a_child_does_not_make_is_made_here(kind, monkeypatch):
    here = os.getpid()
    monkeypatch.setattr(model, "PATIENCE_SECONDS", 0.2)

    def fail_elsewhere(at: int) -> int:
        if os.getpid() != here and at >= 1:
            if kind == "raises":
                raise ValueError("only here")
            os.kill(os.getpid(), signal.SIGKILL) if kind == "dies" else time.sleep(100)
        return at

    assert made(8, fail_elsewhere) == list(range(8))


def test_an_error_is_raised_to_who_asks():
    def make(at: int) -> int:
        if at == 2:
            raise ValueError("job 2")
        return at

    with pytest.raises(ValueError, match="job 2"):
        made(5, make)


def test_a_fork_waits_until_llvm_is_left():
    """A child that found LLVM's lock taken by a thread that it does not have would wait for ever."""
    seen: list[bool] = []
    entered, leave = threading.Event(), threading.Event()

    def inside() -> None:
        with llvm_child.nobody_in_llvm():
            entered.set()
            leave.wait(10)
            seen.append(True)

    other = threading.Thread(target=inside)
    other.start()
    entered.wait(10)
    threading.Timer(0.05, leave.set).start()
    assert made(6, lambda at: (at, list(seen)))[0][0] == 0 and seen == [True]
    other.join()


def graph() -> Graph:
    x = Value("x", TensorType("float32", (3, 50)))
    values = [x, *(Value(f"v{n}") for n in range(len(OPS)))]
    nodes = [Node(op, [values[n]], [values[n + 1]]) for n, op in enumerate(OPS)]
    return Graph("g", [x], [values[-1]], nodes)


def test_code_is_the_same_by_one_process_and_by_two(monkeypatch, tmp_path):
    monkeypatch.setattr(model, "KERNEL_KEPT_SECONDS", 0.0)
    codes = []
    for threads in (1, 2):
        monkeypatch.setattr(kernels, "_CACHE", type(kernels._CACHE)())
        with knobs.override(num_threads=threads, cache=True, cache_dir=tmp_path / str(threads), fuse=False):
            module = weft.compile(graph())
        codes.append([kernel.object_code for kernel in module.specializations[0].lowered.kernels])
        assert len(list((tmp_path / str(threads) / "kernels").glob("*.o"))) == len(OPS)
        assert module(np.full((3, 50), -1, np.float32)).shape == (3, 50)
    assert codes[0] == codes[1]


def test_a_kernel_that_has_no_code_runs_on_the_host(monkeypatch):
    """Lowering may refuse in another process, and long after the program was planned."""
    plain = kernels.generate

    def refuse(func, *given, **more):
        if "tanh" in func.name:
            raise weft.WeftError("no tanh today")
        return plain(func, *given, **more)

    monkeypatch.setattr(kernels, "generate", refuse)
    monkeypatch.setattr(kernels, "_CACHE", type(kernels._CACHE)())
    with knobs.override(cache=False, fuse=False):
        module = weft.compile(graph())
    (on_host,) = module.specializations[0].host_nodes
    assert (on_host.node.op, on_host.reason) == ("Tanh", "no tanh today")
    assert not [key for key in kernels._CACHE if "tanh" in kernels._CACHE[key][0].symbol]


@pytest.mark.parametrize("stage", ["plan_schedule", "generate"])
def test_one_kernel_that_is_refused_has_no_other_compiled_again(monkeypatch, stage):
    """Among values in blocks, too: a node on the host gets plain copies of them, whenever it is refused."""
    graph, planned, plain = convnet(), [], getattr(kernels, stage)

    def refuse(func, *given, **more):
        name = str(func.schedule.func if stage == "plan_schedule" else func.name)
        if "tanh" in name.lower():
            raise weft.WeftError("no tanh today")
        planned.append(name)
        return plain(func, *given, **more)

    monkeypatch.setattr(kernels, stage, refuse)
    monkeypatch.setattr(kernels, "_CACHE", type(kernels._CACHE)())
    at = next(number for number, node in enumerate(graph.nodes) if node.op == "Relu")
    (nodes := list(graph.nodes))[at] = Node("Tanh", graph.nodes[at].inputs, graph.nodes[at].outputs)
    graph = graph.replace(nodes=nodes)
    with knobs.override(cache=False, fuse=False, num_threads=1):
        module = weft.compile(graph)
    assert [one.node.op for one in module.specializations[0].host_nodes] == ["Tanh"]
    assert len(planned) == len(set(planned)) and module.specializations[0].lowered.layouts
    (given,) = random_inputs(graph)
    np.testing.assert_allclose(module(given), interpret_graph(graph, {"image": given})[0], rtol=1e-4, atol=1e-5)


def test_a_failure_of_the_compiler_is_no_refusal(monkeypatch):
    """Internal errors are never hidden behind a node that runs on the host."""

    def broken(*_, **__):
        raise AttributeError("a mistake of ours")

    monkeypatch.setattr(kernels, "generate", broken)
    monkeypatch.setattr(kernels, "_CACHE", type(kernels._CACHE)())
    with knobs.override(cache=False), pytest.raises(InternalError, match="Tanh.*a mistake of ours"):
        weft.compile(graph())


def test_kernels_of_a_device_are_planned_and_lowered_by_jobs(monkeypatch):
    """The same text and steps whoever makes them, and what cannot be lowered runs on the host."""
    plain, plan, texts, planned = kernels.KernelCompiler._device_code, kernels.plan_schedule, [], []

    def refuse(self, func):
        if "tanh" in func.name:
            raise weft.WeftError("no tanh today")
        return plain(self, func)

    def count(*given):
        planned.append(texts)
        time.sleep(0.05)
        return plan(*given)

    monkeypatch.setattr(kernels.KernelCompiler, "_device_code", refuse)
    monkeypatch.setattr(kernels, "plan_schedule", count)
    for threads in (1, 2):
        monkeypatch.setattr(kernels, "_CACHE", type(kernels._CACHE)())
        planned.clear()
        with knobs.override(cache=False, fuse=False, num_threads=threads):
            (made,) = weft.compile(graph(), target="cuda:sm_90a").specializations
        assert [(one.node.op, one.reason) for one in made.host_nodes] == [("Tanh", "no tanh today")]
        found = made.lowered.kernels
        texts.append([(one.symbol, one.program.source, repr(one.scheduled), one.trace.to_json()) for one in found])
        assert (len(planned) < len(OPS)) == (threads > 1)
    assert len(texts[0]) == len(OPS) - 1 and texts[0] == texts[1]

"""Compiled graphs give what the numpy interpreter gives; shapes, host nodes and memory behave as promised."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.graphs import attention, check, convnet, mlp, random_inputs, recurrent
from weft.compiler import HostWarning, compile
from weft.core.errors import ArgumentError, InternalError
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.models.builder import Builder
from weft.targets.registry import find_target


@pytest.mark.parametrize("make", [convnet, mlp, attention, recurrent])
def test_models_match_the_interpreter(make):
    graph = make()
    module = check(graph, random_inputs(graph))
    (one,) = module.specializations
    assert not one.host_nodes
    assert [type(step).__name__ for step in one.lowered.program.steps] == ["NativeStep"]


def test_several_calls_and_threads_agree():
    graph = convnet()
    module = compile(graph, threads=2)
    arrays = [random_inputs(graph, seed) for seed in range(4)]
    want = [interpret_graph(graph, a)[0] for a in arrays]
    wrong = []

    def work(at: int) -> None:
        for _ in range(5):
            if not np.allclose(module(*arrays[at]), want[at], atol=1e-5):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("threads, cores", [(None, 4), (1, 1), (3, 3), (9, 4)])
def test_schedules_are_made_for_the_threads_that_calls_have(threads, cores):
    machine = replace(find_target("native"), cores=4)
    assert compile(mlp(), target=machine, threads=threads).target.cores == cores


def test_symbolic_sizes_may_be_bound_on_first_sight_and_forms_are_bounded():
    batch = Var("batch")
    graph = mlp(batch)
    with knobs.override(sizes="bound"):
        module = compile(graph)
    assert module.inputs[0].shape == ("batch", 20) and not module.specializations
    for size in (1, 3, 3, 8):
        check(graph, random_inputs(graph, size, {"batch": size}), module)
    assert len(module.specializations) == 3
    with knobs.override(forms_megabytes=4):
        for size in (2, 4, 5):
            module(np.zeros((size, 20), "float32"))
    assert len(module.specializations) == 3  # of a megabyte each, and its weights


def test_shapes_bind_sizes_ahead():
    module = compile(mlp(Var("batch")), shapes={"x": (5, 20)})
    assert len(module.specializations) == 1
    with pytest.raises(ArgumentError, match="shape"):
        module(np.zeros((4, 20), "float32"))


def with_host_node() -> Graph:
    """A unique (no kernel: its size is a matter of values) between two additions."""
    b = Builder("host")
    x = b.input("x", (12,))
    y = b.node("Add", x, b.constant(np.float32(1)))
    u = b.node("Unique", y, sorted=1)
    return b.finish(b.node("Mul", u, b.constant(np.float32(2))))


def test_host_nodes_warn_once_and_the_rest_follows():
    graph = with_host_node()
    with pytest.warns(HostWarning, match="unique_2") as caught:
        module = compile(graph)
    assert len(caught) == 1
    for values in ([3, 1, 3, 2] * 3, [5] * 12):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check(graph, [np.array(values, "float32")], module)
    steps = [type(step).__name__ for step in module.specializations[0].lowered.program.steps]
    assert steps == ["NativeStep", "HostStep", "RestStep"]


def test_inputs_that_decide_shapes_are_bound_by_value():
    b = Builder("deciding")
    x, shape = b.input("x", (2, 6)), b.input("shape", (2,), "int64")
    graph = b.finish(b.node("Relu", b.node("Reshape", b.node("Neg", x), shape)))
    module = compile(graph)
    for wanted in ([3, 4], [12, 1], [-1, 2]):
        check(graph, [np.arange(12, dtype="float32").reshape(2, 6), np.array(wanted)], module)
    assert len(module.specializations) == 3
    assert not any(one.host_nodes for one in module.specializations)


def choice(size):
    """An If named "choice" between a product and a negation of a square matrix."""
    inner = Builder("then")
    w = inner.normal(size, size)
    x = Value("x", TensorType("float32", (size, size)))
    product = inner.node("MatMul", x, w)
    then = Graph("then", [], [product], inner.nodes, inner.constants)
    other = Builder("else")
    negative = other.node("Neg", x)
    otherwise = Graph("else", [], [negative], other.nodes, {})
    condition = Value("condition", TensorType("bool", ()))
    node = Node("If", [condition], [Value("out")], {"then_branch": then, "else_branch": otherwise}, name="choice")
    return Graph("choose", [condition, x], list(node.outputs), [node])


def check_choice(graph, module, size):
    array = np.random.default_rng(0).standard_normal((size, size)).astype("float32")
    for flag in (True, False):
        check(graph, [np.array(flag), array], module)


def test_control_flow_runs_its_branches_compiled():
    graph = choice(64)
    with pytest.warns(HostWarning, match="choice"):
        module = compile(graph)
    check_choice(graph, module, 64)


@pytest.mark.filterwarnings("error")
def test_small_branches_are_both_computed():
    graph = choice(4)
    module = compile(graph)
    assert not any(one.host_nodes for one in module.specializations)
    check_choice(graph, module, 4)


def test_outputs_that_are_inputs_or_constants_are_copies():
    b = Builder("plain")
    x = b.input("x", (3,))
    c = b.constant(np.ones(2, "float32"))
    graph = Graph("plain", [x], [x, c, b.node("Relu", x)], b.nodes, b.constants)
    module = compile(graph)
    given = np.array([1, -2, 3], "float32")
    same, fixed, made = module(given)
    same[0] = fixed[0] = 9
    assert given[0] == 1 and module(given)[1][0] == 1
    np.testing.assert_array_equal(made, [1, 0, 3])


def test_memory_is_shared():
    b = Builder("chain")
    x = b.input("x", (64, 64))
    for _ in range(6):
        x = b.node("Relu", b.node("MatMul", x, b.normal(64, 64, scale=0.1)))
    program = compile(b.finish(x)).specializations[0].lowered.program
    assert program.arena_bytes < program.unshared_bytes / 2


def test_arguments_are_checked():
    module = compile(mlp())
    x = np.zeros((4, 20), "float32")
    for arrays, named, text in (
        ([x, x], {}, "takes 1 inputs"),
        ([], {}, "missing: x"),
        ([x], {"x": x}, "given twice"),
        ([x], {"z": x}, "unknown: z"),
        ([x.astype("float64")], {}, "float64"),
        ([x[:, :3]], {}, "shape"),
    ):
        with pytest.raises(ArgumentError, match=text):
            module(*arrays, **named)
    with pytest.raises(ArgumentError, match="no outputs"):
        module.run(["nothing"], {"x": x})
    assert module.run([module.outputs[0].name], {"x": x})[0].shape == (4, 7)
    strided = np.zeros((20, 4), "float32").T
    np.testing.assert_array_equal(module(strided), module(x))


def test_a_precision_that_is_not_there_is_refused():
    with pytest.raises(ArgumentError, match="fp8.* not known; there are fp32, tf32, bf16, fp16"):
        compile(mlp(), precision="fp8")
    with pytest.raises(ArgumentError, match="x86_64.* has no float16 instructions.*use 'bf16'"):
        compile(mlp(), "x86_64-unknown-linux-gnu", precision="fp16")


def test_torch_in_torch_out():
    torch = pytest.importorskip("torch")
    module = compile(mlp())
    made = module(torch.ones(4, 20))
    assert isinstance(made, torch.Tensor)
    np.testing.assert_allclose(made.numpy(), module(np.ones((4, 20), "float32")))


def test_equal_kernels_are_compiled_once():
    b = Builder("twice")
    x = b.input("x", (8, 8))
    for _ in range(4):
        x = b.relu(b.dense(x, 8, 8))
    one = compile(b.finish(x)).specializations[0]
    assert len(one.launches) == 4 and len(one.lowered.kernels) == 1


def test_report_says_what_runs_where():
    text = compile(convnet()).report()
    assert "kernel calls" in text and "arena" in text and "on the host" in text


def test_a_bug_of_the_compiler_is_no_host_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler itself does wrong is told, never hidden as a node that runs slowly on the host."""
    graph = convnet()

    def broken(*_: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr("weft.compiler.kernels.build.plan_schedule", broken)
    monkeypatch.setattr("weft.compiler.kernels.build._CACHE", OrderedDict())
    with (
        knobs.override(cache=False),
        pytest.raises(InternalError, match="conv.*failed to compile: IndexError"),
    ):
        compile(graph)

"""Steps of recurrences by tensor cores: one kernel each; by the interpreter, by NVRTC; what they do not take."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft.ops  # noqa: F401  (the operators)
from weft import te
from weft.compiler.kernels.program import build_program
from weft.core.dtypes import dtype
from weft.core.errors import InterpreterError
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate
from weft.loop.parser import parse_func
from weft.loop.passes.support import GRID_BARRIER, is_barrier, is_call
from weft.loop.verifier import verify
from weft.loop.visit import Mutator, walk_stmts
from weft.targets.cuda import nvrtc
from weft.targets.registry import find_target

HOPPER = find_target("cuda:sm_90a")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrence(op, steps, batch, hidden, kind="float16", features=8, **attributes):
    """A recurrence of narrow numbers; the last state, too."""
    random, rows, element = np.random.default_rng(0), GATES[op] * hidden, dtype(kind).numpy
    shapes = {"w": (1, rows, features), "r": (1, rows, hidden), "b": (1, 2 * rows)}
    values = {name: Value(name, TensorType(kind, shape)) for name, shape in shapes.items()}
    arrays = {v: (random.standard_normal(shapes[n]) * hidden**-0.5).astype(element) for n, v in values.items()}
    x = Value("x", TensorType(kind, (steps, batch, features)))
    y, last = Value("y", TensorType(kind, (steps, 1, batch, hidden))), Value("l", TensorType(kind, (1, batch, hidden)))
    node = Node(op, [x, *values.values()], [y, last], {"hidden_size": hidden, **attributes})
    return infer(Graph("one", [x], [y, last], [node], arrays))


def scheduled(graph):
    """Its program by the default schedule, and what each parameter is."""
    made = build_program(graph.nodes, graph.outputs, graph.constants, "kernel", {}, 1)
    HOPPER.spec.schedule(made.schedule, HOPPER, [buffer for v, buffer in made.inputs if v in graph.constants])
    verify(made.schedule.func)
    return made


def run(made, graph, func, x, check):
    """The results of a program by the interpreter."""
    results = [np.full(v.tensor.static, 7, v.tensor.core.numpy) for v in graph.outputs]
    known = {buffer: graph.constants.get(v, x) for v, buffer in made.inputs}
    known |= dict(zip((buffer for _, buffer in made.outputs), results))
    interpret(func, *[known[p] for p in made.schedule.func.params], check=check)
    return results


def is_taken(schedule):
    return any(one.name == "steps by tensor cores" and not one.refused for one in schedule.tried)


@pytest.mark.parametrize(
    "op, steps, batch, hidden, more",
    [
        ("LSTM", 2, 16, 40, {}),
        ("LSTM", 3, 5, 26, {"direction": "reverse"}),
        ("LSTM", 2, 3, 32, {"kind": "bfloat16", "clip": 0.5}),
        ("LSTM", 2, 20, 22, {"input_forget": 1}),
        ("GRU", 2, 9, 24, {"linear_before_reset": 1}),
    ],
)
def test_a_step_is_one_kernel(op, steps, batch, hidden, more):
    graph = recurrence(op, steps, batch, hidden, **more)
    made = scheduled(graph)
    assert is_taken(made.schedule), made.schedule.tried
    x = (
        np.random.default_rng(1)
        .standard_normal(graph.inputs[0].tensor.static)
        .astype(graph.inputs[0].tensor.core.numpy)
    )
    want = interpret_graph(graph, [x])
    lowered = HOPPER.lower(made.schedule.func)
    least = 2e-3 if graph.inputs[0].tensor.dtype == "float16" else 1.6e-2
    for func, check in ((made.schedule.func, True), (lowered, False)):
        for result, right in zip(run(made, graph, func, x, check), want):
            assert np.abs(result.astype(np.float32) - right.astype(np.float32)).max() < least
    program = HOPPER.generate(lowered)
    source, (whole,) = program.source, [kernel.name for kernel in program.kernels if kernel.is_whole]
    (stays,) = [one for one in source.split('extern "C"') if f" {whole}(" in one.split("{")[0]]
    assert re.search(r"weft_mma_rows_b?f16<", stays) and "weft_grid_barrier(" in stays, "all steps are one kernel"
    assert "uint16_t * lstm0_v0" in stays or "__restrict__ gru0" not in stays, "blocks see what others wrote"
    if nvrtc.is_available():
        assert nvrtc.compile_source(source, "sm_90a")[1:4] == b"ELF"


@pytest.mark.parametrize("op, hidden, more", [("LSTM", 33, {}), ("GRU", 24, {}), ("RNN", 32, {})])
def test_what_they_do_not_take_falls_back(op, hidden, more):
    """Sums of odd length; a reset before the product; a step without gates."""
    graph = recurrence(op, 2, 3, hidden, **more)
    made = scheduled(graph)
    assert not is_taken(made.schedule)
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].tensor.static).astype(np.float16)
    for result, right in zip(run(made, graph, made.schedule.func, x, True), interpret_graph(graph, [x])):
        assert np.abs(result.astype(np.float32) - right.astype(np.float32)).max() < 2e-3


def test_a_missing_barrier_is_found():
    graph = recurrence("LSTM", 2, 4, 64)
    made = scheduled(graph)
    lowered = HOPPER.lower(made.schedule.func)
    assert any(map(is_barrier, walk_stmts(lowered.body)))

    class Drop(Mutator):
        def visit_Evaluate(self, s):
            return Evaluate(te.const(0)) if is_barrier(s) else s

    x = np.random.default_rng(1).standard_normal(graph.inputs[0].tensor.static).astype(np.float16)
    right = interpret_graph(graph, [x])[0].astype(np.float32)
    found = run(made, graph, Drop().func(lowered), x, False)[0].astype(np.float32)
    assert not np.allclose(found, right, rtol=1e-2, atol=1e-2)


class DropGridBarriers(Mutator):
    def visit_Evaluate(self, s):
        return Evaluate(te.const(0)) if is_call(s, GRID_BARRIER) else s


def test_blocks_that_do_not_wait_for_one_another_are_found():
    graph = recurrence("LSTM", 3, 2, 8, features=2)
    made = scheduled(graph)
    lowered = HOPPER.lower(made.schedule.func)
    verify(lowered)
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].tensor.static).astype(np.float16)
    for found, right in zip(run(made, graph, lowered, x, True), interpret_graph(graph, [x])):
        assert np.abs(found.astype(np.float32) - right.astype(np.float32)).max() < 2e-3
    with pytest.raises(InterpreterError, match="never written|race"):
        run(made, graph, DropGridBarriers().func(lowered), x, True)


def test_blocks_run_side_by_side_up_to_a_grid_barrier():
    """Each block reads what all others wrote before: with the barrier it finds it, without it races."""
    text = """func f(A: int32[4]) @{"flat": true}:
    allocate w: int32[4]:
        allocate arrived: int32[1]:
            for b in range(4) thread blockIdx.x:
                for t in range(2) thread threadIdx.x:
                    if t < 1:
                        w[b] = int32(b) * 3i32
                    grid_barrier(address(arrived[0], "rw"), 4)
                    if t < 1:
                        A[b] = w[3 - b]
"""
    func = parse_func(text)
    made = np.zeros(4, np.int32)
    interpret(func, made)
    assert made.tolist() == [9, 6, 3, 0]
    with pytest.raises(InterpreterError, match="never written|race"):
        interpret(DropGridBarriers().func(func), made)


def test_a_step_may_be_a_kernel():
    """Where registers do not hold the weights, each step starts one."""
    made = scheduled(recurrence("LSTM", 3, 2, 2048, features=8))
    program = HOPPER.generate(HOPPER.lower(made.schedule.func))
    assert is_taken(made.schedule) and not any(kernel.is_whole for kernel in program.kernels)
    assert sum(bool(kernel.constants) for kernel in program.kernels) == 3


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
def test_a_machine_whose_tensor_cores_take_less_at_a_time_has_plain_steps():
    graph, turing = recurrence("LSTM", 2, 16, 64), find_target("cuda:sm_75")
    made = build_program(graph.nodes, graph.outputs, graph.constants, "kernel", {}, 1)
    turing.spec.schedule(made.schedule, turing, [buffer for v, buffer in made.inputs if v in graph.constants])
    source = turing.generate(turing.lower(made.schedule.func)).source
    assert nvrtc.compile_source(source, "sm_75")[1:4] == b"ELF"


def test_each_kernel_lays_shared_memory_over_its_own():
    """The product of the input has tiles that lie over one another, although steps use shared memory, too."""
    made = scheduled(recurrence("LSTM", 16, 64, 64, features=256))
    lowered = HOPPER.lower(made.schedule.func)
    assert any("projection" in name for group in lowered.annotations["shared_overlay"] for name in group)
    (steps,) = {k.name for k in HOPPER.generate(lowered).kernels if k.is_whole}
    assert "__shared__" in HOPPER.generate(lowered).source.split(steps)[1].split('extern "C"')[0]

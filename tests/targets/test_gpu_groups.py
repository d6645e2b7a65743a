"""Convolutions in groups on machines with threads: products whose batch are the groups, with their epilogues.

The interpreter runs what is scheduled, and what the passes of CUDA make of it; OpenCL runs for real.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401  (the operators)
from tests.codegen.c_support import opencl
from tests.targets.test_cuda_channels_last import layout_of
from weft.compiler.kernels.program import build_program
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.loop.interpreter import interpret
from weft.loop.verifier import verify
from weft.targets.registry import find_target

AMPERE, HOPPER = find_target("cuda:sm_80"), find_target("cuda:sm_90a")
TF32 = HOPPER.with_features("tf32")
INTEGERS = {"int8", "uint8"}


def grouped(group, inputs, outputs, image, kernel, batch=1, dtype="float32", op="Conv", ends=("bias", "Relu"),
            constant=True, seed=0, **attributes):  # fmt: skip
    """A convolution of `group` groups, so many channels each, and what stands behind it."""
    random = np.random.default_rng(seed)
    count = len(kernel)
    integer = dtype in INTEGERS
    sides = (group * inputs, outputs) if op == "ConvTranspose" else (group * outputs, inputs)
    x = Value("x", TensorType(dtype, (batch, group * inputs, *image)))
    w = Value("w", TensorType("int8" if integer else dtype, (*sides, *kernel)))
    kind = w.tensor.core.numpy
    draw = (lambda *s: random.integers(-9, 9, s)) if integer else (lambda *s: random.standard_normal(s))
    constants, given = {w: draw(*w.tensor.static).astype(kind)}, [x]
    more = {"pads": [k // 2 for k in kernel] * 2, "strides": [1] * count, **attributes}
    name = "ConvInteger" if integer else op
    out = Value("conv", TensorType("int32" if integer else dtype, None))
    node_inputs = [x, w]
    if not integer and "bias" in ends:
        b = Value("b", TensorType(dtype, (group * outputs,)))
        constants[b] = draw(group * outputs).astype(kind)
        node_inputs.append(b)
    nodes = [Node(name, node_inputs, [out], {"group": group, **more})]
    shape = infer(Graph("g", [x], [out], nodes, constants)).outputs[0].tensor.static
    for end in ends if not integer else ():
        last, new = nodes[-1].outputs[0], Value(f"after_{end}", TensorType(dtype, shape))
        if end == "Add":
            other = Value("r", new.type)
            given.append(other)
            nodes.append(Node("Add", [last, other], [new], {}))
        elif end != "bias":
            nodes.append(Node(end, [last], [new], {}))
    if not constant:
        given.append(w)
        del constants[w]
    graph = Graph("grouped", given, [nodes[-1].outputs[0]], nodes, constants)
    arrays = [draw(*v.tensor.static).astype(v.tensor.core.numpy) for v in given]
    return infer(graph), [np.abs(a) if v.tensor.dtype == "uint8" else a for v, a in zip(given, arrays)]


def scheduled(graph, target, together=()):
    """The program of a graph, all channels of the images among `together` at each place."""
    layouts = {v: layout_of(v) for v in together}
    made = build_program(graph.nodes, graph.outputs, graph.constants, "kernel", layouts, 1)
    constants = [buffer for v, buffer in made.inputs if v in graph.constants]
    target.spec.schedule(made.schedule, target, constants)
    verify(made.schedule.func)
    return made


def taken(program):
    """The sketches and steps that stand."""
    return [one.name for one in program.schedule.tried if not one.refused]


def check(graph, arrays, target=HOPPER, together=False, product=True):
    """Interprets a program as scheduled and as lowered, against the meaning of the graph."""
    images = [*(v for v in graph.inputs if len(v.tensor.static) == 4), *graph.outputs] if together else []
    program = scheduled(graph, target, images)
    assert not product or {"product", "tensor cores", "warpgroups", "bulk"} & set(taken(program)), taken(program)
    (want,) = interpret_graph(graph, arrays)
    known = {**graph.constants, **dict(zip(graph.inputs, arrays))}
    out = graph.outputs[0]

    def stored(v, array):
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)[:, None]) if v in images else array

    results = []
    for func, strict in ((program.schedule.func, True), (target.lower(program.schedule.func), False)):
        made = stored(out, np.full(out.tensor.static, 7, out.tensor.core.numpy)).copy()
        interpret(func, *[stored(v, known[v]) for v, _ in program.inputs], made, check=strict)
        results.append(np.moveaxis(made[:, 0], -1, 1) if out in images else made)
    np.testing.assert_array_equal(*results)
    made, want = results[0].astype(np.float64), want.astype(np.float64)
    narrow = graph.inputs[0].tensor.dtype in ("float16", "bfloat16") or target is TF32
    tolerance = (2e-2 if narrow else 1e-5) * np.abs(want).max()
    assert np.abs(made - want).max() <= (0 if out.tensor.dtype == "int32" else tolerance)
    return program


CASES = {
    "two groups": lambda **more: grouped(2, 8, 16, (6, 7), (3, 3), **more),
    "odd channels": lambda **more: grouped(3, 9, 5, (5, 9), (3, 3), **more),
    "stride and a batch": lambda **more: grouped(4, 6, 12, (9, 9), (3, 3), 2, strides=[2, 2], **more),
    "dilated, uneven padding": lambda **more: grouped(
        2, 12, 12, (9, 8), (3, 2), dilations=[2, 3], pads=[2, 1, 0, 2], **more
    ),
    "pointwise": lambda **more: grouped(3, 24, 8, (5, 5), (1, 1), **more),
    "one dimension": lambda **more: grouped(4, 5, 8, (40,), (3,), **more),
    "three dimensions": lambda **more: grouped(2, 4, 8, (3, 5, 4), (3, 1, 3), **more),
    "a residual": lambda **more: grouped(2, 8, 8, (6, 6), (3, 3), ends=("bias", "Add", "Relu"), **more),
    "nothing behind it": lambda **more: grouped(2, 8, 8, (6, 6), (3, 3), ends=(), **more),
    "weights that change": lambda **more: grouped(2, 8, 8, (6, 6), (3, 3), constant=False, **more),
    "one channel makes several": lambda **more: grouped(6, 1, 8, (8, 8), (3, 3), **more),
}


@pytest.mark.parametrize("name", CASES)
def test_groups_are_the_batch_of_a_product(name):
    program = check(*CASES[name]())
    made = HOPPER.generate(HOPPER.lower(program.schedule.func))
    packed = sum("_global" in buffer.name for buffer in program.schedule.func.allocations if buffer.scope == "global")
    parts = [one.point["parts"] for one in program.schedule.tried if one.point and "parts" in one.point]
    assert len(made.kernels) <= packed + (2 if max(parts) > 1 else 1), "the epilogue is a kernel of its own"


@pytest.mark.parametrize("name", CASES)
def test_opencl_computes_the_same(name):
    opencl()
    graph, arrays = CASES[name]()
    (want,) = interpret_graph(graph, arrays)
    with knobs.override(cache=False):
        (made,) = weft.compile(graph, target="opencl").run(None, dict(zip((v.name for v in graph.inputs), arrays)))
    np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


WIDE = {
    "float16": lambda **more: grouped(2, 16, 16, (6, 7), (3, 3), dtype="float16", **more),
    "bfloat16": lambda **more: grouped(2, 24, 16, (6, 7), (3, 3), dtype="bfloat16", **more),
    "odd": lambda **more: grouped(3, 12, 24, (7, 7), (3, 3), dtype="float16", strides=[2, 2], **more),
    "narrow": lambda **more: grouped(4, 8, 8, (9, 8), (3, 3), dtype="float16", **more),
    "int8": lambda **more: grouped(2, 32, 16, (5, 6), (3, 3), dtype="int8", **more),
    "uint8": lambda **more: grouped(2, 9, 12, (5, 6), (3, 3), dtype="uint8", **more),
}


@pytest.mark.parametrize("target", [AMPERE, HOPPER], ids=lambda target: target.name)
@pytest.mark.parametrize("name", WIDE)
def test_narrow_types(name, target):
    graph, arrays = WIDE[name]()
    program = check(graph, arrays, target)
    print(name, target.name, [str(x) for x in program.schedule.tried])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "odd", "narrow"])
def test_channels_of_a_place_together(name):
    graph, arrays = WIDE[name]()
    program = check(graph, arrays, together=True, product=False)
    print(name, [str(x) for x in program.schedule.tried])


@pytest.mark.parametrize("name", ["two groups", "odd channels"])
def test_tf32(name):
    program = check(*CASES[name](), target=TF32)
    print(name, [str(x) for x in program.schedule.tried])

"""Convolutions in groups on machines with threads: products whose batch are the groups, with their epilogues.

The interpreter runs what is scheduled, and what the passes of CUDA make of it; OpenCL runs for real.
"""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401  (the operators)
from tests.codegen.c_support import opencl
from tests.conftest import FULL
from tests.goldens.choices import kernels_in
from tests.targets.test_cuda_channels_last import layout_of
from weft.compiler.kernels.program import build_program
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.loop.interpreter import interpret
from weft.loop.verifier import verify
from weft.models.builder import Builder
from weft.plan.planner import avoiding
from weft.targets.cuda import model as fit
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
    images = [v for v in (*graph.inputs, *graph.outputs) if len(v.tensor.static) == 4 and v.tensor.dtype != "int32"]
    images = images if together else []
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


def run_on_opencl(graph, arrays, want=None):
    """Compiles a graph for OpenCL and runs it, against its meaning."""
    opencl()
    if want is None:
        (want,) = interpret_graph(graph, arrays)
    with knobs.override(cache=False):
        (made,) = weft.compile(graph, target="opencl").run(None, dict(zip((v.name for v in graph.inputs), arrays)))
    np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("name", CASES)
def test_opencl_computes_the_same(name):
    run_on_opencl(*CASES[name]())


NARROW = {
    "float16": lambda: grouped(2, 16, 16, (5, 6), (3, 3), dtype="float16"),
    "bfloat16": lambda: grouped(2, 24, 16, (5, 6), (1, 3), dtype="bfloat16"),
    "odd": lambda: grouped(3, 12, 12, (5, 5), (3, 3), dtype="float16", strides=[2, 2]),
    "narrow": lambda: grouped(4, 8, 8, (5, 6), (3, 3), dtype="float16"),
    "int8": lambda: grouped(2, 32, 16, (4, 5), (3, 3), dtype="int8"),
    "uint8": lambda: grouped(2, 9, 12, (4, 5), (3, 3), dtype="uint8"),
}


def by_tensor_cores(monkeypatch):
    """Small products, too, are left to tensor cores."""
    monkeypatch.setattr(fit, "MANY_ROWS", 1)
    return avoiding({"product"})


@pytest.mark.parametrize("together", [False, True], ids=["plain", "channels last"])
@pytest.mark.parametrize("name", NARROW)
def test_narrow_types_take_tensor_cores(name, together, monkeypatch):
    graph, arrays = NARROW[name]()
    target = AMPERE if name in ("odd", "uint8") else HOPPER
    with by_tensor_cores(monkeypatch):
        program = check(graph, arrays, target, together)
    source = target.generate(target.lower(program.schedule.func)).source
    assert "weft_mma_dot" in source or "wgmma" in source
    if together and name in ("float16", "bfloat16", "narrow"):
        assert "weft_copy_async_16" in source, "the channels of a group are fetched as vectors"


def test_tf32(monkeypatch):
    with by_tensor_cores(monkeypatch):
        check(*CASES["two groups"](), target=TF32)


@pytest.mark.parametrize("together", [False, True], ids=["plain", "channels last"])
def test_phases_of_transposed_convolutions(together):
    dtype = "float16" if together else "float32"
    graph, arrays = grouped(2, 8, 8, (4, 5), (4, 4), dtype=dtype, op="ConvTranspose", strides=[2, 2], pads=[1] * 4)
    check(graph, arrays, together=together)


@pytest.mark.parametrize("case", [(6, 1, 1), (4, 1, 2), (5, 3, 3)], ids=["depthwise", "two of one", "three"])
def test_narrow_groups_stay_as_they_are(case):
    graph, arrays = grouped(*case, (6, 6), (3, 3))
    program = check(graph, arrays, product=False)
    assert "product" not in taken(program) and not any(name.startswith("phases") for name in taken(program))


def drawn(seed):
    """Any convolution in groups."""
    random = np.random.default_rng(seed)

    def pick(*choices):
        return int(random.choice(choices))

    rank = pick(1, 2, 2, 3)
    kernel = [pick(1, 2, 3) for _ in range(rank)]
    dilations = [pick(1, 1, 2) for _ in range(rank)]
    image = [(k - 1) * d + pick(1, 2, 3, 5) for k, d in zip(kernel, dilations)]
    ends = [(), ("bias",), ("bias", "Relu"), ("Add", "Relu"), ("bias", "Sigmoid", "Add")][pick(0, 1, 2, 3, 4)]
    sizes = pick(2, 3, 4, 7), pick(1, 2, 4, 5, 8, 12), pick(2, 4, 5, 8, 9, 17), image, kernel, pick(1, 1, 2)
    strides, pads = [pick(1, 1, 2, 3) for _ in range(rank)], [pick(0, 0, 1, 2) for _ in range(2 * rank)]
    more = {"strides": strides, "dilations": dilations, "pads": pads}
    return grouped(*sizes, ends=ends, constant=pick(0, 1, 1, 1) > 0, seed=seed, **more)


@pytest.mark.parametrize("seed", range(60 if FULL else 6))
def test_random_groups(seed):
    check(*drawn(seed), target=(HOPPER, AMPERE)[seed % 2], product=False)


@pytest.mark.parametrize("seed", range(100, 140 if FULL else 104))
def test_random_groups_on_opencl(seed):
    run_on_opencl(*drawn(seed))


@pytest.mark.parametrize("batch", [1, 3])
def test_the_batch_may_be_open(batch):
    graph, (image,) = grouped(2, 8, 8, (6, 6), (3, 3), batch)
    (x,) = graph.inputs
    (want,) = interpret_graph(graph, [image])
    x.type = TensorType("float32", (Var("n"), *image.shape[1:]))
    run_on_opencl(infer(graph), [image], want)


def test_quantized_groups_on_opencl():
    b, random = Builder("quantized"), np.random.default_rng(2)
    scale, zero, none = b.constant(np.float32(0.02)), b.constant(np.uint8(120)), b.constant(np.int8(0))
    weight = b.constant(random.integers(-127, 128, (24, 9, 3, 3)).astype(np.int8))
    x = b.input("x", (1, 18, 7, 7), "uint8")
    made = b.node("QLinearConv", x, scale, zero, weight, b.constant(np.float32(0.01)), none,
                  b.constant(np.float32(0.4)), zero, pads=[1] * 4, group=2)  # fmt: skip
    run_on_opencl(infer(b.finish(made)), [random.integers(0, 256, (1, 18, 7, 7)).astype(np.uint8)])


def test_grouped_layers_of_a_narrow_model_move_nothing():
    """Convolutions beside one in groups of whole vectors hand on channels as they lie: no copy turns them."""
    b = Builder("block")
    x = b.relu(b.conv(b.input("x", (1, 64, 14, 14)), 64, 128, 1, bias=True))
    x = b.relu(b.conv(x, 128, 128, 3, 1, 1, groups=16, bias=True))
    made = list(kernels_in(b.finish(b.conv(x, 128, 64, 1)), HOPPER, "fp16"))
    split = [any(one.name == "groups of conv" for one in kernel.schedule.tried) for kernel in made]
    assert split == [False, False, True, False]
    assert len(made) == 4, "the image is turned, once; nothing is turned back"

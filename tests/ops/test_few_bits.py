"""Products with weights of few bits by dot products of bytes: as exact as sums of float32, and vectorised."""

import numpy as np
import pytest

import weft
from tests.ops.nodes import make
from weft.compiler.kernels.program import build_program
from weft.compiler.passes import for_target
from weft.core.dtypes import INDEX
from weft.expr.visit import walk
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import NUMPY_TYPES, Graph, TensorType, Value, dtype_name
from weft.graph.passes.infer import infer
from weft.loop.ir import Store
from weft.loop.visit import walk_stmts
from weft.ops.few_bits import CODES
from weft.targets.cpu.sketches.few_bits import panel
from weft.targets.registry import find_target

X86 = "x86_64-unknown-linux-gnu,cpu=sapphirerapids,cores=2"
ARM = "aarch64-unknown-linux-gnu,cpu=neoverse-n1,cores=2"


def product(inner, features, rows, bits, block, zeros, bias=False):
    """A graph of one MatMulNBits, and what it multiplies with, in double precision."""
    rng = np.random.default_rng(inner + features + bits + block)
    blocks = -(-inner // block)
    codes = rng.integers(0, 256, (features, blocks, block * bits // 8)).astype(np.uint8)
    scales = (rng.uniform(0.5, 1, (features, blocks)) * 0.1).astype(np.float32)
    given = {"packed": rng.integers(0, 256, (features, -(-blocks * bits // 8))).astype(np.uint8)}
    given["plain"] = rng.uniform(0, 1 << bits, (features, blocks)).astype(np.float32)
    shifts = np.arange(0, 8, bits)
    points = np.full((features, blocks), 1 << (bits - 1))
    if zeros == "packed":
        points = (given["packed"][..., None] >> shifts & (1 << bits) - 1).reshape(features, -1)[:, :blocks]
    elif zeros == "plain":
        points = given["plain"].astype(np.float64)
    numbers = (codes[..., None] >> shifts & (1 << bits) - 1).reshape(features, blocks, block)
    weight = (numbers - points[..., None]) * scales[..., None].astype(np.float64)
    arrays = [codes, scales, given.get(zeros), None, np.ones(features, np.float32) if bias else None]
    node = make("MatMulNBits", 6, 1, {"K": inner, "N": features, "bits": bits, "block_size": block}, "com.microsoft")
    x = Value("x", TensorType("float32", (rows, inner)))
    types = [None if a is None else TensorType(dtype_name(a.dtype), a.shape) for a in arrays]
    values = [None if kind is None else Value(f"w{i}", kind) for i, kind in enumerate(types)]
    node = node.replace(inputs=[x, *values])
    constants = {v: a for v, a in zip(values, arrays) if v is not None}
    return infer(Graph("g", [x], node.outputs, [node], constants)), weight.reshape(features, -1)[:, :inner]


FORMS = [
    (64, 32, 1, 4, 16, "none"),
    (96, 64, 1, 4, 32, "packed"),
    (80, 128, 3, 4, 32, "plain"),
    (96, 64, 2, 8, 16, "packed"),
    (100, 64, 1, 8, 32, "none"),
    (64, 64, 5, 2, 64, "packed"),
    (256, 16, 16, 4, 256, "none"),
]


def close(got, x, weight):
    """The error may be that of a float32 sum: a small part of what the largest terms are."""
    want = x.astype(np.float64) @ weight.T
    limit = 1e-6 * np.abs(x).max(axis=-1, keepdims=True) * np.abs(weight).sum(axis=1)
    assert (np.abs(got - want) <= limit).all()


@pytest.mark.parametrize("target", [X86, ARM])
@pytest.mark.parametrize("form", FORMS)
def test_panels_mean_the_same(form, target):
    graph, weight = product(*form)
    made = for_target(graph, find_target(target))
    assert [node.op for node in made.nodes] == ["FewBitsMatMul"]
    x = np.random.default_rng(0).standard_normal((form[2], form[0])).astype(np.float32)
    (got,) = interpret_graph(made, {"x": x})
    close(got, x, weight)


@pytest.mark.parametrize("form", FORMS)
def test_compiled(form):
    graph, weight = product(*form, bias=True)
    module = weft.compile(graph)
    x = np.random.default_rng(0).standard_normal((form[2], form[0])).astype(np.float32)
    for factors in (1.0, 10.0 ** np.random.default_rng(1).integers(0, 9, x.shape)):  # blocks of uneven elements, too
        given = (x * factors).astype(np.float32)
        close(module(given).astype(np.float64) - 1, given, weight)
    assert (module(x * 0) == 1).all() and (module(x * np.float32(1e-35)) == 1).all()
    x[0, 3] = np.nan
    assert np.isnan(module(x)[0]).all() and np.isfinite(module(x)[1:]).all()


def test_models_that_allow_it_get_two_digits():
    graph, weight = product(96, 64, 1, 4, 32, "packed")
    node = graph.nodes[0]
    graph = graph.replace(nodes=[node.replace(attributes={**node.attributes, "accuracy_level": 4})])
    x = np.random.default_rng(0).standard_normal((1, 96)).astype(np.float32)
    error = np.abs(weft.compile(graph)(x) - x.astype(np.float64) @ weight.T).max()
    limit = np.abs(x).max() * np.abs(weight).sum(axis=1).max()
    assert 1e-8 * limit < error < 2.0**-16 * limit


@pytest.mark.parametrize(
    "form", [(64, 37, 1, 4, 32, "packed"), (80, 1003, 2, 8, 16, "none"), (64, 5, 3, 2, 16, "plain")]
)
def test_columns_that_fill_no_panel(form):
    """Their last panel is filled up with zeros, and a Slice leaves those out; a bias that is no constant stays."""
    graph, weight = product(*form, bias=True)
    x = np.random.default_rng(0).standard_normal((form[2], form[0])).astype(np.float32)
    for target in (X86, ARM):
        made = for_target(graph, find_target(target))
        assert [node.op for node in made.nodes] == ["FewBitsMatMul", "Slice"]
        (got,) = interpret_graph(made, {"x": x})
        close(got - 1, x, weight)
    got = weft.compile(graph)(x)
    assert got.shape == (form[2], form[1])
    close(got.astype(np.float64) - 1, x, weight)
    bias = graph.nodes[0].inputs[5]
    given = graph.replace(
        inputs=[*graph.inputs, bias], constants={v: a for v, a in graph.constants.items() if v is not bias}
    )
    assert [node.op for node in for_target(given, find_target(X86)).nodes] == ["MatMulNBits"]
    close(weft.compile(given)(x, np.zeros(form[1], np.float32)), x, weight)


@pytest.mark.parametrize("columns,width", [(768, 64), (5003, 64), (1008, 64), (80, 16), (37, 16), (5, 16), (96, 48)])
def test_panels_are_wide_where_that_leaves_little_empty(columns, width):
    assert panel(find_target(X86), columns) == ("uint8", width)


def test_many_rows_are_multiplied_as_floats():
    graph, _ = product(64, 32, 17, 4, 32, "none")
    assert [node.op for node in for_target(graph, find_target(ARM)).nodes] == ["MatMulNBits"]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("target,instruction", [(X86, "vpdpbusd"), (ARM, "sdot")])
def test_machine_code(target, instruction, bits):
    """Every product is a dot product of vectors, none of whose operands was taken apart element by element."""
    machine = find_target(target)
    graph = for_target(product(64, 128, 1, bits, 32, "none")[0], machine)
    program = build_program(graph.nodes, graph.outputs, graph.constants, "kernel")
    machine.spec.schedule(program.schedule, machine, [b for v, b in program.inputs if v in graph.constants])
    built = weft.build(program.schedule, program.buffers, target=machine)
    text = getattr(built, "built", built).assembly()
    assert text.count(instruction) == 3 * 32 // 4 * 4  # digits, groups of four bytes, vectors of a panel
    loop = text[text.index(instruction) : text.rindex(instruction)]
    assert not any(word in loop for word in ("umov", "ldrb", "pextr", "pinsr", "movz"))


@pytest.mark.parametrize("kind,scales", [("int4", "blocks"), ("uint4", "columns"), ("int4", "one")])
def test_dequantized_weights(kind, scales):
    """What opset 21 writes: a DequantizeLinear of 4-bit constants before a MatMul."""
    rng, inner, features = np.random.default_rng(0), 64, 32
    low = -8 if kind == "int4" else 0
    numbers = rng.integers(low, low + 16, (inner, features))
    shape = {"blocks": (inner // 16, features), "columns": (features,), "one": ()}[scales]
    scale = rng.uniform(0.05, 0.1, shape).astype(np.float32)
    zero = rng.integers(low, low + 16, shape)
    wide = np.repeat(np.stack([scale, zero]), 16, axis=1) if scales == "blocks" else np.stack([scale, zero])
    weight = (numbers - wide[1]) * wide[0].astype(np.float64)
    arrays = [numbers.astype(NUMPY_TYPES[kind]), scale, zero.astype(NUMPY_TYPES[kind])]
    values = [Value(f"w{i}", TensorType(dtype_name(a.dtype), a.shape)) for i, a in enumerate(arrays)]
    options = {"axis": 0, "block_size": 16} if scales == "blocks" else {"axis": 1}
    x, wide_value = Value("x", TensorType("float32", (1, inner))), Value("wide")
    nodes = [
        make("DequantizeLinear", 3, 1, options).replace(inputs=values, outputs=[wide_value]),
        make("MatMul", 2, 1, {}).replace(inputs=[x, wide_value]),
    ]
    graph = infer(Graph("g", [x], nodes[1].outputs, nodes, dict(zip(values, arrays))))
    given = rng.standard_normal((1, inner)).astype(np.float32)
    for target in (X86, ARM):
        made = for_target(graph, find_target(target))
        assert [node.op for node in made.nodes] == ["FewBitsMatMul"]
        (got,) = interpret_graph(made, {"x": given})
        close(got, given, weight.T)


@pytest.mark.parametrize("form", [form for form in FORMS if form[2] <= 8])
def test_words_for_machines_that_multiply_floats(form):
    """On a GPU weights are words of neighbours; their meaning, and the program that a kernel is made of."""
    graph, weight = product(*form, bias=form[2] == 3)
    made = for_target(graph, find_target("cuda:sm_90a"))
    assert [node.op for node in made.nodes] == ["WordsMatMul"]
    x = np.random.default_rng(0).standard_normal((form[2], form[0])).astype(np.float32)
    shift = float(form[2] == 3)
    close(interpret_graph(made, {"x": x})[0] - shift, x, weight)
    close(weft.compile(made, target="native")(x) - shift, x, weight)


def test_codes_are_taken_apart_in_bytes():
    """Through numbers of 32 bits a machine without their narrowing would take eight times the instructions."""
    graph, _ = product(64, 32, 1, 4, 32, "none")
    (node,) = (one for one in for_target(graph, find_target(ARM)).nodes if one.op == "FewBitsMatMul")
    made = for_target(graph, find_target(ARM))
    func = build_program([node], node.outputs, made.constants, "k").schedule.func
    stores = [s for s in walk_stmts(func.body) if isinstance(s, Store) and s.buffer.name == CODES]
    assert stores and not any(e.dtype.bits > 8 for s in stores for e in walk(s.value) if e.dtype is not INDEX)

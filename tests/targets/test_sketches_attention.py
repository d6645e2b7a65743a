"""Attention in one kernel on the CPU: its sketch at many sizes, masks and points, and whole models through it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401
from weft import te
from weft.compiler import compile
from weft.compiler.kernels.program import build_program
from weft.compiler.passes import for_target, optimize
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.loop.ir import Allocate, If
from weft.loop.visit import walk_stmts
from weft.models.builder import Builder
from weft.models.language import bert_base
from weft.ops.attention_fused import DOMAIN, NAME, SCORES, Sizes
from weft.plan.planner import Unit
from weft.schedule.facts import block_named, facts_of, names_of
from weft.targets.cpu.families import default_schedule
from weft.targets.cpu.pipeline import lower
from weft.targets.cpu.sketches.attention import match, padded
from weft.targets.registry import find_target

NATIVE = find_target("native")
LANES = NATIVE.vector_bytes // 4


def one_node(sizes, steps=(), heads_inside=1, dtype="float32", empty_rows=0) -> Graph:
    """A graph of one attention over packed operands; a step is (name, number, shape of its operand)."""
    b, h, m, n, d, e = sizes
    inputs = [
        Value(name, TensorType(dtype, (b * k * h * s,))) for name, k, s in (("q", m, d), ("k", n, d), ("v", n, e))
    ]
    for at, (step, _, shape) in enumerate(steps):
        if shape is not None:
            kind = {"add": dtype, "until": "int64"}.get(step, "bool")
            inputs.append(Value(f"mask{at}", TensorType(kind, shape)))
    attributes = {
        "sizes": list(sizes), "query": [0, m * h * d, d, h * d, 1], "key": [0, n * h * d, d, h * d, 1],
        "value": [0, n * h * e, e, h * e, 1], "steps": [s for s, _, _ in steps],
        "numbers": [number for _, number, _ in steps], "heads_inside": heads_inside, "empty_rows": empty_rows,
        "padded": list(padded(Sizes(*sizes), NATIVE, "float32")),
    }  # fmt: skip
    out = Value("y", TensorType(dtype, (b, m, h, e) if heads_inside else (b, h, m, e)))
    return Graph("attention", inputs, [out], [Node(NAME, inputs, [out], attributes, domain=DOMAIN)], {})


def arrays_of(graph: Graph, seed: int = 0):
    random = np.random.default_rng(seed)
    made = []
    for value in graph.inputs:
        shape, kind = value.tensor.static, value.tensor.dtype
        made.append(random.random(shape) < 0.6 if kind == "bool" else random.standard_normal(shape).astype(kind))
    return made


def run(graph: Graph, arrays, schedule) -> np.ndarray:
    """What the kernel of a graph gives, scheduled by `schedule(s)`."""
    program = build_program(graph.nodes, graph.outputs, {}, "kernel")
    schedule(program.schedule)
    by_name = {v.name: a for v, a in zip(graph.inputs, arrays)}
    out = np.zeros(graph.outputs[0].tensor.static, graph.outputs[0].tensor.numpy)
    given = {buffer: by_name[value.name] for value, buffer in program.inputs}
    weft.build(program.schedule, target=NATIVE)(*(given.get(buffer, out) for buffer in program.schedule.func.buffers))
    return out


def check(graph: Graph, arrays=None, schedule=None) -> None:
    arrays = arrays_of(graph) if arrays is None else arrays
    found = run(graph, arrays, schedule or (lambda s: default_schedule(s, NATIVE)))
    with np.errstate(invalid="ignore", divide="ignore"):
        wanted = interpret_graph(graph, arrays)[0]
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


SCALED = ("scale", 0.3, None)
CASES = {
    "even": ((1, 2, 32, 32, 16, 16), (SCALED,)),
    "no step": ((1, 2, 16, 48, 16, 32), ()),
    "odd everything": ((2, 3, 19, 37, 5, 7), (SCALED, ("add", 0.0, (2, 1, 19, 37)))),
    "one row of keys masked": ((2, 2, 17, 33, 8, 24), (SCALED, ("add", 0.0, (2, 1, 1, 33)))),
    "mask of queries": ((1, 2, 21, 40, 12, 16), (("add", 0.0, (21, 1)), SCALED)),
    "keep": ((1, 3, 24, 20, 8, 40), (SCALED, ("keep", -1e9, (24, 20)))),
    "drop, then add": ((2, 1, 18, 35, 8, 8), (("drop", -1e4, (2, 1, 1, 35)), ("add", 0.0, (1, 18, 35)))),
    "one head, many queries": ((1, 1, 150, 70, 16, 20), (SCALED,)),
    "long rows": ((1, 1, 16, 1500, 8, 16), (SCALED,)),
    "values in blocks": ((1, 1, 24, 3000, 8, 48), (SCALED,)),
    "few": ((1, 1, 1, 3, 2, 1), (SCALED,)),
    "double": ((1, 2, 19, 21, 8, 8), (SCALED,)),
}


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("heads_inside", [0, 1])
def test_the_default_point(name, heads_inside):
    sizes, steps = CASES[name]
    check(one_node(sizes, steps, heads_inside, "float64" if name == "double" else "float32"))


def test_minus_infinity_masks_and_rows_that_see_nothing():
    """Causal, and two rows that see no key at all: those have no result, as by the standard's softmax."""
    sizes = (1, 2, 20, 20, 8, 16)
    graph = one_node(sizes, (SCALED, ("add", 0.0, (20, 20))))
    arrays = arrays_of(graph)
    arrays[3] = np.where(np.tri(20, dtype=bool), 0, -np.inf).astype(np.float32)
    check(graph, arrays)
    arrays[3][[3, 19]] = -np.inf
    check(graph, arrays)
    arrays[3][:] = 0
    arrays[0][5], arrays[1][9] = np.inf, np.nan
    check(graph, arrays)


@pytest.mark.parametrize("empty_rows", [1, 2])
def test_rows_that_see_nothing_are_zeros_for_the_operator_of_the_standard(empty_rows):
    steps = (SCALED, ("allow", 0.0, (1, 1, 20, 37)), ("causal", 3.0, None))
    graph = one_node((1, 2, 20, 37, 8, 16), steps, empty_rows=empty_rows)
    arrays = arrays_of(graph)
    arrays[3][0, 0, [0, 7, 19]] = False
    check(graph, arrays)
    assert (run(graph, arrays, lambda s: default_schedule(s, NATIVE))[0, 7] == 0).all()


def test_large_scores_do_not_overflow():
    graph = one_node((1, 1, 16, 32, 8, 8), (("scale", 50.0, None),))
    check(graph)


def unit_of(s) -> Unit:
    return Unit(s, facts_of(block_named(s, SCORES)), NATIVE, ())


def test_points_of_the_sketch_agree():
    graph = one_node((1, 2, 24, 64, 8, 32), (SCALED, ("add", 0.0, (24, 64))))
    arrays = arrays_of(graph)
    tried = 0
    for block, rows, keys, values, heads in itertools.product((8, 24), (2, 4, 8), (1, 2), (1, 2), (0, 1)):
        point = {"block": block, "rows": rows, "key_vectors": keys, "value_vectors": values, "by_heads": heads}
        point["depth"] = 16 if keys == 1 else 64

        def schedule(s, point=point):
            match(unit_of(s)).apply(point)

        if (block * rows + keys + values + heads) % 7:
            continue
        try:
            check(graph, arrays, schedule)
            tried += 1
        except WeftError as error:
            assert "do not fill" in str(error)
    assert tried >= 4


def test_no_stage_holds_all_scores():
    graph = one_node((1, 2, 64, 96, 8, 16), (SCALED,))
    program = build_program(graph.nodes, graph.outputs, {}, "kernel")
    default_schedule(program.schedule, NATIVE)
    found = match(unit_of(build_program(graph.nodes, graph.outputs, {}, "kernel").schedule))
    assert found is not None
    best, _ = next(found.ranked())
    found.check(best)
    assert best["block"] < 64
    assert {"attention_masked", "attention_grown"} <= set(names_of(program.schedule))
    text = str(program.schedule)
    assert text.index("attention_grown(") > text.index("parallel"), "computed inside a thread's part"


def attention_model(length, mask: bool) -> Graph:
    b = Builder("model")
    x = b.input("x", (1, length, 24))
    parts = []
    for _ in range(3):
        dense = b.node("Reshape", b.node("MatMul", x, b.normal(24, 24, scale=0.2)), b.ints(1, -1, 3, 8))
        parts.append(b.node("Transpose", dense, perm=[0, 2, 1, 3]))
    q, k, v = parts
    scores = b.node("Div", b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2])), b.constant(np.float32(2.5)))
    if mask:
        scores = b.node("Add", scores, b.input("mask", (1, 1, 1, length)))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    mixed = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), b.ints(1, -1, 24))
    return b.finish(b.node("Add", b.node("MatMul", mixed, b.normal(24, 24, scale=0.2)), x))


@pytest.mark.thin(2)
@pytest.mark.parametrize("length", [16, 50, 77])
@pytest.mark.parametrize("mask", [False, True])
def test_models_through_one_kernel(length, mask):
    graph = attention_model(length, mask)
    used = for_target(optimize(graph, {}, {}), NATIVE)
    assert NAME in [node.op for node in used.nodes]
    arrays = arrays_of(graph)
    wanted = interpret_graph(graph, arrays)[0]
    np.testing.assert_allclose(compile(graph)(*arrays), wanted, rtol=1e-4, atol=1e-4)
    with knobs.override(attention=False):
        assert NAME not in [node.op for node in for_target(optimize(graph, {}, {}), NATIVE).nodes]


@pytest.mark.parametrize("mask", [False, True])
def test_any_length_through_one_kernel(mask):
    """Whole register tiles, whatever the length: no test stands in one."""
    graph = attention_model(te.var("n"), mask)
    with knobs.override(sizes="open"):
        module = compile(graph)
    for length in (50, 1, 3, LANES - 1, LANES, LANES + 1, 31, 33, 48, 77):
        arrays = [np.random.default_rng(0).standard_normal((1, length, 24)).astype("f4")]
        arrays += [np.random.default_rng(1).standard_normal((1, 1, 1, length)).astype("f4")] * mask
        np.testing.assert_allclose(module(*arrays), interpret_graph(graph, arrays)[0], rtol=1e-4, atol=1e-4)
    (form,) = module.specializations
    (kernel,) = [launch.kernel for launch in form.launches if "attention" in launch.kernel.label]
    lowered = weft.builder.lower(kernel.scheduled)
    tiles = [s for s in walk_stmts(lowered.body) if isinstance(s, Allocate) and s.buffer.name.startswith(SCORES)]
    assert tiles and not any(isinstance(s, If) for tile in tiles for s in walk_stmts(tile))


def test_bert_stores_no_scores():
    """The largest value between kernels is smaller than the scores of all heads."""
    graph = bert_base(layers=1, length=96, width=32, heads=4, vocabulary=50)
    used = for_target(optimize(graph, {}, {}), NATIVE)
    assert max(np.prod(v.tensor.static) for n in used.nodes for v in n.outputs) < 4 * 96 * 96
    words = np.arange(96).reshape(1, 96) % 50
    np.testing.assert_allclose(compile(graph)(words), interpret_graph(graph, [words])[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size,side", [(40, 8), (72, 8), (20, 4), (64, 16), (6, 0)])
def test_keys_are_turned_by_squares_that_divide_them(size, side):
    """A key whose elements are no whole vectors was gathered, element by element: 4 % of an attention of 77 tokens."""
    target = find_target("x86_64-unknown-linux-gnu,cpu=emeraldrapids,cores=1")
    graph = one_node((1, 2, 32, 32, size, 32))
    program = build_program(graph.nodes, graph.outputs, {}, "kernel")
    default_schedule(program.schedule, target)
    text = repr(lower(program.schedule.func, target))
    assert ("store_transposed(address(attention_keys" in text) == (side > 0)
    assert not side or f"1, {side})" in text

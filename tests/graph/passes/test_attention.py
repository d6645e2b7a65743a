"""Attention in small operators becomes one node: what is recognised, what is left, and that the meaning stays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import weft.ops  # noqa: F401
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import NUMPY_TYPES, Graph, GraphError, Node, TensorType, Value
from weft.graph.passes.attention import NAME, fuse_attention, view_of
from weft.graph.passes.infer import infer
from weft.graph.passes.normalize import normalize
from weft.graph.passes.support import Names, Scope, count_uses
from weft.models.builder import Builder
from weft.models.language import bert_base

ONNX_TYPES = {"float32": 1, "float16": 10, "bfloat16": 16}


def tight(sizes, dtype):
    """Everything is worth it, with no padding."""
    return [sizes[2], sizes[3], sizes[5]]


def fused(graph: Graph, propose=tight) -> Graph:
    return fuse_attention(normalize(graph), propose)


def operators(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def check_meaning(graph: Graph, made: Graph, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    arrays = []
    for value in graph.inputs:
        shape = value.tensor.static
        kind = value.tensor.dtype
        arrays.append(random.random(shape) < 0.7 if kind == "bool" else random.standard_normal(shape).astype(kind))
    with np.errstate(invalid="ignore"):
        wanted, found = interpret_graph(graph, arrays), interpret_graph(made, arrays)
    for one, other in zip(wanted, found):
        assert one.shape == other.shape
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def heads_of(b: Builder, x: Value, shape: tuple[int, ...]) -> Value:
    return b.node("Transpose", b.node("Reshape", x, b.ints(*shape)), perm=[0, 2, 1, 3])


def written_out(steps, queries: int = 5, keys: int = 7, mask: tuple[int, ...] = (), kind: str = "float32") -> Graph:
    """Attention over heads of packed inputs; `steps(b, scores, mask)` gives what goes into the softmax."""
    b = Builder("attention")
    q = heads_of(b, b.input("q", (2, queries, 12)), (2, queries, 3, 4))
    k = heads_of(b, b.input("k", (2, keys, 12)), (2, keys, 3, 4))
    v = heads_of(b, b.input("v", (2, keys, 18)), (2, keys, 3, 6))
    scores = b.node("MatMul", q, b.node("Transpose", k, perm=[0, 1, 3, 2]))
    shares = b.node("Softmax", steps(b, scores, b.input("mask", mask, kind) if mask else None), axis=-1)
    mixed = b.node("Transpose", b.node("MatMul", shares, v), perm=[0, 2, 1, 3])
    return b.finish(b.node("Reshape", mixed, b.ints(2, queries, 18)))


def number(b: Builder, value: float) -> Value:
    return b.constant(np.float32(value), "number")


STEPS = {
    "plain": (lambda b, s, m: s, (), "float32"),
    "mul": (lambda b, s, m: b.node("Mul", number(b, 0.5), s), (), "float32"),
    "div": (lambda b, s, m: b.node("Div", s, number(b, 2.0)), (), "float32"),
    "mask": (lambda b, s, m: b.node("Add", b.node("Mul", s, number(b, 0.5)), m), (2, 1, 1, 7), "float32"),
    "mask first": (lambda b, s, m: b.node("Mul", b.node("Add", m, s), number(b, 0.5)), (5, 7), "float32"),
    "keep": (lambda b, s, m: b.node("Where", m, s, number(b, -1e4)), (2, 1, 5, 7), "bool"),
    "drop": (lambda b, s, m: b.node("Where", m, number(b, -np.inf), s), (1, 3, 1, 7), "bool"),
    "both": (
        lambda b, s, m: b.node("Where", m, b.node("Add", s, b.normal(3, 5, 7)), number(b, -1e9)), (5, 1), "bool",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_what_exporters_write_becomes_one_node(name):
    steps, mask, kind = STEPS[name]
    graph = written_out(steps, mask=mask, kind=kind)
    made = fused(graph)
    assert [op for op in operators(made) if op != "Reshape"] == [NAME]
    check_meaning(graph, made)


def test_rows_without_numbers_that_become_zeros():
    """As torch's exporter writes a mask of truths."""
    b = Builder("zeros")
    q, k, v, mask = (
        b.input("q", (2, 5, 4)),
        b.input("k", (2, 4, 7)),
        b.input("v", (2, 7, 3)),
        b.input("m", (5, 7), "bool"),
    )
    added = b.node("Where", mask, number(b, 0.0), number(b, -np.inf))
    shares = b.node("Softmax", b.node("Add", b.node("MatMul", q, k), added), axis=-1)
    shares = b.node("Where", b.node("IsNaN", shares), number(b, 0.0), shares)
    graph = b.finish(b.node("MatMul", shares, v))
    made = fused(graph)
    assert "Softmax" not in operators(made)
    check_meaning(graph, made)
    arrays = [np.ones(x.tensor.static, x.tensor.numpy) for x in graph.inputs]
    arrays[3][3] = False
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(interpret_graph(made, arrays)[0], interpret_graph(graph, arrays)[0], rtol=1e-5)


def test_operands_are_read_where_they_lie():
    graph = bert_base(layers=1, length=6, width=8, heads=2, vocabulary=11)
    made = fused(graph)
    (node,) = [n for n in made.nodes if n.op == NAME]
    assert node.attributes["query"] == [0, 0, 4, 24, 1]
    assert node.attributes["key"] == [8, 0, 4, 24, 1]
    assert node.attributes["value"] == [16, 0, 4, 24, 1]
    assert node.attributes["heads_inside"] == 1
    assert not {"Transpose", "Split", "Softmax"} & set(operators(made))
    words = np.arange(6).reshape(1, 6)
    np.testing.assert_allclose(interpret_graph(made, [words])[0], interpret_graph(graph, [words])[0], atol=1e-5)


def test_factors_of_operands_go_to_the_scores():
    b = Builder("scaled")
    q, k, v = (b.input(name, (3, 6, 4)) for name in "qkv")
    q = b.node("Mul", q, number(b, 0.5))
    k = b.node("Div", b.node("Transpose", k, perm=[0, 2, 1]), number(b, 4.0))
    v = b.node("Mul", v, number(b, 3.0))
    shares = b.node("Softmax", b.node("MatMul", q, k), axis=2)
    graph = b.finish(b.node("Transpose", b.node("MatMul", shares, v), perm=[1, 0, 2]))
    made = fused(graph)
    (node,) = [n for n in made.nodes if n.op == NAME]
    assert (node.attributes["steps"], node.attributes["numbers"]) == (["scale"], [0.125])
    assert operators(made).count("Mul") == 1, "the factor of the values stays"
    assert "Transpose" not in operators(made)
    check_meaning(graph, made)


def test_matrices_are_shared_by_broadcasting():
    b = Builder("shared")
    q, k, v = b.input("q", (2, 3, 5, 4)), b.input("k", (1, 4, 7)), b.input("v", (3, 7, 6))
    graph = b.finish(b.node("MatMul", b.node("Softmax", b.node("MatMul", q, k), axis=-1), v))
    made = fused(graph)
    assert NAME in operators(made)
    check_meaning(graph, made)


@pytest.mark.parametrize(
    "why", ["axis", "scores read", "shares read", "values with more matrices", "float64", "not worth it"]
)
def test_what_stays_as_it_is(why):
    b = Builder("left")
    kind = "float64" if why == "float64" else "float32"
    q, k, v = b.input("q", (3, 6, 4), kind), b.input("k", (3, 4, 6), kind), b.input("v", (3, 6, 4), kind)
    if why == "values with more matrices":
        v = b.input("w", (2, 3, 6, 4))
    scores = b.node("MatMul", q, k)
    shares = b.node("Softmax", scores, axis=1 if why == "axis" else -1)
    outputs = [b.node("MatMul", shares, v)]
    outputs += {"scores read": [b.node("Relu", scores)], "shares read": [b.node("Neg", shares)]}.get(why, [])
    graph = normalize(b.finish(*outputs))
    assert fuse_attention(graph, (lambda *_: None) if why == "not worth it" else tight) is graph


OPERATORS = {
    "plain": ({}, 3, 3, None, True),
    "causal": ({"is_causal": 1, "scale": 0.3}, 3, 3, None, True),
    "numbers": ({}, 3, 3, ((5, 7), "float32"), True),
    "truths": ({"is_causal": 1}, 3, 3, ((2, 1, 5, 7), "bool"), True),
    "packed": ({"q_num_heads": 3, "kv_num_heads": 3}, 3, 3, ((2, 1, 1, 7), "float32"), True),
    "shared keys": ({}, 6, 3, None, True),
    "shared keys, packed": ({"q_num_heads": 6, "kv_num_heads": 3}, 6, 3, ((5, 7), "bool"), True),
    "a soft cap": ({"softcap": 3.0}, 3, 3, None, False),
    "a short mask": ({}, 3, 3, ((5, 6), "float32"), False),
    "a window": ({"left_window_size": 2}, 3, 3, None, False),
}


def operator(name: str, batch: int = 2) -> Graph:
    attributes, heads, key_heads, mask, _ = OPERATORS[name]
    b = Builder("operator")
    shapes = [(batch, heads, 5, 4), (batch, key_heads, 7, 4), (batch, key_heads, 7, 6)]
    if "q_num_heads" in attributes:
        shapes = [(n, m, h * d) for n, h, m, d in shapes]
    inputs = [b.input(name, shape) for name, shape in zip("qkv", shapes)]
    inputs += [] if mask is None else [b.input("mask", *mask)]
    return b.finish(b.node("Attention", *inputs, **attributes))


@pytest.mark.parametrize(
    "queries, heads, is_causal", [(1, 6, 0), (1, 6, 1), (1, 3, 1), (4, 3, 1), (4, 6, 1), (4, 3, 0)]
)
def test_keys_of_a_cache_end_where_its_length_says(queries, heads, is_causal):
    b = Builder("cached")
    given = [b.input("q", (2, heads, queries, 4)), *(b.input(name, (2, 3, 9, 4)) for name in "kv")]
    lengths = b.input("lengths", (2,), "int64")
    graph = b.finish(b.node("Attention", *given, None, None, None, lengths, is_causal=is_causal))
    made = fused(graph)
    (node,) = [n for n in made.nodes if n.op == NAME]
    assert node.attributes["sizes"][:3] == ([2, 3, 2] if queries == 1 and heads == 6 else [2, heads, queries])
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(v.tensor.static).astype("f4") for v in given] + [np.array([5, 9])]
    wanted = interpret_graph(graph, arrays)[0]
    np.testing.assert_allclose(interpret_graph(made, arrays)[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_operator_of_the_standard(name):
    graph = operator(name)
    made = fused(graph)
    assert (NAME in operators(made)) == OPERATORS[name][-1]
    check_meaning(graph, made)


def masked(mask: np.ndarray) -> Graph:
    """The standard's operator with a mask that constants make of two parts."""
    b = Builder("masked")
    q, k, v = (b.input(name, (2, 3, mask.shape[-2] if name == "q" else mask.shape[-1], 4)) for name in "qkv")
    if mask.dtype == np.bool_:
        all_seen = b.node("Equal", b.constant(np.zeros((2, 1, 1, 1), np.int64)), b.constant(np.zeros(1, np.int64)))
        return b.finish(b.node("Attention", q, k, v, b.node("And", all_seen, b.constant(mask))))
    return b.finish(b.node("Attention", q, k, v, b.constant(mask)))


def test_a_constant_mask_that_hides_later_keys_is_causal():
    rows, columns = np.arange(5)[:, None], np.arange(7)
    for later in (0, 2):
        seen = columns <= rows + later
        added = np.where(seen, 0, -np.inf).astype(np.float32)
        least = np.where(seen, 0, np.finfo(np.float32).min).astype(np.float32)
        narrow = np.where(seen, 0, ml_dtypes.finfo(ml_dtypes.bfloat16).min).astype(ml_dtypes.bfloat16)
        for mask in (seen, added, least, narrow, np.stack([[seen]] * 2)):
            graph = masked(mask)
            made = fuse_attention(infer(graph), tight)  # not folded: as a mask that is too large to be a constant
            (node,) = [node for node in made.nodes if node.op == NAME]
            assert node.attributes["steps"] == ["scale", "causal"] and node.attributes["numbers"][1] == later
            assert len(node.inputs) == 3
            check_meaning(graph, made)


def test_other_constant_masks_stay():
    seen = np.tri(5, 7, dtype=bool)
    holed, low = seen.copy(), np.where(seen, 0, -5.0).astype(np.float32)
    holed[3, 1] = False
    both = np.stack([[seen], [holed]])
    for mask in (holed, low, both, np.tri(5, 7, -1, dtype=bool)):
        graph = masked(mask)
        made = fuse_attention(infer(graph), tight)
        (node,) = [node for node in made.nodes if node.op == NAME]
        assert "causal" not in node.attributes["steps"] and len(node.inputs) == 4
        check_meaning(graph, made)


def narrow_attention(kind: str, through: str) -> Graph:
    """Attention of a narrow type, as exporters write it: the softmax in float32, between two casts."""
    b = Builder("narrow")
    q, k, v = (b.input(name, shape, kind) for name, shape in zip("qkv", ((2, 3, 5, 4), (2, 3, 4, 7), (2, 3, 7, 6))))
    scores = b.node("Mul", b.node("MatMul", q, k), b.constant(np.array(0.5, NUMPY_TYPES[kind])))
    wide = b.node("Cast", scores, to=ONNX_TYPES[through])
    masked = b.node("Add", wide, b.input("mask", (5, 7), through))
    shares = b.node("Cast", b.node("Softmax", masked, axis=-1), to=ONNX_TYPES[kind])
    return b.finish(b.node("MatMul", shares, v))


@pytest.mark.parametrize("kind, through, own, fuses", [
    ("float16", "float32", {"float16"}, True), ("bfloat16", "float32", {"bfloat16"}, True),
    ("float16", "float32", set(), False), ("float32", "float16", {"float16"}, False),
])  # fmt: skip
def test_types_of_its_own(kind, through, own, fuses):
    graph = normalize(narrow_attention(kind, through))
    made = fuse_attention(graph, tight, own=own)
    assert (NAME in operators(made)) == fuses
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(v.tensor.static).astype(v.tensor.numpy) for v in graph.inputs]
    found, wanted = (interpret_graph(g, arrays)[0] for g in (made, graph))
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found.astype("f4"), wanted.astype("f4"), rtol=0.02, atol=0.02)


def test_the_operator_gives_zeros_where_nothing_is_seen():
    graph = operator("truths")
    arrays = [np.ones(v.tensor.static, v.tensor.numpy) for v in graph.inputs]
    arrays[3][1, :, 2] = False
    found = interpret_graph(fused(graph), arrays)[0]
    np.testing.assert_allclose(found, interpret_graph(graph, arrays)[0], rtol=1e-5)
    assert (found[1, :, 2] == 0).all() and (found[0] != 0).all()


@pytest.mark.parametrize("seed", range(40))
def test_views_of_random_movements(seed):
    """A chain of movements is read as the numpy view that it is, from any value of the chain that it starts at."""
    random = np.random.default_rng(seed)
    b = Builder("moved")
    value, shape = b.input("x", (4, 6, 10)), (4, 6, 10)
    for _ in range(5):
        value, shape = moved(b, value, shape, random)
    graph = infer(b.finish(b.node("Neg", value)))
    scope = Scope(graph, Names(graph), count_uses(graph))
    for node in graph.nodes:
        scope.emit(node)
    x = np.arange(240, dtype=np.float32).reshape(4, 6, 10)
    last = graph.nodes[-1].inputs[0]
    view = view_of(last, scope)
    wanted, source = (interpret_graph(graph.replace(outputs=[v]), [x])[0] for v in (last, view.source))
    flat = np.ascontiguousarray(source).reshape(-1)
    seen = np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, [4 * n for n in view.strides])
    np.testing.assert_array_equal(seen, wanted)


def moved(b: Builder, value: Value, shape: tuple[int, ...], random: np.random.Generator):
    """One more movement, and the shape after it."""
    choice, axis = random.integers(4), int(random.integers(len(shape)))
    if choice == 0:
        perm = [int(n) for n in random.permutation(len(shape))]
        return b.node("Transpose", value, perm=perm), tuple(shape[at] for at in perm)
    if choice == 1:
        parts = [p for n in shape for p in ((2, n // 2) if n % 2 == 0 and random.random() < 0.5 else (n,))]
        if random.random() < 0.5 and len(parts) > 1:
            at = int(random.integers(len(parts) - 1))
            parts[at : at + 2] = [parts[at] * parts[at + 1]]
        return b.node("Reshape", value, b.ints(*parts)), tuple(parts)
    if shape[axis] == 1:
        return value, shape
    if choice == 2:
        start = int(random.choice([0, 1, -1]))
        rest = 1 if start == -1 else shape[axis] - start
        made = b.node("Slice", value, b.ints(start), b.ints(shape[axis]), b.ints(axis))
    else:
        part = int(random.integers(2))
        rest = (1, shape[axis] - 1)[part]
        made = b.node("Split", value, b.ints(1, shape[axis] - 1), outputs=2, axis=axis)[part]
    return made, (*shape[:axis], rest, *shape[axis + 1 :])


def test_a_node_that_reads_outside_its_input_is_refused():
    sizes = [1, 1, 4, 4, 4, 4]
    attributes = {"sizes": sizes, "query": [0, 0, 0, 4, 1], "key": [0, 0, 0, 4, 1], "value": [1, 0, 0, 4, 1]}
    inputs = [Value(name, TensorType("float32", (16,))) for name in "qkv"]
    node = Node(NAME, inputs, [Value("y")], attributes, domain="weft")
    with pytest.raises(GraphError, match="does not lie inside input 2"):
        infer(Graph("g", inputs, node.outputs, [node], {}))

"""Operators of users: what their functions do wrong is said of their node, and changes nothing else."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

import weft
import weft.ops  # fills the table
from weft import te
from weft.graph import opspec
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.opspec import register_operator
from weft.graph.passes.normalize import normalize
from weft.graph.passes.quantized import quantized
from weft.graph.signature import signature

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def own_table(monkeypatch):
    monkeypatch.setattr(opspec, "_TABLE", dict(opspec._TABLE))
    monkeypatch.setattr(opspec, "_OF_USERS", set(opspec._OF_USERS))


def with_own(name: str = "Own") -> Graph:
    """`own(-x) * -x`: the operator's input is read again behind it."""
    kind, open_kind = TensorType("float32", [2, 3]), TensorType("float32", None)
    x, low, made, out = Value("x", kind), Value("low", kind), Value("made", open_kind), Value("out", open_kind)
    own = Node(name, [low], [made], domain="my.company", name="own")
    return Graph("model", [x], [out], [Node("Neg", [x], [low]), own, Node("Mul", [made, low], [out])])


def add_in_place(c, x):
    x += 100
    return x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (add_in_place, "read-only"),
        (lambda c, x: (), "gave 0 results, and it has 1 outputs"),
        (lambda c, x: x.astype(">f4"), ">f4"),
        (lambda c, x: None, "NoneType"),
        (lambda c, x: (one for one in (x,)), "generator"),
        (lambda c, x: x.astype("float64"), "float64"),
        (lambda c, x: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_a_function_does_wrong_is_said_of_its_node(function, message):
    register_operator("Own", function, domain="my.company")
    with pytest.raises(GraphError, match=f"(?s)'own'.*{message}"):
        weft.compile(with_own())(ROWS)


def test_an_input_that_is_given_back_is_an_array_of_its_own():
    register_operator("Own", lambda c, x: x, domain="my.company")
    np.testing.assert_array_equal(weft.compile(with_own())(ROWS), ROWS * ROWS)
    x, out = Value("x", TensorType("float32", [2, 3])), Value("out", TensorType("float32", None))
    module = weft.compile(Graph("model", [x], [out], [Node("Own", [x], [out], domain="my.company")]))
    made = module(ROWS)
    assert made.flags.writeable and not np.shares_memory(made, ROWS)


def test_a_number_of_numpys_is_an_array_without_axes():
    register_operator("Own", lambda c, x: x.sum(), domain="my.company")
    np.testing.assert_array_equal(weft.compile(with_own())(ROWS), ROWS.sum() * ROWS)


@pytest.mark.parametrize(
    ("given", "more"),
    [
        (("Own", 5), {}),
        ((5, add_in_place), {}),
        (("", add_in_place), {}),
        (("Own", add_in_place), {"domain": 5}),
        (("Own", add_in_place), {"infer": "shape"}),
        (("Own", add_in_place), {"kind": "fast"}),
        (("Own", add_in_place), {"takes": "x[("}),
        (("Own", add_in_place), {"takes": "x:flot32"}),
        (("Own", add_in_place), {"takes": "x:float32", "requires": "rank(x) == 3"}),
        (("Own", add_in_place), {"colour": "red"}),
        (("Relu", add_in_place), {"domain": ""}),
        (("FusedMatMul", add_in_place), {"domain": "com.microsoft"}),
    ],
)
def test_what_cannot_be_registered_leaves_the_table_as_it_was(given, more):
    before = dict(opspec.operators())
    with pytest.raises(GraphError):
        register_operator(*given, **{"domain": "my.company", **more})
    assert opspec.operators() == before


def test_the_words_of_signatures_are_element_types():
    for spec in opspec.operators().values():
        signature(spec.takes or "").check_elements()


def test_elements_from_other_places_stay_where_they_are():
    """What is injective is not taken for elementwise: a pointwise convolution may see an image as one row."""
    kind = TensorType("float32", [1, 6, 8, 6])
    x, c, out = Value("x", TensorType("float32", [1, 3, 8, 6])), Value("c", kind), Value("out", kind)
    w = Value("w", TensorType("float32", [6, 3, 1, 1]))
    random = np.random.default_rng(0)
    image, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((1, 3, 8, 6), (6, 3, 1, 1)))
    nodes = [Node("Conv", [x, w], [c]), Node("Mirror", [c], [out], domain="my.company")]
    graph = Graph("model", [x], [out], nodes, {w: weight})
    register_operator(
        "Mirror",
        lambda c, x: x[..., ::-1],
        domain="my.company",
        infer=lambda c: [c.tensor(0)],
        compute=lambda c, x: te.compute(x.shape, lambda n, k, i, j: x[n, k, i, x.shape[3] - 1 - j]),
        kind="injective",
    )
    wanted = np.einsum("oi,nihw->nohw", weight[:, :, 0, 0], image)[..., ::-1]
    np.testing.assert_allclose(weft.compile(graph)(image), wanted, rtol=1e-4, atol=1e-5)


def test_traits_of_an_operator():
    """What is random is neither folded nor shared."""
    calls = []
    register_operator("Draw", lambda c, x: calls.append(1) or x + len(calls), domain="my.company", traits="random")
    x, a, b, out = (Value(name, TensorType("float32", [3])) for name in "xabo")
    draws = [Node("Draw", [x], [made], domain="my.company") for made in (a, b)]
    made = normalize(Graph("model", [], [out], [*draws, Node("Sub", [b, a], [out])], {x: np.zeros(3, np.float32)}))
    assert [node.op for node in made.nodes] == ["Draw", "Draw", "Sub"] and not calls
    with pytest.raises(GraphError, match="sloppy is none of the traits moves, joins"):
        register_operator("Draw", lambda c, x: x, domain="my.company", traits="cheap sloppy")


def test_quantized_values_pass_through_what_moves_them():
    register_operator(
        "Mirror", lambda c, x: x[::-1], domain="my.company", infer=lambda c: [c.tensor(0)], traits="moves"
    )
    x, scale = Value("x", TensorType("uint8", [3])), Value("scale", TensorType("float32", []))
    real, out = (Value(name, TensorType("float32", [3])) for name in ("real", "out"))
    nodes = [Node("DequantizeLinear", [x, scale], [real]), Node("Mirror", [real], [out], domain="my.company")]
    made = quantized(Graph("model", [x], [out], nodes, {scale: np.array(0.5, np.float32)}))
    assert [node.op for node in made.nodes] == ["Mirror", "DequantizeLinear"]
    np.testing.assert_array_equal(interpret_graph(made, [np.array([1, 2, 4], np.uint8)])[0], [2, 1, 0.5])


def test_every_trait_is_one_of_an_operator():
    traits = {trait for spec in opspec.operators().values() for trait in spec.traits}
    assert traits == set(get_args(opspec.Trait))

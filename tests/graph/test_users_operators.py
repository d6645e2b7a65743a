"""Operators of users: what their functions do wrong is said of their node, and changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import weft
import weft.ops  # fills the table
from weft.graph import opspec
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.opspec import register_operator

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

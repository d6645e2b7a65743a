"""The language in which operators say what they take, and relations between inputs."""

from __future__ import annotations

import pytest

import weft.ops  # noqa: F401  (fills the table of operators)
from weft.expr.nodes import Var
from weft.graph.ir import Node, SequenceType, TensorType, Value
from weft.graph.opspec import Infer, operators
from weft.graph.signature import (
    Along,
    Below,
    Between,
    OneOf,
    Points,
    SameLength,
    SameSize,
    Signature,
    Within,
    signature,
)

N = Var("n")


def use(*types, **attributes):
    """A node whose inputs have these types: (element type, sizes…), a type, or None."""
    kinds = [TensorType(t[0], t[1:]) if isinstance(t, tuple) else t for t in types]
    node = Node("Test", [Value(f"x{k}") for k in range(len(kinds))], [Value("y")], attributes, name="test")
    return Infer(node, kinds, [None] * len(kinds))


def f(*shape):
    return ("float32", *shape)


def i(*shape):
    return ("int64", *shape)


FITS = [
    ("a, b", [f(1), i(2, 3)], {}),
    ("a[n c *s], b[c]", [f(2, 3, 4, 5), f(3)], {}),
    ("a[n c *s], b[c]", [f(2, N, 4, 5), f(3)], {}),
    ("a[n *s _], b[n *s]", [f(2, 4, 5, 9), f(2, 4, 5)], {}),
    ("a[]|[1]|[n], b[n]", [f(), f(3)], {}),
    ("w[4*h i], r[4*h h]", [f(8, 3), f(8, 2)], {}),
    ("w[4*@size i]", [f(8, 3)], {"size": 2}),
    ("w[4*@size i], r[@size]", [f(8, 3), f(2)], {}),
    ("a, b?", [f(1)], {}),
    ("a, b?, c", [f(1), None, f(1)], {}),
    ("a:int|string", [("string", 3)], {}),
    ("a:float, b:a", [f(3), f(4)], {}),
    ("a, b, ...", [f(1), f(1), f(1), f(1)], {}),
    ("a, b?, ...", [f(1)], {}),
    ("a[2 _]", [TensorType("float32", None)], {}),
    ("a", [SequenceType(TensorType("float32", None))], {}),
]


@pytest.mark.parametrize("text,types,attributes", FITS)
def test_fits(text, types, attributes):
    assert Signature(text).problem(use(*types, **attributes)) is None


REFUSED = [
    ("a, b", [f(1)], {}, r"input 1 \(b\) is missing"),
    ("a, b", [f(1), None], {}, r"input 1 \(b\) is missing"),
    ("a", [f(1), f(1)], {}, "has 2 inputs"),
    ("a[n c *s], b[c]", [f(2, 3, 4, 5), f(4)], {}, r"\(b\) has the shape \[4\], where c = 3"),
    ("a[n c *s], b[c]", [f(2), f(4)], {}, r"\(a\) has the shape \[2\]"),
    ("a[n], b[n], c[n]", [f(N), f(3), f(4)], {}, r"\(c\).*n = 3"),
    ("a[*s], b[*s]", [f(2, 3), f(2, 4)], {}, r"\(b\) has the shape \[2, 4\], where s = \[2, 3\]"),
    ("a[*s], b[*s]", [f(2, N), f(2, 4, 1)], {}, r"\(b\)"),
    ("a[]|[1]", [f(2)], {}, r"\(a\) has the shape \[2\]"),
    ("w[4*h i]", [f(9, 3)], {}, r"\(w\) has the shape \[9, 3\]"),
    ("w[4*@size i]", [f(8, 3)], {"size": 3}, "@size = 3"),
    ("a:int", [f(2)], {}, "holds float32, not int"),
    ("a:float, b:a", [f(3), i(4)], {}, r"holds int64, not a \(float32\)"),
    ("a[2]", [SequenceType(TensorType("float32", None))], {}, "no tensor"),
]


@pytest.mark.parametrize("text,types,attributes,message", REFUSED)
def test_refuses(text, types, attributes, message):
    import re

    problem = Signature(text).problem(use(*types, **attributes))
    assert problem is not None and re.search(message, problem) and f"it takes ({text})" in problem, problem


@pytest.mark.parametrize("text", ["a[", "a b", "a[-1]", "a:float[n]!", "1+2"])
def test_what_is_no_signature(text):
    with pytest.raises(ValueError, match="signature"):
        Signature(text)


@pytest.mark.parametrize(
    "relation,good,bad",
    [
        (Within(1, 0), use(f(2, 3), i(9, 3)), use(f(2, 3), i(2, 9))),
        (Within(1, 0), use(f(2, N), i(9, 3)), use(f(2, 3), i(2))),
        (Within(1, 0), use(f(2, 3), i(2, 9), axis=-1), use(f(2, 3), i(2, 3), axis=5)),
        (Points(), use(f(2, 3), i(7, 2)), use(f(2, 3), i(7, 3))),
        (Points(), use(f(2, 3), i(2, 1), batch_dims=1), use(f(2, 3), i(3, 1), batch_dims=1)),
        (Points(updates=2), use(f(2, 3), i(7, 1), f(7, 3)), use(f(2, 3), i(7, 1), f(6, 3))),
        (SameSize(1, "axis", (0, 1), 1), use(f(2, 3), i(3)), use(f(2, 3), i(2))),
        (SameSize(1, "axis", (0, 1), 1), use(f(2, 3), i(2), axis=0), use(f(2, 3), i(2), axis=9)),
        (Along(1, 0, -2), use(f(2, 3, 4), i(2, 3, 1)), use(f(2, 3, 4), i(2, 1, 4))),
        (Along(1, 0, -2), use(f(3, 4), i(3)), use(f(3, 4), i(4))),
        (Along(1, 0, -1), use(f(3, 4), i(4)), use(f(3, 4), i(3))),
        (Along(1, 0, -1), use(f(3, N), i(9)), use(f(3, 4), i(3, 4))),
        (Along(1, 0, -2), use(f(5), i(1)), use(f(5), i(5))),
        (Along(1, 0, -2), use(f(3, 4), i(1, 1)), use(f(3, 4), i(2, 2))),
        (Between("size", 1), use(size=3), use(size=0)),
        (Between("sizes", 1, 5), use(sizes=[1, 5]), use(sizes=[1, 6])),
        (Between("scale", 0), use(scale=0.5), use(scale=float("nan"))),
        (OneOf("mode", ("a", "b")), use(mode="a"), use(mode="c")),
        (SameLength(("p", "q")), use(p=[1, 2], q=[3, 4]), use(p=[1, 2], q=[3])),
        (Below("ids", "count"), use(ids=[0, 1], count=2), use(ids=[0, 2], count=2)),
        (Below("ids", "list"), use(ids=[0, 1], list=[7, 7]), use(ids=[-1], list=[7])),
    ],
)
def test_relations(relation, good, bad):
    assert relation.problem(good) is None
    assert relation.problem(bad)
    assert relation.problem(use()) is None or isinstance(relation, SameSize)


def test_every_operator_has_a_signature():
    """Kernels rely on the types and shapes of their inputs: no operator of Weft's own is without a word on them."""
    own = {key: spec for key, spec in operators().items() if key[0] in ("", "weft", "com.microsoft", "ai.onnx.ml")}
    assert len(own) > 250
    assert not [key for key, spec in own.items() if spec.takes is None]
    without = sorted(name for (_, name), spec in own.items() if not signature(spec.takes).inputs)
    assert without == ["Constant", "RandomNormal", "RandomUniform", "SequenceEmpty"]

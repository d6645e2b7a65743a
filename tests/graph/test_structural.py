"""Graphs compared by structure."""

from __future__ import annotations

import pytest

from weft.graph.structural import graph_key, quick_key
from weft.graph.text import parse_graph

BASE = """
graph g(%x: float32[2]) -> (%y) {
    const %c: float32[] = 2.0
    %a = Exp(%x)
    %b = Neg(%x)
    %m = Mul(%b, %c)
    %y = Concat(%a, %m, axis=0)
}
"""


def test_names_and_order_do_not_count():
    other = """
graph other(%in: float32[2]) -> (%out) {
    const %two: float32[] = 2.0
    %p = Neg(%in)
    %q = Mul(%p, %two)
    %r = Exp(%in)
    %out = Concat(%r, %q, axis=0)
}
"""
    a, b = parse_graph(BASE), parse_graph(other)
    assert graph_key(a) == graph_key(b) and quick_key(a) == quick_key(b)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("axis=0", "axis=-1"),
        ("2.0", "3.0"),
        ("%x: float32[2]", "%x: float32[n]"),
        ("Exp(%x)", "Log(%x)"),
        ("Concat(%a, %m", "Concat(%m, %a"),
        ("-> (%y)", "-> (%m)"),
    ],
)
def test_what_counts(old, new):
    assert graph_key(parse_graph(BASE)) != graph_key(parse_graph(BASE.replace(old, new)))

"""Walks and rewrites pass over what holds no node that they look for."""

from __future__ import annotations

import random

import pytest

from tests.expr.random_expressions import Scene
from weft.core.dtypes import dtype
from weft.expr.nodes import Add, Broadcast, Buffer, FloorDiv, Load, Ramp, Select, Var, index_expr
from weft.expr.structural import structural_equal
from weft.expr.visit import ExprMutator, bits, walk


@pytest.mark.parametrize("seed", range(40))
def test_kinds_that_a_node_holds_are_those_that_a_walk_finds(seed):
    scene = Scene(random.Random(seed))
    buffer = Buffer("b", dtype("int64"), [8])
    e = Load(buffer, [Ramp(scene.index(4), index_expr(1), 4)]) + Broadcast(scene.index(4), 4)
    for node in walk(e):
        assert node.holds == bits({type(part) for part in walk(node)})
    for kinds in ((Add,), (Var, Load), (Select, FloorDiv, Broadcast)):
        assert walk(e, *kinds) == [node for node in walk(e) if type(node) in kinds]


def test_a_mutator_passes_over_what_it_has_no_method_for():
    class Doubled(ExprMutator):
        def visit_Load(self, e):
            return e + e

    x, buffer = Var("x"), Buffer("b", dtype("int64"), [8])
    plain, load = x * 3 + 1, Load(buffer, [x])
    assert Doubled().expr(plain) is plain
    assert structural_equal(Doubled().expr(plain + load), plain + (load + load))

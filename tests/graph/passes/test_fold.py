"""Constant folding: what is computed now, and what stays."""

from __future__ import annotations

import numpy as np

from tests.graph.strategies import check
from weft.graph.passes.fold import fold
from weft.graph.text import format_graph, parse_graph
from weft.models.builder import Builder


def test_constants_and_shapes():
    check(
        fold,
        """
graph g(%x: float32[2, 6]) -> (%y, %c) {
    const %a: float32[] = 2.0
    const %b: float32[2] = [3.0, 4.0]
    const %minus: int64[1] = [-1]
    const %first: int64[1] = [1]
    %c = Mul(%a, %b)
    %s = Shape(%x)
    %n = Gather(%s, %first, axis=0)
    %t = Concat(%n, %minus, axis=0)
    %y = Reshape(%x, %t)
}
""",
        """
graph g(%x: float32[2, 6]) -> (%y, %c) {
    const %c: float32[2] = [6.0, 8.0]
    const %t: int64[2] = [6, -1]
    %y: float32[6, 2] = Reshape(%x, %t)
}""",
        exact=True,
    )


def test_a_branch_is_chosen():
    check(
        fold,
        """
graph g(%x: float32[2]) -> (%y) {
    const %two: float32[] = 2.0
    const %one: float32[] = 1.0
    %c = Greater(%two, %one)
    %y = If(%c) {
        then_branch: graph t() -> (%q) {
            const %k: float32[2] = [5.0, 6.0]
            %p = Mul(%x, %k)
            %q = Neg(%p)
        }
        else_branch: graph e() -> (%x) {
        }
    }
}
""",
        """
graph g(%x: float32[2]) -> (%y) {
    const %k: float32[2] = [5.0, 6.0]
    %p: float32[2] = Mul(%x, %k)
    %q: float32[2] = Neg(%p)
    %y: float32[2] = Identity(%q)
}""",
        exact=True,
    )


def test_names_of_both_branches_may_be_the_same():
    check(
        fold,
        """
graph g(%x: float32[2]) -> (%y) {
    const %c: bool[] = false
    %y = If(%c) {
        then_branch: graph t() -> (%p) {
            %p = Neg(%x)
        }
        else_branch: graph e() -> (%p) {
            %p = Exp(%x)
        }
    }
}
""",
        """
graph g(%x: float32[2]) -> (%y) {
    %p_1: float32[2] = Exp(%x)
    %y: float32[2] = Identity(%p_1)
}""",
        exact=True,
    )


def test_inside_subgraphs():
    check(
        fold,
        """
graph g(%x: float32[2]) -> (%y) {
    const %two: float32[2] = [2.0, 2.0]
    const %zero: float32[] = 0.0
    %s = ReduceSum(%x, keepdims=0)
    %c = Greater(%s, %zero)
    %y = If(%c) {
        then_branch: graph t() -> (%q) {
            %p = Mul(%two, %two)
            %q = Mul(%x, %p)
        }
        else_branch: graph e() -> (%r) {
            %r = Neg(%two)
        }
    }
}
""",
        """
graph g(%x: float32[2]) -> (%y) {
    const %zero: float32[] = 0.0
    %s: float32[] = ReduceSum(%x, keepdims=0)
    %c: bool[] = Greater(%s, %zero)
    %y: float32[2] = If(%c) {
        then_branch: graph t() -> (%q) {
            const %p: float32[2] = [4.0, 4.0]
            %q: float32[2] = Mul(%x, %p)
        }
        else_branch: graph e() -> (%r) {
            const %r: float32[2] = [-2.0, -2.0]
        }
    }
}""",
        exact=True,
    )


def test_a_loop_without_turns():
    check(
        fold,
        """
graph g(%x: float32[2]) -> (%y) {
    const %none: int64[] = 0
    %a = Neg(%x)
    %y = Loop(%none, _, %a) {
        body: graph b(%i: int64[], %c: bool[], %s: float32[2]) -> (%c, %t) {
            %t = Exp(%s)
        }
    }
}
""",
        """
graph g(%x: float32[2]) -> (%y) {
    %a: float32[2] = Neg(%x)
    %y: float32[2] = Identity(%a)
}""",
        exact=True,
    )


def test_what_grows_or_is_random_stays():
    graph = parse_graph("""
graph g() -> (%a, %b, %c, %d) {
    const %one: float32[1] = [1.0]
    const %many: int64[2] = [1024, 1024]
    const %shape: int64[1] = [4000000]
    %a = Expand(%one, %many)
    %b = ConstantOfShape(%shape)
    %c = RandomNormal(shape=[2])
    %d = Tile(%one, %shape)
}
""")
    assert [n.op for n in fold(graph).nodes] == ["Expand", "ConstantOfShape", "RandomNormal", "Tile"]


def test_results_are_in_order():
    array = np.arange(20, dtype=np.float32).reshape(4, 5)
    text = "graph g() -> (%y) {\n const %w: float32[4, 5] = ...\n %y = Transpose(%w, perm=[1, 0])\n}"
    done = fold(parse_graph(text, {"w": array}))
    (found,) = done.constants.values()
    assert found.flags.c_contiguous and (found == array.T).all() and not done.nodes


def test_what_fails_is_left_to_the_run():
    graph = parse_graph("""
graph g(%x: float32[2]) -> (%y) {
    const %a: int64[2] = [1, 2]
    const %far: int64[1] = [7]
    %b = Gather(%a, %far, axis=0)
    %y = Expand(%x, %b)
}
""")
    assert "Gather" in format_graph(fold(graph))


def products(size):
    """Two products of constants, and nothing else."""
    b = Builder("products")
    left, right = (b.constant(np.full((size, size), value, np.float32)) for value in (2, 3))
    return b.finish(b.node("MatMul", left, right), b.node("MatMul", right, left))


def test_the_steps_of_all_nodes_are_counted_together(monkeypatch):
    assert not fold(products(100)).nodes
    monkeypatch.setattr("weft.core.model.FOLDED_STEPS", 3 * 100**3)  # two for each multiply-add
    left = fold(products(100))
    assert len(left.nodes) == 1 and len(fold(left).nodes) == 0


def test_few_steps_for_each_element_are_free(monkeypatch):
    monkeypatch.setattr("weft.core.model.FOLDED_STEPS", 0)
    assert len(fold(products(100)).nodes) == 2 and not fold(products(32)).nodes

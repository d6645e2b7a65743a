"""Common subexpressions and dead code."""

from __future__ import annotations

from tests.graph.strategies import check
from weft.graph.passes.common import common
from weft.graph.passes.dead import dead
from weft.graph.text import parse_graph


def test_equal_nodes_and_constants():
    check(
        lambda g: dead(common(g)),
        """
graph g(%x: float32[2]) -> (%y, %z) {
    const %a: float32[] = 2.0
    const %b: float32[] = 2.0
    const %c: float64[] = 2.0
    %p: float32[2] = Mul(%x, %a)
    %q: float32[2] = Mul(%x, %b)
    %y: float32[2] = Add(%p, %q)
    %z: float32[2] = Add(%q, %p)
}
""",
        """
graph g(%x: float32[2]) -> (%y, %z) {
    const %a: float32[] = 2.0
    %p: float32[2] = Mul(%x, %a)
    %y: float32[2] = Add(%p, %p)
    %z: float32[2] = Identity(%y)
}""",
        exact=True,
    )


def test_attributes_count():
    check(
        common,
        """
graph g(%x: float32[2, 2]) -> (%y) {
    %p: float32[2, 2] = Softmax(%x, axis=0)
    %q: float32[2, 2] = Softmax(%x, axis=1)
    %y: float32[2, 2] = Sub(%p, %q)
}
""",
        """
graph g(%x: float32[2, 2]) -> (%y) {
    %p: float32[2, 2] = Softmax(%x, axis=0)
    %q: float32[2, 2] = Softmax(%x, axis=1)
    %y: float32[2, 2] = Sub(%p, %q)
}""",
        exact=True,
    )


def test_a_subgraph_uses_what_is_around_it_and_branches_do_not_share():
    check(
        lambda g: dead(common(g)),
        """
graph g(%x: float32[2], %c: bool[]) -> (%y) {
    const %one: float32[] = 1.0
    %e: float32[2] = Exp(%x)
    %i: float32[2] = If(%c) {
        then_branch: graph t() -> (%q) {
            const %k: float32[] = 1.0
            %p: float32[2] = Exp(%x)
            %n: float32[2] = Neg(%x)
            %s: float32[2] = Add(%p, %k)
            %q: float32[2] = Mul(%s, %n)
        }
        else_branch: graph f() -> (%m) {
            %m: float32[2] = Neg(%x)
        }
    }
    %y: float32[2] = Add(%i, %e)
}
""".replace("-> (%y) {\n    const", "-> (%y, %u) {\n    const").replace(
            "    %y: float32[2] = Add(%i, %e)", "    %y: float32[2] = Add(%i, %e)\n    %u: float32[2] = Add(%x, %one)"
        ),
        """
graph g(%x: float32[2], %c: bool[]) -> (%y, %u) {
    const %one: float32[] = 1.0
    %e: float32[2] = Exp(%x)
    %i: float32[2] = If(%c) {
        then_branch: graph t() -> (%q) {
            %n: float32[2] = Neg(%x)
            %s: float32[2] = Add(%e, %one)
            %q: float32[2] = Mul(%s, %n)
        }
        else_branch: graph f() -> (%m) {
            %m: float32[2] = Neg(%x)
        }
    }
    %y: float32[2] = Add(%i, %e)
    %u: float32[2] = Add(%x, %one)
}""",
        exact=True,
    )


def test_random_numbers_are_not_shared():
    graph = parse_graph("""
graph g() -> (%y) {
    %a = RandomNormal(shape=[2])
    %b = RandomNormal(shape=[2])
    %y = Sub(%a, %b)
}
""")
    assert common(graph) is graph


def test_dead_nodes_constants_and_outputs():
    check(
        dead,
        """
graph g(%x: float32[1, 1, 4, 4], %unused: float32[2]) -> (%y) {
    const %k: float32[] = 1.0
    %a: float32[1, 1, 4, 4] = Exp(%x)
    %b: float32[1, 1, 4, 4] = Add(%a, %k)
    %y: float32[1, 1, 3, 3], %where: int64[1, 1, 3, 3] = MaxPool(%x, kernel_shape=[2, 2])
}
""",
        """
graph g(%x: float32[1, 1, 4, 4], %unused: float32[2]) -> (%y) {
    %y: float32[1, 1, 3, 3] = MaxPool(%x, kernel_shape=[2, 2])
}""",
        exact=True,
    )


def test_dead_outputs_of_control_flow():
    check(
        dead,
        """
graph g(%x: float32[2]) -> (%y, %rows) {
    const %c: bool[] = true
    const %n: int64[] = 3
    %i: float32[2], %j: float32[2] = If(%c) {
        then_branch: graph t() -> (%p, %q) {
            %p: float32[2] = Exp(%x)
            %q: float32[2] = Neg(%x)
        }
        else_branch: graph e() -> (%x, %x) {
        }
    }
    %s: float32[2], %u: float32[2], %more: float32[3, 2], %rows: float32[3, 2] = Loop(%n, %c, %j, %x) {
        body: graph b(%k: int64[], %go: bool[], %a: float32[2], %d: float32[2]) -> (%go, %a2, %d2, %m, %r) {
            %a2: float32[2] = Add(%a, %x)
            %d2: float32[2] = Exp(%d)
            %m: float32[2] = Neg(%d2)
            %r: float32[2] = Neg(%a)
        }
    }
    %y: float32[2] = Neg(%s)
}
""",
        """
graph g(%x: float32[2]) -> (%y, %rows) {
    const %c: bool[] = true
    const %n: int64[] = 3
    %j: float32[2] = If(%c) {
        then_branch: graph t() -> (%q) {
            %q: float32[2] = Neg(%x)
        }
        else_branch: graph e() -> (%x) {
        }
    }
    %s: float32[2], %rows: float32[3, 2] = Loop(%n, %c, %j) {
        body: graph b(%k: int64[], %go: bool[], %a: float32[2]) -> (%go, %a2, %r) {
            %a2: float32[2] = Add(%a, %x)
            %r: float32[2] = Neg(%a)
        }
    }
    %y: float32[2] = Neg(%s)
}""",
        exact=True,
    )


def test_nothing_to_do():
    graph = parse_graph("graph g(%x: float32[2]) -> (%y) {\n %y: float32[2] = Relu(%x)\n}")
    assert dead(graph) is graph and common(graph) is graph

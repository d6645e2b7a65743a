"""One model as different exporters write it: one graph."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401
from tests.graph.strategies import same_meaning
from weft.graph.passes.normalize import normalize
from weft.graph.structural import graph_key
from weft.graph.text import format_graph, parse_graph

W = np.random.default_rng(0).uniform(-1, 1, (6, 24)).astype(np.float32)

TORCH = """
graph torch(%x: float32[2, 4, 6]) -> (%y) {
    const %w: float32[6, 24] = ...
    const %c: float32[6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    const %half: float32[] = 0.5
    const %one: float32[] = 1.0
    const %root: float32[] = 1.4142135
    %f = Flatten(%x, axis=1)
    %l = Gemm(%f, %w, %c, transB=1)
    %d = Div(%l, %root)
    %e = Erf(%d)
    %p = Add(%e, %one)
    %m = Mul(%l, %p)
    %y = Mul(%m, %half)
}
"""

OTHER = """
graph other(%in: float32[2, 4, 6]) -> (%out) {
    const %w: float32[24, 6] = ...
    const %c: float32[6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    const %zero: int64[] = 0
    const %axes: int64[1] = [0]
    const %minus: int64[1] = [-1]
    const %inverse: float32[] = 0.70710677
    const %half: float32[] = 0.5
    const %one: float32[] = 1.0
    %s = Shape(%in)
    %n = Gather(%s, %zero, axis=0)
    %u = Unsqueeze(%n, %axes)
    %t = Concat(%u, %minus, axis=0)
    %f = Reshape(%in, %t)
    %k = MatMul(%f, %w)
    %l = Add(%c, %k)
    %i = Identity(%l)
    %h = Mul(%half, %i)
    %d = Mul(%l, %inverse)
    %e = Erf(%d)
    %p = Add(%one, %e)
    %out = Mul(%p, %h)
}
"""


def test_the_same_model_gives_the_same_graph():
    one = parse_graph(TORCH, {"w": W})
    two = parse_graph(OTHER, {"w": np.ascontiguousarray(W.T)})
    a, b = normalize(one), normalize(two)
    same_meaning(one, a)
    same_meaning(two, b)
    assert [n.op for n in a.nodes] == ["Reshape", "Gemm", "Gelu"]
    assert graph_key(a) == graph_key(b), f"\n{a}\n{b}"


def test_a_chosen_branch_is_simplified_too():
    graph = parse_graph("""
graph g(%x: float32[2, 3]) -> (%y) {
    const %zero: int64[] = 0
    const %two: int64[] = 2
    %s = Shape(%x)
    %n = Gather(%s, %zero, axis=0)
    %c = Equal(%n, %two)
    %y = If(%c) {
        then_branch: graph t() -> (%q) {
            %p = Sigmoid(%x)
            %q = Mul(%x, %p)
        }
        else_branch: graph e() -> (%x) {
        }
    }
}
""")
    made = normalize(graph)
    same_meaning(graph, made)
    assert (
        format_graph(made)
        == """\
graph g(%x: float32[2, 3]) -> (%y) {
    %y: float32[2, 3] = Swish(%x, alpha=1.0)
}"""
    )


@pytest.mark.parametrize("name", ["dqn", "resnet18"])
def test_built_in_models(name):
    import weft.models

    graph = getattr(weft.models, name)()
    made = normalize(graph)
    assert not any(n.op in ("BatchNormalization", "Identity", "Flatten") for n in made.nodes)
    assert graph_key(made) == graph_key(normalize(made))

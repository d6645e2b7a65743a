"""What exporters write as several operators becomes one."""

from __future__ import annotations

import pytest

from tests.graph.strategies import same_meaning
from weft.graph.passes.simplify import simplify
from weft.graph.text import format_graph, parse_graph

CONSTANTS = """
    const %half: float32[] = 0.5
    const %one: float32[] = 1.0
    const %two: float32[] = 2.0
    const %three: float32[] = 3.0
    const %six: float32[] = 6.0
    const %sixth: float32[] = 0.16666667
    const %zero: float32[] = 0.0
    const %root: float32[] = 1.4142135
    const %inverse: float32[] = 0.70710677
    const %cubic: float32[] = 0.044715
    const %scale: float32[] = 0.7978846
    const %quick: float32[] = 1.702
    const %tiny: float32[] = 1e-05
    const %minus_half: float32[] = -0.5
    const %last: int64[1] = [-1]
    const %axis1: int64[1] = [1]
    const %deep_two: float32[1, 1, 1] = [[[2.0]]]
    const %deep_tiny: float32[1, 1, 1] = [[[1e-05]]]
    const %g: float32[4] = [1.0, 2.0, 3.0, 4.0]
    const %b: float32[4] = [0.5, 0.5, 0.25, 0.25]
"""


def operators(nodes, inputs="%x: float32[3, 4]"):
    graph = parse_graph(f"graph g({inputs}) -> (%y) {{{CONSTANTS}{nodes}\n}}")
    made = simplify(graph)
    same_meaning(graph, made)
    return [line.split(" = ", 1)[1] for line in format_graph(made).splitlines()[1:-1] if " const " not in line]


@pytest.mark.parametrize(
    "nodes",
    [
        "%d = Div(%x, %root)\n%e = Erf(%d)\n%p = Add(%e, %one)\n%m = Mul(%x, %p)\n%y = Mul(%m, %half)",
        "%h = Mul(%x, %half)\n%d = Mul(%x, %inverse)\n%e = Erf(%d)\n%p = Add(%one, %e)\n%y = Mul(%h, %p)",
        "%d = Div(%x, %root)\n%e = Erf(%d)\n%p = Add(%e, %one)\n%h = Mul(%p, %half)\n%y = Mul(%x, %h)",
        "%d = Div(%x, %root)\n%e = Erf(%d)\n%p = Add(%e, %one)\n%h = Mul(%x, %p)\n%y = Div(%h, %two)",
    ],
)
def test_gelu(nodes):
    assert operators(nodes) == ["Gelu(%x)"]


@pytest.mark.parametrize(
    "nodes",
    [
        "%c = Pow(%x, %three)\n%k = Mul(%c, %cubic)\n%s = Add(%x, %k)\n%t = Mul(%s, %scale)\n%u = Tanh(%t)\n"
        "%p = Add(%u, %one)\n%m = Mul(%x, %p)\n%y = Mul(%m, %half)",
        "%q = Mul(%x, %x)\n%c = Mul(%q, %x)\n%k = Mul(%cubic, %c)\n%s = Add(%x, %k)\n%t = Mul(%scale, %s)\n"
        "%u = Tanh(%t)\n%p = Add(%one, %u)\n%h = Mul(%x, %half)\n%y = Mul(%h, %p)",
        "%q = Mul(%x, %x)\n%k = Mul(%q, %cubic)\n%r = Add(%k, %one)\n%v = Mul(%x, %scale)\n%t = Mul(%v, %r)\n"
        "%u = Tanh(%t)\n%p = Add(%one, %u)\n%h = Mul(%x, %half)\n%y = Mul(%h, %p)",
    ],
)
def test_gelu_by_tanh(nodes):
    assert operators(nodes) == ['Gelu(%x, approximate="tanh")']


def test_other_activations():
    assert operators("%s = Sigmoid(%x)\n%y = Mul(%s, %x)") == ["Swish(%x, alpha=1.0)"]
    quick = operators("%q = Mul(%x, %quick)\n%s = Sigmoid(%q)\n%y = Mul(%s, %x)")
    assert quick == ["Swish(%x, alpha=1.7020000219345093)"]
    assert operators("%s = Softplus(%x)\n%t = Tanh(%s)\n%y = Mul(%x, %t)") == ["Mish(%x)"]
    assert operators("%h = HardSigmoid(%x, alpha=0.16666667)\n%y = Mul(%x, %h)") == ["HardSwish(%x)"]
    assert operators("%a = Add(%x, %three)\n%c = Clip(%a, %zero, %six)\n%m = Mul(%x, %c)\n%y = Div(%m, %six)") == [
        "HardSwish(%x)"
    ]
    assert operators("%a = Add(%x, %three)\n%c = Clip(%a, %zero, %six)\n%d = Mul(%c, %sixth)\n%y = Mul(%x, %d)") == [
        "HardSwish(%x)"
    ]


def test_values_that_others_read_are_not_swallowed():
    assert len(operators("%s = Sigmoid(%x)\n%m = Mul(%s, %x)\n%y = Add(%m, %s)")) == 3
    assert len(operators("%s = Sigmoid(%x)\n%y = Mul(%s, %z)", "%x: float32[3, 4], %z: float32[3, 4]")) == 2


LAYER_NORM = "%m = ReduceMean(%x, %last)\n%d = Sub(%x, %m)\n%p = Pow(%d, %two)\n%v = ReduceMean(%p, %last)\n"
LAYER_NORM += "%e = Add(%v, %tiny)\n"


@pytest.mark.parametrize(
    "end",
    [
        "%s = Sqrt(%e)\n%n = Div(%d, %s)\n",
        "%s = Sqrt(%e)\n%r = Reciprocal(%s)\n%n = Mul(%d, %r)\n",
        "%r = Pow(%e, %minus_half)\n%n = Mul(%r, %d)\n",
        "%s = Pow(%e, %half)\n%n = Div(%d, %s)\n",
        "%s = Sqrt(%e)\n%r = Div(%one, %s)\n%n = Mul(%d, %r)\n",
    ],
)
def test_layer_normalization(end):
    found = operators(LAYER_NORM + end + "%k = Mul(%n, %g)\n%y = Add(%b, %k)")
    assert found == ["LayerNormalization(%x, %g, %b, axis=-1, epsilon=9.999999747378752e-06)"]


def test_layer_normalization_without_scale_or_over_other_axes():
    plain = operators(LAYER_NORM + "%s = Sqrt(%e)\n%y = Div(%d, %s)")
    assert plain == ["LayerNormalization(%x, %x_scale, axis=-1, epsilon=9.999999747378752e-06)"]
    other = operators(LAYER_NORM.replace("%last", "%axis1") + "%s = Sqrt(%e)\n%y = Div(%d, %s)", "%x: float32[2, 3, 4]")
    assert not any(line.startswith("LayerNormalization") for line in other)
    shared = operators(LAYER_NORM + "%s = Sqrt(%e)\n%n = Div(%d, %s)\n%y = Add(%n, %s)")
    assert not any(line.startswith("LayerNormalization") for line in shared)


def test_rms_normalization():
    start = "%q = Mul(%x, %x)\n%m = ReduceMean(%q, %last)\n%e = Add(%m, %tiny)\n%s = Sqrt(%e)\n"
    for end in ("%n = Div(%x, %s)\n", "%r = Reciprocal(%s)\n%n = Mul(%x, %r)\n"):
        found = operators(start + end + "%y = Mul(%n, %g)")
        assert found == ["RMSNormalization(%x, %g, axis=-1, epsilon=9.999999747378752e-06)"]


@pytest.mark.parametrize(("two", "tiny"), [("deep_two", "tiny"), ("two", "deep_tiny")])
@pytest.mark.parametrize("apart", ["%d = Identity(%x)", "%m = ReduceMean(%x, %last)\n%d = Sub(%x, %m)"])
def test_normalizations_whose_constants_have_more_dimensions(two, tiny, apart):
    spread = f"%s = Pow(%d, %{two})\n%v = ReduceMean(%s, %last)\n%e = Add(%v, %{tiny})\n%r = Sqrt(%e)"
    found = operators(f"{apart}\n{spread}\n%y = Div(%d, %r)")
    assert not any("Normalization" in line for line in found)


def test_softmax():
    nodes = "%m = ReduceMax(%x, %last)\n%d = Sub(%x, %m)\n%e = Exp(%d)\n%s = ReduceSum(%e, %last)\n%y = Div(%e, %s)"
    assert operators(nodes) == ["Softmax(%x, axis=-1)"]
    assert len(operators(nodes.replace("ReduceSum(%e, %last)", "ReduceSum(%e, %axis1)"), "%x: float32[2, 3, 4]")) == 5


def test_products_with_bias():
    inputs = "%x: float32[3, 4], %w: float32[4, 5], %c: float32[5], %z: float32[1, 3, 5]"
    assert operators("%p = MatMul(%x, %w)\n%y = Add(%c, %p)", inputs) == ["Gemm(%x, %w, %c)"]
    assert operators("%p = Gemm(%x, %w, alpha=0.5)\n%y = Add(%p, %c)", inputs) == ["Gemm(%x, %w, %c, alpha=0.5)"]
    assert operators("%y = Gemm(%x, %w)", inputs) == ["MatMul(%x, %w)"]
    assert len(operators("%p = MatMul(%x, %w)\n%y = Add(%p, %z)", inputs)) == 2


def test_transposed_weights_are_stored_in_order():
    text = """
graph g(%x: float32[1, 2]) -> (%y) {
    const %w: float32[3, 2] = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    const %c: float32[3] = [1.0, 2.0, 3.0]
    %y = Gemm(%x, %w, %c, transB=1)
}
"""
    graph = parse_graph(text)
    made = simplify(graph)
    same_meaning(graph, made)
    assert "const %w_transposed: float32[2, 3] = [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]" in format_graph(made)


def test_means_over_all_places():
    images = "%x: float32[2, 3, 4, 5]"
    constants = "const %places: int64[2] = [3, -2]\nconst %some: int64[1] = [3]\n"
    assert operators(f"{constants}%y = ReduceMean(%x, %places)", images) == ["GlobalAveragePool(%x)"]
    flat = operators(f"{constants}%y = ReduceMean(%x, %places, keepdims=0)", images)
    assert [text.partition("(")[0] for text in flat] == ["GlobalAveragePool", "Reshape"]
    assert operators(f"{constants}%y = ReduceMean(%x, %some)", images) == ["ReduceMean(%x, %some)"]
    assert operators("%y = ReduceMean(%x, %last)", "%x: float32[2, 3, 4]") == ["ReduceMean(%x, %last)"]

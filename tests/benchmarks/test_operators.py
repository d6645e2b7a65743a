"""The products that `benchmarks.operators` measures: those of models, and right in every type."""

import numpy as np
import pytest

from benchmarks import operators
from weft.graph.interpreter import interpret_graph
from weft.targets.registry import find_target


@pytest.mark.parametrize(
    "kinds",
    [("float32",) * 3, ("bfloat16",) * 3, ("bfloat16", "bfloat16", "float32"), ("uint8", "int8", "int32")],
    ids=lambda kinds: " ".join(kinds),
)
def test_a_product_is_a_model_of_two_inputs(kinds):
    left, right, out = kinds
    graph = operators.product(5, 7, 9, *kinds)
    a, b = operators.random_matrix(5, 9, left, 1), operators.random_matrix(9, 7, right, 2)
    (want,) = interpret_graph(graph, [a, b])
    assert want.dtype.name == out and len(graph.inputs) == 2 and not graph.constants
    made = np.zeros_like(want)
    operators.caller(operators.compiled(graph, "native"), a, b, made)()
    operators.check("product", made, want, 1e-2)


def test_low_products_are_checked_and_named_by_their_instructions():
    target = find_target("native")
    found = operators._low_candidates(target, 40)
    assert next(iter(found)) == "float32" and len(found) >= 5
    assert any("AMX" in name for name in found) == ("amx-tile" in target.features)


def test_a_wrong_result_is_no_figure():
    with pytest.raises(SystemExit, match="off by"):
        operators.check("product", np.ones(3), np.zeros(3) + 2, 1e-5)


def test_compiled_means_now():
    """A kernel that was made before would be no compile time."""
    graph = operators.product(4, 4, 4)
    kernels = [operators.compiled(graph, "native").specializations[0].launches[0].kernel for _ in range(2)]
    assert kernels[0] is not kernels[1]

"""What a node takes on the host, as it is estimated: near what its loops do, and never far too little."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (fills the table of operators)
from weft.graph.ir import GraphError, Node, TensorType, Value, dtype_name
from weft.graph.opspec import Infer, find_operator, operators, register
from weft.graph.steps import elements_of, steps_of


def zeros(*shape, dtype="float32"):
    return np.zeros(shape, dtype)


def counted(op, *arrays, outputs=1, domain="", **attributes):
    types = [None if a is None else TensorType(dtype_name(a.dtype), a.shape) for a in arrays]
    inputs = [None if t is None else Value(f"x{k}", t) for k, t in enumerate(types)]
    node = Node(op, inputs, [Value(f"y{k}") for k in range(outputs)], attributes, domain=domain)
    made = find_operator(op, domain).types(Infer(node, types, arrays))
    node = node.replace(outputs=[Value(f"y{k}", made[k]) for k in range(outputs)])
    return steps_of(node, arrays), elements_of(node, arrays)


@pytest.mark.parametrize(
    "op,arrays,attributes,wanted",
    [
        ("MatMul", [zeros(300, 200), zeros(200, 100)], {}, 300 * 200 * 100),
        ("Conv", [zeros(2, 4, 5000), zeros(8, 4, 100)], {}, 2 * 8 * 4 * 4901 * 100),
        ("MaxPool", [zeros(1, 1, 9000)], {"kernel_shape": [3000]}, 6001 * 3000),
        ("MaxPool", [zeros(1, 1, 300, 300)], {"kernel_shape": [100, 100]}, 201 * 300 * 100 + 201 * 201 * 100),
        ("LRN", [zeros(1, 4000, 1)], {"size": 4000}, 4000 * 4000),
        ("Einsum", [zeros(3000), zeros(4000)], {"equation": "a,b->"}, 3000 * 4000),
        ("Det", [zeros(300, 300)], {}, 300**3),
        ("ReduceSum", [zeros(2000, 3000)], {}, 2000 * 3000),
        ("Softmax", [zeros(2000, 3000)], {}, 2000 * 3000),
        ("TopK", [zeros(1, 100_000), np.array([50_000])], {}, 17 * 100_000),
        ("NonZero", [zeros(2000, 3000)], {}, 2000 * 3000),
        ("Transpose", [zeros(2000, 3000)], {}, 2000 * 3000),
        ("Add", [zeros(2000, 3000), zeros(3000)], {}, 2000 * 3000),
        ("DequantizeLinear", [zeros(2000, 3000, dtype="int8"), zeros(3000)], {}, 2000 * 3000),
    ],
)
def test_estimates_are_near(op, arrays, attributes, wanted):
    steps, _ = counted(op, *arrays, outputs=2 if op == "TopK" else 1, **attributes)
    assert wanted <= steps <= 16 * wanted


def test_turns_of_a_recurrence_are_dear():
    steps, elements = counted("LSTM", zeros(1000, 1, 2), zeros(1, 8, 2), zeros(1, 8, 2), hidden_size=2)
    assert steps > 10_000 * elements


def test_what_nobody_describes_is_bounded_by_its_sizes():
    """An operator without a tensor expression: every element may meet every other, as often as its attributes say."""
    if ("test.steps", "Meets") not in operators():
        register("Meets", lambda c: [c.tensor(0)], lambda c, x, y: x, domain="test.steps")
    steps, _ = counted("Meets", zeros(100), zeros(50), domain="test.steps", width=7)
    assert steps == 100 * 50 * 100 * 7


@pytest.mark.parametrize("op", ["Constant", "NotThere"])
def test_what_reads_nothing_or_is_not_known_is_its_size(op):
    node = Node(op, [], [Value("y", TensorType("float32", (1000, 3000)))], {"value": zeros(1000, 3000)})
    assert steps_of(node, []) == 3_000_000


def test_an_estimate_that_fails_names_the_node():
    if ("test.steps", "Careless") not in operators():
        register("Careless", lambda c: [c.tensor(0)], lambda c, x: x, domain="test.steps", steps=lambda n, a: 1 // 0)
    with pytest.raises(GraphError, match="Careless.*the count of its steps failed: ZeroDivisionError"):
        counted("Careless", zeros(3), domain="test.steps")

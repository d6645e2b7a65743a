"""TopK and Unique: ONNX's cases, and random ones."""

import numpy as np
import pytest
import torch

from tests.ops.cases import cases, check_case
from tests.ops.nodes import make, numbers, run_node
from weft.graph.ir import GraphError
from weft.graph.opspec import find_operator

ON_THE_HOST = {"Unique"}


@pytest.mark.parametrize("case", cases("TopK", "Unique"), ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case, constants=False) == (case.model.graph.node[0].op_type not in ON_THE_HOST)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("k", [1, 5, 17])
def test_top_k_keeps_the_order_of_equals(k, axis, largest):
    """Few different values, so that nearly all are equal to some others; k on both sides of the two algorithms."""
    x = np.random.default_rng(k).integers(0, 6, (20, 23)).astype("float32")
    x[3, 4], x[5, 4], x[7, 7] = np.nan, np.nan, -np.inf
    made, compiled = run_node("TopK", x, np.array([k]), outputs=2, axis=axis, largest=largest)
    wanted = torch.sort(torch.tensor(x), stable=True, dim=axis, descending=bool(largest))
    for got in (made, compiled):
        for result, full in zip(got, wanted):
            np.testing.assert_array_equal(result, np.take(full.numpy(), np.arange(k), axis))


@pytest.mark.parametrize("order", ["rising", "falling", "random"])
@pytest.mark.parametrize("largest", [0, 1])
def test_a_short_list_of_many(order, largest):
    """More than one chunk, the last one not whole; the list fills up, and is overtaken again and again."""
    x = np.random.default_rng(0).integers(0, 200, 301).astype("float32")
    x[[3, 77, 300]] = np.nan
    if order != "random":
        x = np.sort(x) if order == "rising" else np.sort(x)[::-1].copy()
    made, compiled = run_node("TopK", x, np.array([70]), outputs=2, largest=largest)
    wanted = torch.sort(torch.tensor(x), stable=True, descending=bool(largest))
    for got in (made, compiled):
        for result, full in zip(got, wanted):
            np.testing.assert_array_equal(result, full.numpy()[:70])


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16"])
def test_top_k_of_every_type(dtype):
    x = numbers(3, 40, dtype=dtype)
    for count in (6, 30):
        made, compiled = run_node("TopK", x, np.array([count]), outputs=2)
        for got in (made, compiled):
            np.testing.assert_array_equal(got[0], np.sort(x, axis=-1)[:, ::-1][:, :count])
            np.testing.assert_array_equal(np.take_along_axis(x, got[1], -1), got[0])


def test_top_k_of_too_few():
    with pytest.raises(GraphError, match="the 4 first of 3 elements"):
        run_node("TopK", numbers(3), np.array([4]), outputs=2)


def unique(x, **attributes):
    return find_operator("Unique").run(make("Unique", 1, 4, attributes), [x])


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique(axis):
    x = np.random.default_rng(0).integers(0, 3, (12, 3)).astype("float32")
    wanted = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    for got, want in zip(unique(x, **({} if axis is None else {"axis": axis})), wanted):
        np.testing.assert_array_equal(got, want.reshape(got.shape))


def test_unique_in_order_of_appearance():
    values, first, back, counts = unique(np.array(["b", "a", "b", "c"], object), sorted=0)
    assert values.tolist() == ["b", "a", "c"] and first.tolist() == [0, 1, 3]
    assert back.tolist() == [0, 1, 0, 2] and counts.tolist() == [2, 1, 1]

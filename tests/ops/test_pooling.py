"""Pooling: ONNX's cases, and random ones against PyTorch."""

import numpy as np
import pytest
import torch

from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, check_symbolic, numbers, run_node
from weft.graph.ir import GraphError

OPERATORS = "MaxPool AveragePool LpPool GlobalMaxPool GlobalAveragePool GlobalLpPool MaxUnpool".split()
F = torch.nn.functional
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case), "no compiled form"


# sizes, kernel, strides, pads
SHAPES = [
    ((9,), (3,), (2,), (1,)),
    ((7, 8), (3, 2), (1, 1), (0, 0)),
    ((9, 7), (3, 3), (2, 2), (1, 1)),
    ((10, 9), (4, 3), (3, 2), (2, 1)),
    ((5, 6, 7), (2, 3, 2), (1, 2, 2), (1, 1, 0)),
]


@pytest.mark.thin(3)
@pytest.mark.parametrize("sizes,kernel,strides,pads", SHAPES)
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("dilation", [1, 2])
def test_max_pool_against_torch(sizes, kernel, strides, pads, ceil, dilation):
    x = numbers(2, 3, *sizes)
    wanted, places = MAX[len(sizes)](
        torch.tensor(x), kernel, strides, pads, dilation, ceil_mode=bool(ceil), return_indices=True
    )
    offsets = np.arange(6).reshape(2, 3, *[1] * len(sizes)) * np.prod(sizes)
    attributes = {
        "kernel_shape": list(kernel),
        "strides": list(strides),
        "pads": [*pads, *pads],
        "dilations": [dilation] * len(sizes),
        "ceil_mode": ceil,
    }
    if ceil:
        check_node("MaxPool", [x], wanted.numpy(), rtol=0, atol=0, build=dilation == 2, **attributes)
        return
    check_node(
        "MaxPool", [x], [wanted.numpy(), places.numpy() + offsets], rtol=0, atol=0, build=dilation == 1, **attributes
    )
    check_symbolic("MaxPool", [x], {(0, 0): "n", (0, 2): "h"}, **attributes)


@pytest.mark.thin(2)
@pytest.mark.parametrize("strides", [(1, 1), (2, 1), (3, 4)])
@pytest.mark.parametrize("dilation", [1, 2])
def test_large_windows_that_overlap(strides, dilation):
    x = numbers(2, 3, 21, 37)
    attributes = {"kernel_shape": [5, 5], "strides": list(strides), "pads": [2] * 4}
    wanted = MAX[2](torch.tensor(x), 5, strides, 2, dilation).numpy()
    check_node("MaxPool", [x], wanted, rtol=0, atol=0, dilations=[dilation] * 2, **attributes)
    if dilation == 1:
        mean = AVERAGE[2](torch.tensor(x), 5, strides, 2, count_include_pad=False).numpy()
        check_node("AveragePool", [x], mean, rtol=1e-5, atol=1e-6, **attributes)


def test_max_pool_never_names_padding():
    x = np.full((1, 1, 3, 3), -np.inf, "float32")
    made, compiled = run_node("MaxPool", x, outputs=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    for result in (made, compiled):
        assert result[1].min() >= 0 and result[1][0, 0, 0, 0] == 0 and result[1][0, 0, 2, 2] == 4


def test_max_pool_in_column_order():
    x = numbers(1, 1, 3, 4)
    made, compiled = run_node("MaxPool", x, outputs=2, kernel_shape=[2, 2], storage_order=1)
    for result in (made, compiled):
        columns = x[0, 0].T.reshape(-1)
        np.testing.assert_array_equal(columns[result[1]], result[0])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_max_pool_of_integers(dtype):
    x = numbers(1, 2, 5, 5, dtype=dtype)
    wanted = MAX[2](torch.tensor(x.astype("float32")), 3, 2, 1).numpy()
    check_node("MaxPool", [x], wanted, rtol=0, atol=0, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)


@pytest.mark.thin(3)
@pytest.mark.parametrize("sizes,kernel,strides,pads", SHAPES)
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool_against_torch(sizes, kernel, strides, pads, ceil, include):
    x = numbers(2, 3, *sizes)
    wanted = AVERAGE[len(sizes)](
        torch.tensor(x), kernel, strides, pads, ceil_mode=bool(ceil), count_include_pad=bool(include)
    )
    attributes = {"kernel_shape": list(kernel), "strides": list(strides), "pads": [*pads, *pads]}
    check_node(
        "AveragePool",
        [x],
        wanted.numpy(),
        ceil_mode=ceil,
        count_include_pad=include,
        build=ceil == include,
        **attributes,
    )
    check_symbolic("AveragePool", [x], {(0, 0): "n", (0, 2): "h"}, ceil_mode=ceil, **attributes)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool_against_torch(p):
    x = numbers(2, 3, 8, 9)
    wanted = F.lp_pool2d(torch.tensor(np.abs(x)), p, (3, 2), (2, 1)).numpy()
    check_node("LpPool", [x], wanted, kernel_shape=[3, 2], strides=[2, 1], p=p)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_global_pools(p):
    x = numbers(2, 3, *(2, 3, 4)[:p])
    over = tuple(range(2, x.ndim))
    check_node("GlobalLpPool", [x], (np.abs(x) ** p).sum(over, keepdims=True) ** (1 / p), p=p)
    check_node("GlobalMaxPool", [x], x.max(over, keepdims=True))
    check_node("GlobalAveragePool", [x], x.mean(over, keepdims=True))
    check_symbolic("GlobalAveragePool", [x], {(0, 0): "n", (0, 2): "h"})


def test_half_floats_are_summed_in_float32():
    x = np.full((1, 1, 64, 64), 30.0, "float16")
    for op in ("GlobalAveragePool", "AveragePool"):
        options = {} if op.startswith("Global") else {"kernel_shape": [64, 64]}
        check_node(op, [x], np.full((1, 1, 1, 1), 30.0), **options)


def test_unpool_against_torch():
    x = torch.tensor(numbers(2, 3, 6, 8))
    values, places = F.max_pool2d(x, 2, 2, return_indices=True)
    wanted = F.max_unpool2d(values, places, 2, 2).numpy()
    flat = places.numpy() + np.arange(6).reshape(2, 3, 1, 1) * 48
    check_node("MaxUnpool", [values.numpy(), flat], wanted, kernel_shape=[2, 2], strides=[2, 2])


def test_unpool_refuses_places_outside():
    with pytest.raises(GraphError, match="outside"):
        run_node("MaxUnpool", numbers(1, 1, 2), np.array([[[0, 9]]]), kernel_shape=[2], strides=[2])


def test_a_kernel_must_fit():
    with pytest.raises(GraphError, match="kernel"):
        run_node("MaxPool", numbers(1, 1, 2, 2), kernel_shape=[3, 3])
    with pytest.raises(GraphError, match="kernel_shape"):
        run_node("MaxPool", numbers(1, 1, 2, 2))


def test_a_norm_has_a_power():
    with pytest.raises(GraphError, match="'p' is 0, not at least 1"):
        run_node("LpPool", numbers(1, 1, 4), kernel_shape=[2], p=0)

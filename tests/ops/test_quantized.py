"""Products and convolutions of 8-bit numbers: ONNX's cases, and random ones against 64-bit arithmetic."""

import numpy as np
import pytest
import torch

from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, numbers, run_node

OPERATORS = ("ConvInteger", "QLinearConv", "MatMulInteger", "QLinearMatMul")


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case), "no compiled form"


def number(value, dtype):
    return np.array(value, dtype)


def convolution(x, w, **options):
    return torch.nn.functional.conv2d(*[torch.tensor(a.astype("float64")) for a in (x, w)], **options).numpy()


@pytest.mark.parametrize("data,weight", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
@pytest.mark.parametrize("known", [(), (2, 3)])
@pytest.mark.parametrize("w_zero", [0, 3])
def test_conv_integer(data, weight, known, w_zero):
    """Padding stands for the real number 0, whether zero points are known when it is compiled or not."""
    x, w = numbers(1, 4, 5, 6, dtype=data), numbers(6, 2, 3, 3, seed=1, dtype=weight)
    wanted = convolution(x.astype(int) - 7, w.astype(int) - w_zero, padding=1, groups=2, stride=(1, 2))
    arrays = [x, w, number(7, data), number(w_zero, weight)]
    check_node("ConvInteger", arrays, wanted, rtol=0, atol=0, known=known, pads=[1] * 4, group=2, strides=[1, 2])


@pytest.mark.parametrize("known", [(1,), (1, 3)])
def test_channels_that_fill_up_a_dot_product_count_for_nothing(known):
    x, w = numbers(1, 6, 2, 3, dtype="int8"), numbers(2, 6, 1, 1, seed=1, dtype="int8")
    zero = np.array([7, -3], "int8")
    wanted = convolution(x.astype(int) - 5, w.astype(int) - zero.astype(int).reshape(-1, 1, 1, 1))
    check_node("ConvInteger", [x, w, number(5, "int8"), zero], wanted, rtol=0, atol=0, known=known)


@pytest.mark.parametrize("each_channel", [False, True])
def test_qlinear_conv(each_channel):
    x, w = numbers(2, 3, 6, 6, dtype="uint8"), numbers(4, 3, 3, 3, seed=1, dtype="int8")
    bias = numbers(4, seed=2, dtype="int32")
    scale = np.array([0.01, 0.02, 0.03, 0.015], "float32") if each_channel else number(0.02, "float32")
    zero = np.array([0, 1, -2, 3], "int8") if each_channel else number(0, "int8")
    wide = w.astype(int) - (zero.astype(int)[:, None, None, None] if each_channel else 0)
    total = convolution(x.astype(int) - 128, wide, padding=1) + bias.reshape(1, -1, 1, 1)
    factor = 0.05 * (scale.reshape(1, -1, 1, 1) if each_channel else scale) / 2.0
    wanted = np.clip(np.rint(total * factor) + 100, 0, 255)
    arrays = [
        x,
        number(0.05, "float32"),
        number(128, "uint8"),
        w,
        scale,
        zero,
        number(2.0, "float32"),
        number(100, "uint8"),
        bias,
    ]
    # One unit where a sum falls on the border between two numbers, in float32.
    check_node("QLinearConv", arrays, wanted, rtol=0, atol=1, known=(2, 5), pads=[1] * 4)


@pytest.mark.parametrize("known", [(), (2, 3)])
@pytest.mark.parametrize(
    "left,right,a_zero,b_zero",
    [
        ((3, 4), (4, 5), np.uint8(7), np.int8(0)),
        ((3, 4), (4, 5), np.array([1, 2, 3], "uint8"), np.array([0, 1, -1, 2, 3], "int8")),
        ((2, 3, 4), (2, 4, 5), np.uint8(7), np.int8(2)),
        ((2, 3, 4), (4, 5), np.uint8(0), np.int8(0)),
        ((4,), (4, 5), np.uint8(3), np.int8(-2)),
    ],
)
def test_matmul_integer(left, right, a_zero, b_zero, known):
    a, b = numbers(*left, dtype="uint8"), numbers(*right, seed=1, dtype="int8")
    zeros = [np.asarray(a_zero), np.asarray(b_zero)]
    shift = zeros[0].astype(int)[:, None] if zeros[0].ndim else int(a_zero)
    wanted = np.matmul(a.astype(int) - shift, b.astype(int) - zeros[1].astype(int))
    check_node("MatMulInteger", [a, b, *zeros], wanted, rtol=0, atol=0, known=known)


def test_zero_points_may_be_left_out():
    a, b = numbers(3, 4, dtype="uint8"), numbers(4, 5, seed=1, dtype="uint8")
    check_node("MatMulInteger", [a, b], a.astype(int) @ b.astype(int), rtol=0, atol=0)


def test_sums_are_of_32_bits():
    x, w = np.full((1, 40, 30, 30), 255, "uint8"), np.full((1, 40, 30, 30), 255, "uint8")
    host, compiled = run_node("ConvInteger", x, w)
    assert host[0].item() == compiled[0].item() == 40 * 900 * 255 * 255 - (1 << 32)

"""Activations and softmax against ONNX's cases and torch, and where naive formulas break."""

import numpy as np
import pytest
import torch

from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import check_node, numbers, run_node
from weft.graph.ir import NUMPY_TYPES, GraphError

OPERATORS = (
    "Celu Elu Gelu HardSigmoid HardSwish Hardmax LeakyRelu LogSoftmax Mish PRelu Relu Selu Shrink Sigmoid Softmax "
    "Softplus Softsign SwiGLU Swish ThresholdedRelu"
).split()


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case), "no compiled form"


@pytest.mark.parametrize("case", kernels(*OPERATORS))
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


TORCH = {
    "Relu": torch.relu,
    "Gelu": torch.nn.functional.gelu,
    "Softplus": torch.nn.functional.softplus,
    "Mish": torch.nn.functional.mish,
    "HardSwish": torch.nn.functional.hardswish,
    "Swish": torch.nn.functional.silu,
    "Selu": torch.selu,
    "Elu": torch.nn.functional.elu,
    "Sigmoid": torch.sigmoid,
    "Softsign": torch.nn.functional.softsign,
}


@pytest.mark.parametrize("op", TORCH)
def test_against_torch_far_out(op):
    """Large arguments overflow in formulas that are not careful."""
    x = np.concatenate([numbers(50) * 3, np.array([-1000, -100, -20, 0, 20, 100, 1000], np.float32)])
    check_node(op, [x], TORCH[op](torch.from_numpy(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_sigmoid_of_very_negative_numbers_keeps_its_digits():
    """Detectors give such for all that is background. (ONNX Runtime's is right to 1e-7 of 1 only.)"""
    x = np.linspace(-80, 20, 1003).astype("float32")
    wanted = 1 / (1 + np.exp(-x.astype("float64")))
    check_node("Sigmoid", [x], wanted.astype("float32"), rtol=2e-6, atol=0)


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("op", ["Gelu", "Softmax", "LogSoftmax", "Sigmoid"])
def test_other_floats(op, kind):
    x = numbers(4, 33).astype(NUMPY_TYPES[kind])
    host, compiled = run_node(op, x)
    assert compiled is not None and compiled[0].dtype == x.dtype
    rtol = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-9}[kind]
    np.testing.assert_allclose(host[0].astype(np.float64), compiled[0].astype(np.float64), rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax_of_large_numbers(axis):
    x = numbers(3, 4, 5) * 100 + 1000
    wanted = torch.softmax(torch.from_numpy(x), axis).numpy()
    check_node("Softmax", [x], wanted, axis=axis, rtol=1e-4, atol=1e-6)


def test_softmax_of_float16_rounds_where_the_standard_does():
    x = (numbers(5, 40) * 3).astype("float16")
    grown = np.exp((x - x.max(-1, keepdims=True)).astype("float32")).astype("float16")
    total = grown.astype("float32").sum(-1, keepdims=True).astype("float16")
    wanted = (grown.astype("float32") / total.astype("float32")).astype("float16")
    for made in run_node("Softmax", x):
        assert (made[0] == wanted).mean() > 0.98, "a power on the edge between two float16 may fall to either"
        np.testing.assert_allclose(made[0], wanted, rtol=2e-3)
    flat = np.zeros((1, 70000), "float16")  # their sum is no float16
    for made in run_node("Softmax", flat):
        np.testing.assert_allclose(made[0].astype("float32"), 1 / 70000, rtol=5e-3)


def test_softmax_with_masked_elements():
    x = np.array([[0, -np.inf, 1], [-np.inf, 2, -np.inf]], np.float32)
    check_node("Softmax", [x], torch.softmax(torch.from_numpy(x), -1).numpy(), atol=1e-6)


def test_hardmax_takes_the_first_of_equals():
    x = np.array([[1, 3, 3], [-np.inf, -np.inf, -np.inf]], np.float32)
    check_node("Hardmax", [x], np.array([[0, 1, 0], [1, 0, 0]], np.float32))


@pytest.mark.parametrize("shape", [(4,), (3, 1), (2, 3, 4), (1,)])
def test_slopes_broadcast(shape):
    x, slope = numbers(2, 3, 4), numbers(*shape, seed=1)
    check_node("PRelu", [x, slope], np.where(x < 0, x * slope, x))


def test_relu_of_integers_and_nan():
    check_node("Relu", [np.array([-3, 0, 3], np.int8)], np.array([0, 0, 3], np.int8))
    assert np.isnan(run_node("Relu", np.array([np.nan], np.float32))[1][0][0])


def test_shrink_of_integers():
    check_node("Shrink", [np.array([-3, -1, 1, 3], np.int32)], np.array([-2, 0, 0, 2]), lambd=1.5, bias=1.0)


def test_axis_outside_is_an_error():
    with pytest.raises(GraphError, match="axis 5"):
        run_node("Softmax", numbers(2, 3), axis=5)


@pytest.mark.parametrize(
    ("op", "options", "wanted"),
    [
        ("ThresholdedRelu", {}, [0, 0, np.inf, 0, 0, 2]),
        ("ThresholdedRelu", {"alpha": -2.0}, [0, 0, np.inf, -1, 0, 2]),
        ("Shrink", {"lambd": 1.5}, [-np.inf, 0, np.inf, 0, 0, 2]),
        ("Shrink", {"lambd": np.inf}, [0, 0, 0, 0, 0, 0]),
    ],
)
def test_what_is_cut_off_is_zero_whatever_it_was(op, options, wanted):
    x = np.array([-np.inf, np.nan, np.inf, -1, 0, 2], np.float32)
    check_node(op, [x], np.array(wanted, np.float32), rtol=0, atol=0, **options)

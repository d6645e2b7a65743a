"""Normalizations against ONNX's cases and torch."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import check_node, numbers, run_node
from weft.compiler import compile
from weft.graph.ir import NUMPY_TYPES, GraphError
from weft.models.builder import Builder

OPERATORS = (
    "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization "
    "MeanVarianceNormalization RMSNormalization"
).split()
HOST = {"test_batchnorm_example_training_mode", "test_batchnorm_epsilon_training_mode"}


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case) == (case.name not in HOST)


@pytest.mark.parametrize("case", kernels(*OPERATORS, host=HOST))
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


def tensors(*arrays):
    return [torch.from_numpy(a) for a in arrays]


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (2, 6, 3, 4)])
def test_batch(shape):
    x, scale, bias, mean = numbers(*shape), *(numbers(6, seed=i) for i in (1, 2, 3))
    variance = np.abs(numbers(6, seed=4)) + 0.1
    wanted = functional.batch_norm(*tensors(x, mean, variance, scale, bias)).numpy()
    check_node("BatchNormalization", [x, scale, bias, mean, variance], wanted)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_and_instance(groups):
    x, scale, bias = numbers(2, 6, 3, 4) + 5, numbers(6, seed=1), numbers(6, seed=2)
    wanted = functional.group_norm(torch.from_numpy(x), groups, *tensors(scale, bias)).numpy()
    check_node("GroupNormalization", [x, scale, bias], wanted, num_groups=groups)
    if groups == 6:
        check_node("InstanceNormalization", [x, scale, bias], wanted)


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_layer(axis):
    x = numbers(2, 3, 8) + 100  # a large mean: one-pass variances lose their digits here
    inner = x.shape[axis:]
    scale, bias = numbers(*inner, seed=1), numbers(*inner, seed=2)
    wanted = functional.layer_norm(torch.from_numpy(x), inner, *tensors(scale, bias)).numpy()
    check_node("LayerNormalization", [x, scale, bias], wanted, axis=axis, rtol=1e-3, atol=1e-3)
    check_node(
        "RMSNormalization",
        [x, scale],
        functional.rms_norm(torch.from_numpy(x), inner, torch.from_numpy(scale), eps=1e-5).numpy(),
        axis=axis,
    )


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_other_floats(kind):
    x, scale = numbers(4, 64).astype(NUMPY_TYPES[kind]), numbers(64, seed=1).astype(NUMPY_TYPES[kind])
    for op, arrays in (("LayerNormalization", [x, scale]), ("RMSNormalization", [x, scale]), ("LpNormalization", [x])):
        host, compiled = run_node(op, *arrays)
        assert compiled is not None and compiled[0].dtype == x.dtype
        tolerance = {"float16": 2e-3, "bfloat16": 2e-2, "float64": 1e-9}[kind]
        np.testing.assert_allclose(
            host[0].astype(np.float64), compiled[0].astype(np.float64), rtol=tolerance, atol=tolerance
        )


def test_layer_gives_mean_and_deviation():
    x, scale = numbers(3, 16), np.ones(16, np.float32)
    made = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    check_node(
        "LayerNormalization",
        [x, scale],
        [made, x.mean(1, keepdims=True), 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)],
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response(size):
    x = numbers(2, 7, 3, 3)
    padded = np.pad(x * x, [(0, 0), ((size - 1) // 2, size // 2), (0, 0), (0, 0)])
    total = sum(padded[:, i : i + 7] for i in range(size))
    check_node("LRN", [x], x / (2 + 0.1 / size * total) ** 0.6, size=size, alpha=0.1, beta=0.6, bias=2.0)


def test_norm_of_zeros_is_zeros():
    x = np.array([[0, 0], [3, 4]], np.float32)
    check_node("LpNormalization", [x], np.array([[0, 0], [0.6, 0.8]]))
    check_node("LpNormalization", [x], np.array([[0, 0], [3 / 7, 4 / 7]]), p=1)


def test_errors():
    with pytest.raises(GraphError, match="4 groups"):
        run_node("GroupNormalization", numbers(2, 6, 3), numbers(6), numbers(6), num_groups=4)
    with pytest.raises(GraphError, match="must have the shape \\[6\\]"):
        run_node("BatchNormalization", numbers(2, 6), numbers(5), numbers(6), numbers(6), numbers(6))
    with pytest.raises(GraphError, match="known are 1, 2"):
        run_node("LpNormalization", numbers(2, 6), p=3)


@pytest.mark.parametrize(
    ("op", "shape", "options"),
    [
        ("InstanceNormalization", (1, 8, 1, 1), {}),
        ("GroupNormalization", (1, 8, 1, 1), {"num_groups": 8}),
        ("LayerNormalization", (1, 8, 1), {"axis": -1}),
    ],
)
def test_one_element_is_its_mean(op, shape, options):
    """Also where what makes it is fused into the kernel, as a product whose rounding the subtraction would show."""
    factors = numbers(*shape) * 1000
    count = 1 if op == "LayerNormalization" else 8
    b = Builder("one")
    given = b.node("Mul", b.input("x", shape), b.constant(factors))
    scale, bias = (b.constant(np.full(count, value, np.float32)) for value in (3, -2))
    module = compile(b.finish(b.node(op, given, scale, bias, **options)))
    np.testing.assert_array_equal(module(numbers(*shape, seed=1)), np.full(shape, -2, np.float32))
    spoilt = numbers(*shape, seed=1)
    spoilt[0, 3] = np.inf
    made = np.isnan(np.asarray(module(spoilt))).reshape(-1)
    assert made[3] and made.sum() == 1


def test_one_element_has_no_mean_and_variance():
    """Of products, too, which a kernel may fuse into the distance from the mean."""
    shape, b = (1, 3, 1, 1), Builder("one")
    given = b.node("Mul", b.input("x", shape), b.input("y", shape))
    module = compile(b.finish(b.node("MeanVarianceNormalization", given)))
    np.testing.assert_array_equal(module(numbers(*shape), numbers(*shape, seed=1)), np.zeros(shape, np.float32))

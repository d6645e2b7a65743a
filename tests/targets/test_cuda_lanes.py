"""Rows that a warp keeps in its registers: which kernels are rewritten so, and which are left as they are."""

from __future__ import annotations

import numpy as np
import pytest

import weft.ops  # noqa: F401  (the operators)
from weft.compiler import compile
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.loop.interpreter import interpret


def source(op, shape, out=None, dtype="float16", inputs=1, axes=None, **attributes):
    """The CUDA text of one operator, of its kernels alone."""
    given = [Value("x", TensorType(dtype, shape))]
    given += [Value(f"w{i}", TensorType(dtype, shape[-1:])) for i in range(inputs - 1)]
    made = Value("y", TensorType(dtype, out or shape))
    along = {} if axes is None else {Value("axes", TensorType("int64", (len(axes),))): np.array(axes)}
    nodes = [Node(op, [*given, *along], [made], attributes)]
    module = compile(Graph("one", given, [made], nodes, along), target="cuda:sm_90a")
    (form,) = module.specializations
    (launch,) = form.launches
    text = launch.kernel.program.source
    return text[text.index("__global__") :]


@pytest.mark.parametrize(
    ("length", "dtype"), [(96, "float16"), (768, "float16"), (1001, "float16"), (768, "float32"), (2048, "float32")]
)
def test_a_row_of_a_warp_needs_no_shared_memory(length, dtype):
    text = source("LayerNormalization", (600, length), dtype=dtype, inputs=3, axis=-1)
    assert text.count("weft_lanes_sum<32>") == 2  # of the mean, and of the squares
    assert "__shared__" not in text and "__syncthreads" not in text and "threadIdx.y" in text  # several to a block


def test_greatest_numbers_are_exchanged_too():
    text = source("Softmax", (600, 512), axis=-1)
    assert "weft_lanes_max<32>" in text and "weft_lanes_sum<32>" in text and "__syncthreads" not in text


def test_each_warp_of_a_block_has_a_row_of_its_own():
    text = source("ReduceMax", (50000, 256), (50000, 1), "float32", axes=[1], keepdims=1)
    assert "threadIdx.y" in text and "weft_lanes_max<32>" in text
    assert "__syncthreads" not in text and "tx == 0" in text  # one thread writes what all know


@pytest.mark.parametrize("rows, length", [(4, 768), (600, 6000)])
def test_few_rows_and_long_ones_are_shared_by_more_threads(rows, length):
    text = source("LayerNormalization", (rows, length), inputs=3, axis=-1)
    assert "__syncthreads" in text and "weft_lanes" not in text


def test_what_other_threads_read_stays_in_shared_memory():
    text = source("Transpose", (512, 512), dtype="float32", perm=[1, 0])
    assert "__shared__" in text and "__syncthreads" in text


def test_a_sum_that_others_read_is_made_in_the_rows_of_its_norm():
    x, r, s, y = (Value(name, TensorType("float16", (600, 768))) for name in "xrsy")
    weights = {
        Value(name, TensorType("float16", (768,))): np.full(768, n, np.float16) for n, name in enumerate("bg", 1)
    }
    nodes = [Node("Add", [x, r], [s]), Node("LayerNormalization", [s, *reversed(weights)], [y], {"axis": -1})]
    module = compile(Graph("rows", [x, r], [s, y], nodes, weights), target="cuda:sm_90a")
    (launch,) = module.specializations[0].launches
    assert len(launch.kernel.program.kernels) == 1
    assert "__shared__" not in launch.kernel.program.source
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal((600, 768)).astype(np.float16) for _ in range(2))
    total, made = (np.full((600, 768), 7, np.float16) for _ in range(2))
    interpret(launch.kernel.scheduled, first, second, *reversed(weights.values()), total, made)
    np.testing.assert_array_equal(total, first + second)
    wide = total.astype(np.float64)
    wide = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(made, 2 * wide + 1, rtol=2e-3, atol=2e-3)

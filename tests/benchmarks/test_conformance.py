"""ONNX's node cases as whole models on a device: a sample in the quick suite, all of them in the full one."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from benchmarks import conformance
from tests.codegen.c_support import opencl
from tests.ops.cases import all_cases

SAMPLE = (
    "test_argmax_default_axis_example test_basic_conv_with_padding test_compress_0 test_constantofshape_float_ones "
    "test_dropout_default test_einsum_batch_matmul test_gather_elements_0 test_if test_if_seq test_isinf test_loop11 "
    "test_loop16_seq_none test_nonmaxsuppression_two_batches test_nonzero_example test_optional_get_element_tensor "
    "test_range_int32_type_negative_delta_expanded test_reshape_allowzero_reordered test_scan_sum test_shape "
    "test_sequence_insert_at_back test_split_zero_size_splits_opset18 test_strnormalizer_nostopwords_nochangecase "
    "test_tile test_unique_sorted_without_axis"
).split()
"""Mostly what runs partly on the host: control flow, sequences, strings, sizes that only the run tells."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_case_on_opencl(name):
    opencl()
    (raw,) = (case for case in all_cases() if case.name == name)
    result = conformance.run_case(conformance.make_case(raw, "node", name), "opencl")
    assert result.outcome in ("compiled", "host"), result.reason


def test_halves_that_are_rounded_less():
    """What is nearer to float32's answer than a reference that rounds each step is right, and nothing else is."""
    (raw,) = (case for case in all_cases() if case.name == "test_attention_4d_causal_fp16_expanded")
    case = conformance.make_case(raw, "node", raw.name)
    given, (wanted,) = case.data[0]
    q, k, v = (one.astype(np.float32) for one in given)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    powers = np.exp(np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf))
    right = (powers / powers.sum(-1, keepdims=True) @ v).astype(np.float16)
    assert conformance.is_nearer([right], [wanted], given, case)
    for wrong in (right * np.float16(1.01), wanted + (wanted - right), np.full_like(wanted, np.inf)):
        assert not conformance.is_nearer([wrong], [wanted], given, case)


@pytest.mark.slow
def test_all_node_cases_on_opencl():
    """Nothing is wrong, nothing crashes, little is refused."""
    opencl()
    results = conformance.run_all(conformance.find_cases(["node"]), "opencl", seconds=600)
    counts = collections.Counter(result.outcome for result in results)
    bad = [r for r in results if r.outcome in ("wrong", "crashed", "timeout")]
    assert not bad, "\n".join(f"{r.outcome} {r.name}: {r.reason}" for r in bad)
    assert counts["refused"] <= 7 and counts["compiled"] >= 1500

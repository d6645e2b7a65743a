"""ONNX's node cases on OpenCL: every operator's tensor program under the GPU's default schedule, against its outputs.

The quick suite runs one case of each operator that has kernels; the full suite all of them.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.c_support import opencl
from tests.ops.cases import all_cases, array, compare
from tests.targets.device_graphs import run_graph
from weft.frontends.onnx import load

QUICK = (
    "Add ArgMax AveragePool Cast Concat Conv ConvTranspose CumSum Einsum Gather GatherND Gemm GroupNormalization GRU "
    "LayerNormalization LSTM MatMul MatMulInteger MaxPool Mod OneHot Pad QLinearMatMul QuantizeLinear ReduceMean Relu "
    "Resize ScatterElements ScatterND Slice Softmax Split TopK Transpose Where BitShift"
).split()
RANDOM = ("bernoulli", "random", "dropout_random", "training_dropout")
OFF_BY_ROUNDING = ("test_attention_4d_causal_fp16_expanded", "test_dft_inverse", "test_dft_inverse_opset19")
"""Also wrong on the CPU: they expect the rounding of another order of operations."""


def _is_tensor(value):
    return isinstance(array(value), np.ndarray) and array(value).dtype.kind in "biuf"


def wanted_cases():
    """The cases of dense tensors; the first of each operator of QUICK is quick."""
    quick = dict.fromkeys(QUICK)
    made = []
    for case in all_cases():
        given, expected = case.data_sets[0]
        if any(word in case.name for word in RANDOM) or case.name in OFF_BY_ROUNDING:
            continue
        if not all(_is_tensor(value) for value in (*given, *expected)):
            continue
        if case.model.graph.node[0].domain == "ai.onnx.preview.training":
            continue
        operator = case.model.graph.node[0].op_type
        first = operator in quick and len(case.model.graph.node) == 1 and "_expanded" not in case.name
        if first:
            del quick[operator]
        made.append(pytest.param(case, id=case.name, marks=[] if first else [pytest.mark.slow]))
    assert not quick, f"no case of {list(quick)}"
    return made


@pytest.mark.parametrize("case", wanted_cases())
def test_case_on_opencl(case):
    graph = load(case.model)
    given, expected = case.data_sets[0]
    done = run_graph(graph, [np.asarray(array(value)) for value in given], opencl())
    for got, wanted in zip(done.outputs, expected):
        compare(case.name, got, array(wanted), case)

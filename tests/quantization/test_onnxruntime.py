"""Models that ONNX Runtime quantized, in both of its forms, give what ONNX Runtime gives for them."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.compiler.graphs import convnet
from weft.cli.to_onnx import to_onnx
from weft.models.builder import Builder

onnxruntime = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")


def dense():
    b = Builder("dense")
    x = b.relu(b.linear(b.input("image", (6, 24)), 24, 40))
    return b.finish(b.linear(b.node("Tanh", b.dense(x, 40, 30)), 30, 8))


class Reader(quantization.CalibrationDataReader):
    """Three random inputs."""

    def __init__(self, shape):
        random = np.random.default_rng(1)
        self.left = [{"image": random.standard_normal(shape).astype(np.float32)} for _ in range(3)]

    def get_next(self):
        return self.left.pop() if self.left else None


def expected(path, given):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, given)[0]


@pytest.mark.thin(2)
@pytest.mark.parametrize("make", [convnet, dense])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize(
    "data,weight,each", [("QUInt8", "QInt8", True), ("QInt8", "QInt8", False), ("QUInt8", "QUInt8", False)]
)
def test_a_model_that_onnxruntime_quantized(make, form, data, weight, each, tmp_path):
    graph = make()
    source, path = tmp_path / "m.onnx", tmp_path / "q.onnx"
    source.write_bytes(to_onnx(graph).SerializeToString())
    kinds, forms = quantization.QuantType, quantization.QuantFormat
    quantization.quantize_static(
        source, path, Reader(graph.inputs[0].tensor.static), quant_format=forms[form], per_channel=each,
        activation_type=kinds[data], weight_type=kinds[weight],
    )  # fmt: skip
    given = {"image": np.random.default_rng(9).standard_normal(graph.inputs[0].tensor.static).astype(np.float32)}
    wanted = expected(path, given)
    module = weft.compile(path)
    found = module.run(None, given)[0]
    # A step of the last quantization, here and there two, is what rounding may move.
    assert np.abs(found - wanted).max() <= 0.02 * np.abs(wanted).max()
    nodes = [node.op for node in module.specializations[0].graph.nodes]
    assert nodes.count("Conv") == 0 and any(op in ("ConvInteger", "MatMulInteger") for op in nodes)

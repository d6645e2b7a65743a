"""A small ONNX file with a named size, for the tests of the command line."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_tiny(path):
    """relu(x w + b), softmax of it; x is float32[N, 4]."""
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((4, 3), "float32"), "b": random.standard_normal(3, "float32")}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="first"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="second"),
        helper.make_node("Relu", ["sum"], ["positive"], name="third"),
        helper.make_node("Softmax", ["positive"], ["y"], name="fourth", axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return weights


def tiny_meaning(x, weights):
    """What the file computes, by numpy."""
    positive = np.maximum(x @ weights["w"] + weights["b"], 0)
    raised = np.exp(positive - positive.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)

"""A graph as an ONNX model: built-in models for those who read ONNX, such as ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.core.version import VERSION
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value, dtype_name

OPSET = 22
"""Old enough for runtimes in the field, new enough for every operator of the built-in models."""

IR_VERSION = 10

_ELEMENTS = {
    "float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16", "bfloat16": "BFLOAT16", "bool": "BOOL",
    "string": "STRING", "float8_e4m3fn": "FLOAT8E4M3FN", "float8_e5m2": "FLOAT8E5M2",
    **{name: name.upper() for name in "int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()},
}  # fmt: skip


def to_onnx(graph: Graph) -> Any:
    """The model; values keep their names."""
    from onnx import helper

    made = helper.make_graph(
        [_node(node) for node in graph.nodes],
        graph.name,
        [_value(value) for value in graph.inputs],
        [_value(value) for value in graph.outputs],
        [_tensor(value.name, array) for value, array in graph.constants.items()],
    )
    domains = {"": OPSET, **{node.domain: 1 for node in graph.nodes if node.domain}}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    return helper.make_model(
        made, producer_name="weft", producer_version=VERSION, opset_imports=opsets, ir_version=IR_VERSION
    )


def _node(node: Node) -> Any:
    from onnx import helper

    if node.graphs:
        raise GraphError(f"{node.describe()}: control flow cannot be written as ONNX")
    inputs = ["" if value is None else value.name for value in node.inputs]
    attributes = {
        key: _tensor(key, value) if isinstance(value, np.ndarray) else value for key, value in node.attributes.items()
    }
    outputs = [value.name for value in node.outputs]
    return helper.make_node(node.op, inputs, outputs, name=node.name, domain=node.domain, **attributes)


def _element(dtype: str) -> int:
    import onnx

    if dtype not in _ELEMENTS:
        raise GraphError(f"elements of {dtype} cannot be written as ONNX")
    return int(getattr(onnx.TensorProto, _ELEMENTS[dtype]))


def _value(value: Value) -> Any:
    from onnx import helper

    kind = value.type
    if not isinstance(kind, TensorType):
        raise GraphError(f"the value {value.name} is no tensor: it cannot be written as ONNX")
    shape = None if kind.shape is None else [dim if isinstance(dim, int) else str(dim) for dim in kind.shape]
    return helper.make_tensor_value_info(value.name, _element(kind.dtype), shape)


def _tensor(name: str, array: Any) -> Any:
    from onnx import helper

    element = _element(dtype_name(array.dtype))
    if array.dtype == object:
        return helper.make_tensor(name, element, array.shape, [str(one).encode() for one in array.reshape(-1)])
    return helper.make_tensor(name, element, array.shape, np.ascontiguousarray(array).tobytes(), raw=True)

"""Small ONNX models for the importer's tests, built with the onnx package."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = ("x", FLOAT, [2, 3])


def info(name: str, kind: int = FLOAT, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Any,
    inputs: Any = (X,),
    outputs: Any = ("y",),
    opset: int = 28,
    constants: dict[str, Any] | None = None,
    functions: Any = (),
    domains: dict[str, int] | None = None,
    **fields: Any,
) -> Any:
    """A model; constants are arrays or TensorProtos by name."""
    tensors = [
        array if isinstance(array, TensorProto) else numpy_helper.from_array(np.asarray(array), name)
        for name, array in (constants or {}).items()
    ]
    graph = helper.make_graph(
        list(nodes),
        "tested",
        [info(*one) for one in inputs],
        [info(name) for name in outputs],
        tensors,
        **fields,
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    """A node; names are separated by spaces, and a dash stands for one left out."""
    names = ["" if one == "-" else one for one in inputs.split()]
    made = ["" if one == "-" else one for one in outputs.split()]
    return helper.make_node(op, names, made, **attributes)


def classifier() -> Any:
    """A little network of several operators."""
    rng = np.random.default_rng(0)
    constants = {
        "kernel": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "scale": np.ones(4, np.float32),
        "shift": np.zeros(4, np.float32),
        "weights": rng.normal(size=(4, 5)).astype(np.float32),
    }
    nodes = [
        node("Conv", "image kernel", "a", name="conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", "a scale shift shift scale", "b", name="norm"),
        node("Relu", "b", "c", name="relu"),
        node("GlobalAveragePool", "c", "d", name="pool"),
        node("Flatten", "d", "e", name="flatten"),
        node("Gemm", "e weights", "f", name="dense"),
        node("Softmax", "f", "y", name="softmax", axis=-1),
    ]
    return model(nodes, [("image", FLOAT, ["batch", 3, 8, 8])], constants=constants)


def branching() -> Any:
    """An If inside a function, a Loop, and names of outer graphs."""
    then = helper.make_graph([node("Add", "p p", "r")], "then", [], [info("r")])
    other = helper.make_graph([node("Neg", "p", "r")], "else", [], [info("r")])
    choose = helper.make_function(
        "local", "Choose", ["c", "p"], ["q"],
        [helper.make_node("If", ["c"], ["q"], then_branch=then, else_branch=other)],
        [helper.make_opsetid("", 28)],
    )  # fmt: skip
    body = helper.make_graph(
        [node("Identity", "go", "still"), node("Add", "acc x", "next")],
        "body",
        [info("i", INT64, []), info("go", BOOL, []), info("acc")],
        [info("still", BOOL, []), info("next")],
    )
    nodes = [
        helper.make_node("Choose", ["flag", "x"], ["z"], domain="local", name="call"),
        helper.make_node("Loop", ["count", "", "z"], ["y"], body=body, name="loop"),
    ]
    inputs = [X, ("flag", BOOL, []), ("count", INT64, [])]
    return model(nodes, inputs, functions=[choose], domains={"local": 1})

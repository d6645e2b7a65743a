"""Other implementations of ONNX: ONNX Runtime, and ONNX's own reference. None where they do not take a model."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from tests.fuzz.driver import peer


@functools.cache
def newest() -> int:
    """The newest operator set that ONNX Runtime takes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "probe", value[:1], value[1:])
    for version in range(onnx.defs.onnx_opset_version(), 1, -1):
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)], ir_version=10)
        try:
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:  # every way of refusing is one
            continue
        return version
    raise RuntimeError("ONNX Runtime takes no operator set")


def _older(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model for an operator set that ONNX Runtime takes; None where an operator changed since."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.ir_version = min(made.ir_version, 11)
    for entry in made.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest():
            for node in made.graph.node:
                try:
                    schema = onnx.defs.get_schema(node.op_type, entry.version, "")
                except onnx.defs.SchemaError:
                    continue
                if schema.since_version > newest():
                    return None
            entry.version = newest()
    return made


def onnxruntime_answer(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any] | None:
    """What ONNX Runtime computes, without its optimisations; None where it refuses."""
    import onnxruntime as ort

    older = _older(model)
    if older is None or not all(_plain(array) for array in feeds.values()):
        return None
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with peer():
        try:
            session = ort.InferenceSession(older.SerializeToString(), options, providers=["CPUExecutionProvider"])
            known = {value.name for value in session.get_inputs()}
            made: list[Any] = session.run(None, {name: array for name, array in feeds.items() if name in known})
            return made
        except Exception:  # every way of refusing is one
            return None


def _plain(array: Any) -> bool:
    return isinstance(array, np.ndarray) and (array.dtype.kind in "biufc" and array.dtype.name != "bfloat16")


def reference_answer(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any] | None:
    """What ONNX's own reference computes; None where it refuses."""
    from onnx.reference import ReferenceEvaluator

    with peer(), np.errstate(all="ignore"):
        try:
            return list(ReferenceEvaluator(model).run(None, dict(feeds)))
        except Exception:  # every way of refusing is one
            return None

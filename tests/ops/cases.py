"""ONNX's own node tests as data: single-node cases run through an operator's infer, evaluate and compute.

`cases("Relu", "Add")` lists the cases whose only node is one of these operators; `check_case(case)` runs one and returns
whether a compiled kernel was checked too.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

import weft
import weft.ops  # noqa: F401  (fills the table of operators)
from weft import te
from weft.graph.ir import Node, SequenceType, TensorType, Value, dtype_name
from weft.graph.opspec import Compute, Infer, find_operator


@functools.cache
def all_cases() -> tuple[Any, ...]:
    """Every node case of the installed onnx package."""
    from onnx.backend.test.case.node import collect_testcases

    return tuple(collect_testcases(None))


def cases(*operators: str, domain: str = "") -> list[Any]:
    """The cases that consist of one node of these operators."""
    found = []
    for case in all_cases():
        nodes = case.model.graph.node
        if len(nodes) == 1 and nodes[0].op_type in operators and nodes[0].domain in (domain, "ai.onnx"):
            found.append(case)
    return found


def attribute(a: Any) -> Any:
    """An attribute as plain Python."""
    value = onnx.helper.get_attribute_value(a)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if a.type == onnx.AttributeProto.STRINGS:
        return [v.decode() for v in value]
    if a.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return list(value)
    return value


def array(value: Any) -> Any:
    """Test data as arrays (lists of arrays for sequences)."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, list):
        return [array(v) for v in value]
    return value if value is None else np.asarray(value)


def type_of(value: Any) -> Any:
    """The graph type of test data."""
    if isinstance(value, list):
        return SequenceType(type_of(value[0]) if value else TensorType("float32", None))
    return TensorType(dtype_name(value.dtype), value.shape)


def make_node(case: Any) -> Node:
    """The case's node in our IR. (Only for models at the newest version of their operator.)"""
    proto = case.model.graph.node[0]
    inputs = [Value(name) if name else None for name in proto.input]
    outputs = [Value(name) for name in proto.output]
    return Node(proto.op_type, inputs, outputs, {a.name: attribute(a) for a in proto.attribute}, proto.name, case.name)


def check_case(case: Any) -> bool:
    """Runs one case; True where a kernel was compiled and checked too."""
    compiled = False
    for given, wanted in case.data_sets:
        node = make_node(case)
        names = [v.name for v in case.model.graph.input]
        feeds = dict(zip(names, (array(v) for v in given)))
        arrays = [None if v is None else feeds[v.name] for v in node.inputs]
        spec = find_operator(node.op)
        assert spec is not None, f"no operator {node.op}"
        expected = {v.name: array(w) for v, w in zip(case.model.graph.output, wanted)}
        types = [None if a is None else type_of(a) for a in arrays]
        inferred = spec.infer(Infer(node, types, arrays))
        made = spec.run(node, arrays)
        for value, got, kind in zip(node.outputs, made, inferred):
            if value.name in expected:
                compare(case.name, got, expected[value.name], case)
                if isinstance(kind, TensorType) and isinstance(got, np.ndarray):
                    assert dtype_name(got.dtype) == kind.dtype, (got.dtype, kind)
                    if kind.is_static:
                        assert got.shape == kind.static, (got.shape, kind)
        compiled |= check_compute(case, node, spec, arrays, types, inferred, expected)
    return compiled


def check_compute(case: Any, node: Node, spec: Any, arrays: Any, types: Any, inferred: Any, expected: Any) -> bool:
    """Compiles the operator's tensor expression with the plain schedule and compares; False where there is none."""
    tensor_types = [t for t in (*types, *inferred) if t is not None]
    if spec.compute is None or not all(isinstance(t, TensorType) and t.is_static and t.core for t in tensor_types):
        return False
    tensors = [
        None if a is None or i in spec.shape_inputs else te.placeholder(t.static, t.core, name=f"in{i}")
        for i, (a, t) in enumerate(zip(arrays, types))
    ]
    made = spec.compute(Compute(node, types, inferred, arrays), *tensors)
    if made is None:
        return False
    outputs = list(made) if isinstance(made, tuple) else [made]
    schedule = te.create_schedule([o.op for o in outputs if isinstance(o.op, te.Tensor) or o.op.inputs is not None])
    used = [b for b in schedule.func.buffers if b in tensors]
    function = weft.build(schedule, [*used, *dict.fromkeys(outputs)])
    buffers = {t: a for t, a in zip(tensors, arrays) if t is not None}
    results = {o: np.zeros(k.static, k.numpy) for o, k in zip(outputs, inferred)}
    function(*[np.array(buffers[b], order="C") for b in used], *results.values())
    for value, out in zip(node.outputs, outputs):
        if value.name in expected:
            compare(f"{case.name} (compiled)", results[out], expected[value.name], case)
    return True


def compare(name: str, got: Any, wanted: Any, case: Any) -> None:
    """Exactly equal for integers, bool and strings; within the case's tolerance for floats."""
    if isinstance(wanted, list):
        assert isinstance(got, list) and len(got) == len(wanted), name
        for a, b in zip(got, wanted):
            compare(name, a, b, case)
        return
    assert np.shape(got) == np.shape(wanted), (name, np.shape(got), np.shape(wanted))
    if wanted.dtype.kind in "OUS" or wanted.dtype.kind in "biu":
        assert (np.asarray(got) == wanted).all(), name
        return
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    loose = wanted.dtype in (np.float16, ml_dtypes.bfloat16)
    rtol, atol = max(case.rtol or 1e-3, 1e-2 if loose else 0), max(case.atol or 1e-7, 1e-3 if loose else 1e-6)
    np.testing.assert_allclose(np.asarray(got).astype(wide), wanted.astype(wide), rtol=rtol, atol=atol, err_msg=name)

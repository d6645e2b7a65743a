"""ONNX's own node tests as data: single-node cases run through an operator's infer, evaluate and compute.

`cases("Relu", "Add")` lists the cases whose only node is one of these operators; `check_case(case)` runs one and
returns whether a compiled kernel was checked too. `check_meaning(case)` compiles nothing; `kernels("Relu", "Add")` are
the cases to compile, those beyond the first few of an operator marked as slow.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Container
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import weft
import weft.ops  # noqa: F401  (fills the table of operators)
from tests.ops.nodes import run_expanded
from weft import te
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Node, SequenceType, TensorType, Value, dtype_name
from weft.graph.opspec import Compute, Infer, find_operator
from weft.ops.tensors import tensors_of


@functools.cache
def all_cases() -> tuple[Any, ...]:
    """Every node case of the installed onnx package."""
    from onnx.backend.test.case.node import collect_testcases

    with np.errstate(all="ignore"):  # onnx computes what it expects, overflows and divisions by zero included
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
    if any(a.type == onnx.AttributeProto.GRAPH for a in proto.attribute):
        return load(case.model).nodes[0]
    inputs = [Value(name) if name else None for name in proto.input]
    outputs = [Value(name) for name in proto.output]
    attributes = {a.name: attribute(a) for a in proto.attribute}
    return Node(proto.op_type, inputs, outputs, attributes, proto.name, case.name, proto.domain)


class Run:
    """One data set of a case: the node, its operator, its arrays and types, and the outputs that are expected.

    With `constants` every input counts as known; without, only those whose values decide shapes.
    """

    def __init__(self, case: Any, given: Any, wanted: Any, constants: bool = True) -> None:
        self.case = case
        self.node = make_node(case)
        names = [v.name for v in case.model.graph.input]
        feeds = dict(zip(names, (array(v) for v in given)))
        self.arrays = [None if v is None else feeds[v.name] for v in self.node.inputs]
        found = find_operator(self.node.op, self.node.domain)
        assert found is not None, f"no operator {self.node.op}"
        self.spec = found
        self.expected = {v.name: array(w) for v, w in zip(case.model.graph.output, wanted)}
        self.types = [None if a is None else type_of(a) for a in self.arrays]
        self.values = [a if constants or i in self.spec.shape_inputs else None for i, a in enumerate(self.arrays)]
        self.inferred = self.spec.types(Infer(self.node, self.types, self.values))

    @property
    def is_expanded(self) -> bool:
        """Whether the operator is made of others, and has no tensor expression of its own."""
        return self.spec.compute is None and self.spec.expand is not None

    def check_meaning(self) -> None:
        """The numpy meaning gives what is expected, in the type that was inferred."""
        made = self.spec.run(self.node, self.arrays, interpret_graph)
        for value, got, kind in zip(self.node.outputs, made, self.inferred):
            if value.name in self.expected:
                compare(self.case.name, got, self.expected[value.name], self.case)
                if isinstance(kind, TensorType) and isinstance(got, np.ndarray):
                    assert dtype_name(got.dtype) == kind.dtype, (got.dtype, kind)
                    if kind.is_static:
                        assert got.shape == kind.static, (got.shape, kind)

    def expression(self) -> tuple[list[Any], list[Any]] | None:
        """Placeholders and outputs of the tensor expression; None where this use has none."""
        types = [t for t in (*self.types, *self.inferred) if t is not None]
        if self.spec.compute is None or not all(isinstance(t, TensorType) and t.is_static and t.core for t in types):
            return None
        tensors = [
            None if a is None or i in self.spec.shape_inputs else te.placeholder(t.static, t.core, name=f"in{i}")
            for i, (a, t) in enumerate(zip(self.arrays, self.types))
        ]
        made = tensors_of(self.spec, Compute(self.node, self.types, self.inferred, self.values), tensors)
        return None if made is None else (tensors, made)

    def check_kernel(self) -> bool:
        """Compiles the tensor expression with the plain schedule and compares; False where there is none."""
        if self.is_expanded:
            return self.check_expansion()
        expression = self.expression()
        if expression is None:
            return False
        tensors, outputs = expression
        for out, kind in zip(outputs, self.inferred):
            assert str(out.dtype) == kind.dtype, (out.dtype, kind)
        schedule = te.create_schedule([o.op for o in outputs])
        used = [b for b in schedule.func.buffers if b in tensors]
        function = weft.build(schedule, [*used, *dict.fromkeys(outputs)])
        buffers = {t: a for t, a in zip(tensors, self.arrays) if t is not None}
        results = {o: np.zeros(k.static, k.numpy) for o, k in zip(outputs, self.inferred)}
        function(*[np.array(buffers[b], order="C") for b in used], *results.values())
        for value, out in zip(self.node.outputs, outputs):
            if value.name in self.expected:
                compare(f"{self.case.name} (compiled)", results[out], self.expected[value.name], self.case)
        return True

    def check_expansion(self) -> bool:
        """Compiles what the node is made of and compares; False where some of it runs on the host."""
        known = [a if at in self.spec.shape_inputs else None for at, a in enumerate(self.arrays)]
        results = run_expanded(self.node, self.arrays, self.types, known)
        for value, got in zip(self.node.outputs, results or ()):
            if value.name in self.expected:
                compare(f"{self.case.name} (compiled)", got, self.expected[value.name], self.case)
        return results is not None


def runs(case: Any, constants: bool = True) -> list[Run]:
    """The data sets of a case."""
    return [Run(case, given, wanted, constants) for given, wanted in case.data_sets]


def check_case(case: Any, constants: bool = True) -> bool:
    """Runs one case; True where a kernel was compiled and checked too."""
    compiled = False
    for run in runs(case, constants):
        run.check_meaning()
        compiled |= run.check_kernel()
    return compiled


def check_meaning(case: Any) -> bool:
    """Runs one case by its numpy meaning only; whether it has a kernel, which is not compiled."""
    has_kernel = False
    for run in runs(case, constants=False):
        run.check_meaning()
        has_kernel |= run.check_kernel() if run.is_expanded else run.expression() is not None
    return has_kernel


def kernels(*operators: str, quick: int = 1, host: Container[str] = (), domain: str = "") -> list[Any]:
    """The cases of operators as parameters of a test: all but the first few that have a kernel are slow."""
    seen: Counter[str] = Counter()
    made = []
    for case in cases(*operators, domain=domain):
        if case.name not in host:
            op = case.model.graph.node[0].op_type
            seen[op] += 1
            made.append(pytest.param(case, id=case.name, marks=[pytest.mark.slow] if seen[op] > quick else []))
    return made


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

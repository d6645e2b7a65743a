"""ONNX's cases with one input changed: an operator refuses by name, or gives what it inferred; nothing else happens."""

import random

import numpy as np
import pytest

from tests.ops.cases import cases, runs, type_of
from weft import te
from weft.expr.nodes import int_value
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import GraphError, TensorType, Value, dtype_name
from weft.graph.opspec import Compute, Infer

OPERATORS = """
    Add ArgMax Attention BatchNormalization BitShift Cast CastLike Clip CumSum DequantizeLinear Div Dropout
    DynamicQuantizeLinear Equal EyeLike Gelu GroupNormalization HannWindow Identity InstanceNormalization LRN
    LayerNormalization LinearAttention LogSoftmax LpNormalization Max MeanVarianceNormalization MelWeightMatrix
    NegativeLogLikelihoodLoss PRelu Pow QuantizeLinear RMSNormalization Range ReduceL2 ReduceLogSumExp ReduceMean
    RotaryEmbedding SoftmaxCrossEntropyLoss SwiGLU TensorScatter Where Xor
""".split()


def changed(arrays, chance):
    """The arrays with one of another shape, of another type, missing, or cut off with all that follow."""
    arrays = list(arrays)
    at = chance.randrange(len(arrays))
    what, old = chance.choice(["shape", "type", "missing", "cut"]), arrays[at]
    if what == "cut":
        return arrays[:at]
    if what == "missing" or not isinstance(old, np.ndarray):
        arrays[at] = None
    elif what == "shape":
        shape = [chance.choice([0, 1, 2, 3, 4]) for _ in range(chance.randrange(5))]
        arrays[at] = np.resize(old, shape) if old.size else np.zeros(shape, old.dtype)
    elif old.dtype.kind in "fiub":
        with np.errstate(invalid="ignore"):
            arrays[at] = old.astype(chance.choice(["float32", "int64", "bool", "int8", "float64"]))
    return arrays


def check(run, node, arrays, types):
    inferred = run.spec.types(Infer(node, types, arrays))
    for got, kind in zip(run.spec.run(node, arrays, interpret_graph), inferred):
        if isinstance(kind, TensorType) and isinstance(got, np.ndarray):
            assert dtype_name(got.dtype) == kind.dtype, (got.dtype, kind)
            assert not kind.is_static or got.shape == kind.static, (got.shape, kind)
    if run.spec.compute is None or not all(isinstance(t, TensorType) and t.core for t in types if t is not None):
        return
    if not all(isinstance(t, TensorType) and t.is_static for t in inferred):
        return
    tensors = [
        None if t is None or i in run.spec.shape_inputs else te.placeholder(t.static, t.core)
        for i, t in enumerate(types)
    ]
    made = run.spec.tensors(Compute(node, types, inferred, arrays), tensors)
    for out, kind in zip(made or (), inferred):
        assert str(out.dtype) == kind.dtype and tuple(int_value(s) for s in out.shape) == kind.static


@pytest.mark.parametrize("op", OPERATORS)
def test_changed_input(op):
    chance = random.Random(op)
    choices = cases(op)
    for _ in range(20):
        run = runs(chance.choice(choices))[0]
        arrays = changed(run.arrays, chance)
        types = [None if a is None else type_of(a) for a in arrays]
        node = run.node.replace(inputs=[None if a is None else Value(f"in{i}") for i, a in enumerate(arrays)])
        try:
            check(run, node, arrays, types)
        except GraphError as error:
            assert op in str(error)
        try:
            run.spec.types(Infer(node, types, [None] * len(arrays)))
            unranked = [TensorType(t.dtype, None) if isinstance(t, TensorType) else t for t in types]
            run.spec.types(Infer(node, unranked, [None] * len(arrays)))
        except GraphError as error:
            assert op in str(error)

"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: classes along axis 1, labels without that axis."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.ir import TensorType, Type, Value
from weft.graph.opspec import Infer
from weft.graph.signature import OneOf
from weft.ops.elementwise_support import wide_type
from weft.ops.expansion import Builder, compose

_REDUCTION = (OneOf("reduction", ("none", "sum", "mean")),)


def _infer(c: Infer) -> Sequence[Type]:
    kind, labels = c.tensor(0), c.tensor(1)
    shape = labels.shape if c.get("reduction", "mean") == "none" else ()
    return [TensorType(kind.dtype, shape), kind][: c.output_count]


def _loss(b: Builder, logs: Value, labels: Value, weight: Value | None) -> Value:
    kind, classes, labels = logs.tensor.dtype, b.known(logs.tensor.dims[1]), b.cast(labels, "int64")
    nothing, axis = b.constant(0, kind), b.constant([1], "int64")
    ignored, skipped = b.get("ignore_index"), None
    if ignored is not None:
        skipped = b("Equal", labels, b.constant(ignored, "int64"))
        labels = b("Where", skipped, b.constant(0, "int64"), labels)
    # Indices may be negative, and labels may not: those are made to lie outside, too.
    negative = b("Less", labels, b.constant(0, "int64"))
    places = b("Where", negative, b.constant(classes, "int64"), labels)
    chosen = b("Squeeze", b("GatherElements", logs, b("Unsqueeze", places, axis), axis=1), axis)
    share = b.constant(1, kind) if weight is None else b("Gather", b.cast(weight, kind), places)
    loss = b("Mul", b("Neg", chosen), share)
    if skipped is not None:
        share, loss = (b("Where", skipped, nothing, one) for one in (share, loss))
    how = b.get("reduction", "mean")
    if how == "none":
        return loss
    if how == "mean" and not share.tensor.rank:
        return b("ReduceMean", loss, keepdims=0)
    total = b("ReduceSum", loss, keepdims=0)
    return total if how == "sum" else b("Div", total, b("ReduceSum", share, keepdims=0))


def _negative_log(b: Builder, x: Value, labels: Value, weight: Value | None = None) -> Value:
    logs = b.cast(x, wide_type(x.tensor.dtype))
    return b.cast(_loss(b, logs, labels, weight), x.tensor.dtype)


def _cross_entropy(b: Builder, x: Value, labels: Value, weight: Value | None = None) -> list[Value]:
    logs = b("LogSoftmax", b.cast(x, wide_type(x.tensor.dtype)), axis=1)
    return [b.cast(value, x.tensor.dtype) for value in (_loss(b, logs, labels, weight), logs)]


for _name, _body, _first in (
    ("NegativeLogLikelihoodLoss", _negative_log, "input:float[n c *d], target"),
    ("SoftmaxCrossEntropyLoss", _cross_entropy, "scores:float[n c *d], labels"),
):
    compose(_name, _body, infer=_infer, takes=f"{_first}:index[n *d], weights:float[c]?", requires=_REDUCTION)

"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: classes along axis 1, labels without that axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, index_expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.signature import OneOf
from weft.ops.activations_softmax import log_softmax_array, log_softmax_tensor
from weft.ops.elementwise_support import wide, wide_type, widen
from weft.ops.reductions_support import reduce_axes

_REDUCTION = (OneOf("reduction", ("none", "sum", "mean")),)


def _infer(c: Infer) -> Sequence[Type]:
    kind, labels = c.tensor(0), c.tensor(1)
    shape = labels.shape if c.get("reduction", "mean") == "none" else ()
    return [TensorType(kind.dtype, shape), kind][: c.output_count]


def _loss(c: Use, logs: Array, labels: Array, weight: Array | None) -> Array:
    ignored = c.get("ignore_index")
    counts = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    safe = np.where(counts, labels, 0)
    if ((safe < 0) | (safe >= logs.shape[1])).any():
        raise c.error(f"a label lies outside the {logs.shape[1]} classes")
    chosen = np.take_along_axis(logs, np.expand_dims(safe, 1), axis=1).squeeze(1)
    shares = counts.astype(logs.dtype) * (1 if weight is None else wide(weight)[safe])
    loss = np.where(counts, -chosen * shares, 0)
    if c.get("reduction", "mean") == "none":
        return np.asarray(loss)
    total = loss.sum()
    return np.asarray(total if c.get("reduction", "mean") == "sum" else total / shares.sum())


def _negative_log(c: Evaluate, x: Array, labels: Array, weight: Array | None = None) -> Array:
    return _loss(c, wide(x), labels, weight).astype(x.dtype)


def _cross_entropy(c: Evaluate, x: Array, labels: Array, weight: Array | None = None) -> Any:
    logs = log_softmax_array(wide(x), 1)
    return (_loss(c, logs, labels, weight).astype(x.dtype), logs.astype(x.dtype))[: c.output_count]


def _compute_loss(c: Compute, logs: te.Tensor, labels: te.Tensor, weight: te.Tensor | None) -> te.Tensor:
    shape, kind, ignored = c.shape(1), wide_type(c.outputs[0].dtype), c.get("ignore_index")

    def unless_ignored(i: Sequence[Any], amount: Expr) -> Expr:
        if ignored is None:
            return amount
        return te.select(te.equal(labels[tuple(i)], te.const(ignored, labels.dtype)), te.const(0, kind), amount)

    def weight_of(i: Sequence[Any]) -> Expr:
        return te.const(1, kind) if weight is None else widen(weight[index_expr(labels[tuple(i)])])

    def share(*i: Any) -> Expr:
        return unless_ignored(i, weight_of(i))

    def loss(*i: Any) -> Expr:
        return unless_ignored(i, -widen(logs[(i[0], index_expr(labels[i]), *i[1:])]) * weight_of(i))

    made: te.Tensor
    if c.get("reduction", "mean") == "none":
        made = te.compute(shape, loss, name="loss", dtype=c.outputs[0].dtype)
        return made
    axes = range(len(shape))
    total = reduce_axes(te.compute(shape, loss, name="losses"), axes, te.sum, name="loss_sum")
    if c.get("reduction", "mean") == "sum":
        made = te.compute((), lambda: total[()], name="loss", dtype=c.outputs[0].dtype)
        return made
    weights = reduce_axes(te.compute(shape, share, name="shares"), axes, te.sum, name="share_sum")
    made = te.compute((), lambda: total[()] / weights[()], name="loss", dtype=c.outputs[0].dtype)
    return made


def _compute_negative_log(c: Compute, x: te.Tensor, labels: te.Tensor, weight: te.Tensor | None = None) -> te.Tensor:
    return _compute_loss(c, x, labels, weight)


def _compute_cross_entropy(c: Compute, x: te.Tensor, labels: te.Tensor, weight: te.Tensor | None = None) -> Any:
    logs = log_softmax_tensor(x, 1, wide_type(x.dtype.name))
    loss = _compute_loss(c, logs, labels, weight)
    if len(c.outputs) == 1:
        return loss
    return loss, te.compute(c.out_shape(1), lambda *i: logs[i], name="log_probability", dtype=x.dtype)


def _kind(node: Any) -> str:
    return "reduction" if len(node.outputs) == 1 else "opaque"


for _name, _evaluate, _compute, _takes in (
    ("NegativeLogLikelihoodLoss", _negative_log, _compute_negative_log, "input:float[n c *d], target:index[n *d]"),
    ("SoftmaxCrossEntropyLoss", _cross_entropy, _compute_cross_entropy, "scores:float[n c *d], labels:index[n *d]"),
):
    _takes = f"{_takes}, weights:float[c]?"
    register(_name, _infer, _evaluate, _compute, _kind, takes=_takes, requires=_REDUCTION)

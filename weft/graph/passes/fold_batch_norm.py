"""Folds what scales and shifts channels into the weights before it.

    %c = Conv(%x, const w, const b)
    %y = BatchNormalization(%c, const …)          ->   %y = Conv(%x, const w', const b')
    %y = Add(Mul(%c, const per channel), const per channel)   the same

    %y = BatchNormalization(%x, const …)          ->   %y = Add(Mul(%x, const), const)

Works for Conv, ConvTranspose, Gemm and MatMul with constant weights whose result nothing else reads. New weights are
computed in double precision. In training mode a batch normalisation stays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.passes.support import Replacement, Rule, Scope, swap, until_stable


class _Affine(NamedTuple):
    """x * scale + shift for every channel (axis 1), in double precision."""

    source: Value
    scale: Array
    shift: Array


def fold_batch_norm(graph: Graph) -> Graph:
    """The graph with batch normalisations folded; the same object where there is nothing to do."""
    return until_stable(graph, _rule)


def _rule(node: Node, scope: Scope) -> Replacement:
    rule = scope.rule = _RULES.get(node.op) if not node.domain else None
    return None if rule is None else rule(node, scope)


def _batch_norm(node: Node, scope: Scope) -> Replacement:
    affine = _parameters(node, scope)
    if affine is None:
        return None
    folded = _into_weights(node, affine, scope)
    if folded is not None:
        return folded
    kind = affine.source.tensor
    if kind.dtype not in ("float32", "float64"):
        return None  # between the two steps a narrow type would round
    shape = (-1, *[1] * (kind.rank - 2)) if kind.rank > 1 else (-1,)
    name = node.outputs[0].name
    scale = scope.new_constant(affine.scale.astype(kind.numpy).reshape(shape), f"{name}_scale")
    shift = scope.new_constant(affine.shift.astype(kind.numpy).reshape(shape), f"{name}_shift")
    return swap(node, "Add", [scope.make(node, "Mul", [affine.source, scale]), shift])


def _parameters(node: Node, scope: Scope) -> _Affine | None:
    source = node.inputs[0]
    arrays = [scope.constant(v) for v in node.inputs[1:5]]
    given = [a.astype(np.float64) for a in arrays if a is not None]
    if node.attributes.get("training_mode", 0) or len(node.outputs) != 1 or len(given) != 4:
        return None
    if source is None or not isinstance(source.type, TensorType) or source.type.shape is None:
        return None
    scale, bias, mean, variance = given
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    if not np.isfinite(factor).all():
        return None
    return _Affine(source, factor, bias - mean * factor)


def _scaled(node: Node, scope: Scope) -> Replacement:
    """Mul by a constant per channel after weights."""
    found = _per_channel(node, scope)
    return None if found is None else _into_weights(node, _Affine(found[0], found[1], np.zeros_like(found[1])), scope)


def _shifted(node: Node, scope: Scope) -> Replacement:
    """Add of a constant per channel after weights."""
    found = _per_channel(node, scope)
    return None if found is None else _into_weights(node, _Affine(found[0], np.ones_like(found[1]), found[1]), scope)


def _per_channel(node: Node, scope: Scope) -> tuple[Value, Array] | None:
    """A value, and the constant it meets as one number for each channel."""
    source, other = node.inputs[:2]
    array = scope.constant(other)
    maker = scope.single(source, "Conv", "ConvTranspose")
    if maker is None or array is None or source is None or not isinstance(source.type, TensorType):
        return None
    if source.type.shape is None or array.ndim > source.type.rank or array.dtype.kind not in "fV":
        return None
    full = (1,) * (source.type.rank - array.ndim) + array.shape
    channels = source.type.shape[1]
    if not isinstance(channels, int) or any(size != 1 for at, size in enumerate(full) if at != 1):
        return None
    return source, np.broadcast_to(array.astype(np.float64).reshape(full[1]), (channels,))


def _into_weights(node: Node, affine: _Affine, scope: Scope) -> Replacement:
    """The node before, with weights and bias that do the scaling too."""
    maker = scope.single(affine.source, *_FOLDERS)
    weight = scope.constant(maker.inputs[1]) if maker is not None else None
    if maker is None or weight is None or not isinstance(affine.source.type, TensorType):
        return None
    if weight.dtype.kind not in "fV" or len(affine.scale) == 0:
        return None
    return _FOLDERS[maker.op](node, maker, weight, affine, scope)


def _convolution(node: Node, maker: Node, weight: Array, affine: _Affine, scope: Scope) -> Replacement:
    given = maker.inputs[2] if len(maker.inputs) > 2 else None
    bias = scope.constant(given)
    if given is not None and bias is None:
        return None
    if maker.op == "Conv":
        if weight.shape[0] != len(affine.scale):
            return None
        parted, scale = weight, affine.scale.reshape(-1, *[1] * (weight.ndim - 1))
    else:
        groups = int(maker.attributes.get("group", 1))
        if groups * weight.shape[1] != len(affine.scale):
            return None
        parted = weight.reshape(groups, -1, *weight.shape[1:])
        scale = affine.scale.reshape(groups, 1, -1, *[1] * (weight.ndim - 2))
    scaled = np.multiply(parted, scale, dtype=np.float64)
    before = 0.0 if bias is None else bias.astype(np.float64)
    return _rebuilt(node, maker, scaled.reshape(weight.shape), before * affine.scale + affine.shift, scope)


def _rebuilt(node: Node, maker: Node, weight: Array, bias: Array, scope: Scope, **attributes: float) -> Replacement:
    old = maker.inputs[1]
    if old is None or not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return None
    kind = old.tensor.numpy
    new_weight = scope.new_constant(weight.astype(kind), f"{old.name}_folded")
    new_bias = scope.new_constant(np.asarray(bias).astype(kind), f"{node.outputs[0].name}_bias")
    return [
        maker.replace(
            inputs=[maker.inputs[0], new_weight, new_bias],
            outputs=node.outputs,
            attributes={**maker.attributes, **attributes},
        )
    ]


def _product(node: Node, maker: Node, weight: Array, affine: _Affine, scope: Scope) -> Replacement:
    """Gemm(a, w, c), or MatMul of matrices."""
    left = maker.inputs[0]
    if weight.ndim != 2 or left is None or not isinstance(left.type, TensorType) or affine.source.tensor.rank != 2:
        return None
    turned = bool(maker.attributes.get("transB", 0))
    if weight.shape[0 if turned else 1] != len(affine.scale):
        return None
    scaled = np.multiply(weight, affine.scale.reshape(-1, 1) if turned else affine.scale, dtype=np.float64)
    given = maker.inputs[2] if len(maker.inputs) > 2 else None
    bias = scope.constant(given)
    if given is not None and bias is None:
        return None
    before = 0.0 if bias is None else bias.astype(np.float64) * maker.attributes.get("beta", 1.0)
    gemm = maker.replace(op="Gemm")
    return _rebuilt(node, gemm, scaled, np.asarray(before * affine.scale + affine.shift), scope, beta=1.0)


_FOLDERS = {"Conv": _convolution, "ConvTranspose": _convolution, "Gemm": _product, "MatMul": _product}
_RULES: dict[str, Rule] = {"BatchNormalization": _batch_norm, "Mul": _scaled, "Add": _shifted}

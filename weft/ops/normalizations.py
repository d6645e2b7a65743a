"""Normalizations: batch, instance, group, layer, root mean square, mean-variance, Lp, and local response.

Means and variances are found in two passes (the mean first), which keeps their digits. Narrow floats are computed in
float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import NUMPY_TYPES, Array, Dim, TensorType, Type, Value
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import normal_axes, normal_axis, product
from weft.graph.signature import Between, OneOf
from weft.ops.elementwise_support import (
    element_type,
    expect_broadcast,
    expect_shape,
    infer_same,
    wide,
    wide_type,
    widen,
)
from weft.ops.expansion import Builder, compose
from weft.ops.normalizations_parts import normalized_in_parts
from weft.ops.reductions_support import mean_array, reduce_axes, share_of

# --------------------------------------------------------------------------------------------------- mean, variance


def _standard(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """The elements with mean 0 and variance 1, the mean, and the inverse deviation (axes kept)."""
    mean = mean_array(x, axes, True)
    variance = mean_array(np.square(x - mean), axes, True)
    inverse = np.asarray(1 / np.sqrt(variance + x.dtype.type(epsilon)))
    return np.asarray((x - mean) * inverse), mean, inverse


def _outer(indices: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """The place of an element in a tensor whose axes were reduced to 1."""
    return tuple(0 if d in axes else i for d, i in enumerate(indices))


def _count(shape: Sequence[Dim], axes: Sequence[int]) -> Dim:
    return product([shape[a] for a in axes])


def _mean_tensor(x: te.Tensor, shape: Sequence[Dim], axes: Sequence[int], name: str = "mean") -> te.Tensor:
    total = reduce_axes(x, axes, te.sum, keep=True, name=f"{name}_sum")
    return te.stage(total.shape, lambda *i: total[i] * share_of(_count(shape, axes), total.dtype), name=name)


def _apart(value: Expr, mean: Expr, count: Dim) -> Expr:
    """The distance from the mean. A single element has none: the mean is the element, and a product that is fused into
    the subtraction would leave its rounding there. (NaN where the element is not finite.)
    """
    if isinstance(count, int):
        return value * 0 if count == 1 else value - mean
    return te.select(te.equal(count, 1), value * 0, value - mean)


def _mean_square(
    x: te.Tensor, shape: Sequence[Dim], axes: Sequence[int], mean: te.Tensor | None, finish: Callable[[Expr], Expr]
) -> te.Tensor:
    """The mean of the squares (of the distances from a mean), finished by a function, with the axes kept."""

    count = _count(shape, axes)

    def square(value: Expr, indices: Sequence[Any]) -> Expr:
        apart = value if mean is None else _apart(value, mean[_outer(indices, axes)], count)
        return apart * apart

    total = reduce_axes(x, axes, te.sum, square, keep=True, name="squares")
    return te.stage(total.shape, lambda *i: finish(total[i] * share_of(count, total.dtype)), name="spread")


def _inverse_root(epsilon: float) -> Callable[[Expr], Expr]:
    return lambda value: 1 / te.sqrt(value + epsilon)


def _standard_tensor(
    x: te.Tensor, shape: Sequence[Dim], axes: Sequence[int], epsilon: float
) -> tuple[Callable[..., Expr], te.Tensor, te.Tensor]:
    """What makes a standard element of a value and its place without the axes; the mean; 1 over the deviation."""
    mean = _mean_tensor(x, shape, axes)
    inverse = _mean_square(x, shape, axes, mean, _inverse_root(epsilon))
    return lambda value, at: _apart(value, mean[at], _count(shape, axes)) * inverse[at], mean, inverse


# ------------------------------------------------------------------------------------------------ BatchNormalization


def _infer_batch(c: Infer) -> Sequence[Type]:
    kind = c.tensor(0)
    for position in range(1, 5):
        if kind.shape is not None:  # one dimension: there is one channel
            expect_shape(c, position, (kind.dims[1] if kind.rank > 1 else 1,))
    if not c.get("training_mode", 0):
        return [kind]
    return [kind, c.tensor(3), c.tensor(4)][: c.output_count]


def _by_channel(values: Array, rank: int) -> Array:
    return values.reshape([-1 if d == 1 else 1 for d in range(max(rank, 1))]) if rank > 1 else values


def _batch(c: Evaluate, x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Any:
    data = wide(x)
    kind, epsilon = data.dtype, c.get("epsilon", 1e-5)
    used_mean, used_variance = mean.astype(kind), variance.astype(kind)
    if c.get("training_mode", 0):
        axes = tuple(d for d in range(x.ndim) if d != 1)
        used_mean = mean_array(data, axes)
        used_variance = mean_array(np.square(data - _by_channel(used_mean, x.ndim)), axes)
    per = [_by_channel(np.asarray(v, kind), x.ndim) for v in (used_mean, used_variance, scale, bias)]
    made = ((data - per[0]) / np.sqrt(per[1] + kind.type(epsilon)) * per[2] + per[3]).astype(x.dtype)
    if not c.get("training_mode", 0):
        return np.asarray(made)
    keep = c.get("momentum", float(np.float32(0.9)))  # the number that a model can say: attributes are float32
    running = [
        np.asarray(wide(old) * keep + new * (1 - keep)).astype(old.dtype)
        for old, new in ((mean, used_mean), (variance, used_variance))
    ]
    return (np.asarray(made), *running)[: c.output_count]


def _compute_batch(
    c: Compute, x: te.Tensor, scale: te.Tensor, bias: te.Tensor, mean: te.Tensor, variance: te.Tensor
) -> te.Tensor | None:
    if c.get("training_mode", 0):
        return None
    kind, epsilon = wide_type(x.dtype.name), c.get("epsilon", 1e-5)

    def body(*indices: Any) -> Expr:
        at = indices[1] if len(indices) > 1 else 0
        gain = scale[at].astype(kind) / te.sqrt(variance[at].astype(kind) + epsilon)
        return (widen(x[indices]) - mean[at].astype(kind)) * gain + bias[at].astype(kind)

    return te.stage(c.out_dims(), body, name="batch_norm", dtype=x.dtype)


register(
    "BatchNormalization",
    _infer_batch,
    _batch,
    _compute_batch,
    lambda node: "opaque" if node.attributes.get("training_mode", 0) else "elementwise",
    takes="X:float[_ *s], scale:float[_], B:float[_], mean:float[_], variance:float[_]",
    traits="channelwise optional_outputs",
)


# ------------------------------------------------------------------------------ instance, group, mean and variance


def _instance(c: Evaluate, x: Array, scale: Array, bias: Array) -> Array:
    made, _, _ = _standard(wide(x), tuple(range(2, x.ndim)), c.get("epsilon", 1e-5))
    return np.asarray(made * _by_channel(wide(scale), x.ndim) + _by_channel(wide(bias), x.ndim)).astype(x.dtype)


def _scaled(c: Compute, x: te.Tensor, standard: Callable[..., Expr], scale: te.Tensor, bias: te.Tensor) -> te.Tensor:
    """Standard elements times a scale plus a bias, one of each a channel."""
    return te.stage(
        c.out_shape(),
        lambda *i: standard(*i) * widen(scale[i[1]]) + widen(bias[i[1]]),
        name="normalized",
        dtype=x.dtype,
    )


def _compute_instance(c: Compute, x: te.Tensor, scale: te.Tensor, bias: te.Tensor) -> te.Tensor:
    shape = c.dims(0)
    axes = tuple(range(2, len(shape)))
    standard, _, _ = _standard_tensor(x, shape, axes, c.get("epsilon", 1e-5))
    return _scaled(c, x, lambda *i: standard(widen(x[i]), _outer(i, axes)), scale, bias)


register(
    "InstanceNormalization",
    infer_same,
    _instance,
    _compute_instance,
    "reduction",
    takes="input:float[n c *s], scale:float[c], B:float[c]",
    traits="channelwise",
)


def _infer_group(c: Infer) -> Sequence[Type]:
    kind, groups = c.tensor(0), int(c.need("num_groups"))
    if groups < 1 or (kind.shape is not None and isinstance(kind.dims[1], int) and kind.dims[1] % groups):
        raise c.error(f"{groups} groups do not divide the channels of {kind!r}")
    return [kind]


def _group(c: Evaluate, x: Array, scale: Array, bias: Array) -> Array:
    grouped = wide(x).reshape(x.shape[0], c.need("num_groups"), -1)
    made = _standard(grouped, (2,), c.get("epsilon", 1e-5))[0].reshape(x.shape)
    return np.asarray(made * _by_channel(wide(scale), x.ndim) + _by_channel(wide(bias), x.ndim)).astype(x.dtype)


def _compute_group(c: Compute, x: te.Tensor, scale: te.Tensor, bias: te.Tensor) -> te.Tensor:
    batch, channels, *space = c.shape(0)
    groups, rows = int(c.need("num_groups")), int(c.get("rows", 0))
    if rows:
        return normalized_in_parts(c, x, scale, bias, rows)
    width = channels // groups
    shape, axes = (batch, groups, width, *space), tuple(range(2, 3 + len(space)))
    grouped = te.compute(shape, lambda n, g, k, *s: widen(x[(n, g * width + k, *s)]), name="grouped")
    standard, _, _ = _standard_tensor(grouped, shape, axes, c.get("epsilon", 1e-5))
    zeros = (0,) * (1 + len(space))
    return _scaled(c, x, lambda *i: standard(widen(x[i]), (i[0], i[1] // width, *zeros)), scale, bias)


register(
    "GroupNormalization",
    _infer_group,
    _group,
    _compute_group,
    "reduction",
    takes="X:float[n c *s], scale:float[c], bias:float[c]",
    traits="groups_channels",
)

_TINY = 1e-9
"""What MeanVarianceNormalization adds to the deviation."""


def _mvn_axes(c: Use, rank: int) -> tuple[int, ...]:
    return normal_axes(c.get("axes", [0, 2, 3]), rank, c.error)


def _mean_variance(c: Evaluate, x: Array) -> Array:
    data, axes = wide(x), _mvn_axes(c, x.ndim)
    apart = data - mean_array(data, axes, True)
    deviation = np.sqrt(mean_array(np.square(apart), axes, True))
    return np.asarray(apart / (deviation + data.dtype.type(_TINY))).astype(x.dtype)


def _compute_mean_variance(c: Compute, x: te.Tensor) -> te.Tensor:
    shape = c.dims(0)
    axes = _mvn_axes(c, len(shape))
    mean = _mean_tensor(x, shape, axes)
    deviation = _mean_square(x, shape, axes, mean, lambda v: te.sqrt(v) + _TINY)

    def body(*i: Any) -> Expr:
        return _apart(widen(x[i]), mean[_outer(i, axes)], _count(shape, axes)) / deviation[_outer(i, axes)]

    return te.stage(shape, body, name="normalized", dtype=x.dtype)


def _infer_mean_variance(c: Infer) -> Sequence[Type]:
    kind = c.tensor(0)
    if kind.shape is not None:
        _mvn_axes(c, kind.rank)
    return [kind]


register(
    "MeanVarianceNormalization",
    _infer_mean_variance,
    _mean_variance,
    _compute_mean_variance,
    "reduction",
    takes="X:float",
)


# ------------------------------------------------------------------------------------------ layer, root mean square


def _inner_axes(c: Use, rank: int) -> tuple[int, ...]:
    return tuple(range(normal_axis(c.get("axis", -1), rank, c.error), rank))


def _infer_layer(c: Infer) -> Sequence[Type]:
    kind = c.tensor(0)
    for position in (1, 2):
        expect_broadcast(c, position, kind.shape)
    stash = element_type(c, "stash_type", "float32")
    if kind.shape is None:
        return [kind, *[TensorType(stash, None)] * 2][: c.output_count]
    axes = _inner_axes(c, kind.rank)
    outer = tuple(1 if d in axes else s for d, s in enumerate(kind.dims))
    return [kind, *[TensorType(stash, outer)] * 2][: c.output_count]


def _layer(c: Evaluate, x: Array, scale: Array, bias: Array | None = None) -> Any:
    stash = NUMPY_TYPES[element_type(c, "stash_type", "float32")]
    made, mean, inverse = _standard(wide(x), _inner_axes(c, x.ndim), c.get("epsilon", 1e-5))
    made = made * wide(scale)
    made = np.asarray(made if bias is None else made + wide(bias)).astype(x.dtype)
    return (made, mean.astype(stash), inverse.astype(stash))[: c.output_count]


def _compute_layer(c: Compute, x: te.Tensor, scale: te.Tensor, bias: te.Tensor | None = None) -> Any:
    shape = c.dims(0)
    axes, kind = _inner_axes(c, len(shape)), wide_type(x.dtype.name)
    standard, mean, inverse = _standard_tensor(x, shape, axes, c.get("epsilon", 1e-5))

    def body(*i: Any) -> Expr:
        value = standard(widen(x[i]), _outer(i, axes))
        value = value * te.broadcast_read(scale, i, shape).astype(kind)
        return value if bias is None else value + te.broadcast_read(bias, i, shape).astype(kind)

    made = te.compute(shape, body, name="layer_norm", dtype=x.dtype)
    extra = [_rounded(t, kind) for t, kind in zip((mean, inverse), c.outputs[1:])]
    return (made, *extra) if extra else made


def _rounded(tensor: te.Tensor, kind: TensorType) -> te.Tensor:
    return te.stage(kind.dims, lambda *i: tensor[i].astype(kind.dtype), name=f"layer_norm_{tensor.name}")


register(
    "LayerNormalization",
    _infer_layer,
    _layer,
    _compute_layer,
    lambda node: "reduction" if len(node.outputs) == 1 else "opaque",
    takes="X:float, scale:float, B:float?",
    traits="optional_outputs rowwise",
)


def _infer_rms(c: Infer) -> Sequence[Type]:
    kind = c.tensor(0)
    expect_broadcast(c, 1, kind.shape)
    if kind.shape is not None:
        _inner_axes(c, kind.rank)
    return [TensorType(c.tensor(1).dtype, kind.shape)]


def _root_mean_square(c: Evaluate, x: Array, scale: Array) -> Array:
    data, axes = wide(x), _inner_axes(c, x.ndim)
    mean = mean_array(np.square(data), axes, True)
    made = data / np.sqrt(mean + data.dtype.type(c.get("epsilon", 1e-5)))
    return np.asarray(made * wide(scale)).astype(scale.dtype)


def _compute_root_mean_square(c: Compute, x: te.Tensor, scale: te.Tensor) -> te.Tensor:
    shape = c.dims(0)
    axes, kind = _inner_axes(c, len(shape)), "float64" if "float64" in (x.dtype.name, scale.dtype.name) else "float32"
    inverse = _mean_square(x, shape, axes, None, _inverse_root(c.get("epsilon", 1e-5)))

    def body(*i: Any) -> Expr:
        return (widen(x[i]) * inverse[_outer(i, axes)]).astype(kind) * te.broadcast_read(scale, i, shape).astype(kind)

    return te.stage(shape, body, name="rms_norm", dtype=c.outputs[0].dtype)


register(
    "RMSNormalization",
    _infer_rms,
    _root_mean_square,
    _compute_root_mean_square,
    "reduction",
    takes="X:float, scale:float",
    traits="rowwise",
)


# ------------------------------------------------------------------------------------------------ Lp, local response


def _lp(b: Builder, x: Value) -> Value:
    """A quotient; what has no norm is 0."""
    data, axes = b.cast(x, wide_type(x.tensor.dtype)), b.constant([b.get("axis", -1)], "int64")
    norm, zero = b(f"ReduceL{b.get('p', 2)}", data, axes, keepdims=1), b.constant(0, data.tensor.dtype)
    return b.cast(b("Where", b("Equal", norm, zero), zero, b("Div", data, norm)), x.tensor.dtype)


compose("LpNormalization", _lp, takes="input:float[_ *s]", requires=(OneOf("p", (1, 2)),), traits="statistic")


def _window(c: Use, channels: int) -> tuple[int, int]:
    """How many channels before and after one count to its response, of those that there are."""
    size = int(c.need("size"))
    return min((size - 1) // 2, channels), min(size - 1 - (size - 1) // 2, channels)


def _local_response(c: Evaluate, x: Array) -> Array:
    before, after = _window(c, x.shape[1])
    squares = np.square(wide(x))
    padded = np.pad(squares, [(before, after) if d == 1 else (0, 0) for d in range(x.ndim)])
    total = sum(padded[:, i : i + x.shape[1]] for i in range(before + after + 1))
    alpha, beta, bias = c.get("alpha", 1e-4), c.get("beta", 0.75), c.get("bias", 1.0)
    return np.asarray(wide(x) / (bias + alpha / c.need("size") * total) ** beta).astype(x.dtype)


def _compute_local_response(c: Compute, x: te.Tensor) -> te.Tensor:
    shape, (before, after) = c.shape(0), _window(c, c.shape(0)[1])
    alpha, beta, bias = c.get("alpha", 1e-4), c.get("beta", 0.75), c.get("bias", 1.0)
    place = te.reduce_axis(before + after + 1, name="place")

    def square(*i: Any) -> Any:
        channel = i[1] + place.var - before
        value = widen(x[(i[0], channel, *i[2:])])
        return te.sum(value * value, axis=place, where=te.all(channel >= 0, channel < shape[1]))

    total = te.compute(shape, square, name="squares")
    return te.stage(
        shape,
        lambda *i: widen(x[i]) / te.power(bias + (alpha / int(c.need("size"))) * total[i], beta),
        name="local_response",
        dtype=x.dtype,
    )


def _infer_local_response(c: Infer) -> Sequence[Type]:
    c.need("size")
    return [c.tensor(0)]


register(
    "LRN",
    _infer_local_response,
    _local_response,
    _compute_local_response,
    "reduction",
    takes="X:float[n c *s]",
    requires=(Between("size", 1),),
)

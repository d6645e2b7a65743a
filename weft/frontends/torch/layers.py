"""Converters of layers: products, convolutions, normalisations, pooling, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import Emitter, InTraining, Size, Unsupported, is_float
from weft.frontends.torch.movement import pad
from weft.frontends.torch.reductions import reduce
from weft.frontends.torch.table import aten
from weft.graph.ir import TensorType, Value

# ---------------------------------------------------------------------------------------------------------- products


def product(c: Emitter, a: Value, b: Value) -> Value:
    """a times b, in the element type of the result."""
    return c.op("MatMul", c.cast(a, c.dtype), c.cast(b, c.dtype))


@aten("mm", "bmm", "matmul", "mv", "dot", "vdot")
def _matmul(c: Emitter, a: Value, b: Value) -> Value:
    return product(c, a, b)


@aten("_scaled_mm")
def _scaled_product(
    c: Emitter, a: Value, b: Value, scale_a: Value, scale_b: Value, bias: Value | None = None, *rest: Any, **named: Any
) -> Value:
    """A product of float8, summed in float32, with scales of the whole or of rows and columns."""
    made = c.of_users("NarrowMatMul", "weft", [a, b], [TensorType("float32", (a.tensor.dims[0], b.tensor.dims[1]))], {})
    assert made is not None
    total = c.op("Mul", made[0], c.op("Mul", scale_a, scale_b))
    return c.cast(total if bias is None else c.op("Add", total, c.cast(bias, "float32")), c.dtype)


@aten("linear")
def linear(c: Emitter, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x times a transposed weight, and a bias."""
    if weight.tensor.rank == 1:
        made = product(c, x, weight)
    elif x.tensor.rank == 2:
        return c.op("Gemm", x, weight, bias, alpha=1.0, beta=1.0, transB=1)
    else:
        made = product(c, x, c.swap(weight, 0, 1))
    return made if bias is None else c.op("Add", made, bias)


def _scaled(c: Emitter, x: Value, factor: Any) -> Value:
    return x if factor == 1 else c.op("Mul", x, c.value(factor, x.tensor.dtype))


@aten("addmm")
def _addmm(c: Emitter, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    if is_float(c.dtype):
        return c.op("Gemm", a, b, None if beta == 0 else bias, alpha=float(alpha), beta=float(beta))
    return _add_product(c, bias, a, b, beta=beta, alpha=alpha)


@aten("baddbmm", "addbmm")
def _add_product(c: Emitter, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    made = product(c, a, b)
    made = reduce(c, "ReduceSum", made, 0) if c.target.startswith("addbmm") else made
    made = _scaled(c, made, alpha)
    return made if beta == 0 else c.op("Add", made, _scaled(c, c.cast(bias, c.dtype), beta))


@aten("_trilinear")
def _trilinear(
    c: Emitter, a: Value, b: Value, d: Value, expand_a: Any, expand_b: Any, expand_d: Any, axes: Any, unroll: int = 1
) -> Value:
    parts = [c.unsqueeze(one, *at) for one, at in ((a, expand_a), (b, expand_b), (d, expand_d))]
    return reduce(c, "ReduceSum", c.op("Mul", c.op("Mul", parts[0], parts[1]), parts[2]), axes)


@aten("_cdist_forward")
def _cdist(c: Emitter, a: Value, b: Value, p: float, mode: Any = None) -> Value:
    apart = c.op("Abs", c.op("Sub", c.unsqueeze(a, a.tensor.rank - 1), c.unsqueeze(b, b.tensor.rank - 2)))
    if p in (1, 2):
        return reduce(c, f"ReduceL{int(p)}", apart, -1)
    if math.isinf(p):
        return reduce(c, "ReduceMax", apart, -1)
    if p == 0:
        return reduce(c, "ReduceSum", c.cast(c.cast(apart, "bool"), c.dtype), -1)
    total = reduce(c, "ReduceSum", c.op("Pow", apart, c.value(p, c.dtype)), -1)
    return c.op("Pow", total, c.value(1 / p, c.dtype))


@aten("_grouped_mm", "transformers.grouped_mm_fallback")
def _grouped(c: Emitter, x: Value, weight: Value, ends: Value | None = None, *_: Any) -> Value:
    """Rows times the matrix of their group (an expert); groups follow each other, and end where `ends` says."""
    if ends is None or x.tensor.rank != 2 or weight.tensor.rank != 3:
        raise Unsupported("products of groups that are not of rows")
    rows, groups = c.size(x, 0), c.size(weight, 0)
    if not isinstance(rows, int) or not isinstance(groups, int):
        raise Unsupported("products of groups whose number only a call tells")
    at = c.constant(np.arange(rows)[:, None])
    past = c.op("GreaterOrEqual", at, c.unsqueeze(c.cast(ends, "int64"), 0))
    last = c.op("Less", c.constant(np.arange(rows)), c.op("Gather", c.cast(ends, "int64"), np.int64(groups - 1)))
    group = c.op("Min", reduce(c, "ReduceSum", c.cast(past, "int64"), 1), np.int64(groups - 1))
    if rows <= groups:  # each row fetches its matrix; otherwise each matrix meets all rows, and the right ones are kept
        made = c.squeeze(product(c, c.unsqueeze(x, 1), c.op("Gather", weight, group, axis=0)), 1)
    else:
        every = product(c, c.unsqueeze(x, 0), weight)
        flat = c.reshape(every, [rows * groups, c.size(weight, 2)])
        made = c.op(
            "Gather", flat, c.op("Add", c.op("Mul", group, np.int64(rows)), c.constant(np.arange(rows))), axis=0
        )
    return c.where(c.unsqueeze(last, 1), made, 0)


@aten("_pdist_forward")
def _pdist(c: Emitter, x: Value, p: float = 2) -> Value:
    rows = c.size(x, 0)
    if not isinstance(rows, int):
        raise Unsupported("distances of rows whose number only a call tells")
    apart = _cdist(c, x, x, p)
    first, second = np.triu_indices(rows, 1)
    return c.op("Gather", c.flat(apart), first * rows + second, axis=0)


# ------------------------------------------------------------------------------------------------------ convolutions


def each(given: Any, count: int) -> list[int]:
    """One number for each axis."""
    numbers = [given] if isinstance(given, int) else list(given)
    return numbers * count if len(numbers) == 1 else numbers


def _batched(c: Emitter, x: Value, rank: int, change: Any) -> Any:
    """Applies a function to x with a batch; x without one gets one of 1."""
    if x.tensor.rank == rank:
        return change(x)
    made = change(c.unsqueeze(x, 0))
    return c.squeeze(made, 0) if isinstance(made, Value) else [c.squeeze(one, 0) for one in made]


@aten("convolution", "_convolution")
def _convolution(
    c: Emitter, x: Value, weight: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool = False, output_padding: Any = 0, groups: int = 1, *_: Any,
) -> Any:  # fmt: skip
    count = weight.tensor.rank - 2
    pads = each(padding, count)
    extra = each(output_padding, count)
    more: dict[str, Any] = {"output_padding": extra} if transposed and any(extra) else {}
    return _batched(
        c,
        x,
        count + 2,
        lambda one: c.op(
            "ConvTranspose" if transposed else "Conv", one, weight, bias, strides=each(stride, count),
            pads=[*pads, *pads], dilations=each(dilation, count), group=groups, kernel_shape=_window(weight), **more,
        ),
    )  # fmt: skip


def _window(weight: Value) -> list[int] | None:
    sizes = [size for size in weight.tensor.dims[2:] if isinstance(size, int)]
    return sizes if len(sizes) == weight.tensor.rank - 2 else None


@aten("conv1d", "conv2d", "conv3d")
def _conv(
    c: Emitter, x: Value, weight: Value, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    return _convolution(c, x, weight, bias, stride, padding, dilation, False, 0, groups)


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def _conv_padding(
    c: Emitter, x: Value, weight: Value, bias: Any = None, stride: Any = 1, padding: str = "valid", dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    count = weight.tensor.rank - 2
    total = [step * (size - 1) for step, size in zip(each(dilation, count), weight.tensor.static[2:])]
    before = [one // 2 for one in total]
    after = [one - low for one, low in zip(total, before)]
    if padding == "valid" or before == after:
        return _conv(c, x, weight, bias, stride, 0 if padding == "valid" else before, dilation, groups)
    outer = [0] * (x.tensor.rank - count)
    x = pad(c, x, [*outer, *before], [*outer, *after], "constant", 0)
    return _conv(c, x, weight, bias, stride, 0, dilation, groups)


@aten("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def _conv_transpose(
    c: Emitter, x: Value, weight: Value, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
    groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    return _convolution(c, x, weight, bias, stride, padding, dilation, True, output_padding, groups)


# ---------------------------------------------------------------------------------------------------- normalisations


def _ones(c: Emitter, count: Size, number: int, like: Value | None, dtype: str) -> Value:
    """A weight, or what stands for one that is left out."""
    return like if like is not None else c.filled([count], number, dtype)


def _empty(c: Emitter) -> Value:
    return c.constant(np.zeros(0, np.float32))


@aten("batch_norm")
def _batch_norm(
    c: Emitter, x: Value, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float,
    *_: Any,
) -> Value:  # fmt: skip
    if training and mean is not None:
        raise InTraining("batch normalisation would update its statistics")
    kind = x.tensor.dtype if mean is None else mean.tensor.dtype
    scale, shift = (_ones(c, c.size(x, 1), one, given, kind) for one, given in ((1, weight), (0, bias)))
    if mean is None:
        axes = [axis for axis in range(x.tensor.rank) if axis != 1]
        mean = reduce(c, "ReduceMean", x, axes, True)
        apart = c.op("Sub", x, mean)
        variance = c.squeeze(reduce(c, "ReduceMean", c.op("Mul", apart, apart), axes, True), *axes)
        mean = c.squeeze(mean, *axes)
    return c.op("BatchNormalization", x, scale, shift, mean, variance, epsilon=eps)


@aten("_native_batch_norm_legit_no_training")
def _batch_norm_inference(
    c: Emitter, x: Value, weight: Any, bias: Any, mean: Value, variance: Value, momentum: float, eps: float
) -> tuple[Value, ...]:
    return _batch_norm(c, x, weight, bias, mean, variance, False, momentum, eps), _empty(c), _empty(c)


@aten("instance_norm")
def _instance_norm(
    c: Emitter, x: Value, weight: Any, bias: Any, mean: Any, variance: Any, use_input_stats: bool, momentum: float,
    eps: float, *_: Any,
) -> Value:  # fmt: skip
    if not use_input_stats:
        return _batch_norm(c, x, weight, bias, mean, variance, False, momentum, eps)
    if mean is not None:
        raise InTraining("instance normalisation would update its statistics")
    scale, shift = (_ones(c, c.size(x, 1), one, given, c.dtype) for one, given in ((1, weight), (0, bias)))
    return c.op("InstanceNormalization", x, scale, shift, epsilon=eps)


@aten("layer_norm", "native_layer_norm")
def _layer_norm(
    c: Emitter, x: Value, shape: Sequence[Size], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Any:
    scale = weight if weight is not None else c.filled(list(shape), 1, x.tensor.dtype)
    if not c.target.startswith("native"):
        return c.op("LayerNormalization", x, scale, bias, axis=-len(shape), epsilon=eps)
    return c.several(3, "LayerNormalization", x, scale, bias, axis=-len(shape), epsilon=eps)


@aten("rms_norm", "_fused_rms_norm")
def _rms_norm(c: Emitter, x: Value, shape: Sequence[Size], weight: Any = None, eps: float | None = None) -> Any:
    if eps is None:
        eps = float(np.finfo(np.float64 if c.dtype == "float64" else np.float32).eps)
    scale = weight if weight is not None else c.filled(list(shape), 1, x.tensor.dtype)
    made = c.op("RMSNormalization", x, scale, axis=-len(shape), epsilon=eps)
    return (made, None) if c.target.startswith("_fused") else made


@aten("group_norm")
def _group_norm(
    c: Emitter, x: Value, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Value:
    scale, shift = (_ones(c, c.size(x, 1), one, given, c.dtype) for one, given in ((1, weight), (0, bias)))
    return c.op("GroupNormalization", x, scale, shift, num_groups=groups, epsilon=eps)


@aten("native_group_norm")
def _native_group_norm(
    c: Emitter, x: Value, weight: Any, bias: Any, n: Any, channels: Any, inner: Any, groups: int, eps: float
) -> tuple[Value | None, ...]:
    return _group_norm(c, x, groups, weight, bias, eps), None, None


# ----------------------------------------------------------------------------------------------------------- pooling


def _pool_attributes(count: int, kernel: Any, stride: Any, padding: Any, ceil: bool) -> dict[str, Any]:
    window = each(kernel, count)
    pads = each(padding, count)
    strides = each(stride, count) if stride not in ([], (), None) else window
    return {"kernel_shape": window, "strides": strides, "pads": [*pads, *pads], "ceil_mode": int(ceil)}


def _average(count: int) -> Any:
    def converter(
        c: Emitter, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Value:  # fmt: skip
        given = _pool_attributes(count, kernel, stride, padding, ceil_mode)
        include = int(count_include_pad or divisor_override is not None)
        if divisor_override is not None and ceil_mode:
            x, given = _padded(c, x, given), {**given, "pads": [0] * (2 * count), "ceil_mode": 0}
        made = _batched(c, x, count + 2, lambda one: c.op("AveragePool", one, count_include_pad=include, **given))
        return (
            made if divisor_override is None else _scaled(c, made, math.prod(given["kernel_shape"]) / divisor_override)
        )

    return converter


def _padded(c: Emitter, x: Value, given: dict[str, Any]) -> Value:
    """x with zeros where windows read past it, the last of them (`ceil_mode`) included."""
    count = len(given["strides"])
    outer, after = [0] * (x.tensor.rank - count), []
    for size, window, step, low in zip(x.tensor.dims[-count:], given["kernel_shape"], given["strides"], given["pads"]):
        if not isinstance(size, int):
            raise Unsupported("average pooling with ceil_mode and divisor_override of sizes that only a call tells")
        places = -(-(size + 2 * low - window) // step) + 1
        places -= (places - 1) * step >= size + low  # no window begins past the elements
        after.append(max((places - 1) * step + window - size - low, 0))
    return pad(c, x, [*outer, *given["pads"][:count]], [*outer, *after], "constant", 0)


def _maximum(count: int, with_places: bool) -> Any:
    def converter(
        c: Emitter,
        x: Value,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        given = _pool_attributes(count, kernel, stride, padding, ceil_mode)
        given["dilations"] = each(dilation, count)
        if not with_places or not c.wants(1):
            made = _batched(c, x, count + 2, lambda one: c.op("MaxPool", one, **given))
            return (made, None) if with_places else made

        def change(one: Value) -> list[Value]:
            values, places = c.several(2, "MaxPool", one, **given)
            plane = c.times(*c.sizes(one)[2:])  # torch counts within one image of one channel
            return [values, c.op("Mod", places, c.value(plane, "int64"))]

        return _batched(c, x, count + 2, change)

    return converter


for _count in (1, 2, 3):
    aten(f"avg_pool{_count}d")(_average(_count))
    aten(f"max_pool{_count}d")(_maximum(_count, False))
    aten(f"max_pool{_count}d_with_indices")(_maximum(_count, True))


def _adaptive_average(count: int) -> Any:
    def converter(c: Emitter, x: Value, size: Any) -> Any:
        wanted = each(size, count)
        if all(one == 1 for one in wanted):
            return _batched(c, x, count + 2, lambda one: c.op("GlobalAveragePool", one))
        have = _last_sizes(x, count)
        if all(a % b == 0 for a, b in zip(have, wanted)):
            given = _pool_attributes(count, [a // b for a, b in zip(have, wanted)], None, 0, False)
            return _batched(c, x, count + 2, lambda one: c.op("AveragePool", one, **given))
        for axis, (a, b) in enumerate(zip(have, wanted), x.tensor.rank - count):
            means = np.zeros((a, b))
            for at, (low, high) in enumerate(_stretches(a, b)):
                means[low:high, at] = 1 / (high - low)
            last = c.op("MatMul", c.swap(x, axis, -1), c.constant(means, x.tensor.dtype))
            x = c.swap(last, axis, -1)
        return x

    return converter


def _last_sizes(x: Value, count: int) -> list[int]:
    sizes = [size for size in x.tensor.dims[-count:] if isinstance(size, int)]
    if len(sizes) != count:
        raise Unsupported("adaptive pooling of sizes that only a call tells")
    return sizes


def _stretches(have: int, wanted: int) -> list[tuple[int, int]]:
    return [(at * have // wanted, -(-(at + 1) * have // wanted)) for at in range(wanted)]


def _adaptive_maximum(count: int) -> Any:
    def converter(c: Emitter, x: Value, size: Any) -> Any:
        wanted, have = each(size, count), _last_sizes(x, count)
        if all(a % b == 0 for a, b in zip(have, wanted)):
            return _maximum(count, True)(c, x, [a // b for a, b in zip(have, wanted)])
        windows = []
        for a, b in zip(have, wanted):
            stretches = _stretches(a, b)
            longest = max(high - low for low, high in stretches)
            windows.append(np.array([[min(low + at, high - 1) for at in range(longest)] for low, high in stretches]))
        if c.wants(1):
            return _places_of_maxima(c, x, windows)
        for axis, places in enumerate(windows, x.tensor.rank - count):
            x = reduce(c, "ReduceMax", c.op("Gather", x, places, axis=axis), axis + 1)
        return x, None

    return converter


def _places_of_maxima(c: Emitter, x: Value, windows: Sequence[Any]) -> tuple[Value, Value]:
    """The maxima over windows along the last axes, and their places, counted through those axes."""
    count, lead, sides = len(windows), x.tensor.rank - len(windows), x.tensor.dims[-len(windows) :]
    table: Any = 0
    for at, places in enumerate(windows):
        x = c.op("Gather", x, places, axis=lead + 2 * at)
        shape = [1] * (2 * count)
        shape[at], shape[count + at] = places.shape
        table = table * sides[at] + places.reshape(shape)
    order = [*range(lead), *range(lead, lead + 2 * count, 2), *range(lead + 1, lead + 2 * count, 2)]
    shape, size = [len(one) for one in windows], math.prod(one.shape[1] for one in windows)
    x = c.reshape(c.transpose(x, order), [*c.sizes(x)[:lead], *shape, size])
    best = c.op("ArgMax", x, axis=-1, keepdims=0)
    first = c.constant(np.arange(math.prod(shape)).reshape(shape) * size)
    return reduce(c, "ReduceMax", x, -1), c.op("Gather", table.reshape(-1), c.op("Add", best, first), axis=0)


aten("adaptive_avg_pool1d")(_adaptive_average(1))
aten("adaptive_avg_pool2d", "_adaptive_avg_pool2d")(_adaptive_average(2))
aten("adaptive_avg_pool3d", "_adaptive_avg_pool3d")(_adaptive_average(3))
for _count in (1, 2, 3):
    aten(f"adaptive_max_pool{_count}d")(_adaptive_maximum(_count))


# ---------------------------------------------------------------------------------------------------------- resizing


def _resize(c: Emitter, x: Value, size: Any, scales: Any, mode: str, transform: str, **more: Any) -> Value:
    """Resize of the last axes: by factors where torch heeds them, else to sizes."""
    factors = [one for one in scales or () if one is not None]
    more |= {"mode": mode, "coordinate_transformation_mode": transform}
    if len(factors) == x.tensor.rank - 2 and transform != "align_corners":
        return c.op("Resize", x, None, np.array([1, 1, *factors], np.float32), **more)
    wanted = list(size or c.shape[2:])
    if not all(isinstance(one, (int, Value)) for one in wanted):
        raise Unsupported("an interpolation by a factor of sizes that only a call tells")
    return c.op("Resize", x, None, None, c.vector([*c.sizes(x)[:2], *wanted]), **more)


def _nearest(exact: bool) -> Any:
    way = {"transform": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    plain = {"transform": "asymmetric", "nearest_mode": "floor"}

    def converter(c: Emitter, x: Value, size: Any = None, *scales: Any) -> Value:
        found = scales[0] if len(scales) == 1 and isinstance(scales[0], (list, tuple)) else scales
        return _resize(c, x, size, found, "nearest", **(way if exact else plain))

    return converter


def _smooth(mode: str) -> Any:
    def converter(c: Emitter, x: Value, size: Any = None, align_corners: bool = False, *scales: Any) -> Value:
        found = scales[0] if len(scales) == 1 and isinstance(scales[0], (list, tuple)) else scales
        more: dict[str, Any] = {"cubic_coeff_a": -0.75} if mode == "cubic" else {}
        if c.target.startswith("_"):
            if align_corners or any(one is not None for one in found or ()):
                raise Unsupported("an interpolation with antialias by factors, or with align_corners")
            more |= {"antialias": 1, "exclude_outside": 1}
            more |= {"cubic_coeff_a": -0.5} if mode == "cubic" else {}
        return _resize(c, x, size, found, mode, "align_corners" if align_corners else "half_pixel", **more)

    return converter


for _count, _linear_name in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    for _overload in ("", ".vec"):
        aten(f"upsample_nearest{_count}d{_overload}")(_nearest(False))
        aten(f"_upsample_nearest_exact{_count}d{_overload}")(_nearest(True))
        aten(f"upsample_{_linear_name}{_count}d{_overload}")(_smooth("linear"))
for _overload in ("", ".vec"):
    aten(f"upsample_bicubic2d{_overload}")(_smooth("cubic"))
    aten(f"_upsample_bilinear2d_aa{_overload}")(_smooth("linear"))
    aten(f"_upsample_bicubic2d_aa{_overload}")(_smooth("cubic"))


@aten("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def _grid_sampler(c: Emitter, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    return c.op(
        "GridSample", x, grid, mode=("linear", "nearest", "cubic")[mode],
        padding_mode=("zeros", "border", "reflection")[padding], align_corners=int(align_corners),
    )  # fmt: skip

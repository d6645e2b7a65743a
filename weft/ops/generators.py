"""Operators that make tensors from little: constants, ranges, identity matrices, windows and mel filters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type, Value, dtype_name
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import Shape, unknown_dim
from weft.ops.casts import cast_array
from weft.ops.elementwise_support import element_type, expect_one_element, wide, wide_type
from weft.ops.expansion import Builder, Unexpanded, compose

# --------------------------------------------------------------------------------------------------------- Constant


def _strings(values: Sequence[Any]) -> Array:
    made = np.empty(len(values), dtype=object)
    made[:] = [v.decode() if isinstance(v, bytes) else v for v in values]
    return made


_CONSTANTS: dict[str, Callable[[Any], Array]] = {
    "value": np.asarray,
    "sparse_value": np.asarray,
    "value_float": lambda v: np.asarray(v, np.float32),
    "value_floats": lambda v: np.asarray(v, np.float32),
    "value_int": lambda v: np.asarray(v, np.int64),
    "value_ints": lambda v: np.asarray(v, np.int64),
    "value_string": lambda v: _strings([v]).reshape(()),
    "value_strings": _strings,
}


def constant_value(c: Use) -> Array:
    """The array that a Constant node holds."""
    given = [name for name in _CONSTANTS if name in c.attributes]
    if len(given) != 1:
        raise c.error(f"it needs exactly one of {', '.join(_CONSTANTS)}, not {given or 'none'}")
    return _CONSTANTS[given[0]](c.attributes[given[0]])


def _infer_constant(c: Infer) -> Sequence[Type]:
    value = constant_value(c)
    return [TensorType(dtype_name(value.dtype), value.shape)]


register("Constant", _infer_constant, lambda c: constant_value(c), takes="")


# -------------------------------------------------------------------------------------------------- ConstantOfShape


def _filling(c: Use) -> Array:
    value = np.asarray(c.get("value", np.zeros(1, np.float32)))
    if value.size != 1:
        raise c.error(f"its value must have one element, not {value.size}")
    return value.reshape(())


def _sizes(c: Use, value: Array) -> tuple[int, ...]:
    sizes = tuple(int(s) for s in value.reshape(-1))
    if any(s < 0 for s in sizes):
        raise c.error(f"a shape cannot have negative sizes: {list(sizes)}")
    if len(sizes) > 32:
        raise c.error(f"a tensor cannot have {len(sizes)} dimensions")
    return sizes


def _infer_of_shape(c: Infer) -> Sequence[Type]:
    value, filling, shape = c.value(0), _filling(c), c.tensor(0).shape
    dims: Shape | None = None
    if value is not None:
        dims = _sizes(c, value)
    elif shape is not None and len(shape) == 1 and isinstance(shape[0], int):
        dims = tuple(unknown_dim("size") for _ in range(shape[0]))
    return [TensorType(dtype_name(filling.dtype), dims)]


def _compute_of_shape(c: Compute, shape: te.Tensor | None) -> te.Tensor:
    filling = te.const(_filling(c)[()], c.outputs[0].dtype)
    return te.stage(c.out_dims(), lambda *i: filling, name="constant_of_shape")


register(
    "ConstantOfShape",
    _infer_of_shape,
    lambda c, shape: np.full(_sizes(c, shape), _filling(c)),
    _compute_of_shape,
    "injective",
    shape_inputs=(0,),
    sizing=(0,),
    takes="input:int[_]",
    traits="cheap grows",
)


# ---------------------------------------------------------------------------------------------------------- EyeLike


def _infer_eye(c: Infer) -> Sequence[Type]:
    kind = c.tensor(0)
    return [TensorType(element_type(c, "dtype", kind.dtype), kind.shape)]


def _eye(c: Evaluate, x: Array) -> Array:
    to = element_type(c, "dtype", dtype_name(x.dtype))
    return cast_array(np.eye(x.shape[0], x.shape[1], k=c.get("k", 0), dtype=np.int64), to)


def _compute_eye(c: Compute, x: te.Tensor) -> te.Tensor:
    def body(row: Any, column: Any) -> Expr:
        return te.equal(column - row, c.get("k", 0)).astype(c.outputs[0].dtype)

    return te.stage(c.out_shape(), body, name="eye")


register("EyeLike", _infer_eye, _eye, _compute_eye, "injective", takes="input[_ _]", traits="cheap grows")


# ------------------------------------------------------------------------------------------------------------ Range


def _scalars(c: Use, values: Sequence[Array | None]) -> list[Any] | None:
    """Start, limit and step in the type that they are added in; None where one is not known."""
    found = []
    for value in values:
        if value is None:
            return None
        found.append(wide(np.asarray(value)).reshape(-1)[0])
    if found[2] == 0:
        raise c.error("its step must not be 0")
    if not all(math.isfinite(one) for one in found):
        raise c.error(f"numbers from {found[0]} to {found[1]} in steps of {found[2]} are no finite list")
    return found


def _range_length(start: Any, limit: Any, step: Any) -> int:
    if isinstance(start, np.integer):
        first, last, by = int(start), int(limit), int(step)
        return max(0, -(-(last - first) // by))
    return max(0, math.ceil((float(limit) - float(start)) / float(step)))


def _infer_range(c: Infer) -> Sequence[Type]:
    for position in range(3):
        expect_one_element(c, position)
    numbers = _scalars(c, [c.value(i) for i in range(3)])
    return [TensorType(c.tensor(0).dtype, (unknown_dim("range") if numbers is None else _range_length(*numbers),))]


def _range(c: Evaluate, start: Array, limit: Array, step: Array) -> Array:
    numbers = _scalars(c, [start, limit, step])
    assert numbers is not None
    first, _, by = numbers
    places = np.arange(_range_length(*numbers)).astype(first.dtype)
    return np.asarray(first + places * by, first.dtype).astype(start.dtype)


def _compute_range(c: Compute, *inputs: te.Tensor | None) -> te.Tensor | None:
    numbers = _scalars(c, [c.value(i) for i in range(3)])
    if numbers is None:
        return None
    to = c.outputs[0].dtype
    kind = wide_type(to)
    first, by = te.const(numbers[0], kind), te.const(numbers[2], kind)
    return te.stage(c.out_dims(), lambda i: (first + i.astype(kind) * by).astype(to), name="range")


register(
    "Range",
    _infer_range,
    _range,
    _compute_range,
    "injective",
    shape_inputs=(0, 1, 2),
    sizing=(1,),
    takes="start:number, limit:start, delta:start",
    traits="cheap grows",
)


# ---------------------------------------------------------------------------------------------------------- windows

_WINDOWS: dict[str, tuple[float, ...]] = {
    "HannWindow": (0.5, -0.5),
    "HammingWindow": (25 / 46, -21 / 46),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}
"""A window is a sum of cosines: these are their weights, from the constant one on."""


def _window_period(c: Use, size: int) -> int:
    return max(1, size if c.get("periodic", 1) else size - 1)


def _infer_window(c: Infer) -> Sequence[Type]:
    value = c.value(0)
    size: Any = unknown_dim("window") if value is None else int(value.reshape(-1)[0])
    if isinstance(size, int) and size < 0:
        raise c.error(f"a window cannot have {size} elements")
    return [TensorType(element_type(c, "output_datatype", "float32"), (size,))]


def _window(weights: tuple[float, ...]) -> Callable[..., Value]:
    def body(b: Builder, size: Value) -> Value:
        """A constant, once its size is known."""
        known = b.scope.constant(size)
        if known is None:
            raise Unexpanded
        count = int(known.reshape(-1)[0])
        angle = np.arange(count) * (2 * math.pi / _window_period(b.use, count))
        made = sum((weight * np.cos(order * angle) for order, weight in enumerate(weights)), np.zeros(count))
        return b.constant(cast_array(made, element_type(b.use, "output_datatype", "float32")), None)

    return body


for _name, _weights in _WINDOWS.items():
    compose(_name, _window(_weights), (0,), infer=_infer_window, takes="size:int[]|[1]")


# -------------------------------------------------------------------------------------------------- MelWeightMatrix


def _one(value: Array) -> Any:
    return value.reshape(-1)[0]


def _infer_mel(c: Infer) -> Sequence[Type]:
    bands, length = c.value(0), c.value(1)
    for what, given in (("num_mel_bins", bands), ("dft_length", length)):
        if given is not None and int(_one(given)) < 0:
            raise c.error(f"{what} is {int(_one(given))}, which is negative")
    rows: Any = unknown_dim("bins") if length is None else int(_one(length)) // 2 + 1
    columns: Any = unknown_dim("bands") if bands is None else int(_one(bands))
    return [TensorType(element_type(c, "output_datatype", "float32"), (rows, columns))]


def _mel(c: Evaluate, bands: Array, length: Array, rate: Array, lower: Array, upper: Array) -> Array:
    """Triangles over the bins of a spectrum, their corners equally far apart on the mel scale."""
    count, size = int(_one(bands)), int(_one(length))
    low, high = (2595 * math.log10(1 + float(_one(edge)) / 700) for edge in (lower, upper))
    mel = np.arange(count + 2) * ((high - low) / (count + 2)) + low
    hertz = 700 * (10 ** (mel / 2595) - 1)
    corners = np.floor((size + 1) * hertz / int(_one(rate))).astype(np.int64)
    left, peak, right = corners[:-2], corners[1:-1], corners[2:]
    bin_ = np.arange(size // 2 + 1)[:, None]
    rising = np.where(peak > left, (bin_ - left) / np.maximum(peak - left, 1), (bin_ == peak) * 1.0)
    falling = (right - bin_) / np.maximum(right - peak, 1)
    made = np.where((bin_ >= left) & (bin_ <= peak), rising, 0.0)
    made = np.where((bin_ > peak) & (bin_ < right), falling, made)
    return cast_array(made, element_type(c, "output_datatype", "float32"))


register(
    "MelWeightMatrix",
    _infer_mel,
    _mel,
    shape_inputs=(0, 1, 2, 3, 4),
    takes="num_mel_bins:int[]|[1], dft_length:int[]|[1], sample_rate:int[]|[1], lower_edge_hertz:float[]|[1], "
    "upper_edge_hertz:float[]|[1]",
)

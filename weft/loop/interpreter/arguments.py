"""Arguments of a program: sizes found from the arrays' shapes, arrays laid out as the program sees them.

An array that lies in memory as its buffer is declared is used in place. Any other (other strides, packed dtypes) is
copied in before the program runs and, if the program writes it, copied back when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import ArgumentError
from weft.expr.nodes import Buffer, Expr, Var
from weft.loop.interpreter.memory import Memory, compact_strides, memory_size, packed_row
from weft.loop.interpreter.values import element_type, to_python
from weft.loop.ir import Func

Sizes = dict[Var, Any]
Evaluate = Callable[[Expr, Sizes], Any]


class Bound(NamedTuple):
    """Arguments made ready: values of scalars and sizes, memory and shape of buffers, and what to do at the end."""

    values: Sizes
    memories: dict[Buffer, Memory]
    shapes: dict[Buffer, tuple[int, ...]]
    finish: list[Callable[[], None]]


def bind_arguments(
    func: Func,
    args: Sequence[Any],
    sizes: Mapping[str, int] | None,
    written: set[Buffer],
    levels: int,
    evaluate: Evaluate,
) -> Bound:
    """Checks the arguments of a call and makes them ready."""
    if len(args) != len(func.params):
        wanted = ", ".join(param.name for param in func.params)
        raise ArgumentError(f"{func.name!r} takes {len(func.params)} arguments ({wanted}), not {len(args)}")
    values: Sizes = {}
    arrays: list[tuple[Buffer, np.ndarray[Any, Any]]] = []
    for param, arg in zip(func.params, args):
        if isinstance(param, Buffer):
            arrays.append((param, _array(func, param, arg, param in written)))
        else:
            values[param] = _scalar(func, param, arg)
    _bind_sizes(func, arrays, sizes or {}, values)
    bound = Bound(values, {}, {}, [])
    for buffer, array in arrays:
        shape = _check_shape(func, buffer, array, values, evaluate)
        strides = compact_strides(shape, buffer.dtype)
        if buffer.strides is not None:
            strides = tuple(int(evaluate(stride, values)) for stride in buffer.strides)
        tracked = levels if buffer in written else 0
        bound.shapes[buffer] = shape
        bound.memories[buffer] = _lay_out(buffer, array, shape, strides, tracked, buffer in written, bound.finish)
    return bound


def _array(func: Func, buffer: Buffer, arg: Any, written: bool) -> np.ndarray[Any, Any]:
    where = f"argument {buffer.name} of {func.name!r}"
    if not isinstance(arg, np.ndarray):
        raise ArgumentError(f"{where} must be a numpy array of {buffer.dtype}, not {type(arg).__name__}")
    if arg.dtype != buffer.dtype.numpy:
        packed = (
            f" ({buffer.dtype} is packed, low bits first, in bytes along the last axis)"
            if buffer.dtype.is_packed
            else ""
        )
        raise ArgumentError(f"{where} has dtype {arg.dtype}; it must be {buffer.dtype.numpy}{packed}")
    if arg.ndim != len(buffer.shape) and not (buffer.dtype.is_packed and not buffer.shape and arg.shape == (1,)):
        raise ArgumentError(f"{where} has {arg.ndim} dimensions {arg.shape}; it must have {len(buffer.shape)}")
    if written and not arg.flags.writeable:
        raise ArgumentError(f"{where} is written by the program but the array is read-only: pass a copy")
    return arg


def _scalar(func: Func, param: Var, arg: Any) -> Any:
    where = f"argument {param.name} of {func.name!r}"
    if isinstance(arg, np.ndarray) and arg.ndim == 0:
        arg = arg[()]
    kind = param.dtype
    fits: Any = (int, np.integer, np.bool_)
    if kind.is_float:
        fits = (*fits, float, np.floating, kind.numpy.type)
    if not isinstance(arg, fits):
        raise ArgumentError(f"{where} must be a number that fits {kind}, not {arg!r}")
    if kind.is_integer and not kind.min <= int(arg) <= kind.max:
        raise ArgumentError(f"{where} is {arg}, which does not fit {kind} ({kind.min} to {kind.max})")
    return to_python(arg, kind)


def _bind_sizes(
    func: Func, arrays: Sequence[tuple[Buffer, np.ndarray[Any, Any]]], sizes: Mapping[str, int], values: Sizes
) -> None:
    """Gives each size its value: from `sizes`, else from the first dimension or stride that is just this variable."""
    wanted = {var.name: var for var in func.size_vars}
    for name, size in sizes.items():
        if name not in wanted:
            raise ArgumentError(f"{func.name!r} has no size {name!r}; its sizes are {', '.join(wanted) or 'none'}")
        values[wanted[name]] = int(size)
    for buffer, array in arrays:
        for d, extent in enumerate(buffer.shape):
            last_packed = buffer.dtype.is_packed and d == len(buffer.shape) - 1
            if isinstance(extent, Var) and extent not in values and not last_packed:
                values[extent] = array.shape[d]
    for buffer, array in arrays:
        for d, stride in enumerate(buffer.strides or ()):
            if isinstance(stride, Var) and stride not in values:
                values[stride] = _stride(func, buffer, array, d)
    missing = [var.name for var in func.size_vars if var not in values]
    if missing:
        raise ArgumentError(
            f"the size {missing[0]} of {func.name!r} cannot be found from the arguments' shapes: "
            f"give it as sizes={{{missing[0]!r}: …}}"
        )


def _stride(func: Func, buffer: Buffer, array: np.ndarray[Any, Any], d: int) -> int:
    stride = array.strides[d] * 8
    last = buffer.dtype.is_packed and d == array.ndim - 1
    if stride < 0 or stride % buffer.dtype.bits:
        raise ArgumentError(
            f"argument {buffer.name} of {func.name!r} has a stride of {array.strides[d]} bytes in dimension {d}, "
            "which is not a whole number of elements forward: pass a contiguous copy"
        )
    return 1 if last else stride // buffer.dtype.bits


def _check_shape(
    func: Func, buffer: Buffer, array: np.ndarray[Any, Any], values: Sizes, evaluate: Evaluate
) -> tuple[int, ...]:
    shape = tuple(int(evaluate(extent, values)) for extent in buffer.shape)
    expected = list(shape)
    if buffer.dtype.is_packed:
        expected[-1:] = [packed_row(shape[-1], buffer.dtype) * buffer.dtype.bits // 8] if shape else list(array.shape)
    if tuple(expected) != array.shape:
        known = ", ".join(f"{var.name}={values[var]}" for var in func.size_vars)
        raise ArgumentError(
            f"argument {buffer.name} of {func.name!r} has shape {array.shape}; it must be {tuple(expected)}"
            + (f" with {known}" if known else "")
            + (" (bytes along the last axis)" if buffer.dtype.is_packed else "")
        )
    return shape


def unpack(array: np.ndarray[Any, Any], buffer: Buffer) -> np.ndarray[Any, Any]:
    """Packed bytes as one element a slot, low bits first along the last axis."""
    bits = buffer.dtype.bits
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    spread = (np.atleast_1d(array)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    flat = spread.reshape(*spread.shape[:-2], -1)
    if not buffer.dtype.is_signed:
        return flat.astype(np.uint8)
    wide = flat.astype(np.int16)
    return np.where(wide >= 1 << (bits - 1), wide - (1 << bits), wide).astype(np.int8)


def pack(elements: np.ndarray[Any, Any], buffer: Buffer) -> np.ndarray[Any, Any]:
    """The opposite of `unpack`; the last axis holds whole bytes."""
    bits = buffer.dtype.bits
    per_byte = 8 // bits
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    grouped = elements.view(np.uint8).reshape(*elements.shape[:-1], -1, per_byte) & np.uint8((1 << bits) - 1)
    packed: np.ndarray[Any, Any] = np.bitwise_or.reduce(grouped << shifts, axis=-1).astype(np.uint8)
    return packed


def _lay_out(
    buffer: Buffer, array: np.ndarray[Any, Any], shape: tuple[int, ...], strides: tuple[int, ...], levels: int,
    written: bool, finish: list[Callable[[], None]],
) -> Memory:  # fmt: skip
    compact = compact_strides(shape, buffer.dtype)
    if not buffer.dtype.is_packed and array.flags.c_contiguous and strides == compact:
        return Memory(buffer, strides, array.reshape(-1), False, levels)
    source = unpack(array, buffer) if buffer.dtype.is_packed else array
    data = np.zeros(memory_size(shape, strides, buffer.dtype), element_type(buffer.dtype))
    if data.size:
        inner = source[tuple(slice(0, extent) for extent in shape)] if shape else source.reshape(-1)[0]
        _strided(data, shape, strides)[...] = inner
    if written and data.size:

        def copy_back() -> None:
            result = _strided(data, shape, strides)
            if buffer.dtype.is_packed:
                source[tuple(slice(0, extent) for extent in shape) if shape else 0] = result
                array[...] = pack(source, buffer).reshape(array.shape)
            else:
                array[...] = result

        finish.append(copy_back)
    return Memory(buffer, strides, data, False, levels)


def _strided(data: np.ndarray[Any, Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.lib.stride_tricks.as_strided(data, shape, [stride * data.itemsize for stride in strides])

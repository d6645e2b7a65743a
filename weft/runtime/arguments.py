"""From the arguments of one call to the slots that compiled code reads.

In: a signature and the arguments. Out: the slots, as bytes. Two ways that accept the same calls:

    bind           every argument checked in turn; an ArgumentError names the parameter, what was given and what to do
    fast_binder    Python source made for one signature: plain numpy arrays that fit go straight through, and for
                   anything else it answers None, whereupon `bind` says what is wrong (or accepts it: torch tensors, …)

For `add(A: float32[n], B: float32[n] written)` the source is

    def fast(arguments):
        a0, a1 = arguments
        if type(a0) is not ndarray or a0.dtype is not d0 or type(a1) is not ndarray or a1.dtype is not d1: return None
        h0 = a0.shape; h1 = a1.shape
        if len(h0) != 1: return None
        s0 = h0[0]
        if h0 != (s0,) or h1 != (s0,) or not a0.flags.c_contiguous or not a1.flags.carray: return None
        p0 = head(id(a0)).data; p1 = head(id(a1)).data
        if p1 < p0 + a0.nbytes and p0 < p1 + a1.nbytes: return None
        return pack(p0, p1, s0)
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import BFLOAT16, DType
from weft.core.errors import ArgumentError
from weft.runtime.addresses import ADDRESS_SOURCE, ArrayHead
from weft.runtime.arrays import ALIGNMENT, AnyArray, Array, as_argument, describe
from weft.runtime.signature import (
    OPERATIONS,
    Dim,
    Parameter,
    Signature,
    evaluate,
    format_dim,
    format_dims,
    solve,
)

FastBinder = Callable[[Sequence[Any]], "bytes | None"]


def slot_format(signature: Signature) -> str:
    """The `struct` format of the slots: 8 bytes each; unsigned and floating-point scalars are given by their bits."""
    signed = [p.shape is not None or p.dtype.is_signed or p.dtype.is_bool for p in signature.parameters]
    return "<" + "".join("q" if is_signed else "Q" for is_signed in signed) + "q" * len(signature.size_names)


def memory_of(value: AnyArray) -> AnyArray:
    """All the bytes that a bound array spans, from its first element on, as one array over the same memory."""
    low, high = _memory_bounds(value)
    if value.size == 0:
        return np.empty(0, np.uint8)
    if low != value.ctypes.data:
        raise ArgumentError(f"an array whose elements run backwards (strides {value.strides}) cannot go to a device")
    held = (ctypes.c_uint8 * (high - low)).from_address(low)
    held._owner = value  # type: ignore[attr-defined]
    spanned: AnyArray = np.ctypeslib.as_array(held)
    return spanned


def scalar_of_bits(bits: int, element: DType) -> Any:
    """The numpy scalar that a slot's number stands for (see `encode_scalar`)."""
    if element.is_integer or element.is_bool:
        return element.numpy.type(bits)
    return np.array([bits & ((1 << element.bits) - 1)], f"u{element.bytes}").view(element.numpy)[0]


# ---------------------------------------------------------------- the way that explains


def share(signature: Signature, arguments: Sequence[Any]) -> list[Any] | None:
    """The arguments with a numpy array over the memory of each that is not one; None when `bind` has to look closer."""
    if len(arguments) != len(signature.parameters):
        return None
    shared = []
    for parameter, argument in zip(signature.parameters, arguments):
        if parameter.shape is None or type(argument) is np.ndarray:
            shared.append(argument)
        elif parameter.dtype.is_packed:
            return None
        else:
            shared.append(as_argument(argument, parameter.dtype, _where(signature, parameter)))
    return shared


def bind(signature: Signature, arguments: Sequence[Any]) -> tuple[bytes, list[Any]]:
    """The slots for a call, and what must stay alive while it runs."""
    parameters = signature.parameters
    if len(arguments) != len(parameters):
        names = ", ".join(parameter.name for parameter in parameters)
        raise ArgumentError(f"{signature.name} takes {len(parameters)} arguments ({names}), but got {len(arguments)}")
    values: list[Any] = []
    sizes: dict[str, int] = {}
    for parameter, argument in zip(parameters, arguments):
        where = _where(signature, parameter)
        if parameter.shape is not None:
            values.append(as_argument(argument, parameter.dtype, where))
        else:
            values.append(encode_scalar(argument, parameter.dtype, where))
            if parameter.dtype.is_integer:
                sizes[parameter.name] = values[-1]
    shapes = [_logical_shape(p, argument, value) for p, argument, value in zip(parameters, arguments, values)]
    is_bare = [p.dtype.is_packed and not isinstance(argument, Array) for p, argument in zip(parameters, arguments)]
    _bind_sizes(signature, values, shapes, sizes)
    for parameter, value, shape, bare in zip(parameters, values, shapes, is_bare):
        if parameter.shape is not None:
            _check_shape(signature, parameter, value, None if bare else shape, sizes)
            _check_memory(signature, parameter, value, sizes)
    _check_overlap(signature, values)
    slots = [value.ctypes.data if p.shape is not None else value for p, value in zip(parameters, values)]
    packed = struct.pack(slot_format(signature), *slots, *(sizes[name] for name in signature.size_names))
    return packed, values


def encode_scalar(value: Any, element: DType, where: str) -> int:
    """A scalar argument as its slot: the value of an integer, the bits of a float."""
    if isinstance(value, (str, bytes)) or getattr(value, "ndim", 0) != 0:
        raise ArgumentError(f"{where}: expected a {element} scalar, but {describe(value)} was given")
    if element.is_float:
        return _encode_float(value, element, where)
    if element.is_bool:
        if not isinstance(value, (bool, np.bool_)):
            raise ArgumentError(f"{where}: expected True or False, but {describe(value)} was given")
        return int(value)
    if not hasattr(value, "__index__"):
        raise ArgumentError(f"{where}: expected a {element} (a whole number), but {describe(value)} was given")
    try:
        number = int(value.__index__())
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentError(
            f"{where}: expected a {element} (a whole number), but {describe(value)} was given"
        ) from None
    least, most = (0, 2**64 - 1) if element.kind == "handle" else (element.min, element.max)
    if not least <= number <= most:
        raise ArgumentError(f"{where}: {number} does not fit {element}, which holds {least} to {most}")
    return number


def _encode_float(value: Any, element: DType, where: str) -> int:
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ArgumentError(f"{where}: expected a {element} number, but {describe(value)} was given") from None
    if element is BFLOAT16:
        with np.errstate(over="ignore"):
            stored = np.array(number).astype(BFLOAT16.numpy)
        if np.isinf(stored) and abs(number) != float("inf"):
            raise ArgumentError(f"{where}: {number} is too large for {element}")
        return int.from_bytes(stored.tobytes(), sys.byteorder)
    try:
        return int.from_bytes(_FLOAT_FORMATS[element.bits].pack(number), "little")
    except OverflowError:
        raise ArgumentError(f"{where}: {number} is too large for {element}") from None


_FLOAT_FORMATS = {16: struct.Struct("<e"), 32: struct.Struct("<f"), 64: struct.Struct("<d")}


def _where(signature: Signature, parameter: Parameter) -> str:
    return f"{signature.name}: parameter {parameter.name!r}"


def _logical_shape(parameter: Parameter, argument: Any, value: Any) -> tuple[int, ...]:
    """The extents in elements. Bare bytes of a packed type are taken to be full."""
    if parameter.shape is None:
        return ()
    if isinstance(argument, Array):
        return argument.shape
    shape = tuple(int(extent) for extent in value.shape)
    if parameter.dtype.is_packed and shape:
        return (*shape[:-1], shape[-1] * 8 // parameter.dtype.bits)
    return shape


def _bind_sizes(signature: Signature, values: list[Any], shapes: list[tuple[int, ...]], sizes: dict[str, int]) -> None:
    for parameter, shape in zip(signature.parameters, shapes):
        if parameter.shape is not None and len(shape) != len(parameter.shape):
            raise ArgumentError(
                f"{_where(signature, parameter)}: expected {len(parameter.shape)} axes, shape "
                f"{format_dims(parameter.shape)}, but an array of shape {shape} was given; reshape it"
            )
    for binding in signature.bindings:
        parameter = signature.parameters[binding.parameter]
        if binding.in_strides:
            seen = values[binding.parameter].strides[binding.axis] // parameter.dtype.bytes
        else:
            seen = shapes[binding.parameter][binding.axis]
        try:
            found = solve(binding.dim, binding.name, seen, sizes)
        except ZeroDivisionError:
            raise ArgumentError(
                f"{_where(signature, parameter)}: its size {format_dim(binding.dim, sizes)} divides by zero"
            ) from None
        if found < 0 and not binding.in_strides:
            raise ArgumentError(
                f"{_where(signature, parameter)}: axis {binding.axis} is {seen} = {format_dim(binding.dim, sizes)}, "
                f"which makes {binding.name} negative"
            )
        sizes[binding.name] = found


def _evaluate_dims(
    dims: tuple[Dim, ...], sizes: dict[str, int], signature: Signature, parameter: Parameter
) -> tuple[int, ...]:
    try:
        return tuple(evaluate(dim, sizes) for dim in dims)
    except ZeroDivisionError:
        text = format_dims(dims, sizes)
        raise ArgumentError(f"{_where(signature, parameter)}: its size {text} divides by zero") from None


def _check_shape(
    signature: Signature, parameter: Parameter, value: AnyArray, shape: tuple[int, ...] | None, sizes: dict[str, int]
) -> None:
    """`shape` is None for bare bytes of a packed type: they fit when there are as many as the elements need."""
    assert parameter.shape is not None
    expected = _evaluate_dims(parameter.shape, sizes, signature, parameter)
    if shape == expected:
        return
    hint, given = "", shape
    if shape is None:
        stored = (*expected[:-1], -(-expected[-1] * parameter.dtype.bits // 8))
        given = tuple(value.shape)
        if given == stored:
            return
        hint = f", that is {value.dtype} of shape {stored}"
    raise ArgumentError(
        f"{_where(signature, parameter)}: expected shape {format_dims(parameter.shape, sizes)}{hint}, "
        f"but an array of shape {given} was given"
    )


def _check_memory(signature: Signature, parameter: Parameter, value: AnyArray, sizes: dict[str, int]) -> None:
    where = _where(signature, parameter)
    if parameter.strides is not None:
        strides = _evaluate_dims(parameter.strides, sizes, signature, parameter)
        _check_strides(where, parameter, value, strides, sizes)
    elif not value.flags.c_contiguous:
        raise ArgumentError(
            f"{where}: expected a C-contiguous array, but one of shape {value.shape} with strides {value.strides} "
            "bytes was given; copy it with numpy.ascontiguousarray(value)"
        )
    if parameter.written and not value.flags.writeable:
        raise ArgumentError(f"{where}: the function writes to it, but the array given is read-only; give a copy")
    past = value.ctypes.data % parameter.needed_alignment
    if value.size and past:
        raise ArgumentError(
            f"{where}: its memory must start at a multiple of {parameter.needed_alignment} bytes, but the array given "
            f"starts {past} bytes past one; copy it with weft.runtime.array(value), which aligns to {ALIGNMENT}"
        )


def _check_strides(
    where: str, parameter: Parameter, value: AnyArray, strides: tuple[int, ...], sizes: dict[str, int]
) -> None:
    if value.size == 0:
        return
    assert parameter.strides is not None
    in_bytes = tuple(stride * value.itemsize for stride in strides)
    if any(extent > 1 and a != b for extent, a, b in zip(value.shape, value.strides, in_bytes)):
        raise ArgumentError(
            f"{where}: expected strides {format_dims(parameter.strides, sizes)} in elements, that is {in_bytes} bytes, "
            f"but an array with strides {value.strides} bytes was given"
        )
    if parameter.written and _meets_itself(value):
        raise ArgumentError(
            f"{where}: the function writes to it, but elements of the array given share memory; give a copy"
        )


def _meets_itself(value: AnyArray) -> bool:
    """Whether two elements may lie at one place: some axis steps less than the axes below it span."""
    span = value.itemsize
    for stride, extent in sorted((abs(stride), extent) for stride, extent in zip(value.strides, value.shape)):
        if extent > 1:
            if stride < span:
                return True
            span += stride * (extent - 1)
    return False


def _memory_bounds(value: AnyArray) -> tuple[int, int]:
    """First byte, and the one after the last."""
    low = high = value.ctypes.data
    if value.size == 0:
        return low, low
    for stride, extent in zip(value.strides, value.shape):
        reach = stride * (extent - 1)
        low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return low, high + value.itemsize


def _has_memory(parameter: Parameter, value: Any) -> bool:
    return parameter.shape is not None and value.size > 0


def _check_overlap(signature: Signature, values: list[Any]) -> None:
    """Compiled code assumes that what it writes is nothing else that it was given."""
    arrays = [(p, _memory_bounds(value)) for p, value in zip(signature.parameters, values) if _has_memory(p, value)]
    for index, (first, (low, high)) in enumerate(arrays):
        for second, (other_low, other_high) in arrays[index + 1 :]:
            if (first.written or second.written) and low < other_high and other_low < high:
                written, other = (first, second) if first.written else (second, first)
                raise ArgumentError(
                    f"{_where(signature, written)}: the function writes to it, but its memory overlaps that of "
                    f"{other.name!r}; give one of them as a copy (value.copy())"
                )


# ---------------------------------------------------------------- the quick way


def fast_binder(signature: Signature) -> FastBinder:
    """The function described at the top of this file. It never raises for arguments that `bind` would explain."""
    if any(p.strides is not None for p in signature.parameters):
        return _nothing_is_fast
    source = fast_source(signature)
    scope: dict[str, Any] = {
        "ndarray": np.ndarray,
        "head": ArrayHead.from_address,
        "pack": struct.Struct(slot_format(signature)).pack,
        "encode_scalar": encode_scalar,
    }
    for index, parameter in enumerate(signature.parameters):
        scope[f"d{index}"] = parameter.dtype.numpy if parameter.shape is not None else parameter.dtype
    exec(compile(source, f"<arguments of {signature.name}>", "exec"), scope)  # noqa: S102
    fast: FastBinder = scope["fast"]
    return fast


def _nothing_is_fast(arguments: Sequence[Any]) -> None:
    """Arrays with gaps need the longer tests."""


def fast_source(signature: Signature) -> str:
    """The source of `fast_binder`."""
    locals_of_sizes = {name: f"s{index}" for index, name in enumerate(signature.size_names)}
    for index, parameter in enumerate(signature.parameters):
        if parameter.shape is None:
            locals_of_sizes[parameter.name] = f"a{index}"
    arrays = [(index, p) for index, p in enumerate(signature.parameters) if p.shape is not None]
    count = len(signature.parameters)
    lines = [f"{''.join(f'a{i}, ' for i in range(count))} = arguments"] if count else []
    lines += _type_tests(signature)
    lines += [f"h{index} = a{index}.shape" for index, _ in arrays]
    lines += _refuse(f"len(h{index}) != {len(p.shape or ())}" for index, p in arrays)
    lines += [_size_line(signature, number, locals_of_sizes) for number in range(len(signature.bindings))]
    lines += _refuse(f"{locals_of_sizes[b.name]} < 0" for b in signature.bindings if isinstance(b.dim, tuple))
    lines += _refuse(test for index, p in arrays for test in _layout_tests(index, p, locals_of_sizes))
    lines += [f"p{index} = {ADDRESS_SOURCE.format(f'a{index}')}" for index, _ in arrays]
    lines += _refuse(f"p{index} % {p.needed_alignment}" for index, p in arrays if p.needed_alignment > 1)
    lines += _refuse(_overlap_tests(arrays))
    slots = [f"p{i}" if p.shape is not None else f"x{i}" for i, p in enumerate(signature.parameters)]
    lines.append(f"return pack({', '.join(slots + [locals_of_sizes[name] for name in signature.size_names])})")
    body = "\n        ".join(lines)
    return (
        f"def fast(arguments):\n    try:\n        {body}\n"
        "    except (ArithmeticError, ValueError, TypeError):\n        return None\n"
    )


def _refuse(tests: Any) -> list[str]:
    joined = " or ".join(tests)
    return [f"if {joined}: return None"] if joined else []


def _type_tests(signature: Signature) -> list[str]:
    tests = []
    lines = []
    for index, p in enumerate(signature.parameters):
        if p.shape is not None:
            tests.append(f"type(a{index}) is not ndarray or a{index}.dtype is not d{index}")
        elif p.dtype.is_integer:
            tests.append(f"type(a{index}) is not int or not {p.dtype.min} <= a{index} <= {p.dtype.max}")
            lines.append(f"x{index} = a{index}")
        else:
            lines.append(f"x{index} = encode_scalar(a{index}, d{index}, '')")
    return _refuse(tests) + lines


def _size_line(signature: Signature, number: int, names: dict[str, str]) -> str:
    binding = signature.bindings[number]
    parameter = signature.parameters[binding.parameter]
    seen = f"h{binding.parameter}[{binding.axis}]"
    if parameter.dtype.is_packed and binding.axis == len(parameter.shape or ()) - 1:
        seen = f"({seen} * 8 // {parameter.dtype.bits})"
    return f"{names[binding.name]} = {_solve_source(binding.dim, binding.name, seen, names)}"


def _solve_source(dim: Dim, name: str, value: str, names: dict[str, str]) -> str:
    """What `solve` computes, as source; where that has a zero test this divides by zero, and `bind` decides."""
    if not isinstance(dim, tuple):
        return value
    operation, a, b = dim
    inside, outside = (a, b) if _mentions(a, name) else (b, a)
    other = _dim_source(outside, names)
    if operation == "sub":
        inverse = f"({value} + {other})" if inside is a else f"({other} - {value})"
    else:
        inverse = f"({value} - {other})" if operation == "add" else f"({value} // {other})"
    return _solve_source(inside, name, inverse, names)


def _mentions(dim: Dim, name: str) -> bool:
    return any(_mentions(part, name) for part in dim[1:]) if isinstance(dim, tuple) else dim == name


def _dim_source(dim: Dim, names: dict[str, str]) -> str:
    if isinstance(dim, tuple):
        return OPERATIONS[dim[0]][1].format(_dim_source(dim[1], names), _dim_source(dim[2], names))
    return names[dim] if isinstance(dim, str) else repr(dim)


def _layout_tests(index: int, parameter: Parameter, names: dict[str, str]) -> list[str]:
    extents = [_dim_source(dim, names) for dim in parameter.shape or ()]
    if parameter.dtype.is_packed:
        extents[-1] = f"-(-({extents[-1]} * {parameter.dtype.bits}) // 8)"
    tests = [f"h{index} != ({''.join(f'{extent}, ' for extent in extents)})"]
    tests.append(f"not a{index}.flags.{'carray' if parameter.written else 'c_contiguous'}")
    return tests


def _overlap_tests(arrays: list[tuple[int, Parameter]]) -> list[str]:
    tests = []
    for position, (i, first) in enumerate(arrays):
        for j, second in arrays[position + 1 :]:
            if first.written or second.written:
                tests.append(f"p{i} < p{j} + a{j}.nbytes and p{j} < p{i} + a{i}.nbytes")
    return tests

"""Sequences (Python lists when they run) and optional values (None when they are absent)."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.graph.ir import Array, Dim, OptionalType, SequenceType, TensorType, Type
from weft.graph.opspec import Evaluate, Infer, Use, register
from weft.graph.shapes import unknown_dim
from weft.ops.control import body_of, common_type, outside_type
from weft.ops.elementwise_support import element_type
from weft.ops.movement_indices import axis_of, integers, with_dim


def _element(c: Infer, position: int = 0) -> Type:
    """The type of a sequence's elements."""
    found = c.types[position] if position < len(c.types) else None
    if isinstance(found, OptionalType):
        found = found.of
    if not isinstance(found, SequenceType):
        raise c.error(f"input {position} must be a sequence, not {found!r}")
    return found.of


def _joined(a: Type, b: Type) -> Type:
    """The type of the elements of a sequence that gets another element."""
    found = common_type(a, b)
    if found is not None:
        return found
    return b if isinstance(a, TensorType) and a.shape is None else a


def _place(c: Use, position: Array | None, count: int, default: int) -> int:
    at = default if position is None else int(np.asarray(position).reshape(-1)[0])
    if not -count <= at <= count:
        raise c.error(f"position {at} is outside a sequence of {count}")
    return at + count if at < 0 else at


# ------------------------------------------------------------------------------------------------ making sequences


def _construct_infer(c: Infer) -> list[Type]:
    kinds = [c.tensor(k) for k in range(len(c.types))]
    found: Type = kinds[0]
    for kind in kinds[1:]:
        found = _joined(found, kind)
    return [SequenceType(found)]


register("SequenceConstruct", _construct_infer, lambda c, *arrays: list(arrays), takes="inputs, more?, ...")
register(
    "SequenceEmpty",
    lambda c: [SequenceType(TensorType(element_type(c, "dtype", "float32"), None))],
    lambda c: [],
    takes="",
)


def _insert(c: Evaluate, sequence: list[Any], tensor: Array, position: Array | None = None) -> list[Any]:
    at = _place(c, position, len(sequence), len(sequence))
    return [*sequence[:at], tensor, *sequence[at:]]


register(
    "SequenceInsert",
    lambda c: [SequenceType(_joined(_element(c), c.tensor(1)))],
    _insert,
    takes="sequence, tensor, position:int[]|[1]?",
)


def _taken(c: Use, position: Array | None, count: int) -> int:
    at = _place(c, position, count, count - 1)
    if at >= count:
        raise c.error(f"position {at} is outside a sequence of {count}")
    return at


def _erase(c: Evaluate, sequence: list[Any], position: Array | None = None) -> list[Any]:
    at = _taken(c, position, len(sequence))
    return [*sequence[:at], *sequence[at + 1 :]]


register("SequenceErase", lambda c: [SequenceType(_element(c))], _erase, takes="sequence, position:int[]|[1]?")
register(
    "SequenceAt",
    lambda c: [_element(c)],
    lambda c, sequence, position: sequence[_taken(c, position, len(sequence))],
    takes="sequence, position:int[]|[1]",
)
register(
    "SequenceLength",
    lambda c: [TensorType("int64", ())],
    lambda c, sequence: np.array(len(sequence), np.int64),
    takes="sequence",
)


# -------------------------------------------------------------------------------------------- tensors and sequences


def _split_infer(c: Infer) -> list[Type]:
    x = c.tensor(0)
    if x.shape is None:
        return [SequenceType(TensorType(x.dtype, None))]
    axis = axis_of(c, x.rank)
    if not c.get("keepdims", 1):
        dropped = (*x.shape[:axis], *x.shape[axis + 1 :])
        if not c.has(1):
            return [SequenceType(TensorType(x.dtype, dropped))]
        lengths, value = c.tensor(1), c.value(1)
        if lengths.shape is None or (not lengths.shape and value is None):
            return [SequenceType(TensorType(x.dtype, None))]
        if not lengths.shape and value is not None and int(value) == 1:
            return [SequenceType(TensorType(x.dtype, dropped))]
    size: Dim = unknown_dim("part") if c.has(1) else 1
    return [SequenceType(TensorType(x.dtype, with_dim(x.shape, axis, size)))]


def _split(c: Evaluate, x: Array, split: Array | None = None) -> list[Any]:
    axis = axis_of(c, x.ndim)
    size = x.shape[axis]
    # ONNX ignores keepdims where `split` is given; a single 1 is how torch writes unbind, and runtimes heed it there.
    if split is None or (split.ndim == 0 and int(split) == 1):
        parts = [np.take(x, [k], axis=axis) for k in range(size)]
        return parts if c.get("keepdims", 1) else [np.squeeze(p, axis) for p in parts]
    sizes = integers(split)
    if split.ndim == 0:
        if sizes[0] < 1:
            raise c.error(f"parts of {sizes[0]}")
        if size == 0:  # no part, rather than one that is empty
            return []
        bounds = list(range(0, size, sizes[0]))
    else:
        if sum(sizes) != size or any(s < 0 for s in sizes):
            raise c.error(f"parts of {sizes} do not make up a dimension of {size}")
        bounds = [0, *np.cumsum(sizes)[:-1].tolist()]
    return [np.array(p) for p in np.split(x, bounds[1:], axis=axis)]


register("SplitToSequence", _split_infer, _split, shape_inputs=(1,), takes="input[_ *s], split:int[]|[_]?")


def _concat_infer(c: Infer) -> list[Type]:
    kind = _element(c)
    if not isinstance(kind, TensorType):
        raise c.error(f"the elements of the sequence must be tensors, not {kind!r}")
    if kind.shape is None:
        return [TensorType(kind.dtype, None)]
    if c.get("new_axis", 0):
        axis = axis_of(c, len(kind.shape) + 1, c.need("axis"))
        return [TensorType(kind.dtype, (*kind.shape[:axis], unknown_dim("length"), *kind.shape[axis:]))]
    axis = axis_of(c, kind.rank, c.need("axis"))
    return [TensorType(kind.dtype, with_dim(kind.shape, axis, unknown_dim("total")))]


def _concat(c: Evaluate, sequence: list[Any]) -> Array:
    if not sequence:
        raise c.error("the sequence is empty: there is nothing to join")
    axis = int(c.need("axis"))
    try:
        return np.stack(sequence, axis=axis) if c.get("new_axis", 0) else np.concatenate(sequence, axis=axis)
    except ValueError:
        raise c.error(f"shapes {', '.join(str(list(a.shape)) for a in sequence)} cannot be joined") from None


register("ConcatFromSequence", _concat_infer, _concat, takes="sequence")


# ----------------------------------------------------------------------------------------------------- SequenceMap


def _map_infer(c: Infer) -> list[Any]:
    found: list[Any] = []
    for value in body_of(c).outputs:
        kind = outside_type(value.type)
        found.append(None if kind is None else SequenceType(kind))
    return found


def _map(c: Evaluate, sequence: list[Any], *others: Any) -> tuple[list[Any], ...]:
    body = body_of(c)
    for other in others:
        if isinstance(other, list) and len(other) != len(sequence):
            raise c.error(f"sequences of {len(sequence)} and {len(other)} elements")
    columns: list[list[Any]] = [[] for _ in body.outputs]
    for position, element in enumerate(sequence):
        given = [o[position] if isinstance(o, list) else o for o in others]
        for column, value in zip(columns, c.run(body, [element, *given])):
            column.append(value)
    return tuple(columns)


register("SequenceMap", _map_infer, _map, takes="sequence, more?, ...")


# ------------------------------------------------------------------------------------------------- optional values


def _optional_infer(c: Infer) -> list[Any]:
    given = c.types[0] if c.has(0) else c.get("type")
    return [OptionalType(given if given is not None else TensorType("float32", None))]


def _has_element(c: Evaluate, value: Any = None) -> Array:
    return np.array(value is not None)


def _get_infer(c: Infer) -> list[Any]:
    found = c.types[0] if c.types else None
    return [found.of if isinstance(found, OptionalType) else found]


def _get_element(c: Evaluate, value: Any = None) -> Any:
    if value is None:
        raise c.error("the optional value is absent")
    return value


register("Optional", _optional_infer, lambda c, value=None: value, takes="input?")
register("OptionalHasElement", lambda c: [TensorType("bool", ())], _has_element, takes="input?")
register("OptionalGetElement", _get_infer, _get_element, takes="input?")

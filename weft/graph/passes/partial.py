"""Integer tensors of which only some elements are known, or known as symbolic sizes.

    Shape(%x: float32[n, 3, 8])      [n, 3, 8]
    Concat(Gather(…, 0), [-1])       [n, -1]           so that Reshape(%x, …) is float32[n, 24]

An element is a number, an index expression, or None. Operators that only move elements are followed by running their
numpy meaning on element numbers; sums, products and quotients by the arithmetic of dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.core import model
from weft.core.errors import WeftError
from weft.expr.nodes import Expr
from weft.graph import shapes
from weft.graph.interpreter import operator_of
from weft.graph.ir import Dim, Node, TensorType, Type, same_dim
from weft.graph.opspec import has

_ARITHMETIC = {"Add": shapes.plus, "Sub": shapes.minus, "Mul": shapes.times, "Div": shapes.divided}


class Partial:
    """A shape, and its elements in order."""

    __slots__ = ("shape", "elements")

    def __init__(self, shape: Sequence[int], elements: Sequence[Dim | None]) -> None:
        self.shape = tuple(shape)
        self.elements = tuple(elements)

    @property
    def numbers(self) -> list[int] | None:
        """The elements, where all are numbers."""
        found = [one for one in self.elements if isinstance(one, int)]
        return found if len(found) == len(self.elements) else None


def partial_results(node: Node, inputs: Sequence[Partial | None]) -> list[Partial | None]:
    """What is known of the outputs' elements."""
    nothing: list[Partial | None] = [None] * len(node.outputs)
    if node.domain or node.graphs:
        return nothing
    if node.op == "Shape":
        return [_shape(node)]
    if not any(p is not None for p in inputs):
        return nothing
    # Which element of a window is the largest its number does not say.
    moves = has(node, "moves", "joins") and not has(node, "windowed")
    if moves or (node.op == "Cast" and _is_integer(node.outputs[0].type)):
        return _moved(node, inputs) or nothing
    if node.op in _ARITHMETIC and len(inputs) == 2 and inputs[0] is not None and inputs[1] is not None:
        return [_arithmetic(node.op, inputs[0], inputs[1])]
    return nothing


def _is_integer(type: Type | None) -> bool:
    return isinstance(type, TensorType) and type.dtype in ("int64", "int32")


def _shape(node: Node) -> Partial | None:
    source = node.inputs[0].type if node.inputs[0] is not None else None
    if not isinstance(source, TensorType) or source.shape is None:
        return None
    dims = source.shape[slice(node.attributes.get("start", 0), node.attributes.get("end"))]
    return Partial((len(dims),), dims)


def _moved(node: Node, inputs: Sequence[Partial | None]) -> list[Partial | None] | None:
    """Runs the node on the numbers of the elements: shape-like inputs must be known, the data need not be."""
    if not _is_integer(node.outputs[0].type) or _elements(node) > model.FOLLOWED_ELEMENTS:
        return None
    data = range(len(inputs)) if has(node, "joins") else (0,)
    pool: list[Dim | None] = []
    arrays: list[Any] = []
    for at, value in enumerate(node.inputs):
        some = inputs[at]
        if value is None:
            arrays.append(None)
        elif some is None and at in data and isinstance(value.type, TensorType) and value.type.is_static:
            arrays.append(np.full(value.type.static, -1, np.int64))
        elif some is None:
            return None
        elif at in data:
            arrays.append(np.arange(len(pool), len(pool) + len(some.elements)).reshape(some.shape))
            pool += some.elements
        elif some.numbers is None:
            return None
        else:
            arrays.append(np.array(some.numbers, np.int64).reshape(some.shape))
    if has(node, "grows") and (np.prod(arrays[1]) > model.FOLLOWED_ELEMENTS or arrays[0].size > 64):
        return None
    if node.op == "Cast":
        made = [arrays[0]]
    else:
        try:
            made = operator_of(node).run(node, arrays)
        except WeftError:
            return None
    return [Partial(a.shape, [pool[i] if i >= 0 else None for i in a.ravel()]) for a in made]


def _elements(node: Node) -> int:
    """How many elements the inputs have together; those of unknown sizes are not counted."""
    types = [value.type for value in node.inputs if value is not None]
    return sum(math.prod(t.static) for t in types if isinstance(t, TensorType) and t.is_static)


def _arithmetic(op: str, a: Partial, b: Partial) -> Partial | None:
    try:
        left, right = np.broadcast_arrays(
            np.arange(len(a.elements)).reshape(a.shape), np.arange(len(b.elements)).reshape(b.shape)
        )
    except ValueError:
        return None
    out: list[Dim | None] = []
    for i, j in zip(left.ravel(), right.ravel()):
        x, y = a.elements[i], b.elements[j]
        # A quotient of integers is cut towards zero: only where nothing is negative is that the quotient of sizes.
        bad = x is None or y is None or (op == "Div" and not (isinstance(y, int) and y > 0 and _is_size(x)))
        out.append(None if x is None or y is None or bad else _ARITHMETIC[op](x, y))
    return Partial(left.shape, out)


def _is_size(dim: Dim) -> bool:
    return dim >= 0 if isinstance(dim, int) else isinstance(dim, Expr) and not hasattr(dim, "a")


# ------------------------------------------------------------------------------------------- shapes from elements


def refined(
    node: Node, inputs: Sequence[Type | None], outputs: Sequence[Type | None], partials: Sequence[Partial | None]
) -> Sequence[Type | None]:
    """The types of the outputs, with sizes that follow from partly known shape operands."""
    rule = None if node.domain or not outputs else _SHAPES.get(node.op)
    found = outputs[0] if outputs else None
    if rule is None or not isinstance(found, TensorType) or found.is_static:
        return outputs
    dims = rule(node, inputs, partials)
    return outputs if dims is None else [TensorType(found.dtype, dims), *outputs[1:]]


Partials = Sequence["Partial | None"]


def _given(partials: Partials, at: int) -> Partial | None:
    return partials[at] if at < len(partials) else None


def _reshape_dims(node: Node, inputs: Sequence[Type | None], partials: Partials) -> list[Dim] | None:
    wanted = _given(partials, 1)
    if wanted is None or wanted.numbers is not None:
        return None
    return _reshaped(inputs[0], wanted, bool(node.attributes.get("allowzero", 0)))


def _filled_dims(node: Node, inputs: Sequence[Type | None], partials: Partials) -> list[Dim] | None:
    wanted = _given(partials, 0)
    if wanted is None or wanted.numbers is not None:
        return None
    return [shapes.unknown_dim("size") if one is None else one for one in wanted.elements]


def _expanded_dims(node: Node, inputs: Sequence[Type | None], partials: Partials) -> list[Dim] | None:
    """Those of a broadcast: an open size against another is the greater one, for none is taken to be less than 1."""
    wanted, source = _given(partials, 1), inputs[0]
    if wanted is None or not isinstance(source, TensorType) or source.shape is None:
        return None
    known = [one for one in wanted.elements if one is not None and not (isinstance(one, int) and one < 1)]
    if len(known) != len(wanted.elements):
        return None
    made = shapes.broadcast([source.shape, tuple(known)])
    return None if made is None else list(made)


def _known(some: Partial | None) -> list[int] | None:
    return None if some is None else some.numbers


def _sliced_dims(node: Node, inputs: Sequence[Type | None], partials: Partials) -> list[Dim] | None:
    """Stretches from a number up to a size. Where that gives less than 1 it is no stretch, and nobody relies on it."""
    source, (starts, ends, axes, steps) = inputs[0], (_given(partials, at) for at in range(1, 5))
    if not isinstance(source, TensorType) or source.shape is None or starts is None or ends is None:
        return None
    count = len(starts.elements)
    chosen = list(range(count)) if len(partials) < 4 or node.inputs[3] is None else _known(axes)
    by = [1] * count if len(partials) < 5 or node.inputs[4] is None else _known(steps)
    if chosen is None or by is None or starts.numbers is None or any(step != 1 for step in by):
        return None
    dims = list(source.shape)
    for axis, start, end in zip(chosen, starts.numbers, ends.elements):
        if start < 0 or end is None or (isinstance(end, int) and end < 0):
            return None
        last = dims[axis] if isinstance(end, int) and end >= shapes.FAR else shapes.least(dims[axis], end)
        dims[axis] = shapes.minus(last, start)
    return dims


def _range_dims(node: Node, inputs: Sequence[Type | None], partials: Partials) -> list[Dim] | None:
    """Numbers one by one from a known one up to a size; where those are less than 1, nobody relies on it."""
    start, limit, step = (_given(partials, at) for at in range(3))
    if start is None or limit is None or step is None or start.numbers is None or step.numbers != [1]:
        return None
    end = limit.elements[0]
    return None if end is None else [shapes.minus(end, start.numbers[0])]


_SHAPES = {
    "Reshape": _reshape_dims,
    "ConstantOfShape": _filled_dims,
    "Expand": _expanded_dims,
    "Slice": _sliced_dims,
    "Range": _range_dims,
}


def _reshaped(source: Type | None, wanted: Partial, allow_zero: bool) -> list[Dim] | None:
    if not isinstance(source, TensorType):
        return None
    dims: list[Dim | None] = list(wanted.elements)
    if source.shape is not None and not allow_zero:
        for at, dim in enumerate(dims):
            if isinstance(dim, int) and dim == 0:
                if at >= len(source.shape):
                    return None
                dims[at] = source.shape[at]
    free = [at for at, dim in enumerate(dims) if isinstance(dim, int) and dim == -1]
    unknown = any(dim is None for dim in dims)
    if len(free) == 1 and source.shape is not None and not unknown:
        dims[free[0]] = _remaining(
            list(source.shape), [d for at, d in enumerate(dims) if at != free[0] and d is not None]
        )
    elif free:
        dims = [None if at in free else d for at, d in enumerate(dims)]
    return [shapes.unknown_dim("reshape") if dim is None else dim for dim in dims]


def _remaining(source: list[Dim], rest: list[Dim]) -> Dim | None:
    """The size that is left for -1: equal sizes cancel, then numbers divide."""
    for dim in list(rest):
        for at, other in enumerate(source):
            if same_dim(dim, other):
                del source[at]
                rest.remove(dim)
                break
    if any(not isinstance(dim, int) for dim in rest):
        return None
    below = shapes.product(rest)
    if isinstance(below, int) and below > 0:
        return shapes.divided(shapes.product(source), below)
    return None

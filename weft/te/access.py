"""Finds reads that fall outside a tensor, when the program is described rather than when it runs.

In: the operations of a program. Out: nothing, or an ExpressionError with an index that is certainly wrong:

    te.compute((8,), lambda i: A[i + 1])        with A of shape (8,)
    -> B reads A[i + 1], and dimension 0 of A has 8 elements: at i = 7 the index is 8

A read is refused only with such a witness, so a program that is right is never refused. What depends on data (a gather)
or on how two unrelated sizes compare is left to whoever calls the function.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from weft.core.errors import ExpressionError, WeftError
from weft.expr.bounds import Ranges, interval
from weft.expr.evaluate import evaluate
from weft.expr.nodes import And, Expr, Load, Or, Select, Var, int_value, logical_not
from weft.expr.visit import children, free_vars
from weft.te.axis import IterVar
from weft.te.tensor import ComputeOp, Reduce

Conditions = tuple[Expr, ...]
SIZES_TRIED = (48, 64, 96)
"""Values tried for a symbolic size: an index must be wrong for all of them (they divide well, as real sizes do)."""
MOST_AXES = 6


def check_reads(op: ComputeOp) -> None:
    """Raises where the operation certainly reads outside a tensor."""
    axes = {axis.var: axis for axis in (*op.axis, *op.reduce_axis)}
    ranges = Ranges()
    for axis in axes.values():
        if axis.extent is not None:
            ranges = ranges.with_loop(axis.var, axis.extent)
    for load, conditions in _reads(op):
        for dim, (index, size) in enumerate(zip(load.indices, load.buffer.shape)):
            if not _surely_inside(index, size, ranges):
                _look(op, load, dim, conditions, axes)


def _reads(op: ComputeOp) -> Iterator[tuple[Load, Conditions]]:
    for body in op.bodies:
        if isinstance(body, Reduce):
            yield from _loads(body.condition, ())
            for source in body.sources:
                yield from _loads(source, (body.condition,))
        else:
            yield from _loads(body, ())


def _loads(e: Expr, conditions: Conditions) -> Iterator[tuple[Load, Conditions]]:
    """The loads of an expression, each with the conditions under which it happens."""
    if isinstance(e, Select):
        yield from _loads(e.condition, conditions)
        yield from _loads(e.then, (*conditions, e.condition))
        yield from _loads(e.otherwise, (*conditions, logical_not(e.condition)))
    elif isinstance(e, (And, Or)):
        yield from _loads(e.a, conditions)
        yield from _loads(e.b, (*conditions, e.a if isinstance(e, And) else logical_not(e.a)))
    else:
        if isinstance(e, Load):
            yield e, conditions
        for child in children(e):
            yield from _loads(child, conditions)


def _surely_inside(index: Expr, size: Expr, ranges: Ranges) -> bool:
    if index in ranges and isinstance(index, Var):
        _, high = ranges.get(index) or (None, None)
        if high is not None and int_value(high) is None:  # an axis of symbolic extent read at the axis itself
            return False
    limit = int_value(size)
    if limit is None:
        return False
    low, high_value = interval(index, ranges)
    return low is not None and high_value is not None and low >= 0 and high_value < limit


def _look(op: ComputeOp, load: Load, dim: int, conditions: Conditions, axes: Mapping[Var, IterVar]) -> None:
    """Raises if some point of the iteration is a witness that the read falls outside."""
    index, size = load.indices[dim], load.buffer.shape[dim]
    involved = free_vars(index, *conditions)
    used = [axes[v] for v in involved if v in axes]
    loose = {v for v in involved if v not in axes}
    extents = [axis.extent for axis in used if axis.extent is not None]
    ranged = set(free_vars(*extents))
    if not used and loose or loose - ranged or len(used) > MOST_AXES:
        return
    sizes = list(free_vars(size, *extents))
    if sizes and set(free_vars(size)) != ranged:
        return
    found: tuple[dict[Var, int], int, int] | None = None
    for value in SIZES_TRIED if sizes else (0,):
        found = _witness(index, size, conditions, used, dict.fromkeys(sizes, value))
        if found is None:
            return
    assert found is not None
    point, at, limit = found
    where = ", ".join(f"{v.name} = {value}" for v, value in point.items()) or "every point"
    raise ExpressionError(
        f"{op.name} reads {load!r}, and dimension {dim} of {load.buffer.name} has {limit} elements: "
        f"at {where} the index is {at} ({op.origin})"
    )


def _witness(
    index: Expr, size: Expr, conditions: Conditions, used: Sequence[IterVar], sizes: dict[Var, int]
) -> tuple[dict[Var, int], int, int] | None:
    choices = []
    try:
        limit = evaluate(size, sizes)
        for axis in used:
            extent = 0 if axis.extent is None else evaluate(axis.extent, sizes)
            if extent < 1:
                return None
            choices.append(sorted({0, extent - 1, extent // 2}))
        for point in itertools.product(*choices):
            values = {**sizes, **{axis.var: value for axis, value in zip(used, point)}}
            if all(evaluate(c, values) for c in conditions):
                at = evaluate(index, values)
                if not 0 <= at < limit:
                    return values, at, limit
    except WeftError:  # it depends on data, or divides by zero somewhere: nothing is certain
        return None
    return None

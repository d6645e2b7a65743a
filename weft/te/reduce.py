"""Reductions: sum, max, min, prod, any, all, and reducers that the user declares (argmax and the like)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.core.dtypes import BOOL, DType
from weft.core.errors import DTypeError, ExpressionError
from weft.expr.nodes import (
    TRUE,
    Expr,
    add,
    as_expr,
    const,
    logical_and,
    logical_or,
    maximum,
    minimum,
    mul,
)
from weft.te.axis import IterVar
from weft.te.math import condition
from weft.te.tensor import Reduce, Reducer


def _axes(axis: Any, what: str) -> tuple[IterVar, ...]:
    axes = tuple(axis) if isinstance(axis, (list, tuple)) else (axis,)
    if not axes:
        raise ExpressionError(f"te.{what} needs at least one reduce axis")
    seen = set()
    for one in axes:
        if not isinstance(one, IterVar) or one.kind != "reduce":
            raise ExpressionError(f"te.{what} reduces over axes made by te.reduce_axis, not {one!r}")
        if one in seen:
            raise ExpressionError(f"te.{what} was given the axis {one.name} twice")
        seen.add(one)
    return axes


def reduce_with(reducer: Reducer, sources: Any, axis: Any, where: Any = None, init: Any = None) -> Reduce:
    """The reduction of one source, or of a tuple of sources, by a reducer."""
    given = tuple(as_expr(s) for s in (sources if isinstance(sources, tuple) else (sources,)))
    test = TRUE if where is None else as_expr(condition(where, f"te.{reducer.name}"))
    if not test.dtype.is_bool:
        raise DTypeError(f"the condition of te.{reducer.name} must be bool, not {test.dtype}")
    kinds = [s.dtype for s in given]
    identity = tuple(reducer.identity(kinds)) if init is None else _initial(reducer, init, kinds)
    for made, kind in zip(identity, kinds):
        if made.dtype is not kind:
            raise DTypeError(f"the identity of te.{reducer.name} is {made.dtype} where the source is {kind}")
    combined = tuple(reducer.combine(identity, given))
    for made, kind in zip(combined, kinds):
        if made.dtype is not kind:
            raise DTypeError(f"the reducer {reducer.name} turns {kind} into {made.dtype}")
    return Reduce(reducer, given, _axes(axis, reducer.name), test, identity)


def _initial(reducer: Reducer, init: Any, kinds: Sequence[DType]) -> tuple[Expr, ...]:
    values = init if isinstance(init, tuple) else (init,)
    if len(values) != len(kinds):
        raise ExpressionError(f"te.{reducer.name} reduces {len(kinds)} values and init gives {len(values)}")
    return tuple(as_expr(value, kind) for value, kind in zip(values, kinds))


def _simple(
    name: str, combine: Callable[[Expr, Expr], Expr], identity: Callable[[DType], Any]
) -> Callable[..., Reduce]:
    reducer = Reducer(name, lambda a, b: [combine(a[0], b[0])], lambda kinds: [const(identity(kinds[0]), kinds[0])])

    def reduce(expr: Any, axis: Any, where: Any = None, init: Any = None) -> Reduce:
        source = as_expr(expr)
        if source.dtype.is_bool:
            raise DTypeError(f"te.{name} of bool is not defined: cast first, for instance x.astype('int32')")
        return reduce_with(reducer, source, axis, where, init)

    reduce.__name__ = name
    reduce.__doc__ = f"The {name} of an expression over reduce axes, where a condition holds, starting from `init`."
    return reduce


sum = _simple("sum", add, lambda kind: 0)
prod = _simple("prod", mul, lambda kind: 1)
max = _simple("max", maximum, lambda kind: kind.min)
min = _simple("min", minimum, lambda kind: kind.max)

_any = Reducer("any", lambda a, b: [logical_or(a[0], b[0])], lambda kinds: [const(False, BOOL)])
_all = Reducer("all", lambda a, b: [logical_and(a[0], b[0])], lambda kinds: [const(True, BOOL)])


def any(*terms: Any, axis: Any = None, where: Any = None) -> Any:
    """With `axis`: whether one of the terms holds anywhere along it. Without: whether one of them holds here."""
    joined = logical_or(*[condition(term, "te.any") for term in terms])
    return joined if axis is None else reduce_with(_any, joined, axis, where)


def all(*terms: Any, axis: Any = None, where: Any = None) -> Any:
    """With `axis`: whether the terms hold everywhere along it. Without: whether they all hold here."""
    joined = logical_and(*[condition(term, "te.all") for term in terms])
    return joined if axis is None else reduce_with(_all, joined, axis, where)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def comm_reducer(
    combine: Callable[[Any, Any], Any], identity: Callable[..., Any], name: str = "reduce"
) -> Callable[..., Reduce]:
    """A reducer of one's own: `combine(x, y)` is associative and commutative, `identity(dtype, …)` its neutral value.

    For several values at once, combine takes and gives tuples, and identity takes one dtype for each:

        argmax = te.comm_reducer(
            lambda x, y: (te.select(x[1] >= y[1], x[0], y[0]), te.maximum(x[1], y[1])), lambda t0, t1: (-1, t1.min))
        te.compute((n,), lambda i: argmax((k, A[i, k]), axis=k))
    """

    def run(a: Sequence[Expr], b: Sequence[Expr]) -> Sequence[Expr]:
        made = _as_tuple(combine(a[0], b[0]) if len(a) == 1 else combine(tuple(a), tuple(b)))
        if len(made) != len(a):
            raise ExpressionError(f"the reducer {name} combines {len(a)} values into {len(made)}")
        return tuple(as_expr(value, part.dtype) for value, part in zip(made, a))

    def neutral(kinds: Sequence[DType]) -> Sequence[Expr]:
        made = _as_tuple(identity(*kinds))
        if len(made) != len(kinds):
            raise ExpressionError(f"the identity of {name} gives {len(made)} values for {len(kinds)}")
        return tuple(as_expr(value, kind) for value, kind in zip(made, kinds))

    reducer = Reducer(name, run, neutral)

    def reduce(expr: Any, axis: Any, where: Any = None, init: Any = None) -> Reduce:
        return reduce_with(reducer, expr, axis, where, init)

    reduce.__name__ = name
    return reduce

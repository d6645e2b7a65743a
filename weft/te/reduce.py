"""Reductions: sum, max, min, prod, any, all, and reducers that the user declares (argmax and the like).

A `Reduce` is the whole body of a compute; it is not an expression, because it has no value at a single point of the
reduction axis.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

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
from weft.te.tensor import IterVar


class Reducer:
    """An associative, commutative combination of one or several values, with its identity."""

    __slots__ = ("name", "combine", "identity")

    def __init__(
        self,
        name: str,
        combine: Callable[[Sequence[Expr], Sequence[Expr]], Sequence[Expr]],
        identity: Callable[[Sequence[DType]], Sequence[Expr]],
    ) -> None:
        self.name = name
        self.combine = combine
        self.identity = identity


class Reduce:
    """A reduction of source expressions over axes, where a condition holds."""

    __slots__ = ("reducer", "sources", "axes", "condition", "identity")

    def __init__(
        self, reducer: Reducer, sources: Sequence[Expr], axes: Sequence[IterVar], condition: Expr, identity: Sequence[Expr]
    ) -> None:
        self.reducer = reducer
        self.sources = tuple(sources)
        self.axes = tuple(axes)
        self.condition = condition
        self.identity = tuple(identity)


def _refuse(self: Any, *others: Any) -> Any:
    raise ExpressionError(
        "a reduction must be the whole body of te.compute: give it a compute of its own and use its result in another"
    )


for _name in "add radd sub rsub mul rmul truediv rtruediv floordiv mod lt le gt ge and or neg".split():
    setattr(Reduce, f"__{_name}__", _refuse)
Reduce.astype = _refuse  # type: ignore[attr-defined]


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
    condition = TRUE if where is None else as_expr(where)
    if not condition.dtype.is_bool:
        raise DTypeError(f"the condition of te.{reducer.name} must be bool, not {condition.dtype}")
    kinds = [s.dtype for s in given]
    if init is None:
        identity = tuple(reducer.identity(kinds))
    else:
        identity = tuple(as_expr(i, k) for i, k in zip(init if isinstance(init, tuple) else (init,), kinds))
    for made, kind in zip(identity, kinds):
        if made.dtype is not kind:
            raise DTypeError(f"the identity of te.{reducer.name} is {made.dtype} where the source is {kind}")
    return Reduce(reducer, given, _axes(axis, reducer.name), condition, identity)


def _simple(name: str, combine: Callable[[Expr, Expr], Expr], identity: Callable[[DType], Any]) -> Callable[..., Reduce]:
    reducer = Reducer(name, lambda a, b: [combine(a[0], b[0])], lambda kinds: [const(identity(kinds[0]), kinds[0])])

    def reduce(expr: Any, axis: Any, where: Any = None, init: Any = None) -> Reduce:
        source = as_expr(expr)
        if source.dtype.is_bool and name in ("sum", "prod", "max", "min"):
            raise DTypeError(f"te.{name} of bool is not defined: cast first, for instance x.astype('int32')")
        return reduce_with(reducer, source, axis, where, init)

    reduce.__name__ = name
    reduce.__doc__ = f"The {name} of an expression over reduce axes, where a condition holds."
    return reduce


sum = _simple("sum", add, lambda kind: 0)
prod = _simple("prod", mul, lambda kind: 1)
max = _simple("max", maximum, lambda kind: kind.min)
min = _simple("min", minimum, lambda kind: kind.max)

_any = Reducer("any", lambda a, b: [logical_or(a[0], b[0])], lambda kinds: [const(False, BOOL)])
_all = Reducer("all", lambda a, b: [logical_and(a[0], b[0])], lambda kinds: [const(True, BOOL)])


def any(*terms: Any, axis: Any = None, where: Any = None) -> Any:
    """With `axis`: whether the expression holds anywhere along it. Without: whether one of the terms holds."""
    if axis is None:
        return logical_or(*terms)
    return reduce_with(_any, logical_or(*terms), axis, where)


def all(*terms: Any, axis: Any = None, where: Any = None) -> Any:
    """With `axis`: whether the expression holds everywhere along it. Without: whether all terms hold."""
    if axis is None:
        return logical_and(*terms)
    return reduce_with(_all, logical_and(*terms), axis, where)


def comm_reducer(
    combine: Callable[[Any, Any], Any], identity: Callable[..., Any], name: str = "reduce"
) -> Callable[..., Reduce]:
    """A reducer of one's own: `combine(x, y)` must be associative and commutative, `identity(dtype, …)` its neutral value.

    For several values at once, combine takes and gives tuples, and identity takes one dtype for each:
    `argmax = te.comm_reducer(lambda x, y: (select(x[1] >= y[1], x[0], y[0]), maximum(x[1], y[1])), lambda t0, t1: (-1, t1.min))`.
    """

    def as_tuple(value: Any) -> tuple[Any, ...]:
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def run(a: Sequence[Expr], b: Sequence[Expr]) -> Sequence[Expr]:
        made = as_tuple(combine(a[0], b[0]) if len(a) == 1 else combine(tuple(a), tuple(b)))
        if len(made) != len(a):
            raise ExpressionError(f"the reducer {name} combines {len(a)} values into {len(made)}")
        out = tuple(as_expr(value, part.dtype) for value, part in zip(made, a))
        for value, part in zip(out, a):
            if value.dtype is not part.dtype:
                raise DTypeError(f"the reducer {name} turns {part.dtype} into {value.dtype}")
        return out

    def neutral(kinds: Sequence[DType]) -> Sequence[Expr]:
        made = as_tuple(identity(*kinds))
        if len(made) != len(kinds):
            raise ExpressionError(f"the identity of {name} gives {len(made)} values for {len(kinds)}")
        return tuple(as_expr(value, kind) for value, kind in zip(made, kinds))

    reducer = Reducer(name, run, neutral)

    def reduce(expr: Any, axis: Any, where: Any = None, init: Any = None) -> Reduce:
        return reduce_with(reducer, expr, axis, where, init)

    reduce.__name__ = name
    return reduce

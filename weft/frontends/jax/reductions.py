"""Converters of what runs along axes: reductions, running sums, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import Unsupported, is_float, limits
from weft.frontends.jax.elementwise import bits_of, total_order, wide
from weft.frontends.jax.emit import JaxEmitter
from weft.frontends.jax.table import primitive
from weft.graph.ir import Value

NEUTRAL = {"add": 0, "mul": 1, "max": -np.inf, "min": np.inf, "or": False, "and": True}
_REDUCE = {"add": "ReduceSum", "mul": "ReduceProd", "max": "ReduceMax", "min": "ReduceMin"}
_COMBINE = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}


def widened(c: JaxEmitter, x: Value) -> Value:
    """x in a type that every operator of integers takes."""
    kind = x.tensor.dtype
    if kind == "bool" or (not is_float(kind) and bits_of(kind) < 32):
        return c.cast(x, "uint32" if kind.startswith("uint") else "int32")
    return x


def neutral(combine: str, kind: str) -> Any:
    """What changes nothing in a reduction."""
    if combine in ("max", "min"):
        return limits(kind)[0 if combine == "max" else 1]
    return NEUTRAL[combine]


def reduced(c: JaxEmitter, combine: str, x: Value, axes: Sequence[int]) -> Value:
    """x reduced over axes, in a type as wide as x."""
    kind, axes = x.tensor.dtype, list(map(int, axes))
    if not axes:
        return x
    if 0 in x.tensor.static:
        sizes = [size for axis, size in enumerate(x.tensor.static) if axis not in axes]
        return c.filled(sizes, neutral(combine, kind), kind)
    if combine in ("or", "and"):
        if kind != "bool":
            raise Unsupported(f"reduce_{combine} of {kind}")
        combine = "max" if combine == "or" else "min"
    x = widened(c, x)
    (x,) = wide(c, x) if combine in ("add", "mul") else (x,)
    return c.cast(c.op(_REDUCE[combine], x, axes, keepdims=0), kind)


def _reduction(combine: str) -> Any:
    return lambda c, x, *, axes, **_: reduced(c, combine, x, axes)


for _name, _combine in (
    ("sum", "add"), ("prod", "mul"), ("max", "max"), ("min", "min"), ("or", "or"), ("and", "and"),
):  # fmt: skip
    primitive(f"reduce_{_name}")(_reduction(_combine))


@primitive("reduce_xor")
def _reduce_xor(c: JaxEmitter, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
    if x.tensor.dtype != "bool":
        raise Unsupported(f"reduce_xor of {x.tensor.dtype}")
    total = reduced(c, "add", c.cast(x, "int32"), axes)
    return c.op("Equal", c.op("Mod", total, np.int32(2)), np.int32(1))


def combinations(jaxpr: Any) -> list[str]:
    """The primitive by which each of several results is combined: f(a, b, x, y) = g(a, x), h(b, y)."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    count = len(inner.outvars)
    if len(inner.eqns) == 1 and inner.eqns[0].primitive.name in ("jit", "pjit"):
        if list(inner.eqns[0].invars) == list(inner.invars):
            return combinations(inner.eqns[0].params["jaxpr"])
    made = {equation.outvars[0]: equation for equation in inner.eqns}
    found = []
    for at, out in enumerate(inner.outvars):
        equation = made.get(out)
        name = "" if equation is None else str(equation.primitive.name)
        if (
            equation is None
            or name not in NEUTRAL
            or set(equation.invars) != {inner.invars[at], inner.invars[count + at]}
        ):
            raise Unsupported("a reduction by a function that is not add, mul, max, min, and, or")
        found.append(name)
    return found


@primitive("reduce")
def _reduce(c: JaxEmitter, *operands: Value, jaxpr: Any, dimensions: Sequence[int], **_: Any) -> list[Value]:
    found, names = [], {"or": "Or", "and": "And", **_COMBINE}
    count = len(operands) // 2
    for combine, x, first in zip(combinations(jaxpr), operands[:count], operands[count:]):
        made = reduced(c, combine, x, dimensions)
        if made.tensor.dtype == "bool":
            names.update(max="Or", min="And", add="Or", mul="And")
        found.append(c.op(names[combine], made, first))
    return found


def _arg(op: str) -> Any:
    def converter(c: JaxEmitter, x: Value, *, axes: Sequence[int], **_: Any) -> Value:
        x = widened(c, x)
        axis = int(axes[0])
        made = c.op(op, x, axis=axis, keepdims=0)
        if not is_float(x.tensor.dtype):
            return made
        lost = c.cast(c.op("IsNaN", x), "int32")  # the first NaN is the greatest and the least
        first = c.op("ArgMax", lost, axis=axis, keepdims=0)
        some = c.op("Greater", c.op("ReduceMax", lost, [axis], keepdims=0), np.int32(0))
        return c.where(some, first, made, "int64")

    return converter


primitive("argmax")(_arg("ArgMax"))
primitive("argmin")(_arg("ArgMin"))


# ----------------------------------------------------------------------------------------------------- running sums


def _running(c: JaxEmitter, x: Value, axis: int, reverse: bool, combine: Any, fill: Any) -> Value:
    """All before each element combined with it, by doubling: each step reaches twice as far back."""
    size, step, rank = x.tensor.static[axis], 1, x.tensor.rank
    while step < size:
        pads = [0] * (2 * rank)
        pads[axis + (rank if reverse else 0)] = step
        moved = c.op("Pad", x, pads, c.like(fill, x))
        moved = c.slice(moved, axis, step, size + step) if reverse else c.slice(moved, axis, 0, size)
        x = combine(x, moved)
        step *= 2
    return x


def _cumulative(op: str) -> Any:
    def converter(c: JaxEmitter, x: Value, *, axis: int, reverse: bool, **_: Any) -> Value:
        x = widened(c, x)
        (x,) = wide(c, x)
        return c.op(op, x, np.int64(axis), reverse=int(reverse) or None)

    return converter


def _running_extreme(op: str, end: int) -> Any:
    def converter(c: JaxEmitter, x: Value, *, axis: int, reverse: bool, **_: Any) -> Value:
        fill = limits(x.tensor.dtype)[end]
        return _running(c, x, axis, reverse, lambda a, b: c.op(op, a, b), fill)

    return converter


primitive("cumsum")(_cumulative("CumSum"))
primitive("cumprod")(_cumulative("CumProd"))
primitive("cummax")(_running_extreme("Max", 0))
primitive("cummin")(_running_extreme("Min", 1))


@primitive("cumlogsumexp")
def _cumlogsumexp(c: JaxEmitter, x: Value, *, axis: int, reverse: bool, **_: Any) -> Value:
    (x,) = wide(c, x)
    kind = x.tensor.dtype

    def combine(a: Value, b: Value) -> Value:
        most = c.op("Max", a, b)
        calm = c.where(c.op("IsInf", most), 0, most, kind)
        total = c.op("Add", *(c.op("Exp", c.op("Sub", one, calm)) for one in (a, b)))
        return c.where(c.op("Greater", most, c.like(np.inf, most)), most, c.op("Add", c.op("Log", total), calm), kind)

    return _running(c, x, axis, reverse, combine, -np.inf)


# ----------------------------------------------------------------------------------------------------------- sorting


def _sort_key(c: JaxEmitter, x: Value) -> Value:
    """Whole numbers in the order in which JAX sorts: NaN last, and -0 as 0."""
    kind = x.tensor.dtype
    if not is_float(kind):
        return widened(c, x)
    x = c.where(c.op("Equal", x, c.like(0, x)), 0, x, kind)
    x = c.where(c.op("IsNaN", x), np.nan, x, kind)
    return widened(c, total_order(c, x))


def _order(c: JaxEmitter, key: Value, axis: int) -> Value:
    """The places of elements in ascending order; equal ones as they stand."""
    return c.several(2, "TopK", key, [key.tensor.static[axis]], axis=axis, largest=0, sorted=1)[1]


@primitive("sort")
def _sort(c: JaxEmitter, *operands: Value, dimension: int, num_keys: int, **_: Any) -> list[Value]:
    if 0 in operands[0].tensor.static:
        return list(operands)
    places: Value | None = None
    for key in reversed(operands[:num_keys]):  # the last key first: each sort keeps the order of those before
        key = _sort_key(c, key)
        if places is None:
            places = _order(c, key, dimension)
        else:
            turn = _order(c, c.op("GatherElements", key, places, axis=dimension), dimension)
            places = c.op("GatherElements", places, turn, axis=dimension)
    return [c.op("GatherElements", one, places, axis=dimension) for one in operands]


def _top(c: JaxEmitter, x: Value, k: int, axis: int, largest: bool) -> list[Value]:
    key = widened(c, total_order(c, x))  # a NaN with a minus is the least of all here
    places = c.several(2, "TopK", key, [int(k)], axis=axis, largest=int(largest), sorted=1)[1]
    return [c.op("GatherElements", x, places, axis=axis), places]


@primitive("top_k")
def _top_k(c: JaxEmitter, x: Value, *, k: int, axis: int = -1, **_: Any) -> list[Value]:
    if not k or 0 in x.tensor.static:
        return [c.constant(np.zeros(a.shape, a.dtype)) for a in c.results]
    return _top(c, x, k, axis % x.tensor.rank, True)


@primitive("approx_top_k")
def _approx_top_k(
    c: JaxEmitter, x: Value, *, k: int, reduction_dimension: int, is_max_k: bool, aggregate_to_topk: bool, **_: Any
) -> list[Value]:
    axis = reduction_dimension % x.tensor.rank
    if c.shape[axis] != k:
        raise Unsupported("approx_top_k that is not aggregated to k")
    return _top(c, x, k, axis, is_max_k)

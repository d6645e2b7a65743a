"""Operators that write at places named by data: ScatterElements, ScatterND and the older Scatter.

Compiled, the data is copied and the updates follow one after the other, so that places named twice need no care; a
place outside the tensor is not written, and the call fails. Along axes whose places no data names, updates do not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, Var
from weft.graph.ir import Array
from weft.graph.opspec import Compute, Evaluate, Use, register
from weft.graph.signature import OneOf, Points, Within
from weft.loop.ir import For, Let, Stmt, Store, seq
from weft.loop.passes.bind_independent import NAME as INDEPENDENT
from weft.ops.elementwise_support import infer_same
from weft.ops.indexing import counted, elements_at
from weft.ops.movement_indices import axis_of, counted_index, output_type

_UFUNCS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
_COMBINE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": te.maximum,
    "min": te.minimum,
}


REDUCTIONS = ("none", *_UFUNCS)


def _reduction(c: Use) -> str:
    return str(c.get("reduction", "none"))


def _update(c: Use, data: Array, at: tuple[Any, ...], updates: Array) -> Array:
    out, name = np.array(data), _reduction(c)
    if name == "none":
        out[at] = updates
    else:
        _UFUNCS[name].at(out, at, updates)
    return out


def _nd(c: Evaluate, data: Array, indices: Array, updates: Array) -> Array:
    at = tuple(counted(c, indices[..., k], data.shape[k]) for k in range(indices.shape[-1]))
    return _update(c, data, at, updates)


# ------------------------------------------------------------------------------------------------------- compiled


def nest(extents: Sequence[int], body: Callable[[list[Var]], Stmt], prefix: str = "i", but: int | None = None) -> Stmt:
    """Loops over the extents around a body; independent `but` for one of them (-1: for none), where that is given."""
    variables = [Var(f"{prefix}{k}") for k in range(len(extents))]
    made = body(variables)
    for at, (variable, extent) in reversed(list(enumerate(zip(variables, extents)))):
        made = For(variable, extent, made, annotations={} if but is None or but == at else {INDEPENDENT: True})
    return made


def _write(c: Use, out: te.Tensor, at: Sequence[Expr], value: Expr) -> Stmt:
    name = _reduction(c)
    return Store(out, at, value if name == "none" else _COMBINE[name](out[tuple(at)], value))


def _counted(places: Sequence[tuple[Expr, int]], body: Callable[[list[Var]], Stmt]) -> Stmt:
    """The body with each place counted from the front."""
    variables = [Var(f"at{k}") for k in range(len(places))]
    made = body(variables)
    for variable, (place, size) in reversed(list(zip(variables, places))):
        made = Let(variable, counted_index(place, size), made)
    return made


def _scatter(c: Compute, tensors: Sequence[te.Tensor], write: Callable[[te.Tensor], Stmt]) -> Any:
    if _reduction(c) != "none" and output_type(c).is_bool:
        return None
    shape = c.out_shape()
    if 0 in shape and 0 not in c.shape(1):
        return None  # nothing has an index there: the host says so

    def build(given: Sequence[te.Tensor], made: Sequence[te.Tensor]) -> Stmt:
        copy = nest(shape, lambda i: Store(made[0], i, given[0][tuple(i)]), "c", -1)
        return seq(copy, write(made[0])) if 0 not in (*shape, *c.shape(1), *c.shape(2)) else copy

    return te.extern(shape, list(tensors), build, name="scatter", dtype=output_type(c))


def _elements_compute(c: Compute, data: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> Any:
    if not c.out_shape():
        return None
    shape = c.out_shape()
    axis = axis_of(c, len(shape))

    def write(out: te.Tensor) -> Stmt:
        def one(i: list[Var]) -> Stmt:
            return _counted(
                [(indices[tuple(i)], shape[axis])],
                lambda at: _write(c, out, (*i[:axis], at[0], *i[axis + 1 :]), updates[tuple(i)]),
            )

        return nest(c.shape(1), one, "u", axis)

    return _scatter(c, (data, indices, updates), write)


def _nd_compute(c: Compute, data: te.Tensor, indices: te.Tensor, updates: te.Tensor) -> Any:
    if not c.out_shape():
        return None
    shape, count = c.out_shape(), c.shape(1)[-1]

    def write(out: te.Tensor) -> Stmt:
        def one(i: list[Var]) -> Stmt:
            places = [(indices[(*i, k)], shape[k]) for k in range(count)]
            return _counted(
                places,
                lambda at: nest(shape[count:], lambda j: _write(c, out, (*at, *j), updates[(*i, *j)]), "s", -1),
            )

        return nest(c.shape(1)[:-1], one, "u")

    return _scatter(c, (data, indices, updates), write)


for _name in ("ScatterElements", "Scatter"):
    register(
        _name,
        infer_same,
        lambda c, data, indices, updates: _update(c, data, elements_at(c, data.shape, indices), updates),
        _elements_compute,
        takes="data, indices:int[*i], updates:data[*i]",
        requires=(Within(1, 0), OneOf("reduction", REDUCTIONS)),
        traits="empties",
    )
register(
    "ScatterND",
    infer_same,
    _nd,
    _nd_compute,
    takes="data, indices:int, updates:data",
    requires=(Points(updates=2), OneOf("reduction", REDUCTIONS)),
    traits="empties",
)

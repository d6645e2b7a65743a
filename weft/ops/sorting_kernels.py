"""TopK as loops: a short list kept in order by insertion, or a merge sort where many elements are asked for.

Each row (all indices but the one along the axis) is sorted alone. Elements are compared by a strict "comes before", so
that equal ones keep their order; NaN counts as greater than every number.

    insertion   for each chunk of x: if some element may come before the last of the k kept:
                    for i in chunk: if x[i] does: count those that stay before it, shift the others, put it there
    merge sort  order[0] = 0 … n-1; for each level: merge neighbouring runs of 2^level from one half of order
                into the other; the first k places of the last half are the result
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import te
from weft.expr.nodes import Expr, Var, index_expr, logical_and, logical_or
from weft.graph.opspec import Compute
from weft.loop.ir import For, If, Let, Stmt, Store, seq
from weft.ops.indexing_scatter import nest
from weft.ops.movement_indices import kernels_know, output_type

LONGEST_LIST = 1024
"""Up to this k the elements are kept in order by insertion,"""
LEAST_PER_KEPT = 4
"""if there are at least so many for each that is kept: the fewer stay, the fewer are ever put into the list."""
CHUNK = 64
"""Elements that are compared with the last of the list together, before any is looked at alone."""


def before(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether a comes before b in the result."""
    if a.dtype.is_bool:
        a, b = a.astype("int8"), b.astype("int8")
    ahead = a > b if largest else a < b
    if not a.dtype.is_float:
        return ahead
    odd, other = (a, b) if largest else (b, a)  # the NaN that stands first
    return logical_or(ahead, logical_and(te.isnan(odd), te.not_(te.isnan(other))))


def top_k(c: Compute, x: te.Tensor, axis: int) -> Any:
    """The values and places of the first k elements along the axis; None where there is no kernel."""
    count, size = c.out_shape()[axis], c.shape(0)[axis]
    if not kernels_know(c) or 0 in c.out_shape() or size >= 1 << 31:
        return None
    largest = bool(c.get("largest", 1))
    shape, kinds = c.out_shape(), [output_type(c), output_type(c, 1)]
    if count <= LONGEST_LIST and size >= LEAST_PER_KEPT * count:
        rows = [d for k, d in enumerate(shape) if k != axis]
        kept, found, _ = te.extern(
            [shape, shape, (*rows, 2)],
            [x],
            lambda i, o: _rows(c, axis, _insertion(i[0], o, axis, count, size, largest)),
            "top",
            [*kinds, "int32"],
        )
        values = te.compute(shape, lambda *i: kept[i], name="top_values")
        return values, te.compute(shape, lambda *i: found[i], name="top_places")
    rows = [d for k, d in enumerate(shape) if k != axis]
    order, _ = te.extern(
        [(*rows, 2, size), (*rows, 2)],
        [x],
        lambda i, o: _rows(c, axis, _merge_sort(i[0], o, axis, size, largest)),
        "order",
        ["int32", "int32"],
    )

    def place(i: tuple[Any, ...]) -> Expr:
        found = index_expr(order[(*i[:axis], *i[axis + 1 :], _levels(size) % 2, i[axis])])
        return te.minimum(te.maximum(found, 0), size - 1)

    values = te.compute(shape, lambda *i: x[(*i[:axis], place(i), *i[axis + 1 :])], name="top_values")
    return values, te.compute(shape, lambda *i: place(i), name="top_places")


def _levels(size: int) -> int:
    """How often runs are merged until one is left."""
    return (size - 1).bit_length()


def _rows(c: Compute, axis: int, row: Any) -> Stmt:
    """A statement for every row."""
    shape = c.out_shape()
    return nest([d for k, d in enumerate(shape) if k != axis], row, "r")


def _at(row: Sequence[Any], axis: int, index: Any) -> tuple[Any, ...]:
    return (*row[:axis], index_expr(index), *row[axis:])


def _insertion(x: te.Tensor, outs: Sequence[te.Tensor], axis: int, count: int, size: int, largest: bool) -> Any:
    values, _, notes = outs

    def row(r: list[Var]) -> Stmt:
        chunk, i, j = Var("chunk"), Var("i"), Var("j")
        last = values[_at(r, axis, count - 1)]
        mark, filled = ((*r, index_expr(which)) for which in (0, 1))
        has_room = notes[filled] < count

        def look(at: Expr) -> Stmt:
            may_win = logical_or(has_room, _may_come_before(x[_at(r, axis, at)], last, largest))
            return Store(notes, mark, notes[mark] | te.cast(may_win, "int32"))

        def step(at: Expr) -> Stmt:
            value = Var("value", x.dtype)
            wins = logical_or(has_room, before(value, last, largest))
            return Let(value, x[_at(r, axis, at)], If(wins, _insert(outs, r, axis, count, value, at, largest)))

        length = te.minimum(index_expr(CHUNK), size - chunk * CHUNK)
        zero = te.const(0, "int32")
        go = If(notes[mark] > 0, For(i, length, step(chunk * CHUNK + i)))
        one_chunk = seq(Store(notes, mark, zero), For(j, length, look(chunk * CHUNK + j)), go)
        return seq(Store(notes, filled, zero), For(chunk, -(-size // CHUNK), one_chunk))

    return row


def _may_come_before(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether a may come before b, in one comparison: always where it does, and where one of them is NaN."""
    if a.dtype.is_bool:
        return before(a, b, largest)
    return te.not_(a <= b if largest else a >= b)


def _insert(
    outs: Sequence[te.Tensor], r: list[Var], axis: int, count: int, value: Expr, place: Expr, largest: bool
) -> Stmt:
    """Puts a value that belongs into the list behind those that it does not come before."""
    values, places, notes = outs
    mark, filled = ((*r, index_expr(which)) for which in (0, 1))
    k, slot, size = Var("k"), Var("slot"), Var("size")
    stays = te.not_(before(value, values[_at(r, axis, k)], largest))
    count_them = For(k, size, Store(notes, mark, notes[mark] + te.cast(stays, "int32")))

    def shift(array: te.Tensor) -> Stmt:
        j, to = Var("j"), Var("to")
        earlier = array[_at(r, axis, te.maximum(to - 1, 0))]
        end = te.minimum(size, count - 1)
        return For(j, te.maximum(end - slot, 0), Let(to, end - j, Store(array, _at(r, axis, to), earlier)))

    put = [Store(array, _at(r, axis, slot), new) for array, new in ((values, value), (places, place))]
    found = te.minimum(te.maximum(index_expr(notes[mark]), 0), count - 1)
    grow = Store(notes, filled, te.minimum(notes[filled] + 1, count))
    body = seq(
        Store(notes, mark, te.const(0, "int32")),
        count_them,
        Let(slot, found, seq(shift(values), shift(places), *put)),
        grow,
    )
    return Let(size, te.minimum(te.maximum(index_expr(notes[filled]), 0), count), body)


def _merge_sort(x: te.Tensor, outs: Sequence[te.Tensor], axis: int, size: int, largest: bool) -> Any:
    order, marks = outs

    def row(r: list[Var]) -> Stmt:
        i, level = Var("i"), Var("level")
        start = For(i, size, Store(order, (*r, index_expr(0), i), te.cast(i, "int32")))
        if _levels(size) == 0:
            return start
        return seq(start, For(level, _levels(size), _merge_level(x, order, marks, r, axis, size, level, largest)))

    return row


def _merge_level(
    x: te.Tensor, order: te.Tensor, marks: te.Tensor, r: list[Var], axis: int, size: int, level: Var, largest: bool
) -> Stmt:
    """Runs of 2^level elements, two by two, from one half of `order` into the other."""
    pair, t = Var("pair"), Var("t")
    width, first = Var("width"), Var("first")
    half, end = Var("half"), Var("end")
    source = level % 2
    left, right = (index_expr(marks[(*r, side)]) for side in (0, 1))

    def held(place: Expr) -> Expr:
        """What a run names where it has ended is read, and not used."""
        return order[(*r, source, te.minimum(te.maximum(place, 0), size - 1))]

    def element(place: Expr) -> Expr:
        return x[_at(r, axis, index_expr(held(place)))]

    # The right run gives its element only where that comes before: equal elements keep their order.
    from_right = te.all(right < end, te.any(left >= half, before(element(right), element(left), largest)))
    side = Var("side", te.const(True, "bool").dtype)
    target = (*r, 1 - source, first + t)
    take = te.select(side, held(right), held(left))
    one, none = te.const(1, "int32"), te.const(0, "int32")
    step = seq(
        Store(order, target, take),
        Store(marks, (*r, index_expr(0)), marks[(*r, 0)] + te.select(side, none, one)),
        Store(marks, (*r, index_expr(1)), marks[(*r, 1)] + te.select(side, one, none)),
    )
    body = seq(
        Store(marks, (*r, index_expr(0)), te.cast(first, "int32")),
        Store(marks, (*r, index_expr(1)), te.cast(half, "int32")),
        For(t, end - first, Let(side, from_right, step)),
    )
    inner = Let(half, te.minimum(first + width, size), Let(end, te.minimum(first + width * 2, size), body))
    runs = For(pair, te.ceildiv(size, width * 2), Let(first, pair * (width * 2), inner))
    return Let(width, te.const(1, "int64") << level, runs)

"""Sorting as loops: a stable radix sort of keys, and TopK by it.

A key is an unsigned number whose order is that in which elements come: equal elements have equal keys, and all NaN
have one, above every number. The sort moves pairs of a key and a place from one half of their buffers into the other,
once for each digit of the key, the lowest first; equal keys keep their order.

    counts[p, digit p of key] += 1 for all keys;  counts[p] = where the pairs of each digit begin
    for each digit p:  for each pair:  put it at counts[p, digit]++ of the other half

TopK of few sorts only candidates. Elements are looked at in chunks; those of a chunk that come before the last of the
k best are added to a list, which is sorted and cut to k when it is full, and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft import te
from weft.core.dtypes import DType
from weft.expr.nodes import Expr, Var, index_expr
from weft.graph.opspec import Compute
from weft.loop.ir import For, If, Let, Stmt, Store, seq
from weft.ops.indexing_scatter import nest
from weft.ops.movement_indices import output_type

CHUNK = 16
"""Elements that are compared with the last of the best together, before any is looked at alone."""
LIST = 4
"""A list of candidates is so many times as long as what is asked for,"""
LEAST_PER_KEPT = 8
"""and there is one if there are at least so many elements for each that is asked for."""
MOST_RANKED = 64
"""Up to so many elements, counting those that come before each, whole vectors at a time, is faster than digits are."""
DIGITS = range(4, 12)
"""Bits that a digit may have."""


# ------------------------------------------------------------------------------------------------------------ keys


def key_type(kind: DType) -> str:
    """The type of the keys of elements."""
    return "uint64" if kind.bits > 32 else "uint32"


def key_of(x: Expr, largest: bool) -> Expr:
    """The key of an element: of two, the one with the smaller key comes first."""
    bits, wide = x.dtype.bits, key_type(x.dtype)
    raw = f"int{bits}"
    if x.dtype.is_integer and not x.dtype.is_signed:
        return te.cast(x, wide) ^ te.const((1 << bits) - 1 if largest else 0, wide)
    number, ones = te.reinterpret(x, raw), te.const(-1, raw)
    if x.dtype.is_float:
        zero, end = te.const(0, raw), te.const((1 << bits - 1) - 1, raw)
        signed = number ^ ((number >> te.const(bits - 1, raw)) & end)  # ordered as floats are, -0 just under 0
        number = te.select(te.isnan(x), end, te.select(te.equal(signed, ones), zero, signed))
    flips = (1 << bits - 1) - 1 if largest else 1 << bits - 1
    return te.cast(te.reinterpret(number, f"u{raw}"), wide) ^ te.const(flips, wide)


def may_come_before(a: Expr, b: Expr, largest: bool) -> Expr:
    """Whether a may come before b, in one comparison: always where it does, and where one of them is NaN."""
    return te.not_(a <= b if largest else a >= b)


# ------------------------------------------------------------------------------------------------------ radix sort


@dataclass(frozen=True)
class Radix:
    """A stable sort of at most `size` pairs by keys of `bits` bits, `digit` of them at a time."""

    size: int
    bits: int
    kind: str
    digit: int

    @staticmethod
    def of(kind: DType, size: int) -> Radix:
        """That of elements of a type: the digit for which there is least to do.

        A digit of b bits costs 2^b counts that are cleared and summed, and each pair is counted, read and written.
        """
        digit = min(DIGITS, key=lambda b: -(-kind.bits // b) * (2**b + 3 * size))
        return Radix(size, kind.bits, key_type(kind), digit)

    @property
    def ranked(self) -> bool:
        """Whether there are so few that each is compared with each."""
        return self.size <= MOST_RANKED

    @property
    def passes(self) -> int:
        """How often the pairs are moved."""
        return 1 if self.ranked else -(-self.bits // self.digit)

    @property
    def result(self) -> int:
        """The half of the buffers that the sorted pairs lie in."""
        return self.passes % 2

    def buffers(self, rows: Sequence[int]) -> tuple[list[tuple[int, ...]], list[str]]:
        """Shapes and types of keys, places, counts and one sum for each row."""
        shapes = [(*rows, 2, self.size), (*rows, 2, self.size), (*rows, self.passes, 1 << self.digit), (*rows, 1)]
        return shapes, [self.kind, "int32", "int32", "int32"]

    def _digit(self, key: Expr, at: int) -> Expr:
        moved = key >> te.const(at * self.digit, self.kind)
        return index_expr(te.cast(moved & te.const((1 << self.digit) - 1, self.kind), "int64"))

    def sort(self, outs: Sequence[te.Tensor], r: Sequence[Any], count: Expr | int) -> Stmt:
        """Sorts the first `count` pairs of half 0; the result lies in half `self.result`."""
        if self.ranked:
            return self._rank(outs, r, count)
        keys, _, counts = outs[:3]
        i, d, q = Var("i"), Var("d"), Var("q")
        clear = For(q, self.passes, For(d, 1 << self.digit, Store(counts, (*r, q, d), te.const(0, "int32"))))
        key = Var("key", keys.dtype)
        places = [(*r, index_expr(p), self._digit(key, p)) for p in range(self.passes)]
        add = seq(*(Store(counts, at, counts[at] + 1) for at in places))
        tally = For(i, count, Let(key, keys[(*r, 0, i)], add))
        return seq(clear, tally, self._starts(outs, r), *(self._move(outs, r, count, p) for p in range(self.passes)))

    def _rank(self, outs: Sequence[te.Tensor], r: Sequence[Any], count: Expr | int) -> Stmt:
        """Puts each pair behind those that come before it, which it counts."""
        keys, places, _, total = outs[:4]
        i, j, k, key = Var("i"), Var("j"), Var("k"), Var("key", keys.dtype)
        cell, source = (*r, index_expr(0)), (*r, index_expr(0), i)
        target = (*r, index_expr(1), within(total[cell], self.size))

        def add(flag: Expr) -> Stmt:
            return Store(total, cell, total[cell] + te.cast(flag, "int32"))

        step = seq(
            Store(total, cell, te.const(0, "int32")),
            For(j, count, add(keys[(*r, 0, j)] < key)),
            For(k, i, add(te.equal(keys[(*r, 0, k)], key))),
            Store(keys, target, key),
            Store(places, target, places[source]),
        )
        return For(i, count, Let(key, keys[source], step))

    def _starts(self, outs: Sequence[te.Tensor], r: Sequence[Any]) -> Stmt:
        """How many pairs have a digit becomes where they begin."""
        counts, total = outs[2:4]
        p, d, held = Var("p"), Var("d"), Var("held", counts.dtype)
        cell, at = (*r, index_expr(0)), (*r, p, d)
        step = Let(held, counts[at], seq(Store(counts, at, total[cell]), Store(total, cell, total[cell] + held)))
        return For(p, self.passes, seq(Store(total, cell, te.const(0, "int32")), For(d, 1 << self.digit, step)))

    def _move(self, outs: Sequence[te.Tensor], r: Sequence[Any], count: Expr | int, p: int) -> Stmt:
        keys, places, counts = outs[:3]
        i, key, at, place = Var("i"), Var("key", keys.dtype), Var("at"), Var("place", counts.dtype)
        start = (*r, index_expr(p), at)
        source, target = (*r, index_expr(p % 2), i), (*r, index_expr(1 - p % 2), within(place, self.size))
        step = seq(
            Store(counts, start, counts[start] + 1),
            Store(keys, target, key),
            Store(places, target, places[source]),
        )
        return For(i, count, Let(key, keys[source], Let(at, self._digit(key, p), Let(place, counts[start], step))))


def within(place: Expr, size: int) -> Expr:
    """A place that lies in a dimension, whatever was read."""
    return te.minimum(te.maximum(index_expr(place), 0), size - 1)


# ------------------------------------------------------------------------------------------------------------ TopK


def top_k(c: Compute, x: te.Tensor, axis: int) -> Any:
    """The values and places of the first k elements along the axis; None where there is no kernel."""
    shape, size = c.out_shape(), c.shape(0)[axis]
    if size >= 1 << 31:
        return None
    task = _Top(axis, shape[axis], size, bool(c.get("largest", 1)))
    rows = [d for k, d in enumerate(shape) if k != axis]
    few = size >= LEAST_PER_KEPT * task.count
    radix = Radix.of(x.dtype, max(LIST * task.count, CHUNK) + CHUNK if few else size)
    scratch, kinds = radix.buffers(rows)

    def statement(inputs: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> Stmt:
        choose = task.some if few else task.all
        return nest(
            rows, lambda r: seq(choose(radix, inputs[0], outs[2:], r), task.put(radix, inputs[0], outs, r)), "r"
        )

    shapes, types = [shape, shape, *scratch], [output_type(c), output_type(c, 1), *kinds]
    if few:
        shapes, types = [*shapes, (*rows, 3), (*rows, 1), (*rows, 1)], [*types, "int32", kinds[0], types[0]]
    made = te.extern(shapes, [x], statement, "top", types)
    values = te.compute(shape, lambda *i: made[0][i], name="top_values")
    return values, te.compute(shape, lambda *i: made[1][i], name="top_places")


@dataclass(frozen=True)
class _Top:
    """The first `count` of `size` elements along an axis."""

    axis: int
    count: int
    size: int
    largest: bool

    def at(self, row: Sequence[Any], index: Any) -> tuple[Any, ...]:
        """The indices of an element of a row."""
        return (*row[: self.axis], index_expr(index), *row[self.axis :])

    def put(self, radix: Radix, x: te.Tensor, outs: Sequence[te.Tensor], r: list[Var]) -> Stmt:
        """The results, from sorted pairs."""
        values, found, _, places = outs[:4]
        i, place = Var("i"), Var("place")
        there, value = self.at(r, i), x[self.at(r, place)]
        step = seq(Store(values, there, value), Store(found, there, te.cast(place, found.dtype)))
        return For(i, self.count, Let(place, within(places[(*r, radix.result, i)], self.size), step))

    def all(self, radix: Radix, x: te.Tensor, outs: Sequence[te.Tensor], r: list[Var]) -> Stmt:
        """Sorts all elements."""
        keys, places = outs[:2]
        i, first = Var("i"), index_expr(0)
        start = seq(
            Store(keys, (*r, first, i), key_of(x[self.at(r, i)], self.largest)),
            Store(places, (*r, first, i), te.cast(i, "int32")),
        )
        return seq(For(i, self.size, start), radix.sort(outs, r, self.size))

    def some(self, radix: Radix, x: te.Tensor, outs: Sequence[te.Tensor], r: list[Var]) -> Stmt:
        """Keeps a list of candidates. Notes: whether to look closer, how long the list is, whether it was ever cut."""
        keys, places, notes, bound, value = outs[0], outs[1], *outs[4:]
        look, length, cut = ((*r, index_expr(k)) for k in range(3))
        last = (*r, index_expr(0))
        chunk, i, j = Var("chunk"), Var("i"), Var("j")
        key, end = Var("key", keys.dtype), Var("end")
        zero, first = te.const(0, "int32"), index_expr(0)
        open_to_all = te.equal(notes[cut], zero)
        chunks = -(-self.size // CHUNK)
        extent = te.minimum(index_expr(CHUNK), self.size - chunk * CHUNK)

        def read(at: Expr) -> Expr:
            return key_of(x[self.at(r, chunk * CHUNK + at)], self.largest)

        wins = te.any(open_to_all, key < bound[last])
        target = (*r, first, within(notes[length], radix.size))
        add = seq(
            Store(keys, target, key),
            Store(places, target, te.cast(chunk * CHUNK + i, "int32")),
            Store(notes, length, notes[length] + te.cast(wins, "int32")),
        )

        def may(at: Expr) -> Expr:
            return may_come_before(x[self.at(r, chunk * CHUNK + at)], value[last], self.largest)

        closer = For(j, extent, Store(notes, look, notes[look] | te.cast(may(j), "int32")))
        full = te.any(notes[length] > radix.size - CHUNK, te.equal(chunk, chunks - 1))
        one = seq(
            Store(notes, look, te.cast(open_to_all, "int32")),
            closer,
            If(notes[look] > zero, For(i, extent, If(te.any(open_to_all, may(i)), Let(key, read(i), add)))),
            If(full, Let(end, within(notes[length], radix.size + 1), self._cut(radix, x, outs, r, end))),
        )
        start = [Store(notes, at, zero) for at in (length, cut)]
        start += [Store(bound, last, te.const(0, radix.kind)), Store(value, last, x[self.at(r, 0)])]
        return seq(*start, For(chunk, chunks, one))

    def _cut(self, radix: Radix, x: te.Tensor, outs: Sequence[te.Tensor], r: list[Var], end: Expr) -> Stmt:
        """Sorts the list and leaves the best of it."""
        keys, places, notes, bound, value = outs[0], outs[1], *outs[4:]
        i, back = Var("i"), []
        if radix.result:
            pairs = [Store(one, (*r, index_expr(0), i), one[(*r, 1, i)]) for one in (keys, places)]
            back = [For(i, self.count, seq(*pairs))]
        length, cut, last = (*r, index_expr(1)), (*r, index_expr(2)), (*r, index_expr(0))
        worst = (*r, radix.result, self.count - 1)
        return seq(
            radix.sort(outs, r, end),
            *back,
            Store(bound, last, keys[worst]),
            Store(value, last, x[self.at(r, within(places[worst], self.size))]),
            Store(notes, length, te.const(self.count, "int32")),
            Store(notes, cut, te.const(1, "int32")),
        )

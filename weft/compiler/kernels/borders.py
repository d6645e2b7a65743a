"""The borders of outputs are filled by the loops that compute what lies inside, a few lines in each round.

    for c in range(8): out[c, 0, :] = 0               for c in range(8) parallel:
    for c in range(8): out[c, 5, :] = 0                   out[c, 0, :] = 0
    for c in range(8) parallel:                  ->       out[c, 5, :] = 0
        for y in range(4):                                for y in range(4):
            sums[…] = …                                       sums[…] = …
            out[c, y + 1, :] = sums[…]                        out[c, y + 1, :] = sums[…]

Nothing waits for a store but the stores behind it: a few of them reach memory while the round computes, all of them
together take as long as the memory does, in one thread. Where no loop has as few rounds as there are stretches to fill,
they are filled before all else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core import model
from weft.expr.nodes import Buffer, Expr, Var, add, const, floordiv, floormod, index_expr, int_value, minimum, mul, sub
from weft.expr.simplify import simplify
from weft.graph.passes.layout import Layout
from weft.loop.ir import Axis, Block, For, Func, Region, Seq, Stmt, Store, seq
from weft.loop.tree import block_path, loop_of, loop_path, replace_last, taken_names, unique_name, writers
from weft.plan.sketch import ceildiv


def fill_borders(func: Func, outputs: Sequence[tuple[Buffer, Layout]]) -> Func:
    """The program with the borders of its outputs filled."""
    taken = taken_names(func)
    around = {buffer: _loops_to_share(func, buffer) for buffer, _ in outputs}
    first: list[Stmt] = []
    for side in [side for buffer, layout in outputs for side in _sides(buffer, layout)]:
        loops = side.share(around[side.buffer])
        fill = side.fill(loops, taken)
        if not loops:
            first.append(fill)
            continue
        path = loop_path(func, loops[-1].var.name, "fill_borders")
        loop = loop_of(path)
        func = replace_last(func, path, loop.replace(body=seq(fill, loop.body)))
    return func.replace(body=seq(*first, func.body)) if first else func


def _loops_to_share(func: Func, buffer: Buffer) -> list[For]:
    """The loops around the one block that writes a buffer's values, down to where several statements follow one
    another; the outermost where none do."""
    blocks = writers(func.body, buffer)
    if len(blocks) != 1:
        return []
    found: list[For] = []
    apart = 1
    for stmt in block_path(func, blocks[0].name, "fill_borders"):
        if isinstance(stmt, Seq):
            apart = max(apart, len(found))
        elif isinstance(stmt, For) and stmt.kind in ("serial", "parallel") and int_value(stmt.extent):
            found.append(stmt)
        else:
            break
    return found[:apart]


def _sides(buffer: Buffer, layout: Layout) -> list[_Side]:
    """The sides of a buffer that lie outside of its values; corners belong to the first of theirs."""
    found = []
    starts, extents = [index_expr(0)] * len(buffer.shape), list(buffer.shape)
    for at, (before, after) in enumerate(layout.border):
        inside = simplify(sub(buffer.shape[at], index_expr(before + after)))
        for start, width in ((index_expr(0), before), (simplify(sub(buffer.shape[at], index_expr(after))), after)):
            if width:
                box = [*extents[:at], index_expr(width), *extents[at + 1 :]]
                found.append(_Side(buffer, at, [*starts[:at], start, *starts[at + 1 :]], box, layout.fill))
        starts[at], extents[at] = index_expr(before), inside
    return found


class _Side:
    """A box at one side of a dimension, which rounds of loops fill together: some stretches of lines each."""

    def __init__(self, buffer: Buffer, at: int, starts: list[Expr], extents: list[Expr], fill: int) -> None:
        self.buffer, self.starts, self.extents, self.number = buffer, starts, extents, fill
        self.cut = at
        """The dimensions before it number the stretches."""

    @property
    def stretches(self) -> int:
        """How many there are; 0 where that is not known."""
        return math.prod(int_value(n) or 0 for n in self.extents[: self.cut])

    def share(self, around: Sequence[For]) -> Sequence[For]:
        """The loops whose rounds take their shares: until a round has few lines, or no stretch of its own. So that the
        outermost has one for each round, stretches are cut."""
        if not around or not all(int_value(n) for n in self.extents):
            return ()
        while self.stretches < _rounds(around[:1]) and self.cut < len(self.extents) - 1:
            self.cut += 1
        lines = math.prod(int_value(n) or 0 for n in self.extents[self.cut : -1])
        level = 0
        while level < len(around) and _rounds(around[: level + 1]) <= self.stretches:
            if level and ceildiv(self.stretches, _rounds(around[:level])) * lines <= model.STORES_WAITING:
                break
            level += 1
        return around[:level]

    def fill(self, around: Sequence[For], taken: set[str]) -> Stmt:
        """Loops that store a number into this box, or into the share of it that a round of the loops around takes."""
        axes = [Axis(Var(f"x{d}"), n) for d, n in enumerate(self.extents)]
        loops = [Var(unique_name(f"{self.buffer.name}_b{d}", taken)) for d in range(len(axes))]
        bindings: list[Expr] = list(loops)
        extents, first = list(self.extents), 0
        if around:
            first, each = self.cut - 1, ceildiv(self.stretches, _rounds(around))
            extents[first] = index_expr(each)
            number: Expr = index_expr(0)
            for loop in around:
                number = add(mul(number, loop.extent), loop.var)
            # The last rounds begin earlier, so that all have as many: what two threads fill gets the same number twice.
            start = minimum(mul(number, index_expr(each)), index_expr(self.stretches - each))
            rest = add(start, loops[first])
            for d in reversed(range(self.cut)):
                bindings[d] = simplify(floormod(rest, self.extents[d]) if d else rest)
                rest = floordiv(rest, self.extents[d])
        at = [simplify(add(axis.var, start)) for axis, start in zip(axes, self.starts)]
        name = unique_name(f"{self.buffer.name}_border", taken)
        store = Store(self.buffer, at, const(self.number, self.buffer.dtype))
        body: Stmt = Block(name, axes, bindings, [], [Region(self.buffer, at, [1] * len(at))], store)
        for d in reversed(range(first, len(axes))):
            is_last = d == len(axes) - 1
            kind = "vectorized" if is_last and 1 < (int_value(extents[d]) or 0) <= 64 else "serial"
            body = For(loops[d], extents[d], body, kind)
        return body


def _rounds(loops: Sequence[For]) -> int:
    return math.prod(int_value(loop.extent) or 1 for loop in loops)

"""Rounds of a reduction that read nothing but the zeros around an image are passed over.

    for ky in range(3) @{"skip_padding": "P"}:       for ky in range(3):
        for x in range(8): block C(…, ky, x):   ->       if max(y + ky*6, 6) < min(y + ky*6 + 1, 26):
            C[x] += P[y + ky*6, x] * W[ky]                   for x in range(8): C[x] += P[y + ky*6, x] * W[ky]

P is a copy of an image with zeros around it, or a parameter that has a border of zeros (`lay_out` notes which). What
the blocks in a round read of P is a box; where that lies beside the image, along a dimension that the loop walks
along, the round does not run. Other rounds multiply the zeros that they read; zeros that nobody reads any more are not
written. Whoever asks for this knows that the other operand is finite: then 0 · w adds nothing, and the sums are the
same to the bit.

The tests are of no form that `partition_loops` would cut a loop by: a jump costs less than another copy of the tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.expr.nodes import (
    LE,
    LT,
    Buffer,
    Const,
    Expr,
    Load,
    Select,
    Var,
    add,
    index_expr,
    int_value,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    sub,
)
from weft.expr.structural import structural_equal
from weft.expr.visit import uses_any
from weft.loop.ir import Block, For, Func, If, Stmt, Store
from weft.loop.passes.support import in_loop, known_of
from weft.loop.regions import accessed_region, conjuncts
from weft.loop.tree import BORDERS, block_path, readers, replace_last, writers
from weft.loop.visit import Mutator, walk_stmts

NOTE = "skip_padding"

Box = Sequence[tuple[Expr, Expr] | None]
"""The first index and the end of an image in each dimension of a buffer; None where there is nothing around it."""


def skip_padding(func: Func) -> Func:
    """The program with its loops' "skip_padding" annotations carried out."""
    if not any(isinstance(s, For) and NOTE in s.annotations for s in walk_stmts(func.body)):
        return func
    skip = _Skip(func)
    made = func.replace(body=skip.stmt(func.body))
    for buffer, widths in skip.read.items():
        made = _written_as_read(made, buffer, widths)
    return made


def image_in(func: Func, buffer: Buffer) -> Box | None:
    """Where in a buffer the image lies that has zeros around it; None where there are no zeros that are known of."""
    widths = func.annotations.get(BORDERS, {}).get(buffer.name)
    if buffer in func.params:
        return None if widths is None else [_inside(size, *width) for size, width in zip(buffer.shape, widths)]
    made = writers(func.body, buffer)
    store = made[0].body if len(made) == 1 else None
    if not isinstance(store, Store) or made[0].init is not None:
        return None
    if isinstance(store.value, Load):  # a copy
        whole = zip(store.indices, store.value.indices)
        alike = len(store.indices) == len(store.value.indices) and all(structural_equal(a, b) for a, b in whole)
        return image_in(func, store.value.buffer) if alike and store.value.buffer is not buffer else None
    if not isinstance(store.value, Select) or not _is_zero(store.value.otherwise):
        return None
    bounds: dict[Var, list[Expr]] = {}
    for index, size in zip(store.indices, buffer.shape):
        if isinstance(index, Var):
            bounds[index] = [index_expr(0), size]
    for test in conjuncts(store.value.condition):
        if isinstance(test, (LE, LT)):
            more = int(isinstance(test, LT))
            if isinstance(test.b, Var) and test.b in bounds and int_value(test.a) is not None:
                bounds[test.b][0] = add(test.a, index_expr(more))
            elif isinstance(test.a, Var) and test.a in bounds and not uses_any(test.b, set(bounds)):
                bounds[test.a][1] = add(test.b, index_expr(1 - more))
    return [(bounds[i][0], bounds[i][1]) if isinstance(i, Var) else None for i in store.indices]


def _written_as_read(func: Func, buffer: Buffer, widths: Mapping[int, Expr]) -> Func:
    """The program where a copy has, along some dimensions, only as many zeros as a round reads beside the image."""
    made, box = writers(func.body, buffer), image_in(func, buffer)
    store = made[0].body if len(made) == 1 else None
    if box is None or not isinstance(store, Store) or buffer in func.params:
        return func
    block, test = made[0], made[0].predicate
    binding = {axis.var: value for axis, value in zip(block.axes, block.bindings)}
    for at, width in widths.items():
        index, inside = store.indices[at], box[at]
        if isinstance(index, Var) and inside is not None:
            more = sub(width, index_expr(1))
            here = binding[index]
            test = logical_and(test, less_equal(sub(inside[0], more), here), less(here, add(inside[1], more)))
    path = block_path(func, block.name, NOTE)
    return replace_last(func, path, block.replace(predicate=test))


def _inside(size: Expr, before: int, after: int) -> tuple[Expr, Expr] | None:
    return (index_expr(before), sub(size, index_expr(after))) if before or after else None


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0


class _Skip(Mutator):
    def __init__(self, func: Func) -> None:
        self.program, self.ranges = func, known_of(func)
        self.read: dict[Buffer, dict[int, Expr]] = {}
        """Copies that are read behind tests alone: the dimensions that are tested, how far a round reads along each."""
        self.buffers: Mapping[str, Buffer] = {b.name: b for b in (*func.buffers, *func.allocations)}

    def visit_For(self, s: For) -> Stmt:
        """A loop: with a test around its rounds, if a note asks for one that can fail."""
        around = self.ranges
        self.ranges = in_loop(around, s, s.extent)
        body, tests = self.stmt(s.body), self._tests(s) if NOTE in s.annotations else []
        self.ranges = around
        if NOTE not in s.annotations:
            return s if body is s.body else s.replace(body=body)
        notes = {key: value for key, value in s.annotations.items() if key != NOTE}
        return s.replace(body=If(logical_and(*tests), body) if tests else body, annotations=notes)

    def visit_Block(self, s: Block) -> Stmt:
        """Blocks hold no loops of a schedule."""
        return s

    def _tests(self, loop: For) -> list[Expr]:
        """The tests that what a round reads meets the image."""
        buffer = self.buffers.get(str(loop.annotations[NOTE]))
        box = None if buffer is None else image_in(self.program, buffer)
        if buffer is None or box is None:
            return []
        region = accessed_region(loop.body, buffer, self.ranges, writes=False, tests=False)
        if region is None or writers(loop.body, buffer):
            return []
        found = []
        alone = len(readers(loop.body, buffer)) == len(readers(self.program.body, buffer))
        for at, (first, count, inside) in enumerate(zip(region.mins, region.extents, box)):
            if inside is not None and uses_any(first, {loop.var}):
                found.append(less(maximum(first, inside[0]), minimum(add(first, count), inside[1])))
                if alone and int_value(count) is not None:
                    self.read.setdefault(buffer, {})[at] = count
        return found

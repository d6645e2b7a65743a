"""Tiles in shared memory whose 16 bytes change places, so that rows of 128 bytes meet every bank in either direction.

    chunk c of line l   ->   chunk c ^ (l % 8) of line l           a line is 128 bytes, a chunk 16

What is fetched together (a line) stays together, which copies beside the threads are quick with; what is read together
(the same chunk of 8 lines) lies in 8 different places. Hopper's matrix instructions know this order by themselves.

A loop's annotation "swizzled" names the tiles; operands of `wgmma` are always in this order. The pass changes the
places that stores and copies write to, and tells the instructions that read.
Runs on flat indices. Tiles begin at multiples of 8 lines: their memory is aligned so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.codegen.c.context import Context
from weft.core.errors import InterpreterError
from weft.expr.nodes import Address, Buffer, Call, Expr, Load, Ramp, add, index_expr, mul
from weft.loop.interpreter import register_effect
from weft.loop.ir import Allocate, Evaluate, For, Func, Stmt, Store
from weft.loop.passes.support import linear
from weft.loop.visit import BufferReplacer, Mutator, walk_stmts

SWIZZLE = "swizzle"
FLYING = "flying"
"""What the interpreter notes about a tile: which elements a copy is still on its way to, or none was ever."""
LINE, CHUNK, LINES = 128, 16, 8
ALWAYS = "wgmma_dot_"
READERS = {"mma_load_": -1, ALWAYS: -2}
"""How calls that read tiles are named, and which argument says whether they are in this order."""


def line_elements(buffer: Buffer) -> int:
    """The elements of a line."""
    return LINE // buffer.dtype.bytes


def swizzle_tiles(func: Func) -> Func:
    """The program with the tiles that ask for it in the other order."""
    found = set(_tiles(func))
    if not found:
        return func
    func = _Swizzle(found).func(func)
    return BufferReplacer({b: b.replace(alignment=max(b.alignment, LINE * LINES)) for b in found}).func(func)


def _tiles(func: Func) -> Iterator[Buffer]:
    names: set[str] = set()
    for s in walk_stmts(func.body):
        if isinstance(s, For):
            names |= set(s.annotations.get("swizzled") or ())
        if isinstance(s, Evaluate) and isinstance(s.value, Call) and s.value.name.startswith(ALWAYS):
            yield from (a.buffer for a in s.value.args[:2] if isinstance(a, Address) and a.buffer.scope == "shared")
    yield from (s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate) and s.buffer.name in names)


class _Swizzle(Mutator):
    def __init__(self, tiles: set[Buffer]) -> None:
        self.tiles = tiles

    def visit_Load(self, e: Load) -> Expr:
        done = self.generic(e)
        assert isinstance(done, Load)
        return Load(e.buffer, [self._place(e.buffer, done.indices[0])]) if e.buffer in self.tiles else done

    def visit_Store(self, s: Store) -> Stmt:
        done = self.generic_stmt(s)
        assert isinstance(done, Store)
        if s.buffer not in self.tiles:
            return done
        return Store(s.buffer, [self._place(s.buffer, done.indices[0])], done.value, done.predicate)

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        call = s.value
        if not isinstance(call, Call):
            return s
        args = list(call.args)
        order = next((argument for name, argument in READERS.items() if call.name.startswith(name)), None)
        if order is None and not call.name.startswith("bulk_"):  # whose copies are in this order by themselves
            args = [self._written(a) for a in args]
        elif order is not None and any(isinstance(a, Address) and a.buffer in self.tiles for a in args[:2]):
            args[order] = index_expr(1)
        return s if all(x is y for x, y in zip(args, call.args)) else Evaluate(Call(call.name, args, call.dtype))

    def _written(self, e: Expr) -> Expr:
        """The address that a copy writes to."""
        if not isinstance(e, Address) or e.buffer not in self.tiles:
            return e
        return Address(e.buffer, [self._place(e.buffer, e.indices[0])], e.mode)

    def _place(self, buffer: Buffer, index: Expr) -> Expr:
        if isinstance(index, Ramp):
            return Ramp(self._place(buffer, index.base), index.stride, index.lanes)
        chunk = CHUNK // buffer.dtype.bytes
        form = linear(index)
        whole: Expr = index_expr(0)
        rest: Expr = index_expr(form.constant % (LINES * LINES * chunk))
        for term, factor in form.terms.items():
            if factor % (LINES * LINES * chunk):
                rest = add(rest, mul(term, index_expr(factor)))
            else:
                whole = add(whole, mul(term, index_expr(factor)))
        whole = add(whole, index_expr(form.constant - form.constant % (LINES * LINES * chunk)))
        return add(Call(SWIZZLE, (rest, index_expr(chunk)), index.dtype), whole)


def seen_by(tile: Any, shape: tuple[int, ...], strides: tuple[int, ...], order: int) -> Any:
    """What an instruction sees from a pointer on, with or without this order, for the interpreter."""
    if not order:
        return tile.view(shape, strides)
    places = np.asarray(tile.offset)
    for size, stride in zip(shape, strides):
        places = places[..., None] + np.arange(size) * int(stride)
    places = swizzled(places, CHUNK // tile.buffer.dtype.bytes)
    flying = tile.notes.get(FLYING)
    if flying is not None and flying[places].any():
        raise InterpreterError(f"data race: {tile.buffer.name} is read before a copy to it has arrived: nobody waited")
    return tile.array[places]


def swizzled(place: Any, chunk: int) -> Any:
    """Where an element lies."""
    return place ^ ((place >> 3) & (7 * int(chunk)))


def _emit(c: Context, call: Call) -> str:
    c.helper(
        "weft_swizzle",
        "template <typename T> DEVICE T weft_swizzle(T at, T chunk) { return at ^ ((at >> 3) & (7 * chunk)); }",
    )
    kind = "int32_t" if call.dtype.bits == 32 else "int64_t"
    return f"weft_swizzle<{kind}>({c.value(call.args[0])}, {c.constant(call.args[1])})"


EMITTERS = {SWIZZLE: _emit}
register_effect(SWIZZLE, swizzled)

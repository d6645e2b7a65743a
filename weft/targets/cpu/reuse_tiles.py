"""Tiles that are loaded already are not loaded again.

    allocate t1: {load(A, t1); load(B0, …); dot(t1, …)}           allocate t1:
    allocate t2: {load(A, t2); load(B1, …); dot(t2, …)}    ->         load(A, t1); load(B0, …); dot(t1, …)
                                                                      load(B1, …); dot(t1, …)

Copies of a loop that is written out each have tiles of their own, of the same shapes, in the same registers: they
become one. A load then goes where the same tile was loaded from the same place, and since then nothing but tiles was
written.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.expr.nodes import Buffer, Call, int_value
from weft.expr.structural import structural_key
from weft.loop.ir import Allocate, Evaluate, Func, Seq, Stmt, seq
from weft.loop.visit import BufferReplacer, Mutator, walk_exprs
from weft.targets.cpu.parse import TILES

LOAD, ON_TILES = "amx_load", ("amx_load", "amx_dot", "amx_zero")
"""The load of a tile, and how the calls begin that write nothing but tiles."""


def reuse_tiles(func: Func) -> Func:
    """The program with one allocation for tiles of neighbouring copies, and without loads of what is there."""
    if not any(isinstance(e, Call) and e.name == LOAD for e in walk_exprs(func.body)):
        return func
    return _Reuse().func(func)


class _Reuse(Mutator):
    def visit_Seq(self, s: Seq) -> Stmt:
        """Statements one after the other: neighbours with tiles of the same shapes are joined."""
        made: list[Stmt] = []
        for stmt in map(self.stmt, s.stmts):
            joined = _join(made[-1], stmt) if made else None
            if joined is None:
                made.append(stmt)
            else:
                made[-1] = joined
        return seq(*made)


def _join(first: Stmt, second: Stmt) -> Stmt | None:
    """Two statements in one, if both do nothing but work on tiles, their own of the same shapes."""
    own, body = _peel(first)
    others, more = _peel(second)
    if not own or len(own) != len(others) or not all(_alike(a, b) for a, b in zip(own, others)):
        return None
    steps = [*_steps(body), *_steps(BufferReplacer(dict(zip(others, own))).stmt(more))]
    calls = [s.value for s in steps if isinstance(s, Evaluate) and isinstance(s.value, Call)]
    if len(calls) < len(steps) or not all(call.name.startswith(ON_TILES) for call in calls):
        return None
    made: Stmt = Seq([Evaluate(call) for call in _needed(calls)])
    for buffer in reversed(own):
        made = Allocate(buffer, made)
    return made


def _needed(calls: Iterable[Call]) -> list[Call]:
    """The calls without the loads of what a tile holds already."""
    held: dict[object, object] = {}
    made = []
    for call in calls:
        if call.name == LOAD:
            tile, content = structural_key(call.args[1]), structural_key(call)
            if held.get(tile) == content:
                continue
            held[tile] = content
        made.append(call)
    return made


def _peel(s: Stmt) -> tuple[list[Buffer], Stmt]:
    """The tiles that a statement allocates, outermost first, and what it does with them."""
    found = []
    while isinstance(s, Allocate) and s.buffer.scope == TILES.name:
        found.append(s.buffer)
        s = s.body
    return found, s


def _steps(s: Stmt) -> tuple[Stmt, ...]:
    return s.stmts if isinstance(s, Seq) else (s,)


def _alike(a: Buffer, b: Buffer) -> bool:
    sizes = [[int_value(size) for size in (*buffer.shape, *(buffer.strides or ()))] for buffer in (a, b)]
    return a.dtype is b.dtype and sizes[0] == sizes[1]

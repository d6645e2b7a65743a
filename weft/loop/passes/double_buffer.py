"""A buffer that a loop fills and then uses gets two halves: the next tile is loaded while this one is used.

    allocate t: float32[16]                       allocate t: float32[2, 16]
    for k in range(8):                                fill t[0] with tile 0
        fill t with tile k                   ->       for k in range(8):
        use t                                             if k + 1 < 8:
                                                              fill t[(k + 1) % 2] with tile k + 1
                                                          use t[k % 2]

Which buffers: those named in `func.annotations["double_buffer"]`, or in the annotation "double_buffer" of the loop
(a list of names; True: every buffer the loop fills first). A loop that does not have the pattern is left as it is.
One barrier at the top of an iteration then does for both hazards: the tile is complete, and the half that is filled
next is no longer in use.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.expr.nodes import Address, Buffer, Expr, Load, add, floormod, index_expr, int_value, less
from weft.expr.visit import map_all
from weft.loop.ir import Allocate, For, Func, Stmt, Store, seq
from weft.loop.passes.support import (
    Copier,
    Names,
    buffers_read,
    buffers_written,
    is_barrier,
    make_if,
    rename_repeated,
    statements,
)
from weft.loop.visit import Mutator, walk_exprs, walk_stmts


def double_buffer(func: Func) -> Func:
    """The program with its annotated buffers doubled where their loops allow it."""
    wanted = set(func.annotations.get("double_buffer") or ())
    marked = any(isinstance(s, For) and s.annotations.get("double_buffer") for s in walk_stmts(func.body))
    if not wanted and not marked:
        return func
    func = rename_repeated(func)
    plans: dict[For, _Plan] = {}
    taken: set[Buffer] = set()
    for loop in [s for s in walk_stmts(func.body) if isinstance(s, For) and s.kind == "serial"]:
        plan = _plan(func, loop, wanted)
        if plan is not None and not taken & set(plan.halves):
            plans[loop] = plan
            taken |= set(plan.halves)
    if not plans:
        return func
    return _Doubler(plans, Names(func)).func(func)


class _Plan:
    """What is done to one loop: the statements that fill, the statements that use, and the doubled buffers."""

    __slots__ = ("fill", "use", "halves", "barrier")

    def __init__(self, fill: list[Stmt], use: list[Stmt], halves: dict[Buffer, Buffer], barrier: Stmt | None) -> None:
        self.fill = fill
        self.use = use
        self.halves = halves
        self.barrier = barrier


def _plan(func: Func, loop: For, wanted: set[str]) -> _Plan | None:
    """How to double the buffers that this loop fills, or None where the pattern is not there."""
    names = _names(loop, wanted)
    outside = {s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)}
    outside -= {s.buffer for s in walk_stmts(loop.body) if isinstance(s, Allocate)}
    parts = [part for part in statements(loop.body) if not is_barrier(part)]
    barriers = [part for part in statements(loop.body) if is_barrier(part)]
    candidates = {b for b in outside if names is None or b.name in names}
    fill: list[Stmt] = []
    for part in parts:
        written = buffers_written(part)
        if not written or not written <= candidates:
            break
        fill.append(part)
    use = parts[len(fill) :]
    filled = _union(buffers_written(part) for part in fill)
    if not filled or not use or not _legal(func, loop, fill, use, filled, bool(barriers)):
        return None
    halves = {b: b.replace(shape=(2, *b.shape), strides=None) for b in sorted(filled, key=lambda b: b.name)}
    return _Plan(fill, use, halves, barriers[0] if barriers else None)


def _names(loop: For, wanted: set[str]) -> set[str] | None:
    """The names to double in this loop; None: whatever it fills."""
    own: Any = loop.annotations.get("double_buffer")
    if own is True:
        return None
    return wanted | set([own] if isinstance(own, str) else own or ())


def _legal(func: Func, loop: For, fill: list[Stmt], use: list[Stmt], filled: set[Buffer], barriers: bool) -> bool:
    used_reads, used_writes = _union(map(buffers_read, use)), _union(map(buffers_written, use))
    fill_reads = _union(map(buffers_read, fill))
    if filled & (fill_reads | used_writes) or fill_reads & used_writes or not filled <= used_reads:
        return False
    if any(is_barrier(inner) for part in (*fill, *use) for inner in walk_stmts(part)):
        return False
    if barriers and any(buffer.scope == "shared" for buffer in used_writes):
        return False  # the barriers also order something else
    inside = sum(_accesses(part, filled) for part in (*fill, *use))
    return inside == _accesses(func.body, filled)


def _accesses(s: Stmt, buffers: set[Buffer]) -> int:
    """How many times the buffers are named."""
    stores = sum(isinstance(inner, Store) and inner.buffer in buffers for inner in walk_stmts(s))
    return stores + sum(isinstance(e, (Load, Address)) and e.buffer in buffers for e in walk_exprs(s))


def _union(sets: Iterable[set[Buffer]]) -> set[Buffer]:
    result: set[Buffer] = set()
    for each in sets:
        result |= each
    return result


class _Doubler(Mutator):
    def __init__(self, plans: dict[For, _Plan], names: Names) -> None:
        self.plans = plans
        self.names = names
        self.halves = {old: new for plan in plans.values() for old, new in plan.halves.items()}
        self.repeated = False

    def expr(self, e: Expr) -> Expr:
        return e

    def visit_Allocate(self, s: Allocate) -> Stmt:
        made = self.halves.get(s.buffer)
        body = self.stmt(s.body)
        return s if made is None and body is s.body else Allocate(made or s.buffer, body)

    def visit_For(self, s: For) -> Stmt:
        plan = self.plans.get(s)
        if plan is None:
            outer, self.repeated = self.repeated, self.repeated or s.kind != "thread"
            done = self.generic_stmt(s)
            self.repeated = outer
            return done
        two, one = index_expr(2), index_expr(1)
        ahead = add(s.var, one)
        fill = seq(*[self.stmt(part) for part in plan.fill])
        use = seq(*[self.stmt(part) for part in plan.use])
        now = _Half(plan.halves, floormod(s.var, two)).stmt(use)
        half_ahead = _Half(plan.halves, floormod(ahead, two)).stmt(_shift(fill, s, ahead, self.names))
        first = _Half(plan.halves, index_expr(0)).stmt(Copier(self.names, {s.var: index_expr(0)}).stmt(fill))
        if int_value(s.extent) is None or int_value(s.extent) == 0:
            first = make_if(less(index_expr(0), s.extent), first)
        loop = s.replace(body=seq(plan.barrier, make_if(less(ahead, s.extent), half_ahead), now))
        # around again, the first fill must wait for the last use of the round before
        return seq(plan.barrier if self.repeated else None, first, loop)


def _shift(fill: Stmt, loop: For, ahead: Expr, names: Names) -> Stmt:
    """The statements that fill, for the next iteration (the original ones, so that they keep their names)."""
    return Copier(names, {loop.var: ahead}).stmt(fill)


class _Half(Mutator):
    """Accesses of a doubled buffer name the half first."""

    def __init__(self, halves: dict[Buffer, Buffer], half: Expr) -> None:
        self.halves = halves
        self.half = half

    def visit_Load(self, e: Load) -> Expr:
        indices = map_all(e.indices, self.expr)
        made = self.halves.get(e.buffer)
        if made is None:
            return e if indices is e.indices else Load(e.buffer, indices)
        return Load(made, (self.half, *indices))

    def visit_Address(self, e: Address) -> Expr:
        indices = map_all(e.indices, self.expr)
        made = self.halves.get(e.buffer)
        return Address(e.buffer, indices, e.mode) if made is None else Address(made, (self.half, *indices), e.mode)

    def visit_Store(self, s: Store) -> Stmt:
        done = self.generic_stmt(s)
        assert isinstance(done, Store)
        made = self.halves.get(s.buffer)
        return done if made is None else Store(made, (self.half, *done.indices), done.value, done.predicate)

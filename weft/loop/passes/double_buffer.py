"""A buffer that a loop fills and then uses gets two halves: the next tile is loaded while this one is used.

    allocate t: float32[16]                       allocate t: float32[2, 16]
    for k in range(8):                                fill t[0] with tile 0
        fill t with tile k                   ->       for k in range(8):
        use t                                             if k + 1 < 8:
                                                              fill t[(k + 1) % 2] with tile k + 1
                                                          use t[k % 2]

Which buffers: those named in `func.annotations["double_buffer"]`, or in the annotation "double_buffer" of the loop
(a list of names; True: every buffer the loop fills first). A loop that does not have the pattern is left as it is.
A loop annotated "pipeline_stages": n gives every buffer that it fills first n parts, filled n - 1 iterations ahead.
With the annotation "async_copy" as well, the fills are copies that run beside the threads: they are committed after
each fill and waited for at the top of the iteration that uses them; `annotations["async_copy"]` keeps the names. A
list of names there are buffers that are filled before the loop and used only inside: copies of the first group.
With "pipeline_lag": 1 as well, a part stays as it is for one more iteration than it is used in, for users that run
beside the threads too: it is filled n - 2 iterations ahead, and the loop that was made so carries the mark LAG.
One barrier at the top of an iteration then does for both hazards: the tile is complete, and the half that is filled
next is no longer in use.

A loop annotated CARRIED that is all a pipelined loop does with its parts, and fills registers, is ahead across steps of
that one, too: what its first turn takes is loaded before the last products of the step before, behind the barrier.

    for k in range(8):                                wait; barrier; load r[0] from part 0, 0
        wait; barrier; fill part k + 2                for k in range(8):
        for i in range(16):                               fill part k + 2
            load r from part k, i            ->           for i in range(15):
            use r                                             load r[(i + 1) % 2] from part k, i + 1; use r[i % 2]
                                                          wait; barrier; load r[0] from part k + 1, 0; use r[1]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from weft.core import model
from weft.core.dtypes import INT32
from weft.expr.nodes import Address, Buffer, Call, Expr, Load, add, floormod, index_expr, int_value, less, mul, sub
from weft.expr.visit import free_vars
from weft.loop.ir import Allocate, Evaluate, For, Func, Stmt, Store, seq
from weft.loop.passes.support import (
    Copier,
    Names,
    Part,
    buffers_read,
    buffers_written,
    is_barrier,
    is_register,
    make_if,
    rename_repeated,
    statements,
)
from weft.loop.visit import Mutator, walk_exprs, walk_stmts

CARRIED = "pipeline_carried"
"""The annotation of a loop over what registers take of a step."""
LAG = "pipeline_lag_kept"
"""The mark of a loop whose parts are kept for so many iterations after the one that uses them."""
COMMIT, WAIT = "copy_commit", "copy_wait"
"""Calls: what was copied since the last commit is one group; wait until at most so many groups are on their way."""


def double_buffer(func: Func) -> Func:
    """The program with its annotated buffers doubled where their loops allow it."""
    wanted = set(func.annotations.get("double_buffer") or ())
    marks = ("double_buffer", "pipeline_stages")
    marked = any(isinstance(s, For) and any(map(s.annotations.get, marks)) for s in walk_stmts(func.body))
    if not wanted and not marked:
        return func
    func = lift(rename_repeated(func))
    plans: dict[For, Plan] = {}
    taken: set[Buffer] = set()
    for loop in [
        s for s in walk_stmts(func.body) if isinstance(s, For) and (s.kind == "serial" or s.annotations.get(CARRIED))
    ]:
        plan = plan_of(func, loop, wanted)
        if plan is not None and not taken & set(plan.halves):
            plans[loop] = plan
            taken |= set(plan.halves)
    if not plans:
        return func
    copied = [buffer.name for plan in plans.values() if plan.is_async for buffer in plan.halves]
    copied += [name for loop, plan in plans.items() if plan.is_async for name in _before(loop)]
    made = _Doubler(plans, Names(func)).func(func)
    return made.replace(annotations={**made.annotations, "async_copy": copied}) if copied else made


def lift(func: Func) -> Func:
    """The program whose pipelined loops have their memory around them."""
    return _Lift().func(func)


class _Lift(Mutator):
    """Memory that a pipelined loop fills lives around the loop, not in each iteration."""

    def visit_For(self, s: For) -> Stmt:
        done = self.generic_stmt(s)
        if not isinstance(done, For) or not done.annotations.get("pipeline_stages"):
            return done
        body, moved = done.body, []
        while isinstance(body, Allocate) and done.var not in free_vars(*body.buffer.shape):
            moved.append(body.buffer)
            body = body.body
        lifted: Stmt = done.replace(body=body) if moved else done
        for buffer in reversed(moved):
            lifted = Allocate(buffer, lifted)
        return lifted


class Plan:
    """What is done to one loop: the statements that fill, the statements that use, and the doubled buffers."""

    __slots__ = ("fill", "use", "halves", "barrier", "stages", "lag", "is_async", "in_registers")

    def __init__(
        self, fill: list[Stmt], use: list[Stmt], halves: dict[Buffer, Buffer], barrier: Stmt | None, loop: For
    ) -> None:
        self.fill = fill
        self.use = use
        self.halves = halves
        self.barrier = barrier
        self.stages = _stages(loop)
        self.lag = min(int(loop.annotations.get("pipeline_lag") or 0), self.stages - 2)
        shared = all(buffer.scope == "shared" for buffer in halves)  # without a barrier threads read their own copies
        self.is_async = bool(loop.annotations.get("async_copy")) and (barrier is not None or shared)
        self.in_registers = all(map(is_register, halves))

    def now(self, s: Stmt, step: Expr) -> Stmt:
        """Statements that name the parts of a step."""
        return Part(self.halves, floormod(step, index_expr(self.stages))).stmt(s)

    def at(self, s: Stmt, loop: For, step: Expr, names: Names) -> Stmt:
        """A copy of statements for another step."""
        return self.now(Copier(names, {loop.var: step}).stmt(s), step)


def _before(loop: For) -> list[str]:
    """The buffers whose copies before the loop are waited for in its first iteration."""
    named: Any = loop.annotations["async_copy"]
    return list(named) if isinstance(named, (list, tuple)) else []


def _stages(loop: For) -> int:
    """How many parts the buffers that a loop fills get."""
    return max(2, int(loop.annotations.get("pipeline_stages") or 2))


def _repeated(buffer: Buffer, times: int) -> Buffer:
    """A buffer so many times over, one after the other."""
    strides = None
    if buffer.strides is not None:
        strides = (mul(buffer.strides[0], buffer.shape[0]), *buffer.strides)
    return buffer.replace(shape=(times, *buffer.shape), strides=strides)


def plan_of(func: Func, loop: For, wanted: Collection[str] = ()) -> Plan | None:
    """How to double the buffers that this loop fills, or None where the pattern is not there."""
    names = _names(loop, set(wanted))
    outside = {s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)}
    outside -= {s.buffer for s in walk_stmts(loop.body) if isinstance(s, Allocate)}
    parts = [part for part in statements(loop.body) if not is_barrier(part)]
    barriers = [part for part in statements(loop.body) if is_barrier(part)]
    candidates = {b for b in outside if names is None or b.name in names}
    fill: list[Stmt] = []
    for part in parts:
        written, known = buffers_written(part), _union(map(buffers_written, fill))
        if not written or not written <= candidates or (written | known) & buffers_read(part):
            break
        fill.append(part)
    use = parts[len(fill) :]
    filled = _union(map(buffers_written, fill))
    if not filled or not use or not _legal(func, loop, fill, use, filled, bool(barriers)):
        return None
    halves = {b: _repeated(b, _stages(loop)) for b in sorted(filled, key=lambda b: b.name)}
    return Plan(fill, use, halves, barriers[0] if barriers else None, loop)


def _names(loop: For, wanted: set[str]) -> set[str] | None:
    """The names to double in this loop; None: whatever it fills."""
    own: Any = loop.annotations.get("double_buffer")
    if own is True or loop.annotations.get("pipeline_stages"):
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
    return stores + sum(isinstance(e, (Load, Address)) and e.buffer in buffers for e in walk_exprs(s, Load, Address))


def _union(sets: Iterable[set[Buffer]]) -> set[Buffer]:
    result: set[Buffer] = set()
    for each in sets:
        result |= each
    return result


class _Doubler(Mutator):
    def __init__(self, plans: dict[For, Plan], names: Names) -> None:
        self.plans = plans
        self.names = names
        self.halves = {old: new for plan in plans.values() for old, new in plan.halves.items()}
        self.repeated = False

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
        distance = plan.stages - 1 - plan.lag
        ahead = add(s.var, index_expr(distance))
        fill = seq(*[self.stmt(part) for part in plan.fill])
        commit = _call(COMMIT) if plan.is_async else None
        ready = (_call(WAIT, distance - 1) if plan.is_async else None, plan.barrier)
        fetch = make_if(less(ahead, s.extent), plan.at(fill, s, ahead, self.names)), commit
        first = [part for at in range(distance) for part in (self._first(plan, s, fill, at), commit)]
        # around again, the first fill must wait for the last use of the round before
        start = (plan.barrier if self.repeated else None, *first)
        kind = "unrolled" if plan.in_registers and _is_short(s) else s.kind
        loop = s.replace(kind=kind, annotations={**s.annotations, LAG: plan.lag} if plan.lag else s.annotations)
        carried = self._carried(plan)
        if carried is None:
            use = plan.now(seq(*[self.stmt(part) for part in plan.use]), s.var)
            return seq(*start, loop.replace(body=seq(*ready, *fetch, use)))
        inner, own = carried
        load, use = (seq(*[self.stmt(part) for part in parts]) for parts in (own.fill, own.use))
        zero, one, last = index_expr(0), index_expr(1), sub(inner.extent, index_expr(1))
        turn = seq(own.at(load, inner, add(inner.var, one), self.names), own.now(use, inner.var))
        turns = inner.replace(extent=last, body=plan.now(turn, s.var))
        begin, onward = (
            plan.at(own.at(load, inner, zero, self.names), s, step, self.names) for step in (zero, add(s.var, one))
        )
        if (int_value(s.extent) or 0) < plan.stages:  # otherwise the last step loads what is there, and nobody uses it
            onward = make_if(less(add(s.var, one), s.extent), onward)
        body = seq(*fetch, turns, *ready, onward, own.at(use, inner, last, self.names))
        made = seq(*start, *ready, begin, loop.replace(body=body))
        for buffer in own.halves.values():
            made = Allocate(buffer, made)
        return made

    def _carried(self, plan: Plan) -> tuple[For, Plan] | None:
        """The loop that is all a step does, if its registers are to be loaded ahead across steps."""
        (inner, *others), memory = plan.use, set()
        while isinstance(inner, Allocate):
            memory.add(inner.buffer)
            inner = inner.body
        if others or not isinstance(inner, For) or not inner.annotations.get(CARRIED) or inner not in self.plans:
            return None
        own, turns = self.plans[inner], int_value(inner.extent)
        is_whole = turns is not None and turns % own.stages == 0  # a turn has the same registers in every step
        is_apart = memory == set(own.halves) and not plan.halves.keys() & _union(map(buffers_read, own.use))
        return (inner, own) if own.in_registers and own.stages == 2 and is_whole and is_apart else None

    def _first(self, plan: Plan, loop: For, fill: Stmt, at: int) -> Stmt | None:
        """A fill before the loop; none where the loop is shorter."""
        extent = int_value(loop.extent)
        if extent is not None and extent <= at and extent > 0:
            return None
        made = plan.at(fill, loop, index_expr(at), self.names)
        return make_if(less(index_expr(at), loop.extent), made) if extent is None or extent == 0 else made


def _is_short(loop: For) -> bool:
    extent = int_value(loop.extent)
    return extent is not None and extent <= model.UNROLLED_PIPELINE


def _call(name: str, *arguments: int) -> Stmt:
    return Evaluate(Call(name, [index_expr(argument) for argument in arguments], INT32))

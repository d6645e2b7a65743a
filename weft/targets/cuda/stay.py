"""Kernels that stay for all steps of a recurrence: the loop over steps goes inside, and blocks wait for one another.

In: a flat program with a serial loop annotated STAYS whose body is a launch, or several of the same blocks and threads.
Out: one launch, whose blocks all run at a time (the annotation WHOLE_GRID of the loop over blocks).

    for t in range(35) @{stays}:                      for j in range(130):     blockIdx.x, {whole_grid}
      for j in range(130):     blockIdx.x               for ty, tx:            threadIdx.y, threadIdx.x
        for ty, tx:            threadIdx.y, .x    ->      mma_rows_hold(held, w[j])
          sums of h[t] and w[j]                           for t in range(35):
          h[t + 1, j] = … x[t, j] …                         let early = x[t, j]
                                                            sums of h[t] and held
                                                            h[t + 1, j] = … early …
                                                            if t < 34: grid_barrier(arrived, (t + 1) * 130)

Weights stay in registers. What new values read besides sums is asked for at the top of a step, where it is shown that
no block writes it in that step. `arrived` counts blocks that came to a barrier: the last launch before sets it to zero.

The other design, a schedule primitive that moves the loop inside, would have had blocks of a scheduled program wait for
one another, which every primitive and every pass would have to know. Here the serial loop around launches, which is
right by itself, is what is scheduled, and a program that does not have the form stays as it is.

    grid_barrier(arrived, wanted)   all threads of the block are there, its writes are seen by all blocks, and so many
                                    blocks have come by in all
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.codegen.c.context import Context, Emitter
from weft.codegen.c.generate import LAUNCH_WAIT
from weft.core.dtypes import INT32
from weft.expr.bounds import Ranges, interval
from weft.expr.nodes import (
    Address,
    Buffer,
    Call,
    Expr,
    Load,
    Var,
    add,
    const,
    equal,
    index_expr,
    int_value,
    logical_and,
    mul,
    select,
)
from weft.expr.structural import structural_key
from weft.expr.visit import free_vars, substitute, walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import GRID_BARRIER, Names, buffers_written, is_call, linear, rename_repeated, statements
from weft.loop.visit import Mutator, child_stmts, substitute_stmt, walk_exprs, walk_stmts

STAYS, WHOLE_GRID = "stays", "whole_grid"
HOLDS = {"mma_rows_f16": "mma_held_f16", "mma_rows_bf16": "mma_held_bf16"}
"""Products, and those whose weights are held in registers."""
HOLD, HELD = "mma_rows_hold", "mma.h"


def stay_for_steps(func: Func) -> Func:
    """The program whose marked loops over steps are one launch each."""
    if not any(isinstance(s, For) and STAYS in s.annotations for s in walk_stmts(func.body)):
        return func
    func = rename_repeated(func)
    return rename_repeated(_Stay(Names(func)).func(func))


@dataclass
class _Nest:
    """A launch: its loops, what is allocated for a block, and what a thread does."""

    loops: list[For]
    memory: list[Buffer]
    body: Stmt

    @property
    def form(self) -> list[tuple[str | None, int | None]]:
        """Its threads and blocks, to compare."""
        return [(loop.thread, int_value(loop.extent)) for loop in self.loops]


def _nest_of(s: Stmt) -> _Nest:
    loops: list[For] = []
    memory: list[Buffer] = []
    while True:
        tags = {loop.thread for loop in loops}
        if isinstance(s, Allocate) and s.buffer.scope.split(".")[0] == "shared":
            memory.append(s.buffer)
        elif isinstance(s, For) and s.kind == "thread" and s.thread not in tags:
            loops.append(s)
        else:
            return _Nest(loops, memory, s)
        s = s.body


class _Stay(Mutator):
    def __init__(self, names: Names) -> None:
        self.names = names

    def visit_Seq(self, s: Seq) -> Stmt:
        stmts = [self.stmt(one) for one in s.stmts]
        counters: list[Buffer] = []
        for at, one in enumerate(stmts):
            if not isinstance(one, For) or STAYS not in one.annotations:
                continue
            before = next((n for n in range(at - 1, -1, -1) if _is_launch(stmts[n])), None)
            if before is None or not _are_alike([_nest_of(step) for step in statements(one.body)]):
                continue  # each step is a launch
            arrived = Buffer(self.names.fresh("arrived"), INT32, (1,))
            stmts[before] = _reset(stmts[before], arrived)
            stmts[at] = _Steps(one, arrived, self.names).made()
            counters.append(arrived)
        made = seq(*stmts)
        for counter in counters:
            made = Allocate(counter, made)
        return made


def _is_launch(s: Stmt) -> bool:
    """Whether a statement is a launch that waits at its top for what was launched before."""
    waits = any(is_call(one, LAUNCH_WAIT) for one in walk_stmts(s))
    return isinstance(s, For) and s.kind == "thread" and WHOLE_GRID not in s.annotations and not waits


def _are_alike(nests: list[_Nest]) -> bool:
    """Whether launches have the same blocks and threads."""
    return all(nest.loops and nest.form == nests[0].form for nest in nests)


def _reset(s: Stmt, arrived: Buffer) -> Stmt:
    """A launch whose first thread sets a counter to zero."""
    nest = _nest_of(s)
    first = logical_and(*[equal(loop.var, index_expr(0)) for loop in nest.loops])
    return _around(nest, seq(If(first, Store(arrived, (index_expr(0),), const(0, INT32))), nest.body))


def _around(nest: _Nest, body: Stmt, notes: Mapping[str, object] | None = None) -> Stmt:
    threads = [loop for loop in nest.loops if not (loop.thread or "").startswith("blockIdx")]
    blocks = [loop for loop in nest.loops if loop not in threads]
    for loop in reversed(threads):
        body = loop.replace(body=body)
    for buffer in reversed(nest.memory):
        body = Allocate(buffer, body)
    for loop in reversed(blocks):
        body = loop.replace(body=body, annotations={**loop.annotations, **(notes or {})})
    return body


class _Steps:
    """A loop over steps around launches."""

    def __init__(self, loop: For, arrived: Buffer, names: Names) -> None:
        self.loop, self.arrived, self.names = loop, arrived, names
        self.nests = [_nest_of(s) for s in statements(loop.body)]
        first = self.nests[0]
        self.written = buffers_written(loop.body)
        self.ranges = Ranges().with_loop(loop.var, loop.extent)
        for one in first.loops:
            self.ranges = self.ranges.with_loop(one.var, one.extent)

    def made(self) -> Stmt:
        """The one launch."""
        first, loop = self.nests[0], self.loop
        blocks = 1
        for one in first.loops:
            blocks *= (int_value(one.extent) or 0) if (one.thread or "").startswith("blockIdx") else 1
        memory = [buffer for nest in self.nests for buffer in nest.memory]
        held = _Held(loop, first, self.written, self.names)
        parts: list[Stmt] = []
        for at, nest in enumerate(self.nests):
            same = {one.var: own.var for one, own in zip(nest.loops, first.loops)}
            body = held.stmt(substitute_stmt(nest.body, same))
            parts.append(_Early(self, first).made(body))
            passed = add(mul(loop.var, index_expr(len(self.nests))), index_expr(at + 1))
            wait = Evaluate(
                Call(
                    GRID_BARRIER,
                    (Address(self.arrived, (index_expr(0),), "rw"), mul(passed, index_expr(blocks))),
                    INT32,
                )
            )
            is_last = at + 1 == len(self.nests)
            parts.append(If(add(loop.var, index_expr(1)) < loop.extent, wait) if is_last else wait)
        notes = {name: value for name, value in loop.annotations.items() if name != STAYS}
        body = seq(*held.first, loop.replace(body=seq(*parts), annotations=notes))
        for buffer in held.memory:
            body = Allocate(buffer, body)
        return _around(_Nest(first.loops, memory, body), body, {WHOLE_GRID: True, "resident": 1})


class _Held(Mutator):
    """Takes the loads of weights out of the products of a step."""

    def __init__(self, loop: For, nest: _Nest, written: set[Buffer], names: Names) -> None:
        self.loop, self.written, self.names = loop, written, names
        self.outer = {one.thread: one for one in nest.loops}
        self.same: dict[Var, Expr] = {}
        self.first: list[Stmt] = []
        self.memory: list[Buffer] = []

    def visit_For(self, s: For) -> Stmt:
        outer = self.outer.get(s.thread)
        if outer is not None and int_value(outer.extent) == int_value(s.extent):
            self.same[s.var] = outer.var
        return self.generic_stmt(s)

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        call = s.value
        if not isinstance(call, Call) or call.name not in HOLDS:
            return s
        x, weights, out, row, row_far, *steps, rows, gates, units, depth, lanes = call.args
        assert isinstance(weights, Address)
        place = Address(weights.buffer, tuple(substitute(i, self.same) for i in weights.indices), "r")
        known = {one.var for one in self.outer.values()}
        if weights.buffer in self.written or not all(set(free_vars(i)) <= known for i in place.indices):
            return s
        sizes = (gates, units, depth, lanes)
        count = -(-(int_value(gates) or 0) * (int_value(units) or 0) // 16) * 16 * (int_value(depth) or 0)
        held = Buffer(self.names.fresh("held"), weights.buffer.dtype, (count,), scope=HELD)
        at = (index_expr(0),)
        self.first.append(Evaluate(Call(HOLD, (Address(held, at, "w"), place, *steps, *sizes), INT32)))
        self.memory.append(held)
        made = (x, Address(held, at, "r"), out, row, row_far, rows, *sizes)
        return Evaluate(Call(HOLDS[call.name], made, INT32))


class _Early(Mutator):
    """Takes loads whose place each thread knows beforehand to the top of a step."""

    def __init__(self, steps: _Steps, nest: _Nest) -> None:
        self.steps, self.names = steps, steps.names
        self.outer = {one.thread: one for one in nest.loops}
        self.known = {steps.loop.var, *(one.var for one in nest.loops)}
        self.same: dict[Var, Expr] = {}
        self.tests: list[Expr] = []
        self.found: dict[object, tuple[Var, Expr]] = {}
        self.stores: dict[Buffer, list[tuple[float, float, int]]] = {}

    def made(self, body: Stmt) -> Stmt:
        """The step with its loads first."""
        for s in walk_stmts(body):
            if isinstance(s, For) and s.thread in self.outer:
                self.same[s.var] = self.outer[s.thread].var
        self.note(body, self.steps.ranges)
        self.addressed = {e.buffer for e in walk_exprs(body, Address) if isinstance(e, Address) and "w" in e.mode}
        body = self.stmt(body)
        for var, value in reversed(list(self.found.values())):
            body = Let(var, value, body)
        return body

    def note(self, s: Stmt, ranges: Ranges) -> None:
        """Notes which elements the stores of a statement reach."""
        if isinstance(s, Store):
            self.stores.setdefault(s.buffer, []).append(self.reach(substitute(s.indices[0], self.same), ranges))
        if isinstance(s, If):
            self.note(s.then, ranges.with_condition(substitute(s.condition, self.same)))
            rest = [s.otherwise] if s.otherwise else []
        else:
            rest = list(child_stmts(s))
        if isinstance(s, For) and s.thread not in self.outer:
            ranges = ranges.with_loop(s.var, s.extent)
        for one in rest:
            self.note(one, ranges)

    def visit_For(self, s: For) -> Stmt:
        outer = self.outer.get(s.thread)
        if outer is None or int_value(outer.extent) != int_value(s.extent):
            return s
        return self.generic_stmt(s)

    def visit_If(self, s: If) -> Stmt:
        self.tests.append(substitute(s.condition, self.same))
        then = self.stmt(s.then)
        self.tests.pop()
        return If(s.condition, then, s.otherwise)

    def visit_Select(self, e: Expr) -> Expr:
        return e  # its test may be what keeps a load inside

    visit_And = visit_Or = visit_Select

    def visit_Load(self, e: Load) -> Expr:
        if e.buffer.scope != "global" or e.dtype.lanes > 1:
            return e
        index, test = substitute(e.indices[0], self.same), logical_and(*self.tests)
        is_known = all(set(free_vars(one)) <= self.known and not walk(one, Load) for one in (index, test))
        if not is_known or not self.untouched(e.buffer, index, test):
            return e
        key = structural_key(Load(e.buffer, (index,))), structural_key(test)
        if key not in self.found:
            value = select(test, Load(e.buffer, (index,)), 0) if self.tests else Load(e.buffer, (index,))
            self.found[key] = Var(self.names.fresh(f"{e.buffer.name}_early"), e.dtype), value
        return self.found[key][0]

    def untouched(self, buffer: Buffer, index: Expr, test: Expr) -> bool:
        """Whether no thread writes an element in the step that reads it."""
        if buffer not in self.steps.written:
            return True
        if buffer in self.addressed:
            return False
        low, high, pace = self.reach(index, self.steps.ranges.with_condition(test))
        for least, most, other in self.stores.get(buffer, ()):
            if pace != other or least <= high and low <= most:
                return False
        return True

    def reach(self, index: Expr, ranges: Ranges) -> tuple[float, float, int]:
        """The least and greatest place in a step, beside so much for each step."""
        form, t = linear(index), self.steps.loop.var
        low, high = interval(form.without(t).expr(), ranges)
        far = float("inf")
        return -far if low is None else low, far if high is None else high, form.terms.get(t, 0)


# ---------------------------------------------------------------------------------------------------------- emitting

_BARRIER = """DEVICE void weft_grid_barrier(int32_t *arrived, int32_t wanted) {
  __syncthreads();
  if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
    int32_t seen;
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" : : "l"(arrived) : "memory");
    do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
    while (seen < wanted);
  }
  __syncthreads();
}"""


def _emit_barrier(c: Context, e: Call) -> str:
    c.helper("weft_grid_barrier", _BARRIER)
    return f"weft_grid_barrier({c.pointer(e.args[0])}, (int32_t)({c.value(e.args[1])}))"


EMITTERS: Mapping[str, Emitter] = {GRID_BARRIER: _emit_barrier}

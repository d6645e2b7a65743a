"""Copies of constants that begin before a kernel waits for the one that was launched before it.

In: a pipeline annotated BEGINS_EARLY: [names], its copies those of each thread for itself, with its first fills
(`double_buffer`). These go to the top of the kernel, and a call says where it waits from here on:

    norm of x                                    copy parts 0 … 6 of w; commit each
    copy parts 0 … 6 of w; commit each           launch_wait()
    for k in range(32):                    ->    norm of x
      wait; copy part k + 7; use part k          for k in range(32):
                                                   wait; copy part k + 7; use part k

What all threads of a block read of a constant, the buffers that BEGINS_WITH names, is copied with the first part, and
waited for before the barrier that stands behind its fill. Only what no kernel of the program writes is read there: a
constant that is packed by a kernel of the same program is not there yet. Memory is busy while the kernel before has its
last sums, stores and its end.

`load_early` does the same for registers: what each thread loads once into the buffers that the annotation LOADED_EARLY
of a loop over blocks names, or out of them, where they are constants. Whoever annotates knows that it lies there when a
program begins: inputs of a model do. Such loads come before copies: nothing that is on its way delays them. What the
annotation LOADED_AT_ONCE names is written by the kernel before: each thread loads all of it right behind the wait, so
that no load stands behind one that somebody waits for.

`fetch_early` is for kernels that begin with instructions which load tiles of constants into registers (FETCHES): they
wait behind these.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence

from weft.codegen.c.context import Context, Emitter
from weft.codegen.c.generate import LAUNCH_WAIT
from weft.core.dtypes import INT32
from weft.expr.nodes import TRUE, Buffer, Call, Expr, Load, Var, add, index_expr, int_value, logical_and, mul, select
from weft.expr.visit import walk
from weft.loop.interpreter import register_effect
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.double_buffer import COMMIT, WAIT
from weft.loop.passes.support import Names, buffers_read, buffers_written, is_barrier, is_call, rename_repeated
from weft.loop.visit import Mutator, substitute_stmt, walk_stmts

BEGINS_EARLY, BEGINS_WITH = "begins_early", "begins_with"
FETCHES, BESIDE = ("mma_fetch", "mma_scales"), ("mma_stream_zero",)
LOADED_EARLY, LOADED_AT_ONCE = "loaded_early", "loaded_at_once"


def begin_early(func: Func) -> Func:
    """The program whose marked pipelines begin before their kernels wait."""
    if not any(isinstance(s, For) and s.annotations.get(BEGINS_EARLY) for s in walk_stmts(func.body)):
        return func
    known, shared = given(func), list[str]()
    made = _Kernels(lambda around: _Take(known, shared)).func(func)
    copied = [*func.annotations.get("async_copy", ()), *shared]
    return made.replace(annotations={**made.annotations, "async_copy": copied}) if shared else made


def load_early(func: Func) -> Func:
    """The program whose marked loads come before their kernels wait; runs when threads have statements of their own."""
    loops = [s for s in walk_stmts(func.body) if isinstance(s, For)]
    early, at_once = ({x for s in loops for x in s.annotations.get(key, ())} for key in (LOADED_EARLY, LOADED_AT_ONCE))
    if not early and not at_once:
        return func
    take = functools.partial(_TakeLoads, early, at_once, given(func), fresh=Names(func))
    return rename_repeated(_Kernels(take).func(func))


def given(func: Func) -> set[Buffer]:
    """What no kernel of a program writes."""
    return {p for p in func.params if isinstance(p, Buffer)} - buffers_written(func.body)


def fetch_early(func: Func) -> Func:
    """The program whose kernels wait behind calls that load constants into registers, where they begin with such."""
    return _Fetches(given(func)).func(func)


class _Fetches(Mutator):
    """Puts where a kernel waits behind its first calls that load constants."""

    def __init__(self, constants: set[Buffer]) -> None:
        self.constants = constants

    def visit_For(self, s: For) -> Stmt:
        is_kernel = (s.thread or "").startswith("blockIdx")
        return (self.within(s) or s) if is_kernel else self.generic_stmt(s)

    def within(self, s: Stmt) -> Stmt | None:
        """The statement with the wait in it; None where it begins otherwise."""
        if isinstance(s, Allocate) or isinstance(s, For) and s.kind == "thread":
            body = self.within(s.body)
            return None if body is None else s.replace(body=body) if isinstance(s, For) else Allocate(s.buffer, body)
        if not isinstance(s, Seq):
            return None
        parts = list(s.stmts)
        at = next((at for at, one in enumerate(parts) if not self._is_fetch(one, BESIDE)), len(parts) - 1)
        inner = self.within(parts[at])
        if inner is not None:
            return seq(*parts[:at], inner, *parts[at + 1 :])
        if not any(self._is_fetch(one) for one in parts[:at]):
            return None
        is_whole = not any(self._is_fetch(one) for later in parts[at:] for one in walk_stmts(later))
        wait = Evaluate(Call(LAUNCH_WAIT, (TRUE,) if is_whole else (), INT32))
        return seq(*parts[:at], wait, *parts[at:])

    def _is_fetch(self, s: Stmt, beside: Collection[str] = ()) -> bool:
        """Whether a statement does nothing but load constants into registers, and what is `beside`, by calls."""
        while isinstance(s, For) and s.kind in ("serial", "unrolled"):
            s = s.body
        if isinstance(s, Seq):
            return all(self._is_fetch(one, beside) for one in s.stmts)
        return any(is_call(s, name) for name in (*FETCHES, *beside)) and buffers_read(s) <= self.constants


class _Kernels(Mutator):
    """Finds the threads of a block, and puts what is taken out of their work before it."""

    def __init__(self, taker: Callable[[Sequence[For]], _Take | _TakeLoads]) -> None:
        self.taker = taker

    def visit_For(self, s: For) -> Stmt:
        if not (s.thread or "").startswith("threadIdx"):
            return self.generic_stmt(s)
        around, body = [s], s.body
        while isinstance(body, For) and body.kind == "thread" and all(body.thread != one.thread for one in around):
            around.append(body)
            body = body.body
        taken = self.taker(around)
        rest = taken.stmt(body)
        if not taken.first and not taken.later:
            return s
        is_there = any(is_call(one, LAUNCH_WAIT) for one in walk_stmts(rest))
        order = (TRUE,) if taken.is_whole else ()
        wait = None if is_there else Evaluate(Call(LAUNCH_WAIT, order, INT32))
        later = taken.later
        if is_there and later:
            rest, later = _behind_wait(rest, later), []
        made = seq(*taken.first, wait, *later, rest)
        own = [buffer for buffer in taken.memory if buffer.scope == "local"]
        for buffer in own:
            made = Allocate(buffer, made)
        for loop in reversed(around):
            made = loop.replace(body=made)
        for buffer in taken.memory:
            made = Allocate(buffer, made) if buffer not in own else made
        return made


class _TakeLoads(Mutator):
    """Takes loads into registers that are named, and these, out of what each thread does once; and of named constants,
    which get registers for all turns of unrolled loops."""

    def __init__(
        self, names: set[str], at_once: set[str], given: set[Buffer], around: Sequence[For], fresh: Names
    ) -> None:
        self.names, self.at_once, self.given, self.fresh = names, at_once, given, fresh
        self.around = {loop.thread: loop for loop in around}
        self.turns: list[For] = []
        self.tests: list[Expr] = []
        self.is_whole = False
        self.own = buffers_written(around[-1].body)
        self.same: dict[Var, Expr] = {}
        self.first: list[Stmt] = []
        self.later: list[Stmt] = []
        self.memory: list[Buffer] = []

    def visit_For(self, s: For) -> Stmt:
        outer = self.around.get(s.thread)
        if s.kind == "unrolled":
            self.turns.append(s)
            done = self.generic_stmt(s)
            self.turns.pop()
            return done
        if outer is None:
            return s
        self.same[s.var] = outer.var
        if int_value(outer.extent) == int_value(s.extent):
            return self.generic_stmt(s)
        self.tests.append(outer.var < s.extent)  # some threads only
        done = self.generic_stmt(s)
        self.tests.pop()
        return done

    def visit_If(self, s: If) -> Stmt:
        self.tests.append(s.condition)
        then = self.stmt(s.then)
        self.tests.pop()
        return If(s.condition, then, s.otherwise)

    def visit_Let(self, s: Let) -> Stmt:
        return s

    def visit_Select(self, e: Expr) -> Expr:
        return e  # its test may be what keeps a load inside

    visit_And = visit_Or = visit_Select

    def visit_Load(self, e: Load) -> Expr:
        test, place = logical_and(*self.tests), index_expr(0)
        is_early = e.buffer.name in self.names and e.buffer in self.given
        is_other = e.buffer.name in self.at_once and e.buffer not in self.own
        parts = [one for part in (test, *e.indices) for one in walk(part)]
        if not (is_early or is_other) or e.dtype.lanes > 1 or any(isinstance(one, Load) for one in parts):
            return e
        for loop in self.turns:
            place = add(mul(place, loop.extent), loop.var)
        size = math.prod(int_value(loop.extent) or 1 for loop in self.turns)
        own = Buffer(self.fresh.fresh(f"{e.buffer.name}_early"), e.buffer.dtype, (size,), scope="local")
        made: Stmt = Store(own, (place,), select(test, e, 0))
        for loop in reversed(self.turns):
            made = loop.replace(body=made)
        (self.first if is_early else self.later).append(substitute_stmt(made, self.same))
        self.memory.append(own)
        return Load(own, (place,))

    def visit_Seq(self, s: Seq) -> Stmt:
        if self.turns or self.tests:
            return self.generic_stmt(s)
        rest = []
        for one in s.stmts:
            written = buffers_written(one)
            if {b.name for b in written} <= self.names and written and buffers_read(one) <= self.given:
                self.first.append(substitute_stmt(one, self.same))
            else:
                rest.append(self.stmt(one))
        return seq(*rest)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        if s.buffer in {buffer for one in self.first for buffer in buffers_written(one)}:
            self.memory.append(s.buffer)
            return body
        return Allocate(s.buffer, body)


class _Take(Mutator):
    """Takes the first fills of a marked pipeline, and their memory, out of what threads do; notes which are shared."""

    def __init__(self, constants: set[Buffer], shared: list[str]) -> None:
        self.constants, self.shared = constants, shared
        self.beside: Collection[str] = ()
        self.is_whole = False
        self.first: list[Stmt] = []
        self.later: list[Stmt] = []
        self.filled: set[Buffer] = set()
        self.memory: list[Buffer] = []

    def visit_Seq(self, s: Seq) -> Stmt:
        for at, loop in enumerate(s.stmts):
            if isinstance(loop, For) and loop.annotations.get(BEGINS_EARLY) and not self.first:
                begin = at
                while begin > 0 and self._is_fill(s.stmts[begin - 1], loop):
                    begin -= 1
                self.filled = {buffer for one in s.stmts[begin:at] for buffer in buffers_written(one)}
                if self.filled:
                    self.first = list(s.stmts[begin:at])
                    self.is_whole = sum(is_call(one, COMMIT) for one in self.first) >= (int_value(loop.extent) or 0) > 0
                    self.beside = loop.annotations.get(BEGINS_WITH, ())
                    return seq(*s.stmts[:begin], *s.stmts[at:])
        made = self.generic_stmt(s)
        return self._take_shared(made) if isinstance(made, Seq) and self.beside else made

    def _take_shared(self, s: Seq) -> Stmt:
        """A sequence without the fills of what all threads read: their copies belong to the first group."""
        barrier = next((at for at, one in enumerate(s.stmts) if is_barrier(one)), 0)
        taken = [one for one in s.stmts[:barrier] if self._is_shared_fill(one)]
        if not taken:
            return s
        filled = {buffer for one in taken for buffer in buffers_written(one)}
        self.filled |= filled
        self.shared += sorted(buffer.name for buffer in filled)
        self.first, self.beside = [*taken, *self.first], ()
        later = sum(is_call(one, COMMIT) for one in self.first) - 1
        wait = Evaluate(Call(WAIT, [index_expr(later)], INT32))
        return seq(*[one for one in s.stmts[:barrier] if one not in taken], wait, *s.stmts[barrier:])

    def _is_shared_fill(self, s: Stmt) -> bool:
        written = buffers_written(s)
        return bool(written) and {b.name for b in written} <= set(self.beside) and buffers_read(s) <= self.constants

    def visit_Allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        if s.buffer in self.filled:
            self.memory.append(s.buffer)
            return body
        return s if body is s.body else Allocate(s.buffer, body)

    def _is_fill(self, s: Stmt, loop: For) -> bool:
        """Whether a statement fills what the loop reads, from constants alone; or ends a group of copies."""
        if is_call(s, COMMIT):
            return True
        written, named = buffers_written(s), set(loop.annotations[BEGINS_EARLY])
        ring = all(b.scope == "shared" for b in written) and bool(written) and written <= buffers_read(loop)
        return ring and all(b.name in named and b in self.constants for b in buffers_read(s))


class _Behind(Mutator):
    """Puts statements behind where a kernel waits."""

    def __init__(self, more: Sequence[Stmt]) -> None:
        self.more = more

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        return seq(s, *self.more) if is_call(s, LAUNCH_WAIT) else s


def _behind_wait(s: Stmt, more: Sequence[Stmt]) -> Stmt:
    return _Behind(more).stmt(s)


def _emit_wait(c: Context, call: Call) -> str:
    first, second = ("launch_dependents", "wait") if call.args else ("wait", "launch_dependents")
    return f'asm volatile("griddepcontrol.{first};\\n\\tgriddepcontrol.{second};" ::: "memory")'


EMITTERS: Mapping[str, Emitter] = {LAUNCH_WAIT: _emit_wait}
register_effect(LAUNCH_WAIT, lambda *order: 0)

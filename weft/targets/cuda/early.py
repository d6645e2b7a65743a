"""Copies of constants that begin before a kernel waits for the one that was launched before it.

In: a pipeline annotated BEGINS_EARLY: [names], its copies those of each thread for itself, with its first fills
(`double_buffer`). These go to the top of the kernel, and a call says where it waits from here on:

    norm of x                                    copy parts 0 … 6 of w; commit each
    copy parts 0 … 6 of w; commit each           launch_wait()
    for k in range(32):                    ->    norm of x
      wait; copy part k + 7; use part k          for k in range(32):
                                                   wait; copy part k + 7; use part k

Only what no kernel of the program writes is read there: a constant that is packed by a kernel of the same program is
not there yet. Memory is busy while the kernel before has its last sums, stores and its end.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.c.context import Context, Emitter
from weft.codegen.c.generate import LAUNCH_WAIT
from weft.core.dtypes import INT32
from weft.expr.nodes import Buffer, Call
from weft.loop.interpreter import register_effect
from weft.loop.ir import Allocate, Evaluate, For, Func, Seq, Stmt, seq
from weft.loop.passes.double_buffer import COMMIT
from weft.loop.passes.support import buffers_read, buffers_written
from weft.loop.visit import Mutator, walk_stmts

BEGINS_EARLY = "begins_early"


def begin_early(func: Func) -> Func:
    """The program whose marked pipelines begin before their kernels wait."""
    if not any(isinstance(s, For) and s.annotations.get(BEGINS_EARLY) for s in walk_stmts(func.body)):
        return func
    written = buffers_written(func.body)
    return _Kernels({p for p in func.params if isinstance(p, Buffer) and p not in written}).func(func)


class _Kernels(Mutator):
    """Finds the threads of a block whose pipeline is marked."""

    def __init__(self, constants: set[Buffer]) -> None:
        self.constants = constants

    def visit_For(self, s: For) -> Stmt:
        if not (s.thread or "").startswith("threadIdx"):
            return self.generic_stmt(s)
        around, body = [s], s.body
        while isinstance(body, For) and body.kind == "thread" and all(body.thread != one.thread for one in around):
            around.append(body)
            body = body.body
        taken = _Take(self.constants)
        rest = taken.stmt(body)
        if not taken.first:
            return s
        made = seq(*taken.first, Evaluate(Call(LAUNCH_WAIT, (), INT32)), rest)
        for loop in reversed(around):
            made = loop.replace(body=made)
        for buffer in taken.memory:
            made = Allocate(buffer, made)
        return made


class _Take(Mutator):
    """Takes the first fills of a marked pipeline, and their memory, out of what threads do."""

    def __init__(self, constants: set[Buffer]) -> None:
        self.constants = constants
        self.first: list[Stmt] = []
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
                    return seq(*s.stmts[:begin], *s.stmts[at:])
        return self.generic_stmt(s)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        if s.buffer in self.filled:
            self.memory.append(s.buffer)
            return body
        return s if body is s.body else Allocate(s.buffer, body)

    def _is_fill(self, s: Stmt, loop: For) -> bool:
        """Whether a statement fills what the loop reads, from constants alone; or ends a group of copies."""
        if isinstance(s, Evaluate) and isinstance(s.value, Call) and s.value.name == COMMIT:
            return True
        written, named = buffers_written(s), set(loop.annotations[BEGINS_EARLY])
        ring = all(b.scope == "shared" for b in written) and bool(written) and written <= buffers_read(loop)
        return ring and all(b.name in named and b in self.constants for b in buffers_read(s))


def _emit_wait(c: Context, call: Call) -> str:
    return c.dialect.wait.strip().rstrip(";")


EMITTERS: Mapping[str, Emitter] = {LAUNCH_WAIT: _emit_wait}
register_effect(LAUNCH_WAIT, lambda: 0)

"""Scopes of intermediates on a machine with blocks of threads: who can see a buffer follows from where it lives.

    blockIdx.x for bx in range(8):                         blockIdx.x for bx in range(8):
        allocate T: float32[32] "global"            ->         allocate T: float32[32] "shared"
        threadIdx.x for tx in range(32): …                     threadIdx.x for tx in range(32): …

A buffer that lives inside a block belongs to the block, so it can be "shared"; one that lives inside a thread is the
thread's own, "local", unless more thread loops stand inside: then several threads fill it together. One that lives
outside of all threads is "global", whatever it was called. Scopes that are neither of these three (tensor-core
fragments) stay. Runs on the lowered form, before barriers are inserted.
"""

from __future__ import annotations

from weft.expr.nodes import Buffer
from weft.loop.ir import Allocate, For, Func, Stmt
from weft.loop.visit import BufferReplacer, Mutator, walk_stmts

_PLAIN = ("global", "shared", "local")


def place_allocations(func: Func) -> Func:
    """The program with the scope of each allocation fitting its place."""
    placer = _Placer()
    done = placer.func(func)
    return BufferReplacer(placer.changed).func(done) if placer.changed else func


def _has_threads(s: Stmt) -> bool:
    return any(isinstance(x, For) and x.kind == "thread" for x in walk_stmts(s))


class _Placer(Mutator):
    def __init__(self) -> None:
        self.in_block = self.in_thread = False
        self.changed: dict[Buffer, Buffer] = {}

    def visit_For(self, s: For) -> Stmt:
        outer = self.in_block, self.in_thread
        if s.kind == "thread" and s.thread is not None:
            self.in_block |= s.thread.startswith("blockIdx")
            self.in_thread |= s.thread.startswith(("threadIdx", "vthread"))
        done = self.generic_stmt(s)
        self.in_block, self.in_thread = outer
        return done

    def visit_Allocate(self, s: Allocate) -> Stmt:
        scope = s.buffer.scope
        if scope in _PLAIN:
            if not self.in_block and not self.in_thread:
                scope = "global"
            elif scope == "global":
                scope = "local" if self.in_thread and not _has_threads(s) else "shared"
        if scope != s.buffer.scope:
            self.changed[s.buffer] = s.buffer.replace(scope=scope)
        return self.generic_stmt(s)

"""Thread-bound loops run one after the other, where the target has no such threads.

    for i in range(32) thread threadIdx.x: S   ->   for i in range(32): S

That is right only for programs whose threads do not wait for one another: memory that threads share, or a thread loop
inside another of the same tag, is refused.
"""

from __future__ import annotations

from weft.core.errors import TargetError
from weft.loop.ir import Allocate, For, Func, Stmt
from weft.loop.visit import Mutator, walk_stmts


def serialize_threads(func: Func) -> Func:
    """The program without thread-bound loops."""
    if not any(isinstance(s, For) and s.kind == "thread" for s in walk_stmts(func.body)):
        return func
    return _Serialize().func(func)


class _Serialize(Mutator):
    def __init__(self) -> None:
        self.tags: list[str] = []

    def visit_For(self, s: For) -> Stmt:
        """A thread loop becomes serial."""
        if s.kind != "thread":
            return self.generic_stmt(s)
        tag = str(s.thread)
        if tag in self.tags:
            raise TargetError(
                f"the loop {s.var.name} shares {tag} with a loop around it (cooperative fetching): "
                "this target has no threads that work together; use a GPU target or the interpreter"
            )
        self.tags.append(tag)
        body = self.stmt(s.body)
        self.tags.pop()
        return For(s.var, s.extent, body, "serial", None, s.annotations)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        """Memory that the threads around it share."""
        if s.buffer.scope == "shared" and any(tag.startswith("threadIdx") for tag in self.tags):
            raise TargetError(
                f"{s.buffer.name} is shared by threads that work together, which this target does not have; "
                "use a GPU target or the interpreter"
            )
        return self.generic_stmt(s)

"""Virtual threads become one thread that runs their statements interleaved.

    thread vthread for v in range(2):            allocate t: float32[2, 1]
        allocate t: float32[1]                   t[0, 0] = 0.0
            t[0] = 0.0                           t[1, 0] = 0.0
            for k in range(8):             ->    for k in range(8):
                t[0] = t[0] + A[v, k]                t[0, 0] = t[0, 0] + A[0, k]
            B[v] = t[0]                              t[1, 0] = t[1, 0] + A[1, k]
                                                 B[0] = t[0, 0]
                                                 B[1] = t[1, 0]

A buffer allocated inside, whose contents depend on the virtual thread, gets a copy for each of them (a leading
dimension); one that holds the same for all of them, such as a tile that all threads fetch together, is filled once.
Loops and tests that do not depend on the virtual thread are run once around the interleaved statements, and so are
barriers. This is how the latency of one virtual thread's memory access hides behind the work of another.
"""

from __future__ import annotations

from weft.core import model
from weft.core.errors import TargetError
from weft.expr.nodes import Address, Buffer, Expr, Load, Var, index_expr, int_value
from weft.expr.visit import walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import Copier, Names, Part, is_barrier, rename_repeated
from weft.loop.visit import Mutator, child_exprs, substitute_stmt, walk_exprs, walk_stmts


def lower_virtual_threads(func: Func) -> Func:
    """The program without loops tagged "vthread"."""
    if not any(isinstance(s, For) and s.thread == "vthread" for s in walk_stmts(func.body)):
        return func
    func = rename_repeated(func)
    return _Lowering(Names(func)).func(func)


class _Lowering(Mutator):
    def __init__(self, names: Names) -> None:
        self.names = names

    def visit_For(self, s: For) -> Stmt:
        body = self.stmt(s.body)
        loop = s if body is s.body else s.replace(body=body)
        if s.thread != "vthread":
            return loop
        count = int_value(s.extent)
        if count is None:
            raise TargetError(f"the vthread loop {s.var.name} has extent {s.extent!r}: virtual threads need a constant")
        if count <= 0:
            return Seq(())
        return _Interleaver(loop, count, self.names).stmt(loop.body)


def _touched(loop: For) -> tuple[set[Var], set[Buffer]]:
    """The variables and the buffers of the loop body whose values depend on the virtual thread (a fixed point)."""
    inside = {s.buffer for s in walk_stmts(loop.body) if isinstance(s, Allocate)}
    variables: set[Var] = {loop.var}
    buffers: set[Buffer] = {
        s.buffer for s in walk_stmts(loop.body) if isinstance(s, Store) and s.buffer not in inside
    }  # and what an intrinsic may write: it runs once for each virtual thread
    buffers |= {e.buffer for e in walk_exprs(loop.body, Address) if isinstance(e, Address) and "w" in e.mode}
    while True:
        before = len(variables) + len(buffers)
        _spread(loop.body, False, inside, variables, buffers)
        if len(variables) + len(buffers) == before:
            return variables, buffers


def _spread(s: Stmt, guarded: bool, inside: set[Buffer], variables: set[Var], buffers: set[Buffer]) -> None:
    """One round: what depends on a touched thing is touched; `guarded`: a test around depends on the thread."""
    depends = guarded or any(_depends(e, variables, buffers) for e in child_exprs(s))
    if isinstance(s, Store):
        if depends:
            buffers.add(s.buffer)
    elif isinstance(s, Evaluate):
        if depends and not is_barrier(s):
            buffers.update(node.buffer for node in walk(s.value) if isinstance(node, Address) and "w" in node.mode)
    elif isinstance(s, Let):
        if depends:
            variables.add(s.var)
        _spread(s.body, guarded, inside, variables, buffers)
    elif isinstance(s, (For, If)):
        if isinstance(s, For) and depends:
            variables.add(s.var)
        branches = [s.body] if isinstance(s, For) else [s.then] if s.otherwise is None else [s.then, s.otherwise]
        for branch in branches:
            _spread(branch, depends, inside, variables, buffers)
    elif isinstance(s, Allocate):
        _spread(s.body, guarded, inside, variables, buffers)
    elif isinstance(s, Seq):
        for child in s.stmts:
            _spread(child, guarded, inside, variables, buffers)


def _depends(e: Expr, variables: set[Var], buffers: set[Buffer]) -> bool:
    for node in walk(e):
        if type(node) is Var and node in variables:
            return True
        if isinstance(node, (Load, Address)) and node.buffer in buffers:
            return True
    return False


class _Interleaver(Mutator):
    """Pushes the virtual threads inward until statements are reached that differ between them."""

    def __init__(self, loop: For, count: int, names: Names) -> None:
        self.var = loop.var
        self.count = count
        self.names = names
        self.variables, self.buffers = _touched(loop)
        self.expanded: dict[Buffer, Buffer] = {}

    def _differs(self, e: Expr) -> bool:
        return _depends(e, self.variables, self.buffers)

    def _copies(self, s: Stmt) -> Stmt:
        """A statement once for each virtual thread."""
        renamed = Part(self.expanded, self.var).stmt(s)
        if self.count > model.WRITTEN_THREADS:
            var = Var(self.names.fresh(self.var.name))
            return For(var, self.count, Copier(self.names, {self.var: var}).stmt(renamed), "unrolled")
        binds = any(isinstance(inner, (For, Let, Allocate)) for inner in walk_stmts(renamed))
        copies = []
        for number in range(self.count):
            value = {self.var: index_expr(number)}
            fresh = binds and number > 0
            copies.append(Copier(self.names, dict(value)).stmt(renamed) if fresh else substitute_stmt(renamed, value))
        return seq(*copies)

    def visit_Store(self, s: Store) -> Stmt:
        return self._copies(s) if s.buffer in self.buffers else s

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        return s if is_barrier(s) else self._copies(s)

    def visit_For(self, s: For) -> Stmt:
        if self._differs(s.extent):
            return self._copies(s)
        body = self.stmt(s.body)
        return s if body is s.body else s.replace(body=body)

    def visit_If(self, s: If) -> Stmt:
        return self._copies(s) if self._differs(s.condition) else self.generic_stmt(s)

    def visit_Let(self, s: Let) -> Stmt:
        return self._copies(s) if self._differs(s.value) else self.generic_stmt(s)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        if s.buffer not in self.buffers:
            return self.generic_stmt(s)
        made = s.buffer.replace(shape=(self.count, *s.buffer.shape), strides=None)
        self.expanded[s.buffer] = made
        return Allocate(made, self.stmt(s.body))

"""Loops that ask for it fetch ahead what later iterations will load.

    for k in range(n) @{"prefetch": [["B", 8]]}:            for k in range(n):
        C[…] = C[…] + B[ramp(k*64, 1, 16)]           ->         prefetch(address(B[(k + 8)*64], "r"))
                                                                 C[…] = C[…] + B[ramp(k*64, 1, 16)]

One fetch for each load whose place moves with the loop. Past the end of the buffer a fetch has no effect.
"""

from __future__ import annotations

from weft.core.dtypes import INT32
from weft.expr.nodes import Address, Buffer, Call, Expr, Load, Ramp, Var, add, index_expr
from weft.expr.structural import structural_key
from weft.expr.visit import substitute, uses_any, walk
from weft.loop.interpreter import register_effect
from weft.loop.ir import Allocate, Evaluate, For, Func, Let, Stmt, seq
from weft.loop.visit import Mutator, walk_exprs, walk_stmts

register_effect("prefetch", lambda *arguments: None)


def insert_prefetch(func: Func) -> Func:
    """The program with its loops' "prefetch" annotations carried out."""
    if not any(isinstance(s, For) and "prefetch" in s.annotations for s in walk_stmts(func.body)):
        return func
    return _Insert().func(func)


class _Insert(Mutator):
    def visit_For(self, s: For) -> Stmt:
        """A loop: the fetches come first in its body."""
        body = self.stmt(s.body)
        wanted = s.annotations.get("prefetch")
        if not wanted:
            return s if body is s.body else s.replace(body=body)
        fetches = [fetch for name, distance in wanted for fetch in _fetches(s, str(name), int(distance))]
        notes = {key: value for key, value in s.annotations.items() if key != "prefetch"}
        return s.replace(body=seq(*fetches, body), annotations=notes)


def _fetches(loop: For, name: str, distance: int) -> list[Stmt]:
    later: dict[object, Stmt] = {}
    ahead: Expr = add(loop.var, index_expr(distance))
    first: dict[Var, Expr] = {loop.var: ahead}
    hidden: set[Var | Buffer] = set()
    for s in walk_stmts(loop.body):
        if isinstance(s, For):
            first[s.var] = index_expr(0)  # where the loops inside begin
        elif isinstance(s, Let):
            hidden.add(s.var)
        elif isinstance(s, Allocate):
            hidden.add(s.buffer)
    for e in walk_exprs(loop.body):
        if not isinstance(e, Load) or e.buffer.name != name or e.buffer in hidden:
            continue
        place = e.indices[0].base if isinstance(e.indices[0], Ramp) else e.indices[0]
        if place.dtype.lanes == 1 and uses_any(place, {loop.var}) and _is_plain(place, hidden):
            target = substitute(place, first)
            at = Address(e.buffer, (target,), "r")
            later.setdefault(structural_key(target), Evaluate(Call("prefetch", (at,), INT32)))
    return list(later.values())


def _is_plain(place: Expr, hidden: set[Var | Buffer]) -> bool:
    """Whether an index can be worked out before the body runs, some iterations early: it loads nothing."""
    return not any(isinstance(node, Load) or (isinstance(node, Var) and node in hidden) for node in walk(place))

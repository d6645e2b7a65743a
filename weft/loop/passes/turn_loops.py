"""Loops that ask for it run backwards in every second iteration of a loop around them.

    for t in range(n):                                       for t in range(n):
        for i in range(8) @{"zigzag": "t"}:          ->          for i in range(8):
            S(i)                                                     let at = select(t % 2 == 0, i, 7 - i)
                                                                     S(at)

What the last iterations of one round brought into the cache is used first in the next round. A parallel loop is left
to the code generator: there each thread turns the share that it gets.
"""

from __future__ import annotations

from weft.expr.nodes import Var, equal, index_expr, select, sub
from weft.loop.ir import For, Func, Let, Stmt
from weft.loop.visit import Mutator, substitute_stmt, walk_stmts


def turn_loops(func: Func) -> Func:
    """The program with its loops' "zigzag" annotations carried out."""
    if not any(isinstance(s, For) and "zigzag" in s.annotations for s in walk_stmts(func.body)):
        return func
    return _Turn().func(func)


class _Turn(Mutator):
    def __init__(self) -> None:
        self.around: list[Var] = []

    def visit_For(self, s: For) -> Stmt:
        """A loop: its variable counts down in odd rounds."""
        self.around.append(s.var)
        body = self.stmt(s.body)
        self.around.pop()
        by = s.annotations.get("zigzag")
        if by is None or s.kind == "parallel":
            return s if body is s.body else s.replace(body=body)
        notes = {key: value for key, value in s.annotations.items() if key != "zigzag"}
        rounds = [variable for variable in self.around if variable.name == by]
        if not rounds:  # the loop around it was taken apart: forwards is right too
            return s.replace(body=body, annotations=notes)
        at = Var(f"{s.var.name}_at")
        backwards = sub(sub(s.extent, index_expr(1)), s.var)
        place = select(equal(rounds[-1] % 2, index_expr(0)), s.var, backwards)
        return s.replace(body=Let(at, place, substitute_stmt(body, {s.var: at})), annotations=notes)

"""Loops that ask for it run backwards in every second iteration of a loop around them.

    for t in range(n):                                       for t in range(n):
        for i in range(8) @{"zigzag": "t"}:          ->          for i in range(8):
            S(i)                                                     let at = select(t % 2 == 0, i, 7 - i)
                                                                     S(at)

What the last iterations of one round brought into the cache is used first in the next round. A parallel loop is left
to the code generator: there each thread turns the share that it gets. `{"zigzag": null}` counts no loop's rounds, but
the calls of the model: `turn()`, which only whoever calls knows, is 1 in every second one.
"""

from __future__ import annotations

from weft.core.dtypes import INDEX
from weft.expr.nodes import Call, Var, equal, index_expr, select, sub
from weft.loop.interpreter import register_effect
from weft.loop.ir import For, Func, Let, Stmt
from weft.loop.passes.support import Names
from weft.loop.visit import Mutator, substitute_stmt, walk_exprs, walk_stmts

TURN = "turn"
register_effect(TURN, lambda: 0)


def turn_loops(func: Func) -> Func:
    """The program with its loops' "zigzag" annotations carried out."""
    loops = [s for s in walk_stmts(func.body) if isinstance(s, For) and "zigzag" in s.annotations]
    if not loops:
        return func
    calls = Var(Names(func).fresh("calls"))
    func = _Turn(calls).func(func)
    if all(s.annotations["zigzag"] is not None for s in loops):
        return func
    return func.replace(body=Let(calls, Call(TURN, (), INDEX), func.body))


def turns_by_call(func: Func) -> bool:
    """Whether a lowered program wants to know if the call is an odd one."""
    return any(isinstance(e, Call) and e.name == TURN for e in walk_exprs(func.body, Call))


class _Turn(Mutator):
    def __init__(self, calls: Var) -> None:
        self.calls = calls
        self.around: list[Var] = []

    def visit_For(self, s: For) -> Stmt:
        """A loop: its variable counts down in odd rounds."""
        self.around.append(s.var)
        body = self.stmt(s.body)
        self.around.pop()
        if "zigzag" not in s.annotations:
            return s if body is s.body else s.replace(body=body)
        by = s.annotations["zigzag"]
        if s.kind == "parallel":
            return s.replace(body=body, annotations={**s.annotations, "zigzag": self.calls.name if by is None else by})
        notes = {key: value for key, value in s.annotations.items() if key != "zigzag"}
        rounds = [self.calls] if by is None else [variable for variable in self.around if variable.name == by]
        if not rounds:  # the loop around it was taken apart: forwards is right too
            return s.replace(body=body, annotations=notes)
        at = Var(f"{s.var.name}_at")
        backwards = sub(sub(s.extent, index_expr(1)), s.var)
        place = select(equal(rounds[-1] % 2, index_expr(0)), s.var, backwards)
        return s.replace(body=Let(at, place, substitute_stmt(body, {s.var: at})), annotations=notes)

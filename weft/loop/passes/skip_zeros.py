"""Reductions that ask for it pass over the zeros of an operand: what is multiplied by them is not even read.

    for j in range(n):                                      (places: the numbers of the elements of x that are not 0)
        for k in range(1000) @{"skip_zeros": "x"}:    ->    for j in range(n):
            C[j] = C[j] + x[k] * W[j*1000 + k]                  for i in range(count[0]):
                                                                    let k = places[i]
                                                                    C[j] = C[j] + x[k] * W[j*1000 + k]

The places are found once, before everything else, so x must be a parameter that the program does not write, and the
element that an iteration multiplies by must depend on that iteration alone; other loops stay as they are.

A reduction with the note {"skip_first": "t"} has an operand that is all zeros in the first round of the loop t (the
state from which a recurrence starts): it does not run there. Whoever asks for either knows that the other operand is
finite: then 0 · w adds nothing, and the sums are the same to the bit.
"""

from __future__ import annotations

from weft.core.dtypes import INDEX
from weft.expr.nodes import Buffer, Expr, Load, Ramp, Var, add, const, equal, index_expr, int_value, select
from weft.expr.structural import structural_equal
from weft.expr.visit import substitute, walk
from weft.loop.ir import Allocate, For, Func, Let, Stmt, Store, seq
from weft.loop.passes.support import Names
from weft.loop.visit import Mutator, walk_exprs, walk_stmts

NOTE, FIRST = "skip_zeros", "skip_first"


def skip_zeros(func: Func) -> Func:
    """The program with its loops' "skip_zeros" and "skip_first" annotations carried out."""
    if not any(isinstance(s, For) and {NOTE, FIRST} & s.annotations.keys() for s in walk_stmts(func.body)):
        return func
    written = {s.buffer for s in walk_stmts(func.body) if isinstance(s, Store)}
    given = {p.name: p for p in func.params if isinstance(p, Buffer) and p not in written}
    skip = _Skip(given, Names(func))
    body = skip.stmt(func.body)
    for places in skip.found:
        body = places.around(body)
    return func.replace(body=body)


class _Places:
    """The iterations of a loop in which an operand is not 0: how many, and which."""

    def __init__(self, loop: For, element: Load, names: Names) -> None:
        size = int_value(loop.extent)
        assert size is not None
        self.size = size
        self.which = Buffer(names.fresh("places"), INDEX, (size,))
        self.count = Buffer(names.fresh("count"), INDEX, (1,))
        self.step = Var(names.fresh("step"))
        self.element = substitute(element, {loop.var: self.step})

    @property
    def so_far(self) -> Expr:
        return Load(self.count, (index_expr(0),))

    def serves(self, loop: For, element: Load) -> bool:
        """Whether these are the places of another loop too."""
        there = substitute(element, {loop.var: self.step})
        return int_value(loop.extent) == self.size and structural_equal(there, self.element)

    def around(self, body: Stmt) -> Stmt:
        """A statement, after the places are found."""
        more = select(equal(self.element, const(0, self.element.dtype)), index_expr(0), index_expr(1))
        find = For(
            self.step,
            index_expr(self.size),
            seq(
                Store(self.which, (self.so_far,), self.step),
                Store(self.count, (index_expr(0),), add(self.so_far, more)),
            ),
        )
        first = Store(self.count, (index_expr(0),), index_expr(0))
        return Allocate(self.which, Allocate(self.count, seq(first, find, body)))


class _Skip(Mutator):
    def __init__(self, given: dict[str, Buffer], names: Names) -> None:
        self.given, self.names = given, names
        self.found: list[_Places] = []
        self.around: list[Var] = []

    def visit_For(self, s: For) -> Stmt:
        """A loop: over the places where its operand is not 0, if they can be known before the program's loops."""
        if FIRST in s.annotations:
            return self._without_first(s)
        if NOTE not in s.annotations:
            self.around.append(s.var)
            body = self.stmt(s.body)
            self.around.pop()
            return s if body is s.body else s.replace(body=body)
        notes = {key: value for key, value in s.annotations.items() if key != NOTE}
        element = self._element(s)
        if element is None:
            return s.replace(annotations=notes)
        places = next((one for one in self.found if one.serves(s, element)), None)
        if places is None:
            places = _Places(s, element, self.names)
            self.found.append(places)
        at = Var(self.names.fresh("at"))
        body = Let(s.var, Load(places.which, (at,)), s.body)
        return For(at, places.so_far, body, s.kind, annotations=notes)

    def _without_first(self, s: For) -> Stmt:
        """A loop that does not run in the first round of a loop around it."""
        notes = {key: value for key, value in s.annotations.items() if key != FIRST}
        rounds = [variable for variable in self.around if variable.name == s.annotations[FIRST]]
        if not rounds:  # the loop around it was taken apart: adding zeros is right too
            return s.replace(annotations=notes)
        extent = select(equal(rounds[-1], index_expr(0)), index_expr(0), s.extent)
        return s.replace(extent=extent, annotations=notes)

    def _element(self, s: For) -> Load | None:
        """The element of the operand that an iteration multiplies by, where it depends on the iteration alone."""
        buffer = self.given.get(str(s.annotations[NOTE]))
        loads = [e for e in walk_exprs(s.body, Load) if isinstance(e, Load) and e.buffer is buffer]
        if buffer is None or not loads or int_value(s.extent) is None:
            return None
        first = loads[0]
        parts = list(walk(first.indices[0]))
        if any(isinstance(e, (Ramp, Load)) or (isinstance(e, Var) and e is not s.var) for e in parts):
            return None
        return first if all(structural_equal(other, first) for other in loads) else None

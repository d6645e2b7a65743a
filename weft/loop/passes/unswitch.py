"""A loop whose rounds are of two kinds, told by a flag, becomes a loop over each.

    for p in range(49) @{"unswitch": "flags"}:                 for p in range(49):
        for k in range(64):                                        if flags[p] <= 0: C[p] = E[p]
            D[0] = D[0] + select(flags[p] > 0, A[k]*B[k], 0)  ->  for p in range(49):
        C[p] = select(flags[p] > 0, D[0], E[p])                    if flags[p] > 0:
                                                                       for k in range(64): D[0] = D[0] + A[k]*B[k]
                                                                       C[p] = D[0]

(Two loops, since LLVM joins what two arms of one test have in common, and keeps all that they differ in for it.)
The note names the buffer of the flags; the loop must make one test of them, the same in the whole round, and not write
them. What everything that a round leaves behind asks for besides (that it is not beyond the last tile) is asked first.
Other loops stay as they are. Whoever asks for this knows that rounds do not depend on one another, and sums from 0, to
which -0 is no different: adding 0 is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.expr.bounds import Ranges, prove
from weft.expr.nodes import (
    Add,
    Broadcast,
    Const,
    Expr,
    Load,
    Select,
    index_expr,
    int_value,
    less,
    logical_and,
    logical_not,
)
from weft.expr.structural import structural_equal
from weft.expr.visit import walk
from weft.loop.ir import Allocate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import Copier, Names, conjuncts, is_empty
from weft.loop.visit import Mutator, walk_stmts

NOTE = "unswitch"


def unswitch(func: Func) -> Func:
    """The program with its loops' "unswitch" annotations carried out."""
    if not any(isinstance(s, For) and NOTE in s.annotations for s in walk_stmts(func.body)):
        return func
    return func.replace(body=_Unswitch(Names(func)).stmt(func.body))


class _Unswitch(Mutator):
    def __init__(self, names: Names) -> None:
        self.names = names
        self.ranges = Ranges()

    def visit_For(self, s: For) -> Stmt:
        """A loop: with a choice of bodies if the note asks for it and there is one test to choose by."""
        around, self.ranges = self.ranges, self.ranges.with_loop(s.var, s.extent)
        made = self._loop(s)
        self.ranges = around
        return made

    def _loop(self, s: For) -> Stmt:
        body = self.stmt(s.body)
        if NOTE not in s.annotations:
            return s if body is s.body else s.replace(body=body)
        loop = s.replace(body=body, annotations={key: note for key, note in s.annotations.items() if key != NOTE})
        choice = _choice(body, str(s.annotations[NOTE]), self.ranges)
        if choice is None:
            return loop
        test, guard = choice
        yes, no = (
            loop.replace(body=If(logical_and(*guard, known), _Known(test, holds, guard, self.ranges).stmt(body)))
            for known, holds in ((test, True), (logical_not(test), False))
        )
        return seq(no, Copier(self.names).stmt(yes))


def _choice(body: Stmt, flags: str, ranges: Ranges) -> tuple[Expr, list[Expr]] | None:
    """The only test of the flags in a statement, and when it is made: whenever the statement does something."""
    inner = {s.buffer for s in walk_stmts(body) if isinstance(s, Allocate)}
    stores = list(_guarded(body, []))
    seen = [one for one in stores if one[0].buffer not in inner]
    tests = [(_scalar(e.condition), terms) for store, terms in stores for e in _selects(store.value, flags)]
    if not tests or not all(structural_equal(test, tests[0][0]) for test, _ in tests):
        return None
    test, guard = min(tests, key=lambda one: len(one[1]))
    if test.dtype.lanes > 1 or not all(_holds(term, terms, ranges) for term in guard for _, terms in seen):
        return None
    bound = {s.var for s in walk_stmts(body) if isinstance(s, (For, Let))}
    written = {s.buffer for s in walk_stmts(body) if isinstance(s, (Store, Allocate))}
    for e in (part for whole in (test, *guard) for part in walk(whole)):
        if e in bound or (isinstance(e, Load) and e.buffer in written):
            return None
    return test, guard


def _selects(value: Expr, flags: str) -> list[Select]:
    """The choices in a value that read the flags."""
    return [e for e in walk(value, Select) if isinstance(e, Select) and _reads(e.condition, flags)]


def _guarded(s: Stmt, terms: list[Expr]) -> Iterator[tuple[Store, list[Expr]]]:
    """The stores of a statement, each with the conditions under which it runs (a predicate is one of its own)."""
    if isinstance(s, Store):
        yield s, [*terms, *([] if s.predicate is None else [s.predicate])]
    elif isinstance(s, If):
        yield from _guarded(s.then, [*terms, *conjuncts(s.condition)])
        if s.otherwise is not None:
            yield from _guarded(s.otherwise, [*terms, logical_not(s.condition)])
    elif isinstance(s, Seq):
        for child in s.stmts:
            yield from _guarded(child, terms)
    elif isinstance(s, For) and (int_value(s.extent) or 0) < 1:
        yield from _guarded(s.body, [*terms, less(index_expr(0), s.extent)])
    elif isinstance(s, (For, Let, Allocate)):
        yield from _guarded(s.body, terms)


def _holds(term: Expr, known: Sequence[Expr], ranges: Ranges) -> bool:
    """Whether a term follows from others, and from how far the loops around run."""
    return any(structural_equal(term, other) for other in known) or prove(
        term, ranges.with_condition(logical_and(*known))
    )


def _scalar(e: Expr) -> Expr:
    return e.value if isinstance(e, Broadcast) else e


def _reads(e: Expr, flags: str) -> bool:
    return any(node.buffer.name == flags for node in walk(e, Load))  # type: ignore[attr-defined]


class _Known(Mutator):
    """A statement where a test is known to hold, or not to, and a guard is known to hold."""

    def __init__(self, test: Expr, holds: bool, guard: Sequence[Expr], ranges: Ranges) -> None:
        self.test, self.holds, self.guard, self.ranges = test, holds, guard, ranges

    def visit_Select(self, e: Select) -> Expr:
        """A choice by the test is made; another one stays."""
        if structural_equal(_scalar(e.condition), self.test):
            return self.expr(e.then if self.holds else e.otherwise)
        return Select(self.expr(e.condition), self.expr(e.then), self.expr(e.otherwise))

    def visit_Store(self, s: Store) -> Stmt:
        """A store, unless it adds nothing."""
        value = self.expr(s.value)
        if isinstance(value, Add) and isinstance(value.a, Load):
            added = _scalar(value.b)
            same = structural_equal(value.a, Load(s.buffer, s.indices))
            if same and isinstance(added, Const) and added.value == 0:
                return Seq(())
        return Store(s.buffer, s.indices, value, s.predicate)

    def visit_Seq(self, s: Seq) -> Stmt:
        """What is left of a sequence."""
        return seq(*[self.stmt(child) for child in s.stmts])

    def visit_For(self, s: For) -> Stmt:
        """A loop, unless nothing is left in it."""
        body = self.stmt(s.body)
        return body if is_empty(body) else s.replace(body=body)

    def visit_If(self, s: If) -> Stmt:
        """A test, unless the guard holds it or nothing is left under it."""
        then = self.stmt(s.then)
        otherwise = None if s.otherwise is None else self.stmt(s.otherwise)
        left = [term for term in conjuncts(s.condition) if not _holds(term, self.guard, self.ranges)]
        return then if not left or (is_empty(then) and otherwise is None) else If(logical_and(*left), then, otherwise)

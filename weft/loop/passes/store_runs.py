"""Runs of strided vector stores that stand side by side in memory: what the passes share that join them.

B[ramp(b, s, n)] = x0;  B[ramp(b + 1, s, n)] = x1;  ...: lane j of the store number i goes to b + j*s + i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from weft.expr.nodes import Expr, Load, Ramp, int_value, sub
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import walk
from weft.loop.ir import If, Seq, Stmt, Store, seq
from weft.loop.visit import Mutator


class StridedStore(NamedTuple):
    """A store of a vector whose lanes stand `stride` elements apart, the first at `base`; only where `test` holds."""

    store: Store
    base: Expr
    stride: Expr
    lanes: int
    test: Expr | None = None

    @property
    def step(self) -> int | None:
        """The stride, where it is a number; None for one that follows from open sizes."""
        return int_value(self.stride)


Find = Callable[[StridedStore], int]
"""How many stores a run that begins with this one may have; 0 where it begins none."""

Join = Callable[[Sequence[StridedStore]], "Stmt | None"]
"""What a run becomes; None to leave it as it is."""


class JoinStores(Mutator):
    """Joins the runs of stores in every sequence of a program."""

    def __init__(self, longest: Find, join: Join) -> None:
        self.longest, self.join = longest, join

    def visit_Seq(self, s: Seq) -> Stmt:
        """A sequence: runs of stores in it are joined."""
        stmts = [self.stmt(child) for child in s.stmts]
        out: list[Stmt] = []
        position = 0
        while position < len(stmts):
            run = self._run(stmts, position)
            joined = self.join(run) if len(run) > 1 else None
            out.append(stmts[position] if joined is None else joined)
            position += 1 if joined is None else len(run)
        return s if len(out) == len(s.stmts) and all(a is b for a, b in zip(out, s.stmts)) else seq(*out)

    def _run(self, stmts: Sequence[Stmt], position: int) -> list[StridedStore]:
        """The stores from a position on that stand side by side, none of which reads what another writes."""
        first = _strided(stmts[position])
        longest = 0 if first is None else self.longest(first)
        if first is None or longest < 2 or _reads(first):
            return []
        run = [first]
        for s in stmts[position + 1 : position + longest]:
            found = _strided(s)
            if found is None or not _follows(found, first, len(run)) or _reads(found):
                break
            run.append(found)
        return run


def _strided(s: Stmt) -> StridedStore | None:
    if isinstance(s, If) and s.otherwise is None and s.condition.dtype.lanes == 1:
        inside = _strided(s.then)
        return None if inside is None or inside.test is not None else inside._replace(test=s.condition)
    if not isinstance(s, Store) or len(s.indices) != 1:
        return None
    index = s.indices[0]
    if not isinstance(index, Ramp) or s.value.dtype.lanes != index.lanes:
        return None
    return StridedStore(s, index.base, index.stride, index.lanes)


def _follows(found: StridedStore, first: StridedStore, offset: int) -> bool:
    same = found.store.buffer is first.store.buffer and found.lanes == first.lanes
    same = same and structural_equal(found.stride, first.stride)
    same = same and (found.store.predicate is None) == (first.store.predicate is None)
    return same and int_value(simplify(sub(found.base, first.base))) == offset


def _reads(found: StridedStore) -> bool:
    """Whether the store, or its test, reads the buffer that it writes."""
    read = [*walk(found.store.value, Load), *(() if found.test is None else walk(found.test, Load))]
    return any(isinstance(e, Load) and e.buffer is found.store.buffer for e in read)

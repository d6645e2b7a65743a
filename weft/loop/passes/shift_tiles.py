"""The last of several tiles starts so early that it is whole: what it shares with the one before is computed again.

    for xo in range(ceil(n / 6)):                          if 3 <= n:
        for xi in range(6):                        ->          for xo in range(n < 6 ? 0 : (n + 2) // 6):
            C[xi] = f(A[min(xo*6 + xi, n - 1)])                    let x = min(xo*6, n - 6)
        for xi in range(6):                                        for xi in range(6): C[xi] = f(A[x + xi])
            if xo*6 + xi < n: B[xo*6 + xi] = C[xi]                 for xi in range(6): B[x + xi] = C[xi]
                                                               for xo in range(ceil(rest / 3)): the same with tiles of 3
                                                           else: the loop as it was, with a tile of 3

In: loops annotated with the length of their tiles, their bounds checked. Out: no tests and no places of their own for
the elements of a tile, but in images that are smaller than the smallest. What is left over of an open size by tiles
whose elements are one loop, not of lanes, is computed by tiles of half the length, a quarter, …. Tiles that add to what
they write do the same, but nothing twice: the last ones, the smallest, keep their tests. Tiles that read otherwise what
they write, or do something that follows from their number or from the place of an element in its tile, stay as they
are; of memory that a tile has for itself, each element has its place.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from weft.core import model
from weft.core.dtypes import INDEX
from weft.expr.nodes import (
    LT,
    TRUE,
    Buffer,
    Expr,
    Load,
    Max,
    Min,
    Mul,
    Select,
    Var,
    add,
    ceildiv,
    floordiv,
    index_expr,
    int_value,
    less_equal,
    mul,
    select,
    sub,
)
from weft.expr.nodes import minimum as least
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import children, uses_any, walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Stmt, Store, seq
from weft.loop.passes.support import Names, conjuncts, linear, make_if
from weft.loop.visit import Mutator, child_exprs, child_stmts, walk_exprs, walk_stmts

NOTE = "whole_tiles"
"""The note on a loop over tiles: how many elements each has."""


def shift_tiles(func: Func) -> Func:
    """The program with the last of its tiles whole."""
    return _Loops(func).func(func) if any(map(_tile_of, walk_stmts(func.body))) else func


def tile_sizes(tile: int) -> list[int]:
    """The lengths of tiles along an open size: one, halved as long as that is worth a loop of its own."""
    return [tile, *(tile_sizes(-(-tile // 2)) if tile >= model.LEAST_HALVED else ())]


def tile_counts(tile: int, end: int) -> list[int]:
    """How many tiles of each size there are of so many elements."""
    sizes, left, counts = tile_sizes(tile), end, []
    for at, size in enumerate(sizes):
        rounds = -(-(left - left_to_smaller(sizes[at:])) // size)
        counts.append(max(rounds, 0) if size <= end or size == sizes[-1] else 0)
        left -= counts[-1] * size
    return counts


def left_to_smaller(sizes: Sequence[int]) -> int:
    """How many elements tiles of the first of some sizes leave to the others, at most."""
    return min(sum(sizes[1:]), sizes[0] - 1)


def _tile_of(stmt: Stmt) -> int:
    if not isinstance(stmt, For) or stmt.kind not in ("serial", "unrolled"):
        return 0
    return int(stmt.annotations.get(NOTE, 0))


class _Loops(Mutator):
    def __init__(self, func: Func) -> None:
        self.names = Names(func)

    def visit_For(self, s: For) -> Stmt:
        """A loop over tiles as two: for many elements, and for few."""
        tile = _tile_of(s)
        notes = {key: note for key, note in s.annotations.items() if key != NOTE}
        s = s.replace(body=self.stmt(s.body), annotations=notes)
        repeats = _may_repeat(s.body) if tile else None
        if repeats is None:
            return s
        shift = _Shift(s, tile, Var(self.names.fresh(f"{s.var.name}_start")))
        if shift.end is None:
            return s
        made = shift.stmt(s.body)
        if not shift.find_places(made) or not all(map(shift.is_of_elements, walk_stmts(made))):
            return s
        sizes = shift.sizes()
        if not repeats:
            shift.keeps_tests = True
            return s if len(sizes) == 1 else self.once(s, made, shift.stmt(s.body), shift, sizes, index_expr(0))
        whole = self.in_tiles(s.replace(body=made), shift, sizes, index_expr(0))
        rounds = s.extent if int_value(s.extent) is None else index_expr(1)
        body = _Shorter(shift, sizes[-1]).stmt(s.body)
        few = s.replace(extent=rounds, body=body, annotations={**notes, "partition": False})
        return If(less_equal(index_expr(sizes[-1]), shift.end), whole, few)

    def in_tiles(self, s: For, shift: _Shift, sizes: Sequence[int], done: Expr) -> Stmt:
        """What is not done yet, in tiles of the first size, and what those leave over in the others, one of each."""
        end, size, below = shift.end, index_expr(sizes[0]), left_to_smaller(sizes)
        assert end is not None
        rounds = ceildiv(sub(sub(end, done), index_expr(below)), sizes[0])
        body = Let(
            shift.start, least(add(done, mul(s.var, size)), sub(end, size)), _Shorter(shift, sizes[0]).stmt(s.body)
        )
        if not below:
            return s.replace(extent=rounds, body=body)
        count, after = (Var(self.names.fresh(f"{s.var.name}_{name}")) for name in ("count", "done"))
        rest = self.in_tiles(s, shift, sizes[1:], after)
        rest = Let(after, least(add(done, mul(count, size)), end), rest)
        return Let(
            count, select(less_equal(size, end), rounds, index_expr(0)), seq(s.replace(extent=count, body=body), rest)
        )

    def once(self, s: For, made: Stmt, tested: Stmt, shift: _Shift, sizes: Sequence[int], done: Expr) -> Stmt:
        """What is not done yet, each element once: whole tiles of each size, then those of the last, with tests."""
        assert shift.end is not None
        left, size, is_last = sub(shift.end, done), index_expr(sizes[0]), len(sizes) == 1
        tile = _Shorter(shift, sizes[0]).stmt(tested if is_last else made)
        body = Let(shift.start, add(done, mul(s.var, size)), tile)
        if is_last:
            return s.replace(extent=ceildiv(left, sizes[0]), body=body)
        count, after = (Var(self.names.fresh(f"{s.var.name}_{name}")) for name in ("count", "done"))
        rest = Let(after, add(done, mul(count, size)), self.once(s, made, tested, shift, sizes[1:], after))
        return Let(count, floordiv(left, size), seq(s.replace(extent=count, body=body), rest))


class _Shift(Mutator):
    """Tiles from another start on. `end` is where the tests end that hold there, or the loop, counted from where its
    first tile starts; None where that is not clear."""

    def __init__(self, loop: For, tile: int, start: Var) -> None:
        self.loop, self.tile, self.start, self.keeps_tests = loop, tile, start, False
        self.inner = {s.var: int_value(s.extent) for s in walk_stmts(loop.body) if isinstance(s, For)}
        self.elements: dict[Expr, dict[Expr, int]] = {}
        """The loops over the elements of a tile, each with what an element is: i, or o * 4 + i."""
        self.places: set[tuple[Buffer, int]] = set()
        """The axes of a tile's own memory along which its elements lie."""
        self.tested = self.find_ends()
        """Where the tests end, each of which stands beside the others."""
        self.end, count = (functools.reduce(least, self.tested) if self.tested else None), int_value(loop.extent)
        if self.end is not None and count is not None and int_value(self.end) is None:
            self.end = least(self.end, index_expr(count * tile))
        elif not any(structural_equal(simplify(ceildiv(end, tile)), simplify(loop.extent)) for end in self.tested):
            self.end = None

    def find_ends(self) -> list[Expr]:
        """The ends that hold for each value that a tile stores for others, or where those have different ones the first
        that is found."""
        own = {s.buffer for s in walk_stmts(self.loop.body) if isinstance(s, Allocate)}
        stored = [self.distinct(tests) for tests in _tests_of_stores(self.loop.body, own, [])]
        alike = [len(one) == len(stored[0]) and all(map(structural_equal, one, stored[0])) for one in stored]
        if stored and stored[0] and all(alike):
            return stored[0]
        return self.distinct(list(walk_exprs(self.loop.body, LT)))[:1]

    def distinct(self, tests: Sequence[Expr]) -> list[Expr]:
        """The ends that comparisons tell, each once."""
        found: dict[str, Expr] = {}
        for e in tests:
            end = self.limit(e.b, e.a) if isinstance(e, LT) else None
            found.update({} if end is None else {repr(end): end})
        return [found[text] for text in sorted(found)]

    def limit(self, high: Expr, low: Expr) -> Expr | None:
        """How far `high` is from where the first tile starts, where `low` is an element of a tile."""
        form, own = linear(low), {self.loop.var, *self.inner}
        if form.terms.get(self.loop.var) != self.tile or form.constant or uses_any(high, own):
            return None
        inside = {v: n for v, n in form.terms.items() if v is not self.loop.var and uses_any(v, own)}
        if not self.is_element(inside):
            return None
        for v, n in form.terms.items():
            high = high if v is self.loop.var or v in inside else sub(high, mul(v, index_expr(n)))
        return simplify(high)

    def is_element(self, terms: dict[Expr, int]) -> bool:
        """Whether a sum of loops is an element of a tile; those are then loops over elements."""
        ends = [isinstance(v, Var) and n > 0 and n * ((self.inner.get(v) or 0) - 1) for v, n in terms.items()]
        if not ends or any(end is False or end < 0 for end in ends) or not 0 <= sum(ends) < self.tile:
            return False
        if any(self.elements.get(v, terms) != terms for v in terms):
            return False
        self.elements.update(dict.fromkeys(terms, terms))
        return True

    def find_places(self, body: Stmt) -> bool:
        """Finds the axes of a tile's own memory along which its elements lie, and the loops along those; False where
        an element is looked for in another's place."""
        own = {s.buffer for s in walk_stmts(body) if isinstance(s, Allocate)}
        stores = [s for s in walk_stmts(body) if isinstance(s, Store)]
        used: list[Load | Store] = [e for e in walk_exprs(body, Load) if isinstance(e, Load) and e.buffer in own]
        used += [s for s in stores if s.buffer in own]
        while True:
            known = len(self.elements)
            self.places = {
                (one.buffer, at)
                for one in used
                for at, e in enumerate(one.indices)
                if any(v in self.elements for v in linear(e).terms)
            }
            for one in used:
                for form in [linear(e) for at, e in enumerate(one.indices) if (one.buffer, at) in self.places]:
                    if form.constant or not self.is_element(form.terms):
                        return False
            if len(self.elements) == known:
                return True

    def sizes(self) -> list[int]:
        """The lengths of the tiles that there are."""
        loops = [s for s in walk_stmts(self.loop.body) if isinstance(s, For) and s.var in self.elements]
        whole = all(int_value(s.extent) == self.tile and s.kind != "vectorized" for s in loops)
        is_open = self.end is not None and int_value(self.end) is None
        return tile_sizes(self.tile) if whole and is_open else [self.tile]

    def is_of_elements(self, s: Stmt) -> bool:
        """Whether what a statement says itself follows from elements of the tile, not from which tile it is."""
        if not isinstance(s, Store):
            return all(map(self._follows, child_exprs(s)))
        tests = [] if s.predicate is None else [s.predicate]
        return all(map(self._follows, (*self._elsewhere(s.buffer, s.indices), s.value, *tests)))

    def _elsewhere(self, buffer: Buffer, indices: Sequence[Expr]) -> list[Expr]:
        """The indices that are no place of an element in its tile."""
        return [e for at, e in enumerate(indices) if (buffer, at) not in self.places]

    def _follows(self, e: Expr) -> bool:
        own = {self.loop.var, self.start, *self.elements}
        if not uses_any(e, own):
            return True
        if isinstance(e, Load):
            return all(map(self._follows, self._elsewhere(e.buffer, e.indices)))
        if e.dtype is not INDEX or isinstance(e, (Min, Max)):
            return all(map(self._follows, children(e)))
        terms = linear(e).terms
        step, first = terms.get(self.start, 0), next((v for v in terms if v in self.elements), None)
        whole = {} if first is None else {v: n * step for v, n in self.elements[first].items()}
        others = [v for v in terms if v is not self.start and v not in self.elements]
        inside = {v: n for v, n in terms.items() if v in self.elements}
        return first is not None and inside == whole and not any(uses_any(v, own) for v in others)

    def is_end(self, high: Expr, low: Expr, less: int) -> bool:
        """Whether `high` is so much less than the end, and `low` an element of a tile."""
        found = self.limit(high, low)
        return found is not None and any(int_value(simplify(sub(end, found))) == less for end in self.tested)

    def starts_before(self, high: Expr, low: Expr) -> bool:
        """Whether a comparison says that a tile starts before the end, perhaps both by a common factor less."""
        form, own = linear(low), {self.loop.var, *self.inner}
        step = form.terms.get(self.loop.var, 0)
        if step < 1 or self.tile % step or uses_any(high, own):
            return False
        others = form.without(self.loop.var)
        if any(uses_any(v, own) for v in others.terms):
            return False
        found = mul(sub(high, sub(low, mul(self.loop.var, index_expr(step)))), index_expr(self.tile // step))
        return any(int_value(simplify(sub(end, found))) == 0 for end in self.tested)

    def visit_LT(self, e: LT) -> Expr:
        """A test of the end."""
        holds = not self.keeps_tests and (self.is_end(e.b, e.a, 0) or self.starts_before(e.b, e.a))
        return TRUE if holds else self.generic(e)

    def visit_Min(self, e: Min) -> Expr:
        """The last element instead of one behind it."""
        found = [low for high, low in ((e.b, e.a), (e.a, e.b)) if self.is_end(high, low, 1)]
        return self.expr(found[0]) if found and not self.keeps_tests else self.generic(e)

    def visit_Mul(self, e: Mul) -> Expr:
        """The start of a tile."""
        factor = int_value(e.b)
        if e.a is self.loop.var and factor is not None and factor % self.tile == 0:
            return mul(self.start, index_expr(factor // self.tile))
        return self.generic(e)

    def visit_Select(self, e: Select) -> Expr:
        """What is read before the end, where that is everywhere."""
        return select(self.expr(e.condition), self.expr(e.then), self.expr(e.otherwise))

    def visit_If(self, s: If) -> Stmt:
        """A test that always holds is none."""
        otherwise = None if s.otherwise is None else self.stmt(s.otherwise)
        return make_if(self.expr(s.condition), self.stmt(s.then), otherwise)


class _Shorter(Mutator):
    """A tile with so many elements."""

    def __init__(self, shift: _Shift, size: int) -> None:
        self.elements, self.size = shift.elements if size < shift.tile else {}, index_expr(size)

    def visit_For(self, s: For) -> Stmt:
        """A loop over elements."""
        return s.replace(body=self.stmt(s.body), extent=self.size if s.var in self.elements else s.extent)


def _tests_of_stores(s: Stmt, own: Collection[Buffer], tests: Sequence[Expr]) -> list[Sequence[Expr]]:
    """For each store into a buffer that is not a tile's own, the tests around it."""
    if isinstance(s, Store):
        return [] if s.buffer in own else [tests]
    if isinstance(s, If):
        made = _tests_of_stores(s.then, own, [*tests, *conjuncts(s.condition)])
        return made if s.otherwise is None else [*made, *_tests_of_stores(s.otherwise, own, tests)]
    return [one for child in child_stmts(s) for one in _tests_of_stores(child, own, tests)]


def _may_repeat(body: Stmt) -> bool | None:
    """Whether running a body twice is the same as running it once: it reads nothing that it writes for others. None
    where it reads that otherwise than to add to it, at the same places."""
    own = {s.buffer for s in walk_stmts(body) if isinstance(s, Allocate)}
    stores = [s for s in walk_stmts(body) if isinstance(s, Store) and s.buffer not in own]
    written = {s.buffer for s in stores}
    read = [e for e in walk_exprs(body, Load) if isinstance(e, Load) and e.buffer in written]
    added = [
        e
        for s in stores
        for e in walk(s.value, Load)
        if isinstance(e, Load) and e.buffer is s.buffer and all(map(structural_equal, e.indices, s.indices))
    ]
    is_plain = len(read) == len(added) and not any(isinstance(s, Evaluate) for s in walk_stmts(body))
    return not read if is_plain else None

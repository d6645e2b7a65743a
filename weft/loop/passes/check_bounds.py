"""Every access is shown to stay inside its buffer, or is made to: no kernel leaves its memory.

    for i in range(64):                             for i in range(64):
        B[i] = A[I[i], i]               ->              report_if(I[i] < 0 or 8 <= I[i])
                                                        B[i] = A[min(max(I[i], 0), 7), i]

In: a lowered program, before its loops are cut and its accesses flattened. Each index of each Load, Store and Address
is proven to lie in its dimension, by the loops around it ("proven") or a test that dominates it ("guarded"). One that
cannot be proven, since it is data, is clamped (a load) or tested (a store), and `report_if` tells the caller: the
function goes on and fails in the end ("flagged"). What always lies outside, and an address that cannot be proven, is
refused by name.

A report is made as far out as it can be: before the loops that it does not depend on, where nothing inside writes what
it reads, so that a row that is gathered is tested once and not for each of its elements.

What an access asks of open sizes alone is tested once, before everything ("guarded"): only where it does not hold does
a plain copy of the program run, whose accesses are clamped and reported one by one.

    for i in range(max(m, n)):                      if n == 1 or max(m, n) <= n: the loop as it was
        C[i] = A[i] + B[select(n == 1, 0, i)]  ->   else: for i_1 in range(max(m, n)): report_if(…); C[i_1] = …

`annotations["bounds"]` counts what was found; {"check_indices": False} leaves data indices as they are ("unchecked").
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from weft.core.dtypes import BOOL, INDEX, INT32
from weft.core.errors import BoundsError
from weft.expr.bounds import Ranges, interval
from weft.expr.intervals import Interval
from weft.expr.intrinsics import REPORT
from weft.expr.linear import Poly, add_scaled
from weft.expr.nodes import (
    TRUE,
    Address,
    And,
    Buffer,
    Call,
    Const,
    Expr,
    FloorDiv,
    Load,
    Or,
    Select,
    Var,
    add,
    broadcast,
    const,
    index_expr,
    int_value,
    is_false,
    is_true,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    select,
    sub,
)
from weft.expr.proof import Prover
from weft.expr.structural import structural_equal
from weft.expr.trial import tried_interval
from weft.expr.visit import children, free_vars, map_all, substitute, walk
from weft.loop.ir import Allocate, Block, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import (
    Copier,
    Names,
    assuming,
    buffers_read,
    buffers_written,
    has_effect,
    in_loop,
    is_written,
    known_of,
    loads,
    named,
)
from weft.loop.visit import Mutator, child_exprs, child_stmts, rebuild_stmt, walk_exprs, walk_stmts

logger = logging.getLogger("weft.bounds")

ERRORS = "weft_errors"
VALUES = "values"
"""A program's note of parameters between which two numbers all of their elements lie."""
KINDS = ("proven", "guarded", "flagged", "unchecked")


def check_bounds(func: Func) -> Func:
    """The program with every access inside its buffer."""
    checker = _Checker(func, demands=[])
    checked = checker.checked(func)
    if not checker.demands:
        return checked
    plain = _Checker(func)
    slow = plain.checked(func.replace(body=_Plain(Names(func)).stmt(func.body)))
    counts = {**checker.counts, "flagged": checker.counts["flagged"] + plain.counts["flagged"]}
    body = If(_all(checker.demands), checked.body, slow.body)
    return checked.replace(body=body, annotations={**checked.annotations, "bounds": counts})


def check_bounds_on_device(func: Func) -> Func:
    """The same, where a kernel returns nothing: a last parameter ERRORS takes a 1 from whoever reports something."""
    errors = Buffer(ERRORS, INT32, (1,))
    checked = _Checker(func, (Address(errors, (index_expr(0),), "w"),)).checked(func)
    flagged = checked.annotations["bounds"]["flagged"]
    return checked.replace(params=(*func.params, errors)) if flagged else checked


def check_regions(func: Func) -> Func:
    """Refuses a block that hands addresses to an intrinsic whose declared regions cannot be shown to lie in their
    buffers: what an intrinsic touches beyond its first element is known only here, while there are blocks.
    """
    _Regions(func).stmt(func.body)
    return func


class _Regions(Mutator):
    def __init__(self, func: Func) -> None:
        self.func_name = func.name
        self.ranges = Ranges().with_sizes(func.size_vars)

    def expr(self, e: Expr) -> Expr:
        """Expressions stay as they are."""
        return e

    def visit_For(self, s: For) -> Stmt:
        """A loop: its variable is known inside."""
        outer, self.ranges = self.ranges, self.ranges.with_loop(s.var, s.extent)
        self.stmt(s.body)
        self.ranges = outer
        return s

    def visit_Block(self, s: Block) -> Stmt:
        """A block: the regions of the buffers whose addresses it passes on."""
        passed = {e.buffer for e in walk_exprs(s.body, Address) if isinstance(e, Address)}
        if not passed:
            return s
        mapping = {axis.var: binding for axis, binding in zip(s.axes, s.bindings)}
        ranges = self.ranges if is_true(s.predicate) else self.ranges.with_condition(s.predicate)
        for region in (*s.reads, *s.writes):
            for low, extent, size in zip(region.mins, region.extents, region.buffer.shape):
                first, count = substitute(low, mapping), substitute(extent, mapping)
                if region.buffer in passed and not _proven(ranges, first, add(sub(size, count), index_expr(1))):
                    raise BoundsError(
                        f"{self.func_name}: block {s.name} hands {region.buffer.name} to an intrinsic, and {count!r} "
                        f"elements from {first!r} on cannot be shown to lie in a dimension of {size!r}"
                    )
        return s


class _Report:
    """A test that is to be made before something: what is wrong if it holds, the variables and buffers it speaks of."""

    __slots__ = ("condition", "variables", "buffers")

    def __init__(self, condition: Expr) -> None:
        self.condition = condition
        self.variables = set(free_vars(condition))
        self.buffers = {load.buffer for load in loads(condition)}

    def under(self, condition: Expr) -> _Report:
        """The same test where a condition holds."""
        return _Report(logical_and(condition, self.condition))


class _Plain(Copier):
    """A copy that runs one iteration after another."""

    def visit_For(self, s: For) -> Stmt:
        """A loop as it is read."""
        return super().visit_For(s.replace(kind="serial", annotations={"partition": False}))


class _Checker(Mutator):
    """`ranges` is what is known at the place of the walk; `loops` the part of it that no test told."""

    def __init__(self, func: Func, place: tuple[Expr, ...] = (), demands: list[Expr] | None = None) -> None:
        """`place` is where to report, for a target that has no other way; `demands` takes what sizes must fulfil."""
        self.func_name, self.place, self.demands = func.name, place, demands
        self.ranges = self.loops = known_of(func, _values(func))
        self.sizes = {var for var in self.ranges if var.dtype is INDEX and not self.ranges.knowledge().is_data(var)}
        self.path: list[Expr] = []
        self.pending: list[_Report] = []
        self.wanted = func.annotations.get("check_indices") is not False
        self.counts = dict.fromkeys(KINDS, 0)
        self.accesses: dict[Expr, bool] = {}

    def checked(self, func: Func) -> Func:
        """The whole program."""
        made = self.stmt(func.body)
        body = self._emitted(self.pending, made)
        return func.replace(body=body, annotations={**func.annotations, "bounds": self.counts})

    # ------------------------------------------------------------------------------------------------------- reports

    def _emitted(self, reports: Sequence[_Report], s: Stmt) -> Stmt:
        calls = [Evaluate(Call(REPORT, (report.condition, *self.place), BOOL)) for report in reports]
        return seq(*calls, s) if calls else s

    def _pinned(
        self, s: Stmt, variable: Var | None = None, written: Collection[Buffer] = (), all_of_them: bool = False
    ) -> Stmt:
        """A statement with those of its pending reports before it that may not move further out.

        Those are the ones that speak of the variable, or read what is written; or all of them.
        """
        if not self.pending:
            return s
        here = [r for r in self.pending if all_of_them or variable in r.variables or not r.buffers.isdisjoint(written)]
        self.pending = [report for report in self.pending if report not in here]
        return self._emitted(here, s)

    # ---------------------------------------------------------------------------------------------------- statements

    def visit_For(self, s: For) -> Stmt:
        """A loop: its variable is known inside, and reports that do not speak of it leave it."""
        extent = self.expr(s.extent)
        before, self.pending = self.pending, []
        ranges, loops = self.ranges, self.loops
        self.ranges = in_loop(ranges, s, extent)
        self.loops = self.ranges if loops is ranges else in_loop(loops, s, extent)
        body = self.stmt(s.body)
        self.ranges, self.loops = ranges, loops
        if self.pending:
            body = self._pinned(body, s.var, buffers_written(s.body), s.kind == "thread")
            runs = less(index_expr(0), extent)  # where a loop does not run at all, nothing in it is wrong
            self.pending = [] if is_false(runs) else [report.under(runs) for report in self.pending]
        self.pending = before + self.pending
        return s if extent is s.extent and body is s.body else s.replace(extent=extent, body=body)

    def visit_Seq(self, s: Seq) -> Stmt:
        """Statements in order: a report stays behind what writes its data."""
        outer, floating = self.pending, []
        written: set[Buffer] = set()
        fenced = False
        made: list[Stmt] = []
        seen: list[Stmt] = []
        for child in s.stmts:
            self.pending = []
            done = self.stmt(child)
            if self.pending:
                for before in s.stmts[len(seen) : len(made)]:
                    seen.append(before)
                    written |= buffers_written(before)
                done = self._pinned(done, None, written, fenced)
            floating += self.pending
            made.append(done)
            fenced = fenced or (isinstance(child, Evaluate) and has_effect(child.value))
        self.pending = outer + floating
        return s if all(a is b for a, b in zip(s.stmts, made)) else seq(*made)

    def visit_If(self, s: If) -> Stmt:
        """A test tells its branches what it knows; what they report, they report only where it holds."""
        condition = self.expr(s.condition)
        then = self._branch(condition, s.then)
        otherwise = None if s.otherwise is None else self._branch(logical_not(condition), s.otherwise)
        if condition is s.condition and then is s.then and otherwise is s.otherwise:
            return s
        return If(condition, then, otherwise)

    def _branch(self, condition: Expr, s: Stmt) -> Stmt:
        if self.ranges.knowledge().proves_not(condition):
            return s  # it never runs: the first part of a pipeline that is longer than its loop
        outer, before = self.ranges, self.pending
        self.pending = []
        self.ranges = assuming(outer, condition, s)
        done = self.stmt(s)
        self.ranges = outer
        if self.pending:
            done = self._pinned(done, all_of_them=is_written(condition, s))
        self.pending = before + [report.under(condition) for report in self.pending]
        return done

    def visit_Let(self, s: Let) -> Stmt:
        """A name: an index that it stands for is known by its value."""
        value = self.expr(s.value)
        before, self.pending = self.pending, []
        ranges, loops = self.ranges, self.loops
        self.ranges = named(ranges, s, value)
        self.loops = self.ranges if loops is ranges else named(loops, s, value)
        body = self.stmt(s.body)
        self.ranges, self.loops = ranges, loops
        body = self._pinned(body, s.var)
        self.pending = before + self.pending
        return s if value is s.value and body is s.body else Let(s.var, value, body)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        """A buffer: what is reported of its elements stays inside."""
        before, self.pending = self.pending, []
        body = self._pinned(self.stmt(s.body), None, (s.buffer,))
        self.pending = before + self.pending
        return s if body is s.body else Allocate(s.buffer, body)

    def visit_Store(self, s: Store) -> Stmt:
        """A store happens only where all of its indices are inside."""
        if s.predicate is not None:
            predicate = self.expr(s.predicate)
            with_predicate = self._inside_of(predicate, lambda: self._store(s))
            indices, value, tests = with_predicate
        else:
            predicate = None
            indices, value, tests = self._store(s)
        same = indices is s.indices and value is s.value and predicate is s.predicate
        made = s if same else Store(s.buffer, indices, value, predicate)
        return If(_all(tests), made) if tests else made

    def _store(self, s: Store) -> tuple[tuple[Expr, ...], Expr, list[Expr]]:
        indices, value = map_all(s.indices, self.expr), self.expr(s.value)
        tests = [self._inside(index, size) for index, size in self._unproven(s.buffer, indices, "store to")]
        return indices, value, tests

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        """A call for its effect."""
        return rebuild_stmt(s, self.stmt, self.expr)

    # --------------------------------------------------------------------------------------------------- expressions

    def _inside_of(self, condition: Expr, run: Any) -> Any:
        """What `run` gives while a condition is known to hold."""
        outer = self.ranges
        self.ranges = outer.with_condition(condition)
        self.path.append(condition)
        made = run()
        self.path.pop()
        self.ranges = outer
        return made

    def _arm(self, condition: Expr, e: Expr) -> Expr:
        """An expression that is computed only where a condition holds."""
        if not self._accesses(e) or self.ranges.knowledge().proves_not(condition):
            return e
        made: Expr = self._inside_of(condition, lambda: self.expr(e))
        return made

    def expr(self, e: Expr) -> Expr:
        """An expression; most have no loads and stay as they are."""
        return super().expr(e) if self._accesses(e) else e

    def _accesses(self, e: Expr) -> bool:
        """Whether there is an access in an expression."""
        kind = type(e)
        if kind is Var or kind is Const or kind is Load or kind is Address:
            return kind is Load or kind is Address
        found = self.accesses.get(e)
        if found is None:
            found = self.accesses[e] = any(self._accesses(part) for part in children(e))
        return found

    def visit_Select(self, e: Select) -> Expr:
        """An arm is computed only where the condition chooses it."""
        condition = self.expr(e.condition)
        then = self._arm(condition, e.then)
        otherwise = self._arm(logical_not(condition), e.otherwise)
        if condition is e.condition and then is e.then and otherwise is e.otherwise:
            return e
        return Select(condition, then, otherwise)

    def visit_And(self, e: And) -> Expr:
        """The second side is computed only where the first holds."""
        a = self.expr(e.a)
        b = self._arm(a, e.b)
        return e if a is e.a and b is e.b else And(a, b)

    def visit_Or(self, e: Or) -> Expr:
        """The second side is computed only where the first does not hold."""
        a = self.expr(e.a)
        b = self._arm(logical_not(a), e.b)
        return e if a is e.a and b is e.b else Or(a, b)

    def visit_Load(self, e: Load) -> Expr:
        """A load: an index that may lie outside is clamped; of what may be empty, zero is read."""
        indices = map_all(e.indices, self.expr)
        wrong = self._unproven(e.buffer, indices, "load of")
        if not wrong:
            return e if indices is e.indices else Load(e.buffer, indices)
        made = Load(e.buffer, [_clamped(*pair) if pair in wrong else pair[0] for pair in zip(indices, e.buffer.shape)])
        sizes = [size for _, size in wrong if (int_value(size) or 0) < 1]
        if not sizes:
            return made
        return select(_all([less(index_expr(0), size) for size in sizes]), made, const(0, e.dtype))

    def visit_Address(self, e: Address) -> Expr:
        """An address: what reads or writes there cannot be clamped."""
        indices = map_all(e.indices, self.expr)
        for index, size in self._outside(e.buffer, indices):
            raise BoundsError(
                f"{self.func_name}: the address {e!r} cannot be shown to lie in {e.buffer.name}: {index!r} against "
                f"a size of {size!r}; an intrinsic's operands must be regions of whole tiles"
            )
        return e if indices is e.indices else Address(e.buffer, indices, e.mode)

    # -------------------------------------------------------------------------------------------------------- proofs

    def _unproven(self, buffer: Buffer, indices: Sequence[Expr], what: str) -> list[tuple[Expr, Expr]]:
        """The indices that are not known to lie in their dimensions, with the sizes; they are reported."""
        found = self._outside(buffer, indices)
        if found and self.demands is not None:
            asked = [self._demand(self.ranges, *pair) for pair in found]
            for demand in asked:
                if demand is not None and not any(structural_equal(demand, other) for other in self.demands):
                    self.demands.append(demand)
            found = [pair for pair, demand in zip(found, asked) if demand is None]
            self.counts["guarded"] += not found
        if not found:
            return []
        if not self.wanted:
            self.counts["unchecked"] += 1
            return []
        self.counts["flagged"] += 1
        for index, size in found:
            if self.loops is self.ranges and not self.path and index.dtype.lanes == 1 and self._never(index, size):
                raise BoundsError(
                    f"{self.func_name}: the {what} {buffer.name}[{', '.join(map(repr, indices))}] lies outside: the "
                    f"index {index!r} of a dimension of {size!r}"
                )
            logger.debug("%s: the index %r of %s is tested when it runs", self.func_name, index, buffer.name)
            wrong = logical_not(self._inside(index, size))
            self.pending.append(_Report(_all([*self.path, wrong])))
        return found

    def _outside(self, buffer: Buffer, indices: Sequence[Expr]) -> list[tuple[Expr, Expr]]:
        """The indices that cannot be proven inside, with the sizes of their dimensions."""
        found = [pair for pair in zip(indices, buffer.shape) if not _proven(self.loops, *pair)]
        if found and self.loops is not self.ranges:
            found = [pair for pair in found if not _proven(self.ranges, *pair)]
            if not found:
                self.counts["guarded"] += 1
            return found
        if not found:
            self.counts["proven"] += 1
        return found

    def _demand(self, ranges: Ranges, index: Expr, size: Expr) -> Expr | None:
        """What must hold of sizes for an index to lie in a dimension; None where it is not a matter of sizes."""
        if isinstance(index, Select) and self._is_of_sizes(index.condition):
            opposite = logical_not(index.condition)
            demands: list[Expr] = []
            for known, other, arm in (
                (index.condition, opposite, index.then),
                (opposite, index.condition, index.otherwise),
            ):
                inside = ranges.with_condition(known)
                demand = TRUE if _proven(inside, arm, size) else self._demand(inside, arm, size)
                if demand is None:
                    return None
                demands += [] if is_true(demand) else [logical_or(other, demand)]
            return _all(demands)
        prover = ranges.knowledge()
        poly = prover.poly(index)
        if index.dtype is not INDEX or not prover.nonneg(poly):
            return None
        ends = [add_scaled(poly, prover.difference(fact), 1) for fact in ranges.facts]
        ends += filter(None, [prover.bound_without(poly, {*ranges} - self.sizes, True)])
        for end in map(prover.build, ends):
            demand = less(end, size)
            if not self._is_of_sizes(demand) or not free_vars(demand) or prover.proves_not(demand):
                continue
            if _proven(ranges.with_condition(demand), index, size):
                return demand
        return None

    def _is_of_sizes(self, e: Expr) -> bool:
        return not walk(e, Load, Call) and all(var in self.sizes for var in free_vars(e))

    def _never(self, index: Expr, size: Expr) -> bool:
        """Whether an index lies outside whatever happens."""
        prover = self.loops.knowledge()
        return prover.proves(less(index, index_expr(0))) or prover.proves(less_equal(size, index))

    @staticmethod
    def _inside(index: Expr, size: Expr) -> Expr:
        return logical_and(less_equal(index_expr(0), index), less(index, size))


def _values(func: Func) -> dict[Buffer, Interval]:
    """Between which numbers the elements of integer buffers lie: as the program's note says of constants, and for
    intermediates what is stored there (an element that is moved about stays what it is).
    """
    noted = func.annotations.get(VALUES) or {}
    known: dict[Buffer, Interval] = {b: (noted[b.name][0], noted[b.name][1]) for b in func.buffers if b.name in noted}
    stores: dict[Buffer, list[Expr]] = {}
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, Store) and stmt.buffer.dtype.is_integer and stmt.buffer not in func.buffers:
            stores.setdefault(stmt.buffer, []).append(stmt.value)
    if not stores:
        return known
    around = Ranges({}, (), known)  # no more than numbers: that a loop runs at all is known only inside of it
    for stmt in walk_stmts(func.body):  # every variable is bound once, so that its range holds wherever it is used
        if isinstance(stmt, Let) and stmt.var.dtype.is_integer:
            around = around.with_interval(stmt.var, interval(stmt.value, around))
        elif isinstance(stmt, For):
            high = interval(stmt.extent, around)[1]
            around = around.with_interval(stmt.var, (0, None if high is None else high - 1))
    for e in walk_exprs(func.body, Address):
        if isinstance(e, Address) and e.mode != "r":
            stores.pop(e.buffer, None)
    for buffer, values in stores.items():
        if not _filled_first(func.body, buffer):
            continue
        new = [value for value in values if all(load.buffer is not buffer for load in loads(value))]
        low, high = _union(around, new)
        if low is None or high is None:
            continue
        assumed = Ranges(around.table, (), {**known, buffer: (low, high)})
        if _union(assumed, [*values, *new]) == (low, high):
            known[buffer] = low, high
    return known


def _filled_first(s: Stmt, buffer: Buffer) -> bool:
    """Whether the first thing that is done with a buffer is to write every element: until then it holds anything.

    A loop in which every access has its variable in one dimension may do so for that one part of the buffer.
    """
    fixed: dict[int, Expr] = {}
    touching = [s]
    while touching:
        first: Stmt = touching[0]
        loops: dict[Expr, Expr] = {}
        inner = first
        while isinstance(inner, For):
            loops[inner.var], inner = inner.extent, inner.body
        if isinstance(inner, Store) and inner.buffer is buffer and inner.predicate is None:
            left = [pair for d, pair in enumerate(zip(inner.indices, buffer.shape)) if d not in fixed]
            if all(_runs_over(index, size, loops) for index, size in left) and len({i for i, _ in left}) == len(left):
                return all(load.buffer is not buffer for load in loads(inner.value))
        if len(touching) > 1 or any(load.buffer is buffer for e in child_exprs(first) for load in loads(e)):
            return False
        if isinstance(first, For):
            places = _places(first.body, buffer)
            fixed |= {d: first.var for d in range(len(buffer.shape)) if all(at[d] is first.var for at in places)}
        touching = [s for s in child_stmts(first) if buffer in buffers_written(s) or buffer in buffers_read(s)]
    return False


def _runs_over(index: Expr, size: Expr, loops: Mapping[Expr, Expr]) -> bool:
    """Whether an index is the variable of a loop over a whole dimension (or its only element)."""
    extent = loops.get(index, index_expr(1) if int_value(index) == 0 else None)
    return extent is not None and structural_equal(extent, size)


def _places(s: Stmt, buffer: Buffer) -> list[tuple[Expr, ...]]:
    """The indices at which a statement touches a buffer."""
    found = [e.indices for e in walk_exprs(s, Load, Address) if isinstance(e, (Load, Address)) and e.buffer is buffer]
    return found + [store.indices for store in walk_stmts(s) if isinstance(store, Store) and store.buffer is buffer]


def _union(ranges: Ranges, values: Sequence[Expr]) -> Interval:
    """Bounds of all of some values together."""
    found = [interval(value, ranges) for value in values]
    lows, highs = [low for low, _ in found if low is not None], [high for _, high in found if high is not None]
    return min(lows) if found and len(lows) == len(found) else None, max(highs) if len(highs) == len(
        found
    ) > 0 else None


def _proven(ranges: Ranges, index: Expr, size: Expr) -> bool:
    """Whether an index is known to lie in a dimension."""
    if isinstance(index, Select):
        chosen, other = ranges.with_condition(index.condition), ranges.with_condition(logical_not(index.condition))
        return _proven(chosen, index.then, size) and _proven(other, index.otherwise, size)
    prover, lanes = ranges.knowledge(), index.dtype.lanes
    if lanes > 1:
        zero, high = broadcast(index_expr(0), lanes), broadcast(size, lanes)
        return prover.proves(less_equal(zero, index)) and prover.proves(less(index, high))
    poly, end = prover.poly(index), prover.poly(size)
    if _lies_below(prover, poly, end):
        return True
    for term, factor in poly[0].items():  # i + j // 37 < 5 where it is known that 37 * i + j < 185
        kind, inside, by = prover.parts.get(term, (None, poly, 0)) if not isinstance(term, tuple) else (None, poly, 0)
        if kind is FloorDiv and factor == 1 and isinstance(by, int) and by > 0:
            rest = {key: value for key, value in poly[0].items() if key is not term}, poly[1]
            if _lies_below(prover, add_scaled(inside, rest, by), add_scaled(({}, 0), end, by)):
                return True
    whole = int_value(size)
    tried = None if whole is None else tried_interval(index, ranges)
    return tried is not None and whole is not None and 0 <= tried[0] and tried[1] < whole


def _lies_below(prover: Prover, poly: Poly, end: Poly) -> bool:
    terms, constant = add_scaled(end, poly, -1)
    return prover.nonneg(poly) and prover.nonneg((terms, constant - 1))


def _clamped(index: Expr, size: Expr) -> Expr:
    return minimum(maximum(index, index_expr(0)), sub(size, index_expr(1)))


def _all(conditions: Sequence[Expr]) -> Expr:
    made = conditions[0]
    for condition in conditions[1:]:
        made = logical_and(made, condition)
    return made


__all__ = ["ERRORS", "KINDS", "VALUES", "check_bounds", "check_bounds_on_device", "check_regions"]

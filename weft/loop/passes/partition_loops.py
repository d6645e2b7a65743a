"""Loops with tail tests are cut into a body without the test and a tail.

    for io in range(32):                       for io in range(31):
        for ii in range(32):                       for ii in range(32):
            if io * 32 + ii < 1000:       ->           C[io * 32 + ii] = A[io * 32 + ii]
                C[io * 32 + ii] = …                for ii_1 in range(8):
                                                   C[992 + ii_1] = A[992 + ii_1]

A test is a comparison that is linear in the loop variable, in an If or in a Select of a stored value (padding). The
range of the loop variable where the test holds for every iteration of the loops inside becomes the main loop; what is
before and after it becomes a prefix and a suffix, which disappear when nothing happens in them. Symbolic sizes work
the same way: range(n // 32), and a guarded tail. A parallel loop is not cut in two (that would be a second launch):
each iteration chooses its copy of the body.

The program grows to at most PARTITION_GROWTH times its statements; {"partition": False} on a loop leaves it alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.core import model
from weft.core.dtypes import INDEX
from weft.expr.nodes import (
    FALSE,
    LE,
    LT,
    TRUE,
    Address,
    Call,
    Compare,
    Expr,
    Load,
    Select,
    Var,
    add,
    floordiv,
    index_expr,
    int_value,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    select,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import free_vars, uses_any, walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import (
    Copier,
    Linear,
    Names,
    adds_nothing,
    conjuncts,
    in_loop,
    is_barrier,
    is_empty,
    is_register,
    is_written,
    known_of,
    linear,
    linear_interval,
    make_if,
    rename_repeated,
    size_of,
)
from weft.loop.visit import Mutator, child_exprs, rebuild_stmt, walk_exprs, walk_stmts


def partition_loops(func: Func) -> Func:
    """The program with tests that depend on a loop variable cut out of the loops."""
    if not any(True for _ in _conditions(func.body)):
        return func
    func = rename_repeated(func)
    return _Partitioner(func).func(func)


def _conditions(s: Stmt) -> Iterator[tuple[Expr, bool]]:
    """The conditions of the Ifs, and of the Selects in stored values and lets; whether it is a Select's."""
    for stmt in walk_stmts(s):
        if isinstance(stmt, If):
            yield stmt.condition, False
        elif not isinstance(stmt, (Store, Let, Evaluate)):
            continue
        for e in child_exprs(stmt):
            for node in walk(e, Select):
                yield node.condition, True  # type: ignore[attr-defined]


class _Test:
    """One comparison of a condition, as `form >= 0`; `padding`: it chooses a value, it does not skip a statement."""

    __slots__ = ("node", "form", "padding")

    def __init__(self, node: Expr, form: Linear, padding: bool) -> None:
        self.node = node
        self.form = form
        self.padding = padding


def _tests(s: Stmt) -> list[_Test]:
    """The comparisons of integers that conditions inside a statement are made of."""
    found: dict[Expr, _Test] = {}
    for condition, padding in _conditions(s):
        for node in conjuncts(condition):
            form = _form(node)
            if form is not None:
                found[node] = _Test(node, form, padding)
    return list(found.values())


def _form(node: Expr) -> Linear | None:
    """The linear form that is >= 0 exactly where a comparison holds."""
    if not isinstance(node, (LT, LE)) or node.a.dtype is not INDEX:
        return None
    difference = linear(node.b).plus(linear(node.a), -1)
    return difference.shifted(-1) if isinstance(node, LT) else difference


class _Bound:
    """A value of the loop variable from which on (or up to which) a test holds whatever the inner loops do.

    `exact`: on the other side of the bound the test fails, so that what it guards is empty there. An upper bound has
    the `end` from which on it fails whatever the inner loops do.
    """

    __slots__ = ("test", "value", "exact", "end")

    def __init__(self, test: _Test, value: Expr, exact: bool, end: Expr | None = None) -> None:
        self.test = test
        self.value = value
        self.exact = exact
        self.end = end


class _Replacer(Mutator):
    """Replaces comparisons by what is known about them, and drops what becomes empty."""

    def __init__(self, known: Mapping[Expr, Expr], bounds: Mapping[Var, tuple[int, int]]) -> None:
        self.known = known
        self.bounds = dict(bounds)

    def visit_LT(self, e: Compare) -> Expr:
        found = self.known.get(e)
        if found is not None:
            return found
        form = _form(e)
        interval = None if form is None else linear_interval(form, self.bounds)
        if interval is not None and interval[0] >= 0:
            return TRUE
        if interval is not None and interval[1] < 0:
            return FALSE
        return self.generic(e)

    def visit_LE(self, e: LE) -> Expr:
        return self.visit_LT(e)

    def visit_For(self, s: For) -> Stmt:
        extent = int_value(s.extent)
        if extent is not None:
            self.bounds[s.var] = (0, extent - 1)
        done = rebuild_stmt(s, self.stmt, self.expr)
        assert isinstance(done, For)
        return Seq(()) if is_empty(done.body) else done

    def visit_Select(self, e: Select) -> Expr:
        return select(self.expr(e.condition), self.expr(e.then), self.expr(e.otherwise))

    def visit_Store(self, s: Store) -> Stmt:
        done = rebuild_stmt(s, self.stmt, self.expr)
        assert isinstance(done, Store)
        return Seq(()) if done is not s and adds_nothing(done) else done

    def visit_If(self, s: If) -> Stmt:
        otherwise = None if s.otherwise is None else self.stmt(s.otherwise)
        return make_if(self.expr(s.condition), self.stmt(s.then), otherwise)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        return Seq(()) if is_empty(body) else Allocate(s.buffer, body)

    def visit_Let(self, s: Let) -> Stmt:
        body = self.stmt(s.body)
        return Seq(()) if is_empty(body) else Let(s.var, self.expr(s.value), body)


class _Partitioner(Mutator):
    def __init__(self, func: Func) -> None:
        self.names = Names(func)
        size = size_of(func.body)
        self.budget = max(size * model.PARTITION_GROWTH, model.PARTITION_SMALL) - size
        self.bounds: dict[Var, tuple[int, int]] = {}
        self.ranges = known_of(func)
        self.edge = False

    def visit_For(self, s: For) -> Stmt:
        pieces = None
        if self.edge and s.kind == "unrolled" and self._ends_open(s):
            s = s.replace(kind="serial")
        if s.kind != "thread" and s.annotations.get("partition") is not False and not is_written(s.extent, s.body):
            pieces = self._pieces(s)
        return self._inside(s) if pieces is None else pieces

    def _inside(self, loop: For) -> Stmt:
        """The loop as it is, with the loops inside it partitioned."""
        outer = self.ranges
        extent = int_value(loop.extent)
        if extent is not None:
            self.bounds[loop.var] = (0, extent - 1)
        self.ranges = in_loop(outer, loop, loop.extent)
        body = self.stmt(loop.body)
        self.ranges = outer
        if is_empty(body):
            return Seq(())
        return loop if body is loop.body else loop.replace(body=body)

    def _ends_open(self, loop: For) -> bool:
        """Whether a loop of a tail ends where an open size does: it is shorter as a loop than written out with a test
        for each copy. Not so where its elements are registers."""
        places = [*walk_exprs(loop.body, Load, Address), *walk_stmts(loop.body)]
        own = [one.indices for one in places if isinstance(one, (Load, Address, Store)) and is_register(one.buffer)]
        if any(uses_any(index, {loop.var}) for indices in own for index in indices):
            return False
        upper = self._bounds_of(loop)[1]
        return bool(upper) and all(each.exact and int_value(each.value) is None for each in upper)

    # ------------------------------------------------------------------------------------ where the tests hold

    def _bounds_of(self, loop: For) -> tuple[list[_Bound], list[_Bound]]:
        """Lower bounds (the test holds from there on) and upper bounds (it holds below) of the loop variable."""
        inner: dict[Var, Expr] = {}
        bound: set[Var] = set()
        for stmt in walk_stmts(loop.body):
            if isinstance(stmt, For):
                inner[stmt.var] = stmt.extent
                bound.add(stmt.var)
            elif isinstance(stmt, Let):
                bound.add(stmt.var)
        lower: list[_Bound] = []
        upper: list[_Bound] = []
        for test in _tests(loop.body):
            factor = test.form.terms.get(loop.var, 0)
            rest = _least(test.form.without(loop.var), loop.var, inner, bound) if factor else None
            if rest is None:
                continue
            least, exact = rest
            if factor > 0:  # factor * v + least >= 0  <=>  v >= ceil(-least / factor)
                numerator = Linear({}, factor - 1).plus(least, -1)
                lower.append(_Bound(test, self._quotient(numerator, factor), exact))
            else:  # v < floor(least / -factor) + 1
                value = self._quotient(least.shifted(-factor), -factor)
                against = _least(Linear({}, 0).plus(test.form.without(loop.var), -1), loop.var, inner, bound)
                most = None if against is None else Linear({}, -factor).plus(against[0], -1)
                upper.append(_Bound(test, value, exact, None if most is None else self._quotient(most, -factor)))
        return lower, upper

    def _quotient(self, numerator: Linear, divisor: int) -> Expr:
        return simplify(floordiv(numerator.expr(), index_expr(divisor)), self.ranges)

    # --------------------------------------------------------------------------------------------- the pieces

    def _pieces(self, whole: For) -> Stmt | None:
        loop, (lower, upper) = whole, self._bounds_of(whole)
        ends = [each.end for each in upper if each.end is not None]
        if 1 < len(ends) == len(upper) and all(structural_equal(end, ends[0]) for end in ends):
            loop, upper = self._trimmed(loop, upper, ends[0])
        pieces = self._cut(loop, lower, upper)
        if pieces is None and loop.kind in ("vectorized", "unrolled"):
            # Lanes where nothing happens can go, although those that read padding have to stay.
            skipping = [[each for each in bounds if not each.test.padding] for bounds in (lower, upper)]
            if [*map(len, skipping)] != [len(lower), len(upper)]:
                pieces = self._cut(loop, *skipping)
        if pieces is None and loop is not whole:
            return self._piece(loop, index_expr(0), loop.extent, loop.body)
        return pieces

    def _trimmed(self, loop: For, upper: list[_Bound], end: Expr) -> tuple[For, list[_Bound]]:
        """The loop without the iterations at its end in which nothing happens; what is left of its bounds."""
        known: dict[Expr, Expr] = {each.test.node: FALSE for each in upper}
        count, whole = int_value(end), int_value(loop.extent)
        # A sole test along an open size is cut as it is.
        shorter = len(upper) > 1 if count is None else whole is not None and count < whole
        if loop.kind != "serial" or not shorter:
            return loop, upper
        if not is_empty(_Replacer(known, self.bounds).stmt(loop.body)):
            return loop, upper
        held: dict[Expr, Expr] = {each.test.node: TRUE for each in upper if each.exact}
        extent = simplify(maximum(minimum(loop.extent, end), index_expr(0)), self.ranges)
        body = _Replacer(held, self.bounds).stmt(loop.body)
        return loop.replace(extent=extent, body=body), [each for each in upper if not each.exact]

    def _cut(self, loop: For, lower: list[_Bound], upper: list[_Bound]) -> Stmt | None:
        """The loop in pieces by some of its bounds; None where it stays whole."""
        if not lower and not upper:
            return None
        first: Expr = index_expr(0)
        for each in lower:
            first = maximum(first, each.value)
        last: Expr = loop.extent
        for each in upper:
            last = minimum(last, each.value)
        first = simplify(minimum(first, loop.extent) if lower else first, self.ranges)
        last = simplify(maximum(first, last) if upper else last, self.ranges)
        constant = int_value(first) is not None and int_value(last) is not None and int_value(loop.extent) is not None
        waits = any(is_barrier(s) for s in walk_stmts(loop.body))
        if not constant and (waits or loop.kind in ("vectorized", "unrolled") or int_value(loop.extent) == 1):
            # A vector has constant lanes, threads that wait for each other go on together, one step is whole.
            return None
        known: dict[Expr, Expr] = {each.test.node: TRUE for each in (*lower, *upper)}
        before = self._outside(loop, index_expr(0), first, lower, first) if lower else Seq(())
        after = self._outside(loop, last, sub(loop.extent, last), upper, last) if upper else Seq(())
        copies = (not is_empty(before)) + (not is_empty(after))
        padding = all(each.test.padding for each in (*lower, *upper))
        if copies and not self._worth(loop, first, last, copies, padding):
            return None
        self.budget -= copies * size_of(loop.body)
        body = _Replacer(known, self.bounds).stmt(loop.body)
        if loop.kind == "parallel" and copies:
            return self._dispatch(loop, first, last, body, before, after)
        main = self._piece(loop, first, sub(last, first), body)
        outer, self.edge = self.edge, True
        done_before = self._piece(loop, index_expr(0), first, before)
        done_after = self._piece(loop, last, sub(loop.extent, last), after)
        self.edge = outer
        return seq(done_before, main, done_after)

    def _worth(self, loop: For, first: Expr, last: Expr, copies: int, padding: bool) -> bool:
        """Whether the copies fit the budget, and the main loop has at least half of the iterations.

        A vector stays whole, with a mask; an unrolled loop gets its tests resolved when it is written out.
        """
        if copies * size_of(loop.body) > self.budget or loop.kind in ("vectorized", "unrolled"):
            return False
        low, high, extent = int_value(first), int_value(last), int_value(loop.extent)
        if low is None or high is None or extent is None:
            return True
        return (high - low) * 2 >= extent and not (self.edge and padding and extent < model.SHORT_EDGE)

    def _outside(self, loop: For, start: Expr, count: Expr, bounds: list[_Bound], edge: Expr) -> Stmt:
        """The body for the iterations before or after the main ones, with what is known there."""
        size = int_value(simplify(count, self.ranges))
        if size is not None and size <= 0:
            return Seq(())
        value = int_value(edge)
        known: dict[Expr, Expr] = {}
        one = all(structural_equal(each.value, bounds[0].value) for each in bounds)
        for each in bounds:
            if each.exact and (one or (value is not None and int_value(each.value) == value)):
                known[each.test.node] = FALSE
        ranges = dict(self.bounds)
        begin = int_value(start)
        if begin is not None and size is not None:
            ranges[loop.var] = (begin, begin + size - 1)
        return _Replacer(known, ranges).stmt(loop.body)

    def _piece(self, loop: For, start: Expr, count: Expr, body: Stmt) -> Stmt:
        """One of the loops: from `start`, so many iterations; a single iteration needs no loop."""
        count = simplify(count, self.ranges)
        size = int_value(count)
        if is_empty(body) or (size is not None and size <= 0):
            return Seq(())
        if size == 1:
            return self.stmt(Copier(self.names, {loop.var: start}).stmt(body))
        if int_value(start) == 0:  # at most one piece starts there, so that the variable stays bound once
            return self._inside(loop.replace(extent=count, body=body))
        var = Var(self.names.fresh(loop.var.name))
        copied = Copier(self.names, {loop.var: add(start, var)}).stmt(body)
        return self._inside(loop.replace(var=var, extent=count, body=copied))

    def _dispatch(self, loop: For, first: Expr, last: Expr, body: Stmt, before: Stmt, after: Stmt) -> Stmt:
        """A parallel loop: the test is on the loop variable alone, once for each iteration."""
        if is_empty(after):
            loop = loop.replace(extent=last)
        starts, ends = int_value(first) == 0, last is loop.extent
        condition = logical_and(TRUE if starts else less_equal(first, loop.var), TRUE if ends else less(loop.var, last))
        edge = after if starts else before if ends else loop.body
        single: dict[Var, Expr] = {}
        extent = int_value(loop.extent)
        if starts and extent is not None and int_value(last) == extent - 1:
            single = {loop.var: last}
        elif ends and int_value(first) == 1:
            single = {loop.var: index_expr(0)}
        outer = self.ranges
        self.ranges = in_loop(outer, loop, loop.extent)
        main = self.stmt(body)
        inside, self.edge = self.edge, True
        rest = self.stmt(Copier(self.names, single).stmt(edge))
        self.edge = inside
        self.ranges = outer
        return loop.replace(body=make_if(condition, main, rest))


def _least(form: Linear, var: Var, inner: Mapping[Var, Expr], bound: set[Var]) -> tuple[Linear, bool] | None:
    """The least value over the inner loops in terms of what is outside the loop, and whether that is the only value.

    None where it is not known: a let, a nonlinear term, or an extent that depends on the loop.
    """
    least, exact = Linear({}, form.constant), True
    for term, factor in form.terms.items():
        variables = free_vars(term)
        if type(term) is Var and term in inner:
            extent = linear(inner[term])
            if any(v is var or v in bound for v in free_vars(*extent.terms)):
                return None
            exact = False
            if factor < 0:
                least = least.plus(extent.shifted(-1), factor)
        elif var in variables or any(v in bound for v in variables) or walk(term, Load, Call):
            return None
        else:
            least = least.plus(Linear({term: 1}, 0), factor)
    return least, exact

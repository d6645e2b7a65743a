"""Regions: which boxes of which buffers a piece of program reads and writes.

`block_regions` derives a block's own regions from its body; `relax` widens a region over loops, so that
`A[yo*32 + yi]` over yi in 0..31 becomes `A[yo*32 +: 32]`; `unite` joins two boxes into the smallest box around both.
A bound that cannot be found becomes the whole dimension, which is always safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.expr.bounds import Ranges, interval, lower_bound, prove, upper_bound
from weft.expr.nodes import (
    LT,
    TRUE,
    Add,
    Address,
    And,
    Buffer,
    Const,
    Expr,
    Load,
    Mul,
    Var,
    add,
    index_expr,
    int_value,
    is_true,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal, structural_key
from weft.expr.visit import free_vars, substitute, uses_any, walk
from weft.loop.ir import Block, For, If, Let, Region, Seq, Stmt, Store
from weft.loop.visit import child_exprs, child_stmts, map_region

ZERO, ONE = index_expr(0), index_expr(1)


def block_regions(body: Stmt, init: Stmt | None) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    """The regions that a block's body (and init) reads and writes, in terms of the block's axes.

    A buffer that the block updates in place counts as written only. Loops inside the body are widened over.
    """
    reads: list[Region] = []
    writes: list[Region] = []
    for stmt in (init, body):
        if stmt is not None:
            _collect(stmt, reads, writes, {}, {}, Ranges())
    written = {region.buffer for region in writes}
    reads = [r for r in reads if r.buffer not in written]
    return tuple(_distinct(_settled(reads, written))), tuple(_distinct(_settled(writes, written)))


def _settled(regions: Iterable[Region], written: set[Buffer]) -> list[Region]:
    """Boxes that begin at a number which the block itself writes become whole dimensions: the number changes."""

    def moves(low: Expr) -> bool:
        loads = walk(low, Load) if low.holds & Load.bit else ()
        return any(isinstance(node, Load) and node.buffer in written for node in loads)

    def settled(region: Region) -> Region:
        move = [moves(low) for low in region.mins]
        if not any(move):
            return region
        mins = [ZERO if m else low for m, low in zip(move, region.mins)]
        extents = [size if m else e for m, size, e in zip(move, region.buffer.shape, region.extents)]
        return Region(region.buffer, mins, extents)

    return [settled(region) for region in regions]


def _collect(
    s: Stmt, reads: list[Region], writes: list[Region], inner: dict[Var, None], lets: dict[Var, Expr], ranges: Ranges
) -> None:
    """Adds the accesses of a statement; `inner` are the loop variables that start inside the block's body."""
    if isinstance(s, For):
        inner = {**inner, s.var: None}
        ranges = ranges.with_loop(s.var, s.extent)
    elif isinstance(s, Let):
        lets = {**lets, s.var: substitute(s.value, lets)}

    def add_access(target: list[Region], buffer: Buffer, indices: Sequence[Expr]) -> None:
        at = [substitute(i, lets) for i in indices] if lets else list(indices)
        region = Region(buffer, at, [ONE] * len(at))
        target.append(relax(region, inner, ranges) if inner else region)

    for e in child_exprs(s):
        for node in walk(e, Load, Address):
            if type(node) is Load:
                add_access(reads, node.buffer, node.indices)
            elif type(node) is Address:
                whole = Region(node.buffer, [0] * len(node.buffer.shape), node.buffer.shape)
                if "r" in node.mode:
                    reads.append(whole)
                if "w" in node.mode:
                    writes.append(whole)
    if isinstance(s, Store):
        add_access(writes, s.buffer, s.indices)
    for child in child_stmts(s):
        _collect(child, reads, writes, inner, lets, ranges)


def same_region(a: Region, b: Region) -> bool:
    """Whether two regions are the same box by structure."""
    return (
        a.buffer is b.buffer
        and all(structural_equal(x, y) for x, y in zip(a.mins, b.mins))
        and all(structural_equal(x, y) for x, y in zip(a.extents, b.extents))
    )


def _distinct(regions: Iterable[Region]) -> list[Region]:
    out: dict[Any, Region] = {}
    for region in regions:
        out.setdefault((region.buffer, *map(structural_key, (*region.mins, *region.extents))), region)
    return list(out.values())


def relax(region: Region, over: Mapping[Var, None], ranges: Ranges) -> Region:
    """The smallest box around a region while the given variables run over their ranges."""
    mins, extents = [], []
    for low, extent, size in zip(region.mins, region.extents, region.buffer.shape):
        if not uses_any(low, over) and not uses_any(extent, over):
            mins.append(low)
            extents.append(extent)
            continue
        first = lower_bound(low, over, ranges)
        last = upper_bound(sub(add(low, extent), ONE), over, ranges)
        mins_extent = _span(first, last, size, ranges)
        mins.append(mins_extent[0])
        extents.append(mins_extent[1])
    return Region(region.buffer, mins, extents)


def _span(first: Expr | None, last: Expr | None, size: Expr, ranges: Ranges) -> tuple[Expr, Expr]:
    """First index and extent of first..last; the extent does not depend on loop variables if that can be had."""
    if first is None or last is None:
        return index_expr(0), size
    first = simplify(first, ranges)
    extent = simplify(add(sub(last, first), ONE), ranges)
    if int_value(extent) is None and any(ranges.get(v) is not None for v in _variables(extent)):
        bound = interval(extent, ranges)[1]
        if bound is None:
            return index_expr(0), size
        extent = index_expr(bound)
        whole = int_value(size)
        if whole is not None and bound >= whole:
            return index_expr(0), size
    return first, extent


def _variables(e: Expr) -> list[Var]:
    return walk(e, Var)  # type: ignore[return-value]


def unite(a: Region, b: Region, ranges: Ranges) -> Region:
    """The smallest box around two boxes of one buffer."""
    mins, extents = [], []
    for low_a, extent_a, low_b, extent_b, size in zip(a.mins, a.extents, b.mins, b.extents, a.buffer.shape):
        if structural_equal(low_a, low_b) and structural_equal(extent_a, extent_b):
            mins.append(low_a)
            extents.append(extent_a)
            continue
        first = lesser(low_a, low_b, ranges)
        end = greater(add(low_a, extent_a), add(low_b, extent_b), ranges)
        low, extent = _span(first, sub(end, ONE), size, ranges)
        mins.append(low)
        extents.append(extent)
    return Region(a.buffer, mins, extents)


def lesser(a: Expr, b: Expr, ranges: Ranges) -> Expr:
    """min(a, b), decided now where it can be."""
    if prove(less_equal(a, b), ranges):
        return a
    if prove(less_equal(b, a), ranges):
        return b
    return simplify(minimum(a, b), ranges)


def greater(a: Expr, b: Expr, ranges: Ranges) -> Expr:
    """max(a, b), decided now where it can be."""
    if prove(less_equal(b, a), ranges):
        return a
    if prove(less_equal(a, b), ranges):
        return b
    return simplify(maximum(a, b), ranges)


def outer_region(block: Block, region: Region) -> Region:
    """A block's region in terms of the loop variables around it."""
    mapping = {axis.var: binding for axis, binding in zip(block.axes, block.bindings)}
    return map_region(region, lambda e: substitute(e, mapping))


def accessed_region(
    s: Stmt,
    buffer: Buffer,
    ranges: Ranges,
    *,
    reads: bool = True,
    writes: bool = True,
    over: Mapping[Var, None] | None = None,
    tests: bool = True,
) -> Region | None:
    """The box of a buffer that the blocks inside a statement touch, widened over the loops inside it (and `over`).

    Without `tests` a block counts as running at every iteration, whatever its predicate.
    """
    found: list[Region] = []
    outside = dict(over or {})

    def visit(node: Stmt, inner: dict[Var, None], known: Ranges) -> None:
        if isinstance(node, For):
            visit(node.body, {**inner, node.var: None}, known.with_loop(node.var, node.extent))
        elif isinstance(node, Block):
            regions = [*(node.reads if reads else ()), *(node.writes if writes else ())]
            for region in regions:
                if region.buffer is buffer:
                    touched = outer_region(node, region)
                    if tests and not is_true(node.predicate):
                        inside = known.with_condition(node.predicate)
                        touched = map_region(touched, lambda e: simplify(e, inside))  # noqa: B023  (used at once)
                        found.append(clamp(_where_it_runs(node, touched, inner, known), known))
                    else:
                        found.append(clamp(relax(touched, inner, known), known))
        elif isinstance(node, (Seq, If)):
            for child in child_stmts(node):
                visit(child, inner, known)

    visit(s, outside, ranges)
    if not found:
        return None
    result = found[0]
    for other in found[1:]:
        result = unite(result, other, ranges)
    return result


Span = tuple[Expr, Expr]
"""First value and count of an axis."""


def walked_box(block: Block, inner: Sequence[For], ranges: Ranges) -> tuple[dict[Var, Span], Expr] | None:
    """The box of its spatial axes through every point of which one run of the inner loops takes the block.

    Gives for each axis the first value and the count, and the condition, on variables outside the loops, under which
    the block runs at all; None where the points are no box: `C[f // 3, f % 3]` over four values of f touches parts of
    rows. `ranges` knows the inner loops too. Points past the end of an axis are left out.
    """
    variables = {loop.var: loop for loop in inner}
    seen: set[Var] = set()
    inside = ranges
    spans: dict[Var, Span] = {}
    for axis, binding in zip(block.axes, block.bindings):
        if axis.kind == "reduce":
            continue
        used = [v for v in variables if uses_any(binding, {v})]
        span = None if seen.intersection(used) else _dense_span(binding, [variables[v] for v in used], ranges)
        if span is None:
            return None
        seen.update(used)
        spans[axis.var] = span
        inside = inside.with_condition(less(binding, axis.extent))
    reducing = {v for a, b in zip(block.axes, block.bindings) if a.kind == "reduce" for v in free_vars(b)} - seen
    sizes = {v for axis in block.axes for v in free_vars(axis.extent)}
    outside: Expr = TRUE
    for term in conjuncts(block.predicate):
        if not uses_any(term, variables):
            outside = logical_and(outside, term)
        elif not prove(term, inside) and not all(v in reducing or v in sizes for v in free_vars(term)):
            return None  # (a test of reduction loops alone still lets some of their iterations run)
    return spans, outside


def written_box(block: Block, buffer: Buffer, spans: Mapping[Var, Span]) -> Region | None:
    """The box of a buffer that a block writes while its axes run through spans; None where what it writes is no box."""
    regions = [r for r in block.writes if r.buffer is buffer]
    if len(regions) != 1:
        return None
    mins, extents = [], []
    used: list[Var] = []
    for low, extent in zip(regions[0].mins, regions[0].extents):
        start = low.b if type(low) is Add and type(low.b) is Const else ZERO
        place = low.a if type(low) is Add and type(low.b) is Const else low
        step = place.b if type(place) is Mul and type(place.b) is Const else ONE
        variable = place.a if type(place) is Mul and type(place.b) is Const else place
        if isinstance(variable, Var) and variable in spans and structural_equal(extent, step):
            first, count = spans[variable]
            used.append(variable)
            mins.append(add(mul(first, step), start))
            extents.append(mul(count, step))
        elif uses_any(low, spans) or uses_any(extent, spans):
            return None
        else:
            mins.append(low)
            extents.append(extent)
    return Region(buffer, mins, extents) if len(set(used)) == len(used) else None


def _dense_span(binding: Expr, loops: Sequence[For], ranges: Ranges) -> Span | None:
    """The least value and the count where a binding takes every value from there on while the loops run."""
    zero: dict[Var, Expr] = {loop.var: index_expr(0) for loop in loops}
    first = simplify(substitute(binding, zero), ranges)
    rest = sub(binding, first)
    steps: list[tuple[int, Expr]] = []
    for loop in loops:
        step = int_value(simplify(substitute(rest, {**zero, loop.var: ONE}), ranges))
        if step is None or step < 1:
            return None
        rest = sub(rest, mul(loop.var, index_expr(step)))
        steps.append((step, loop.extent))
    if int_value(simplify(rest, ranges)) != 0:
        return None
    covered: Expr = ONE
    for step, extent in sorted(steps, key=lambda pair: pair[0]):
        known = int_value(covered)
        if known is None or step > known:
            return None
        covered = simplify(add(covered, mul(sub(extent, ONE), index_expr(step))), ranges)
    return first, covered


def conjuncts(e: Expr) -> list[Expr]:
    """The terms of a conjunction."""
    if type(e) is And:
        return [*conjuncts(e.a), *conjuncts(e.b)]
    return [] if is_true(e) else [e]


def _where_it_runs(block: Block, region: Region, inner: Mapping[Var, None], ranges: Ranges) -> Region:
    """A region of a block widened over loops, as far as the block's predicate lets them run.

    Under `io*4 + ii < 6` the indices `io*4 + ii` end at 5, not at 7: ii is written as g - io*4 with g in 0..5.
    """
    wide = relax(region, inner, ranges)
    for term in conjuncts(block.predicate):
        if type(term) is not LT or not uses_any(term.a, inner) or uses_any(term.b, inner):
            continue
        first, last = lower_bound(term.a, inner, ranges), upper_bound(term.a, inner, ranges)
        end = sub(term.b, ONE)
        if first is None or last is None or not prove(less(end, last), ranges):
            continue
        solved = _solve_for_one(term.a, inner, ranges)
        if solved is None:
            continue
        guarded = Var("guarded")
        variable, rest = solved
        known = ranges.with_range(guarded, first, end)
        mapping: dict[Var, Expr] = {variable: sub(guarded, rest)}
        narrow = map_region(region, lambda e, m=mapping, k=known: simplify(substitute(e, m), k))  # type: ignore[misc]
        wide = _narrower(wide, relax(narrow, {**inner, guarded: None}, known))
    return wide


def _solve_for_one(e: Expr, inner: Mapping[Var, None], ranges: Ranges) -> tuple[Var, Expr] | None:
    """A variable of a sum that occurs once, with the factor 1, and the rest of the sum."""
    for variable in reversed(list(free_vars(e))):
        if variable in inner:
            rest = simplify(sub(e, variable), ranges)
            if not uses_any(rest, {variable}):
                return variable, rest
    return None


def _narrower(a: Region, b: Region) -> Region:
    """Of two boxes around the same accesses, in each dimension the one with the lesser constant extent."""
    mins, extents = list(a.mins), list(a.extents)
    for position, (old, new) in enumerate(zip(a.extents, b.extents)):
        length, other = int_value(old), int_value(new)
        if other is not None and (length is None or other < length):
            mins[position], extents[position] = b.mins[position], new
    return Region(a.buffer, mins, extents)


def clamp(region: Region, ranges: Ranges) -> Region:
    """A box whose constant extents do not exceed the buffer: padding reads reach past the ends."""
    mins, extents = list(region.mins), list(region.extents)
    for position, size in enumerate(region.buffer.shape):
        low, extent = mins[position], extents[position]
        whole, length = int_value(size), int_value(extent)
        if whole is not None and length is not None and length >= whole:
            mins[position], extents[position] = index_expr(0), size
        elif whole is not None and length is not None:
            first, last = interval(low, ranges)
            if first is not None and last is not None and first == last and (first < 0 or first + length > whole):
                start = max(first, 0)
                mins[position], extents[position] = (
                    index_expr(start),
                    index_expr(max(min(first + length, whole) - start, 0)),
                )
    return Region(region.buffer, mins, extents)


__all__ = [
    "accessed_region", "block_regions", "clamp", "conjuncts", "greater", "lesser", "outer_region", "relax",
    "same_region", "unite", "walked_box", "written_box",
]  # fmt: skip

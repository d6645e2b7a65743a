"""What a consumer's own test tells of the elements it reads: a tile at the edge needs less than a whole tile.

    for jr in range(6): for jj in range(48): block C(j: 256 = jr*48 + jj) where jr*48 + jj < 256: reads B[j]

At jr = 5 only 16 of the 48 elements are read: B's index is at most 255. A producer that is computed at jr takes that as
a test of its own instead of computing what nobody reads. A limit that is the same for all iterations is left alone: a
producer that is wider than its reader was made so, to fill whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.expr.bounds import Ranges, lower_bound, prove, upper_bound
from weft.expr.nodes import (
    LE,
    LT,
    Buffer,
    Expr,
    Var,
    add,
    index_expr,
    int_value,
    less,
    less_equal,
    logical_and,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import free_vars, substitute, uses_any
from weft.loop.ir import Block, For, If, Seq, Stmt
from weft.loop.regions import conjuncts, outer_region
from weft.loop.visit import child_stmts


def consumer_limits(stmts: Sequence[Stmt], block: Block, ranges: Ranges) -> dict[Var, list[Expr]]:
    """For axes of a producer, greatest values (inclusive, in terms of the loops around) that its only reader needs."""
    if len(block.writes) != 1:
        return {}
    buffer = block.writes[0].buffer
    found = [entry for s in stmts for entry in _readers(s, buffer, [], ranges)]
    if len(found) != 1:
        return {}
    reader, loops, known = found[0]
    regions = [outer_region(reader, r) for r in reader.reads if r.buffer is buffer]
    if len(regions) != 1 or any(int_value(e) != 1 for e in regions[0].extents):
        return {}
    inner = dict.fromkeys(loop.var for loop in loops)
    limits: dict[Var, list[Expr]] = {}
    for written, index in zip(block.writes[0].mins, regions[0].mins):
        if isinstance(written, Var):
            made = [greatest_where(index, term, inner, known) for term in conjuncts(reader.predicate)]
            limits[written] = [m for m in made if m is not None and any(ranges.get(v) for v in free_vars(m))]
    return limits


def consumer_condition(stmts: Sequence[Stmt], buffers: set[Buffer], outer: Sequence[For], ranges: Ranges) -> Expr:
    """What the predicates of all readers of some buffers say of the loops around: elsewhere nothing is needed."""
    around = {loop.var for loop in outer}
    found: list[Expr] | None = None
    for reader, loops, known in [entry for s in stmts for b in buffers for entry in _readers(s, b, [], ranges)]:
        inner = dict.fromkeys(loop.var for loop in loops)
        made = [_outer_part(term, inner, known) for term in conjuncts(reader.predicate)]
        terms = [t for t in made if t is not None and uses_any(t, around) and not prove(t, ranges)]
        found = terms if found is None else [t for t in found if any(structural_equal(t, other) for other in terms)]
    return logical_and(*(found or ()))


def _outer_part(term: Expr, inner: dict[Var, None], ranges: Ranges) -> Expr | None:
    """What must hold outside some loops for a comparison to hold somewhere inside them."""
    if not uses_any(term, inner):
        return term
    if not isinstance(term, (LT, LE)):
        return None
    first = lower_bound(sub(term.a, term.b), inner, ranges)
    if first is None or uses_any(first, inner):
        return None
    return simplify((less if isinstance(term, LT) else less_equal)(first, index_expr(0)), ranges)


def _readers(s: Stmt, buffer: object, loops: list[For], ranges: Ranges) -> list[tuple[Block, list[For], Ranges]]:
    if isinstance(s, Block):
        return [(s, loops, ranges)] if any(r.buffer is buffer for r in s.reads) else []
    if isinstance(s, For):
        return _readers(s.body, buffer, [*loops, s], ranges.with_loop(s.var, s.extent))
    children = child_stmts(s) if isinstance(s, (Seq, If)) else ()
    return [entry for child in children for entry in _readers(child, buffer, loops, ranges)]


def greatest_where(index: Expr, term: Expr, inner: dict[Var, None], ranges: Ranges) -> Expr | None:
    """The greatest value of an index where a comparison holds, with the inner loop variables gone.

    From slack = a - b <= top follows, for any s > 0:
    index = s*slack + (index - s*slack) <= s*top + max(index - s*slack).
    """
    if not isinstance(term, (LT, LE)) or not uses_any(term, inner):
        return None
    slack = sub(term.a, term.b)
    top = -1 if isinstance(term, LT) else 0
    for variable in inner:
        scale = _ratio(index, slack, variable, ranges)
        if scale is None:
            continue
        rest = upper_bound(simplify(sub(index, mul(slack, index_expr(scale))), ranges), inner, ranges)
        if rest is not None:
            limit = simplify(add(rest, index_expr(scale * top)), ranges)
            if not uses_any(limit, inner):
                return limit
    return None


def _ratio(index: Expr, slack: Expr, variable: Var, ranges: Ranges) -> int | None:
    """How much faster the index grows with a variable than the slack does, where that is a whole number."""
    steps = []
    for e in (index, slack):
        grown = substitute(e, {variable: add(variable, index_expr(1))})
        step = int_value(simplify(sub(grown, e), ranges))
        if step is None or step < 1:
            return None
        steps.append(step)
    return steps[0] // steps[1] if steps[0] % steps[1] == 0 else None

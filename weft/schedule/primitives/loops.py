"""Primitives on loops alone: split, fuse, reorder, reverse."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import ScheduleError
from weft.expr.bounds import prove
from weft.expr.nodes import Expr, Var, add, ceildiv, floordiv, floormod, index_expr, int_value, less, mul, product, sub
from weft.expr.simplify import simplify
from weft.expr.text import is_identifier, is_reserved
from weft.expr.visit import free_vars, uses_any
from weft.loop.ir import Block, For, Func, Stmt
from weft.loop.tree import (
    axes_using,
    block_path,
    blocks_in,
    loop_of,
    loop_path,
    loops_in,
    loops_on,
    ranges_of,
    reduction_loops,
    replace_last,
    substitute_loops,
    taken_names,
    unique_name,
)
from weft.schedule.primitives.independence import revisits
from weft.schedule.primitives.marks import check_thread_order
from weft.schedule.primitives.steps import keeps_to_itself
from weft.schedule.registry import Result, primitive

LARGEST_FACTOR = 1 << 40


@primitive(str, Sequence[int | None], Sequence[str] | None)
def split(func: Func, loop: str, factors: Sequence[int | None], names: Sequence[str] | None = None) -> Result:
    """One loop into several nested ones; one factor may be None and is worked out.

    rewrite: for i in range(n): S[i]
             ->  for io in range(ceil(n/4)): for ii in range(4): S[io*4 + ii] where io*4 + ii < n

    The test is left out where the factors divide the extent.
    """
    path = loop_path(func, loop, "split")
    old = loop_of(path)
    extents = _factors(func, old, list(factors))
    if old.kind != "serial":
        raise ScheduleError("split", loop, f"the loop is already {old.kind}: split it before you mark it")
    taken = taken_names(func)
    if names is not None and (len(names) != len(extents) or not all(is_name(n) for n in names)):
        raise ScheduleError("split", loop, f"names must be {len(extents)} identifiers, not {list(names)!r}")
    if names is None:
        names = [f"{loop}o", f"{loop}i"] if len(extents) == 2 else [f"{loop}{i}" for i in range(len(extents))]
    variables = [Var(unique_name(n, taken)) for n in names]
    value: Expr = index_expr(0)
    for variable, extent in zip(variables, extents):
        # A loop that runs once is no part of what it would multiply with a size that is no number.
        once = int_value(extents[0]) == 1 and variable is variables[0] and any(int_value(e) is None for e in extents)
        value = add(mul(value, extent), index_expr(0) if once else variable)
    outer = loops_on(path[:-1])
    loops = [
        For(v, e, old.body, annotations=old.annotations if i == 0 else None)
        for i, (v, e) in enumerate(zip(variables, extents))
    ]
    ranges = ranges_of(func, [*outer, *loops])
    guard = None if prove(less(value, old.extent), ranges) else less(simplify(value, ranges), old.extent)
    body = substitute_loops(func, old.body, {old.var: value}, [*outer, *loops], guard)
    for made in reversed(loops):
        body = made.replace(body=body)
    return Result(replace_last(func, path, body), [v.name for v in variables])


def _factors(func: Func, loop: For, factors: list[int | None]) -> list[Expr]:
    name = loop.var.name
    if len(factors) < 2:
        raise ScheduleError("split", name, "give at least two factors (one of them may be None)")
    if sum(f is None for f in factors) > 1:
        raise ScheduleError("split", name, "only one factor can be None")
    for factor in factors:
        if factor is not None and (not isinstance(factor, int) or isinstance(factor, bool) or factor < 1):
            raise ScheduleError("split", name, f"a factor must be a whole number of at least 1, not {factor!r}")
        if factor is not None and factor > LARGEST_FACTOR:
            raise ScheduleError("split", name, f"a factor of {factor} is more iterations than any loop has")
    known = 1
    for factor in factors:
        known *= factor or 1
    if None not in factors:
        total = int_value(loop.extent)
        if total is None or known < total:
            raise ScheduleError("split", name, f"the factors {factors} cover {known} of {loop.extent!r} iterations")
    missing = simplify(ceildiv(loop.extent, known), ranges_of(func, []))
    return [missing if f is None else index_expr(f) for f in factors]


@primitive(Sequence[str], str | None)
def fuse(func: Func, loops: Sequence[str], name: str | None = None) -> Result:
    """Nested loops into one.

    rewrite: for i in range(4): for j in range(n): S[i, j]  ->  for ij in range(4*n): S[ij // n, ij % n]
    """
    if len(loops) < 2:
        raise ScheduleError("fuse", ", ".join(loops), "give at least two loops")
    path = loop_path(func, loops[0], "fuse")
    chain = [loop_of(path)]
    for wanted in loops[1:]:
        inner = chain[-1].body
        if not isinstance(inner, For) or inner.var.name != wanted:
            reason = f"{wanted} is not directly inside {chain[-1].var.name}: reorder the loops first"
            raise ScheduleError("fuse", ", ".join(loops), reason)
        chain.append(inner)
    for outer_loop in chain:
        if outer_loop.kind != "serial":
            reason = f"the loop {outer_loop.var.name} is already {outer_loop.kind}: fuse before you mark loops"
            raise ScheduleError("fuse", ", ".join(loops), reason)
    variables = {loop.var for loop in chain}
    if any(uses_any(loop.extent, variables) for loop in chain):
        raise ScheduleError("fuse", ", ".join(loops), "the extent of one of the loops depends on another")
    for block in blocks_in(chain[-1].body):
        used = axes_using(block, variables)
        if used["ordered"] and (used["spatial"] or used["reduce"]):
            raise ScheduleError(
                "fuse", ", ".join(loops), f"the block {block.name} must keep the order of one of the loops"
            )
    if name is not None and not is_name(name):
        raise ScheduleError("fuse", ", ".join(loops), f"{name!r} cannot be the name of a loop")
    taken = taken_names(func)
    fused = For(Var(unique_name(name or "".join(loops), taken)), product(loop.extent for loop in chain), chain[-1].body)
    mapping: dict[Var, Expr] = {}
    rest: Expr = fused.var
    for loop in reversed(chain[1:]):
        mapping[loop.var] = floormod(rest, loop.extent)
        rest = floordiv(rest, loop.extent)
    mapping[chain[0].var] = rest
    outer = loops_on(path[:-1])
    body = substitute_loops(func, chain[-1].body, mapping, [*outer, fused])
    return Result(replace_last(func, path, fused.replace(body=body)), [fused.var.name])


@primitive(Sequence[str])
def reorder(func: Func, loops: Sequence[str]) -> Result:
    """Nested loops in another order; loops not named stay where they are.

    rewrite: for i: for j: S  ->  for j: for i: S
    """
    place = ", ".join(loops)
    if len(set(loops)) != len(loops):
        raise ScheduleError("reorder", place, "a loop is named twice")
    paths = [loop_path(func, name, "reorder") for name in loops]
    if len(loops) < 2:
        return Result(func)
    deepest = max(paths, key=len)
    on_path = {id(s) for s in deepest}
    for path, name in zip(paths, loops):
        if id(path[-1]) not in on_path:
            raise ScheduleError("reorder", place, f"{name} is not in the same loop nest as {loop_of(deepest).var.name}")
    start = min(len(path) for path in paths) - 1
    chain: list[For] = []
    for stmt in deepest[start:]:
        if not isinstance(stmt, For):
            reason = f"{chain[-1].var.name} holds several statements, so the loops are not perfectly nested"
            raise ScheduleError("reorder", place, reason)
        chain.append(stmt)
    wanted = iter(loop_of(path) for path in paths)
    named = {id(path[-1]) for path in paths}
    new_order = [next(wanted) if id(loop) in named else loop for loop in chain]
    _check_reorder(func, chain, new_order, place)
    body: Stmt = chain[-1].body
    for loop in reversed(new_order):
        body = loop.replace(body=body)
    return Result(replace_last(func, deepest[: start + 1], body))


@primitive(str)
def reverse(func: Func, loop: str) -> Result:
    """A loop that runs from its end: of blocks of threads, the last begin first.

    rewrite: for i in range(8): S[i]  ->  for i in range(8): S[7 - i]
    """
    path = loop_path(func, loop, "reverse")
    old = loop_of(path)
    for block in blocks_in(old):
        found = axes_using(block, {old.var})
        if found["reduce"] or found["ordered"]:
            raise ScheduleError("reverse", loop, f"{block.name} sums, or takes steps, in the order of {loop}")
    mirrored = sub(sub(old.extent, index_expr(1)), old.var)
    return Result(replace_last(func, path, substitute_loops(func, old, {old.var: mirrored}, loops_on(path)[:-1])))


def _check_reorder(func: Func, old: list[For], new: list[For], place: str) -> None:
    inside = [loop for loop in loops_in(old[-1].body) if loop.thread is not None]
    check_thread_order([loop for loop in new if loop.thread is not None], inside, "reorder", place)
    for position, loop in enumerate(new):
        later = {inner.var for inner in new[position:]}
        if uses_any(loop.extent, later):
            raise ScheduleError(
                "reorder", place, f"the extent of {loop.var.name} depends on a loop that would be inside it"
            )
    for block in blocks_in(old[-1].body):
        _check_anew(func, block, old, new, place)
        _check_first(block, old, new, place)
        _check_steps(block, old, new, len(blocks_in(old[-1].body)) == 1, place)


def _check_steps(block: Block, old: list[For], new: list[For], alone: bool, place: str) -> None:
    """The steps of a recurrence stay in order; other loops change places with them where each runs its own steps."""
    for loop in old:
        if not axes_using(block, {loop.var})["ordered"]:
            continue
        crossed = [o for o in old if (old.index(o) < old.index(loop)) != (new.index(o) < new.index(loop))]
        if not crossed or (alone and all(keeps_to_itself(block, other.var) for other in crossed)):
            continue
        reason = f"the block {block.name} runs along {loop.var.name} in order (it is a recurrence)"
        raise ScheduleError("reorder", place, reason)


def is_name(text: str) -> bool:
    """Whether this can name a loop in the text of a program."""
    return is_identifier(text) and not is_reserved(text)


def _check_first(block: Block, old: list[For], new: list[For], place: str) -> None:
    """The init runs where all reduce axes are at 0, so that must stay the first visit of each point.

    It does while loops are spatial or reduce; parts of a loop that was fused from both must stay in their order.
    """
    if block.init is None:
        return
    reduction = reduction_loops(block, old)
    spatial = {v for a, b in zip(block.axes, block.bindings) if a.kind != "reduce" for v in free_vars(b)}
    both = [loop for loop in old if loop.var in reduction and loop.var in spatial]
    if both != sorted(both, key=new.index):
        names = ", ".join(loop.var.name for loop in both)
        reason = f"{names} are spatial and reduction loops of {block.name} fused: use decompose_reduction first"
        raise ScheduleError("reorder", place, reason)


def _check_anew(func: Func, block: Block, old: list[For], new: list[For], place: str) -> None:
    """A reduction that is computed anew in each iteration of a loop has to stay whole inside it."""
    reduction = reduction_loops(block, old)
    inside = old[next((i for i, loop in enumerate(old) if loop.var in reduction), len(old)) :]
    if not any(
        loop.var in reduction and new.index(loop) < new.index(other)
        for other in old
        if other not in inside
        for loop in inside
    ):
        return
    path = block_path(func, block.name, "reorder")
    below = loops_on(path[path.index(old[0]) :])
    if revisits(func, block, below):
        raise ScheduleError(
            "reorder",
            place,
            f"{block.name} is computed anew in each iteration of a loop that would come inside its reduction",
        )

"""Primitives on the steps of a recurrence: merge_loops, release_axis.

The blocks of a step stand one after the other in the loop over the steps. `merge_loops` puts neighbours into one loop,
so that a part of a step (some units of a state) is computed from its sums to its new values; `release_axis` says of a
block that only other blocks make the steps depend on one another.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import ScheduleError
from weft.expr.nodes import Address, Buffer, Expr, Load, Var, add, index_expr, int_value, sub
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import free_vars, substitute
from weft.loop.ir import Axis, Block, For, Func, Seq, Stmt, Store, seq
from weft.loop.tree import (
    axes_using,
    axis_loops,
    block_of,
    block_path,
    blocks_in,
    loop_of,
    loop_path,
    loops_on,
    replace_last,
    substitute_loops,
    writers,
)
from weft.loop.visit import walk_exprs, walk_stmts
from weft.schedule.registry import Result, primitive

Access = tuple[Buffer, tuple[Expr, ...], bool]
"""A buffer, the indices in terms of loops, and whether it is written there."""


@primitive(str, str)
def merge_loops(func: Func, first: str, second: str) -> Result:
    """Two loops of the same extent that stand one after the other, as one loop.

    rewrite: for i in range(n): A[i] = …       ->  for i in range(n): A[i] = …
             for j in range(n): B[j] = f(A[j])                        B[i] = f(A[i])

    Different iterations of the two must not touch the same element, unless both only read it.
    """
    place = f"{first}, {second}"
    path = loop_path(func, second, "merge_loops")
    kept, gone = loop_of(loop_path(func, first, "merge_loops")), loop_of(path)
    around = path[-2] if len(path) > 1 else None
    stmts = list(around.stmts) if isinstance(around, Seq) else []
    at = next((i for i, one in enumerate(stmts) if one is gone), 0)
    if not isinstance(around, Seq) or at == 0 or stmts[at - 1] is not kept:
        raise ScheduleError("merge_loops", place, f"{second} does not stand right after {first}")
    if kept.kind != "serial" or gone.kind != "serial" or not structural_equal(kept.extent, gone.extent):
        raise ScheduleError("merge_loops", place, "they are not plain loops of the same extent")
    outer = [loop.var for loop in loops_on(path[:-1])]
    for mine in _accesses(kept, place):
        for other in _accesses(gone, place):
            if mine[0] is other[0] and (mine[2] or other[2]) and not _apart(mine, other, kept.var, gone.var, outer):
                raise ScheduleError("merge_loops", place, f"an iteration of one touches {mine[0].name} where others do")
    loops = [*loops_on(path[:-1]), kept]
    body = substitute_loops(func, gone.body, {gone.var: kept.var}, loops, None)
    made = kept.replace(body=seq(kept.body, body))
    new = replace_last(func, path[:-1], seq(*stmts[: at - 1], made, *stmts[at + 1 :]))
    return Result(new, [first], {block.name: axis_loops(block) for block in blocks_in(body)})


def _accesses(loop: For, place: str) -> list[Access]:
    """Every load and store of the blocks inside a loop; blocks that read what they write included."""
    found: list[Access] = []
    for block in blocks_in(loop):
        at = {axis.var: binding for axis, binding in zip(block.axes, block.bindings)}
        for part in (block.body, *([] if block.init is None else [block.init])):
            for e in walk_exprs(part, Load, Address):
                if isinstance(e, Address):
                    raise ScheduleError("merge_loops", place, f"{block.name} takes the address of {e.buffer.name}")
                if isinstance(e, Load):
                    found.append((e.buffer, tuple(substitute(i, at) for i in e.indices), False))
            for store in _stores(part):
                found.append((store.buffer, tuple(substitute(i, at) for i in store.indices), True))
    return found


def _stores(s: Stmt) -> list[Store]:
    return [one for one in walk_stmts(s) if isinstance(one, Store)]


def _apart(mine: Access, other: Access, variable: Var, renamed: Var, outer: Sequence[Var]) -> bool:
    """Whether two accesses in different iterations of their loops can never meet."""
    for a, b in zip(mine[1], other[1]):
        distance = int_value(simplify(sub(a, b)))
        if distance is not None and distance != 0:
            return True
        same = int_value(simplify(sub(a, substitute(b, {renamed: variable})))) == 0
        if same and all(v is variable or v in outer for v in free_vars(a)):
            step = int_value(simplify(sub(substitute(a, {variable: add(variable, index_expr(1))}), a)))
            if step is not None and step != 0:
                return True
    return False


@primitive(str, str)
def release_axis(func: Func, block: str, axis: str) -> Result:
    """An ordered axis of a block that reads nothing of its own earlier steps, as a plain one.

    rewrite: for t: { block P(t: ordered): P[t] = f(S[t - 1]);  block S(t: ordered): S[t] = g(P[t]) }
             ->  for t: { block P(t): P[t] = f(S[t - 1]);  block S(t: ordered): S[t] = g(P[t]) }

    Another block must keep the order of the loop.
    """
    path = block_path(func, block, "release_axis")
    old = block_of(path)
    found = [at for at, one in enumerate(old.axes) if one.var.name == axis and one.kind == "ordered"]
    if not found:
        raise ScheduleError("release_axis", f"{block}, {axis}", f"{block} has no ordered axis {axis}")
    stores = [store for part in (old.body, old.init) if part is not None for store in _stores(part)]
    own = {store.buffer for store in stores}
    loads = [e for e in walk_exprs(old.body, Load, Address) if isinstance(e, (Load, Address)) and e.buffer in own]
    if any(isinstance(e, Address) or not _is_stored(e, stores) for e in loads):
        raise ScheduleError("release_axis", f"{block}, {axis}", f"{block} reads other elements of what it writes")
    if any(one is not old for buffer in own for one in writers(func.body, buffer)):
        raise ScheduleError("release_axis", f"{block}, {axis}", "other blocks write to the same buffer")
    loops = [loop for loop in loops_on(path) if loop.var in free_vars(old.bindings[found[0]])]
    if not loops or not all(_is_kept(loop, old) for loop in loops):
        raise ScheduleError("release_axis", f"{block}, {axis}", "no other block keeps the steps in order")
    axes = list(old.axes)
    axes[found[0]] = Axis(axes[found[0]].var, axes[found[0]].extent)
    return Result(replace_last(func, path, old.replace(axes=axes)))


def keeps_to_itself(block: Block, loop: Var) -> bool:
    """Whether a recurrence reads, of what it writes, only what it wrote in the same iteration of a loop.

    running[t, i] = running[t - 1, i] + x[t, i] does so in the loop of i: each i may run through all its steps alone.
    """
    mine = [axis for axis, binding in zip(block.axes, block.bindings) if loop in free_vars(binding)]
    parts = [part for part in (block.body, block.init) if part is not None]
    stores = [store for part in parts for store in _stores(part)]
    if len(mine) != 1 or mine[0].kind != "spatial" or not stores:
        return False
    places = {store.buffer: [at for at, i in enumerate(store.indices) if i is mine[0].var] for store in stores}
    if len(places) != len(stores) or not all(places.values()):
        return False
    for e in [e for part in parts for e in walk_exprs(part, Load, Address)]:
        if isinstance(e, Address) and e.buffer in places:
            return False
        if isinstance(e, Load) and e.buffer in places:
            if not any(e.indices[at] is mine[0].var for at in places[e.buffer]):
                return False
    return True


def _is_stored(e: Expr, stores: Sequence[Store]) -> bool:
    """Whether a load is of the very element that is stored."""
    assert isinstance(e, Load)
    mine = [store for store in stores if store.buffer is e.buffer]
    return all(structural_equal(i, j) for store in mine for i, j in zip(e.indices, store.indices))


def _is_kept(loop: For, without: Block) -> bool:
    return any(axes_using(b, {loop.var})["ordered"] for b in blocks_in(loop) if b is not without)

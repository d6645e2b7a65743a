"""Which outputs of a kernel may lie in the memory of one of its inputs.

In: a kernel's scheduled program. Out: pairs of parameters (input, output) that may share memory, where

    the input is read by one block only, always at the very element that this block's store then writes,
    every such read is part of the value stored, so that it comes before the store however loops, vectors or LLVM
    reorder the rest, no element is written twice by the block, and what other blocks write of the output (borders)
    are other elements.

Anything that cannot be shown to be so is refused: a pair less costs memory, a pair too many a wrong answer.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core import model
from weft.expr.bounds import Ranges, interval
from weft.expr.nodes import (
    LE,
    LT,
    Add,
    Address,
    And,
    Buffer,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Or,
    Sub,
    Var,
    add,
    index_expr,
    int_value,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.visit import children, free_vars, substitute, uses_any, walk
from weft.loop.ir import Block, For, Func, Param, Region, Stmt, Store
from weft.loop.passes.shift_tiles import NOTE as TILES
from weft.loop.regions import conjuncts
from weft.loop.visit import child_stmts, walk_exprs, walk_stmts

Nest = tuple[Block, tuple[For, ...]]
"""A block and the loops around it, outermost first."""


def overwritable(func: Func) -> list[tuple[int, int]]:
    """Pairs (input, output) of parameters where the output may be written over the input."""
    nests = list(_nests(func.body, ()))
    params = [(at, p) for at, p in enumerate(func.params) if isinstance(p, Buffer)]
    written = {region.buffer for block, _ in nests for region in block.writes}
    written |= {stmt.buffer for stmt in walk_stmts(func.body) if isinstance(stmt, Store)}
    pairs = [
        (at, to)
        for to, output in params
        for at, given in params
        if output in written and given not in written and _alike(given, output)
    ]
    if not pairs:
        return []
    anywhere = Counter(e.buffer for e in walk_exprs(func.body, Load, Address) if isinstance(e, (Load, Address)))
    values = [_accesses(block) for block, _ in nests]
    return [(at, to) for at, to in pairs if _may(nests, values, anywhere, func.params[at], func.params[to])]


Accesses = dict[Param, list[Expr]]


def _accesses(block: Block) -> Accesses:
    """The accesses in the value that a block stores, by their buffers."""
    found: Accesses = {}
    for e in walk(block.body.value, Load, Address) if isinstance(block.body, Store) else ():
        if isinstance(e, (Load, Address)):
            found.setdefault(e.buffer, []).append(e)
    return found


def _nests(stmt: Stmt, loops: tuple[For, ...]) -> Iterator[Nest]:
    if isinstance(stmt, Block):
        yield stmt, loops
        return
    inner = (*loops, stmt) if isinstance(stmt, For) else loops
    for child in child_stmts(stmt):
        yield from _nests(child, inner)


def _alike(a: Buffer, b: Buffer) -> bool:
    sizes = [[int_value(size) for size in buffer.shape] for buffer in (a, b)]
    plain = a.strides is None and b.strides is None and None not in sizes[0]
    return plain and sizes[0] == sizes[1] and a.dtype.bits == b.dtype.bits and not a.dtype.is_packed


def _may(
    nests: Sequence[Nest], values: Sequence[Accesses], anywhere: Mapping[Any, int], given: Param, output: Param
) -> bool:
    """`values` are the accesses in what each nest stores; `anywhere` counts all accesses of a buffer."""
    touching = [at for at, (block, _) in enumerate(nests) if any(region.buffer is given for region in block.reads)]
    if len(touching) != 1:
        return False
    block, loops = nests[touching[0]]
    store = block.body
    if not isinstance(store, Store) or store.buffer is not output or block.init is not None:
        return False
    in_value = values[touching[0]].get(given, [])
    if not in_value or len(in_value) != anywhere[given]:
        return False
    if not all(isinstance(e, Load) and _same_indices(e.indices, store.indices, block) for e in in_value):
        return False
    return _shifted(store.indices, block) and _once(block, loops) and _others_write_elsewhere(nests, block, output)


def _same_indices(a: Sequence[Expr], b: Sequence[Expr], block: Block) -> bool:
    still = {axis.var: index_expr(0) for axis in block.axes if int_value(axis.extent) == 1}
    same = (int_value(simplify(sub(substitute(x, still), substitute(y, still)))) == 0 for x, y in zip(a, b))
    return len(a) == len(b) and all(same)


def _shifted(indices: Sequence[Expr], block: Block) -> bool:
    """Whether the store's indices are the block's axes, each once, with constants added (an axis of one value may be
    missing): different points are then different elements."""
    seen: set[Var] = set()
    for index in indices:
        axes = list(free_vars(index))
        if len(axes) > 1 or any(v in seen for v in axes):
            return False
        if axes and int_value(simplify(sub(index, axes[0]))) is None:
            return False
        seen.update(axes)
    return all(axis.var in seen or int_value(axis.extent) == 1 for axis in block.axes)


# ------------------------------------------------------------------------------------------------- each point once


def _once(block: Block, loops: Sequence[For]) -> bool:
    """Whether no two iterations of the loops run the block at the same point of its axes."""
    if any(axis.kind != "spatial" for axis in block.axes) or any(loop.kind == "thread" for loop in loops):
        return False
    if any(TILES in loop.annotations for loop in loops):  # the last tile computes some elements again
        return False
    sizes: dict[Var, int] = {}
    for loop in loops:
        extent = int_value(loop.extent)
        if extent is None:
            return False
        sizes[loop.var] = extent
    moving = {var: size for var, size in sizes.items() if size > 1}
    still = {var: index_expr(0) for var in sizes if var not in moving}
    bindings = [substitute(binding, still) for binding in block.bindings]
    tests = [substitute(test, still) for test in conjuncts(block.predicate)]
    groups = _groups(bindings, moving)
    if set().union(*(used for _, used in groups)) != set(moving):
        return False
    return all(_apart(group, {var: moving[var] for var in moving if var in used}, tests) for group, used in groups)


def _groups(bindings: Sequence[Expr], sizes: Mapping[Var, int]) -> list[tuple[list[Expr], set[Var]]]:
    """Bindings that share loops, together: different groups have different loops."""
    groups: list[tuple[list[Expr], set[Var]]] = []
    for binding in bindings:
        used = {var for var in sizes if uses_any(binding, {var})}
        members = [binding]
        for group in [group for group in groups if group[1] & used]:
            groups.remove(group)
            members += group[0]
            used |= group[1]
        if used:
            groups.append((members, used))
    return groups


def _apart(bindings: Sequence[Expr], sizes: Mapping[Var, int], tests: Sequence[Expr]) -> bool:
    """Whether the loops of a group reach a point once: seen from the form of one binding, else by trying them all."""
    if len(bindings) == 1 and _is_number(bindings[0], sizes):
        return True
    if math.prod(sizes.values()) > model.OVERLAP_TRIALS:
        return False
    grid = np.indices(tuple(sizes.values()), np.int64).reshape(len(sizes), -1)
    values = dict(zip(sizes, grid))
    runs = np.ones(grid.shape[1], bool)
    for test in tests:
        if set(free_vars(test)) <= set(sizes):
            tried = _try(test, values)
            runs = runs if tried is None else runs & tried
    points, most = np.zeros(grid.shape[1], np.int64), 1
    for binding in bindings:
        tried = _try(binding, values)
        if tried is None:
            return False
        span = int(tried.max()) - int(tried.min()) + 1
        points, most = points * span + (tried - tried.min()), most * span
    points = points[runs]
    if most > 8 * model.OVERLAP_TRIALS:
        return len(np.unique(points)) == len(points)
    met = np.zeros(most, bool)
    met[points] = True
    return int(np.count_nonzero(met)) == len(points)


def _is_number(binding: Expr, sizes: Mapping[Var, int]) -> bool:
    """Whether a binding writes loops as digits: each weighs more than all below it can reach."""
    digits = []
    for var, size in sizes.items():
        step = int_value(simplify(sub(substitute(binding, {var: add(var, index_expr(1))}), binding)))
        if step is None or step < 1:
            return False
        digits.append((step, size))
    reach = 0
    for step, size in sorted(digits):
        if reach >= step:
            return False
        reach += step * (size - 1)
    return True


_NUMPY: dict[type[Expr], Callable[[Any, Any], Any]] = {
    Add: operator.add,
    Sub: operator.sub,
    Mul: operator.mul,
    FloorDiv: operator.floordiv,
    FloorMod: operator.mod,
    Min: np.minimum,
    Max: np.maximum,
    LT: operator.lt,
    LE: operator.le,
    And: np.logical_and,
    Or: np.logical_or,
}


def _try(e: Expr, values: Mapping[Var, Any]) -> Any:
    """The values of an index or a condition for many values of its variables at once; None where it is neither."""
    if isinstance(e, Var):
        return values.get(e)
    if isinstance(e, Const):
        return np.int64(e.value)
    apply = _NUMPY.get(type(e))
    if apply is None:
        return None
    a, b = (_try(child, values) for child in children(e))
    if a is None or b is None or (isinstance(e, (FloorDiv, FloorMod)) and not np.all(b)):
        return None
    return apply(a, b)


# ------------------------------------------------------------------------------------------------------ other blocks


def _others_write_elsewhere(nests: Sequence[Nest], block: Block, output: Param) -> bool:
    """Whether no other block reads the output, or writes elements of it that this block writes."""
    mine = _box(block, output)
    for other, _ in nests:
        if other is block:
            continue
        if any(region.buffer is output for region in other.reads):
            return False
        if any(region.buffer is output for region in other.writes):
            box = _box(other, output)
            if mine is None or box is None or not any(a[1] < b[0] or b[1] < a[0] for a, b in zip(mine, box)):
                return False
    return True


def _box(block: Block, buffer: Param) -> list[tuple[int, int]] | None:
    """The elements of a buffer that a block writes, as the first and last along every axis; None where not known."""
    ranges = Ranges()
    for axis in block.axes:
        ranges = ranges.with_loop(axis.var, axis.extent)
    found = [_region_box(region, ranges) for region in block.writes if region.buffer is buffer]
    return found[0] if len(found) == 1 else None


def _region_box(region: Region, ranges: Ranges) -> list[tuple[int, int]] | None:
    box = []
    for start, extent in zip(region.mins, region.extents):
        low, _ = interval(start, ranges)
        _, high = interval(sub(add(start, extent), index_expr(1)), ranges)
        if low is None or high is None:
            return None
        box.append((low, high))
    return box

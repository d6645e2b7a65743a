"""A block's init becomes a loop nest of its own, before the outermost loop that reduces it.

    for k: for i: block C(i, k) init: C[i] = 0        ->   for i_init: C[i_init] = 0
                                C[i] = C[i] + A[i, k]      for k: for i: C[i] = C[i] + A[i, k]

Only the loops below that place over which the init varies are repeated for it; a vectorized or unrolled one stays so.
"""

from __future__ import annotations

from weft.core.errors import ScheduleError
from weft.expr.bounds import Ranges, prove
from weft.expr.nodes import LE, LT, Expr, Load, Select, Var, index_expr, less, less_equal, logical_and, sub
from weft.expr.visit import free_vars, substitute, uses_any
from weft.loop.ir import Axis, Block, For, Func, Stmt, Store, seq
from weft.loop.regions import block_regions, conjuncts
from weft.loop.tree import (
    block_path,
    blocks_in,
    loop_of,
    loops_on,
    ranges_of,
    reduction_loops,
    replace_last,
    taken_names,
    unique_name,
)
from weft.loop.visit import Mutator, map_region, substitute_stmt, walk_stmts


def decompose_init(func: Func) -> Func:
    """The program without block inits."""
    for block in blocks_in(func.body):
        if block.init is None:
            continue
        path = block_path(func, block.name, "decompose_init")
        current = path[-1]
        assert isinstance(current, Block)
        if block.annotations.get("inline_init"):
            func = replace_last(func, path, inline_init(current))
            continue
        reduction = reduction_loops(block, loops_on(path))
        position = next((i for i, s in enumerate(path) if isinstance(s, For) and s.var in reduction), len(path) - 1)
        nest, _ = init_nest(func, current, [s for s in path[position:] if isinstance(s, For)])
        if position == len(path) - 1:
            func = replace_last(func, path, seq(nest, current.replace(init=None)))
            continue
        anchor = path[position]
        assert isinstance(anchor, For)
        func = replace_last(func, path, current.replace(init=None))
        path = _path_to_loop(func, anchor.var)
        func = replace_last(func, path, seq(nest, loop_of(path)))
    return func


def inline_init(block: Block) -> Block:
    """The init as a choice inside the update: the first iteration of the reduction does not read the old value.

    init: C[i] = 0     C[i] = C[i] + A[i, k]     ->     C[i] = select(k < 1, 0, C[i]) + A[i, k]
    """
    first = logical_and(*[less(axis.var, index_expr(1)) for axis in block.axes if axis.kind == "reduce"])
    starts = {s.buffer: s for s in walk_stmts(block.init or block.body) if isinstance(s, Store)}

    class Choose(Mutator):
        """Loads of the accumulators become choices."""

        def visit_Load(self, e: Load) -> Expr:
            """A load of an accumulator."""
            start = starts.get(e.buffer)
            return e if start is None else Select(first, start.value, e)

    return block.replace(init=None, body=Choose().stmt(block.body))


def _path_to_loop(func: Func, variable: Var) -> list[Stmt]:
    from weft.loop.tree import loop_path

    return loop_path(func, variable.name, "decompose_init")


def init_nest(func: Func, block: Block, inner: list[For], name: str | None = None) -> tuple[Stmt, str]:
    """The loop nest that runs a block's init: the spatial part of the loops below the place where it goes."""
    assert block.init is not None
    taken = taken_names(func)
    init_name = unique_name(name or f"{block.name}_init", taken)
    spatial = [(a, b) for a, b in zip(block.axes, block.bindings) if a.kind != "reduce"]
    used: dict[Var, None] = {}
    for _, binding in spatial:
        used.update(free_vars(binding))
    loops = [loop for loop in inner if loop.var in used]
    fresh: dict[Var, Expr] = {loop.var: Var(unique_name(f"{loop.var.name}_init", taken)) for loop in loops}
    axis_names: dict[Var, Expr] = {axis.var: Var(axis.var.name) for axis, _ in spatial}
    axes = [Axis(axis_names[axis.var], axis.extent, axis.kind) for axis, _ in spatial]  # type: ignore[arg-type]
    body = substitute_stmt(block.init, axis_names)
    # the init writes what the block writes; its own statement may be a call that does not tell
    reads, _ = block_regions(body, None)
    writes = [map_region(region, lambda e: substitute(e, axis_names)) for region in block.writes]
    bindings = [substitute(b, fresh) for _, b in spatial]
    predicate = substitute(_init_predicate(func, block, spatial, inner, set(used)), fresh)
    nest: Stmt = Block(init_name, axes, bindings, reads, writes, body, None, predicate, origin=block.origin)
    for loop in reversed(loops):
        kind = loop.kind if loop.kind in ("vectorized", "unrolled", "thread", "parallel") else "serial"
        nest = For(fresh[loop.var], substitute(loop.extent, fresh), nest, kind, loop.thread)  # type: ignore[arg-type]
    return nest, init_name


def _init_predicate(
    func: Func, block: Block, spatial: list[tuple[Axis, Expr]], inner: list[For], used: set[Var]
) -> Expr:
    """When the init runs: the terms of the block's predicate that do not speak of loops that are not repeated for it.

    A term that mixes those with spatial loops cannot be kept; the axes' own ends take its place. One that mixes them
    with loops around the init, which no axis varies along, holds where it holds for their first turn: without it an
    outer turn that updates nothing would begin the sum anew.
    """
    loops = loops_on(block_path(func, block.name, "decompose_init"))
    left_out = {loop.var for loop in inner} - used
    outside = {loop.var for loop in loops} - left_out - used
    kept, mixed = [], False
    for term in conjuncts(block.predicate):
        if not uses_any(term, left_out):
            kept.append(term)
        elif uses_any(term, outside):
            kept.append(_in_first_turn(block, term, left_out, ranges_of(func, loops)))
        elif uses_any(term, used):
            mixed = True
    predicate = logical_and(*kept)
    if mixed:
        ranges = ranges_of(func, loops).with_condition(predicate)
        for axis, binding in spatial:
            if not prove(less(binding, axis.extent), ranges):
                predicate = logical_and(predicate, less(binding, axis.extent))
    return predicate


def _in_first_turn(block: Block, term: Expr, left_out: set[Var], ranges: Ranges) -> Expr:
    """A term for the first turn of some loops, where that is when it holds if it ever does."""
    if isinstance(term, (LT, LE)):
        start = dict.fromkeys(left_out, index_expr(0))
        low, high = substitute(term.a, start), substitute(term.b, start)
        if prove(less_equal(sub(low, high), sub(term.a, term.b)), ranges):
            return less(low, high) if isinstance(term, LT) else less_equal(low, high)
    reason = f"whether it runs depends on a loop of its reduction and one around it at once: {term!r}"
    raise ScheduleError("decompose_init", block.name, reason)

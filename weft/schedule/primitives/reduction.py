"""Primitives on reductions: decompose_reduction, rfactor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.dtypes import DType
from weft.core.errors import ScheduleError
from weft.expr.nodes import TRUE, Add, And, Buffer, Const, Expr, Load, Max, Min, Mul, Or, Var, is_true
from weft.expr.structural import structural_equal
from weft.expr.visit import free_vars, substitute, uses_any
from weft.loop.ir import Axis, Block, For, Func, If, Let, Stmt, Store, seq
from weft.loop.passes.decompose_init import init_nest
from weft.loop.regions import block_regions, conjuncts
from weft.loop.tree import (
    block_of,
    block_path,
    blocks_in,
    loop_of,
    loop_path,
    loops_on,
    reduction_loops,
    replace_last,
    taken_names,
    unique_name,
)
from weft.loop.visit import Mutator, substitute_stmt
from weft.schedule.primitives.independence import revisits
from weft.schedule.registry import Result, primitive


@primitive(str, str)
def decompose_reduction(func: Func, block: str, loop: str) -> Result:
    """The init of a reduction as a loop nest of its own, before a loop that is outside every reduction loop.

    rewrite: for i: for k: block C init: C[i] = 0  C[i] += A[i, k]
             ->  for i: { C_init: C[i] = 0; for k: C[i] += A[i, k] }
    """
    place = f"{block}, {loop}"
    path = block_path(func, block, "decompose_reduction")
    found = block_of(path)
    if found.init is None:
        raise ScheduleError(
            "decompose_reduction", place, f"{block} has no init (is it a reduction, or decomposed already?)"
        )
    names = [s.var.name for s in loops_on(path)]
    if loop not in names:
        raise ScheduleError(
            "decompose_reduction", place, f"{loop} is not a loop around {block}; those are {', '.join(names)}"
        )
    position = next(i for i, s in enumerate(path) if isinstance(s, For) and s.var.name == loop)
    above = {s.var for s in path[:position] if isinstance(s, For)}
    for axis, binding in zip(found.axes, found.bindings):
        if axis.kind == "reduce" and uses_any(binding, above):
            reason = (
                f"a loop around {loop} already reduces {block}: choose the outermost reduction loop or one outside it"
            )
            raise ScheduleError("decompose_reduction", place, reason)
    inner = loops_on(path[position:])
    reduction = reduction_loops(found, inner)
    first = next((i for i, s in enumerate(inner) if s.var in reduction), len(inner))
    if revisits(func, found, inner) and first > 0:
        reason = f"{block} is computed anew, from its init on, in each iteration: choose its outermost reduction loop"
        raise ScheduleError("decompose_reduction", place, reason)
    nest, init_name = init_nest(func, found, inner)
    update = replace_last(func, path, found.replace(init=None))
    new_path = loop_path(update, loop, "decompose_reduction")
    return Result(replace_last(update, new_path, seq(nest, loop_of(new_path))), [init_name])


@primitive(str, str, int)
def rfactor(func: Func, block: str, loop: str, factor_axis: int = 0) -> Result:
    """Turns part of a reduction into a spatial axis of a partial result, reduced by a second block.

    rewrite: for ko: for ki: C += A[ko*4 + ki]  ->  for ki: for ko: C_rf[ki] += A[ko*4 + ki]
                                                     for ki: C += C_rf[ki]
    """
    place = f"{block}, {loop}"
    path = block_path(func, block, "rfactor")
    found = block_of(path)
    around = loops_on(path)
    factor = next((s for s in around if s.var.name == loop), None)
    if factor is None:
        raise ScheduleError("rfactor", place, f"{loop} is not a loop around {block}")
    if found.init is None:
        raise ScheduleError(
            "rfactor", place, f"{block} is not a reduction with its init (use rfactor before decompose_reduction)"
        )
    if factor.kind != "serial":
        raise ScheduleError("rfactor", place, f"the loop is already {factor.kind}: use rfactor before you mark it")
    reduction = reduction_loops(found, around)
    if factor.var not in reduction:
        raise ScheduleError("rfactor", place, f"{loop} is not a reduction loop of {block}")
    for axis, binding in zip(found.axes, found.bindings):
        if axis.kind != "reduce" and uses_any(binding, reduction):
            reason = f"a reduction loop of {block} was fused with a loop of its axis {axis.var.name}"
            raise ScheduleError("rfactor", place, reason)
    _check_neutral_init(found, place)
    if any(len(blocks_in(s)) != 1 for s in _own_loops(path)):
        raise ScheduleError("rfactor", place, f"other blocks stand in the loops of {block}")
    outputs = [r.buffer for r in found.writes]
    rank = len(outputs[0].shape)
    if not -rank - 1 <= factor_axis <= rank:
        raise ScheduleError(
            "rfactor", place, f"factor_axis {factor_axis} is not a dimension of the {rank + 1} of the partial result"
        )
    return _rfactor(func, path, found, factor, factor_axis % (rank + 1))


_NEUTRAL: dict[type[Expr], Callable[[DType], Any]] = {
    Add: lambda kind: 0, Mul: lambda kind: 1, Min: lambda kind: kind.max, Max: lambda kind: kind.min,
    And: lambda kind: True, Or: lambda kind: False,
}  # fmt: skip


def _check_neutral_init(block: Block, place: str) -> None:
    """Every lane of a partial result starts from the init, so that must be the identity of the combination."""
    init, body = block.init, block.body
    if not isinstance(init, Store) or not isinstance(body, Store) or type(body.value) not in _NEUTRAL:
        return
    neutral = _NEUTRAL[type(body.value)](body.value.dtype)
    if type(init.value) is not Const or init.value.value != neutral:
        raise ScheduleError(
            "rfactor", place, f"{block.name} starts from {init.value!r}, which each lane would add again"
        )


def _own_loops(path: list[Stmt]) -> list[For]:
    """The loops around a block from the outermost reduction loop inwards."""
    block = block_of(path)
    loops = loops_on(path)
    reduction = reduction_loops(block, loops)
    first = next((i for i, loop in enumerate(loops) if loop.var in reduction), len(loops))
    return loops[first:]


def _rfactor(func: Func, path: list[Stmt], block: Block, factor: For, position: int) -> Result:
    taken = taken_names(func)
    partial = {
        b: Buffer(
            unique_name(f"{b.name}_rf", taken), b.dtype, (*b.shape[:position], factor.extent, *b.shape[position:])
        )
        for b in dict.fromkeys(r.buffer for r in block.writes)
    }
    name = (
        f"{block.name}_rf"
        if f"{block.name}_rf" in {b.name for b in partial.values()}
        else unique_name(f"{block.name}_rf", taken)
    )
    around = {loop.var: loop.extent for loop in loops_on(path)}
    reduction = reduction_loops(block, loops_on(path))
    factored = _factored_block(block, name, factor, around, reduction, partial, position)
    own = _own_loops(path)
    final, loops = _final_block(block, factor, own, reduction, partial, position, taken)
    nest: Stmt = final
    for loop in reversed(loops):
        nest = loop.replace(body=nest)
    new = replace_last(func, path, factored)
    anchor = loop_path(new, own[0].var.name, "rfactor")
    new = replace_last(new, anchor, seq(loop_of(anchor), nest))
    new = new.replace(allocations=[*func.allocations, *partial.values()])
    axes = {
        block.name: [b.name if isinstance(b, Var) else None for b in final.bindings],
        name: [b.name if isinstance(b, Var) else None for b in factored.bindings],
    }
    return Result(new, [name], axes)


def _split_predicate(block: Block, reduction: dict[Var, None]) -> tuple[Expr, list[Expr]]:
    """The terms of a predicate that speak of spatial loops only (joined), and the others."""
    kept: Expr = TRUE
    guards = []
    for term in conjuncts(block.predicate):
        if uses_any(term, reduction):
            guards.append(term)
        else:
            kept = term if is_true(kept) else And(kept, term)
    return kept, guards


def _factored_block(
    block: Block,
    name: str,
    factor: For,
    extents: dict[Var, Expr],
    reduction: dict[Var, None],
    partial: dict[Buffer, Buffer],
    position: int,
) -> Block:
    """The block that computes the partial results: the factor loop is a spatial axis, the other loops reduce."""
    axis_of = {v: Var(v.name) for v in reduction}
    as_axes: dict[Var, Expr] = dict(axis_of)
    mapping = {a.var: substitute(b, as_axes) for a, b in zip(block.axes, block.bindings) if a.kind == "reduce"}
    spatial = [(a, b) for a, b in zip(block.axes, block.bindings) if a.kind != "reduce"]
    others = [v for v in reduction if v is not factor.var]
    lane = axis_of[factor.var]
    axes = [
        *[a for a, _ in spatial],
        Axis(lane, factor.extent),
        *[Axis(axis_of[v], extents[v], "reduce") for v in others],
    ]
    bindings: list[Expr] = [*[b for _, b in spatial], factor.var, *others]
    insert = _InsertIndex(partial, position, lane)
    assert block.init is not None
    init = insert.stmt(substitute_stmt(block.init, mapping))
    body = insert.stmt(substitute_stmt(block.body, mapping))
    predicate, guards = _split_predicate(block, reduction)
    for guard in guards:
        if any(v not in reduction and v in extents for v in free_vars(guard)):
            raise ScheduleError("rfactor", block.name, f"its test {guard!r} mixes spatial and reduction loops")
        body = If(substitute(guard, as_axes), body)  # inside the block, so that the init still runs for every lane
    reads, writes = block_regions(body, init)
    return Block(name, axes, bindings, reads, writes, body, init, predicate, block.annotations, block.origin)


def _final_block(
    block: Block,
    factor: For,
    own: list[For],
    reduction: dict[Var, None],
    partial: dict[Buffer, Buffer],
    position: int,
    taken: set[str],
) -> tuple[Block, list[For]]:
    """The block that reduces the partial results, and the loops it needs."""
    loops = [
        For(Var(unique_name(f"{s.var.name}_final", taken)), s.extent, s.body) for s in own if s.var not in reduction
    ]
    renamed: dict[Var, Expr] = {s.var: made.var for s, made in zip([s for s in own if s.var not in reduction], loops)}
    lane_loop = For(Var(unique_name(f"{factor.var.name}_final", taken)), factor.extent, factor.body)
    lane = Var(factor.var.name)
    spatial = [(a, b) for a, b in zip(block.axes, block.bindings) if a.kind != "reduce"]
    axis_names = {a.var: Var(a.var.name) for a, _ in spatial}
    axes = [*[Axis(axis_names[a.var], a.extent, a.kind) for a, _ in spatial], Axis(lane, factor.extent, "reduce")]
    bindings = [*[substitute(b, renamed) for _, b in spatial], lane_loop.var]
    insert = _InsertIndex(partial, position, lane)
    body = substitute_stmt(_with_partials(block, insert), dict(axis_names))
    assert block.init is not None
    init = substitute_stmt(block.init, dict(axis_names))
    reads, writes = block_regions(body, init)
    predicate = substitute(_split_predicate(block, reduction)[0], renamed)
    made = Block(block.name, axes, bindings, reads, writes, body, init, predicate, block.annotations, block.origin)
    return made, [*loops, lane_loop]


def _with_partials(block: Block, insert: _InsertIndex) -> Stmt:
    """A reduction's body with its sources replaced by loads of the partial results."""
    body = block.body
    if isinstance(body, Store) and type(body.value) in (Add, Mul, Min, Max, And, Or):
        old = Load(body.buffer, body.indices)
        kind = type(body.value)
        if structural_equal(body.value.a, old) or structural_equal(body.value.b, old):  # type: ignore[attr-defined]
            return Store(body.buffer, body.indices, kind(old, insert.expr(old)))  # type: ignore[call-arg]
    store = body
    while isinstance(store, Let):
        store = store.body
    stores = [s for s in getattr(store, "stmts", (store,)) if isinstance(s, Store)]
    loads = [insert.expr(Load(s.buffer, s.indices)) for s in stores]

    def rebuild(s: Stmt, count: int) -> Stmt:
        if not isinstance(s, Let):
            return s
        value = loads[count] if count < len(loads) else s.value
        return Let(s.var, value, rebuild(s.body, count + 1))

    if not isinstance(body, Let) or not stores:
        raise ScheduleError(
            "rfactor", block.name, "its update has no form that can be told apart into source and combination"
        )
    return _fresh_lets(rebuild(body, 0))


def _fresh_lets(s: Stmt) -> Stmt:
    """Let-bound variables renewed, since the other block keeps the old ones."""
    if not isinstance(s, Let):
        return s
    variable = Var(s.var.name, s.var.dtype)
    return Let(variable, s.value, _fresh_lets(substitute_stmt(s.body, {s.var: variable})))


class _InsertIndex(Mutator):
    """Accesses of the outputs become accesses of the partial results, with the lane as a further index."""

    def __init__(self, partial: dict[Buffer, Buffer], position: int, lane: Expr) -> None:
        self.partial, self.position, self.lane = partial, position, lane

    def _indices(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*indices[: self.position], self.lane, *indices[self.position :])

    def visit_Load(self, e: Load) -> Expr:
        """A load of an output."""
        if e.buffer in self.partial:
            return Load(self.partial[e.buffer], self._indices(e.indices))
        return self.generic(e)

    def visit_Store(self, s: Store) -> Stmt:
        """A store to an output."""
        value = self.expr(s.value)
        if s.buffer in self.partial:
            return Store(self.partial[s.buffer], self._indices(s.indices), value)
        return Store(s.buffer, s.indices, value)

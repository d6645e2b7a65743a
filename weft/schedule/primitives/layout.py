"""The primitive that changes how an intermediate lies in memory: transform_layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core import model
from weft.core.errors import ScheduleError, WeftError
from weft.expr.bounds import Ranges, prove, upper_bound
from weft.expr.digits import are_whole, digit_of
from weft.expr.nodes import (
    Add,
    Address,
    Binary,
    Buffer,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Sub,
    Var,
    add,
    index_expr,
    int_value,
    less_equal,
    product,
)  # fmt: skip
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.text import format_expr
from weft.expr.visit import map_all, substitute, walk
from weft.loop.ir import Block, Func, Stmt, Store
from weft.loop.tree import blocks_in, buffer_named, map_bindings, ranges_of
from weft.loop.visit import Mutator, walk_exprs
from weft.schedule.primitives.inline import rebody
from weft.schedule.registry import Result, primitive


class _Relayout(Mutator):
    """Rewrites the accesses of one buffer by an index map."""

    def __init__(self, old: Buffer, new: Buffer, apply: Callable[[tuple[Expr, ...]], list[Expr]]) -> None:
        self.old, self.new, self.apply = old, new, apply

    def visit_Load(self, e: Load) -> Expr:
        """A load of the buffer."""
        indices = map_all(e.indices, self.expr)
        return Load(self.new, self.apply(indices)) if e.buffer is self.old else Load(e.buffer, indices)

    def visit_Store(self, s: Store) -> Stmt:
        """A store to the buffer."""
        indices, value = map_all(s.indices, self.expr), self.expr(s.value)
        if s.buffer is self.old:
            return Store(self.new, self.apply(indices), value, s.predicate)
        return Store(s.buffer, indices, value, s.predicate)


@primitive(str, Sequence[str], Sequence[str])
def transform_layout(func: Func, buffer: str, inputs: Sequence[str], outputs: Sequence[str]) -> Result:
    """Stores an intermediate under other indices, each an expression of the old ones; gaps are never read.

    rewrite (i, j) -> (i // 4, j, i % 4):  B[i, j] = …  ->  B[i // 4, j, i % 4] = …
    """
    old = buffer_named(func, buffer, "transform_layout")
    if old not in func.allocations:
        raise ScheduleError(
            "transform_layout", buffer, "it is a parameter, whose layout belongs to the caller: cache it first"
        )
    if buffer in func.annotations.get("storage_align", {}):
        raise ScheduleError(
            "transform_layout", buffer, "its strides are padded already: use storage_align after transform_layout"
        )
    variables, formulas, shape, has_gaps = _known_map(func, old, tuple(inputs), tuple(outputs))
    new = old.replace(shape=shape, strides=None)
    for block in blocks_in(func.body):
        if all(r.buffer is not old for r in (*block.reads, *block.writes)):
            continue
        parts = [block.body] if block.init is None else [block.init, block.body]
        if any(type(e) is Address and e.buffer is old for part in parts for e in walk_exprs(part, Address)):
            raise ScheduleError("transform_layout", buffer, f"the block {block.name} takes its address")

    def change(block: Block, _: Any) -> Block:
        if all(r.buffer is not old for r in (*block.reads, *block.writes)):
            return block
        known = ranges_of(func, [])
        for axis in block.axes:
            known.bind(axis.var, axis.extent)

        def at(f: Expr, indices: Sequence[Expr]) -> Expr:
            if type(f) is Var:
                return indices[variables.index(f)]
            # Of (i * 197 + j) // 64 nothing is left of the row that i and j are, where it is taken apart.
            plain = substitute(f, dict(zip(variables, indices)))
            return min(plain, simplify(plain, known), key=lambda e: sum(1 for _ in walk(e)))

        rewrite = _Relayout(old, new, lambda indices: [at(f, indices) for f in formulas])
        return rebody(block, rewrite.stmt(block.body), None if block.init is None else rewrite.stmt(block.init))

    body = map_bindings(func.body, change, [])
    made = func.replace(body=body, allocations=[new if b is old else b for b in func.allocations])
    gaps = func.annotations.get("layout_gaps", [])
    if has_gaps and buffer not in gaps:
        made = made.replace(annotations={**func.annotations, "layout_gaps": [*gaps, buffer]})
    return Result(made)


IndexMap = tuple[list[Var], list[Expr], list[Expr], bool]
"""Variables for the old indices, the new ones by them, the sizes of the new dimensions, and whether gaps are left."""
_MAPS: dict[tuple[Any, ...], IndexMap] = {}


def _known_map(func: Func, old: Buffer, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> IndexMap:
    """An index map, checked once for all buffers of the same sizes: a model packs many alike."""
    sizes = tuple([int_value(size) for size in old.shape])
    if None in sizes:
        return _index_map(func, old, inputs, outputs)
    found = _MAPS.get((inputs, outputs, sizes))
    if found is None:
        if len(_MAPS) >= model.KERNELS_REMEMBERED:
            _MAPS.clear()
        found = _MAPS[(inputs, outputs, sizes)] = _index_map(func, old, inputs, outputs)
    return found


def _index_map(func: Func, old: Buffer, inputs: Sequence[str], outputs: Sequence[str]) -> IndexMap:
    from weft.loop.parser import parse_expr

    buffer = old.name
    if len(set(inputs)) != len(inputs):
        raise ScheduleError("transform_layout", buffer, f"an index is named twice: {', '.join(inputs)}")
    if len(inputs) != len(old.shape):
        reason = f"the map takes {len(inputs)} indices and {buffer} has {len(old.shape)} dimensions"
        raise ScheduleError("transform_layout", buffer, reason)
    variables = {name: Var(name) for name in inputs}
    try:
        formulas = [index_expr(parse_expr(text, dict(variables))) for text in outputs]
    except WeftError as error:
        raise ScheduleError("transform_layout", buffer, f"the map cannot be read: {error}") from None
    ranges = ranges_of(func, [])
    for variable, size in zip(variables.values(), old.shape):
        ranges = ranges.with_loop(variable, size)
    formulas = [simplify(f, ranges) for f in formulas]
    for formula in formulas:
        if not prove(less_equal(index_expr(0), formula), ranges):
            raise ScheduleError("transform_layout", buffer, f"the index {format_expr(formula)} may be negative")
    shape = [_size(f, variables, ranges, buffer) for f in formulas]
    _check_injective(old, list(variables.values()), formulas, buffer)
    has_gaps = not structural_equal(simplify(product(shape), ranges), simplify(product(old.shape), ranges))
    return list(variables.values()), formulas, shape, has_gaps


def check_no_gaps(func: Func, buffer: Buffer, what: str) -> None:
    """Raises where a layout left places that nothing writes: a copy of the whole buffer would read them."""
    if buffer.name in func.annotations.get("layout_gaps", ()):
        raise ScheduleError(
            what, buffer.name, "transform_layout left gaps in it, which a copy would read: cache it before that"
        )


def _size(formula: Expr, variables: dict[str, Var], ranges: Ranges, buffer: str) -> Expr:
    last = upper_bound(formula, dict.fromkeys(variables.values()), ranges)
    if last is None:
        raise ScheduleError("transform_layout", buffer, f"the largest value of {format_expr(formula)} cannot be found")
    return simplify(add(last, index_expr(1)), ranges)


LARGEST_TRIED = 1 << 22
"""A map that is not injective by its form is tried on every element of a buffer up to this size."""


def _check_injective(buffer: Buffer, variables: list[Var], formulas: list[Expr], name: str) -> None:
    """A map that sends two elements to one place, or cannot be shown not to, is refused."""
    digits = [found for formula in formulas if (found := digit_of(formula)) is not None]
    if all(are_whole([d for v, d in digits if v is w]) or _recoverable(w, formulas) for w in variables):
        return
    if not formulas:
        raise ScheduleError("transform_layout", name, "the map gives no index at all")
    sizes = [int_value(size) for size in buffer.shape]
    if any(size is None for size in sizes) or math.prod(size or 0 for size in sizes) > LARGEST_TRIED:
        reason = "it is not clear that the map keeps elements apart: write each index i as i, or as i // c and i % c"
        raise ScheduleError("transform_layout", name, reason)
    grid: Any = np.meshgrid(*[np.arange(size or 0) for size in sizes], indexing="ij")
    points = dict(zip(variables, grid))
    images = np.stack([np.broadcast_to(_on_grid(f, points), grid[0].shape).ravel() for f in formulas], axis=1)
    if images.size and len(np.unique(images, axis=0)) != len(images):
        raise ScheduleError("transform_layout", name, "the map sends two elements to the same place")


def _recoverable(value: Expr, formulas: list[Expr]) -> bool:
    """Whether a value can be told from the new indices: it is one of them, or its quotient and remainder can be."""
    if any(structural_equal(value, f) for f in formulas):
        return True
    for f in formulas:
        for node in walk(f):
            if type(node) is FloorMod and structural_equal(node.a, value) and _recoverable(node, formulas):
                if _recoverable(FloorDiv(value, node.b), formulas):
                    return True
    return False


_GRID: dict[type[Expr], Callable[[Any, Any], Any]] = {
    Add: np.add, Sub: np.subtract, Mul: np.multiply, FloorDiv: np.floor_divide, FloorMod: np.mod,
    Min: np.minimum, Max: np.maximum,
}  # fmt: skip


def _on_grid(e: Expr, points: dict[Var, Any]) -> Any:
    if isinstance(e, Var):
        return points[e]
    if isinstance(e, Const):
        return e.value
    operation = _GRID.get(type(e))
    if operation is None or not isinstance(e, Binary):
        raise ScheduleError("transform_layout", "map", f"{format_expr(e)} is not index arithmetic")
    return operation(_on_grid(e.a, points), _on_grid(e.b, points))

"""Blocks dissolve into plain statements, and every intermediate gets its place in memory.

    allocate B: float32[1024] local                     for io in range(32):
    for io in range(32):                                    allocate B: float32[32] local:
        for ii in range(32):                        ->          for ii in range(32):
            block B(i: 1024 = io*32 + ii): B[i] = f(i)              B[ii] = f(io*32 + ii)
        for ii in range(32):                                    for ii in range(32):
            block C(i: 1024 = io*32 + ii): C[i] = B[i]              C[io*32 + ii] = B[ii]

An intermediate is allocated at the lowest place that holds all its uses, and only the box that is used there. The axes
of a block are replaced by their bindings; its predicate becomes an If. Blocks have no init any more (decompose_init).
"""

from __future__ import annotations

from weft.core.errors import InternalError
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    Buffer,
    Expr,
    Var,
    add,
    index_expr,
    int_value,
    is_true,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.loop.ir import Allocate, Block, For, Func, If, Seq, Stmt
from weft.loop.regions import accessed_region
from weft.loop.tree import ranges_of
from weft.loop.visit import AccessMutator, Mutator

SHARED_BY = {"global": ("blockIdx", "threadIdx", "vthread"), "shared": ("threadIdx", "vthread")}
"""Which threads see one instance of a buffer, by scope."""


class Placement:
    """Where an intermediate lives: its new declaration and the index of its first element."""

    __slots__ = ("buffer", "mins")

    def __init__(self, buffer: Buffer, mins: tuple[Expr, ...]) -> None:
        self.buffer = buffer
        self.mins = mins


def lower_blocks(func: Func) -> Func:
    """The program in lowered form."""
    places = {id(stmt): buffers for stmt, buffers in _find_places(func)}
    body = _Lower(func, places).stmt(func.body)
    return func.replace(body=body, allocations=())


def _find_places(func: Func) -> list[tuple[Stmt, list[Buffer]]]:
    """For each statement the intermediates whose uses all lie in it and in no single part of it."""
    found: dict[int, tuple[Stmt, list[Buffer]]] = {}
    wanted = set(func.allocations)
    uses: dict[Buffer, list[list[Stmt]]] = {b: [] for b in func.allocations}

    def visit(s: Stmt, path: list[Stmt]) -> None:
        path = [*path, s]
        if isinstance(s, Block):
            for buffer in {r.buffer for r in (*s.reads, *s.writes)} & wanted:
                uses[buffer].append(path)
        elif isinstance(s, Seq):
            for child in s.stmts:
                visit(child, path)
        elif isinstance(s, For):
            visit(s.body, path)
        elif isinstance(s, If):
            visit(s.then, path)
            if s.otherwise is not None:
                visit(s.otherwise, path)

    visit(func.body, [])
    for buffer in func.allocations:
        paths = uses[buffer]
        if not paths:
            continue
        depth = 0
        while all(len(p) > depth and p[depth] is paths[0][depth] for p in paths):
            depth += 1
        place = paths[0][depth - 1]
        found.setdefault(id(place), (place, []))[1].append(buffer)
    return list(found.values())


class _Lower(Mutator):
    """Rebuilds the program top down, knowing the loops around and the placed buffers."""

    def __init__(self, func: Func, places: dict[int, list[Buffer]]) -> None:
        self.places = places
        self.loops: list[For] = []
        self.ranges: Ranges = ranges_of(func, [])
        self.placed: dict[Buffer, Placement] = {}
        self.align = func.annotations.get("storage_align", {})

    def stmt(self, s: Stmt) -> Stmt:
        """A statement, inside the allocations that belong right around it."""
        made = [self._place(buffer, s) for buffer in self.places.get(id(s), ())]
        result = super().stmt(s)
        for placement in reversed(made):
            result = Allocate(placement.buffer, result)
        return result

    def _place(self, buffer: Buffer, s: Stmt) -> Placement:
        """Shrinks an intermediate to the box used in a statement."""
        shared = SHARED_BY.get(buffer.scope, ())
        over = {
            loop.var: None for loop in self.loops if loop.thread is not None and loop.thread.split(".")[0] in shared
        }
        region = accessed_region(s, buffer, self.ranges, over=over)
        if region is None:
            raise InternalError(f"{buffer.name} is placed where it is not used")
        shape = [_smaller(extent, size) for extent, size in zip(region.extents, buffer.shape)]
        kept = [size is shape[d] for d, size in enumerate(buffer.shape)]
        mins = tuple(index_expr(0) if keep else low for keep, low in zip(kept, region.mins))
        strides = _padded_strides(shape, self.align[buffer.name]) if buffer.name in self.align else buffer.strides
        placement = Placement(buffer.replace(shape=shape, strides=strides), mins)
        self.placed[buffer] = placement
        return placement

    def visit_For(self, s: For) -> Stmt:
        """A loop: its variable's range is known inside."""
        outer_ranges = self.ranges
        self.loops.append(s)
        self.ranges = self.ranges.with_loop(s.var, s.extent)
        body = self.stmt(s.body)
        self.loops.pop()
        self.ranges = outer_ranges
        return s.replace(body=body)

    def visit_Block(self, s: Block) -> Stmt:
        """A block: its body with the axes replaced by what they are bound to."""
        if s.init is not None:
            raise InternalError(f"the block {s.name} still has its init")
        mapping = {axis.var: binding for axis, binding in zip(s.axes, s.bindings)}
        inside = self.ranges if is_true(s.predicate) else self.ranges.with_condition(s.predicate)
        body = _Accesses(mapping, self.placed, inside).stmt(s.body)
        return body if is_true(s.predicate) else If(simplify(s.predicate, self.ranges), body)


class _Accesses(AccessMutator):
    """The body of a block with axes replaced and accesses of placed buffers moved to their new origin."""

    def __init__(self, mapping: dict[Var, Expr], placed: dict[Buffer, Placement], ranges: Ranges) -> None:
        self.mapping, self.placed, self.ranges = mapping, placed, ranges

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """An access, from the new origin on."""
        placement = self.placed.get(buffer)
        if placement is None:
            return buffer, tuple(simplify(i, self.ranges) for i in indices)
        return placement.buffer, tuple(simplify(sub(i, m), self.ranges) for i, m in zip(indices, placement.mins))

    def visit_Var(self, e: Var) -> Expr:
        """An axis becomes its binding."""
        return self.mapping.get(e, e)

    def visit_For(self, s: For) -> Stmt:
        """A loop inside a block's body."""
        outer = self.ranges
        extent = self.expr(s.extent)
        self.ranges = self.ranges.with_loop(s.var, extent)
        body = self.stmt(s.body)
        self.ranges = outer
        return s.replace(extent=extent, body=body)


def _smaller(extent: Expr, size: Expr) -> Expr:
    """The extent of the used box, or the whole size where that is no larger."""
    box, whole = int_value(extent), int_value(size)
    if box is not None:
        return extent if whole is None or box < whole else size
    return size if whole is not None else extent


def _padded_strides(shape: list[Expr], rules: list[list[int]]) -> list[Expr]:
    """Strides from the last dimension outwards, padded so that stride % factor == offset where a rule asks for it."""
    by_dim = {dim: (factor, offset) for dim, factor, offset in rules}
    strides: list[Expr] = [index_expr(1)] * len(shape)
    for dim in reversed(range(len(shape) - 1)):
        stride = mul(strides[dim + 1], shape[dim + 1])
        if dim in by_dim:
            factor, offset = by_dim[dim]
            missing = simplify((index_expr(offset) - stride) % factor)
            stride = simplify(add(stride, missing))
        strides[dim] = stride
    return strides

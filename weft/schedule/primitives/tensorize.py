"""The primitive that hands a tile of a computation to a hardware instruction: tensorize.

The loops from the named one inwards must cover, for each block axis, a full aligned tile; the tile's computation must
be the intrinsic's description up to names. The block then runs once per tile and its body is the intrinsic's calls.
"""

from __future__ import annotations

from weft.core.errors import ScheduleError
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    Add,
    And,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Max,
    Min,
    Mul,
    Or,
    Var,
    add,
    floordiv,
    index_expr,
    int_value,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import children, free_vars, substitute, uses_any
from weft.loop.ir import Axis, Block, For, Func, Region, Stmt, Store
from weft.loop.tree import axis_loops, loop_of, loop_path, loops_on, ranges_of, replace_last, taken_names, unique_name
from weft.loop.visit import Mutator, substitute_stmt
from weft.schedule.intrinsic import INTRINSICS, BufferView, TensorIntrin
from weft.schedule.registry import Result, primitive

COMMUTATIVE = (Add, Mul, Min, Max, And, Or)


@primitive(str, str)
def tensorize(func: Func, loop: str, intrin: str) -> Result:
    """A tile computed by a tensor intrinsic.

    rewrite: for yo: for yi in range(8): … C[yo*8 + yi, …] += …
             ->  for yo: gemm8x8(address(A[…]), address(B[…]), address(C[…]))
    """
    found = INTRINSICS.get(intrin)
    place = f"{loop}, {intrin}"
    if found is None:
        known = ", ".join(INTRINSICS) or "none"
        raise ScheduleError("tensorize", place, f"no tensor intrinsic of that name is declared (known: {known})")
    path = loop_path(func, loop, "tensorize")
    inner: list[For] = []
    s: Stmt = loop_of(path)
    while isinstance(s, For):
        inner.append(s)
        s = s.body
    if not isinstance(s, Block):
        raise ScheduleError("tensorize", place, "the loop holds more than one block")
    if uses_any(s.predicate, {loop.var for loop in inner}):
        raise ScheduleError(
            "tensorize", place, f"{s.name} has a test ({s.predicate!r}): tile sizes must divide the extents"
        )
    outer = loops_on(path[:-1])
    made = Tile(func, s, inner, outer, found, place).block()
    rename = _RenameLoops(taken_names(func))
    made = made.replace(body=rename.stmt(made.body), init=None if made.init is None else rename.stmt(made.init))
    return Result(replace_last(func, path, made), axes={made.name: axis_loops(made)})


class _RenameLoops(Mutator):
    """Gives the loops that a lowering rule builds names of their own: a rule serves many tiles."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken

    def visit_For(self, s: For) -> Stmt:
        """A loop of the rule."""
        variable = Var(unique_name(s.var.name, self.taken))
        return s.replace(var=variable, body=self.stmt(substitute_stmt(s.body, {s.var: variable})))


class Tile:
    """One tile of a block, matched against an intrinsic."""

    def __init__(
        self, func: Func, block: Block, inner: list[For], outer: list[For], intrin: TensorIntrin, place: str
    ) -> None:
        self.func, self.old, self.intrin, self.place = func, block, intrin, place
        self.inner, self.outer = inner, outer
        self.ranges = ranges_of(func, [*outer, *inner])
        self.views: dict[Buffer, tuple[Buffer, list[Expr]]] = {}

    def fail(self, reason: str) -> ScheduleError:
        """The error of this tensorize."""
        return ScheduleError("tensorize", self.place, reason)

    def block(self) -> Block:
        """The block that runs once per tile."""
        axes, bindings, bases, within = self._tile_axes()
        description = self.intrin.block
        pairs = self._pair_axes(within, description)
        self.tile_vars = set(pairs.values())
        self.known = ranges_of(self.func, [])
        for axis in axes:
            self.known = self.known.with_loop(axis.var, axis.extent)
        for _, tile, size in within:
            self.known = self.known.with_loop(tile, size)
        value = self._value(self.old.body, {**bases})
        self._match_stores(value, description, pairs)
        views = [self._view(b) for b in (*self.intrin.inputs, self.intrin.output)]
        compute, reset, update = self.intrin.lower(views[:-1], views[-1])
        ranges = Ranges()
        for axis in axes:
            ranges = ranges.with_loop(axis.var, axis.extent)
        reads = [self._region(v, ranges) for v in views[:-1]]
        writes = [self._region(views[-1], ranges)]
        reduces_outside = any(a.kind == "reduce" for a in axes)
        old = self.old
        if description.init is None or (old.init is not None and not reduces_outside):
            return old.replace(axes=axes, bindings=bindings, reads=reads, writes=writes, body=compute, init=None)
        if reset is None or update is None:
            raise self.fail(
                f"{self.intrin.name} has no (reset, update) form, and the reduction goes on outside the tile"
            )
        init = reset if old.init is not None else None
        return old.replace(axes=axes, bindings=bindings, reads=reads, writes=writes, body=update, init=init)

    def _tile_axes(self) -> tuple[list[Axis], list[Expr], dict[Var, Expr], list[tuple[Axis, Var, int]]]:
        """The block's outer axes and bindings, each old axis as base + tile variable, and the axes inside the tile."""
        axes, bindings, bases, within = [], [], {}, []
        variables = {loop.var for loop in self.inner}
        zero: dict[Var, Expr] = {loop.var: index_expr(0) for loop in self.inner}
        for axis, binding in zip(self.old.axes, self.old.bindings):
            base = simplify(substitute(binding, zero), self.ranges)
            size = self._tile_size(binding, base, variables, axis)
            quotient = simplify(floordiv(base, index_expr(size)), self.ranges)
            if size > 1 and not structural_equal(simplify(mul(quotient, index_expr(size)), self.ranges), base):
                raise self.fail(f"the tile of axis {axis.var.name} does not start at a multiple of {size}")
            outer = Var(axis.var.name)
            whole = int_value(axis.extent)
            if size > 1 and whole is not None and whole % size:
                raise self.fail(f"the tile of {size} does not divide the extent {whole} of axis {axis.var.name}")
            value: Expr = mul(outer, index_expr(size))
            if whole is not None and whole == size:
                value = index_expr(0)
            else:
                axes.append(Axis(outer, simplify(floordiv(axis.extent, index_expr(size))), axis.kind))
                bindings.append(quotient)
            if size > 1:
                tile = Var(f"{axis.var.name}_tile")
                within.append((axis, tile, size))
                value = add(value, tile)
            bases[axis.var] = value
        return axes, bindings, bases, within

    def _tile_size(self, binding: Expr, base: Expr, variables: set[Var], axis: Axis) -> int:
        used = [loop for loop in self.inner if uses_any(binding, {loop.var})]
        size = 1
        for loop in used:
            extent = int_value(loop.extent)
            if extent is None:
                raise self.fail(f"the loop {loop.var.name} has no constant extent")
            size *= extent
        expected: Expr = base
        scale = size
        for loop in used:
            scale //= int_value(loop.extent) or 1
            expected = add(expected, mul(loop.var, index_expr(scale)))
        if not structural_equal(simplify(sub(binding, expected), self.ranges), index_expr(0)):
            raise self.fail(
                f"the loops inside do not walk a plain tile of axis {axis.var.name}: it is bound to {binding!r}"
            )
        return size

    def _pair_axes(self, within: list[tuple[Axis, Var, int]], description: Block) -> dict[Var, Var]:
        pairs: dict[Var, Var] = {}
        for kind in ("spatial", "reduce"):
            mine = [(tile, size, axis) for axis, tile, size in within if axis.kind == kind]
            theirs = [a for a in description.axes if a.kind == kind and int_value(a.extent) != 1]
            if [size for _, size, _ in mine] != [int_value(a.extent) for a in theirs]:
                have = " × ".join(str(size) for _, size, _ in mine) or "none"
                want = " × ".join(repr(a.extent) for a in theirs) or "none"
                raise self.fail(f"the tile has {kind} sizes {have} and {self.intrin.name} computes {want}")
            pairs.update({a.var: tile for (tile, _, _), a in zip(mine, theirs)})
        return pairs

    def _value(self, body: Stmt, bases: dict[Var, Expr]) -> Store:
        if not isinstance(body, Store):
            raise self.fail(f"the block {self.old.name} does more than store one value")
        return Store(body.buffer, [substitute(i, bases) for i in body.indices], substitute(body.value, bases))

    def _match_stores(self, mine: Store, description: Block, pairs: dict[Var, Var]) -> None:
        renamed: dict[Var, Expr] = {a.var: pairs[a.var] if a.var in pairs else index_expr(0) for a in description.axes}
        theirs = description.body
        assert isinstance(theirs, Store)
        target = Load(theirs.buffer, [substitute(i, renamed) for i in theirs.indices])
        ok = self._match_load(Load(mine.buffer, mine.indices), target)
        if not ok or not self._match(mine.value, substitute(theirs.value, renamed)):
            raise self.fail(f"{self.old.name} computes {mine.value!r}, {self.intrin.name} computes {theirs.value!r}")

    def _match(self, a: Expr, b: Expr) -> bool:
        if isinstance(a, Load) and isinstance(b, Load):
            return self._match_load(a, b)
        if type(a) is not type(b) or a.dtype is not b.dtype:
            return False
        if isinstance(a, Const) and isinstance(b, Const):
            return bool(a.value == b.value)
        if isinstance(a, Var):
            return a is b
        if isinstance(a, Cast):
            return self._match(a.value, b.value)  # type: ignore[attr-defined]
        if getattr(a, "name", None) != getattr(b, "name", None):
            return False
        mine, theirs = children(a), children(b)
        if len(mine) != len(theirs):
            return False
        saved = dict(self.views)
        if all(self._match(x, y) for x, y in zip(mine, theirs)):
            return True
        self.views = saved
        if isinstance(a, COMMUTATIVE) and self._match(mine[0], theirs[1]) and self._match(mine[1], theirs[0]):
            return True
        self.views = saved
        return False

    def _match_load(self, mine: Load, theirs: Load) -> bool:
        """The trailing indices must walk the tile as described, from some base; the leading ones stand still."""
        if mine.buffer.dtype is not theirs.buffer.dtype or len(mine.indices) < len(theirs.indices):
            return False
        lead = len(mine.indices) - len(theirs.indices)
        bases = [simplify(index, self.known) for index in mine.indices[:lead]]
        for index, described in zip(mine.indices[lead:], theirs.indices):
            bases.append(simplify(sub(index, described), self.known))
        if any(v in self.tile_vars for base in bases for v in free_vars(base)):
            return False
        known_view = self.views.get(theirs.buffer)
        if known_view is None:
            self.views[theirs.buffer] = (mine.buffer, bases)
            return True
        return known_view[0] is mine.buffer and all(structural_equal(x, y) for x, y in zip(known_view[1], bases))

    def _view(self, described: Buffer) -> BufferView:
        if described not in self.views:
            raise self.fail(f"{self.intrin.name} does not use its operand {described.name}")
        buffer, bases = self.views[described]
        return BufferView(buffer, bases, described.shape)

    def _region(self, view: BufferView, ranges: Ranges) -> Region:
        lead = len(view.indices) - len(view.shape)
        return Region(view.buffer, view.indices, [*[index_expr(1)] * lead, *view.shape])

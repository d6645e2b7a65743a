"""Primitives that fit a program to how its parameters lie in memory: lay_out, split_axis, last_axis.

`lay_out` says that a parameter is stored in blocks of one dimension, and inside a border of zeros; `split_axis` gives a
block's domain the same blocks, so that loops over the domain follow the memory; `last_axis` does so where all of the
dimension is one block.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.errors import ScheduleError
from weft.expr.bounds import Ranges, prove
from weft.expr.nodes import (
    LE,
    LT,
    And,
    Buffer,
    Const,
    Expr,
    Load,
    Select,
    Var,
    add,
    floordiv,
    floormod,
    index_expr,
    int_value,
    less,
    less_equal,
    logical_and,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.visit import free_vars, map_all, substitute, uses_any
from weft.loop.ir import Axis, Block, For, Func, Stmt, Store
from weft.loop.tree import (
    BORDERS,
    axis_loops,
    block_of,
    block_path,
    buffer_named,
    map_bindings,
    ranges_of,
    replace_last,
    taken_names,
    unique_name,
)
from weft.loop.visit import Mutator
from weft.schedule.primitives.inline import rebody
from weft.schedule.registry import Result, primitive


@primitive(str, int, int, Sequence[int], Sequence[int], int)
def lay_out(
    func: Func, buffer: str, dimension: int, factor: int, before: Sequence[int], after: Sequence[int], fill: int = 0
) -> Result:
    """A parameter that the caller stores in blocks of a dimension, with a border before and after each dimension.

    rewrite X[n, c, h] with factor 16 and a border of 1 along h:  X[n, c, h]  ->  X[n, c // 16, h + 1, c % 16]

    factor 1 keeps the dimension whole. A test that gives the number `fill` outside the parameter's bounds reads the
    border instead. The caller promises that the border holds that number; the program writes nothing there.
    """
    old = buffer_named(func, buffer, "lay_out")
    rank = len(old.shape)
    if old not in func.params or old.strides is not None:
        raise ScheduleError("lay_out", buffer, "it is no parameter with the usual strides")
    if len(before) != rank or len(after) != rank or any(n < 0 for n in (*before, *after)):
        raise ScheduleError("lay_out", buffer, f"give {rank} widths of at least 0 before and after")
    size = int_value(old.shape[dimension]) if 0 <= dimension < rank else None
    if factor < 1 or size is None or size % factor:
        raise ScheduleError("lay_out", buffer, f"a factor of {factor} does not divide dimension {dimension}")
    if factor > 1 and (before[dimension] or after[dimension]):
        raise ScheduleError("lay_out", buffer, "the dimension that is divided into blocks cannot have a border")
    shape = [simplify(add(size, index_expr(a + b))) for size, a, b in zip(old.shape, before, after)]
    if factor > 1:
        shape = [*shape[:dimension], index_expr(size // factor), *shape[dimension + 1 :], index_expr(factor)]
    layout = _Layout(old, old.replace(shape=shape), dimension, factor, tuple(before), fill)

    def change(block: Block, _: object) -> Block:
        if all(r.buffer is not old for r in (*block.reads, *block.writes)):
            return block
        known = ranges_of(func, [])
        for axis in block.axes:
            known = known.with_loop(axis.var, axis.extent)
        rewrite = _Rewrite(layout, known)
        return rebody(block, rewrite.stmt(block.body), None if block.init is None else rewrite.stmt(block.init))

    body = map_bindings(func.body, change, [])
    notes = dict(func.annotations)
    if fill == 0 and any((*before, *after)):
        notes[BORDERS] = {**notes.get(BORDERS, {}), buffer: [*map(list, zip(before, after)), *[[0, 0]] * (factor > 1)]}
    params = [layout.new if p is old else p for p in func.params]
    return Result(func.replace(body=body, params=params, annotations=notes))


class _Layout:
    """Where the elements of a parameter lie."""

    def __init__(
        self, old: Buffer, new: Buffer, dimension: int, factor: int, before: tuple[int, ...], fill: int
    ) -> None:
        self.old, self.new, self.dimension, self.factor, self.before = old, new, dimension, factor, before
        self.fill = fill

    def place(self, indices: Sequence[Expr], ranges: Ranges) -> list[Expr]:
        """The indices at which an element is stored."""
        made = [add(i, index_expr(b)) if b else i for i, b in zip(indices, self.before)]
        if self.factor > 1:
            blocked, is_whole = made[self.dimension], int_value(self.old.shape[self.dimension]) == self.factor
            made[self.dimension] = index_expr(0) if is_whole else floordiv(blocked, index_expr(self.factor))
            made.append(blocked if is_whole else floormod(blocked, index_expr(self.factor)))
        return [simplify(i, ranges) for i in made]


class _Rewrite(Mutator):
    """Accesses of a parameter at the places where its elements lie."""

    def __init__(self, layout: _Layout, ranges: Ranges) -> None:
        self.layout, self.ranges = layout, ranges

    def visit_Load(self, e: Load) -> Expr:
        """A load of the parameter."""
        indices = map_all(e.indices, self.expr)
        if e.buffer is not self.layout.old:
            return Load(e.buffer, indices)
        return Load(self.layout.new, self.layout.place(indices, self.ranges))

    def visit_Store(self, s: Store) -> Stmt:
        """A store to the parameter."""
        indices, value = map_all(s.indices, self.expr), self.expr(s.value)
        if s.buffer is not self.layout.old:
            return Store(s.buffer, indices, value, s.predicate)
        return Store(self.layout.new, self.layout.place(indices, self.ranges), value, s.predicate)

    def visit_Select(self, e: Select) -> Expr:
        """The number outside the parameter is read from its border."""
        inside = e.then
        if isinstance(inside, Load) and inside.buffer is self.layout.old and _is_number(e.otherwise, self.layout.fill):
            if self._only_bounds(e.condition, inside):
                made = self.layout.place(map_all(inside.indices, self.expr), self.ranges)
                if all(self._fits(i, size) for i, size in zip(made, self.layout.new.shape)):
                    return Load(self.layout.new, made)
        return Select(self.expr(e.condition), self.expr(e.then), self.expr(e.otherwise))

    def _fits(self, index: Expr, size: Expr) -> bool:
        return prove(less_equal(index_expr(0), index), self.ranges) and prove(less(index, size), self.ranges)

    def _only_bounds(self, condition: Expr, load: Load) -> bool:
        """Whether every part of a test says that an index of a load is inside the parameter."""
        known: list[Expr] = []
        for index, size in zip(load.indices, self.layout.old.shape):
            known += [index, sub(sub(size, index), index_expr(1))]
        return all(self._is_one(_margin(part), known) for part in _parts(condition))

    def _is_one(self, margin: Expr | None, known: Sequence[Expr]) -> bool:
        return margin is not None and any(int_value(simplify(sub(margin, k), self.ranges)) == 0 for k in known)


def _margin(test: Expr) -> Expr | None:
    """What a comparison of indices says is at least 0."""
    if isinstance(test, LE):
        return sub(test.b, test.a)
    return sub(sub(test.b, test.a), index_expr(1)) if isinstance(test, LT) else None


def _is_number(e: Expr, number: int) -> bool:
    return isinstance(e, Const) and e.value == number


def _parts(condition: Expr) -> list[Expr]:
    return [*_parts(condition.a), *_parts(condition.b)] if isinstance(condition, And) else [condition]


@primitive(str, str, int)
def split_axis(func: Func, block: str, axis: str, factor: int) -> Result:
    """An axis of a block's domain as two, the second with `factor` steps; the loops of the block follow.

    rewrite: for c in range(64): for h: S[c, h]  ->  for co in range(4): for h: for ci in range(16): S[co*16 + ci, h]

    The new axis and its loop stand last among those of the kind. Where the factor does not divide the extent, the last
    few steps are tested.
    """
    path = block_path(func, block, "split_axis")
    old = block_of(path)
    found = [at for at, one in enumerate(old.axes) if one.var.name == axis]
    if not found:
        raise ScheduleError("split_axis", axis, f"the axes of {block} are {', '.join(a.var.name for a in old.axes)}")
    at = found[0]
    size = int_value(old.axes[at].extent)
    if size is None or not 1 <= factor <= size or (size % factor and old.axes[at].kind != "spatial"):
        raise ScheduleError("split_axis", axis, f"a factor of {factor} does not divide its extent")
    loops = _own_loops(path)
    binding = old.bindings[at]
    mine = [loop for loop in loops if loop.var is binding]
    users = [b for b in (*old.bindings, old.predicate) if isinstance(binding, Var) and binding in free_vars(b)]
    if not mine or len(users) != 1 or any(loop.kind != "serial" for loop in loops):
        raise ScheduleError("split_axis", axis, f"it has no plain loop of its own around {block} alone")
    taken = taken_names(func)
    kind = old.axes[at].kind
    count = -(-size // factor)
    outer = Axis(Var(axis), count, kind)
    inner = Axis(Var(f"{axis}_in"), factor, kind)
    outer_loop = For(Var(unique_name(f"{mine[0].var.name}_out", taken)), count, old)
    inner_loop = For(Var(unique_name(f"{mine[0].var.name}_in", taken)), factor, old)
    last = max(i for i, one in enumerate(old.axes) if one.kind == kind)
    axes, bindings = list(old.axes), list(old.bindings)
    axes[at], bindings[at] = outer, outer_loop.var
    axes.insert(last + 1, inner)
    bindings.insert(last + 1, inner_loop.var)
    known = ranges_of(func, [])
    for one in axes:
        known = known.with_loop(one.var, one.extent)
    value = add(mul(outer.var, index_expr(factor)), inner.var)
    rewrite = _Substitute({old.axes[at].var: value}, known)
    test = old.predicate
    if size % factor:
        test = logical_and(test, less(add(mul(outer_loop.var, index_expr(factor)), inner_loop.var), index_expr(size)))
    new = rebody(
        old.replace(axes=axes, bindings=bindings, predicate=test),
        rewrite.stmt(old.body),
        None if old.init is None else rewrite.stmt(old.init),
    )
    order = [outer_loop if loop is mine[0] else loop for loop in loops]
    place = max(i for i, loop in enumerate(order) if loop is outer_loop or _binds(new, loop, kind))
    order.insert(place + 1, inner_loop)
    made: Stmt = new
    for loop in reversed(order):
        made = loop.replace(body=made)
    first = path.index(loops[0])
    return Result(replace_last(func, path[: first + 1], made), axes={block: axis_loops(new)})


@primitive(str, str)
def last_axis(func: Func, block: str, axis: str) -> Result:
    """An axis of a block's domain as the last of its kind; the loops of the block follow.

    rewrite: for c in range(16): for h: S[c, h]  ->  for h: for c in range(16): S[c, h]
    """
    path = block_path(func, block, "last_axis")
    old = block_of(path)
    found = [at for at, one in enumerate(old.axes) if one.var.name == axis]
    if not found:
        raise ScheduleError("last_axis", axis, f"the axes of {block} are {', '.join(a.var.name for a in old.axes)}")
    at, kind = found[0], old.axes[found[0]].kind
    loops = _own_loops(path)
    mine = [loop for loop in loops if loop.var is old.bindings[at]]
    if not mine or kind == "ordered" or any(loop.kind != "serial" for loop in loops):
        raise ScheduleError("last_axis", axis, f"it has no plain loop of its own around {block} alone")
    if any(uses_any(one.extent, {loop.var for loop in loops}) for one in loops):
        raise ScheduleError("last_axis", axis, f"the loops around {block} depend on one another")
    last = max(i for i, one in enumerate(old.axes) if one.kind == kind)
    order = [i for i in range(len(old.axes)) if i != at]
    order.insert(last, at)
    new = old.replace(axes=[old.axes[i] for i in order], bindings=[old.bindings[i] for i in order])
    place = max(i for i, loop in enumerate(loops) if _binds(new, loop, kind))
    nest = [loop for loop in loops[: place + 1] if loop is not mine[0]] + mine + loops[place + 1 :]
    made: Stmt = new
    for loop in reversed(nest):
        made = loop.replace(body=made)
    first = path.index(loops[0])
    return Result(replace_last(func, path[: first + 1], made), axes={block: axis_loops(new)})


def _binds(block: Block, loop: For, kind: str) -> bool:
    return any(axis.kind == kind and binding is loop.var for axis, binding in zip(block.axes, block.bindings))


def _own_loops(path: list[Stmt]) -> list[For]:
    """The loops around a block that hold nothing else, outermost first."""
    chain: list[For] = []
    for stmt in reversed(path[:-1]):
        if not isinstance(stmt, For):
            break
        chain.insert(0, stmt)
    return chain


class _Substitute(Mutator):
    """Variables replaced, and what they stand in simplified."""

    def __init__(self, mapping: dict[Var, Expr], ranges: Ranges) -> None:
        self.mapping, self.ranges = mapping, ranges

    def expr(self, e: Expr) -> Expr:
        """An expression with the variables replaced."""
        made = substitute(e, self.mapping)
        return e if made is e else simplify(made, self.ranges)

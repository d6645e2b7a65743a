"""The primitives that compute more than is read, so that tiles come out even: pad, overrun."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.core.errors import ScheduleError
from weft.expr.bounds import Ranges, prove
from weft.expr.nodes import (
    LT,
    TRUE,
    Add,
    Buffer,
    Cast,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Mul,
    Select,
    TruncDiv,
    TruncMod,
    Var,
    add,
    ceildiv,
    const,
    floordiv,
    index_expr,
    int_value,
    is_true,
    less,
    less_equal,
    logical_and,
    maximum,
    minimum,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import map_all, substitute, uses_any, walk
from weft.loop.ir import Axis, Block, For, Func, Store
from weft.loop.regions import conjuncts
from weft.loop.tree import (
    axis_loops,
    block_of,
    block_path,
    blocks_in,
    loop_of,
    loop_path,
    loops_on,
    ranges_of,
    replace_last,
    writers,
)
from weft.loop.visit import BufferReplacer, Mutator, walk_exprs
from weft.schedule.primitives.inline import rebody
from weft.schedule.primitives.marks import has_opaque_access
from weft.schedule.registry import Result, primitive

LARGEST_FACTOR = 1 << 24
"""An axis is padded to a tile, not to a size that no memory holds."""
_DIVISIONS = (FloorDiv, FloorMod, TruncDiv, TruncMod)


def _loops(block: Block) -> list[str | None]:
    """The loops of a block's axes as `axis_loops` has them, and those of axes of which a later part is made."""
    plain = [b.a if isinstance(b, Add) and int_value(b.b) is not None else b for b in block.bindings]
    return axis_loops(block.replace(bindings=plain))


@primitive(str, str, int)
def pad(func: Func, block: str, loop: str, factor: int) -> Result:
    """Rounds the extent of an axis up to a multiple: what lies beyond its end is computed from zeros, or adds zero.

    rewrite: for j in range(10): B[j] = f(A[j])  ->  for j in range(12): B[j] = f(A[j] if j < 10 else 0)
             for k in range(10): C += A[k]       ->  for k in range(12): C += (A[k] if k < 10 else 0)
    """
    place = f"{block}, {loop}"
    found = block_of(block_path(func, block, "pad"))
    axis = _axis_of(func, found, loop, place)
    size = axis.extent
    if not 1 <= factor <= LARGEST_FACTOR:
        raise ScheduleError("pad", place, f"the factor is at least 1 and at most {LARGEST_FACTOR}")
    padded = simplify(mul(ceildiv(size, index_expr(factor)), index_expr(factor)))
    if structural_equal(padded, size):
        return Result(func, (), {block: _loops(found)})
    body = found.body
    if not isinstance(body, Store) or body.predicate is not None or not is_true(found.predicate):
        raise ScheduleError("pad", place, f"{block} has a test, or does more than store one value")
    _check_body(found, axis, place)
    ranges = Ranges()
    for other in found.axes:
        ranges = ranges.with_loop(other.var, padded if other is axis else other.extent)
    if axis.kind == "reduce":
        made, larger = _padded_sum(func, body, axis, size, ranges, place), {}
    else:
        larger = {body.buffer: _grown(func, found, body, axis, padded, place)}
        made = Store(body.buffer, body.indices, _Guard(axis.var, size, ranges, body.buffer).expr(body.value))
    wider = Axis(axis.var, padded, axis.kind)
    new = rebody(found, made, found.init).replace(axes=[wider if a is axis else a for a in found.axes])
    changed = replace_last(func, block_path(func, block, "pad"), new)
    path = loop_path(changed, loop, "pad")
    changed = replace_last(changed, path, loop_of(path).replace(extent=padded))
    if larger:
        changed = changed.replace(
            body=BufferReplacer(larger).stmt(changed.body),
            allocations=[larger.get(b, b) for b in changed.allocations],
        )
    return Result(changed, (), {block: _loops(new)})


@primitive(str, int, int)
def overrun(func: Func, block: str, axis: int, tile: int = 0) -> Result:
    """Computes an intermediate on past the end of an axis, as far as its loops go, or to the end of a `tile`: what is
    read there is the last place again (of another intermediate memory that nobody has written), and what is made there
    nobody reads. A tile at the edge then needs no test in its inner loops.

    rewrite: for io in range(ceil(n/8)): for i in range(8): C[io*8 + i] = f(A[io*8 + i]) where io*8 + i < n
             ->  for io in range(ceil(n/8)): for i in range(8): C[io*8 + i] = f(A[min(io*8 + i, n - 1)])
    """
    place = f"{block}, axis {axis}"
    path = block_path(func, block, "overrun")
    found = block_of(path)
    if not 0 <= axis < len(found.axes) or found.axes[axis].kind != "spatial":
        raise ScheduleError("overrun", place, f"{block} has no such axis of elements")
    old, binding, body = found.axes[axis], found.bindings[axis], found.body
    loops = loops_on(path)
    if not isinstance(body, Store) or body.predicate is not None:
        raise ScheduleError("overrun", place, f"{block} does more than store one value")
    _check_body(found, old, place, "overrun")
    ranges = ranges_of(func, loops)
    ends: dict[Var, Expr] = {loop.var: sub(loop.extent, index_expr(1)) for loop in loops}
    extent = simplify(add(substitute(binding, ends), index_expr(1)), ranges)
    tests = [t for t in conjuncts(found.predicate) if not _ends_axis(t, binding, old.extent, ranges)]
    if len(tests) == len(conjuncts(found.predicate)) or not prove(less(binding, extent), ranges):
        raise ScheduleError("overrun", place, "no test at the end of its loops holds it back")
    if tile > 0:
        whole = simplify(mul(ceildiv(old.extent, index_expr(tile)), index_expr(tile)), ranges)
        if structural_equal(whole, simplify(old.extent, ranges)):
            raise ScheduleError("overrun", place, "its tiles are whole")
        if not prove(less(binding, whole), ranges):
            extent, tests = whole, [*tests, less(binding, whole)]
    axes = [Axis(a.var, extent, a.kind) if a is old else a for a in found.axes]
    larger = {body.buffer: _grown(func, found, body, old, extent, place, "overrun")}
    loads = [load for load in walk_exprs(body, Load) if isinstance(load, Load) and load.buffer is not body.buffer]
    inner = {load.buffer for load in loads if load.buffer in func.allocations}
    for load in loads:
        if any(isinstance(e, Load) and e.buffer in inner for index in load.indices for e in walk(index)):
            raise ScheduleError("overrun", place, f"an index of {load.buffer.name} may be one that nobody has written")
        if load.buffer in inner and any(uses_any(index, {old.var}) for index in load.indices):
            larger[load.buffer] = _reached(func, larger.get(load.buffer, load.buffer), load, axes, place)
    again = _Again(old, {body.buffer, *inner}, ranges.with_loop(old.var, extent))
    made = Store(body.buffer, body.indices, again.expr(body.value))
    if again.read and any(loop.kind == "vectorized" and uses_any(binding, {loop.var}) for loop in loops):
        raise ScheduleError("overrun", place, "its neighbours are lanes, which would read one by one")
    new = rebody(found, made, found.init).replace(axes=axes, predicate=logical_and(*tests) if tests else TRUE)
    changed = replace_last(func, path, new)
    changed = changed.replace(
        body=BufferReplacer(larger).stmt(changed.body),
        allocations=[larger.get(b, b) for b in changed.allocations],
    )
    return Result(changed, (), {block: _loops(new)})


def _ends_axis(test: Expr, binding: Expr, extent: Expr, ranges: Ranges) -> bool:
    """Whether a test says that an axis ends: i < n, or of blocks i // 4 < n // 4 where they are whole."""
    if type(test) is not LT:
        return False
    blocks = [index_expr(1), *([extent.b] if type(extent) is Mul and type(extent.b) is Const else [])]
    return any(
        structural_equal(simplify(mul(test.b, block), ranges), simplify(extent, ranges))
        and structural_equal(simplify(test.a, ranges), simplify(floordiv(binding, block), ranges))
        for block in blocks
    )


def _reached(func: Func, buffer: Buffer, load: Load, axes: Sequence[Axis], place: str) -> Buffer:
    """An intermediate with room for what is read past its end: nobody writes there, nor reads what becomes of it."""
    ranges = ranges_of(func, [])
    for axis in axes:
        ranges = ranges.with_loop(axis.var, axis.extent)
    ends: dict[Var, Expr] = {axis.var: sub(axis.extent, index_expr(1)) for axis in axes}
    shape = list(buffer.shape)
    for at, index in enumerate(load.indices):
        end = simplify(add(substitute(index, ends), index_expr(1)))
        if buffer.strides is not None or not prove(less(index, end), ranges):
            raise ScheduleError("overrun", place, f"how far {buffer.name} is read is not clear")
        if not prove(less(index, shape[at]), ranges):  # and what is written must still have its room
            shape[at] = end if prove(less_equal(shape[at], end), ranges) else maximum(shape[at], end)
    return buffer.replace(shape=shape)


class _Again(Mutator):
    """Loads of parameters take a place that is there; `read` says whether there were any that did not."""

    def __init__(self, axis: Axis, own: Collection[Buffer], ranges: Ranges) -> None:
        self.axis, self.own, self.ranges, self.read = axis, own, ranges, False
        self.last: dict[Var, Expr] = {axis.var: minimum(axis.var, sub(axis.extent, index_expr(1)))}

    def visit_Load(self, e: Load) -> Expr:
        """A load."""
        if e.buffer in self.own or not any(uses_any(index, {self.axis.var}) for index in e.indices):
            return e
        self.read = True
        return Load(e.buffer, [substitute(index, self.last) for index in e.indices])

    def visit_Select(self, e: Select) -> Expr:
        """A choice: what is read only before the end is there. The last place again need not pass another test."""
        condition, inside = self.expr(e.condition), less(self.axis.var, self.axis.extent)
        is_there = prove(inside, self.ranges.with_condition(e.condition)) or self.expr(e.then) is e.then
        return Select(condition if is_there else logical_and(condition, inside), e.then, self.expr(e.otherwise))


def _axis_of(func: Func, block: Block, loop: str, place: str) -> Axis:
    """The axis that a loop of the block's own walks over, from end to end."""
    target = loop_of(loop_path(func, loop, "pad"))
    using = [(a, b) for a, b in zip(block.axes, block.bindings) if uses_any(b, {target.var})]
    if len(using) != 1 or using[0][1] is not target.var or using[0][0].kind == "ordered":
        raise ScheduleError("pad", place, f"{loop} is not the loop of an axis of {block.name}")
    if blocks_in(target.body) != [block] or target.kind != "serial":
        raise ScheduleError("pad", place, f"{loop} is marked, or has other blocks in it: pad before that")
    inner = [s for s in _chain(target) if uses_any(s.extent, {target.var})]
    if inner or not structural_equal(target.extent, using[0][0].extent):
        raise ScheduleError("pad", place, f"{loop} does not walk over the whole axis: pad before you move or split it")
    return using[0][0]


def _chain(loop: For) -> list[For]:
    """The loops directly inside a loop, one in the other."""
    found: list[For] = []
    body = loop.body
    while isinstance(body, For):
        found.append(body)
        body = body.body
    return found


def _check_body(block: Block, axis: Axis, place: str, what: str = "pad") -> None:
    for region in (*block.reads, *block.writes):
        if has_opaque_access(block, region.buffer):
            raise ScheduleError(what, place, f"{block.name} takes the address of {region.buffer.name}")
    for node in walk_exprs(block.body):
        if isinstance(node, _DIVISIONS) and any(type(e) is Load or e is axis.var for e in walk(node.b)):
            raise ScheduleError(what, place, f"{block.name} divides by {node.b!r}, which would be zero in the padding")


def _grown(func: Func, block: Block, store: Store, axis: Axis, padded: Expr, place: str, what: str = "pad") -> Buffer:
    """The buffer with room for the padding."""
    buffer = store.buffer
    dims = [d for d, index in enumerate(store.indices) if uses_any(index, {axis.var})]
    if buffer not in func.allocations or buffer.strides is not None:
        raise ScheduleError(what, place, f"{buffer.name} is a parameter, or laid out already: cache it first")
    if [b.name for b in writers(func.body, buffer)] != [block.name]:
        raise ScheduleError(what, place, f"{buffer.name} is written by other blocks too")
    if len(dims) != 1 or store.indices[dims[0]] is not axis.var:
        raise ScheduleError(what, place, f"{axis.var.name} is not by itself an index of {buffer.name}")
    shape = [padded if d == dims[0] else size for d, size in enumerate(buffer.shape)]
    return buffer.replace(shape=shape)


class _Guard(Mutator):
    """Loads that may lie beyond the end become 0 there."""

    def __init__(self, variable: Var, size: Expr, ranges: Ranges, own: Buffer) -> None:
        self.variable, self.size, self.ranges, self.own = variable, size, ranges, own

    def visit_Load(self, e: Load) -> Expr:
        """A load: as it is where every index stays inside."""
        made = Load(e.buffer, map_all(e.indices, self.expr))
        if e.buffer is self.own or self._stays_inside(made):
            return made
        return Select(less(self.variable, self.size), made, const(0, e.dtype))

    def visit_Select(self, e: Select) -> Expr:
        """A load that is padded already gets one test more."""
        condition, then, otherwise = self.expr(e.condition), self.expr(e.then), self.expr(e.otherwise)
        if _is_zero(otherwise) and type(then) is Select and _is_zero(then.otherwise) and type(e.then) is Load:
            return Select(logical_and(condition, then.condition), then.then, otherwise)
        return Select(condition, then, otherwise)

    def _stays_inside(self, e: Load) -> bool:
        return all(
            prove(less(index, size), self.ranges) and prove(index >= 0, self.ranges)
            for index, size in zip(e.indices, e.buffer.shape)
            if uses_any(index, {self.variable})
        )


def _padded_sum(func: Func, store: Store, axis: Axis, size: Expr, ranges: Ranges, place: str) -> Store:
    """A sum that goes on over zeros."""
    value, old = store.value, Load(store.buffer, store.indices)
    if type(value) is not Add or not (structural_equal(value.a, old) or structural_equal(value.b, old)):
        raise ScheduleError("pad", place, "only a sum can go on over zeros")
    term = value.b if structural_equal(value.a, old) else value.a
    guarded = _Guard(axis.var, size, ranges, store.buffer).expr(term)
    if not (structural_equal(guarded, term) and _is_zero_beyond(func, term, axis.var, size)):
        guarded = Select(less(axis.var, size), term, const(0, term.dtype))
    return Store(store.buffer, store.indices, Add(old, guarded))


def _is_zero_beyond(func: Func, term: Expr, variable: Var, size: Expr) -> bool:
    """Whether a product is zero beyond the end because both its factors were padded with zeros there."""
    if type(term) is not Mul:
        return False
    return all(_is_padded_load(func, side, variable, size) for side in (term.a, term.b))


def _is_padded_load(func: Func, e: Expr, variable: Var, size: Expr) -> bool:
    while type(e) is Cast:
        e = e.value
    if type(e) is not Load:
        return False
    makers = writers(func.body, e.buffer)
    if len(makers) != 1 or not isinstance(makers[0].body, Store) or not is_true(makers[0].predicate):
        return False
    stored = makers[0].body
    value = stored.value
    if type(value) is not Select or not _is_zero(value.otherwise):
        return False
    for read, written in zip(e.indices, stored.indices):
        if read is variable and isinstance(written, Var):
            limits = [t.b for t in conjuncts(value.condition) if type(t) is LT and t.a is written]
            if any(prove(less_equal(limit, size), Ranges()) for limit in limits):
                return True
    return False


def _is_zero(e: Expr) -> bool:
    """Whether an expression is the constant 0."""
    return type(e) is Const and e.value == 0

"""Moving a block under a loop: compute_at, reverse_compute_at, and the insertion that caching shares with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.core.errors import ScheduleError
from weft.expr.bounds import Ranges, prove
from weft.expr.nodes import (
    TRUE,
    Buffer,
    Const,
    Expr,
    FloorDiv,
    Load,
    Mul,
    Var,
    add,
    ceildiv,
    floordiv,
    index_expr,
    int_value,
    less,
    less_equal,
    logical_and,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import substitute, uses_any, walk
from weft.loop.ir import Block, For, Func, Region, Seq, Stmt, seq
from weft.loop.regions import accessed_region, conjuncts, greater, lesser, same_region, walked_box, written_box
from weft.loop.tree import (
    block_of,
    block_path,
    blocks_in,
    loop_of,
    loop_path,
    loops_on,
    ranges_of,
    readers,
    replace_last,
    taken_names,
    unique_name,
    writers,
)
from weft.schedule.primitives.limits import consumer_condition, consumer_limits
from weft.schedule.primitives.marks import check_marks
from weft.schedule.registry import Result, primitive

SHARED_BY = {"global": ("threadIdx", "vthread"), "shared": ("threadIdx", "vthread")}
"""Which threads wait for one another and see one instance of a buffer, by scope: a fill of it serves all of them."""


@primitive(str, str, bool, bool)
def compute_at(func: Func, block: str, loop: str, exact: bool = True, first: bool = False) -> Result:
    """Computes a producer inside a loop of its consumers: at each iteration just the part that the iteration needs.

    With exact=False it computes the whole tile also at the edges, where the consumer's test lets it read a part only
    (its own extent still ends it): a producer that is padded to whole vectors then needs no masks. With first=True it
    stands before everything in the loop, not just before its first consumer: a fetch that a pipeline takes ahead.

    rewrite: for i: B[i] = f(i)        ->  for i: B[i] = f(i)
             for i: C[i] = g(B[i])                C[i] = g(B[i])
    """
    path = block_path(func, block, "compute_at")
    moved = block_of(path)
    target = loop_of(loop_path(func, loop, "compute_at"))
    if any(s is moved for s in blocks_in(target)):
        raise ScheduleError("compute_at", f"{block}, {loop}", f"{block} is already inside {loop}")
    for region in moved.writes:
        if region.buffer in func.buffers:
            reason = f"{region.buffer.name} is an output, which has to be computed in full"
            raise ScheduleError("compute_at", f"{block}, {loop}", reason)
        inside = {id(b) for b in blocks_in(target)}
        for reader in readers(func.body, region.buffer):
            if id(reader) not in inside:
                reason = f"the consumer {reader.name} is not inside {loop}"
                raise ScheduleError("compute_at", f"{block}, {loop}", reason)
        if not any(id(b) in inside for b in readers(func.body, region.buffer)):
            raise ScheduleError("compute_at", f"{block}, {loop}", f"nothing inside {loop} reads {region.buffer.name}")
    _check_alone(func, moved, "compute_at", f"{block}, {loop}")
    rest = replace_last(func, path, None)
    result = insert_producer(rest, moved, loop, "compute_at", exact, first)
    check_marks(result.func, "compute_at", f"{block}, {loop}")
    return result


def _check_alone(func: Func, block: Block, what: str, place: str) -> None:
    """A block that moves must be the only writer of its outputs, and must not be half of a decomposed reduction."""
    for region in block.writes:
        others = [b.name for b in writers(func.body, region.buffer) if b is not block]
        if others:
            raise ScheduleError(what, place, f"{region.buffer.name} is also written by {', '.join(others)}")
    if any(axis.kind == "ordered" for axis in block.axes):
        raise ScheduleError(what, place, f"{block.name} is a recurrence and stays in its loop")


def insert_producer(
    func: Func, block: Block, loop: str | None, what: str, exact: bool = True, at_front: bool = False
) -> Result:
    """Puts a block that is not in the program before its consumers, under a loop (None: at the top)."""
    if loop is None:
        stmts = list(func.body.stmts) if isinstance(func.body, Seq) else [func.body]
        outer: list[For] = []
    else:
        path = loop_path(func, loop, what)
        target = loop_of(path)
        stmts = list(target.body.stmts) if isinstance(target.body, Seq) else [target.body]
        outer = loops_on(path)
    outputs = {r.buffer for r in block.writes}
    first = min(i for i, s in enumerate(stmts) if any(r.buffer in outputs for b in blocks_in(s) for r in b.reads))
    first = 0 if at_front else first
    inputs = {r.buffer for r in block.reads}
    for later in stmts[first:]:
        for producer in blocks_in(later):
            if any(r.buffer in inputs and not _earlier(block, producer, r.buffer, outer) for r in producer.writes):
                reason = f"it reads what {producer.name} computes, which comes after the place where it would go"
                raise ScheduleError(what, f"{block.name}, {loop}", reason)
    ranges = ranges_of(func, outer)
    needed = [_needed(seq(*stmts[first:]), region, outer, ranges, exact) for region in block.writes]
    scopes = {b.scope for b in outputs}
    shared = any(_serves(loop, scope) for loop in outer for scope in scopes)
    limits = {} if shared or not exact else consumer_limits(stmts[first:], block, ranges)
    condition = consumer_condition(stmts[first:], outputs, outer, ranges) if exact else TRUE
    nest, loops = make_nest(func, block, needed, block.writes, ranges, condition, limits)
    stmts.insert(first, nest)
    return _finish(func, loop, what, stmts, block, loops)


def _earlier(reader: Block, writer: Block, buffer: Buffer, outer: Sequence[For]) -> bool:
    """Whether a block reads of a buffer only what earlier iterations of a loop around both write: an earlier step.

    Somewhere what is written lies at the loop's variable, or a number beside it, and what is read before that.
    """

    def places(block: Block, regions: Sequence[Region]) -> list[list[tuple[Expr, bool]]]:
        at = {axis.var: value for axis, value in zip(block.axes, block.bindings)}
        boxes = [zip(r.mins, r.extents) for r in regions if r.buffer is buffer]
        return [[(substitute(first, at), int_value(size) == 1) for first, size in box] for box in boxes]

    steps = [loop.var for loop in outer if loop.kind == "serial"]

    def before(mine: tuple[Expr, bool], other: tuple[Expr, bool]) -> bool:
        (a, single), (b, alone) = mine, other
        follows = any(int_value(simplify(sub(b, step))) is not None for step in steps)
        return single and alone and follows and (int_value(simplify(sub(a, b))) or 0) < 0

    written = places(writer, writer.writes)
    return all(any(map(before, mine, other)) for mine in places(reader, reader.reads) for other in written)


def _finish(func: Func, loop: str | None, what: str, stmts: list[Stmt], block: Block, loops: list[str]) -> Result:
    made = seq(*stmts)
    if loop is None:
        return Result(func.replace(body=made), [block.name], {block.name: loops})
    path = loop_path(func, loop, what)
    return Result(replace_last(func, path, loop_of(path).replace(body=made)), [block.name], {block.name: loops})


def _serves(loop: For, scope: str) -> bool:
    """Whether the threads of a loop share one instance of a buffer in this scope."""
    return loop.thread is not None and loop.thread.split(".")[0] in SHARED_BY.get(scope, ())


def _needed(s: Stmt, region: Region, outer: list[For], ranges: Ranges, exact: bool) -> Region:
    """The part of a produced buffer that a statement reads; for memory that threads share, what all of them read."""
    over = {loop.var: None for loop in outer if _serves(loop, region.buffer.scope)}
    found = accessed_region(s, region.buffer, ranges, writes=False, over=over, tests=exact)
    return found if found is not None else Region(region.buffer, [0] * len(region.buffer.shape), region.buffer.shape)


def make_nest(
    func: Func,
    block: Block,
    needed: Sequence[Region],
    accesses: Sequence[Region],
    ranges: Ranges,
    condition: Expr = TRUE,
    limits: Mapping[Var, Sequence[Expr]] | None = None,
    whole_box: bool = False,
) -> tuple[Stmt, list[str]]:
    """A fresh loop nest around a block that covers what is needed of the boxes it accesses, where a condition holds.

    `limits` are greatest values of axes beyond which nothing is needed. With `whole_box` nothing outside the boxes may
    be touched; without, more of them is fine where that makes for simpler loops.
    """
    taken = taken_names(func)
    loops: list[For] = []
    bindings: list[Expr] = []
    ends: list[Expr] = []
    further: list[Expr] = conjuncts(condition)
    known = ranges
    for axis in block.axes:
        low, extent = index_expr(0), axis.extent
        if axis.kind == "spatial":
            low, extent = axis_range(axis.var, axis.extent, needed, accesses, ranges, whole_box)
        variable = Var(unique_name(axis.var.name, taken))
        loops.append(For(variable, extent, Seq(())))
        known = known.with_loop(variable, extent)
        value = simplify(add(low, variable), known)
        bindings.append(value)
        inside = known
        for limit in (limits or {}).get(axis.var, ()):
            if not prove(less_equal(value, limit), known):
                further.append(simplify(less(value, add(limit, index_expr(1))), known))
                inside = inside.with_condition(further[-1])
        ends += [t for t in (less(value, axis.extent), less_equal(index_expr(0), value)) if not prove(t, inside)]
    nest: Stmt = block.replace(bindings=bindings, predicate=_joined(ends, further, known))
    for made in reversed(loops):
        nest = made.replace(body=nest)
    return nest, [made.var.name for made in loops]


def _joined(ends: Sequence[Expr], further: Sequence[Expr], ranges: Ranges) -> Expr:
    """One predicate of the tests of the axes' ends and further ones, as far as these say something new."""
    predicate = logical_and(*ends)
    known = ranges.with_condition(predicate) if ends else ranges
    for term in further:
        if not prove(term, known):
            predicate = logical_and(term, predicate)
            known = known.with_condition(term)
    return predicate


def axis_range(
    variable: Var,
    extent: Expr,
    needed: Sequence[Region],
    accesses: Sequence[Region],
    ranges: Ranges,
    whole_box: bool = False,
) -> tuple[Expr, Expr]:
    """First value and count of a block axis, from the boxes needed of the buffers it indexes."""
    low: Expr | None = None
    last: Expr | None = None
    for want, access in zip(needed, accesses):
        span: tuple[Expr, Expr] | None = None
        for first, count, want_first, want_count in zip(access.mins, access.extents, want.mins, want.extents):
            solved = _solve(first, count, variable, want_first, want_count)
            if solved is not None:
                span = solved
                break
        if span is None or any(walk(end, Load) for end in span):
            return index_expr(0), extent  # what data chooses may be any of it
        low = span[0] if low is None else lesser(low, span[0], ranges)
        last = span[1] if last is None else greater(last, span[1], ranges)
        if whole_box:
            return simplify(low, ranges), simplify(add(sub(last, low), index_expr(1)), ranges)
    if low is None or last is None:
        return index_expr(0), extent
    low = simplify(low, ranges)
    count = simplify(add(sub(last, low), index_expr(1)), ranges)
    whole, size = int_value(extent), int_value(count)
    if whole is not None and size is not None and size >= whole:
        return index_expr(0), extent
    if size is None and any(ranges.get(v) is not None for v in _loop_variables(count)):
        from weft.expr.bounds import interval

        bound = interval(count, ranges)[1]
        if bound is None or (whole is not None and bound >= whole):
            return index_expr(0), extent
        count = index_expr(bound)
    return low, count


def _loop_variables(e: Expr) -> list[Var]:
    from weft.expr.visit import free_vars

    return list(free_vars(e))


def _solve(index: Expr, count: Expr, variable: Var, low: Expr, extent: Expr) -> tuple[Expr, Expr] | None:
    """The first and last value of a variable for which index .. index+count-1 meets low .. low+extent-1."""
    last = sub(add(low, extent), index_expr(1))
    length = int_value(count)
    if index is variable and length == 1:
        return low, last
    if type(index) is FloorDiv and index.a is variable and type(index.b) is Const and length == 1:
        factor = index.b
        return mul(low, factor), sub(mul(add(last, index_expr(1)), factor), index_expr(1))
    if (
        type(index) is Mul
        and index.a is variable
        and type(index.b) is Const
        and index.b.value > 0
        and length is not None
    ):
        factor = index.b
        return ceildiv(sub(add(low, index_expr(1)), count), factor), floordiv(last, factor)
    if index is variable and length is not None:
        return sub(add(low, index_expr(1)), count), last
    if not uses_any(index, {variable}):
        return None
    offset = int_value(simplify(sub(index, variable)))
    if offset is None or length != 1:
        return None
    return sub(low, index_expr(offset)), sub(last, index_expr(offset))


@primitive(str, str)
def reverse_compute_at(func: Func, block: str, loop: str) -> Result:
    """Computes a consumer inside a loop of its producer: at each iteration the part that is ready by then.

    rewrite: for i: B[i] = f(i)        ->  for i: B[i] = f(i)
             for i: C[i] = g(B[i])                C[i] = g(B[i])
    """
    place = f"{block}, {loop}"
    path = block_path(func, block, "reverse_compute_at")
    moved = block_of(path)
    if any(axis.kind != "spatial" for axis in moved.axes):
        raise ScheduleError("reverse_compute_at", place, f"{block} is not a plain computation of its elements")
    _check_alone(func, moved, "reverse_compute_at", place)
    target = loop_of(loop_path(func, loop, "reverse_compute_at"))
    if any(s is moved for s in blocks_in(target)):
        raise ScheduleError("reverse_compute_at", place, f"{block} is already inside {loop}")
    produced = _check_ready(func, moved, target, place)
    rest = replace_last(func, path, None)
    target_path = loop_path(rest, loop, "reverse_compute_at")
    target = loop_of(target_path)
    outer = loops_on(target_path)
    ranges = ranges_of(rest, outer)
    stmts = list(target.body.stmts) if isinstance(target.body, Seq) else [target.body]
    last = max(i for i, s in enumerate(stmts) if any(writers(s, r.buffer) for r in produced))
    needed = []
    condition: Expr = TRUE
    for region in produced:
        made, when = _ready_box(rest, target, region.buffer, outer, place)
        needed.append(made)
        condition = logical_and(condition, when)
    _check_same_points(produced, needed, place)
    nest, loops = make_nest(rest, moved, needed, produced, ranges, condition, whole_box=True)
    stmts.insert(last + 1, nest)
    result = _finish(rest, loop, "reverse_compute_at", stmts, moved, loops)
    check_marks(result.func, "reverse_compute_at", place)
    return result


def _ready_box(func: Func, target: For, buffer: Buffer, outer: list[For], place: str) -> tuple[Region, Expr]:
    """The box of a buffer that one iteration of a loop completes, and when it does; an error where it is no box."""
    box: Region | None = None
    condition: Expr = TRUE
    for maker in writers(target.body, buffer):
        inner = loops_on(block_path(func, maker.name, "reverse_compute_at"))[len(outer) :]
        walked = walked_box(maker, inner, ranges_of(func, [*outer, *inner]))
        written = None if walked is None else written_box(maker, buffer, walked[0])
        if walked is None or written is None or (box is not None and not same_region(box, written)):
            reason = f"one iteration of {target.var.name} computes no box of {buffer.name}: choose a loop further out"
            raise ScheduleError("reverse_compute_at", place, reason)
        box = written
        condition = logical_and(condition, walked[1])
    assert box is not None
    return box, condition


def _check_same_points(reads: Sequence[Region], ready: Sequence[Region], place: str) -> None:
    """All inputs of a block that are ready must be ready at the same values of its axes."""
    known: dict[Expr, tuple[Expr, Expr]] = {}
    for read, box in zip(reads, ready):
        for axis, low, extent in zip(read.mins, box.mins, box.extents):
            first = known.setdefault(axis, (low, extent))
            if not structural_equal(first[0], low) or not structural_equal(first[1], extent):
                reason = f"the part of {box.buffer.name} that is ready is not that of the other inputs"
                raise ScheduleError("reverse_compute_at", place, reason)


def _check_covered(block: Block, read: Region, makers: Sequence[Block], place: str) -> None:
    """A block with elements beside those of its producer (padding, say) would lose them: no iteration makes them."""
    extents: dict[Expr, Expr] = {axis.var: axis.extent for axis in block.axes}
    for maker in makers:
        made: dict[Expr, Expr] = {axis.var: axis.extent for axis in maker.axes}
        written = next(w for w in maker.writes if w.buffer is read.buffer)
        for at, index, size in zip(read.mins, written.mins, read.buffer.shape):
            left = int_value(simplify(sub(made.get(index, size), extents[at])))
            if left is None or left < 0:
                reason = (
                    f"{block.name} has elements beyond those of {read.buffer.name}, which no iteration would compute"
                )
                raise ScheduleError("reverse_compute_at", place, reason)


def _check_ready(func: Func, block: Block, target: For, place: str) -> list[Region]:
    """The reads of a block that are produced inside a loop; an error where they are not complete there."""
    inside = {id(b): b for b in blocks_in(target)}
    produced: list[Region] = []
    position = {id(b): i for i, b in enumerate(blocks_in(func.body))}
    for region in block.reads:
        makers = writers(func.body, region.buffer)
        within = [b for b in makers if id(b) in inside]
        if within and len(within) != len(makers):
            raise ScheduleError(
                "reverse_compute_at", place, f"only part of {region.buffer.name} is computed inside {target.var.name}"
            )
        if not within and any(position[id(b)] > position[id(next(iter(inside.values())))] for b in makers):
            raise ScheduleError("reverse_compute_at", place, f"{region.buffer.name} is computed later")
        if within:
            axes = {axis.var for axis in block.axes}
            plain = all(int_value(e) == 1 for e in region.extents) and all(m in axes for m in region.mins)
            if not plain or any(r.buffer is region.buffer for r in produced):
                reason = (
                    f"it reads {region.buffer.name} at more than its own index: one iteration of the loop is not enough"
                )
                raise ScheduleError("reverse_compute_at", place, reason)
            _check_covered(block, region, within, place)
            produced.append(region)
    if not produced:
        raise ScheduleError(
            "reverse_compute_at", place, f"nothing that {block.name} reads is computed inside {target.var.name}"
        )
    path = loop_path(func, target.var.name, "reverse_compute_at")
    outer = {loop.var for loop in loops_on(path)}
    for maker in inside.values():
        if not any(r.buffer is w.buffer for w in maker.writes for r in produced):
            continue
        for axis, binding in zip(maker.axes, maker.bindings):
            if axis.kind != "spatial" and uses_any(binding, outer):
                reason = (
                    f"{maker.name} is still being reduced along a loop around {target.var.name}: choose a loop outside"
                )
                raise ScheduleError("reverse_compute_at", place, reason)
    readers_before = [
        b.name
        for b in blocks_in(func.body)
        for w in block.writes
        if b is not block and any(r.buffer is w.buffer for r in b.reads) and id(b) in inside
    ]
    if readers_before:
        raise ScheduleError(
            "reverse_compute_at", place, f"{', '.join(readers_before)} inside the loop already reads it"
        )
    return produced


__all__ = ["compute_at", "insert_producer", "make_nest", "reverse_compute_at", "axis_range"]

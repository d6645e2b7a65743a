"""Primitives that stage data in another memory: cache_read, cache_write."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core.errors import ScheduleError
from weft.expr.nodes import TRUE, Buffer, Expr, Load, Var, int_value
from weft.loop.ir import Axis, Block, For, Func, Region, Seq, Stmt, Store, seq
from weft.loop.regions import walked_box, written_box
from weft.loop.tree import (
    axis_loops,
    block_of,
    block_path,
    blocks_in,
    buffer_named,
    loops_on,
    map_bindings,
    ranges_of,
    readers,
    reduction_loops,
    replace_last,
    taken_names,
    unique_name,
    writers,
)
from weft.loop.visit import BufferReplacer
from weft.schedule.primitives.attach import insert_producer, make_nest
from weft.schedule.primitives.independence import covers_axes
from weft.schedule.primitives.layout import check_no_gaps
from weft.schedule.registry import Result, primitive


def _copy_block(name: str, source: Buffer, target: Buffer) -> Block:
    axes = [Axis(Var(f"i{d}"), size) for d, size in enumerate(source.shape)]
    at = [axis.var for axis in axes]
    ones = [1] * len(at)
    body = Store(target, at, Load(source, at))
    return Block(name, axes, at, [Region(source, at, ones)], [Region(target, at, ones)], body)


def _scope_name(buffer: Buffer, scope: str, what: str) -> str:
    if not scope or not scope.replace(".", "_").isidentifier():
        raise ScheduleError(what, buffer.name, f"{scope!r} is not the name of a scope")
    return f"{buffer.name}_{scope.replace('.', '_')}"


@primitive(str, str, Sequence[str] | None)
def cache_read(func: Func, buffer: str, scope: str, consumers: Sequence[str] | None = None) -> Result:
    """Copies a buffer into another memory and lets the consumers read the copy; compute_at then makes it a tile.

    rewrite: for i: C[i] = f(A[i])  ->  for i: A_shared[i] = A[i]
                                        for i: C[i] = f(A_shared[i])
    """
    source = buffer_named(func, buffer, "cache_read")
    check_no_gaps(func, source, "cache_read")
    name = _scope_name(source, scope, "cache_read")
    wanted = list(consumers) if consumers is not None else [b.name for b in readers(func.body, source)]
    chosen = [block_path(func, c, "cache_read")[-1] for c in wanted]
    for block in chosen:
        assert isinstance(block, Block)
        if all(r.buffer is not source for r in block.reads):
            raise ScheduleError("cache_read", f"{buffer}, {scope}", f"the block {block.name} does not read {buffer}")
        if any(r.buffer is source for r in block.writes):
            raise ScheduleError("cache_read", f"{buffer}, {scope}", f"the block {block.name} also writes {buffer}")
    if not chosen:
        raise ScheduleError("cache_read", f"{buffer}, {scope}", f"nothing reads {buffer}")
    label = unique_name(name, taken_names(func))
    cached = Buffer(label, source.dtype, source.shape, scope)
    replacer = BufferReplacer({source: cached})
    ids = {id(b) for b in chosen}

    def change(block: Block, _: list[For]) -> Block:
        made = replacer.stmt(block) if id(block) in ids else block
        assert isinstance(made, Block)
        return made

    new = func.replace(body=map_bindings(func.body, change, []), allocations=[*func.allocations, cached])
    at = _common_loop(new, [b.name for b in writers(func.body, source)] + wanted, bool(writers(func.body, source)))
    result = insert_producer(new, _copy_block(label, source, cached), at, "cache_read")
    return Result(result.func, [label], result.axes)


def _common_loop(func: Func, names: Sequence[str], produced: bool) -> str | None:
    """The innermost loop around all of these blocks, where one of them makes the data; else the top of the program."""
    if not produced:
        return None
    common: list[For] | None = None
    for name in names:
        loops = loops_on(block_path(func, name, "cache_read"))
        common = loops if common is None else [a for a, b in zip(common, loops) if a is b]
    return common[-1].var.name if common else None


@primitive(str, str)
def cache_write(func: Func, buffer: str, scope: str) -> Result:
    """Computes into another memory and copies the result out; the computing block takes the new name.

    rewrite: for i: C[i] = f(i)  ->  for i: C_local[i] = f(i)
                                     for i: C[i] = C_local[i]
    """
    target = buffer_named(func, buffer, "cache_write")
    check_no_gaps(func, target, "cache_write")
    name = _scope_name(target, scope, "cache_write")
    makers = writers(func.body, target)
    if len(makers) != 1:
        reason = "nothing writes it" if not makers else f"several blocks write it ({', '.join(b.name for b in makers)})"
        raise ScheduleError("cache_write", f"{buffer}, {scope}", reason)
    maker = makers[0]
    if len(maker.writes) != 1 and len({r.buffer for r in maker.writes}) != 1:
        raise ScheduleError("cache_write", f"{buffer}, {scope}", f"the block {maker.name} writes several buffers")
    if any(axis.kind == "ordered" for axis in maker.axes):
        raise ScheduleError(
            "cache_write", f"{buffer}, {scope}", f"{maker.name} is a recurrence that reads its own past"
        )
    taken = taken_names(func)
    label = unique_name(name, taken)
    cached = Buffer(label, target.dtype, target.shape, scope)
    copy = _copy_block(maker.name, cached, target)
    path = block_path(func, maker.name, "cache_write")
    moved = BufferReplacer({target: cached}).stmt(maker)
    assert isinstance(moved, Block)
    new = replace_last(func, path, moved.replace(name=label))
    new = new.replace(allocations=[*func.allocations, cached])
    made, loops = _insert_after(new, label, cached, copy)
    return Result(made, [label], {maker.name: loops, label: axis_loops(moved)})


def _insert_after(func: Func, block: str, cached: Buffer, copy: Block) -> tuple[Func, list[str]]:
    """Puts the copy right after the outermost loop that belongs to the computing block alone.

    It must come after every reduction loop, and where the loops so far have computed a whole box: if need be it goes
    further out, though not past a block that reads the result.
    """
    path = block_path(func, block, "cache_write")
    position = len(path) - 1
    while position > 0 and isinstance(path[position - 1], For) and len(blocks_in(path[position - 1])) == 1:
        position -= 1
    target = copy.writes[0].buffer
    found = _complete(func, path, position, cached)
    while found is None:
        if position == 0 or readers(path[position - 1], target):
            reason = f"what {block} computes there is no box: cache it before you fuse or move it"
            raise ScheduleError("cache_write", f"{target.name}, {cached.scope}", reason)
        position -= 1
        found = _complete(func, path, position, cached)
    computed, condition = found
    anchor = path[position]
    parent = path[position - 1] if position > 0 else None
    ranges = ranges_of(func, loops_on(path[:position]))
    nest, loops = make_nest(func, copy, [computed], copy.reads, ranges, condition, whole_box=True)
    if isinstance(parent, Seq):
        made = seq(*[s for child in parent.stmts for s in ((child, nest) if child is anchor else (child,))])
        return replace_last(func, path[:position], made), loops
    return replace_last(func, path[: position + 1], seq(anchor, nest)), loops


def _complete(func: Func, path: list[Stmt], position: int, cached: Buffer) -> tuple[Region, Expr] | None:
    """The box of a buffer that the block at the end of a path has computed after the statement at a position, and when.

    None where it is not complete there, or no box. At the top of the program all there is has been computed.
    """
    block = block_of(path)
    outer, inner = loops_on(path[:position]), loops_on(path[position:])
    if reduction_loops(block, outer):
        return None
    ranges = ranges_of(func, [*outer, *inner])
    walked = walked_box(block, inner, ranges)
    box = None if walked is None else written_box(block, cached, walked[0])
    if walked is not None and box is not None:
        return box, walked[1]
    if outer or not covers_axes(func, block, inner) or _leaves_gaps(block, cached):
        return None
    return Region(cached, [0] * len(cached.shape), cached.shape), TRUE


def _leaves_gaps(block: Block, buffer: Buffer) -> bool:
    """Whether a block has too few points to write all of a buffer: a border of it, say, is somebody else's."""
    points = [int_value(axis.extent) for axis in block.axes if axis.kind != "reduce"]
    widths = [int_value(n) for region in block.writes if region.buffer is buffer for n in region.extents]
    sizes = [int_value(size) for size in buffer.shape]
    counts = [math.prod(n for n in numbers if n is not None) for numbers in (points, widths, sizes)]
    return None not in points + widths + sizes and counts[0] * counts[1] < counts[2]

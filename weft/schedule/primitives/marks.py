"""Primitives that mark loops, blocks and buffers: parallel, vectorize, unroll, bind, annotations, scopes, alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import ScheduleError
from weft.expr.bounds import prove
from weft.expr.nodes import Buffer, int_value, less_equal
from weft.expr.visit import uses_any
from weft.loop.ir import THREAD_TAGS, Block, For, Func
from weft.loop.tree import (
    axes_using,
    block_of,
    block_path,
    blocks_in,
    buffer_named,
    loop_of,
    loop_path,
    loops_in,
    loops_on,
    ranges_of,
    replace_last,
)
from weft.loop.visit import BufferReplacer
from weft.schedule.primitives.independence import keeps_apart
from weft.schedule.registry import Result, plain, primitive

LARGEST_PADDING = 1 << 20


def check_independent(func: Func, loop: For, what: str) -> None:
    """Raises unless the iterations of a loop may run at once: nothing is reduced, ordered or overwritten along it."""
    name = loop.var.name
    outside: set[Buffer] | None = None
    for block in blocks_in(loop.body):
        used = axes_using(block, {loop.var})
        if used["reduce"]:
            reason = f"the block {block.name} reduces along it, so its iterations would race: use rfactor first"
            raise ScheduleError(what, name, reason)
        if used["ordered"]:
            raise ScheduleError(what, name, f"the block {block.name} runs along it in order (it is a recurrence)")
        if int_value(loop.extent) in (0, 1):
            continue
        outside = _used_outside(func, loop) if outside is None else outside
        shared = [region.buffer.name for region in block.writes if region.buffer in outside]
        if not shared:
            continue
        inner = loops_on(block_path(func, block.name, what))[len(loops_on(loop_path(func, name, what))) :]
        if not used["spatial"] or not keeps_apart(func, block, loop, inner):
            reason = f"several iterations would write the same elements of {shared[0]} (block {block.name})"
            raise ScheduleError(what, name, reason)


def check_marks(func: Func, what: str, place: str) -> None:
    """Raises if loops that run at once may do so no longer: a block that moves away may leave its producers behind.

    What was made and used inside one iteration, in memory of its own, is then shared by all.
    """
    for loop in loops_in(func.body):
        if loop.kind in ("parallel", "vectorized", "thread") or "zigzag" in loop.annotations:
            try:
                check_independent(func, loop, what)
            except ScheduleError as error:
                reason = f"{loop.var.name} is {loop.kind}, and without this block {error.reason}"
                raise ScheduleError(what, place, reason) from None


def _used_outside(func: Func, loop: For) -> set[Buffer]:
    inside = set(map(id, blocks_in(loop.body)))
    found = set(func.buffers)
    for block in blocks_in(func.body):
        if id(block) not in inside:
            found.update(r.buffer for r in (*block.reads, *block.writes))
    return found


def _mark(func: Func, loop: str, kind: str, primitive_name: str, check: bool = True) -> Result:
    path = loop_path(func, loop, primitive_name)
    found = loop_of(path)
    if found.kind not in ("serial", kind):
        raise ScheduleError(primitive_name, loop, f"the loop is already {found.kind}")
    if check:
        check_independent(func, found, primitive_name)
    return Result(replace_last(func, path, found.replace(kind=kind)))


@primitive(str)
def parallel(func: Func, loop: str) -> Result:
    """The loop's iterations run on several threads.

    rewrite: for i in range(n): S  ->  for i in range(n) parallel: S
    """
    return _mark(func, loop, "parallel", "parallel")


@primitive(str)
def vectorize(func: Func, loop: str) -> Result:
    """The loop's iterations become the lanes of vectors; its extent must be a constant.

    rewrite: for i in range(16): S  ->  for i in range(16) vectorized: S
    """
    found = loop_of(loop_path(func, loop, "vectorize"))
    if int_value(found.extent) is None:
        raise ScheduleError("vectorize", loop, f"the extent {found.extent!r} is not a constant: split the loop first")
    return _mark(func, loop, "vectorized", "vectorize")


@primitive(str)
def unroll(func: Func, loop: str) -> Result:
    """The loop's iterations become copies of the body; its extent must be a constant.

    rewrite: for i in range(4): S  ->  for i in range(4) unrolled: S
    """
    found = loop_of(loop_path(func, loop, "unroll"))
    if int_value(found.extent) is None:
        raise ScheduleError("unroll", loop, f"the extent {found.extent!r} is not a constant: split the loop first")
    return _mark(func, loop, "unrolled", "unroll", check=False)


@primitive(str, str)
def bind(func: Func, loop: str, thread: str) -> Result:
    """The loop's iterations become threads of a GPU-like device ("threadIdx.x", "blockIdx.y", …) or virtual threads.

    rewrite: for i in range(32): S  ->  for i in range(32) thread threadIdx.x: S
    """
    if thread not in THREAD_TAGS:
        raise ScheduleError("bind", loop, f"unknown thread axis {thread!r}; known are {', '.join(THREAD_TAGS)}")
    path = loop_path(func, loop, "bind")
    found = loop_of(path)
    if found.kind != "serial":
        raise ScheduleError("bind", loop, f"the loop is already {found.kind}")
    if thread == "vthread" and int_value(found.extent) is None:
        raise ScheduleError(
            "bind", loop, f"virtual threads are a constant number, not {found.extent!r}: split the loop first"
        )
    check_independent(func, found, "bind")
    outside = [outer for outer in loops_on(path[:-1]) if outer.thread is not None]
    inside = [inner for inner in loops_in(found.body) if inner.thread is not None]
    if thread.startswith("blockIdx"):
        for other in [o for o in (*outside, *inside) if o.thread == thread]:
            raise ScheduleError(
                "bind", loop, f"the loop {other.var.name} of the same nest is already bound to {thread}"
            )
    check_thread_order([*outside, found.replace(thread=thread)], inside, "bind", loop)
    if thread.startswith("threadIdx"):
        for other in [o for o in outside if o.thread == thread]:
            _check_cooperation(func, other, found, thread)
        for other in [i for i in inside if i.thread == thread]:
            _check_cooperation(func, found, other, thread)
    return Result(replace_last(func, path, found.replace(kind="thread", thread=thread)))


def check_thread_order(outer: Sequence[For], inner: Sequence[For], what: str, place: str) -> None:
    """Raises where a loop over blocks of threads would stand inside a loop over the threads of a block."""
    loops = [*outer, *inner]
    for position, loop in enumerate(outer):
        if str(loop.thread).startswith("blockIdx"):
            continue
        for later in loops[position + 1 :]:
            if str(later.thread).startswith("blockIdx"):
                names = f"{later.var.name} ({later.thread})", f"{loop.var.name} ({loop.thread})"
                raise ScheduleError(what, place, f"{names[0]} would stand inside {names[1]}: reorder them")


def _check_cooperation(func: Func, outer: For, inner: For, thread: str) -> None:
    """A loop inside another of its tag is the same thread: only right for work that all threads share among them."""
    name = inner.var.name
    for block in blocks_in(inner.body):
        if any(uses_any(binding, {outer.var}) for binding in (*block.bindings, block.predicate)):
            reason = (
                f"{block.name} also runs along {outer.var.name}, bound to {thread} as well: the two would be one thread"
            )
            raise ScheduleError("bind", name, reason)
        for region in block.writes:
            if region.buffer.scope not in ("shared", "global"):
                reason = (
                    f"{region.buffer.name} is {region.buffer.scope}, each thread has its own: it cannot be shared out"
                )
                raise ScheduleError("bind", name, reason)
    if not prove(less_equal(inner.extent, outer.extent), ranges_of(func, [])):
        reason = (
            f"it has {inner.extent!r} iterations and {outer.var.name} around it only {outer.extent!r} threads: split it"
        )
        raise ScheduleError("bind", name, reason)


@primitive(str, str, Any)
def annotate(func: Func, target: str, key: str, value: Any) -> Result:
    """A hint on a loop (by its name) or a block: later passes and targets look for the keys they know.

    rewrite: for i in range(n): S  ->  for i in range(n) @{"key": value}: S
    """
    names = {b.name for b in blocks_in(func.body)}
    if target in names:
        path = block_path(func, target, "annotate")
        block = block_of(path)
        return Result(replace_last(func, path, block.replace(annotations={**block.annotations, key: plain(value)})))
    path = loop_path(func, target, "annotate")
    loop = loop_of(path)
    return Result(replace_last(func, path, loop.replace(annotations={**loop.annotations, key: plain(value)})))


@primitive(str, Sequence[int], Sequence[int] | None)
def software_pipeline(func: Func, loop: str, stages: Sequence[int], order: Sequence[int] | None = None) -> Result:
    """Says at which pipeline stage (and in which order) each statement of a loop's body runs; targets may use it.

    rewrite: for i: {A; B}  ->  for i @{"software_pipeline_stage": [0, 1]}: {A; B}
    """
    path = loop_path(func, loop, "software_pipeline")
    found = loop_of(path)
    count = len(getattr(found.body, "stmts", (found.body,)))
    places = list(range(count)) if order is None else list(order)
    if len(stages) != count or sorted(places) != list(range(count)):
        reason = f"the body has {count} statements; give one stage for each, and an order that names each once"
        raise ScheduleError("software_pipeline", loop, reason)
    if any(not isinstance(s, int) or s < 0 for s in stages):
        raise ScheduleError("software_pipeline", loop, "stages are whole numbers from 0")
    notes = {**found.annotations, "software_pipeline_stage": list(stages), "software_pipeline_order": places}
    return Result(replace_last(func, path, found.replace(annotations=notes)))


@primitive(str, str, int, str | None)
def prefetch(func: Func, buffer: str, loop: str, distance: int = 1, outer: str | None = None) -> Result:
    """Fetches into the cache what the loop will load from a buffer some iterations later.

    rewrite: for i: S[B[i]]  ->  for i @{"prefetch": [["B", 1]]}: S[B[i]]   (each iteration fetches B[i + 1])

    With `outer`, a loop further out, the distance counts iterations of that loop, which share the fetches.
    """
    buffer_named(func, buffer, "prefetch")
    path = loop_path(func, loop, "prefetch")
    found = loop_of(path)
    if isinstance(distance, bool) or not isinstance(distance, int) or distance < 1:
        raise ScheduleError(
            "prefetch", f"{buffer}, {loop}", f"the distance is a whole number of at least 1, not {distance!r}"
        )
    if outer is not None and outer not in {one.var.name for one in loops_on(path[:-1])}:
        raise ScheduleError("prefetch", f"{buffer}, {loop}", f"there is no loop {outer} around {loop}")
    note = [buffer, distance] if outer is None else [buffer, distance, outer, distance]
    notes = {**found.annotations, "prefetch": [*found.annotations.get("prefetch", []), note]}
    return Result(replace_last(func, path, found.replace(annotations=notes)))


@primitive(str, str | None)
def zigzag(func: Func, loop: str, by: str | None = None) -> Result:
    """A loop runs backwards in every second iteration of a loop around it: it begins with what is still in the cache.

    Without `by` it does so in every second call of the model that the program is a part of. Of a parallel loop every
    thread turns its share.

    rewrite: for t: for i in range(n): S  ->  for t: for i in range(n) @{"zigzag": "t"}: S
    """
    path = loop_path(func, loop, "zigzag")
    found = loop_of(path)
    if by is not None and by not in [s.var.name for s in loops_on(path[:-1])]:
        raise ScheduleError("zigzag", f"{loop}, {by}", f"{by} is not a loop around {loop}")
    if found.kind not in ("serial", "parallel"):
        raise ScheduleError("zigzag", f"{loop}, {by}", f"the loop is {found.kind}, and its order is not given")
    check_independent(func, found, "zigzag")
    return Result(replace_last(func, path, found.replace(annotations={**found.annotations, "zigzag": by})))


@primitive(str, str)
def set_scope(func: Func, buffer: str, scope: str) -> Result:
    """Puts an intermediate buffer into another memory.

    rewrite: allocate B: float32[n]  ->  allocate B: float32[n] shared
    """
    old = buffer_named(func, buffer, "set_scope")
    if old not in func.allocations:
        raise ScheduleError("set_scope", buffer, "it is a parameter: its memory belongs to the caller")
    if not scope or not scope.replace(".", "_").isidentifier():
        raise ScheduleError("set_scope", buffer, f"{scope!r} is not the name of a scope")
    return Result(swap_buffer(func, old, old.replace(scope=scope)))


@primitive(str, int, int, int)
def storage_align(func: Func, buffer: str, dim: int, factor: int, offset: int = 0) -> Result:
    """Makes the stride of a dimension equal to `offset` modulo `factor`, by padding: against bank and set conflicts.

    rewrite: allocate B: float32[64, 64]  ->  B with row stride 65 for (dim=0, factor=32, offset=1)
    """
    old = buffer_named(func, buffer, "storage_align")
    if old not in func.allocations:
        raise ScheduleError("storage_align", buffer, "it is a parameter: its layout belongs to the caller")
    rank = len(old.shape)
    if not -rank <= dim < rank or dim % rank == rank - 1:
        raise ScheduleError("storage_align", buffer, f"dimension {dim} has no stride to pad in {rank} dimensions")
    if not 1 <= factor <= LARGEST_PADDING or not 0 <= offset < factor:
        reason = f"needs 1 <= factor <= {LARGEST_PADDING} and 0 <= offset < factor, not {factor} and {offset}"
        raise ScheduleError("storage_align", buffer, reason)
    notes = dict(func.annotations.get("storage_align", {}))
    notes[buffer] = [*notes.get(buffer, []), [dim % rank, factor, offset]]
    return Result(func.replace(annotations={**func.annotations, "storage_align": notes}))


@primitive(str)
def double_buffer(func: Func, buffer: str) -> Result:
    """Gives an intermediate two halves, so that the next tile is loaded while this one is used.

    rewrite: for k: {load B[k]; use B}  ->  load B[0]; for k: {load the other half with B[k+1]; use this half}
    """
    old = buffer_named(func, buffer, "double_buffer")
    if old not in func.allocations:
        raise ScheduleError("double_buffer", buffer, "it is a parameter: only intermediates can be doubled")
    names = [*func.annotations.get("double_buffer", []), buffer]
    return Result(func.replace(annotations={**func.annotations, "double_buffer": names}))


def swap_buffer(func: Func, old: Buffer, new: Buffer) -> Func:
    """The program with one intermediate replaced by another declaration of it."""
    body = BufferReplacer({old: new}).stmt(func.body)
    return func.replace(body=body, allocations=tuple(new if b is old else b for b in func.allocations))


def has_opaque_access(block: Block, buffer: Buffer) -> bool:
    """Whether a block takes the address of a buffer instead of loading and storing elements."""
    from weft.expr.nodes import Address
    from weft.loop.visit import walk_exprs

    parts = [block.body] if block.init is None else [block.init, block.body]
    return any(type(e) is Address and e.buffer is buffer for part in parts for e in walk_exprs(part, Address))


__all__ = [
    "annotate", "bind", "check_independent", "check_marks", "double_buffer", "has_opaque_access", "parallel",
    "prefetch", "set_scope", "software_pipeline", "storage_align", "swap_buffer", "unroll", "vectorize",
    "zigzag",
]  # fmt: skip

"""Primitives that dissolve a block into another: compute_inline, reverse_compute_inline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.core.errors import ScheduleError
from weft.expr.nodes import Buffer, Expr, Load, Var, index_expr, int_value
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import map_all, substitute, walk
from weft.loop.ir import Axis, Block, For, Func, Stmt, Store, seq
from weft.loop.regions import block_regions
from weft.loop.tree import (
    axis_loops,
    block_of,
    block_path,
    blocks_in,
    map_bindings,
    readers,
    replace_last,
    taken_names,
    unique_name,
    without_buffers,
    writers,
)
from weft.loop.visit import BufferReplacer, Mutator, walk_stmts
from weft.schedule.primitives.marks import check_marks, has_opaque_access
from weft.schedule.registry import Result, primitive

SHARED = ("global", "shared")
"""Memory that all threads of a block see."""


class _Inline(Mutator):
    """Replaces loads of a buffer by the expression that computes the element."""

    def __init__(self, buffer: Buffer, variables: tuple[Var, ...], value: Expr) -> None:
        self.buffer, self.variables, self.value = buffer, variables, value

    def visit_Load(self, e: Load) -> Expr:
        """A load of the buffer becomes the value at its indices."""
        indices = map_all(e.indices, self.expr)
        if e.buffer is not self.buffer:
            return e if indices is e.indices else Load(e.buffer, indices)
        return substitute(self.value, dict(zip(self.variables, indices)))


def _plain_store(block: Block, what: str) -> Store:
    """The one store of a block that computes each element by itself; an error if the block does more."""
    store = block.body
    if any(axis.kind != "spatial" for axis in block.axes) or block.init is not None:
        raise ScheduleError(
            what, block.name, f"{block.name} is a reduction or recurrence, not a value for each element"
        )
    if not isinstance(store, Store) or store.predicate is not None:
        raise ScheduleError(what, block.name, f"{block.name} does more than store one value")
    if any(node.buffer is store.buffer for node in walk(store.value, Load)):  # type: ignore[attr-defined]
        raise ScheduleError(what, block.name, f"{block.name} updates {store.buffer.name} in place")
    return store


@primitive(str)
def compute_inline(func: Func, block: str) -> Result:
    """A producer's expression put in place of the loads of its result; the producer goes away.

    rewrite: for i: B[i] = f(i)        ->  for i: C[i] = g(f(i))
             for i: C[i] = g(B[i])

    An output goes into a copy of it (cache_read) that some loops fill whole, row by row say, and is stored from there:

    rewrite: for i, j: B[i, j] = f(i, j)           for i: for j: B_shared[i, j] = f(i, j)
             for i: for j: B_shared[i, j] = B[i, j]       for j: B[i, j] = B_shared[i, j]
                    ...                        ->         ...
    """
    path = block_path(func, block, "compute_inline")
    producer = block_of(path)
    store = _plain_store(producer, "compute_inline")
    if store.buffer in func.buffers:
        func = _stored_from_copy(func, producer, store)
        path = block_path(func, block, "compute_inline")
        producer = block_of(path)
        store = _plain_store(producer, "compute_inline")
    alone = {i for i in store.indices if isinstance(i, Var)}
    ones: dict[Var, Expr] = {
        axis.var: index_expr(0) for axis in producer.axes if int_value(axis.extent) == 1 and axis.var not in alone
    }
    indices = [substitute(index, ones) for index in store.indices]
    axes = {axis.var for axis in producer.axes if axis.var not in ones}
    plain = [index for index in indices if isinstance(index, Var)]
    sized = zip(indices, store.buffer.shape)
    chosen = [Var("one") if int_value(index) == 0 and int_value(size) == 1 else index for index, size in sized]
    variables = tuple(one for one in chosen if isinstance(one, Var))
    if len(variables) != len(indices) or len(plain) != len(axes) or set(plain) != axes:
        raise ScheduleError("compute_inline", block, f"{block} does not store each element at the index of its axes")
    if any(b is not producer for b in writers(func.body, store.buffer)):
        raise ScheduleError("compute_inline", block, f"{store.buffer.name} is written by other blocks too")
    consumers = readers(func.body, store.buffer)
    for consumer in consumers:
        if has_opaque_access(consumer, store.buffer):
            raise ScheduleError("compute_inline", block, f"{consumer.name} takes the address of {store.buffer.name}")
        _check_private(func, path, store, consumer)
    replacer = _Inline(store.buffer, variables, substitute(store.value, ones))
    rest = replace_last(func, path, None)
    names = {b.name for b in consumers}

    def change(target: Block, loops: object) -> Block:
        return _with_body(target, replacer) if target.name in names else target

    body = map_bindings(rest.body, change, [])
    made = without_buffers(rest.replace(body=body), [store.buffer])
    check_marks(made, "compute_inline", block)
    return Result(made)


def _stored_from_copy(func: Func, producer: Block, store: Store) -> Func:
    """The program with an output under another name, and stored from the only copy of it; refused where some of it
    might not be copied."""
    refused = ScheduleError(
        "compute_inline", producer.name, f"{store.buffer.name} is an output, which has to be stored"
    )
    found = readers(func.body, store.buffer)
    path = block_path(func, found[0].name, "compute_inline") if len(found) == 1 else []
    copy = found[0].body if len(found) == 1 else None
    if not isinstance(copy, Store) or not isinstance(copy.value, Load) or copy.predicate is not None:
        raise refused
    own, around = _own_loops(path)
    axes, copied = [axis.var for axis in found[0].axes], (tuple(copy.indices), tuple(copy.value.indices))
    if copied != (tuple(axes), tuple(axes)) or len(axes) != len(store.buffer.shape) or not around:
        raise refused
    if not _fills(func, found[0], own, around[-1]) or len(writers(func.body, copy.buffer)) > 1:
        raise refused
    taken = taken_names(func)
    hidden = Buffer(unique_name(f"{store.buffer.name}_made", taken), store.buffer.dtype, store.buffer.shape)
    new: dict[Var, Expr] = {loop.var: Var(unique_name(loop.var.name, taken)) for loop in own}
    bindings = [substitute(binding, new) for binding in found[0].bindings]
    predicate = substitute(found[0].predicate, new)
    fresh = [Axis(Var(axis.var.name), axis.extent, axis.kind) for axis in found[0].axes]
    at = [axis.var for axis in fresh]
    name = unique_name(f"{store.buffer.name}_stored", taken)
    empty = found[0].replace(name=name, axes=fresh, bindings=bindings, predicate=predicate)
    stored = rebody(empty, Store(store.buffer, at, Load(copy.buffer, at)), None)
    nest: Stmt = stored
    for loop in reversed(own):
        variable = new[loop.var]
        assert isinstance(variable, Var)
        nest = loop.replace(var=variable, body=nest)
    position = len(path) - 1 - len(own)
    made = replace_last(func, path[: position + 1], seq(path[position], nest))
    renamed = BufferReplacer({store.buffer: hidden})

    def change(block: Block, _: object) -> Block:
        changed = renamed.stmt(block) if block.name in (producer.name, found[0].name) else block
        assert isinstance(changed, Block)
        return changed

    return made.replace(body=map_bindings(made.body, change, []), allocations=[*func.allocations, hidden])


def _own_loops(path: Sequence[Stmt]) -> tuple[list[For], list[For]]:
    """The loops directly around a block that hold nothing else, and those around these, outermost first."""
    at = len(path) - 1
    while at > 0 and isinstance(path[at - 1], For) and len(blocks_in(path[at - 1])) == 1:
        at -= 1
    return [s for s in path[at:] if isinstance(s, For)], [s for s in path[:at] if isinstance(s, For)]


def _fills(func: Func, copy: Block, own: Sequence[For], around: For) -> bool:
    """Whether a copy comes by all of its elements: along an axis by a loop of its own, or where a block beside it does
    that writes an output, and so all there is."""
    whole = {loop.var: loop.extent for loop in own}
    once: dict[Var, Expr] = {
        loop.var: index_expr(0) for loop in walk_stmts(around) if isinstance(loop, For) and int_value(loop.extent) == 1
    }
    outputs = [b for b in blocks_in(around) if any(w.buffer in func.buffers for w in b.writes)]
    wanted = [
        (axis.extent, binding)
        for axis, binding in _places(copy, once)
        if not (isinstance(binding, Var) and binding in whole and structural_equal(whole[binding], axis.extent))
        and not (int_value(axis.extent) == 1 and int_value(binding) == 0)
    ]
    return any(
        all(
            any(structural_equal(extent, axis.extent) and structural_equal(at, binding) and axis.kind == "spatial"
                for axis, binding in _places(other, once))
            for extent, at in wanted
        )
        for other in outputs
    )  # fmt: skip


def _places(block: Block, once: Mapping[Var, Expr]) -> Iterator[tuple[Axis, Expr]]:
    """The axes of a block and what they are bound to, without loops that run once."""
    return ((axis, simplify(substitute(at, once))) for axis, at in zip(block.axes, block.bindings))


def _check_private(func: Func, path: Sequence[Stmt], store: Store, consumer: Block) -> None:
    """That a consumer in other threads does not come to read what a thread keeps to itself."""
    private = [
        node.buffer for node in walk(store.value, Load) if isinstance(node, Load) and node.buffer.scope not in SHARED
    ]
    threads = [s for s in path if isinstance(s, For) and (s.thread or "").startswith("threadIdx")]
    around = block_path(func, consumer.name, "compute_inline") if private and threads else []
    if any(all(loop is not s for s in around) for loop in threads if private):
        kept = f"{private[0].name} ({private[0].scope})"
        reason = f"{consumer.name} would read {kept} of other threads than its own"
        raise ScheduleError("compute_inline", store.buffer.name, reason)


def _with_body(block: Block, replacer: Mutator) -> Block:
    body = replacer.stmt(block.body)
    init = None if block.init is None else replacer.stmt(block.init)
    return rebody(block, body, init)


def rebody(block: Block, body: Stmt, init: Stmt | None) -> Block:
    """A block with another body, its regions worked out again."""
    reads, writes = block_regions(body, init)
    return block.replace(body=body, init=init, reads=reads, writes=writes)


@primitive(str)
def reverse_compute_inline(func: Func, block: str) -> Result:
    """A consumer put into its producer: the producer stores the consumer's value at once.

    rewrite: for i: B[i] = f(i)        ->  for i: C[i] = g(f(i))
             for i: C[i] = g(B[i])
    """
    what = "reverse_compute_inline"
    path = block_path(func, block, what)
    consumer = block_of(path)
    store = _plain_store(consumer, what)
    if any(b is not consumer for b in writers(func.body, store.buffer)):
        raise ScheduleError(what, block, f"{store.buffer.name} is written by other blocks too")
    inputs = [r.buffer for r in consumer.reads if r.buffer in func.allocations]
    makers = [(b, w) for b in inputs for w in writers(func.body, b)]
    if len({id(b) for b, _ in makers}) != 1 or len(makers) != 1:
        raise ScheduleError(what, block, f"{block} must read the result of exactly one block (it reads {len(makers)})")
    buffer, producer = makers[0]
    made = _plain_store(producer, what)
    if [b.name for b in readers(func.body, buffer) if b is not consumer]:
        raise ScheduleError(what, block, f"{buffer.name} has other readers")
    load_indices = _only_load(consumer, buffer, what)
    mapping = _invert(consumer, load_indices, made.indices, producer, what)
    value = simplify(_Inline(buffer, (), made.value).expr(substitute(store.value, mapping)))
    stored = Store(store.buffer, [substitute(i, mapping) for i in store.indices], value)
    rest = replace_last(func, path, None)
    body = map_bindings(rest.body, lambda b, _: rebody(b, stored, None) if b.name == producer.name else b, [])
    renamed = map_bindings(body, lambda b, _: b.replace(name=block) if b.name == producer.name else b, [])
    made_func = without_buffers(rest.replace(body=renamed), [buffer])
    check_marks(made_func, what, block)
    return Result(made_func, axes={block: axis_loops(producer)})


def _only_load(consumer: Block, buffer: Buffer, what: str) -> list[Var]:
    """The axis variables at which a consumer reads a buffer, the same ones at each load."""
    regions = [r for r in consumer.reads if r.buffer is buffer]
    indices = [i for i in regions[0].mins if isinstance(i, Var)]
    axes = {axis.var for axis in consumer.axes}
    if len(regions) != 1 or len(set(indices)) != len(regions[0].mins) or set(indices) != axes:
        reason = f"{consumer.name} does not read {buffer.name} at exactly the index of its own axes"
        raise ScheduleError(what, consumer.name, reason)
    return indices


def _invert(consumer: Block, at: list[Var], stored: tuple[Expr, ...], producer: Block, what: str) -> dict[Var, Expr]:
    sizes = {axis.var: axis.extent for axis in consumer.axes}
    mine = {axis.var: axis.extent for axis in producer.axes}
    for variable, index in zip(at, stored):
        if not isinstance(index, Var) or repr(mine.get(index)) != repr(sizes[variable]):
            raise ScheduleError(
                what, consumer.name, f"{producer.name} computes other elements than {consumer.name} reads"
            )
    return dict(zip(at, stored))


__all__ = ["compute_inline", "rebody", "reverse_compute_inline"]

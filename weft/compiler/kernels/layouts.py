"""Layouts applied to a kernel's program: parameters re-laid, and the domains of its blocks divided as their memory is.

    out[n, c, h, w] = max(sums[n, c, h, w], 0)      c in blocks of 16     for n, co, h, w, ci:
                                                ->     out[n, co, h + 1, w + 1, ci] = max(sums[n, co, h, w, ci], 0)

Blocks spread from a parameter through the program: an axis that walks along blocked channels is split, the intermediate
that it indexes is stored in blocks too, and so on, to a fixed point. The border of an output is filled with zeros by
the kernel that writes the output (`borders.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from weft.core import model
from weft.expr.nodes import (
    Add,
    Buffer,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Mul,
    Select,
    Var,
    int_value,
)
from weft.expr.visit import uses_any, walk
from weft.graph.ir import Value
from weft.graph.passes.layout import CHANNEL, Layout
from weft.loop.ir import Block, Store
from weft.loop.tree import blocks_in
from weft.loop.visit import walk_exprs, walk_stmts
from weft.ops.convolution_winograd import SUMS
from weft.schedule.facts import names_of
from weft.schedule.schedule import Schedule

Access = tuple[Buffer, Sequence[Expr]]


def apply_layouts(
    schedule: Schedule, parameters: Sequence[tuple[Value, Buffer]], layouts: Mapping[Value, Layout], block: int = 1
) -> list[tuple[Value, Buffer]]:
    """Lays out the parameters of a program and divides its blocks accordingly; gives the parameters as they are now.

    With `block` > 1 the sums of a convolution stand in blocks of so many channels even if its result is stored plainly.
    """
    for value, buffer in parameters:
        layout = layouts.get(value)
        if layout is not None:
            before, after = zip(*layout.border)
            schedule.apply(
                "lay_out",
                buffer=buffer.name,
                dimension=CHANNEL,
                factor=layout.factor,
                before=list(before),
                after=list(after),
                fill=layout.fill,
            )
    stored = {buffer.name for value, buffer in parameters if value in layouts and layouts[value].factor > 1}
    _spread(schedule, stored)
    if block > 1 and _split_sums(schedule, block, stored):
        _spread(schedule, stored)
    now = {buffer.name: buffer for buffer in schedule.func.buffers}
    return [(value, now[buffer.name]) for value, buffer in parameters]


def _spread(schedule: Schedule, stored: set[str]) -> None:
    """Divides axes and intermediates along the blocks that are there; `stored` are the buffers in blocks so far."""
    accesses = _Accesses()
    while _split_one(schedule, stored, accesses) or _store_one(schedule, stored, accesses):
        pass


def _split_sums(schedule: Schedule, size: int, stored: set[str]) -> bool:
    """Divides the channels of a convolution's sums; whether there were any.

    Sums that are the program's result are kept in an intermediate first, and copied from there as they were.
    """
    split = False
    for block in blocks_in(schedule.func.body):
        channel = _channel_of_sums(block, size)
        buffer = block.writes[0].buffer
        if channel is None or buffer.name in stored:
            continue
        name = block.name
        with schedule.attempt(f"blocks of channels of {name}") as tried:
            if buffer not in schedule.func.allocations:
                name = schedule.cache_write(buffer.name, "local").name
            if _extent(block, channel) == size:  # the only block
                schedule.apply("last_axis", block=name, axis=channel.name)
                _follow(schedule, name, channel, stored, _Accesses())
            else:
                schedule.apply("split_axis", block=name, axis=channel.name, factor=size)
        split = split or bool(tried)
    return split


def _channel_of_sums(block: Block, size: int) -> Var | None:
    """The axis of the channels of a convolution's sums, where whole blocks of them share what one operand gives."""
    region = block.writes[0]
    channel = region.mins[CHANNEL] if len(region.mins) >= 3 else None
    if not isinstance(channel, Var) or not any(axis.kind == "reduce" for axis in block.axes):
        return None
    choices = [e.condition for e in walk_exprs(block.body, Select) if isinstance(e, Select)]
    if any(walk(test, Load) for test in choices):
        return None  # sums that are taken only where data says so follow the layout of what they stand in for
    length = _extent(block, channel)
    short = model.SHORT_SUM * size if length == size else size
    if length % size or length < size or _has_short_sums(block, size, short):
        return None
    others = [read for read in block.reads if read.buffer is not region.buffer]
    shared = any(all(_is_shared(index, channel, size) for index in read.mins) for read in others)
    return channel if shared else None


def _has_short_sums(block: Block, size: int, most: int) -> bool:
    """Whether lanes lie along the rows of an image instead: rows fill vectors, neighbours are read side by side, and
    sums go over at most so many products, so that turning blocks into rows would be a good part of the work.
    """
    region = block.writes[0]
    place = region.mins[-1]
    depth = math.prod(int_value(axis.extent) or 1 for axis in block.axes if axis.kind == "reduce")
    if not isinstance(place, Var) or _extent(block, place) < size or depth > most:
        return False
    rows = [read.mins[-1] for read in block.reads if read.buffer is not region.buffer]
    return any(uses_any(index, {place}) and not _is_scaled(index, place) for index in rows)


def _is_scaled(index: Expr, variable: Var) -> bool:
    """Whether an index moves by more than one with a variable."""
    return any(uses_any(e, {variable}) for e in walk(index, Mul))


def _extent(block: Block, variable: Var) -> int:
    """The extent of the axis of a variable; 0 where it is none."""
    return {axis.var: int_value(axis.extent) or 0 for axis in block.axes}.get(variable, 0)


def _is_shared(index: Expr, channel: Var, size: int) -> bool:
    """Whether an index is the same for a whole block of channels: it has none of them, or only their group."""
    groups = [
        e for e in walk(index) if isinstance(e, FloorDiv) and e.a is channel and (int_value(e.b) or 1) % size == 0
    ]
    return sum(e is channel for e in walk(index)) == len(groups)


class _Accesses:
    """The loads and stores of blocks, each block walked once."""

    def __init__(self) -> None:
        self._known: dict[Block, list[Access]] = {}
        self.split, self.kept = dict[Block, int](), dict[Block, int]()
        """Blocks with nothing to split, or to store, and how many buffers were stored in blocks when that was seen."""

    def of(self, block: Block) -> list[Access]:
        """What a block loads and stores."""
        found = self._known.get(block)
        if found is None:
            found = self._known[block] = list(_accesses(block))
        return found


def _accesses(block: Block) -> Iterator[Access]:
    for part in (block.init, block.body):
        if part is None:
            continue
        for e in walk_exprs(part, Load):
            if isinstance(e, Load):
                yield e.buffer, e.indices
        for s in walk_stmts(part):
            if isinstance(s, Store):
                yield s.buffer, s.indices


def _split_one(schedule: Schedule, stored: set[str], accesses: _Accesses) -> bool:
    """Splits one axis that an access divides into blocks; whether there was one."""
    for block in blocks_in(schedule.func.body):
        if accesses.split.get(block) == len(stored):
            continue
        refused = False
        axes = {axis.var: int_value(axis.extent) or 0 for axis in block.axes}
        spatial = {axis.var: axes[axis.var] for axis in block.axes if axis.kind == "spatial"}
        for buffer, indices in accesses.of(block):
            found = _divided(indices, axes)
            whole = _whole(buffer, indices, spatial) if buffer.name in stored else None
            if found is None and whole is None:
                continue
            with schedule.attempt(f"axes of {block.name} as its operands lie") as tried:
                if found is not None:
                    schedule.apply("split_axis", block=block.name, axis=found[0].name, factor=found[1])
                elif whole is not None and SUMS in names_of(schedule):  # whose sketch wants blocks, were it one
                    schedule.apply("split_axis", block=block.name, axis=whole.name, factor=spatial[whole])
                elif whole is not None:
                    schedule.apply("last_axis", block=block.name, axis=whole.name)
                    _follow(schedule, block.name, whole, stored, accesses)
            if tried:
                return True
            refused = True
        if not refused:
            accesses.split[block] = len(stored)
    return False


def _divided(indices: Sequence[Expr], axes: Mapping[Var, int]) -> tuple[Var, int] | None:
    """The axis of which an access uses the quotient, and the remainder last; and the divisor."""
    last = indices[-1] if indices else None
    if not isinstance(last, FloorMod) or not isinstance(last.a, Var) or not isinstance(last.b, Const):
        return None
    factor = int(last.b.value)
    if axes.get(last.a, 1) % factor or axes.get(last.a, 0) <= factor:
        return None
    for index in indices[:-1]:
        if isinstance(index, FloorDiv) and index.a is last.a and int_value(index.b) == factor:
            return last.a, factor
    return None


def _whole(buffer: Buffer, indices: Sequence[Expr], axes: dict[Var, int]) -> Var | None:
    """The axis that walks over the only block of channels, where other axes stand behind it."""
    last = indices[-1]
    if not isinstance(last, Var) or axes.get(last, 1) == 1 or next(reversed(axes)) is last:
        return None
    return last if int_value(buffer.shape[-1]) == axes[last] else None


def _follow(schedule: Schedule, name: str, axis: Var, stored: set[str], accesses: _Accesses) -> None:
    """Stores the intermediates that an axis of a block indexes with that dimension last."""
    (block,) = [b for b in blocks_in(schedule.func.body) if b.name == name]
    allocated = {buffer.name for buffer in schedule.func.allocations}
    for buffer, indices in accesses.of(block):
        at = [d for d, index in enumerate(indices) if index is axis]
        if buffer.name not in allocated or buffer.name in stored or len(at) != 1:
            continue
        names = [f"d{i}" for i in range(len(indices))]
        if at[0] != len(indices) - 1:
            outputs = [n for d, n in enumerate(names) if d != at[0]] + [names[at[0]]]
            schedule.apply("transform_layout", buffer=buffer.name, inputs=names, outputs=outputs)
        stored.add(buffer.name)


def _store_one(schedule: Schedule, stored: set[str], accesses: _Accesses) -> bool:
    """Stores one intermediate, once, in blocks that an access of it walks along; whether there was one."""
    func = schedule.func
    inner = {buffer.name: buffer for buffer in func.allocations}
    for block in blocks_in(func.body):
        if accesses.kept.get(block) == len(stored):
            continue
        # The inner axis of two that were one stands last among those of its kind.
        last = {axis.kind: axis for axis in block.axes}
        extents = {axis.var: int_value(axis.extent) if last[axis.kind] is axis else None for axis in block.axes}
        kinds = {axis.var: axis.kind for axis in block.axes}
        for buffer, indices in accesses.of(block):
            if inner.get(buffer.name) is not buffer or buffer.name in stored:
                continue
            for dimension, index in enumerate(indices):
                factor = _joined(index, extents, kinds)
                if factor is None or (int_value(buffer.shape[dimension]) or 1) % factor:
                    continue
                names = [f"d{i}" for i in range(len(indices))]
                outputs = list(names)
                outputs[dimension] = f"d{dimension} // {factor}"
                outputs.append(f"d{dimension} % {factor}")
                schedule.apply("transform_layout", buffer=buffer.name, inputs=names, outputs=outputs)
                stored.add(buffer.name)
                return True
        accesses.kept[block] = len(stored)
    return False


def _joined(index: Expr, extents: Mapping[Var, int | None], kinds: Mapping[Var, str]) -> int | None:
    """The factor of an index `outer*factor + inner` of two axes that were one, the inner of that extent."""
    if not isinstance(index, Add):
        return None
    for outer, inner in ((index.a, index.b), (index.b, index.a)):
        if isinstance(outer, Mul) and isinstance(inner, Var) and isinstance(outer.a, Var):
            factor = int_value(outer.b)
            if factor is not None and factor == extents.get(inner) and kinds.get(outer.a) == kinds[inner]:
                return factor
    return None

"""The pieces of the nest that all products share, outermost first. What an instruction wants is told by its record
(`microkernels.py`); what the rows of a product are, by the family that calls.

    loops of the epilogue      blocks of rows and columns, threads            `run_parallel`
      packed operands          panels in the order in which they are read     `store_panels`, `pack_loops`
      a tile of sums           its loops cut as the record says, those        `multiply`, `multiply_in_tiles`
                               inside replaced by the instruction
      the epilogue on it       lanes                                          `cut_tiles`, `vectorize`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from weft.expr.nodes import Load, Var
from weft.expr.visit import uses_any
from weft.loop.ir import Axis
from weft.loop.tree import blocks_in
from weft.plan.contraction import tests_of
from weft.plan.planner import Unit
from weft.schedule.facts import Facts, extent, extent_of, facts_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.cpu import model
from weft.targets.cpu.default_loops import write_out as write_out
from weft.targets.cpu.facts import has_masks
from weft.targets.cpu.machine import LINE_BYTES, core_of
from weft.targets.cpu.microkernels import MicroKernel
from weft.targets.cpu.parse import TILES

_T = TypeVar("_T")


def sums_and_final(unit: Unit, scope: str = "global") -> tuple[Stage, Stage, dict[Var, Var]]:
    """The stage that sums, its epilogue (or a copy of the sums), and the latter's axis for each axis of the product.

    `scope` is that of the sums where there is no epilogue: all of them, until they are computed inside a loop of it.
    """
    s, facts = unit.schedule, unit.facts
    if unit.epilogue is not None:
        return s[facts.block.name], s[unit.epilogue.name], unit.to_epilogue
    sums = s.cache_write(facts.target.name, "local")
    final = s[facts.block.name]
    if scope != "local":
        sums.set_scope(scope)
    return sums, final, {axis.var: new.var for axis, new in zip(facts.spatial, final.block.axes)}


def length(axis: Axis | None) -> int:
    """The extent of an axis; 1 where a program has none for that part."""
    return 1 if axis is None else extent(axis)


def loops_of(stage: Stage) -> dict[Var, Var]:
    """The loop of each spatial axis of a stage that has one loop for each."""
    return dict(zip([axis.var for axis in stage.block.axes], stage.axis))


def tile_and_final(unit: Unit) -> tuple[Stage, Stage, dict[Var, Var]]:
    """A tile of sums, its epilogue, and the latter's loop for each axis of the product."""
    sums, final, at = sums_and_final(unit, "local")
    loop_of = loops_of(final)
    return sums, final, {axis.var: loop_of[at[axis.var]] for axis in unit.facts.spatial}


def compute_near(stage: Stage, reader: Stage, at: Var, exact: bool = True) -> Stage:
    """Computes a stage inside a loop of its reader, in registers or the nearest cache; gives the stage."""
    stage.compute_at(reader, at, exact=exact)
    stage.set_scope("local")
    return stage


def compute_tile(unit: Unit, sums: Stage, final: Stage, at: Var, exact: bool = True) -> None:
    """Computes a tile of sums inside a loop of its epilogue, in registers."""
    sums.compute_at(final, at, exact=exact)
    if unit.epilogue is not None:
        sums.set_scope("local")


def result_step(unit: Unit, variable: Var) -> int | None:
    """How many elements further the result lies when an axis of a contraction goes on by one."""
    facts = unit.facts if unit.epilogue is None else facts_of(unit.epilogue)
    return facts.store_step(unit.to_epilogue.get(variable, variable))


def phase_between(unit: Unit, place: Axis | None, others: Sequence[Axis]) -> Axis | None:
    """The axis whose elements lie between neighbours along another in the result; None where neighbours do.

    Those of the phases of a transposed convolution. In the register tile with its neighbours it makes whole stretches.
    """
    if unit.epilogue is None or place is None:
        return None
    final = facts_of(unit.epilogue)
    step = {axis.var: final.store_step(unit.to_epilogue[axis.var]) for axis in (place, *others)}
    return next((axis for axis in others if step[axis.var] == 1 and step[place.var] == extent(axis) > 1), None)


def taps_of(facts: Facts, phase: Axis | None) -> set[Var]:
    """The axes of the reduction that count for some of the phases of a register tile, and not for others."""
    tests = [test for test in tests_of(facts) if phase is not None and uses_any(test, {phase.var})]
    return {axis.var for axis in facts.reduce if any(uses_any(test, {axis.var}) for test in tests)}


def starts_early(unit: Unit, size: int, width: int) -> bool:
    """Whether the last tile along the lanes is to start so early that it is whole: it is cut, and lanes cannot be off.

    A loop over such tiles is annotated with their width (`loop/passes/shift_tiles.py`).
    """
    return size % width != 0 and not has_masks(unit.target.features, unit.facts.target.dtype.bits)


# -------------------------------------------------------------------------------------------------------- single steps


def vectorize(stage: Stage, loop: Var, lanes: int, unrolled: bool = True) -> None:
    """A stretch as vectors side by side: in one piece of code, or in a loop."""
    if extent_of(stage, loop) > lanes:
        vectors, loop = stage.split(loop, factor=lanes)
        if unrolled:
            stage.unroll(vectors)
    stage.vectorize(loop)


def unroll(stage: Stage, loops: Sequence[Var]) -> None:
    """Writes out the loops that run more than once, or may do so."""
    for loop in loops:
        if extent_of(stage, loop, unknown=2) > 1:
            stage.unroll(loop)


def keep_whole(stage: Stage, loops: Sequence[Var]) -> None:
    """Loops that are not cut where a test holds for some of their rounds only: each round is the same code."""
    for loop in loops:
        stage.annotate("partition", False, loop)


def cut_tiles(
    stage: Stage,
    row: Var | None,
    lane: Var,
    rows: int,
    width: int,
    lanes: int,
    around: Sequence[Var] = (),
    written: bool = True,
    panels_first: bool = False,
) -> list[Var]:
    """Cuts two loops into tiles of `rows` × `width`, vectors inside; gives the loops around a tile.

    All the panels of columns for a row of tiles, or with `panels_first` the other way round. What is inside a tile is
    `written` out.
    """
    panel, lane = stage.split(lane, factor=width)
    tiles, tile = [panel], [lane]
    if row is not None:
        down, row = stage.split(row, factor=rows)
        tiles, tile = [panel, down] if panels_first else [down, panel], [row, lane]
        if written:
            stage.unroll(row)
    stage.reorder(*around, *tiles, *tile)
    vectorize(stage, lane, lanes, written)
    return tiles


def run_parallel(stage: Stage, loops: Sequence[Var], enough: bool = True) -> Var:
    """Fuses loops, and divides them among threads where there is enough work; gives the loop."""
    fused = stage.fuse(*loops) if len(loops) > 1 else loops[0]
    if enough and extent_of(stage, fused) > 1:
        stage.parallel(fused)
    return fused


def result_of(stage: Stage) -> str:
    """The name of the buffer that a stage writes."""
    return stage.block.writes[0].buffer.name


def store_as(stage: Stage, order: Callable[[list[str]], list[str]]) -> None:
    """Stores what a stage writes in another order, given names for its dimensions."""
    names = [f"d{i}" for i in range(len(stage.block.writes[0].buffer.shape))]
    outputs = order(names)
    if outputs != names:
        stage.schedule.apply("transform_layout", buffer=result_of(stage), inputs=names, outputs=outputs)


def store_last(stage: Stage, *dims: int) -> None:
    """Stores what a stage writes with some of its dimensions innermost."""
    store_as(stage, lambda names: [*without(names, *dims), *(names[d] for d in dims)])


def without(items: Sequence[_T], *positions: int | None) -> list[_T]:
    """All but those at some positions."""
    return [item for at, item in enumerate(items) if at not in positions]


# ------------------------------------------------------------------------------------------------------------- packing


def padded_copy(s: Schedule, load: Load, reader: str, sizes: Mapping[int, int]) -> Stage:
    """A copy of an operand, some of its dimensions padded with zeros to multiples of sizes."""
    copy = s.cache_read(load.buffer.name, "global", [reader])
    for dim, size in sizes.items():
        copy.pad(copy.axis[dim], size)
    return copy


def store_panels(copy: Stage, kernel: MicroKernel, across: int, down: Sequence[int], width: int) -> None:
    """Stores a right operand in panels of `width` columns, in the order in which the micro-kernel reads them.

    `across` is the dimension of the columns, `down` are those of the reduction, outermost first.
    """

    def panels(names: list[str]) -> list[str]:
        outside, inside = kernel.panel(names[across], [names[d] for d in down], width)
        return [*without(names, across, *down), *outside, *inside]

    store_as(copy, panels)


def pack_loops(copy: Stage, kernel: MicroKernel, across: int, down: int, width: int, transposed: int = 0) -> list[Var]:
    """The loops that pack a right operand into panels of `width`; gives those around a vector, a square or a tile.

    Vectors along the columns, for dot products woven with those of the next steps as they are stored. Where columns are
    `transposed`, rows in memory, a square of so many steps or a tile at a time is transposed in registers.
    """
    axes = list(copy.axis)
    rest, deep = without(axes, across, down), axes[down]
    if kernel.depth == 1:
        panel, inside = copy.split(axes[across], factor=width)
        copy.reorder(*rest, panel, deep, inside)
        if transposed:  # lanes along what is read, a square of them in registers at a time
            steps, lane = copy.split(deep, factor=transposed)
            vectors, column = copy.split(inside, factor=transposed)
            copy.reorder(steps, vectors, column, lane)
            write_out(copy, column, lane)
        else:
            vectorize(copy, inside, kernel.lanes)
        return [*rest, panel]
    weave = kernel.tiles.weave if transposed and kernel.tiles is not None else ""
    panel, inside = copy.split(axes[across], factor=kernel.lanes)
    steps, few = copy.split(deep, factor=kernel.depth if weave else kernel.group)
    copy.reorder(*rest, panel, steps, *([inside, few] if weave else [few, inside]))
    if weave:
        copy.tensorize(inside, weave)
    else:
        write_out(copy, few, inside)
    return [*rest, panel, steps]


def side_of_squares(steps: int, lanes: int) -> int:
    """The side of the squares that turn rows of so many elements in registers; 0 where they are too small to pay."""
    side = math.gcd(steps, lanes)
    return side if side >= model.LEAST_SIDE else 0


# ------------------------------------------------------------------------------------------------- the tile of sums


def multiply(
    sums: Stage,
    kernel: MicroKernel,
    around: Sequence[Var],
    reduce: Sequence[Var],
    rows: Sequence[Var],
    lane: Var,
    unrolled: int = 1,
) -> tuple[Var, Var]:
    """The loops of a tile of sums: the reduction around the tile, the micro-kernel inside.

        around, reduce.., rows.., lane   ->   around, reduce.., k // depth          loops
                                              rows.., i // rows, lane // lanes      written out
                                              i % rows, lane % lanes, k % depth     one instruction

    k and i are the last of `reduce` and of `rows`. With `unrolled`, so many steps of k are written out too. Gives the
    innermost loop of the reduction, and the first that the instruction replaces: `by_instruction` does so when all its
    operands are where they should be.
    """
    *outer, last = reduce
    steps, written, rows, inside = list(reduce), [], list(rows), [lane]
    if unrolled > 1:
        steps[-1], step = sums.split(last, factor=unrolled)
        written = [step]
    if kernel.depth > 1:
        steps.pop()
        if extent_of(sums, last) > kernel.depth or not outer:
            step, last = sums.split(last, factor=kernel.depth)
            steps.append(step)
        inside = [lane, last]
    if kernel.rows > 1:
        rows[-1], row = sums.split(rows[-1], factor=kernel.rows)
        inside = [row, *inside]
    if kernel.dot or extent_of(sums, lane, unknown=kernel.lanes + 1) > kernel.lanes:
        vectors, inside[inside.index(lane)] = sums.split(lane, factor=kernel.lanes)
        rows.append(vectors)
    sums.reorder(*around, *steps, *written, *rows, *inside)
    unroll(sums, [*written, *rows])
    return steps[-1], inside[0]


def fetch_channels(
    unit: Unit, sums: Stage, image: Load, place: Axis | None, tile: int, loops: Mapping[Var, Var]
) -> None:
    """Asks for the next channels of an image in which neighbours are pixels: no processor foresees them.

    `loops` are those of the reduction's axes, outermost first, but such as are written out; a step of all of them is
    `tile` vectors of multiply-adds.
    """
    facts, core, size = unit.facts, core_of(unit.target), image.buffer.dtype.bytes
    apart = 0 if place is None else abs(facts.step(image, place.var) or 0)
    pitch, at = max((abs(facts.step(image, axis.var) or 0), -at) for at, axis in enumerate(facts.reduce))
    channel, *inner = facts.reduce[-at:]
    loop = loops.get(channel.var)
    if not core.ahead or not 0 < apart * size < LINE_BYTES <= pitch * size or loop is None:
        return
    count = extent_of(sums, loop)
    steps = math.prod(extent(axis) for axis in inner) * extent(channel) // count
    ahead = max(1, int(core.ahead * core.multiply_adds // (steps * tile)))
    if count >= model.LEAST_FETCHED * ahead:
        sums.prefetch(image.buffer.name, loop, ahead)


def in_blocks(sums: Stage, depth: int) -> Stage:
    """Takes a reduction apart into blocks of so many steps, which are added up; gives the stage that makes one."""
    outer, _ = sums.split(sums.reduce_axis[0], factor=depth)
    sums.reorder(outer, *sums.axis)
    made = sums.schedule.rfactor(sums.name, outer)
    sums.annotate("inline_init", True)
    return made


def by_instruction(stage: Stage, kernel: MicroKernel, loop: Var) -> None:
    """Replaces a loop, and all inside it, by the micro-kernel's instruction."""
    if kernel.dot:
        stage.tensorize(loop, kernel.dot)
    else:
        stage.vectorize(loop)


def multiply_in_tiles(
    stored: Stage, reader: Stage, at: Var, kernel: MicroKernel, packed: Sequence[Stage], row: int, lane: int
) -> None:
    """A product in tiles, for what its reader takes inside a loop; the sums go there by a small array.

    `packed` are the operands, `row` and `lane` the dimensions of the sums that are cut into tiles. An instruction of
    vector registers loads its operands itself.
    """
    s = stored.schedule
    tile = s.cache_write(result_of(stored), scope_of(kernel))
    stored.compute_at(reader, at, exact=False)
    drained = drain(stored, kernel, row, lane)
    tile.compute_at(reader, at, exact=False)
    in_tiles(tile, kernel, row, lane)
    axes = list(tile.axis)
    step, product = multiply(tile, kernel, without(axes, row, lane), tile.reduce_axis, [axes[row]], axes[lane])
    loads = () if kernel.tiles is None else ((2, kernel.tiles.load_left), (3, kernel.tiles.load_right))
    for copy, (dims, name) in zip(packed, loads):
        loaded = s.cache_read(result_of(copy), TILES.name, [tile.name])
        loaded.compute_at(tile, step)
        unroll(loaded, loaded.axis[:-dims])
        loaded.tensorize(loaded.axis[-dims], name)
    by_instruction(tile, kernel, product)
    stored.tensorize(drained, kernel.store)


def scope_of(kernel: MicroKernel) -> str:
    """Where tiles of sums are: in registers of their own, or in those of vectors."""
    return "local" if kernel.tiles is None else TILES.name


def drain(stored: Stage, kernel: MicroKernel, row: int, lane: int) -> Var:
    """The copy out of the tile registers, a tile at a time; gives the loop from which on a tile is one instruction."""
    store_last(stored, row, lane)
    stored.set_scope("local")
    axes = list(stored.axis)
    rest = without(axes, row, lane)
    down, inner = stored.split(axes[row], factor=kernel.rows)
    across, lanes = stored.split(axes[lane], factor=kernel.lanes)
    stored.reorder(*rest, down, across, inner, lanes)
    unroll(stored, [*rest, down, across])
    return inner


def in_tiles(tile: Stage, kernel: MicroKernel, row: int, lane: int) -> None:
    """Stores sums in tiles."""

    def tiles(names: list[str]) -> list[str]:
        i, j = names[row], names[lane]
        sizes = (i, kernel.rows), (j, kernel.lanes)
        return [*without(names, row, lane), *(f"{x} // {n}" for x, n in sizes), *(f"{x} % {n}" for x, n in sizes)]

    store_as(tile, tiles)


def in_tile_registers(s: Schedule) -> list[str]:
    """The names of all blocks whose results are in tile registers."""
    return [block.name for block in blocks_in(s.func.body) if block.writes[0].buffer.scope == TILES.name]

"""Products of few rows of float32 with constants of bfloat16, by tensor cores that get these straight from memory.

    C[i, n] = sum over k of X[i, k] * wide(W[k, n])             i below 8

What such a product takes is reading W once. Tensor cores multiply rows by columns of a tile, and whose rows are filled
up with what is a matter of taste: W has the rows, so that 8 rows of X are one instruction's columns.

    W stored      [n // width][k // 32][n % width][k % 32]      what a warp reads in a step lies together, 1 KB or 2
    block         `width` columns and all of k, of which each warp has every so manieth step
    step          each thread loads 16 bytes of some rows of W, and the same k of a row of X; the order of k inside
                  a step is the threads', the same for both
    then          the sums of the warps meet in shared memory, and all threads add them up

Nothing is rounded: a float32 is the sum of three bfloat16 with the bits of its mantissa, and three products take less
than the bytes do. What is infinite has no further parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from weft.expr.nodes import Buffer, Var, int_value
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding
from weft.schedule.schedule import Stage
from weft.targets.base import ThreadFacts
from weft.targets.cuda import model as fit
from weft.targets.cuda import streamed_tiles, streamed_words
from weft.targets.cuda.cluster import TOGETHER
from weft.targets.cuda.streamed_tiles import DEPTH, KIND
from weft.targets.cuda.streamed_words import Words
from weft.targets.gpu import model as gpu_model
from weft.targets.gpu import nest, reduction, together
from weft.targets.gpu.elementwise import by_rule

MOST_ROWS = 8
"""Rows that one instruction takes."""


@dataclass(frozen=True)
class Form:
    """How constants lie, and what they are multiplied by.

    A step has so many elements of k, so many bytes of a column; a thread has so many elements of a row of X each time
    that four threads load what belongs together, and loads for a step so many times. Words are of few bits.
    """

    x: Buffer
    step: int
    column: int
    each: int
    groups: int
    words: Words | None = None

    @property
    def numbers(self) -> int:
        """Numbers of k for each element of the axis that is added up."""
        return 1 if self.words is None else self.words.each

    def takes(self, several: int) -> bool:
        """Whether a warp can take so many steps at a time."""
        return self.words is None or self.words.takes(several)

    def tile(self, width: int) -> tuple[int, ...]:
        """The shape of a tile as it is stored."""
        return (width, DEPTH) if self.words is None else (width // 16, 8, 4, 2, 2)

    def orders(self, width: int) -> dict[str, tuple[list[str], list[str]]]:
        """How constants of each type are stored: their indices, and the new ones."""
        if self.words is not None:
            return streamed_words.orders(width)
        return {KIND: (["k", "n"], [f"n // {width}", f"k // {DEPTH}", f"n % {width}", f"k % {DEPTH}"])}


def match(unit: Unit) -> Sketch | None:
    """The sketch of a product of few rows with constants of bfloat16, or words of few bits; None for anything else."""
    makers = [unit.facts] if unit.facts.is_reduction else reduction.makers_of(unit)
    if len(makers) != 1 or not makers[0].spatial or unit.facts.is_ordered:
        return None
    found, facts, machine = reduction.Found(unit, makers[0]), makers[0], nest.threads_of(unit.target)
    rows, columns = tuple(extent(axis) for axis in facts.spatial[:-1]), extent(facts.spatial[-1])
    if KIND not in machine.tensor_cores or machine.warp != 32 or len(rows) not in (1, 2):
        return None
    if not fit.LEAST_STREAM_ROWS <= math.prod(rows) <= MOST_ROWS or max(rows) != math.prod(rows):
        return None
    form = _form(facts, unit.constants)
    if form is None or not reduction.streams_through(facts, unit.constants) or facts.depth % form.step:
        return None
    steps = facts.depth // form.step
    shapes = itertools.product(
        fit.STREAM_WIDTHS, fit.STREAM_PARTS if machine.has_warpgroups else (1,), fit.STREAM_WARPS
    )
    fitting = [shape for shape in shapes if columns % shape[0] == 0 and steps % shape[1] == 0]
    points = [point for shape in fitting if (point := _point(form, steps, *shape)) is not None]
    points = [point for point in points if 32 * point["rows"] * _registers(point) <= machine.registers]
    if not points:
        return None
    best = min(points, key=lambda point: _microseconds(point, facts.depth * form.numbers, columns, machine))
    made = by_rule(
        "streamed tiles", unit, dict(best), lambda point: _apply(found, rows, form, point),
        [] if found.is_alone else [facts], threads=(32,), width=tuple(sorted({one["width"] for one in points})),
        parts=tuple(sorted({one["parts"] for one in points})), rows=tuple(n for n in _divisors(steps) if n <= 16),
        steps=tuple(n for n in _divisors(steps) if n <= max(4, best["steps"]) and form.takes(n)),
    )  # fmt: skip
    return replace(made, legal=lambda c: steps % (c["rows"] * c["parts"] * c["steps"]) == 0)


def _point(form: Form, steps: int, width: int, parts: int, most: int) -> Point | None:
    """The point of a block: as many warps, and steps at a time, as divide what there is."""
    own = steps // parts
    warps = together.divisor_below(own, most)
    loaded = min(fit.STREAM_BYTES // (form.column * width), fit.STREAM_ROW // (form.each * form.groups))
    several = max((n for n in _divisors(own // warps) if n <= max(1, loaded) and form.takes(n)), default=0)
    if not several or warps < fit.LEAST_STREAM_WARPS or own // (warps * several) > fit.STREAM_TURNS:
        return None
    return {"threads": 32, "rows": warps, "width": width, "parts": parts, "steps": several}


def _microseconds(point: Point, depth: int, columns: int, machine: ThreadFacts) -> float:
    """About how long a product takes whose k has so many numbers: what multiprocessors issue, or what a warp waits for.

    Beside a launch; what memory takes is the same for all points.
    """
    width, parts, warps = (point[knob] for knob in ("width", "parts", "rows"))
    own, of_column, of_row, of_warp = fit.STREAM_COST
    whole = machine.multiprocessors if parts < 4 else machine.multiprocessors * fit.CLUSTERS_OF_FOUR
    blocks = columns // width * parts
    issued = math.ceil(blocks / whole) * depth / parts * (of_column * width + of_row)
    held = int(gpu_model.resident_blocks(machine, 32 * warps, _registers(point), 0))
    waited = math.ceil(blocks / whole / held) * depth / parts / warps * of_warp * width
    return float((own if parts > 1 else 0.0) + math.hypot(issued**2, waited**2) ** 0.5)


def _registers(point: Point) -> float:
    """About how many registers a thread takes."""
    own, of_column = fit.STREAM_REGISTERS
    return float(own + of_column * point["width"])


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _form(facts: Facts, constants: Collection[Buffer]) -> Form | None:
    """What form the constants have that are multiplied by rows of float32 along k, if any."""
    main = reduction.main_load(facts)
    if main is None or facts.store is None:
        return None
    others = [load for load in facts.loads if load.buffer not in (main.buffer, facts.store.buffer)]
    left = [load for load in others if load.buffer not in constants]
    wanted = facts.spatial[:-1]
    for load in left:
        pairs = zip(load.indices, wanted)
        plain = all(index is axis.var or extent(axis) == 1 and int_value(index) == 0 for index, axis in pairs)
        if load.buffer is not left[0].buffer or len(load.indices) != len(wanted) + 1 or not plain:
            return None
    if not left or left[0].buffer.dtype.name != "float32":
        return None
    if main.buffer.dtype.name == KIND and len(others) == 1 and left[0].indices[-1] is facts.reduce[0].var:
        return Form(left[0].buffer, DEPTH, DEPTH * 2, DEPTH // 4, 1)
    words = streamed_words.found(facts, main, [load for load in others if load.buffer in constants], len(left))
    unit = streamed_words.UNIT
    return None if words is None else Form(left[0].buffer, unit, unit * 4, words.each, 2, words)


def _apply(found: reduction.Found, rows: tuple[int, ...], form: Form, point: Point) -> None:
    """The whole schedule."""
    unit, facts = found.unit, found.facts
    s, width, warps = unit.schedule, point["width"], point["rows"]
    final, made = s[unit.facts.block.name], s[facts.block.name]
    packed = dict[str, str]()
    for buffer in dict.fromkeys(x.buffer for x in facts.loads if x.buffer in unit.constants):
        name = packed[buffer.dtype.name] = s.buffer_name(s.cache_read(buffer.name, "global", [facts.block.name]))
        inputs, outputs = form.orders(width)[buffer.dtype.name]
        s.apply("transform_layout", buffer=name, inputs=inputs, outputs=outputs)
    if point["parts"] == 1:
        _sums(unit, final, made, packed, rows, form, point)
        return
    (loop,), own = nest.reduce_loops(made), nest.spatial_loops(made)
    made.reorder(loop, *own)
    part, _ = made.split(loop, nparts=point["parts"])
    first = s.rfactor(made.name, part, 0)
    handed = first.block.writes[0].buffer.name
    _sums(unit, s[first.name], s[first.name], packed, rows, form, point)
    if final.name == made.name:
        final, made = _stored(final)
    *others, columns = nest.spatial_loops(final)
    block, inside = final.split(columns, factor=width)
    final.reorder(block, *others, inside)
    final.bind(block, "blockIdx.x")
    nest.attach(made, final, reduction.spread(final, nest.fuse_all(final, [*others, inside]), warps, 32), "local")
    made.unroll(nest.reduce_loops(made)[0])
    around = [f"i{at}" for at in range(len(rows))]
    outputs = [f"n // {width}", "p", *around, f"n % {width}"]
    s.apply("transform_layout", buffer=handed, inputs=["p", *around, "n"], outputs=outputs)
    unit.done |= {made.name, first.name}


def _stored(made: Stage) -> tuple[Stage, Stage]:
    """A reduction that stores its results as what stores them and what makes them in registers."""
    s, name = made.schedule, made.name
    s.cache_write(made.block.writes[0].buffer, "local")
    inner = next(s[one] for one in feeding(s, name) if facts_of(block_named(s, one)).is_reduction)
    return s[name], inner


def _sums(
    unit: Unit, final: Stage, made: Stage, packed: Mapping[str, str], rows: tuple[int, ...], form: Form, point: Point
) -> None:
    """Blocks of columns (and parts of k), whose warps share k: their sums meet in shared memory."""
    s, width, warps, parts = unit.schedule, point["width"], point["rows"], point["parts"]
    if final.name == made.name:
        final, made = _stored(final)
    *around, columns = nest.spatial_loops(final)
    block, inside = final.split(columns, factor=width)
    place = block
    if parts > 1:
        place, *around = around
        final.reorder(block, place, *around, inside)
    else:
        final.reorder(block, *around, inside)
    innermost = reduction.spread(final, nest.fuse_all(final, [*around, inside]), warps, 32)
    (loop,), own = nest.reduce_loops(made), nest.spatial_loops(made)
    made.reorder(loop, *own)
    _, warp, _ = made.split(loop, factors=[None, warps, point["steps"] * form.step])
    partial = s.rfactor(made.name, warp, 0)
    nest.attach(made, final, innermost, "local")
    made.unroll(nest.reduce_loops(made)[0])
    _multiply(s[partial.name], final, place, packed, rows, form, point)
    if parts > 1:
        block = final.fuse(block, place)
        final.annotate(TOGETHER, parts, block)
    final.bind(block, "blockIdx.x")
    final.annotate("resident", 1, block)
    unit.done |= {made.name, partial.name}


def _multiply(
    partial: Stage, final: Stage, place: Var, packed: Mapping[str, str], rows: tuple[int, ...], form: Form, point: Point
) -> None:
    """The sums of a warp: in its registers, from there to shared memory."""
    width, steps, tile = point["width"], point["steps"], form.tile(point["width"])
    kind = KIND if form.words is None else "uint32"
    fetch, load, unload = streamed_tiles.declare_moves(rows, width, tile, kind, form.groups * steps, form.each)
    s = partial.schedule
    nest.attach(partial, final, place, "shared")
    partial.storage_align(-2, 16, 4)
    sums = s.cache_write(partial.block.writes[0].buffer, "mma.few")
    warp, *own = nest.free_loops(partial)
    sums.compute_at(partial, warp)
    partial.bind(warp, "threadIdx.y")
    partial.tensorize(own[0], unload)
    turn, inner = nest.reduce_loops(sums)
    own = [loop for loop in nest.free_loops(sums) if loop not in (turn, inner)]
    sums.reorder(turn, *own, inner)

    def fetched(buffer: str, scope: str, intrinsic: str, axes: int) -> None:
        """What is read of a buffer in a turn, in registers."""
        copy = s.cache_read(buffer, scope, [sums.name])
        copy.compute_at(sums, turn)
        loops = nest.free_loops(copy)
        for loop in loops[loops.index(turn) + 1 : -axes] if turn in loops else loops[:-axes]:
            copy.unroll(loop)
        copy.tensorize(loops[-axes], intrinsic)

    fetched(packed[kind], "mma.w", fetch, len(tile))
    if form.words is None:
        multiply = streamed_tiles.declare(rows, width, steps)
    else:
        scales, multiply = streamed_words.declare(rows, width, steps, form.words)
        fetched(packed["float32"], "mma.row", scales, 3)
    fetched(form.x.name, "mma.few", load, len(rows) + 1)
    sums.annotate("pipeline_stages", 2, turn)  # the next tiles are loaded while these are multiplied
    sums.tensorize(own[0], multiply)

"""Convolutions of bytes by the dot products of vector registers (AVX-512 VNNI), for machines without AMX.

The image lies in blocks of channels, so that four neighbouring channels of a place are four bytes side by side: one
instruction multiplies them with the weights of sixteen output channels (eight, where those do not divide). The nest:

    n, parts of rows, columns     parallel; `columns` are the output channels of a tile
    h, w                          rows and places, `high` × `wide` at a time
    ci, kh, kw, c // 4            the reduction: a block of channels at one place of the window, four at a time
    tile                          `high` × `wide` × `vectors` sums stay in vector registers

The weights are packed when the model is compiled, in the order in which the kernel reads them.
"""

from __future__ import annotations

import dataclasses
import math

from weft.loop.ir import Axis
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch, ceildiv
from weft.schedule.facts import extent
from weft.schedule.schedule import Stage
from weft.targets.cpu import dot
from weft.targets.cpu.default_loops import extent_of
from weft.targets.cpu.model import ruled
from weft.targets.cpu.sketches.conv_amx import Shape, load_bytes, outer_loops, shape_of, weight_names
from weft.targets.cpu.sketches.matmul_dot import GROUP
from weft.targets.cpu.sketches.matmul_facts import sums_and_final

DOTS = {16: dot.VNNI, 8: dot.VNNI_HALF}
"""The instructions by the number of output channels that they take."""

LATENCY = 5.0
"""Cycles until a sum can be added to again."""

MOST_VECTORS, MOST_HIGH = 6, 4


def match(unit: Unit) -> Sketch | None:
    """The sketch of a convolution of bytes in blocks of channels; None for other programs, or other machines."""
    shape = shape_of(unit) if {"avx512vnni", "avx512vl"} <= unit.target.features else None
    if shape is None:
        return None
    if (shape.image.buffer.dtype.name, shape.weight.buffer.dtype.name) != ("uint8", "int8"):
        return None
    shape = dataclasses.replace(shape, width=max(n for n in DOTS if extent(shape.lane) % n == 0))
    vectors, high, wide = _tile(shape, unit.target.vector_registers)
    places = extent(shape.place)
    knobs = {
        "vectors": tuple(_vectors(shape)),
        "high": tuple(range(1, min(shape.height, MOST_HIGH) + 1)),
        "wide": tuple(range(1, min(places, unit.target.vector_registers) + 1)),
        "by_rows": (0, 1),
    }
    by_rows = int(load_bytes(shape.image) >= load_bytes(shape.weight))
    default = {"vectors": vectors, "high": high, "wide": wide, "by_rows": by_rows}
    return ruled("conv_dot", unit, knobs, default, lambda point: _apply(unit, shape, point))


def _vectors(shape: Shape) -> list[int]:
    """How many vectors of channels a tile may have: a part of a block, or whole blocks."""
    lane = extent(shape.lane) // shape.width
    blocks = 1 if shape.block is None else extent(shape.block)
    return [n for n in range(1, MOST_VECTORS + 1) if lane % n == 0 or (n % lane == 0 and blocks % (n // lane) == 0)]


def _tile(shape: Shape, registers: int) -> tuple[int, int, int]:
    """Vectors, rows and places of the register tile: least time by the products and loads of a step.

    A step issues two products and two loads in a cycle; the places of a tile are read where they are multiplied.
    """
    best, chosen = math.inf, (1, 1, 1)
    rows, places = shape.height, extent(shape.place)
    for vectors in _vectors(shape):
        for high in range(1, min(rows, MOST_HIGH) + 1):
            for wide in range(1, min(places, registers) + 1):
                sums = vectors * high * wide
                if sums + vectors + 1 > registers or (high > 1 and wide < places):
                    continue
                tiles = ceildiv(rows, high) * ceildiv(places, wide) / vectors
                cycles = max(sums / 2, (vectors + high * wide) / 2, 2.0 * vectors, LATENCY) + 0.25 * (1 + vectors)
                rest = 0.1 * (places % wide != 0) + 0.04 * (rows % high != 0)
                time = tiles * cycles * (1 + rest)
                if time < best * 0.999:
                    best, chosen = time, (vectors, high, wide)
    return chosen


# ---------------------------------------------------------------------------------------------------------- the sketch


def _apply(unit: Unit, shape: Shape, point: Point) -> None:
    shape = dataclasses.replace(shape, rows=point["wide"])
    sums, final, at = sums_and_final(unit)
    packed = _pack(unit, shape, sums, point["vectors"] * shape.width)
    divided = {"columns": point["vectors"], "across": 1, "high": point["high"], "by_rows": point["by_rows"]}
    around, tile = outer_loops(unit, shape, final, at, divided)
    for loop in tile[:-1]:
        if extent_of(final, loop) > 1:
            final.unroll(loop)
    sums.compute_at(final, around)
    sums.set_scope("local")
    _multiply(unit, sums, shape)
    unit.done.update([sums.name, final.name, packed.name])


def _pack(unit: Unit, shape: Shape, sums: Stage, width: int) -> Stage:
    """The weights in the order in which the kernel reads them: four input channels of `width` outputs together."""
    copy = unit.schedule.cache_read(shape.weight.buffer.name, "global", [sums.name])
    names = weight_names(unit.facts, shape)
    lane, deep = names.lane, names.deep
    inside = [f"{deep} % {names.depth} // {GROUP}", f"{lane} % {width}", f"{deep} % {GROUP}"]
    buffer = copy.block.writes[0].buffer.name
    outputs = [*names.blocks(width), *inside]
    unit.schedule.apply("transform_layout", buffer=buffer, inputs=names.all, outputs=outputs)
    return copy


def _multiply(unit: Unit, sums: Stage, shape: Shape) -> None:
    """The sums of a tile: four channels of the image at a time."""
    facts = unit.facts
    loops = dict(zip([axis.var for axis in (*facts.spatial, *facts.reduce)], [*sums.axis, *sums.reduce_axis]))
    across: list[Axis] = [axis for axis in (shape.row, shape.place, shape.block) if axis is not None]
    tile = [loops[axis.var] for axis in across]
    lane, depth = loops[shape.lane.var], loops[shape.depth.var]
    rest = [loop for loop in sums.axis if loop not in (*tile, lane)]
    reduce = [loop for loop in sums.reduce_axis if loop is not depth]
    vector, lanes = sums.split(lane, factor=shape.width)
    steps, group = sums.split(depth, factor=GROUP)
    sums.reorder(*rest, *reduce, steps, *tile, vector, lanes, group)
    for loop in [*tile, vector]:
        sums.unroll(loop)
    sums.tensorize(lanes, DOTS[shape.width])

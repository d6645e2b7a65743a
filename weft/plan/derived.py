"""A space derived from any reduction: tiles in two levels, results in a cache of their own.

In: a unit of the planner that reduces (sums, maxima, windows, whatever it reads), with the elementwise block that reads
its results where there is one. Out: a sketch with the rules of a master template as knobs, for a search:

    rows, columns     the inner tile along the last two axes; columns are lanes
    row_block, column_block   how many tiles stand side by side in the loop around them
    depth             iterations of the innermost reduction loop that stay together
    cache             results of a tile are kept apart while they are reduced, and copied out when they are done
    unroll            the tile's rows become copies

The estimate knows vectors and registers, and nothing of what is reduced: it orders points, and is compared with no
other sketch. The planner does not offer it; a search does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch
from weft.schedule.facts import extent
from weft.schedule.schedule import Stage

NAME = "tiles"


def tiled(unit: Unit) -> Sketch | None:
    """The sketch of a reduction; None for what is none, or runs in order."""
    facts = unit.facts
    if not facts.is_reduction or facts.is_ordered or not facts.spatial or not facts.reduce:
        return None
    lanes = int(unit.target.lanes(facts.target.dtype))
    rows = extent(facts.spatial[-2]) if len(facts.spatial) > 1 else 1
    across, deep = extent(facts.spatial[-1]), extent(facts.reduce[-1])
    knobs = {
        "rows": tuple(n for n in (1, 2, 3, 4, 6, 8, 12) if n <= rows),
        "columns": tuple(dict.fromkeys(min(n * lanes, across) for n in (1, 2, 3, 4, 8))),
        "row_block": tuple(n for n in (1, 2, 4, 8, 16) if n == 1 or n < rows),
        "column_block": tuple(n for n in (1, 2, 4, 8) if n == 1 or n * lanes < across),
        "depth": tuple(n for n in (1, 4, 16, 64) if n <= deep),
        "cache": (0, 1) if unit.epilogue is None else (0,),
        "unroll": (0, 1),
    }
    work, registers = facts.points * facts.depth, max(int(unit.target.vector_registers), 8)

    def cost(columns: Columns) -> Any:
        """Loads and operations for each result of a tile; what does not fit registers goes through memory."""
        vectors = np.ceil(columns["columns"] / lanes)
        held = columns["rows"] * vectors
        filled = columns["columns"] / (vectors * lanes)
        each = 1.0 + 1.0 / columns["rows"] + 1.0 / vectors + 2.0 * np.maximum(held / registers - 0.75, 0.0)
        waits = np.maximum(1.0, 8.0 / held)
        loose = np.where((columns["cache"] == 1) | (unit.epilogue is not None), 1.0, 1.5)
        return work / lanes * each * waits * loose / filled * 1e-9

    return Sketch(NAME, knobs, lambda point: _apply(unit, point), cost)


def _apply(unit: Unit, point: Point) -> None:
    """The loops of a block in two levels of tiles; what makes its operand a tile at a time is computed there."""
    s, final = unit.schedule, unit.schedule[unit.name]
    inner: Stage | None = s[unit.facts.block.name] if unit.epilogue is not None else None
    if point["cache"]:
        inner = s.cache_write(final.name, "local")
    spatial = list(final.axis)
    outers, blocks, tiles = list(spatial[:-2]), [], []
    knobs = [("rows", "row_block"), ("columns", "column_block")]
    for loop, (tile, block) in zip(spatial[-2:], knobs[-len(spatial[-2:]) :]):
        around, small = final.split(loop, factor=point[tile])
        far, near = final.split(around, factor=point[block])
        outers.append(far)
        blocks.append(near)
        tiles.append(small)
    final.reorder(*outers, *blocks, *_deep(final, point), *tiles)
    if inner is not None:
        inner.compute_at(final, blocks[-1])
        own = list(inner.axis)
        inner.reorder(*own[:-2], *_deep(inner, point), *own[-2:])
        _finish(inner, own[-2:], point)
    _finish(final, tiles, point)
    final.parallel(final.fuse(*outers) if len(outers) > 1 else outers[0])
    unit.done.update({unit.facts.block.name, final.name, *(() if inner is None else (inner.name,))})


def _deep(stage: Stage, point: Point) -> list[Any]:
    """The loops of the reduction, of the innermost some iterations together."""
    reduced = list(stage.reduce_axis)
    if reduced and point["depth"] > 1:
        reduced[-1:] = stage.split(reduced[-1], factor=point["depth"])
    return reduced


def _finish(stage: Stage, tile: list[Any], point: Point) -> None:
    if point["columns"] > 1:
        stage.vectorize(tile[-1])
    if point["unroll"] and len(tile) > 1:
        stage.unroll(tile[0])

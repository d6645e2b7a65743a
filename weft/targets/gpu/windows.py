"""Windows over images whose channels lie together: depthwise convolutions and pooling, a vector of channels a thread.

In: a short reduction, alone or with the block that takes its results at its own elements. Out:

    for each few neighbouring places and vector of channels   a thread
      for each tap of the window                              written out; of a large window only a row of it
        acc[p, v] = acc[p, v] + x[…, p, c + v] * w[tap, c + v]     loads as wide as the machine has
      the epilogue, on the vectors

Windows of neighbouring places overlap: what they share is loaded once, and so is the weight.

A constant weight is packed so that its channels lie together too, once.
"""

from __future__ import annotations

import math

from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch
from weft.schedule.facts import Facts, extent
from weft.schedule.schedule import Stage
from weft.targets.gpu import model, nest
from weft.targets.gpu.elementwise import by_rule, powers
from weft.targets.gpu.product import copy_in_order
from weft.targets.gpu.reduction import main_load, makers_of


def match(unit: Unit) -> Sketch | None:
    """The sketch of a window in vectors of channels; None where the last axis is none of channels."""
    facts, machine = unit.facts, nest.threads_of(unit.target)
    makers = [facts] if facts.is_reduction else makers_of(unit)
    if len(makers) != 1 or facts.is_ordered or not facts.spatial or makers[0].store is None:
        return None
    (made,) = makers
    lanes = _lanes(facts, made, machine.vector_bytes)
    while lanes > 1 and facts.points // lanes < machine.multiprocessors * model.WINDOW_THREADS:
        lanes //= 2
    if lanes < 2 or made.depth > model.WINDOW_TAPS:
        return None
    places = [n for n in model.WINDOW_PLACES if len(facts.spatial) > 1 and extent(facts.spatial[-2]) % n == 0] or [1]
    enough = machine.multiprocessors * model.WINDOW_BUSY
    each = next((n for n in places if n == 1 or facts.points // (lanes * n) >= enough), 1)
    rule = {"threads": nest.threads_for(facts.spatial, machine, lanes * each), "lanes": lanes, "places": each}
    together, some = [] if made is facts else [made], tuple(sorted(places))

    def apply(point: Point) -> None:
        _apply(unit, made, point)

    return by_rule("window", unit, rule, apply, together, lanes=powers(lanes)[1:], places=some)


def _lanes(facts: Facts, made: Facts, vector_bytes: int) -> int:
    """Channels that lie together in what is read most and in what is written, in whole vectors."""
    last, own, main = facts.spatial[-1], made.spatial[-1], main_load(made)
    if main is None or facts.store is None or facts.store_step(last.var) != 1 or made.step(main, own.var) != 1:
        return 1
    widest = max(facts.target.dtype.bytes if facts is made else 1, main.buffer.dtype.bytes)
    return nest.whole_vectors(made, own, [main], min(vector_bytes // widest, model.MOST_LANES))


def _apply(unit: Unit, made: Facts, point: Point) -> None:
    s, name, lanes = unit.schedule, made.block.name, point["lanes"]
    _pack(unit, made)
    if made is unit.facts:
        stage = s[name]
        accumulator = s.cache_write(stage.block.writes[0].buffer, "local")
    else:
        stage, accumulator = s[unit.facts.block.name], s[name]
    *around, channel = nest.spatial_loops(stage)
    channel, vector = stage.split(channel, factor=lanes)
    places = []
    if point["places"] > 1:
        place, inner = stage.split(around.pop(), factor=point["places"])
        around, places = [*around, place], [inner]
    stage.reorder(*around, channel, *places, vector)
    thread = nest.bind_loop(stage, nest.fuse_all(stage, [*around, channel]), unit.target, point["threads"])
    nest.mark(stage, {**nest.unrolled(*places), vector: "vectorize"})
    nest.attach(accumulator, stage, thread, "local")
    _in_vectors(accumulator)
    unit.done.add(accumulator.name)


def _in_vectors(accumulator: Stage) -> None:
    """Taps written out, channels of each as a vector."""
    taps = nest.reduce_loops(accumulator)
    *places, channel = [loop for loop in nest.long_loops(accumulator) if loop not in taps]
    accumulator.reorder(*taps, *places, channel)
    written = math.prod(nest.extent_of(accumulator, loop) for loop in (*taps, *places))
    kept = taps[: int(len(taps) > 1 and written > model.WINDOW_WRITTEN)]
    nest.mark(
        accumulator, {**nest.unrolled(*[loop for loop in taps if loop not in kept], *places), channel: "vectorize"}
    )


def _pack(unit: Unit, made: Facts) -> None:
    """A constant that is read along taps gets its channels last."""
    channel = made.spatial[-1]
    for load in made.loads:
        if load.buffer in unit.constants and made.step(load, channel.var) not in (0, 1):
            copy_in_order(unit.schedule, load, made.block.name, [channel])

"""Windows over images whose channels lie together: depthwise convolutions and pooling, a vector of channels a thread.

In: a short reduction, alone or with the block that takes its results at its own elements. Out:

    for each few neighbouring places and vector of channels   a thread
      for each tap of the window                              written out; of a large window only a row of it
        acc[p, v] = acc[p, v] + x[…, p, c + v] * w[tap, c + v]     loads as wide as the machine has
      the epilogue, on the vectors

Windows of neighbouring places overlap: what they share is loaded once, and so is the weight. An image with zeros around
it is a stage: a row of it goes into registers, so that no test is around the loads of the taps.

A constant weight is packed so that its channels lie together too, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.core.errors import ScheduleError
from weft.expr.nodes import Load, Select, Var
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding
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
    lanes, padded = _lanes(facts, made, machine.vector_bytes), _padded(unit, made)
    least = 2 if padded else 1  # a stage that was kept for this sketch needs it
    while lanes > least and facts.points // lanes < machine.multiprocessors * model.WINDOW_THREADS:
        lanes //= 2
    if lanes < 2 or made.depth > model.WINDOW_TAPS:
        return None
    places = [n for n in model.WINDOW_PLACES if len(facts.spatial) > 1 and extent(facts.spatial[-2]) % n == 0] or [1]
    enough = machine.multiprocessors * model.WINDOW_BUSY
    each = next((n for n in places if n == 1 or facts.points // (lanes * n) >= enough), 1)
    rule = {"threads": nest.threads_for(facts.spatial, machine, lanes * each), "lanes": lanes, "places": each}
    together, some = [*([] if made is facts else [made]), *padded], tuple(sorted(places))

    def apply(point: Point) -> None:
        _apply(unit, made, point)

    return by_rule("window", unit, rule, apply, together, lanes=powers(lanes)[1:], places=some)


def keeps(producer: Facts, reader: Facts) -> bool:
    """Whether a block reads another, an image with something around it, in a window of vectors of channels."""
    value = producer.store.value if producer.store is not None else None
    if not isinstance(value, Select) or not isinstance(value.then, Load):
        return False
    if not reader.is_reduction or not reader.spatial:
        return False
    main = main_load(reader)
    if main is None or main.buffer is not producer.target or not 1 < reader.depth <= model.WINDOW_TAPS:
        return False
    channel = reader.spatial[-1].var
    if any(reader.step(load, channel) == 0 for load in reader.loads):
        return False  # a product of all channels
    return sum(extent(axis) > 1 for axis in reader.reduce) > 1 and _lanes(reader, reader, model.ROW_VECTOR) > 1


def _padded(unit: Unit, made: Facts) -> list[Facts]:
    """The stage of an image with something around it, where there is one."""
    s, main = unit.schedule, main_load(made)
    before = [facts_of(block_named(s, name)) for name in feeding(s, made.block.name) if name not in unit.done]
    return [one for one in before if main is not None and one.target is main.buffer and not one.is_reduction]


def _lanes(facts: Facts, made: Facts, vector_bytes: int) -> int:
    """Channels that lie together in what is read most and in what is written, in whole vectors."""
    if not made.spatial:
        return 1
    last, own, main = facts.spatial[-1], made.spatial[-1], main_load(made)
    if main is None or facts.store is None or facts.store_step(last.var) != 1 or made.step(main, own.var) != 1:
        return 1
    widest = max(facts.target.dtype.bytes if facts is made else 1, main.buffer.dtype.bytes)
    return nest.whole_vectors(made, own, [main], min(vector_bytes // widest, model.MOST_LANES))


def _apply(unit: Unit, made: Facts, point: Point) -> None:
    s, name, lanes = unit.schedule, made.block.name, point["lanes"]
    padded = _padded(unit, made)
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
    _in_vectors(unit, accumulator, [s[one.block.name] for one in padded])
    unit.done.add(accumulator.name)


def _in_vectors(unit: Unit, accumulator: Stage, padded: Sequence[Stage]) -> None:
    """Taps written out, channels of each as a vector."""
    taps = nest.reduce_loops(accumulator)
    *places, channel = [loop for loop in nest.long_loops(accumulator) if loop not in taps]
    accumulator.reorder(*taps, *places, channel)
    for image in padded:
        with unit.schedule.attempt("rows of the window", unit.done) as tried:
            _keep_row(unit, accumulator, image, taps[0])
        if not tried:
            image.compute_inline()
    written = math.prod(nest.extent_of(accumulator, loop) for loop in (*taps, *places))
    kept = taps[: int(len(taps) > 1 and written > model.WINDOW_WRITTEN)]
    nest.mark(
        accumulator, {**nest.unrolled(*[loop for loop in taps if loop not in kept], *places), channel: "vectorize"}
    )


def _keep_row(unit: Unit, accumulator: Stage, image: Stage, row: Var) -> None:
    """What the taps of a row read of an image, once for all of them, into registers."""
    nest.attach(image, accumulator, row, "local")
    *places, channel = nest.long_loops(image)
    if math.prod(nest.extent_of(image, loop) for loop in (*places, channel)) > model.WINDOW_KEPT:
        raise ScheduleError("window", accumulator.name, "a row of it is too long")
    nest.mark(image, {**nest.unrolled(*places), channel: "vectorize"})
    unit.done.add(image.name)


def _pack(unit: Unit, made: Facts) -> None:
    """A constant that is read along taps gets its channels last."""
    channel = made.spatial[-1]
    for load in made.loads:
        if load.buffer in unit.constants and made.step(load, channel.var) not in (0, 1):
            copy_in_order(unit.schedule, load, made.block.name, [channel])

"""Blocks that compute each element by itself: vectors of neighbours, a thread for each, enough blocks.

out[i, j] = f(in[i, j])         all axes fused; a thread takes a vector, several where there are very many
out[i, j] = in[j, i]            a tile goes through shared memory, so that reads and writes both run along rows
anything else                   axes fused and divided among threads: `bind_flat` is legal for every block
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.expr.nodes import Load, Var, int_value
from weft.loop.ir import Axis
from weft.plan.contraction import load_bytes
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, around_rule
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding
from weft.schedule.schedule import Stage
from weft.targets.base import Target
from weft.targets.gpu import model, nest


def by_rule(
    name: str,
    unit: Unit,
    rule: dict[str, int],
    apply: Callable[[Point], None],
    together: Sequence[Facts] = (),
    is_scattered: bool = False,
    blocks: int | None = None,
    whole: int = 0,
    divided: Sequence[str] = (),
    **knobs: Sequence[int],
) -> Sketch:
    """A sketch around the point that a rule names: of each knob half as much, as much, and twice as much, or `knobs`.

    It costs the bytes of the block and all stages before it, but not those that it computes `together` with the block
    hand on; twice where they are scattered and more where there are few `blocks` to ask for them; and a launch for
    itself and each other stage. A block has `rows` of `threads`; `whole` is what these had better divide. Blocks begin
    one after another: as many as there are elements by the knobs by which these are `divided`.
    """
    facts, machine = unit.facts, nest.threads_of(unit.target)
    inside = {stage.block.name for stage in together}
    before = [name for name in feeding(unit.schedule, facts.block.name) if name not in unit.done and name not in inside]
    apart = [facts_of(block_named(unit.schedule, name)) for name in before]
    made = {region.buffer for stage in together for region in stage.block.writes}
    read = {(stage in apart, x.buffer): load_bytes(x) for stage in (facts, *together, *apart) for x in stage.loads}
    moved = float(sum(size for (_, buffer), size in read.items() if buffer not in made))
    moved += sum(stage.points * region.buffer.dtype.bytes for stage in (facts, *apart) for region in stage.block.writes)
    fit, many = model.model_of(machine), machine.multiprocessors
    turn, least = fit.turn / machine.lanes / many, moved / fit.stream_bytes / many
    own, others = (sum(x.points * x.depth * turn for x in y if x.is_reduction) for y in ((facts, *together), apart))
    moved *= model.SCATTERED if is_scattered else 1
    near = around_rule(rule, model.stream_seconds(machine, moved, 1 + len(apart), blocks))
    choices = {knob: tuple(knobs.get(knob, sorted({max(1, n // 2), n, 2 * n}))) for knob, n in rule.items()}
    fits = any(whole % threads == 0 for threads in choices["threads"])  # else this says nothing of other sketches

    def cost(c: Columns) -> Any:
        begun = facts.points / math.prod(c[knob] for knob in divided) - model.BEGUN * many if divided else 0
        beyond = np.maximum(begun * fit.begin, max(least, own)) - least + others
        uneven = np.where(whole % c["threads"], model.UNEVEN, 1.0) if fits else 1.0
        return near(c) * uneven + model.seconds(beyond, machine)

    return Sketch(name, choices, apply, cost, lambda c: c["threads"] * c.get("rows", 1) <= machine.block_threads)


def powers(most: int) -> tuple[int, ...]:
    """1, 2, 4, … up to a number."""
    return tuple(1 << n for n in range(most.bit_length()))


# ---------------------------------------------------------------------------------------------------- any block at all


def bind_flat(stage: Stage, target: Target) -> bool:
    """Divides all that may run at once among blocks and threads; False where nothing may. Legal for every block."""
    loops = _steps_inside(stage)
    if not loops:
        loops = nest.spatial_loops(stage)
        inside = [loop for loop in nest.loops_of_step(stage) if loop not in loops]
        if loops and inside:
            stage.reorder(*loops, *inside)
    if loops:
        nest.bind_loop(stage, nest.fuse_all(stage, loops), target)
    return bool(loops)


def _steps_inside(stage: Stage) -> list[Var]:
    """Puts the steps of a recurrence whose elements do not meet (a running sum) inside the loops over the elements.

    Each thread then runs all steps of its element, in one kernel. Gives the loops over the elements, if that was done.
    """
    loops = nest.free_loops(stage)
    steps = [loop for loop in loops if "ordered" in nest.kinds_of(stage, loop)]
    others = [loop for loop in loops if nest.kinds_of(stage, loop) == {"spatial"}]
    if not steps or not others or len(steps) + len(others) != len(loops):
        return []
    with stage.schedule.attempt("steps inside") as tried:  # refused where a step needs other elements of the one before
        stage.reorder(*others, *steps)
    return others if tried else []


# ------------------------------------------------------------------------------------------------------------- vectors


def _takes(unit: Unit) -> bool:
    """Whether a block computes each element by itself, in loops of its own."""
    facts = unit.facts
    loops = nest.spatial_loops(unit.schedule[facts.block.name])
    return bool(loops) and not facts.is_reduction and not facts.is_ordered and len(loops) == len(facts.spatial)


def match(unit: Unit) -> Sketch | None:
    """The sketch of an elementwise block: lanes of a vector, vectors of a thread, threads of a block."""
    if not _takes(unit):
        return None
    facts, machine = unit.facts, nest.threads_of(unit.target)
    most = lanes = vector_lanes(facts, unit.target)
    while lanes > 1 and facts.points // lanes < model.VECTORS_FOR_EACH * machine.warp * machine.multiprocessors:
        lanes //= 2
    rule = {"lanes": lanes, "copies": _copies(unit, facts.points // lanes) if lanes > 1 else 1}
    threads = min(model.BLOCK, machine.block_threads)
    rule["threads"] = threads if rule["copies"] > 1 else nest.threads_for(facts.spatial, machine, lanes)
    return by_rule(
        "elementwise", unit, rule, lambda point: _apply(unit, point), is_scattered=_turned_load(facts) is not None,
        divided=tuple(rule), lanes=powers(most), copies=powers(rule["copies"]),
    )  # fmt: skip


def _copies(unit: Unit, count: int) -> int:
    """How many of so many vectors a thread takes: several where there are very many of them."""
    machine, copies = nest.threads_of(unit.target), model.COPIES
    held = model.COPIED_THREADS * machine.multiprocessor_threads * machine.multiprocessors
    while copies > 1 and (
        count % (model.BLOCK * copies) or count < copies * held or len(unit.facts.loads) > model.COPIED_LOADS
    ):
        copies //= 2
    return copies


def _apply(unit: Unit, point: Point) -> None:
    stage = unit.schedule[unit.facts.block.name]
    loops, lanes = nest.spatial_loops(stage), point["lanes"]
    if lanes > 1:
        loops[-1], vector = stage.split(loops[-1], factor=lanes)
    flat = nest.fuse_all(stage, loops)
    if point["copies"] == 1:
        nest.bind_loop(stage, flat, unit.target, point["threads"])
    else:
        block, copy, thread = stage.split(flat, factors=[None, point["copies"], point["threads"]])
        nest.arrange(stage, {block: "blockIdx.x", thread: "threadIdx.x", copy: "unroll"})
    if lanes > 1:
        stage.vectorize(vector)


def vector_lanes(facts: Facts, target: Target) -> int:
    """Elements that one thread loads or stores at a time along the last axis."""
    if not facts.spatial or facts.store is None:
        return 1
    last = facts.spatial[-1]
    steps = {load: facts.step(load, last.var) for load in facts.loads}
    apart = [load for load, step in steps.items() if step not in (0, 1)]
    if facts.store_step(last.var) != 1 or not all(_is_gathered(facts, load) for load in apart):
        return 1
    wide = [load for load, step in steps.items() if step == 1]
    widest = max(facts.target.dtype.bytes, *(load.buffer.dtype.bytes for load in wide), 0)
    return nest.whole_vectors(facts, last, wide, min(nest.threads_of(target).vector_bytes // widest, model.MOST_LANES))


def _is_gathered(facts: Facts, load: Load) -> bool:
    """Whether neighbours along the last axis lie apart, but those of neighbouring vectors nearly side by side: planes
    of an image that become channels of a place."""
    if len(facts.spatial) < 2 or extent(facts.spatial[-1]) > model.MOST_GATHERED:
        return False
    step = facts.step(load, facts.spatial[-2].var)
    return step is not None and 0 < step <= model.NEAR


# ------------------------------------------------------------------------------------------------------ transposition


def _turned_load(facts: Facts) -> tuple[Load, int] | None:
    """A load of a whole tensor whose neighbours lie along another axis than those of what is stored, and the number of
    that axis."""
    if facts.store is None or len(facts.spatial) < 2:
        return None
    last = _stored_along(facts)
    for load in facts.loads:
        moving = [i for i in load.indices if int_value(i) != 0]
        if facts.step(load, last.var) in (0, 1) or not all(isinstance(i, Var) for i in moving):
            continue
        if len(set(moving)) != len(moving) or not moving:
            continue
        if sum(other.buffer is load.buffer for other in facts.loads) > 1:
            continue  # also read elsewhere: the tile would have to hold both places
        for position, axis in enumerate(facts.spatial):
            short = min(extent(axis), extent(last)) < model.LEAST_TURNED
            if load.indices[-1] is axis.var and axis is not last and not short:
                return load, position
    return None


def _stored_along(facts: Facts) -> Axis:
    """The axis along which a block stores neighbours; the last one where none does."""
    along = (axis for axis in reversed(facts.spatial) if extent(axis) > 1 and facts.store_step(axis.var) == 1)
    return next(along, facts.spatial[-1])


def match_transposition(unit: Unit) -> Sketch | None:
    """The sketch of a block that reads neighbours of another axis: a tile through shared memory, by rows of threads."""
    turned = _turned_load(unit.facts) if _takes(unit) else None
    if turned is None:
        return None
    rows = max(1, min(model.BLOCK, nest.threads_of(unit.target).block_threads) // model.TILE)
    rule, tile = {"threads": model.TILE, "rows": rows}, (model.TILE,)
    return by_rule("transposition", unit, rule, lambda p: _through_shared(unit, *turned, p["rows"]), threads=tile)


def _through_shared(unit: Unit, load: Load, position: int, rows: int) -> None:
    """A tile is read along the input's rows into padded shared memory, and written along the output's."""
    s, stage = unit.schedule, unit.schedule[unit.facts.block.name]
    loops, axis = nest.spatial_loops(stage), _stored_along(unit.facts)
    other, last = loops[position], loops[unit.facts.spatial.index(axis)]
    tile = s.cache_read(load.buffer, "shared", [stage.name])
    other_block, other_in = stage.split(other, factor=model.TILE)
    last_block, last_in = stage.split(last, factor=model.TILE)
    outer = [loop for loop in loops if loop is not other and loop is not last]
    stage.reorder(*outer, other_block, last_block, other_in, last_in)
    grid = nest.fuse_all(stage, [*outer, other_block, last_block])
    stage.bind(grid, "blockIdx.x")
    tile.compute_at(stage, grid)
    _rows_of_threads(stage, other_in, last_in, rows)
    *others, column = nest.long_loops(tile)
    _rows_of_threads(tile, nest.fuse_all(tile, others), column, rows)
    padded = load.indices.index(axis.var)  # the output's last axis: its stride meets other banks
    tile.storage_align(padded, model.TILE, 1)


def _rows_of_threads(stage: Stage, row: Var, column: Var, rows: int) -> None:
    """A tile divided among rows of threads, each of which takes every so-manieth row."""
    step, thread = stage.split(row, factor=rows)
    nest.arrange(stage, {thread: "threadIdx.y", column: "threadIdx.x", step: "unroll"})

"""Plain reductions, alone or with the block that takes their results at its own elements.

sum over what lies together     threads of a block share a row: each adds up a part, the parts meet in shared memory
sum over what lies far apart    a thread for each element; where there are few of them, rows of threads share it
few elements, much to add       parts in blocks of their own first, then the sum of the parts: two kernels
a short sum and its reader      each thread of the reader reduces what it needs, in registers

    s[i] = sum over k of A[i, k]              `cross_threads`: neighbours are summed; a row of threads for each i

    C[j] = sum over k of A[k] * B[k, j]       `share_columns`: neighbours are neighbours in the result
        block    a few vectors of neighbours (a line of memory) of the result
        thread   one vector of them, for its part of k: the loads are as wide as the machine has, several on their way
        then     the parts meet in shared memory, in two rounds

What columns cost is their bytes: on an H200, a vector times 4096 × 4096 takes 8 % less time in loads of 16 bytes than
in loads of one element for float32, and 24 % less for bfloat16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from weft.expr.nodes import Buffer, Load, Var, int_value
from weft.loop.tree import blocks_in
from weft.plan.contraction import is_sum_of_products, load_bytes, producers_of_epilogue
from weft.plan.planner import Unit, analytic, choose, unit_of
from weft.plan.sketch import Point, Sketch
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding, names_of, sole_reader
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.gpu import model, nest
from weft.targets.gpu.elementwise import bind_flat, by_rule, powers
from weft.targets.gpu.together import cross_block, cross_threads, divisor_below, load_vectors, unroll_some


def waits_for_weights(target: Target) -> Callable[[int, int], bool]:
    """What `narrow_weights` asks: few rows wait for their weights, wherever these lie."""
    return lambda rows, size: rows <= model.MOST_WAITING_ROWS


def merger(target: Target) -> Callable[[int, int, Sequence[int], bool], bool]:
    """What `merge_products` asks: launches cost more than what few rows write and read again without an epilogue."""
    return lambda rows, inner, columns, epilogues: not epilogues or 0 < rows <= model.MOST_WAITING_ROWS


def computes_rows(target: Target) -> Callable[[int, int], bool]:
    """What `fuse` asks: each block of a vector product computes the vector, which is less than a launch for it."""
    return lambda rows, elements: rows == 1 and elements <= model.COMPUTED_ROW


def words_for_few_rows(target: Target) -> Callable[[int, int], tuple[str, int] | None]:
    """What `few_bits` asks: words of weights, where few rows wait for them."""
    return lambda rows, columns: ("uint32", 1) if rows <= model.MOST_WAITING_ROWS else None


def is_contiguous(facts: Facts) -> bool:
    """Whether neighbours in memory are reduced into one element, in the largest of what is read."""
    main = main_load(facts)
    if main is None or any(facts.step(main, axis.var) == 1 for axis in facts.spatial if extent(axis) > 1):
        return False
    return any(facts.step(main, axis.var) == 1 for axis in facts.reduce if extent(axis) > 1)


# ------------------------------------------------------------------------------------------------ which reduction it is


@dataclass(frozen=True)
class Found:
    """A reduction and the block that stores its results: itself, or the only reader of them."""

    unit: Unit
    facts: Facts

    @property
    def is_alone(self) -> bool:
        """Whether the reduction stores its results itself."""
        return self.facts is self.unit.facts

    @property
    def step(self) -> int:
        """How many neighbours of the reduction an element of the block takes: several, where they take turns."""
        return max(1, self.facts.points // self.unit.facts.points)

    def attach(self, bind: Callable[[Stage, Var], Var], scope: str) -> Stage:
        """Binds the loops of the block that stores; gives the reduction, inside the innermost of what was bound."""
        final, made = (self.unit.schedule[facts.block.name] for facts in (self.unit.facts, self.facts))
        loops = nest.spatial_loops(final)
        if self.is_alone and loops:
            final.reorder(*loops, *nest.reduce_loops(final))
        place = bind(final, nest.fuse_all(final, loops)) if loops else None
        if place is not None and not self.is_alone:
            nest.attach(made, final, place, scope)
            self.unit.done.add(made.name)
        return made

    def before(self) -> list[Facts]:
        """The stages, last first, that make the one row of a product, which each block computes for itself."""
        s, facts = self.unit.schedule, self.facts
        if not facts.spatial or facts.points != extent(facts.spatial[-1]):
            return []
        near = [facts_of(block_named(s, name)) for name in feeding(s, facts.block.name) if name not in self.unit.done]
        fits = all(one.points * one.depth <= model.COMPUTED_ROW and not one.is_ordered and one.store for one in near)
        return near if fits and is_sum_of_products(facts) else []

    def sketch(
        self, name: str, rule: dict[str, int], apply: Callable[[Point], None], is_scattered: bool, whole: int = 0,
        **some: Sequence[int],
    ) -> Sketch:  # fmt: skip
        """A sketch around a rule; with `parts`, two kernels."""

        def in_parts(point: Point) -> None:
            if point["parts"] > 1:
                _split(self.unit, point["parts"])
            else:
                apply(point)

        together = self.before() if self.is_alone else [self.facts, *self.before()]
        lanes, parts = [n for n in powers(rule["lanes"]) if n % self.step == 0], sorted({1, rule["parts"]})
        some = {"lanes": lanes, "parts": parts, **some}
        return by_rule(name, self.unit, rule, in_parts, together, is_scattered, None, whole, (), **some)


def _shared(unit: Unit) -> Found | None:
    """The reduction that threads may share: a block that reduces, or the one long reduction that it reads."""
    facts = unit.facts
    if facts.is_ordered:
        return None
    if facts.is_reduction:
        return Found(unit, facts) if nest.reduce_loops(unit.schedule[facts.block.name]) else None
    makers = makers_of(unit)
    if len(makers) != 1 or not _is_worth_sharing(makers[0], unit.target) or row_parts(makers[0], unit.target) > 1:
        return None
    return Found(unit, makers[0])


def makers_of(unit: Unit) -> list[Facts]:
    """The reductions whose results an elementwise block takes at its own elements, in program order."""
    facts, s = unit.facts, unit.schedule
    if facts.is_reduction or facts.is_ordered or not nest.spatial_loops(s[facts.block.name]):
        return []
    found = [maker for maker, _ in producers_of_epilogue(s, facts)] or _in_turns(s, facts)
    taken = {maker.block.name: maker for maker in found if maker.store is not None and not maker.is_ordered}
    return [taken[name] for name in names_of(s) if name in taken and name not in unit.done]


def _in_turns(s: Schedule, reader: Facts) -> list[Facts]:
    """The reduction of one row of which a block, alone, takes so many neighbours at each of its elements, if any."""
    loads, last = [load for load in reader.loads if load.buffer not in s.func.buffers], reader.spatial[-1]
    makers = [b for b in blocks_in(s.func.body) if any(w.buffer is load.buffer for load in loads for w in b.writes)]
    if len(makers) != 1 or sole_reader(s.func, loads[0].buffer) is None or extent(last) != reader.points:
        return []
    maker, steps = facts_of(makers[0]), {reader.step(load, last.var) for load in loads}
    fits = maker.is_reduction and bool(maker.spatial) and maker.points == extent(maker.spatial[-1]) > extent(last)
    return [maker] if fits and steps == {maker.points / extent(last)} else []


def _is_worth_sharing(facts: Facts, target: Target) -> bool:
    """Whether several threads should share the reduction of one element."""
    machine = nest.threads_of(target)
    few = facts.points < model.SHARED_ELEMENTS * machine.multiprocessors * machine.warp
    return facts.depth * _products(facts) > model.SHARED_FROM and few


def _products(facts: Facts) -> int:
    """How many products a turn of a reduction is: several, where a word holds several numbers."""
    return max(1, len(facts.loads) // 2)


def _split(unit: Unit, parts: int) -> None:
    """A reduction as parts in global memory, each computed on its own, and the reduction of the parts."""
    s, stage = unit.schedule, unit.schedule[unit.facts.block.name]
    outer, _ = stage.split(nest.fuse_all(stage, nest.reduce_loops(stage)), nparts=parts)
    # Outermost, so that the parts and their sum do not meet inside the loops over elements, which both bind.
    stage.reorder(outer, *nest.spatial_loops(stage))
    for name in (s.rfactor(stage.name, outer).name, stage.name):
        if not choose(unit_of(s, name, unit.target), (match_rows, match_columns), analytic):
            bind_flat(s[name], unit.target)


# --------------------------------------------------------------------------------------------------- what lies together


def match_rows(unit: Unit) -> Sketch | None:
    """The sketch of a reduction of neighbours: a row of threads for each element."""
    found = _shared(unit)
    if found is None or found.step > 1 or not is_contiguous(found.facts) or found.facts.depth < model.LEAST_ROW:
        return None
    if found.facts.store is None:  # several results, or a test at the end: nothing that threads could share
        return None
    facts, target = found.facts, unit.target
    threads, together = row_threads(facts.depth, facts.points, target)
    lanes = _row_lanes(facts, target) if facts.depth >= model.ROW_VECTORS * threads else 1
    if lanes > 1:  # every thread has some vectors to load
        several = nest.power_of_two(facts.depth // (model.ROW_VECTORS * lanes))
        threads = max(min(model.LEAST_BLOCK, threads), min(threads, several))
    together = together if found.is_alone else 1  # stages in shared memory are computed for all rows of a block
    rule = {"threads": threads, "rows": together, "lanes": lanes, "parts": row_parts(facts, target)}

    def bind(stage: Stage, row: Var, rows: int) -> Var:
        """A block for each row, or for several of them."""
        block, *inner = stage.split(row, factor=rows) if rows > 1 else (row,)
        nest.mark(stage, {block: "blockIdx.x"} | dict.fromkeys(inner, "threadIdx.y"))
        return inner[0] if inner else block

    def apply(point: Point) -> None:
        made = found.attach(lambda stage, row: bind(stage, row, point["rows"]), "shared")
        cross_threads(made, point["threads"], lanes=point["lanes"])

    knobs = {} if found.is_alone else {"rows": (1,)}
    return found.sketch("row reduction", rule, apply, False, facts.depth if lanes == 1 else 0, **knobs)


def row_threads(length: int, rows: int, target: Target) -> tuple[int, int]:
    """Threads for each row, and rows for each block."""
    machine = nest.threads_of(target)
    full = model.FULL_ROUNDS * machine.multiprocessors
    values = model.FEW_ROW_VALUES if rows < full else model.ROW_VALUES
    threads = max(min(machine.warp, model.LEAST_BLOCK), nest.power_of_two(length // values))
    most = model.LONG_ROW_THREADS if length >= model.LONG_ROW else model.ROW_THREADS
    most = model.LONE_ROW_THREADS if rows < machine.multiprocessors else most
    threads = min(threads, most, machine.block_threads)
    return threads, nest.power_of_two(max(1, min(model.ROWS_THREADS // threads, rows // full)))


def _row_lanes(facts: Facts, target: Target) -> int:
    """Neighbours that a thread loads at a time along a reduction: whole vectors, each row from a multiple on."""
    last = facts.reduce[-1]
    wide = [load for load in facts.loads if facts.step(load, last.var) == 1]
    if not wide or any(not isinstance(index, Var) for load in facts.loads for index in load.indices):
        return 1
    most = nest.threads_of(target).vector_bytes // max(load.buffer.dtype.bytes for load in wide)
    return nest.whole_vectors(facts, last, wide, most)


def row_parts(facts: Facts, target: Target) -> int:
    """Into how many equal parts a long reduction of few elements is cut, so that there are enough blocks."""
    machine = nest.threads_of(target)
    if facts.points * 2 > machine.multiprocessors or facts.depth < model.PARTED_ROW or facts.store is None:
        return 1
    enough = model.FULL_ROUNDS * machine.multiprocessors // facts.points
    return _equal_parts(facts.depth, min(enough, facts.depth // model.ROW_PART))


def _equal_parts(depth: int, most: int) -> int:
    """The greatest power of two of parts, not above a number, that leaves none of another length."""
    return math.gcd(depth, nest.power_of_two(most))


# ------------------------------------------------------------------------------------------------- what lies far apart


def match_columns(unit: Unit) -> Sketch | None:
    """The sketch of a reduction whose neighbours are elements of the result: rows of threads share it, if any."""
    found = _shared(unit)
    if found is None or not nest.spatial_loops(unit.schedule[unit.facts.block.name]):
        return None
    facts, target = found.facts, unit.target
    is_scattered = is_contiguous(facts)
    if is_scattered and not found.is_alone:
        return None
    machine = nest.threads_of(target)
    wanted = machine.multiprocessors * model.COLUMN_THREADS
    share = min(max(1, wanted // max(1, facts.points)), facts.depth // model.COLUMN_DEPTH, model.MOST_SHARE)
    rows = 1 if facts.store is None else nest.power_of_two(share)
    if is_window := rows <= model.WINDOW_SHARE and sum(extent(axis) > 1 for axis in facts.reduce) > 1:
        rows = 1
    rule = {"threads": min(machine.warp, model.LEAST_BLOCK), "rows": rows, "lanes": 1, "parts": 1}
    plain = rows == 1 and found.is_alone and not is_packable(facts, unit.constants, 1)
    columns = None if plain else choose_columns(facts, target, unit.constants)
    if found.step > 1 and (columns is None or columns["lanes"] % found.step):
        return None
    if columns is not None:
        rule |= columns
    elif rows == 1:
        rule["threads"] = nest.threads_for(facts.spatial, machine)
        if is_window and (whole := math.gcd(facts.points, rule["threads"])) >= machine.warp:
            rule["threads"] = whole
    if rows > 1 and found.is_alone and facts.points * rows < machine.multiprocessors * model.PARTED_THREADS:
        deep = facts.depth // (rows * model.COLUMN_PART)
        rule["parts"] = _equal_parts(facts.depth, min(wanted // (facts.points * rows), deep))
    return found.sketch("column reduction", rule, lambda point: _apply_columns(found, point), is_scattered)


def _apply_columns(found: Found, point: Point) -> None:
    """Columns are neighbouring threads of a block, or vectors of these."""
    target, lanes = found.unit.target, point["lanes"]
    is_shared = lanes > 1 or point["rows"] > 1
    before = found.before() if is_shared else []
    width = point["threads"] * lanes
    ring = lanes > 1 and _has_ring(found.facts, target, found.unit.constants, width)
    ring = ring and found.facts.points == extent(found.facts.spatial[-1])
    together = point["rows"] if ring and _are_warps(found, point) else 1
    ahead = _pack_columns(found, width, lanes, together) if lanes > 1 else []
    ring = ring and bool(ahead)
    asked = [] if ring else ahead  # the others come by themselves

    def bind(stage: Stage, flat: Var) -> Var:
        if not is_shared:
            return nest.bind_loop(stage, flat, target, point["threads"])
        inner = [lanes // found.step] if lanes > found.step else []
        block, thread, *vector = stage.split(flat, factors=[None, point["threads"], *inner])
        nest.mark(stage, {block: "blockIdx.x", thread: "threadIdx.x"})
        if asked:
            stage.annotate("fetched_ahead", asked, block)
        if vector and not found.is_alone:
            stage.vectorize(vector[0])
        return thread

    if ahead and found.facts.points > extent(found.facts.spatial[-1]):
        return _share_rows(found, point, ahead)
    if ring:
        return _share_ring(found, point, before, [str(name) for name, *_ in ahead])
    made = found.attach(bind, "local")
    if lanes > 1:
        share_columns(made, lanes, point["rows"])
    elif is_shared:
        cross_threads(made, point["rows"], "threadIdx.y")
    for facts in before:
        _compute_in_block(found, facts, (point["rows"], point["threads"]))


def _share_rows(found: Found, point: Point, ahead: list[list[str | int]]) -> None:
    """Columns of several rows: a thread loads a vector of weights once and adds it up for all rows.

    Its sums lie in shared memory, those of neighbouring threads beside each other, and all threads add these up.
    """
    s, lanes, threads, share = found.unit.schedule, point["lanes"], point["threads"], point["rows"]
    final = s[found.unit.facts.block.name]
    if found.is_alone:
        s.cache_write(final.block.writes[0].buffer, "shared")
    made = s[found.facts.block.name]
    if found.is_alone:  # what computes has the new name: the block that stores is the copy
        made = next(s[name] for name in feeding(s, final.name) if facts_of(block_named(s, name)).is_reduction)
    *rows, columns = nest.spatial_loops(final)
    block, inside = final.split(columns, factor=threads * lanes)
    final.reorder(block, *rows, inside)
    final.bind(block, "blockIdx.x")
    final.annotate("fetched_ahead", ahead, block)
    nest.attach(made, final, block, "shared")
    spread(final, nest.fuse_all(final, [*rows, inside]), share, threads)
    (loop,), own = nest.reduce_loops(made), nest.spatial_loops(made)
    made.reorder(loop, *own)  # outermost, so that the parts and their sum do not meet inside the loops that both bind
    _, part = made.split(loop, factor=share)
    partial = s.rfactor(made.name, part, -1)
    partial.set_scope("shared")
    partial.storage_align(-2, 2, 1)
    sums = s.cache_write(partial.block.writes[0].buffer, "local")
    *rows, inside, thread = nest.free_loops(partial)
    across, vector = partial.split(inside, factor=lanes)
    partial.reorder(thread, across, *rows, vector)
    nest.mark(partial, {thread: "threadIdx.y", across: "threadIdx.x", **nest.unrolled(*rows, vector)})
    sums.compute_at(partial, across)
    rows_of = found.facts.points // extent(found.facts.spatial[-1])
    written = max(1, model.WRITTEN_PRODUCTS // (_products(found.facts) * rows_of * lanes))
    _accumulate(sums, min(model.LOADED_VALUES // lanes, written))
    total = s.cache_write(made.block.writes[0].buffer, "local")
    total.compute_at(made, spread(made, nest.fuse_all(made, nest.spatial_loops(made)), share, threads))
    unroll_some(total, nest.reduce_loops(total)[0])
    found.unit.done.add(made.name)


def _share_ring(found: Found, point: Point, before: Sequence[Facts], packed: Sequence[str]) -> None:
    """Columns of one row whose weights come through shared memory, so much ahead as that holds; scales as a whole.

    The threads of a warp have neighbouring k of the same columns where that is possible, and add up a vector of these
    together; then warps meet in shared memory, and each thread has one column.
    """
    s, lanes, share = found.unit.schedule, point["lanes"], point["rows"]
    final, across = s[found.unit.facts.block.name], point["threads"]
    if found.is_alone:
        s.cache_write(final.block.writes[0].buffer, "local")
    made = s[found.facts.block.name]
    if found.is_alone:  # what computes has the new name: the block that stores is the copy
        made = next(s[name] for name in feeding(s, final.name) if facts_of(block_named(s, name)).is_reduction)
    warp, is_warp = nest.threads_of(found.unit.target).warp, _are_warps(found, point)
    shape = (across * share // warp, warp) if is_warp else (share, across)
    *rows, columns = nest.spatial_loops(final)
    block, inside = final.split(columns, factor=across * lanes // found.step)
    final.reorder(block, *rows, inside)
    final.bind(block, "blockIdx.x")
    mine, partials = (
        spread(final, nest.fuse_all(final, [*rows, inside]), *_enough(shape, across * lanes // found.step)),
        list[Stage](),
    )
    nest.fuse_all(made, nest.reduce_loops(made))
    for together in (share, share // warp if is_warp else divisor_below(share, share // lanes)):
        (loop,) = nest.reduce_loops(made)
        made.reorder(loop, *[one for one in nest.free_loops(made) if one is not loop])
        part, rest = (
            made.split(loop, nparts=together) if partials and is_warp else made.split(loop, factor=together)[::-1]
        )
        partials.append(s.rfactor(made.name, part, 0))
    nest.attach(made, final, mine, "local")
    nest.mark(made, nest.unrolled(*nest.long_loops(made)))
    first, second = partials
    nest.attach(second, final, block, "shared")
    total = s.cache_write(second.block.writes[0].buffer, "local")
    if is_warp:
        place = _warps_of(second, lanes)
    else:
        place = spread(second, nest.fuse_all(second, nest.free_loops(second)), *shape)
    total.compute_at(second, place)
    nest.mark(total, nest.unrolled(*nest.long_loops(total)))
    nest.attach(first, final, block, "shared")
    sums = s.cache_write(first.block.writes[0].buffer, "local")
    if is_warp:  # a warp's sums lie together
        partial = first.block.writes[0].buffer
        ones = [f"i{at}" for at in range(len(partial.shape) - 2)]
        order = [f"n // {lanes}", "k", *ones, f"n % {lanes}"]
        s.apply("transform_layout", buffer=partial.name, inputs=["k", *ones, "n"], outputs=order)
    row, *rows, inside = nest.free_loops(first)
    if is_warp:
        row, lane = first.split(row, factor=warp)
        column, vector = first.split(inside, factor=lanes)
        first.reorder(*rows, column, row, lane, vector)
        nest.mark(first, {first.fuse(column, row): "threadIdx.y", lane: "threadIdx.x", vector: "vectorize"})
    else:
        lane, vector = first.split(inside, factor=lanes)
        nest.mark(first, {row: "threadIdx.y", lane: "threadIdx.x", vector: "vectorize"})
    sums.compute_at(first, lane)
    turns = _accumulate_ahead(sums, lanes, *shape)
    found.unit.done.add(made.name)
    for facts in before:
        _compute_in_block(found, facts, shape)
    own = [block_named(s, facts.block.name) for facts in before]
    read = {load.buffer for one in (final.block, *own) for load in facts_of(one).loads if load.buffer.scope == "global"}
    # Constants would wait behind the ring later, and others behind one another.
    for key, is_known in (("loaded_early", True), ("loaded_at_once", False)):
        if names := sorted(one.name for one in read if (one in found.unit.constants) is is_known):
            final.annotate(key, names, final.loops[0])
    if shared := _share_others(found, sums, packed, shape, lanes):
        sums.annotate("begins_with", shared, turns)


def _share_others(found: Found, sums: Stage, packed: Sequence[str], shape: tuple[int, int], lanes: int) -> list[str]:
    """What else sums read, in the memory of each block; gives the copies of constants packed block by block."""
    s, final, shared = sums.schedule, found.unit.schedule[found.unit.facts.block.name], list[str]()
    main = main_load(facts_of(sums.block))
    for buffer in dict.fromkeys(load.buffer for load in facts_of(sums.block).loads):
        if buffer.scope != "global" or main is None or buffer is main.buffer:
            continue
        copy = s.cache_read(buffer, "shared", [sums.name])
        if buffer.name in packed:
            nest.attach(copy, final, final.loops[0], "shared")
            nest.fetch_together(copy, nest.long_loops(copy), *shape, lanes)
            shared.append(s.buffer_name(copy))
        else:
            _compute_in_block(found, facts_of(copy.block), shape)
    return shared


def _are_warps(found: Found, point: Point) -> bool:
    """Whether the threads that share a column are whole warps."""
    warp = nest.threads_of(found.unit.target).warp
    return warp > 1 and point["rows"] % warp == 0


def _enough(shape: tuple[int, int], many: int) -> tuple[int, int]:
    """The first rows and columns of threads that have one of so many things each."""
    columns = min(shape[1], many)
    return min(shape[0], -(-many // columns)), columns


def _warps_of(stage: Stage, lanes: int) -> Var:
    """Parts and columns as warps that have a vector of columns each; gives the loop over its columns."""
    row, *rows, inside = nest.free_loops(stage)
    column, vector = stage.split(inside, factor=lanes)
    stage.reorder(*rows, column, row, vector)
    nest.mark(stage, {stage.fuse(column, row): "threadIdx.y", vector: "threadIdx.x"})
    return vector


def spread(stage: Stage, loop: Var, rows: int, columns: int) -> Var:
    """A loop divided among all threads of a block; gives the innermost that is left around what a thread does."""
    outer, row, column = stage.split(loop, factors=[None, rows, columns])
    nest.arrange(stage, {row: "threadIdx.y", column: "threadIdx.x", outer: "unroll"})
    return outer


def _compute_in_block(found: Found, facts: Facts, shape: tuple[int, int]) -> None:
    """A stage before a product, shared by all threads of each block, its result in their memory."""
    s, final = found.unit.schedule, found.unit.schedule[found.unit.facts.block.name]
    stage = s[facts.block.name]
    nest.attach(stage, final, final.loops[0], "shared")
    if facts.is_reduction:
        cross_block(stage, *shape, shape[1] == nest.threads_of(found.unit.target).warp)
    elif loops := nest.long_loops(stage):
        # In vectors: a division may branch, and what is behind it is not loaded before it.
        threads, lanes = math.prod(shape), model.MOST_LANES
        lanes = nest.whole_vectors(facts, facts.spatial[-1], facts.loads, lanes) if len(loops) == 1 else 1
        while lanes > 1 and facts.points < lanes * threads:
            lanes //= 2
        nest.fetch_together(stage, loops, *shape, lanes)
    found.unit.done.add(stage.name)


def _pack_columns(found: Found, width: int, lanes: int, rows: int) -> list[list[str | int]]:
    """Constants whose rows lie along the columns of a block, stored block by block: what a block reads lies together.

    Gives the buffers, how many elements of each are a block's, and for how many it asks before it waits for others.
    """
    s, facts, made = found.unit.schedule, found.facts, list[list[str | int]]()
    machine, constants = nest.threads_of(found.unit.target), found.unit.constants
    if is_packable(facts, constants, width):
        for buffer in dict.fromkeys(load.buffer for load in facts.loads if is_packed(load, facts, constants)):
            copy = s.cache_read(buffer.name, "global", [facts.block.name])
            name = s.buffer_name(copy)
            deep = int_value(buffer.shape[0]) or 0
            order, own = (
                [f"n // {width}", "k", f"n % {width}"],
                rows * deep // facts.depth,
            )  # of scales, one for several
            if own > 1:  # what a step takes lies together (a scale is for several), and in it that of neighbouring k
                order = [order[0], f"k // {own}", f"n % {width} // {lanes}", f"k % {own}", f"n % {lanes}"]
            s.apply("transform_layout", buffer=name, inputs=["k", "n"], outputs=order)
            step, most = deep * width, model.AHEAD * machine.cache_bytes
            most = int(most / machine.multiprocessors / machine.vector_bytes) * machine.vector_bytes
            made.append([name, step, min(step, most // buffer.dtype.bytes)])
    return made


def is_packed(load: Load, facts: Facts, constants: Collection[Buffer]) -> bool:
    """Whether a load is of a constant matrix, its rows along the last axis of the result."""
    return load.buffer in constants and len(load.indices) == 2 and load.indices[1] is facts.spatial[-1].var


def is_packable(facts: Facts, constants: Collection[Buffer], width: int) -> bool:
    """Whether what is read most, for few rows, may be stored in blocks of so many columns."""
    main, columns = main_load(facts), extent(facts.spatial[-1]) if facts.spatial else 1
    few = facts.points <= model.MOST_WAITING_ROWS * columns and facts.store is not None
    return few and main is not None and is_packed(main, facts, constants) and columns % width == 0


def streams_through(facts: Facts, constants: Collection[Buffer]) -> bool:
    """What the planner asks: a product of few rows of float32 with constants is a matter of reading these once."""
    wide = any(load.buffer.dtype.name == "float32" and load.buffer not in constants for load in facts.loads)
    return wide and is_packable(facts, constants, 1) and len(facts.reduce) == 1


# ----------------------------------------------------------------------------------------------- short ones in a thread


def match_with_reductions(unit: Unit) -> Sketch | None:
    """The sketch of a block that takes short reductions at its own elements: each thread reduces what it needs."""
    makers = makers_of(unit)
    if not makers or len(makers) == 1 and _is_worth_sharing(makers[0], unit.target):
        return None
    rule = {"threads": nest.threads_for(unit.facts.spatial, nest.threads_of(unit.target))}

    def apply(point: Point) -> None:
        s, stage = unit.schedule, unit.schedule[unit.facts.block.name]
        thread = nest.bind_loop(stage, nest.fuse_all(stage, nest.spatial_loops(stage)), unit.target, point["threads"])
        for maker in makers:
            made = s[maker.block.name]
            nest.attach(made, stage, thread, "local")
            for loop in reversed(nest.free_loops(made)):
                if nest.extent_of(made, loop, model.UNROLLED_TAPS + 1) <= model.UNROLLED_TAPS:
                    made.unroll(loop)
            unit.done.add(made.name)

    is_scattered = any(is_contiguous(maker) and maker.depth >= model.LEAST_ROW for maker in makers)
    is_rolled = any(extent(axis) > model.UNROLLED_TAPS for maker in makers for axis in maker.reduce)
    whole = unit.facts.points if is_rolled else 0
    return by_rule("with its reductions", unit, rule, apply, makers, is_scattered, whole=whole, divided=("threads",))


# ------------------------------------------------------------------------------------------------------------- columns


def main_load(facts: Facts) -> Load | None:
    """The largest of what a reduction reads, of equals the last."""
    return max(reversed(facts.loads), key=load_bytes, default=None)


def choose_columns(facts: Facts, target: Target, constants: Collection[Buffer]) -> dict[str, int] | None:
    """How columns are divided: `threads` along a line, `lanes` of each, `rows` of threads that share one column.

    None where what is read most cannot be loaded in whole vectors, from multiples on, or where threads are few. Blocks
    of a constant may be as narrow as a vector, and divide the multiprocessors among them as evenly as they can.
    """
    main, machine = main_load(facts), nest.threads_of(target)
    if main is None or facts.store is None or not facts.spatial or not all(isinstance(i, Var) for i in main.indices):
        return None
    last, lanes = facts.spatial[-1], machine.vector_bytes // main.buffer.dtype.bytes
    if lanes < 2 or main.indices[-1] is not last.var or nest.whole_vectors(facts, last, [main], lanes) != lanes:
        return None
    across = max(1, model.LINE_BYTES // machine.vector_bytes)
    least = max(1, model.LEAST_LINE_BYTES // machine.vector_bytes)
    threads = min(model.SHARE_THREADS, machine.block_threads)
    if is_packable(facts, constants, lanes):
        columns, widths = extent(last), list(powers(across))
        rings = [n for n in range(1, model.RING_ACROSS + 1) if columns % (n * lanes) == 0]
        rings = [n for n in rings if _has_ring(facts, target, constants, n * lanes)]
        if rings and facts.points == columns:  # a block for each multiprocessor, as wide as it takes
            widths = rings
        across = max(
            widths, key=lambda n: (min(evenly(columns // (n * lanes), machine.multiprocessors), model.EVEN), n)
        )
        threads = threads if facts.points == columns else min(model.FEW_ROWS_THREADS, threads)
    else:
        while across > least and facts.points // (across * lanes) < machine.multiprocessors * model.FILLED:
            across //= 2

    def on_the_way(share: int) -> tuple[int, int]:
        return share * divisor_below(facts.depth // share, model.LOADED_VALUES // lanes), share

    most = min(threads // across, facts.depth)
    # As many loads on their way as can be, whole rounds of them.
    share = max((n for n in range(1, most + 1) if facts.depth % n == 0), key=on_the_way, default=1)
    return {"threads": across, "rows": share, "lanes": lanes} if share >= model.LEAST_SHARE else None


def evenly(blocks: int, places: int) -> float:
    """The part of the places for blocks that so many keep busy."""
    return blocks / (places * max(1, -(-blocks // places)))


def share_columns(stage: Stage, lanes: int, share: int) -> None:
    """A reduction at one thread of a block, its columns in the innermost loop, shared by rows of threads.

    Partial results of the rows stand in shared memory, in two rounds.
    """
    s, name, together = stage.schedule, stage.name, model.LOADED_VALUES // lanes
    nest.fuse_all(stage, nest.reduce_loops(stage))
    for threads in (share, nest.power_of_two(math.isqrt(share))):
        if threads < 2:
            continue
        (loop,) = nest.reduce_loops(stage)
        stage.reorder(loop, *[one for one in nest.free_loops(stage) if one is not loop])
        _, part = stage.split(loop, factor=threads)
        partial = s.rfactor(name, part, 0)
        partial.set_scope("shared")
        made = s.cache_write(partial.block.writes[0].buffer, "local")
        row, *_, vector = nest.free_loops(partial)
        made.compute_at(partial, row)
        nest.mark(partial, {row: "threadIdx.y", vector: "vectorize"})
        _accumulate(made, together)
    _accumulate(s.cache_write(stage.block.writes[0].buffer, "local"), together)
    stage.vectorize(nest.free_loops(stage)[-1])


def _accumulate(made: Stage, together: int) -> None:
    """A thread's sums in registers: for each of its rows a vector is loaded, and added up lane by lane."""
    loop = nest.reduce_loops(made)[0]
    made.reorder(loop, *[one for one in nest.free_loops(made) if one is not loop])
    outer, inner = made.split(loop, factor=divisor_below(nest.extent_of(made, loop), together))
    nest.mark(made, nest.unrolled(*[one for one in nest.free_loops(made) if one is not outer]))
    load_vectors(made, inner)


def _accumulate_ahead(made: Stage, lanes: int, rows: int, columns: int) -> Var:
    """The same of constants that come through shared memory: each thread copies what it will use, and needs no barrier.

    Copies take no registers while they are on their way, and constants need not wait for the kernel before. Gives the
    loop over what is copied at a time.
    """
    s, (loop, *_) = made.schedule, nest.reduce_loops(made)
    made.reorder(loop, *[one for one in nest.free_loops(made) if one is not loop])
    main = main_load(facts_of(made.block))
    assert main is not None
    vector = s.cache_read(main.buffer, "local", [made.name])
    vector.compute_at(made, loop)
    copy = s.cache_read(main.buffer, "shared", [vector.name])
    copy.compute_at(made, loop)
    nest.fetch_together(copy, nest.long_loops(copy), rows, columns, lanes)
    size = rows * columns * lanes * main.buffer.dtype.bytes
    nest.fetch_ahead(made, loop, min(model.RING_BYTES // size, nest.extent_of(made, loop) + 1))
    made.annotate("begins_early", [main.buffer.name], loop)
    nest.mark(made, nest.unrolled(*[one for one in nest.free_loops(made) if one is not loop]))
    vector.vectorize(nest.long_loops(vector)[0])
    return loop


def _has_ring(facts: Facts, target: Target, constants: Collection[Buffer], width: int) -> bool:
    """Whether constants come through shared memory while the kernel before still runs, for a block of such a width."""
    machine, main = nest.threads_of(target), main_load(facts)
    if main is None or not (machine.has_async_copy and machine.overlaps_launches):
        return False
    sums = model.SHARE_THREADS * (machine.vector_bytes // main.buffer.dtype.bytes)
    beside = {x.buffer for x in facts.loads if x.buffer is not main.buffer and is_packed(x, facts, constants)}
    scales = sum(width * (int_value(one.shape[0]) or 0) * one.dtype.bytes for one in beside)
    row = facts.depth * _products(facts)
    return 4 * (row + 2 * sums) + scales + model.RING_BYTES <= machine.shared_bytes

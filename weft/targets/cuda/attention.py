"""Attention of narrow numbers by warp groups: scores, powers and what they mix stay in registers, in one kernel.

for each batch, head and tile of queries                      a block of one or two groups of 128 threads
  queries into shared memory                                  64 rows for each group
  for each part of the keys                                   keys and values fetched into shared memory, ahead
    scores = queries · keysᵀ                                  wgmma; the steps on them (scale, mask, causal)
    the top of each row, powers, their sum                    in the registers that the scores are in
    mixed = powers · values                                   wgmma, its rows of powers from registers
    added up beneath the running maximum                      `Schedule.online`
  divided by the sums of powers                               -> the output
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.expr.nodes import LT, Const, Load, Select, Var, int_value
from weft.expr.visit import uses_any, walk
from weft.loop.regions import conjuncts
from weft.ops import attention_fused as fused
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv
from weft.schedule.facts import Facts, block_named, extent, facts_of, names_of
from weft.schedule.schedule import Stage
from weft.targets.base import Target, ThreadFacts
from weft.targets.cuda import fragments, mma, producer, stagger, wgmma
from weft.targets.cuda import model as fit
from weft.targets.cuda.machine import SUM_COLUMNS
from weft.targets.cuda.swizzle import CHUNK
from weft.targets.gpu import attention as general
from weft.targets.gpu import attention_stream, model, nest

KNOBS: dict[str, tuple[int, ...]] = {"groups": (1, 2), "stages": (2, 3, 4), "beside": (0, 1)}
"""Groups of 128 threads of a block, each with 64 queries; parts of keys that are fetched or used at a time; whether the
copy engine fetches them, for one more group. With three stages then the second product is a step late (`stagger`)."""


DEEP = next(iter(fragments.NARROW.values())).depth
"""Elements of a key that an instruction sums."""


class Problem:
    """The sizes of an attention, padded, and the machine that it runs on; `part` is a number or a column.

    Of the elements of a key and of a value, those `used` are multiplied: the others are zeros.
    """

    def __init__(self, sizes: fused.Sizes, used: tuple[int, int], machine: ThreadFacts, has_boxes: bool) -> None:
        self.sizes, self.used, self.machine, self.has_boxes = sizes, used, machine, has_boxes

    def legal(self, c: Columns) -> Any:
        """Which points fit the machine."""
        return (
            (self.sizes.queries % (wgmma.ROWS * c["groups"]) == 0)
            & (self._shared(c) <= self.machine.shared_bytes)
            & (self._registers(c) <= fit.MOST_REGISTERS)
            & (self.has_boxes | (c["beside"] == 0))
        )

    def cost(self, c: Columns) -> Any:
        """Seconds of each point: what keeps a multiprocessor busy, or the way of one block from part to part."""
        sizes, machine, groups = self.sizes, self.machine, c["groups"]
        blocks = sizes.batch * sizes.heads * ceildiv(sizes.queries, wgmma.ROWS * groups)
        rounds, parts, units = ceildiv(blocks, machine.multiprocessors), ceildiv(sizes.keys, c["part"]), c["part"] / 64
        width = sizes.size + sizes.value_size
        products = wgmma.ROWS * 64 * sum(self.used) / machine.matrix_products
        fetched = 128 * width / fit.FETCHED_BYTES / groups
        each, of_products, of_fetching = fit.ATTENTION_GROUP
        busy = groups * parts * units * (each + of_products * products + of_fetching * fetched)
        share, late, before = fit.ATTENTION_BESIDE
        less = np.where(c["beside"], np.where(c["stages"] > 2, late, share), 1.0)
        part, unit, product, another = fit.ATTENTION_ALONE
        held = np.minimum(self.resident(c), rounds)
        alone = parts * (part + units * (unit + product * products)) * (1 + another * (groups * held - 1)) * less
        block, key_part, another = fit.ATTENTION_BLOCK
        ends = (block + key_part * units) * (1 + another * (groups - 1))
        each_round = np.maximum(busy * less + ends, (alone + before * c["beside"]) / held)
        # Of stages that cost the same, the fewest.
        return (rounds * each_round + fit.ATTENTION_START + c["stages"]) / (machine.gigahertz * 1e9)

    def resident(self, c: Columns) -> Any:
        """Blocks that a multiprocessor holds."""
        threads = 128 * (c["groups"] + c["beside"])
        return model.resident_blocks(self.machine, threads, self._registers(c).astype(np.int64), self._shared(c))

    def _registers(self, c: Columns) -> Any:
        fixed, part, value, beside = fit.ATTENTION_REGISTERS
        return fixed + part * c["part"] + value * self.sizes.value_size + beside * c["beside"]

    def _shared(self, c: Columns) -> Any:
        fetched = c["stages"] * c["part"] * (self.sizes.size + self.sizes.value_size)
        return 2 * (wgmma.ROWS * c["groups"] * self.sizes.size + fetched) + 1024


def proposal(sizes: fused.Sizes, machine: ThreadFacts) -> tuple[int, int, int, int, int] | None:
    """The padded sizes, keys of a part, and size of a key, by the point of the least estimate; None where none fits."""
    size, width = (_up(n, wgmma.LINE) for n in (sizes.size, sizes.value_size))
    found = []
    for groups in KNOBS["groups"]:
        for part in fit.ATTENTION_PARTS:
            queries, keys = _up(sizes.queries, wgmma.ROWS * groups), _up(sizes.keys, part)
            padded = sizes._replace(queries=queries, keys=keys, size=size, value_size=width)
            used = _multiplied(size, sizes.size, DEEP), _multiplied(width, sizes.value_size, SUM_COLUMNS)
            problem = Problem(padded, used, machine, all(map(_is_piece, (sizes.size, sizes.value_size))))
            grids = np.meshgrid(*list(KNOBS.values())[1:], indexing="ij")
            c = dict(zip(list(KNOBS)[1:], (grid.ravel() for grid in grids)))
            c |= {"groups": np.asarray(groups), "part": np.asarray(part)}
            cost = np.where(problem.legal(c), problem.cost(c), np.inf)
            if width in fragments.WIDTHS and np.isfinite(cost.min()):
                found.append((float(cost.min()), (queries, keys, width, part, size)))
    return min(found)[1] if found else None


def attention_proposer(target: Target) -> Callable[[Sequence[int], str], Sequence[int] | None]:
    """What `fuse_attention` asks: narrow numbers in one kernel where there are warp groups."""
    machine, plain = nest.threads_of(target), attention_stream.attention_proposer(target)

    def propose(given: Sequence[int], dtype: str) -> Sequence[int] | None:
        padded = plain(given, dtype)
        few = given[2] <= model.FEW_QUERIES
        if padded is None or dtype == "float32" or few or not machine.has_warpgroups:
            return padded
        return proposal(fused.Sizes(*given), machine) or padded

    return propose


def _up(size: int, factor: int) -> int:
    return int(ceildiv(size, factor) * factor)


def _multiplied(size: int, used: int, step: int) -> int:
    """Of padded elements those that are multiplied: whole steps of a line, all where there are several lines."""
    return min(size, _up(used, step)) if size == wgmma.LINE else size


def match(unit: Unit) -> Sketch | None:
    """The sketch of a narrow attention in parts, by the stage of its scores; None for any other program."""
    s, found = unit.schedule, general.problem_of(unit, {fused.PEAK})
    if found is None or fused.PART in names_of(s):
        return None
    element = s[fused.QUERIES].block.writes[0].buffer.dtype.name
    kind = next((kind for kind in fragments.NARROW.values() if kind.elements[0] == element), None)
    if kind is None or not nest.threads_of(unit.target).has_warpgroups:
        return None
    sizes, parts = found
    part, width = sizes.keys // parts, sizes.value_size
    has_boxes = all(_is_box(facts_of(block_named(s, name))) for name in (fused.QUERIES, fused.KEYS, fused.VALUES))
    queries, keys, values = (
        _used(facts_of(block_named(s, name))) for name in (fused.QUERIES, fused.KEYS, fused.VALUES)
    )
    used = _multiplied(sizes.size, min(queries, keys), DEEP), _multiplied(width, values, SUM_COLUMNS)
    problem = Problem(sizes, used, nest.threads_of(unit.target), has_boxes)

    def at(columns: Columns) -> Columns:
        return {**columns, "part": np.asarray(part)}

    steps = _Steps(
        unit,
        kind,
        part,
        width,
        used,
        lambda point: int(problem.resident(at({k: np.asarray(v) for k, v in point.items()}))),
    )
    cost, legal = (lambda c: problem.cost(at(c))), (lambda c: problem.legal(at(c)))
    return Sketch("attention of warp groups", KNOBS, steps.apply, cost, legal)


def _is_piece(size: int) -> bool:
    """Whether heads of a size are such pieces of rows as the copy engine takes."""
    return 2 * size % CHUNK == 0


def _is_box(facts: Facts) -> bool:
    """Whether the copy engine may fetch tiles of an operand: rows of it, up to ends that are known."""
    value, last = facts.store.value if facts.store is not None else None, facts.spatial[-1].var
    while isinstance(value, Select):
        for test in conjuncts(value.condition):
            is_end = isinstance(test, LT) and test.a is last and _is_piece(int_value(test.b) or 1)
            if uses_any(test, {last}) and not is_end or any(isinstance(e, Load) for e in walk(test)):
                return False
        value = value.then
    return isinstance(value, Load)


def _used(facts: Facts) -> int:
    """The elements of a row of an operand that are no zeros of the padding."""
    value, last = facts.store.value if facts.store is not None else None, facts.spatial[-1]
    found = extent(last)
    while isinstance(value, Select):
        if isinstance(value.otherwise, Const) and value.otherwise.value == 0:
            ends = [test.b for test in conjuncts(value.condition) if isinstance(test, LT) and test.a is last.var]
            found = min([found, *(int_value(end) or found for end in ends)])
        value = value.then
    return found


class _Steps:
    """The schedule, from the output to the inputs."""

    def __init__(
        self, unit: Unit, kind: mma.Kind, part: int, width: int, used: tuple[int, int], held: Callable[[Point], int]
    ) -> None:
        self.s, self.target, self.kind = unit.schedule, unit.target, kind
        self.part, self.width, self.used, self.held = part, width, used, held

    def apply(self, point: Point) -> None:
        """All the steps."""
        s, self.groups, self.resident = self.s, point["groups"], self.held(point)
        if fused.SHARE in names_of(s):
            s[fused.SHARE].compute_inline()
        final = s[general.reader_of(s, fused.WHOLE).name]
        place = self.blocks(final)
        whole, parts = self.add_up(final, place)
        tiles = (fused.MIXED, fused.GROWN, fused.MASKED, fused.SCORES)
        order = (fused.MIXED, fused.TOTAL, fused.GROWN, fused.LIMIT, fused.TOP, fused.MASKED, fused.SCORES)
        for name in order:
            nest.attach(s[name], whole, parts, "wgmma.c" if name in tiles else "wgmma.row", exact=False)
        s.apply("stop_at_mask", loop=parts.name, block=fused.MASKED)
        s.apply("beneath_peak", loop=parts.name, powers=fused.GROWN, product=fused.MIXED)
        for name in (fused.VALUES, fused.KEYS):
            self.fetch(s[name], whole, parts)
        self.fetch(s[fused.QUERIES], final, place)
        (deep, wide), line = self.used, wgmma.LINE
        shorter, narrower = (
            f"{wgmma.FIRST}{deep}" if deep < line else "",
            f"{wgmma.FIRST}{wide}" if wide < self.width else "",
        )
        self.multiply(s[fused.SCORES], wgmma.dot_name(self.kind, False, True, self.part) + shorter)
        self.multiply(s[fused.MIXED], f"wgmma_held_{self.kind.name}_{self.width}{narrower}")
        self.own(s[fused.MASKED], s[fused.GROWN], s[fused.LIMIT])
        for name, reduced in ((fused.TOP, fragments.MAX), (fused.TOTAL, fragments.SUM)):
            row = nest.free_loops(s[name])[-2]
            s[name].tensorize(row, f"{reduced}_{self.part}")
        if nest.extent_of(whole, parts, 0) == 0:
            s.apply("reverse", loop=self.tile.name)  # rows differ in length: the longest begin first
        queries = s[fused.QUERIES].block.writes[0].buffer.name
        nest.fetch_ahead(whole, parts, point["stages"], before=[queries])
        if point["beside"]:
            whole.annotate(producer.BULK, True, parts)
            if point["stages"] > 2:
                whole.annotate(stagger.STAGGER, True, parts)

    def blocks(self, final: Stage) -> Var:
        """A block of threads for each tile of queries of the block that writes the result; gives the innermost loop."""
        loops = nest.free_loops(final)
        *around, query, element = (loops[at] for at in general.positions(final.block, fused.WHOLE))
        tile, row = final.split(query, factor=self.groups * wgmma.ROWS)
        final.reorder(*around, tile, row, element)
        place = self.tile = tile
        if self.groups > 1:
            place, row = final.split(row, factor=wgmma.ROWS)
            final.bind(place, "threadIdx.y")
        if nest.extent_of(final, element) != self.width:
            _, element = final.split(element, factor=self.width)
        final.bind(tile, "blockIdx.x")
        final.annotate("resident", self.resident, tile)
        final.bind(nest.fuse_all(final, around), "blockIdx.y")
        final.annotate(fragments.FRAGMENT, "rows", row)
        final.annotate(fragments.FRAGMENT, "columns", element)
        return place

    def add_up(self, final: Stage, place: Var) -> tuple[Stage, Var]:
        """The sums over the parts, as these come; gives their stage and the loop over the parts."""
        s, whole = self.s, self.s[fused.WHOLE]
        nest.attach(whole, final, place, "wgmma.c", exact=False)
        *_, row, element, parts = nest.free_loops(whole)
        whole.reorder(parts, row, element)
        for name in (fused.PEAK, fused.WHOLE_TOTAL):
            s[name].set_scope("wgmma.row")
        *starts, scale, share = s.online(whole, parts, s[fused.PEAK], s[fused.WHOLE_TOTAL])
        self.own(whole, s[fused.PEAK], s[fused.WHOLE_TOTAL], *(s[name] for name in starts))
        return whole, parts

    def own(self, *stages: Stage) -> None:
        """Loops over rows and columns that each thread runs over its own elements of."""
        for stage in stages:
            loops, roles = nest.long_loops(stage), ["rows", "columns"]
            for loop, role in zip(loops, roles):
                stage.annotate(fragments.FRAGMENT, role, loop)

    def multiply(self, stage: Stage, instruction: str) -> None:
        """A product of tiles by an instruction that sums 64 elements at a time."""
        *_, row, column, k = nest.free_loops(stage)
        outer, inner = stage.split(k, factor=wgmma.LINE)
        nest.arrange(stage, {outer: "unroll", row: "", column: "", inner: ""})
        stage.tensorize(row, instruction)

    def fetch(self, stage: Stage, reader: Stage, place: Var) -> None:
        """A tile of an operand into lines in shared memory, by all threads of the block."""
        stage.set_scope("shared")
        stage.compute_at(reader, place, exact=False, first=True)
        *_, row, element = nest.free_loops(stage)
        lanes = nest.fetch_lanes(facts_of(stage.block), nest.extent_of(stage, element), self.target)
        lines, element = stage.split(element, factor=wgmma.LINE)
        stage.reorder(lines, row, element)
        flat = nest.fuse_all(stage, [lines, row, element])
        outer, group, thread, vector = stage.split(flat, factors=[None, self.groups, 128, lanes])
        roles = {group: "threadIdx.y" if self.groups > 1 else "", thread: "threadIdx.x", outer: "unroll"}
        nest.arrange(stage, {**roles, vector: "vectorize" if lanes > 1 else ""})
        buffer = stage.block.writes[0].buffer.name
        outputs = ["b", "h", f"e//{wgmma.LINE}", "q", f"e%{wgmma.LINE}"]
        self.s.apply("transform_layout", buffer=buffer, inputs=["b", "h", "q", "e"], outputs=outputs)

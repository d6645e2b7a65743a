"""Contractions in registers: matrix products, batched ones, convolutions, all in the form C[y, x] += X[k, x] * Y[k, y].

In: a unit whose contraction `matrix_form` takes. Out: one kernel of tiles (two with split-K, so that there are enough
blocks):

    for each tile of y and x                              a block of threads
      for each step of k                                  X and Y fetched together into shared memory, ahead of use
        for each k of the step                            a few x and y of each into registers
          C[y, x] += X[k, x] * Y[k, y]                    a thread's register tile of accumulators
      the epilogue, on the tile

A tile is good when its accumulators fill registers (few loads for each multiplication), when its blocks fill the
machine, and when no block is a long chain on its own; split-K makes more and shorter blocks, and costs a second kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core.errors import ScheduleError
from weft.expr.nodes import Buffer, Cast, Expr, Load, Var
from weft.expr.visit import walk
from weft.loop.ir import Axis, Store
from weft.loop.passes.double_buffer import CARRIED
from weft.plan.contraction import group_of
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, ceildiv
from weft.schedule.facts import Facts, block_named, extent, facts_of, names_of
from weft.schedule.primitives.matrix import MatrixAxes, matrix_axes, stored_operand
from weft.schedule.schedule import Schedule, Stage
from weft.targets.gpu import model, nest
from weft.targets.gpu.elementwise import bind_flat

KNOBS: dict[str, tuple[int, ...]] = {
    "tile_x": (16, 32, 64, 128, 256),
    "tile_y": (8, 16, 32, 64, 128),
    "tile_k": (8, 16, 32),
    "each_x": (8, 4, 2, 16),
    "each_y": (8, 4, 2),
    "parts": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32),
    "stages": (1, 3),
}
"""`each` is what one thread computes: x and y of its own. `parts` are the sums of split-K."""


@dataclass(frozen=True)
class Product:
    """A contraction in the form of a matrix product, and how its operands lie."""

    unit: Unit
    axes: MatrixAxes
    order: tuple[int, ...]
    k_last: tuple[int, int]
    packed: Load | None
    """The load of a constant operand that is stored in another order of its dimensions, once."""
    is_exchanged: bool = False
    """Whether x is what does not lie together in the result."""

    @property
    def name(self) -> str:
        """The block that sums."""
        return self.unit.facts.block.name

    def exchanged(self) -> Product:
        """The same product with x for y, and y for x."""
        axes, facts = self.axes.exchanged(), self.unit.facts
        along_x, along_y = (runs_along_k(facts, e, axes, self.order) for e in (axes.x_operand, axes.y_operand))
        return replace(self, axes=axes, k_last=(along_x, along_y), packed=None, is_exchanged=not self.is_exchanged)


def match(unit: Unit) -> Sketch | None:
    """The sketch of a product in registers; None where a unit is none."""
    found = find_product(unit)
    return None if found is None else RegisterTiles(found).sketch()


# ----------------------------------------------------------------------------------------------------------- finding


def find_product(unit: Unit) -> Product | None:
    """The matrix product that a unit's contraction is."""
    facts = unit.facts
    axes = matrix_axes(facts.block)
    if axes is None or min(axes.size("x"), axes.size("y")) < model.LEAST_SIDE or axes.size("k") < model.LEAST_DEPTH:
        return None
    order = _order(unit, axes)
    k_last = (runs_along_k(facts, axes.x_operand, axes, order), runs_along_k(facts, axes.y_operand, axes, order))
    packed = plain_load(axes.y_operand)
    if packed is None or packed.buffer not in unit.constants:
        return Product(unit, axes, order, k_last, None)
    return Product(unit, axes, order, (k_last[0], 0), packed)


def _order(unit: Unit, axes: MatrixAxes) -> tuple[int, ...]:
    """The axes that are summed, outermost first: last the one along which an operand that is no constant lies.

    Where there is none, constants are packed so that the longest one is the innermost.
    """
    places = list(range(len(axes.k)))
    last = None
    for operand in (axes.x_operand, axes.y_operand):
        load = plain_load(operand)
        if load is None or load.buffer not in unit.constants:
            last = next((i for i in places if _lies_along(unit.facts, operand, axes, axes.k[i])), last)
        elif last is None and operand is axes.y_operand:
            last = max(places, key=lambda i: extent(axes.k[i]))
    return tuple(places if last is None else [*[i for i in places if i != last], last])


def runs_along_k(facts: Facts, operand: Expr, axes: MatrixAxes, order: Sequence[int]) -> int:
    """1 where neighbours of an operand in memory are summed, and not neighbours in the result."""
    last = [axes.k[i] for i in order if extent(axes.k[i]) > 1][-1:]
    return int(any(_lies_along(facts, operand, axes, axis) for axis in last))


def _lies_along(facts: Facts, operand: Expr, axes: MatrixAxes, axis: Axis) -> bool:
    """Whether neighbours of an operand in memory are neighbours along an axis that is summed, and not in the result."""
    loads = [node for node in walk(operand) if isinstance(node, Load)]
    own = [one for one in (*axes.x, *axes.y) if extent(one) > 1]
    if extent(axis) == 1 or any(facts.step(load, one.var) == 1 for load in loads for one in own):
        return False
    return any(facts.step(load, axis.var) == 1 for load in loads)


def plain_load(operand: Expr) -> Load | None:
    """The load of a whole tensor, each dimension along an axis of its own, that an operand is, perhaps converted."""
    while isinstance(operand, Cast):
        operand = operand.value
    if not isinstance(operand, Load) or not all(isinstance(i, Var) for i in operand.indices):
        return None
    return operand if len(set(operand.indices)) == len(operand.indices) else None


def _fetch_kind(found: Product, side: str) -> str:
    """How the elements of an operand are fetched: in vectors, one by one, or at indices worked out for each."""
    operand = stored_operand(found.axes.x_operand if side == "x" else found.axes.y_operand)
    if side == "y" and found.packed is not None:
        return "vector" if found.axes.size("y") % model.FLOATS == 0 else "plain"
    if not isinstance(operand, Load):
        return "gather"
    facts, along = found.unit.facts, "k" if found.k_last[side == "y"] else side
    axes = [axis for axis in getattr(found.axes, along) if extent(axis) > 1]
    steps = [facts.step(operand, axis.var) for axis in axes]
    if not axes or steps[-1] != 1 or found.axes.size(along) % model.FLOATS:
        return "plain"
    pairs = zip(steps, steps[1:], axes[1:])
    together = all(a == b * extent(axis) for a, b, axis in pairs if a is not None and b is not None)
    return "vector" if together else "plain"


# ----------------------------------------------------------------------------------------------------------- grouping


def split_groups(s: Schedule, constants: Collection[Buffer], kept: Collection[str]) -> list[Buffer]:
    """Products whose operands belong to groups of channels get an axis of groups: a batch. Gives copies of constants.

    rewrite: C[n, co, p] += A[n, co // 8 * 4 + ci, p] * W[co, ci];  D[n, co, p] = f(C[n, co, p])
             ->  C[n, g, c, p] += A[n, g * 4 + ci, p] * W_global[g, c, ci];  D[n, co, p] = f(C[n, co // 8, co % 8, p])

    What reads the sums is split where that of phases is (`plan/phases.py`). Stages that are `kept` are left alone.
    """
    packed: list[str] = []
    for name in names_of(s):
        facts = facts_of(block_named(s, name))
        axes, loads = None if name in kept else matrix_axes(facts.block), facts.loads
        batch = axes.batch if axes is not None else ()
        found = [(one, size) for one in batch for size in {group_of(e, one) or 1 for e in loads} - {1, extent(one)}]
        if len(found) == 1:
            with s.attempt(f"groups of {name}"):
                packed += _split_groups(s, facts, *found[0], constants)
    return [buffer for buffer in s.func.allocations if buffer.name in packed]


def _split_groups(s: Schedule, facts: Facts, axis: Axis, size: int, constants: Collection[Buffer]) -> list[str]:
    """An axis of channels as groups of a size, in the product, where its sums lie, and in copies of constants."""

    def divide(buffer: str, indices: Sequence[Expr]) -> None:
        inputs, at = [f"d{i}" for i in range(len(indices))], list(indices).index(axis.var)
        outputs = [*inputs[:at], f"d{at} // {size}", f"d{at} % {size}", *inputs[at + 1 :]]
        s.apply("transform_layout", buffer=buffer, inputs=inputs, outputs=outputs)

    copies: list[str] = []
    stage = s[facts.block.name] if facts.target in s.func.allocations else s.cache_write(facts.target, "global")
    divide(s.buffer_name(stage), facts.block.writes[0].mins)
    s.apply("split_axis", block=stage.name, axis=axis.var.name, factor=size)
    for other in facts.spatial[facts.spatial.index(axis) + 1 :]:  # in the order in which sums are stored
        s.apply("last_axis", block=stage.name, axis=other.var.name)
    for load in facts.loads:
        if load.buffer in constants and axis.var in load.indices:
            copies.append(s.buffer_name(s.cache_read(load.buffer.name, "global", [stage.name])))
            divide(copies[-1], load.indices)
    made = matrix_axes(stage.block)
    if made is None or min(made.size("x"), made.size("y")) < model.LEAST_GROUP:
        raise ScheduleError("groups", stage.name, "they are too narrow for a product")
    return copies


# ---------------------------------------------------------------------------------------------------- any sort of tiles


class Tiles:
    """A way to multiply in tiles, one for each block: which points make sense, what they cost, and the steps of one."""

    name: str
    knobs: Mapping[str, tuple[int, ...]]
    scope: str
    """The registers that hold accumulators."""
    part_blocks: int
    """Blocks of a multiprocessor that split-K may make."""
    tile: tuple[int, int, int]
    """x, y and k of a block's tile, for one of its shares."""
    shares: int = 1
    """Groups of threads that take turns along k; their accumulators are added up in shared memory."""
    said: Mapping[str, bool] = {}
    """What else is said where the product gets its form."""

    def __init__(self, product: Product) -> None:
        self.product, self.s = product, product.unit.schedule
        self.x, self.y, self.k, self.batch = (product.axes.size(part) for part in ("x", "y", "k", "batch"))
        self.bytes, self.machine = product.axes.x_operand.dtype.bytes, nest.threads_of(product.unit.target)

    @property
    def k_last(self) -> tuple[int, int]:
        """Of which operands neighbours along k lie together where they are multiplied."""
        return self.product.k_last

    def sketch(self) -> Sketch:
        """What is offered to the planner."""
        return Sketch(self.name, self.knobs, self.apply, self.cost, self.legal)

    def legal(self, c: Columns) -> Any:
        """Points that fit the machine and do not exceed the problem by far."""
        raise NotImplementedError

    def cost(self, c: Columns) -> Any:
        """Seconds of each point."""
        raise NotImplementedError

    def blocks(self, tile_y: Any, tile_x: Any) -> Any:
        """Tiles of the result, of one product of the batch."""
        return ceildiv(self.x, tile_x) * ceildiv(self.y, tile_y)

    def may_split(self, parts: Any, blocks: Any, steps: Any) -> Any:
        """Whether k may be cut into parts: each has some steps, and the machine has room for their blocks."""
        most = self.part_blocks * self.machine.multiprocessors
        return (parts == 1) | ((blocks * self.batch * parts <= most) & (steps >= model.PART_STEPS * parts))

    def rounds(self, blocks: Any, parts: Any, threads: Any, registers: Any, shared: Any) -> tuple[Any, Any, Any]:
        """Blocks for each multiprocessor, how many it holds at a time, and how many there are at a time."""
        resident = model.resident_blocks(self.machine, threads, registers, shared)
        rounds: Any = ceildiv(blocks * self.batch * parts, self.machine.multiprocessors)
        return rounds, resident, np.minimum(resident, rounds)

    def seconds(self, cycles: Any, parts: Any) -> Any:
        """With what adding up the parts of split-K takes."""
        moved = self.x * self.y * self.batch * parts * model.PART_BYTES
        return model.with_parts(self.machine, cycles, parts, moved, model.model_of(self.machine).next_launch)

    def apply(self, point: Point) -> None:
        """The whole schedule of the product."""
        self.point = point
        self.take(point)
        self.x_stage, self.y_stage, self.total = self._form()
        self.multiply(self._final())
        if point["parts"] > 1:
            self._sum_parts()

    def take(self, point: Point) -> None:
        """What follows from a point alone."""
        raise NotImplementedError

    def multiply(self, final: Stage) -> None:
        """The tiles of the block that writes the result, and in them the steps of k."""
        raise NotImplementedError

    def _form(self) -> list[str]:
        """The product in its form, padded to tiles of x, y and k; gives the names of the stages X, Y and the sum."""
        s, found, axes = self.s, self.product, self.product.axes
        if found.packed is not None:  # in the order in which tiles are fetched: k outermost, then y
            copy_in_order(s, found.packed, found.name, [*axes.batch, *[axes.k[i] for i in found.order], *axes.y])
        made: list[str] = s.apply(
            "matrix_form", block=found.name, pads=list(self.tile), order=list(found.order),
            parts=self.point["parts"] * self.shares, k_last=list(self.k_last), **self.said,
        )  # fmt: skip
        return made

    def _final(self) -> Stage:
        """The block that writes a tile out: the epilogue, the product's own copy, or the parts."""
        s, epilogue = self.s, self.product.unit.epilogue
        self.accumulator = self.total
        if self.point["parts"] > 1:
            self.accumulator = s.cache_write(self._buffer(self.total), self.scope).name
            return s[self.total]
        final = s[self.product.name]
        if epilogue is not None:
            if self.shares == 1:
                final.compute_inline()
            final = s[epilogue.name]
        elif self.shares > 1:
            s.cache_write(final.block.writes[0].buffer, "local")
        return final

    def _loops(self, final: Stage) -> tuple[list[Var], list[Var], list[Var]]:
        """The loops of the final block, over batch, y and x, in this order."""
        loops, block, unit, own = nest.free_loops(final), final.block, self.product.unit, self.product.axes
        if self.point["parts"] > 1:
            *batch, y, x = loops[:4]
            final.reorder(*batch, y, x)
            return batch, [y], [x]
        by_name = {axis.var.name: loop for axis, loop in zip(block.axes, loops)}
        axes: Mapping[Any, Any] = unit.to_epilogue
        if unit.epilogue is None:  # the copy of the accumulators: its axes stand where the product's stood
            stored = unit.facts.block.body
            assert isinstance(stored, Store) and isinstance(block.body, Store)
            axes = dict(zip(stored.indices, block.body.indices))
        of_batch, of_y, of_x = ([by_name[axes[a.var].name] for a in part] for part in (own.batch, own.y, own.x))
        final.reorder(*of_batch, *of_y, *of_x)
        return of_batch, of_y, of_x

    def _blocks(self, final: Stage, batch: list[Var], block_y: Var, block_x: Var) -> None:
        """A block of threads for each tile of each product."""
        if batch:
            final.bind(nest.fuse_all(final, batch), "blockIdx.z")
        nest.mark(final, {block_y: "blockIdx.y", block_x: "blockIdx.x"})

    def _fetch(self, accumulator: Stage, name: str, step: Var, width: int) -> int:
        """A tile of an operand, of which `width` lie together, into shared memory; gives the elements of a vector."""
        stage = self.s[name]
        lanes = nest.fetch_lanes(facts_of(stage.block), width, self.product.unit.target)
        nest.attach(stage, accumulator, step, "shared")
        self.share(stage, self.fetched(stage, width), lanes)
        return lanes

    def fetched(self, stage: Stage, width: int) -> list[Var]:
        """The loops over a tile of an operand in the order in which threads fetch it; `width` elements lie together."""
        return nest.free_loops(stage)

    def share(self, stage: Stage, loops: list[Var], lanes: int) -> Var:
        """Work on a tile divided among all threads of the block; gives the loop in which a thread goes on."""
        raise NotImplementedError

    def _sum_parts(self) -> None:
        """The second kernel of split-K: the parts added up, and the epilogue."""
        unit, total = self.product.unit, self.s[self.product.name]
        if unit.epilogue is None:
            bind_flat(total, unit.target)
            return
        stage = self.s[unit.epilogue.name]
        nest.bind_loop(stage, nest.fuse_all(stage, nest.spatial_loops(stage)), unit.target)
        nest.attach(total, stage, stage.loops[-1], "local")
        total.unroll(nest.free_loops(total)[-1])

    def _buffer(self, name: str) -> Buffer:
        return block_named(self.s, name).writes[0].buffer


# ---------------------------------------------------------------------------------------------------------- registers


class RegisterTiles(Tiles):
    """Products by multiply-adds: a register tile for each thread."""

    name, knobs, scope, part_blocks = "product", KNOBS, "local", model.PART_BLOCKS

    def legal(self, c: Columns) -> Any:
        """The points that make sense."""
        machine, each_x, each_y = self.machine, c["each_x"], c["each_y"]
        threads, steps = self._threads(c), ceildiv(self.k, c["tile_k"])
        alone, staged = KNOBS["stages"]
        stages = np.where(machine.has_async_copy & (steps >= staged), staged, alone)
        shared = c["stages"] * c["tile_k"] * (c["tile_x"] + c["tile_y"] + 16) * self.bytes
        is_wide = (c["stages"] > alone) & (threads >= model.WIDE_WARPS * machine.warp) & (not self.product.k_last[0])
        return (
            (c["tile_x"] <= model.BEYOND * self.x)
            & (c["tile_y"] <= model.BEYOND * self.y)
            & ((c["tile_k"] <= self.k) | (c["tile_k"] == KNOBS["tile_k"][0]))
            & (each_x * each_y >= model.LEAST_TILE)
            & (each_x < model.FLAT_TILE * each_y)
            & ((each_x == KNOBS["each_x"][-1]) == (c["tile_x"] == KNOBS["tile_x"][-1]))
            & ((each_x * each_y <= model.LARGE_TILE) | is_wide)
            & (each_x * each_y * c["tile_k"] <= model.WRITTEN_STEP)
            & (threads >= model.LEAST_WARPS * machine.warp)
            & (threads <= min(model.PRODUCT_THREADS, machine.block_threads))
            & (c["stages"] == stages)
            & (shared <= machine.shared_bytes)
            & self.may_split(c["parts"], self.blocks(c["tile_y"], c["tile_x"]), steps)
        )

    def cost(self, c: Columns) -> Any:
        """Seconds of each point."""
        machine, fit, k_last = self.machine, model.model_of(self.machine), self.product.k_last
        tile_k, each_x, each_y, parts = c["tile_k"], c["each_x"], c["each_y"], c["parts"]
        threads, columns = self._threads(c), c["tile_x"] // each_x
        steps = ceildiv(self.k, tile_k * parts)
        shared = c["stages"] * tile_k * (c["tile_x"] + c["tile_y"]) * self.bytes
        blocks = self.blocks(c["tile_y"], c["tile_x"])
        rounds, resident, together = self.rounds(blocks, parts, threads, self._registers(c), shared)
        # A block of few warps with much to do takes as long beside others.
        is_alone = each_x * each_y > model.LARGE_TILE
        rounds = np.where(is_alone, ceildiv(rounds, resident) * resident, rounds)
        kinds = [_fetch_kind(self.product, side) for side in ("x", "y")]
        fetches = [getattr(fit, f"fetch_{kind}") * (fit.fetch_along if k else 1.0) for kind, k in zip(kinds, k_last)]
        # Copies beside the threads take 4 bytes at least: a thread waits for other elements.
        single = [kind == "plain" or (kind == "gather" and not k) for kind, k in zip(kinds, k_last)]
        operands = self.product.axes.x_operand, self.product.axes.y_operand
        alone = [one and stored_operand(operand).dtype.bytes < 4 for one, operand in zip(single, operands)]
        waits = tile_k * (c["tile_x"] * alone[0] + c["tile_y"] * alone[1]) / threads
        fetch = tile_k * (c["tile_x"] * fetches[0] + c["tile_y"] * fetches[1]) / threads
        instructions = tile_k * (each_x * each_y + (each_x + each_y) / model.FLOATS) + fetch + fit.step_instructions
        # Threads read four elements at a time, eight threads together: of rows along k, these meet in the same banks.
        near, in_rows = np.minimum(model.NEAR_READS, columns), 1 - self._is_large(c)
        clash_x = np.minimum(np.minimum(model.FLOATS, each_x), near) ** (k_last[0] * in_rows)
        clash_y = np.minimum(np.minimum(model.FLOATS, each_y), model.NEAR_READS // near) ** (k_last[1] * in_rows)
        waves = clash_x * fit.load * each_x + clash_y * fit.broadcast * each_y
        busy = np.hypot(instructions * threads / machine.lanes, tile_k * threads / model.BANKS * waves)
        warps = threads / model.BANKS * together
        busy = busy / np.where(is_alone, 1.0, np.minimum(1.0, (warps / fit.busy_warps) ** fit.busy_power))
        busy = busy + is_alone * (resident == 1) * model.ALONE_STEP
        ahead, in_turn = c["stages"] - 1, ceildiv(rounds, resident) * steps
        chain = np.maximum(fit.step_cycles + fit.chain * instructions, fit.latency / np.maximum(ahead, 1) * (ahead > 0))
        chain = chain + fit.fetch_wait[0] * (waits > 0) + fit.fetch_wait[1] * waits
        apart = 1 + (self.x % model.FLOATS > 0) * (parts == 1) * np.minimum(model.FLOATS, each_x)
        busy = rounds * (steps * busy + fit.written * c["tile_x"] * c["tile_y"] * apart)
        cycles = np.maximum(busy, in_turn * chain) + in_turn * (ahead == 0) * fit.latency_alone
        return self.seconds(fit.launch + cycles, parts)

    def _registers(self, c: Columns) -> Any:
        """Registers of a thread: as many again as large tiles have sums."""
        each_x, each_y, fit = c["each_x"], c["each_y"], model.model_of(self.machine)
        few = each_x * each_y + 2 * (each_x + each_y) + fit.registers
        return np.minimum(model.MOST_REGISTERS, np.where(self._is_large(c), 2 * each_x * each_y, few))

    def _threads(self, c: Columns) -> Any:
        return c["tile_x"] // c["each_x"] * (c["tile_y"] // c["each_y"])

    def take(self, point: Point) -> None:
        """A tile, as the knobs say it. Copies beside the threads turn an operand along k for a large register tile."""
        self.tile = point["tile_x"], point["tile_y"], point["tile_k"]
        self.turned = self.product.k_last if self._is_large(point) else (0, 0)

    @property
    def k_last(self) -> tuple[int, int]:
        """None of those that are turned."""
        return (0, 0) if any(self.turned) else self.product.k_last

    def fetched(self, stage: Stage, width: int) -> list[Var]:
        """Neighbours in memory by neighbouring threads, where a tile is turned."""
        loops = nest.free_loops(stage)
        if not dict(zip((self.x_stage, self.y_stage), self.turned))[stage.name]:
            return loops
        loops[-2:] = loops[:-3:-1]
        stage.reorder(*loops)
        return loops

    def multiply(self, final: Stage) -> None:
        """Blocks, virtual threads and threads, and the product of a thread's own tile."""
        batch, y, x = self._loops(final)
        flat_y, flat_x = nest.fuse_all(final, y), nest.fuse_all(final, x)
        block_y, virtual_y, thread_y, inner_y = final.split(flat_y, factors=self._factors("y"))
        block_x, virtual_x, thread_x, inner_x = final.split(flat_x, factors=self._factors("x"))
        final.reorder(block_y, block_x, virtual_y, virtual_x, thread_y, thread_x, inner_y, inner_x)
        self._blocks(final, batch, block_y, block_x)
        if self._is_large(self.point):  # more registers would leave room for fewer blocks
            c = {knob: np.asarray(number) for knob, number in self.point.items()}
            shared = self.point["stages"] * self.tile[2] * sum(self.tile[:2]) * self.bytes
            held = model.resident_blocks(self.machine, self._threads(c), self._registers(c), shared)
            final.annotate("resident", int(held), block_x)
        if self._has_square_warps():
            (warp_y, thread_y), (warp_x, thread_x) = (
                final.split(loop, factor=size) for loop, size in zip((thread_y, thread_x), model.WARP_SQUARE)
            )
            final.reorder(warp_y, warp_x, thread_y, thread_x)
            final.bind(nest.fuse_all(final, [warp_y, warp_x]), "threadIdx.z")
        nest.mark(final, {virtual_y: "vthread", virtual_x: "vthread", thread_y: "threadIdx.y", thread_x: "threadIdx.x"})
        is_whole = self.x % nest.extent_of(final, inner_x) == 0 and isinstance(final.block.body, Store)
        nest.mark(final, {inner_y: "unroll", inner_x: "vectorize" if is_whole else "unroll"})
        self._accumulate(final, thread_x)

    def _factors(self, side: str) -> list[int | None]:
        point = self.point
        inner = min(model.FLOATS, point[f"each_{side}"])
        virtual = point[f"each_{side}"] // inner
        return [None, virtual, point[f"tile_{side}"] // point[f"each_{side}"], inner]

    def _accumulate(self, final: Stage, thread: Var) -> None:
        """The accumulators in registers, the operands through shared memory and registers."""
        s, point = self.s, self.point
        total = s[self.accumulator]
        if point["parts"] == 1:
            total.set_scope("local")
        total.compute_at(final, thread, exact=False)
        *own, k = nest.free_loops(total)
        outer, inner = total.split(k, factor=point["tile_k"])
        group, inner = total.split(inner, factor=model.FLOATS if any(self.k_last) else 1)
        nest.arrange(total, {outer: "", **nest.unrolled(group, inner, *own)})
        if self._is_large(self.point):  # what the next k takes is loaded while this one is multiplied
            total.annotate("pipeline_stages", 2, group)
            total.annotate(CARRIED, True, group)
        for name, side, k_last, turned in zip((self.x_stage, self.y_stage), "xy", self.k_last, self.turned):
            lanes = self._fetch(total, name, outer, point["tile_k" if k_last else f"tile_{side}"])
            if k_last or turned:
                start = max(model.FLOATS, lanes)  # rows begin where a fetch may
                s[name].storage_align(1, 2 * start, start)
            registers = s.cache_read(name, "local", [total.name])
            registers.compute_at(total, group if k_last or self._is_large(point) else inner)
            nest.load_tile(registers)
        nest.fetch_ahead(total, outer, point["stages"])

    def share(self, stage: Stage, loops: list[Var], lanes: int) -> Var:
        """Work on a tile divided among rows and columns of threads."""
        rows, columns = self._rows_and_columns()
        if not self._has_square_warps():
            return nest.fetch_together(stage, loops, rows, columns, lanes)
        high, wide = model.WARP_SQUARE
        return nest.fetch_together(stage, loops, high, wide, lanes, rows * columns // (high * wide))

    def _rows_and_columns(self) -> tuple[int, int]:
        """Threads of a block along y and x."""
        return (self.point["tile_y"] // self.point["each_y"], self.point["tile_x"] // self.point["each_x"])

    def _is_large(self, c: Any) -> Any:
        """Of a point, or of columns: whether a thread has many sums, and steps are fetched ahead."""
        return (c["stages"] > 1) & (c["each_x"] * c["each_y"] >= model.LARGE_TILE)

    def _has_square_warps(self) -> bool:
        """Whether the threads of a warp are as many rows and columns as read the least from shared memory."""
        high, wide = model.WARP_SQUARE
        rows, columns = self._rows_and_columns()
        is_warp = high * wide == self.machine.warp and rows % high == 0 and columns % wide == 0
        return is_warp and bool(self._is_large(self.point))


def copy_in_order(s: Schedule, load: Load, reader: str, wanted: Collection[Axis]) -> tuple[Stage, list[str]]:
    """A copy of an operand, its last dimensions in the order of axes; gives it, and the letters of the new order."""
    copy = s.cache_read(load.buffer.name, "global", [reader])
    letters = [f"d{dimension}" for dimension in range(len(load.indices))]
    last = [letter for axis in wanted for letter, index in zip(letters, load.indices) if index is axis.var]
    outputs = [*[letter for letter in letters if letter not in last], *last]
    s.apply("transform_layout", buffer=s.buffer_name(copy), inputs=letters, outputs=outputs)
    return copy, outputs

"""Products of two operands: matrix products, batched ones, convolutions, all in the form C[y, x] += X[k, x] * Y[k, y].

In: a block that `matrix_form` takes, and the elementwise block after it. Out: one kernel of tiles (two where k is cut
into parts, so that there are enough blocks):

    for each tile of y and x                              a block of threads
      for each step of k                                  X and Y fetched together into shared memory, ahead of use
        for each k of the step                            a few x and y of each into registers
          C[y, x] += X[k, x] * Y[k, y]                    a thread's own tile of sums, in registers
      the elementwise block, on the tile

The numbers come from `product_tiles`, by a model of the machine.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from weft.expr.nodes import Buffer, Cast, Expr, Load, Select, Var, add, floormod, index_expr, int_value, mul
from weft.expr.simplify import simplify
from weft.expr.visit import substitute, uses_any, walk
from weft.loop.ir import Axis, Block, Store
from weft.loop.tree import readers
from weft.schedule.facts import Facts, block_named, extent, facts_of, names_of
from weft.schedule.primitives.matrix import MatrixAxes, matrix_axes, stored_operand
from weft.schedule.schedule import Schedule, Stage
from weft.schedule.space import Point, Space
from weft.targets.base import Target
from weft.targets.gpu.elementwise import bind_loop, free_loops, fuse_all, loop_extents, spatial_loops, threads_of
from weft.targets.gpu.product_tiles import CHOICES, Problem, best_tile

LEAST_SIDE = 2
"""A product narrower than this is no matrix product: its operands stream through a reduction."""


@dataclass(frozen=True)
class Product:
    """A product as it stands in a program: the block, the block that takes its result, and how the operands lie."""

    block: Block
    axes: MatrixAxes
    taker: Block | None
    to_taker: dict[Var, Var]
    order: tuple[int, ...]
    k_last: tuple[int, int]
    packed: Buffer | None
    """A constant operand that is stored in another order of its dimensions, once."""


def schedule_product(s: Schedule, name: str, target: Target, constants: Collection[Buffer], done: set[str]) -> bool:
    """Schedules a block that is a product, or that takes one, with the product; False (nothing changed) for others."""
    space = product_space(s, name, target, constants)
    if space is None:
        return False
    known = set(names_of(s))
    with s.attempt(space.name, point=space.default) as tried:
        space.apply(space.default)
        done.update(set(names_of(s)) - known)
    return bool(tried)


def product_space(s: Schedule, name: str, target: Target, constants: Collection[Buffer]) -> Space | None:
    """The space of tiles of a product that a block is, or takes; None where there is none."""
    found = find_product(s, name, constants)
    if found is None:
        return None
    kind = found.axes.x_operand.dtype
    problem = Problem(
        found.axes.size("x"), found.axes.size("y"), found.axes.size("k"), found.axes.size("batch"), kind.bytes,
        found.k_last, (_fetch_kind(found, found.axes.x_operand, "x"), _fetch_kind(found, found.axes.y_operand, "y")),
    )  # fmt: skip
    point = best_tile(problem, threads_of(target))
    if point is None:
        return None
    return Space("product", CHOICES, point, lambda chosen: _Apply(s, found, chosen, target).run())


# ----------------------------------------------------------------------------------------------------------- finding


def find_product(s: Schedule, name: str, constants: Collection[Buffer]) -> Product | None:
    """The product that a block is, or whose result it takes element by element."""
    block = block_named(s, name)
    taker: Block | None = None
    mapping: dict[Var, Var] = {}
    if matrix_axes(block) is None:
        made = _taken(s, facts_of(block))
        if made is None:
            return None
        taker, (block, mapping) = block, made
    axes = matrix_axes(block)
    if axes is None or min(axes.size("x"), axes.size("y")) < LEAST_SIDE or axes.size("k") < 8:
        return None
    facts = facts_of(block)
    k_last = (runs_along_k(facts, axes.x_operand, axes), runs_along_k(facts, axes.y_operand, axes))
    packed = _packable(axes.y_operand, axes, constants)
    if packed is not None:
        k_last = (k_last[0], 0)
    return Product(block, axes, taker, mapping, _k_order(facts, axes, packed), k_last, packed)


def _taken(s: Schedule, facts: Facts) -> tuple[Block, dict[Var, Var]] | None:
    """The product whose result a block takes at its own element, and by itself; its axes as the block's."""
    if facts.is_reduction or facts.is_ordered or facts.store is None:
        return None
    for load in facts.loads:
        buffer = load.buffer
        if buffer in s.func.buffers or len(readers(s.func.body, buffer)) != 1:
            continue
        makers = [b for b in _blocks(s) if any(w.buffer is buffer for w in b.writes)]
        if len(makers) != 1 or matrix_axes(makers[0]) is None:
            continue
        if any(other.buffer is buffer and list(other.indices) != list(load.indices) for other in facts.loads):
            continue
        places = _own_places(facts, load)
        if places is None:
            continue
        stored = makers[0].body
        assert isinstance(stored, Store)
        return makers[0], dict(zip(stored.indices, places))  # type: ignore[arg-type]
    return None


def _own_places(facts: Facts, load: Load) -> list[Var] | None:
    """The axis of a block at each dimension of a load at the block's own element; None for another load.

    A dimension of one element may be read at 0, as what broadcasts is: an axis of one iteration stands for it.
    """
    own = [i for i in load.indices if isinstance(i, Var)]
    single = [axis.var for axis in facts.spatial if extent(axis) == 1 and axis.var not in own]
    places = []
    for index, size in zip(load.indices, load.buffer.shape):
        if isinstance(index, Var):
            places.append(index)
        elif int_value(index) == 0 and int_value(size) == 1 and single:
            places.append(single.pop(0))
        else:
            return None
    return places if len(set(places)) == len(places) and set(places) == {axis.var for axis in facts.spatial} else None


def _blocks(s: Schedule) -> list[Block]:
    return [block_named(s, name) for name in names_of(s)]


def _loads(e: Expr) -> list[Load]:
    return [node for node in walk(e) if isinstance(node, Load)]


def runs_along_k(facts: Facts, operand: Expr, axes: MatrixAxes) -> int:
    """1 where neighbours of an operand in memory are summed, and not neighbours in the result."""
    loads = _loads(operand)
    long = [axis for axis in axes.k if extent(axis) > 1]
    if not loads or not long:
        return 0
    own = [axis for axis in (*axes.x, *axes.y) if extent(axis) > 1]
    if any(facts.step(load, axis.var) == 1 for load in loads for axis in own):
        return 0
    return int(any(facts.step(load, long[-1].var) == 1 for load in loads))


def _packable(operand: Expr, axes: MatrixAxes, constants: Collection[Buffer]) -> Buffer | None:
    """A constant operand, read at plain axes."""
    while isinstance(operand, Cast):
        operand = operand.value
    if not isinstance(operand, Load) or operand.buffer not in constants:
        return None
    if not all(isinstance(i, Var) for i in operand.indices if int_value(i) is None):
        return None
    return operand.buffer if len([i for i in operand.indices if isinstance(i, Var)]) == len(operand.indices) else None


def _fetch_kind(found: Product, operand: Expr, side: str) -> str:
    """How the elements of an operand are fetched: in vectors, one by one, or from places worked out for each."""
    operand = stored_operand(operand)
    if side == "y" and found.packed is not None:
        return "vector" if found.axes.size("y") % 4 == 0 else "plain"
    if not isinstance(operand, Load):
        return "gather"
    facts = facts_of(found.block)
    last = found.axes.k if found.k_last[side == "y"] else getattr(found.axes, side)
    sizes = [extent(axis) for axis in last if extent(axis) > 1]
    steps = [facts.step(operand, axis.var) for axis in last if extent(axis) > 1]
    if not sizes or steps[-1] != 1:
        return "plain"
    together = all(a == b * size for a, b, size in zip(steps, steps[1:], sizes[1:]) if a is not None and b is not None)
    return (
        "vector" if together and found.axes.size(side if not found.k_last[side == "y"] else "k") % 4 == 0 else "plain"
    )


def _k_order(facts: Facts, axes: MatrixAxes, packed: Buffer | None) -> tuple[int, ...]:
    """The order in which reduction axes become k: a packed operand lets the longest be innermost."""
    plain = tuple(range(len(axes.k)))
    if packed is None or len(axes.k) < 2:
        return plain
    longest = max(plain, key=lambda i: extent(axes.k[i]))
    return (*[i for i in plain if i != longest], longest)


# ---------------------------------------------------------------------------------------------------------- applying


class _Apply:
    """Applies one point of the space."""

    def __init__(self, s: Schedule, product: Product, point: Point, target: Target) -> None:
        self.s, self.product, self.point, self.target = s, product, point, target

    def run(self) -> None:
        """The whole schedule of the product."""
        s, found, point = self.s, self.product, self.point
        if found.packed is not None:
            pack_operand(s, found)
        pads = [point["tile_x"], point["tile_y"], point["tile_k"]]
        names = s.apply(
            "matrix_form", block=found.block.name, pads=pads, order=list(found.order), parts=point["parts"],
            k_last=list(found.k_last),
        )  # fmt: skip
        self.x, self.y, self.total = names
        final = self._final()
        thread = self._tile(final)
        self._accumulate(final, thread)
        if point["parts"] > 1:
            sum_parts(s, found, self.target)

    def _final(self) -> Stage:
        """The block that writes the tile out: the one after the product, the product's own copy, or the parts."""
        s, found = self.s, self.product
        if self.point["parts"] > 1:
            return s[self.total]
        if found.taker is None:
            return s[found.block.name]
        s[found.block.name].compute_inline()
        return s[found.taker.name]

    def _tile(self, final: Stage) -> Var:
        """Cuts the final block into blocks, virtual threads and threads; gives the loop of the innermost thread."""
        point = self.point
        if point["parts"] > 1:
            self.local = self.s.cache_write(block_named(self.s, self.total).writes[0].buffer, "local")
        batch, y, x = axis_loops(self.s, self.product, final, point["parts"] > 1)
        final.reorder(*batch, *y, *x)
        flat_y, flat_x = fuse_all(final, y), fuse_all(final, x)
        block_y, virtual_y, thread_y, inner_y = final.split(flat_y, factors=self._factors("y"))
        block_x, virtual_x, thread_x, inner_x = final.split(flat_x, factors=self._factors("x"))
        final.reorder(block_y, block_x, virtual_y, virtual_x, thread_y, thread_x, inner_y, inner_x)
        if batch:
            final.bind(fuse_all(final, batch), "blockIdx.z")
        for loop, tag in (
            (block_y, "blockIdx.y"), (block_x, "blockIdx.x"), (virtual_y, "vthread"), (virtual_x, "vthread"),
            (thread_y, "threadIdx.y"), (thread_x, "threadIdx.x"),
        ):  # fmt: skip
            final.bind(loop, tag)
        self._write_out(final, inner_y, inner_x)
        return thread_x

    def _factors(self, side: str) -> list[int | None]:
        point = self.point
        inner = min(4, point[f"each_{side}"])
        virtual = point[f"each_{side}"] // inner
        return [None, virtual, point[f"tile_{side}"] // point[f"each_{side}"], inner]

    def _write_out(self, final: Stage, inner_y: Var, inner_x: Var) -> None:
        final.unroll(inner_y)
        facts = facts_of(final.block)
        if self.product.axes.size("x") % loop_extents(final)[inner_x.name] == 0 and facts.store is not None:
            final.vectorize(inner_x)
        else:
            final.unroll(inner_x)

    def _accumulate(self, final: Stage, thread: Var) -> None:
        """The sums in registers, the operands through shared memory and registers."""
        s, point = self.s, self.point
        if point["parts"] > 1:
            total = self.local
        else:
            total = s[self.total]
            total.set_scope("local")
        total.compute_at(final, thread, exact=False)
        loops = free_loops(total)
        k = loops[-1].var
        outer, inner = total.split(k, factor=point["tile_k"])
        group, inner = total.split(inner, factor=4 if any(self.product.k_last) else 1)
        total.reorder(outer, group, inner, *[loop.var for loop in loops[:-1]])
        for loop in (group, inner, *[loop.var for loop in loops[:-1]]):
            total.unroll(loop)
        for name, side, k_last in ((self.x, "x", self.product.k_last[0]), (self.y, "y", self.product.k_last[1])):
            self._fetch(total, name, outer, side, bool(k_last))
            registers = s.cache_read(name, "local", [total.name])
            registers.compute_at(total, group if k_last else inner)
            self._into_registers(registers)
        if point["stages"] > 1:
            total.annotate("pipeline_stages", point["stages"], outer)
            total.annotate("async_copy", True, outer)

    def _fetch(self, total: Stage, name: str, step: Var, side: str, k_last: bool) -> None:
        """A tile of an operand into shared memory, by all threads."""
        s, point = self.s, self.point
        lanes = fetch_lanes(facts_of(block_named(s, name)), point["tile_k"] if k_last else point[f"tile_{side}"])
        s[name].set_scope("shared")
        s[name].compute_at(total, step)
        stage = s[name]
        flat = fuse_all(stage, [loop.var for loop in free_loops(stage)])
        rows = point["tile_y"] // point["each_y"]
        columns = point["tile_x"] // point["each_x"]
        outer, thread_y, thread_x, vector = stage.split(flat, factors=[None, rows, columns, lanes])
        stage.reorder(thread_y, thread_x, outer, vector)
        stage.bind(thread_y, "threadIdx.y")
        stage.bind(thread_x, "threadIdx.x")
        stage.unroll(outer)
        if lanes > 1:
            stage.vectorize(vector)
        if k_last:
            start = max(4, lanes)  # rows begin where a fetch may
            stage.storage_align(1, 2 * start, start)

    def _into_registers(self, registers: Stage) -> None:
        long = [loop.var for loop in free_loops(registers) if (int_value(loop.extent) or 1) > 1]
        for loop in long[:-1]:
            registers.unroll(loop)
        if long:
            registers.vectorize(long[-1])


def pack_operand(s: Schedule, found: Product) -> None:
    """The constant operand in the order in which tiles are fetched: k outermost, then y."""
    operand = found.axes.y_operand
    while isinstance(operand, Cast):
        operand = operand.value
    assert isinstance(operand, Load) and found.packed is not None
    copy = s.cache_read(found.packed.name, "global", [found.block.name])
    wanted = [*found.axes.batch, *[found.axes.k[i] for i in found.order], *found.axes.y]
    places = [place for axis in wanted for place, index in enumerate(operand.indices) if index is axis.var]
    letters = [f"d{place}" for place in range(len(operand.indices))]
    s.apply(
        "transform_layout", buffer=s.buffer_name(copy), inputs=letters, outputs=[letters[place] for place in places]
    )


def axis_loops(s: Schedule, found: Product, final: Stage, is_part: bool) -> tuple[list[Var], list[Var], list[Var]]:
    """The loops of the block that writes a product out, over batch, y and x; `is_part`: of the parts of k."""
    loops = [loop.var for loop in free_loops(final)]
    if is_part:
        *batch, y, x = loops[:4]
        return batch, [y], [x]
    block = block_named(s, final.name)
    by_name = {axis.var.name: loop for axis, loop in zip(block.axes, loops)}
    places = found.to_taker
    if found.taker is None:  # the copy of the sums: its axes stand where the product's stood
        assert isinstance(found.block.body, Store) and isinstance(block.body, Store)
        places = dict(zip(found.block.body.indices, block.body.indices))  # type: ignore[arg-type]

    def of(axes: tuple[Axis, ...]) -> list[Var]:
        return [by_name[places[axis.var].name] for axis in axes]

    return of(found.axes.batch), of(found.axes.y), of(found.axes.x)


def sum_parts(s: Schedule, found: Product, target: Target) -> None:
    """The second kernel: the parts added up, and the block that takes the result."""
    name = found.block.name
    if found.taker is None:
        stage = s[name]
        loops = spatial_loops(stage)
        stage.reorder(*loops, *[x.var for x in free_loops(stage) if x.var not in loops])
        bind_loop(stage, fuse_all(stage, loops), target)
        return
    stage = s[found.taker.name]
    bind_loop(stage, fuse_all(stage, spatial_loops(stage)), target)
    s[name].set_scope("local")
    s[name].compute_at(stage, stage.loops[-1])
    s[name].unroll(free_loops(s[name])[-1].var)


def fetch_lanes(facts: Facts, length: int) -> int:
    """Elements that a thread fetches at a time: neighbours in memory, from a multiple of their number on."""
    store = facts.store
    if store is None or not facts.spatial:
        return 1
    last = facts.spatial[-1]
    value, tests = store.value, []
    while isinstance(value, Select):
        tests += [value.condition] if uses_any(value.condition, {last.var}) else []
        value = value.then
    if not isinstance(value, Load) or facts.step(value, last.var) != 1:
        return 1
    lanes = 16 // value.buffer.dtype.bytes
    while lanes > 1 and (
        length % lanes
        or extent(last) % lanes
        or not _aligned(facts, value, last.var, lanes)
        or not all(_is_common(facts, test, last.var, lanes) for test in tests)
    ):
        lanes //= 2
    return lanes


def _is_common(facts: Facts, test: Expr, last: Var, lanes: int) -> bool:
    """Whether a test has the same result for `lanes` neighbours along the last axis, from a multiple on."""
    group, lane = Var("group"), Var("lane")
    axis = next(a for a in facts.spatial if a.var is last)
    ranges = facts.ranges.with_loop(group, index_expr(max(1, extent(axis) // lanes)))
    ranges = ranges.with_loop(lane, index_expr(lanes))
    place = add(mul(group, index_expr(lanes)), lane)
    return not uses_any(simplify(substitute(test, {last: place}), ranges), {lane})


def _aligned(facts: Facts, load: Load, last: Var, lanes: int) -> bool:
    """Whether a load starts at a multiple of `lanes` elements wherever the last axis does."""
    group = Var("group")
    flat: Expr = index_expr(0)
    stride: Expr = index_expr(1)
    for size, index in zip(reversed(load.buffer.shape), reversed(load.indices)):
        flat = add(flat, mul(substitute(index, {last: mul(group, index_expr(lanes))}), stride))
        stride = mul(stride, size)
    axis = next(a for a in facts.spatial if a.var is last)
    ranges = facts.ranges.with_loop(group, index_expr(max(1, extent(axis) // lanes)))
    return int_value(simplify(floormod(flat, index_expr(lanes)), ranges)) == 0

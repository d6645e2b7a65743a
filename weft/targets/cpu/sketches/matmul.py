"""Matrix products on vector registers, from the target's facts; the nest, outermost first:

    batch, jc      products, and columns in blocks whose packed panel fills part of the second-level cache   parallel
    ic             rows in blocks, so that the sums of a block stay in the second-level cache
    kc             the reduction in blocks, so that a row tile of the left operand stays in the first-level cache
    io, jr         rows and columns by the size of the register tile
    k              the micro kernel: rows × vectors accumulators stay in registers

The right operand is packed into panels of the tile's width: a constant when the model is compiled, another in the
kernel where enough rows use it. The block that takes the sums runs on the tile, or, where the reduction has several
blocks, on the block of sums after the last of them.

A product of few rows waits for its weights. Each core gets one share of their panels, and walks over it forwards in
even calls of the model and backwards in odd ones: what it read last is still in its second-level cache. A row that is
known to be often 0 (the result of a Relu) passes over the weights that its zeros would meet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from weft.core.errors import ScheduleError
from weft.expr.nodes import Var
from weft.expr.visit import uses_any
from weft.plan.planner import Unit
from weft.plan.sketch import Columns, Point, Sketch, around_rule, ceildiv
from weft.schedule.facts import OFTEN_ZERO, facts_of
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu.default_loops import LEAST_PARALLEL_WORK, extent_of, parallelize
from weft.targets.cpu.facts import has_masks
from weft.targets.cpu.machine import core_of, seconds
from weft.targets.cpu.model import UNALIGNED, Tiles, product_seconds, ruled
from weft.targets.cpu.sketches.matmul_facts import Product, is_whole, product_of, sums_and_final
from weft.targets.cpu.sketches.register_tile import MOST_UNROLLED

LEAST_ROWS = 8
"""So many rows of the left operand pay for a copy of the right one."""
LEAST_CHAINS = 6
"""So many sums at a time hide the latency of a multiply-add; with fewer, each is made of several parts."""
PARTS = 4
"""How many parts a sum is then made of."""


@dataclass(frozen=True)
class Plan:
    """The knobs, and what is not to be chosen: the lanes, and whether the right operand is packed."""

    rows: int
    vectors: int
    columns: int
    height: int
    depth: int
    unroll: int
    parts: int
    ahead: int
    lanes: int
    packed: bool
    skips: bool = False
    """Whether zeros of the left operand are passed over."""

    @property
    def width(self) -> int:
        """Columns of the register tile."""
        return self.vectors * self.lanes


def match(unit: Unit) -> Sketch | None:
    """The sketch of a float product; None for other programs."""
    product = product_of(unit)
    if product is None or not product.facts.target.dtype.is_float:
        return None
    lanes = min(unit.target.lanes(product.facts.target.dtype), 1 << (product.n - 1).bit_length())
    packed = _packs(product, product.right.buffer in unit.constants, lanes)
    if lanes < 2 or packed is None or (not packed and product.n % lanes and not has_masks(unit.target.features)):
        return None
    if product.low is not None and not (packed and product.low.buffer in unit.constants):
        return None
    skips = packed and _skips_zeros(product, unit)
    plan = plan_skipping(product, unit.target, lanes) if skips else plan_matmul(product, unit.target, lanes, packed)
    knobs = {
        "rows": tuple(sorted({plan.rows, *range(1, min(product.m, 14) + 1)})),
        "vectors": tuple(sorted({plan.vectors, 1, 2, 3, 4, 6, 8, 12})),
        "columns": tuple(sorted({plan.columns, *(plan.width * n for n in (1, 2, 4, 8, 16))})),
        "height": tuple(sorted({plan.height, *(plan.rows * n for n in (1, 4, 16, 64))})),
        "depth": tuple(sorted({plan.depth, product.k, 128, 256, 512, 1024})),
        "unroll": (1, 2, 4, 8),
        "parts": tuple(sorted({plan.parts, 1, PARTS})),
        "ahead": tuple(sorted({plan.ahead, 0, 16, 64, 256})),
    }
    default = {knob: int(getattr(plan, knob)) for knob in knobs}

    def apply(point: Point) -> None:
        _apply(unit, product, Plan(**point, lanes=lanes, packed=packed, skips=skips))

    if skips or (product.m == 1 and packed):  # waits for its weights, whatever the tile
        return ruled("matmul", unit, knobs, default, apply)
    size = Tiles(core_of(unit.target), product.m, ceildiv(product.n, lanes), product.k, unit.target.vector_registers)
    whole = product_seconds("matmul", unit)
    if product.m == 1:  # a load for each multiply-add
        whole = max(whole, float(seconds(UNALIGNED * product.count * size.least, unit.target)))
    rest = {knob: number for knob, number in default.items() if knob not in ("rows", "vectors")}

    def cost(columns: Columns) -> Any:
        slower = size.cycles(columns["rows"], columns["vectors"]) / size.least
        return around_rule(rest, whole)(columns) * slower

    choices = {knob: tuple(sorted({*numbers, default[knob]})) for knob, numbers in knobs.items()}
    return Sketch("matmul", choices, apply, cost, lambda columns: size.fits(columns["rows"], columns["vectors"]))


def _packs(product: Product, constant: bool, lanes: int) -> bool | None:
    """Whether the right operand is packed; None where neither way serves."""
    whole = is_whole(product)
    if constant and whole:
        return True
    few = product.m < 4 * LEAST_ROWS or product.n <= 3 * lanes
    if product.right_steps[0] == 1 and (few or not whole):
        return False
    return True if whole and product.m * product.count >= LEAST_ROWS else None


def plan_matmul(product: Product, target: Target, lanes: int, packed: bool) -> Plan:
    """The analytic choice of the knobs."""
    m, n, k = product.m, product.n, product.k
    cores = target.cores if m * n * k * product.count >= LEAST_PARALLEL_WORK else 1
    l1, l2 = target.cache_bytes[0] or 32 << 10, target.cache_bytes[1] or 256 << 10
    size = product.facts.target.dtype.bytes
    far = packed and _is_far(product, target)
    most = turned_vectors(target, size * lanes * k, k % PARTS == 0) if far else None
    rows, vectors = register_tile(m, n, k, target, lanes, ceildiv(cores, product.count), most)
    width = vectors * lanes
    streams = far and m % rows == 0 and m > rows and size * width * k * 2 <= l2 * 3 // 4
    limit = max(l1 // 2 // (size * max(rows, 8)), 64)
    depth = k if k <= 2 * limit or m <= rows or streams else _block(k, limit)
    columns = width
    if packed and size * m * k > l2 // 2 and not streams:  # the left operand is far too: it is read less often
        columns = max(1, l2 * 3 // 8 // (size * depth) // width) * width
        blocks = ceildiv(n, columns)
        if product.count < cores and n >= 2 * cores * width:
            blocks = ceildiv(blocks, cores) * cores
        columns = min(columns, ceildiv(ceildiv(n, blocks), width) * width)
    elif far and product.count == 1 and m <= rows:  # each core meets its own share in every call
        columns = ceildiv(ceildiv(n, width), cores) * width
    height = ceildiv(m, rows) * rows
    if depth < k:
        height = min(height, max(1, l2 // 4 // (size * columns) // rows) * rows)
    while product.count * ceildiv(n, columns) * ceildiv(m, height) < cores and height > rows:
        height = ceildiv(ceildiv(height, 2), rows) * rows
    parts = PARTS if rows * vectors < LEAST_CHAINS and k % PARTS == 0 and depth == k and k >= 8 * PARTS else 1
    most = min(4, MOST_UNROLLED // (rows * vectors * parts))
    unroll = next(u for u in (4, 2, 1) if u <= most and depth // parts % u == 0)
    # Weights that a call meets once are found in the cache again only if the whole model fits into it.
    ahead = max(l1 // 4 // (size * width), 8) if far or (packed and m <= rows) else 0 if packed else 8
    return Plan(rows, vectors, columns, height, depth, unroll, parts, ahead, lanes, packed)


def _skips_zeros(product: Product, unit: Unit) -> bool:
    """Whether one row that is often 0 meets far weights: rows of weights that a zero would meet are then not read."""
    zeros = unit.schedule.func.annotations.get(OFTEN_ZERO, ())
    one_row = product.m == 1 and product.count == 1 and product.left.buffer.name in zeros
    return one_row and product.right.buffer in unit.constants and _is_far(product, unit.target)


def plan_skipping(product: Product, target: Target, lanes: int) -> Plan:
    """For a row that is often 0: wide panels, so that what is not read is more than the neighbour of what is."""
    cores = target.cores if product.n * product.k >= LEAST_PARALLEL_WORK else 1
    across = ceildiv(product.n, lanes)
    most = min(target.vector_registers // 2, ceildiv(across, cores))
    vectors = ceildiv(across, ceildiv(across, most))
    columns = ceildiv(ceildiv(product.n, vectors * lanes), cores) * vectors * lanes
    return Plan(1, vectors, columns, 1, product.k, 1, 1, 0, lanes, packed=True, skips=True)


def _is_far(product: Product, target: Target) -> bool:
    """Whether the right operand comes from the third-level cache, or from memory, as it is used."""
    bytes_of_all = product.facts.target.dtype.bytes * product.n * product.k
    return bytes_of_all > (target.cache_bytes[1] or 256 << 10) // 2


def turned_vectors(target: Target, column_bytes: int, in_parts: bool) -> int:
    """How many vectors wide a panel of weights may be that one row walks back and forth over, from call to call or step
    to step: a core finds again in its cache all that it read last but for a panel, so a panel is a small part of it.
    Sums that are not made in parts need some vectors to hide the latency of a multiply-add.
    """
    return max((target.cache_bytes[1] or 256 << 10) // 8 // column_bytes, 1 if in_parts else PARTS)


def register_tile(
    m: int, n: int, k: int, target: Target, lanes: int, cores: int, most_vectors: int | None = None
) -> tuple[int, int]:
    """Rows and vectors: enough accumulators to hide latencies, few loads for each, little left over at the edges.

    `most_vectors` limits the width of a tile of one row.
    """
    accumulators = target.vector_registers * 3 // 4
    wide = accumulators // 3
    across = ceildiv(n, lanes)
    if m == 1:  # waits for memory: long stretches of the panel, as many for each core
        most = min(max(1, target.vector_registers * 3 // 8), most_vectors or across)
        share = max(1, ceildiv(across, cores))
        counts = range(max(1, min(most, share) // 2), min(most, share) + 1)
        return 1, min(counts, key=lambda v: (ceildiv(ceildiv(across, v), cores) * v, -v))
    if m < wide:
        vectors = min(across, accumulators // m, 8)
        return m, ceildiv(across, ceildiv(across, vectors))
    return Tiles(core_of(target), m, across, k, target.vector_registers).best()


def _block(extent: int, limit: int) -> int:
    """A block of at most `limit` that divides the extent, if one is near; else all of it: uneven blocks cost code."""
    least = ceildiv(extent, limit)
    return next((extent // parts for parts in range(least, 4 * least) if extent % parts == 0), extent)


# ----------------------------------------------------------------------------------------------------- the sketch


def _apply(unit: Unit, product: Product, plan: Plan) -> None:
    s, facts = unit.schedule, product.facts
    sums, final, at = sums_and_final(unit)
    whole = plan.width if _fills(product, plan) else plan.lanes
    copy = pack_right(s, product, sums.name, plan.width, whole) if plan.packed else None
    more = pack_low(s, product, sums.name, plan.width, whole)
    position = {axis.var: i for i, axis in enumerate(facts.spatial)}
    sums.pad(sums.axis[position[product.lane.var]], whole)
    lanes_last(s, sums, position[product.lane.var])
    loops = _outer_loops(final, product, plan, at)
    if plan.depth < product.k:
        micro = _blocked(s, sums, final, product, plan, position, loops)
    else:
        micro = _straight(s, sums, final, product, plan, position, loops)
    micro.set_scope("local")
    _micro_kernel(micro, product, plan, position)
    unit.done.update([sums.name, micro.name, final.name, *(low.name for low in more)])
    outer = _divide(unit, product, plan, final, loops, copy)
    for packed in [copy, *more]:
        _fetch_ahead(micro, product, plan, packed, outer)


def _blocked(
    s: Schedule, sums: Stage, final: Stage, product: Product, plan: Plan, position: dict[Var, int], loops: _Loops
) -> Stage:
    """Several blocks of the reduction: their tiles are added up in a block of sums, which `final` takes at the end."""
    outer, _ = sums.split(sums.reduce_axis[0], factor=plan.depth)
    sums.reorder(outer, *sums.axis)
    micro = s.rfactor(sums.name, outer)
    sums.annotate("inline_init", True)
    _tile_epilogue(final, plan, loops)
    sums.compute_at(final, loops.block, exact=False)
    micro.compute_at(sums, _tile_sums(sums, product, plan, position), exact=False)
    return micro


def _straight(
    s: Schedule, sums: Stage, final: Stage, product: Product, plan: Plan, position: dict[Var, int], loops: _Loops
) -> Stage:
    """The whole reduction in registers, in one part or in several that are added up; `final` takes the tile."""
    micro = sums
    if plan.parts > 1:
        _, inner = sums.split(sums.reduce_axis[0], factor=plan.parts)
        micro = s.rfactor(sums.name, inner)
    _tile_final(final, plan, loops)
    sums.compute_at(final, loops.last, exact=False)
    if micro is not sums:
        micro.compute_at(final, loops.last, exact=False)
        sums.set_scope("local")
        axes = list(sums.axis)
        lane = axes[position[product.lane.var]]
        sums.reorder(*[x for x in axes if x is not lane], *sums.reduce_axis, lane)
        sums.unroll(sums.reduce_axis[0])
        if product.row is not None:
            sums.unroll(axes[position[product.row.var]])
        _lanes(sums, lane, plan)
    return micro


@dataclass
class _Loops:
    """The loops of the block that takes the sums: around a block of columns and rows, around a tile, and inside it."""

    outer: list[Var]
    block: Var
    around: list[Var]
    row: Var | None
    lane: Var

    @property
    def last(self) -> Var:
        return self.around[-1] if self.around else self.block


def pack_right(s: Schedule, product: Product, reader: str, width: int, whole: int) -> Stage:
    """A copy of the right operand in panels, padded to `whole`: lanes side by side for each step of the reduction."""
    load = product.right
    copy = s.cache_read(load.buffer.name, "global", [reader])
    names = [f"d{i}" for i in range(len(load.indices))]
    lane = names[product.lane_dim]
    copy.pad(copy.axis[product.lane_dim], whole)
    reducing = {product.depth.var}
    others = [(n, i) for d, (n, i) in enumerate(zip(names, load.indices)) if d != product.lane_dim]
    front = [n for n, i in others if not uses_any(i, reducing)]
    back = [n for n, i in others if uses_any(i, reducing)]
    outputs = [*front, f"{lane} // {width}", *back, f"{lane} % {width}"]
    s.apply("transform_layout", buffer=copy.block.writes[0].buffer.name, inputs=names, outputs=outputs)
    return copy


def pack_low(s: Schedule, product: Product, reader: str, width: int, whole: int) -> list[Stage]:
    """The same for the lower part of whole numbers, where the right operand is the upper one."""
    if product.low is None:
        return []
    return [pack_right(s, replace(product, right=product.low, low=None), reader, width, whole)]


def lanes_last(s: Schedule, sums: Stage, lane: int) -> None:
    """Stores the sums with the lanes' axis innermost."""
    buffer = sums.block.writes[0].buffer
    names = [f"d{i}" for i in range(len(buffer.shape))]
    if lane != len(names) - 1:
        outputs = [n for i, n in enumerate(names) if i != lane] + [names[lane]]
        s.apply("transform_layout", buffer=buffer.name, inputs=names, outputs=outputs)


def _outer_loops(final: Stage, product: Product, plan: Plan, at: dict[Var, Var]) -> _Loops:
    """Splits the loops of the block that takes the sums into blocks."""
    loop_of = dict(zip([axis.var for axis in final.block.axes], final.axis))
    batch = [loop_of[at[axis.var]] for axis in product.outer]
    lane, row = loop_of[at[product.lane.var]], None if product.row is None else loop_of[at[product.row.var]]
    jc, lane = final.split(lane, factor=plan.columns)
    outer = [*batch, jc]
    if row is not None:
        ic, row = final.split(row, factor=plan.height)
        outer.append(ic)
    final.reorder(*outer, *([] if row is None else [row]), lane)
    return _Loops(outer, outer[-1], [], row, lane)


def _tile_final(final: Stage, plan: Plan, loops: _Loops) -> None:
    """The block that takes the sums, on the register tile."""
    jr, jt = final.split(loops.lane, factor=min(plan.width, plan.columns))
    loops.around = [jr]
    tile = []
    if loops.row is not None:
        io, ii = final.split(loops.row, factor=plan.rows)
        loops.around = [io, jr]
        tile = [ii]
        final.unroll(ii)
    tile.append(jt)
    final.reorder(*loops.around, *tile)
    _lanes(final, jt, plan)


def _lanes(stage: Stage, loop: Var, plan: Plan) -> None:
    if extent_of(stage, loop) > plan.lanes:
        unrolled, loop = stage.split(loop, factor=plan.lanes)
        stage.unroll(unrolled)
    stage.vectorize(loop)


def _tile_epilogue(final: Stage, plan: Plan, loops: _Loops) -> None:
    """The block that takes the sums, on a block of finished ones."""
    lane = loops.lane
    if extent_of(final, lane) > plan.lanes:
        _, lane = final.split(lane, factor=plan.lanes)
    final.vectorize(lane)


def _tile_sums(sums: Stage, product: Product, plan: Plan, position: dict[Var, int]) -> Var:
    """The blocks of the reduction added up: each register tile goes to the block of sums; gives the loop around it."""
    axes = list(sums.axis)
    lane = axes[position[product.lane.var]]
    row = None if product.row is None else axes[position[product.row.var]]
    rest = [x for x in axes if x is not lane and x is not row]
    jr, jt = sums.split(lane, factor=plan.width)
    tile = [jt]
    around = [jr]
    if row is not None:
        io, ii = sums.split(row, factor=plan.rows)
        around, tile = [io, jr], [ii, jt]
        sums.unroll(ii)
    (kc,) = sums.reduce_axis
    sums.reorder(*rest, kc, *around, *tile)
    sums.annotate("partition", False, kc)
    _lanes(sums, jt, plan)
    return jr


def _micro_kernel(micro: Stage, product: Product, plan: Plan, position: dict[Var, int]) -> None:
    axes = list(micro.axis)
    lane = axes[position[product.lane.var]]
    row = None if product.row is None else axes[position[product.row.var]]
    rest = [x for x in axes if x is not lane and x is not row]
    (p,) = micro.reduce_axis
    deep = [p]
    if plan.unroll > 1:
        po, pi = micro.split(p, factor=plan.unroll)
        deep = [po, pi]
    tile = [] if row is None else [row]
    if plan.parts > 1:
        tile = [rest.pop(), *tile]
    if extent_of(micro, lane) > plan.lanes:
        jv, jl = micro.split(lane, factor=plan.lanes)
        tile += [jv, jl]
    else:
        tile.append(lane)
    micro.reorder(*rest, *deep, *tile)
    for loop in [*deep[1:], *tile[:-1]]:
        micro.unroll(loop)
    micro.vectorize(tile[-1])
    if plan.skips and plan.unroll == plan.parts == 1:
        micro.annotate("skip_zeros", product.left.buffer.name, deep[0])


def _fetch_ahead(micro: Stage, product: Product, plan: Plan, copy: Stage | None, outer: Var | None) -> None:
    """Fetches of the right operand: the next steps of the reduction, and, while rows run, the next panel."""
    if not plan.ahead:
        return
    buffer = product.right.buffer.name if copy is None else copy.block.writes[0].buffer.name
    step = next(loop for loop in micro.loops if _reduces(micro, loop))
    micro.prefetch(buffer, step, ceildiv(plan.ahead, plan.unroll * plan.parts))
    if outer is not None and _walks_rows(product, plan):
        micro.prefetch(buffer, step, product.m // plan.rows, outer=outer)


def _walks_rows(product: Product, plan: Plan) -> bool:
    """Whether one loop goes through all rows, then to the next panel: then it can fetch the next panel meanwhile."""
    tiles = product.m // plan.rows
    whole = product.m % plan.rows == 0 and plan.height >= product.m and plan.columns == plan.width
    return _fills(product, plan) and bool(plan.ahead) and whole and tiles > 1 and plan.depth == product.k


def _fills(product: Product, plan: Plan) -> bool:
    """Whether whole tiles waste little at the last columns: then there is no narrower tile, which is code and tests."""
    return plan.packed and ceildiv(product.n, plan.width) * plan.width <= 1.04 * product.n


def _reduces(stage: Stage, loop: Var) -> bool:
    """Whether a loop runs over a stage's reduction."""
    block = stage.block
    pairs = zip(block.axes, block.bindings)
    return any(axis.kind == "reduce" and uses_any(binding, {loop}) for axis, binding in pairs)


def _divide(unit: Unit, product: Product, plan: Plan, final: Stage, loops: _Loops, copy: Stage | None) -> Var | None:
    """Threads, and where the right operand is packed if it changes from call to call; gives the outermost loop."""
    work = product.m * product.n * product.k * product.count
    batch = len(product.outer)
    attach = None
    if copy is not None:
        unit.done.add(copy.name)
        if product.right.buffer not in unit.constants:
            if product.batch and product.count >= unit.target.cores:
                copy.compute_at(final, loops.outer[batch - 1])
                attach = loops.outer[batch - 1]
            _pack_kernel(copy, product, plan, unit.target, attach is None)
    if work < LEAST_PARALLEL_WORK:
        return None
    chosen = loops.outer[:batch] if attach is not None else list(loops.outer)
    if attach is None and _walks_rows(product, plan):
        chosen.append(loops.around[0])
    fused = final.fuse(*chosen) if len(chosen) > 1 else chosen[0]
    if extent_of(final, fused) > 1:
        final.parallel(fused)
    if copy is not None and product.right.buffer in unit.constants and _meets_once(product, plan, unit.target):
        for loop in (fused, loops.around[-1]):
            final.zigzag(loop)
    return fused if attach is None else None


def _meets_once(product: Product, plan: Plan, target: Target) -> bool:
    """Whether a call goes through far weights once. What it read last is then still near, and the next begins there."""
    return _is_far(product, target) and product.count == 1 and product.m <= plan.rows and plan.depth == product.k


def _pack_kernel(copy: Stage, product: Product, plan: Plan, target: Target, alone: bool) -> None:
    """The loops that pack: a panel at a time, lanes along its width; or transposed, a square in registers at a time."""
    facts = facts_of(copy.block)
    loops = list(copy.axis)
    lane = loops[product.lane_dim]
    depth = [loop for d, loop in enumerate(loops) if uses_any(product.right.indices[d], {product.depth.var})]
    rest = [x for x in loops if x is not lane and x not in depth]
    if len(depth) != 1:
        raise ScheduleError("matmul", copy.name, "the reduction indexes several dimensions")
    panel, inside = copy.split(lane, factor=plan.width)
    copy.reorder(*rest, panel, *depth, inside)
    if product.right_steps[1] == 1 and product.k % plan.lanes == 0 and plan.lanes in (4, 8, 16):
        steps, lanes = copy.split(depth[0], factor=plan.lanes)
        vectors, column = copy.split(inside, factor=plan.lanes)
        copy.reorder(steps, vectors, column, lanes)
        copy.unroll(column)
        copy.vectorize(lanes)
    else:
        _lanes(copy, inside, plan)
    if alone:
        parallelize(copy, [*rest, panel], facts.points, target)

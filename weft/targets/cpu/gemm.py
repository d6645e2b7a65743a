"""Matrix products on a CPU: C[m, n] = A[m, k] @ B[k, n], all row-major, from the target's facts.

The nest, outermost first (names as in the schedule):

    jc   columns in blocks whose packed panel of B fills part of the second-level cache     parallel
    kc   the reduction in blocks, so that a row tile of A stays in the first-level cache
    io   rows, by the height of the register tile
    jr   columns, by the width of the register tile
    k    the micro kernel: mr × nv vectors of accumulators stay in registers

B is packed once per (jc, kc) into panels of the tile's width where enough row tiles use it; A is read in place: its
tile has at most 9 rows, because rows that are a power of two apart share one set of the first-level cache.
The constants come from the number and width of the vector registers and from the cache sizes; nothing here is a table
of shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft import te
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target


@dataclass(frozen=True)
class GemmPlan:
    """The knobs of the nest: register tile, cache blocks, unrolling, packing, and how threads divide the work."""

    rows: int
    vectors: int
    lanes: int
    depth: int
    columns: int
    unroll: int
    pack: bool
    parallel: str

    @property
    def width(self) -> int:
        """Columns of the register tile."""
        return self.vectors * self.lanes


def ceildiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def plan_gemm(m: int, n: int, k: int, target: Target, cores: int | None = None) -> GemmPlan:
    """The analytic choice of the knobs for float32."""
    cores = target.cores if cores is None else cores
    lanes = max(target.vector_bytes // 4, 1)
    accumulators = target.vector_registers * 3 // 4
    l1, l2 = target.cache_bytes[0] or 32 << 10, target.cache_bytes[1] or 256 << 10
    wide = accumulators // 3
    across = ceildiv(n, lanes)
    if m >= wide:
        vectors = min(3, across)
        rows = accumulators // 2 if vectors == 1 else wide
        rows = min(rows, accumulators // vectors)
        if m % rows:
            rows = min(rows + 1, ceildiv(m, ceildiv(m, rows + 1)))
    else:
        rows, vectors = m, min(8, across, max(1, accumulators // m))
    width = vectors * lanes
    pack = m > 16 * wide and n > width
    limit = l1 // 3 // (4 * wide) if pack or n <= width else l1 // 6 // (4 * wide)
    if not pack and n <= width:
        limit = limit * 3 // 2
    depth = _block(k, max(limit, 1))
    columns = max(1, l2 * 3 // 8 // (4 * depth) // width) * width if pack else width
    columns = _share(n, columns, cores, width if n % lanes else lanes)
    parallel = "columns" if n >= cores * width else "rows"
    return GemmPlan(rows, vectors, lanes, depth, columns, min(4, depth), pack, parallel)


def _block(extent: int, limit: int) -> int:
    """A block of at most `limit` that divides the extent, if one is near; else one that spreads it evenly."""
    least = ceildiv(extent, limit)
    for parts in range(least, 2 * least + 1):
        if extent % parts == 0:
            return extent // parts
    return ceildiv(extent, least)


def _share(extent: int, limit: int, cores: int, step: int) -> int:
    """A block of at most `limit` such that the number of blocks is a multiple of the cores, where there are enough."""
    if extent < cores * step * 2:
        return min(limit, ceildiv(extent, step) * step)
    blocks = ceildiv(ceildiv(extent, limit), cores) * cores
    return max(step, ceildiv(ceildiv(extent, blocks), step) * step)


def gemm(m: int, n: int, k: int, target: Target, plan: GemmPlan | None = None) -> tuple[Schedule, list[Any]]:
    """The schedule of a float32 matrix product, and its arguments A, B, C."""
    plan = plan or plan_gemm(m, n, k, target)
    a = te.placeholder((m, k), name="A")
    b = te.placeholder((k, n), name="B")
    p = te.reduce_axis(k, name="k")
    lanes, width = plan.lanes, plan.width
    padded = ceildiv(n, lanes) * lanes
    if plan.pack:
        block, panels = plan.columns, ceildiv(plan.columns, width)
        blocks = ceildiv(n, block)
        right = te.compute(
            (blocks, panels, k, width),
            lambda jc, jr, q, ji: _within(b, q, jc * block, jr * width + ji, block, panels * width, n),
            name="packed",
        )

        def read(q: Any, j: Any) -> Any:
            return right[j // block, j % block // width, q, j % block % width]

    else:
        right = None

        def read(q: Any, j: Any) -> Any:
            return b[q, j] if padded == n else te.if_then_else(j < n, b[q, j], 0.0)

    tile = te.compute(
        (m, padded), lambda i, j: te.sum(a[i, p] * read(p, j), axis=p), name="C" if padded == n else "tile"
    )
    out = tile if padded == n else te.compute((m, n), lambda i, j: tile[i, j], name="C")
    s = te.create_schedule(out.op, name=f"gemm_{m}_{n}_{k}")
    _schedule(s, plan, m, n, k, right, tile, out)
    return s, [a, b, out]


def _within(b: Any, q: Any, start: Any, j: Any, block: int, panel: int, n: int) -> Any:
    """B[q, start + j], or 0 past the end of the block or of B, with only the tests that can fail."""
    tests = [j < block] if panel != block else []
    tests += [start + j < n] if n % block else []
    return te.if_then_else(te.all(*tests), b[q, start + j], 0.0) if tests else b[q, start + j]


def _schedule(s: Schedule, plan: GemmPlan, m: int, n: int, k: int, right: Any, tile: Any, out: Any) -> None:
    blocked = plan.depth < k
    if blocked:
        # each block of the reduction is summed in registers and added to the result once
        outer, _ = s[tile].split(s[tile].reduce_axis[0], factor=plan.depth)
        s[tile].reorder(outer, *s[tile].axis)
        micro = s.rfactor(tile, outer)
        s[tile].annotate("inline_init", True)
        final = s[tile]
    elif tile is out:
        micro = s.cache_write(tile, "local")
        final = s[out]
    else:
        micro, final = s[tile], s[out]
    i, j = final.axis
    jc, jb = final.split(j, factor=plan.columns)
    jr, jt = final.split(jb, factor=min(plan.width, plan.columns))
    jv, jl = final.split(jt, factor=plan.lanes)
    io, ii = final.split(i, factor=plan.rows)
    deep = list(final.reduce_axis)
    final.reorder(jc, *deep, io, jr, ii, jv, jl)
    final.unroll(ii)
    final.unroll(jv)
    final.vectorize(jl)
    for loop in deep:
        final.annotate("partition", False, loop)
    micro.compute_at(final, jr, exact=tile is out)
    micro.set_scope("local")
    _micro_kernel(micro, plan, None if plan.pack else "B")
    if right is not None:
        s[right].compute_at(final, deep[0] if deep else jc)
        _pack(s[right], plan)
    if blocked and tile is not out:
        row, column = s[out].axis
        column, lane = s[out].split(column, factor=plan.lanes)
        s[out].vectorize(lane)
    final.parallel(jc if plan.parallel == "columns" else io)


def _micro_kernel(micro: Stage, plan: GemmPlan, streamed: str | None) -> None:
    i, j, *lead = micro.axis
    (p,) = micro.reduce_axis
    po, pi = micro.split(p, factor=plan.unroll)
    jv, jl = micro.split(j, factor=plan.lanes)
    micro.reorder(*lead, po, pi, i, jv, jl)
    micro.unroll(pi)
    micro.unroll(i)
    micro.unroll(jv)
    micro.vectorize(jl)
    if streamed is not None:  # rows of B in place are far apart: no hardware prefetcher follows them
        micro.prefetch(streamed, po, ceildiv(8, plan.unroll))


def _pack(stage: Stage, plan: GemmPlan) -> None:
    q, ji = stage.axis[2:]
    jv, jl = stage.split(ji, factor=plan.lanes)
    qo, qi = stage.split(q, factor=4)
    stage.unroll(qi)
    stage.unroll(jv)
    stage.vectorize(jl)

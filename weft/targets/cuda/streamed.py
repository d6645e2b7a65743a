"""Products of few rows of float32 with constants of bfloat16, by tensor cores that get these straight from memory.

    C[i, n] = sum over k of X[i, k] * wide(W[k, n])             i below 8

What such a product takes is reading W once. Tensor cores multiply rows by columns of a tile, and whose rows are filled
up with what is a matter of taste: W has the rows, so that 8 rows of X are one instruction's columns.

    W stored      [n // width][k // 32][n % width][k % 32]      what a warp reads in a step lies together, 1 KB or 2
    block         `width` columns and all of k, of which each warp has every so manieth step
    step          each thread loads 16 bytes of some rows of W, and the same k of a row of X; the order of k inside
                  a step is the threads', the same for both
    then          the sums of the warps meet in shared memory, and all threads add them up

Nothing is rounded: a float32 is the sum of three bfloat16 with the bits of its mantissa, and three products take less
than the bytes do. What is infinite has no further parts.

    mma_stream_<rows>_<width>         C[i, n] += X[i, k] * W[n, k], a step; rows 1 × rows × … as X has them
    mma_unload_<rows>_<width>         C[i, n] to memory
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import INT32, dtype
from weft.expr.nodes import Buffer, Call, Load, Var, int_value
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding
from weft.schedule.schedule import Stage
from weft.targets.cuda import model as fit
from weft.targets.cuda.mma import zero_tile
from weft.targets.gpu import model, nest, reduction
from weft.targets.gpu.elementwise import by_rule

DEPTH, WIDTHS, MOST_ROWS = 32, (16, 32), 8
"""Elements of k in a step, columns of a block, and rows that one instruction takes."""
KIND = "bfloat16"

# -------------------------------------------------------------------------------------------------------- instruction

_STEP = """template <int ROWS, int WIDTH, bool SHARED>
DEVICE void weft_mma_stream(float *sum, const float *rows, int32_t row_step, const uint16_t *weights) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u), line = lane >> 2, at = (lane & 3) << 3;
  uint32_t w[WIDTH / 8][4];
  #pragma unroll
  for (int32_t i = 0; i < WIDTH / 8; ++i) {
    const uint16_t *from = weights + (i * 8 + line) * 32 + at;
    if (SHARED) {
      const uint4 four = *(const uint4 *)from;
      w[i][0] = four.x, w[i][1] = four.y, w[i][2] = four.z, w[i][3] = four.w;
    } else
      asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
          : "=r"(w[i][0]), "=r"(w[i][1]), "=r"(w[i][2]), "=r"(w[i][3]) : "l"(from));
  }
  float x[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  if (ROWS == 8 || line < ROWS) {
    const float4 *from = (const float4 *)(rows + line * row_step + at);
    const float4 low = from[0], high = from[1];
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w, x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }
  #pragma unroll
  for (int32_t part = 0; part < 3; ++part) {
    uint32_t b[4];
    #pragma unroll
    for (int32_t i = 0; i < 8; i += 2) b[i / 2] = __byte_perm(__float_as_uint(x[i]), __float_as_uint(x[i + 1]), 0x7632);
    #pragma unroll
    for (int32_t i = 0; i < WIDTH / 16; ++i)
      #pragma unroll
      for (int32_t half = 0; half < 4; half += 2)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sum[4 * i]), "+f"(sum[4 * i + 1]), "+f"(sum[4 * i + 2]), "+f"(sum[4 * i + 3])
            : "r"(w[2 * i][half]), "r"(w[2 * i + 1][half]), "r"(w[2 * i][half + 1]), "r"(w[2 * i + 1][half + 1]),
              "r"(b[half]), "r"(b[half + 1]));
    #pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      const float rest = x[i] - __uint_as_float(__float_as_uint(x[i]) & 0xffff0000u);
      x[i] = part == 0 && fabsf(x[i]) == __uint_as_float(0x7f800000u) ? 0.0f : rest;
    }
  }
}"""
_UNLOAD = """template <int ROWS, int WIDTH> DEVICE void weft_mma_unload(float *to, const float *sum, int32_t row_step) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u), line = lane >> 2, row = (lane & 3) << 1;
  #pragma unroll
  for (int32_t i = 0; i < WIDTH / 4; ++i)
    if (ROWS == 8 || row + (i & 1) < ROWS) to[(row + (i & 1)) * row_step + (i >> 1) * 8 + line] = sum[i];
}"""


def _emit_step(c: Context, call: Call) -> str:
    x, weights, out, step, rows, width = call.args
    c.helper("weft_mma_stream", _STEP)
    shared = str(weights.buffer.scope == "shared").lower()  # type: ignore[attr-defined]
    sizes = f"<{c.constant(rows)}, {c.constant(width)}, {shared}>"
    given = f"{c.pointer(x)}, (int32_t)({c.value(step)}), {c.pointer(weights)}"
    return f"weft_mma_stream{sizes}({c.fragment(out)}, {given})"


def _emit_unload(c: Context, call: Call) -> str:
    source, to, step, rows, width = call.args
    c.helper("weft_mma_unload", _UNLOAD)
    sizes = f"<{c.constant(rows)}, {c.constant(width)}>"
    return f"weft_mma_unload{sizes}({c.pointer(to)}, {c.fragment(source)}, (int32_t)({c.value(step)}))"


EMITTERS: Mapping[str, Emitter] = {
    "mma_stream": _emit_step,
    "mma_stream_zero": zero_tile,
    "mma_unload": _emit_unload,
}


def _mean_step(x: Any, weights: Any, out: Any, step: int, rows: int, width: int) -> None:
    rows, width = int(rows), int(width)
    left = x.view((rows, DEPTH), (int(step), 1)).astype(np.float32)
    right = np.ascontiguousarray(weights.view((width, DEPTH), (DEPTH, 1))).view(dtype(KIND).numpy).astype(np.float32)
    out.view((rows, width), (width, 1))[...] += left @ right.T


def _mean_zero(out: Any, rows: int, width: int) -> None:
    out.view((int(rows), int(width)), (int(width), 1))[...] = 0


def _mean_unload(source: Any, to: Any, step: int, rows: int, width: int) -> None:
    rows, width = int(rows), int(width)
    to.view((rows, width), (int(step), 1))[...] = source.view((rows, width), (width, 1))


te.register_effect("mma_stream", _mean_step)
te.register_effect("mma_stream_zero", _mean_zero)
te.register_effect("mma_unload", _mean_unload)


def _name(what: str, rows: tuple[int, ...], width: int) -> str:
    return f"mma_{what}_{'x'.join(map(str, rows))}_{width}"


def _declare(rows: tuple[int, ...], width: int) -> None:
    """The instructions for rows of X along some axes, of which one at most is longer than 1."""
    many = max(rows)
    last = next((at for at, size in enumerate(rows) if size == many), 0)
    sizes = [te.const(many), te.const(width)]
    x, w = te.placeholder((*rows, DEPTH), "float32", name="x"), te.placeholder((width, DEPTH), KIND, name="w")
    k = te.reduce_axis(DEPTH, name="k")

    def element(*at: Any) -> Any:
        return te.sum(x[(*at[:-1], k)] * w[at[-1], k].astype("float32"), axis=k)

    def multiply(inputs: Any, outputs: Any) -> Any:
        (left, right), (out,) = inputs, outputs
        reset = Call("mma_stream_zero", (out.access_ptr("w"), *sizes), INT32)
        given = (left.access_ptr("r"), right.access_ptr("r"), out.access_ptr("rw"), left.stride(last), *sizes)
        update = Call("mma_stream", given, INT32)
        return [reset, update], reset, update

    te.decl_tensor_intrin(te.compute((*rows, width), element, name="out").op, multiply, _name("stream", rows, width))
    tile = te.placeholder((*rows, width), "float32", name="tile")

    def unload(inputs: Any, outputs: Any) -> Call:
        given = (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), outputs[0].stride(last), *sizes)
        return Call("mma_unload", given, INT32)

    copy = te.compute((*rows, width), lambda *at: tile[at], name="copy")
    te.decl_tensor_intrin(copy.op, unload, _name("unload", rows, width))


for _rows, _width in itertools.product(range(1, MOST_ROWS + 1), WIDTHS):
    for _shape in {(_rows,), (_rows, 1), (1, _rows)}:
        _declare(_shape, _width)

# ----------------------------------------------------------------------------------------------------------- schedule


def match(unit: Unit) -> Sketch | None:
    """The sketch of a product of few rows with constants of bfloat16; None for anything else."""
    makers = [unit.facts] if unit.facts.is_reduction else reduction.makers_of(unit)
    if len(makers) != 1 or not makers[0].spatial or unit.facts.is_ordered:
        return None
    found, facts, machine = reduction.Found(unit, makers[0]), makers[0], nest.threads_of(unit.target)
    rows, columns = tuple(extent(axis) for axis in facts.spatial[:-1]), extent(facts.spatial[-1])
    main = reduction.main_load(facts)
    if main is None or main.buffer.dtype.name != KIND or KIND not in machine.tensor_cores or machine.warp != 32:
        return None
    if len(rows) not in (1, 2) or not 1 <= (many := math.prod(rows)) <= MOST_ROWS or max(rows) != many:
        return None
    if not reduction.streams_through(facts, unit.constants) or not _is_plain(facts, main):
        return None
    widths, steps = tuple(w for w in WIDTHS if columns % w == 0), facts.depth // DEPTH
    if not widths or facts.depth % DEPTH:
        return None
    enough = machine.multiprocessors * fit.STREAM_BLOCKS
    warps = reduction.divisor_below(steps, fit.STREAM_WARPS)
    rule = {
        "threads": 32,
        "rows": warps,
        "width": max((w for w in widths if columns // w >= enough), default=widths[0]),
    }
    rule["steps"] = reduction.divisor_below(steps // warps, fit.STREAM_STEPS)
    before = found.before()
    room = machine.shared_bytes - sum(4 * one.points for one in before) - model.ROW_PARTIALS * bool(before)

    def is_legal(c: Any) -> Any:
        turns = steps // (c["rows"] * c["steps"])
        whole = (c["stages"] > 1) | (many * c["width"] >= 32)  # some loop runs over all threads of a warp
        fits = (c["stages"] == 1) | ((_shared(c, many) <= room) & (c["stages"] <= turns + 1))
        return whole & fits & (turns * c["rows"] * c["steps"] == steps)

    rule["stages"] = max(n for n in fit.STREAM_STAGES if n == 1 or is_legal(rule | {"stages": n}))
    made = by_rule(
        "streamed tiles", unit, rule, lambda point: _apply(found, rows, point),
        before if found.is_alone else [facts, *before], threads=(32,), width=widths, stages=fit.STREAM_STAGES,
        rows=tuple(n for n in range(1, 17) if steps % n == 0), steps=tuple(n for n in range(1, 9) if steps % n == 0),
    )  # fmt: skip

    return replace(made, legal=is_legal)


def _shared(c: Any, rows: int) -> Any:
    """Shared memory of a block: the pipeline, and the sums of its warps."""
    tiles = c["rows"] * c["steps"]
    fetched = c["stages"] * tiles * DEPTH * (2 * c["width"] + 4 * rows) + c["stages"] * 16 * rows
    return fetched + 4 * c["rows"] * rows * (c["width"] + 4) + 1024


def _is_plain(facts: Facts, main: Load) -> bool:
    """Whether the other operand is rows of float32 along k."""
    assert facts.store is not None
    others = [load for load in facts.loads if load.buffer not in (main.buffer, facts.store.buffer)]
    wanted = [*facts.spatial[:-1], facts.reduce[0]]
    if len(others) != 1 or others[0].dtype.name != "float32" or len(others[0].indices) != len(wanted):
        return False
    pairs = zip(others[0].indices, wanted)
    return all(index is axis.var or extent(axis) == 1 and int_value(index) == 0 for index, axis in pairs)


def _apply(found: reduction.Found, rows: tuple[int, ...], point: Point) -> None:
    """The whole schedule."""
    unit, facts, before = found.unit, found.facts, found.before()
    s, width, warps = unit.schedule, point["width"], point["rows"]
    final, made = s[unit.facts.block.name], s[facts.block.name]
    weights = reduction.main_load(facts)
    assert weights is not None
    packed = s.buffer_name(s.cache_read(weights.buffer.name, "global", [facts.block.name]))
    order = [f"n // {width}", f"k // {DEPTH}", f"n % {width}", f"k % {DEPTH}"]
    s.apply("transform_layout", buffer=packed, inputs=["k", "n"], outputs=order)
    if final.name == made.name:
        s.cache_write(final.block.writes[0].buffer, "local")
        made = next(s[name] for name in feeding(s, final.name) if facts_of(block_named(s, name)).is_reduction)
    *around, columns = nest.spatial_loops(final)
    block, inside = final.split(columns, factor=width)
    final.reorder(block, *around, inside)
    final.bind(block, "blockIdx.x")
    final.annotate("fetched_ahead", [reduction.fetched_ahead(unit, packed, weights.buffer, width)], block)
    # Of one row each column has a thread of the first warp.
    shape = (warps, 32) if max(rows) > 1 else (1, width)
    innermost = reduction.spread(final, nest.fuse_all(final, [*around, inside]), *shape)
    (loop,), own = nest.reduce_loops(made), nest.spatial_loops(made)
    made.reorder(loop, *own)
    _, warp, _ = made.split(loop, factors=[None, warps, DEPTH])
    partial = s.rfactor(made.name, warp, 0)
    nest.attach(made, final, innermost, "local")
    made.unroll(nest.reduce_loops(made)[0])
    inside_block = {region.buffer for one in before for region in one.block.writes}
    _multiply(s[partial.name], final, block, rows, point, inside_block)
    for one in before:
        reduction.compute_in_block(found, one, point)
    unit.done |= {made.name, partial.name}


def _multiply(
    partial: Stage, final: Stage, block: Var, rows: tuple[int, ...], point: Point, near: Collection[Buffer]
) -> None:
    """The sums of a warp: in its registers, from there to shared memory."""
    s, width = partial.schedule, point["width"]
    nest.attach(partial, final, block, "shared")
    partial.storage_align(-2, 16, 4)
    sums = s.cache_write(partial.block.writes[0].buffer, "mma.c")
    warp, *tile = nest.free_loops(partial)
    sums.compute_at(partial, warp)
    partial.bind(warp, "threadIdx.y")
    partial.tensorize(tile[0], _name("unload", rows, width))
    loops = nest.free_loops(sums)
    outer, inner = nest.reduce_loops(sums)
    tile = [loop for loop in loops if loop not in (outer, inner)]
    several, step = sums.split(outer, factor=point["steps"])
    sums.reorder(several, step, *tile, inner)
    sums.unroll(step)
    if point["stages"] > 1:
        for operand in dict.fromkeys(load.buffer for load in facts_of(sums.block).loads):
            if operand.scope == "global" and operand not in near:
                _fetch(sums, operand, several, point)
        nest.fetch_ahead(sums, several, point["stages"])
    sums.tensorize(tile[0], _name("stream", rows, width))


def _fetch(sums: Stage, operand: Buffer, place: Var, point: Point) -> None:
    """What the warps of a block read in a step, into shared memory, 16 bytes of each thread at a time."""
    copy = sums.schedule.cache_read(operand, "shared", [sums.name])
    copy.compute_at(sums, place)
    lanes = 16 // operand.dtype.bytes
    if operand.dtype.name != KIND:
        copy.storage_align(-2, 32, 4)  # so that the reads of a quarter of a warp meet each bank once
    nest.fetch_together(copy, nest.free_loops(copy), point["rows"], 32, lanes)

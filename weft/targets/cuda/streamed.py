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

    mma_fetch_<width>                       a tile of W into registers
    mma_stream_<rows>_<width>_<steps>       C[i, n] += X[i, k] * W[k // 32, n, k % 32]; rows as X has them, 8x1 say
    mma_unload_<rows>_<width>               C[i, n] to memory
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import INT32, dtype
from weft.expr.nodes import Call, Load, Var, int_value
from weft.plan.planner import Unit
from weft.plan.sketch import Point, Sketch
from weft.schedule.facts import Facts, block_named, extent, facts_of, feeding
from weft.schedule.schedule import Stage
from weft.targets.cuda import model as fit
from weft.targets.cuda.mma import zero_tile
from weft.targets.gpu import model as gpu_model
from weft.targets.gpu import nest, reduction, together
from weft.targets.gpu.elementwise import by_rule

DEPTH, WIDTHS, MOST_ROWS = 32, (16, 32), 8
"""Elements of k in a step, columns of a block, and rows that one instruction takes."""
KIND = "bfloat16"

# -------------------------------------------------------------------------------------------------------- instruction

_LOAD = """template <int WIDTH> DEVICE void weft_mma_fetch(uint32_t *tile, const uint16_t *weights) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  #pragma unroll
  for (int32_t i = 0; i < WIDTH / 2; i += 4)
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tile[i]), "=r"(tile[i + 1]), "=r"(tile[i + 2]), "=r"(tile[i + 3])
                 : "l"(weights + i * 64 + lane * 8));
}"""
"""Loads stay where they stand: before the products of the step before, however many registers that takes."""
_STEP = """template <int ROWS, int WIDTH, int STEPS>
DEVICE void weft_mma_stream(float *sum, const float *rows, int32_t row_step, const uint32_t *tiles) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u), line = lane >> 2;
  const float *from = rows + line * row_step + ((lane & 3) << 3);
  float x[STEPS][8];
  #pragma unroll
  for (int32_t i = 0; i < STEPS * 8; i += 4) {
    float *to = &x[i >> 3][i & 7];
    to[0] = to[1] = to[2] = to[3] = 0.0f;
    if (ROWS == 8 || line < ROWS)
      asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                   : "l"(from + (i >> 3) * 32 + (i & 7)));
  }
  #pragma unroll
  for (int32_t step = 0; step < STEPS; ++step)
    #pragma unroll
    for (int32_t part = 0; part < 3; ++part) {
      float *of = x[step];
      uint32_t b[4];
      #pragma unroll
      for (int32_t i = 0; i < 4; ++i)
        b[i] = __byte_perm(__float_as_uint(of[2 * i]), __float_as_uint(of[2 * i + 1]), 0x7632);
      #pragma unroll
      for (int32_t i = 0; i < WIDTH / 8; ++i) {
        const uint32_t *w = tiles + step * (WIDTH / 2) + (i >> 1) * 8 + (i & 1) * 2;
        float *c = sum + (i >> 1) * 4;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(w[0]), "r"(w[4]), "r"(w[1]), "r"(w[5]), "r"(b[(i & 1) * 2]), "r"(b[(i & 1) * 2 + 1]));
      }
      #pragma unroll
      for (int32_t i = 0; i < 8; ++i) {
        const float rest = of[i] - __uint_as_float(__float_as_uint(of[i]) & 0xffff0000u);
        of[i] = part == 0 && fabsf(of[i]) == __uint_as_float(0x7f800000u) ? 0.0f : rest;
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
    x, weights, out, row, *sizes = call.args
    c.helper("weft_mma_stream", _STEP)
    given = f"{c.pointer(x)}, (int32_t)({c.value(row)}), {c.fragment(weights)}"
    return f"weft_mma_stream<{', '.join(map(str, map(c.constant, sizes)))}>({c.fragment(out)}, {given})"


def _emit_fetch(c: Context, call: Call) -> str:
    source, tile, width = call.args
    c.helper("weft_mma_fetch", _LOAD)
    return f"weft_mma_fetch<{c.constant(width)}>({c.fragment(tile)}, {c.pointer(source)})"


def _emit_unload(c: Context, call: Call) -> str:
    source, to, step, rows, width = call.args
    c.helper("weft_mma_unload", _UNLOAD)
    sizes = f"<{c.constant(rows)}, {c.constant(width)}>"
    return f"weft_mma_unload{sizes}({c.pointer(to)}, {c.fragment(source)}, (int32_t)({c.value(step)}))"


EMITTERS: Mapping[str, Emitter] = {
    "mma_fetch": _emit_fetch,
    "mma_stream": _emit_step,
    "mma_stream_zero": zero_tile,
    "mma_unload": _emit_unload,
}


def _mean_fetch(source: Any, tile: Any, width: int) -> None:
    shape = int(width), DEPTH
    tile.view(shape, (DEPTH, 1))[...] = source.view(shape, (DEPTH, 1))


def _mean_step(x: Any, weights: Any, out: Any, row: int, rows: int, width: int, steps: int) -> None:
    rows, width, steps = int(rows), int(width), int(steps)
    left = x.view((rows, steps * DEPTH), (int(row), 1)).astype(np.float32)
    tiles = np.ascontiguousarray(weights.view((steps, width, DEPTH), (width * DEPTH, DEPTH, 1)))
    right = tiles.view(dtype(KIND).numpy).astype(np.float32).transpose(0, 2, 1).reshape(steps * DEPTH, width)
    out.view((rows, width), (width, 1))[...] += left @ right


def _mean_zero(out: Any, rows: int, width: int) -> None:
    out.view((int(rows), int(width)), (int(width), 1))[...] = 0


def _mean_unload(source: Any, to: Any, step: int, rows: int, width: int) -> None:
    rows, width = int(rows), int(width)
    to.view((rows, width), (int(step), 1))[...] = source.view((rows, width), (width, 1))


te.register_effect("mma_fetch", _mean_fetch)
te.register_effect("mma_stream", _mean_step)
te.register_effect("mma_stream_zero", _mean_zero)
te.register_effect("mma_unload", _mean_unload)


@functools.cache
def declare(rows: tuple[int, ...], width: int, steps: int) -> tuple[str, str, str]:
    """Declares the instructions for rows of X along some axes, of which one is longer than 1; gives their names.

    They load a tile of W, multiply tiles, and store sums.
    """
    many, depth, name = max(rows), steps * DEPTH, f"{'x'.join(map(str, rows))}_{width}"
    sizes = [te.const(many), te.const(width)]
    x, k = te.placeholder((*rows, depth), "float32", name="x"), te.reduce_axis(depth, name="k")
    w = te.placeholder((steps, width, DEPTH), KIND, name="w")

    def element(*at: Any) -> Any:
        return te.sum(x[(*at[:-1], k)] * w[k // DEPTH, at[-1], k % DEPTH].astype("float32"), axis=k)

    def multiply(inputs: Any, outputs: Any) -> Any:
        (left, right), (out,) = inputs, outputs
        reset = Call("mma_stream_zero", (out.access_ptr("w"), *sizes), INT32)
        given = (left.access_ptr("r"), right.access_ptr("r"), out.access_ptr("rw"), left.stride(rows.index(many)))
        update = Call("mma_stream", (*given, *sizes, te.const(steps)), INT32)
        return [reset, update], reset, update

    def unload(inputs: Any, outputs: Any) -> Call:
        given = (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), outputs[0].stride(rows.index(many)), *sizes)
        return Call("mma_unload", given, INT32)

    def fetch(inputs: Any, outputs: Any) -> Call:
        return Call("mma_fetch", (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), te.const(width)), INT32)

    tile, source = te.placeholder((*rows, width), name="tile"), te.placeholder((width, DEPTH), KIND, name="source")
    for op, rule, called in (
        (te.compute((width, DEPTH), lambda i, k: source[i, k], name="copy").op, fetch, f"mma_fetch_{width}"),
        (te.compute((*rows, width), element, name="out").op, multiply, f"mma_stream_{name}_{steps}"),
        (te.compute((*rows, width), lambda *at: tile[at], name="copy").op, unload, f"mma_unload_{name}"),
    ):
        te.decl_tensor_intrin(op, rule, called)
    return f"mma_fetch_{width}", f"mma_stream_{name}_{steps}", f"mma_unload_{name}"


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
    if len(rows) not in (1, 2) or not 2 <= math.prod(rows) <= MOST_ROWS or max(rows) != math.prod(rows):
        return None
    if not reduction.streams_through(facts, unit.constants) or not _is_plain(facts, main):
        return None
    widths, steps = tuple(w for w in WIDTHS if columns % w == 0), facts.depth // DEPTH
    if not widths or facts.depth % DEPTH:
        return None
    shapes = [one for one in fit.STREAM_BLOCKS if one[0] in widths]
    busy = [reduction.evenly(columns // w, machine.multiprocessors * held) for w, _, held in shapes]
    width, most, _ = shapes[max(range(len(shapes)), key=lambda at: min(busy[at], gpu_model.EVEN))]
    warps = together.divisor_below(steps, most)
    several = together.divisor_below(steps // warps, fit.STREAM_BYTES // (2 * DEPTH * width))
    if warps < fit.LEAST_STREAM_WARPS or steps // (warps * several) > fit.STREAM_TURNS:
        return None
    made = by_rule(
        "streamed tiles", unit, {"threads": 32, "rows": warps, "width": width, "steps": several},
        lambda point: _apply(found, rows, point), [] if found.is_alone else [facts], threads=(32,), width=widths,
        rows=tuple(n for n in range(1, 17) if steps % n == 0), steps=tuple(n for n in range(1, 5) if steps % n == 0),
    )  # fmt: skip
    return replace(made, legal=lambda c: steps % (c["rows"] * c["steps"]) == 0)


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
    unit, facts = found.unit, found.facts
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
    final.annotate("resident", 1, block)
    innermost = reduction.spread(final, nest.fuse_all(final, [*around, inside]), warps, 32)
    (loop,), own = nest.reduce_loops(made), nest.spatial_loops(made)
    made.reorder(loop, *own)
    _, warp, _ = made.split(loop, factors=[None, warps, point["steps"] * DEPTH])
    partial = s.rfactor(made.name, warp, 0)
    nest.attach(made, final, innermost, "local")
    made.unroll(nest.reduce_loops(made)[0])
    _multiply(s[partial.name], final, block, rows, point)
    unit.done |= {made.name, partial.name}


def _multiply(partial: Stage, final: Stage, block: Var, rows: tuple[int, ...], point: Point) -> None:
    """The sums of a warp: in its registers, from there to shared memory."""
    fetch, multiply, unload = declare(rows, point["width"], point["steps"])
    s = partial.schedule
    nest.attach(partial, final, block, "shared")
    partial.storage_align(-2, 16, 4)
    sums = s.cache_write(partial.block.writes[0].buffer, "mma.c")
    warp, *tile = nest.free_loops(partial)
    sums.compute_at(partial, warp)
    partial.bind(warp, "threadIdx.y")
    partial.tensorize(tile[0], unload)
    turn, inner = nest.reduce_loops(sums)
    tile = [loop for loop in nest.free_loops(sums) if loop not in (turn, inner)]
    sums.reorder(turn, *tile, inner)
    (weights,) = [load.buffer for load in facts_of(sums.block).loads if load.buffer.dtype.name == KIND]
    fetched = s.cache_read(weights, "mma.w", [sums.name])
    fetched.compute_at(sums, turn)
    *_, several, row, _ = nest.free_loops(fetched)
    fetched.unroll(several)
    fetched.tensorize(row, fetch)
    sums.annotate("pipeline_stages", 2, turn)  # the next tiles are loaded while these are multiplied
    sums.tensorize(tile[0], multiply)

"""Instructions for products of few rows of float32 by tensor cores (`streamed.py`): what warps load, multiply, store.

mma_fetch_<type>_<vectors>              a tile of W into registers, 16 bytes of a thread at a time
mma_rows_<rows>_<groups>_<each>         of each of some rows of X, a thread's elements of groups of four threads
mma_stream_<rows>_<width>_<steps>       C[i, n] += X[i, k] * W[k // 32, n, k % 32]; rows as X has them, 8x1 say
mma_unload_<rows>_<width>               C[i, n] to memory
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import INT32, dtype
from weft.expr.nodes import Call
from weft.targets.cuda.mma import zero_tile

DEPTH = 32
"""Elements of k in a step."""
KIND = "bfloat16"

_LOAD = """template <int VECTORS> DEVICE void weft_mma_fetch(uint32_t *tile, const void *weights) {
  const uint4 *from = (const uint4 *)weights + (threadIdx.x & 31u);
  #pragma unroll
  for (int32_t i = 0; i < VECTORS; ++i)
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(tile[4 * i]), "=r"(tile[4 * i + 1]), "=r"(tile[4 * i + 2]), "=r"(tile[4 * i + 3])
                 : "l"(from + i * 32));
}"""
"""Loads stay where they stand: before the products of the step before, however many registers that takes."""
_ROWS = """template <int ROWS, int GROUPS, int EACH>
DEVICE void weft_mma_rows(float *x, const float *rows, int32_t row_step) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u), line = lane >> 2;
  const float *from = rows + line * row_step + (lane & 3) * EACH;
  #pragma unroll
  for (int32_t i = 0; i < GROUPS * EACH; i += 4) {
    x[i] = x[i + 1] = x[i + 2] = x[i + 3] = 0.0f;
    if (ROWS == 8 || line < ROWS)
      asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[i]), "=f"(x[i + 1]), "=f"(x[i + 2]),
                   "=f"(x[i + 3]) : "l"(from + i / EACH * (4 * EACH) + i % EACH));
  }
}"""
_PARTS = """template <int EACH, int APART> DEVICE void weft_mma_parts(uint32_t (*b)[EACH / 2], const float *x) {
  float of[EACH];
  #pragma unroll
  for (int32_t i = 0; i < EACH; ++i) of[i] = x[i];
  #pragma unroll
  for (int32_t part = 0; part < 3; ++part) {
    #pragma unroll
    for (int32_t i = 0; i < EACH / 2; ++i) {
      const int32_t first = APART == 1 ? 2 * i : i;
      b[part][i] = __byte_perm(__float_as_uint(of[first]), __float_as_uint(of[first + APART]), 0x7632);
    }
    #pragma unroll
    for (int32_t i = 0; i < EACH; ++i) {
      const float rest = of[i] - __uint_as_float(__float_as_uint(of[i]) & 0xffff0000u);
      of[i] = part == 0 && fabsf(of[i]) == __uint_as_float(0x7f800000u) ? 0.0f : rest;
    }
  }
}"""
"""Elements of a thread as three bfloat16 each, two and two: neighbours, or such as lie half of them apart."""
_PRODUCT = """DEVICE void weft_mma_add(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                           uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}"""
HELPERS = ("weft_mma_parts", _PARTS), ("weft_mma_add", _PRODUCT)
_STEP = """template <int WIDTH, int STEPS>
DEVICE void weft_mma_stream(float *sum, const float *x, const uint32_t *tiles) {
  #pragma unroll
  for (int32_t step = 0; step < STEPS; ++step) {
    uint32_t b[3][4];
    weft_mma_parts<8, 1>(b, x + step * 8);
    #pragma unroll
    for (int32_t part = 0; part < 3; ++part)
      #pragma unroll
      for (int32_t i = 0; i < WIDTH / 8; ++i) {
        const uint32_t *w = tiles + step * (WIDTH / 2) + (i >> 1) * 8 + (i & 1) * 2;
        weft_mma_add(sum + (i >> 1) * 4, w[0], w[4], w[1], w[5], b[part][(i & 1) * 2], b[part][(i & 1) * 2 + 1]);
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
    x, weights, out, _, *sizes = call.args
    for name, text in (*HELPERS, ("weft_mma_stream", _STEP)):
        c.helper(name, text)
    given = ", ".join(map(c.fragment, (out, x, weights)))
    return f"weft_mma_stream<{', '.join(map(str, map(c.constant, sizes[1:])))}>({given})"


def _emit_rows(c: Context, call: Call) -> str:
    source, to, step, _, *sizes = call.args
    c.helper("weft_mma_rows", _ROWS)
    given = f"{c.fragment(to)}, {c.pointer(source)}, (int32_t)({c.value(step)})"
    return f"weft_mma_rows<{', '.join(map(str, map(c.constant, sizes)))}>({given})"


def _emit_fetch(c: Context, call: Call) -> str:
    source, tile, vectors = call.args
    c.helper("weft_mma_fetch", _LOAD)
    return f"weft_mma_fetch<{c.constant(vectors)}>({c.fragment(tile)}, {c.pointer(source)})"


def _emit_zero(c: Context, call: Call) -> str:
    return zero_tile(c, call, max(8, c.constant(call.args[2]) // 4))


def _emit_unload(c: Context, call: Call) -> str:
    source, to, step, rows, width = call.args
    c.helper("weft_mma_unload", _UNLOAD)
    sizes = f"<{c.constant(rows)}, {c.constant(width)}>"
    return f"weft_mma_unload{sizes}({c.pointer(to)}, {c.fragment(source)}, (int32_t)({c.value(step)}))"


EMITTERS: Mapping[str, Emitter] = {
    "mma_fetch": _emit_fetch,
    "mma_rows": _emit_rows,
    "mma_stream": _emit_step,
    "mma_stream_zero": _emit_zero,
    "mma_unload": _emit_unload,
}


def _mean_rows(source: Any, to: Any, step: int, own: int, rows: int, groups: int, each: int) -> None:
    shape = int(rows), int(groups) * 4 * int(each)
    to.view(shape, (int(own), 1))[...] = source.view(shape, (int(step), 1))


def _mean_fetch(source: Any, tile: Any, vectors: int) -> None:
    many = int(vectors) * 512 // source.buffer.dtype.bytes
    tile.view((many,), (1,))[...] = source.view((many,), (1,))


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
te.register_effect("mma_rows", _mean_rows)
te.register_effect("mma_stream", _mean_step)
te.register_effect("mma_stream_zero", _mean_zero)
te.register_effect("mma_unload", _mean_unload)


@functools.cache
def declare_moves(
    rows: tuple[int, ...], width: int, tile: tuple[int, ...], kind: str, groups: int, each: int
) -> tuple[str, str, str]:
    """Declares what loads a tile of W and rows of X, of which one axis is longer than 1, and what stores sums."""
    name, deep = "x".join(map(str, rows)), groups * 4 * each
    vectors = math.prod(tile) * dtype(kind).bytes // 512
    sums, source = te.placeholder((*rows, width), name="tile"), te.placeholder(tile, kind, name="source")

    def unload(inputs: Any, outputs: Any) -> Call:
        sizes = te.const(max(rows)), te.const(width)
        given = (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), outputs[0].stride(rows.index(max(rows))))
        return Call("mma_unload", (*given, *sizes), INT32)

    def load(inputs: Any, outputs: Any) -> Call:
        given = [inputs[0].access_ptr("r"), outputs[0].access_ptr("w")]
        given += [one.stride(rows.index(max(rows))) for one in (inputs[0], outputs[0])]
        return Call("mma_rows", (*given, te.const(max(rows)), te.const(groups), te.const(each)), INT32)

    def fetch(inputs: Any, outputs: Any) -> Call:
        given = inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), te.const(vectors)
        return Call("mma_fetch", given, INT32)

    fetched, stored = f"mma_fetch_{kind}_{vectors}", f"mma_unload_{name}_{width}"
    loaded, x = f"mma_rows_{name}_{groups}_{each}", te.placeholder((*rows, deep), name="x")
    te.decl_tensor_intrin(te.compute((*rows, deep), lambda *at: x[at], name="copy").op, load, loaded)
    te.decl_tensor_intrin(te.compute(tile, lambda *at: source[at], name="copy").op, fetch, fetched)
    te.decl_tensor_intrin(te.compute((*rows, width), lambda *at: sums[at], name="copy").op, unload, stored)
    return fetched, loaded, stored


@functools.cache
def declare(rows: tuple[int, ...], width: int, steps: int) -> str:
    """Declares the products of tiles of bfloat16."""
    many, depth = max(rows), steps * DEPTH
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

    name = f"mma_stream_{'x'.join(map(str, rows))}_{width}_{steps}"
    te.decl_tensor_intrin(te.compute((*rows, width), element, name="out").op, multiply, name)
    return name

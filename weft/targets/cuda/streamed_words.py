"""Products of few rows of float32 with words of few bits, by tensor cores: what `streamed.py` does for bfloat16.

    C[i, n] = sum over words w of scale[b, n] * sum over p of X[i, w * each + p] * (number p of W[w, n] - zero[b, n])

A word holds `each` numbers of a column along k (`ops/few_bits_words.py`). Four threads have a word of the same column
each, which is a group: the k of two instructions with 4 bits, of one with 8.

    W stored      [n // width][w // 8][n % width // 16][n % 8][w % 4][n % 16 // 8][w % 8 // 4]
                  16 bytes of a thread: two columns' words of two groups
    scales        [n // width][b][n % 8][n % width // 8], those of a thread's columns together

Numbers become bfloat16 two at a time, those half a word apart (so the same k of X are taken together): low bits of 128,
less 128 and the zero point, which is exact. A bit that 128 has no room for (the eighth) is subtracted: 128 + low bits,
less 256 or 128. What a block sums up is multiplied by its scales in float32 once.

    mma_fetch_<vectors>            a thread's words into registers
    mma_scales_<...>               a thread's scales
    mma_words_<...>                C[i, n] += of several groups
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import INT32
from weft.expr.nodes import Call, FloorDiv, Load, int_value
from weft.ops.few_bits_words import weighted
from weft.schedule.facts import Facts
from weft.targets.cuda.streamed_tiles import HELPERS

GROUP, UNIT = 4, 8
"""Words of a column that four threads have at a time, and those that they load at a time."""

_SCALES = """template <int WIDTH, int BLOCKS> DEVICE void weft_mma_scales(float *to, const float *scales) {
  const int32_t line = (int32_t)(threadIdx.x & 31u) >> 2;
  #pragma unroll
  for (int32_t i = 0; i < BLOCKS; ++i)
    #pragma unroll
    for (int32_t j = 0; j < WIDTH / 8; j += 2)
      asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(to[i * (WIDTH / 8) + j]),
                   "=f"(to[i * (WIDTH / 8) + j + 1]) : "l"(scales + i * WIDTH + line * (WIDTH / 8) + j));
}"""
_PAIR = """template <int BITS> DEVICE uint32_t weft_word_pair(uint32_t word, int32_t pair, uint32_t less) {
  const uint32_t low = (BITS == 8 ? 0x7fu : (1u << BITS) - 1u) * 0x10001u, moved = word >> (pair * BITS);
  uint32_t made, from = less;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(made) : "r"(moved), "r"(low), "r"(0x43004300u));
  if (BITS == 8) {
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(from) : "r"(moved), "r"(0x00800080u), "r"(0xc380c380u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(made), "r"(0x3f803f80u), "r"(from));
    if (less == 0u) return made;
    from = less;
  }
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(made), "r"(0x3f803f80u), "r"(from));
  return made;
}"""
"""Two numbers of a word plus `less`, which of 8 bits counts from 128 on, of fewer from -128."""
_WORDS = """template <int WIDTH, int UNITS, int BITS, int BLOCK>
DEVICE void weft_mma_words(float *sum, const float *x, const uint32_t *tiles, const float *scales,
                           const uint8_t *zeros) {
  constexpr int32_t EACH = 32 / BITS, TILES = WIDTH / 16;
  const int32_t line = (int32_t)(threadIdx.x & 31u) >> 2;
  float part[WIDTH / 4];
  #pragma unroll
  for (int32_t group = 0; group < 2 * UNITS; ++group) {
    const bool begins = group * 4 % BLOCK == 0 || group == 0;
    const bool ends = (group + 1) * 4 % BLOCK == 0 || group == 2 * UNITS - 1;
    const int32_t block = group * 4 / BLOCK;
    const uint32_t *w = tiles + group / 2 * TILES * 4 + group % 2;
    uint32_t b[3][EACH / 2], less[WIDTH / 8];
    weft_mma_parts<EACH, EACH / 2>(b, x + group * EACH);
    #pragma unroll
    for (int32_t i = 0; i < WIDTH / 8; ++i) {
      less[i] = BITS == 8 ? 0u : 0xc300c300u + (0x00010001u << (BITS - 1));
      if (zeros == nullptr) continue;
      const float zero = (float)zeros[block * WIDTH + line * (WIDTH / 8) + i];
      less[i] = (__float_as_uint(BITS == 8 ? 128.0f - zero : -128.0f - zero) >> 16) * 0x10001u;
    }
    #pragma unroll
    for (int32_t i = 0; i < WIDTH / 4; ++i) part[i] = begins ? 0.0f : part[i];
    #pragma unroll
    for (int32_t i = 0; i < EACH / 2; i += 2) {
      uint32_t a[TILES][4];
      #pragma unroll
      for (int32_t t = 0; t < TILES; ++t)
        #pragma unroll
        for (int32_t j = 0; j < 4; ++j)
          a[t][j] = weft_word_pair<BITS>(w[t * 4 + j % 2 * 2], i + j / 2, less[t * 2 + j % 2]);
      #pragma unroll
      for (int32_t p = 0; p < 3; ++p)
        #pragma unroll
        for (int32_t t = 0; t < TILES; ++t)
          weft_mma_add(part + t * 4, a[t][0], a[t][1], a[t][2], a[t][3], b[p][i], b[p][i + 1]);
    }
    if (ends) {
      #pragma unroll
      for (int32_t i = 0; i < WIDTH / 4; ++i) sum[i] = fmaf(part[i], scales[block * (WIDTH / 8) + i / 2], sum[i]);
    }
  }
}"""


@dataclass(frozen=True)
class Words:
    """How words of a product lie: bits of a number, words of a block, and whether each block has a zero point."""

    bits: int
    block: int
    has_zeros: bool

    @property
    def each(self) -> int:
        """Numbers of a word."""
        return 32 // self.bits

    @property
    def zero(self) -> float:
        """The zero point of all numbers, where none are given: the middle."""
        return float(1 << (self.bits - 1))

    def blocks(self, units: int) -> int:
        """The blocks that so many units meet, of each of which these are the whole or the same part."""
        return max(1, units * UNIT // self.block)

    def takes(self, units: int) -> bool:
        """Whether so many units are whole blocks, or parts of one."""
        return units * UNIT % self.block == 0 or self.block % (units * UNIT) == 0


def orders(width: int) -> dict[str, tuple[list[str], list[str]]]:
    """How words, scales and zero points are stored: their indices, and the new ones."""
    words = [f"n // {width}", "w // 8", f"n % {width} // 16", "n % 8", "w % 4", "n % 16 // 8", "w % 8 // 4"]
    scales = [f"n // {width}", "b", "n % 8", f"n % {width} // 8"]
    return {"uint32": (["w", "n"], words), "float32": (["b", "n"], scales), "uint8": (["b", "n"], scales)}


def found(facts: Facts, main: Load, others: Sequence[Load], each: int) -> Words | None:
    """How the words lie that a product reads beside scales, and zero points if any; None for another product."""
    kinds = {load.buffer.dtype.name: load for load in others}
    if main.buffer.dtype.name != "uint32" or each not in (4, 8, 16) or len({x.buffer for x in others}) != len(kinds):
        return None
    if "float32" not in kinds or not set(kinds) <= {"float32", "uint8"}:
        return None
    index = kinds["float32"].indices[0]
    block = int_value(index.b) if isinstance(index, FloorDiv) and index.a is facts.reduce[0].var else None
    if block is None and int_value(index) == 0:
        block = facts.depth
    if block is None or block % GROUP or facts.depth % UNIT:
        return None
    return Words(32 // each, block, "uint8" in kinds)


def _emit_scales(c: Context, call: Call) -> str:
    source, to, width, blocks = call.args
    c.helper("weft_mma_scales", _SCALES)
    return f"weft_mma_scales<{c.constant(width)}, {c.constant(blocks)}>({c.fragment(to)}, {c.pointer(source)})"


def _emit_words(c: Context, call: Call) -> str:
    x, scales, words, *zeros, out, _, _ = call.args[:-4]
    for name, text in (*HELPERS, ("weft_word_pair", _PAIR), ("weft_mma_words", _WORDS)):
        c.helper(name, text)
    sizes = ", ".join(map(str, map(c.constant, call.args[-4:])))
    given = [*map(c.fragment, (out, x, words, scales)), c.pointer(zeros[0]) if zeros else "nullptr"]
    return f"weft_mma_words<{sizes}>({', '.join(given)})"


EMITTERS: Mapping[str, Emitter] = {"mma_scales": _emit_scales, "mma_words": _emit_words}


def _mean_scales(source: Any, to: Any, width: int, blocks: int) -> None:
    shape = int(blocks), int(width)
    to.view(shape, (shape[1], 1))[...] = source.view(shape, (shape[1], 1))


def _mean_words(x: Any, scales: Any, words: Any, *more: Any) -> None:
    *zeros, out, row, rows, width, units, bits, block = more
    rows, width, units, bits, block = map(int, (rows, width, units, bits, block))
    each, many = 32 // bits, units * UNIT
    left = x.view((rows, many * each), (int(row), 1)).astype(np.float32)
    stored = np.ascontiguousarray(words.view((many * width,), (1,))).reshape(units, width // 16, 8, 4, 2, 2)
    plain = stored.transpose(0, 5, 3, 1, 4, 2).reshape(many, width)
    places = np.arange(each, dtype=np.uint32) * np.uint32(bits)
    numbers = (plain[:, None] >> places[:, None] & np.uint32((1 << bits) - 1)).reshape(-1, width).astype(np.float32)
    of = np.arange(many * each) // (block * each)

    def of_columns(given: Any) -> Any:
        """Scales or zero points of each number."""
        shape = int(of[-1]) + 1, 8, width // 8
        lying = np.ascontiguousarray(given.view((shape[0] * width,), (1,))).reshape(shape)
        return lying.transpose(0, 2, 1).reshape(-1, width)[of].astype(np.float32)

    zero = of_columns(zeros[0]) if zeros else np.float32(1 << (bits - 1))
    out.view((rows, width), (width, 1))[...] += left @ ((numbers - zero) * of_columns(scales))


te.register_effect("mma_scales", _mean_scales)
te.register_effect("mma_words", _mean_words)


@functools.cache
def declare(rows: tuple[int, ...], width: int, units: int, words: Words) -> tuple[str, str]:
    """Declares what loads scales and what multiplies, for rows of X of which one axis is longer than 1."""
    many, blocks, each = max(rows), words.blocks(units), words.each
    shape = "_".join(map(str, (width, units, words.bits, words.block)))
    name = f"mma_words_{'x'.join(map(str, rows))}_{shape}{'_zeros' if words.has_zeros else ''}"
    k, x = te.reduce_axis(units * UNIT, name="k"), te.placeholder((*rows, units * UNIT * each), "float32", name="x")
    w = te.placeholder((units, width // 16, 8, 4, 2, 2), "uint32", name="w")
    scale, zero = (te.placeholder((blocks, 8, width // 8), kind, name="s") for kind in ("float32", "uint8"))

    def element(*at: Any) -> Any:
        n, place = at[-1], (k.var // words.block, at[-1] % 8, at[-1] // 8)
        word = w[k.var // 8, n // 16, n % 8, k.var % 4, n % 16 // 8, k.var % 8 // 4]
        numbers = [x[(*at[:-1], k.var * each + part)] for part in range(each)]
        minus = zero[place].astype("float32") if words.has_zeros else words.zero
        return te.sum(weighted(scale[place], numbers, word, words.bits, minus), axis=k)

    def multiply(inputs: Any, outputs: Any) -> Any:
        (scales, left, *right), (out,) = inputs, outputs
        reset = Call("mma_stream_zero", (out.access_ptr("w"), te.const(many), te.const(width)), INT32)
        given = [*[one.access_ptr("r") for one in (left, scales, *right)], out.access_ptr("rw")]
        sizes = map(te.const, (many, width, units, words.bits, words.block))
        update = Call("mma_words", (*given, left.stride(rows.index(many)), *sizes), INT32)
        return [reset, update], reset, update

    def fetch(inputs: Any, outputs: Any) -> Call:
        sizes = te.const(width), te.const(blocks)
        return Call("mma_scales", (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), *sizes), INT32)

    copy = te.compute((blocks, 8, width // 8), lambda *at: scale[at], name="copy")
    te.decl_tensor_intrin(copy.op, fetch, f"mma_scales_{width}_{blocks}")
    te.decl_tensor_intrin(te.compute((*rows, width), element, name="out").op, multiply, name)
    return f"mma_scales_{width}_{blocks}", name

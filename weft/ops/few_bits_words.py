"""WordsMatMul: a product of few rows with weights of 2, 4 or 8 bits in blocks, for machines that multiply floats.

    y[.., n] = sum over words w of scale[b, n] * sum over p of x[.., w * each + p] * (number p of w, n - zero[b, n])

It is what MatMulNBits becomes on a GPU (`graph/passes/few_bits.py`): a word of 32 bits holds neighbours along the inner
dimension, low bits first, and words of neighbouring columns lie together, so that a thread reads vectors of them while
all threads of a row read the same x. A number becomes a float without a conversion: as low bits of 2²³. Where they lie
low enough it need not be shifted there: 16 times a number as low bits is that number, once multiplied by 1 / 16.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.passes.few_bits import DOMAIN, WORDS
from weft.ops.elementwise_support import expect_shape
from weft.ops.few_bits import element_of, with_bias

_BITS_OF_TWO_TO_23, _TWO_TO_23, _MANTISSA = 0x4B000000, 8388608.0, 23


class _Layout:
    """The numbers that say how weights lie: `each` numbers of a word, `words` in all, `groups` of a block."""

    def __init__(self, use: Use) -> None:
        self.inner, self.features, self.bits, self.block = (
            int(use.need(name)) for name in ("K", "N", "bits", "block_size")
        )
        self.each, self.blocks = 32 // self.bits, -(-self.inner // self.block)
        if self.bits not in (2, 4, 8) or self.block % self.each:
            raise use.error(f"{self.bits} bits in blocks of {self.block} do not fill words")
        self.groups = self.block // self.each
        self.words = self.blocks * self.groups


def _infer(c: Infer) -> list[Type]:
    x, layout = c.tensor(0), _Layout(c)
    expect_shape(c, 1, (layout.words, layout.features))
    for position in (2, 3):
        if c.has(position):
            expect_shape(c, position, (layout.blocks, layout.features))
    return [TensorType(x.dtype, None if x.shape is None else (*x.shape[:-1], layout.features))]


def _evaluate(c: Evaluate, x: Array, words: Array, scales: Array, zeros: Any = None, bias: Any = None) -> Array:
    layout = _Layout(c)
    shifts = np.arange(layout.each, dtype=np.uint32) * np.uint32(layout.bits)
    numbers = (words[:, None] >> shifts[:, None]) & np.uint32((1 << layout.bits) - 1)
    numbers = numbers.reshape(layout.blocks, layout.block, layout.features).astype(np.float64)
    shift = float(c.get("zero", 0)) if zeros is None else zeros[:, None].astype(np.float64)
    weight = ((numbers - shift) * scales[:, None].astype(np.float64)).reshape(-1, layout.features)[: layout.inner]
    made = x.astype(np.float64) @ weight
    return np.asarray((made if bias is None else made + bias).astype(x.dtype))


def digit(word: Expr, part: int, bits: int, zero: float) -> Expr:
    """A number of a word less its zero point, exactly if that is whole: 2²³ plus as much of both is a float32."""
    group, place = divmod(part, _MANTISSA // bits)
    shift, times = part * bits - place * bits, 1 << place * bits
    low = word >> te.const(shift, "uint32") if group else word
    bits_of = low & te.const(((1 << bits) - 1) * times, "uint32") | te.const(_BITS_OF_TWO_TO_23, "uint32")
    high = te.reinterpret(bits_of, "float32") * te.const(1 / times, "float32")
    if zero == int(zero):
        return high - te.const(_TWO_TO_23 / times + zero, "float32")
    return high - te.const(_TWO_TO_23 / times, "float32") - te.const(zero, "float32")


def weighted(scale: Expr, elements: Sequence[Expr], word: Expr, bits: int, zero: Expr | float) -> Expr:
    """A scale times the sum of elements, each times its number of a word less the zero point."""
    plain = isinstance(zero, float)
    numbers = [digit(word, part, bits, zero if isinstance(zero, float) else 0) for part in range(len(elements))]
    terms = [x * (number if plain else number - zero) for x, number in zip(elements, numbers, strict=True)]
    return scale.astype("float32") * functools.reduce(operator.add, terms)


def _compute(c: Compute, x: te.Tensor, words: te.Tensor, scales: te.Tensor, zeros: Any = None, bias: Any = None) -> Any:
    layout = _Layout(c)
    axis = te.reduce_axis(layout.words, "w")
    w, b = axis.var, axis.var // layout.groups

    def value(*at: Any) -> Any:
        *row, n = at
        elements = [element_of(x, row, w * layout.each + part, layout) for part in range(layout.each)]
        zero = float(c.get("zero", 0)) if zeros is None else zeros[b, n].astype("float32")
        return te.sum(weighted(scales[b, n], elements, words[w, n], layout.bits, zero), axis=axis)

    return with_bias(c, te.stage(c.out_shape(), value, "words_matmul"), bias, "words_bias")


register(
    WORDS,
    _infer,
    _evaluate,
    _compute,
    "complex",
    domain=DOMAIN,
    takes="A:float[*s @K], B:uint32, scales:float, zero_points:uint8|float?, bias:float[@N]?",
    traits="heavy",
)

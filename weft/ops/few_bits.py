"""FewBitsMatMul: a product with weights of 2, 4 or 8 bits in blocks, for instructions that multiply bytes.

    y[.., n] = sum over b of scale[n, b] * (sum over k in block b of x[.., k] * code[n, k]  -  zero[n, b] * sum of x)

It is what MatMulNBits becomes on a machine with dot products of bytes (`graph/passes/few_bits.py`). A block of x is
written as whole numbers of 24 bits, in units of its largest element, and those as three signed digits of 8 bits. Sums
of digits times codes are then exact, four products an instruction; each is rounded once, when the three sums of a block
become one float. So what is rounded off of x is at most 2⁻²⁴ of the largest element of its block, as in a float32 sum,
while a code costs less than one instruction (converting it to a float and multiplying takes three). A row with an
element that is infinite or no number gives no numbers. Where a model allows activations of 16 bits or fewer
(accuracy_level 2 to 4), two digits do: 2⁻¹⁶ of the largest element, finer than float16.

Weights lie in panels of `width` columns, as the instruction reads them, low bits of a byte first:

    codes [n // width, b, i // 4, n % width, i % 4]       byte i of a block holds the numbers k = i * each + part
    scales, zeros [n // width, b, n % width]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.passes.few_bits import DOMAIN, NAME, unpack_bits

TOP, SUM, FIXED, DIGITS, CODES, PARTS, TOTAL = (
    f"few_bits_{name}" for name in ("top", "sum", "fixed", "digits", "codes", "parts", "total")
)
"""The stages: largest elements and sums of blocks, whole numbers, their digits; codes, sums of products, the result."""

LARGEST = {3: 8355000.0, 2: 32600.0}
"""The largest whole number: a little less than so many digits from -128 to 127 hold."""
LEAST = 1e-30
"""What the largest element of a block is taken for at least: its inverse must be finite."""


class Layout:
    """The numbers that say how weights lie."""

    def __init__(self, use: Use) -> None:
        self.inner, self.features, self.bits, self.block, self.width = (
            int(use.need(name)) for name in ("K", "N", "bits", "block_size", "width")
        )
        self.digits = int(use.get("digits", 3))
        self.blocks, self.each = -(-self.inner // self.block), 8 // self.bits
        self.groups = self.block // self.each // 4
        if self.bits not in (2, 4, 8) or self.block != self.groups * self.each * 4 or self.features % self.width:
            raise use.error(f"{self.bits} bits in blocks of {self.block} do not fill panels of {self.width} columns")


def _infer(c: Infer) -> list[Type]:
    x, layout = c.tensor(0), Layout(c)
    panels = layout.features // layout.width
    wanted = [(panels, layout.blocks, layout.groups, layout.width, 4), *[(panels, layout.blocks, layout.width)] * 2]
    for position, shape in enumerate(wanted, 1):
        if c.has(position) and c.tensor(position).is_static and c.tensor(position).static != shape:
            raise c.error(f"input {position} is {c.tensor(position)!r}, and its shape should be {list(shape)}")
    return [TensorType(x.dtype, None if x.shape is None else (*x.shape[:-1], layout.features))]


def _evaluate(c: Evaluate, x: Array, codes: Array, scales: Array, zeros: Any = None, bias: Any = None) -> Array:
    layout = Layout(c)
    plain = codes.transpose(0, 3, 1, 2, 4).reshape(layout.features, layout.blocks, -1)
    numbers = unpack_bits(plain, layout.bits).astype(np.float64)

    def factors(panels: Array) -> Array:
        made = panels.astype(np.float64).transpose(0, 2, 1)
        return np.asarray(made.reshape(layout.features, layout.blocks, 1))

    shift = float(c.get("zero", 0)) if zeros is None else factors(zeros)
    weight = ((numbers - shift) * factors(scales)).reshape(layout.features, -1)[:, : layout.inner]
    made = x.astype(np.float64) @ weight.T
    return np.asarray((made if bias is None else made + bias).astype(x.dtype))


def element_of(x: te.Tensor, row: Any, place: Expr, layout: Any) -> Expr:
    """An element of a row; 0 behind the last, where blocks go on."""
    if layout.inner % layout.block == 0:
        return x[(*row, place)].astype("float32")
    value = x[(*row, te.minimum(place, layout.inner - 1))].astype("float32")
    return te.select(place < layout.inner, value, te.const(0.0, "float32"))


class _Digits:
    """The stages that make digits of x: for each row and block the largest element, the sum, and the digits."""

    def __init__(self, layout: Layout, rows: tuple[int, ...], x: te.Tensor) -> None:
        self.layout, self.x, self.rank = layout, x, len(rows)
        blocks, block, each = layout.blocks, layout.block, layout.each
        i, k = te.reduce_axis(block, "top_k"), te.reduce_axis(block, "sum_k")
        self.top = te.stage(  # as bits without a sign, which are ordered as numbers are: above all what is no number
            (*rows, blocks), lambda *at: te.max(te.reinterpret(te.abs(self.element(*at, i.var)), "int32"), axis=i), TOP
        )
        self.total = te.stage((*rows, blocks), lambda *at: te.sum(self.element(*at, k.var), axis=k), SUM)
        self.fixed = te.stage((*rows, blocks, block), self.whole, FIXED)
        self.digits = te.stage((*rows, blocks, layout.digits, each, layout.groups, 4), self.digit, DIGITS)

    def element(self, *at: Any) -> Expr:
        """An element of a row by its block and place in it."""
        return element_of(self.x, at[:-2], at[-2] * self.layout.block + at[-1], self.layout)

    def largest(self, *at: Any) -> Expr:
        """The largest element of a block, by which others are measured."""
        return te.maximum(te.reinterpret(self.top[at], "float32"), te.const(LEAST, "float32"))

    def unit(self, *at: Any) -> Expr:
        """What 1 of a whole number is worth. Of what is infinite or no number the product with 0 is no number."""
        worth = self.largest(*at) * te.const(1 / LARGEST[self.layout.digits], "float32")
        return worth + self.total[at] * te.const(0.0, "float32")

    def whole(self, *at: Any) -> Expr:
        """An element as a whole number."""
        inverse = te.const(LARGEST[self.layout.digits], "float32") / self.largest(*at[:-1])
        return te.round(self.element(*at) * inverse).astype("int32")

    def digit(self, *at: Any) -> Expr:
        """A digit from -128 to 127 of a whole number."""
        b, number, part, group, place = at[self.rank :]
        value = self.fixed[(*at[: self.rank], b, (group * 4 + place) * self.layout.each + part)]
        low = ((value + 128) & 255) - 128
        high = (value + 128) >> 8
        if self.layout.digits == 3:
            middle, high = ((high + 128) & 255) - 128, (high + 128) >> 8
            high = te.select(te.equal(number, 1), middle, high)
        return te.select(te.equal(number, 0), low, high).astype("int8")


def _products(layout: Layout, rows: tuple[int, ...], digits: te.Tensor, codes: te.Tensor, kind: str) -> te.Tensor:
    """For each row, block, digit and column the sum of digits times codes."""
    rank, width, bits = len(rows), layout.width, layout.bits
    axes = [te.reduce_axis(n, name) for n, name in ((layout.groups, "g"), (layout.each, "p"), (4, "t"))]
    group, part, place = (axis.var for axis in axes)

    def byte(b: Any, g: Any, n: Any, t: Any) -> Any:
        return codes[n // width, b, g, n % width, t]

    def code(b: Any, p: Any, g: Any, n: Any, t: Any) -> Any:
        # In bytes: widened to 32 bits, a vector would be taken apart into four and put together again.
        shifted = byte(b, g, n, t) >> (p * bits).astype("uint8")
        return (shifted & te.const((1 << bits) - 1, "uint8")).astype(kind)

    wide = te.stage((layout.blocks, layout.each, layout.groups, layout.features, 4), code, CODES) if bits < 8 else None

    def product(*at: Any) -> Any:
        b, number, n = at[rank:]
        left = digits[(*at[:rank], b, number, part, group, place)].astype("int32")
        right = byte(b, group, n, place) if wide is None else wide[b, part, group, n, place]
        return te.sum(left * right.astype("int32"), axis=axes)

    return te.stage((*rows, layout.blocks, layout.digits, layout.features), product, PARTS)


def with_bias(c: Compute, result: te.Tensor, bias: te.Tensor | None, name: str) -> te.Tensor:
    """A float32 product plus a bias, in the type of the output."""
    kind = c.outputs[0].dtype
    if bias is None and kind == "float32":
        return result

    def finish(*at: Any) -> Expr:
        whole = result[at] if bias is None else result[at] + bias[at[-1]].astype("float32")
        return whole.astype(kind)

    return te.stage(c.out_shape(), finish, name)


def _compute(c: Compute, x: te.Tensor, codes: te.Tensor, scales: te.Tensor, zeros: Any = None, bias: Any = None) -> Any:
    layout, rows = Layout(c), c.out_shape()[:-1]
    made = _Digits(layout, rows, x)
    parts = _products(layout, rows, made.digits, codes, c.need("kind"))
    block, zero = te.reduce_axis(layout.blocks, "b"), te.const(float(c.get("zero", 0)), "float32")
    b, width = block.var, layout.width

    def value(*at: Any) -> Any:
        row, n = at[:-1], at[-1]
        low, middle, *high = (parts[(*row, b, te.const(d), n)] for d in range(layout.digits))
        whole = (middle * 256 + low).astype("float32")  # a block is short enough for that to fit
        if high:
            whole = high[0].astype("float32") * te.const(65536.0, "float32") + whole
        shift = zero if zeros is None else zeros[n // width, b, n % width].astype("float32")
        term = whole * made.unit(*row, b) - shift * made.total[(*row, b)]
        return te.sum(scales[n // width, b, n % width].astype("float32") * term, axis=block)

    return with_bias(c, te.stage(c.out_shape(), value, TOTAL), bias, "few_bits_bias")


register(
    NAME,
    _infer,
    _evaluate,
    _compute,
    "complex",
    domain=DOMAIN,
    takes="A:float[*s @K], B:uint8|int8, scales:float, zero_points:int8|uint8|float?, bias:float[@N]?",
    traits="heavy",
)

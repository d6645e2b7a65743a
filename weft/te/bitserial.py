"""Products of numbers of one or two bits, by counting bits: the sum of a * w over the bits that both have.

    a = 2 a1 + a0,  w = 2 w1 + w0        a · w = Σ 2**(p + q) popcount(a_p & w_q)        p, q: the planes of bits

Numbers are packed by planes, eight to a byte along the sum: x[…, k] becomes uint8[plane, …, k / 8] (`pack_bits`). One
bit of a weight may stand for -1 and 1 ("bipolar"): a · (2 w - 1) = 2 a · w - Σ a; two for -3, -1, 1 and 3, with 3 Σ a.
A convolution is a product of the windows, which cost little to copy when they are bits. What counts bits quickly is a
tensor intrinsic of the target's (`weft/targets/cpu/bits.py`): docs/low-precision.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import ShapeError
from weft.expr.nodes import Expr, int_value, minimum
from weft.te.compute import compute, reduce_axis
from weft.te.math import if_then_else, popcount
from weft.te.reduce import sum
from weft.te.tensor import Tensor

LANES = 8
"""Numbers in a byte of a plane."""
LINE = 16
"""Bytes that rows are filled up to with zeros, where nothing else is said: a vector of NEON's, the shortest."""


def _sizes(tensor: Tensor) -> list[int]:
    found = [int_value(size) for size in tensor.shape]
    if any(size is None for size in found):
        raise ShapeError(f"{tensor.name}: products of bits have constant sizes")
    return [size or 0 for size in found]


def bytes_of(numbers: int, line: int = LINE) -> int:
    """Bytes of a plane of so many numbers, with the zeros behind them."""
    return -(-numbers // (LANES * line)) * line


def pack_bits(
    x: Tensor, bits: int, line: int = LINE, name: str = "packed", most: Expr | None = None, axis: int = -1
) -> Tensor:
    """uint8[…, k], each less than 2 ** bits, as planes: uint8[bits, …, bytes_of(k, line)].

    Numbers along another axis are packed as if it were the last one. Those larger than `most` count as that.
    """
    outer = _sizes(x)
    axis %= len(outer)
    size = outer.pop(axis)

    def plane(*at: Expr) -> Any:
        bit, *where, byte = at
        made: Any = 0
        for lane in range(LANES):
            number: Expr = x[(*where[:axis], byte * LANES + lane, *where[axis:])]
            number = number if most is None else minimum(number, most)
            one = ((number >> bit.astype("uint8")) & 1) << lane
            made = made + if_then_else(byte * LANES + lane < size, one, 0).astype("uint8")
        return made.astype("uint8")

    made: Tensor = compute((bits, *outer, bytes_of(size, line)), plane, name=name)
    return made


def dense(a: Tensor, w: Tensor, bipolar: bool = False, name: str = "bits") -> tuple[Tensor, Tensor]:
    """int32[i, j], the product of packed rows a[planes, i, bytes] and w[planes, j, bytes]; and the counts before it.

    The counts are int32[plane of a, plane of w, i, j]: the stage that a tensor intrinsic is for.
    """
    (planes, rows, size), (others, columns, same) = _sizes(a), _sizes(w)
    if size != same:
        raise ShapeError(f"{a.name} and {w.name}: planes of {size} and {same} bytes")
    k = reduce_axis(size, name="k")
    counts = compute(
        (planes, others, rows, columns),
        lambda p, q, i, j: sum(popcount(a[p, i, k] & w[q, j, k]).astype("int32"), axis=k),
        name=f"{name}_counts",
    )
    every = [(p, q) for p in range(planes) for q in range(others)]

    def weighted(i: Expr, j: Expr) -> Any:
        made: Any = 0
        for p, q in every:
            made = made + counts[p, q, i, j] * (1 << (p + q))
        return made

    if not bipolar:
        return compute((rows, columns), weighted, name=name), counts
    r, v = reduce_axis(size, name="r"), reduce_axis(planes, name="v")
    ones = compute(
        (rows,),
        lambda i: sum(popcount(a[v, i, r]).astype("int32") << v.var.astype("int32"), axis=[v, r]),
        name=f"{name}_ones",
    )
    less = (1 << others) - 1
    return compute((rows, columns), lambda i, j: weighted(i, j) * 2 - ones[i] * less, name=name), counts


def windows(x: Tensor, kernel: Sequence[int], stride: int, pad: int, line: int = LINE, name: str = "windows") -> Tensor:
    """A convolution's rows: packed uint8[planes, n, h, w, c] as uint8[planes, n * oh * ow, bytes]; zeros outside."""
    planes, n, height, width, channels = _sizes(x)
    outs = [(size + 2 * pad - taps) // stride + 1 for size, taps in zip((height, width), kernel)]
    taken = kernel[0] * kernel[1] * channels
    size = -(-taken // line) * line

    def row(p: Expr, i: Expr, k: Expr) -> Expr:
        image, place = i // (outs[0] * outs[1]), i % (outs[0] * outs[1])
        tap, channel = k // channels, k % channels
        y = place // outs[1] * stride + tap // kernel[1] - pad
        z = place % outs[1] * stride + tap % kernel[1] - pad
        there = (k < taken) & (y >= 0) & (y < height) & (z >= 0) & (z < width)
        return if_then_else(there, x[p, image, y, z, channel], 0).astype("uint8")

    made: Tensor = compute((planes, n * outs[0] * outs[1], size), row, name=name)
    return made

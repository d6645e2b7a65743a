"""Winograd's convolution: 3 × 3 (any r × r) kernels with stride 1, by m × m tiles of the output.

    WinogradConv(x, u, bias?)  tile=m, pads=[top, left, bottom, right]      domain "weft"

`u` is the transformed weight G g Gᵀ, of shape (t, t, channels in, channels out) with t = m + r - 1, which a pass makes
from a constant weight when a model is compiled (`transform_weight`). A tile of the output costs t² products for each
pair of channels instead of m² r². The matrices come from the interpolation points of Toom and Cook:

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]          g: r taps, d: t inputs, y: m outputs of a correlation

As a tensor program, all of it with the channels last, so that lanes are channels and the transforms are plain sums:

    padded     the input with its border of zeros, reaching to the end of the last tile
    rows       Bᵀ d       for each tile and channel: the column pass of the input's transform
    taken      Bᵀ d B     the row pass
    sums       t² matrix products over the input's channels
    back       Aᵀ M
    conv       Aᵀ M A, at the elements of the output
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, OpSpec, Use, register
from weft.graph.shapes import minus, plus
from weft.ops.convolution import accumulator, add_channel, finish, is_empty, sizes_of
from weft.ops.convolution_window import Pads, pad_array, pad_tensor, stage

DOMAIN = "weft"
NAME = "WinogradConv"

PADDED, ROWS, TAKEN, SUMS, BACK, RESULT = (
    "padded", "winograd_rows", "winograd_taken", "winograd_sums", "winograd_back", "winograd",
)  # fmt: skip
"""The stages of the program, by which a schedule knows them."""

Row = tuple[Fraction, ...]


class Matrices(NamedTuple):
    """Aᵀ (m × t), G (t × r) and Bᵀ (t × t), exact."""

    output: tuple[Row, ...]
    weight: tuple[Row, ...]
    input: tuple[Row, ...]


def points(count: int) -> list[Fraction]:
    """The first finite interpolation points: 0, then pairs ±a, which share half of their sums."""
    found = [Fraction(0)]
    for a in (Fraction(1), Fraction(2), Fraction(1, 2), Fraction(4), Fraction(1, 4)):
        found += [a, -a]
    return found[:count]


@lru_cache
def matrices(tile: int, taps: int = 3) -> Matrices:
    """The three matrices of F(tile, taps)."""
    finite = points(tile + taps - 2)
    zero, one = Fraction(0), Fraction(1)
    output = [tuple(a**i for a in finite) + (one if i == tile - 1 else zero,) for i in range(tile)]
    weight, given = [], []
    for a in finite:
        others = [b for b in finite if b != a]
        scale = one
        for b in others:
            scale *= a - b
        weight.append(tuple(a**k / scale for k in range(taps)))
        given.append((*_polynomial(others), zero))
    weight.append((zero,) * (taps - 1) + (one,))
    given.append(_polynomial(finite))
    return Matrices(tuple(output), tuple(weight), tuple(given))


def _polynomial(roots: Sequence[Fraction]) -> Row:
    """The coefficients, lowest first, of the product of (x - root)."""
    made = [Fraction(1)]
    for root in roots:
        made = [a - root * b for a, b in zip([Fraction(0), *made], [*made, Fraction(0)])]
    return tuple(made)


def as_array(matrix: Sequence[Row], dtype: Any = np.float64) -> Array:
    """An exact matrix as numbers."""
    return np.array([[float(v) for v in row] for row in matrix], dtype)


def transform_weight(weight: Array, tile: int) -> Array:
    """G g Gᵀ of a weight (out, in, r, r), in double precision, as (t, t, in, out) of the weight's own type."""
    g = as_array(matrices(tile, weight.shape[2]).weight)
    made = np.einsum("xk,oikl,yl->xyio", g, weight.astype(np.float64), g, optimize=True)
    return np.ascontiguousarray(made.astype(weight.dtype))


# ---------------------------------------------------------------------------------------------------------- inference


def _padding(use: Use) -> Pads:
    flat = [int(p) for p in use.get("pads") or [0] * 4]
    if len(flat) != 4 or any(p < 0 for p in flat):
        raise use.error(f"pads is {flat}; four numbers are needed, none of them negative")
    return (flat[0], flat[2]), (flat[1], flat[3])


def _tile(use: Use) -> int:
    tile = int(use.need("tile"))
    if tile not in (2, 4, 6):
        raise use.error(f"tile is {tile}; it must be 2, 4 or 6")
    return tile


def _infer(c: Infer) -> list[Type]:
    x, u = c.tensor(0), c.tensor(1)
    if x.shape is None or u.shape is None:
        return [TensorType(x.dtype, None)]
    tile = _tile(c)
    size = u.dims[0]
    if not isinstance(size, int) or size <= tile:
        raise c.error(f"an input {x!r} with a transformed weight {u!r} for tiles of {tile} × {tile}")
    less = size - tile
    spatial = [minus(plus(d, a + b), less) for d, (a, b) in zip(x.dims[2:], _padding(c))]
    if any(isinstance(d, int) and d < 1 for d in spatial):
        raise c.error(f"the kernel does not fit into {x!r}")
    return [TensorType(x.dtype, (x.dims[0], u.dims[3], *spatial))]


# ------------------------------------------------------------------------------------------------------------- arrays


def _evaluate(c: Evaluate, x: Array, u: Array, bias: Array | None = None) -> Array:
    """The meaning: the same sums in the type of the accumulator."""
    tile, wide = _tile(c), np.dtype(accumulator(str(x.dtype)))
    taps = u.shape[0] - tile + 1
    made = winograd_arrays(x.astype(wide), u.astype(wide), tile, taps, _padding(c))
    return np.asarray(add_channel(made, None if bias is None else bias.astype(wide)).astype(x.dtype))


def winograd_arrays(x: Array, u: Array, tile: int, taps: int, pads: Pads) -> Array:
    """The convolution of arrays, in their own type."""
    size = tile + taps - 1
    outs = [n + a + b - taps + 1 for n, (a, b) in zip(x.shape[2:], pads)]
    counts = [-(-n // tile) for n in outs]
    reach = tuple((a, k * tile + taps - 1 - n - a) for n, k, (a, _) in zip(x.shape[2:], counts, pads))
    padded = pad_array(x, reach)
    view = np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(2, 3))[:, :, ::tile, ::tile]
    found = matrices(tile, taps)
    b, a = as_array(found.input, x.dtype), as_array(found.output, x.dtype)
    v = np.einsum("xi,ncpqij,yj->xynpqc", b, view, b, optimize=True)
    m = np.matmul(v.reshape(size, size, -1, x.shape[1]), u)
    y = np.einsum("ix,xynpqo,jy->nopiqj", a, m.reshape(*v.shape[:5], -1), a, optimize=True)
    whole = y.reshape(x.shape[0], u.shape[3], counts[0] * tile, counts[1] * tile)
    return np.ascontiguousarray(whole[:, :, : outs[0], : outs[1]])


# ------------------------------------------------------------------------------------------------------------ tensors


def _sum(coefficients: Sequence[Fraction], entry: Callable[[int], Expr]) -> Expr | None:
    """The sum of coefficient × entry; None where all are 0."""
    made: Expr | None = None
    for position, factor in enumerate(coefficients):
        if factor == 0:
            continue
        value = entry(position)
        if abs(factor) != 1:
            value = value * te.const(float(abs(factor)), value.dtype)
        if made is None:
            made = value if factor > 0 else te.const(0.0, value.dtype) - value
        else:
            made = made + value if factor > 0 else made - value
    return made


def _halves(row: Row, entry: Callable[[int], Expr]) -> Expr:
    """A row of Bᵀ: the even and the odd terms each on their own, since the rows of a and -a share them."""
    even = [v if k % 2 == 0 else Fraction(0) for k, v in enumerate(row)]
    odd = [v if k % 2 == 1 else Fraction(0) for k, v in enumerate(row)]
    return _joined(even, odd, entry)


def _joined(even: Sequence[Fraction], odd: Sequence[Fraction], entry: Callable[[int], Expr]) -> Expr:
    """Two sums added or subtracted: each is written with a positive last term, so that equal ones look equal."""
    parts = []
    for part in (even, odd):
        last = next((v for v in reversed(part) if v), None)
        if last is not None:
            sign = 1 if last > 0 else -1
            parts.append((sign, _positive_first([v * sign for v in part], entry)))
    (sign, made), rest = parts[0], parts[1:]
    if sign < 0 and rest and rest[0][0] > 0:
        return rest[0][1] - made
    made = made if sign > 0 else te.const(0.0, made.dtype) - made
    for sign, value in rest:
        made = made + value if sign > 0 else made - value
    return made


def _positive_first(row: Sequence[Fraction], entry: Callable[[int], Expr]) -> Expr:
    """A sum whose last term is positive, written last term first."""
    made = _sum(list(reversed(row)), lambda k: entry(len(row) - 1 - k))
    assert made is not None
    return made


def _pairs(row: Row, entry: Callable[[int], Expr]) -> Expr:
    """A row of Aᵀ: the entries of the points a and -a are added (or subtracted) before they are scaled."""
    made: Expr | None = None
    end = len(row) - 1
    terms: list[tuple[Fraction, Expr]] = [(row[0], entry(0))] if row[0] else []
    for k in range(1, end, 2):
        if k + 1 < end:
            both = entry(k) + entry(k + 1) if row[k] == row[k + 1] else entry(k) - entry(k + 1)
            terms.append((row[k], both))
        else:
            terms.append((row[k], entry(k)))
    if row[end]:
        terms.append((row[end], entry(end)))
    for factor, value in terms:
        scaled = value if factor == 1 else value * te.const(float(factor), value.dtype)
        made = scaled if made is None else made + scaled
    assert made is not None
    return made


def _chosen(index: Expr, rows: Sequence[Row], write: Callable[[Row], Expr]) -> Expr:
    """The row that an index names: a loop over it that is written out leaves one row in each copy."""
    made = write(rows[-1])
    for number in range(len(rows) - 2, -1, -1):
        made = te.if_then_else(te.equal(index, number), write(rows[number]), made)
    return made


def winograd_tensors(x: te.Tensor, u: te.Tensor, tile: int, pads: Pads, out: Sequence[int]) -> te.Tensor:
    """The convolution as a tensor expression, in the accumulator's type. The tiles of an image are one axis."""
    batch, channels, *spatial = sizes_of(x)
    size, _, _, features = sizes_of(u)
    kind = accumulator(str(x.dtype))
    found = matrices(tile, size - tile + 1)
    tall, wide = (-(-n // tile) for n in out[2:])
    reach = tuple((a, max(k * tile + size - tile - n - a, 0)) for n, k, (a, _) in zip(spatial, (tall, wide), pads))
    padded = pad_tensor(x, sizes_of(x), reach, lambda: 0, name=PADDED)

    def given(n: Expr, p: Expr, c: Expr, i: int, j: Expr) -> Expr:
        return padded[n, c, p // wide * tile + i, p % wide * tile + j].astype(kind)

    rows = stage(
        (size, size, batch, tall * wide, channels),
        lambda a, j, n, p, c: _chosen(a, found.input, lambda r: _halves(r, lambda i: given(n, p, c, i, j))),
        name=ROWS,
    )
    taken = stage(
        (size, size, batch, tall * wide, channels),
        lambda a, b, n, p, c: _chosen(b, found.input, lambda r: _halves(r, lambda j: rows[a, j, n, p, c])),
        name=TAKEN,
    )
    k = te.reduce_axis(channels, "ci")
    sums = stage(
        (size, size, batch, tall * wide, features),
        lambda a, b, n, p, co: te.sum(taken[a, b, n, p, k.var] * u[a, b, k.var, co].astype(kind), axis=k),
        name=SUMS,
    )
    back = stage(
        (tile, size, batch, tall * wide, features),
        lambda i, b, n, p, co: _chosen(i, found.output, lambda r: _pairs(r, lambda a: sums[a, b, n, p, co])),
        name=BACK,
    )

    def element(n: Expr, co: Expr, h: Expr, w: Expr, row: Row) -> Expr:
        return _pairs(row, lambda b: back[h % tile, b, n, h // tile * wide + w // tile, co])

    return stage(
        out,
        lambda n, co, h, w: _chosen(w % tile, found.output, lambda r: element(n, co, h, w, r)),
        name=RESULT,
    )


def _compute(c: Compute, x: te.Tensor, u: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor | None:
    if is_empty(*c.types, *c.outputs):
        return None
    return finish(c, winograd_tensors(x, u, _tile(c), _padding(c), c.out_shape()), bias)


register(
    OpSpec(
        NAME,
        _infer,
        _evaluate,
        _compute,
        kind="complex",
        domain=DOMAIN,
        takes="X:float[n c h w], U:float[t t c m], B:float[m]?",
    )
)

"""Winograd's convolution: 3 × 3 (any r × r) kernels with stride 1, by m × m tiles of the output.

    WinogradConv(x, u, w, bias?)  tile=m, pads=[top, left, bottom, right], each 0 or 1      domain "weft"
                                  block=[tiles down, tiles across], for images of open size

`u` is the transformed weight G g Gᵀ, of shape (t, t, channels in, channels out) with t = m + r - 1, which a pass makes
from a constant weight when a model is compiled (`transform_weight`); `w` is that weight itself, as (r, r, channels in,
channels out). A tile of the output costs t² products for each pair of channels instead of m² r². The matrices come from
the interpolation points of Toom and Cook:

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]          g: r taps, d: t inputs, y: m outputs of a correlation

As a tensor program, all of it with the channels last, so that lanes are channels and the transforms are plain sums:

    padded     the input with its border of zeros, reaching to the end of the last tile
    rows       Bᵀ d       for each tile and channel: the column pass of the input's transform
    taken      Bᵀ d B     the row pass
    sums       t² matrix products over the input's channels
    back       Aᵀ M
    peaks      the largest magnitude in each 2 × 2 block of the image, over all channels
    uneven     for each tile: whether it is computed directly instead
    direct     the plain convolution, where a tile is uneven
    conv       Aᵀ M A, or what is direct, at the elements of the output

**Errors stay local.** Each output of a tile mixes all inputs of the tile and cancels those outside of its own window
again, so its error grows with the largest of them, and a NaN reaches all. A tile is therefore computed directly unless

    the largest magnitude around it   <=   MOST_SPREAD × the largest in each of its outputs' own windows,   and MOST

which neither a NaN nor an infinity satisfies. Blocks of 2 × 2 that start at the tile's second row and column make that
cheap: the windows of two neighbouring outputs share such a block, and the tile and its border are a few of them. Their
peaks take two whole-number operations for each element of the input, whatever the number of outputs (the bits of
magnitudes compare as the magnitudes do, NaN above all).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, numbers_in, register
from weft.graph.shapes import divided, minus, plus, tidy
from weft.ops.convolution import accumulator, add_channel, dims_of, finish, is_empty, sizes_of
from weft.ops.convolution_window import Pads, pad_array, pad_tensor

DOMAIN = "weft"
NAME = "WinogradConv"

PADDED, ROWS, TAKEN, SUMS, BACK, RESULT = (
    "padded", "winograd_rows", "winograd_taken", "winograd_sums", "winograd_back", "winograd",
)  # fmt: skip
PEAKS, UNEVEN, DIRECT = "winograd_peaks", "winograd_uneven", "winograd_direct"
"""The stages of the program, by which a schedule knows them."""

MOST_SPREAD = 32.0
"""How many times larger than the largest element in an output's own window an element of the tile may be."""

MOST = 2.0**64
"""Larger elements could overflow in the transforms."""

AT_ONCE = 1 << 18
"""Elements of a weight that are transformed at a time, so that what is in double precision stays in the cache."""

BITS = {"float32": "int32", "float64": "int64"}
"""Whole numbers of the width of the accumulators."""

Row = tuple[Fraction, ...]
At = Sequence[Expr]
"""Where a tile stands: the axes of images, and its place in the last of them."""


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
    outputs, inputs, taps = weight.shape[:3]
    made = np.empty((len(g), len(g), inputs, outputs), weight.dtype)
    step = max(1, AT_ONCE // (len(g) ** 2 * max(outputs, 1)))
    for at in range(0, inputs, step):
        part = weight[:, at : at + step].transpose(2, 3, 1, 0).astype(np.float64)
        rows = (g @ part.reshape(taps, -1)).reshape(len(g), taps, -1)
        made[:, :, at : at + step] = (g @ rows).reshape(len(g), len(g), *part.shape[2:])
    return made


def direct_weight(weight: Array) -> Array:
    """A weight (out, in, r, r) as uneven tiles read it: (r, r, in, out)."""
    return np.ascontiguousarray(weight.transpose(2, 3, 1, 0))


# ---------------------------------------------------------------------------------------------------------- inference


def _padding(use: Use) -> Pads:
    flat = [int(p) for p in use.get("pads") or [0] * 4]
    if len(flat) != 4 or not {*flat} <= {0, 1}:
        raise use.error(f"pads is {flat}; four numbers are needed, each 0 or 1")
    return (flat[0], flat[2]), (flat[1], flat[3])


def _tile(use: Use) -> int:
    tile = int(use.need("tile"))
    if tile not in (2, 4, 6):
        raise use.error(f"tile is {tile}; it must be 2, 4 or 6")
    return tile


def _infer(c: Infer) -> list[Type]:
    x, u, w = (c.tensor(position) for position in range(3))
    if x.shape is None or u.shape is None:
        return [TensorType(x.dtype, None)]
    tile = _tile(c)
    size = u.dims[0]
    if not isinstance(size, int) or size <= tile:
        raise c.error(f"an input {x!r} with a transformed weight {u!r} for tiles of {tile} × {tile}")
    less = size - tile
    if less < 2 or (w.shape is not None and w.dims != (less + 1, less + 1, *u.dims[2:])):
        raise c.error(f"a weight {w!r} beside its transform {u!r} for tiles of {tile} × {tile}")
    spatial = [minus(plus(d, a + b), less) for d, (a, b) in zip(x.dims[2:], _padding(c))]
    if any(isinstance(d, int) and d < 1 for d in spatial):
        raise c.error(f"the kernel does not fit into {x!r}")
    return [TensorType(x.dtype, (x.dims[0], u.dims[3], *spatial))]


# ------------------------------------------------------------------------------------------------------------- arrays


def _evaluate(c: Evaluate, x: Array, u: Array, w: Array, bias: Array | None = None) -> Array:
    """The meaning: the same sums in the type of the accumulator."""
    tile, wide = _tile(c), np.dtype(accumulator(str(x.dtype)))
    with np.errstate(all="ignore"):
        made = winograd_arrays(x.astype(wide), u.astype(wide), w.astype(wide), tile, _padding(c))
    return np.asarray(add_channel(made, None if bias is None else bias.astype(wide)).astype(x.dtype))


def winograd_arrays(x: Array, u: Array, w: Array, tile: int, pads: Pads) -> Array:
    """The convolution of arrays, in their own type."""
    taps = w.shape[0]
    size = tile + taps - 1
    outs = [n + a + b - taps + 1 for n, (a, b) in zip(x.shape[2:], pads)]
    counts = [-(-n // tile) for n in outs]
    reach = tuple((a, k * tile + taps - 1 - n - a) for n, k, (a, _) in zip(x.shape[2:], counts, pads))
    padded = pad_array(x, reach)
    windows = np.lib.stride_tricks.sliding_window_view
    view = windows(padded, (size, size), axis=(2, 3))[:, :, ::tile, ::tile]
    found = matrices(tile, taps)
    b, a = as_array(found.input, x.dtype), as_array(found.output, x.dtype)
    v = np.einsum("xi,ncpqij,yj->xynpqc", b, view, b, optimize=True)
    m = np.matmul(v.reshape(size, size, -1, x.shape[1]), u)
    y = np.einsum("ix,xynpqo,jy->nopiqj", a, m.reshape(*v.shape[:5], -1), a, optimize=True)
    whole = y.reshape(x.shape[0], u.shape[3], counts[0] * tile, counts[1] * tile)
    uneven = uneven_tiles(x, tile, taps, pads, outs).repeat(tile, axis=1).repeat(tile, axis=2)
    if uneven.any():
        plain = np.einsum("ncpqij,ijco->nopq", windows(padded, (taps, taps), axis=(2, 3)), w, optimize=True)
        whole = np.where(uneven[:, None], plain, whole)
    return np.ascontiguousarray(whole[:, :, : outs[0], : outs[1]])


def uneven_tiles(x: Array, tile: int, taps: int, pads: Pads, outs: Sequence[int]) -> Array:
    """Whether each tile (image, row, column) is computed directly."""
    axes = [_Blocks(n, a, out, tile, taps) for n, (a, _), out in zip(x.shape[2:], pads, outs)]
    sizes = np.pad(np.abs(x).max(axis=1), ((0, 0), *[axis.padding for axis in axes]))
    peaks = sizes.reshape(len(x), axes[0].count, 2, axes[1].count, 2).max(axis=(2, 4))
    rows, columns = ([axis.around(np.arange(axis.tiles), j, np) for j in range(axis.reach)] for axis in axes)
    around = np.maximum.reduce([peaks[:, r][:, :, k] for r in rows for k in columns])
    rows, columns = ([axis.inside(np.arange(axis.tiles), j, np) for j in range(tile // 2)] for axis in axes)
    least = np.minimum.reduce([peaks[:, r][:, :, k] for r in rows for k in columns])
    return np.asarray(~(around <= np.minimum(least * x.dtype.type(MOST_SPREAD), MOST)))


class _Blocks:
    """Blocks of two along one dimension: block k holds the padded positions 2k - 1 and 2k; `count` of them from `first`
    on hold some of the image. A tile reads `reach` of them; beyond the image the last one stands for the others.
    """

    __slots__ = ("size", "before", "half", "tiles", "reach", "first", "count", "last")

    def __init__(self, size: Any, before: int, out: Any, tile: int, taps: int) -> None:
        self.size, self.before, self.half = size, before, tile // 2
        self.tiles: Any = divided(out, tile, up=True)
        self.reach = (tile + taps - 1) // 2 + 1
        self.first = (before + 1) // 2
        self.count: Any = tidy((size + before) // 2 + 1 - self.first)
        self.last = tidy((out - 1) // 2 + 1 - self.first)
        """The block of the last output that there is."""

    @property
    def padding(self) -> tuple[int, int]:
        """What the image lacks before and behind it to be made of whole blocks."""
        before = self.start
        return before, tidy(2 * self.count - before - self.size)  # type: ignore[return-value]

    @property
    def start(self) -> int:
        """How much the first block begins before the image."""
        return self.before + 1 - 2 * self.first

    def place(self, block: Expr, step: Expr) -> Expr:
        """An element of a block; where a part of it is outside of the image, its other one again."""
        at = 2 * block + (step - self.start)
        at = te.maximum(at, 0) if self.start else at
        whole = isinstance(self.size, int) and not self.padding[1]
        return at if whole else te.minimum(at, self.size - 1)

    def around(self, tile: Any, j: int, functions: Any) -> Any:
        """The j-th block of those that a tile reads."""
        return functions.minimum(functions.maximum(tile * self.half + (j - self.first), 0), self.count - 1)

    def inside(self, tile: Any, j: int, functions: Any) -> Any:
        """The block that the windows of a tile's outputs 2j and 2j + 1 share."""
        return functions.minimum(tile * self.half + (1 + j - self.first), self.last)


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


class _Tiles(NamedTuple):
    """How tiles are numbered: by images, and in each by their place. An image of open size is cut into blocks of
    `tall` × `wide` tiles, which are two more axes of images; any other is one block."""

    tile: int
    tall: Any
    wide: Any
    images: tuple[Any, ...]
    """The extents of the axes of images."""

    @property
    def count(self) -> Any:
        """Tiles of a block."""
        return self.tall * self.wide

    def first(self, images: Sequence[Expr]) -> tuple[Any, Any]:
        """The first row and column of a block, in tiles."""
        return (images[1] * self.tall, images[2] * self.wide) if len(images) == 3 else (0, 0)

    def of(self, n: Expr, h: Expr, w: Expr) -> tuple[Expr, ...]:
        """Where the tile of an element stands."""
        if len(self.images) == 1:
            return n, h // self.tile * self.wide + w // self.tile
        rows, columns = self.tall * self.tile, self.wide * self.tile
        return n, h // rows, w // columns, h % rows // self.tile * self.wide + w % columns // self.tile


def winograd_tensors(
    x: te.Tensor, u: te.Tensor, w: te.Tensor, tile: int, pads: Pads, out: Sequence[Dim], block: Sequence[int] = ()
) -> te.Tensor:
    """The convolution as a tensor expression, in the accumulator's type. The tiles of an image are one axis.

    An image of open size is computed in blocks of `block` tiles, the last ones beyond its end.
    """
    batch, _, *spatial = dims_of(x)
    size, found = sizes_of(u)[0], matrices(tile, sizes_of(w)[0])
    if block:
        blocks = [divided(n, k * tile, up=True) for n, k in zip(out[2:], block)]
        tiles = _Tiles(tile, block[0], block[1], (batch, *blocks))
        padded = _blocks_of(x, tiles, size - tile, pads)
    else:
        tall, wide = (-(-n // tile) for n in numbers_in(out[2:]))
        tiles = _Tiles(tile, tall, wide, (batch,))
        ends = zip(numbers_in(spatial), (tiles.tall, tiles.wide), pads)
        reach = tuple((a, max(k * tile + size - tile - n - a, 0)) for n, k, (a, _) in ends)
        padded = pad_tensor(x, dims_of(x), reach, lambda: 0, name=PADDED)
    back = _transformed(padded, u, tiles)
    uneven = _uneven(x, tiles, sizes_of(w)[0], pads, out)
    direct = _direct(x, w, uneven, pads, out, tiles)

    def element(n: Expr, co: Expr, h: Expr, w: Expr, row: Row) -> Expr:
        return _pairs(row, lambda b: back[(h % tile, b, *tiles.of(n, h, w), co)])

    def body(n: Expr, co: Expr, h: Expr, w: Expr) -> Expr:
        made = _chosen(w % tile, found.output, lambda r: element(n, co, h, w, r))
        return te.select(uneven[tiles.of(n, h, w)] > 0, direct[n, co, h, w], made)

    return te.stage(out, body, name=RESULT)


def _blocks_of(x: te.Tensor, tiles: _Tiles, border: int, pads: Pads) -> te.Tensor:
    """An image in blocks, each with the border that its tiles read: (*images, channels, rows, columns)."""
    rows, columns = (n * tiles.tile + border for n in (tiles.tall, tiles.wide))

    def body(n: Expr, y: Expr, z: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        top, left = tiles.first((n, y, z))
        return _element(x, (n, c, top * tiles.tile + i - pads[0][0], left * tiles.tile + j - pads[1][0]))

    return te.stage((*tiles.images, dims_of(x)[1], rows, columns), body, name=PADDED)


def _transformed(padded: te.Tensor, u: te.Tensor, tiles: _Tiles) -> te.Tensor:
    """The input transformed, multiplied, and half transformed back: Aᵀ M."""
    size, _, channels, features = sizes_of(u)
    tile, wide, kind = tiles.tile, tiles.wide, accumulator(str(padded.dtype))
    found = matrices(tile, size - tile + 1)
    shape = (size, size, *tiles.images, tiles.count)

    def given(at: At, c: Expr, i: int, j: Expr) -> Expr:
        *images, p = at
        return padded[(*images, c, p // wide * tile + i, p % wide * tile + j)].astype(kind)

    def rows_at(a: Expr, j: Expr, at: At, c: Expr) -> Expr:
        return _chosen(a, found.input, lambda r: _halves(r, lambda i: given(at, c, i, j)))

    def taken_at(a: Expr, b: Expr, at: At, c: Expr) -> Expr:
        return _chosen(b, found.input, lambda r: _halves(r, lambda j: rows[(a, j, *at, c)]))

    k = te.reduce_axis(channels, "ci")

    def sums_at(a: Expr, b: Expr, at: At, co: Expr) -> Any:
        return te.sum(taken[(a, b, *at, k.var)] * u[a, b, k.var, co].astype(kind), axis=k)

    def back_at(i: Expr, b: Expr, at: At, co: Expr) -> Expr:
        return _chosen(i, found.output, lambda r: _pairs(r, lambda a: sums[(a, b, *at, co)]))

    if len(tiles.images) == 1:
        rows = te.stage((*shape, channels), lambda a, j, n, p, c: rows_at(a, j, (n, p), c), name=ROWS)
        taken = te.stage((*shape, channels), lambda a, b, n, p, c: taken_at(a, b, (n, p), c), name=TAKEN)
        sums = te.stage((*shape, features), lambda a, b, n, p, co: sums_at(a, b, (n, p), co), name=SUMS)
        return te.stage((tile, *shape[1:], features), lambda i, b, n, p, co: back_at(i, b, (n, p), co), name=BACK)
    rows = te.stage((*shape, channels), lambda a, j, n, y, z, p, c: rows_at(a, j, (n, y, z, p), c), name=ROWS)
    taken = te.stage((*shape, channels), lambda a, b, n, y, z, p, c: taken_at(a, b, (n, y, z, p), c), name=TAKEN)
    sums = te.stage((*shape, features), lambda a, b, n, y, z, p, co: sums_at(a, b, (n, y, z, p), co), name=SUMS)
    made = (tile, *shape[1:], features)
    return te.stage(made, lambda i, b, n, y, z, p, co: back_at(i, b, (n, y, z, p), co), name=BACK)


def _uneven(x: te.Tensor, tiles: _Tiles, taps: int, pads: Pads, out: Sequence[Dim]) -> te.Tensor:
    """1 for each tile that is computed directly, else 0."""
    batch, channels, *spatial = dims_of(x)
    kind, tile = accumulator(str(x.dtype)), tiles.tile
    tall, wide = (_Blocks(n, a, size, tile, taps) for n, (a, _), size in zip(spatial, pads, out[2:]))
    axes = [te.reduce_axis(n, name) for n, name in ((channels, "ci"), (2, "dy"), (2, "dx"))]
    c, dy, dx = (axis.var for axis in axes)
    bits = BITS[kind]

    def magnitude(n: Expr, y: Expr, z: Expr) -> Any:
        value = x[n, c, tall.place(y, dy), wide.place(z, dx)].astype(kind)
        return te.max(te.reinterpret(te.abs(value), bits), axis=axes)

    peaks = te.stage((batch, tall.count, wide.count), magnitude, name=PEAKS)

    def joined(function: Callable[[Any, Any], Any], n: Expr, rows: Sequence[Expr], columns: Sequence[Expr]) -> Expr:
        values: list[Any] = [peaks[n, y, z] for y in rows for z in columns]
        return te.reinterpret(reduce(function, values), kind)

    def body(images: Sequence[Expr], p: Expr) -> Expr:
        n, (top, left) = images[0], tiles.first(images)
        row, column = p // tiles.wide + top, p % tiles.wide + left
        rows = [tall.around(row, j, te) for j in range(tall.reach)]
        columns = [wide.around(column, j, te) for j in range(wide.reach)]
        around = joined(te.maximum, n, rows, columns)
        rows = [tall.inside(row, j, te) for j in range(tile // 2)]
        columns = [wide.inside(column, j, te) for j in range(tile // 2)]
        least = joined(te.minimum, n, rows, columns)
        even = around <= te.minimum(least * te.const(MOST_SPREAD, kind), te.const(MOST, kind))
        return te.select(even, te.const(0, "int32"), te.const(1, "int32"))

    shape = (*tiles.images, tiles.count)
    if len(shape) == 2:
        return te.stage(shape, lambda n, p: body((n,), p), name=UNEVEN)
    return te.stage(shape, lambda n, y, z, p: body((n, y, z), p), name=UNEVEN)


def _direct(x: te.Tensor, w: te.Tensor, uneven: te.Tensor, pads: Pads, out: Sequence[Dim], tiles: _Tiles) -> te.Tensor:
    """The plain convolution where a tile is uneven; 0 elsewhere."""
    taps, _, channels, _ = sizes_of(w)
    kind = accumulator(str(x.dtype))
    axes = [te.reduce_axis(n, name) for n, name in ((channels, "ci"), (taps, "kh"), (taps, "kw"))]
    c, i, j = (axis.var for axis in axes)

    def body(n: Expr, co: Expr, h: Expr, v: Expr) -> Any:
        product = _element(x, (n, c, h + i - pads[0][0], v + j - pads[1][0])).astype(kind) * w[i, j, c, co].astype(kind)
        return te.sum(product, axis=axes, where=uneven[tiles.of(n, h, v)] > 0)

    return te.stage(out, body, name=DIRECT)


def _element(x: te.Tensor, at: tuple[Expr, ...]) -> Expr:
    """An element of an image; 0 outside of it."""
    inside = [test for i, size in zip(at[2:], dims_of(x)[2:]) for test in (i >= 0, i < size)]
    return te.if_then_else(te.all(*inside), x[at], te.const(0, x.dtype))


def _compute(c: Compute, x: te.Tensor, u: te.Tensor, w: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor | None:
    if is_empty(*c.types, *c.outputs):
        return None
    block = [int(n) for n in c.get("block") or ()]
    return finish(c, winograd_tensors(x, u, w, _tile(c), _padding(c), c.out_dims(), block), bias)


register(
    NAME,
    _infer,
    _evaluate,
    _compute,
    "complex",
    domain=DOMAIN,
    takes="X:float[n c h w], U:float[t t c m], W:float[r r c m], B:float[m]?",
    traits="bordered",
)

"""Winograd's convolution: kernels of 3 and 5 taps a side with stride 1 or 2, by m × m tiles of the output.

    WinogradConv(x, u, w, bias?)  tile=m, pads=[top, left, bottom, right], less than half a window   domain "weft"
                                  strides=[down, across], 1 where there is one tap
                                  strip=[tiles down, 0] or [0, tiles across], for images of open size

`u` is the transformed weight G g Gᵀ, of shape (t, t, channels in, channels out) with t = s (m - 1) + r, which a pass
makes from a constant weight when a model is compiled (`transform_weight`); `w` is that weight itself, as (r, r,
channels in, channels out). A tile of the output costs t² products for each pair of channels instead of m² r². A side of
a window that has one tap stays as it is (m = t = r = 1), and a line is an image of one column: `x` of three dimensions.
The matrices come from the interpolation points of Toom and Cook:

    y = Aᵀ [(G g) ⊙ (Bᵀ d)]          g: r taps, d: t inputs, y: m outputs of a correlation

A window that moves by 2 is the sum of two that move by 1, over the even and the odd inputs: the matrices of the two
stand side by side, and 3 taps take 9 products for 4 outputs, where a plain sum takes 12 (in two dimensions 81 for 16).

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
cheap: the windows of two neighbouring outputs share such a block (with stride 2 each has its own), and the tile and its
border are a few of them (along a side of one tap blocks are single elements). Their
peaks take two whole-number operations for each element of the input, whatever the number of outputs (the bits of
magnitudes compare as the magnitudes do, NaN above all).
"""

from __future__ import annotations

import math
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
from weft.ops.convolution import accumulator, add_channel, convolve_arrays, dims_of, finish, sizes_of
from weft.ops.convolution_window import Pads, Window, pad_tensor

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
    """Aᵀ (m × t), G (t × r) and Bᵀ (t × t), exact; and how many of the t belong to each phase of a stride."""

    output: tuple[Row, ...]
    weight: tuple[Row, ...]
    input: tuple[Row, ...]
    phases: tuple[int, ...]


def points(count: int) -> list[Fraction]:
    """The first finite interpolation points: 0, then pairs ±a, which share half of their sums."""
    found = [Fraction(0)]
    for a in (Fraction(1), Fraction(2), Fraction(1, 2), Fraction(4), Fraction(1, 4)):
        found += [a, -a]
    return found[:count]


@lru_cache
def matrices(tile: int, taps: int = 3, stride: int = 1) -> Matrices:
    """The matrices of F(tile, taps), or those for the phases of a stride side by side."""
    zero, one = Fraction(0), Fraction(1)
    if stride > 1:
        parts = [matrices(tile, len(range(phase, taps, stride))) for phase in range(stride)]
        size, phases = stride * (tile - 1) + taps, list(enumerate(parts))
        return Matrices(
            tuple(tuple(v for row in rows for v in row) for rows in zip(*(part.output for part in parts))),
            tuple(_spread(row, phase, stride, taps) for phase, part in phases for row in part.weight),
            tuple(_spread(row, phase, stride, size) for phase, part in phases for row in part.input),
            tuple(len(part.input) for part in parts),
        )
    if taps == 1:
        same = tuple(tuple(one if i == j else zero for j in range(tile)) for i in range(tile))
        return Matrices(same, ((one,),) * tile, same, (tile,))
    finite = points(tile + taps - 2)
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
    return Matrices(tuple(output), tuple(weight), tuple(given), (len(given),))


def _spread(row: Row, phase: int, stride: int, size: int) -> Row:
    """A row of a phase among all elements: every so many of them."""
    found = dict(zip(range(phase, size, stride), row))
    return tuple(found.get(k, Fraction(0)) for k in range(size))


def _polynomial(roots: Sequence[Fraction]) -> Row:
    """The coefficients, lowest first, of the product of (x - root): whole numbers of a unit, which is quicker."""
    unit, made = math.lcm(*(root.denominator for root in roots)), [1]
    for root in roots:
        whole = root.numerator * (unit // root.denominator)
        made = [a - whole * b for a, b in zip([0, *made], [*made, 0])]
    return tuple(Fraction(c, unit ** (len(roots) - power)) for power, c in enumerate(made))


def as_array(matrix: Sequence[Row], dtype: Any = np.float64) -> Array:
    """An exact matrix as numbers."""
    return np.array([[float(v) for v in row] for row in matrix], dtype)


def terms(matrix: Sequence[Row]) -> int:
    """Terms of the sums that make a transform; none where it changes nothing."""
    return sum(1 for row in matrix for v in row if v) if len(matrix) > 1 else 0


class Side(NamedTuple):
    """One side of a window: its taps, how far it moves, and the outputs of a tile along it."""

    taps: int
    stride: int
    tile: int

    @property
    def size(self) -> int:
        """Inputs of a tile, and the products that it takes."""
        return self.stride * (self.tile - 1) + self.taps

    @property
    def pitch(self) -> int:
        """How far apart tiles read."""
        return self.stride * self.tile

    @property
    def matrices(self) -> Matrices:
        """Its transforms."""
        return matrices(self.tile, self.taps, self.stride)

    def reach(self, tiles: Any) -> Any:
        """Inputs of so many tiles side by side."""
        return self.pitch * tiles + (self.taps - self.stride)


def sides_of(tile: int, taps: Sequence[int], strides: Sequence[int] = (1, 1)) -> list[Side]:
    """Both sides of a window; tiles have one output along a side of one tap."""
    return [Side(r, s, tile if r > 1 else 1) for r, s in zip((*taps, 1), (*strides, 1))][:2]


def side_of(size: int, taps: int) -> Side:
    """The side whose transform has so many elements: tiles are of even sizes, so that it can be but one."""
    stride = 1 if size == taps or (size - taps) % 2 else 2
    return Side(taps, stride, (size - taps) // stride + 1)


def transform_weight(weight: Array, tile: int, strides: Sequence[int] = (1, 1)) -> Array:
    """G g Gᵀ of a weight (out, in, r[, r]), in double precision, as (t, t, in, out) of the weight's own type."""
    weight = weight.reshape(*weight.shape, *[1] * (4 - weight.ndim))
    down, across = (as_array(side.matrices.weight) for side in sides_of(tile, weight.shape[2:], strides))
    outputs, inputs, taps = weight.shape[:3]
    made = np.empty((len(down), len(across), inputs, outputs), weight.dtype)
    step = max(1, AT_ONCE // (len(down) * len(across) * max(outputs, 1)))
    for at in range(0, inputs, step):
        part = weight[:, at : at + step].transpose(2, 3, 1, 0).astype(np.float64)
        rows = (down @ part.reshape(taps, -1)).reshape(len(down), weight.shape[3], -1)
        made[:, :, at : at + step] = (across @ rows).reshape(len(down), len(across), *part.shape[2:])
    return made


def direct_weight(weight: Array) -> Array:
    """A weight (out, in, r[, r]) as uneven tiles read it: (r, r, in, out)."""
    return np.ascontiguousarray(weight.reshape(*weight.shape, *[1] * (4 - weight.ndim)).transpose(2, 3, 1, 0))


# ---------------------------------------------------------------------------------------------------------- inference


def _padding(use: Use, rank: int, taps: Sequence[int]) -> Pads:
    """What is around an image, of two sides always."""
    flat = [int(p) for p in use.get("pads") or [0] * 2 * (rank - 2)]
    if len(flat) != 2 * (rank - 2) or any(not 0 <= p <= (r - 1) // 2 for p, r in zip(flat, [*taps[: rank - 2]] * 2)):
        raise use.error(f"pads is {flat}; two numbers a side are needed, none over half a window of {list(taps)}")
    return tuple([*zip(flat, flat[rank - 2 :]), (0, 0)][:2])


def _sides(use: Use, taps: Sequence[int]) -> list[Side]:
    tile, strides = int(use.need("tile")), [*(int(s) for s in use.get("strides") or ()), 1, 1][:2]
    if tile not in (2, 4, 6):
        raise use.error(f"tile is {tile}; it must be 2, 4 or 6")
    if any(s not in ((1, 2) if r > 1 else (1,)) for r, s in zip(taps, strides)):
        raise use.error(f"strides is {strides}; a window of {list(taps)} moves by 1, or by 2 where it has several taps")
    return sides_of(tile, taps, strides)


def _infer(c: Infer) -> list[Type]:
    x, u, w = (c.tensor(position) for position in range(3))
    if x.shape is None or u.shape is None or w.shape is None:
        return [TensorType(x.dtype, None)]
    taps = numbers_in(w.dims[:2])
    if len(x.dims) not in (3, 4) or any(r % 2 == 0 for r in taps) or (len(x.dims) == 3 and taps[1] != 1):
        raise c.error(f"an input {x!r} with a weight {w!r}")
    sides = _sides(c, taps)
    if u.dims[:2] != tuple(side.size for side in sides) or max(taps) == 1:
        raise c.error(f"a weight {w!r} beside its transform {u!r} for tiles of {c.need('tile')}")
    around = zip(x.dims[2:], sides, _padding(c, len(x.dims), taps))
    spatial = [divided(minus(plus(d, a + b), s.taps - s.stride), s.stride) for d, s, (a, b) in around]
    if any(isinstance(d, int) and d < 1 for d in spatial):
        raise c.error(f"the kernel does not fit into {x!r}")
    return [TensorType(x.dtype, (x.dims[0], u.dims[3], *spatial))]


# ------------------------------------------------------------------------------------------------------------- arrays


def _evaluate(c: Evaluate, x: Array, u: Array, w: Array, bias: Array | None = None) -> Array:
    """The meaning: the convolution, in the type of the accumulator."""
    wide, window = np.dtype(accumulator(str(x.dtype))), Window(c, w.shape[: x.ndim - 2])
    weight = w.transpose(3, 2, 0, 1).reshape(w.shape[3], w.shape[2], *window.kernel)
    made = convolve_arrays(x.astype(wide), weight.astype(wide), window, 1)
    return np.asarray(add_channel(made, None if bias is None else bias.astype(wide)).astype(x.dtype))


def winograd_arrays(x: Array, u: Array, sides: Sequence[Side]) -> Array:
    """The method's own sums for images without a border that are whole tiles, all of them even."""
    view = np.lib.stride_tricks.sliding_window_view(x, u.shape[:2], axis=(2, 3))
    view = view[:, :, :: sides[0].pitch, :: sides[1].pitch]
    b, d = (as_array(side.matrices.input, x.dtype) for side in sides)
    a, e = (as_array(side.matrices.output, x.dtype) for side in sides)
    v = np.einsum("xi,ncpqij,yj->xynpqc", b, view, d, optimize=True)
    m = np.matmul(v.reshape(*u.shape[:2], -1, x.shape[1]), u)
    y = np.einsum("ix,xynpqo,jy->nopiqj", a, m.reshape(*v.shape[:5], -1), e, optimize=True)
    return np.asarray(y.reshape(*y.shape[:2], y.shape[2] * y.shape[3], -1))


class _Blocks:
    """Blocks of two along one dimension: block k holds the padded positions 2k - 1 and 2k; `count` of them from `first`
    on hold some of the image. A tile reads `reach` of them; beyond the image the last one stands for the others. Where
    windows have one tap, a block is one element.
    """

    __slots__ = ("size", "before", "step", "half", "reach", "first", "count", "shared", "last")

    def __init__(self, size: Any, before: int, out: Any, side: Side) -> None:
        step = 2 if side.taps > 1 else 1
        self.size, self.before, self.step, self.half = size, before, step, side.pitch // step
        self.reach = (side.size - 2 + step) // step + 1
        self.first = (before + step - 1) // step
        self.count: Any = tidy((size + before + step - 2) // step + 1 - self.first)
        self.shared = (side.taps + 1) // 4 - self.first
        """The block in the middle of what the first two windows share: the same for each two more."""
        self.last = tidy((out - 1) * side.stride // step + self.shared)
        """The block of the last output that there is."""

    @property
    def padding(self) -> tuple[int, Any]:
        """What the image lacks before and behind it to be made of whole blocks."""
        return self.start, tidy(self.step * self.count - self.start - self.size)

    @property
    def start(self) -> int:
        """How much the first block begins before the image."""
        return self.before + self.step - 1 - self.step * self.first

    def place(self, block: Expr, step: Expr) -> tuple[Expr, list[Expr]]:
        """An element of a block, and the tests whether it is one of the image. Where the image's size is open, its
        other element stands for one beyond the end."""
        if self.step == 1:
            return block, []
        at = 2 * block + (step - self.start)
        tests = [at >= 0] if self.start else []
        if isinstance(self.size, int):
            return at, [*tests, at < self.size] if self.padding[1] else tests
        return te.minimum(at, self.size - 1), tests

    def around(self, tile: Any, j: int) -> Any:
        """The j-th block of those that a tile reads."""
        if self.step == 1:
            return tile
        return te.minimum(te.maximum(tile * self.half + (j - self.first), 0), self.count - 1)

    def inside(self, tile: Any, j: int) -> Any:
        """The block that the windows of a tile's outputs 2j and 2j + 1 share; with stride 2, one of output j's own."""
        return tile if self.step == 1 else te.minimum(tile * self.half + (self.shared + j), self.last)


# ------------------------------------------------------------------------------------------------------------ tensors


def _sum(terms: Sequence[tuple[Fraction, Expr]]) -> Expr:
    """The sum of factor × value; the first factor is positive."""
    made: Expr | None = None
    for factor, value in terms:
        value = value if abs(factor) == 1 else value * te.const(float(abs(factor)), value.dtype)
        made = value if made is None else made + value if factor > 0 else made - value
    assert made is not None
    return made


def _halves(row: Row, stride: int, entry: Callable[[int], Expr]) -> Expr:
    """A row of Bᵀ: the even and the odd terms of its phase each on their own, since the rows of a and -a share them.
    Each is written from its last term on, which is positive, so that equal ones look equal."""
    parts = []
    for half in (0, 1):
        found = [(v, k) for k, v in reversed(list(enumerate(row))) if v and k // stride % 2 == half]
        if found:
            sign = 1 if found[0][0] > 0 else -1
            parts.append((Fraction(sign), _sum([(v * sign, entry(k)) for v, k in found])))
    # A polynomial's highest coefficient is 1: at least one part is positive.
    return _sum(parts if parts[0][0] > 0 else parts[::-1])


def _pairs(row: Row, phases: Sequence[int], entry: Callable[[int], Expr]) -> Expr:
    """A row of Aᵀ: the entries of the points a and -a are added (or subtracted) before they are scaled."""
    terms: list[tuple[Fraction, Expr]] = []
    first = 0
    for size in phases:
        k, end = first, first + size - 1
        while k <= end:
            # Points are 0, then pairs; the last one is infinite.
            paired = k > first and k + 1 < end and row[k] != 0 and abs(row[k]) == abs(row[k + 1])
            if paired:
                terms.append((row[k], entry(k) + entry(k + 1) if row[k] == row[k + 1] else entry(k) - entry(k + 1)))
            elif row[k]:
                terms.append((row[k], entry(k)))
            k += 2 if paired else 1
        first = end + 1
    return _sum(terms)


def _chosen(index: Expr, rows: Sequence[Row], write: Callable[[Row], Expr]) -> Expr:
    """The row that an index names: a loop over it that is written out leaves one row in each copy."""
    made = write(rows[-1])
    for number in range(len(rows) - 2, -1, -1):
        made = te.if_then_else(te.equal(index, number), write(rows[number]), made)
    return made


class _Tiles(NamedTuple):
    """How tiles are numbered: by images, and in each by their place, row by row. An image of open size is cut into
    strips of `tall` or `wide` tiles, one more axis of images, along the other side, where any number of tiles follow
    each other: down a strip row by row, across it column by column, so that a strip ends with its last tile."""

    sides: Sequence[Side]
    tall: Any
    wide: Any
    images: tuple[Any, ...]
    """The extents of the axes of images."""
    across: bool = False
    """Whether strips lie across the image."""

    @property
    def count(self) -> Any:
        """Tiles of an image, or of a strip."""
        return self.tall * self.wide

    def first(self, images: Sequence[Expr]) -> tuple[Any, Any]:
        """The first row and column of a strip, in tiles."""
        if len(images) == 1:
            return 0, 0
        return (images[1] * self.tall, 0) if self.across else (0, images[1] * self.wide)

    def place(self, p: Any) -> tuple[Any, Any]:
        """The row and the column of a tile."""
        return (p % self.tall, p // self.tall) if self.across else (p // self.wide, p % self.wide)

    def of(self, n: Expr, h: Expr, w: Expr | int) -> tuple[Expr, ...]:
        """Where the tile of an element stands."""
        down, across = (side.tile for side in self.sides)
        if len(self.images) == 1:
            return n, h // down * self.wide + w // across
        if self.across:
            return n, h // (self.tall * down), w // across * self.tall + h % (self.tall * down) // down
        return n, w // (self.wide * across), h // down * self.wide + w % (self.wide * across) // across


def winograd_tensors(
    x: te.Tensor,
    u: te.Tensor,
    w: te.Tensor,
    sides: Sequence[Side],
    pads: Pads,
    out: Sequence[Dim],
    strip: Sequence[int] = (),
) -> te.Tensor:
    """The convolution as a tensor expression, in the accumulator's type. The tiles of an image are one axis.

    An image of open size is computed in strips of so many tiles down, or across where that is not 0.
    """
    batch, _, *spatial = dims_of(x)
    found = sides[1].matrices
    if strip:
        strips = [divided(n, max(k, 1) * side.tile, up=True) for n, k, side in zip(out[2:], strip, sides)]
        counts = [k or n for k, n in zip(strip, strips)]
        tiles = _Tiles(sides, counts[0], counts[1], (batch, strips[int(strip[0] == 0)]), strip[0] > 0)
        padded = _strips_of(x, tiles, pads)
    else:
        counts = [-(-n // side.tile) for n, side in zip([*numbers_in(out[2:]), 1], sides)]
        tiles = _Tiles(sides, counts[0], counts[1], (batch,))
        ends = zip(numbers_in(spatial), counts, sides, pads)
        reach = tuple((a, max(side.reach(k) - n - a, 0)) for n, k, side, (a, _) in ends)
        padded = pad_tensor(x, dims_of(x), reach, lambda: 0, name=PADDED)
    back = _transformed(padded, u, tiles)
    uneven = _uneven(x, tiles, pads, out)
    direct = _direct(x, w, uneven, pads, out, tiles)

    def element(n: Expr, co: Expr, at: At, row: Row) -> Expr:
        place = tiles.of(n, *_place(at))
        return _pairs(row, found.phases, lambda b: back[(at[0] % sides[0].tile, b, *place, co)])

    def body(n: Expr, co: Expr, *at: Expr) -> Expr:
        _, column = _place(at)
        made = _chosen(column % sides[1].tile, found.output, lambda r: element(n, co, at, r))
        return te.select(uneven[tiles.of(n, *_place(at))] > 0, direct[(n, co, *at)], made)

    return te.stage(out, body, name=RESULT)


def _place(at: At) -> tuple[Expr, Any]:
    """Row and column; a line is one column."""
    return at[0], at[1] if len(at) == 2 else te.const(0, at[0].dtype)


def _strips_of(x: te.Tensor, tiles: _Tiles, pads: Pads) -> te.Tensor:
    """An image in strips, each with the border that its tiles read: (*images, channels, rows, columns)."""
    down, across = tiles.sides

    def body(n: Expr, y: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        top, left = tiles.first((n, y))
        return _element(x, (n, c, top * down.pitch + i - pads[0][0], left * across.pitch + j - pads[1][0]))

    shape = (*tiles.images, dims_of(x)[1], down.reach(tiles.tall), across.reach(tiles.wide))
    return te.stage(shape, body, name=PADDED)


def _transformed(padded: te.Tensor, u: te.Tensor, tiles: _Tiles) -> te.Tensor:
    """The input transformed, multiplied, and half transformed back: Aᵀ M."""
    high, long, channels, features = sizes_of(u)
    kind, line = accumulator(str(padded.dtype)), len(dims_of(padded)) == 3
    (down, across), (tall, wide) = tiles.sides, (side.matrices for side in tiles.sides)
    shape = (high, long, *tiles.images, tiles.count)

    def given(at: At, c: Expr, i: int, j: Expr) -> Expr:
        *images, p = at
        row, column = tiles.place(p)
        place = (row * down.pitch + i, column * across.pitch + j)
        return padded[(*images, c, *place[: 1 if line else 2])].astype(kind)

    def rows_at(a: Expr, j: Expr, *at: Expr) -> Expr:
        return _chosen(a, tall.input, lambda r: _halves(r, down.stride, lambda i: given(at[:-1], at[-1], i, j)))

    def taken_at(a: Expr, b: Expr, *at: Expr) -> Expr:
        return _chosen(b, wide.input, lambda r: _halves(r, across.stride, lambda j: rows[(a, j, *at)]))

    k = te.reduce_axis(channels, "ci")

    def sums_at(a: Expr, b: Expr, *at: Expr) -> Any:
        return te.sum(taken[(a, b, *at[:-1], k.var)] * u[a, b, k.var, at[-1]].astype(kind), axis=k)

    def back_at(i: Expr, b: Expr, *at: Expr) -> Expr:
        return _chosen(i, tall.output, lambda r: _pairs(r, tall.phases, lambda a: sums[(a, b, *at)]))

    rows = te.stage((*shape, channels), rows_at, name=ROWS)
    taken = te.stage((*shape, channels), taken_at, name=TAKEN)
    sums = te.stage((*shape, features), sums_at, name=SUMS)
    return te.stage((down.tile, *shape[1:], features), back_at, name=BACK)


def _uneven(x: te.Tensor, tiles: _Tiles, pads: Pads, out: Sequence[Dim]) -> te.Tensor:
    """1 for each tile that is computed directly, else 0."""
    batch, channels, *spatial = dims_of(x)
    kind, sides = accumulator(str(x.dtype)), zip([*spatial, 1], tiles.sides, pads, [*out[2:], 1])
    tall, wide = (_Blocks(n, a, size, side) for n, side, (a, _), size in sides)
    axes = [te.reduce_axis(n, name) for n, name in ((channels, "ci"), (tall.step, "dy"), (wide.step, "dx"))]
    c, dy, dx = (axis.var for axis in axes)
    bits = BITS[kind]

    def magnitude(n: Expr, y: Expr, z: Expr) -> Any:
        (row, inside), (column, across) = tall.place(y, dy), wide.place(z, dx)
        value: Expr = x[(n, c, row, column)[: 2 + len(spatial)]]
        tests = [*inside, *across]
        value = te.if_then_else(te.all(*tests), value, te.const(0, x.dtype)) if tests else value
        return te.max(te.reinterpret(te.abs(value.astype(kind)), bits), axis=axes)

    peaks = te.stage((batch, tall.count, wide.count), magnitude, name=PEAKS)

    def joined(function: Callable[[Any, Any], Any], n: Expr, rows: Sequence[Expr], columns: Sequence[Expr]) -> Expr:
        values: list[Any] = [peaks[n, y, z] for y in rows for z in columns]
        return te.reinterpret(reduce(function, values), kind)

    def body(*at: Expr) -> Expr:
        *images, p = at
        n, (top, left) = images[0], tiles.first(images)
        row, column = (place + start for place, start in zip(tiles.place(p), (top, left)))
        rows = [tall.around(row, j) for j in range(tall.reach)]
        columns = [wide.around(column, j) for j in range(wide.reach)]
        around = joined(te.maximum, n, rows, columns)
        rows = [tall.inside(row, j) for j in range(tall.half)]
        columns = [wide.inside(column, j) for j in range(wide.half)]
        least = joined(te.minimum, n, rows, columns)
        even = around <= te.minimum(least * te.const(MOST_SPREAD, kind), te.const(MOST, kind))
        return te.select(even, te.const(0, "int32"), te.const(1, "int32"))

    return te.stage((*tiles.images, tiles.count), body, name=UNEVEN)


def _direct(x: te.Tensor, w: te.Tensor, uneven: te.Tensor, pads: Pads, out: Sequence[Dim], tiles: _Tiles) -> te.Tensor:
    """The plain convolution where a tile is uneven; 0 elsewhere."""
    down, across, channels, _ = sizes_of(w)
    kind = accumulator(str(x.dtype))
    axes = [te.reduce_axis(n, name) for n, name in ((channels, "ci"), (down, "kh"), (across, "kw"))]
    c, *taps = (axis.var for axis in axes)

    def body(n: Expr, co: Expr, *at: Expr) -> Any:
        sides = zip(at, tiles.sides, taps, pads)
        read = [place * side.stride + tap - before for place, side, tap, (before, _) in sides]
        product = _element(x, (n, c, *read)).astype(kind) * w[(*taps, c, co)].astype(kind)
        return te.sum(product, axis=axes, where=uneven[tiles.of(n, *_place(at))] > 0)

    return te.stage(out, body, name=DIRECT)


def _element(x: te.Tensor, at: tuple[Expr, ...]) -> Expr:
    """An element of an image; 0 outside of it."""
    inside = [test for i, size in zip(at[2:], dims_of(x)[2:]) for test in (i >= 0, i < size)]
    return te.if_then_else(te.all(*inside), x[at], te.const(0, x.dtype))


def _compute(c: Compute, x: te.Tensor, u: te.Tensor, w: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor | None:
    strip, taps = [int(n) for n in c.get("strip") or ()], sizes_of(w)[:2]
    pads = _padding(c, len(dims_of(x)), taps)
    return finish(c, winograd_tensors(x, u, w, _sides(c, taps), pads, c.out_dims(), strip), bias)


register(
    NAME,
    _infer,
    _evaluate,
    _compute,
    "complex",
    domain=DOMAIN,
    takes="X:float[n c *s], U:float[_ _ c m], W:float[_ _ c m], B:float[m]?",
    traits="bordered",
)

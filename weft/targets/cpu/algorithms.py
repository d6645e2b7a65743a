"""Which algorithm for a convolution: direct, or Winograd's with tiles of 2 or 4, by counting.

Cycles of a core, from the facts about the machine:

    products      multiply-adds, two vectors of them a cycle
    transforms    for each vector of a tile, before and after the products, and for each term of the transforms' sums
    weights       bytes that do not stay in the second-level cache, streamed from behind it once a call
    images        as they come and go; by Winograd's method twice, since tiles are looked at before they are computed

Products and transforms overlap with the stream of weights only in part, and with images that Winograd's method finds in
memory not at all. Its sums are less exact, the more so the larger the tile: the error is measured for the very weight,
on random data, on data with a large mean and on data with an element as large as a tile may have, and a tile that would
miss the bound is not offered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.expr.nodes import Var
from weft.graph.ir import Array, Dim, Node, TensorType
from weft.graph.opspec import Use
from weft.graph.passes.algorithms import Alternative, is_measured
from weft.graph.shapes import typical
from weft.ops import convolution_winograd as winograd
from weft.ops.attention_fused import Sizes
from weft.ops.convolution import convolve_arrays
from weft.ops.convolution_window import Pads, Window
from weft.ops.convolution_winograd import DOMAIN, MOST_SPREAD, NAME, direct_weight, transform_weight
from weft.ops.fixed_weights import fix, may_fix
from weft.targets.base import Target
from weft.targets.cpu import amx, model
from weft.targets.cpu.machine import core_of
from weft.targets.cpu.microkernels import dots
from weft.targets.cpu.sketches.attention import factors, padded
from weft.targets.cpu.sketches.few_bits import panel
from weft.targets.cpu.sketches.winograd import register_share

MOST_WEIGHT = 2.0**32
"""With larger weights sums could overflow that are finite in a direct convolution: an even tile's elements are below
2⁶⁴, the transforms make them at most 2¹⁵ times as large, and there are fewer than 2¹⁵ channels."""


@dataclass(frozen=True)
class Convolution:
    """The sizes of a convolution: `height` × `width` elements of the output, a line as one column."""

    batch: int
    inputs: int
    outputs: int
    height: int
    width: int
    model_bytes: int = 0
    """All weights of the model that it is a part of: what a call touches before it comes to this weight again."""
    taps: tuple[int, ...] = (3, 3)
    strides: tuple[int, ...] = (1, 1)
    gaps: tuple[int, ...] = (1, 1)
    """A window with gaps has none over every so manieth row and column: each such phase is an image of its own."""

    @property
    def elements(self) -> int:
        """The elements of a channel of the output."""
        return self.batch * self.height * self.width

    @property
    def beside(self) -> float:
        """The part of the products of a window with gaps that meets an image as large as the output, not zeros
        around it."""
        sides = zip((self.height, self.width), self.taps, self.gaps)
        return math.prod(
            sum(max(0, n - gap * abs(at - taps // 2)) for at in range(taps)) / (n * taps)
            for n, taps, gap in sides
            if gap > 1
        )

    def passed(self, reads: int = 1) -> int:
        """The bytes of the images, the input read so many times."""
        return 4 * self.elements * (reads * math.prod(self.strides) * self.inputs + self.outputs)

    def transforms(self, tile: int) -> float:
        """Cycles of a tile's transforms, there and back, where a vector is one channel."""
        down, across = winograd.sides_of(tile, self.taps, self.strides)
        given = winograd.terms(down.matrices.input) * across.size + winograd.terms(across.matrices.input) * down.size
        made = winograd.terms(down.matrices.output) * across.size + winograd.terms(across.matrices.output) * down.tile
        moved = model.TRANSFORM_CYCLES * down.size * across.size * (self.inputs + self.outputs)
        return moved + model.TERM_CYCLES * (given * self.inputs + made * self.outputs)

    def tiles(self, tile: int) -> tuple[int, int]:
        """Tiles of all images, and the products that each takes for a pair of channels."""
        sides = winograd.sides_of(tile, self.taps, self.strides)
        places = zip((self.height, self.width), self.gaps, sides)
        count = math.prod(gap * -(-n // (gap * side.tile)) for n, gap, side in places)
        return self.batch * count, math.prod(side.size for side in sides)


def proposer(
    target: Target, model_bytes: int = 0, sizes: Mapping[Var, int] | None = None
) -> Callable[[Node, Array], Sequence[Alternative]]:
    """What `choose_algorithms` asks, for one machine, a model with so many bytes of weights, and typical open sizes."""
    return lambda node, weight: alternatives(node, weight, target, model_bytes, sizes)


def attention_proposer(target: Target) -> Callable[[Sequence[int], str], Sequence[int] | None]:
    """What `fuse_attention` asks, for one machine."""
    lanes = target.vector_bytes // 4

    def propose(sizes: Sequence[int], dtype: str) -> Sequence[int] | None:
        found = Sizes(*map(abs, sizes))
        if lanes < 4 or found.queries < model.LEAST_QUERIES or found.keys < lanes or found.size < 4:
            return None
        return padded(found, target, dtype) if min(sizes) > 0 else factors(Sizes(*sizes), target, dtype)

    return propose


def panel_proposer(target: Target) -> Callable[[int, int], tuple[str, int] | None]:
    """What `few_bits` asks: of many rows floats are multiplied faster than three digits, once weights are unpacked."""
    return lambda rows, columns: panel(target, columns) if rows <= model.MOST_DIGIT_ROWS else None


def dotted_channels(target: Target) -> Mapping[tuple[str, str], int]:
    """What `fill_rows` asks: dot products take whole groups of channels; tiles are filled up in registers."""
    if amx.available(target):
        return {}
    found = {kind: dots((kind, "int8", "int32"), target) for kind in ("uint8", "int8")}
    return {("ConvInteger", kind): dot.group for kind, dot in found.items() if dot is not None}


def multiplies_signed(target: Target) -> bool:
    """What `signed_data` asks."""
    mixed, signed = (dots((kind, "int8", "int32"), target) for kind in ("uint8", "int8"))
    return mixed is None and signed is not None


def waits_for_weights(target: Target) -> Callable[[int, int], bool]:
    """What `narrow_weights` asks: few rows, and a weight from behind the second-level cache."""
    cache = target.cache_bytes[1]
    return lambda rows, size: rows <= model.MOST_WAITING_ROWS and size > cache // 2


def merger(target: Target) -> Callable[[int, int, Sequence[int], bool], bool]:
    """What `merge_products` asks: a kernel less is a meeting of the threads less, if none takes an epilogue's place."""
    return lambda rows, inner, columns, epilogues: not epilogues


def weight_fixer(target: Target) -> Callable[[Array, int], tuple[Array, Array, Array] | None]:
    """What `fix_weights` asks: few rows wait for weights from behind the second-level cache, if vectors are long enough
    to put the numbers together meanwhile."""
    far = waits_for_weights(target)

    def propose(weight: Array, rows: int) -> tuple[Array, Array, Array] | None:
        waits = target.vector_bytes >= model.LONG_VECTOR and far(rows, weight.nbytes // math.prod(weight.shape[:-2]))
        return fix(weight) if waits and may_fix(weight) else None

    return propose


def alternatives(
    node: Node, weight: Array, target: Target, model_bytes: int = 0, sizes: Mapping[Var, int] | None = None
) -> list[Alternative]:
    """The algorithms for a node that beat the direct one and are exact enough, the best first; then other exact ones,
    for who measures them."""
    found = convolution_of(node, TensorType(str(weight.dtype), weight.shape), model_bytes, sizes)
    if found is None:
        return []
    facts, pads = found
    direct = direct_cycles(facts, target)
    attributes: dict[str, Any] = {"pads": [pair[end] for end in (0, 1) for pair in pads]}
    gaps = facts.gaps[: weight.ndim - 2] if max(facts.gaps) > 1 else ()
    if max(facts.strides) > 1:
        attributes["strides"] = [*facts.strides[: weight.ndim - 2]]
    is_open = node.inputs[0] is not None and any(not isinstance(n, int) for n in node.inputs[0].tensor.dims[2:])
    made, good = [], ranked_tiles(facts, target, is_open)
    unlikely = is_measured(node.outputs[0].name) and _takes_tiles(facts, target)
    rest = tiles_for(facts.taps, facts.strides) if unlikely else ()
    for tile in dict.fromkeys([*good, *rest]):
        if error_of(weight, tile, facts.strides) > model.MOST_ERROR:
            continue
        extra = facts.tiles(tile)[1] * weight.nbytes // math.prod(facts.taps)  # the weight itself stays
        saved = direct - winograd_cycles(facts, tile, target) if tile in good else 0.0
        if is_open:
            attributes["strip"] = strip_of(facts, node.outputs[0].tensor.dims[2:], tile)
        weights = _transformer(weight, tile, facts.strides)
        made.append(Alternative(NAME, DOMAIN, {**attributes, "tile": tile}, weights, saved, extra, gaps))
    return made


def strip_of(facts: Convolution, dims: Sequence[Dim], tile: int) -> list[int]:
    """Tiles down or across of a strip of an image of open size, 0 for the side along which it is open: of two the
    width, whose elements are neighbours in memory. Of strips around the typical size the last is computed as a whole,
    and what two of them read in common is copied for both: as many tiles as make that least."""
    typical = [-(-n // tile) for n in (facts.height, facts.width)]
    along = int(not isinstance(dims[1], int))
    other, side = 1 - along, winograd.sides_of(tile, facts.taps, facts.strides)[1 - along]
    sizes = [typical[other]]
    if not isinstance(dims[other], int):
        sizes = [-(-n // tile) for n in model.open_sizes((facts.height, facts.width)[other])]
    pair, transforms = facts.tiles(tile)[1] * facts.inputs * facts.outputs / 2, facts.transforms(tile)

    def cycles(count: int) -> float:
        filled = sum(-(-n // count) * count for n in sizes) / sum(sizes)
        copied = model.TRANSFORM_CYCLES * facts.inputs * side.reach(count) * side.pitch / count
        return float(filled * (pair + transforms + copied))

    best = min(range(1, min(max(sizes), model.OPEN_TILES) + 1), key=cycles)
    return [best, 0] if along else [0, best]


def _transformer(weight: Array, tile: int, strides: Sequence[int]) -> Callable[[], Sequence[Array]]:
    return lambda: (transform_weight(weight, tile, strides), direct_weight(weight))


def convolution_of(
    node: Node, weight: TensorType, model_bytes: int, sizes: Mapping[Var, int] | None = None
) -> tuple[Convolution, Pads] | None:
    """The sizes of a convolution that Winograd's method can take, and its padding; None for another one."""
    first = node.inputs[0]
    if first is None or not isinstance(first.type, TensorType) or first.type.shape is None:
        return None
    taps, is_open = weight.static[2:], any(not isinstance(n, int) for n in first.type.dims[2:])
    if {weight.dtype, first.type.dtype} != {"float32"} or (is_open and taps != (3, 3)):
        return None
    window = Window(Use(node), taps)
    if int(node.attributes.get("group", 1)) != 1 or not tiles_for(taps, window.strides):
        return None
    gaps, pads = window.dilations, window.padding(first.type.dims[2:])
    batch, inputs, *spatial = typical(first.type.dims, sizes)
    if any(not 0 <= p <= g * (r - 1) // 2 or p % g for r, g, pair in zip(taps, gaps, pads) for p in pair):
        return None
    if max(gaps) > 1 and (is_open or max(window.strides) > 1):
        return None
    if any(_ends_in_zeros(n, r, g, before // g) for n, r, g, (before, _) in zip(spatial, taps, gaps, pads)):
        return None
    sides = zip(spatial, window.extents, window.strides, pads)
    height, width = [*((n + a + b - r) // s + 1 for n, r, s, (a, b) in sides), 1][:2]
    lines = ((*taps, 1)[:2], (*window.strides, 1)[:2], (*gaps, 1)[:2])
    pads = tuple((a // g, b // g) for g, (a, b) in zip(gaps, pads))
    return Convolution(batch, inputs, weight.static[0], height, width, model_bytes, *lines), pads


def _ends_in_zeros(size: int, taps: int, gap: int, before: int) -> bool:
    """Whether some phases of a side end with a row of zeros that makes tiles uneven: a block of it alone."""
    return size % gap > 0 and (taps != 3 or (-(-size // gap) + before) % 2 == 0)


def tiles_for(taps: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The tiles that are considered for a window: none where its sides are not of one tap or a few, it moves by more
    than 2, or an image is a volume. A larger tile is less exact by the inputs of a phase, whatever the window."""
    known = all(n % 2 and s in ((1, 2) if n > 1 else (1,)) for n, s in zip(taps, strides))
    if len(taps) not in (1, 2) or max(taps) == 1 or not known:
        return ()
    tiles, most = model.WINOGRAD_TILES[sum(n > 1 for n in taps) - 1]
    return tuple(m for m in tiles if m + max(-(-n // s) for n, s in zip(taps, strides)) - 1 <= most)


# ------------------------------------------------------------------------------------------------------------- counting


def ranked_tiles(facts: Convolution, target: Target, is_open: bool = False) -> list[int]:
    """The tiles that save enough, the best first; images of open size are computed in strips."""
    if not _takes_tiles(facts, target):
        return []
    most = (1 - model.LEAST_SAVED) * direct_cycles(facts, target) / (model.IN_STRIPS if is_open else 1)
    times = {tile: winograd_cycles(facts, tile, target) for tile in tiles_for(facts.taps, facts.strides)}
    good = [tile for tile in times if times[tile] <= most]
    for tile in good[1:]:
        if times[tile] * model.AS_GOOD < times[good[0]]:
            good.insert(0, good.pop(good.index(tile)))
    return good


def _takes_tiles(facts: Convolution, target: Target) -> bool:
    lanes = target.vector_bytes // 4
    in_lanes = lanes >= 4 and not facts.inputs % lanes and not facts.outputs % lanes
    return in_lanes and all(n >= 2 for n, taps in zip((facts.height, facts.width), facts.taps) if taps > 1)


def direct_cycles(facts: Convolution, target: Target) -> float:
    """A direct convolution."""
    weights = math.prod(facts.taps) * facts.inputs * facts.outputs
    products = weights * facts.elements * facts.beside
    return _cycles(products, model.DIRECT_SHARE, 0, weights, facts.model_bytes, target, facts.passed())


def winograd_cycles(facts: Convolution, tile: int, target: Target) -> float:
    """Winograd's, by tiles of tile × tile."""
    tiles, vectors = facts.tiles(tile)
    products = vectors * tiles * facts.inputs * facts.outputs
    phases = math.prod(facts.gaps)
    filled = register_share(tiles // phases, facts.outputs * 4 // max(target.vector_bytes, 4), target.vector_registers)
    weights: float = vectors * facts.inputs * facts.outputs
    share, passed = model.PRODUCT_SHARE * filled, facts.passed(2)
    transforms = tiles * facts.transforms(tile)
    is_far = passed > min(model.IMAGE_SHARE * target.cache_bytes[2], model.MOST_IMAGE)
    copies = passed / core_of(target).memory if is_far else 0.0
    if phases > 1:  # each of them reads the weights again
        if 4 * weights > target.cache_bytes[1]:
            weights *= 1 + (phases * facts.batch - 1) * model.STREAM_BYTES / model.AGAIN_BYTES
        copies += 2 * facts.passed() / model.PHASE_BYTES
    return copies + _cycles(products, share, transforms, weights, facts.model_bytes, target, 0 if is_far else passed)


def _cycles(
    products: float, share: float, transforms: float, weights: float, model_bytes: int, target: Target, passed: int = 0
) -> float:
    lanes = max(target.vector_bytes // 4, 1)
    computing = products / (2 * lanes) / share + transforms / lanes
    streaming = 4 * weights / model.STREAM_BYTES if 2 * max(4 * weights, model_bytes) > target.cache_bytes[1] else 0.0
    return float(model.overlapped(computing, streaming + passed / model.bytes_a_cycle(passed, target)))


# ------------------------------------------------------------------------------------------------------------ exactness


def error_of(weight: Array, tile: int, strides: Sequence[int] = (1, 1)) -> float:
    """The error of Winograd's sums in float32 for a weight, relative to the scale of the output; infinite if it fails.

    On a few tiles, on some of the output channels (those with the largest and the smallest weights among them): on
    random data, on data with a large mean, and beside an element as large as a tile may have (there the outputs count
    that do not read it, and all of a model's error is allowed).
    """
    weight = weight.reshape(*weight.shape, *[1] * (4 - weight.ndim))
    largest = np.maximum(weight.max(axis=(1, 2, 3), initial=0.0), -weight.min(axis=(1, 2, 3), initial=0.0))
    order = np.argsort(largest, kind="stable")
    half = model.SAMPLE_OUTPUTS // 2
    chosen = order if len(order) <= model.SAMPLE_OUTPUTS else np.concatenate([order[:half], order[-half:]])
    sample = weight[chosen]
    with np.errstate(all="ignore"):
        transformed = transform_weight(sample, tile, strides)
        if not (np.isfinite(transformed).all() and largest.max(initial=0.0) <= MOST_WEIGHT):
            return np.inf
        random = np.random.default_rng(0)
        sides = winograd.sides_of(tile, weight.shape[2:], strides)
        sizes = [side.reach(min(side.tile, 2)) for side in sides]
        plain = random.standard_normal((1, weight.shape[1], *sizes)).astype(np.float32)
        pair = tuple(min(n, 2) for n in sizes)
        blocks = np.lib.stride_tricks.sliding_window_view(np.abs(plain).max(axis=(0, 1)), pair)
        at = [side.pitch // 2 - 1 if side.taps > 1 else 0 for side in sides]
        beside = plain.copy()
        beside[0, 0, at[0], at[1]] = MOST_SPREAD * blocks.max(axis=(2, 3)).min()
        x = np.concatenate([plain, plain + np.float32(2), beside])
        window = Window(Use(Node("Conv", [], [], {"strides": [side.stride for side in sides]})), weight.shape[2:])
        exact = convolve_arrays(x.astype(np.float64), sample.astype(np.float64), window, 1)
        made = winograd.winograd_arrays(x, transformed, sides)
        rows, columns = (place // side.stride + 1 if side.taps > 1 else 0 for place, side in zip(at, sides))
        behind = (rows, 0 if rows else columns)  # a place along a side that windows move along
        errors = [_error(made[n, :, r:, c:], exact[n, :, r:, c:]) for n, (r, c) in enumerate(((0, 0), (0, 0), behind))]
    return max(*errors[:2], errors[2] * model.MOST_ERROR / model.MOST_MODEL_ERROR)


def _error(made: Array, exact: Array) -> float:
    """The error relative to the largest output of a channel."""
    scale = np.abs(exact).max(axis=(1, 2))
    error = np.abs(made - exact).max(axis=(1, 2))
    if not np.isfinite(error).all():
        return float(np.inf)
    return float(np.max(np.divide(error, scale, out=np.where(error > 0, np.inf, 0.0), where=scale > 0), initial=0.0))

"""Differences that are no faults, each as narrow as it can be said, with the reason.

`explain(graph, feeds, got, want, peer)` gives the reason why an answer may differ from another one, or None. `peer`
says that the other one is ONNX Runtime's; without it, it is the numpy meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.compare import difference, tolerance
from weft.core.errors import WeftError
from weft.graph.interpreter import interpret_graph, operator_of
from weft.graph.ir import Graph

SUMS = frozenset(
    "MatMul Gemm Conv ConvTranspose ReduceSum ReduceMean AveragePool GlobalAveragePool CumSum Einsum Sum Mean".split()
)
"""Operators whose result is a sum of products of their inputs: their value at |inputs| bounds every partial sum."""
TRANSFORMS = frozenset(("DFT", "STFT"))
INTERPOLATIONS = frozenset("GridSample Resize RoiAlign Upsample AffineGrid".split())
POOLS = frozenset(("MaxPool", "AveragePool", "LpPool"))
NORMALIZATIONS = frozenset(("GroupNormalization", "InstanceNormalization", "LayerNormalization"))
CASTS = frozenset(("Cast", "CastLike"))
WAVES = frozenset("BlackmanWindow HannWindow HammingWindow Sin Cos MelWeightMatrix".split())


@dataclass(frozen=True)
class Difference:
    """Two answers of a graph to the same arrays."""

    graph: Graph
    feeds: Mapping[str, Any]
    got: Sequence[Any]
    want: Sequence[Any]
    peer: bool

    @property
    def operators(self) -> set[str]:
        """The operators of the graph."""
        return {node.op for node in self.graph.nodes}

    def floats(self) -> list[np.ndarray]:
        """The inputs and constants that are floats."""
        arrays = [*self.feeds.values(), *self.graph.constants.values()]
        return [a for a in arrays if isinstance(a, np.ndarray) and a.size and a.dtype.kind not in "biuOUSM"]

    def inputs(self) -> list[Any]:
        """The arrays that the graph's first node reads; None for an input that is left out."""
        known = {**{value.name: array for value, array in self.graph.constants.items()}, **self.feeds}
        return [None if value is None else known.get(value.name) for value in self.graph.nodes[0].inputs]

    def pairs(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The outputs that differ, if all of them are floats of one shape and type; else none."""
        found = []
        for mine, theirs in zip(self.got, self.want):
            if difference(mine, theirs) is None:
                continue
            if not isinstance(mine, np.ndarray) or not isinstance(theirs, np.ndarray):
                return []
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype or mine.dtype.kind in "biuOUS":
                return []
            found.append((mine.astype(np.float64), theirs.astype(np.float64)))
        return found


def _largest(arrays: Sequence[np.ndarray]) -> float:
    """The largest magnitude; infinite where there is a NaN."""
    with np.errstate(all="ignore"):
        wide = [np.abs(array.astype(np.complex128)) for array in arrays]
        return max((float(np.where(np.isnan(one), np.inf, one).max()) for one in wide), default=0.0)


def another_order(d: Difference) -> bool:
    """A sum in another order: within the forward error of its terms, which the operator at |inputs| adds up.

    Where that sum is beyond the type's range the order decides whether a partial sum overflows, so that such elements
    may be infinite or NaN. An element whose own terms are all small gains nothing by this.
    """
    if not d.operators <= SUMS or len(d.graph.nodes) != 1:
        return False
    graph = d.graph.replace(constants={v: _absolute(a) for v, a in d.graph.constants.items()})
    try:
        bounds = interpret_graph(graph, {name: _absolute(a) for name, a in d.feeds.items()})
    except WeftError:
        return False
    for mine, theirs, bound in zip(d.got, d.want, bounds):
        if difference(mine, theirs) is None:
            continue
        if not isinstance(mine, np.ndarray) or mine.dtype.kind in "biuOUS":
            return False
        if not mine.shape == np.shape(theirs) == bound.shape:
            return False
        a, b, most = (one.astype(np.float64) for one in (mine, theirs, bound))
        limit = float(
            np.finfo(np.float32).max if mine.dtype.itemsize == 4 else 6e4 if mine.dtype.itemsize == 2 else 1e308
        )
        overflows = ~np.isfinite(most) | (most > limit / 8)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        if not bool((same | overflows | (np.abs(a - b) <= 8 * tolerance(mine.dtype) * most)).all()):
            return False
    return True


def _absolute(array: Any) -> Any:
    return np.abs(array) if isinstance(array, np.ndarray) and array.dtype.kind in "fV" else array


def transform_of_extremes(d: Difference) -> bool:
    """The numpy meaning of DFT and STFT is a fast transform, the kernel's a sum: an infinite, NaN or huge input reaches
    other outputs of its row in the one than in the other, and the outputs' own size is no measure of the rounding."""
    return d.operators <= TRANSFORMS and bool(d.pairs()) and _largest(d.floats()) > 1e6


def transform_rounding(d: Difference) -> bool:
    """A Fourier transform rounds relatively to the largest input, not to an output that cancels to nothing."""
    scale = 1e-5 * max(1.0, _largest(d.floats())) * 64
    return d.operators <= TRANSFORMS and bool(d.pairs()) and all(np.abs(a - b).max() <= scale for a, b in d.pairs())


def zero_times_infinity(d: Difference) -> bool:
    """An interpolation of an infinite or NaN neighbour with the weight 0 is NaN where it is multiplied, and left out
    where it is not looked at: both are non-finite or see the neighbour; finite images are not excused."""
    if not d.operators <= INTERPOLATIONS or np.isfinite(_largest(d.floats())):
        return False
    pairs = d.pairs()
    with np.errstate(all="ignore"):
        scales = [3e-3 * np.abs(b[np.isfinite(b)]).max(initial=0.0) for _, b in pairs]
        unlike = [
            ~((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= scale)) for (a, b), scale in zip(pairs, scales)
        ]
    return bool(pairs) and all(
        bool((~np.isfinite(b[u]) | ~np.isfinite(a[u])).all()) for (a, b), u in zip(pairs, unlike)
    )


def far_coordinates(d: Difference) -> bool:
    """ONNX Runtime makes whole numbers of coordinates that no 32-bit number holds, which C leaves undefined."""
    return d.peer and d.operators <= INTERPOLATIONS and _largest(d.floats()) > 1e6


def peer_overflows(d: Difference) -> bool:
    """ONNX Runtime multiplies in another order and overflows on the way: it is infinite or NaN wherever the two differ,
    and there Weft is finite and what float64 gives."""
    if not d.peer or len(d.graph.nodes) != 1 or not d.pairs():
        return False
    (node,), arrays = d.graph.nodes, d.inputs()
    wide = [a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a for a in arrays]
    try:
        exact = operator_of(node).run(node, wide)
    except WeftError:
        return False
    for mine, theirs, truth in zip(d.got, d.want, exact):
        unlike = ~np.isfinite(theirs) & (mine != theirs) & ~(np.isnan(mine) & np.isnan(theirs))
        close = np.abs(mine[unlike] - truth[unlike]) <= 1e-5 * np.abs(truth[unlike])
        if not np.isfinite(mine[unlike]).all() or not close.all() or difference(mine[~unlike], theirs[~unlike], 8):
            return False
    return True


def wave_near_zero(d: Difference) -> bool:
    """Cosines and windows are rounded relatively to 1, not to a value that happens to be nearly zero."""
    return d.operators <= WAVES and bool(d.pairs()) and all(np.abs(a - b).max() <= 1e-6 for a, b in d.pairs())


def nan_in_a_window(d: Difference) -> bool:
    """What is the largest of a window with a NaN is nowhere said: Weft says NaN, ONNX Runtime what its order of
    comparisons comes to, and ONNX's reference leaves the NaN out. Windows without one are not excused."""
    if (
        not d.peer
        or not d.operators <= {"MaxPool", "GlobalMaxPool"}
        or len(d.graph.nodes) != 1
        or len(d.got) != len(d.want)
    ):
        return False
    (node,), (image,) = d.graph.nodes, d.floats()
    seen = np.asarray(operator_of(node).run(node, [np.isnan(image).astype(np.float32)])[0]) > 0
    return all(
        np.shape(a) == np.shape(b) == seen.shape and difference(a[~seen], b[~seen], 8) is None
        for a, b in zip(d.got, d.want)
    )


def padded_without_dilations(d: Difference) -> bool:
    """ONNX says that SAME padding makes as many windows as there are strides in the input. ONNX Runtime's pooling
    computes that padding as if there were no dilations; with just this padding written out, Weft agrees with it."""
    if not d.peer or not d.operators <= POOLS or len(d.graph.nodes) != 1 or len(d.floats()) != 1:
        return False
    (node,), (image,) = d.graph.nodes, d.floats()
    rule, dilations = str(node.attributes.get("auto_pad", "")), node.attributes.get("dilations") or []
    if not rule.startswith("SAME") or max(dilations, default=1) < 2:
        return False
    kernel = node.attributes["kernel_shape"]
    strides = node.attributes.get("strides") or [1] * len(kernel)
    needed = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(image.shape[2:], strides, kernel)]
    less, more = [n // 2 for n in needed], [n - n // 2 for n in needed]
    pads = less + more if rule == "SAME_UPPER" else more + less
    written = node.replace(attributes={**node.attributes, "auto_pad": "NOTSET", "pads": pads})
    return difference(list(operator_of(written).run(written, [image])), list(d.want), 8) is None


def square_overflows(d: Difference) -> bool:
    """A normalization of values whose squares overflow: by the formula of ONNX the variance is infinite and the values
    become 0 before the bias; ONNX Runtime subtracts two infinities. Samples of smaller values are not excused."""
    if not d.peer or not d.operators <= NORMALIZATIONS or not d.pairs():
        return False
    image = d.inputs()[0]
    for mine, theirs in d.pairs():
        unlike = np.isnan(theirs) & ~np.isnan(mine)
        if mine.shape != image.shape or difference(*(one[~unlike].astype(image.dtype) for one in (mine, theirs)), 8):
            return False
        if any(np.abs(image[at].astype(np.float64)).max() < 1e19 for at in np.argwhere(unlike)[:, 0]):
            return False
    return True


def rounded_as_its_input(d: Difference) -> bool:
    """RMSNormalization of float32 by a scale of float64: the answer has the type of the scale, and the rounding of the
    type that ONNX normalizes in, float32."""
    if d.peer or d.operators != {"RMSNormalization"} or len(d.graph.nodes) != 1 or d.got[0].dtype != np.float64:
        return False
    return (
        d.inputs()[0].dtype != np.float64
        and difference(*(one[0].astype(np.float32) for one in (d.got, d.want))) is None
    )


def whole_number_of_no_number(d: Difference) -> bool:
    """A cast of NaN, or of a float beyond the range of an integer, is undefined: all other elements must be equal. An
    integer to the power of a float ends with such a cast."""
    if not d.peer or not d.operators <= CASTS | {"Pow"} or len(d.graph.nodes) != 1 or len(d.floats()) != 1:
        return False
    (values,), got, want = d.floats(), np.asarray(d.got[0]), np.asarray(d.want[0])
    if d.operators == {"Pow"}:
        values = np.power(*(np.asarray(one).astype(np.float64) for one in d.inputs()))
    if not got.shape == want.shape == values.shape or got.dtype != want.dtype or got.dtype.kind not in "iu":
        return False
    wide, limits = values.astype(np.float64), np.iinfo(got.dtype)
    fits = (wide > float(limits.min) - 1) & (wide < float(limits.max) + 1)
    return bool((got == want)[fits].all())


def codes_of_an_infinite_range(d: Difference) -> bool:
    """DynamicQuantizeLinear of infinities or NaN: the range has no size, and what code a NaN becomes is undefined."""
    return d.peer and d.operators == {"DynamicQuantizeLinear"} and not np.isfinite(_largest(d.floats()))


def rows_of_no_turn(d: Difference) -> bool:
    """A loop without a turn stacks nothing: the other sizes of this nothing are those that the body's types say, and
    ONNX Runtime believes types that the model declares for values between."""
    return (
        d.peer
        and d.operators <= {"Loop", "Scan"}
        and len(d.got) == len(d.want)
        and all(
            difference(a, b) is None
            or (np.size(a) == np.size(b) == 0 and np.ndim(a) == np.ndim(b) and len(a) == len(b))
            for a, b in zip(d.got, d.want)
        )
    )


def no_score_to_share(d: Difference) -> bool:
    """Attention of a query whose every visible score is minus infinity: zeros by ONNX's convention, which the reference
    keeps unless a hidden key is no number. ONNX Runtime hides keys by the lowest float, and shares them all alike."""
    if not d.peer or d.operators != {"Attention"} or len(d.graph.nodes) != 1 or len(d.got) != 1:
        return False
    (node,) = d.graph.nodes
    shown = node.replace(outputs=node.outputs * 4, attributes={**node.attributes, "qk_matmul_output_mode": 2})
    scores = operator_of(shown).run(shown, d.inputs())[3]
    empty = np.isneginf(scores.max(axis=-1, initial=-np.inf))  # batch, heads, queries
    mine, theirs = (np.asarray(one[0]) for one in (d.got, d.want))
    if mine.shape != theirs.shape:
        return False
    if mine.ndim == 3:  # packed: each head is a stretch of the last axis
        empty = np.repeat(empty.swapaxes(1, 2), mine.shape[2] // empty.shape[1], axis=2)
    return not mine[empty].any() and difference(mine[~empty], theirs[~empty], 8) is None


def intermediate_overflows(d: Difference) -> bool:
    """Inputs whose squares or products leave the type's range: whether a step on the way overflows depends on the order
    of the steps and on fused multiply-adds. Elements that are finite on both sides must agree."""
    pairs = d.pairs()
    if d.peer or not pairs or not 1e18 < _largest(d.floats()):
        return False
    finite = [np.isfinite(a) & np.isfinite(b) for a, b in pairs]
    return all(difference(a[f], b[f], 8e4) is None for (a, b), f in zip(pairs, finite))


RULES: dict[str, Callable[[Difference], bool]] = {
    "a sum in another order": another_order,
    "a transform of extreme values": transform_of_extremes,
    "a transform rounds by its largest input": transform_rounding,
    "zero times infinity in an interpolation": zero_times_infinity,
    "coordinates that the peer cannot convert": far_coordinates,
    "a wave near zero": wave_near_zero,
    "the peer overflows on the way": peer_overflows,
    "a step on the way overflows": intermediate_overflows,
    "a window with a NaN": nan_in_a_window,
    "the peer pads without the dilations": padded_without_dilations,
    "the square of a value overflows": square_overflows,
    "the rounding of a narrower input": rounded_as_its_input,
    "an integer of what is none": whole_number_of_no_number,
    "codes of an infinite range": codes_of_an_infinite_range,
    "the sizes of rows that nobody made": rows_of_no_turn,
    "a query that no key answers": no_score_to_share,
}


def explain(graph: Graph, feeds: Mapping[str, Any], got: Any, want: Any, peer: bool) -> str | None:
    """The name of the rule that a difference falls under; None where there is none."""
    found = Difference(graph, feeds, got, want, peer)
    with np.errstate(all="ignore"):
        return next((name for name, rule in RULES.items() if rule(found)), None)

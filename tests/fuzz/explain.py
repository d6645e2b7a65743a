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
        if not isinstance(mine, np.ndarray) or mine.dtype.kind in "biuOUS" or mine.shape != bound.shape:
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
    (node,) = d.graph.nodes
    known = {value.name: array for value, array in d.graph.constants.items()}
    names = [None if value is None else value.name for value in node.inputs]
    arrays = [None if name is None else {**known, **d.feeds}.get(name) for name in names]
    wide = [a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype == np.float32 else a for a in arrays]
    try:
        exact = operator_of(node).run(node, wide)
    except WeftError:
        return False
    for mine, theirs, truth in zip(d.got, d.want, exact):
        unlike = ~np.isfinite(theirs) & (mine != theirs)
        close = np.abs(mine[unlike] - truth[unlike]) <= 1e-5 * np.abs(truth[unlike])
        if not np.isfinite(mine[unlike]).all() or not close.all() or difference(mine[~unlike], theirs[~unlike], 8):
            return False
    return True


def wave_near_zero(d: Difference) -> bool:
    """Cosines and windows are rounded relatively to 1, not to a value that happens to be nearly zero."""
    return d.operators <= WAVES and bool(d.pairs()) and all(np.abs(a - b).max() <= 1e-6 for a, b in d.pairs())


def peer_loses_nan(d: Difference) -> bool:
    """ONNX Runtime's MaxPool takes a value that is greater than the last, which NaN never is: here it is the greatest,
    as in numpy. Values may differ where Weft's is NaN, and their positions there."""
    if not d.peer or d.operators != {"MaxPool"} or d.got[0].shape != d.want[0].shape:
        return False
    known = ~np.isnan(d.got[0].astype(np.float64))
    return all(difference(mine[known], theirs[known]) is None for mine, theirs in zip(d.got, d.want))


def score_overflows(d: Difference) -> bool:
    """Attention whose scores are beyond the range of float32: infinity less infinity is NaN, but a kernel that scales
    and subtracts the greatest in one instruction has no infinite score: 0. There the meaning is not finite."""
    if d.peer or d.operators != {"Attention"} or len(d.graph.nodes) != 1 or not d.pairs():
        return False
    (node,) = d.graph.nodes
    query, key = (d.feeds.get(value.name) if value is not None else None for value in node.inputs[:2])
    if query is None or key is None:
        return False
    most = _largest([query]) * _largest([key]) * query.shape[-1] * abs(float(node.attributes.get("scale") or 1.0))
    unlike = [~((a == b) | (np.isnan(a) & np.isnan(b))) for a, b in d.pairs()]
    return most > float(np.finfo(np.float32).max) and not any(
        np.isfinite(b[u]).any() for (_, b), u in zip(d.pairs(), unlike)
    )


RULES: dict[str, Callable[[Difference], bool]] = {
    "a sum in another order": another_order,
    "a transform of extreme values": transform_of_extremes,
    "a transform rounds by its largest input": transform_rounding,
    "zero times infinity in an interpolation": zero_times_infinity,
    "coordinates that the peer cannot convert": far_coordinates,
    "a wave near zero": wave_near_zero,
    "the peer overflows on the way": peer_overflows,
    "the peer loses NaN in a maximum": peer_loses_nan,
    "a score beyond the range of its type": score_overflows,
}


def explain(graph: Graph, feeds: Mapping[str, Any], got: Any, want: Any, peer: bool) -> str | None:
    """The name of the rule that a difference falls under; None where there is none."""
    found = Difference(graph, feeds, got, want, peer)
    with np.errstate(all="ignore"):
        return next((name for name, rule in RULES.items() if rule(found)), None)

"""NonMaxSuppression: of boxes that overlap, the one with the best score.

How many boxes remain is known only when they are chosen. So a use whose sizes are known becomes a kernel that writes
them into as many rows as there could be, and, on the host, what cuts off the rest:

    %chosen = NonMaxSuppression(%boxes, %scores, …)
    ->  %rows, %count = weft.SuppressedBoxes(%boxes, %scores, …);  %chosen = weft.FirstRows(%rows, %count)

The kernel, for each class of each image: the boxes whose score is high enough are sorted; each is compared with those
kept so far, a whole vector at a time, and kept if it shares too much with none. NaN is the lowest of scores, and a
box with a NaN coordinate or without area overlaps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, Var, index_expr
from weft.graph.ir import Array, Dim, Node, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, register
from weft.graph.passes.support import Replacement, Scope
from weft.graph.shapes import unknown_dim
from weft.graph.signature import OneOf
from weft.loop.ir import For, If, Let, Stmt, Store, seq
from weft.ops.sorting_kernels import Radix, key_of, within

# ------------------------------------------------------------------------------------------------------- its meaning


def _suppression(
    c: Evaluate,
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    least: Array | None = None,
) -> Array:
    limit = 0 if most is None or not most.size else int(most.reshape(-1)[0])
    threshold = 0.0 if overlap is None or not overlap.size else float(overlap.reshape(-1)[0])
    floor = None if least is None or not least.size else float(least.reshape(-1)[0])
    chosen: list[tuple[int, int, int]] = []
    for image in range(scores.shape[0]):
        corners = _corners(boxes[image], bool(c.get("center_point_box", 0)))
        for group in range(scores.shape[1]):
            kept = _keep(corners, scores[image, group], limit, threshold, floor)
            chosen += [(image, group, box) for box in kept]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: Array, centred: bool) -> Array:
    """Boxes as lower y, lower x, upper y, upper x."""
    b = boxes.astype(np.float32)
    if centred:
        x, y, width, height = b.T
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], axis=1)
    first, second = b[:, :2], b[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=1)


CHUNK = 64
"""Candidates that are compared with those kept so far, and with one another, together."""


def _keep(corners: Array, scores: Array, limit: int, threshold: float, floor: float | None) -> list[int]:
    """The boxes of one class that remain, best first."""
    candidates = np.arange(len(scores)) if floor is None else np.nonzero(scores > floor)[0]
    order = candidates[np.argsort(-scores[candidates].astype(np.float64), kind="stable")]
    kept: list[int] = []
    for start in range(0, len(order), CHUNK):
        if len(kept) >= limit:
            break
        places = order[start : start + CHUNK]
        some = corners[places]
        gone = _bits(np.any(_overlap(corners[kept], some, threshold), axis=0, keepdims=True))[0] if kept else 0
        for position, close in enumerate(_bits(_overlap(some, some, threshold))):
            if not gone >> position & 1:
                kept.append(int(places[position]))
                gone |= close
    return kept[:limit]


def _bits(flags: Array) -> list[int]:
    """Each row of at most 64 flags as a number, the first flag in its lowest bit."""
    whole = np.zeros((len(flags), CHUNK), bool)
    whole[:, : flags.shape[1]] = flags
    packed = np.packbits(whole, axis=1, bitorder="little").view("<u8")
    return [int(number) for number in packed[:, 0].tolist()]


def _overlap(some: Array, others: Array, threshold: float) -> Array:
    """Whether boxes share more than the threshold of what they cover together: (some, others)."""
    a, b = some.T[:, :, None], np.ascontiguousarray(others.T)[:, None, :]
    common, width = (np.minimum(a[2 + k], b[2 + k]) for k in (0, 1))
    for k, size in enumerate((common, width)):
        size -= np.maximum(a[k], b[k])
        np.maximum(size, 0, out=size)
    common *= width
    areas = [np.maximum(c[2] - c[0], 0) * np.maximum(c[3] - c[1], 0) for c in (a, b)]
    union = np.add(areas[0], areas[1], out=width)
    union -= common
    with np.errstate(invalid="ignore", divide="ignore"):  # without area nothing is shared: not a number is not more
        return np.asarray(np.divide(common, union, out=union) > np.float32(threshold))


_TAKES = (
    "boxes:float[b s 4], scores:float[b c s], most:int[]|[1]?, iou_threshold:float[]|[1]?, score_threshold:float[]|[1]?"
)
_REQUIRES = (OneOf("center_point_box", (0, 1)),)


# -------------------------------------------------------------------------------------------------------- the kernel


def _most_rows(scores: Sequence[Dim], most: Array | None) -> int | None:
    """How many boxes could be chosen; None where that is not known."""
    known = [size for size in scores if isinstance(size, int)]
    if len(known) < len(scores):
        return None
    images, classes, boxes = known
    return images * classes * (boxes if most is None else max(0, min(boxes, int(np.asarray(most).reshape(-1)[0]))))


def _rows_infer(c: Infer) -> list[Type]:
    rows = int(c.need("rows"))
    return [TensorType("int64", (rows, 3)), TensorType("int64", (1,))]


def _rows(c: Evaluate, *given: Any) -> tuple[Array, Array]:
    chosen = _suppression(c, *given)
    rows = np.zeros((int(c.need("rows")), 3), np.int64)
    rows[: len(chosen)] = chosen
    return rows, np.array([len(chosen)], np.int64)


def _rows_compute(c: Compute, *given: Any) -> Any:
    boxes, scores, *limits = [*given, *[None] * 5][:5]
    images, classes, count = c.shape(1)
    rows = c.out_shape()[0]
    radix = Radix.of(scores.dtype, count)
    scratch, kinds = radix.buffers([])
    here = [tensor for tensor in limits if tensor is not None]
    task = _Choice(radix, count, rows // (images * classes), rows, bool(c.get("center_point_box", 0)))

    def statement(inputs: Sequence[te.Tensor], outs: Sequence[te.Tensor]) -> Stmt:
        numbers = iter(inputs[2:])
        most, overlap, least = (None if one is None else _first(next(numbers)) for one in limits)
        image, group = Var("image"), Var("group")
        body = task.one(inputs[0], inputs[1], outs, (image, group), (most, overlap, least))
        return seq(task.clear(outs), For(image, images, For(group, classes, body)))

    shapes = [(rows, 3), (1,), *scratch, (5, task.most), (3,)]
    types = ["int64", "int64", *kinds, "float32", "int32"]
    made = te.extern(shapes, [boxes, scores, *here], statement, "suppressed", types)
    chosen = te.compute(shapes[0], lambda i, j: made[0][i, j], name="chosen")
    return chosen, te.compute((1,), lambda i: made[1][i], name="chosen_count")


def _first(limit: te.Tensor) -> Expr:
    return limit[(0,) * limit.ndim]


@dataclass(frozen=True)
class _Choice:
    """The choice among `count` boxes, at most `most` of a class and `rows` of all, as loops.

    The kept boxes of a class lie in five rows: lower y, lower x, upper y, upper x, area. Notes: how many candidates
    there are, how many are kept, and whether the present one overlaps a kept one.
    """

    radix: Radix
    count: int
    most: int
    rows: int
    centred: bool

    def clear(self, outs: Sequence[te.Tensor]) -> Stmt:
        """What nobody is written to is 0."""
        i, j = Var("row"), Var("column")
        zero = te.const(0, "int64")
        return seq(Store(outs[1], (index_expr(0),), zero), For(i, self.rows, For(j, 3, Store(outs[0], (i, j), zero))))

    def one(
        self, boxes: te.Tensor, scores: te.Tensor, outs: Sequence[te.Tensor], at: tuple[Var, Var], limits: Sequence[Any]
    ) -> Stmt:
        """The boxes of one class of one image."""
        most, overlap, least = limits
        image, group = at
        keys, places, notes = outs[2], outs[3], outs[7]
        candidates, kept, zero = (index_expr(0),), (index_expr(1),), te.const(0, "int32")
        i, n, end, box, score = Var("i"), Var("n"), Var("end"), Var("box"), Var("score", scores.dtype)
        wanted = te.const(True, "bool") if least is None else score > te.cast(least, scores.dtype)
        target = (index_expr(0), within(notes[candidates], self.count))
        add = seq(
            Store(keys, target, key_of(te.neg(score), False)),
            Store(places, target, te.cast(i, "int32")),
            Store(notes, candidates, notes[candidates] + 1),
        )
        collect = For(i, self.count, Let(score, scores[image, group, i], If(wanted, add)))
        limit = te.const(0, "int64") if most is None else te.cast(most, "int64")
        room = te.cast(notes[kept], "int64") < te.minimum(limit, self.most)
        look = Let(box, within(places[self.radix.result, n], self.count), self._look(boxes, outs, at, box, overlap))
        choose = Let(
            end,
            te.minimum(te.maximum(index_expr(notes[candidates]), 0), self.count),
            seq(self.radix.sort(outs[2:], (), end), For(n, end, If(room, look))),
        )
        return seq(Store(notes, candidates, zero), Store(notes, kept, zero), collect, choose)

    def _look(self, boxes: te.Tensor, outs: Sequence[te.Tensor], at: tuple[Var, Var], box: Var, overlap: Any) -> Stmt:
        """Keeps a box if it shares too much with none."""
        rows, total, corners, notes = outs[0], outs[1], outs[6], outs[7]
        kept, hit, k = (index_expr(1),), (index_expr(2),), Var("k")
        sides = [Var(name, corners.dtype) for name in ("low_y", "low_x", "high_y", "high_x", "area")]
        many = te.minimum(te.maximum(index_expr(notes[kept]), 0), self.most)
        threshold = te.const(0.0, "float32") if overlap is None else te.cast(overlap, "float32")
        close = self._shares([corners[side, k] for side in range(5)], sides, threshold)
        end = Var("kept")
        compare = Let(end, many, For(k, end, Store(notes, hit, notes[hit] | te.cast(close, "int32"))))
        place, row = within(notes[kept], self.most), within(total[0], self.rows)
        keep = seq(
            *(Store(corners, (index_expr(side), place), sides[side]) for side in range(5)),
            *(Store(rows, (row, index_expr(k)), te.cast(v, "int64")) for k, v in enumerate((*at, box))),
            Store(total, (index_expr(0),), total[0] + 1),
            Store(notes, kept, notes[kept] + 1),
        )
        made = seq(Store(notes, hit, te.const(0, "int32")), compare, If(te.equal(notes[hit], 0), keep))
        for side, value in reversed(list(zip(sides, self._corners(boxes, at[0], box, sides)))):
            made = Let(side, value, made)
        return made

    def _corners(self, boxes: te.Tensor, image: Var, box: Var, sides: Sequence[Var]) -> list[Expr]:
        """Lower y, lower x, upper y, upper x and, of those, the area."""
        a, b, c, d = (te.cast(boxes[image, box, k], "float32") for k in range(4))
        if self.centred:
            y, x = te.const(0.5, "float32") * d, te.const(0.5, "float32") * c
            found = [b - y, a - x, b + y, a + x]
        else:
            found = [te.minimum(a, c), te.minimum(b, d), te.maximum(a, c), te.maximum(b, d)]
        zero = te.const(0.0, "float32")
        return [*found, te.maximum(sides[2] - sides[0], zero) * te.maximum(sides[3] - sides[1], zero)]

    def _shares(self, one: Sequence[Expr], other: Sequence[Expr], threshold: Expr) -> Expr:
        """Whether two boxes share more than the threshold of what they cover together; NaN is not more."""
        zero = te.const(0.0, "float32")
        both = [te.minimum(one[2 + k], other[2 + k]) - te.maximum(one[k], other[k]) for k in (0, 1)]
        common = te.maximum(both[0], zero) * te.maximum(both[1], zero)
        return common / (one[4] + other[4] - common) > threshold


def _expand(node: Node, scope: Scope) -> Replacement:
    boxes, scores, most = [*node.inputs, None, None, None][:3]
    if boxes is None or scores is None or not isinstance(scores.type, TensorType) or scores.type.shape is None:
        return None
    rows = _most_rows(scores.type.shape, scope.constant(most))
    if most is None or not rows:
        return None
    attributes = {**node.attributes, "rows": rows}
    made = scope.make_all(node, "SuppressedBoxes", node.inputs, 2, "weft", **attributes)
    return [Node("FirstRows", made, node.outputs, {}, node.name, node.origin, "weft")]


def _chosen_type(c: Infer) -> list[Type]:
    return [TensorType("int64", (unknown_dim("selected"), 3))]


register("NonMaxSuppression", _chosen_type, _suppression, expand=_expand, takes=_TAKES, requires=_REQUIRES)
register("SuppressedBoxes", _rows_infer, _rows, _rows_compute, domain="weft", takes=_TAKES, requires=_REQUIRES)
register(
    "FirstRows",
    _chosen_type,
    lambda c, rows, count: rows[: int(count[0])],
    domain="weft",
    takes="rows:int64[n 3], count:int64[1]",
)

"""The norm of groups of channels in parts: what whole rows of channels give first, then groups, then elements.

    GroupNormalization(x, scale, bias, rows=4)      of x[n, c, 64, 64]: 16 parts, of 4 rows each

In channels last a group is a few bytes of each place: threads that run along channels see all groups. So a channel of a
part has moments of its own, its mean and the sum of squared distances from it; groups add these up, and what an element
is multiplied by, and what is added, is known for each image and channel.

    first[n, t, c]      an element of the part, from which all are a little apart
    sums[n, t, j, c]    those distances (j = 0) and their squares (j = 1), in one pass
    moments[n, t, j, c] mean and squared distances of the part: squares - distances² / count
    mean[n, g], spread  of a group: the moments of its channels and parts, squares about the one mean
    gains[n, j, c]      a factor (j = 0) and a summand (j = 1)

Distances are from an element of the part, so that their squares are at most count + 2 times what is left of them: with
m the squares about the mean and d how far the first is from it, m >= d² and the squares are m + count · d².
"""

from __future__ import annotations

import math
from typing import Any

from weft import te
from weft.graph.opspec import Compute
from weft.ops.elementwise_support import widen

FIRST, SUMS, MOMENTS, TOTAL, MEAN, SQUARES, SPREAD, GAINS = STAGES = (
    "part_first", "part_sums", "part_moments", "group_total", "group_mean", "group_squares", "group_spread",
    "group_gains",
)  # fmt: skip
"""The stages of the program, by which a schedule knows them."""


def normalized_in_parts(c: Compute, x: te.Tensor, scale: te.Tensor, bias: te.Tensor, rows: int) -> te.Tensor:
    """The normalized tensor, by parts of so many places along its first axis of space."""
    batch, channels, *space = c.shape(0)
    groups, epsilon = int(c.need("num_groups")), c.get("epsilon", 1e-5)
    parts, width, zeros = space[0] // rows, channels // groups, (0,) * (len(space) - 1)
    count, whole = rows * math.prod(space[1:]), width * math.prod(space)
    first = te.compute((batch, parts, channels), lambda n, t, k: widen(x[(n, k, t * rows, *zeros)]), name=FIRST)
    row, *rest = (te.reduce_axis(size, name=f"r{d}") for d, size in enumerate((rows, *space[1:])))

    def summed(n: Any, t: Any, j: Any, k: Any) -> Any:
        apart = widen(x[(n, k, t * rows + row, *rest)]) - first[n, t, k]
        return te.sum(te.select(te.equal(j, 0), apart, apart * apart), axis=[row, *rest])

    sums = te.compute((batch, parts, 2, channels), summed, name=SUMS)

    def moment(n: Any, t: Any, j: Any, k: Any) -> Any:
        away = sums[n, t, 0, k] * (1 / count)
        return te.select(te.equal(j, 0), first[n, t, k] + away, sums[n, t, 1, k] - sums[n, t, 0, k] * away)

    moments = te.compute(sums.shape, moment, name=MOMENTS)
    axes = [(te.reduce_axis(parts, name=f"{name}_part"), te.reduce_axis(width, name=f"{name}_k")) for name in "mv"]

    def of(n: Any, j: int, g: Any, axis: tuple[Any, Any]) -> Any:
        return moments[n, axis[0], j, g * width + axis[1]]

    total = te.compute((batch, groups), lambda n, g: te.sum(of(n, 0, g, axes[0]), axis=list(axes[0])), name=TOTAL)
    mean = te.compute((batch, groups), lambda n, g: total[n, g] * (1 / (parts * width)), name=MEAN)

    def square(n: Any, g: Any) -> Any:
        apart = of(n, 0, g, axes[1]) - mean[n, g]
        return te.sum(of(n, 1, g, axes[1]) + apart * apart * count, axis=list(axes[1]))

    squares = te.compute((batch, groups), square, name=SQUARES)
    spread = te.compute((batch, groups), lambda n, g: 1 / te.sqrt(squares[n, g] * (1 / whole) + epsilon), name=SPREAD)

    def gain(n: Any, j: Any, k: Any) -> Any:
        factor = spread[n, k // width] * widen(scale[k])
        return te.select(te.equal(j, 0), factor, widen(bias[k]) - mean[n, k // width] * factor)

    gains = te.compute((batch, 2, channels), gain, name=GAINS)
    return te.stage(
        c.out_shape(), lambda *i: widen(x[i]) * gains[i[0], 0, i[1]] + gains[i[0], 1, i[1]], name="normalized",
        dtype=x.dtype,
    )  # fmt: skip

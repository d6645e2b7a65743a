"""ConvTranspose: each input element spreads over the output; with strides, the output is computed phase by phase.

Along a dimension with stride s, no dilation and b positions cut off in front, output position o takes part only in
kernel positions k + s*j with k = (o + b) % s, and reads input (o + b) // s - j. So the result is first computed as

    phases[n, co, r…, q…] = sum over j…, ci of x[n, ci, q + (r + b) // s - j] * w[ci, co, (r + b) % s + s*j]

and then interleaved: out[o] = phases[o % s, o // s]. Where a kernel does not fill its phases the missing steps count
as 0 whatever the input holds (a NaN or an infinity times a weight of 0 would be NaN), and beside the input nothing is
added unless the weights are known to be finite: 0 times them is nothing then. A kernel that a pass `filled` has zeros
behind it: those steps do not count either, so that a schedule may pass over them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import NUMPY_TYPES, Array, Dim, TensorType, Type, dtype_name
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import minus, plus, times, unknown_dim
from weft.ops.convolution import accumulator, add_channel, check_bias, exact_type, finish, kernel_sizes, result_type
from weft.ops.convolution_window import Ints, Pads, Window, pad_tensor


class Spread:
    """The geometry of a transposed convolution: output sizes and how much of the full result is cut off in front."""

    __slots__ = ("window", "outs", "before")

    def __init__(self, use: Use, kernel: Ints, sizes: Sequence[Dim]) -> None:
        self.window = Window(use, kernel)
        rank = len(kernel)
        extra = [int(v) for v in use.get("output_padding") or [0] * rank]
        wanted = [int(v) for v in use.get("output_shape") or []]
        if len(extra) != rank or (wanted and len(wanted) not in (rank, rank + 2)):
            raise use.error(f"output_padding and output_shape need {rank} numbers each")
        outs: list[Dim] = []
        before: list[Dim] = []
        for axis, size in enumerate(sizes):
            stride, extent = self.window.strides[axis], self.window.extents[axis]
            full = plus(times(minus(size, 1), stride), extra[axis] + extent)
            same = self.window.auto_pad.startswith("SAME")
            if wanted or same:
                out: Dim = wanted[-rank:][axis] if wanted else times(size, stride)
                total = minus(full, out)
                outs.append(out)
                before.append(self._front(total))
            else:
                first, last = self.window.pads[axis] if self.window.auto_pad == "NOTSET" else (0, 0)
                outs.append(minus(full, first + last))
                before.append(first)
        self.outs: tuple[Dim, ...] = tuple(outs)
        self.before: tuple[Dim, ...] = tuple(before)
        if any(isinstance(o, int) and o < 0 for o in outs):
            raise use.error(f"padding leaves an output of {list(outs)}")

    def _front(self, total: Dim) -> Dim:
        if not isinstance(total, int):
            return unknown_dim("pad")
        less = max(total, 0) // 2 if total >= 0 else 0
        # Where more is asked for than the windows reach, the surplus stands behind the result.
        return less if self.window.auto_pad == "SAME_UPPER" else max(total, 0) - less

    def static(self) -> tuple[Ints, Ints]:
        """Output sizes and cuts in front, as numbers."""
        return tuple(int(o) for o in self.outs if isinstance(o, int)), tuple(
            int(b) for b in self.before if isinstance(b, int)
        )


def _infer(c: Infer) -> list[Type]:
    x, w = c.tensor(0), c.tensor(1)
    if x.shape is None or w.shape is None:
        return [TensorType(result_type(c, x.dtype), None)]
    if x.rank < 3 or x.rank != w.rank:
        raise c.error(f"a transposed convolution of {x!r} with a weight {w!r}: the ranks must be equal and at least 3")
    group = int(c.get("group", 1))
    if group < 1:
        raise c.error(f"group is {group}; it must be at least 1")
    if isinstance(x.dims[1], int) and x.dims[1] % group:
        raise c.error(f"{x.dims[1]} channels do not fit the weight {w!r} with group={group}")
    check_bias(c, times(w.dims[1], group))
    kernel = kernel_sizes(c, w.dims)
    outs = [unknown_dim("conv") for _ in x.dims[2:]] if kernel is None else Spread(c, kernel, x.dims[2:]).outs
    return [TensorType(result_type(c, x.dtype), (x.dims[0], times(w.dims[1], group), *outs))]


def _evaluate(c: Evaluate, x: Array, w: Array, bias: Array | None = None) -> Array:
    kernel = kernel_sizes(c, w.shape)
    assert kernel is not None
    spread = Spread(c, kernel, x.shape[2:])
    wide = exact_type(str(x.dtype)) or x.dtype
    made = _spread_arrays(x.astype(wide), w.astype(wide), spread, int(c.get("group", 1)))
    kind = NUMPY_TYPES[result_type(c, dtype_name(x.dtype))]
    return np.asarray(add_channel(made, None if bias is None else bias.astype(wide)).astype(kind))


def _spread_arrays(x: Array, w: Array, spread: Spread, group: int) -> Array:
    """Adds, for each kernel position, its product with the whole input to every stride-th place of the result."""
    window, (outs, before) = spread.window, spread.static()
    batch, channels, per_group = x.shape[0], x.shape[1], w.shape[1]
    sizes = x.shape[2:]
    reach = [max((n - 1) * s + e, b + o) for n, s, e, b, o in zip(sizes, window.strides, window.extents, before, outs)]
    full: Array = np.zeros((batch, group * per_group, *reach), x.dtype)
    if full.size and x.size:
        columns = x.reshape(batch, group, channels // group, -1)
        for number, at in enumerate(itertools.product(*[range(k) for k in window.kernel])):
            matrix = w.reshape(channels, per_group, -1)[:, :, number].reshape(group, channels // group, per_group)
            part = np.matmul(matrix.transpose(0, 2, 1), columns).reshape(batch, group * per_group, *sizes)
            place: Any = tuple(
                slice(k * d, k * d + (n - 1) * s + 1, s)
                for k, d, s, n in zip(at, window.dilations, window.strides, sizes)
            )
            full[(slice(None), slice(None), *place)] += part
    return full[(slice(None), slice(None), *[slice(b, b + o) for b, o in zip(before, outs)])]


class _Phases:
    """How one dimension is split: `phases` remainders of a position with `count` positions each, `taps` kernel steps
    for a position."""

    __slots__ = ("phases", "before", "count", "taps", "reach")

    def __init__(self, window: Window, axis: int, out: int, before: int, size: int) -> None:
        stride, dilation, kernel = window.strides[axis], window.dilations[axis], window.kernel[axis]
        if size == 1 and dilation == 1:
            stride = max(kernel, 1)  # one input position has no neighbour: the whole kernel is one phase each
        self.phases = stride if dilation == 1 else 1
        self.taps = -(-kernel // self.phases)
        self.reach = dilation
        self.before = before
        self.count = -(-out // self.phases)

    def first(self, phase: Any) -> Any:
        """The first kernel step of a phase, a number or an expression."""
        return (phase + self.before) % self.phases

    def start(self, phase: Any) -> Any:
        """The input position that the first step of a phase's first position reads."""
        return (phase + self.before) // self.phases

    def padding(self, size: int) -> tuple[int, int]:
        """What the input needs before and behind it, so that every read of a phase stays inside."""
        first, last = self.start(0), self.start(self.phases - 1) + self.count - 1
        return max((self.taps - 1) * self.reach - first, 0), max(last + 1 - size, 0)


def _compute(c: Compute, x: te.Tensor, w: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor | None:
    kernel = kernel_sizes(c, c.shape(1))
    if kernel is None:
        return None
    spread = Spread(c, kernel, c.shape(0)[2:])
    window, (outs, before) = spread.window, spread.static()
    if any(s > 1 and d > 1 for s, d in zip(window.strides, window.dilations)):
        made = _scattered(c, x, w, window, before)
    else:
        sizes = c.shape(0)[2:]
        splits = [_Phases(window, axis, out, b, n) for axis, (out, b, n) in enumerate(zip(outs, before, sizes))]
        made = _interleave(c, _phased(c, x, w, window, splits), splits)
    return finish(c, made, bias)


def _channel(c: Compute) -> tuple[te.IterVar | None, Any]:
    """The reduce axis over a group's channels (none where it has one), and the input channel for an output channel."""
    channels, per_group, group = c.shape(0)[1], c.shape(1)[1], int(c.get("group", 1))
    depth = channels // group
    axis = te.reduce_axis(depth, "ci") if depth > 1 else None
    inner = axis.var if axis is not None else te.const(0)
    return axis, lambda co: inner if group == 1 else (co // per_group) * depth + inner


def _phased(c: Compute, x: te.Tensor, w: te.Tensor, window: Window, splits: Sequence[_Phases]) -> te.Tensor:
    sizes, weight = c.shape(0), c.shape(1)
    rank, per_group, kind = len(splits), weight[1], accumulator(c.outputs[0].dtype)
    pads: Pads = tuple(split.padding(size) for split, size in zip(splits, sizes[2:]))
    padded = pad_tensor(x, sizes, pads, lambda: 0)
    finite = _is_finite(c.value(1))
    whole = tuple((0, split.taps * split.phases - k) for split, k in zip(splits, window.kernel))
    kernel = pad_tensor(w, weight, whole, lambda: 0, "padded_weight")
    axis, source = _channel(c)
    taps = [te.reduce_axis(split.taps, f"k{i}") for i, split in enumerate(splits)]
    filled = [int(more) for more in c.get("filled") or [0] * rank]

    def body(n: Expr, co: Expr, *at: Expr) -> Any:
        channel = source(co)
        residues, positions = at[:rank], at[rank:]
        read = [
            q + s.start(r) - j.var * s.reach + before
            for q, r, j, s, (before, _) in zip(positions, residues, taps, splits, pads)
        ]
        step = [s.first(r) + j.var * s.phases for r, j, s in zip(residues, taps, splits)]
        column = co if int(c.get("group", 1)) == 1 else co % per_group
        element = padded[(n, channel, *read)].astype(kind)
        inside = [k < size for k, size, split in zip(step, window.kernel, splits) if size % split.phases]
        if not finite:
            for i, size, (before, after) in zip(read, sizes[2:], pads):
                inside += [*([i >= before] if before else []), *([i < before + size] if after else [])]
        weight_element = kernel[(channel, column, *step)].astype(kind)
        axes = [*taps, *([axis] if axis is not None else [])]
        if finite and inside:
            element = te.select(te.all(*inside), element, te.const(0, kind))
        counts = [] if finite else inside
        counts += [k < size - more for k, size, more in zip(step, window.kernel, filled) if more]
        return te.sum(element * weight_element, axis=axes, where=te.all(*counts) if counts else None)

    shape = (sizes[0], c.out_shape()[1], *[s.phases for s in splits], *[s.count for s in splits])
    return te.stage(shape, lambda n, co, *at: body(n, co, *at), name="phases")


def _is_finite(weight: Array | None) -> bool:
    """Whether a weight is known, and has no NaN and no infinity: whole numbers have none."""
    return weight is not None and bool(np.isfinite(weight.astype(np.float32)).all())


def _interleave(c: Compute, phases: te.Tensor, splits: Sequence[_Phases]) -> te.Tensor:
    def body(n: Expr, co: Expr, *at: Expr) -> Expr:
        pairs = list(zip(at, splits))
        return phases[(n, co, *[o % s.phases for o, s in pairs], *[o // s.phases for o, s in pairs])]

    return te.stage(c.out_shape(), lambda n, co, *at: body(n, co, *at), name="interleaved")


def _scattered(c: Compute, x: te.Tensor, w: te.Tensor, window: Window, before: Ints) -> te.Tensor:
    """The form for strides with dilation: every kernel position is tried, and counts where it falls on an input."""
    sizes, per_group, kind = c.shape(0), c.shape(1)[1], accumulator(c.outputs[0].dtype)
    axis, source = _channel(c)
    taps = [te.reduce_axis(k, f"k{i}") for i, k in enumerate(window.kernel)]

    def body(n: Expr, co: Expr, *at: Expr) -> Any:
        channel = source(co)
        there = [o + b - k.var * d for o, b, k, d in zip(at, before, taps, window.dilations)]
        hits = []
        for position, stride, size in zip(there, window.strides, sizes[2:]):
            hits.append(te.all(te.equal(position % stride, 0), position >= 0, position < size * stride))
        read = x[(n, channel, *[p // s for p, s in zip(there, window.strides)])].astype(kind)
        column = co if int(c.get("group", 1)) == 1 else co % per_group
        product = read * w[(channel, column, *[k.var for k in taps])].astype(kind)
        return te.sum(product, axis=[*([axis] if axis is not None else []), *taps], where=te.all(*hits))

    return te.stage(c.out_shape(), lambda n, co, *at: body(n, co, *at), name="conv_transpose")


register(
    "ConvTranspose",
    _infer,
    _evaluate,
    _compute,
    "complex",
    takes="X:number[n c *s], W:X[c _ *k], B:number[_]?",
    traits="convolution heavy",
    multiplies=2,
)

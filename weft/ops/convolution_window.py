"""Windows that slide over the spatial dimensions of (batch, channel, spatial…) tensors, for convolution and pooling.

A `Window` says where each output position looks: at input positions `o * stride + k * dilation - pad_before`. It is
made from a node's attributes, gives output sizes (symbolic ones too), and knows its padding once sizes are numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Dim
from weft.graph.opspec import OpenSize, Use
from weft.graph.shapes import divided, least, minus, plus

Ints = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]


class Window:
    """Kernel sizes, strides, dilations and the rule for padding."""

    __slots__ = ("kernel", "strides", "dilations", "auto_pad", "pads", "ceil_mode", "fail")

    def __init__(self, use: Use, kernel: Sequence[int]) -> None:
        rank = len(kernel)
        self.fail: Callable[[str], Exception] = use.error
        self.kernel = tuple(int(k) for k in kernel)
        self.strides = self._numbers(use, "strides", [1] * rank)
        self.dilations = self._numbers(use, "dilations", [1] * rank)
        self.auto_pad = str(use.get("auto_pad", "NOTSET") or "NOTSET")
        if self.auto_pad not in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
            raise self.fail(f"auto_pad is {self.auto_pad!r}; known are NOTSET, SAME_UPPER, SAME_LOWER and VALID")
        flat = tuple(int(p) for p in use.get("pads") or [0] * (2 * rank))
        if len(flat) != 2 * rank:
            raise self.fail(f"pads has {len(flat)} numbers where {rank} spatial dimensions need {2 * rank}")
        self.pads: Pads = tuple(zip(flat[:rank], flat[rank:]))
        self.ceil_mode = bool(use.get("ceil_mode", 0))
        if any(k < 1 for k in self.kernel):
            raise self.fail(f"a kernel of {list(self.kernel)} is empty")

    def _numbers(self, use: Use, name: str, default: Sequence[int]) -> Ints:
        given = tuple(int(v) for v in use.get(name) or default)
        if len(given) != len(default) or not all(1 <= v < 1 << 31 for v in given):
            raise self.fail(f"{name} is {list(given)}; {len(default)} numbers from 1 to 2^31 - 1 are needed")
        return given

    @property
    def extents(self) -> Ints:
        """How many input positions a kernel spans along each dimension, the gaps of dilation included."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations))

    def out_dims(self, sizes: Sequence[Dim]) -> tuple[Dim, ...]:
        """The spatial sizes of the output."""
        if len(sizes) != len(self.kernel):
            raise self.fail(f"{len(sizes)} spatial dimensions, but a kernel of {len(self.kernel)}")
        return tuple(self._out_dim(size, axis) for axis, size in enumerate(sizes))

    def _out_dim(self, size: Dim, axis: int) -> Dim:
        stride, extent, (before, after) = self.strides[axis], self.extents[axis], self.pads[axis]
        if self.auto_pad.startswith("SAME"):
            return divided(size, stride, up=True)
        if self.auto_pad == "VALID":
            before = after = 0
        room = minus(plus(size, before + after), extent)
        if self.ceil_mode and self.auto_pad != "VALID":
            # A window that would start in the padding behind the input is left out.
            made = least(plus(divided(room, stride, up=True), 1), divided(plus(size, before), stride, up=True))
        else:
            made = plus(divided(room, stride), 1)
        if isinstance(made, int) and made < 0 or (isinstance(room, int) and room < 0 and not self.ceil_mode):
            raise self.fail(
                f"a kernel that spans {extent} does not fit into {size} positions with {before + after} of padding"
            )
        return made

    def padding(self, sizes: Sequence[Dim]) -> Pads:
        """How many positions stand before and after the input along each dimension."""
        if self.auto_pad == "NOTSET":
            return self.pads
        made = []
        for size, stride, extent in zip(sizes, self.strides, self.extents):
            total = 0
            if self.auto_pad == "VALID":
                pass
            elif not isinstance(size, int):
                if stride != 1:
                    raise OpenSize("how much is padded follows from a size that is open")
                total = extent - 1
            else:
                total = max((-(-size // stride) - 1) * stride + extent - size, 0)
            less = total // 2
            made.append((less, total - less) if self.auto_pad == "SAME_UPPER" else (total - less, less))
        return tuple(made)

    def reach(self, sizes: Sequence[Dim], outs: Sequence[Dim]) -> Pads:
        """The padding that reads need: none behind the last window (at most that, beside open sizes), and what
        ceil_mode adds.
        """
        made = []
        for axis, (before, after) in enumerate(self.padding(sizes)):
            size, count = sizes[axis], outs[axis]
            if not isinstance(size, int) or not isinstance(count, int):
                made.append((before, after + (self.strides[axis] - 1 if self.ceil_mode else 0)))
                continue
            last = (max(count, 1) - 1) * self.strides[axis] + self.extents[axis]
            made.append((before, max(last - before - size, 0)))
        return tuple(made)


def pad_array(x: Array, pads: Pads, value: Any = 0) -> Array:
    """Spatial padding of an array (batch, channel, spatial…); a negative number cuts off."""
    if any(p < 0 for pair in pads for p in pair):
        cut = tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pads, x.shape[2:]))
        x = x[(slice(None), slice(None), *cut)]
        pads = tuple((max(a, 0), max(b, 0)) for a, b in pads)
    if not any(p for pair in pads for p in pair):
        return x
    return np.pad(x, ((0, 0), (0, 0), *pads), constant_values=value)


def windows_of(x: Array, window: Window, outs: Sequence[int]) -> Array:
    """A view (batch, channel, out…, kernel…) of an array that is padded already."""
    steps = x.strides[2:]
    shape = (*x.shape[:2], *outs, *window.kernel)
    moves = [s * step for s, step in zip(window.strides, steps)]
    taps = [d * step for d, step in zip(window.dilations, steps)]
    return np.lib.stride_tricks.as_strided(x, shape, (*x.strides[:2], *moves, *taps), writeable=False)


def pad_tensor(
    x: te.Tensor, sizes: Sequence[Dim], pads: Pads, value: Callable[[], Any], name: str = "padded"
) -> te.Tensor:
    """Spatial padding as a stage of its own, so that a schedule may inline it; none where there is nothing to pad."""
    if not any(p for pair in pads for p in pair):
        return x
    batch, channels = sizes[0], sizes[1]
    spatial = [size + a + b for size, (a, b) in zip(sizes[2:], pads)]

    def body(n: Expr, c: Expr, *at: Expr) -> Expr:
        inside = []
        source = []
        for i, size, (a, b) in zip(at, sizes[2:], pads):
            source.append(i - a)
            if a > 0:
                inside.append(i >= a)
            if b > 0:
                inside.append(i < size + a)
        read = x[(n, c, *source)]
        return te.if_then_else(te.all(*inside), read, te.cast(value(), x.dtype)) if inside else read

    return te.stage((batch, channels, *spatial), lambda n, c, *at: body(n, c, *at), name=name)


def kernel_axes(window: Window) -> list[te.IterVar]:
    """A reduce axis for each dimension of the kernel."""
    rank = len(window.kernel)
    names = ["kd", "kh", "kw"][-rank:] if rank <= 3 else [f"k{i}" for i in range(rank)]
    return [te.reduce_axis(k, name) for k, name in zip(window.kernel, names)]


def tap(window: Window, at: Sequence[Expr], taps: Sequence[te.IterVar]) -> list[Expr]:
    """The position in the padded input that an output position reads for one kernel position."""
    return [o * s + k.var * d for o, s, k, d in zip(at, window.strides, taps, window.dilations)]


def volume(sizes: Sequence[int]) -> int:
    """The number of elements of a shape."""
    return math.prod(sizes)

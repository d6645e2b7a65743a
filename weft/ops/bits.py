"""BitMatMul and BitConv: products of numbers of one or two bits with weights of one or two bits, by counting bits.

    BitMatMul(x:uint8[m k], w:uint8[q n _], scale:float[n], bias:float[n]?)    bits=2                         float[m n]
    BitConv(x:uint8[n c h w], w:uint8[q f _], scale, bias?)  bits=2  kernel_shape, strides=[s, s], pads   float[n f _ _]

x holds levels from 0 to 2 ** bits - 1, and what is larger counts as the largest. A code of q bits stands for the weight
2 * code - (2 ** q - 1): -1 and 1, or -3, -1, 1 and 3. Codes lie by planes of bits, eight to a byte, the lowest bit
first; the row of an output has its taps one after the other, a tap its channels in whole bytes, and zeros to its end
(`pack_codes`). The result is the sum times the output's scale, and its bias: `weft.te.bitserial` says how.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.ops.convolution_window import Window
from weft.te import bitserial

DOMAIN, DENSE, CONVOLUTION = "weft", "BitMatMul", "BitConv"
PLANES, WINDOWS, SUMS = "bit_planes", "bit_windows", "bit_sums"
COUNTS, ONES = f"{SUMS}_counts", f"{SUMS}_ones"
STAGES = frozenset((PLANES, WINDOWS, SUMS, COUNTS, ONES))
"""Packed data, its windows, the counts of bits, the sums that are made of them, and what bits of weights are less."""


def pack_codes(codes: Array, planes: int, line: int = bitserial.LINE) -> Array:
    """Codes of weights, uint8[f, c] or uint8[f, c, kh, kw], as the operators take them; rows are filled up to lines."""
    taps = np.moveaxis(codes, 1, -1).reshape(len(codes), -1, codes.shape[1])
    bits = np.stack([np.packbits(taps >> p & 1, axis=-1, bitorder="little") for p in range(planes)])
    rows = bits.reshape(planes, len(codes), -1)
    return np.ascontiguousarray(np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[2] % line))))


def _window(use: Use) -> tuple[list[int], int, int]:
    """Kernel, stride and padding."""
    kernel = [int(k) for k in use.get("kernel_shape") or (1, 1)]
    pads, strides = (
        [int(one) for one in use.get(name) or (default,)] for name, default in (("pads", 0), ("strides", 1))
    )
    if len(set(pads)) > 1 or len(set(strides)) > 1 or len(kernel) != 2 or pads[0] < 0 or strides[0] < 1:
        raise use.error(f"one stride and one padding for both sides, not {strides} and {pads}; a kernel of two sizes")
    if {1, *(use.get("dilations") or ()), use.get("group") or 1} > {1} or use.get("auto_pad", "NOTSET") != "NOTSET":
        raise use.error("products of bits have no dilations, no groups and no auto_pad")
    return kernel, strides[0], pads[0]


def _infer(c: Infer) -> list[Type]:
    x, w, bits = c.tensor(0), c.tensor(1), int(c.need("bits"))
    if bits not in (1, 2) or not w.is_static or w.static[0] not in (1, 2):
        raise c.error(f"levels and weights have one or two bits, not {bits} and {w.shape and w.shape[0]}")
    if x.shape is None:
        return [TensorType("float32", None)]
    kernel, window = [1, 1], None
    if x.rank == 4:
        kernel, _, _ = _window(c)
        window = Window(c, kernel)
    channels = x.dims[1]
    least = kernel[0] * kernel[1] * -(-channels // bitserial.LANES) if isinstance(channels, int) else 0
    if w.static[2] < least:
        raise c.error(f"rows of {w.static[2]} bytes are too short: {kernel} taps of {channels} channels take {least}")
    sizes = () if window is None else window.out_dims(x.dims[2:])
    return [TensorType("float32", (x.dims[0], w.static[1], *sizes))]


def _evaluate(c: Evaluate, x: Array, w: Array, scale: Array, bias: Array | None = None) -> Array:
    levels = np.minimum(x, (1 << int(c.need("bits"))) - 1).astype(np.float64)
    (kernel, stride, pad), data = (
        ([1, 1], 1, 0) if x.ndim == 2 else _window(c),
        levels.reshape(*x.shape, 1, 1)[..., 0, 0],
    )
    image = data.reshape(*x.shape, 1, 1) if x.ndim == 2 else np.pad(data, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    channels, planes = x.shape[1], len(w)
    taps = w[:, :, : kernel[0] * kernel[1] * -(-channels // 8)].reshape(planes, w.shape[1], *kernel, -1)
    codes: Any = sum(np.unpackbits(taps[p], axis=-1, bitorder="little")[..., :channels].astype(np.float64) * (1 << p)
                for p in range(planes))  # fmt: skip
    weights = 2 * codes - ((1 << planes) - 1)
    sizes = [(size - k) // stride + 1 for size, k in zip(image.shape[2:], kernel)]
    total: Any = np.zeros((len(x), *sizes, w.shape[1]))
    for i, j in np.ndindex(*kernel):
        part = image[:, :, i : i + stride * sizes[0] : stride, j : j + stride * sizes[1] : stride]
        total += np.tensordot(part, weights[:, i, j], ((1,), (1,)))
    made = total.astype(np.float32) * scale
    made = np.moveaxis(made if bias is None else made + bias, -1, 1)
    return np.ascontiguousarray(made[..., 0, 0] if x.ndim == 2 else made)


def _compute(c: Compute, x: te.Tensor, w: te.Tensor, scale: te.Tensor, bias: te.Tensor | None = None) -> Any:
    bits, size, dense = int(c.need("bits")), c.shape(1)[2], len(c.shape(0)) == 2
    most = te.const((1 << bits) - 1, "uint8")
    if dense:
        rows = bitserial.pack_bits(x, bits, size, PLANES, most)
    else:
        kernel, stride, pad = _window(c)
        packed = bitserial.pack_bits(x, bits, 1, PLANES, most, axis=1)
        rows = bitserial.windows(packed, kernel, stride, pad, size, WINDOWS)
    sums, _ = bitserial.dense(rows, w, bipolar=True, name=SUMS)
    shape = c.out_shape()

    def scaled(*at: Expr) -> Expr:
        place = at[0] if dense else (at[0] * shape[2] + at[2]) * shape[3] + at[3]
        value = sums[place, at[1]].astype("float32") * scale[at[1]].astype("float32")
        return value if bias is None else value + bias[at[1]].astype("float32")

    return te.compute(shape, scaled, name="bit_product")


for _name, _takes in ((DENSE, "x:uint8[m k]"), (CONVOLUTION, "x:uint8[n c _ _]")):
    register(
        _name,
        _infer,
        _evaluate,
        _compute,
        "opaque",
        domain=DOMAIN,
        takes=f"{_takes}, w:uint8[_ f _], scale:float32[f], bias:float32[f]?",
        traits="heavy",
    )

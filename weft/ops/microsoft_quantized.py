"""com.microsoft's quantized operators: real arithmetic between 8-bit ends, and products of 8-bit numbers."""

from __future__ import annotations

from typing import Any

from weft.ops.microsoft_composition import Composition, Part, compose
from weft.ops.microsoft_layers import turned


def _real(b: Composition, x: Part, scale: Part, zero: Part | None) -> Part:
    return b("DequantizeLinear", x, scale, zero)


def _quantized(b: Composition, x: Part, scale: Part, zero: Part | None, dtype: str) -> Part:
    return b("QuantizeLinear", x, scale, b.constant(0, dtype) if zero is None else zero)


def _binary(op: str) -> Any:
    def body(b: Composition, x: Part, xs: Part, xz: Part | None, y: Part, ys: Part, yz: Part | None, *out: Any) -> Any:
        made = b(op, _real(b, x, xs, xz), _real(b, y, ys, yz))
        return _quantized(b, made, out[0], out[1] if len(out) > 1 else None, x.dtype)

    return body


def _unary(op: str, *names: str) -> Any:
    def body(b: Composition, x: Part, xs: Part, xz: Part | None, ys: Part, yz: Part | None = None) -> Any:
        made = b(op, _real(b, x, xs, xz), **{name: b.get(name) for name in names})
        return _quantized(b, made, ys, yz, x.dtype)

    return body


def _softmax(b: Composition, x: Part, xs: Part, xz: Part | None, ys: Part, yz: Part | None = None) -> Any:
    """Before opset 13, which the node names, the tensor was a matrix, cut at the axis."""
    real, rank = _real(b, x, xs, xz), len(x.dims)
    axis = int(b.get("axis", -1)) % max(rank, 1)
    if int(b.get("opset", 13)) >= 13 or axis == rank - 1:
        made = b("Softmax", real, axis=axis)
    else:
        axes = b.constant(list(range(axis, rank)), "int64")
        power = b("Exp", b("Sub", real, b("ReduceMax", real, axes, keepdims=1)))
        made = b("Div", power, b("ReduceSum", power, axes, keepdims=1))
    return _quantized(b, made, ys, yz, x.dtype)


def _channels_second(b: Composition, x: Part) -> Part:
    """An image whose channels are last, as ONNX's operators want it."""
    rank = len(x.dims)
    return b("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def _channels_last(b: Composition, x: Part) -> Part:
    return b("Transpose", x, perm=[0, *range(2, len(x.dims)), 1])


def _pool(op: str, *names: str) -> Any:
    """Pooling, channels last where the node says so."""

    def body(b: Composition, x: Part, xs: Part, xz: Part | None, ys: Part, yz: Part | None = None) -> Any:
        last = bool(b.get("channels_last", 0))
        real = _real(b, x, xs, xz)
        made = b(op, _channels_second(b, real) if last else real, **{name: b.get(name) for name in names})
        return _quantized(b, _channels_last(b, made) if last else made, ys, yz, x.dtype)

    return body


def _nhwc_max_pool(b: Composition, x: Part) -> Any:
    return _channels_last(b, b("MaxPool", _channels_second(b, x), **b.use.attributes))


def _concat(b: Composition, scale: Part, zero: Part, *inputs: Part) -> Any:
    parts = [_real(b, *inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return _quantized(b, b("Concat", *parts, axis=b.need("axis")), scale, zero, zero.dtype)


compose("QLinearAdd", _binary("Add"), "elementwise")
compose("QLinearMul", _binary("Mul"), "elementwise")
compose("QLinearSigmoid", _unary("Sigmoid"), "elementwise")
compose("QLinearLeakyRelu", _unary("LeakyRelu", "alpha"), "elementwise")
compose("QLinearSoftmax", _softmax, "reduction")
_WINDOW = ("kernel_shape", "strides", "pads", "auto_pad", "ceil_mode", "count_include_pad")
compose("QLinearAveragePool", _pool("AveragePool", *_WINDOW), "reduction")
compose("QLinearGlobalAveragePool", _pool("GlobalAveragePool"), "reduction")
compose("QLinearConcat", _concat, "injective")
compose("NhwcMaxPool", _nhwc_max_pool, "reduction", expands=True)

# ----------------------------------------------------------------------------------------------------------- products


def real_product(
    b: Composition, x: Part, y: Part, xs: Part, ys: Part, xz: Part | None, yz: Part | None, bias: Part | None
) -> Part:
    """An 8-bit product as real numbers: (x - xz) * (y - yz) * xs * ys + bias."""
    total = b.cast(b("MatMulInteger", x, y, xz, yz), "float32")
    made = b("Mul", total, b("Mul", xs, ys))
    return made if bias is None else b("Add", made, bias)


def _to_float(
    b: Composition,
    x: Part,
    y: Part,
    xs: Part,
    ys: Part,
    xz: Part | None = None,
    yz: Part | None = None,
    bias: Part | None = None,
) -> Any:
    return real_product(b, x, y, xs, ys, xz, yz, bias)


def _dynamic(b: Composition, x: Part, y: Part, ys: Part, yz: Part | None = None, bias: Part | None = None) -> Any:
    data, scale, zero = b.several(3, "DynamicQuantizeLinear", x)
    return real_product(b, data, y, scale, ys, zero, yz, bias)


def _gemm(
    b: Composition, x: Part, xs: Part, xz: Part, y: Part, ys: Part, yz: Part, added: Part | None = None, *out: Any
) -> Any:
    left, right = turned(b, x) if b.get("transA", 0) else x, turned(b, y) if b.get("transB", 0) else y
    total = b("MatMulInteger", left, right, xz, yz)
    if added is not None:
        total = b("Add", total, added)
    scale = b("Mul", xs, ys)
    if float(b.get("alpha", 1.0)) != 1:
        scale = b("Mul", scale, b.constant(float(b.get("alpha")), "float32"))
    made = b("Mul", b.cast(total, "float32"), scale)
    if not out or out[0] is None:
        return made
    return _quantized(b, made, out[0], out[1] if len(out) > 1 else None, x.dtype)


compose("MatMulIntegerToFloat", _to_float, "complex")
compose("DynamicQuantizeMatMul", _dynamic, "opaque")
compose("QGemm", _gemm, "complex")

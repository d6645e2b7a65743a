"""com.microsoft's quantized operators: real arithmetic between 8-bit ends, and products of 8-bit numbers."""

from __future__ import annotations

from typing import Any

from weft.graph.ir import Value
from weft.ops.expansion import Builder
from weft.ops.microsoft_composition import compose
from weft.ops.microsoft_layers import turned


def _real(b: Builder, x: Value, scale: Value, zero: Value | None) -> Value:
    return b("DequantizeLinear", x, scale, zero)


def _quantized(b: Builder, x: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    return b("QuantizeLinear", x, scale, b.constant(0, dtype) if zero is None else zero)


def _binary(op: str) -> Any:
    def body(
        b: Builder, x: Value, xs: Value, xz: Value | None, y: Value, ys: Value, yz: Value | None, *out: Any
    ) -> Any:
        made = b(op, _real(b, x, xs, xz), _real(b, y, ys, yz))
        return _quantized(b, made, out[0], out[1] if len(out) > 1 else None, x.tensor.dtype)

    return body


def _unary(op: str, *names: str) -> Any:
    def body(b: Builder, x: Value, xs: Value, xz: Value | None, ys: Value, yz: Value | None = None) -> Any:
        made = b(op, _real(b, x, xs, xz), **{name: b.get(name) for name in names})
        return _quantized(b, made, ys, yz, x.tensor.dtype)

    return body


def _softmax(b: Builder, x: Value, xs: Value, xz: Value | None, ys: Value, yz: Value | None = None) -> Any:
    """Before opset 13, which the node names, the tensor was a matrix, cut at the axis."""
    real, rank = _real(b, x, xs, xz), len(x.tensor.dims)
    axis = int(b.get("axis", -1)) % max(rank, 1)
    if int(b.get("opset", 13)) >= 13 or axis == rank - 1:
        made = b("Softmax", real, axis=axis)
    else:
        axes = b.constant(list(range(axis, rank)), "int64")
        power = b("Exp", b("Sub", real, b("ReduceMax", real, axes, keepdims=1)))
        made = b("Div", power, b("ReduceSum", power, axes, keepdims=1))
    return _quantized(b, made, ys, yz, x.tensor.dtype)


def _channels_second(b: Builder, x: Value) -> Value:
    """An image whose channels are last, as ONNX's operators want it."""
    rank = len(x.tensor.dims)
    return b("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)])


def _channels_last(b: Builder, x: Value) -> Value:
    return b("Transpose", x, perm=[0, *range(2, len(x.tensor.dims)), 1])


def _pool(op: str, *names: str) -> Any:
    """Pooling, channels last where the node says so."""

    def body(b: Builder, x: Value, xs: Value, xz: Value | None, ys: Value, yz: Value | None = None) -> Any:
        last = bool(b.get("channels_last", 0))
        real = _real(b, x, xs, xz)
        made = b(op, _channels_second(b, real) if last else real, **{name: b.get(name) for name in names})
        return _quantized(b, _channels_last(b, made) if last else made, ys, yz, x.tensor.dtype)

    return body


def _concat(b: Builder, scale: Value, zero: Value, *inputs: Value) -> Any:
    parts = [_real(b, *inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return _quantized(b, b("Concat", *parts, axis=b.need("axis")), scale, zero, zero.tensor.dtype)


compose("QLinearAdd", _binary("Add"))
compose("QLinearMul", _binary("Mul"))
compose("QLinearSigmoid", _unary("Sigmoid"))
compose("QLinearLeakyRelu", _unary("LeakyRelu", "alpha"))
compose("QLinearSoftmax", _softmax)
_WINDOW = ("kernel_shape", "strides", "pads", "auto_pad", "ceil_mode", "count_include_pad")
compose("QLinearAveragePool", _pool("AveragePool", *_WINDOW))
compose("QLinearGlobalAveragePool", _pool("GlobalAveragePool"))
compose("QLinearConcat", _concat)
compose("NhwcMaxPool", lambda b, x: _channels_last(b, b("MaxPool", _channels_second(b, x), **b.use.attributes)))

# ----------------------------------------------------------------------------------------------------------- products


def real_product(
    b: Builder,
    x: Value,
    y: Value,
    xs: Value,
    ys: Value,
    xz: Value | None = None,
    yz: Value | None = None,
    bias: Value | None = None,
) -> Value:
    """An 8-bit product as real numbers: (x - xz) * (y - yz) * xs * ys + bias."""
    total = b.cast(b("MatMulInteger", x, y, xz, yz), "float32")
    made = b("Mul", total, b("Mul", xs, ys))
    return made if bias is None else b("Add", made, bias)


def _dynamic(b: Builder, x: Value, y: Value, ys: Value, yz: Value | None = None, bias: Value | None = None) -> Any:
    data, scale, zero = b.several(3, "DynamicQuantizeLinear", x)
    return real_product(b, data, y, scale, ys, zero, yz, bias)


def _gemm(
    b: Builder, x: Value, xs: Value, xz: Value, y: Value, ys: Value, yz: Value, added: Value | None = None, *out: Any
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
    return _quantized(b, made, out[0], out[1] if len(out) > 1 else None, x.tensor.dtype)


compose("MatMulIntegerToFloat", real_product)
compose("DynamicQuantizeMatMul", _dynamic)
compose("QGemm", _gemm)

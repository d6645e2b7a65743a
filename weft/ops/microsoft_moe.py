"""MoE and QMoE: each row goes through the k experts that its router likes best, and their results are mixed.

    weights = softmax(router) of the k best, perhaps made to add up to 1
    y = sum over these experts of weight * (fc2 * activation(fc1 * x + b1) + b2)

Where there are fewer choices than experts, only the experts that were chosen are read; else every expert is multiplied
with every row, which reads each once. QMoE has them in 4 or 8 bits, with a scale for each row or block of a row; those
that are read are made floats first.
"""

from __future__ import annotations

from typing import Any

from weft.graph.ir import Value
from weft.ops.elementwise_support import infer_same
from weft.ops.expansion import Builder
from weft.ops.microsoft_blocks import bytes_as_numbers
from weft.ops.microsoft_composition import compose

ACTIVATIONS = {"relu": "Relu", "gelu": "Gelu", "silu": "Swish", "identity": "Identity"}


def _axes(b: Builder, *axes: int) -> Value:
    return b.constant(list(axes), "int64")


def _route(b: Builder, router: Value, normalized: bool) -> tuple[Value, Value]:
    """The experts of each row, and their shares: (rows, k)."""
    if b.get("use_sparse_mixer", 0):
        raise b.error("use_sparse_mixer is not supported")
    shares = b("Softmax", b.cast(router, "float32"), axis=-1)
    best, chosen = b.several(2, "TopK", shares, _axes(b, int(b.get("k", 1))), axis=-1)
    if normalized:
        best = b("Div", best, b("ReduceSum", best, _axes(b, -1), keepdims=1))
    return best, chosen


def _activate(b: Builder, x: Value) -> Value:
    """The activation between the two layers; swiglu takes gates and values in turns along the last axis."""
    name = str(b.get("activation_type", "relu"))
    if name in ACTIVATIONS:
        return b(ACTIVATIONS[name], x, approximate="tanh" if name == "gelu" else None)
    if name != "swiglu" or int(b.get("swiglu_fusion", 0)) != 1:
        raise b.error(f"the activation {name!r} with swiglu_fusion {b.get('swiglu_fusion', 0)} is not supported")
    ends, stride, last = b.constant([1 << 60], "int64"), _axes(b, 2), _axes(b, -1)
    gate, value = (b("Slice", x, _axes(b, first), ends, last, stride) for first in (0, 1))
    limit = b.get("swiglu_limit")
    if limit is not None:
        most = b.constant(float(limit), "float32")
        gate, value = b("Min", gate, most), b("Clip", value, b.constant(-float(limit), "float32"), most)
    opened = b("Swish", gate, alpha=float(b.get("activation_alpha", 1.0)))
    added = b("Add", value, b.constant(float(b.get("activation_beta", 0.0)), "float32"))
    both: Value = b("Mul", opened, added)
    return both


class _Experts:
    """One layer of all experts: `read` gives its matrices (.., outputs, inputs) as float32, all or some."""

    def __init__(self, b: Builder, codes: Value, scales: Value | None, zeros: Value | None, bits: int) -> None:
        self.b, self.codes, self.scales, self.zeros, self.bits = b, codes, scales, zeros, bits

    def read(self, chosen: Value | None) -> Value:
        """The matrices of some experts, or of all."""
        b = self.b
        parts = [p if p is None or chosen is None else b("Gather", p, chosen, axis=0) for p in self.parts()]
        codes, scales, zeros = parts
        assert codes is not None
        if scales is None:
            return b.cast(codes, "float32")
        numbers = bytes_as_numbers(b, codes, self.bits)
        block = int(b.get("block_size", 0)) or int(str(numbers.tensor.dims[-1]))
        rows = [0] * (len(numbers.tensor.dims) - 1)
        split = b("Reshape", numbers, b.constant([*rows, -1, block], "int64"))
        middle = b.constant(1 << (self.bits - 1), "int16")
        if zeros is not None:
            # Zero points lie as scales do, but that bytes hold several, and a row may end in half a byte.
            points = bytes_as_numbers(b, zeros, self.bits)
            ends = b.constant([int(str(scales.tensor.dims[-1]))], "int64")
            middle = self.of_blocks(b("Slice", points, _axes(b, 0), ends, _axes(b, -1)), split)
        factor = self.of_blocks(b.cast(scales, "float32"), split)
        real = b("Mul", b.cast(b("Sub", split, middle), "float32"), factor)
        return b("Reshape", real, b.constant([*rows, -1], "int64"))

    def of_blocks(self, factors: Value, split: Value) -> Value:
        """Numbers for each row, or each block of a row, with dimensions of 1 behind them."""
        missing = len(split.tensor.dims) - len(factors.tensor.dims)
        return self.b("Unsqueeze", factors, _axes(self.b, *range(-missing, 0)))

    def parts(self) -> tuple[Value | None, ...]:
        return self.codes, self.scales, self.zeros


def _layer(b: Builder, x: Value, experts: _Experts, bias: Value | None, chosen: Value | None) -> Value:
    """x (rows, k or 1, 1, inputs), or (1, rows, inputs) for all experts, times the experts."""
    weight = experts.read(chosen)
    order = [*range(len(weight.tensor.dims) - 2), len(weight.tensor.dims) - 1, len(weight.tensor.dims) - 2]
    made = b("MatMul", x, b("Transpose", weight, perm=order))
    if bias is None:
        return made
    wide = b.cast(bias if chosen is None else b("Gather", bias, chosen, axis=0), "float32")
    return b("Add", made, b("Unsqueeze", wide, _axes(b, -2)))


def _mix(b: Builder, x: Value, router: Value, first: _Experts, one: Any, second: _Experts, two: Any) -> Any:
    shape, kind = x.tensor.dims, x.tensor.dtype
    # ONNX Runtime's QMoE lets the shares add up to 1 whatever the attribute says.
    normalized = first.scales is not None or bool(b.get("normalize_routing_weights", 0))
    best, chosen = _route(b, router, normalized)
    rows, width, count = (b.known(size) for size in (router.tensor.dims[0], shape[-1], first.codes.tensor.dims[0]))
    x = b.cast(x, "float32")
    if rows * int(b.get("k", 1)) < count:
        given = b("Reshape", x, b.constant([rows, 1, 1, width], "int64"))
        hidden = _activate(b, _layer(b, given, first, one, chosen))
        made = b("Squeeze", _layer(b, hidden, second, two, chosen), _axes(b, 2))
        mixed = b("ReduceSum", b("Mul", made, b("Unsqueeze", best, _axes(b, -1))), _axes(b, 1), keepdims=0)
    else:
        given = b("Reshape", x, b.constant([1, rows, width], "int64"))
        hidden = _activate(b, _layer(b, given, first, one, None))
        made = _layer(b, hidden, second, two, None)
        is_chosen = b("Equal", b("Unsqueeze", chosen, _axes(b, -1)), b.range(count))
        shares = b("Mul", b.cast(is_chosen, "float32"), b("Unsqueeze", best, _axes(b, -1)))
        shares = b("Transpose", b("ReduceSum", shares, _axes(b, 1), keepdims=0), perm=[1, 0])
        mixed = b("ReduceSum", b("Mul", made, b("Unsqueeze", shares, _axes(b, -1))), _axes(b, 0), keepdims=0)
    sizes = [int(str(size)) for size in shape]
    return b.cast(b("Reshape", mixed, b.constant(sizes, "int64")), kind)


def _moe(
    b: Builder,
    x: Value,
    router: Value,
    first: Value,
    one: Value | None,
    second: Value,
    two: Value | None = None,
    third: Value | None = None,
    three: Value | None = None,
) -> Any:
    if third is not None or three is not None:
        raise b.error("a third layer of experts is not supported")
    layers = [_Experts(b, weight, None, None, 8) for weight in (first, second)]
    return _mix(b, x, router, layers[0], one, layers[1], two)


def _quantized(
    b: Builder,
    x: Value,
    router: Value,
    first: Value,
    first_scales: Value,
    one: Value | None,
    second: Value,
    second_scales: Value,
    two: Value | None = None,
    *rest: Value | None,
) -> Any:
    zeros = [*rest, *[None] * 13][3:5]
    if any(p is not None for at, p in enumerate(rest) if at not in (3, 4)) or b.get("quant_type", "int") != "int":
        raise b.error("a third layer of experts, other scales and other types than whole numbers are not supported")
    bits = int(b.get("expert_weight_bits", 4))
    if bits not in (4, 8) or any(b.get(name, 0) for name in ("fc1_expert_weight_bits", "fc2_expert_weight_bits")):
        raise b.error(f"experts of {bits} bits are not supported, nor bits for each layer")
    layers = [
        _Experts(b, codes, scales, zero, bits)
        for codes, scales, zero in ((first, first_scales, zeros[0]), (second, second_scales, zeros[1]))
    ]
    return _mix(b, x, router, layers[0], one, layers[1], two)


compose("MoE", _moe, traits="heavy", infer=infer_same)
compose("QMoE", _quantized, traits="heavy", infer=infer_same)

"""Quantized models: products of dequantized 8-bit numbers become integer products with a float epilogue.

    %a = DequantizeLinear(%x8, %xs, %xz)         %i = ConvInteger(%x8, %w8, border=xz)
    %w = DequantizeLinear(%w8, %ws)         ->   %j = Add(%i, -xz * sum of %w8 for each channel)
    %c = Conv(%a, %w, %b)                        %c = Add(Mul(Cast(%j, float32), xs * ws), %b)
    %y = QuantizeLinear(%c, %ys, %yz)            %y = QuantizeLinear(%c, %ys, %yz)

The weights stay 8-bit; the sums are exact, so that the result is that of the model up to the rounding of float32. What
stands between (a residual, Relu) stays float arithmetic, which fusion puts behind the product. Zero points become a
constant for each channel; unsigned weights become signed ones, and signed data unsigned ones where a QuantizeLinear
makes them, since that (u8 times s8) is the product that processors have. ConvInteger and MatMulInteger, of which
QLinearConv and QLinearMatMul are made, take the same form.

What a QuantizeLinear divides by goes into constants that its input was multiplied with and added to, where nothing else
reads that: (x * a + b) / s becomes x * (a / s) + b / s, a division less for each element (`WEFT_EXACT` keeps it).

A DequantizeLinear moves behind operators that only copy, so that products see it, and one that undoes a QuantizeLinear
of the same scale goes with it: QuantizeLinear(DequantizeLinear(x)) -> x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.core.knobs import knobs
from weft.expr.intrinsics import FLOAT8_FORMS
from weft.graph.ir import NUMPY_TYPES, Array, Graph, Node, TensorType, Value, all_graphs, dtype_name
from weft.graph.opspec import has
from weft.graph.passes.infer import results_of
from weft.graph.passes.narrow_weights import DOMAIN as NARROW_DOMAIN
from weft.graph.passes.narrow_weights import NAME as NARROW_MATMUL
from weft.graph.passes.support import Replacement, Rule, Scope, until_stable

BYTES = ("int8", "uint8")

_FLOAT32, _INT32 = 1, 6
"""Element types as attributes name them."""


def quantized(graph: Graph) -> Graph:
    """The graph with integer products; the same object where there is nothing to change."""
    found = {node.op for inner in all_graphs(graph) for node in inner.nodes if not node.domain}
    if found.isdisjoint(("DequantizeLinear", *_OF_INTEGERS)):
        return graph
    return until_stable(graph, _rule)


def _rule(node: Node, scope: Scope) -> Replacement:
    rule = scope.rule = _behind_copy if has(node, "moves") else None if node.domain else _RULES.get(node.op)
    return None if rule is None or len(node.outputs) != 1 else rule(node, scope)


# ---------------------------------------------------------------------------------------------------------- looking


def _known(value: Value | None, scope: Scope, depth: int = 4) -> Array | None:
    """The array of a value that constants decide, also where a few nodes stand between."""
    array = scope.constant(value)
    if array is not None or depth == 0:
        return array
    node = scope.producer(value, "QuantizeLinear", "DequantizeLinear", "Transpose", "Reshape", "Identity", "Constant")
    if node is None:
        return None
    arrays = [None if v is None else _known(v, scope, depth - 1) for v in node.inputs]
    if any(v is not None and a is None for v, a in zip(node.inputs, arrays)):
        return None
    made = results_of(node, arrays)
    return None if made is None else made[0]


class _Quantized:
    """One operand: its numbers, and the scale and zero point that give them their meaning."""

    __slots__ = ("value", "numbers", "scale", "zero", "axis")

    def __init__(self, value: Value, numbers: Array | None, scale: Array, zero: Array, axis: int | None) -> None:
        self.value = value
        self.numbers = numbers
        self.scale = scale
        self.zero = zero
        self.axis = axis

    @property
    def is_float(self) -> bool:
        """Whether its numbers are float8."""
        return self.value.tensor.dtype in FLOAT8_FORMS

    @property
    def is_uniform(self) -> bool:
        """Whether one scale and one zero point hold for the whole tensor."""
        return self.axis is None


def _dequantized(value: Value | None, scope: Scope) -> _Quantized | None:
    """What a value dequantizes: small integers with a known scale, one for the tensor or one along an axis."""
    node = scope.producer(value, "DequantizeLinear")
    if node is None or not isinstance(node.outputs[0].type, TensorType) or node.outputs[0].type.dtype != "float32":
        return None
    source = node.inputs[0]
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return _described(source, node.inputs[1], zero, int(node.attributes.get("axis", 1)), scope)


def _described(
    source: Value | None, scale_value: Value | None, zero_value: Value | None, axis: int, scope: Scope
) -> _Quantized | None:
    if source is None or not isinstance(source.type, TensorType) or source.type.shape is None:
        return None
    scale = _known(scale_value, scope)
    if scale is None or dtype_name(scale.dtype) != "float32" or scale.ndim > 1 or not (scale > 0).all():
        return None
    zero = np.zeros(scale.shape, np.int32) if zero_value is None else _known(zero_value, scope)
    if zero is None:
        return None
    numbers = _known(source, scope)
    if source.type.dtype in FLOAT8_FORMS and np.any(zero):
        return None
    narrow = source.type.dtype in (*BYTES, *FLOAT8_FORMS) or (
        numbers is not None and source.type.dtype in ("int4", "uint4")
    )
    if not narrow:
        return None
    whole = zero.astype(np.int32)
    if scale.size == 1 and whole.size == 1:
        return _Quantized(source, numbers, scale.reshape(()), whole.reshape(()), None)
    place = axis + source.type.rank if axis < 0 else axis
    return _Quantized(source, numbers, scale.reshape(-1), np.broadcast_to(whole.reshape(-1), scale.size), place)


# --------------------------------------------------------------------------------------------------------- building


def _unsigned(data: _Quantized, node: Node, scope: Scope) -> _Quantized:
    """Signed data as unsigned, where the QuantizeLinear that makes it can make that instead."""
    maker = scope.producer(data.value, "QuantizeLinear")
    if maker is None or data.value.tensor.dtype != "int8" or len(maker.inputs) < 3:
        return data
    own = _known(maker.inputs[2], scope)
    if own is None or own.size != 1:
        return data
    zero = scope.new_constant(np.array(int(own.reshape(())) + 128, np.uint8), f"{data.value.name}_zero")
    kept = {key: value for key, value in maker.attributes.items() if key != "output_dtype"}
    made = scope.make(maker, "QuantizeLinear", [maker.inputs[0], maker.inputs[1], zero], **kept)
    return _Quantized(made, None, data.scale, data.zero + 128, None)


def _signed(weight: _Quantized, shape: Sequence[int]) -> Array:
    """The weight without its zero point (which has this shape to broadcast): 8-bit where it fits, else 16-bit."""
    assert weight.numbers is not None
    whole = weight.numbers.astype(np.int32) - weight.zero.reshape(shape)
    fits = whole.size == 0 or (whole.min() >= -128 and whole.max() <= 127)
    return whole.astype(np.int8 if fits else np.int16)


def _finished(
    node: Node, total: Value, offset: Array, factor: Array, bias: Value | None, scope: Scope
) -> list[Node] | None:
    """(total + offset) * factor + bias in float32, as the output of a node."""
    name = node.outputs[0].name
    if np.any(offset):
        total = scope.make(node, "Add", [total, scope.new_constant(offset.astype(np.int32), f"{name}_offset")])
    real = scope.make(node, "Cast", [total], to=_FLOAT32)
    scale = scope.new_constant(factor.astype(np.float32), f"{name}_scale")
    if bias is None:
        return [Node("Mul", [real, scale], node.outputs, {}, node.name, node.origin)]
    scaled = scope.make(node, "Mul", [real, scale])
    return [Node("Add", [scaled, bias], node.outputs, {}, node.name, node.origin)]


# ----------------------------------------------------------------------------------------------------- convolutions


def _integer_convolution(
    node: Node, data: _Quantized, weight: _Quantized, scope: Scope
) -> tuple[Value, Array, Array] | None:
    """The raw sums, what takes the zero point off, and the scale; both shaped to broadcast with the result."""
    if (
        not data.is_uniform
        or weight.numbers is None
        or weight.axis not in (None, 0)
        or data.is_float
        or weight.is_float
    ):
        return None
    rank = weight.numbers.ndim
    each = (-1, *[1] * (rank - 1))
    numbers = _signed(weight, each if weight.axis == 0 else ())
    data = _unsigned(data, node, scope)
    kernel = scope.new_constant(numbers, f"{weight.value.name}_numbers")
    attributes = {**node.attributes, "border": int(data.zero)}
    total = scope.make(node, "ConvInteger", [data.value, kernel], **attributes)
    sums = numbers.astype(np.int64).sum(axis=tuple(range(1, rank)))
    along = (1, -1, *[1] * (rank - 2))
    scale = data.scale * weight.scale
    return total, (-int(data.zero) * sums).reshape(along), scale.reshape(along) if weight.axis == 0 else scale


def _convolution(node: Node, scope: Scope) -> Replacement:
    """Conv of dequantized operands."""
    data, weight = _dequantized(node.inputs[0], scope), _dequantized(node.inputs[1], scope)
    found = None if data is None or weight is None else _integer_convolution(node, data, weight, scope)
    if found is None:
        return None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and weight is not None and weight.numbers is not None:
        bias = _along_channels(node, bias, weight.numbers.ndim, scope)
    return _finished(node, *found, bias, scope)


def _along_channels(node: Node, bias: Value, rank: int, scope: Scope) -> Value:
    known = _known(bias, scope)
    shape = (1, -1, *[1] * (rank - 2))
    if known is not None:
        return scope.new_constant(known.reshape(shape), f"{bias.name}_channels")
    return scope.make(node, "Reshape", [bias, scope.new_constant(np.array(shape, np.int64), "shape")])


def _convolution_without_zero_points(node: Node, scope: Scope) -> Replacement:
    """ConvInteger whose weight and zero points are known."""
    return _without_zero_points(node, _integer_convolution, (1, 0), scope)


def _without_zero_points(
    node: Node,
    sums: Callable[[Node, _Quantized, _Quantized, Scope], tuple[Value, Array, Array] | None],
    axes: tuple[int, int],
    scope: Scope,
) -> Replacement:
    """Sums of raw numbers, and what takes zero points off, which are known."""
    x, w, x_zero, w_zero = [*node.inputs, None, None][:4]
    if x_zero is None and w_zero is None:
        return None
    data = _described(x, _units(x_zero, scope), x_zero, axes[0], scope)
    weight = _described(w, _units(w_zero, scope), w_zero, axes[1], scope)
    found = None if data is None or weight is None else sums(node, data, weight, scope)
    if found is None:
        return None
    offset = scope.new_constant(found[1].astype(np.int32), f"{node.outputs[0].name}_offset")
    return [Node("Add", [found[0], offset], node.outputs, {}, node.name, node.origin)]


def _units(zero: Value | None, scope: Scope) -> Value:
    """Scales of 1, as many as there are zero points."""
    known = _known(zero, scope)
    return scope.new_constant(np.ones(() if known is None else known.shape, np.float32), "one")


# ---------------------------------------------------------------------------------------------------------- products


def _integer_product(
    node: Node, data: _Quantized, weight: _Quantized, scope: Scope
) -> tuple[Value, Array, Array] | None:
    """The same for a product with a known matrix on the right; its scale is one, or one for each column."""
    numbers = weight.numbers
    if not data.is_uniform or numbers is None or numbers.ndim != 2 or weight.axis not in (None, 1):
        return None
    signed = _signed(weight, (1, -1) if weight.axis == 1 else ())
    data = _unsigned(data, node, scope)
    matrix = scope.new_constant(signed, f"{weight.value.name}_numbers")
    total = scope.make(node, "MatMulInteger", [data.value, matrix])
    return total, -int(data.zero) * signed.astype(np.int64).sum(axis=0), data.scale * weight.scale


def _product(node: Node, scope: Scope) -> Replacement:
    """MatMul and Gemm of dequantized operands."""
    data, weight = _dequantized(node.inputs[0], scope), _dequantized(node.inputs[1], scope)
    if weight is None or node.attributes.get("transA", 0) or (data is None and not weight.is_float):
        return None
    alpha, beta = float(node.attributes.get("alpha", 1.0)), float(node.attributes.get("beta", 1.0))
    bias = node.inputs[2] if len(node.inputs) > 2 and beta != 0 else None
    if bias is not None and beta != 1:
        return None
    if node.attributes.get("transB", 0):
        weight = _turned(weight)
    if weight is None:
        return None
    if data is None or data.is_float or weight.is_float:
        return _float_product(node, data, weight, alpha, bias, scope)
    if weight.numbers is None and bias is None and data.is_uniform and weight.is_uniform:
        return _product_of_data(node, data, weight, alpha, scope)
    found = _integer_product(node, data, weight, scope)
    if found is None:
        return None
    return _finished(node, found[0], found[1], found[2] * np.float32(alpha), bias, scope)


def _float_product(
    node: Node, data: _Quantized | None, weight: _Quantized, alpha: float, bias: Value | None, scope: Scope
) -> Replacement:
    """A product of float8, or with weights of it; the scale is one, or one for each row or column of the result."""
    x = node.inputs[0]
    if data is None:
        if weight.numbers is None or x is None or not isinstance(x.type, TensorType) or x.type.dtype != "float32":
            return None
        data = _Quantized(x, None, np.ones((), np.float32), np.zeros((), np.int32), None)
    elif not (data.is_float and weight.is_float):
        return None
    if (
        weight.value.tensor.rank != 2
        or weight.axis not in (None, 1)
        or data.axis not in (None, data.value.tensor.rank - 2)
    ):
        return None
    matrix = weight.value
    if weight.numbers is not None:
        matrix = scope.new_constant(np.ascontiguousarray(weight.numbers), f"{weight.value.name}_numbers")
    total = scope.make(node, NARROW_MATMUL, [data.value, matrix], NARROW_DOMAIN)
    rows = data.scale if data.is_uniform else data.scale.reshape(-1, 1)
    return _finished(node, total, np.zeros((), np.int32), rows * weight.scale * np.float32(alpha), bias, scope)


def _turned(weight: _Quantized) -> _Quantized | None:
    """A known matrix, transposed."""
    if weight.numbers is None or weight.numbers.ndim != 2:
        return None
    axis = None if weight.axis is None else 1 - weight.axis
    return _Quantized(weight.value, weight.numbers.T, weight.scale, weight.zero, axis)


def _product_of_data(node: Node, a: _Quantized, b: _Quantized, alpha: float, scope: Scope) -> Replacement:
    """Both operands are known only when the model runs: the operator takes the zero points off."""
    zeros = [
        scope.new_constant(one.zero.astype(NUMPY_TYPES[one.value.tensor.dtype]), f"{one.value.name}_zero")
        for one in (a, b)
    ]
    total = scope.make(node, "MatMulInteger", [a.value, b.value, *zeros])
    return _finished(node, total, np.zeros((), np.int32), a.scale * b.scale * np.float32(alpha), None, scope)


def _sums_without_zero_points(node: Node, scope: Scope) -> Replacement:
    """MatMulInteger with a known matrix: its zero point goes into it, and the sums of its columns are computed now."""
    made = _without_zero_points(node, _integer_product, (-2, -1), scope)
    if made is not None:
        return made
    a, b, a_zero, b_zero = [*node.inputs, None, None][:4]
    numbers, shift = _known(b, scope), None if b_zero is None else _known(b_zero, scope)
    if a is None or b is None or numbers is None or numbers.ndim != 2 or (b_zero is not None and shift is None):
        return None
    if (a_zero is None and b_zero is None) or (a_zero is not None and not _is_number(a_zero)):
        return None
    if shift is not None and shift.any():
        whole = shift.astype(np.int32)
        numbers = _signed(_Quantized(b, numbers, np.ones(()), whole, None), whole.shape)
    matrix = scope.new_constant(numbers, f"{b.name}_numbers")
    if a_zero is None:
        return [node.replace(inputs=[a, matrix])]
    total = scope.make(node, "MatMulInteger", [a, matrix])
    sums = scope.new_constant(-numbers.astype(np.int32).sum(axis=0, dtype=np.int32), f"{b.name}_sums")
    zero = scope.make(node, "Cast", [a_zero], to=_INT32)
    if zero.tensor.rank:
        zero = scope.make(node, "Reshape", [zero, scope.new_constant(np.zeros(0, np.int64), "shape")])
    offset = scope.make(node, "Mul", [zero, sums])
    return [Node("Add", [total, offset], node.outputs, {}, node.name, node.origin)]


def _is_number(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, TensorType) and kind.is_static and int(np.prod(kind.static)) == 1


# ------------------------------------------------------------------------------------------------------------- moving


def _behind_copy(node: Node, scope: Scope) -> Replacement:
    """A copying operator of a dequantized value -> the dequantized copy of the small integers."""
    before = scope.producer(node.inputs[0], "DequantizeLinear")
    source = None if before is None else _dequantized(node.inputs[0], scope)
    if before is None or source is None:
        return None
    attributes = dict(before.attributes)
    if source.axis is not None:
        if node.op != "Transpose":
            return None
        rank = source.value.tensor.rank
        attributes["axis"] = list(node.attributes.get("perm") or reversed(range(rank))).index(source.axis)
    copy = scope.make(node, node.op, [source.value, *node.inputs[1:]], node.domain, **node.attributes)
    return [Node("DequantizeLinear", [copy, *before.inputs[1:]], node.outputs, attributes, node.name, node.origin)]


def _quantizing(node: Node, scope: Scope) -> Replacement:
    """QuantizeLinear: undone, or without a division."""
    made = _undone(node, scope)
    return made if made is not None or knobs.exact else _without_division(node, scope)


def _without_division(node: Node, scope: Scope) -> Replacement:
    scale = scope.constant(node.inputs[1])
    if scale is None or scale.size != 1 or scale.dtype != np.float32 or node.attributes.get("precision", 0):
        return None
    divisor = np.float32(scale.reshape(()))
    if divisor == 1 or not np.isfinite(divisor) or divisor <= 0:
        return None
    if scope.constant(node.inputs[0]) is not None or not _is_divisible(node.inputs[0], scope):
        return None
    one = scope.new_constant(np.ones(scale.shape, np.float32), "one")
    return [node.replace(inputs=[_divided(node.inputs[0], divisor, scope), one, *node.inputs[2:]])]


_DIVIDED = {"Add": (True, 0, 1), "Relu": (True, 0), "Mul": (False, 0, 1), "DequantizeLinear": (False, 1)}
"""Which inputs of operators are divided where the result is: all of these, or a constant among them."""


def _factors(node: Node, scope: Scope) -> list[int]:
    """Which inputs of a node are divided where its result is; none: it is impossible."""
    all_of_them, *places = _DIVIDED[node.op]
    return places if all_of_them else [i for i in places if scope.constant(node.inputs[i]) is not None][:1]


def _is_divisible(value: Value | None, scope: Scope) -> bool:
    """Whether constants that a value is made with can be divided instead of it, and nothing else reads it."""
    if scope.constant(value) is not None:
        return True
    node = scope.single(value, *_DIVIDED)
    if node is None or node.outputs[0].tensor.dtype != "float32":
        return False
    places = _factors(node, scope)
    return bool(places) and all(_is_divisible(node.inputs[i], scope) for i in places)


def _divided(value: Value | None, divisor: np.float32, scope: Scope) -> Value:
    """Such a value over a divisor."""
    assert value is not None
    known = scope.constant(value)
    if known is not None:
        return scope.new_constant((known / divisor).astype(np.float32), value.name)
    node = scope.producers[value]
    places = _factors(node, scope)
    inputs = [_divided(v, divisor, scope) if i in places else v for i, v in enumerate(node.inputs)]
    return scope.make(node, node.op, inputs, **node.attributes)


def _undone(node: Node, scope: Scope) -> Replacement:
    """QuantizeLinear of a DequantizeLinear with the same scale and zero point -> the small integers."""
    before = scope.producer(node.inputs[0], "DequantizeLinear")
    if before is None or before.inputs[0] is None or before.inputs[0].type is None:
        return None
    scale = _known(node.inputs[1], scope)
    if scale is None or not (scale > 0).all() or (scale.size > 1 and before.attributes != node.attributes):
        return None
    for at in (1, 2):
        mine, other = (one.inputs[at] if at < len(one.inputs) else None for one in (node, before))
        a, b = (None if v is None else _known(v, scope) for v in (mine, other))
        if mine is not other and (a is None or b is None or a.dtype != b.dtype or not np.array_equal(a, b)):
            return None
    same_kind = before.inputs[0].tensor.dtype == node.outputs[0].tensor.dtype
    return before.inputs[0] if same_kind else None


_OF_INTEGERS: dict[str, Rule] = {
    "ConvInteger": _convolution_without_zero_points,
    "MatMulInteger": _sums_without_zero_points,
}
"""The rules of operators on integers."""

_RULES: dict[str, Rule] = {
    **_OF_INTEGERS,
    "Conv": _convolution,
    "MatMul": _product,
    "Gemm": _product,
    "QuantizeLinear": _quantizing,
}
"""The rules by operator; those that only move elements have another."""

"""Rules of `simplify` for what exporters write out in small operators.

    0.5 * x * (1 + erf(x / sqrt(2)))                              -> Gelu(x)
    0.5 * x * (1 + tanh(0.79788 * (x + 0.044715 * x^3)))          -> Gelu(x, approximate="tanh")
    x * sigmoid(a * x)                                            -> Swish(x, alpha=a)
    x * tanh(softplus(x))                                         -> Mish(x)
    x * clip(x + 3, 0, 6) / 6                                     -> HardSwish(x)
    (x - mean(x)) / sqrt(mean((x - mean(x))^2) + e) * g + b       -> LayerNormalization(x, g, b)
    x / sqrt(mean(x^2) + e) * g                                   -> RMSNormalization(x, g)
    exp(x - max(x)) / sum(exp(x - max(x)))                        -> Softmax(x)
    MatMul(a, b) + c, for matrices                                -> Gemm(a, b, c)
    mean(x) over all places of an image                           -> GlobalAveragePool(x)
    InstanceNormalization of reshaped channels * g + b            -> GroupNormalization(x, g, b)  (`simplify_groups`)

Only values that nothing else reads are swallowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.graph.ir import Node, TensorType, Value
from weft.graph.opspec import find_operator
from weft.graph.passes.infer import same_type
from weft.graph.passes.patterns import Anything, Either, Match, Number, Op, Pattern, Product, Shared
from weft.graph.passes.simplify_groups import group_norm
from weft.graph.passes.support import Replacement, Rule, Scope, orders, swap

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _floating(value: Value | None) -> bool:
    return value is not None and isinstance(value.type, TensorType) and value.type.dtype in _FLOATS


# ------------------------------------------------------------------------------------------------------- activations


def _one_plus(f: Pattern) -> Pattern:
    return Op("Add", f, Number(1.0))


X, ALPHA = Anything(), Number()
CUBE, SQUARE = 0.044715, Shared(Op("Mul", X, X)) | Op("Pow", X, Number(2.0))
INSIDE_TANH = (
    Product(math.sqrt(2 / math.pi), Op("Add", X, Product(CUBE, X, X, X)))
    | Product(math.sqrt(2 / math.pi), Op("Add", X, Product(CUBE, X, SQUARE)))
    | Product(math.sqrt(2 / math.pi), Op("Add", X, Product(CUBE, Op("Pow", X, Number(3.0)))))
    | Product(math.sqrt(2 / math.pi), X, _one_plus(Product(CUBE, X, X)))
    | Product(math.sqrt(2 / math.pi), X, _one_plus(Product(CUBE, SQUARE)))
)
HARD_SIGMOID = Op("HardSigmoid", X)
HALF, ONE, SIXTH = Number(0.5, near=True), Number(1.0), Number(1 / 6, near=True)

ACTIVATIONS: tuple[tuple[Number, Pattern, str, dict[str, Any]], ...] = (
    (HALF, _one_plus(Op("Erf", Product(math.sqrt(0.5), X))), "Gelu", {}),
    (HALF, _one_plus(Op("Tanh", INSIDE_TANH)), "Gelu", {"approximate": "tanh"}),
    (ONE, Op("Sigmoid", Product(ALPHA, X)), "Swish", {"alpha": ALPHA}),
    (ONE, Op("Tanh", Op("Softplus", X)), "Mish", {}),
    (ONE, HARD_SIGMOID, "HardSwish", {}),
    (SIXTH, Op("Clip", Op("Add", X, Number(3.0)), Number(0.0), Number(6.0)), "HardSwish", {}),
)
"""A number times x times a pattern: an operator of x, with attributes."""
FACTOR = Number()
ACTIVATION = Product(FACTOR, X, Either(*(pattern for _, pattern, _, _ in ACTIVATIONS)))


def activation(node: Node, scope: Scope) -> Replacement:
    """Products that are Gelu, Swish, Mish or HardSwish."""
    found = ACTIVATION.find(node, scope) if _floating(node.outputs[0]) else None
    if found is None or not same_type(found[X].type, node.outputs[0].type):
        return None
    for number, pattern, op, attributes in ACTIVATIONS:
        if pattern in found.values and number.accepts(found.numbers[FACTOR], found[X]):
            if pattern is not HARD_SIGMOID or _is_sixth(scope.producers[found[HARD_SIGMOID]]):
                given = {key: found.numbers.get(value, value) for key, value in attributes.items()}
                return swap(node, op, [found[X]], **given)
    return None


def _is_sixth(hard: Node) -> bool:
    """Whether a HardSigmoid is clip(x / 6 + 0.5, 0, 1)."""
    slope = SIXTH.accepts(hard.attributes.get("alpha", 0.2), hard.outputs[0])
    return slope and hard.attributes.get("beta", 0.5) == 0.5


# ---------------------------------------------------------------------------------------------------- normalisations


def _root(t: Pattern) -> Pattern:
    return Op("Sqrt", t) | Op("Pow", t, Number(0.5))


def _inverse_root(t: Pattern) -> Pattern:
    return Op("Pow", t, Number(-0.5)) | Op("Reciprocal", _root(t)) | Op("Div", Number(1.0), _root(t))


def _mean(of: Pattern) -> Pattern:
    return Op("ReduceMean", of, Anything()) | Op("GlobalAveragePool", of)


def _spread(d: Pattern) -> Pattern:
    return _mean(Op("Mul", d, d) | Op("Pow", d, Number(2.0)))


def _normal(d: Pattern, spread: Pattern) -> Pattern:
    under = Op("Add", spread, EPSILON)
    return Op("Div", d, _root(under)) | Op("Mul", d, _inverse_root(under))


EPSILON, SCALE, BIAS = Number(), Anything(), Anything()
MEAN = _mean(X)
CENTRED = Op("Sub", X, MEAN)
SPREAD, SPREAD_OF_CENTRED = _spread(X), _spread(CENTRED)
RMS_NORM, LAYER_NORM = _normal(X, SPREAD), _normal(CENTRED, SPREAD_OF_CENTRED)
RATE = Shared(Op("Mul", SCALE, _inverse_root(Op("Add", SPREAD_OF_CENTRED, EPSILON))))
SPREAD_NORM = Op("Add", Op("Mul", X, RATE), Op("Add", Op("Mul", Op("Neg", Shared(MEAN)), RATE), BIAS))


def _first_axis(found: Match, means: Sequence[Pattern], scope: Scope) -> int | None:
    """The first of the axes that means are over: for all of them just those from one on."""
    firsts = set()
    for pattern in means:
        node = scope.producer(found[pattern])
        assert node is not None
        source = node.inputs[0]
        if source is None or not isinstance(source.type, TensorType) or source.type.shape is None:
            return None
        rank = source.type.rank
        axes = np.arange(2, rank) if node.op == "GlobalAveragePool" else scope.constant(node.inputs[1])
        if axes is None or not axes.size or node.attributes.get("keepdims", 1) != 1:
            return None
        places = sorted(int(axis) % rank for axis in axes.ravel())
        firsts.add(places[0] if places == list(range(places[0], rank)) else None)
    return firsts.pop() if len(firsts) == 1 else None


def normalization(node: Node, scope: Scope) -> Replacement:
    """d / sqrt(mean(d^2) + e) -> LayerNormalization for d = x - mean(x), RMSNormalization for any other d."""
    if not _floating(node.outputs[0]):
        return None
    forms = (("LayerNormalization", LAYER_NORM, (MEAN, SPREAD_OF_CENTRED)), ("RMSNormalization", RMS_NORM, (SPREAD,)))
    for op, pattern, means in forms:
        found = pattern.find(node, scope)
        axis = None if found is None else _first_axis(found, means, scope)
        if found is not None and axis is not None and same_type(found[X].type, node.outputs[0].type):
            return _normalized(node, op, found[X], axis, found.numbers[EPSILON], scope)
    return None


def spread_normalization(node: Node, scope: Scope) -> Replacement:
    """x r + (-mean(x) r + b), for r = w / sqrt(mean((x - mean(x))^2) + e) -> LayerNormalization(x, w, b)."""
    found = SPREAD_NORM.find(node, scope) if _floating(node.outputs[0]) else None
    axis = None if found is None else _first_axis(found, (MEAN, SPREAD_OF_CENTRED), scope)
    if found is None or axis is None or not _fits(found[BIAS], found[SCALE]):
        return None
    x, scale = found[X], found[SCALE]
    if (
        not same_type(x.type, node.outputs[0].type)
        or not isinstance(scale.type, TensorType)
        or scale.type.shape != tuple(x.tensor.dims[axis:])
    ):
        return None
    epsilon = found.numbers[EPSILON]
    return swap(node, "LayerNormalization", [x, scale, found[BIAS]], axis=axis - x.tensor.rank, epsilon=epsilon)


def _normalized(node: Node, op: str, x: Value, axis: int, epsilon: float, scope: Scope) -> Replacement:
    if find_operator(op) is None or not isinstance(x.type, TensorType) or x.type.shape is None:
        return None
    sizes = x.type.shape[axis:]
    if not all(isinstance(d, int) for d in sizes):
        return None
    ones = scope.new_constant(np.ones([int(d) for d in sizes if isinstance(d, int)], x.type.numpy), f"{x.name}_scale")
    return swap(node, op, [x, ones], axis=axis - x.type.rank, epsilon=epsilon)


HIGHEST = Op("ReduceMax", X, Anything())
POWERS = Op("Exp", Op("Sub", X, HIGHEST))
TOTAL = Op("ReduceSum", POWERS, Anything())
SOFTMAX = Op("Div", POWERS, TOTAL)


def softmax(node: Node, scope: Scope) -> Replacement:
    """exp(x - max(x)) / sum(exp(x - max(x))) over one axis -> Softmax."""
    found = SOFTMAX.find(node, scope)
    if found is None:
        return None
    total, highest = (_one_axis(scope.producers[found[part]], scope) for part in (TOTAL, HIGHEST))
    return None if total is None or total != highest else swap(node, "Softmax", [found[X]], axis=total)


def _one_axis(node: Node, scope: Scope) -> int | None:
    """The only axis of a reduction that keeps it, from the back."""
    axes = scope.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    source = node.inputs[0]
    if axes is None or axes.size != 1 or node.attributes.get("keepdims", 1) != 1 or source is None:
        return None
    if not isinstance(source.type, TensorType) or source.type.shape is None:
        return None
    axis = int(axes.reshape(()))
    return axis if axis < 0 else axis - source.type.rank


def scale_of_normalization(node: Node, scope: Scope) -> Replacement:
    """A normalisation whose scale is 1, times a tensor of the normalised shape -> that is its scale."""
    for source, factor in orders(node):
        before = scope.single(source, "LayerNormalization", "RMSNormalization")
        if before is None or factor is None or len(before.inputs) != 2 or len(before.outputs) != 1:
            continue
        ones = scope.constant(before.inputs[1])
        if ones is not None and (ones == 1).all() and _fits(factor, before.inputs[1]):
            return [before.replace(inputs=[before.inputs[0], factor], outputs=node.outputs)]
    return None


def bias_of_normalization(node: Node, scope: Scope) -> Replacement:
    """A layer normalisation without bias, plus a tensor of the normalised shape -> that is its bias."""
    for source, term in orders(node):
        before = scope.single(source, "LayerNormalization")
        if before is None or term is None or len(before.outputs) != 1:
            continue
        if len(before.inputs) == 2 and _fits(term, before.inputs[1]):
            return [before.replace(inputs=[*before.inputs, term], outputs=node.outputs)]
    return None


def _fits(value: Value, scale: Value | None) -> bool:
    return scale is not None and value.type is not None and same_type(value.type, scale.type)


def mean_of_places(node: Node, scope: Scope) -> Replacement:
    """A mean over all places of images: an operator that reads them in whatever layout they have."""
    source, axes = node.inputs[0], scope.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if source is None or axes is None or not _floating(source) or not source.tensor.is_static:
        return None
    sizes = source.tensor.static
    if len(sizes) < 4 or 0 in sizes or sorted(int(a) % len(sizes) for a in axes.ravel()) != list(range(2, len(sizes))):
        return None
    if node.attributes.get("keepdims", 1):
        return swap(node, "GlobalAveragePool", [source])
    shape = scope.new_constant(np.array(sizes[:2], np.int64), f"{source.name}_shape")
    return swap(node, "Reshape", [scope.make(node, "GlobalAveragePool", [source]), shape])


# ---------------------------------------------------------------------------------------------------------- products


def bias_of_product(node: Node, scope: Scope) -> Replacement:
    """A product of matrices plus a tensor that broadcasts to it -> Gemm."""
    if not _floating(node.outputs[0]) or find_operator("Gemm") is None:
        return None
    for source, term in orders(node):
        before = scope.single(source, "MatMul", "Gemm")
        if before is None or term is None or not _is_matrix(before, node.outputs[0]) or len(before.inputs) > 2:
            continue
        if isinstance(term.type, TensorType) and term.type.is_static and len(term.type.static) <= 2:
            kept = {key: value for key, value in before.attributes.items() if key != "beta"}
            return swap(node, "Gemm", [*before.inputs, term], **kept)
    return None


def _is_matrix(node: Node, result: Value) -> bool:
    types: Sequence[object] = [v.type if v is not None else None for v in (*node.inputs[:2], node.outputs[0], result)]
    if not all(isinstance(t, TensorType) and t.shape is not None and len(t.shape) == 2 for t in types):
        return False
    return same_type(node.outputs[0].type, result.type)


def plain_gemm(node: Node, scope: Scope) -> Replacement:
    """A transposed constant is stored transposed; a Gemm that is a plain product -> MatMul."""
    usual = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    told = {key: value for key, value in node.attributes.items() if usual.get(key) != value}
    if len(told) != len(node.attributes):
        return [node.replace(attributes=told)]
    for at, key in ((0, "transA"), (1, "transB")):
        array = scope.constant(node.inputs[at])
        value = node.inputs[at]
        if node.attributes.get(key) and array is not None and value is not None and scope.uses[value] == 1:
            inputs = list(node.inputs)
            inputs[at] = scope.new_constant(array.T, f"{value.name}_transposed")
            attributes = {k: v for k, v in node.attributes.items() if k != key}
            return [node.replace(inputs=inputs, attributes=attributes)]
    if (len(node.inputs) < 3 or node.inputs[2] is None) and _is_plain(node) and _floating(node.outputs[0]):
        return swap(node, "MatMul", node.inputs[:2])
    return None


def _is_plain(node: Node) -> bool:
    turned = node.attributes.get("transA", 0) or node.attributes.get("transB", 0)
    return not turned and node.attributes.get("alpha", 1.0) == 1


PATTERN_RULES: dict[str, list[Rule]] = {
    "Mul": [activation, normalization, scale_of_normalization],
    "Div": [activation, normalization, softmax],
    "Add": [bias_of_normalization, spread_normalization, bias_of_product, group_norm],
    "Gemm": [plain_gemm],
    "ReduceMean": [mean_of_places],
}
"""The rules by operator."""

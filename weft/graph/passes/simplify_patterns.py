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
from collections import Counter
from collections.abc import Sequence

import numpy as np

from weft.graph.ir import Node, TensorType, Value
from weft.graph.opspec import find_operator
from weft.graph.passes.infer import same_type
from weft.graph.passes.simplify_groups import group_norm
from weft.graph.passes.support import Replacement, Rule, Scope, orders, swap

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _near(number: float | None, wanted: float, like: Value) -> bool:
    """Whether a number of the model is a wanted one, as exactly as its element type can say."""
    close = 1e-5 if like.tensor.dtype in ("float32", "float64") else 5e-3
    return number is not None and abs(number - wanted) <= close * abs(wanted)


def _floating(value: Value | None) -> bool:
    return value is not None and isinstance(value.type, TensorType) and value.type.dtype in _FLOATS


# ------------------------------------------------------------------------------------------------------- activations


class _Product:
    """A product of single-use factors, flattened: a number times values."""

    def __init__(self, value: Value | None, scope: Scope, root: Node | None = None) -> None:
        self.number = 1.0
        self.values: list[Value] = []
        self._add(value, scope, root)

    def _add(self, value: Value | None, scope: Scope, root: Node | None = None) -> None:
        number = scope.scalar(value)
        node = root or scope.single(value, "Mul", "Div")
        if number is not None:
            self.number *= number
        elif node is not None and node.op == "Mul":
            self._add(node.inputs[0], scope)
            self._add(node.inputs[1], scope)
        elif node is not None and scope.scalar(node.inputs[1]):
            self._add(node.inputs[0], scope)
            self.number /= scope.scalar(node.inputs[1]) or 1.0
        elif value is not None:
            self.values.append(value)


def _plus_one(value: Value, scope: Scope, *ops: str) -> Node | None:
    """The f(…) of 1 + f(…)."""
    node = scope.single(value, "Add")
    for a, b in orders(node) if node is not None else ():
        found = scope.single(a, *ops)
        if found is not None and scope.scalar(b) == 1:
            return found
    return None


def activation(node: Node, scope: Scope) -> Replacement:
    """Products that are Gelu, Swish, Mish or HardSwish."""
    if not _floating(node.outputs[0]):
        return None
    product = _Product(node.outputs[0], scope, root=node)
    if len(product.values) != 2 or not math.isfinite(product.number):
        return None
    for x, other in (product.values, product.values[::-1]):
        if x.type is None or not _same_shape(x, node.outputs[0]):
            continue
        for matcher in (_gelu, _swish, _mish, _hard_swish):
            found = matcher(node, x, other, product.number, scope)
            if found is not None and find_operator(found[0].op) is not None:
                return found
    return None


def _same_shape(a: Value, b: Value) -> bool:
    return same_type(a.type, b.type)


def _gelu(node: Node, x: Value, other: Value, number: float, scope: Scope) -> list[Node] | None:
    if not _near(number, 0.5, x):
        return None
    erf = _plus_one(other, scope, "Erf")
    if erf is not None:
        inner = _Product(erf.inputs[0], scope)
        return swap(node, "Gelu", [x]) if inner.values == [x] and _near(inner.number, math.sqrt(0.5), x) else None
    tanh = _plus_one(other, scope, "Tanh")
    if tanh is not None and _is_cubic(_Product(tanh.inputs[0], scope), x, scope):
        return swap(node, "Gelu", [x], approximate="tanh")
    return None


def _is_cubic(product: _Product, x: Value, scope: Scope) -> bool:
    """Whether a product is 0.79788 * (x + 0.044715 * x^3), in one of the ways to write it."""
    if not _near(product.number, math.sqrt(2 / math.pi), x):
        return False
    rest = [v for v in product.values if v is not x]
    if len(rest) != 1:
        return False
    node = scope.single(rest[0], "Add")
    for a, b in orders(node) if node is not None else ():
        tail = _powers(_Product(b, scope), x, scope)
        if len(product.values) == 1 and a is x and tail is not None and tail[1] == 3 and _near(tail[0], 0.044715, x):
            return True
        if len(product.values) == 2 and scope.scalar(a) == 1 and tail is not None and tail[1] == 2:
            return _near(tail[0], 0.044715, x)
    return False


def _powers(product: _Product, x: Value, scope: Scope) -> tuple[float, float] | None:
    """A product as (number, exponent of x)."""
    exponent = 0.0
    for value in product.values:
        node = scope.producer(value, "Pow", "Mul")
        power = scope.scalar(node.inputs[1]) if node is not None and node.op == "Pow" else None
        if value is x:
            exponent += 1
        elif node is not None and node.op == "Mul" and node.inputs[0] is x and node.inputs[1] is x:
            exponent += 2
        elif node is not None and node.inputs[0] is x and power is not None:
            exponent += power
        else:
            return None
    return product.number, exponent


def _swish(node: Node, x: Value, other: Value, number: float, scope: Scope) -> list[Node] | None:
    sigmoid = scope.single(other, "Sigmoid")
    if sigmoid is None or number != 1:
        return None
    if sigmoid.inputs[0] is x:
        return swap(node, "Swish", [x], alpha=1.0)
    inner = _Product(sigmoid.inputs[0], scope)
    return swap(node, "Swish", [x], alpha=inner.number) if inner.values == [x] else None


def _mish(node: Node, x: Value, other: Value, number: float, scope: Scope) -> list[Node] | None:
    tanh = scope.single(other, "Tanh")
    softplus = scope.single(tanh.inputs[0], "Softplus") if tanh is not None else None
    return swap(node, "Mish", [x]) if softplus is not None and softplus.inputs[0] is x and number == 1 else None


def _hard_swish(node: Node, x: Value, other: Value, number: float, scope: Scope) -> list[Node] | None:
    hard = scope.single(other, "HardSigmoid")
    if hard is not None and hard.inputs[0] is x and number == 1:
        alpha, beta = hard.attributes.get("alpha", 0.2), hard.attributes.get("beta", 0.5)
        return swap(node, "HardSwish", [x]) if _near(alpha, 1 / 6, x) and beta == 0.5 else None
    limits = scope.single(other, "Clip")
    if limits is None or not _near(number, 1 / 6, x) or len(limits.inputs) < 3:
        return None
    shifted = scope.single(limits.inputs[0], "Add")
    if shifted is None or scope.scalar(limits.inputs[1]) != 0 or scope.scalar(limits.inputs[2]) != 6:
        return None
    return swap(node, "HardSwish", [x]) if shifted.inputs[0] is x and scope.scalar(shifted.inputs[1]) == 3 else None


# ---------------------------------------------------------------------------------------------------- normalisations


class _Inside:
    """The values of a pattern, with how often the pattern itself reads each."""

    def __init__(self) -> None:
        self.uses: Counter[Value] = Counter()

    def read(self, value: Value | None, scope: Scope, *ops: str) -> Node | None:
        """The producer of a value that the pattern reads here, if it is one of these operators."""
        node = scope.producer(value, *ops)
        if node is not None and value is not None:
            self.uses[value] += 1
        return node

    def is_closed(self, scope: Scope) -> bool:
        """Whether nothing outside reads these values."""
        return all(scope.uses[value] == count for value, count in self.uses.items())


def _inverse_root(value: Value | None, scope: Scope, inside: _Inside) -> Value | None:
    """The t of a value that is 1 / sqrt(t)."""
    node = inside.read(value, scope, "Reciprocal", "Div", "Pow")
    if node is None:
        return None
    if node.op == "Pow":
        return node.inputs[0] if scope.scalar(node.inputs[1]) == -0.5 else None
    if node.op == "Div" and scope.scalar(node.inputs[0]) != 1:
        return None
    return _root(node.inputs[-1], scope, inside)


def _root(value: Value | None, scope: Scope, inside: _Inside) -> Value | None:
    """The t of a value that is sqrt(t)."""
    node = inside.read(value, scope, "Sqrt", "Pow")
    if node is None or (node.op == "Pow" and scope.scalar(node.inputs[1]) != 0.5):
        return None
    return node.inputs[0]


def _mean(value: Value | None, scope: Scope, inside: _Inside) -> tuple[Value, int] | None:
    """What a value is the mean of, over its last axes, and the first of these."""
    node = inside.read(value, scope, "ReduceMean", "GlobalAveragePool")
    if node is None or node.inputs[0] is None or node.attributes.get("keepdims", 1) != 1:
        return None
    if node.op == "GlobalAveragePool":
        return node.inputs[0], 2
    axes = scope.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    source = node.inputs[0]
    if axes is None or not axes.size or not isinstance(source.type, TensorType) or source.type.shape is None:
        return None
    rank = source.type.rank
    found = sorted(int(axis) % rank for axis in axes.ravel())
    return (source, found[0]) if found == list(range(found[0], rank)) else None


def _normal_form(node: Node, scope: Scope, inside: _Inside) -> tuple[Value, Value] | None:
    """The (d, t) of a node that is d / sqrt(t)."""
    if node.op == "Div":
        under = _root(node.inputs[1], scope, inside)
        return None if under is None or node.inputs[0] is None else (node.inputs[0], under)
    for a, b in orders(node):
        trial = _Inside()
        under = _inverse_root(b, scope, trial)
        if under is not None and a is not None:
            inside.uses.update(trial.uses)
            return a, under
    return None


def normalization(node: Node, scope: Scope) -> Replacement:
    """d / sqrt(mean(d^2) + e) -> LayerNormalization for d = x - mean(x), RMSNormalization for any other d."""
    if not _floating(node.outputs[0]):
        return None
    inside = _Inside()
    found = _normal_form(node, scope, inside)
    sum_node = inside.read(found[1], scope, "Add") if found is not None else None
    epsilon = scope.scalar(sum_node.inputs[1]) if sum_node is not None else None
    if found is None or sum_node is None or epsilon is None:
        return None
    d = found[0]
    mean = _mean(sum_node.inputs[0], scope, inside)
    square = inside.read(mean[0], scope, "Mul", "Pow") if mean is not None else None
    if mean is None or square is None or square.inputs[0] is not d:
        return None
    if (square.inputs[1] is not d) if square.op == "Mul" else scope.scalar(square.inputs[1]) != 2:
        return None
    axis = mean[1]
    centred = _centred(d, axis, scope)
    if centred is not None:
        inside.uses[d] = 1 + sum(v is d for v in square.inputs)
        inside.uses[centred[1]] = 1
        if inside.is_closed(scope):
            return _normalized(node, "LayerNormalization", centred[0], axis, epsilon, scope)
        return None
    return _normalized(node, "RMSNormalization", d, axis, epsilon, scope) if inside.is_closed(scope) else None


def spread_normalization(node: Node, scope: Scope) -> Replacement:
    """x r + (-mean(x) r + b), for r = w / sqrt(mean((x - mean(x))^2) + e) -> LayerNormalization(x, w, b)."""
    for left, right in orders(node):
        scaled, shifted = scope.single(left, "Mul"), scope.single(right, "Add")
        if scaled is None or shifted is None or not _floating(node.outputs[0]):
            continue
        for x, r in orders(scaled):
            for term, bias in orders(shifted):
                found = _spread(x, r, scope.single(term, "Mul"), scope)
                if found is None or bias is None or x is None or not _fits(bias, found[0]):
                    continue
                scale, axis, epsilon = found
                return swap(node, "LayerNormalization", [x, scale, bias], axis=axis - x.tensor.rank, epsilon=epsilon)
    return None


def _spread(x: Value | None, r: Value | None, product: Node | None, scope: Scope) -> tuple[Value, int, float] | None:
    """Scale, first axis and epsilon, where a product is -mean(x) r."""
    factors = scope.producer(r, "Mul")
    if product is None or factors is None or x is None:
        return None
    for negative, again in orders(product):
        turned = scope.single(negative, "Neg")
        mean = turned.inputs[0] if turned is not None else None
        if again is not r or mean is None or _mean(mean, scope, _Inside()) is None:
            continue
        for scale, root in orders(factors):
            under = scope.producer(_inverse_root(root, scope, _Inside()), "Add")
            epsilon = scope.scalar(under.inputs[1]) if under is not None else None
            spread = _mean(under.inputs[0], scope, _Inside()) if under is not None else None
            square = scope.producer(spread[0], "Mul") if spread is not None else None
            if scale is None or epsilon is None or spread is None or square is None:
                continue
            apart = square.inputs[0]
            if apart is not None and square.inputs[1] is apart and _centred(apart, spread[1], scope) == (x, mean):
                sizes = x.tensor.dims[spread[1] :]
                if isinstance(scale.type, TensorType) and scale.type.shape == tuple(sizes):
                    return scale, spread[1], epsilon
    return None


def _centred(value: Value, axis: int, scope: Scope) -> tuple[Value, Value] | None:
    """The x of a value that is x - mean(x) over the axes from one on, and the mean."""
    node = scope.producer(value, "Sub")
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return None
    mean = _mean(node.inputs[1], scope, _Inside())
    return (node.inputs[0], node.inputs[1]) if mean == (node.inputs[0], axis) else None


def _normalized(node: Node, op: str, x: Value, axis: int, epsilon: float, scope: Scope) -> Replacement:
    if find_operator(op) is None or not isinstance(x.type, TensorType) or x.type.shape is None:
        return None
    sizes = x.type.shape[axis:]
    if not all(isinstance(d, int) for d in sizes):
        return None
    ones = scope.new_constant(np.ones([int(d) for d in sizes if isinstance(d, int)], x.type.numpy), f"{x.name}_scale")
    return swap(node, op, [x, ones], axis=axis - x.type.rank, epsilon=epsilon)


def softmax(node: Node, scope: Scope) -> Replacement:
    """exp(x - max(x)) / sum(exp(x - max(x))) over one axis -> Softmax."""
    inside = _Inside()
    total = inside.read(node.inputs[1], scope, "ReduceSum")
    power = scope.producer(node.inputs[0], "Exp")
    shifted = inside.read(power.inputs[0], scope, "Sub") if power is not None else None
    highest = inside.read(shifted.inputs[1], scope, "ReduceMax") if shifted is not None else None
    if total is None or power is None or shifted is None or highest is None:
        return None
    inside.uses[power.outputs[0]] = 2
    axis = _one_axis(total, scope)
    same = total.inputs[0] is power.outputs[0] and highest.inputs[0] is shifted.inputs[0]
    if axis is None or axis != _one_axis(highest, scope) or not same or not inside.is_closed(scope):
        return None
    return swap(node, "Softmax", [shifted.inputs[0]], axis=axis)


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
    return _same_shape(node.outputs[0], result)


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

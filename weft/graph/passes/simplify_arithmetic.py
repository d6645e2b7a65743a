"""Rules of `simplify` for elementwise arithmetic. Values stay within a few units of the last place.

Add(c, x)                  -> Add(x, c)                constants stand second
Add(x, 0), Mul(x, 1), …    -> x
Sub(x, c)                  -> Add(x, -c)
Div(x, 8)                  -> Mul(x, 0.125)            only powers of two, where the quotient is exact
Add(Add(x, 2), 3)          -> Add(x, 5)                numbers of one sign: nothing cancels
Pow(x, 2)                  -> Mul(x, x)
Neg(Neg(x)), Relu(Relu(x)), Clip(Clip(x, a, b), c, d), Clip(x, 0), …
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.graph.ir import Array, Node, TensorType, Value
from weft.graph.passes.infer import same_type
from weft.graph.passes.support import Replacement, Rule, Scope, swap

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def _dtype(value: Value | None) -> str:
    return value.type.dtype if value is not None and isinstance(value.type, TensorType) else ""


def _is_float(value: Value | None) -> bool:
    return _dtype(value) in _FLOATS


def constant_second(node: Node, scope: Scope) -> Replacement:
    """Constants stand second in what commutes."""
    a, b = node.inputs[:2]
    if scope.constant(a) is None or scope.constant(b) is not None:
        return None
    return [node.replace(inputs=[b, a])]


def extreme(node: Node, scope: Scope) -> Replacement:
    """Max(x, 0) -> Relu(x); Min(Relu(x), 6) -> Clip(x, 0, 6); Max(x, -inf) -> x; Max(x) -> x."""
    if len(node.inputs) == 1:
        return node.inputs[0]
    if len(node.inputs) != 2:
        return None
    a, b = node.inputs
    number = scope.scalar(b)
    if a is None or number is None or not _is_float(a) or not same_type(a.type, node.outputs[0].type):
        return constant_second(node, scope)
    if number == (-np.inf if node.op == "Max" else np.inf):
        return a
    if node.op == "Max" and number == 0:
        return swap(node, "Relu", [a])
    before = scope.single(a, "Relu", "Clip")
    inner = None if before is None else _range(before, scope)
    if before is None or inner is None or np.isnan(number):
        return None
    outer = (number, None) if node.op == "Max" else (None, number)
    low, high = (_limited(_limited(end, *inner), *outer) for end in (-np.inf, np.inf))
    return _clip(node, before.inputs[0], low, high, scope)


def _neutral(number: float) -> Rule:
    def rule(node: Node, scope: Scope) -> Replacement:
        """x op neutral -> x, where the shape is x's."""
        a, b = node.inputs[:2]
        array = scope.constant(b)
        if array is None or a is None or array.dtype.kind in "OUS" or array.size > 4096 or not (array == number).all():
            return None
        return a if same_type(a.type, node.outputs[0].type) and a.type is not None else None

    return rule


def subtract_constant(node: Node, scope: Scope) -> Replacement:
    """x - c -> x + (-c), which is exact for floats."""
    a, b = node.inputs
    array = scope.constant(b)
    if array is None or not _is_float(b) or scope.constant(a) is not None:
        return None
    return swap(node, "Add", [a, scope.new_constant(-array, f"{node.outputs[0].name}_negative")])


def divide_constant(node: Node, scope: Scope) -> Replacement:
    """x / c -> x * (1 / c), where 1 / c is exact."""
    a, b = node.inputs
    array = scope.constant(b)
    if array is None or not _is_float(b) or array.size > 4096 or scope.constant(a) is not None:
        return None
    mantissa, exponent = np.frexp(array.astype(np.float64))
    # Inside these exponents both the number and its inverse are normal in every float type, so products round alike.
    if not ((np.abs(mantissa) == 0.5) & (np.abs(exponent) < 14)).all():
        return None
    inverse = (1.0 / array.astype(np.float64)).astype(array.dtype)
    return swap(node, "Mul", [a, scope.new_constant(inverse, f"{node.outputs[0].name}_inverse")])


def _merged(op: str, first: Array, second: Array) -> Array | None:
    """One constant for two, where nothing cancels, overflows or grows."""
    try:
        shape = np.broadcast_shapes(first.shape, second.shape)
    except ValueError:
        return None
    if int(np.prod(shape)) > max(first.size, second.size):
        return None
    if first.dtype.kind in "iu":
        with np.errstate(all="ignore"):
            return np.asarray(first + second if op == "Add" else first * second)
    a, b = first.astype(np.float64), second.astype(np.float64)
    if op == "Add" and not (a * b >= 0).all():
        return None
    with np.errstate(all="ignore"):
        made = np.asarray((a + b if op == "Add" else a * b).astype(first.dtype))
    wide = np.abs(made.astype(np.float64))
    least = float(np.finfo(np.float32).tiny) if first.dtype != np.float16 else 6.2e-5
    usual = np.isfinite(wide) & ((wide >= least) | (op == "Add"))
    return made if usual.all() else None


def chained_constants(node: Node, scope: Scope) -> Replacement:
    """(x op c) op d -> x op (c op d)."""
    source, last = node.inputs[:2]
    second = scope.constant(last)
    before = scope.single(source, node.op)
    if second is None or before is None or second.dtype.kind not in "iufV":
        return None
    first = scope.constant(before.inputs[1])
    if first is None or first.dtype != second.dtype or scope.constant(before.inputs[0]) is not None:
        return None
    made = _merged(node.op, first, second)
    if made is None:
        return None
    return swap(node, node.op, [before.inputs[0], scope.new_constant(made, f"{node.outputs[0].name}_constant")])


def power(node: Node, scope: Scope) -> Replacement:
    """Pow(x, 2) -> Mul(x, x); Pow(x, 1) -> x."""
    base, exponent = node.inputs
    array = scope.constant(exponent)
    if base is None or array is None or array.ndim > 0 and array.size != 1 or not _is_float(base):
        return None
    if not same_type(base.type, node.outputs[0].type):
        return None
    number = float(array.reshape(()).item())
    return base if number == 1 else swap(node, "Mul", [base, base]) if number == 2 else None


def twice_is_nothing(node: Node, scope: Scope) -> Replacement:
    """f(f(x)) -> x."""
    before = scope.producer(node.inputs[0], node.op)
    return None if before is None else before.inputs[0]


def twice_is_once(node: Node, scope: Scope) -> Replacement:
    """f(f(x)) -> f(x)."""
    return None if scope.producer(node.inputs[0], node.op) is None else node.inputs[0]


# ---------------------------------------------------------------------------------------------------------- ranges


def _range(node: Node, scope: Scope) -> tuple[Any, Any] | None:
    """The bounds that a Relu or a Clip keeps values in; None where they are not constants."""
    if node.op == "Relu":
        return (0.0, None)
    bounds: list[Any] = []
    for at in (1, 2):
        value = node.inputs[at] if at < len(node.inputs) else None
        array = scope.constant(value)
        if value is not None and (array is None or array.size != 1):
            return None
        bounds.append(None if array is None else array.reshape(()).item())
    return bounds[0], bounds[1]


def _limited(number: float, low: Any, high: Any) -> float:
    number = number if low is None else max(number, low)
    return number if high is None else min(number, high)


def clip_of_clip(node: Node, scope: Scope) -> Replacement:
    """Limits inside limits become one pair of limits."""
    before = scope.single(node.inputs[0], "Clip", "Relu")
    outer = _range(node, scope)
    inner = None if before is None else _range(before, scope)
    if before is None or outer is None or inner is None or not _is_float(node.inputs[0]):
        return None
    low, high = (_limited(_limited(end, *inner), *outer) for end in (-np.inf, np.inf))
    if np.isnan(low) or np.isnan(high):
        return None
    return _clip(node, before.inputs[0], low, high, scope)


def _clip(node: Node, source: Value | None, low: float, high: float, scope: Scope) -> list[Node]:
    if low == 0 and high == np.inf:
        return swap(node, "Relu", [source])
    kind = node.outputs[0].tensor.numpy
    name = node.outputs[0].name
    bottom = None if low == -np.inf else scope.new_constant(np.array(low, kind), f"{name}_low")
    top = None if high == np.inf else scope.new_constant(np.array(high, kind), f"{name}_high")
    return swap(node, "Clip", [source, bottom, *([] if top is None else [top])])


def clip(node: Node, scope: Scope) -> Replacement:
    """Clip without bounds -> x; Clip(x, 0) -> Relu."""
    bounds = _range(node, scope)
    if bounds is None or not _is_float(node.inputs[0]):
        return None
    low, high = bounds
    if low in (None, -np.inf) and high in (None, np.inf):
        return node.inputs[0]
    return swap(node, "Relu", [node.inputs[0]]) if low == 0 and high in (None, np.inf) else None


ARITHMETIC_RULES: dict[str, list[Rule]] = {
    "Add": [constant_second, _neutral(0), chained_constants],
    "Sub": [_neutral(0), subtract_constant],
    "Mul": [constant_second, _neutral(1), chained_constants],
    "Div": [_neutral(1), divide_constant],
    "Pow": [power],
    "Max": [extreme],
    "Min": [extreme],
    "And": [constant_second],
    "Or": [constant_second],
    "Xor": [constant_second],
    "Equal": [constant_second],
    "Neg": [twice_is_nothing],
    "Not": [twice_is_nothing],
    "Abs": [twice_is_once],
    "Floor": [twice_is_once],
    "Ceil": [twice_is_once],
    "Round": [twice_is_once],
    "Relu": [twice_is_once, clip_of_clip],
    "Clip": [clip_of_clip, clip],
}
"""The rules by operator."""

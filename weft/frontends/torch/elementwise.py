"""Converters of what works element by element: arithmetic, comparisons, activations, conversions of type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from weft.frontends import numbers
from weft.frontends.emit import NUMBERS, Emitter, InTraining, Operand, Unsupported, is_float
from weft.frontends.numbers import Numbers
from weft.frontends.torch.table import aten, enter
from weft.graph.ir import Value

# ------------------------------------------------------------------------------------------------------ one operand

_FLOATS = (
    "exp:Exp log:Log sqrt:Sqrt sin:Sin cos:Cos tan:Tan asin:Asin acos:Acos atan:Atan sinh:Sinh cosh:Cosh tanh:Tanh "
    "asinh:Asinh acosh:Acosh atanh:Atanh erf:Erf sigmoid:Sigmoid reciprocal:Reciprocal abs:Abs sign:Sign "
    "sgn:Sign mish:Mish hardswish:HardSwish"
)
_WHOLE = "floor:Floor ceil:Ceil round:Round"


def _as_result(op: str) -> Any:
    """A converter that computes in the element type of the result."""
    return lambda c, x: c.op(op, c.cast(x, c.dtype))


for _entry in _FLOATS.split():
    aten(_entry.split(":")[0])(_as_result(_entry.split(":")[1]))


def _rounding(op: str) -> Any:
    """A converter of what integers are left alone by."""
    return lambda c, x: c.op(op, x) if is_float(x.tensor.dtype) else x


for _entry in _WHOLE.split():
    aten(_entry.split(":")[0])(_rounding(_entry.split(":")[1]))


def _formula(compute: Callable[..., Numbers]) -> Callable[..., Value]:
    """A converter by a function of numbers, in the element type of the result."""
    return lambda c, *values: compute(*(Numbers(c, c.value(one, c.dtype)) for one in values)).value


@aten("trunc")
def _trunc(c: Emitter, x: Value) -> Value:
    return numbers.trunc(Numbers(c, x)).value if is_float(x.tensor.dtype) else x


@aten("round.decimals")
def _round_decimals(c: Emitter, x: Value, *, decimals: int = 0) -> Value:
    if decimals == 0 or not is_float(c.dtype):
        return x if not is_float(c.dtype) else c.op("Round", x)
    scale = c.value(10.0 ** abs(decimals), c.dtype)
    there, back = ("Mul", "Div") if decimals > 0 else ("Div", "Mul")
    return c.op(back, c.op("Round", c.op(there, x, scale)), scale)


def _log_of(base: float) -> Any:
    return lambda c, x: c.op("Mul", c.op("Log", c.cast(x, c.dtype)), c.value(1 / math.log(base), c.dtype))


aten("log2")(_log_of(2))
aten("log10")(_log_of(10))


def _float_test(op: str) -> Any:
    """A converter of a test that no integer passes."""
    return lambda c, x: c.op(op, x) if is_float(x.tensor.dtype) else c.filled(c.sizes(x), False, "bool")


_isnan, _isinf = _float_test("IsNaN"), _float_test("IsInf")


@aten("signbit")
def _signbit(c: Emitter, x: Value) -> Value:
    if x.tensor.dtype == "bool":
        return c.filled(c.sizes(x), False, "bool")
    given = Numbers(c, x)
    return (numbers.signbit(given) if given.is_float else given("Less", 0)).value


@aten("angle")
def _angle(c: Emitter, x: Value) -> Value:
    x = c.cast(x, c.dtype)
    turned = c.where(c.op("Less", x, c.value(0, c.dtype)), math.pi, 0)
    return c.where(c.op("IsNaN", x), x, turned)


enter(
    {
        "expm1": _formula(numbers.expm1),
        "log1p": _formula(numbers.log1p),
        "relu": lambda c, x: c.op("Relu", x) if is_float(c.dtype) else c.op("Max", x, c.value(0, c.dtype)),
        "neg": lambda c, x: c.op("Sub", c.value(0, c.dtype), x) if c.dtype.startswith("uint") else c.op("Neg", x),
        "rsqrt": lambda c, x: c.op("Reciprocal", c.op("Sqrt", c.cast(x, c.dtype))),
        "exp2": lambda c, x: c.op("Pow", c.value(2.0, c.dtype), c.cast(x, c.dtype)),
        "isnan": _isnan,
        "isinf": _isinf,
        "isfinite": lambda c, x: c.invert(c.op("Or", _isnan(c, x), _isinf(c, x))),
        "logical_not": lambda c, x: c.invert(c.cast(x, "bool")),
        "bitwise_not": lambda c, x: c.op("Not" if c.dtype == "bool" else "BitwiseNot", x),
    }
)


# ------------------------------------------------------------------------------------------------------ two operands


def _pair(c: Emitter, x: Operand, y: Operand) -> tuple[Value, Value]:
    return c.value(x, c.dtype), c.value(y, c.dtype)


@aten("add.Tensor", "add.Scalar")
def _add(c: Emitter, x: Operand, y: Operand, *, alpha: Any = 1) -> Value:
    a, b = _pair(c, x, y)
    if c.dtype == "bool":
        return c.op("Or", a, b) if alpha else a
    return c.op("Add", a, b if alpha == 1 else c.op("Mul", b, c.value(alpha, c.dtype)))


@aten("sub.Tensor", "sub.Scalar")
def _sub(c: Emitter, x: Operand, y: Operand, *, alpha: Any = 1) -> Value:
    a, b = _pair(c, x, y)
    return c.op("Sub", a, b if alpha == 1 else c.op("Mul", b, c.value(alpha, c.dtype)))


@aten("div.Tensor", "div.Scalar")
def _div(c: Emitter, x: Operand, y: Operand) -> Value:
    return c.op("Div", *_pair(c, x, y))


@aten("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(c: Emitter, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> Value:
    if rounding_mode == "floor":
        return _formula(numbers.floor_divide)(c, x, y)
    made = _div(c, x, y)
    return _trunc(c, made) if rounding_mode == "trunc" else made


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(c: Emitter, x: Operand, y: Operand) -> Value:
    if isinstance(x, Value) and isinstance(y, (int, float)) and y in (1, 2, 3, 0.5, -1, -0.5) and is_float(c.dtype):
        x = c.cast(x, c.dtype)
        if y in (2, 3):
            square = c.op("Mul", x, x)
            return square if y == 2 else c.op("Mul", square, x)
        root = c.op("Sqrt", x) if abs(y) == 0.5 else x
        return root if y > 0 else c.op("Reciprocal", root)
    return c.op("Pow", *_pair(c, x, y))


def _maximum(c: Emitter, x: Operand, y: Operand) -> Value:
    return c.op("Or" if c.dtype == "bool" else "Max", *_pair(c, x, y))


def _minimum(c: Emitter, x: Operand, y: Operand) -> Value:
    return c.op("And" if c.dtype == "bool" else "Min", *_pair(c, x, y))


def _unless_nan(op: str, plain: Any) -> Any:
    def converter(c: Emitter, x: Operand, y: Operand) -> Value:
        a, b = _pair(c, x, y)
        if not is_float(c.dtype):
            return plain(c, a, b)  # type: ignore[no-any-return]
        return c.where(c.op("IsNaN", a), b, c.where(c.op("IsNaN", b), a, c.op(op, a, b)))

    return converter


def _bits(logical: str, bitwise: str) -> Any:
    return lambda c, x, y: c.op(logical if c.dtype == "bool" else bitwise, *_pair(c, x, y))


def _logic(op: str) -> Any:
    return lambda c, x, y: c.op(op, c.cast(x, "bool"), c.cast(y, "bool"))


for _name in ("and", "or", "xor"):
    _logical = _name.capitalize()
    aten(f"logical_{_name}")(_logic(_logical))
    _made = _bits(_logical, f"Bitwise{_logical}")
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        aten(f"bitwise_{_name}.{_overload}")(_made)


@aten("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Scalar", "__lshift__.Tensor")
def _shift_left(c: Emitter, x: Operand, y: Operand) -> Value:
    a, b = _pair(c, x, y)
    return c.op("Mul", a, c.op("Pow", c.value(2, c.dtype), b))


@aten("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Scalar", "__rshift__.Tensor")
def _shift_right(c: Emitter, x: Operand, y: Operand) -> Value:
    a, b = _pair(c, x, y)
    signed, bits = c.dtype.startswith("int"), np.iinfo(c.dtype).bits
    nothing, most = c.value(0, c.dtype), c.value(bits - signed, c.dtype)
    far = c.op("Or", c.op("Less", b, nothing), c.op("GreaterOrEqual", b, most))  # only the sign is left
    left = c.where(c.op("Less", a, nothing), -1, nothing, c.dtype) if signed else nothing
    power = c.op("Pow", c.value(2, c.dtype), c.where(far, nothing, b))
    return c.where(far, left, _formula(numbers.floor_divide)(c, a, power))


enter(
    {
        "floor_divide floor_divide.Scalar": _formula(numbers.floor_divide),
        "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": _formula(numbers.remainder),
        "maximum": _maximum,
        "minimum": _minimum,
        "fmax": _unless_nan("Max", _maximum),
        "fmin": _unless_nan("Min", _minimum),
        "hypot": _formula(numbers.hypot),
        "atan2": _formula(numbers.atan2),
        "copysign.Tensor copysign.Scalar": _formula(numbers.copysign),
        "rsub.Tensor rsub.Scalar": lambda c, x, y, alpha=1: _sub(c, y, x, alpha=alpha),
        "mul.Tensor mul.Scalar": lambda c, x, y: c.op("And" if c.dtype == "bool" else "Mul", *_pair(c, x, y)),
        "fmod.Tensor fmod.Scalar": lambda c, x, y: c.op("Mod", *_pair(c, x, y), fmod=1),
    }
)


# ------------------------------------------------------------------------------------------------------- comparisons


def stand_in(c: Emitter, x: Operand) -> Any:
    """What torch's rules of promotion need to know of an operand."""
    if not isinstance(x, Value):
        return x
    if x in c.numbers:
        return 1.0 if is_float(x.tensor.dtype) else 1
    return torch.empty((0,) * x.tensor.rank, dtype=getattr(torch, x.tensor.dtype), device="meta")


def promoted(c: Emitter, x: Operand, y: Operand) -> tuple[Value, Value]:
    """Two operands in the element type in which torch compares them."""
    kind = str(torch.result_type(stand_in(c, x), stand_in(c, y))).removeprefix("torch.")
    return c.value(x, kind), c.value(y, kind)


def _comparison(op: str) -> Any:
    def converter(c: Emitter, x: Operand, y: Operand) -> Value:
        a, b = promoted(c, x, y)
        if op not in ("Equal", "NotEqual") and a.tensor.dtype == "bool":
            a, b = c.cast(a, "int32"), c.cast(b, "int32")
        return c.invert(c.op("Equal", a, b)) if op == "NotEqual" else c.op(op, a, b)

    return converter


for _entry in "eq:Equal ne:NotEqual lt:Less le:LessOrEqual gt:Greater ge:GreaterOrEqual".split():
    _name, _op = _entry.split(":")
    aten(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_op))


@aten("clamp", "clamp.Tensor", "hardtanh")
def _clamp(c: Emitter, x: Value, min: Operand = None, max: Operand = None) -> Value:
    if c.target.startswith("hardtanh"):
        min, max = -1.0 if min is None else min, 1.0 if max is None else max
    x = c.cast(x, c.dtype)
    bounds = [None if bound is None else c.value(bound, c.dtype) for bound in (min, max)]
    if all(bound is None or bound.tensor.shape == () for bound in bounds):
        return c.op("Clip", x, *bounds)
    for op, bound in zip(("Max", "Min"), bounds):
        x = x if bound is None else c.op(op, x, bound)
    return x


enter(
    {
        "where.self where.Scalar where.ScalarSelf where.ScalarOther": lambda c, test, x, y: c.where(test, x, y),
        "masked_fill.Scalar masked_fill.Tensor": lambda c, x, mask, value: c.where(mask, value, x),
        "clamp_min clamp_min.Tensor": lambda c, x, min: _clamp(c, x, min, None),
        "clamp_max clamp_max.Tensor": lambda c, x, max: _clamp(c, x, None, max),
    }
)


# ------------------------------------------------------------------------------------------------------- activations


@aten("elu")
def _elu(c: Emitter, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Value:
    if scale == 1 and input_scale == 1:
        return c.op("Elu", x, alpha=float(alpha))
    low = (numbers.expm1(Numbers(c, x) * input_scale) * (alpha * scale)).value
    return c.where(c.op("Greater", x, c.value(0, c.dtype)), c.op("Mul", x, c.value(scale, c.dtype)), low)


@aten("softplus")
def _softplus(c: Emitter, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    scaled = x if beta == 1 else c.op("Mul", x, c.value(beta, c.dtype))
    made = c.op("Softplus", scaled)
    made = made if beta == 1 else c.op("Div", made, c.value(beta, c.dtype))
    return made if threshold == 20 else c.where(c.op("Greater", scaled, c.value(threshold, c.dtype)), x, made)


@aten("rrelu_with_noise_functional", "rrelu_with_noise")
def _rrelu(
    c: Emitter, x: Value, noise: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_: Any
) -> tuple[Value, Value] | Value:
    if training:
        raise InTraining("rrelu draws its slopes")
    made = c.op("LeakyRelu", x, alpha=(lower + upper) / 2)
    return (made, noise) if c.target.endswith("functional") else made


@aten("prelu", "_prelu_kernel")
def _prelu(c: Emitter, x: Value, weight: Value) -> Value:
    if weight.tensor.rank == 1 and x.tensor.rank > 1:
        weight = c.reshape(weight, [c.size(weight, 0)] + [1] * (x.tensor.rank - 2))
    return c.op("PRelu", x, weight)


@aten("glu")
def _glu(c: Emitter, x: Value, dim: int = -1) -> Value:
    a, b = c.several(2, "Split", x, axis=dim, num_outputs=2)
    return c.op("Mul", a, c.op("Sigmoid", b))


enter(
    {
        "gelu": lambda c, x, *, approximate="none": c.op("Gelu", x, approximate=approximate),
        "silu": lambda c, x: c.op("Mul", x, c.op("Sigmoid", x)),
        "leaky_relu": lambda c, x, slope=0.01: c.op("LeakyRelu", x, alpha=float(slope)),
        "selu": lambda c, x: c.op("Selu", x, alpha=1.6732632423543772, gamma=1.0507009873554805),
        "hardsigmoid": lambda c, x: c.op("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    }
)


# ------------------------------------------------------------------------------------------------ types and identity


@aten(
    "clone", "alias", "detach", "contiguous", "lift_fresh", "lift_fresh_copy", "_to_copy", "to.dtype", "to.device",
    "to.dtype_layout", "to.other", "type_as", "positive", "real", "resolve_conj", "resolve_neg", "conj",
    "_conj_physical", "prims.convert_element_type", "prims.view_of", "feature_dropout", "_autocast_to_full_precision",
    "_autocast_to_reduced_precision",
)  # fmt: skip
def _same(c: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    return x  # brought to the element type of the result, as every result is


@aten("copy")
def _copy(c: Emitter, x: Value, source: Value, non_blocking: bool = False) -> Value:
    return c.expand(c.cast(source, c.dtype), c.sizes(x))


@aten("dropout", "native_dropout", "alpha_dropout", "feature_alpha_dropout")
def _dropout(c: Emitter, x: Value, p: float, train: bool) -> Any:
    if train and p > 0:
        raise InTraining("dropout is on")
    return (x, c.filled(c.sizes(x), True, "bool")) if c.target.startswith("native_dropout") else x


@aten("view.dtype")
def _view_dtype(c: Emitter, x: Value, dtype: Any) -> Value:
    if x.tensor.numpy.itemsize != torch.empty((), dtype=dtype).element_size():
        raise Unsupported("elements are looked at as elements of another size")
    return c.op("BitCast", x, to=NUMBERS[c.dtype])

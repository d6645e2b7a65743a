"""Converters of what works element by element: arithmetic, comparisons, bits, conversions of type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.frontends import numbers
from weft.frontends.emit import NUMBERS, Unsupported, is_float, limits
from weft.frontends.jax.emit import JaxEmitter
from weft.frontends.jax.table import enter, primitive
from weft.frontends.numbers import Numbers
from weft.graph.ir import NUMPY_TYPES, Value

_PLAIN = (
    "exp:Exp log:Log sqrt:Sqrt sin:Sin cos:Cos tan:Tan asin:Asin acos:Acos atan:Atan sinh:Sinh cosh:Cosh tanh:Tanh "
    "asinh:Asinh acosh:Acosh atanh:Atanh erf:Erf logistic:Sigmoid floor:Floor ceil:Ceil"
)
_WIDE = {"float16": "float32", "bfloat16": "float32"}
"""Halves are computed as JAX computes them on a processor: wide, and rounded once."""


def _plain(op: str) -> Any:
    return lambda c, x, **_: c.op(op, x)


for _entry in _PLAIN.split():
    primitive(_entry.split(":")[0])(_plain(_entry.split(":")[1]))


def bits_of(kind: str) -> int:
    """The width of an element type."""
    return 8 * int(NUMPY_TYPES[kind].itemsize)


def signed(c: JaxEmitter, x: Value) -> Value:
    """The bits of integers, read with a sign."""
    kind = x.tensor.dtype
    return bitcast(c, x, kind.removeprefix("u")) if kind.startswith("uint") else x


def unsigned(c: JaxEmitter, x: Value) -> Value:
    """The bits of any number, read as a whole number without sign."""
    return bitcast(c, x, f"uint{bits_of(x.tensor.dtype)}")


def bitcast(c: JaxEmitter, x: Value, kind: str) -> Value:
    """The same bits in another type of the same width."""
    return x if x.tensor.dtype == kind else c.op("BitCast", x, to=NUMBERS[kind])


@primitive("sign")
def _sign(c: JaxEmitter, x: Value, **_: Any) -> Value:
    if is_float(x.tensor.dtype):  # NaN stays NaN, and -0 stays -0
        return c.where(c.op("Or", c.op("IsNaN", x), c.op("Equal", x, c.like(0, x))), x, c.op("Sign", x))
    return c.op("Sign", x)


@primitive("round")
def _round(c: JaxEmitter, x: Value, *, rounding_method: Any, **_: Any) -> Value:
    if int(rounding_method) == 1:
        return c.op("Round", x)
    given = Numbers(c, x)
    whole = numbers.trunc(given)  # halves go away from zero
    return (whole + given("Sign")).choose((given - whole)("Abs")("GreaterOrEqual", 0.5), whole).value


@primitive("is_finite")
def _is_finite(c: JaxEmitter, x: Value, **_: Any) -> Value:
    return c.invert(c.op("Or", c.op("IsNaN", x), c.op("IsInf", x)))


def wide(c: JaxEmitter, *values: Value) -> list[Value]:
    """Values in the element type in which halves are computed."""
    return [c.cast(one, _WIDE.get(one.tensor.dtype, one.tensor.dtype)) for one in values]


def formula(compute: Callable[..., Numbers]) -> Any:
    """A converter by a function of numbers, which halves are widened for."""
    return lambda c, *values, **_: compute(*(Numbers(c, one) for one in wide(c, *values))).value


def _power_of(c: JaxEmitter, x: Value, exponent: int) -> Value:
    """A whole power, by squaring."""
    made: Value | None = None
    while exponent:
        if exponent & 1:
            made = x if made is None else c.op("Mul", made, x)
        exponent >>= 1
        x = c.op("Mul", x, x) if exponent else x
    assert made is not None
    return made


@primitive("integer_pow")
def _integer_pow(c: JaxEmitter, x: Value, *, y: int, **_: Any) -> Value:
    if y == 0:
        return c.filled(x.tensor.static, 1, c.dtype)
    made = _power_of(c, x, abs(y))
    return (
        made
        if y > 0
        else c.op(
            "Reciprocal" if is_float(c.dtype) else "Div", *([made] if is_float(c.dtype) else [c.like(1, x), made])
        )
    )


@primitive("pow")
def _pow(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
    if not is_float(c.dtype):
        return c.op("Pow", x, y)
    base, exponent = wide(c, x, c.cast(y, c.dtype))
    return c.op("Pow", base, exponent)


enter(
    {
        "neg": lambda c, x, **_: c.op("Sub", c.like(0, x), x) if c.dtype.startswith("uint") else c.op("Neg", x),
        "abs": lambda c, x, **_: x if c.dtype.startswith("uint") else c.op("Abs", x),
        "sub": lambda c, x, y, **_: c.op("Sub", x, y),
        "square": lambda c, x, **_: c.op("Mul", x, x),
        "rsqrt": lambda c, x, **_: c.op("Reciprocal", c.op("Sqrt", *wide(c, x))),
        "exp2": lambda c, x, **_: c.op("Pow", c.like(2, wide(c, x)[0]), *wide(c, x)),
        "log2": lambda c, x, **_: c.op("Mul", c.op("Log", x), c.like(1 / math.log(2), x)),
        "cbrt": formula(numbers.cbrt),
        "expm1": formula(numbers.expm1),
        "log1p": formula(numbers.log1p),
        "atan2": formula(numbers.atan2),
        "copy copy_p stop_gradient optimization_barrier name sharding_constraint device_put reshard pvary "
        "layout_constraint xla_metadata_value shard_alike tie real": lambda c, *values, **_: list(values),
    }
)


# ------------------------------------------------------------------------------------------------------ two operands


@primitive("add", "add_any")
def _add(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
    return c.op("Or" if c.dtype == "bool" else "Add", x, y)


@primitive("mul")
def _mul(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
    if is_float(c.dtype):
        for one, other in ((x, y), (y, x)):
            inner = c.complements.get(other)
            if inner is not None:  # x / 2 erfc(-x / sqrt(2)) is what jax.nn.gelu writes
                (half, source), (root, argument) = c.scaled(one), c.scaled(inner)
                if source is argument and half == 0.5 and abs(root + math.sqrt(0.5)) < 1e-7:
                    return c.op("Gelu", source, approximate="none")
    return c.op("And" if c.dtype == "bool" else "Mul", x, y)


def _safe_divisor(c: JaxEmitter, x: Value, y: Value) -> tuple[Value, Value | None, Value | None]:
    """A divisor of integers that nothing traps at, where it was 0, and where the quotient overflows."""
    known = c.known(y)
    if known is not None and not ((known == 0) | (known.astype(np.int64) == -1)).any():
        return y, None, None
    none = c.op("Equal", y, c.like(0, y))
    over = None
    if c.dtype.startswith("int"):
        over = c.op("And", c.op("Equal", y, c.like(-1, y)), c.op("Equal", x, c.like(limits(c.dtype)[0], x)))
        return c.where(c.op("Or", none, over), 1, y), none, over
    return c.where(none, 1, y), none, over


@primitive("div")
def _div(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
    if is_float(c.dtype):
        return c.op("Div", x, y)
    divisor, none, _over = _safe_divisor(c, x, y)  # the least number by -1 is itself, as it is by 1
    made = c.op("Div", x, divisor)
    return made if none is None else c.where(none, np.array(-1).astype(NUMPY_TYPES[c.dtype]), made)


@primitive("rem")
def _rem(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
    if is_float(c.dtype):
        return c.op("Mod", x, y, fmod=1)
    divisor, none, _over = _safe_divisor(c, x, y)
    made = c.op("Mod", x, divisor, fmod=1)
    return made if none is None else c.where(none, x, made)


@primitive("max")
def _max(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
    return c.op("Or" if c.dtype == "bool" else "Max", x, y)


@primitive("min")
def _min(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
    return c.op("And" if c.dtype == "bool" else "Min", x, y)


@primitive("nextafter")
def _nextafter(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
    if bits_of(c.dtype) < 32:
        raise Unsupported(f"nextafter of {c.dtype}")
    kind = f"int{bits_of(c.dtype)}"
    bits = bitcast(c, x, kind)
    away = c.op("Equal", c.op("Greater", y, x), c.op("Greater", x, c.like(0, x)))
    moved = c.op("Add", bits, c.where(away, 1, -1, kind))
    least = c.where(numbers.signbit(Numbers(c, y)).value, np.iinfo(kind).min + 1, 1, kind)
    moved = c.where(c.op("Equal", x, c.like(0, x)), least, moved, kind)
    made = c.where(c.op("Equal", x, y), y, bitcast(c, moved, c.dtype))
    made = c.where(c.op("IsNaN", y), y, made)
    return c.where(c.op("IsNaN", x), x, made)


# ------------------------------------------------------------------------------------------------------- comparisons


def _comparison(op: str) -> Any:
    def converter(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
        if x.tensor.dtype == "bool" and op not in ("Equal", "NotEqual"):
            x, y = c.cast(x, "int32"), c.cast(y, "int32")
        return c.invert(c.op("Equal", x, y)) if op == "NotEqual" else c.op(op, x, y)

    return converter


for _entry in "eq:Equal ne:NotEqual lt:Less le:LessOrEqual gt:Greater ge:GreaterOrEqual".split():
    primitive(_entry.split(":")[0])(_comparison(_entry.split(":")[1]))


def total_order(c: JaxEmitter, x: Value) -> Value:
    """Whole numbers in the order of floats: -NaN, -inf, …, -0, 0, …, inf, NaN."""
    if not is_float(x.tensor.dtype):
        return x
    bits = signed(c, unsigned(c, x))
    kind = bits.tensor.dtype
    turned = c.op("BitwiseXor", bits, c.like(np.iinfo(NUMPY_TYPES[kind]).max, bits))
    return c.where(c.op("Less", bits, c.like(0, bits)), turned, bits, kind)


for _name, _op in (("eq_to", "Equal"), ("lt_to", "Less"), ("le_to", "LessOrEqual")):
    primitive(_name)(lambda c, x, y, _op=_op, **_: _comparison(_op)(c, total_order(c, x), total_order(c, y)))


@primitive("select_n")
def _select(c: JaxEmitter, which: Value, *cases: Value, **_: Any) -> Value:
    chosen = c.number(which)
    if chosen is not None and len(cases) > 1:
        return cases[int(chosen)]
    for _axis in c.tail(1):
        which = c.unsqueeze(which, which.tensor.rank) if which.tensor.rank else which
    if which.tensor.dtype == "bool":
        return c.where(which, cases[1], cases[0]) if len(cases) > 1 else cases[0]
    made = cases[-1]
    for at in range(len(cases) - 2, -1, -1):
        made = c.where(c.op("LessOrEqual", which, c.like(at, which)), cases[at], made)
    return made


@primitive("clamp")
def _clamp(c: JaxEmitter, low: Value, x: Value, high: Value, **_: Any) -> Value:
    if not low.tensor.rank and not high.tensor.rank and c.dtype != "bool":
        return c.op("Clip", x, low, high)
    return c.op("Min", c.op("Max", x, low), high)


# -------------------------------------------------------------------------------------------------------------- bits

enter(
    {
        "and": lambda c, x, y, **_: c.op("And" if c.dtype == "bool" else "BitwiseAnd", x, y),
        "or": lambda c, x, y, **_: c.op("Or" if c.dtype == "bool" else "BitwiseOr", x, y),
        "xor": lambda c, x, y, **_: c.op("Xor" if c.dtype == "bool" else "BitwiseXor", x, y),
        "not": lambda c, x, **_: c.op("Not" if c.dtype == "bool" else "BitwiseNot", x),
    }
)


def _shift(direction: str, arithmetic: bool = False) -> Any:
    def converter(c: JaxEmitter, x: Value, y: Value, **_: Any) -> Value:
        kind, width = c.dtype, bits_of(c.dtype)
        bits, count = unsigned(c, x), unsigned(c, y)
        known = c.known(y)
        far = None
        if known is None or ((known < 0) | (known >= width)).any():
            far = c.op("GreaterOrEqual", count, c.like(width, count))
            count = c.op("Min", count, c.like(width - 1, count))
        made = bitcast(c, c.op("BitShift", bits, count, direction=direction), kind)
        empty: Any = c.like(0, x)
        if arithmetic and kind.startswith("int"):
            # where the sign is set: the shifted complement, complemented
            turned = unsigned(c, c.op("BitwiseNot", x))
            turned = bitcast(c, c.op("BitShift", turned, count, direction=direction), kind)
            below = c.op("Less", x, c.like(0, x))
            made = c.where(below, c.op("BitwiseNot", turned), made)
            empty = c.where(below, -1, 0)
        return made if far is None else c.where(far, empty, made)

    return converter


primitive("shift_left")(_shift("LEFT"))
primitive("shift_right_logical")(_shift("RIGHT"))
primitive("shift_right_arithmetic")(_shift("RIGHT", True))


@primitive("population_count")
def _population(c: JaxEmitter, x: Value, **_: Any) -> Value:
    total: Value | None = None
    bits = unsigned(c, x)
    for at in range(bits_of(c.dtype)):
        shifted = c.op("BitShift", bits, c.like(at, bits), direction="RIGHT") if at else bits
        one = c.op("BitwiseAnd", shifted, c.like(1, bits))
        total = one if total is None else c.op("Add", total, one)
    assert total is not None
    return bitcast(c, total, c.dtype)


@primitive("clz")
def _leading_zeros(c: JaxEmitter, x: Value, **_: Any) -> Value:
    bits, width = unsigned(c, x), bits_of(c.dtype)
    step = width // 2
    while step:  # every bit below the first one that is set
        bits = c.op("BitwiseOr", bits, c.op("BitShift", bits, c.like(width // (2 * step), bits), direction="RIGHT"))
        step //= 2
    ones = _population(c, bitcast(c, bits, c.dtype))
    return c.op("Sub", c.like(width, ones), ones)


# ------------------------------------------------------------------------------------------------------------- types


@primitive("convert_element_type")
def _convert(c: JaxEmitter, x: Value, **_: Any) -> Value:
    have = x.tensor.dtype
    if c.dtype == "bool" and have != "bool":
        return c.invert(c.op("Equal", x, c.like(0, x)))
    return c.cast(x, c.dtype)


@primitive("bitcast_convert_type")
def _bitcast(c: JaxEmitter, x: Value, **_: Any) -> Value:
    have, want = bits_of(x.tensor.dtype), bits_of(c.dtype)
    if "bool" in (x.tensor.dtype, c.dtype):
        if c.dtype == x.tensor.dtype:
            return x
        return c.cast(x, "uint8") if x.tensor.dtype == "bool" else c.invert(c.op("Equal", x, c.like(0, x)))
    if have == want:
        return bitcast(c, x, c.dtype)
    whole, part = f"uint{max(have, want)}", f"uint{min(have, want)}"
    if have > want:  # one number becomes several, its lowest bits first
        places = c.constant(np.arange(have // want).astype(NUMPY_TYPES[whole]) * want)
        spread = c.op("BitShift", c.unsqueeze(unsigned(c, x), x.tensor.rank), places, direction="RIGHT")
        mask = c.value((1 << want) - 1, whole)
        return bitcast(c, c.cast(c.op("BitwiseAnd", spread, mask), part), c.dtype)
    places = c.constant(np.arange(want // have).astype(NUMPY_TYPES[whole]) * have)
    parts = c.op("BitShift", c.cast(unsigned(c, x), whole), places, direction="LEFT")
    return bitcast(c, c.op("ReduceSum", parts, [-1], keepdims=0), c.dtype)


@primitive("reduce_precision")
def _reduce_precision(c: JaxEmitter, x: Value, *, exponent_bits: int, mantissa_bits: int, **_: Any) -> Value:
    fitting = {(8, 23): "float32", (11, 52): "float64", (8, 7): "bfloat16", (5, 10): "float16"}
    kind = fitting.get((exponent_bits, mantissa_bits))
    if kind is None:
        raise Unsupported(f"floats of {exponent_bits} bits of exponent and {mantissa_bits} of mantissa")
    return x if bits_of(kind) > bits_of(c.dtype) else c.cast(c.cast(x, kind), c.dtype)

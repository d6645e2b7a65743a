"""The pure intrinsics an expression can call: name -> how many arguments, and what it means on numpy values.

Every target implements all of these; a call of any other name has effects and is looked up in the target's own table
(or, for the interpreter, in `weft.loop.interpreter.EFFECTS`). Unary float functions keep their argument's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.core.array_types import numpy_type


class Intrinsic:
    """A pure function by name: `arity`, and `evaluate` on numpy scalars or arrays of the argument dtype."""

    __slots__ = ("name", "arity", "evaluate")

    def __init__(self, name: str, arity: int, evaluate: Callable[..., Any]) -> None:
        self.name = name
        self.arity = arity
        self.evaluate = evaluate


def _of_numbers(f: Callable[[float], float]) -> Callable[[Any], Any]:
    """A function of one number, of arrays too."""
    many = np.vectorize(f, otypes=[np.float64])
    return lambda x: many(np.asarray(x, np.float64)) if np.ndim(x) else f(float(x))


def _wide(f: Callable[..., Any]) -> Callable[..., Any]:
    """Half-precision arguments are computed in float32 and rounded once."""

    def run(*args: Any) -> Any:
        kind = np.asarray(args[0]).dtype
        if kind.itemsize >= 4:
            return f(*args)
        return np.asarray(f(*[np.asarray(a).astype(np.float32) for a in args])).astype(kind)[()]

    return run


def _round_away(x: Any) -> Any:
    return np.trunc(x + np.copysign(np.asarray(0.5, np.asarray(x).dtype), x))


def _popcount(x: Any) -> Any:
    kind = np.asarray(x).dtype
    unsigned = np.asarray(x).view(f"u{kind.itemsize}")
    return np.vectorize(lambda v: bin(int(v)).count("1"))(unsigned).astype(kind)[()]


def _count_leading_zeros(x: Any) -> Any:
    kind = np.asarray(x).dtype
    bits = kind.itemsize * 8
    unsigned = np.asarray(x).view(f"u{kind.itemsize}")
    return np.vectorize(lambda v: bits - int(v).bit_length())(unsigned).astype(kind)[()]


def _from_float8(name: str) -> Callable[[Any], Any]:
    return lambda x: np.asarray(x, np.uint8).view(numpy_type(name)).astype(np.float32)[()]


def _to_float8(name: str) -> Callable[[Any], Any]:
    most = FLOAT8_FORMS[name][2]
    return lambda x: np.clip(np.asarray(x, np.float32), -most, most).astype(numpy_type(name)).view(np.uint8)[()]


FLOAT8_FORMS = {"float8_e4m3fn": (3, 7, 448.0), "float8_e5m2": (2, 15, 57344.0)}
"""Bits of mantissa, what is added to an exponent, and the largest number."""

_FLOAT_UNARY: dict[str, Callable[..., Any]] = {
    "neg": np.negative, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(np.asarray(x).dtype),
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "sigmoid": lambda x: (1 / (1 + np.exp(-x))).astype(np.asarray(x).dtype), "erf": _of_numbers(math.erf),
    "normal_cdf": _of_numbers(lambda x: 0.5 * math.erfc(-x * 0.5**0.5)),
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "round_away": _round_away,
}  # fmt: skip
"""`normal_cdf` is (1 + erf(x / sqrt(2))) / 2; `round` rounds halves to even, `round_away` away from zero."""

PURE: dict[str, Intrinsic] = {
    **{name: Intrinsic(name, 1, _wide(f)) for name, f in _FLOAT_UNARY.items()},
    "abs": Intrinsic("abs", 1, np.abs),
    "isnan": Intrinsic("isnan", 1, np.isnan),
    "isinf": Intrinsic("isinf", 1, np.isinf),
    "isfinite": Intrinsic("isfinite", 1, np.isfinite),
    "pow": Intrinsic("pow", 2, _wide(np.power)),
    "atan2": Intrinsic("atan2", 2, _wide(np.arctan2)),
    "fmod": Intrinsic("fmod", 2, _wide(np.fmod)),
    "floor_fmod": Intrinsic("floor_fmod", 2, _wide(np.mod)),
    "copysign": Intrinsic("copysign", 2, np.copysign),
    "fma": Intrinsic("fma", 3, lambda a, b, c: a * b + c),
    "bit_and": Intrinsic("bit_and", 2, np.bitwise_and),
    "bit_or": Intrinsic("bit_or", 2, np.bitwise_or),
    "bit_xor": Intrinsic("bit_xor", 2, np.bitwise_xor),
    "bit_not": Intrinsic("bit_not", 1, np.invert),
    "shift_left": Intrinsic("shift_left", 2, np.left_shift),
    "shift_right": Intrinsic("shift_right", 2, np.right_shift),
    "popcount": Intrinsic("popcount", 1, _popcount),
    "clz": Intrinsic("clz", 1, _count_leading_zeros),
    "reinterpret": Intrinsic("reinterpret", 1, lambda x: x),
    **{f"from_{name}": Intrinsic(f"from_{name}", 1, _from_float8(name)) for name in FLOAT8_FORMS},
    **{f"to_{name}": Intrinsic(f"to_{name}", 1, _to_float8(name)) for name in FLOAT8_FORMS},
}
"""The bits of a float8 as a float32, and those of the nearest one (the largest, if a number is too large).
`reinterpret` gives the bits of its argument the call's dtype; whoever evaluates it does the view."""

REPORT = "report_if"
"""The call that says that something is wrong where its argument holds: the program goes on, and fails in the end."""

FLOAT_UNARY = tuple(_FLOAT_UNARY)


def is_pure(name: str) -> bool:
    """Whether a call of this name has no effect and depends on its arguments only."""
    return name in PURE

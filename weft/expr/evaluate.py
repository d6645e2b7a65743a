"""What an expression is worth: the plain evaluator that every rewrite is tested against.

In: an expression, values for its variables, and a function for its loads. Out: a Python int for an index (int64), a
Python bool for a condition, a numpy scalar for any other type, and a numpy array for a vector.

    evaluate(i * 4 + j, {i: 2, j: 1})                                  9
    evaluate(Load(A, (i,)), {i: 2}, lambda load: data[load.indices[0].value])

Integers wrap at their width; Select, And and Or leave alone what they do not choose; vectors go lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.core.dtypes import INDEX, DType
from weft.core.errors import ExpressionError
from weft.expr.intrinsics import PURE
from weft.expr.nodes import (
    EQ,
    LE,
    LT,
    NE,
    Add,
    And,
    Broadcast,
    Call,
    Cast,
    Const,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Ramp,
    Select,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
    index_expr,
    wrap,
)

Loads = Callable[[Load], Any]


def evaluate(e: Expr, env: Mapping[Var, Any], loads: Loads | None = None) -> Any:
    """The value of an expression. `loads` is given each Load that happens, its indices as literals."""
    evaluator = _Evaluator(env, loads)
    with np.errstate(all="ignore"):
        if e.dtype.lanes == 1:
            return _outside(evaluator.at(e, 0), e.dtype)
        values = [evaluator.at(e, lane) for lane in range(e.dtype.lanes)]
    return np.array(values, dtype=_holder(e.dtype))


def _holder(kind: DType) -> Any:
    """The numpy type for one value (types narrower than a byte: the byte with their sign)."""
    return np.dtype(np.int8 if kind.is_signed else np.uint8) if kind.is_packed else kind.numpy


def _outside(value: Any, kind: DType) -> Any:
    return value if kind is INDEX or kind.is_bool else _holder(kind).type(value)


def _inside(value: Any, kind: DType) -> Any:
    """A value as the evaluator holds it: a Python int or bool, or a numpy float of the right width."""
    if kind.is_float:
        return kind.numpy.type(value)
    return bool(value) if kind.is_bool else wrap(int(value), kind)


def convert(value: Any, source: DType, to: DType) -> Any:
    """One number converted as Cast says: float to integer rounds to zero and saturates (NaN: 0); integers wrap."""
    if to.is_bool:
        return bool(value != 0)
    if to.is_integer and source.is_float:
        number = float(value)
        if math.isnan(number):
            return 0
        return int(min(max(number, to.min), to.max)) if math.isfinite(number) else to.max if number > 0 else to.min
    if to.is_float and not source.is_float:
        value = int(value)
        value = np.uint64(value) if value > INDEX.max else np.int64(value)
    return np.asarray(value).astype(to.numpy)[()] if to.is_float else _inside(value, to)


class _Evaluator:
    """Evaluates one lane of an expression."""

    def __init__(self, env: Mapping[Var, Any], loads: Loads | None) -> None:
        self.env = env
        self.loads = loads

    def at(self, e: Any, lane: int) -> Any:
        """The value in one lane."""
        handler = _EVALUATE.get(type(e))
        if handler is None:
            raise ExpressionError(f"{type(e).__name__} has no value outside a running program: {e!r}")
        return handler(self, e, lane)

    def var(self, e: Any, lane: int) -> Any:
        if e not in self.env:
            raise ExpressionError(f"the variable {e.name} has no value: give one in the environment")
        value = self.env[e]
        return _inside(value[lane] if e.dtype.lanes > 1 else value, e.dtype.scalar)

    def binary(self, e: Any, lane: int) -> Any:
        a, b = self.at(e.a, lane), self.at(e.b, lane)
        kind = e.dtype.scalar
        if kind.is_float:
            return kind.numpy.type(_FLOATS[type(e)](a, b))
        if b == 0 and type(e) in _DIVISIONS:
            raise ExpressionError(f"division by zero in {e!r}")
        return wrap(_INTEGERS[type(e)](a, b), kind)

    def select(self, e: Any, lane: int) -> Any:
        return self.at(e.then if self.at(e.condition, lane) else e.otherwise, lane)

    def cast(self, e: Any, lane: int) -> Any:
        return convert(self.at(e.value, lane), e.value.dtype.scalar, e.dtype.scalar)

    def call(self, e: Any, lane: int) -> Any:
        intrinsic = PURE.get(e.name)
        if intrinsic is None:
            raise ExpressionError(f"{e.name} has effects, so a call of it has no value outside a running program")
        kind = e.dtype.scalar
        args = [_holder(arg.dtype.scalar).type(self.at(arg, lane)) for arg in e.args]
        if e.name == "reinterpret":
            return _inside(np.asarray(args[0]).view(kind.numpy)[()], kind)
        return _inside(intrinsic.evaluate(*args), kind)

    def load(self, e: Any, lane: int) -> Any:
        if self.loads is None:
            raise ExpressionError(f"no function for loads was given, and the expression loads from {e.buffer.name}")
        value = self.loads(Load(e.buffer, [index_expr(int(self.at(index, lane))) for index in e.indices]))
        return _inside(value, e.dtype.scalar)

    def ramp(self, e: Any, lane: int) -> Any:
        base, stride = self.at(e.base, 0), self.at(e.stride, 0)
        kind = e.dtype.scalar
        return _inside(base + stride * (kind.numpy.type(lane) if kind.is_float else lane), kind)


def _truncdiv(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_DIVISIONS = frozenset((FloorDiv, FloorMod, TruncDiv, TruncMod))
_INTEGERS: dict[type[Expr], Callable[[int, int], int]] = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    FloorDiv: lambda a, b: a // b,
    FloorMod: lambda a, b: a % b,
    TruncDiv: _truncdiv,
    TruncMod: lambda a, b: a - b * _truncdiv(a, b),
    Min: min,
    Max: max,
}
_FLOATS: dict[type[Expr], Callable[[Any, Any], Any]] = {
    Add: lambda a, b: a + b,
    Sub: lambda a, b: a - b,
    Mul: lambda a, b: a * b,
    Div: lambda a, b: a / b,
    FloorDiv: lambda a, b: np.floor(a / b),
    FloorMod: np.mod,
    TruncMod: np.fmod,
    Min: np.minimum,
    Max: np.maximum,
}
_EVALUATE: dict[type[Expr], Callable[[_Evaluator, Any, int], Any]] = {
    Var: _Evaluator.var,
    Const: lambda self, e, lane: _inside(e.value, e.dtype),
    **dict.fromkeys((*_INTEGERS, Div), _Evaluator.binary),
    EQ: lambda self, e, lane: bool(self.at(e.a, lane) == self.at(e.b, lane)),
    NE: lambda self, e, lane: bool(self.at(e.a, lane) != self.at(e.b, lane)),
    LT: lambda self, e, lane: bool(self.at(e.a, lane) < self.at(e.b, lane)),
    LE: lambda self, e, lane: bool(self.at(e.a, lane) <= self.at(e.b, lane)),
    And: lambda self, e, lane: self.at(e.a, lane) and self.at(e.b, lane),
    Or: lambda self, e, lane: self.at(e.a, lane) or self.at(e.b, lane),
    Not: lambda self, e, lane: not self.at(e.a, lane),
    Select: _Evaluator.select,
    Cast: _Evaluator.cast,
    Call: _Evaluator.call,
    Load: _Evaluator.load,
    Ramp: _Evaluator.ramp,
    Broadcast: lambda self, e, lane: self.at(e.value, 0),
}

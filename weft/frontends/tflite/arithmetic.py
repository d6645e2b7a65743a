"""Converters of what works element by element, and of reductions."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from weft.frontends.emit import NUMBERS, Unsupported, is_float
from weft.frontends.tflite.layers import activated
from weft.frontends.tflite.schema import TYPES
from weft.frontends.tflite.table import enter, moves, operator
from weft.graph.ir import Value

_PLAIN = (
    "FLOOR:Floor LOGISTIC:Sigmoid RELU:Relu TANH:Tanh EXP:Exp NEG:Neg SIN:Sin COS:Cos LOG:Log SQRT:Sqrt ABS:Abs "
    "CEIL:Ceil ROUND:Round HARD_SWISH:HardSwish SIGN:Sign LOGICAL_NOT:Not ELU:Elu MAXIMUM:Max MINIMUM:Min LESS:Less "
    "GREATER:Greater GREATER_EQUAL:GreaterOrEqual LESS_EQUAL:LessOrEqual EQUAL:Equal LOGICAL_OR:Or LOGICAL_AND:And "
    "POW:Pow PRELU:PRelu"
)
for _entry in _PLAIN.split():
    _name, _op = _entry.split(":")
    operator(_name)(lambda c, op, *x, _op=_op: c.op(_op, *x))


def _combined(name: str) -> Any:
    return lambda c, op, x, y: activated(c, c.op(name, x, y), op.option(0, "b"))


for _name in ("Add", "Sub", "Mul", "Div"):
    operator(_name.upper())(_combined(_name))


def _floor_mod(c: Any, op: Any, x: Value, y: Value) -> Value:
    if not is_float(x.tensor.dtype):
        return c.op("Mod", x, y)  # type: ignore[no-any-return]
    return c.op("Sub", x, c.op("Mul", c.op("Floor", c.op("Div", x, y)), y))  # type: ignore[no-any-return]


def _floor_div(c: Any, op: Any, x: Value, y: Value) -> Value:
    if is_float(x.tensor.dtype):
        return c.op("Floor", c.op("Div", x, y))  # type: ignore[no-any-return]
    return c.op("Div", c.op("Sub", x, c.op("Mod", x, y)), y)  # type: ignore[no-any-return]


def _clipped(low: float, high: float) -> Any:
    return lambda c, op, x: c.op("Clip", x, np.float32(low), np.float32(high))


enter(
    {
        "RELU6": _clipped(0.0, 6.0),
        "RELU_N1_TO_1": _clipped(-1.0, 1.0),
        "RELU_0_TO_1": _clipped(0.0, 1.0),
        "RSQRT": lambda c, op, x: c.op("Reciprocal", c.op("Sqrt", x)),
        "SQUARE": lambda c, op, x: c.op("Mul", x, x),
        "SQUARED_DIFFERENCE": lambda c, op, x, y: c.op("Mul", c.op("Sub", x, y), c.op("Sub", x, y)),
        "LEAKY_RELU": lambda c, op, x: c.op("LeakyRelu", x, alpha=op.option(0, "f", 0.0)),
        "NOT_EQUAL": lambda c, op, x, y: c.invert(c.op("Equal", x, y)),
        "LOG_SOFTMAX": lambda c, op, x: c.op("LogSoftmax", x, axis=-1),
        "FLOOR_MOD": _floor_mod,
        "FLOOR_DIV": _floor_div,
        "GELU": lambda c, op, x: c.op("Gelu", x, approximate="tanh" if op.option(0, "?", False) else "none"),
        "TOPK_V2": lambda c, op, x, k: c.several(2, "TopK", x, c.ints(k)[:1], axis=-1, largest=1, sorted=1),
        "REAL": lambda c, op, x: c.op("Gather", x, np.int64(0), axis=-1),
        "IMAG": lambda c, op, x: c.op("Gather", x, np.int64(1), axis=-1),
        "COMPLEX_ABS": lambda c, op, x: c.op("ReduceL2", x, [-1], keepdims=0),
        "ADD_N": lambda c, op, *all: reduce(lambda x, y: c.op("Add", x, y), all),
        "SELECT SELECT_V2": lambda c, op, condition, x, y: c.where(_aligned(c, condition, x), x, y, x.tensor.dtype),
        "CUMSUM": lambda c, op, x, axis: c.op(
            "CumSum", x, np.int64(c.ints(axis)[0]), exclusive=int(op.option(0, "?", False)) or None,
            reverse=int(op.option(1, "?", False)) or None,
        ),
        "CAST": lambda c, op, x: _cast(c, op, x, op.outputs[0].dtype),
    }
)  # fmt: skip


def _aligned(c: Any, condition: Value, x: Value) -> Value:
    """SELECT's condition may be a vector of rows."""
    if condition.tensor.rank == 1 and x.tensor.rank > 1 and condition.tensor.static[0] == x.tensor.static[0]:
        return c.reshape(condition, [-1] + [1] * (x.tensor.rank - 1))  # type: ignore[no-any-return]
    return condition


def _cast(c: Any, op: Any, x: Value, kind: str) -> Value:
    if kind not in NUMBERS or kind.startswith("complex"):
        raise Unsupported(f"a cast to {kind}")
    x = c.op("Gather", x, np.int64(0), axis=-1) if op.inputs[0].dtype == "complex64" else x
    return c.cast(x, kind)  # type: ignore[no-any-return]


def _reduced(name: str) -> Any:
    def converter(c: Any, op: Any, x: Value, axes: Value) -> Value:
        along, rank = [axis % max(x.tensor.rank, 1) for axis in c.ints(axes)], x.tensor.rank
        if not rank or not along:
            return x
        return c.op(name, x, along, keepdims=int(op.option(0, "?", False)))  # type: ignore[no-any-return]

    return converter


for _name, _op in (("MEAN", "ReduceMean"), ("SUM", "ReduceSum"), ("REDUCE_PROD", "ReduceProd")):
    operator(_name)(_reduced(_op))
for _name, _op in (
    ("REDUCE_MAX", "ReduceMax"), ("REDUCE_MIN", "ReduceMin"), ("REDUCE_ANY", "ReduceMax"), ("REDUCE_ALL", "ReduceMin"),
):  # fmt: skip
    moves(_name)(_reduced(_op))


def _placed(name: str) -> Any:
    def converter(c: Any, op: Any, x: Value, axis: Value) -> Value:
        made = c.op(name, x, axis=c.ints(axis)[0], keepdims=0)
        return c.cast(made, TYPES[op.option(0, "b")])  # type: ignore[no-any-return]

    return converter


operator("ARG_MAX")(_placed("ArgMax"))
operator("ARG_MIN")(_placed("ArgMin"))


@operator("RFFT2D")
def _transformed(c: Any, op: Any, x: Value, lengths: Value) -> Value:
    """A transform along the last axis; complex numbers are pairs here, along one more."""
    rows, count = c.ints(lengths)
    if (rows, x.tensor.dims[-2]) != (1, 1):
        raise Unsupported("a Fourier transform of two axes")
    return c.op("DFT", c.unsqueeze(x, -1), np.int64(count), np.int64(-2), onesided=1)  # type: ignore[no-any-return]

"""The verifier's rules of single expression nodes: in goes a node, out comes None or the rule it breaks.

Only the node and its parts' dtypes are looked at; scopes and buffers are the verifier's own matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.expr.intrinsics import FLOAT_UNARY, PURE
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
)
from weft.expr.text import call_dtype

Rule = Callable[[Any], "str | None"]


def _const(e: Any) -> str | None:
    kind, value = e.dtype, e.value
    if kind.lanes != 1:
        return f"a literal is scalar, not {kind}; broadcast it"
    if kind.is_float:
        return None if isinstance(value, (int, float)) else f"the literal holds a {type(value).__name__}, not a float"
    if kind.is_bool:
        return None if isinstance(value, bool) else f"the literal holds a {type(value).__name__}, not a bool"
    if not isinstance(value, int):
        return f"the literal holds a {type(value).__name__}, not an int"
    least, most = (0, (1 << 64) - 1) if kind.kind == "handle" else (kind.min, kind.max)
    return None if least <= value <= most else f"the literal does not fit {kind}"


def _sides(e: Any) -> str | None:
    if e.a.dtype is not e.b.dtype:
        return f"the sides are {e.a.dtype} and {e.b.dtype}; they must have one dtype"
    return None


def _arithmetic(e: Any) -> str | None:
    kind = e.a.dtype
    if kind.is_bool or kind.kind == "handle":
        return f"arithmetic is not defined on {kind}"
    return _sides(e)


def _integers(e: Any) -> str | None:
    return _sides(e) if e.a.dtype.is_integer else f"integer division is not defined on {e.a.dtype}"


def _division(e: Any) -> str | None:
    return _sides(e) if e.a.dtype.is_float else f"'/' is not defined on {e.a.dtype}; integers divide with //"


def _connective(e: Any) -> str | None:
    return _sides(e) if e.a.dtype.is_bool else f"a connective of {e.a.dtype}; 'and' and 'or' take bools"


def _not(e: Any) -> str | None:
    return None if e.a.dtype.is_bool else f"'not' of {e.a.dtype}; it takes a bool"


def _select(e: Any) -> str | None:
    condition = e.condition.dtype
    if e.then.dtype is not e.otherwise.dtype:
        return f"the arms of the select are {e.then.dtype} and {e.otherwise.dtype}; they must have one dtype"
    if not condition.is_bool or condition.lanes not in (1, e.then.dtype.lanes):
        return f"the condition of the select is {condition}, not bool with the lanes of the arms"
    return None


def _cast(e: Any) -> str | None:
    if e.dtype.lanes != e.value.dtype.lanes:
        return f"a cast from {e.value.dtype} to {e.dtype} changes the lanes"
    if "handle" in (e.dtype.kind, e.value.dtype.kind):
        return f"no cast leads from {e.value.dtype} to {e.dtype}"
    return None


def _call(e: Any) -> str | None:
    intrinsic = PURE.get(e.name)
    if intrinsic is None:
        return None
    if len(e.args) != intrinsic.arity:
        return f"{e.name} takes {intrinsic.arity} arguments, not {len(e.args)}"
    for argument in e.args:
        if argument.dtype is not e.args[0].dtype:
            return f"the arguments of {e.name} are {e.args[0].dtype} and {argument.dtype}; they must have one dtype"
    if e.name in FLOAT_UNARY and not e.args[0].dtype.is_float:
        return f"{e.name} takes a float, not {e.args[0].dtype}"
    expected = call_dtype(e.name, e.args)
    if expected is not None and expected is not e.dtype:
        return f"{e.name} of {e.args[0].dtype} is {expected}, but the call says {e.dtype}"
    return None


def _ramp(e: Any) -> str | None:
    if e.base.dtype.lanes != 1 or e.stride.dtype.lanes != 1:
        return "a ramp's base and stride are scalars"
    if e.base.dtype is not e.stride.dtype:
        return f"the ramp's base is {e.base.dtype} and its stride {e.stride.dtype}; they must have one dtype"
    return None if e.lanes >= 1 else f"a ramp of {e.lanes} lanes"


def _broadcast(e: Any) -> str | None:
    if e.value.dtype.lanes != 1:
        return f"the broadcast value is {e.value.dtype}; only a scalar can be broadcast"
    return None if e.lanes >= 1 else f"a broadcast to {e.lanes} lanes"


RULES: dict[type[Expr], Rule] = {
    Const: _const, Div: _division, Not: _not, Select: _select, Cast: _cast, Call: _call, Ramp: _ramp,
    Broadcast: _broadcast, And: _connective, Or: _connective,
    **dict.fromkeys((Add, Sub, Mul, Min, Max, TruncMod), _arithmetic),
    **dict.fromkeys((FloorDiv, FloorMod, TruncDiv), _integers),
    **dict.fromkeys((EQ, NE, LT, LE), _sides),
}  # fmt: skip
"""The rule of each node besides Var, Load and Address."""

"""Expressions as text: in goes an Expr, out comes one line that a person reads and `weft.loop.parser` reads back.

    Add(Mul(yo, 32), yi)              yo*32 + yi                 `*` is tight inside a larger expression
    Mul(Load(A, (k, y)), …)           A[k, y] * B[k, x]
    And(LT(i, n), LT(j, 4))           i < n and j < 4
    Select(c, a, b)                   select(c, a, b)
    Cast(float16, x)                  float16(x)
    Call("exp", (x,), float32)        exp(x)                     a dtype that does not follow: f(x) -> int8
    Ramp(b, s, 16), Broadcast(x, 16)  ramp(b, s, 16), broadcast(x, 16)
    Address(A, (i, j), "r")           address(A[i, j], "r")      "rw" is not written

Literals: a plain integer is int64 and a plain decimal is float32; every other dtype is a suffix: 3i32, 255u8, 0.5f16,
1.0bf16, 2.0f64, 0h (a handle). Also true, false, and inf, nan, inf_f16, nan_f64, … Floats have as many digits as
bring the same number back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Union

from weft.core.dtypes import BOOL, FLOAT32, INDEX, INT32, DType, dtype
from weft.core.errors import DTypeError
from weft.expr.intrinsics import PURE
from weft.expr.nodes import (
    EQ,
    LE,
    LT,
    NE,
    Add,
    Address,
    And,
    Binary,
    Broadcast,
    Buffer,
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
)

Named = Union[Var, Buffer]
Names = Callable[[Named], str]
_Formatter = Callable[[Any, Names, int], str]

# How tightly an operator binds; an operand that binds less than its place asks for goes in parentheses.
WHOLE, INSIDE, OR, AND, NOT, COMPARE, SUM, PRODUCT, ATOM = range(9)

INFIX: dict[type[Expr], tuple[str, int]] = {
    Or: ("or", OR), And: ("and", AND), EQ: ("==", COMPARE), NE: ("!=", COMPARE), LT: ("<", COMPARE),
    LE: ("<=", COMPARE), Add: ("+", SUM), Sub: ("-", SUM), Mul: ("*", PRODUCT), Div: ("/", PRODUCT),
    FloorDiv: ("//", PRODUCT), FloorMod: ("%", PRODUCT),
}  # fmt: skip
"""The symbol and the binding strength of each operator written between its sides."""

PREFIX: dict[type[Binary], str] = {Min: "min", Max: "max", TruncDiv: "truncdiv", TruncMod: "truncmod"}
"""The two-sided nodes that are written like calls."""

SUFFIXES: dict[str, DType] = {
    **{f"i{bits}": dtype(f"int{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": dtype(f"uint{bits}") for bits in (1, 2, 4, 8, 16, 32, 64)},
    "f16": dtype("float16"), "f32": dtype("float32"), "f64": dtype("float64"), "bf16": dtype("bfloat16"),
    "h": dtype("handle"),
}  # fmt: skip
"""The endings of literals."""

_SUFFIX_OF: dict[DType, str] = {kind: suffix for suffix, kind in SUFFIXES.items()}

SPECIAL: dict[str, tuple[float | bool, DType]] = {"true": (True, BOOL), "false": (False, BOOL)}
"""The literals that are words."""
for _word, _value in (("inf", math.inf), ("nan", math.nan)):
    SPECIAL[_word] = (_value, FLOAT32)
    for _suffix in ("f16", "f64", "bf16"):
        SPECIAL[f"{_word}_{_suffix}"] = (_value, SUFFIXES[_suffix])

BUILTINS = frozenset(("select", "min", "max", "truncdiv", "truncmod", "ramp", "broadcast", "address", "call"))
"""Words that mean a node, not an intrinsic, when `(` follows."""

KEYWORDS = frozenset(
    """and or not func allocate for in range block where reads writes init if elif else let pass as size
    spatial reduce ordered""".split()
)
"""Words of the language; a variable of such a name is renamed when it is printed."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*\Z")
_DTYPE_LIKE = re.compile(r"(?:float|bfloat|int|uint|bool|handle)\d*(?:x\d+)?\Z")


def is_identifier(name: str) -> bool:
    """Whether a name can be written without quotes (dots inside are fine: `threadIdx.x`)."""
    return _IDENTIFIER.match(name) is not None


def is_dtype_name(name: str) -> bool:
    """Whether a word is the name of a data type."""
    if _DTYPE_LIKE.match(name) is None:
        return False
    try:
        dtype(name)
    except DTypeError:
        return False
    return True


def is_reserved(name: str) -> bool:
    """Whether a word has a meaning of its own, so that no variable or buffer can be written by it."""
    return name in KEYWORDS or name in SPECIAL or _DTYPE_LIKE.match(name) is not None


def call_dtype(name: str, args: Sequence[Expr]) -> DType | None:
    """The dtype that a call has when none is written; None where it must be written. Effects default to int32."""
    if name not in PURE:
        return INT32
    if name == "reinterpret" or "_float8" in name or not args:
        return None
    first = args[0].dtype
    return BOOL.with_lanes(first.lanes) if name in ("isnan", "isinf", "isfinite") else first


def format_expr(e: Expr, names: Names | None = None) -> str:
    """An expression as text; `names` says how each variable and buffer is called (by its own name if not given)."""
    return _FORMAT[type(e)](e, names or _own_name, WHOLE)


def format_inside(e: Expr, names: Names) -> str:
    """An expression as a part of something larger (an index, an extent): products are written tight."""
    return _FORMAT[type(e)](e, names, INSIDE)


def _own_name(thing: Named) -> str:
    return thing.name


def _var(e: Var, names: Names, place: int) -> str:
    return names(e)


def _const(e: Const, names: Names, place: int) -> str:
    kind, value = e.dtype, e.value
    if kind is INDEX:
        return str(int(value))
    if kind.is_bool:
        return "true" if value else "false"
    suffix = _SUFFIX_OF.get(kind.scalar, "") + ("" if kind.lanes == 1 else f"x{kind.lanes}")
    if not kind.is_float:
        return f"{int(value)}{suffix}"
    value = float(value)
    plain = kind is FLOAT32
    if math.isfinite(value):
        return repr(value) if plain else repr(value) + suffix
    word = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return word if plain else f"{word}_{suffix}"


def _infix(e: Binary, names: Names, place: int) -> str:
    symbol, strength = INFIX[type(e)]
    left_needs = strength + 1 if strength == COMPARE else strength
    # A long sum leans to the left; walking down that side keeps Python's stack out of it.
    parts: list[str] = []
    node: Expr = e
    while True:
        assert isinstance(node, Binary)
        parts.append(_FORMAT[type(node.b)](node.b, names, strength + 1))
        parts.append(f"{symbol}" if strength == PRODUCT and place != WHOLE else f" {symbol} ")
        node = node.a
        symbol, next_strength = INFIX.get(type(node), ("", 0))
        if strength == COMPARE or next_strength != strength:
            break
    parts.append(_FORMAT[type(node)](node, names, left_needs))
    parts.reverse()
    text = "".join(parts)
    return f"({text})" if strength < place else text


def _prefix(e: Binary, names: Names, place: int) -> str:
    return f"{PREFIX[type(e)]}({format_inside(e.a, names)}, {format_inside(e.b, names)})"


def _not(e: Not, names: Names, place: int) -> str:
    text = f"not {_FORMAT[type(e.a)](e.a, names, ATOM)}"
    return f"({text})" if place > NOT else text


def format_list(items: Sequence[Expr], names: Names) -> str:
    """Expressions with commas between them."""
    return ", ".join([_FORMAT[type(item)](item, names, INSIDE) for item in items])


def _select(e: Select, names: Names, place: int) -> str:
    return f"select({format_list((e.condition, e.then, e.otherwise), names)})"


def _cast(e: Cast, names: Names, place: int) -> str:
    return f"{e.dtype.name}({format_inside(e.value, names)})"


def _call(e: Call, names: Names, place: int) -> str:
    args = format_list(e.args, names)
    if is_identifier(e.name) and e.name not in BUILTINS and not is_reserved(e.name):
        text = f"{e.name}({args})"
    else:
        text = f"call({json.dumps(e.name)}{', ' if args else ''}{args})"
    return text if call_dtype(e.name, e.args) is e.dtype else f"{text} -> {e.dtype.name}"


def _load(e: Load, names: Names, place: int) -> str:
    return f"{names(e.buffer)}[{format_list(e.indices, names)}]"


def _address(e: Address, names: Names, place: int) -> str:
    mode = "" if e.mode == "rw" else f", {json.dumps(e.mode)}"
    return f"address({names(e.buffer)}[{format_list(e.indices, names)}]{mode})"


def _ramp(e: Ramp, names: Names, place: int) -> str:
    return f"ramp({format_list((e.base, e.stride), names)}, {e.lanes})"


def _broadcast(e: Broadcast, names: Names, place: int) -> str:
    return f"broadcast({format_inside(e.value, names)}, {e.lanes})"


def _unknown(e: Expr, names: Names, place: int) -> str:
    return f"<{type(e).__name__}>"


class _Formatters(dict[type[Expr], _Formatter]):
    """A class that is no node of the IR is still shown: error messages print what they refuse."""

    def __missing__(self, kind: type[Expr]) -> _Formatter:
        return _unknown


_FORMAT = _Formatters({
    Var: _var, Const: _const, Not: _not, Select: _select, Cast: _cast, Call: _call, Load: _load, Address: _address,
    Ramp: _ramp, Broadcast: _broadcast, **dict.fromkeys(INFIX, _infix), **dict.fromkeys(PREFIX, _prefix),
})  # fmt: skip

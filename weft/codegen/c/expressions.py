"""Arithmetic, comparisons, connectives, Select and conversions, lane by lane.

Integer arithmetic wraps: where a result might leave its type, it is computed in an unsigned type. Division never traps
(by zero it gives 0). 16-bit floats are computed in float32 and rounded after each operation. The loads of an arm of
Select, or of the second side of And and Or, happen only where they are asked for: C's own `?:`, `&&` and `||`.
"""

from __future__ import annotations

from weft.codegen.c import types
from weft.codegen.c.context import Context, Handler, bare
from weft.codegen.llvm.analysis import interval, touches_memory
from weft.core.dtypes import FLOAT32, INDEX, INT32, DType
from weft.core.errors import InternalError, TargetError
from weft.expr.nodes import (
    EQ,
    LE,
    LT,
    NE,
    Add,
    And,
    Binary,
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
)
from weft.expr.visit import walk

_SYMBOLS: dict[type[Expr], str] = {
    Add: "+", Sub: "-", Mul: "*", Div: "/", EQ: "==", NE: "!=", LT: "<", LE: "<=", And: "&&", Or: "||",
}  # fmt: skip
_DIVISIONS: dict[type[Expr], str] = {
    FloorDiv: "floordiv", FloorMod: "floormod", TruncDiv: "truncdiv", TruncMod: "truncmod",
}  # fmt: skip


def rounded(text: str, dtype: DType) -> str:
    """A float32 result as a value of a float dtype."""
    if not types.is_half(dtype):
        return text
    return f"weft_round_{'bfloat' if dtype.kind == 'bfloat' else 'half'}({bare(text)})"


def _variable(c: Context, e: Var) -> list[str]:
    if e in c.variable_lanes:
        return c.variable_lanes[e]
    found = c.names.get(e)
    if found is None:
        raise InternalError(f"variable {e.name!r} is used outside the statement that defines it")
    return [f"(int64_t){found}" if e in c.narrow else found]


def _literal(c: Context, e: Const) -> list[str]:
    return [types.literal(e.value, e.dtype, c.dialect)]


def _broadcast(c: Context, e: Broadcast) -> list[str]:
    return [c.temporary(types.register_type(e.value.dtype), c.value(e.value))] * e.lanes


def _ramp(c: Context, e: Ramp) -> list[str]:
    kind = types.register_type(e.base.dtype)
    base = c.temporary(kind, c.value(e.base))
    if isinstance(e.stride, Const):
        steps = [int(e.stride.value) * lane for lane in range(e.lanes)]
        return [base if step == 0 else f"({base} {'-' if step < 0 else '+'} {abs(step)})" for step in steps]
    stride = c.temporary(kind, c.value(e.stride))
    return [f"({base} + {stride} * {lane})" for lane in range(e.lanes)]


# ------------------------------------------------------------------------------------------------- arithmetic


def _both(c: Context, e: Binary) -> list[tuple[str, str]]:
    return list(zip(c.lanes(e.a), c.lanes(e.b)))


def _simple(c: Context, e: Binary) -> list[str]:
    """+ - * and the division of floats."""
    symbol, dtype = _SYMBOLS[type(e)], e.dtype
    if dtype.is_float:
        return [rounded(f"({a} {symbol} {b})", dtype) for a, b in _both(c, e)]
    if not dtype.is_integer:
        raise InternalError(f"{type(e).__name__} on {dtype}")
    if dtype.is_signed and dtype.bits >= 32 and _stays_inside(c, e):
        wide = "(int64_t)" if dtype.bits == 64 else ""
        return [f"({wide if a.isdigit() and b.isdigit() else ''}{a} {symbol} {b})" for a, b in _both(c, e)]
    kind, wrapping = types.register_type(dtype), types.wrapping_type(dtype)
    if kind == wrapping:
        return [f"({a} {symbol} {b})" for a, b in _both(c, e)]
    return [f"({kind})(({wrapping}){a} {symbol} ({wrapping}){b})" for a, b in _both(c, e)]


def _stays_inside(c: Context, e: Expr) -> bool:
    """Whether arithmetic leaves its type by no means: its range is known, or it is only about indices."""
    low, high = interval(e, c.ranges)
    if low is not None and high is not None:
        return True
    return e.dtype.scalar is INDEX and is_index(c, e)


def is_index(c: Context, e: Expr) -> bool:
    """Whether an int64 is made of loop variables and sizes alone, which come nowhere near the ends of int64."""
    for node in walk(e):
        if isinstance(node, Var) and node not in c.indices:
            return False
        if isinstance(node, (Load, Call, Select)) or (isinstance(node, Const) and abs(node.value) >= 1 << 31):
            return False
    return True


def _extreme(c: Context, e: Binary) -> list[str]:
    name = "weft_min" if isinstance(e, Min) else "weft_max"
    kind = types.register_type(e.dtype)
    if not e.dtype.is_float and not e.dtype.is_integer:
        raise InternalError(f"{type(e).__name__} on {e.dtype}")
    return [f"{name}_{kind}({bare(a)}, {bare(b)})" for a, b in _both(c, e)]


def _divide(c: Context, e: Binary) -> list[str]:
    """Integer division: one instruction where the signs are known, else a function."""
    dtype, name = e.dtype, _DIVISIONS[type(e)]
    if dtype.is_float:
        function = "fmod" if dtype.bits == 64 else f"fmod{c.dialect.float_suffix}"
        return [rounded(f"{function}({bare(a)}, {bare(b)})", dtype) for a, b in _both(c, e)]
    kind, remainder = types.register_type(dtype), name.endswith("mod")
    divisor = e.b.value if isinstance(e.b, Broadcast) else e.b
    low = interval(e.a, c.ranges)[0]
    nonnegative = not dtype.is_signed or (low is not None and low >= 0)
    least = interval(divisor, c.ranges)[0]
    number = int(divisor.value) if isinstance(divisor, Const) else 0
    if number > 0 and number & (number - 1) == 0 and (nonnegative or name.startswith("floor")):
        step = f"& {number - 1}" if remainder else f">> {number.bit_length() - 1}"
        return [f"({kind})({a} {step})" if dtype.bits < 32 else f"({a} {step})" for a in c.lanes(e.a)]
    if nonnegative and least is not None and least > 0:
        symbol, wide = "%" if remainder else "/", types.wrapping_type(dtype)
        if number > 0:
            return [f"({kind})(({wide}){a} {symbol} {number}u)" for a in c.lanes(e.a)]
        return [f"({kind})(({wide}){a} {symbol} ({wide}){b})" for a, b in _both(c, e)]
    return [f"weft_{name}_{kind}({bare(a)}, {bare(b)})" for a, b in _both(c, e)]


# ---------------------------------------------------------------------------------- comparisons and connectives


def _compare(c: Context, e: Binary) -> list[str]:
    return [f"({a} {_SYMBOLS[type(e)]} {b})" for a, b in _both(c, e)]


def _connect(c: Context, e: Binary) -> list[str]:
    """Both sides of index arithmetic are computed: of `&&` compilers make branches, at which threads of a warp part."""
    left = c.lanes(e.a)
    right = _guarded(c, e.b)
    symbol = _SYMBOLS[type(e)]
    return [f"({a} {symbol[0] if _is_cheap(e.b) else symbol} {b})" for a, b in zip(left, right)]


def _is_cheap(e: Expr) -> bool:
    """Whether an expression is a little arithmetic on integers, or on tables of them, which may be done in vain."""
    return not any(
        isinstance(node, Call)
        or node.dtype.is_float
        or (isinstance(node, Load) and (node.buffer.scope != "local" or node.buffer.dtype is not INT32))
        for node in walk(e)
    )


def _guarded(c: Context, e: Expr) -> list[str]:
    """Lanes that are evaluated only where C comes by: nothing that touches memory may become a statement before."""
    harmful = touches_memory(e)
    c.conditional += harmful
    found = c.lanes(e)
    c.conditional -= harmful
    return found


def _not(c: Context, e: Not) -> list[str]:
    return [f"(!{a})" for a in c.lanes(e.a)]


def select(c: Context, e: Select) -> list[str]:
    """A choice of values."""
    condition = e.condition.value if isinstance(e.condition, Broadcast) else e.condition
    harmful = touches_memory(e.then) or touches_memory(e.otherwise)
    if condition.dtype.lanes == 1 and e.dtype.lanes > 1 and harmful and not c.conditional:
        return _branch(c, condition, e)
    conditions = c.lanes(condition)
    if len(conditions) == 1:
        conditions = [c.temporary("bool", conditions[0])] * e.dtype.lanes
    texts = [f"({t} ? {a} : {b})" for t, a, b in zip(conditions, _guarded(c, e.then), _guarded(c, e.otherwise))]
    kind = types.register_type(e.dtype.scalar)
    return [c.temporary(kind, text) for text in texts] if harmful and e.dtype.lanes == 1 else texts


def _branch(c: Context, condition: Expr, e: Select) -> list[str]:
    """A condition that all lanes share: the arms become the branches of an if, so that their loads stay wide.

    Numbers of 16 bits are chosen as bits: an arm that only moves them converts nothing.
    """
    is_half = types.is_half(e.dtype.scalar)
    names = [c.fresh("chosen") for _ in range(e.dtype.lanes)]
    c.line(f"{'uint16_t' if is_half else types.register_type(e.dtype.scalar)} {', '.join(names)};")
    for head, arm in ((f"if ({bare(c.value(condition))}) {{", e.then), ("} else {", e.otherwise)):
        c.line(head)
        c.depth += 1
        texts = c.lanes(arm)
        if is_half:
            one = arm.value if isinstance(arm, Broadcast) else arm
            is_zero = isinstance(one, Const) and repr(float(one.value)) == "0.0"
            texts = ["0"] * len(names) if is_zero else [to_bits(text, e.dtype.scalar) for text in texts]
        for name, text in zip(names, texts):
            c.line(f"{name} = {bare(text)};")
        c.depth -= 1
    c.line("}")
    return [from_bits(name, e.dtype.scalar) for name in names] if is_half else names


# ------------------------------------------------------------------------------------------------- conversions


_INTO_BITS = {"float": "weft_as_bits", "double": "weft_as_bits64"}
_FROM_BITS = {"float": "weft_as_float", "double": "weft_as_double"}


def to_bits(text: str, dtype: DType) -> str:
    """The bits of a value as an unsigned integer of its width."""
    if types.is_half(dtype):
        kind = "bfloat" if dtype.kind == "bfloat" else "half"
        rounding = f"weft_round_{kind}"
        if text.startswith(rounding) and bare(text.removeprefix(rounding)) != text.removeprefix(rounding):
            text = text.removeprefix(rounding)  # the conversion to bits rounds by itself
        value = f"weft_from_{kind}"
        if text.startswith(value) and bare(text.removeprefix(value)) != text.removeprefix(value):
            return text.removeprefix(value)  # bits that are only moved
        return f"weft_to_{kind}({bare(text)})"
    if dtype.is_float:
        return f"{_INTO_BITS[types.register_type(dtype)]}({bare(text)})"
    return f"(uint{dtype.bits}_t){text}"


def from_bits(text: str, dtype: DType) -> str:
    """The value that bits of an unsigned integer stand for."""
    if types.is_half(dtype):
        return f"weft_from_{'bfloat' if dtype.kind == 'bfloat' else 'half'}({bare(text)})"
    if dtype.is_float:
        return f"{_FROM_BITS[types.register_type(dtype)]}({bare(text)})"
    return f"({types.register_type(dtype)}){text}"


def convert(c: Context, text: str, source: DType, to: DType) -> str:
    """A value of one scalar dtype as another."""
    source, to = source.scalar, to.scalar
    if source is to:
        return text
    if source.kind == "handle" or to.kind == "handle":
        raise TargetError(f"cannot convert {source} to {to}")
    if types.is_half(source):
        source = FLOAT32
        if source is to:
            return text
    kind = types.register_type(to)
    if types.is_half(to):
        if source.bits == 64 and source.is_float:
            text = f"weft_round_odd({bare(text)})"
        elif not source.is_float:
            text = f"(float){text}"
        return rounded(text, to)
    if to.is_bool:
        return f"({text} != 0)"
    if source.is_float and to.is_integer:
        return f"weft_from_{types.register_type(source)}_to_{kind}({bare(text)})"
    return f"({kind}){text}"


def _cast(c: Context, e: Cast) -> list[str]:
    value = e.value
    if e.dtype is INT32 and isinstance(value, Var) and value in c.narrow:
        return [c.names[value]]
    if e.dtype is INDEX and isinstance(value, Const) and value.dtype.is_integer:
        return [types.literal(int(value.value), INDEX, c.dialect)]
    outer = c.is_rounded
    c.is_rounded = outer or types.is_half(e.dtype.scalar)
    texts = c.lanes(value)
    c.is_rounded = outer
    return [convert(c, text, value.dtype, e.dtype) for text in texts]


TABLE: dict[type[Expr], Handler] = {
    Var: _variable, Const: _literal, Broadcast: _broadcast, Ramp: _ramp, Add: _simple, Sub: _simple, Mul: _simple,
    Div: _simple, Min: _extreme, Max: _extreme, FloorDiv: _divide, FloorMod: _divide, TruncDiv: _divide,
    TruncMod: _divide, EQ: _compare, NE: _compare, LT: _compare, LE: _compare, And: _connect, Or: _connect, Not: _not,
    Select: select, Cast: _cast,
}  # fmt: skip

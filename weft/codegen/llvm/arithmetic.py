"""Arithmetic, comparisons, connectives and Select.

Float operations carry no fast-math flags: NaN, infinities and the order of additions are kept. The one liberty is that
a product that is added (or subtracted) at once is fused, `a * b + c -> fma(a, b, c)`, where the machine has it; but not
in the difference that exp takes.

Integer division never traps: a zero divisor that is only known at run time gives 0 (quotient and remainder), and the
one quotient that does not fit (least value / -1) wraps.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from weft.codegen.llvm import types
from weft.codegen.llvm.analysis import as_ramp, interval, touches_memory
from weft.codegen.llvm.context import Context, Handler
from weft.codegen.llvm.convert import cast, narrow, widen
from weft.core.dtypes import DType
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

_FLOAT_OPS = {Add: "fadd", Sub: "fsub", Mul: "fmul", Div: "fdiv", TruncMod: "frem"}
_INTEGER_OPS = {Add: "add", Sub: "sub", Mul: "mul"}


def element_type(dtype: DType) -> str:
    """The LLVM type of one lane in a register."""
    return types.llvm_type(dtype.scalar)


def in_float32(c: Context, dtype: DType, values: list[str], make: Callable[[str, list[str]], str]) -> str:
    """`make(type, values)` for floats; 16-bit ones go through float32 and are rounded at the end."""
    if dtype.bits != 16:
        return make(types.llvm_type(dtype), values)
    wide = [widen(c, value, dtype) for value in values]
    return narrow(c, make(types.vector("float", dtype.lanes), wide), dtype)


def _variable(c: Context, e: Var) -> str:
    found = c.values.get(e)
    if found is None:
        raise InternalError(f"variable {e.name!r} is used outside the statement that defines it")
    return found


def _literal(c: Context, e: Const) -> str:
    return types.literal(e.value, e.dtype)


def _broadcast(c: Context, e: Broadcast) -> str:
    return c.broadcast(element_type(e.value.dtype), c.value(e.value), e.lanes)


def _ramp(c: Context, e: Ramp) -> str:
    element, kind = element_type(e.base.dtype), types.llvm_type(e.dtype)
    base = c.broadcast(element, c.value(e.base), e.lanes)
    if isinstance(e.stride, Const):
        steps = types.constant_vector(element, [int(e.stride.value) * lane for lane in range(e.lanes)])
    else:
        stride = c.broadcast(element, c.value(e.stride), e.lanes)
        steps = c.once(f"mul {kind} {stride}, {types.constant_vector(element, range(e.lanes))}")
    return c.once(f"add {kind} {base}, {steps}")


# ------------------------------------------------------------------------------------------------------ + - * /


def _simple(c: Context, e: Binary) -> str:
    """An operation that is one LLVM instruction."""
    dtype = e.dtype
    if dtype.is_float:
        return _float_simple(c, e)
    if not dtype.is_integer:
        raise InternalError(f"{type(e).__name__} on {dtype}")
    return c.once(f"{_INTEGER_OPS[type(e)]} {types.llvm_type(dtype)} {c.value(e.a)}, {c.value(e.b)}")


def _float_simple(c: Context, e: Binary) -> str:
    name = _FLOAT_OPS[type(e)]
    return in_float32(c, e.dtype, [c.value(e.a), c.value(e.b)], lambda t, v: c.once(f"{name} {t} {v[0]}, {v[1]}"))


def _sum(c: Context, e: Binary) -> str:
    """a + b and a - b, fused with a product on either side."""
    dtype = e.dtype
    if not dtype.is_float or dtype.bits == 16 or not c.module.machine.has_fma:
        return _simple(c, e)
    kind = types.llvm_type(dtype)
    minus = type(e) is Sub
    if isinstance(e.a, Mul):
        x, y, z = c.value(e.a.a), c.value(e.a.b), c.value(e.b)
        z = c.once(f"fneg {kind} {z}") if minus else z
    elif isinstance(e.b, Mul):
        z, x, y = c.value(e.a), c.value(e.b.a), c.value(e.b.b)
        x = c.once(f"fneg {kind} {x}") if minus else x
    else:
        return _simple(c, e)
    return c.intrinsic("llvm.fma", kind, x, y, z)


def unfused(c: Context, e: Expr) -> str:
    """The value of an expression; a difference is that of rounded numbers."""
    return _simple(c, e) if isinstance(e, Sub) else c.value(e)


def _never_nan(e: Expr) -> bool:
    e = e.value if isinstance(e, Broadcast) else e
    return isinstance(e, Const) and not math.isnan(e.value)


def _extreme(c: Context, e: Binary) -> str:
    """min and max; of floats NaN wins."""
    dtype, least = e.dtype, type(e) is Min
    a, b = c.value(e.a), c.value(e.b)
    if not dtype.is_float:
        if not dtype.is_integer:
            raise InternalError(f"{type(e).__name__} on {dtype}")
        name = ("llvm.smin" if least else "llvm.smax") if dtype.is_signed else ("llvm.umin" if least else "llvm.umax")
        return c.intrinsic(name, types.llvm_type(dtype), a, b)
    if c.module.is_aarch64:
        name = "llvm.minimum" if least else "llvm.maximum"
        return in_float32(c, dtype, [a, b], lambda t, v: c.intrinsic(name, t, *v))
    return _float_extreme(c, e, a, b)


def _float_extreme(c: Context, e: Binary, a: str, b: str) -> str:
    """One of the two as it is: 16-bit floats are compared in float32, and nothing is rounded."""
    dtype, least = e.dtype, type(e) is Min
    if not _never_nan(e.a) and _never_nan(e.b):
        a, b = b, a  # x86's vmaxps gives the second operand when either is NaN: put the one that can be NaN there
    kind = types.llvm_type(dtype)
    wide, x, y = kind, a, b
    if dtype.bits == 16:
        wide, x, y = types.vector("float", dtype.lanes), widen(c, a, dtype), widen(c, b, dtype)
    flag = types.vector("i1", dtype.lanes)
    wins = c.once(f"fcmp {'olt' if least else 'ogt'} {wide} {x}, {y}")
    chosen = c.once(f"select {flag} {wins}, {kind} {a}, {kind} {b}")
    if _never_nan(e.a) or _never_nan(e.b):
        return chosen
    is_nan = c.once(f"fcmp uno {wide} {x}, {x}")
    return c.once(f"select {flag} {is_nan}, {kind} {a}, {kind} {chosen}")


# ----------------------------------------------------------------------------------------------- integer division


def _divide(c: Context, e: Binary) -> str:
    dtype = e.dtype
    if dtype.is_float:
        if isinstance(e, TruncMod):
            return _float_simple(c, e)
        raise InternalError(f"{type(e).__name__} on {dtype}")
    divisor = e.b.value if isinstance(e.b, Broadcast) else e.b
    floor = isinstance(e, (FloorDiv, FloorMod))
    remainder = isinstance(e, (FloorMod, TruncMod))
    a = c.value(e.a)
    low = interval(e.a, c.ranges)[0]
    nonnegative = not dtype.is_signed or (low is not None and low >= 0)
    if isinstance(divisor, Const) and divisor.value != 0:
        return _divide_constant(c, dtype, a, int(divisor.value), floor, remainder, nonnegative)
    low = interval(divisor, c.ranges)[0]
    return _divide_guarded(c, dtype, a, c.value(e.b), floor, remainder, nonnegative, low is not None and low > 0)


def _divide_constant(c: Context, dtype: DType, a: str, b: int, floor: bool, remainder: bool, nonnegative: bool) -> str:
    kind, element, lanes = types.llvm_type(dtype), element_type(dtype), dtype.lanes

    def literal(value: int) -> str:
        return types.splat(element, str(value), lanes)

    if b == 1 or b == -1:
        if remainder:
            return literal(0)
        return a if b == 1 else c.once(f"sub {kind} {literal(0)}, {a}")
    if b > 0 and b & (b - 1) == 0 and (floor or nonnegative):
        if remainder:
            return c.once(f"and {kind} {a}, {literal(b - 1)}")
        return c.once(f"{'ashr' if dtype.is_signed else 'lshr'} {kind} {a}, {literal(b.bit_length() - 1)}")
    if b > 0 and nonnegative:
        return c.once(f"{'urem' if remainder else 'udiv'} {kind} {a}, {literal(b)}")
    return _divide_signed(c, dtype, a, literal(b), floor, remainder)


def _divide_signed(c: Context, dtype: DType, a: str, b: str, floor: bool, remainder: bool) -> str:
    """Division by a divisor that is safe: not 0, and not -1 at run time."""
    kind, lanes = types.llvm_type(dtype), dtype.lanes
    if not floor:
        return c.once(f"{'srem' if remainder else 'sdiv'} {kind} {a}, {b}")
    zero = types.splat(element_type(dtype), "0", lanes)
    flag = types.vector("i1", lanes)
    quotient = c.once(f"sdiv {kind} {a}, {b}")
    rest = c.once(f"sub {kind} {a}, {c.once(f'mul {kind} {quotient}, {b}')}")
    differs = c.once(f"icmp slt {kind} {c.once(f'xor {kind} {rest}, {b}')}, {zero}")
    adjust = c.once(f"and {flag} {differs}, {c.once(f'icmp ne {kind} {rest}, {zero}')}")
    if remainder:
        return c.once(f"add {kind} {rest}, {c.once(f'select {flag} {adjust}, {kind} {b}, {kind} {zero}')}")
    return c.once(f"add {kind} {quotient}, {c.once(f'sext {flag} {adjust} to {kind}')}")


def _divide_guarded(
    c: Context, dtype: DType, a: str, b: str, floor: bool, remainder: bool, nonnegative: bool, positive: bool
) -> str:
    """Division by a value known only at run time: 0 and -1 are replaced before, and their results chosen after."""
    kind, element, lanes = types.llvm_type(dtype), element_type(dtype), dtype.lanes
    flag = types.vector("i1", lanes)
    zero, one, minus = (types.splat(element, text, lanes) for text in ("0", "1", "-1"))
    if positive and nonnegative:
        return c.once(f"{'urem' if remainder else 'udiv'} {kind} {a}, {b}")
    if positive:
        return _divide_signed(c, dtype, a, b, floor, remainder)
    is_zero = c.once(f"icmp eq {kind} {b}, {zero}")
    safe = c.once(f"select {flag} {is_zero}, {kind} {one}, {kind} {b}")
    if not dtype.is_signed:
        result = c.once(f"{'urem' if remainder else 'udiv'} {kind} {a}, {safe}")
    else:
        is_minus = c.once(f"icmp eq {kind} {b}, {minus}")
        safe = c.once(f"select {flag} {is_minus}, {kind} {one}, {kind} {safe}")
        result = _divide_signed(c, dtype, a, safe, floor, remainder)
        special = zero if remainder else c.once(f"sub {kind} {zero}, {a}")
        result = c.once(f"select {flag} {is_minus}, {kind} {special}, {kind} {result}")
    return c.once(f"select {flag} {is_zero}, {kind} {zero}, {kind} {result}")


# ------------------------------------------------------------------------------------- comparisons and connectives

_FLOAT_PREDICATE: dict[type[Expr], str] = {EQ: "oeq", NE: "une", LT: "olt", LE: "ole"}
_PREDICATE: dict[type[Expr], str] = {EQ: "eq", NE: "ne", LT: "slt", LE: "sle"}
_UNSIGNED_PREDICATE: dict[type[Expr], str] = {EQ: "eq", NE: "ne", LT: "ult", LE: "ule"}


def _compare(c: Context, e: Binary) -> str:
    dtype = e.a.dtype
    if dtype.lanes > 1 and isinstance(e, (LT, LE)) and dtype.is_signed and dtype.bits == 64:
        tail = _lane_compare(c, e)
        if tail is not None:
            return tail
    a, b = c.value(e.a), c.value(e.b)
    if dtype.is_float:
        kind = types.llvm_type(dtype)
        if dtype.bits == 16:
            a, b, kind = widen(c, a, dtype), widen(c, b, dtype), types.vector("float", dtype.lanes)
        return c.once(f"fcmp {_FLOAT_PREDICATE[type(e)]} {kind} {a}, {b}")
    table = _PREDICATE if dtype.is_signed else _UNSIGNED_PREDICATE
    return c.once(f"icmp {table[type(e)]} {types.llvm_type(dtype)} {a}, {b}")


_TESTS = {"slt": operator.lt, "sle": operator.le, "sgt": operator.gt, "sge": operator.ge}


def _lane_compare(c: Context, e: Binary) -> str | None:
    """`base + lane < limit` as a comparison of the 32-bit lane numbers with one scalar: the tail mask of a loop.

    The indices of a program do not come near the ends of int64, so limit - base does not overflow.
    """
    a, b = as_ramp(e.a, c.definitions), as_ramp(e.b, c.definitions)
    if a is None or b is None:
        return None
    strides = tuple(s.value if isinstance(s, Const) else None for s in (a[1], b[1]))
    lanes = e.a.dtype.lanes
    if strides == (1, 0):
        bound, low, high, predicate = (b[0], a[0]), 0, lanes, "slt"
    elif strides == (0, 1):
        bound, low, high, predicate = (a[0], b[0]), -1, lanes, "sgt"
    else:
        return None
    if isinstance(e, LE):
        predicate = {"slt": "sle", "sgt": "sge"}[predicate]
        low, high = -1, lanes
    end, start = c.value(bound[0]), c.value(bound[1])
    if end[0] != "%" and start[0] != "%":
        count = int(end) - int(start)
        return types.constant_vector("i1", [int(_TESTS[predicate](lane, count)) for lane in range(lanes)])
    distance = c.intrinsic("llvm.smax", "i64", c.once(f"sub i64 {end}, {start}"), str(low))
    distance = c.intrinsic("llvm.smin", "i64", distance, str(high))
    limit = c.broadcast("i32", c.once(f"trunc i64 {distance} to i32"), lanes)
    return c.once(f"icmp {predicate} <{lanes} x i32> {types.constant_vector('i32', range(lanes))}, {limit}")


def _connect(c: Context, e: Binary) -> str:
    """And, Or: the second side runs only where it matters, if running it could do harm."""
    kind, lanes = types.llvm_type(e.dtype), e.dtype.lanes
    conjunction = isinstance(e, And)
    name = "and" if conjunction else "or"
    a = c.value(e.a)
    if not touches_memory(e.b):
        return c.once(f"{name} {kind} {a}, {c.value(e.b)}")
    if lanes == 1:
        if conjunction:
            return c.guarded(a, "i1", lambda: c.value(e.b), lambda: "false")
        return c.guarded(a, "i1", lambda: "true", lambda: c.value(e.b))
    active = a if conjunction else c.once(f"xor {kind} {a}, {types.splat('i1', 'true', lanes)}")
    b = masked(c, e.b, active, lanes)
    return c.once(f"{name} {kind} {a}, {b}")


def _not(c: Context, e: Not) -> str:
    kind = types.llvm_type(e.dtype)
    return c.once(f"xor {kind} {c.value(e.a)}, {types.splat('i1', 'true', e.dtype.lanes)}")


# --------------------------------------------------------------------------------------------------- lanes, Select


def masked(c: Context, e: Expr, mask: str, lanes: int, source: Expr | None = None) -> str:
    """An expression evaluated with the loads of only some lanes (of those already on) switched on.

    `source` is the condition that the mask was computed from, when there is one.
    """
    before = c.mask, c.any_lane, c.mask_source
    any_lane: Callable[[], str] | None = None
    if before[0] is None:
        any_lane = None if source is None else _any_lane_of(c, source)
    elif source is not None and source is c.mask_source:
        return c.value(e)
    else:
        mask, source = c.once(f"and <{lanes} x i1> {before[0]}, {mask}"), None
    c.mask, c.mask_source = mask, source
    c.any_lane = any_lane or (lambda: c.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", [f"<{lanes} x i1> {mask}"]))
    result = c.value(e)
    c.mask, c.any_lane, c.mask_source = before
    return result


def _any_lane_of(c: Context, predicate: Expr) -> Callable[[], str] | None:
    """How to ask in one scalar comparison whether a mask has a lane on: `base + lane < limit` has lane 0 or none."""
    if isinstance(predicate, (LT, LE)):
        a, b = as_ramp(predicate.a, c.definitions), as_ramp(predicate.b, c.definitions)
        if a and b and isinstance(a[1], Const) and isinstance(b[1], Const) and b[1].value <= 0 <= a[1].value:
            first = type(predicate)(a[0], b[0])
            return lambda: c.value(first)
    return None


def _select(c: Context, e: Select) -> str:
    """Both arms and a select where that is harmless; else branches (scalar condition) or masked loads (vector)."""
    condition = e.condition.value if isinstance(e.condition, Broadcast) else e.condition
    kind, lanes = types.llvm_type(e.dtype), e.dtype.lanes
    if condition.dtype.lanes == 1:
        chosen = c.value(condition)
        if touches_memory(e.then) or touches_memory(e.otherwise):
            return c.guarded(chosen, kind, lambda: c.value(e.then), lambda: c.value(e.otherwise))
        return c.once(f"select i1 {chosen}, {kind} {c.value(e.then)}, {kind} {c.value(e.otherwise)}")
    flag = f"<{lanes} x i1>"
    chosen = c.value(condition)
    if chosen == c.mask:  # a store's own test; LLVM 22 would make masked loads plain that stand in such a select
        return c.value(e.then)
    then = masked(c, e.then, chosen, lanes, condition) if touches_memory(e.then) else c.value(e.then)
    if touches_memory(e.otherwise):
        opposite = c.once(f"xor {flag} {chosen}, {types.splat('i1', 'true', lanes)}")
        otherwise = masked(c, e.otherwise, opposite, lanes)
    else:
        otherwise = c.value(e.otherwise)
    return c.once(f"select {flag} {chosen}, {kind} {then}, {kind} {otherwise}")


def unsupported(c: Context, e: Call) -> str:
    """Fails: names the call and the target."""
    raise TargetError(f"{c.module.machine.name} has no intrinsic named {e.name!r}: {e!r}")


TABLE: dict[type[Expr], Handler] = {
    Var: _variable, Const: _literal, Broadcast: _broadcast, Ramp: _ramp, Cast: cast, Select: _select, Not: _not,
    Add: _sum, Sub: _sum, Mul: _simple, Div: _simple, Min: _extreme, Max: _extreme,
    FloorDiv: _divide, FloorMod: _divide, TruncDiv: _divide, TruncMod: _divide,
    EQ: _compare, NE: _compare, LT: _compare, LE: _compare, And: _connect, Or: _connect,
}  # fmt: skip

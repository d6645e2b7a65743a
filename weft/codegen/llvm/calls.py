"""Calls: the pure intrinsics of `weft.expr.intrinsics`, a target's own intrinsics, and external C functions.

A call `extern:name(args…)` calls the C function `name`: an Address is passed as a pointer, a scalar by value.
`prefetch(address, for_write = 0, locality = 3)` asks for a cache line; `turn()` is 1 in every second call of a model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from weft.codegen.llvm import math as vector_math
from weft.codegen.llvm import types
from weft.codegen.llvm.arithmetic import element_type, in_float32, unfused, unsupported
from weft.codegen.llvm.context import Context, Emitter, Handler
from weft.codegen.llvm.convert import widen
from weft.codegen.llvm.power import call_power
from weft.core.dtypes import DType
from weft.core.errors import TargetError
from weft.expr.float8 import spelled_out
from weft.expr.intrinsics import FLOAT8_FORMS, REPORT
from weft.expr.nodes import Address, Broadcast, Buffer, Call, Const, Expr, Var, int_value
from weft.runtime.abi import TURN_BIT

_LLVM_FLOAT = {
    "sqrt": "llvm.sqrt", "floor": "llvm.floor", "ceil": "llvm.ceil", "trunc": "llvm.trunc", "round": "llvm.roundeven",
    "round_away": "llvm.round",
}  # fmt: skip
_LIBM = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asinh",
    "acosh", "atanh", "erf", "pow", "atan2", "asin", "acos", "atan",
)  # fmt: skip


def _float_argument(c: Context, e: Call) -> DType:
    dtype = e.args[0].dtype
    if not dtype.is_float:
        raise TargetError(f"{e.name} is defined on floats, not on {dtype}: cast the argument first ({e!r})")
    return dtype


def _on_floats(c: Context, e: Call, make: Callable[[str, list[str]], str]) -> str:
    """`make(type, values)` on the arguments, 16-bit floats through float32."""
    dtype = _float_argument(c, e)
    if id(e) in c.abreast:
        return in_float32(c, dtype, [], lambda kind, v: c.abreast[id(e)])
    # A softmax subtracts the greatest value, which is rounded: of one that is not, large numbers leave a difference.
    value = functools.partial(unfused, c) if e.name == "exp" else c.value
    return in_float32(c, dtype, [value(a) for a in e.args], make)


def _llvm_float(c: Context, e: Call) -> str:
    return _on_floats(c, e, lambda kind, v: c.intrinsic(_LLVM_FLOAT[e.name], kind, *v))


def _elementary(c: Context, e: Call) -> str:
    """float32 (and what is computed in it): a polynomial where there is one; else libm, lane by lane."""
    lanes = e.dtype.lanes

    def make(kind: str, values: list[str]) -> str:
        double = "double" in kind
        if e.name in vector_math.FUNCTIONS and not double:
            return vector_math.call(c, e.name, values[0], lanes)
        if e.name == "pow" and not double and lanes > 1:
            return call_power(c, values[0], values[1], lanes)
        element, name = ("double", e.name) if double else ("float", e.name + "f")
        return vector_math.lanewise(c, name, element, lanes, values)

    return _on_floats(c, e, make)


def _one(kind: str, lanes: int) -> str:
    return types.splat("double" if "double" in kind else "float", "1.0", lanes)


def _sigmoid(c: Context, e: Call) -> str:
    if _float_argument(c, e).bits != 64:
        return _elementary(c, e)
    lanes = e.dtype.lanes

    def make(kind: str, values: list[str]) -> str:
        minus = c.once(f"fneg {kind} {values[0]}")
        power = vector_math.lanewise(c, "exp", "double", lanes, [minus])
        return c.once(f"fdiv {kind} {_one(kind, lanes)}, {c.once(f'fadd {kind} {power}, {_one(kind, lanes)}')}")

    return _on_floats(c, e, make)


def _normal_cdf(c: Context, e: Call) -> str:
    if _float_argument(c, e).bits != 64:
        return _elementary(c, e)
    lanes = e.dtype.lanes

    def make(kind: str, values: list[str]) -> str:
        root, half = (types.splat("double", types.float_literal(v, "double"), lanes) for v in (-(0.5**0.5), 0.5))
        scaled = c.once(f"fmul {kind} {values[0]}, {root}")
        return c.once(f"fmul {kind} {vector_math.lanewise(c, 'erfc', 'double', lanes, [scaled])}, {half}")

    return _on_floats(c, e, make)


def _rsqrt(c: Context, e: Call) -> str:
    def make(kind: str, values: list[str]) -> str:
        return c.once(f"fdiv {kind} {_one(kind, e.dtype.lanes)}, {c.intrinsic('llvm.sqrt', kind, *values)}")

    return _on_floats(c, e, make)


def _power(c: Context, e: Call) -> str:
    """pow; a few constant exponents need no call."""
    exponent = e.args[1].value if isinstance(e.args[1], Broadcast) else e.args[1]
    value = exponent.value if isinstance(exponent, Const) else math.nan
    lanes = e.dtype.lanes
    if value == 2.0:
        return in_float32(c, e.dtype, [c.value(e.args[0])], lambda kind, v: c.once(f"fmul {kind} {v[0]}, {v[0]}"))
    if value == 1.0:
        return c.value(e.args[0])
    if value == -1.0:
        one = in_float32
        return one(c, e.dtype, [c.value(e.args[0])], lambda kind, v: c.once(f"fdiv {kind} {_one(kind, lanes)}, {v[0]}"))
    return _elementary(c, e)


def _negative(c: Context, e: Call) -> str:
    dtype, kind = e.dtype, types.llvm_type(e.dtype)
    value = c.value(e.args[0])
    if dtype.is_float and dtype.bits == 16:
        return c.once(f"xor {kind} {value}, {types.splat('i16', '-32768', dtype.lanes)}")
    if dtype.is_float:
        return c.once(f"fneg {kind} {value}")
    return c.once(f"sub {kind} {types.splat(element_type(dtype), '0', dtype.lanes)}, {value}")


def _absolute(c: Context, e: Call) -> str:
    dtype, kind = e.dtype, types.llvm_type(e.dtype)
    value = c.value(e.args[0])
    if dtype.is_float and dtype.bits == 16:
        return c.once(f"and {kind} {value}, {types.splat('i16', '32767', dtype.lanes)}")
    if dtype.is_float:
        return c.intrinsic("llvm.fabs", kind, value)
    if not dtype.is_signed:
        return value
    return c.call(kind, f"llvm.abs.{types.mangle(kind)}", [f"{kind} {value}", "i1 false"])


def _classify(c: Context, e: Call) -> str:
    """isnan, isinf, isfinite."""
    dtype = e.args[0].dtype
    if not dtype.is_float:
        return types.splat("i1", "true" if e.name == "isfinite" else "false", dtype.lanes)
    value, kind = c.value(e.args[0]), types.llvm_type(dtype)
    if dtype.bits == 16:
        value, kind = widen(c, value, dtype), types.vector("float", dtype.lanes)
    if e.name == "isnan":
        return c.once(f"fcmp uno {kind} {value}, {value}")
    infinity = types.splat("double" if "double" in kind else "float", "0x7FF0000000000000", dtype.lanes)
    magnitude = c.intrinsic("llvm.fabs", kind, value)
    return c.once(f"fcmp {'oeq' if e.name == 'isinf' else 'olt'} {kind} {magnitude}, {infinity}")


def _fmod(c: Context, e: Call) -> str:
    return _on_floats(c, e, lambda kind, v: c.once(f"frem {kind} {v[0]}, {v[1]}"))


def _floor_fmod(c: Context, e: Call) -> str:
    """The remainder with the sign of the divisor."""
    lanes = e.dtype.lanes
    flag = types.vector("i1", lanes)

    def make(kind: str, values: list[str]) -> str:
        zero = types.splat("double" if "double" in kind else "float", "0.0", lanes)
        rest = c.once(f"frem {kind} {values[0]}, {values[1]}")
        negative = c.once(f"fcmp olt {kind} {rest}, {zero}")
        downward = c.once(f"fcmp olt {kind} {values[1]}, {zero}")
        differs = c.once(f"xor {flag} {negative}, {downward}")
        moved = c.once(f"fadd {kind} {rest}, {values[1]}")
        nonzero = c.once(f"fcmp une {kind} {rest}, {zero}")
        signed_zero = c.intrinsic("llvm.copysign", kind, zero, values[1])
        result = c.once(f"select {flag} {differs}, {kind} {moved}, {kind} {rest}")
        return c.once(f"select {flag} {nonzero}, {kind} {result}, {kind} {signed_zero}")

    return _on_floats(c, e, make)


def _copysign(c: Context, e: Call) -> str:
    return _on_floats(c, e, lambda kind, v: c.intrinsic("llvm.copysign", kind, *v))


def _fma(c: Context, e: Call) -> str:
    def make(kind: str, v: list[str]) -> str:
        if c.module.machine.has_fma:
            return c.intrinsic("llvm.fma", kind, *v)
        return c.once(f"fadd {kind} {c.once(f'fmul {kind} {v[0]}, {v[1]}')}, {v[2]}")

    return _on_floats(c, e, make)


_BITWISE = {"bit_and": "and", "bit_or": "or", "bit_xor": "xor"}


def _bitwise(c: Context, e: Call) -> str:
    return c.once(f"{_BITWISE[e.name]} {types.llvm_type(e.dtype)} {c.value(e.args[0])}, {c.value(e.args[1])}")


def _bit_not(c: Context, e: Call) -> str:
    ones = types.splat(element_type(e.dtype), "true" if e.dtype.is_bool else "-1", e.dtype.lanes)
    return c.once(f"xor {types.llvm_type(e.dtype)} {c.value(e.args[0])}, {ones}")


def _shift(c: Context, e: Call) -> str:
    """Shifts; by the width or more, everything is shifted out (a right shift of a negative number leaves -1)."""
    dtype, kind, lanes = e.dtype, types.llvm_type(e.dtype), e.dtype.lanes
    element = element_type(dtype)
    amount = e.args[1].value if isinstance(e.args[1], Broadcast) else e.args[1]
    left = e.name == "shift_left"
    name = "shl" if left else "ashr" if dtype.is_signed else "lshr"
    a, b = c.value(e.args[0]), c.value(e.args[1])
    if isinstance(amount, Const) and 0 <= amount.value < dtype.bits:
        return c.once(f"{name} {kind} {a}, {b}")
    most = types.splat(element, str(dtype.bits - 1), lanes)
    capped = c.intrinsic("llvm.umin", kind, b, most)
    shifted = c.once(f"{name} {kind} {a}, {capped}")
    if name == "ashr":
        return shifted
    inside = c.once(f"icmp ule {kind} {b}, {most}")
    zero = types.splat(element, "0", lanes)
    return c.once(f"select {types.vector('i1', lanes)} {inside}, {kind} {shifted}, {kind} {zero}")


def _popcount(c: Context, e: Call) -> str:
    return c.intrinsic("llvm.ctpop", types.llvm_type(e.dtype), c.value(e.args[0]))


def _leading_zeros(c: Context, e: Call) -> str:
    kind = types.llvm_type(e.dtype)
    return c.call(kind, f"llvm.ctlz.{types.mangle(kind)}", [f"{kind} {c.value(e.args[0])}", "i1 false"])


def _reinterpret(c: Context, e: Call) -> str:
    source, to = e.args[0].dtype, e.dtype
    if source.bits * source.lanes != to.bits * to.lanes or source.is_bool or to.is_bool:
        raise TargetError(f"reinterpret of {source} as {to}: the sizes differ ({e!r})")
    value, a, b = c.value(e.args[0]), types.llvm_type(source), types.llvm_type(to)
    return value if a == b else c.once(f"bitcast {a} {value} to {b}")


def _float8(c: Context, e: Call) -> str:
    given = Var("float8", e.args[0].dtype)
    c.values[given] = c.value(e.args[0])
    return c.value(spelled_out(Call(e.name, (given,), e.dtype)))


_PURE: dict[str, Emitter] = {
    **dict.fromkeys(_LIBM, _elementary), **dict.fromkeys(_LLVM_FLOAT, _llvm_float),
    "neg": _negative, "abs": _absolute, "sigmoid": _sigmoid, "normal_cdf": _normal_cdf, "rsqrt": _rsqrt, "pow": _power,
    "isnan": _classify, "isinf": _classify, "isfinite": _classify, "fmod": _fmod, "floor_fmod": _floor_fmod,
    "copysign": _copysign, "fma": _fma, **dict.fromkeys(_BITWISE, _bitwise), "bit_not": _bit_not,
    "shift_left": _shift, "shift_right": _shift, "popcount": _popcount, "clz": _leading_zeros,
    "reinterpret": _reinterpret,
    **{f"{way}_{name}": _float8 for way in ("from", "to") for name in FLOAT8_FORMS},
}  # fmt: skip


def _prefetch(c: Context, e: Call) -> str:
    write = c.constant(e.args[1]) if len(e.args) > 1 else 0
    locality = c.constant(e.args[2]) if len(e.args) > 2 else 3
    if write not in (0, 1) or not 0 <= locality <= 3:
        raise TargetError(f"prefetch takes (address, 0 or 1 for write, locality 0 to 3), not {e!r}")
    arguments = [f"ptr {c.pointer(e.args[0])}", f"i32 {write}", f"i32 {locality}", "i32 1"]
    # Without the note LLVM takes a fetch for an access of anything, and stores sums in every iteration beside it.
    note = c.module.access(e.args[0].buffer) if isinstance(e.args[0], Address) else ""
    return c.call("void", "llvm.prefetch.p0", arguments, note) or "0"


def _report(c: Context, e: Call) -> str:
    """Remembers that something is wrong where the argument holds: an OR for each vector, looked at in the end."""
    (condition,) = e.args
    remember(c, c.value(condition), condition.dtype.lanes)
    return "0"


def remember(c: Context, wrong: str, lanes: int = 1) -> None:
    """Adds a condition to what a function remembers, in a variable for each number of lanes."""
    kind = types.vector("i1", lanes) if lanes > 1 else "i1"
    if lanes not in c.flags:
        c.flags[lanes] = c.alloca(kind, 64)
        c.entry.append(f"  store {kind} zeroinitializer, ptr {c.flags[lanes]}, align 64")
    before = c.emit(f"load {kind}, ptr {c.flags[lanes]}, align 64")
    c.line(f"store {kind} {c.once(f'or {kind} {before}, {wrong}')}, ptr {c.flags[lanes]}, align 64")


def remembered(c: Context) -> str | None:
    """Whether anything was wrong in the function; None where nothing is ever looked at."""
    found: str | None = None
    for lanes, flag in c.flags.items():
        kind = types.vector("i1", lanes) if lanes > 1 else "i1"
        some = c.emit(f"load {kind}, ptr {flag}, align 64")
        if lanes > 1:
            some = c.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", [f"{kind} {some}"])
        found = some if found is None else c.once(f"or i1 {found}, {some}")
    return found


def _turn(c: Context, e: Call) -> str:
    """Whether this is an odd call of the model: a bit that comes with the number of threads."""
    return c.once(f"lshr i64 %threads_and_turn, {TURN_BIT}")


def _interleave(c: Context, e: Call) -> str:
    """The lanes of several vectors in turn: x0 y0 x1 y1 …; pairs are joined first, then woven by one shuffle each.

    A mask of the result's lanes is none of theirs: they test for themselves (`loop/passes/interleave_stores.py`).
    """
    count, lanes = len(e.args), e.args[0].dtype.lanes
    kind = types.llvm_type(e.dtype.scalar)
    before = c.mask, c.any_lane, c.mask_source
    c.mask = c.any_lane = c.mask_source = None
    values = [c.value(argument) for argument in e.args]
    c.mask, c.any_lane, c.mask_source = before
    if count not in (2, 4, 8):
        raise TargetError(f"{count} vectors cannot be interleaved; only 2, 4 or 8 can")
    if count == 2:  # as one shuffle it would be a store of two registers in a row, which sums of a tile are not (Arm)
        low, high = range(lanes // 2), range(lanes // 2, lanes)
        turns = [[lane + part * lanes for lane in half for part in range(2)] for half in (low, high)]
        woven = [c.shuffle(types.vector(kind, lanes), values[0], values[1], turn) for turn in turns]
        return c.joined(kind, woven, lanes)
    turn = [part * lanes + lane for lane in range(lanes) for part in range(count)]
    return c.shuffle(types.vector(kind, count * lanes), c.joined(kind, values, lanes), "poison", turn)


def _store_transposed(c: Context, e: Call) -> str:
    """Rows from columns: rounds that weave the first half of the vectors with the second, then one store a row."""
    place, stride = e.args[0], c.value(e.args[1])
    fixed = int_value(e.args[1])
    assert isinstance(place, Address)
    element = types.memory_type(place.buffer.dtype)
    columns = [c.value(argument) for argument in e.args[2:]]
    lanes, count = e.args[2].dtype.lanes, len(columns)
    kind = types.vector(element, lanes)
    rows = columns + ["poison"] * (lanes - count)
    half = lanes // 2
    weave = [[part * half + i // 2 + (i % 2) * lanes for i in range(lanes)] for part in (0, 1)]
    for _ in range(lanes.bit_length() - 1):
        pairs = [(rows[i], rows[i + half], order) for i in range(half) for order in weave]
        rows = [c.shuffle(kind, *pair) for pair in pairs]
    at = first = c.pointer(place)
    c.stored.append((place.buffer, place.indices[0]))
    for number, row in enumerate(rows):
        if number:
            step = (at, stride) if fixed is None else (first, number * fixed)
            at = c.once("getelementptr {}, ptr {}, i64 {}".format(element, *step))
        _store_first(c, place.buffer, row, at, count, lanes)
    return "0"


def _store_first(c: Context, buffer: Buffer, row: str, at: str, count: int, lanes: int) -> None:
    """Stores the first lanes of a vector."""
    element, align = types.memory_type(buffer.dtype), buffer.dtype.bytes
    kind, width = types.vector(element, lanes), types.vector(element, count)
    if count < lanes and "avx512f" in c.module.machine.features:  # else LLVM would store powers of two one by one
        mask = f"<{lanes} x i1> <{', '.join(f'i1 {str(i < count).lower()}' for i in range(lanes))}>"
        arguments = [f"{kind} {row}", f"ptr align {align} {at}", mask]
        c.call("void", f"llvm.masked.store.{types.mangle(kind)}.p0", arguments, c.module.access(buffer))
        return
    part = row if count == lanes else c.shuffle(kind, row, "poison", range(count))
    c.store(f"store {width} {part}, ptr {at}, align {align}", c.module.access(buffer))


def _external(c: Context, e: Call) -> str:
    name = e.name.split(":", 1)[1]
    if not name.isidentifier() or not name.isascii():
        raise TargetError(f"{e.name!r} does not name a C function")
    arguments = []
    for argument in (*e.args, e):
        if argument.dtype.lanes != 1 or (argument.dtype.is_float and argument.dtype.bits == 16):
            raise TargetError(f"{e.name} passes or returns {argument.dtype}, which C has no type for")
    for argument in e.args:
        value = c.value(argument)
        if argument.dtype.is_bool:
            value = c.once(f"zext i1 {value} to i8")
        arguments.append(f"{'i8 zeroext' if argument.dtype.is_bool else types.llvm_type(argument.dtype)} {value}")
    result = c.call(types.memory_type(e.dtype), name, arguments)
    return c.once(f"icmp ne i8 {result}, 0") if e.dtype.is_bool else result


_OTHERS: dict[str, Emitter] = {
    REPORT: _report, "turn": _turn, "interleave": _interleave, "store_transposed": _store_transposed,
    "prefetch": _prefetch,
}  # fmt: skip


def _call(c: Context, e: Call) -> str:
    other = _external if e.name.startswith("extern:") else _OTHERS.get(e.name, unsupported)
    return (c.module.intrinsics.get(e.name) or _PURE.get(e.name, other))(c, e)


TABLE: dict[type[Expr], Handler] = {Call: _call}

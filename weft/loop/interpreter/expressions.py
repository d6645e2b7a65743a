"""Expressions of loop IR as Python text.

Integers carry ranges; arithmetic is wrapped to the dtype only where the range says it can leave it, so index arithmetic
is plain Python. Floats are rounded to their dtype after each operation. The arms of Select, And and Or become `if`
statements when they have steps of their own (loads), so that these happen only where the arm is chosen.

A vector expression is translated as one lane of it: inside `for lane in range(lanes)`, a Ramp is base + stride * lane
and a Broadcast is its scalar, so masks and lazy arms work lane by lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from weft.core.dtypes import FLOAT32, FLOAT64, DType
from weft.core.errors import InterpreterError
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
from weft.expr.visit import walk
from weft.loop.interpreter.emitter import Emitter, Place, Value, literal
from weft.loop.interpreter.values import (
    TABLES,
    integer_to_float32,
    pure_function,
    reinterpret,
    reinterpret_vector,
    round_float,
)

_SYMBOL = {Add: "+", Sub: "-", Mul: "*", EQ: "==", NE: "!=", LT: "<", LE: "<="}
TRUE, FALSE = Value("True", 1, 1), Value("False", 0, 0)


def float_code(value: float) -> str:
    """A float literal in Python."""
    if value != value:
        return "NAN"
    if math.isinf(value):
        return "INF" if value > 0 else "(-INF)"
    return repr(value) if math.copysign(1.0, value) > 0 else f"({value!r})"


def _full(kind: DType) -> tuple[int, int]:
    return (0, 1) if kind.is_bool else (int(kind.min), int(kind.max))


class Expressions(Emitter):
    """Translates expressions."""

    def expression(self, e: Expr) -> Value:
        """The Python text of an expression (in a vector statement: of one lane of it)."""
        if e.dtype.lanes > 1 and self.lane is None:
            return Value(self.vector_list(e))
        return _HANDLERS[type(e)](self, e)

    # --------------------------------------------------------------------------------------------------- vectors

    @contextmanager
    def lanes(self, count: int, expressions: Iterable[Expr]) -> Iterator[None]:
        """A loop over the lanes of a vector statement; what must happen once only is done before it."""
        saved = self.hoisted
        self.hoisted = dict(saved)
        for e in expressions:
            for node in reversed(list(walk(e))):  # innermost first, so that a call's arguments are there already
                once = type(node) is Call and (node.name not in PURE or _changes_lanes(node))
                if once and id(node) not in self.hoisted:
                    self.hoisted[id(node)] = self._once(node)
        lane = self.fresh("lane")
        with self.indented(f"for {lane} in range({count}):"):
            self.lane = lane
            yield
            self.lane = None
        self.hoisted = saved

    def _once(self, e: Any) -> str:
        if e.name in PURE:
            source = self.expression(e.args[0])
            function = self.give_name(reinterpret_vector, "f")
            types = (self.give_name(e.args[0].dtype, "d"), self.give_name(e.dtype, "d"))
            return self.atom(Value(f"{function}({source.code}, {types[0]}, {types[1]})")).code
        return self.effect(e).code

    def vector_list(self, e: Expr) -> str:
        """The name of a list with the lanes of a vector expression."""
        name = self.fresh("v")
        self.emit(f"{name} = []")
        with self.lanes(e.dtype.lanes, (e,)):
            self.emit(f"{name}.append({self.expression(e).code})")
        return name

    # --------------------------------------------------------------------------------------------------- leaves

    def _var(self, e: Any) -> Value:
        value = self.names.get(e)
        if value is None:
            raise InterpreterError(
                f"the variable {e.name!r} of {self.failures.function!r} has no value here: bind it with a loop or "
                "Let, make it a parameter, or use it in a parameter's shape"
            )
        if e.dtype.lanes > 1:
            return Value(f"{value.code}[{self.lane}]", *_int_range(e.dtype.scalar))
        return value

    def _const(self, e: Any) -> Value:
        kind = e.dtype.scalar
        if kind.is_float:
            return Value(float_code(round_float(e.value, kind)))
        if kind.is_bool:
            return TRUE if e.value else FALSE
        return literal(int(e.value))

    def _ramp(self, e: Any) -> Value:
        lane = Value(self.lane or "0", 0, e.lanes - 1)
        base, stride = self.expression(e.base), self.expression(e.stride)
        step = _product(stride, lane)
        code = f"({base.code} + {stride.code} * {lane.code})"
        if e.dtype.is_float:
            return self.rounded(e.dtype.scalar, code)
        return self.integer(e.dtype.scalar, code, base.low + step[0], base.high + step[1])

    def _broadcast(self, e: Any) -> Value:
        return self.expression(e.value)

    # ------------------------------------------------------------------------------------------------ arithmetic

    def integer(self, kind: DType, code: str, low: int, high: int) -> Value:
        """An integer result, wrapped to its dtype if its range leaves it."""
        least, greatest = _full(kind)
        if low < least or high > greatest:
            mask = (1 << kind.bits) - 1
            half = 1 << (kind.bits - 1)
            code = f"(({code} + {half} & {mask}) - {half})" if kind.is_signed else f"({code} & {mask})"
            low, high = least, greatest
        elif low == high:
            return literal(low)
        return self.settle(Value(code, low, high))

    def rounded(self, kind: DType, code: str) -> Value:
        """A float result, rounded to its dtype."""
        if kind is FLOAT64:
            return self.settle(Value(f"({code})"))
        name = self.fresh("t")
        if kind is FLOAT32:
            self.emit(f"Z[0] = {code}")
            self.emit(f"{name} = Z[0]")
        else:
            self.emit(f"{name} = {TABLES[kind]}_values[{TABLES[kind]}_bits({code})]")
        return Value(name)

    def unrounded(self, e: Expr) -> str:
        """The text of a value whose last rounding is left to the store that takes it."""
        if type(e) in (Add, Sub, Mul) and e.dtype.is_float:
            assert isinstance(e, Binary)
            a, b = self.expression(e.a), self.expression(e.b)
            return f"{a.code} {_SYMBOL[type(e)]} {b.code}"
        return self.expression(e).code

    def _add(self, e: Any) -> Value:
        a, b = self.expression(e.a), self.expression(e.b)
        code = f"({a.code} {_SYMBOL[type(e)]} {b.code})"
        if e.dtype.is_float:
            return self.rounded(e.dtype.scalar, code)
        if type(e) is Add:
            return self.integer(e.dtype.scalar, code, a.low + b.low, a.high + b.high)
        if type(e) is Sub:
            return self.integer(e.dtype.scalar, code, a.low - b.high, a.high - b.low)
        return self.integer(e.dtype.scalar, code, *_product(a, b))

    def _div(self, e: Any) -> Value:
        a, b = self.expression(e.a), self.atom(self.expression(e.b))
        if not e.dtype.is_float:
            raise InterpreterError("'/' on integers has no meaning: use FloorDiv or TruncDiv")
        a = self.atom(a)
        code = f"{a.code} / {b.code} if {b.code} else divide_by_zero({a.code}, {b.code})"
        return self.rounded(e.dtype.scalar, code)

    def _divisor(self, value: Value, what: str) -> Value:
        if value.low <= 0 <= value.high:
            value = self.atom(value)
            self.emit(f"if {value.code} == 0: {self.failure('zero', (), note=what)}")
        return value

    def _integer_div(self, e: Any) -> Value:
        kind, floor = e.dtype.scalar, type(e) is FloorDiv
        if kind.is_float:
            return self._float_floor_div(e)
        a, b = self.expression(e.a), self._divisor(self.expression(e.b), "//" if floor else "truncdiv")
        if b.low > 0 and (floor or a.low >= 0):
            ends = [x // y for x in (a.low, a.high) for y in (b.low, b.high)]
            return self.integer(kind, f"({a.code} // {b.code})", min(ends), max(ends))
        most = max(abs(a.low), abs(a.high)) + 1
        code = f"({a.code} // {b.code})" if floor else f"trunc_div({a.code}, {b.code})"
        if a.low == a.high and b.low == b.high:  # a size known now
            exact = a.low // b.low if floor else int(math.copysign(1, a.low * b.low)) * (abs(a.low) // abs(b.low))
            return self.integer(kind, code, exact, exact)
        return self.integer(kind, code, -most, most)

    def _float_floor_div(self, e: Any) -> Value:
        quotient = self._div(e)
        return self.rounded(e.dtype.scalar, f"float_floor({quotient.code})")

    def _integer_mod(self, e: Any) -> Value:
        kind, floor = e.dtype.scalar, type(e) is FloorMod
        if kind.is_float:
            a, b = self.expression(e.a), self.expression(e.b)
            if floor:
                return self._pure(Call("floor_fmod", (e.a, e.b), e.dtype))
            return self.rounded(kind, f"float_mod({a.code}, {b.code})")
        a, b = self.expression(e.a), self._divisor(self.expression(e.b), "%" if floor else "truncmod")
        if a.low >= 0 and b.low > 0:
            if a.high < b.low:
                return a
            if a.low == a.high and b.low == b.high:
                return literal(a.low % b.low)
            return self.integer(kind, f"({a.code} % {b.code})", 0, min(a.high, b.high - 1))
        most = max(abs(b.low), abs(b.high)) - 1
        if not floor:
            return self.settle(Value(f"trunc_mod({a.code}, {b.code})", -most, most))
        return self.integer(kind, f"({a.code} % {b.code})", 0 if b.low > 0 else -most, most if b.high > 0 else 0)

    def _min_max(self, e: Any) -> Value:
        a, b = self.atom(self.expression(e.a)), self.atom(self.expression(e.b))
        least = type(e) is Min
        sign = "<" if least else ">"
        if e.dtype.is_float:
            return self.settle(Value(f"({a.code} if {a.code} {sign} {b.code} or {a.code} != {a.code} else {b.code})"))
        pick = min if least else max
        low, high = pick(a.low, b.low), pick(a.high, b.high)
        for one, other in ((a, b), (b, a)):
            if (one.high <= other.low) if least else (one.low >= other.high):
                return one
        return self.settle(Value(f"({a.code} if {a.code} {sign} {b.code} else {b.code})", low, high))

    # ---------------------------------------------------------------------------------------------------- truth

    def _compare(self, e: Any) -> Value:
        a, b = self.expression(e.a), self.expression(e.b)
        if not e.a.dtype.is_float and e.a.dtype.kind != "handle":
            known = _decide(type(e), a, b)
            if known is not None:
                return TRUE if known else FALSE
        return self.settle(Value(f"({a.code} {_SYMBOL[type(e)]} {b.code})", 0, 1))

    def _and_or(self, e: Any) -> Value:
        both = type(e) is And
        a = self.expression(e.a)
        if a.low == a.high:
            return self.expression(e.b) if bool(a.low) is both else a
        with self.captured() as lines:
            b = self.expression(e.b)
        if not lines:
            if b.low == b.high:
                return a if bool(b.low) is both else b
            return self.settle(Value(f"({a.code} {'and' if both else 'or'} {b.code})", 0, 1))
        name = self.fresh("t")
        self.emit(f"{name} = {a.code}")
        self.emit(f"if {name}:" if both else f"if not {name}:")
        self.lines += [*lines, " " * (self.indent + 1) + f"{name} = {b.code}"]
        return Value(name, 0, 1)

    def _not(self, e: Any) -> Value:
        a = self.expression(e.a)
        if a.low == a.high:
            return FALSE if a.low else TRUE
        return self.settle(Value(f"(not {a.code})", 0, 1))

    def _select(self, e: Any) -> Value:
        condition = self.expression(e.condition)
        if condition.low == condition.high:
            return self.expression(e.then if condition.low else e.otherwise)
        condition = self.atom(condition)
        with self.captured() as first:
            then = self.expression(e.then)
        with self.captured() as second:
            otherwise = self.expression(e.otherwise)
        low, high = min(then.low, otherwise.low), max(then.high, otherwise.high)
        if not first and not second:
            return self.settle(Value(f"({then.code} if {condition.code} else {otherwise.code})", low, high))
        name = self.fresh("t")
        margin = " " * (self.indent + 1)
        self.emit(f"if {condition.code}:")
        self.lines += [*first, f"{margin}{name} = {then.code}"]
        self.emit("else:")
        self.lines += [*second, f"{margin}{name} = {otherwise.code}"]
        return Value(name, low, high)

    # ----------------------------------------------------------------------------------------------------- casts

    def _cast(self, e: Any) -> Value:
        source, target = e.value.dtype.scalar, e.dtype.scalar
        value = self.expression(e.value)
        if source is target:
            return value
        if target.is_float:
            return self._to_float(value, source, target)
        if target.is_bool:
            return self.settle(Value(f"({value.code} != 0)", 0, 1))
        if source.is_float:
            low, high = _full(target)
            return self.settle(Value(f"float_to_integer({value.code}, {low}, {high})", low, high))
        code = f"({value.code} + 0)" if source.is_bool else value.code
        return self.integer(target, code, value.low, value.high)

    def _to_float(self, value: Value, source: DType, target: DType) -> Value:
        if source.is_float:
            widens = target is FLOAT64 or (target is FLOAT32 and source is not FLOAT64)
            return value if widens else self.rounded(target, value.code)
        if value.low == value.high and target is not FLOAT64:
            return Value(float_code(round_float(integer_to_float32(value.low), target)))
        if target is FLOAT64:
            return Value(f"float({value.code})")
        if -(1 << 24) <= value.low and value.high <= 1 << 24:
            return self.settle(Value(f"float({value.code})")) if target is FLOAT32 else self.rounded(target, value.code)
        return self.rounded(target, f"integer_to_float32({value.code})")

    # ----------------------------------------------------------------------------------------------------- calls

    def _call(self, e: Any) -> Value:
        if e.name in PURE:
            if PURE[e.name].arity != len(e.args):
                raise InterpreterError(f"{e.name} takes {PURE[e.name].arity} arguments, not {len(e.args)}")
            hoisted = self.hoisted.get(id(e))
            if hoisted is not None:
                return Value(f"{hoisted}[{self.lane}]", *_int_range(e.dtype.scalar))
            inline = _INLINE.get((e.name, e.args[0].dtype.is_float))
            return inline(self, e) if inline is not None else self._pure(e)
        hoisted = self.hoisted.get(id(e))
        if hoisted is None:
            return self.effect(e)
        return Value(f"{hoisted}[{self.lane}]" if e.dtype.lanes > 1 else hoisted, *_int_range(e.dtype.scalar))

    def _pure(self, e: Any) -> Value:
        arguments = tuple(argument.dtype.scalar for argument in e.args)
        if e.name == "reinterpret":
            source, target = arguments[0], e.dtype.scalar
            function = self.give_name(lambda value: reinterpret(value, source, target), "f")
        else:
            function = self.give_name(pure_function(e.name, arguments, e.dtype.scalar), "f")
        codes = ", ".join(self.expression(argument).code for argument in e.args)
        return self.atom(Value(f"{function}({codes})", *_int_range(e.dtype.scalar)))

    def effect(self, e: Any, used: bool = True) -> Value:
        """A call of a registered effect, done once; its value under a name."""
        codes = []
        for argument in e.args:
            if argument.dtype.lanes > 1:
                kind = self.give_name(argument.dtype, "d")
                codes.append(f"as_array({self.vector_list(argument)}, {kind})")
            else:
                codes.append(self.expression(argument).code)
        names = tuple(name for name, _ in self.loops)
        place = self.give_name((e.name, e.dtype if used else None, self.block, names), "e")
        loops = "".join(f"{code}, " for _, code in self.loops)
        arguments = "".join(f"{code}, " for code in codes)
        return self.atom(Value(f"call_effect({place}, ({arguments}), ({loops}))", *_int_range(e.dtype.scalar)))

    def _shift(self, e: Any) -> Value:
        kind = e.dtype.scalar
        a, b = self.expression(e.args[0]), self.expression(e.args[1])
        left = e.name == "shift_left"
        if not left:
            low, high = min(a.low, 0, -1 if a.low < 0 else 0), max(a.high, 0)
            simple = 0 <= b.low and b.high < kind.bits
            code = f"({a.code} >> {b.code})" if simple else f"shift_right({a.code}, {b.code}, {kind.bits})"
            return self.settle(Value(code, low, high))
        if 0 <= b.low and b.high < kind.bits:
            ends = [x << y for x in (a.low, a.high) for y in (b.low, b.high)]
            return self.integer(kind, f"({a.code} << {b.code})", min(ends), max(ends))
        return self.integer(kind, f"shift_left({a.code}, {b.code}, {kind.bits})", -(1 << 130), 1 << 130)

    def _bits(self, e: Any) -> Value:
        a, b = self.expression(e.args[0]), self.expression(e.args[1])
        symbol = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}[e.name]
        low, high = _full(e.dtype.scalar)
        if a.low >= 0 and b.low >= 0:
            low, high = 0, min(a.high, b.high) if symbol == "&" else (1 << max(a.high, b.high).bit_length()) - 1
        return self.settle(Value(f"({a.code} {symbol} {b.code})", low, high))

    def _bit_not(self, e: Any) -> Value:
        a = self.expression(e.args[0])
        return self.integer(e.dtype.scalar, f"(~{a.code})", ~a.high, ~a.low)

    def _absolute(self, e: Any) -> Value:
        a = self.expression(e.args[0])
        if e.dtype.is_float:
            return self.settle(Value(f"abs({a.code})"))
        return self.integer(e.dtype.scalar, f"abs({a.code})", 0, max(abs(a.low), abs(a.high)))

    def _count_bits(self, e: Any) -> Value:
        a, kind = self.expression(e.args[0]), e.args[0].dtype.scalar
        function = "popcount" if e.name == "popcount" else "leading_zeros"
        return self.integer(e.dtype.scalar, f"{function}({a.code}, {kind.bits})", 0, kind.bits)

    def _float_test(self, e: Any) -> Value:
        a = self.atom(self.expression(e.args[0])).code
        test = {
            "neg": f"(-{a})",
            "isnan": f"({a} != {a})",
            "isinf": f"(abs({a}) == INF)",
            "isfinite": f"(abs({a}) < INF)",
        }
        return Value(test[e.name], 0, 1)

    # ---------------------------------------------------------------------------------------------------- memory

    def place(self, buffer: Buffer, indices: int) -> Place:
        """Where a buffer's memory is."""
        place = self.places.get(buffer)
        if place is None:
            raise InterpreterError(
                f"the buffer {buffer.name!r} has no memory here: it is neither a parameter of "
                f"{self.failures.function!r}, nor in its allocations, nor inside an Allocate of it"
            )
        expected = 1 if self.flat else len(place.dims)
        if indices != expected:
            form = "one index, because the program is flat" if self.flat else f"{expected} indices"
            raise InterpreterError(
                f"an access of {buffer.name!r} in {self.failures.function!r} has {indices} indices; it takes {form}"
            )
        return place

    def _load(self, e: Any) -> Value:
        place = self.place(e.buffer, len(e.indices))
        indices = self.bounds(place, [self.expression(index) for index in e.indices], "load")
        names = self.instance(place)
        position = self.position(place, indices)
        self.track_read(place, names, position, indices, "load")
        kind = e.buffer.dtype
        code = f"{names.view}[{position}]"
        if kind in TABLES:
            code = f"{TABLES[kind]}_values[{code}]"
        name = self.fresh("t")
        self.emit(f"{name} = {code}")
        return Value(name, *_int_range(kind))

    def _address(self, e: Any) -> Value:
        place = self.place(e.buffer, len(e.indices))
        indices = self.bounds(place, [self.expression(index) for index in e.indices], "address")
        names = self.instance(place)
        position = self.position(place, indices)
        full, _ = self.applicable(place)
        times = "".join(f"({level.index}, {level.start}, {level.mine}), " for level in full if not level.is_virtual)
        return self.atom(Value(f"Pointer({names.memory}, {position}, {e.mode!r}, ({times}), {self.check})"))


def _changes_lanes(e: Any) -> bool:
    return bool(e.name == "reinterpret" and e.args and e.args[0].dtype.lanes != e.dtype.lanes)


def _int_range(kind: DType) -> tuple[int, int]:
    return (0, 0) if kind.is_float or kind.kind == "handle" else _full(kind)


def _product(a: Value, b: Value) -> tuple[int, int]:
    ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(ends), max(ends)


def _decide(kind: type[Expr], a: Value, b: Value) -> bool | None:
    """What a comparison of integers gives, if their ranges tell."""
    if kind is LT:
        return True if a.high < b.low else False if a.low >= b.high else None
    if kind is LE:
        return True if a.high <= b.low else False if a.low > b.high else None
    apart = a.high < b.low or b.high < a.low
    same = a.low == a.high == b.low == b.high
    if not (apart or same):
        return None
    return same if kind is EQ else apart


_HANDLERS: dict[type[Expr], Callable[[Any, Any], Value]] = {
    Var: Expressions._var, Const: Expressions._const, Add: Expressions._add, Sub: Expressions._add,
    Mul: Expressions._add, Div: Expressions._div, FloorDiv: Expressions._integer_div,
    TruncDiv: Expressions._integer_div, FloorMod: Expressions._integer_mod, TruncMod: Expressions._integer_mod,
    Min: Expressions._min_max, Max: Expressions._min_max, EQ: Expressions._compare, NE: Expressions._compare,
    LT: Expressions._compare, LE: Expressions._compare, And: Expressions._and_or, Or: Expressions._and_or,
    Not: Expressions._not, Select: Expressions._select, Cast: Expressions._cast, Call: Expressions._call,
    Load: Expressions._load, Address: Expressions._address, Ramp: Expressions._ramp, Broadcast: Expressions._broadcast,
}  # fmt: skip

_INLINE: dict[tuple[str, bool], Callable[[Any, Any], Value]] = {
    ("bit_and", False): Expressions._bits, ("bit_or", False): Expressions._bits, ("bit_xor", False): Expressions._bits,
    ("bit_not", False): Expressions._bit_not, ("shift_left", False): Expressions._shift,
    ("shift_right", False): Expressions._shift, ("abs", False): Expressions._absolute,
    ("abs", True): Expressions._absolute, ("popcount", False): Expressions._count_bits,
    ("clz", False): Expressions._count_bits, ("neg", True): Expressions._float_test,
    ("isnan", True): Expressions._float_test, ("isinf", True): Expressions._float_test,
    ("isfinite", True): Expressions._float_test,
}  # fmt: skip
"""Intrinsics with a Python form of their own, by name and whether the argument is a float."""

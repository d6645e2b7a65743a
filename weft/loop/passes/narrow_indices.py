"""Index arithmetic in 32 bits where it cannot overflow: what GPUs compute indices in at full speed.

    B[i * 64 + j] = A[i * 64 + j]     ->     B[int64(int32(i) * 64 + int32(j))] = …          i, j: loop variables

A loop variable stays an int64; a code generator keeps one whose extent is small in a 32-bit register, so that
`int32(i)` costs nothing, and an index needs no conversion to int64 either. Names of indices (Let) become int32, and so
do tables of them that one statement fills.
Nothing changes where a part of an expression may leave 32 bits, or has no known range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from weft.core.dtypes import INDEX, INT32
from weft.expr.nodes import (
    BINARY,
    COMPARE,
    Add,
    Binary,
    Broadcast,
    Buffer,
    Cast,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Ramp,
    Select,
    Sub,
    Var,
    cast,
)
from weft.loop.ir import Allocate, For, Func, Let, Stmt, Store
from weft.loop.visit import Mutator, walk_stmts

Interval = tuple[int, int]
Narrowed = tuple[Expr, Interval]
_LEAST, _MOST = -(1 << 31) + 1, (1 << 31) - 1


def narrow_indices(func: Func) -> Func:
    """The flat program with 32-bit index arithmetic where that is safe."""
    stores = Counter(s.buffer for s in walk_stmts(func.body) if isinstance(s, Store))
    return _Narrower({buffer for buffer, count in stores.items() if count == 1}).func(func)


def _fits(interval: Interval | None) -> bool:
    return interval is not None and _LEAST <= interval[0] and interval[1] <= _MOST


class _Narrower(Mutator):
    """`narrow[var]` is the int32 expression of an int64 variable, `ranges[var]` its least and greatest value.

    `once` are the buffers that one statement stores to; `tables[buffer]` those of them that are int32 now.
    """

    def __init__(self, once: set[Buffer]) -> None:
        self.narrow: dict[Var, Expr] = {}
        self.ranges: dict[Var, Interval] = {}
        self.once = once
        self.tables: dict[Buffer, tuple[Buffer, Interval]] = {}

    def visit_Allocate(self, s: Allocate) -> Stmt:
        body = self.stmt(s.body)
        if s.buffer in self.tables:
            return Allocate(self.tables[s.buffer][0], body)
        return s if body is s.body else Allocate(s.buffer, body)

    def visit_Store(self, s: Store) -> Stmt:
        is_table = s.buffer.dtype is INDEX and s.buffer.scope == "local" and s.buffer in self.once
        found = self._narrowed(s.value) if is_table and s.predicate is None else None
        if found is None:
            return self.generic_stmt(s)
        table = s.buffer.replace(dtype=INT32)
        self.tables[s.buffer] = table, found[1]
        return Store(table, [self.expr(index) for index in s.indices], found[0])

    def visit_For(self, s: For) -> Stmt:
        extent = self._narrowed(s.extent)
        if extent is not None:
            self.narrow[s.var] = Cast(INT32, s.var)
            self.ranges[s.var] = (0, max(extent[1][1] - 1, 0))
        return self.generic_stmt(s)

    def visit_Let(self, s: Let) -> Stmt:
        found = self._narrowed(s.value) if s.var.dtype.scalar is INDEX else None
        if found is None:
            return self.generic_stmt(s)
        value, interval = found
        var = Var(s.var.name, INT32.with_lanes(s.var.dtype.lanes))
        self.narrow[s.var], self.ranges[s.var] = var, interval
        return Let(var, value, self.stmt(s.body))

    def expr(self, e: Expr) -> Expr:
        """An expression; int64 arithmetic in it becomes int32 arithmetic as far up as it fits."""
        if e.dtype.scalar is INDEX and type(e) is not Const:
            found = self._narrowed(e)
            if found is not None:
                return Cast(INDEX.with_lanes(e.dtype.lanes), found[0])
        elif type(e) in COMPARE and isinstance(e, Binary) and e.a.dtype.scalar is INDEX:
            a, b = self._narrowed(e.a), self._narrowed(e.b)
            if a is not None and b is not None:
                return type(e)(a[0], b[0])
        elif isinstance(e, Cast) and e.value.dtype.scalar is INDEX:
            found = self._narrowed(e.value)
            if found is not None:
                return cast(found[0], e.dtype)
        return super().expr(e)

    def _narrowed(self, e: Expr) -> Narrowed | None:
        """An int64 expression as an int32 one, with its range; None where it may not fit."""
        made = _RULES[type(e)](self, e) if type(e) in _RULES else None
        return made if made is not None and _fits(made[1]) else None


def _variable(self: _Narrower, e: Var) -> Narrowed | None:
    return (self.narrow[e], self.ranges[e]) if e in self.narrow else None


def _load(self: _Narrower, e: Load) -> Narrowed | None:
    if e.buffer not in self.tables:
        return None
    table, interval = self.tables[e.buffer]
    return Load(table, [self.expr(index) for index in e.indices]), interval


def _constant(self: _Narrower, e: Const) -> Narrowed | None:
    return (Const(e.value, INT32), (e.value, e.value)) if _fits((e.value, e.value)) else None


def _binary(self: _Narrower, e: Binary) -> Narrowed | None:
    a, b = self._narrowed(e.a), self._narrowed(e.b)
    if a is None or b is None:
        return None
    interval = _interval(type(e), a[1], b[1])
    return None if interval is None else (type(e)(a[0], b[0]), interval)


def _interval(kind: type[Expr], a: Interval, b: Interval) -> Interval | None:
    if kind is Add:
        return a[0] + b[0], a[1] + b[1]
    if kind is Sub:
        return a[0] - b[1], a[1] - b[0]
    if kind is Mul:
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    if kind is Min:
        return min(a[0], b[0]), min(a[1], b[1])
    if kind is Max:
        return max(a[0], b[0]), max(a[1], b[1])
    if b[0] <= 0:
        return None
    if kind is FloorDiv:
        corners = [x // y for x in a for y in b]
        return min(corners), max(corners)
    return (a if 0 <= a[0] and a[1] < b[0] else (0, b[1] - 1)) if kind is FloorMod else None


def _ramp(self: _Narrower, e: Ramp) -> Narrowed | None:
    base, stride = self._narrowed(e.base), self._narrowed(e.stride)
    if base is None or stride is None:
        return None
    reach = [step * (e.lanes - 1) for step in stride[1]]
    return Ramp(base[0], stride[0], e.lanes), (base[1][0] + min(0, *reach), base[1][1] + max(0, *reach))


def _broadcast(self: _Narrower, e: Broadcast) -> Narrowed | None:
    value = self._narrowed(e.value)
    return None if value is None else (Broadcast(value[0], e.lanes), value[1])


def _select(self: _Narrower, e: Select) -> Narrowed | None:
    a, b = self._narrowed(e.then), self._narrowed(e.otherwise)
    if a is None or b is None:
        return None
    both = (min(a[1][0], b[1][0]), max(a[1][1], b[1][1]))
    return Select(self.expr(e.condition), a[0], b[0]), both


def _cast(self: _Narrower, e: Cast) -> Narrowed | None:
    """An int64 made of a smaller integer, a loaded one for instance, is that integer."""
    source = e.value.dtype.scalar
    if not source.is_integer or source.bits >= 32:
        return None
    return cast(self.expr(e.value), INT32.with_lanes(e.dtype.lanes)), (source.min, source.max)


_RULES: dict[type[Expr], Callable[[_Narrower, Any], Narrowed | None]] = {
    Var: _variable, Load: _load, Const: _constant, Ramp: _ramp, Broadcast: _broadcast, Select: _select, Cast: _cast,
    **{kind: _binary for kind in BINARY if kind in (Add, Sub, Mul, Min, Max, FloorDiv, FloorMod)},
}  # fmt: skip

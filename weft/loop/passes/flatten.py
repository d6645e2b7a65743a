"""Every access gets one index, in elements; packed data types become bytes, shifts and masks.

    A: float32[64, 32]                               A: float32[64, 32]
    B[i, j] = A[i, j] * 2.0                     ->   B[i * 32 + j] = A[i * 32 + j] * 2.0

    A: int4[64, 5]                                   A: uint8[64, 3]          low bits first, a row starts at a byte
    B[i, j] = int32(A[i, j])                    ->   B[i * 5 + j] = int32(sign_extend(A[i * 3 + j // 2] >> j % 2 * 4))

    C[i] = float8(B[i])                         ->   C[i] = the bits of the nearest one      (`expr/float8`)

A store to a packed element reads its byte, changes some bits and writes it back. Where a parallel or vectorized loop
would have two iterations do that to one byte, the loop becomes serial.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.dtypes import FLOAT8, FLOAT32, INT8, UINT8, DType
from weft.core.errors import TargetError
from weft.expr.float8 import narrowed, widened
from weft.expr.nodes import (
    Address,
    Binary,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Var,
    cast,
    floordiv,
    floormod,
    index_expr,
    int_value,
    match,
    mul,
)
from weft.expr.visit import map_all, uses_any
from weft.loop.ir import Allocate, For, Func, Stmt, Store
from weft.loop.passes.support import Linear, linear, linear_interval
from weft.loop.visit import Mutator, walk_exprs, walk_stmts


def flatten(func: Func) -> Func:
    """The program with one index for each access; `annotations["flat"]` says that it is done."""
    if func.annotations.get("flat"):
        return func
    flattener = _Flattener()
    if _knows_float8(func):
        func = _Float8().func(func)
    params = tuple(flattener.buffer(p) if isinstance(p, Buffer) else p for p in func.params)
    body = flattener.stmt(func.body)
    return func.replace(params=params, body=body, annotations={**func.annotations, "flat": True})


def strides_of(buffer: Buffer) -> tuple[Expr, ...]:
    """The strides in elements: the declared ones, or those of a compact row-major layout."""
    if buffer.strides is not None:
        return buffer.strides
    strides: list[Expr] = []
    step = index_expr(1)
    for extent in reversed(buffer.shape):
        strides.append(step)
        step = mul(extent, step)
    return tuple(reversed(strides))


def _dot(indices: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    total: Expr = index_expr(0)
    for index, stride in zip(indices, strides):
        product = index * stride if int_value(index) != 0 else index_expr(0)
        total = total + product
    return total


def _byte_buffer(buffer: Buffer) -> Buffer:
    """The uint8 buffer over the same memory as a packed one."""
    if not buffer.shape:
        return buffer.replace(dtype=UINT8, shape=(1,), strides=None)
    per_byte = 8 // buffer.dtype.bits
    row = (buffer.shape[-1] + (per_byte - 1)) // per_byte
    strides: tuple[Expr, ...] | None = None
    if buffer.strides is not None:
        strides = tuple(_byte_stride(buffer, stride) for stride in buffer.strides[:-1]) + (index_expr(1),)
        if int_value(buffer.strides[-1]) != 1:
            raise TargetError(f"{buffer!r}: a packed buffer must have stride 1 along its last axis")
    return buffer.replace(dtype=UINT8, shape=(*buffer.shape[:-1], row), strides=strides)


def _byte_stride(buffer: Buffer, stride: Expr) -> Expr:
    per_byte = 8 // buffer.dtype.bits
    value = int_value(stride)
    if value is not None and value % per_byte:
        raise TargetError(
            f"{buffer!r}: a row must start at a byte, so strides are multiples of {per_byte}, not {value}"
        )
    return floordiv(stride, index_expr(per_byte))


def _call(name: str, a: Expr, b: Expr) -> Expr:
    left, right = match(a, b, name)
    return Call(name, (left, right), left.dtype)


class _Flattener(Mutator):
    def __init__(self) -> None:
        self.bytes: dict[Buffer, Buffer] = {}

    def buffer(self, buffer: Buffer) -> Buffer:
        """The buffer to use in place of one: itself, or the bytes of a packed one."""
        if not buffer.dtype.is_packed:
            return buffer
        made = self.bytes.get(buffer)
        if made is None:
            made = self.bytes[buffer] = _byte_buffer(buffer)
        return made

    def _index(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Expr]:
        if len(indices) == 1 and (buffer.strides is None or int_value(buffer.strides[0]) == 1):
            return (indices[0],)
        return (_dot(indices, strides_of(buffer)),)

    def _packed(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, Expr, Expr]:
        """The byte buffer, the index of the byte, and how far the element stands shifted in it (a uint8)."""
        holder = self.buffer(buffer)
        if not indices:
            return holder, index_expr(0), Const(0, UINT8)
        per_byte = index_expr(8 // buffer.dtype.bits)
        last = indices[-1]
        byte, within = (f(*match(last, per_byte, "index")) for f in (floordiv, floormod))
        (index,) = self._index(holder, (*indices[:-1], byte))
        return holder, index, cast(within * buffer.dtype.bits, UINT8)

    def _unpacked(self, e: Load) -> Expr:
        """The element's value as a uint8 or a sign-extended int8."""
        holder, index, shift = self._packed(e.buffer, map_all(e.indices, self.expr))
        bits = e.buffer.dtype.bits
        raw = _call("shift_right", Load(holder, (index,)), shift)
        value = _call("bit_and", raw, Const((1 << bits) - 1, UINT8))
        if not e.buffer.dtype.is_signed:
            return value
        sign = Const(1 << (bits - 1), INT8)
        return _call("bit_xor", cast(value, INT8), sign) - sign

    def visit_Call(self, e: Call) -> Expr:
        """A stride that a tensor intrinsic asked for is known now."""
        if e.name == "buffer_stride" and isinstance(e.args[0], Address):
            return strides_of(e.args[0].buffer)[int_value(e.args[1]) or 0]
        return self.generic(e)

    def visit_Cast(self, e: Cast) -> Expr:
        """A cast of a packed element goes from the byte at once, not through the narrow type."""
        if isinstance(e.value, Load) and e.value.buffer.dtype.is_packed:
            return cast(self._unpacked(e.value), e.dtype)
        return self.generic(e)

    def visit_Load(self, e: Load) -> Expr:
        """A load with one index; of a packed buffer: bits of a byte."""
        if e.buffer.dtype.is_packed:
            return cast(self._unpacked(e), e.dtype)
        indices = self._index(e.buffer, map_all(e.indices, self.expr))
        return e if len(e.indices) == 1 and indices[0] is e.indices[0] else Load(e.buffer, indices)

    def visit_Address(self, e: Address) -> Expr:
        """An address with one index."""
        indices = map_all(e.indices, self.expr)
        if e.buffer.dtype.is_packed:
            holder, index, _ = self._packed(e.buffer, indices)
            return Address(holder, (index,), e.mode)
        return Address(e.buffer, self._index(e.buffer, indices), e.mode)

    def visit_Store(self, s: Store) -> Stmt:
        """A store with one index; to a packed buffer: its byte with some bits changed."""
        indices, value = map_all(s.indices, self.expr), self.expr(s.value)
        predicate = None if s.predicate is None else self.expr(s.predicate)
        if not s.buffer.dtype.is_packed:
            return Store(s.buffer, self._index(s.buffer, indices), value, predicate)
        holder, index, shift = self._packed(s.buffer, indices)
        mask = Const((1 << s.buffer.dtype.bits) - 1, UINT8)
        kept = _call("bit_and", Load(holder, (index,)), _inverse(_call("shift_left", mask, shift)))
        bits = _call("shift_left", _call("bit_and", _as_byte(value), mask), shift)
        return Store(holder, (index,), _call("bit_or", kept, bits), predicate)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        """An allocation, of bytes for a packed buffer."""
        made = self.buffer(s.buffer)
        body = self.stmt(s.body)
        return s if made is s.buffer and body is s.body else Allocate(made, body)

    def visit_For(self, s: For) -> Stmt:
        """A loop; serial where two of its iterations would change one byte at the same time."""
        done = self.generic_stmt(s)
        assert isinstance(done, For)
        if s.kind in ("parallel", "vectorized") and _shares_bytes(s):
            return done.replace(kind="serial")
        return done


def _knows_float8(func: Func) -> bool:
    made = [s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)]
    if any(isinstance(b, Buffer) and b.dtype in FLOAT8 for b in (*func.params, *made)):
        return True
    return any(e.dtype in FLOAT8 for e in walk_exprs(func.body, Cast))


class _Float8(Mutator):
    """Buffers of float8 become bytes; such a number is computed with as float32, and its bits are what is kept."""

    def __init__(self) -> None:
        self.bytes: dict[Buffer, Buffer] = {}

    def buffer(self, buffer: Buffer) -> Buffer:
        if buffer.dtype not in FLOAT8:
            return buffer
        return self.bytes.setdefault(buffer, buffer.replace(dtype=UINT8))

    def func(self, f: Func) -> Func:
        params = tuple(self.buffer(p) if isinstance(p, Buffer) else p for p in f.params)
        return super().func(f).replace(params=params)

    def expr(self, e: Expr) -> Expr:
        """An expression; of a float8, its bits."""
        if isinstance(e, (Load, Address)):
            indices = map_all(e.indices, self.expr)
            buffer = self.buffer(e.buffer)
            return Load(buffer, indices) if isinstance(e, Load) else Address(buffer, indices, e.mode)
        if isinstance(e, Cast):
            value = self._value(e.value)
            return narrowed(value, e.dtype.name) if e.dtype in FLOAT8 else cast(value, e.dtype)
        if isinstance(e, Const):
            return self.expr(Cast(e.dtype, Const(e.value, FLOAT32))) if e.dtype in FLOAT8 else e
        if isinstance(e, Binary) and e.a.dtype in FLOAT8:
            made: Expr = type(e)(self._value(e.a), self._value(e.b))
        elif isinstance(e, Call) and any(a.dtype in FLOAT8 and not isinstance(a, Address) for a in e.args):
            made = Call(e.name, [self._value(a) for a in e.args], FLOAT32 if e.dtype in FLOAT8 else e.dtype)
        else:
            return self.generic(e)
        return narrowed(made, e.dtype.name) if e.dtype in FLOAT8 else made

    def _value(self, e: Expr) -> Expr:
        return widened(self.expr(e), e.dtype.name) if e.dtype in FLOAT8 else self.expr(e)

    def visit_Store(self, s: Store) -> Stmt:
        done = self.generic_stmt(s)
        assert isinstance(done, Store)
        return Store(self.buffer(s.buffer), done.indices, done.value, done.predicate)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        return Allocate(self.buffer(s.buffer), self.stmt(s.body))


def _inverse(e: Expr) -> Expr:
    return Call("bit_not", (e,), e.dtype)


def _as_byte(value: Expr) -> Expr:
    kind: DType = value.dtype
    if kind.is_bool:
        return cast(value, UINT8)
    return cast(cast(value, INT8), UINT8) if kind.is_signed else cast(value, UINT8)


def _shares_bytes(loop: For) -> bool:
    """Whether a packed element written in the loop may share its byte with one that another iteration writes."""
    inside = [s for s in walk_stmts(loop.body) if isinstance(s, For)]
    stores = (s for s in walk_stmts(loop.body) if isinstance(s, Store) and s.buffer.dtype.is_packed)
    return any(not _own_bytes(s, loop.var, inside) for s in stores)


def _own_bytes(s: Store, var: Var, inside: Sequence[For]) -> bool:
    """Whether different values of the variable write different bytes: its part of the index is whole bytes."""
    if not s.indices:
        return False
    *rows, last = s.indices
    if not uses_any(last, (var,)):
        return any(uses_any(row, (var,)) for row in rows)
    form = linear(last)
    per_byte = 8 // s.buffer.dtype.bits
    bounds = {inner.var: (0, size - 1) for inner in inside if (size := int_value(inner.extent)) is not None}
    position = Linear(
        {term: factor for term, factor in form.terms.items() if factor % per_byte}, form.constant % per_byte
    )
    span = linear_interval(position, bounds)
    if span is None or span[0] < 0 or span[1] >= per_byte:
        return False
    return var in form.terms and not any(term is not var and uses_any(term, (var,)) for term in form.terms)


__all__ = ["flatten", "strides_of"]

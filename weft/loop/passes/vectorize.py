"""Vectorized loops become vector expressions.

    vectorized for j in range(8):            C[ramp(i * 8, 1, 8)] = A[ramp(i * 8, 1, 8)] * broadcast(alpha, 8)
        C[i * 8 + j] = A[i * 8 + j] * alpha   ->

The lanes run in lockstep, statement by statement. What does not depend on the loop variable stays scalar until it
meets a vector. A condition that differs between lanes becomes the predicate of the stores under it, and values that
could go wrong in a lane that is off (loads, divisions) are computed under a Select of the same mask.
A loop that cannot be a vector (an effect that depends on the lane, a store of every lane to one element, an extent
that is not constant) becomes serial. Around another vectorized loop the outer one becomes unrolled or serial.
An extent above `max_lanes` becomes a serial loop of vectors and shorter vectors for the rest.

Every vector has a power of two of lanes, so 28 lanes are vectors of 16, 8 and 4. LLVM would take 28 too, and split it
so where it loads, computes and stores; but a value of such a type that lives from one basic block to the next (an
accumulator, an operand hoisted out of a loop) it keeps as 28 scalars, which is up to a hundred times slower.
"""

from __future__ import annotations

from weft.core import model
from weft.core.dtypes import BOOL, INDEX
from weft.expr.intrinsics import REPORT, is_pure
from weft.expr.nodes import (
    FOLD,
    Add,
    Address,
    Binary,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Mul,
    Not,
    Ramp,
    Select,
    Sub,
    Var,
    add,
    broadcast,
    cast,
    const,
    floordiv,
    floormod,
    index_expr,
    int_value,
    logical_and,
    logical_not,
    mul,
    product,
    select,
    sub,
)
from weft.expr.visit import ExprMutator, map_all, walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import Copier, Names, buffers_written, can_trap, linear, loads
from weft.loop.visit import Mutator, child_exprs, walk_stmts

MAX_LANES = 64


def vectorize(func: Func, max_lanes: int = MAX_LANES) -> Func:
    """The program with its vectorized loops turned into vector expressions."""
    if not any(isinstance(s, For) and s.kind == "vectorized" for s in walk_stmts(func.body)):
        return func
    return _Vectorizer(Names(func), max_lanes, bool(func.annotations.get("flat"))).func(func)


class _CannotVectorize(Exception):
    """Raised while a loop body is rewritten; the loop then becomes serial."""


class _Vectorizer(Mutator):
    def __init__(self, names: Names, max_lanes: int, flat: bool) -> None:
        self.names = names
        self.max_lanes = max_lanes
        self.flat = flat

    def visit_For(self, s: For) -> Stmt:
        if s.kind != "vectorized":
            return self.generic_stmt(s)
        nested = any(isinstance(inner, For) and inner.kind == "vectorized" for inner in walk_stmts(s.body))
        body = self.stmt(s.body)
        extent = int_value(s.extent)
        if extent is None:
            return s.replace(kind="serial", body=body)
        if extent <= 0:
            return Seq(())
        if extent == 1:
            return Copier(self.names, {s.var: index_expr(0)}).stmt(body)
        if nested or _has_vectors(body):
            return s.replace(kind="unrolled" if extent <= model.UNROLLED_AROUND else "serial", body=body)
        try:
            return self._vectors(s.replace(body=body), extent)
        except _CannotVectorize:
            return s.replace(kind="serial", body=body)

    def _vectors(self, loop: For, extent: int) -> Stmt:
        start = 0
        made: list[Stmt] = []
        if extent > self.max_lanes:
            count = extent // self.max_lanes
            main = self._lanes(loop, mul(loop.var, index_expr(self.max_lanes)), self.max_lanes)
            made.append(loop.replace(extent=count, body=main, kind="serial"))
            start = count * self.max_lanes
        while start < extent:
            lanes = 1 << (extent - start).bit_length() - 1
            part = self._lanes(loop, index_expr(start), lanes)
            made.append(Copier(self.names).stmt(part) if made else part)
            start += lanes
        return seq(*made)

    def _lanes(self, loop: For, base: Expr, lanes: int) -> Stmt:
        if lanes == 1:
            return Copier(self.names, {loop.var: base}).stmt(loop.body)
        return _LoopBody(loop, base, lanes, self.names, self.flat).stmt(loop.body)


def _has_vectors(s: Stmt) -> bool:
    return any(node.dtype.lanes > 1 for stmt in walk_stmts(s) for e in child_exprs(stmt) for node in walk(e))


# ----------------------------------------------------------------------------------------------- ramp arithmetic


def _ramp(base: Expr, stride: Expr, lanes: int) -> Expr:
    """The vector base, base + stride, …; where all lanes are equal, the scalar."""
    return base if int_value(stride) == 0 else Ramp(base, stride, lanes)


def _parts(e: Expr) -> tuple[Expr, Expr] | None:
    """Base and stride of a linear vector; a scalar has stride 0."""
    if isinstance(e, Ramp):
        return e.base, e.stride
    if isinstance(e, Broadcast):
        return e.value, const(0, e.value.dtype)
    return (e, const(0, e.dtype)) if e.dtype.lanes == 1 else None


def _linear_binary(kind: type[Expr], a: Expr, b: Expr, lanes: int) -> Expr | None:
    """A sum, difference, product, quotient or remainder that is a ramp again, or None."""
    left, right = _parts(a), _parts(b)
    if left is None or right is None:
        return None
    if kind is Add:
        return _ramp(add(left[0], right[0]), add(left[1], right[1]), lanes)
    if kind is Sub:
        return _ramp(sub(left[0], right[0]), sub(left[1], right[1]), lanes)
    if kind is Mul:
        if int_value(left[1]) == 0:
            left, right = right, left
        if int_value(right[1]) == 0:
            return _ramp(mul(left[0], right[0]), mul(left[1], right[0]), lanes)
    if (kind is FloorDiv or kind is FloorMod) and a.dtype.scalar is INDEX:
        return _ramp_division(kind, left, right, lanes)
    return None


def _ramp_division(kind: type[Expr], left: tuple[Expr, Expr], right: tuple[Expr, Expr], lanes: int) -> Expr | None:
    """A ramp divided by a constant, where every lane falls into the same quotient, or the stride divides."""
    divisor, step = int_value(right[0]), int_value(left[1])
    if int_value(right[1]) != 0 or divisor is None or divisor <= 0 or step is None:
        return None
    base, width = left[0], index_expr(divisor)
    if step % divisor == 0:
        if kind is FloorMod:
            return floormod(base, width)
        return _ramp(floordiv(base, width), index_expr(step // divisor), lanes)
    form = linear(base)
    if any(factor % divisor for factor in form.terms.values()):
        return None
    first = form.constant % divisor
    if not 0 <= first + step * (lanes - 1) < divisor:
        return None
    return floordiv(base, width) if kind is FloorDiv else Ramp(index_expr(first), left[1], lanes)


# --------------------------------------------------------------------------------------------------- expressions


class _LaneExpr(ExprMutator):
    """Rewrites an expression of the loop variable into a vector; anything else comes back as it is (a scalar)."""

    def __init__(self, var: Var, base: Expr, lanes: int) -> None:
        self.lanes = lanes
        self.variables: dict[Var, Expr] = {var: Ramp(base, index_expr(1), lanes)}
        self.wide: dict[Buffer, Buffer] = {}

    def visit_Var(self, e: Var) -> Expr:
        return self.variables.get(e, e)

    def expr(self, e: Expr) -> Expr:
        return self._binary(e) if isinstance(e, Binary) else super().expr(e)

    def _binary(self, e: Binary) -> Expr:
        a, b = self.expr(e.a), self.expr(e.b)
        if a is e.a and b is e.b:
            return e
        kind = type(e)
        if a.dtype.lanes == 1 and b.dtype.lanes == 1:
            return FOLD[kind](a, b)
        if a.dtype.is_integer:
            found = _linear_binary(kind, a, b, self.lanes)
            if found is not None:
                return found
        return kind(broadcast(a, self.lanes), broadcast(b, self.lanes))

    def visit_Not(self, e: Not) -> Expr:
        return logical_not(self.expr(e.a))

    def visit_Select(self, e: Select) -> Expr:
        condition, then, otherwise = self.expr(e.condition), self.expr(e.then), self.expr(e.otherwise)
        if condition.dtype.lanes == then.dtype.lanes == otherwise.dtype.lanes == 1:
            return select(condition, then, otherwise)
        return Select(*(broadcast(part, self.lanes) for part in (condition, then, otherwise)))

    def visit_Cast(self, e: Cast) -> Expr:
        value = self.expr(e.value)
        if value is e.value:
            return e
        if isinstance(value, Ramp) and e.dtype.is_integer and _fits(value, e.dtype.bits):
            return Ramp(cast(value.base, e.dtype), cast(value.stride, e.dtype), self.lanes)
        return cast(value, e.dtype.with_lanes(value.dtype.lanes))

    def visit_Call(self, e: Call) -> Expr:
        args = map_all(e.args, self.expr)
        if args is e.args:
            return e
        vector = any(arg.dtype.lanes > 1 for arg in args)
        if not is_pure(e.name):
            raise _CannotVectorize
        if not vector:
            return Call(e.name, args, e.dtype)
        return Call(e.name, [broadcast(arg, self.lanes) for arg in args], e.dtype.with_lanes(self.lanes))

    def visit_Address(self, e: Address) -> Expr:
        indices = map_all(e.indices, self.expr)
        if e.buffer in self.wide or any(index.dtype.lanes > 1 for index in indices):
            raise _CannotVectorize
        return Address(e.buffer, indices, e.mode)

    def visit_Load(self, e: Load) -> Expr:
        if e.buffer in self.wide:
            return Load(self.wide[e.buffer], self.own_lane(e.indices))
        indices = map_all(e.indices, self.expr)
        return e if indices is e.indices else Load(e.buffer, indices)

    def own_lane(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The index of each lane's own element in a buffer that has one copy of every element for each lane."""
        lane = Ramp(index_expr(0), index_expr(1), self.lanes)
        index = self.expr(indices[0])
        for kind, other in ((Mul, index_expr(self.lanes)), (Add, lane)):
            found = _linear_binary(kind, index, other, self.lanes)
            index = kind(broadcast(index, self.lanes), broadcast(other, self.lanes)) if found is None else found
        return (index,)


def _fits(value: Ramp, bits: int) -> bool:
    """Whether the lanes of a ramp wrap the same way when its base does: they do for a type no wider than its own."""
    return bits <= value.base.dtype.bits


# ---------------------------------------------------------------------------------------------------- statements


class _LoopBody(Mutator):
    """Rewrites the body of one vectorized loop. `mask` is the condition under which a lane runs (None: all do)."""

    def __init__(self, loop: For, base: Expr, lanes: int, names: Names, flat: bool) -> None:
        self.lanes = lanes
        self.flat = flat
        self.names = names
        self.values = _LaneExpr(loop.var, base, lanes)
        self.mask: Expr | None = None
        self.written = buffers_written(loop.body)

    def expr(self, e: Expr) -> Expr:
        return self.values.expr(e)

    def _guarded(self, e: Expr) -> Expr:
        """A vector that is safe to compute in lanes that are off."""
        if self.mask is None or not can_trap(e):
            return e
        if e.dtype.lanes == 1:
            raise _CannotVectorize
        zero = const(0, e.dtype.scalar) if not e.dtype.is_bool else Const(False, BOOL)
        return Select(self.mask, e, Broadcast(zero, self.lanes))

    def visit_Store(self, s: Store) -> Stmt:
        wide = self.values.wide.get(s.buffer)
        indices = map_all(s.indices, self.expr) if wide is None else self.values.own_lane(s.indices)
        if all(index.dtype.lanes == 1 for index in indices):
            raise _CannotVectorize  # every lane writes the same element: only the order of lanes makes that right
        value = broadcast(self.expr(s.value), self.lanes)
        predicate = self.mask
        if s.predicate is not None:
            own = broadcast(self.expr(s.predicate), self.lanes)
            predicate = own if predicate is None else logical_and(predicate, self._guarded(own))
        return Store(wide or s.buffer, [self._guarded(index) for index in indices], self._guarded(value), predicate)

    def visit_If(self, s: If) -> Stmt:
        condition = self.expr(s.condition)
        if condition.dtype.lanes == 1:
            if self.mask is not None and can_trap(condition):
                raise _CannotVectorize
            otherwise = None if s.otherwise is None else self.stmt(s.otherwise)
            return If(condition, self.stmt(s.then), otherwise)
        condition = self._guarded(condition)
        if any(load.buffer in self.written for load in loads(condition)):
            named = Var(self.names.fresh("mask"), condition.dtype)
            return Let(named, condition, self._branches(named, s))
        return self._branches(condition, s)

    def _branches(self, condition: Expr, s: If) -> Stmt:
        outer = self.mask
        self.mask = condition if outer is None else logical_and(outer, condition)
        then: Stmt = self.stmt(s.then)
        if s.otherwise is None:
            self.mask = outer
            return then
        negated = logical_not(condition)
        self.mask = negated if outer is None else logical_and(outer, negated)
        otherwise = self.stmt(s.otherwise)
        self.mask = outer
        return seq(then, otherwise)

    def visit_Let(self, s: Let) -> Stmt:
        value = self.expr(s.value)
        if value.dtype.lanes == 1:
            if self.mask is not None and can_trap(value):
                raise _CannotVectorize
            return Let(s.var, value, self.stmt(s.body))
        named = Var(s.var.name, value.dtype)
        if isinstance(value, Ramp):  # a ramp stays visible, so that the accesses that use it stay contiguous
            self.values.variables[s.var] = value
            return self.stmt(s.body)
        self.values.variables[s.var] = named
        return Let(named, self._guarded(value), self.stmt(s.body))

    def visit_For(self, s: For) -> Stmt:
        extent = self.expr(s.extent)
        if extent.dtype.lanes > 1 or s.kind in ("parallel", "thread") or (self.mask is not None and can_trap(extent)):
            raise _CannotVectorize
        return s.replace(extent=extent, body=self.stmt(s.body))

    def visit_Allocate(self, s: Allocate) -> Stmt:
        """An allocation inside gets one copy of every element for each lane, side by side."""
        if not self.flat or any(int_value(extent) is None for extent in s.buffer.shape):
            raise _CannotVectorize
        size = product(s.buffer.shape)
        made = s.buffer.replace(shape=(mul(size, index_expr(self.lanes)),), strides=None)
        self.values.wide[s.buffer] = made
        return Allocate(made, self.stmt(s.body))

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        if not isinstance(s.value, Call) or s.value.name != REPORT:
            raise _CannotVectorize  # it would have to happen once for each lane
        condition, place = self.expr(s.value.args[0]), s.value.args[1:]
        if self.mask is not None:
            condition = logical_and(self.mask, self._guarded(broadcast(condition, self.lanes)))
        return Evaluate(Call(REPORT, (condition, *place), BOOL))

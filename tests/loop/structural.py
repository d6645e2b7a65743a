"""Equality of programs: in go two Funcs (or Stmts), out comes whether they are one program up to names.

    func f(A: float32[n]): for i in range(n): A[i] = 0.0          equal to
    func f(X: float32[m]): for j in range(m): X[j] = 0.0

What is bound (parameters, sizes, loops, axes, lets, buffers) corresponds by position and may be called anything.
What counts: the names of the function, the blocks and the intrinsics, dtypes, scopes, strides, alignments, kinds,
annotations, and the exact value of every literal (-0.0 is not 0.0; NaN is NaN). What does not: `Block.origin`, and
how Seqs are nested in one another. A variable or buffer that nothing binds equals only itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.expr.nodes import Address, Buffer, Call, Const, Expr, Load, Ramp, Var
from weft.expr.text import Named
from weft.expr.visit import children
from weft.loop.ir import Allocate, Block, Evaluate, For, Func, If, Let, Region, Seq, Stmt, Store
from weft.loop.printer import flatten


def funcs_equal(a: Func, b: Func) -> bool:
    """Whether two functions are the same program up to the names of what they bind."""
    return _Comparison().funcs(a, b)


def stmts_equal(a: Stmt, b: Stmt) -> bool:
    """Whether two statements are the same up to the names of what they bind; what is free must be identical."""
    return _Comparison().stmts(a, b)


def _same_annotations(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if not a and not b:
        return True
    left, right = (json.dumps(x, default=str, skipkeys=True, sort_keys=True) for x in (a, b))
    return left == right


def _same_literal(a: Const, b: Const) -> bool:
    if a.dtype.is_float:
        return repr(float(a.value)) == repr(float(b.value))  # tells -0.0 from 0.0, and holds for NaN
    return bool(a.value == b.value)


class _Comparison:
    """Walks two programs side by side; `pairs` maps what the left one binds to what the right one binds there."""

    def __init__(self) -> None:
        self.pairs: dict[Named, Named] = {}
        self.back: dict[Named, Named] = {}
        self.sizes_open = False  # in the parameters, the first use of a variable binds it

    def bind(self, a: Named, b: Named) -> None:
        self.pairs[a] = b
        self.back[b] = a

    def same(self, a: Named, b: Named) -> bool:
        """Whether two uses mean the same thing."""
        known, known_back = self.pairs.get(a), self.back.get(b)
        if known is None and known_back is None:
            if self.sizes_open and a.dtype is b.dtype:
                self.bind(a, b)
                return True
            return a is b
        return known is b and known_back is a

    # ------------------------------------------------------------------------------------------------ expressions

    def exprs(self, left: Sequence[Expr], right: Sequence[Expr]) -> bool:
        """Whether two lists of expressions are the same."""
        if len(left) != len(right):
            return False
        stack = list(zip(left, right))
        while stack:
            a, b = stack.pop()
            kind = type(a)
            if kind is not type(b) or a.dtype is not b.dtype:
                return False
            extra = _NODE.get(kind)
            if extra is not None and not extra(self, a, b):
                return False
            inner, other = children(a), children(b)
            if len(inner) != len(other):
                return False
            stack.extend(zip(reversed(inner), reversed(other)))
        return True

    def maybe(self, a: Expr | None, b: Expr | None) -> bool:
        if a is None or b is None:
            return a is b
        return self.exprs((a,), (b,))

    # ------------------------------------------------------------------------------------------------ statements

    def buffers(self, a: Buffer, b: Buffer) -> bool:
        """Whether two declarations are the same."""
        if (a.dtype, a.scope, a.alignment) != (b.dtype, b.scope, b.alignment) or not self.exprs(a.shape, b.shape):
            return False
        if a.strides is None or b.strides is None:
            return a.strides is b.strides
        return self.exprs(a.strides, b.strides)

    def funcs(self, a: Func, b: Func) -> bool:
        if a.name != b.name or len(a.params) != len(b.params) or len(a.allocations) != len(b.allocations):
            return False
        for p, q in zip((*a.params, *a.allocations), (*b.params, *b.allocations)):
            if isinstance(p, Buffer) is not isinstance(q, Buffer) or p.dtype is not q.dtype:
                return False
            self.bind(p, q)
        self.sizes_open = True
        if not all(self.buffers(p, q) for p, q in zip(a.buffers, b.buffers)):
            return False
        self.sizes_open = False
        if not all(self.buffers(p, q) for p, q in zip(a.allocations, b.allocations)):
            return False
        return _same_annotations(a.annotations, b.annotations) and self.stmts(a.body, b.body)

    def stmts(self, a: Stmt, b: Stmt) -> bool:
        """Whether two suites are the same."""
        while True:
            left, right = flatten(a), flatten(b)
            if len(left) != len(right):
                return False
            if left and type(left[-1]) is Let and type(right[-1]) is Let:  # long chains, no recursion
                before = all(_same_stmt(self, x, y) for x, y in zip(left[:-1], right[:-1]))
                if not before or not self.let_header(left[-1], right[-1]):
                    return False
                a, b = left[-1].body, right[-1].body
                continue
            return all(_same_stmt(self, x, y) for x, y in zip(left, right))

    def optional(self, a: Stmt | None, b: Stmt | None) -> bool:
        if a is None or b is None:
            return a is b
        return self.stmts(a, b)

    def store(self, a: Store, b: Store) -> bool:
        same = self.same(a.buffer, b.buffer) and self.exprs((*a.indices, a.value), (*b.indices, b.value))
        return same and self.maybe(a.predicate, b.predicate)

    def evaluate(self, a: Evaluate, b: Evaluate) -> bool:
        return self.exprs((a.value,), (b.value,))

    def for_(self, a: For, b: For) -> bool:
        if a.kind != b.kind or a.thread != b.thread or a.var.dtype is not b.var.dtype:
            return False
        if not self.exprs((a.extent,), (b.extent,)) or not _same_annotations(a.annotations, b.annotations):
            return False
        self.bind(a.var, b.var)
        return self.stmts(a.body, b.body)

    def if_(self, a: If, b: If) -> bool:
        same = self.exprs((a.condition,), (b.condition,)) and self.stmts(a.then, b.then)
        return same and self.optional(a.otherwise, b.otherwise)

    def let_header(self, a: Let, b: Let) -> bool:
        if a.var.dtype is not b.var.dtype or not self.exprs((a.value,), (b.value,)):
            return False
        self.bind(a.var, b.var)
        return True

    def let(self, a: Let, b: Let) -> bool:
        return self.let_header(a, b) and self.stmts(a.body, b.body)

    def allocate(self, a: Allocate, b: Allocate) -> bool:
        if not self.buffers(a.buffer, b.buffer):
            return False
        self.bind(a.buffer, b.buffer)
        return self.stmts(a.body, b.body)

    def block(self, a: Block, b: Block) -> bool:
        if a.name != b.name or len(a.axes) != len(b.axes) or not _same_annotations(a.annotations, b.annotations):
            return False
        outside = (*a.bindings, a.predicate), (*b.bindings, b.predicate)
        if not self.exprs(*outside) or not self.exprs([x.extent for x in a.axes], [x.extent for x in b.axes]):
            return False
        for left, right in zip(a.axes, b.axes):
            if left.kind != right.kind or left.var.dtype is not right.var.dtype:
                return False
            self.bind(left.var, right.var)
        if not self.regions(a.reads, b.reads) or not self.regions(a.writes, b.writes):
            return False
        return self.optional(a.init, b.init) and self.stmts(a.body, b.body)

    def regions(self, left: Sequence[Region], right: Sequence[Region]) -> bool:
        return len(left) == len(right) and all(
            self.same(a.buffer, b.buffer) and self.exprs(a.mins, b.mins) and self.exprs(a.extents, b.extents)
            for a, b in zip(left, right)
        )


_NODE: dict[type[Expr], Callable[[_Comparison, Any, Any], bool]] = {
    Var: _Comparison.same,
    Const: lambda self, a, b: _same_literal(a, b),
    Call: lambda self, a, b: a.name == b.name,
    Load: lambda self, a, b: self.same(a.buffer, b.buffer),
    Address: lambda self, a, b: a.mode == b.mode and self.same(a.buffer, b.buffer),
    Ramp: lambda self, a, b: a.lanes == b.lanes,
}
"""What must agree besides the dtype and the parts of a node."""

_STMT: dict[type[Stmt], Callable[[_Comparison, Any, Any], bool]] = {
    Store: _Comparison.store, Evaluate: _Comparison.evaluate, For: _Comparison.for_, If: _Comparison.if_,
    Let: _Comparison.let, Allocate: _Comparison.allocate, Block: _Comparison.block, Seq: _Comparison.stmts,
}  # fmt: skip


def _same_stmt(comparison: _Comparison, a: Stmt, b: Stmt) -> bool:
    return type(a) is type(b) and _STMT[type(a)](comparison, a, b)

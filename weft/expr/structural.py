"""Comparing expressions by structure.

In: two expressions (nodes compare by identity otherwise). Out: whether they mean the same because they are built the
same. Free variables and buffers are equal by identity, or through the mappings that the caller gives.

    structural_equal(i * 4 + j, i * 4 + j)                       True
    structural_equal(i * 4, k * 4)                               False
    structural_equal(i * 4, k * 4, mapping := {}, map_free=True) True, and mapping is now {i: k}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.expr.nodes import (
    BINARY,
    COMPARE,
    Address,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Ramp,
    Select,
    Var,
)


def _const_key(e: Any) -> Any:
    # repr tells 0.0 from -0.0 and makes NaN equal to itself, which comparing values does not.
    value = e.value
    return (Const, repr(value) if type(value) is float else value, e.dtype)


_KEY: dict[type[Expr], Callable[[Any], Any]] = {
    Var: lambda e: e,
    Const: _const_key,
    Not: lambda e: (Not, structural_key(e.a)),
    Select: lambda e: (Select, structural_key(e.condition), structural_key(e.then), structural_key(e.otherwise)),
    Cast: lambda e: (Cast, e.dtype, structural_key(e.value)),
    Call: lambda e: (Call, e.name, e.dtype, *map(structural_key, e.args)),
    Load: lambda e: (Load, e.buffer, *map(structural_key, e.indices)),
    Address: lambda e: (Address, e.buffer, e.mode, *map(structural_key, e.indices)),
    Ramp: lambda e: (Ramp, structural_key(e.base), structural_key(e.stride), e.lanes),
    Broadcast: lambda e: (Broadcast, structural_key(e.value), e.lanes),
    **{kind: (lambda e: (type(e), structural_key(e.a), structural_key(e.b))) for kind in (*BINARY, *COMPARE)},
}


def structural_key(e: Expr) -> Any:
    """A hashable value that is equal for exactly the expressions that are structurally equal."""
    return _KEY[type(e)](e)


class _Comparer:
    """One comparison under way: the two mappings, and their inverses where free names are being unified."""

    __slots__ = ("variables", "buffers", "map_free", "variables_back", "buffers_back")

    def __init__(self, variables: dict[Var, Var] | None, buffers: dict[Buffer, Buffer] | None, map_free: bool) -> None:
        self.variables: dict[Any, Any] = {} if variables is None else variables
        self.buffers: dict[Any, Any] = {} if buffers is None else buffers
        self.map_free = map_free
        self.variables_back = {b: a for a, b in self.variables.items()}
        self.buffers_back = {b: a for a, b in self.buffers.items()}

    def name(self, a: Any, b: Any, forward: dict[Any, Any], back: dict[Any, Any]) -> bool:
        found = forward.get(a)
        if found is not None:
            return found is b
        if not self.map_free:
            return a is b
        if b in back:
            return False
        forward[a] = b
        back[b] = a
        return True

    def buffer(self, a: Buffer, b: Buffer) -> bool:
        if a is not b and not (a.dtype is b.dtype and a.scope == b.scope and len(a.shape) == len(b.shape)):
            return False
        return self.name(a, b, self.buffers, self.buffers_back)

    def all(self, a: tuple[Expr, ...], b: tuple[Expr, ...]) -> bool:
        return len(a) == len(b) and all(self.same(x, y) for x, y in zip(a, b))

    def same(self, a: Any, b: Any) -> bool:
        kind = type(a)
        if kind is not type(b) or a.dtype is not b.dtype:
            return False
        if kind is Var:
            return self.name(a, b, self.variables, self.variables_back)
        if kind is Const:
            return bool(_const_key(a) == _const_key(b))
        return _SAME[kind](self, a, b)


_SAME: dict[type[Expr], Callable[[_Comparer, Any, Any], bool]] = {
    Not: lambda c, a, b: c.same(a.a, b.a),
    Select: lambda c, a, b: (
        c.same(a.condition, b.condition) and c.same(a.then, b.then) and c.same(a.otherwise, b.otherwise)
    ),
    Cast: lambda c, a, b: c.same(a.value, b.value),
    Call: lambda c, a, b: a.name == b.name and c.all(a.args, b.args),
    Load: lambda c, a, b: c.buffer(a.buffer, b.buffer) and c.all(a.indices, b.indices),
    Address: lambda c, a, b: a.mode == b.mode and c.buffer(a.buffer, b.buffer) and c.all(a.indices, b.indices),
    Ramp: lambda c, a, b: a.lanes == b.lanes and c.same(a.base, b.base) and c.same(a.stride, b.stride),
    Broadcast: lambda c, a, b: a.lanes == b.lanes and c.same(a.value, b.value),
    **{kind: (lambda c, a, b: c.same(a.a, b.a) and c.same(a.b, b.b)) for kind in (*BINARY, *COMPARE)},
}


def structural_equal(
    a: Expr,
    b: Expr,
    mapping: dict[Var, Var] | None = None,
    buffers: dict[Buffer, Buffer] | None = None,
    *,
    map_free: bool = False,
) -> bool:
    """Whether two expressions are built the same.

    A variable of `a` equals the one `mapping` gives for it, or else itself; `buffers` does the same for buffers. With
    `map_free`, a name met for the first time is added to the (mutable) mapping, one to one; what was added stays in
    the mappings even when the answer is False.
    """
    if mapping is None and buffers is None and not map_free and (a is b or type(a) is not type(b)):
        return a is b
    return _Comparer(mapping, buffers, map_free).same(a, b)

"""Axes: what an operation iterates over, and the thread axes that loops are bound to.

In an expression an axis stands for its variable, so `A[k, y] * B[k, x]` and `k // 2` read as in mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.dtypes import DTypeLike
from weft.expr.nodes import Expr, ExprLike, Var, as_expr, index_expr


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: IterVar, *others: Any) -> Any:
        return getattr(self.var, name)(*[as_expr(o) if isinstance(o, IterVar) else o for o in others])

    apply.__name__ = name
    return apply


class IterVar:
    """An axis of an operation ("spatial", "reduce") or a thread axis ("thread"); runs over 0 .. extent-1."""

    __slots__ = ("var", "extent", "kind", "thread")

    def __init__(self, name: str, extent: ExprLike | None, kind: str, thread: str | None = None) -> None:
        self.var = Var(name)
        self.extent = None if extent is None else index_expr(extent)
        self.kind = kind
        self.thread = thread

    @property
    def name(self) -> str:
        """The axis's name."""
        return self.var.name

    def as_expr(self) -> Expr:
        """The variable."""
        return self.var

    def astype(self, to: DTypeLike) -> Expr:
        """The variable converted to another data type."""
        return self.var.astype(to)

    def __repr__(self) -> str:
        size = "?" if self.extent is None else repr(self.extent)
        return f"{self.kind} axis {self.name}[0, {size})"

    __add__, __radd__ = _operator("__add__"), _operator("__radd__")
    __sub__, __rsub__ = _operator("__sub__"), _operator("__rsub__")
    __mul__, __rmul__ = _operator("__mul__"), _operator("__rmul__")
    __truediv__, __rtruediv__ = _operator("__truediv__"), _operator("__rtruediv__")
    __floordiv__, __rfloordiv__ = _operator("__floordiv__"), _operator("__rfloordiv__")
    __mod__, __rmod__ = _operator("__mod__"), _operator("__rmod__")
    __lt__, __le__, __gt__, __ge__ = _operator("__lt__"), _operator("__le__"), _operator("__gt__"), _operator("__ge__")
    __and__, __or__, __xor__ = _operator("__and__"), _operator("__or__"), _operator("__xor__")
    __rand__, __ror__, __rxor__ = _operator("__rand__"), _operator("__ror__"), _operator("__rxor__")
    __lshift__, __rshift__ = _operator("__lshift__"), _operator("__rshift__")
    __rlshift__, __rrshift__ = _operator("__rlshift__"), _operator("__rrshift__")
    __neg__, __invert__, __bool__ = _operator("__neg__"), _operator("__invert__"), _operator("__bool__")

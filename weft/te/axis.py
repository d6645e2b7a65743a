"""Axes: what an operation iterates over, and the thread axes that loops are bound to.

In an expression an axis stands for its variable, so `A[k, y] * B[k, x]` and `k // 2` read as in mathematics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.dtypes import DTypeLike
from weft.expr.classes import HasExpr
from weft.expr.nodes import Expr, ExprLike, Var, index_expr


def on_value(name: str) -> Callable[..., Any]:
    """An operator of what stands for an expression: an axis, a tensor without dimensions."""

    def apply(self: HasExpr, *others: Any) -> Any:
        return getattr(self.as_expr(), name)(*others)

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

    __add__, __radd__ = on_value("__add__"), on_value("__radd__")
    __sub__, __rsub__ = on_value("__sub__"), on_value("__rsub__")
    __mul__, __rmul__ = on_value("__mul__"), on_value("__rmul__")
    __truediv__, __rtruediv__ = on_value("__truediv__"), on_value("__rtruediv__")
    __floordiv__, __rfloordiv__ = on_value("__floordiv__"), on_value("__rfloordiv__")
    __mod__, __rmod__ = on_value("__mod__"), on_value("__rmod__")
    __lt__, __le__, __gt__, __ge__ = on_value("__lt__"), on_value("__le__"), on_value("__gt__"), on_value("__ge__")
    __and__, __or__, __xor__ = on_value("__and__"), on_value("__or__"), on_value("__xor__")
    __rand__, __ror__, __rxor__ = on_value("__rand__"), on_value("__ror__"), on_value("__rxor__")
    __lshift__, __rshift__ = on_value("__lshift__"), on_value("__rshift__")
    __rlshift__, __rrshift__ = on_value("__rlshift__"), on_value("__rrshift__")
    __neg__, __invert__, __bool__ = on_value("__neg__"), on_value("__invert__"), on_value("__bool__")

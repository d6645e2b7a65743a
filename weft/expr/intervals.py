"""Arithmetic on constant intervals.

In: inclusive bounds of the sides of a node, None where there is none. Out: inclusive bounds of the node, as
mathematical integers (whoever knows the width decides whether that wraps).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.expr.nodes import Add, Expr, FloorDiv, FloorMod, Max, Min, Mul, Sub

Interval = tuple["int | None", "int | None"]


def larger(a: int | None, b: int | None) -> int | None:
    """The tighter of two lower bounds, None being no bound."""
    return b if a is None else a if b is None else max(a, b)


def smaller(a: int | None, b: int | None) -> int | None:
    """The tighter of two upper bounds, None being no bound."""
    return b if a is None else a if b is None else min(a, b)


def interval_product(a: Interval, b: Interval) -> Interval:
    """Bounds of a product."""
    if a[0] is not None and a[1] is not None and b[0] is not None and b[1] is not None:
        corners = (a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1])
        return min(corners), max(corners)
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        return a[0] * b[0], None
    if a[1] is not None and b[1] is not None and a[1] <= 0 and b[1] <= 0:
        return a[1] * b[1], None
    if a[0] is not None and b[1] is not None and a[0] >= 0 and b[1] <= 0:
        return None, a[0] * b[1]
    if a[1] is not None and b[0] is not None and a[1] <= 0 and b[0] >= 0:
        return None, a[1] * b[0]
    return None, None


def _interval_floordiv(low: Any, high: Any, least: Any, most: Any) -> Interval:
    if least is None or least <= 0 or (most is not None and most < least):  # no divisor at all, or one that may be 0
        return None, None
    # The quotient grows with the numerator, and with a larger divisor moves towards 0 (or -1).
    down = None if low is None else low // least if low < 0 else low // most if most is not None else 0
    up = None if high is None else high // least if high >= 0 else high // most if most is not None else -1
    return down, up


def _interval_floormod(low: Any, high: Any, least: Any, most: Any) -> Interval:
    if least is None or least <= 0:
        return None, None
    if least == most and low is not None and high is not None and low // least == high // least:
        return low % least, high % least
    up = None if most is None else most - 1
    return 0, smaller(up, high) if low is not None and low >= 0 else up


def _interval_min(low: Any, high: Any, least: Any, most: Any) -> Interval:
    return None if low is None or least is None else min(low, least), smaller(high, most)


def _interval_max(low: Any, high: Any, least: Any, most: Any) -> Interval:
    return larger(low, least), None if high is None or most is None else max(high, most)


INTERVAL_RULES: dict[type[Expr], Callable[..., Interval]] = {
    FloorDiv: _interval_floordiv, FloorMod: _interval_floormod, Min: _interval_min, Max: _interval_max,
    Mul: lambda low, high, least, most: interval_product((low, high), (least, most)),
    Add: lambda low, high, least, most: (
        None if low is None or least is None else low + least, None if high is None or most is None else high + most
    ),
    Sub: lambda low, high, least, most: (
        None if low is None or most is None else low - most, None if high is None or least is None else high - least
    ),
}  # fmt: skip
"""Bounds of a two-sided node, as mathematical integers, from the bounds of its sides."""

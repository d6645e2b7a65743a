"""Digits of an index: `i // 16`, `i % 16`, `i % 64 // 4` are parts of i, as digits are of a number.

digit_of(i // 4 % 16)  ->  (i, Digit(step=4, count=16))
are_whole([i // 16, i % 16])                              both together say which i is meant
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.expr.nodes import Const, Expr, FloorDiv, FloorMod, Var


@dataclass(frozen=True)
class Digit:
    """`index // step % count`; count 0: all that is above the step."""

    step: int
    count: int


def digit_of(index: Expr) -> tuple[Var, Digit] | None:
    """The variable of which an expression is a digit, and which digit; None for anything else."""
    if isinstance(index, Var):
        return index, Digit(1, 0)
    if not isinstance(index, (FloorDiv, FloorMod)) or not isinstance(index.b, Const):
        return None
    found, factor = digit_of(index.a), int(index.b.value)
    if found is None or factor < 1:
        return None
    variable, inner = found
    if isinstance(index, FloorMod):
        return (variable, Digit(inner.step, factor)) if not inner.count or inner.count % factor == 0 else None
    return None if inner.count % factor else (variable, Digit(inner.step * factor, inner.count // factor))


def are_whole(digits: Sequence[Digit]) -> bool:
    """Whether digits together say which number is meant, each part of it once."""
    ordered = sorted(digits, key=lambda digit: -digit.step)
    if not ordered or ordered[0].count or ordered[-1].step != 1:
        return False
    return all(low.count and low.step * low.count == high.step for high, low in zip(ordered, ordered[1:]))

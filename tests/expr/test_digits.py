"""Digits of an index: which expressions are one, and when several say which index is meant."""

from __future__ import annotations

from weft.expr.digits import Digit, are_whole, digit_of
from weft.expr.nodes import Var

I = Var("i")  # noqa: E741


def test_digits():
    assert digit_of(I) == (I, Digit(1, 0))
    assert digit_of(I // 16) == (I, Digit(16, 0))
    assert digit_of(I % 16) == (I, Digit(1, 16))
    assert digit_of(I % 64 // 4) == (I, Digit(4, 16)) == digit_of(I // 4 % 16)
    assert digit_of(I // 4 // 8) == (I, Digit(32, 0))
    assert digit_of(I + 1) is None and digit_of(I % 10 // 4) is None and digit_of(I % 10 % 4) is None


def test_whole():
    found = [digit_of(e) for e in (I % 16, I // 64, I // 16 % 4)]
    digits = [f[1] for f in found if f is not None]
    assert are_whole(digits)
    assert not are_whole(digits[:2]) and not are_whole(digits[1:]) and not are_whole([])
    assert are_whole([Digit(1, 0)]) and not are_whole([Digit(1, 0), Digit(1, 0)])

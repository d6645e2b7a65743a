"""The fast Fourier transform as stages of a tensor program.

A transform of length N = p1 * p2 * … is one stage for each factor (primes, and 4 for two twos): sums of p products over
what the stage before left, turned by roots of unity. Results come out as numpy's do, rounding errors and all, as far as
the factors and the order of additions decide it. A stage's tensor has, in the place of the signal's dimension, two:

    (outputs found so far, rest of the signal)        (1, N) -> (p1, N / p1) -> (p1 * p2, N / (p1 * p2)) -> … -> (N, 1)

so that every index is a plain sum but one division by a constant, and the last stage has the elements in order.
Roots of unity come from one table of N cosines and sines, found in float64; a prime N is a plain product with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft import te
from weft.expr.nodes import Expr

Parts = tuple[Expr, "Expr | None"]
"""The real and the imaginary part of an element; None for a real one."""
Read = Callable[[tuple[Expr, ...], Expr], Parts]
"""An element of the signal: the indices of the other dimensions, and the place along the signal."""

LARGEST_WRITTEN_OUT = 13
"""Factors up to this are sums that are written out; a larger prime is a loop over its products."""


def factors(length: int) -> list[int]:
    """The factors of a length, one for each stage: twos (in pairs, as fours) before odd primes."""
    found: list[int] = []
    for candidate in (4, 2):
        while length % candidate == 0:
            found.append(candidate)
            length //= candidate
    found.sort()
    divisor = 3
    while divisor * divisor <= length:
        while length % divisor == 0:
            found.append(divisor)
            length //= divisor
        divisor += 2
    return [*found, length] if length > 1 or not found else found


class Transform:
    """A transform of one length and direction along a dimension that stands between others."""

    def __init__(self, shape: tuple[int, ...], along: int, length: int, kind: str, inverse: bool) -> None:
        """`shape` is the result's: along the signal so many elements as are wanted, from the first."""
        self.before, self.wanted, self.after = shape[:along], shape[along], shape[along + 1 :]
        self.along, self.length, self.kind, self.inverse = along, length, kind, inverse
        self.cosine, self.sine = (self._table(f, name) for f, name in ((te.cos, "cosines"), (te.sin, "sines")))

    def _table(self, function: Any, name: str) -> te.Tensor:
        step = te.const(2 * math.pi / self.length, "float64")
        return te.stage((self.length,), lambda i: function(i.astype("float64") * step).astype(self.kind), name)

    def root(self, turn: Expr) -> tuple[Expr, Expr]:
        """The root of unity of a number of steps, in the direction of the transform."""
        return self.cosine[turn], self.sine[turn] if self.inverse else -self.sine[turn]

    def run(self, read: Read, is_real: bool, complex_result: bool) -> tuple[te.Tensor, te.Tensor | None]:
        """The real and imaginary parts of the transform, or the real part alone; without the inverse's 1 / length.

        The factors of a real signal come in descending order: the last stage then adds and subtracts halves, so that
        what is zero by symmetry (the imaginary part in the middle of an even length) is exactly zero.
        """
        found = 1
        radices = factors(self.length)[:: -1 if is_real else 1]
        for number, radix in enumerate(radices):
            last = number + 1 == len(radices)
            rows = self.wanted if last else found * radix
            rest = self.length // (found * radix)
            parts = (0, 1) if complex_result or not last else (0,)
            make = self._written_out if radix <= LARGEST_WRITTEN_OUT else self._sums
            made = [make(read, part, radix, found, rows, rest) for part in parts]
            found *= radix
            if last:
                break
            read = self._turned(made, radix, found, rest)
        return self._flat(made[0]), self._flat(made[1]) if complex_result else None

    def _sums(self, read: Read, part: int, radix: int, found: int, rows: int, rest: int) -> te.Tensor:
        """One part of what a stage finds before its results are turned: sums of products with roots of the radix."""
        j = te.reduce_axis(radix, "j")
        count, step = len(self.before), self.length // radix

        def body(*at: Expr) -> Any:
            row, a = at[count], at[count + 1]
            output, block = row // found, row % found
            place = a + rest * (j.var + radix * block)
            real, imaginary = read((*at[:count], *at[count + 2 :]), place)
            cosine, sine = self.root((output * j.var) % radix * step)
            value = real * (cosine if part == 0 else sine)
            if imaginary is not None:
                value = value - imaginary * sine if part == 0 else value + imaginary * cosine
            return te.sum(value, axis=j)

        return te.stage((*self.before, rows, rest, *self.after), body, f"sums_{found}_{part}")

    def _written_out(self, read: Read, part: int, radix: int, found: int, rows: int, rest: int) -> te.Tensor:
        """The same for a small radix p: elements j and p - j have one cosine and opposite sines, so they are added
        and subtracted first, which halves the products and keeps what is symmetric exact."""
        count, step = len(self.before), self.length // radix

        def body(*at: Expr) -> Any:
            row, a = at[count], at[count + 1]
            output, block = row // found, row % found
            others = (*at[:count], *at[count + 2 :])

            def element(j: int) -> tuple[Expr | None, Expr | None]:
                """What the cosines multiply, and what the sines do."""
                real, imaginary = read(others, a + rest * (j + radix * block))
                return (real, imaginary) if part == 0 else (imaginary, real)

            level, turning = element(0)[0], None
            for j in range(1, (radix + 1) // 2):
                cosine, sine = self.root((output * j) % radix * step)
                (one, across), (other, opposite) = element(j), element(radix - j)
                level = _plus(level, None if one is None or other is None else cosine * (one + other))
                turning = _plus(turning, None if across is None or opposite is None else sine * (across - opposite))
            if radix % 2 == 0:
                middle = element(radix // 2)[0]
                level = _plus(level, None if middle is None else te.if_then_else(output % 2 < 1, middle, -middle))
            if level is None:
                return te.const(0.0, self.kind) if turning is None else turning
            if turning is None:
                return level
            return level - turning if part == 0 else level + turning

        return te.stage((*self.before, rows, rest, *self.after), body, f"sums_{found}_{part}")

    def _turned(self, sums: list[te.Tensor], radix: int, found: int, rest: int) -> Read:
        """How the next stage reads a stage: element `place` of the signal that is left, turned to where it belongs."""
        count, before = len(self.before), found // radix

        def turned(part: int) -> te.Tensor:
            def body(*at: Expr) -> Expr:
                row, a = at[count], at[count + 1]
                cosine, sine = self.root(a * (row // before) * before)
                real, imaginary = sums[0][at], sums[1][at]
                return real * cosine - imaginary * sine if part == 0 else real * sine + imaginary * cosine

            return te.stage((*self.before, found, rest, *self.after), body, f"turned_{found}_{part}")

        parts = (turned(0), turned(1))

        def read(others: tuple[Expr, ...], place: Expr) -> Parts:
            at = (*others[:count], place // rest, place % rest, *others[count:])
            return parts[0][at], parts[1][at]

        return read

    def _flat(self, sums: te.Tensor) -> te.Tensor:
        """The last stage without the dimension of one that is left of the signal."""
        count = len(self.before)
        zero = te.const(0, "int64")
        return te.stage(
            (*self.before, self.wanted, *self.after),
            lambda *at: sums[(*at[: count + 1], zero, *at[count + 1 :])],
            f"{sums.name}_flat",
        )


def _plus(sum_so_far: Expr | None, value: Expr | None) -> Expr | None:
    """A sum that may have no terms yet."""
    if value is None or sum_so_far is None:
        return sum_so_far if value is None else value
    # A machine that multiplies and adds in one step does so for the first product it meets: the new one, not the sum.
    return value + sum_so_far

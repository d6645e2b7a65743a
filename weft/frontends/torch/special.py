"""Converters of special functions: gamma functions, error functions, Bessel functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft.frontends import special
from weft.frontends.emit import Emitter
from weft.frontends.numbers import Numbers
from weft.frontends.torch.table import aten
from weft.graph.ir import Value


def _numbers(c: Emitter, x: Value, kind: str = "float32") -> Numbers:
    """x to compute with: in an element type, or in float64 where the result is that."""
    return Numbers(c, c.cast(x, "float64" if c.dtype == "float64" else kind))


def _function(compute: Callable[[Numbers], Numbers], kind: str = "float32") -> Any:
    return lambda c, x: compute(_numbers(c, x, kind)).value


def _digamma(x: Numbers) -> Numbers:
    return (-1 / x).choose(x("Equal", 0), special.digamma(x))


for _name, _compute, _kind in (
    ("erfc", special.erfc, "float32"), ("erfinv", special.erf_inv, "float32"), ("lgamma", special.lgamma, "float64"),
    ("digamma", _digamma, "float64"), ("i0", lambda x: special.i0e(x) * x("Abs")("Exp"), "float32"),
    ("special_i0e", special.i0e, "float32"),
    ("special_i1", lambda x: special.i1e(x) * x("Abs")("Exp"), "float32"), ("special_i1e", special.i1e, "float32"),
    ("special_ndtri", lambda x: special.erf_inv(x * 2 - 1) * math.sqrt(2), "float64"),
):  # fmt: skip
    aten(_name)(_function(_compute, _kind))


@aten("mvlgamma")
def _mvlgamma(c: Emitter, x: Value, p: int) -> Value:
    z = _numbers(c, x, "float64")
    made = special.lgamma(z) + p * (p - 1) / 4 * math.log(math.pi)
    for at in range(1, p):
        made = made + special.lgamma(z - at / 2)
    return made.value


@aten("polygamma")
def _polygamma(c: Emitter, order: int, x: Value) -> Value:
    """The derivatives of digamma: sums of powers, by Euler and Maclaurin's formula from the 20th term on."""
    z = _numbers(c, x, "float64")
    if order == 0:
        return _digamma(z).value
    s, terms = order + 1, 20
    total = _power(z, -s)
    for at in range(1, terms):
        total = total + _power(z + at, -s)
    end = z + terms
    total = total + _power(end, 1 - s) / (s - 1) + _power(end, -s) * 0.5
    factor = float(s)
    for at, bernoulli in enumerate((1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730), 1):
        total = total + _power(end, -s - 2 * at + 1) * (bernoulli * factor / math.factorial(2 * at))
        factor *= (s + 2 * at - 1) * (s + 2 * at)
    made: Numbers = total * ((-1) ** (order + 1) * math.factorial(order))
    return made.value


def _power(x: Numbers, exponent: int) -> Numbers:
    return x("Pow", float(exponent))

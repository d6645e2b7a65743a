"""pow of float32 over whole vectors: 2^(y * log2 |x|), the exponent in float64 so that no bit of the result is lost.

log2 comes from s = f / (2 + f) for |x| = (1 + f) * 2^e, as an odd polynomial in s whose error is 2^-34 of its value;
the product with y is at most 150, so that the result is within a unit in the last place. Signs, zeros, infinities and
NaN are as C has them.
"""

from __future__ import annotations

import math

from weft.codegen.llvm import types
from weft.codegen.llvm.context import Context
from weft.codegen.llvm.math import EXP2, ROUNDER_DOUBLE, Ops, defined

_ATANH = tuple(1 / (2 * n + 1) for n in range(6))
"""atanh(s) / s in s^2, for |s| <= 0.172."""
_FURTHEST = 200.0
"""Exponents beyond this give infinity or 0 as this one does."""
_VANISHED = -151.0


class _Wide(Ops):
    """Writes float64 instructions on the lanes of float32 ones."""

    element = "double"

    def of(self, x: str) -> str:
        """Float32 values, exactly."""
        return self.c.once(f"fpext {types.vector('float', self.lanes)} {x} to {self.float}")

    def narrow(self, x: str) -> str:
        """The nearest float32 values."""
        return self.c.once(f"fptrunc {self.float} {x} to {types.vector('float', self.lanes)}")


def _logarithm(o: Ops, w: _Wide, a: str) -> str:
    """log2 of a float32 that is not negative, in float64; that of NaN is any number."""
    tiny = o.op("fcmp olt", a, 2.0**-126)
    bits = o.bits(o.select(tiny, o.mul(a, 2.0**23), a))
    e = o.integer("ashr", o.integer("sub", bits, 0x3F3504F3), 23)
    f = w.of(o.sub(o.from_bits(o.integer("sub", bits, o.integer("shl", e, 23))), 1.0))
    whole = o.to_float(e)
    s = w.op("fdiv", f, w.op("fadd", f, 2.0))
    z = w.op("fmul", s, s)
    series = w.number(_ATANH[-1])
    for coefficient in reversed(_ATANH[:-1]):
        series = w.fma(series, z, coefficient)
    part = w.op("fmul", w.op("fmul", s, 2 / math.log(2.0)), series)
    made = w.op("fadd", part, w.of(o.select(tiny, o.sub(whole, 23.0), whole)))
    made = w.select(o.op("fcmp oeq", a, math.inf), math.inf, made)
    return w.select(o.op("fcmp oeq", a, 0.0), -math.inf, made)


def _two_to(o: Ops, w: _Wide, p: str) -> str:
    """2^p of a float64 as a float32."""
    p = w.select(w.op("fcmp ogt", p, _FURTHEST), _FURTHEST, p)
    p = w.select(w.op("fcmp olt", p, -_FURTHEST), -_FURTHEST, p)
    shifted = w.op("fadd", p, ROUNDER_DOUBLE)
    whole = w.op("fsub", shifted, ROUNDER_DOUBLE)
    r = w.narrow(w.op("fsub", p, whole))
    value = o.fma(r, o.polynomial(r, EXP2), 1.0)
    if o.whole:
        return o.scale_where(w.op("fcmp ugt", p, _VANISHED), value, w.narrow(whole))
    long = types.vector("i64", o.lanes)
    n = o.c.once(f"trunc {long} {o.c.once(f'bitcast {w.float} {shifted} to {long}')} to {o.int}")
    return o.scale(value, n)


def power(o: Ops, x: str, y: str) -> str:
    """x to the y."""
    c, w, a = o.c, _Wide(o.c, o.lanes), o.absolute(x)

    def both(first: str, second: str) -> str:
        return c.once(f"and {o.flag} {first}, {second}")

    p = w.op("fmul", w.of(y), _logarithm(o, w, a))
    # 1 to the power of an infinity is 1, and so is -1.
    p = w.select(both(o.op("fcmp oeq", a, 1.0), o.op("fcmp ord", y, 0.0)), 0.0, p)
    made = _two_to(o, w, p)
    half = o.mul(y, 0.5)
    is_whole = o.op("fcmp oeq", c.intrinsic("llvm.floor", o.float, y), y)
    is_odd = both(is_whole, o.op("fcmp une", c.intrinsic("llvm.floor", o.float, half), half))
    below = c.once(f"icmp slt {o.int} {o.bits(x)}, {types.splat('i32', '0', o.lanes)}")
    made = o.select(both(below, is_odd), c.once(f"fneg {o.float} {made}"), made)
    broken = both(o.op("fcmp olt", x, 0.0), o.op("fcmp one", c.intrinsic("llvm.floor", o.float, y), y))
    made = o.select(both(broken, o.op("fcmp one", a, math.inf)), o.number(math.nan), made)
    made = o.select(o.op("fcmp uno", x, 0.0), o.number(math.nan), made)
    return o.select(c.once(f"or {o.flag} {o.op('fcmp oeq', y, 0.0)}, {o.op('fcmp oeq', x, 1.0)}"), o.number(1.0), made)


def call_power(c: Context, x: str, y: str, lanes: int) -> str:
    """pow of two float32 vectors: an internal function, written once a module for each number of lanes."""
    return defined(c, "pow", lanes, (x, y), lambda inner: power(Ops(inner, lanes), "%x", "%y"))

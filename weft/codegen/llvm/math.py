"""Elementary functions of float32 as polynomials over whole vectors.

LLVM's own vector exp, log, … fall apart into one libm call a lane. Here each becomes an internal function
`@weft.exp.v16` written once a module for each lane count, which LLVM inlines. All but normal_cdf stay within 4 units in
the last place, over the whole range, with infinities, NaN, signed zeros and denormals as C has them (sigmoid gives 0
for what would be a denormal). Method: the argument is reduced (Cody and Waite: constants split so that products are
exact), then a polynomial whose coefficients were fitted for the least greatest error with float32 coefficients. Nothing
here needs a fused multiply-add to be accurate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from weft.codegen.llvm import types
from weft.codegen.llvm.context import Context, Module
from weft.core import model

_EXP = (0.5, 0.16666515171527863, 0.04166637733578682, 0.008369393646717072, 0.0013942922232672572)
"""(e^r - 1 - r) / r^2 for |r| <= log(2) / 2."""
_EXPM1 = (
    0.5,
    0.1666666716337204,
    0.041666481643915176,
    0.008333208039402962,
    0.0013933564769104123,
    0.00019944255473092198,
)
"""The same, accurate relative to e^r - 1."""
EXP2 = (
    0.6931471824645996, 0.24022650718688965, 0.05550406128168106, 0.009618084877729416, 0.0013336623087525368,
    0.00015453308878932148, 1.4690249372506514e-05,
)  # fmt: skip
"""(2^r - 1) / r for |r| <= 1/2."""
_EXP2_SHORT = (
    0.6931470036506653, 0.24022246897220612, 0.0555071122944355, 0.009671294130384922, 0.0013269406044855714,
)  # fmt: skip
"""The same within 2 units in the last place of 2^r."""
_LOG = (
    0.3333331048488617, -0.24999986588954926, 0.20002223551273346, -0.16669249534606934, 0.14218716323375702,
    -0.12384402006864548, 0.11872619390487671, -0.11789370328187943, 0.06915612518787384,
)  # fmt: skip
"""(log(1 + f) - f + f^2 / 2) / f^3 for 1 + f from sqrt(1/2) to sqrt(2)."""
_SIN = (-0.1666666716337204, 0.008333379402756691, -0.00019853028061334044, 2.831773826983408e-06)
"""(sin(r) / r - 1) / r^2 in r^2, for |r| <= pi / 4."""
_COS = (0.04166664555668831, -0.00138873013202101, 2.443066841806285e-05)
"""(cos(r) - 1 + r^2 / 2) / r^4 in r^2, for |r| <= pi / 4."""
_ERF = (
    0.12837916612625122, -0.3761262893676758, 0.11283624172210693, -0.026855595409870148, 0.005191993433982134,
    -0.0008044705609790981, 7.974843174451962e-05,
)  # fmt: skip
"""erf(x) / x - 1 in x^2, for |x| <= 0.9375."""
_ERFC = (
    5.364941120147705, 4.4181599617004395, 0.9237525463104248, 0.016478169709444046, -0.003556040581315756,
    0.0007226171437650919, -0.0001586683647474274, 1.2702987987722736e-05,
)  # fmt: skip
"""-log(erfc(2 + t)) for 2 + t from 0.9375 to 3.95, after which erf is 1."""
_NORMAL = (
    0.4348470866680145, 0.0372474230825901, 0.005116074811667204, 0.00018685936811380088, 6.881314220663626e-06,
    2.4186178393392765e-08,
)  # fmt: skip
_NORMAL_BELOW = (
    1.090000033378601, 0.2750316858291626, 0.03141380846500397, 0.002071177354082465, 8.083234570221975e-05,
    1.2838900147471577e-06,
)  # fmt: skip
"""(normal_cdf(x) - 1/2) / x as a quotient of two polynomials in x^2, for |x| <= 5.6, where it just passes 1/2 / x."""

_LOG2_E = float(np.float32(math.log2(math.e)))
_LOG2_E_LOW = math.log2(math.e) - _LOG2_E
_LN2_HIGH = 0.693145751953125
_LN2_LOW = math.log(2.0) - _LN2_HIGH
_LOG10_2_HIGH = 0.301025390625
_LOG10_2_LOW = math.log10(2.0) - _LOG10_2_HIGH
_HALF_PI_HIGH = 1.57079632673412561417
"""The first 33 bits of pi / 2: its products with whole numbers up to 2^20 are exact in float64."""
_HALF_PI_LOW = 6.07710050650619224932e-11
_NORMAL_LIMIT = 87.33654
"""e to minus this is the least normal number, nearly."""
_FAR = 1048576.0
"""Beyond this, sin and cos are left to libm."""
_ROUNDER = 12582912.0
"""1.5 * 2^23: adding it leaves the nearest whole number in the low bits of a float32."""
_ROUNDER_BITS = 0x4B400000
ROUNDER_DOUBLE = 6755399441055744.0
WHOLE = 16
"""The lanes of a whole AVX-512 register. Parts of one are computed as a whole, so that every lane gives the same."""


class Ops:
    """Writes float32 and int32 instructions on so many lanes."""

    element = "float"

    def __init__(self, c: Context, lanes: int) -> None:
        self.c, self.lanes = c, lanes
        self.float, self.int, self.flag = (types.vector(t, lanes) for t in (self.element, "i32", "i1"))
        self.fused = c.module.machine.has_fma
        self.one_minimum = c.module.machine.triple.startswith("aarch64")
        """Whether a minimum that keeps NaN is one instruction."""
        self.whole = lanes % WHOLE == 0 and "avx512f" in c.module.machine.features

    def number(self, value: float) -> str:
        """A literal in every lane."""
        return types.splat(self.element, types.float_literal(value, self.element), self.lanes)

    def op(self, name: str, a: str, b: str | float) -> str:
        """A float instruction of two operands: fadd, fmul, "fcmp olt"…"""
        return self.c.once(f"{name} {self.float} {a}, {b if isinstance(b, str) else self.number(b)}")

    def add(self, a: str, b: str | float) -> str:
        """a + b."""
        return self.op("fadd", a, b)

    def sub(self, a: str, b: str | float) -> str:
        """a - b."""
        return self.op("fsub", a, b)

    def mul(self, a: str, b: str | float) -> str:
        """a * b."""
        return self.op("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        """a / b."""
        return self.op("fdiv", a, b)

    def fma(self, a: str, b: str | float, z: str | float) -> str:
        """a * b + z, fused where the machine can."""
        b = b if isinstance(b, str) else self.number(b)
        z = z if isinstance(z, str) else self.number(z)
        return self.c.intrinsic("llvm.fma", self.float, a, b, z) if self.fused else self.add(self.mul(a, b), z)

    def integer(self, name: str, a: str, b: str | int) -> str:
        """An int32 instruction of two operands."""
        return self.c.once(
            f"{name} {self.int} {a}, {b if isinstance(b, str) else types.splat('i32', str(b), self.lanes)}"
        )

    def select(self, condition: str, a: str | float, b: str) -> str:
        """a where the condition holds, else b."""
        a = a if isinstance(a, str) else self.number(a)
        return self.c.once(f"select {self.flag} {condition}, {self.float} {a}, {self.float} {b}")

    def bits(self, a: str) -> str:
        """The bits of floats as integers."""
        return self.c.once(f"bitcast {self.float} {a} to {self.int}")

    def from_bits(self, a: str) -> str:
        """Floats from their bits."""
        return self.c.once(f"bitcast {self.int} {a} to {self.float}")

    def to_float(self, a: str) -> str:
        """Integers as floats."""
        return self.c.once(f"sitofp {self.int} {a} to {self.float}")

    def absolute(self, a: str) -> str:
        """|a|."""
        return self.c.intrinsic("llvm.fabs", self.float, a)

    def with_sign(self, a: str, sign: str) -> str:
        """|a| with the sign of another."""
        return self.c.intrinsic("llvm.copysign", self.float, a, sign)

    def at_most(self, a: str, limit: float) -> str:
        """min(a, limit); NaN stays."""
        if self.one_minimum:
            return self.c.intrinsic("llvm.minimum", self.float, a, self.number(limit))
        return self.select(self.op("fcmp ogt", a, limit), self.number(limit), a)

    def at_least(self, a: str, limit: float) -> str:
        """max(a, limit); NaN stays."""
        if self.one_minimum:
            return self.c.intrinsic("llvm.maximum", self.float, a, self.number(limit))
        return self.select(self.op("fcmp olt", a, limit), self.number(limit), a)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """The polynomial with these coefficients, the constant first (Horner)."""
        result = self.number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def power_of_two(self, n: str) -> str:
        """2^n for an integer n of the normal range."""
        return self.from_bits(self.integer("shl", self.integer("add", n, 127), 23))

    def inverse(self, b: str) -> str:
        """1 / b for b from 1 to 1e38, within two units in the last place.

        A whole register is inverted to 14 bits, and a step doubles them: a division would keep its port for sixteen
        cycles.
        """
        if not self.whole:
            return self.div(self.number(1.0), b)
        rough = self.registers("rcp14", [b, "zeroinitializer"], ["i16 -1"])
        return self.fma(rough, self.fma(self.c.once(f"fneg {self.float} {b}"), rough, 1.0), rough)

    def quotient(self, a: str, b: str, near_enough: bool = False) -> str:
        """a / b for b from 1 to 1e30, within a unit in the last place, or two where that is near enough."""
        if not self.whole:
            return self.div(a, b)
        inverse = self.inverse(b)
        near = self.mul(a, inverse)
        minus = self.c.once(f"fneg {self.float} {b}")
        return near if near_enough else self.fma(self.fma(minus, near, a), inverse, near)

    def scale(self, value: str, n: str) -> str:
        """value * 2^n in two steps, so that n may go beyond the range of one exponent."""
        first = self.integer("ashr", n, 1)
        return self.mul(self.mul(value, self.power_of_two(first)), self.power_of_two(self.integer("sub", n, first)))

    def scale_normal(self, value: str, whole: str, n: str) -> str:
        """value * 2^n, n given as a float and as an integer, where all of it is of the normal range."""
        if self.whole:
            return self.registers("mask.scalef", [value, whole, "zeroinitializer"], ["i16 -1", "i32 4"])
        return self.mul(value, self.power_of_two(n))

    def scale_where(self, condition: str, value: str, whole: str) -> str:
        """The same in one instruction of AVX-512, n given as a float; 0 where the condition does not hold."""
        return self.registers("mask.scalef", [value, whole, "zeroinitializer"], ["i32 4"], condition)

    def registers(self, name: str, vectors: Sequence[str], numbers: Sequence[str], flags: str = "") -> str:
        """An instruction of AVX-512 on whole registers, one after the other."""
        kind, made = f"<{WHOLE} x float>", []
        for first in range(0, self.lanes, WHOLE):
            arguments = [f"{kind} {self.c.part('float', v, self.lanes, first, WHOLE)}" for v in vectors]
            if flags:
                mask = self.c.part("i1", flags, self.lanes, first, WHOLE)
                arguments.append(f"i16 {self.c.once(f'bitcast <{WHOLE} x i1> {mask} to i16')}")
            made.append(self.c.call(kind, f"llvm.x86.avx512.{name}.ps.512", [*arguments, *numbers]))
        return self.c.joined("float", made, WHOLE)

    def nearest(self, x: str, factor: float) -> tuple[str, str]:
        """x * factor rounded to the nearest whole number, as a float and as an integer."""
        shifted = self.fma(x, factor, _ROUNDER)
        return self.sub(shifted, _ROUNDER), self.integer("sub", self.bits(shifted), _ROUNDER_BITS)


def _reduced(o: Ops, x: str) -> tuple[str, str, str]:
    """x = r + n * log(2): r, and n as a float and as an integer."""
    whole, n = o.nearest(x, 1 / math.log(2.0))
    return o.fma(whole, -_LN2_LOW, o.fma(whole, -_LN2_HIGH, x)), whole, n


def _without_vanishing(o: Ops, x: str, limit: float, power: Callable[[str], tuple[str, str, str]]) -> str:
    """A power of x that is 0 from a limit downwards: not computed there. `power` gives v, n and n, for v * 2^n.

    A product that rounds to 0 costs a processor more than a hundred cycles, and masked scores are all of that kind.
    """
    if o.whole:
        value, whole, _ = power(x)
        return o.scale_where(o.op("fcmp ugt", x, limit), value, whole)
    gone, zero = o.op("fcmp ole", x, limit), o.number(0.0)
    value, _, n = power(o.select(gone, zero, x))
    return o.select(gone, zero, o.scale(value, n))


def _exp_of_rest(o: Ops, r: str) -> str:
    """e^r for |r| <= log(2) / 2."""
    return o.add(o.fma(o.mul(r, r), o.polynomial(r, _EXP), r), 1.0)


def _exp(o: Ops, x: str) -> str:
    def power(x: str) -> tuple[str, str, str]:
        r, whole, n = _reduced(o, x)
        return _exp_of_rest(o, r), whole, n

    return _without_vanishing(o, o.at_most(x, 89.0), -104.0, power)


def _exp2(o: Ops, x: str) -> str:
    def power(x: str) -> tuple[str, str, str]:
        whole, n = o.nearest(x, 1.0)
        r = o.sub(x, whole)
        return o.fma(r, o.polynomial(r, EXP2), 1.0), whole, n

    return _without_vanishing(o, o.at_most(x, 129.0), -151.0, power)


def _half_expm1(o: Ops, x: str) -> tuple[str, str, str]:
    """Half of e^x - 1, as 2^(n-1) * (e^r - 1) + (2^(n-1) - 1/2), which does not overflow; e^r - 1, and n."""
    r, _, n = _reduced(o, x)
    p = o.fma(o.mul(r, r), o.polynomial(r, _EXPM1), r)
    half = o.power_of_two(o.integer("sub", n, 1))
    return o.fma(p, half, o.sub(half, 0.5)), p, n


def _expm1(o: Ops, x: str) -> str:
    half, p, n = _half_expm1(o, o.at_least(o.at_most(x, 89.0), -18.0))
    near = o.c.once(f"icmp eq {o.int} {n}, {types.splat('i32', '0', o.lanes)}")
    return o.select(near, o.select(o.op("fcmp oeq", x, 0.0), x, p), o.mul(half, 2.0))


def _logarithm_parts(o: Ops, x: str) -> tuple[str, str, str]:
    """x = (1 + f) * 2^e: f, log(1 + f) - f, and e as a float. For positive finite x."""
    tiny = o.op("fcmp olt", x, 2.0**-126)
    bits = o.bits(o.select(tiny, o.mul(x, 2.0**23), x))
    e = o.integer("ashr", o.integer("sub", bits, 0x3F3504F3), 23)
    f = o.sub(o.from_bits(o.integer("sub", bits, o.integer("shl", e, 23))), 1.0)
    square = o.mul(f, f)
    rest = o.fma(o.mul(square, f), o.polynomial(f, _LOG), o.mul(square, -0.5))
    e = o.to_float(e)
    return f, rest, o.select(tiny, o.sub(e, 23.0), e)


def _logarithm_edges(o: Ops, x: str, result: str) -> str:
    """What a logarithm gives outside the positive numbers: -inf at 0, NaN below, inf at inf."""
    result = o.select(o.op("fcmp oeq", x, math.inf), x, result)
    result = o.select(o.op("fcmp oeq", x, 0.0), o.number(-math.inf), result)
    return o.select(o.op("fcmp ult", x, 0.0), o.number(math.nan), result)


def _log_of_normal(o: Ops, x: str) -> str:
    f, rest, e = _logarithm_parts(o, x)
    return o.fma(e, _LN2_HIGH, o.add(f, o.fma(e, _LN2_LOW, rest)))


def _log(o: Ops, x: str) -> str:
    return _logarithm_edges(o, x, _log_of_normal(o, x))


def _log2(o: Ops, x: str) -> str:
    f, rest, e = _logarithm_parts(o, x)
    return _logarithm_edges(o, x, o.fma(o.add(f, rest), 1 / math.log(2.0), e))


def _log10(o: Ops, x: str) -> str:
    f, rest, e = _logarithm_parts(o, x)
    small = o.fma(e, _LOG10_2_LOW, o.mul(o.add(f, rest), 1 / math.log(10.0)))
    return _logarithm_edges(o, x, o.fma(e, _LOG10_2_HIGH, small))


def _log1p(o: Ops, x: str) -> str:
    """log(u) for u = 1 + x rounded, plus what the rounding lost, divided by u."""
    u = o.add(x, 1.0)
    lost = o.div(o.sub(x, o.sub(u, 1.0)), u)
    result = _logarithm_edges(o, u, o.add(_log_of_normal(o, u), lost))
    result = o.select(o.op("fcmp olt", o.absolute(x), 2.0**-25), x, result)
    return result


def _tanh(o: Ops, x: str) -> str:
    half = _half_expm1(o, o.mul(o.at_most(o.absolute(x), 10.0), 2.0))[0]
    return o.with_sign(o.quotient(half, o.add(half, 1.0)), x)


def _sigmoid(o: Ops, x: str) -> str:
    """1 / (1 + e^-x); 0 where that is below the least normal number, so that nothing on the way is either."""
    gone = o.op("fcmp olt", x, -_NORMAL_LIMIT)
    x = o.at_least(o.at_most(x, _NORMAL_LIMIT), -_NORMAL_LIMIT)
    if o.fused:
        whole, n = o.nearest(x, -_LOG2_E)
        r = o.fma(x, -_LOG2_E_LOW, o.fma(x, -_LOG2_E, o.c.once(f"fneg {o.float} {whole}")))
        power = o.fma(r, o.polynomial(r, _EXP2_SHORT), 1.0)
    else:
        r, whole, n = _reduced(o, o.c.once(f"fneg {o.float} {x}"))
        power = _exp_of_rest(o, r)
    return o.select(gone, o.number(0.0), o.inverse(o.add(o.scale_normal(power, whole, n), 1.0)))


def _erf(o: Ops, x: str) -> str:
    a = o.absolute(x)
    near = o.fma(x, o.polynomial(o.mul(x, x), _ERF), x)
    exponent = o.polynomial(o.sub(o.at_most(a, 3.95), 2.0), _ERFC)
    # 1 - 2^n * e^r: n is small, so that nothing of what exp does at the ends of its range is needed.
    r, _, n = _reduced(o, o.c.once(f"fneg {o.float} {exponent}"))
    minus = o.from_bits(o.integer("shl", o.integer("add", n, 127 + 256), 23))  # -2^n: 256 becomes the sign
    far = o.fma(_exp_of_rest(o, r), minus, 1.0)
    return o.select(o.op("fcmp ole", a, 0.9375), near, o.with_sign(far, x))


def _normal_cdf(o: Ops, x: str) -> str:
    """Within 3e-7, which is what is left of it in a sum; exactly 0 below -5.6."""
    near = o.at_least(o.at_most(x, 5.6), -5.6)
    square = o.mul(near, near)
    slope = o.quotient(o.polynomial(square, _NORMAL), o.polynomial(square, _NORMAL_BELOW), near_enough=True)
    return o.at_least(o.fma(slope, near, 0.5), 0.0)


def _circular(o: Ops, x: str, quarter: int) -> str:
    """sin(x + quarter * pi / 2), the reduction by multiples of pi / 2 done in float64. For |x| <= 2^20."""
    c, lanes = o.c, o.lanes
    double, long = types.vector("double", lanes), types.vector("i64", lanes)

    def wide(value: float) -> str:
        return types.splat("double", types.float_literal(value, "double"), lanes)

    d = c.once(f"fpext {o.float} {x} to {double}")
    turns = c.once(f"fmul {double} {d}, {wide(2 / math.pi)}")
    shifted = c.once(f"fadd {double} {turns}, {wide(ROUNDER_DOUBLE)}")
    whole = c.once(f"fsub {double} {shifted}, {wide(ROUNDER_DOUBLE)}")
    for part in (_HALF_PI_HIGH, _HALF_PI_LOW):
        d = c.once(f"fsub {double} {d}, {c.once(f'fmul {double} {whole}, {wide(part)}')}")
    n = c.once(f"trunc {long} {c.once(f'bitcast {double} {shifted} to {long}')} to {o.int}")
    n = o.integer("add", n, quarter) if quarter else n
    r = c.once(f"fptrunc {double} {d} to {o.float}")
    z = o.mul(r, r)
    sine = o.with_sign(o.fma(o.mul(r, z), o.polynomial(z, _SIN), r), r)  # the sum loses the sign of -0
    cosine = o.fma(o.mul(z, z), o.polynomial(z, _COS), o.fma(z, -0.5, 1.0))
    odd = c.once(f"icmp ne {o.int} {o.integer('and', n, 1)}, {types.splat('i32', '0', lanes)}")
    sign = o.integer("shl", o.integer("and", n, 2), 30)
    return o.from_bits(o.integer("xor", o.bits(o.select(odd, cosine, sine)), sign))


def _circular_or_libm(name: str, quarter: int) -> Callable[[Ops, str], str]:
    def make(o: Ops, x: str) -> str:
        c = o.c
        near = _circular(o, x, quarter)
        beyond = some = o.op("fcmp ogt", o.absolute(x), _FAR)
        if o.lanes > 1:
            some = c.call("i1", f"llvm.vector.reduce.or.v{o.lanes}i1", [f"{o.flag} {beyond}"])

        def far() -> str:
            return o.select(beyond, lanewise(c, f"{name}f", "float", o.lanes, [x]), near)

        return c.guarded(some, o.float, far, lambda: near)

    return make


def lanewise(c: Context, name: str, element: str, lanes: int, arguments: Sequence[str]) -> str:
    """A C function of scalars called once for each lane."""
    if lanes == 1:
        return c.call(element, name, [f"{element} {a}" for a in arguments])
    kind, result = types.vector(element, lanes), "poison"
    for lane in range(lanes):
        scalars = [f"{element} {c.once(f'extractelement {kind} {a}, i64 {lane}')}" for a in arguments]
        result = c.once(f"insertelement {kind} {result}, {element} {c.call(element, name, scalars)}, i64 {lane}")
    return result


FUNCTIONS: dict[str, Callable[[Ops, str], str]] = {
    "exp": _exp, "exp2": _exp2, "expm1": _expm1, "log": _log, "log2": _log2, "log10": _log10, "log1p": _log1p,
    "tanh": _tanh, "sigmoid": _sigmoid, "erf": _erf, "normal_cdf": _normal_cdf,
    "sin": _circular_or_libm("sin", 0), "cos": _circular_or_libm("cos", 1),
}  # fmt: skip


CHAINS = frozenset(FUNCTIONS) - {"sin", "cos"}
"""Functions without branches."""
AS_VECTORS = {"normal_cdf"}
"""Functions that divide otherwise in a whole register: of one number too, so that each lane gives the same."""


def defined(c: Context, name: str, lanes: int, values: Sequence[str], make: Callable[[Context], str]) -> str:
    """A function of %x (and %y) applied to float32 values: an internal one, written once for each number of lanes."""
    symbol, kind = f"weft.{name}.v{lanes}", types.vector("float", lanes)
    if symbol not in c.module.helpers:
        c.module.helpers.add(symbol)
        inner = Context(c.module)
        inner.line(f"ret {kind} {make(inner)}")
        parameters = ", ".join(f"{kind} {parameter}" for parameter in ("%x", "%y")[: len(values)])
        c.module.functions.append(inner.text(f"define internal {kind} @{symbol}({parameters}) alwaysinline nounwind"))
    return c.once(f"call {kind} @{symbol}({', '.join(f'{kind} {value}' for value in values)})")


def call(c: Context, name: str, x: str, lanes: int) -> str:
    """One of FUNCTIONS applied to a float32 value of so many lanes."""
    if lanes == 1 and name in AS_VECTORS and "avx512f" in c.module.machine.features:
        filled = c.once(f"insertelement <{WHOLE} x float> zeroinitializer, float {x}, i64 0")
        return c.once(f"extractelement <{WHOLE} x float> {call(c, name, filled, WHOLE)}, i64 0")
    if 1 < lanes < WHOLE and "avx512f" in c.module.machine.features:
        more = [min(lane, lanes - 1) for lane in range(WHOLE)]
        filled = c.shuffle(types.vector("float", lanes), x, "poison", more)
        return c.part("float", call(c, name, filled, WHOLE), WHOLE, 0, lanes)
    return defined(c, name, lanes, (x,), lambda inner: FUNCTIONS[name](Ops(inner, lanes), "%x"))


def keep_called(module: Module) -> None:
    """Has functions of four registers that a program calls often stay functions.

    Their copies, of 150 instructions each, would be most of its code; a call has the registers of a tile put aside.
    """
    for at, text in enumerate(module.functions):
        found = _WIDE.match(text)
        if found is None or int(found[1]) < module.machine.vector_bytes:
            continue
        if sum(one.count(f" @{found[2]}(") for one in module.functions) > model.FEW_CALLS:
            module.functions[at] = text.replace("alwaysinline", "noinline", 1)


_WIDE = re.compile(r"define internal <(\d+) x float> @(\S+?)\(.*alwaysinline")

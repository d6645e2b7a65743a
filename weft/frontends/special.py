"""Special functions in Weft's operators: error functions, gamma functions, Bessel functions.

Coefficients are the usual published ones: Numerical Recipes (erfc), Giles (the inverse of erf), Lanczos (gamma), Cephes
(Bessel).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft.frontends.numbers import Numbers

_ERFC = (
    -1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
    0.17087277,
)  # fmt: skip
_GILES_NEAR = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_GILES_FAR = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
_LANCZOS = (
    676.520368121885098567, -1259.139216722402870471, 771.323428777653078848, -176.615029162140599065,
    12.507343278686904814, -0.138571095265720116, 9.984369578019570859e-6, 1.505632735149311558e-7,
)  # fmt: skip
_I1E_NEAR = (
    9.38153738649577178388e-9, -4.44505912879632808065e-8, 2.00329475355213526229e-7, -8.56872026469545474066e-7,
    3.47025130813767847674e-6, -1.32731636560394358279e-5, 4.78156510755005422638e-5, -1.61760815825896745588e-4,
    5.12285956168575772895e-4, -1.51357245063125314899e-3, 4.15642294431288815669e-3, -1.05640848946261981558e-2,
    2.47264490306265168283e-2, -5.29459812080949914269e-2, 1.02643658689847095384e-1, -1.76416518357834055153e-1,
    2.52587186443633654823e-1,
)  # fmt: skip
_I1E_FAR = (
    -3.83538038596423702205e-9, -2.63146884688951950684e-8, -2.51223623787020892529e-7, -3.88256480887769039346e-6,
    -1.10588938762623716291e-4, -9.76109749136146840777e-3, 7.78576235018280120474e-1,
)  # fmt: skip


_I0E_NEAR = (
    -1.30002500998624804212e-8, 6.04699502254191894932e-8, -2.67079385394061173391e-7, 1.11738753912010371815e-6,
    -4.41673835845875056359e-6, 1.64484480707288970893e-5, -5.75419501008210370398e-5, 1.88502885095841655729e-4,
    -5.76375574538582365885e-4, 1.63947561694133579842e-3, -4.32430999505057594430e-3, 1.05464603945949983183e-2,
    -2.37374148058994688156e-2, 4.93052842396707084878e-2, -9.49010970480476444210e-2, 1.71620901522208775349e-1,
    -3.04682672343198398683e-1, 6.76795274409476084995e-1,
)  # fmt: skip
_I0E_FAR = (
    3.39623202570838634515e-9, 2.26666899049817806459e-8, 2.04891858946906374183e-7, 2.89137052083475648297e-6,
    6.88975834691682398426e-5, 3.36911647825569408990e-3, 8.04490411014108831608e-1,
)  # fmt: skip


def horner(x: Numbers, coefficients: Sequence[float]) -> Numbers:
    """A polynomial, the highest power first."""
    made: Any = coefficients[0]
    for one in coefficients[1:]:
        made = x * made + one
    return made  # type: ignore[no-any-return]


def erfc(x: Numbers) -> Numbers:
    """1 - erf(x), exact where that is small."""
    plain = 1 - x("Erf")
    if x.value.tensor.dtype == "float64":
        return plain
    size = x("Abs")
    t = 1 / (1 + size * 0.5)
    tail = t * (horner(t, _ERFC[::-1]) - size * size)("Exp")
    tail = (2 - tail).choose(x("Less", 0), tail)
    return plain.choose(size("Less", 0.5), tail)


def erf_inv(x: Numbers) -> Numbers:
    """The inverse of erf."""
    w = ((1 - x) * (1 + x))("Log")("Neg")
    near = w("Less", 5)
    made = horner(w - 2.5, _GILES_NEAR).choose(near, horner(w("Max", 5)("Sqrt") - 3, _GILES_FAR)) * x
    if x.value.tensor.dtype == "float64":
        for _ in range(2):
            made = made - (made("Erf") - x) / ((made * made)("Neg")("Exp") * (2 / math.sqrt(math.pi)))
    return (x * math.inf).choose(x("Abs")("Equal", 1), made)


def _lanczos(x: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Whether the reflection is needed, and z, t and log t of Lanczos' formula."""
    reflected = x("Less", 0.5)
    z = x("Neg").choose(reflected, x - 1)
    t = z + 7.5
    return reflected, z, t, t("Log")


def lgamma(x: Numbers) -> Numbers:
    """log |gamma(x)|."""
    reflected, z, t, log_t = _lanczos(x)
    total: Any = 0.99999999999980993
    for at, one in enumerate(_LANCZOS):
        total = one / (z + (at + 1)) + total
    log_y = (z + 0.5 - t / log_t) * log_t + total("Log") + 0.5 * math.log(2 * math.pi)
    size = x("Abs")
    rest = size - size("Floor")
    rest = (1 - rest).choose(rest("Greater", 0.5), rest)
    sine = (rest * math.pi)("Sin")("Log")
    turned = sine("Neg").choose(sine("IsInf"), math.log(math.pi) - sine - log_y)
    return size.choose(size("IsInf"), turned.choose(reflected, log_y))


def digamma(x: Numbers) -> Numbers:
    """The derivative of lgamma."""
    reflected, z, t, log_t = _lanczos(x)
    above: Any = 0.0
    below: Any = 0.99999999999980993
    for at, one in enumerate(_LANCZOS):
        shifted = z + (at + 1)
        above = (-one) / (shifted * shifted) + above
        below = one / shifted + below
    y = log_t + above / below - 7.0 / t
    near = x + (x + 0.5)("Floor")("Abs")
    turned = y - (near * math.pi)("Cos") * math.pi / (near * math.pi)("Sin")
    made = turned.choose(reflected, y)
    whole = x("LessOrEqual", 0)("And", x("Equal", x("Floor")))
    return (x * math.nan).choose(whole, made)


def chebyshev(x: Numbers, coefficients: Sequence[float]) -> Numbers:
    """A sum of Chebyshev polynomials."""
    b0, b1, b2 = x * 0, x * 0, x * 0
    for one in coefficients:
        b2, b1 = b1, b0
        b0 = x * b1 - b2 + one
    return (b0 - b2) * 0.5


def i1e(x: Numbers) -> Numbers:
    """The modified Bessel function of order 1, times exp(-|x|)."""
    size = x("Abs")
    near = chebyshev(size * 0.5 - 2, _I1E_NEAR) * size
    far = chebyshev(32 / size("Max", 1) - 2, _I1E_FAR) / size("Max", 1)("Sqrt")
    return near.choose(size("LessOrEqual", 8), far) * x("Sign")


def i0e(x: Numbers) -> Numbers:
    """The modified Bessel function of order 0, times exp(-|x|)."""
    size = x("Abs")
    near = chebyshev(size * 0.5 - 2, _I0E_NEAR)
    far = chebyshev(32 / size("Max", 1) - 2, _I0E_FAR) / size("Max", 1)("Sqrt")
    return near.choose(size("LessOrEqual", 8), far)

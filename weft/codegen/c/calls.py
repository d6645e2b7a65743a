"""Calls: the pure intrinsics of `weft.expr.intrinsics`, a target's own intrinsics, and external C functions."""

from __future__ import annotations

from weft.codegen.c import types
from weft.codegen.c.context import Context, Handler, bare
from weft.codegen.c.expressions import from_bits, rounded, to_bits
from weft.core.dtypes import DType
from weft.core.errors import TargetError
from weft.expr.float8 import spelled_out
from weft.expr.intrinsics import FLOAT8_FORMS, REPORT
from weft.expr.nodes import Call, Const, Expr, Var
from weft.runtime.faults import OUTSIDE

_MATH = {
    **{name: name for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "floor", "ceil", "trunc", "pow", "atan2", "fmod",
        "copysign", "fma",
    )},
    "round": "rint", "round_away": "round",
}  # fmt: skip
"""Functions of the math library by the names of the intrinsics."""
_BITWISE = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}


def _float_type(e: Call) -> DType:
    dtype = e.args[0].dtype.scalar
    if not dtype.is_float:
        raise TargetError(f"{e.name} is defined on floats, not on {dtype}: cast the argument first ({e!r})")
    return dtype


def _arguments(c: Context, e: Call) -> list[tuple[str, ...]]:
    """The texts of the arguments, for each lane."""
    return list(zip(*(c.lanes(argument) for argument in e.args)))


def math_name(c: Context, name: str, dtype: DType) -> str:
    """A function of the math library for a float dtype."""
    return name if dtype.bits == 64 else name + c.dialect.float_suffix


_LOG = "1.4426950408889634f"
_LOGIT = (2.30220736, 0.104838191, -9.52933300e-5, -1.59485761e-4, 1.14668101e-5, -3.86020786e-7, 5.23397907e-9)
"""Factors of powers of x²: of the normal distribution below x, log2(p / (1 - p)) / x for x² up to 31.4.

Fitted to math.erfc by least squares, weighed until the greatest error of x · p was least: 7e-8."""


def _horner(factors: tuple[float, ...], variable: str) -> str:
    text = f"{factors[-1]!r}f"
    for factor in reversed(factors[:-1]):
        text = f"fmaf({text}, {variable}, {factor!r}f)"
    return text


_QUICK = {
    "exp2": 'float y;\n  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));\n  return y;',
    "exp": f"return weft_quick_exp2(x * {_LOG});",
    "sigmoid": f"return __fdividef(1.0f, 1.0f + weft_quick_exp2(x * -{_LOG}));",
    "tanh": f"return 1.0f - __fdividef(2.0f, 1.0f + weft_quick_exp2(x * (2.0f * {_LOG})));",
    "normal_cdf": f"""const float square = fminf(x * x, 31.4f);
  return __fdividef(1.0f, 1.0f + weft_quick_exp2(-x * {_horner(_LOGIT, "square")}));""",
}
"""Functions of numbers that become 16 bits, by CUDA's own instructions: 3 to 12 where the library takes 8 to 30.

They are off by 1e-6 of their scale at most, where the result is off by 5e-4; below 1e-37 they give 0."""


def quick(c: Context, name: str, text: str) -> str:
    """A function by the instructions of CUDA."""
    for needed in ("exp2", name):
        c.helper(f"weft_quick_{needed}", f"DEVICE float weft_quick_{needed}(float x) {{\n  {_QUICK[needed]}\n}}")
    return f"weft_quick_{name}({bare(text)})"


def _quickly(handler: Handler) -> Handler:
    """The quick form of a function where a number of 16 bits is made of it."""

    def emit(c: Context, e: Call) -> list[str]:
        if not c.is_rounded or c.dialect.name != "cuda" or e.dtype.scalar.bits == 64:
            return handler(c, e)
        dtype = _float_type(e)
        return [rounded(quick(c, e.name, text), dtype) for text in c.lanes(e.args[0])]

    return emit


def _library(c: Context, e: Call) -> list[str]:
    dtype = _float_type(e)
    function = math_name(c, _MATH[e.name], dtype)
    return [rounded(f"{function}({', '.join(map(bare, texts))})", dtype) for texts in _arguments(c, e)]


def _power(c: Context, e: Call) -> list[str]:
    """pow; constant exponents of which a product or quotient does the same need no call."""
    dtype, exponent = _float_type(e), e.args[1]
    if isinstance(exponent, Const) and exponent.value in (1.0, -1.0):
        one = "1.0" if dtype.bits == 64 else "1.0f"
        return [text if exponent.value == 1.0 else rounded(f"({one} / {text})", dtype) for text in c.lanes(e.args[0])]
    return _library(c, e)


def _reciprocal_root(c: Context, e: Call) -> list[str]:
    dtype = _float_type(e)
    if c.dialect.name == "cuda":
        return [rounded(f"{math_name(c, 'rsqrt', dtype)}({bare(text)})", dtype) for text in c.lanes(e.args[0])]
    one, root = "1.0" if dtype.bits == 64 else "1.0f", math_name(c, "sqrt", dtype)
    return [rounded(f"({one} / {root}({bare(text)}))", dtype) for text in c.lanes(e.args[0])]


def _sigmoid(c: Context, e: Call) -> list[str]:
    dtype = _float_type(e)
    one, power = "1.0" if dtype.bits == 64 else "1.0f", math_name(c, "exp", dtype)
    return [rounded(f"({one} / ({one} + {power}(-{text})))", dtype) for text in c.lanes(e.args[0])]


_TAIL = (0.11962929, 0.12075409, 0.09991269, 0.12856434, -0.05368892, 0.20635939, -0.15720659, 0.03567564)
"""Of the normal distribution beyond z, over exp(-z² / 2): t · Σ cᵢ tⁱ with t = 1 / (1 + 0.3 z).

Fitted to SciPy's erfcx on [0, 14] by least squares, weighed until the greatest error was least. Computed in float32 it
is off by 5e-7 at most."""


def _normal_cdf(c: Context, e: Call) -> list[str]:
    """Where threads part, the library's erfc takes both of its ways: on CUDA a tail of one way, half as long."""
    dtype = _float_type(e)
    if c.dialect.name == "cuda" and dtype.bits < 64:
        terms = _horner(_TAIL, "t")
        c.helper(
            "weft_normal_cdf",
            f"""DEVICE float weft_normal_cdf(float x) {{
  const float z = fabsf(x), square = z * z, t = __fdividef(1.0f, fmaf(0.3f, z, 1.0f));
  const float power = expf(-0.5f * square) * fmaf(-0.5f, fmaf(z, z, -square), 1.0f);
  const float tail = z < 14.5f ? power * t * {terms} : z != z ? z : 0.0f;
  return x > 0.0f ? 1.0f - tail : tail;
}}""",
        )
        return [rounded(f"weft_normal_cdf({bare(text)})", dtype) for text in c.lanes(e.args[0])]
    name, end = math_name(c, "erfc", dtype), "" if dtype.bits == 64 else "f"
    made = f"(0.5{end} * {name}(%s * {-(0.5**0.5)!r}{end}))"
    return [rounded(made % text, dtype) for text in c.lanes(e.args[0])]


def _negative(c: Context, e: Call) -> list[str]:
    if e.dtype.is_float:
        return [f"(-{text})" for text in c.lanes(e.args[0])]
    kind, wide = types.register_type(e.dtype), types.wrapping_type(e.dtype)
    return [f"({kind})(0 - ({wide}){text})" for text in c.lanes(e.args[0])]


def _absolute(c: Context, e: Call) -> list[str]:
    dtype = e.dtype.scalar
    if dtype.is_float:
        return [f"{math_name(c, 'fabs', dtype)}({bare(text)})" for text in c.lanes(e.args[0])]
    if not dtype.is_signed:
        return c.lanes(e.args[0])
    return [f"weft_abs_{types.register_type(dtype)}({bare(text)})" for text in c.lanes(e.args[0])]


def _classify(c: Context, e: Call) -> list[str]:
    """isnan, isinf, isfinite, by comparisons: some compilers take isnan() for something else."""
    dtype = e.args[0].dtype.scalar
    texts = c.lanes(e.args[0])
    if not dtype.is_float:
        return ["true" if e.name == "isfinite" else "false"] * len(texts)
    kind, infinity = types.register_type(dtype), c.dialect.infinity[dtype.bits == 64]
    texts = [c.temporary(kind, text) for text in texts]
    if e.name == "isnan":
        return [f"({text} != {text})" for text in texts]
    size = math_name(c, "fabs", dtype)
    return [f"({size}({bare(text)}) {'==' if e.name == 'isinf' else '<'} {infinity})" for text in texts]


def _floor_fmod(c: Context, e: Call) -> list[str]:
    dtype = _float_type(e)
    name = f"weft_floor_fmod_{types.register_type(dtype)}"
    return [rounded(f"{name}({bare(a)}, {bare(b)})", dtype) for a, b in _arguments(c, e)]


def _bitwise(c: Context, e: Call) -> list[str]:
    kind = types.register_type(e.dtype)
    return [f"({kind})({a} {_BITWISE[e.name]} {b})" for a, b in _arguments(c, e)]


def _bit_not(c: Context, e: Call) -> list[str]:
    if e.dtype.is_bool:
        return [f"(!{text})" for text in c.lanes(e.args[0])]
    kind = types.register_type(e.dtype)
    return [f"({kind})(~{text})" for text in c.lanes(e.args[0])]


def _shift(c: Context, e: Call) -> list[str]:
    kind = types.register_type(e.dtype)
    return [f"weft_{e.name}_{kind}({bare(a)}, {bare(b)})" for a, b in _arguments(c, e)]


def _count_bits(c: Context, e: Call) -> list[str]:
    kind, bits = types.register_type(e.dtype), e.dtype.bits
    texts = [f"(uint64_t)(uint{bits}_t){text}" for text in c.lanes(e.args[0])]
    if e.name == "popcount":
        return [f"({kind})weft_popcount64({text})" for text in texts]
    return [f"({kind})(weft_leading_zeros64({text}) - {64 - bits})" for text in texts]


def _reinterpret(c: Context, e: Call) -> list[str]:
    source, to = e.args[0].dtype, e.dtype
    if source.bits * source.lanes != to.bits * to.lanes or source.is_bool or to.is_bool:
        raise TargetError(f"reinterpret of {source} as {to}: the sizes differ ({e!r})")
    bits = [to_bits(text, source.scalar) for text in c.lanes(e.args[0])]
    if to.bits < source.bits:
        count = source.bits // to.bits
        bits = [c.temporary(f"uint{source.bits}_t", text) for text in bits]
        bits = [f"(uint{to.bits}_t)({text} >> {part * to.bits})" for text in bits for part in range(count)]
    elif to.bits > source.bits:
        count, wide = to.bits // source.bits, f"uint{to.bits}_t"
        groups = [bits[first : first + count] for first in range(0, len(bits), count)]
        bits = [
            "(" + " | ".join(f"(({wide}){text} << {part * source.bits})" for part, text in enumerate(group)) + ")"
            for group in groups
        ]
    return [from_bits(text, to.scalar) for text in bits]


def _float8(c: Context, e: Call) -> list[str]:
    given = Var("float8", e.args[0].dtype)
    kind = types.register_type(given.dtype.scalar)
    c.variable_lanes[given] = [c.temporary(kind, text) for text in c.lanes(e.args[0])]
    return c.lanes(spelled_out(Call(e.name, (given,), e.dtype)))


_PURE: dict[str, Handler] = {
    **dict.fromkeys(_MATH, _library), **dict.fromkeys(_BITWISE, _bitwise),
    "pow": _power, "rsqrt": _reciprocal_root, "sigmoid": _sigmoid, "normal_cdf": _normal_cdf,
    "neg": _negative, "abs": _absolute,
    "isnan": _classify, "isinf": _classify, "isfinite": _classify, "floor_fmod": _floor_fmod, "bit_not": _bit_not,
    "shift_left": _shift, "shift_right": _shift, "popcount": _count_bits, "clz": _count_bits,
    "reinterpret": _reinterpret,
    **{f"{way}_{name}": _float8 for way in ("from", "to") for name in FLOAT8_FORMS},
}  # fmt: skip
_PURE.update({name: _quickly(_PURE[name]) for name in _QUICK})


def _interleave(c: Context, e: Call) -> list[str]:
    """The lanes of several vectors in turn: x0 y0 x1 y1 …"""
    return [text for texts in _arguments(c, e) for text in texts]


def _barrier(c: Context, e: Call) -> list[str]:
    if not c.dialect.barrier:
        raise TargetError("a barrier stands in a program for one thread")
    c.line(f"{c.dialect.barrier};")
    return [""]


def _prefetch(c: Context, e: Call) -> list[str]:
    """Devices with many threads hide the latency of memory by the other threads; nothing is fetched ahead."""
    return [""]


def _report(c: Context, e: Call) -> list[str]:
    """Notes that something is wrong where the argument (any lane of it) holds: in the program's last parameter, or, in
    plain C, as the code that the function gives.
    """
    if len(e.args) == 1:
        c.line(f"if ({' || '.join(c.lanes(e.args[0]))}) code = {OUTSIDE};")
        return [""]
    c.line(f"if ({' || '.join(c.lanes(e.args[0]))}) {c.pointer(e.args[1])}[0] = 1;")
    return [""]


def _turn(c: Context, e: Call) -> list[str]:
    """A program in C always runs forwards: nobody counts its calls."""
    return ["0"]


def _external(c: Context, e: Call) -> list[str]:
    name = e.name.split(":", 1)[1]
    if not name.isidentifier() or not name.isascii():
        raise TargetError(f"{e.name!r} does not name a C function")
    if c.dialect.name not in ("c", "bare"):
        raise TargetError(f"{e.name} calls a function of the C library, which a device does not have")
    for argument in (*e.args, e):
        if argument.dtype.lanes != 1 or types.is_half(argument.dtype):
            raise TargetError(f"{e.name} passes or returns {argument.dtype}, which C has no type for")
    kinds = ", ".join(types.register_type(argument.dtype) for argument in e.args) or "void"
    c.helper(f"extern:{name}", f"extern {types.register_type(e.dtype)} {name}({kinds});")
    return [f"{name}({', '.join(bare(c.value(argument)) for argument in e.args)})"]


_EFFECTS: dict[str, Handler] = {
    "interleave": _interleave, "barrier": _barrier, "prefetch": _prefetch, "turn": _turn,
    REPORT: _report,
}  # fmt: skip


def _call(c: Context, e: Call) -> list[str]:
    emitter = c.module.intrinsics.get(e.name)
    if emitter is not None:
        made = emitter(c, e)
        return [made] if isinstance(made, str) else made
    handler = _PURE.get(e.name) or _EFFECTS.get(e.name)
    if handler is not None:
        return handler(c, e)
    if e.name.startswith("extern:"):
        return _external(c, e)
    raise TargetError(f"the {c.dialect.name} code generator knows no intrinsic {e.name!r} ({e!r})")


TABLE: dict[type[Expr], Handler] = {Call: _call}

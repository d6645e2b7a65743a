"""Helper functions of generated C: made when first used, each before what calls it.

Names end in the C type they work on: `weft_floordiv_int32_t`, `weft_min_float`. Their texts are common to all
dialects, apart from those that a dialect has in its own table.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from weft.codegen.c.dialects import Dialect
from weft.core.errors import InternalError

_BITS = re.compile(r"(u?)int(\d+)_t$")

_FIXED = {
    "weft_from_bfloat": "DEVICE float weft_from_bfloat(uint16_t bits) { return weft_as_float((uint32_t)bits << 16); }",
    "weft_to_bfloat": """
DEVICE uint16_t weft_to_bfloat(float value) {
  uint32_t bits = weft_as_bits(value);
  if (value != value) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}""",
    "weft_from_half": """
DEVICE float weft_from_half(uint16_t half_bits) {
  uint32_t body = ((uint32_t)half_bits & 0x7fffu) << 13;
  uint32_t sign = ((uint32_t)half_bits & 0x8000u) << 16;
  uint32_t scaled = weft_as_bits(weft_as_float(body) * 5.192296858534828e+33f);
  return weft_as_float((body >= (0x7c00u << 13) ? (body | 0x7f800000u) : scaled) | sign);
}""",
    "weft_to_half": """
DEVICE uint16_t weft_to_half(float value) {
  uint32_t bits = weft_as_bits(value);
  uint32_t sign = (bits >> 16) & 0x8000u, body = bits & 0x7fffffffu, result;
  if (body > 0x7f800000u) result = ((body >> 13) & 0x3ffu) | 0x7e00u;
  else if (body >= (143u << 23)) result = 0x7c00u;
  else if (body < (113u << 23)) result = weft_as_bits(weft_as_float(body) + 0.5f) - 0x3f000000u;
  else result = (body - (112u << 23) + 0xfffu + ((body >> 13) & 1u)) >> 13;
  return (uint16_t)(result | sign);
}""",
    "weft_round_half": "DEVICE float weft_round_half(float value) { return weft_from_half(weft_to_half(value)); }",
    "weft_round_bfloat": "DEVICE float weft_round_bfloat(float value) "
    "{ return weft_from_bfloat(weft_to_bfloat(value)); }",
    "weft_round_odd": """
DEVICE float weft_round_odd(double value) {
  float near = (float)value;
  double back = (double)near;
  uint32_t beyond = fabs(back) > fabs(value) ? 1u : 0u;
  uint32_t inexact = back != value && back == back ? 1u : 0u;
  return weft_as_float((weft_as_bits(near) - beyond) | inexact);
}""",
    "weft_popcount64": "DEVICE int32_t weft_popcount64(uint64_t x) { return __builtin_popcountll(x); }",
    "weft_leading_zeros64": "DEVICE int32_t weft_leading_zeros64(uint64_t x) "
    "{ return x ? __builtin_clzll(x) : 64; }",
}  # fmt: skip


def _extreme(sign: str) -> Callable[[str, str], str]:
    def make(name: str, kind: str) -> str:
        test = f"a {sign} b" if kind not in ("float", "double") else f"a {sign} b || a != a"
        return f"DEVICE {kind} {name}({kind} a, {kind} b) {{ return {test} ? a : b; }}"

    return make


def _division(what: str) -> Callable[[str, str], str]:
    """A division that never traps: by zero it gives 0, and the least value by -1 wraps."""
    remainder = what.endswith("mod")

    def make(name: str, kind: str) -> str:
        head = f"DEVICE {kind} {name}({kind} a, {kind} b) {{\n  if (b == 0) return 0;\n"
        if kind.startswith("u"):
            return f"{head}  return ({kind})(a {'%' if remainder else '/'} b);\n}}"
        wide = "uint64_t" if "64" in kind else "uint32_t"
        special = "0" if remainder else f"({kind})(0 - ({wide})a)"
        head += f"  if (b == -1) return {special};\n"
        if what.startswith("trunc"):
            return f"{head}  return ({kind})(a {'%' if remainder else '/'} b);\n}}"
        head += f"  {kind} rest = ({kind})(a % b);\n  bool moves = rest != 0 && (rest < 0) != (b < 0);\n"
        result = f"({kind})(moves ? rest + b : rest)" if remainder else f"({kind})(a / b - (moves ? 1 : 0))"
        return f"{head}  return {result};\n}}"

    return make


def _saturate(source: str) -> Callable[[str, str], str]:
    suffix = "f" if source == "float" else ""

    def make(name: str, kind: str) -> str:
        unsigned, bits = _width(kind)
        top = 2.0 ** (bits if unsigned else bits - 1)
        low = "0" if unsigned else f"({kind})((uint{bits}_t)1 << {bits - 1})"
        high = f"({kind})~(uint{bits}_t)0" if unsigned else f"({kind})(((uint{bits}_t)1 << {bits - 1}) - 1)"
        least = f"0.0{suffix}" if unsigned else f"-{top!r}{suffix}"
        return (
            f"DEVICE {kind} {name}({source} x) {{\n  if (x != x) return 0;\n  if (x <= {least}) return {low};\n"
            f"  return x >= {top!r}{suffix} ? {high} : ({kind})x;\n}}"
        )

    return make


def _width(kind: str) -> tuple[bool, int]:
    found = _BITS.match(kind)
    if found is None:
        raise InternalError(f"{kind} is no integer type of C")
    return bool(found[1]), int(found[2])


def _shift(left: bool) -> Callable[[str, str], str]:
    def make(name: str, kind: str) -> str:
        unsigned, bits = _width(kind)
        wide = "uint64_t" if bits == 64 else "uint32_t"
        inside = f"({wide})b < {bits}u" if unsigned or bits >= 32 else f"b >= 0 && b < {bits}"
        if left:
            return f"DEVICE {kind} {name}({kind} a, {kind} b) {{ return {inside} ? ({kind})(({wide})a << b) : 0; }}"
        beyond = "0" if unsigned else f"({kind})(a < 0 ? -1 : 0)"
        return f"DEVICE {kind} {name}({kind} a, {kind} b) {{ return {inside} ? ({kind})(a >> b) : {beyond}; }}"

    return make


def _absolute(name: str, kind: str) -> str:
    wide = "uint64_t" if "64" in kind else "uint32_t"
    return f"DEVICE {kind} {name}({kind} a) {{ return a < 0 ? ({kind})(0 - ({wide})a) : a; }}"


def _floor_fmod(name: str, kind: str) -> str:
    function = "fmod(a, b)" if kind == "double" else "FMOD(a, b)"
    zero = "0.0" if kind == "double" else "0.0f"
    sign = "copysign" if kind == "double" else "COPYSIGN"
    return (
        f"DEVICE {kind} {name}({kind} a, {kind} b) {{\n  {kind} rest = {function};\n"
        f"  if (rest == {zero}) return {sign}({zero}, b);\n"
        f"  return (rest < {zero}) != (b < {zero}) ? rest + b : rest;\n}}"
    )


_BY_TYPE: dict[str, Callable[[str, str], str]] = {
    "weft_min": _extreme("<"), "weft_max": _extreme(">"),
    "weft_floordiv": _division("floordiv"), "weft_floormod": _division("floormod"),
    "weft_truncdiv": _division("truncdiv"), "weft_truncmod": _division("truncmod"),
    "weft_from_float_to": _saturate("float"), "weft_from_double_to": _saturate("double"),
    "weft_shift_left": _shift(True), "weft_shift_right": _shift(False), "weft_abs": _absolute,
    "weft_floor_fmod": _floor_fmod,
}  # fmt: skip


def helper_text(name: str, dialect: Dialect) -> str:
    """The definition of a helper function in a dialect."""
    text = dialect.functions.get(name) or _FIXED.get(name)
    if text is None:
        stem = next((stem for stem in sorted(_BY_TYPE, key=len, reverse=True) if name.startswith(stem + "_")), None)
        if stem is None:
            raise InternalError(f"there is no helper function {name}")
        text = _BY_TYPE[stem](name, name[len(stem) + 1 :])
    suffix = dialect.float_suffix
    text = text.replace("FMOD(", f"fmod{suffix}(").replace("COPYSIGN(", f"copysign{suffix}(")
    return text.strip().replace("DEVICE", dialect.device)


def used_helpers(text: str) -> list[str]:
    """The helper functions that a text calls, in the order of their calls."""
    return list(dict.fromkeys(re.findall(r"\bweft_(?!fn_)\w+(?=\()", text)))

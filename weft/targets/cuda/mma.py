"""NVIDIA's tensor cores by mma.sync: tiles that the 32 threads of a warp hold together, and what is done with them.

A schedule puts tiles into the scopes "mma.a", "mma.b" and "mma.c" and tensorizes loads, products and stores. Every tile
of an operand is 16 rows by 32 bytes, so that one ldmatrix fills it:

    kind     operands     sum       depth of a tile
    f16      float16      float32   16
    bf16     bfloat16     float32   16
    tf32     float32      float32    8      rounded to 10 bits of mantissa where it is loaded
    s8       int8         int32     32      also u8; u8s8 and s8u8 multiply one of each
    e4m3     float8       float32   32      also e5m2; e4m3e5m2 and e5m2e4m3; sums have about 14 bits on Hopper

    mma_load_a_<type>    T[i, k] = S[i, k]        mma_load_at_<type>   T[k, i] = S[k, i]      16-bit types only
    mma_load_b_<type>    T[k, j] = S[k, j]        16-bit types only    mma_load_bt_<type>   T[j, k] = S[j, k]
    mma_dot_<kind>_<a><b>                         C[i, j] += wide(a) * wide(b); n is a[i, k], t is a[k, i]; so for b
    mma_store_f32, mma_store_s32                  C[i, j] to memory, 16 × 16

The names say how a tile's elements are numbered in the program; in the registers they are where the instruction wants
them. A statement on such tiles belongs to all threads of a warp: threadIdx.x runs over the 32 of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import INT32, dtype
from weft.expr.nodes import Call
from weft.targets.cuda.swizzle import seen_by

ROWS = 16
TILE_BYTES = 32
"""Bytes of k of a tile, in every kind."""
TYPES = {"f16": "float16", "bf16": "bfloat16", "tf32": "float32", "s8": "int8", "u8": "uint8",
         "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}  # fmt: skip
"""Elements of operands by the instruction's names for them."""
SUMS = {"float32": "f32", "int32": "s32"}
"""The instruction's names for the types of sums."""
LOADS = {
    "a": (True, False, False),
    "at": (False, True, False),
    "b": (True, True, False),
    "bt": (False, False, False),
    "a_tf32": (True, False, True),
    "bt_tf32": (False, False, True),
}
"""Forms of loads: whether threads point at rows first, whether 16-bit elements are turned, and numbers rounded."""


class Kind:
    """One sort of product: its name, and the types of its operands, of rows (a) and columns (b), in TYPES."""

    def __init__(self, name: str, a: str, b: str) -> None:
        self.name, self.a, self.b = name, a, b
        self.elements = TYPES[a], TYPES[b]
        self.bytes = int(dtype(TYPES[a]).bytes)
        self.wide = "float32" if dtype(TYPES[a]).is_float else "int32"  # the type of the sums
        self.constraint = "f" if self.wide == "float32" else "r"  # of a sum's register in inline assembly
        self.depth = TILE_BYTES // self.bytes  # elements of k of a tile
        self.transposes = self.bytes == 2  # whether a load can turn a tile: ldmatrix turns elements of 16 bits
        self.instruction = f"m16n8k{self.depth}.row.col.{SUMS[self.wide]}.{a}.{b}.{SUMS[self.wide]}"


KINDS = {
    **{name: Kind(name, name, name) for name in TYPES},
    **{a + b: Kind(a + b, a, b) for a, b in (("u8", "s8"), ("s8", "u8"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))},
}

# ------------------------------------------------------------------------------------------------------- emitting


_ROUND = """
  #pragma unroll
  for (int32_t i = 0; i < 4; ++i) {
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(words[i]) : "f"(__uint_as_float(words[i])));
    tile[i] = __uint_as_float(words[i]);
  }"""
"""What the multiplication takes of a float32: without this it would cut the rest off."""


def _load(form: str) -> Emitter:
    """Fills a tile: which row and half each thread points at, and whether 16-bit elements are turned."""
    rows_first, turned, rounds = LOADS[form]
    row, half = ("lane & 15", "lane >> 4") if rows_first else ("(lane & 7) + ((lane >> 4) << 3)", "(lane >> 3) & 1")
    tile, words = ("float *tile", "\n  uint32_t words[4];") if rounds else ("uint32_t *words", "")
    outputs = ", ".join(f'"=r"(words[{i}])' for i in range(4))

    def emit(c: Context, call: Call) -> str:
        source, target, stride = call.args[:3]
        swizzled = c.constant(call.args[-1]) == 1
        marks = "_turned" * turned + "_swizzled" * swizzled + "_rounded" * rounds
        name = f"weft_mma_load_{'rows' if rows_first else 'halves'}{marks}"
        order = "\n  place ^= (place >> 3) & 0x70u;" if swizzled else ""
        c.helper(
            name,
            f"""DEVICE void {name}({tile}, const void *from, int32_t row_bytes) {{
  const int32_t lane = (int32_t)(threadIdx.x & 31u);{words}
  uint32_t place = (uint32_t)__cvta_generic_to_shared(from) + ({row}) * row_bytes + (({half}) << 4);{order}
  asm volatile("ldmatrix.sync.aligned.m8n8.x4{".trans" if turned else ""}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
               : {outputs} : "r"(place) : "memory");{_ROUND * rounds}
}}""",
        )
        bytes_ = source.buffer.dtype.bytes  # type: ignore[attr-defined]
        return f"{name}({c.fragment(target)}, {c.pointer(source)}, (int32_t)({c.value(stride)}) * {bytes_})"

    return emit


def _dot(kind: Kind) -> Emitter:
    name = f"weft_mma_dot_{kind.name}"
    register = "float" if kind.constraint == "f" else "int32_t"
    words, word = ("float", "__float_as_uint({})") if kind.bytes == 4 else ("uint32_t", "{}")
    left = ", ".join(f'"r"({word.format(f"a[{i}]")})' for i in range(4))
    halves = []
    for half in (0, 1):
        sums = ", ".join(f'"+{kind.constraint}"(sum[{4 * half + i}])' for i in range(4))
        right = ", ".join(f'"r"({word.format(f"b[{2 * half + i}]")})' for i in range(2))
        halves.append(
            f'  asm("mma.sync.aligned.{kind.instruction} {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, '
            f'{{%0, %1, %2, %3}};"\n               : {sums}\n               : {left}, {right});'
        )
    text = f"DEVICE void {name}({register} *sum, const {words} *a, const {words} *b) {{\n" + "\n".join(halves) + "\n}"

    def emit(c: Context, call: Call) -> str:
        a, b, out = call.args[:3]
        c.helper(name, text)
        return f"{name}({c.fragment(out)}, {c.fragment(a)}, {c.fragment(b)})"

    return emit


def zero_tile(c: Context, call: Call, count: int = 8) -> str:
    """Sums of a tile that begin, so many of a thread."""
    c.helper(
        "weft_mma_zero",
        "template <int32_t count, typename T> DEVICE void weft_mma_zero(T *sum) {\n  #pragma unroll\n"
        "  for (int32_t i = 0; i < count; ++i) sum[i] = (T)0;\n}",
    )
    return f"weft_mma_zero<{count}>({c.fragment(call.args[0])})"


STORE = """template <int32_t eights, typename T> DEVICE void weft_mma_store(T *to, const T *sum, int32_t stride) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  T *place = to + (lane >> 2) * stride + ((lane & 3) << 1);
  #pragma unroll
  for (int32_t i = 0; i < eights; ++i) {
    place[i * 8] = sum[i * 4];
    place[i * 8 + 1] = sum[i * 4 + 1];
    place[i * 8 + 8 * stride] = sum[i * 4 + 2];
    place[i * 8 + 8 * stride + 1] = sum[i * 4 + 3];
  }
}"""
"""A warp's sums of 16 rows and so many times 8 columns, to memory."""


def _store(c: Context, call: Call) -> str:
    source, target, stride = call.args[:3]
    c.helper("weft_mma_store", STORE)
    return f"weft_mma_store<2>({c.pointer(target)}, {c.fragment(source)}, (int32_t)({c.value(stride)}))"


EMITTERS: Mapping[str, Emitter] = {
    "mma_zero": zero_tile,
    "mma_store": _store,
    **{f"mma_load_{form}": _load(form) for form in LOADS},
    **{f"mma_dot_{kind.name}": _dot(kind) for kind in KINDS.values()},
}


def _conversion(form: str, widens: bool) -> Emitter:
    """A float8 to a float32, or back, by the instruction for two of them."""
    name = f"weft_{'from' if widens else 'to'}_{form}"
    body = (
        f"""DEVICE float {name}(uint8_t bits) {{
  float value;
  asm("{{\\n.reg .b32 two;\\n.reg .b16 low, high;\\ncvt.rn.f16x2.{form}x2 two, %1;\\n"
      "mov.b32 {{low, high}}, two;\\ncvt.f32.f16 %0, low;\\n}}" : "=f"(value) : "h"((uint16_t)bits));
  return value;
}}"""
        if widens
        else f"""DEVICE uint8_t {name}(float value) {{
  uint16_t two;
  asm("cvt.rn.satfinite.{form}x2.f32 %0, %2, %1;" : "=h"(two) : "f"(value), "f"(0.0f));
  return (uint8_t)two;
}}"""
    )

    def emit(c: Context, call: Call) -> list[str]:
        c.helper(name, body)
        return [f"{name}({text})" for text in c.lanes(call.args[0])]

    return emit


CONVERSIONS: Mapping[str, Emitter] = {
    f"{'from' if widens else 'to'}_{TYPES[form]}": _conversion(form, widens)
    for form in ("e4m3", "e5m2")
    for widens in (True, False)
}
"""Of machines whose tensor cores take float8."""

# ----------------------------------------------------------------------------------------- meaning, for the interpreter


def _mean_load(form: str) -> Callable[..., None]:
    def run(source: Any, target: Any, stride: int, tile_stride: int, rows: int, columns: int, order: int) -> None:
        seen = seen_by(source, (int(rows), int(columns)), (int(stride), 1), order)
        target.view(seen.shape, (int(tile_stride), 1))[...] = round_tf32(seen) if LOADS[form][2] else seen

    return run


def round_tf32(values: Any) -> Any:
    """Float32 numbers with 10 bits of mantissa: the nearest, of two the one farther from zero."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return np.where(np.isfinite(values), ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32), values)


def mean_store(source: Any, target: Any, stride: int, tile_stride: int, rows: int, columns: int) -> None:
    """A tile of sums copied to memory."""
    shape = int(rows), int(columns)
    target.view(shape, (int(stride), 1))[...] = source.view(shape, (int(tile_stride), 1))


def mean_zero(rows: int) -> Callable[..., None]:
    """Sums of so many rows that begin."""

    def run(tile: Any, columns: int = rows) -> None:
        tile.view((rows, int(columns)), (int(columns), 1))[...] = 0

    return run


def add_products(kind: Kind, out: Any, left: Any, right: Any, fresh: bool = False) -> None:
    """Adds to a tile (or to zeros, if it is fresh) the products of two operands, [row, k] and [column, k]."""
    sums = out.view((len(left), len(right)), (len(right), 1))
    given = zip((left, right), kind.elements)
    left, right = (np.ascontiguousarray(x).view(dtype(name).numpy).astype(kind.wide) for x, name in given)
    for at in range(0, left.shape[1], kind.depth):
        part = left[:, at : at + kind.depth] @ right[:, at : at + kind.depth].T
        sums[...] = part if fresh and at == 0 else sums + part


def _mean_dot(kind: Kind) -> Callable[..., None]:
    def operand(tile: Any, k_inside: bool) -> Any:
        rows, columns = (ROWS, kind.depth) if k_inside else (kind.depth, ROWS)
        seen = tile.view((rows, columns), (columns, 1))
        return seen if k_inside else seen.T

    def run(a: Any, b: Any, out: Any, form: int) -> None:
        add_products(kind, out, operand(a, not int(form) & 1), operand(b, bool(int(form) & 2)))

    return run


for _name in LOADS:
    te.register_effect(f"mma_load_{_name}", _mean_load(_name))
te.register_effect("mma_zero", mean_zero(ROWS))
te.register_effect("mma_store", mean_store)
for _kind in KINDS.values():
    te.register_effect(f"mma_dot_{_kind.name}", _mean_dot(_kind))

# ----------------------------------------------------------------------------------------------------- declaring

At = Callable[[Any, Any], Any]
"""How the element of a row (or column) and a k is read."""


def form_of(turned_a: bool, turned_b: bool) -> str:
    """The letters of a product's operands in its name."""
    return f"{'t' if turned_a else 'n'}{'t' if turned_b else 'n'}"


def declare_dot(
    name: str, kind: Kind, size: tuple[int, int, int], left: At, right: At, calls: Callable[..., tuple[Call, Call]]
) -> None:
    """Declares an instruction that sums products of rows, columns and depth, by calls to begin and to go on."""
    k = te.reduce_axis(size[2], name="k")
    out = te.compute(
        size[:2], lambda i, j: te.sum(left(i, k).astype(kind.wide) * right(j, k).astype(kind.wide), axis=k), name="out"
    )

    def rule(inputs: Any, outputs: Any) -> tuple[Any, Call, Call]:
        reset, update = calls(*inputs, outputs[0])
        return [reset, update], reset, update

    te.decl_tensor_intrin(out.op, rule, name)


def _declare_dot(kind: Kind, turned_a: bool, turned_b: bool) -> None:
    depth = kind.depth
    a = te.placeholder((depth, ROWS) if turned_a else (ROWS, depth), kind.elements[0], name="a")
    b = te.placeholder((ROWS, depth) if turned_b else (depth, ROWS), kind.elements[1], name="b")

    def calls(left: Any, right: Any, out: Any) -> tuple[Call, Call]:
        form = te.const(int(turned_a) + 2 * int(turned_b))
        operands = (left.access_ptr("r"), right.access_ptr("r"), out.access_ptr("rw"), form)
        return Call("mma_zero", (out.access_ptr("w"),), INT32), Call(f"mma_dot_{kind.name}", operands, INT32)

    declare_dot(
        f"mma_dot_{kind.name}_{form_of(turned_a, turned_b)}", kind, (ROWS, ROWS, depth),
        lambda i, k: a[k, i] if turned_a else a[i, k], lambda j, k: b[j, k] if turned_b else b[k, j], calls,
    )  # fmt: skip


def declare_copy(name: str, call: str, shape: tuple[int, int], element: str, is_load: bool) -> None:
    """Declares an instruction that copies a tile, into registers or out of them, by a call."""
    source = te.placeholder(shape, element, name="source")
    copy = te.compute(shape, lambda i, j: source[i, j], name="copy")

    def rule(inputs: Any, outputs: Any) -> Call:
        memory, tile = (inputs[0], outputs[0]) if is_load else (outputs[0], inputs[0])
        steps = (memory.stride(0), tile.stride(0), *map(te.const, (*shape, *[0] * is_load)))
        return Call(call, (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), *steps), INT32)

    te.decl_tensor_intrin(copy.op, rule, name)


for _kind in KINDS.values():
    for _turned in ((False, True), *(((False, False), (True, False), (True, True)) if _kind.transposes else ())):
        _declare_dot(_kind, *_turned)
    _rounded = "_tf32" * (_kind.name == "tf32")
    for _name in LOADS if _kind.a == _kind.b else ():
        _shape = (_kind.depth, ROWS) if _name in ("at", "b") else (ROWS, _kind.depth)
        if "_" not in _name and (_kind.transposes or _name in ("a", "bt")):
            declare_copy(f"mma_load_{_name}_{_kind.a}", f"mma_load_{_name}{_rounded}", _shape, TYPES[_kind.a], True)
for _wide, _sums in SUMS.items():
    declare_copy(f"mma_store_{_sums}", "mma_store", (ROWS, ROWS), _wide, False)

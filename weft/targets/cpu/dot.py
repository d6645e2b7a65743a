"""Integer dot products in vector registers: AVX-512 VNNI on x86, the dot product and the matrix extension on Arm.

    vnni_dot_u8s8        C[j] += sum over k < 4 of int32(A[k]) * int32(B[j, k])   16 columns; A unsigned, B signed bytes
    vnni_half_dot_u8s8   the same for 8 columns
    vnni_dot_s8u8        the same with A signed, B unsigned
    neon_dot_s8s8        the same for 4 columns of signed bytes
    neon_dot_u8s8        the same with A unsigned
    neon_square_u8s8     C[i, j] += sum over k < 8 of int32(A[i, k]) * int32(B[j, k])   2 rows and columns; s8s8, u8u8

The four bytes of A are broadcast; C stays in a vector register while the loop around runs. A square is one register,
its rows behind one another, and is taken apart (`neon_store_square`) when its sums are complete.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from weft import te
from weft.codegen.llvm.context import Context
from weft.core.dtypes import INT32
from weft.expr.nodes import Call, int_value
from weft.targets.base import Target

GROUP, SQUARE = 4, 8
"""Bytes of the reduction in one lane, and in one row of a product of squares."""


class Dot(NamedTuple):
    """A dot product: its name and that of the call that makes its sums 0, the columns, what it multiplies."""

    name: str
    zero: str
    columns: int
    left: str
    right: str
    features: str
    """What a processor must have, with spaces between."""
    instruction: str
    right_first: bool = False
    """Whether the instruction takes the right operand first."""
    takes_lane: bool = False
    """Whether the left operand may be a lane of a register: no broadcast is needed where that holds it."""

    def runs_on(self, target: Target) -> bool:
        """Whether a target has it."""
        return target.features.issuperset(self.features.split())


VNNI, HALF = "llvm.x86.avx512.vpdpbusd.512", "llvm.x86.avx512.vpdpbusd.256"
SDOT, MIXED = "llvm.aarch64.neon.sdot.v4i32.v16i8", "llvm.aarch64.neon.usdot.v4i32.v16i8"
DOTS = (
    Dot("vnni_dot_u8s8", "vnni_zero", 16, "uint8", "int8", "avx512vnni", VNNI),
    Dot("vnni_half_dot_u8s8", "vnni_half_zero", 8, "uint8", "int8", "avx512vnni avx512vl", HALF),
    Dot("neon_dot_s8s8", "neon_zero", 4, "int8", "int8", "dotprod", SDOT, right_first=True, takes_lane=True),
    Dot("neon_dot_u8s8", "neon_zero", 4, "uint8", "int8", "i8mm", MIXED),
)
"""The widest first."""
DIGITS = (Dot("vnni_dot_s8u8", "vnni_zero", 16, "int8", "uint8", "avx512vnni", VNNI, right_first=True), DOTS[2])
"""Of signed digits with codes."""
STORE_SQUARE = "neon_store_square"


def _emit_dot(one: Dot) -> Callable[[Context, Call], str]:
    wide, narrow = f"<{one.columns} x i32>", f"<{one.columns * 4} x i8>"

    def emit(c: Context, e: Call) -> str:
        a, b, out = e.args
        group = c.emit(f"load i32, ptr {c.pointer(a)}, align 1")
        left = c.emit(f"bitcast {wide} {c.broadcast('i32', group, one.columns)} to {narrow}")
        right = c.emit(f"load {narrow}, ptr {c.pointer(b)}, align 1")
        pointer = c.pointer(out)
        old = c.emit(f"load {wide}, ptr {pointer}, align 4")
        operands = [f"{narrow} {operand}" for operand in ((right, left) if one.right_first else (left, right))]
        made = c.call(wide, one.instruction, [f"{wide} {old}", *operands])
        c.line(f"store {wide} {made}, ptr {pointer}, align 4")
        return "0"

    return emit


def emit_zero(columns: int) -> Callable[[Context, Call], str]:
    """Makes the sums of so many columns 0."""

    def emit(c: Context, e: Call) -> str:
        c.line(f"store <{columns} x i32> zeroinitializer, ptr {c.pointer(e.args[0])}, align 4")
        return "0"

    return emit


def _emit_square(instruction: str) -> Callable[[Context, Call], str]:
    def emit(c: Context, e: Call) -> str:
        a, b, out, stride = e.args
        first = c.pointer(a)
        if int_value(stride) == SQUARE:
            left = c.emit(f"load <16 x i8>, ptr {first}, align 1")
        else:
            second = c.emit(f"getelementptr i8, ptr {first}, i64 {c.value(stride)}")
            rows = [c.emit(f"load <8 x i8>, ptr {row}, align 1") for row in (first, second)]
            both = ", ".join(f"i32 {i}" for i in range(16))
            left = c.emit(f"shufflevector <8 x i8> {rows[0]}, <8 x i8> {rows[1]}, <16 x i32> <{both}>")
        right = c.emit(f"load <16 x i8>, ptr {c.pointer(b)}, align 1")
        pointer = c.pointer(out)
        old = c.emit(f"load <4 x i32>, ptr {pointer}, align 4")
        made = c.call("<4 x i32>", instruction, [f"<4 x i32> {old}", f"<16 x i8> {left}", f"<16 x i8> {right}"])
        c.line(f"store <4 x i32> {made}, ptr {pointer}, align 4")
        return "0"

    return emit


def _emit_store_square(c: Context, e: Call) -> str:
    source, target, stride = e.args
    square, first = c.emit(f"load <4 x i32>, ptr {c.pointer(source)}, align 4"), c.pointer(target)
    second = c.emit(f"getelementptr i32, ptr {first}, i64 {c.value(stride)}")
    for place, at in ((first, 0), (second, 2)):
        row = c.emit(f"shufflevector <4 x i32> {square}, <4 x i32> poison, <2 x i32> <i32 {at}, i32 {at + 1}>")
        c.line(f"store <2 x i32> {row}, ptr {place}, align 4")
    return "0"


def emitters(target: Target) -> Mapping[str, Callable[[Context, Call], str]]:
    """name -> emitter, for what the target has."""
    found: dict[str, Callable[[Context, Call], str]] = {}
    for one in (*DOTS, *DIGITS):
        if one.runs_on(target):
            found[one.name], found[one.zero] = _emit_dot(one), emit_zero(one.columns)
    if "i8mm" in target.features:
        kinds = (("u8s8", "usmmla"), ("s8s8", "smmla"), ("u8u8", "ummla"))
        found |= {f"neon_square_{kind}": _emit_square(f"llvm.aarch64.neon.{name}.v4i32.v16i8") for kind, name in kinds}
        found[STORE_SQUARE] = _emit_store_square
    return found


def _declare(one: Dot) -> None:
    a = te.placeholder((4,), one.left, name="a")
    b = te.placeholder((one.columns, 4), one.right, name="b")
    k = te.reduce_axis(4, name="k")
    out = te.compute(
        (one.columns,), lambda j: te.sum(a[k].astype("int32") * b[j, k].astype("int32"), axis=k), name="out"
    )
    te.decl_tensor_intrin(out.op, summed(one.name, one.zero), one.name)


def summed(call: str, zero: str, step: int = 0, side: int = 0) -> Callable[[Any, Any], tuple[Any, Call, Call]]:
    """What stands for a sum of products: the call that adds to it, given how far apart the rows of its left (or right)
    side are if `step` is not 0, and the one that makes it 0."""

    def rule(inputs: Any, outputs: Any) -> tuple[Any, Call, Call]:
        reset = Call(zero, (outputs[0].access_ptr("w"),), INT32)
        operands = (inputs[0].access_ptr("r"), inputs[1].access_ptr("r"), outputs[0].access_ptr("rw"))
        update = Call(call, (*operands, inputs[side].stride(0) * step) if step else operands, INT32)
        return [reset, update], reset, update

    return rule


for _dot in dict.fromkeys((*DOTS, *DIGITS)):
    _declare(_dot)

SQUARES = {("uint8", "int8"): "u8s8", ("int8", "int8"): "s8s8", ("uint8", "uint8"): "u8u8"}
"""Operands of products of squares."""


@functools.cache
def square(left: str, right: str, step: int = 1) -> str:
    """Declares, once, the product of squares whose left rows are every `step`-th; gives its name."""
    call = f"neon_square_{SQUARES[left, right]}"
    a = te.placeholder((step + 1, SQUARE), left, name="a")
    b = te.placeholder((2, SQUARE), right, name="b")
    k = te.reduce_axis(SQUARE, name="k")
    out = te.compute(
        (2, 2), lambda i, j: te.sum(a[i * step, k].astype("int32") * b[j, k].astype("int32"), axis=k), name="out"
    )
    name = call if step == 1 else f"{call}_{step}"
    te.decl_tensor_intrin(out.op, summed(call, "neon_zero", step), name)
    return name


def _mean_square(a: Any, b: Any, out: Any, stride: int) -> None:
    left, right = a.view((2, SQUARE), (int(stride), 1)), b.view((2, SQUARE), (SQUARE, 1))
    out.view((2, 2), (2, 1))[...] += left.astype("int32") @ right.astype("int32").T


def _mean_store_square(source: Any, target: Any, stride: int) -> None:
    target.view((2, 2), (int(stride), 1))[...] = source.view((2, 2), (2, 1))


def _declare_store_square() -> None:
    source = te.placeholder((2, 2), "int32", name="square")
    target = te.compute((2, 2), lambda i, j: source[i, j], name="target")

    def rule(inputs: Any, outputs: Any) -> Call:
        return Call(STORE_SQUARE, (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), outputs[0].stride(0)), INT32)

    te.decl_tensor_intrin(target.op, rule, STORE_SQUARE)


for _kinds in SQUARES:
    te.register_effect(f"neon_square_{SQUARES[_kinds]}", _mean_square)
    square(*_kinds)
te.register_effect(STORE_SQUARE, _mean_store_square)
_declare_store_square()

"""Integer dot products in vector registers: AVX-512 VNNI on x86, the dot product extension on Arm.

    vnni_dot_u8s8        C[j] += sum over k < 4 of int32(A[k]) * int32(B[j, k])   16 columns; A unsigned, B signed bytes
    vnni_half_dot_u8s8   the same for 8 columns
    vnni_dot_s8u8        the same with A signed, B unsigned
    neon_dot_s8s8        the same for 4 columns of signed bytes

The four bytes of A are broadcast; C stays in a vector register while the loop around runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft import te
from weft.codegen.llvm.context import Context
from weft.core.dtypes import INT32
from weft.expr.nodes import Call

GROUP = 4
"""Bytes of the reduction in one lane."""


def _emit_dot(columns: int, instruction: str, right_first: bool = False) -> Callable[[Context, Call], str]:
    wide, narrow = f"<{columns} x i32>", f"<{columns * 4} x i8>"

    def emit(c: Context, e: Call) -> str:
        a, b, out = e.args
        group = c.emit(f"load i32, ptr {c.pointer(a)}, align 1")
        left = c.emit(f"bitcast {wide} {c.broadcast('i32', group, columns)} to {narrow}")
        right = c.emit(f"load {narrow}, ptr {c.pointer(b)}, align 1")
        pointer = c.pointer(out)
        old = c.emit(f"load {wide}, ptr {pointer}, align 4")
        operands = (
            [f"{narrow} {right}", f"{narrow} {left}"] if right_first else [f"{narrow} {left}", f"{narrow} {right}"]
        )
        made = c.call(wide, instruction, [f"{wide} {old}", *operands])
        c.line(f"store {wide} {made}, ptr {pointer}, align 4")
        return "0"

    return emit


def _emit_zero(columns: int) -> Callable[[Context, Call], str]:
    def emit(c: Context, e: Call) -> str:
        c.line(f"store <{columns} x i32> zeroinitializer, ptr {c.pointer(e.args[0])}, align 4")
        return "0"

    return emit


X86: Mapping[str, Callable[[Context, Call], str]] = {
    "vnni_dot_u8s8": _emit_dot(16, "llvm.x86.avx512.vpdpbusd.512"),
    "vnni_dot_s8u8": _emit_dot(16, "llvm.x86.avx512.vpdpbusd.512", right_first=True),
    "vnni_zero": _emit_zero(16),
    "vnni_half_dot_u8s8": _emit_dot(8, "llvm.x86.avx512.vpdpbusd.256"),
    "vnni_half_zero": _emit_zero(8),
}
ARM: Mapping[str, Callable[[Context, Call], str]] = {
    # The second operand can be a lane of a register: no broadcast is needed where that holds the bytes of A.
    "neon_dot_s8s8": _emit_dot(4, "llvm.aarch64.neon.sdot.v4i32.v16i8", right_first=True),
    "neon_zero": _emit_zero(4),
}


def _declare(name: str, zero: str, columns: int, left: str, right: str = "int8") -> None:
    a = te.placeholder((4,), left, name="a")
    b = te.placeholder((columns, 4), right, name="b")
    k = te.reduce_axis(4, name="k")
    out = te.compute((columns,), lambda j: te.sum(a[k].astype("int32") * b[j, k].astype("int32"), axis=k), name="out")

    def rule(inputs: Any, outputs: Any) -> tuple[Any, Call, Call]:
        reset = Call(zero, (outputs[0].access_ptr("w"),), INT32)
        operands = (inputs[0].access_ptr("r"), inputs[1].access_ptr("r"), outputs[0].access_ptr("rw"))
        update = Call(name, operands, INT32)
        return [reset, update], reset, update

    te.decl_tensor_intrin(out.op, rule, name)


VNNI, VNNI_HALF, NEON, VNNI_DIGITS = "vnni_dot_u8s8", "vnni_half_dot_u8s8", "neon_dot_s8s8", "vnni_dot_s8u8"
_declare(VNNI, "vnni_zero", 16, "uint8")
_declare(VNNI_HALF, "vnni_half_zero", 8, "uint8")
_declare(VNNI_DIGITS, "vnni_zero", 16, "int8", "uint8")
_declare(NEON, "neon_zero", 4, "int8")

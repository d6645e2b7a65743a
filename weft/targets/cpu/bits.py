"""Counting the bits that rows have in common, for `te.bitserial`: NEON's cnt, AVX2's shuffles, AVX-512's vpopcntq.

    bits_dot_16x5        C[j] += sum over k of popcount(A[k] & B[j, k])      4 columns; A and a row of B are 5 vectors

Bytes are counted in bytes (NEON, AVX2), which hold 31 vectors of them, and only then added up wider; a plain program
widens each of them. `schedule` puts it into a product of bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from weft import te
from weft.codegen.llvm.context import Context
from weft.core.errors import TargetError
from weft.expr.nodes import Call
from weft.ops.bits import COUNTS, SUMS, WINDOWS
from weft.schedule.facts import block_named, extent, names_of
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.cpu import dot
from weft.targets.cpu.model import BIT_COLUMNS, BIT_ROWS, BIT_VECTORS


def _counted(c: Context, kind: str, a: list[str], row: str, element: str) -> str:
    """The bits that a row has in common with `a`, counted in the elements of a vector."""
    total = "zeroinitializer"
    for number, left in enumerate(a):
        at = c.emit(f"getelementptr i8, ptr {row}, i64 {number * _bytes(kind)}")
        right = c.emit(f"load {kind}, ptr {at}, align 1")
        both = c.emit(f"and {kind} {left}, {right}")
        count = c.call(kind, f"llvm.ctpop.{element}", [f"{kind} {both}"])
        total = count if number == 0 else c.emit(f"add {kind} {total}, {count}")
    return total


def _bytes(kind: str) -> int:
    count, element = kind[1:-1].split(" x i")
    return int(count) * int(element) // 8


def _neon(c: Context, total: str) -> str:
    pairs = c.call("<8 x i16>", "llvm.aarch64.neon.uaddlp.v8i16.v16i8", [f"<16 x i8> {total}"])
    wide = c.call("<4 x i32>", "llvm.aarch64.neon.uaddlp.v4i32.v8i16", [f"<8 x i16> {pairs}"])
    return c.call("i32", "llvm.vector.reduce.add.v4i32", [f"<4 x i32> {wide}"])


def _avx2(c: Context, total: str) -> str:
    sums = c.call("<4 x i64>", "llvm.x86.avx2.psad.bw", [f"<32 x i8> {total}", "<32 x i8> zeroinitializer"])
    whole = c.call("i64", "llvm.vector.reduce.add.v4i64", [f"<4 x i64> {sums}"])
    return c.emit(f"trunc i64 {whole} to i32")


def _avx512(c: Context, total: str) -> str:
    whole = c.call("i64", "llvm.vector.reduce.add.v8i64", [f"<8 x i64> {total}"])
    return c.emit(f"trunc i64 {whole} to i32")


Kind = tuple[str, str, Callable[[Context, str], str]]
NEON: Kind = ("<16 x i8>", "v16i8", _neon)
AVX2: Kind = ("<32 x i8>", "v32i8", _avx2)
VPOPCNTDQ: Kind = ("<8 x i64>", "v8i64", _avx512)


def _emit(kind: Kind, size: int) -> Callable[[Context, Call], str]:
    vector, element, finish = kind

    def emit(c: Context, e: Call) -> str:
        a, b, out, stride = e.args
        first, row, step = c.pointer(a), c.pointer(b), c.value(stride)
        ends = [c.emit(f"getelementptr i8, ptr {first}, i64 {at}") for at in range(0, size, _bytes(vector))]
        left = [c.emit(f"load {vector}, ptr {at}, align 1") for at in ends]
        sums, pointer = "undef", c.pointer(out)
        for column in range(BIT_COLUMNS):
            made = finish(c, _counted(c, vector, left, row, element))
            sums = c.emit(f"insertelement <{BIT_COLUMNS} x i32> {sums}, i32 {made}, i32 {column}")
            row = c.emit(f"getelementptr i8, ptr {row}, i64 {step}")
        old = c.emit(f"load <{BIT_COLUMNS} x i32>, ptr {pointer}, align 4")
        total = c.emit(f"add <{BIT_COLUMNS} x i32> {old}, {sums}")
        c.line(f"store <{BIT_COLUMNS} x i32> {total}, ptr {pointer}, align 4")
        return "0"

    return emit


def kinds_of(target: Target) -> list[Kind]:
    """What a processor counts bits with, the widest vectors first."""
    found = (("avx512vpopcntdq", VPOPCNTDQ), ("avx2", AVX2), ("neon", NEON))
    return [kind for feature, kind in found if feature in target.features]


def line_of(target: Target) -> int:
    """The bytes that rows are best filled up to."""
    return _bytes(kinds_of(target)[0][0])


def emitters(target: Target) -> Mapping[str, Callable[[Context, Call], str]]:
    """name -> emitter, for every length of a row."""
    made: dict[str, Callable[[Context, Call], str]] = {"bits_zero": dot.emit_zero(BIT_COLUMNS)}
    for kind in kinds_of(target):
        unit = _bytes(kind[0])
        made |= {f"bits_dot_{unit}x{count}": _emit(kind, count * unit) for count in range(1, BIT_VECTORS + 1)}
    return made if len(made) > 1 else {}


@lru_cache
def declared(unit: int, count: int) -> str:
    """The intrinsic for rows of so many vectors of so many bytes."""
    size, name = unit * count, f"bits_dot_{unit}x{count}"
    a, b = te.placeholder((size,), "uint8", name="a"), te.placeholder((BIT_COLUMNS, size), "uint8", name="b")
    k = te.reduce_axis(size, name="k")
    out = te.compute((BIT_COLUMNS,), lambda j: te.sum(te.popcount(a[k] & b[j, k]).astype("int32"), axis=k), name="out")
    return str(te.decl_tensor_intrin(out.op, dot.summed(name, "bits_zero", 1, side=1), name).name)


def schedule_operator(s: Schedule, target: Target) -> set[str]:
    """The product of bits in a graph operator (`weft/ops/bits.py`), if a program has one; the stages that are done."""
    if COUNTS not in names_of(s):
        return set()
    with s.attempt("counted bits") as tried:
        schedule(s, SUMS, COUNTS, target)
        if WINDOWS in names_of(s):
            plane, row, *_ = s[WINDOWS].loops
            s[WINDOWS].parallel(s[WINDOWS].fuse(plane, row))
    return {SUMS, COUNTS, *({WINDOWS} & set(names_of(s)))} if tried else set()


def schedule(s: Schedule, total: Any, counts: Any, target: Target) -> None:
    """A product of bits (`te.bitserial.dense`): blocks of rows over columns of the weights, counts by the intrinsic."""
    rows, columns = s[total].loops
    block, row = s[total].split(rows, factor=BIT_ROWS)
    outer, inner = s[total].split(columns, factor=BIT_COLUMNS)
    s[total].reorder(block, outer, row, inner)
    s[total].parallel(block)
    stage = s[counts]
    stage.compute_at(s[total], row)
    *planes, i, j, k = stage.loops[-5:]
    (size,) = (extent(axis) for axis in block_named(s, stage.name).axes if axis.kind == "reduce")
    unit = next((unit for kind in kinds_of(target) if size % (unit := _bytes(kind[0])) == 0), None)
    if unit is None:
        raise TargetError(f"{target.name} has no instruction that counts the bits of rows of {size} bytes")
    most = max(count for count in range(1, BIT_VECTORS + 1) if size // unit % count == 0)
    step, within = stage.split(k, factor=most * unit)
    stage.reorder(*planes, i, step, j, within)
    stage.tensorize(j, declared(unit, most))
    s[total].vectorize(inner)

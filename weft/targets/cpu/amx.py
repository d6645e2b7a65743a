"""Intel AMX: eight tile registers of 16 rows by 64 bytes, and instructions that multiply them.

A schedule puts tiles into the scope "amx.tile" and tensorizes loads, products and stores:

    amx_load_bf16     T[i, k] = A[i, k]                                        16 × 32 bfloat16
    amx_load_bf16x2   T[p, j, t] = B[p, j, t]                                  16 × 16 pairs: B[2p + t, j] packed
    amx_dot_bf16      C[i, j] += float32(A[i, k]) * float32(B[k // 2, j, k % 2])
    amx_load_u8 / _s8, amx_load_s8x4, amx_dot_u8s8 / amx_dot_s8s8             the same for bytes, in groups of four
    amx_store_f32 / amx_store_i32     C[i, j] = T[i, j]                        16 × 16
    amx_weave_bf16 / _s8              B[p, j, t] = A[j, 2p + t]                a tile packed from rows of the transposed

The tile configuration belongs to a thread: the pass `configure_tiles` loads it before the first tile is used in each
thread's part of the program, and releases the tiles after it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from weft import te
from weft.codegen.llvm.context import Context
from weft.core.dtypes import INT32
from weft.core.errors import TargetError
from weft.expr.nodes import Address, Buffer, Call, Expr, Load, Var, index_expr, int_value
from weft.loop.ir import Allocate, Axis, Block, Evaluate, For, Func, Stmt, Store, seq
from weft.loop.regions import block_regions
from weft.loop.visit import Mutator, child_stmts, walk_exprs, walk_stmts
from weft.schedule.intrinsic import TensorIntrin, register_intrinsic
from weft.targets.base import Target
from weft.targets.cpu.parse import TILES

TILE = 16
"""Rows of a full tile, and columns of a full tile of sums."""

ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18


@functools.cache
def permitted() -> bool:
    """Asks the kernel, once for this process, for the use of the tile registers."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return int(libc.syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)) == 0


# ------------------------------------------------------------------------------------------------------- emitting


def _tile(c: Context, e: Expr) -> str:
    if not isinstance(e, Address):
        raise TargetError(f"an AMX instruction takes tiles, not {e!r}")
    return f"i8 {c.slot(e)}"


def _bytes(c: Context, address: Expr, stride: Expr) -> str:
    assert isinstance(address, Address)
    return c.emit(f"mul i64 {c.value(stride)}, {address.buffer.dtype.bytes}")


def _move(instruction: str, tile: int) -> Callable[[Context, Call], str]:
    """Between rows in memory and a tile, the source (0) or the target (1)."""

    def emit(c: Context, e: Call) -> str:
        memory, stride = e.args[1 - tile], e.args[2]
        arguments = [_tile(c, e.args[tile]), f"ptr {c.pointer(memory)}", f"i64 {_bytes(c, memory, stride)}"]
        return c.call("void", f"llvm.x86.{instruction}", arguments) or "0"

    return emit


def _dot(instruction: str) -> Callable[[Context, Call], str]:
    def emit(c: Context, e: Call) -> str:
        a, b, out = e.args[:3]
        return c.call("void", f"llvm.x86.{instruction}", [_tile(c, out), _tile(c, a), _tile(c, b)]) or "0"

    return emit


def _weave(c: Context, e: Call) -> str:
    """Groups of four bytes transposed: rounds that weave the first half of the rows with the second."""
    source, target, stride, tile_stride = e.args
    rows = []
    step = _bytes(c, source, stride)
    for number in range(16):
        place = c.emit(f"getelementptr i8, ptr {c.pointer(source)}, i64 {c.emit(f'mul i64 {step}, {number}')}")
        rows.append(c.emit(f"load <16 x i32>, ptr {place}, align 1"))
    orders = [", ".join(f"i32 {part * 8 + i // 2 + i % 2 * 16}" for i in range(16)) for part in (0, 1)]
    for _ in range(4):
        pairs = [(rows[i], rows[i + 8], order) for i in range(8) for order in orders]
        rows = [c.emit(f"shufflevector <16 x i32> {a}, <16 x i32> {b}, <16 x i32> <{order}>") for a, b, order in pairs]
    step = _bytes(c, target, tile_stride)
    for number, row in enumerate(rows):
        place = c.emit(f"getelementptr i8, ptr {c.pointer(target)}, i64 {c.emit(f'mul i64 {step}, {number}')}")
        c.line(f"store <16 x i32> {row}, ptr {place}, align 1")
    return "0"


def _configure(c: Context, e: Call) -> str:
    """Palette 1; a tile has 16 rows of 64 bytes where the arguments (rows and bytes in turn) say nothing else."""
    given = [c.constant(argument) for argument in e.args] or [16, 64] * 8
    table = [1] + [0] * 15 + [part for size in given[1::2] for part in (size, 0)] + [0] * 16 + given[::2] + [0] * 8
    pointer = c.alloca("[64 x i8]", 64)
    c.line(f"store <64 x i8> <{', '.join(f'i8 {value}' for value in table[:64])}>, ptr {pointer}, align 64")
    return c.call("void", "llvm.x86.ldtilecfg", [f"ptr {pointer}"]) or "0"


EMITTERS: Mapping[str, Callable[[Context, Call], str]] = {
    "amx_zero": lambda c, e: c.call("void", "llvm.x86.tilezero", [_tile(c, e.args[0])]) or "0",
    "amx_load": _move("tileloadd64", 1),
    "amx_store": _move("tilestored64", 0),
    "amx_dot_bf16": _dot("tdpbf16ps"),
    "amx_dot_u8s8": _dot("tdpbusd"),
    "amx_dot_s8s8": _dot("tdpbssd"),
    "amx_weave": _weave,
    "amx_configure": _configure,
    "amx_release": lambda c, e: c.call("void", "llvm.x86.tilerelease", []) or "0",
}


ROW_LOADS = frozenset(("amx_load",))
"""Loads of rows from memory, for `insert_prefetch`."""


# ----------------------------------------------------------------------------------------- meaning, for the interpreter


def _rows(pointer: Any, width: int, row: int, count: int = 16) -> Any:
    return pointer.view((count, width), (row, 1))


def _mean_move(tile: int) -> Callable[..., None]:
    def run(source: Any, target: Any, stride: int, tile_stride: int, rows: int = 16, bytes_of_row: int = 64) -> None:
        width, strides = int(bytes_of_row) // target.buffer.dtype.bytes, (int(stride), int(tile_stride))
        _rows(target, width, strides[tile], int(rows))[...] = _rows(source, width, strides[1 - tile], int(rows))

    return run


def _mean_zero(tile: Any, rows: int = 16, width: int = 16) -> None:
    _rows(tile, int(width), tile.strides[-2], int(rows))[...] = 0


def _mean_dot(kind: str, group: int) -> Callable[..., None]:
    def run(a: Any, b: Any, out: Any, rows: int = 16, groups: int = 16, width: int = 16) -> None:
        depth, columns = int(groups) * group, int(width)
        left = _rows(a, depth, a.strides[-2], int(rows)).astype(kind)
        right = b.view((int(groups), columns, group), b.strides[-3:]).astype(kind)
        tile = _rows(out, columns, out.strides[-2], int(rows))
        tile[...] = tile + left @ right.transpose(0, 2, 1).reshape(depth, columns)

    return run


def _mean_weave(source: Any, target: Any, stride: int, tile_stride: int) -> None:
    group = 4 // target.buffer.dtype.bytes
    rows = _rows(source, 16 * group, int(stride)).reshape(16, 16, group)
    target.view((16, 16, group), (int(tile_stride), group, 1))[...] = rows.transpose(1, 0, 2)


_MEANINGS: dict[str, Callable[..., Any]] = {
    "amx_weave": _mean_weave,
    "amx_load": _mean_move(1),
    "amx_store": _mean_move(0),
    "amx_zero": _mean_zero,
    "amx_dot_bf16": _mean_dot("float32", 2),
    "amx_dot_u8s8": _mean_dot("int32", 4),
    "amx_dot_s8s8": _mean_dot("int32", 4),
}
for _name, _meaning in _MEANINGS.items():
    te.register_effect(_name, _meaning)


# ----------------------------------------------------------------------------------------------------- declaring


DOTS = {
    ("bfloat16", "bfloat16"): ("float32", 2, "amx_dot_bf16"),
    ("uint8", "int8"): ("int32", 4, "amx_dot_u8s8"),
    ("int8", "int8"): ("int32", 4, "amx_dot_s8s8"),
}
"""For pairs of operands the type of their sums, how many rows of the right one are woven together, the instruction."""


def _declare_move(name: str, tile: int, shape: tuple[int, ...], dtype: str, step: int = 1) -> None:
    """Between memory and a tile, the source (0) or the target (1), which has every `step`-th of the source's rows."""
    source = te.placeholder(((shape[0] - 1) * step + 1, *shape[1:]), dtype, name="source")
    target = te.compute(shape, lambda row, *i: source[(row * step, *i)], name="target")
    size = index_expr(shape[0]), index_expr(math.prod(shape[1:]) * int(source.dtype.bytes))

    def rule(inputs: Any, outputs: Any) -> Call:
        strides = [inputs[0].stride(0) * step, outputs[0].stride(0)][:: 1 if tile else -1]
        call = ("amx_store", "amx_load")[tile]
        return Call(call, (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), *strides, *size), INT32)

    te.decl_tensor_intrin(target.op, rule, name)


def _declare_dot(name: str, left: str, right: str, shape: tuple[int, int, int], call: str) -> None:
    """A product of tiles: `shape` is rows and depth of the left operand and columns of the right."""
    wide, group, _ = DOTS[left, right]
    rows, depth, width = shape
    a = te.placeholder((rows, depth), left, name="a")
    b = te.placeholder((depth // group, width, group), right, name="b")
    k = te.reduce_axis(depth, name="k")
    out = te.compute(
        (rows, width),
        lambda i, j: te.sum(a[i, k].astype(wide) * b[k // group, j, k % group].astype(wide), axis=k),
        name="out",
    )
    size = index_expr(rows), index_expr(depth // group), index_expr(width)

    def rule(inputs: Any, outputs: Any) -> tuple[Any, Call, Call]:
        reset = Call("amx_zero", (outputs[0].access_ptr("w"), size[0], size[2]), INT32)
        operands = (inputs[0].access_ptr("r"), inputs[1].access_ptr("r"), outputs[0].access_ptr("rw"))
        update = Call(call, (*operands, *size), INT32)
        return [reset, update], reset, update

    te.decl_tensor_intrin(out.op, rule, name)


def _declare_weave(name: str, dtype: str, group: int) -> None:
    source = te.placeholder((16, 16 * group), dtype, name="source")
    woven = te.placeholder((16, 16, group), dtype, name="woven")
    j, k = Var("j"), Var("k")
    body = Store(woven, [k // group, j, k % group], Load(source, [j, k]))
    reads, writes = block_regions(body, None)
    block: Stmt = Block("woven", [Axis(j, 16), Axis(k, 16 * group)], [Var("j"), Var("k")], reads, writes, body)
    description = Func("weave", [source, woven], block)

    def rule(inputs: Any, outputs: Any) -> Call:
        rows = inputs[0].stride(0), outputs[0].stride(0)
        return Call("amx_weave", (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), *rows), INT32)

    register_intrinsic(TensorIntrin(name, description, [source], woven, rule))


@dataclass(frozen=True)
class Tiles:
    """The intrinsics for tiles of one shape; `weave` is for full ones."""

    load_left: str
    load_right: str
    dot: str
    store: str
    weave: str = ""


_SHORT = {"bfloat16": "bf16", "uint8": "u8", "int8": "s8", "float32": "f32", "int32": "i32"}


@functools.cache
def tiles(left: str, right: str, shape: tuple[int, int, int] | None = None, step: int = 1) -> Tiles:
    """Declares, once, the intrinsics for tiles of these element types; the left rows lie `step` rows apart.

    `shape` is rows, depth and columns of the product (None: full tiles).
    """
    wide, group, call = DOTS[left, right]
    rows, depth, width = shape or (TILE, TILE * group, TILE)
    if shape is None:
        of_left, of_right = f"amx_load_{_SHORT[left]}", f"amx_load_{_SHORT[right]}x{group}"
        names = Tiles(of_left, of_right, call, f"amx_store_{_SHORT[wide]}", f"amx_weave_{_SHORT[right]}")
        _declare_weave(names.weave, right, group)
    else:
        part = f"{left}_{right}_{rows}x{depth}x{width}"
        names = Tiles(f"amx_left_{part}_{step}", f"amx_right_{part}", f"amx_dot_{part}", f"amx_store_{part}")
    _declare_move(names.load_left, 1, (rows, depth), left, step)
    _declare_move(names.load_right, 1, (depth // group, width, group), right)
    _declare_dot(names.dot, left, right, (rows, depth, width), call)
    _declare_move(names.store, 0, (rows, width), wide)
    return names


for _left, _right in DOTS:
    tiles(_left, _right)


# ---------------------------------------------------------------------------------------------------------- the pass


def configure_tiles(func: Func) -> Func:
    """Puts amx_configure and amx_release around the part of each thread that uses tiles.

    for i in range(n) parallel: {tiles}   ->   for i in range(n) parallel: {amx_configure(); tiles; amx_release()}
    """
    return _Configure().func(func) if _uses_tiles(func.body) else func


def _uses_tiles(s: Stmt) -> bool:
    return any(isinstance(x, Allocate) and x.buffer.scope == TILES.name for x in walk_stmts(s))


def _around(s: Stmt) -> Stmt:
    sizes = [index_expr(n) for size in _sizes(s) for n in size]
    return seq(Evaluate(Call("amx_configure", sizes, INT32)), s, Evaluate(Call("amx_release", (), INT32)))


_FILLS = {"amx_load": (1, 4, 1), "amx_zero": (0, 1, 4)}
"""What a tile has first: which argument the tile is, where its rows and their lengths stand, the bytes of a length."""


def _sizes(s: Stmt) -> list[tuple[int, int]]:
    """Rows and bytes of a row of each tile register, from what fills them: a tile of sums may be all there is."""
    shapes: dict[Buffer, tuple[int, int]] = {}
    for e in walk_exprs(s, Call):
        if isinstance(e, Call) and e.name in _FILLS:
            at, place, unit = _FILLS[e.name]
            tile, rows, length = e.args[at], *map(int_value, e.args[place : place + 2])
            assert isinstance(tile, Address) and rows is not None and length is not None
            shapes[tile.buffer] = rows, length * unit
    found: dict[int, tuple[int, int]] = {}
    for buffer, slots in _registers(s, 0):
        for slot in slots:
            size = shapes.get(buffer, (16, 64))
            if found.setdefault(slot, size) != size:
                raise TargetError(f"tile register {slot} has two shapes in one kernel: {found[slot]} and {size}")
    return [found.get(slot, (16, 64)) for slot in range(TILES.slots)]


def _registers(s: Stmt, used: int) -> Iterator[tuple[Buffer, range]]:
    """The registers that each buffer of tiles takes: the next free ones while the statement inside it runs."""
    if isinstance(s, Allocate) and s.buffer.scope == TILES.name:
        needed = -(-_elements(s.buffer) * s.buffer.dtype.bytes // TILES.slot_bytes)
        yield s.buffer, range(used, used + needed)
        used += needed
    for child in child_stmts(s):
        yield from _registers(child, used)


def _elements(buffer: Buffer) -> int:
    sizes = [int_value(n) or 1 for n in buffer.shape]
    if buffer.strides is None:
        return math.prod(sizes)
    return 1 + sum((size - 1) * (int_value(stride) or 0) for size, stride in zip(sizes, buffer.strides))


class _Configure(Mutator):
    def func(self, f: Func) -> Func:
        """The whole program, or the bodies of its parallel loops where tiles are used in those."""
        if any(isinstance(s, For) and s.kind == "parallel" and _uses_tiles(s) for s in walk_stmts(f.body)):
            return super().func(f)
        return f.replace(body=_around(f.body))

    def visit_For(self, s: For) -> Stmt:
        """A parallel loop's body is what one thread runs at a time."""
        if s.kind == "parallel" and _uses_tiles(s):
            return s.replace(body=_around(s.body))
        return self.generic_stmt(s)


def available(target: Target) -> bool:
    """Whether the target has AMX and, where it is this machine, lets the process use it."""
    if not {"amx-tile", "amx-bf16", "amx-int8"} <= target.features:
        return False
    return permitted() if target.is_host else True

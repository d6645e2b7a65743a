"""Matrix products of bfloat16 and of bytes: on AMX tiles, or by the dot products of vector registers.

    bfloat16 × bfloat16 -> float32 or bfloat16        AMX
    uint8 × int8 -> int32                             AMX or AVX-512 VNNI
    int8 × int8 -> int32                              AMX

On AMX a 2 × 2 block of 16 × 16 tiles stays in registers while the reduction runs; B is packed, two (or four) rows
woven together as the instructions want them, into tiles of one kilobyte. Sizes that do not fill tiles are padded in
packed copies; only the result's edge is written with a test.
"""

from __future__ import annotations

from typing import Any

from weft import te
from weft.core.errors import TargetError
from weft.schedule.schedule import Schedule, Stage
from weft.targets.base import Target
from weft.targets.cpu import amx, dot
from weft.targets.cpu.gemm import ceildiv

_KINDS = {
    ("bfloat16", "bfloat16"): ("float32", 2, "bf16", "bf16x2", "amx_dot_bf16"),
    ("uint8", "int8"): ("int32", 4, "u8", "s8x4", "amx_dot_u8s8"),
    ("int8", "int8"): ("int32", 4, "s8", "s8x4", "amx_dot_s8s8"),
}


def gemm_tiles(
    m: int, n: int, k: int, left: str, right: str, target: Target, out: str | None = None
) -> tuple[Schedule, list[Any]]:
    """The schedule of a matrix product on AMX tiles, and its arguments A, B, C."""
    if (left, right) not in _KINDS:
        raise TargetError(f"AMX multiplies {', '.join(f'{a} by {b}' for a, b in _KINDS)}, not {left} by {right}")
    if not amx.available(target):
        raise TargetError(f"{target.name} has no AMX tiles (or the system does not grant them)")
    wide, group, load_a, load_b, dot = _KINDS[(left, right)]
    out = out or wide
    depth = 16 * group
    rows, columns, steps = ceildiv(m, 32) * 32, ceildiv(n, 32) * 32, ceildiv(k, depth) * depth
    a = te.placeholder((m, k), left, name="A")
    b = te.placeholder((k, n), right, name="B")
    p = te.reduce_axis(steps, name="k")
    zero = te.cast(0, left)
    pad_a = rows != m or steps != k
    padded = (
        te.compute((rows, steps), lambda i, q: te.if_then_else(te.all(i < m, q < k), a[i, q], zero), name="padded")
        if pad_a
        else a
    )
    packed = te.compute(
        (columns // 32, steps // depth, 2, 16, 16, group),
        lambda jo, po, h, q, ji, t: _inside(
            po * depth + q * group + t, k, steps, jo * 32 + h * 16 + ji, n, columns, b, right
        ),
        name="packed",
    )
    tile = te.compute(
        (rows, columns),
        lambda i, j: te.sum(
            padded[i, p].astype(wide)
            * packed[j // 32, p // depth, j % 32 // 16, p % depth // group, j % 16, p % group].astype(wide),
            axis=p,
        ),
        name="tile",
    )
    direct = out == wide and (rows, columns) == (m, n)
    stored = None if direct else te.compute((rows, columns), lambda i, j: tile[i, j], name="stored")
    source = tile if stored is None else stored
    c = te.compute((m, n), lambda i, j: source[i, j].astype(out), name="C")
    s = te.create_schedule(c.op, name=f"gemm_{left}_{m}_{n}_{k}")
    blocks = ceildiv(ceildiv(columns, 512), target.cores) * target.cores
    block = min(columns, ceildiv(ceildiv(columns, blocks), 32) * 32)
    jc, io, jr, last = _outer_loops(s, c, stored, block)
    emptied = _store_tiles(last)
    s[tile].compute_at(s[c], jr, exact=False)
    s[tile].set_scope("amx.tile")
    s.transform_layout(tile, lambda i, j: (i // 16, j // 16, i % 16, j % 16))
    rows_of_a = s[padded] if pad_a else s.cache_read(a, "global", [tile])
    _pack_tiles(s, rows_of_a, s[c], io, depth)
    _multiply_tiles(s, tile, rows_of_a, packed, depth, (f"amx_load_{load_a}", f"amx_load_{load_b}", dot))
    last.tensorize(emptied, f"amx_store_{'f32' if wide == 'float32' else 'i32'}")
    s[packed].compute_at(s[c], jc, exact=False)
    _pack_rows(s[packed])
    s[c].parallel(jc)
    return s, [a, b, c]


def _inside(q: Any, k: int, steps: int, j: Any, n: int, columns: int, b: Any, dtype: str) -> Any:
    tests = [t for t, padded in ((q < k, steps != k), (j < n, columns != n)) if padded]
    return te.if_then_else(te.all(*tests), b[q, j], te.cast(0, dtype)) if tests else b[q, j]


def _outer_loops(s: Schedule, c: Any, stored: Any, block: int) -> tuple[Any, Any, Any, Stage]:
    """The loops over column blocks, row tiles and column tiles; the stage that takes the results out of the tiles."""
    i, j = s[c].axis
    jc, jb = s[c].split(j, factor=block)
    jr, ji = s[c].split(jb, factor=32)
    io, ii = s[c].split(i, factor=32)
    s[c].reorder(jc, io, jr, ii, ji)
    if stored is None:
        return jc, io, jr, s[c]
    s[stored].compute_at(s[c], jr, exact=False)
    s[stored].set_scope("local")
    _, lane = s[c].split(ji, factor=16)
    s[c].vectorize(lane)
    return jc, io, jr, s[stored]


def _store_tiles(stage: Stage) -> Any:
    """Splits the stage that empties the tiles into whole tiles; gives the loop from which a tile is one instruction."""
    i, j = stage.loops[-2:]
    io, ii = stage.split(i, factor=16)
    jo, ji = stage.split(j, factor=16)
    stage.reorder(io, jo, ii, ji)
    stage.unroll(io)
    stage.unroll(jo)
    return ii


def _pack_tiles(s: Schedule, stage: Stage, parent: Stage, loop: Any, depth: int) -> None:
    """Rows of A copied into whole tiles, once for a block of columns: in place they fall into few sets of the cache."""
    s.transform_layout(stage, lambda i, q: (q // depth, i // 16, i % 16, q % depth))
    stage.compute_at(parent, loop, exact=False)
    _, lane = stage.split(stage.axis[1], factor=depth)
    stage.vectorize(lane)


def _multiply_tiles(s: Schedule, tile: Any, a: Any, b: Any, depth: int, names: tuple[str, str, str]) -> None:
    i, j = s[tile].axis
    (p,) = s[tile].reduce_axis
    io, ii = s[tile].split(i, factor=16)
    jo, ji = s[tile].split(j, factor=16)
    po, pi = s[tile].split(p, factor=depth)
    s[tile].reorder(po, io, jo, ii, ji, pi)
    s[tile].unroll(io)
    s[tile].unroll(jo)
    left = s.cache_read(a, "amx.tile", [tile])
    left.compute_at(s[tile], po)
    left.unroll(left.axis[1])
    left.tensorize(left.axis[2], names[0])
    right = s.cache_read(b, "amx.tile", [tile])
    right.compute_at(s[tile], po)
    right.unroll(right.axis[2])
    right.tensorize(right.axis[3], names[1])
    s[tile].tensorize(ii, names[2])


def _pack_rows(stage: Stage) -> None:
    *outer, q, ji, t = stage.axis
    if len(outer) == 3:  # both halves of a cache line of B's row at once
        *outer, half = outer
        stage.reorder(*outer, q, half, t, ji)
        stage.unroll(half)
    else:
        stage.reorder(*outer, q, t, ji)
    stage.unroll(t)
    stage.vectorize(ji)


def gemm_vnni(m: int, n: int, k: int, target: Target) -> tuple[Schedule, list[Any]]:
    """The schedule of a uint8 × int8 -> int32 product by AVX-512 VNNI, and its arguments A, B, C."""
    if "avx512vnni" not in target.features:
        raise TargetError(f"{target.name} has no AVX-512 VNNI")
    steps, columns = ceildiv(k, 4) * 4, ceildiv(n, 16) * 16
    a = te.placeholder((m, k), "uint8", name="A")
    b = te.placeholder((k, n), "int8", name="B")
    p = te.reduce_axis(steps, name="k")
    padded = a
    if steps != k:
        padded = te.compute(
            (m, steps), lambda i, q: te.if_then_else(q < k, a[i, q], te.cast(0, "uint8")), name="padded"
        )
    packed = te.compute(
        (columns // 16, steps // 4, 16, 4),
        lambda jo, q, ji, t: _inside(q * 4 + t, k, steps, jo * 16 + ji, n, columns, b, "int8"),
        name="packed",
    )
    tile = te.compute(
        (m, columns),
        lambda i, j: te.sum(
            padded[i, p].astype("int32") * packed[j // 16, p // 4, j % 16, p % 4].astype("int32"), axis=p
        ),
        name="tile",
    )
    c = te.compute((m, n), lambda i, j: tile[i, j], name="C")
    s = te.create_schedule(c.op, name=f"gemm_vnni_{m}_{n}_{k}")
    blocks = ceildiv(ceildiv(columns, 512), target.cores) * target.cores
    i, j = s[c].axis
    jc, jb = s[c].split(j, factor=ceildiv(ceildiv(columns, blocks), 32) * 32)
    jr, jt = s[c].split(jb, factor=32)
    jv, jl = s[c].split(jt, factor=16)
    io, ii = s[c].split(i, factor=min(m, 12))
    s[c].reorder(jc, io, jr, ii, jv, jl)
    s[c].unroll(ii)
    s[c].unroll(jv)
    s[c].vectorize(jl)
    s[tile].compute_at(s[c], jr, exact=False)
    s[tile].set_scope("local")
    row, column = s[tile].axis
    column, lanes = s[tile].split(column, factor=16)
    po, pi = s[tile].split(s[tile].reduce_axis[0], factor=4)
    s[tile].reorder(po, row, column, lanes, pi)
    s[tile].unroll(row)
    s[tile].unroll(column)
    s[tile].tensorize(lanes, dot.VNNI)
    s[packed].compute_at(s[c], jc, exact=False)
    _pack_rows(s[packed])
    s[c].parallel(jc)
    return s, [a, b, c]

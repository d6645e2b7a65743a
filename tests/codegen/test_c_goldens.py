"""Printed C, OpenCL C and CUDA C of a handful of programs (UPDATE_GOLDENS=1 writes them anew)."""

import os
from pathlib import Path

import pytest

from weft import te
from weft.codegen.c.generate import generate_plain
from weft.plan.planner import unit_of
from weft.targets.cuda import tensor_cores
from weft.targets.registry import find_target

GOLDENS = Path(__file__).parent / "goldens"
SUFFIXES = {"c": "c", "opencl": "cl", "cuda": "cu"}


def cooperative_matmul():
    """Operands fetched together into shared memory, barriers, registers."""
    a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    k = te.reduce_axis(64, "k")
    c = te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    s = te.create_schedule(c.op)
    local = s.cache_write(c, "local")
    y, x = s[c].op.axis
    by, ty = s[c].split(y, 32)
    bx, tx = s[c].split(x, 32)
    ty, yi = s[c].split(ty, 4)
    tx, xi = s[c].split(tx, 4)
    s[c].reorder(by, bx, ty, tx, yi, xi)
    thread_y, thread_x = te.thread_axis((0, 8), "threadIdx.y"), te.thread_axis((0, 8), "threadIdx.x")
    for loop, axis in ((by, te.thread_axis("blockIdx.y")), (bx, te.thread_axis("blockIdx.x")), (ty, thread_y)):
        s[c].bind(loop, axis)
    s[c].bind(tx, thread_x)
    s[c].vectorize(xi)
    s[local].compute_at(s[c], tx)
    outer, inner = s[local].split(s[local].op.reduce_axis[0], 8)
    s[local].reorder(outer, inner, *s[local].op.axis)
    for tensor in (a, b):
        shared = s.cache_read(tensor, "shared", [local])
        s[shared].compute_at(s[local], outer)
        fused = s[shared].fuse(*s[shared].op.axis)
        fy, rest = s[shared].split(fused, nparts=8)
        fx, lanes = s[shared].split(rest, nparts=8)
        s[shared].bind(fy, thread_y)
        s[shared].bind(fx, thread_x)
        s[shared].vectorize(lanes)
    return s.func


def halves():
    """16-bit floats: wide loads of bits, arithmetic in float32, rounding."""
    a = te.placeholder((256,), "float16", name="A")
    b = te.placeholder((256,), "bfloat16", name="B")
    c = te.compute((256,), lambda i: te.maximum(a[i] * 2.0, b[i].astype("float16")), name="C")
    s = te.create_schedule(c.op)
    block, rest = s[c].split(s[c].op.axis[0], 128)
    thread, lane = s[c].split(rest, 8)
    s[c].bind(block, te.thread_axis("blockIdx.x"))
    s[c].bind(thread, te.thread_axis("threadIdx.x"))
    s[c].vectorize(lane)
    return s.func


def two_kernels():
    """A workspace between two launches, and a guarded tail."""
    a = te.placeholder((100,), "int32", name="A")
    b = te.compute((100,), lambda i: a[i] * a[i], name="B")
    c = te.compute((100,), lambda i: b[99 - i] % 7 + b[i] // 3, name="C")
    s = te.create_schedule(c.op)
    for stage in (b, c):
        block, thread = s[stage].split(s[stage].op.axis[0], 32)
        s[stage].bind(block, te.thread_axis("blockIdx.x"))
        s[stage].bind(thread, te.thread_axis("threadIdx.x"))
    return s.func


def padded():
    """Loads that happen only inside of the array; sizes that are known at the call."""
    n = te.var("n")
    a = te.placeholder((n,), "float32", name="A")
    zero = te.const(0.0, "float32")
    p = te.compute((n + 2,), lambda i: te.if_then_else(te.all(i >= 1, i < n + 1), a[i - 1], zero), name="P")
    c = te.compute((n,), lambda i: te.exp(p[i]) + p[i + 2], name="C")
    s = te.create_schedule(c.op)
    s[p].compute_inline()
    block, thread = s[c].split(s[c].op.axis[0], 64)
    s[c].bind(block, te.thread_axis("blockIdx.x"))
    s[c].bind(thread, te.thread_axis("threadIdx.x"))
    return s.func


def plain():
    """A large intermediate, a reduction and a bool."""
    a = te.placeholder((64, 100), "float32", name="A")
    b = te.compute((64, 100), lambda i, j: te.sqrt(a[i, j]), name="B")
    k = te.reduce_axis(64, "k")
    c = te.compute((100,), lambda j: te.max(b[63 - k, j], axis=k), name="C")
    d = te.compute((100,), lambda j: c[j] > 1.0, name="D")
    return te.create_schedule(d.op).func


def tensor_core_product(kinds):
    """A product by mma.sync: operands turned along k, fetched ahead into shared memory, multiplied in registers."""
    target = find_target("cuda:sm_80").with_features(tensor_cores.FEATURE)
    a, b = te.placeholder((32, 64), kinds[0], name="A"), te.placeholder((64, 32), kinds[1], name="B")
    wide = "float32" if kinds[0] == "float32" else "int32"
    k = te.reduce_axis(64, "k")
    c = te.compute((32, 32), lambda i, j: te.sum(a[i, k].astype(wide) * b[k, j].astype(wide), axis=k), name="C")
    s = te.create_schedule(c.op)
    sketch = tensor_cores.match_warps(unit_of(s, "C", target, [], set()))
    sketch.apply(
        {"warps_x": 1, "warps_y": 1, "warp_x": 16, "warp_y": 16, "step": 1, "stages": 2, "parts": 1, "shares": 1}
    )
    return s.func


def product_of_bytes():
    """Unsigned by signed bytes."""
    return tensor_core_product(("uint8", "int8"))


def product_in_tf32():
    """Float32, rounded where it is loaded."""
    return tensor_core_product(("float32", "float32"))


PROGRAMS = [(cooperative_matmul, "opencl"), (cooperative_matmul, "cuda"), (halves, "opencl"), (halves, "cuda"),
            (halves, "c"), (two_kernels, "opencl"), (two_kernels, "cuda"), (padded, "cuda"), (plain, "c"),
            (product_of_bytes, "cuda"), (product_in_tf32, "cuda")]  # fmt: skip


def printed(program, dialect):
    """The source, with the launches of a device program in front."""
    if dialect == "c":
        return generate_plain(find_target("x86_64-unknown-linux-gnu").lower(program()))
    target = find_target({"opencl": "opencl:generic", "cuda": "cuda:sm_80"}[dialect])
    made = target.generate(target.lower(program()))
    lines = [
        f"// {k.name}: grid {k.grid}, block {k.block}, {k.shared_bytes} bytes shared, {', '.join(k.params)}"
        for k in made.kernels
    ]
    lines += [f"// workspace {w.name}: {w.elements} x {w.dtype}" for w in made.workspaces]
    return "\n".join(lines) + "\n" + made.source


@pytest.mark.parametrize(("program", "dialect"), PROGRAMS, ids=lambda p: getattr(p, "__name__", p))
def test_golden(program, dialect):
    text, golden = printed(program, dialect), GOLDENS / f"{program.__name__}.{SUFFIXES[dialect]}"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_goldens_belong_to_programs():
    assert {p.name for p in GOLDENS.iterdir()} == {f"{p.__name__}.{SUFFIXES[d]}" for p, d in PROGRAMS}

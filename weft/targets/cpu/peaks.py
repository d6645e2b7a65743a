"""What this machine can do at most: multiply-adds that never leave the registers, and copies that miss every cache.

fma_peak(threads=1)                 GFLOP/s of float32 multiply-adds (also float16, float64)
copy_bandwidth(threads=1)           GB/s of a large copy, reads and writes both counted
machine_peaks(target, threads=1)    the three, measured once and then read from the cache folder
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from weft.runtime.jit import compile_module, host_machine
from weft.targets.base import Target
from weft.targets.cpu import amx
from weft.targets.cpu.machine import core_of
from weft.targets.peaks import Peaks
from weft.targets.registry import find_target

_LLVM_FLOATS = {"float16": ("half", 2), "float32": ("float", 4), "float64": ("double", 8)}
UNROLL = 4


# ---------------------------------------------------------------------------------------------------- multiply-adds


def vector_bytes() -> int:
    """The width of this processor's vector registers."""
    return max(find_target("native").vector_bytes, 16)


def accumulators() -> int:
    """Independent sums: enough to hide the latency of a multiply-add on every port, few enough to stay in registers."""
    return 12 if find_target("native").vector_registers < 32 else 24


def fma_ir(dtype: str, count: int | None = None) -> str:
    """LLVM IR of `void fma_loop(int64 count, float *values)`: nothing but multiply-adds on registers in its loop.

    `values` holds one vector for each accumulator and two factors; loading them keeps LLVM from knowing, and so from
    folding, what is computed. The sums are stored back at the end. `count` of them; else as many as hide the latency.
    """
    scalar, size = _LLVM_FLOATS[dtype]
    lanes = vector_bytes() // size
    vector, suffix = f"<{lanes} x {scalar}>", f"v{lanes}f{size * 8}"
    sums = range(count or accumulators())
    lines = [f"declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})"]
    lines += ["define void @fma_loop(i64 %count, ptr %values) {", "entry:"]
    for i in [*sums, len(sums), len(sums) + 1]:
        lines.append(f"  %p{i} = getelementptr {vector}, ptr %values, i64 {i}")
        lines.append(f"  %v{i} = load {vector}, ptr %p{i}, align {size}")
    lines += ["  br label %loop", "loop:", "  %n = phi i64 [ %count, %entry ], [ %next, %loop ]"]
    lines += [f"  %s{i}_0 = phi {vector} [ %v{i}, %entry ], [ %s{i}_{UNROLL}, %loop ]" for i in sums]
    factors = f"{vector} %v{len(sums)}, {vector} %v{len(sums) + 1}"
    for step in range(UNROLL):
        for i in sums:
            lines.append(f"  %s{i}_{step + 1} = call {vector} @llvm.fma.{suffix}({factors}, {vector} %s{i}_{step})")
    lines += ["  %next = sub i64 %n, 1", "  %more = icmp sgt i64 %next, 0"]
    lines += ["  br i1 %more, label %loop, label %end", "end:"]
    lines += [f"  store {vector} %s{i}_{UNROLL}, ptr %p{i}, align {size}" for i in sums]
    return "\n".join([*lines, "  ret void", "}"])


def full_width_machine() -> Any:
    """LLVM prefers 256-bit registers on some processors that have 512; here the full width is the point."""
    features = llvm.get_host_cpu_features().flatten()
    return host_machine(features=features + ",-prefer-256-bit" if "+avx512f" in features else features)


def fma_peak(threads: int = 1, dtype: str = "float32", seconds: float = 0.3) -> float:
    """GFLOP/s of fused multiply-adds (two operations each) on registers, by so many threads: the best of several."""
    if dtype not in _LLVM_FLOATS:
        raise ValueError(f"no multiply-add peak for {dtype!r}; choose from {', '.join(_LLVM_FLOATS)}")
    if threads < 1:
        raise ValueError(f"threads is {threads}, but must be 1 or more")
    code = compile_module(fma_ir(dtype), full_width_machine())
    loop = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)(code.address("fma_loop"))
    width, vectors = vector_bytes() // _LLVM_FLOATS[dtype][1], accumulators()
    # Every accumulator starts at another value, or LLVM would keep only one of them.
    values = [np.arange(1, (vectors + 2) * width + 1, dtype=dtype) / 4096 for _ in range(threads)]
    work = [lambda count, data=data: loop(count, data.ctypes.data) for data in values]
    count = 10_000
    while run_together(work, count) < seconds / 10:
        count *= 2
    operations = 2 * vectors * width * UNROLL * count * threads
    return operations / min(run_together(work, count) for _ in range(8)) / 1e9


def run_together(work: Sequence[Callable[[int], object]], count: int) -> float:
    """Seconds from the common start to the last one's end, each in a thread of its own (the calls release the GIL)."""
    gate = threading.Barrier(len(work))

    def one(job: Callable[[int], object]) -> tuple[float, float]:
        gate.wait()
        begin = time.perf_counter()
        job(count)
        return begin, time.perf_counter()

    with ThreadPoolExecutor(len(work)) as pool:
        begins, ends = zip(*pool.map(one, work))
    return float(max(ends) - min(begins))


def copy_bandwidth(threads: int = 1, megabytes: int = 256) -> float:
    """GB/s of copying an array larger than the caches, read and write both counted: the best of several."""
    source = np.ones(megabytes << 20, np.uint8)
    destination = np.zeros_like(source)
    pieces = list(zip(np.array_split(source, threads), np.array_split(destination, threads), strict=True))
    work = [lambda _, pair=pair: np.copyto(pair[1], pair[0]) for pair in pieces]
    return float(2 * source.nbytes / min(run_together(work, 1) for _ in range(6)) / 1e9)


# ------------------------------------------------------------------------------------------------------- both


def measure(target: Target, threads: int) -> Peaks:
    """The peaks of this machine, for so many threads."""
    gflops = {dtype: fma_peak(threads, dtype) for dtype in ("float32", "float64")}
    core, lanes = core_of(target), target.vector_bytes // 4
    for dtype, feature, depth in (("bfloat16", "amx-bf16", 32), ("int8", "amx-int8", 64)):
        if feature in target.features and amx.permitted():
            products = amx.TILE * amx.TILE * depth / core.tile_cycles
            gflops[dtype] = gflops["float32"] * products / (core.multiply_adds * lanes)
    return Peaks(threads, gflops, copy_bandwidth(threads))

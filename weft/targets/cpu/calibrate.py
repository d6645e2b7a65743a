"""Measures what one core of this machine does in a cycle: `weft doctor --calibrate`.

    clock         a chain of additions that each wait for the one before: one a cycle
    multiply-adds many sums at a time, and a single one that waits for itself
    bytes         whole vectors, over and over from buffers that each level of the caches holds

Neighbours make a measurement slower, nothing makes it faster: the best of many short runs counts. What was found is
kept in the cache folder, is a fact of the target "native" from then on (a part of every key), and replaces what
`machine.py` lists for the processor.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from weft.core.errors import TargetError
from weft.runtime.cache_folder import cache_folder, cache_problem, write_whole
from weft.runtime.jit import compile_module
from weft.targets.base import Target
from weft.targets.cpu.machine import CACHE_FILE, Core, core_of
from weft.targets.cpu.parse import native
from weft.targets.cpu.peaks import UNROLL, accumulators, fma_ir, full_width_machine, run_together, vector_bytes

MOST_BYTES = 256 << 20
CHAIN, STREAMS = 64, 8
RUNS, RUN_SECONDS = 20, 0.002

_CLOCK_IR = "\n".join([
    "define void @run(i64 %count, ptr %data, i64 %bytes) {", "entry:", "  %a = load volatile i64, ptr %data",
    "  br label %loop", "loop:", "  %n = phi i64 [ %count, %entry ], [ %next, %loop ]",
    "  %x0 = phi i64 [ %a, %entry ], [ " f"%x{CHAIN}, %loop ]",
    *(f"  %x{i + 1} = {('add', 'xor')[i % 2]} i64 %x{i}, %a" for i in range(CHAIN)),
    "  %next = sub i64 %n, 1", "  %more = icmp sgt i64 %next, 0", "  br i1 %more, label %loop, label %end",
    "end:", f"  store volatile i64 %x{CHAIN}, ptr %data", "  ret void", "}",
])  # fmt: skip


def _load_ir() -> str:
    """Reads `bytes` from `data`, `count` times, in several streams of vectors; what they hold together is stored."""
    vector = f"<{vector_bytes() // 8} x i64>"
    streams = range(STREAMS)
    return "\n".join([
        "define void @run(i64 %count, ptr %data, i64 %bytes) {", "entry:",
        f"  %zero = load volatile {vector}, ptr %data, align 8", "  br label %outer",
        "outer:", "  %n = phi i64 [ %count, %entry ], [ %next, %turned ]",
        *(f"  %o{i} = phi {vector} [ %zero, %entry ], [ %y{i}, %turned ]" for i in streams),
        "  br label %loop", "loop:", "  %at = phi i64 [ 0, %outer ], [ %on, %loop ]",
        *(f"  %x{i} = phi {vector} [ %o{i}, %outer ], [ %y{i}, %loop ]" for i in streams),
        *(f"  %a{i} = add i64 %at, {i * vector_bytes()}" for i in streams),
        *(f"  %p{i} = getelementptr i8, ptr %data, i64 %a{i}" for i in streams),
        *(f"  %v{i} = load {vector}, ptr %p{i}, align 8" for i in streams),
        *(f"  %y{i} = xor {vector} %x{i}, %v{i}" for i in streams),
        f"  %on = add i64 %at, {STREAMS * vector_bytes()}", "  %inside = icmp slt i64 %on, %bytes",
        "  br i1 %inside, label %loop, label %turned", "turned:", "  %next = sub i64 %n, 1",
        "  %more = icmp sgt i64 %next, 0", "  br i1 %more, label %outer, label %end", "end:",
        *(f"  store volatile {vector} %y{i}, ptr %data, align 8" for i in streams), "  ret void", "}",
    ])  # fmt: skip


def _seconds(ir: str, name: str, data: Any, size: int) -> float:
    """What one turn of a loop takes: the best of many short runs."""
    code = compile_module(ir, full_width_machine())
    loop = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)(code.address(name))
    work, count = [lambda count: loop(count, data.ctypes.data, size)], 1
    while run_together(work, count) < RUN_SECONDS:
        count *= 2
    return min(run_together(work, count) for _ in range(RUNS)) / count


def measure(target: Target) -> Core:
    """One core of this machine."""
    if not target.is_host:
        raise TargetError(f"the target {target.name} is another machine: it cannot be measured from here")
    cycle = _seconds(_CLOCK_IR, "run", np.ones(1, np.int64), 0) / CHAIN
    width = vector_bytes()
    values = (np.arange((accumulators() + 2) * width // 4, dtype=np.float32) + 1) / 4096
    issued = _seconds(fma_ir("float32"), "fma_loop", values, 0) / cycle / (UNROLL * accumulators())
    waited = _seconds(fma_ir("float32", 1), "fma_loop", values, 0) / cycle / UNROLL
    first, second, third = target.cache_bytes
    # Pages that nobody wrote to are all one page of zeros.
    data = np.ones(min(max(4 * third, 64 << 20), MOST_BYTES), np.uint8)

    def bytes_a_cycle(size: int) -> float:
        size = max(size // (STREAMS * width), 1) * STREAMS * width
        return size / (_seconds(_load_ir(), "run", data, size) / cycle)

    return Core(
        multiply_adds=_rounded(1 / issued), latency=_rounded(waited), loads=_rounded(bytes_a_cycle(first // 2) / width),
        second_level=_rounded(bytes_a_cycle(second // 2)), memory=_rounded(bytes_a_cycle(data.nbytes)),
        third_level=_rounded(bytes_a_cycle(min(third // 2, data.nbytes // 4) or second // 2)),
        gigahertz=_rounded(1e-9 / cycle), bank_span=core_of(target).bank_span,
    )  # fmt: skip


def _rounded(value: float) -> float:
    """Two digits: choices are not to depend on noise."""
    return float(f"{value:.2g}")


def calibrate(target: Target) -> Mapping[str, float]:
    """Measures, and keeps what was found."""
    core = {name: number for name, number in asdict(measure(target)).items() if number}
    folder = cache_folder()
    if folder is None:
        raise TargetError(f"what was measured cannot be kept: {cache_problem() or 'there is no cache folder'}")
    with write_whole(folder / CACHE_FILE) as file:
        file.write(json.dumps({"cpu": target.cpu, "core": core}, indent=2).encode())
    native.cache_clear()
    return core

"""Kernels of models, made by LLVM with all of its passes ("mixed") and with those that shaped loops get.

    python -m benchmarks.llvm_settings resnet18 mobilenet_v2 bert_base --most 12

For each kernel: CPU time of a call on one thread, in turns, and CPU seconds that LLVM takes; then how many times as
much each other way takes of the call (and of LLVM), and the way that is chosen for it (weft/codegen/llvm/child.py).
"""

from __future__ import annotations

import argparse
import ctypes
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import weft
from benchmarks.workers import geometric_mean
from weft.codegen.llvm import child
from weft.codegen.llvm import compile as llvm_compile
from weft.core.knobs import knobs
from weft.expr.nodes import int_value
from weft.runtime.jit import JitModule, known_symbols
from weft.targets.registry import find_target

WAYS = ("mixed", "shaped", "straight")


@dataclass(frozen=True)
class Sample:
    """A kernel's text, and the bytes of what it is called with."""

    label: str
    symbol: str
    text: str
    sizes: tuple[int, ...]


def samples(name: str, most: int) -> list[Sample]:
    """Kernels of a built-in model, those of the most bytes first."""
    with knobs.override(cache=False):
        module = weft.compile(weft.models.make(name))
    found = {}
    for form in module._executor.specializations:  # noqa: SLF001  (what was compiled is shown nowhere else as text)
        for kernel in form.lowered.kernels:
            shapes = [[int_value(size) for size in p.shape] for p in kernel.scheduled.params]  # type: ignore[union-attr]
            if all(size is not None for shape in shapes for size in shape):
                sizes = tuple(
                    math.prod(s for s in shape if s is not None) * p.dtype.bits // 8
                    for shape, p in zip(shapes, kernel.scheduled.params)
                )
                found[kernel.symbol] = Sample(kernel.label, kernel.symbol, kernel.llvm_ir, sizes)
    return sorted(found.values(), key=lambda one: -len(one.text))[:most]


def made(sample: Sample) -> Iterator[tuple[str, float, JitModule]]:
    """The kernel in each way, and the CPU seconds that took."""
    target = find_target("native")
    facts = {"triple": target.triple, "cpu": target.cpu, "features": llvm_compile.feature_text(target)}
    known = known_symbols(llvm_compile.external_names(sample.text))
    for way in WAYS:
        start = time.thread_time()
        code = child.emit(child.parse(sample.text), {**facts, "form": "object", "tuning": way})
        yield way, time.thread_time() - start, JitModule([code], [sample.symbol], known)


def race(sample: Sample, seconds: float) -> dict[str, tuple[float, float]]:
    """For each way: CPU seconds of LLVM, and of the best call."""
    memory = [np.full(size // 4 + 4096, 0.01, "float32") for size in sample.sizes]
    slots = (ctypes.c_int64 * len(memory))(*[-(-one.ctypes.data // 4096) * 4096 for one in memory])
    place, calls, kept = ctypes.addressof(slots), {}, []
    taken: dict[str, float] = {}
    for way, spent, module in made(sample):
        taken[way] = spent
        kept.append(module)
        kind: Any = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
        calls[way] = kind(module.address(sample.symbol))
    best = dict.fromkeys(WAYS, math.inf)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for way in random.sample(WAYS, len(WAYS)):
            calls[way](place, 1)
            start = time.thread_time_ns()
            calls[way](place, 1)
            best[way] = min(best[way], (time.thread_time_ns() - start) * 1e-9)
    return {way: (taken[way], best[way]) for way in WAYS}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["resnet18", "mobilenet_v2", "bert_base"])
    parser.add_argument("--most", type=int, default=12, help="kernels of each model")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each kernel")
    given = parser.parse_args(arguments)
    ratios: dict[str, list[tuple[float, float]]] = {way: [] for way in (*WAYS[1:], "chosen")}
    for name in given.models:
        for sample in samples(name, given.most):
            figures = race(sample, given.seconds)
            chosen = llvm_compile.tuning_of(sample.text)
            first, call = figures["mixed"]
            for way in WAYS[1:]:
                ratios[way].append((figures[way][0] / first, figures[way][1] / call))
            ratios["chosen"].append((figures[chosen][0] / first, figures[chosen][1] / call))
            each = ", ".join(f"{way} {ratios[way][-1][1]:.3f} ({ratios[way][-1][0]:.2f})" for way in WAYS[1:])
            print(
                f"{name:14} {sample.label[:30]:30} {call * 1e6:9.1f} us ({first:.2f} s): {each}; {chosen}", flush=True
            )
    for way, found in ratios.items():
        compiles, calls = zip(*found)
        print(f"{way}: calls {geometric_mean(calls):.3f}, most {max(calls):.3f}; LLVM {geometric_mean(compiles):.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

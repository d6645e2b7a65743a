"""Operators: Weft and its peers in one run, with the ratio and the share of the machine's measured peak.

    python -m benchmarks.operators                       every table
    python -m benchmarks.operators --only gemm,low       some of them: gemm, threads, low, compile, runtime
    python -m benchmarks.operators --json out.json

`gemm`      float32 products, one thread, against MKL as PyTorch calls it; share of the measured FMA peak
`threads`   the same on two threads, against our own single thread
`low`       bfloat16 and byte products, by AMX and VNNI where there are, against PyTorch's and our own float32
`compile`   from model or schedule to machine code; scheduling and lowering of a fused convolution
`runtime`   a parallel region, a call, `import weft`

A product is `weft.compile` of a graph of one node that multiplies two inputs: what a model gets, packing included.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

import weft
from benchmarks import fused_conv, harness, peers
from weft.core.knobs import knobs
from weft.graph.ir import Graph
from weft.models.builder import Builder
from weft.plan.planner import analytic, picking
from weft.runtime.arrays import empty
from weft.runtime.jit import compile_module, native_runtime
from weft.targets.base import Target
from weft.targets.cpu import amx
from weft.targets.registry import find_target

SQUARES = (256, 384, 512, 768, 1024, 1536, 2048)
SHAPES: tuple[tuple[int, int, int], ...] = (*((s, s, s) for s in SQUARES), (1000, 37, 513), (17, 4096, 256))
"""Rows of A, columns of B, and the dimension they share."""

Rows = list[dict[str, Any]]


def aligned(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that starts at a cache line, so that neither side is held back by where numpy put the array."""
    made = empty(values.shape, values.dtype).numpy()
    made[...] = values
    return made


def random_matrix(rows: int, columns: int, dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Values that a network would hold."""
    generator = np.random.default_rng(seed)
    if dtype in ("int8", "uint8"):
        limits = np.iinfo(dtype)
        return aligned(generator.integers(limits.min, limits.max + 1, (rows, columns)).astype(dtype))
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return aligned(generator.standard_normal((rows, columns)).astype(kind))


def check(name: str, got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], tolerance: float) -> None:
    """A figure for a wrong result is worth nothing."""
    scale = float(np.abs(wanted).max()) or 1.0
    error = float(np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max()) / scale
    if not error <= tolerance:
        raise SystemExit(f"{name}: the result is off by {error:.1e} of its scale")


def gflops(shape: tuple[int, int, int], seconds: float) -> float:
    """Billions of additions and multiplications a second."""
    return 2.0 * shape[0] * shape[1] * shape[2] / seconds / 1e9


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return statistics.geometric_mean(values)


def product(m: int, n: int, k: int, left: str = "float32", right: str = "float32", out: str = "float32") -> Graph:
    """A model of one product of two inputs; bytes have sums of 32 bits."""
    b = Builder("product")
    x, z = b.input("x", (m, k), left), b.input("z", (k, n), right)
    if out == "int32":
        return b.finish(b.node("MatMulInteger", x, z))
    if out != left:
        x, z = (b.node("Cast", value, to=_ONNX_FLOAT) for value in (x, z))
    return b.finish(b.node("MatMul", x, z))


_ONNX_FLOAT = 1
"""float32, by ONNX's number."""


def compiled(graph: Graph, target: Target | str, threads: int = 1) -> Any:
    """The module of a graph, compiled now: neither the cache on disk nor a kernel made before is used."""
    with knobs.override(cache=False), picking(lambda unit, sketches: analytic(unit, sketches)):
        return weft.compile(graph, target=target, threads=threads)


def caller(module: Any, *arrays: Any) -> Callable[[], object]:
    """A candidate: the module on these arrays, the last of which takes the result."""
    *given, out = arrays
    return lambda: module(*given, out=out)


def bench_gemm(target: Target, seconds: float) -> Rows:
    """float32, one thread."""
    rows: Rows = []
    for shape in SHAPES:
        m, n, k = shape
        module = compiled(product(m, n, k), target)
        a, b = random_matrix(m, k, "float32", 1), random_matrix(k, n, "float32", 2)
        c = aligned(np.zeros((m, n), np.float32))
        (peer,) = peers.matmul(a, b, threads=1)
        peak = harness.fma_peak(threads=1, seconds=0.1)
        stats = harness.interleave({"weft": caller(module, a, b, c), "torch": peer.run}, seconds)
        check(f"gemm {shape}", c, peer.result(), 1e-5)
        peak = max(peak, harness.fma_peak(threads=1, seconds=0.1))
        ours, theirs = gflops(shape, stats["weft"].minimum), gflops(shape, stats["torch"].minimum)
        rows.append(
            {
                "operator": f"gemm float32 {m}×{n}×{k}",
                "weft GFLOP/s": ours,
                "torch GFLOP/s": theirs,
                "ratio": ours / theirs,
                "ratio, median of rounds": harness.speed_ratio(stats["weft"], stats["torch"]),
                "share of peak": ours / peak,
            }
        )
    rows.append(
        {
            "operator": "geometric mean",
            "ratio": geometric_mean([r["ratio"] for r in rows]),
            "ratio, median of rounds": geometric_mean([r["ratio, median of rounds"] for r in rows]),
        }
    )
    return rows


def bench_threads(target: Target, seconds: float) -> Rows:
    """float32 on two threads against one."""
    rows: Rows = []
    for size in (512, 1024, 2048):
        shape = (size, size, size)
        a, b = random_matrix(size, size, "float32", 1), random_matrix(size, size, "float32", 2)
        c = aligned(np.zeros((size, size), np.float32))
        one, two = (caller(compiled(product(*shape), target, threads), a, b, c) for threads in (1, 2))
        own = harness.interleave({"one": one, "two": two}, seconds)
        # the peer's threads spin for a while after their work, on the core that the next candidate needs
        (peer,) = peers.matmul(a, b, threads=2)
        stats = harness.interleave({"two": two, "torch": peer.run}, seconds, settle=0.3)
        time.sleep(0.3)
        rows.append(
            {
                "operator": f"gemm float32 {size}³, two threads",
                "weft GFLOP/s": gflops(shape, stats["two"].minimum),
                "torch GFLOP/s": gflops(shape, stats["torch"].minimum),
                "ratio": stats["torch"].minimum / stats["two"].minimum,
                "times one thread": own["one"].minimum / own["two"].minimum,
                "times one thread, median": harness.speed_ratio(own["two"], own["one"]),
            }
        )
    return rows


def _low_candidates(target: Target, size: int) -> dict[str, Callable[[], object]]:
    """Our float32, bfloat16 and byte products of one size, checked against numpy."""
    candidates: dict[str, Callable[[], object]] = {}
    tiles, dots = amx.available(target), "avx512vnni" in target.features
    by = ", AMX" if tiles else ""
    kinds: list[tuple[str, str, str, str, Target | str]] = [
        ("float32", "float32", "float32", "float32", target),
        (f"bfloat16 -> bfloat16{by}", "bfloat16", "bfloat16", "bfloat16", target),
        (f"bfloat16 -> float32{by}", "bfloat16", "bfloat16", "float32", target),
        (f"uint8 × int8{by or ', VNNI' * dots}", "uint8", "int8", "int32", target),
        (f"int8 × int8{by}", "int8", "int8", "int32", target),
    ]
    if tiles and dots:
        kinds.append(("uint8 × int8, VNNI", "uint8", "int8", "int32", f"{target.name},features={WITHOUT_TILES}"))
    for name, left, right, out, machine in kinds:
        module = compiled(product(size, size, size, left, right, out), machine)
        a, b = random_matrix(size, size, left, 1), random_matrix(size, size, right, 2)
        c = aligned(np.zeros((size, size), ml_dtypes.bfloat16 if out == "bfloat16" else out))
        candidates[name] = caller(module, a, b, c)
        candidates[name]()
        check(name, c, a.astype(np.float64) @ b.astype(np.float64), 1e-2 if out == "bfloat16" else 1e-5)
    return candidates


WITHOUT_TILES = "-amx-tile,-amx-int8,-amx-bf16"


def bench_low(target: Target, seconds: float, size: int = 1024) -> Rows:
    """bfloat16 and bytes, one thread."""
    candidates = _low_candidates(target, size)
    brain = [random_matrix(size, size, "bfloat16", seed) for seed in (1, 2)]
    byte = [random_matrix(size, size, "int8", seed) for seed in (1, 2)]
    candidates["torch bfloat16"] = peers.matmul(*brain, threads=1)[0].run
    candidates["torch int8"] = peers.matmul(*byte, threads=1)[0].run
    stats = harness.interleave(candidates, seconds * len(candidates))
    own, shape = stats["float32"], (size, size, size)
    rows: Rows = []
    for name, taken in stats.items():
        peer = stats["torch bfloat16"] if "bfloat16" in name else stats["torch int8"] if "int8" in name else None
        rows.append(
            {
                "operator": f"gemm {name} {size}³",
                "GOP/s": gflops(shape, taken.minimum),
                "of torch's same type": peer.minimum / taken.minimum if peer and not name.startswith("torch") else None,
                "median of rounds": harness.speed_ratio(taken, peer) if peer and not name.startswith("torch") else None,
                "times our float32": own.minimum / taken.minimum,
            }
        )
    return rows


def bench_compile(target: Target, seconds: float) -> Rows:
    """Milliseconds from model or schedule to machine code, best of five."""

    def best(run: Callable[[], object], count: int = 5) -> float:
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        return min(taken) * 1e3

    rows: Rows = []
    for shape in ((1024, 1024, 1024), (1000, 37, 513), (17, 4096, 256)):
        name, graph = f"gemm float32 {'×'.join(map(str, shape))}: model to machine code", product(*shape)
        rows.append({"what": name, "ms": best(lambda graph=graph: compiled(graph, target))})  # type: ignore[misc]
    if amx.available(target):
        narrow = product(1024, 1024, 1024, *["bfloat16"] * 3)
        rows.append(
            {"what": "gemm bfloat16 1024³ on AMX: model to machine code", "ms": best(lambda: compiled(narrow, target))}
        )
    schedule, arguments = fused_conv.fused_conv2d()
    name = f"conv2d + bias + relu, {len(schedule.trace)} steps: schedule and lower"
    rows.append({"what": name, "ms": best(lambda: _lower_conv(target), 10)})
    rows.append(
        {
            "what": "conv2d + bias + relu: schedule to machine code",
            "ms": best(lambda: weft.build(*fused_conv.fused_conv2d(), target)),
        }
    )
    return rows


def _lower_conv(target: Target) -> object:
    schedule, arguments = fused_conv.fused_conv2d()
    return weft.lower(schedule, arguments, target)


def bench_runtime(target: Target, seconds: float) -> Rows:
    """Microseconds of a parallel region and of a call; seconds of an import."""
    runtime = native_runtime()
    text = "define void @nothing(i64 %begin, i64 %end, ptr %env) {\n  ret void\n}\n" + _REGIONS
    module = compile_module(text)
    many = ctypes.CFUNCTYPE(None, ctypes.c_int64)(module.address("regions"))
    many(1000)
    taken = []
    for _ in range(50):
        start = time.perf_counter()
        many(1000)
        taken.append(time.perf_counter() - start)
    a, b, n = weft.te.placeholder((16,), name="A"), None, 16
    b = weft.te.compute((n,), lambda i: a[i] + 1.0, name="B")
    function = weft.build(weft.te.create_schedule(b.op), [a, b], target)
    x, y = np.zeros(16, np.float32), np.zeros(16, np.float32)
    stats = harness.interleave({"call": lambda: function(x, y), "numpy": lambda: np.add(x, 1.0, out=y)}, seconds / 2)
    code = "import time; t = time.perf_counter(); import weft; print(time.perf_counter() - t)"
    imports = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert runtime.pool_size() >= 1
    regions, calls, peer = [t * 1e3 for t in taken], stats["call"], stats["numpy"]
    rows = [
        ("parallel region, two threads, empty body (µs)", min(regions), statistics.median(regions)),
        ("call of a function, two small arrays (µs)", calls.minimum * 1e6, calls.median * 1e6),
        ("numpy's own call of the same (µs)", peer.minimum * 1e6, peer.median * 1e6),
        ("import weft (s)", min(imports), statistics.median(imports)),
    ]
    return [{"what": what, "best": best, "median": median} for what, best, median in rows]


_REGIONS = """
declare void @weft_parallel_for(ptr, ptr, i64, i64)
define void @regions(i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void @weft_parallel_for(ptr @nothing, ptr null, i64 2, i64 2)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

TABLES: dict[str, tuple[str, Callable[[Target, float], Rows]]] = {
    "gemm": ("float32 matrix products, one thread", bench_gemm),
    "threads": ("float32 matrix products, two threads", bench_threads),
    "low": ("bfloat16 and byte products, one thread", bench_low),
    "compile": ("compile time, best of several", bench_compile),
    "runtime": ("runtime overheads", bench_runtime),
}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(TABLES), help="tables to make, with commas between")
    harness.add_arguments(parser)
    options = parser.parse_args()
    unknown = [name for name in options.only.split(",") if name not in TABLES]
    if unknown:
        parser.error(f"there is no table {unknown[0]!r}; known are {', '.join(TABLES)}")
    target = find_target("native")
    harness.print_system()
    results: dict[str, Any] = {}
    for name in options.only.split(","):
        title, run = TABLES[name]
        rows = run(target, options.seconds)
        results[name] = rows
        columns = list(dict.fromkeys(key for row in rows for key in row))
        harness.print_table(title, columns, [[row.get(column) for column in columns] for row in rows])
    if options.json:
        harness.write_json(options.json, results)


if __name__ == "__main__":
    main()

"""Weft's tuner beside TVM's MetaSchedule: the same programs, the same number of trials; kernels timed in turns.

    python -m benchmarks.metaschedule --tvm PYTHON --trials 64 [--only matmul]

PYTHON is an interpreter with apache-tvm 0.27 (psutil, cloudpickle, xgboost, apache-tvm-ffi 0.1.14.post1) in an
environment of its own: it runs this very file with --peer. Both tune for one thread; a kernel's figure is the least
processor time of a call in alternating batches. A search is told with its wall time and the processor time of it and
its children. A peer that crashes is told with its last words.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

SHAPES: dict[str, tuple[int, ...]] = {
    "matmul 512×512×512": (512, 512, 512),
    "conv 3x3 64→64 28": (64, 64, 28, 3),
    "conv 1x1 96→192 28": (96, 192, 28, 1),
}
BATCHES, BATCH_SECONDS = 7, 0.1


def program(te: Any, shape: tuple[int, ...], tvm: bool) -> tuple[list[Any], list[tuple[int, ...]]]:
    """A product, or a convolution of an image that is padded already, in either's tensor expressions."""

    def axis(extent: int, name: str) -> Any:
        return te.reduce_axis((0, extent), name) if tvm else te.reduce_axis(extent, name)

    if len(shape) == 3:
        m, k, n = shape
        sizes = [(m, k), (k, n), (m, n)]
        a, b, r = te.placeholder(sizes[0], name="A"), te.placeholder(sizes[1], name="B"), axis(k, "k")
        return [a, b, te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")], sizes
    ins, outs, size, window = shape
    edge = size + window - 1
    sizes = [(1, ins, edge, edge), (outs, ins, window, window), (1, outs, size, size)]
    x, w = te.placeholder(sizes[0], name="X"), te.placeholder(sizes[1], name="W")
    c, p, q = axis(ins, "c"), axis(window, "p"), axis(window, "q")
    y = te.compute(sizes[2], lambda n, f, i, j: te.sum(x[n, c, i + p, j + q] * w[f, c, p, q], axis=[c, p, q]), name="Y")
    return [x, w, y], sizes


def arrays(sizes: list[tuple[int, ...]]) -> list[Any]:
    """The same numbers for both."""
    random = np.random.default_rng(0)
    return [random.standard_normal(size).astype(np.float32) for size in sizes]


def batch(call: Any, calls: int) -> float:
    """Processor seconds of a call."""
    begin = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - begin) / calls


def times_of(call: Any) -> int:
    """Calls that fill a batch."""
    call()
    return max(1, int(BATCH_SECONDS / max(batch(call, 3), 1e-7)))


def processor_seconds() -> float:
    """Of this process and its children that have ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def peer(name: str, trials: int, cpu: str, triple: str) -> None:
    """Runs in TVM's environment: tunes, says how long that took, then a time for each line that it reads."""
    os.environ["TVM_NUM_THREADS"] = "1"
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule

    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "mtriple": triple, "num-cores": 1})
    args, sizes = program(te, SHAPES[name], True)
    module = tvm.IRModule({"main": te.create_prim_func(args)})
    begin, used = time.time(), processor_seconds()
    patient: dict[str, Any] = {  # a busy machine takes longer than their 30 s to start a worker
        "builder": meta_schedule.builder.LocalBuilder(timeout_sec=600),
        "runner": meta_schedule.runner.LocalRunner(timeout_sec=600),
    }
    with tempfile.TemporaryDirectory() as folder:
        found = meta_schedule.tune_tir(
            module, target, work_dir=folder, max_trials_global=trials, num_trials_per_iter=min(16, trials), **patient
        )
        best = meta_schedule.tir_integration.compile_tir(found, module, target)
        taken = time.time() - begin, processor_seconds() - used
        if best is None:
            raise SystemExit(f"none of {trials} trials could be built and run")
        library = tvm.compile(best.mod, target=target)
    given = [tvm.runtime.tensor(one) for one in arrays(sizes)]
    main = library["main"]
    calls = times_of(lambda: main(*given))
    print(json.dumps({"ready": taken, "sum": float(np.abs(given[2].numpy()).sum())}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(batch(lambda: main(*given), calls)), flush=True)


def weft_side(name: str, trials: int) -> tuple[tuple[float, float], Any, float]:
    """Seconds of tuning, the best kernel as a call, and the sum of what it gives."""
    import weft
    from weft import te

    args, sizes = program(te, SHAPES[name], False)
    begin, used = time.time(), processor_seconds()
    best = weft.tune(args[2], args, budget="1h", trials=trials, threads=1, target="native,cores=1")
    taken = time.time() - begin, processor_seconds() - used
    function, given = best.function, arrays(sizes)
    function(*given)
    return taken, lambda: function(*given), float(np.abs(given[2]).sum())


def compare(name: str, trials: int, python: str) -> None:
    """One program by both."""
    from weft.targets.registry import find_target

    machine = find_target("native")
    words = [
        python,
        __file__,
        "--peer",
        name,
        "--trials",
        str(trials),
        "--cpu",
        machine.cpu,
        "--triple",
        machine.triple,
    ]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdin is not None
    said = next((line for line in child.stdout if line.startswith('{"ready"')), "")
    if not said:
        print(f"{name}: TVM gave up: {child.communicate()[1].strip()[-300:]}")
        return
    theirs = json.loads(said)
    seconds, call, total = weft_side(name, trials)
    if abs(total - theirs["sum"]) > 1e-3 * total:
        raise SystemExit(f"{name}: results differ: {total} and {theirs['sum']}")
    calls, mine, other = times_of(call), [], []
    for _ in range(BATCHES):
        mine.append(batch(call, calls))
        child.stdin.write("again\n")
        child.stdin.flush()
        other.append(float(child.stdout.readline()))
    child.stdin.close()
    child.wait()
    print(
        f"{name}, {trials} trials each: kernel {1e3 * min(mine):.3f} ms, TVM {1e3 * min(other):.3f} ms, "
        f"{min(other) / min(mine):.2f} times as fast; tuned in {seconds[0]:.0f} s ({seconds[1]:.0f} s of processor), "
        f"TVM {theirs['ready'][0]:.0f} s ({theirs['ready'][1]:.0f} s), {seconds[0] / theirs['ready'][0]:.2f} and "
        f"{seconds[1] / theirs['ready'][1]:.2f} of that; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        flush=True,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.metaschedule", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--tvm", metavar="PYTHON", help="an interpreter that has apache-tvm")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--peer", choices=list(SHAPES), help=argparse.SUPPRESS)
    parser.add_argument("--cpu", default="generic", help=argparse.SUPPRESS)
    parser.add_argument("--triple", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peer:
        peer(given.peer, given.trials, given.cpu, given.triple)
        return
    for name in SHAPES:
        if not given.only or any(part in name for part in given.only):
            compare(name, given.trials, given.tvm)


if __name__ == "__main__":
    main()

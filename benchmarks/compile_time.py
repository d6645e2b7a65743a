"""What compiling costs, in CPU seconds beside another commit, and where they go.

    git worktree add ../base c1d4852
    python -m benchmarks.compile_time --base ../base                    built-in models, real files, hard cases
    python -m benchmarks.compile_time --base ../base --only resnet18 bert --rounds 3
    python -m benchmarks.compile_time --phases                          this tree alone, by phase and pass

Every compile is a process of its own, without a cache; trees take turns. Seconds are the processor's, of the process,
its threads and its children, from after the imports to the end of the first call; of several rounds the least counts.
Real files are those that `python -m benchmarks.real_models --install` has put in place.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# ------------------------------------------------------------------------------------------------------- the child

PLACES = {
    "graph passes": (
        "specialize:optimize", "specialize:for_target", "lowering.graph:fuse", "lowering.items:choose_layouts",
    ),
    "planning": ("kernels.build:plan_schedule",),
    "programs": (
        "lowering.items:build_program", "kernels.build:program_text", "kernels.build:lift_scheduled",
        "kernels.build:verify",
    ),
    "LLVM text": ("kernels.build:generate",),
    "constants": ("kernels.build:Packing.apply",),
}  # fmt: skip
"""Functions of `weft.compiler` by the phase that they are; a tree that has one not is measured without it.

Trees that one is measured beside have them in three files of `weft.executor`."""
LLVM = {
    "LLVM parse": "weft.codegen.llvm.child:parse",
    "LLVM optimise": "weft.codegen.llvm.child:optimize",
    "LLVM codegen": "llvmlite.binding.targets:TargetMachine.emit_object",
}


class Clock:
    """CPU seconds by name; what runs inside something else is not counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.local = threading.local()

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*args: Any, **keywords: Any) -> Any:
            outer, self.local.inside = getattr(self.local, "inside", 0.0), 0.0
            start = time.thread_time()
            try:
                return function(*args, **keywords)
            finally:
                taken = time.thread_time() - start
                self.seconds[name] += taken - self.local.inside
                self.local.inside = outer + taken

        timed.__name__ = getattr(function, "__name__", name)
        return timed

    def patch(self, name: str, place: str) -> None:
        """Times a function where it is looked up, if it is there."""
        module, path = place.split(":")
        *owners, last = path.split(".")
        try:
            owner: Any = importlib.import_module(module)
            for part in owners:
                owner = getattr(owner, part)
            setattr(owner, last, self.around(name, getattr(owner, last)))
        except (ImportError, AttributeError):
            return

    def watch(self) -> None:
        """Times every phase of this process."""
        for name, places in PLACES.items():
            for place in places:
                self.patch(name, f"weft.compiler.{place}")
                for home in ("specialize", "lower", "kernels"):
                    self.patch(name, f"weft.executor.{home}:{place.partition(':')[2]}")
        for name, place in LLVM.items():
            self.patch(name, place)
        self.patch("planning", "weft.targets.cpu.default:default_schedule")
        pipeline: Any = importlib.import_module("weft.targets.cpu.pipeline")
        pipeline.PASSES = tuple(self.around(f"lower {run.__name__}", run) for run in pipeline.PASSES)


def cpu_seconds() -> float:
    """What this process and its children have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_megabytes() -> int:
    """The most memory that this process had; what `getrusage` says counts that of the one that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return int(status.read_text().split("VmHWM:")[1].split()[0]) >> 10


def child(task: dict[str, Any]) -> dict[str, Any]:
    """One compile in this process."""
    import numpy as np

    import weft

    weft.compile  # noqa: B018  (what a compile needs anyway)
    from weft.runtime.jit import native_runtime

    assert Path(weft.__file__).is_relative_to(Path(task["tree"]).resolve()), weft.__file__
    native_runtime()
    if task["warm"]:
        weft.compile(task["warm"])  # what is loaded when it is first needed: modules, LLVM, facts about the machine
    clock = Clock()
    if task["phases"]:
        clock.watch()
    imported, start = cpu_seconds(), time.perf_counter()
    if task["path"]:
        feeds = dict(np.load(task["feeds"]))
        module = weft.compile(task["path"], shapes={name: array.shape for name, array in feeds.items()})
    else:
        graph = weft.models.make(task["name"])
        imported = cpu_seconds()  # random weights are not the compiler's work
        start = time.perf_counter()
        module = weft.compile(graph)
        feeds = {v.name: np.zeros(v.type.static, v.type.numpy) for v in graph.inputs}
    if task["call"]:
        module(**feeds) if all(name.isidentifier() for name in feeds) else module.run(None, feeds)
    return {
        "import": imported,
        "cpu": cpu_seconds() - imported,
        "wall": time.perf_counter() - start,
        "peak_mb": peak_megabytes(),
        "phases": dict(clock.seconds),
    }


# ------------------------------------------------------------------------------------------------------- the cases


@dataclass(frozen=True)
class Case:
    """A model to compile: a built-in one by name, or a file and what to feed it."""

    name: str
    path: Path | None = None
    feeds: Path | None = None
    call: bool = True


def _node_case(folder: Path, name: str, nodes: list[Any], feeds: dict[str, Any], constants: dict[str, Any]) -> Case:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    inputs = [
        helper.make_tensor_value_info(key, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for key, x in feeds.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(next(iter(feeds.values())).dtype)
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    weights = [numpy_helper.from_array(array, key) for key, array in constants.items()]
    graph = helper.make_graph(nodes, name.replace(" ", "_"), inputs, outputs, weights)
    path = folder / f"{name.replace(' ', '_')}.onnx"
    imports = [helper.make_opsetid("", 18)]
    onnx.save(
        helper.make_model(graph, opset_imports=imports, ir_version=9), path, save_as_external_data=len(weights) > 3
    )
    np.savez(path.with_suffix(".npz"), **feeds)
    return Case(name, path, path.with_suffix(".npz"))


def hard_cases(folder: Path) -> Iterator[Case]:
    """Graphs of a few nodes that were seen to take long."""
    import numpy as np
    from onnx import helper

    def zeros(*shape: int, dtype: str = "float32") -> Any:
        return np.zeros(shape, dtype)

    def random(*shape: int) -> Any:
        return np.random.default_rng(0).standard_normal(shape).astype("float32")

    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], group=96)
    yield _node_case(folder, "depthwise conv", [node], {"x": zeros(1, 96, 56, 56)}, {"w": random(96, 1, 3, 3)})
    nodes = [
        helper.make_node("Resize", ["x", "", "s"], ["r"], mode="cubic"),
        helper.make_node("ReduceSum", ["r", "axes"], ["y"], keepdims=0),
    ]
    constants = {"s": np.array([1, 1, 2, 2], "float32"), "axes": np.array([1])}
    yield _node_case(folder, "cubic resize", nodes, {"x": zeros(1, 3, 40, 40, dtype="float16")}, constants)
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=128)
    weights = {"w": random(1, 512, 64), "r": random(1, 512, 128)}
    yield _node_case(folder, "lstm", [node], {"x": zeros(20, 1, 64)}, weights)


def warm_case(folder: Path) -> Case:
    """A graph of three nodes, which every process compiles first."""
    import numpy as np
    from onnx import helper

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"]),
    ]
    weights = {"w": np.ones((5, 3, 3, 3), "float32"), "v": np.ones((9, 7), "float32")}
    return _node_case(folder, "warm", nodes, {"x": np.zeros((1, 3, 11, 11), "float32")}, weights)


def gemm_case(folder: Path) -> Case:
    """1.6 GB of weights in four products."""
    import numpy as np
    from onnx import helper

    nodes = [helper.make_node("MatMul", ["xabc"[at], f"w{at}"], ["abcy"[at]]) for at in range(4)]
    weights = {f"w{at}": np.full((10_000, 10_000), 1e-4, "float32") for at in range(4)}
    return _node_case(folder, "gemm 1.6 GB", nodes, {"x": np.zeros((1, 10_000), "float32")}, weights)


def all_cases(folder: Path, only: Sequence[str]) -> Iterator[Case]:
    """Everything whose name holds one of these words; the large Gemm only where it is named."""
    import numpy as np

    from benchmarks import real_models
    from weft import models

    def wanted(name: str) -> bool:
        return not only or any(word in name for word in only)

    yield from (Case(name, call=False) for name in models.names(decoders=False) if wanted(name))
    for model in real_models.MODELS:
        path = real_models.find(model)
        if path is not None and wanted(model.name):
            feeds = folder / f"{model.name.replace(' ', '_')}.npz"
            np.savez(feeds, **model.feeds())
            yield Case(model.name, path, feeds)
    yield from (case for case in hard_cases(folder) if wanted(case.name))
    if any("gemm" in word for word in only):
        yield gemm_case(folder)


# ------------------------------------------------------------------------------------------------------ the parent


def measure(case: Case, tree: Path, phases: bool, warm: str) -> dict[str, Any]:
    """One compile in a process of its own."""
    task = {
        "tree": str(tree), "name": case.name, "path": str(case.path or ""), "feeds": str(case.feeds or ""),
        "call": case.call, "phases": phases, "warm": warm,
    }  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tree), "WEFT_CACHE": "0", "PYTHONPYCACHEPREFIX": f"{warm}.pycache"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), "--child", json.dumps(task)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tree)
    if done.returncode != 0:
        return {"problem": (done.stderr.strip().splitlines() or ["it died"])[-1]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def least(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The run that took least; one that failed where all did."""
    return min(runs, key=lambda run: run.get("cpu", float("inf")))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="another checkout to compare with")
    parser.add_argument("--only", nargs="+", default=(), help="parts of names")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--phases", action="store_true", help="say where the seconds go")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args(arguments)

    from benchmarks.workers import geometric_mean

    trees = {"now": ROOT, **({"base": given.base.resolve()} if given.base else {})}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        warm = str(warm_case(Path(folder)).path)
        for tree in trees.values():
            measure(Case("warm", Path(warm), Path(warm).with_suffix(".npz")), tree, False, warm)
        for case in all_cases(Path(folder), given.only):
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
            for _ in range(given.rounds):
                for name, tree in trees.items():
                    runs[name].append(measure(case, tree, given.phases, warm))
            row = {"name": case.name, **{name: least(one) for name, one in runs.items()}}
            if all("cpu" in row[name] for name in trees):
                row["ratio"] = row["now"]["cpu"] / row["base"]["cpu"] if given.base else None
            rows.append(row)
            print(_line(row), flush=True)
            for name in trees if given.phases else ():
                parts = sorted(row[name].get("phases", {}).items(), key=lambda item: -item[1])
                print(f"    {name}: " + ", ".join(f"{part} {taken:.2f}" for part, taken in parts if taken >= 0.005))
    ratios = [row["ratio"] for row in rows if row.get("ratio")]
    if ratios:
        print(f"CPU seconds of the base: geometric mean {geometric_mean(ratios):.3f}, most {max(ratios):.3f}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))
    return 0


def _line(row: dict[str, Any]) -> str:
    now = row["now"]
    problem = next(
        (f"{tree}: {row[tree]['problem']}" for tree in ("now", "base") if "problem" in row.get(tree, {})), ""
    )
    if problem:
        return f"{row['name']:28} {problem}"
    wall = f"wall {now['wall']:6.2f} s ({now['wall'] / now['cpu']:.2f} of CPU), {now['peak_mb']} MB"
    beside = f", base {row['base']['cpu']:6.2f} s: {row['ratio']:.2f}" if "base" in row else ""
    return f"{row['name']:28} {now['cpu']:6.2f} s{beside}; {wall}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        chosen = json.loads(sys.argv[2])
        sys.path[0] = chosen["tree"]
        print(json.dumps(child(chosen)))
    else:
        sys.exit(main())

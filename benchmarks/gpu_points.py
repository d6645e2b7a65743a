"""Points of the spaces of products on an NVIDIA GPU: estimated and measured, beside cuBLAS.

    python -m benchmarks.gpu_points 1000x1000x1000 3152x3072x768+gelu          the best few points of each sketch
    python -m benchmarks.gpu_points 904x904x904 --most 12 --json points.jsonl --lock /tmp/gpu.lock

Of each sketch the points that are estimated to be best, of those that differ in their tiles, parts, copies or resident
blocks. What a cost model is fitted to, and what it is tested on: `--json` keeps every point with both times. `+gelu` is
a product with a bias and GELU, against cuBLAS with a bias and PyTorch's GELU compiled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import ROUNDS, Bench
from benchmarks.gpu_programs import Problem, gemm
from benchmarks.gpu_zoo import alone
from weft import te
from weft.core.errors import WeftError
from weft.plan import planner
from weft.targets.cuda.families import default_schedule

STAGES = ("stages", "band")
"""Knobs whose best number for the others is enough."""


def with_gelu(m: int, n: int, k: int) -> Problem:
    """GELU(A B + c), float16."""
    shapes = (((m, k), "A"), ((k, n), "B"), ((n,), "c"))
    a, b, bias = (te.placeholder(shape, "float16", name=name) for shape, name in shapes)
    r = te.reduce_axis((0, k), "r")
    wide = te.compute(
        (m, n), lambda i, j: te.sum(a[i, r].astype("float32") * b[r, j].astype("float32"), axis=r), name="C"
    )

    def body(i: Any, j: Any) -> Any:
        x = wide[i, j] + bias[j].astype("float32")
        return (x * te.normal_cdf(x)).astype("float16")

    def run(x: Any, y: Any, c: Any) -> Any:
        import torch

        return torch.nn.functional.gelu(torch.addmm(c, x, y))

    def peers(x: Any, y: Any, c: Any) -> dict[str, Any]:
        import torch

        compiled = torch.compile(run)
        return {"cuBLAS": lambda: run(x, y, c), "compile": lambda: compiled(x, y, c)}

    output = te.compute((m, n), body, name="G")
    return Problem([a, b, bias], output, run, peers, operations=2.0 * m * n * k)


def points(problem: Problem, target: Any, most: int) -> Iterator[tuple[str, dict[str, int], float]]:
    """Sketches, points and estimated seconds."""
    seen: dict[str, list[tuple[dict[str, int], float]]] = {}

    def note(unit: Any, sketches: Sequence[Any]) -> Any:
        for sketch in sketches:
            seen.setdefault(sketch.name, list(sketch.ranked(most=4000)))
        return planner.analytic(unit, sketches)

    with planner.picking(note):
        default_schedule(te.create_schedule(problem.output.op), target, problem.constants)
    for name, ranked in seen.items():
        kept: dict[Any, tuple[dict[str, int], float]] = {}
        for point, cost in ranked:
            kept.setdefault(tuple(v for k, v in point.items() if k not in STAGES), (point, cost))
        some = list(kept.values())[: most if "copy" in name else most // 2]
        for knob in ("copies", "resident", "parts", "cluster"):  # and the best of each of these
            least = {point[knob]: (point, cost) for point, cost in reversed(list(kept.values())) if knob in point}
            some += [one for one in least.values() if one not in some]
        if name not in ("product", "elementwise"):
            yield from ((name, point, cost) for point, cost in some)


def scheduled(problem: Problem, target: Any, name: str, point: dict[str, int]) -> Any:
    """The schedule of one point."""

    def pick(unit: Any, sketches: Sequence[Any]) -> Any:
        chosen = [(sketch, point, 0.0) for sketch in sketches if sketch.name == name]
        return chosen or planner.analytic(unit, sketches)

    schedule = te.create_schedule(problem.output.op)
    with planner.picking(pick):
        default_schedule(schedule, target, problem.constants)
    return schedule


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_points", description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="+", help="MxNxK, or MxNxK+gelu")
    parser.add_argument("--most", type=int, default=6)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lock", type=Path)
    given = parser.parse_args(arguments)
    bench = Bench()
    for size in given.sizes:
        m, n, k = map(int, size.removesuffix("+gelu").split("x"))
        problem = with_gelu(m, n, k) if size.endswith("+gelu") else gemm(m, n, k, "float16", False)
        tensors = bench.tensors(problem)
        want = problem.reference(*[t.double() for t in tensors])
        peers = {label: bench.graph(run) for label, run in problem.peers(*tensors).items()}
        for name, point, cost in points(problem, bench.target, given.most):
            try:
                made, result, _ = bench.ours(problem, tensors, scheduled(problem, bench.target, name, point))
            except WeftError as refused:
                sys.stdout.write(f"{size} {name} {point}: {refused}\n")
                continue
            error = float((result.double() - want).norm() / want.norm())
            with alone(given.lock):
                rounds = [
                    (bench.time_ours(made), *[bench.time_graph(graph) for graph in peers.values()])
                    for _ in range(ROUNDS)
                ][2:]
            ours, *theirs = map(statistics.median, zip(*rounds))
            row = {"size": size, "sketch": name, "point": point, "estimate": cost * 1e6, "ours": ours * 1e6,
                   "ratio": min(theirs) / ours, "peer": min(theirs) * 1e6, "error": error}  # fmt: skip
            sys.stdout.write(
                f"{size:24} {name:28} estimate {cost * 1e6:7.2f} ours {ours * 1e6:7.2f} peer {min(theirs) * 1e6:7.2f} "
                f"ratio {row['ratio']:.2f} error {error:.1e} {' '.join(f'{k}={v}' for k, v in point.items())}\n"
            )
            sys.stdout.flush()
            if given.json:
                with given.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Kernels on an NVIDIA GPU against PyTorch (cuBLAS, cuDNN), side by side in one run.

    python -m benchmarks.gpu                                  everything
    python -m benchmarks.gpu --only gemm,conv --json gpu.json
    python -m benchmarks.gpu --only figure7 --chart figure7.svg

Ours is what a program gets without a trial: `default_schedule`, CUDA C, NVRTC. The peers are PyTorch's kernels, for
convolutions the best of both layouts and of cuDNN's measured and first-guess algorithms, no tf32. A candidate is a
graph of 20 launches; the candidates take turns, and the ratio is the median of the ratios of the rounds. Weights of
convolutions are constants: copies of them in another order are made before. Every result is compared with float64.

    products     squares and odd sizes: float16, bfloat16, float32, tf32, float8 (of scaled_mm)
    held         float16 products of random sizes, another set for each --seed
    gemm         matrix products, float32, bfloat16 and float16
    conv         ResNet-18's C1–C12 of the TVM paper's table 2, batch 1
    conv16       float16, channels last: C1–C12 in batches of 1 and 64, the UNet's of a diffusion model in one of 2
    depthwise    MobileNet's D1–D9, float32 and float16, and float16 with channels last
    memory       softmax, layer norm, GELU, sums and transposition of 8192 × 8192, as shares of the copy bandwidth
    models       the built-in models as a whole, against PyTorch eager and compiled in CUDA graphs
    models16     the same by `precision="fp16"`, PyTorch's in float16 (--batch 16: of sixteen)
    figure7      the paper's figure 7: matrix products with and without cooperative fetching into shared memory
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_programs import (
    CONVOLUTIONS,
    DEPTHWISE,
    UNET,
    Problem,
    bytes_product,
    convolution,
    depthwise,
    gemm,
    memory_problems,
    narrow_convolution,
    scaled_product,
    tf32_product,
)
from weft import te
from weft.core.errors import TargetError
from weft.schedule.schedule import Schedule
from weft.targets.cuda import driver
from weft.targets.cuda.families import default_schedule
from weft.targets.registry import find_target

LAUNCHES = 20
"""Launches in one graph: the gaps between them are then those of a model, not those of Python."""
ROUNDS = 9
GROUPS = (
    "products", "held", "gemm", "narrow", "conv", "conv16", "depthwise", "memory", "attention", "attention16",
    "figure7", "models", "models16",
)  # fmt: skip


@dataclass
class Row:
    """One line of a table."""

    group: str
    name: str
    ours_us: float
    peer_us: float
    peer: str
    ratio: float
    error: float
    rate: str
    kernels: list[Any] = field(default_factory=list)


class Bench:
    """The device, and how things are measured on it."""

    def __init__(self, seed: int = 0, batch: int = 1, models: Sequence[str] = (), lock: Path | None = None) -> None:
        import torch

        self.torch, self.seed, self.batch, self.models, self.lock = torch, seed, batch, models, lock
        self.target = find_target("cuda")
        if not self.target.is_host:
            raise TargetError("there is no NVIDIA GPU on this machine: run the benchmark where there is one")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device="cuda")
        self.device: Any = self.target.device()
        self.stream = torch.cuda.Stream()
        self.copy_seconds = self._copy_seconds()

    def tensors(self, problem: Problem) -> list[Any]:
        """Random inputs."""
        torch = self.torch
        generator = torch.Generator(device="cuda").manual_seed(1)

        def one(t: Any) -> Any:
            kind = getattr(torch, t.dtype.name)
            if t.dtype.is_integer:
                return torch.randint(-128, 128, _shape(t), device="cuda", generator=generator, dtype=kind)
            return torch.randn(_shape(t), device="cuda", generator=generator).to(kind)

        return [one(t) for t in problem.inputs]

    def ours(
        self, problem: Problem, given: Sequence[Any], schedule: Schedule | None = None
    ) -> tuple[Any, Any, list[Any]]:
        """A recording of so many launches of our kernels, its result, and grids and blocks."""
        if schedule is None:
            schedule = te.create_schedule(problem.output.op)
            default_schedule(schedule, self.target.with_features(*problem.features), problem.constants)
        program = self.target.generate(self.target.lower(schedule.func))
        executable = self.device.load(program)
        whole = problem.output.dtype.is_integer
        kind, poison = getattr(self.torch, problem.output.dtype.name), 7 if whole else math.nan
        result = self.torch.full(_shape(problem.output), poison, device="cuda", dtype=kind)
        arguments: dict[str, Any] = {
            t.name: tensor.view(self.torch.uint8) if t.dtype.bytes == 1 else tensor  # torch hands on no float8
            for t, tensor in zip(problem.inputs, given)
        }
        arguments[problem.output.name] = result
        arguments.update({w.name: self.device.allocate(w.bytes) for w in program.workspaces})
        arguments["weft_errors"] = self.torch.zeros(1, device="cuda", dtype=self.torch.int32)
        launches = executable.bind(arguments)
        fixed = {t.name for t in problem.constants} | {w.name for w in program.workspaces if "_global" in w.name}
        once = [i for i, kernel in enumerate(program.kernels) if set(kernel.params) <= fixed]
        self.device.record(launches).launch()
        self.device.synchronize()
        repeated = [launch for i, launch in enumerate(launches) if i not in once] * LAUNCHES
        recording = self.device.record(repeated)
        recording.keep = (executable, arguments, launches)
        return recording, result, [(k.name, k.grid, k.block, k.shared_bytes) for k in program.kernels]

    def time_ours(self, recording: Any) -> float:
        """Seconds of one launch of our kernels."""
        first, last = driver.Event(), driver.Event()
        first.record(self.device.stream)
        recording.launch()
        last.record(self.device.stream)
        return last.seconds_since(first) / LAUNCHES

    def graph(self, run: Callable[[], Any]) -> Any:
        """PyTorch's launches as a graph, which keeps what they read as long as it lives."""
        torch = self.torch
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                run()
            torch.cuda.synchronize()
            made = torch.cuda.CUDAGraph()
            with torch.cuda.graph(made, stream=self.stream):
                for _ in range(LAUNCHES):
                    run()
        made.keep = run
        return made

    def time_graph(self, made: Any) -> float:
        """Seconds of one launch in a graph of PyTorch."""
        torch = self.torch
        with torch.cuda.stream(self.stream):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record(self.stream)
            made.replay()
            last.record(self.stream)
            last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3 / LAUNCHES

    def _copy_seconds(self) -> float:
        """The time to copy 256 MB on the device, the best of several."""
        source = self.torch.randn(8192, 8192, device="cuda")
        target = self.torch.empty_like(source)
        made = self.graph(lambda: target.copy_(source))
        return min(self.time_graph(made) for _ in range(ROUNDS))

    def race(self, group: str, name: str, problem: Problem, schedule: Schedule | None = None) -> Row:
        """Ours and the peers in turns."""
        given = self.tensors(problem)
        want = problem.reference(*[t.double() for t in given])
        recording, result, kernels = self.ours(problem, given, schedule)
        error = float((result.double() - want).norm() / want.norm())
        peers = {label: self.graph(run) for label, run in problem.peers(*given).items()}
        times: dict[str, list[float]] = {label: [] for label in ("ours", *peers)}
        for round_number in range(ROUNDS + 2):
            sample = {"ours": self.time_ours(recording), **{label: self.time_graph(g) for label, g in peers.items()}}
            if round_number >= 2:  # the first rounds warm up
                for label, seconds in sample.items():
                    times[label].append(seconds)
        best = min(peers, key=lambda label: statistics.median(times[label]))
        ratio = statistics.median(b / a for a, b in zip(times["ours"], times[best]))
        ours = statistics.median(times["ours"])
        return Row(
            group, name, ours * 1e6, statistics.median(times[best]) * 1e6, best, ratio, error,
            problem.rate(ours, self.copy_seconds), kernels,
        )  # fmt: skip


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size.value) for size in tensor.shape)


# ------------------------------------------------------------------------------------------------------------ groups


PRODUCTS = (
    *((size,) * 3 for size in (1024, 2048, 4096, 8192)), (197, 768, 3072), (512, 3072, 768), (3000, 5000, 1111),
    (77, 768, 3072), (500, 3000, 2040), (777, 1544, 2056), (1000,) * 3, (2048, 1280, 5120), (3000, 5000, 1112),
    (300, 5120, 1280), (64, 8192, 8192), (1100, 2200, 1560),
)  # fmt: skip
"""Rows, columns and depth: squares, and twelve that are none."""


def _products(bench: Bench) -> Iterator[Row]:
    """Each type a group of its own: its mean and its least are what is asked for."""
    for size in PRODUCTS:
        yield bench.race("fp16", "×".join(map(str, size)), gemm(*size, "float16", False))
    for size in PRODUCTS[:4]:
        yield bench.race("bf16", f"{size[0]}³", gemm(*size, "bfloat16", False))
    for size in PRODUCTS[1:3]:
        yield bench.race("fp32", f"{size[0]}³", gemm(*size, "float32", False))
    for size in PRODUCTS[:3]:
        yield bench.race("tf32", f"{size[0]}³", tf32_product(*size))
    for size in PRODUCTS[:3]:
        yield bench.race("fp8", f"{size[0]}³ (B turned)", scaled_product(*size))


def held_out(seed: int, many: int = 20) -> list[tuple[int, int, int]]:
    """Sizes that nobody chose: any number of rows, columns and depth in whole vectors, small ones as often as large."""
    chance = random.Random(seed)

    def size(least: int, step: int) -> int:
        return max(step, round(math.exp(chance.uniform(math.log(least), math.log(5000))) / step) * step)

    return [(size(33, 1), size(128, 8), size(128, 8)) for _ in range(many)]


def _held(bench: Bench) -> Iterator[Row]:
    for m, n, k in held_out(bench.seed):
        yield bench.race("held", f"float16 {m}×{n}×{k}", gemm(m, n, k, "float16", False))


def _gemms(bench: Bench) -> Iterator[Row]:
    for dtype, sizes in (
        ("float32", [(512,) * 3, (1024,) * 3, (2048,) * 3, (4096,) * 3, (1, 4096, 4096), (16, 4096, 4096)]),
        ("bfloat16", [(1024,) * 3, (2048,) * 3, (4096,) * 3, (1, 4096, 4096), (16, 4096, 4096)]),
        (
            "float16",
            [
                (4096,) * 3,
                (8192,) * 3,
                (197, 768, 3072),
                (512, 3072, 768),
                (3000, 1112, 5000),
                (2048, 1280, 5120),
                (8, 4096, 11008),
                (77, 768, 3072),
                (6304, 3072, 768),
                (1536, 4608, 1152),
            ],
        ),
    ):
        for m, n, k in sizes:
            for turned in (False, True) if m == 1 else (False,):
                name = f"{dtype} {m}×{n}×{k}" + (" (B turned)" if turned else "")
                yield bench.race("gemm", name, gemm(m, n, k, dtype, turned))


def _narrow(bench: Bench) -> Iterator[Row]:
    for size in (1024, 2048, 4096):
        for turned in (True, False):
            name = f"{size}³" + (" (B turned)" if turned else "")
            yield bench.race("narrow", f"int8 {name}", bytes_product(size, size, size, turned))
        yield bench.race("narrow", f"tf32 {size}³", tf32_product(size, size, size))


def _attention(bench: Bench) -> Iterator[Row]:
    from benchmarks.gpu_models import attention_rows

    yield from attention_rows(bench, Row)


def _narrow_attention(bench: Bench) -> Iterator[Row]:
    from benchmarks.gpu_models import attention_rows

    yield from attention_rows(bench, Row, is_narrow=True)


def _convolutions(bench: Bench) -> Iterator[Row]:
    for row in CONVOLUTIONS:
        yield bench.race("conv", row.name, convolution(row))


def _narrow_convolutions(bench: Bench) -> Iterator[Row]:
    from benchmarks.gpu_models import first_layer_row

    for row in CONVOLUTIONS:
        for batch in (1, 64):
            if row.inputs < 8:  # the first: a model fills its channels up and folds its places
                yield first_layer_row(bench, Row, "conv16", row, batch)
                continue
            yield bench.race("conv16", f"{row.name} batch {batch}", narrow_convolution(row, batch))
    for row in UNET:
        yield bench.race("conv16", f"UNet {row.name} batch 2", narrow_convolution(row, 2))


def _depthwise(bench: Bench) -> Iterator[Row]:
    for dtype in ("float32", "float16"):
        for row in DEPTHWISE:
            yield bench.race("depthwise", f"{row.name} {dtype}", depthwise(row, dtype))
    for row in DEPTHWISE:
        yield bench.race("depthwise", f"{row.name} float16 NHWC", narrow_convolution(row, 1, row.inputs))


def _memory(bench: Bench) -> Iterator[Row]:
    for name, problem in memory_problems(8192):
        yield bench.race("memory", name, problem)


def direct_schedule(problem: Problem) -> Schedule:
    """A matrix product in register tiles of 8 × 8, each thread reading its operands from global memory."""
    schedule = te.create_schedule(problem.output.op)
    name = problem.output.name
    local = schedule.cache_write(problem.output, "local")
    y, x = schedule[name].axis
    block_y, thread_y, inner_y = schedule[name].split(y, factors=[None, 16, 4])
    block_x, thread_x, inner_x = schedule[name].split(x, factors=[None, 16, 4])
    schedule[name].reorder(block_y, block_x, thread_y, thread_x, inner_y, inner_x)
    for loop, tag in (
        (block_y, "blockIdx.y"),
        (block_x, "blockIdx.x"),
        (thread_y, "threadIdx.y"),
        (thread_x, "threadIdx.x"),
    ):
        schedule[name].bind(loop, tag)
    local.compute_at(schedule[name], thread_x)
    *tile, k = local.loops[-3:]
    local.reorder(k, *tile)
    for loop in tile:
        local.unroll(loop)
    return schedule


def _figure7(bench: Bench) -> Iterator[Row]:
    for size in (1024, 2048):
        problem = gemm(size, size, size, "float32", False)
        yield bench.race("figure7", f"{size} without cooperation", problem, direct_schedule(problem))
        yield bench.race("figure7", f"{size} with cooperation", gemm(size, size, size, "float32", False))


def _models(bench: Bench) -> Iterator[Row]:
    from benchmarks.gpu_models import model_rows

    yield from model_rows(bench, Row)


def _narrow_models(bench: Bench) -> Iterator[Row]:
    from benchmarks.gpu_models import model_rows

    yield from model_rows(bench, Row, "fp16")


RUNNERS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "products": _products, "held": _held,
    "gemm": _gemms, "narrow": _narrow, "conv": _convolutions, "depthwise": _depthwise, "memory": _memory,
    "attention": _attention, "attention16": _narrow_attention,
    "figure7": _figure7, "models": _models, "conv16": _narrow_convolutions,
    "models16": _narrow_models,
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- showing


def chart(rows: Sequence[Row]) -> str:
    """Figure 7 as an SVG: times relative to cuBLAS, one group of bars for each size."""
    bars: list[tuple[str, float, str]] = []
    for row in rows:
        size = row.name.split()[0]
        if "without" in row.name:
            bars.append((f"{size} cuBLAS", 1.0, "#888888"))
        bars.append((row.name, row.ours_us / row.peer_us, "#c0504d" if "without" in row.name else "#4f81bd"))
    most = max(height for _, height, _ in bars)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{90 * len(bars) + 40}" height="300" font-size="10">']
    for place, (label, height, colour) in enumerate(bars):
        x, tall = 30 + 90 * place, 220 * height / most
        parts.append(f'<rect x="{x}" y="{250 - tall:.1f}" width="60" height="{tall:.1f}" fill="{colour}"/>')
        parts.append(f'<text x="{x}" y="{245 - tall:.1f}">{height:.2f}</text>')
        for line, word in enumerate(label.split(" ", 1)):
            parts.append(f'<text x="{x}" y="{265 + 12 * line}">{word}</text>')
    return "\n".join([*parts, '<text x="30" y="15">time relative to cuBLAS</text>', "</svg>"])


def summarise(rows: Sequence[Row]) -> dict[str, float]:
    """The geometric mean of the ratios of each group."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row.ratio)
    return {group: math.exp(statistics.fmean(map(math.log, ratios))) for group, ratios in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the groups and shows the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(GROUPS), help=f"groups with commas between: {', '.join(GROUPS)}")
    parser.add_argument("--seed", type=int, default=0, help="of the sizes that are held out")
    parser.add_argument("--batch", type=int, default=1, help="of the models (default 1)")
    parser.add_argument("--models", default="", help="names of models with commas between (default all)")
    parser.add_argument(
        "--lock", type=Path, help="models are compiled beside others, and measured while nobody holds it"
    )
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument("--chart", type=Path, help="where figure 7 is drawn (SVG)")
    options = parser.parse_args(arguments)
    wanted = [group.strip() for group in options.only.split(",")]
    unknown = [group for group in wanted if group not in RUNNERS]
    if unknown:
        parser.error(f"unknown group {unknown[0]!r}: choose among {', '.join(GROUPS)}")
    bench = Bench(options.seed, options.batch, [one for one in options.models.split(",") if one], options.lock)
    moved = 2 * 4 * 8192**2 / bench.copy_seconds / 1e12
    sys.stdout.write(f"{bench.device.name}, copy {moved:.2f} TB/s\n")
    rows: list[Row] = []
    for group in wanted:
        for row in RUNNERS[group](bench):
            rows.append(row)
            sys.stdout.write(
                f"{row.group:10} {row.name:34} ours {row.ours_us:9.2f} µs  {row.peer:10} {row.peer_us:9.2f} µs  "
                f"ratio {row.ratio:5.2f}  {row.rate:22} error {row.error:.1e}\n"
            )
            sys.stdout.flush()
    means = summarise(rows)
    for group, mean in means.items():
        least = min((row for row in rows if row.group == group), key=lambda row: row.ratio)
        sys.stdout.write(
            f"{group:10} geometric mean of the ratios {mean:.2f}, the least {least.ratio:.2f} ({least.name})\n"
        )
    if options.json:
        options.json.write_text(json.dumps({"rows": [asdict(r) for r in rows], "means": means}, indent=1))
    if options.chart and any(row.group == "figure7" for row in rows):
        options.chart.write_text(chart([row for row in rows if row.group == "figure7"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

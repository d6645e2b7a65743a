"""Models that people bring, in float16 on an NVIDIA GPU, against PyTorch: eager and compiled, each in a CUDA graph.

    python -m benchmarks.gpu_zoo                                     all of them, in batches of 1 and 16
    python -m benchmarks.gpu_zoo --only vit_b_16,unet --batch 16
    python -m benchmarks.gpu_zoo --only resnet18 --kernels 12        and where the time goes: our kernels, and PyTorch's
    python -m benchmarks.gpu_zoo --lock /tmp/gpu.lock                compiles beside others, measures alone
    python -m benchmarks.gpu_zoo --type float32 --json found.jsonl   a line for each; those already there are left out

Weights are random, what was drawn as a constant is disturbed. Ours gets PyTorch's module as it is (`weft.compile`),
without a trial; inputs and outputs stay on the device. Candidates take turns; a sample is so many calls in a row, and
the ratio is the median of those of the rounds. The error is the greatest difference from PyTorch's float32 result
relative to its greatest element, and beside it that of PyTorch's own in float16.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks.decoding_gpu import alone
from benchmarks.gpu_models import LAUNCHES, ROUNDS, captured
from benchmarks.gpu_zoo_models import MODELS, build
from weft.core.knobs import knobs
from weft.targets.cuda import driver
from weft.targets.registry import find_target


class Race:
    """A model, ours and PyTorch's, ready to run."""

    def __init__(self, name: str, batch: int, kind: str, eager_only: bool) -> None:
        import torch

        self.torch, self.name, self.batch = torch, name, batch
        model, inputs = build(name, batch)
        plain = copy.deepcopy(model).cuda()
        with torch.no_grad():
            self.want = plain(*[x.cuda() for x in inputs]).float().cpu().numpy()
        del plain
        wanted = getattr(torch, kind)
        model = model.to(wanted)
        inputs = tuple(x.to(wanted) if x.is_floating_point() else x for x in inputs)
        start = time.perf_counter()
        with knobs.override(records=False):  # what was tuned, and what ships, is not what is measured here
            self.module: Any = weft.compile(model, inputs, target="cuda")
        self.compile_seconds = time.perf_counter() - start
        self.device: Any = find_target("cuda").device()
        names = [given.name for given in self.module.get_inputs()]
        self.feeds = dict(zip(names, (x.numpy() for x in inputs)))
        self.bound = self.module.bind(self.feeds)
        self.bound.launch()
        self.bound.synchronize()
        self.error = self._off(self.bound.outputs[0].numpy())
        self.kernels = sum(len(one.kernel.program.kernels) for one in self.module.specializations[0].launches)
        self.stream = torch.cuda.Stream()
        self.peers = self._peers(model.cuda(), [x.cuda() for x in inputs], eager_only)

    def _off(self, found: Any) -> float:
        return float(np.abs(found.astype(np.float32) - self.want).max() / np.abs(self.want).max())

    def _peers(self, model: Any, inputs: list[Any], eager_only: bool) -> dict[str, Any]:
        """PyTorch's ways as CUDA graphs."""
        torch, found = self.torch, {}
        with torch.no_grad():
            self.peer_error = self._off(model(*inputs).float().cpu().numpy())
        ways: dict[str, Callable[[], Any]] = {"eager": lambda: model(*inputs)}
        if not eager_only:
            compiled = torch.compile(model)
            ways["compile"] = lambda: compiled(*inputs)
        if inputs[0].dim() == 4:
            last = copy.deepcopy(model).to(memory_format=torch.channels_last)
            images = [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in inputs]
            ways["eager NHWC"] = lambda: last(*images)
            if not eager_only:
                compiled_last = torch.compile(last)
                ways["compile NHWC"] = lambda: compiled_last(*images)
        for label, run in ways.items():
            try:
                found[label] = captured(self.stream, run)
            except RuntimeError as problem:  # a way that cannot be captured, or does not compile, is left out
                sys.stdout.write(f"{self.name}: PyTorch's {label} is left out: {str(problem).splitlines()[0]}\n")
        return found

    def _ours(self, calls: int) -> float:
        first, last = driver.Event(), driver.Event()
        first.record(self.device.stream)
        for _ in range(calls):
            self.bound.launch()
        last.record(self.device.stream)
        return last.seconds_since(first) / calls

    def _peer(self, made: Any, calls: int) -> float:
        torch = self.torch
        with torch.cuda.stream(self.stream):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record(self.stream)
            for _ in range(calls):
                made.replay()
            last.record(self.stream)
            last.synchronize()
        return float(first.elapsed_time(last)) * 1e-3 / calls

    def run(self) -> dict[str, Any]:
        """The medians of all, and the ratio of the best of PyTorch's to ours; the first rounds warm up."""
        times: dict[str, list[float]] = {label: [] for label in ("ours", *self.peers)}
        for _ in range(ROUNDS + 2):
            times["ours"].append(self._ours(LAUNCHES))
            for label, made in self.peers.items():
                times[label].append(self._peer(made, LAUNCHES))
        kept = {label: some[2:] for label, some in times.items()}
        best = min(self.peers, key=lambda label: statistics.median(kept[label]))
        return {
            "model": self.name, "batch": self.batch,
            "ratio": statistics.median(b / a for a, b in zip(kept["ours"], kept[best])), "best": best,
            **{f"{label} µs": statistics.median(some) * 1e6 for label, some in kept.items()},
            "error": self.error, "peer error": self.peer_error, "kernels": self.kernels,
            "compile s": self.compile_seconds,
        }  # fmt: skip

    def where(self, most: int) -> Iterator[str]:
        """Where the time goes: our kernels by the device's clock, and PyTorch's by its profiler."""
        found: dict[str, list[float]] = {}
        for one in self.module.profile(self.feeds, seconds=0.3).kernels:
            found.setdefault(one.label, []).append(one.seconds)
        rows = sorted(found.items(), key=lambda row: -sum(row[1]))
        yield from (f"  ours     {sum(s) * 1e6:8.2f} µs in {len(s)} calls {name}" for name, s in rows[:most])
        best = min(self.peers, key=lambda label: self._peer(self.peers[label], 3))
        with self.torch.profiler.profile(activities=[self.torch.profiler.ProfilerActivity.CUDA]) as seen:
            self._peer(self.peers[best], 3)
            self.torch.cuda.synchronize()
        for one in sorted(seen.key_averages(), key=lambda one: -one.device_time_total)[:most]:
            yield f"  {best:8} {one.device_time_total / 3:8.2f} µs in {one.count / 3:.0f} calls {one.key[:100]}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_zoo", description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(MODELS), help="names of models, by commas")
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--type", default="float16", choices=("float16", "bfloat16", "float32"))
    parser.add_argument("--kernels", type=int, default=0, help="so many of the longest kernels of both")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--lock", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    done = (
        [json.loads(line) for line in given.json.read_text().splitlines()] if given.json and given.json.exists() else []
    )
    had = {(row["model"], row["batch"]) for row in done}
    for name in given.only.split(","):
        for batch in map(int, given.batch.split(",")):
            if (name, batch) in had:
                continue
            race = Race(name, batch, given.type, given.eager)
            with alone(given.lock):
                row = race.run()
                lines = list(race.where(given.kernels)) if given.kernels else []
            told = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
            sys.stdout.write("\n".join([told, *lines, ""]))
            sys.stdout.flush()
            if given.json:
                with given.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

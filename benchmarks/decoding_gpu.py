"""Tokens a second on an NVIDIA GPU: llama_110m and a model of a billion weights beside torch.compile and their floor.

    python -m benchmarks.decoding_gpu                             both models, four kinds of weights, batch 1 and 8
    python -m benchmarks.decoding_gpu --models 1b --weights int4 --batches 1 --kernels
    python -m benchmarks.decoding_gpu --torch --json FILE         torch's rows (compiling takes minutes)

A token is one launch of a CUDA graph, its caches updated where they lie; times are of so many tokens in a row between
two events. The floor is the bytes of the products' weights over the rate of a large copy. torch's decoder has a static
cache and weights of its own, as gpt-fast has them: bfloat16; int8 widened in the product; int4 by its packed product.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import weft
from weft.cli.decoding import weight_bytes
from weft.graph.ir import Graph
from weft.models import builder, llama

MODELS: dict[str, dict[str, int]] = {
    "110m": {"layers": 12, "width": 768, "heads": 12, "key_heads": 12, "hidden": 2048},
    "1b": {"layers": 16, "width": 2048, "heads": 32, "key_heads": 8, "hidden": 8192},
}
WEIGHTS, BATCHES = ("bfloat16", "float8", "int8", "int4"), (1, 8)
WORDS, CAPACITY, PLACE = 32000, 1024, 200
"""Words of the vocabulary, places of a cache, and the place of the token that is timed."""
TOKENS, ROUNDS = 50, 9


@contextlib.contextmanager
def alone(lock: Path | None) -> Iterator[None]:
    """While nobody else holds the lock: others may compile, but not use the GPU."""
    with contextlib.ExitStack() as stack:
        if lock is not None:
            fcntl.flock(stack.enter_context(lock.open("w")), fcntl.LOCK_EX)
        yield


class Pool:
    """Random numbers of a fixed store, again and again: a billion of them are drawn in a second."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.store = self.random.standard_normal(1 << 22, np.float32)

    def standard_normal(self, shape: Any, dtype: Any = np.float32) -> Any:
        """Normal numbers, from a place of the store that is drawn."""
        start = int(self.random.integers(0, 1 << 20))
        return np.resize(self.store[start:], shape).astype(dtype)

    def uniform(self, low: float, high: float, shape: Any) -> Any:
        """Numbers between two."""
        return self.random.uniform(low, high, shape)


def make(name: str, weights: str, batch: int, **sizes: int) -> Graph:
    """The decoder, its weights from a store."""
    known = builder.Builder.__init__

    def pooled(self: Any, title: str, seed: int = 0) -> None:
        known(self, title, seed)
        self.random = Pool()

    builder.Builder.__init__ = pooled  # type: ignore[method-assign,assignment]
    try:
        return llama.llama_110m(batch, weights=weights, vocabulary=WORDS, **{**MODELS[name], **sizes})
    finally:
        builder.Builder.__init__ = known  # type: ignore[method-assign]


def feeds_of(graph: Graph, batch: int, capacity: int = CAPACITY, place: int = PLACE) -> dict[str, Any]:
    """A token at a place, and caches that are filled up to it."""
    random = np.random.default_rng(1)
    made: dict[str, Any] = {"tokens": random.integers(0, WORDS, (batch, 1)), "lengths": np.full(batch, place, np.int32)}
    for value in graph.inputs[2:]:
        heads, size = (int(str(value.tensor.dims[at])) for at in (1, 3))
        made[value.name] = random.standard_normal((batch, heads, capacity, size), np.float32) * np.float32(0.3)
    return made


def ours(name: str, weights: str, batch: int, kernels: bool, lock: Path | None) -> dict[str, Any]:
    """A row: a token of Weft's."""
    from weft.targets.cuda import driver, peaks

    start = time.perf_counter()
    graph = make(name, weights, batch)
    feeds = feeds_of(graph, batch)
    shapes = {key: array.shape for key, array in feeds.items()}
    begin = time.perf_counter()
    module: Any = weft.compile(graph, target="cuda", shapes=shapes)
    bound = module.bind(feeds, in_place=True)
    bound.launch()
    bound.synchronize()
    compiled = time.perf_counter() - begin
    device = module.target.device()
    with alone(lock):
        taken = []
        for _ in range(ROUNDS + 2):
            first, last = driver.Event(), driver.Event()
            first.record(device.stream)
            for _ in range(TOKENS):
                bound.launch()
            last.record(device.stream)
            taken.append(last.seconds_since(first) / TOKENS)
        rate = peaks.copy_bandwidth(device)
        found = module.profile(*feeds.values(), seconds=0.3) if kernels else None
    (one,) = module.specializations
    programs = [launch.kernel for launch in one.launches if launch.kernel.label != "copy"]
    row: dict[str, Any] = {
        "who": "weft", "model": name, "weights": weights, "batch": batch, "us": statistics.median(taken[2:]) * 1e6,
        "best us": min(taken) * 1e6, "bytes": weight_bytes(graph), "GB/s": rate, "compile s": compiled,
        "graph s": begin - start, "launches": sum(len(kernel.program.kernels) for kernel in programs),
    }  # fmt: skip
    if found is not None:
        kinds: dict[tuple[str, int], list[float]] = {}
        for kernel in found.kernels:
            kinds.setdefault((kernel.label, kernel.cost.bytes), []).append(kernel.seconds)
        row["kernels"] = [[label, size, len(some), statistics.median(some) * 1e6]
                          for (label, size), some in kinds.items()]  # fmt: skip
    return row


def check(name: str, weights: str, batch: int, target: str = "cuda") -> float:
    """How far two layers' logits and caches are from the processor's, of their scale."""
    graph = make(name, weights, batch, layers=2)
    feeds = feeds_of(graph, batch, capacity=320)
    shapes = {key: array.shape for key, array in feeds.items()}
    wanted = weft.compile(graph, shapes=shapes, exact=True)(**feeds)
    bound: Any = weft.compile(graph, target=target, shapes=shapes).bind(feeds, in_place=True)
    for _ in range(3):  # again, over what it wrote itself: the same token at the same place
        bound.launch()
    bound.synchronize()
    return max(float(np.abs(a.numpy() - b).max() / np.abs(b).max()) for a, b in zip(bound.outputs, wanted))


# ------------------------------------------------------------------------------------------------------------- torch


def torch_decoder(name: str, weights: str, batch: int) -> Any:
    """The decoder as people write it for torch, with a static cache."""
    import torch
    from torch import nn
    from torch.nn import functional

    sizes = MODELS[name]
    width, heads, key_heads, hidden = (sizes[key] for key in ("width", "heads", "key_heads", "hidden"))
    size, kind, block = width // heads, torch.bfloat16, 32
    torch.set_default_device("cuda")
    torch.manual_seed(0)

    class Product(nn.Module):
        """x W^T, with the weights as they are stored."""

        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.outputs = outputs
            if weights == "int8":
                self.codes = nn.Buffer(torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8))
                self.scale = nn.Buffer(torch.rand(outputs, dtype=kind) * 0.001)
            elif weights == "int4":
                numbers = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
                self.codes = nn.Buffer(torch.ops.aten._convert_weight_to_int4pack(numbers, 8))
                self.scale = nn.Buffer(torch.rand(inputs // block, outputs, 2, dtype=kind) * 0.01)
            else:
                self.codes = nn.Buffer(torch.randn(outputs, inputs, dtype=kind) * inputs**-0.5)

        def forward(self, x: Any) -> Any:
            if weights == "int8":
                return functional.linear(x, self.codes.to(kind)) * self.scale
            if weights == "int4":
                return torch.ops.aten._weight_int4pack_mm(x, self.codes, block, self.scale)
            return functional.linear(x, self.codes)

    class Layer(nn.Module):
        """Attention over the cache, and SwiGLU."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.RMSNorm(width, dtype=kind) for _ in range(2))
            self.qkv, self.out = Product(width, (heads + 2 * key_heads) * size), Product(width, width)
            self.up, self.down = Product(width, 2 * hidden), Product(hidden, width)
            shape = (batch, key_heads, CAPACITY, size)
            self.keys, self.values = (nn.Buffer(torch.zeros(shape, dtype=kind)) for _ in range(2))

        def forward(self, x: Any, place: Any, mask: Any, turn: Any) -> Any:
            made = self.qkv(self.first(x)).view(batch, heads + 2 * key_heads, 1, size)
            query, key, value = made.split([heads, key_heads, key_heads], 1)
            query, key = (torch.cat([-y.chunk(2, -1)[1], y.chunk(2, -1)[0]], -1) * turn[1] + y * turn[0]
                          for y in (query, key))  # fmt: skip
            self.keys.index_copy_(2, place, key)
            self.values.index_copy_(2, place, value)
            mixed = functional.scaled_dot_product_attention(
                query, self.keys, self.values, attn_mask=mask, enable_gqa=heads != key_heads
            )
            x = x + self.out(mixed.reshape(batch, width))
            gate, up = self.up(self.second(x)).chunk(2, 1)
            return x + self.down(functional.silu(gate) * up)

    class Decoder(nn.Module):
        """Logits of the word after one."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(WORDS, width, dtype=kind)
            self.layers = nn.ModuleList([Layer() for _ in range(sizes["layers"])])
            self.norm, self.head = nn.RMSNorm(width, dtype=kind), Product(width, WORDS)
            angles = torch.outer(torch.arange(CAPACITY), 10000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
            self.order = nn.Buffer(torch.arange(CAPACITY))
            self.turns = nn.Buffer(torch.stack([angles.cos(), angles.sin()]).to(kind))

        def forward(self, token: Any, place: Any) -> Any:
            x, mask = self.table(token), (self.order <= place)[None, None, None]
            turn = self.turns[:, place]
            for layer in self.layers:
                x = layer(x, place, mask, turn)
            return self.head(self.norm(x))

    return Decoder().eval().requires_grad_(False)


def theirs(name: str, weights: str, batch: int, lock: Path | None, mode: str) -> dict[str, Any]:
    """A row: a token of torch's, compiled, in a CUDA graph."""
    import torch

    start = time.perf_counter()
    model = torch.compile(torch_decoder(name, weights, batch), mode=mode, fullgraph=True)
    token, place = torch.randint(0, WORDS, (batch,)), torch.tensor([PLACE])
    stream = torch.cuda.Stream()
    with torch.inference_mode(), torch.cuda.stream(stream):
        for _ in range(3):
            model(token, place)
        torch.cuda.synchronize()
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made, stream=stream):
            model(token, place)
    compiled, taken = time.perf_counter() - start, []
    with alone(lock), torch.cuda.stream(stream):
        for _ in range(ROUNDS + 2):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record(stream)
            for _ in range(TOKENS):
                made.replay()
            last.record(stream)
            last.synchronize()
            taken.append(float(first.elapsed_time(last)) * 1e-3 / TOKENS)
    return {"who": "torch", "model": name, "weights": weights, "batch": batch, "us": statistics.median(taken[2:]) * 1e6,
            "best us": min(taken) * 1e6, "compile s": compiled}  # fmt: skip


def show(row: dict[str, Any]) -> None:
    """A row as text."""
    taken = row["us"]
    line = f"{row['who']:5s} {row['model']:4s} {row['weights']:8s} batch {row['batch']}  {taken:8.1f} us"
    line += (
        f" (best {row['best us']:.1f})  {row['batch'] / taken * 1e6:8.0f} tokens/s  compile {row['compile s']:.1f} s"
    )
    if "bytes" in row:
        floor = row["bytes"] / row["GB/s"] / 1e3
        line += f"  floor {floor:.1f} us, {floor / taken:.0%} of it; {row['launches']} launches"
    print(line)
    total = sum(count * each for _, _, count, each in row.get("kernels", ()))
    for label, size, count, each in sorted(row.get("kernels", ()), key=lambda kernel: -kernel[2] * kernel[3]):
        part = f"{count * each:7.1f} us {count * each / total:4.0%}  {size / 1e6:7.2f} MB {size / each / 1e3:6.0f} GB/s"
        print(f"    {count:3d} x {each:6.2f} us = {part}  {label[:60]}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--weights", nargs="*", default=list(WEIGHTS))
    parser.add_argument("--batches", nargs="*", type=int, default=list(BATCHES))
    parser.add_argument("--kernels", action="store_true", help="the kernels of a token")
    parser.add_argument("--torch", action="store_true", help="torch's rows instead of Weft's")
    parser.add_argument("--mode", default="default", help="of torch.compile; the CUDA graph is ours")
    parser.add_argument("--check", action="store_true", help="logits of two layers beside those of the processor")
    parser.add_argument("--lock", type=Path, help="a file to lock while times are taken")
    parser.add_argument("--json", type=Path, help="a file to which rows are added, a line each")
    given = parser.parse_args()
    for name in given.models:
        for batch in given.batches:
            for weights in given.weights:
                try:
                    if given.check:
                        print(f"{name} {weights} batch {batch}: logits differ by {check(name, weights, batch):.1e}")
                        continue
                    if given.torch:
                        row = theirs(name, weights, batch, given.lock, given.mode)
                    else:
                        row = ours(name, weights, batch, given.kernels, given.lock)
                except Exception as error:  # noqa: BLE001  a row that fails says so, the others are measured
                    print(f"{name} {weights} batch {batch}: {type(error).__name__}: {str(error)[:300]}")
                    continue
                show(row)
                sys.stdout.flush()
                if given.json:
                    with given.json.open("a") as file:
                        file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

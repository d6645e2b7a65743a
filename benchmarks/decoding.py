"""Tokens a second of llama_110m beside ONNX Runtime (the same graph), torch (compiled), llama.cpp, and its floor.

    python -m benchmarks.decoding                                  four precisions, two threads, 64 tokens after 128
    python -m benchmarks.decoding int4 --threads 1 --kernels       with the kernels of a token
    python -m benchmarks.decoding --json FILE

The floor is what reading the weights of the products once takes, by a kernel that does nothing else. Candidates and the
floor take turns of 32 tokens, after the same pauses, each twice, of which the second counts. torch's decoder has a
static cache and weights of its own: float32 and bfloat16 as they are; int8 and int4 by its products of packed weights
with bfloat16 activations (`_weight_int8pack_mm`, `_weight_int4pack_mm_for_cpu`). llama.cpp has weights of its own, too,
and runs where `llama_cpp` is installed (benchmarks/decoding_llama_cpp.py).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks.decoding_llama_cpp import HEADS, HIDDEN, LAYERS, WIDTH, WORDS, LlamaCpp
from weft.cli.decoding import Step, decode, empty_caches, last, ort_step, reader, weft_step, weight_bytes
from weft.models.llama import WEIGHTS, llama_110m
from weft.runtime.threads import set_threads

BLOCK = 32


def torch_step(weights: str, capacity: int, threads: int) -> Step:
    """The same decoder in torch, compiled for a token."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    kind = torch.float32 if weights == "float32" else torch.bfloat16

    class Product(nn.Module):
        """x W^T, with the weights as they are stored."""

        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            matrix = torch.randn(outputs, inputs) * inputs**-0.5
            if weights == "int8":
                self.scale = nn.Buffer((matrix.abs().amax(1) / 127).to(kind))
                self.codes = nn.Buffer((matrix / self.scale.float()[:, None]).round().to(torch.int8))
            elif weights == "int4":
                numbers = torch.randint(0, 16, (outputs, inputs), dtype=torch.int32)
                self.codes = nn.Buffer(torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers, 1))
                self.scale = nn.Buffer(torch.rand(inputs // BLOCK, outputs, 2).to(kind) * 0.01)
            else:
                self.codes = nn.Buffer(matrix.to(kind))

        def forward(self, x: Any) -> Any:
            if weights == "int8":
                return torch.ops.aten._weight_int8pack_mm(x, self.codes, self.scale)
            if weights == "int4":
                return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.codes, BLOCK, self.scale)
            return functional.linear(x, self.codes)

    class Layer(nn.Module):
        """Attention over the cache, and SwiGLU."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.RMSNorm(WIDTH, dtype=kind) for _ in range(2))
            self.qkv, self.out = Product(WIDTH, 3 * WIDTH), Product(WIDTH, WIDTH)
            self.up, self.down = Product(WIDTH, 2 * HIDDEN), Product(HIDDEN, WIDTH)
            shape = (1, HEADS, capacity, WIDTH // HEADS)
            self.keys, self.values = (nn.Buffer(torch.zeros(shape, dtype=kind)) for _ in range(2))

        def forward(self, x: Any, place: Any, mask: Any, turn: Any) -> Any:
            query, key, value = (part.view(1, HEADS, 1, -1) for part in self.qkv(self.first(x)).chunk(3, 1))
            query, key = (torch.cat([-y.chunk(2, -1)[1], y.chunk(2, -1)[0]], -1) * turn[1] + y * turn[0]
                          for y in (query, key))  # fmt: skip
            self.keys.index_copy_(2, place, key)
            self.values.index_copy_(2, place, value)
            mixed = functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
            x = x + self.out(mixed.reshape(1, WIDTH))
            gate, up = self.up(self.second(x)).chunk(2, 1)
            return x + self.down(functional.silu(gate) * up)

    class Decoder(nn.Module):
        """Logits of the word after one."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(WORDS, WIDTH, dtype=kind)
            self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
            self.norm, self.head = nn.RMSNorm(WIDTH, dtype=kind), Product(WIDTH, WORDS)
            angles = torch.outer(torch.arange(capacity), 10000.0 ** (-torch.arange(0, 64, 2) / 64)).repeat(1, 2)
            self.turns = nn.Buffer(torch.stack([angles.cos(), angles.sin()]).to(kind))

        def forward(self, token: Any, place: Any) -> Any:
            x, mask = self.table(token), (torch.arange(capacity) <= place)[None, None, None]
            turn = self.turns[:, place]
            for layer in self.layers:
                x = layer(x, place, mask, turn)
            return self.head(self.norm(x))

    model = torch.compile(Decoder().eval().requires_grad_(False), mode="max-autotune-no-cudagraphs")

    def step(tokens: Any, places: Any) -> Any:
        with torch.inference_mode():
            return model(torch.from_numpy(tokens[0, -1:]), torch.from_numpy(places.astype(np.int64))).float().numpy()

    step(np.zeros((1, 1), np.int64), np.zeros(1, np.int64))
    return step


def measure(weights: str, given: argparse.Namespace) -> dict[str, Any]:
    """One precision."""
    graph, capacity = llama_110m(weights=weights), given.prompt + given.tokens
    module = weft.compile(graph)
    set_threads(given.threads)
    candidates: dict[str, Step] = {"weft": weft_step(module, graph, 1, capacity)}
    others = {"ort": lambda: ort_step(graph, 1, capacity, given.threads),
              "torch": lambda: torch_step(weights, capacity, given.threads),
              "llama.cpp": lambda: LlamaCpp(weights, capacity, given.threads)}  # fmt: skip
    refused = {}
    for name in given.against:
        try:
            candidates[name] = others[name]()
        except Exception as error:  # noqa: BLE001  another system's own errors, of any class: its row says what it said
            refused[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    random = np.random.default_rng(0)
    first, rest = (random.integers(0, WORDS, (1, count)) for count in (given.prompt, given.tokens))
    for name, step in candidates.items():
        if name != "torch":
            step(first, last(1, given.prompt))
        for _ in range(3):
            step(rest[:, :1], last(1, given.prompt + 1))
    count = weight_bytes(graph)
    times, reads, error = decode(candidates, reader(count, given.threads), rest, given.prompt)
    floor = statistics.median(reads)
    row: dict[str, Any] = {"weights": weights, "bytes": count, "GB/s": count / floor / 1e9, "floor ms": floor * 1e3}
    row["best floor ms"] = min(reads) * 1e3
    row["ms"] = {name: statistics.median(taken) * 1e3 for name, taken in times.items()}
    row["best ms"] = {name: min(taken) * 1e3 for name, taken in times.items()}
    row["own bytes"] = {name: step.bytes for name, step in candidates.items() if isinstance(step, LlamaCpp)}
    row.update(refused=refused, error=error)
    if given.kernels:
        found = module.profile(rest[:, :1], last(1, given.prompt + 1), *empty_caches(graph, 1, capacity),
                               threads=given.threads, seconds=2)  # fmt: skip
        kinds: dict[tuple[str, int], list[float]] = {}
        for kernel in found.kernels:
            kinds.setdefault((kernel.label, kernel.cost.bytes), []).append(kernel.minimum)
        row["kernels"] = [[label, size, len(taken), sum(taken) * 1e6] for (label, size), taken in kinds.items()]
    return row


def show(row: dict[str, Any]) -> None:
    """A row as text."""
    print(f"{row['weights']}: {row['bytes'] / 1e6:.1f} MB, floor {row['floor ms']:.2f} ms ({row['GB/s']:.1f} GB/s)")
    for name, taken in row["ms"].items():
        share, ratio = row["floor ms"] / taken, taken / row["ms"]["weft"]
        best = row["best ms"][name]
        print(f"  {name:9s} {1e3 / taken:7.1f} tokens/s  {taken:7.2f} ms (best {best:.2f})  {share:4.0%} of the floor"
              f" (best of best {row['best floor ms'] / best:.0%})")  # fmt: skip
        own = f", its weights {row['own bytes'][name] / 1e6:.1f} MB" if name in row["own bytes"] else ""
        print(f"            Weft's speed over its: {ratio:.2f}{own}")
    for name, why in row["refused"].items():
        print(f"  {name:9s} {why}")
    for label, size, count, taken in sorted(row.get("kernels", ()), key=lambda kernel: -kernel[3])[:12]:
        print(f"    {count:3d} x {label[:50]:50s} {taken:8.0f} us  {size * count / taken / 1e3:6.1f} GB/s")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights", nargs="*", default=[], help=f"of {', '.join(WEIGHTS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--against", nargs="*", default=["ort", "torch", "llama.cpp"])
    parser.add_argument("--kernels", action="store_true", help="the kernels of a token, by their best times")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for weights in given.weights or WEIGHTS:
        rows.append(measure(weights, given))
        show(rows[-1])
        sys.stdout.flush()
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

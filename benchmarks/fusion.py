"""What fusion brings: the TVM paper's figure 4, fused against unfused, in one run.

    python -m benchmarks.fusion [--json FILE] [--plot FILE.png] [--seconds 1] [--threads 1]

conv + bn + relu, depthwise conv + bn + relu, an RNN cell, an LSTM cell. The statistics of the batch normalisation are
inputs, so that it cannot be folded into the weights: it is work that fusion has to hide. Both sides are our own kernels
with the same default schedules; `knobs.fuse` is the only difference.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import weft
from benchmarks import harness
from weft.core.knobs import knobs
from weft.graph.ir import Graph, Node, TensorType, Value

Feeds = dict[str, np.ndarray[Any, Any]]


class Builder:
    """A small graph, node by node."""

    def __init__(self) -> None:
        self.inputs: list[Value] = []
        self.constants: dict[Value, np.ndarray[Any, Any]] = {}
        self.nodes: list[Node] = []
        self.feeds: Feeds = {}
        self.random = np.random.default_rng(0)

    def given(self, name: str, *shape: int, positive: bool = False) -> Value:
        """An input with random values."""
        value = Value(name, TensorType("float32", shape))
        values = self.random.standard_normal(shape).astype(np.float32)
        self.inputs.append(value)
        self.feeds[name] = np.abs(values) + 0.5 if positive else values
        return value

    def weight(self, name: str, *shape: int) -> Value:
        """A constant with random values."""
        value = Value(name, TensorType("float32", shape))
        self.constants[value] = (self.random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(
            np.float32
        )
        return value

    def op(self, name: str, *inputs: Value, **attributes: Any) -> Value:
        """One node with one output."""
        out = Value(f"{name.lower()}_{len(self.nodes)}")
        self.nodes.append(Node(name, inputs, [out], attributes, name=out.name))
        return out

    def graph(self, *outputs: Value) -> Graph:
        """The graph."""
        return Graph("fusion", self.inputs, outputs, self.nodes, self.constants)


def conv_bn_relu(depthwise: bool) -> tuple[Graph, Feeds]:
    """128 channels of 28 × 28 through a 1 × 1 convolution, or 512 of 14 × 14 through a depthwise 3 × 3."""
    b = Builder()
    channels, size = (512, 14) if depthwise else (128, 28)
    x = b.given("x", 1, channels, size, size)
    if depthwise:
        made = b.op("Conv", x, b.weight("w", channels, 1, 3, 3), pads=[1, 1, 1, 1], group=channels)
    else:
        made = b.op("Conv", x, b.weight("w", 256, channels, 1, 1))
    count = channels if depthwise else 256
    norm = b.op("BatchNormalization", made, b.given("scale", count), b.given("bias", count), b.given("mean", count),
                b.given("variance", count, positive=True))  # fmt: skip
    return b.graph(b.op("Relu", norm)), b.feeds


def rnn_cell(hidden: int = 128) -> tuple[Graph, Feeds]:
    """tanh(x W + h U + b)."""
    b = Builder()
    x, h = b.given("x", 1, hidden), b.given("h", 1, hidden)
    total = b.op(
        "Add", b.op("MatMul", x, b.weight("W", hidden, hidden)), b.op("MatMul", h, b.weight("U", hidden, hidden))
    )
    return b.graph(b.op("Tanh", b.op("Add", total, b.weight("b", hidden)))), b.feeds


def lstm_cell(hidden: int = 128) -> tuple[Graph, Feeds]:
    """The four gates, the new cell and the new state."""
    b = Builder()
    x, h, c = b.given("x", 1, hidden), b.given("h", 1, hidden), b.given("c", 1, hidden)
    gates = []
    for name in "ifog":
        total = b.op("Add", b.op("MatMul", x, b.weight(f"W{name}", hidden, hidden)),
                     b.op("MatMul", h, b.weight(f"U{name}", hidden, hidden)))  # fmt: skip
        gates.append(b.op("Tanh" if name == "g" else "Sigmoid", b.op("Add", total, b.weight(f"b{name}", hidden))))
    i, f, o, g = gates
    cell = b.op("Add", b.op("Mul", f, c), b.op("Mul", i, g))
    return b.graph(b.op("Mul", o, b.op("Tanh", cell)), cell), b.feeds


WORKLOADS = {
    "conv + bn + relu": lambda: conv_bn_relu(False),
    "depthwise conv + bn + relu": lambda: conv_bn_relu(True),
    "rnn cell": rnn_cell,
    "lstm cell": lstm_cell,
}


def measure(seconds: float, threads: int, target: str = "auto") -> list[dict[str, Any]]:
    """Each workload fused and unfused, interleaved."""
    rows = []
    for name, make in WORKLOADS.items():
        graph, feeds = make()
        with knobs.override(fuse=True):
            fused = weft.compile(graph, target, threads=threads)
            wanted = fused.run(None, feeds)
        with knobs.override(fuse=False):
            plain = weft.compile(graph, target, threads=threads)
            got = plain.run(None, feeds)
        for a, b in zip(wanted, got):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        candidates = {"fused": _run(fused, feeds), "unfused": _run(plain, feeds)}
        stats = harness.interleave(candidates, seconds)
        rows.append(
            {
                "workload": name,
                "fused µs": stats["fused"].minimum * 1e6,
                "unfused µs": stats["unfused"].minimum * 1e6,
                "speedup": stats["unfused"].minimum / stats["fused"].minimum,
                "speedup, median of rounds": harness.speed_ratio(stats["fused"], stats["unfused"]),
            }
        )
    return rows


def _run(module: Any, feeds: Feeds) -> Any:
    return lambda: module.run(None, feeds)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of the speedups."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.2))
    axes.bar([row["workload"] for row in rows], [row["speedup"] for row in rows], color="#4477aa")
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylabel("speedup by fusion")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="also draw the speedups into this file")
    parser.add_argument("--target", default="auto", help="what to compile for: auto (this processor), opencl, cuda")
    harness.add_arguments(parser)
    options = parser.parse_args()
    rows = measure(options.seconds, options.threads, options.target)
    harness.print_system()
    harness.print_table("fused against unfused", list(rows[0]), [list(row.values()) for row in rows])
    if options.json:
        harness.write_json(options.json, rows)
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()

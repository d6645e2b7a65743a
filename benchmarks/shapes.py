"""Models whose sizes change from call to call, beside ONNX Runtime in the same run.

    python -m benchmarks.shapes                             everything
    python -m benchmarks.shapes transformer ocr --sizes 10  some models, so many random sizes each
    python -m benchmarks.shapes bert --json out.json
    python -m benchmarks.shapes ocr --memory 1000           and what the process takes over a thousand sizes

Each model is called with random sizes, one after another, by both; what counts is the time of each call, the first one
aside. Our time is that of the first call with those sizes, ONNX Runtime's the better of its first two. ONNX Runtime's
threads spin for some 30 ms after a call, on a core that the next one needs; so each has its turn after a pause. A
pause leaves weights in main memory, on a shared machine even one that spins, and it takes three calls to bring them
back: so each is called with sizes that it knows first, as often as that takes. `cold` is the other case, one request
at a time: the very first call after a pause, of both, with those sizes once more. The steady state is that of the
smallest, the middle and the largest of those sizes, in turns with a form that was made for just them: `steady` is that
of a module as it comes, which by then has made forms of its own beside the calls, `open` that of the form for all sizes
alone, which is what sizes get that do not come again. Both are given for each of the three.
`--memory 1000` calls with so many more sizes, and says what the process takes after a tenth of them and after all.
With one thread what counts is the processor's time, which others on the machine disturb least.
Graphs are written here with random weights: what matters is what they compute, not what they say.

    bert         a BERT-base encoder (--layers of it), lengths 5 to 512
    transformer  four layers, (batch, length) up to (8, 128)
    resnet       ResNet-50, batches 1 to 16
    ocr          a convolutional text recogniser, widths 40 to 640
    detector     a feature pyramid over images of 20 sizes
    durations    a TTS-like model: how long each of its inputs lasts is data
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.compiler.sizes import background
from weft.core.knobs import knobs
from weft.core.model import FORM_AFTER

Feeds = dict[str, "np.ndarray[Any, Any]"]


class Net:
    """An ONNX graph in the making: operators are methods' names, weights are random."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node; the name of what it makes."""
        names = [f"v{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any) -> str:
        """A constant."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int) -> str:
        """Random weights."""
        spread = 1 / math.sqrt(max(math.prod(shape[1:]) if len(shape) > 2 else shape[0], 1))
        return self.constant((self.random.standard_normal(shape) * spread).astype(np.float32))

    def linear(self, x: str, inside: int, outside: int) -> str:
        """A product with weights, and a bias."""
        return self("Add", self("MatMul", x, self.weight(inside, outside)), self.weight(outside))

    def norm(self, x: str, width: int) -> str:
        """A layer normalization."""
        one, zero = (self.constant(make(width, np.float32)) for make in (np.ones, np.zeros))
        return self("LayerNormalization", x, one, zero, axis=-1)

    def conv(self, x: str, inside: int, outside: int, size: int, stride: int = 1, relu: bool = True) -> str:
        """A convolution that keeps sizes, but for its stride."""
        pads = [size // 2] * 4
        bias = self.weight(outside)
        made = self("Conv", x, self.weight(outside, inside, size, size), bias, pads=pads, strides=[stride] * 2)
        return self("Relu", made) if relu else made

    def heads(self, x: str, count: int, size: int, perm: Sequence[int]) -> str:
        """Rows cut into heads, as exporters write it: sizes come from Shape."""
        sizes = self("Slice", self("Shape", x), *(self.constant(np.array([n], np.int64)) for n in (0, 2)))
        shape = self("Concat", sizes, self.constant(np.array([count, size], np.int64)), axis=0)
        return self("Transpose", self("Reshape", x, shape), perm=perm)

    def layer(self, x: str, width: int, count: int) -> str:
        """A transformer layer."""
        size = width // count
        q = self.heads(self.linear(x, width, width), count, size, (0, 2, 1, 3))
        k = self.heads(self.linear(x, width, width), count, size, (0, 2, 3, 1))
        v = self.heads(self.linear(x, width, width), count, size, (0, 2, 1, 3))
        scores = self("Mul", self("MatMul", q, k), self.constant(np.float32(1 / math.sqrt(size))))
        mixed = self("Transpose", self("MatMul", self("Softmax", scores, axis=-1), v), perm=(0, 2, 1, 3))
        rows = self("Reshape", mixed, self.constant(np.array([0, 0, width], np.int64)))
        x = self.norm(self("Add", x, self.linear(rows, width, width)), width)
        inner = self.linear(x, width, 4 * width)
        gelu = self("Mul", inner, self("Add", self("Erf", self("Mul", inner, self.constant(np.float32(0.7071)))),
                                       self.constant(np.float32(1))))  # fmt: skip
        halved = self("Mul", gelu, self.constant(np.float32(0.5)))
        return self.norm(self("Add", x, self.linear(halved, 4 * width, width)), width)

    def model(self, inputs: dict[str, tuple[int, Sequence[Any]]], output: str, rank: int) -> bytes:
        """The file."""
        given = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
        made = helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * rank)
        graph = helper.make_graph(self.nodes, "shapes", given, [made], self.weights)
        found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        found.ir_version = 8
        return bytes(found.SerializeToString())


Model = tuple[bytes, Callable[[Any], Feeds]]


def encoder(layers: int, width: int, heads: int, words: int, batches: int, lengths: tuple[int, int]) -> Model:
    """A transformer over words, with positions."""
    net = Net()
    x = net("Gather", net.weight(words, width), "ids")
    length = net("Gather", net("Shape", "ids"), net.constant(np.int64(1)), axis=0)
    places = net("Range", net.constant(np.int64(0)), length, net.constant(np.int64(1)))
    x = net.norm(net("Add", x, net("Gather", net.weight(lengths[1], width), places)), width)
    for _ in range(layers):
        x = net.layer(x, width, heads)

    def feeds(random: Any) -> Feeds:
        shape = (int(random.integers(1, batches + 1)), int(random.integers(lengths[0], lengths[1] + 1)))
        return {"ids": random.integers(0, words, shape)}

    return net.model({"ids": (TensorProto.INT64, ["batch", "length"])}, x, 3), feeds


def resnet() -> Model:
    """ResNet-50."""
    net = Net()
    x = net("MaxPool", net.conv("x", 3, 64, 7, 2), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inside = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for at in range(count):
            step = stride if at == 0 else 1
            y = net.conv(net.conv(x, inside, width, 1), width, width, 3, step)
            y = net.conv(y, width, 4 * width, 1, relu=False)
            short = net.conv(x, inside, 4 * width, 1, step, relu=False) if at == 0 else x
            x, inside = net("Relu", net("Add", y, short)), 4 * width
    rows = net("Flatten", net("GlobalAveragePool", x))
    x = net("Gemm", rows, net.weight(2048, 1000), net.weight(1000))

    def feeds(random: Any) -> Feeds:
        return {"x": random.standard_normal((int(random.integers(1, 17)), 3, 224, 224)).astype(np.float32)}

    return net.model({"x": (TensorProto.FLOAT, ["batch", 3, 224, 224])}, x, 2), feeds


def ocr() -> Model:
    """Convolutions, columns as steps, and a transformer layer over them."""
    net = Net()
    x = net.conv("x", 3, 32, 3, 2)
    for inside, outside in ((32, 64), (64, 128)):
        x = net("MaxPool", net.conv(x, inside, outside, 3), kernel_shape=[2, 2], strides=[2, 2])
    x = net.conv(x, 128, 256, 3)
    columns = net("Squeeze", net("ReduceMean", x, net.constant(np.array([2], np.int64)), keepdims=1),
                  net.constant(np.array([2], np.int64)))  # fmt: skip
    x = net.layer(net("Transpose", columns, perm=[0, 2, 1]), 256, 8)
    x = net("Softmax", net.linear(x, 256, 1000), axis=-1)

    def feeds(random: Any) -> Feeds:
        return {"x": random.standard_normal((1, 3, 48, int(random.integers(40, 641)))).astype(np.float32)}

    return net.model({"x": (TensorProto.FLOAT, [1, 3, 48, "width"])}, x, 3), feeds


def detector() -> Model:
    """A backbone, a top-down path with upsampling, and heads."""
    net = Net()
    levels, x, inside = [], net.conv("x", 3, 32, 3, 2), 32
    for outside in (64, 128, 256, 256):
        x = net.conv(net.conv(x, inside, outside, 3, 2), outside, outside, 3)
        levels.append((x, outside))
        inside = outside
    top = net.conv(levels[-1][0], 256, 128, 1)
    for x, width in levels[-2::-1]:
        up = net("Resize", top, "", net.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest",
                 coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
        top = net.conv(net("Add", up, net.conv(x, width, 128, 1)), 128, 128, 3)
    x = net("Sigmoid", net.conv(net.conv(top, 128, 64, 3), 64, 6, 1, relu=False))

    def feeds(random: Any) -> Feeds:
        height, width = (32 * int(random.integers(5, 15)) for _ in range(2))
        return {"x": random.standard_normal((1, 3, height, width)).astype(np.float32)}

    return net.model({"x": (TensorProto.FLOAT, [1, 3, "height", "width"])}, x, 4), feeds


def durations() -> Model:
    """An encoder, each of its rows repeated as long as it lasts, and a decoder over what that gives."""
    net = Net()
    x = net("Gather", net.weight(100, 128), "ids")
    x = net.layer(x, 128, 4)
    flags = net(
        "Less", net.constant(np.arange(8).reshape(1, 1, 8)), net("Unsqueeze", "lasts", net.constant(np.array([2])))
    )
    steps = net("NonZero", flags)
    rows = net("Gather", steps, net.constant(np.int64(1)), axis=0)
    x = net("Gather", x, rows, axis=1)
    x = net.linear(net.layer(x, 128, 4), 128, 80)

    def feeds(random: Any) -> Feeds:
        length = int(random.integers(8, 80))
        return {"ids": random.integers(0, 100, (1, length)), "lasts": random.integers(1, 8, (1, length))}

    kinds = {name: (TensorProto.INT64, [1, "length"]) for name in ("ids", "lasts")}
    return net.model(kinds, x, 3), feeds


def models(layers: int) -> dict[str, Callable[[], Model]]:
    """What can be asked for."""
    return {
        "bert": lambda: encoder(layers, 768, 12, 30522, 1, (5, 512)),
        "transformer": lambda: encoder(4, 256, 8, 1000, 8, (8, 128)),
        "resnet": resnet,
        "ocr": ocr,
        "detector": detector,
        "durations": durations,
    }


def seconds_of(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> tuple[float, Any]:
    """The time of a call, and what it gave."""
    start = clock()
    made = call()
    return clock() - start, made


def cases(feeds: Callable[[Any], Feeds], count: int) -> Iterator[Feeds]:
    """The same random inputs for every run."""
    random = np.random.default_rng(7)
    for _ in range(count):
        yield feeds(random)


SETTLE_SECONDS = 0.06
"""After it nobody's threads spin any more."""
WARM_CALLS = 5
"""After so many calls weights are where they are in a row of calls."""
STEADY_ROUNDS, STEADY_SECONDS = 40, 1.0
"""At most so many, and seven of what takes long."""


def turn(
    run: Callable[[Feeds], Any], before: Sequence[Feeds], one: Feeds, calls: int, clock: Callable[[], float]
) -> tuple[float, Any]:
    """The best of some calls after a pause and the calls `before` them; and what it gave."""
    time.sleep(SETTLE_SECONDS)
    for known in before:
        run(known)
    return min((seconds_of(lambda: run(one), clock) for _ in range(calls)), key=lambda found: found[0])


def resident_megabytes() -> float:
    """What the process takes in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def grown(run: Callable[[Feeds], Any], given: Sequence[Feeds]) -> list[float]:
    """What the process takes after a tenth of some calls, and after all of them."""
    found = []
    for at, one in enumerate(given, 1):
        run(one)
        if at in (len(given) // 10, len(given)):
            found.append(resident_megabytes())
    return found


def steady(
    content: bytes, module: Any, given: Sequence[Feeds], threads: int, clock: Callable[[], float]
) -> list[list[float]]:
    """The times of forms for just some sizes, by those of a module that has none, and of one as it comes: the median
    of the ratios of neighbours."""
    ordered = sorted(given, key=lambda one: sum(array.size for array in one.values()))
    usual = weft.compile(onnx.load_from_string(content), threads=threads)
    usual.run(None, given[0])
    found: list[list[float]] = [[], []]
    for one in (ordered[0], ordered[len(ordered) // 2], ordered[-1]):
        for _ in range(FORM_AFTER):
            usual.run(None, one)
        if not background.settle():
            raise SystemExit("the form that is made beside the calls has not come")
        with knobs.override(sizes="bound"):
            special = weft.compile(onnx.load_from_string(content), threads=threads)
        forms = (special, module, usual)
        times: list[list[float]] = [[] for _ in forms]
        seconds, _ = seconds_of(partial(usual.run, None, one))
        orders = itertools.cycle(itertools.permutations(list(zip(forms, times))))  # who comes later finds fuller caches
        for order in itertools.islice(orders, min(STEADY_ROUNDS, max(7, int(STEADY_SECONDS / seconds)))):
            for form, taken in order:
                for _ in range(WARM_CALLS):
                    form.run(None, one)
                taken.append(seconds_of(partial(form.run, None, one), clock)[0])
        for ratios, taken in zip(found, times[1:]):
            ratios.append(statistics.median(one / other for one, other in zip(times[0], taken)))
    return found


def measure(name: str, model: Model, count: int, threads: int, memory: int = 0) -> dict[str, Any]:
    """One model: the first call, then calls with random sizes by both, in turns; the steady state at the last size."""
    content, feeds = model
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    with knobs.override(sizes="first"):  # the form for all sizes is what is measured, not one that takes its place
        module = weft.compile(onnx.load_from_string(content), threads=threads)
    given = list(cases(feeds, count + 1 + memory))
    given, more = given[: count + 1], given[count + 1 :]
    clock = time.process_time if threads == 1 else time.perf_counter

    def ours(one: Feeds) -> Any:
        return module.run(None, one)

    def theirs(one: Feeds) -> Any:
        return session.run(None, one)

    first, _ = seconds_of(lambda: ours(given[0]))
    ratios: list[float] = []
    cold: list[float] = []
    known = [given[0]] * WARM_CALLS
    for one in given[1:]:
        fresh, made = turn(ours, known, one, 1, clock)  # the first call with these sizes is one that counts
        other, wanted = turn(theirs, known, one, 2, clock)
        np.testing.assert_allclose(made[0], wanted[0], rtol=2e-3, atol=2e-4)
        ratios.append(other / fresh)
        cold.append(turn(theirs, (), one, 1, clock)[0] / turn(ours, (), one, 1, clock)[0])
    alone, usual = steady(content, module, given[1:], threads, clock)
    found = {
        "model": name, "first_call_seconds": first, "median": statistics.median(ratios), "least": min(ratios),
        "cold": statistics.median(cold), "steady": usual, "open": alone, "ratios": ratios,
    }  # fmt: skip
    return {**found, "megabytes": grown(ours, more)} if more else found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Models whose sizes change, beside ONNX Runtime.")
    parser.add_argument("models", nargs="*", help="which (default all)")
    parser.add_argument("--sizes", type=int, default=20, help="how many random sizes (default 20)")
    parser.add_argument("--layers", type=int, default=12, help="layers of bert (default 12)")
    parser.add_argument("--threads", type=int, default=weft.get_threads(), help="threads of both")
    parser.add_argument("--memory", type=int, default=0, metavar="N", help="call with so many more sizes (default 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    options = parser.parse_args(arguments)
    known = models(options.layers)
    unknown = [name for name in options.models if name not in known]
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(known)}")
    rows = []
    print("speed of calls with new sizes, ONNX Runtime's time / Weft's; and a special form's time / Weft's")
    for name in options.models or known:
        row = measure(name, known[name](), options.sizes, options.threads, options.memory)
        rows.append(row)
        memory = "   MB {:.0f} to {:.0f}".format(*row["megabytes"]) if options.memory else ""
        print(
            f"{name:12} first call {row['first_call_seconds']:6.1f} s   median {row['median']:5.2f}   "
            f"least {row['least']:5.2f}   cold {row['cold']:5.2f}   "
            + "   ".join(f"{name} {' '.join(f'{ratio:.2f}' for ratio in row[name])}" for name in ("steady", "open"))
            + memory,
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

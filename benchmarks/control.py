"""Models with branches and loops whose turns depend on data, beside ONNX Runtime in the same run.

    python -m benchmarks.control                        everything
    python -m benchmarks.control tiny beams --json out.json

Both are called in turns, after calls that are not counted (a loop's body is compiled when it has been interpreted for
long enough). Results are compared first. With one thread what counts is the processor's time, which others on the
machine disturb least. Graphs are written here with random weights.

    wake_word   a speech detector with a recurrent state: an If by the sampling rate, convolutions in both branches
    decoder     greedy decoding by a recurrent cell with attention over a fixed memory, until a word ends it
    growing     the same with keys and values that grow by a row each turn
    beams       beam search over histories that grow
    tiny        five turns of a few operations on a scalar
    turns       a thousand of them
    newton      a loop without a limit, until a number is small enough
    branches    a loop with an If in its body that is not taken in every turn
    nested      a loop in a loop
    sequence    a loop that puts a row into a sequence each turn
    scan        a Scan with a state
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import weft
from benchmarks.shapes import Feeds, Net

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Port = tuple[str, int, Any]
Made = tuple[bytes, Feeds]


class Part(Net):
    """A graph in the making whose names are its own."""

    def __init__(self, prefix: str = "", seed: int = 0) -> None:
        super().__init__(seed)
        self.prefix = prefix

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node; the name of what it makes."""
        names = [f"{self.prefix}v{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array: Any) -> str:
        """A constant."""
        name = super().constant(array)
        self.weights[-1].name = f"{self.prefix}{name}"
        return f"{self.prefix}{name}"

    def number(self, value: Any, dtype: Any = np.float32) -> str:
        """A scalar, or a list of numbers."""
        return self.constant(np.array(value, dtype))

    def ends(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> Any:
        """The subgraph."""
        info = helper.make_tensor_value_info
        given, made = ([info(*one) for one in ports] for ports in (inputs, outputs))
        return helper.make_graph(self.nodes, self.prefix or "main", given, made, self.weights)

    def file(self, inputs: Sequence[Port], outputs: Sequence[Port]) -> bytes:
        """The model."""
        found = helper.make_model(self.ends(inputs, outputs), opset_imports=[helper.make_opsetid("", 18)])
        found.ir_version = 8
        return bytes(found.SerializeToString())


def _random(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _speech(prefix: str, frame: int) -> Any:
    """Frames by a convolution, three more, a recurrent cell, and a score."""
    part = Part(prefix)
    x = part("Unsqueeze", "x", part.number([1], np.int64))
    x = part("Conv", x, part.weight(130, 1, frame), strides=[frame // 2])
    half = [part("Slice", x, *(part.number([n], np.int64) for n in ends), part.number([1], np.int64))
            for ends in ((0, 65), (65, 130))]  # fmt: skip
    x = part("Sqrt", part("Add", part("Mul", half[0], half[0]), part("Mul", half[1], half[1])))
    for inside, outside, stride in ((65, 128, 1), (128, 64, 2), (64, 128, 1)):
        weights = part.weight(outside, inside, 3), part.weight(outside)
        x = part("Relu", part("Conv", x, *weights, pads=[1, 1], strides=[stride]))
    x = part("Transpose", x, perm=[2, 0, 1])
    cells = part.weight(1, 512, 128), part.weight(1, 512, 128), part.weight(1, 1024)
    _, h, c = part("LSTM", x, *cells, "", "h", "c", hidden_size=128, outputs=3)
    row = part("Relu", part("Squeeze", h, part.number([0], np.int64)))
    score = part("Sigmoid", part("MatMul", row, part.weight(128, 1)))
    return part.ends([], [(score, FLOAT, [1, 1]), (h, FLOAT, [1, 1, 128]), (c, FLOAT, [1, 1, 128])])


def wake_word() -> Made:
    """A speech detector that takes two sampling rates."""
    net = Part()
    wide = net("Equal", "rate", net.number(16000, np.int64))
    made = net("If", wide, outputs=3, then_branch=_speech("then", 128), else_branch=_speech("else", 64))
    states: list[Port] = [("h", FLOAT, [1, 1, 128]), ("c", FLOAT, [1, 1, 128])]
    inputs: list[Port] = [("x", FLOAT, [1, 576]), ("rate", INT, []), *states]
    file = net.file(inputs, [(name, FLOAT, None) for name in made])
    state = np.zeros((1, 1, 128), np.float32)
    return file, {"x": _random(1, 576), "rate": np.array(16000), "h": state, "c": state}


def _words(part: Part, rows: str, width: int, words: int) -> str:
    """The likeliest word of each row."""
    return str(part("ArgMax", part("MatMul", rows, part.weight(width, words)), axis=-1, keepdims=0))


def decoder() -> Made:
    """A word is looked up, meets the memory, and gives the next one."""
    width, words = 256, 1000
    net, body = Part(), Part("body")
    row = body("Gather", body.weight(words, width), "word")
    state = body("Tanh", body("Add", body("MatMul", "state", body.weight(width, width)), row))
    scores = body("Softmax", body("MatMul", state, "turned"), axis=-1)
    mixed = body("Add", body("MatMul", scores, "memory"), state)
    word = _words(body, body("Tanh", body.linear(mixed, width, width)), width, words)
    on = body("Not", body("Equal", body("Squeeze", word), body.number(words + 1, np.int64)))
    graph = body.ends(
        [("turn", INT, []), ("go", BOOL, []), ("state", FLOAT, [1, width]), ("word", INT, [1])],
        [(on, BOOL, []), (state, FLOAT, [1, width]), (word, INT, [1]), (body("Identity", word), INT, [1])],
    )
    net("Transpose", "memory", perm=[1, 0])
    net.nodes[-1].output[0] = "turned"
    made = net("Loop", net.number(30, np.int64), "", "start", "first", outputs=3, body=graph)
    inputs: list[Port] = [("memory", FLOAT, [50, width]), ("start", FLOAT, [1, width]), ("first", INT, [1])]
    file = net.file(inputs, [(made[0], FLOAT, None), (made[1], INT, None), (made[2], INT, None)])
    return file, {"memory": _random(50, width), "start": _random(1, width), "first": np.array([3])}


def growing() -> Made:
    """Keys and values grow by a row each turn, and are read by the next."""
    width, words = 128, 500
    net, body = Part(), Part("body")
    row = body("Gather", body.weight(words, width), "word")
    query = body.linear(row, width, width)
    keys = body("Concat", "keys", body.linear(row, width, width), axis=0)
    values = body("Concat", "values", body.linear(row, width, width), axis=0)
    scores = body("Softmax", body("MatMul", query, body("Transpose", keys, perm=[1, 0])), axis=-1)
    mixed = body("Add", body("MatMul", scores, values), row)
    word = _words(body, body("Relu", body.linear(mixed, width, width)), width, words)
    on = body("Identity", "go")
    list_kind = (FLOAT, [None, width])
    graph = body.ends(
        [("turn", INT, []), ("go", BOOL, []), ("word", INT, [1]), ("keys", *list_kind), ("values", *list_kind)],
        [(on, BOOL, []), (word, INT, [1]), (keys, *list_kind), (values, *list_kind),
         (body("Identity", word), INT, [1])],
    )  # fmt: skip
    made = net("Loop", net.number(40, np.int64), "", "first", "k0", "v0", outputs=4, body=graph)
    inputs: list[Port] = [("first", INT, [1]), ("k0", FLOAT, [4, width]), ("v0", FLOAT, [4, width])]
    kinds = (INT, FLOAT, FLOAT, INT)
    file = net.file(inputs, [(name, kind, None) for name, kind in zip(made, kinds)])
    return file, {"first": np.array([3]), "k0": _random(4, width), "v0": _random(4, width, seed=2)}


def beams() -> Made:
    """The best continuations of a few histories."""
    width, words, count = 64, 200, 4
    net, body = Part(), Part("body")
    axis1 = body.number([1], np.int64)
    last = body("Slice", "history", body.number([-1], np.int64), body.number([2**31], np.int64), axis1)
    rows = body("Gather", body.weight(words, width), body("Squeeze", last, axis1))
    chances = body("LogSoftmax", body("MatMul", body("Tanh", body.linear(rows, width, width)),
                                      body.weight(width, words)), axis=-1)  # fmt: skip
    flat = body("Reshape", body("Add", chances, "so_far"), body.number([-1], np.int64))
    best, places = body("TopK", flat, body.number([count], np.int64), axis=0, outputs=2)
    beam, word = (body(op, places, body.number(words, np.int64)) for op in ("Div", "Mod"))
    kept = body("Gather", "history", beam, axis=0)
    column = body.number([count, 1], np.int64)
    history = body("Concat", kept, body("Reshape", word, column), axis=1)
    on = body("Greater", body("ReduceMax", best, keepdims=0), body.number(-1e6))
    grown = (INT, [count, None])
    graph = body.ends(
        [("turn", INT, []), ("go", BOOL, []), ("history", *grown), ("so_far", FLOAT, [count, 1])],
        [(on, BOOL, []), (history, *grown), (body("Reshape", best, column), FLOAT, [count, 1])],
    )
    made = net("Loop", net.number(30, np.int64), "", "start", "nothing", outputs=2, body=graph)
    inputs: list[Port] = [("start", INT, [count, 1]), ("nothing", FLOAT, [count, 1])]
    file = net.file(inputs, [(made[0], INT, None), (made[1], FLOAT, None)])
    return file, {"start": np.array([[1], [4], [7], [9]]), "nothing": np.zeros((count, 1), np.float32)}


def _scalar(turns: int) -> Made:
    net, body = Part(), Part("body")
    after = body("Add", body("Mul", "state", body.number(0.5)), body.number(1.0))
    graph = body.ends(
        [("turn", INT, []), ("go", BOOL, []), ("state", FLOAT, [])],
        [(body("Identity", "go"), BOOL, []), (after, FLOAT, []), (body("Identity", after), FLOAT, [])],
    )
    made = net("Loop", net.number(turns, np.int64), "", "x", outputs=2, body=graph)
    return net.file([("x", FLOAT, [])], [(name, FLOAT, None) for name in made]), {"x": np.array(3, np.float32)}


def newton() -> Made:
    """A square root."""
    net, body = Part(), Part("body")
    after = body("Mul", body("Add", "state", body("Div", "x", "state")), body.number(0.5))
    error = body("Abs", body("Sub", body("Mul", after, after), "x"))
    on = body("Greater", error, body.number(1e-3))
    graph = body.ends([("turn", INT, []), ("go", BOOL, []), ("state", FLOAT, [])], [(on, BOOL, []), (after, FLOAT, [])])
    made = net("Loop", "", "", "start", body=graph)
    file = net.file([("x", FLOAT, []), ("start", FLOAT, [])], [(made, FLOAT, [])])
    return file, {"x": np.array(2.0, np.float32), "start": np.array(1000.0, np.float32)}


def branches() -> Made:
    """Every third turn takes the longer branch."""
    width = 64
    net, body, then, other = Part(), Part("body"), Part("then"), Part("other")
    third = body("Equal", body("Mod", "turn", body.number(3, np.int64)), body.number(0, np.int64))
    long = then("Tanh", then.linear(then("Tanh", then.linear("state", width, 4 * width)), 4 * width, width))
    order = other("Gather", "state", other.constant(np.arange(width)[::-1].copy()), axis=1)
    shape = (FLOAT, [8, width])
    graphs = {"then_branch": then.ends([], [(long, *shape)]), "else_branch": other.ends([], [(order, *shape)])}
    chosen = body("If", third, **graphs)
    after = body("Add", chosen, body.number(0.125))
    graph = body.ends(
        [("turn", INT, []), ("go", BOOL, []), ("state", *shape)], [(body("Identity", "go"), BOOL, []), (after, *shape)]
    )
    made = net("Loop", net.number(30, np.int64), "", "x", body=graph)
    return net.file([("x", *shape)], [(made, *shape)]), {"x": _random(8, width)}


def nested() -> Made:
    """A loop of as many turns as the number of the turn around it."""
    net, outer, inner = Part(), Part("outer"), Part("inner")
    after = inner("Tanh", inner("MatMul", "deep", inner.weight(16, 16)))
    shape = (FLOAT, [1, 16])
    inside = inner.ends(
        [("k", INT, []), ("k_go", BOOL, []), ("deep", *shape)], [(inner("Identity", "k_go"), BOOL, []), (after, *shape)]
    )
    made = outer("Add", outer("Loop", "turn", "", "state", body=inside), outer.number(0.1))
    body = outer.ends(
        [("turn", INT, []), ("go", BOOL, []), ("state", *shape)], [(outer("Identity", "go"), BOOL, []), (made, *shape)]
    )
    result = net("Loop", net.number(12, np.int64), "", "x", body=body)
    return net.file([("x", *shape)], [(result, *shape)]), {"x": _random(1, 16)}


def sequence() -> Made:
    """Rows put into a sequence, and joined behind the loop."""
    net, body = Part(), Part("body")
    after = body("Tanh", body("MatMul", "state", body.weight(32, 32)))
    longer = body("SequenceInsert", "rows", after)
    kind = helper.make_tensor_sequence_value_info("rows", FLOAT, [1, 32])
    graph = body.ends([("turn", INT, []), ("go", BOOL, []), ("state", FLOAT, [1, 32])],
                      [(body("Identity", "go"), BOOL, []), (after, FLOAT, [1, 32])])  # fmt: skip
    graph.input.append(kind)
    graph.output.append(helper.make_tensor_sequence_value_info(longer, FLOAT, [1, 32]))
    _, rows = net("Loop", net.number(30, np.int64), "", "x", net("SequenceEmpty", dtype=FLOAT), outputs=2, body=graph)
    made = net("ConcatFromSequence", rows, axis=0)
    return net.file([("x", FLOAT, [1, 32])], [(made, FLOAT, None)]), {"x": _random(1, 32)}


def scan() -> Made:
    """A state that is multiplied and added to, with a row of every step."""
    net, body = Part(), Part("body")
    after = body("Tanh", body("Add", body("MatMul", "state", body.weight(32, 32)), "row"))
    graph = body.ends([("state", FLOAT, [2, 32]), ("row", FLOAT, [2, 32])],
                      [(after, FLOAT, [2, 32]), (body("Identity", after), FLOAT, [2, 32])])  # fmt: skip
    made = net("Scan", "start", "x", outputs=2, body=graph, num_scan_inputs=1)
    file = net.file([("start", FLOAT, [2, 32]), ("x", FLOAT, [50, 2, 32])], [(name, FLOAT, None) for name in made])
    return file, {"start": _random(2, 32), "x": _random(50, 2, 32, seed=2)}


MODELS: dict[str, Callable[[], Made]] = {
    "wake_word": wake_word, "decoder": decoder, "growing": growing, "beams": beams, "tiny": lambda: _scalar(5),
    "turns": lambda: _scalar(1000), "newton": newton, "branches": branches, "nested": nested, "sequence": sequence,
    "scan": scan,
}  # fmt: skip


def seconds_of(call: Callable[[], Any], times: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The time of one call of several."""
    start = clock()
    for _ in range(times):
        call()
    return (clock() - start) / times


def measure(name: str, made: Made, threads: int, rounds: int) -> dict[str, Any]:
    """One model: both give the same, and how long each takes, in turns."""
    content, feeds = made
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    module = weft.compile(onnx.load_from_string(content), threads=threads)
    calls = [lambda: session.run(None, feeds), lambda: module.run(None, feeds)]
    for _ in range(40):
        found = calls[1]()
    for got, wanted in zip(found, calls[0](), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)
    times = max(1, int(0.02 / max(seconds_of(calls[0], 3), 1e-6)))
    clock = time.process_time if threads == 1 else time.perf_counter
    pairs = [[seconds_of(call, times, clock) for call in calls] for _ in range(rounds)]
    theirs, ours = (min(column) for column in zip(*pairs))
    ratio = statistics.median(a / b for a, b in pairs)
    return {"model": name, "onnxruntime_microseconds": theirs * 1e6, "weft_microseconds": ours * 1e6, "speed": ratio}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Branches and loops, beside ONNX Runtime.")
    parser.add_argument("models", nargs="*", help="which (default all)")
    parser.add_argument("--threads", type=int, default=1, help="threads of both (default 1)")
    parser.add_argument("--rounds", type=int, default=9, help="how many times each is measured (default 9)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results there")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(MODELS)}")
    rows = []
    print("ONNX Runtime's time / Weft's")
    for name in options.models or MODELS:
        row = measure(name, MODELS[name](), options.threads, options.rounds)
        rows.append(row)
        both = (f"{row[key]:9.1f} µs" for key in ("onnxruntime_microseconds", "weft_microseconds"))
        print(f"{name:10} {'  '.join(both)}   {row['speed']:5.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""weft bench MODEL --decode N: a decoder with a cache, a prompt and then tokens one by one.

The model takes tokens [batch, length], the place of the last one, and caches [.., capacity, ..], and gives logits and
the caches again, as `weft.models.llama_110m` does. The caches are updated in place, in Weft and in ONNX Runtime (by
binding one buffer to input and output). Both get the same tokens, in turns. The floor is the time in which the threads
read the weights of the products once, measured by a kernel that does nothing else, in turns of its own among theirs.
Every turn is taken twice, and the second time counts: a cache of some hundred megabytes that the machine's cores share
then holds what a decoder finds in it that runs token after token, not what the turn before left there.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from weft import te
from weft.builder import build
from weft.cli.bench_command import SETTLE_SECONDS, Usage, busy
from weft.cli.facts import relative_error, run_facts
from weft.cli.given import UsageError, refuse
from weft.cli.screen import Screen, seconds, size
from weft.cli.sources import compiled
from weft.graph.ir import Array, Graph
from weft.models.llama import llama_110m

Step = Callable[[Array, Array], Array]
"""Tokens, and the place of the last one, to logits."""

TURN = 32
"""Tokens of one candidate before the other's turn comes: so many make a shared cache of 300 MB its own."""


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.model != "llama_110m":
        raise UsageError(f"--decode measures the built-in llama_110m, not {given.model}")
    refuse(given, "size shape input seed", "with --decode the model, its sizes and its inputs are chosen by it")
    if given.against == "interpreter":
        raise UsageError("--decode measures beside ort, not beside the interpreter")
    batch, prompt, tokens = given.batch or 1, given.prompt or 128, given.decode
    graph = llama_110m(batch, weights=given.weights or "float32")
    capacity = prompt + tokens
    module = compiled(graph, {}, given, screen)
    threads = run_facts(module)["threads"]
    candidates: dict[str, Step] = {"weft": weft_step(module, graph, batch, capacity)}
    if given.against:
        candidates["ort"] = ort_step(graph, batch, capacity, threads)
    random = np.random.default_rng(0)
    words = int(str(graph.outputs[0].tensor.dims[1]))
    first, rest = (random.integers(0, words, (batch, count)) for count in (prompt, tokens))
    with screen.working("compiling for a prompt and for a token"):
        for step in candidates.values():
            step(first, last(batch, prompt))
            step(rest[:, :1], last(batch, prompt + 1))
    before = Usage.now()
    with screen.working(f"a prompt of {prompt} and {tokens} tokens"):
        prompts = {name: prompt_times(step, first, given.seconds or 3.0) for name, step in candidates.items()}
        times, floor, error = decode(candidates, reader(weight_bytes(graph), threads), rest, prompt)
    facts = {"machine": Usage.now().since(before), "prompt": prompts, "times": times, "floor": floor, "error": error}
    if screen.as_json:
        screen.figures({**facts, "weight_bytes": weight_bytes(graph), "batch": batch, "threads": threads})
    else:
        show(facts, graph, batch, prompt, threads, screen)
    return 0


def last(batch: int, count: int) -> Array:
    """The place of the last of so many tokens."""
    return np.full(batch, count - 1, np.int32)


def prompt_times(step: Step, tokens: Array, limit: float) -> list[float]:
    """Seconds of calls with a prompt: three, or fewer where they take longer than the limit."""
    taken: list[float] = []
    while not taken or (len(taken) < 3 and sum(taken) < limit):
        taken.append(timed(step, tokens, last(*tokens.shape))[0])
    return taken


def timed(step: Step, tokens: Array, places: Array) -> tuple[float, Array]:
    """Seconds, and logits."""
    start = time.perf_counter()
    made = step(tokens, places)
    return time.perf_counter() - start, made


def decode(
    candidates: dict[str, Step], read: Callable[[], float], tokens: Array, prompt: int
) -> tuple[dict[str, list[float]], list[float], float]:
    """Seconds of every token, and of reading the weights as often, in turns; and how far logits lie apart."""
    batch, count = tokens.shape
    times: dict[str, list[float]] = {name: [] for name in candidates}
    floor: list[float] = []
    error = 0.0
    for start in range(0, count, TURN):
        time.sleep(SETTLE_SECONDS)
        turn = range(start, min(start + TURN, count))
        floor += [read() for _ in (*turn, *turn)][len(turn) :]
        made: dict[str, list[Array]] = {}
        for name, step in candidates.items():
            time.sleep(SETTLE_SECONDS)
            found = [timed(step, tokens[:, at : at + 1], last(batch, prompt + at + 1)) for at in (*turn, *turn)]
            times[name] += [taken for taken, _ in found[len(turn) :]]
            made[name] = [logits.copy() for _, logits in found[-1:]]
        error = max([error, *(relative_error(made["weft"][0], other[0]) for other in made.values())])
    return times, floor, error


# ------------------------------------------------------------------------------------------------------- candidates


def empty_caches(graph: Graph, batch: int, capacity: int) -> list[Array]:
    """The caches before the first token."""
    shapes = [value.tensor.dims for value in graph.inputs[2:]]
    return [np.zeros([batch, int(str(s[1])), capacity, int(str(s[3]))], np.float32) for s in shapes]


def weft_step(module: Any, graph: Graph, batch: int, capacity: int) -> Step:
    """A call of the module, in whose caches the new ones are written."""
    caches = empty_caches(graph, batch, capacity)
    logits = np.empty((batch, int(str(graph.outputs[0].tensor.dims[1]))), np.float32)
    out = [logits, *caches]

    def step(tokens: Array, places: Array) -> Array:
        module(tokens, places, *caches, out=out)
        return logits

    return step


def ort_step(graph: Graph, batch: int, capacity: int, threads: int) -> Step:
    """The same in ONNX Runtime, with one buffer bound to each cache's input and output."""
    import onnxruntime

    from weft.cli.reference import open_session
    from weft.cli.to_onnx import to_onnx

    session = open_session(to_onnx(graph), threads)
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in empty_caches(graph, batch, capacity)]

    def step(tokens: Array, places: Array) -> Array:
        binding = session.io_binding()
        binding.bind_output(graph.outputs[0].name)
        binding.bind_cpu_input(graph.inputs[0].name, tokens)
        binding.bind_cpu_input(graph.inputs[1].name, places)
        for given, made, value in zip(graph.inputs[2:], graph.outputs[1:], values):
            binding.bind_ortvalue_input(given.name, value)
            binding.bind_ortvalue_output(made.name, value)
        session.run_with_iobinding(binding)
        return np.asarray(binding.get_outputs()[0].numpy())

    return step


# ------------------------------------------------------------------------------------------------------- the floor


def weight_bytes(graph: Graph) -> int:
    """Bytes of the weights that products read; of a table of embeddings a token reads a row."""
    read = {
        v
        for node in graph.nodes
        if node.op in ("MatMulNBits", "Transpose", "Cast", "DequantizeLinear")
        for v in node.inputs
    }
    return sum(array.nbytes for value, array in graph.constants.items() if value in read and array.ndim > 1)


def reader(count: int, threads: int) -> Callable[[], float]:
    """A function that reads so many bytes with so many threads, and gives the seconds that it took."""
    parts, each = 64, max(count // 4 // 64, 64)
    source, k = te.placeholder((parts, each), "float32", name="source"), te.reduce_axis(each, "k")
    total = te.compute((parts,), lambda p: te.sum(source[p, k.var], axis=k), name="total")
    schedule = te.create_schedule(total.op)
    schedule.plan("native")
    kernel = build(schedule, [source, total], threads=threads)
    array, out = np.ones((parts, each), np.float32), np.empty(parts, np.float32)

    def read() -> float:
        start = time.perf_counter()
        kernel(array, out)
        return time.perf_counter() - start

    read()
    return read


def show(facts: dict[str, Any], graph: Graph, batch: int, prompt: int, threads: int, screen: Screen) -> None:
    """The figures as a table."""
    count, floor = weight_bytes(graph), statistics.median(facts["floor"])
    screen.line(
        f"llama_110m: weights {size(count)}, batch {batch}, {threads} threads; reading them once takes "
        f"{seconds(floor)} ({count / floor / 1e9:.1f} GB/s): {batch / floor:.1f} tokens/s at most"
    )
    rows = []
    for name, taken in facts["times"].items():
        middle, best = statistics.median(taken), min(taken)
        rows.append(
            [name, seconds(statistics.median(facts["prompt"][name])), f"{batch / middle:.1f}", seconds(middle),
             seconds(best), f"{floor / middle:.0%} ({min(facts['floor']) / best:.0%})"]
        )  # fmt: skip
    screen.table(["", f"prompt of {prompt}>", "tokens/s>", "a token>", "best>", "of the floor (best)>"], rows)
    if why := busy(facts["machine"], threads):
        screen.line(f"take these times with care: {why}")
    if len(facts["times"]) > 1:
        screen.line(f"logits differ by {facts['error']:.1e}")

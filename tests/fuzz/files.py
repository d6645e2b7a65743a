"""Mutated files: ONNX models (bytes and fields), module files (bytes and manifest), graphs and loop programs as text.

Each is read or refused with a WeftError. A model or graph that is read must compile and run beside guard pages, or be
refused; a loop program that the verifier accepts must be built and run there, or be refused. A module file with changed
bytes that still loads must give the very answer of the file it was; one with a changed manifest (written with the
checksums of the change, as one who means harm would) may give any answer, within its memory.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import weft
from tests.frontends.onnx.models import branching, classifier, model, node
from tests.fuzz import graphs, guard
from tests.fuzz.driver import code_version
from tests.fuzz.kinds import OK, Case, Kind, Result, chance_of
from tests.fuzz.operators import guarded_answer, is_random
from tests.graph.verifier import verify_graph
from tests.schedule.intrinsics import declare_intrinsics
from tests.schedule.random_programs import Source, arguments_of, draw_program, shapes_of
from tests.schedule.random_steps import draw_steps
from weft.core.errors import ScheduleError, WeftError
from weft.core.knobs import knobs
from weft.expr.nodes import int_value
from weft.frontends.onnx import load
from weft.graph.ir import Graph, GraphError, TensorType
from weft.graph.text import constant_table, format_graph, parse_graph
from weft.loop.interpreter import interpret
from weft.loop.ir import For
from weft.loop.parser import parse_func
from weft.loop.verifier import verify
from weft.loop.visit import child_stmts

LARGEST = 1 << 22
INTEGERS = (0, 1, -1, 2, 7, 99, 1 << 20, 1 << 31, (1 << 40) + 1, (1 << 63) - 1, -(1 << 63))
FLAVOURS = ("onnx bytes", "onnx fields", "module bytes", "module manifest", "graph text", "loop text")
SEED_GRAPHS = 24
SEED_PROGRAMS = 200
MOST_TURNS = 100_000


# ------------------------------------------------------------------------------------------------------- ONNX models


@functools.cache
def onnx_seeds() -> list[bytes]:
    """The models that are mutated."""
    old = [
        node("Upsample", "x", "a", scales=[1.0, 2.0]),
        node("Softmax", "a", "b", axis=1),
        node("Clip", "b", "c", min=0.0, max=1.0),
        node("Squeeze", "c", "d", axes=[0]),
        node("Split", "c", "e f", axis=0),
        node("Pad", "e", "y", pads=[1, 0, 0, 1]),
    ]
    own = [classifier(), branching(), model(old, outputs=["y", "d", "f"], opset=7)]
    drawn = [graphs.build(graphs.make(seed))[0] for seed in range(SEED_GRAPHS)]
    return [made.SerializeToString() for made in (*own, *drawn)]


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """A random change of bytes."""
    out = bytearray(data)
    at = rng.randrange(len(out)) if out else 0
    kind = rng.randrange(5)
    if kind == 0:
        out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9)))
    elif kind == 1:
        del out[at : at + rng.randrange(1, 30)]
    elif kind == 2:
        out[at : at + 1] = bytes([rng.randrange(256)])
    elif kind == 3:
        other = rng.randrange(len(out) + 1)
        out[at:at] = out[other : other + rng.randrange(1, 60)]
    elif len(out) > 1 and rng.random() < 0.3:
        del out[at:]
    return bytes(out)


def mutate_fields(data: bytes, rng: random.Random) -> bytes:
    """A random change of a field, which keeps the file readable."""
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    change(proto, rng)
    return bytes(proto.SerializeToString())


def change(message: Any, rng: random.Random) -> None:
    """Changes one field somewhere inside a message."""
    while True:
        fields = message.ListFields()
        if not fields:
            return
        descriptor, value = rng.choice(fields)
        repeated = not isinstance(value, (int, float, str, bytes)) and hasattr(value, "__len__")
        if descriptor.message_type is None:
            change_plain(message, descriptor, value, repeated, rng)
            return
        if repeated:
            if not len(value):
                return
            at = rng.randrange(len(value))
            action = rng.random()
            if action < 0.1:
                del value[at]
                return
            if action < 0.2:
                value.add().CopyFrom(value[at])
                return
            message = value[at]
        elif rng.random() < 0.05:
            message.ClearField(descriptor.name)
            return
        else:
            message = value


def change_plain(message: Any, descriptor: Any, value: Any, repeated: bool, rng: random.Random) -> None:
    """Changes a field that holds numbers or text."""
    sample = value[0] if repeated and len(value) else None if repeated else value
    if isinstance(sample, (str, bytes)):
        words = ["", "x", "y", "a", "b", "nothing", "Conv", "Neg", "If", "Loop", "Reshape", "\u00e9"]
        word = rng.choice(words)
        new: Any = word if isinstance(sample, str) else word.encode()
    elif isinstance(sample, float):
        new = rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    else:
        new = rng.choice(INTEGERS)
    try:
        if repeated and len(value):
            if rng.random() < 0.3:
                del value[rng.randrange(len(value))]
            else:
                value[rng.randrange(len(value))] = new
        else:
            setattr(message, descriptor.name, new)
    except (ValueError, TypeError):
        message.ClearField(descriptor.name)  # a number that the field cannot hold


def _run_onnx(data: bytes) -> Result:
    graph = load(data)
    guarded_answer(graph, ones_for(graph), is_random(graph))
    return OK


def ones_for(graph: Graph) -> dict[str, np.ndarray]:
    """An array of ones for each input."""
    feeds = {}
    for value in graph.inputs:
        if not isinstance(value.type, TensorType):
            raise GraphError(f"{value.name} is no tensor, which this test does not make")
        shape = [dim if isinstance(dim, int) else 2 for dim in value.type.shape or ()]
        if math.prod(shape) > LARGEST:
            raise GraphError(f"{value.name} is larger than this test wants to make")
        # A negative size is the compiler's to refuse: an array has none.
        feeds[value.name] = np.ones([max(0, size) for size in shape], value.type.numpy)
    return feeds


# ------------------------------------------------------------------------------------------------------ module files


@functools.cache
def modules() -> list[tuple[Path, list[np.ndarray], list[Any]]]:
    """Saved models: the file, inputs, and the answer. They are compiled once for a version of the code."""
    folder = Path(knobs.cache_dir) / "fuzz" / code_version()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            _save_modules(Path(made) / "modules")
            with contextlib.suppress(OSError):  # another worker was quicker
                os.rename(Path(made) / "modules", folder)
    found = []
    for path in sorted(folder.glob("*.weft")):
        with np.load(path.with_suffix(".npz")) as arrays:
            inputs = [arrays[name] for name in sorted(arrays) if name.startswith("in")]
            found.append((path, inputs, [arrays[name] for name in sorted(arrays) if name.startswith("out")]))
    return found


def _save_modules(folder: Path) -> None:
    from tests.compiler.graphs import convnet, mlp, random_inputs, recurrent
    from tests.compiler.test_compile import with_host_node

    folder.mkdir()
    for number, graph in enumerate((mlp(), convnet(), recurrent(), with_host_node())):
        with knobs.override(cache=False):
            module = weft.compile(graph)
        arrays = random_inputs(graph, 1)
        answer = module(*arrays)
        named = {f"in{at}": array for at, array in enumerate(arrays)}
        named.update({f"out{at}": one for at, one in enumerate(answer if isinstance(answer, tuple) else [answer])})
        np.savez(folder / f"{number}.npz", **named)
        module.save(folder / f"{number}.weft")


def _run_module_bytes(case: Case) -> Result:
    path, arrays, answer = modules()[case.more["which"] % len(modules())]
    data = path.read_bytes()
    for _, seed in case.parts:
        data = mutate_bytes(data, random.Random(seed))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.weft"
        path.write_bytes(data)
        got = weft.load(path)(*arrays)
    for mine, theirs in zip(got if isinstance(got, tuple) else [got], answer, strict=True):
        assert np.array_equal(mine, theirs), "a damaged module file gives another answer"
    return OK


class _Tampered:
    """The json module, but what is written has a few changes."""

    def __init__(self, seeds: list[int]) -> None:
        self.seeds = seeds

    def __getattr__(self, name: str) -> Any:
        return getattr(json, name)

    def dumps(self, value: Any, *rest: Any, **named: Any) -> str:
        """The text of the changed value."""
        if isinstance(value, dict) and "forms" in value:
            value = json.loads(json.dumps(value))
            for seed in self.seeds:
                tamper(value, random.Random(seed))
        return json.dumps(value, *rest, **named)


def tamper(value: Any, chance: random.Random) -> None:
    """Changes one thing somewhere inside a value of JSON."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = value[key]
        way = chance.random()
        if isinstance(inner, (dict, list)) and inner and way < 0.85:
            value = inner
            continue
        if way < 0.1:
            del value[key]
        elif isinstance(value, list) and way < 0.2:
            value.insert(key, inner)
        elif isinstance(inner, bool):
            value[key] = not inner
        elif isinstance(inner, int):
            value[key] = chance.choice((inner + 1, inner - 1, inner * 2, inner + 64, chance.choice(INTEGERS)))
        elif isinstance(inner, str):
            value[key] = chance.choice(("", "x", inner[:-1], inner + "0", "float64", "arena", "weight", "value"))
        else:
            value[key] = chance.choice((None, [], {}, 1, "x", [1, 2, 3]))
        return


def _run_manifest(case: Case) -> Result:
    from weft.compiler.saved import store

    whole, arrays, _ = modules()[case.more["which"] % len(modules())]
    module = weft.load(whole)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.weft"
        store.json = _Tampered([seed for _, seed in case.parts])  # type: ignore[attr-defined]
        try:
            module.save(path)
        finally:
            store.json = json  # type: ignore[attr-defined]
        for at_end in (True, False):
            with guard.placed(at_end, 0xAA):
                weft.load(path)(*[guard.place(array) for array in arrays])
                guard.check()
    return OK


# -------------------------------------------------------------------------------------------------------------- text


@functools.lru_cache(maxsize=SEED_PROGRAMS)
def loop_text(seed: int) -> str:
    """A scheduled program as text."""
    declare_intrinsics()
    source = Source(seed)
    schedule = draw_program(source).schedule()
    for _ in range(source.number(0, 4)):
        plan = draw_steps(source, schedule)
        try:
            step = next(plan)
            while True:
                step = plan.send(schedule.apply(step[0], **step[1]))
        except (StopIteration, ScheduleError):
            continue
    return repr(schedule.func)


@functools.lru_cache(maxsize=SEED_GRAPHS)
def graph_text(seed: int) -> tuple[str, dict[str, Any]]:
    """A graph as text, and its large constants."""
    graph = load(graphs.build(graphs.make(seed))[0].SerializeToString())
    return format_graph(graph), constant_table(graph)


def mutate_text(text: str, chance: random.Random) -> str:
    """A change of a word, a number, a sign, a line, or a letter."""
    way = chance.choice(("number", "number", "number", "word", "sign", "drop", "twice", "swap", "letter"))
    lines = text.split("\n")
    if way in ("drop", "twice", "swap"):
        at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
        if way == "drop":
            del lines[at]
        elif way == "twice":
            lines.insert(other, lines[at])
        else:
            lines[at], lines[other] = lines[other], lines[at]
        return "\n".join(lines)
    pattern = {"number": r"(?<![\w.])-?\d+(?:\.\d+)?", "word": r"[A-Za-z_]\w*", "sign": r"[-+*/%<>=(),\[\]{}:]"}.get(
        way, r"."
    )
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    spot = chance.choice(found)
    if way == "number":
        old = spot.group()
        near = [str(int(old) + 1), str(int(old) - 1), str(int(old) * 2)] if old.lstrip("-").isdigit() else ["0.5"]
        new = chance.choice((*near, *near, str(chance.choice(INTEGERS)), "1e999", "nan"))
    elif way == "word":
        new = chance.choice(found).group()
    elif way == "sign":
        new = chance.choice("-+*/%<>=(),[]{}:")
    else:
        new = chance.choice(("", chance.choice('abx01 ()[]%:=."\n\t\u00e9\0')))
    return text[: spot.start()] + new + text[spot.end() :]


def _turns(s: Any) -> int:
    """How often the innermost statements run, about: open sizes count as 5."""
    inner = sum(_turns(child) for child in child_stmts(s)) or 1
    return (
        inner * (5 if int_value(s.extent) is None else int(int_value(s.extent) or 0)) if isinstance(s, For) else inner
    )


def _run_loop_text(text: str) -> Result:
    func = parse_func(text)
    verify(func)
    built = weft.build(func, threads=2)
    if _turns(func.body) > MOST_TURNS:
        return Result("refused", "loop text: a longer program than this test wants to run")
    with guard.placed(True, 0xAA):
        if any(math.prod(shape) > LARGEST for shape in shapes_of(func, 5)):
            return Result("refused", "loop text: larger arrays than this test wants to make")
        arrays = arguments_of(func, 5, 1)
        copies = [guard.place(array) for array in arrays]
        built(*copies)
        guard.check()
    interpret(func, *[array.copy() for array in arrays])
    return OK


def _run_graph_text(text: str, constants: dict[str, Any]) -> Result:
    graph = parse_graph(text, constants)
    verify_graph(graph)
    guarded_answer(graph, ones_for(graph), is_random(graph))
    return OK


# ----------------------------------------------------------------------------------------------------------- the kind


def make(seed: int) -> Case:
    """The case of a number: its parts are the changes."""
    chance = chance_of("files", seed)
    parts = tuple(("change", chance.getrandbits(32)) for _ in range(chance.choice((1, 1, 1, 2, 3))))
    flavour = FLAVOURS[seed % len(FLAVOURS)]
    return Case(seed, parts, {"flavour": flavour, "label": flavour, "which": chance.getrandbits(20)})


def content(case: Case) -> Any:
    """What is read: bytes or text (module files are made where they are read)."""
    flavour, which = case.more["flavour"], case.more["which"]
    change_one: Callable[[Any, random.Random], Any] = {
        "onnx bytes": mutate_bytes, "onnx fields": mutate_fields,
    }.get(flavour, mutate_text)  # fmt: skip
    if flavour.startswith("onnx"):
        made: Any = onnx_seeds()[which % len(onnx_seeds())]
    else:
        made = graph_text(which % SEED_GRAPHS)[0] if flavour == "graph text" else loop_text(which % SEED_PROGRAMS)
    for _, seed in case.parts:
        made = change_one(made, random.Random(seed))
    return made


def show(case: Case) -> str:
    """The text, or what is changed."""
    flavour = case.more["flavour"]
    made = content(case) if flavour.endswith("text") else f"model {case.more['which']}, changes {case.parts}"
    return f"{flavour}\n{made[:6000]}"


def run(case: Case) -> Result:
    """Reads a changed file, and runs it where it can be read."""
    flavour = case.more["flavour"]
    try:
        with knobs.override(cache=False):
            if flavour == "module bytes":
                return _run_module_bytes(case)
            if flavour == "module manifest":
                return _run_manifest(case)
            if flavour == "loop text":
                return _run_loop_text(content(case))
            if flavour == "graph text":
                return _run_graph_text(content(case), graph_text(case.more["which"] % SEED_GRAPHS)[1])
            return _run_onnx(content(case))
    except WeftError as error:
        return Result("refused", f"{flavour}: {type(error).__name__}", str(error)[:400])


KIND = Kind("files", make, run, show, guard.install, share=1.2)

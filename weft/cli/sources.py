"""What a command line names: a model, the sizes of its inputs, and the arrays to feed it.

    MODEL       model.onnx, .pt2, .keras, .tflite, .weft, or the name of a built-in model (resnet18, bert_base, …)
    --size      N=4                            the value of a named size
    --shape     x=1,3,224,224                  the whole shape of an input
    --input     x=random | x=zeros | x=file.npy | x=16000 | x=[1,2,3]

Sizes that nobody gives are 1; inputs that nobody gives are random.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.cli.facts import inputs_of
from weft.cli.given import UsageError, refuse
from weft.cli.screen import Screen
from weft.compiler import Module, compile, load
from weft.compiler.kinds import kind_of as check_kind
from weft.compiler.module import of_type
from weft.compiler.reports.inputs import random_array
from weft.core.errors import did_you_mean
from weft.graph.ir import Array, Graph, TensorType, Value
from weft.models import make, names

LARGEST = 1 << 40
"""No size is larger."""

PRECISIONS = {"fp32": 2.0**-23, "bf16": 2.0**-7, "fp16": 2.0**-10, "tf32": 2.0**-10}
"""What --precision takes, and how far apart two numbers beside 1 are in that type."""


# ---------------------------------------------------------------------------------------------------------- options


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, and the options that say how large its inputs are."""
    files = "an .onnx, .pt2, .keras, .tflite or .weft file"
    parser.add_argument("model", help=f"{files}, or a built-in model: " + ", ".join(names()))
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", help="the value of a named size")
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=N,…", help="the shape of an input")
    parser.add_argument("--batch", type=count, help="the batch of a built-in model (default 1)")


def _machine(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it names no machine")
    return text


def add_compiling(parser: argparse.ArgumentParser, runs: bool = True) -> None:
    """The options of the compiler; those of a run where the command runs what it compiles."""
    parser.add_argument("--target", type=_machine, help='the machine to compile for (default "auto": this one)')
    parser.add_argument("--precision", choices=list(PRECISIONS), help="compute in a narrower type (default fp32)")
    parser.add_argument("--exact", action="store_true", help="without what rounds otherwise than plain sums do")
    if runs:
        parser.add_argument("--threads", type=count, help="the threads to use (default: all this process may use)")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """The options that say what goes in."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=WHAT",
        help="random, zeros, a .npy file, or numbers such as 16000 or [1,2]; inputs left out are random",
    )
    parser.add_argument("--seed", type=natural, help="of the random inputs (default 0)")


def natural(text: str) -> int:
    """A number from 0 up, for argparse."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 up")
    return int(text)


def count(text: str) -> int:
    """A number from 1 up, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 up")
    return int(text)


def duration(text: str) -> float:
    """Seconds, for argparse: a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def output_path(given: argparse.Namespace, ending: str) -> Path:
    """The file to write: as given, with the ending of what is written, or the model's name with that ending."""
    path: Path | None = given.output
    if path is None:
        return Path(Path(given.model).stem + ending)
    if path.suffix == ".so":
        raise UsageError(
            f"-o {path}: a shared library is written by weft export {given.model} --format so -o FOLDER, "
            "with its C header beside it"
        )
    last = "." + ending.rpartition(".")[2]
    if path.suffix != last:
        raise UsageError(f"-o {path}: what is written here is a file that ends in {last}")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no folder {path.parent}")
    return path


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """NAME=TEXT options as a table; names may hold = themselves, texts may not."""
    found: dict[str, str] = {}
    for one in given:
        name, sign, text = one.rpartition("=")
        if not sign or not name or not text:
            raise UsageError(f"{option} takes NAME=…, not {one!r}")
        if name in found:
            raise UsageError(f"{option} gives {name} twice")
        found[name] = text
    return found


# ---------------------------------------------------------------------------------------------------------- models


def kind_of(given: argparse.Namespace) -> str:
    """What the model is: "onnx", "weft" (a module file) or "built-in"; options that cannot apply to it are refused."""
    name: str = given.model
    path = Path(name)
    if name in names() and not path.is_file():
        return "built-in"
    if path.exists() and path.suffix != ".weft":
        check_kind(name)  # a file or folder that is no model is refused, with the way to make one of it
    if path.suffix == ".weft":
        refuse(given, "batch target precision exact", f"{name} is compiled already, and what it is was chosen then")
    if not path.is_file():
        known = f", and no built-in model of that name; there are {', '.join(names())}{did_you_mean(name, names())}"
        raise UsageError(f"there is no file {name!r}{'' if path.suffix == '.weft' else known}")
    if path.suffix == ".weft":
        return "weft"
    refuse(given, "batch", f"only built-in models take it; the sizes of {name} are chosen by --size or --shape")
    return "onnx"


def open_graph(given: argparse.Namespace, screen: Screen) -> Graph:
    """The model that the command line names, as a graph."""
    kind = kind_of(given)
    if kind == "built-in":
        return make(given.model, given.batch or 1)
    if kind == "weft":
        raise UsageError(f"{given.model} is compiled already: this command takes an .onnx file or a built-in model")
    with screen.working(f"reading {Path(given.model).name}"):
        if given.model.endswith(".pt2"):
            from weft.frontends.torch import load as load_torch

            return load_torch(given.model).graph
        if given.model.endswith(".keras"):
            from weft.frontends.keras import load as load_keras

            return load_keras(given.model).graph
        if given.model.endswith(".tflite"):
            from weft.frontends.tflite import load as load_tflite

            return load_tflite(given.model).graph
        from weft.frontends.onnx import load as load_onnx

        return load_onnx(Path(given.model))


def compiled(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    given: argparse.Namespace,
    screen: Screen,
    target: str | None = None,
) -> Module:
    """A graph compiled as the command line says, for its target or this one."""
    with screen.working(f"compiling {graph.name}"):
        threads = getattr(given, "threads", None)
        return compile(graph, target or given.target or "auto", shapes, given.precision, threads, given.exact or None)


def open_module(given: argparse.Namespace, screen: Screen) -> Module:
    """The model that the command line names, compiled or read from a module file."""
    if kind_of(given) == "weft":
        refuse(given, "size shape", f"{given.model} is compiled already, and its sizes were chosen then")
        return load(given.model)
    graph = open_graph(given, screen)
    return compiled(graph, input_shapes(graph.inputs, given, screen), given, screen)


def open_with_feeds(given: argparse.Namespace, screen: Screen) -> tuple[Module, dict[str, Any], Graph | None]:
    """The compiled model, an array for every input, and the graph (where the model is no module file)."""
    if kind_of(given) == "weft":
        module = load(given.model, threads=given.threads)
        return module, make_feeds(inputs_of(module), given, screen), None
    graph = open_graph(given, screen)
    feeds = make_feeds(graph.inputs, given, screen)
    return compiled(graph, {name: array.shape for name, array in feeds.items()}, given, screen), feeds, graph


def input_shapes(
    inputs: Sequence[Value], given: argparse.Namespace, screen: Screen, arrays: Mapping[str, Array] | None = None
) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that goes in: its array's, as given, as declared, and 1 for sizes that nobody gave."""
    shapes = {name: _numbers(text, "--shape") for name, text in pairs(given.shape, "--shape").items()}
    sizes = {name: _number(text, "--size") for name, text in pairs(given.size, "--size").items()}
    known = [value.name for value in inputs]
    tensors = [value.name for value in inputs if isinstance(value.type, TensorType)]
    for name in shapes:
        if name not in tensors:
            why = "it is no tensor" if name in known else f"the model has the inputs {', '.join(known)}"
            raise UsageError(f"--shape {name}: {why}")
    for name, array in (arrays or {}).items():
        if shapes.setdefault(name, array.shape) != array.shape:
            raise UsageError(f"--shape {name}: the array that --input gives has the shape {list(array.shape)}")
    guessed: dict[str, None] = {}
    used: set[str] = set()
    found: dict[str, tuple[int, ...]] = {}
    for value in inputs:
        if isinstance(value.type, TensorType):
            found[value.name] = _shape(value, shapes.get(value.name), sizes, guessed, used)
    unknown = [name for name in sizes if name not in used]
    if unknown:
        named = dict.fromkeys(str(dim) for value in inputs for dim in _open_sizes(value))
        there = f"those that are open are {', '.join(named)}" if named else "all sizes of the model are fixed"
        raise UsageError(f"--size: no input has a size named {', '.join(unknown)}; {there}")
    if guessed:
        chosen = ", ".join(f"{name}=1" for name in guessed)
        screen.note(f"sizes that were not given are 1 ({chosen}); choose others with --size or --shape")
    return found


def _open_sizes(value: Value) -> list[Any]:
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return [dim for dim in shape or () if not isinstance(dim, int)]


def _shape(
    value: Value, whole: tuple[int, ...] | None, sizes: Mapping[str, int], guessed: dict[str, None], used: set[str]
) -> tuple[int, ...]:
    """The shape of one input: as a whole where it is given so, and then the named sizes must agree with it."""
    declared = value.tensor.shape
    if whole is not None and (declared is None or len(declared) != len(whole)):
        return whole
    if declared is None:
        raise UsageError(f"the input {value.name!r} has any number of dimensions: give its shape with --shape")
    out = []
    for at, dim in enumerate(declared):
        name = str(dim)
        if not isinstance(dim, int) and name in sizes:
            used.add(name)
            if whole is not None and whole[at] != sizes[name]:
                raise UsageError(f"--size {name}={sizes[name]}: the shape of {value.name!r} has {whole[at]} there")
        elif not isinstance(dim, int) and whole is None:
            guessed[name] = None
        out.append(whole[at] if whole is not None else dim if isinstance(dim, int) else sizes.get(name, 1))
    return tuple(out)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) <= LARGEST for part in parts):
        raise UsageError(f"{option} takes whole numbers that memory can hold, with commas between, not {text!r}")
    return tuple(map(int, parts))


def _number(text: str, option: str) -> int:
    numbers = _numbers(text, option)
    if len(numbers) != 1:
        raise UsageError(f"{option} takes one whole number, not {text!r}")
    return numbers[0]


# ---------------------------------------------------------------------------------------------------------- inputs


def make_feeds(inputs: Sequence[Value], given: argparse.Namespace, screen: Screen) -> dict[str, Any]:
    """An array for every input."""
    texts = pairs(given.input, "--input")
    known = [value.name for value in inputs]
    for name in texts:
        if name not in known:
            raise UsageError(f"--input {name}: the model has the inputs {', '.join(known)}")
    read = {
        name: _read(text, value)
        for value in inputs
        for name, text in texts.items()
        if name == value.name and text not in ("random", "zeros")
    }
    shapes = input_shapes(inputs, given, screen, {name: array for name, array in read.items() if array.ndim})
    if given.seed is not None and all(texts.get(value.name, "random") != "random" for value in inputs):
        raise UsageError("--seed: no input is random")
    random = np.random.default_rng(given.seed or 0)
    feeds: dict[str, Any] = {}
    for value in inputs:
        if value.name in read:
            feeds[value.name] = read[value.name]
        elif value.name not in shapes:
            raise UsageError(f"the input {value.name!r} is {value.type!r}: only tensors can be given here")
        elif texts.get(value.name) == "zeros":
            feeds[value.name] = np.zeros(shapes[value.name], value.tensor.numpy)
        else:
            feeds[value.name] = random_array(value.tensor.dtype, shapes[value.name], random)
    return feeds


def _read(text: str, value: Value) -> Array:
    """An input from a .npy file, or from the numbers that stand in the command line themselves."""
    if text.endswith(".npy"):
        try:
            return np.asarray(np.load(text, allow_pickle=False))
        except (OSError, ValueError) as problem:
            raise UsageError(f"--input {value.name}: {text} cannot be read as a .npy file ({problem})") from None
    try:
        given = json.loads(text)
        found = np.asarray(given)
    except (ValueError, TypeError):
        raise UsageError(
            f"--input {value.name}: {text!r} is neither random, zeros, a .npy file, nor numbers such as 16000 or [1,2]"
        ) from None
    return of_type(found, given, value.type, value.name) if isinstance(value.type, TensorType) else found

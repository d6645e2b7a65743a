"""What a command line names: a model, the sizes of its inputs, and the arrays to feed it.

    MODEL       model.onnx, model.weft, or the name of a built-in model (resnet18, bert_base, …)
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
from weft.cli.screen import Screen
from weft.core.errors import WeftError
from weft.executor import Module, compile, load
from weft.executor.inputs import random_array
from weft.graph.ir import Array, Graph, TensorType, Value
from weft.models import make, names


class UsageError(WeftError, ValueError):
    """A command line that makes no sense; the text says which part."""


# ---------------------------------------------------------------------------------------------------------- options


def add_model(parser: argparse.ArgumentParser) -> None:
    """The model, and the options that say how large its inputs are."""
    parser.add_argument("model", help="an .onnx or .weft file, or a built-in model: " + ", ".join(names()))
    parser.add_argument("--size", action="append", default=[], metavar="NAME=N", help="the value of a named size")
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=N,…", help="the shape of an input")
    parser.add_argument("--batch", type=int, default=1, help="the batch of a built-in model (default 1)")


def add_compiling(parser: argparse.ArgumentParser) -> None:
    """The options of the compiler."""
    parser.add_argument("--target", default="auto", help='the machine to compile for (default "auto": this one)')
    parser.add_argument("--precision", choices=["bf16", "fp16", "tf32"], help="compute in a narrower type")
    parser.add_argument("--threads", type=int, help="the threads to use (default: all that this process may use)")


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """The options that say what goes in."""
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=WHAT",
        help="random, zeros, a .npy file, or numbers such as 16000 or [1,2]; inputs left out are random",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs (default 0)")


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """NAME=TEXT options as a table; names may hold = themselves, texts may not."""
    found: dict[str, str] = {}
    for one in given:
        name, sign, text = one.rpartition("=")
        if not sign or not name or not text:
            raise UsageError(f"{option} takes NAME=…, not {one!r}")
        found[name] = text
    return found


# ---------------------------------------------------------------------------------------------------------- models


def open_graph(given: argparse.Namespace, screen: Screen) -> Graph:
    """The model that the command line names, as a graph."""
    name: str = given.model
    if name in names() and not Path(name).exists():
        return make(name, given.batch)
    path = Path(name)
    if path.suffix == ".weft":
        raise UsageError(f"{name} is compiled already: this command takes an .onnx file or a built-in model")
    if not path.is_file():
        known = ", ".join(names())
        raise UsageError(f"there is no file {name!r}, and no built-in model of that name; there are {known}")
    from weft.frontends.onnx import load as load_onnx

    with screen.working(f"reading {path.name}"):
        return load_onnx(path)


def open_module(given: argparse.Namespace, screen: Screen) -> Module:
    """The model that the command line names, compiled or read from a module file."""
    if Path(given.model).suffix == ".weft":
        if not Path(given.model).is_file():
            raise UsageError(f"there is no file {given.model!r}")
        return load(given.model, threads=given.threads)
    graph = open_graph(given, screen)
    shapes = input_shapes(graph.inputs, given, screen)
    with screen.working(f"compiling {graph.name}"):
        return compile(graph, given.target, shapes, given.precision, given.threads)


def open_with_feeds(given: argparse.Namespace, screen: Screen) -> tuple[Module, dict[str, Any], Graph | None]:
    """The compiled model, an array for every input, and the graph (where the model is no module file)."""
    if Path(given.model).suffix == ".weft":
        module = open_module(given, screen)
        return module, make_feeds(inputs_of(module), given, screen), None
    graph = open_graph(given, screen)
    feeds = make_feeds(graph.inputs, given, screen)
    shapes = {name: array.shape for name, array in feeds.items()}
    with screen.working(f"compiling {graph.name}"):
        return compile(graph, given.target, shapes, given.precision, given.threads), feeds, graph


def input_shapes(inputs: Sequence[Value], given: argparse.Namespace, screen: Screen) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that goes in: as given, as declared, and 1 for sizes that nobody gave."""
    shapes = {name: _numbers(text, "--shape") for name, text in pairs(given.shape, "--shape").items()}
    sizes = {name: _numbers(text, "--size")[0] for name, text in pairs(given.size, "--size").items()}
    known = [value.name for value in inputs]
    for name in shapes:
        if name not in known:
            raise UsageError(f"--shape {name}: the model has the inputs {', '.join(known)}")
    guessed: dict[str, None] = {}
    used: set[str] = set()
    found: dict[str, tuple[int, ...]] = {}
    for value in inputs:
        if value.name in shapes:
            found[value.name] = shapes[value.name]
        elif isinstance(value.type, TensorType):
            found[value.name] = _shape(value, sizes, guessed, used)
    unknown = [name for name in sizes if name not in used]
    if unknown:
        raise UsageError(f"no input has a size named {', '.join(unknown)}; see weft inspect {given.model}")
    if guessed:
        chosen = ", ".join(f"{name}=1" for name in guessed)
        screen.note(f"sizes that were not given are 1 ({chosen}); choose others with --size or --shape")
    return found


def _shape(value: Value, sizes: Mapping[str, int], guessed: dict[str, None], used: set[str]) -> tuple[int, ...]:
    if value.tensor.shape is None:
        raise UsageError(f"the input {value.name!r} has any number of dimensions: give its shape with --shape")
    out = []
    for dim in value.tensor.shape:
        name = str(dim)
        if not isinstance(dim, int) and name in sizes:
            used.add(name)
        elif not isinstance(dim, int):
            guessed[name] = None
        out.append(dim if isinstance(dim, int) else sizes.get(name, 1))
    return tuple(out)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise UsageError(f"{option} takes whole numbers with commas between, not {text!r}")
    return tuple(map(int, parts))


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
    kept = argparse.Namespace(**vars(given))
    kept.shape = [
        *given.shape,
        *(f"{name}={','.join(map(str, array.shape))}" for name, array in read.items() if array.ndim),
    ]
    shapes = input_shapes(inputs, kept, screen)
    random = np.random.default_rng(given.seed)
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
    kind = value.type.numpy if isinstance(value.type, TensorType) else None
    if text.endswith(".npy"):
        try:
            return np.asarray(np.load(text, allow_pickle=False))
        except (OSError, ValueError) as problem:
            raise UsageError(f"--input {value.name}: {text} cannot be read as a .npy file ({problem})") from None
    try:
        return np.asarray(json.loads(text), kind)
    except (ValueError, TypeError):
        raise UsageError(
            f"--input {value.name}: {text!r} is neither random, zeros, a .npy file, nor numbers such as 16000 or [1,2]"
        ) from None

"""Mutated models, loaded under a limit of memory and time; run as a program, so that even a crash is an answer.

    python -m tests.frontends.onnx.fuzz SEED COUNT

Half of the mutants have random changes of bytes, half have changes of fields that keep the file readable. Each must
load, or be refused with a FrontendError; a graph that loads must compile and run, or be refused with a WeftError.
Prints one line for each that does something else.
"""

from __future__ import annotations

import math
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from typing import Any

import numpy as np
import onnx

import weft
from tests.frontends.onnx.models import branching, classifier, model, node
from weft.core.errors import FrontendError, WeftError
from weft.frontends.onnx import load
from weft.graph.ir import Graph, GraphError

MEMORY = 8 << 30
SECONDS = 20
LARGEST = 10_000_000
INTEGERS = (0, 1, -1, 2, 7, 99, 1 << 20, 1 << 31, (1 << 40) + 1, (1 << 63) - 1, -(1 << 63))


def seeds() -> list[Any]:
    """The models that are mutated."""
    old = [
        node("Upsample", "x", "a", scales=[1.0, 2.0]),
        node("Softmax", "a", "b", axis=1),
        node("Clip", "b", "c", min=0.0, max=1.0),
        node("Squeeze", "c", "d", axes=[0]),
        node("Split", "c", "e f", axis=0),
        node("Pad", "e", "y", pads=[1, 0, 0, 1]),
    ]
    return [classifier(), branching(), model(old, outputs=["y", "d", "f"], opset=7)]


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few random changes of bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
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
    """A few random changes of fields."""
    proto = onnx.ModelProto()
    proto.ParseFromString(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
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


def outcome(data: bytes) -> str:
    """What becomes of a model: "ran", "refused", or a problem."""
    try:
        graph = load(data)
    except FrontendError:
        return "refused"
    except Exception as error:  # noqa: BLE001
        return f"load: {type(error).__name__}: {error}: {traceback.format_exc()[-600:]}"
    try:
        run(graph)
    except WeftError:
        return "refused"
    except Exception as error:  # noqa: BLE001
        return f"run: {type(error).__name__}: {error}: {traceback.format_exc()[-600:]}"
    return "ran"


def run(graph: Graph) -> None:
    """Compiles a graph and runs it on ones."""
    feeds = {}
    for value in graph.inputs:
        kind = value.tensor
        shape = [dim if isinstance(dim, int) else 2 for dim in kind.shape or ()]
        if math.prod(shape) > LARGEST:
            raise GraphError(f"{value.name} is larger than this test wants to make")
        feeds[value.name] = np.ones(shape, kind.numpy)
    weft.compile(graph).run(None, feeds)


def main(seed: int, count: int) -> int:
    """Runs that many mutants."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    rng = random.Random(seed)
    models = [made.SerializeToString() for made in seeds()]
    found: dict[str, int] = {}
    for number in range(count):
        mutate = mutate_bytes if number % 2 else mutate_fields
        data = mutate(rng.choice(models), rng)
        signal.alarm(SECONDS)
        start = time.perf_counter()
        result = outcome(data)
        signal.alarm(0)
        if result not in ("ran", "refused"):
            print(f"PROBLEM seed {seed} number {number}: {result}")
        if time.perf_counter() - start > SECONDS / 2:
            print(f"PROBLEM seed {seed} number {number}: took {time.perf_counter() - start:.1f} s")
        kind = result if result in ("ran", "refused") else "problem"
        found[kind] = found.get(kind, 0) + 1
    print(found)
    return 0 if "problem" not in found else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))

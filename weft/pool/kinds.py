"""What travels between the processes of a pool, as JSON: machines, arrays, and how a kernel wants them.

A machine is told by its facts, not by its name: what "native" means on a worker is something else on a builder. An
array is told by its numbers: random ones by their seed, small constants and whole numbers as they are. Large constants
of floats are random too, of the same magnitude: what a kernel takes does not depend on them, and so no weight travels
with each of its candidates.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import numpy as np

from weft.compiler.kernels.build import Packing
from weft.compiler.reports.inputs import random_array
from weft.expr.digits import Digit
from weft.graph.ir import TensorType
from weft.pool import settings
from weft.pool.device import PoolError
from weft.targets.base import MatrixFacts, Scope, Target, ThreadFacts
from weft.targets.registry import find_target
from weft.tuner.bench import Bench

RECORDS = {kind.__name__: kind for kind in (Target, Scope, MatrixFacts, ThreadFacts)}
"""What facts are made of."""

SECONDS, INSTRUCTIONS = "seconds", "instructions"


def facts_of(target: Target) -> dict[str, Any]:
    """A machine as plain data. One whose programs run on a device stays a text: the device is where the worker is."""
    return {"text": target.name} if target.on_device else {"facts": _plain(target)}


def _plain(value: Any) -> Any:
    """Records, sets and tuples as JSON: an object with their kind for its only key."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f"${type(value).__name__}": {one.name: _plain(getattr(value, one.name)) for one in fields(value)}}
    if isinstance(value, frozenset):
        return {"$set": sorted(map(_plain, value))}
    if isinstance(value, tuple):
        return {"$tuple": list(map(_plain, value))}
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, Mapping) else value


def _made(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    kind, held = next(iter(data.items()), ("", {}))
    if kind in ("$set", "$tuple"):
        return (frozenset if kind == "$set" else tuple)(map(_made, held))
    if kind[:1] == "$":
        return RECORDS[kind[1:]](**{name: _made(one) for name, one in held.items()})
    return {key: _made(one) for key, one in data.items()}


def target_of(data: Mapping[str, Any]) -> Target:
    """The machine that such data tell; a PoolError where they tell none."""
    if "text" in data:
        return find_target(str(data["text"]))
    try:
        made = _made(data["facts"])
    except (KeyError, TypeError, ValueError) as error:
        raise PoolError(f"these facts describe no machine: {error}") from None
    if not isinstance(made, Target):
        raise PoolError("these facts describe no machine")
    return made


def arrays_of(bench: Bench) -> list[dict[str, Any]]:
    """How the arrays of a task are made, in order, results last."""
    task, made = bench.task, []
    known = {buffer: task.constants.get(value) for value, buffer in task.program.inputs}
    for place, (buffer, array) in enumerate(zip(task.program.buffers, bench.arrays)):
        one: dict[str, Any] = {"dtype": buffer.dtype.name, "shape": list(array.shape)}
        constant = known.get(buffer)
        if buffer not in known:
            one["result"] = True
        elif constant is None:
            one["seed"] = place
        elif constant.nbytes <= settings.MOST_INLINE or "float" not in buffer.dtype.name:
            one["data"] = base64.b64encode(np.ascontiguousarray(constant).tobytes()).decode()
        else:
            one["seed"], one["scale"] = place, float(np.std(np.asarray(constant, np.float32))) or 1.0
        made.append(one)
    return made


@functools.lru_cache(maxsize=8)
def make_arrays(text: str) -> list[Any]:
    """The arrays that such a list, as JSON, tells of; zeros for results."""
    made = []
    for one in json.loads(text):
        kind, shape = TensorType(one["dtype"], one["shape"]).numpy, tuple(one["shape"])
        if "data" in one:
            array = np.frombuffer(base64.b64decode(one["data"]), kind).reshape(shape)
        elif one.get("result"):
            array = np.zeros(shape, kind)
        else:
            array = random_array(one["dtype"], shape, np.random.default_rng(one["seed"]))
            array = (array * one["scale"]).astype(kind) if "scale" in one else array
        made.append(array)
    return made


def parameters_of(parameters: Sequence[int | Packing]) -> list[Any]:
    """The parameters of a kernel as plain data."""
    return [one if isinstance(one, int) else asdict(one) for one in parameters]


def packing_of(data: Any) -> int | Packing:
    """One parameter, from such data."""
    if isinstance(data, int):
        return data
    order = tuple(None if part is None else (int(part[0]), Digit(**part[1])) for part in data["order"])
    first = None if data["first"] is None else packing_of(data["first"])
    return Packing(int(data["source"]), tuple(data["sizes"]), order, first if isinstance(first, Packing) else None)

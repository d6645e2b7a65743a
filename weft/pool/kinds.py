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
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from weft.executor.inputs import random_array
from weft.executor.kernels import Packing
from weft.expr.digits import Digit
from weft.graph.ir import TensorType
from weft.pool.device import PoolError
from weft.targets.base import MatrixFacts, Scope, Target
from weft.targets.registry import find_target
from weft.tuner.bench import Bench

MOST_INLINE = 1 << 16
"""Bytes of a constant that travels as it is."""

SECONDS, INSTRUCTIONS = "seconds", "instructions"


def facts_of(target: Target) -> dict[str, Any]:
    """A machine as plain data. One whose programs run on a device stays a text: the device is where the worker is."""
    if target.on_device:
        return {"text": target.name}
    data = {one.name: getattr(target, one.name) for one in fields(target)}
    data["features"] = sorted(target.features)
    data["narrow_products"], data["precisions"] = sorted(target.narrow_products), sorted(target.precisions)
    data["scopes"] = {name: asdict(scope) for name, scope in target.scopes.items()}
    data["matrix"] = target.matrix and {**asdict(target.matrix), "dtypes": sorted(target.matrix.dtypes)}
    return data


def target_of(data: Mapping[str, Any]) -> Target:
    """The machine that such data tell; a PoolError where they tell none."""
    if "text" in data:
        return find_target(str(data["text"]))
    try:
        made = dict(data)
        for name in ("features", "narrow_products", "precisions"):
            made[name] = frozenset(map(str, made[name]))
        made["cache_bytes"] = tuple(made["cache_bytes"])
        made["scopes"] = {name: Scope(**scope) for name, scope in made["scopes"].items()}
        if made["matrix"]:
            made["matrix"] = MatrixFacts(**{**made["matrix"], "dtypes": frozenset(made["matrix"]["dtypes"])})
        made["measured"] = tuple((str(name), float(value)) for name, value in made["measured"])
        return Target(**made)
    except (KeyError, TypeError, ValueError) as error:
        raise PoolError(f"these facts describe no machine: {error}") from None


# ------------------------------------------------------------------------------------------------------- arrays


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
        elif constant.nbytes <= MOST_INLINE or "float" not in buffer.dtype.name:
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
    return [
        one if isinstance(one, int) else
        {"source": one.source, "sizes": one.sizes, "order": [p and [p[0], asdict(p[1])] for p in one.order]}
        for one in parameters
    ]  # fmt: skip


def packing_of(data: Any) -> int | Packing:
    """One parameter, from such data."""
    if isinstance(data, int):
        return data
    order = tuple(None if part is None else (int(part[0]), Digit(**part[1])) for part in data["order"])
    return Packing(int(data["source"]), tuple(data["sizes"]), order)

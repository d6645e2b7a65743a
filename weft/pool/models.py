"""Whole models: their kernels compiled by builders, linked here into one function that a device runs.

`int32_t trial(const int64_t *arguments, int64_t threads)`: its arguments are the weights (one block, each array at its
offset), the inputs, the arena, and the outputs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import statistics
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from weft.codegen.llvm.compile import emit_object
from weft.compiler.export.plan import make_plan
from weft.compiler.kernels.workers import elsewhere
from weft.compiler.lowering.native import driver_ir
from weft.compiler.module import Module, compile_graph
from weft.core.context import setting
from weft.graph.ir import Graph
from weft.loop.ir import Func
from weft.pool import jobs, settings
from weft.pool.device import PoolError
from weft.pool.devices import LIBRARY
from weft.pool.kinds import SECONDS, facts_of, make_arrays
from weft.pool.node import BUILD, device_resource
from weft.pool.runner import PoolRunner, agreed, fleet, send
from weft.runtime.model.module_file import padded
from weft.targets.base import Target
from weft.tuner.records import Status


@contextmanager
def compiling(client: Any) -> Iterator[None]:
    """Within, the builders of a pool compile kernels; this process those that they lose, all where there is none."""

    patience = settings.KERNEL_SECONDS

    def ask(func: Func, target: Target) -> Callable[[], tuple[str, bytes, bool]]:
        order = json.dumps({"target": facts_of(target), "program": repr(func)}).encode()
        key = f"kernel-{hashlib.sha256(order).hexdigest()}"
        return functools.partial(wait, send(client, {key: (jobs.kernel, order)}, BUILD)[0])

    def wait(future: Any) -> tuple[str, bytes, bool]:
        nonlocal patience
        try:
            return code_of(bytes(future.result(timeout=patience)))
        except (OSError, TimeoutError, CancelledError):
            patience = 0.1  # the pool is gone: nobody waits for the others
            raise

    builders = [one for one in fleet(client) if one["kind"] == BUILD]
    with setting(elsewhere, ask if builders and agreed([], builders) else None):
        yield


def code_of(answer: bytes) -> tuple[str, bytes, bool]:
    """The LLVM IR and the object code of a kernel, and whether it turns by calls."""
    if answer[:1] != b"=":
        raise PoolError(f"a builder says: {answer[1:].decode(errors='replace')}")
    head, _, data = answer[1:].partition(b"\n")
    size, turns = json.loads(head)
    return data[:size].decode(), data[size:], bool(turns)


class SentModel(NamedTuple):
    """What a device needs: the job (JSON), the library and the weights."""

    job: dict[str, Any]
    library: bytes
    weights: bytes


def model_of(module: Module) -> SentModel:
    """A compiled model as a device runs it, with random inputs; an ExportError where it is no native program."""
    plan = make_plan(module)
    arena = 1 + len(plan.inputs)
    places: dict[tuple[str, int], tuple[int, int]] = {("arena", 0): (arena, 0)}
    places |= {("array", at): (0, offset) for at, offset in enumerate(plan.offsets)}
    places |= {("input", at): (1 + at, 0) for at in range(len(plan.inputs))}
    places |= {("output", at): (arena + 1 + at, 0) for at in range(len(plan.outputs))}
    calls = []
    for step, (_, bases) in zip(plan.steps, plan.calls):
        for one in step.calls:
            found = [(places[bases[base]], offset) for base, offset in one.arguments]
            calls.append(replace(one, arguments=tuple((base, start + offset) for (base, start), offset in found)))
    driver = emit_object(driver_ir(jobs.SYMBOL, calls, plan.target.triple), plan.target)
    library = jobs.link([*plan.form.native.objects(), driver], plan.target, jobs.SYMBOL)
    arrays: list[dict[str, Any]] = [
        {"dtype": one.dtype, "shape": list(one.shape)} for one in plan.inputs + plan.outputs
    ]
    for at, one in enumerate(arrays):
        one |= {"seed": at} if at < len(plan.inputs) else {"result": True}
    weights = [np.ascontiguousarray(array).tobytes().ljust(padded(array.nbytes), b"\0") for array in plan.arrays]
    job = {"symbol": jobs.SYMBOL, "arrays": arrays, "inputs": len(plan.inputs), "arena": max(plan.arena_bytes, 64)}
    return SentModel(job, library, b"".join(weights) or bytes(64))


def bench_whole(graph: Graph, runner: PoolRunner, precision: str | None = None) -> dict[str, Any]:
    """What a whole model takes on a device: seconds or counts of each call; inputs and outputs by name."""
    if runner.about["needs"] != LIBRARY:
        raise PoolError(f"devices of kind {runner.kind} run kernels, and no whole models")
    with compiling(runner.client()):
        sent = model_of(compile_graph(graph, runner.target, precision=precision))
    call = (jobs.bench, json.dumps(sent.job).encode(), sent.library, sent.weights)

    def ask(client: Any) -> bytes:
        future = send(client, {f"bench-{uuid.uuid4().hex}": call}, device_resource(runner.kind))[0]
        return bytes(future.result(timeout=settings.MODEL_SECONDS))

    head, _, data = runner.ask(ask).partition(b"\n")
    said, unit = json.loads(head), runner.unit
    if said["status"] != Status.OK.value:
        raise PoolError(f"{graph.name} does not run on {runner.kind}: {said['status']}: {said['detail']}")
    ((repeats, rounds),) = said["samples"]
    costs = [1e-9 * own / repeats if unit == SECONDS else float(own) for own, _ in rounds]
    made, arrays = [], make_arrays(json.dumps(sent.job["arrays"]))
    for like in arrays[sent.job["inputs"] :]:
        made.append(np.frombuffer(data[: like.nbytes], like.dtype).reshape(like.shape))
        data = data[like.nbytes :]
    inputs = {value.name: array for value, array in zip(graph.inputs, arrays)}
    least, middle, most = (figure(pick(costs), unit) for pick in (min, statistics.median, max))
    spread = f" ({least} to {most})" if least != most else ""
    return {"kind": runner.kind, "unit": unit, unit: statistics.median(costs), "rounds": costs, "inputs": inputs,
            "outputs": made, "says": f"{middle} a call{spread}", "library_bytes": len(sent.library),
            "weight_bytes": len(sent.weights)}  # fmt: skip


def figure(value: float, unit: str) -> str:
    """A time in milliseconds, or a count by its name."""
    return f"{1e3 * value:.3f} ms" if unit == SECONDS else f"{value:,.0f} {unit}"

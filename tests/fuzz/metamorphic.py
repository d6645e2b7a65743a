"""One graph, compiled and run in other ways: the answer stays.

The same bits: with 1, 2 and 4 threads, saved and loaded, taken from the cache, with open sizes bound at the call.
Up to rounding: with each knob turned round, for a processor without this one's features, on every device there is.
A case is a random graph (`graphs.py`) and two of these ways.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import weft
from tests.fuzz import graphs, guard
from tests.fuzz.compare import difference, worst
from tests.fuzz.kinds import OK, Case, Kind, Result
from weft.core.errors import TargetError
from weft.core.knobs import KNOBS, knobs
from weft.frontends.onnx import load
from weft.graph.ir import Graph
from weft.targets.registry import find_target, local_devices

Feeds = dict[str, np.ndarray]
SWITCHES = [name for name in KNOBS if isinstance(getattr(knobs, name), bool) and name != "cache"]


def _threads(graph: Graph, feeds: Feeds, count: int) -> list[Any]:
    return list(weft.compile(graph, threads=count).run(None, feeds))


def _saved(graph: Graph, feeds: Feeds) -> list[Any]:
    module = weft.compile(graph)
    module.run(None, feeds)
    with tempfile.TemporaryDirectory() as folder:
        module.save(Path(folder) / "a.weft")
        return list(weft.load(Path(folder) / "a.weft").run(None, feeds))


def _cached(graph: Graph, feeds: Feeds) -> list[Any]:
    """The second module comes from the folder, whatever the first took to compile."""
    from weft.core import model

    before, model.FORM_KEPT_SECONDS = model.FORM_KEPT_SECONDS, 0.0  # type: ignore[misc]
    try:
        with tempfile.TemporaryDirectory() as folder, knobs.override(cache=True, cache_dir=folder):
            weft.compile(graph).run(None, feeds)
            return list(weft.compile(graph).run(None, feeds))
    finally:
        model.FORM_KEPT_SECONDS = before  # type: ignore[misc]


def _switched(graph: Graph, feeds: Feeds, name: str) -> list[Any]:
    with knobs.override(**{name: not getattr(knobs, name)}):
        return list(weft.compile(graph).run(None, feeds))


def _for_target(graph: Graph, feeds: Feeds, target: str) -> list[Any]:
    return list(weft.compile(graph, target=target).run(None, feeds))


def _plain_target() -> str:
    """This processor without what only newer ones have."""
    host = find_target("native")
    return f"{host.triple},cpu={'x86-64-v2' if host.triple.startswith('x86') else 'generic'}"


def _targets() -> list[str]:
    found = [_plain_target()]
    for device in local_devices():
        found.append(device.target.name)
    return found


def ways() -> dict[str, tuple[bool, Callable[[Graph, Feeds], list[Any]]]]:
    """Every way: whether its answer is the same to the last bit, and how to get it."""
    found: dict[str, tuple[bool, Callable[[Graph, Feeds], list[Any]]]] = {
        "saved": (True, _saved),
        "cached": (True, _cached),
    }
    for count in (1, 2, 4):
        found[f"{count} threads"] = (True, lambda graph, feeds, count=count: _threads(graph, feeds, count))
    for name in SWITCHES:
        found[f"knob {name}"] = (name == "verify", lambda graph, feeds, name=name: _switched(graph, feeds, name))
    for target in _targets():
        found[f"target {target}"] = (False, lambda graph, feeds, target=target: _for_target(graph, feeds, target))
    return found


def make(seed: int) -> Case:
    """The case of a number: a graph, and the numbers of two ways."""
    case = graphs.make(seed + 10_000_000)
    return Case(case.seed, case.parts, {"ways": (2 * seed, 2 * seed + 1)})


def show(case: Case) -> str:
    """The graph and the ways."""
    return f"ways {case.more['ways']}\n{graphs.show(case)}"


def run(case: Case) -> Result:
    """The plain answer against two others."""
    model, g = graphs.build(case)
    symbolic = load(model.SerializeToString())
    with knobs.override(cache=False):
        plain = list(weft.compile(symbolic).run(None, g.feeds))
        for dims, value in zip(model.graph.input, g.inputs):
            for dim, size in zip(dims.type.tensor_type.shape.dim, value.shape):
                dim.dim_value = size
        graph = load(model.SerializeToString())
        known = ways()
        names = list(known)
        for number in case.more["ways"]:
            name = names[number % len(names)]
            exact, way = known[name]
            try:
                got = way(graph, g.feeds)
            except TargetError as error:
                return Result("refused", f"{name}: TargetError", str(error)[:300])
            found = _judge(case, graph, g.feeds, plain, got, name, exact)
            if found is not None:
                return found
    gc.collect(0)
    return OK


def _judge(case: Case, graph: Graph, feeds: Feeds, plain: Any, got: Any, name: str, exact: bool) -> Result | None:
    if exact:
        same = all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(got, plain, strict=True))
        return None if same else Result("wrong", f"{name}: other bits", worst(got, plain))
    if difference(got, plain) is None:
        return None
    truth, largest = graphs.in_float64(Case(case.seed, case.parts))
    for mine, other, right in zip(got, plain, truth):
        slack = 1e-4 * float(np.abs(right).max(initial=0.0)) + graphs.CANCELLED * largest
        errors = [float(np.abs(one.astype(np.float64) - right).max(initial=0.0)) for one in (mine, other)]
        if not errors[0] <= 4 * errors[1] + slack or not errors[1] <= 4 * errors[0] + slack:
            return Result("wrong", f"{name}: {difference(got, plain)}", f"errors {errors}\n{worst(got, plain)}")
    return Result("explained", "rounding: as near to float64 as the plain way is", name)


KIND = Kind("metamorphic", make, run, show, guard.install, share=0.6, seconds=60, memory=None)

"""From a graph to a module: `compile_graph`. What the user holds is `runtime/model/module.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.compiler.device.module import DeviceModule
from weft.compiler.precision import check_precision, machine_of, with_threads
from weft.compiler.specialize import Executor
from weft.compiler.tuned import tuned
from weft.graph.ir import Graph
from weft.graph.passes.infer import infer
from weft.graph.passes.specialize import specialize
from weft.runtime.model.module import HostWarning, Module, NodeArg, SizeWarning, of_type
from weft.targets.base import Target

__all__ = [
    "HostWarning", "Module", "NodeArg", "Shapes", "SizeWarning", "bind_shapes", "compile_graph", "make_module",
    "of_type",
]  # fmt: skip


def make_module(executor: Executor, threads: int | None = None) -> Module:
    """The module of an executor; one for a device takes arrays that lie there, too."""
    if not executor.target.on_device:
        return Module(executor, threads)
    return DeviceModule(executor, threads)


Shapes = Mapping[str, "Sequence[int | range]"]
"""Shapes of inputs by name; a size may be a range, which leaves it open and says between which numbers it lies."""


def bind_shapes(graph: Graph, shapes: Shapes | None) -> Graph:
    """The graph with its types inferred, for inputs of these shapes."""
    if not shapes:
        return infer(graph)
    return specialize(graph, {k: tuple(None if isinstance(d, range) else d for d in v) for k, v in shapes.items()})


def compile_graph(
    graph: Graph,
    target: str | Target = "auto",
    shapes: Shapes | None = None,
    precision: str | None = None,
    threads: int | None = None,
) -> Module:
    """A graph as a module; compiled at once where its shapes, or the ranges of its sizes, are known."""
    machine = machine_of(target, precision)
    bound, wanted = bind_shapes(graph, shapes), check_precision(precision, machine)
    ranges = {(k, at): d for k, v in (shapes or {}).items() for at, d in enumerate(v) if isinstance(d, range)}
    with tuned(machine):
        module = make_module(Executor(bound, with_threads(machine, threads), wanted), threads)
        found = module._executor.take_ranges(ranges) if ranges else module._executor.compile_static()
    if found is not None:
        module._warn(found)
    return module

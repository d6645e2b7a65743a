"""A graph after its passes as a lowered program: groups, layouts, kernels, memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from weft.compiler.kernels.build import KernelCompiler
from weft.compiler.lowering.items import (
    items_in_layouts,
    refused_items,
    settle_views,
    without_refused,
)
from weft.compiler.lowering.lower import Lowered, add_drivers, assemble
from weft.compiler.sizes.open_checks import conditions_of
from weft.compiler.sizes.open_sizes import settle_shapes
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.ir import Graph
from weft.graph.passes.fuse import fuse
from weft.targets.base import Target

_counter = itertools.count()


def lower_graph(
    graph: Graph, target: Target, make_rest: Callable[[Graph], Any], typical: Mapping[Var, int] | None = None
) -> Lowered:
    """The program of a graph; sizes of its inputs that are not bound stay open, with `typical` numbers."""
    compiler = KernelCompiler(target)
    if graph.symbols:
        compiler.typical, compiler.whole = typical or {}, graph
        graph = settle_shapes(graph)
    try:
        streams = target.spec.algorithms.streams
        groups = fuse(graph, streams=streams and streams(target)) if knobs.fuse else fuse(graph, most_nodes=1)
        items = items_in_layouts(graph, groups, compiler, join=True)
        if target.on_device and target.spec.device.rest:  # type: ignore[union-attr]
            items = refused_items(graph, items)
        prefix = f"stretch_{next(_counter)}"

        def assembled() -> Lowered:
            settled = settle_views(graph, items, compiler)
            return assemble(graph, settled, prefix, target, make_rest, compiler.layouts, typical, compiler.tend)

        made = assembled()  # weights are laid out while other processes compile
        while compiler.finish():  # what was refused is replaced, and nothing else compiled again
            items = without_refused(items, graph.constants, compiler)
            made = assembled()
        add_drivers(made, target)
        made.block = compiler.block
        if graph.symbols:
            made.conditions = conditions_of(graph, compiler.typical)
        return made
    finally:
        compiler.close()

"""A graph after its passes as a lowered program: groups, layouts, kernels, memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.compiler.kernels.build import KernelCompiler
from weft.compiler.lowering.lower import (
    Item,
    Lowered,
    assemble,
    choose_items,
    refused_items,
    settle_views,
    touched_plainly,
)
from weft.compiler.sizes.open_checks import conditions_of
from weft.compiler.sizes.open_sizes import settle_shapes
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.ir import Graph, Value
from weft.graph.passes.algorithms import asked
from weft.graph.passes.fuse import Group, fuse
from weft.graph.passes.layout import choose_layouts
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
        groups = fuse(graph) if knobs.fuse else fuse(graph, most_nodes=1)
        while True:
            items = items_in_layouts(graph, groups, compiler)
            if target.on_device and target.spec.device.rest:  # type: ignore[union-attr]
                items = refused_items(graph, items)
            items = settle_views(graph, items, compiler)
            if not compiler.finish():
                break
        prefix = f"stretch_{next(_counter)}"
        made = assemble(graph, items, prefix, target, make_rest, compiler.layouts, typical)
        made.block = compiler.block
        if graph.symbols:
            made.conditions = conditions_of(graph, compiler.typical)
        return made
    finally:
        compiler.close()


def items_in_layouts(graph: Graph, groups: Sequence[Group], compiler: KernelCompiler) -> list[Item]:
    """What runs where, with layouts for the values between kernels; those that the host turns out to see are plain."""
    target = compiler.target
    lays_out = knobs.layout and not graph.symbols
    lanes = target.vector_bytes // 4 if lays_out and target.blocks_channels else 0
    together = target.channels_last if lays_out else frozenset()
    compiler.block = max(lanes, 1)
    tile, narrow = (1, 0) if target.matrix is None else (target.matrix.rows, target.matrix.most_bytes)
    fixed: set[Value] = set()
    while True:
        laid = choose_layouts(graph, groups, lanes, fixed, tile, narrow, together)
        if laid.layouts and asked("* layouts", "blocked", "plain") == "plain":
            lanes, together = 0, frozenset()
            laid = choose_layouts(graph, groups, lanes, fixed, tile, narrow, together)
        compiler.layouts = laid.layouts
        items = choose_items(graph, laid.groups, compiler)
        wrong = touched_plainly(graph, items) & laid.layouts.keys()
        if not wrong:
            return items
        fixed |= {laid.plain.get(value, value) for value in wrong}

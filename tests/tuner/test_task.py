"""Tasks: programs by themselves, and arrays for them."""

from __future__ import annotations

import numpy as np

import weft.ops  # noqa: F401  (the table of operators)
from weft.compiler.lowering.graph import lower_graph
from weft.compiler.module import bind_shapes
from weft.compiler.passes import for_target, optimize
from weft.core.knobs import knobs
from weft.models.builder import Builder
from weft.targets.registry import find_target
from weft.tuner.task import tasks_of


def test_borders_of_parameters_hold_zeros():
    """The compiler relies on it: what a kernel reads there is passed over."""
    b, target = Builder("borders"), find_target("native")
    x = b.relu(b.conv(b.input("x", (1, 16, 9, 9)), 16, 32, 1))
    graph = b.finish(b.conv(x, 32, 32, 3, 2, 1))
    with knobs.override(cache=False):
        made = for_target(optimize(bind_shapes(graph, None), {}, {}), target)
        tasks = tasks_of(made, lower_graph(made, target, lambda rest: None), target)
    found = 0
    for task in tasks:
        borders = task.program.schedule.func.annotations.get("borders", {})
        arrays = dict(zip([buffer.name for _, buffer in task.program.inputs], task.arrays(np.random.default_rng(0))))
        for name, widths in borders.items():
            if name in arrays:
                inside = tuple(slice(before, size - after) for size, (before, after) in zip(arrays[name].shape, widths))
                assert 0 < np.count_nonzero(arrays[name]) == np.count_nonzero(arrays[name][inside])
                found += 1
    assert found

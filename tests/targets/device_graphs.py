"""Runs graphs on a device, one fused group after the other: each is a program with the target's default schedule.

`run_graph(graph, arrays, target)` gives the outputs and how many groups were kernels. A node that has no compiled form
(NoKernel) runs by its numpy meaning; any other failure to compile is a failure.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import weft
from weft.executor.passes import optimize
from weft.executor.program import NoKernel, build_program
from weft.executor.specialize import LARGEST_BOUND_VALUE, deciding_inputs
from weft.graph.interpreter import interpret_graph, operator_of
from weft.graph.ir import TensorType, reads
from weft.graph.passes.fuse import fuse


class DeviceGraph:
    """The values of one run of a graph."""

    def __init__(self, graph: Any, arrays: Any, target: Any) -> None:
        self.target = target
        self.kernels = 0
        self.constants = graph.constants
        self.values: dict[Any, Any] = {**graph.constants, **dict(zip(graph.inputs, arrays))}
        for group in fuse(graph):
            self.group(group.nodes, group.outputs)
        self.outputs = [self.values[value] for value in graph.outputs]

    def group(self, nodes: Any, outputs: Any) -> None:
        """One group: as a kernel, else node by node, else on the host."""
        try:
            program = build_program(nodes, outputs, self.constants, "group")
        except NoKernel:
            if len(nodes) == 1:
                return self.host(nodes[0])
            for at, node in enumerate(nodes):
                later = {v for other in nodes[at + 1 :] for v in reads(other)}
                self.group([node], [v for v in node.outputs if v in later or v in outputs])
            return None
        constants = [buffer for value, buffer in program.inputs if value in self.constants]
        default = importlib.import_module("weft.targets.gpu.default").default_schedule
        default(program.schedule, self.target, constants)
        function = weft.build(program.schedule, program.buffers, self.target)
        given = [np.array(self.values[value], order="C") for value, _ in program.inputs]
        for value, _ in program.outputs:
            assert isinstance(value.type, TensorType)
            self.values[value] = np.zeros(value.type.static, value.type.numpy)
        function(*given, *[self.values[value] for value, _ in program.outputs])
        self.kernels += 1

    def host(self, node: Any) -> None:
        """One node by its numpy meaning."""
        given = [None if value is None else self.values[value] for value in node.inputs]

        def inner(graph: Any, inputs: Any) -> Any:
            return interpret_graph(graph, inputs, outer=self.values)

        made = operator_of(node).run(node, given, inner)
        for value, array in zip(node.outputs, made):
            self.values[value] = array


def run_graph(graph: Any, arrays: Any, target: Any) -> DeviceGraph:
    """A graph, as it was loaded, on these inputs."""
    bound = deciding_inputs(graph)
    shapes = {v.name: a.shape for v, a in zip(graph.inputs, arrays)}
    values = {v.name: a for at, (v, a) in enumerate(zip(graph.inputs, arrays)) if at in bound}
    assert all(a.size <= LARGEST_BOUND_VALUE for a in values.values())
    return DeviceGraph(optimize(graph, shapes, values), arrays, target)

"""Runs graphs on a device, one fused group after the other: each is a program with the target's default schedule.

    plans = [plan(graph, arrays, target, "case_1"), …]
    load(plans, target)              the programs of all of them, compiled together: a compiler's start costs more
    outputs = plans[0].run()         than most of these kernels

A node that has no compiled form (NoKernel) runs by its numpy meaning; any other failure to compile is a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.builder import with_arguments
from weft.compiler.kernels.program import NoKernel, build_program
from weft.compiler.passes import optimize
from weft.compiler.sizes.deciding import deciding_inputs
from weft.core import model
from weft.graph.interpreter import interpret_graph, operator_of
from weft.graph.ir import TensorType, reads
from weft.graph.passes.fuse import fuse
from weft.loop.passes.check_bounds import ERRORS
from weft.loop.verifier import verify

UNWRITTEN = 0xA5
"""The byte that results hold before they are computed."""


class Kernel:
    """One group as a device program, and the values it takes and makes."""

    def __init__(self, program: Any, name: str, constants: Any, target: Any) -> None:
        fixed = [buffer for value, buffer in program.inputs if value in constants]
        target.spec.schedule(program.schedule, target, fixed)
        func = with_arguments(program.schedule.func, program.buffers).replace(name=name)
        verify(func)
        self.program = target.generate(target.lower(func))
        self.inputs = [value for value, _ in program.inputs]
        self.outputs = [value for value, _ in program.outputs]
        self.executable: Any = None

    def run(self, values: dict[Any, Any], device: Any) -> None:
        """Copies the arrays to the device, runs the program there, and brings the results back."""
        for value in self.outputs:
            assert isinstance(value.type, TensorType)
            values[value] = np.empty(value.type.static, value.type.numpy)
            values[value].reshape(-1).view(np.uint8)[:] = UNWRITTEN
        given = {}
        parameters = [parameter for parameter in self.program.parameters if parameter.name != ERRORS]
        for parameter, value in zip(parameters, (*self.inputs, *self.outputs), strict=True):
            array = np.array(values[value], order="C")
            given[parameter.name] = device.allocate(max(array.nbytes, 1))
            device.write(given[parameter.name], array)
        reported = np.zeros(1, np.int32)
        if len(parameters) < len(self.program.parameters):
            given[ERRORS] = device.allocate(reported.nbytes)
            device.write(given[ERRORS], reported)
        self.executable.run(given)
        for parameter, value in zip(parameters[len(self.inputs) :], self.outputs, strict=True):
            device.read(given[parameter.name], values[value])
        if ERRORS in given:
            device.read(given[ERRORS], reported)
        assert not reported[0], f"{self.program.name} was given an index outside"


class Plan:
    """A graph with its inputs, as kernels and nodes of the host in order."""

    def __init__(self, graph: Any, arrays: Any, target: Any, name: str) -> None:
        self.graph, self.target, self.name = graph, target, name
        self.steps: list[Any] = []
        self.values: dict[Any, Any] = {**graph.constants, **dict(zip(graph.inputs, arrays))}
        for group in fuse(graph):
            self._add(group.nodes, group.outputs)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels among the steps."""
        return [step for step in self.steps if isinstance(step, Kernel)]

    def _add(self, nodes: Any, outputs: Any) -> None:
        """One group: as a kernel, else node by node, else on the host."""
        name = f"{self.name}_{len(self.steps)}"
        try:
            program = build_program(nodes, outputs, self.graph.constants, name)
        except NoKernel:
            if len(nodes) == 1:
                self.steps.append(nodes[0])
                return
            for at, node in enumerate(nodes):
                later = {v for other in nodes[at + 1 :] for v in reads(other)}
                self._add([node], [v for v in node.outputs if v in later or v in outputs])
            return
        self.steps.append(Kernel(program, name, self.graph.constants, self.target))

    def run(self) -> list[Any]:
        """The outputs."""
        device = self.target.device()
        for step in self.steps:
            if isinstance(step, Kernel):
                step.run(self.values, device)
            else:
                self._host(step)
        return [self.values[value] for value in self.graph.outputs]

    def _host(self, node: Any) -> None:
        """One node by its numpy meaning."""
        given = [None if value is None else self.values[value] for value in node.inputs]

        def inner(graph: Any, inputs: Any) -> Any:
            return interpret_graph(graph, inputs, outer=self.values)

        for value, array in zip(node.outputs, operator_of(node).run(node, given, inner)):
            self.values[value] = array


def plan(graph: Any, arrays: Any, target: Any, name: str) -> Plan:
    """A graph, as it was loaded, on these inputs."""
    bound = deciding_inputs(graph)
    shapes = {v.name: a.shape for v, a in zip(graph.inputs, arrays)}
    values = {v.name: a for at, (v, a) in enumerate(zip(graph.inputs, arrays)) if at in bound}
    assert all(a.size <= model.LARGEST_BOUND_VALUE for a in values.values())
    return Plan(optimize(graph, shapes, values), arrays, target, name)


def load(plans: Sequence[Plan], target: Any) -> None:
    """Puts the kernels of all plans on the device."""
    kernels = [kernel for one in plans for kernel in one.kernels]
    for kernel, executable in zip(kernels, target.device().load_all([k.program for k in kernels]), strict=True):
        kernel.executable = executable

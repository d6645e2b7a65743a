"""Tasks: programs that can be scheduled and measured by themselves, and those that a model is made of.

A task is a program before it has a schedule (a fused group of a model, in the layouts of the values around it, or a
tensor expression), the machine that it is for, and what it is worth: how often a model calls it, and the seconds that
these calls take. Two kernels of one program are one task; its key is that of the program, so what is found for one
model serves every other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.compiler.kernels.build import program_key, program_text
from weft.compiler.kernels.program import GroupProgram
from weft.compiler.lowering.items import Launch
from weft.compiler.lowering.lower import Lowered, program_of
from weft.compiler.reports.inputs import random_array
from weft.core.errors import ExpressionError
from weft.expr.nodes import Buffer, int_value
from weft.graph.ir import Array, Graph, TensorType, Value
from weft.loop.tree import BORDERS, blocks_in
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Trace
from weft.targets.base import Target
from weft.tuner.records import TuneError


@dataclass
class Task:
    """A program to be tuned."""

    key: str
    label: str
    target: Target
    program: GroupProgram  # never scheduled itself: `fresh` gives copies
    constants: Mapping[Value, Array] = field(default_factory=dict, repr=False)
    nodes: tuple[str, ...] = ()  # the names of the nodes that its kernels compute
    around: int = 0  # bytes of all constants of the model, which a run of it reads between two calls
    calls: int = 1
    seconds: float = 0.0  # what its calls take in one run of the model; 0 where nobody has measured
    places: tuple[int, ...] = ()  # which of the launches of the model its calls are

    def fresh(self) -> GroupProgram:
        """The program, to be scheduled."""
        return replace(self.program, schedule=self.program.schedule.copy())

    @property
    def fixed(self) -> list[Buffer]:
        """The parameters that never change."""
        return [buffer for value, buffer in self.program.inputs if value in self.constants]

    def default(self) -> Trace:
        """The planner's schedule."""
        made = self.fresh().schedule
        made.plan(self.target, self.fixed)
        return made.trace

    def arrays(self, random: Any) -> list[Array]:
        """An array for each parameter: constants as they are, inputs random, outputs of zeros."""
        made, borders = [], self.program.schedule.func.annotations.get(BORDERS, {})
        for value, buffer in self.program.inputs:
            known = self.constants.get(value)
            made.append(random_array(buffer.dtype.name, _shape(buffer), random) if known is None else known)
            for at, (before, after) in enumerate(borders.get(buffer.name, ()) if known is None else ()):
                along = np.moveaxis(made[-1], at, 0)
                along[:before] = along[len(along) - after :] = 0
        for _, buffer in self.program.outputs:
            made.append(random_array(buffer.dtype.name, _shape(buffer), random) * 0)
        return made


def _shape(buffer: Buffer) -> tuple[int, ...]:
    sizes = [int_value(size) for size in buffer.shape]
    if any(size is None for size in sizes):
        raise TuneError(f"{buffer.name} has a size that is not known: only programs of fixed sizes can be tuned")
    return tuple(size or 0 for size in sizes)


def keyed(launch: Launch, graph: Graph, lowered: Lowered) -> tuple[GroupProgram, str]:
    """The program of a launch, and its key."""
    program = program_of(launch, graph, lowered)
    fixed = [buffer for value, buffer in program.inputs if value in graph.constants]
    return program, program_key(program_text(program, fixed))


def tasks_of(graph: Graph, lowered: Lowered, target: Target, seconds: Sequence[float] = ()) -> list[Task]:
    """The tasks of a lowered model, the heaviest first; `seconds` is what each of its launches takes."""
    found: dict[str, Task] = {}
    around = sum(array.nbytes for array in graph.constants.values())
    launches = [item for item in lowered.items if isinstance(item, Launch)]
    for at, launch in enumerate(launches):
        program, key = keyed(launch, graph, lowered)
        names = tuple(node.name for node in launch.nodes if node.name)
        taken = seconds[at] if at < len(seconds) else 0.0
        old = found.get(key)
        if old is None:
            constants = {value: graph.constants[value] for value, _ in program.inputs if value in graph.constants}
            found[key] = Task(key, launch.kernel.label, target, program, constants, names, around, 1, taken, (at,))
        else:
            nodes, places = (*old.nodes, *names), (*old.places, at)
            found[key] = replace(old, calls=old.calls + 1, seconds=old.seconds + taken, nodes=nodes, places=places)
    return sorted(found.values(), key=lambda task: -task.seconds)


def task_of_schedule(schedule: Schedule, args: Sequence[Buffer], target: Target) -> Task:
    """The task of a tensor expression, with parameters in this order."""
    if schedule.trace.steps:
        raise TuneError("the schedule has steps already: give a fresh one, or a template (docs/tuning.md)")
    func = schedule.func
    missing = [p.name for p in func.params if p not in args]
    if missing or not all(isinstance(arg, Buffer) for arg in args):
        raise ExpressionError(f"the arguments are the tensors of the program; {', '.join(missing)} must be among them")
    made = {region.buffer for block in blocks_in(func.body) for region in block.writes}
    pairs = [(Value(arg.name, TensorType(arg.dtype.name, _shape(arg))), arg) for arg in args]
    inputs = tuple(pair for pair in pairs if pair[1] not in made)
    outputs = tuple(pair for pair in pairs if pair[1] in made)
    program = GroupProgram(Schedule(func), inputs, outputs)
    return Task(program_key(program_text(program, [])), func.name, target, program)

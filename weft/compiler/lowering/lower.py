"""A graph's items to a `Program`: stretches of kernels, and a memory plan.

In: what runs where (`items.py`). Out: steps, and the drivers of native ones. Sizes of the inputs may be open: then
kernels take them as arguments, and offsets in the arena are among the numbers that a call finds (`open_sizes.py`).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.compiler.kernels.build import Kernel, Packing
from weft.compiler.kernels.inplace import overwritable
from weft.compiler.kernels.program import GroupProgram, build_program
from weft.compiler.kernels.zeros import often_zero
from weft.compiler.lowering.abi import Reach, buffer_bytes, joined, sealed
from weft.compiler.lowering.items import Item, Join, Launch, OnHost, Rest, View, described, note_values
from weft.compiler.lowering.memory import Life, Plan, plan_memory
from weft.compiler.lowering.native import Call, Place, driver_ir, fetched_ahead
from weft.compiler.lowering.weights import WeightBlocks
from weft.compiler.sizes.open_checks import Conditions
from weft.compiler.sizes.open_sizes import Numbers
from weft.compiler.steps import HostStep, NativeStep, Program, RestStep, Step
from weft.core import model
from weft.expr.nodes import Buffer, Expr, Var
from weft.graph.ir import Array, Graph, TensorType, Value, free_values, reads
from weft.graph.opspec import has
from weft.graph.passes.layout import Layout
from weft.graph.shapes import follows, typical
from weft.loop.passes.check_bounds import VALUES
from weft.runtime.model.program import last_uses
from weft.targets.base import Target

logger = logging.getLogger("weft.compiler")


@dataclass
class Lowered:
    """A program, the kernels that it calls, the drivers' texts, and what the report tells."""

    program: Program
    kernels: list[Kernel]
    drivers: list[str]
    items: list[Item] = field(default_factory=list)
    layouts: Mapping[Value, Layout] = field(default_factory=dict)
    block: int = 1
    conditions: Conditions = Conditions((), ())
    """What the open sizes of a call must fulfil."""

    @property
    def conversions(self) -> int:
        """How many kernels only copy a value into the plain layout."""
        launches = [item for item in self.items if isinstance(item, Launch)]
        return sum([n.op for n in x.nodes] == ["Identity"] and x.nodes[0].inputs[0] in self.layouts for x in launches)


def program_of(launch: Launch, graph: Graph, lowered: Lowered) -> GroupProgram:
    """The program of a kernel as it was before it got its schedule, built again."""
    made = build_program(launch.nodes, launch.writes, graph.constants, "kernel", lowered.layouts, lowered.block)
    note_values(made, launch.nodes, graph.constants, often_zero(graph))
    return made


# --------------------------------------------------------------------------------------------------------- assembling


class _Assembler:
    """Numbers values, decides where each lives, and writes the steps."""

    def __init__(
        self,
        graph: Graph,
        items: Sequence[Item],
        prefix: str,
        layouts: Mapping[Value, Layout],
        typical: Mapping[Var, int] | None = None,
        waits: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.typical, self.waits = typical or {}, waits
        self.graph, self.items, self.prefix, self.layouts = graph, items, prefix, layouts
        self.numbers: dict[Value, int] = {}
        self.weights: list[Array] = []
        self.blocks = WeightBlocks()
        self.weight_of: dict[Hashable, int] = {}
        self.in_arena: set[Value] = set()
        self.same: dict[Value, Value] = {}
        self.inside = {v: (item.output, at) for item in items if isinstance(item, Join) for v, at in item.parts.items()}
        self.open = Numbers(graph) if graph.symbols else None
        self.all_bytes = sum(array.nbytes for array in graph.constants.values())
        self.slots: dict[Value, int] = {}
        for item in items:
            if isinstance(item, View):
                self.same[item.output] = self.root(item.source)
        for item in items:
            if isinstance(item, View) and item.gives:
                self.move(self.root(item.source), item.output)
            elif isinstance(item, Launch):
                for before, made in updated_by(item):
                    self.move(self.root(before), made)

    def root(self, value: Value) -> Value:
        """The value in whose memory a value lies."""
        return self.same.get(value, value)

    def memory(self, value: Value) -> tuple[Value, int]:
        """The same, where a part of a Concat lies in its result; and how many bytes behind the start of that."""
        value, start = self.root(value), 0
        while value in self.inside:
            value, at = self.inside[value]
            start += at
        return value, start

    def move(self, root: Value, output: Value) -> None:
        """Everything that lay in a value's memory, and the value, lies in an output's."""
        self.same = {value: output if at is root else at for value, at in self.same.items() if value is not output}
        self.same[root] = output

    def number(self, value: Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def plan(self, alignment: int) -> Plan:
        """Values that only kernels touch live in the arena."""
        made_by: dict[Value, int] = {}
        last: dict[Value, int] = {}
        outside: set[Value] = {*self.graph.outputs, *self.graph.inputs}
        for at, item in enumerate(self.items):
            if isinstance(item, Launch):
                for value in item.writes:
                    made_by.setdefault(self.memory(value)[0], at)
                for argument in item.arguments:
                    if isinstance(argument, Value):
                        last[self.memory(argument)[0]] = at
            elif not isinstance(item, (View, Join)):
                touched = reads(item.node) if isinstance(item, OnHost) else iter(item.graph.inputs)
                outside.update(touched)
        self.in_arena = {value for value in made_by if value not in outside}
        kinds = {v: self.layouts[v].stored(v.tensor) if v in self.layouts else v.tensor for v in self.in_arena}
        lives = {v: Life(_bytes(kind, self.typical), made_by[v], last.get(v, made_by[v])) for v, kind in kinds.items()}
        if self.open is not None:
            self.slots = self.open.plan({v: (kinds[v], life) for v, life in lives.items()}, alignment)
            return Plan({}, 0, sum(life.bytes for life in lives.values()))
        return plan_memory(lives, self.overwrites(lives), alignment)

    def overwrites(self, lives: Mapping[Value, Life]) -> dict[Value, Value]:
        """Values that a kernel may write over one of its inputs, which nothing reads afterwards: value to input."""
        found: dict[Value, Value] = {}
        pairs: dict[str, list[tuple[int, int]]] = {}
        for at, item in enumerate(self.items):
            if not isinstance(item, Launch):
                continue
            if item.kernel.symbol not in pairs:
                pairs[item.kernel.symbol] = overwritable(item.kernel.scheduled)
            roots = [self.root(a) if isinstance(a, Value) else None for a in item.arguments]
            places = [a and self.memory(a)[0] for a in roots]  # parts of a Concat are read where that lies
            for source, target in pairs[item.kernel.symbol]:
                given, made = roots[source], roots[target]
                if given is None or made is None or given in found.values() or made in found:
                    continue
                if given not in lives or made not in lives:
                    continue
                dies_here = lives[given].last == at and lives[made].first == at and places.count(given) == 1
                if dies_here and lives[given].bytes == lives[made].bytes:
                    found[made] = given
        return found

    def weight(self, value: Value, packing: Packing | None) -> int:
        key: Hashable = (value, packing)
        found = self.weight_of.get(key)
        if found is None:
            array = np.asarray(self.graph.constants[value])
            found = self.weight_of[key] = len(self.weights)
            self.weights.append(self.blocks.hold(array if packing is None else packing.view(array), array))
        return found

    def awaited(self, launch: Launch, bases: Mapping[tuple[str, int], int], places: Sequence[Place]) -> Place | None:
        """The base and the bytes of the largest weight of a launch that waits for the weights of the model."""
        if self.waits is None or self.open is not None:
            return None
        used = [(self.weights[number].nbytes, base) for (kind, number), base in bases.items()
                if kind == "weight" and (base, 0) in places]  # fmt: skip
        size, base = max(used, default=(0, 0))
        sums = [(node.outputs[0].tensor.static, slice(1, 2) if has(node, "convolution") else slice(-1, None))
                for node in launch.nodes if has(node, "heavy")]  # fmt: skip
        rows = [math.prod(shape) // math.prod(shape[columns]) for shape, columns in sums if 0 not in shape]
        waits = [self.waits(count, self.all_bytes) for count in rows]
        return (base, size) if any(waits) and size >= model.NEAR_BYTES else None

    def place(self, argument: Value | tuple[Value, Packing], bases: dict[tuple[str, int], int], plan: Plan) -> Place:
        """The address of an argument: which base of the stretch, and how far from it."""
        if isinstance(argument, tuple):
            return bases.setdefault(("weight", self.weight(*argument)), len(bases)), 0
        argument, offset = self.memory(argument)
        if argument in self.graph.constants:
            key = ("weight", self.weight(argument, None))
        elif argument in self.slots:
            key = ("slot", self.slots[argument])
        elif argument in self.in_arena:
            key, offset = ("arena", 0), plan.offsets[argument] + offset
        else:
            key = ("value", self.number(argument))
        return bases.setdefault(key, len(bases)), offset

    def promises(self) -> tuple[str | None, dict[int, tuple[int, ...]]]:
        """The source of the numbers of a call, and the shapes that inference promises of what host nodes make."""
        if self.open is None:
            return None, {}
        made = [value for item in self.items if isinstance(item, OnHost) for value in item.node.outputs]
        sizes = set(self.graph.symbols.values())
        shapes = {self.number(v): self.open.shape(v.tensor.dims) for v in made if follows(v.type, sizes)}
        return self.open.finish(), shapes

    def size(self, dim: Expr, bases: dict[tuple[str, int], int]) -> Place:
        """The number of an open size."""
        assert self.open is not None
        return bases.setdefault(("size", self.open.place(dim)), len(bases)), 0


def updated_by(item: Launch) -> list[tuple[Value, Value]]:
    """The values that a launch updates in place, and what they become."""
    node = item.nodes[0]
    count = int(node.attributes.get("updated", 1)) if len(item.nodes) == 1 and has(node, "updates") else 0
    return [(before, made) for before, made in zip(node.inputs[:count], item.writes) if before is not None]


def _updates(graph: Graph, items: Sequence[Item]) -> list[tuple[Value, Value]]:
    """Inputs and outputs that may be one array: whatever reads the input, but for the copy that the output starts from,
    comes before the launch that updates it."""
    copies = {item.writes[0]: item.nodes[0].inputs[0] for item in items if isinstance(item, Launch) and item.copies}
    seen, last = dict[Value, Value](), dict[Value, int]()
    for at, item in enumerate(items):
        if isinstance(item, View):
            seen[item.output] = seen.get(item.source, item.source)
        elif not isinstance(item, Launch) or not item.copies:
            last.update({seen.get(v, v): at for v in _read_by(item)})
    pairs = [(copies.get(before), made, at) for at, item in enumerate(items) if isinstance(item, Launch)
             for before, made in updated_by(item)]  # fmt: skip
    shown, copied = {seen.get(v, v) for v in graph.outputs}, Counter(copies.values())
    return [
        (given, made)
        for given, made, at in pairs
        if given in graph.inputs and made in graph.outputs and given not in shown
        if copied[given] == 1 and last.get(given, -1) < at
    ]


def _read_by(item: Item) -> set[Value]:
    if isinstance(item, Launch):
        return {v for node in item.nodes for v in reads(node)}
    return (
        {item.source}
        if isinstance(item, View)
        else set(item.parts)
        if isinstance(item, Join)
        else set(reads(item.node) if isinstance(item, OnHost) else item.graph.inputs)
    )


def _bytes(kind: TensorType, sizes: Mapping[Var, int]) -> int:
    return int(np.prod(typical(kind.dims, sizes), dtype=np.int64)) * int(kind.numpy.itemsize)


def assemble(
    graph: Graph,
    items: Sequence[Item],
    prefix: str,
    target: Target,
    make_rest: Callable[[Graph], Any],
    layouts: Mapping[Value, Layout],
    typical: Mapping[Var, int] | None,
    between: Callable[[], None],
) -> Lowered:
    """The program of a list of items; open sizes have `typical` numbers.

    Kernels need no code yet, and there are no drivers (`add_drivers`). `between` is called now and then.
    """
    narrow = None if target.on_device else target.spec.algorithms.narrow
    state = _Assembler(graph, items, prefix, layouts, typical, narrow and narrow(target))
    plan = state.plan(target.part_bytes)
    inputs = [state.number(value) for value in graph.inputs]
    steps: list[Step] = []
    kernels: dict[str, Kernel] = {}
    position = 0
    while position < len(items):
        item = items[position]
        if isinstance(item, (View, Join)):
            position += 1
            continue
        if isinstance(item, Launch):
            end = position
            while end < len(items) and isinstance(items[end], (Launch, View, Join)):
                end += 1
            launches = [one for one in items[position:end] if isinstance(one, Launch)]
            kernels.update({one.kernel.symbol: one.kernel for one in launches})
            steps.append(_stretch(state, launches, plan, f"{prefix}_{len(steps)}", between))
            position = end
            continue
        steps.append(_host_step(state, item) if isinstance(item, OnHost) else _rest_step(state, item, make_rest))
        position += 1
    constants = {state.numbers[v]: a for v, a in graph.constants.items() if v in state.numbers}
    constants.update({state.number(v): graph.constants[v] for v in graph.outputs if v in graph.constants})
    outputs = [state.number(value) for value in graph.outputs]
    program = Program(
        inputs, outputs, len(state.numbers), constants, state.weights, plan.bytes, plan.unshared, steps,
        last_uses(steps, outputs), plan.in_place, *state.promises(),
        [(state.number(given), state.number(made)) for given, made in _updates(graph, items)],
    )  # fmt: skip
    return Lowered(program, list(kernels.values()), [], list(items), layouts)


def add_drivers(made: Lowered, target: Target) -> None:
    """Adds the texts of drivers, now that kernels have code."""
    turning = {kernel.symbol for kernel in made.kernels if kernel.turns}
    for step in made.program.steps:
        if isinstance(step, NativeStep):
            step.calls = tuple(replace(call, turns=call.symbol in turning) for call in step.calls)
            if not target.on_device:
                made.drivers.append(driver_ir(step.symbol, step.calls, target.triple, fetched=fetched_ahead(target)))


def _stretch(
    state: _Assembler, launches: Sequence[Launch], plan: Plan, name: str, between: Callable[[], None]
) -> NativeStep:
    bases: dict[tuple[str, int], int] = {}
    calls = []
    makes: dict[int, TensorType] = {}
    reach: dict[int, Reach] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    for launch in launches:
        places = tuple(state.place(a, bases, plan) for a in launch.arguments)
        sizes = tuple(state.size(var, bases) for var in launch.sizes)
        between()
        awaited = state.awaited(launch, bases, places)
        calls.append(Call(launch.kernel.symbol, (*places, *sizes), copies=launch.copies, awaited=awaited))
        made_outside = [v for v in map(state.root, launch.writes) if state.memory(v)[0] not in state.in_arena]
        makes.update({state.number(value): value.tensor for value in made_outside})
        if state.open is not None:
            shapes.update({state.number(value): state.open.shape(value.tensor.dims) for value in made_outside})
            continue
        buffers = [p for p in launch.kernel.scheduled.params if isinstance(p, Buffer)]
        noted = launch.kernel.scheduled.annotations.get(VALUES) or {}
        for buffer, argument, (base, offset) in zip(buffers, launch.arguments, places, strict=True):
            end, is_written = offset + buffer_bytes(buffer), argument in launch.writes
            reach[base] = joined(reach.get(base), end, is_written, noted.get(buffer.name))
    computed = [described(launch.nodes) for launch in launches]
    if state.open is not None:
        return NativeStep(name, list(bases), list(makes.items()), computed, tuple(calls), shapes=shapes)
    reaches = [reach[at] for at in range(len(bases))]
    symbol = sealed(name, list(bases), reaches)
    return NativeStep(symbol, list(bases), list(makes.items()), computed, tuple(calls), reach=reaches)


def _host_step(state: _Assembler, item: OnHost) -> HostStep:
    node = item.node
    captured = dict.fromkeys(v for graph in node.graphs.values() for v in free_values(graph))
    return HostStep(
        node,
        [None if v is None else state.number(v) for v in node.inputs],
        [state.number(v) for v in node.outputs],
        [(value, state.number(value)) for value in captured],
        item.reason,
    )


def _rest_step(state: _Assembler, item: Rest, make_rest: Callable[[Graph], Any]) -> RestStep:
    return RestStep(
        make_rest(item.graph),
        [state.number(v) for v in item.graph.inputs],
        [state.number(v) for v in item.graph.outputs],
    )

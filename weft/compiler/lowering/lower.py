"""A graph to a `Program`: kernels for its groups, stretches of them, and a memory plan.

In: a graph after its passes, and the groups that fusion found. A group that has no kernel as a whole is tried node by
node; a node that has none runs on the host, with the reason kept. Where a host node makes a shape that is not known
now, the rest of the graph waits for it (`RestStep`). Sizes of the inputs may be open: then kernels take them as
arguments, and offsets in the arena are among the numbers that a call finds (`open_sizes.py`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft.compiler.kernels.build import Kernel, KernelCompiler, Packing
from weft.compiler.kernels.inplace import overwritable
from weft.compiler.kernels.program import GroupProgram, NoKernel, build_program
from weft.compiler.kernels.zeros import finite_recurrences, often_zero, skippable
from weft.compiler.lowering.abi import Reach, buffer_bytes, joined, sealed
from weft.compiler.lowering.memory import Life, Plan, plan_memory
from weft.compiler.lowering.native import Call, Place, driver_ir
from weft.compiler.lowering.weights import LEAST_BYTES, WeightBlocks
from weft.compiler.sizes.open_checks import Conditions
from weft.compiler.sizes.open_sizes import Numbers, check_operands
from weft.compiler.steps import HostStep, NativeStep, Program, RestStep, Step, aligned_array
from weft.core.errors import InternalError, WeftError
from weft.core.progress import progress
from weft.expr.nodes import Buffer, Var
from weft.graph.ir import Array, Graph, Node, TensorType, Value, free_values, reads
from weft.graph.opspec import blame, has
from weft.graph.passes.fuse import Group
from weft.graph.passes.layout import Layout
from weft.graph.passes.update_caches import COPY, DOMAIN
from weft.graph.shapes import follows, typical
from weft.loop.passes.check_bounds import VALUES
from weft.plan.overrides import override_for
from weft.runtime.model.program import last_uses
from weft.schedule.facts import FINITE, OFTEN_ZERO
from weft.targets.base import Target

logger = logging.getLogger("weft.compiler")


@dataclass
class Launch:
    """One call of a kernel: the value (or packed constant) of each parameter, and which are written."""

    kernel: Kernel
    arguments: tuple[Value | tuple[Value, Packing], ...]
    writes: tuple[Value, ...]
    nodes: tuple[Node, ...]
    sizes: tuple[Var, ...] = ()
    """The open sizes that the kernel takes, behind its other arguments."""

    @property
    def copies(self) -> bool:
        """Whether it does nothing but copy, so that it need not run where both places are one."""
        return [(node.op, node.domain) for node in self.nodes] == [(COPY, DOMAIN)]


@dataclass
class View:
    """A reshape: the output has the bytes of the input. `group` becomes a kernel where the two cannot share memory.

    With `gives` the memory is the output's: whoever makes the input writes it there.
    """

    source: Value
    output: Value
    group: Group
    gives: bool = False


@dataclass
class OnHost:
    """One node on the host, and why."""

    node: Node
    reason: str


@dataclass
class Rest:
    """The nodes that wait for shapes, or that a device refuses, as a graph of their own."""

    graph: Graph


Item = Launch | View | OnHost | Rest


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


def choose_items(graph: Graph, groups: Sequence[Group], compiler: KernelCompiler) -> list[Item]:
    """What runs where, in order."""
    items: list[Item] = []
    compiler.often_zero = often_zero(graph)
    sizes = compiler.sizes = set(graph.symbols.values())
    for position, group in enumerate(groups):
        progress(position, len(groups))
        made = _view_items(group, sizes) or _group_items(group.nodes, group.outputs, graph.constants, compiler)
        items.extend(made)
        on_host = [item.node for item in made if isinstance(item, OnHost)]
        check_operands(on_host)
        unknown = [value for node in on_host for value in node.outputs if not follows(value.type, sizes)]
        rest = [node for later in groups[position + 1 :] for node in later.nodes]
        if unknown and rest and _worth_waiting(rest, unknown):
            items.append(Rest(_rest_graph(graph, rest) if compiler.whole is None else _undone(compiler.whole, items)))
            return items
    return items


def _is_static(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


def _worth_waiting(rest: Sequence[Node], unknown: Sequence[Value]) -> bool:
    """Whether nodes that could be kernels depend on shapes that only the run tells."""
    if not all(isinstance(value.type, TensorType) for value in unknown):
        return False
    return any(not _is_static(v) for node in rest for v in (*node.outputs, *(i for i in node.inputs if i is not None)))


def _undone(whole: Graph, items: Sequence[Item]) -> Graph:
    """The nodes of a graph that its outputs still need after some items."""
    made: set[Value] = {*whole.inputs, *whole.constants}
    for item in items:
        if isinstance(item, (Launch, OnHost)):
            made.update(item.writes if isinstance(item, Launch) else item.node.outputs)
        elif isinstance(item, View):
            made.add(item.output)
    needed = {value for value in whole.outputs if value not in made}
    nodes: list[Node] = []
    for node in reversed(whole.nodes):
        if any(value in needed for value in node.outputs):
            nodes.append(node)
            needed.update(value for value in reads(node) if value not in made)
    return _rest_graph(whole, nodes[::-1])


def _rest_graph(graph: Graph, nodes: Sequence[Node]) -> Graph:
    made = {value for node in nodes for value in node.outputs}
    needed = dict.fromkeys([*(v for node in nodes for v in reads(node)), *graph.outputs])
    inputs = [v for v in needed if v not in made and v not in graph.constants]
    constants = {v: graph.constants[v] for v in needed if v in graph.constants}
    return Graph(f"{graph.name}_rest", inputs, graph.outputs, nodes, constants)


def refused_items(graph: Graph, items: Sequence[Item]) -> list[Item]:
    """The items with what is no kernel of a device, stretch by stretch, as graphs for another target."""
    made: list[Item] = []
    stretch: list[Node] = []
    for at, item in enumerate([*items, None]):
        if isinstance(item, (OnHost, View)):
            stretch += [item.node] if isinstance(item, OnHost) else item.group.nodes
            continue
        if stretch:
            later = [v for other in items[at:] for v in _taken(other)]
            own = {v for node in stretch for v in node.outputs}
            outputs = [v for v in dict.fromkeys([*later, *graph.outputs]) if v in own]
            made.append(Rest(_rest_graph(graph.replace(outputs=outputs), stretch)))
            stretch = []
        made += [] if item is None else [item]
    return made


def _taken(item: Item) -> Iterator[Value]:
    """The values that an item reads."""
    if isinstance(item, Launch):
        yield from (one if isinstance(one, Value) else one[0] for one in item.arguments)
    elif isinstance(item, Rest):
        yield from item.graph.inputs
    else:
        for node in [item.node] if isinstance(item, OnHost) else item.group.nodes:
            yield from reads(node)


def _view_items(group: Group, sizes: Collection[Var]) -> list[Item]:
    source = group.nodes[0].inputs[0] if group.is_view else None
    if source is None or not follows(source.type, sizes) or not follows(group.nodes[0].outputs[0].type, sizes):
        return []
    return [View(source, group.nodes[0].outputs[0], group)]


def _group_items(
    nodes: Sequence[Node], outputs: Sequence[Value], constants: Mapping[Value, Array], compiler: KernelCompiler
) -> list[Item]:
    try:
        return [_launch(nodes, outputs, constants, compiler)]
    except WeftError as error:
        if override_for(node.name for node in nodes) is not None:
            raise  # what a user gave is obeyed or refused
        reason = _reason(error, nodes)
    if len(nodes) == 1:
        return [OnHost(nodes[0], reason)]
    items: list[Item] = []
    for at, node in enumerate(nodes):
        later = {v for other in nodes[at + 1 :] for v in reads(other)}
        items += _group_items([node], [v for v in node.outputs if v in later or v in outputs], constants, compiler)
    return items


def _reason(error: Exception, nodes: Sequence[Node]) -> str:
    if not isinstance(error, NoKernel):
        logger.info("the kernel %s failed to compile: %s", label_of(nodes), error, exc_info=True)
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def label_of(nodes: Sequence[Node]) -> str:
    """A name made of operators: conv_add_relu."""
    names = [node.op.lower() for node in nodes]
    return "_".join(names[:4]) + (f"_and_{len(names) - 4}" if len(names) > 4 else "")


def described(nodes: Sequence[Node]) -> str:
    """The nodes of a kernel as an error names them."""
    more = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
    return ", ".join(node.describe() for node in nodes[:3]) + more


def _launch(
    nodes: Sequence[Node], outputs: Sequence[Value], constants: Mapping[Value, Array], compiler: KernelCompiler
) -> Launch:
    wanted = tuple(outputs) or tuple(v for node in nodes for v in node.outputs)[:1]
    label = label_of(nodes)
    try:
        program = build_program(nodes, wanted, constants, "kernel", compiler.layouts, compiler.block, compiler.sizes)
    except Exception as error:  # an operator's own code, a user's perhaps: the node runs on the host
        raise blame(nodes[0], f"the kernel {label}", error) from error
    _note_values(program, nodes, constants, compiler.often_zero)
    try:
        given = override_for(node.name for node in nodes)
        kernel, parameters = compiler.compile(program, constants, label, given)
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, WeftError):
            raise
        problem = f"{type(error).__name__}: {error}"
        raise InternalError(f"{described(nodes)}: the kernel {label} failed to compile: {problem}") from error
    values = [value for value, _ in (*program.inputs, *program.outputs)]
    arguments: list[Value | tuple[Value, Packing]] = [
        values[parameter] if isinstance(parameter, int) else (values[parameter.source], parameter)
        for parameter in parameters
    ]
    sizes = tuple(program.sizes[var.name] for var in kernel.scheduled.size_vars)
    return Launch(kernel, tuple(arguments), tuple(value for value, _ in program.outputs), tuple(nodes), sizes)


def _note_values(
    program: GroupProgram, nodes: Sequence[Node], constants: Mapping[Value, Array], zeros: Collection[Value]
) -> None:
    """Notes what is known of the values that a program reads: its schedule may use it."""
    skipped, finite = skippable(nodes, zeros, constants), finite_recurrences(nodes, constants)
    for note, noted in ((OFTEN_ZERO, skipped), (FINITE, finite)):
        if noted:
            program.note(note, [buffer.name for value, buffer in program.inputs if value in noted])
    noted_values = {
        buffer.name: _least_and_most(constants[v]) for v, buffer in program.inputs if _holds_indices(v, constants)
    }
    if noted_values:
        program.note(VALUES, noted_values)


def program_of(launch: Launch, graph: Graph, lowered: Lowered) -> GroupProgram:
    """The program of a kernel as it was before it got its schedule, built again."""
    made = build_program(launch.nodes, launch.writes, graph.constants, "kernel", lowered.layouts, lowered.block)
    _note_values(made, launch.nodes, graph.constants, often_zero(graph))
    return made


def _holds_indices(value: Value, constants: Mapping[Value, Array]) -> bool:
    """Whether a value is a constant whose elements may be indices: whole numbers that are wide enough."""
    array = constants.get(value)
    return array is not None and array.dtype in (np.int32, np.int64) and array.size > 0


def _least_and_most(array: Array) -> list[int]:
    return [int(array.min()), int(array.max())]


def touched_plainly(graph: Graph, items: Sequence[Item]) -> set[Value]:
    """The values that something else than a kernel sees: those lie in memory as the host expects."""
    seen: set[Value] = {*graph.outputs, *graph.inputs}
    for item in items:
        if isinstance(item, OnHost):
            seen.update((*reads(item.node), *item.node.outputs))
        elif isinstance(item, Rest):
            seen.update(item.graph.inputs)
        elif isinstance(item, View):
            seen.update((item.source, item.output))
    return seen


def settle_views(graph: Graph, items: Sequence[Item], compiler: KernelCompiler) -> list[Item]:
    """Reshapes whose result the host or the caller sees: what they reshape is written there, or they become copies."""
    seen: set[Value] = {*graph.outputs}
    made: set[Value] = set()
    for item in items:
        if isinstance(item, OnHost):
            seen.update(reads(item.node))
        elif isinstance(item, Rest):
            seen.update(item.graph.inputs)
        elif isinstance(item, Launch):
            made.update(item.writes)
    settled: list[Item] = []
    roots: dict[Value, Value] = {}
    free = made - seen  # one place each: the first reshape that is seen takes it
    for item in items:
        if isinstance(item, View):
            root = roots[item.output] = roots.get(item.source, item.source)
            if item.output in seen and root in free:
                free.remove(root)
                item = replace(item, gives=True)
            elif item.output in seen:
                settled += _group_items(item.group.nodes, [item.output], graph.constants, compiler)
                continue
        settled.append(item)
    return settled


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
    ) -> None:
        self.typical = typical or {}
        self.graph, self.items, self.prefix, self.layouts = graph, items, prefix, layouts
        self.numbers: dict[Value, int] = {}
        self.weights: list[Array] = []
        self.blocks = WeightBlocks()
        self.weight_of: dict[Hashable, int] = {}
        self.in_arena: set[Value] = set()
        self.same: dict[Value, Value] = {}
        self.open = Numbers(graph) if graph.symbols else None
        self.slots: dict[Value, int] = {}
        for item in items:
            if isinstance(item, View):
                self.same[item.output] = self.root(item.source)
        for item in items:
            if isinstance(item, View) and item.gives:
                self.move(self.root(item.source), item.output)
            elif isinstance(item, Launch) and (before := updated_by(item)) is not None:
                self.move(self.root(before), item.writes[0])

    def root(self, value: Value) -> Value:
        """The value in whose memory a value lies."""
        return self.same.get(value, value)

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
                for value in map(self.root, item.writes):
                    made_by[value] = at
                for argument in item.arguments:
                    if isinstance(argument, Value):
                        last[self.root(argument)] = at
            elif not isinstance(item, View):
                touched = reads(item.node) if isinstance(item, OnHost) else iter(item.graph.inputs)
                outside.update(touched)
        self.in_arena = {value for value in made_by if value not in outside}
        if self.open is not None:
            kinds = {v: TensorType(v.tensor.dtype, typical(v.tensor.dims, self.typical)) for v in self.in_arena}
            found = {v: Life(_bytes(kinds[v]), made_by[v], last.get(v, made_by[v])) for v in self.in_arena}
            self.slots = self.open.plan({v: (v.tensor, life) for v, life in found.items()}, alignment)
            return Plan({}, 0, sum(life.bytes for life in found.values()))
        lives = {
            v: Life(_bytes(v.tensor, self.layouts.get(v)), made_by[v], last.get(v, made_by[v])) for v in self.in_arena
        }
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
            for source, target in pairs[item.kernel.symbol]:
                given, made = roots[source], roots[target]
                if given is None or made is None or given in found.values() or made in found:
                    continue
                if given not in lives or made not in lives:
                    continue
                dies_here = lives[given].last == at and lives[made].first == at and roots.count(given) == 1
                if dies_here and lives[given].bytes == lives[made].bytes:
                    found[made] = given
        return found

    def weight(self, value: Value, packing: Packing | None) -> int:
        key: Hashable = (value, packing)
        found = self.weight_of.get(key)
        if found is None:
            array = self.graph.constants[value]
            made = np.asarray(array if packing is None else packing.view(array))
            found = self.weight_of[key] = len(self.weights)
            large = packing is not None and made.nbytes >= LEAST_BYTES
            self.weights.append(self.blocks.copy(made) if large else aligned_array(made))
        return found

    def place(self, argument: Value | tuple[Value, Packing], bases: dict[tuple[str, int], int], plan: Plan) -> Place:
        """The address of an argument: which base of the stretch, and how far from it."""
        if isinstance(argument, tuple):
            return bases.setdefault(("weight", self.weight(*argument)), len(bases)), 0
        argument = self.root(argument)
        key, offset = ("value", 0), 0
        if argument in self.graph.constants:
            key, offset = ("weight", self.weight(argument, None)), 0
        elif argument in self.slots:
            key, offset = ("slot", self.slots[argument]), 0
        elif argument in self.in_arena:
            key, offset = ("arena", 0), plan.offsets[argument]
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

    def size(self, var: Var, bases: dict[tuple[str, int], int]) -> Place:
        """The number of an open size."""
        assert self.open is not None
        return bases.setdefault(("size", self.open.place(var)), len(bases)), 0


def updated_by(item: Launch) -> Value | None:
    """The value that a launch updates in place; None where it makes all that it writes."""
    return item.nodes[0].inputs[0] if len(item.nodes) == 1 and has(item.nodes[0], "updates") else None


def _updates(graph: Graph, items: Sequence[Item]) -> list[tuple[Value, Value]]:
    """Inputs and outputs that may be one array: the input is read once, by the copy that the output starts from."""
    copies = {item.writes[0]: item.nodes[0].inputs[0] for item in items if isinstance(item, Launch) and item.copies}
    reading = Counter(v for item in items for v in _read_by(item))
    pairs = [(copies.get(before), item.writes[0]) for item in items if isinstance(item, Launch)
             if (before := updated_by(item)) is not None]  # fmt: skip
    return [
        (given, made)
        for given, made in pairs
        if given in graph.inputs and made in graph.outputs and reading[given] == 1 and given not in graph.outputs
    ]


def _read_by(item: Item) -> set[Value]:
    if isinstance(item, Launch):
        return {v for node in item.nodes for v in reads(node)}
    return (
        {item.source}
        if isinstance(item, View)
        else set(reads(item.node) if isinstance(item, OnHost) else item.graph.inputs)
    )


def _bytes(kind: TensorType, layout: Layout | None = None) -> int:
    shape = kind.static if layout is None else layout.shape(kind.static)
    return int(np.prod(shape, dtype=np.int64)) * int(kind.numpy.itemsize)


def assemble(
    graph: Graph,
    items: Sequence[Item],
    prefix: str,
    target: Target,
    make_rest: Callable[[Graph], Any],
    layouts: Mapping[Value, Layout] | None = None,
    typical: Mapping[Var, int] | None = None,
) -> Lowered:
    """The program of a list of items; open sizes have `typical` numbers."""
    state = _Assembler(graph, items, prefix, layouts or {}, typical)
    plan = state.plan(target.part_bytes)
    inputs = [state.number(value) for value in graph.inputs]
    steps: list[Step] = []
    kernels: dict[str, Kernel] = {}
    position = 0
    while position < len(items):
        item = items[position]
        if isinstance(item, View):
            position += 1
            continue
        if isinstance(item, Launch):
            end = position
            while end < len(items) and isinstance(items[end], (Launch, View)):
                end += 1
            launches = [one for one in items[position:end] if isinstance(one, Launch)]
            kernels.update({one.kernel.symbol: one.kernel for one in launches})
            steps.append(_stretch(state, launches, plan, f"{prefix}_{len(steps)}"))
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
    drivers = [] if target.on_device else [_driver(step, target) for step in steps]
    return Lowered(program, list(kernels.values()), [text for text in drivers if text], list(items), layouts or {})


def _stretch(state: _Assembler, launches: Sequence[Launch], plan: Plan, name: str) -> NativeStep:
    bases: dict[tuple[str, int], int] = {}
    calls = []
    makes: dict[int, TensorType] = {}
    reach: dict[int, Reach] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    for launch in launches:
        places = tuple(state.place(a, bases, plan) for a in launch.arguments)
        sizes = tuple(state.size(var, bases) for var in launch.sizes)
        calls.append(Call(launch.kernel.symbol, (*places, *sizes), launch.kernel.turns, launch.copies))
        made_outside = [v for v in map(state.root, launch.writes) if v not in state.in_arena]
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


def _driver(step: Step, target: Target) -> str:
    """The text of a native stretch's driver."""
    return driver_ir(step.symbol, step.calls, target.triple) if isinstance(step, NativeStep) else ""


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

"""What runs where: the groups of a graph as kernels, views, nodes of the host, and what waits for shapes.

In: a graph after its passes, and the groups that fusion found. What has a kernel is decided before anything is compiled
(`choose_items`): a group that has none as a whole is tried node by node; a node that has none runs on the host, with
the reason kept. Where a host node makes a shape that is not known now, the rest of the graph waits for it (`Rest`).
A program that no schedule or code generator takes after all gives its place to its nodes, or those to the host, with
plain copies of what lies in blocks around them: nothing else is compiled again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.compiler.kernels.build import Kernel, KernelCompiler, Packing
from weft.compiler.kernels.program import GroupProgram, NoKernel
from weft.compiler.kernels.zeros import finite_weights, often_zero, skippable
from weft.compiler.sizes.open_sizes import check_operands
from weft.core.errors import InternalError, WeftError
from weft.core.knobs import knobs
from weft.core.progress import progress
from weft.expr.nodes import Expr, Var
from weft.graph.ir import Array, Graph, Node, TensorType, Value, reads
from weft.graph.opspec import blame, has
from weft.graph.passes.algorithms import asked
from weft.graph.passes.fuse import Group
from weft.graph.passes.group_parts import groups_in_parts
from weft.graph.passes.layout import Layout, choose_layouts, joins, moves_nothing
from weft.graph.passes.update_caches import COPY, DOMAIN
from weft.graph.shapes import follows
from weft.loop.passes.check_bounds import VALUES
from weft.plan.overrides import override_for
from weft.schedule.facts import FINITE, OFTEN_ZERO

logger = logging.getLogger("weft.compiler")


@dataclass
class Launch:
    """One call of a kernel: the value (or packed constant) of each parameter, and which are written."""

    kernel: Kernel
    arguments: tuple[Value | tuple[Value, Packing], ...]
    writes: tuple[Value, ...]
    nodes: tuple[Node, ...]
    sizes: tuple[Expr, ...] = ()
    """The open sizes that the kernel takes, behind its other arguments."""

    @property
    def copies(self) -> bool:
        """Whether it does nothing but copy, so that it need not run where both places are one."""
        return [(node.op, node.domain) for node in self.nodes] == [(COPY, DOMAIN)]


@dataclass
class Planned:
    """A kernel that is not compiled yet: its program, and the nodes that it computes."""

    program: GroupProgram
    nodes: tuple[Node, ...]

    @property
    def writes(self) -> tuple[Value, ...]:
        """The values that it makes."""
        return tuple(value for value, _ in self.program.outputs)


@dataclass
class View:
    """A reshape, or a Transpose between layouts: the output has the bytes of the input. `group` becomes a kernel where
    the two cannot share memory.

    With `gives` the memory is the output's: whoever makes the input writes it there.
    """

    source: Value
    output: Value
    group: Group
    gives: bool = False


@dataclass
class Join:
    """A Concat that copies nothing: its parts are written where the result has them, so many bytes from its start.

    `planned` becomes a kernel where they cannot be.
    """

    parts: Mapping[Value, int]
    output: Value
    planned: Planned


@dataclass
class OnHost:
    """One node on the host, and why."""

    node: Node
    reason: str


@dataclass
class Rest:
    """The nodes that wait for shapes, or that a device refuses, as a graph of their own."""

    graph: Graph


Item = Launch | View | Join | OnHost | Rest
Undecided = Planned | View | OnHost | Rest
"""An item before anything is compiled."""


def choose_items(graph: Graph, groups: Sequence[Group], compiler: KernelCompiler) -> list[Item | Undecided]:
    """What runs where, in order. Kernels of a processor are made beside while further programs are built: but those of
    Concats, which may need none, and where the host may see values that are laid out here."""
    items: list[Item | Undecided] = []
    early = compiler.target.spec.device is None
    early &= not compiler.layouts or not any(group.kind == "host" for group in groups)
    compiler.often_zero = often_zero(graph)
    sizes = compiler.sizes = set(graph.symbols.values())
    for position, group in enumerate(groups):
        if early:
            progress(position, len(groups))
        views = _view_items(group, sizes, compiler.layouts)
        made = views or _planned(group.nodes, group.outputs, graph.constants, compiler)
        for item in made:
            is_sure = early and isinstance(item, Planned) and not joins(_as_group(item))
            items += _compiled(item, graph.constants, compiler) if is_sure and isinstance(item, Planned) else [item]
        on_host = [item.node for item in made if isinstance(item, OnHost)]
        check_operands(on_host)
        unknown = [value for node in on_host for value in node.outputs if not follows(value.type, sizes)]
        rest = [node for later in groups[position + 1 :] for node in later.nodes]
        if unknown and rest and _worth_waiting(rest, unknown):
            items.append(Rest(_rest_graph(graph, rest) if compiler.whole is None else _undone(compiler.whole, items)))
            return items
    return items


def compile_items(
    items: Sequence[Item | Undecided],
    constants: Mapping[Value, Array],
    compiler: KernelCompiler,
    found: Mapping[Value, Join] | None = None,
) -> list[Item]:
    """The items with their kernels; their code is made beside. Concats that were found to copy nothing need none."""
    made: list[Item] = []
    joins = found or {}
    wanted = [item for item in items if isinstance(item, Planned) and item.writes[0] not in joins]
    given = [override_for(node.name for node in item.nodes) for item in wanted]
    ahead = [(item.program, label_of(item.nodes)) for item, own in zip(wanted, given) if own is None]
    compiler.plan_ahead(ahead, constants)
    for position, item in enumerate(items):
        if isinstance(item, Planned):
            progress(position, len(items))
        join = joins.get(item.writes[0]) if isinstance(item, Planned) else None
        made += [join] if join else _compiled(item, constants, compiler) if isinstance(item, Planned) else [item]
    return made


def without_refused(items: Sequence[Item], constants: Mapping[Value, Array], compiler: KernelCompiler) -> list[Item]:
    """The items without kernels that turned out to have no code: what stands for those is compiled now."""
    return [new for item in items for new in _replaced(item, constants, compiler)]


def _replaced(item: Item, constants: Mapping[Value, Array], compiler: KernelCompiler) -> list[Item]:
    refusal = compiler.refusal(item.kernel) if isinstance(item, Launch) else None
    if refusal is None or not isinstance(item, Launch):
        return [item]
    error = _failed(refusal, item.nodes)
    if not isinstance(error, WeftError):
        raise error from refusal
    return _without_kernel(item.nodes, item.writes, error, constants, compiler)


def _worth_waiting(rest: Sequence[Node], unknown: Sequence[Value]) -> bool:
    """Whether nodes that could be kernels depend on shapes that only the run tells."""
    if not all(isinstance(value.type, TensorType) for value in unknown):
        return False
    return any(not v.is_static for node in rest for v in (*node.outputs, *(i for i in node.inputs if i is not None)))


def _undone(whole: Graph, items: Sequence[Item | Undecided]) -> Graph:
    """The nodes of a graph that its outputs still need after some items."""
    made: set[Value] = {*whole.inputs, *whole.constants}
    for item in items:
        if isinstance(item, (Planned, Launch, OnHost)):
            made.update(item.node.outputs if isinstance(item, OnHost) else item.writes)
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
    elif isinstance(item, Join):
        yield from item.parts
    else:
        for node in [item.node] if isinstance(item, OnHost) else item.group.nodes:
            yield from reads(node)


def _view_items(group: Group, sizes: Collection[Var], layouts: Mapping[Value, Layout]) -> list[Undecided]:
    source = group.nodes[0].inputs[0] if group.is_view or moves_nothing(group, layouts) else None
    if source is None or not follows(source.type, sizes) or not follows(group.nodes[0].outputs[0].type, sizes):
        return []
    return [View(source, group.nodes[0].outputs[0], group)]


def _planned(
    nodes: Sequence[Node], outputs: Sequence[Value], constants: Mapping[Value, Array], compiler: KernelCompiler
) -> list[Undecided]:
    """A group as one program, or its nodes each; those that have none are for the host."""
    try:
        return [Planned(_program(nodes, outputs, constants, compiler), tuple(nodes))]
    except WeftError as error:
        reason = _reason(error, nodes)
    if len(nodes) == 1:
        return [OnHost(nodes[0], reason)]
    return [one for node, made in _each(nodes, outputs) for one in _planned([node], made, constants, compiler)]


def _each(nodes: Sequence[Node], outputs: Sequence[Value]) -> Iterator[tuple[Node, list[Value]]]:
    """The nodes of a group, with what others want of each."""
    for at, node in enumerate(nodes):
        later = {v for other in nodes[at + 1 :] for v in reads(other)}
        yield node, [v for v in node.outputs if v in later or v in outputs]


def _compiled(item: Planned, constants: Mapping[Value, Array], compiler: KernelCompiler) -> list[Item]:
    try:
        return [_launch(item, constants, compiler)]
    except WeftError as error:
        return _without_kernel(item.nodes, item.writes, error, constants, compiler)


def _without_kernel(
    nodes: Sequence[Node],
    outputs: Sequence[Value],
    error: WeftError,
    constants: Mapping[Value, Array],
    compiler: KernelCompiler,
) -> list[Item]:
    """What stands for a program that was refused: its nodes each, or one of the host among plain values."""
    if override_for(node.name for node in nodes) is not None:
        raise error  # what a user gave is obeyed or refused
    reason = _reason(error, nodes)
    items: list[Item] = []
    if len(nodes) > 1:
        for node, made in _each(nodes, outputs):
            for one in _planned([node], made, constants, compiler):
                items += (
                    _compiled(one, constants, compiler)
                    if isinstance(one, Planned)
                    else _among_plain(node, reason, constants, compiler)
                )
        return items
    return _among_plain(nodes[0], reason, constants, compiler)


def _among_plain(node: Node, reason: str, constants: Mapping[Value, Array], compiler: KernelCompiler) -> list[Item]:
    """A node on the host, with kernels that copy what it reads out of its layout, and what it makes into that."""
    laid = [v for v in dict.fromkeys((*reads(node), *node.outputs)) if v in compiler.layouts]
    plain = {v: Value(v.name, v.type) for v in laid}
    copies = {v: Node("Identity", [v], [new]) for v, new in plain.items()}
    copies |= {v: Node("Identity", [plain[v]], [v]) for v in node.outputs if v in plain}
    made: list[Item] = [
        _launch(Planned(_program([copy], copy.outputs, constants, compiler), (copy,)), constants, compiler)
        for copy in copies.values()
    ]
    inputs = [v if v is None else plain.get(v, v) for v in node.inputs]
    host = OnHost(node.replace(inputs=inputs, outputs=[plain.get(v, v) for v in node.outputs]), reason)
    before = sum(v not in node.outputs for v in copies)
    return [*made[:before], host, *made[before:]]


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


def _program(
    nodes: Sequence[Node], outputs: Sequence[Value], constants: Mapping[Value, Array], compiler: KernelCompiler
) -> GroupProgram:
    wanted = tuple(outputs) or tuple(v for node in nodes for v in node.outputs)[:1]
    try:
        known = compiler.layouts, compiler.block, compiler.sizes
        program = compiler.programs.build(nodes, wanted, constants, *known)
    except Exception as error:  # an operator's own code, a user's perhaps: the node runs on the host
        raise blame(nodes[0], f"the kernel {label_of(nodes)}", error) from error
    note_values(program, nodes, constants, compiler.often_zero)
    return program


def _launch(item: Planned, constants: Mapping[Value, Array], compiler: KernelCompiler) -> Launch:
    nodes, program = item.nodes, item.program
    try:
        given = override_for(node.name for node in nodes)
        kernel, parameters = compiler.compile(program, constants, label_of(nodes), given)
    except _FAILURES as error:
        if isinstance(error, WeftError):
            raise
        raise _failed(error, nodes) from error
    values = [value for value, _ in (*program.inputs, *program.outputs)]
    arguments: list[Value | tuple[Value, Packing]] = [
        values[parameter] if isinstance(parameter, int) else (values[parameter.source], parameter)
        for parameter in parameters
    ]
    sizes = tuple(program.sizes[var.name] for var in kernel.scheduled.size_vars)
    return Launch(kernel, tuple(arguments), item.writes, nodes, sizes)


def _failed(error: Exception, nodes: Sequence[Node]) -> Exception:
    """A failure of the compiler itself as one that names the nodes; another error is what it is."""
    if isinstance(error, WeftError) or not isinstance(error, _FAILURES):
        return error
    problem = f"{type(error).__name__}: {error}"
    return InternalError(f"{described(nodes)}: the kernel {label_of(nodes)} failed to compile: {problem}")


_FAILURES = (AssertionError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError)


def note_values(
    program: GroupProgram, nodes: Sequence[Node], constants: Mapping[Value, Array], zeros: Collection[Value]
) -> None:
    """Notes what is known of the values that a program reads: its schedule may use it."""
    skipped, finite = skippable(nodes, zeros, constants), finite_weights(nodes, constants)
    for note, noted in ((OFTEN_ZERO, skipped), (FINITE, finite)):
        if noted:
            program.note(note, [buffer.name for value, buffer in program.inputs if value in noted])
    noted_values = {
        buffer.name: _least_and_most(constants[v]) for v, buffer in program.inputs if _holds_indices(v, constants)
    }
    if noted_values:
        program.note(VALUES, noted_values)


def _holds_indices(value: Value, constants: Mapping[Value, Array]) -> bool:
    """Whether a value is a constant whose elements may be indices: whole numbers that are wide enough."""
    array = constants.get(value)
    return array is not None and array.dtype in (np.int32, np.int64) and array.size > 0


def _least_and_most(array: Array) -> list[int]:
    return [int(array.min()), int(array.max())]


def touched_plainly(graph: Graph, items: Sequence[Item | Undecided]) -> set[Value]:
    """The values that something else than a kernel sees: those lie in memory as the host expects."""
    seen: set[Value] = {*graph.outputs, *graph.inputs}
    for item in items:
        if isinstance(item, OnHost):
            seen.update((*reads(item.node), *item.node.outputs))
        elif isinstance(item, Rest):
            seen.update(item.graph.inputs)
        elif isinstance(item, View) and item.group.is_view:
            seen.update((item.source, item.output))
    return seen


def find_joins(graph: Graph, items: Sequence[Item | Undecided], compiler: KernelCompiler) -> dict[Value, Join]:
    """The Concats that need copy nothing, by their results: a part is made by a kernel and lies in one result only,
    in the layout of that, at a multiple of what memory is aligned to; and nobody but kernels sees either."""
    if graph.symbols or compiler.target.on_device:
        return {}
    found: dict[Value, Join] = {}
    inside: set[Value] = set()
    made: set[Value] = set()
    seen = touched_plainly(graph, items)
    for item in items:
        if isinstance(item, View):
            seen.update((item.source, item.output))
        elif isinstance(item, (Planned, Launch)):
            seen.update(v for node in item.nodes if has(node, "updates") for v in (*reads(node), *node.outputs))
    for item in items:
        planned = item.planned if isinstance(item, Join) else item
        if isinstance(planned, Planned) and joins(_as_group(planned)):
            parts, output = _parts(planned, compiler), planned.writes[0]
            if parts and not seen & {*parts, output} and not inside & {*parts} and made >= {*parts}:
                found[output] = Join(parts, output, planned)
                inside.update(parts)
                made.add(output)
                continue
        if isinstance(planned, (Planned, Launch)):
            made.update(planned.writes)
    return found


def _as_group(planned: Planned) -> Group:
    return Group(planned.nodes, (), planned.writes, "injective", None)


def _parts(planned: Planned, compiler: KernelCompiler) -> dict[Value, int]:
    """The parts of a Concat, and where each starts in its result; nothing where they cannot lie in there."""
    node, parts, start = planned.nodes[0], dict[Value, int](), 0
    layout = compiler.layouts.get(planned.writes[0])
    for value in node.inputs:
        if value is None or compiler.layouts.get(value) != layout or start % compiler.target.part_bytes:
            return {}
        parts[value] = start
        kind = value.tensor if layout is None else layout.stored(value.tensor)
        start += math.prod(kind.static) * int(kind.numpy.itemsize)
    return parts


def settle_views(graph: Graph, items: Sequence[Item], compiler: KernelCompiler) -> list[Item]:
    """Reshapes whose result the host or the caller sees: what they reshape is written there, or they become copies.

    So do Concats whose parts are not made by kernels after all.
    """
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
    held = find_joins(graph, items, compiler)
    roots: dict[Value, Value] = {}
    free = made - seen  # one place each: the first reshape that is seen takes it
    for item in items:
        if isinstance(item, View):
            root = roots[item.output] = roots.get(item.source, item.source)
            if item.output in seen and root in free:
                free.remove(root)
                item = replace(item, gives=True)
            elif item.output in seen:
                planned = _planned(item.group.nodes, [item.output], graph.constants, compiler)
                settled += compile_items(planned, graph.constants, compiler)
                continue
        elif isinstance(item, Join) and item.output not in held:
            settled += _compiled(item.planned, graph.constants, compiler)
            continue
        settled.append(item)
    return settled


def items_in_layouts(graph: Graph, groups: Sequence[Group], compiler: KernelCompiler, join: bool = False) -> list[Item]:
    """What runs where, with layouts for the values between kernels; those that the host turns out to see are plain."""
    target = compiler.target
    lays_out = knobs.layout
    lanes = target.vector_bytes // 4 if lays_out and target.blocks_channels else 0
    together = target.channels_last if lays_out else frozenset()
    compiler.block = max(lanes, 1)
    matrix = target.matrix
    dots = target.spec.algorithms.dots
    tile, narrow, deep = 1, int(dots is not None and bool(dots(target))), 0
    if matrix is not None:
        tile, narrow, deep = matrix.rows, matrix.most_bytes, matrix.together
    fixed: set[Value] = set()
    while True:
        laid = choose_layouts(graph, groups, lanes, fixed, tile, narrow, deep, together)
        if laid.layouts and asked("* layouts", "blocked", "plain") == "plain":
            lanes, together = 0, frozenset()
            laid = choose_layouts(graph, groups, lanes, fixed, tile, narrow, deep, together)
        compiler.layouts = laid.layouts
        if (groups_of := target.spec.algorithms.groups) is not None and laid.layouts:
            laid = groups_in_parts(laid, groups_of(target))
        chosen = choose_items(graph, laid.groups, compiler)
        wrong = touched_plainly(graph, chosen) & laid.layouts.keys()
        if not wrong:
            found = find_joins(graph, chosen, compiler) if join else {}
            return compile_items(chosen, graph.constants, compiler, found)
        fixed |= {laid.plain.get(value, value) for value in wrong}

"""A fused group of nodes as one tensor program.

In: the nodes of a group with shapes of numbers and open sizes, and the constants that they read. Out: a `GroupProgram`:
the schedule of the program, and which value each of its parameters stands for. Open sizes are its own variables, s0,
s1, …, so that groups that differ only in which sizes they see are one kernel. What cannot be a kernel is refused with
a `NoKernel`, whose text is the reason that the report gives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from weft import te
from weft.compiler.kernels.layouts import apply_layouts
from weft.compiler.kernels.places import merge_places
from weft.core import model
from weft.core.errors import WeftError
from weft.expr.nodes import Buffer, Expr, Mul, Var, const
from weft.expr.visit import free_vars, substitute
from weft.graph.interpreter import operator_of
from weft.graph.ir import Array, Dim, Node, TensorType, Value, same_dim
from weft.graph.opspec import Compute, has
from weft.graph.passes.common import attributes_key
from weft.graph.passes.layout import Layout
from weft.graph.shapes import follows, same_shape, tidy
from weft.ops.tensors import tensors_of
from weft.schedule.schedule import Schedule
from weft.te.tensor import ExternOp, PlaceholderOp, Tensor


class NoKernel(WeftError):
    """A node that has no compiled form; the text says why."""


@dataclass(frozen=True)
class GroupProgram:
    """The tensor program of a group: parameters in order, inputs before outputs."""

    schedule: Schedule
    inputs: tuple[tuple[Value, Buffer], ...]
    outputs: tuple[tuple[Value, Buffer], ...]
    bordered: tuple[tuple[Buffer, Layout], ...] = ()
    """Outputs whose borders the kernel fills with zeros."""
    sizes: Mapping[str, Expr] = field(default_factory=dict)
    """The open size of the graph that each size of the program stands for, or the product of some."""
    own_weights: bool = False
    """Whether what large constants hold has made it what it is."""

    def note(self, key: str, value: Any) -> None:
        """Adds a note to the program, for its schedule."""
        func = self.schedule.func
        self.schedule.func = func.replace(annotations={**func.annotations, key: value})

    @property
    def buffers(self) -> list[Buffer]:
        """The parameters in order."""
        return [buffer for _, buffer in (*self.inputs, *self.outputs)]


def kernel_tensor(value: Value, sizes: Collection[Var]) -> TensorType:
    """The type of a value as kernels need it, made of numbers and open sizes; a NoKernel where it is something else."""
    kind = value.type
    if not isinstance(kind, TensorType):
        raise NoKernel(f"{value.name} is no tensor")
    if not follows(kind, sizes):
        raise NoKernel(f"the shape of {value.name} is known only when the model runs")
    if kind.core is None:
        raise NoKernel(f"kernels have no elements of {kind.dtype}")
    return kind


class Programs:
    """The programs of groups, each built once: layers of a model differ in their weights only."""

    def __init__(self) -> None:
        self._built: dict[Any, tuple[GroupProgram, dict[Value, int]]] = {}

    def build(
        self,
        nodes: Sequence[Node],
        outputs: Sequence[Value],
        constants: Mapping[Value, Array],
        layouts: Mapping[Value, Layout],
        block: int,
        sizes: Collection[Var],
    ) -> GroupProgram:
        """`build_program`, or a copy of what it gave for nodes that differ in nothing that it looked at."""
        numbers: dict[Value, int] = {}
        for node in nodes:
            for value in (*node.inputs, *node.outputs):
                if value is not None:
                    numbers.setdefault(value, len(numbers))
        key = _key(nodes, numbers, constants, layouts)
        if key is None:
            return build_program(nodes, outputs, constants, "kernel", layouts, block, sizes)
        key = (key, tuple(numbers[value] for value in outputs), block)
        if key not in self._built:
            made = build_program(nodes, outputs, constants, "kernel", layouts, block, sizes)
            if not made.own_weights:
                self._built[key] = replace(made, schedule=made.schedule.copy()), numbers
            return made
        found, theirs = self._built[key]
        ours = dict(zip(theirs, numbers))
        inputs, results = (tuple((ours[v], buffer) for v, buffer in part) for part in (found.inputs, found.outputs))
        return replace(found, schedule=found.schedule.copy(), inputs=inputs, outputs=results)


def _key(
    nodes: Sequence[Node],
    numbers: Mapping[Value, int],
    constants: Mapping[Value, Array],
    layouts: Mapping[Value, Layout],
) -> Any:
    """Nodes and their values, but for names and weights; None where that says too little."""
    values: list[Any] = []
    for value in numbers:
        array = constants.get(value)
        if not isinstance(value.type, TensorType) or not value.type.is_static:
            return None
        if array is not None and array.dtype.kind in "OUS":
            return None
        content = None if array is None else array.tobytes() if array.size <= model.SMALL_CONSTANT else b""
        values.append((value.type.dtype, value.type.static, layouts.get(value), array is None, content))
    if any(node.graphs for node in nodes):
        return None
    places = [tuple(-1 if v is None else numbers[v] for v in (*node.inputs, *node.outputs)) for node in nodes]
    uses = [(node.domain, node.op, len(node.inputs), attributes_key(node.attributes)) for node in nodes]
    return (*places, *uses, *values)


def build_program(
    nodes: Sequence[Node],
    outputs: Sequence[Value],
    constants: Mapping[Value, Array],
    name: str,
    layouts: Mapping[Value, Layout] | None = None,
    block: int = 1,
    sizes: Collection[Var] = (),
) -> GroupProgram:
    """The program that computes some values that a group of nodes makes.

    `layouts` are those of values around it; `block` is how many channels of a convolution's sums should lie together;
    `sizes` are the sizes of the graph that are open.
    """
    if not any(has(node, "convolution") for node in nodes):
        block = 1
    merged = merge_places(nodes, constants, layouts or {}, block) if block > 1 or sizes else None
    if merged is not None:
        made = _built(merged[0], [merged[1][value] for value in outputs], constants, name, sizes)
        old = {new: value for value, new in merged[1].items()}
        inputs, results = ([(old[value], buffer) for value, buffer in part] for part in (made.inputs, made.outputs))
        return replace(made, inputs=tuple(inputs), outputs=tuple(results))
    made = _built(nodes, outputs, constants, name, sizes)
    touched = layouts and any(value in layouts for value, _ in (*made.inputs, *made.outputs))
    return _laid_out(made, layouts or {}, block) if touched or block > 1 else made


def _built(
    nodes: Sequence[Node],
    outputs: Sequence[Value],
    constants: Mapping[Value, Array],
    name: str,
    sizes: Collection[Var] = (),
) -> GroupProgram:
    builder = _Builder(nodes, constants, sizes)
    for node in nodes:
        builder.node(node)
    return builder.finish(outputs, name)


def _laid_out(program: GroupProgram, layouts: Mapping[Value, Layout], block: int) -> GroupProgram:
    count = len(program.inputs)
    now = apply_layouts(program.schedule, [*program.inputs, *program.outputs], layouts, block)
    bordered = tuple(
        (buffer, layouts[value])
        for value, buffer in now[count:]
        if value in layouts and any(before or after for before, after in layouts[value].border)
    )
    return replace(program, inputs=tuple(now[:count]), outputs=tuple(now[count:]), bordered=bordered)


class _Builder:
    """Tensors of the values so far."""

    def __init__(self, nodes: Sequence[Node], constants: Mapping[Value, Array], sizes: Collection[Var] = ()) -> None:
        self.constants = constants
        self.open = sizes
        self.whole = _products(nodes) if sizes else []
        self.own: dict[Expr, Var] = {}
        self.tensors: dict[Value, Tensor] = {}
        self.inputs: list[tuple[Value, Tensor]] = []
        self.own_weights = False

    def tensor(self, value: Value) -> Tensor:
        """The tensor of a value: made here, a literal, or a parameter."""
        found = self.tensors.get(value)
        if found is not None:
            return found
        kind = self.type(value)
        array = self.constants.get(value)
        if array is not None and array.size == model.EMBEDDED_ELEMENTS:
            literal = const(array.reshape(-1)[0].item(), kind.dtype)
            made: Tensor = te.compute(kind.static, lambda *_: literal, name=f"literal{len(self.tensors)}")
        else:
            made = te.placeholder(kind.dims, kind.dtype, name=f"in{len(self.inputs)}")
            self.inputs.append((value, made))
        self.tensors[value] = made
        return made

    def type(self, value: Value) -> TensorType:
        """The type of a value, over the program's own sizes."""
        kind = kernel_tensor(value, self.open)
        return kind if kind.is_static else TensorType(kind.dtype, [self.size(dim) for dim in kind.dims])

    def size(self, dim: Dim) -> Dim:
        """A dimension, over the program's own sizes."""
        if isinstance(dim, int):
            return dim
        whole = next((one for one in self.whole if same_dim(one, dim)), None)
        for one in [whole] if whole is not None else free_vars(dim):
            self.own.setdefault(one, Var(f"s{len(self.own)}"))
        if whole is not None:
            return self.own[whole]
        return tidy(substitute(dim, {one: own for one, own in self.own.items() if isinstance(one, Var)}))

    def node(self, node: Node) -> None:
        """Adds the tensors that a node makes."""
        spec = operator_of(node)
        if spec.compute is None:
            wait = "starts on the host; what is inside is compiled when it has run for as long as that takes"
            raise NoKernel(f"{node.op} {wait if node.graphs else 'has no compiled form'}")
        types = [None if v is None else self.type(v) for v in node.inputs]
        results = [self.type(v) for v in node.outputs]
        values = [None if v is None else self.constants.get(v) for v in node.inputs]
        for position in spec.shape_inputs:
            if position < len(node.inputs) and node.inputs[position] is not None and values[position] is None:
                raise NoKernel(f"input {position} of {node.op} decides shapes and is known only when the model runs")
        given = [
            None if v is None or position in spec.shape_inputs else self.tensor(v)
            for position, v in enumerate(node.inputs)
        ]
        use = Compute(node, types, results, values)
        tensors = tensors_of(spec, use, given)
        seen = [v for at, v in enumerate(values) if v is not None and at in use.looked_at]
        self.own_weights |= any(v.size > model.SMALL_CONSTANT for v in seen)
        if tensors is None:
            raise NoKernel(f"this use of {node.op} has no compiled form")
        for value, kind, tensor in zip(node.outputs, results, tensors):
            self.tensors[value] = _checked(node, value, kind, tensor)

    def finish(self, outputs: Sequence[Value], name: str) -> GroupProgram:
        """The schedule, with one buffer of its own for each output."""
        results: list[tuple[Value, Tensor]] = []
        for number, value in enumerate(outputs):
            tensor = self.tensors[value]
            taken = {t.op for _, t in results}
            whole = isinstance(tensor.op, ExternOp) and len(outputs) == len(tensor.op.outputs)
            several = len(tensor.op.outputs) > 1 or tensor.op in taken
            if isinstance(tensor.op, PlaceholderOp) or (several and not whole):
                tensor = _copy(tensor, f"out{number}")
            results.append((value, tensor))
        schedule = te.create_schedule(list(dict.fromkeys(t.op for _, t in results)), name=name)
        read = set(schedule.func.buffers)
        inputs = tuple((value, tensor) for value, tensor in self.inputs if tensor in read)
        own = {local.name: size for size, local in self.own.items()}
        return GroupProgram(schedule, inputs, tuple(results), sizes=own, own_weights=self.own_weights)


def _products(nodes: Sequence[Node]) -> list[Expr]:
    """Products of open sizes, none of which are the nodes' in any other way: to a program they are sizes of its own."""
    values = [v for node in nodes for v in (*node.inputs, *node.outputs) if v is not None]
    dims = [d for v in values if isinstance(v.type, TensorType) for d in v.type.shape or () if not isinstance(d, int)]
    found: list[Expr] = []
    for dim in dims:
        others = free_vars(*[one for one in dims if not same_dim(one, dim)])
        if isinstance(dim, Mul) and not any(same_dim(dim, one) for one in found):
            if not any(var in others for var in free_vars(dim)):
                found.append(dim)
    return found


def _copy(source: Tensor, name: str) -> Any:
    return te.compute(source.shape, lambda *at: source[at], name=name)


def _checked(node: Node, value: Value, kind: TensorType, tensor: Any) -> Tensor:
    """A result of `compute`, which must be of the type that inference found."""
    shape = tuple(map(tidy, tensor.shape))
    if not same_shape(shape, kind.dims) or tensor.dtype.name != kind.dtype:
        raise NoKernel(
            f"{node.op} computed {tensor.dtype}{list(shape)} for {value.name}, which inference says is {kind!r}"
        )
    assert isinstance(tensor, Tensor)
    return tensor

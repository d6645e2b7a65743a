"""Operator fusion: cuts a graph into groups of nodes that become one kernel each.

    %c = Conv(%x, %w, %b)
    %s = Add(%c, %skip)           ->   one group of kind "complex": Conv, Add, Relu
    %r = Relu(%s)
    %e = Exp(%r)                  ->   one group of kind "reduction": Exp, ReduceSum, Sqrt
    %t = ReduceSum(%e)
    %q = Sqrt(%t)

By the kinds of the TVM paper, and a little past them:

    elementwise   fuses with injective producers
    injective     the same; an element comes from another place, so that it is no epilogue
    reduction     takes injective producers at its input, and elementwise consumers of its own shape at its output
    complex       (convolution, matrix product) takes elementwise consumers of its own shape at its output; a product
                  of so few rows that a target computes them in every block also the norm or the chain that makes these
    opaque        stays alone
    host          a node without a kernel (see `can_compile`); alone

A fused consumer may read other values too: a bias, a residual. All outputs of a group have one shape, so that one loop
nest writes them; a group never needs something that is made from its own results outside. Expensive producers are not
repeated for the many elements that a broadcast makes. A copy that is read by several groups (a slice, a split, a
broadcast) is repeated in each of them instead of being stored. A Cast that widens what another Cast made narrow, or
what others read as it is, goes with its readers; so does a DequantizeLinear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence

from weft.core import model
from weft.expr.nodes import Var
from weft.graph.interpreter import operator_of
from weft.graph.ir import Graph, Node, TensorType, Value, reads
from weft.graph.opspec import has
from weft.graph.passes.algorithms import asked
from weft.graph.shapes import follows, same_shape, typical

NARROWING = {"Cast": "Cast", "DequantizeLinear": "QuantizeLinear"}
"""Operators that may widen a value, and what makes a narrow one for them."""

APART = "apart before"
"""How the places are called where a kernel may end and another begin, by the value behind it."""

CanCompile = Callable[[Node], bool]
Streams = Callable[[int, int], bool]
"""For rows and elements of a row: whether a product with constants takes what makes them."""


class Group:
    """Nodes that become one kernel, in order. `kind` is injective, reduction, complex, opaque or host.

    `inputs` are the values it reads (constants that only decide shapes are not among them), `outputs` those that are
    needed outside; `anchor` is the reduction or the complex node that the schedule turns on, if there is one.
    """

    __slots__ = ("nodes", "inputs", "outputs", "kind", "anchor")

    def __init__(
        self, nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value], kind: str, anchor: Node | None
    ) -> None:
        self.nodes = tuple(nodes)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.kind = kind
        self.anchor = anchor

    @property
    def is_view(self) -> bool:
        """Whether it is a lone Reshape: the bytes of its output are those of its input."""
        return len(self.nodes) == 1 and self.kind != "host" and _is_view(self.nodes[0])

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(n.op for n in self.nodes)}) -> {', '.join(v.name for v in self.outputs)}"


def fuse(
    graph: Graph,
    can_compile: CanCompile | None = None,
    most_nodes: int = model.MOST_FUSED_NODES,
    streams: Streams | None = None,
) -> list[Group]:
    """The groups of a graph, each after those that it reads. Types must be inferred. most_nodes=1 fuses nothing."""
    return _Fusion(graph, can_compile or compilable(graph), most_nodes, streams).groups()


def compilable(graph: Graph) -> CanCompile:
    """The plain test for a kernel: a tensor expression, shapes of numbers and open sizes, known shape operands and
    element types.
    """
    sizes = set(graph.symbols.values())

    def test(node: Node) -> bool:
        spec = operator_of(node)
        if spec.compute is None or node.graphs:
            return False
        for at, value in enumerate(node.inputs):
            if value is not None and at in spec.shape_inputs:
                if value not in graph.constants:
                    return False
            elif value is not None and not _has_kernel_type(value, sizes):
                return False
        return all(_has_kernel_type(value, sizes) for value in node.outputs)

    return test


def _has_kernel_type(value: Value, sizes: Collection[Var]) -> bool:
    return isinstance(value.type, TensorType) and value.type.core is not None and follows(value.type, sizes)


def _is_view(node: Node) -> bool:
    return has(node, "reshapes")


def _only_unit_sizes(node: Node) -> bool:
    """Whether a reshape only adds or drops sizes of 1: then its index arithmetic costs nothing."""
    source = node.inputs[0]
    if source is None:
        return False
    before, after = ([d for d in v.tensor.dims if not isinstance(d, int) or d != 1] for v in (source, node.outputs[0]))
    return same_shape(before, after)


def _size(value: Value) -> int:
    return math.prod(typical(value.tensor.dims))


class _Draft:
    """A group while it grows. Compared by identity."""

    __slots__ = ("nodes", "kind", "anchor", "first", "last")

    def __init__(self, node: Node, kind: str, at: int) -> None:
        self.nodes = [node]
        self.kind = kind
        self.anchor = node if kind in ("reduction", "complex") else None
        self.first = self.last = at

    @property
    def is_expensive(self) -> bool:
        return not all(has(n, "cheap") for n in self.nodes)


class _Fusion:
    """One cut of a graph: nodes in order, each joined to the groups that make what it reads."""

    def __init__(self, graph: Graph, can_compile: CanCompile, most_nodes: int, streams: Streams | None) -> None:
        self.graph, self.streams = graph, streams
        self.can_compile = can_compile
        self.sizes = set(graph.symbols.values())
        self.most_nodes = most_nodes
        self.order = {node: at for at, node in enumerate(graph.nodes)}
        self.producers = graph.producers()
        self.consumers = graph.consumers()
        self.wanted = set(graph.outputs)
        self.draft_of: dict[Node, _Draft] = {}

    def groups(self) -> list[Group]:
        for at, node in enumerate(self.graph.nodes):
            self.place(node, at)
        drafts = list(dict.fromkeys(self.draft_of[node] for node in self.graph.nodes))
        return self.repeat_copies([self.finish(draft) for draft in self.ordered(drafts)])

    # ------------------------------------------------------------------------------------------------ joining

    def place(self, node: Node, at: int) -> None:
        """Gives a node its group: its own, with the groups of its producers that fit taken in."""
        own = operator_of(node).kind_of(node) if self.can_compile(node) else "host"
        kind = "injective" if own == "elementwise" else own
        draft = _Draft(node, kind, at)
        self.draft_of[node] = draft
        if kind == "complex" and (other := self.rows_of(node)) is not None:
            self.merge(other, draft)
        if kind not in ("injective", "reduction") or (_is_view(node) and not _only_unit_sizes(node)):
            return
        if self.widens_stored(node):
            return
        before = self.drafts_before([node])
        if self.most_nodes > 1 and any(one.kind not in ("host", "opaque") for one in before):
            if asked(f"{APART} {node.outputs[0].name}", "fused", "apart") == "apart":
                return
        if own == "elementwise":
            for other in sorted((d for d in before if d.anchor is not None), key=lambda d: -d.last):
                if self.takes_epilogue(other, node) and self.fits(other, draft):
                    draft = self.merge(other, draft)
                    break
        for other in sorted((d for d in before if d.kind == "injective"), key=lambda d: -d.last):
            if other is not draft and self.is_producer(other, node, draft) and self.fits(other, draft):
                draft = self.merge(other, draft)
        for other in self.drafts_before(draft.nodes) if own == "elementwise" and draft.anchor is None else ():
            if other.anchor is not None and self.takes_turns(other, draft) and self.fits(other, draft):
                draft = self.merge(other, draft)
                break

    def takes_turns(self, product: _Draft, draft: _Draft) -> bool:
        """Whether a group takes all that a product of few rows makes by slices, each of every so many-th column."""
        made, ends = self.outputs(product.nodes), self.outputs(draft.nodes)
        if product.anchor is None or not self.is_streamed(product.anchor) or len(made) > 1 or len(ends) > 1:
            return False
        wanted, constants = [[-1], [_size(made[0]) // max(1, _size(ends[0]))]], self.graph.constants
        readers = self.consumers[made[0]]
        steps = [
            [v is not None and v in constants and constants[v].tolist() for v in one.inputs[3:]] for one in readers
        ]
        inside = all(one in draft.nodes and one.op == "Slice" for one in readers)
        return inside and all(step == wanted for step in steps)

    def is_streamed(self, node: Node) -> bool:
        """Whether a node is a product of so few rows with constants that a target reads these once, in every block."""
        x, weight = [*node.inputs, None, None][:2]
        if self.streams is None or self.most_nodes == 1 or x is None or weight not in self.graph.constants:
            return False
        given, made = x.tensor.dims, node.outputs[0].tensor.dims
        sizes = [size for size in given if isinstance(size, int)]
        if has(node, "convolution", "recurrent", "attention") or not same_shape(given[:-1], made[:-1]):
            return False
        known = bool(given) and len(sizes) == len(given) and len(node.outputs) == 1
        return known and self.streams(math.prod(sizes[:-1]), sizes[-1])

    def rows_of(self, node: Node) -> _Draft | None:
        """The group that makes the few rows of a product with constants, for nobody else; None where there is none."""
        x = node.inputs[0] if node.inputs else None
        maker = None if x is None or not self.is_streamed(node) else self.producers.get(x)
        if x is None or maker is None:
            return None
        draft = self.draft_of[maker]
        anchor = draft.anchor.inputs[0] if draft.kind == "reduction" and draft.anchor is not None else x
        views = any(_is_view(n) and not _only_unit_sizes(n) for n in draft.nodes) or self.is_shared_copy(draft)
        if draft.kind not in ("injective", "reduction") or views or len(draft.nodes) >= self.most_nodes:
            return None
        if anchor is None or not same_shape(anchor.tensor.dims, x.tensor.dims):
            return None
        return draft if self.consumers[x] == [node] and self.outputs(draft.nodes) == [x] else None

    def widens_stored(self, node: Node) -> bool:
        """Whether a node widens what is stored narrow: it stands with its readers then, so that just that is stored."""
        source = node.inputs[0] if node.op in NARROWING and not node.domain else None
        if source is None or source.tensor.numpy.itemsize >= node.outputs[0].tensor.numpy.itemsize:
            return False
        maker = self.producers.get(source)
        return maker is not None and (maker.op == NARROWING[node.op] or len(self.consumers[source]) > 1)

    def drafts_before(self, nodes: Iterable[Node]) -> list[_Draft]:
        found: dict[_Draft, None] = {}
        for node in nodes:
            for value in reads(node):
                maker = self.producers.get(value)
                if maker is not None:
                    found[self.draft_of[maker]] = None
        return list(found)

    def takes_epilogue(self, draft: _Draft, node: Node) -> bool:
        """Whether an elementwise node may stand at the output of a reduction or a complex node."""
        if draft.anchor is None or len(node.outputs) != 1 or len(draft.anchor.outputs) != 1:
            return False
        shape = draft.anchor.outputs[0].tensor.dims
        read = [v for v in node.inputs if v is not None and self.producers.get(v) in draft.nodes]
        return all(same_shape(v.tensor.dims, shape) for v in (node.outputs[0], *read))

    def is_producer(self, draft: _Draft, node: Node, into: _Draft) -> bool:
        """Whether an injective group may be computed where a node reads it."""
        if any(_is_view(n) and not _only_unit_sizes(n) for n in draft.nodes) or self.is_shared_copy(draft):
            return False
        if not draft.is_expensive:
            return True
        if has(node, "windowed", "joins"):
            return False
        made = {v for n in draft.nodes for v in n.outputs}
        least = min(_size(v) for v in node.inputs if v in made and v is not None)
        # The size at the end counts: that of an epilogue's anchor, or what a reduction reads.
        given = [v for v in node.inputs if v is not None]
        most = max(_size(v) for v in (*node.outputs, *given) if _has_kernel_type(v, self.sizes))
        return most <= model.MOST_REPEATS * max(least, 1)

    def fits(self, a: _Draft, b: _Draft) -> bool:
        """Whether two groups may be one: bounds, one shape of outputs, and no way out and back in."""
        nodes = [*a.nodes, *b.nodes]
        if len(nodes) > self.most_nodes or (a.anchor is not None and b.anchor is not None):
            return False
        if len(self.inputs(nodes)) > model.MOST_FUSED_INPUTS:
            return False
        shapes = [v.tensor.dims for v in self.outputs(nodes)]
        return all(same_shape(shapes[0], other) for other in shapes[1:]) and not self.makes_cycle(a, b, nodes)

    def makes_cycle(self, a: _Draft, b: _Draft, nodes: list[Node]) -> bool:
        first = min(a.first, b.first)
        seen = {a, b}
        waiting = [d for d in self.drafts_before(nodes) if d not in seen]
        while waiting:
            draft = waiting.pop()
            if draft in seen or draft.last < first:
                continue
            seen.add(draft)
            for before in self.drafts_before(draft.nodes):
                if before is a or before is b:
                    return True
                waiting.append(before)
        return False

    def merge(self, a: _Draft, b: _Draft) -> _Draft:
        """Puts b's nodes into a."""
        a.nodes = sorted([*a.nodes, *b.nodes], key=self.order.__getitem__)
        if b.anchor is not None:
            a.anchor, a.kind = b.anchor, b.kind
        a.first, a.last = min(a.first, b.first), max(a.last, b.last)
        for node in b.nodes:
            self.draft_of[node] = a
        return a

    # ------------------------------------------------------------------------------------------------ results

    def inputs(self, nodes: Sequence[Node]) -> list[Value]:
        """What a group reads from outside, without the constants that only decide shapes."""
        made = {v for n in nodes for v in n.outputs}
        found: dict[Value, None] = {}
        for node in nodes:
            decides, given = operator_of(node).shape_inputs, set(node.inputs)
            inside = {v for at, v in enumerate(node.inputs) if at not in decides or v not in self.graph.constants}
            for value in reads(node):
                known_shape = value in given and value not in inside
                if value not in made and not (known_shape and not node.graphs):
                    found[value] = None
        return list(found)

    def outputs(self, nodes: Sequence[Node]) -> list[Value]:
        inside = set(nodes)
        return [
            value
            for node in nodes
            for value in node.outputs
            if value in self.wanted or any(c not in inside for c in self.consumers.get(value, ()))
        ]

    def ordered(self, drafts: list[_Draft]) -> list[_Draft]:
        """Groups after those that they read, otherwise in the order of the graph."""
        out: list[_Draft] = []
        done: set[_Draft] = set()
        for root in sorted(drafts, key=lambda d: d.last):
            stack = [root]
            while stack:
                draft = stack[-1]
                missing = [d for d in self.drafts_before(draft.nodes) if d is not draft and d not in done]
                if draft in done:
                    stack.pop()
                elif missing:
                    stack += missing
                else:
                    done.add(draft)
                    out.append(stack.pop())
        return out

    def finish(self, draft: _Draft) -> Group:
        nodes = draft.nodes
        outputs = self.outputs(nodes)
        if draft.kind in ("host", "opaque"):
            outputs = list(nodes[0].outputs)
        return Group(nodes, self.inputs(nodes), outputs, draft.kind, draft.anchor)

    # ------------------------------------------------------------------------------------------------ copies

    def is_shared_copy(self, draft: _Draft) -> bool:
        """Whether a group is one copy with several readers: it is repeated in each of them at the end."""
        node = draft.nodes[0]
        readers = {reader for value in node.outputs for reader in self.consumers.get(value, ())}
        return len(draft.nodes) == 1 and has(node, "slices") and len(readers) > 1

    def repeat_copies(self, groups: list[Group]) -> list[Group]:
        """Copies that stand alone move into the groups that read them; they stay for those that do not take them."""
        for group in [g for g in reversed(groups) if self.is_copy(g)]:
            made = set(group.outputs)
            readers = [g for g in groups if any(v in made for v in g.inputs)]
            replaced = {g: self.with_copy(g, group) for g in readers if self.takes_copy(g, group)}
            needed = [v for v in group.outputs if any(v in g.inputs for g in readers if g not in replaced)]
            kept = [Group(group.nodes, group.inputs, needed, group.kind, None)] if needed or not readers else []
            at = groups.index(group)
            groups = [*groups[:at], *kept, *(replaced.get(g, g) for g in groups[at + 1 :])]
        return groups

    def is_copy(self, group: Group) -> bool:
        node = group.nodes[0]
        alone = len(group.nodes) == 1 and group.kind == "injective"
        return alone and has(node, "slices") and not any(v in self.wanted for v in group.outputs)

    def takes_copy(self, group: Group, copy: Group) -> bool:
        if group.kind not in ("injective", "reduction", "complex") or group.is_view:
            return False
        many = len(self.inputs([*copy.nodes, *group.nodes])) > model.MOST_FUSED_INPUTS
        if many or len(group.nodes) >= self.most_nodes:
            return False
        made = set(copy.outputs)
        # A convolution or a window reads an element many times: better from memory.
        anchor = group.anchor
        many = anchor is not None and (group.kind == "complex" or has(anchor, "windowed"))
        return anchor is None or not many or made.isdisjoint(anchor.inputs)

    def with_copy(self, group: Group, copy: Group) -> Group:
        new = {value: Value(value.name, value.type) for value in copy.nodes[0].outputs}
        first = copy.nodes[0].replace(outputs=[new[v] for v in copy.nodes[0].outputs])
        rest = {n: n.replace(inputs=[None if v is None else new.get(v, v) for v in n.inputs]) for n in group.nodes}
        nodes = [first, *rest.values()]
        anchor = None if group.anchor is None else rest[group.anchor]
        return Group(nodes, self.inputs(nodes), group.outputs, group.kind, anchor)

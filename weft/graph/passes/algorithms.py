"""Other algorithms for the same operator: a convolution by Winograd's method, with its weight transformed ahead.

    %y = Conv(%x, const w, %b)     ->     %y = WinogradConv(%x, const u, const w, %b)       u: made from w now

What there is to choose from, and what it is worth on a machine, a callback says: `propose(node, weight)` gives the
alternatives for a node with a constant weight, the best first. An alternative may need a larger weight; all of them
together may let the constants of a model grow by a share (WEIGHT_GROWTH), and those that save most for each byte come
first.
Inside `choosing` some nodes get what somebody has measured to be better: one of the alternatives, or none of them; the
same goes for whatever else `asked` is asked about, anywhere in the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from weft.core import model
from weft.core.context import setting
from weft.graph.ir import Array, Graph, Node, Value
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.support import Replacement, Scope, rewrite


@dataclass(frozen=True)
class Alternative:
    """Another operator in a node's place: the same inputs but for the weight, for which stand those of `weights()`."""

    op: str
    domain: str
    attributes: Mapping[str, Any]
    weights: Callable[[], Sequence[Array]]
    saved: float
    """Time saved by it, in any unit that is the same for all alternatives; 0: only where somebody measured it."""
    extra_bytes: int
    """How much larger its weights are."""
    gaps: Sequence[int] = ()
    """It has a window without the gaps that the node's has, of so many places, and works on phases of the image."""

    @property
    def label(self) -> str:
        """What tells it from other alternatives of a node."""
        return f"{self.op} {self.attributes['tile']}" if "tile" in self.attributes else self.op


Propose = Callable[[Node, Array], Sequence[Alternative]]

DIRECT = "direct"
"""The label of a node that stays as it is."""

_ASKED: ContextVar[Mapping[str, str]] = ContextVar("algorithms", default=MappingProxyType({}))
_OFFERED: ContextVar[dict[str, list[str]] | None] = ContextVar("offered", default=None)


@contextmanager
def choosing(asked: Mapping[str, str], offered: dict[str, list[str]] | None = None) -> Iterator[None]:
    """Nodes that make the values named get the algorithm of that label; `offered` takes what there is for each node."""
    with setting(_ASKED, asked), setting(_OFFERED, offered):
        yield


def asked(name: str, *labels: str) -> str:
    """Which of some labels was chosen for a part of a model, the first where nobody has chosen; it is offered, too.

    Parts are values, whole models ("* layout"), and places where kernels may part ("apart before v").
    """
    if (noted := _OFFERED.get()) is not None:
        noted[name] = list(labels)
    found = _ASKED.get().get(name, labels[0])
    return found if found in labels else labels[0]


def is_measured(name: str) -> bool:
    """Whether somebody measures what there is for a part of a model, or has chosen: the unlikely is offered then."""
    return _OFFERED.get() is not None or name in _ASKED.get()


def choose_algorithms(graph: Graph, propose: Propose) -> Graph:
    """The graph with the alternatives that are worth it; the same object where there are none."""
    chosen = _choose(graph, propose)
    if not chosen:
        return graph

    def rule(node: Node, scope: Scope) -> Replacement:
        """The target says that another algorithm is faster, and its weight is worth the bytes."""
        found = chosen.get(node.outputs[0]) if scope.parent is None else None
        if found is None or node.inputs[1] is None:
            return None
        name = f"{node.inputs[1].name}_{found.op.lower()}"
        weights = [scope.new_constant(array, name) for array in found.weights()]
        image, rest = node.inputs[0], [*weights, *node.inputs[2:]]
        if not found.gaps:
            inputs = [image, *rest]
            return [Node(found.op, inputs, node.outputs, found.attributes, node.name, node.origin, found.domain)]
        assert image is not None
        phases = _phases(node, scope, image, found.gaps)
        made = scope.make(node, found.op, [phases, *rest], found.domain, **found.attributes)
        return [_joined(node, scope, made, found.gaps)]

    made, _ = rewrite(graph, rule)
    return infer(dead(made))


def _phases(node: Node, scope: Scope, image: Value, gaps: Sequence[int]) -> Value:
    """Every so manieth place of an image as an image of its own, one behind the other in the batch.

    %x[n, c, 28, 28], gaps of 2  ->  [n, c, 14, 2, 14, 2]  ->  [n, 2, 2, c, 14, 14]  ->  [4n, c, 14, 14]
    """
    batch, channels, *sides = image.tensor.static
    counts = [-(-n // gap) for n, gap in zip(sides, gaps)]
    behind = [count * gap - n for n, gap, count in zip(sides, gaps, counts)]
    if any(behind):
        widths = np.array([0] * (len(sides) + 4) + behind, np.int64)
        image = scope.make(node, "Pad", [image, scope.new_constant(widths, "widths")])
    rank = len(sides)
    apart = [batch, channels, *(n for pair in zip(counts, gaps) for n in pair)]
    order = [0, *range(3, 3 + 2 * rank, 2), 1, *range(2, 2 + 2 * rank, 2)]
    turned = scope.make(node, "Transpose", [_reshaped(node, scope, image, apart)], perm=order)
    return _reshaped(node, scope, turned, [batch * math.prod(gaps), channels, *counts])


def _joined(node: Node, scope: Scope, made: Value, gaps: Sequence[int]) -> Node:
    """The node that gives the places of phases in their order, as many as the node had."""
    (batch, channels, *sides), (_, _, *counts) = node.outputs[0].tensor.static, made.tensor.static
    rank = len(sides)
    apart = _reshaped(node, scope, made, [batch, *gaps, channels, *counts])
    order = [0, 1 + rank, *(at for axis in range(rank) for at in (2 + rank + axis, 1 + axis))]
    turned = scope.make(node, "Transpose", [apart], perm=order)
    whole = [batch, channels, *(count * gap for count, gap in zip(counts, gaps))]
    shape = scope.new_constant(np.array(whole, np.int64), "shape")
    if whole[2:] == sides:
        return Node("Reshape", [turned, shape], node.outputs, {}, node.name, node.origin)
    joined = scope.make(node, "Reshape", [turned, shape])
    ends = [scope.new_constant(np.array(n, np.int64), "part") for n in ([0] * rank, sides, range(2, 2 + rank))]
    return Node("Slice", [joined, *ends], node.outputs, {}, node.name, node.origin)


def _reshaped(node: Node, scope: Scope, value: Value, shape: Sequence[int]) -> Value:
    return scope.make(node, "Reshape", [value, scope.new_constant(np.array(shape, np.int64), "shape")])


def _choose(graph: Graph, propose: Propose) -> dict[Any, Alternative]:
    """For the outputs of nodes, what takes the node's place: the most saved for each byte first, while bytes last."""
    offers: list[tuple[Node, Sequence[Alternative]]] = []
    for node in graph.nodes:
        weight = graph.constants.get(node.inputs[1]) if _may_ask(node) else None  # type: ignore[arg-type]
        found = [] if weight is None else propose(node, weight)
        name = node.outputs[0].name
        if found and (noted := _OFFERED.get()) is not None:
            noted[name] = [DIRECT, *(one.label for one in found)]
        wanted = _ASKED.get().get(name)
        found = [one for one in found if (one.saved > 0 if wanted is None else one.label == wanted)]
        if found:
            offers.append((node, found))
    room = max(model.SMALL_GROWTH, int(model.WEIGHT_GROWTH * sum(array.nbytes for array in graph.constants.values())))
    chosen: dict[Any, Alternative] = {}
    for node, found in sorted(offers, key=lambda offer: -offer[1][0].saved / max(offer[1][0].extra_bytes, 1)):
        fits = [one for one in found if one.extra_bytes <= room]
        if fits:
            chosen[node.outputs[0]] = fits[0]
            room -= max(fits[0].extra_bytes, 0)
    return chosen


def _may_ask(node: Node) -> bool:
    return node.op == "Conv" and not node.domain and len(node.inputs) > 1 and node.inputs[1] is not None

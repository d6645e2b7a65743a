"""Channels that fill no whole vectors are made more, between the convolutions of a graph, where that is faster.

    %a = Conv(%x, w[120, 64, 3, 3])        %a: [1, 120, 28, 28]             %a: [1, 128, 28, 28], eight of them twice
    %r = Relu(%a)                      ->  the same operators, on           %r: the same channels twice
    %y = Conv(%r, v[40, 120, 1, 1])        v[40, 128, 1, 1]: a half of the weight for each of two

What is added are copies of channels, made by copies of the rows of a weight; the next convolution weighs a channel and
its copies with parts of its weight (1/2, 1/4, … of it, which are exact). So an added channel holds what its original
holds through any operator that treats channels apart, NaN and infinity included, and no sum gets a term that it had
not: zeros in the place of the copies would turn an infinity into NaN.

Values that operators tie together (what is added has as many channels as what it is added to, a Concat has those of
its parts) are one class, which is padded as a whole or not at all. Convolutions stand between classes. Where anything
else makes or reads a value (the caller, a Flatten), a copy stands at that edge: a Gather before, or a Slice behind.
What pays is chosen by what a target says that operators take with so many channels.

    %g = Conv(%a, w[208, 8, 3, 3], group 26)      the same, two groups in turns:
                                              ->  Conv(%a, w[208, 8, 3, 3], group 26, turns 2)

Convolutions in groups of a part of a vector want the channels of a class in another order: so many groups as fill a
vector take turns in it, and a vector of the image is a few neighbours, again and again. What is added is whole groups.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np

from weft.core.errors import WeftError
from weft.graph.interpreter import operator_of
from weft.graph.ir import Array, Graph, Node, TensorType, Value, dtype_name, reads
from weft.graph.opspec import Infer, has
from weft.graph.passes.dead import dead
from weft.graph.passes.infer import infer
from weft.graph.passes.simplify_movement import is_elementwise
from weft.graph.passes.support import Names
from weft.graph.shapes import in_turns

CHANNEL = 1

ROUNDING = 1e-9
"""Times that differ by less are the same."""

SMALLEST = 2.0**-100
"""Weights that are smaller, and not zero, are not divided into parts: the least parts would not be exact."""


@dataclass(frozen=True)
class Sides:
    """An operator with so many channels in its first input and in its result.

    Either is `inner` if it stays between kernels that work on channels: what the caller gives or gets, and what is
    computed from it or for it element by element alone, is not.
    """

    inputs: int
    outputs: int
    inner_input: bool
    inner_output: bool
    turns: int = 1
    """How many of its groups take turns."""


@dataclass(frozen=True)
class Prices:
    """What a target tells: the channels that fill a vector, and what work takes."""

    lanes: int
    seconds: Callable[[Node, Sides], float]
    copied: Callable[[int], float]
    """The seconds of a copy at an edge, for the elements that it reads and writes together."""
    least_saved: float
    """The share of the time that must be saved."""
    least_turned: float = 0.0
    """The same where groups take turns in what is padded."""


def pad_channels(graph: Graph, prices: Prices) -> Graph:
    """The graph with channels padded to whole vectors where that pays; the same object where it nowhere does."""
    classes = _Classes(graph, prices.lanes)
    chosen = _choose(classes, prices)
    return infer(dead(_Rewriting(classes, chosen).graph())) if chosen else graph


def padded(channels: int, lanes: int) -> int:
    """The next whole vectors of channels."""
    return -(-channels // lanes) * lanes


def sources(channels: int, count: int) -> Array:
    """For each of `count` channels the one that it is or copies: all in order, and again from the first."""
    return np.resize(np.arange(channels), count)


def parts(index: Array) -> Array:
    """The part of a weight for each of some channels, by what they copy; those of one are powers of two that make 1."""
    order = np.argsort(index, kind="stable")
    counts = np.bincount(index)
    turn = np.empty_like(index)
    turn[order] = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(0.5 ** np.minimum(turn + 1, counts[index] - 1), np.float32)


# ------------------------------------------------------------------------------------------------------------- classes


class _Sets:
    """Values in sets, which are joined."""

    def __init__(self) -> None:
        self.parents: dict[Value, Value] = {}

    def root(self, value: Value) -> Value:
        """The value that stands for a set."""
        while value in self.parents:
            value = self.parents[value]
        return value

    def join(self, first: Value, others: Iterable[Value]) -> None:
        """Makes the sets of some values one."""
        for value in others:
            if self.root(value) is not self.root(first):
                self.parents[self.root(value)] = self.root(first)


@dataclass(eq=False)
class _Class:
    """Values whose channels are padded together, and what their padding concerns."""

    nodes: dict[Node, None] = field(default_factory=dict)
    """Operators that keep its channels apart, and convolutions that make or read one of its values."""
    given: dict[Value, None] = field(default_factory=dict)
    """Values that something else makes."""
    taken: dict[Value, None] = field(default_factory=dict)
    """Values that something else reads, beside those."""
    wider: bool = False
    """Whether it gets more channels; else only their order is another."""
    turn: bool = False
    """Whether groups take turns in it; as it is, a block of its channels would mix groups, so it is stored plainly."""


class _Classes:
    """The classes of a graph's values: `of` has those that are padded or not, as is chosen."""

    def __init__(self, graph: Graph, lanes: int) -> None:
        self.graph = graph
        self.lanes = lanes
        self.mixers = {node for node in graph.nodes if self.is_mixer(node)}
        self.members: dict[Node, dict[int, int]] = {}
        """For operators that keep channels apart, the operands that have them, and in which dimension."""
        self.groups: dict[Value, int] = {}
        """The channels of a group, for values that convolutions in small groups tie together."""
        self.same, self.together = _Sets(), _Sets()
        """Values with the same channels; values that are padded together."""
        self.indices: dict[Value, Array] = {}
        self.of: dict[Value, _Class] = {}
        self.outer = {*graph.inputs, *graph.constants}
        self.inner: set[Value] = set()
        """Values that come from the caller without a convolution; values that go to more than the caller alone."""
        self.tie()
        self.collect()

    def tie(self) -> None:
        """Finds the operators that keep channels, and the values that they tie together."""
        for node in self.graph.nodes:
            along = {} if node in self.mixers else self.along(node)
            if along and self.keeps_type(node, along):
                self.members[node] = along
                self.same.join(node.outputs[0], self.tied(node))
        self.tie_groups()
        self.together.parents.update(self.same.parents)
        joints = [node for node in self.graph.nodes if self.is_joint(node)]
        waiting = Counter(self.same.root(node.outputs[0]) for node in joints)
        for node in joints:
            made, computed = node.outputs[0], [v for v in node.inputs if self.fits(v)]
            waiting[self.same.root(made)] -= 1
            # What a part is padded to must be known, and be the same as what another Concat says of its result.
            if any(waiting[self.same.root(part)] for part in computed):
                continue
            index = self.joined(node)
            whole = len(index) % self.lanes == 0
            if whole and np.array_equal(self.indices.setdefault(self.same.root(made), index), index):
                self.members[node] = dict.fromkeys(range(len(node.inputs)), CHANNEL)
                self.together.join(made, computed)

    def tie_groups(self) -> None:
        """Finds the convolutions in groups that can take turns, and the values that they tie together."""
        for node in self.graph.nodes:
            size = self.group_size(node)
            along = {at: CHANNEL if at == 0 else 0 for at, v in enumerate(node.inputs) if v is not None}
            if not size or not self.keeps_type(node, along):
                continue
            sides = [v for v in (node.inputs[0], node.outputs[0]) if v is not None]
            if all(self.groups.get(self.same.root(v), size) == size for v in sides):
                self.members[node] = along
                self.same.join(sides[1], sides[:1])
                self.groups[self.same.root(sides[1])] = size
        for root, size in self.groups.items():
            channels = root.tensor.static[CHANNEL]
            order = in_turns(padded(channels, self.lanes), size, self.lanes // size)
            self.indices[self.same.root(root)] = sources(channels, len(order))[order]

    def group_size(self, node: Node) -> int:
        """The channels of a group of a convolution of as many groups before as behind, where these are a part of a
        vector; 0 for any other operator."""
        weight = self.constant(node.inputs[1]) if node.op == "Conv" and not node.domain else None
        image, made = node.inputs[0] if node.inputs else None, node.outputs[0]
        if weight is None or weight.dtype != np.float32 or not self.all_constant(node, 2) or "turns" in node.attributes:
            return 0
        if not self.fits(image) or not self.fits(made):
            return 0
        size = int(weight.shape[1])
        same = image.tensor.static[CHANNEL] == made.tensor.static[CHANNEL]
        return size if same and 1 < size < self.lanes and self.lanes % size == 0 else 0

    def turns(self, node: Node) -> int:
        """How many groups of a convolution take turns in a vector where its channels are in another order; else 1."""
        size = self.group_size(node) if node in self.members else 0
        return self.lanes // size if size else 1

    def index(self, value: Value) -> Array:
        """What each channel of a padded value is a copy of."""
        channels = value.tensor.static[CHANNEL]
        return self.indices.setdefault(self.same.root(value), sources(channels, padded(channels, self.lanes)))

    def fits(self, value: Value | None) -> TypeGuard[Value]:
        """Whether a computed value has channels that could be padded."""
        return _is_image(value) and value not in self.graph.constants and value.tensor.static[CHANNEL] > 1

    def constant(self, value: Value | None) -> Array | None:
        """The array of a constant."""
        return None if value is None else self.graph.constants.get(value)

    # ------------------------------------------------------------------------------------------------ operators

    def is_mixer(self, node: Node) -> bool:
        """Whether a node is a convolution of float32 over all channels, with a weight that is known."""
        if node.op != "Conv" or node.domain or int(node.attributes.get("group", 1)) != 1:
            return False
        weight = self.constant(node.inputs[1])
        known = weight is not None and weight.dtype == np.float32 and self.all_constant(node, 2)
        return known and _is_image(node.inputs[0]) and _is_image(node.outputs[0])

    def is_joint(self, node: Node) -> bool:
        """Whether a node puts the channels of its inputs side by side."""
        made = node.outputs[0] if len(node.outputs) == 1 and node.op == "Concat" and not node.domain else None
        if made is None or not self.fits(made) or not all(map(_is_image, node.inputs)):
            return False
        return int(node.attributes.get("axis", 0)) % len(made.tensor.static) == CHANNEL

    def joined(self, node: Node) -> Array:
        """What each channel of a Concat is a copy of, where its parts are padded."""
        found: list[Array] = []
        offset = 0
        for part in node.inputs:
            assert part is not None
            found.append(offset + (self.index(part) if self.fits(part) else np.arange(part.tensor.static[CHANNEL])))
            offset += part.tensor.static[CHANNEL]
        return np.concatenate(found)

    def all_constant(self, node: Node, first: int) -> bool:
        """Whether a node's inputs from one on are constants or left out."""
        return all(v is None or v in self.graph.constants for v in node.inputs[first:])

    def along(self, node: Node) -> dict[int, int]:
        """The inputs that have the channels of a node's result, each in one dimension; none where it mixes channels."""
        if len(node.outputs) != 1 or node.graphs or not self.fits(node.outputs[0]) or has(node, "random"):
            return {}
        if node.domain:
            return {}  # whose operands and attributes may be of channels in ways of their own
        channels = node.outputs[0].tensor.static[CHANNEL]
        kind = operator_of(node).kind_of(node)
        if is_elementwise(node):
            return self.along_elements(node)
        first = node.inputs[0]
        if not self.fits(first) or first.tensor.static[CHANNEL] != channels:
            return {}
        if has(node, "reduces"):
            return {0: CHANNEL} if self.reduces_places(node, first) else {}
        depthwise = node.op == "Conv" and int(node.attributes.get("group", 1)) == channels
        if not (depthwise or (has(node, "channelwise") and kind != "opaque")) or not self.all_constant(node, 1):
            return {}
        sizes = set(operator_of(node).shape_inputs)
        others = {at: self.constant(v) for at, v in enumerate(node.inputs) if at and at not in sizes}
        return {0: CHANNEL} | {at: 0 for at, a in others.items() if a is not None and a.shape[:1] == (channels,)}

    def along_elements(self, node: Node) -> dict[int, int]:
        """The same for an elementwise operator: operands are lined up from the right, but for a vector of scales."""
        shape, found = node.outputs[0].tensor.static, {}
        for at, value in enumerate(node.inputs):
            if value is None:
                continue
            kind = value.type
            if not isinstance(kind, TensorType) or not kind.is_static or (len(kind.static) == 1 != kind.static[0]):
                return {}
            dimension = CHANNEL + len(kind.static) - len(shape)
            if dimension < 0 or kind.static[dimension] == 1:
                continue
            if kind.static[dimension] != shape[CHANNEL] or not (value in self.graph.constants or dimension == CHANNEL):
                return {}
            found[at] = dimension
        return found

    def reduces_places(self, node: Node, first: Value) -> bool:
        """Whether a reduction goes over the pixels of each channel, and keeps their dimensions."""
        axes = self.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if axes is None or not axes.size or not int(node.attributes.get("keepdims", 1)):
            return False
        return all(int(axis) % len(first.tensor.static) > CHANNEL for axis in axes.reshape(-1))

    def tied(self, node: Node) -> list[Value]:
        """The computed operands that have the channels of a node's result."""
        values = [node.inputs[at] for at in self.members[node]]
        return [v for v in values if v is not None and v not in self.graph.constants]

    def keeps_type(self, node: Node, along: dict[int, int]) -> bool:
        """Whether the result of a node has more channels where its operands have more: sizes may be told as numbers."""
        if all(node.inputs[at] in self.graph.constants for at in along):
            return False
        made = node.outputs[0].tensor
        count = made.static[CHANNEL] + self.lanes
        types = [
            None if v is None else _with(v.tensor, along[at], count) if at in along else v.type
            for at, v in enumerate(node.inputs)
        ]
        values = [None if at in along else self.constant(v) for at, v in enumerate(node.inputs)]
        try:
            (found,) = operator_of(node).types(Infer(grouped(node, count), types, values))
        except WeftError:
            return False
        wanted = _with(made, CHANNEL, count).static
        return isinstance(found, TensorType) and found.is_static and found.static == wanted

    # ------------------------------------------------------------------------------------------------ collecting

    def collect(self) -> None:
        """Finds what concerns each class."""
        classes: dict[Value, _Class] = {}
        for value in [*self.graph.inputs, *(v for node in self.graph.nodes for v in node.outputs)]:
            if self.fits(value):
                self.of[value] = classes.setdefault(self.together.root(value), _Class())
                self.of[value].turn |= self.same.root(value) in self.groups
        made = {node.outputs[0] for node in (*self.mixers, *self.members)}
        for value, own in self.of.items():
            if value not in made:
                own.given[value] = None
            elif value in self.graph.outputs:
                own.taken[value] = None
        for node in self.graph.nodes:
            first = [node.inputs[0]] if node in self.mixers else self.tied(node) if node in self.members else []
            for value in reads(node):
                if value in self.of and value not in first and value in made:
                    self.of[value].taken[value] = None
            for value in (*first, *node.outputs) if first else ():
                if value in self.of:
                    self.of[value].nodes[node] = None
        self.find_inner()
        for value, own in self.of.items():
            own.wider |= len(self.index(value)) > value.tensor.static[CHANNEL]
        useful = {
            own
            for own in self.of.values()
            if (own.wider or own.turn) and any(node in self.mixers for node in own.nodes)
        }
        self.of = {value: own for value, own in self.of.items() if own in useful}
        stuck = {self.of.get(node.inputs[0]) for node in self.mixers if not self.divides(node)}  # type: ignore[arg-type]
        self.of = {value: own for value, own in self.of.items() if own not in stuck}

    def divides(self, node: Node) -> bool:
        """Whether the weight of a convolution over a padded value can be divided into parts exactly."""
        weight = self.constant(node.inputs[1])
        if weight is None or node.inputs[0] not in self.of:
            return True
        size = np.abs(weight)
        return bool(np.isfinite(size).all() and not ((size > 0) & (size < SMALLEST)).any())

    def find_inner(self) -> None:
        """Finds the values that stay between kernels."""
        for node in self.graph.nodes:
            if not has(node, "convolution") and all(value in self.outer for value in reads(node)):
                self.outer.update(node.outputs)
        for node in reversed(self.graph.nodes):
            if node in self.mixers:
                self.inner.add(node.inputs[0])  # type: ignore[arg-type]
            elif node in self.members and (node.outputs[0] in self.inner or not is_elementwise(node)):
                self.inner.update(self.tied(node))

    def sides(self, node: Node) -> tuple[_Class | None, _Class | None]:
        """The classes of what a node reads and of what it makes; None where those are never padded."""
        made = self.of.get(node.outputs[0])
        if node in self.mixers:
            return self.of.get(node.inputs[0]), made  # type: ignore[arg-type]
        return made, made


def _is_image(value: Value | None) -> TypeGuard[Value]:
    """Whether a value has channels, and pixels in each."""
    kind = None if value is None else value.type
    return isinstance(kind, TensorType) and kind.is_static and len(kind.static) >= 3 and 0 not in kind.static


def grouped(node: Node, count: int, turns: int = 1) -> Node:
    """A node that keeps channels apart, for so many: a convolution has more groups, of as many channels as before."""
    if not has(node, "convolution") or node.inputs[1] is None:
        return node
    groups = count // node.inputs[1].tensor.static[1]
    return node.replace(attributes={**node.attributes, "group": groups, **({"turns": turns} if turns > 1 else {})})


def _with(kind: TensorType, dimension: int, count: int) -> TensorType:
    """A type with so many elements in one dimension."""
    sizes = list(kind.static)
    sizes[dimension] = count
    return TensorType(kind.dtype, sizes)


# -------------------------------------------------------------------------------------------------------------- choice


def _choose(classes: _Classes, prices: Prices) -> set[_Class]:
    """The classes that are padded: of those that convolutions connect, those with which the whole takes least."""
    chosen: set[_Class] = set()
    cost = _Cost(classes, prices)
    for connected in _connected(classes):
        tries = [cost.descend(connected, start) for start in (connected, ())]
        found = min(tries, key=lambda one: cost.of(one, connected))
        least = prices.least_turned if any(own.turn for own in found) else prices.least_saved
        if cost.of(found, found) < (1 - least * any(own.wider for own in found)) * cost.of((), found):
            chosen |= found
    return chosen


def _connected(classes: _Classes) -> Iterator[list[_Class]]:
    """Classes that convolutions connect."""
    seen: set[_Class] = set()
    for first in dict.fromkeys(classes.of.values()):
        found, waiting = [], [first]
        while waiting:
            own = waiting.pop()
            if own not in seen:
                seen.add(own)
                found.append(own)
                waiting += [side for node in own.nodes for side in classes.sides(node) if side is not None]
        if found:
            yield found


class _Cost:
    """What operators and copies take where some classes are padded."""

    def __init__(self, classes: _Classes, prices: Prices) -> None:
        self.classes = classes
        self.prices = prices
        self.known: dict[tuple[Node, Sides], float] = {}

    def descend(self, connected: list[_Class], start: Collection[_Class]) -> set[_Class]:
        """Classes are padded, or no longer, one at a time, while that takes less."""
        chosen, again = set(start), True
        while again:
            again = False
            for own in connected:
                if self.of(chosen ^ {own}, [own]) < (1 - ROUNDING) * self.of(chosen, [own]):
                    chosen ^= {own}
                    again = True
        return chosen

    def of(self, chosen: Collection[_Class], concerned: Collection[_Class]) -> float:
        """Seconds of all that some classes concern."""
        nodes = dict.fromkeys(node for own in concerned for node in own.nodes)
        copies = sum(self.copies(own) for own in concerned if own in chosen)
        return sum(self.node(node, chosen) for node in nodes) + copies

    def node(self, node: Node, chosen: Collection[_Class]) -> float:
        """Seconds of an operator."""
        image, made = node.inputs[0], node.outputs[0]
        assert image is not None
        counts = [
            len(self.classes.index(v)) if own in chosen else v.tensor.static[CHANNEL]
            for v, own in zip((image if node in self.classes.mixers else made, made), self.classes.sides(node))
        ]
        is_plain = [own is not None and own.turn and own not in chosen for own in self.classes.sides(node)]
        read, taken = image not in self.classes.outer, made in self.classes.inner
        turns = 1 if is_plain[1] else self.classes.turns(node)
        sides = Sides(counts[0], counts[1], read and not is_plain[0], taken and not is_plain[1], turns)
        if (node, sides) not in self.known:
            self.known[node, sides] = self.prices.seconds(node, sides)
        return self.known[node, sides]

    def copies(self, own: _Class) -> float:
        """Seconds of the copies at the edges of a class that is padded."""
        total = 0.0
        for value in (*own.given, *own.taken):
            channels, count = value.tensor.static[CHANNEL], len(self.classes.index(value))
            pixels = math.prod(value.tensor.static) // channels
            total += self.prices.copied(pixels * (channels + (count if value in own.given else channels)))
        return total


# ----------------------------------------------------------------------------------------------------------- rewriting


class _Rewriting:
    """A graph with the chosen classes padded."""

    def __init__(self, classes: _Classes, chosen: set[_Class]) -> None:
        self.classes = classes
        self.chosen = chosen
        self.names = Names(classes.graph)
        self.constants = dict(classes.graph.constants)
        self.arrays: dict[tuple[Value, int, bytes], Value] = {}
        self.values: dict[Value, Value] = {}

    def graph(self) -> Graph:
        """The padded graph."""
        given = self.classes.graph
        nodes = [self.widened(v) for v in given.inputs if self.count(v)]
        for node in given.nodes:
            known = node in self.classes.mixers or node in self.classes.members
            nodes.append(self.padded(node) if known else node)
            for value in filter(self.count, node.outputs):
                if not known:
                    nodes.append(self.widened(value))
                elif value in self.classes.of[value].taken:
                    nodes.append(self.narrowed(value))
        return given.replace(nodes=nodes, constants=self.constants)

    def count(self, value: Value | None) -> int:
        """The padded channels of a value; 0 where it stays as it is."""
        return len(self.classes.index(value)) if value and self.classes.of.get(value) in self.chosen else 0

    def value(self, value: Value) -> Value:
        """A value with its padded channels, where it has them."""
        if not self.count(value):
            return value
        if value not in self.values:
            kind = _with(value.tensor, CHANNEL, self.count(value))
            self.values[value] = Value(self.names.fresh(f"{value.name}_padded"), kind)
        return self.values[value]

    def new(self, array: Array, name: str) -> Value:
        """A new constant."""
        value = Value(self.names.fresh(name), TensorType(dtype_name(array.dtype), array.shape))
        self.constants[value] = array
        return value

    def widened(self, value: Value) -> Node:
        """The copy with more channels of what comes from outside."""
        return self.gather(value, self.classes.index(value), self.value(value))

    def narrowed(self, value: Value) -> Node:
        """The copy of the channels, once each, for what reads a value as it was."""
        channels = value.tensor.static[CHANNEL]
        _, firsts = np.unique(self.classes.index(value), return_index=True)
        if not np.array_equal(firsts, np.arange(channels)):
            return self.gather(self.value(value), firsts, value)
        ends = [self.new(np.array([n], np.int64), f"{value.name}_channels") for n in (0, channels, CHANNEL)]
        return Node("Slice", [self.value(value), *ends], [value], {}, f"{value.name}_narrowed")

    def gather(self, value: Value, channels: Array, made: Value) -> Node:
        """A copy of some channels."""
        index = self.new(channels.astype(np.int64), f"{value.name}_channels")
        return Node("Gather", [value, index], [made], {"axis": CHANNEL}, f"{made.name}_channels")

    def padded(self, node: Node) -> Node:
        """An operator with the operands and the result that it has now."""
        made = self.count(node.outputs[0])
        outputs = [self.value(node.outputs[0])]
        if node in self.classes.mixers:
            return node.replace(inputs=self.mixer_inputs(node, made), outputs=outputs)
        if not made:
            return node
        along = {} if self.classes.is_joint(node) else self.classes.members[node]
        index = self.classes.index(node.outputs[0])
        inputs = [
            v if v is None else self.operand(v, along[at], index) if at in along else self.value(v)
            for at, v in enumerate(node.inputs)
        ]
        return grouped(node, made, self.classes.turns(node)).replace(inputs=inputs, outputs=outputs)

    def operand(self, value: Value, dimension: int, index: Array) -> Value:
        """An operand that has the channels in a dimension."""
        array = self.classes.constant(value)
        if array is None:
            return self.value(value)
        key = (value, dimension, index.tobytes())
        if key not in self.arrays:
            self.arrays[key] = self.new(np.take(array, index, axis=dimension), f"{value.name}_padded")
        return self.arrays[key]

    def mixer_inputs(self, node: Node, made: int) -> list[Value | None]:
        """The inputs of a convolution: rows of its weight copied, columns copied and divided among the copies."""
        image, weight, *bias = node.inputs
        array = self.classes.constant(weight)
        assert image is not None and weight is not None and array is not None
        taken = self.count(image)
        if made:
            index = self.classes.index(node.outputs[0])
            array = array[index]
            bias = [None if v is None else self.operand(v, 0, index) for v in bias]
        if taken:
            index = self.classes.index(image)
            array = array[:, index] * parts(index).reshape(-1, *[1] * (array.ndim - 2))
        new = self.new(array, f"{weight.name}_padded") if made or taken else weight
        return [self.value(image), new, *bias]

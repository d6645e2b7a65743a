"""Layouts for the whole graph: which values between kernels are stored in blocks of channels, and inside a border.

    %a = Conv(%x, …)            %a: float32[1, 64, 56, 56]      stored as [1, 4, 58, 58, 16]: blocks of 16 channels, and
    %b = Conv(%a, pads 1)                                       the zeros around the image that the next window reads

In: the groups of a graph. Out: the groups, and a `Layout` for each value that is not stored plainly. A value lies in
blocks where the group that makes it works on channels apart (a convolution, a pooling, or elementwise work on such
values). A target whose convolutions are matrix products of narrow numbers has one block of all channels, and no border:
the last dimension is then what such a product reads along. Groups that cannot read it so, the host and the caller get a
plain copy: one more group, a conversion, which stands only where maker and reader differ. Inputs and outputs of the
model are plain.

The program of a kernel stays the same in any layout: its loads and stores change (schedule/primitives/domain.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from weft.core import model
from weft.graph.interpreter import operator_of
from weft.graph.ir import Dim, Graph, Node, TensorType, Value
from weft.graph.opspec import has
from weft.graph.passes.fuse import Group
from weft.graph.shapes import divided, follows, plus, same_shape

CHANNEL = 1
"""The dimension of channels."""

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Layout:
    """How a value lies in memory: blocks of `factor` channels (1: whole), `border` elements around each dimension.

    `fill` is the number in the border.
    """

    factor: int
    border: tuple[tuple[int, int], ...]
    fill: int = 0

    def shape(self, sizes: Sequence[Dim]) -> tuple[Dim, ...]:
        """The sizes of the array that holds it; those of channels are numbers."""
        padded = [plus(size, before + after) for size, (before, after) in zip(sizes, self.border)]
        if self.factor == 1:
            return tuple(padded)
        padded[CHANNEL] = divided(padded[CHANNEL], self.factor)
        return (*padded, self.factor)

    def stored(self, kind: TensorType) -> TensorType:
        """The type of the array that holds a value of a type."""
        return TensorType(kind.dtype, self.shape(kind.dims))


@dataclass(frozen=True)
class Laid:
    """Groups with conversions between them, the layouts of values, and for a value that was added the plain one."""

    groups: list[Group]
    layouts: dict[Value, Layout]
    plain: dict[Value, Value]


def choose_layouts(
    graph: Graph, groups: Sequence[Group], lanes: int, fixed: Collection[Value] = (), tile: int = 1, narrow: int = 0,
    deep: int = 0, together: Collection[str] = (),
) -> Laid:  # fmt: skip
    """The layouts of a graph's values. `lanes` is the widest block of float32; narrower elements have larger ones.

    `fixed` are values that must stay plain; `tile` is how many places of a row the target's matrix instructions take.
    Of elements of at most `narrow` bytes the target multiplies several channels of a place at once, `deep` bytes of
    them where that is less than a register. Of the types in
    `together` all channels are one block, and nothing else is in blocks.
    """
    if together:
        return _Whole(graph, groups, fixed, together).choose()
    if lanes < model.LEAST_BLOCK:
        return Laid(list(groups), {}, {})
    return _Chooser(graph, groups, lanes, fixed, tile, narrow, deep).choose()


class _Chooser:
    def __init__(
        self, graph: Graph, groups: Sequence[Group], lanes: int, fixed: Collection[Value], tile: int, narrow: int,
        deep: int = 0,
    ) -> None:  # fmt: skip
        self.groups = groups
        self.sizes = set(graph.symbols.values())
        self.lanes = lanes
        self.tile = tile
        self.narrow = narrow
        self.deep = deep
        self.readers: dict[Value, list[Group]] = {}
        for group in groups:
            for value in group.inputs:
                self.readers.setdefault(value, []).append(group)
        self.wanted = set(graph.outputs)
        self.inputs = [value for value in graph.inputs if deep and value not in fixed]
        self.plain = {*graph.inputs, *graph.constants, *fixed}

    def choose(self) -> Laid:
        """Blocks spread from the groups that make them to all that take them."""
        blocked: dict[Value, int] = {}
        copies: dict[Value, Value] = {}
        for value in self.inputs:
            factor = self.factor(value)
            if factor and self.is_convolved(value):
                blocked[value], copies[value] = factor, Value(f"{value.name}_blocks", value.type)
        for group in self.groups:
            for value in group.outputs:
                factor = self.block(value)
                if not factor or not (self.makes(group, value, blocked) or self.feeds(group, value)):
                    continue
                takers = [g for g in self.readers.get(value, ()) if self.takes(g, value)]
                if len(takers) == len(self.readers.get(value, ())) and takers and value not in self.wanted:
                    blocked[value] = factor
                elif takers or self.turns_back(group, value):
                    blocked[value] = factor
                    copies[value] = Value(f"{value.name}_blocks", value.type)
        layouts = {copies.get(v, v): self.layout(v, factor) for v, factor in blocked.items()}
        groups = self.converted(copies)
        return Laid(groups, _with_common_borders(groups, layouts), {new: old for old, new in copies.items()})

    def converted(self, copies: Mapping[Value, Value]) -> list[Group]:
        """The groups with the values in blocks under names of their own, and conversions behind their makers."""
        if not copies:
            return list(self.groups)
        into = [(value, copies[value]) for value in self.inputs if value in copies]
        made = [Group([Node("Identity", [old], [new])], [old], [new], "injective", None) for old, new in into]
        for group in self.groups:
            own = {v: copies[v] for v in group.outputs if v in copies}
            taken = {v: copies[v] for v in group.inputs if v in copies and self.takes(group, v)}
            made.append(_renamed(group, {**own, **taken}) if own or taken else group)
            for plain, blocks in own.items():
                if plain in self.wanted or any(not self.takes(g, plain) for g in self.readers.get(plain, ())):
                    made.append(Group([Node("Identity", [blocks], [plain])], [blocks], [plain], "injective", None))
        return made

    def block(self, value: Value) -> int:
        """The block that a value's channels divide into; 0 where it has none."""
        return 0 if value in self.plain else self.factor(value)

    def factor(self, value: Value) -> int:
        """The same, for values of the caller's too."""
        kind = value.type
        if not _images(value) or not isinstance(kind, TensorType) or not follows(kind, self.sizes) or 0 in kind.dims:
            return 0
        widest = self.lanes * max(1, FLOAT_BYTES // _bytes(kind))
        factor = math.gcd(channels_of(value), self.deep if self.deep and _bytes(kind) <= self.narrow else widest)
        return factor if factor >= model.LEAST_BLOCK else 0

    def apart(self, node: Node) -> bool:
        """Whether a node works on channels apart."""
        return _is_channelwise(node)

    def makes(self, group: Group, value: Value, blocked: Mapping[Value, int]) -> bool:
        """Whether a group writes the channels of one of its values in blocks."""
        if group.kind in ("host", "opaque") or group.is_view or not all(map(self.apart, group.nodes)):
            return False
        if group.anchor is not None and _mixes_channels(group.anchor):
            return True
        large = [v for v in group.inputs if _images(v) and v not in self.plain]
        return bool(large) and all(v in blocked for v in large)

    def feeds(self, group: Group, value: Value) -> bool:
        """Whether only convolutions that multiply several channels at once read what a group moves."""
        return group.kind == "injective" and not group.is_view and self.is_convolved(value)

    def turns_back(self, group: Group, value: Value) -> bool:
        """Whether what the caller gets is better made in blocks first, and turned by a kernel of its own."""
        return False

    def is_convolved(self, value: Value) -> bool:
        """Whether only such convolutions read a value."""
        readers = self.readers.get(value, ())
        if not readers or value in self.wanted or _bytes(value.tensor) > self.narrow:
            return False
        return all(
            r.anchor is not None
            and has(r.anchor, "bordered")
            and _mixes_channels(r.anchor)
            and r.anchor.inputs[0] is value
            for r in readers
        )

    def takes(self, group: Group, value: Value) -> bool:
        """Whether a group reads the channels of a value in blocks as well as whole."""
        if group.kind in ("host", "opaque") or group.is_view or not all(map(self.apart, group.nodes)):
            return False
        return group.anchor is None or not has(group.anchor, "convolution") or self.convolves(group.anchor)

    def convolves(self, anchor: Node) -> bool:
        """Whether a convolution reads channels in blocks as well as whole."""
        channels, groups = channels_of(anchor.outputs[0]), int(anchor.attributes.get("group", 1))
        groups //= int(anchor.attributes.get("turns", 1))
        if 1 < groups < channels and channels // groups % self.lanes:
            return False  # a block would be of several groups, which read different channels
        # A convolution to a few channels has its lanes along a row of the image.
        return math.gcd(channels, self.lanes) >= model.LEAST_BLOCK

    def layout(self, value: Value, factor: int) -> Layout:
        """Blocks of `factor` channels, inside the border that the windows over a value read around it."""
        takers = [group for group in self.readers.get(value, ()) if self.takes(group, value)]
        windows = [n for group in takers for n in group.nodes if has(n, "bordered") and n.inputs[0] is value]
        fills = {int(node.attributes.get("border", 0)) for node in windows if any(map(any, _padding(node)))}
        widths = [[0, 0] for _ in value.tensor.dims]
        for node in windows:
            if len(fills) <= 1:
                for width, (before, after) in zip(widths[2:], _padding(node)):
                    width[0], width[1] = max(width[0], before), max(width[1], after)
            widths[-1][1] = max(widths[-1][1], self.room(node))
        fill = fills.pop() if len(fills) == 1 else 0
        return Layout(factor, tuple((before, after) for before, after in widths), fill)

    def room(self, node: Node) -> int:
        """The places behind a row that a convolution reads whose matrix instructions take whole tiles of places."""
        image, weight = node.inputs[:2]
        if self.tile == 1 or not has(node, "bordered") or not _mixes_channels(node) or _is_padded_by_size(node):
            return 0
        assert image is not None and weight is not None
        if _bytes(image.tensor) == FLOAT_BYTES or not (image.tensor.is_static and node.outputs[0].tensor.is_static):
            return 0
        step = int((node.attributes.get("strides") or [1])[-1])
        reach = (weight.tensor.static[-1] - 1) * int((node.attributes.get("dilations") or [1])[-1])
        places = tiled(node.outputs[0].tensor.static[-1], self.tile)
        before = _padding(node)[-1][0] if _padding(node) else 0
        return max(0, (places - 1) * step + reach - before - (image.tensor.static[-1] - 1))


class _Whole(_Chooser):
    """All channels of a place together."""

    def __init__(
        self, graph: Graph, groups: Sequence[Group], fixed: Collection[Value], together: Collection[str]
    ) -> None:
        super().__init__(graph, groups, model.LEAST_BLOCK, fixed, 1, 0)
        self.together = together

    def block(self, value: Value) -> int:
        """All of a value's channels, where they are whole vectors."""
        kind = value.type
        if value in self.plain or not _images(value) or not isinstance(kind, TensorType) or kind.core is None:
            return 0
        channels = channels_of(value)
        if kind.core.name not in self.together or not kind.is_static or 0 in kind.static:
            return 0
        if channels * kind.core.bytes % model.ROW_BYTES:
            return 0
        return channels

    def apart(self, node: Node) -> bool:
        """Whether a node works on channels apart, or on groups of them."""
        return _is_channelwise(node) or (has(node, "groups_channels") and _keeps_channels(node))

    def makes(self, group: Group, value: Value, blocked: Mapping[Value, int]) -> bool:
        """The same, or the group turns channels that lay last to where they belong, and works on them apart."""
        return super().makes(group, value, blocked) or (
            group.kind not in ("host", "opaque") and not group.is_view and self._turned(group, value, blocked)
        )

    def _turned(self, group: Group, value: Value, blocked: Mapping[Value, int]) -> bool:
        """Whether a value comes from turned ones, and from others whose channels lie together."""
        maker = next((node for node in group.nodes if value in node.outputs), None)
        if maker is None:
            return value in blocked
        if _turns(maker, to_last=False):
            return True
        large = [v for v in maker.inputs if v is not None and _images(v) and v not in self.plain]
        return self.apart(maker) and bool(large) and all(self._turned(group, v, blocked) for v in large)

    def takes(self, group: Group, value: Value) -> bool:
        """The same, or what the group makes of a value is at last turned, so that its channels are last."""
        if super().takes(group, value):
            return True
        if group.kind in ("host", "opaque") or group.is_view:
            return False
        channels_first = {value}
        for node in group.nodes:
            if channels_first.isdisjoint(node.inputs) or _turns(node, to_last=True):
                continue
            if not self.apart(node) or (has(node, "convolution") and not self.convolves(node)):
                return False
            channels_first.update(node.outputs)
        return True

    def choose(self) -> Laid:
        """The same; what turns channels that lie together to the end stands apart, since it moves nothing."""
        laid = super().choose()
        return Laid([new for g in laid.groups for new in _without_turns(g, laid.layouts)], laid.layouts, laid.plain)

    def convolves(self, anchor: Node) -> bool:
        """Whether a convolution reads channels together: one in groups of few has its channels apart."""
        groups, channels = int(anchor.attributes.get("group", 1)), channels_of(anchor.outputs[0])
        return groups in (1, channels) or channels // groups % self.lanes == 0

    def feeds(self, group: Group, value: Value) -> bool:
        """Whether convolutions read what a group moves or converts, and nobody who would rather have it plain."""
        readers = self.readers.get(value, ())
        is_norm = group.kind == "reduction" and all(map(self.apart, group.nodes))
        if not (group.kind == "injective" or is_norm) or group.is_view or value in self.wanted:
            return False
        return all(self.takes(r, value) for r in readers) and any(
            r.anchor is not None and _mixes_channels(r.anchor) and r.anchor.inputs[0] is value for r in readers
        )

    def turns_back(self, group: Group, value: Value) -> bool:
        """A convolution's rows are places: stored channel by channel, each element would be written alone."""
        return value in self.wanted and group.anchor is not None and _mixes_channels(group.anchor)

    def layout(self, value: Value, factor: int) -> Layout:
        """Nothing around it: a fetch beyond an edge gives zeros."""
        return Layout(factor, ((0, 0),) * len(value.tensor.dims))


def joins(group: Group) -> bool:
    """Whether a group only lays values one behind the other: a Concat along the first axis that is not 1."""
    node = group.nodes[0]
    if len(group.nodes) > 1 or (node.op, node.domain) != ("Concat", "") or group.kind == "host":
        return False
    dims, axis = node.outputs[0].tensor.dims, int(node.attributes.get("axis", 0))
    return all(size == 1 for size in dims[: axis % len(dims)]) and len(set(node.inputs)) == len(node.inputs)


def _with_common_borders(groups: Sequence[Group], layouts: Mapping[Value, Layout]) -> dict[Value, Layout]:
    """The layouts, with the border of a Concat around its parts, and theirs around it: nothing need be copied then."""
    found = dict(layouts)
    tied = [list(filter(None, (*g.nodes[0].inputs, *g.outputs))) for g in groups if joins(g)]
    tied = [values for values in tied if len({found[v].factor if v in found else 0 for v in values}) == 1]
    tied = [values for values in tied if values[0] in found]
    changed = bool(tied)
    while changed:
        before = dict(found)
        for values in tied:
            own = [found[value] for value in values]
            fills = {layout.fill for layout in own if any(map(any, layout.border))}
            if len(fills) == 1:
                sides = zip(*(layout.border for layout in own))
                border = tuple((max(a for a, _ in side), max(b for _, b in side)) for side in sides)
                found.update(dict.fromkeys(values, Layout(own[0].factor, border, *fills)))
        changed = found != before
    return found


def tiled(places: int, most: int) -> int:
    """How many places whole tiles of at most so many take, with the fewest tiles and none longer than needed."""
    tiles = -(-places // most)
    return tiles * -(-places // tiles)


def _bytes(kind: TensorType) -> int:
    return FLOAT_BYTES if kind.core is None else int(kind.core.bytes)


def _mixes_channels(anchor: Node) -> bool:
    """Whether a node makes blocks of channels from anything: a convolution that is not divided into groups."""
    return has(anchor, "convolution") and int(anchor.attributes.get("group", 1)) == 1


def _turns(node: Node, to_last: bool) -> bool:
    """Whether a node moves the channels of images behind their places, or from there to where they belong."""
    if node.op != "Transpose" or not _images(node.outputs[0]):
        return False
    rank = len(node.outputs[0].tensor.dims)
    last, first = [0, *range(2, rank), CHANNEL], [0, rank - 1, *range(1, rank - 1)]
    return list(node.attributes.get("perm") or range(rank)[::-1]) == (last if to_last else first)


def _is_whole(layout: Layout, channels: int) -> bool:
    """Whether all channels of a place lie together, and nothing lies between the places."""
    return layout.factor == channels and not any(map(any, layout.border))


def is_whole(value: Value, layouts: Mapping[Value, Layout]) -> bool:
    """Whether all channels of a place of a value lie together, if it has places."""
    return not _images(value) or (value in layouts and _is_whole(layouts[value], channels_of(value)))


def moves_nothing(group: Group, layouts: Mapping[Value, Layout]) -> bool:
    """Whether a group only turns channels to where they lie already, or from there: its bytes stay where they are."""
    node = group.nodes[0]
    source, made = node.inputs[0] if node.inputs else None, node.outputs[0]
    if len(group.nodes) > 1 or group.kind == "host" or source is None:
        return False
    whole = {v: v in layouts and _is_whole(layouts[v], channels_of(v)) for v in (source, made)}
    if whole[source] and made not in layouts:
        return _turns(node, to_last=True)
    return whole[made] and source not in layouts and _turns(node, to_last=False)


def _without_turns(group: Group, layouts: Mapping[Value, Layout]) -> list[Group]:
    """A group, and before it those of its nodes that move nothing."""
    first = [(n, v) for n in group.nodes for v in n.inputs[:1] if v is not None and v in layouts]
    turns = [Group([n], [v], n.outputs, "injective", None) for n, v in first]
    free = [g for g in turns if g.inputs[0] in group.inputs and moves_nothing(g, layouts) and len(group.nodes) > 1]
    if not free:
        return [group]
    gone = {node for one in free for node in one.nodes}
    made = [one.outputs[0] for one in free]
    nodes = [node for node in group.nodes if node not in gone]
    read = {v for node in nodes for v in node.inputs}
    inputs = [*(v for v in group.inputs if v in read), *(v for v in made if v in read)]
    rest = Group(nodes, inputs, [v for v in group.outputs if v not in made], group.kind, group.anchor)
    return [*free, rest] if rest.outputs else free


def _renamed(group: Group, names: Mapping[Value, Value]) -> Group:
    """A group that reads and makes values under other names."""
    nodes = {
        node: node.replace(
            inputs=[None if v is None else names.get(v, v) for v in node.inputs],
            outputs=[names.get(v, v) for v in node.outputs],
        )
        for node in group.nodes
    }
    anchor = None if group.anchor is None else nodes[group.anchor]
    inputs, outputs = ([names.get(v, v) for v in values] for values in (group.inputs, group.outputs))
    return Group(list(nodes.values()), inputs, outputs, group.kind, anchor)


def _is_padded_by_size(node: Node) -> bool:
    return str(node.attributes.get("auto_pad") or "NOTSET") != "NOTSET"


def _padding(node: Node) -> list[tuple[int, int]]:
    """The zeros that a window reads around its input; none where they follow from sizes."""
    if _is_padded_by_size(node):
        return []
    flat = [int(p) for p in node.attributes.get("pads") or []]
    rank = len(flat) // 2
    return list(zip(flat[:rank], flat[rank:])) if flat and min(flat) >= 0 else []


def _images(value: Value) -> bool:
    """Whether a value has channels, as many as a number says, and places."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None or len(kind.dims) < 3:
        return False
    return isinstance(kind.dims[CHANNEL], int) and any(size != 1 for size in kind.dims[2:])


def channels_of(value: Value) -> int:
    """How many channels an image has; 0 where no number says it."""
    count = value.tensor.dims[CHANNEL]
    return count if isinstance(count, int) else 0


def _is_channelwise(node: Node) -> bool:
    """Whether a node treats channels apart, or sums over them."""
    if node.op == "ConvInteger":
        return all(zero is None for zero in node.inputs[2:])
    if has(node, "convolution"):
        return True
    if has(node, "channelwise"):
        return _keeps_channels(node)
    if node.op == "Concat":
        return int(node.attributes.get("axis", 0)) == CHANNEL and _aligned(node)
    if not is_elementwise(node):
        return False
    shape = node.outputs[0].tensor.dims
    return all(_broadcasts(v, shape) for v in node.inputs if v is not None)


def is_elementwise(node: Node) -> bool:
    """Whether each element of a node's results comes from the same element of its inputs."""
    return operator_of(node).kind_of(node) == "elementwise"


def _keeps_channels(node: Node) -> bool:
    first = node.inputs[0]
    return first is not None and same_shape(first.tensor.dims[:2], node.outputs[0].tensor.dims[:2])


def _aligned(node: Node) -> bool:
    """Whether the parts of a concatenation start at whole blocks."""
    return all(v is not None and channels_of(v) % model.LEAST_BLOCK == 0 for v in node.inputs)


def _broadcasts(value: Value, shape: tuple[Dim, ...]) -> bool:
    """Whether an operand lines up with a shape from the right; of open sizes it is asked when they are known."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None or len(kind.dims) > len(shape):
        return False
    pairs = zip(reversed(kind.dims), reversed(shape))
    return all(a == 1 or not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in pairs)

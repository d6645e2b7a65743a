"""Norms of groups of channels in parts, where all channels of a place lie together.

    %y = GroupNormalization(%x, s, b, num_groups=32)    ->    %y = GroupNormalization(%x, s, b, num_groups=32, rows=4)

In: groups of nodes with the layouts of their values. Out: the same, with norms cut into parts of so many places along
the first axis of space, where a target proposes that (`weft/ops/normalizations_parts.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.graph.passes.fuse import Group
from weft.graph.passes.layout import CHANNEL, Laid, is_whole

Propose = Callable[[int, int, int, tuple[int, ...], int], int]
"""Of batch, channels, groups, space and bytes of an element the places of a part; 0: as it is."""


def groups_in_parts(laid: Laid, propose: Propose) -> Laid:
    """Groups whose norms of laid values are in parts, where that is proposed."""
    return replace(laid, groups=[_in_parts(group, laid, propose) for group in laid.groups])


def _in_parts(group: Group, laid: Laid, propose: Propose) -> Group:
    norms = [node for node in group.nodes if node.op == "GroupNormalization" and not node.domain]
    if len(norms) != 1 or not all(is_whole(v, laid.layouts) for v in (*group.inputs, *group.outputs)):
        return group
    kind = norms[0].outputs[0].tensor
    if not kind.is_static or kind.rank <= CHANNEL + 1:
        return group
    batch, channels, *space = kind.static
    rows = propose(batch, channels, int(norms[0].attributes["num_groups"]), tuple(space), kind.numpy.itemsize)
    if not rows:
        return group
    cut = {norms[0]: norms[0].replace(attributes={**norms[0].attributes, "rows": rows})}
    anchor = None if group.anchor is None else cut.get(group.anchor, group.anchor)
    return Group([cut.get(node, node) for node in group.nodes], group.inputs, group.outputs, group.kind, anchor)

"""Causal attention in blocks of queries, each with the keys that it sees: half of the scores are never computed.

    %y = weft.FusedAttention(%q, %k, %v) sizes=[…, 1024, 1024, …] steps=["causal"]
    ->  %a = weft.FusedAttention(%q, %k, %v) sizes=[…, 256, 256, …];  …
        %d = weft.FusedAttention(%q, %k, %v) sizes=[…, 256, 1024, …] numbers=[768];  %y = Concat(%a, %b, %c, %d)

A constant mask that leaves a query the keys up to its own, and adds to the later ones (or puts in their place) a number
under -1e9, is such a step too: beside scores that are less than that apart it has the effect of minus infinity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.core import model
from weft.graph.ir import Array, Graph, Node, Value
from weft.graph.passes.attention import DOMAIN, NAME, Propose
from weft.graph.passes.dead import dead
from weft.graph.passes.support import Replacement, Scope, rewrite

FAR_BELOW = -1e9


def cut_causal(graph: Graph, block: int, propose_for: Propose, narrow: str | None = None) -> Graph:
    """The graph with causal attention cut into blocks of about so many queries; the same where there is none."""

    def rule(node: Node, scope: Scope) -> Replacement:
        if node.op != NAME or node.domain != DOMAIN:
            return None
        found = _with_step(node, scope)
        return None if found is None else _in_blocks(found, scope, block, propose_for, narrow)

    made, changed = rewrite(graph, rule)
    return dead(made) if changed else graph


def _with_step(node: Node, scope: Scope) -> Node | None:
    """The node with a causal step, where it has one or a mask that is one; None where it has neither."""
    steps, numbers = list(node.attributes["steps"]), list(node.attributes["numbers"])
    if "causal" in steps:
        return node if steps.count("causal") == 1 else None
    inputs = list(node.inputs)
    for at, position in _operands(steps):
        mask = None if "scale" in steps[at:] else scope.constant(inputs[position])  # a factor could turn its sign
        later = None if mask is None else _later_than(mask, steps[at], numbers[at], node.attributes["sizes"][2:4])
        if later is not None:
            steps[at], numbers[at] = "causal", float(later)
            del inputs[position]
            return node.replace(inputs=inputs, attributes={**node.attributes, "steps": steps, "numbers": numbers})
    return None


def _operands(steps: list[str]) -> Iterator[tuple[int, int]]:
    """The steps that have an operand, and which input it is."""
    position = 3
    for at, step in enumerate(steps):
        if step not in ("scale", "causal"):
            yield at, position
            position += 1


def _later_than(mask: Array, step: str, number: float, sizes: list[int]) -> int | None:
    """How much later than its query a key may be that a mask leaves; None for any other mask."""
    if mask.size != sizes[0] * sizes[1] or list(mask.shape[-2:]) != list(sizes):
        return None
    mask = mask.reshape(sizes)
    if step == "add":
        left, gone = mask == 0, mask <= FAR_BELOW
    elif number <= FAR_BELOW or step == "allow":
        left = mask.astype(bool) ^ (step == "drop")
        gone = ~left
    else:
        return None
    later = int(np.count_nonzero(left[0])) - 1
    seen = np.arange(sizes[1]) <= np.arange(sizes[0])[:, None] + later
    return later if later >= 0 and np.array_equal(left, seen) and np.array_equal(gone, ~seen) else None


def _in_blocks(node: Node, scope: Scope, block: int, propose: Propose, narrow: str | None) -> Replacement:
    given = node.attributes
    queries, keys = given["sizes"][2:4]
    at = list(given["steps"]).index("causal")
    later = int(given["numbers"][at])
    count = min(queries // block, model.MOST_CAUSAL_BLOCKS)
    if count < 2 or later < 0:
        return None
    rows = -(-queries // count)
    parts: list[Value] = []
    for start in range(0, queries, rows):
        end = min(start + rows, queries)
        sizes = [*given["sizes"][:2], end - start, min(keys, end + later), *given["sizes"][4:]]
        padded = propose(sizes, narrow or node.outputs[0].tensor.dtype)
        if padded is None:
            return None
        numbers = [number + start if k == at else number for k, number in enumerate(given["numbers"])]
        query = [given["query"][0] + start * given["query"][3], *given["query"][1:]]
        own = {"sizes": sizes, "numbers": numbers, "query": query, "padded": [int(n) for n in padded]}
        rest = [_part(scope, node, v, (start, end), sizes[3]) for v in node.inputs[3:] if v is not None]
        parts.append(scope.make(node, NAME, [*node.inputs[:3], *rest], DOMAIN, **{**given, **own}))
    return [
        Node("Concat", parts, node.outputs, {"axis": 1 if given.get("heads_inside") else 2}, node.name, node.origin)
    ]


def _part(scope: Scope, node: Node, operand: Value, rows: tuple[int, int], keys: int) -> Value:
    """The part of a step's operand that belongs to some queries and the first keys."""
    ends: dict[int, tuple[int, int]] = {}
    shape = operand.tensor.static
    if shape and shape[-1] != 1:
        ends[len(shape) - 1] = (0, keys)
    if len(shape) > 1 and shape[-2] != 1:
        ends[len(shape) - 2] = rows
    if not ends:
        return operand
    numbers: list[Any] = [[low for low, _ in ends.values()], [high for _, high in ends.values()], list(ends)]
    return scope.make(node, "Slice", [operand, *(scope.new_constant(np.array(n, np.int64), "part") for n in numbers)])

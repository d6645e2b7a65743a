"""Concatenations that copy nothing: parts are written where the result has them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.compiler.graphs import check, random_inputs
from weft.compiler.lowering.items import Join, Launch
from weft.core.knobs import knobs
from weft.graph.ir import Graph, Value
from weft.models.builder import Builder


def net(body: Callable[[Builder, Value], Value], batch: int = 1) -> Graph:
    """A graph with an image of 16 channels."""
    b = Builder("joined")
    return b.finish(body(b, b.relu(b.input("x", (batch, 16, 9, 9)))))


def conv(b: Builder, x: Value, inputs: int, outputs: int, size: int = 1) -> Value:
    """A convolution that keeps the size."""
    return b.relu(b.conv(x, inputs, outputs, size, 1, size // 2, bias=True))


def counts(graph: Graph) -> tuple[int, int]:
    """How many concatenations copy nothing, and how many are kernels; values are right."""
    with knobs.override(cache=False):
        module = check(graph, random_inputs(graph))
    items = [item for one in module.specializations for item in one.lowered.items]
    kernels = [item for item in items if isinstance(item, Launch) and [n.op for n in item.nodes] == ["Concat"]]
    return sum(isinstance(item, Join) for item in items), len(kernels)


def ghost(b: Builder, x: Value) -> Value:
    """One part is made from the other, inside a border that the result need not have."""
    first = conv(b, x, 16, 32)
    second = b.relu(b.conv(first, 32, 32, 3, 1, 1, groups=32, bias=True))
    return conv(b, b.node("Concat", first, second, axis=1), 64, 16)


def test_parts_are_written_into_the_result():
    assert counts(net(ghost)) == (1, 0)


def test_a_result_is_a_part_of_another():
    def body(b: Builder, x: Value) -> Value:
        inner = b.node("Concat", conv(b, x, 16, 16), conv(b, x, 16, 32, 3), axis=1)
        outer = b.node("Concat", conv(b, x, 16, 16), inner, conv(b, inner, 48, 16), axis=1)
        return conv(b, outer, 80, 16, 3)

    assert counts(net(body)) == (2, 0)


def test_a_part_lies_in_one_result_only():
    def body(b: Builder, x: Value) -> Value:
        one, two, three = (conv(b, x, 16, 16) for _ in range(3))
        left = b.node("Concat", one, two, axis=1)
        right = b.node("Concat", three, two, axis=1)
        return b.node("Add", conv(b, left, 32, 16), conv(b, right, 32, 16))

    assert counts(net(body)) == (1, 1)


@pytest.mark.parametrize("kind", ["batch", "twice", "caller", "input", "unaligned"])
def test_what_cannot_lie_inside_is_copied(kind):
    def body(b: Builder, x: Value) -> Value:
        first = conv(b, x, 16, 15 if kind == "unaligned" else 16)
        second = first if kind == "twice" else b.inputs[0] if kind == "input" else conv(b, x, 16, 16, 3)
        made = b.node("Concat", first, second, axis=1)
        return made if kind == "caller" else conv(b, made, 31 if kind == "unaligned" else 32, 16)

    assert counts(net(body, batch=2 if kind == "batch" else 1))[0] == 0


def test_a_result_is_not_written_over_while_a_part_of_it_is_read():
    b = Builder("rows")
    x = b.input("x", (1, 64))
    first, second = b.dense(x, 64, 64), b.dense(x, 64, 64)
    both = b.node("Concat", first, second, axis=0)
    gain = b.node("ReduceSum", b.dense(both, 64, 48), keepdims=1)
    last = b.node("Add", b.node("Mul", both, gain), first)  # whose second row takes the first of what it was made of
    assert counts(b.finish(b.dense(last, 64, 5))) == (1, 0)


def any_net(seed: int) -> Graph:
    """A graph of convolutions, poolings and concatenations that some of them share."""
    pick = random.Random(seed)
    b = Builder("any")
    known = [(b.relu(b.input("x", (1, 16, 7, 7))), 16)]
    for _ in range(9):
        x, channels = pick.choice(known)
        kind = pick.choice(["conv", "conv", "depthwise", "pool", "add", "join", "join"])
        made, count = pick.choice([8, 16, 24, 32]), channels
        if kind == "conv":
            x, count = conv(b, x, channels, made, pick.choice([1, 3])), made
        elif kind == "depthwise":
            x = b.relu(b.conv(x, channels, channels, 3, 1, 1, groups=channels, bias=True))
        elif kind == "pool":
            x = b.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
        elif kind == "add":
            x = b.node("Add", x, b.relu(pick.choice([y for y, n in known if n == channels])))
        else:
            parts = [pick.choice(known) for _ in range(pick.randint(2, 3))]
            parts = [(conv(b, y, n, made, 3), made) if pick.random() < 0.6 else (y, n) for y, n in parts]
            x, count = b.node("Concat", *(part for part, _ in parts), axis=1), sum(n for _, n in parts)
        known.append((x, count))
    last, channels = known[-1]
    return b.finish(conv(b, last, channels, 8))


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_values_are_right_whatever_is_joined(seed):
    counts(any_net(seed))

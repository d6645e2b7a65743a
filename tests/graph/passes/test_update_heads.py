"""update_heads: queries and keys turned and both caches written by one node, which means the same."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.compiler.graphs import check, interpret_graph
from weft.compiler.passes import optimize
from weft.graph.passes.merge_products import merge_products
from weft.graph.passes.update_caches import update_caches, update_heads
from weft.models import llama_110m

LITTLE = {"layers": 2, "width": 32, "heads": 4, "hidden": 48, "vocabulary": 64}


def little(batch, key_heads):
    """A decoder for a token, and what goes in."""
    graph = llama_110m(batch, key_heads=key_heads, **LITTLE)
    random = np.random.default_rng(0)
    feeds = {"tokens": random.integers(0, 64, (batch, 1)), "lengths": np.arange(3, 3 + batch).astype(np.int32)}
    for value in graph.inputs[2:]:
        feeds[value.name] = random.standard_normal((batch, key_heads, 8, 8), np.float32)
    return graph, feeds


@pytest.mark.parametrize(("batch", "key_heads"), [(1, 4), (1, 2), (3, 2)])
def test_one_node_for_a_token(batch, key_heads):
    graph, feeds = little(batch, key_heads)
    bound = optimize(graph, {name: array.shape for name, array in feeds.items()}, {})
    made = update_heads(update_caches(merge_products(bound, lambda *_: True)))
    assert [node.op for node in made.nodes].count("UpdateHeads") == 2
    assert not {"UpdateRows", "RotaryEmbedding"} & {node.op for node in made.nodes}
    for ours, wanted in zip(*(interpret_graph(one, list(feeds.values())) for one in (made, graph)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=2e-4, atol=2e-5)
    one = next(node for node in made.nodes if node.op == "UpdateHeads")
    random = np.random.default_rng(1)
    b = weft.models.builder.Builder("alone")
    given = [b.input(f"x{at}", value.tensor.static, value.tensor.dtype) for at, value in enumerate(one.inputs)]
    copied = [b.node("Copy", value, domain="weft") for value in given[:2]]
    alone = b.finish(*b.node("UpdateHeads", *copied, *given[2:], outputs=3, domain="weft", **one.attributes))
    arrays = [random.standard_normal(value.tensor.static).astype(np.float32) for value in given[:5]]
    check(alone, [*arrays, np.full((batch, 1), 5, np.int32), np.arange(batch, dtype=np.int32)])


@pytest.mark.parametrize(
    ("shared", "axis"), [((2, 2), 2), ((2, 2), -2), ((2, 3), 2), ((3, 1), -2), ((2, 2), 1), ((2, 2), 3)]
)
def test_one_node_only_where_keys_and_values_lie_alike(shared, axis):
    """Keys and values of as many heads, written along the places of their caches; others stay nodes of their own."""
    keys, values = shared
    b = weft.models.builder.Builder("token")
    sizes = [[1, count, 1, 8] for count in shared]
    for one in sizes:
        one[axis] += 5
    x, past = b.input("x", (1, 4 + keys + values, 1, 8)), [b.input(n, s) for n, s in zip("kv", sizes, strict=True)]
    places, starts = b.input("places", (1, 1), "int64"), b.input("starts", (1,), "int64")
    angles = [b.constant(np.random.default_rng(at).standard_normal((16, 4)).astype(np.float32)) for at in range(2)]
    q, k, v = b.node("Split", x, b.constant(np.array([4, keys, values])), outputs=3, axis=1)
    q, k = (b.node("RotaryEmbedding", part, *angles, places) for part in (q, k))
    graph = b.finish(q, *(b.node("TensorScatter", *pair, starts, axis=axis) for pair in zip(past, (k, v), strict=True)))
    made = update_heads(update_caches(optimize(graph, {}, {})))
    assert ("UpdateHeads" in {node.op for node in made.nodes}) == (keys == values and axis in (2, -2))
    random = np.random.default_rng(2)
    arrays = [random.standard_normal(value.tensor.static).astype(np.float32) for value in graph.inputs[:3]]
    check(graph, [*arrays, np.array([[3]]), np.array([3])])


def test_a_launch_on_a_gpu():
    graph, feeds = little(1, 2)
    module = weft.compile(graph, target="cuda:sm_90a", shapes={name: array.shape for name, array in feeds.items()})
    (one,) = module.specializations
    labels = [launch.kernel.label for launch in one.launches]
    assert labels.count("updateheads") == 2 and "updaterows" not in labels and len(one.runner.program.updates) == 4
    program = next(launch.kernel.program for launch in one.launches if launch.kernel.label == "updateheads")
    assert len(program.kernels) == 1

"""Attention over a cache of fixed capacity: the same as Attention, by loops that end where the sequences do."""

import numpy as np
import pytest

import weft
from tests.ops.nodes import make
from weft.compiler.passes import for_target
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, TensorType, Value
from weft.graph.passes.infer import infer
from weft.targets.registry import find_target


def attention(batch, heads, shared, queries, capacity, size, **attributes):
    node = make("Attention", 7, 1, attributes)
    shapes = [(batch, heads, queries, size), *[(batch, shared, capacity, size)] * 2]
    values = [Value(name, TensorType("float32", shape)) for name, shape in zip("qkv", shapes)]
    lengths = Value("lengths", TensorType("int64", (batch,)))
    node = node.replace(inputs=[*values, None, None, None, lengths])
    return infer(Graph("g", [*values, lengths], node.outputs, [node], {}))


@pytest.mark.parametrize(
    "sizes,attributes",
    [
        ((1, 4, 4, 1, 40, 32), {"is_causal": 1}),
        ((2, 4, 2, 3, 33, 16), {"is_causal": 1, "softcap": 2.0, "scale": 0.3, "left_window_size": 3}),
        ((2, 2, 1, 2, 17, 16), {}),
    ],
)
def test_as_attention(sizes, attributes):
    graph = attention(*sizes, **attributes)
    module = weft.compile(graph)
    assert "cachedattention" in module.report()
    rng = np.random.default_rng(0)
    batch, _, _, queries, capacity, _ = sizes
    arrays = [rng.standard_normal(value.tensor.static).astype(np.float32) for value in graph.inputs[:3]]
    for lengths in ([capacity] * batch, [queries] * batch, [capacity - 1, queries + 1][:batch], [0] * batch):
        feeds = [*arrays, np.array(lengths)]
        for keys in feeds[1:3]:  # what is behind the end of a sequence has no say, whatever it is
            for at, length in enumerate(lengths):
                keys[at, :, length:] = np.nan
        (want,) = interpret_graph(graph, [*map(np.nan_to_num, feeds[:3]), feeds[3]])
        np.testing.assert_allclose(module(*feeds), want, rtol=0, atol=1e-5)
        arrays = [np.nan_to_num(array) for array in arrays]


def test_other_attention_stays():
    machine = find_target("native")
    for sizes, more in (
        ((1, 2, 2, 5, 40, 16), {}),
        ((1, 2, 2, 1, 40, 12), {}),
        ((1, 2, 2, 1, 40, 16), {"right_window_size": 1}),
    ):
        made = for_target(attention(*sizes, **more), machine)
        assert "CachedAttention" not in [node.op for node in made.nodes]

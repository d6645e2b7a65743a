"""join_heads: attention of few queries that turns them itself and reads new rows where they are made."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graphs import interpret_graph
from tests.targets.test_gpu_attention import CUDA, program_of, wanted
from weft.compiler.passes import optimize
from weft.core.errors import InterpreterError
from weft.expr.nodes import Call, index_expr
from weft.graph.ir import Graph, TensorType, Value
from weft.graph.passes.attention import fuse_attention
from weft.graph.passes.merge_products import merge_products
from weft.graph.passes.update_caches import join_heads, update_caches, update_heads
from weft.loop.interpreter import interpret
from weft.loop.ir import Evaluate
from weft.loop.verifier import verify
from weft.loop.visit import Mutator
from weft.models import llama_110m
from weft.ops.attention_fused import SCORES
from weft.plan.planner import unit_of
from weft.targets.cuda import nvrtc
from weft.targets.gpu import attention_stream

PART = 32


def joined(batch, key_heads, capacity=70, size=16, heads=4, lengths=(37, 0, 69)):
    """A decoder of two layers for a token before and after the pass, and what goes in."""
    sizes = {"layers": 2, "width": heads * size, "heads": heads, "hidden": 48, "vocabulary": 64}
    graph = llama_110m(batch, key_heads=key_heads, **sizes)
    random = np.random.default_rng(0)
    feeds = {"tokens": random.integers(0, 64, (batch, 1)), "lengths": np.array(lengths[:batch], np.int32)}
    for value in graph.inputs[2:]:
        feeds[value.name] = random.standard_normal((batch, key_heads, capacity, size), np.float32)
    bound = optimize(graph, {name: array.shape for name, array in feeds.items()}, {})
    made = update_heads(update_caches(merge_products(bound, lambda *_: True)))
    made = fuse_attention(made, lambda s, _: (s[2], -(-s[3] // PART) * PART, s[5], PART))
    return graph, join_heads(made, lambda *_: True), feeds


def test_queries_that_are_results_are_made():
    graph, _, feeds = joined(1, 2)
    bound = optimize(graph, {name: array.shape for name, array in feeds.items()}, {})
    turned = next(node for node in bound.nodes if node.op == "RotaryEmbedding").outputs[0]
    asked = bound.replace(outputs=[*bound.outputs, turned])
    made = update_heads(update_caches(merge_products(asked, lambda *_: True)))
    made = fuse_attention(made, lambda s, _: (s[2], -(-s[3] // PART) * PART, s[5], PART))
    made = join_heads(made, lambda *_: True)
    given = [feeds[value.name] for value in asked.inputs]
    for one, other in zip(interpret_graph(made, given), interpret_graph(asked, given)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


def attention_alone(made, kind, lengths):
    """The first attention of a decoder in an element type, as a graph, and arrays for it."""
    node = next(node for node in made.nodes if node.op == "FusedAttention")
    inputs = [Value(f"x{at}", TensorType(kind if v.tensor.dtype == "float32" else v.tensor.dtype, v.tensor.static))
              for at, v in enumerate(node.inputs)]  # fmt: skip
    out = Value("y", TensorType(kind, node.outputs[0].tensor.static))
    random = np.random.default_rng(1)
    arrays = [random.standard_normal(v.tensor.static).astype(v.tensor.numpy) for v in inputs]
    arrays[3] = lengths
    return Graph("alone", inputs, [out], [node.replace(inputs=inputs, outputs=[out])], {}), arrays


def lowered_of(alone, arrays, loads):
    """The program as threads run it, and its arguments, of which the result and what went wrong come last."""
    schedule, given = program_of(alone, arrays)
    attention_stream.match(unit_of(schedule, SCORES, CUDA)).apply({"rows": 8, "loads": loads})
    verify(schedule.func)
    out = np.full(alone.outputs[0].tensor.static, 7, alone.outputs[0].tensor.numpy)
    given = [given.get(buffer, out) for buffer in schedule.func.buffers]
    return CUDA.lower(schedule.func), [*given, np.zeros(1, np.int32)]


@pytest.mark.parametrize(("batch", "key_heads"), [(1, 4), (1, 2), (3, 2)])
def test_the_graph_means_the_same(batch, key_heads):
    graph, made, feeds = joined(batch, key_heads)
    assert [node.op for node in made.nodes if node.op in ("UpdateHeads", "MatMul")][-2:] == ["UpdateHeads", "MatMul"]
    assert [node.op for node in made.nodes].count("UpdateHeads") == 1, "all caches are written at once"
    assert sum("fresh" in node.attributes for node in made.nodes) == 2
    for ours, theirs in zip(*(interpret_graph(one, list(feeds.values())) for one in (made, graph)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("batch", "key_heads", "kind", "size", "capacity", "loads"),
    [
        (1, 2, "float32", 16, 70, 4),
        (3, 2, "float32", 16, 64, 2),
        (2, 4, "bfloat16", 32, 128, 4),
        (1, 4, "float16", 32, 20, 4),
    ],
)
def test_the_program_in_threads(batch, key_heads, kind, size, capacity, loads):
    """Races are reported; what lies behind a length is not read."""
    _, made, feeds = joined(batch, key_heads, capacity, size, lengths=(min(37, capacity - 1), 0, capacity - 1))
    lengths = feeds["lengths"]
    alone, arrays = attention_alone(made, kind, lengths)
    want = wanted(alone, arrays).astype(np.float32)
    for array in arrays[1:3]:  # what nobody may read
        for at, length in enumerate(lengths):
            array.reshape(batch, key_heads, -1, size)[at, :, length:] = np.nan
    lowered, given = lowered_of(alone, arrays, loads)
    interpret(lowered, *given)
    *_, out, errors = given
    assert not errors.any(), "a place for which there is no angle"
    source, parts = CUDA.generate(lowered).source, -(-capacity // PART)
    assert (f"__cluster_dims__({parts}, 1, 1)" in source) == (parts in (2, 4)), "parts are added up in their kernel"
    is_early = source.index("in1 +") < source.index("griddepcontrol.wait")
    assert is_early == (8 * loads == PART), "what each thread loads once of a cache comes before the kernel waits"
    assert source.count("_x4 *)(attention_fresh") >= 3, "fresh rows are read by vectors"
    if nvrtc.is_available():
        assert nvrtc.compile_source(source, CUDA.cpu)
    loose = 1 if kind == "float32" else 40
    np.testing.assert_allclose(out.astype(np.float32), want, rtol=2e-4 * loose, atol=2e-5 * loose)


def test_a_barrier_of_the_cluster_that_is_missing():
    """The first block must not add up what another has not handed on yet."""
    _, made, _ = joined(1, 2, capacity=64)
    alone, arrays = attention_alone(made, "float32", np.array([37], np.int32))
    lowered, given = lowered_of(alone, arrays, 4)
    wrong = _Without().func(lowered)
    assert wrong is not lowered
    with pytest.raises(InterpreterError, match="attention_part"):
        interpret(wrong, *given)


class _Without(Mutator):
    """Leaves the barriers of clusters away."""

    def visit_Evaluate(self, s):
        is_met = isinstance(s.value, Call) and s.value.name == "barrier" and s.value.args
        return Evaluate(index_expr(0)) if is_met else s

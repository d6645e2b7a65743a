"""Operators that exporters write for decoders, against ONNX Runtime over many combinations of their attributes."""

import random

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import weft
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import GraphError

onnxruntime = pytest.importorskip("onnxruntime")
INPUTS = (
    "query key value past_key past_value seqlens_k total_sequence_length cos_cache sin_cache position_ids "
    "attention_bias head_sink"
).split()


def one_node(op, order, feeds, constants, outputs, **attributes):
    """A model of one node; inputs that are in neither dict are left out."""
    names = [name if name in feeds or name in constants else "" for name in order]
    while not names[-1]:
        names.pop()
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    results = [helper.make_value_info(name, onnx.TypeProto()) for name in outputs]
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", infos, results, held)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def expected(model, feeds):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def interpreted(model, feeds):
    made = interpret_graph(load(model), feeds)
    return list(made.values()) if isinstance(made, dict) else list(made)


def group_query(seed, mode):
    """A case: feeds, attributes, the keys of each sequence, and the length of the query."""
    rng, r = np.random.default_rng(seed), random.Random(seed)
    batch = 1 if mode.endswith("chunk") else r.choice([1, 2])
    shared, size = r.choice([1, 2]), 16
    heads, kind = shared * r.choice([1, 3]), r.choice([np.float32, np.float32, np.float16])
    length = {"decode": 1, "grow": 1}.get(mode, 3)
    totals = [length + (0 if mode.startswith("prompt") else r.randint(1, 6)) for _ in range(batch)]
    most = max(totals)
    capacity = {"grow": most - length, "grow_chunk": most - length}.get(mode, most + r.choice([0, 3]))
    if mode == "prompt_padded":
        totals[-1] = length - (batch > 1)

    def numbers(*shape):
        return rng.standard_normal(shape).astype(kind)

    feeds, attributes = {}, {"num_heads": heads, "kv_num_heads": shared}
    if r.random() < 0.4:
        feeds["query"] = numbers(batch, length, (heads + 2 * shared) * size)
    else:
        widths = {"query": heads, "key": shared, "value": shared}
        feeds.update({name: numbers(batch, length, count * size) for name, count in widths.items()})
    if mode != "prompt":
        feeds.update({name: numbers(batch, shared, capacity, size) for name in ("past_key", "past_value")})
    feeds["seqlens_k"] = np.array(totals, np.int32) - 1
    if r.random() < 0.6:
        attributes.update(do_rotary=1, rotary_interleaved=r.choice([0, 1]))
        feeds.update({name: numbers(most + length + 4, size // 2) for name in ("cos_cache", "sin_cache")})
        if r.random() < 0.3:
            feeds["position_ids"] = rng.integers(0, most, (batch, length)).astype(np.int64)
    options = {"local_window_size": [1, 2, 4], "softcap": [1.0, 5.0], "scale": [0.3, 1.0], "smooth_softmax": [1]}
    attributes.update({name: r.choice(values) for name, values in options.items() if r.random() < 0.3})
    if r.random() < 0.3:
        feeds["attention_bias"] = numbers(r.choice([1, batch]), r.choice([1, heads]), length, most)
    # With halves ONNX Runtime's own answers for sinks are not those that it gives for float32.
    if kind is np.float32 and "smooth_softmax" not in attributes and r.random() < 0.3:
        feeds["head_sink"] = numbers(heads)
    return feeds, attributes, totals, length


MODES = ["prompt", "prompt_cache", "prompt_padded", "decode", "grow", "chunk", "grow_chunk"]


def check_group_query(seed, mode, run):
    feeds, attributes, totals, length = group_query(seed, mode)
    total = {"total_sequence_length": np.array(max(totals), np.int32)}
    model = one_node("GroupQueryAttention", INPUTS, feeds, total, ["y", "keys", "values"], **attributes)
    wanted, got = expected(model, feeds), run(model, feeds)
    tolerance = 2e-5 if feeds["query"].dtype == np.float32 else 5e-3
    for at, keys in enumerate(totals):
        rows = min(keys, length)  # what padding asks for, and places without keys, nobody reads
        for made, want, part in zip(got, wanted, [np.s_[at, :rows], np.s_[at, :, :keys], np.s_[at, :, :keys]]):
            assert made.shape == want.shape and made.dtype == want.dtype
            a, b = made[part].astype(np.float64), want[part].astype(np.float64)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1, np.abs(b).max()))


@pytest.mark.parametrize("mode", MODES)
def test_group_query_attention(mode):
    for seed in range(12):
        check_group_query(seed, mode, interpreted)


@pytest.mark.parametrize("mode", ["prompt_padded", "decode", "grow_chunk"])
def test_group_query_attention_compiled(mode):
    check_group_query(MODES.index(mode), mode, lambda model, feeds: weft.compile(model).run(None, feeds))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(20, 28))
def test_group_query_attention_compiled_in_many_ways(mode, seed):
    check_group_query(seed, mode, lambda model, feeds: weft.compile(model).run(None, feeds))


def test_group_query_attention_refuses_what_it_does_not_know():
    feeds, attributes, totals, _ = group_query(0, "decode")
    total = {"total_sequence_length": np.array(max(totals), np.int32)}
    with pytest.raises(GraphError, match="qk_output"):
        weft.compile(one_node("GroupQueryAttention", INPUTS, feeds, total, ["y"], **attributes, qk_output=1))


# ----------------------------------------------------------------------------------------------------------- experts

MOE = "input router_probs fc1_experts_weights fc1_experts_bias fc2_experts_weights fc2_experts_bias".split()
QMOE = (
    "input router_probs fc1_experts_weights fc1_scales fc1_experts_bias fc2_experts_weights fc2_scales "
    "fc2_experts_bias fc3_experts_weights fc3_scales fc3_experts_bias fc1_zero_points fc2_zero_points"
).split()


def experts(seed, quantized):
    """A case of MoE or QMoE: a model and its feeds."""
    rng, r = np.random.default_rng(seed), random.Random(seed)
    count, rows, width, inner = r.choice([2, 4, 6]), r.choice([1, 2, 5]), 32, r.choice([32, 64])
    activation = r.choice(["relu", "gelu", "silu", "identity", "swiglu"])
    outer = 2 * inner if activation == "swiglu" else inner

    def numbers(*shape):
        return (rng.standard_normal(shape) * 0.5).astype(np.float32)

    def codes(*shape):
        return rng.integers(0, 256, shape).astype(np.uint8)

    feeds = {"input": numbers(*r.choice([(rows, width), (1, rows, width)])), "router_probs": numbers(rows, count)}
    biases = {"fc1_experts_bias": (count, outer), "fc2_experts_bias": (count, width)}
    feeds.update({name: numbers(*shape) for name, shape in biases.items() if r.random() < 0.6})
    attributes = {"activation_type": activation, "k": r.choice([1, 2]), "normalize_routing_weights": r.choice([0, 1])}
    if activation == "swiglu":
        attributes["swiglu_fusion"] = 1
        attributes.update(r.choice([{}, {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.5}]))
    shapes = {"fc1": (outer, width), "fc2": (width, inner)}
    if not quantized:
        feeds.update({f"{name}_experts_weights": numbers(count, *shape) for name, shape in shapes.items()})
        return one_node("MoE", MOE, feeds, {}, ["y"], **attributes), feeds
    bits, block = r.choice([4, 8]), r.choice([0, 16, 32])
    attributes.update({"expert_weight_bits": bits, **({"block_size": block} if block else {})})
    zeros = r.random() < 0.5
    for name, (down, across) in shapes.items():
        blocks = [across // block] if block else []
        feeds[f"{name}_experts_weights"] = codes(count, down, across * bits // 8)
        feeds[f"{name}_scales"] = np.abs(numbers(count, down, *blocks)) * 2.0**-bits
        if zeros:
            *front, last = count, down, *blocks
            feeds[f"{name}_zero_points"] = codes(*front, -(-last * bits // 8))
    return one_node("QMoE", QMOE, feeds, {}, ["y"], **attributes), feeds


def check_experts(seed, quantized, run):
    model, feeds = experts(seed, quantized)
    (want,), (got,) = expected(model, feeds), run(model, feeds)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-5 * np.abs(want).max())


@pytest.mark.parametrize("quantized", [False, True])
def test_experts(quantized):
    for seed in range(24):
        check_experts(seed, quantized, interpreted)


@pytest.mark.parametrize("quantized,seed", [(False, 1), (True, 0)])
def test_experts_compiled(quantized, seed):
    check_experts(seed, quantized, lambda model, feeds: weft.compile(model).run(None, feeds))

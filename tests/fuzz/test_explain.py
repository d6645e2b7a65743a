"""The reasons for differences: each excuses what it is for, and nothing beside it."""

from __future__ import annotations

import numpy as np
from onnx import helper

from tests.fuzz.explain import explain
from tests.graph.test_hostile_nodes import Given, f32, i64, single
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph


def reason(model, arrays, change, peer=True):
    """Why ONNX Runtime (or, no peer, the meaning) may answer what `change` makes of the meaning."""
    graph = load(model.SerializeToString())
    feeds = {value.name: array for value, array in zip(graph.inputs, arrays)}
    with np.errstate(all="ignore"):
        got = list(interpret_graph(graph, feeds))
    want = [one.copy() for one in got]
    change(want)
    return explain(graph, feeds, got, want, peer)


def put(index, value, output=0):
    def change(answers):
        answers[output][index] = value

    return change


def test_an_overflow_beside_a_channel_of_nan():
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    model = single("InstanceNormalization", Given(2, 3, 4), f32(1e-30, np.nan, 1e38), f32(1, 1, 1))
    assert reason(model, [x], put((0, 2, 0), np.inf)) == "the peer overflows on the way"
    assert reason(model, [x], put((0, 0, 0), 1e30)) is None


def test_casts_of_what_no_integer_is():
    model, values = single("CastLike", Given(4), i64()), f32(1, np.nan, np.inf, 1e30)
    assert reason(model, [values], put(2, -(1 << 63))) == "an integer of what is none"
    assert reason(model, [values], put(0, 2)) is None


def test_windows_with_a_nan():
    model, x = single("MaxPool", Given(1, 1, 6), kernel_shape=[2]), f32(1, np.nan, 3, 4, 5, 6)[None, None]
    assert reason(model, [x], put((0, 0, 0), 1)) == "a window with a NaN"
    assert reason(model, [x], put((0, 0, 3), 1)) is None


def test_squares_that_overflow():
    x = np.ones((2, 4, 3), np.float32)
    x[0, 0, 0] = 1e30
    model = single("GroupNormalization", Given(2, 4, 3), f32(1, 1, 1, 1), f32(0, 0, 0, 0), num_groups=2)
    assert reason(model, [x], put((0, 0), np.nan)) == "the square of a value overflows"
    assert reason(model, [x], put((1, 0), 5.0)) is None
    model = single("GroupNormalization", Given(2, 4, 3), f32(1, 1, 1, 1), f32(-np.inf, 0, 0, 0), num_groups=2)
    assert reason(model, [x], put((0, 0), np.nan)) == "the square of a value overflows"


def test_the_rounding_of_a_narrower_input():
    x, scale = np.ones((2, 3), np.float32), np.ones(3)
    model = single("RMSNormalization", Given(2, 3), scale)
    assert reason(model, [x], put((0, 0), 1 + 1e-6), peer=False) == "the rounding of a narrower input"
    assert reason(model, [x], put((0, 0), 1 + 1e-3), peer=False) is None


def test_pads_of_another_rule():
    model = single("LpPool", Given(1, 1, 4), kernel_shape=[2], dilations=[2], auto_pad="SAME_LOWER")
    x = f32(1, 2, 3, 4).reshape(1, 1, 4)
    like = np.sqrt(f32(1 + 4, 1 + 9, 4 + 16)).reshape(1, 1, 3)
    like[0, 0, 0] = 2.0  # the place before the input, and the second element

    def change(answers):
        answers[0] = like

    assert reason(model, [x], change) == "the peer pads without the dilations"
    assert reason(model, [x], put((0, 0, 0), 9)) is None


def test_codes_of_an_infinite_range():
    model = single("DynamicQuantizeLinear", Given(3), outputs=3)
    assert reason(model, [f32(1, -np.inf, 2)], put(0, 77)) == "codes of an infinite range"
    assert reason(model, [f32(1, -3, 2)], put(0, 77)) is None


def test_rows_that_nobody_made():
    """Of a loop without a turn only the sizes of nothing may differ."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["going"], ["on"]), helper.make_node("NonZero", ["state"], ["places"])],
        "body",
        [helper.make_empty_tensor_value_info(name) for name in ("turn", "going", "state")],
        [helper.make_empty_tensor_value_info(name) for name in ("on", "state", "places")],
    )
    model = single("Loop", np.array(5), np.array(False), Given(2), outputs=2, body=body)

    def resize(*shape):
        def change(answers):
            answers[1] = np.zeros(shape, np.int64)

        return change

    assert reason(model, [f32(1, 2)], resize(0, 1, 7)) == "the sizes of rows that nobody made"
    assert reason(model, [f32(1, 2)], resize(1, 1, 7)) is None


def test_powers_that_no_integer_is():
    """The last step of an integer to a float is a cast."""
    model, y = single("Pow", i64(2, 3, 7), Given(3)), f32(1e30, 5, -3e38)
    assert reason(model, [y], put(0, -(1 << 63))) == "an integer of what is none"
    assert reason(model, [y], put(1, 7)) is None
    assert reason(model, [y], put(2, -(1 << 63))) is None


def test_queries_that_no_key_answers():
    """The first key is minus infinity, and the only one that the first query sees."""
    for packed in (False, True):
        shapes = [(1, 2, 8) if packed else (1, 2, 2, 4)] * 3
        q, k, v = (np.ones(shape, np.float32) for shape in shapes)
        k.reshape(-1)[0] = -np.inf
        heads = {"q_num_heads": 2, "kv_num_heads": 2} if packed else {}
        model = single("Attention", *[Given(*shape) for shape in shapes], is_causal=1, **heads)
        mine, other = ((0, 0, slice(0, 4)), (0, 1)) if packed else ((0, 0, 0), (0, 0, 1))
        assert reason(model, [q, k, v], put(mine, 0.5)) == "a query that no key answers"
        assert reason(model, [q, k, v], put(other, 0.5)) is None

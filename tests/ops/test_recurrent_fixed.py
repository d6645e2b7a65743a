"""Recurrent weights as 24-bit whole numbers: as exact as float32, and only where they are."""

import numpy as np
import pytest

import weft
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.fix_weights import fix_weights
from weft.ops.fixed_weights import BITS, SHIFT, fix, may_fix, unfix
from weft.targets.registry import find_target

HOST = find_target("native")
far_from_cache = pytest.mark.skipif(
    HOST.vector_bytes < 64 or (HOST.cache_bytes[1] or 0) > 4 << 20,
    reason="this machine has short vectors, or a second-level cache that holds these weights",
)
rng = np.random.default_rng(5)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def normal(*shape, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def recurrence(op, hidden, batch=1, count=1, steps=3, features=8, bias=True, weight=None, **attributes):
    """A graph of one recurrence, its input, and its arrays."""
    rows = GATES[op] * hidden
    spread = 1 / np.sqrt(hidden)
    arrays = [
        normal(steps, batch, features), normal(count, rows, features, scale=spread),
        normal(count, rows, hidden, scale=spread) if weight is None else weight,
    ]  # fmt: skip
    if bias:
        arrays.append(normal(count, 2 * rows, scale=spread))
    values = [Value(f"v{i}", TensorType("float32", a.shape)) for i, a in enumerate(arrays)]
    direction = "bidirectional" if count == 2 else "forward"
    out = Value("y", TensorType("float32", (steps, count, batch, hidden)))
    node = Node(op, values, [out], {"hidden_size": hidden, "direction": direction, **attributes})
    graph = Graph("g", values[:1], [out], [node], dict(zip(values[1:], arrays[1:])))
    return graph, arrays


def always(weight, rows):
    return fix(weight) if may_fix(weight) else None


def compiled(graph, x):
    module = weft.compile(graph, threads=2)
    return np.asarray(module(x)), [launch.kernel.label for launch in module.specializations[0].launches]


# -------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("spread", [1e-20, 1.0, 1e20])
def test_numbers_are_within_half_a_step(spread):
    w = normal(3, 40, 100, scale=spread)
    w[0, 0] = 0
    w[0, 1, 3] = 0
    high, low, scale = fix(w)
    assert (high.dtype, low.dtype, scale.dtype) == (np.int16, np.uint8, np.float32)
    error = np.abs(unfix(high, low, scale) - w)
    unit = scale.astype(np.float64) * SHIFT
    assert (error <= unit[..., None] / 2).all()
    assert (unit * 2**BITS <= 2 * np.abs(w).max(axis=-1, initial=0) + (w.max(axis=-1) == 0)).all()
    assert (unfix(high, low, scale)[w == 0] == 0).all()


def test_powers_of_two_and_their_sums_are_exact():
    w = np.array([[1.0, -0.5, 0.375, 0.0, -1.0, 2.0**-20]], np.float32)
    np.testing.assert_array_equal(unfix(*fix(w)), w)


def test_what_is_not_zero_stays_so():
    w = np.array([[1.0, 1e-30, -1e-30, 0.0]], np.float32)
    made = unfix(*fix(w))
    np.testing.assert_array_equal(np.sign(made), np.sign(w))


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.__setitem__((0, 3, 7), np.inf),
        lambda w: w.__setitem__((0, 3, 7), np.nan),
        lambda w: w.__setitem__((0, 3, 7), 1000.0),  # one weight that makes the others small in its row
    ],
)
def test_weights_that_are_refused(change):
    w = normal(1, 8, 64)
    assert may_fix(w)
    change(w)
    assert not may_fix(w)
    assert not may_fix(normal(1, 8, 64).astype(np.float64))
    assert not may_fix(normal(1, 8, 64, scale=1e-35))


# ----------------------------------------------------------------------------------------------------------- operators


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("LSTM", {}), ("LSTM", {"count": 2, "batch": 3}), ("LSTM", {"bias": False, "batch": 2}), ("GRU", {}),
        ("GRU", {"linear_before_reset": 1, "batch": 2}), ("RNN", {"count": 2}), ("RNN", {"bias": False}),
    ],
)  # fmt: skip
def test_operators_mean_what_the_plain_ones_do(op, options):
    graph, arrays = recurrence(op, 20, **options)
    fixed = fix_weights(graph, always)
    assert [node.op for node in fixed.nodes] == [f"Fixed{op}"]
    plain, _ = compiled(graph, arrays[0])
    made, labels = compiled(fixed, arrays[0])
    assert any(label.startswith("fixed") for label in labels)
    np.testing.assert_allclose(made, plain, atol=2e-6)
    (evaluated,) = interpret_graph(fixed, [arrays[0]])
    np.testing.assert_allclose(made, evaluated, atol=2e-6)


def with_state(graph, state):
    """The recurrence with a first state: a constant, or an input of the model."""
    (node,) = graph.nodes
    first = Value("first", TensorType("float32", state if isinstance(state, tuple) else state.shape))
    node = node.replace(inputs=[*node.inputs, None, first])
    constants = graph.constants if isinstance(state, tuple) else {**graph.constants, first: state}
    inputs = [*graph.inputs, first] if isinstance(state, tuple) else graph.inputs
    return graph.replace(nodes=[node], inputs=inputs, constants=constants)


def test_states_that_may_leave_the_unit_stay_float32():
    """Only a bounded state, whose sums go through sigmoid or tanh, makes the error an absolute one."""
    for options in ({"activations": ["Relu"]}, {"activations": ["Affine"], "activation_alpha": [1.0]}):
        graph, _ = recurrence("RNN", 20, **options)
        assert fix_weights(graph, always) is graph
    graph, _ = recurrence("LSTM", 20, activations=["Sigmoid", "Relu", "Tanh"])
    assert fix_weights(graph, always) is graph
    graph, _ = recurrence("LSTM", 20)
    for state, may in (((1, 1, 20), False), (normal(1, 1, 20) * 9, False), (np.tanh(normal(1, 1, 20)), True)):
        given = with_state(graph, state)
        assert (fix_weights(given, always) is not given) == may


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_a_one_hot_row_looks_a_weight_up_exactly(op):
    """A sum that picks one small weight of a row has that weight's digits: products keep their float32 weights."""
    weight = normal(64, 48)
    weight[5] *= 1e-3
    hot = np.zeros((1, 64), np.float32)
    hot[0, 5] = 1
    values = [Value("x", TensorType("float32", (1, 64))), Value("w", TensorType("float32", (64, 48)))]
    out = Value("y", TensorType("float32", (1, 48)))
    graph = Graph("g", values[:1], [out], [Node(op, values, [out], {})], {values[1]: weight})
    made, _ = compiled(fix_weights(graph, always), hot)
    np.testing.assert_array_equal(made[0], weight[5])


# ----------------------------------------------------------------------------------------------------------- the model


def exact(arrays, hidden):
    """An LSTM in double precision."""
    x, w, r, b = (a.astype(np.float64) for a in arrays)
    h = c = np.zeros((x.shape[1], hidden))
    rows = []
    for step in x:
        i, o, f, g = np.split(step @ w[0].T + h @ r[0].T + b[0, : 4 * hidden] + b[0, 4 * hidden :], 4, axis=-1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
        rows.append(h)
    return np.stack(rows)[:, None]


@far_from_cache
def test_far_weights_are_fixed_and_as_exact():
    graph, arrays = recurrence("LSTM", 400, steps=12)  # 2.5 MB of weights
    made, labels = compiled(graph, arrays[0])
    assert any(label.startswith("fixed") for label in labels)
    with knobs.override(fixed_weights=False):
        plain, others = compiled(graph, arrays[0])
    assert not any(label.startswith("fixed") for label in others)
    wanted = exact(arrays, 400)
    errors = [np.abs(y - wanted).max() / np.abs(wanted).max() for y in (made, plain)]
    assert errors[0] < 2e-6 and errors[0] < 2 * errors[1] + 2e-7


def test_near_weights_and_many_rows_stay():
    for options in ({"hidden": 16}, {"hidden": 400, "batch": 8, "steps": 2}):
        graph, arrays = recurrence("LSTM", **options)
        _, labels = compiled(graph, arrays[0])
        assert not any(label.startswith("fixed") for label in labels)

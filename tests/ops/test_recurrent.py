"""LSTM, GRU and RNN: ONNX's cases, PyTorch's modules, and every option of one meaning against the other."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import weft
from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, check_symbolic, numbers, run_node
from weft.graph.ir import GraphError

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("case", cases("LSTM", "GRU", "RNN"), ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case), "no compiled form"


def weights(op, directions, features, hidden):
    rows = GATES[op] * hidden
    return [
        numbers(directions, rows, features, seed=1) * 0.5,
        numbers(directions, rows, hidden, seed=2) * 0.5,
        numbers(directions, 2 * rows, seed=3) * 0.5,
    ]


def torch_order(op, array, hidden):
    """PyTorch's gates are i, f, g, o and r, z, n; ONNX's i, o, f, c and z, r, h."""
    parts = np.split(array, GATES[op], axis=0)
    order = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}[op]
    return torch.tensor(np.concatenate([parts[i] for i in order]))


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_against_torch(op, bidirectional):
    steps, batch, features, hidden, count = 5, 3, 4, 6, 1 + bidirectional
    x, (w, r, b) = numbers(steps, batch, features), weights(op, count, features, hidden)
    module = getattr(torch.nn, op)(features, hidden, bidirectional=bidirectional)
    rows = GATES[op] * hidden
    with torch.no_grad():
        for d, suffix in enumerate(["", "_reverse"][:count]):
            for name, array in (
                ("weight_ih", w[d]),
                ("weight_hh", r[d]),
                ("bias_ih", b[d, :rows]),
                ("bias_hh", b[d, rows:]),
            ):
                getattr(module, f"{name}_l0{suffix}").copy_(torch_order(op, array, hidden))
        h, c = numbers(count, batch, hidden, seed=4), numbers(count, batch, hidden, seed=5)
        first = (torch.tensor(h), torch.tensor(c)) if op == "LSTM" else torch.tensor(h)
        every, last = module(torch.tensor(x), first)
    y = every.numpy().reshape(steps, batch, count, hidden).transpose(0, 2, 1, 3)
    finals = [t.numpy() for t in last] if op == "LSTM" else [last.numpy()]
    arrays = [x, w, r, b, None, h, *([c] if op == "LSTM" else [])]
    options = {"hidden_size": hidden, "direction": "bidirectional" if bidirectional else "forward"}
    if op == "GRU":
        options["linear_before_reset"] = 1
    check_node(op, arrays, [y, *finals], **options)


def agree(op, arrays, outputs, **options):
    host, compiled = run_node(op, *arrays, outputs=outputs, **options)
    assert compiled is not None
    for a, b in zip(host, compiled):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    return host


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_short_sequences(op, direction):
    """A batch of padded sequences gives what each sequence alone gives."""
    count = 2 if direction == "bidirectional" else 1
    lengths = np.array([4, 1, 3], "int32")
    x, (w, r, b) = numbers(4, 3, 2), weights(op, count, 2, 3)
    made = agree(op, [x, w, r, b, lengths], 2, direction=direction, hidden_size=3)
    for n, length in enumerate(lengths):
        one = x[:length, n : n + 1]
        alone, _ = run_node(op, one, w, r, b, outputs=2, direction=direction, hidden_size=3, build=False)
        np.testing.assert_allclose(made[0][:length, :, n], alone[0][:, :, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(made[1][:, n], alone[1][:, 0], rtol=1e-5, atol=1e-6)
        assert not made[0][length:, :, n].any()


def test_weights_that_are_inputs():
    """Nothing is packed ahead then, and two sequences of three steps leave loops of one turn."""
    arrays = [numbers(3, 2, 5), *weights("GRU", 1, 5, 8), np.array([3, 1], "int32"), numbers(1, 2, 8, seed=9)]
    options = {"direction": "reverse", "hidden_size": 8}
    names = [f"x{i}" for i in range(len(arrays))]
    kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays]
    inputs = [helper.make_tensor_value_info(n, k, a.shape) for n, k, a in zip(names, kinds, arrays)]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "h")]
    graph = helper.make_graph([helper.make_node("GRU", names, ["y", "h"], **options)], "g", inputs, outputs)
    made = weft.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
    wanted, _ = run_node("GRU", *arrays, outputs=2, build=False, **options)
    for have, want in zip(made.run(None, dict(zip(names, arrays))), wanted):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 0.3},
        {"input_forget": 1},
        {"layout": 1},
        {
            "activations": ["HardSigmoid", "ScaledTanh", "Softsign"],
            "activation_alpha": [0.3, 1.5],
            "activation_beta": [0.4, 0.7],
        },
        {"activations": ["Sigmoid", "LeakyRelu", "Elu"], "activation_alpha": [0.1, 0.5]},
        {"activations": ["Softplus", "ThresholdedRelu", "Affine"], "activation_beta": [0.1]},
    ],
    ids=lambda options: next(iter(options.values())) if "activations" in options else next(iter(options)),
)  # fmt: skip
def test_lstm_options(options):
    x, (w, r, b) = numbers(3, 2, 2), weights("LSTM", 1, 2, 3)
    first = [numbers(*((2, 1, 3) if "layout" in options else (1, 2, 3)), seed=s) for s in (5, 6)]
    if "layout" in options:
        x = x.swapaxes(0, 1).copy()
    agree("LSTM", [x, w, r, b, None, *first, numbers(1, 9, seed=7)], 3, hidden_size=3, **options)


@pytest.mark.parametrize("linear", [0, 1])
def test_gru_without_bias(linear):
    x, (w, r, _) = numbers(3, 2, 2), weights("GRU", 1, 2, 3)
    agree("GRU", [x, w, r], 1, hidden_size=3, linear_before_reset=linear, clip=0.5)


def test_one_step_and_half_floats():
    x, (w, r, b) = numbers(1, 2, 3), weights("LSTM", 1, 3, 4)
    wide = agree("LSTM", [x, w, r, b], 3, hidden_size=4)
    half = [a.astype("float16") for a in (x, w, r, b)]
    check_node("LSTM", half, wide, rtol=1e-2, atol=5e-3, hidden_size=4)


def test_sizes_may_be_symbolic():
    x, (w, r, b) = numbers(5, 2, 3), weights("GRU", 2, 3, 4)
    check_symbolic("GRU", [x, w, r, b], {(0, 0): "steps", (0, 1): "batch"}, outputs=2, direction="bidirectional")


@pytest.mark.parametrize(
    "options,message",
    [
        ({"direction": "sideways"}, "direction"),
        ({"activations": ["Sigmoid"]}, "1 functions; 3"),
        ({"activations": ["Sigmoid", "Tanh", "Gelu"]}, "unknown activation"),
        ({"hidden_size": 7}, "hidden_size = 7"),
        ({"direction": "bidirectional"}, "W is"),
    ],
)
def test_refuses(options, message):
    x, (w, r, b) = numbers(3, 2, 2), weights("LSTM", 1, 2, 3)
    with pytest.raises(GraphError, match=message):
        run_node("LSTM", x, w, r, b, **options)

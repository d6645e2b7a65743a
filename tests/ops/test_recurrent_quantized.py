"""LSTMs with 8-bit weights that are constant: the compiled recurrence against the operator's own meaning."""

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401
from weft.graph.ir import Graph, Node, TensorType, Value, dtype_name
from weft.graph.opspec import find_operator

DOMAIN = "com.microsoft"


def model(steps, batch, features, hidden, count, dtype, by_gate):
    """The twelve inputs of DynamicQuantizeLSTM."""
    random = np.random.default_rng(hidden)
    limits = np.iinfo(dtype)
    ends = (count, 4 * hidden) if by_gate else (count,)

    def weights(rows):
        made = random.integers(limits.min, limits.max, (count, rows, 4 * hidden), endpoint=True).astype(dtype)
        zero = np.zeros(ends, dtype) if dtype == "int8" else random.integers(90, 160, ends).astype(dtype)
        return made, random.uniform(0.002, 0.004, ends).astype("float32"), zero

    (w, w_scale, w_zero), (r, r_scale, r_zero) = weights(features), weights(hidden)
    x = random.standard_normal((steps, batch, features)).astype("float32")
    bias = random.standard_normal((count, 8 * hidden)).astype("float32")
    return [x, w, r, bias, None, None, None, None, w_scale, w_zero, r_scale, r_zero]


def check(arrays, tolerance=1e-5, warm=(0,), **attributes):
    """Compiled with constant weights; the inputs at `warm` are the caller's."""
    values = [
        None if a is None else Value(f"i{k}", TensorType(dtype_name(a.dtype), a.shape)) for k, a in enumerate(arrays)
    ]
    outputs = [Value(f"o{k}") for k in range(3)]
    node = Node("DynamicQuantizeLSTM", values, outputs, attributes, domain=DOMAIN)
    constants = {v: a for k, (v, a) in enumerate(zip(values, arrays)) if v is not None and k not in warm}
    module = weft.compile(Graph("main", [values[k] for k in warm], outputs, [node], constants))
    wanted = find_operator("DynamicQuantizeLSTM", DOMAIN).run(node, arrays)
    for _ in range(2):
        for got, want in zip(module(*(arrays[k] for k in warm)), wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=tolerance)
    return module


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("by_gate", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("count, batch, hidden", [(1, 1, 16), (2, 3, 20), (1, 2, 7)])
def test_recurrence_of_bytes(count, batch, hidden, dtype, by_gate):
    direction = "bidirectional" if count == 2 else "forward"
    # A state that lies within a last digit of the border between two codes may be rounded either way.
    check(model(5, batch, 6, hidden, count, dtype, by_gate), 2e-3, hidden_size=hidden, direction=direction)


@pytest.mark.filterwarnings("error")
def test_states_lengths_and_peepholes():
    arrays = model(5, 3, 6, 8, 1, "int8", False)
    random = np.random.default_rng(1)
    arrays[4] = np.array([5, 2, 3], "int32")
    arrays[5], arrays[6] = (random.standard_normal((1, 3, 8)).astype("float32") for _ in range(2))
    arrays[7] = random.standard_normal((1, 24)).astype("float32")
    check(arrays, 2e-3, warm=(0, 4, 5, 6), hidden_size=8, direction="reverse", clip=1.5, input_forget=1)


@pytest.mark.filterwarnings("error")
def test_a_state_of_zeros_has_a_unit():
    arrays = model(3, 1, 4, 8, 1, "int8", False)
    arrays[0], arrays[3] = np.zeros_like(arrays[0]), np.zeros_like(arrays[3])
    check(arrays, hidden_size=8)


def test_weights_of_the_caller_run_on_the_host():
    with pytest.warns(weft.compiler.HostWarning, match="DynamicQuantizeLSTM"):
        check(model(3, 1, 4, 8, 1, "int8", False), warm=(0, 1, 2), hidden_size=8)

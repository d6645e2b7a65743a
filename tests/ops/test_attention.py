"""Attention and its kin against ONNX's cases and torch."""

import numpy as np
import pytest
import torch

from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import check_node, numbers, run_node
from weft.graph.ir import GraphError

OPERATORS = ("Attention", "LinearAttention", "RotaryEmbedding", "TensorScatter")
PREVIEW = "ai.onnx.preview"


@pytest.mark.parametrize("case", [*cases(*OPERATORS), *cases("FlexAttention", domain=PREVIEW)], ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case), "no compiled form"


@pytest.mark.parametrize("case", [*kernels(*OPERATORS, quick=1), *kernels("FlexAttention", quick=1, domain=PREVIEW)])
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


@pytest.mark.parametrize("causal", [0, 1])
def test_against_torch(causal):
    q, k, v = numbers(2, 4, 5, 8), numbers(2, 4, 5, 8, seed=1), numbers(2, 4, 5, 6, seed=2)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *[torch.from_numpy(a) for a in (q, k, v)], is_causal=bool(causal)
    ).numpy()
    check_node("Attention", [q, k, v], wanted, is_causal=causal)


def test_a_row_that_sees_nothing_is_zero():
    q, k, v = numbers(1, 1, 2, 4), numbers(1, 1, 3, 4, seed=1), numbers(1, 1, 3, 4, seed=2)
    mask = np.array([[False, False, False], [True, False, False]])
    wanted = np.stack([np.zeros(4, np.float32), v[0, 0, 0]])[None, None]
    check_node("Attention", [q, k, v, mask], wanted)


def test_positions_outside_the_cache():
    """The host refuses them; a kernel, which cannot, must not read outside."""
    x, cache = numbers(1, 2, 3, 4), numbers(5, 2, seed=1)
    places = np.array([[0, 1, 99]])
    with pytest.raises(GraphError, match="position"):
        run_node("RotaryEmbedding", x, cache, cache, places)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_writes_into_a_cache(mode):
    past, update = numbers(2, 3, 6, 4), numbers(2, 3, 2, 4, seed=1)
    starts = np.array([1, 4 if mode == "linear" else 5])
    wanted = past.copy()
    for sample, start in enumerate(starts):
        for place in range(2):
            wanted[sample, :, (start + place) % 6] = update[sample, :, place]
    check_node("TensorScatter", [past, update, starts], wanted, mode=mode)


def test_errors():
    q = numbers(1, 3, 2, 4)
    with pytest.raises(GraphError, match="cannot share"):
        run_node("Attention", q, numbers(1, 2, 2, 4), numbers(1, 2, 2, 4))
    with pytest.raises(GraphError, match="heads do not divide"):
        run_node("Attention", *[numbers(1, 2, 5)] * 3, q_num_heads=2, kv_num_heads=2)
    with pytest.raises(GraphError, match="outside the 6 places"):
        run_node("TensorScatter", numbers(1, 1, 6, 4), numbers(1, 1, 2, 4), np.array([5]))
    with pytest.raises(GraphError, match="needs the input decay"):
        run_node("LinearAttention", *[numbers(1, 2, 4)] * 3, q_num_heads=1, kv_num_heads=1, outputs=2)

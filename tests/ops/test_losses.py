"""Losses against ONNX's cases and torch."""

import numpy as np
import pytest
import torch

from tests.ops.cases import cases, check_case, check_meaning, kernels
from tests.ops.nodes import check_node, numbers, run_node
from weft.graph.ir import GraphError

OPERATORS = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda c: c.name)
def test_onnx_case(case):
    assert check_meaning(case), "no compiled form"


@pytest.mark.parametrize("case", kernels(*OPERATORS))
def test_onnx_case_compiled(case):
    assert check_case(case, constants=False)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_against_torch(reduction):
    scores, weight = numbers(4, 5, 3), np.abs(numbers(5, seed=1)) + 0.1
    labels = np.random.default_rng(2).integers(0, 5, (4, 3))
    labels[0, 0] = -1
    wanted = torch.nn.functional.cross_entropy(
        *[torch.from_numpy(a) for a in (scores, labels, weight)], ignore_index=-1, reduction=reduction
    ).numpy()
    options = {"reduction": reduction, "ignore_index": -1}
    check_node("SoftmaxCrossEntropyLoss", [scores, labels, weight], wanted, **options)
    logs = torch.log_softmax(torch.from_numpy(scores), 1).numpy()
    check_node("NegativeLogLikelihoodLoss", [logs, labels, weight], wanted, **options)


def test_an_index_to_ignore_that_no_label_can_have():
    scores, labels = numbers(4, 5), np.array([0, 3, 2, 4], "int32")
    wanted = -scores[np.arange(4), labels].mean()
    check_node("NegativeLogLikelihoodLoss", [scores, labels], wanted, ignore_index=1 << 40)


def test_errors():
    with pytest.raises(GraphError, match="outside a dimension of 5"):
        run_node("NegativeLogLikelihoodLoss", numbers(2, 5), np.array([1, 9]))
    with pytest.raises(GraphError, match="outside a dimension of 5"):
        run_node("NegativeLogLikelihoodLoss", numbers(2, 5), np.array([1, -1]))
    with pytest.raises(GraphError, match="known are 'none', 'sum', 'mean'"):
        run_node("NegativeLogLikelihoodLoss", numbers(2, 5), np.array([1, 0]), reduction="most")

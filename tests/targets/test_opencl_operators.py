"""ONNX's node cases on OpenCL: every operator's tensor program under the GPU's default schedule, against its outputs.

Cases of dense tensors run, many in one test: their kernels are compiled together, which is what makes that quick. The
quick suite has two cases of each operator, the full one all that there are.
"""

from __future__ import annotations

import collections
import functools

import numpy as np
import pytest

from tests.codegen.c_support import opencl
from tests.ops.cases import all_cases, array, compare
from tests.targets import device_graphs
from weft.frontends.onnx import load

RANDOM = ("bernoulli", "random", "dropout_random", "training_dropout")
PORTIONS, MORE_PORTIONS = 12, 36
OF_EACH = 2
"""How many cases of an operator the quick suite runs."""


def _is_tensor(value):
    return isinstance(array(value), np.ndarray) and array(value).dtype.kind in "biuf"


def wanted_cases():
    """The cases of dense tensors."""
    made = []
    for case in all_cases():
        given, expected = case.data_sets[0]
        if any(word in case.name for word in RANDOM):
            continue
        if not all(_is_tensor(value) for value in (*given, *expected)):
            continue
        if case.model.graph.node[0].domain == "ai.onnx.preview.training":
            continue
        made.append(case)
    assert len(made) > 1500
    return made


@functools.cache
def divided_cases():
    """The cases of the quick suite, which have an operator that few before them have, and the others."""
    seen = collections.Counter()
    few, others = [], []
    for case in wanted_cases():
        operators = {node.op_type for node in case.model.graph.node}
        (few if any(seen[name] < OF_EACH for name in operators) else others).append(case)
        seen.update(operators)
    return few, others


def check_portion(cases, target):
    """Some cases; what is wrong with any of them is told at the end."""
    plans, wrong = [], {}
    for case in cases:
        try:
            arrays = [np.asarray(array(value)) for value in case.data_sets[0][0]]
            plans.append((case, device_graphs.plan(load(case.model), arrays, target, case.name)))
        except Exception as error:  # noqa: BLE001  (whatever it is, the other cases run too)
            wrong[case.name] = f"{type(error).__name__}: {error}"
    device_graphs.load([plan for _, plan in plans], target)
    for case, plan in plans:
        try:
            for got, wanted in zip(plan.run(), case.data_sets[0][1], strict=True):
                compare(case.name, got, array(wanted), case)
        except Exception as error:  # noqa: BLE001
            wrong[case.name] = f"{type(error).__name__}: {error}"
    assert not wrong, "\n".join(f"{name}: {text[:1000]}" for name, text in wrong.items())
    assert sum(len(plan.kernels) for _, plan in plans) > len(plans) // 2


@pytest.mark.parametrize(
    "number",
    [number if number % 6 == 0 else pytest.param(number, marks=pytest.mark.slow) for number in range(PORTIONS)],
)
def test_every_operator_on_opencl(number):
    target = opencl()
    check_portion(divided_cases()[0][number::PORTIONS], target)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(MORE_PORTIONS))
def test_all_cases_on_opencl(number):
    target = opencl()
    check_portion(divided_cases()[1][number::MORE_PORTIONS], target)

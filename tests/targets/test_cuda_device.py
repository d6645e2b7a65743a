"""On an NVIDIA GPU: random programs under random schedules, and ONNX's node cases, as on OpenCL."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.codegen.c_support import cuda
from tests.conftest import FULL
from tests.ops.cases import array, compare
from tests.schedule.checking import assert_same
from tests.schedule.intrinsics import declare_intrinsics
from tests.targets.device_graphs import run_graph
from tests.targets.test_opencl_operators import wanted_cases
from tests.targets.test_opencl_random import check_seeds
from weft.frontends.onnx import load

CASES = [parameter for parameter in wanted_cases() if FULL or not parameter.marks]


def test_random_schedules_compute_the_same():
    def check(func, arrays, want):
        copies = [a.copy() for a in arrays]
        weft.build(func, target=target)(*copies)
        assert_same(copies, want, f"on CUDA\n{func!r}")

    target = cuda()
    declare_intrinsics()
    count = 2000 if FULL else 100
    check_seeds(range(10_000, 10_000 + count), check, count // 2)


@pytest.mark.parametrize("case", CASES)
def test_case_on_cuda(case):
    target = cuda()
    given, expected = case.data_sets[0]
    done = run_graph(load(case.model), [np.asarray(array(value)) for value in given], target)
    for got, wanted in zip(done.outputs, expected):
        compare(case.name, got, array(wanted), case)

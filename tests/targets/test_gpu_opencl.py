"""Default schedules of machines with threads, run by OpenCL: local memory and barriers really execute."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.codegen.c_support import opencl
from tests.targets.test_gpu_schedules import convolution, matmul, reduction, shape_of, softmax
from weft import te
from weft.targets.gpu.families import default_schedule


def soft(a):
    """The softmax of rows."""
    power = np.exp(a - a.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)


CASES = {
    "rows": lambda: (*reduction((40, 200), [1]), lambda a: a.sum(1)),
    "columns": lambda: (*reduction((64, 40), [0]), lambda a: a.sum(0)),
    "softmax": lambda: (*softmax((6, 300), 1), soft),
    "product": lambda: matmul(33, 50, 27),
    "vector product": lambda: matmul(1, 96, 256, True),
    "convolution": lambda: convolution(8, 9, 16, 3, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_default_schedules_run(name):
    target = opencl()
    inputs, output, reference = CASES[name]()
    schedule = te.create_schedule(output.op)
    default_schedule(schedule, target)
    function = weft.build(schedule, [*inputs, output], target)
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape_of(t)).astype(t.dtype.numpy) for t in inputs]
    made = np.full(shape_of(output), np.nan, output.dtype.numpy)
    function(*arrays, made)
    np.testing.assert_allclose(made, reference(*arrays), rtol=1e-3, atol=1e-3)

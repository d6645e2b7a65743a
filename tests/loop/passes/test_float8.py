"""float8 in kernels: every number of both forms, and the nearest one of float32, compiled and interpreted."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import te
from weft.core.dtypes import dtype
from weft.expr.intrinsics import FLOAT8_FORMS
from weft.loop.interpreter import interpret
from weft.targets.registry import find_target


def converted(source, to, values):
    """Values of a type as another: compiled, in the scheduled program, and lowered for a GPU."""
    x = te.placeholder(values.shape, source, name="x")
    y = te.compute(values.shape, lambda i: x[i].astype(to), name="y")
    schedule, made = te.create_schedule(y.op), []
    for _ in range(3):
        made.append(np.zeros(values.shape, dtype(to).numpy))
    weft.build(schedule, [x, y])(values, made[0])
    interpret(schedule.func, values, made[1])
    lowered = find_target("cuda:sm_90a").lower(schedule.func)
    given = [a.view(p.dtype.numpy) for p, a in zip(lowered.params, (values, made[2]))]
    interpret(lowered, *given)
    return made


@pytest.mark.parametrize("name", FLOAT8_FORMS)
def test_conversions(name):
    kind, most = dtype(name).numpy, FLOAT8_FORMS[name][2]
    every = np.arange(256, dtype=np.uint8).view(kind)
    for found in converted(name, "float32", every):
        np.testing.assert_array_equal(found, every.astype(np.float32))
    numbers = np.sort(every.astype(np.float32)[np.isfinite(every.astype(np.float32))])
    random = np.random.default_rng(0)
    beside = np.nextafter((numbers[1:] + numbers[:-1]) / 2, np.float32(1e9))
    wide = random.standard_normal(500).astype(np.float32) * np.exp(random.uniform(-14, 12, 500)).astype(np.float32)
    values = np.concatenate(
        [numbers, (numbers[1:] + numbers[:-1]) / 2, beside, wide, [np.inf, -np.inf, np.nan, 0, -0.0]]
    )
    values = values.astype(np.float32)
    want = np.clip(values, -most, most).astype(kind)
    for found in converted("float32", name, values):
        same = (found.view(np.uint8) == want.view(np.uint8)) | (np.isnan(values) & np.isnan(found.astype(np.float32)))
        assert same.all(), values[~same]


def test_arithmetic_is_that_of_float32():
    values = np.array([1.5, -448, 0.25, 96], dtype("float8_e4m3fn").numpy)
    x = te.placeholder((4,), "float8_e4m3fn", name="x")
    y = te.compute((4,), lambda i: te.maximum(x[i] + x[i], x[i]), name="y")
    made = np.zeros(4, values.dtype)
    weft.build(te.create_schedule(y.op), [x, y])(values, made)
    np.testing.assert_array_equal(made.astype(np.float32), [3, -448, 0.5, 192])

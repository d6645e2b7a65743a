"""Random flat programs through codegen/c: plain C and OpenCL give what the interpreter gives."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.codegen.c_support import run_opencl, run_plain
from tests.codegen.test_random_programs import COUNT, programs
from tests.conftest import FULL
from weft.loop.interpreter import interpret

SETTINGS = {"suppress_health_check": list(HealthCheck), "deadline": None}


def check(func, size, run):
    rng = np.random.default_rng(size)
    a = rng.integers(-50, 50, COUNT).astype(np.int32)
    b = rng.choice(np.float32([0.0, -0.0, 1.5, -2.25, 3.0, 1e9, -7.5, np.inf, np.nan, 0.1]), COUNT)

    def outputs():
        return [np.zeros(COUNT, np.int32), np.zeros(COUNT, np.float32), np.zeros(COUNT, bool)]

    expected, got = outputs(), outputs()
    with np.errstate(all="ignore"):
        interpret(func, a.copy(), b.copy(), *expected, size)
    run(func, a.copy(), b.copy(), *got, size)
    for mine, theirs in zip(got, expected):
        np.testing.assert_array_equal(mine, theirs)


@settings(max_examples=200 if FULL else 20, **SETTINGS)
@given(programs(), st.integers(0, 40))
def test_plain_c_agrees_with_the_interpreter(tmp_path_factory, func, size):
    folder = tmp_path_factory.mktemp("plain")
    check(func, size, lambda f, *arguments: run_plain(f, folder, *arguments))


@settings(max_examples=150 if FULL else 8, **SETTINGS)
@given(programs(), st.integers(0, 40))
def test_opencl_agrees_with_the_interpreter(func, size):
    check(func, size, run_opencl)

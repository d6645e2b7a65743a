"""CUDA C from codegen/c compiles with NVRTC for every architecture: all operations and types, random schedules."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.codegen import test_c_values as values
from tests.codegen.support import many_elementwise
from tests.codegen.test_c_goldens import PROGRAMS
from tests.conftest import FULL
from tests.schedule.intrinsics import declare_intrinsics
from tests.targets.test_opencl_random import draw_pair
from weft.core.errors import TargetError
from weft.targets.registry import find_target

ARCHITECTURES = ("sm_80", "sm_90a")


@pytest.fixture(scope="module")
def compile_source():
    """NVRTC's compiler; the test is skipped where the library is not installed."""
    from weft.targets.cuda import nvrtc

    if not nvrtc.is_available():
        pytest.skip(nvrtc.MISSING)
    return nvrtc.compile_source


def check(func, compile_source, lowered=False):
    target = find_target("cuda:sm_80")
    program = target.generate(func if lowered else target.lower(func))
    for architecture in ARCHITECTURES:
        assert compile_source(program.source, architecture)


@pytest.mark.parametrize("program", [p for p, d in PROGRAMS if d == "cuda"], ids=lambda p: p.__name__)
def test_goldens_compile(program, compile_source):
    check(program(), compile_source)


@pytest.mark.parametrize("what", ["integers", "floats", "casts"])
def test_operations_compile(what, compile_source, monkeypatch):
    def compiled(makes, results, arrays, kinds, run, exact):
        check(many_elementwise(makes, results, values.COUNT, 4, kinds), compile_source, lowered=True)

    monkeypatch.setattr(values, "compare", compiled)
    kinds = {"integers": values.INTEGERS, "floats": values.FLOATS, "casts": (*values.INTEGERS, *values.FLOATS, "bool")}
    chosen = [kind for kind in kinds[what] if FULL or kind in values.QUICK]
    for kind in chosen:
        getattr(values, f"test_{what}")(kind, None)


def test_random_schedules_compile(compile_source):
    declare_intrinsics()
    compiled = 0
    for seed in range(7000, 7200 if FULL else 7012):
        pair = draw_pair(seed, Counter())
        if pair is None:
            continue
        try:
            check(pair[0], compile_source)
            compiled += 1
        except TargetError as error:
            assert "constant" in str(error) or "not every thread" in str(error), f"seed {seed}: {error}"
    assert compiled >= 5

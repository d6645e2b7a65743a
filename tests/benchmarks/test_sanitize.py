"""The families of `benchmarks.sanitize`, where there is no GPU: their kernels are what they say, their values right."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft
from benchmarks import sanitize
from benchmarks.sanitize_families import FAMILIES
from tests.codegen.c_support import opencl
from weft.targets.cuda import nvrtc

BY_NAME = {family.name: family for family in FAMILIES}
RUN = ("vector times matrix", "scatter elements", "sum along the middle", "one hot", "where")


def test_names_are_different():
    assert len(BY_NAME) == len(FAMILIES)


@pytest.mark.parametrize("family", [pytest.param(family, id=family.name) for family in FAMILIES])
def test_every_family_has_its_kernels(family):
    (one,) = weft.compile(family.graph(), target="cuda:sm_90a", precision=family.precision).specializations
    assert not one.host_nodes
    assert any(re.search(family.needs, program.source) for program in one.runner.kernels.values())


ANYWHERE = [name for name, family in BY_NAME.items() if family.precision is None]


@pytest.mark.parametrize("name", [n if n in RUN else pytest.param(n, marks=pytest.mark.slow) for n in ANYWHERE])
def test_values_on_opencl(name):
    opencl()
    answer = sanitize.run_family(BY_NAME[name], "opencl")
    assert answer["kernels"] > 0 and not answer["problem"]


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
@pytest.mark.parametrize("tool", sanitize.PLANTED)
def test_planted_kernels_compile(tool):
    assert nvrtc.compile_source(sanitize.planted_program(tool).source, "sm_90a")[1:4] == b"ELF"


def test_rows_are_judged():
    clean = sanitize.Row("softmax", 1, found={"memcheck": 0, "racecheck": 0})
    found = sanitize.Row("product", 2, found={"memcheck": 0, "racecheck": 3})
    missed = sanitize.Row("planted for memcheck", 1, found={"memcheck": 0}, expects="memcheck")
    seen = sanitize.Row("planted for racecheck", 1, found={"racecheck": 8}, expects="racecheck")
    wrong = sanitize.Row("sum", 1, "values differ", {"memcheck": 0})
    assert [row.is_good for row in (clean, found, missed, seen, wrong)] == [True, False, False, True, False]
    text = sanitize.table([clean, found, missed, seen, wrong], sanitize.TOOLS)
    assert "3 found" in text and "2 of 5 rows" in text


@pytest.mark.parametrize("text, count", [
    ("========= ERROR SUMMARY: 0 errors", "0"),
    ("========= ERROR SUMMARY: 64 errors", "64"),
    ("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)", "2"),
])  # fmt: skip
def test_summaries_are_read(text, count):
    found = sanitize.SUMMARY.search(text)
    assert found is not None and (found[1] or found[2]) == count


def test_errors_are_relative():
    want = np.array([0.0, 10.0], np.float32)
    assert sanitize.relative_error(want + 0.1, want) == pytest.approx(0.01, rel=1e-3)
    assert sanitize.relative_error(want[:1], want) == float("inf")

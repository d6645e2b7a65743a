"""The sweep of tensor programs: every case is a model that is checked, and values are right where they are measured."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

import weft  # noqa: E402
from benchmarks import programs, real_models  # noqa: E402
from benchmarks.program_tables import CASES  # noqa: E402
from benchmarks.workers import Timing  # noqa: E402


def test_every_case_is_a_valid_model_with_a_name_of_its_own():
    assert len({case.name for case in CASES}) == len(CASES) and not any("/" in case.name for case in CASES)
    for case in CASES:
        onnx.checker.check_model(case.model(), full_check=True)


@pytest.mark.parametrize("name", ["pool max 5s1", "top 5 of 1000", "lstm small", "suppression of boxes"])
def test_reference_and_module_agree(name):
    case = next(one for one in CASES if one.name == name)
    module = weft.compile(case.model(), threads=1)
    assert real_models.relative_error(module.run(None, dict(case.inputs)), case.reference()) <= case.tolerance


def test_a_row_is_compared_with_the_fastest_peer():
    timings = {
        "weft": Timing((2.0, 2.0), 2.0, 4),
        "onnxruntime": Timing((4.0, 4.0), 1.0, 4),
        "torch program": Timing((3.0, 3.0), 2.5, 4),
    }
    row = programs.Row(CASES[0], 1, timings, 0.0, {})
    assert row.ratio() == pytest.approx(1.5) and row.ratio(best=True) == pytest.approx(0.5)
    assert row.as_json()["best_peer"] == "torch program" and np.isfinite(row.as_json()["ratio_to_best"])

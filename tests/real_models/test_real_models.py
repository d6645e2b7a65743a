"""Pretrained models from PyPI packages give ONNX Runtime's answer (`python -m benchmarks.real_models --install`)."""

import warnings

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from benchmarks.real_models import MODELS, Outcome, examine, find, picture, relative_error, voice  # noqa: E402
from weft.core.errors import FrontendError  # noqa: E402

QUICK = ("silero", "openwakeword")
CASES = [
    pytest.param(model, id=model.name, marks=[] if model.name.startswith(QUICK) else [pytest.mark.slow])
    for model in MODELS
]


@pytest.mark.parametrize("model", CASES)
def test_the_answer_is_that_of_onnxruntime(model):
    path = find(model)
    if path is None:
        pytest.skip(f"{model.package} is not installed: python -m benchmarks.real_models --install")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = examine(model, path)
    if "DynamicQuantizeLSTM" in outcome.problem:
        assert outcome.problem.startswith(FrontendError.__name__)
        return
    assert outcome.right, outcome


def test_errors_are_relative_to_the_scale():
    assert relative_error([np.array([1.0, 4.0])], [np.array([1.0, 5.0])]) == pytest.approx(0.2)
    assert relative_error([np.zeros(2)], [np.zeros(3)]) == float("inf")
    assert not Outcome("m", error=float("nan")).right
    assert not Outcome("m", error=0.0, problem="refused").right


def test_inputs_look_real():
    page, sound = picture(3, 48, 320), voice(16_000)
    assert page.shape == (1, 3, 48, 320) and page.dtype == np.float32 and 0 <= page.min() < 0.2 < 0.8 < page.max() <= 1
    assert sound.dtype == np.float32 and 0.05 < sound.std() < np.abs(sound).max() <= 1

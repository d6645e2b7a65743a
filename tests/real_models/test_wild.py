"""Models of the kinds met in the wild give ONNX Runtime's answer: every output within 1e-4 of its scale."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

import tests.real_models.wild_more  # noqa: E402, F401  (adds to the table)
import weft  # noqa: E402
from tests.real_models.wild import MODELS, OPEN  # noqa: E402

TOLERANCE = 1e-4


def peer_outputs(model, feeds):
    """What ONNX Runtime gives, without optimisations that change the arithmetic."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def agree(have, want, name):
    assert have.dtype == want.dtype and have.shape == want.shape, name
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(have, want, err_msg=name)
        return
    scale = float(np.abs(want).max()) if want.size else 1.0
    error = float(np.abs(have - want).max()) / (scale or 1.0) if want.size else 0.0
    assert error <= TOLERANCE, f"{name}: {error:.1e} of its scale"


@pytest.mark.parametrize("name", MODELS)
def test_wild_model(name):
    model, arrays = MODELS[name]()
    names = [value.name for value in model.graph.input]
    feeds = dict(zip(names, arrays, strict=True))
    wanted = peer_outputs(model, feeds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nodes on the host are no matter here
        module = weft.compile(model.SerializeToString())
        made = module.run(None, feeds)
        again = module.run(None, feeds)
    for port, have, second, want in zip(module.outputs, made, again, wanted, strict=True):
        agree(np.asarray(have), np.asarray(want), port.name)
        np.testing.assert_array_equal(second, have, err_msg=f"{port.name}: a second call gives something else")


def resized(model, arrays, by):
    """Arrays for other values of the open sizes: the same elements again, so that indices stay good ones."""
    found = []
    for value, array in zip(model.graph.input, arrays):
        dims = value.type.tensor_type.shape.dim
        found.append(np.resize(array, [n + by * dim.HasField("dim_param") for dim, n in zip(dims, array.shape)]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", OPEN)
def test_other_sizes(name, tmp_path):
    """Open sizes take other values, also after the module was saved and loaded."""
    model, arrays = MODELS[name]()
    names = [value.name for value in model.graph.input]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = weft.compile(model.SerializeToString())
        module.run(None, dict(zip(names, arrays)))
        module.save(tmp_path / "wild.weft")
        loaded = weft.load(tmp_path / "wild.weft")
        for by in (0, 5):
            feeds = dict(zip(names, resized(model, arrays, by)))
            for port, have, want in zip(loaded.outputs, loaded.run(None, feeds), peer_outputs(model, feeds)):
                agree(np.asarray(have), np.asarray(want), port.name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MODELS) - set(OPEN)))
def test_saved_and_loaded(name, tmp_path):
    model, arrays = MODELS[name]()
    feeds = dict(zip([value.name for value in model.graph.input], arrays))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = weft.compile(model.SerializeToString())
        wanted = module.run(None, feeds)
        module.save(tmp_path / "wild.weft")
        made = weft.load(tmp_path / "wild.weft").run(None, feeds)
    for have, want in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(have, want)

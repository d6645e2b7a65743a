"""The standard backend interface, and a sample of ONNX's own tests through it."""

import numpy as np
import pytest
from onnx import helper

import weft.onnx_backend as backend
from benchmarks import conformance
from tests.conftest import FULL
from tests.frontends.onnx.models import classifier, model, node
from weft.core.errors import FrontendError, WeftError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_prepare_and_run():
    prepared = backend.prepare(model([node("Neg", "x"), node("Abs", "x", "z")], outputs=["y", "z"]), "CPU")
    for given in ([X], {"x": X}, X):
        y, z = prepared.run(given)
        assert (y == -X).all() and (z == X).all()
    assert prepared.run([X])["z"] is not None and prepared.host_nodes == []
    with pytest.raises(WeftError):
        prepared.run([X, X])


def test_run_model_and_run_node():
    image = np.ones((2, 3, 8, 8), np.float32)
    (got,) = backend.run_model(classifier(), [image])
    np.testing.assert_allclose(got.sum(1), 1, rtol=1e-5)
    (got,) = backend.run_node(node("Add", "a b"), [X, np.float32(2)])
    assert (got == X + 2).all()
    (got,) = backend.run_node(node("ReduceSum", "a", axes=[1]), [X], opset_version=11)
    assert (got == X.sum(1, keepdims=True)).all()
    (got,) = backend.run_node(node("SequenceLength", "s"), [[X, X]])
    assert got == 2


def test_devices_and_refusals():
    assert backend.supports_device("CPU") and backend.supports_device("CPU:0") and not backend.supports_device("TPU")
    assert backend.is_compatible(classifier())
    unknown = model([helper.make_node("Gizmo", ["x"], ["y"])])
    assert not backend.is_compatible(unknown)
    with pytest.raises(FrontendError, match="Gizmo"):
        backend.prepare(unknown)
    with pytest.raises(FrontendError, match="TPU"):
        backend.prepare(classifier(), "TPU")
    with pytest.raises(FrontendError, match="reads 2 values"):
        backend.run_node(node("Add", "a b"), [X])


# conformance


@pytest.fixture(scope="module")
def sample():
    """Every sixty-first case, of all kinds; of the full suite, every twenty-third."""
    return conformance.find_cases()[:: 23 if FULL else 61]


def test_a_sample_of_the_onnx_tests_has_no_wrong_values(sample):
    results = [conformance.run_case(case) for case in sample]
    bad = [f"{r.name}: {r.outcome}: {r.reason}" for r in results if r.outcome in ("wrong", "crashed")]
    assert not bad, "\n".join(bad)
    assert sum(r.outcome in ("compiled", "host") for r in results) > 0.9 * len(results)


def test_core_cases_are_told_apart(sample):
    core = {
        case.name: case.core for case in conformance.find_cases(["node"], "^test_(relu|bernoulli|strnorm|image_dec)")
    }
    assert core["test_relu"] and not any(core[name] for name in core if "relu" not in name) and len(core) > 6


def test_differences_are_found():
    (case,) = conformance.find_cases(["node"], "^test_relu$")
    ((given, (wanted,)),) = case.data
    assert conformance.differs([wanted], [wanted], case) == ""
    assert "at [0, 1, 2]" in conformance.differs([wanted + _bump(wanted)], [wanted], case)
    assert "float64" in conformance.differs([wanted.astype(np.float64)], [wanted], case)
    assert "float32[60]" in conformance.differs([wanted.ravel()], [wanted], case)
    assert "0 outputs" in conformance.differs([], [wanted], case)
    assert "list" in conformance.differs([[wanted]], [wanted], case)


def _bump(array):
    out = np.zeros_like(array)
    out[0, 1, 2] = 1
    return out


def test_a_worker_that_dies_or_hangs_is_a_row(tmp_path, monkeypatch):
    (case,) = conformance.find_cases(["node"], "^test_relu$")
    good = conformance.run_all([case], jobs=1)
    assert [r.outcome for r in good] == ["compiled"]
    file = tmp_path / "case"
    file.write_bytes(b"not a case")
    worker = conformance.Worker("native", 60)
    assert worker.run(case, file).outcome == "crashed"
    worker.stop()
    worker = conformance.Worker("native", 0.01)
    assert worker.run(case, file).outcome == "timeout"
    worker.stop()

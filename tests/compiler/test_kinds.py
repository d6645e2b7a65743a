"""What is given for a model: known by its class or ending, and refused with the line that makes a model of it."""

import sys

import numpy as np
import pytest

import weft
from weft.compiler.kinds import kind_of
from weft.core.errors import ArgumentError
from weft.graph.ir import Graph


def of_class(*names):
    """An object of a class of another package: "tensorflow.python.Module"."""
    bases = ()
    for name in names:
        module, _, last = name.rpartition(".")
        bases = (type(last, bases, {"__module__": module}),)
    return bases[0]()


def test_kinds():
    assert kind_of(Graph("g", [], [], [])) == "graph"
    assert kind_of("model.onnx") == "onnx" and kind_of(b"any bytes") == "onnx"
    assert kind_of("a/model.pt2") == "torch" and kind_of("model.keras") == "keras"
    assert kind_of("model.tflite") == "tflite" and kind_of(b"\0\0\0\0TFL3") == "tflite"
    assert kind_of(lambda x: x, (np.zeros(2),)) == "jax"
    assert kind_of(of_class("torch.nn.modules.Module", "keras.src.Layer", "keras.src.models.Model")) == "keras"
    assert kind_of(of_class("torch.nn.modules.Module", "mine.Network")) == "torch"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "not an int: give a model"),
        ({"weight": np.zeros(2)}, "not a dict: it holds weights"),
        (of_class("jax._src.core.ClosedJaxpr"), "give the function that it was made of"),
        (np.zeros(2), "the model comes first"),
        (dict, r"it is a class: make one of it, dict\(…\)"),
        (of_class("tensorflow.python.trackable.AutoTrackable"), r"(?s)from_saved_model.*tf2onnx"),
        (of_class("flax.linen.module.Module"), r"weft.compile\(lambda x: model.apply\(parameters, x\), x\)"),
        (of_class("jax._src.export.Exported"), "it holds StableHLO"),
        (of_class("sklearn.base.BaseEstimator"), "skl2onnx"),
        (of_class("keras.src.Layer"), r"keras.Sequential\(\[layer\]\)"),
        ("weights.safetensors", "it holds weights"),
        ("model.h5", "keras.models.load_model"),
        ("frozen.pb", "TFLiteConverter.from_saved_model"),
        ("code.py", "import it"),
    ],
)
def test_what_is_refused_says_what_it_is_and_what_to_do(given, said):
    with pytest.raises(ArgumentError, match=said):
        weft.compile(given)


def test_a_saved_model_shows_the_two_lines(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ArgumentError, match=r"from_saved_model\('.*'\)"):
        weft.compile(tmp_path)
    (tmp_path / "saved_model.pb").unlink()
    with pytest.raises(ArgumentError, match="it is a folder"):
        weft.compile(tmp_path)


def test_a_framework_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    for name in [name for name in sys.modules if name.startswith("weft.frontends.jax")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ArgumentError, match=r"needs jax: pip install 'weft-compiler\[jax\]'"):
        weft.compile(lambda x: x, np.zeros(2))

"""Errors about names say which known one was meant."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import weft
from weft.cli.main import main
from weft.core.errors import did_you_mean


def model_of(op):
    """An ONNX model of one node."""
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])] for name in ("signal", "y")]
    return helper.make_model(helper.make_graph([helper.make_node(op, ["signal"], ["y"])], "one", *ends))


def test_the_nearest_known_name_is_said_whatever_its_case():
    assert did_you_mean("cuad", ["native", "cuda"]) == " (did you mean 'cuda'?)"
    assert did_you_mean("GELU", ["Gelu", "Relu"]) == " (did you mean 'Gelu'?)"
    assert did_you_mean("vdla", ["native", "cuda"]) == ""


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        (lambda: weft.compile(model_of("Relu"), target="cuad"), "cuda"),
        (lambda: weft.compile(model_of("Relu"), target="native,cpu=neoverse-n11"), "neoverse-n1"),
        (lambda: weft.compile(model_of("RELU")), "Relu"),
        (lambda: weft.compile(model_of("Relu"))(singal=np.zeros(2, "f")), "signal"),
        (lambda: weft.models.make("resnet81"), "resnet18"),
        (lambda: weft.knobs.override(num_thread=2).__enter__(), "num_threads"),
    ],
)
def test_unknown_names(wrong, meant):
    with pytest.raises(weft.WeftError, match=rf"\(did you mean '{meant}'\?\)"):
        wrong()


def test_unknown_commands(capsys):
    with pytest.raises(SystemExit):
        main(["inspct", "dqn"])
    assert "there is no command 'inspct' (did you mean 'inspect'?)" in capsys.readouterr().err

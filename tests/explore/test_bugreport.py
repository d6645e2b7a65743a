"""A report of a bug says what is needed, and nothing that is nobody's business."""

import json
import platform
from pathlib import Path

import numpy as np
import pytest

from weft.cli.main import main
from weft.explore.bugreport import model_parts, without_private, without_weights
from weft.graph.ir import GraphError
from weft.graph.text import format_graph
from weft.models.builder import Builder


@pytest.fixture
def somebody(monkeypatch, tmp_path):
    """A user with a home folder, a name and a secret."""
    home = tmp_path / "home" / "ada"
    (home / "secret-project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "ada-lovelace")
    monkeypatch.setenv("API_TOKEN", "s3cr3t")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(home / "secret-project" / "cache"))
    monkeypatch.setenv("WEFT_NUM_THREADS", "1")
    monkeypatch.chdir(home / "secret-project")
    return home


def test_a_report_of_a_model(somebody, capsys):
    onnx = pytest.importorskip("onnx")
    from tests.cli.tiny import write_tiny

    weights = write_tiny(somebody / "secret-project" / "tiny.onnx")
    assert onnx and main(["bugreport", "tiny.onnx", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    text = Path("weft-bugreport.txt").read_text(encoding="utf-8")
    assert said["parts"] == ["System", "weft doctor", "Model", "Compiled and run", "Log"]
    for part in (
        "MatMul(",
        "self-test",
        "it ran, and gave y: float32[1, 3]",
        "WEFT_NUM_THREADS=1",
        "%b: float32[3] = ...",
    ):
        assert part in text, part
    private = [str(somebody), "ada", "s3cr3t", "API_TOKEN", "secret-project", *(f"{n:.4f}"[:6] for n in weights["b"])]
    private += [platform.node()] if len(platform.node()) > 4 and platform.node() != "localhost" else []
    assert not [word for word in private if word in text]


def test_an_error_is_what_it_is_for():
    def broken():
        raise GraphError(f"node 'x' of {Path.home()}/models/a.onnx is wrong")

    parts = model_parts(broken, lambda: "never")
    assert (
        list(parts) == ["Model", "Log"] and "GraphError: node 'x'" in parts["Model"] and "Traceback" in parts["Model"]
    )
    assert "~/…/a.onnx is wrong" in without_private(parts["Model"])


def test_sizes_stay_and_weights_go():
    b = Builder("g", seed=0)
    x = b.input("x", (2, 3))
    y = b.node(
        "Reshape", b.node("Mul", x, b.constant(np.float32([0.125, 2, 3]))), b.constant(np.int64([3, 2]), "shape")
    )
    text = without_weights(format_graph(b.finish(y, names=["y"])))
    assert "0.125" not in text and "float32[3] = ..." in text and "int64[2] = [3, 2]" in text


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("/home/ada/deep/er/model.py:12", "~/…/model.py:12"),
        ("/Users/ada/model.py", "~/…/model.py"),
        (r"C:\Users\ada\x\model.py", "~/…/model.py"),
        ('from "net at /home/ada/net.py:3"', 'from "net at ~/…/net.py:3"'),
        ("a/b and 3 / 4 of float32[1, 2]", "a/b and 3 / 4 of float32[1, 2]"),
    ],
)
def test_what_is_private(text, clean):
    assert without_private(text) == clean


def test_what_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bugreport", "-o", "a.zip"]) == 1 and ".txt" in capsys.readouterr().err
    assert main(["bugreport", "nothing.onnx"]) == 1 and "no file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

"""The demonstration runs with nothing but Weft, checks its own results, and shows what it promises."""

import pytest

from weft import demo
from weft.demo import inner_loop, main


def test_the_main_job(capsys, monkeypatch):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)  # as a plain install has it
    monkeypatch.setattr("weft.compiler.reports.profile.has_peaks", lambda target: False)  # measuring takes seconds
    tuned = []
    monkeypatch.setattr(demo, "show_tuning", lambda console, graph, budget: tuned.append(budget))
    main(["--seconds", "0.01", "--tune", "1"])
    text = capsys.readouterr().out
    wanted = ("1  A model: dqn", "simplify", "1 native call", "Gemm → Relu", "te.compute", "taken", "rival", "measured",
              "parallel", "weft ", "numpy, node by node", "× as fast", "weft explore resnet18")  # fmt: skip
    for part in wanted:
        assert part in text, part
    assert tuned == [1.0] and "ONNX Runtime" not in text


@pytest.mark.slow
def test_it_tunes_without_leaving_records(capsys, monkeypatch, tmp_path):
    from rich.console import Console

    from weft.models.builder import Builder

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    b = Builder("one", seed=0)
    graph = b.finish(b.linear(b.input("x", (8, 64)), 64, 64), names=["y"])
    demo.show_tuning(Console(width=100), graph, 1.5)
    assert "trials on" in capsys.readouterr().out
    assert not list((tmp_path / "cache").glob("tuning/*.sqlite*"))


@pytest.mark.parametrize("peer", ["onnx_runtime", "torch_eager"])
def test_peers_give_the_same_answer(peer):
    pytest.importorskip("onnxruntime" if peer == "onnx_runtime" else "torch")
    import numpy as np

    from weft.graph.interpreter import Interpreter
    from weft.models import make

    graph = make("dqn")
    feeds = {"frames": np.random.default_rng(0).random((1, 4, 84, 84), "float32")}
    call = getattr(demo, peer)(graph, feeds, 1)
    np.testing.assert_allclose(call()[0], Interpreter().run(graph, [feeds["frames"]], {})[0], rtol=1e-3, atol=1e-4)


def test_a_time_that_makes_no_sense(capsys):
    with pytest.raises(SystemExit):
        main(["--tune", "-3"])
    assert "between 0 and 3600" in capsys.readouterr().err


def test_the_inner_loop_is_found():
    assembly = "main:\n\tfmax\ta, b\n.L1:\n\tload\tx\n\tvfmadd231ps\tx, y\n\tvfmadd231ps\tx, z # note\n.L2:\n\tret\n"
    assert inner_loop(assembly) == "\tload\tx\n\tvfmadd231ps\tx, y\n\tvfmadd231ps\tx, z"

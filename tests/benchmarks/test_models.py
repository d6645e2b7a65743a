"""Models against peers: the PyTorch translation computes what the graph says; tables, JSON and charts of known rows."""

import json

import numpy as np
import pytest
from rich.console import Console

import weft.ops  # noqa: F401
from benchmarks import conv, models
from benchmarks.torch_models import NoTorchModel, to_torch
from benchmarks.workers import Prepared, Timing
from tests.compiler.graphs import attention, convnet, mlp, random_inputs, recurrent
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.models import make
from weft.models.builder import Builder


def upsampler():
    b = Builder("upsampler")
    x = b.input("noise", (1, 8, 3, 3))
    x = b.node("ConvTranspose", x, b.normal(8, 4, 4, 4), kernel_shape=[4, 4], strides=[2, 2], pads=[1, 1, 1, 1])
    return b.finish(b.node("Tanh", b.relu6(b.batch_norm(x, 4))))


@pytest.mark.parametrize("make_graph", [convnet, mlp, attention, recurrent, upsampler, lambda: make("dqn")])
def test_torch_computes_what_the_graph_says(make_graph):
    torch = pytest.importorskip("torch")
    graph = make_graph()
    arrays = random_inputs(graph)
    module = to_torch(graph)
    with torch.no_grad():
        made = module(*(torch.from_numpy(array) for array in arrays)).numpy()
    (wanted,) = interpret_graph(graph, arrays)
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)


def test_what_torch_cannot_do_is_named():
    pytest.importorskip("torch")
    x, y = Value("x", TensorType("float32", (3,))), Value("y")
    with pytest.raises(NoTorchModel, match="no translation of Erf to PyTorch"):
        to_torch(Graph("g", [x], [y], [Node("Erf", [x], [y], {})], {}))


def rows():
    def timing(seconds):
        return Timing((seconds, seconds * 1.1, seconds * 0.9), seconds * 0.8, 30)

    ready = {name: Prepared(1.5) for name in ("weft", "onnxruntime", "openvino")}
    failed = {**ready, "torch": Prepared(problem="NoTorchModel: no translation of If")}
    fast = {"weft": timing(0.01), "onnxruntime": timing(0.02), "openvino": timing(0.015)}
    slow = {"weft": timing(0.04), "onnxruntime": timing(0.02), "openvino": timing(0.05)}
    return [
        models.Row("alpha", "built-in", 1, "fp32", ready, fast, {"weft": 1e-6}, 1e-4),
        models.Row("beta", "built-in", 1, "fp32", failed, slow, {"weft": 1e-3}, 1e-4),
        models.Row("alpha", "built-in", 2, "bf16", ready, {"weft": timing(1), "openvino": timing(1)}, {"weft": 1e-2}),
    ]


def test_ratios_of_known_rows():
    alpha, beta, narrow = rows()
    assert alpha.best_peer == "openvino" and alpha.ratio("openvino") == pytest.approx(1.5)
    assert beta.best_peer == "onnxruntime" and beta.ratio(beta.best_peer) == pytest.approx(0.5)
    assert alpha.ratio("torch") is None
    assert models.mean_ratio([alpha, beta], "onnxruntime") == pytest.approx(1.0)
    assert models.mean_ratio([alpha, beta], None) == pytest.approx(np.sqrt(0.75))
    assert [row.is_wrong for row in (alpha, beta, narrow)] == [False, True, False]


def test_tables_json_and_chart(tmp_path):
    console = Console(width=200, record=True, file=open(tmp_path / "out", "w"))
    models.show(rows(), console)
    text = console.export_text()
    assert "fp32, 1 thread" in text and "bf16, 2 threads" in text and "geometric mean" in text
    assert "1.50 (1.50)" in text and "torch: NoTorchModel: no translation of If" in text
    data = json.loads(json.dumps([row.as_json() for row in rows()]))
    assert data[1]["candidates"]["torch"] == {"problem": "NoTorchModel: no translation of If"}
    assert data[0]["ratios"]["onnxruntime"] == pytest.approx(2.0)
    pytest.importorskip("matplotlib")
    models.plot(rows(), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000


def test_processor_time_is_for_one_thread(capsys):
    with pytest.raises(SystemExit):
        models.main(["--clock", "cpu", "--threads", "1", "2"])
    assert "needs --threads 1" in capsys.readouterr().err


def test_the_built_in_models_alone(tmp_path):
    found = list(models.workloads(["dqn", "silero"], tmp_path, Console(), built_ins=True))
    assert [(one.name, one.group) for one in found] == [("dqn", "built-in")]


def test_the_table_of_convolutions(tmp_path):
    console = Console(width=200, record=True, file=open(tmp_path / "out", "w"))
    one = conv.CONVOLUTIONS[1]
    timings = {
        "weft": Timing((1e-3,) * 5, 9e-4, 9), conv.ALONE: Timing((5e-4,) * 5, 4e-4, 9),
        "onnxruntime": Timing((2e-3,) * 5, 1e-3, 9),
    }  # fmt: skip
    row = conv.Row(one, 1, timings, "channels last", 1e-6, {"torch": "missing"})
    assert row.best_peer == "onnxruntime" and row.ratio("weft") == 2.0 and row.ratio(conv.ALONE) == 4.0
    conv.show([row], console)
    text = console.export_text()
    assert "C: geometric mean 2.00 of the best peer (by best calls 1.11), weakest C2 2.00; alone 4.00" in text
    assert "C2: torch: missing" in text
    assert json.loads(json.dumps(row.as_json()))["ratio_by_best_calls"] == pytest.approx(10 / 9)

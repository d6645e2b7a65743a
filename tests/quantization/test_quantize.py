"""Post-training quantization: ranges, the graph that is made, its errors, and what it refuses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import weft
from tests.compiler.graphs import attention, convnet, mlp
from weft.cli.main import main
from weft.cli.to_onnx import to_onnx
from weft.core.errors import ArgumentError
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import TensorType, Value
from weft.models.builder import Builder
from weft.quantization import QuantizedModel, quantize
from weft.quantization.data import calls_of
from weft.quantization.insert import quantize_weight
from weft.quantization.observers import METHODS, Observer, parameters


def feeds(graph, count=3, seed=0):
    random = np.random.default_rng(seed)
    value = graph.inputs[0]
    return [{value.name: random.standard_normal(value.tensor.static).astype(np.float32)} for _ in range(count)]


def ratio(exact, found):
    """Decibels."""
    return 10 * math.log10(np.square(exact).sum() / np.square(exact - found).sum())


# ------------------------------------------------------------------------------------------------------------ ranges


@pytest.mark.parametrize("low,high", [(-1.0, 3.0), (0.0, 6.0), (-4.0, 0.0), (-1e-3, 1e3)])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_parameters_cover_the_range_and_hold_zero_exactly(low, high, dtype):
    scale, zero = parameters(low, high, dtype)
    least, most = (0, 255) if dtype == "uint8" else (-127, 127)
    ends = (least - int(zero)) * float(scale), (most - int(zero)) * float(scale)
    assert ends[0] <= low + scale / 2 and ends[1] >= high - scale / 2
    assert zero.dtype == dtype and (dtype == "uint8" or zero == 0)


def test_a_range_of_nothing_has_a_scale():
    assert parameters(0.0, 0.0, "uint8") == (1, 0)


def test_observers_differ_where_there_are_outliers():
    random = np.random.default_rng(0)
    observer = Observer()
    for _ in range(4):
        observer.see(random.standard_normal((2, 8, 40, 40), np.float32), 1)
    outlier = np.zeros((1, 8, 1, 1), np.float32)
    outlier[0, 3] = 50.0
    observer.see(outlier, 1)
    assert observer.range("minmax", "uint8")[1] == 50
    assert 3 < observer.range("percentile", "uint8")[1] < 10
    assert 3 < observer.range("mse", "uint8")[1] < 50
    assert observer.mean.shape == (8,) and np.abs(observer.mean).max() < 0.1


def test_bad_numbers_are_refused():
    with pytest.raises(ArgumentError, match="NaN"):
        Observer().see(np.array([[np.nan]], np.float32), 1)
    with pytest.raises(ArgumentError, match="empty"):
        Observer().range("mse", "uint8")


def test_weights_are_symmetric_in_every_channel():
    weight = np.array([[1.0, -2.0], [0.0, 0.0], [0.001, 0.004]], np.float32)
    numbers, scale = quantize_weight(weight, 0, True)
    np.testing.assert_array_equal(numbers, [[64, -127], [0, 0], [32, 127]])
    np.testing.assert_allclose(numbers * scale[:, None], weight, atol=0.01)
    numbers, scale = quantize_weight(weight, 0, False)
    assert scale.shape == () and numbers[2].tolist() == [0, 0]


# ------------------------------------------------------------------------------------------------------------ models


@pytest.mark.parametrize("make,layers,least", [(mlp, 3, 30), (convnet, 4, 30), (attention, 4, 25)])
def test_a_quantized_model_is_near_the_float_one(make, layers, least):
    graph = make()
    made = quantize(graph, feeds(graph))
    assert isinstance(made, QuantizedModel) and len(made.layers) == layers
    assert sum(a.dtype == np.int8 and a.ndim > 1 for a in made.constants.values()) == layers
    given = feeds(graph, 1, seed=9)[0]
    exact = interpret_graph(graph, given)[0]
    module = weft.compile(made)
    found = module.run(None, given)[0]
    assert least < ratio(exact, found) < 80
    meaning = interpret_graph(made, given)[0]
    assert ratio(meaning, found) > least + 5
    integer = {"ConvInteger", "MatMulInteger"}
    assert sum(n.op in integer for n in module.specializations[0].graph.nodes) == layers
    assert not module.specializations[0].host_nodes


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_every_method_and_type(method, activations):
    graph = convnet()
    made = quantize(graph, feeds(graph), method=method, activations=activations, per_channel=activations == "int8")
    given = feeds(graph, 1, seed=9)[0]
    assert ratio(interpret_graph(graph, given)[0], weft.compile(made).run(None, given)[0]) > 25


def test_fp8():
    """Matrix products alone; of float8 on a machine that multiplies it, as float32 on others."""
    graph = mlp()
    made = quantize(graph, feeds(graph), activations="fp8")
    given = feeds(graph, 1, seed=9)[0]
    module = weft.compile(made)
    assert ratio(interpret_graph(graph, given)[0], module.run(None, given)[0]) > 25
    assert ratio(interpret_graph(made, given)[0], module.run(None, given)[0]) > 60
    ops = [node.op for node in weft.compile(made, target="cuda:sm_90a").specializations[0].graph.nodes]
    assert "NarrowMatMul" in ops and "MatMul" not in ops and "DequantizeLinear" not in ops
    assert all(node.op != "NarrowMatMul" for node in module.specializations[0].graph.nodes)
    again = weft.compile(to_onnx(made))
    np.testing.assert_array_equal(again.run(None, given)[0], module.run(None, given)[0])
    with pytest.raises(ArgumentError, match="no convolution or matrix product"):
        quantize(convnet(), feeds(convnet()), activations="fp8", keep="Gemm")


def test_scales_that_are_powers_of_two():
    """Activations and weights; biases are whole numbers of the scale of their sums, so that shifts requantize."""
    b = Builder("model")
    graph = b.finish(b.relu(b.batch_norm(b.conv(b.input("x", (1, 3, 8, 8)), 3, 8, 3, 1, 1), 8)))
    feeds = [{"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype("float32")}]
    small = weft.quantize(graph, feeds, activations="int8", scales="powers_of_two")
    scales = [array for value, array in small.constants.items() if value.name.endswith("scale")]
    assert scales and all((np.frexp(array)[0] == 0.5).all() for array in scales)
    (conv,) = (node for node in small.nodes if node.op == "Conv")
    data, weight = (next(n for n in small.nodes if n.outputs[0] is v).inputs[1] for v in conv.inputs[:2])
    bias = small.constants[conv.inputs[2]] / (small.constants[data] * small.constants[weight])
    np.testing.assert_array_equal(bias, np.rint(bias))
    assert small.errors[-1].together > 20
    with pytest.raises(ArgumentError, match="scales is 'halves'"):
        weft.quantize(graph, feeds, scales="halves")


def test_what_is_kept_stays_float():
    graph = convnet()
    names = [layer.name for layer in quantize(graph, feeds(graph)).layers]
    made = quantize(graph, feeds(graph), keep=[names[0], "Gemm"])
    assert [layer.name for layer in made.layers] == names[1:-1]
    with pytest.raises(ArgumentError, match="keep names .'nothing'"):
        quantize(graph, feeds(graph), keep=["nothing"])


def test_bias_correction_removes_the_mean_error():
    b = Builder("shifted", seed=3)
    graph = b.finish(b.linear(b.input("x", (64, 32)), 32, 16))
    data = [{"x": np.random.default_rng(0).uniform(0.5, 1.5, (64, 32)).astype(np.float32)}]
    exact = interpret_graph(graph, data[0])[0]
    errors = []
    for correction in (False, True):
        found = interpret_graph(quantize(graph, data, bias_correction=correction), data[0])[0]
        errors.append(np.abs((found - exact).mean(axis=0)).max())
    assert errors[1] < 0.5 * errors[0]


def test_the_table_names_the_hardest_layer_first():
    b = Builder("uneven", seed=0)
    x = b.input("x", (8, 32))
    weight = b.random.standard_normal((32, 32)).astype(np.float32) * 0.1
    x = b.relu(b.node("MatMul", x, b.constant(weight)))
    weight = weight.copy()
    weight[0, 0] = 40.0  # one scale for the matrix has to reach it
    x = b.node("MatMul", x, b.constant(weight))
    graph = b.finish(b.node("MatMul", b.relu(x), b.constant(weight * 0 + np.eye(32, dtype=np.float32))))
    made = quantize(graph, feeds(graph), per_channel=False)
    errors = made.errors
    assert errors[0].name == "matmul_3" and errors[0].alone < errors[1].alone - 5
    assert errors[-1].op == "output" and math.isnan(errors[-1].alone)
    layers = [one for one in errors if one.op != "output"]
    assert [one.alone for one in layers] == sorted(one.alone for one in layers)
    assert all(one.together <= one.alone + 3 for one in layers)
    lines = made.report().split("\n")
    assert lines[0].split() == ["layer", "operator", "alone", "together", "relative", "error"]
    assert lines[1].startswith("matmul_3  MatMul") and len(lines) == len(errors) + 1


def test_the_first_layer_is_as_good_alone_as_together():
    graph = convnet()
    first = next(one for one in quantize(graph, feeds(graph)).errors if one.name == "conv_1")
    assert first.alone == pytest.approx(first.together, abs=0.01) and 25 < first.alone < 60
    assert first.relative == pytest.approx(10 ** (-first.together / 20))


@pytest.mark.slow
def test_resnet18():
    graph = weft.models.resnet18()
    made = weft.quantize(graph, feeds(graph, 2))
    given = feeds(graph, 1, seed=9)[0]
    exact = weft.compile(graph).run(None, given)[0]
    found = weft.compile(made).run(None, given)[0]
    assert ratio(exact, found) > 30 and exact.argmax() == found.argmax()
    assert len(made.errors) == 22 and min(one.alone for one in made.errors[:-1]) > 30


# ------------------------------------------------------------------------------------------------------- bad requests


def test_requests_that_make_no_sense():
    graph = mlp()
    with pytest.raises(ArgumentError, match="calibration_data is empty"):
        quantize(graph, [])
    with pytest.raises(ArgumentError, match="method is 'best'"):
        quantize(graph, feeds(graph), method="best")
    with pytest.raises(ArgumentError, match="activations is 'int4'"):
        quantize(graph, feeds(graph), activations="int4")
    with pytest.raises(ArgumentError, match="gives 2 arrays for the inputs x"):
        quantize(graph, [[np.zeros((4, 20), np.float32)] * 2])
    b = Builder("none")
    with pytest.raises(ArgumentError, match="no convolution or matrix product"):
        quantize(b.finish(b.relu(b.input("x", (2, 2)))), [np.zeros((2, 2), np.float32)])


def test_calibration_data_in_any_form():
    graph = mlp()
    x = feeds(graph, 1)[0]["x"]
    made = [quantize(graph, data) for data in ([{"x": x}], [[x]], [x], iter([x]))]
    scales = [[float(a) for a in one.constants.values() if a.shape == () and a.dtype == np.float32] for one in made]
    assert scales[0] and all(one == scales[0] for one in scales)


def test_a_quantized_model_is_refused(tmp_path, capsys):
    graph = mlp()
    made = quantize(graph, feeds(graph))
    with pytest.raises(ArgumentError, match="is quantized already .*QuantizeLinear.*float model that it was made from"):
        quantize(made, feeds(graph))
    onnx = pytest.importorskip("onnx")
    from weft.cli.to_onnx import to_onnx

    onnx.save(to_onnx(made), tmp_path / "m.q.onnx")
    assert main(["quantize", str(tmp_path / "m.q.onnx"), "--random", "1"]) == 1
    assert "is quantized already" in capsys.readouterr().err


def pair(batch, open_size=False):
    """x and y of (batch, 3), (batch, 2)."""
    size = "N" if open_size else batch
    return [Value("x", TensorType("float32", (size, 3))), Value("y", TensorType("float32", (size, 2)))]


def stacked(*shapes):
    return {name: np.zeros(shape, np.float32) for name, shape in zip("xy", shapes)}


@pytest.mark.parametrize(
    ("batch", "shapes", "calls"),
    [
        (4, [(4, 3), (4, 2)], 1),
        (4, [(5, 4, 3), (5, 4, 2)], 5),
        (4, [(8, 3), (8, 2)], 2),
        (4, [(2, 4, 3), (8, 2)], 2),
        (1, [(3,), (2,)], 1),
        (1, [(6, 3), (6, 2)], 6),
        ("N", [(6, 3), (6, 2)], 1),
        ("N", [(7, 6, 3), (7, 6, 2)], 7),
    ],
)
def test_stacked_calibration_data_is_cut_into_calls(batch, shapes, calls):
    inputs = pair(batch, batch == "N")
    found = list(calls_of(inputs, stacked(*shapes)))
    assert len(found) == calls
    if batch != "N":
        assert all(one["x"].shape == (batch, 3) and one["y"].shape == (batch, 2) for one in found)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        ([(7, 3), (7, 2)], "7 samples are no whole number of batches of 4"),
        ([(8, 3), (12, 2)], "unequal numbers of calls: {'x': 2, 'y': 3}"),
        ([(4, 5), (4, 2)], r"'x' has the shape \[4, 5\]; one call takes float32\[4, 3\]"),
        ([(4, 3)], r"has the arrays \['x'\]; the model takes x, y"),
    ],
)
def test_calibration_data_that_does_not_fit_is_refused(shapes, text):
    with pytest.raises(ArgumentError, match=text):
        list(calls_of(pair(4), stacked(*shapes)))


def test_one_stacked_array_is_calibration_data():
    graph = mlp()
    calls = feeds(graph)
    whole = np.stack([one["x"] for one in calls])
    wanted = [float(a) for a in quantize(graph, calls).constants.values() if a.shape == () and a.dtype == np.float32]
    for data in (whole, whole.reshape(-1, whole.shape[-1]), {"x": whole}, [whole]):
        made = quantize(graph, data)
        assert [float(a) for a in made.constants.values() if a.shape == () and a.dtype == np.float32] == wanted


@pytest.mark.parametrize("form", ["stacked.npy", "rows.npy", "stacked.npz", "folder", "files"])
def test_the_command_takes_data_in_the_forms_that_people_have(form, tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    from weft.cli.to_onnx import to_onnx

    graph = mlp()
    calls = [one["x"] for one in feeds(graph)]
    onnx.save(to_onnx(graph), tmp_path / "m.onnx")
    data = tmp_path / "data"
    data.mkdir()
    if form.endswith(".npy"):
        np.save(data / form, np.stack(calls) if form == "stacked.npy" else np.concatenate(calls))
    elif form == "stacked.npz":
        np.savez(data / form, x=np.stack(calls))
    else:
        for at, call in enumerate(calls):
            np.save(data / f"{at}.npy", call)
    given = [data] if form == "folder" else sorted(data.iterdir())
    words = [word for path in given for word in ("--data", str(path))]
    assert main(["quantize", str(tmp_path / "m.onnx"), *words, "-o", str(tmp_path / "q.onnx"), "--json"]) == 0
    found = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(tmp_path / "q.onnx").graph.initializer}
    wanted = quantize(graph, calls)
    assert all(np.array_equal(found[value.name], array) for value, array in wanted.constants.items())


def test_the_command(tmp_path, capsys):
    pytest.importorskip("onnx")
    from weft.cli.to_onnx import to_onnx

    graph = mlp()
    source, output, data = tmp_path / "m.onnx", tmp_path / "m.q.onnx", tmp_path / "data"
    source.write_bytes(to_onnx(graph).SerializeToString())
    data.mkdir()
    for at, feed in enumerate(feeds(graph)):
        np.savez(data / f"{at}.npz", **feed)
    assert main(["quantize", str(source), "--data", str(data), "-o", str(output), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["operator"] for row in shown["layers"]] == ["Gemm"] * 3 + ["output"]
    given = feeds(graph, 1, seed=9)[0]
    assert ratio(interpret_graph(graph, given)[0], weft.compile(output).run(None, given)[0]) > 30
    assert main(["quantize", str(source)]) == 1
    assert "give --data" in capsys.readouterr().err
    np.savez(data / "bad.npz", other=np.zeros(3))
    assert main(["quantize", str(source), "--data", str(data)]) == 1
    assert "bad.npz: calibration data has the arrays ['other']; the model takes x" in capsys.readouterr().err

"""Models of one- and two-bit products: what the quantizer makes, against NumPy, and by way of a file."""

import numpy as np
import pytest

import weft
from weft.cli.main import main
from weft.core.errors import ArgumentError
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph
from weft.models.builder import Builder
from weft.models.vision import resnet18
from weft.quantization import quantize
from weft.quantization.bits import fit_weight

RNG = np.random.default_rng(5)


def residual_network():
    b = Builder("small")
    image = b.relu(b.conv(b.input("image", (1, 3, 8, 8)), 3, 16, 3, 1, 1))
    inside = b.relu(b.conv(image, 16, 16, 3, 1, 1))
    block = b.relu(b.add(b.conv(inside, 16, 16, 3, 1, 1), image))
    return b.finish(b.conv(block, 16, 32, 1, 2))


def convolve(x, w, stride=1, pad=0):
    wide = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    view = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], (2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,fcij->nfhw", view, w)


def feeds_of(count=2, shape=(1, 3, 8, 8)):
    return [{"image": RNG.standard_normal(shape).astype("float32")} for _ in range(count)]


@pytest.mark.parametrize("bits", [(2, 1), (1, 2)])
def test_a_residual_network_is_what_its_numbers_say(bits):
    """Levels and codes multiplied in NumPy, from scales in the graph and signs of the float weights."""
    graph, feeds = residual_network(), feeds_of()
    small = quantize(graph, feeds, bits=bits)
    assert [node.op for node in small.nodes].count("BitConv") == 3
    arrays = {value.name: array for value, array in small.constants.items()}
    floats = [graph.constants[node.inputs[1]] for node in graph.nodes if node.op == "Conv"]
    scales = [float(small.constants[n.inputs[1]]) for n in small.nodes if n.op == "QuantizeLinear"]
    most = 2 ** bits[0] - 1

    def layer(x, at, stride, pad):
        levels = np.clip(np.rint(x / np.float32(scales[at - 1])), 0, most) * scales[at - 1]
        codes, scale = fit_weight(floats[at], bits[1])
        weights = (2.0 * codes - (2 ** bits[1] - 1)) * scale.reshape(-1, 1, 1, 1)
        if bits[1] == 1:
            np.testing.assert_array_equal(np.sign(weights), np.where(floats[at] >= 0, 1, -1))
        return convolve(levels, weights, stride, pad)

    image = np.maximum(convolve(feeds[0]["image"].astype(np.float64), floats[0], 1, 1), 0)
    inside = np.maximum(layer(image, 1, 1, 1), 0)
    block = np.maximum(layer(inside, 2, 1, 1) + image, 0)
    wanted = layer(block, 3, 2, 0)
    made = weft.compile(small).run(None, feeds[0])[0]
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-4)
    assert any(array.dtype == np.uint8 and array.ndim == 3 for array in arrays.values())
    assert [one.op for one in small.errors] == ["Conv"] * 3 + ["output"]


def test_dense_layers_and_what_stays_float():
    b = Builder("dense")
    hidden = b.relu(b.node("MatMul", b.input("image", (4, 40)), b.normal(40, 24)))
    graph = b.finish(b.node("MatMul", hidden, b.normal(24, 8)))
    feeds = feeds_of(2, (4, 40))
    small = quantize(graph, feeds, bits=(2, 1))
    assert [node.op for node in small.nodes] == ["MatMul", "Relu", "QuantizeLinear", "BitMatMul"]
    np.testing.assert_allclose(
        weft.compile(small).run(None, feeds[0])[0], interpret_graph(small, feeds[0])[0], rtol=1e-5, atol=1e-5
    )
    with pytest.raises(ArgumentError, match="each 1 or 2"):
        quantize(graph, feeds, bits=(4, 1))
    with pytest.raises(ArgumentError, match="no layer that reads"):
        quantize(graph, feeds, bits=(2, 1), keep=[graph.nodes[-1].name])


def test_two_bits_lose_less_than_one():
    rows = RNG.standard_normal((6, 200))
    losses = []
    for planes in (1, 2):
        codes, scale = fit_weight(rows, planes)
        losses.append(np.square((2.0 * codes - (2**planes - 1)) * scale[:, None] - rows).mean())
    assert losses[1] < losses[0] / 2 and fit_weight(np.zeros((2, 4)), 1)[1].tolist() == [0, 0]


def test_the_command_line(tmp_path, capsys):
    from weft.cli.to_onnx import to_onnx

    graph = residual_network()
    source, made = tmp_path / "small.onnx", tmp_path / "bits.onnx"
    source.write_bytes(to_onnx(graph).SerializeToString())
    assert main(["quantize", str(source), "--random", "2", "--bits", "2", "1", "-o", str(made)]) == 0
    again, feed = load(str(made)), feeds_of(1)[0]
    assert [node.op for node in again.nodes].count("BitConv") == 3
    assert np.isfinite(weft.compile(again).run(None, feed)[0]).all()


@pytest.mark.slow
def test_resnet():
    """ResNet-18 of two-bit activations and one-bit weights, against NumPy node by node."""
    graph = resnet18()
    (given,) = graph.inputs
    feeds = [{given.name: RNG.standard_normal(given.tensor.static).astype("float32")}]
    small = quantize(graph, feeds, bits=(2, 1))
    assert [[node.op for node in small.nodes].count(op) for op in ("BitConv", "BitMatMul")] == [19, 1]
    wanted, made = interpret_graph(small, feeds[0])[0], weft.compile(small).run(None, feeds[0])[0]
    # A level that lies on the edge may fall to either side, where the first layer's floats differ in their last bit.
    assert np.abs(made - wanted).max() < 0.02 * np.abs(wanted).max()

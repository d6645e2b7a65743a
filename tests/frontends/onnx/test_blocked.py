"""Models in ONNX Runtime's blocked layout give the answer of the models they were made from."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.core.errors import FrontendError
from weft.frontends.onnx.blocked import DOMAIN, BlockWarning, block_size, plain_weight

onnxruntime = pytest.importorskip("onnxruntime")


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def model_of(nodes, shape, constants, outputs=("y",), blocked=False):
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 17)] + [helper.make_opsetid(DOMAIN, 1)] * blocked
    graph = helper.make_graph(nodes, "g", [image], results, tensors)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def saved(model, path):
    """The model as ONNX Runtime writes it after all of its optimisations."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session, onnx.load(path)


def network():
    """Channels that fill blocks and that do not, windows of each channel, groups, sums, pools, an upsampling."""
    make, pads = helper.make_node, {"pads": [1, 1, 1, 1]}
    nodes = [
        make("Conv", ["x", "w0", "b0"], ["c0"], **pads),  # three channels, read where they lie
        make("Relu", ["c0"], ["r0"]),
        make("Conv", ["r0", "w1"], ["c1"], group=20, **pads),  # a window for each channel, blocks not full
        make("Conv", ["c1", "w2", "b2"], ["c2"]),
        make("Conv", ["c2", "w3"], ["c3"], group=2, **pads),
        make("Add", ["c3", "c2"], ["sum"]),
        make("Relu", ["sum"], ["r3"]),
        make("MaxPool", ["r3"], ["p0"], kernel_shape=[3, 3], strides=[2, 2], **pads),
        make("AveragePool", ["p0"], ["p1"], kernel_shape=[2, 2], count_include_pad=1, **pads),
        make("Conv", ["p1", "w4"], ["c4"], strides=[2, 2]),
        make("Resize", ["c4", "", "scales"], ["up"], coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        make("Sigmoid", ["up"], ["s"]),
        make("Concat", ["s", "up"], ["both"], axis=1),
        make("Conv", ["both", "w5", "b5"], ["y"]),
        make("GlobalAveragePool", ["both"], ["z"]),
        make("Transpose", ["c4"], ["last"], perm=[0, 2, 3, 1]),
    ]
    shapes = {
        "w0": (20, 3, 3, 3),
        "w1": (20, 1, 3, 3),
        "w2": (64, 20, 1, 1),
        "w3": (64, 32, 3, 3),
        "w4": (32, 64, 1, 1),
    }
    shapes |= {"w5": (9, 64, 1, 1), "b0": (20,), "b2": (64,), "b5": (9,)}
    constants = {name: 0.2 * numbers(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    constants["scales"] = np.array([1, 1, 2, 2], "float32")
    return model_of(nodes, ["n", 3, 15, 18], constants, ("y", "z", "last"))


def test_a_saved_model(tmp_path):
    session, model = saved(network(), tmp_path / "saved.onnx")
    kinds = {node.op_type for node in model.graph.node if node.domain == DOMAIN}
    if not kinds:
        pytest.skip("ONNX Runtime has no blocked layout on this machine")
    wanted = {"Conv", "MaxPool", "AveragePool", "Upsample", "ReorderOutput", "GlobalAveragePool"}
    assert kinds >= wanted
    module = weft.compile(model)
    for batch in (1, 2):
        x = numbers(batch, 3, 15, 18, seed=batch)
        for have, want in zip(module.run(None, {"x": x}), session.run(None, {"x": x}), strict=True):
            assert have.shape == want.shape
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


def blocked_weight(weight, block):
    """What the importer undoes, with blocks of input channels too."""
    outputs, inputs, height, width = weight.shape
    blocks = weight.reshape(outputs // block, block, inputs // block, block, height, width)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 5, 3, 1)).reshape(weight.shape)


@pytest.mark.parametrize("block,channels", [(8, 24), (16, 48)])
@pytest.mark.parametrize("last", [0, 1])
def test_blocks_of_either_size(block, channels, last):
    """Ten channels fill no block: they are filled up on the way in, and left out on the way out."""
    padded, x = -(-10 // block) * block, numbers(2, 10, 5, 6)
    weight, bias = numbers(channels, 10, 3, 3, seed=1), numbers(channels, seed=2)
    wide = np.concatenate([weight, np.zeros((channels, padded - 10, 3, 3), "float32")], axis=1)
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["blocks"], domain=DOMAIN, channels_last=last),
        helper.make_node("Conv", ["blocks", "w", "b"], ["made"], domain=DOMAIN, activation="LeakyRelu",
                         activation_params=[0.2], group=1, pads=[1, 1, 1, 1]),
        helper.make_node("ReorderOutput", ["made"], ["y"], domain=DOMAIN, channels=channels - 3, channels_last=last),
    ]  # fmt: skip
    order = [0, 2, 3, 1] if last else [0, 1, 2, 3]
    given = np.ascontiguousarray(x.transpose(order))
    model = model_of(nodes, given.shape, {"w": blocked_weight(wide, block), "b": bias}, blocked=True)
    assert block_size(model.graph) == block
    plain = [helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1])]
    plain.append(helper.make_node("LeakyRelu", ["c"], ["y"], alpha=0.2))
    text = model_of(plain, x.shape, {"w": weight, "b": bias}).SerializeToString()
    want = onnxruntime.InferenceSession(text, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    want = want[:, : channels - 3].transpose(order)
    np.testing.assert_allclose(weft.compile(model).run(None, {"x": given})[0], want, rtol=1e-4, atol=1e-4)


def test_a_guess_is_said():
    """Channels that fill blocks of 16 fill those of 8 too: the file does not tell."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], domain=DOMAIN)
    with pytest.warns(BlockWarning, match="blocks of 16 channels"):
        assert block_size(model_of([node], (1, 3, 4, 4), {"w": numbers(32, 3, 1, 1)}, blocked=True).graph) == 16
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert block_size(model_of([node], (1, 3, 4, 4), {"w": numbers(24, 3, 1, 1)}, blocked=True).graph) == 8


def test_weights_made_plain():
    weight = numbers(32, 16, 3, 2)
    np.testing.assert_array_equal(plain_weight(blocked_weight(weight, 8), 8, 1), weight)
    np.testing.assert_array_equal(plain_weight(blocked_weight(weight, 16), 16, 2), weight)
    single = numbers(16, 1, 3, 3)
    np.testing.assert_array_equal(plain_weight(single, 16, 16).reshape(16, -1), single.reshape(-1, 16).T)
    assert plain_weight(numbers(16, 17, 1, 1), 16, 1) is None


def test_what_fits_no_blocks_is_refused():
    node = helper.make_node("Conv", ["x", "w"], ["y"], domain=DOMAIN)
    with pytest.raises(FrontendError, match="fill no blocks"):
        weft.compile(model_of([node], (1, 3, 4, 4), {"w": numbers(12, 3, 1, 1)}, blocked=True))
    with pytest.raises(FrontendError, match="does not lie in blocks"):
        weft.compile(model_of([node], (1, 17, 4, 4), {"w": numbers(16, 17, 1, 1)}, blocked=True))
    other = helper.make_node("Gemm", ["x", "w"], ["y"], domain=DOMAIN)
    with pytest.raises(FrontendError, match="nchwc"):
        weft.compile(model_of([other], (3, 4), {"w": numbers(4, 4)}, blocked=True))

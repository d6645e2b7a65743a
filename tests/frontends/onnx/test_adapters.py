"""Older versions of operators give what the version in the model says, through the interpreter of graphs."""

import numpy as np
import pytest
from onnx import helper

from tests.frontends.onnx.models import BOOL, FLOAT, INT64, info, model, node
from weft.core.errors import FrontendError
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph

RNG = np.random.default_rng(1)
A = RNG.normal(size=(2, 3, 4)).astype(np.float32)


def run(nodes, arrays, opset, outputs=("y",), constants=None, **more):
    kinds = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64, np.dtype(bool): BOOL}
    inputs = [(name, kinds[array.dtype], array.shape) for name, array in arrays.items()]
    nodes = nodes if isinstance(nodes, list) else [nodes]
    return interpret_graph(load(model(nodes, inputs, outputs, opset, constants, **more)), arrays)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


OLD = [
    ("Squeeze", 11, {"axes": [0]}, A[:1], lambda x: x[0]),
    ("Squeeze", 11, {}, A[:1], lambda x: x[0]),
    ("Unsqueeze", 11, {"axes": [0, 2]}, A, lambda x: x[None, :, None]),
    ("ReduceSum", 11, {"axes": [1], "keepdims": 0}, A, lambda x: x.sum(1)),
    ("ReduceSum", 11, {}, A, lambda x: x.sum(keepdims=True)),
    ("ReduceMean", 13, {"axes": [-1]}, A, lambda x: x.mean(-1, keepdims=True)),
    ("ReduceMax", 12, {"axes": [0, 2]}, A, lambda x: x.max((0, 2), keepdims=True)),
    ("ReduceL2", 11, {"axes": [1]}, A, lambda x: np.sqrt((x * x).sum(1, keepdims=True))),
    ("Clip", 7, {"min": -0.5, "max": 0.25}, A, lambda x: x.clip(-0.5, 0.25)),
    ("Clip", 7, {"max": 0.25}, A, lambda x: np.minimum(x, np.float32(0.25))),
    ("Clip", 10, {}, A, lambda x: x),
    ("Dropout", 10, {"ratio": 0.7}, A, lambda x: x),
    ("Pad", 7, {"pads": [0, 1, 0, 0, 0, 2], "value": 3.0}, A, lambda x: np.pad(
        x, ((0, 0), (1, 0), (0, 2)), constant_values=3)),
    ("Pad", 7, {"pads": [0, 0, 1, 0, 0, 1], "mode": "reflect"}, A, lambda x: np.pad(
        x, ((0, 0), (0, 0), (1, 1)), "reflect")),
    ("Slice", 9, {"starts": [1, 0], "ends": [3, 2], "axes": [1, 2]}, A, lambda x: x[:, 1:3, :2]),
    ("Slice", 7, {"starts": [0, -2], "ends": [9, 9]}, A, lambda x: x[:, -2:]),
    ("Softmax", 11, {}, A, lambda x: softmax(x.reshape(2, 12)).reshape(x.shape)),
    ("Softmax", 7, {"axis": 0}, A, lambda x: softmax(x.reshape(1, 24)).reshape(x.shape)),
    ("Softmax", 11, {"axis": -1}, A, softmax),
    ("Softmax", 11, {"axis": 2}, A, softmax),
    ("Softmax", 13, {"axis": 1}, A, lambda x: softmax(x, 1)),
    ("LogSoftmax", 11, {}, A, lambda x: np.log(softmax(x.reshape(2, 12))).reshape(x.shape)),
    ("Hardmax", 11, {}, A, lambda x: np.eye(12, dtype=np.float32)[x.reshape(2, 12).argmax(1)].reshape(x.shape)),
    ("Upsample", 7, {"scales": [1.0, 2.0, 1.5]}, A, lambda x: x.repeat(2, 1)[:, :, [0, 0, 1, 2, 2, 3]]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "opset", "attributes", "x", "wanted"), OLD, ids=lambda v: v if isinstance(v, str) else ""
)
def test_attributes_of_old_versions(op, opset, attributes, x, wanted):
    (got,) = run(node(op, "x", **attributes), {"x": x}, opset)
    np.testing.assert_allclose(got, wanted(x), rtol=1e-5, atol=1e-6)
    assert got.dtype == np.float32


def test_clip_of_doubles_keeps_its_type():
    x = np.array([-3.0, 0.5, 3.0])
    graph = load(model([node("Clip", "x", min=-1.0, max=1.0)], [("x", 11, [3])], opset=8))
    (got,) = interpret_graph(graph, [x])
    assert got.dtype == np.float64 and got.tolist() == [-1.0, 0.5, 1.0]


def test_old_dropout_masks():
    data, mask = run(node("Dropout", "x", "y m"), {"x": A}, 8, ("y", "m"))
    assert mask.dtype == np.float32 and mask.all() and (data == A).all()
    _, mask = run(node("Dropout", "x", "y m"), {"x": A}, 10, ("y", "m"))
    assert mask.dtype == bool


def test_split():
    for opset in (7, 11):
        a, b = run(node("Split", "x", "a b", axis=2, split=[1, 3]), {"x": A}, opset, ("a", "b"))
        assert (a == A[:, :, :1]).all() and (b == A[:, :, 1:]).all()
    for opset in (11, 13, 17):
        a, b = run(node("Split", "x", "a b", axis=2), {"x": A}, opset, ("a", "b"))
        assert (a == A[:, :, :2]).all() and (b == A[:, :, 2:]).all()


def test_topk():
    values, indices = run(node("TopK", "x", "v i", k=2, axis=1), {"x": A}, 9, ("v", "i"))
    assert (values == -np.sort(-A, 1)[:, :2]).all() and indices.shape == (2, 2, 4)


def test_resize_of_opset_10_rounds_up_when_it_shrinks():
    x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    small = {"s": np.array([1, 1, 0.6, 0.6], np.float32)}
    (got,) = run(node("Resize", "x s"), {"x": x}, 10, constants=small)
    assert got.tolist() == [[[[1.0, 3.0]]]]
    large = {"s": np.array([1, 1, 2, 1], np.float32)}
    (got,) = run(node("Resize", "x s"), {"x": x}, 10, constants=large)
    assert (got == x.repeat(2, 2)).all()


def test_resize_of_opset_11_with_empty_inputs():
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    empty = np.zeros(0, np.float32)
    constants = {"r": empty, "e": empty, "n": np.array([1, 1, 4, 4], np.int64)}
    (got,) = run(node("Resize", "x r e n", nearest_mode="floor"), {"x": x}, 11, constants=constants)
    assert got.shape == (1, 1, 4, 4)


def test_upsample_of_opset_9_takes_its_scales_as_an_input():
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    constants = {"s": np.array([1, 1, 2, 2], np.float32)}
    (got,) = run(node("Upsample", "x s", mode="nearest"), {"x": x}, 9, constants=constants)
    assert (got == x.repeat(2, 2).repeat(2, 3)).all()


def norm(x, scale, bias, mean, variance):
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + bias


def test_batch_normalization():
    one = [np.abs(RNG.normal(size=3)).astype(np.float32) for _ in range(4)]
    constants = dict(zip("sbmv", one))
    wanted = norm(A, *(p[:, None] for p in one))
    for outputs in ("y", "y o1 - - -", "y o1 o2 o3 o4"):  # training outputs that nobody reads
        (got,) = run(node("BatchNormalization", "x s b m v", outputs), {"x": A}, 9, constants=constants)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    full = [np.abs(RNG.normal(size=(3, 4))).astype(np.float32) for _ in range(4)]
    constants = dict(zip("sbmv", full))
    (got,) = run(node("BatchNormalization", "x s b m v", spatial=0), {"x": A}, 7, constants=constants)
    np.testing.assert_allclose(got, norm(A, *full), rtol=1e-5, atol=1e-6)
    with pytest.raises(FrontendError, match="saved_mean"):
        run(node("BatchNormalization", "x s b m v", "y o1 o2 o3"), {"x": A}, 9, ("y", "o3"), constants)


def test_group_normalization_of_opset_18():
    x = RNG.normal(size=(2, 6, 5)).astype(np.float32)
    scale, bias = np.array([2.0, 3.0], np.float32), np.array([0.5, -1.0], np.float32)
    (got,) = run(node("GroupNormalization", "x s b", num_groups=2), {"x": x}, 18, constants={"s": scale, "b": bias})
    groups = x.reshape(2, 2, 15)
    normal = (groups - groups.mean(2, keepdims=True)) / np.sqrt(groups.var(2, keepdims=True) + 1e-5)
    wanted = (normal * scale[:, None] + bias[:, None]).reshape(x.shape)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_one_hot_of_opset_9_has_no_negative_indices():
    constants = {"d": np.array(3, np.int64), "v": np.array([0, 1], np.float32)}
    x = np.array([0, -1, 2, 5], np.int64)
    (old,) = run(node("OneHot", "x d v"), {"x": x}, 9, constants=constants)
    assert old.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    (new,) = run(node("OneHot", "x d v"), {"x": x}, 11, constants=constants)
    assert new.tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]


def test_scatter_and_dft():
    x, i = np.zeros((3, 3), np.float32), np.array([[1, 0, 2]], np.int64)
    u = np.array([[1.0, 1.1, 1.2]], np.float32)
    (got,) = run(node("Scatter", "x i u"), {"x": x, "i": i, "u": u}, 9)
    assert got[1, 0] == 1 and got[0, 1] == np.float32(1.1) and got.sum() == np.float32(3.3)
    signal = RNG.normal(size=(1, 8, 2, 1)).astype(np.float32)
    (got,) = run(node("DFT", "x", axis=2), {"x": signal}, 17)
    wanted = np.fft.fft(signal[..., 0], axis=2)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], wanted, rtol=1e-4, atol=1e-5)


def test_scan_of_opset_8_has_a_batch():
    body = helper.make_graph(
        [node("Add", "s e", "n"), node("Identity", "n", "o")],
        "body", [info("s"), info("e")], [info("n"), info("o")],
    )  # fmt: skip
    state, x = np.zeros((2, 3), np.float32), RNG.normal(size=(2, 4, 3)).astype(np.float32)
    scan = node("Scan", "- s0 x", "f y", num_scan_inputs=1, body=body)
    final, out = run(scan, {"s0": state, "x": x}, 8, ("f", "y"))
    np.testing.assert_allclose(out, x.cumsum(1), rtol=1e-5)
    np.testing.assert_allclose(final, x.sum(1), rtol=1e-5)


def test_broadcasting_along_an_axis_of_opset_6():
    b = np.array([1.0, 2.0, 3.0], np.float32)
    (got,) = run(node("Add", "x b", broadcast=1, axis=1), {"x": A, "b": b}, 6)
    assert (got == A + b[:, None]).all()
    (got,) = run(node("PRelu", "x b"), {"x": A, "b": b}, 6)
    assert (got == np.where(A < 0, A * b[:, None], A)).all()
    # The rank of the first operand is found through the nodes before it.
    nodes = [
        node("Neg", "x", "n"),
        node("Transpose", "n", "t", perm=[0, 2, 1]),
        node("Mul", "t b", broadcast=1, axis=2),
    ]
    (got,) = run(nodes, {"x": A, "b": b}, 6)
    assert (got == -A.transpose(0, 2, 1) * b).all()


def test_roi_align_and_grid_sample_modes():
    inputs = [("x", FLOAT, [1, 1, 4, 4]), ("g", FLOAT, [1, 2, 2, 2])]
    graph = load(model([node("GridSample", "x g", mode="bicubic")], inputs, opset=16))
    assert graph.nodes[0].attributes["mode"] == "cubic"
    inputs = [("x", FLOAT, [1, 1, 4, 4]), ("r", FLOAT, [1, 4]), ("i", INT64, [1])]
    graph = load(model([node("RoiAlign", "x r i")], inputs, opset=10))
    assert graph.nodes[0].attributes["coordinate_transformation_mode"] == "output_half_pixel"


def test_label_encoder_of_version_1():
    encoder = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", classes_strings=["a", "b"])
    graph = load(model([encoder], [("x", 8, [3])], domains={"ai.onnx.ml": 1}))
    (got,) = interpret_graph(graph, [np.array(["b", "?", "a"], object)])
    assert got.tolist() == [1, -1, 0]
    graph = load(model([encoder], [("x", INT64, [2])], domains={"ai.onnx.ml": 1}))
    (got,) = interpret_graph(graph, [np.array([1, 7])])
    assert got.tolist() == ["b", "_Unused"]


def test_layer_normalization_that_an_optimizer_wrote_into_an_old_model():
    scale = np.linspace(0.5, 1.5, 4, dtype=np.float32)
    nodes = node("LayerNormalization", "x scale")
    (made,) = run(nodes, {"x": A}, 12, constants={"scale": scale})
    wanted = (A - A.mean(-1, keepdims=True)) / np.sqrt(A.var(-1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)

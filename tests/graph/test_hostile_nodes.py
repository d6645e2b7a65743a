"""Models with one bad node: refused with an error that names the node, or answered rightly; never Python's own
exception, never a compile that does not end, never a kernel that reads or writes outside its arrays."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.core.errors import FrontendError, WeftError
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.opspec import operators, register
from weft.graph.passes.infer import infer
from weft.graph.passes.normalize import normalize

pytestmark = pytest.mark.timeout(120)
"""A model that takes longer hangs: all of these are small, and most are refused before anything is compiled."""


@pytest.fixture
def quarter_terabyte(monkeypatch):
    """The largest tensor, whatever memory the machine has."""
    monkeypatch.setenv("WEFT_TENSOR_MEGABYTES", str(1 << 18))


def f32(*values):
    return np.array(values, np.float32)


def i64(*values):
    return np.array(values, np.int64)


class Given:
    """An input of the model: its shape, and its type."""

    def __init__(self, *shape, dtype="float32"):
        self.shape, self.dtype = shape, np.dtype(dtype)


def index(*shape):
    return Given(*shape, dtype="int64")


def single(op, *inputs, outputs=1, domain="", opset=23, **attributes):
    """A model of one node, called culprit. Arrays are constants, `Given` are inputs, None is left out."""
    names = ["" if x is None else f"x{k}" for k, x in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, name="culprit", domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "hostile",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in zip(names, inputs)
            if isinstance(x, Given)
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(x, n) for n, x in zip(names, inputs) if isinstance(x, (np.ndarray, np.generic))],
    )
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 5)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def trees(domain="ai.onnx.ml", **changes):
    attributes = {
        "nodes_featureids": [0, 0, 0],
        "nodes_treeids": [0, 0, 0],
        "nodes_nodeids": [0, 1, 2],
        "nodes_values": [0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0],
        "target_nodeids": [1, 2],
        "target_ids": [0, 0],
        "target_weights": [1.0, 2.0],
        "n_targets": 1,
    }
    return single("TreeEnsembleRegressor", Given(2, 2), domain=domain, **{**attributes, **changes})


def new_trees(**changes):
    attributes = {
        "nodes_featureids": [0],
        "nodes_splits": numpy_helper.from_array(f32(0.5)),
        "nodes_modes": numpy_helper.from_array(np.zeros(1, np.uint8)),
        "nodes_truenodeids": [0],
        "nodes_trueleafs": [1],
        "nodes_falsenodeids": [1],
        "nodes_falseleafs": [1],
        "tree_roots": [0],
        "leaf_targetids": [0, 1],
        "leaf_weights": numpy_helper.from_array(f32(1, 2)),
        "n_targets": 2,
    }
    return single("TreeEnsemble", Given(2, 2), domain="ai.onnx.ml", **{**attributes, **changes})


def byte(*shape):
    return Given(*shape, dtype="uint8")


def quantized_product(y_zero, a=np.zeros((2, 2), np.uint8), scale=np.float32(1)):  # noqa: B008  (nobody writes to them)
    one, zero = np.float32(1), np.zeros((), a.dtype)
    given = Given(*a.shape, dtype=a.dtype)
    return single("QLinearMatMul", given, scale, zero, given, one, zero, one, y_zero)


def lstm(*shapes, **attributes):
    given = [Given(*s, dtype="int32" if k == 4 else "float32") if s else None for k, s in enumerate(shapes)]
    return single("LSTM", *given, hidden_size=5, **attributes)


FOUR = Given(1, 1, 4, 4)
HEADS = (Given(1, 2, 4, 8),) * 3

REFUSED = {
    # part 1: what kernels rely on between their inputs
    "ScatterElements, indices larger than data": lambda: single(
        "ScatterElements", Given(2, 3), index(2, 64), Given(2, 64), axis=0
    ),
    "ScatterElements, small updates": lambda: single("ScatterElements", Given(4, 4), index(4, 4), Given(1, 4), axis=0),
    "ScatterElements, another rank": lambda: single("ScatterElements", Given(4, 4), index(4), Given(4), axis=0),
    "ScatterND, small updates": lambda: single("ScatterND", Given(8, 3), np.zeros((4, 1), np.int64), Given(2, 3)),
    "ScatterND, k beyond the rank": lambda: single("ScatterND", Given(2, 3), np.zeros((1, 5), np.int64), f32(0)),
    "MaxUnpool, small indices": lambda: single("MaxUnpool", FOUR, index(1, 1, 2, 2), kernel_shape=[2, 2]),
    "GatherElements, larger indices": lambda: single("GatherElements", Given(3, 3), index(3, 9), axis=0),
    "GatherND, other batches": lambda: single("GatherND", Given(2, 3), index(5, 1), batch_dims=1),
    "Gather, float indices": lambda: single("Gather", Given(3), Given(2)),
    "tree, negative feature": lambda: trees(nodes_featureids=[-3, 0, 0]),
    "new tree, negative feature": lambda: new_trees(nodes_featureids=[-1]),
    "LSTM, W of another size": lambda: lstm((3, 2, 4), (1, 20, 3), (1, 20, 5)),
    "LSTM, a wrong count of lengths": lambda: lstm((3, 2, 4), (1, 20, 4), (1, 20, 5), (1, 40), (7,)),
    "LSTM, a state of another batch": lambda: lstm((3, 2, 4), (1, 20, 4), (1, 20, 5), (1, 40), (2,), (1, 9, 5)),
    "ReverseSequence, a wrong count of lengths": lambda: single("ReverseSequence", Given(4, 4), index(9)),
    "RoiAlign, too few batch indices": lambda: single("RoiAlign", FOUR, Given(2, 4), index(1)),
    "GridSample, another batch": lambda: single("GridSample", FOUR, Given(3, 4, 4, 2)),
    "NonMaxSuppression, other scores": lambda: single(
        "NonMaxSuppression", Given(1, 6, 4), Given(1, 1, 3), i64(3), f32(0.5), f32(0)
    ),
    "Slice, ends of another length": lambda: single("Slice", Given(4, 4), i64(0, 0), i64(4), i64(0)),
    "QLinearMatMul of 32 bits": lambda: quantized_product(np.uint32(0), a=np.zeros((2, 2), np.uint32)),
    "QLinearMatMul, a matrix of scales": lambda: quantized_product(np.uint8(0), scale=np.ones((7, 7), np.float32)),
    "MatMulInteger, zero points of other rows": lambda: single("MatMulInteger", byte(4, 3), byte(3, 2), byte(16)),
    "MatMulInteger, zero points of a vector": lambda: single("MatMulInteger", byte(3), byte(3, 2), byte(3)),
    "MatMulInteger, zero points of other columns": lambda: single(
        "MatMulInteger", byte(4, 3), byte(3, 2), None, byte(3)
    ),
    "MatMul of two types": lambda: single("MatMul", byte(4), Given(2, 4, 1)),
    "Gemm of two types": lambda: single("Gemm", Given(2, 4), Given(4, 2, dtype="float64")),
    "Einsum of two types": lambda: single("Einsum", Given(2, 4), byte(4, 2), equation="ij,jk->ik"),
    "MaxPool of a huge stride": lambda: single("MaxPool", FOUR, kernel_shape=[2, 2], strides=[1 << 62, 2]),
    "MelWeightMatrix of a negative length": lambda: single(
        "MelWeightMatrix", np.int32(8), np.int32(-1), np.int32(8192), np.float32(0), np.float32(4096), opset=17
    ),
    "Conv of two types": lambda: single("Conv", FOUR, byte(1, 1, 2, 2)),
    "STFT of seven parts": lambda: single("STFT", Given(7, 128, 7), np.int64(4), None, np.int64(8)),
    "DFT of eight parts": lambda: single("DFT", Given(1, 16, 8), opset=20),
    "AffineGrid, a wide theta": lambda: single("AffineGrid", Given(2, 2, 17), i64(2, 1, 4, 4)),
    "AffineGrid, theta of a space": lambda: single("AffineGrid", Given(2, 3, 4), i64(2, 1, 4, 4)),
    "AffineGrid, theta of another batch": lambda: single("AffineGrid", Given(3, 2, 3), i64(2, 1, 4, 4)),
    "DeformConv, a mask of another batch": lambda: single(
        "DeformConv", FOUR, Given(1, 1, 2, 2), Given(1, 8, 3, 3), None, Given(2, 4, 3, 3)
    ),
    "DeformConv, a mask of another kernel": lambda: single(
        "DeformConv", FOUR, Given(1, 1, 2, 2), Given(1, 8, 3, 3), None, Given(1, 5, 3, 3)
    ),
    "ReverseSequence along the batch": lambda: single("ReverseSequence", Given(4, 4), index(4), batch_axis=0),
    "MatMulNBits, few weights": lambda: single(
        "MatMulNBits", Given(2, 32), byte(4, 1, 8), Given(4), domain="com.microsoft", K=32, N=4, block_size=32
    ),
    "LRN over no channels": lambda: single("LRN", FOUR, size=0),
    # part 6: what raised Python's own exceptions
    "Range to NaN": lambda: single("Range", np.float32(0), np.float32("nan"), np.float32(1)),
    "Range to infinity": lambda: single("Range", np.float32(0), np.float32("inf"), np.float32(1)),
    "Range without an end": lambda: single("Range", np.int64(0), np.int64(1 << 62), np.int64(1)),
    "Resize by infinity": lambda: single("Resize", FOUR, None, f32(1, 1, np.inf, 1)),
    "Resize to a negative size": lambda: single("Resize", FOUR, None, None, i64(1, 1, -8, 4)),
    "Resize beyond memory": lambda: single("Resize", FOUR, None, f32(1, 1, 1e18, 1)),
    "Attention, mode 7": lambda: single("Attention", *HEADS, outputs=4, qk_matmul_output_mode=7),
    "Attention, mode -9": lambda: single("Attention", *HEADS, outputs=4, qk_matmul_output_mode=-9),
    "TopK without k": lambda: single("TopK", Given(4), i64(), outputs=2),
    "OneHot of infinite depth": lambda: single("OneHot", index(4), f32(np.inf), f32(0, 1)),
    "OneHot with one value": lambda: single("OneHot", index(4), i64(3), f32(0)),
    "SpaceToDepth by 0": lambda: single("SpaceToDepth", FOUR, blocksize=0),
    "DepthToSpace by 0": lambda: single("DepthToSpace", Given(1, 4, 4, 4), blocksize=0),
    "Col2Im in steps of 0": lambda: single("Col2Im", Given(1, 5, 5), i64(5, 5), i64(1, 5), strides=[0, 0]),
    "STFT, a short window": lambda: single("STFT", Given(1, 16, 1), np.int64(4), Given(3), np.int64(8)),
    "QLinearMatMul, a float zero point": lambda: quantized_product(np.float32(0)),
    "tree, targets that do not exist": lambda: trees(target_ids=[7, 9]),
    "tree, a negative target": lambda: trees(target_ids=[-1, 0]),
    "new tree, targets that do not exist": lambda: new_trees(leaf_targetids=[0, 9]),
    "tree, lists of other lengths": lambda: trees(nodes_values=[0.5]),
    "tree, modes without a name": lambda: trees(nodes_modes=["BRANCH_LEQ", "BRANCH", "LEAF"]),
    "new tree, a mode that does not exist": lambda: new_trees(nodes_modes=numpy_helper.from_array(np.uint8([7]))),
    "new tree, half a mode": lambda: new_trees(nodes_modes=numpy_helper.from_array(f32(0.5))),
    "new tree, modes of another rank": lambda: new_trees(nodes_modes=numpy_helper.from_array(np.uint8([[6]]))),
    "Tile near 2^62": lambda: single("Tile", Given(4), i64(1 << 60)),
    "Expand near 2^62": lambda: single("Expand", Given(1), i64(1 << 62)),
    "Expand beyond 64 bits": lambda: single("Expand", Given(1), i64(1 << 40, 1 << 40)),
    "ConstantOfShape beyond memory": lambda: single("ConstantOfShape", i64(1 << 20, 1 << 20, 64)),
    "Pad near 2^63": lambda: single("Pad", Given(3, 3), i64(1 << 62, 0, 1 << 62, 0)),
    "EyeLike 2^36": lambda: single("EyeLike", Given(1 << 18, 1 << 18, dtype="float64")),
    "a window of 2^40": lambda: single("HannWindow", np.int64(1 << 40)),
    "a matrix of 2^50": lambda: single(
        "MelWeightMatrix", np.int64(1 << 30), np.int64(1 << 20), np.int64(8000), np.float32(0), np.float32(1)
    ),
    "DFT of 2^40": lambda: single("DFT", Given(1, 16, 1), np.int64(1 << 40), opset=20),
    "Split into 2^24": lambda: single("Split", Given(1 << 24), num_outputs=1 << 24),
    "RoiAlign with 10^12 samples": lambda: single("RoiAlign", FOUR, Given(2, 4), index(2), sampling_ratio=10**6),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name, quarter_terabyte):
    with pytest.raises(GraphError, match="node 'culprit'"):
        weft.compile(REFUSED[name]())


def test_the_cause_is_kept():
    model = single("SpaceToDepth", FOUR, blocksize=0)
    with pytest.raises(GraphError, match="'blocksize' is 0, not at least 1"):
        weft.compile(model)
    with pytest.raises(GraphError) as found:
        weft.compile(single("Reshape", Given(2, 3), i64(5, -1)))
    assert "culprit" in str(found.value)


def test_a_node_with_too_many_outputs():
    with pytest.raises(FrontendError, match=r"culprit.*outputs; 65536 are the most"):
        weft.compile(single("Split", Given(70_000), outputs=70_000, num_outputs=70_000))


def test_a_constant_with_two_outputs():
    model = single("Constant", outputs=2, value_int=3)
    with pytest.raises(FrontendError, match=r"culprit.*0 inputs and 2 outputs, where the operator has at most 0 and 1"):
        weft.compile(model)


@pytest.mark.parametrize(
    "op,inputs,most", [("Relu", 1, 1), ("Add", 2, 1), ("LayerNormalization", 2, 3), ("MaxPool", 1, 2), ("Unique", 1, 4)]
)
def test_outputs_that_the_operator_does_not_have(op, inputs, most):
    """Whoever makes the node: types and values are asked for through OpSpec, where outputs are counted."""
    shape = (1, 1, 4, 4) if op == "MaxPool" else (4,)
    given = [Value(f"x{k}", TensorType("float32", shape)) for k in range(inputs)]
    node = Node(op, given, [Value(f"y{k}") for k in range(most + 1)], {"kernel_shape": [2, 2]}, name="culprit")
    graph = Graph("g", given, node.outputs, [node])
    for attempt in (lambda: infer(graph), lambda: interpret_graph(graph, [np.ones(shape, np.float32)] * inputs)):
        with pytest.raises(GraphError, match=rf"culprit.*it has {most + 1} outputs, and its operator gives {most}"):
            attempt()


# ------------------------------------------------------------------------------------------------------ right answers


def test_attention_over_nothing():
    """Vectors without elements are equally near to everything."""
    module = weft.compile(single("Attention", Given(1, 2, 4, 0), Given(1, 2, 4, 0), Given(1, 2, 4, 3)))
    values = np.random.default_rng(0).standard_normal((1, 2, 4, 3)).astype(np.float32)
    made = module(np.zeros((1, 2, 4, 0), np.float32), np.zeros((1, 2, 4, 0), np.float32), values)
    np.testing.assert_allclose(made, np.broadcast_to(values.mean(2, keepdims=True), made.shape), rtol=1e-5)


def test_short_time_transform_without_a_window():
    signal_ = np.random.default_rng(0).standard_normal((1, 16, 1)).astype(np.float32)
    made = weft.compile(single("STFT", Given(1, 16, 1), np.int64(4), None, np.int64(8)))(signal_)
    frames = np.stack([signal_[0, k : k + 8, 0] for k in (0, 4, 8)])
    wanted = np.fft.rfft(frames)
    np.testing.assert_allclose(made[0, ..., 0] + 1j * made[0, ..., 1], wanted, atol=1e-5)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool", "MaxPool with indices"])
def test_a_kernel_of_a_million(op, constant):
    """Most of the window is padding, which takes neither memory nor time."""
    image = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)
    sizes = {"kernel_shape": [10**6, 10**6], "pads": [500_000] * 4}
    outputs = 2 if "indices" in op else 1
    model = single(op.split()[0], image if constant else Given(1, 1, 8, 8), outputs=outputs, **sizes)
    made = weft.compile(model)(*[] if constant else [image])
    made = made if outputs == 2 else [made]
    assert made[0].shape == (1, 1, 9, 9)
    seen = {"MaxPool": np.max, "AveragePool": np.mean, "LpPool": lambda x: np.sqrt((x * x).sum())}[op.split()[0]]
    np.testing.assert_allclose(made[0][0, 0, 4, 4], seen(image), rtol=1e-5)
    np.testing.assert_allclose(made[0][0, 0, 0, 0], seen(image[..., :8, :8]), rtol=1e-5)
    if outputs == 2:
        assert made[1][0, 0, 4, 4] == image.argmax()


FULL_WINDOWS = {
    "MaxPool": single("MaxPool", np.zeros((1, 1, 2_000_000), np.float32), kernel_shape=[1_000_000]),
    "MaxPool with indices": single(
        "MaxPool", np.zeros((1, 1, 2000, 2000), np.float32), outputs=2, kernel_shape=[1000, 1000]
    ),
    "AveragePool": single("AveragePool", np.zeros((1, 1, 2_000_000), np.float32), kernel_shape=[1_000_000]),
    "LpPool": single("LpPool", np.zeros((1, 1, 2_000_000), np.float32), kernel_shape=[1_000_000]),
    "LRN": single("LRN", np.zeros((1, 200_000, 1), np.float32), size=200_000),
    "Conv": single("Conv", np.zeros((1, 1, 2_000_000), np.float32), np.zeros((1, 1, 1_000_000), np.float32)),
    "ConvTranspose": single(
        "ConvTranspose", np.zeros((1, 1, 1_000_000), np.float32), np.zeros((1, 1, 1_000_000), np.float32)
    ),
    "MatMul": single("MatMul", np.zeros((2000, 2000), np.float32), np.zeros((2000, 2000), np.float32)),
    "Det": single("Det", np.zeros((4000, 4000), np.float32)),
    "LSTM": single(
        "LSTM",
        np.zeros((200_000, 1, 4), np.float32),
        np.zeros((1, 16, 4), np.float32),
        np.zeros((1, 16, 4), np.float32),
        hidden_size=4,
    ),
    "RegexFullMatch": single("RegexFullMatch", np.array(["a" * 40], object), pattern="(a+)+b"),
}


@pytest.mark.timeout(120, method="thread")  # inside numpy no signal is seen
@pytest.mark.parametrize("name", FULL_WINDOWS)
def test_folding_takes_no_more_steps_than_its_budget(name):
    """Small constants, small results, 10^10 steps and more between them: that stays a computation.

    The windows are full of numbers, unlike those of test_a_kernel_of_a_million, which are nearly all padding.
    """
    made = normalize(load(FULL_WINDOWS[name].SerializeToString()))
    assert [node.op for node in made.nodes] == [name.split()[0]]


@pytest.mark.timeout(120, method="thread")
@pytest.mark.filterwarnings("error")  # such as that a node has no kernel
@pytest.mark.parametrize("name", ["MaxPool", "Conv"])
def test_what_is_not_folded_is_compiled(name):
    module = weft.compile(FULL_WINDOWS[name])
    assert module.outputs[0].shape == (1, 1, 1_000_001)


@pytest.mark.filterwarnings("ignore::weft.compiler.module.HostWarning")
@pytest.mark.parametrize(
    "op,shapes,attributes",
    [
        ("MaxPool", [(1, 2, 9, 9)], {"kernel_shape": [4, 5], "pads": [1, 2, 0, 1], "strides": [2, 1]}),
        ("AveragePool", [(1, 2, 9, 9)], {"kernel_shape": [5, 4], "pads": [1, 2, 0, 1], "dilations": [1, 2]}),
        ("LpPool", [(1, 2, 9, 9)], {"kernel_shape": [5, 4], "strides": [1, 3]}),
        ("Conv", [(1, 2, 40), (3, 2, 30)], {}),
        ("MatMul", [(5, 7), (7, 3)], {}),
        ("Det", [(5, 5)], {}),
        ("LSTM", [(6, 1, 2), (1, 8, 2), (1, 8, 2)], {"hidden_size": 2}),
    ],
)
def test_what_is_not_folded_is_what_would_have_been(op, shapes, attributes, monkeypatch):
    """By a kernel, or (a determinant) by the host when the model runs."""
    rng = np.random.default_rng(0)
    model = single(op, *[rng.standard_normal(shape).astype(np.float32) for shape in shapes], **attributes)
    folded = weft.compile(model)()
    for name, number in (("FOLDED_STEPS", 0), ("FEW_STEPS", 0), ("FOLLOWED_STEPS", -1)):
        monkeypatch.setattr(f"weft.core.model.{name}", number)
    assert len(normalize(load(model.SerializeToString())).nodes) == 1
    with weft.knobs.override(cache=False):
        np.testing.assert_allclose(weft.compile(model)(), folded, rtol=1e-4, atol=1e-5)


def test_a_large_window_takes_its_sides_not_its_area():
    """The host pools along one dimension after the other, as kernels do: this is folded, and at once."""
    image = np.random.default_rng(0).standard_normal((1, 1, 600, 600)).astype(np.float32)
    model = single("MaxPool", image, kernel_shape=[400, 400], strides=[50, 50])
    made = normalize(load(model.SerializeToString()))
    assert not made.nodes
    wanted = np.array(
        [[image[0, 0, i : i + 400, j : j + 400].max() for j in range(0, 201, 50)] for i in range(0, 201, 50)]
    )
    np.testing.assert_array_equal(made.constants[made.outputs[0]][0, 0], wanted)


def both(model, *arrays):
    """What the compiled model gives, once it is what the numpy meaning gives."""
    made = weft.compile(model)(*arrays)
    with np.errstate(all="ignore"):
        meant = interpret_graph(load(model.SerializeToString()), arrays)
    for one, other in zip(made if isinstance(made, (list, tuple)) else [made], meant):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    return made


def test_response_over_more_channels_than_there_are():
    """All channels count, and the sum is divided by the size that was asked for."""
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    made = both(single("LRN", Given(2, 3, 4), size=1 << 31, alpha=1e9), x)
    wanted = x / (1 + 1e9 / (1 << 31) * np.square(x).sum(1, keepdims=True)) ** 0.75
    np.testing.assert_allclose(made, wanted, rtol=1e-5)


def test_pooling_meets_nan():
    """NaN is the greatest value, with or without positions."""
    x = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    x[0, 0, 0, 1] = x[0, 0, 1, 0] = x[0, 0, 3, 3] = np.nan
    sizes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    alone = both(single("MaxPool", Given(*x.shape), **sizes), x)
    values, places = both(single("MaxPool", Given(*x.shape), outputs=2, **sizes), x)
    np.testing.assert_array_equal(values, alone)
    np.testing.assert_array_equal(values[0, 0], [[np.nan, 8], [16, np.nan]])
    np.testing.assert_array_equal(places[0, 0], [[1, 8], [16, 18]])


def test_deformed_convolution_reads_nothing_outside():
    """A NaN at an edge is not met by what lies beyond the edge."""
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    x[0, 0, 0] = x[0, 0, :, 0] = np.nan
    model = single("DeformConv", Given(1, 1, 3, 3), Given(1, 1, 2, 2), Given(1, 8, 2, 2))
    made = both(model, x, np.ones((1, 1, 2, 2), np.float32), np.zeros((1, 8, 2, 2), np.float32))
    np.testing.assert_array_equal(made[0, 0], [[np.nan, np.nan], [np.nan, 4 + 5 + 7 + 8]])


def test_regions_nowhere():
    """A region whose place is no number gives no numbers."""
    model = single("RoiAlign", FOUR, Given(1, 4), index(1), sampling_ratio=2, spatial_scale=float("nan"))
    made = both(model, np.ones((1, 1, 4, 4), np.float32), np.ones((1, 4), np.float32), i64(0))
    assert np.isnan(made).all()


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("kind", ["int8", "int64"])
def test_integers_to_a_float(kind, constant):
    """The power is a float, which becomes the nearest integer that there is."""
    x, most = np.array([3, 100, -100], kind), np.iinfo(kind).max
    for power, wanted in ((1e30, [most, most, most]), (3.0, [27, min(10**6, most), max(-(10**6), ~most)])):
        y = f32(power)
        model = single("Pow", Given(3, dtype=kind), y if constant else Given(1))
        np.testing.assert_array_equal(both(model, x, *[] if constant else [y]), wanted)


# -------------------------------------------------------------------------------------------- what only the run tells


@pytest.mark.parametrize("place", [50, -1, (1 << 63) - 1, -(1 << 63)])
def test_positions_outside_a_cache(place):
    model = single("RotaryEmbedding", Given(1, 2, 3, 8), Given(50, 4), Given(50, 4), index(1, 3))
    arrays = [np.ones(shape, np.float32) for shape in ((1, 2, 3, 8), (50, 4), (50, 4))]
    with pytest.raises(WeftError, match="culprit"):
        weft.compile(model)(*arrays, i64(0, place, 49).reshape(1, 3))


@pytest.mark.parametrize("start", [3, -1, 1 << 62, (1 << 63) - 1, -(1 << 63)])
def test_updates_outside_a_cache(start):
    shapes = ((2, 4, 5), (2, 2, 5))
    past, update = np.zeros(shapes[0], np.float32), np.ones(shapes[1], np.float32)
    given = [Given(*shape) for shape in shapes]
    with pytest.raises(WeftError, match="culprit"):
        weft.compile(single("TensorScatter", *given, index(2), opset=24))(past, update, i64(2, start))
    made = both(single("TensorScatter", *given, index(2), opset=24, mode="circular"), past, update, i64(2, start))
    assert made.sum() == update.sum()
    made = both(single("TensorScatter", *given, index(2), opset=24), past, update, i64(2, 0))
    np.testing.assert_array_equal(made[:, :, 0], [[0, 0, 1, 1], [1, 1, 0, 0]])


@pytest.mark.parametrize("op,indices", [("Gather", i64(0, 64)), ("GatherND", i64(0, 64).reshape(2, 1))])
def test_indices_outside_where_nothing_is_read(op, indices):
    with pytest.raises(WeftError, match="culprit"):
        weft.compile(single(op, Given(5, 0), index(*indices.shape)))(np.zeros((5, 0), np.float32), indices)


def test_shapes_that_only_the_run_tells():
    """The same demands hold for shapes that are data: here the sizes come from NonZero."""
    nodes = [
        helper.make_node("NonZero", ["m"], ["places"]),
        helper.make_node("ScatterElements", ["data", "places", "updates"], ["y"], name="culprit", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "late",
        [
            helper.make_tensor_value_info("m", TensorProto.FLOAT, ["a", "b", "c"]),
            helper.make_tensor_value_info("data", TensorProto.FLOAT, [2, 4]),
            helper.make_tensor_value_info("updates", TensorProto.FLOAT, ["d", "e"]),
        ],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    with pytest.raises(GraphError, match="culprit"):
        weft.compile(model)(np.ones((2, 2, 2), np.float32), np.zeros((2, 4), np.float32), np.zeros((3, 8), np.float32))


@pytest.mark.parametrize("size", [1 << 62, 1 << 44, -5])
def test_sizes_that_are_data(size, quarter_terabyte):
    model = single("Expand", Given(1), index(1))
    with pytest.raises(GraphError, match="culprit"):
        weft.compile(model)(f32(1), i64(size))


def test_a_division_by_zero_inside_an_operator():
    """An operator's own mistake is an error with the node's name, and the cause is kept for us."""
    if ("test.hostile", "Careless") not in operators():
        register("Careless", lambda c: [c.tensor(0)], lambda c, x: x * (1 // 0), domain="test.hostile")
    x = Value("x", TensorType("float32", (2,)))
    node = Node("Careless", [x], [Value("y")], {}, name="culprit", domain="test.hostile")
    graph = infer(Graph("g", [x], [node.outputs[0]], [node]))
    with pytest.raises(
        GraphError, match=r"culprit.*evaluation on the host of .float32.2.. failed: ZeroDivisionError"
    ) as found:
        interpret_graph(graph, [f32(1, 2)])
    assert isinstance(found.value.__cause__, ZeroDivisionError)


def test_memory_that_runs_out_inside_an_operator():
    """numpy's MemoryError is an error with the node's name."""

    def greedy(c, x):
        raise MemoryError("Unable to allocate 3.64 TiB")

    if ("test.hostile", "Greedy") not in operators():
        register("Greedy", lambda c: [c.tensor(0)], greedy, domain="test.hostile")
    x = Value("x", TensorType("float32", (2,)))
    node = Node("Greedy", [x], [Value("y", TensorType("float32", (2,)))], {}, name="culprit", domain="test.hostile")
    with pytest.warns(UserWarning, match="culprit"), pytest.raises(GraphError, match="culprit.*3.64 TiB"):
        weft.compile(Graph("g", [x], [node.outputs[0]], [node]))(f32(1, 2))


def test_memory_that_is_not_there_for_a_result(monkeypatch):
    """The size of the result is data and below the limit, but no machine has as much: told by Weft, not by numpy."""
    monkeypatch.setenv("WEFT_TENSOR_MEGABYTES", str(1 << 40))
    module = weft.compile(single("Expand", Given(1), index(1)))
    with pytest.raises(WeftError):
        module(f32(1), i64(1 << 50))


def test_unknown_operators_show_the_way():
    for domain in ("my.company", "com.microsoft"):
        with pytest.raises(FrontendError, match=r"Frobnicate.*weft\.register_op"):
            weft.compile(single("Frobnicate", Given(4), domain=domain))

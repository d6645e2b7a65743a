"""NonMaxSuppression: the compiled choice against ONNX Runtime and against the numpy meaning."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import weft
from tests.ops.nodes import make, run_node
from weft.graph.opspec import find_operator

TYPES = {"most": TensorProto.INT64, "overlap": TensorProto.FLOAT, "least": TensorProto.FLOAT}


def model(shape, limits, constants=(), centred=0):
    """One NonMaxSuppression; limits that are None are missing, those in `constants` are part of the model."""
    images, classes, boxes = shape
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [images, boxes, 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [images, classes, boxes]),
    ]
    inputs += [
        helper.make_tensor_value_info(k, TYPES[k], [1]) for k in limits if limits[k] is not None and k not in constants
    ]
    names = ["boxes", "scores", *(k if limits.get(k) is not None else "" for k in TYPES)]
    node = helper.make_node("NonMaxSuppression", names, ["kept"], center_point_box=centred)
    kept = helper.make_tensor_value_info("kept", TensorProto.INT64, ["n", 3])
    held = [onnx.numpy_helper.from_array(limits[k], k) for k in constants if limits[k] is not None]
    graph = helper.make_graph([node], "boxes", inputs, [kept], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)


def limits(most=None, overlap=None, least=None):
    given = {"most": most, "overlap": overlap, "least": least}
    return {k: None if v is None else np.array([v], np.int64 if k == "most" else np.float32) for k, v in given.items()}


def scene(rng, shape, centred, grid, ties):
    images, classes, boxes = shape
    corners = rng.integers(0, 12, (images, boxes, 4)) if grid else rng.random((images, boxes, 4)) * 12
    corners = corners.astype("float32")
    corners[..., 2:] *= np.float32(0.4)
    if not centred and rng.random() < 0.7:  # else the two corners stand in any order
        corners[..., 2:] += corners[..., :2]
    scores = rng.integers(0, 6, (images, classes, boxes)) / 5 if ties else rng.standard_normal((images, classes, boxes))
    return corners, scores.astype("float32")


@pytest.mark.filterwarnings("ignore::weft.HostWarning")
@pytest.mark.parametrize(
    ("shape", "centred", "missing", "constants"),
    [
        ((2, 3, 40), 0, "", ()),
        ((1, 2, 300), 1, "", ("most",)),
        ((1, 1, 150), 0, "least", ("most", "overlap")),
        ((2, 1, 7), 0, "overlap", ("least",)),
        ((1, 1, 1), 0, "overlap least", ()),
    ],
)
def test_compiled_as_onnx_runtime(shape, centred, missing, constants):
    rng = np.random.default_rng(sum(shape))
    fixed = {"most": 20, "overlap": 0.3, "least": 0.2}
    given = limits(**{k: v for k, v in fixed.items() if k not in missing})
    proto = model(shape, given, constants, centred)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    module = weft.compile(proto)
    for grid in (False, True):
        for ties in (False, True):
            boxes, scores = scene(rng, shape, centred, grid, ties)
            now = limits(rng.choice([-1, 0, 1, 3, 20, 1000]), rng.choice([0, 0.3, 0.5, 1]), rng.choice([-1, 0.2, 5]))
            feeds = {"boxes": boxes, "scores": scores}
            feeds |= {k: now[k] for k in given if given[k] is not None and k not in constants}
            made = module.run(None, feeds)[0]
            np.testing.assert_array_equal(made, session.run(None, feeds)[0])
    assert "suppressedboxes" in module.report()


@pytest.mark.filterwarnings("ignore::weft.HostWarning")
def test_numbers_that_are_none():
    """Without a least score a box whose score is NaN comes last; one with a NaN coordinate overlaps nothing."""
    boxes, scores = scene(np.random.default_rng(0), (2, 2, 60), 0, True, False)
    scores[0, 0, ::3] = np.nan
    boxes[1, ::4, 1] = np.nan
    boxes[1, 1::4, 2] = np.inf
    given = [boxes, scores, np.array([60]), np.array([0.3], "float32")]
    want = find_operator("NonMaxSuppression").run(make("NonMaxSuppression", 4, 1, {}), given)[0]
    module = weft.compile(model((2, 2, 60), limits(60, 0.3)))
    np.testing.assert_array_equal(module(*given), want)
    assert np.isnan(scores[0, 0, want[(want[:, 0] == 0) & (want[:, 1] == 0)][-1, 2]])


@pytest.mark.filterwarnings("ignore::weft.HostWarning")
def test_nothing_to_choose():
    boxes, scores = scene(np.random.default_rng(0), (1, 1, 5), 0, False, False)
    assert weft.compile(model((1, 1, 5), limits(None, 0.3)))(boxes, scores, np.array([0.3], "float32")).shape == (0, 3)
    assert weft.compile(model((1, 1, 5), limits(0), ("most",)))(boxes, scores).shape == (0, 3)
    none = weft.compile(model((1, 1, 0), limits(3)))
    assert none(boxes[:, :0], scores[:, :, :0], np.array([3])).shape == (0, 3)


def test_rows_behind_the_last_are_zero():
    boxes, scores = scene(np.random.default_rng(3), (1, 2, 30), 0, True, False)
    given = [boxes, scores, np.array([4]), np.array([0.1], "float32"), np.array([0.0], "float32")]
    made, compiled = run_node("SuppressedBoxes", *given, outputs=2, domain="weft", rows=60)
    for want, got in zip(made, compiled):
        np.testing.assert_array_equal(want, got)

"""Resize, sampling and regions: ONNX's cases, and random ones against PyTorch."""

import numpy as np
import pytest
import torch

from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, make, numbers, run_node
from weft.graph.ir import GraphError
from weft.graph.opspec import find_operator
from weft.ops.resizing import _affine

OPERATORS = "Resize Upsample AffineGrid GridSample RoiAlign NonMaxSuppression".split()
ON_THE_HOST = {"NonMaxSuppression"}
F = torch.nn.functional


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case, constants=False) == (case.model.graph.node[0].op_type not in ON_THE_HOST)


def sizes(*values):
    return np.array(values, np.int64)


@pytest.mark.thin(2)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(4, 9), (10, 3), (1, 1)])
def test_resize_against_torch(mode, aligned, size):
    x = numbers(2, 3, 5, 7)
    wanted = F.interpolate(torch.tensor(x), size, mode=mode, align_corners=aligned).numpy()
    attributes = {
        "mode": {"bilinear": "linear", "bicubic": "cubic"}[mode],
        "coordinate_transformation_mode": "align_corners" if aligned else "pytorch_half_pixel",
    }
    if size == (1, 1) and not aligned:
        attributes["coordinate_transformation_mode"] = "half_pixel"
    check_node("Resize", [x, None, None, sizes(2, 3, *size)], wanted, **attributes)


@pytest.mark.parametrize("scale", [2.0, 3.0, 0.5, 1.5, 0.4])
def test_nearest_against_torch(scale):
    x = numbers(1, 2, 10, 5)
    wanted = F.interpolate(torch.tensor(x), scale_factor=scale, mode="nearest", recompute_scale_factor=False).numpy()
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    scales = np.array([1, 1, scale, scale], "float32")
    check_node("Resize", [x, None, scales], wanted, rtol=0, atol=0, **attributes)


def test_resize_of_volumes_and_lines():
    x = numbers(1, 2, 4, 5, 6)
    wanted = F.interpolate(torch.tensor(x), (8, 5, 3), mode="trilinear", align_corners=False).numpy()
    check_node("Resize", [x, None, None, sizes(8, 5, 3)], wanted, mode="linear", axes=[2, 3, 4])
    line = numbers(1, 2, 5)
    wanted = F.interpolate(torch.tensor(line), 9, mode="linear", align_corners=True).numpy()
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    check_node("Resize", [line, None, None, sizes(1, 2, 9)], wanted, **attributes)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16", "float64", "bool"])
def test_resize_of_other_types(dtype):
    x = np.abs(numbers(1, 1, 4, 4)).astype(dtype) if dtype != "uint8" else numbers(1, 1, 4, 4, dtype=dtype)
    scales = np.array([1, 1, 2, 1.5], "float32")
    for mode in ("nearest",) if dtype == "bool" else ("nearest", "linear"):
        made, compiled = run_node("Resize", x, None, scales, mode=mode)
        np.testing.assert_allclose(made[0].astype("float64"), compiled[0].astype("float64"), atol=1e-3)


def test_resize_inference():
    x = numbers(1, 3, 4, 6)
    with pytest.raises(GraphError, match="neither scales nor sizes"):
        find_operator("Resize").run(make("Resize", 1, 1, {}), [x])
    with pytest.raises(GraphError, match="unknown mode"):
        run_node("Resize", x, None, np.ones(4, "float32"), mode="area")
    made, _ = run_node("Resize", x, None, None, sizes(8, 8), axes=[2, 3], keep_aspect_ratio_policy="not_larger")
    assert made[0].shape == (1, 3, 5, 8)


def test_indices_of_nearest_elements_are_a_line():
    """Every common scale gives integer arithmetic, no rounding of floats in the kernel."""
    from fractions import Fraction

    assert _affine(np.array([0, 0, 1, 1, 2, 2]), Fraction(1, 2)) == (1, 0, 2)
    assert _affine(np.array([0, 2, 4]), Fraction(2)) is not None
    assert _affine(np.array([0, 5, 0]), Fraction(1)) is None


# --------------------------------------------------------------------------------------------------------- sampling


@pytest.mark.thin(3)
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_against_torch(mode, padding, aligned):
    x = numbers(2, 3, 5, 6)
    grid = numbers(2, 4, 7, 2, seed=1) * 1.3
    name = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    wanted = F.grid_sample(torch.tensor(x), torch.tensor(grid), name, padding, align_corners=bool(aligned))
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    check_node("GridSample", [x, grid], wanted.numpy(), **attributes)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_of_volumes(padding):
    x, grid = numbers(1, 2, 3, 4, 5), numbers(1, 2, 3, 4, 3, seed=1)
    wanted = F.grid_sample(torch.tensor(x), torch.tensor(grid), "bilinear", padding, align_corners=False)
    check_node("GridSample", [x, grid], wanted.numpy(), padding_mode=padding)


def test_grid_sample_far_away():
    """Coordinates that are no numbers, or fit no index, read nothing that is not there."""
    x = numbers(1, 1, 3, 3)
    grid = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38, 0, 0, 3e9], "float32").reshape(1, 2, 2, 2)
    made, compiled = run_node("GridSample", x, grid)
    np.testing.assert_array_equal(made[0], compiled[0])
    assert made[0][0, 0, 0, 0] == 0


@pytest.mark.parametrize("aligned", [0, 1])
def test_affine_grid_against_torch(aligned):
    for shape in ((2, 3, 4, 5), (2, 1, 3, 4, 5)):
        theta = numbers(2, len(shape) - 2, len(shape) - 1)
        wanted = F.affine_grid(torch.tensor(theta), shape, align_corners=bool(aligned)).numpy()
        check_node("AffineGrid", [theta, sizes(*shape)], wanted, align_corners=aligned)


# ---------------------------------------------------------------------------------------------------------- regions


def test_roi_align_whole_image_is_average_pooling():
    x = numbers(1, 2, 8, 8)
    rois, batch = np.array([[0, 0, 8, 8]], "float32"), np.zeros(1, np.int64)
    wanted = F.avg_pool2d(torch.tensor(x), 2).numpy()
    attributes = {"output_height": 4, "output_width": 4, "sampling_ratio": 2}
    check_node("RoiAlign", [x, rois, batch], wanted, **attributes)
    host, compiled = run_node("RoiAlign", x, rois, batch, output_height=4, output_width=4)
    np.testing.assert_allclose(host[0], wanted, atol=1e-5)
    assert compiled is None, "without a sampling ratio the number of samples is data"


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
def test_roi_align_compiled_as_evaluated(mode, transform):
    x = numbers(3, 2, 9, 7)
    rois = np.abs(numbers(5, 4)) * 4
    rois[:, 2:] += rois[:, :2]
    rois[4] = [-5, -5, 40, 40]
    made, compiled = run_node(
        "RoiAlign", x, rois, np.array([0, 2, 1, 1, 0]), mode=mode, coordinate_transformation_mode=transform,
        output_height=3, output_width=2, sampling_ratio=3, spatial_scale=0.5,
    )  # fmt: skip
    np.testing.assert_allclose(made[0], compiled[0], atol=1e-4)


def test_max_roi_pool():
    x = np.arange(36, dtype="float32").reshape(1, 1, 6, 6)
    rois = np.array([[0, 0, 0, 5, 5], [0, 2, 2, 3, 3]], "float32")
    made, _ = run_node("MaxRoiPool", x, rois, pooled_shape=[2, 2])
    assert made[0][0, 0].tolist() == [[14, 17], [32, 35]]
    assert made[0][1, 0].tolist() == [[14, 15], [20, 21]]


def suppress(boxes, scores, most, overlap, least=None):
    given = [np.asarray(boxes, "float32"), np.asarray(scores, "float32"), np.array([most]), np.array([overlap])]
    given += [] if least is None else [np.array([least], "float32")]
    return find_operator("NonMaxSuppression").run(make("NonMaxSuppression", len(given), 1, {}), given)[0]


def test_suppression():
    rng = np.random.default_rng(0)
    corners = rng.random((1, 50, 2)).astype("float32")
    boxes = np.concatenate([corners, corners + rng.random((1, 50, 2)).astype("float32") * 0.5], axis=2)
    scores = rng.random((1, 2, 50)).astype("float32")
    for group in range(2):
        kept = [b for _, g, b in suppress(boxes, scores, 50, 0.3).tolist() if g == group]
        rest = sorted(range(50), key=lambda k: -scores[0, group, k])
        wanted = []
        for box in rest:
            if all(overlap(boxes[0, box], boxes[0, k]) <= 0.3 for k in wanted):
                wanted.append(box)
        assert kept == wanted
    assert suppress(boxes, scores, 0, 0.3).shape == (0, 3)
    assert len(suppress(boxes, scores, 3, 0.3)) == 6
    assert len(suppress(boxes, scores, 50, 1.0, 2.0)) == 0


def overlap(a, b):
    common = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
    return common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common)


def plain_suppression(boxes, scores, limit, overlap):
    """One box after the other, as the definition reads."""
    kept = []
    for box in np.argsort(-scores, kind="stable"):
        low = [np.maximum(boxes[box, :2], boxes[k, :2]) for k in kept]
        high = [np.minimum(boxes[box, 2:], boxes[k, 2:]) for k in kept]
        common = [np.prod(np.maximum(h - b, 0)) for b, h in zip(low, high)]
        area = [np.prod(boxes[k, 2:] - boxes[k, :2]) for k in [*kept, box]]
        if all(c <= np.float32(overlap) * (a + area[-1] - c) for c, a in zip(common, area)) and len(kept) < limit:
            kept.append(int(box))
    return kept


@pytest.mark.parametrize(("count", "limit"), [(700, 1000), (300, 1000), (300, 70), (400, 150), (65, 3), (1, 5)])
def test_suppression_of_many_boxes(count, limit):
    generator = np.random.default_rng(count + limit)
    corner, size = generator.integers(0, 60, (count, 2)), generator.integers(0, 20, (count, 2))  # some are empty
    boxes = np.concatenate([corner, corner + size], axis=1).astype("float32")
    scores = (generator.permutation(count) // 2).astype("float32")  # of two that are equal the first counts as better
    given = [boxes[None], scores[None, None], np.array([limit]), np.array([0.3], "float32")]
    made = find_operator("NonMaxSuppression").run(make("NonMaxSuppression", len(given), 1, {}), given)[0]
    assert made[:, 2].tolist() == plain_suppression(boxes, scores, limit, 0.3)


def test_a_neighbour_outside_the_image_is_zero_beside_a_number_that_is_not_finite():
    image = np.full((1, 2, 4, 4), np.inf, "float32")
    grid = np.full((1, 1, 3, 2), 3.0, "float32")  # far outside: nothing of the image is read
    _, compiled = run_node("GridSample", image, grid, padding_mode="zeros")
    np.testing.assert_array_equal(compiled[0], np.zeros((1, 2, 1, 3)))

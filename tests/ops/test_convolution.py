"""Convolutions: ONNX's cases, and random ones against PyTorch."""

import numpy as np
import pytest
import torch

from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, check_symbolic, numbers, run_node
from weft.graph.ir import GraphError

OPERATORS = ("Conv", "ConvTranspose", "DeformConv", "CausalConvWithState")
CONVOLUTIONS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
TRANSPOSED = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case), "no compiled form"


# channels, features, group, spatial sizes, kernel, strides, dilations, pads
SHAPES = [
    (3, 4, 1, (9,), (3,), (2,), (1,), (1,)),
    (4, 6, 2, (11,), (4,), (3,), (2,), (2,)),
    (3, 5, 1, (7, 8), (3, 2), (1, 1), (1, 1), (0, 0)),
    (4, 8, 2, (9, 7), (3, 3), (2, 1), (1, 2), (1, 2)),
    (6, 6, 6, (8, 9), (3, 3), (1, 2), (1, 1), (1, 1)),
    (3, 6, 3, (8, 9), (5, 3), (2, 2), (1, 1), (2, 1)),
    (8, 4, 1, (5, 5), (1, 1), (1, 1), (1, 1), (0, 0)),
    (2, 3, 1, (5, 6, 4), (2, 3, 2), (1, 2, 1), (2, 1, 1), (1, 0, 1)),
]


@pytest.mark.parametrize("channels,features,group,sizes,kernel,strides,dilations,pads", SHAPES)
def test_conv_against_torch(channels, features, group, sizes, kernel, strides, dilations, pads):
    bias = features > 4
    x, w = numbers(2, channels, *sizes), numbers(features, channels // group, *kernel, seed=1)
    b = numbers(features, seed=2) if bias else None
    given = [torch.tensor(a) for a in (x, w)]
    wanted = CONVOLUTIONS[len(sizes)](
        *given, torch.tensor(b) if bias else None, strides, pads, dilations, group
    ).numpy()
    arrays = [x, w, b] if bias else [x, w]
    attributes = {"group": group, "strides": list(strides), "dilations": list(dilations), "pads": [*pads, *pads]}
    check_node("Conv", arrays, wanted, **attributes)
    named = {(0, 0): "batch", **{(0, 2 + d): f"size{d}" for d in range(len(sizes))}}
    check_symbolic("Conv", arrays, named, **attributes)


@pytest.mark.parametrize("size,turns,kernel", [(2, 2, (3, 3)), (4, 4, (1, 3)), (2, 8, (3,))])
def test_groups_in_turns(size, turns, kernel):
    """The same as groups one behind the other, of channels in another order."""
    count, places = 2 * size * turns, (6,) * len(kernel)
    order = np.arange(count).reshape(2, turns, size).transpose(0, 2, 1).reshape(-1)
    x, w, b = numbers(2, count, *places), numbers(count, size, *kernel, seed=1), numbers(count, seed=2)
    convolve = CONVOLUTIONS[len(kernel)]
    wanted = convolve(torch.tensor(x), torch.tensor(w), torch.tensor(b), groups=count // size).numpy()
    arrays = [np.ascontiguousarray(a) for a in (x[:, order], w[order], b[order])]
    check_node("Conv", arrays, wanted[:, order], group=count // size, turns=turns)
    for wrong in (3, 0, 4 * turns):
        with pytest.raises(GraphError, match="in turns"):
            run_node("Conv", *arrays, group=count // size, turns=wrong)


@pytest.mark.thin(2)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride,dilation,size", [(1, 1, 7), (2, 1, 8), (3, 2, 10), (2, 1, 1)])
def test_conv_pads_by_rule(auto_pad, stride, dilation, size):
    """SAME keeps ceil(size / stride) positions; the odd one of the padding stands where the rule says."""
    x, w = numbers(1, 2, size), numbers(3, 2, 2, seed=1)
    span = dilation + 1
    total = max((-(-size // stride) - 1) * stride + span - size, 0) if auto_pad != "VALID" else 0
    if auto_pad == "VALID" and size < span:
        with pytest.raises(GraphError, match="does not fit"):
            run_node("Conv", x, w, auto_pad=auto_pad, strides=[stride], dilations=[dilation])
        return
    before = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    padded = np.pad(x, ((0, 0), (0, 0), (before, total - before)))
    wanted = CONVOLUTIONS[1](torch.tensor(padded), torch.tensor(w), None, stride, 0, dilation).numpy()
    check_node("Conv", [x, w], wanted, auto_pad=auto_pad, strides=[stride], dilations=[dilation])


@pytest.mark.parametrize("dtype,tolerance", [("float64", 1e-10), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_conv_of_other_floats(dtype, tolerance):
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x, w, b = (a.astype(kind) for a in (numbers(1, 3, 6, 6), numbers(4, 3, 3, 3, seed=1), numbers(4, seed=2)))
    wide = [torch.tensor(a.astype(np.float64)) for a in (x, w, b)]
    wanted = CONVOLUTIONS[2](*wide, 1, 1).numpy()
    check_node("Conv", [x, w, b], wanted, rtol=tolerance, atol=10 * tolerance, pads=[1, 1, 1, 1])


def test_conv_of_a_large_image_goes_by_blocks(monkeypatch):
    monkeypatch.setattr("weft.ops.convolution.BLOCK_ELEMENTS", 100)
    x, w = numbers(2, 3, 12, 10), numbers(4, 3, 3, 3, seed=1)
    wanted = CONVOLUTIONS[2](torch.tensor(x), torch.tensor(w), None, 1, 1).numpy()
    np.testing.assert_allclose(run_node("Conv", x, w, pads=[1] * 4)[0][0], wanted, rtol=1e-4, atol=1e-4)


def test_conv_of_nothing():
    made, _ = run_node("Conv", numbers(0, 3, 5, 5), numbers(4, 3, 3, 3))
    assert made[0].shape == (0, 4, 3, 3)


@pytest.mark.parametrize(
    "x,w,attributes,message",
    [
        ((1, 3, 5, 5), (4, 2, 3, 3), {}, "3 channels"),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"group": 2}, "do not divide into 2 groups"),
        ((1, 3, 2, 2), (4, 3, 3, 3), {}, "does not fit"),
        ((1, 3, 5, 5), (4, 3, 3), {}, "ranks must be equal"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"pads": [1, 1]}, "pads has 2 numbers"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"strides": [0, 1]}, "strides"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"kernel_shape": [5, 5]}, "kernel_shape"),
        ((1, 3, 5, 5), (4, 3, 3, 3), {"auto_pad": "SOME"}, "auto_pad"),
    ],
)
def test_conv_refuses(x, w, attributes, message):
    with pytest.raises(GraphError, match=message) as caught:
        run_node("Conv", numbers(*x), numbers(*w), **attributes)
    assert "'test'" in str(caught.value)


@pytest.mark.parametrize("channels,per_group,group,sizes,kernel,strides,dilations,pads,extra", [
    (3, 4, 1, (5,), (3,), (2,), (1,), (1,), (1,)),
    (4, 2, 2, (6,), (4,), (3,), (1,), (0,), (2,)),
    (3, 2, 1, (4, 5), (4, 4), (2, 2), (1, 1), (1, 1), (0, 0)),
    (3, 2, 1, (4, 5), (3, 3), (2, 1), (1, 2), (1, 0), (1, 0)),
    (4, 3, 4, (5, 4), (3, 2), (2, 3), (2, 2), (1, 2), (0, 1)),
    (2, 3, 1, (3, 4, 3), (2, 3, 3), (1, 2, 2), (1, 1, 1), (0, 1, 1), (0, 1, 0)),
    (3, 2, 1, (4, 4), (2, 2), (3, 3), (1, 1), (0, 0), (1, 2)),
])  # fmt: skip
def test_conv_transpose_against_torch(channels, per_group, group, sizes, kernel, strides, dilations, pads, extra):
    x, w, b = (
        numbers(2, channels, *sizes),
        numbers(channels, per_group, *kernel, seed=1),
        numbers(per_group * group, seed=2),
    )
    given = [torch.tensor(a) for a in (x, w, b)]
    wanted = TRANSPOSED[len(sizes)](*given, strides, pads, extra, group, dilations).numpy()
    attributes = {
        "group": group,
        "strides": list(strides),
        "dilations": list(dilations),
        "pads": [*pads, *pads],
        "output_padding": list(extra),
    }
    check_node("ConvTranspose", [x, w, b], wanted, **attributes)
    named = {(0, 0): "batch", **{(0, 2 + d): f"size{d}" for d in range(len(sizes))}}
    check_symbolic("ConvTranspose", [x, w, b], named, **attributes)


def test_deformable_without_offsets_is_a_convolution():
    x, w = numbers(2, 4, 6, 7), numbers(6, 2, 3, 3, seed=1)
    wanted = CONVOLUTIONS[2](torch.tensor(x), torch.tensor(w), None, (2, 1), (1, 1), (1, 2), 2).numpy()
    offset = np.zeros((2, 2 * 9 * 2, *wanted.shape[2:]), "float32")
    options = {"strides": [2, 1], "pads": [1, 1, 1, 1], "dilations": [1, 2], "group": 2, "offset_group": 2}
    check_node("DeformConv", [x, w, offset], wanted, **options)


def test_deformable_evaluates_as_it_compiles():
    x, w = numbers(2, 4, 6, 7), numbers(6, 4, 3, 2, seed=1)
    offset, mask = 3 * numbers(2, 2 * 6 * 2, 6, 6, seed=2), numbers(2, 2 * 6, 6, 6, seed=3)
    options = {"pads": [1, 0, 1, 0], "offset_group": 2}
    host, compiled = run_node("DeformConv", x, w, offset, numbers(6, seed=4), mask, **options)
    np.testing.assert_allclose(host[0], compiled[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("offset", [(2, 36, 4, 5), (2, 35, 4, 5), (2, 36, 4, 6)])
def test_deformable_refuses_offsets_of_another_shape(offset):
    x, w = numbers(2, 4, 6, 7), numbers(6, 4, 3, 3)
    if offset == (2, 36, 4, 5):
        run_node("DeformConv", x, w, numbers(*offset), build=False, offset_group=2)
        return
    with pytest.raises(GraphError, match="offsets are"):
        run_node("DeformConv", x, w, numbers(*offset), offset_group=2)


@pytest.mark.parametrize("offset", [np.nan, np.inf, -np.inf, 1e30])
def test_offsets_that_lead_nowhere(offset):
    """An infinite offset leads outside the input, where it is zero, and NaN leads nowhere: both count as outside."""
    x, w, offsets = numbers(1, 1, 4, 4), numbers(1, 1, 2, 2), np.zeros((1, 8, 3, 3), np.float32)
    offsets[0, 2, 1, 1] = offset  # how far down the second tap of the middle is moved
    made, built = run_node("DeformConv", x, w, offsets)
    plain = run_node("Conv", x, w)[0][0]
    plain[0, 0, 1, 1] -= x[0, 0, 1, 2] * w[0, 0, 0, 1]
    for got in (made[0], built[0]):
        np.testing.assert_allclose(got, plain, rtol=1e-5, atol=1e-6)


def test_deformed_without_an_input():
    offsets = np.zeros((1, 2, 2, 3), np.float32)
    ((made,), _) = run_node("DeformConv", numbers(1, 1, 0, 3), numbers(1, 1, 1, 1), offsets, pads=[1, 0, 1, 0])
    assert made.shape == (1, 1, 2, 3) and not made.any()


def test_transposed_refuses():
    with pytest.raises(GraphError, match="group"):
        run_node("ConvTranspose", numbers(1, 4, 5), numbers(4, 2, 3), group=0)
    with pytest.raises(GraphError, match=r"\(W\) has the shape \[3, 2, 3\], where c = 4"):
        run_node("ConvTranspose", numbers(1, 4, 5), numbers(3, 2, 3))


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("bias", [(1,), (5,), (7,), (1, 6)])
def test_a_bias_of_another_length_is_refused(op, bias):
    weight = (6, 4, 3, 3) if op == "Conv" else (4, 6, 3, 3)
    with pytest.raises(GraphError, match=r"'test'.*(one number for each of 6 channels|\(B\) has the shape)"):
        run_node(op, numbers(1, 4, 8, 8), numbers(*weight), numbers(*bias))


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "given"])
@pytest.mark.parametrize(
    "options",
    [
        {"strides": [2, 2]}, {"strides": [4, 4]}, {"strides": [1, 1]}, {"strides": [2, 2], "dilations": [2, 2]},
        {"strides": [1, 1], "dilations": [2, 2]}, {"strides": [2, 2], "pads": [1, 1, 1, 1]},
    ],
)  # fmt: skip
def test_a_transposed_convolution_spreads_only_what_its_window_holds(options, constant):
    """NaN and infinities of input and weight reach just the outputs that are sums of them."""
    known = (1,) if constant else None
    strides, dilations, pads = (options.get(n, [d, d])[0] for n, d in (("strides", 1), ("dilations", 1), ("pads", 0)))
    for spoilt in (0, 1):
        arrays = [np.ones((1, 2, 5, 5), np.float32), np.ones((2, 3, 3, 3), np.float32)]
        arrays[spoilt][0, 0, 2, 1] = np.nan
        arrays[spoilt][0, 1, 0, 2] = np.inf
        given = [torch.tensor(a) for a in arrays]
        want = torch.nn.functional.conv_transpose2d(*given, stride=strides, padding=pads, dilation=dilations).numpy()
        host, made = run_node("ConvTranspose", *arrays, known=known, **options)
        np.testing.assert_array_equal(made[0], want)

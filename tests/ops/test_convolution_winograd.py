"""WinogradConv: exact matrices, the meaning and the tensor program against a direct convolution."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch

import weft
from tests.ops.nodes import check_node, numbers, run_node
from weft import te
from weft.graph.ir import GraphError
from weft.ops import convolution_winograd
from weft.ops.convolution_winograd import (
    DOMAIN,
    MOST_SPREAD,
    NAME,
    Side,
    direct_weight,
    matrices,
    side_of,
    sides_of,
    transform_weight,
)


@pytest.mark.parametrize("tile", [2, 4, 6])
@pytest.mark.parametrize("taps", [2, 3, 5])
def test_the_matrices_give_a_correlation_exactly(tile, taps):
    """Aᵀ [(G g) ⊙ (Bᵀ d)] in fractions, for every pair of unit vectors g and d."""
    if tile + taps - 2 > 11:
        pytest.skip("more points than there are")
    found = matrices(tile, taps)
    for k in range(taps):
        for i in range(tile + taps - 1):
            products = [g[k] * b[i] for g, b in zip(found.weight, found.input)]
            made = [sum(a * p for a, p in zip(row, products)) for row in found.output]
            assert made == [Fraction(int(i - k == j)) for j in range(tile)]


@pytest.mark.parametrize("outputs,inputs", [(5, 3), (64, 200), (1, 1)])
def test_a_weight_is_transformed_in_parts_as_a_whole(outputs, inputs, monkeypatch):
    """G g Gᵀ in double precision, rounded once, however many channels are taken at a time."""
    weight = numbers(outputs, inputs, 3, 3)
    g = np.array([[float(n) for n in row] for row in matrices(4, 3).weight])
    want = np.einsum("xk,oikl,yl->xyio", g, weight.astype(np.float64), g)
    for elements in (1, 36 * 64 * 7, 1 << 18):
        monkeypatch.setattr(convolution_winograd, "AT_ONCE", elements)
        made = transform_weight(weight, 4)
        assert made.dtype == np.float32 and made.flags.c_contiguous
        np.testing.assert_allclose(made, want, rtol=2e-7, atol=1e-12)


# batch, channels, features, height, width, pads (top, left, bottom, right)
SHAPES = [
    (1, 3, 4, 8, 8, (1, 1, 1, 1)),
    (2, 5, 3, 7, 10, (0, 0, 0, 0)),
    (1, 2, 6, 3, 3, (0, 0, 0, 0)),
    (2, 4, 5, 5, 6, (1, 0, 1, 0)),
    (1, 1, 1, 1, 1, (1, 1, 1, 1)),
]


@pytest.mark.parametrize(
    "tile,batch,channels,features,height,width,pads",
    [
        (2, *SHAPES[0]),
        pytest.param(2, *SHAPES[3], marks=pytest.mark.slow),
        (2, *SHAPES[4]),
        pytest.param(4, *SHAPES[1], marks=pytest.mark.slow),
        (4, *SHAPES[2]),
        (4, *SHAPES[3]),
        (6, *SHAPES[3]),
    ],
)
def test_against_torch(tile, batch, channels, features, height, width, pads):
    x, w = numbers(batch, channels, height, width), numbers(features, channels, 3, 3, seed=1)
    bias = numbers(features, seed=2) if features > 3 else None
    top, left, bottom, right = pads
    wide = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))).astype(np.float64)
    wanted = torch.nn.functional.conv2d(torch.tensor(wide), torch.tensor(w.astype(np.float64)))
    want = wanted.numpy() + (0 if bias is None else bias.reshape(1, -1, 1, 1))
    arrays = [x, transform_weight(w, tile), direct_weight(w)] + ([] if bias is None else [bias])
    check_node(NAME, arrays, want, rtol=1e-4, atol=3e-4, domain=DOMAIN, tile=tile, pads=list(pads))


@pytest.mark.parametrize(
    "tile,shape,window,pads",
    [
        pytest.param(2, (1, 3, 9, 8), (5, 5), (2, 2, 2, 2), marks=pytest.mark.slow),
        (2, (2, 2, 7, 6), (5, 5), (0, 1, 2, 0)),
        (4, (1, 3, 5, 11), (1, 3), (0, 1, 0, 1)),
        pytest.param(4, (1, 3, 11, 5), (3, 1), (1, 0, 0, 0), marks=pytest.mark.slow),
        pytest.param(2, (1, 2, 3, 9), (1, 5), (0, 2, 0, 1), marks=pytest.mark.slow),
        pytest.param(2, (1, 2, 9, 8), (3, 5), (1, 2, 1, 2), marks=pytest.mark.slow),
        (4, (2, 3, 19), (3,), (1, 1)),
        (2, (1, 3, 10), (5,), (2, 0)),
        (4, (1, 2, 3, 17), (1, 5), (0, 2, 0, 2)),
        (2, (1, 2, 30), (7,), (3, 3)),
        (6, (1, 2, 31), (3,), (1, 0)),
    ],
)
def test_other_windows_against_torch(tile, shape, window, pads):
    """A side of one tap stays as it is, a line has one side."""
    x, w = numbers(*shape), numbers(4, shape[1], *window, seed=1)
    around = [(0, 0), (0, 0), *zip(pads, pads[len(pads) // 2 :])]
    wide = torch.tensor(np.pad(x, around).astype(np.float64))
    convolve = torch.nn.functional.conv2d if x.ndim == 4 else torch.nn.functional.conv1d
    want = convolve(wide, torch.tensor(w.astype(np.float64))).numpy()
    arrays = [x, transform_weight(w, tile), direct_weight(w)]
    check_node(NAME, arrays, want, rtol=1e-4, atol=3e-4, domain=DOMAIN, tile=tile, pads=list(pads))
    x[(0, 1, *(n // 2 for n in shape[2:]))] = 1e6  # tiles that are computed directly
    wide = torch.tensor(np.pad(x, around).astype(np.float64))
    want = convolve(wide, torch.tensor(w.astype(np.float64))).numpy()
    for made in run_node(NAME, x, *arrays[1:], domain=DOMAIN, tile=tile, pads=list(pads)):
        near = np.abs(want) > 1e3
        np.testing.assert_allclose(made[0][~near], want[~near], atol=3e-4)
        np.testing.assert_allclose(made[0][near], want[near], rtol=1e-4)


@pytest.mark.parametrize(
    "tile,shape,window,strides,pads",
    [
        (4, (1, 3, 12, 19), (3, 3), (2, 2), (1, 1, 1, 1)),
        pytest.param(2, (2, 2, 11, 10), (5, 5), (2, 2), (2, 0, 1, 2), marks=pytest.mark.slow),
        pytest.param(2, (1, 2, 10, 9), (3, 3), (2, 1), (0, 1, 0, 0), marks=pytest.mark.slow),
        pytest.param(4, (1, 2, 3, 17), (1, 5), (1, 2), (0, 2, 0, 1), marks=pytest.mark.slow),
        (6, (1, 2, 31), (3,), (2,), (1, 0)),
        (2, (1, 2, 16), (3,), (2,), (0, 0)),
    ],
)
def test_strides_of_two_against_torch(tile, shape, window, strides, pads):
    """The sum of the even and the odd inputs' parts, in even tiles and beside an element that makes them uneven."""
    x, w = numbers(*shape), numbers(4, shape[1], *window, seed=1)
    around = [(0, 0), (0, 0), *zip(pads, pads[len(pads) // 2 :])]
    convolve = torch.nn.functional.conv2d if x.ndim == 4 else torch.nn.functional.conv1d
    arrays = [transform_weight(w, tile, strides), direct_weight(w)]
    for large in (0.0, 1e6):
        x[(0, 1, *(n // 2 for n in shape[2:]))] += large
        wide = torch.tensor(np.pad(x, around).astype(np.float64))
        want = convolve(wide, torch.tensor(w.astype(np.float64)), stride=strides).numpy()
        given = {"domain": DOMAIN, "tile": tile, "pads": list(pads), "strides": list(strides)}
        for made in run_node(NAME, x, *arrays, **given):
            near = np.abs(want) > 1e3
            np.testing.assert_allclose(made[0][~near], want[~near], atol=3e-4)
            np.testing.assert_allclose(made[0][near], want[near], rtol=1e-4)


def test_a_side_is_known_by_its_sizes():
    for tile, taps, stride in itertools.product((2, 4, 6), (3, 5, 7), (1, 2)):
        assert side_of(Side(taps, stride, tile).size, taps) == Side(taps, stride, tile)
    assert side_of(1, 1) == Side(1, 1, 1)


@pytest.mark.parametrize(
    "x,u,attributes,message",
    [
        ((1, 4, 8, 8), (4, 4, 4, 8), {}, "'tile' is missing"),
        ((1, 4, 8, 8), (4, 4, 4, 8), {"tile": 3}, "it must be 2, 4 or 6"),
        ((1, 4, 8, 8), (4, 5, 4, 8), {"tile": 2}, "beside its transform"),
        ((1, 4, 8, 8), (4, 4, 5, 8), {"tile": 2}, "where c = 4"),
        ((1, 4, 8, 8), (4, 4, 4, 8), {"tile": 2, "pads": [1, 1]}, "two numbers a side"),
        ((1, 4, 8, 8), (4, 4, 4, 8), {"tile": 2, "pads": [2, 1, 1, 1]}, "none over half a window"),
        ((1, 4, 8, 8), (6, 6, 4, 8), {"tile": 2}, "a weight"),
        ((1, 4, 1, 8), (4, 4, 4, 8), {"tile": 2}, "does not fit"),
        ((1, 4, 8, 8), (4, 4, 4, 8), {"tile": 2, "strides": [3, 1]}, "moves by 1, or by 2"),
        ((1, 4, 8, 8), (4, 4, 4, 8), {"tile": 2, "strides": [2, 2]}, "beside its transform"),
    ],
)
def test_what_does_not_fit_is_refused(x, u, attributes, message):
    with pytest.raises(GraphError, match=message):
        run_node(NAME, numbers(*x), numbers(*u), numbers(3, 3, *u[2:]), domain=DOMAIN, **attributes)


# --------------------------------------------------------------------------------------------------------- uneven tiles


def convolved(x, w):
    """The convolution in double precision, with a border of 1."""
    wide = [torch.tensor(a.astype(np.float64)) for a in (x, w)]
    return torch.nn.functional.conv2d(*wide, padding=1).numpy()


PADS = ((1, 1), (1, 1))
SPOILT = {"one large": 1e5, "nan": np.nan, "infinite": np.inf, "near the end": 1e37, "at the end": -3e38}


@pytest.mark.parametrize(
    "tile,kind",
    [
        (2, "nan"),
        *((4, k) for k in SPOILT),
        *(pytest.param(2, k, marks=pytest.mark.slow) for k in SPOILT if k != "nan"),
    ],
)
def test_what_does_not_see_an_element_does_not_change(tile, kind):
    """Outputs whose window has no part in it are as they would be without it, up to the error of even tiles."""
    x, w = numbers(1, 5, 13, 14), numbers(3, 5, 3, 3, seed=1)
    x[0, 2, 6, 5] = SPOILT[kind]
    want = convolved(x, w)
    near = np.zeros(want.shape, bool)
    near[:, :, 5:8, 4:7] = True
    arrays = [x, transform_weight(w, tile), direct_weight(w)]
    with np.errstate(all="ignore"):
        for made in run_node(NAME, *arrays, domain=DOMAIN, tile=tile, pads=[1] * 4):
            np.testing.assert_allclose(made[0][~near], want[~near], atol=1e-4)
            np.testing.assert_allclose(made[0][near], want[near].astype(np.float32), rtol=1e-4)


def test_which_tiles_are_uneven():
    def uneven(x, tile=4):
        tiles = convolution_winograd._Tiles(sides_of(tile, (3, 3)), *(-(-n // tile) for n in x.shape[2:]), (len(x),))
        given = te.placeholder(x.shape, name="x")
        found = convolution_winograd._uneven(given, tiles, PADS, x.shape)
        out = np.zeros((len(x), tiles.count), np.int32)
        weft.build(te.create_schedule(found.op), [given, found])(x, out)
        return out.reshape(len(x), tiles.tall, tiles.wide) > 0

    x = np.abs(numbers(1, 16, 16, 18)) + 1
    x[0, 0, 0, 0] = 3.0
    assert not uneven(x).any() and not uneven(x, 2).any() and not uneven(x * 0).any()
    limit = MOST_SPREAD * x.max(axis=1).min()
    x[0, 0, 5, 5] = 0.9 * limit
    assert not uneven(x).any()
    x[0, 0, 5, 5] = MOST_SPREAD * x.max()
    assert uneven(x)[0, 1, 1] and not uneven(x)[0, 3, 3]
    dark = np.abs(numbers(1, 16, 16, 16)) + 1
    dark[..., 8:] = 0  # an edge: windows of nothing beside those of something
    found = uneven(dark)
    assert found[:, :, 2].all() and not found[:, :, [0, 1, 3]].any()

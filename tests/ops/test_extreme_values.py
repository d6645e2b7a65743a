"""Values and sizes at the edge of what ONNX says, which fuzzing found: one meaning in kernels and on the host."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import weft
from tests.graph.test_hostile_nodes import Given, f32, i64, single
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import GraphError


def both(model, *arrays):
    """The answers of the compiled model and of its meaning."""
    graph = load(model.SerializeToString())
    return weft.compile(graph)(*arrays), interpret_graph(graph, list(arrays))[0]


@pytest.mark.parametrize("shapes", [((0, 0), (0, 0)), ((2, 3), (4, 0)), ((2, 3), (2, 5, 0))])
def test_places_of_no_number(shapes):
    """Each names the whole of the data."""
    data, indices = shapes
    array = np.arange(np.prod(data), dtype=np.float32).reshape(data)
    model = single("GatherND", Given(*data), Given(*indices, dtype="int64"))
    for made in both(model, array, np.zeros(indices, np.int64)):
        np.testing.assert_array_equal(made, np.broadcast_to(array, (*indices[:-1], *data)))


def test_a_determinant_of_large_products():
    matrices = f32([[-3e38, -3e38], [3, 4]], [[np.inf, 1], [1, 1]])
    for made in both(single("Det", Given(2, 2, 2)), matrices):
        np.testing.assert_allclose(made, f32(-3e38, np.inf), rtol=1e-6)


def test_regions_beyond_the_range_of_floats():
    image = np.random.default_rng(0).random((1, 1, 10, 10)).astype(np.float32)
    regions = f32([0, 0, 9, 9], [0, 5, 4, 9], [1, 1, 2, 2])
    sizes = {"output_height": 5, "output_width": 5, "sampling_ratio": 2}
    for scale in (3e38, 1.0, 0.3):
        model = single(
            "RoiAlign", Given(1, 1, 10, 10), Given(3, 4), Given(3, dtype="int64"), spatial_scale=scale, **sizes
        )
        with np.errstate(all="ignore"):
            made, meant = both(model, image, regions, i64(0, 0, 0))
        np.testing.assert_allclose(made, meant, rtol=1e-5)
        assert np.isnan(made[1]).all() == (scale > 1)


def test_a_split_of_nothing_has_no_parts():
    with pytest.warns(weft.HostWarning):
        module = weft.compile(single("SplitToSequence", Given(3, 0), np.array(2), axis=1))
    assert module(np.zeros((3, 0), np.float32)) == []


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ArgMax"])
def test_keepdims_is_yes_or_no(op):
    with pytest.raises(GraphError, match="'keepdims' is 2147483648; known are 0, 1"):
        weft.compile(single(op, Given(3, 2), keepdims=1 << 31))


def test_momentum_left_out_is_the_one_written():
    """Attributes are float32: what stands for a missing one is, too, or float64 statistics tell them apart."""
    given = [np.random.default_rng(0).random(shape) for shape in ((2, 3, 4), (3,), (3,), (3,), (3,))]
    inputs = [Given(*array.shape, dtype="float64") for array in given]
    with pytest.warns(weft.HostWarning):
        made = [
            weft.compile(single("BatchNormalization", *inputs, outputs=3, training_mode=1, **more))(*given)
            for more in ({}, {"momentum": 0.9})
        ]
    for one, other in zip(*made):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("more", [{}, {"scale": 0.3}, {"is_causal": 1}, {"softcap": 50.0}])
def test_queries_near_the_end_of_the_range(more):
    """Scores are finite where products before their scaling are not, and the greatest of them weighs 1."""
    g = np.random.default_rng(0)
    q, k, v = (g.random((1, 1, length, 8), np.float32) for length in (4, 6, 6))
    q[0, 0, 1, 3] = q[0, 0, 2, 2] = q[0, 0, 2, 4] = 3e38
    model = single("Attention", Given(*q.shape), Given(*k.shape), Given(*v.shape), **more)
    made, meant = both(model, q, k, v)
    assert np.isfinite(made).all()
    np.testing.assert_allclose(made, meant, rtol=1e-5)


def test_a_score_of_minus_infinity_alone():
    """Zeros, whatever the keys that the query does not see hold."""
    q, k, v = (np.ones((1, 1, length, 4), np.float32) for length in (2, 3, 3))
    k[0, 0, 0, 1], k[0, 0, 2] = -np.inf, np.nan
    model = single("Attention", Given(*q.shape), Given(*k.shape), Given(*v.shape), is_causal=1)
    for made in both(model, q, k, v):
        np.testing.assert_array_equal(made[0, 0], [[0] * 4, [1] * 4])


@pytest.mark.parametrize("op", ["Softmax", "ReduceLogSumExp"])
def test_products_before_a_softmax(op):
    """They are made where their greatest is found and again where it is subtracted: the same numbers both times."""
    x = np.random.default_rng(0).standard_normal((16, 16), np.float32) * np.float32(1e12)
    model = single("Mul", Given(16, 16), np.float32(0.3535))
    model.graph.node.append(helper.make_node(op, ["y0"], ["z"], **({"axis": -1} if op == "Softmax" else {})))
    model.graph.output[0].name = "z"
    made, meant = both(model, x)
    assert np.isfinite(made).all()
    np.testing.assert_allclose(made, meant, rtol=1e-5)


def test_a_scale_of_a_wider_type():
    """It is not rounded to the type of what it scales."""
    scale = np.array([1 + 1e-12, 1e300, 2])
    made, meant = both(single("RMSNormalization", Given(2, 3), scale, epsilon=0.0), np.ones((2, 3), np.float32))
    np.testing.assert_allclose(made, meant, rtol=1e-14)
    np.testing.assert_allclose(made[0], scale, rtol=1e-14)

"""Products of one- and two-bit numbers as operators of a graph: NumPy's answers, compiled and evaluated."""

import numpy as np
import pytest

import weft
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.opspec import Evaluate, find_operator
from weft.graph.passes.infer import infer
from weft.ops.bits import pack_codes

RNG = np.random.default_rng(3)


def graph_of(shape, codes, planes, bits, bias, **attributes):
    """One operator, its scales, and what it makes of levels, by the definition of its docstring."""
    filters, scale = len(codes), (RNG.random(len(codes)) + 0.5).astype(np.float32)
    arrays = {"w": pack_codes(codes, planes), "scale": scale}
    if bias:
        arrays["bias"] = RNG.standard_normal(filters).astype(np.float32)
    x = Value("x", TensorType("uint8", shape))
    constants = {Value(name, TensorType(str(a.dtype), a.shape)): a for name, a in arrays.items()}
    op = "BitConv" if len(shape) == 4 else "BitMatMul"
    node = Node(op, [x, *constants], [Value("y")], {"bits": bits, **attributes}, domain="weft")
    return infer(Graph("bits", [x], node.outputs, [node], constants)), arrays


def expected(x, codes, planes, bits, arrays, stride=1, pad=0):
    levels = np.minimum(x, 2**bits - 1).astype(np.int64)
    weights = 2 * codes.astype(np.int64) - (2**planes - 1)
    if x.ndim == 2:
        total = levels @ weights.T
    else:
        kernel, wide = codes.shape[2:], np.pad(levels, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        view = np.lib.stride_tricks.sliding_window_view(wide, kernel, (2, 3))[:, :, ::stride, ::stride]
        total = np.einsum("nchwij,fcij->nfhw", view, weights)
    spread = (1, -1, *[1] * (x.ndim - 2))
    made = total.astype(np.float32) * arrays["scale"].reshape(spread)
    return made + arrays["bias"].reshape(spread) if "bias" in arrays else made


CASES = [
    ((5, 100), (8, 100), 1, 2, {}),
    ((1, 7), (3, 7), 2, 1, {}),
    ((2, 16, 6, 5), (8, 16, 3, 3), 1, 2, {"pads": [1] * 4, "strides": [1, 1]}),
    ((1, 24, 7, 7), (12, 24, 1, 1), 2, 2, {"strides": [2, 2]}),
    ((1, 5, 8, 9), (4, 5, 3, 3), 1, 1, {"pads": [1] * 4, "strides": [2, 2]}),
]


@pytest.mark.parametrize("shape, weight, planes, bits, attributes", CASES)
def test_products_are_numpys(shape, weight, planes, bits, attributes):
    codes = RNG.integers(0, 2**planes, weight).astype(np.uint8)
    more = {"kernel_shape": list(weight[2:]), **attributes} if len(shape) == 4 else {}
    graph, arrays = graph_of(shape, codes, planes, bits, bias=planes == 1, **more)
    x = RNG.integers(0, 6, shape).astype(np.uint8)  # some are larger than the largest level
    wanted = expected(x, codes, planes, bits, arrays, attributes.get("strides", [1])[0], attributes.get("pads", [0])[0])
    assert graph.outputs[0].tensor.static == wanted.shape
    (node,) = graph.nodes
    spec = find_operator(node.op, node.domain)
    np.testing.assert_allclose(spec.evaluate(Evaluate(node), x, *arrays.values()), wanted, rtol=1e-6)
    np.testing.assert_allclose(weft.compile(graph).run(None, {"x": x})[0], wanted, rtol=1e-6)


def test_operators_that_make_no_sense():
    codes = np.zeros((4, 8), np.uint8)
    with pytest.raises(GraphError, match="one or two bits"):
        graph_of((2, 8), codes, 1, 3, False)
    with pytest.raises(GraphError, match="too short"):
        graph_of((2, 300), codes, 1, 2, False)
    with pytest.raises(GraphError, match="one stride"):
        graph_of((1, 8, 4, 4), codes[:, :, None, None], 1, 2, False, kernel_shape=[1, 1], strides=[1, 2])
    for more in ({"dilations": [2, 2]}, {"group": 2}, {"auto_pad": "SAME_UPPER"}):
        with pytest.raises(GraphError, match="no dilations, no groups"):
            graph_of((1, 8, 4, 4), codes[:, :, None, None], 1, 2, False, kernel_shape=[1, 1], **more)

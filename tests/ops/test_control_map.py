"""Scans without memory become the operators of their body on all steps at once."""

import warnings

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import weft
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph
from weft.graph.passes.normalize import normalize


def scan_model(nodes, scanned, state, outputs, constants=(), **attributes):
    """A model of one Scan over `scanned` with a state that is handed on."""
    kind = TensorProto.FLOAT
    body = helper.make_graph(
        [helper.make_node("Identity", ["before"], ["after"]), *nodes],
        "body",
        [
            helper.make_tensor_value_info("before", kind, state.shape),
            helper.make_tensor_value_info("row", kind, scanned.shape[1:]),
        ],
        [helper.make_tensor_value_info(name, kind, None) for name in ("after", *outputs)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants],
    )
    names = [f"all_{name}" for name in outputs]
    scan = helper.make_node("Scan", ["state", "x"], ["last", *names], body=body, num_scan_inputs=1, **attributes)
    graph = helper.make_graph(
        [scan],
        "main",
        [
            helper.make_tensor_value_info("state", kind, state.shape),
            helper.make_tensor_value_info("x", kind, ["n", *scanned.shape[1:]]),
        ],
        [helper.make_tensor_value_info(name, kind, None) for name in ("last", *names)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(model, feeds, mapped=True):
    """Compiled, mapped and step by step give the same."""
    graph = load(model)
    assert any(node.op == "Scan" for node in normalize(graph).nodes) != mapped
    wanted = interpret_graph(graph, list(feeds.values()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = weft.compile(model).run(None, feeds)
    for got, want in zip(made, wanted, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


DISTANCES = [
    helper.make_node("Sub", ["before", "row"], ["d"]),
    helper.make_node("ReduceSumSquare", ["d", "axes"], ["s"], keepdims=0),
]


@pytest.mark.parametrize("axes", [[1], [-1], [0], [0, 1]])
def test_distances_of_all_pairs(axes):
    feeds = {"state": numbers(7, 5), "x": numbers(4, 5, seed=1)}
    check(scan_model(DISTANCES, feeds["x"], feeds["state"], ["s"], [("axes", axes)]), feeds)


def test_steps_of_several_ranks():
    nodes = [
        helper.make_node("ReduceMax", ["row"], ["top"], keepdims=0),
        helper.make_node("Mul", ["top", "before"], ["m"]),
        helper.make_node("Exp", ["before"], ["outer"]),
        helper.make_node("Add", ["m", "outer"], ["t"]),
        helper.make_node("Add", ["row", "three"], ["u"]),
    ]
    feeds = {"state": numbers(7, 5), "x": numbers(4, 2, 5, seed=1)}
    model = scan_model(nodes, feeds["x"], feeds["state"], ["t", "u", "top"], [("three", numbers(3, 2, 5))])
    check(model, feeds)


def test_what_stays_a_scan():
    feeds = {"state": numbers(7, 5), "x": numbers(4, 5, seed=1)}
    backwards = {"scan_input_directions": [1], "scan_output_directions": [1]}
    check(scan_model(DISTANCES, feeds["x"], feeds["state"], ["s"], [("axes", [1])], **backwards), feeds, mapped=False)
    running = [helper.make_node("Add", ["before", "row"], ["next"]), helper.make_node("Neg", ["next"], ["s"])]
    model = scan_model(running, feeds["x"], feeds["state"], ["s"])
    model.graph.node[0].attribute[0].g.output[0].name = "next"
    check(model, feeds, mapped=False)

"""If, Loop and Scan: ONNX's cases, and bodies written here."""

import numpy as np
import pytest

from tests.ops.cases import cases, check_case
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.passes.infer import infer


@pytest.mark.parametrize("case", cases("If", "Loop", "Scan"), ids=lambda case: case.name)
def test_onnx_case(case):
    check_case(case)


def value(name, dtype=None, shape=None):
    return Value(name, None if dtype is None else TensorType(dtype, shape))


def running_sum(shape=(2,)):
    """state, x -> state + x, state + x."""
    state, x, total, row = value("state"), value("x"), value("total"), value("row")
    nodes = [Node("Add", [state, x], [total]), Node("Identity", [total], [row])]
    return Graph("body", [state, x], [total, row], nodes)


def scan_graph(steps, **attributes):
    start, x = value("start", "float32", (2,)), value("x", "float32", (steps, 2))
    last, rows = value("last"), value("rows")
    node = Node("Scan", [start, x], [last, rows], {"body": running_sum(), "num_scan_inputs": 1, **attributes})
    return Graph("main", [start, x], [last, rows], [node])


def test_scan():
    x, start = np.arange(8, dtype="float32").reshape(4, 2), np.ones(2, "float32")
    graph = infer(scan_graph(4))
    assert [repr(v.type) for v in graph.outputs] == ["float32[2]", "float32[4, 2]"]
    last, rows = interpret_graph(graph, [start, x])
    np.testing.assert_array_equal(rows, 1 + np.cumsum(x, 0))
    np.testing.assert_array_equal(last, rows[-1])


def test_scan_backwards_along_other_axes():
    x, start = np.arange(8, dtype="float32").reshape(4, 2), np.zeros(2, "float32")
    graph = scan_graph(
        4, scan_input_directions=[1], scan_output_axes=[-1], scan_output_directions=[1], scan_input_axes=[0]
    )
    _, rows = interpret_graph(infer(graph), [start, x])
    np.testing.assert_array_equal(rows, np.cumsum(x[::-1], 0)[::-1].T)


def test_scan_of_nothing():
    last, rows = interpret_graph(infer(scan_graph(0)), [np.ones(2, "float32"), np.zeros((0, 2), "float32")])
    assert last.tolist() == [1, 1] and rows.shape == (0, 2)


def loop_graph(with_limit=True):
    """Doubles x while it is below 100, and keeps every value."""
    turn, go, x = value("turn"), value("go"), value("x")
    doubled, more, row, limit = value("doubled"), value("more"), value("row"), value("limit", "float32", ())
    nodes = [
        Node("Add", [x, x], [doubled]),
        Node("Less", [doubled, limit], [more]),
        Node("Identity", [doubled], [row]),
    ]
    body = Graph("body", [turn, go, x], [more, doubled, row], nodes, {limit: np.array(100, "float32")})
    start, most = value("start", "float32", ()), value("most", "int64", ())
    last, rows = value("last"), value("rows")
    node = Node("Loop", [most if with_limit else None, None, start], [last, rows], {"body": body})
    return Graph("main", [start, most], [last, rows], [node])


@pytest.mark.parametrize("most, turns", [(3, 3), (50, 6), (0, 0)])
def test_loop(most, turns):
    graph = infer(loop_graph())
    assert graph.outputs[1].type.rank == 1 and graph.outputs[0].type.static == ()
    last, rows = interpret_graph(graph, [np.array(3, "float32"), np.array(most)])
    np.testing.assert_array_equal(rows, 3 * 2.0 ** np.arange(1, turns + 1))
    assert last == 3 * 2.0**turns


@pytest.mark.parametrize("typed", [True, False])
def test_loop_without_a_turn(typed):
    """What a loop keeps is empty then, and its type follows from the body, with types inferred or not."""
    graph = loop_graph()
    made = interpret_graph(infer(graph) if typed else graph, [np.float32(3), np.int64(0)])
    assert [(a.dtype, a.shape) for a in made] == [(np.float32, ()), (np.float32, (0,))]


def test_loop_without_a_limit():
    last, _ = interpret_graph(infer(loop_graph(False)), [np.array(3, "float32"), np.array(0)])
    assert last == 192


def branch(name, kind, shape):
    constant = value(f"{name}_constant", kind, shape)
    out = value(f"{name}_out")
    return Graph(name, [], [out], [Node("Identity", [constant], [out])], {constant: np.full(shape, 2, kind)})


def test_if():
    condition, out = value("condition", "bool", ()), value("out")
    branches = {"then_branch": branch("yes", "float32", (2, 3)), "else_branch": branch("no", "float32", (2, 4))}
    graph = infer(Graph("main", [condition], [out], [Node("If", [condition], [out], branches)]))
    kind = graph.outputs[0].type
    assert kind.dtype == "float32" and kind.shape[0] == 2 and not isinstance(kind.shape[1], int)
    assert interpret_graph(graph, [np.array(True)])[0].shape == (2, 3)
    assert interpret_graph(graph, [np.array(False)])[0].shape == (2, 4)


def test_if_of_a_known_condition_takes_one_branch():
    condition, out = value("condition", "bool", ()), value("out")
    branches = {"then_branch": branch("yes", "float32", (2, 3)), "else_branch": branch("no", "int64", (1,))}
    node = Node("If", [condition], [out], branches)
    graph = infer(Graph("main", [], [out], [node], {condition: np.array(False)}))
    assert repr(graph.outputs[0].type) == "int64[1]"


def test_bodies_that_do_not_fit():
    condition, outs = value("condition", "bool", ()), [value("a"), value("b")]
    branches = {"then_branch": branch("yes", "float32", ()), "else_branch": branch("no", "float32", ())}
    with pytest.raises(GraphError, match="2 outputs, and its branches have"):
        infer(Graph("main", [condition], outs, [Node("If", [condition], outs, branches)]))
    with pytest.raises(GraphError, match="num_scan_inputs"):
        infer(scan_graph(4).replace(nodes=[scan_graph(4).nodes[0].replace(attributes={"body": running_sum()})]))

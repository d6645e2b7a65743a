"""Sequences of elements of one shape become tensors; others stay."""

import numpy as np
import pytest

import weft.ops  # noqa: F401
from tests.compiler.control.test_bodies import Part
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import all_graphs
from weft.graph.passes.infer import infer
from weft.graph.passes.stack_sequences import stack_sequences


def operators(graph):
    return {node.op for one in all_graphs(graph) for node in one.nodes}


def looped(turns=5, position=None, other_shape=False):
    """A loop that puts a row into a sequence, now and then two, and reads the first and the length."""
    main, body, then, other = Part("main"), Part("body"), Part("then"), Part("other")
    x = main.input("x", "float32", (2, 3))
    turn, go, state, rows = (body.input(n) for n in ("turn", "go", "state", "rows"))
    after = body("Tanh", body("Add", state, x))
    second = body("Neg", body("Concat", after, after, axis=0)) if other_shape else body("Neg", after)
    places = [] if position is None else [body.constant(position, "int64")]
    longer = body("SequenceInsert", rows, after, *places)
    twice = then.finish([], [then("SequenceInsert", longer, second)])
    odd = body("Equal", body("Mod", turn, body.constant(2, "int64")), body.constant(1, "int64"))
    more = body("If", odd, then_branch=twice, else_branch=other.finish([], [other("Identity", longer)]))
    first = body("SequenceAt", more, body.constant(0 if other_shape else -1, "int64"))
    length = body("Cast", body("SequenceLength", more), to=1)
    graph = body.finish([turn, go, state, rows], [go, body("Mul", after, length), more, first])
    start = main("SequenceConstruct", x) if turns == 0 else main("SequenceEmpty", dtype=1)
    last, found, firsts = main("Loop", main.constant(turns, "int64"), None, x, start, outputs=3, body=graph)
    ways = ((0, 0),) if other_shape else ((0, 0), (-1, 0), (1, 1))
    joined = [main("ConcatFromSequence", found, axis=axis, new_axis=new) for axis, new in ways]
    return infer(main.finish([x], [last, firsts, *joined])), [np.arange(6, dtype="float32").reshape(2, 3) / 7]


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_sequences_of_one_shape_are_tensors(turns):
    graph, arrays = looped(turns)
    made = stack_sequences(graph)
    assert not any("Sequence" in op for op in operators(made))
    for got, want in zip(interpret_graph(made, arrays), interpret_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want)


@pytest.mark.parametrize("given", [{"position": 0}, {"other_shape": True}])
def test_other_sequences_stay(given):
    graph, arrays = looped(**given)
    made = stack_sequences(graph)
    assert "SequenceInsert" in operators(made)
    for got, want in zip(interpret_graph(made, arrays), interpret_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want)


def test_a_sequence_that_the_caller_sees_stays():
    main = Part("main")
    x = main.input("x", "float32", (2, 3))
    graph = infer(main.finish([x], [main("SequenceInsert", main("SequenceConstruct", x), x)]))
    assert stack_sequences(graph).nodes[0].op == "SequenceConstruct"

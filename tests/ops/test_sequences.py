"""Sequences and optional values."""

import numpy as np
import pytest

from tests.ops.cases import cases, check_case
from tests.ops.nodes import make, numbers
from weft.graph.ir import GraphError, OptionalType, SequenceType, TensorType
from weft.graph.opspec import Infer, find_operator

OPERATORS = """SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap
    SplitToSequence ConcatFromSequence Optional OptionalGetElement OptionalHasElement""".split()


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda case: case.name)
def test_onnx_case(case):
    check_case(case)


def run(op, *values, **attributes):
    return find_operator(op).run(make(op, len(values), 1, attributes), list(values))[0]


def infer(op, *types, **attributes):
    node = make(op, len(types), 1, attributes)
    return find_operator(op).infer(Infer(node, types, [None] * len(types)))[0]


def test_a_sequence_grows_and_shrinks():
    a, b, c = numbers(2), numbers(3), numbers(4)
    sequence = run("SequenceConstruct", a, b)
    longer = run("SequenceInsert", sequence, c, np.array(-1))
    assert [v.size for v in longer] == [2, 4, 3] and [v.size for v in sequence] == [2, 3]
    assert run("SequenceAt", longer, np.array(1)) is c and run("SequenceAt", longer, np.array(-1)) is b
    assert [v.size for v in run("SequenceErase", longer)] == [2, 4]
    assert [v.size for v in run("SequenceErase", longer, np.array(0))] == [4, 3]
    assert run("SequenceLength", longer) == 3 and run("SequenceEmpty") == []
    with pytest.raises(GraphError, match="outside a sequence of 3"):
        run("SequenceAt", longer, np.array(3))


def test_splitting_and_joining():
    x = numbers(7, 2)
    parts = run("SplitToSequence", x, np.array(3))
    assert [p.shape for p in parts] == [(3, 2), (3, 2), (1, 2)]
    np.testing.assert_array_equal(run("ConcatFromSequence", parts, axis=0), x)
    rows = run("SplitToSequence", x, keepdims=0)
    np.testing.assert_array_equal(run("ConcatFromSequence", rows, axis=1, new_axis=1), x.T)
    assert [p.shape for p in run("SplitToSequence", x, np.array(1), keepdims=0)] == [(2,)] * 7  # torch's unbind
    assert [p.shape for p in run("SplitToSequence", x, np.array(7), keepdims=0)] == [(7, 2)]
    assert [p.shape for p in run("SplitToSequence", x, np.array([2, 5]))] == [(2, 2), (5, 2)]
    with pytest.raises(GraphError, match="empty"):
        run("ConcatFromSequence", [], axis=0)


def test_types():
    a, b = TensorType("float32", (2, 3)), TensorType("float32", (4, 3))
    made = infer("SequenceConstruct", a, b)
    assert isinstance(made, SequenceType) and made.of.shape[1] == 3 and not isinstance(made.of.shape[0], int)
    joined = infer("ConcatFromSequence", made, axis=0)
    assert joined.rank == 2 and joined.shape[1] == 3
    assert repr(infer("SequenceEmpty", dtype=7)) == "sequence(int64[...])"
    optional = infer("Optional", a)
    assert isinstance(optional, OptionalType) and infer("OptionalGetElement", optional) is a
    assert infer("SequenceAt", made, TensorType("int64", ())) is made.of
    with pytest.raises(GraphError, match="must be a sequence"):
        infer("SequenceAt", a, TensorType("int64", ()))


def test_absent_values():
    assert run("Optional", type=TensorType("float32", (2,))) is None
    assert not run("OptionalHasElement", None) and run("OptionalHasElement", numbers(2))
    with pytest.raises(GraphError, match="absent"):
        run("OptionalGetElement", None)
    assert run("Identity", None) is None

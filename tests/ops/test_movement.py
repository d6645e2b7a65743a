"""Operators that move elements: ONNX's cases, and random ones against numpy."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, check_symbolic, make, numbers, run_node
from weft.expr.nodes import Var
from weft.graph.ir import GraphError, TensorType
from weft.graph.opspec import Infer, find_operator

OPERATORS = """Reshape Flatten Squeeze Unsqueeze Transpose Expand Tile Shape Size Concat Split Slice Pad CenterCropPad
    Trilu DepthToSpace SpaceToDepth ReverseSequence Col2Im Det""".split()


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case, constants=False), "no compiled form"


def ints(*values):
    return np.array(values, np.int64)


def exact(op, arrays, wanted, **options):
    check_node(op, arrays, wanted, rtol=0, atol=0, **options)


# --------------------------------------------------------------------------------------------------------- reshapes


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=4), st.lists(st.integers(0, 3), max_size=4), st.data())
def test_reshape(shape, cuts, data):
    """Factors of the element count, dealt out anew."""
    factors = [f for d in shape for f in ([2, 3] if d == 6 else [2, 2] if d == 4 else [d])]
    order = data.draw(st.permutations(factors))
    places = sorted(min(c, len(order)) for c in cuts)
    pieces = [order[a:b] for a, b in zip([0, *places], [*places, len(order)])]
    target = [int(np.prod(p)) for p in pieces]
    x = numbers(*shape)
    exact("Reshape", [x, ints(*target)], x.reshape(target))


def test_reshape_rules():
    x = numbers(2, 3, 4)
    exact("Reshape", [x, ints(0, -1)], x.reshape(2, 12))
    empty = np.zeros((0, 3), "float32")
    exact("Reshape", [empty, ints(3, 0)], empty.reshape(3, 0), allowzero=1)
    with pytest.raises(GraphError, match="do not divide"):
        run_node("Reshape", x, ints(5, -1))
    with pytest.raises(GraphError, match="24 elements"):
        run_node("Reshape", x, ints(5, 5))
    with pytest.raises(GraphError, match="not a shape"):
        run_node("Reshape", x, ints(-1, -1))


def infer(op, types, values, outputs=1, **attributes):
    node = make(op, len(types), outputs, attributes)
    return find_operator(op).infer(Infer(node, types, values))


def test_reshape_keeps_named_sizes():
    n, length = Var("n"), Var("length")
    (made,) = infer(
        "Reshape", [TensorType("float32", (n, length, 768)), TensorType("int64", (4,))], [None, ints(0, 0, 12, -1)]
    )
    assert made.shape[0] is n and made.shape[1] is length and made.shape[2:] == (12, 64)
    (flat,) = infer("Reshape", [TensorType("float32", (n, 4, 5)), TensorType("int64", (2,))], [None, ints(-1, 20)])
    assert repr(flat) == "float32[n, 20]"
    (later,) = infer("Reshape", [TensorType("float32", None), TensorType("int64", (3,))], [None, None])
    assert later.rank == 3 and not later.is_static


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float64", "bfloat16", "string", "complex64"])
def test_every_type_moves(dtype):
    if dtype == "string":
        x = np.array([["a", "bc", ""], ["d", "e", "fg"]], object)
    elif dtype == "bfloat16":
        x = numbers(2, 3).astype(ml_dtypes.bfloat16)
    else:
        x = numbers(2, 3).astype(dtype)
    for op, rest, wanted in (
        ("Transpose", [], x.T),
        ("Tile", [ints(2, 2)], np.tile(x, (2, 2))),
        ("Slice", [ints(1, 0), ints(0, 9), ints(1, 0), ints(-1, 1)], x[0:9, 1:0:-1]),
        ("Concat", [x], np.concatenate([x, x], 1)),
        ("Expand", [ints(2, 1, 3)], np.broadcast_to(x, (2, 2, 3))),
    ):
        attributes = {"axis": 1} if op == "Concat" else {}
        made, compiled = run_node(op, x, *rest, **attributes)
        assert made[0].dtype == x.dtype and (made[0] == wanted).all()
        assert (compiled is None) == (dtype in ("string", "complex64"))
        assert compiled is None or (compiled[0] == wanted).all()


def test_squeeze_and_unsqueeze():
    x = numbers(1, 3, 1, 2)
    exact("Squeeze", [x], x[0, :, 0])
    exact("Squeeze", [x, ints(-2)], x[:, :, 0])
    exact("Unsqueeze", [x, ints(-1, 0)], x[None, ..., None])
    with pytest.raises(GraphError, match="not 1"):
        run_node("Squeeze", x, ints(1))
    with pytest.raises(GraphError, match="twice"):
        run_node("Unsqueeze", x, ints(0, 0))


# -------------------------------------------------------------------------------------------------- joining, cutting


def test_concat():
    parts = [numbers(2, n, 3, seed=n) for n in (1, 4, 0, 2, 5)]
    exact("Concat", parts, np.concatenate(parts, 1), axis=1)
    exact("Concat", [parts[2]], parts[2], axis=-2)
    check_symbolic("Concat", parts[:2], {(0, 1): "a", (1, 1): "b", (0, 0): "n", (1, 0): "n"}, axis=1)
    with pytest.raises(GraphError, match="dimension 0 differs"):
        run_node("Concat", numbers(2, 2), numbers(3, 2), axis=1)


def test_split():
    x = numbers(7, 2)
    exact("Split", [x], np.split(x, [3, 6]), num_outputs=3)
    exact("Split", [x, ints(2, 0, 5)], np.split(x, [2, 2]))
    with pytest.raises(GraphError, match="do not make up"):
        run_node("Split", x, ints(2, 2), outputs=2)


SLICES = st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([-3, -2, -1, 1, 2, 3]))


@settings(max_examples=15, deadline=None)
@given(SLICES, SLICES, st.integers(0, 7), st.integers(1, 5))
def test_slice(first, second, rows, columns):
    x = numbers(rows, columns)
    starts, ends, steps = (ints(a, b) for a, b in zip(first, second))
    # Backwards, ONNX holds a start that lies before the first element at it, where Python takes nothing.
    held = [(max(s, -n) if by < 0 else s, e, by) for (s, e, by), n in zip((first, second), x.shape)]
    exact("Slice", [x, starts, ends, ints(0, -1), steps], x[slice(*held[0]), slice(*held[1])])


def test_slice_backwards_from_before_the_first():
    """As the text of the operator has it, and ONNX Runtime does it."""
    x = numbers(3, 4)
    exact("Slice", [x, ints(-9, 9), ints(-(2**31), -(2**31)), ints(0, 1), ints(-1, -2)], x[:1, ::-2])


def test_slice_of_named_sizes():
    n = Var("n")
    kinds = [TensorType("float32", (n, 5)), *[TensorType("int64", (1,))] * 4]
    far = 2**63 - 1
    (whole,) = infer("Slice", kinds, [None, ints(0), ints(far), ints(0), ints(1)])
    assert whole.shape[0] is n
    (halves,) = infer("Slice", kinds, [None, ints(0), ints(far), ints(0), ints(2)])
    assert repr(halves.shape[0]) == "(n + 1) // 2"
    (cut,) = infer("Slice", kinds, [None, ints(1), ints(-1), ints(0), ints(1)])
    assert cut.shape[1] == 5 and not isinstance(cut.shape[0], int)
    (unknown,) = infer("Slice", kinds, [None, None, None, ints(0), None])
    assert unknown.shape[1] == 5 and unknown.rank == 2


@pytest.mark.thin(2)
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0), (3, 0, 5, 4), (2, 9, 1, 11), (0, 0, 0, 0)])
def test_pad(mode, pads):
    x = numbers(4, 5)
    wanted = np.pad(x, [(pads[0], pads[2]), (pads[1], pads[3])], mode=mode)
    exact("Pad", [x, ints(*pads)], wanted, mode=mode)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad_less_than_nothing_crops_first(mode):
    x = numbers(4, 5)
    wanted = np.pad(x[1:, :-2], [(0, 2), (2, 0)], mode=mode)
    exact("Pad", [x, ints(-1, 2, 2, -2)], wanted, mode=mode)


@pytest.mark.thin(3)
@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("shape, before, after", [((3, 9, 56), 3, 3), ((2, 5, 67), 4, 2), ((7, 33), 0, 5)])
def test_pad_of_long_rows(mode, shape, before, after):
    """Rows are cut into what is kept, whose vectors are read as they lie, and what repeats it."""
    x = numbers(*shape)
    wanted = np.pad(x, [(0, 0)] * (len(shape) - 2) + [(before, after)] * 2, mode=mode)
    exact("Pad", [x, ints(*[before] * 2, *[after] * 2), None, ints(-2, -1)], wanted, mode=mode)


def test_pad_with_a_value():
    x = numbers(2, 3, dtype="int32")
    wanted = np.pad(x, [(0, 0), (1, 2)], constant_values=7)
    exact("Pad", [x, ints(1, 2), np.array(7, "int32"), ints(1)], wanted)
    made, _ = run_node("Pad", np.zeros((0, 2), "float32"), ints(1, 0, 1, 1), np.array(5, "float32"))
    assert (made[0] == np.full((2, 3), 5)).all()
    with pytest.raises(GraphError, match="nothing to repeat"):
        run_node("Pad", np.zeros((0, 2), "float32"), ints(1, 0, 1, 1), mode="edge")


# ------------------------------------------------------------------------------------------------------ the pattern


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-9, -1, 0, 2, 9])
def test_trilu(upper, k):
    x = numbers(2, 3, 5)
    exact("Trilu", [x, np.array(k, np.int64)], (np.triu if upper else np.tril)(x, k), upper=upper)


def test_depth_and_space_are_inverse():
    x = numbers(2, 8, 3, 5)
    for mode in ("DCR", "CRD"):
        (there, compiled) = run_node("DepthToSpace", x, blocksize=2, mode=mode)
        assert (there[0] == compiled[0]).all()
        exact("SpaceToDepth", [there[0]], x, blocksize=2, mode=mode)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_determinant(size):
    x = numbers(4, size, size)
    check_node("Det", [x], np.linalg.det(x))


def test_determinant_of_large_matrices_runs_on_the_host():
    x = numbers(2, 6, 6)
    made, compiled = run_node("Det", x)
    np.testing.assert_allclose(made[0], np.linalg.det(x), rtol=1e-4)
    assert compiled is None


def test_tensors_without_elements():
    x = np.zeros((2, 0, 3), "float32")
    exact("Transpose", [x], x.transpose(), perm=[2, 1, 0])
    exact("Flatten", [x], x.reshape(2, 0))
    exact("Tile", [x, ints(1, 2, 2)], np.zeros((2, 0, 6)))
    exact("Slice", [x, ints(1), ints(2)], x[1:2])
    exact("Shape", [x], ints(2, 0, 3))
    exact("Size", [x], np.array(0))


def test_nothing_known_never_crashes():
    """Inference with unknown ranks and values gives a type for every output."""
    unknown = TensorType("float32", None)
    index = TensorType("int64", (Var("m"),))
    for op in OPERATORS:
        count = {"Slice": 5, "Pad": 2, "Col2Im": 3}.get(op, 1 if op in ("Shape", "Size", "Det", "Flatten") else 2)
        types = [unknown] + [index] * (count - 1)
        attributes = {"axis": 1, "blocksize": 2} if op not in ("Shape", "Flatten") else {}
        if op == "Concat":
            types = [unknown, unknown]
        (made,) = infer(op, types, [None] * len(types), **attributes)
        assert isinstance(made, TensorType)

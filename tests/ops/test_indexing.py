"""Reading and writing at places that are data: ONNX's cases, and random ones against PyTorch."""

import numpy as np
import pytest
import torch

import weft
from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, numbers, run_node
from weft.compiler.steps import RestStep
from weft.core.errors import RuntimeFault
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.ir import Graph, GraphError, Node, TensorType, Value
from weft.graph.passes.infer import infer

OPERATORS = "Gather GatherElements GatherND Scatter ScatterElements ScatterND OneHot Compress NonZero".split()
ON_THE_HOST = {"NonZero"}


@pytest.mark.parametrize("case", cases(*OPERATORS), ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case, constants=False) == (case.model.graph.node[0].op_type not in ON_THE_HOST)


def exact(op, arrays, wanted, **options):
    check_node(op, arrays, wanted, rtol=0, atol=0, **options)


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(kind, axis):
    x = numbers(4, 5, 6)
    places = np.array([[0, -1], [2, 3]], kind)
    exact("Gather", [x, places], np.take(x, places, axis=axis), axis=axis)
    exact("Gather", [x, np.array(2, kind)], np.take(x, 2, axis=axis), axis=axis)


def test_places_outside_are_an_error_on_the_host_and_when_compiled():
    x = numbers(4, 3)
    places = np.array([9, -9], np.int64)
    with pytest.raises(GraphError, match="index 9 is outside a dimension of 4"):
        run_node("Gather", x, places)
    from tests.ops.nodes import _compiled, make
    from weft.graph.ir import TensorType
    from weft.graph.opspec import Infer, find_operator

    node, spec = make("Gather", 2, 1, {}), find_operator("Gather")
    types = [TensorType("float32", (4, 3)), TensorType("int64", (2,))]
    inferred = spec.infer(Infer(node, types, [None, None]))
    with pytest.raises(RuntimeFault, match="lies outside of the dimension"):
        _compiled(spec, node, [x, places], types, inferred, [None, None])


def test_gather_of_strings():
    x = np.array(["a", "b", "c"], object)
    made, compiled = run_node("Gather", x, np.array([2, 0]))
    assert made[0].tolist() == ["c", "a"] and compiled is None


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements(axis):
    x = numbers(4, 5, 6)
    places = np.random.default_rng(0).integers(-x.shape[axis], x.shape[axis], (3, 4, 2))
    wanted = torch.gather(torch.tensor(x), axis, torch.tensor(places % x.shape[axis])).numpy()
    exact("GatherElements", [x, places], wanted, axis=axis)


def test_gather_nd():
    x = numbers(2, 3, 4, 5)
    places = np.array([[[0, 1], [2, -1]], [[1, 3], [-3, 0]]], np.int64)
    exact("GatherND", [x, places], np.stack([x[b][places[b, :, 0], places[b, :, 1]] for b in range(2)]), batch_dims=1)
    exact("GatherND", [x, np.array([[1, 2, 3, 4]])], x[1, 2, 3, 4].reshape(1))


REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_elements_with_places_named_twice(dtype, reduction, axis):
    x, updates = numbers(4, 5, dtype=dtype), numbers(3, 4, seed=1, dtype=dtype)
    if dtype == "int32":
        x, updates = x % 7, updates % 7
    places = np.random.default_rng(0).integers(-3, 3, (3, 4))
    wanted = torch.tensor(x).scatter_reduce(
        axis, torch.tensor(places % x.shape[axis]), torch.tensor(updates), REDUCTIONS[reduction]
    )
    check_node("ScatterElements", [x, places, updates], wanted.numpy(), 1e-2, 1e-2, reduction=reduction, axis=axis)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction):
    x, updates = numbers(4, 5, 6), numbers(3, 6, seed=1)
    places = np.array([[0, 1], [3, -1], [0, 1] if reduction != "none" else [2, 2]], np.int64)
    wanted = x.copy()
    combine = {"none": lambda a, b: b, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    for place, update in zip(places, updates):
        wanted[tuple(place)] = combine[reduction](wanted[tuple(place)], update)
    check_node("ScatterND", [x, places, updates], wanted, reduction=reduction)


def test_scatter_nothing():
    x = numbers(3, 2)
    exact("ScatterElements", [x, np.zeros((0, 2), np.int64), np.zeros((0, 2), "float32")], x)
    exact("ScatterND", [x, np.zeros((0, 1), np.int64), np.zeros((0, 2), "float32")], x)
    with pytest.raises(GraphError, match="reduction"):
        run_node("ScatterND", x, np.zeros((1, 1), np.int64), numbers(1, 2), reduction="mean")


def test_one_hot():
    values = np.array([2.0, 5.0], "float32")
    wanted = np.full((2, 2, 4), 2.0, "float32")
    wanted[0, 0, 1] = wanted[0, 1, 3] = wanted[1, 0, 0] = 5.0
    exact("OneHot", [np.array([[1, -1], [0, 9]]), np.array([4]), values], wanted)
    exact("OneHot", [np.array([[1.0, -1.0], [0.0, 9.0]], "float32"), np.array(4.0), values], wanted)
    exact("OneHot", [np.array([[1, -1], [0, 9]]), np.array(4), values], wanted.transpose(2, 0, 1), axis=0)


def test_compress_and_nonzero():
    x = numbers(3, 4)
    exact("Compress", [x, np.array([True, False, True])], x[[0, 2]], axis=0)
    exact("Compress", [x, np.array([False, True, True, False, True])], x.reshape(-1)[[1, 2, 4]])
    with pytest.raises(GraphError, match="chooses element 4"):
        run_node("Compress", x, np.ones(5, bool), axis=1)
    x[1] = 0
    made, compiled = run_node("NonZero", x, known=(0,))
    assert (made[0] == np.array(np.nonzero(x))).all() and compiled is None
    scalar, _ = run_node("NonZero", np.array(3.0, "float32"), known=(0,))
    assert scalar[0].shape == (0, 1)


def places_module(kind, dims, sizes="first"):
    """Twice the places of what is not zero."""
    x, places, out = Value("x", TensorType(kind, dims)), Value("places"), Value("out")
    nodes = [Node("NonZero", [x], [places]), Node("Add", [places, places], [out])]
    with knobs.override(sizes=sizes):
        return weft.compile(infer(Graph("places", [x], [out], nodes)))


def on_the_host(executor):
    """The operators on the host, what waits for shapes included."""
    found = {one.node.op for form in executor.specializations for one in form.host_nodes}
    steps = [step for form in executor.specializations for step in form.runner.program.steps]
    return found.union(*(on_the_host(step.executor) for step in steps if isinstance(step, RestStep)))


def check_places(module, x):
    made, wanted = module(x), 2 * np.argwhere(x).T
    assert made.dtype == np.int64 and made.shape == wanted.shape
    np.testing.assert_array_equal(made, wanted)


def sparse(shape, share, kind="float32", seed=0):
    """Data of which so large a share is not zero; of floats that is NaN, too, and -0 is zero."""
    random = np.random.default_rng(seed)
    x = np.where(random.random(shape) < share, random.integers(1, 100, shape), 0).astype(kind)
    if np.dtype(kind).kind == "f" and x.size > 1:
        x.reshape(-1)[[0, -1]] = [-0.0, np.nan]
    return x


KINDS = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()


@pytest.mark.filterwarnings("ignore::weft.HostWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_places_of_all_types(kind):
    module = places_module(kind, (3, 7))
    for share in (0.5, 0.0, 1.0):
        check_places(module, sparse((3, 7), share, kind))
    assert not on_the_host(module)


@pytest.mark.filterwarnings("ignore::weft.HostWarning")
@pytest.mark.parametrize("sizes", ["first", "bound"])
@pytest.mark.parametrize("rank", range(6))
def test_places_of_all_ranks_and_open_sizes(rank, sizes):
    module = places_module("float32", [Var(f"n{axis}") for axis in range(rank)], sizes)
    shapes = [(4, 3, 2, 5, 3)[:rank], (2, 3, 1, 2, 9)[:rank], (1, 1, 2, 1, 1)[:rank], (3, 0, 2, 1, 4)[:rank]]
    for seed, shape in enumerate(shapes):
        for share in (0.4, 0.0, 1.0):
            check_places(module, sparse(shape, share, seed=seed))
    of_nothing = not rank or sizes == "bound" and any(0 in shape for shape in shapes)
    assert on_the_host(module) == ({"NonZero"} if of_nothing else set())

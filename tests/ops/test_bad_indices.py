"""An index outside of its dimension means one thing: a WeftError that names the node, wherever the node runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import weft
from weft.core.errors import WeftError
from weft.frontends.onnx import load
from weft.graph.interpreter import interpret_graph

FLOAT = np.random.default_rng(0).standard_normal
KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}


def _model(op: str, arrays: list[Any], shape: list[int], domain: str = "", **attributes: Any) -> onnx.ModelProto:
    names = [f"x{k}" for k in range(len(arrays))]
    node = helper.make_node(op, names, ["y"], name="the_node", domain=domain, **attributes)
    given = [helper.make_tensor_value_info(n, KINDS[a.dtype], a.shape) for n, a in zip(names, arrays)]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "g", given, [made]), opset_imports=opsets)


def _floats(*shape: int) -> Any:
    return FLOAT(shape).astype(np.float32)


def _ints(*values: Any) -> Any:
    return np.array(values, np.int64)


CASES: dict[str, tuple[str, list[Any], list[int], dict[str, Any], int]] = {
    "gather": ("Gather", [_floats(5, 3), _ints(0, -5, 4)], [3, 3], {}, 1),
    "gather_axis_1": ("Gather", [_floats(3, 70), _ints(0, -70, 69)], [3, 3], {"axis": 1}, 1),
    "gather_elements": ("GatherElements", [_floats(4, 3), _ints([0, 1, 2], [3, -4, -1])], [2, 3], {}, 1),
    "gather_nd": ("GatherND", [_floats(4, 3), _ints([0, 2], [3, -3])], [2], {}, 1),
    "scatter": (
        "ScatterElements", [_floats(4, 3), _ints([0, 1, 2], [3, -4, -1]), _floats(2, 3)], [4, 3], {}, 1,
    ),
    "scatter_add": (
        "ScatterElements", [_floats(4, 3), _ints([0, 1, 2], [3, -4, -1]), _floats(2, 3)], [4, 3],
        {"reduction": "add"}, 1,
    ),
    "scatter_nd": ("ScatterND", [_floats(4, 3), _ints([0], [-4]), _floats(2, 3)], [4, 3], {}, 1),
    "unpool": (
        "MaxUnpool", [_floats(1, 1, 2, 2), _ints([[[0, 3], [8, 15]]])], [1, 1, 4, 4],
        {"kernel_shape": [2, 2], "strides": [2, 2]}, 1,
    ),
    "features": ("ArrayFeatureExtractor", [_floats(2, 5), _ints([0, 4, 1])], [2, 3], {"domain": "ai.onnx.ml"}, 1),
    "roi_align": (
        "RoiAlign", [_floats(2, 1, 6, 6), _floats(3, 4), _ints(0, 1, 0)], [3, 1, 2, 2],
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2}, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_right_indices_are_taken_and_wrong_ones_named(name: str) -> None:
    op, arrays, shape, attributes, position = CASES[name]
    model = _model(op, arrays, shape, **attributes)
    module, graph = weft.compile(model), load(model)
    assert not module.specializations[0].host_nodes
    expected = interpret_graph(graph, arrays)[0]
    np.testing.assert_allclose(module(*arrays), expected, rtol=1e-5, atol=1e-6)
    for wrong in (100, -100, 1 << 40, -(1 << 63), (1 << 63) - 1):
        given = [a.copy() for a in arrays]
        given[position].reshape(-1)[-1] = wrong
        with pytest.raises(WeftError, match="the_node"):
            module(*given)
        with pytest.raises(WeftError, match="the_node"):
            interpret_graph(graph, given)
    np.testing.assert_allclose(module(*arrays), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_wrong_constants_are_named(name: str) -> None:
    """Folded, compiled or run: a constant index outside is never used."""
    op, arrays, shape, attributes, position = CASES[name]
    wrong = arrays[position].copy()
    wrong.reshape(-1)[-1] = 100
    model = _model(op, arrays, shape, **attributes)
    model.graph.initializer.append(onnx.numpy_helper.from_array(wrong, f"x{position}"))
    del model.graph.input[position]
    given = [a for k, a in enumerate(arrays) if k != position]
    with pytest.raises(WeftError, match="the_node"):
        weft.compile(model)(*given)


def test_the_kernel_that_failed_is_named_among_many() -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], name="first"),
        helper.make_node("Gather", ["e", "i"], ["a"], name="good"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="product"),
        helper.make_node("Gather", ["b", "j"], ["y"], name="bad"),
    ]
    given = [
        helper.make_tensor_value_info(n, kind, shape)
        for n, kind, shape in (
            ("x", 1, [40, 64]), ("i", 7, [9]), ("j", 7, [5]), ("w", 1, [64, 64]),
        )
    ]  # fmt: skip
    made = [helper.make_tensor_value_info("y", 1, [5, 64])]
    model = helper.make_model(helper.make_graph(nodes, "g", given, made), opset_imports=[helper.make_opsetid("", 21)])
    module = weft.compile(model)
    x, w, i, j = _floats(40, 64), _floats(64, 64), np.arange(9), np.arange(5)
    module(x, i, j, w)
    with pytest.raises(WeftError, match="'bad'") as caught:
        module(x, i, j + 5, w)
    assert "'good'" not in str(caught.value)
    with pytest.raises(WeftError, match="'good'"):
        module(x, i + 35, j, w)
    for threads in (1, 2):
        module.threads = threads
        with pytest.raises(WeftError, match="'good'"):
            module(x, i + 35, j, w)
        module(x, i, j, w)


def test_on_opencl_too() -> None:
    pytest.importorskip("pyopencl")
    from weft.targets.opencl import local_devices

    if not local_devices():
        pytest.skip("there is no OpenCL device")
    op, arrays, shape, attributes, position = CASES["gather"]
    module = weft.compile(_model(op, arrays, shape, **attributes), target="opencl")
    expected = module(*arrays)
    wrong = [arrays[0], arrays[1] + 5]
    with pytest.raises(WeftError, match="the_node"):
        module(*wrong)
    there = module.to_device(arrays[0]), module.to_device(wrong[1])
    later = module(*there)
    with pytest.raises(WeftError, match="the_node"):
        later.numpy()
    np.testing.assert_array_equal(module(*arrays), expected)


@pytest.mark.parametrize(
    "op,arrays,shape,attributes",
    [
        ("ScatterElements", [_floats(1, 0), _ints([1, 3]), _floats(1, 2)], [1, 0], {"axis": 1}),
        ("Gather", [_floats(0, 3), _ints(0)], [1, 3], {}),
        (
            "RoiAlign", [_floats(0, 1, 6, 6), _floats(1, 4), _ints(0)], [1, 1, 2, 2],
            {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
        ),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::weft.HostWarning")
def test_nothing_has_an_index_in_what_is_empty(op: str, arrays: Any, shape: Any, attributes: Any) -> None:
    with pytest.raises(WeftError, match="the_node"):
        weft.compile(_model(op, arrays, shape, **attributes))(*arrays)

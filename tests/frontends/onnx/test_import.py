"""What a model becomes: names, scopes, functions, sizes, constants of every element type, order."""

import io

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontends.onnx.models import BOOL, FLOAT, INT64, branching, classifier, info, model, node
from tests.graph.verifier import verify_graph
from weft.expr.nodes import Var
from weft.frontends.onnx import load
from weft.frontends.onnx.tensors import TensorReader
from weft.frontends.onnx.types import ELEMENT_TYPES
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import NUMPY_TYPES, Graph, OptionalType, SequenceType, TensorType

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_every_way_to_give_a_model(tmp_path):
    made = classifier()
    data = made.SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with path.open("rb") as file:
        given = [made, data, bytearray(data), path, str(path), io.BytesIO(data), file]
        graphs = [load(one) for one in given]
    assert all([n.op for n in g.nodes] == [n.op for n in graphs[0].nodes] for g in graphs)
    assert graphs[3].nodes[0].origin == "model.onnx" and graphs[3].nodes[0].name == "conv"
    assert [v.name for v in graphs[0].inputs] == ["image"] and [v.name for v in graphs[0].outputs] == ["y"]


def test_the_graph_is_well_formed():
    for made in (classifier(), branching()):
        verify_graph(load(made))


def test_sizes_have_one_variable_for_each_name():
    inputs = [("x", FLOAT, ["N", "2*len", None]), ("z", FLOAT, ["N", 4, ""]), ("w", FLOAT, None)]
    graph = load(model([node("Neg", "x")], inputs))
    x, z, w = (v.tensor for v in graph.inputs)
    assert isinstance(x.dims[0], Var) and x.dims[0] is z.dims[0] and x.dims[0].name == "N"
    assert x.dims[1].name == "size_2_len"
    assert x.dims[2] is not z.dims[2] and z.dims[1] == 4 and w.shape is None
    assert set(graph.symbols) >= {"N", "size_2_len"}


def test_types_of_inputs():
    made = model([node("SequenceLength", "x")], [])
    made.graph.input.append(helper.make_tensor_sequence_value_info("x", FLOAT, [2]))
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(INT64, [3]))
    made.graph.input.append(helper.make_value_info("o", optional))
    sequence, option = (v.type for v in load(made).inputs)
    assert isinstance(sequence, SequenceType) and isinstance(option, OptionalType)
    assert isinstance(option.of, TensorType) and option.of.dtype == "int64"


def test_initialisers_that_are_inputs_too_are_constants():
    made = model(
        [node("Add", "x w")], [("x", FLOAT, [2, 3]), ("w", FLOAT, [3])], constants={"w": np.ones(3, np.float32)}
    )
    graph = load(made)
    assert [v.name for v in graph.inputs] == ["x"] and len(graph.constants) == 1
    assert (interpret_graph(graph, [X])[0] == X + 1).all()


def test_nodes_are_put_in_order():
    nodes = [node("Neg", "b"), node("Abs", "a", "b"), node("Exp", "x", "a")]
    assert [n.op for n in load(model(nodes)).nodes] == ["Exp", "Abs", "Neg"]
    then = helper.make_graph([node("Neg", "late", "r")], "then", [], [info("r")])
    other = helper.make_graph([node("Abs", "late", "r")], "else", [], [info("r")])
    nodes = [node("If", "flag", then_branch=then, else_branch=other), node("Exp", "x", "late")]
    graph = load(model(nodes, [("x", FLOAT, [2, 3]), ("flag", BOOL, [])]))
    assert [n.op for n in graph.nodes] == ["Exp", "If"]
    np.testing.assert_allclose(interpret_graph(graph, [X, np.array(True)])[0], -np.exp(X), rtol=1e-6)


def test_inputs_and_outputs_left_out():
    graph = load(model([node("Clip", "x - top")], constants={"top": np.array(2, np.float32)}))
    assert graph.nodes[0].inputs[1] is None
    (got,) = interpret_graph(graph, [X])
    assert got.max() == 2
    w = np.zeros((1, 4, 3), np.float32)
    lstm = node("LSTM", "x w r", "- y", hidden_size=1)
    inputs = [("x", FLOAT, [2, 1, 3])]
    graph = load(model([lstm], inputs, constants={"w": w, "r": w[:, :, :1].copy()}))
    assert len(graph.nodes[0].outputs) == 2 and graph.nodes[0].outputs[1] is graph.outputs[0]


def test_an_output_that_is_an_input_or_a_constant():
    graph = load(model([], outputs=["x", "w", "x"], constants={"w": np.ones(2, np.float32)}))
    assert graph.outputs[0] is graph.inputs[0] is graph.outputs[2] and graph.outputs[1] in graph.constants


def test_constants():
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([5.0], np.float32), "v"), numpy_helper.from_array(np.array([[1, 2]])), [2, 3]
    )
    given = {
        "value_int": (3, np.array(3, np.int64)),
        "value_ints": ([1, 2], np.array([1, 2], np.int64)),
        "value_float": (0.5, np.array(0.5, np.float32)),
        "value_floats": ([0.5], np.array([0.5], np.float32)),
        "value_string": ("a", np.array("a", object)),
        "value_strings": (["a", "b"], np.array(["a", "b"], object)),
        "value": (numpy_helper.from_array(X), X),
        "sparse_value": (sparse, np.array([[0, 0, 0], [0, 0, 5]], np.float32)),
    }
    for name, (value, wanted) in given.items():
        graph = load(model([node("Constant", "", **{name: value})], []))
        (array,) = graph.constants.values()
        assert array.dtype == wanted.dtype and array.shape == wanted.shape and (array == wanted).all(), name
        assert not graph.nodes


def test_sparse_initialisers():
    values, flat = np.array([1.0, 2.0], np.float32), np.array([4, 1])
    tensor = helper.make_sparse_tensor(numpy_helper.from_array(values, "w"), numpy_helper.from_array(flat), [2, 3])
    graph = load(model([node("Add", "x w")], sparse_initializer=[tensor]))
    (array,) = graph.constants.values()
    assert array.tolist() == [[0, 2, 0], [0, 1, 0]]


NUMBERS = {
    **dict.fromkeys(("int2",), [-2, -1, 0, 1, 1]),
    **dict.fromkeys(("uint2",), [0, 1, 2, 3, 3]),
    **dict.fromkeys(("bool",), [0, 1, 1, 0, 1]),
    **dict.fromkeys(("float8_e8m0fnu",), [1, 2, 4, 0.5, 8]),
    **dict.fromkeys(("float4_e2m1fn",), [0, 1, -6, 0.5, 3]),
}


@pytest.mark.parametrize("kind", [k for k in ELEMENT_TYPES.values() if k != "string"])
@pytest.mark.parametrize("as_raw", [True, False])
def test_every_element_type(kind, as_raw):
    number = next(n for n, name in ELEMENT_TYPES.items() if name == kind)
    unsigned = kind.startswith("u")
    values = np.array(NUMBERS.get(kind, [0, 1, 2, 5, 7] if unsigned else [0, 1, -2, 5, 7])).astype(NUMPY_TYPES[kind])
    if as_raw:
        tensor = numpy_helper.from_array(values, "w")
    else:
        tensor = helper.make_tensor("w", number, values.shape, values.tolist())
    assert tensor.data_type == number and tensor.HasField("raw_data") == as_raw
    got = TensorReader(None).dense(tensor, "test")
    assert got.dtype == values.dtype and (got == values).all()


def test_typed_fields_of_narrow_types():
    tensor = TensorProto(name="w", data_type=TensorProto.INT4, dims=[3], int32_data=[0x8F, 0x07])
    assert TensorReader(None).dense(tensor, "test").tolist() == [-1, -8, 7]
    tensor = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[1], int32_data=[0x3FC0])
    assert TensorReader(None).dense(tensor, "test")[0] == ml_dtypes.bfloat16(1.5)
    tensor = TensorProto(name="w", data_type=TensorProto.COMPLEX64, dims=[1], float_data=[1, 2])
    assert TensorReader(None).dense(tensor, "test")[0] == 1 + 2j
    tensor = TensorProto(name="w", data_type=TensorProto.STRING, dims=[2], string_data=["é".encode(), b""])
    assert TensorReader(None).dense(tensor, "test").tolist() == ["é", ""]


# scopes and functions


def test_subgraphs_and_functions():
    graph = load(branching())
    assert [n.op for n in graph.nodes] == ["If", "Loop"]
    assert graph.nodes[0].name == "" and graph.nodes[0].origin.endswith(":call")
    for flag, factor in ((True, 2), (False, -1)):
        (got,) = interpret_graph(graph, [X, np.array(flag), np.array(3)])
        assert (got == factor * X + 3 * X).all()


def test_names_of_branches_do_not_meet():
    graph = load(branching())
    inner = graph.nodes[0].graphs
    names = {v.name for g in inner.values() for n in g.nodes for v in n.outputs}
    assert len(names) == 2 and isinstance(inner["then_branch"], Graph)


def function(name, inputs, outputs, nodes, attributes=(), opset=28, overload="", **more):
    made = helper.make_function(
        "local", name, inputs, outputs, nodes, [helper.make_opsetid("", opset)], list(attributes), **more
    )
    made.overload = overload
    return made


def reference(node_proto, name, to, kind):
    attribute = node_proto.attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = name, to, kind
    return node_proto


def call(name, inputs, outputs, overload="", **attributes):
    made = helper.make_node(name, inputs, outputs, domain="local", name="use", **attributes)
    made.overload = overload
    return made


def run(nodes, functions, outputs=("y",)):
    graph = load(model(nodes, functions=functions, outputs=outputs, domains={"local": 1}))
    verify_graph(graph)
    return interpret_graph(graph, [X])


def test_attributes_of_functions():
    leaky = reference(node("LeakyRelu", "p", "q"), "alpha", "slope", 1)
    plain = function("F", ["p"], ["q"], [leaky], ["slope"])
    negative = [node("Neg", "x", "n")]
    (got,) = run([*negative, call("F", ["n"], ["y"], slope=0.5)], [plain])
    np.testing.assert_allclose(got, -X * 0.5)
    (got,) = run([*negative, call("F", ["n"], ["y"])], [plain])  # absent: the operator's own default
    np.testing.assert_allclose(got, -X * np.float32(0.01))
    default = function("F", ["p"], ["q"], [leaky], attribute_protos=[helper.make_attribute("slope", 0.25)])
    (got,) = run([*negative, call("F", ["n"], ["y"])], [default])
    np.testing.assert_allclose(got, -X * 0.25)


def test_functions_have_their_own_operator_sets():
    old = function("Old", ["p"], ["q"], [node("ReduceSum", "p", "q", axes=[1])], opset=11)
    (got,) = run([call("Old", ["x"], ["y"])], [old])
    assert (got == X.sum(1, keepdims=True)).all()


def test_overloads_parameters_left_out_and_results_handed_through():
    one = function("F", ["p"], ["q"], [node("Neg", "p", "q")])
    two = function("F", ["p"], ["q"], [node("Abs", "p", "q")], overload="two")
    a, b = run([call("F", ["x"], ["y"]), call("F", ["y"], ["z"], "two")], [one, two], ("y", "z"))
    assert (a == -X).all() and (b == X).all()
    clip = function("C", ["p", "low", "high"], ["q"], [node("Clip", "p low high", "q")])
    (got,) = run([call("C", ["x"], ["y"])], [clip])
    assert (got == X).all()
    through = function("T", ["p"], ["p", "q", "q"], [node("Neg", "p", "q")])
    a, b, c = run([call("T", ["x"], ["y", "z", "w"])], [through], ("y", "z", "w"))
    assert (a == X).all() and (b == -X).all() and (c == -X).all()


def test_functions_that_call_functions_twice():
    inner = function("Inner", ["p"], ["q"], [node("Exp", "p", "t"), node("Neg", "t", "q")])
    imports = [helper.make_opsetid("", 28), helper.make_opsetid("local", 1)]
    nodes = [call("Inner", ["a"], ["b"]), call("Inner", ["b"], ["c"])]
    outer = helper.make_function("local", "Outer", ["a"], ["c"], nodes, imports)
    (got,) = run([call("Outer", ["x"], ["y"])], [inner, outer])
    np.testing.assert_allclose(got, -np.exp(-np.exp(X)), rtol=1e-5)


# models of other tools


def test_models_that_torch_exports(tmp_path):
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
    net = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(64, 5), torch.nn.Softmax(1)).eval()
    image = torch.randn(2, 3, 8, 8)
    for opset in (9, 11, 13, 17):
        path = tmp_path / f"{opset}.onnx"
        names = {"input_names": ["image"], "dynamic_axes": {"image": {0: "batch"}}}
        torch.onnx.export(net, (image,), str(path), opset_version=opset, dynamo=False, **names)
        graph = load(path)
        (got,) = interpret_graph(graph, {"image": image.numpy()})
        np.testing.assert_allclose(got, net(image).detach().numpy(), rtol=1e-4, atol=1e-6)
        assert set(graph.symbols) == {"batch"}


def test_long_chains_and_unknown_sizes_written_as_minus_one():
    """Importing a node never goes back through the nodes before it; -1 is how some exporters write any size."""
    names = ["x", *(f"v{i}" for i in range(1500)), "y"]
    nodes = [node("Clip", names[i], names[i + 1]) for i in range(len(names) - 1)]
    graph = load(model(nodes, [("x", FLOAT, [-1, 3])]))
    assert len(graph.nodes) == len(nodes)
    assert not graph.inputs[0].tensor.is_static

"""Damaged and hostile models: always a FrontendError that says what is wrong and where, and never much memory."""

import os
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.frontends.onnx.models import FLOAT, INT64, branching, classifier, info, model, node
from weft.core.errors import FrontendError
from weft.frontends.onnx import importer, load


def refused(given, *words, **more):
    with pytest.raises(FrontendError) as caught:
        load(given, **more)
    for word in words:
        assert word in str(caught.value), str(caught.value)


# files


def test_no_model_at_all(tmp_path):
    refused(tmp_path / "absent.onnx", "absent.onnx", "cannot be read")
    refused(tmp_path, "is not a file")
    refused(b"", "no graph")
    refused(b"\x00\x01junk" * 20, "no ONNX model")
    refused(b"<html></html>")
    refused(3, "int")
    refused("a\0b", "cannot be read")


def test_a_truncated_file_is_refused_at_every_length():
    data = classifier().SerializeToString()
    whole = len(data)
    for length in [*range(64), *range(64, whole, 97), whole - 1]:
        refused(data[:length])


@pytest.mark.parametrize("name", ["gggg", "nnnn", "xxxx", "cccc"])
def test_a_name_that_is_not_text(name):
    inner = model([node("Add", "xxxx cccc", name="nnnn")], [("xxxx", FLOAT, [2])], constants={"cccc": np.ones(2, "f4")})
    inner.graph.name = "gggg"
    data = inner.SerializeToString().replace(name.encode(), b"\xff" + name[1:].encode())
    refused(data, "model.graph", "not UTF-8")
    refused(onnx.ModelProto.FromString(data), "model.graph", "not UTF-8")


def test_a_file_open_for_text(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("hello")
    with path.open() as file:
        refused(file, "'rb'")


# external data


@pytest.fixture
def external(tmp_path):
    """Writes a model whose weights are external data at a location, and the weights beside it."""

    def write(location, offset=None, length=None, shape=(2, 3), kind=FLOAT):
        tensor = TensorProto(name="w", data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
        entries = {"location": location, "offset": offset, "length": length}
        for key, value in entries.items():
            if value is not None:
                tensor.external_data.add(key=key, value=str(value))
        path = tmp_path / "inner" / "model.onnx"
        path.parent.mkdir(exist_ok=True)
        made = model([node("Add", "x w", name="adder")], constants={"w": tensor})
        path.write_bytes(made.SerializeToString())
        return path

    (tmp_path / "secret.bin").write_bytes(bytes(24))
    (tmp_path / "inner").mkdir()
    np.arange(8, dtype=np.float32).tofile(tmp_path / "inner" / "weights.bin")
    return write


def test_external_data_is_read_from_the_folder(external):
    graph = load(external("weights.bin", offset=8, length=24))
    (array,) = graph.constants.values()
    assert array.tolist() == [[2, 3, 4], [5, 6, 7]]
    with external("weights.bin").open("rb") as file:
        assert load(file).constants
    assert load(external("weights.bin").read_bytes(), folder=external("weights.bin").parent).constants


def test_external_data_from_an_odd_offset_and_from_a_mapped_file(external, tmp_path):
    np.arange(1 << 19, dtype=np.float32).tofile(tmp_path / "inner" / "large.bin")
    (array,) = load(external("large.bin", shape=(1 << 19,))).constants.values()
    assert array[-1] == (1 << 19) - 1 and not array.flags.writeable
    (array,) = load(external("large.bin", offset=1, shape=(1 << 18,))).constants.values()
    assert array.flags.aligned


@pytest.mark.parametrize(
    "location", ["../secret.bin", "a/../../secret.bin", "..\\secret.bin", "", "C:\\secret.bin", "a\0b"]
)
def test_external_data_outside_the_folder(external, location):
    refused(external(location), "outside the folder", "'w'")


def test_external_data_by_absolute_path(external, tmp_path):
    refused(external(str(tmp_path / "secret.bin")), "outside the folder")


def test_external_data_through_links(external, tmp_path):
    os.symlink(tmp_path / "secret.bin", tmp_path / "inner" / "link.bin")
    refused(external("link.bin"), "symbolic link")
    os.symlink(tmp_path, tmp_path / "inner" / "folder")
    refused(external("folder/secret.bin"), "symbolic link")


def test_external_data_that_is_not_there(external, tmp_path):
    refused(external("nothing.bin"), "missing beside the model")
    refused(external("weights.bin", offset=16), "which has 32")
    refused(external("weights.bin", offset=-4), "which has 32")
    refused(external("weights.bin", length=7), "7 bytes")
    refused(external("weights.bin", offset="many"), "no number")
    refused(external("weights.bin", kind=TensorProto.STRING), "strings")
    (tmp_path / "inner" / "folder").mkdir()
    refused(external("folder"), "not a plain file")
    os.mkfifo(tmp_path / "inner" / "pipe")  # reading it would wait for ever
    refused(external("pipe"), "not a plain file")
    refused(external("weights.bin").read_bytes(), "folder")


# tensors


def raw(shape, data=b"", kind=FLOAT, **fields):
    return TensorProto(name="w", data_type=kind, dims=shape, raw_data=data, **fields)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (raw([2, 3], bytes(20)), "20 bytes of data where its shape needs 24"),
        (raw([1 << 20, 1 << 20, 1 << 20]), "more than 2^40 elements"),
        (raw([1 << 62, 0]), "more than 2^40 elements"),
        (raw([1 << 39]), "0 bytes"),
        (raw([-1, 3], bytes(12)), "negative size"),
        (raw([2, 3], bytes(24), kind=99), "element type 99"),
        (raw([2, 3], bytes(24), kind=0), "element type 0"),
        (TensorProto(name="w", data_type=FLOAT, dims=[3], float_data=[1, 2]), "2 values"),
        (TensorProto(name="w", data_type=TensorProto.STRING, dims=[3], string_data=[b"a"]), "1 strings"),
        (TensorProto(name="w", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff"]), "UTF-8"),
        (TensorProto(name="w", data_type=TensorProto.INT4, dims=[5], int32_data=[1, 2]), "packed"),
        (TensorProto(name="w", data_type=FLOAT, dims=[2, 3]), "0 values"),
    ],
)
def test_tensors_that_do_not_fit_their_shape(tensor, words):
    refused(model([node("Add", "x w", name="adder")], constants={"w": tensor}), words, "'w'")


def sparse(values, indices, dims):
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray(values, np.float32), "w"), numpy_helper.from_array(np.asarray(indices)), dims
    )


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (sparse([1.0], [6], [2, 3]), "outside its shape"),
        (sparse([1.0], [-1], [2, 3]), "outside its shape"),
        (sparse([1.0], [[0, 3]], [2, 3]), "outside its shape"),
        (sparse([1.0, 2.0], [0], [2, 3]), "2 values"),
        (sparse([1.0], [0], [1 << 38]), "too large"),
        (sparse([1.0], [0], [-3]), "negative"),
        (sparse([1.0], np.array([0], np.int32), [2, 3]), "int64"),
    ],
)
def test_sparse_tensors(tensor, words):
    refused(model([node("Add", "x w")], sparse_initializer=[tensor]), words)


@pytest.mark.parametrize(("shape", "words"), [([-2, 3], "negative"), ([1 << 30, 1 << 30], "2^40")])
def test_inputs_of_absurd_shapes(shape, words):
    refused(model([node("Neg", "x")], [("x", FLOAT, shape)]), words, "'x'")


def test_a_small_file_cannot_ask_for_much_memory():
    given = [raw([1 << 36]), TensorProto(name="w", data_type=FLOAT, dims=[1 << 36])]
    data = [model([node("Add", "x w")], constants={"w": tensor}).SerializeToString() for tensor in given]
    data.append(model([node("Add", "x w")], sparse_initializer=[sparse([1.0], [0], [1 << 36])]).SerializeToString())
    tracemalloc.start()
    for one in data:
        refused(one)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


# graphs


def test_cycles():
    nodes = [
        node("Add", "x c", "a", name="first"),
        node("Neg", "a", "b", name="second"),
        node("Abs", "b", "c", name="third"),
    ]
    refused(model([*nodes, node("Neg", "c")]), "cycle", "'first'", "'second'", "'third'")
    refused(model([node("Add", "x y", name="self")]), "cycle", "'self'")
    body = helper.make_graph([node("Neg", "y", "r")], "then", [], [info("r")])
    inside = node("If", "flag", "y", name="choice", then_branch=body, else_branch=body)
    refused(model([inside], [("flag", 9, [])]), "cycle", "'choice'")


def test_missing_and_repeated_names():
    nodes = [node("Add", "x w", "a", name="first"), node("Mul", "a v", "y", name="second")]
    refused(model(nodes), "2 problems", "'first' (Add) reads 'w'", "'second' (Mul) reads 'v'")
    refused(model([node("Neg", "x", "z")]), "output 'y'")
    refused(model([node("Neg", "x"), node("Abs", "x", name="again")]), "'again'", "'y'")
    refused(model([node("Neg", "x", "x")]), "'x'")
    refused(model([node("Neg", "x")], [("x", FLOAT, [2]), ("x", FLOAT, [2])]), "two inputs 'x'")
    w = numpy_helper.from_array(np.zeros(2, np.float32), "w")
    made = model([node("Add", "x w")], constants={"w": w})
    made.graph.initializer.add().CopyFrom(w)
    refused(made, "two initialisers", "'w'")
    refused(model([helper.make_node("Neg", ["x"], [])], outputs=()), "no outputs")


def test_inputs_without_types():
    made = model([node("Neg", "x")])
    made.graph.input[0].ClearField("type")
    refused(made, "type of the input 'x'")
    made.graph.input[0].type.map_type.key_type = 7
    refused(made, "map type")


# operators


def test_all_gaps_are_listed_at_once():
    nodes = [
        node("Neg", "x", "a", name="fine"),
        node("Frobnicate", "a", "b", name="one"),
        helper.make_node("Gelu", ["b"], ["c"], name="two", domain="com.nobody"),
        helper.make_node("Gizmo", ["c"], ["y"], name="three", domain="ai.onnx.ml"),
    ]
    made = model(nodes, domains={"com.nobody": 1, "ai.onnx.ml": 5})
    refused(made, "3 problems", "'one'", "no operator Frobnicate", "'two'", "domain 'com.nobody'", "'three'")
    with pytest.raises(FrontendError) as caught:
        load(made)
    assert "'fine'" not in str(caught.value)


def test_opsets():
    neg = [node("Neg", "x", name="negation")]
    refused(model(neg, opset=29), "'negation'", "version 29", "newest is 28")
    refused(model(neg, opset=1), "'negation'", "older than")
    refused(model(neg, opset=0), "'negation'")
    refused(model(neg, opset=-3), "'negation'")
    refused(model([node("Gelu", "x", name="young")], opset=11), "'young'", "not in version 11")
    made = model(neg)
    made.ClearField("opset_import")
    refused(made, "does not import")
    made.opset_import.extend([helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx", 14)])
    refused(made, "two versions")


def test_many_gaps_are_cut_short():
    nodes = [node("Nonsense", "x", f"y{i}", name=f"n{i}") for i in range(300)]
    with pytest.raises(FrontendError) as caught:
        load(model(nodes, outputs=["y0"]))
    assert "300 problems" in str(caught.value) and "and 250 more" in str(caught.value)


def test_attributes():
    made = model([node("Transpose", "x", name="turned", perm=[1, 0])])
    made.graph.node[0].attribute.add().CopyFrom(made.graph.node[0].attribute[0])
    refused(made, "'turned'", "given twice")
    made = model([node("Transpose", "x", name="turned", perm=[1, 0])])
    made.graph.node[0].attribute[0].ref_attr_name = "outer"
    refused(made, "'turned'", "outside a function")
    made = model([node("Transpose", "x", name="turned", perm=[1, 0])])
    made.graph.node[0].attribute[0].type = 14
    refused(made, "'turned'")
    refused(model([node("Constant", "", name="empty")]), "'empty'", "one value, not 0")


def call(name, inputs, outputs):
    return helper.make_node(name, inputs, outputs, domain="local")


def function(name, nodes):
    imports = [helper.make_opsetid("", 28), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["p"], ["q"], nodes, imports)


def test_functions_that_call_themselves_or_explode(monkeypatch):
    monkeypatch.setattr(importer, "MOST_NODES", 5_000)  # the real limit takes seconds to reach
    again = function("Again", [call("Again", ["p"], ["q"])])
    refused(model([call("Again", ["x"], ["y"])], functions=[again], domains={"local": 1}), "Again", "calls itself")
    ping = function("Ping", [call("Pong", ["p"], ["q"])])
    pong = function("Pong", [call("Ping", ["p"], ["q"])])
    refused(model([call("Ping", ["x"], ["y"])], functions=[ping, pong], domains={"local": 1}), "calls itself")
    chain = [function("F0", [node("Neg", "p", "q")])]
    for level in range(1, 50):
        chain.append(function(f"F{level}", [call(f"F{level - 1}", ["p"], ["q"])]))
    refused(model([call("F49", ["x"], ["y"])], functions=chain, domains={"local": 1}), "nested more than")
    doubling = [function("F0", [node("Neg", "p", "q")])]
    for level in range(1, 30):
        calls = [
            call(f"F{level - 1}", ["p" if i == 0 else f"t{i - 1}"], [f"t{i}" if i < 9 else "q"]) for i in range(10)
        ]
        doubling.append(function(f"F{level}", calls))
    refused(model([call("F29", ["x"], ["y"])], functions=doubling, domains={"local": 1}), "nodes")


def test_nodes_that_do_not_have_the_form_of_their_operator():
    refused(model([node("Neg", "x x", name="odd")]), "'odd'", "2 inputs")
    refused(model([node("Neg", "x", "y z", name="odd")]), "'odd'", "2 outputs")
    refused(model([node("Add", "x", name="odd")]), "'odd'", "input 1 is missing")
    refused(model([node("Add", "- x", name="odd")]), "'odd'", "input 0 is missing")
    refused(model([node("Concat", "x - x", name="odd", axis=0)]), "'odd'", "left out")
    refused(model([node("Concat", "x x", name="odd")]), "'odd'", "'axis' is missing")
    refused(model([node("Concat", "x x", name="odd", axis="0")]), "'odd'", "'axis'", "INT")
    refused(model([node("Transpose", "x", name="odd", perm=[0.5])]), "'odd'", "'perm'", "INTS")
    refused(model([node("Loop", "x x x", name="odd", body=3)]), "'odd'", "'body'", "GRAPH")


def test_nesting():
    imports = [helper.make_opsetid("", 28), helper.make_opsetid("local", 1)]
    chain = [helper.make_function("local", "F0", ["c", "p"], ["q"], [node("Neg", "p", "q")], imports)]
    for level in range(1, 24):
        then = helper.make_graph([call(f"F{level - 1}", ["c", "p"], ["r"])], "then", [], [info("r")])
        other = helper.make_graph([node("Neg", "p", "r")], "else", [], [info("r")])
        choice = node("If", "c", "q", then_branch=then, else_branch=other)
        chain.append(helper.make_function("local", f"F{level}", ["c", "p"], ["q"], [choice], imports))
    inputs = [("x", FLOAT, [2]), ("flag", 9, [])]
    given = model([call("F23", ["flag", "x"], ["y"])], inputs, functions=chain, domains={"local": 1})
    refused(given, "nested more than")
    assert load(model([call("F9", ["flag", "x"], ["y"])], inputs, functions=chain, domains={"local": 1})).nodes


def test_functions_used_wrongly():
    good = function("Good", [node("Neg", "p", "q")])
    bad = function("Bad", [node("Neg", "p", "other")])
    refused(model([call("Bad", ["x"], ["y"])], functions=[bad], domains={"local": 1}), "makes no 'q'")
    refused(model([call("Good", ["x", "x"], ["y"])], functions=[good], domains={"local": 1}), "more inputs")
    refused(model([call("Good", ["x"], ["y"])], functions=[good, good], domains={"local": 1}), "defined twice")
    outer = function("Outer", [node("Add", "p x", "q")])  # a function sees nothing of the graph around it
    refused(model([call("Outer", ["x"], ["y"])], functions=[outer], domains={"local": 1}), "reads 'x'")


def test_names_that_are_not_text():
    data = branching().SerializeToString().replace(b"tested", b"te\xff\xfeed")
    try:
        load(data)
    except FrontendError:
        pass


def test_the_package_is_asked_for_by_name(monkeypatch):
    import importlib

    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    refused(b"", "pip install 'weft-compiler[onnx]'")


def test_every_sort_of_model_proto_is_left_unchanged():
    given = classifier()
    before = given.SerializeToString()
    load(given)
    assert given.SerializeToString() == before and isinstance(given, onnx.ModelProto)
    assert load(bytearray(before)).name == "tested" and INT64 == 7

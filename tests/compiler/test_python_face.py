"""A module as people who write Python use it: notebooks, pickle and copy, ONNX Runtime's names, and what goes wrong."""

import copy
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401
from tests.compiler.graphs import convnet, mlp, random_inputs
from tests.core.test_html import EVIL, check_harmless
from weft import te
from weft.compiler.module import NodeArg
from weft.core.errors import ArgumentError, WeftError
from weft.expr.nodes import Var
from weft.graph.ir import Graph, Node, OptionalType, SequenceType, TensorType, Value
from weft.targets import peaks


@pytest.fixture(autouse=True)
def known_peaks(monkeypatch):
    """Peaks far above what any kernel reaches: nothing is measured for them."""
    found = peaks.Peaks(1, {"float32": 1e9, "float64": 1e9}, 1e9)
    monkeypatch.setattr("weft.compiler.reports.profile.machine_peaks", lambda *_, **__: found)


@pytest.fixture(scope="module")
def module():
    return weft.compile(mlp(), threads=1)


@pytest.fixture(scope="module")
def x():
    return random_inputs(mlp())[0]


def relu(name="relu", dtype="float32", value="x"):
    given, made = Value(value, TensorType(dtype, (2, 3))), Value(f"{value}_y", TensorType(dtype, (2, 3)))
    return Graph(name, [given], [made], [Node("Relu", [given], [made], name=name)])


def product():
    A = te.placeholder((8, 8), name="A")
    B = te.compute((8, 8), lambda i, j: A[i, j] * 2.0, name="B")
    return te.create_schedule(B.op), A, B


# -------------------------------------------------------------------------------------------------------- notebooks


def test_a_hostile_model_is_harmless_in_a_notebook():
    graph = relu(EVIL, value=EVIL)
    module = weft.compile(graph)
    profile = module.profile(seconds=0.0)
    for shown in (graph, module, profile):
        found = check_harmless(shown._repr_html_())
        assert "alert(1)" in found.text
    for text in (repr(module), str(profile)):
        assert all(c.isprintable() or c == "\n" for c in text)


def test_what_notebooks_show(module):
    found = check_harmless(module._repr_html_())
    assert "Module mlp" in found.text and "float32[4, 20]" in found.text and "kernel calls" in found.text
    found = check_harmless(weft.compile(mlp(Var("batch")))._repr_html_())
    assert "float32[batch, 20]" in found.text and "not compiled yet" in found.text
    found = check_harmless(convnet()._repr_html_())
    assert "Graph convnet" in found.text and "MaxPool" in found.text and "maxpool_7: float32[2, 16, 8, 8]" in found.text
    schedule, _, B = product()
    schedule[B].split("i", factor=2)
    found = check_harmless(schedule._repr_html_())
    assert "after 1 steps" in found.text and "s.apply('split'" in found.text and "for io in range(4):" in found.text


def test_a_profile_names_the_nodes_of_the_model():
    profile = weft.compile(convnet(), threads=1).profile(seconds=0.0)
    names = [name for kernel in profile.kernels for name in kernel.nodes]
    assert {"conv_1", "relu_2", "softmax_13"} <= set(names)
    html = check_harmless(profile._repr_html_()).text
    rows = str(profile).splitlines()
    assert rows[2].split()[-1] == "nodes" and rows[3].endswith("conv_1, relu_2")
    for row, kernel in zip(profile.as_json()["kernels"], profile.kernels):
        assert row["nodes"] == list(kernel.nodes) and ", ".join(kernel.nodes) in html
    assert repr(profile) == str(profile)


def test_long_names_of_nodes_keep_their_ends():
    from weft.compiler.reports.profile_text import node_names

    assert node_names(["a", "b"]) == "a, b"
    long = [f"/encoder/layers.{i}/self_attn/q_proj/MatMul" for i in range(3)]
    assert node_names(long).endswith("/self_attn/q_proj/MatMul +2")
    assert len(node_names(long)) == 40 and node_names(long).startswith("…")


# -------------------------------------------------------------------------------------------------- pickle and copy


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_compute_the_same(module, x, make):
    other = make(module)
    assert other is not module and type(other) is type(module) and other.threads == 1
    np.testing.assert_array_equal(other(x), module(x))
    other.threads = 2
    assert module.threads == 1 and repr(other) == repr(module)


def test_an_open_module_is_pickled_with_its_model(x):
    module = pickle.loads(pickle.dumps(weft.compile(mlp(Var("batch")))))
    for rows in (2, 4):
        np.testing.assert_allclose(module(x[:rows]), weft.compile(mlp())(x)[:rows], rtol=1e-5, atol=1e-6)


def test_another_process_takes_a_pickled_module(module, x, tmp_path):
    (tmp_path / "both").write_bytes(pickle.dumps((module, x)))
    code = "import pickle, sys; m, x = pickle.load(open(sys.argv[1], 'rb')); pickle.dump(m(x), open(sys.argv[2], 'wb'))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "both"), str(tmp_path / "y")], check=True)
    np.testing.assert_array_equal(pickle.loads((tmp_path / "y").read_bytes()), module(x))


def test_a_damaged_pickle_is_refused_in_words(module):
    call, (content, threads) = module.__reduce__()
    with pytest.raises(WeftError):
        call(content[: len(content) // 2], threads)


def test_graphs_copy_and_pickle(tmp_path):
    onnx = pytest.importorskip("onnx")
    from weft.cli.to_onnx import to_onnx

    path = tmp_path / "net.onnx"
    onnx.save(to_onnx(convnet()), path)
    module = weft.compile(path)  # which lets go of weights that kernels have packed copies of
    arrays = random_inputs(convnet())
    for graph in (module.graph, copy.deepcopy(module.graph), pickle.loads(pickle.dumps(module.graph))):
        np.testing.assert_array_equal(weft.compile(graph)(*arrays), module(*arrays))


def test_schedules_copy_and_pickle():
    schedule, A, B = product()
    schedule[B].split(B.op.axis[0], factor=2)
    for other in (copy.copy(schedule), copy.deepcopy(schedule)):
        other[B].split(B.op.axis[1], factor=4)  # the tensor's own axes still name its loops
        assert len(other.trace) == 2
    schedule[B].vectorize(B.op.axis[1])  # no copy has taken the loop away
    a, b = np.ones((8, 8), "float32"), np.zeros((8, 8), "float32")
    weft.build(pickle.loads(pickle.dumps(schedule)))(a, b)
    np.testing.assert_array_equal(b, a * 2)


def test_compiled_functions_refuse_pickle_and_are_their_own_copies():
    schedule, A, B = product()
    function = weft.build(schedule, [A, B])
    assert copy.copy(function) is function and copy.deepcopy([function])[0] is function
    with pytest.raises(TypeError, match="cannot be pickled.*Pickle the schedule instead"):
        pickle.dumps(function)


# ------------------------------------------------------------------------------------------------------- inputs


def test_inputs_and_outputs_as_onnx_runtime_gives_them():
    module = weft.compile(mlp(Var("batch")))
    assert module.get_inputs() == [NodeArg("x", ["batch", 20], "tensor(float)")]
    (output,) = module.get_outputs()
    assert output.shape == ["batch", 7] and output.type == "tensor(float)"
    names = {"float64": "double", "int64": "int64", "float16": "float16", "bool": "bool"}
    for dtype, name in names.items():
        value = Value("v", TensorType(dtype, (2,)))
        made = Value("w")
        module = weft.compile(Graph("one", [value], [made], [Node("Identity", [value], [made])]))
        assert module.get_inputs()[0] == NodeArg("v", [2], f"tensor({name})")


def test_types_of_sequences_and_optionals():
    from weft.runtime.model.module import _onnx_type

    tensor = TensorType("float8_e4m3fn", ())
    assert _onnx_type(tensor) == "tensor(float8e4m3fn)"
    assert _onnx_type(OptionalType(SequenceType(tensor))) == "optional(seq(tensor(float8e4m3fn)))"


def test_get_inputs_is_onnx_runtimes(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from tests.cli.tiny import write_tiny

    write_tiny(tmp_path / "tiny.onnx")
    theirs = runtime.InferenceSession(tmp_path / "tiny.onnx", providers=["CPUExecutionProvider"])
    ours = weft.compile(tmp_path / "tiny.onnx")
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(a.name, a.shape, a.type) for a in mine] == [(b.name, b.shape, b.type) for b in other]


def test_a_call_and_a_profile_take_inputs_alike(module, x):
    want = module(x)
    for arrays, named in (((x,), {}), ((x.tolist(),), {}), ((), {"x": x}), (({"x": x},), {})):
        np.testing.assert_array_equal(module(*arrays, **named), want)
        assert module.profile(*arrays, **named, seconds=0.0).kernels
    assert module.profile(seconds=0.0).threads == 1 and module.profile(x, threads=2, seconds=0.0).threads == 2
    for call in (module, lambda *a, **n: module.profile(*a, **n, seconds=0.0)):
        with pytest.raises(ArgumentError, match="given twice"):
            call(x, x=x)
        with pytest.raises(ArgumentError, match="unknown: z"):
            call({"z": x})


def test_threads_are_checked_when_they_are_set(module):
    with pytest.raises(ArgumentError, match="threads is 'two'"):
        module.threads = "two"
    assert module.threads == 1


def test_a_module_in_many_threads_with_weak_references(x):
    module = weft.compile(mlp())
    want, found = module(x), []
    workers = [threading.Thread(target=lambda: found.append(copy.copy(module)(x))) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 8 and all(np.array_equal(one, want) for one in found)
    seen = weakref.ref(module)
    assert seen() is module


# ------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, x: m(None), "input 'x' is float32[4, 20]; a NoneType was given"),
        (lambda m, x: m([[1, 2], [3]]), "input 'x' is float32[4, 20]; no array can be made of the list"),
        (lambda m, x: m("x.npy"), "input 'x' takes elements of float32"),
        (lambda m, x: m(x.astype("float64")), "convert it with .astype('float32')"),
        (lambda m, x: m(x.astype(object)), "not object: convert it with .astype('float32')"),
        (lambda m, x: m(x[:3]), "input 'x' is float32[4, 20]; the array given has the shape [3, 20]"),
        (lambda m, x: m(), "missing: x"),
        (lambda m, x: m(x, x), "takes 1 inputs (x), not 2"),
        (lambda m, x: m(image=x), "missing: x; unknown: image"),
        (lambda m, x: m(x, out=[x, x]), "out takes one numpy array for each of 1 outputs"),
        (lambda m, x: m.run("y", {"x": x}), "outputs are named in a list, such as ['y']"),
        (lambda m, x: m.run(["nope"], {"x": x}), "there are no outputs ['nope']"),
        (lambda m, x: m.run(None, [x]), "by name, {'x': array}, not as a list"),
        (lambda m, x: m.run(None, x), "by name, {'x': array}, not as a ndarray"),
        (lambda m, x: m.run(None, None), "by name, {'x': array}, not as a NoneType"),
        (lambda m, x: weft.compile(m), "compiled already"),
        (lambda m, x: weft.compile(None), "not a NoneType"),
        (lambda m, x: weft.compile(product()[0]), "weft.build(schedule"),
        (lambda m, x: weft.compile("missing.onnx"), "missing.onnx"),
        (lambda m, x: weft.compile(mlp(), shapes=[4, 20]), "shapes are given by the names of inputs"),
        (lambda m, x: weft.compile(mlp(), shapes={"x": 4}), "the shape of input 'x' is a tuple of sizes, not 4"),
        (lambda m, x: weft.load(None), "the path of a file that Module.save wrote, not a NoneType"),
        (lambda m, x: weft.load("missing.weft"), "missing.weft"),
        (lambda m, x: weft.build(product()[1].op), "a schedule or a loop program, not PlaceholderOp"),
        (lambda m, x: weft.build(product()[0], "native"), "a target is given as target="),
        (lambda m, x: weft.build("model.onnx"), "weft.compile takes models"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(module, x, call, words):
    with pytest.raises(WeftError) as caught:
        call(module, x)
    assert words in str(caught.value)


def test_files_of_the_other_kind_are_pointed_to_the_other_function(module, tmp_path):
    module.save(tmp_path / "net.weft")
    with pytest.raises(ArgumentError, match="weft.load"):
        weft.compile(tmp_path / "net.weft")
    (tmp_path / "net.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(ArgumentError, match="weft.compile takes it"):
        weft.load(tmp_path / "net.onnx")
    with pytest.raises(TypeError, match=r"weft.compile\(model\)"):
        weft.Module("net.onnx")


def test_lists_are_converted_only_where_their_values_stay():
    value, made = Value("n", TensorType("int64", (2,))), Value("m")
    module = weft.compile(Graph("whole", [value], [made], [Node("Identity", [value], [made])]))
    np.testing.assert_array_equal(module([1, 2]), [1, 2])
    np.testing.assert_array_equal(module([1.0, 2.0]), [1, 2])
    for wrong in ([1.5, 2], [float("nan"), 1], [1j, 2], [10**30, 1], ["a", "b"], [2**63, 1], [2**63, 2**63]):
        with pytest.raises(ArgumentError, match="input 'n'"):
            module(wrong)


def test_a_module_on_a_device_explains_and_copies_too():
    module = weft.compile(mlp(), target="cuda:sm_90a", threads=1)
    for call in (module.queue, module.bind, lambda feeds: module.run(None, feeds)):
        with pytest.raises(ArgumentError, match="by name, {'x': array}, not as a list"):
            call([1])
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(other) is type(module) and other.threads == 1
        assert repr(other).split(" for ")[0] == repr(module).split(" for ")[0]  # a file knows a device by its own name
    assert "Module mlp for cuda:sm_90a" in check_harmless(module._repr_html_()).text


def test_torch_tensors_that_cannot_be_read(module):
    torch = pytest.importorskip("torch")
    for wrong, words in (
        (torch.ones(4, 20, dtype=torch.float64), r"\.to\(torch.float32\)"),
        (torch.ones(4, 20, requires_grad=True), "detach"),
        (torch.ones(4, 20, device="meta"), "meta"),
        (torch.ones(4, 20).to_sparse(), "input 'x'"),
    ):
        with pytest.raises(ArgumentError, match=words):
            module(wrong)
    with pytest.raises(ArgumentError, match=r"weft.compile\(model, \(input,\)\)"):
        weft.compile(torch.nn.Linear(3, 4))

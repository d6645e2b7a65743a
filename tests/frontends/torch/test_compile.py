"""weft.compile of PyTorch models: structures, sharing, sizes that vary, state, files, and errors that help."""

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from weft.core.errors import ArgumentError, FrontendError, InternalError  # noqa: E402
from weft.frontends.torch import load  # noqa: E402
from weft.frontends.torch.table import CONVERTERS  # noqa: E402
from weft.graph.ir import NUMPY_TYPES  # noqa: E402


class Nested(torch.nn.Module):
    """Tuples, dicts, numbers and None, in and out."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x, pair, *, extra=None, factor=2):
        y = self.linear(x) + self.shift * factor
        if extra is not None:
            y = y + extra["e"]
        return {"y": y, "same": x, "parts": (pair[0] > 0, pair[1] + 1, None, 7), "again": y}


def arguments():
    torch.manual_seed(0)
    return (torch.randn(2, 4), (torch.randn(3), torch.tensor([1, 2]))), {"extra": {"e": torch.randn(4)}, "factor": 3}


@pytest.fixture(scope="module")
def nested():
    model = Nested().eval()
    args, kwargs = arguments()
    program = torch.export.export(model, args, kwargs)
    return model, weft.compile(program)


def test_structures_come_out_as_the_module_returns_them(nested):
    model, compiled = nested
    args, kwargs = arguments()
    with torch.no_grad():
        wanted = model(*args, **kwargs)
    found = compiled(*args, **kwargs)
    assert list(found) == list(wanted) and found["parts"][2:] == (None, 7)
    torch.testing.assert_close(found, wanted)
    assert found["y"].data_ptr() != found["again"].data_ptr()


def test_numpy_in_is_numpy_out_and_one_tensor_makes_it_torch(nested):
    _, compiled = nested
    args, kwargs = arguments()
    arrays = torch.utils._pytree.tree_map(
        lambda one: one.numpy() if isinstance(one, torch.Tensor) else one, (args, kwargs)
    )
    found = compiled(*arrays[0], **arrays[1])
    assert isinstance(found["y"], np.ndarray) and found["parts"][0].dtype == bool
    mixed = compiled(args[0], arrays[0][1], **arrays[1])
    assert isinstance(mixed["y"], torch.Tensor)
    np.testing.assert_array_equal(found["y"], mixed["y"].numpy())


def test_examples_may_be_arrays_of_numpy():
    model, x = torch.nn.Linear(3, 2).eval(), np.ones((2, 3), "float32")
    np.testing.assert_allclose(weft.compile(model, x)(x), model(torch.from_numpy(x)).detach(), rtol=1e-5)


def test_a_call_of_another_form_says_how_it_is_called(nested):
    _, compiled = nested
    args, kwargs = arguments()
    with pytest.raises(ArgumentError, match=r"x, \(pair_0, pair_1\), extra=\{e: extra_e\}, factor=3"):
        compiled(args[0])
    with pytest.raises(ArgumentError, match="compiled for 3, not 4"):
        compiled(*args, **{**kwargs, "factor": 4})


def test_arguments_that_are_left_out_or_added_are_not_guessed():
    class Scaled(torch.nn.Module):
        def forward(self, x, scale=1.0, negated=False):
            return -x * scale if negated else x * scale

    x = torch.ones(2)
    compiled = weft.compile(Scaled(), {"x": x, "scale": 2.0})
    assert compiled(x=x, scale=2.0).tolist() == [2.0, 2.0]
    for call in ((lambda: compiled(x=x)), (lambda: compiled(x)), (lambda: weft.compile(Scaled(), x)(x, negated=True))):
        with pytest.raises(ArgumentError, match="called as in its example"):
            call()


def test_copies_are_called_as_the_module_is(nested):
    model, compiled = nested
    args, kwargs = arguments()
    for one in (copy.copy(compiled), copy.deepcopy(compiled)):
        with torch.no_grad():
            torch.testing.assert_close(one(*args, **kwargs), model(*args, **kwargs))


def test_parameters_are_shared_not_copied():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 8).bfloat16().float()).eval()
    graph = load(model, (torch.randn(2, 64),)).graph
    arrays = list(graph.constants.values())
    for parameter in model.parameters():
        assert any(np.shares_memory(parameter.detach().numpy(), array) for array in arrays)


def test_a_call_copies_no_contiguous_tensor():
    from weft.frontends.torch.calls import as_array, as_tensor

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.float8_e5m2):
        tensor = torch.zeros(3, 2).to(dtype)
        array = as_array(tensor)
        assert array.dtype == NUMPY_TYPES[str(dtype).removeprefix("torch.")] and array.shape == (3, 2)
        back = as_tensor(array)
        assert back.dtype == dtype and back.data_ptr() == tensor.data_ptr()
    assert as_array(torch.zeros(2, 3, requires_grad=True).t()).flags.c_contiguous


class Resized(torch.nn.Module):
    def forward(self, x, other):
        b, n, c = x.shape
        y = x.reshape(b, n * c).view(b, n, 2, c // 2).transpose(1, 2)
        y = torch.cat([y, torch.zeros(b, 2, 1, c // 2)], 2).mean(2)
        return y.flatten(1), x.new_ones(n, b) * other.shape[0], torch.arange(n) + b, x[:, : n - 1].sum()


def test_sizes_that_vary():
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", min=3)
    model, x, other = Resized(), torch.randn(2, 5, 4), torch.randn(3, 2)
    compiled = weft.compile(model, (x, other), dynamic_shapes=({0: batch, 1: length}, {1: batch}))
    assert [port.shape[0] for port in compiled.inputs] == [compiled.inputs[1].shape[1], 3]
    for b, n in ((2, 5), (3, 7), (4, 3)):
        given = torch.randn(b, n, 4), torch.randn(3, b)
        torch.testing.assert_close(compiled(*given), model(*given))
    given = torch.randn(2, 5, 4), torch.randn(3, 4)
    with pytest.raises(weft.WeftError, match=r"where other.shape\[1\] == x.shape\[0\], and other.shape\[1\] is 4, x"):
        compiled(*given)


class Branching(torch.nn.Module):
    def forward(self, x, y):
        x = x * 2 if x.shape[0] > 5 else x + 1
        x = x - 1 if x.shape[0] % 2 else x
        return x.sum() + (3 if x.shape[0] == y[0]["k"].shape[0] else 0)


def test_sizes_that_would_go_another_way_are_refused(tmp_path):
    every, given = torch.export.Dim.DYNAMIC, (torch.ones(4, 2), [{"k": torch.ones(3)}])
    program = torch.export.export(Branching(), given, dynamic_shapes=({0: every}, [{"k": {0: every}}]))
    torch.export.save(program, tmp_path / "branching.pt2")
    compiled = weft.compile(tmp_path / "branching.pt2")
    for rows, more in ((4, 3), (2, 5)):
        given = torch.ones(rows, 2), [{"k": torch.ones(more)}]
        torch.testing.assert_close(compiled(*given), Branching()(*given))
    for rows, more, said in ((6, 3, r"x.shape\[0\] <= 5"), (3, 4, "% 2"), (4, 4, "!=")):
        with pytest.raises(weft.WeftError, match=said):
            compiled(torch.ones(rows, 2), [{"k": torch.ones(more)}])


def test_guards_of_a_file_are_arithmetic_or_nothing():
    from types import SimpleNamespace

    from weft.frontends.torch.calls import guards_of

    texts = ["__import__('os')", "L['x'].size()[0].bit_length() > 1", "L['x'].size()[0] <", "L['x'].size()[0] > 2"]
    assert guards_of(SimpleNamespace(_guards_code=texts)) == [("size_0 > 2", {"size_0": ("x", 0)})]


class Counting(torch.nn.Module):
    """Changes a buffer and an input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x):
        x.mul_(2)
        self.seen += x.sum(0)
        return self.seen * 1


def test_buffers_and_inputs_that_change():
    eager, model = Counting(), Counting()
    compiled = weft.compile(model, (torch.ones(2, 3),))
    for _ in range(2):
        x, y = torch.ones(2, 3), torch.ones(2, 3)
        torch.testing.assert_close(compiled(y), eager(x))
        assert torch.equal(x, y)
    array = np.ones((2, 3), np.float32)
    compiled(array)
    assert (array == 2).all()


def test_files_and_saved_modules(tmp_path):
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval(), torch.randn(2, 4)
    program = torch.export.export(model, (x,))
    torch.export.save(program, tmp_path / "model.pt2")
    compiled = weft.compile(tmp_path / "model.pt2")
    torch.testing.assert_close(compiled(x), model(x))
    compiled.save(tmp_path / "model.weft")
    torch.testing.assert_close(weft.load(tmp_path / "model.weft")(x), model(x).detach())
    (tmp_path / "bad.pt2").write_bytes(b"no archive")
    with pytest.raises(FrontendError, match="bad.pt2 is no file of torch.export.save"):
        weft.compile(tmp_path / "bad.pt2")
    with pytest.raises(FrontendError, match="there is no file"):
        weft.compile("nowhere.pt2")


def test_the_old_order_of_arguments_still_works():
    graph = load(torch.nn.ReLU(), (torch.zeros(2),)).graph
    assert weft.compile(graph, "native", None, None, 1).threads == 1
    with pytest.raises(ArgumentError, match="example inputs go with a model that is code, not with a Graph"):
        weft.compile(graph, (1,))


# ------------------------------------------------------------------------------------------------------------- errors


class Odd(torch.nn.Module):
    def forward(self, x):
        y = torch.linalg.eigvals(x)
        z = torch.special.bessel_j0(x)
        z = torch.special.bessel_j0(z)
        return y.real + z


def test_all_unknown_operators_are_listed_with_the_users_line():
    with pytest.raises(FrontendError) as caught:
        weft.compile(Odd(), (torch.eye(3),))
    said = str(caught.value)
    assert "complex numbers" in said and "aten.special_bessel_j0 is not known; 2 times, first in" in said
    line = Odd.forward.__code__.co_firstlineno
    assert f"test_compile.py:{line + 1}" in said and f"test_compile.py:{line + 2}" in said


def test_errors_name_the_module_and_its_nodes_know_their_lines():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    with pytest.raises(FrontendError, match=r"(?s)dropout: dropout is on: .*model.eval\(\).*\n    1\b"):
        weft.compile(model.train(), (torch.randn(2, 4),))
    (node,) = [one for one in load(Odd2().eval(), (torch.randn(2, 4),)).graph.nodes if one.op == "Gemm"]
    assert node.origin.startswith("inner at ") and f":{Odd2.forward.__code__.co_firstlineno + 1}" in node.origin


class Odd2(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.inner(x))


def test_complex_inputs_are_refused():
    with pytest.raises(FrontendError, match="input 'input'.*complex numbers"):
        weft.compile(torch.nn.Identity(), (torch.zeros(2, dtype=torch.complex64),))


def test_a_function_of_torch_goes_into_a_module():
    with pytest.raises(ArgumentError, match="put the function into a module"):
        weft.compile(torch.relu, (torch.zeros(2),))


def test_a_fault_in_a_converter_is_no_refusal(monkeypatch):
    monkeypatch.setitem(CONVERTERS, "relu", lambda c, x: x.nothing)
    with pytest.raises(
        InternalError, match=r"converter of aten.relu failed .used in .*test_compile.py:\d+.: Attribute"
    ):
        load(Odd2(), (torch.zeros(2, 4),))


def test_what_torch_cannot_export_says_where():
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(FrontendError, match=r"cannot export the Branch.*test_compile.py:\d+.*backend=\"weft\""):
        weft.compile(Branch(), (torch.ones(2),))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: Nested(), r"weft.compile\(model, \(x, pair\)\)"),
        (lambda: torch.jit.script(torch.nn.Linear(2, 2)), "TorchScript"),
        (lambda: torch.zeros(2), "the model comes first"),
        (lambda: np.zeros(2), "the model comes first"),
        (lambda: torch.nn.Linear, r"it is a class.*Linear\(…\)"),
        (lambda: lambda x: x, r"weft.compile\(function, x\); one of PyTorch's goes into a module"),
        (lambda: "weights.safetensors", "it holds weights"),
        (lambda: torch.compile(torch.nn.Linear(2, 2), backend="eager"), "_orig_mod"),
    ],
)
def test_wrong_objects_say_what_they_are_and_what_to_do(given, said):
    with pytest.raises(ArgumentError, match=said):
        weft.compile(given())


def test_an_onnx_program_is_taken():
    onnx = pytest.importorskip("onnx")
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    info = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", info[:1], info[1:]), opset_imports=[onnx.helper.make_opsetid("", 18)]
    )
    kind = type("ONNXProgram", (), {"__module__": "torch.onnx", "model_proto": proto, "__call__": lambda self: None})
    assert weft.compile(kind())(np.array([-1, 1], np.float32)).tolist() == [0, 1]


def test_a_model_without_inputs_gives_tensors():
    class Nothing(torch.nn.Module):
        def forward(self):
            return torch.ones(3), torch.arange(2)

    ones, numbers = weft.compile(Nothing(), ())()
    assert torch.equal(ones, torch.ones(3)) and torch.equal(numbers, torch.arange(2))


def test_models_come_in_from_several_threads():
    def one(width):
        model, x = torch.nn.Sequential(torch.nn.Linear(width, 3), torch.nn.ReLU()), torch.ones(2, width)
        return [value.type.shape for value in load(model, (x,)).graph.inputs]

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(one, range(1, 9))) == [[(2, width)] for width in range(1, 9)]


def test_the_states_of_an_lstm_have_the_shape_that_they_have(monkeypatch):
    place = torch._decomp.decompositions
    layer = place.one_layer_lstm

    def with_an_axis_more(*args, **given):  # as torch 2.11 has it for more than one sequence
        made, states = layer(*args, **given)
        return made, tuple(one.unsqueeze(0) if one.shape[0] > 1 else one for one in states)

    monkeypatch.setattr(place, "one_layer_lstm", with_an_axis_more)
    monkeypatch.setattr(place, "select_one_layer_lstm_function", lambda *_: place.one_layer_lstm)
    for batch in (1, 3):
        graph = load(torch.nn.LSTM(4, 5, 2, bidirectional=True), (torch.zeros(6, batch, 4),)).graph
        assert [value.type.shape for value in graph.outputs] == [(6, batch, 10), (4, batch, 5), (4, batch, 5)]
        assert "LSTM" in {node.op for node in graph.nodes}
    assert place.one_layer_lstm is with_an_axis_more

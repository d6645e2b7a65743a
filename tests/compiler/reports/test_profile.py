"""Profiles: every kernel has its times, what is counted is right, and the model still computes what it should."""

import json

import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401
from tests.compiler.graphs import attention, convnet, mlp, random_inputs, recurrent
from weft.compiler.reports.cost import kernel_cost
from weft.compiler.reports.profile import Recorder, TimedRunner, timed_runner
from weft.core.errors import ArgumentError
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.graph.passes.infer import infer
from weft.models.builder import Builder
from weft.targets import peaks


@pytest.fixture(autouse=True)
def known_peaks(monkeypatch):
    """Peaks that are far above what any kernel reaches, so that nothing is measured or written."""
    found = peaks.Peaks(1, {"float32": 1e9, "float64": 1e9}, 1e9)
    monkeypatch.setattr("weft.compiler.reports.profile.machine_peaks", lambda *_, **__: found)


def one_node(op, shapes, constants=(), dtype="float32", **attributes):
    """A graph of one node; the inputs at the positions in `constants` are constant."""
    values = [Value(f"x{i}", TensorType(dtype, shape)) for i, shape in enumerate(shapes)]
    fixed = {values[i]: np.ones(shapes[i], dtype) for i in constants}
    out = Value("y")
    inputs = [value for value in values if value not in fixed]
    return Graph("one", inputs, [out], [Node(op, values, [out], attributes, name="it")], fixed)


def cost_of(graph):
    module = weft.compile(graph)
    (one,) = module.specializations
    launch = one.launches[0]  # the result's conversion to the plain layout may follow
    return kernel_cost(launch, one.graph.constants)


@pytest.mark.parametrize("make", [convnet, mlp, attention, recurrent])
def test_every_kernel_is_measured_in_every_run(make):
    module = weft.compile(make())
    found = module.profile(threads=1, seconds=0.02)
    (one,) = module.specializations
    assert [kernel.label for kernel in found.kernels] == [launch.kernel.label for launch in one.launches]
    runs = len(found.call_samples)
    assert runs >= 5 and all(len(kernel.samples) == runs for kernel in found.kernels)
    assert all(0 < kernel.minimum <= kernel.seconds for kernel in found.kernels)
    for at, whole in enumerate(found.call_samples):
        inside = sum(kernel.samples[at] for kernel in found.kernels)
        assert inside < whole and found.outside_samples[at] == pytest.approx(whole - inside)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_timed_model_computes_the_same(threads):
    module = weft.compile(convnet())
    arrays = random_inputs(module.graph)
    (one,) = module.specializations
    timed = TimedRunner(one, Recorder(module.target, timed_runner), module.target).run(arrays, threads)
    np.testing.assert_array_equal(timed[0], module(*arrays))


def test_products_are_counted_as_multiply_adds():
    cost = cost_of(one_node("MatMul", [(7, 30), (30, 11)], constants=[1]))
    assert cost.operations == 2 * 7 * 30 * 11
    assert cost.bytes == pytest.approx(4 * (7 * 30 + 30 * 11 + 7 * 11), rel=0.5)  # packed weights may be padded
    assert cost.dtype == "float32"
    cost = cost_of(one_node("MatMul", [(7, 30), (30, 11)], dtype="float64"))
    assert cost.dtype == "float64" and cost.bytes == 8 * (7 * 30 + 30 * 11 + 7 * 11)


def test_convolutions_are_counted_with_their_padding():
    graph = one_node("Conv", [(1, 16, 10, 10), (32, 16, 3, 3)], constants=[1], pads=[1, 1, 1, 1], strides=[2, 2])
    assert cost_of(graph).operations == 2 * 32 * 5 * 5 * 16 * 9
    graph = one_node("Conv", [(1, 16, 10, 10), (16, 1, 3, 3)], constants=[1], pads=[1, 1, 1, 1], group=16)
    assert cost_of(graph).operations == 2 * 16 * 10 * 10 * 9


def test_elementwise_and_copies():
    cost = cost_of(one_node("Add", [(50, 20), (50, 20)]))
    assert (cost.operations, cost.bytes) == (1000, 12_000)
    cost = cost_of(one_node("Transpose", [(50, 20)], perm=[1, 0]))
    assert (cost.operations, cost.bytes) == (0, 8_000)


def test_of_a_table_only_what_is_looked_up_is_moved():
    b = Builder("lookup")
    table = b.normal(1000, 64)
    words = b.input("words", (5,), "int64")
    cost = cost_of(b.finish(b.node("Gather", table, words, axis=0)))
    assert cost.bytes <= 5 * 64 * 4 * 2 + 5 * 8 * 64
    assert cost.operations == 0


def test_json_trace_and_text(tmp_path):
    module = weft.compile(convnet())
    found = module.profile(threads=1, seconds=0.02)
    data = json.loads(json.dumps(found.as_json()))
    assert [row["number"] for row in data["kernels"]] == list(range(len(found.kernels)))
    for row in data["kernels"]:
        assert row["gflops"] == pytest.approx(row["operations"] / row["minimum_s"] / 1e9)
        assert row["nodes"] and row["kind"] == "kernel"
    found.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    timed = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in timed] == [kernel.label for kernel in found.kernels]
    assert timed[0]["ts"] == 0 and all(event["dur"] > 0 for event in timed)
    for before, after in zip(timed, timed[1:]):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=1e-3)
    text = str(found)
    assert all(kernel.label in text for kernel in found.kernels) and "GFLOP/s" in text


def test_host_nodes_and_what_waits_for_them_are_measured():
    x, found, out = (Value(name) for name in ("x", "found", "out"))
    x = Value("x", TensorType("float32", (4, 6)))
    nodes = [Node("Unique", [x], [found], name="distinct"), Node("Mul", [found, found], [out], name="squares")]
    graph = Graph("waits", [x], [out], nodes, {})
    with pytest.warns(weft.compiler.HostWarning):
        module = weft.compile(graph)
        profile = module.profile({"x": np.eye(4, 6, dtype=np.float32)}, seconds=0.01)
    kinds = {kernel.label: kernel.kind for kernel in profile.kernels}
    assert kinds["Unique"] == "host" and kinds["mul"] == "kernel"
    assert "Unique (host)" in str(profile)


def test_open_shapes_need_arrays():
    module = weft.compile(mlp(Var("N")))
    with pytest.raises(ArgumentError, match="the shape of input 'x' is open: give an array for it"):
        module.profile()
    found = module.profile({"x": np.ones((3, 20), np.float32)}, seconds=0.01)
    assert len(found.kernels) > 0


def test_a_module_from_a_file_says_what_to_do(tmp_path):
    weft.compile(mlp()).save(tmp_path / "mlp.weft")
    with pytest.raises(ArgumentError, match="profile the model it was compiled from"):
        weft.load(tmp_path / "mlp.weft").profile()


def test_peaks_are_measured_again_where_a_kernel_is_above_them(monkeypatch):
    asked = []

    def low_then_high(target, threads, again=False):
        asked.append(again)
        return peaks.Peaks(threads, {"float32": 1e9 if again else 1e-9}, 1.0)

    monkeypatch.setattr("weft.compiler.reports.profile.machine_peaks", low_then_high)
    monkeypatch.setattr("weft.compiler.reports.profile._measured_again", set())
    found = weft.compile(mlp()).profile(threads=1, seconds=0.01)
    assert asked == [False, True]
    assert all((found.peak_share(kernel) or 0) < 1 for kernel in found.kernels)


def rows_of_open_length():
    b = Builder("rows")
    x = Value("x", TensorType("float32", (Var("rows"), 64)))
    b.inputs.append(x)
    return b.finish(b.relu(b.dense(b.relu(b.dense(x, 64, 32)), 32, 16)))


def test_a_profile_where_sizes_were_computed():
    """Kernels do not read the operands that say how large their results are, and no form has those."""
    b = Builder("places")
    x = Value("x", TensorType("float32", (Var("rows"),)))
    b.inputs.append(x)
    length = b.node("Gather", b.node("Shape", x), b.constant(np.int64(0)), axis=0)
    places = b.node("Range", b.constant(np.int64(0)), length, b.constant(np.int64(1)))
    graph = infer(b.finish(b.add(x, b.node("Cast", places, to=1))))
    with knobs.override(sizes="open"):
        found = weft.compile(graph).profile(np.ones(24, "f4"), threads=1, seconds=0.02)
    assert [kernel.kind for kernel in found.kernels] == ["kernel"]


def test_a_profile_of_the_form_for_all_sizes():
    """It is of that form where only that one is asked for; what kernels do is counted for the sizes of the arrays."""
    x = np.random.default_rng(0).standard_normal((24, 64)).astype("f4")
    with knobs.override(sizes="open"):
        module = weft.compile(rows_of_open_length())
        wanted = module(x)
        found = module.profile(x, threads=1, seconds=0.02)
    (form,) = module.specializations
    assert form.runner.program.numbers is not None
    assert [kernel.label for kernel in found.kernels] == [launch.kernel.label for launch in form.launches]
    assert sum(kernel.cost.operations for kernel in found.kernels) >= 2 * 24 * (64 * 32 + 32 * 16)
    assert all(kernel.cost.bytes > 0 for kernel in found.kernels)
    runner = timed_runner(form, Recorder(module.target, timed_runner), module.target, [x])
    np.testing.assert_array_equal(runner.run([x], 1)[0], wanted)
    plain = weft.compile(rows_of_open_length())
    plain(x)
    other = plain.profile(np.ones((8, 64), "f4"), threads=1, seconds=0.02)
    counted = [sum(kernel.cost.operations for kernel in profile.kernels) for profile in (found, other)]
    assert counted[0] == 3 * counted[1]

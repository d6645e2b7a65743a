"""Whole models on a device (OpenCL, here PoCL): values, copies, views, host nodes, arrays on the device, queues."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import weft
from tests.codegen.c_support import opencl
from tests.compiler.graphs import attention, check, convnet, mlp, random_inputs, recurrent
from tests.compiler.test_calls import arrays_of, two_outputs
from weft.compiler import HostWarning, compile
from weft.compiler.device.arrays import DeviceArray
from weft.compiler.device.runner import DeviceRunner
from weft.compiler.steps import HostStep, NativeStep
from weft.core import model
from weft.core.errors import ArgumentError, RuntimeFault
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph
from weft.models.builder import Builder


def on_opencl(graph, **options):
    return compile(graph, target=opencl(), **options)


def runner_of(module) -> DeviceRunner:
    (one,) = module.specializations
    assert isinstance(one.runner, DeviceRunner)
    return one.runner


@pytest.mark.parametrize("make", [convnet, mlp, attention, recurrent])
def test_models_compute_what_numpy_computes(make):
    graph = make()
    module = on_opencl(graph)
    for seed in range(2):
        check(graph, random_inputs(graph, seed), module)
    assert not module.specializations[0].host_nodes
    assert [type(step) for step in runner_of(module).program.steps] == [NativeStep]


def test_each_batch_has_its_own_form():
    graph = mlp(Var("batch"))
    module = on_opencl(graph)
    for batch in (1, 3, 1):
        check(graph, random_inputs(graph, batch, {"batch": batch}), module)
    assert len(module.specializations) == 2


def with_host_nodes() -> Graph:
    """Kernels, a node without one in the middle, and kernels again that also read what the first ones made."""
    b = Builder("mixed")
    x = b.input("x", (4, 5))
    y = b.relu(x)
    inverse = b.node("Det", b.node("MatMul", y, b.node("Transpose", y, perm=[1, 0])))
    unique = b.node("Unique", b.node("Round", y), axis=None)
    return b.finish(b.node("Add", b.node("Mul", y, inverse), b.node("ReduceSum", unique, b.ints(0), keepdims=0)))


def test_host_nodes_get_and_give_copies():
    graph = with_host_nodes()
    with pytest.warns(HostWarning, match="Unique"):
        module = on_opencl(graph)
        check(graph, random_inputs(graph), module)
    steps = runner_of(module).program.steps
    assert any(isinstance(step, HostStep) for step in steps) and isinstance(steps[0], NativeStep)
    arrays = random_inputs(graph, 1)
    (made,) = module.run(None, {"x": module.to_device(arrays[0])})
    np.testing.assert_allclose(made.numpy(), interpret_graph(graph, arrays)[0], rtol=1e-5, atol=1e-5)


def test_outputs_passed_on_and_returned_twice():
    graph = two_outputs()
    module = on_opencl(graph)
    x, y = arrays_of(1)
    want = interpret_graph(graph, [x, y])
    made = module(x, y)
    there = module(module.to_device(x), y)
    for have, device, wanted in zip(made, there, want, strict=True):
        np.testing.assert_array_equal(have, wanted)
        np.testing.assert_array_equal(device.numpy(), wanted)
    assert len({id(array.memory) for array in there}) == 4 and not np.shares_memory(made[2], x)


def test_results_go_into_the_arrays_of_the_caller():
    graph = mlp()
    module = on_opencl(graph)
    arrays = random_inputs(graph)
    want = module(*arrays)
    whole, strided = np.empty((4, 7), "float32"), np.empty((7, 4), "float32").T
    for out in (whole, strided):
        assert module(*arrays, out=out) is out
        np.testing.assert_array_equal(out, want)


def test_arrays_on_the_device_are_neither_copied_nor_overwritten():
    graph = mlp()
    module = on_opencl(graph)
    arrays = [random_inputs(graph, seed)[0] for seed in range(3)]
    inputs = [module.to_device(array) for array in arrays]
    results = [module(one) for one in inputs]
    for array, given, made in zip(arrays, inputs, results):
        assert isinstance(made, DeviceArray) and made.shape == (4, 7) and made.dtype == np.float32
        np.testing.assert_array_equal(given.numpy(), array)
        np.testing.assert_array_equal(np.asarray(made), module(array))
    held = [one.memory for one in results]
    del results, made
    assert module(inputs[0]).memory in held, "memory that nobody needs is used again"


def test_one_recording_serves_all_calls_at_the_same_addresses():
    graph = mlp()
    module = on_opencl(graph)
    arrays = random_inputs(graph)
    for _ in range(5):
        module(*arrays)
    (slot,) = runner_of(module)._slots[None]
    assert len(slot._recordings) == 1
    given = [module.to_device(arrays[0]) for _ in range(model.MOST_RECORDINGS + 4)]
    made = [module(one) for one in given]
    assert len(slot._recordings) == model.MOST_RECORDINGS
    for one in made:
        np.testing.assert_array_equal(one.numpy(), module(*arrays))


def test_outputs_at_places_of_the_device():
    graph = convnet()
    module = on_opencl(graph)
    arrays = random_inputs(graph)
    want = module(*arrays)
    out = module.to_device(np.zeros_like(want))
    (made,) = module.run(None, {"image": module.to_device(arrays[0])}, out=[out])
    assert made is out
    np.testing.assert_array_equal(out.numpy(), want)
    bound = module.bind({"image": arrays[0]})
    other = random_inputs(graph, 1)[0]
    bound.inputs["image"].device.write(bound.inputs["image"].memory, other)
    bound.launch()
    bound.synchronize()
    np.testing.assert_array_equal(bound.outputs[0].numpy(), module(other))


def test_models_with_host_nodes_are_bound_too():
    graph = two_outputs()
    module = on_opencl(graph)
    x, y = arrays_of(2)
    bound = module.bind({"x": x, "y": y})
    bound.launch()
    bound.synchronize()
    for have, want in zip(bound.outputs, interpret_graph(graph, [x, y]), strict=True):
        np.testing.assert_array_equal(have.numpy(), want)


def test_queues_and_arrays_of_pyopencl():
    import pyopencl
    import pyopencl.array

    graph = mlp()
    module = on_opencl(graph)
    device = module.target.device()
    queue = pyopencl.CommandQueue(device.context)
    x = random_inputs(graph)[0]
    want = module(x)
    given = pyopencl.array.to_device(queue, x)
    np.testing.assert_array_equal(module(given).numpy(), want)
    (made,) = module.queue({"x": given}, stream=queue)
    assert made.stream == queue
    np.testing.assert_array_equal(made.numpy(), want)
    with pytest.raises(ArgumentError, match="CommandQueue"):
        module.queue({"x": x}, stream=7)
    with pytest.raises(ArgumentError, match="contiguous"):
        module(pyopencl.array.to_device(queue, np.zeros((8, 20), "float32"))[::2])


def test_threads_and_models_do_not_meet():
    graphs = [mlp(), convnet()]
    modules = [on_opencl(graph) for graph in graphs]
    wants = [[interpret_graph(g, random_inputs(g, seed))[0] for seed in range(4)] for g in graphs]
    wrong: list[str] = []

    def work(which: int, seed: int) -> None:
        arrays = random_inputs(graphs[which], seed)
        for _ in range(10):
            if not np.allclose(modules[which](*arrays), wants[which][seed], atol=1e-4):
                wrong.append(f"{graphs[which].name} {seed}")

    threads = [threading.Thread(target=work, args=(which, seed)) for which in (0, 1) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_module_file_holds_the_kernels(tmp_path):
    graph = convnet()
    module = on_opencl(graph)
    module.save(tmp_path / "m.weft")
    loaded = weft.load(tmp_path / "m.weft")
    arrays = random_inputs(graph)
    np.testing.assert_array_equal(loaded(*arrays), module(*arrays))
    assert loaded.target == module.target and loaded.report().splitlines()[2:] == module.report().splitlines()[2:]
    np.testing.assert_array_equal(loaded(loaded.to_device(arrays[0])).numpy(), module(*arrays))


def test_a_module_is_saved_before_its_first_call(tmp_path):
    graph = mlp(Var("batch"))
    module = on_opencl(graph)
    module.save(tmp_path / "m.weft")  # without code: the sizes are open
    x = np.ones((3, 20), np.float32)
    np.testing.assert_array_equal(weft.load(tmp_path / "m.weft")(x), module(x))


def test_profile_has_every_kernel():
    module = on_opencl(convnet())
    found = module.profile(seconds=0.02)
    (one,) = module.specializations
    assert [kernel.label for kernel in found.kernels] == [launch.kernel.label for launch in one.launches]
    assert all(len(kernel.samples) == len(found.call_samples) and kernel.minimum > 0 for kernel in found.kernels)


def test_profile_measures_host_nodes():
    with pytest.warns(HostWarning):
        found = on_opencl(with_host_nodes()).profile(seconds=0.02)
    assert {kernel.kind for kernel in found.kernels} == {"kernel", "host"}


def test_bad_arrays_on_the_device():
    module = on_opencl(mlp())
    with pytest.raises(ArgumentError, match="shape"):
        module(module.to_device(np.zeros((4, 21), "float32")))
    with pytest.raises(ArgumentError, match="float64"):
        module(module.to_device(np.zeros((4, 20), "float64")))
    given = module.to_device(np.zeros((4, 20), "float32"))
    with pytest.raises(ArgumentError, match="output"):
        module.run(None, {"x": given}, out=[given])
    with pytest.raises(AttributeError):
        _ = given.__cuda_array_interface__
    assert not hasattr(given, "__dlpack__")
    with pytest.raises(ArgumentError, match="missing: x"):
        module.queue({})
    square = on_opencl(doubled())
    given = square.to_device(np.ones((3, 4), "float32"))
    with pytest.raises(ArgumentError, match="shares memory"):
        square.run(None, {"x": given}, out=[given])


def doubled() -> Graph:
    b = Builder("doubled")
    x = b.input("x", (3, 4))
    return b.finish(b.node("Add", x, x))


def test_no_memory_is_an_error_that_says_so():
    with pytest.raises(RuntimeFault, match="memory"):
        opencl().device().allocate(1 << 50)


@pytest.mark.parametrize("name", ["dqn", pytest.param("dcgan", marks=pytest.mark.slow)])
def test_built_in_models(name):
    check_built_in(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v1", "mobilenet_v2", "lstm_lm"])
def test_larger_built_in_models(name):
    check_built_in(name)


def check_built_in(name: str) -> None:
    graph = weft.models.make(name)
    arrays = random_inputs(graph)
    module, reference = on_opencl(graph), compile(graph)
    feeds = dict(zip([value.name for value in graph.inputs], arrays))
    assert not module.specializations[0].host_nodes
    for have, want in zip(module.run(None, feeds), reference.run(None, feeds), strict=True):
        assert np.abs(have - want).max() <= 1e-4 * np.abs(want).max()

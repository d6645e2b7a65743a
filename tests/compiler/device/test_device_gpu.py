"""Models on a real NVIDIA GPU: values, arrays of torch and cupy without copies, streams, threads, faults.

Everything here is skipped where there is no such GPU; `test_device_cuda.py` has what can be shown without one.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import weft
from tests.codegen.c_support import cuda
from tests.compiler.graphs import attention, check, convnet, mlp, random_inputs, recurrent
from weft.compiler import compile
from weft.core.errors import ArgumentError, RuntimeFault, WeftError
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.targets.cuda import driver

pytestmark = pytest.mark.skipif(driver.device_count() == 0, reason="no NVIDIA GPU on this machine")


def on_gpu(graph, **options):
    return compile(graph, target=cuda(), **options)


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found


def near(have, want):
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(want).max()))


@pytest.mark.parametrize("make", [convnet, mlp, attention, recurrent])
def test_models_compute_what_numpy_computes(make):
    graph = make()
    module = on_gpu(graph)
    for seed in range(3):
        check(graph, random_inputs(graph, seed), module, tolerance=1e-4)


def test_a_bad_index_is_named():
    """As tests/ops/test_bad_indices.py has it for OpenCL."""
    data, indices = Value("data", TensorType("float32", (5, 3))), Value("indices", TensorType("int64", (3,)))
    node = Node("Gather", [data, indices], [Value("y", TensorType("float32", (3, 3)))], {}, name="culprit")
    module = on_gpu(Graph("g", [data, indices], node.outputs, [node]))
    rows, right = np.arange(15, dtype=np.float32).reshape(5, 3), np.array([0, -5, 4])
    np.testing.assert_array_equal(module(rows, right), rows[right])
    for wrong in (5, -6, 1 << 40, -(1 << 63)):
        with pytest.raises(WeftError, match="culprit"):
            module(rows, np.array([0, 1, wrong]))
    np.testing.assert_array_equal(module(rows, right), rows[right])


def test_tensors_of_torch_are_read_where_they_are(torch):
    graph = mlp()
    module = on_gpu(graph)
    arrays = random_inputs(graph)
    want = interpret_graph(graph, arrays)[0]
    given = torch.from_numpy(arrays[0]).cuda()
    made = module(given)
    back = torch.from_dlpack(made)
    assert back.is_cuda and back.data_ptr() == made.__cuda_array_interface__["data"][0]
    near(back.cpu().numpy(), want)
    np.testing.assert_array_equal(given.cpu().numpy(), arrays[0])
    near(torch.as_tensor(made, device="cuda").cpu().numpy(), want)
    with pytest.raises(ArgumentError, match="contiguous|one after the other"):
        module(torch.zeros(20, 4, device="cuda").T)
    with pytest.raises(ArgumentError, match="detach"):
        module(torch.zeros(4, 20, device="cuda", requires_grad=True))


def test_results_outlive_the_arrays_they_came_in(torch):
    graph = mlp()
    module = on_gpu(graph)
    tensors, wants = [], []
    for seed in range(6):
        arrays = random_inputs(graph, seed)
        tensors.append(torch.from_dlpack(module(module.to_device(arrays[0]))))
        wants.append(interpret_graph(graph, arrays)[0])
    for tensor, want in zip(tensors, wants):
        near(tensor.cpu().numpy(), want)


def test_a_tensor_that_does_not_begin_where_kernels_may(torch):
    graph = mlp()
    module = on_gpu(graph)
    arrays = random_inputs(graph)
    room = torch.zeros(81, device="cuda")
    room[1:] = torch.from_numpy(arrays[0]).cuda().flatten()
    near(module(room[1:].view(4, 20)).cpu().numpy(), interpret_graph(graph, arrays)[0])


def test_work_follows_the_stream_of_torch(torch):
    """The input is made by slow work in a stream of torch's; what the model makes is read there, without waiting."""
    graph = mlp()
    module = on_gpu(graph)
    arrays = random_inputs(graph)
    want = interpret_graph(graph, arrays)[0]
    module(torch.from_numpy(arrays[0]).cuda())
    source = torch.from_numpy(arrays[0]).cuda()
    big = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    for stream in [torch.cuda.Stream() for _ in range(3)]:
        with torch.cuda.stream(stream):
            x = torch.zeros(4, 20, device="cuda")
            slow = big
            for _ in range(8):
                slow = slow @ big / 64.0
            x.copy_(source + 0.0 * slow[0, 0])
            made = torch.from_dlpack(module(x))
            twice = made * 2.0
        stream.synchronize()
        near(twice.cpu().numpy(), 2.0 * want)


def test_queues_in_streams_of_others(torch):
    graph = convnet()
    module = on_gpu(graph)
    streams = [torch.cuda.Stream() for _ in range(4)]
    inputs = [random_inputs(graph, seed)[0] for seed in range(4)]
    results = []
    for _ in range(5):
        results = [module.queue({"image": x}, stream=stream)[0] for x, stream in zip(inputs, streams)]
    for x, made in zip(inputs, results):
        near(made.numpy(), interpret_graph(graph, [x])[0])


def test_a_bound_model_inside_a_graph_of_launches():
    graph = attention()
    module = on_gpu(graph)
    x, other = (random_inputs(graph, seed)[0] for seed in range(2))
    bound = module.bind({"x": x})
    for given in (x, other, x):
        bound.inputs["x"].device.write(bound.inputs["x"].memory, given)
        bound.launch()
        bound.synchronize()
        near(bound.outputs[0].numpy(), interpret_graph(graph, [given])[0])


def test_arrays_of_cupy(torch):
    cupy = pytest.importorskip("cupy")
    graph = mlp()
    module = on_gpu(graph)
    arrays = random_inputs(graph)
    want = interpret_graph(graph, arrays)[0]
    made = module(cupy.asarray(arrays[0]))
    near(cupy.asnumpy(cupy.asarray(made)), want)
    near(cupy.asnumpy(cupy.from_dlpack(made)), want)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.asarray(arrays[0])
    (made,) = module.queue({"x": x}, stream=stream)
    near(made.numpy(), want)


def test_threads_and_models_do_not_meet():
    graphs = [mlp(), convnet(), attention(), recurrent()]
    modules = [on_gpu(graph) for graph in graphs]
    wants = [[interpret_graph(g, random_inputs(g, seed))[0] for seed in range(3)] for g in graphs]
    wrong: list[str] = []

    def work(which: int, seed: int) -> None:
        arrays = random_inputs(graphs[which], seed)
        for turn in range(20):
            given = [modules[which].to_device(a) for a in arrays] if turn % 2 else arrays
            if not np.allclose(np.asarray(modules[which](*given)), wants[which][seed], atol=1e-3, rtol=1e-3):
                wrong.append(f"{graphs[which].name} {seed} {turn}")

    threads = [threading.Thread(target=work, args=(which, seed)) for which in range(4) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_half_floats_of_torch(torch):
    from weft.models.builder import Builder

    b = Builder("narrow")
    x = b.input("x", (16, 64), "bfloat16")
    graph = b.finish(b.node("Relu", x))
    given = torch.randn(16, 64, device="cuda").to(torch.bfloat16)
    made = torch.from_dlpack(on_gpu(graph)(given))
    assert made.dtype == torch.bfloat16 and torch.equal(made, torch.relu(given))


def test_a_module_file_runs(tmp_path):
    graph = convnet()
    module = on_gpu(graph)
    module.save(tmp_path / "m.weft")
    arrays = random_inputs(graph)
    np.testing.assert_array_equal(weft.load(tmp_path / "m.weft")(*arrays), module(*arrays))


def test_profile_times_every_kernel():
    module = on_gpu(convnet())
    found = module.profile(seconds=0.02)
    assert found.kernels and all(kernel.minimum > 0 for kernel in found.kernels)


def test_memory_that_is_not_there_is_an_error():
    with pytest.raises(RuntimeFault, match="not enough memory"):
        cuda().device().allocate(1 << 42)
    check(mlp(), random_inputs(mlp()), on_gpu(mlp()), tolerance=1e-4)


def test_a_kernel_that_leaves_its_memory_is_told():
    """In a process of its own, for it cannot use the GPU afterwards."""
    text = """
        import numpy as np
        from benchmarks.sanitize import planted_program
        from weft.core.errors import RuntimeFault
        from weft.targets.registry import find_target
        from dataclasses import replace
        device = find_target("cuda").device()
        program = planted_program("memcheck")
        program = replace(program, source=program.source.replace("4096", "(1ll << 40)"))
        memory = device.allocate(256)
        device.record(device.load(program).bind({"x": memory})).launch()
        try:
            device.synchronize()
        except RuntimeFault as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=120)
    assert "memory that is not its own" in done.stdout and "start it again" in done.stdout, done.stderr

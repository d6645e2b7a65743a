"""Models for CUDA without a GPU: sources that NVRTC compiles, and what the driver is asked to do in which order."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

import weft
from tests.compiler.device.fake_cuda import FakeDriver
from tests.compiler.graphs import attention, convnet, mlp, random_inputs, recurrent
from weft.codegen.c.program import merged_source
from weft.compiler import compile
from weft.compiler.device.runner import DeviceRunner
from weft.core.errors import ArgumentError, RuntimeFault, TargetError
from weft.models.builder import Builder
from weft.targets.cuda import device as cuda_device
from weft.targets.cuda import driver, nvrtc, peaks
from weft.targets.cuda.machine import architecture_facts
from weft.targets.cuda.parse import of_architecture
from weft.targets.registry import find_target

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
has_gpu = driver.device_count() > 0


def programs_of(graph):
    (one,) = compile(graph, target="cuda:sm_90a").specializations
    assert isinstance(one.runner, DeviceRunner) and not one.host_nodes
    return list(one.runner.kernels.values())


@needs_nvrtc
@pytest.mark.parametrize("make", [convnet, mlp, attention, recurrent])
def test_one_source_holds_all_kernels_of_a_model(make):
    programs = programs_of(make())
    source = merged_source(programs)
    assert nvrtc.compile_source(source, "sm_90a")[1:4] == b"ELF"
    for program in programs:
        assert all(source.count(f" {kernel.name}(") == 1 for kernel in program.kernels)
    assert len(source) < sum(len(program.source) for program in programs) or len(programs) == 1


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dqn", "dcgan", "resnet18", "mobilenet_v1", "mobilenet_v2", "lstm_lm"])
def test_built_in_models_compile_for_hopper(name):
    assert nvrtc.compile_source(merged_source(programs_of(weft.models.make(name))), "sm_90a")[1:4] == b"ELF"


@pytest.mark.skipif(has_gpu, reason="there is a GPU")
def test_without_a_gpu_models_compile_but_do_not_run(tmp_path):
    module = compile(mlp(), target="cuda")
    assert "kernel calls" in module.report()
    with pytest.raises(TargetError, match="no NVIDIA driver|finds no device"):
        module(*random_inputs(module.graph))
    module.save(tmp_path / "m.weft")
    with pytest.raises(TargetError, match="no NVIDIA driver|finds no device"):
        weft.load(tmp_path / "m.weft")(*random_inputs(module.graph))


def test_tiles_of_images_whose_rows_no_tile_divides_stay_small():
    """38 columns, 48 rows: the tile's places, put together again from the three axes, are the tile's own."""
    b = Builder("rows_of_38")
    programs = programs_of(b.finish(b.conv(b.input("x", (20, 16, 50, 40)), 16, 13, 3)))
    assert all(kernel.shared_bytes < 64 * 1024 for program in programs for kernel in program.kernels)
    assert max((work.bytes for program in programs for work in program.workspaces), default=0) < 4 * 13 * 16 * 9 * 2


# ------------------------------------------------------------------------------------------------- without a device


@pytest.fixture
def fake(monkeypatch):
    """A driver that keeps the books; it goes when all that was made with it is gone."""
    made = FakeDriver()
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_library", lambda: made)
        driver.context.cache_clear()
        cuda_device._open.cache_clear()
        yield made
        driver.context.cache_clear()
        cuda_device._open.cache_clear()
        gc.collect()
    assert not made.allocations, "memory was not given back"


def on_fake(graph, fake):
    target = replace(of_architecture("sm_90a", "cuda:0"), is_host=True)
    module = compile(graph, target=target)
    fake.log.clear()
    return module


@needs_nvrtc
def test_a_call_is_one_launch_between_copies(fake):
    graph = convnet()
    module = on_fake(graph, fake)
    arrays = random_inputs(graph)
    for _ in range(3):
        module(*arrays)
    assert [kind for kind, _ in fake.log] == ["in", "graph", "out"] * 3
    first, second, third = (what for kind, what in fake.log if kind == "graph")
    assert first is second is third
    (one,) = module.specializations
    wanted = [kernel.name for launch in one.launches for kernel in launch.kernel.program.kernels]
    assert [what[0] for kind, what in first if kind == "kernel"] == wanted == [what[0] for _, what in first]
    for _, (_, sizes, values) in first:
        assert all(size > 0 for size in sizes)
        assert all(fake.inside(value) and value % 16 == 0 for value in values)


class OnTheGpu:
    """An array of another library, as it shows itself."""

    def __init__(self, memory, shape, stream=None, shift=0, strides=None):
        self.memory = memory
        data = (memory.address + shift, False)
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "data": data, "version": 3, "strides": strides, "stream": stream,
        }  # fmt: skip


@needs_nvrtc
def test_arrays_of_other_libraries_are_read_in_place(fake):
    module = on_fake(mlp(), fake)
    memory = driver.Memory(4 * 80 + 64)
    made = module(OnTheGpu(memory, (4, 20)))
    ((kind, kernels),) = fake.log
    assert kind == "graph" and any(memory.address in what[2] for _, what in kernels)
    shared = made.__cuda_array_interface__
    assert shared["shape"] == (4, 7) and fake.inside(shared["data"][0])
    assert made.__dlpack_device__() == (2, 0)
    capsule = made.__dlpack__(stream=1)
    assert fake.log[-1][0] == "wait"
    del capsule, made
    fake.log.clear()
    module(OnTheGpu(memory, (4, 20), stream=77))
    assert [kind for kind, _ in fake.log] == ["wait", "graph"]
    fake.log.clear()
    module(OnTheGpu(memory, (4, 20), shift=4))
    assert [kind for kind, _ in fake.log] == ["graph"], "copied to an aligned place on the device"
    with pytest.raises(ArgumentError, match="one after the other"):
        module(OnTheGpu(memory, (4, 20), strides=(4, 16)))


@needs_nvrtc
def test_streams_have_their_own_memory(fake):
    module = on_fake(mlp(), fake)
    x = random_inputs(module.graph)[0]
    handles = [driver.Stream(), driver.Stream()]
    for stream in handles:
        module.queue({"x": x}, stream=stream.handle.value)
    first, second = (what for kind, what in fake.log if kind == "graph")
    (one,) = module.specializations
    assert len(one.runner._slots) == 2
    assert not set(first[0][1][2]) & set(second[0][1][2]) - {memory.address for memory in one.runner.loaded().weights}
    with pytest.raises(ArgumentError, match="stream"):
        module.queue({"x": x}, stream="fast")


@needs_nvrtc
def test_a_bound_model_is_one_driver_call(fake):
    module = on_fake(attention(), fake)
    bound = module.bind({"x": random_inputs(module.graph)[0]})
    fake.log.clear()
    for _ in range(3):
        bound.launch()
    assert [kind for kind, _ in fake.log] == ["graph"] * 3


@needs_nvrtc
def test_events_stand_between_the_kernels_of_a_profile(fake, monkeypatch):
    monkeypatch.setattr("weft.compiler.reports.profile.has_peaks", lambda target: False)
    module = on_fake(mlp(), fake)
    module.profile(seconds=0.0)
    timed = next(what for kind, what in reversed(fake.log) if kind == "graph")
    kinds = [kind for kind, _ in timed]
    assert kinds[-1] == "event", "two in a row at the end: what events take themselves"
    assert kinds[:-1:2] == ["event"] * (len(kinds) // 2) and set(kinds[1:-1:2]) == {"kernel"}


@needs_nvrtc
def test_what_goes_wrong_is_told(fake):
    module = on_fake(mlp(), fake)
    x = random_inputs(module.graph)[0]
    module(x)
    fake.failing["cuStreamSynchronize"] = 700
    with pytest.raises(RuntimeFault, match="memory that is not its own.*start it again"):
        module(x)
    fake.failing = {"cuMemAlloc_v2": 2}
    with pytest.raises(RuntimeFault, match="not enough memory"):
        module.to_device(x)
    fake.failing = {"cuLaunchKernelEx": 1}
    with pytest.raises(RuntimeFault, match="launching"):
        module(OnTheGpu(driver.Memory(x.nbytes), x.shape))  # a new place: launches have to be recorded for it
    fake.failing = {}


def test_peaks_follow_the_clock():
    rates = peaks.rates(architecture_facts("sm_90a"), 132 * 1.98e9)
    assert rates["float32"] == pytest.approx(66.9e3, rel=0.01)
    assert rates["bfloat16"] == rates["float16"] == pytest.approx(1070e3, rel=0.02) and rates["int8"] > 2e6
    assert rates == peaks.rates(architecture_facts("sm_90a"), 2 * 66 * 1.98e9)


def test_the_target_says_where_parts_of_memory_may_begin():
    assert find_target("cuda:sm_90a").part_bytes % 16 == 0


@needs_nvrtc
def test_a_module_file_holds_machine_code(fake, tmp_path, monkeypatch):
    graph = convnet()
    compile(graph, target="cuda:sm_90a").save(tmp_path / "m.weft")
    monkeypatch.setattr(nvrtc, "compile_source", None)  # loading needs no compiler
    target = replace(find_target("cuda:sm_90a"), is_host=True)
    monkeypatch.setattr("weft.compiler.saved.load._same_device", lambda *_: target)
    loaded = weft.load(tmp_path / "m.weft")
    fake.log.clear()
    loaded(*random_inputs(graph))
    assert [kind for kind, _ in fake.log] == ["in", "graph", "out"]

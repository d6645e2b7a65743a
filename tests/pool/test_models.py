"""Whole models: on devices, natively, emulated and in Node; compiled by builders that may get lost."""

from __future__ import annotations

import json
import logging
import shutil

import numpy as np
import pytest

from tests.compiler.graphs import attention, mlp
from tests.pool.libraries import TRIPLES, need_compiler, need_emulator
from tests.pool.test_pool import fleet
from weft.codegen.llvm.compile import emit_object
from weft.compiler.kernels.workers import elsewhere
from weft.compiler.module import compile_graph
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.pool import jobs
from weft.pool.device import Call, PoolError, Result
from weft.pool.devices import open_device
from weft.pool.kinds import facts_of
from weft.pool.models import code_of, model_of
from weft.pool.web import Node
from weft.runtime.cache_folder import cache_folder
from weft.targets.registry import find_target
from weft.tuner.records import Status

WASM = "wasm32-unknown-unknown"


def need_node():
    need_compiler()
    if shutil.which("node") is None:
        pytest.skip("there is no node here to run WebAssembly")


def check_whole(graph, target, device):
    """What a device computes is what the graph means; gives its samples."""
    sent = model_of(compile_graph(graph, target))
    made = open_device(device, target, None)
    try:
        ran = made.bench(sent.job, sent.library, sent.weights)
    finally:
        made.close()
    assert ran.status is Status.OK, ran
    x = np.random.default_rng(0).standard_normal(graph.inputs[0].type.static, "float32")
    (wanted,) = interpret_graph(graph, {graph.inputs[0].name: x})
    np.testing.assert_allclose(np.frombuffer(ran.results[0][0], "float32").reshape(wanted.shape), wanted, 1e-4, 1e-5)
    return ran.samples[0]


@pytest.mark.parametrize("target", ["native", WASM])
def test_a_whole_model_runs_on_a_device(target):
    need_node() if target == WASM else need_compiler()
    samples = check_whole(mlp(), target, "here")
    assert samples.repeats > 1 and all(wall > 0 for _, wall in samples.rounds)


@pytest.mark.slow  # a C library for each of them is built first
@pytest.mark.parametrize("architecture", list(TRIPLES))
def test_a_whole_model_runs_on_emulated_devices(architecture):
    need_emulator(architecture, counts=True)
    (instructions, misses), *none = check_whole(attention(), TRIPLES[architecture], "counted").rounds
    assert not none and 10_000 < instructions < 10_000_000 and misses < instructions


FUNCTIONS = """
define i32 @good(ptr %a, i64 %t) {
  ret i32 0
}
define i32 @fault(ptr %a, i64 %t) {
  ret i32 7
}
define i32 @trap(ptr %a, i64 %t) {
  call void @llvm.trap()
  unreachable
}
define i32 @hang(ptr %a, i64 %t) {
  br label %again
again:
  br label %again
}
declare void @llvm.trap()
declare i32 @system(ptr)
define i32 @shell(ptr %a, i64 %t) {
  %r = call i32 @system(ptr %a)
  ret i32 %r
}
"""


@pytest.mark.slow  # a process for each
def test_webassembly_that_fails_is_told():
    need_node()
    target = find_target(WASM)
    text = f'target triple = "{WASM}"\n{FUNCTIONS}'
    plain = emit_object(text.replace("@system(ptr %a)", "@fault(ptr %a, i64 0)"), target)
    node, wanted = Node(), {"good": Status.OK, "fault": Status.FAULT, "trap": Status.CRASH, "hang": Status.HANG}
    for name, status in wanted.items():
        ran = node.run([Call(jobs.link([plain], target, name), name, [b"12345678", Result(8)])], rounds=1, seconds=2)
        assert ran.status is status, ran
    library = jobs.link([plain], target, "good")
    for code, name, reason in (
        (library, "absent", "no function absent"),
        (b"no module", "good", "CompileError"),
        (b"", "good", "CompileError"),
        (jobs.link([emit_object(text, target)], target, "shell"), "shell", "does not have: system"),
    ):
        ran = node.run([Call(code, name, [])])
        assert ran.status is Status.BUILD_ERROR and reason in ran.detail, ran
    ran = node.run([Call(library, "good", [Result(1 << 33)])])
    assert ran.status is Status.CRASH and "no memory" in ran.detail, ran


def in_this_process(func, target):
    """What `compiling` sends, answered by the builder's function."""
    order = json.dumps({"target": facts_of(target), "program": repr(func)}).encode()
    return lambda: code_of(jobs.kernel(order))


def lost(func, target):
    def never():
        raise TimeoutError("the builder is gone")

    return never


@pytest.mark.parametrize("send", [in_this_process, lost])
def test_kernels_compiled_elsewhere_are_the_same_and_kept(send, tmp_path, caplog):
    graph = mlp()
    x = np.random.default_rng(0).standard_normal((4, 20), "float32")
    token = elsewhere.set(send)
    try:
        with knobs.override(cache_dir=tmp_path), caplog.at_level(logging.WARNING, "weft.compiler"):
            import weft.compiler.kernels.build as module

            module._CACHE.clear()
            made = compile_graph(graph)
            kept = {path.name: path.read_bytes() for path in cache_folder("kernels").glob("*.o")}
    finally:
        elsewhere.reset(token)
    assert ("compiled here, since nobody else did: the builder is gone" in caplog.text) == (send is lost)
    np.testing.assert_allclose(made.run(None, {"x": x})[0], interpret_graph(graph, {"x": x})[0], 1e-4, 1e-5)
    assert send is lost or kept  # what others made is in the cache of who asked
    codes = [kernel.object_code for kernel in made.specializations[0].lowered.kernels]
    assert send is lost or {data[32:] for data in kept.values()} == set(codes)


def test_a_builder_that_refuses_says_why():
    order = {"target": facts_of(find_target("native")), "program": "no program"}
    with pytest.raises(PoolError, match="a builder says: .*Error"):
        code_of(jobs.kernel(json.dumps(order).encode()))


@fleet
def test_a_model_is_compiled_by_builders_though_one_dies(folder, caplog):
    from weft.pool.models import compiling
    from weft.pool.node import LocalPool
    from weft.pool.runner import connect
    from weft.pool.runner import fleet as members

    with LocalPool(folder, builders=2) as pool, connect(pool.url, folder, 60.0) as client:
        while len(members(client)) < 2:
            client.wait_for_workers(2, timeout=60)
        sent = []
        with compiling(client), knobs.override(cache=False), caplog.at_level(logging.WARNING, "weft.compiler"):
            real = elsewhere.get()

            def ask(func, target):
                sent.append(real(func, target))
                if len(sent) == 2:
                    pool.processes["builder-0"].kill()
                return sent[-1]

            inner = elsewhere.set(ask)
            made = compile_graph(attention())
            elsewhere.reset(inner)
        x = np.random.default_rng(0).standard_normal((1, 10, 32), "float32")
        np.testing.assert_allclose(made.run(None, {"x": x})[0], interpret_graph(attention(), {"x": x})[0], 1e-4, 1e-5)
        codes = {kernel.object_code for kernel in made.specializations[0].lowered.kernels}
        assert len(sent) > 2 and {one()[1] for one in sent} == codes and not caplog.records

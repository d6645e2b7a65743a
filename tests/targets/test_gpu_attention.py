"""Attention in one kernel on machines with threads: masks, odd sizes, parts of the keys, points of the space.

Programs run in the interpreter, which reports races, and in OpenCL, where local memory and barriers really execute.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from tests.codegen.c_support import opencl
from tests.targets.test_sketches_attention import arrays_of, one_node
from weft.compiler.kernels.program import build_program
from weft.compiler.passes import for_target, optimize
from weft.graph.interpreter import interpret_graph
from weft.loop.interpreter import interpret
from weft.loop.verifier import verify
from weft.models.language import bert_base
from weft.ops.attention_fused import NAME, SCORES, Sizes
from weft.plan.planner import unit_of
from weft.targets.cuda import nvrtc
from weft.targets.gpu import attention_stream
from weft.targets.gpu.attention import match, proposal
from weft.targets.gpu.families import default_schedule
from weft.targets.registry import find_target

CUDA = find_target("cuda:sm_90a")
SMALL = replace(CUDA, threads=replace(CUDA.threads, multiprocessors=4, block_threads=64, warp=8, shared_bytes=32768))
SCALED = ("scale", 0.3, None)
CASES = {
    "even": ((1, 2, 16, 32, 8, 8), (SCALED,), 0),
    "no step": ((1, 1, 8, 48, 8, 24), (), 0),
    "odd everything": ((2, 1, 11, 21, 5, 7), (SCALED, ("add", 0.0, (2, 1, 11, 21))), 0),
    "causal": ((1, 1, 21, 40, 12, 8), (SCALED, ("causal", 0.0, None)), 0),
    "keep": ((1, 1, 16, 20, 8, 8), (SCALED, ("keep", -1e9, (16, 20))), 0),
    "parts": ((1, 2, 9, 75, 8, 12), (SCALED, ("add", 0.0, (9, 75))), 32),
    "causal parts": ((1, 1, 24, 64, 8, 8), (SCALED, ("causal", 0.0, None)), 16),
}


POINTS = [{"rows": 8, "each": 1, "warps": 8}, {"rows": 16, "each": 2, "warps": 4}, {"rows": 32, "each": 4, "warps": 8}]


def graph_of(sizes, steps, part=0, target=SMALL, **attributes):
    """A graph of one attention, padded as the target wants it; with `part`, in parts of so many keys."""
    graph = one_node(sizes, steps, **attributes)
    padded = list(proposal(Sizes(*sizes), target.threads))
    if part:
        padded[1], padded[3] = -(-sizes[3] // part) * part, part
    graph.nodes[0].attributes["padded"] = padded
    return graph


def program_of(graph, arrays):
    """The program, and the array of each of its parameters but the output."""
    program = build_program(graph.nodes, graph.outputs, {}, "kernel")
    by_name = {value.name: array for value, array in zip(graph.inputs, arrays)}
    return program.schedule, {buffer: by_name[value.name] for value, buffer in program.inputs}


def wanted(graph, arrays):
    with np.errstate(all="ignore"):
        return interpret_graph(graph, arrays)[0]


def check(graph, arrays=None, point=None, target=SMALL):
    """Interprets the schedule, as it is and lowered, and compares with the numpy meaning."""
    arrays = arrays_of(graph) if arrays is None else arrays
    schedule, given = program_of(graph, arrays)
    sketch = match(unit_of(schedule, SCORES, target))
    best, _ = next(sketch.ranked())
    sketch.apply({**best, **(point or {})})
    verify(schedule.func)
    for func, strict in ((schedule.func, True), (target.lower(schedule.func), False)):
        out = np.full(graph.outputs[0].tensor.static, 7, graph.outputs[0].tensor.numpy)
        with np.errstate(all="ignore"):
            interpret(func, *(given.get(buffer, out) for buffer in schedule.func.buffers), check=strict)
        loose = 1 if out.itemsize == 4 else 20
        np.testing.assert_allclose(out, wanted(graph, arrays), rtol=2e-4 * loose, atol=2e-5 * loose)


OFTEN = ("odd everything", "keep", "causal parts")
"""The cases that are quick to interpret, or hold most."""


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_the_default_point(name):
    sizes, steps, part = CASES[name]
    check(graph_of(sizes, steps, part, heads_inside=len(name) % 2))


@pytest.mark.slow
@pytest.mark.parametrize(("point", "part"), [(POINTS[0], 0), (POINTS[1], 32), (POINTS[2], 32)])
def test_points_of_the_space_agree(point, part):
    check(graph_of((1, 1, 32, 64, 8, 8), (SCALED,), part), point=point)


@pytest.mark.parametrize(
    ("part", "empty_rows"),
    [(0, 1), (16, 2), *[pytest.param(*case, marks=pytest.mark.slow) for case in ((0, 0), (16, 0), (16, 1))]],
)
def test_rows_and_parts_that_see_nothing(part, empty_rows):
    graph = graph_of((1, 1, 20, 37, 4, 8), (SCALED, ("allow", 0.0, (1, 1, 20, 37))), part, empty_rows=empty_rows)
    arrays = arrays_of(graph)
    arrays[3][0, 0, [0, 7, 19]] = False
    arrays[3][0, 0, 5, :20] = False  # the first part alone
    check(graph, arrays)


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_a_query_over_a_cache_that_is_not_full(kind):
    """Keys are cut into parts, those behind the length are not read; narrow numbers are widened as they are read."""
    steps = (SCALED, ("until", 0.0, (2,)))
    graph = graph_of((2, 1, 1, 20, 8, 8), steps, 16, dtype=kind)
    arrays = [*arrays_of(graph)[:3], np.array([13, 3])]
    shape = (2, 20, 1, 8)
    for array in arrays[1:3]:  # what nobody may read
        for at, length in enumerate(arrays[3]):
            array.reshape(shape)[at, length:] = np.nan
    whole = [x if at in (0, 3) else np.nan_to_num(x) for at, x in enumerate(arrays)]
    assert np.isfinite(wanted(graph, whole)).all()
    check(graph, whole)
    schedule, given = program_of(graph, arrays)
    default_schedule(schedule, SMALL)
    out = np.full(graph.outputs[0].tensor.static, 7, kind)
    interpret(schedule.func, *(given.get(buffer, out) for buffer in schedule.func.buffers))
    np.testing.assert_allclose(out, wanted(graph, whole), rtol=4e-3, atol=4e-3)


STREAMED = {
    "parts": ((1, 2, 1, 70, 32, 32), (SCALED,), 32, "bfloat16", {"rows": 8, "loads": 2}),
    "one part, a mask": ((1, 1, 2, 20, 32, 32), (SCALED, ("add", 0.0, (1, 1, 2, 20))), 32, "float16", {"rows": 8}),
    "float32, hidden keys": (
        (1, 1, 3, 20, 16, 16),
        (SCALED, ("allow", 0.0, (1, 1, 3, 20))),
        16,
        "float32",
        {"rows": 8},
    ),
}


@pytest.mark.parametrize("name", STREAMED)
def test_few_queries_read_keys_once(name):
    """Keys and values come in vectors of 16 bytes, as narrow as they are, and become float32 in registers."""
    sizes, steps, part, kind, point = STREAMED[name]
    graph = one_node(sizes, steps, dtype=kind, empty_rows=1)
    graph.nodes[0].attributes["padded"] = [sizes[2], -(-sizes[3] // part) * part, sizes[5], part]
    arrays = arrays_of(graph)
    schedule, given = program_of(graph, arrays)
    sketch = attention_stream.match(unit_of(schedule, SCORES, CUDA))
    sketch.apply({"loads": 2, **point})
    verify(schedule.func)
    lowered = CUDA.lower(schedule.func)
    out = np.full(graph.outputs[0].tensor.static, 7, graph.outputs[0].tensor.numpy)
    with np.errstate(all="ignore"):
        interpret(lowered, *(given.get(buffer, out) for buffer in schedule.func.buffers))
    loose = 1 if kind == "float32" else 40
    want = wanted(graph, arrays).astype(np.float32)
    np.testing.assert_allclose(out.astype(np.float32), want, rtol=2e-4 * loose, atol=2e-5 * loose)
    source = CUDA.generate(lowered).source
    assert ("float_x4" if kind == "float32" else "uint16_x8") + " *)(in1" in source
    assert "launch_bounds__(32, " in source, "the compiler has to know how many blocks there are beside"


@pytest.mark.parametrize("name", ["odd everything", "causal parts"])
def test_opencl_runs_it(name):
    target = opencl()
    sizes, steps, part = CASES[name]
    graph = graph_of(sizes, steps, part, target)
    arrays = arrays_of(graph)
    schedule, given = program_of(graph, arrays)
    default_schedule(schedule, target)
    out = np.full(graph.outputs[0].tensor.static, np.nan, np.float32)
    weft.build(schedule, target=target)(*(given.get(buffer, out) for buffer in schedule.func.buffers))
    np.testing.assert_allclose(out, wanted(graph, arrays), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("architecture", "sizes"),
    [
        ("sm_80", (1, 12, 128, 128, 64, 64)),
        pytest.param("sm_90a", (1, 8, 1024, 4096, 64, 80), marks=pytest.mark.slow),
    ],
)
def test_kernels_compile(architecture, sizes):
    if not nvrtc.is_available():
        pytest.skip("NVRTC is not installed")
    target = find_target(f"cuda:{architecture}")
    graph = graph_of(sizes, (SCALED,), target=target)
    schedule, _ = program_of(graph, arrays_of(graph))
    default_schedule(schedule, target)
    program = target.generate(target.lower(schedule.func))
    assert len(program.kernels) == (1 if sizes[3] == 128 else 2)
    assert all(kernel.shared_bytes <= target.threads.shared_bytes for kernel in program.kernels)
    assert not program.workspaces or sum(w.bytes for w in program.workspaces) < 4 * 8 * 1024 * 4096  # no score matrix
    assert nvrtc.compile_source(program.source, target.cpu)


def test_a_model_has_it():
    """A small BERT on OpenCL: each layer's attention is one node and one kernel, and the answer is the graph's."""
    target = opencl()
    graph = bert_base(length=24, layers=1, width=32, heads=2, vocabulary=50)
    made = for_target(optimize(graph, {}, {}), target)
    assert sum(node.op == NAME for node in made.nodes) == 1
    arrays = [np.random.default_rng(0).integers(0, 2, v.tensor.static).astype(v.tensor.numpy) for v in graph.inputs]
    found = weft.compile(graph, target=target).run(None, {v.name: a for v, a in zip(graph.inputs, arrays)})
    for one, want in zip(found, interpret_graph(graph, arrays)):
        np.testing.assert_allclose(one, want, rtol=1e-3, atol=1e-4)

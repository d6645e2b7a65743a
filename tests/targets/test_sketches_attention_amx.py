"""Attention of bfloat16 in one kernel on AMX tiles: right at many sizes and with every step, and used by models."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
import weft.ops  # noqa: F401
from weft.compiler.kernels.program import build_program
from weft.compiler.passes import for_target, optimize
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.loop.verifier import verify
from weft.models.language import bert_base
from weft.ops.attention_fused import DOMAIN, NAME, Sizes
from weft.targets.cpu import amx
from weft.targets.cpu.families import default_schedule
from weft.targets.cpu.sketches.attention import padded
from weft.targets.registry import find_target

NATIVE = find_target("native")
WITHOUT_TILES = "native,features=-amx-tile,-amx-int8,-amx-bf16"
pytestmark = pytest.mark.skipif(not amx.available(NATIVE), reason="this machine has no AMX tiles")
TOLERANCE = 0.015


def one_node(sizes: tuple[int, ...], steps: Any = (), heads_inside: int = 1, empty_rows: int = 0) -> Graph:
    """A graph of one attention over packed operands; a step is (name, number, shape of its operand)."""
    b, h, m, n, d, e = sizes
    lengths = (("q", m, d), ("k", n, d), ("v", n, e))
    inputs = [Value(name, TensorType("bfloat16", (b * k * h * s,))) for name, k, s in lengths]
    for at, (step, _, shape) in enumerate(steps):
        if shape is not None:
            inputs.append(Value(f"mask{at}", TensorType("float32" if step == "add" else "bool", shape)))
    wanted = padded(Sizes(*sizes), NATIVE, "bfloat16")
    assert wanted is not None
    attributes = {
        "sizes": list(sizes), "query": [0, m * h * d, d, h * d, 1], "key": [0, n * h * d, d, h * d, 1],
        "value": [0, n * h * e, e, h * e, 1], "steps": [s for s, _, _ in steps],
        "numbers": [number for _, number, _ in steps], "heads_inside": heads_inside, "empty_rows": empty_rows,
        "padded": list(wanted),
    }  # fmt: skip
    out = Value("y", TensorType("bfloat16", (b, m, h, e) if heads_inside else (b, h, m, e)))
    return Graph("attention", inputs, [out], [Node(NAME, inputs, [out], attributes, domain=DOMAIN)], {})


def arrays_of(graph: Graph) -> list[Any]:
    random = np.random.default_rng(0)
    made: list[Any] = []
    for value in graph.inputs:
        shape, kind = value.tensor.static, value.tensor
        truths = kind.dtype == "bool"
        made.append(random.random(shape) < 0.6 if truths else random.standard_normal(shape).astype(kind.numpy))
    return made


def check(graph: Graph, arrays: list[Any] | None = None) -> None:
    """The kernel by the default schedule, with one thread and with two, against numpy."""
    arrays = arrays_of(graph) if arrays is None else arrays
    program = build_program(graph.nodes, graph.outputs, {}, "kernel")
    default_schedule(program.schedule, NATIVE)
    verify(program.schedule.func)
    assert repr(program.schedule.func).count("amx_dot") == 2
    by_name = {v.name: a for v, a in zip(graph.inputs, arrays)}
    given = {buffer: by_name[value.name] for value, buffer in program.inputs}
    function = weft.build(program.schedule, target=NATIVE)
    with np.errstate(invalid="ignore", divide="ignore"):
        want = interpret_graph(graph, arrays)[0].astype(np.float32)
    for threads in (1, 2):
        out = np.zeros(graph.outputs[0].tensor.static, ml_dtypes.bfloat16)
        function(*(given.get(buffer, out) for buffer in program.schedule.func.buffers), threads=threads)
        scale = float(np.nanmax(np.abs(want)))
        np.testing.assert_allclose(out.astype(np.float32), want, rtol=0.01, atol=TOLERANCE * scale)


SCALED = ("scale", 0.2, None)
CASES = {
    "even": ((1, 2, 32, 32, 64, 64), (SCALED,)),
    "no step": ((1, 2, 16, 48, 32, 32), ()),
    "odd everything": ((2, 3, 19, 37, 32, 7), (SCALED, ("add", 0.0, (2, 1, 19, 37)))),
    "one row of keys masked": ((2, 2, 17, 33, 32, 24), (SCALED, ("add", 0.0, (2, 1, 1, 33)))),
    "mask of queries": ((1, 2, 21, 40, 32, 16), (("add", 0.0, (21, 1)), SCALED)),
    "keep": ((1, 3, 24, 20, 64, 40), (SCALED, ("keep", -1e9, (24, 20)))),
    "drop, then add": ((2, 1, 18, 35, 32, 8), (("drop", -1e4, (2, 1, 1, 35)), ("add", 0.0, (1, 18, 35)))),
    "one head, many queries": ((1, 1, 150, 70, 96, 20), (SCALED,)),
    "long rows": ((1, 1, 16, 1500, 32, 48), (SCALED,)),
    "causal": ((1, 4, 40, 40, 64, 64), (SCALED, ("causal", 0.0, None))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("heads_inside", [0, 1])
def test_the_default_point(name: str, heads_inside: int) -> None:
    sizes, steps = CASES[name]
    check(one_node(sizes, steps, heads_inside))


def test_rows_that_see_nothing() -> None:
    """No numbers by the standard's softmax, zeros by its Attention."""
    sizes = (1, 2, 20, 20, 32, 16)
    for empty_rows in (0, 1, 2):
        graph = one_node(sizes, (SCALED, ("add", 0.0, (20, 20))), empty_rows=empty_rows)
        arrays = arrays_of(graph)
        arrays[3] = np.where(np.tri(20, dtype=bool), 0, -np.inf).astype(np.float32)
        arrays[3][[3, 19]] = -np.inf
        check(graph, arrays)


def test_what_tiles_do_not_take_is_left() -> None:
    assert padded(Sizes(1, 1, 32, 32, 40, 32), NATIVE, "bfloat16") is None
    assert padded(Sizes(1, 1, 4, 32, 64, 32), NATIVE, "bfloat16") is None


@pytest.mark.parametrize("target", ["native", WITHOUT_TILES])
def test_bert_stores_no_scores(target: str) -> None:
    """One node an attention, of bfloat16 on tiles and of float32 without; its answer is near that of float32."""
    graph = bert_base(layers=2, length=96, width=128, heads=4, vocabulary=50)
    used = for_target(optimize(graph, {}, {}), find_target(target), "bf16")
    kinds = [node.inputs[0].tensor.dtype for node in used.nodes if node.op == NAME and node.inputs[0] is not None]
    assert kinds == ["bfloat16" if target == "native" else "float32"] * 2
    assert max(np.prod(v.tensor.static) for n in used.nodes for v in n.outputs if n.op != "Gelu") <= 96 * 512
    words = np.arange(96).reshape(1, 96) % 50
    (want,) = interpret_graph(graph, [words])
    with knobs.override(cache=False):
        (made,) = weft.compile(graph, target=target, precision="bf16").run(None, {graph.inputs[0].name: words})
    np.testing.assert_allclose(made, want, rtol=0, atol=0.03 * float(np.abs(want).max()))

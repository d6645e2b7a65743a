"""Steps of a recurrence: weights packed ahead, shared among cores, walked back and forth; the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.goldens.choices import TARGETS, kernels_in
from weft import te
from weft.builder import with_arguments
from weft.compiler.kernels.build import lift_packing
from weft.core.knobs import knobs
from weft.expr.nodes import Buffer, int_value
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import NUMPY_TYPES
from weft.models.builder import Builder
from weft.targets.cpu.families import default_schedule
from weft.targets.cpu.model import LEAST_PACKED_ROWS
from weft.targets.registry import find_target

RANDOM = np.random.default_rng(0)


def recurrence(steps: int, batch: int, hidden: int) -> tuple[Any, Any, Any]:
    """h[t] = 0.5 R h[t - 1] + x[t - 1]."""
    x = te.placeholder((steps, batch, hidden), name="X")
    r = te.placeholder((hidden, hidden), name="R")
    state = te.placeholder((steps + 1, batch, hidden), name="state")
    first = te.compute((1, batch, hidden), lambda t, b, j: te.const(1.0, "float32"), name="first")
    k = te.reduce_axis(hidden, "k")
    product = te.compute(
        (steps + 1, batch, hidden), lambda t, b, j: te.sum(state[t - 1, b, k.var] * r[j, k.var], axis=k), name="product"
    )
    following = te.compute(
        (steps + 1, batch, hidden), lambda t, b, j: product[t, b, j] * 0.5 + x[t - 1, b, j], name="following"
    )
    return x, r, te.scan(first, following, state, name="h")


@pytest.mark.parametrize("sizes", [(5, 1, 50), (4, 1, 300), (3, 7, 40), (3, 2, 200)])
def test_steps(sizes: tuple[int, int, int]) -> None:
    steps, batch, hidden = sizes
    x, r, h = recurrence(*sizes)
    s = te.create_schedule(h.op)
    default_schedule(s, find_target("native"), [r])
    assert "zigzag" in repr(s.func)
    lifted = lift_packing(with_arguments(s.func, [x, r, *[b for b in s.func.buffers if b not in (x, r)]]), [r])
    assert any(not isinstance(p, int) for p in lifted.parameters), "the weights are packed in the kernel"
    function = weft.build(lifted.func)
    inputs = RANDOM.standard_normal((steps, batch, hidden)).astype(np.float32)
    weights = (RANDOM.standard_normal((hidden, hidden)) / hidden**0.5).astype(np.float32)
    want = np.ones((steps + 1, batch, hidden), np.float32)
    for t in range(steps):
        want[t + 1] = want[t] @ weights.T * 0.5 + inputs[t]
    for threads in (1, 2):
        made = np.zeros_like(want)
        given = [inputs, weights, made]
        function(*[given[p] if isinstance(p, int) else p.apply(given[p.source]) for p in lifted.parameters],
                 threads=threads)  # fmt: skip
        np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-4)


@pytest.mark.thin(3)
@pytest.mark.parametrize("op,gates,more", [("LSTM", 4, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1})])
@pytest.mark.parametrize("batch,hidden", [(1, 24), (3, 21), (6, 40)])
@pytest.mark.parametrize("fixed", [True, False])
def test_products_of_parts_of_the_weights(op, gates, more, batch, hidden, fixed) -> None:
    """Weights of a call, or a part of others, are packed in the call, where enough rows meet them."""
    b = Builder(op)
    shapes = (1, gates * hidden, 9), (1, gates * hidden, hidden)
    made = [b.normal(*shape, scale=0.2) if fixed else b.input(f"w{at}", shape) for at, shape in enumerate(shapes)]
    graph = b.finish(b.node(op, b.input("x", (5, batch, 9)), *made, hidden_size=hidden, **more))
    kernels = list(kernels_in(graph, find_target(TARGETS["neoverse"])))
    taken = [one.name for kernel in kernels for one in kernel.schedule.tried if one]
    in_parts = op == "GRU" and not more
    enough = 6 * batch >= LEAST_PACKED_ROWS or (fixed and not in_parts)
    assert taken.count("recurrent product") == (1 + in_parts if enough else 0)
    feeds = [RANDOM.standard_normal(v.tensor.static).astype(np.float32) * np.float32(0.5) for v in graph.inputs]
    (want,) = interpret_graph(graph, feeds)
    with knobs.override(cache=False):
        (got,) = weft.compile(graph, threads=2).run(None, dict(zip([v.name for v in graph.inputs], feeds)))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_few_rows_read_weights_that_change_as_they_lie() -> None:
    x, r, h = recurrence(3, 1, 64)
    s = te.create_schedule(h.op)
    default_schedule(s, find_target("native"), [])
    assert "zigzag" not in repr(s.func)
    assert all(isinstance(b, Buffer) and int_value(b.shape[0]) for b in s.func.buffers)


def test_steps_of_bytes() -> None:
    """h[t] = low bits of (R h[t - 1] + x[t - 1]), by dot products where the machine has them for these bytes."""
    native = find_target("native")
    kind = "uint8" if "avx512vnni" in native.features else "int8"
    steps, batch, hidden = 3, 3, 64
    x, r = te.placeholder((steps, batch, hidden), "int32", name="X"), te.placeholder((hidden, hidden), "int8", name="R")
    state = te.placeholder((steps + 1, batch, hidden), kind, name="state")
    first = te.compute((1, batch, hidden), lambda t, b, j: te.const(1, kind), name="first")
    k = te.reduce_axis(hidden, "k")

    def element(t: Any, b: Any, j: Any) -> Any:
        return te.sum(state[t - 1, b, k.var].astype("int32") * r[j, k.var].astype("int32"), axis=k)

    product = te.compute((steps + 1, batch, hidden), element, name="product")
    following = te.compute(
        (steps + 1, batch, hidden),
        lambda t, b, j: ((product[t, b, j] + x[t - 1, b, j]) & te.const(127, "int32")).astype(kind),
        name="following",
    )
    h = te.scan(first, following, state, name="h")
    s = te.create_schedule(h.op)
    default_schedule(s, native, [r])
    assert ("_dot_" in repr(s.func)) == bool({"avx512vnni", "dotprod"} & native.features)
    lifted = lift_packing(with_arguments(s.func, [x, r, *[b for b in s.func.buffers if b not in (x, r)]]), [r])
    function = weft.build(lifted.func)
    inputs = RANDOM.integers(-9, 9, (steps, batch, hidden)).astype(np.int32)
    weights = RANDOM.integers(-128, 128, (hidden, hidden)).astype(np.int8)
    want = np.ones((steps + 1, batch, hidden), kind)
    for t in range(steps):
        want[t + 1] = (want[t].astype(np.int32) @ weights.T.astype(np.int32) + inputs[t]) & 127
    made = np.zeros_like(want)
    given = [inputs, weights, made]
    function(*[given[p] if isinstance(p, int) else p.apply(given[p.source]) for p in lifted.parameters], threads=2)
    np.testing.assert_array_equal(made, want)


@pytest.mark.parametrize("op, gates", [("RNN", 1), ("GRU", 3)])
def test_both_directions_of_narrow_numbers_on_tiles(op: str, gates: int) -> None:
    """Of the weights of the second direction a part is copied that does not begin at 0."""
    bfloat16, sizes = NUMPY_TYPES["bfloat16"], ((3, 8, 16), (2, gates * 5, 16), (2, gates * 5, 5), (2, 8, 5))
    b = Builder("both")
    x, w, r, h = (b.input(name, size, "bfloat16") for name, size in zip("xwrh", sizes))
    graph = b.finish(b.node(op, x, w, r, None, None, h, hidden_size=5, direction="bidirectional"))
    given = [(RANDOM.standard_normal(size) / 2).astype(bfloat16) for size in sizes]
    module = weft.compile(graph, target="x86_64-unknown-linux-gnu,cpu=sapphirerapids,cores=2")
    (launch,) = module.specializations[0].launches
    assert "amx_dot" in repr(launch.kernel.scheduled)
    made = np.zeros((3, 2, 8, 5), bfloat16)
    weft.interpret(launch.kernel.scheduled, *given, made)
    wanted = interpret_graph(graph, given)[0].astype(np.float32)
    np.testing.assert_allclose(made.astype(np.float32), wanted, atol=0.01)

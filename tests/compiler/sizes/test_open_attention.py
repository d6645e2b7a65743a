"""Attention over open batches and lengths is one kernel, right for every size."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.compiler.sizes.test_open_layouts import Planned
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, TensorType, Value
from weft.graph.passes.infer import infer
from weft.models.builder import Builder

HEADS, SIZE, WIDE = 3, 8, 12
LENGTHS = (1, 2, 3, 7, 8, 9, 17, 63, 64, 65)


def given(b: Builder, name: str, shape: tuple, kind: str = "float32") -> Value:
    b.inputs.append(Value(name, TensorType(kind, shape)))
    return b.inputs[-1]


def heads_of(b: Builder, x: Value, size: int, perm: tuple[int, ...] = (0, 2, 1, 3)) -> Value:
    sizes = b.node("Slice", b.node("Shape", x), b.ints(0), b.ints(2))
    shape = b.node("Concat", sizes, b.ints(HEADS, size), axis=0)
    return b.node("Transpose", b.node("Reshape", x, shape), perm=list(perm))


def written_out(steps, mask: tuple = (), kind: str = "float32") -> Graph:
    """Attention of queries and keys of other numbers; `steps(b, scores, mask)` gives what goes into the softmax."""
    b = Builder("attention")
    named = {name: Var(name) for name in ("batch", "queries", "keys")}
    batch, rows, columns = named.values()
    q = heads_of(b, given(b, "q", (batch, rows, HEADS * SIZE)), SIZE)
    k = heads_of(b, given(b, "k", (batch, columns, HEADS * SIZE)), SIZE, (0, 2, 3, 1))
    v = heads_of(b, given(b, "v", (batch, columns, HEADS * WIDE)), WIDE)
    held = given(b, "mask", tuple(named.get(n, n) for n in mask), kind) if mask else None
    shares = b.node("Softmax", steps(b, b.node("MatMul", q, k), held), axis=-1)
    mixed = b.node("Transpose", b.node("MatMul", shares, v), perm=[0, 2, 1, 3])
    return infer(b.finish(b.node("Reshape", mixed, b.ints(0, 0, HEADS * WIDE))))


def number(b: Builder, value: float) -> Value:
    return b.constant(np.float32(value), "number")


STEPS = {
    "plain": (lambda b, s, m: s, (), "float32"),
    "scaled, padding": (
        lambda b, s, m: b.node("Add", b.node("Mul", s, number(b, 0.5)), m), ("batch", 1, 1, "keys"), "float32",
    ),
    "keep": (lambda b, s, m: b.node("Where", m, s, number(b, -1e4)), ("batch", 1, "queries", "keys"), "bool"),
    "drop": (lambda b, s, m: b.node("Where", m, number(b, -1e30), s), (HEADS, 1, "keys"), "bool"),
}  # fmt: skip


def stacked() -> Graph:
    """Queries, keys and values in one tensor, taken apart by Gather, as one exporter writes it."""
    b = Builder("stacked")
    x = given(b, "x", (Var("batch"), Var("length"), 3 * HEADS * SIZE))
    sizes = b.node("Slice", b.node("Shape", x), b.ints(0), b.ints(2))
    shape = b.node("Concat", sizes, b.ints(3, HEADS, SIZE), axis=0)
    parts = b.node("Transpose", b.node("Reshape", x, shape), perm=[2, 0, 3, 1, 4])
    q, k, v = (b.node("Gather", parts, b.constant(np.int64(at)), axis=0) for at in range(3))
    scores = b.node("MatMul", b.node("Mul", q, number(b, 0.25)), b.node("Transpose", k, perm=[0, 1, 3, 2]))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), v)
    rows = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), b.ints(0, 0, HEADS * SIZE))
    return infer(b.finish(b.relu(b.dense(rows, HEADS * SIZE, 10))))


def operator(packed: bool, **attributes) -> Graph:
    """The standard's Attention; two heads of queries share their keys."""
    b = Builder("operator")
    batch, length = Var("batch"), Var("length")
    shapes = [(batch, n, length, SIZE) for n in (4, 2, 2)]
    if packed:
        shapes = [(batch, length, n * SIZE) for n in (4, 2, 2)]
        attributes |= {"q_num_heads": 4, "kv_num_heads": 2}
    q, k, v = (given(b, name, shape) for name, shape in zip("qkv", shapes))
    return infer(b.finish(b.node("Attention", q, k, v, **attributes)))


def arrays_for(graph: Graph, seed: int, **sizes: int) -> list:
    random, arrays = np.random.default_rng(seed), []
    for value in graph.inputs:
        shape = [n if isinstance(n, int) else sizes[n.name] for n in value.tensor.dims]
        made = random.standard_normal(shape).astype("float32")
        arrays.append(made > -0.5 if value.tensor.dtype == "bool" else made)
    return arrays


def check(graph: Graph, sizes: list[dict[str, int]]) -> None:
    with knobs.override(sizes="open", cache=False):
        module = weft.compile(graph)
        for seed, one in enumerate(sizes):
            arrays = arrays_for(graph, seed, **one)
            np.testing.assert_allclose(
                module(*arrays), interpret_graph(graph, arrays)[0], rtol=2e-4, atol=2e-5, err_msg=str(one)
            )
        (form,) = module.specializations
        kernels = [kernel.label for kernel in form.lowered.kernels]
        assert form.host_nodes == [] and not any("softmax" in one for one in kernels), kernels
        assert any("attention" in one for one in kernels), kernels


def pairs(first: tuple[int, ...], second: tuple[int, ...], count: int) -> list[dict[str, int]]:
    random = np.random.default_rng(1)
    return [{"batch": int(random.integers(1, 4)), "queries": int(random.choice(first)),
             "keys": int(random.choice(second))} for _ in range(count)]  # fmt: skip


@pytest.mark.parametrize("step", ["scaled, padding", "keep"])
def test_queries_and_keys_of_any_number(step):
    check(written_out(*STEPS[step]), pairs(LENGTHS, LENGTHS, 12))


def test_stacked_operands_are_read_where_they_lie():
    check(stacked(), [{"batch": b, "length": n} for b, n in ((2, 5), *((1 + n % 3, n) for n in LENGTHS))])


@pytest.mark.parametrize(
    ("packed", "causal"), [(True, 1), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((True, 0), (False, 1)))]
)
def test_the_operator_over_open_lengths(packed, causal):
    check(operator(packed, is_causal=causal), [{"batch": 1 + n % 2, "length": n} for n in LENGTHS])


@pytest.mark.slow
def test_only_the_keys_are_open():
    b = Builder("keys")
    keys = Var("keys")
    q, k = given(b, "q", (2, HEADS, 20, SIZE)), given(b, "k", (2, HEADS, SIZE, keys))
    v = given(b, "v", (2, HEADS, keys, WIDE))
    graph = infer(b.finish(b.node("MatMul", b.node("Softmax", b.node("MatMul", q, k), axis=-1), v)))
    check(graph, [{"keys": n} for n in LENGTHS])


@pytest.mark.slow
@pytest.mark.parametrize("target", ["skylake-avx512", "haswell"])
@pytest.mark.parametrize(("graph", "sizes"), [
    (lambda: written_out(*STEPS["scaled, padding"]), ((1, 3, 5), (2, 9, 17), (1, 20, 33))),
    (stacked, ((2, 7), (1, 19))),
    (lambda: operator(True, is_causal=1), ((1, 1), (1, 18))),
])  # fmt: skip
def test_programs_of_other_machines(graph, sizes, target):
    made = graph()
    planned = Planned(made, dict.fromkeys(made.symbols, 60), f"x86_64-unknown-linux-gnu,cpu={target},cores=2")
    for one in sizes:
        arrays = arrays_for(made, 1, **dict(zip(made.symbols, one)))
        np.testing.assert_allclose(planned.run(arrays)[0], interpret_graph(made, arrays)[0], rtol=2e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("seed", range(3))
def test_many_sizes(step, seed):
    lengths = tuple(int(n) for n in np.random.default_rng(seed).integers(1, 140, 30)) + (512,)
    check(written_out(*STEPS[step]), pairs(lengths, lengths, 40))

"""Writing over an input: allowed where every read is of the very element written, and refused everywhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.compiler.graphs import check, random_inputs
from weft import te
from weft.codegen.llvm.generate import generate
from weft.compiler import compile
from weft.compiler.kernels.inplace import overwritable
from weft.compiler.lowering.memory import Life, plan_memory
from weft.graph.ir import Graph, Value
from weft.loop.passes.shift_tiles import NOTE as TILES
from weft.models.builder import Builder
from weft.schedule.schedule import Schedule
from weft.targets.registry import find_target

A = te.placeholder((12, 20), "float32", name="A")
C = te.placeholder((12, 20), "float32", name="C")


def pairs_of(make: Any, schedule: Any = None) -> list[tuple[str, str]]:
    """The pairs, by name, of a program with one output."""
    made = te.compute((12, 20), make, name="B")
    s = te.create_schedule(made.op)
    if schedule is not None:
        schedule(s, made)
    func = s.func
    names = [p.name for p in func.params]
    return [(names[a], names[b]) for a, b in overwritable(func)]


def tiled(s: Schedule, made: Any) -> None:
    """Fused, split so that it does not divide, vectorized, parallel."""
    outer, inner = s[made].split(s[made].fuse(*made.op.axis), factor=7)
    s[made].parallel(outer)
    s[made].vectorize(inner)


def blocked(s: Schedule, made: Any) -> None:
    """Two tiles that do not divide, in another order."""
    i, j = made.op.axis
    outer, inner = s[made].split(i, factor=5)
    far, near = s[made].split(j, factor=16)
    s[made].reorder(far, outer, inner, near)
    s[made].vectorize(near)


def starting_early(s: Schedule, made: Any) -> None:
    """The last tile begins inside the one before it: what they share is computed twice."""
    outer, inner = s[made].split(made.op.axis[1], factor=16)
    s[made].vectorize(inner)
    s[made].annotate(TILES, 16, outer)


def test_what_is_computed_again_is_not_written_over():
    assert pairs_of(lambda i, j: A[i, j] * 2 + A[i, j], starting_early) == []


@pytest.mark.parametrize("schedule", [None, tiled, blocked])
def test_elementwise_programs_may_write_over_their_inputs(schedule):
    assert pairs_of(lambda i, j: A[i, j] * 2 + A[i, j], schedule) == [("A", "B")]
    assert pairs_of(lambda i, j: A[i, j] + C[i, j], schedule) == [("A", "B"), ("C", "B")]
    assert pairs_of(lambda i, j: te.select(j < 3, A[i, j], C[i, j] * 2), schedule) == [("A", "B"), ("C", "B")]


@pytest.mark.parametrize(
    "make",
    [
        lambda i, j: A[i, 19 - j],
        lambda i, j: A[i, (j + 1) % 20] + A[i, j],
        lambda i, j: A[0, j] + C[i, j] * 0,
        lambda i, j: A[i, j] + A[11 - i, j],
        lambda i, j: A[i, j // 2],
    ],
)
@pytest.mark.parametrize("schedule", [None, tiled])
def test_other_elements_forbid_it(make, schedule):
    assert ("A", "B") not in pairs_of(make, schedule)


def test_other_shapes_types_and_reductions_forbid_it():
    turned = te.compute((20, 12), lambda i, j: A[j, i], name="B")
    assert overwritable(te.create_schedule(turned.op).func) == []
    narrow = te.compute((12, 20), lambda i, j: A[i, j].astype("float16"), name="B")
    assert overwritable(te.create_schedule(narrow.op).func) == []
    k = te.reduce_axis(20, name="k")
    summed = te.compute((12, 20), lambda i, j: te.sum(A[i, k], axis=k), name="B")
    assert overwritable(te.create_schedule(summed.op).func) == []


def test_a_second_reader_forbids_it():
    total = te.compute((12,), lambda i: A[i, 0] * 3, name="total")
    made = te.compute((12, 20), lambda i, j: A[i, j] + total[i], name="B")
    func = te.create_schedule(made.op).func
    assert overwritable(func) == []


def test_work_that_is_done_twice_forbids_it():
    made = te.compute((12, 20), lambda i, j: A[i, j] + 1, name="B")
    func = te.create_schedule(made.op).func
    assert overwritable(func) == [(0, 1)]
    again = func.replace(body=_twice(func.body))
    assert overwritable(again) == []


def _twice(body: Any) -> Any:
    from weft.expr.nodes import Var
    from weft.loop.ir import For

    return For(Var("again"), 2, body)


def test_places_are_joined():
    lives = {"a": Life(64, 0, 1), "b": Life(64, 1, 2), "c": Life(64, 2, 3), "other": Life(64, 0, 3)}
    plan = plan_memory(lives, {"b": "a", "c": "b"})
    assert plan.offsets["a"] == plan.offsets["b"] == plan.offsets["c"] != plan.offsets["other"]
    assert plan.bytes == 128 and plan.in_place == 2 and plan.unshared == 256


def test_a_chain_of_additions_lies_in_one_place():
    b = Builder("chain")
    x = b.input("x", (16, 48))
    for _ in range(4):
        y = b.node("Relu", b.node("MatMul", x, b.normal(48, 48, scale=0.1)))
        x = b.node("Add", b.node("MatMul", y, b.normal(48, 48, scale=0.1)), x)
    module = check(graph := b.finish(x), random_inputs(graph))
    assert "values written over an input" in module.report()
    assert module.specializations[0].lowered.program.in_place >= 1


# ------------------------------------------------------------------------------------------------------ random graphs

UNARY = ("Relu", "Neg", "Sigmoid", "Tanh", "Abs")
BINARY = ("Add", "Mul", "Sub", "Max")


def random_graph(seed: int) -> Graph:
    """Values of one shape and its transpose: elementwise chains, products, softmax, reshapes, several outputs."""
    random = np.random.default_rng(seed)
    rows, columns = (int(n) for n in random.integers(1, 40, 2))
    b = Builder(f"random_{seed}")
    values: list[Value] = [b.input("x", (rows, columns)), b.input("y", (rows, columns))]

    def pick() -> Value:
        return values[-1 - int(random.integers(0, min(len(values), 4)))]

    for _ in range(int(random.integers(4, 14))):
        choice = random.integers(0, 10)
        if choice < 2:
            made = b.node(UNARY[random.integers(0, len(UNARY))], pick())
        elif choice < 5:
            made = b.node(BINARY[random.integers(0, len(BINARY))], pick(), pick())
        elif choice == 5:
            made = b.node("Softmax", pick(), axis=int(random.integers(0, 2)))
        elif choice == 6:
            made = b.node("MatMul", pick(), b.normal(columns, columns, scale=0.3))
        elif choice == 7:
            flat = b.node("Reshape", pick(), b.ints(rows * columns))
            made = b.node("Reshape", b.node("Neg", flat), b.ints(rows, columns))
        elif choice == 8:
            turned = b.node("Relu", b.node("Transpose", pick(), perm=[1, 0]))
            made = b.node("Add", b.node("Transpose", turned, perm=[1, 0]), pick())
        else:
            made = b.node("Sub", pick(), b.node("ReduceMax", pick(), b.ints(1), keepdims=1))
        values.append(made)
    outputs = [values[-1], *(v for v in values[2:-1] if random.random() < 0.15)]
    return Graph(f"random_{seed}", values[:2], outputs, b.nodes, b.constants)


@pytest.mark.parametrize("part", range(4))
def test_random_graphs_match_the_interpreter(part):
    reused = 0
    for seed in range(part, 24, 4):
        graph = random_graph(seed)
        module = compile(graph, threads=2)
        for turn in range(2):
            check(graph, random_inputs(graph, turn), module, tolerance=1e-4)
        reused += sum(one.lowered.program.in_place for one in module.specializations)
    assert part or reused, "no graph of this part reuses an input: the test looks at nothing"


def test_what_may_be_overwritten_is_promised_nothing():
    """A kernel that may write over its input tells LLVM nothing about the two."""
    module = compile(random_graph(3), threads=1)
    (one,) = module.specializations
    kernels = {launch.kernel.symbol: launch.kernel for launch in one.launches}.values()
    noted = [kernel for kernel in kernels if overwritable(kernel.scheduled)]
    assert noted
    for kernel in noted:
        names = set(kernel.scheduled.annotations["may_overlap"])
        pairs = [
            (kernel.scheduled.params[a].name, kernel.scheduled.params[b].name)
            for a, b in overwritable(kernel.scheduled)
        ]
        assert all({a, b} <= names for a, b in pairs)
        plain = generate(find_target("native").lower(kernel.scheduled.replace(annotations={})), find_target("native"))
        assert plain.count("distinct !{") > kernel.llvm_ir.count("distinct !{")

"""Launches of programs with thread loops: kernels, workspaces, loops of the host, conditions around launches."""

import pytest

from weft.core.dtypes import dtype
from weft.core.errors import TargetError
from weft.expr.nodes import Buffer, Load, Var, const, equal, int_value, less
from weft.loop.ir import Allocate, For, Func, If, Let, Store, seq
from weft.loop.passes.split_host_device import split_host_device
from weft.loop.visit import walk_stmts

A, B = Buffer("A", dtype("float32"), (64,)), Buffer("B", dtype("float32"), (64,))
n = Var("n")


def threads(body, count=16, tag="threadIdx.x"):
    """body(i) over threads."""
    i = Var("i")
    return For(i, count, body(i), "thread", tag)


def copy(source, target):
    return lambda i: Store(target, (i,), Load(source, (i,)))


def split(body, params=(A, B), **limits):
    return split_host_device(Func("f", params, body), **limits)


def test_each_nest_is_a_launch_and_what_is_between_is_a_workspace():
    w = Buffer("W", dtype("float32"), (64,), scope="shared")
    made = split(Allocate(w, seq(threads(copy(A, w)), threads(copy(w, B), 32, "blockIdx.y"))))
    first, second = made.launches
    (workspace,) = made.workspaces
    assert workspace.scope == "global" and workspace.name == "W"
    assert [first.name, second.name] == ["f_0", "f_1"]
    assert first.params == (A, workspace) and second.params == (B, workspace)
    assert first.block == (16, 1, 1) and [int_value(g) for g in second.grid] == [1, 32, 1]


def test_the_largest_extent_of_a_dimension_is_launched():
    t = Var("t")
    body = For(t, 4, seq(threads(copy(A, B), 8), threads(copy(B, A), 24)), "thread", "blockIdx.x")
    (launch,) = split(body).launches
    assert launch.block == (24, 1, 1) and int_value(launch.grid[0]) == 4


def test_statements_without_threads_are_one_launch_of_one_thread():
    store = Store(B, (const(0),), const(1.0, "float32"))
    made = split(seq(store, store, threads(copy(A, B)), store))
    assert [launch.block for launch in made.launches] == [(1, 1, 1), (16, 1, 1), (1, 1, 1)]
    assert len([s for s in walk_stmts(made.launches[0].body) if isinstance(s, Store)]) == 2


def test_loops_around_launches_run_on_the_host():
    s, t = Var("s"), Var("t")
    inner = threads(lambda i: Store(B, (i + t,), Load(A, (i + s,))))
    made = split(For(s, 2, seq(For(t, 3, inner), threads(copy(A, B)))))
    values = [{var.name: value for var, value in launch.constants.items()} for launch in made.launches]
    assert [launch.name for launch in made.launches] == ["f_0", "f_0", "f_0", "f_1"] * 2
    assert values[:4] == [{"s": 0, "t": 0}, {"s": 0, "t": 1}, {"s": 0, "t": 2}, {}]
    assert values[4] == {"s": 1, "t": 0} and made.launches[0].params == (A, B, s, t)


def test_block_loops_around_several_nests_of_blocks_run_on_the_host():
    """Blocks cannot wait for each other: the second nest may read what other blocks of the first wrote."""
    b = Var("b")
    nests = seq(threads(copy(A, B), 8, "blockIdx.x"), threads(copy(B, A), 8, "blockIdx.x"))
    made = split(For(b, 3, nests, "thread", "blockIdx.y"))
    assert [launch.name for launch in made.launches] == ["f_0", "f_1"] * 3
    again = split(For(b, 3, For(Var("s"), 2, threads(copy(A, B), 8, "blockIdx.x")), "thread", "blockIdx.y"))
    assert len(again.launches) == 6
    (one,) = split(For(b, 3, threads(copy(A, B), 8, "blockIdx.x"), "thread", "blockIdx.y")).launches
    assert [int_value(extent) for extent in one.grid] == [8, 3, 1]


@pytest.mark.parametrize(("extent", "reason"), [(n, "no constant extent"), (1 << 20, "times and more")])
def test_loops_that_the_host_cannot_run_are_refused(extent, reason):
    with pytest.raises(TargetError, match=reason):
        split(For(Var("s"), extent, threads(copy(A, B))), (A, B, n))


def test_conditions_and_names_move_into_the_launches():
    m = Var("m")
    made = split(If(less(n, const(5)), Let(m, n + 1, threads(lambda i: Store(B, (i,), Load(A, (m,))))),
                    threads(copy(A, B))), (A, B, n))  # fmt: skip
    yes, no = (launch.body for launch in made.launches)
    assert isinstance(yes, If) and isinstance(yes.then, Let) and isinstance(no, If) and no.otherwise is not None
    assert all(n in launch.params for launch in made.launches)


def test_a_loaded_condition_is_kept_before_launches_change_it():
    made = split(If(equal(Load(A, (const(0),)), const(0.0, "float32")), threads(copy(B, A)), threads(copy(A, B))))
    keep, yes, no = made.launches
    (kept,) = made.workspaces
    assert keep.block == (1, 1, 1) and kept in keep.params and kept in yes.params and kept in no.params
    assert isinstance(yes.body, If) and isinstance(yes.body.condition, Load)


def test_large_memory_of_a_block_or_thread_becomes_a_part_of_a_workspace():
    w = Buffer("W", dtype("float32"), (100,), scope="shared")
    body = For(Var("b"), 4, Allocate(w, threads(copy(A, w))), "thread", "blockIdx.x")
    assert not split(body, shared_bytes=400).workspaces
    (workspace,) = split(body, shared_bytes=399).workspaces
    assert [int_value(extent) for extent in workspace.shape] == [4, 100]
    own = w.replace(scope="local")
    body = For(Var("b"), 4, threads(lambda i: Allocate(own, copy(A, own)(i))), "thread", "blockIdx.x")
    (workspace,) = split(body, local_bytes=399).workspaces
    assert [int_value(extent) for extent in workspace.shape] == [64, 100]


def test_the_extent_of_threads_must_be_constant():
    with pytest.raises(TargetError, match="must be constant"):
        split(For(Var("t"), n, Store(B, (const(0),), const(0.0, "float32")), "thread", "threadIdx.x"), (A, B, n))

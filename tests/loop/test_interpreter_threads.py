"""The interpreter on loops that run at once: races, threads, barriers, scopes."""

import numpy as np
import pytest

from weft.core.dtypes import FLOAT32, INT32, dtype
from weft.core.errors import InterpreterError
from weft.expr.nodes import Buffer, Call, Load, Var, cast, const, equal, logical_and
from weft.loop.interpreter import interpret
from weft.loop.ir import Allocate, Axis, Block, Evaluate, For, Func, If, Store, seq

random = np.random.default_rng(1)
BARRIER = Evaluate(Call("barrier", (), INT32))


def floats(*shape):
    return random.standard_normal(shape).astype(np.float32)


def buffer(name, shape, scope="global", kind="float32"):
    return Buffer(name, dtype(kind), shape, scope)


def thread(var, extent, body, tag):
    return For(var, extent, body, "thread", tag)


def zero():
    return const(0.0, FLOAT32)


def variables(names):
    return [Var(name) for name in names.split()]


def races(func, *args, match="data race"):
    with pytest.raises(InterpreterError, match=match):
        interpret(func, *args)
    interpret(func, *args, check=False)


# ------------------------------------------------------------------------------- parallel and vectorized loops


@pytest.mark.parametrize("kind", ["parallel", "vectorized"])
def test_iterations_that_write_one_element_race(kind):
    A, S, i = buffer("A", (8,)), buffer("S", (1,)), Var("i")
    func = Func("sum", [A, S], For(i, 8, Store(S, (const(0),), Load(S, (const(0),)) + Load(A, (i,))), kind))
    races(func, floats(8), floats(1), match=rf"data race: (load|store) of S\[0\] in 'sum' at i=1: .* i \({kind}\)")
    interpret(Func("sum", [A, S], For(i, 8, func.body.body)), floats(8), floats(1))


@pytest.mark.parametrize("kind", ["parallel", "vectorized"])
@pytest.mark.parametrize("offset", [-1, 1])
def test_an_iteration_that_reads_what_another_writes_races(kind, offset):
    A, i = buffer("A", (10,)), Var("i")
    func = Func("shift", [A], For(i, 8, Store(A, (i + 1,), Load(A, (i + 1 + offset,))), kind))
    races(func, floats(10), match=r"data race: (load|store) of A\[\d\]")


def test_independent_iterations_do_not_race():
    A, B, i, j = buffer("A", (4, 4)), buffer("B", (4, 4)), *variables("i j")
    body = Store(B, (i, j), Load(A, (j, i)) + Load(A, (const(0), const(0))))
    a, b = floats(4, 4), floats(4, 4)
    interpret(Func("f", [A, B], For(i, 4, For(j, 4, body, "vectorized"), "parallel")), a, b)
    np.testing.assert_array_equal(b, a.T + a[0, 0])


def test_nested_parallel_loops_are_checked_each():
    A, i, j = buffer("A", (4, 4)), *variables("i j")
    inner = Func("f", [A], For(i, 4, For(j, 4, Store(A, (i, const(0)), zero()), "parallel"), "parallel"))
    races(inner, floats(4, 4), match=r"A\[0, 0\].* at i=0, j=1")
    outer = Func("f", [A], For(i, 4, For(j, 4, Store(A, (const(0), j), zero()), "parallel"), "parallel"))
    races(outer, floats(4, 4), match=r"A\[0, 0\].* at i=1, j=0")
    T, k = buffer("T", (4,)), Var("k")
    reads = seq(For(j, 4, Store(T, (j,), Load(A, (j, j))), "parallel"), Store(A, (i, i), Load(T, (i,))))
    races(Func("f", [A], For(k, 1, For(i, 4, Allocate(T, reads), "parallel"))), floats(4, 4), match="A")


def test_a_parallel_loop_may_run_again():
    A, i, k = buffer("A", (8,)), *variables("i k")
    a = np.zeros(8, np.float32)
    interpret(Func("f", [A], For(k, 3, For(i, 8, Store(A, (i,), Load(A, (i,)) + 1.0), "parallel"))), a)
    np.testing.assert_array_equal(a, 3)


def test_memory_of_an_iteration_does_not_race():
    A, T, i, j, k = buffer("A", (4, 3)), buffer("T", (3,)), *variables("i j k")
    body = seq(For(j, 3, Store(T, (j,), Load(A, (i, j)) * 2.0)), For(k, 3, Store(A, (i, k), Load(T, (k,)))))
    a = floats(4, 3)
    expected = a * 2
    interpret(Func("f", [A], For(i, 4, Allocate(T, body), "parallel")), a)
    np.testing.assert_array_equal(a, expected)
    races(Func("f", [A], Allocate(T, For(i, 4, body, "parallel"))), a, match=r"T\[0\]")


def stencil(kind):
    """B[i] = T[i] + T[i + 1], with T computed where it is needed, overlapping between iterations."""
    A, T, B = buffer("A", (9,)), buffer("T", (9,)), buffer("B", (8,))
    io, ii, ti, v, w = variables("io ii ti v w")
    produce = Block("T", [Axis(v, 9)], [io * 2 + ti], (), (), Store(T, (v,), Load(A, (v,)) * 2.0))
    consume = Block("B", [Axis(w, 8)], [io * 2 + ii], (), (), Store(B, (w,), Load(T, (w,)) + Load(T, (w + 1,))))
    return Func("blur", [A, B], For(io, 4, seq(For(ti, 3, produce), For(ii, 2, consume)), kind), [T])


def test_overlapping_recomputation_in_a_parallel_loop_is_no_race():
    a, b = floats(9), floats(8)
    interpret(stencil("parallel"), a, b)
    np.testing.assert_allclose(b, 2 * (a[1:] + a[:-1]), rtol=1e-5)


def test_reading_what_another_iteration_computed_is_a_race():
    A, T, B, i, v, w = buffer("A", (8,)), buffer("T", (8,)), buffer("B", (8,)), *variables("i v w")
    produce = Block("T", [Axis(v, 8)], [i], (), (), Store(T, (v,), Load(A, (v,))))
    previous = Store(B, (w,), Load(T, (w - cast(w > 0, "int64"),)))
    consume = Block("B", [Axis(w, 8)], [i], (), (), previous)
    func = Func("f", [A, B], For(i, 8, seq(produce, consume), "parallel"), [T])
    races(func, floats(8), floats(8), match=r"load of T\[0\] in block 'B' of 'f' at i=1")


def test_packed_elements_of_one_byte_are_apart():
    """Flattening makes bytes of them, and loops serial that would then race."""
    A, i = buffer("A", (5,), kind="uint4"), Var("i")
    a = np.zeros(3, np.uint8)
    interpret(Func("f", [A], For(i, 5, Store(A, (i,), const(7, "uint4")), "parallel")), a)
    np.testing.assert_array_equal(a, [0x77, 0x77, 0x07])


# --------------------------------------------------------------------------------------------------- lowered GPU


def shared_matmul(n, tile, first=True, second=True):
    """A tile of A and of B at a time in shared memory, with the two barriers that this needs."""
    A, B, C = (buffer(name, (n, n)) for name in "ABC")
    AS, BS = buffer("AS", (tile, tile), "shared"), buffer("BS", (tile, tile), "shared")
    acc = buffer("acc", (1,), "local")
    by, bx, ty, tx, ko, ki = variables("by bx ty tx ko ki")
    i, j, one = by * tile + ty, bx * tile + tx, const(0)
    fetch = seq(Store(AS, (ty, tx), Load(A, (i, ko * tile + tx))), Store(BS, (ty, tx), Load(B, (ko * tile + ty, j))))
    update = Store(acc, (one,), Load(acc, (one,)) + Load(AS, (ty, ki)) * Load(BS, (ki, tx)))
    step = seq(fetch, BARRIER if first else None, For(ki, tile, update), BARRIER if second else None)
    body = Allocate(acc, seq(Store(acc, (one,), zero()), For(ko, n // tile, step), Store(C, (i, j), Load(acc, (one,)))))
    body = thread(ty, tile, thread(tx, tile, body, "threadIdx.x"), "threadIdx.y")
    body = Allocate(AS, Allocate(BS, body))
    return Func("matmul", [A, B, C], thread(by, n // tile, thread(bx, n // tile, body, "blockIdx.x"), "blockIdx.y"))


def test_shared_memory_matmul():
    a, b, c = floats(8, 8), floats(8, 8), floats(8, 8)
    interpret(shared_matmul(8, 4), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first, second", [(False, True), (True, False), (False, False)])
def test_shared_memory_matmul_without_a_barrier_races(first, second):
    func = shared_matmul(8, 4, first, second)
    with pytest.raises(InterpreterError, match=r"data race: .* of [AB]S.*barrier|uninitialised: load of [AB]S"):
        interpret(func, floats(8, 8), floats(8, 8), floats(8, 8))


def test_shared_memory_allocated_inside_the_threads_is_one_for_the_block():
    A, S, bx, tx, one = buffer("A", (2, 8)), buffer("S", (8,), "shared"), *variables("bx tx"), const(7)
    body = seq(Store(S, (tx,), Load(A, (bx, tx))), BARRIER, Store(A, (bx, tx), Load(S, (one - tx,))))
    func = Func("reverse", [A], thread(bx, 2, thread(tx, 8, Allocate(S, body), "threadIdx.x"), "blockIdx.x"))
    a = floats(2, 8)
    expected = a[:, ::-1].copy()
    interpret(func, a)
    np.testing.assert_array_equal(a, expected)


def test_local_memory_allocated_outside_the_threads_is_one_for_each():
    A, B, L = buffer("A", (8,)), buffer("B", (8,)), buffer("L", (1,), "local")
    bx, tx, ux = variables("bx tx ux")
    body = seq(
        thread(tx, 8, Store(L, (const(0),), Load(A, (tx,))), "threadIdx.x"),
        thread(ux, 8, Store(B, (ux,), Load(L, (const(0),)) * 2.0), "threadIdx.x"),
    )
    a, b = floats(8), floats(8)
    interpret(Func("f", [A, B], thread(bx, 1, Allocate(L, body), "blockIdx.x")), a, b)
    np.testing.assert_array_equal(b, a * 2)


def test_blocks_of_threads_race_on_global_memory():
    A, bx = buffer("A", (4,)), Var("bx")
    func = Func("f", [A], thread(bx, 4, Store(A, (bx // 2,), zero()), "blockIdx.x"))
    races(func, floats(4), match=r"A\[0\].*at bx=1.*bx \(blockIdx\.x\)")


def test_a_barrier_orders_threads_of_one_block_only():
    A, bx, tx = buffer("A", (8,)), *variables("bx tx")
    body = seq(Store(A, (tx,), zero()), BARRIER, Store(A, (const(7) - tx,), Load(A, (const(7) - tx,))))
    one = Func("f", [A], thread(tx, 8, body, "threadIdx.x"))
    interpret(one, floats(8))
    races(Func("f", [A], thread(bx, 2, one.body, "blockIdx.x")), floats(8))


@pytest.mark.parametrize("condition", [lambda tx: tx < 4, lambda tx: equal(tx, 0), lambda tx: tx >= 4])
def test_a_barrier_that_some_threads_miss(condition):
    A, tx = buffer("A", (8,)), Var("tx")
    body = seq(Store(A, (tx,), zero()), If(condition(tx), BARRIER))
    with pytest.raises(InterpreterError, match=r"divergent barrier in 'f'.*tx \(threadIdx\.x\)"):
        interpret(Func("f", [A], thread(tx, 8, body, "threadIdx.x")), floats(8))


def test_barriers_in_two_arms_are_not_one_barrier():
    A, tx = buffer("A", (8,)), Var("tx")
    body = If(tx < 4, seq(Store(A, (tx,), zero()), BARRIER), seq(BARRIER, Store(A, (tx,), zero())))
    with pytest.raises(InterpreterError, match="divergent barrier"):
        interpret(Func("f", [A], thread(tx, 8, body, "threadIdx.x")), floats(8))


def test_a_barrier_that_threads_reach_different_numbers_of_times():
    A, tx, k = buffer("A", (8,)), *variables("tx k")
    body = seq(For(k, tx // 4 + 1, BARRIER), Store(A, (tx,), zero()))
    with pytest.raises(InterpreterError, match="divergent barrier"):
        interpret(Func("f", [A], thread(tx, 8, body, "threadIdx.x")), floats(8))


def test_divergence_between_groups_of_threads():
    A, ty, tx = buffer("A", (2, 4)), *variables("ty tx")
    body = thread(tx, 4, seq(Store(A, (ty, tx), zero()), BARRIER), "threadIdx.x")
    interpret(Func("f", [A], thread(ty, 2, body, "threadIdx.y")), floats(2, 4))
    with pytest.raises(InterpreterError, match=r"divergent barrier.*ty \(threadIdx\.y\)"):
        interpret(Func("f", [A], thread(ty, 2, If(equal(ty, 0), body), "threadIdx.y")), floats(2, 4))


def test_reduction_tree_in_shared_memory():
    n = 16
    A, S, R, tx, k = buffer("A", (n,)), buffer("S", (n,), "shared"), buffer("R", (1,)), *variables("tx k")
    half = const(n // 2) // Call("shift_left", (const(1), k), dtype("int64"))
    step = seq(If(tx < half, Store(S, (tx,), Load(S, (tx,)) + Load(S, (tx + half,)))), BARRIER)
    last = If(equal(tx, 0), Store(R, (const(0),), Load(S, (const(0),))))
    body = seq(Store(S, (tx,), Load(A, (tx,))), BARRIER, For(k, 4, step), last)
    a, r = floats(n), floats(1)
    interpret(Func("sum", [A, R], Allocate(S, thread(tx, n, body, "threadIdx.x"))), a, r)
    assert r[0] == pytest.approx(a.sum(), rel=1e-4)
    unsafe = seq(Store(S, (tx,), Load(A, (tx,))), BARRIER, For(k, 4, step.stmts[0]), last)
    races(Func("sum", [A, R], Allocate(S, thread(tx, n, unsafe, "threadIdx.x"))), a, r, match=r"data race: .* of S\[")


def test_virtual_threads_meet_at_barriers_too():
    A, S = buffer("A", (8,)), buffer("S", (8,), "shared")
    tx, vt = variables("tx vt")
    index = vt * 4 + tx
    body = seq(Store(S, (index,), Load(A, (index,))), BARRIER, Store(A, (index,), Load(S, (const(7) - index,))))
    func = Func("f", [A], Allocate(S, thread(tx, 4, thread(vt, 2, body, "vthread"), "threadIdx.x")))
    a = floats(8)
    expected = a[::-1].copy()
    interpret(func, a)
    np.testing.assert_array_equal(a, expected)


# ---------------------------------------------------------------------------------------- a tag inside itself


def test_an_inner_loop_of_a_tag_is_the_same_thread():
    A, B, tx, ux = buffer("A", (8,)), buffer("B", (4,)), *variables("tx ux")
    inner = thread(ux, 4, Store(B, (ux,), Load(A, (tx,)) + Load(A, (ux,))), "threadIdx.x")
    a, b = floats(8), floats(4)
    interpret(Func("f", [A, B], thread(tx, 8, inner, "threadIdx.x")), a, b)
    np.testing.assert_array_equal(b, 2 * a[:4])


def test_an_inner_loop_that_asks_for_more_threads_than_there_are():
    B, tx, ux = buffer("B", (8,)), *variables("tx ux")
    inner = thread(ux, 8, Store(B, (ux,), zero()), "threadIdx.x")
    with pytest.raises(
        InterpreterError, match=r"too few threads: the inner loop ux \(threadIdx\.x\) runs to 8 .* only to 4"
    ):
        interpret(Func("f", [B], thread(tx, 4, inner, "threadIdx.x")), floats(8))


def test_a_barrier_in_an_inner_loop_that_not_all_threads_run():
    A, tx, ux = buffer("A", (8,)), *variables("tx ux")
    inner = thread(ux, 4, seq(Store(A, (ux,), zero()), BARRIER), "threadIdx.x")
    with pytest.raises(InterpreterError, match="divergent barrier"):
        interpret(Func("f", [A], thread(tx, 8, inner, "threadIdx.x")), floats(8))


def test_block_loops_must_be_outside_thread_loops():
    A, tx, bx = buffer("A", (4, 4)), *variables("tx bx")
    func = Func("f", [A], thread(tx, 4, thread(bx, 4, Store(A, (bx, tx), zero()), "blockIdx.x"), "threadIdx.x"))
    with pytest.raises(InterpreterError, match=r"bx \(blockIdx\.x\).*blockIdx is outside"):
        interpret(func, floats(4, 4))


# ------------------------------------------------------------------------------------------------- scheduled GPU


def cooperative(n, tile, fetchers):
    """Scheduled: `fetchers` threads of the block copy a tile of A to shared memory, then all use it."""
    A, B, S = buffer("A", (n,)), buffer("B", (n,)), buffer("S", (n,), "shared")
    bx, tx, ux, k, v, w = variables("bx tx ux k v w")
    at = bx * tile + k * fetchers + ux
    fetch = Block("S", [Axis(v, n)], [at], (), (), Store(S, (v,), Load(A, (v,))))
    mirror = (w // tile) * tile + (tile - 1) - w % tile
    use = Block("B", [Axis(w, n)], [bx * tile + tx], (), (), Store(B, (w,), Load(S, (mirror,))))
    copy = For(k, tile // fetchers, thread(ux, fetchers, fetch, "threadIdx.x"))
    return Func("f", [A, B], thread(bx, n // tile, thread(tx, tile, seq(copy, use), "threadIdx.x"), "blockIdx.x"), [S])


@pytest.mark.parametrize("fetchers", [8, 4, 1])
def test_cooperative_fetching(fetchers):
    a, b = floats(32), floats(32)
    interpret(cooperative(32, 8, fetchers), a, b)
    np.testing.assert_array_equal(b.reshape(4, 8), a.reshape(4, 8)[:, ::-1])


def scheduled_matmul(n, tile):
    """Scheduled: shared tiles inside the reduction loop, local accumulator, everything in Func.allocations."""
    A, B, C = (buffer(name, (n, n)) for name in "ABC")
    AS, BS = buffer("AS", (n, n), "shared"), buffer("BS", (n, n), "shared")
    CL = buffer("CL", (n, n), "local")
    by, bx, ty, tx, ko, ki = variables("by bx ty tx ko ki")
    i, j = by * tile + ty, bx * tile + tx

    def copy(name, target, source, bindings):
        v, w = variables("v w")
        return Block(name, [Axis(v, n), Axis(w, n)], bindings, (), (), Store(target, (v, w), Load(source, (v, w))))

    uy, ux, zy, zx, vi, vj, vk = variables("uy ux zy zx vi vj vk")

    def cooperate(y, x, body):
        return thread(y, tile, thread(x, tile, body, "threadIdx.x"), "threadIdx.y")

    fetch_a = cooperate(uy, ux, copy("AS", AS, A, [by * tile + uy, ko * tile + ux]))
    fetch_b = cooperate(zy, zx, copy("BS", BS, B, [ko * tile + zy, bx * tile + zx]))
    update = Store(CL, (vi, vj), Load(CL, (vi, vj)) + Load(AS, (vi, vk)) * Load(BS, (vk, vj)))
    axes = [Axis(vi, n), Axis(vj, n), Axis(vk, n, "reduce")]
    matmul = Block("CL", axes, [i, j, ko * tile + ki], (), (), update, init=Store(CL, (vi, vj), zero()))
    reduction = For(ko, n // tile, seq(fetch_a, fetch_b, For(ki, tile, matmul)))
    body = cooperate(ty, tx, seq(reduction, copy("C", C, CL, [i, j])))
    grid = thread(by, n // tile, thread(bx, n // tile, body, "blockIdx.x"), "blockIdx.y")
    return Func("matmul", [A, B, C], grid, [AS, BS, CL])


def test_scheduled_matmul_with_shared_and_local_memory():
    a, b, c = floats(8, 8), floats(8, 8), floats(8, 8)
    interpret(scheduled_matmul(8, 4), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def test_sibling_nests_of_threads_follow_one_another():
    A, B, S = buffer("A", (8,)), buffer("B", (8,)), buffer("S", (8,), "shared")
    bx, tx, ux, v, w = variables("bx tx ux v w")
    one = Block("S", [Axis(v, 8)], [tx], (), (), Store(S, (v,), Load(A, (v,))))
    two = Block("B", [Axis(w, 8)], [ux], (), (), Store(B, (w,), Load(S, (const(7) - w,))))
    nests = seq(thread(tx, 8, one, "threadIdx.x"), thread(ux, 8, two, "threadIdx.x"))
    a, b = floats(8), floats(8)
    interpret(Func("f", [A, B], thread(bx, 1, nests, "blockIdx.x"), [S]), a, b)
    np.testing.assert_array_equal(b, a[::-1])


def test_a_thread_that_skips_a_statement_waits_for_the_others():
    """Threads 4..7 skip the inner sequence; they must still wait until it is done."""
    A, B, S, T = buffer("A", (8,)), buffer("B", (8,)), buffer("S", (4,), "shared"), buffer("T", (4,), "shared")
    tx, ux, v, w, x = variables("tx ux v w x")
    first = Block("S", [Axis(v, 4)], [ux], (), (), Store(S, (v,), Load(A, (v,))))
    second = Block("T", [Axis(w, 4)], [ux], (), (), Store(T, (w,), Load(S, (const(3) - w,))))
    third = Block("B", [Axis(x, 8)], [tx], (), (), Store(B, (x,), Load(T, (x % 4,))))
    body = seq(thread(ux, 4, seq(first, second), "threadIdx.x"), third)
    assert len(body.stmts) == 2
    a, b = floats(8), floats(8)
    interpret(Func("f", [A, B], thread(tx, 8, body, "threadIdx.x"), [S, T]), a, b)
    np.testing.assert_array_equal(b, np.tile(a[3::-1], 2))


def test_a_race_within_one_scheduled_statement_is_found():
    A, tx, v = buffer("A", (9,)), *variables("tx v")
    block = Block("A", [Axis(v, 8)], [tx], (), (), Store(A, (v,), Load(A, (v + 1,))))
    races(Func("f", [A], thread(tx, 8, block, "threadIdx.x")), floats(9), match="in block 'A' of 'f' at tx=1")


def fetched_tiles(scheduled, differ):
    """Each virtual thread fetches a tile to shared memory (all the same, or one each), then uses it."""
    A, B, S = buffer("A", (4, 4)), buffer("B", (2, 4)), buffer("S", (4,), "shared")
    tx, vt, ux, v, w, x = variables("tx vt ux v w x")
    which = vt if differ else const(0)
    fetch, use = Store(S, (ux,), Load(A, (ux, which))), Store(B, (vt, tx), Load(S, (const(3) - tx,)))
    if not scheduled:
        body = seq(thread(ux, 4, fetch, "threadIdx.x"), BARRIER, use)
        return Func("f", [A, B], thread(tx, 4, thread(vt, 2, Allocate(S, body), "vthread"), "threadIdx.x"))
    fetch = Block("S", [Axis(v, 4), Axis(x, 4)], [ux, which], (), (), Store(S, (v,), Load(A, (v, x))))
    use = Block("B", [Axis(w, 2), Axis(x, 4)], [vt, tx], (), (), Store(B, (w, x), Load(S, (const(3) - x,))))
    body = seq(thread(ux, 4, fetch, "threadIdx.x"), use)
    return Func("f", [A, B], thread(tx, 4, thread(vt, 2, body, "vthread"), "threadIdx.x"), [S])


@pytest.mark.parametrize("scheduled", [True, False])
@pytest.mark.parametrize("differ", [True, False])
def test_shared_memory_inside_virtual_threads_is_one_for_each_of_them(scheduled, differ):
    a, b = floats(4, 4), floats(2, 4)
    interpret(fetched_tiles(scheduled, differ), a, b)
    np.testing.assert_array_equal(b, a[::-1, [0, int(differ)]].T)


@pytest.mark.parametrize("differ", [True, False])
def test_virtual_threads_may_write_the_same_value_but_not_different_ones(differ):
    A, S, vt = buffer("A", (2,)), buffer("S", (1,), "shared"), Var("vt")
    store = Store(S, (const(0),), Load(A, (vt if differ else const(0),)))
    func = Func("f", [A], Allocate(S, thread(vt, 2, store, "vthread")))
    if differ:
        races(func, floats(2), match=r"data race: store of S\[0\].*vt \(vthread\)")
    else:
        interpret(func, floats(2))


def test_local_memory_of_virtual_threads():
    A, B, L = buffer("A", (8,)), buffer("B", (8,)), buffer("L", (8,), "local")
    tx, vt, v, w = variables("tx vt v w")
    index = vt * 4 + tx
    one = Block("L", [Axis(v, 8)], [index], (), (), Store(L, (v,), Load(A, (v,)) * 3.0))
    two = Block("B", [Axis(w, 8)], [index], (), (), Store(B, (w,), Load(L, (w,))))
    body = thread(vt, 2, thread(tx, 4, seq(one, two), "threadIdx.x"), "vthread")
    a, b = floats(8), floats(8)
    interpret(Func("f", [A, B], body, [L]), a, b)
    np.testing.assert_array_equal(b, a * np.float32(3))


def test_tails_of_thread_loops_are_predicated():
    n = 13
    A, B, bx, tx, v = buffer("A", (n,)), buffer("B", (n,)), *variables("bx tx v")
    at = bx * 8 + tx
    block = Block("B", [Axis(v, n)], [at], (), (), Store(B, (v,), Load(A, (v,)) + 1.0), predicate=logical_and(at < n))
    a, b = floats(n), floats(n)
    interpret(Func("f", [A, B], thread(bx, 2, thread(tx, 8, block, "threadIdx.x"), "blockIdx.x")), a, b)
    np.testing.assert_array_equal(b, a + np.float32(1))


def test_threads_inside_many_loops():
    """Barriers in loops that nest deeper than Python allows in one function."""
    A, S, tx = buffer("A", (4,)), buffer("S", (4,), "shared"), Var("tx")
    body = seq(Store(S, (tx,), Load(A, (tx,))), BARRIER, Store(A, (tx,), Load(S, (const(3) - tx,))), BARRIER)
    for d in range(25):
        body = For(Var(f"k{d}"), 3 if d == 7 else 1, body)
    a = floats(4)
    expected = a[::-1].copy()
    interpret(Func("f", [A], Allocate(S, thread(tx, 4, body, "threadIdx.x"))), a)
    np.testing.assert_array_equal(a, expected)

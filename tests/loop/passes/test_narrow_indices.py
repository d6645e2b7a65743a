"""32-bit index arithmetic: where it fits, where it does not, and that it keeps the meaning."""

import numpy as np
import pytest

from weft.core.dtypes import INT32, INT64, dtype
from weft.expr.nodes import Add, Broadcast, Buffer, Cast, Load, Ramp, Var, cast, const, index_expr, less, select
from weft.expr.visit import walk
from weft.loop.interpreter import interpret
from weft.loop.ir import For, Func, If, Let, Store
from weft.loop.passes.narrow_indices import narrow_indices
from weft.loop.verifier import verify
from weft.loop.visit import walk_exprs, walk_stmts

A, B = Buffer("A", dtype("int64"), (4096,)), Buffer("B", dtype("int64"), (4096,))
i, j, n = Var("i"), Var("j"), Var("n")
FLAT = {"flat": True}


def nest(store, first=64, second=64, params=(A, B)):
    func = Func("f", params, For(i, first, For(j, second, store)), annotations=FLAT)
    verify(func)
    made = narrow_indices(func)
    verify(made)
    return func, made


def additions(func):
    """The dtypes that sums are computed in."""
    return {e.dtype.scalar for e in walk_exprs(func.body) if isinstance(e, Add)}


@pytest.mark.parametrize(
    "store",
    [
        Store(B, (i * 64 + j,), Load(A, (i * 64 + (63 - j),))),
        Store(B, ((i * 64 + j) % 4096,), cast(i * 3 + j // 2, "int64")),
        Store(B, (i * 64 + j,), select(less(i + j, index_expr(64)), Load(A, (i + j,)), const(-1))),
        If(less(i * 3 + j, index_expr(100)), Store(B, (i * 3 + j,), i + j)),
    ],
)
def test_sums_of_loop_variables_become_narrow(store):
    before, after = nest(store)
    assert additions(before) == {INT64} and additions(after) == {INT32}
    data = np.random.default_rng(0).integers(-5, 5, 4096)
    results = [np.zeros(4096, np.int64) for _ in range(2)]
    interpret(before, data, results[0])
    interpret(after, data, results[1])
    np.testing.assert_array_equal(*results)


def test_what_leaves_32_bits_stays_wide():
    large = Buffer("L", dtype("float32"), (1 << 34,))
    store = Store(large, (i * (1 << 20) + j,), const(0.0, "float32"))
    _, after = nest(store, 1 << 14, 1 << 20, (large,))
    assert additions(after) == {INT64}
    narrow = Store(large, (i * (1 << 16) + j,), const(0.0, "float32"))
    assert additions(nest(narrow, 1 << 14, 1 << 16, (large,))[1]) == {INT32}


def test_sizes_and_loaded_indices_stay_wide():
    _, after = nest(Store(B, (i + n,), Load(A, (j,))), params=(A, B, n))
    assert additions(after) == {INT64}
    _, after = nest(Store(B, (Load(A, (i,)) + j,), const(0)))
    assert additions(after) == {INT64}


def test_vectors_and_names():
    name = Var("base")
    lanes = Ramp(name + j * 4, index_expr(1), 4)
    _, after = nest(Let(name, i * 64, Store(B, (lanes,), Broadcast(const(7), 4))), 64, 16)
    (let,) = [s for s in walk_stmts(after.body) if isinstance(s, Let)]
    assert let.var.dtype is INT32 and additions(after) == {INT32}
    (store,) = [s for s in walk_stmts(after.body) if isinstance(s, Store)]
    index = store.indices[0]
    assert isinstance(index, Cast) and isinstance(index.value, Ramp)
    assert all(node.dtype.scalar is INT32 for node in walk(index.value) if node is not i and node is not j)

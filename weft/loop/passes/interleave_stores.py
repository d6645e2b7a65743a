"""Strided vector stores that together fill a stretch of memory become one store of interleaved lanes.

    B[ramp(b, 2, 16)] = x                                B[ramp(b, 1, 32)] = interleave(x, y)
    B[ramp(b + 1, 2, 16)] = y                      ->

Packing pairs (or fours) of rows for a dot-product instruction is written this way, and the phases of a transposed
convolution. Scatters cost one store a lane; an interleave is a shuffle or two. At the end of a row stores with tests
for the lanes beyond it become one with a test for its lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.expr.nodes import LT, Broadcast, Call, Expr, Ramp, Select, const, index_expr, int_value, mul, sub
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.loop.interpreter import register_effect
from weft.loop.ir import Func, Stmt, Store
from weft.loop.passes.store_runs import JoinStores, StridedStore

register_effect("interleave", lambda *vectors: np.stack(vectors, axis=-1).ravel())


def interleave_stores(func: Func) -> Func:
    """The program with runs of strided stores joined."""
    return JoinStores(_longest, _joined).func(func)


def _longest(first: StridedStore) -> int:
    return first.step if first.step in (2, 4, 8) else 0


def _joined(run: Sequence[StridedStore]) -> Stmt | None:
    """One store; none where the run leaves gaps."""
    first = run[0]
    if len(run) != first.step or any(one.test is not None for one in run):
        return None
    lanes = first.lanes * len(run)
    value = Call("interleave", [_tested(one.store) for one in run], first.store.value.dtype.with_lanes(lanes))
    test = None if first.store.predicate is None else _before_end(run, lanes)
    if test is None and first.store.predicate is not None:
        return None
    return Store(first.store.buffer, (Ramp(first.base, index_expr(1), lanes),), value, test)


def _tested(store: Store) -> Expr:
    """The value of a store, where lanes that it does not store read nothing."""
    test, value = store.predicate, store.value
    if test is None or (isinstance(value, Select) and structural_equal(value.condition, test)):
        return value
    return Select(test, value, Broadcast(const(0, value.dtype.scalar), value.dtype.lanes))


def _before_end(run: Sequence[StridedStore], lanes: int) -> Expr | None:
    """The test of all lanes, where those of the stores say that one place, or the number of a lane, is before an end;
    None where they say something else."""
    parts: list[tuple[Expr, int, Expr]] = []
    for one in run:
        test = one.store.predicate
        if not isinstance(test, LT) or not isinstance(test.a, Ramp) or not isinstance(test.b, Broadcast):
            return None
        parts.append((test.a.base, int_value(test.a.stride) or 0, test.b.value))
    (base, step, end), count = parts[0], len(run)
    if any(s != step or int_value(simplify(sub(e, end))) != 0 for _, s, e in parts):
        return None
    moved = [int_value(simplify(sub(b, base))) for b, _, _ in parts]
    if step == 1 and not any(m != 0 for m in moved):
        base, end = mul(base, index_expr(count)), mul(end, index_expr(count))
    elif step != count or moved != list(range(count)):
        return None
    return LT(Ramp(simplify(base), index_expr(1), lanes), Broadcast(simplify(end), lanes))

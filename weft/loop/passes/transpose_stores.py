"""Strided vector stores that stand side by side become stores of whole rows, by a transposition in registers.

    B[ramp(b, s, 16)] = x0
    B[ramp(b + 1, s, 16)] = x1          ->      store_transposed(address(B[b], "w"), s, x0, x1, …)
    …

Element j of x_i goes to B[b + j*s + i]. A kernel that computes lanes of channels and stores an image row by row ends in
such stores: each would touch as many cache lines as it has lanes. Where s is an open size, rows that would overlap are
left to the stores as they were; so are those that end early, where the test of the last store implies the others'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core import model
from weft.core.dtypes import INT32
from weft.expr.bounds import Ranges, prove
from weft.expr.nodes import TRUE, Address, Call, index_expr, less_equal, logical_and
from weft.loop.interpreter import register_effect
from weft.loop.ir import Evaluate, Func, If, Stmt, seq
from weft.loop.passes.store_runs import JoinStores, StridedStore

LANES = (4, 8, 16)


def _mean(place: Any, stride: int, *vectors: Any) -> None:
    lanes = len(vectors[0])
    view = place.view(((lanes - 1) * stride + len(vectors),))
    for offset, vector in enumerate(vectors):
        view[offset : offset + (lanes - 1) * stride + 1 : stride] = vector


register_effect("store_transposed", _mean)


def transpose_stores(func: Func) -> Func:
    """The program with runs of strided stores side by side joined."""
    return JoinStores(_longest, _joined).func(func)


def _longest(first: StridedStore) -> int:
    kind = first.store.value.dtype
    suits = first.lanes in LANES and not kind.is_bool and kind.bits in (32, 64) and first.store.predicate is None
    return min(first.lanes, first.lanes if first.step is None else first.step) if suits else 0


def _joined(run: Sequence[StridedStore]) -> Stmt | None:
    """The stores of whole rows; none where the rows would be too short."""
    tests, last = [one.test for one in run if one.test is not None], run[-1].test
    known = Ranges() if last is None else Ranges().with_condition(last)
    if len(run) < model.LEAST_TRANSPOSED or not all(prove(test, known) for test in tests):
        return None
    first = run[0]
    place = Address(first.store.buffer, (first.base,), "w")
    joined: Stmt = Evaluate(Call("store_transposed", (place, first.stride, *[one.store.value for one in run]), INT32))
    apart = seq(*[one.store if one.test is None else If(one.test, one.store) for one in run])
    if first.step is None:
        last = logical_and(less_equal(index_expr(len(run)), first.stride), TRUE if last is None else last)
    return joined if last is None else If(last, joined, apart)

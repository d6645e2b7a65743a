"""Strided vector stores that together fill a stretch of memory become one store of interleaved lanes.

    B[ramp(b, 2, 16)] = x                                B[ramp(b, 1, 32)] = interleave(x, y)
    B[ramp(b + 1, 2, 16)] = y                      ->

Packing pairs (or fours) of rows for a dot-product instruction is written this way. Scatters cost one store a lane; an
interleave is a shuffle or two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.expr.nodes import Call, Ramp, index_expr
from weft.loop.interpreter import register_effect
from weft.loop.ir import Func, Stmt, Store
from weft.loop.passes.store_runs import JoinStores, StridedStore

register_effect("interleave", lambda *vectors: np.stack(vectors, axis=-1).ravel())


def interleave_stores(func: Func) -> Func:
    """The program with runs of strided stores joined."""
    return JoinStores(_longest, _joined).func(func)


def _longest(first: StridedStore) -> int:
    return first.stride if first.stride in (2, 4, 8) else 0


def _joined(run: Sequence[StridedStore]) -> Stmt | None:
    """One store; none where the run leaves gaps."""
    first = run[0]
    if len(run) != first.stride:
        return None
    lanes = first.lanes * len(run)
    value = Call("interleave", [one.store.value for one in run], first.store.value.dtype.with_lanes(lanes))
    return Store(first.store.buffer, (Ramp(first.base, index_expr(1), lanes),), value)

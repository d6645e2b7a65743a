"""Strided vector stores that together fill a stretch of memory become one store of interleaved lanes.

    B[ramp(b, 2, 16)] = x                                B[ramp(b, 1, 32)] = interleave(x, y)
    B[ramp(b + 1, 2, 16)] = y                      ->

Packing pairs (or fours) of rows for a dot-product instruction is written this way. Scatters cost one store a lane; an
interleave is a shuffle or two.
"""

from __future__ import annotations

import numpy as np

from weft.expr.nodes import Call, Load, Ramp, index_expr, int_value, sub
from weft.expr.simplify import simplify
from weft.expr.visit import walk
from weft.loop.interpreter import register_effect
from weft.loop.ir import Func, Seq, Stmt, Store, seq
from weft.loop.visit import Mutator

register_effect("interleave", lambda *vectors: np.stack(vectors, axis=-1).ravel())


def interleave_stores(func: Func) -> Func:
    """The program with runs of strided stores joined."""
    return _Interleave().func(func)


class _Interleave(Mutator):
    def visit_Seq(self, s: Seq) -> Stmt:
        """A sequence: runs of stores in it are joined."""
        stmts = [self.stmt(child) for child in s.stmts]
        out: list[Stmt] = []
        position = 0
        while position < len(stmts):
            run = _run_at(stmts, position)
            out.append(_joined(run) if run else stmts[position])
            position += len(run) or 1
        return s if len(out) == len(s.stmts) and all(a is b for a, b in zip(out, s.stmts)) else seq(*out)


def _strided(s: Stmt) -> tuple[Store, Ramp, int] | None:
    """A store whose lanes stand `stride` elements apart."""
    if not isinstance(s, Store) or s.predicate is not None or len(s.indices) != 1:
        return None
    index = s.indices[0]
    stride = int_value(index.stride) if isinstance(index, Ramp) else None
    if not isinstance(index, Ramp) or stride is None or stride not in (2, 4, 8) or s.value.dtype.lanes != index.lanes:
        return None
    return s, index, stride


def _run_at(stmts: list[Stmt], position: int) -> list[Store]:
    """The stores from a position on that fill the gaps of the first one, in order; nothing if there is no such run."""
    first = _strided(stmts[position])
    if first is None:
        return []
    store, index, stride = first
    run = [store]
    for offset in range(1, stride):
        found = _strided(stmts[position + offset]) if position + offset < len(stmts) else None
        if found is None or found[0].buffer is not store.buffer or found[2] != stride or found[1].lanes != index.lanes:
            return []
        if int_value(simplify(sub(found[1].base, index.base))) != offset:
            return []
        run.append(found[0])
    reads_back = any(isinstance(e, Load) and e.buffer is store.buffer for s in run for e in walk(s.value))
    return [] if reads_back else run


def _joined(run: list[Store]) -> Store:
    index = run[0].indices[0]
    assert isinstance(index, Ramp)
    lanes = index.lanes * len(run)
    value = Call("interleave", [s.value for s in run], run[0].value.dtype.with_lanes(lanes))
    return Store(run[0].buffer, (Ramp(index.base, index_expr(1), lanes),), value)

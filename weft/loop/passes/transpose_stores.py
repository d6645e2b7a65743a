"""Strided vector stores that stand side by side become stores of whole rows, by a transposition in registers.

    B[ramp(b, s, 16)] = x0
    B[ramp(b + 1, s, 16)] = x1          ->      store_transposed(address(B[b], "w"), s, x0, x1, …)
    …

Element j of x_i goes to B[b + j*s + i]. A kernel that computes lanes of channels and stores an image row by row ends in
such stores: each would touch as many cache lines as it has lanes.
"""

from __future__ import annotations

from typing import Any

from weft.core.dtypes import INT32
from weft.expr.nodes import Address, Call, Load, Ramp, index_expr, int_value, sub
from weft.expr.simplify import simplify
from weft.expr.visit import walk
from weft.loop.interpreter import register_effect
from weft.loop.ir import Evaluate, Func, Seq, Stmt, Store, seq
from weft.loop.visit import Mutator

LEAST_ROW = 4
LANES = (4, 8, 16)


def _mean(place: Any, stride: int, *vectors: Any) -> None:
    lanes = len(vectors[0])
    view = place.view(((lanes - 1) * stride + len(vectors),))
    for offset, vector in enumerate(vectors):
        view[offset : offset + (lanes - 1) * stride + 1 : stride] = vector


register_effect("store_transposed", _mean)


def transpose_stores(func: Func) -> Func:
    """The program with runs of strided stores side by side joined."""
    return _Transpose().func(func)


class _Transpose(Mutator):
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
    if not isinstance(index, Ramp) or stride is None or stride < LEAST_ROW or index.lanes not in LANES:
        return None
    kind = s.value.dtype
    if kind.lanes != index.lanes or kind.is_bool or kind.bits not in (32, 64):
        return None
    return s, index, stride


def _run_at(stmts: list[Stmt], position: int) -> list[Store]:
    """The stores from a position on that stand side by side; nothing if there are too few to make rows."""
    first = _strided(stmts[position])
    if first is None:
        return []
    store, index, stride = first
    run = [store]
    while len(run) < min(index.lanes, stride) and position + len(run) < len(stmts):
        found = _strided(stmts[position + len(run)])
        if found is None or found[0].buffer is not store.buffer or found[2] != stride or found[1].lanes != index.lanes:
            break
        if int_value(simplify(sub(found[1].base, index.base))) != len(run):
            break
        run.append(found[0])
    reads_back = any(isinstance(e, Load) and e.buffer is store.buffer for s in run for e in walk(s.value))
    return [] if reads_back or len(run) < LEAST_ROW else run


def _joined(run: list[Store]) -> Stmt:
    index = run[0].indices[0]
    assert isinstance(index, Ramp)
    place = Address(run[0].buffer, (index.base,), "w")
    stride = index_expr(int_value(index.stride) or 1)
    return Evaluate(Call("store_transposed", (place, stride, *[s.value for s in run]), INT32))

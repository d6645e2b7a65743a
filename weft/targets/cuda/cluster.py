"""Blocks that run together and share what they fetch: from one program of a cluster to that of each of its blocks.

In: a flat program whose loop over blocks has one over the blocks of a cluster inside it, as `producer` makes it. Every
shared buffer has a part for each of these. Out: a loop over all blocks, each with its own part.

    for b in range(66):                     blockIdx.x       for block in range(132):      blockIdx.x, {cluster: 2}
      for rank in range(2):              clusterRank.x         let b = block // 2, rank = block % 2
        allocate t: shared float16[2, 4096]            ->        allocate t: shared float16[4096]
          t[rank * 4096 + i] = …                                   t[i] = …
          barrier()                                                bulk_meet()

The interpreter runs the first form, in which what one block does to the memory of another is there to see.
"""

from __future__ import annotations

import math

from weft.core.dtypes import INDEX, INT32
from weft.expr.nodes import Buffer, Call, Cast, Expr, Var, floordiv, floormod, index_expr, int_value, mul
from weft.expr.visit import substitute
from weft.loop.ir import CLUSTER_RANK, Allocate, Evaluate, For, Func, Let, Stmt
from weft.loop.passes.narrow_indices import narrow_indices
from weft.loop.passes.support import Linear, Names, is_barrier, linear
from weft.loop.visit import AccessMutator, Mutator, walk_stmts
from weft.targets.cuda import bulk

RANK, CLUSTER = CLUSTER_RANK, "cluster"


def own_parts(func: Func) -> Func:
    """The program whose blocks have shared memory of their own."""
    if not any(isinstance(s, For) and s.thread == RANK for s in walk_stmts(func.body)):
        return func
    return narrow_indices(_Blocks(func).func(func))


class _Blocks(Mutator):
    def __init__(self, func: Func) -> None:
        self.names = Names(func)

    def visit_For(self, s: For) -> Stmt:
        inner = s.body
        if not isinstance(inner, For) or inner.thread != RANK or s.thread != "blockIdx.x":
            return self.generic_stmt(s)
        many = int_value(inner.extent)
        assert many is not None
        block = Var(self.names.fresh("block"))
        body = _Parts(inner.var, many).stmt(inner.body)
        body = Let(inner.var, floormod(block, index_expr(many)), body)
        body = Let(s.var, floordiv(block, index_expr(many)), body)
        notes = {**s.annotations, CLUSTER: many}
        return For(block, mul(s.extent, index_expr(many)), body, "thread", "blockIdx.x", annotations=notes)


class _Wide(Mutator):
    """Index arithmetic without conversions."""

    def visit_Cast(self, e: Cast) -> Expr:
        value = self.expr(e.value)
        return value if e.dtype.is_integer and value.dtype is INDEX else Cast(e.dtype, value)


class _Parts(AccessMutator):
    """Shared memory as one block has it; a barrier of threads is one of the whole cluster."""

    def __init__(self, rank: Var, many: int) -> None:
        self.rank, self.many = rank, many
        self.parts: dict[Buffer, tuple[Buffer, int]] = {}
        self.known: dict[Var, Expr] = {}

    def visit_Let(self, s: Let) -> Stmt:
        """What was worked out of an index before is seen through: the part is in it."""
        if s.var.dtype.is_integer:
            self.known[s.var] = _Wide().expr(substitute(s.value, self.known))
        return self.generic_stmt(s)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        if s.buffer.scope == "shared":
            part = math.prod(int_value(n) or 0 for n in s.buffer.shape) // self.many
            shape = (int_value(s.buffer.shape[0]) or 0) // self.many, *s.buffer.shape[1:]
            self.parts[s.buffer] = s.buffer.replace(shape=shape), part
            return Allocate(self.parts[s.buffer][0], self.stmt(s.body))
        return self.generic_stmt(s)

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        return Evaluate(Call(bulk.MEET, (), INT32)) if is_barrier(s) else self.generic_stmt(s)

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """An access of the part."""
        if buffer not in self.parts:
            return buffer, indices
        (index,), (own, part) = indices, self.parts[buffer]
        form = linear(_Wide().expr(substitute(index, self.known)))
        return own, (form.plus(Linear({self.rank: 1}, 0), -part).expr(),)

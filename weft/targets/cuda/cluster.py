"""Blocks that run together and share what they fetch: from one program of a cluster to that of each of its blocks.

In: a flat program whose loop over blocks has one over the blocks of a cluster inside it, as `producer` makes it. Every
shared buffer has a part for each of these. Out: a loop over all blocks, each with its own part.

    for b in range(66):                     blockIdx.x       for block in range(132):      blockIdx.x, {cluster: 2}
      for rank in range(2):              clusterRank.x         let b = block // 2, rank = block % 2
        allocate t: shared float16[2, 4096]            ->        allocate t: shared float16[4096]
          t[rank * 4096 + i] = …                                   t[i] = …
          barrier()                                                bulk_meet()

The interpreter runs the first form, in which what one block does to the memory of another is there to see.

`add_up_together` makes such a program of two kernels, of which the second adds up what so many blocks of the first hand
on (annotation TOGETHER of the loop over blocks). These are a cluster; its first block has memory for what all of them
hand on, and adds it up:

    for b in range(64):        blockIdx.x, {together: 8}     for g in range(8):                       blockIdx.x
      part[b * 66 + …] = …                                     for rank in range(8):       clusterRank.x, {collects: …}
    for g in range(8):                      blockIdx.x   ->      part[rank * 66 + …] = …      memory of the first block
      y[…] = sum of part[g * 528 + …]                            barrier(8)
                                                                 if rank == 0: y[…] = sum of part[…]

A barrier of so many blocks is where the first one waits for what the others hand on, others are of a block's threads:

    cluster_begin(bar, n)         all blocks of the cluster have begun; the `bar` of the first one expects n bytes
    cluster_store(to, bar, x)     x into the first block's memory, announced to its `bar`
    cluster_collect(bar, rank)    the first block waits for all that was expected
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.codegen.c.context import Context, Emitter
from weft.codegen.c.generate import LAUNCH_WAIT
from weft.core.dtypes import INDEX, INT32, INT64
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    Address,
    Buffer,
    Call,
    Cast,
    Expr,
    Ramp,
    Var,
    add,
    equal,
    floordiv,
    floormod,
    index_expr,
    int_value,
    mul,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import substitute
from weft.loop.ir import CLUSTER_RANK, Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.flatten import strides_of
from weft.loop.passes.narrow_indices import narrow_indices
from weft.loop.passes.simplify_func import simplify_func
from weft.loop.passes.support import BARRIER, Linear, Names, buffers_read, buffers_written, is_barrier, linear
from weft.loop.visit import AccessMutator, Mutator, substitute_stmt, walk_stmts
from weft.targets.cuda import bulk

RANK, CLUSTER, TOGETHER, COLLECTS = CLUSTER_RANK, "cluster", "together", "collects"
BEGIN, STORE, COLLECT = "cluster_begin", "cluster_store", "cluster_collect"


def add_up_together(func: Func) -> Func:
    """The program whose marked kernels add up what their blocks hand on; runs while tensors have their axes."""
    if not any(isinstance(s, For) and s.annotations.get(TOGETHER) for s in walk_stmts(func.body)):
        return func
    func = simplify_func(func)
    return simplify_func(_Together(func).func(func))


class _Together(Mutator):
    """Finds memory that a marked kernel fills and the next one adds up."""

    def __init__(self, func: Func) -> None:
        self.names = Names(func)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        *before, first, last = s.body.stmts if isinstance(s.body, Seq) else (s.body, s.body)
        if s.buffer.scope != "global" or any(s.buffer in buffers_read(x) | buffers_written(x) for x in before):
            return self.generic_stmt(s)
        if not isinstance(first, For) or not isinstance(last, For) or {first.thread, last.thread} != {"blockIdx.x"}:
            return self.generic_stmt(s)
        made = self.joined(s.buffer, first, last)
        return s if made is None else seq(*before, made)

    def joined(self, handed: Buffer, first: For, last: For) -> Stmt | None:
        """Both kernels as one of clusters; None where a cluster would read what another one hands on."""
        many, groups = int(first.annotations.get(TOGETHER, 1)), int_value(last.extent)
        sizes = [int_value(n) or 0 for n in handed.shape]
        axis = next((at for at in range(len(sizes)) if math.prod(sizes[:at]) == groups and sizes[at] == many), None)
        if many < 2 or groups is None or axis is None or int_value(first.extent) != groups * many:
            return None
        group, rank = Var(self.names.fresh("group")), Var(self.names.fresh("rank"))
        kept = handed.replace(shape=handed.shape[axis:], strides=None, scope="shared")
        known = Ranges().with_loop(group, index_expr(groups)).with_loop(rank, index_expr(many))
        swap = _Collected(handed, kept, axis, group, known)
        body = swap.stmt(substitute_stmt(first.body, {first.var: add(mul(group, index_expr(many)), rank)}))
        adds = If(equal(rank, index_expr(0)), swap.stmt(substitute_stmt(last.body, {last.var: group})))
        if not swap.is_own:
            return None
        meet = Evaluate(Call(BARRIER, (index_expr(many),), INT32))
        made = Allocate(kept, _Apart(rank, many).stmt(_behind(body, seq(meet, adds), ())))
        notes = {name: value for name, value in first.annotations.items() if name != TOGETHER}
        inner = For(rank, index_expr(many), made, "thread", RANK, annotations={COLLECTS: [kept.name]})
        return For(group, index_expr(groups), inner, "thread", "blockIdx.x", annotations=notes)


def _behind(s: Stmt, more: Stmt, tags: tuple[str, ...]) -> Stmt:
    """What the threads of a block do, and something more."""
    if isinstance(s, Allocate):
        return Allocate(s.buffer, _behind(s.body, more, tags))
    if isinstance(s, For) and (s.thread or "").startswith("threadIdx") and s.thread not in tags:
        return s.replace(body=_behind(s.body, more, (*tags, s.thread or "")))
    return seq(s, more)


class _Collected(AccessMutator):
    """What blocks hand on, where the first block of their cluster has it."""

    def __init__(self, handed: Buffer, kept: Buffer, axis: int, group: Var, known: Ranges) -> None:
        self.handed, self.kept, self.axis, self.group, self.known = handed, kept, axis, group, known
        self.is_own = True

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """An access of the collected memory; that of another cluster is not there."""
        if buffer is not self.handed:
            return buffer, indices
        number: Expr = index_expr(0)
        for size, index in zip(buffer.shape[: self.axis], indices):
            number = add(mul(number, size), index)
        self.is_own = self.is_own and structural_equal(simplify(number, self.known), self.group)
        return self.kept, indices[self.axis :]


class _Apart(AccessMutator):
    """Shared memory with a part for each block of a cluster."""

    def __init__(self, rank: Var, many: int) -> None:
        self.rank, self.many = rank, many
        self.wide: dict[Buffer, Buffer] = {}

    def visit_Allocate(self, s: Allocate) -> Stmt:
        if s.buffer.scope != "shared":
            return self.generic_stmt(s)
        steps = strides_of(s.buffer)
        whole = None if s.buffer.strides is None else (mul(steps[0], s.buffer.shape[0]), *steps)
        self.wide[s.buffer] = s.buffer.replace(shape=(index_expr(self.many), *s.buffer.shape), strides=whole)
        return Allocate(self.wide[s.buffer], self.stmt(s.body))

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """An access of a block's own part."""
        return (self.wide[buffer], (self.rank, *indices)) if buffer in self.wide else (buffer, indices)


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
        block, collected = Var(self.names.fresh("block")), inner.annotations.get(COLLECTS, ())
        bar = Buffer(self.names.fresh("handed"), INT64, (1,), scope="shared")
        body = _Parts(inner.var, many, collected, bar).stmt(inner.body)
        if collected:
            kept = [
                one.buffer for one in walk_stmts(body) if isinstance(one, Allocate) and one.buffer.name in collected
            ]
            size = sum(math.prod(int_value(n) or 0 for n in one.shape) * one.dtype.bytes for one in kept)
            body = Allocate(bar, _begun(body, bulk.call(BEGIN, _first_of(bar), size)))
        body = Let(inner.var, floormod(block, index_expr(many)), body)
        body = Let(s.var, floordiv(block, index_expr(many)), body)
        notes = {**s.annotations, CLUSTER: many}
        return For(block, mul(s.extent, index_expr(many)), body, "thread", "blockIdx.x", annotations=notes)


def _first_of(bar: Buffer) -> Address:
    return Address(bar, (index_expr(0),), "w")


def _begun(s: Stmt, begin: Stmt) -> Stmt:
    """What a block does, from where all blocks of its cluster have begun: before it waits for the kernel before it."""
    waits = _Waits(begin)
    made = waits.stmt(s)
    return made if waits.found else seq(begin, s)


class _Waits(Mutator):
    """Puts a statement before where a kernel waits."""

    def __init__(self, begin: Stmt) -> None:
        self.begin, self.found = begin, False

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        if not isinstance(s.value, Call) or s.value.name != LAUNCH_WAIT:
            return s
        self.found = True
        return seq(self.begin, s)


class _Wide(Mutator):
    """Index arithmetic without conversions."""

    def visit_Cast(self, e: Cast) -> Expr:
        value = self.expr(e.value)
        return value if e.dtype.is_integer and value.dtype is INDEX else Cast(e.dtype, value)


class _Parts(AccessMutator):
    """Shared memory as one block has it; a barrier of threads is one of the whole cluster."""

    def __init__(self, rank: Var, many: int, collected: Sequence[str], bar: Buffer) -> None:
        self.rank, self.many, self.collected, self.bar = rank, many, collected, bar
        self.parts: dict[Buffer, tuple[Buffer, int]] = {}
        self.known: dict[Var, Expr] = {}

    def visit_Let(self, s: Let) -> Stmt:
        """What was worked out of an index before is seen through: the part is in it."""
        if s.var.dtype.is_integer:
            self.known[s.var] = _Wide().expr(substitute(s.value, self.known))
        return self.generic_stmt(s)

    def visit_Allocate(self, s: Allocate) -> Stmt:
        if s.buffer.scope == "shared" and s.buffer.name not in self.collected:
            first = (int_value(s.buffer.shape[0]) or 0) // self.many
            part = (int_value(strides_of(s.buffer)[0]) or 0) * first
            self.parts[s.buffer] = s.buffer.replace(shape=(first, *s.buffer.shape[1:])), part
            return Allocate(self.parts[s.buffer][0], self.stmt(s.body))
        return self.generic_stmt(s)

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        if not is_barrier(s) or self.collected and isinstance(s.value, Call) and not s.value.args:
            return self.generic_stmt(s)
        return bulk.call(COLLECT, _first_of(self.bar), self.rank) if self.collected else bulk.call(bulk.MEET)

    def visit_Store(self, s: Store) -> Stmt:
        if s.buffer.name not in self.collected:
            return super().visit_Store(s)
        return bulk.call(STORE, Address(s.buffer, s.indices, "w"), _first_of(self.bar), self.expr(s.value))

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """An access of the part."""
        if buffer not in self.parts:
            return buffer, indices
        (index,), (own, part) = indices, self.parts[buffer]
        index = index.value if isinstance(index, Cast) and isinstance(index.value, Ramp) else index
        form = linear(_Wide().expr(substitute(index.base if isinstance(index, Ramp) else index, self.known)))
        place = form.plus(Linear({self.rank: 1}, 0), -part).expr()
        return own, (Ramp(place, _Wide().expr(index.stride), index.lanes) if isinstance(index, Ramp) else place,)


# ---------------------------------------------------------------------------------------------------------- emitting


_HELPERS = {
    BEGIN: """DEVICE void weft_cluster_begin(void *at, int32_t bytes) {
  const bool is_first = threadIdx.x + threadIdx.y + threadIdx.z == 0;
  if (is_first)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\nfence.mbarrier_init.release.cluster;"
                 : : "r"(weft_shared_place(at)) : "memory");
  asm volatile("barrier.cluster.arrive.relaxed;\\nbarrier.cluster.wait;" : : : "memory");
  if (is_first)  // what others announce before is counted, too
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 : : "r"(weft_shared_place(at)), "r"(bytes) : "memory");
}""",
    STORE: """DEVICE void weft_cluster_store(void *to, void *at, float value) {
  asm volatile("{\\n.reg .b32 there, bar;\\n"
               "mapa.shared::cluster.u32 there, %0, 0;\\nmapa.shared::cluster.u32 bar, %1, 0;\\n"
               "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %2, [bar];\\n}"
               : : "r"(weft_shared_place(to)), "r"(weft_shared_place(at)), "r"(__float_as_uint(value)) : "memory");
}""",
    COLLECT: """DEVICE void weft_cluster_collect(void *at, int32_t rank) {
  if (rank == 0) {
    asm volatile("{\\n.reg .pred done;\\nagain:\\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\\n@!done bra again;\\n}"
                 : : "r"(weft_shared_place(at)) : "memory");
  }
}""",
}


def _emitter(name: str) -> Emitter:
    def emit(c: Context, e: Call) -> str:
        c.helper("weft_shared_place", bulk.PLACE)
        c.helper(f"weft_{name}", _HELPERS[name])
        return f"weft_{name}({', '.join(c.pointer(a) if isinstance(a, Address) else c.value(a) for a in e.args)})"

    return emit


EMITTERS: Mapping[str, Emitter] = {name: _emitter(name) for name in _HELPERS}

"""Sums of vectors in the registers of a warp, and narrow weights there: what is done last to products of one row.

    part[ty * 256 + tx * 8 + ramp(8)] = …                own[ramp(8)] = …
    barrier()                                            own[0] = lanes_spread(own)      thread tx: of column tx % 8
    if tx < 8:                                   ->      if tx < 8:
      for l in range(32):                                  sum[0] += own[0]
        sum[0] += part[ty * 256 + l * 8 + tx]

Threads of a warp exchange halves of what they have: of 8 sums of 32 threads in 9 steps each thread has one. A barrier
that kept apart only such parts is left out.

    w[ramp(8)] = shared[…]                               words_fetch(w, shared)          four words
    s[j] += x * float32(w[j])                    ->      s[j] += x * words_get(w, j)     a shift, or a mask

Like `lanes.keep_in_registers` this is the last step before code is made: up to here the program is a plain one, which
the interpreter runs and checks for races.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import FLOAT32, INT32, dtype
from weft.expr.nodes import Address, Buffer, Call, Cast, Const, Expr, Load, Ramp, Var, add, index_expr, int_value, mul
from weft.expr.visit import substitute, walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.double_buffer import WAIT
from weft.loop.passes.support import Linear, buffers_written, is_barrier, is_call, linear
from weft.loop.visit import Mutator, child_stmts, substitute_stmt, walk_exprs, walk_stmts
from weft.targets.base import ThreadFacts
from weft.targets.cuda.early import BEGINS_EARLY
from weft.targets.cuda.fragments import wide_index
from weft.targets.cuda.lanes import first_of, joined, own_expressions
from weft.targets.cuda.model import RING_TURNS as TURNS

SPREAD, FETCH, GET, MERGE = "lanes_spread", "words_fetch", "words_get", "bits_merge"


_SPREAD = """template <int32_t width> DEVICE float weft_lanes_spread(const float *x) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  float own[width];
  #pragma unroll
  for (int32_t i = 0; i < width; ++i) own[i] = x[i];
  #pragma unroll
  for (int32_t level = 1; level <= 4; ++level) {
    const int32_t far = width >> level;
    #pragma unroll
    for (int32_t i = 0; i < 8; ++i) {
      if (i >= far) continue;
      const bool upper = (lane & far) != 0;
      const float a = own[i], b = own[i + far];
      own[i] = (upper ? b : a) + __shfl_xor_sync(0xffffffffu, upper ? a : b, far);
    }
  }
  #pragma unroll
  for (int32_t far = width; far < 32; far *= 2) own[0] += __shfl_xor_sync(0xffffffffu, own[0], far);
  return own[0];
}"""


def _emit_spread(c: Context, call: Call) -> str:
    c.helper("weft_lanes_spread", _SPREAD)
    place = call.args[0]
    assert isinstance(place, Address)
    return f"weft_lanes_spread<{c.constant(call.args[1])}>({c.pointer(place)})"


def add_up_in_lanes(func: Func, machine: ThreadFacts) -> Func:
    """The program whose warps add up vectors of sums in registers."""
    return _Spreads(machine.warp, func.annotations.get("shared_overlay", ())).func(func) if machine.warp == 32 else func


@dataclass
class _Part:
    """An access of shared memory: where, in which loops and under which tests."""

    at: Stmt
    form: Linear
    lanes: int
    around: tuple[Stmt, ...]


class _Spreads(Mutator):
    """Finds launches whose warps add up what they stored."""

    def __init__(self, warp: int, overlay: Sequence[Sequence[str]]) -> None:
        self.warp = warp
        self.group_of = {name: number for number, group in enumerate(overlay) for name in group}

    def visit_For(self, s: For) -> Stmt:
        if s.kind != "thread":
            return self.generic_stmt(s)
        shared = [x.buffer for x in walk_stmts(s) if isinstance(x, Allocate) and x.buffer.scope == "shared"]
        reader = _Reader()
        reader.walk(s, (), {})
        if reader.extents.get("threadIdx.x") != self.warp or reader.extents.get("threadIdx.z", 1) != 1:
            return s
        swaps: dict[Stmt, Stmt] = {}
        owns = []
        for buffer in shared:
            if (found := self._spread(buffer, reader)) is not None:
                owns.append(found[0])
                swaps.update(found[1])
        return _Swap(swaps, owns, self.group_of, buffers_written(s)).stmt(s) if swaps else s

    def _is_whole(self, s: For) -> bool:
        """Whether all lanes of a warp take part in a loop of threads."""
        return s.thread != "threadIdx.x" or int_value(s.extent) == self.warp

    def _spread(self, buffer: Buffer, reader: _Reader) -> tuple[Buffer, dict[Stmt, Stmt]] | None:
        stores, loads = reader.stores.get(buffer, []), reader.loads.get(buffer, [])
        tx = reader.threads["threadIdx.x"]
        if len(stores) != 1 or len(loads) != 1 or buffer.dtype.name != "float32" or reader.others.get(buffer):
            return None
        (store,), (load,), width = stores, loads, stores[0].lanes
        loop = load.around[-1] if load.around else None
        if (
            width not in (1, 2, 4, 8, 16)
            or load.lanes != 1
            or not isinstance(loop, For)
            or not isinstance(load.at, Store)
        ):
            return None
        if loop.kind == "thread" or int_value(loop.extent) != self.warp or loop.body is not load.at:
            return None
        if not all(isinstance(one, For) and one.kind == "thread" and self._is_whole(one) for one in store.around):
            return None
        parts = joined(loop)
        given, taken = dict(store.form.terms), dict(load.form.terms)
        column = taken.pop(tx, 0)
        if parts is None or parts[1] != "sum" or given.pop(tx, 0) != width or taken.pop(loop.var, 0) != width:
            return None
        inside = [one for one in load.around if isinstance(one, For) and one.thread == "threadIdx.x"]
        narrow = min((int_value(one.extent) or self.warp for one in inside), default=self.warp)
        if (
            given != taken
            or store.form.constant != load.form.constant
            or column != (width > 1)
            or width > 1
            and narrow > width
        ):
            return None
        own = Buffer(f"{buffer.name}_own", buffer.dtype, (index_expr(width),), scope="local")
        first, zero = store.at, index_expr(0)
        assert isinstance(first, Store)
        place = Ramp(zero, index_expr(1), width) if width > 1 else zero
        spread = Call(SPREAD, (Address(own, (zero,), "r"), index_expr(width)), own.dtype)
        so_far = Load(load.at.buffer, load.at.indices)
        return own, {
            first: seq(Store(own, (place,), first.value), Store(own, (zero,), spread)),
            loop: Store(load.at.buffer, load.at.indices, add(so_far, Load(own, (zero,)))),
        }


class _Reader:
    """Notes what a launch does with shared memory."""

    def __init__(self) -> None:
        self.threads: dict[str, Var] = {}
        self.extents: dict[str, int] = {}
        self.stores: dict[Buffer, list[_Part]] = {}
        self.loads: dict[Buffer, list[_Part]] = {}
        self.others: dict[Buffer, bool] = {}

    def walk(self, s: Stmt, around: tuple[Stmt, ...], known: dict[Var, Expr]) -> None:
        if isinstance(s, For) and s.thread is not None and s.thread.startswith("threadIdx"):
            if s.thread not in self.threads:
                self.threads[s.thread], self.extents[s.thread] = s.var, int_value(s.extent) or 0
            else:
                known = {**known, s.var: self.threads[s.thread]}
        if isinstance(s, Let) and s.var.dtype.is_integer:
            known = {**known, s.var: substitute(s.value, known)}
        for e in own_expressions(s):
            for one in walk(e):
                if isinstance(one, Address):
                    self.others[one.buffer] = True
                elif isinstance(one, Load) and one.buffer.scope == "shared":
                    self.loads.setdefault(one.buffer, []).append(self._part(s, one.indices, around, known))
        if isinstance(s, Store) and s.buffer.scope == "shared":
            self.stores.setdefault(s.buffer, []).append(self._part(s, s.indices, around, known))
            self.others[s.buffer] = self.others.get(s.buffer, False) or s.predicate is not None
        for child in child_stmts(s):
            self.walk(child, (*around, s) if isinstance(s, (For, If)) else around, known)

    def _part(self, s: Stmt, indices: tuple[Expr, ...], around: tuple[Stmt, ...], known: dict[Var, Expr]) -> _Part:
        index, lanes = first_of(indices[0])
        return _Part(s, linear(wide_index(substitute(index, known))), lanes, around)


class _Swap(Mutator):
    """Puts statements in the place of others, and registers inside the threads."""

    def __init__(
        self, swaps: Mapping[Stmt, Stmt], owns: Sequence[Buffer], group_of: Mapping[str, int], written: set[Buffer]
    ) -> None:
        self.swaps, self.owns, self.group_of, self.written = swaps, list(owns), group_of, written

    def stmt(self, s: Stmt) -> Stmt:
        """The statement, or what stands for it."""
        return self.swaps[s] if s in self.swaps else super().stmt(s)

    def visit_For(self, s: For) -> Stmt:
        if s.thread != "threadIdx.x" or not self.owns:
            return self.generic_stmt(s)
        owns, self.owns = self.owns, []
        body = self.stmt(s.body)
        for own in owns:
            body = Allocate(own, body)
        return s.replace(body=body)

    def visit_Seq(self, s: Seq) -> Stmt:
        """A barrier is left out where what comes after it, up to the next, touches nothing from before it."""
        kept: list[Stmt] = []
        before: set[Buffer] | None = None
        parts = [self.stmt(one) for one in s.stmts]
        for at, one in enumerate(parts):
            if not is_barrier(one):
                before = None if before is None or is_call(one, WAIT) else before | self.touched(one)
                kept.append(one)
                continue
            end = next((i for i in range(at + 1, len(parts)) if is_barrier(parts[i])), None)
            after = set().union(*map(self.touched, parts[at + 1 : end]))
            if before is None or end is None or any(self.meet(a, b) for a in before for b in after):
                kept.append(one)
                before = set()
        return seq(*kept)

    def touched(self, s: Stmt) -> set[Buffer]:
        """The memory that a statement reads or writes: shared, or such of all blocks as the launch writes."""
        used = {e.buffer for e in walk_exprs(s) if isinstance(e, (Load, Address))} | buffers_written(s)
        return {b for b in used if b.scope == "shared" or b.scope == "global" and b in self.written}

    def meet(self, a: Buffer, b: Buffer) -> bool:
        """Whether two buffers may be the same memory."""
        groups = {self.group_of.get(a.name), self.group_of.get(b.name)}
        return a is b or None not in groups and len(groups) == 2


_FETCH = """template <int32_t words> DEVICE void weft_words_fetch(uint32_t *to, const void *from) {
  #pragma unroll
  for (int32_t i = 0; i < words; i += 4) {
    const uint4 x = ((const uint4 *)from)[i / 4];
    to[i] = x.x; to[i + 1] = x.y; to[i + 2] = x.z; to[i + 3] = x.w;
  }
}"""
_GET = """DEVICE float weft_words_get(const uint32_t *x, int32_t i) {
  return __uint_as_float(i % 2 ? x[i / 2] & 0xffff0000u : x[i / 2] << 16);
}"""
_GET_OF_BYTES = """DEVICE float weft_words_get_{0}(const uint32_t *x, int32_t i) {{
  float low, high;
  asm("{{\\n.reg .b32 two;\\n.reg .b16 first, second;\\n"
      "cvt.rn.f16x2.{0}x2 two, %2;\\nmov.b32 {{first, second}}, two;\\n"
      "cvt.f32.f16 %0, first;\\ncvt.f32.f16 %1, second;\\n}}"
      : "=f"(low), "=f"(high) : "h"((uint16_t)(i & 2 ? x[i / 4] >> 16 : x[i / 4])));
  return i % 2 ? high : low;
}}"""
_MERGE = """DEVICE uint32_t weft_bits_merge(uint32_t x, uint32_t mask, uint32_t more) {
  uint32_t found;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(found) : "r"(x), "r"(mask), "r"(more));
  return found;
}"""
"""x & mask | more: what the compiler makes two instructions of where both are constants."""
WIDENS = {
    "cast": (GET, _GET),
    "from_float8_e4m3fn": (f"{GET}_e4m3", _GET_OF_BYTES.format("e4m3")),
    "from_float8_e5m2": (f"{GET}_e5m2", _GET_OF_BYTES.format("e5m2")),
}
"""How elements of a vector become float32, and how elements of words do."""


def _emit_fetch(c: Context, call: Call) -> str:
    c.helper("weft_words_fetch", _FETCH)
    to, source, count = call.args
    assert isinstance(to, Address) and isinstance(source, Address)
    return f"weft_words_fetch<{c.constant(count)}>({c.pointer(to)}, {c.pointer(source)})"


def _emit_get(helper: str, c: Context, call: Call) -> str:
    c.helper(f"weft_{call.name}", helper)
    place, index = call.args
    assert isinstance(place, Address)
    return f"weft_{call.name}({c.pointer(place)}, (int32_t)({c.value(index)}))"


def _emit_merge(c: Context, call: Call) -> str:
    c.helper(f"weft_{MERGE}", _MERGE)
    return f"weft_{MERGE}({', '.join(map(c.value, call.args))})"


EMITTERS: Mapping[str, Emitter] = {
    SPREAD: _emit_spread,
    FETCH: _emit_fetch,
    MERGE: _emit_merge,
    **{name: functools.partial(_emit_get, helper) for name, helper in WIDENS.values()},
}


def in_words(func: Func, machine: ThreadFacts) -> Func:
    """The program whose threads keep vectors of narrow floats as words, and whose rings have some turns written out."""
    if not any(isinstance(s, For) and s.annotations.get(BEGINS_EARLY) for s in walk_stmts(func.body)):
        return func
    return _Words(WIDENS if "float8" in machine.tensor_cores else ["cast"]).func(func)


class _Words(Mutator):
    """Finds registers that hold a vector of narrow floats from shared memory, all of it, and are read as float32."""

    def __init__(self, known: Collection[str]) -> None:
        self.known = known
        self.words: dict[Buffer, Buffer] = {}

    def visit_Allocate(self, s: Allocate) -> Stmt:
        if s.buffer.scope != "local" or not _is_vector(s.buffer, s.body, self.known):
            return self.generic_stmt(s)
        self.words[s.buffer] = Buffer(s.buffer.name, dtype("uint32"), (index_expr(4),), scope="local")
        return Allocate(self.words[s.buffer], self.stmt(s.body))

    def visit_For(self, s: For) -> Stmt:
        made, count = self.generic_stmt(s), int_value(s.extent) or 0
        if not isinstance(made, For) or not s.annotations.get(BEGINS_EARLY) or count % TURNS or count <= TURNS:
            return made
        turn, inner = Var(f"{s.var.name}_turn"), Var(f"{s.var.name}_part")
        body = substitute_stmt(made.body, {s.var: add(mul(turn, index_expr(TURNS)), inner)})
        return For(turn, index_expr(count // TURNS), For(inner, index_expr(TURNS), body, "unrolled"))

    def visit_Store(self, s: Store) -> Stmt:
        words = self.words.get(s.buffer)
        if words is None:
            return self.generic_stmt(s)
        assert isinstance(s.value, Load)
        index, zero = first_of(s.value.indices[0])[0], index_expr(0)
        given = (Address(words, (zero,), "w"), Address(s.value.buffer, (index,), "r"), words.shape[0])
        return Evaluate(Call(FETCH, given, INT32))

    def visit_Cast(self, e: Cast | Call) -> Expr:
        load = _widened(e)
        if load is not None and load.buffer in self.words:
            place = Address(self.words[load.buffer], (index_expr(0),), "r")
            return Call(WIDENS[_way(e)][0], (place, load.indices[0]), FLOAT32)
        return self.generic(e)

    def visit_Call(self, e: Call) -> Expr:
        if e.name == "bit_or" and e.dtype is dtype("uint32") and isinstance(e.args[1], Const):
            masked = e.args[0]
            if isinstance(masked, Call) and masked.name == "bit_and" and isinstance(masked.args[1], Const):
                return Call(MERGE, (self.expr(masked.args[0]), masked.args[1], e.args[1]), e.dtype)
        return self.visit_Cast(e)


def _way(e: Expr) -> str:
    """How an expression widens a narrow float, if it does."""
    return e.name if isinstance(e, Call) else "cast"


def _widened(e: Expr) -> Load | None:
    """The element of which an expression is the value as float32."""
    if isinstance(e, Call) and e.name in WIDENS:
        return e.args[0] if isinstance(e.args[0], Load) else None
    if isinstance(e, Cast) and e.dtype is FLOAT32 and isinstance(e.value, Load):
        return e.value if e.value.buffer.dtype is dtype("bfloat16") else None
    return None


def _is_vector(buffer: Buffer, s: Stmt, known: Collection[str]) -> bool:
    """Whether a buffer is filled by one load of 16 bytes from shared memory, and read as float32 alone, in one way."""
    many = 16 // buffer.dtype.bytes
    if [int_value(n) for n in buffer.shape[-1:]] != [many] or any(int_value(n) != 1 for n in buffer.shape[:-1]):
        return False
    stores = [x for x in walk_stmts(s) if isinstance(x, Store) and x.buffer is buffer]
    reads = sum(isinstance(e, (Load, Address)) and e.buffer is buffer for e in walk_exprs(s))
    ways = [_way(e) for e in walk_exprs(s) if (load := _widened(e)) is not None and load.buffer is buffer]
    if len(stores) != 1 or stores[0].predicate is not None or not isinstance(source := stores[0].value, Load):
        return False
    lanes = {first_of(stores[0].indices[0])[1], first_of(source.indices[0])[1]}
    plain = len(ways) == reads and len(set(ways)) == 1 and set(ways) <= set(known)
    return plain and lanes == {many} and source.buffer.scope == "shared"

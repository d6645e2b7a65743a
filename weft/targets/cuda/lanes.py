"""Threads in step that share a row keep it in their registers: no shared memory, no barriers.

    row[j * 256 + tx * 8 + e] = x[…]                own[j * 8 + e] = x[…]
    barrier()
    part[tx] = sum over j, e of row[…]              part = sum over j, e of own[…]
    barrier()                                  ->
    if tx == 0:
      sum[0] = part[0] + … + part[31]               sum = lanes_sum(part)             every thread gets it
    barrier()
    y[…] = row[…] / sum[0]                          y[…] = own[…] / sum

A kernel is rewritten as a whole or not at all. Its block is one warp or less, and each array in shared memory is one of
three: one whose elements have each a thread of their own, which alone touches them; the parts of a sum (a greatest, a
least, a product), one of each thread; or what the first thread writes and others read. The first become registers, the
second are exchanged, the third are computed by all threads. It is the last step before code is made, as that of tiles
(`fragments.py`) is: up to here the program is a plain one, which the interpreter runs and checks for races.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weft.codegen.c.context import Context, Emitter
from weft.expr.nodes import (
    EQ,
    Add,
    Address,
    Buffer,
    Call,
    Expr,
    Load,
    Max,
    Min,
    Mul,
    Ramp,
    Var,
    add,
    index_expr,
    int_value,
    mul,
)
from weft.expr.visit import free_vars, substitute, walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import Linear, is_barrier, linear
from weft.loop.visit import Mutator, child_stmts, walk_exprs, walk_stmts
from weft.targets.base import ThreadFacts
from weft.targets.cuda.fragments import wide_index
from weft.targets.gpu import model

NAME, SPREAD = "lanes_", "lanes_spread"
COMBINED: Mapping[type[Expr], tuple[str, str]] = {
    Add: ("sum", "x + y"), Mul: ("product", "x * y"), Max: ("max", "x > y || x != x ? x : y"),
    Min: ("min", "x < y || x != x ? x : y"),
}  # fmt: skip
"""What parts of threads are joined by, and the expression in C; a number that is none stays."""
EXCHANGED = {"float16", "bfloat16", "float32", "float64", "int32", "int64"}


def _emitter(name: str, combined: str) -> Emitter:
    def emit(c: Context, call: Call) -> str:
        c.helper(
            f"weft_{name}",
            f"""template <int32_t count, typename T> DEVICE T weft_{name}(T x) {{
  #pragma unroll
  for (int32_t far = count / 2; far > 0; far /= 2) {{
    const T y = __shfl_xor_sync(0xffffffffu >> (32 - count), x, far);
    x = {combined};
  }}
  return x;
}}""",
        )
        return f"weft_{name}<{c.constant(call.args[1])}>({c.value(call.args[0])})"

    return emit


_COMBINERS: Mapping[str, Emitter] = {
    f"{NAME}{name}": _emitter(f"{NAME}{name}", combined) for name, combined in COMBINED.values()
}


_SPREAD = """template <int32_t width> DEVICE float weft_lanes_spread(const float *x) {
  const int32_t lane = (int32_t)(threadIdx.x & 31u);
  float own[width];
  #pragma unroll
  for (int32_t i = 0; i < width; ++i) own[i] = x[i];
  #pragma unroll
  for (int32_t far = width / 2; far > 0; far /= 2)
    #pragma unroll
    for (int32_t i = 0; i < far; ++i) {
      const bool upper = (lane & far) != 0;
      const float kept = upper ? own[i + far] : own[i], given = upper ? own[i] : own[i + far];
      own[i] = kept + __shfl_xor_sync(0xffffffffu, given, far);
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


EMITTERS: Mapping[str, Emitter] = {**_COMBINERS, SPREAD: _emit_spread}


def add_up_in_lanes(func: Func, machine: ThreadFacts) -> Func:
    """The program whose warps add up vectors of sums in registers.

    part[ty * 256 + tx * 8 + ramp(8)] = …                own[ramp(8)] = …
    barrier()                                            own[0] = lanes_spread(own)      thread tx: of column tx % 8
    if tx < 8:                                   ->      if tx < 8:
      for l in range(32):                                  sum[0] += own[0]
        sum[0] += part[ty * 256 + l * 8 + tx]
    """
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
        return _Swap(swaps, owns, self.group_of).stmt(s) if swaps else s

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
        joined = _joined(loop)
        given, taken = dict(store.form.terms), dict(load.form.terms)
        column = taken.pop(tx, 0)
        if joined is None or joined[1] != "sum" or given.pop(tx, 0) != width or taken.pop(loop.var, 0) != width:
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
        for e in _own_expressions(s):
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
        index, lanes = _first_of(indices[0])
        return _Part(s, linear(wide_index(substitute(index, known))), lanes, around)


class _Swap(Mutator):
    """Puts statements in the place of others, and registers inside the threads."""

    def __init__(self, swaps: Mapping[Stmt, Stmt], owns: Sequence[Buffer], group_of: Mapping[str, int]) -> None:
        self.swaps, self.owns, self.group_of = swaps, list(owns), group_of

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
                before = None if before is None else before | _shared_in(one)
                kept.append(one)
                continue
            end = next((i for i in range(at + 1, len(parts)) if is_barrier(parts[i])), None)
            after = set().union(*map(_shared_in, parts[at + 1 : end]))
            if before is None or end is None or any(self.meet(a, b) for a in before for b in after):
                kept.append(one)
                before = set()
        return seq(*kept)

    def meet(self, a: Buffer, b: Buffer) -> bool:
        """Whether two buffers may be the same memory."""
        groups = {self.group_of.get(a.name), self.group_of.get(b.name)}
        return a is b or None not in groups and len(groups) == 2


def _shared_in(s: Stmt) -> set[Buffer]:
    """The shared memory that a statement reads or writes."""
    stored = {x.buffer for x in walk_stmts(s) if isinstance(x, Store)}
    return {
        b for b in stored | {e.buffer for e in walk_exprs(s) if isinstance(e, (Load, Address))} if b.scope == "shared"
    }


def keep_in_registers(func: Func, machine: ThreadFacts) -> Func:
    """The program whose rows of a warp stay in registers.

    Warps that do not meet any more are launched several to a block: launching a block takes a machine as long as many
    a row (1.3 ns of an H200, where 50,000 rows of 96 numbers took 62 µs whatever was done with them).
    """
    return _Kernels(machine.warp, model.FULL_ROUNDS * machine.multiprocessors).func(func)


class _Kernels(Mutator):
    """Finds launches, and rewrites those that can be. There should be at least so many blocks."""

    def __init__(self, warp: int, blocks: int) -> None:
        self.warp, self.blocks = warp, blocks

    def visit_For(self, s: For) -> Stmt:
        """The outermost loop of a launch."""
        if s.kind != "thread":
            return self.generic_stmt(s)
        tags = {x.thread for x in walk_stmts(s) if isinstance(x, For) and x.kind == "thread"}
        shared = [x.buffer for x in walk_stmts(s) if isinstance(x, Allocate) and x.buffer.scope == "shared"]
        if not shared or "threadIdx.x" not in tags or "vthread" in tags:
            return s
        found = _Uses(shared, self.warp).of(s)
        if found is None:
            return s
        made = _Rewriter(found).stmt(s)
        return self.together(made) if found.row is None and found.threads == self.warp else made

    def together(self, s: Stmt) -> Stmt:
        """A launch of one warp for each block as one of several: rows of threads."""
        if not isinstance(s, For) or s.thread != "blockIdx.x" or (count := int_value(s.extent)) is None:
            return s
        warps = model.ROW_WARPS
        while warps > 1 and count // warps < self.blocks:
            warps //= 2
        if warps == 1:
            return s
        block, row = Var(f"{s.var.name}_block"), Var(f"{s.var.name}_row")
        body = s.body if count % warps == 0 else If(s.var < index_expr(count), s.body)
        inside = For(row, warps, Let(s.var, block * warps + row, body), "thread", "threadIdx.y")
        return For(block, -(-count // warps), inside, "thread", "blockIdx.x")


@dataclass
class _Found:
    """What is known of a kernel: its thread, and for each array how it is used."""

    thread: Var
    threads: int
    row: Var | None = None
    """threadIdx.y: each warp has a row of its own."""
    steps: dict[Buffer, int] = field(default_factory=dict)
    """How far apart the elements of neighbouring threads are; 0 of what is common to all."""
    parts: set[Buffer] = field(default_factory=set)
    """Those that hold one part of each thread, and are read as a whole."""
    registers: dict[Buffer, Buffer] = field(default_factory=dict)
    sizes: dict[Buffer, int] = field(default_factory=dict)

    def own(self, form: Linear) -> Linear:
        """A place without what says whose it is."""
        own = form.without(self.thread)
        return own if self.row is None else own.without(self.row)

    def place(self, buffer: Buffer, form: Linear) -> Linear | None:
        """The register of an element, by its place without the thread; None where another thread may have it."""
        step = self.steps[buffer]
        terms: dict[Expr, int] = {}
        constant, far = form.constant, step * self.threads
        if step == 0:
            return form
        for term, factor in form.terms.items():
            if factor % far == 0:
                terms[term] = factor // self.threads
            elif 0 < factor < step:
                terms[term] = factor
            else:
                return None
        return Linear(terms, constant // far * step) if constant % far == 0 else None


class _Uses:
    """Reads a kernel: which of the three each of its arrays is."""

    def __init__(self, shared: list[Buffer], warp: int) -> None:
        self.shared, self.warp = shared, warp
        self.known: dict[Var, Expr] = {}
        self.extents: dict[Var, int] = {}
        self.thread: Var | None = None
        self.count = 0
        self.row: Var | None = None
        self.seen: list[tuple[Buffer, Expr, int, bool, bool, int]] = []
        """Each access: its array, its place, how many neighbours, whether it is a store, by the first thread alone, by
        how many threads."""
        self.joined: dict[Buffer, set[str]] = {}
        self.stored: set[Buffer] = set()
        self.loaded: set[Buffer] = set()

    def of(self, s: Stmt) -> _Found | None:
        """What is known; None where something is none of the three."""
        if any(isinstance(e, Address) for e in walk_exprs(s)) or not self.walk(s, False, 0):
            return None
        if self.thread is None or self.count > self.warp or self.count & (self.count - 1) or self.stored & self.loaded:
            return None
        if self.row is not None and self.count != self.warp:
            return None  # rows would share a warp
        found = _Found(self.thread, self.count, self.row)
        for buffer in self.shared:
            if not self.classify(found, buffer):
                return None
        return found

    def walk(self, s: Stmt, by_first: bool, threads: int) -> bool:
        """Notes the accesses of a statement; False where it is none that can be rewritten."""
        if isinstance(s, For):
            extent = int_value(s.extent)
            if s.thread == "threadIdx.x" and extent is not None:
                if self.thread is None:
                    self.thread, self.count = s.var, extent
                else:
                    self.known[s.var] = self.thread
                return self.walk(s.body, by_first, extent)
            if s.thread == "threadIdx.y":
                if self.row is None:
                    self.row = s.var
                elif self.row is not s.var:
                    self.known[s.var] = self.row
                return self.walk(s.body, by_first, threads)
            joined = _joined(s) if by_first else None
            if joined is not None and joined[0].buffer in self.shared and self.thread is not None:
                part = substitute(joined[0].indices[0], {**self.known, s.var: self.thread})
                self.seen.append((joined[0].buffer, part, 1, True, False, threads))
                self.joined.setdefault(joined[0].buffer, set()).add(joined[1])
                return extent == self.count
            if extent is not None:
                self.extents[s.var] = extent
        if isinstance(s, Let) and s.var.dtype.is_integer:
            self.known[s.var] = substitute(s.value, self.known)
        if isinstance(s, If) and _is_first(s.condition, self.thread, self.known):
            return s.otherwise is None and self.walk(s.then, True, threads)
        if isinstance(s, If) and self.thread in free_vars(substitute(s.condition, self.known)):
            threads = 0  # some of them, nobody knows which
        mine = [substitute(e, self.known) for e in _own_expressions(s)]
        if by_first and self.thread in free_vars(*mine):
            return False  # the others would compute something else
        own = [e for x in _own_expressions(s) for e in walk(x, Load) if isinstance(e, Load)]
        for load in own:
            self.note(load.buffer, load.indices, False, by_first, threads)
        if isinstance(s, Store):
            self.note(s.buffer, s.indices, True, by_first, threads)
        return all(self.walk(child, by_first, threads) for child in child_stmts(s))

    def note(self, buffer: Buffer, indices: tuple[Expr, ...], is_store: bool, by_first: bool, threads: int) -> None:
        """Notes an access."""
        if buffer in self.shared:
            index, lanes = _first_of(indices[0])
            self.seen.append((buffer, substitute(index, self.known), lanes, is_store, by_first, threads))
        elif buffer.scope == "global":
            (self.stored if is_store else self.loaded).add(buffer)

    def classify(self, found: _Found, buffer: Buffer) -> bool:
        """Whether an array is one of the three; then it is noted which."""
        uses = [use for use in self.seen if use[0] is buffer]
        forms = [linear(wide_index(index)) for _, index, *_ in uses]
        steps = {(form.terms.get(found.thread, 0), form.terms.get(found.row, 0)) for form in forms}  # type: ignore[arg-type]
        if len(steps) != 1 or not uses:
            return False
        ((step, row),) = steps
        found.steps[buffer] = step
        if buffer in self.joined:
            is_one = all(own.constant == 0 and not own.terms for own in map(found.own, forms))
            found.parts.add(buffer)
            found.sizes[buffer] = 1
            return (
                step == 1 and is_one and buffer.dtype.name in EXCHANGED and len(self.joined[buffer]) == 1
                and all(store and threads == self.count for _, _, _, store, _, threads in uses)
                and (found.row is None or row >= self.count)
            )  # fmt: skip
        if step == 0:
            if not all(first for _, _, _, store, first, _ in uses if store):
                return False
        elif any(first for *_, first, _ in uses) or step < 0:
            return False
        if not self.measure(found, buffer, list(zip(forms, [use[2] for use in uses]))):
            return False
        return found.row is None or row >= found.sizes[buffer] * (self.count if step else 1)

    def last(self, form: Linear) -> int:
        """The greatest number that a form of loops can be."""
        return form.constant + sum((self.extents[t] - 1) * f for t, f in form.terms.items() if isinstance(t, Var))

    def measure(self, found: _Found, buffer: Buffer, uses: list[tuple[Linear, int]]) -> bool:
        """How many registers of a thread an array takes; whether all places are known."""
        size = 0
        for form, lanes in uses:
            own = found.own(form)
            place, step = found.place(buffer, own), found.steps[buffer]
            if place is None or not all(isinstance(term, Var) and term in self.extents for term in place.terms):
                return False
            if step and self.last(Linear({t: f for t, f in own.terms.items() if f < step}, 0)) + lanes > step:
                return False
            size = max(size, self.last(place) + lanes)
        found.sizes[buffer] = size
        return True


def _is_first(test: Expr, thread: Var | None, known: Mapping[Var, Expr]) -> bool:
    """Whether a test picks the first thread."""
    if not isinstance(test, EQ) or int_value(wide_index(test.b)) != 0:
        return False
    form = linear(wide_index(substitute(test.a, known)))
    return form.constant == 0 and list(form.terms.items()) == [(thread, 1)]


def _own_expressions(s: Stmt) -> Iterator[Expr]:
    """The expressions of a statement that are not those of statements inside it."""
    if isinstance(s, Store):
        yield from (s.value, *s.indices, *(() if s.predicate is None else (s.predicate,)))
    elif isinstance(s, If):
        yield s.condition
    elif isinstance(s, (Let, Evaluate)):
        yield s.value
    elif isinstance(s, For):
        yield s.extent


def _first_of(index: Expr) -> tuple[Expr, int]:
    """The first of neighbouring places, and how many there are."""
    for ramp in walk(index, Ramp):
        if isinstance(ramp, Ramp) and int_value(wide_index(ramp.stride)) == 1:
            return ramp.base, ramp.lanes
    return index, 1


def _joined(s: For) -> tuple[Load, str, Store] | None:
    """What a loop adds up (or joins otherwise) from its first turn to its last, by what, and where."""
    store = s.body
    while isinstance(store, Let):
        store = store.body
    if not isinstance(store, Store) or type(store.value) not in COMBINED or store.predicate is not None:
        return None
    both = store.value
    for so_far, part in ((both.a, both.b), (both.b, both.a)):  # type: ignore[attr-defined]
        if isinstance(so_far, Load) and so_far.buffer is store.buffer and isinstance(part, Load):
            return part, COMBINED[type(both)][0], store
    return None


class _Rewriter(Mutator):
    """A kernel with registers in the place of shared memory."""

    def __init__(self, found: _Found) -> None:
        self.found = found
        self.known: dict[Var, Expr] = {}
        self.guards: list[Expr] = []
        for buffer, size in found.sizes.items():
            found.registers[buffer] = Buffer(buffer.name, buffer.dtype, (index_expr(size),), scope="local")

    def visit_Allocate(self, s: Allocate) -> Stmt:
        """Registers are declared inside the threads."""
        inside = self.stmt(s.body)
        return inside if s.buffer in self.found.registers else Allocate(s.buffer, inside)

    def visit_For(self, s: For) -> Stmt:
        """The loop of the threads, and one that joins parts."""
        if s.var is self.found.thread:
            body = self.stmt(s.body)
            for buffer in self.found.registers.values():
                body = Allocate(buffer, body)
            return s.replace(body=body)
        if s.thread == "threadIdx.x":
            self.known[s.var] = self.found.thread
        if s.thread == "threadIdx.y" and self.found.row is not None and s.var is not self.found.row:
            self.known[s.var] = self.found.row
        joined = _joined(s)
        if joined is None or joined[0].buffer not in self.found.parts:
            return self.generic_stmt(s)
        part, name, store = joined
        own = Load(self.found.registers[part.buffer], (index_expr(0),))
        exchanged = Call(f"{NAME}{name}", (own, index_expr(self.found.threads)), own.dtype)
        so_far = Load(store.buffer, store.indices)
        return Store(store.buffer, store.indices, type(store.value)(so_far, exchanged))  # type: ignore[call-arg]

    def visit_Let(self, s: Let) -> Stmt:
        """An index that was worked out before is seen through."""
        if s.var.dtype.is_integer:
            self.known[s.var] = substitute(s.value, self.known)
        return self.generic_stmt(s)

    def visit_If(self, s: If) -> Stmt:
        """What only the first thread did every thread does, but for what goes to memory."""
        if not _is_first(s.condition, self.found.thread, self.known):
            return self.generic_stmt(s)
        self.guards.append(s.condition)
        inside = self.stmt(s.then)
        self.guards.pop()
        return inside

    def visit_Seq(self, s: Seq) -> Stmt:
        """No thread waits for another any more."""
        return seq(*[self.stmt(one) for one in s.stmts if not is_barrier(one)])

    def visit_Store(self, s: Store) -> Stmt:
        """A store to a register, or to memory."""
        value, predicate = self.expr(s.value), None if s.predicate is None else self.expr(s.predicate)
        if s.buffer in self.found.registers:
            return Store(self.found.registers[s.buffer], [self.place(s.buffer, s.indices)], value, predicate)
        done = Store(s.buffer, [self.expr(index) for index in s.indices], value, predicate)
        return If(self.guards[-1], done) if self.guards and s.buffer.scope == "global" else done

    def visit_Load(self, e: Load) -> Expr:
        """A load from a register, or from memory."""
        if e.buffer in self.found.registers:
            return Load(self.found.registers[e.buffer], [self.place(e.buffer, e.indices)])
        return self.generic(e)

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """The register of an element, or of several that are neighbours."""
        first, lanes = _first_of(indices[0])
        if buffer in self.found.parts:
            return index_expr(0)
        form = linear(wide_index(substitute(first, self.known)))
        place = self.found.place(buffer, self.found.own(form))
        assert place is not None
        flat: Expr = index_expr(place.constant)
        for term, factor in place.terms.items():
            flat = add(flat, mul(term, index_expr(factor)))
        return Ramp(flat, index_expr(1), lanes) if lanes > 1 else flat

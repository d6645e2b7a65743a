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

from collections.abc import Iterator, Mapping
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

NAME = "lanes_"
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


EMITTERS: Mapping[str, Emitter] = {
    f"{NAME}{name}": _emitter(f"{NAME}{name}", combined) for name, combined in COMBINED.values()
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
            parts = joined(s) if by_first else None
            if parts is not None and parts[0].buffer in self.shared and self.thread is not None:
                part = substitute(parts[0].indices[0], {**self.known, s.var: self.thread})
                self.seen.append((parts[0].buffer, part, 1, True, False, threads))
                self.joined.setdefault(parts[0].buffer, set()).add(parts[1])
                return extent == self.count
            if extent is not None:
                self.extents[s.var] = extent
        if isinstance(s, Let) and s.var.dtype.is_integer:
            self.known[s.var] = substitute(s.value, self.known)
        if isinstance(s, If) and _is_first(s.condition, self.thread, self.known):
            return s.otherwise is None and self.walk(s.then, True, threads)
        if isinstance(s, If) and self.thread in free_vars(substitute(s.condition, self.known)):
            threads = 0  # some of them, nobody knows which
        mine = [substitute(e, self.known) for e in own_expressions(s)]
        if by_first and self.thread in free_vars(*mine):
            return False  # the others would compute something else
        own = [e for x in own_expressions(s) for e in walk(x, Load) if isinstance(e, Load)]
        for load in own:
            self.note(load.buffer, load.indices, False, by_first, threads)
        if isinstance(s, Store):
            self.note(s.buffer, s.indices, True, by_first, threads)
        return all(self.walk(child, by_first, threads) for child in child_stmts(s))

    def note(self, buffer: Buffer, indices: tuple[Expr, ...], is_store: bool, by_first: bool, threads: int) -> None:
        """Notes an access."""
        if buffer in self.shared:
            index, lanes = first_of(indices[0])
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


def own_expressions(s: Stmt) -> Iterator[Expr]:
    """The expressions of a statement that are not those of statements inside it."""
    if isinstance(s, Store):
        yield from (s.value, *s.indices, *(() if s.predicate is None else (s.predicate,)))
    elif isinstance(s, If):
        yield s.condition
    elif isinstance(s, (Let, Evaluate)):
        yield s.value
    elif isinstance(s, For):
        yield s.extent


def first_of(index: Expr) -> tuple[Expr, int]:
    """The first of neighbouring places, and how many there are."""
    for ramp in walk(index, Ramp):
        if isinstance(ramp, Ramp) and int_value(wide_index(ramp.stride)) == 1:
            return ramp.base, ramp.lanes
    return index, 1


def joined(s: For) -> tuple[Load, str, Store] | None:
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
        parts = joined(s)
        if parts is None or parts[0].buffer not in self.found.parts:
            return self.generic_stmt(s)
        part, name, store = parts
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
        first, lanes = first_of(indices[0])
        if buffer in self.found.parts:
            return index_expr(0)
        form = linear(wide_index(substitute(first, self.known)))
        place = self.found.place(buffer, self.found.own(form))
        assert place is not None
        flat: Expr = index_expr(place.constant)
        for term, factor in place.terms.items():
            flat = add(flat, mul(term, index_expr(factor)))
        return Ramp(flat, index_expr(1), lanes) if lanes > 1 else flat

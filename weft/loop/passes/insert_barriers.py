"""Barriers between dependent accesses of shared memory by different threads of a block.

    thread threadIdx.x for tx in range(32):        thread threadIdx.x for tx in range(32):
        for k in range(8):                             for k in range(8):
            s[tx] = A[k, tx]                   ->          barrier()          s of the last iteration is no longer read
            C[tx] = C[tx] + s[31 - tx]                     s[tx] = A[k, tx]
                                                           barrier()          s is complete
                                                           C[tx] = C[tx] + s[31 - tx]

First, where a block has several thread nests beside each other, they become one: the loops of the launch go around
all of them, what belongs to no thread runs on thread 0 (on a whole warp where it works on registers that a warp holds
together, such as the tiles of tensor cores), and the loops inside only choose which threads take part.
Then the statements are walked in order with the accesses since the last barrier at hand. An access that meets one of
them with a write among the two gets a barrier before it, unless both touch, in every thread, only elements of that
thread's own, or one thread does both; where indices have quotients and remainders of a thread or a loop, those are
coordinates of it, like digits. What a statement writes does not meet what it wrote: instances of a block that threads
run side by side write elements of their own, and before they are written anew somebody reads them. A loop is walked a
second time with what its first iteration left behind. A barrier stands only where every thread comes by: a branch or
loop that depends on the thread is cut in two around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.core.dtypes import INT32
from weft.core.errors import TargetError
from weft.expr.nodes import (
    EQ,
    Address,
    Buffer,
    Call,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Var,
    equal,
    int_value,
    logical_and,
    logical_not,
)
from weft.expr.visit import free_vars, walk
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import (
    BARRIER,
    Copier,
    Linear,
    Names,
    can_trap,
    is_barrier,
    is_empty,
    linear,
    linear_interval,
    rename_repeated,
)
from weft.loop.regions import conjuncts
from weft.loop.visit import Mutator, child_exprs, child_stmts, rebuild_stmt, walk_exprs, walk_stmts


def insert_barriers(func: Func) -> Func:
    """The program with barriers where different threads depend on each other through shared memory."""
    if not any(isinstance(s, For) and _is_thread(s) for s in walk_stmts(func.body)):
        return func
    func = rename_repeated(func)
    return _Blocks(Names(func)).func(func)


def _is_thread(s: For) -> bool:
    return s.kind == "thread" and s.thread is not None and s.thread.startswith("threadIdx")


def barrier() -> Stmt:
    """The statement that waits for every thread of the block."""
    return Evaluate(Call(BARRIER, (), INT32))


# ------------------------------------------------------------------------------------------------ one launch


class _Blocks(Mutator):
    """Finds the thread loops of each block, makes one launch of them, and puts the barriers in."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def visit_For(self, s: For) -> Stmt:
        if s.kind != "thread" or s.thread == "vthread" or _has_blocks(s.body):
            return self.generic_stmt(s)
        if _is_thread(s):
            return self._block(s)
        body = self._block(s.body)
        return s if body is s.body else s.replace(body=body)

    def _block(self, body: Stmt) -> Stmt:
        """The body of a block (or a launch without blocks)."""
        if isinstance(body, Allocate) and not _is_held(body.buffer):
            inside = self._block(body.body)
            return body if inside is body.body else Allocate(body.buffer, inside)
        if not _has_shared(body) and _is_launch(body):
            return body
        tags = _tags(body)
        if not tags:
            return body
        launch = _chain(body)
        united = set(launch) != set(tags) or any(_size(launch[tag]) < tags[tag] for tag in tags)
        if united:
            moved, body = _without_allocations(body)
            body, launch = _launch(body, tags, self.names)
            body = self._synchronised(body, launch, _Walker(launch, tags, self.names, ("shared", "global")))
            for buffer in reversed(moved):
                body = Allocate(buffer, body)
            return body
        return self._synchronised(body, launch, _Walker(launch, tags, self.names, ("shared",)))

    def _synchronised(self, nest: Stmt, launch: Mapping[str, For], walker: _Walker) -> Stmt:
        """The nest with barriers in the body of its launch."""
        loops: list[For] = []
        body = nest
        while isinstance(body, For) and launch.get(body.thread or "") is body:
            loops.append(body)
            body = body.body
        walker.extents = {
            s.var: extent
            for s in walk_stmts(body)
            if isinstance(s, For) and (extent := int_value(s.extent)) is not None
        }
        done = walker.stmt(body)
        if done is body:
            return nest
        for loop in reversed(loops):
            done = loop.replace(body=done)
        return done


def _has_blocks(s: Stmt) -> bool:
    return any(isinstance(x, For) and (x.thread or "").startswith("blockIdx") for x in walk_stmts(s))


def _size(loop: For) -> int:
    size = int_value(loop.extent)
    if size is None:
        raise TargetError(
            f"the loop {loop.var.name} is bound to {loop.thread} but its extent is not constant: {loop.extent!r}"
        )
    return size


def _tags(s: Stmt) -> dict[str, int]:
    """Each thread dimension used inside, with its largest extent."""
    tags: dict[str, int] = {}
    for loop in walk_stmts(s):
        if isinstance(loop, For) and _is_thread(loop):
            assert loop.thread is not None
            tags[loop.thread] = max(tags.get(loop.thread, 1), _size(loop))
    return dict(sorted(tags.items()))


def _chain(s: Stmt) -> dict[str, For]:
    """The thread loops that stand directly in each other from the top."""
    found: dict[str, For] = {}
    while isinstance(s, For) and _is_thread(s) and s.thread not in found:
        assert s.thread is not None
        found[s.thread] = s
        s = s.body
    return found


def _is_launch(s: Stmt) -> bool:
    """Whether the thread loops at the top are all there are."""
    launch = _chain(s)
    return all(launch.get(x.thread or "") is x for x in walk_stmts(s) if isinstance(x, For) and _is_thread(x))


def _has_shared(s: Stmt) -> bool:
    return any(isinstance(e, Load) and e.buffer.scope == "shared" for e in walk_exprs(s)) or any(
        isinstance(x, Store) and x.buffer.scope == "shared" for x in walk_stmts(s)
    )


def _without_allocations(body: Stmt) -> tuple[list[Buffer], Stmt]:
    """Allocations that threads share, taken out of a block's body, so that they stand around the launch."""
    remover = _AllocationRemover()
    body = remover.stmt(body)
    return remover.moved, body


class _AllocationRemover(Mutator):
    """Takes out allocations of shared memory, and other allocations that stand outside of the thread loops."""

    def __init__(self) -> None:
        self.moved: list[Buffer] = []
        self.in_thread = False

    def visit_For(self, s: For) -> Stmt:
        outer = self.in_thread
        self.in_thread = outer or _is_thread(s)
        done = self.generic_stmt(s)
        self.in_thread = outer
        return done

    def visit_Allocate(self, s: Allocate) -> Stmt:
        private = s.buffer.scope == "local" or _is_held(s.buffer) or (self.in_thread and s.buffer.scope != "shared")
        if private or free_vars(*s.buffer.shape):
            return self.generic_stmt(s)
        self.moved.append(s.buffer)
        return self.stmt(s.body)


def _is_held(buffer: Buffer) -> bool:
    """Whether a buffer is registers that several threads hold together."""
    return "." in buffer.scope


def _is_collective(s: Stmt) -> bool:
    """Whether a statement works on registers that the threads of a warp (threadIdx.x) hold together."""
    return any(isinstance(e, (Address, Load)) and _is_held(e.buffer) for e in walk_exprs(s)) or any(
        isinstance(x, Store) and _is_held(x.buffer) for x in walk_stmts(s)
    )


def _launch(body: Stmt, tags: Mapping[str, int], names: Names) -> tuple[Stmt, dict[str, For]]:
    """One loop for each dimension around the whole body; what some dimension does not run over runs at its index 0."""
    variables = {tag: Var(names.fresh(tag.replace("threadIdx.", "t"))) for tag in tags}

    def guard(s: Stmt, have: frozenset[str]) -> Stmt:
        if isinstance(s, For) and _is_thread(s):
            return s.replace(body=guard(s.body, have | {s.thread or ""}))
        if any(isinstance(inner, For) and _is_thread(inner) for inner in walk_stmts(s)) or isinstance(
            s, (Allocate, Let)
        ):
            return rebuild_stmt(s, lambda child: guard(child, have), lambda e: e)
        skipped = {*have, "threadIdx.x"} if _is_collective(s) else have
        missing = [equal(variables[tag], 0) for tag in tags if tag not in skipped and tags[tag] > 1]
        return If(logical_and(*missing), s) if missing and not is_barrier(s) and not is_empty(s) else s

    result = guard(body, frozenset())
    launch: dict[str, For] = {}
    for tag, size in tags.items():
        result = launch[tag] = For(variables[tag], size, result, "thread", tag)
    return result, launch


# --------------------------------------------------------------------------------------------------- accesses


def _digits(term: Expr) -> tuple[Expr, int, int | None] | None:
    """What a term takes digits of, from which place on, and how many values they have (None: all above)."""
    modulus: int | None = None
    if isinstance(term, FloorMod):
        modulus = int_value(term.b)
        if modulus is None or modulus < 1:
            return None
        if not isinstance(term.a, FloorDiv):
            return term.a, 1, modulus
        term = term.a
    divisor = int_value(term.b) if isinstance(term, FloorDiv) else None
    if divisor is None or divisor < 1 or not isinstance(term, FloorDiv):
        return None
    if modulus is None and isinstance(term.a, FloorMod):  # (v % 64) // 8 is v // 8 % 8
        modulus = int_value(term.a.b)
        return None if modulus is None or modulus < 1 or modulus % divisor else (term.a.a, divisor, modulus // divisor)
    return term.a, divisor, modulus


class _Dim:
    """One index: terms that are the same for both sides of a comparison, plus anything in low..high.

    `loose` are loop variables that each side has a value of its own of: the variable's factor and extent.
    """

    __slots__ = ("terms", "low", "high", "loose")

    def __init__(
        self, terms: Mapping[Expr, int], low: int, high: int, loose: Mapping[Var, tuple[int, int]] | None = None
    ) -> None:
        self.terms = dict(terms)
        self.low = low
        self.high = high
        self.loose = dict(loose or {})

    def widened(self, over: Mapping[Var, int | None]) -> _Dim | None:
        """The index over all values of a loop's variable and of its digits; None where they are not known."""
        if not any(var in self.terms for var in over):
            return None if any(var in free_vars(term) for term in self.terms for var in over) else self
        terms, loose = dict(self.terms), dict(self.loose)
        for var, extent in over.items():
            factor = terms.pop(var, None)
            if factor is not None and extent is None:
                return None
            if factor is not None and extent is not None:
                loose[var] = (factor, extent)
        return _Dim(terms, self.low, self.high, loose)

    def interval(self) -> tuple[int, int]:
        """The least and the greatest value beside the terms."""
        reaches = [factor * (extent - 1) for factor, extent in self.loose.values()]
        return self.low + sum(min(r, 0) for r in reaches), self.high + sum(max(r, 0) for r in reaches)


class _Access:
    """A read or write of a buffer since the last barrier; a dimension that is None may be anywhere.

    `single` are the thread dimensions of which only index 0 does it. `maker` is the statement that writes.
    """

    __slots__ = ("buffer", "write", "dims", "single", "maker")

    def __init__(
        self, buffer: Buffer, write: bool, dims: Sequence[_Dim | None], single: frozenset[Expr] = frozenset(),
        maker: Stmt | None = None,
    ) -> None:  # fmt: skip
        self.buffer = buffer
        self.write = write
        self.dims = tuple(dims)
        self.single = single
        self.maker = maker

    def widened(self, over: Mapping[Var, int | None]) -> _Access:
        dims = [dim and dim.widened(over) for dim in self.dims]
        return _Access(self.buffer, self.write, dims, self.single, self.maker)


class _Walker(Mutator):
    """Puts barriers into what all threads of one launch run. `pending` are the accesses since the last barrier."""

    def __init__(
        self, launch: Mapping[str, For], sizes: Mapping[str, int], names: Names, scopes: tuple[str, ...]
    ) -> None:
        self.launch = launch
        self.sizes = sizes
        self.names = names
        self.scopes = scopes
        self.threads = {loop.var: sizes[tag] for tag, loop in launch.items()}
        self.parts: dict[tuple[Var, int, int], Var] = {}
        self.coordinates: dict[Var, int] = dict(self.threads)
        self.aliases: dict[Var, Var] = {}
        self.depends: set[Var] = set(self.threads)
        self.extents: dict[Var, int] = {}
        self.pending: list[_Access] = []
        self.single: frozenset[Expr] = frozenset()
        self.inserted = 0
        self.touched: dict[Stmt, dict[Buffer, tuple[bool, int]]] = {}

    # ------------------------------------------------------------------------------------ what is accessed

    def _launched(self, s: For) -> bool:
        """Whether a loop runs over a thread dimension of the launch."""
        return s.kind == "thread" and s.thread in self.launch

    def _index(self, e: Expr) -> _Dim | None:
        form = linear(e)
        terms: dict[Expr, int] = {}
        for term, factor in form.terms.items():
            same = self.aliases.get(term, term) if type(term) is Var else self._part(term)
            if same is None:
                return None
            if self.coordinates.get(same) != 1:  # whose only value is 0
                terms[same] = terms.get(same, 0) + factor
        return _Dim(Linear(terms, 0).terms, form.constant, form.constant)

    def _part(self, term: Expr) -> Var | None:
        """The variable that (v // divisor) % modulus is, or either alone, of a thread or a loop; None otherwise."""
        found = _digits(term)
        if found is None or type(found[0]) is not Var:
            return None
        owner, (divisor, modulus) = self.aliases.get(found[0], found[0]), found[1:]
        known = self.threads if owner in self.threads else self.extents
        if owner not in known:
            return None
        left = -(-known[owner] // divisor)
        modulus = left if modulus is None else modulus
        key = (owner, divisor, modulus)
        if key not in self.parts:
            self.parts[key] = Var(f"{owner.name}_{divisor}_{modulus}")
            sizes = self.coordinates if known is self.threads else self.extents
            sizes[self.parts[key]] = min(left, modulus)
        return self.parts[key]

    def _over(self, var: Var, extent: int | None) -> dict[Var, int | None]:
        """A loop's variable and its digits, with as many values as each has."""
        parts = [part for (owner, *_), part in self.parts.items() if owner is var]
        return {var: extent, **{part: self.extents.get(part) for part in parts}}

    def _is_covered(self, thread: Var, covered: set[Expr]) -> bool:
        """Whether equal indices mean equal threads: by the thread itself, or by parts that are all of its digits."""
        if thread in covered:
            return True
        reach, size = 1, self.threads[thread]
        while reach < size:
            further = [
                divisor * modulus
                for (owner, divisor, modulus), part in self.parts.items()
                if owner is thread and divisor == reach and modulus > 1 and part in covered
            ]
            if not further:
                return False
            reach = max(further)
        return True

    def _reads(self, expressions: Iterable[Expr]) -> list[_Access]:
        found = []
        for e in expressions:
            for node in walk(e):
                if isinstance(node, Load) and node.buffer.scope in self.scopes:
                    found.append(_Access(node.buffer, False, [self._index(i) for i in node.indices], self.single))
                elif isinstance(node, Address) and node.buffer.scope in self.scopes:
                    found.append(_Access(node.buffer, "w" in node.mode, [None] * len(node.indices), self.single))
        return found

    def _accesses(self, s: Stmt) -> list[_Access]:
        """Everything a statement accesses, seen from outside of it."""
        found = self._reads(child_exprs(s))
        if isinstance(s, Store) and s.buffer.scope in self.scopes:
            found.append(_Access(s.buffer, True, [self._index(i) for i in s.indices], self.single, s))
        if isinstance(s, For) and self._launched(s):
            self.aliases[s.var] = self.launch[s.thread or ""].var
        around, self.single = self.single, self.single | self._chosen(s)
        for child in child_stmts(s):
            found += self._accesses(child)
        self.single = around
        if isinstance(s, For) and s.var not in self.aliases:
            extent = int_value(s.extent)
            found = [access.widened(self._over(s.var, extent)) for access in found]
        elif isinstance(s, Let):
            found = [access.widened(self._over(s.var, None)) for access in found]
        return found

    def _chosen(self, s: Stmt) -> frozenset[Expr]:
        """The thread dimensions of which a statement lets index 0 alone come inside."""
        if isinstance(s, For) and self._launched(s) and _size(s) == 1:
            return frozenset({self.launch[s.thread or ""].var})
        if not isinstance(s, If) or s.otherwise is not None:
            return frozenset()
        tests = [test for test in conjuncts(s.condition) if isinstance(test, EQ) and int_value(test.b) == 0]
        variables = [self.aliases.get(test.a, test.a) for test in tests if type(test.a) is Var]
        return frozenset(v for v in variables if v in self.threads)

    def _conflict(self, accesses: Sequence[_Access]) -> bool:
        for old in self.pending:
            for new in accesses:
                if old.buffer is not new.buffer or not (old.write or new.write):
                    continue
                own = old.maker is not None and old.maker is new.maker
                if not own and not self._apart(old, new):
                    return True
        return False

    def _apart(self, a: _Access, b: _Access) -> bool:
        """Whether no thread touches in `a` an element that another thread touches in `b`."""
        covered: set[Expr] = set(a.single & b.single)
        for pair in zip(a.dims, b.dims):
            both = self._comparable(*pair)
            if both is None:
                continue
            left, right = both
            own: dict[Expr, int] = {term: factor for term, factor in left.terms.items() if term in self.coordinates}
            reach = linear_interval(Linear(own, 0), {v: (0, size - 1) for v, size in self.coordinates.items()})
            (left_low, left_high), (right_low, right_high) = left.interval(), right.interval()
            if reach is not None and (
                left_high + reach[1] < right_low + reach[0] or right_high + reach[1] < left_low + reach[0]
            ):
                return True
            if self._spacing(own) > max(left_high, right_high) - min(left_low, right_low):
                covered |= set(own)
            elif left.loose == right.loose:
                spread = max(left.high, right.high) - min(left.low, right.low)
                if self._spacing(own, left.loose) > spread:
                    covered |= set(own)
        return all(self._is_covered(var, covered) for var, size in self.threads.items() if size > 1)

    def _comparable(self, left: _Dim | None, right: _Dim | None) -> tuple[_Dim, _Dim] | None:
        """Both indices in the same terms: where they differ in a loop variable, over all of its values."""
        if left is None or right is None:
            return None
        for term in {**left.terms, **right.terms}:
            if left is not None and right is not None and left.terms.get(term) != right.terms.get(term):
                if not isinstance(term, Var) or term in self.coordinates:
                    return None
                extent = self.extents.get(term)
                left, right = left.widened({term: extent}), right.widened({term: extent})
        return None if left is None or right is None else (left, right)

    def _spacing(self, own: Mapping[Expr, int], loose: Mapping[Var, tuple[int, int]] | None = None) -> int:
        """How far apart the values of Σ factor·thread are for different threads at least; 0 where two may coincide.

        `loose` are further variables of the sum.
        """
        sizes = [(abs(factor), self.coordinates[term]) for term, factor in own.items() if isinstance(term, Var)]
        ordered = sorted(sizes + [(abs(factor), extent) for factor, extent in (loose or {}).values()])
        filled = 0
        for factor, size in ordered:
            if factor <= filled:
                return 0
            filled = factor * size - 1 if size > 1 else filled
        return ordered[0][0] if ordered else 0

    # ------------------------------------------------------------------------------------------ statements

    def _step(self, s: Stmt, accesses: list[_Access]) -> Stmt:
        """A statement that is not looked into, with a barrier before it where it needs one."""
        if not accesses:
            return s
        if self._conflict(accesses):
            self.pending = accesses
            self.inserted += 1
            return seq(barrier(), s)
        self.pending = self.pending + accesses
        return s

    def visit_Store(self, s: Store) -> Stmt:
        return self._step(s, self._accesses(s))

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        if is_barrier(s):
            self.pending = []
            return s
        return self._step(s, self._accesses(s))

    def visit_Let(self, s: Let) -> Stmt:
        head = self._reads([s.value])
        needed = self._conflict(head)
        if needed:
            self.pending = []
            self.inserted += 1
        self.pending = self.pending + head
        if self._varies(s.value):
            self.depends.add(s.var)
        body = self.stmt(s.body)
        self.pending = [access.widened(self._over(s.var, None)) for access in self.pending]
        return seq(barrier() if needed else None, s if body is s.body else Let(s.var, s.value, body))

    def visit_Allocate(self, s: Allocate) -> Stmt:
        return self.generic_stmt(s)

    def visit_Seq(self, s: Seq) -> Stmt:
        return self.generic_stmt(s)

    def visit_If(self, s: If) -> Stmt:
        if self._varies(s.condition):
            return self._divergent(s)
        if not self._needs_inside(s):
            return self._step(s, self._accesses(s))
        first = self._step(If(s.condition, Seq(())), self._reads([s.condition]))
        start = self.pending
        then = self.stmt(s.then)
        after = self.pending
        self.pending = start
        otherwise = None if s.otherwise is None else self.stmt(s.otherwise)
        self.pending = after + [access for access in self.pending if not any(access is old for old in after)]
        leading = barrier() if isinstance(first, Seq) else None
        return seq(leading, If(s.condition, then, otherwise))

    def visit_For(self, s: For) -> Stmt:
        if self._launched(s):
            self.aliases[s.var] = self.launch[s.thread or ""].var
            self.depends.add(s.var)
            if _size(s) < self.sizes[s.thread or ""]:
                return self._divergent(s)
            if not self._needs_inside(s):
                return self._step(s, self._accesses(s))
            body = self.stmt(s.body)
            return s if body is s.body else s.replace(body=body)
        if self._varies(s.extent):
            return self._divergent(s)
        if not self._needs_inside(s):
            return self._step(s, self._accesses(s))
        return self._loop(s)

    def _loop(self, s: For) -> Stmt:
        """A loop that all threads run together: twice, the second time after what the first left behind."""
        extent = int_value(s.extent)
        if extent is not None:
            self.extents[s.var] = extent
        body = self.stmt(s.body)
        self.pending = [access.widened(self._over(s.var, extent)) for access in self.pending]
        if extent is None or extent > 1:
            body = self.stmt(body)
            self.pending = [access.widened(self._over(s.var, extent)) for access in self.pending]
        return s if body is s.body else s.replace(body=body)

    def _varies(self, e: Expr) -> bool:
        """Whether threads may see different values."""
        return any((type(node) is Var and node in self.depends) or isinstance(node, Load) for node in walk(e))

    # ------------------------------------------------------------------------ where not all threads come by

    def _divergent(self, s: If | For) -> Stmt:
        """A branch or loop that some threads skip: a barrier goes before it; one inside cuts it in two."""
        if not self._needs_inside(s):
            return self._step(s, self._accesses(s))
        if isinstance(s, If) and (s.otherwise is not None or any(isinstance(n, Load) for n in walk(s.condition))):
            chosen = Var(self.names.fresh("chosen"), s.condition.dtype)
            parts = [If(chosen, s.then)]
            if s.otherwise is not None:
                parts.append(If(logical_not(chosen), s.otherwise))
            self.depends.add(chosen)
            return self.stmt(Let(chosen, s.condition, seq(*parts)))
        return self.stmt(self._sink(s, s.then if isinstance(s, If) else s.body))

    def _touches(self, s: Stmt) -> dict[Buffer, tuple[bool, int]]:
        """The buffers that a statement accesses: whether it reads them, and how many places in it write them."""
        if s not in self.touched:
            found: dict[Buffer, tuple[bool, int]] = {}

            def note(buffer: Buffer, is_read: bool, writes: int) -> None:
                had, count = found.get(buffer, (False, 0))
                found[buffer] = had or is_read, count + writes

            for e in child_exprs(s):
                for node in walk(e):
                    if isinstance(node, Load) and node.buffer.scope in self.scopes:
                        note(node.buffer, True, 0)
                    elif isinstance(node, Address) and node.buffer.scope in self.scopes:
                        note(node.buffer, True, int("w" in node.mode))
            if isinstance(s, Store) and s.buffer.scope in self.scopes:
                note(s.buffer, False, 1)
            for child in child_stmts(s):
                for buffer, (is_read, writes) in self._touches(child).items():
                    note(buffer, is_read, writes)
            self.touched[s] = found
        return self.touched[s]

    def _needs_inside(self, s: If | For) -> bool:
        """Whether something inside needs a barrier between its own statements."""
        if not any(writes and (is_read or writes > 1) for is_read, writes in self._touches(s).values()):
            return False
        trial = _Walker(self.launch, self.sizes, self.names, self.scopes)
        trial.aliases, trial.depends, trial.extents = dict(self.aliases), set(self.depends), self.extents
        trial.parts, trial.coordinates, trial.touched = self.parts, self.coordinates, self.touched
        trial.single = self.single | self._chosen(s)
        if isinstance(s, If):
            for branch in (s.then, s.otherwise):
                trial.pending = []
                if branch is not None:
                    trial.stmt(branch)
        elif _is_thread(s):
            trial.stmt(s.body)
        else:
            trial._loop(s)
        return trial.inserted > 0

    def _sink(self, wrapper: If | For, inner: Stmt) -> Stmt:
        """The wrapper moved inward by one statement, so that what was inside it stands under uniform control."""

        def wrap(part: Stmt) -> Stmt:
            if isinstance(wrapper, If):
                return If(wrapper.condition, part)
            return Copier(self.names).stmt(wrapper.replace(body=part))

        if isinstance(wrapper, For) and not _is_thread(wrapper):
            inner = Seq(())  # a loop that runs a different number of times in each thread cannot be cut
        if isinstance(inner, Seq) and len(inner.stmts) > 1:
            return seq(*[wrap(part) for part in inner.stmts])
        uses = isinstance(wrapper, For) and any(wrapper.var in free_vars(e) for e in child_exprs(inner))
        if isinstance(inner, For) and not uses and not can_trap(inner.extent):
            return inner.replace(body=wrap(inner.body))
        if isinstance(inner, Allocate):
            return Allocate(inner.buffer, wrap(inner.body))
        if isinstance(inner, Let) and not uses and not can_trap(inner.value):
            return Let(inner.var, inner.value, wrap(inner.body))
        if isinstance(inner, If) and isinstance(wrapper, If) and inner.otherwise is None:
            return If(logical_and(wrapper.condition, inner.condition), inner.then)
        raise TargetError(
            "shared memory is written by one thread and read by another inside control flow that not every thread "
            "takes, so that no barrier can stand there; move the condition or the loop into the accesses"
        )

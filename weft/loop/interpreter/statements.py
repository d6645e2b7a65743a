"""Statements of loop IR as Python text: loops, blocks, threads, allocations, stores.

    for i in parallel(0, n):          K[0] += 1; R1 = K[0]                  (time: see memory.py)
        C[i] = A[i]             ->    for i in range(n):
                                          S1 = K[0] = K[0] + 1
                                          … checks against R1 and S1 …
                                          M1[i] = t1

A loop over threads whose body waits becomes a generator function, one generator a thread (see threads.py). Loops that
nest deeper than Python allows in one function go on in a function inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from weft.core.errors import InterpreterError
from weft.expr.intrinsics import PURE
from weft.expr.nodes import Buffer, Call, Expr
from weft.loop.interpreter.emitter import THREADS, UNBOUNDED, Level, Place, Value, is_atom, is_local, is_shared, literal
from weft.loop.interpreter.expressions import Expressions
from weft.loop.interpreter.failures import Failures
from weft.loop.interpreter.memory import compact_strides, memory_size
from weft.loop.interpreter.placement import (
    COLLECTIVE,
    Allocation,
    Waits,
    is_blocking,
    place_intermediates,
    shared_inside,
    written_buffers,
)
from weft.loop.interpreter.values import TABLES
from weft.loop.ir import Allocate, Block, Evaluate, For, Func, If, Let, Seq, Stmt, Store
from weft.loop.passes.support import GRID_BARRIER, is_barrier, is_call, meets_grid
from weft.loop.visit import child_stmts, walk_stmts

_DEEPEST = 12
_AT_ONCE = ("parallel", "vectorized", "thread")


class Statements(Expressions):
    """Translates statements."""

    def __init__(self, func: Func, failures: Failures, check: bool) -> None:
        super().__init__(failures, check, bool(func.annotations.get("flat")))
        self.waits = Waits(func)
        self.written = written_buffers(func)
        self.homes: dict[For | None, list[Allocation]] = place_intermediates(func)
        self.in_threads = False
        self.in_grid = False
        self.path: list[str] = []
        loops = [stmt for stmt in walk_stmts(func.body) if isinstance(stmt, For)]
        self.level_count = _deepest(func.body) if check and any(loop.kind in _AT_ONCE for loop in loops) else 0

    def statement(self, s: Stmt) -> None:
        """Translates one statement."""
        _HANDLERS[type(s)](self, s)

    # --------------------------------------------------------------------------------------------------- memory

    def declare(self, buffer: Buffer, dims: Sequence[Value], strides: Sequence[Value], size: Value) -> Place:
        """A place for a buffer, from here on."""
        self.counter += 1
        place = Place(self.counter, buffer, dims, strides, size)
        place.tracked = self.check and buffer in self.written and self.level_count > 0
        place.depth = len(self.levels)
        self.places[buffer] = place
        return place

    def open(self, place: Place) -> None:
        """Lines that give the parts of a new instance their names."""
        n = place.number
        self.emit(f"M{n} = m{n}.view")
        if place.undefined:
            self.emit(f"I{n} = m{n}.initialized")
        if place.tracked:
            self.emit(f"W{n} = m{n}.writer")
            for level in range(self.level_count):
                self.emit(f"Q{n}_{level} = m{n}.readers[{level}]")

    def allocate(self, allocation: Allocation, body: Stmt) -> None:
        """Fresh memory for an intermediate that lives in `body`."""
        buffer = allocation.buffer
        dims = [self.atom(self.expression(extent)) for extent in buffer.shape]
        shape = f"({''.join(f'{dim.code}, ' for dim in dims)})"
        known = [dim.low for dim in dims] if all(dim.low == dim.high for dim in dims) else None
        name = self.give_name(buffer, "b")
        if buffer.strides is not None:
            strides = [self.atom(self.expression(stride)) for stride in buffer.strides]
        elif known is not None:
            strides = [literal(stride) for stride in compact_strides(known, buffer.dtype)]
        else:
            steps = self.fresh("s")
            self.emit(f"{steps} = compact_strides({shape}, {name}.dtype)")
            strides = [self.atom(Value(f"{steps}[{d}]", 0, UNBOUNDED)) for d in range(len(dims))]
        steps = f"({''.join(f'{stride.code}, ' for stride in strides)})"
        if known is not None and all(stride.low == stride.high for stride in strides):
            size = literal(memory_size(known, [stride.low for stride in strides], buffer.dtype))
        else:
            size = self.atom(Value(f"memory_size({shape}, {steps}, {name}.dtype)", 0, UNBOUNDED))
        place = self.declare(buffer, dims, strides, size)
        place.undefined, place.around = self.check, allocation.around
        place.keyed, place.virtual = allocation.keyed, allocation.virtual
        place.tracked = place.tracked and _deepest(body) > 0
        levels = self.level_count if place.tracked else 0
        several = place.keyed or place.virtual
        make = "instances" if several else "new_memory"
        self.emit(f"m{place.number} = {make}({name}, {shape}, {steps}, {self.check}, {levels})")
        if not several:
            self.open(place)

    def _allocate(self, s: Any) -> None:
        if s.buffer not in self.places or not is_shared(s.buffer):  # shared ones were made when the threads started
            keyed = is_local(s.buffer) and self._starts_threads(s.body)
            self.allocate(Allocation(s.buffer, keyed=keyed), s.body)
        self.statement(s.body)

    def _starts_threads(self, s: Stmt) -> bool:
        return any(
            isinstance(stmt, For) and (stmt.thread or "").startswith(THREADS) and stmt.thread not in self.launched
            for stmt in walk_stmts(s)
        )

    # ---------------------------------------------------------------------------------------------------- loops

    def _for(self, s: Any) -> None:
        if s.kind == "thread":
            self._thread_loop(s)
        else:
            self.loop(s, self.expression(s.extent), s.kind in ("parallel", "vectorized"))

    @contextmanager
    def inside(self, s: For, code: str, extent: Value) -> Iterator[None]:
        """The body of a loop: its variable has a value."""
        self.names[s.var] = Value(code, 0, max(0, extent.high - 1))
        self.loops.append((s.var.name, code))
        launched = dict(self.launched)
        if s.kind == "thread" and s.thread is not None and s.thread != "vthread":
            self.launched[s.thread] = (self.names[s.var], extent)
        yield
        self.launched = launched
        self.loops.pop()

    @contextmanager
    def shallow(self, s: For) -> Iterator[None]:
        """A function of its own for a loop that would nest too deep."""
        if self.nesting < _DEEPEST:
            yield
            return
        name, nesting, self.nesting = self.fresh("part"), self.nesting, 0
        waits = self.in_threads and self.waits.inside(s)
        with self.indented(f"def {name}():"):
            self.refresh()
            yield
        self.nesting = nesting
        self.emit(f"yield from {name}()" if waits else f"{name}()")
        if waits:
            self.refresh()

    def loop(self, s: For, extent: Value, at_once: bool) -> None:
        """A loop that runs its iterations one after the other (and checks as if at once, if asked)."""
        if extent.high <= 0:
            return
        extent = self.atom(extent)
        waits = self.in_threads and self.waits.inside(s.body)
        code = self.fresh(_readable(s.var.name))
        with self.shallow(s):
            level: Level | None = None
            if at_once and self.check and extent.high > 1 and not waits:
                level = Level(len(self.levels), self.counter, s)
                self.emit("K[0] += 1")
                self.emit(f"{level.start} = K[0]")
                self.levels.append(level)
            self.nesting += 1
            with self.indented(f"for {code} in range({extent.code}):"), self.inside(s, code, extent):
                if level is not None:
                    self.emit(f"{level.mine} = K[0] = K[0] + 1")
                self.path.append(code)
                if waits and self.waits.implicit(s.body):
                    self.wait(False)
                self.body(s)
                self.path.pop()
            self.nesting -= 1
            if level is not None:
                self.levels.pop()

    def body(self, s: For) -> None:
        """The memory that belongs to an iteration, then what is in the loop."""
        for allocation in self.homes.get(s, ()):
            self.allocate(allocation, s.body)
        self.statement(s.body)

    # -------------------------------------------------------------------------------------------------- threads

    def refresh(self) -> None:
        """Lines that read again, after a wait, the times of the threads this code belongs to."""
        for level in self.levels:
            if level.cell is not None:
                self.emit(f"{level.start}, {level.mine} = {level.cell}")

    def wait(self, explicit: bool, blocked: bool = False, whole: bool = False) -> None:
        """Lines that wait for the other threads."""
        key = [*self.path, "0"] if explicit else self.path
        self.emit(f"yield Wait(({''.join(f'{part}, ' for part in key)}), {explicit}, {blocked}, {whole})")
        self.refresh()

    def _thread_loop(self, s: For) -> None:
        tag = s.thread or ""
        extent = self.expression(s.extent)
        if tag in self.launched:
            self._same_thread(s, extent)
            return
        threads = tag.startswith(THREADS)
        if not threads and tag != "vthread" and any(other.startswith(THREADS) for other in self.launched):
            raise InterpreterError(
                f"the loop {s.var.name} ({tag}) of {self.failures.function!r} stands inside a loop over threadIdx: "
                "reorder the loops so that blockIdx is outside"
            )
        shared: list[Allocation] = []
        if threads and not any(other.startswith(THREADS) for other in self.launched):
            shared = shared_inside(s)
        for allocation in shared:
            self.allocate(allocation, s)
        meets = meets_grid(s.body) if tag.startswith("blockIdx") else self.waits.inside(s.body)
        if meets and extent.high > 0:
            self._group(s, extent)
        else:
            self.loop(s, extent, True)
        for allocation in shared:
            self.places.pop(allocation.buffer, None)

    def _same_thread(self, s: For, extent: Value) -> None:
        """A loop of a tag that is launched already: its variable is the thread's own index."""
        index, launched = self.launched[s.thread or ""]
        extent = self.atom(extent)
        if extent.high > launched.low:
            raising = self.failure("launch", (extent.code,), note=f"{s.var.name} ({s.thread})", limits=(launched.code,))
            self.emit(f"if {extent.code} > {launched.code}: {raising}")
        whole = index.high < extent.low
        with self.indented("if True:" if whole else f"if {index.code} < {extent.code}:"):
            self.names[s.var] = Value(index.code, 0, max(0, min(index.high, extent.high - 1)))
            self.loops.append((s.var.name, index.code))
            self.body(s)
            self.loops.pop()

    def _group(self, s: For, extent: Value) -> None:
        """A loop over threads that wait for one another."""
        extent = self.atom(extent)
        number = self.fresh("")
        code = f"{_readable(s.var.name)}{number}"
        outer = (self.in_threads, self.path, self.nesting, self.in_grid)
        is_first = self.in_grid and not any(tag.startswith(THREADS) for tag in self.launched)
        self.nesting = 0
        if not self.in_threads:
            self.path = []
        self.emit(f"X{number} = [0, 0]")
        with self.indented(f"def thread{number}({code}):"), self.inside(s, code, extent):
            self.in_threads = True
            self.in_grid = self.in_grid or (s.thread or "").startswith("blockIdx")
            if self.check:
                self.levels.append(Level(len(self.levels), int(number), s, f"X{number}"))
            self.emit("if False: yield")
            self.refresh()
            self.body(s)
            if self.check:
                self.levels.pop()
        self.in_threads, self.path, self.nesting, self.in_grid = outer
        place = f"block {self.block!r} of {self.failures.function!r}" if self.block else f"{self.failures.function!r}"
        arguments = f"{s.thread!r}, {s.var.name!r}, {place!r}, thread{number}, {extent.code}, X{number}, K"
        if self.in_threads:
            alone = f"run_block(run_group({arguments}), {place!r}, K)" if is_first else f"run_group({arguments})"
            self.emit(f"yield from {alone}")
            self.refresh()
        else:
            self.emit(f"run_all(run_group({arguments}), {place!r}, K)")

    # --------------------------------------------------------------------------------------- other compositions

    def _seq(self, s: Any) -> None:
        between = self.in_threads and self.waits.between(s)
        for number, stmt in enumerate(s.stmts):
            self.path.append(str(number))
            if between and number:
                self.wait(False)
            self.statement(stmt)
            self.path.pop()

    def _if(self, s: Any) -> None:
        condition = self.expression(s.condition)
        for branch, stmt in enumerate((s.then, s.otherwise)):
            if stmt is None or (condition.low == condition.high and bool(condition.low) is bool(branch)):
                continue
            condition = self.atom(condition)
            self.path.append(str(branch))
            with self.indented(f"if not {condition.code}:" if branch else f"if {condition.code}:"):
                self.statement(stmt)
            self.path.pop()

    def _let(self, s: Any) -> None:
        value = self.expression(s.value)
        if not is_atom(value.code):
            name = self.fresh(_readable(s.var.name))
            self.emit(f"{name} = {value.code}")
            value = Value(name, value.low, value.high)
        self.names[s.var] = value
        self.statement(s.body)

    def _evaluate(self, s: Any) -> None:
        if is_barrier(s):
            if self.in_threads:
                self.wait(True)
            return
        if is_call(s, GRID_BARRIER):
            self.wait(True, whole=True)
            return
        if is_blocking(s) and self.in_threads:
            with self.indented("while True:"):
                self.emit(f"if {self.effect(s.value).code}: break")
                self.wait(False, True)
            self.emit("K[1] += 1")
            return
        if type(s.value) is Call and s.value.name not in PURE:
            lane = self.launched.get("threadIdx.x") if s.value.name in COLLECTIVE else None
            with self.indented("if True:" if lane is None else f"if {lane[0].code} == 0:"):
                self.effect(s.value, used=False)
        else:
            self.emit(self.expression(s.value).code)

    def _block(self, s: Any) -> None:
        predicate = self.expression(s.predicate)
        if predicate.high == 0:
            return
        outer, self.block = self.block, s.name
        with self.indented(f"if {predicate.code}:" if predicate.low == 0 else "if True:"):
            for axis, binding in zip(s.axes, s.bindings):
                self._bind(axis, binding)
            if s.init is not None:
                reduce = [self.names[axis.var] for axis in s.axes if axis.kind == "reduce"]
                tests = [f"{value.code} == 0" for value in reduce if value.high > 0]
                with self.indented(f"if {' and '.join(tests) or 'True'}:"):
                    self.statement(s.init)
            self.statement(s.body)
        self.block = outer

    def _bind(self, axis: Any, binding: Expr) -> None:
        value, extent = self.atom(self.expression(binding)), self.expression(axis.extent)
        if self.check and not (0 <= value.low and value.high < extent.low):
            extent = self.atom(extent)
            raising = self.failure("axis", (value.code,), note=f"axis {axis.var.name}", limits=(extent.code,))
            self.emit(f"if not 0 <= {value.code} < {extent.code}: {raising}")
            value = Value(value.code, max(0, value.low), max(0, min(value.high, extent.high - 1)))
        self.names[axis.var] = value

    # --------------------------------------------------------------------------------------------------- stores

    def _store(self, s: Any) -> None:
        place = self.place(s.buffer, len(s.indices))
        if s.value.dtype.scalar is not s.buffer.dtype:
            raise InterpreterError(
                f"a store of {s.value.dtype} to {s.buffer.name!r}, which holds {s.buffer.dtype}, in "
                f"{self.failures.function!r}: cast the value"
            )
        lanes = max(e.dtype.lanes for e in (*s.indices, s.value))
        if lanes > 1:
            self._store_vector(s, place, lanes)
            return
        if s.predicate is not None:
            predicate = self.expression(s.predicate)
            with self.indented(f"if {predicate.code}:"):
                self._store_scalar(s, place)
        else:
            self._store_scalar(s, place)

    def _store_scalar(self, s: Any, place: Place) -> None:
        indices = self.bounds(place, [self.expression(index) for index in s.indices], "store")
        virtual = self.writes_virtually(place)
        value = _encoded(s.buffer, self.expression(s.value).code if virtual else self.unrounded(s.value))
        if virtual:
            value = self.atom(Value(value)).code
        names = self.instance(place)
        position = self.position(place, indices)
        self.track_write(place, names, position, indices, "store", value)
        self.emit(f"{names.view}[{position}] = {value}")

    def _store_vector(self, s: Any, place: Place, lanes: int) -> None:
        """All lanes are computed before any is stored; a lane whose predicate does not hold does nothing."""
        names = self.instance(place)
        pending = self.fresh("v")
        self.emit(f"{pending} = {{}}")
        predicate = () if s.predicate is None else (s.predicate,)
        with self.lanes(lanes, (*s.indices, s.value, *predicate)):
            active = self.expression(s.predicate).code if s.predicate is not None else "True"
            with self.indented(f"if {active}:"):
                indices = self.bounds(place, [self.expression(index) for index in s.indices], "store")
                virtual = self.writes_virtually(place)
                value = self.expression(s.value).code if virtual else self.unrounded(s.value)
                position = self.position(place, indices)
                if self.check:
                    twice = "two lanes of one vector store write the same element"
                    raising = self.failure("race", [index.code for index in indices], s.buffer, "store", twice)
                    self.emit(f"if {position} in {pending}: {raising}")
                self.emit(f"{pending}[{position}] = {_encoded(s.buffer, value)}")
        position, value = self.fresh("t"), self.fresh("t")
        with self.indented(f"for {position}, {value} in {pending}.items():"):
            self.track_write(place, names, position, [Value(position)], "vector store (flat position)", value)
            self.emit(f"{names.view}[{position}] = {value}")


def _encoded(buffer: Buffer, code: str) -> str:
    name = TABLES.get(buffer.dtype)
    return code if name is None else f"{name}_bits({code})"


def _readable(name: str) -> str:
    """The beginning of a Python name that looks like the IR's, for a person who reads the generated source."""
    return "v_" + "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name) + "_"


def _deepest(s: Stmt) -> int:
    """How many loops that run at once nest, at most."""
    deepest = 0
    stack: list[tuple[Stmt, int]] = [(s, 0)]
    while stack:
        stmt, depth = stack.pop()
        if isinstance(stmt, For) and stmt.kind in _AT_ONCE:
            depth += 1
            deepest = max(deepest, depth)
        stack.extend((child, depth) for child in child_stmts(stmt))
    return deepest


_HANDLERS: dict[type[Stmt], Callable[[Any, Any], None]] = {
    For: Statements._for, Seq: Statements._seq, If: Statements._if, Let: Statements._let,
    Allocate: Statements._allocate, Evaluate: Statements._evaluate, Block: Statements._block, Store: Statements._store,
}  # fmt: skip

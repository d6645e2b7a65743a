"""Lines of generated Python, and the accesses of memory in them.

The interpreter turns a program into Python source once, then runs it. A `Value` is the Python text of an expression,
with the range that its integers are known to keep: a check that the range already answers is not generated.
Expressions that need several steps (a load with its checks) put those steps into `lines` first.

    C[i, j] = A[i] * 2   ->   t1 = M0[i]
                              if not (0 <= t2 < 10): raise fail(0, (i, t2), (i,), (8, 10))
                              M1[i * 10 + t2] = t1 * 2.0
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from weft.expr.nodes import Buffer, Var
from weft.loop.interpreter.failures import Failures, Site
from weft.loop.ir import For

_ATOM = re.compile(r"\w+|\(-\d+\)")
UNBOUNDED = 1 << 62


class Value(NamedTuple):
    """The Python text of an expression; for integers and bools the least and greatest value it can have."""

    code: str
    low: int = 0
    high: int = 0


def literal(number: int) -> Value:
    """A known integer."""
    return Value(str(number) if number >= 0 else f"({number})", number, number)


class Level:
    """A loop around the current place whose iterations run at once.

    `start` and `mine` name the variables that hold when its current stretch and its current iteration began (see
    `memory.py`). `cell` is set for threads that meet at barriers: the list both are read again from after a wait.
    """

    __slots__ = ("index", "start", "mine", "cell", "loop")

    def __init__(self, index: int, number: int, loop: For, cell: str | None = None) -> None:
        self.index = index
        self.start = f"R{number}"
        self.mine = f"S{number}"
        self.cell = cell
        self.loop = loop

    @property
    def is_thread(self) -> bool:
        """Whether this is a loop over threads of a block."""
        return (self.loop.thread or "").startswith(THREADS)

    @property
    def is_virtual(self) -> bool:
        """Whether this is a loop over virtual threads: these are one thread, so writing the same value is harmless."""
        return self.loop.thread == "vthread"


class Place:
    """Where a buffer's memory is found in generated code, and which checks its accesses need."""

    __slots__ = (
        "number",
        "buffer",
        "dims",
        "strides",
        "size",
        "undefined",
        "tracked",
        "depth",
        "around",
        "keyed",
        "virtual",
    )

    def __init__(
        self, number: int, buffer: Buffer, dims: Sequence[Value], strides: Sequence[Value], size: Value
    ) -> None:
        self.number = number
        self.buffer = buffer
        self.dims = tuple(dims)
        self.strides = tuple(strides)
        self.size = size
        self.undefined = False  # contents start undefined: reads are checked
        self.tracked = False  # somebody writes it: races are checked
        self.depth = 0  # levels further out than this have memory of their own
        self.around: frozenset[For] = frozenset()  # loops whose iterations will get memory of their own when lowered
        self.keyed = False  # one instance for each thread, found by the thread's index
        self.virtual: tuple[For, ...] = ()  # vthread loops each of whose iterations has an instance


class Names(NamedTuple):
    """The Python texts of an instance's parts."""

    memory: str
    view: str
    initialized: str
    writer: str
    readers: Callable[[int], str]


def is_atom(code: str) -> bool:
    """Whether repeating this text costs nothing."""
    return _ATOM.fullmatch(code) is not None


class Emitter:
    """State and helpers that all parts of the translation share."""

    def __init__(self, failures: Failures, check: bool, flat: bool) -> None:
        self.failures = failures
        self.check = check
        self.flat = flat
        self.lines: list[str] = []
        self.indent = 1
        self.counter = 0
        self.names: dict[Var, Value] = {}
        self.places: dict[Buffer, Place] = {}
        self.levels: list[Level] = []
        self.loops: list[tuple[str, str]] = []
        self.launched: dict[str, tuple[Value, Value]] = {}
        self.block: str | None = None
        self.lane: str | None = None
        self.hoisted: dict[int, str] = {}
        self.nesting = 0
        self.namespace: dict[str, Any] = {"fail": failures.make}

    # ------------------------------------------------------------------------------------------------------ lines

    def emit(self, line: str) -> None:
        """One more line."""
        self.lines.append(" " * self.indent + line)

    def fresh(self, prefix: str) -> str:
        """A name nobody uses yet."""
        self.counter += 1
        return f"{prefix}{self.counter}"

    def give_name(self, value: Any, prefix: str) -> str:
        """A name under which generated code finds an object."""
        name = self.fresh(prefix)
        self.namespace[name] = value
        return name

    @contextmanager
    def indented(self, header: str) -> Iterator[None]:
        """Lines inside `header:`."""
        self.emit(header)
        self.indent += 1
        self.emit("pass")
        yield
        self.indent -= 1

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """Lines kept aside, one step further in, to be placed by the caller."""
        outer, self.lines = self.lines, []
        self.indent += 1
        yield self.lines
        self.lines = outer
        self.indent -= 1

    def atom(self, value: Value) -> Value:
        """The value under a name, so that it can be repeated."""
        if is_atom(value.code):
            return value
        name = self.fresh("t")
        self.emit(f"{name} = {value.code}")
        return Value(name, value.low, value.high)

    def settle(self, value: Value) -> Value:
        """The value, under a name if its text has become long (Python limits how deep parentheses nest)."""
        return value if len(value.code) < 100 else self.atom(value)

    def failure(
        self, kind: str, indices: Sequence[str], buffer: Buffer | None = None, access: str = "", note: str = "",
        limits: Sequence[str] = (),
    ) -> str:  # fmt: skip
        """The text that raises the error of this place."""
        names = tuple(name for name, _ in self.loops)
        number = self.failures.site(Site(kind, buffer, access, self.block, names, note))
        loops = [code for _, code in self.loops]
        return f"raise fail({number}, {_tuple(indices)}, {_tuple(loops)}, {_tuple(limits)})"

    # ----------------------------------------------------------------------------------------------------- memory

    def instance(self, place: Place) -> Names:
        """The names of the memory that an access here reaches."""
        n = place.number
        if not place.keyed and not place.virtual:
            return Names(f"m{n}", f"M{n}", f"I{n}", f"W{n}", lambda level: f"Q{n}_{level}")
        key = [self.launched[tag][0].code if tag in self.launched else "0" for tag in _THREAD_TAGS]
        if place.virtual:
            key = [self.names[loop.var].code for loop in place.virtual]
        memory = self.fresh("t")
        self.emit(f"{memory} = m{n}{_tuple(key)}")
        return Names(
            memory,
            f"{memory}.view",
            f"{memory}.initialized",
            f"{memory}.writer",
            lambda level: f"{memory}.readers[{level}]",
        )

    def position(self, place: Place, indices: Sequence[Value]) -> str:
        """The element that the indices reach, as an atom."""
        if self.flat:
            return self.atom(indices[0]).code
        terms = []
        constant = 0
        for index, stride in zip(indices, place.strides):
            if index.low == index.high and stride.low == stride.high:
                constant += index.low * stride.low
            elif stride.low == stride.high == 1:
                terms.append(index.code)
            else:
                terms.append(f"{index.code} * {stride.code}")
        if constant or not terms:
            terms.append(str(constant))
        return self.atom(Value(" + ".join(terms))).code

    def bounds(self, place: Place, indices: Sequence[Value], access: str) -> list[Value]:
        """The indices as they came, after a check that they lie in the buffer."""
        dims = (place.size,) if self.flat else place.dims
        if not self.check:
            return list(indices)
        checked, tests = [], []
        for index, dim in zip(indices, dims):
            if not (0 <= index.low and index.high < dim.low):
                index = self.atom(index)
                tests.append(f"0 <= {index.code} < {dim.code}")
            checked.append(index)
        if tests:
            codes, limits = [index.code for index in checked], [dim.code for dim in dims]
            raising = self.failure("bounds", codes, place.buffer, access, limits=limits)
            self.emit(f"if not ({' and '.join(tests)}): {raising}")
        return checked

    def applicable(self, place: Place) -> tuple[list[Level], list[Level]]:
        """The levels at which an access can race, and those whose iterations get memory of their own when lowered."""
        if not (self.check and place.tracked):
            return [], []
        shared = is_shared(place.buffer)
        full: list[Level] = []
        private: list[Level] = []
        for level in self.levels[place.depth :]:
            if (place.keyed and level.is_thread) or level.loop in place.virtual:
                continue
            own = level.loop in place.around and not (shared and level.is_thread)
            (private if own else full).append(level)
        return full, private

    def _race(self, place: Place, levels: Sequence[Level], indices: Sequence[Value], access: str) -> str:
        loops = " or ".join(f"{level.loop.var.name} ({level.loop.thread or level.loop.kind})" for level in levels)
        note = f"another iteration of {loops} touches the same element at the same time, and one of the two writes it"
        if any(level.cell or level.is_thread for level in levels):
            note += "; is there a barrier missing?"
        return self.failure("race", [index.code for index in indices], place.buffer, access, note)

    def track_read(self, place: Place, names: Names, position: str, indices: Sequence[Value], access: str) -> None:
        """Checks that a read races with no write and finds something written."""
        full, private = self.applicable(place)
        if full or private:
            self.emit(f"w = {names.writer}[{position}]")
            tests = " or ".join(f"{level.start} <= w < {level.mine}" for level in full + private)
            self.emit(f"if {tests}: {self._race(place, full + private, indices, access)}")
            for level in full:
                seen = f"{names.readers(level.index)}[{position}]"
                self.emit(f"if {seen} < {level.start}: {seen} = {level.mine}")
        if self.check and place.undefined:
            raising = self.failure("uninitialised", [index.code for index in indices], place.buffer, access)
            self.emit(f"if not {names.initialized}[{position}]: {raising}")

    def writes_virtually(self, place: Place) -> bool:
        """Whether the value matters to the race check of a write here."""
        return any(level.is_virtual for level in self.applicable(place)[0])

    def track_write(
        self, place: Place, names: Names, position: str, indices: Sequence[Value], access: str, value: str
    ) -> None:
        """Checks that a write races with nothing, and notes it; `value` is an atom where virtual threads write."""
        full, private = self.applicable(place)
        if full:
            self.emit(f"w = {names.writer}[{position}]")
            tests = []
            for level in full:
                seen = f"{names.readers(level.index)}[{position}]"
                test = f"{level.start} <= w < {level.mine} or {level.start} <= {seen} < {level.mine}"
                if level.is_virtual:
                    test = f"({test}) and {names.view}[{position}] != {value} == {value}"
                tests.append(test)
            self.emit(f"if {' or '.join(tests)}: {self._race(place, full, indices, access)}")
        if full or private:
            innermost = max(full + private, key=lambda level: level.index)
            self.emit(f"{names.writer}[{position}] = {innermost.mine}")
        if self.check and place.undefined:
            self.emit(f"{names.initialized}[{position}] = 1")


THREADS = ("threadIdx", "clusterRank")
"""How the tags of loops begin whose iterations run side by side, and see the same shared memory."""
_THREAD_TAGS = ("clusterRank.x", "threadIdx.x", "threadIdx.y", "threadIdx.z")


def is_shared(buffer: Buffer) -> bool:
    """Whether the threads of a block see one instance of this buffer."""
    return buffer.scope.split(".")[0] in ("shared", "warp")


def is_local(buffer: Buffer) -> bool:
    """Whether each thread has an instance of this buffer."""
    return buffer.scope.split(".")[0] == "local"


def _tuple(codes: Sequence[str]) -> str:
    return f"({', '.join(codes)}{',' if len(codes) == 1 else ''})"

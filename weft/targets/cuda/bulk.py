"""Boxes of tensors copied into shared memory by Hopper's copy engine (TMA), and the barriers that count their bytes.

    for r in range(128): for c in range(64):                   bulk_copy(address(t[0, 0]), address(A), address(full[s]),
        t[r, c] = A[i + r, k + c] if … else 0            ->              2, 4096, 1024, 1024, 1, 128, 64, i, k)

One thread asks for a whole box, of lines of 128 bytes, which arrive in the order of `swizzle`; what lies outside of the
tensor is zero. Barriers in shared memory ("full", "empty") have phases: one ends when as many threads have arrived as
were announced, and all bytes that they expected. `bulk_wait` waits until the phase of a parity has ended.

    bulk_init(bar, n, count, tile…)      n barriers, at which `count` arrivals end a phase; tiles are filled by copies
    bulk_expect(bar, bytes)       arrives, and lets the phase wait for so many bytes
    bulk_copy(to, from, bar, rank, shape…, strides…, box…, corner…)      their bytes are counted when they are there
    bulk_arrive(bar)              arrives
    bulk_share(to, from, bar, many, own, part, bars, rank, shape…)      the same copy to all blocks of a cluster at once
    bulk_arrive_at(bar, block, own, bars)                               arrives at the barrier of one of these blocks
    bulk_wait(bar, parity)        waits
    bulk_skip(to, n)              nobody copies n lines of a tile, which are beyond the tensor
    bulk_meet()                   a barrier of all threads of a cluster
    bulk_registers(n, more)       from here on this group of threads has n registers a thread, more or fewer than before

Blocks of a cluster (a loop "clusterRank.x") each have a part of every shared buffer, `part` elements or `bars` barriers
long; addresses are those of the block's own, number `own`. `cluster` makes shared memory of one block of that.

The interpreter lets a copy arrive as late as the program allows: a tile that is read before somebody has waited for it
is a race, and so is one that is filled anew while it is still on its way; a phase that nobody ends is a deadlock.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import INT32
from weft.core.errors import InterpreterError
from weft.expr.bounds import Ranges, prove
from weft.expr.nodes import (
    LE,
    LT,
    Add,
    Address,
    Buffer,
    Call,
    Const,
    Expr,
    FloorDiv,
    FloorMod,
    Load,
    Mul,
    Select,
    Sub,
    Var,
    add,
    floordiv,
    floormod,
    index_expr,
    int_value,
    less,
    logical_and,
    logical_not,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.visit import free_vars, uses_any
from weft.loop.interpreter import Pointer, register_effect
from weft.loop.ir import Evaluate, For, If, Stmt, Store, seq
from weft.loop.passes.support import Linear, linear
from weft.loop.regions import conjuncts
from weft.targets.cuda.swizzle import CHUNK, FLYING, LINE, LINES, swizzled

INIT, EXPECT, COPY, ARRIVE, WAIT = "bulk_init", "bulk_expect", "bulk_copy", "bulk_arrive", "bulk_wait"
REGISTERS, SHARE, ARRIVE_AT, MEET = "bulk_registers", "bulk_share", "bulk_arrive_at", "bulk_meet"
SKIP, PIECE = "bulk_skip", 64
"""What says that lines are not copied, and rows of a matrix that are copied, or not, together."""
MOST_ROWS, MOST_DIMENSIONS = 256, 5
"""Elements of a box along any dimension; dimensions of a tensor."""


def call(name: str, *arguments: Expr | int) -> Stmt:
    """The statement of one of these instructions."""
    return Evaluate(Call(name, [index_expr(a) if isinstance(a, int) else a for a in arguments], INT32))


# ----------------------------------------------------------------------------------------------------------- boxes


@dataclass(frozen=True)
class Box:
    """A tile in shared memory that is a box of a tensor, line by line, zero beyond the tensor."""

    tile: Buffer
    source: Buffer
    shape: tuple[int, ...]
    """Of the tensor; dimensions that lie together may be one."""
    strides: tuple[int, ...]
    box: tuple[int, ...]
    corner: tuple[Expr, ...]
    lines: int
    """Copies that lie beside one another in the tensor, each a line wide."""

    ranges: Ranges = field(default_factory=Ranges)
    """Of the variables of the corner."""
    apart: tuple[int, ...] = ()
    """Dimensions whose elements do not meet in what is made of the tile: beyond the tensor they need not be zero."""

    def divided(self, many: int) -> int | None:
        """The dimension of which so many blocks can each copy a part of whole swizzled lines; None if there is none."""
        at = next((d for d, size in enumerate(self.box[:-1]) if size > 1), None)
        if at is None or self.box[at] % many or math.prod(self.box[at:-1]) // many % LINES:
            return None
        return at

    def expected(self, many: int = 1) -> Expr:
        """Bytes that arrive in a tile, of which so many blocks copy a part each."""
        total: Expr = index_expr(0)
        for piece in self._pieces(many):
            bytes_ = index_expr(piece.lines * LINE)
            total = add(total, bytes_ if piece.test is None else Select(piece.test, bytes_, index_expr(0)))
        return total

    def copies(
        self, tile: Buffer, stage: Expr | None, barrier: Address, many: int = 1, own: Expr | None = None
    ) -> Stmt:
        """The copies into a tile, or into one part of a tile of several parts; of so many blocks, those of this one."""
        source = Address(self.source, [index_expr(0)] * len(self.source.shape), "r")
        made: list[Stmt] = []
        first = tile.shape if stage is None else tile.shape[1:]
        parts = [math.prod(int_value(n) or 0 for n in buffer.shape) // many for buffer in (tile, barrier.buffer)]

        def at(row: Expr) -> Address:
            inside = _place(first, row, self.box[-1])
            return Address(tile, inside if stage is None else [stage, *inside], "w")

        for piece in self._pieces(many):
            if piece.test is not None:  # what nobody copies is there all the same
                made.append(If(logical_not(piece.test), call(SKIP, at(index_expr(piece.row)), piece.lines)))
        for piece in self._pieces(many, own):
            numbers: list[Expr | int] = [len(self.box), *self.shape, *self.strides, *piece.box, *piece.corner]
            row = index_expr(piece.row)
            if own is None:
                copied = call(COPY, at(row), source, barrier, *numbers)
            else:
                row = add(row, mul(own, index_expr(piece.lines)))
                copied = call(SHARE, at(row), source, barrier, many, own, *parts, *numbers)
            made.append(copied if piece.test is None else If(piece.test, copied))
        return seq(*made)

    def _pieces(self, many: int = 1, own: Expr | None = None) -> list[_Piece]:
        """What is copied at a time, those of a matrix so that such as lie wholly beyond it need not be: rows that are
        not there take the copy engine longer than others. Of a block that copies a part, the pieces of that."""
        at = self.divided(many)
        each = list(self.box)
        is_matrix = len(self.box) == 2 and 0 in self.apart
        if at is not None and many > 1:
            each[at] //= many
        elif at is not None and is_matrix and self.box[at] % PIECE == 0 and not self._is_inside(at, self.box[at]):
            each[at] = PIECE
        made = []
        for line in range(self.lines):
            for part in range(1 if at is None or own is not None else self.box[at] // each[at]):
                corner = [*self.corner[:-1], add(self.corner[-1], index_expr(line * self.box[-1]))]
                if at is not None:
                    corner[at] = add(
                        corner[at], mul(own if own is not None else index_expr(part), index_expr(each[at]))
                    )
                tests = [
                    less(place, index_expr(size))
                    for d, (place, size) in enumerate(zip(corner, self.shape))
                    if len(self.box) == 2
                    and d in self.apart
                    and not self._is_inside(d, self.box[d] * (self.lines if d == 1 else 1))
                    and not (many > 1 and d == at)  # a block waits for something of each of the others
                ]
                lines = math.prod(each[:-1])
                row = line * math.prod(self.box[:-1]) + part * lines
                made.append(_Piece(tuple(each), tuple(corner), row, lines, logical_and(*tests) if tests else None))
        return made

    def _is_inside(self, at: int, many: int) -> bool:
        """Whether a tile never begins a piece beyond the tensor along a dimension."""
        last = add(self.corner[at], index_expr(max(0, many - (PIECE if at == 0 else self.box[-1]))))
        return prove(less(last, index_expr(self.shape[at])), self.ranges)


@dataclass(frozen=True)
class _Piece:
    """A part of a box that is copied by itself."""

    box: tuple[int, ...]
    corner: tuple[Expr, ...]
    row: int
    """Lines of the tile before it, and its own."""
    lines: int
    test: Expr | None
    """Whether it has anything of the tensor; None where it always has."""


def _place(shape: Sequence[Expr], row: Expr, line: int) -> list[Expr]:
    """The indices of the first element of a line, of a tile whose lines follow one another."""
    made, sizes = [index_expr(0)], [int_value(n) or 1 for n in shape]
    assert sizes[-1] == line
    for size in reversed(sizes[1:-1]):
        made.insert(0, floormod(row, index_expr(size)))
        row = floordiv(row, index_expr(size))
    return [row, *made] if len(sizes) > 1 else made


def box_of(fill: Stmt, ranges: Ranges) -> Box | None:
    """The box that a nest of loops copies; None where it is something else. `ranges` are those of all loops around."""
    loops: dict[Var, int] = {}
    ends: list[Expr] = []
    while isinstance(fill, For) or (isinstance(fill, If) and fill.otherwise is None):
        if isinstance(fill, For):
            loops[fill.var] = int_value(fill.extent) or 0
        else:
            ends += conjuncts(fill.condition)
        fill = fill.body if isinstance(fill, For) else fill.then
    if not isinstance(fill, Store) or fill.predicate is not None or fill.buffer.strides is not None:
        return None
    load, tests = _copied(fill.value)
    if load is None or 0 in loops.values() or any(set(free_vars(end)) - set(loops) for end in ends):
        return None
    shape, indices = [int_value(size) or 0 for size in load.buffer.shape], list(load.indices)
    while len(shape) > 2 and shape[-1] == 1 and load.buffer.strides is None:  # a window of one place
        shape, indices = shape[:-1], indices[:-1]
    seen = _Seen(fill, loops, ranges, ends)
    if len(shape) == 1:
        return seen.in_rows(load, tests, shape[0]) or seen.in_pieces(load, tests, shape[0])
    if not _takes(load.buffer, shape, fill.buffer):
        return None
    together: Expr = index_expr(0)
    for size, index in zip(shape[:-1], indices):
        together = add(mul(together, index_expr(size)), index)
    found = seen.box(load, tests, shape, indices)
    if found is not None or load.buffer.strides is not None:
        return found
    return seen.box(load, tests, [math.prod(shape[:-1]), shape[-1]], [simplify(together, ranges), indices[-1]])


class _Seen:
    """A nest of loops that stores to a tile: what it does at each of its points."""

    def __init__(self, store: Store, loops: Mapping[Var, int], ranges: Ranges, ends: Sequence[Expr] = ()) -> None:
        self.store, self.loops, self.ranges, self.ends = store, loops, ranges, ends
        points = np.indices(tuple(loops.values())).reshape(len(loops), -1)
        self.points = dict(zip(loops, points))
        for end in ends:  # what a test on the loops alone leaves out is not stored
            kept = self._values(end)
            self.points = {var: values[kept] for var, values in self.points.items()}

    def in_rows(self, load: Load, tests: Sequence[Expr], size: int) -> Box | None:
        """The box of flat memory as rows, and groups of these, so far apart as the factors of its index say.

        Where a test ends the rows of a group, that is how many there are.
        """
        form = linear(simplify(load.indices[0], self.ranges))
        line = LINE // load.dtype.bytes
        steps = sorted(n for n in {line, *form.terms.values()} if n >= line and size % n == 0)
        ends = {int_value(test.b) for test in tests if isinstance(test, LT)} - {None}
        if load.dtype is not self.store.buffer.dtype or len(ends) > 1:
            return None
        for at, row in enumerate(steps):
            for group in (*(steps[at + 1 :] if tests else ()), size):
                count = next(iter(ends), group // row) or 0
                parts = [Linear({}, 0) for _ in range(3)]
                for term, n in form.terms.items():
                    place, step = next((i, step) for i, step in enumerate((group, row, 1)) if n % step == 0)
                    if step == 1 and row % n == 0 and term in self.loops:  # threads that go from row to row
                        parts[1] = parts[1].plus(Linear({floordiv(term, index_expr(row // n)): 1}, 0))
                        term = floormod(term, index_expr(row // n))
                    parts[place] = parts[place].plus(Linear({term: n // step}, 0))
                rest = parts[2].shifted(form.constant % row).expr()
                indices = [parts[0].expr(), parts[1].shifted(form.constant // row).expr(), rest]
                if (row | group) * load.dtype.bytes % CHUNK or not prove(less(rest, index_expr(row)), self.ranges):
                    continue
                shape, strides = (size // group, count, row), (group, row, 1)
                found = self.box(load, tests, shape[not tests :], indices[not tests :], strides[not tests :])
                if found is not None:
                    return found
        return None

    def in_pieces(self, load: Load, tests: Sequence[Expr], size: int) -> Box | None:
        """The box of flat memory as rows of pieces, the same one of each row; beyond its end, as a test says, is zero.

        So lie heads beside one another that are no whole lines: [row, head, 40].
        """
        form, chunk = linear(simplify(load.indices[0], self.ranges)), CHUNK // load.dtype.bytes
        if load.dtype is not self.store.buffer.dtype:
            return None
        ends = sorted({int_value(test.b) or 0 for test in tests if isinstance(test, LT)})
        steps = sorted({n for n in form.terms.values() if n > 0})
        for piece in (n for n in ends if n > 0 and n % chunk == 0):
            for row in (n for n in steps if n > piece and n % piece == 0 and size % n == 0):
                for group in (n for n in (size, *steps) if n > row and n % row == 0 and size % n == 0):
                    for count in sorted({group // row, *ends} - {0, piece}, reverse=True):
                        found = self._of_pieces(load, tests, form, (group, row, piece, 1), (size // group, count))
                        if found is not None:
                            return found
        return None

    def _of_pieces(
        self, load: Load, tests: Sequence[Expr], form: Linear, strides: tuple[int, ...], outer: tuple[int, int]
    ) -> Box | None:
        """The same for strides of groups, rows, pieces and elements, and as many groups, and rows of them."""
        parts, left = [Linear({}, 0) for _ in strides], form.constant
        for term, n in form.terms.items():
            at = next((at for at, step in enumerate(strides) if n % step == 0), 0)
            parts[at] = parts[at].plus(Linear({term: n // strides[at]}, 0))
        indices = []
        for part, step in zip(parts, strides):
            indices.append(part.shifted(left // step).expr())
            left %= step
        shape, first = (*outer, strides[1] // strides[2], strides[2]), int(outer[0] == 1)
        for index, n in zip(indices[1:], shape[1:]):  # no row of another group, and no other head
            if not prove(less(index, index_expr(n)), self.ranges) and not any(
                self._at_edge(test, (index, n)) for test in tests
            ):
                return None
        return self.box(load, tests, shape[first:], indices[first:], strides[first:])

    def box(
        self,
        load: Load,
        tests: Sequence[Expr],
        shape: Sequence[int],
        indices: Sequence[Expr],
        strides: Sequence[int] = (),
    ) -> Box | None:
        """The box of a tensor of a shape (and strides), where indices say what is copied."""
        corner, local = [], []
        for index in indices:
            found = self._parted(index)
            if found is None:
                return None
            corner.append(found[0])
            local.append(found[1])
        box, tile = [int(values.max()) + 1 for values in local], self.store.buffer
        line, room = LINE // tile.dtype.bytes, [int_value(size) or 0 for size in tile.shape]
        lines, left, box[-1] = -(-box[-1] // line), box[-1] % line, line
        rows = math.prod(box[:-1])
        if (left and not self.ends) or max(box) > MOST_ROWS or rows % LINES:
            return None
        place, row = (np.zeros_like(local[-1]) for _ in range(2))
        for size, index in zip(room, self.store.indices):
            place = place * size + self._values(index)
        for size, values in zip(box[:-1], local):
            row = row * size + values
        wanted = (local[-1] // line * rows + row) * line + local[-1] % line
        # What is left of the last line is fetched, too: nobody reads it.
        beyond = (line - left) * rows if left else 0
        if not np.array_equal(place, wanted) or len(np.unique(place)) != math.prod(room) - beyond:
            return None
        if not all(any(self._at_edge(test, one) for one in zip(indices, shape)) for test in tests):
            return None
        steps = tuple(strides) or _strides(load.buffer, shape)
        return Box(tile, load.buffer, tuple(shape), steps, tuple(box), tuple(corner), lines, self.ranges)

    def _parted(self, index: Expr) -> tuple[Expr, Any] | None:
        """An index as what it is at the first point, and what the loops add to it at each."""
        form = linear(simplify(index, self.ranges))
        outer = {term: factor for term, factor in form.terms.items() if not uses_any(term, self.loops)}
        if any(set(free_vars(term)) - set(self.loops) for term in form.terms if term not in outer):
            return None
        values = sum(
            (factor * self._values(term) for term, factor in form.terms.items() if term not in outer), self._zeros()
        )
        least = int(values.min())
        return Linear(outer, form.constant + least).expr(), values - least

    def _zeros(self) -> Any:
        return np.zeros(len(next(iter(self.points.values()))), np.int64)

    def _values(self, e: Expr) -> Any:
        """An expression of the loops at each point."""
        if isinstance(e, Var):
            return self.points[e]
        if isinstance(e, Const):
            return self._zeros() + int(e.value)
        make = _NUMBERS[type(e)]
        return make(self._values(e.a), self._values(e.b))  # type: ignore[attr-defined]

    def _at_edge(self, test: Expr, of: tuple[Expr, int]) -> bool:
        """Whether a test tells only whether an index is inside of its dimension."""
        if not isinstance(test, (LT, LE)):
            return False
        index, size = of
        low, high = (simplify(sub(side, index), self.ranges) for side in (test.a, test.b))
        if int_value(low) is not None and int_value(test.b) is not None:  # index + low < b
            return int(int_value(test.b) or 0) - int(int_value(low) or 0) + isinstance(test, LE) == size
        if int_value(high) is not None and int_value(test.a) is not None:  # a <= index + high
            return int(int_value(test.a) or 0) - int(int_value(high) or 0) + isinstance(test, LT) == 0
        return False


_NUMBERS: Mapping[type[Expr], Callable[[Any, Any], Any]] = {
    Add: operator.add, Sub: operator.sub, Mul: operator.mul, FloorDiv: operator.floordiv, FloorMod: operator.mod,
    LT: operator.lt, LE: operator.le,
}  # fmt: skip


def _copied(value: Expr) -> tuple[Load | None, list[Expr]]:
    """What is loaded, and the tests beyond which it is zero."""
    tests: list[Expr] = []
    while isinstance(value, Select) and isinstance(value.otherwise, Const) and value.otherwise.value == 0:
        tests += conjuncts(value.condition)
        value = value.then
    return (value if isinstance(value, Load) else None), tests


def _takes(source: Buffer, sizes: Sequence[int], tile: Buffer) -> bool:
    """Whether the copy engine can read a tensor into a tile: whole chunks from row to row, sizes that are known."""
    if not 2 <= len(sizes) <= MOST_DIMENSIONS or min(sizes) < 1 or source.scope != "global":
        return False
    *steps, last = _strides(source, sizes)
    return source.dtype is tile.dtype and last == 1 and all(s and s * tile.dtype.bytes % CHUNK == 0 for s in steps)


def _strides(source: Buffer, shape: Sequence[int]) -> tuple[int, ...]:
    """From one element of a tensor to the next along each dimension; one that is not known is 0."""
    if source.strides is not None:
        return tuple(int_value(stride) or 0 for stride in source.strides)
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))


# ---------------------------------------------------------------------------------------------------------- emitting

PLACE = "DEVICE uint32_t weft_shared_place(const void *at) { return (uint32_t)__cvta_generic_to_shared(at); }"
_HELPERS = {
    INIT: """DEVICE void weft_bulk_init(void *at, int32_t many, int32_t count) {
  for (int32_t i = 0; i < many; ++i)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(weft_shared_place(at) + 8 * i), "r"(count));
  asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
}""",
    EXPECT: """DEVICE void weft_bulk_expect(void *at, int32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
               : : "r"(weft_shared_place(at)), "r"(bytes) : "memory");
}""",
    ARRIVE_AT: """DEVICE void weft_bulk_arrive_at(void *at, int32_t block) {
  asm volatile("{\\n.reg .b32 there;\\nmapa.shared::cluster.u32 there, %0, %1;\\n"
               "mbarrier.arrive.shared::cluster.b64 _, [there];\\n}"
               : : "r"(weft_shared_place(at)), "r"(block) : "memory");
}""",
    ARRIVE: """DEVICE void weft_bulk_arrive(void *at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(weft_shared_place(at)) : "memory");
}""",
    WAIT: """DEVICE void weft_bulk_wait(void *at, int32_t parity) {
  asm volatile("{\\n.reg .pred done;\\nagain:\\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n@!done bra again;\\n}"
               : : "r"(weft_shared_place(at)), "r"(parity) : "memory");
}""",
}


def _simple(name: str) -> Emitter:
    def emit(c: Context, e: Call) -> str:
        c.helper("weft_shared_place", PLACE)
        c.helper(f"weft_{name}", _HELPERS[name])
        at, *numbers = (a for place, a in enumerate(e.args) if not place or not isinstance(a, Address))
        numbers = numbers[:1] if name == ARRIVE_AT else numbers  # what follows is for the interpreter
        return f"weft_{name}({', '.join([c.pointer(at), *[f'(int32_t)({c.value(n)})' for n in numbers]])})"

    return emit


def _copy(c: Context, e: Call) -> str:
    many = c.constant(e.args[3]) if e.name == SHARE else 1
    (to, source, barrier), (first, *numbers) = e.args[:3], e.args[7 if many > 1 else 3 :]
    rank = c.constant(first)
    known = [tuple(c.constant(n) for n in numbers[rank * at : rank * (at + 1)]) for at in range(3)]
    corner = [f"(int32_t)({c.value(n)})" for n in reversed(numbers[3 * rank :])]
    assert isinstance(source, Address)
    name, places = f"weft_{e.name}_{rank}", ", ".join(f"%{3 + i}" for i in range(rank))
    way, mask = (".multicast::cluster", f", %{3 + rank}") if many > 1 else ("", "")
    name += f"_{many}" if many > 1 else ""
    c.helper("weft_shared_place", PLACE)
    seen = c.tensor_map(source.buffer, *known)
    given, values = (", ".join(text.format(i) for i in range(rank)) for text in ("int32_t c{}", '"r"(c{})'))
    values += f', "h"((uint16_t){(1 << many) - 1})' if many > 1 else ""
    c.helper(
        name,
        f"""DEVICE void {name}(void *to, const weft_tensor_map *map, void *at, {given}) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes{way} "
               "[%0], [%1, {{{places}}}], [%2]{mask};"
               : : "r"(weft_shared_place(to)), "l"((uint64_t)map), "r"(weft_shared_place(at)), {values} : "memory");
}}""",
    )
    return f"{name}({c.pointer(to)}, &{seen}, {c.pointer(barrier)}, {', '.join(corner)})"


def _registers(c: Context, e: Call) -> str:
    count, more = map(c.constant, e.args)
    return f'asm volatile("setmaxnreg.{"inc" if more else "dec"}.sync.aligned.u32 {count};")'


def _meet(c: Context, e: Call) -> str:
    """What it makes visible are barriers alone, for which `bulk_init` has a fence of its own."""
    return 'asm volatile("barrier.cluster.arrive.relaxed;\\nbarrier.cluster.wait;" : : : "memory")'


EMITTERS: Mapping[str, Emitter] = {
    SKIP: lambda c, e: "(void)0", COPY: _copy, SHARE: _copy, REGISTERS: _registers, MEET: _meet,
    **{name: _simple(name) for name in _HELPERS},
}  # fmt: skip

# ----------------------------------------------------------------------------------------- meaning, for the interpreter

_THERE, _ON_ITS_WAY, _NOTHING = range(3)


@dataclass
class _Barrier:
    """A barrier in shared memory: what its phase still waits for, and the tiles that arrive with it."""

    count: int
    left: int
    bytes: int = 0
    phase: int = 0
    landing: list[tuple[Pointer, Any]] = field(default_factory=list)
    landed: list[tuple[Pointer, Any]] = field(default_factory=list)

    def check(self) -> None:
        """Ends the phase where nothing is left to wait for."""
        if self.left == 0 and self.bytes == 0:
            self.left, self.phase = self.count, self.phase + 1
            self.landed += self.landing
            self.landing = []


def _state(at: Pointer) -> _Barrier:
    found = at.notes.get(at.offset)
    if found is None:
        raise InterpreterError(f"{at.buffer.name}[{at.offset}] is used as a barrier before it was made one")
    assert isinstance(found, _Barrier)
    return found


def _mean_init(at: Pointer, many: int, count: int, *tiles: Pointer) -> None:
    for tile in tiles:
        tile.notes[FLYING] = np.full(len(tile.array), _NOTHING, np.int8)
    for place in range(int(many)):
        at.notes[at.offset + place] = _Barrier(int(count), int(count))


def _mean_arrive(at: Pointer, expected: int = 0) -> None:
    state = _state(at)
    if state.left == 0:
        raise InterpreterError(
            f"more arrivals at {at.buffer.name}[{at.offset}] in one phase than the {state.count} announced"
        )
    state.left, state.bytes = state.left - 1, state.bytes + int(expected)
    state.check()


def _mean_copy(to: Pointer, source: Pointer, at: Pointer, rank: int, *numbers: int) -> None:
    shape, strides, box, corner = (tuple(map(int, numbers[n * rank : (n + 1) * rank])) for n in range(4))
    inside = source.view(shape, strides)
    values = np.zeros(box, inside.dtype)
    ranges = [(max(0, -c), min(b, s - c)) for c, b, s in zip(corner, box, shape)]
    if all(low < high for low, high in ranges):
        places = tuple(slice(low, high) for low, high in ranges)
        values[places] = inside[tuple(slice(c + low, c + high) for c, (low, high) in zip(corner, ranges))]
    tile = swizzled(to.offset + np.arange(values.size), CHUNK // to.buffer.dtype.bytes)
    flying = to.notes[FLYING]
    if (flying[tile] == _ON_ITS_WAY).any():
        raise InterpreterError(
            f"data race: {to.buffer.name} is filled anew while a copy to the same place is on its way"
        )
    flying[tile] = _ON_ITS_WAY
    to.array[tile] = values.reshape(-1)
    state = _state(at)
    state.bytes -= values.nbytes
    state.landing.append((to, tile))
    state.check()


def _mean_share(
    to: Pointer, source: Pointer, at: Pointer, many: int, own: int, part: int, bars: int, *box: int
) -> None:
    for block in range(int(many)):
        away = block - int(own)
        _mean_copy(_moved(to, away * int(part)), source, _moved(at, away * int(bars)), *box)


def _mean_skip(to: Pointer, lines: int) -> None:
    tile = to.offset + np.arange(int(lines) * LINE // to.buffer.dtype.bytes)
    values = to.array
    values[tile] = np.nan if values.dtype.kind == "f" else 0  # the first is seen where anything is made of it
    to.notes[FLYING][tile] = _THERE


def _mean_arrive_at(at: Pointer, block: int, own: int, bars: int) -> None:
    _mean_arrive(_moved(at, (int(block) - int(own)) * int(bars)))


def _moved(at: Pointer, by: int) -> Pointer:
    """The same place of another block of the cluster."""
    there = copy.copy(at)
    there.offset += by
    return there


def _mean_wait(at: Pointer, parity: int) -> bool:
    """Whether the phase of a parity has ended; whoever waited for it sees what arrived."""
    state = _state(at)
    if state.phase % 2 == int(parity):
        return False
    for to, tile in state.landed:
        to.notes[FLYING][tile] = _THERE
    state.landed = []
    return True


register_effect(INIT, _mean_init)
register_effect(EXPECT, _mean_arrive)
register_effect(ARRIVE, _mean_arrive)
register_effect(COPY, _mean_copy)
register_effect(SHARE, _mean_share)
register_effect(SKIP, _mean_skip)
register_effect(ARRIVE_AT, _mean_arrive_at)
register_effect(WAIT, _mean_wait, blocks=True)
register_effect(REGISTERS, lambda count, more: 0)

"""LLVM IR of branches and loops around kernels: what `parts.py` found, as one function.

    int32_t name(int64_t *table, int64_t threads)

`table` holds the addresses of the inputs, then all their sizes, the addresses of weights, of an arena, and for each
output its address (where the caller has memory for it, else 0 before and an address after the call), owner and sizes.

A value whose size is a number, and that no branch or loop takes, lies in the arena. Every other is a block that counts
who holds it (`code.py`). What grows by a part a turn does so in its own block: a part is put behind bytes that
nobody has put anything behind yet.

Sizes are looked at where a kernel takes them: one below 1, two that should be equal and are not, or a block that is
larger than any may be ends the call with `DECLINED`, and the host says what there is to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Union

import numpy as np

from weft.codegen.llvm.types import quote
from weft.compiler.control import parts
from weft.compiler.control.code import HELPERS, Code
from weft.compiler.control.parts import DECLINED, STOPPED, Branch, ControlItem, Grow, Inner, NoControl, Part, Turns
from weft.compiler.kernels.build import Packing
from weft.compiler.lowering.items import Launch, View, described
from weft.compiler.lowering.lower import updated_by
from weft.compiler.lowering.memory import Life, plan_memory
from weft.expr.nodes import Add, Const, Expr, FloorDiv, FloorMod, Max, Min, Mul, Sub, Var
from weft.expr.structural import structural_equal
from weft.graph.ir import Dim, Value
from weft.runtime.faults import KERNEL_SHIFT, NO_MEMORY
from weft.targets.base import Target

MOST_TURNS = 1 << 40
"""The turns of a loop that has no limit."""

ASKED = 8
"""Entries of the table by which a loop asks whether a signal came (`@control.stopped`)."""

_INFIX: dict[type[Expr], str] = {Add: "add", Sub: "sub", Mul: "mul"}
_CALLS: dict[type[Expr], str] = {
    FloorDiv: "@control.divided", FloorMod: "@control.left", Min: "@llvm.smin.i64", Max: "@llvm.smax.i64",
}  # fmt: skip


@dataclass
class Operand:
    """A value at a point of the code: its address, its owner ("0": none) and its sizes."""

    address: str
    owner: str
    dims: list[str]


Keeper = tuple[int, int, list[Union[str, int]]]
"""Where a loop keeps rows: a slot, the cell of their bytes, and each of their sizes, as a number or its cell."""


@dataclass
class Scope:
    """A part while it is written: slots of its values, offsets in the arena, cells of its sizes."""

    part: Part
    slots: dict[Value, int] = field(default_factory=dict)
    offsets: dict[Value, int] = field(default_factory=dict)
    same: dict[Value, Value] = field(default_factory=dict)
    escaping: set[Value] = field(default_factory=set)
    sizes: dict[Var, int] = field(default_factory=dict)
    defines: set[tuple[Value, int]] = field(default_factory=set)
    checked: list[Expr] = field(default_factory=list)

    def root(self, value: Value) -> Value:
        """The value in whose memory a value lies."""
        return self.same.get(value, value)


class Writer(Code):
    """Writes the function."""

    def __init__(self, name: str, target: Target, most_bytes: int) -> None:
        super().__init__()
        self.name, self.target, self.most_bytes = name, target, most_bytes
        self.kernels: list[str] = []
        self.arena_bytes = 0
        self._symbols: dict[str, None] = {}
        self._longest = 1

    # ------------------------------------------------------------------------------------------------- the function

    def text(self, part: Part) -> str:
        """The module."""
        scope = self.enter(part)
        given = part.graph.inputs
        dim = len(given)
        for at, value in enumerate(given):
            dims = []
            for size in value.tensor.dims:
                dims.append(str(size) if isinstance(size, int) else self.entry(dim))
                dim += 1
            self.put(scope, value, Operand(self.entry(at), "0", dims))
        self.items(scope)
        self.results(scope)
        # What stands in the table behind the inputs follows from how many weights there are.
        behind = dim + len(self.weights)
        first = {"WEIGHT": dim, "ARENA": behind, "ASK": behind + 1, "RESULT": behind + 1 + ASKED}
        text = "\n".join([*self.head(), *self.lines, *self.foot()])
        return re.sub(r"(WEIGHT|ARENA|ASK|RESULT)_(\d+)", lambda found: str(first[found[1]] + int(found[2])), text)

    def head(self) -> list[str]:
        """What stands before the items: helpers, and the frame."""
        declared = [f"declare i32 {quote(symbol)}(ptr, i64)" for symbol in self._symbols]
        return [
            f'target triple = "{self.target.triple}"', HELPERS, *declared,
            f"define void {quote(f'{self.name}_release')}(i64 %owner) {{",
            "  call void @control.release(i64 %owner)", "  ret void", "}",
            f"define i32 {quote(self.name)}(i64 %table_at, i64 %threads) {{",
            "entry:",
            "  %table = inttoptr i64 %table_at to ptr",
            f"  %args = alloca [{self._longest} x i64], align 64",
            f"  %slots = alloca [{2 * max(self.slots, 1)} x i64], align 16",
            f"  %cells = alloca [{max(self.cells, 1)} x i64], align 16",
            "  %turns = alloca i64",
            "  store i64 0, ptr %turns", "  %second = alloca i64", "  store i64 0, ptr %second",
            "  %ask = getelementptr i64, ptr %table, i64 ASK_0",
            "  %code = alloca i32",
            "  store i32 0, ptr %code",
            f"  call void @llvm.memset.p0.i64(ptr %slots, i8 0, i64 {16 * max(self.slots, 1)}, i1 false)",
        ]  # fmt: skip

    def foot(self) -> list[str]:
        """Lets go of all that the frame holds, however the call ended."""
        failing = [("decline", DECLINED), ("stop", STOPPED), ("no_memory", NO_MEMORY | 0xFFFF << KERNEL_SHIFT)]
        made = ["  br label %leave"]
        for label, code in failing:
            made += [f"{label}:", f"  store i32 {code}, ptr %code", "  br label %leave"]
        return [
            *made,
            "leave:",
            "  br label %let_go",
            "let_go:",
            "  %slot = phi i64 [ 0, %leave ], [ %next_slot, %let_go ]",
            "  %twice = shl i64 %slot, 1",
            "  %held = getelementptr i64, ptr %slots, i64 %twice",
            "  call void @control.set(ptr %held, i64 0, i64 0)",
            "  %next_slot = add i64 %slot, 1",
            f"  %more_slots = icmp slt i64 %next_slot, {max(self.slots, 1)}",
            "  br i1 %more_slots, label %let_go, label %end",
            "end:",
            "  %found_code = load i32, ptr %code",
            "  ret i32 %found_code",
            "}",
            "",
        ]

    def results(self, scope: Scope) -> None:
        """Copies results to the caller, or tells where those are whose sizes are open."""
        start = 0
        for value in scope.part.graph.outputs:
            operand, kind = self.operand(scope, value), value.tensor
            if kind.is_static:
                self.copy(self.entry(f"RESULT_{start}"), operand.address, self.bytes(scope, value))
            else:
                self.retain(operand.owner)
                for at, one in enumerate((operand.address, operand.owner, *operand.dims)):
                    place = self.op(f"getelementptr i64, ptr %table, i64 RESULT_{start + at}")
                    self.line(f"store i64 {one}, ptr {place}")
            start += 2 + len(kind.dims)

    # -------------------------------------------------------------------------------------------------------- sizes

    def size(self, scope: Scope, dim: Dim) -> str:
        """A size as an operand."""
        if isinstance(dim, int):
            return str(dim)
        if isinstance(dim, Const):
            return str(int(dim.value))
        if isinstance(dim, Var):
            if dim not in scope.sizes:
                raise NoControl(f"the size {dim!r} is not known when it is needed")
            return self.load(scope.sizes[dim])
        if type(dim) not in _INFIX and type(dim) not in _CALLS:
            raise NoControl(f"the size {dim!r} is not of a kind that native code computes")
        a, b = (self.size(scope, one) for one in (dim.a, dim.b))  # type: ignore[attr-defined]
        if type(dim) in _INFIX:
            return self.op(f"{_INFIX[type(dim)]} i64 {a}, {b}")
        return self.op(f"call i64 {_CALLS[type(dim)]}(i64 {a}, i64 {b})")

    def bytes(self, scope: Scope, value: Value) -> str:
        """The bytes of a value."""
        layouts, kind = scope.part.layouts, value.tensor
        dims = layouts[value].shape(kind.dims) if value in layouts else kind.dims
        return self.whole([self.size(scope, dim) for dim in dims], kind.numpy.itemsize)

    def whole(self, dims: Iterable[str], item: int) -> str:
        """Sizes times the bytes of an element."""
        found = str(item)
        for dim in dims:
            if found.isdigit() and dim.isdigit():
                found = str(int(found) * int(dim))
            else:
                found = self.op(f"call i64 @control.times(i64 {found}, i64 {dim})")
        return found

    def positive(self, scope: Scope, values: Iterable[Value]) -> None:
        """Goes on only where no size of these is below 1."""
        for value in values:
            for dim in value.tensor.dims:
                if isinstance(dim, int) or any(structural_equal(dim, known) for known in scope.checked):
                    continue
                scope.checked.append(dim)
                self.check(self.op(f"icmp sgt i64 {self.size(scope, dim)}, 0"))

    # ------------------------------------------------------------------------------------------------------- values

    def enter(self, part: Part) -> Scope:
        """A part to be written: where its values lie."""
        scope = Scope(part)
        made_by: dict[Value, int] = {}
        last: dict[Value, int] = {}
        escaping = set(part.graph.outputs)
        for at, item in enumerate(part.items):
            if isinstance(item, View):
                scope.same[item.output] = scope.root(item.source)
            elif isinstance(item, Launch):
                scope.same.update({made: scope.root(before) for before, made in updated_by(item)})
                made_by.update({value: at for value in item.writes if scope.root(value) is value})
            elif not isinstance(item, (Grow, parts.Room)):
                escaping.update(_read(item))
            last.update({scope.root(value): at for value in (*_read(item), *_made(item))})
        scope.escaping = {scope.root(value) for value in escaping}
        lives = {}
        for value, at in made_by.items():
            if value.tensor.is_static and value not in scope.escaping:
                kind = part.layouts[value].stored(value.tensor) if value in part.layouts else value.tensor
                size = int(np.prod(kind.static, dtype=np.int64)) * kind.numpy.itemsize
                lives[value] = Life(size, at, last[value])
        plan = plan_memory(lives, None, self.target.part_bytes)
        for value in lives:
            scope.offsets[value] = self.arena_bytes + plan.offsets[value]
        self.arena_bytes += -(-plan.bytes // 64) * 64
        return scope

    def operand(self, scope: Scope, value: Value) -> Operand:
        """A value where it is now."""
        constants = scope.part.graph.constants
        root = scope.root(value)
        if root in constants:
            dims = [str(size) for size in value.tensor.static]
            return Operand(self.weight(constants[root]), "0", dims)
        dims = [self.size(scope, dim) for dim in value.tensor.dims]
        if root in scope.offsets:
            base = self.entry("ARENA_0")
            return Operand(self.op(f"add i64 {base}, {scope.offsets[root]}"), "0", dims)
        address, owner = self.get(scope.slots[value])
        return Operand(address, owner, dims)

    def put(self, scope: Scope, value: Value, operand: Operand, retained: bool = False) -> None:
        """Makes a value what an operand is."""
        if not retained:
            self.retain(operand.owner)
        self.set(scope.slots.setdefault(value, self.slots), operand.address, operand.owner)
        self.slots = max(self.slots, scope.slots[value] + 1)
        self.shape(scope, value, operand.dims)

    def shape(self, scope: Scope, value: Value, dims: Sequence[str]) -> None:
        """Notes the sizes of a value, and checks those that are known already."""
        for at, (dim, now) in enumerate(zip(value.tensor.dims, dims)):
            if isinstance(dim, Var) and ((value, at) in scope.defines or dim not in scope.sizes):
                scope.defines.add((value, at))
                if dim not in scope.sizes:
                    scope.sizes[dim] = self.new_cell()
                self.store(scope.sizes[dim], now)
            elif str(dim) != now:
                self.check(self.op(f"icmp eq i64 {self.size(scope, dim)}, {now}"))

    def allocate(self, scope: Scope, value: Value) -> None:
        """A new block for a value."""
        owner = self.block(self.bytes(scope, value))
        self.set(scope.slots.setdefault(value, self.slots), self.op(f"add i64 {owner}, 64"), owner)
        self.slots = max(self.slots, scope.slots[value] + 1)

    def block(self, size: str) -> str:
        """A new block of so many bytes."""
        self.check(self.op(f"icmp sle i64 {size}, {self.most_bytes}"))
        owner = self.op(f"call i64 @control.new(i64 {size}, i64 {size})")
        self.check(self.op(f"icmp ne i64 {owner}, 0"), "no_memory")
        return owner

    # -------------------------------------------------------------------------------------------------------- items

    def items(self, scope: Scope) -> None:
        """All that a part does; what nobody reads afterwards is let go."""
        last = {value: at for at, item in enumerate(scope.part.items) for value in (*_read(item), *_made(item))}
        kept = {*scope.part.graph.inputs, *scope.part.graph.outputs}
        self.equations(scope)
        scope.checked.clear()
        for at, item in enumerate(scope.part.items):
            if isinstance(item, Launch):
                self.launch(scope, item)
            elif isinstance(item, View):
                self.view(scope, item)
            elif isinstance(item, Grow):
                self.grow(scope, item)
            elif isinstance(item, parts.Room):
                count = self.pointer(self.operand(scope, item.count).address)
                self.put(scope, item.output, Operand("0", "0", [self.op(f"load i64, ptr {count}")]))
            elif isinstance(item, Branch):
                self.branch(scope, item)
            elif isinstance(item, Turns):
                self.turns(scope, item)
            else:
                self.inner(scope, item, [], item.outputs)
            for value in dict.fromkeys((*_read(item), *_made(item))):
                if last[value] == at and value in scope.slots and value not in kept:
                    self.set(scope.slots[value], "0", "0")

    def equations(self, scope: Scope) -> None:
        """Goes on only where the sizes are such as the nodes take."""
        known = scope.part.graph.symbols
        for choices in scope.part.equations:
            holds = "false"
            for a, b in choices:
                right = str(b) if isinstance(b, int) else self.size(scope, known[b])
                one = self.op(f"icmp eq i64 {self.size(scope, known[a])}, {right}")
                holds = self.op(f"or i1 {holds}, {one}")
            self.check(holds)

    def launch(self, scope: Scope, item: Launch) -> None:
        """One call of a kernel."""
        read = [a if isinstance(a, Value) else a[0] for a in item.arguments]
        self.positive(scope, (*read, *item.writes))
        updated = {made: before for before, made in updated_by(item)}
        for value in item.writes:
            if scope.root(value) in scope.offsets:
                continue
            if value in updated:
                self.put(scope, value, self.operand(scope, updated[value]))
            else:
                self.allocate(scope, value)
        places = [self.argument(scope, one) for one in item.arguments]
        places += [self.size(scope, var) for var in item.sizes]
        self._longest = max(self._longest, len(places))
        for at, place in enumerate(places):
            where = self.op(f"getelementptr i64, ptr %args, i64 {at}")
            self.line(f"store i64 {place}, ptr {where}")
        self._symbols[item.kernel.symbol] = None
        code = self.op(f"call i32 {quote(item.kernel.symbol)}(ptr %args, i64 %threads)")
        done, failed = self.label(), self.label()
        self.line(f"br i1 {self.op(f'icmp eq i32 {code}, 0')}, label %{done}, label %{failed}")
        self.begin(failed)
        told = self.op(f"or i32 {code}, {len(self.kernels) << KERNEL_SHIFT}")
        self.kernels.append(described(item.nodes))
        self.line(f"store i32 {told}, ptr %code")
        self.line("br label %leave")
        self.begin(done)

    def argument(self, scope: Scope, one: Value | tuple[Value, Packing]) -> str:
        """The address of what a kernel takes."""
        if isinstance(one, tuple):
            return self.weight(scope.part.graph.constants[one[0]], one[1])
        return self.operand(scope, one).address

    def view(self, scope: Scope, item: View) -> None:
        """A value in the memory of another."""
        root = scope.root(item.source)
        if root not in scope.offsets and root not in scope.part.graph.constants:
            found = self.operand(scope, item.source)
            dims = [self.size(scope, dim) for dim in item.output.tensor.dims]
            self.put(scope, item.output, Operand(found.address, found.owner, dims))

    def grow(self, scope: Scope, item: Grow) -> None:
        """A value put behind another."""
        before, behind = self.operand(scope, item.before), self.operand(scope, item.behind)
        bytes_before, bytes_behind = self.bytes(scope, item.before), self.bytes(scope, item.behind)
        owner = self.behind(before.address, before.owner, bytes_before, behind.address, bytes_behind)
        dims = [self.size(scope, dim) for dim in item.output.tensor.dims]
        self.put(scope, item.output, Operand(self.op(f"add i64 {owner}, 64"), owner, dims), retained=True)

    def behind(self, address: str, owner: str, size: str, part: str, more: str) -> str:
        """The owner of a block with a part put behind; its room is at most twice what it holds."""
        self.check(self.op(f"icmp sle i64 {size}, {self.most_bytes // 2}"))
        self.check(self.op(f"icmp sle i64 {more}, {self.most_bytes // 2}"))
        given = f"i64 {address}, i64 {owner}, i64 {size}, i64 {part}, i64 {more}"
        made = self.op(f"call i64 @control.behind({given})")
        self.check(self.op(f"icmp ne i64 {made}, 0"), "no_memory")
        return made

    def truth(self, operand: Operand) -> str:
        """A bool in memory."""
        byte = self.op(f"load i8, ptr {self.pointer(operand.address)}")
        return self.op(f"icmp ne i8 {byte}, 0")

    def inner(self, scope: Scope, inner: Inner, own: Sequence[Operand], outputs: Sequence[Value]) -> None:
        """A part once, and what it makes as values of the part around it."""
        body = self.enter(inner.part)
        given = [*own, *(self.operand(scope, value) for value in inner.captured)]
        for value, operand in zip(inner.part.graph.inputs, given, strict=True):
            self.put(body, value, operand)
        self.items(body)
        for value, made in zip(outputs, inner.part.graph.outputs, strict=True):
            if value not in inner.captured:  # the rest of a graph hands on what was made before
                self.put(scope, value, self.operand(body, made))
        self.leave(body)

    def leave(self, scope: Scope, inputs: bool = True) -> None:
        """Lets go of what a part still holds."""
        ends = {*scope.part.graph.outputs, *(scope.part.graph.inputs if inputs else ())}
        for value in (v for v in scope.slots if v in ends and (inputs or v not in scope.part.graph.inputs)):
            self.set(scope.slots[value], "0", "0")

    def branch(self, scope: Scope, item: Branch) -> None:
        """One of two parts."""
        then, other, end = self.label(), self.label(), self.label()
        taken = self.truth(self.operand(scope, item.condition))
        self.line(f"br i1 {taken}, label %{then}, label %{other}")
        for label, inner in ((then, item.then), (other, item.other)):
            self.begin(label)
            self.inner(scope, inner, [], item.node.outputs)
            self.line(f"br label %{end}")
        self.begin(end)

    # -------------------------------------------------------------------------------------------------------- turns

    def turns(self, scope: Scope, item: Turns) -> None:
        """A part again and again."""
        body = self.enter(item.body.part)
        given = item.body.part.graph.inputs
        count = len(item.states)
        rows = [self.operand(scope, value) for value, _ in item.rows]
        limit = self.limit(scope, item, rows)
        for value, source in zip(given[item.skip :], item.states):
            self.put(body, value, self.operand(scope, source))
        for value, source in zip(given[item.skip + count + len(rows) :], item.body.captured, strict=True):
            self.put(body, value, self.operand(scope, source))
        turn, going = self.new_cell("0"), self.new_cell("1")
        if item.condition is not None:
            first = self.truth(self.operand(scope, item.condition))
            self.store(going, self.op(f"zext i1 {first} to i64"))
        made = item.body.part.graph.outputs[item.skip // 2 + count :]
        kept = [self.keeper(value) for value in made]
        head, inside, end = self.label(), self.label(), self.label()
        self.line(f"br label %{head}")
        self.begin(head)
        now = self.load(turn)
        more = self.op(f"icmp slt i64 {now}, {limit}")
        on = self.op(f"icmp ne i64 {self.load(going)}, 0")
        self.line(f"br i1 {self.op(f'and i1 {more}, {on}')}, label %{inside}, label %{end}")
        self.begin(inside)
        stopped = self.op("call i1 @control.stopped(ptr %ask, ptr %turns, ptr %second)")
        self.check(self.op(f"xor i1 {stopped}, true"), "stop")
        self.turn_inputs(body, item, rows, turn, limit)
        self.items(body)
        self.turn_outputs(body, item, kept, turn, going, limit)
        self.line(f"br label %{head}")
        self.begin(end)
        for value, source in zip(item.node.outputs, given[item.skip :][:count]):
            self.put(scope, value, self.operand(body, source))
        for value, (slot, _, dims) in zip(item.node.outputs[count:], kept, strict=True):
            address, owner = self.get(slot)
            shape = [self.load(turn), *(d if isinstance(d, str) else self.load(d) for d in dims)]
            self.put(scope, value, Operand(address, owner, shape))
            self.set(slot, "0", "0")
        self.leave(body)

    def limit(self, scope: Scope, item: Turns, rows: Sequence[Operand]) -> str:
        """How many turns there are at most."""
        if not rows:
            if item.limit is None:
                return str(MOST_TURNS)
            kind = f"i{8 * item.limit.tensor.numpy.itemsize}"
            found = self.op(f"load {kind}, ptr {self.pointer(self.operand(scope, item.limit).address)}")
            return found if kind == "i64" else self.op(f"sext {kind} {found} to i64")
        for one in rows[1:]:
            if one.dims[0] != rows[0].dims[0]:
                self.check(self.op(f"icmp eq i64 {one.dims[0]}, {rows[0].dims[0]}"))
        return rows[0].dims[0]

    def keeper(self, value: Value) -> Keeper:
        """Where rows of a value are kept."""
        dims = [str(d) if isinstance(d, int) else self.new_cell("0") for d in value.tensor.dims]
        return self.new_slot(), self.new_cell("0"), dims

    def turn_inputs(self, body: Scope, item: Turns, rows: Sequence[Operand], turn: int, limit: str) -> None:
        """What a turn takes that is not a state."""
        given = item.body.part.graph.inputs
        if item.skip:
            counter = given[0]
            if body.root(counter) in body.escaping:  # whoever holds it keeps the number of this turn
                self.allocate(body, counter)
                address, _ = self.get(body.slots[counter])
                self.line(f"store i64 {self.load(turn)}, ptr {self.pointer(address)}")
            else:
                self.put(body, counter, Operand(self.op(f"ptrtoint ptr {self.cell(turn)} to i64"), "0", []))
            self.put(body, given[1], Operand(self.weight(_TRUE), "0", []))
        for value, operand, (_, back) in zip(given[item.skip + len(item.states) :], rows, item.rows):
            now = self.load(turn)
            if back:
                now = self.op(f"sub i64 {self.op(f'sub i64 {limit}, 1')}, {now}")
            step = self.whole(operand.dims[1:], value.tensor.numpy.itemsize)
            address = self.op(f"add i64 {operand.address}, {self.op(f'mul i64 {now}, {step}')}")
            self.put(body, value, Operand(address, operand.owner, operand.dims[1:]))

    def turn_outputs(self, body: Scope, item: Turns, kept: Sequence[Keeper], turn: int, going: int, limit: str) -> None:
        """What a turn leaves: whether to go on, rows, and states."""
        made = [self.operand(body, value) for value in item.body.part.graph.outputs]
        if item.skip:
            self.store(going, self.op(f"zext i1 {self.truth(made[0])} to i64"))
        first = item.skip // 2
        states, rows = made[first : first + len(item.states)], made[first + len(item.states) :]
        values = item.body.part.graph.outputs[first + len(item.states) :]
        for value, operand, keeper, back in zip(values, rows, kept, item.kept_back, strict=True):
            self.keep(value, operand, keeper, turn, limit if back else None)
        for operand in states:
            self.retain(operand.owner)
        for value, operand in zip(item.body.part.graph.inputs[item.skip :], states):
            self.put(body, value, operand, retained=True)
        self.leave(body, inputs=False)
        self.store(turn, self.op(f"add i64 {self.load(turn)}, 1"))

    def keep(self, value: Value, operand: Operand, keeper: Keeper, turn: int, back: str | None) -> None:
        """Puts the row of a turn behind those before it, or, of so many turns, before them; all rows are alike."""
        slot, used, dims = keeper
        is_first = self.op(f"icmp eq i64 {self.load(turn)}, 0")
        for cell, now in zip(dims, operand.dims):
            if isinstance(cell, str):
                if cell != now:
                    self.check(self.op(f"icmp eq i64 {cell}, {now}"))
                continue
            wanted = self.op(f"select i1 {is_first}, i64 {now}, i64 {self.load(cell)}")
            self.check(self.op(f"icmp eq i64 {wanted}, {now}"))
            self.store(cell, wanted)
        size = self.whole(operand.dims, value.tensor.numpy.itemsize)
        if back is not None:
            self.keep_back(operand, slot, size, turn, back)
            return
        before = self.load(used)
        address, owner = self.get(slot)
        made = self.behind(address, owner, before, operand.address, size)
        self.set(slot, self.op(f"add i64 {made}, 64"), made)
        self.store(used, self.op(f"add i64 {before}, {size}"))

    def keep_back(self, operand: Operand, slot: int, size: str, turn: int, limit: str) -> None:
        """Puts the row of a turn where it stays: the last one first."""
        first, later = self.label(), self.label()
        now = self.load(turn)
        self.line(f"br i1 {self.op(f'icmp eq i64 {now}, 0')}, label %{first}, label %{later}")
        self.begin(first)
        owner = self.block(self.op(f"call i64 @control.times(i64 {size}, i64 {limit})"))
        self.set(slot, self.op(f"add i64 {owner}, 64"), owner)
        self.line(f"br label %{later}")
        self.begin(later)
        left = self.op(f"sub i64 {self.op(f'sub i64 {limit}, 1')}, {now}")
        self.copy(self.op(f"add i64 {self.get(slot)[0]}, {self.op(f'mul i64 {left}, {size}')}"), operand.address, size)


_TRUE = np.array(True)


def _read(item: ControlItem) -> list[Value]:
    """The values that an item reads."""
    if isinstance(item, Launch):
        return [one if isinstance(one, Value) else one[0] for one in item.arguments]
    if isinstance(item, View):
        return [item.source]
    if isinstance(item, Grow):
        return [item.before, item.behind]
    if isinstance(item, parts.Room):
        return [item.count]
    if isinstance(item, Branch):
        return [item.condition, *item.then.captured, *item.other.captured]
    if isinstance(item, Inner):
        return list(item.captured)
    ends = [value for value in (item.limit, item.condition) if value is not None]
    return [*ends, *item.states, *(value for value, _ in item.rows), *item.body.captured]


def _made(item: ControlItem) -> Sequence[Value]:
    """The values that an item makes."""
    if isinstance(item, Launch):
        return item.writes
    if isinstance(item, (View, Grow, parts.Room)):
        return [item.output]
    return item.outputs if isinstance(item, Inner) else item.node.outputs

"""Pieces of the LLVM IR that branches and loops are written in: a function whose frame counts references.

A block of memory has a head of 64 bytes (references, bytes in use, bytes there is room for). The frame of the function
has slots (an address and its owner: a block, or 0) and cells (numbers); a slot holds one reference of its owner.
"""

from __future__ import annotations

from collections.abc import Hashable

from weft.compiler.kernels.build import Packing
from weft.graph.ir import Array

HELPERS = """
declare ptr @weft_allocate(i64)
declare void @weft_release(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare { i64, i1 } @llvm.smul.with.overflow.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define internal i64 @control.divided(i64 %a, i64 %b) {
  %q = sdiv i64 %a, %b
  %r = srem i64 %a, %b
  %signs = xor i64 %r, %b
  %other = icmp slt i64 %signs, 0
  %some = icmp ne i64 %r, 0
  %down = and i1 %other, %some
  %one = zext i1 %down to i64
  %found = sub i64 %q, %one
  ret i64 %found
}
define internal i64 @control.left(i64 %a, i64 %b) {
  %q = call i64 @control.divided(i64 %a, i64 %b)
  %whole = mul i64 %q, %b
  %found = sub i64 %a, %whole
  ret i64 %found
}
; A product of sizes; where it is too large, or a size is below 0, the largest number.
define internal i64 @control.times(i64 %a, i64 %b) {
  %both = call { i64, i1 } @llvm.smul.with.overflow.i64(i64 %a, i64 %b)
  %found = extractvalue { i64, i1 } %both, 0
  %over = extractvalue { i64, i1 } %both, 1
  %low = icmp slt i64 %found, 0
  %bad = or i1 %over, %low
  %answer = select i1 %bad, i64 9223372036854775807, i64 %found
  ret i64 %answer
}
; A block with one reference; 0 where there is no memory.
define internal i64 @control.new(i64 %bytes, i64 %room) {
  %whole = add i64 %room, 64
  %block = call ptr @weft_allocate(i64 %whole)
  %none = icmp eq ptr %block, null
  br i1 %none, label %done, label %fill
fill:
  store i64 1, ptr %block
  %used = getelementptr i64, ptr %block, i64 1
  store i64 %bytes, ptr %used
  %most = getelementptr i64, ptr %block, i64 2
  store i64 %room, ptr %most
  br label %done
done:
  %owner = ptrtoint ptr %block to i64
  ret i64 %owner
}
define internal void @control.retain(i64 %owner) {
  %none = icmp eq i64 %owner, 0
  br i1 %none, label %done, label %some
some:
  %block = inttoptr i64 %owner to ptr
  %count = load i64, ptr %block
  %more = add i64 %count, 1
  store i64 %more, ptr %block
  br label %done
done:
  ret void
}
define internal void @control.release(i64 %owner) {
  %none = icmp eq i64 %owner, 0
  br i1 %none, label %done, label %some
some:
  %block = inttoptr i64 %owner to ptr
  %count = load i64, ptr %block
  %fewer = sub i64 %count, 1
  store i64 %fewer, ptr %block
  %last = icmp eq i64 %fewer, 0
  br i1 %last, label %free, label %done
free:
  call void @weft_release(ptr %block)
  br label %done
done:
  ret void
}
; Puts an address and an owner, whose reference is handed over, into a slot; what was there is let go.
define internal void @control.set(ptr %slot, i64 %address, i64 %owner) {
  %at = getelementptr i64, ptr %slot, i64 1
  %old = load i64, ptr %at
  store i64 %address, ptr %slot
  store i64 %owner, ptr %at
  call void @control.release(i64 %old)
  ret void
}
; Whether a handler of a signal has raised (Ctrl-C). Python is asked once a second, by the clock of every 8th turn.
; `ask` is the clock, PyGILState_Ensure, PyErr_CheckSignals, PyErr_Fetch, PyGILState_Release, room for what was raised.
define internal i1 @control.stopped(ptr %ask, ptr %turns, ptr %last) {
  %before = load i64, ptr %turns
  %now = add i64 %before, 1
  store i64 %now, ptr %turns
  %part = and i64 %now, 7
  %due = icmp eq i64 %part, 0
  br i1 %due, label %look, label %on
look:
  %clock = load ptr, ptr %ask
  %second = call i64 %clock(ptr null)
  %old = load i64, ptr %last
  store i64 %second, ptr %last
  %same = icmp eq i64 %second, %old
  %first = icmp eq i64 %old, 0
  %early = or i1 %same, %first
  br i1 %early, label %on, label %heed
heed:
  %at = getelementptr [8 x ptr], ptr %ask, i64 0, i64 1
  %functions = load [4 x ptr], ptr %at
  %ensure = extractvalue [4 x ptr] %functions, 0
  %check = extractvalue [4 x ptr] %functions, 1
  %fetch = extractvalue [4 x ptr] %functions, 2
  %release = extractvalue [4 x ptr] %functions, 3
  %state = call i32 %ensure()
  %found = call i32 %check()
  %raised = icmp ne i32 %found, 0
  br i1 %raised, label %take, label %give
take:
  %kind = getelementptr [8 x ptr], ptr %ask, i64 0, i64 5
  %value = getelementptr [8 x ptr], ptr %ask, i64 0, i64 6
  %trace = getelementptr [8 x ptr], ptr %ask, i64 0, i64 7
  call void %fetch(ptr %kind, ptr %value, ptr %trace)
  br label %give
give:
  call void %release(i32 %state)
  ret i1 %raised
on:
  ret i1 false
}
; A block, with a reference, that holds some bytes and a part behind them; 0 where there is no memory.
define internal i64 @control.behind(i64 %address, i64 %owner, i64 %bytes, i64 %part, i64 %more) {
  %sum = add i64 %bytes, %more
  %source = inttoptr i64 %part to ptr
  %none = icmp eq i64 %owner, 0
  br i1 %none, label %fresh, label %look
look:
  %old = inttoptr i64 %owner to ptr
  %used_at = getelementptr i64, ptr %old, i64 1
  %room_at = getelementptr i64, ptr %old, i64 2
  %used = load i64, ptr %used_at
  %room = load i64, ptr %room_at
  %first = add i64 %owner, 64
  %whole = icmp eq i64 %first, %address
  %last = icmp eq i64 %used, %bytes
  %fits = icmp sle i64 %sum, %room
  %so_far = and i1 %whole, %last
  %here = and i1 %so_far, %fits
  br i1 %here, label %grow, label %fresh
grow:
  %end = add i64 %address, %bytes
  %end_at = inttoptr i64 %end to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %end_at, ptr %source, i64 %more, i1 false)
  store i64 %sum, ptr %used_at
  call void @control.retain(i64 %owner)
  ret i64 %owner
fresh:
  %twice = shl i64 %sum, 1
  %wide = call i64 @llvm.smax.i64(i64 %twice, i64 256)
  %made = call i64 @control.new(i64 %sum, i64 %wide)
  %failed = icmp eq i64 %made, 0
  br i1 %failed, label %done, label %copy
copy:
  %to = add i64 %made, 64
  %to_at = inttoptr i64 %to to ptr
  %from = inttoptr i64 %address to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %to_at, ptr %from, i64 %bytes, i1 false)
  %next = add i64 %to, %bytes
  %next_at = inttoptr i64 %next to ptr
  call void @llvm.memcpy.p0.p0.i64(ptr %next_at, ptr %source, i64 %more, i1 false)
  br label %done
done:
  ret i64 %made
}
"""


class Code:
    """A function while it is written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.weights: list[Array] = []
        self.slots = self.cells = self._count = 0
        self._weight_of: dict[Hashable, int] = {}
        self._held: list[Array] = []  # what is known by its identity stays

    def line(self, text: str) -> None:
        """One line."""
        self.lines.append(f"  {text}")

    def op(self, text: str) -> str:
        """An instruction; the name of what it makes."""
        self._count += 1
        name = f"%t{self._count}"
        self.line(f"{name} = {text}")
        return name

    def label(self) -> str:
        """A new label."""
        self._count += 1
        return f"l{self._count}"

    def begin(self, label: str) -> None:
        """The block of a label."""
        self.lines.append(f"{label}:")

    def entry(self, at: int | str) -> str:
        """An entry of the table."""
        place = self.op(f"getelementptr i64, ptr %table, i64 {at}")
        return self.op(f"load i64, ptr {place}")

    def check(self, condition: str, otherwise: str = "decline") -> None:
        """Goes on only where a condition holds."""
        on = self.label()
        self.line(f"br i1 {condition}, label %{on}, label %{otherwise}")
        self.begin(on)

    def pointer(self, address: str) -> str:
        """An address as a pointer."""
        return self.op(f"inttoptr i64 {address} to ptr")

    def copy(self, target: str, source: str, size: str) -> None:
        """Copies so many bytes."""
        to, start = self.pointer(target), self.pointer(source)
        self.line(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {start}, i64 {size}, i1 false)")

    def retain(self, owner: str) -> None:
        """One more reference."""
        if owner != "0":
            self.line(f"call void @control.retain(i64 {owner})")

    def slot(self, number: int) -> str:
        """Where a slot is."""
        return self.op(f"getelementptr i64, ptr %slots, i64 {2 * number}")

    def set(self, number: int, address: str, owner: str) -> None:
        """Fills a slot; the owner's reference is handed over."""
        self.line(f"call void @control.set(ptr {self.slot(number)}, i64 {address}, i64 {owner})")

    def get(self, number: int) -> tuple[str, str]:
        """Address and owner of a slot."""
        slot = self.slot(number)
        behind = self.op(f"getelementptr i64, ptr {slot}, i64 1")
        return self.op(f"load i64, ptr {slot}"), self.op(f"load i64, ptr {behind}")

    def new_slot(self) -> int:
        """A slot of the frame."""
        self.slots += 1
        return self.slots - 1

    def new_cell(self, start: str | None = None) -> int:
        """A cell for a number."""
        self.cells += 1
        if start is not None:
            self.store(self.cells - 1, start)
        return self.cells - 1

    def cell(self, number: int) -> str:
        """Where a cell is."""
        return self.op(f"getelementptr i64, ptr %cells, i64 {number}")

    def store(self, number: int, value: str) -> None:
        """Puts a number into a cell."""
        self.line(f"store i64 {value}, ptr {self.cell(number)}")

    def load(self, number: int) -> str:
        """The number in a cell."""
        return self.op(f"load i64, ptr {self.cell(number)}")

    def weight(self, array: Array, packing: Packing | None = None) -> str:
        """The address of a weight."""
        key: Hashable = (id(array), packing)
        if key not in self._weight_of:
            self._weight_of[key] = len(self.weights)
            self.weights.append(array if packing is None else packing.apply(array))
            self._held.append(array)
        return self.entry(f"WEIGHT_{self._weight_of[key]}")

"""Memory that ends, or begins, where no memory is: one element too many is a SIGSEGV at the very access.

`install()` puts everything that compiled code touches there, in this process: results, the arena and the weights of a
model, and what kernels take from `weft_allocate`. Inputs are the caller's: `place(array)` gives a copy. What has to be
aligned may leave a gap before the page; the gap holds a pattern that `check()` looks at.

    with placed(at_end=True, fill=0xAA): ...      how memory is placed in a block, and what it holds at first

`failing_allocation(n)` makes the n-th call of `weft_allocate` in a block answer that there is no memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np

PAGE = mmap.PAGESIZE
PATTERN = 0xC5
"""What stands in the gap between memory and its page."""

LARGEST = 1 << 28
"""More than so many bytes are left to numpy, or to what Weft itself does when there is no memory."""

_protect = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_manner = {"at_end": True, "fill": 0xAA}
_live: weakref.WeakValueDictionary[int, _Region] = weakref.WeakValueDictionary()


class Overrun(AssertionError):
    """Something wrote into the gap before a guard page."""


class _Region:
    """A mapping with a page on each side that nobody may touch."""

    def __init__(self, size: int, alignment: int) -> None:
        inner = -(-max(size, 1) // PAGE) * PAGE
        self.map = mmap.mmap(-1, inner + 2 * PAGE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        for page in (self.base, self.base + PAGE + inner):
            if _protect(page, PAGE, 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.size, self.end = size, PAGE + inner
        self.start = PAGE + ((inner - size) // alignment * alignment if _manner["at_end"] else 0)
        stop = self.start + size
        self.gaps = [slice(max(PAGE, self.start - 256), self.start), slice(stop, min(self.end, stop + 256))]
        whole = np.frombuffer(self.map, np.uint8)
        whole[self.start : stop] = _manner["fill"]
        for gap in self.gaps:
            whole[gap] = PATTERN
        _live[id(self)] = self

    def is_whole(self) -> bool:
        """Whether the gaps hold what was put there."""
        return all(set(self.map[gap]) <= {PATTERN} for gap in self.gaps)

    def alive(self) -> None:
        """Called when the last view of the memory goes: until then the region is held."""


def empty(shape: int | Sequence[int], dtype: Any = np.float64, alignment: int | None = None) -> np.ndarray:
    """A new array beside a guard page (plain memory for objects, and for very much)."""
    kind = np.dtype(dtype)
    shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(extent) for extent in shape)
    count = math.prod(shape)
    if kind.hasobject or count * kind.itemsize > LARGEST:
        return np.empty(shape, kind)
    region = _Region(count * kind.itemsize, alignment or kind.itemsize)
    if not count:
        made = root = np.ndarray(shape, kind, region.map, region.start)
    else:
        root = np.frombuffer(region.map, np.uint8, region.size, region.start)
        made = root.view(kind).reshape(shape)
    weakref.finalize(root, region.alive)
    return made


def place(array: Any) -> Any:
    """A copy of an array beside a guard page; what is no plain array stays what it is."""
    if not isinstance(array, np.ndarray) or array.dtype.hasobject:
        return array
    made = empty(array.shape, array.dtype)
    made[...] = array
    return made


def owns(array: np.ndarray) -> bool:
    """Whether an array lies beside a guard page."""
    at = array.ctypes.data
    return any(one.base + one.start <= at <= one.base + one.end for one in list(_live.values()))


def check() -> None:
    """Raises Overrun where a gap was written."""
    for region in list(_live.values()):
        if not region.is_whole():
            raise Overrun(f"something wrote beside an array of {region.size} bytes")
    if _allocator is not None and _allocator.overruns.value:
        _allocator.overruns.value = 0
        raise Overrun("a kernel wrote beside its intermediate array")


@contextlib.contextmanager
def placed(at_end: bool, fill: int) -> Iterator[None]:
    """How memory is placed inside the block, and the byte that it holds at first."""
    before = dict(_manner)
    _manner.update(at_end=at_end, fill=fill)
    _tell_allocator()
    try:
        yield
    finally:
        _manner.update(before)
        _tell_allocator()


def _tell_allocator() -> None:
    if _allocator is not None:
        _allocator.at_end.value, _allocator.fill.value = int(_manner["at_end"]), _manner["fill"]


# ------------------------------------------------------------------------------------------- what compiled code takes

_STATE = ("countdown", "calls", "at_end", "fill", "overruns")
_ALLOCATOR = """
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @mprotect(ptr, i64, i32)
declare i32 @munmap(ptr, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umax.i64(i64, i64)

; A mapping: a page that says how long it is and where its gap is, a guard, the data, a guard. The data is rounded up to
; a multiple of 64 bytes, so it begins in the first page between the guards, and the mapping is found from it.
define ptr @fuzz_allocate(i64 %bytes) nounwind {
entry:
  %counted = atomicrmw add ptr @fuzz.calls, i64 1 monotonic, align 8
  %left = atomicrmw sub ptr @fuzz.countdown, i64 1 monotonic, align 8
  %fails = icmp eq i64 %left, 1
  %absurd = icmp ugt i64 %bytes, 68719476736
  %none = or i1 %fails, %absurd
  br i1 %none, label %nothing, label %map
map:
  %more = add i64 %bytes, 63
  %rounded = and i64 %more, -64
  %data = call i64 @llvm.umax.i64(i64 %rounded, i64 64)
  %pages = add i64 %data, PAGE_LESS_1
  %inner = and i64 %pages, -PAGE
  %total = add i64 %inner, PAGES_3
  %base = call ptr @mmap(ptr null, i64 %total, i32 3, i32 34, i32 -1, i64 0)
  %failed = icmp eq ptr %base, inttoptr (i64 -1 to ptr)
  br i1 %failed, label %nothing, label %fill
fill:
  %low = getelementptr i8, ptr %base, i64 PAGE
  %code0 = call i32 @mprotect(ptr %low, i64 PAGE, i32 0)
  %first = getelementptr i8, ptr %base, i64 PAGES_2
  %high = getelementptr i8, ptr %first, i64 %inner
  %code1 = call i32 @mprotect(ptr %high, i64 PAGE, i32 0)
  %mode = load i64, ptr @fuzz.at_end
  %ends = icmp ne i64 %mode, 0
  %room = sub i64 %inner, %data
  %skip = select i1 %ends, i64 %room, i64 0
  %place = getelementptr i8, ptr %first, i64 %skip
  %filler = load i64, ptr @fuzz.fill
  %byte = trunc i64 %filler to i8
  call void @llvm.memset.p0.i64(ptr %place, i8 %byte, i64 %bytes, i1 false)
  %gap = getelementptr i8, ptr %place, i64 %bytes
  %rest = sub i64 %data, %bytes
  call void @llvm.memset.p0.i64(ptr %gap, i8 PATTERN, i64 %rest, i1 false)
  %gap_at = getelementptr i64, ptr %base, i64 1
  %rest_at = getelementptr i64, ptr %base, i64 2
  store i64 %total, ptr %base
  store ptr %gap, ptr %gap_at
  store i64 %rest, ptr %rest_at
  ret ptr %place
nothing:
  ret ptr null
}

define void @fuzz_release(ptr %place) nounwind {
entry:
  %nothing = icmp eq ptr %place, null
  br i1 %nothing, label %done, label %some
some:
  %address = ptrtoint ptr %place to i64
  %page = and i64 %address, -PAGE
  %start = sub i64 %page, PAGES_2
  %base = inttoptr i64 %start to ptr
  %total = load i64, ptr %base
  %gap_at = getelementptr i64, ptr %base, i64 1
  %rest_at = getelementptr i64, ptr %base, i64 2
  %gap = load ptr, ptr %gap_at
  %rest = load i64, ptr %rest_at
  br label %turn
turn:
  %at = phi i64 [ 0, %some ], [ %next, %same ]
  %more = icmp ult i64 %at, %rest
  br i1 %more, label %look, label %free
look:
  %one = getelementptr i8, ptr %gap, i64 %at
  %seen = load i8, ptr %one
  %next = add i64 %at, 1
  %whole = icmp eq i8 %seen, PATTERN
  br i1 %whole, label %same, label %written
same:
  br label %turn
written:
  %counted = atomicrmw add ptr @fuzz.overruns, i64 1 monotonic, align 8
  br label %free
free:
  %code = call i32 @munmap(ptr %base, i64 %total)
  br label %done
done:
  ret void
}
"""


class _Allocator:
    """The functions that kernels call in place of `weft_allocate` and `weft_release`, and their state."""

    def __init__(self) -> None:
        from weft.runtime.jit import compile_module

        text = _ALLOCATOR
        numbers = {"PAGE_LESS_1": PAGE - 1, "PAGES_2": 2 * PAGE, "PAGES_3": 3 * PAGE, "PAGE": PAGE}
        for name, number in {**numbers, "PATTERN": PATTERN - 256}.items():
            text = text.replace(name, str(number))
        for name in _STATE:
            text += f"@fuzz.{name} = global i64 0\ndefine ptr @fuzz_{name}() {{ ret ptr @fuzz.{name} }}\n"
        self.code = compile_module(f'target triple = "{llvm.get_process_triple()}"\n{text}')
        where = ctypes.CFUNCTYPE(ctypes.c_void_p)
        self.countdown, self.calls, self.at_end, self.fill, self.overruns = (
            ctypes.c_int64.from_address(where(self.code.address(f"fuzz_{name}"))()) for name in _STATE
        )
        self.functions = {
            "weft_allocate": self.code.address("fuzz_allocate"),
            "weft_release": self.code.address("fuzz_release"),
        }


_allocator: _Allocator | None = None


@contextlib.contextmanager
def failing_allocation(number: int) -> Iterator[Any]:
    """The n-th call of `weft_allocate` in the block finds no memory; gives a function that says how many there were."""
    assert _allocator is not None, "install() first"
    allocator = _allocator
    allocator.calls.value = 0
    allocator.countdown.value = number
    try:
        yield lambda: allocator.calls.value
    finally:
        allocator.countdown.value = 0


class _Numpy:
    """numpy, but its new arrays lie beside guard pages."""

    empty = staticmethod(empty)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def install() -> None:
    """Puts what compiled code touches beside guard pages, for the rest of this process."""
    global _allocator
    if _allocator is not None:
        return
    from weft.runtime.jit import native_runtime
    from weft.runtime.model import fastcall, runner

    _allocator = _Allocator()
    _tell_allocator()
    for name, address in _allocator.functions.items():
        native_runtime().addresses[name] = address
        llvm.add_symbol(name, address)
    fastcall.np = _Numpy()  # type: ignore[attr-defined]
    plain, plain_arena = fastcall.empty_array, runner.NativeRunner._new_arena

    def empty_array(shape: Sequence[int], dtype: Any) -> np.ndarray:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        return plain(shape, dtype) if size > LARGEST else empty(shape, dtype)

    fastcall.empty_array = empty_array

    def new_arena(one: Any, room: int = 0) -> tuple[int, np.ndarray]:
        room = room or max(one.program.arena_bytes, 64)
        if room > LARGEST:
            return plain_arena(one, room)
        array = empty(room, np.uint8, 64)
        return array.ctypes.data, array

    begin = runner.NativeRunner.__init__

    def init(self: Any, program: Any, *rest: Any, **named: Any) -> None:
        program.weights = [place(weight) for weight in program.weights]
        begin(self, program, *rest, **named)

    runner.NativeRunner.__init__ = init  # type: ignore[method-assign]
    runner.NativeRunner._new_arena = new_arena  # type: ignore[method-assign]
    runner.OpenSizes._large_arena = new_arena  # type: ignore[method-assign]
    runner.NativeRunner.give_arena = lambda self, arena: None  # type: ignore[method-assign]

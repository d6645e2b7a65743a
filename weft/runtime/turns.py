"""A loop in native code around the native call of a model's body.

    turns = run_turns(entry, tables, bases, copies, count, cells, limit, threads)

`entry` is called as a driver is, with a table of `bases` addresses, until `limit` turns are done, it fails, or the body
says that it is enough. Addresses lie in `tables`: one table for even turns, one for odd ones (a state is read where the
turn before wrote it), and by how much each address moves on after a turn (rows). `copies` are rows of seven numbers:
the source in even and in odd turns, the target in both, how far source and target move on after a turn, and the bytes
to copy. `cells` are the number of the turn, the address of a bool that says whether to go on (0: always), and the code
of a failure.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from weft.runtime.jit import JitModule, compile_kept, host_triple

Turns = Callable[[int, int, int, int, int, int, int, int], int]

_TEXT = """
target triple = "TRIPLE"

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @move(ptr %place, i64 %by) alwaysinline {
  %old = load i64, ptr %place
  %new = add i64 %old, %by
  store i64 %new, ptr %place
  ret void
}

define i64 @weft_turns(ptr %entry, ptr %even, i64 %bases, ptr %copies, i64 %count, ptr %cells, i64 %limit,
                       i64 %threads) {
start:
  %odd = getelementptr i64, ptr %even, i64 %bases
  %steps = getelementptr i64, ptr %odd, i64 %bases
  %going_cell = getelementptr i64, ptr %cells, i64 1
  %code_cell = getelementptr i64, ptr %cells, i64 2
  %going = load ptr, ptr %going_cell
  %endless = icmp eq ptr %going, null
  br label %test
test:
  %turn = phi i64 [ 0, %start ], [ %next, %turned ], [ %next, %ask ]
  %more = icmp slt i64 %turn, %limit
  br i1 %more, label %body, label %end
body:
  %bit = and i64 %turn, 1
  %is_odd = icmp ne i64 %bit, 0
  %table = select i1 %is_odd, ptr %odd, ptr %even
  %code = call i32 %entry(ptr %table, i64 %threads)
  %failed = icmp ne i32 %code, 0
  br i1 %failed, label %fail, label %copy_test
fail:
  %wide = sext i32 %code to i64
  store i64 %wide, ptr %code_cell
  ret i64 %turn
copy_test:
  %c = phi i64 [ 0, %body ], [ %c_next, %copy ]
  %c_more = icmp slt i64 %c, %count
  br i1 %c_more, label %copy, label %move_test
copy:
  %row_start = mul i64 %c, 7
  %row = getelementptr i64, ptr %copies, i64 %row_start
  %row1 = getelementptr i64, ptr %row, i64 1
  %row2 = getelementptr i64, ptr %row, i64 2
  %row3 = getelementptr i64, ptr %row, i64 3
  %row4 = getelementptr i64, ptr %row, i64 4
  %row5 = getelementptr i64, ptr %row, i64 5
  %row6 = getelementptr i64, ptr %row, i64 6
  %source_cell = getelementptr i64, ptr %row, i64 %bit
  %target_cell = getelementptr i64, ptr %row2, i64 %bit
  %source = load ptr, ptr %source_cell
  %target = load ptr, ptr %target_cell
  %source_step = load i64, ptr %row4
  %target_step = load i64, ptr %row5
  %bytes = load i64, ptr %row6
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  call void @move(ptr %row, i64 %source_step)
  call void @move(ptr %row1, i64 %source_step)
  call void @move(ptr %row2, i64 %target_step)
  call void @move(ptr %row3, i64 %target_step)
  %c_next = add i64 %c, 1
  br label %copy_test
move_test:
  %b = phi i64 [ 0, %copy_test ], [ %b_next, %move_on ]
  %b_more = icmp slt i64 %b, %bases
  br i1 %b_more, label %move_on, label %turned
move_on:
  %step_cell = getelementptr i64, ptr %steps, i64 %b
  %step = load i64, ptr %step_cell
  %even_cell = getelementptr i64, ptr %even, i64 %b
  %odd_cell = getelementptr i64, ptr %odd, i64 %b
  call void @move(ptr %even_cell, i64 %step)
  call void @move(ptr %odd_cell, i64 %step)
  %b_next = add i64 %b, 1
  br label %move_test
turned:
  call void @move(ptr %cells, i64 1)
  %next = add i64 %turn, 1
  br i1 %endless, label %test, label %ask
ask:
  %answer = load i8, ptr %going
  %on = icmp ne i8 %answer, 0
  br i1 %on, label %test, label %stop
stop:
  ret i64 %next
end:
  ret i64 %turn
}
"""


@functools.lru_cache(maxsize=1)
def _compiled() -> tuple[JitModule, Turns]:
    module = compile_kept(_TEXT.replace("TRIPLE", host_triple()))
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 8)
    return module, kind(module.address("weft_turns"))


def run_turns(
    entry: int, tables: int, bases: int, copies: int, count: int, cells: int, limit: int, threads: int
) -> int:
    """Runs turns; gives how many. All but the counts are addresses."""
    return _compiled()[1](entry, tables, bases, copies, count, cells, limit, threads)

"""Bodies of parallel loops in LLVM IR, and ways to run them, for the tests of the runtime."""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from weft.runtime.jit import JitModule, compile_module, native_runtime

BODIES = """
declare void @weft_parallel_for(ptr, ptr, i64, i64)
declare i32 @clock_gettime(i32, ptr)

; counts[i] += 1 for each i of the range
define void @count(i64 %begin, i64 %end, ptr %counts) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = getelementptr i32, ptr %counts, i64 %i
  %old = atomicrmw add ptr %at, i32 1 monotonic
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

; the same, for regions that are worth their threads: a microsecond or so of turns for each i
define void @toil(i64 %begin, i64 %end, ptr %counts) {
entry:
  %kept = alloca i64
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %counted ]
  br label %turn
turn:
  %turns = phi i64 [ 0, %loop ], [ %next_turn, %turn ]
  %x = phi i64 [ %i, %loop ], [ %next_x, %turn ]
  %mixed = mul i64 %x, 6364136223846793005
  %next_x = add i64 %mixed, 1442695040888963407
  %next_turn = add i64 %turns, 1
  %turning = icmp slt i64 %next_turn, 500
  br i1 %turning, label %turn, label %counted
counted:
  store volatile i64 %next_x, ptr %kept
  %at = getelementptr i32, ptr %counts, i64 %i
  %old = atomicrmw add ptr %at, i32 1 monotonic
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

declare i64 @pthread_self()

define i64 @own() {
  %self = call i64 @pthread_self()
  ret i64 %self
}

; threads[i] = the thread that ran i
define void @who(i64 %begin, i64 %end, ptr %threads) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = getelementptr i64, ptr %threads, i64 %i
  %self = call i64 @pthread_self()
  store i64 %self, ptr %at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

; for each i of the range, a region inside the region over counts[64 i .. 64 i + 63]
define void @nested(i64 %begin, i64 %end, ptr %counts) {
entry:
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %first = mul i64 %i, 64
  %at = getelementptr i32, ptr %counts, i64 %first
  call void @weft_parallel_for(ptr @count, ptr %at, i64 64, i64 4)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

; says that it is here, then waits (not for ever) until the other participant says so too
define void @meet(i64 %begin, i64 %end, ptr %arrived) {
entry:
  %length = sub i64 %end, %begin
  %old = atomicrmw add ptr %arrived, i64 %length seq_cst
  br label %loop
loop:
  %turn = phi i64 [ 0, %entry ], [ %next, %wait ]
  %seen = load atomic i64, ptr %arrived acquire, align 8
  %met = icmp sge i64 %seen, 2
  br i1 %met, label %done, label %wait
wait:
  %next = add i64 %turn, 1
  %patient = icmp slt i64 %next, 20000
  br i1 %patient, label %loop, label %missed
missed:
  %told = atomicrmw add ptr %arrived, i64 1000 seq_cst
  br label %done
done:
  ret void
}

define internal i64 @now() {
  %time = alloca { i64, i64 }
  %code = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr { i64, i64 }, ptr %time, i64 0, i32 1
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %rest
  ret i64 %sum
}

; the least nanoseconds of a region in which both participants took part
define i64 @quickest_meeting(i64 %rounds) {
entry:
  %arrived = alloca i64
  br label %round
round:
  %index = phi i64 [ 0, %entry ], [ %next, %round ]
  %best = phi i64 [ 1000000000, %entry ], [ %new_best, %round ]
  store atomic i64 0, ptr %arrived seq_cst, align 8
  %start = call i64 @now()
  call void @weft_parallel_for(ptr @meet, ptr %arrived, i64 2, i64 2)
  %stop = call i64 @now()
  %seen = load atomic i64, ptr %arrived seq_cst, align 8
  %met = icmp eq i64 %seen, 2
  %spent = sub i64 %stop, %start
  %quicker = icmp slt i64 %spent, %best
  %counts = and i1 %met, %quicker
  %new_best = select i1 %counts, i64 %spent, i64 %best
  %next = add i64 %index, 1
  %more = icmp slt i64 %next, %rounds
  br i1 %more, label %round, label %done
done:
  ret i64 %new_best
}
"""


@cache
def bodies() -> JitModule:
    return compile_module(BODIES)


def run_count(count: int, threads: int, body: str = "toil", width: int = 1) -> np.ndarray:
    """How often a region visited each index."""
    counts = np.zeros(count * width, np.int32)
    native_runtime().parallel_for(bodies().address(body), counts.ctypes.data, count, threads)
    return counts


def quickest_meeting(rounds: int) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(bodies().address("quickest_meeting"))(rounds)

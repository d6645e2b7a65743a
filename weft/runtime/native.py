"""The native half of the runtime: a thread pool and an allocator, as LLVM IR text.

In: a target triple. Out: the text of a module that defines what generated code calls,

    void    weft_parallel_for(void (*body)(int64_t begin, int64_t end, void *env), void *env,
                              int64_t count, int64_t threads)
    void   *weft_allocate(int64_t bytes)      void weft_release(void *pointer)
    void    weft_ahead(int64_t place, int64_t bytes, int64_t most)    where the weights of the next loop lie

and, for the host side,

    int64_t weft_pool_size(void)              worker threads alive now
    int32_t weft_pool_shutdown(void)          ends and joins the workers; 0 when a region is running (nothing is done)
    int64_t weft_pool_stalls(void)            how often a worker that held a chunk was found without a core
    int32_t weft_pool_place(const int32_t *cores, int64_t count, int32_t priority)    where workers run from now on
    int64_t weft_cached_bytes(void)           bytes kept for reuse
    void    weft_trim(void)                   gives them back to the system
    int64_t weft_call(...)                    a call from Python: see `runtime/native_call.py`

The same text is compiled in this process (`runtime/jit.py`) and linked into exported libraries. It needs libc only.
A library that contains it ends its workers when it is unloaded; no region of it may be running then.

**Thread pool.** See `runtime/native_pool.py` and `runtime/native_region.py`.

**Allocator.** See `runtime/native_memory.py`.

**Fork.** The child has none of the parent's threads, and locks may be held by threads that do not exist there. Every
entry compares the process id with the one the state belongs to, and starts afresh when it differs.
"""

from __future__ import annotations

from string import Template

from weft.core import model
from weft.core.errors import TargetError
from weft.runtime.native_call import CALL
from weft.runtime.native_memory import ALLOCATOR, CACHE
from weft.runtime.native_pool import POOL, POOL_STATE, pool_numbers
from weft.runtime.native_region import REGION

MAXIMUM_THREADS = 256
"""Most threads (the caller among them) that one region uses."""

# For each architecture: the numbers of the system calls futex and gettid, and how a spinning thread tells the core that
# it waits.
_ARCHITECTURES = {
    "x86_64": ("202", "186", "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("98", "178", "declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "riscv64": ("98", "178", "", ""),
}


def has_threads(triple: str) -> bool:
    """Whether the runtime has its thread pool for a machine."""
    return triple.split("-")[0] in _ARCHITECTURES and "linux" in triple


def native_ir(triple: str, data_layout: str | None = None) -> str:
    """The runtime's module for a target, for example "x86_64-unknown-linux-gnu" or "aarch64-unknown-linux-gnu"."""
    architecture = triple.split("-")[0]
    if not has_threads(triple):
        known = ", ".join(f"{name}-linux" for name in _ARCHITECTURES)
        raise TargetError(f"the runtime has no native code for the triple {triple!r}; it knows {known}")
    futex, gettid, declare_pause, pause = _ARCHITECTURES[architecture]
    header = f'target triple = "{triple}"\n'
    if data_layout:
        header += f'target datalayout = "{data_layout}"\n'
    text = "\n".join((_STATE, POOL_STATE, _WAITING, _FORK, *POOL, *REGION, ALLOCATOR, CACHE, CALL))
    return header + Template(text).substitute(
        futex=futex,
        gettid=gettid,
        declare_pause=declare_pause,
        pause=pause,
        slots=MAXIMUM_THREADS,
        cache_limit=model.ALLOCATOR_KEPT_BYTES,
        **pool_numbers(),
    )


_STATE = """
%block = type { i64, i64, ptr }                                  ; size with header, size class, next free block
%time = type { i64, i64 }

@weft.cache_lock = internal global i32 0, align 128
@weft.cache_bytes = internal global i64 0
@weft.cache_lists = internal global [256 x ptr] zeroinitializer
@weft.process = internal global i32 0

declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @getpid()
declare i32 @sched_yield()
declare ptr @aligned_alloc(i64, i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)
declare i64 @llvm.ctlz.i64(i64, i1)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
$declare_pause
"""

_WAITING = """
; Nanoseconds that a clock of the system shows; 0 where it has no such clock.
define internal i64 @weft.clock(i32 %clock) nounwind {
  %time = alloca %time
  store %time zeroinitializer, ptr %time
  %code = call i32 @clock_gettime(i32 %clock, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr %time, ptr %time, i64 0, i32 1
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %now = add i64 %scaled, %rest
  ret i64 %now
}

; Nanoseconds of the monotonic clock (1).
define internal i64 @weft.now() nounwind {
  %now = call i64 @weft.clock(i32 1)
  ret i64 %now
}

; Sleeps while the word holds the value (FUTEX_WAIT_PRIVATE); returns only when it holds another.
define internal void @weft.sleep_while(ptr %word, i32 %value) nounwind {
entry:
  br label %test
test:
  %seen = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %seen, %value
  br i1 %same, label %wait, label %done
wait:
  %code = call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i32 128, i32 %value, ptr null)
  br label %test
done:
  ret void
}

; Wakes the one sleeper on the word (FUTEX_WAKE_PRIVATE).
define internal void @weft.wake(ptr %word) nounwind {
  %code = call i64 (i64, ...) @syscall(i64 $futex, ptr %word, i32 129, i32 1)
  ret void
}

; Spins while the word holds the value, at most so many nanoseconds; returns what it held last.
; A pause takes anything from 1 to 150 cycles, so the bound is a time, read once in sixteen turns.
define internal i32 @weft.spin_while(ptr %word, i32 %value, i64 %nanoseconds) nounwind {
entry:
  %start = call i64 @weft.now()
  br label %turn
turn:
  %count = phi i64 [ 0, %entry ], [ 0, %clock ], [ %next_count, %pause ]
  %seen = load atomic i32, ptr %word acquire, align 4
  %same = icmp eq i32 %seen, %value
  br i1 %same, label %pause, label %done
pause:
  $pause
  %next_count = add i64 %count, 1
  %is_time = icmp eq i64 %next_count, 16
  br i1 %is_time, label %clock, label %turn
clock:
  %now = call i64 @weft.now()
  %spent = sub i64 %now, %start
  %in_time = icmp slt i64 %spent, %nanoseconds
  br i1 %in_time, label %turn, label %done
done:
  ret i32 %seen
}

; A lock for sections of a few instructions; a waiter that does not get it soon gives its core away.
define internal void @weft.lock(ptr %lock) nounwind {
entry:
  br label %try
try:
  %turn = phi i64 [ 0, %entry ], [ %next_turn, %retry ]
  %pair = cmpxchg ptr %lock, i32 0, i32 1 acquire monotonic
  %taken = extractvalue { i32, i1 } %pair, 1
  br i1 %taken, label %done, label %failed
failed:
  $pause
  %next_turn = add i64 %turn, 1
  %patient = icmp slt i64 %next_turn, 64
  br i1 %patient, label %retry, label %yield
yield:
  %code = call i32 @sched_yield()
  br label %retry
retry:
  br label %try
done:
  ret void
}

define internal void @weft.unlock(ptr %lock) nounwind {
  store atomic i32 0, ptr %lock release, align 4
  ret void
}
"""

_FORK = """
; Makes the state belong to this process. @weft.process holds its id, or minus the id of the one that is clearing it.
define internal void @weft.enter() nounwind {
entry:
  %self = call i32 @getpid()
  %clearing = sub i32 0, %self
  br label %test
test:
  %seen = load atomic i32, ptr @weft.process acquire, align 4
  %mine = icmp eq i32 %seen, %self
  br i1 %mine, label %done, label %other
other:
  %under_way = icmp eq i32 %seen, %clearing
  br i1 %under_way, label %yield, label %claim
yield:
  %code = call i32 @sched_yield()
  br label %test
claim:
  %pair = cmpxchg ptr @weft.process, i32 %seen, i32 %clearing acquire monotonic
  %claimed = extractvalue { i32, i1 } %pair, 1
  br i1 %claimed, label %clear, label %test
clear:
  %slots_end = getelementptr %slot, ptr null, i64 $slots
  %slots_bytes = ptrtoint ptr %slots_end to i64
  call void @llvm.memset.p0.i64(ptr @weft.slots, i8 0, i64 %slots_bytes, i1 false)
  call void @llvm.memset.p0.i64(ptr @weft.cache_lists, i8 0, i64 2048, i1 false)
  store i64 0, ptr @weft.cache_bytes
  store i64 0, ptr @weft.workers
  store i64 0, ptr @weft.retry_at
  store i32 0, ptr @weft.cache_lock
  store i32 0, ptr @weft.growing
  store i64 0, ptr @weft.active
  store atomic i32 %self, ptr @weft.process release, align 4
  br label %done
done:
  ret void
}
"""

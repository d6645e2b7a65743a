"""The native half of the runtime: a thread pool and an allocator, as LLVM IR text.

In: a target triple. Out: the text of a module that defines what generated code calls,

    void    weft_parallel_for(void (*body)(int64_t begin, int64_t end, void *env), void *env,
                              int64_t count, int64_t threads)
    void   *weft_allocate(int64_t bytes)      void weft_release(void *pointer)

and, for the host side,

    int64_t weft_pool_size(void)              worker threads alive now
    int32_t weft_pool_shutdown(void)          ends and joins the workers; 0 when a region is running (nothing is done)
    int64_t weft_cached_bytes(void)           bytes kept for reuse
    void    weft_trim(void)                   gives them back to the system

The same text is compiled in this process (`runtime/jit.py`) and linked into exported libraries. It needs libc only.
A library that contains it ends its workers when it is unloaded; no region of it may be running then.

**Thread pool.** A region cuts [0, count) into one range per participant; the caller is participant 0. Everyone takes
chunks from its own range (so that a thread meets the same data again in the next region), then from the others'.
Worker i listens on the one word `slots[i].state`:

    IDLE -> POSTED (caller)     POSTED -> RUNNING (worker) | IDLE (caller takes an order back that nobody started)
    IDLE -> SLEEPING (worker, futex)    RUNNING -> AWAITED (caller sleeps until the worker ends)    IDLE -> EXIT

Because chunks are taken, never assigned, and orders can be taken back, a worker that gets no core delays nobody. One
region runs at a time; a region that finds the pool taken (nested, or from another thread) runs in its caller.

**Allocator.** See `runtime/native_memory.py`.

**Fork.** The child has none of the parent's threads, and locks may be held by threads that do not exist there. Every
entry compares the process id with the one the state belongs to, and starts afresh when it differs.
"""

from __future__ import annotations

from string import Template

from weft.core.errors import TargetError
from weft.runtime.native_memory import ALLOCATOR, CACHE, CACHE_LIMIT

MAXIMUM_THREADS = 256
"""Most threads (the caller among them) that one region uses."""

_SPIN_NANOSECONDS = 50_000
_LEAST_SPIN_NANOSECONDS = 1_000

# For each architecture: the number of the futex system call, and how a spinning thread tells the core that it waits.
_ARCHITECTURES = {
    "x86_64": ("202", "declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("98", "declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "riscv64": ("98", "", ""),
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
    futex, declare_pause, pause = _ARCHITECTURES[architecture]
    header = f'target triple = "{triple}"\n'
    if data_layout:
        header += f'target datalayout = "{data_layout}"\n'
    text = "\n".join((_STATE, _WAITING, _FORK, _WORKER, _REGION, _SHUTDOWN, ALLOCATOR, CACHE))
    return header + Template(text).substitute(
        futex=futex,
        declare_pause=declare_pause,
        pause=pause,
        slots=MAXIMUM_THREADS,
        spin=_SPIN_NANOSECONDS,
        least_spin=_LEAST_SPIN_NANOSECONDS,
        cache_limit=CACHE_LIMIT,
        **_STATES,
    )


_STATES = {"IDLE": "0", "POSTED": "1", "RUNNING": "2", "AWAITED": "3", "SLEEPING": "4", "EXIT": "5"}

# A slot spans two pairs of cache lines: the worker spins on the first while the caller fills the range in the second.
_STATE = """
%slot = type { i32, i32, i64, [14 x i64], i64, i64, [14 x i64] } ; state, -, thread, -, next, end, -
%region = type { ptr, ptr, i64, i64, i64 }                       ; body, environment, participants, chunk, time posted
%block = type { i64, i64, ptr }                                  ; size with header, size class, next free block
%time = type { i64, i64 }

@weft.slots = internal global [$slots x %slot] zeroinitializer, align 128
@weft.region = internal global %region zeroinitializer, align 128
@weft.pool_lock = internal global i32 0, align 128
@weft.cache_lock = internal global i32 0, align 128
@weft.cache_bytes = internal global i64 0
@weft.cache_lists = internal global [256 x ptr] zeroinitializer
@weft.workers = internal global i64 0, align 128
@weft.retry_at = internal global i64 0
@weft.process = internal global i32 0

; Workers leave signals to the host's threads, except those that a fault of their own raises: 4 to 8 and 11.
@weft.blocked_signals = internal constant [16 x i64] [i64 -1273, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1,
                                                      i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1]

declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @getpid()
declare i32 @sched_yield()
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
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
; Nanoseconds of the monotonic clock (1).
define internal i64 @weft.now() nounwind {
  %time = alloca %time
  %code = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr %time, ptr %time, i64 0, i32 1
  %rest = load i64, ptr %rest_at
  %scaled = mul i64 %seconds, 1000000000
  %now = add i64 %scaled, %rest
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
  store i32 0, ptr @weft.pool_lock
  store atomic i32 %self, ptr @weft.process release, align 4
  br label %done
done:
  ret void
}
"""

# How long a worker spins before it sleeps: the full time when the last order came within it (or was taken back before
# the worker woke: the pool is in use right now), half of the last time when it did not.
_WORKER = """
; Takes chunks from the participant's own range, then from the ranges after it, until none is left.
define internal void @weft.work(i64 %self) nounwind {
entry:
  %body = load ptr, ptr @weft.region
  %environment = load ptr, ptr getelementptr (%region, ptr @weft.region, i64 0, i32 1)
  %participants = load i64, ptr getelementptr (%region, ptr @weft.region, i64 0, i32 2)
  %chunk = load i64, ptr getelementptr (%region, ptr @weft.region, i64 0, i32 3)
  br label %range
range:
  %offset = phi i64 [ 0, %entry ], [ %next_offset, %exhausted ]
  %sum = add i64 %self, %offset
  %wraps = icmp sge i64 %sum, %participants
  %wrapped = sub i64 %sum, %participants
  %owner = select i1 %wraps, i64 %wrapped, i64 %sum
  %next_at = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %owner, i32 4
  %end_at = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %owner, i32 5
  %end = load i64, ptr %end_at
  br label %look
look:
  %seen = load atomic i64, ptr %next_at monotonic, align 8
  %some = icmp slt i64 %seen, %end
  br i1 %some, label %take, label %exhausted
take:
  %begin = atomicrmw add ptr %next_at, i64 %chunk monotonic
  %taken = icmp slt i64 %begin, %end
  br i1 %taken, label %run, label %exhausted
run:
  %limit = add i64 %begin, %chunk
  %stop = call i64 @llvm.smin.i64(i64 %limit, i64 %end)
  call void %body(i64 %begin, i64 %stop, ptr %environment)
  br label %look
exhausted:
  %next_offset = add i64 %offset, 1
  %more = icmp slt i64 %next_offset, %participants
  br i1 %more, label %range, label %done
done:
  ret void
}

; The life of worker number `argument`.
define internal ptr @weft.worker(ptr %argument) nounwind {
entry:
  %self = ptrtoint ptr %argument to i64
  %state = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %self, i32 0
  br label %idle
idle:
  %patience = phi i64 [ $spin, %entry ], [ $spin, %test ], [ $spin, %accept ], [ %next_patience, %finished ],
                     [ %next_patience, %wake_caller ]
  %idle_since = call i64 @weft.now()
  %spun = call i32 @weft.spin_while(ptr %state, i32 $IDLE, i64 %patience)
  %still_idle = icmp eq i32 %spun, $IDLE
  br i1 %still_idle, label %doze, label %test
doze:
  %doze_pair = cmpxchg ptr %state, i32 $IDLE, i32 $SLEEPING acquire acquire
  call void @weft.sleep_while(ptr %state, i32 $SLEEPING)
  br label %test
test:
  %seen = load atomic i32, ptr %state acquire, align 4
  switch i32 %seen, label %idle [ i32 $POSTED, label %accept
                                  i32 $EXIT, label %exit ]
accept:
  %accept_pair = cmpxchg ptr %state, i32 $POSTED, i32 $RUNNING acquire monotonic
  %accepted = extractvalue { i32, i1 } %accept_pair, 1
  br i1 %accepted, label %run, label %idle
run:
  %posted_at = load i64, ptr getelementptr (%region, ptr @weft.region, i64 0, i32 4)
  %gap = sub i64 %posted_at, %idle_since
  %soon = icmp slt i64 %gap, $spin
  %half = sdiv i64 %patience, 2
  %less = call i64 @llvm.smax.i64(i64 %half, i64 $least_spin)
  %next_patience = select i1 %soon, i64 $spin, i64 %less
  call void @weft.work(i64 %self)
  br label %finished
finished:
  %left = atomicrmw xchg ptr %state, i32 $IDLE acq_rel
  %awaited = icmp eq i32 %left, $AWAITED
  br i1 %awaited, label %wake_caller, label %idle
wake_caller:
  call void @weft.wake(ptr %state)
  br label %idle
exit:
  ret ptr null
}

; Starts workers until there are so many; on failure goes on with fewer and tries again no sooner than a second later.
define internal void @weft.grow(i64 %wanted) nounwind {
entry:
  %old_signals = alloca [16 x i64]
  %now = call i64 @weft.now()
  %retry_at = load i64, ptr @weft.retry_at
  %allowed = icmp sge i64 %now, %retry_at
  br i1 %allowed, label %begin, label %done
begin:
  %block_code = call i32 @pthread_sigmask(i32 2, ptr @weft.blocked_signals, ptr %old_signals)
  br label %test
test:
  %have = load i64, ptr @weft.workers
  %enough = icmp sge i64 %have, %wanted
  br i1 %enough, label %restore, label %start
start:
  %index = add i64 %have, 1
  %argument = inttoptr i64 %index to ptr
  %state = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 0
  %thread = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 2
  store atomic i32 $IDLE, ptr %state release, align 4
  %code = call i32 @pthread_create(ptr %thread, ptr null, ptr @weft.worker, ptr %argument)
  %started = icmp eq i32 %code, 0
  br i1 %started, label %count, label %failed
count:
  store atomic i64 %index, ptr @weft.workers release, align 8
  br label %test
failed:
  %later = add i64 %now, 1000000000
  store i64 %later, ptr @weft.retry_at
  br label %restore
restore:
  %restore_code = call i32 @pthread_sigmask(i32 2, ptr %old_signals, ptr null)
  br label %done
done:
  ret void
}
"""

# Every range is written before the first order is posted: a worker that starts at once already looks at all of them.
_REGION = """
; Gives each participant its range, and the region its description.
define internal void @weft.describe(ptr %body, ptr %environment, i64 %count, i64 %participants) nounwind {
entry:
  %quotient = udiv i64 %count, %participants
  %remainder = urem i64 %count, %participants
  %quarter = lshr i64 %quotient, 2
  %chunk = call i64 @llvm.umax.i64(i64 %quarter, i64 1)
  %now = call i64 @weft.now()
  store ptr %body, ptr @weft.region
  store ptr %environment, ptr getelementptr (%region, ptr @weft.region, i64 0, i32 1)
  store i64 %participants, ptr getelementptr (%region, ptr @weft.region, i64 0, i32 2)
  store i64 %chunk, ptr getelementptr (%region, ptr @weft.region, i64 0, i32 3)
  store i64 %now, ptr getelementptr (%region, ptr @weft.region, i64 0, i32 4)
  br label %range
range:
  %index = phi i64 [ 0, %entry ], [ %next_index, %range ]
  %begin = phi i64 [ 0, %entry ], [ %end, %range ]
  %longer = icmp ult i64 %index, %remainder
  %extra = zext i1 %longer to i64
  %length = add i64 %quotient, %extra
  %end = add i64 %begin, %length
  %next_at = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 4
  %end_at = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 5
  store atomic i64 %begin, ptr %next_at monotonic, align 8
  store i64 %end, ptr %end_at
  %next_index = add i64 %index, 1
  %more = icmp ult i64 %next_index, %participants
  br i1 %more, label %range, label %done
done:
  ret void
}

; Gives worker `index` its order.
define internal void @weft.post(i64 %index) nounwind {
entry:
  %state = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 0
  %before = atomicrmw xchg ptr %state, i32 $POSTED acq_rel
  %asleep = icmp eq i32 %before, $SLEEPING
  br i1 %asleep, label %wake, label %done
wake:
  call void @weft.wake(ptr %state)
  br label %done
done:
  ret void
}

; Takes back the order of worker `index`, or waits until it is carried out.
define internal void @weft.join(i64 %index) nounwind {
entry:
  %state = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 0
  %revoke_pair = cmpxchg ptr %state, i32 $POSTED, i32 $IDLE acquire acquire
  %revoked = extractvalue { i32, i1 } %revoke_pair, 1
  br i1 %revoked, label %done, label %wait
wait:
  %spun = call i32 @weft.spin_while(ptr %state, i32 $RUNNING, i64 $spin)
  %still_running = icmp eq i32 %spun, $RUNNING
  br i1 %still_running, label %sleep, label %done
sleep:
  %await_pair = cmpxchg ptr %state, i32 $RUNNING, i32 $AWAITED acquire acquire
  call void @weft.sleep_while(ptr %state, i32 $AWAITED)
  br label %done
done:
  ret void
}

; Runs body over [0, count) on at most so many threads, and returns when all of it is done.
define void @weft_parallel_for(ptr %body, ptr %environment, i64 %count, i64 %threads) nounwind {
entry:
  %empty = icmp sle i64 %count, 0
  br i1 %empty, label %done, label %some
some:
  %useful = call i64 @llvm.smin.i64(i64 %threads, i64 %count)
  %capped = call i64 @llvm.smin.i64(i64 %useful, i64 $slots)
  %wants_one = icmp sle i64 %capped, 1
  br i1 %wants_one, label %serial, label %try
try:
  call void @weft.enter()
  %pair = cmpxchg ptr @weft.pool_lock, i32 0, i32 1 acquire monotonic
  %locked = extractvalue { i32, i1 } %pair, 1
  br i1 %locked, label %ready, label %serial
ready:
  %wanted = sub i64 %capped, 1
  %present = load i64, ptr @weft.workers
  %short = icmp slt i64 %present, %wanted
  br i1 %short, label %grow, label %size
grow:
  call void @weft.grow(i64 %wanted)
  br label %size
size:
  %workers = load i64, ptr @weft.workers
  %everyone = add i64 %workers, 1
  %participants = call i64 @llvm.smin.i64(i64 %capped, i64 %everyone)
  %alone = icmp sle i64 %participants, 1
  br i1 %alone, label %give_up, label %region
give_up:
  call void @weft.unlock(ptr @weft.pool_lock)
  br label %serial
region:
  call void @weft.describe(ptr %body, ptr %environment, i64 %count, i64 %participants)
  br label %post
post:
  %posted = phi i64 [ 1, %region ], [ %next_posted, %post ]
  call void @weft.post(i64 %posted)
  %next_posted = add i64 %posted, 1
  %more_to_post = icmp slt i64 %next_posted, %participants
  br i1 %more_to_post, label %post, label %work
work:
  call void @weft.work(i64 0)
  br label %join
join:
  %joined = phi i64 [ 1, %work ], [ %next_joined, %join ]
  call void @weft.join(i64 %joined)
  %next_joined = add i64 %joined, 1
  %more_to_join = icmp slt i64 %next_joined, %participants
  br i1 %more_to_join, label %join, label %finish
finish:
  call void @weft.unlock(ptr @weft.pool_lock)
  br label %done
serial:
  call void %body(i64 0, i64 %count, ptr %environment)
  br label %done
done:
  ret void
}
"""

_SHUTDOWN = """
; Worker threads alive now.
define i64 @weft_pool_size() nounwind {
  call void @weft.enter()
  %workers = load atomic i64, ptr @weft.workers acquire, align 8
  ret i64 %workers
}

; In a shared library: workers must not be inside code that is unloaded. The section is named here because
; llvm.global_dtors becomes .dtors in LLVM's default for this object format, which only some linkers turn into it.
@weft.at_unload = internal global ptr @weft.unload, section ".fini_array", align 8
@llvm.used = appending global [1 x ptr] [ptr @weft.at_unload], section "llvm.metadata"

define internal void @weft.unload() nounwind {
  %ended = call i32 @weft_pool_shutdown()
  ret void
}

; Ends and joins the workers. 0 when a region is running: nothing is done. A later region starts workers again.
define i32 @weft_pool_shutdown() nounwind {
entry:
  call void @weft.enter()
  %pair = cmpxchg ptr @weft.pool_lock, i32 0, i32 1 acquire monotonic
  %locked = extractvalue { i32, i1 } %pair, 1
  br i1 %locked, label %test, label %busy
busy:
  ret i32 0
test:
  %index = load i64, ptr @weft.workers
  %some = icmp sgt i64 %index, 0
  br i1 %some, label %end, label %done
end:
  %state = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 0
  %thread_at = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 2
  %thread = load i64, ptr %thread_at
  %before = atomicrmw xchg ptr %state, i32 $EXIT acq_rel
  call void @weft.wake(ptr %state)
  %code = call i32 @pthread_join(i64 %thread, ptr null)
  %fewer = sub i64 %index, 1
  store atomic i64 %fewer, ptr @weft.workers release, align 8
  br label %test
done:
  call void @weft.unlock(ptr @weft.pool_lock)
  ret i32 1
}
"""

"""The thread pool of the native runtime, as LLVM IR text: a part of the module that `runtime/native.py` puts together.

A region is what one call of `weft_parallel_for` runs. It lies on the stack of its caller, who is participant 0:

    caller                                                            worker, listening on the one word `slot.state`
    claim    IDLE or SLEEPING -> CLAIMED, one worker after another    IDLE -> SLEEPING (futex) after a while of spinning
    post     CLAIMED -> POSTED, everyone's range written before       POSTED -> RUNNING
    work     chunks of its own range, then of the others'             the same
    join     POSTED -> IDLE: an order that nobody started             RUNNING -> IDLE; wakes the caller if AWAITED
             RUNNING -> AWAITED: sleeps until the worker ends

The word counts claims above its lowest three bits, so that a caller never mistakes another's order for its own. Chunks
are taken, never assigned: a worker that gets no core before it starts delays nobody. Regions of several callers run
side by side: each claims its share of the workers that are idle, waits for none, and runs alone where there is none.

**A worker that loses its core while it holds a chunk.** Who waits for it asks the system whether it runs (its processor
time against the clock). If not, the waiting caller lends it its own core: it moves the worker there and sleeps. The
worker then rests: it is claimed last for a while, twice as long each time that happens again.

**Small regions.** What an iteration of a body takes is remembered, by the body's address. A region is offered to no
more threads than pay for their orders, and cut into chunks that are neither long nor tiny: each a quarter of what is
left of a range, so that all end together.

**Weights ahead.** A token of a decoder is some 70 loops that read weights as fast as they come; between them threads
wait for one another, for small kernels and for the interpreter, a tenth of the time. The driver says what comes next
(`weft_ahead`), and who waits fetches the beginning of its part.
"""

from __future__ import annotations

_STATES = {"IDLE": 0, "CLAIMED": 1, "POSTED": 2, "RUNNING": 3, "AWAITED": 4, "SLEEPING": 5, "EXIT": 6}

_NUMBERS = {
    "spin": 50_000,  # that a caller spins before it asks for a worker
    "long_spin": 200_000,  # that a worker spins before it sleeps
    "short_spin": 25_000,  # the same where its core is not its own
    "least_spin": 1_000,
    "lost": 100_000,  # more than a worker wanted to spin: it had no core meanwhile
    "ask": 20_000,  # over which a caller watches whether a worker runs
    "nap": 200_000,  # between such questions
    "order": 150,  # of the caller, for each worker that it gives an order
    "short_chunk": 1_000,
    "long_chunk": 60_000,
    "least_rest": 2_000_000,
    "most_rest": 128_000_000,
    "relapse": 10_000_000,  # a worker without a core so soon after its rest rests longer
    "unbegun": 4,  # orders in a row that a worker did not begin: it may wait for the core that its caller has
    "kept": 4,  # one in so many of the wanted workers is claimed even if it rests
}
"""What steers the pool. Times are nanoseconds; that of an order was measured on x86 and AArch64."""


def pool_numbers() -> dict[str, str]:
    """What the text of the pool asks for by name."""
    scaled = {f"scaled_{name}": _NUMBERS[f"{name}_chunk"] * 256 for name in ("short", "long")}
    order = {"scaled_order": f"{_NUMBERS['order'] * 256.0:.1f}"}
    return {**{name: str(value) for name, value in (_STATES | _NUMBERS | scaled).items()}, **order}


# Who listens and who gives orders share the first pair of cache lines of a slot; what is rarely needed comes after.
POOL_STATE = """
%slot = type { i32, i32, ptr, i64, i32, i32, i32, [11 x i64], ; 0 state, number of the system, region, participant,
               i64, i64, i64, i64, [16 x i64], [12 x i64] }   ; 4 -, whether it was moved, orders that it did not begin,
                                                              ; 7 -, thread, rests until, rest, whether it may be moved,
                                                              ; 12 cores that it may use
%claim = type { ptr, i32, i32 }                                  ; slot, word of the claim, whether it slept
%range = type { i64, i64, [14 x i64] }                           ; next, end, -
%region = type { ptr, ptr, i64, i64, i64, i64, ptr, ptr, i64, i64 } ; body, environment, participants, least chunk, time
                                                                 ; posted, sleepers, claims, ranges, next to be woken,
                                                                 ; greatest chunk
%cost = type { i64, i64 }                                        ; body, 1/256 nanoseconds of an iteration

@weft.slots = internal global [$slots x %slot] zeroinitializer, align 128
@weft.costs = internal global [512 x %cost] zeroinitializer, align 128
@weft.active = internal global i64 0, align 128
@weft.workers = internal global i64 0, align 128
@weft.growing = internal global i32 0
@weft.retry_at = internal global i64 0
@weft.stalls = internal global i64 0
@weft.places = internal global [$slots x i32] zeroinitializer
@weft.placed = internal global i64 0
@weft.priority = internal global i32 0
@weft.weights = internal global [3 x i64] zeroinitializer, align 128 ; of the next loop: place, bytes, most for a thread

; Workers leave signals to the host's threads, except those that a fault of their own raises: 4 to 8 and 11.
@weft.blocked_signals = internal constant [16 x i64] [i64 -1273, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1,
                                                      i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1, i64 -1]

declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @nice(i32)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

_WORK = """
; Says where the weights lie for which the next loop waits. Callers who run at a time mislead each other: what a thread
; fetches in vain costs it nothing.
define void @weft_ahead(i64 %place, i64 %bytes, i64 %most) nounwind {
  store atomic i64 %place, ptr @weft.weights monotonic, align 8
  store atomic i64 %bytes, ptr getelementptr ([3 x i64], ptr @weft.weights, i64 0, i64 1) monotonic, align 8
  store atomic i64 %most, ptr getelementptr ([3 x i64], ptr @weft.weights, i64 0, i64 2) monotonic, align 8
  ret void
}

; While the word holds the value: fetches what a participant reads first of these weights into its second-level cache.
define internal void @weft.fetch(ptr %word, i32 %value, i64 %self, i64 %participants) nounwind {
entry:
  %first = load atomic i64, ptr @weft.weights monotonic, align 8
  %bytes = load atomic i64, ptr getelementptr ([3 x i64], ptr @weft.weights, i64 0, i64 1) monotonic, align 8
  %most = load atomic i64, ptr getelementptr ([3 x i64], ptr @weft.weights, i64 0, i64 2) monotonic, align 8
  %share = udiv i64 %bytes, %participants
  %fetched = call i64 @llvm.smin.i64(i64 %share, i64 %most)
  %skipped = mul i64 %share, %self
  %begin = add i64 %first, %skipped
  %end = add i64 %begin, %fetched
  br label %look
look:
  %place = phi i64 [ %begin, %entry ], [ %p4, %fetch ]
  %more = icmp slt i64 %place, %end
  br i1 %more, label %test, label %done
test:
  %seen = load atomic i32, ptr %word monotonic, align 4
  %waits = icmp eq i32 %seen, %value
  br i1 %waits, label %fetch, label %done
fetch:
  %p1 = add i64 %place, 64
  %p2 = add i64 %place, 128
  %p3 = add i64 %place, 192
  %p4 = add i64 %place, 256
  %a0 = inttoptr i64 %place to ptr
  %a1 = inttoptr i64 %p1 to ptr
  %a2 = inttoptr i64 %p2 to ptr
  %a3 = inttoptr i64 %p3 to ptr
  call void @llvm.prefetch.p0(ptr %a0, i32 0, i32 2, i32 1)
  call void @llvm.prefetch.p0(ptr %a1, i32 0, i32 2, i32 1)
  call void @llvm.prefetch.p0(ptr %a2, i32 0, i32 2, i32 1)
  call void @llvm.prefetch.p0(ptr %a3, i32 0, i32 2, i32 1)
  br label %look
done:
  ret void
}
; Takes chunks from the participant's own range, then from the ranges after it, until none is left; gives how many
; iterations it ran.
define internal i64 @weft.work(ptr %region, i64 %self) nounwind {
entry:
  %environment_at = getelementptr %region, ptr %region, i64 0, i32 1
  %participants_at = getelementptr %region, ptr %region, i64 0, i32 2
  %least_at = getelementptr %region, ptr %region, i64 0, i32 3
  %ranges_at = getelementptr %region, ptr %region, i64 0, i32 7
  %most_at = getelementptr %region, ptr %region, i64 0, i32 9
  %body = load ptr, ptr %region
  %environment = load ptr, ptr %environment_at
  %participants = load i64, ptr %participants_at
  %least = load i64, ptr %least_at
  %most = load i64, ptr %most_at
  %ranges = load ptr, ptr %ranges_at
  br label %range
range:
  %offset = phi i64 [ 0, %entry ], [ %next_offset, %exhausted ]
  %before = phi i64 [ 0, %entry ], [ %sum, %exhausted ]
  %place = add i64 %self, %offset
  %wraps = icmp sge i64 %place, %participants
  %wrapped = sub i64 %place, %participants
  %owner = select i1 %wraps, i64 %wrapped, i64 %place
  %next_at = getelementptr %range, ptr %ranges, i64 %owner, i32 0
  %end_at = getelementptr %range, ptr %ranges, i64 %owner, i32 1
  %end = load i64, ptr %end_at
  br label %look
look:
  %sum = phi i64 [ %before, %range ], [ %sum, %take ], [ %more_done, %run ]
  %seen = load atomic i64, ptr %next_at monotonic, align 8
  %some = icmp slt i64 %seen, %end
  br i1 %some, label %take, label %exhausted
take:
  %left = sub i64 %end, %seen
  %quarter = lshr i64 %left, 2
  %not_tiny = call i64 @llvm.umax.i64(i64 %quarter, i64 %least)
  %not_long = call i64 @llvm.smin.i64(i64 %not_tiny, i64 %most)
  %length = call i64 @llvm.smin.i64(i64 %not_long, i64 %left)
  %stop = add i64 %seen, %length
  %pair = cmpxchg ptr %next_at, i64 %seen, i64 %stop monotonic monotonic
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %run, label %look
run:
  call void %body(i64 %seen, i64 %stop, ptr %environment)
  %more_done = add i64 %sum, %length
  br label %look
exhausted:
  %next_offset = add i64 %offset, 1
  %more = icmp slt i64 %next_offset, %participants
  br i1 %more, label %range, label %done
done:
  ret i64 %sum
}

; Wakes workers of the region that sleep, each once: whoever is awake already helps.
define internal void @weft.wake_some(ptr %region) nounwind {
entry:
  %participants_at = getelementptr %region, ptr %region, i64 0, i32 2
  %sleepers_at = getelementptr %region, ptr %region, i64 0, i32 5
  %claims_at = getelementptr %region, ptr %region, i64 0, i32 6
  %woken_at = getelementptr %region, ptr %region, i64 0, i32 8
  %sleepers = load i64, ptr %sleepers_at
  %none = icmp eq i64 %sleepers, 0
  br i1 %none, label %done, label %start
start:
  %participants = load i64, ptr %participants_at
  %claims = load ptr, ptr %claims_at
  br label %next
next:
  %index = atomicrmw add ptr %woken_at, i64 1 monotonic
  %more = icmp slt i64 %index, %participants
  br i1 %more, label %look, label %done
look:
  %asleep_at = getelementptr %claim, ptr %claims, i64 %index, i32 2
  %asleep = load i32, ptr %asleep_at
  %sleeps = icmp ne i32 %asleep, 0
  br i1 %sleeps, label %wake, label %next
wake:
  %slot_at = getelementptr %claim, ptr %claims, i64 %index, i32 0
  %slot = load ptr, ptr %slot_at
  call void @weft.wake(ptr %slot)
  br label %next
done:
  ret void
}
"""

# How long a worker spins before it sleeps: the full time when the last order came within it (or was taken back before
# the worker woke: the pool is in use right now), half of the last time when it did not, hardly at all when somebody had
# to wait for it. The full time is short where its core is not its own: when it spun for longer than it wanted to.
_WORKER = """
; The life of worker number `argument`.
define internal ptr @weft.worker(ptr %argument) nounwind {
entry:
  %self = ptrtoint ptr %argument to i64
  %state = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %self
  %region_at = getelementptr %slot, ptr %state, i64 0, i32 2
  %participant_at = getelementptr %slot, ptr %state, i64 0, i32 3
  %moved_at = getelementptr %slot, ptr %state, i64 0, i32 5
  %unbegun_at = getelementptr %slot, ptr %state, i64 0, i32 6
  %longest_at = alloca i64
  store i64 $long_spin, ptr %longest_at
  call void @weft.settle(i64 %self)
  br label %idle
idle:
  %patience = phi i64 [ $long_spin, %entry ], [ $long_spin, %test ], [ $long_spin, %accept ], [ %calm, %ahead ],
                     [ $least_spin, %go_home ]
  %idle_since = call i64 @weft.now()
  %word = load atomic i32, ptr %state acquire, align 4
  %kind = and i32 %word, 7
  %is_idle = icmp eq i32 %kind, $IDLE
  br i1 %is_idle, label %spin, label %test
spin:
  %longest = load i64, ptr %longest_at
  %span = call i64 @llvm.smin.i64(i64 %patience, i64 %longest)
  %spun = call i32 @weft.spin_while(ptr %state, i32 %word, i64 %span)
  %still_idle = icmp eq i32 %spun, %word
  br i1 %still_idle, label %tired, label %test
tired:
  %spun_until = call i64 @weft.now()
  %spun_for = sub i64 %spun_until, %idle_since
  %too_long = sub i64 %spun_for, %span
  %lost = icmp sgt i64 %too_long, $lost
  %new_longest = select i1 %lost, i64 $short_spin, i64 %longest
  store i64 %new_longest, ptr %longest_at
  br label %doze
doze:
  %asleep = or i32 %word, $SLEEPING
  %doze_pair = cmpxchg ptr %state, i32 %word, i32 %asleep acquire acquire
  call void @weft.sleep_while(ptr %state, i32 %asleep)
  br label %test
test:
  %since = phi i64 [ %idle_since, %idle ], [ %idle_since, %spin ], [ %idle_since, %doze ], [ %since, %yield ]
  %had = phi i64 [ %patience, %idle ], [ %patience, %spin ], [ %patience, %doze ], [ %had, %yield ]
  %seen = load atomic i32, ptr %state acquire, align 4
  %seen_kind = and i32 %seen, 7
  switch i32 %seen_kind, label %idle [ i32 $POSTED, label %accept
                                       i32 $CLAIMED, label %claimed
                                       i32 $EXIT, label %exit ]
claimed:
  %late = call i32 @weft.spin_while(ptr %state, i32 %seen, i64 $least_spin)
  %is_late = icmp eq i32 %late, %seen
  br i1 %is_late, label %give_way, label %yield
give_way:
  %code = call i32 @sched_yield()
  br label %yield
yield:
  br label %test
accept:
  %running = add i32 %seen, 1
  %accept_pair = cmpxchg ptr %state, i32 %seen, i32 %running acquire monotonic
  %accepted = extractvalue { i32, i1 } %accept_pair, 1
  br i1 %accepted, label %run, label %idle
run:
  %region = load ptr, ptr %region_at
  %participant = load i64, ptr %participant_at
  %together_at = getelementptr %region, ptr %region, i64 0, i32 2
  %together = load i64, ptr %together_at
  %posted_at = getelementptr %region, ptr %region, i64 0, i32 4
  %posted = load i64, ptr %posted_at
  %gap = sub i64 %posted, %since
  %soon = icmp slt i64 %gap, $long_spin
  %half = sdiv i64 %had, 2
  %less = call i64 @llvm.smax.i64(i64 %half, i64 $least_spin)
  %next_patience = select i1 %soon, i64 $long_spin, i64 %less
  %short = load i64, ptr %longest_at
  %sixteenth = lshr i64 %short, 4
  %longer = add i64 %short, %sixteenth
  %recovered = call i64 @llvm.smin.i64(i64 %longer, i64 $long_spin)
  store i64 %recovered, ptr %longest_at
  store atomic i32 0, ptr %unbegun_at monotonic, align 4
  call void @weft.wake_some(ptr %region)
  %ran = call i64 @weft.work(ptr %region, i64 %participant)
  br label %finished
finished:
  %moved = load atomic i32, ptr %moved_at monotonic, align 4
  %stayed = icmp eq i32 %moved, 0
  br i1 %stayed, label %free, label %found_moved
found_moved:
  %still_moved = atomicrmw xchg ptr %moved_at, i32 0 acquire
  br label %free
free:
  %away = phi i32 [ 0, %finished ], [ %still_moved, %found_moved ]
  %free_word = and i32 %running, -8
  %left = atomicrmw xchg ptr %state, i32 %free_word acq_rel
  %awaited_word = add i32 %running, 1
  %awaited = icmp eq i32 %left, %awaited_word
  br i1 %awaited, label %wake_caller, label %freed
wake_caller:
  call void @weft.wake(ptr %state)
  store i64 $short_spin, ptr %longest_at
  br label %freed
freed:
  %calm = phi i64 [ %next_patience, %free ], [ $least_spin, %wake_caller ]
  %is_away = icmp ne i32 %away, 0
  br i1 %is_away, label %go_home, label %ahead
ahead:
  call void @weft.fetch(ptr %state, i32 %free_word, i64 %participant, i64 %together)
  br label %idle
go_home:
  call void @weft.go_home(ptr %state, i32 0)
  br label %idle
exit:
  ret ptr null
}

; A new worker takes the place and priority that were chosen, and says its number.
define internal void @weft.settle(i64 %self) nounwind {
entry:
  %mask = alloca [16 x i64], align 8
  %number_long = call i64 (i64, ...) @syscall(i64 $gettid)
  %number = trunc i64 %number_long to i32
  %number_at = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %self, i32 1
  %may_move_at = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %self, i32 11
  %cores = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %self, i32 12
  %priority = load i32, ptr @weft.priority
  %as_is = icmp eq i32 %priority, 0
  br i1 %as_is, label %place, label %prefer
prefer:
  %priority_code = call i32 @nice(i32 %priority)
  br label %place
place:
  %placed = load i64, ptr @weft.placed
  %free = icmp eq i64 %placed, 0
  br i1 %free, label %done, label %pin
pin:
  %index = urem i64 %self, %placed
  %core_at = getelementptr [$slots x i32], ptr @weft.places, i64 0, i64 %index
  %core = load i32, ptr %core_at
  call void @weft.one_core(ptr %mask, i32 %core)
  %place_code = call i32 @sched_setaffinity(i32 0, i64 128, ptr %mask)
  br label %done
done:
  %read = call i32 @sched_getaffinity(i32 0, i64 128, ptr %cores)
  %can = icmp sge i32 %read, 0
  %may_move = zext i1 %can to i64
  store i64 %may_move, ptr %may_move_at
  store atomic i32 %number, ptr %number_at release, align 4
  ret void
}

; Moves a worker away from a core, where its caller would be in its way, if it is there.
define internal void @weft.leave(ptr %slot, i32 %number, i32 %core) nounwind {
  %mask = alloca [16 x i64], align 8
  %allowed = getelementptr %slot, ptr %slot, i64 0, i32 12
  %within = and i32 %core, 1023
  %long = zext i32 %within to i64
  %word = lshr i64 %long, 6
  %bit = and i64 %long, 63
  %value = shl i64 1, %bit
  %others = xor i64 %value, -1
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr %allowed, i64 128, i1 false)
  %at = getelementptr i64, ptr %mask, i64 %word
  %before = load i64, ptr %at
  %after = and i64 %before, %others
  store i64 %after, ptr %at
  %leave_code = call i32 @sched_setaffinity(i32 %number, i64 128, ptr %mask)
  %free_code = call i32 @sched_setaffinity(i32 %number, i64 128, ptr %allowed)
  ret void
}

; Lets a worker that was moved use its cores again. It sleeps next, and wakes on one that is idle, if there is one.
define internal void @weft.go_home(ptr %slot, i32 %number) nounwind {
  %allowed = getelementptr %slot, ptr %slot, i64 0, i32 12
  %code = call i32 @sched_setaffinity(i32 %number, i64 128, ptr %allowed)
  ret void
}

; The set of this one core.
define internal void @weft.one_core(ptr %mask, i32 %core) nounwind {
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 128, i1 false)
  %within = and i32 %core, 1023
  %long = zext i32 %within to i64
  %word = lshr i64 %long, 6
  %bit = and i64 %long, 63
  %value = shl i64 1, %bit
  %at = getelementptr i64, ptr %mask, i64 %word
  store i64 %value, ptr %at
  ret void
}

; Starts workers until there are so many; on failure goes on with fewer and tries again no sooner than a second later.
define internal void @weft.grow(i64 %wanted) nounwind {
entry:
  %old_signals = alloca [16 x i64]
  %pair = cmpxchg ptr @weft.growing, i32 0, i32 1 acquire monotonic
  %mine = extractvalue { i32, i1 } %pair, 1
  br i1 %mine, label %look, label %done
look:
  %now = call i64 @weft.now()
  %retry_at = load i64, ptr @weft.retry_at
  %allowed = icmp sge i64 %now, %retry_at
  br i1 %allowed, label %begin, label %leave
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
  %thread = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 8
  %slot = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index
  store %slot zeroinitializer, ptr %slot
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
  br label %leave
leave:
  store atomic i32 0, ptr @weft.growing release, align 4
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

; How often a worker that held a chunk was found without a core.
define i64 @weft_pool_stalls() nounwind {
  %stalls = load atomic i64, ptr @weft.stalls monotonic, align 8
  ret i64 %stalls
}

; Chooses the cores of the workers, one each in turn (none: any), and what is added to their niceness, for workers
; that start from now on. 0 when a region is running: nothing is done.
define i32 @weft_pool_place(ptr %cores, i64 %count, i32 %priority) nounwind {
entry:
  %ended = call i32 @weft_pool_shutdown()
  %busy = icmp eq i32 %ended, 0
  br i1 %busy, label %done, label %set
set:
  %placed = call i64 @llvm.smin.i64(i64 %count, i64 $slots)
  %bytes = shl i64 %placed, 2
  call void @llvm.memcpy.p0.p0.i64(ptr @weft.places, ptr %cores, i64 %bytes, i1 false)
  store i64 %placed, ptr @weft.placed
  store i32 %priority, ptr @weft.priority
  br label %done
done:
  ret i32 %ended
}

; In a shared library: workers must not be inside code that is unloaded. The section is named here because
; llvm.global_dtors becomes .dtors in LLVM's default for this object format, which only some linkers turn into it.
@weft.at_unload = internal global ptr @weft.unload, section ".fini_array", align 8
@llvm.used = appending global [1 x ptr] [ptr @weft.at_unload], section "llvm.metadata"

define internal void @weft.unload() nounwind {
  %ended = call i32 @weft_pool_shutdown()
  ret void
}

; Ends and joins the workers. 0 when a region is running: nothing is done. A later region starts workers again. The
; number of active callers is far below zero meanwhile: who finds that runs alone.
define i32 @weft_pool_shutdown() nounwind {
entry:
  call void @weft.enter()
  %pair = cmpxchg ptr @weft.active, i64 0, i64 -4611686018427387904 acquire monotonic
  %closed = extractvalue { i64, i1 } %pair, 1
  br i1 %closed, label %test, label %busy
busy:
  ret i32 0
test:
  %index = load i64, ptr @weft.workers
  %some = icmp sgt i64 %index, 0
  br i1 %some, label %end, label %done
end:
  %state = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 0
  %thread_at = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index, i32 8
  %thread = load i64, ptr %thread_at
  %before = atomicrmw xchg ptr %state, i32 $EXIT acq_rel
  call void @weft.wake(ptr %state)
  %code = call i32 @pthread_join(i64 %thread, ptr null)
  %fewer = sub i64 %index, 1
  store atomic i64 %fewer, ptr @weft.workers release, align 8
  br label %test
done:
  %open = atomicrmw add ptr @weft.active, i64 4611686018427387904 release
  ret i32 1
}
"""

POOL = (_WORK, _WORKER, _SHUTDOWN)
"""What workers do, and how they end."""

"""What the caller of a parallel loop does, as LLVM IR text: a part of the module that `runtime/native.py` makes.

How callers and workers speak to each other stands in `runtime/native_pool.py`.
"""

from __future__ import annotations

_CLAIMS = """
declare double @llvm.sqrt.f64(double)

; Claims idle workers that do not rest at this time, up to so many; gives how many there are claims for now.
define internal i64 @weft.claim(ptr %claims, i64 %have, i64 %wanted, i64 %time) nounwind {
entry:
  %workers = load atomic i64, ptr @weft.workers acquire, align 8
  br label %next
next:
  %index = phi i64 [ 1, %entry ], [ %next_index, %tried ]
  %claimed = phi i64 [ %have, %entry ], [ %now_claimed, %tried ]
  %left = icmp sle i64 %index, %workers
  %missing = icmp slt i64 %claimed, %wanted
  %go_on = and i1 %left, %missing
  br i1 %go_on, label %look, label %done
look:
  %slot = getelementptr [$slots x %slot], ptr @weft.slots, i64 0, i64 %index
  %rests_at = getelementptr %slot, ptr %slot, i64 0, i32 9
  %word = load atomic i32, ptr %slot monotonic, align 4
  %kind = and i32 %word, 7
  %idle = icmp eq i32 %kind, $IDLE
  %sleeps = icmp eq i32 %kind, $SLEEPING
  %takes_orders = or i1 %idle, %sleeps
  %rests_until = load atomic i64, ptr %rests_at monotonic, align 8
  %rested = icmp sle i64 %rests_until, %time
  %fit = and i1 %takes_orders, %rested
  br i1 %fit, label %take, label %tried
take:
  %filled = or i32 %word, 7
  %claim_word = add i32 %filled, 2
  %pair = cmpxchg ptr %slot, i32 %word, i32 %claim_word acquire monotonic
  %taken = extractvalue { i32, i1 } %pair, 1
  br i1 %taken, label %note, label %tried
note:
  %slot_at = getelementptr %claim, ptr %claims, i64 %claimed, i32 0
  %word_at = getelementptr %claim, ptr %claims, i64 %claimed, i32 1
  %asleep_at = getelementptr %claim, ptr %claims, i64 %claimed, i32 2
  %asleep = zext i1 %sleeps to i32
  store ptr %slot, ptr %slot_at
  store i32 %claim_word, ptr %word_at
  store i32 %asleep, ptr %asleep_at
  %one_more = add i64 %claimed, 1
  br label %tried
tried:
  %now_claimed = phi i64 [ %claimed, %look ], [ %claimed, %take ], [ %one_more, %note ]
  %next_index = add i64 %index, 1
  br label %next
done:
  ret i64 %claimed
}

; Gives each participant its range.
define internal void @weft.divide(ptr %ranges, i64 %count, i64 %participants) nounwind {
entry:
  %quotient = udiv i64 %count, %participants
  %remainder = urem i64 %count, %participants
  br label %range
range:
  %index = phi i64 [ 0, %entry ], [ %next_index, %range ]
  %begin = phi i64 [ 0, %entry ], [ %end, %range ]
  %longer = icmp ult i64 %index, %remainder
  %extra = zext i1 %longer to i64
  %length = add i64 %quotient, %extra
  %end = add i64 %begin, %length
  %next_at = getelementptr %range, ptr %ranges, i64 %index, i32 0
  %end_at = getelementptr %range, ptr %ranges, i64 %index, i32 1
  store atomic i64 %begin, ptr %next_at monotonic, align 8
  store i64 %end, ptr %end_at
  %next_index = add i64 %index, 1
  %more = icmp ult i64 %next_index, %participants
  br i1 %more, label %range, label %done
done:
  ret void
}

; Gives the worker of claim `index` its order.
define internal void @weft.post(ptr %region, ptr %claims, i64 %index) nounwind {
  %slot_at = getelementptr %claim, ptr %claims, i64 %index, i32 0
  %word_at = getelementptr %claim, ptr %claims, i64 %index, i32 1
  %slot = load ptr, ptr %slot_at
  %word = load i32, ptr %word_at
  %region_at = getelementptr %slot, ptr %slot, i64 0, i32 2
  %participant_at = getelementptr %slot, ptr %slot, i64 0, i32 3
  store ptr %region, ptr %region_at
  store i64 %index, ptr %participant_at
  %posted = add i32 %word, 1
  store atomic i32 %posted, ptr %slot release, align 4
  ret void
}
"""

_JOIN = """
; Watches the worker of a slot while its state is the word: 0 when it ended, 1 when it runs (or nobody can tell), 2 when
; it has no core: its processor time stood still, while that of this thread went on.
define internal i32 @weft.watch(ptr %slot, i32 %word) nounwind {
entry:
  %number_at = getelementptr %slot, ptr %slot, i64 0, i32 1
  %number = load atomic i32, ptr %number_at acquire, align 4
  %inverted = xor i32 %number, -1
  %shifted = shl i32 %inverted, 3
  %clock = or i32 %shifted, 6
  %its_start = call i64 @weft.clock(i32 %clock)
  %own_start = call i64 @weft.clock(i32 3)
  %start = call i64 @weft.now()
  %seen = call i32 @weft.spin_while(ptr %slot, i32 %word, i64 $ask)
  %same = icmp eq i32 %seen, %word
  br i1 %same, label %judge, label %ended
ended:
  ret i32 0
judge:
  %its_end = call i64 @weft.clock(i32 %clock)
  %own_end = call i64 @weft.clock(i32 3)
  %end = call i64 @weft.now()
  %passed = sub i64 %end, %start
  %its_time = sub i64 %its_end, %its_start
  %own_time = sub i64 %own_end, %own_start
  %its_four = shl i64 %its_time, 2
  %own_two = shl i64 %own_time, 1
  %stood = icmp slt i64 %its_four, %passed
  %went = icmp sgt i64 %own_two, %passed
  %has_clock = icmp sgt i64 %its_end, 0
  %both = and i1 %stood, %went
  %starved = and i1 %both, %has_clock
  %answer = select i1 %starved, i32 2, i32 1
  ret i32 %answer
}

; A worker without a core is claimed last for a while: twice as long as before, if it had hardly come back from that.
define internal void @weft.rest(ptr %slot) nounwind {
  %until_at = getelementptr %slot, ptr %slot, i64 0, i32 9
  %rest_at = getelementptr %slot, ptr %slot, i64 0, i32 10
  %now = call i64 @weft.now()
  %until = load atomic i64, ptr %until_at monotonic, align 8
  %rest = load atomic i64, ptr %rest_at monotonic, align 8
  %ago = sub i64 %now, %until
  %long_ago = icmp sgt i64 %ago, $relapse
  %double = shl i64 %rest, 1
  %wanted = select i1 %long_ago, i64 $least_rest, i64 %double
  %at_least = call i64 @llvm.smax.i64(i64 %wanted, i64 $least_rest)
  %new = call i64 @llvm.smin.i64(i64 %at_least, i64 $most_rest)
  %new_until = add i64 %now, %new
  store atomic i64 %new_until, ptr %until_at monotonic, align 8
  store atomic i64 %new, ptr %rest_at monotonic, align 8
  %old = atomicrmw add ptr @weft.stalls, i64 1 monotonic
  ret void
}

; Sleeps until the worker has ended, on whose state nobody else waits.
define internal void @weft.await(ptr %slot, i32 %running) nounwind {
  %awaited = add i32 %running, 1
  %pair = cmpxchg ptr %slot, i32 %running, i32 %awaited acquire acquire
  call void @weft.sleep_while(ptr %slot, i32 %awaited)
  ret void
}

; Waits for a worker that has no core, on the core of this thread. The worker goes home when it is done, or is sent
; there if it did not notice that it was moved.
define internal void @weft.lend(ptr %slot, i32 %running) nounwind {
entry:
  %mask = alloca [16 x i64], align 8
  call void @weft.rest(ptr %slot)
  %number_at = getelementptr %slot, ptr %slot, i64 0, i32 1
  %moved_at = getelementptr %slot, ptr %slot, i64 0, i32 5
  %may_move_at = getelementptr %slot, ptr %slot, i64 0, i32 11
  %number = load atomic i32, ptr %number_at acquire, align 4
  %may_move = load i64, ptr %may_move_at
  %core = call i32 @sched_getcpu()
  %cores_known = icmp ne i64 %may_move, 0
  %somewhere = icmp sge i32 %core, 0
  %can = and i1 %cores_known, %somewhere
  br i1 %can, label %move, label %wait
move:
  call void @weft.one_core(ptr %mask, i32 %core)
  store atomic i32 1, ptr %moved_at release, align 4
  %move_code = call i32 @sched_setaffinity(i32 %number, i64 128, ptr %mask)
  call void @weft.await(ptr %slot, i32 %running)
  %unnoticed = atomicrmw xchg ptr %moved_at, i32 0 acquire
  %remains = icmp ne i32 %unnoticed, 0
  br i1 %remains, label %send, label %done
send:
  call void @weft.go_home(ptr %slot, i32 %number)
  br label %done
wait:
  call void @weft.await(ptr %slot, i32 %running)
  br label %done
done:
  ret void
}

; Moves a worker away from the core of this thread, if it is there.
define internal void @weft.part(ptr %slot) nounwind {
entry:
  %number_at = getelementptr %slot, ptr %slot, i64 0, i32 1
  %may_move_at = getelementptr %slot, ptr %slot, i64 0, i32 11
  %number = load atomic i32, ptr %number_at acquire, align 4
  %core = call i32 @sched_getcpu()
  %settled = icmp ne i32 %number, 0
  %somewhere = icmp sge i32 %core, 0
  %both = and i1 %settled, %somewhere
  br i1 %both, label %look, label %done
look:
  %may_move = load i64, ptr %may_move_at
  %can = icmp ne i64 %may_move, 0
  br i1 %can, label %move, label %done
move:
  call void @weft.leave(ptr %slot, i32 %number, i32 %core)
  br label %done
done:
  ret void
}

; Sleeps for a short time, or until the worker ends; gives whether it has.
define internal i1 @weft.nap(ptr %slot, i32 %running) nounwind {
entry:
  %span = alloca %time
  store %time { i64 0, i64 $nap }, ptr %span
  %awaited = add i32 %running, 1
  %pair = cmpxchg ptr %slot, i32 %running, i32 %awaited acquire acquire
  %awaiting = extractvalue { i32, i1 } %pair, 1
  br i1 %awaiting, label %sleep, label %ended
sleep:
  %code = call i64 (i64, ...) @syscall(i64 $futex, ptr %slot, i32 128, i32 %awaited, ptr %span)
  %back_pair = cmpxchg ptr %slot, i32 %awaited, i32 %running acquire acquire
  %still = extractvalue { i32, i1 } %back_pair, 1
  %over = xor i1 %still, true
  ret i1 %over
ended:
  ret i1 true
}

; Takes back the order of a claim, or waits until it is carried out.
define internal void @weft.join(ptr %claims, i64 %index, i64 %participants) nounwind {
entry:
  %slot_at = getelementptr %claim, ptr %claims, i64 %index, i32 0
  %word_at = getelementptr %claim, ptr %claims, i64 %index, i32 1
  %slot = load ptr, ptr %slot_at
  %word = load i32, ptr %word_at
  %posted = add i32 %word, 1
  %running = add i32 %word, 2
  %free = sub i32 %word, 1
  %seen = load atomic i32, ptr %slot acquire, align 4
  %unread = icmp eq i32 %seen, %posted
  br i1 %unread, label %revoke, label %wait
revoke:
  %revoke_pair = cmpxchg ptr %slot, i32 %posted, i32 %free acquire acquire
  %revoked = extractvalue { i32, i1 } %revoke_pair, 1
  br i1 %revoked, label %unbegun, label %wait
unbegun:
  %unbegun_at = getelementptr %slot, ptr %slot, i64 0, i32 6
  %times = atomicrmw add ptr %unbegun_at, i32 1 monotonic
  %too_often = icmp eq i32 %times, $unbegun
  br i1 %too_often, label %part, label %done
part:
  store atomic i32 0, ptr %unbegun_at monotonic, align 4
  call void @weft.part(ptr %slot)
  br label %done
wait:
  call void @weft.fetch(ptr %slot, i32 %running, i64 0, i64 %participants)
  %spun = call i32 @weft.spin_while(ptr %slot, i32 %running, i64 $spin)
  %still_running = icmp eq i32 %spun, %running
  br i1 %still_running, label %ask, label %done
ask:
  %answer = call i32 @weft.watch(ptr %slot, i32 %running)
  switch i32 %answer, label %nap [ i32 0, label %done
                                   i32 2, label %lend ]
nap:
  %over = call i1 @weft.nap(ptr %slot, i32 %running)
  br i1 %over, label %done, label %ask
lend:
  call void @weft.lend(ptr %slot, i32 %running)
  br label %done
done:
  ret void
}
"""

_COSTS = """
; Where the cost of a body is kept.
define internal ptr @weft.cost_of(i64 %body) nounwind {
  %mixed = mul i64 %body, -7046029254386353131
  %index = lshr i64 %mixed, 55
  %entry = getelementptr [512 x %cost], ptr @weft.costs, i64 0, i64 %index
  ret ptr %entry
}

; 1/256 nanoseconds of an iteration of the body; 0 when nothing is known.
define internal i64 @weft.known_cost(i64 %body) nounwind {
  %entry = call ptr @weft.cost_of(i64 %body)
  %cost_at = getelementptr %cost, ptr %entry, i64 0, i32 1
  %key = load atomic i64, ptr %entry monotonic, align 8
  %cost = load atomic i64, ptr %cost_at monotonic, align 8
  %same = icmp eq i64 %key, %body
  %known = select i1 %same, i64 %cost, i64 0
  ret i64 %known
}

; Notes what so many iterations took. A lower cost is believed at once, a higher one step by step: the thread may have
; lost its core meanwhile.
define internal void @weft.learn(i64 %body, i64 %iterations, i64 %nanoseconds) nounwind {
entry:
  %some = icmp sgt i64 %iterations, 0
  br i1 %some, label %note, label %done
note:
  %entry_at = call ptr @weft.cost_of(i64 %body)
  %cost_at = getelementptr %cost, ptr %entry_at, i64 0, i32 1
  %old = call i64 @weft.known_cost(i64 %body)
  %scaled = shl i64 %nanoseconds, 8
  %each = udiv i64 %scaled, %iterations
  %new = call i64 @llvm.smax.i64(i64 %each, i64 1)
  %double = shl i64 %old, 1
  %bounded = call i64 @llvm.smin.i64(i64 %new, i64 %double)
  %unknown = icmp eq i64 %old, 0
  %cost = select i1 %unknown, i64 %new, i64 %bounded
  store atomic i64 %body, ptr %entry_at monotonic, align 8
  store atomic i64 %cost, ptr %cost_at monotonic, align 8
  br label %done
done:
  ret void
}

; The threads that pay for a region: with p of them it takes (work / p) + p orders, least at the root of work / order.
define internal i64 @weft.worthwhile(i64 %cost, i64 %count, i64 %most) nounwind {
  %cost_number = uitofp i64 %cost to double
  %count_number = uitofp i64 %count to double
  %work = fmul double %cost_number, %count_number
  %orders = fdiv double %work, $scaled_order
  %root = call double @llvm.sqrt.f64(double %orders)
  %most_number = uitofp i64 %most to double
  %small = fcmp olt double %root, %most_number
  %bounded = select i1 %small, double %root, double %most_number
  %whole = fptoui double %bounded to i64
  %worth = call i64 @llvm.smax.i64(i64 %whole, i64 1)
  %unknown = icmp eq i64 %cost, 0
  %threads = select i1 %unknown, i64 %most, i64 %worth
  ret i64 %threads
}

; Iterations that take so long; 1 where nothing is known, and at least.
define internal i64 @weft.chunk(i64 %cost, i64 %scaled) nounwind {
  %unknown = icmp eq i64 %cost, 0
  %known = select i1 %unknown, i64 $scaled_long, i64 %cost
  %count = udiv i64 %scaled, %known
  %chunk = call i64 @llvm.umax.i64(i64 %count, i64 1)
  ret i64 %chunk
}
"""

_REGION = """
; Runs the body over [0, count) on this thread and workers that it can claim, at most `wanted` threads together.
define internal void @weft.run(ptr %body, ptr %environment, i64 %count, i64 %wanted, i64 %cost) nounwind {
entry:
  %region = alloca %region, align 128
  %claims = alloca %claim, i64 %wanted, align 16
  %ranges = alloca %range, i64 %wanted, align 128
  %now = call i64 @weft.now()
  %others = sub i64 %wanted, 1
  %present = load atomic i64, ptr @weft.workers acquire, align 8
  %short = icmp slt i64 %present, %others
  br i1 %short, label %grow, label %claim
grow:
  call void @weft.grow(i64 %others)
  br label %claim
claim:
  store %claim zeroinitializer, ptr %claims
  %willing = call i64 @weft.claim(ptr %claims, i64 1, i64 %wanted, i64 %now)
  %least = udiv i64 %wanted, $kept
  %enough = icmp sge i64 %willing, %least
  br i1 %enough, label %size, label %insist
insist:
  %pressed = call i64 @weft.claim(ptr %claims, i64 %willing, i64 %least, i64 9223372036854775807)
  br label %size
size:
  %participants = phi i64 [ %willing, %claim ], [ %pressed, %insist ]
  %alone = icmp eq i64 %participants, 1
  br i1 %alone, label %serial, label %describe
serial:
  call void %body(i64 0, i64 %count, ptr %environment)
  %serial_end = call i64 @weft.now()
  %serial_spent = sub i64 %serial_end, %now
  %serial_key = ptrtoint ptr %body to i64
  call void @weft.learn(i64 %serial_key, i64 %count, i64 %serial_spent)
  br label %done
describe:
  %environment_at = getelementptr %region, ptr %region, i64 0, i32 1
  %participants_at = getelementptr %region, ptr %region, i64 0, i32 2
  %least_at = getelementptr %region, ptr %region, i64 0, i32 3
  %posted_at = getelementptr %region, ptr %region, i64 0, i32 4
  %sleepers_at = getelementptr %region, ptr %region, i64 0, i32 5
  %claims_at = getelementptr %region, ptr %region, i64 0, i32 6
  %ranges_at = getelementptr %region, ptr %region, i64 0, i32 7
  %woken_at = getelementptr %region, ptr %region, i64 0, i32 8
  %most_at = getelementptr %region, ptr %region, i64 0, i32 9
  %shortest = call i64 @weft.chunk(i64 %cost, i64 $scaled_short)
  %longest = call i64 @weft.chunk(i64 %cost, i64 $scaled_long)
  %unknown = icmp eq i64 %cost, 0
  %most = select i1 %unknown, i64 %count, i64 %longest
  store ptr %body, ptr %region
  store ptr %environment, ptr %environment_at
  store i64 %participants, ptr %participants_at
  store i64 %shortest, ptr %least_at
  store i64 %most, ptr %most_at
  store i64 %now, ptr %posted_at
  store ptr %claims, ptr %claims_at
  store ptr %ranges, ptr %ranges_at
  store atomic i64 1, ptr %woken_at monotonic, align 8
  call void @weft.divide(ptr %ranges, i64 %count, i64 %participants)
  br label %count_sleepers
count_sleepers:
  %counted = phi i64 [ 1, %describe ], [ %next_counted, %count_sleepers ]
  %so_far = phi i64 [ 0, %describe ], [ %sleepers, %count_sleepers ]
  %asleep_at = getelementptr %claim, ptr %claims, i64 %counted, i32 2
  %asleep = load i32, ptr %asleep_at
  %asleep_long = zext i32 %asleep to i64
  %sleepers = add i64 %so_far, %asleep_long
  %next_counted = add i64 %counted, 1
  %more_to_count = icmp slt i64 %next_counted, %participants
  br i1 %more_to_count, label %count_sleepers, label %counted_all
counted_all:
  store i64 %sleepers, ptr %sleepers_at
  br label %post
post:
  %posted = phi i64 [ 1, %counted_all ], [ %next_posted, %post ]
  call void @weft.post(ptr %region, ptr %claims, i64 %posted)
  %next_posted = add i64 %posted, 1
  %more_to_post = icmp slt i64 %next_posted, %participants
  br i1 %more_to_post, label %post, label %work
work:
  call void @weft.wake_some(ptr %region)
  %start = call i64 @weft.now()
  %iterations = call i64 @weft.work(ptr %region, i64 0)
  %end = call i64 @weft.now()
  %spent = sub i64 %end, %start
  %key = ptrtoint ptr %body to i64
  call void @weft.learn(i64 %key, i64 %iterations, i64 %spent)
  br label %join
join:
  %joined = phi i64 [ 1, %work ], [ %next_joined, %join ]
  call void @weft.join(ptr %claims, i64 %joined, i64 %participants)
  %next_joined = add i64 %joined, 1
  %more_to_join = icmp slt i64 %next_joined, %participants
  br i1 %more_to_join, label %join, label %done
done:
  ret void
}

; Runs body over [0, count) on at most so many threads, and returns when all of it is done. Callers share the threads:
; each takes what its number among the active ones leaves it.
define void @weft_parallel_for(ptr %body, ptr %environment, i64 %count, i64 %threads) nounwind {
entry:
  %empty = icmp sle i64 %count, 0
  br i1 %empty, label %done, label %some
some:
  %allowed = call i64 @llvm.smin.i64(i64 %threads, i64 $slots)
  %capped = call i64 @llvm.smin.i64(i64 %allowed, i64 %count)
  %wants_one = icmp sle i64 %capped, 1
  br i1 %wants_one, label %serial, label %weigh
weigh:
  %key = ptrtoint ptr %body to i64
  %cost = call i64 @weft.known_cost(i64 %key)
  %worth = call i64 @weft.worthwhile(i64 %cost, i64 %count, i64 %capped)
  call void @weft.enter()
  %before = atomicrmw add ptr @weft.active, i64 1 acq_rel
  %closed = icmp slt i64 %before, 0
  br i1 %closed, label %alone, label %share
share:
  %callers = add i64 %before, 1
  %fair = udiv i64 %allowed, %callers
  %offered = call i64 @llvm.smin.i64(i64 %worth, i64 %fair)
  %only_one = icmp sle i64 %offered, 1
  br i1 %only_one, label %alone, label %together
together:
  call void @weft.run(ptr %body, ptr %environment, i64 %count, i64 %offered, i64 %cost)
  br label %leave
alone:
  %start = call i64 @weft.now()
  call void %body(i64 0, i64 %count, ptr %environment)
  %end = call i64 @weft.now()
  %spent = sub i64 %end, %start
  call void @weft.learn(i64 %key, i64 %count, i64 %spent)
  br label %leave
leave:
  %after = atomicrmw sub ptr @weft.active, i64 1 acq_rel
  br label %done
serial:
  call void %body(i64 0, i64 %count, ptr %environment)
  br label %done
done:
  ret void
}
"""

REGION = (_CLAIMS, _JOIN, _COSTS, _REGION)
"""From the claim of workers to their return."""

"""The numbers that steer a choice on every machine, each with what is known about it. Those of a machine, and of a
target's cost model, stand in `targets/<t>/machine.py` and `model.py`; nowhere else is there such a number
(tests/test_architecture.py).

Unless its text says otherwise a number is a judgement of version 0.1: kept because the goldens and tables it stands
behind are good, fitted by nobody. To fit one: change it, then `python -m tests.goldens --compare HEAD` says what is
chosen otherwise, and `python -m benchmarks.models`, `.odd` and `.programs` what that gains.
"""

# -------------------------------------------------------------------------------- planning (plan/, compiler/, codegen/)

LEAST_SUM = 4
"""A sum of fewer products is elementwise work."""

MOST_INLINED_LOADS = 24
"""A block whose body would load more often keeps its producers apart."""

READ_ONCE, READ_OFTEN = 1.01, 2.5
"""A value that a reader takes so many times is taken once (the edges of windows aside); more than so many is often."""

MOST_POINTS = 1 << 20
"""A space with more points is scored in part: each knob's choices are thinned out evenly."""

OFF_RULE = 0.02
"""How much longer a point is taken to last for each doubling of a knob away from what a rule says."""

MOST_FACTOR, MOST_KNOBS = 512, 12
"""The space around a trace: iterations of an inner loop that are tried, unless the planner chose more; and knobs, of a
longer trace those of its last steps, which are the innermost loops."""

LEAST_TYPICAL = 16
"""A size that was small once may be larger: loops over it are cut as if there were so many."""

LEAST_HALVED = 4
"""What tiles of so many elements, or more, leave over of an open size is computed in tiles of half the length. A
judgement."""

FORM_AFTER = 3
"""A set of shapes that comes so often gets a form of its own, made in the background."""

STRAIGHT_PRODUCTS = 100
"""Products for each loop, more than which make a stretch of straight code that no processor sees as a whole: about as
many as most have under way (`Core.in_flight` in targets/cpu/machine.py)."""

FEW_CALLS = 3
"""Calls of an elementary function, with its definition, up to which they are written out. Of three models that have
more LLVM takes 0.74 to 0.90 of its time; on an Emerald Rapids (busy) they and nine others run as before, within 3 %."""

UNROLLED_LINES, UNROLLED_NEST = 600, 150
"""Lines of LLVM IR in all rounds of a short loop up to which LLVM may write it out; and of one around other loops,
whose variable is in no index of the stack. Longer ones it leaves as they are anyway (all of 1,540 loops of 32 models
for x86 and of 1,480 for Arm), after a tenth of its time on x86, a twentieth on Arm. Nests take as much again; kernels
whose nests stay loops run as before (208 on an Emerald Rapids, busy: 1.002 in the mean; 19 on a Neoverse N1: 1.003, at
most 1.014), but for pools of a few microseconds (1.12): so the second number, with which 17 on the N1 take 0.999."""

WALKING_POINTERS = 6
"""Pointers that go along with a loop: what is left of the 15 registers of x86 beside bases, counters and limits."""

# --------------------------------------------------------------------------------------------- graphs (graph/passes/)

WEIGHT_GROWTH, SMALL_GROWTH = 0.5, 4 << 20
"""The share by which algorithms may let the constants of a model grow; so many bytes more are nothing, whatever the
size of a model."""

MOST_SCORE_STEPS = 6
"""Nodes between the two products of an attention."""

MOST_CACHED_QUERIES = 4
"""More queries use each key of a cache more than once: they are multiplied as matrices."""

MOST_CAUSAL_BLOCKS = 8
"""Blocks of queries that causal attention is cut into."""

FOLDED_BYTES, FOLDED_GROWTH = 1 << 20, 4
"""A result up to this size is always kept as a constant; a larger one may have so many times the bytes of what it is
made of."""

MOST_MASK = 1 << 26
"""Elements of a mask that constants make: up to so many it is computed once, to see whether it is a causal one."""

FOLDED_STEPS, FEW_STEPS = 1 << 32, 64
"""All the work of folding in one call, but for nodes that take few steps for each element: some seconds; so many steps
for each element read or written are no more than reading a model takes."""

STRIDED_CHANNELS, MOST_STRIDE = 4, 4
"""Images of at most so many channels have their strides folded, up to such strides; fewer channels are filled up with
zeros to these."""

MOST_FUSED_NODES, MOST_FUSED_INPUTS, MOST_REPEATS = 24, 12, 4
"""Of a group that becomes one kernel; and how many times an expensive element may be computed again because of a
broadcast."""

FOLLOWED_ELEMENTS, FOLLOWED_STEPS = 4096, 1 << 22
"""Tensors of at most so many elements are computed while types are found (larger ones are data, not shapes); nodes that
take longer are left to folding: types are found many times."""

LEAST_BLOCK, ROW_BYTES = 4, 8
"""Channels of the smallest block that is worth it; all channels of a place lie together where they are whole vectors of
so many bytes."""

SAMPLED_WEIGHTS = 1 << 12
"""Elements that are looked at first: most weights show by them that they need all their bits."""

FEW_ROWS = 4
"""Rows of a product up to which reading its weight takes longer than multiplying it."""

BOTH_BRANCHES, TRANSCENDENTAL = 1 << 16, 16
"""Operations that both branches of an If together may take, to be computed both: a few microseconds; a function such
as exp counts as so many."""

# ------------------------------------------------------------------------------------- loop programs (loop/passes/)

UNROLLED_PIPELINE = 16
"""Up to so many iterations, a pipeline between registers is unrolled: which part is meant is then known."""

WRITTEN_THREADS = 16
"""Above so many virtual threads, a statement's copies are written as an unrolled loop."""

LEAST_OVERLAID = 16 * 1024
"""Bytes of shared memory; less than this is not worth a barrier."""

PARTITION_GROWTH, PARTITION_SMALL, SHORT_EDGE = 8, 40, 8
"""How many times as many statements a program may have after loops are partitioned (small ones may have so many at
least); in what comes before or after a main loop, loops shorter than the third are not cut again for padding."""

REGISTER_BYTES = 4096
"""Local buffers up to this size are not moved or shared."""

LEAST_TABLE, MOST_TABLES = 4, 16
"""Tables of steps: a loop of fewer is not worth it; an unrolled loop of more copies would take too many registers."""

LEAST_TRANSPOSED = 4
"""Strided stores side by side that become a row."""

MOST_UNROLLED = 4096
"""The most statements that the copies of one loop may have."""

UNROLLED_AROUND = 16
"""A vectorized loop around another one is unrolled up to this extent."""
BOUND_THREADS = 256
"""Threads of a block for loops that an operator was written in, on a machine with threads: a judgement, unmeasured."""

# ------------------------------------------------------------------------ compiling and running (compiler/, runtime/)

BODY_PRICE, NODE_SECONDS, OPERATION_SECONDS = 0.03, 2e-5, 5e-10
"""Seconds of interpreting after which a body of a loop or branch is compiled (which takes some tenths of a second,
once); and what the interpreter is taken to need for a node, and for one operation of a product or a convolution."""

MOST_BODY_FORMS, STEADY_RUNS, BODY_OFTEN = 8, 2, 16
"""So many times a body is compiled at most; after so many runs with the same shapes one after another they are taken to
stay; a form for changing sizes that meets the same ones so often is replaced by one for just these."""

MOST_DECLINED = 8
"""A native loop that has declined so many calls is given up."""

SHAPES_REMEMBERED, LARGEST_BOUND_VALUE, CALLS_UNASKED = 4096, 64, 64
"""Sets of shapes of which a process remembers what was found out; inputs of at most so many elements are bound by value
where they decide shapes; one in so many short calls tells the executor that a form is in use."""

FORM_KEPT_SECONDS, KERNEL_KEPT_SECONDS, ANNOUNCED_BYTES = 0.5, 0.02, 1 << 30
"""A model that compiles faster is not worth a file of the cache, nor a kernel that LLVM makes faster; a user should
know of an entry with so many bytes."""

KERNELS_KEPT, KERNELS_REMEMBERED, OBJECTS_KEPT = 4096, 512, 64
"""Kernels in the cache folder; kernels that a process remembers, so that compiling a model again, or a part of it, is
quick; pieces of the runtime in the cache folder."""

JOB_SECONDS, JOB_LETTERS, JOB_MEMORY = 0.1, 4_000, 0.75
"""What a kernel is supposed to take before one was made, and of how long a program. Seconds go by letters: 14 to 25 us
for each in six models on a Neoverse N1, of single kernels within a factor of 1.7 (correlation of logarithms 0.86). What
was before the last job counts JOB_MEMORY times (a guess: the average of about four)."""

PATIENCE_SECONDS, MOST_CHILDREN, ENOUGH_JOBS, ENOUGH_SECONDS = 30.0, 15, 3, 0.2
"""After so long without a word from processes that compile this one does it; how many there are at most; and the jobs
that wait when one is forked for them, and what those probably take: what either process touches afterwards is copied,
page by page, for 0.05 to 0.1 seconds in all."""

MOST_WISHES, CHILD_SECONDS, FORM_ROUNDS, FORM_SECONDS = 4, 600.0, 3, 0.1
"""Forms that wait to be made in the background; a child that takes longer for one is ended; and how often, and how
long, two forms are run in turns to see which is faster: in the 6 ms that three rounds of a recogniser take, another
process had a core, and a form that takes half the time was thrown away."""

FORM_BYTES, STAYING_BYTES = 1 << 20, 4096
"""What a form takes beside its weights, roughly; constants of at most so many bytes always stay with their graph."""

WEIGHT_BLOCK_BYTES, FETCHED_BEHIND, NEAR_BYTES, ROWS_TOGETHER = 64 << 20, 64 << 10, 128 << 10, 16
"""Weights lie in blocks of such a size, with as much memory behind the last as kernels may ask for in vain. Smaller
weights are always near: they are no reason for a page of 2 MB, nor for a kernel that passes over zeros. Rows of a
source that are copied side by side: their lines stay in the first cache until all of each is copied."""
FETCHED_SHARE = 8
"""The part of a second-level cache that a waiting thread fills with weights: tokens of llama_110m on Emerald Rapids, of
2 MB, two threads: with 64 KB 1.03 (int4) and 1.01 (int8), with 256 KB 1.02 and 1.04, with 1 MB 1.02 and 1.06."""
LARGE_ARRAY_BYTES, WRITTEN_TOGETHER = 4 << 20, 32 << 20
"""From here on numpy asks for large pages: no block is needed for those. Module files are written in such pieces: of
144 MB that are mapped 134 lie in large pages then, with 8 MB 112, with 2 MB and less 44 (ext4, Linux 6.18)."""
WORDS_SEEN = 16
"""By so many of their words packed weights are looked for in the memory of other forms, and then compared."""

SMALL_CONSTANT = 64
"""Constants of more elements are weights, mostly: programs are shared by layers that differ in those only."""
EMBEDDED_ELEMENTS, SHORT_SUM = 1, 4
"""Constants of at most so many elements become literals of a program; sums for a single block of channels are short up
to so many times its size, those for several up to its size."""

OVERLAP_TRIALS = 1 << 21
"""Iterations that are tried to see whether what two of them touch meets."""

MOST_SLOTS, MOST_RECORDINGS = 4, 16
"""On a device: sets of memory for calls at the same time that are kept; recordings of one, each for its addresses."""

MOST_ARENAS, ARENA_KEPT_BYTES, LEAST_ALIGNED, ALLOCATOR_KEPT_BYTES = 4, 1 << 31, 1 << 16, 256 << 20
"""Arenas that a form keeps between calls, and the largest of them; bytes from which on finding an aligned place costs
nothing beside filling it; most bytes that the native allocator keeps for reuse."""
ARENA_GROWTH = 4
"""Room of a new arena for open sizes, in times of what the call needs."""

LOGGED_SECONDS = 1e-3
"""A pass over a graph that takes less is not worth a line of the log."""

COLLECTED_OBJECTS = 100_000
"""New objects after which Python looks for circles while it compiles: 10,000 cost 1–2 % (magika, resnet18)."""

# ------------------------------------------------------------------------------------------------ profiles of a device

NEAR_PEAK, FULL_WAVES, FEW_THREADS, LAUNCH_SECONDS = 0.6, 0.75, 0.25, 4e-6
"""What a kernel is said to wait for: the share of a peak that is near it, the part of all waves that should be full,
the part of the threads below which latency is not hidden, what a launch that does little takes. Judgements."""

MOST_ROUNDS_FETCHED = 8
"""Rounds of a short loop that are fetched ahead together: a window has fewer rows. A judgement."""

STORES_WAITING = 16
"""Stores of a border that a round of a loop makes, beside which others have room to wait for memory. A judgement: a
core holds 40 to 70."""

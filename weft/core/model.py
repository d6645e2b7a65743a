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

FORM_AFTER = 3
"""A set of shapes that comes so often gets a form of its own, made in the background."""

STRAIGHT_PRODUCTS = 100
"""Products for each loop, more than which make a stretch of straight code that no processor sees as a whole: about as
many as most have under way (`Core.in_flight` in targets/cpu/machine.py)."""

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

LEAST_TAPS_CUT, LEAST_CUT_DEPTH, MOST_CUT_BYTES = 0.2, 32, 16 << 20
"""Windows without the taps that read padding: the share of all taps that is cut off, at least, and the channels of a
sum (copies of parts of the image must be little beside the products); weights of all parts together, as taps that
several parts have stand in the model several times."""

FOLDED_BYTES, FOLDED_GROWTH = 1 << 20, 4
"""A result up to this size is always kept as a constant; a larger one may have so many times the bytes of what it is
made of."""

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

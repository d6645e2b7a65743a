"""The numbers that steer the tuner, each with what is known about it; the room has no others (test_architecture).

Unless its text says otherwise a number is a judgement: kept because the figures of docs/tuning.md were had with it,
fitted by nobody. To fit one of a search: change it, then `python -m benchmarks.search --pool pool.json` replays all
searches over points that were measured once; of a trial: `--exhaustive` says how far answers for one point lie apart.
"""

# ---------------------------------------------------------------------------------------------------- one trial (bench)
SAMPLE_SECONDS = 300e-6  # a call that takes less is repeated until a sample lasts that long
ROUNDS, MOST_ROUNDS, LEAST_SECONDS = 6, 40, 0.04
"""Turns of a pair, the first for warming up: more of them until so much time has passed. What shares a core with others
is as fast as alone for milliseconds at a time: with 4 ms the same kernel measured 0.93 to 1.08 of itself on a full x86
machine; best points measured three times with 40 ms lie 0.2 to 1.3 % apart (Neoverse-N1, load 6 to 15)."""
DEVICE_ROUNDS = 8  # the same on a device, whose own clock is read
ROW_SECONDS, QUICK_SECONDS = 120e-6, 5e-3
"""How long a row of a kernel lasts there; where a run costs the host more than the second, it is a row of one."""
LEAST_PART = 0.1  # of the default's time: what a kernel is taken to add to a row at least
BUSY = 0.2  # the share of the time that others may take before more turns are needed
CALM, AGAIN_SECONDS, FORGOTTEN = 1.08, 0.5, 1.01
"""A default that takes so many times what it took at best was disturbed, perhaps on its core's other thread, which no
clock tells: turns are taken again, for so long; what it took at best is forgotten by so much in a trial that was not
calm. On two processors of a shared Xeon a default took 467 or 750 µs, changing each second, and one point measured 1.13
of it beside others, 0.95 alone."""
COLD, MOST_COPIES, MOST_COLD = 2, 128, 256 << 20
"""Copies of constants fill a cache so many times, by so many copies and bytes at most: a core's second, or, as far as
the model's constants do, the last. With warm ones DQN was expected to gain 1.15, and gained 1.01; with the second
filled BERT's products gained 1.05 to 1.10 alone, 0.98 in the model (x86, 340 MB of weights)."""
HOPELESS = 1.6  # a point that takes so many times as long as the default after two turns is not measured further
FAR = 4.0  # the same on a device, after one turn: a derived tile of an H200's convolution took 0.65 s each time
HOPELESS_TASKS = 2  # a sketch whose best is that slow in so many other tasks is not tried early
TOLERANCE = {"float32": 2e-4, "float64": 1e-9, "float16": 2e-2, "bfloat16": 6e-2}
"""How far results may lie apart, for the magnitude of the default's: another order of the same sums."""
NARROW = {"fp16": 2e-2, "tf32": 2e-2, "bf16": 6e-2}
"""The same for whole models with values of such a precision between their kernels, each of which rounds."""

# ---------------------------------------------------------------------------------------- children (runner, background)
BUILD_SECONDS, RUN_SECONDS = 60.0, 10.0
"""The longest that a candidate may take to be built; to run, besides some hundred times the default's time."""
MOST_LINE = 1 << 24  # bytes that a child may say before a line ends
ASK_SECONDS, ASKED, ASKED_SECONDS = 0.1, 5, 1.0
"""How often a child that may be stopped is looked after; how often children ask for a device that may be busy, and the
time between."""
IDLE, BUILDERS_NICE, PATIENCE = 19, 5, 4.0
"""How nice a child is that tunes beside a service, or builds kernels beside one that measures; the first may take so
many times its budget, as it waits for others."""
BACKGROUND_SECONDS, MET_SECONDS = 600.0, 0.5
"""How long a model is tuned beside its use; how often one whose sizes are open is asked for shapes that it met."""
WRITE_SECONDS = 30.0  # how long a writer of records waits for another

# --------------------------------------------------------------------- one task (space, explorers, cost_models, search)
CHUNK = 1 << 16  # points that are scored at a time: their features fit the caches
UNSURE = 1.25  # how much longer than the planner's choice the best point of a derived sketch is taken to last
MOST_PAIRS = 6  # of so many knobs the products of two are features too
EPSILON = 0.15  # the share of a batch that is drawn at random
NEAR = -3.0  # drawn are points that are estimated at up to eight times the best: 2 ** -NEAR
DIVERSE = 0.05  # how much of the spread of scores a knob is worth that no other point of the batch has so
WALKERS, STEPS, POPULATION, GENERATIONS = 128, 60, 256, 8  # of annealing, of evolution
LEAST_POINTS = 4  # measured points from which something can be learnt
PRIOR_WEIGHT, LEAST_WEIGHT = 4.0, 0.5
"""The margin of a point that the analytic estimate takes to be twice as fast: where it ranked what was measured
rightly, and where it did not."""
TREES, DEPTH, RATE = 40, 3, 0.25  # small: 0.86 million points are scored in a second (`benchmarks.search --rate`)
BATCH, EARLY_BATCH, EARLY = 8, 2, 16
"""Points that are measured before the cost model learns from them: fewer among the first trials, which teach most."""
BUILDERS = 4  # early batches have as many points as can be built beside each other, up to so many
MOST_OTHERS = 8  # other tasks that a cost model learns from
WITHIN, REPLAYED = 0.98, 128  # within 2 % of the best; trials that are replayed over a measured space

# ------------------------------------------------------------------------------------ a whole model (model, algorithms)
WORTH = 0.005  # the share of a model's time below which a task is left alone
FASTER = 1.002
"""How much faster a whole model has to be, in the median of pairs measured in turns; and surely not slower (Swin-T was
accepted at 1.004 by chance, and measured 1.007 and 0.984 afterwards)."""
LEAST_GAIN = 1.01  # what gains less, a schedule or a form of the whole model, is left out: it may be noise
CLOSE, FORMS = 1.15, 2
"""On a device: so many forms that lie less apart by the planner's schedules have their own searched. MobileNet v1 was
1.06 times as fast in another layout, 1.17 with the schedules found there, 1.24 with those of the layout it had left."""
SHARE = 0.3  # the part of the time that may go into forms of the whole model
LAST_SHARE, MOST_LAST = 0.15, 0.3  # that is kept for measuring the whole model at the end: at least, at most
LAST_RUNS = 40  # runs of the model that takes, besides the seconds that each of its parts lasts where runs are short
INSIDE, DEVICE_INSIDE, INSIDE_TURNS = 2, 4, 3
"""The best schedules of a task that run inside the model before one is chosen; on a device, where a run is short and a
kernel alone tells less; their turns."""
NEARLY, MIXED, LAST_MIXED, SURELY, SWEEPS = 0.97, 12, 3, 1.001, 4
"""On a device: schedules of a task that are so fast beside its default, so many of them, are tried in the whole model,
and the best few of these once more; how much faster that has to be with one; how often each task has its turn. By what
its launches add alone DQN lost three quarters of what was promised (H200)."""
BESIDE_BYTES = 64 << 20  # what the kernels before and after one may take in memory: more is not copied for a trial
ACCEPTED = 3  # how often a set is measured anew because another process put something into use meanwhile
PAIR_SECONDS, LONGEST, GLANCE = 3.0, 4, 0.2
"""How long two forms of a model are measured in turns; so many times as long where that does not tell them apart, and
after each such share of it less long where the second is surely slower."""
STRETCHES, LEAST_CALM = 24, 8
"""Of turns, the best of each compared: by single turns ResNet-18's 1.021 was not sure (x86, others busy); with so many
in which both forms took about their least (CALM), the others do not count."""
INSIDE_ROUNDS, RUN_TURNS, RUN_ROUNDS, MIX_ROUNDS = 16, 24, 8, (4, 16)
"""On a device: how often each beginning of a model runs before what its launches add is told; how often two forms of a
model take turns, and the runs of each of which the best counts; the same of models with one schedule
changed, of many and of few."""
MODEL_SECONDS = 600.0  # the longest that compiling and measuring a whole model may take
MOST_ROWS, EVERY_SECONDS, LINE_SECONDS = 14, 0.25, 15.0  # the view: tasks; how often it is drawn, elsewhere a line said

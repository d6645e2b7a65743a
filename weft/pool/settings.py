"""How long the pool waits, how often it tries again, and how much it keeps: judgements, measured by nobody."""

CONNECT_SECONDS = 20.0
"""For a first word of a device server."""

RUN_SECONDS, BENCH_SECONDS = 30, 600
"""The longest that a job may run on a device, all its rounds; and a whole model."""

KERNEL_SECONDS, MODEL_SECONDS = 300.0, 1800.0
"""That a kernel may take, waiting for its turn included, before it is compiled here; and a model that is emulated."""

BATCH_SECONDS, LOOK_SECONDS = 0.05, 0.5
"""Jobs that are planned in so short a time are one message (a graph costs what ten jobs do); how often it is looked
whether the pool is still there, while no answer comes."""

ATTEMPTS, MOST_AGAIN = 3, 5
"""To ask a device server that was lost meanwhile; and how often a job is sent again that failed on its way."""

AGAIN_SECONDS, MOST_STARTS = 0.5, 20
"""Before a process that died is started again; what was started so often, 5 s apart or less, will not do better."""

JOURNAL_LINES = 20_000
"""Lines that a journal keeps when it is opened again, the last ones."""

MOST_INLINE = 1 << 16
"""Bytes of a constant that travels as it is."""

"""A pool of machines to measure on: Dask.distributed over TLS, and a small server on each device (docs/pool.md).

    device, server     a device server as a client sees it; how it is made and started (server.c, count.c)
    web                Node, by the same interface (run.mjs)
    ca, guard          who may join, and what members take from each other
    kinds              machines, arrays and parameters as JSON
    devices            what a worker measures on: a device server, a device of its own, a simulation
    jobs               what a worker does: build, measure, bench, collect; the functions that a pool calls by name
    node               the processes: scheduler and workers, started again when they die; a pool on one machine
    runner, tuning     a search whose measurements run in the pool
    models             whole models: compiled by builders, run on devices

Nothing imports this package but the command line.
"""

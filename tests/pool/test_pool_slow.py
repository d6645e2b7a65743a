"""What takes minutes: five of them under fire, throughput by the number of devices, a thousand of those."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.pool.test_kills import check_books, search_under_fire, simulated
from tests.pool.test_pool import needs_dask, runner_of, search_of
from weft.pool.devices import Simulated
from weft.tuner.records import Status

pytestmark = [needs_dask, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_five_minutes_of_kills(folder, tmp_path):
    from weft.runtime.cache_folder import cache_folder

    chance = random.Random(0)
    with simulated(folder, 4, 0.2) as pool:
        names = list(pool.commands)
        victims = (chance.choice(names) for _ in range(30))
        search, killed = search_under_fire(pool, folder, tmp_path / "records.sqlite", 300.0, 10.0, 200, victims)
    assert len(killed) >= 29 and "scheduler" in killed and len(set(killed)) > 2
    check_books(search, cache_folder("pool"))
    print(f"{search.trials} trials, {len(killed)} kills: {killed}")


def test_throughput_grows_with_the_devices(folder, tmp_path):
    rates = {}
    for count in (1, 2, 4, 8):
        with simulated(folder, count, 2.0) as pool:
            runner = runner_of(pool, folder, "sim", 120.0)
            while runner.width < count:
                time.sleep(0.2)
            search = search_of(runner, tmp_path / f"{count}.sqlite")
            list(search.round(count))  # everybody has worked once
            begin, good = time.monotonic(), 0
            for _ in range(2):
                good += sum(one.outcome.status is Status.OK for one in search.round(search.batch))
            rates[count] = good / (time.monotonic() - begin)
            runner.close()
    shares = {count: rate / (count * rates[1]) for count, rate in rates.items()}
    print({count: f"{rate:.2f}/s, {shares[count]:.2f} of linear" for count, rate in rates.items()})
    assert all(share >= 0.9 for share in shares.values()), (rates, shares)


def test_a_thousand_devices(tmp_path):
    """A scheduler and a thousand workers in this process: what the formula says from 100 and 300 comes true."""
    from weft.pool import jobs

    jobs.journal = jobs.Journal(tmp_path / "journal.jsonl")
    try:
        few, some = (asyncio.run(simulate(count, EACH, 2.0)) for count in (100, 300))
        found = asyncio.run(simulate(DEVICES, EACH, SERVICE))
    finally:
        jobs.journal = jobs.device = None
    slope = (some.job - few.job) / (some.devices - few.devices)  # for each job Dask looks at each worker
    cost = max(few.job, few.job + slope * (DEVICES - few.devices))
    beat = some.beats / some.devices * interval(some.devices)
    expected = busy_share(cost, beat, found.core)
    alone = busy_share(cost, beat, 1.0)
    costs = [f"{1e3 * one:.2f}" for one in (few.job, some.job, cost, found.job, beat)]
    print(f"ms of the processor: a job {costs[0]} with 100 workers, {costs[1]} with 300, so {costs[2]} with {DEVICES} "
          f"(it was {costs[3]}), a heartbeat {costs[4]}. The thread had {found.core:.0%} of a core. "
          f"Busy: {found.share:.1%}, expected {expected:.1%}, {alone:.1%} with a core of its own")  # fmt: skip
    assert found.jobs == DEVICES * EACH
    assert alone >= 0.8 and abs(found.share - expected) < 0.1, (found, expected, alone)
    assert found.share >= 0.8 or found.core < 0.9, f"devices waited for the scheduler: {found}"


DEVICES, EACH, SERVICE = 1000, 3, 20.0
IDLE = {"distributed.admin.system-monitor.interval": "1h", "distributed.admin.tick.interval": "1h",
        "distributed.scheduler.worker-ttl": "1h"}  # fmt: skip
"""What a thousand workers in one process must not do, or be held for; each of a pool's has a process of its own."""


def interval(devices: int) -> float:
    """Seconds between two heartbeats of a worker, by Dask's rule."""
    from distributed.scheduler import heartbeat_interval

    return heartbeat_interval(devices)


def busy_share(job: float, beat: float, core: float) -> float:
    """The share of their time that devices work: one thread serves all, a device does its jobs one after the other.

    `job` and `beat` are seconds of the processor, `core` is how much of one the thread gets. The thread serves `rate`
    jobs a second; either the last device begins when each has its first job, or all wait for the thread.
    """
    rate = core * (1 - DEVICES * beat / interval(DEVICES) / core) / job
    return EACH * SERVICE / max(DEVICES / rate + EACH * SERVICE, EACH * DEVICES / rate + SERVICE)


class Simulated1000(NamedTuple):
    """What a simulation found: seconds of the processor a job and, idle, a second; how much of a core there was."""

    devices: int
    jobs: int
    job: float
    beats: float
    core: float
    share: float


def waited() -> tuple[float, float]:
    """Seconds that this thread has had a core, and has waited for one."""
    used, delay, _ = Path("/proc/thread-self/schedstat").read_text().split()
    return int(used) / 1e9, int(delay) / 1e9


async def simulate(devices: int, each: int, service: float) -> Simulated1000:
    import dask
    from distributed import Client, Scheduler, Worker, wait

    from weft.pool import jobs
    from weft.pool.guard import guard
    from weft.pool.node import _quiet
    from weft.pool.runner import send

    record = {"point": {}, "task": "t", "machine": "m", "version": "v", "sketch": "s"}
    jobs.device = Simulated(service, {})
    guard()
    dask.config.set(IDLE)
    async with _quiet(Scheduler)(protocol="inproc://", extensions={}) as scheduler:
        workers = [
            _quiet(Worker)(scheduler.address, nthreads=1, resources={"device:sim": 1}, name=f"w{at}", memory_limit=0,
                           local_directory="/tmp", extensions={}, heartbeat_interval=f"{interval(devices)}s")
            for at in range(devices)
        ]  # fmt: skip
        for at in range(0, devices, 50):
            await asyncio.gather(*workers[at : at + 50])
        begin = time.process_time()
        await asyncio.sleep(interval(DEVICES))
        beats = (time.process_time() - begin) / interval(DEVICES)
        async with Client(scheduler.address, asynchronous=True, set_as_default=False) as client:
            run, told = f"{devices}-{time.monotonic()}", {}
            client.subscribe_topic(jobs.topic_of(f"{run}-0"), lambda event: told.update([event[1]]))
            sent = [
                (jobs.measure, json.dumps({"id": f"{run}-{at}", "record": record, "trace": "x" * 1000}).encode())
                for at in range(devices * each)
            ]
            begin, processor, (used, delay) = time.monotonic(), time.process_time(), waited()
            futures = []
            for at in range(0, len(sent), 50):  # the scheduler is in this thread too: it gets its turns
                part = {f"{run}-{at + place}": one for place, one in enumerate(sent[at : at + 50])}
                futures += send(client, part, "device:sim")
                await asyncio.sleep(0.001)
            await wait(futures)
            taken, work = time.monotonic() - begin, time.process_time() - processor
            used, delay = waited()[0] - used, waited()[1] - delay
        for worker in workers:
            worker.periodic_callbacks["heartbeat"].stop()
        await asyncio.gather(*(worker.close(timeout=1, nanny=False) for worker in workers))
    assert len(told) == len(sent)
    job = (work - taken * beats) / len(sent)
    return Simulated1000(devices, len(sent), job, beats, used / (used + delay), each * service / taken)

"""What takes minutes: five of them under fire, throughput by the number of devices, a thousand of those."""

from __future__ import annotations

import asyncio
import json
import random
import time

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
    """A scheduler and a thousand workers in this process: its time for a job limits how many devices it may have."""
    from weft.pool import jobs

    jobs.journal = jobs.Journal(tmp_path / "journal.jsonl")
    jobs.device = Simulated(SERVICE, {})
    try:
        found = asyncio.run(thousand())
    finally:
        jobs.journal = jobs.device = None
    print(found)
    assert found["jobs"] == DEVICES * EACH and found["scheduler_share"] < 0.8, found
    assert found["share"] >= 0.8, f"devices waited for the scheduler: {found}"


DEVICES, EACH, SERVICE = 1000, 3, 40.0
IDLE = {"distributed.admin.system-monitor.interval": "1h", "distributed.admin.tick.interval": "1h"}
"""What a thousand workers in one process must not do each second; each of a pool's has a process of its own."""


async def thousand() -> dict[str, float]:
    import dask
    from distributed import Client, Scheduler, Worker

    from weft.pool import jobs
    from weft.pool.guard import guard
    from weft.pool.node import _quiet

    record = json.dumps({"point": {}, "task": "t", "machine": "m", "version": "v", "sketch": "s"})
    guard()
    dask.config.set(IDLE)
    async with _quiet(Scheduler)(protocol="inproc://", extensions={}) as scheduler:
        workers = [
            _quiet(Worker)(scheduler.address, nthreads=1, resources={"device:sim": 1}, name=f"w{at}", memory_limit=0,
                           local_directory="/tmp", extensions={}, heartbeat_interval="10s")
            for at in range(DEVICES)
        ]  # fmt: skip
        for at in range(0, DEVICES, 50):
            await asyncio.gather(*workers[at : at + 50])
        async with Client(scheduler.address, asynchronous=True, set_as_default=False) as client:
            sent = [
                json.dumps({"id": f"{at}", "record": json.loads(record), "trace": ""}).encode()
                for at in range(DEVICES * EACH)
            ]
            begin, processor = time.monotonic(), time.process_time()
            futures = []
            for at in range(0, len(sent), 50):  # the scheduler is in this thread too: it gets its turns
                part = sent[at : at + 50]
                futures += [client.submit(jobs.measure, one, pure=False, resources={"device:sim": 1}) for one in part]
                await asyncio.sleep(0.02)
            await client.gather(futures)
            taken, used = time.monotonic() - begin, time.process_time() - processor
            print(f"{len(sent)} jobs in {taken:.1f} s, {used:.1f} of the processor's", flush=True)
        await asyncio.gather(*(worker.close(timeout=1, nanny=False) for worker in workers))
    return {"seconds": taken, "jobs": len(sent), "share": EACH * SERVICE / taken, "scheduler_share": used / taken,
            "milliseconds_a_job": 1e3 * used / len(sent)}  # fmt: skip

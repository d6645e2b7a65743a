"""Deaths: workers and schedulers are killed while a search goes on."""

from __future__ import annotations

import json
import threading
import time

import pytest

from tests.pool.test_pool import BEFORE, fleet, runner_of, search_of
from weft.tuner.database import Database
from weft.tuner.search import Search


def simulated(folder, count, seconds):
    """A pool of simulated devices."""
    from weft.pool.node import LocalPool

    devices = {f"sim-{at}": {"kind": "sim", "device": f"simulated:{seconds}"} for at in range(count)}
    return LocalPool(folder, builders=0, devices=devices)


@pytest.fixture
def pool(folder):
    with simulated(folder, 2, 0.15) as made:
        yield made


def search_under_fire(pool, folder, path, seconds, every, trials, victims) -> tuple[Search, list[str]]:
    """A search on simulated devices while processes of the pool are killed."""
    runner = runner_of(pool, folder, "sim", 120.0)
    search = search_of(runner, path)
    over, killed = threading.Event(), []

    def kill() -> None:
        for name in victims:
            if over.wait(every):
                return
            killed.append(name)
            pool.processes[name].kill()

    hunter = threading.Thread(target=kill)
    hunter.start()
    begin = time.monotonic()
    try:
        while search.trials < trials or time.monotonic() - begin < seconds:
            assert sum(1 for _ in search.round(16))
    finally:
        over.set()
        hunter.join()
    end = time.monotonic() + 60  # until all workers are back, with their journals
    wanted = sum(name.startswith("sim-") for name in pool.commands)
    while time.monotonic() < end and runner.width < wanted:
        time.sleep(0.5)
    runner.gather(search.database, runner.target, {search.task.key})
    runner.close()
    return search, killed


def check_books(search, folder_of_journals) -> None:
    """Each measurement that a worker finished is one row, and each row is one that a worker finished."""
    finished: dict[tuple[str, str], set[float]] = {}
    for path in folder_of_journals.glob("journal-sim-*.jsonl"):
        for line in filter(None, path.read_text().splitlines()):
            record = json.loads(json.loads(line)["record"])
            if record["task"] == search.task.key:
                place = record["sketch"], json.dumps(record["point"], sort_keys=True)
                finished.setdefault(place, set()).add(record["at"])
    rows = search.database.records(search.task.key)
    measured = [row for row in rows if row.outcome.status not in BEFORE]
    places = [(row.sketch, json.dumps(dict(row.point), sort_keys=True)) for row in measured]
    assert len(places) == len(set(places)), "a point was counted twice"
    assert set(places) == set(finished), "a finished measurement was lost, or a row was made up"
    assert all(row.at in finished[place] for row, place in zip(measured, places))
    assert search.trials == len(search.gains) <= len(rows)


@fleet
def test_kills_lose_nothing_and_count_nothing_twice(pool, folder, tmp_path):
    from weft.runtime.cache_folder import cache_folder

    path = tmp_path / "records.sqlite"
    search, killed = search_under_fire(pool, folder, path, 4.0, 1.5, 32, iter(["sim-0", "scheduler"]))
    assert killed == ["sim-0", "scheduler"] and search.trials >= 32
    check_books(search, cache_folder("pool"))
    # A client that lost its database gets everything again from the journals.
    runner = runner_of(pool, folder, "sim", 60.0)
    with Database(tmp_path / "again.sqlite") as other:
        runner.gather(other, runner.target, {search.task.key})
        here = [row for row in search.database.records(search.task.key) if row.outcome.status not in BEFORE]
        assert len(other.records(search.task.key)) == len(here)
        assert runner.gather(other, runner.target, {search.task.key}) == 0
    runner.close()

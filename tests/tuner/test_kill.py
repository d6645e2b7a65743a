"""A search that is killed at any moment: the database opens, no finished measurement is lost, the search goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from weft.tuner.database import Database

PROGRAM = """
import sys
from tests.tuner.small import product_task
from weft.tuner.bench import Bench
from weft.tuner.cost_models import cost_model
from weft.tuner.database import Database
from weft.tuner.explorers import explorer_for
from weft.tuner.runner import LocalRunner
from weft.tuner.search import Proposer, Search
from weft.tuner.space import space_of

task = product_task()
space = space_of(task)
proposer = Proposer(space, cost_model("analytic"), explorer_for(space))
search = Search(task, Bench(task, 1), proposer, LocalRunner(), Database(sys.argv[1]))
print("ready", search.trials, flush=True)
while True:
    for record in search.round(4):
        print(search.trials, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_kills(tmp_path):
    path = tmp_path / "records.sqlite"
    chance = random.Random(0)
    done = 0
    for _ in range(50):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline().split()
        assert line[0] == "ready" and int(line[1]) >= done, (line, done)  # what was finished is there again
        end = time.monotonic() + chance.uniform(0.0, 1.5)
        os.set_blocking(process.stdout.fileno(), False)
        while time.monotonic() < end:
            done = max([done, *map(int, (process.stdout.read() or "").split())])
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = max([done, *map(int, (process.stdout.read() or "").split())])
        with Database(path) as database:
            assert len(database.records()) >= done
    assert done > 10

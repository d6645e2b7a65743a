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
from dataclasses import replace
from tests.tuner.small import product_task
from weft.targets.registry import find_target
from weft.tuner.bench import Bench
from weft.tuner.cost_models import cost_model
from weft.tuner.database import Database
from weft.tuner.runner import LocalRunner
from weft.tuner.search import Proposer, Search
from weft.tuner.space import space_of

# However many cores a process may use just now: that is a fact of the machine, and records are known by all of them.
task = replace(product_task(), target=find_target("native,cores=1"))
space = space_of(task)
proposer = Proposer(space, cost_model("analytic"))
search = Search(task, Bench(task, 1), proposer, LocalRunner(), Database(sys.argv[1]))
search.bench.default.run()
print("ready", search.trials, flush=True)
while True:
    for record in search.round(4):
        print(search.trials, flush=True)
"""


def numbers(pipe: int, text: bytes) -> tuple[list[int], bytes]:
    """The whole lines that a process has said so far, and what is left of the last."""
    try:
        text += os.read(pipe, 1 << 16)
    except BlockingIOError:
        pass  # it has said nothing new
    *lines, rest = text.split(b"\n")
    return [int(line) for line in lines if line.isdigit()], rest


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_twenty_five_kills(tmp_path, seed):
    path = tmp_path / "records.sqlite"
    chance = random.Random(seed)
    done = 0
    for _ in range(25):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path)], stdout=subprocess.PIPE, bufsize=0)
        word, known = process.stdout.readline().split()
        with Database(path) as database:
            there = {(one.task, one.machine, one.version) for one in database.records()}
        assert word == b"ready" and int(known) >= done, (known, done, there)  # what was finished is there again
        pipe, text = process.stdout.fileno(), b""
        os.set_blocking(pipe, False)
        end = time.monotonic() + chance.uniform(0.0, 4.0)
        while time.monotonic() < end:
            found, text = numbers(pipe, text)
            done = max([done, *found])
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        done = max([done, *numbers(pipe, text)[0]])
        process.stdout.close()
        with Database(path) as database:
            assert len(database.records()) >= done
    print(f"25 kills, {done} measurements, none lost")
    assert done > 10

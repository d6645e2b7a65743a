"""Several processes with one cache folder, some of which are killed: every answer is right, and the folder stays good.

Each process compiles a few small models in turn (by file, so that links are written too), and clears the cache now and
then. Those that are killed are killed at random times. At the end a fresh process compiles every model again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.fuzz import graphs
from tests.fuzz.driver import ROOT
from tests.fuzz.kinds import OK, Case, Kind, Result, chance_of

PROCESSES = 3
MODELS = 3
SECONDS = 60
_PROGRAM = """
import random, sys, warnings
import numpy as np
from weft.core import model
import weft
from weft.compiler.cache import models as cache
warnings.simplefilter("ignore")
model.FORM_KEPT_SECONDS = 0.0
folder, seed, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
with np.load(f"{folder}/data.npz") as data:
    data = dict(data)
count = int(data["count"])
for turn in range(turns):
    number = turn if turns == count else chance.randrange(count)
    feeds = {name.split(":")[1]: array for name, array in data.items() if name.startswith(f"in{number}:")}
    got = weft.compile(f"{folder}/{number}.onnx").run(None, feeds)
    for at, mine in enumerate(got):
        if mine.tobytes() != data[f"out{number}:{at}"].tobytes():
            sys.exit(f"model {number}: another answer")
    if chance.random() < 0.2:
        cache.clear(chance.choice((0, 1 << 14)))
print("done")
"""


def make(seed: int) -> Case:
    """The case of a number."""
    return Case(seed)


def show(case: Case) -> str:
    """Its number is all there is to say."""
    return f"{PROCESSES} processes, {MODELS} models from {case.seed}"


def run(case: Case) -> Result:
    """Starts the processes, kills some, and looks at what is left."""
    chance = chance_of("concurrent", case.seed)
    with tempfile.TemporaryDirectory() as folder:
        _write_models(Path(folder), case.seed)
        started = [_start(folder, chance.getrandbits(16), 6) for _ in range(PROCESSES)]
        for process in started[: chance.randint(0, PROCESSES - 1)]:
            time.sleep(chance.random() * 1.5)
            process.send_signal(signal.SIGKILL)
        problems = [_end(process) for process in started]
        problems.append(_end(_start(folder, 0, MODELS)))
        found = [problem for problem in problems if problem]
        assert not found, "\n".join(found)
    return OK


def _write_models(folder: Path, seed: int) -> None:
    import weft
    from weft.core.knobs import knobs

    named: dict[str, np.ndarray] = {"count": np.array(MODELS)}
    for number in range(MODELS):
        case = graphs.make(30_000_000 + seed * MODELS + number)
        model, g = graphs.build(Case(case.seed, case.parts[:5]))
        (folder / f"{number}.onnx").write_bytes(model.SerializeToString())
        with knobs.override(cache=False):
            answer = weft.compile(str(folder / f"{number}.onnx")).run(None, g.feeds)
        named.update({f"in{number}:{name}": array for name, array in g.feeds.items()})
        named.update({f"out{number}:{at}": array for at, array in enumerate(answer)})
    np.savez(folder / "data.npz", **named)


def _start(folder: str, seed: int, turns: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEFT_CACHE_DIR": f"{folder}/cache"}
    command = [sys.executable, "-c", _PROGRAM, folder, str(seed), str(turns)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _end(process: subprocess.Popen[str]) -> str:
    """What went wrong with a process, in words."""
    try:
        output, complaints = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return "a process did not end"
    if process.returncode in (0, -signal.SIGKILL):
        return "" if process.returncode or "done" in output else "a process ended early"
    return f"exit code {process.returncode}: {complaints[-1500:]}"


KIND = Kind("concurrent", make, run, show, share=0.15, seconds=60)

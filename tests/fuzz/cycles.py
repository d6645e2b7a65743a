"""Compiling and letting go, 200 times: the memory that stays is bounded.

The models of a case differ in their weights and now and then in their shapes, so that machine code comes and goes too.
"""

from __future__ import annotations

import gc
from pathlib import Path

import weft
from tests.fuzz import graphs
from tests.fuzz.kinds import OK, Case, Kind, Result
from weft.core.knobs import knobs
from weft.frontends.onnx import load

CYCLES = 200
WARM = 60
MOST_GROWTH = 48 << 20
MODELS = 4


def make(seed: int) -> Case:
    """The case of a number."""
    return Case(seed)


def show(case: Case) -> str:
    """The models."""
    return "\n\n".join(graphs.show(one) for one in _cases(case))


def _cases(case: Case) -> list[Case]:
    made = [graphs.make(40_000_000 + case.seed * MODELS + number) for number in range(MODELS)]
    return [Case(one.seed, one.parts[:5]) for one in made]


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run(case: Case) -> Result:
    """Compiles and frees; the second part may not grow."""
    models = []
    for one in _cases(case):
        model, g = graphs.build(one)
        models.append((model.SerializeToString(), g.feeds))
    first = 0
    with knobs.override(cache=False):
        for cycle in range(CYCLES):
            data, feeds = models[cycle % len(models)]
            module = weft.compile(load(data))
            module.run(None, feeds)
            del module
            if cycle == WARM:
                gc.collect()
                first = resident()
    gc.collect()
    growth = resident() - first
    assert growth <= MOST_GROWTH, f"{growth >> 20} MB more after {CYCLES - WARM} cycles"
    return OK


KIND = Kind("cycles", make, run, show, share=0.15, seconds=300)

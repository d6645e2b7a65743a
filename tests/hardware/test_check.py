"""The checker: right streams have no problems, wrong ones the right problem, and its verdict is the model's."""

from collections import Counter

import numpy as np
import pytest

from hardware.vdla.check import check, explore
from tests.hardware.streams import PROGRAM, RESULT, SMALL, fresh, random_instruction, tensor_program, token_stream
from weft.targets.vdla.isa import DEADLOCK, assemble
from weft.targets.vdla.machine import Machine
from weft.targets.vdla.model import Model


def races(verdict):
    return [problem for problem in verdict.problems if "may still" in problem]


def compare_with_model(count):
    """Deadlock or done: what the checker says of random streams, and what the model does."""
    model, verdicts = Model(SMALL), Counter()
    for seed in range(count):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(1, 24))
        loose = seed % 4 == 0
        program = (
            [random_instruction(rng, SMALL, 0.1) for _ in range(size)] if loose else token_stream(rng, SMALL, size)
        )
        fresh(rng, model, program)
        verdict = check(model.copy(), program)
        result = model.run(PROGRAM, size, 50_000)
        assert verdict.done == (not result.errors & DEADLOCK), f"seed {seed}"
        verdicts[verdict.done, bool(races(verdict))] += 1
    return verdicts


def test_verdicts_are_the_models():
    verdicts = compare_with_model(120)
    assert min(verdicts[done, race] for done in (True, False) for race in (True, False)) > 3


@pytest.mark.slow
def test_many_verdicts_are_the_models():
    compare_with_model(10_000)


def test_right_programs_have_no_problems_and_one_end():
    for seed in range(30):
        one = tensor_program(np.random.default_rng(seed), SMALL)
        machine = Machine(SMALL)
        machine.dram[:] = one.dram
        if seed < 6:
            (end,) = explore(machine.copy(), one.program)
            np.testing.assert_array_equal(end.dram[RESULT : RESULT + len(one.answer)], one.answer)
        verdict = check(machine, one.program)
        assert verdict.done and not verdict.problems
        np.testing.assert_array_equal(machine.dram[RESULT : RESULT + len(one.answer)], one.answer)


def test_a_stream_with_more_than_one_end_is_a_race():
    """Every order of short streams: the checker says done when all of them end, and a race where ends differ."""
    seen = Counter()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        program = token_stream(rng, SMALL, int(rng.integers(2, 9)))
        machine = Machine(SMALL)
        for memory in (machine.dram[:PROGRAM], machine.inp, machine.wgt, machine.acc):
            memory[...] = rng.integers(0, 100, memory.shape)
        ends = explore(machine.copy(), program)
        verdict = check(machine, program)
        assert verdict.done == (None not in ends), f"seed {seed}"
        assert len(ends) == 1 or races(verdict), f"seed {seed}"
        seen[verdict.done, len(ends) > 1, bool(races(verdict))] += 1
    assert seen[True, True, True] > 5 and seen[True, False, False] > 5 and seen[False, False, False] > 5


GOOD = """
load memory=inp rows=1 columns=4 push_next
gemm uop_end=1 outer=4 inner=1 pop_prev push_next
store memory=acc8 dram=1536 rows=1 columns=1 pop_prev
"""


@pytest.mark.parametrize(
    "old, new, problem",
    [
        ("", "", None),
        ("columns=4 push_next", "columns=4", "waits for a token of load"),
        ("pop_prev push_next", "push_next", "reads inp that instruction 0 may still write"),
        ("pop_prev push_next", "pop_prev push_prev push_next", "1 tokens of compute for load are left over"),
        ("rows=1 columns=1 pop_prev", "rows=1 columns=1", "reads acc that instruction 1 may still write"),
        ("outer=4", "outer=4 dst_outer=2047", "reaches beyond the end of a memory"),
        ("store memory=acc8", "store memory=inp", "does not exist"),
        ("outer=4 inner=1", "outer=16383 inner=16383", "would take 268,402,689 cycles"),
        ("rows=1 columns=4", "rows=65535 columns=65535", "would take 4,294,836,225 cycles"),
    ],
)
def test_problems_are_named(old, new, problem):
    verdict = check(Machine(SMALL), assemble(GOOD.replace(old, new) if old else GOOD))
    assert (not verdict.problems) if problem is None else any(problem in text for text in verdict.problems)

"""Random programs under random schedules with threads: barriers keep them free of races, and OpenCL computes the same.

After random steps of any kind, loops are bound to blocks and threads until nothing more is accepted, so that most
programs have several kernels, memory that blocks share and virtual threads.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import weft
from tests.codegen.c_support import opencl
from tests.conftest import FULL
from tests.schedule.checking import assert_same, follow, run, scopes_fit, try_step, uses_threads
from tests.schedule.intrinsics import declare_intrinsics
from tests.schedule.random_programs import Source, arguments_of, draw_program
from tests.schedule.random_steps import draw_steps
from weft.core.errors import TargetError
from weft.loop.parser import parse_func
from weft.loop.passes.decompose_init import decompose_init
from weft.loop.passes.insert_barriers import insert_barriers
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.lower_virtual_threads import lower_virtual_threads
from weft.loop.passes.place_allocations import place_allocations
from weft.loop.tree import loops_in
from weft.loop.verifier import verify

BARRIERS = (decompose_init, lower_blocks, lower_virtual_threads, place_allocations, insert_barriers)


@pytest.fixture(autouse=True, scope="module")
def _intrinsics():
    declare_intrinsics()


def bind_more(source, schedule, counts):
    """Binds loops that are still serial, outermost first."""
    for loop in list(loops_in(schedule.func.body)):
        if loop.kind == "serial" and source.chance(60):
            tag = source.pick(("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.x", "threadIdx.y", "vthread"))
            try_step(schedule, "bind", {"loop": loop.var.name, "thread": tag}, counts)


def draw_pair(seed, counts):
    """A program, a schedule of it with threads, arguments, and what it computes; None where it has no threads."""
    source = Source(seed)
    program = draw_program(source)
    schedule = program.schedule()
    start = schedule.func
    for _ in range(source.number(1, 7)):
        follow(draw_steps(source, schedule), schedule, counts)
        if source.chance(50):
            bind_more(source, schedule, counts)
    bind_more(source, schedule, counts)
    if not uses_threads(schedule.func) or not scopes_fit(schedule.func):
        return None
    arrays = arguments_of(start, program.size, seed)
    return schedule.func, arrays, run(start, arrays)


def check_barriers(func, arrays, want):
    """With barriers the lowered program runs in the interpreter, which finds races."""
    for each in BARRIERS:
        func = each(func)
        verify(func)
    assert_same(run(func, arrays), want, f"with barriers\n{func!r}")


def check_opencl(func, arrays, want):
    copies = [a.copy() for a in arrays]
    weft.build(func, target=opencl())(*copies)
    assert_same(copies, want, f"on OpenCL\n{func!r}")


def check_seeds(seeds, check, least):
    counts: Counter[str] = Counter()
    checked = 0
    for seed in seeds:
        pair = draw_pair(seed, counts)
        if pair is None:
            continue
        try:
            check(*pair)
        except TargetError as error:
            assert "not every thread" in str(error) or "constant" in str(error), f"seed {seed}: {error}"
            counts["refused"] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        checked += 1
    assert checked - counts["refused"] >= least, counts


def test_barriers_leave_no_races():
    check_seeds(range(100 if FULL else 50), check_barriers, 40 if FULL else 20)


def test_opencl_computes_the_same():
    check_seeds(range(1000, 1040 if FULL else 1020), check_opencl, 15 if FULL else 7)


HALVES = """
func main(A: float16[2, 2], best: int64[2], most: float16[2]):
    allocate T: float16[2, 2]
    for i in range(2) thread threadIdx.x:
        for k in range(2):
            for y in range(4) thread threadIdx.y:
                block T(r: 2 = i + y, c: 2 = k):
                    where y < 1
                    reads A[c, r]
                    writes T[r, c]
                    T[r, c] = max(A[c, r], 2.0f16)
            block best(r: 2 = i, c: reduce 2 = k):
                reads T[r, c]
                writes best[r], most[r]
                init:
                    best[r] = 1000
                    most[r] = -inf_f16
                let number = select(T[r, c] < most[r] or most[r] == T[r, c] and best[r] < c, best[r], c)
                let value = select(T[r, c] < most[r] or most[r] == T[r, c] and best[r] < c, most[r], T[r, c])
                best[r] = number
                most[r] = value
"""


def test_halves_between_barriers():
    """PoCL loses variables whose address is taken between two barriers: no conversion may take one."""
    func = parse_func(HALVES)
    arrays = [np.array([[1, 3], [2.5, 0.5]], np.float16), np.zeros(2, np.int64), np.zeros(2, np.float16)]
    check_opencl(func, arrays, run(func, arrays))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_hundreds_of_pairs_on_opencl(part):
    check_seeds(range(2000 + part * 200, 2200 + part * 200), check_opencl, 80)

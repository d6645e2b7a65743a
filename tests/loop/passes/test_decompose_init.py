"""A block's init becomes a nest of its own, which runs when the block does."""

from __future__ import annotations

import numpy as np
import pytest

from weft.core.errors import ScheduleError
from weft.loop.interpreter import interpret
from weft.loop.parser import parse_func
from weft.loop.passes.decompose_init import decompose_init
from weft.loop.verifier import verify

SUM = """
func main(A: float32[4], M: float32[1]):
    for o in range(2):
        for jk in range(8):
            block M(k: reduce 4 = jk%4):
                where PREDICATE
                reads A[k]
                writes M[0]
                init:
                    M[0] = 0.0
                M[0] = M[0] + A[k]
"""


def test_an_outer_turn_that_updates_nothing_begins_no_sum_anew():
    """The fused loop is of the reduction and of an axis of one element, so that the predicate speaks of both."""
    func = parse_func(SUM.replace("PREDICATE", "o*2 + jk//4 < 1"))
    verify(func)
    values, made = np.arange(1, 5, dtype=np.float32), np.zeros(1, np.float32)
    for one in (func, decompose_init(func)):
        interpret(one, values, made)
        assert made[0] == 10


def test_a_predicate_of_which_the_first_turn_says_nothing():
    func = parse_func(SUM.replace("PREDICATE", "o*2 - jk//4 < 1"))
    with pytest.raises(ScheduleError, match="depends on a loop of its reduction and one around it"):
        decompose_init(func)

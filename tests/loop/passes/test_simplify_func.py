"""simplify_func: statements that go away, and what tests tell their branches."""

from __future__ import annotations

import pytest

from tests.loop.passes.strategies import expect
from weft.loop.ir import Seq
from weft.loop.parser import parse_func
from weft.loop.passes.simplify_func import simplify_func
from weft.loop.verifier import verify

CASES = {
    "ranges of loops": (
        """
    for i in range(4):
        for j in range(1):
            if i + j < 4:
                C[(i*4 + j)//4] = A[i]
""",
        """
    for i in range(4):
        C[i] = A[i]
""",
    ),
    "nested tests": (
        """
    for i in range(8):
        if i < 5:
            if 2 <= i:
                C[i] = A[i]
""",
        """
    for i in range(8):
        if i < 5 and 2 <= i:
            C[i] = A[i]
""",
    ),
    "neighbours whose tests turn out to be one": (
        """
    for i in range(2):
        if i*4 + 1 < 4:
            C[i] = A[i]
        if i*4 + 2 < 4:
            C[i + 2] = A[i]
        if A[0] < 1.0:
            C[4] = 1.0
        if A[0] < 1.0:
            C[5] = 1.0
""",
        """
    for i in range(2):
        if i < 1:
            C[i] = A[i]
            C[i + 2] = A[i]
        if A[0] < 1.0:
            C[4] = 1.0
        if A[0] < 1.0:
            C[5] = 1.0
""",
    ),
    "a test tells its branch": (
        """
    for i in range(8):
        if i < 4:
            C[i] = A[i % 4]
""",
        """
    for i in range(8):
        if i < 4:
            C[i] = A[i]
""",
    ),
    "an empty branch": (
        """
    for i in range(8):
        if i < 4:
            if i < 0:
                C[i] = 1.0
        else:
            C[i] = 2.0
""",
        """
    for i in range(8):
        if 4 <= i:
            C[i] = 2.0
""",
    ),
    "lets of constants": (
        """
    let t = 3 + 1
    C[t] = A[t - 4]
""",
        """
    C[4] = A[0]
""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name):
    before, after = CASES[name]
    head = "func f(A: float32[8], C: float32[8]):"
    expect(simplify_func(parse_func(head + before)), head + after)


def test_everything_may_go():
    done = simplify_func(
        parse_func("""
func f(C: float32[8]):
    for i in range(0):
        C[i] = 1.0
    for j in range(4):
        if 8 <= j:
            C[j] = 2.0
""")
    )
    assert isinstance(done.body, Seq) and not done.body.stmts
    verify(done)


def test_thread_loops_of_one_thread_stay():
    done = simplify_func(
        parse_func("""
func f(C: float32[1]):
    for b in range(1) thread blockIdx.x:
        C[b] = 1.0
""")
    )
    assert "thread blockIdx.x" in repr(done)

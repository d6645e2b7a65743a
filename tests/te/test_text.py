"""Tensor expressions as text."""

from tests.te.test_extern import reverse
from tests.te.test_scan import cumulative_sum
from weft import te
from weft.te.text import format_tensors


def test_what_was_written_is_shown():
    n = te.var("n")
    A = te.placeholder((n, 32), name="A")
    k = te.reduce_axis((0, 32), name="k")
    B = te.compute((n,), lambda i: te.sum(A[i, k], axis=k), name="B")
    C = te.compute((n,), lambda i: B[i] * 2.0, name="C")
    assert format_tensors([C]).splitlines() == [
        'A = te.placeholder((n, 32), "float32")',
        "k = te.reduce_axis((0, 32))",
        "B = te.compute((n,), lambda i: te.sum(A[i, k], axis=[k]))",
        "C = te.compute((n,), lambda i: B[i] * 2.0)",
    ]


def test_a_statement_by_hand():
    A = te.placeholder((7,), name="A")
    assert format_tensors([te.extern((7,), [A], reverse, name="B")]).splitlines() == [
        'A = te.placeholder((7,), "float32")',
        "B = te.extern([(7,)], [A], …)",
        "    for i in range(7):",
        "        B[i] = A[6 - i]",
    ]


def test_a_recurrence():
    _, S = cumulative_sum(4, 5)
    lines = format_tensors([S]).splitlines()
    assert lines[-1] == "S = te.scan([init], [update], [state])" and len(lines) == 5

"""Which producers are inlined: what costs no more than the traffic it saves, by what the target says that is worth."""

from __future__ import annotations

from typing import Any

import pytest

from weft import te
from weft.plan.inline import Inlining, inline_producers
from weft.schedule.facts import names_of

LIMITS = Inlining((), twice=6, readers=2)
X = te.placeholder((8, 16), name="X")


def left(out: Any, limits: Inlining = LIMITS) -> list[str]:
    """The blocks that stay apart."""
    s = te.create_schedule(out.op)
    inline_producers(s, limits)
    return names_of(s)


def producer(value: Any) -> Any:
    return te.compute((8, 16), lambda i, j: value(X[i, j]), name="P")


def test_what_one_reader_takes_once_is_inlined_whatever_it_costs() -> None:
    p = producer(lambda x: te.exp(te.sin(x)))
    assert left(te.compute((8, 16), lambda i, j: p[i, j] + 1.0, name="out")) == ["out"]


@pytest.mark.parametrize(("value", "stays"), [(lambda x: x + 1.0, False), (te.exp, True)])
def test_little_work_is_done_twice(value: Any, stays: bool) -> None:
    p = producer(value)
    first = te.compute((8, 16), lambda i, j: p[i, j] * 2.0, name="first")
    out = te.compute((8, 16), lambda i, j: p[i, 15 - j] + te.exp(first[i, 15 - j]), name="out")
    assert ("P" in left(out)) is stays
    assert "P" in left(out, Inlining((), twice=0, readers=2)) and "P" in left(out, Inlining((), twice=6, readers=1))


def test_reductions_and_what_a_sketch_deals_with_stay() -> None:
    k = te.reduce_axis(16, "k")
    total = te.compute((8,), lambda i: te.sum(X[i, k.var], axis=k), name="total")
    assert left(te.compute((8,), lambda i: total[i] + 1.0, name="out")) == ["total", "out"]
    p = producer(lambda x: x + 1.0)
    out = te.compute((8, 16), lambda i, j: p[i, j] * 2.0, name="out")
    assert left(out, Inlining({"P"}, twice=6, readers=2)) == ["P", "out"]


def test_a_contraction_takes_work_only_where_the_target_says_so() -> None:
    p, b, k = producer(lambda x: x + 1.0), te.placeholder((16, 8), name="B"), te.reduce_axis(16, "k")
    out = te.compute((8, 8), lambda i, j: te.sum(p[i, k.var] * b[k.var, j], axis=k), name="out")
    assert left(out) == ["P", "out"], "each element is used eight times"
    assert left(out, Inlining((), twice=6, readers=2, in_contractions=4)) == ["out"]

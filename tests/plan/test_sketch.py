"""Sketches: columns of points, which are legal, what they cost, in which order they are offered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import ScheduleError
from weft.plan.sketch import Sketch, around_rule, ceildiv


def sketch(knobs: dict[str, tuple[int, ...]], **more: Any) -> Sketch:
    more.setdefault("cost", lambda columns: next(iter(columns.values())) * 1.0)
    return Sketch("small", knobs, lambda point: None, **more)


def test_columns_are_all_points_in_the_order_of_the_choices() -> None:
    one = sketch({"a": (1, 2), "b": (3, 4, 5)})
    columns = one.columns()
    assert one.size == 6 and columns["a"].tolist() == [1, 1, 1, 2, 2, 2] and columns["b"].tolist() == [3, 4, 5] * 2
    assert [one.point(columns, at) for at in (0, 4)] == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    assert all(type(number) is int for number in one.point(columns, 0).values())


def test_a_space_that_is_too_large_is_thinned_out_evenly() -> None:
    one = sketch({"a": tuple(range(64)), "b": (0, 1), "c": tuple(range(8))})
    columns = one.columns(most=128)
    assert one.size == 1024 and len(columns["a"]) == 128
    assert sorted(set(columns["a"].tolist())) == list(range(0, 64, 8)), "the longest knob gives most"
    assert set(columns["b"].tolist()) == {0, 1}
    assert len(one.columns(most=1)["a"]) == 1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(1, 500))
def test_thinning_keeps_to_the_limit_and_to_the_choices(lengths: list[int], most: int) -> None:
    one = sketch({f"k{i}": tuple(range(10, 10 + length)) for i, length in enumerate(lengths)})
    columns = one.columns(most)
    counts = {len(column) for column in columns.values()}
    assert len(counts) == 1 and 1 <= counts.pop() <= most
    for at in range(len(columns["k0"])):
        one.check(one.point(columns, at))


def test_points_are_offered_by_what_they_cost_and_only_legal_ones() -> None:
    one = sketch(
        {"a": (1, 2, 3, 4), "b": (1, 2)},
        cost=lambda c: np.abs(c["a"] - 3.0) + c["b"],
        legal=lambda c: c["a"] * c["b"] < 5,
    )
    offered = list(one.ranked(most=20))
    assert offered[0] == ({"a": 3, "b": 1}, 1.0) and len(offered) == 6
    assert [cost for _, cost in offered] == sorted(cost for _, cost in offered)
    assert all(point["a"] * point["b"] < 5 for point, _ in offered)
    assert list(one.ranked(most=2)) == offered[:2]


def test_of_equals_the_first_is_offered_first() -> None:
    one = sketch({"a": (1, 2, 3)}, cost=lambda c: np.ones(len(c["a"])))
    assert [point["a"] for point, _ in one.ranked()] == [1, 2, 3]


def test_nothing_is_offered_where_nothing_is_legal() -> None:
    assert not list(sketch({"a": (1, 2)}, legal=lambda c: c["a"] > 2).ranked())
    assert not list(sketch({"a": (1, 2)}, cost=lambda c: np.full(2, np.inf)).ranked())


def test_a_sketch_without_knobs_has_one_point() -> None:
    one = Sketch("fixed", {}, lambda point: None, lambda columns: 3.0)
    assert one.size == 1 and one.columns() == {} and one.features({}).shape == (1, 1)


def test_features_are_numbers_for_a_model_that_learns() -> None:
    one = sketch({"a": (0, 1, 3), "b": (1, 7)}, cost=lambda c: (c["a"] + 1.0) * 1e-6)
    columns = one.columns()
    features = one.features(columns)
    assert features.shape == (6, 3) and features.dtype == np.float32 and np.isfinite(features).all()
    np.testing.assert_allclose(features[:, 1], np.log2(columns["a"] + 1.0))
    np.testing.assert_allclose(features[:, 0], np.log2((columns["a"] + 1.0) * 1e-6), rtol=1e-6)
    assert np.isfinite(sketch({"a": (1,)}, cost=lambda c: 0.0).features({"a": np.asarray([1])})).all()


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        ({"a": 1}, r"its knobs are \['a', 'b'\], not \['a'\]"),
        ({"a": 1, "b": 3, "c": 0}, "its knobs are"),
        ({"a": 9, "b": 3}, r"a cannot be 9: its choices are \[1, 2\]"),
    ],
)
def test_points_of_another_sketch_are_refused(point: dict[str, int], reason: str) -> None:
    one = sketch({"a": (1, 2), "b": (3,)})
    one.check({"b": 3, "a": 2})
    with pytest.raises(ScheduleError, match=reason):
        one.check(point)


def test_a_knob_without_a_choice_is_refused() -> None:
    with pytest.raises(ScheduleError, match="no choice for b"):
        sketch({"a": (1,), "b": ()})


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 64), min_size=1), st.floats(1e-7, 1.0))
def test_the_cost_around_a_rule_is_least_at_the_rule(rule: dict[str, int], seconds: float) -> None:
    one = sketch(
        {knob: tuple(sorted({0, 1, 2, 8, 64, number})) for knob, number in rule.items()},
        cost=around_rule(rule, seconds),
    )
    best, cost = next(one.ranked())
    assert best == rule and cost == pytest.approx(seconds)
    columns = one.columns()
    elsewhere = np.any([columns[knob] != number for knob, number in rule.items()], axis=0)
    assert (one.cost(columns)[elsewhere] > cost).all()


def test_further_from_a_rule_costs_more() -> None:
    cost = around_rule({"a": 8}, 1.0)({"a": np.asarray([0, 2, 4, 8, 16, 32])})
    assert (np.diff(cost[:4]) < 0).all() and (np.diff(cost[3:]) > 0).all()


def test_ceildiv() -> None:
    assert [ceildiv(n, 4) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


def test_points_are_ranked_as_if_each_was_scored():
    knobs = {"a": (1, 2, 3, 5, 8), "b": (1, 4, 16), "c": (0, 7)}

    def cost(columns):
        return (columns["a"] * columns["b"] + 3.0) % 7 + columns["c"] // 7

    one = Sketch("one", knobs, lambda point: None, cost, lambda c: c["a"] != c["b"])
    columns = one.columns()
    dense = np.where(one.legal(columns), cost(columns), np.inf)
    best = np.argsort(dense, kind="stable")[:8]
    assert list(one.ranked()) == [(one.point(columns, at), dense[at]) for at in best]

"""What schedules save inside a model: a launch and the one after it."""

from __future__ import annotations

from weft.schedule.trace import Trace
from weft.tuner.inside import chosen, sets_of


def schedules(*gains):
    return [(Trace([]), gain) for gain in gains]


def test_neighbours_are_changed_apart_and_each_schedule_runs_once():
    best = {"a": schedules(1.3, 1.2), "b": schedules(1.5), "c": schedules(1.1, 1.05)}
    sets = sets_of(best, ["x", "a", "b", "c", "x", "a", "b"])
    assert [sorted(one) for one in sets] == [["a", "c"], ["b"], ["a", "c"]]
    assert sorted(gain for one in sets for _, gain in one.values()) == [1.05, 1.1, 1.2, 1.3, 1.5]
    assert sets_of({}, ["x"]) == [] and len(sets_of({"a": schedules(1.1)}, ["a", "a"])) == 1


def test_what_makes_the_next_launch_slower_by_more_is_not_used():
    order, now = ["a", "b", "c", "a", "b"], [10.0, 5.0, 3.0, 10.0, 5.0]
    first, second = {"a": (Trace([]), 1.25)}, {"a": (Trace([]), 1.11)}
    slower = [8.0, 8.0, 3.0, 8.0, 8.0]  # 2 saved each time, and 3 lost by the one that reads what it wrote
    assert chosen(order, now, [first], [slower]) == {}
    assert chosen(order, now, [first, second], [slower, [9.0, 5.0, 3.0, 9.0, 5.0]]) == second
    both = {"a": (Trace([]), 1.25), "b": (Trace([]), 1.1)}
    assert chosen(order, now, [both], [[9.0, 4.0, 3.0, 9.0, 4.0]]) == both  # each has what it saves itself
    assert chosen(order, now, [second], [[9.9, 5.0, 3.0, 9.9, 5.0]], 1.05) == {}
    assert chosen(["a"], [10.0], [second], [[9.0]], 1.05) == second

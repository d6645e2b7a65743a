"""What schedules save inside a model: a launch and the one after it."""

from __future__ import annotations

from weft.schedule.trace import Trace
from weft.tuner.inside import chosen, descent, sets_of
from weft.tuner.on_device import Run, in_turns


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


def test_what_a_launch_adds_to_a_model_on_a_device():
    """A launch begins while the one before it ends: what the model takes up to it tells, not what it takes alone."""

    class Toy:
        def stretch(self, launches):
            return lambda: sum(launches) - 1.0 * (len(launches) - 1)

    class Model:
        target = type("Target", (), {"name": "toy", "device": lambda self: Toy()})()
        bind = calls = lambda self, feeds=None: (
            self if feeds is not None else ([[5.0], [], [2.0, 3.0], [4.0]], "memory")
        )

    run = Run(Model(), {})
    assert run.whole({0: [1.0], 2: [1.0]})() == 1.0 + 1.0 + 4.0 - 2.0
    assert run.launches() == [5.0, 0.0, 3.0, 3.0] and run.whole()() == sum(run.launches()) == 11.0
    taken = in_turns([run, run], Model.target)
    assert taken[0] == taken[1] == [11.0] * len(taken[0])


def test_a_model_that_the_host_does_a_part_of_has_no_launches():
    class Model:
        target = type("Target", (), {"name": "toy", "device": lambda self: None})()

        def bind(self, feeds):
            return type("Bound", (), {"calls": lambda self: None})()

    assert Run(Model(), {}).calls is None


class Many:
    """Of nine schedules of one task one is good."""

    def __init__(self):
        self.asked = []

    def __call__(self, states, rounds):
        self.asked.append(len(states))
        return [10.0 - (state.get("x") == 7) for state in states]


def test_one_task_after_another_until_none_is_better():
    """A schedule that is good alone and bad beside another is left again; what changes nothing is not taken."""
    cost = {"a": [2.0, 1.0], "b": [3.0, 2.9], "c": [1.0, 1.0]}

    def taken(states, rounds):
        full = [{key: state.get(key, -1) for key in cost} for state in states]
        own = [10.0 - sum(cost[key][at] for key, at in one.items() if at >= 0 and key != "c") for one in full]
        return [seconds + 2.0 * (one["a"] == 0 and one["b"] >= 0) for seconds, one in zip(own, full)]

    assert descent({"a": 2, "b": 2, "c": 2}, taken) == {"a": 1, "b": 0}
    assert (
        descent({"a": 1, "b": 1, "x": 9}, many := Many()) == {"x": 7}
        and max(many.asked) == 9
        and many.asked.count(9) == 1
    )
    assert descent({}, taken) == {} and descent({"c": 1}, taken) == {}


def test_what_was_best_by_luck_is_not_taken():
    lucky = iter([[10.0, 9.0, 9.5], [10.0, 10.1]])
    assert descent({"a": 2}, lambda states, rounds: next(lucky)) == {}


def test_a_task_none_of_whose_kernels_could_be_built_stays_as_it_is():
    def taken(states, rounds):
        return [1.0 - 0.2 * (state.get("b") == 1) for state in states]

    assert descent({"a": 0, "b": 2}, taken) == {"b": 1}

"""Which of the best schedules of its tasks make a model faster, from what its launches take with some of them in use.

A kernel leaves the caches to the next one: some that are faster alone write so that their result has left them when it
is read (on a Neoverse-N1 a depthwise convolution saved 10 µs and the 1 × 1 after it lost 146). So what a launch saves
is what it and the one after it save; and half of the tasks are changed at a time, such that neighbours rarely are.

On a device a model runs in microseconds, and kernels are changed in it without compiling it again: there each task has
each of its schedules tried in the whole model (`descent`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from weft.schedule.trace import Trace
from weft.tuner.settings import LAST_MIXED, MIX_ROUNDS, SURELY, SWEEPS

Found = dict[str, tuple[Trace, float]]
"""Schedules by the keys of their tasks, each with its gain alone."""


def sets_of(best: Mapping[str, Sequence[tuple[Trace, float]]], order: Sequence[str]) -> list[Found]:
    """Each schedule in one set; of two tasks that follow one another in a model, as far as that goes, only one is in a
    set. `order` has the keys of the launches."""
    beside: dict[str, set[str]] = defaultdict(set)
    for one, other in zip(order, order[1:]):
        if one != other:
            beside[one].add(other)
            beside[other].add(one)
    half: dict[str, bool] = {}
    for key in best:
        known = [half[one] for one in beside[key] if one in half]
        half[key] = known.count(False) > known.count(True)
    places = range(max(map(len, best.values()), default=0))
    sets = [
        {key: some[at] for key, some in best.items() if half[key] == which and at < len(some)}
        for at in places
        for which in (False, True)
    ]
    return [one for one in sets if one]


def chosen(order: Sequence[str], now: Sequence[float], sets: Sequence[Found], taken: Sequence[Sequence[float]],
           least: float = 1.0) -> Found:  # fmt: skip
    """Of each task the schedule that saves most, where it saves something: so many times as fast as it is now.

    What launches take is given now, and with each set.
    """
    found, most = Found(), dict[str, float]()
    for one, seconds in zip(sets, taken):
        for key, schedule in one.items():
            own = {at for at, name in enumerate(order) if name == key}
            after = {at + 1 for at in own if at + 1 < len(order) and order[at + 1] not in one}
            saved = sum(now[at] - seconds[at] for at in own | after)
            needed = (1.0 - 1.0 / least) * sum(now[at] for at in own)
            if saved > max(needed, most.get(key, 0.0)):
                found[key], most[key] = schedule, saved
    return found


State = dict[str, int]
"""Which of its schedules each task has; those that are not named have what is in use."""


def descent(counts: Mapping[str, int], taken: Callable[[Sequence[State], int], Sequence[float]]) -> State:
    """The schedules with which a model is fastest, as far as changing one task at a time leads there: each has all of
    its schedules tried beside what the others have by then, then the best few of them once more, and what is in use
    too, until none is left for another.

    `taken` gives the seconds of the model in some states, the best of so many turns. What looks best is measured once
    more: the best of many is the luckiest of them, too.
    """
    state, few = State(), dict[str, list[int]]()
    for _ in range(SWEEPS):
        before = dict(state)
        for key, count in counts.items():
            if not count:  # none of its kernels could be built
                continue
            rest = {name: at for name, at in state.items() if name != key}
            if key not in few:
                seconds = taken([{**rest, key: at} for at in range(count)], MIX_ROUNDS[0]) if count > LAST_MIXED else []
                few[key] = sorted(range(count), key=lambda at: seconds[at] if seconds else at)[:LAST_MIXED]
            others = [one for one in [rest, *({**rest, key: at} for at in few[key])] if one != state]
            now, *seconds = taken([state, *others], MIX_ROUNDS[1])
            best = min(range(len(others)), key=seconds.__getitem__)
            if now < SURELY * seconds[best]:
                continue
            now, again = taken([state, others[best]], MIX_ROUNDS[1])
            if now >= SURELY * again:
                state = others[best]
        if state == before:
            break
    return state

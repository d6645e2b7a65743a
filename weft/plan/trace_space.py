"""The space around a trace: what one can choose for a program that no sketch matches.

In: a schedule before its steps, and the trace that the planner gives it. Out: a Sketch whose knobs are the numbers in
those steps, so that a search treats it as any other:

    split     each factor: its neighbours, and others that divide the loop
    reorder   as it is (0), or with two neighbouring loops exchanged (1, 2, …)
    unroll    taken (1) or left out (0)
    prefetch  how far ahead

Names of loops do not depend on the numbers, so a varied trace replays like the original. A step that its numbers make
illegal refuses the point, as in any sketch. The estimate knows only the planner's choice, and takes what is near it for
the best: the order in which neighbours are tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from weft.core import model
from weft.expr.nodes import int_value
from weft.loop.tree import loop_of, loop_path
from weft.plan.sketch import Point, Sketch, around_rule
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Step, Trace


def trace_sketch(schedule: Schedule, trace: Trace, seconds: float = 1.0) -> Sketch:
    """The sketch of a trace, to be applied to a schedule that has not taken its steps."""
    found = list(_knobs(schedule.copy(), trace))[-model.MOST_KNOBS :]
    knobs, default = {name: choices for name, choices, _ in found}, {name: number for name, _, number in found}

    def apply(point: Point) -> None:
        schedule.replay(vary(trace, point))

    return Sketch("trace", knobs, apply, around_rule(default, seconds))


def vary(trace: Trace, point: Point) -> Trace:
    """A trace with the numbers of a point."""
    steps: list[Step | None] = list(trace.steps)
    for knob, number in point.items():
        at, part = map(int, re.findall(r"\d+", knob))
        steps[at] = _varied(steps[at], part, number)
    return Trace([step for step in steps if step is not None])


def _varied(step: Step | None, part: int, number: int) -> Step | None:
    if step is None or (step.primitive == "unroll" and number == 0):
        return None
    arguments: dict[str, Any] = dict(step.arguments)
    if step.primitive == "split":
        arguments["factors"] = [number if at == part else factor for at, factor in enumerate(arguments["factors"])]
    elif step.primitive == "prefetch":
        arguments["distance"] = number
    elif step.primitive == "reorder" and number:
        loops = list(arguments["loops"])
        loops[number - 1 : number + 1] = loops[number], loops[number - 1]
        arguments["loops"] = loops
    return Step(step.primitive, arguments, step.results)


def _knobs(schedule: Schedule, trace: Trace) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """The knobs of the steps in order: name, choices, and the number that the trace has."""
    for at, step in enumerate(trace.steps):
        if step.primitive == "split":
            loop = loop_of(loop_path(schedule.func, str(step.arguments["loop"]), "split"))
            extent = int_value(loop.extent) or 0
            for part, factor in enumerate(step.arguments["factors"]):
                choices = _factors(factor, extent) if factor is not None else ()
                if len(choices) > 1:
                    yield f"split{at}_{part}", choices, factor
        elif step.primitive == "unroll":
            yield f"unroll{at}_0", (0, 1), 1
        elif step.primitive == "reorder" and len(step.arguments["loops"]) > 1:
            yield f"reorder{at}_0", tuple(range(len(step.arguments["loops"]))), 0
        elif step.primitive == "prefetch":
            distance = int(step.arguments["distance"])
            yield f"prefetch{at}_0", tuple(sorted({distance, 1, 2, 4, 8, 16, 64})), distance
        schedule.apply(step.primitive, **step.arguments)


def _factors(chosen: int, extent: int) -> tuple[int, ...]:
    """What a loop may be split by: powers of two and divisors, up to a limit, and what the planner chose."""
    most = max(min(extent, model.MOST_FACTOR), chosen)
    powers = {1 << power for power in range(most.bit_length())}
    divisors = {number for number in range(1, min(most, 64) + 1) if extent % number == 0}
    return tuple(sorted(number for number in {chosen, *powers, *divisors} if number <= most))

"""One kernel as plain data: tensor expression, steps with the loop program after each, plan and rivals, code, records.

The loop programs of the steps are kept as what each step changed: (lines that stay at the top, lines that stay at the
end, numbers of the new lines between them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.compiler.kernels.build import program_key, program_text
from weft.core.errors import WeftError
from weft.explore.graphs import Lines
from weft.explore.stages import Compiled, asm_text, expressions_text, llvm_text, lowered_text, program
from weft.schedule.schedule import Schedule, Tried
from weft.schedule.trace import Step, Trace
from weft.tuner import database_path
from weft.tuner.database import Database
from weft.tuner.records import TuneError, compiler_version, machine_key

MOST_TRIALS = 2_000
"""Of a kernel's measurements, so many are drawn: the last."""

MOST_RIVALS = 24

Delta = tuple[int, int, list[int]]


def kernel_data(one: Compiled) -> dict[str, Any]:
    """All of one kernel."""
    made = program(one)
    fixed = [buffer for value, buffer in made.inputs if value in one.graph.constants]
    key = "" if one.launch.sizes else program_key(program_text(made, fixed))
    return {
        "expression": expressions_text(one),
        "steps": step_data(made.schedule, one.launch.kernel.trace),
        "tried": [_tried(tried) for tried in one.launch.kernel.tried],
        "code": [{"name": name, "language": language, "text": text} for name, language, text in _code(one)],
        "trials": trial_data(key, one) if key else [],
    }


def _code(one: Compiled) -> list[tuple[str, str, str]]:
    """The program as the code generator takes it, and what was generated, by name and language."""
    device = one.target.spec.device
    texts = [("Lowered loops", "loops", lowered_text(one))]
    if device is None:
        return [*texts, ("LLVM IR", "llvm", llvm_text(one)), ("Assembly", "asm", asm_text(one))]
    for name, (text, language) in device.stages.items():
        try:
            texts.append((name.upper(), language, str(text(one.launch.kernel.program, one.target))))
        except WeftError as error:  # a tool of the vendor's that is not there
            texts.append((name.upper(), "text", str(error)))
    return texts


# -------------------------------------------------------------------------------------------------------------- steps


def step_data(schedule: Schedule, trace: Trace) -> dict[str, Any]:
    """The steps of a trace, with what each changes in the loop program; `schedule` is as it was before them."""
    lines = Lines()
    now = lines.numbers(repr(schedule.func).splitlines())
    first, steps = list(now), []
    problem = ""
    for step in trace.steps[len(schedule.trace) :]:
        try:
            schedule.replay(Trace([step]))
        except WeftError as error:  # steps of a twin with typical sizes may not fit the open program
            problem = str(error)
            break
        after = lines.numbers(repr(schedule.func).splitlines())
        steps.append({"name": step.primitive, "python": _short(step), "delta": delta(now, after)})
        now = after
    return {"lines": lines.all, "first": first, "steps": steps, "problem": problem}


def delta(before: Sequence[int], after: Sequence[int]) -> Delta:
    """What changed between two lists of lines: those that stay at both ends, and the new ones between."""
    top, least = 0, min(len(before), len(after))
    while top < least and before[top] == after[top]:
        top += 1
    end = 0
    while end < least - top and before[-1 - end] == after[-1 - end]:
        end += 1
    return top, end, list(after[top : len(after) - end])


def _short(step: Step) -> str:
    """A step in one readable line: what it gave, what it was given."""
    given = ", ".join(f"{key}={value!r}" for key, value in step.arguments.items())
    results = f"{', '.join(step.results)} = " if step.results else ""
    return f"{results}{step.primitive}({given})"


# --------------------------------------------------------------------------------------------------- plan and records


def _tried(tried: Tried) -> dict[str, Any]:
    rivals = [[name, dict(point), seconds] for name, point, seconds in tried.rivals[:MOST_RIVALS]]
    return {
        "name": tried.name, "point": dict(tried.point), "cost": tried.cost, "refused": tried.refused, "rivals": rivals,
    }  # fmt: skip


def trial_data(key: str, one: Compiled) -> list[list[Any]]:
    """What the tuner measured for a kernel on this machine: [gain, status, sketch, estimated gain] in order."""
    if database_path() is None:
        return []
    try:
        with Database() as database:
            records = database.records(key, machine_key(one.target), compiler_version())[-MOST_TRIALS:]
    except TuneError as error:
        return [[0.0, f"the records cannot be read: {error}", "", 0.0]]
    first = next((record.estimate for record in records if record.estimate), 0.0)
    return [
        [round(record.outcome.gain, 4), record.outcome.status.value, record.sketch,
         round(first / record.estimate, 4) if record.estimate else 0.0]
        for record in records
    ]  # fmt: skip

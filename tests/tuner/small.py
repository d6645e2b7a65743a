"""Small tasks, and runners that measure nothing, for the tests of the tuner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from weft import te
from weft.core.errors import WeftError
from weft.targets.registry import find_target
from weft.tuner.records import Outcome, Record, Status, compiler_version, machine_key
from weft.tuner.task import Task, task_of_schedule

TARGET = find_target("native")


def product(m: int = 24, k: int = 40, n: int = 36) -> tuple[Any, Any, Any]:
    A, B = te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B")
    r = te.reduce_axis(k, "k")
    return A, B, te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[r, j], axis=r), name="C")


def product_task(m: int = 24, k: int = 40, n: int = 36) -> Task:
    A, B, C = product(m, k, n)
    return task_of_schedule(te.create_schedule(C.op), [A, B, C], TARGET)


def elementwise_task() -> Task:
    A = te.placeholder((12, 64), name="A")
    D = te.compute((12, 64), lambda i, j: te.exp(A[i, j]) + 1.0, name="D")
    return task_of_schedule(te.create_schedule(D.op), [A, D], TARGET)


class Pretending:
    """A runner whose times follow from the point; nothing is run but the planning, which gives the trace."""

    width, unit = 1, "seconds"

    def __init__(self, gain: Any) -> None:
        self.gain, self.measured = gain, []

    def measure(self, bench: Any, points: Sequence[Any]) -> Iterator[Outcome]:
        for region, point in points:
            self.measured.append(dict(point))
            program = bench.task.fresh()
            try:
                region.take(program, point)
            except WeftError as error:
                yield Outcome(Status.REFUSED, detail=str(error))
                continue
            yield Outcome(Status.OK, 1.0 / self.gain(point), 1.0, trace=program.schedule.trace.to_json())


def record(task: str = "t", at: float = 1.0, status: Status = Status.OK, seconds: float = 1.0, trace: str = "",
           **more: Any) -> Record:  # fmt: skip
    outcome = Outcome(status, seconds if status is Status.OK else float("inf"), 2.0, trace=trace)
    made: dict[str, Any] = {"machine": machine_key(TARGET), "version": compiler_version(), **more}
    return Record(task, sketch="matmul", point={"rows": 1}, outcome=outcome, at=at, **made)

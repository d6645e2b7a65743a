"""What must hold of every (program, schedule) pair: the checks that random tests and primitives' tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

import weft
from weft.core.errors import ScheduleError, TargetError
from weft.expr.nodes import int_value
from weft.expr.visit import uses_any
from weft.loop.interpreter import interpret
from weft.loop.ir import Block, For, Func
from weft.loop.parser import parse_func
from weft.loop.passes.decompose_init import decompose_init
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.tree import loops_in
from weft.loop.verifier import verify
from weft.loop.visit import child_stmts
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Trace

TOLERANCE = {"float16": 2e-2, "bfloat16": 1.5e-1, "float32": 1e-4, "float64": 1e-9}
REASSOCIATES = ("rfactor", "reorder", "fuse", "tensorize", "decompose_reduction")


def run(func: Func, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The arrays after the program ran in the interpreter on copies of them."""
    copies = [a.copy() for a in arrays]
    interpret(func, *copies)
    return copies


def assert_same(got: list[np.ndarray], want: list[np.ndarray], what: str, exact: bool = False) -> None:
    """Integers are equal; floats agree within what another order of a sum may change."""
    for mine, theirs in zip(got, want):
        name = str(theirs.dtype)
        if name not in TOLERANCE or exact:
            same = (
                np.array_equal(mine, theirs, equal_nan=name in TOLERANCE)
                if theirs.dtype.kind != "V"
                else (mine == theirs).all()
            )
            assert same, f"{what}: {mine!r} is not {theirs!r}"
            continue
        a, b = mine.astype("float64"), theirs.astype("float64")
        scale = max(1.0, float(np.abs(b[np.isfinite(b)]).max(initial=0.0)))
        with np.errstate(invalid="ignore"):
            close = np.isclose(a, b, rtol=TOLERANCE[name], atol=TOLERANCE[name] * scale, equal_nan=True)
        close |= (~np.isfinite(a)) & (~np.isfinite(b))  # a float16 sum that overflows may do so as NaN in another order
        assert close.all(), f"{what}: {mine!r} is not {theirs!r}"


def uses_threads(func: Func) -> bool:
    """Whether a loop is bound to threads."""
    return any(loop.kind == "thread" for loop in loops_in(func.body))


def scopes_fit(func: Func) -> bool:
    """Whether the memory of every intermediate reaches all threads that use it, and no two threads write one element.

    Schedules pass through programs where that is not so yet: `cache_read(A, "local")` stands outside the threads until
    `compute_at` brings it in; a shared tile is computed by every thread until its loops are bound too. The interpreter
    rightly refuses to run those.
    """
    if _written_by_all(func.body, []):
        return False
    uses: dict[Any, list[list[For]]] = {}

    def visit(s: Any, loops: list[For]) -> None:
        if isinstance(s, Block):
            for region in (*s.reads, *s.writes):
                uses.setdefault(region.buffer, []).append(loops)
        for child in () if isinstance(s, Block) else child_stmts(s):
            visit(child, [*loops, s] if isinstance(s, For) else loops)

    visit(func.body, [])
    for buffer in func.allocations:
        owners = {"global": (), "shared": ("blockIdx",)}.get(buffer.scope, ("blockIdx", "threadIdx", "vthread"))
        bound = (
            [{id(x) for x in loops if str(x.thread).startswith(owners)} for loops in uses.get(buffer, [])]
            if owners
            else []
        )
        if any(found != bound[0] for found in bound):
            return False
    return True


def _written_by_all(s: Any, loops: list[For]) -> bool:
    if not isinstance(s, Block):
        inner = [*loops, s] if isinstance(s, For) else loops
        return any(_written_by_all(child, inner) for child in child_stmts(s))
    tags = {loop.thread for loop in loops if any(uses_any(binding, {loop.var}) for binding in s.bindings)}
    idle = [
        x
        for x in loops
        if x.thread and x.thread.startswith("threadIdx") and x.thread not in tags and int_value(x.extent) != 1
    ]
    return bool(idle) and any(region.buffer.scope in ("shared", "global") for region in s.writes)


def check_text(func: Func) -> None:
    """The program as text reads back as the same text."""
    text = repr(func)
    assert repr(parse_func(text)) == text


def check_trace(start: Func, schedule: Schedule) -> None:
    """The trace replays from JSON, and as Python, to the same program."""
    text = repr(schedule.func)
    replayed = Schedule(start).replay(Trace.from_json(schedule.trace.to_json()))
    assert repr(replayed.func) == text
    assert replayed.trace.to_json() == schedule.trace.to_json()
    fresh = Schedule(start)
    exec(schedule.trace.as_python(), {"s": fresh})
    assert repr(fresh.func) == text


def check_lowered(func: Func, arrays: list[np.ndarray], want: list[np.ndarray]) -> None:
    """The first lowering passes keep the meaning. Threads that share memory need barriers, which come later."""
    lowered = decompose_init(func)
    verify(lowered)
    flat = lower_blocks(lowered)
    verify(flat)
    if not uses_threads(func):
        assert_same(run(lowered, arrays), want, f"after decompose_init\n{lowered!r}")
        assert_same(run(flat, arrays), want, f"after lower_blocks\n{flat!r}")


def check_compiled(
    func: Func, arrays: list[np.ndarray], want: list[np.ndarray], copy: Callable[[np.ndarray], np.ndarray] = np.copy
) -> bool:
    """The compiled function computes the same; False where the program needs a GPU's threads."""
    copies = [copy(a) for a in arrays]
    try:
        compiled = weft.build(func, target="native", threads=2)
    except TargetError as error:
        assert "GPU" in str(error), error
        return False
    compiled(*copies)
    assert_same(copies, want, f"compiled\n{func!r}")
    return True


def try_step(schedule: Schedule, name: str, arguments: dict[str, Any], counts: Counter[str]) -> Any:
    """Applies a step if it is legal, and checks the program; None if it was refused, else what it hands back."""
    before = schedule.func
    try:
        made = schedule.apply(name, **arguments)
    except ScheduleError as error:
        assert error.reason and error.primitive, error
        assert schedule.func is before
        counts[f"refused {name}"] += 1
        return None
    counts[name] += 1
    verify(schedule.func)
    return () if made is None else made


def follow(plan: Generator[Any, Any, None], schedule: Schedule, counts: Counter[str]) -> bool:
    """Takes the steps of a plan; True if one of them was legal."""
    accepted = False
    answer: Any = None
    try:
        step = next(plan)
        while True:
            answer = try_step(schedule, *step, counts)
            accepted = accepted or answer is not None
            step = plan.send(answer)
    except StopIteration:
        return accepted

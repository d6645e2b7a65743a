"""The arena over time: where each value lies, from the call that writes it to the last that reads it.

It is read off the calls that the driver makes, so it is what runs, not what was planned.
"""

from __future__ import annotations

from typing import Any

from weft.compiler.lowering.abi import buffer_bytes
from weft.compiler.lowering.items import Launch
from weft.compiler.lowering.lower import Lowered
from weft.compiler.steps import NativeStep
from weft.expr.nodes import Buffer
from weft.graph.ir import Value


def memory_data(lowered: Lowered, first_row: int) -> dict[str, Any]:
    """The lives of values in the arena, as rectangles over rows and bytes; `first_row` is the row of the first item."""
    program = lowered.program
    whole = {
        "arena": int(program.arena_bytes),
        "unshared": int(program.unshared_bytes),
        "in_place": int(program.in_place),
        "weights": sum(int(array.nbytes) for array in program.weights),
    }
    if program.numbers is not None:
        return {**whole, "lives": [], "note": "sizes are open: where values lie is computed in each call"}
    launches = [(at, item) for at, item in enumerate(lowered.items) if isinstance(item, Launch)]
    calls = [(call, step) for step in program.steps if isinstance(step, NativeStep) for call in step.calls]
    lives: list[dict[str, Any]] = []
    now: dict[int, dict[str, Any]] = {}
    for (at, launch), (call, step) in zip(launches, calls):
        row = first_row + at
        buffers = [p for p in launch.kernel.scheduled.params if isinstance(p, Buffer)]
        touched = list(zip(buffers, launch.arguments, call.arguments))
        for is_write in (False, True):
            for buffer, argument, (base, offset) in touched:
                if step.bases[base][0] != "arena" or not isinstance(argument, Value):
                    continue
                if (argument in launch.writes) != is_write:
                    continue
                if is_write or offset not in now:
                    now[offset] = {"name": argument.name, "offset": offset, "bytes": buffer_bytes(buffer), "first": row}
                    lives.append(now[offset])
                now[offset]["last"] = row
    return {**whole, "lives": lives, "note": ""}

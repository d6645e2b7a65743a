"""Results that are interleaved from phases, those of transposed convolutions: loops over the phases, not the positions.

    out[o] = f(sums[o % 2, o // 2])      ->      out[2*q + r] = f(sums[r, q])      for q, r

The block that interleaves walks over the same points as the sums then, and is their epilogue: they are stored where
they belong, and there is no copy. The weights of a phase, every so manieth of the kernel's, are put together once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from weft.expr.nodes import Add, Buffer, Expr, FloorDiv, FloorMod, Mul, Var, int_value
from weft.expr.visit import uses_any
from weft.loop.tree import writers
from weft.schedule.facts import Facts, block_named, facts_of, names_of
from weft.schedule.primitives.matrix import matrix_axes
from weft.schedule.schedule import Schedule


def split_phases(schedule: Schedule) -> None:
    """Splits the axes of such blocks, in place."""
    for name in names_of(schedule):
        facts = facts_of(block_named(schedule, name))
        found = dict(_interleaved(schedule, facts))
        if facts.is_reduction or not found:
            continue
        with schedule.attempt(f"phases of {name}"):
            for axis, factor in found.items():
                schedule.apply("split_axis", block=name, axis=axis.name, factor=factor)
            last = facts.spatial[-1].var
            if last not in found:  # lanes
                schedule.apply("last_axis", block=name, axis=last.name)


def _interleaved(schedule: Schedule, facts: Facts) -> Iterator[tuple[Var, int]]:
    """The axes of which a block reads sums at the remainder and the quotient, with the divisor."""
    for load in facts.loads:
        makers = writers(schedule.func.body, load.buffer)
        if len(makers) != 1 or not facts_of(makers[0]).is_reduction:
            continue
        for index in load.indices:
            if isinstance(index, FloorMod) and isinstance(index.a, Var):
                factor = int_value(index.b)
                pairs = (e for e in load.indices if isinstance(e, FloorDiv) and e.a is index.a)
                if factor and any(int_value(e.b) == factor for e in pairs):
                    yield index.a, factor


def pack_phases(schedule: Schedule, constants: Collection[Buffer]) -> list[Buffer]:
    """Constants of which each phase takes every so manieth element are copied phase by phase, what is summed innermost.

    rewrite: sums[r, c] += x[k] * w[k, c, (r + 1) % 2 + 2*j]   ->   sums[r, c] += x[k] * w_global[(r + 1) % 2, c, j, k]

    Gives the copies.
    """
    packed: list[str] = []
    for name in names_of(schedule):
        facts = facts_of(block_named(schedule, name))
        axes = matrix_axes(facts.block)
        if axes is None or 1 in (axes.size("x"), axes.size("y")):  # each weight is read once, as it lies
            continue
        summed = {axis.var for axis in facts.reduce}
        for load in facts.loads:
            steps = {at: step for at, index in enumerate(load.indices) if (step := _phase_step(index))}
            if load.buffer not in constants or not steps:
                continue
            inputs = [f"d{at}" for at in range(len(load.indices))]
            rest = [at for at in range(len(inputs)) if at not in steps]
            rest.sort(key=lambda at: int_value(load.buffer.shape[at]) or 0)  # channels behind taps
            outputs = [f"d{at} % {step}" for at, step in steps.items()]
            outputs += [inputs[at] for at in rest if not uses_any(load.indices[at], summed)]
            outputs += [f"d{at} // {step}" for at, step in steps.items()]
            outputs += [inputs[at] for at in rest if uses_any(load.indices[at], summed)]
            with schedule.attempt(f"weights of {name} by phases") as tried:
                copy = schedule.buffer_name(schedule.cache_read(load.buffer.name, "global", [name]))
                schedule.apply("transform_layout", buffer=copy, inputs=inputs, outputs=outputs)
            packed += [copy] if tried else []
    return [buffer for buffer in schedule.func.allocations if buffer.name in packed]


def _phase_step(index: Expr) -> int:
    """The step of a phase's elements: of an index that is its first one and a multiple of the step; 0 of another."""
    if not isinstance(index, Add) or not isinstance(index.a, FloorMod) or not isinstance(index.b, Mul):
        return 0
    step = int_value(index.a.b) or 0
    return step if step > 1 and step in (int_value(index.b.a), int_value(index.b.b)) else 0

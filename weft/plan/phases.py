"""Results that are interleaved from phases, those of transposed convolutions: loops over the phases, not the positions.

    out[o] = f(sums[o % 2, o // 2])      ->      out[2*q + r] = f(sums[r, q])      for q, r

The block that interleaves walks over the same points as the sums then, and is their epilogue: they are stored where
they belong, and there is no copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.expr.nodes import FloorDiv, FloorMod, Var, int_value
from weft.loop.tree import writers
from weft.schedule.facts import Facts, block_named, facts_of, names_of
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

"""Recurrences whose steps stand side by side in memory, such as the running sums of rows.

    for t: for i: total[t, i] = total[t - 1, i] + in[i, t]      ->      for i: for t: total[i, t] = total[i, t - 1] + …

Lanes along i would gather from as many rows; each row alone is one walk through memory, and what a step takes from the
one before it stays in a register. Threads divide the rows.
"""

from __future__ import annotations

from weft.schedule.facts import Facts, block_named, extent, facts_of
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.cpu.default_loops import parallelize
from weft.targets.cpu.sketches import nest


def run_along_memory(s: Schedule, name: str, target: Target) -> bool:
    """Turns such a recurrence, and the layout of its states; False (nothing changed) for any other block."""
    facts = facts_of(block_named(s, name))
    found = _steps_axis(s, facts)
    if found is None:
        return False
    with s.attempt("along memory") as tried:
        nest.store_last(s[name], found)
        steps, *rows = s[name].loops
        s[name].reorder(*rows, steps)
        parallelize(s[name], rows, facts.points, target)
    return bool(tried)


def _steps_axis(s: Schedule, facts: Facts) -> int | None:
    """The dimension of the states that counts the steps, if the block is a recurrence that reads along them."""
    ordered = [axis for axis in facts.block.axes if axis.kind == "ordered"]
    if len(ordered) != 1 or facts.store is None or facts.reduce or facts.target in s.func.buffers:
        return None
    if len(facts.spatial) < 2 or len(facts.spatial) != len(s[facts.block.name].loops):
        return None
    step, last = ordered[0].var, facts.spatial[-1]
    along = [facts.step(load, step) for load in facts.loads]
    across = [facts.step(load, last.var) for load in facts.loads]
    walks = any(one in (-1, 1) for one in along) and all(one in (-1, 0, 1) for one in along)
    if not walks or all(one in (0, 1) for one in across) or extent(last) < 2 or facts.spatial[0].var is not step:
        return None
    found = [at for at, low in enumerate(facts.block.writes[0].mins) if low is step]
    return found[0] if len(found) == 1 else None

"""What a machine with threads offers the planner: sketches of contractions, and ways for everything else.

producers that cost little        inlined into their readers: memory is what costs, arithmetic hardly
attention                         scores stay in the shared memory of a block
matrix products, convolutions     one form, C[x, y] += X[k, x] * Y[k, y], tiled for shared memory and registers
recurrences                       the steps in order; sums of a unit and its new values in one kernel
rows (softmax, layer norm)        a block of threads, or a thread, computes every stage of a row
windows of one channel            vectors of channels where these lie together
reductions                        shared by threads, in two kernels where there are few elements
the rest                          a thread for each element, or vector of elements

A block that no thread would run is divided among threads element by element.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.expr.nodes import Buffer
from weft.loop.tree import block_path, loops_on
from weft.ops import normalizations_parts
from weft.plan.inline import Inlining
from weft.plan.phases import pack_phases, split_phases
from weft.plan.planner import Families, Unit
from weft.schedule.schedule import Schedule
from weft.targets.base import Target
from weft.targets.gpu import attention, attention_stream, elementwise, groups, model, product, reduction, rows, windows
from weft.targets.gpu.elementwise import bind_flat
from weft.targets.gpu.recurrent import schedule_steps


def _is_bound(s: Schedule, name: str) -> bool:
    """Whether a block runs inside a thread loop."""
    return any(loop.kind == "thread" for loop in loops_on(block_path(s.func, name, "schedule")))


def _plain(unit: Unit) -> None:
    """The least that always works for a block on its own."""
    name = unit.facts.block.name
    with unit.schedule.attempt(f"flat {name}"):
        bind_flat(unit.schedule[name], unit.target)


def _first(schedule: Schedule, target: Target, done: set[str], constants: Collection[Buffer]) -> Collection[Buffer]:
    """What is done before units are looked at."""
    schedule_steps(schedule, target)
    packed = product.split_groups(schedule, constants, attention.STAGES)
    split_phases(schedule)
    packed += pack_phases(schedule, constants)
    groups.schedule_groups(schedule, target, done)
    rows.split_groups(schedule)
    return packed


FAMILIES = Families(
    inline=Inlining(
        attention.STAGES | {*normalizations_parts.STAGES},
        model.INLINED_TWICE,
        model.INLINED_READERS,
        model.INLINED_IN_CONTRACTIONS,
        windows.keeps,
    ),
    whole=(attention_stream.match, attention.match),
    contractions=(product.match,),
    loops=(
        rows.match_warps,
        rows.match_blocks,
        rows.match_threads,
        reduction.match_rows,
        windows.match,
        reduction.match_columns,
        reduction.match_with_reductions,
        elementwise.match_transposition,
        elementwise.match,
    ),
    rest=(),
    plain=_plain,
    first=_first,
    is_scheduled=_is_bound,
    schedules_all=True,
    reads_once=reduction.streams_through,
)
"""What a program for a machine with threads is scheduled with."""
default_schedule = FAMILIES.schedule

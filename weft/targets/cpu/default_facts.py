"""What the default schedules ask about a block: the facts of `weft.schedule.facts`, under the name used here."""

from weft.schedule.facts import (
    SLOW_CALLS,
    Facts,
    block_named,
    cost,
    extent,
    facts_of,
    is_product_sum,
    names_of,
    sole_reader,
    step_of,
    work_around,
)

__all__ = [
    "block_named", "cost", "extent", "Facts", "facts_of", "is_product_sum", "names_of", "SLOW_CALLS", "sole_reader",
    "step_of", "work_around",
]  # fmt: skip

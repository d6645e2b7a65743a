"""Which producers dissolve into their readers on a machine with threads: memory is what costs, arithmetic hardly."""

from __future__ import annotations

from collections.abc import Collection

from weft.expr.nodes import Load
from weft.loop.ir import Block, Store
from weft.loop.tree import readers
from weft.plan.contraction import is_sum_of_products
from weft.schedule.facts import Facts, block_named, cost, facts_of, names_of
from weft.schedule.schedule import Schedule

MOST_LOADS = 24
"""A block whose body would load more often keeps its producers apart."""
CHEAP = 8
"""Work (see `facts.cost`) that may be done again for every use in a product."""
MODERATE = 40
"""Work that may be done twice rather than written to memory and read again."""


def inline_producers(s: Schedule, kept: Collection[str] = ()) -> None:
    """Dissolves elementwise producers, but for those that are `kept`, into their readers where that saves traffic."""
    for name in names_of(s):
        if name in kept or not _may_inline(s, block_named(s, name)):
            continue
        with s.attempt(f"inline {name}"):
            s[name].compute_inline()


def _may_inline(s: Schedule, block: Block) -> bool:
    facts = facts_of(block)
    store = facts.store
    if store is None or facts.is_reduction or facts.is_ordered or store.buffer in s.func.buffers:
        return False
    takers = readers(s.func.body, store.buffer)
    if not takers or len(facts.loads) > MOST_LOADS:
        return False
    return all(_fits(facts, store, taker, len(takers)) for taker in takers)


def _fits(facts: Facts, store: Store, taker: Block, takers: int) -> bool:
    """Whether a reader may compute the values itself."""
    reader = facts_of(taker)
    if reader.is_ordered:
        return False
    loads = [load for load in reader.loads if load.buffer is store.buffer]
    if len(reader.loads) + len(loads) * len(facts.loads) > MOST_LOADS:
        return False
    times = reader.points * reader.depth * len(loads) / max(facts.points, 1)
    work = cost(store.value)
    if isinstance(store.value, Load) and store.value.dtype is store.buffer.dtype and not reader.is_reduction:
        return True
    if not facts.loads and work <= CHEAP:
        return True  # a number, or a little arithmetic on indices: no memory is read for it
    if is_sum_of_products(reader):
        return work <= CHEAP and len(facts.loads) <= 2
    if times <= 1.01 and takers == 1:
        return True
    return work <= MODERATE and takers <= 3 and times <= 2.5

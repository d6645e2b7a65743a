"""Which producers are inlined into their readers: what is cheap to compute again, or needed only once.

    A[i] = f(x[i]);  B[i] = g(A[i])          ->  B[i] = g(f(x[i]))

In: a schedule, and what the target says work is worth beside memory (`Inlining`). Elementwise blocks alone are inlined:
no reductions, no recurrences, nothing that leaves the program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from weft.core import model
from weft.expr.nodes import Const, Load
from weft.expr.structural import structural_key
from weft.loop.ir import Block, Store
from weft.loop.tree import readers
from weft.plan.contraction import is_sum_of_products
from weft.schedule.facts import Facts, block_named, cost, facts_of, names_of
from weft.schedule.schedule import Schedule


@dataclass(frozen=True)
class Inlining:
    """What work (see `facts.cost`) is worth beside writing a value to memory and reading it again."""

    kept: Collection[str]
    """Stages that sketches deal with: none of them is inlined."""
    twice: int
    """Work that may be done twice."""
    readers: int
    """How many readers may each do the work."""
    in_contractions: int | None = None
    """Work that may be done for every use in a contraction, and on few operands; None: only reading through a view."""
    keeps: Callable[[Facts, Facts], bool] = lambda producer, reader: False
    """Whether a sketch for a reader wants what a producer makes as a stage."""


def inline_producers(s: Schedule, limits: Inlining) -> None:
    """Inlines elementwise producers into their readers where that saves more traffic than it adds work."""
    for name in names_of(s):
        if name not in limits.kept and _may_inline(s, block_named(s, name), limits):
            with s.attempt(f"inline {name}"):
                s[name].compute_inline()


def _may_inline(s: Schedule, block: Block, limits: Inlining) -> bool:
    facts = facts_of(block)
    store = facts.store
    if store is None or facts.is_reduction or facts.is_ordered or store.buffer in s.func.buffers:
        return False
    found = readers(s.func.body, store.buffer)
    if not found or len(facts.loads) > model.MOST_INLINED_LOADS:
        return False
    given = [facts_of(reader) for reader in found]
    return all(_fits(facts, store, reader, len(found), limits) and not limits.keeps(facts, reader) for reader in given)


def _fits(facts: Facts, store: Store, reader: Facts, count: int, limits: Inlining) -> bool:
    """Whether a reader may compute the values itself."""
    if isinstance(store.value, Const) and facts.points == 1:
        return True  # a number of the model
    if reader.is_ordered:
        return False
    # The same element read again is computed once: compilers see that.
    loads = {structural_key(load): load for load in reader.loads if load.buffer is store.buffer}
    if len(reader.loads) + len(loads) * len(facts.loads) > model.MOST_INLINED_LOADS:
        return False
    times = reader.points * reader.depth * len(loads) / max(facts.points, 1)
    work = cost(store.value)
    if isinstance(store.value, Load) and store.value.dtype is store.buffer.dtype and not reader.is_reduction:
        return True
    if limits.in_contractions is not None:
        if not facts.loads and work <= limits.in_contractions:
            return True  # a number, or a little arithmetic on indices: no memory is read for it
        if is_sum_of_products(reader):
            return work <= limits.in_contractions and len(facts.loads) <= 2
    if reader.is_reduction and times > model.READ_OFTEN:
        return _is_view(store, facts)
    if times <= model.READ_ONCE and count == 1:
        return True
    return work <= limits.twice and count <= limits.readers and times <= model.READ_OFTEN


def _is_view(store: Store, facts: Facts) -> bool:
    """Whether a block only renames elements so that neighbours stay neighbours: reading through it costs nothing."""
    value = store.value
    if not isinstance(value, Load):
        return False
    last = facts.spatial[-1].var if facts.spatial else None
    return last is None or facts.step(value, last) == facts.store_step(last)

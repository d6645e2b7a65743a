"""The static memory plan: one arena for a call's intermediates, at offsets found ahead.

In: for each value its bytes, and the first and last step that uses it. Out: an offset for each, so that values that
live at the same time do not overlap. Larger values are placed first, each at the lowest place that is free for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True)
class Life:
    """How long a value lives: from the step that writes it to the last that reads it, both included."""

    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Offsets of values in the arena, the arena's size, and what it would take without sharing."""

    offsets: Mapping[Hashable, int]
    bytes: int
    unshared: int


def aligned(size: int) -> int:
    """A size rounded up to whole cache lines; at least one."""
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


def plan_memory(lives: Mapping[Hashable, Life]) -> Plan:
    """Places every value."""
    offsets: dict[Hashable, int] = {}
    placed: list[tuple[int, int, Life]] = []
    order = sorted(lives.items(), key=lambda item: (-item[1].bytes, item[1].first))
    for key, life in order:
        size = aligned(life.bytes)
        offset = _lowest(size, ((start, end) for start, end, other in placed if _meet(life, other)))
        offsets[key] = offset
        placed.append((offset, offset + size, life))
    total = max((end for _, end, _ in placed), default=0)
    return Plan(offsets, total, sum(aligned(life.bytes) for life in lives.values()))


def _meet(a: Life, b: Life) -> bool:
    return a.first <= b.last and b.first <= a.last


def _lowest(size: int, taken: Iterable[tuple[int, int]]) -> int:
    """The lowest offset where a value fits between those that live with it."""
    offset = 0
    for start, end in sorted(taken):
        if start - offset >= size:
            break
        offset = max(offset, end)
    return offset

"""The static memory plan: one arena for a call's intermediates, at offsets found ahead.

In: for each value its bytes, and the first and last step that uses it. Out: an offset for each, so that values that
live at the same time do not overlap. Larger values are placed first, each at the lowest place that is free for it.
A value that is written over another lies where that one lies, and the two are placed as one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

ALIGNMENT = 64
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Life:
    """How long a value lives: from the step that writes it to the last that reads it, both included."""

    bytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """Offsets of values in the arena, its size, its size without sharing, and how many values lie over another."""

    offsets: Mapping[Hashable, int]
    bytes: int
    unshared: int
    in_place: int = 0


def aligned(size: int, alignment: int = ALIGNMENT) -> int:
    """A size rounded up to whole cache lines; at least one."""
    return max(alignment, -(-size // alignment) * alignment)


def plan_memory(lives: Mapping[Key, Life], over: Mapping[Key, Key] | None = None, alignment: int = ALIGNMENT) -> Plan:
    """Places every value. `over` names for some values another one, in whose memory they are written."""
    over = over or {}
    places = {key: _place(key, over) for key in lives}
    joined: dict[Key, Life] = {}
    for key, life in lives.items():
        other = joined.get(places[key], life)
        first, last = min(life.first, other.first), max(life.last, other.last)
        joined[places[key]] = Life(max(life.bytes, other.bytes), first, last)
    offsets: dict[Hashable, int] = {}
    placed: list[tuple[int, int, Life]] = []
    for key, life in sorted(joined.items(), key=lambda item: (-item[1].bytes, item[1].first)):
        size = aligned(life.bytes, alignment)
        offset = _lowest(size, ((start, end) for start, end, other in placed if meet(life, other)))
        offsets[key] = offset
        placed.append((offset, offset + size, life))
    total = max((end for _, end, _ in placed), default=0)
    everywhere: dict[Hashable, int] = {key: offsets[place] for key, place in places.items()}
    return Plan(everywhere, total, sum(aligned(life.bytes, alignment) for life in lives.values()), len(over))


def _place(key: Key, over: Mapping[Key, Key]) -> Key:
    while key in over:
        key = over[key]
    return key


def meet(a: Life, b: Life) -> bool:
    """Whether two values live at the same time."""
    return a.first <= b.last and b.first <= a.last


def _lowest(size: int, taken: Iterable[tuple[int, int]]) -> int:
    """The lowest offset where a value fits between those that live with it."""
    offset = 0
    for start, end in sorted(taken):
        if start - offset >= size:
            break
        offset = max(offset, end)
    return offset

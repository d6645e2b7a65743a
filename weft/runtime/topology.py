"""Which processors of this machine share what: a core (hardware threads), a cache, a memory node.

In: the tables of Linux under /sys, and the processors that this process may use. Out: `Processor` records in the order
in which threads are best placed: one hardware thread of each core first, cores that share a cache side by side, second
hardware threads last. Where the system tells nothing every processor is a core of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import ArgumentError

SYSTEM = Path("/sys/devices/system")


@dataclass(frozen=True, order=True)
class Processor:
    """One hardware thread: which of its core it is, its memory node, the cache it shares last, its core, its number."""

    sibling: int
    node: int
    cache: int
    core: int
    number: int


def usable_processors() -> list[int]:
    """The numbers of the processors that this process may use."""
    try:
        return sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return list(range(os.cpu_count() or 1))


def processors(usable: Iterable[int] | None = None, system: Path = SYSTEM) -> list[Processor]:
    """The processors that this process may use, those that share least first."""
    chosen = usable_processors() if usable is None else sorted(usable)
    nodes = _nodes(system / "node")
    found = []
    seen: dict[int, int] = {}
    for number in chosen:
        folder = system / "cpu" / f"cpu{number}"
        siblings = parse_list(text_of(folder / "topology/thread_siblings_list")) or [number]
        core = siblings[0]
        sibling = seen.get(core, 0)
        seen[core] = sibling + 1
        found.append(Processor(sibling, nodes.get(number, 0), _last_cache(folder, number), core, number))
    return sorted(found)


def cores(usable: Iterable[int] | None = None, system: Path = SYSTEM) -> int:
    """The cores behind the processors that this process may use: hardware threads of one core count once."""
    return max(1, sum(one.sibling == 0 for one in processors(usable, system)))


def parse_list(text: str) -> list[int]:
    """The numbers of a list such as "0-3,8"; none where it is no such list."""
    found: list[int] = []
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            return []
        found += range(int(first), int(last or first) + 1)
    return found


def places(pin: str) -> list[int]:
    """The processors of the workers, one each in turn, for `pin`: "no" (any), "cores", or a list such as "0-3,8".

    The first is left to the thread that calls.
    """
    if pin == "no":
        return []
    if pin == "cores":
        return [one.number for one in processors()]
    wanted, usable = parse_list(pin), usable_processors()
    foreign = [number for number in wanted if number not in usable]
    if foreign:
        raise ArgumentError(
            f"threads cannot be pinned to processor {foreign[0]}: this process may use {', '.join(map(str, usable))}"
        )
    return wanted


def _last_cache(folder: Path, number: int) -> int:
    """The first of the processors that share the largest cache with this one."""
    levels = [(text_of(entry / "level"), entry) for entry in (folder / "cache").glob("index*")]
    shared = [parse_list(text_of(entry / "shared_cpu_list")) for _, entry in sorted(levels, key=lambda one: one[0])]
    return shared[-1][0] if shared and shared[-1] else number


def _nodes(folder: Path) -> dict[int, int]:
    """The memory node of each processor."""
    found: dict[int, int] = {}
    for entry in folder.glob("node[0-9]*"):
        found.update(dict.fromkeys(parse_list(text_of(entry / "cpulist")), int(entry.name[4:])))
    return found


def text_of(file: Path) -> str:
    """What stands in a file of the system; nothing where it cannot be read."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""

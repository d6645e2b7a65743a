"""How many threads a parallel loop uses, and where they run.

In: what the operating system lets this process use (its affinity mask and its cgroup's share of processor time), which
processors are threads of one core, the knobs `num_threads`, `pin_threads` and `thread_priority` (`WEFT_NUM_THREADS`,
`WEFT_PIN_THREADS`, `WEFT_THREAD_PRIORITY`), and what the program chose. Out: a number of threads; workers in their
places.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from weft.core.errors import ArgumentError
from weft.core.knobs import environment, knobs
from weft.runtime.topology import cores, text_of

on_change: list[Callable[[], None]] = []
"""What is told that places or priority of the workers were chosen: the native runtime, once there is one."""
_available: int | None = None
_VARIABLE = os.environ.encodekey("WEFT_NUM_THREADS")


def default_threads() -> int:
    """The threads used when nobody chose: `WEFT_NUM_THREADS`, or as many as the cores that this process may use."""
    text = os.environ.get("WEFT_NUM_THREADS")
    chosen = type(knobs).num_threads.check(text, "the environment variable WEFT_NUM_THREADS")
    return available_cores() if chosen is None else chosen


def get_threads() -> int:
    """The threads that a parallel loop uses now, unless the call says otherwise."""
    # Every call of a compiled function asks, and mostly nothing is set: seen here in a tenth of a full look-up's time.
    if _available is not None and environment is not None:
        if not (environment.get(_VARIABLE) or knobs._chosen or knobs._overrides.get()):
            return _available
    chosen = knobs.num_threads
    return available_cores() if chosen is None else chosen


def set_threads(count: int | None, *, pin: str | None = None, priority: int | None = None) -> None:
    """Choose the threads of parallel loops for this process; None goes back to the default.

    `pin` is "no", "cores" (a core for each worker, those that share a cache side by side) or a list of processors such
    as "0-3,8"; `priority` is added to the niceness of the workers: up to 19 (last), below 0 with the privilege to.
    Both hold for all modules of the process, and while no call is running.
    """
    for name, value in (("num_threads", count), ("pin_threads", pin), ("thread_priority", priority)):
        if value is None:
            knobs.reset(name)
        else:
            knobs.set(name, value)
    for place in on_change:
        place()


def check_threads(count: Any) -> int:
    """The thread count given to one call, refused when it is none."""
    if isinstance(count, bool) or not hasattr(count, "__index__") or not 1 <= count.__index__() < 2**31:
        raise ArgumentError(f"threads is {count!r}; give a whole number from 1 up, or None for the default")
    return int(count.__index__())


def available_cores() -> int:
    """The cores that this process may use: those of its affinity mask (two hardware threads of a core are one), cut to
    its cgroup's quota. Looked up once.
    """
    global _available
    if _available is None:
        quota = cgroup_quota()
        _available = cores() if quota is None else max(1, min(cores(), quota))
    return _available


def cgroup_quota(membership: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Whole cores, rounded up, that the cgroup of this process may use at once; None when there is no limit.

    A group's limit holds for the groups in it, so every group from ours up to the root of the mount is asked.
    """
    limits = []
    for line in text_of(membership).splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, group = parts
        if controllers == "":
            roots, read_limit = [mount, mount / "unified"], _limit_of_version_2
        elif "cpu" in controllers.split(","):
            roots, read_limit = [mount / "cpu", mount / controllers], _limit_of_version_1
        else:
            continue
        for root in roots:
            limits += [read_limit(folder) for folder in _upward(root, group)]
    found = [limit for limit in limits if limit is not None]
    return min(found) if found else None


def _upward(root: Path, group: str) -> list[Path]:
    """The folders from a group up to the root. In a container the group's own path may be absent below the mount."""
    names = [name for name in group.split("/") if name not in ("", ".", "..")]
    return [root.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]


def _limit_of_version_2(folder: Path) -> int | None:
    parts = text_of(folder / "cpu.max").split()
    return _whole_cores(*parts) if len(parts) == 2 else None


def _limit_of_version_1(folder: Path) -> int | None:
    return _whole_cores(text_of(folder / "cpu.cfs_quota_us").strip(), text_of(folder / "cpu.cfs_period_us").strip())


def _whole_cores(quota: str, period: str) -> int | None:
    """quota / period rounded up; "max", -1 and unreadable files mean no limit."""
    if not (quota.isdigit() and period.isdigit()) or int(quota) == 0 or int(period) == 0:
        return None
    return -(-int(quota) // int(period))

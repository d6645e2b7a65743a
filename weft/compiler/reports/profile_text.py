"""A profile as text or HTML: one line for each kernel, in the order in which they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.html import bar, printable, shortened, table, tag

WIDEST_NAMES = 40
"""Characters that the names of a kernel's nodes take in a table."""


def profile_text(profile: Any, most: int | None = None) -> str:
    """The table; `most` leaves only so many lines, those that take longest."""
    header, rows = profile_rows(profile, most)
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    lines = [summary(profile)]
    for row in (header, *rows):
        numbers = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:])]
        cells = [row[0].ljust(widths[0]), *numbers, row[-1]]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def summary(profile: Any) -> str:
    """The whole in one line, and the peaks in another."""
    lines = [
        f"{printable(profile.model)}: {_time(profile.seconds)} a call with {profile.threads} threads (median of "
        f"{len(profile.call_samples)} runs), {len(profile.kernels)} kernels, {_time(profile.overhead)} outside them; "
        f"weights {profile.weight_bytes / 2**20:.1f} MB, arena {profile.arena_bytes / 2**20:.1f} MB"
    ]
    if profile.peaks is not None:
        rates = ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in profile.peaks.gflops.items())
        lines.append(f"peaks of this machine: {rates}; copy {profile.peaks.gigabytes:.1f} GB/s")
    return "\n".join(lines)


def profile_rows(profile: Any, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """The header and the lines."""
    on_device = any(kernel.launches for kernel in profile.kernels)
    header = ["kernel", "time", "best", "share", "MFLOP", "GFLOP/s", "of peak", "MB", "GB/s", "of copy"]
    header += [*(["blocks", "waves", "threads", "waits for"] if on_device else []), "nodes"]
    total = sum(kernel.seconds for kernel in profile.kernels) or 1.0
    rows = [
        [f"{kernel.number} {kernel.label}{'' if kernel.kind == 'kernel' else f' ({kernel.kind})'}",
         _time(kernel.seconds), _time(kernel.minimum), f"{kernel.seconds / total:.1%}",
         _figure(kernel.cost.operations / 1e6), _figure(kernel.gflops), _share(profile.peak_share(kernel)),
         _figure(kernel.cost.bytes / 1e6), _figure(kernel.gigabytes), _share(profile.memory_share(kernel)),
         *(_residence(profile, kernel) if on_device else []), node_names(kernel.nodes)]
        for kernel in _chosen(profile, most)
    ]  # fmt: skip
    return header, rows


def _residence(profile: Any, kernel: Any) -> list[str]:
    """How the widest launch of a kernel lies on a device, and what it waits for."""
    if not kernel.launches:
        return ["–"] * 4
    one = max(kernel.launches, key=lambda launch: launch.blocks)
    several = f" ({len(kernel.launches)})" if len(kernel.launches) > 1 else ""
    cells = [f"{one.blocks}×{one.threads}{several}", _figure(one.waves), _share(one.occupancy)]
    return [*cells, profile.waits_for(kernel)]


def _chosen(profile: Any, most: int | None) -> list[Any]:
    if most is None:
        return list(profile.kernels)
    return sorted(profile.kernels, key=lambda kernel: -kernel.seconds)[:most]


def node_names(names: Sequence[str], most: int = WIDEST_NAMES) -> str:
    """The model's names of a kernel's nodes: all that fit, or the end of the first and how many more there are."""
    shown = [printable(name) for name in names]
    whole = ", ".join(shown)
    if len(whole) <= most:
        return whole
    more = f" +{len(shown) - 1}" if len(shown) > 1 else ""
    return shortened(shown[0], most - len(more)) + more


def profile_html(profile: Any) -> str:
    """The same table for a notebook; a kernel's share of the time is a bar, the nodes stand in full."""
    header, rows = profile_rows(profile)
    total = sum(kernel.seconds for kernel in profile.kernels) or 1.0
    at = header.index("share")
    for row, kernel in zip(rows, profile.kernels):
        row[at] = bar(kernel.seconds / total, row[at])
        row[-1] = node_names(kernel.nodes, 3 * WIDEST_NAMES)
    return tag("div", *(tag("div", line) for line in summary(profile).splitlines()), table(header, rows))


def _time(seconds: float) -> str:
    if abs(seconds) >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.1f} µs"


def _figure(value: float) -> str:
    if value == 0:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"

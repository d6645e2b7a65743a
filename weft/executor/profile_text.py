"""A profile as text: one line for each kernel, in the order in which they run."""

from __future__ import annotations

from typing import Any


def profile_text(profile: Any, most: int | None = None) -> str:
    """The table; `most` leaves only so many lines, those that take longest."""
    header, rows = profile_rows(profile, most)
    widths = [max(len(row[at]) for row in (header, *rows)) for at in range(len(header))]
    lines = [summary(profile)]
    for row in (header, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def summary(profile: Any) -> str:
    """The whole in one line, and the peaks in another."""
    lines = [
        f"{profile.model}: {_time(profile.seconds)} a call with {profile.threads} threads (median of "
        f"{len(profile.call_samples)} runs), {len(profile.kernels)} kernels, {_time(profile.overhead)} outside them; "
        f"weights {profile.weight_bytes / 2**20:.1f} MB, arena {profile.arena_bytes / 2**20:.1f} MB"
    ]
    if profile.peaks is not None:
        rates = ", ".join(f"{name} {rate:.0f} GFLOP/s" for name, rate in profile.peaks.gflops.items())
        lines.append(f"peaks of this machine: {rates}; copy {profile.peaks.gigabytes:.1f} GB/s")
    return "\n".join(lines)


def profile_rows(profile: Any, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """The header and the lines."""
    header = ["kernel", "time", "best", "share", "MFLOP", "GFLOP/s", "of peak", "MB", "GB/s", "of copy"]
    chosen = list(profile.kernels)
    if most is not None:
        chosen = sorted(chosen, key=lambda kernel: -kernel.seconds)[:most]
    total = sum(kernel.seconds for kernel in profile.kernels) or 1.0
    rows = [
        [f"{kernel.number} {kernel.label}{' (host)' if kernel.kind == 'host' else ''}", _time(kernel.seconds),
         _time(kernel.minimum), f"{kernel.seconds / total:.1%}", _figure(kernel.cost.operations / 1e6),
         _figure(kernel.gflops), _share(profile.peak_share(kernel)), _figure(kernel.cost.bytes / 1e6),
         _figure(kernel.gigabytes), _share(profile.memory_share(kernel))]
        for kernel in chosen
    ]  # fmt: skip
    return header, rows


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

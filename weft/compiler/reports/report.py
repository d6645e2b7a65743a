"""The report of a compiled model: kernels and where they come from, host nodes and why, memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

from weft.graph.ir import TensorType


def _size(count: int) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            return f"{count} bytes" if unit == "bytes" else f"{count:.1f} {unit}"
        count = count / 1024  # type: ignore[assignment]
    raise AssertionError


def report_text(module: Any) -> str:
    """The report as text."""
    lines = [f"{module!r}"]
    found = module.specializations
    if not found:
        lines.append("not compiled yet: its shapes are known when it is first called")
    for one in found:
        lines += ["", *form_lines(one)]
    forms = Counter(f"{label} ({name[2:]})" if name.startswith("* ") else label
                    for name, label in module._executor.forms.items())  # fmt: skip
    if forms:
        lines.append("chosen by weft tune: " + ", ".join(f"{count} × {label}" for label, count in forms.most_common()))
    reason = module._executor.why_closed
    if found and reason:
        lines += ["", f"no form for all sizes, so that each new set of them is compiled in its call: {reason}"]
    return "\n".join(lines)


def form_lines(one: Any) -> list[str]:
    """The lines about one compiled form. One that was read from a file has those that were written with it."""
    kept: list[str] | None = getattr(one, "summary", None)
    if kept is not None:
        return kept
    shapes = ", ".join(f"{v.name}{list(v.tensor.dims)}" for v in one.graph.inputs if isinstance(v.type, TensorType))
    return [f"for {shapes or 'no inputs'}:", *(f"  {line}" for line in specialization_lines(one))]


def specialization_lines(one: Any) -> list[str]:
    """The lines about one set of shapes."""
    program, launches = one.lowered.program, one.launches
    native = [step for step in program.steps if hasattr(step, "kernels")]
    weights = sum(w.nbytes for w in program.weights)
    saved = f", {_size(program.unshared_bytes)} without sharing" if program.unshared_bytes else ""
    in_place = f", {program.in_place} values written over an input" if program.in_place else ""
    compiled = sum(len(launch.nodes) for launch in launches)
    blocked, copies = len(one.lowered.layouts), one.lowered.conversions
    compiled -= copies
    lines = [
        f"{len(one.graph.nodes)} nodes: {compiled} compiled into {len(launches)} kernel calls "
        f"({len(one.lowered.kernels)} different kernels, {len(native)} native calls), "
        f"{len(one.host_nodes)} on the host",
        f"memory: weights {_size(weights)}, arena {_size(program.arena_bytes)}{saved}{in_place}",
    ]
    tuned = sum(kernel.record is not None for kernel in one.lowered.kernels)
    if tuned:
        lines.append(f"tuned: {tuned} of {len(one.lowered.kernels)} kernels by records of weft tune")
    if blocked:
        lines.append(f"layouts: {blocked} values in blocks of channels, {copies} conversions to the plain layout")
    for label, count in Counter(x.kernel.label for x in launches).most_common(40):
        lines.append(f"  {count:4d} × {label}")
    for step in program.steps:
        device = getattr(step, "executor", None)
        if device is not None and all(isinstance(v.type, TensorType) and v.type.is_static for v in device.graph.inputs):
            counts = Counter(node.op for node in device.graph.nodes).most_common(8)
            lines.append(f"  on {device.target.name}: " + ", ".join(f"{count} {op}" for op, count in counts))
    for item in one.host_nodes:
        lines.append(f"  host: {item.node.describe()}: {item.reason}")
    return lines

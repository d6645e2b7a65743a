"""The page: data of a module, compressed, in an HTML file that needs nothing else.

In: a module, its profile and the history of its passes, where there are any. Out: a `Page`. What everybody sees first
is one piece of data, each kernel is one more: JSON, deflated, in base64, which the browser unpacks when it is shown. No
word of a model is markup, and a Content-Security-Policy names the only script that may run by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from weft.compiler import Module
from weft.compiler.lowering.constants import ReloadedConstants
from weft.compiler.lowering.items import Join, Launch, OnHost, Rest, View
from weft.compiler.passes import for_target, optimize
from weft.compiler.reports.profile import Profile
from weft.compiler.reports.recorder import KernelProfile
from weft.core.errors import ArgumentError
from weft.core.version import VERSION
from weft.explore.graphs import node_data, pass_data, plain_node
from weft.explore.kernels import kernel_data
from weft.explore.memory import memory_data
from weft.explore.stages import Compiled, kernels, specializations
from weft.graph.ir import Value, reads
from weft.graph.passes.history import History, watching

SCRIPTS = ("base.js", "views.js", "page.js")
"""They become one."""

LEVEL = 9
"""How hard zlib tries."""


@dataclass(frozen=True)
class Page:
    """The data of a page: what is shown first, and each kernel; as JSON has it."""

    title: str
    index: Mapping[str, Any]
    kernels: Sequence[Mapping[str, Any]]

    def html(self) -> str:
        """The whole file."""
        style, script = _file("page.css"), "".join(map(_file, SCRIPTS))
        pieces = "\n".join(_piece(f"data-{at}", data) for at, data in enumerate([self.index, *self.kernels]))
        policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"
        title = html.escape(clean(self.title))
        parts = {"title": title, "policy": policy, "style": style, "script": script, "pieces": pieces}
        # In one go: a model may be called "{{script}}".
        return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _file("page.html"))

    def write(self, path: str | os.PathLike[str]) -> int:
        """Writes the file; its size in bytes."""
        return Path(path).write_bytes(self.html().encode())


def explore(module: Module, profile: Profile | None = None, history: History | None = None) -> Page:
    """The page of a module that was compiled here; without a history the passes over its graph are run again."""
    if not isinstance(module, Module):
        raise ArgumentError(f"explore takes what weft.compile gave, not a {type(module).__name__}")
    forms = list(specializations(module))
    if not forms:
        raise ArgumentError("the model is not compiled yet: its shapes are known when it is first called")
    if any(hasattr(form, "summary") and getattr(form, "rebuild", None) is None for form in forms):
        raise ArgumentError("a module from a file does not know how it came about: explore the model it was made from")
    if history is None or not history.runs:
        executor = module._executor
        shapes = {v.name: v.tensor.static for v in forms[0].graph.inputs if v.is_static}
        with executor._as_asked(), watching() as history:
            for_target(optimize(module.graph, shapes, {}), module.target, executor.precision)
    _keep_constants(forms, history)
    found = list(kernels(module))
    rows = _rows(forms, found, profile)
    details = [kernel_data(one) for one in found]
    index = {
        "weft": VERSION,
        "model": module.graph.name,
        "target": module.target.name,
        "machine": f"{module.target.name} ({module.target.cpu})" if module.target.cpu else module.target.name,
        "inputs": _values(forms[0].graph.inputs),
        "outputs": _values(forms[0].graph.outputs),
        "passes": pass_data(history),
        "nodes": node_data(module.graph, rows),
        "rows": rows,
        "kernels": [_kernel_index(one, rows, details[one.number]) for one in found],
        "memory": memory_data(forms[0].lowered, 0),
        "profile": _profile_data(profile),
        "report": module.report(),
    }
    return Page(module.graph.name, index, details)


def _keep_constants(forms: Sequence[Any], history: History) -> None:
    """Gives the first form the constants that the passes made: else they would be made again."""
    constants = forms[0].graph.constants
    if isinstance(constants, ReloadedConstants) and history.runs:
        made = {v.name: a for v, a in history.runs[-1].after.constants.items()}
        if all(value.name in made for value in constants):
            constants.bring_back(made)


def _values(values: Sequence[Value]) -> list[list[str]]:
    return [[value.name, repr(value.type)] for value in values]


# ---------------------------------------------------------------------------------------------------------------- rows


def _rows(forms: Sequence[Any], found: Sequence[Compiled], profile: Profile | None) -> list[dict[str, Any]]:
    """What a call does, in order: kernels, host nodes, reshapes; with what each reads and makes, and its time."""
    numbers = {one.launch.kernel.symbol: one.number for one in found}
    measured = _measured(profile)
    rows: list[dict[str, Any]] = []
    for form in forms:
        for item in form.lowered.items:
            if isinstance(item, Rest):
                continue
            row = _row(item, numbers)
            rows.append({**row, "form": forms.index(form), **(next(measured, {}) if row["kind"] != "view" else {})})
    return rows


def _row(item: Launch | View | Join | OnHost, numbers: Mapping[str, int]) -> dict[str, Any]:
    if isinstance(item, Launch):
        nodes, kind, made = item.nodes, "kernel", list(item.writes)
        label = item.kernel.label
    elif isinstance(item, View):
        nodes, kind, made, label = item.group.nodes, "view", [item.output], item.group.nodes[0].op.lower()
    elif isinstance(item, Join):
        nodes, kind, made, label = item.planned.nodes, "view", [item.output], "concat"
    else:
        nodes, kind, made, label = (item.node,), "host", list(item.node.outputs), item.node.op
    own = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value.name for node in nodes for value in reads(node) if value not in own)
    return {
        "kind": kind, "label": label, "kernel": numbers[item.kernel.symbol] if isinstance(item, Launch) else None,
        "reason": item.reason if isinstance(item, OnHost) else "", "nodes": [plain_node(node) for node in nodes],
        "reads": list(read), "makes": _values(made),
    }  # fmt: skip


def _measured(profile: Profile | None) -> Iterator[dict[str, Any]]:
    """The figures of kernels and host nodes, in the order in which they run."""
    for one in sorted(profile.kernels, key=lambda kernel: kernel.number) if profile is not None else ():
        yield _figures(one, profile)


def _figures(one: KernelProfile, profile: Profile | None) -> dict[str, Any]:
    assert profile is not None
    return {
        "seconds": one.seconds, "best": one.minimum, "operations": one.cost.operations, "bytes": one.cost.bytes,
        "dtype": one.cost.dtype, "gflops": one.gflops, "gigabytes": one.gigabytes, "peak": profile.peak_share(one),
        "copy": profile.memory_share(one),
    }  # fmt: skip


def _profile_data(profile: Profile | None) -> dict[str, Any] | None:
    if profile is None:
        return None
    peaks = profile.peaks
    return {
        "seconds": profile.seconds, "best": min(profile.call_samples), "runs": len(profile.call_samples),
        "overhead": profile.overhead, "threads": profile.threads, "weights": profile.weight_bytes,
        "arena": profile.arena_bytes, "gflops": dict(peaks.gflops) if peaks else {},
        "gigabytes": peaks.gigabytes if peaks else None,
    }  # fmt: skip


def _kernel_index(one: Compiled, rows: Sequence[Mapping[str, Any]], detail: Mapping[str, Any]) -> dict[str, Any]:
    trials = detail["trials"]
    return {
        "number": one.number, "label": one.launch.kernel.label, "symbol": one.launch.kernel.symbol,
        "tuned": one.launch.kernel.record is not None, "steps": len(detail["steps"]["steps"]),
        "rows": [at for at, row in enumerate(rows) if row["kernel"] == one.number],
        "trials": len(trials), "gain": max([1.0, *(trial[0] for trial in trials)]),
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- file


def _file(name: str) -> str:
    return resources.files("weft.explore").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _piece(name: str, data: Any) -> str:
    packed = zlib.compress(json.dumps(plain(data), ensure_ascii=False, separators=(",", ":")).encode(), LEVEL)
    return f'<script type="text/plain" id="{name}">{base64.b64encode(packed).decode()}</script>'


def plain(value: Any) -> Any:
    """Data as JSON has it: text cleaned, figures of four digits, what is not finite null."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {clean(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def clean(text: str) -> str:
    """Text without what a browser does not show as it is: controls, marks of direction, halves of a pair."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)

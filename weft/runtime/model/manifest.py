"""The manifest of a module file: which fields it has, and of which kinds.

settings, name, inputs, outputs, bound, ranges     the model: its signature, and what decides what a call takes
graph                                              the model itself, where other sizes than its forms' can come
parts                                              for each machine that it was compiled for its forms
  forms                                              for each set of shapes (or, with a key of null, for all sizes)
                                                     its steps, memory and weights; `code` are object files,
                                                     `library` is the same code linked, `open` for all sizes
  needs                                              why only the compiler can run it; empty where it is not needed
arrays, start                                      every array, in weights.bin
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from weft.core.errors import WeftError
from weft.runtime.fingerprint import digest


class ModuleFileError(WeftError, ValueError):
    """A file that is no module of this version and machine, or is damaged, or is not signed with the key."""


LARGEST = 1 << 48
"""No number of a module file is larger: it counts bytes, elements or things."""

# ------------------------------------------------------------------------------------------------------------- kinds
# A kind is int (0 or more), str, bool, [kind] (a list), (kind, kind) (a list of so many), {"field": kind} (these fields
# and no others), {str: kind} (any fields), SIGNED (an int of either sign), or several kinds in an Either.


class Either:
    """One of several kinds."""

    def __init__(self, *kinds: Any) -> None:
        self.kinds = kinds


SIGNED = object()
_SHAPE = [int]
_GRAPH = {"text": str, "constants": {str: int}}
_KERNEL = (str, (int, int, int), (int, int, int), int, int, [str], {str: int}, int)
_PROGRAM = {
    "name": str,
    "pieces": [int],
    "parameters": [(str, str, bool, int)],
    "workspaces": [(str, str, int)],
    "kernels": [Either(_KERNEL, (*_KERNEL, [(str, int, _SHAPE, _SHAPE, _SHAPE)]))],
}
_STEP = Either(
    {
        "native": str,
        "bases": [(str, int)],
        "reach": [(int, bool, Either(None, (SIGNED, SIGNED)))],
        "makes": [(int, str, [SIGNED])],
        "kernels": [str],
        "calls": [Either((str, [(int, int)]), (str, [(int, int)], bool))],
    },
    {"host": _GRAPH, "inputs": [int], "outputs": [int], "reason": str},
    {"rest": _GRAPH, "inputs": [int], "outputs": [int]},
)
_FORM = {
    "key": Either(None, [Either(None, (_SHAPE, Either(None, str)))]),
    "code": [int],
    "library": Either(None, int),
    "externals": [str],
    "device": Either(None, {"pieces": [str], "programs": {str: _PROGRAM}, "seal": str}),
    "inputs": [int],
    "outputs": [int],
    "constants": {str: int},
    "weights": [int],
    "arena": int,
    "unshared": int,
    "steps": [_STEP],
    "in_place": int,
    "updates": [(int, int)],
    "report": [str],
    "open": Either(
        None,
        {
            "numbers": str,
            "promised": {str: [SIGNED]},
            "names": [str],
            "checks": [{"node": _GRAPH, "values": {str: int}, "unread": [int]}],
            "equal": Either(None, [[(str, Either(int, str))]]),
        },
    ),
}
_PORT = (str, str, Either(None, [Either(int, str)]))
_PART = {
    "target": {"name": str, "triple": str, "cpu": str},
    "features": [str],
    "flags": [str],
    "precision": Either(None, str),
    "forms": [_FORM],
    "needs": str,
}
_MANIFEST = {
    "format": int,
    "abi": str,
    "weft": str,
    "settings": {str: bool},
    "name": str,
    "inputs": [_PORT],
    "outputs": [_PORT],
    "bound": [int],
    "ranges": [(str, int, int, int, int)],
    "graph": Either(None, _GRAPH),
    "parts": [_PART],
    "arrays": [
        Either({"dtype": str, "shape": _SHAPE, "offset": int}, {"dtype": str, "shape": _SHAPE, "strings": [str]})
    ],
    "start": int,
}


def check_manifest(manifest: Any) -> None:
    """Refuses a manifest whose fields are not of their kinds."""
    problem = _misfit(manifest, _MANIFEST, "manifest")
    if problem is not None:
        raise ModuleFileError(problem)


def _misfit(value: Any, kind: Any, where: str) -> str | None:
    """Why a value is not of a kind; None where it is."""
    if isinstance(kind, Either):
        found = [_misfit(value, one, where) for one in kind.kinds]
        return None if None in found else max((one for one in found if one is not None), key=len)
    if isinstance(kind, list):
        if type(value) is not list:
            return f"{where} is no list"
        problems = (_misfit(one, kind[0], f"{where}[{at}]") for at, one in enumerate(value))
        return next((one for one in problems if one), None)
    if isinstance(kind, tuple):
        if type(value) is not list or len(value) != len(kind):
            return f"{where} is no list of {len(kind)}"
        problems = (_misfit(one, inner, f"{where}[{at}]") for at, (one, inner) in enumerate(zip(value, kind)))
        return next((one for one in problems if one), None)
    if isinstance(kind, dict):
        if type(value) is not dict or str not in kind and value.keys() != kind.keys():
            return f"{where} is no record of {', '.join(map(str, kind))}"
        problems = (_misfit(one, kind.get(name, kind.get(str)), f"{where}.{name}") for name, one in value.items())
        return next((one for one in problems if one), None)
    if kind is SIGNED:
        return None if type(value) is int else f"{where} is no whole number"
    if kind is None:
        return None if value is None else f"{where} is not null"
    if type(value) is not kind or (kind is int and not 0 <= value < LARGEST):
        return f"{where} is {str(value)[:40]!r}, which is no {'count' if kind is int else kind.__name__}"
    return None


def form_seal(manifest: Mapping[str, Any], form: Mapping[str, Any], digests: Sequence[str]) -> str:
    """The name by which the library of a form tells that a manifest says of it what it was linked for.

    It covers all that a call relies on: steps, memory, the types of inputs and arrays, and the `digests` of arrays that
    may be indices. Only texts to read (the report, why a node runs where) may differ.
    """
    graphs = [graph for step in form["steps"] for graph in (step.get("host"), step.get("rest")) if graph]
    numbers = [n for one in (form, *graphs) for n in one["constants"].values()]
    used = [manifest["arrays"][number] for number in (*numbers, *form["weights"])]
    said = {name: one for name, one in form.items() if name not in ("report", "library", "code")}
    facts = [manifest["abi"], manifest["inputs"], manifest["outputs"], said, [_placeless(row) for row in used], digests]
    return f"weft_form_{digest(json.dumps(facts, sort_keys=True).encode())[:32]}"


def _placeless(row: Mapping[str, Any]) -> list[Any]:
    return [row["dtype"], row["shape"], row.get("strings")]

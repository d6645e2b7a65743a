"""The table of primitives.

A primitive is a pure function `primitive(func, **plain arguments) -> Result`: names, numbers, lists and strings in, a new
function out. A Step of a Trace is therefore the primitive's name and its arguments, and replays by calling it again.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from weft.loop.ir import Func


class Result:
    """What a primitive gives: the new program, the names it hands back, and the loops that became a block's axes."""

    __slots__ = ("func", "values", "axes")

    def __init__(
        self, func: Func, values: Sequence[str] = (), axes: Mapping[str, Sequence[str | None]] | None = None
    ) -> None:
        self.func = func
        self.values = tuple(values)
        self.axes = {name: tuple(loops) for name, loops in (axes or {}).items()}


Primitive = Callable[..., Result]
PRIMITIVES: dict[str, Primitive] = {}


def primitive(function: Primitive) -> Primitive:
    """Registers a primitive under its own name."""
    PRIMITIVES[function.__name__] = function
    return function


def plain(value: Any) -> Any:
    """A value as JSON holds it (tuples become lists)."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return value

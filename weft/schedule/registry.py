"""The table of primitives.

A primitive is a pure function `primitive(func, **plain arguments) -> Result`: names, numbers, lists and strings in, a
new function out. A Step of a Trace is therefore the primitive's name and its arguments, and replays by calling it.
The arguments are checked before it runs, against the types that the primitive is registered with: those of its own
annotations, which are not there any more where it is native code.
"""

from __future__ import annotations

import inspect
import math
from collections import abc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_origin

from weft.core.errors import ScheduleError
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
_SIGNATURES: dict[str, dict[str, tuple[Any, bool]]] = {}
"""For each primitive its parameters: the type of each, and whether it must be given."""


def primitive(*types: Any) -> Callable[[Primitive], Primitive]:
    """Registers a primitive under its own name; the types are those of what it takes beside the program."""

    def register(function: Primitive) -> Primitive:
        parameters = zip([*inspect.signature(function).parameters.values()][1:], types, strict=True)
        _SIGNATURES[function.__name__] = {p.name: (each, p.default is p.empty) for p, each in parameters}
        PRIMITIVES[function.__name__] = function
        return function

    return register


def check_arguments(name: str, arguments: Mapping[str, Any]) -> None:
    """Raises ScheduleError unless the (plain) arguments are those that the primitive takes, each of the right type."""
    parameters = _SIGNATURES[name]
    for key, value in arguments.items():
        if key not in parameters:
            raise ScheduleError(name, key, f"there is no argument {key}; it takes {', '.join(parameters)}")
        if not _fits(value, parameters[key][0]):
            raise ScheduleError(name, f"{key}={value!r}", f"{key} must be {_describe(parameters[key][0])}")
    missing = [key for key, (_, needed) in parameters.items() if needed and key not in arguments]
    if missing:
        raise ScheduleError(name, "", f"give the argument {', '.join(missing)}")


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any or type(value) is hint:
        return True
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    origin = get_origin(hint)
    if origin is None:
        return isinstance(value, hint)
    if origin is abc.Sequence:
        return isinstance(value, list) and all(_fits(item, get_args(hint)[0]) for item in value)
    return any(_fits(value, option) for option in get_args(hint))


_WORDS = {str: "a name", int: "a whole number", bool: "True or False", type(None): "None"}


def _describe(hint: Any) -> str:
    if get_origin(hint) is abc.Sequence:
        return f"a list of which each is {_describe(get_args(hint)[0])}"
    options = get_args(hint)
    return " or ".join(_describe(option) for option in options) if options else _WORDS.get(hint, "something else")


def plain(value: Any) -> Any:
    """A value as JSON holds it (tuples become lists, numpy's numbers Python's); ScheduleError if it cannot."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        value = item()
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ScheduleError("schedule", repr(value), "a step takes numbers, names, and lists or dicts of these")

"""The table of converters: the name of an ATen operator, without "aten." and ".default", to the function that writes it
in Weft's operators.

    @aten("relu")                                                  or, in one line,
    def relu(c, x):                                                enter({"relu": lambda c, x: c.op("Relu", x)})
        return c.op("Relu", x)

A converter gets the emitter and the operator's arguments: tensors as values, sizes that only a call tells as values,
everything else as Python has it. What it gives is brought to the element type that torch says (so that a converter need
not cast its result) and compared with the shape that torch says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Converter = Callable[..., Any]
Function = TypeVar("Function", bound=Converter)
CONVERTERS: dict[str, Converter] = {}
"""Every converter by name."""


def aten(*names: str) -> Callable[[Function], Function]:
    """Enters a function under these names."""

    def enter(function: Function) -> Function:
        for name in names:
            if name in CONVERTERS:
                raise ValueError(f"there are two converters for {name}")
            CONVERTERS[name] = function
        return function

    return enter


def enter(table: Mapping[str, Converter]) -> None:
    """Enters functions of one expression, each under the names that stand before it."""
    for names, function in table.items():
        aten(*names.split())(function)


def name_of(target: Any) -> str:
    """The name of what a node of an FX graph calls: "add.Tensor", "relu", "prims.iota", "operator.mul"."""
    if hasattr(target, "_schema"):
        return str(target).removeprefix("aten.").removesuffix(".default")
    return f"{getattr(target, '__module__', '').lstrip('_')}.{getattr(target, '__name__', target)}"

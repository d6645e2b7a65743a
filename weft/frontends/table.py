"""Tables of converters: the name of a framework's operator to the function that writes it in Weft's operators.

@named("relu")                                                 or, in one line,
def relu(c, x):                                                enter({"relu": lambda c, x: c.op("Relu", x)})
    return c.op("Relu", x)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Converter = Callable[..., Any]
Function = TypeVar("Function", bound=Converter)


class Table(dict[str, Converter]):
    """Converters by name."""

    def named(self, *names: str) -> Callable[[Function], Function]:
        """Enters a function under these names."""

        def enter(function: Function) -> Function:
            for name in names:
                if name in self:
                    raise ValueError(f"there are two converters for {name}")
                self[name] = function
            return function

        return enter

    def enter(self, table: Mapping[str, Converter]) -> None:
        """Enters functions of one expression, each under the names that stand before it."""
        for names, function in table.items():
            self.named(*names.split())(function)

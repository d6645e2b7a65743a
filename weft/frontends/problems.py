"""What stands in the way of a model: collected while it is imported, and raised together."""

from __future__ import annotations

from collections.abc import Callable

from weft.core.errors import FrontendError, InternalError
from weft.graph.opspec import way_to_register

MOST_SHOWN = 50
"""How many problems a message lists."""


class Refused(FrontendError):
    """A model that cannot be imported, and the operators that are to blame, by name."""

    def __init__(self, message: str, operators: set[str]) -> None:
        super().__init__(message)
        self.operators = operators


def converter_failed(name: str, origin: str, error: Exception) -> InternalError:
    """The error for a converter that is wrong itself: a fault of Weft's, said with the user's own line."""
    where = f" (used in {origin})" if origin else ""
    return InternalError(f"the converter of {name} failed{where}: {type(error).__name__}: {error}")


class Problems:
    """Operators that are not known, with the places that use them; and uses that cannot be converted."""

    def __init__(self, label: str, shown: Callable[[str], str] = str) -> None:
        self.label = label
        self.shown = shown
        self.unknown: dict[str, list[str]] = {}
        self.ways: dict[str, str] = {}
        self.lines: list[str] = []
        self.blamed: set[str] = set()

    def is_unknown(self, name: str, origin: str, operator: str = "", domain: str = "") -> None:
        """Notes an operator without a converter, and how somebody can give it a meaning: by this name and domain."""
        self.unknown.setdefault(name, []).append(origin)
        if operator:
            self.ways[name] = f"; {way_to_register(operator, domain)}"

    def add(self, name: str, said: str, origin: str, blamed: bool = True) -> None:
        """Notes a use that cannot be converted."""
        self.lines.append(f"{self.shown(name)}: {said}" + (f"\n    {origin}" if origin else ""))
        if blamed:
            self.blamed.add(name)

    def raise_any(self) -> None:
        """Raises all of them, if there are any."""
        if self.unknown or self.lines:
            raise Refused(self._message(), {*self.unknown, *self.blamed})

    def _message(self) -> str:
        lines = [
            f"{self.shown(name)} is not known; {f'{len(where)} times, first' if len(where) > 1 else 'used'}"
            f" {f'in {where[0]}' if where[0] else 'here'}{self.ways.get(name, '')}"
            for name, where in self.unknown.items()
        ]
        lines += dict.fromkeys(self.lines)
        if len(lines) == 1:
            return f"{self.label}: {lines[0]}"
        shown = [f"  {line}" for line in lines[:MOST_SHOWN]]
        more = [f"  … and {len(lines) - MOST_SHOWN} more"] * (len(lines) > MOST_SHOWN)
        return "\n".join([f"{self.label}: the model cannot be imported; {len(lines)} problems:", *shown, *more])

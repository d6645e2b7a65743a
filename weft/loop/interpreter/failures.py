"""What the checks say when a program goes wrong.

Generated code raises `failures.make(site, indices, loops)`: the site (a number) stands for everything known when the
code was made (the access, the block, the names of the loops around it); the values are those of the moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.core.errors import InterpreterError
from weft.expr.nodes import Buffer


class Site(NamedTuple):
    """One place of the program where a check may fail."""

    kind: str
    buffer: Buffer | None
    access: str
    block: str | None
    loops: tuple[str, ...]
    note: str


class Failures:
    """The sites of one program, and the errors they raise."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.sites: list[Site] = []

    def site(self, site: Site) -> int:
        """The number by which generated code names a site."""
        self.sites.append(site)
        return len(self.sites) - 1

    def make(
        self, number: int, indices: Sequence[Any], loops: Sequence[Any], limits: Sequence[int] = ()
    ) -> InterpreterError:
        """The error of a site, with the values of the moment."""
        site = self.sites[number]
        values = ", ".join(f"{name}={value}" for name, value in zip(site.loops, loops))
        where = f"block {site.block!r} of {self.function!r}" if site.block else f"{self.function!r}"
        place = f"in {where}" + (f" at {values}" if values else "")
        shown = f"{site.buffer.name}[{', '.join(map(str, indices))}]" if site.buffer is not None else ""
        last, wrong = [limit - 1 for limit in limits], _outside(indices, limits)
        return InterpreterError(
            _TEXT[site.kind].format(
                site=site, shown=shown, place=place, indices=indices, limits=limits, last=last, wrong=wrong
            )
        )


def _outside(indices: Sequence[Any], limits: Sequence[int]) -> str:
    return "; ".join(
        f"index {d} is {index}, outside 0..{limit - 1}" if limit > 0 else f"index {d} is {index}, of an empty dimension"
        for d, (index, limit) in enumerate(zip(indices, limits))
        if not 0 <= index < limit
    )


_TEXT = {
    "bounds": "out of bounds: {site.access} of {shown} {place}: {wrong}",
    "uninitialised": "uninitialised: {site.access} of {shown} {place}: "
    "this element of the intermediate was never written",
    "race": "data race: {site.access} of {shown} {place}: {site.note}",
    "zero": "division by zero: {site.note} {place}",
    "axis": "block axis out of range: {site.note} is bound to {indices[0]}, outside 0..{last[0]}, {place}; "
    "the binding is wrong or the block lacks a predicate",
    "launch": "too few threads: the inner loop {site.note} runs to {indices[0]} but the loop that launches its tag "
    "only to {limits[0]}, {place}; give both loops the same extent or split the inner one",
    "effect": "the effect {site.note!r} failed {place}",
}
"""What the failure of a kind of check says."""

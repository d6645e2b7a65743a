"""What a command line asks for is done or refused, never passed over.

Options have no default but None, False or an empty list, so that `refuse` can tell what was given; a default that a
command needs stands where it is used. `Given` remembers what was looked at: an option that was given and that nobody
looked at is an error of the command (`main` says so), whichever option comes next.
"""

from __future__ import annotations

import argparse
from typing import Any

from weft.core.errors import WeftError


class UsageError(WeftError, ValueError):
    """A command line that makes no sense; the text says which part."""


class Given(argparse.Namespace):
    """A command line that remembers which of its options were looked at."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            vars(self).setdefault("_seen", set()).add(name)
        return super().__getattribute__(name)

    def ignored(self) -> list[str]:
        """The options that were given and that nobody looked at since `begin`."""
        own = vars(self)
        return [name for name in own if name[0] != "_" and name not in own["_seen"] and _is_given(own[name])]

    def begin(self) -> None:
        """From here on what is looked at counts; the parser's own looks do not."""
        vars(self)["_seen"] = {"begin", "ignored"}


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != []


def refuse(given: argparse.Namespace, options: str, why: str) -> None:
    """Refuses those of the options (their names, spaces between) that were given, with the reason."""
    for option in options.split():
        if _is_given(getattr(given, option, None)):
            raise UsageError(f"--{option.replace('_', '-')}: {why}")

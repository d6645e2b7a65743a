"""The errors a person can meet.

Every error that comes from what the user gave is a `WeftError`; its text says what happened, where, and what to do.
`InternalError` means the compiler itself is wrong: it asks for a report and is never raised for bad input.
"""

from __future__ import annotations

from collections.abc import Iterable


class WeftError(Exception):
    """Base of everything Weft raises on purpose."""


class DTypeError(WeftError, TypeError):
    """A data type that does not exist, does not fit, or does not mix with another."""


class ShapeError(WeftError, ValueError):
    """Shapes, ranks or sizes that do not fit together."""


class ExpressionError(WeftError, ValueError):
    """A tensor expression that has no meaning."""


class ScheduleError(WeftError, ValueError):
    """A schedule primitive used where it is not legal: names the primitive, the loop or block, and the reason."""

    def __init__(self, primitive: str, place: str, reason: str) -> None:
        super().__init__(f"{primitive}({place}): {reason}")
        self.primitive = primitive
        self.place = place
        self.reason = reason


class ParseError(WeftError, ValueError):
    """Text that is not loop IR; names line and column."""


class VerifyError(WeftError, ValueError):
    """A loop program that breaks the rules of the IR."""


class BoundsError(VerifyError):
    """A program with an access outside of its buffer; names the function, the access and the size."""


class InterpreterError(WeftError, RuntimeError):
    """A loop program that goes wrong while it is interpreted: out of bounds, uninitialised read, race, deadlock."""


class TargetError(WeftError, ValueError):
    """An unknown target, or a program that a target cannot run."""


class ArgumentError(WeftError, ValueError):
    """A compiled function called with the wrong arguments."""


class RuntimeFault(WeftError, RuntimeError):
    """A compiled function failed while it ran (out of memory, a callback that raised)."""


class FrontendError(WeftError, ValueError):
    """A model that cannot be imported: a damaged or hostile file, or nodes that Weft does not know, all named."""


class InternalError(RuntimeError):
    """The compiler broke one of its own rules."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message} (this is a bug in Weft: please report it with the program that shows it)")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """What an error about an unknown name ends with: the known one that it was meant to be, or nothing."""
    import difflib  # only where something went wrong

    folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(str(name).casefold(), folded, 1)
    return f" (did you mean {folded[near[0]]!r}?)" if near else ""

"""Weft's log on stderr, for as long as the setting `debug` asks for it.

    WEFT_DEBUG=1 python model.py      what is compiled, found in the cache or given up, and when
    WEFT_DEBUG=2 python model.py      also the program of every kernel, as the code generator gets it

What is logged goes to Python's loggers `weft.*` in any case: a program that has a log of its own needs no setting.
"""

from __future__ import annotations

import logging
import sys

PROGRAM = logging.DEBUG - 1
"""The level of whole programs: below the lines that say what goes on."""
LEVELS = (logging.NOTSET, logging.DEBUG, PROGRAM)
"""By the number that the setting has."""


class _Stderr(logging.Handler):
    """Writes to stderr as it is at that time."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stderr.write(self.format(record) + "\n")


_HANDLER = _Stderr()
_HANDLER.setFormatter(logging.Formatter("%(relativeCreated)7.0f ms %(name)s: %(message)s"))


def show(level: int) -> None:
    """Prints as much of the log as a number asks for; 0 leaves the log to its owner again."""
    logger = logging.getLogger("weft")
    if level:
        logger.addHandler(_HANDLER)
    elif _HANDLER in logger.handlers:
        logger.removeHandler(_HANDLER)
    else:
        return
    logger.setLevel(LEVELS[level])

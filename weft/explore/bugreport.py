"""What a report of a bug says of a model: its graph without weights, what became of it, the log; nothing private.

In: what reads the model, and what compiles and runs it. Out: parts of a text, by title. `without_private` takes out of
any text the names of the user and of the machine, and the folders of either.
"""

from __future__ import annotations

import io
import logging
import os
import platform
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from weft.core.errors import InternalError, WeftError
from weft.graph.ir import Graph
from weft.graph.text import format_graph

LONGEST_LOG = 400
"""Lines of the log that are kept: the last."""

_CONSTANT = re.compile(r"^(\s*const %.*?: (\w+)\[.*?\]) = (?!\.\.\.).*$", re.MULTILINE)
_WHOLE = ("int32", "int64", "bool")
"""Constants of these types, of a few elements, are sizes and axes: without them a model means nothing."""


def model_parts(
    read: Callable[[], Graph], ran: Callable[[], str], misuse: tuple[type[Exception], ...] = ()
) -> dict[str, str]:
    """The model without its weights, and what becomes of it. An error is what such a report is for, but for misuse."""
    parts: dict[str, str] = {}
    steps = {"Model": lambda: without_weights(format_graph(read())), "Compiled and run": ran}
    with _logged() as log:
        for name, step in steps.items():
            try:
                parts[name] = step()
            except misuse:
                raise
            except (WeftError, InternalError, ImportError, OSError, RuntimeError, ValueError, TypeError) as error:
                parts[name] = f"{type(error).__name__}: {error}\n\n{''.join(traceback.format_exception(error))}"
                break
    parts["Log"] = "\n".join(log.getvalue().splitlines()[-LONGEST_LOG:])
    return parts


@contextmanager
def _logged() -> Iterator[io.StringIO]:
    """Weft's log, and what is said on stderr, as text."""
    text, logger = io.StringIO(), logging.getLogger("weft")
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with redirect_stderr(text):
            yield text
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def without_weights(graph: str) -> str:
    """The text of a graph without the values of its constants, but those that are sizes and axes."""
    return _CONSTANT.sub(lambda found: found[0] if found[2] in _WHOLE else f"{found[1]} = ...", graph)


def without_private(text: str) -> str:
    """Text without the names of the user, of the machine and of folders in either's home; names of files stay."""
    end = r"(?=[/\\\s:,;)\"']|$)"
    known = ((Path.cwd(), "."), (Path(sys.prefix), "PYTHON"), (Path(sys.base_prefix), "PYTHON"), (Path.home(), "~"))
    for folder, name in known:
        for spelled in {str(folder), str(folder.resolve())} - {"/", "", "."}:
            text = re.sub(re.escape(spelled) + end, name, text)
    homes = r"(?:~|/home/[^/\s]+|/Users/[^/\s]+|\w:\\Users\\[^\\\s]+)"
    text = re.sub(
        homes + r"(?:[/\\][^/\\\s\"':,;)]+)*?[/\\]([^/\\\s\"':,;)]+)" + end.replace("/\\\\", ""), r"~/…/\1", text
    )
    names = [os.environ.get(variable, "") for variable in ("USER", "LOGNAME", "USERNAME")] + [platform.node()]
    for name in {one for one in names if len(one) > 2 and one not in ("root", "localhost")}:
        text = re.sub(rf"\b{re.escape(name)}\b", "…", text)
    return text

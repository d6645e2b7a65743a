"""How far a long piece of work has come, for whoever wants to show it.

with listening(lambda done, total: bar.update(done, total)):
    weft.compile(model)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

from weft.core.context import setting

Listener = Callable[[int, int], None]
"""Is told how many parts are done, and of how many."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


def listening(listener: Listener) -> AbstractContextManager[Listener | None]:
    """Whatever is done inside, by this thread, tells a listener how far it is."""
    return setting(_LISTENER, listener)


def progress(done: int, total: int) -> None:
    """Says how far the work is."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(done, total)

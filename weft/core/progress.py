"""How far a long piece of work has come, for whoever wants to show it.

with listening(lambda done, total: bar.update(done, total)):
    weft.compile(model)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int, int], None]
"""Is told how many parts are done, and of how many."""

_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Whatever is done inside, by this thread, tells a listener how far it is."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def progress(done: int, total: int) -> None:
    """Says how far the work is."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(done, total)

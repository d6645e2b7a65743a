"""Variables of a context that have another value inside of a with statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Whatever is done inside, by this thread, finds this value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)

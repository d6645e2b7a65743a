"""Which of the tuner's records hold for what is compiled: those in force, else what was found for the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.core import hooks
from weft.core.knobs import knobs
from weft.plan import overrides
from weft.targets.base import Target


@contextmanager
def tuned(machine: Target) -> Iterator[None]:
    """Whatever is compiled inside takes the records of a machine, unless somebody has said which ones count."""
    found = overrides.records()
    if found is None:
        found = hooks.records(machine) if knobs.records else overrides.Records()
    with overrides.recording(found):
        yield

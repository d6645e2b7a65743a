"""What lower layers may ask of those above them: set by the package itself, which knows them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

find_target: Callable[[Any], Any]
"""The Target that a text such as "native" stands for."""

records: Callable[[Any], Any]
"""What the tuner found for a Target (`plan/overrides.py`)."""

load: Callable[..., Any]
"""The module in a module file."""

load_whole: Callable[..., Any]
"""The module in a module file, read by the compiler."""

stored_graph: Callable[..., Any]
"""A graph of a module file from its text and constants, and what runs it by numpy."""

compile_tuned: Callable[..., Any]
"""A model tuned for so long, and then compiled."""

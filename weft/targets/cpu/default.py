"""The schedule that a program gets on the CPU without a trial."""

from __future__ import annotations

from weft.targets.cpu.families import default_schedule

__all__ = ["default_schedule"]

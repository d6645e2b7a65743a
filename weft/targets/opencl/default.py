"""The schedule of a program without a trial: what any machine with threads gets."""

from __future__ import annotations

from weft.targets.gpu.default import default_schedule

__all__ = ["default_schedule"]

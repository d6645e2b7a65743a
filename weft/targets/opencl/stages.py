"""What `weft inspect` can show of a kernel for OpenCL beyond the stages of every target."""

from __future__ import annotations

from weft.codegen.c.program import DeviceProgram
from weft.targets.base import Target


def source(program: DeviceProgram, target: Target) -> str:
    """The OpenCL C that the device's compiler gets."""
    return program.source


STAGES = {"opencl": (source, "c")}
"""Name -> (text of a program, language)."""

"""The code generator of OpenCL; the passes before it are those of any machine with threads."""

from __future__ import annotations

import re

from weft.codegen.c.dialects import OPENCL
from weft.codegen.c.generate import generate as generate_c
from weft.codegen.c.program import DeviceProgram
from weft.core.errors import TargetError
from weft.loop.ir import Func
from weft.targets.base import Target


def generate(func: Func, target: Target) -> DeviceProgram:
    """OpenCL C and launches of a lowered program."""
    program = generate_c(func, target, OPENCL)
    if "fp64" not in target.features and re.search(r"\bdouble\b", program.source):
        raise TargetError(f"{func.name} computes in float64, which {target.cpu} does not have: use float32")
    return program

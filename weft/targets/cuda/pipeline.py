"""The passes of CUDA, and the code generator at their end: those of `gpu/pipeline.py`, with steps of its own."""

from __future__ import annotations

from weft.codegen.c.dialects import CUDA
from weft.codegen.c.generate import generate as generate_c
from weft.codegen.c.program import DeviceProgram
from weft.loop.ir import Func
from weft.loop.passes.overlay_shared import overlay_shared
from weft.targets.base import Target
from weft.targets.cuda.copies import copy_asynchronously
from weft.targets.cuda.swizzle import swizzle_tiles
from weft.targets.cuda.wgmma import overlap_products
from weft.targets.gpu import pipeline

PASSES: pipeline.Passes = (
    *pipeline.TO_STATEMENTS,
    overlap_products,
    overlay_shared,
    *pipeline.TO_VECTORS,
    copy_asynchronously,
    swizzle_tiles,
    *pipeline.TO_CODE,
)


def lower(func: Func, target: Target) -> Func:
    """The program as the code generator takes it."""
    return pipeline.lower(func, target, PASSES)


def generate(func: Func, target: Target) -> DeviceProgram:
    """CUDA C and launches of a lowered program."""
    return generate_c(func, target, CUDA, intrinsics=target.intrinsics())

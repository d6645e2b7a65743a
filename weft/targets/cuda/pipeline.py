"""The passes of CUDA, and the code generator at their end.

Unrolled loops stay loops: the compiler after us unrolls them, which is quicker than to print every copy.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.codegen.c.dialects import CUDA
from weft.codegen.c.generate import generate as generate_c
from weft.codegen.c.program import DeviceProgram
from weft.loop.ir import Func
from weft.loop.passes.check_bounds import check_bounds_on_device, check_regions
from weft.loop.passes.decompose_init import decompose_init
from weft.loop.passes.double_buffer import double_buffer
from weft.loop.passes.flatten import flatten
from weft.loop.passes.hoist import hoist
from weft.loop.passes.insert_barriers import insert_barriers
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.lower_virtual_threads import lower_virtual_threads
from weft.loop.passes.narrow_indices import narrow_indices
from weft.loop.passes.overlay_shared import overlay_shared
from weft.loop.passes.place_allocations import place_allocations
from weft.loop.passes.reuse_storage import reuse_storage
from weft.loop.passes.simplify_func import simplify_func
from weft.loop.passes.vectorize import vectorize
from weft.targets.base import Target
from weft.targets.cuda.copies import copy_asynchronously
from weft.targets.cuda.swizzle import swizzle_tiles
from weft.targets.cuda.wgmma import overlap_products
from weft.targets.gpu import pipeline

PASSES: tuple[Callable[[Func], Func], ...] = (
    decompose_init,
    check_regions,
    lower_blocks,
    lower_virtual_threads,
    place_allocations,
    insert_barriers,
    double_buffer,
    check_bounds_on_device,
    overlap_products,
    overlay_shared,
    flatten,
    vectorize,
    simplify_func,
    copy_asynchronously,
    swizzle_tiles,
    hoist,
    reuse_storage,
    narrow_indices,
)


def lower(func: Func, target: Target) -> Func:
    """The program as the code generator takes it."""
    return pipeline.lower(func, PASSES)


def generate(func: Func, target: Target) -> DeviceProgram:
    """CUDA C and launches of a lowered program."""
    return generate_c(func, target, CUDA, intrinsics=target.intrinsics())

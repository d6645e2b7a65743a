"""The passes of a target with blocks of threads, in order: from a scheduled program to what codegen/c takes.

Unrolled loops stay loops: the compiler after us unrolls them, which is quicker than to read every copy.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.loop.ir import Func
from weft.loop.passes.bind_independent import bind_independent
from weft.loop.passes.check_bounds import check_bounds_on_device, check_regions
from weft.loop.passes.decompose_init import decompose_init
from weft.loop.passes.double_buffer import double_buffer
from weft.loop.passes.flatten import flatten
from weft.loop.passes.hoist import hoist
from weft.loop.passes.insert_barriers import insert_barriers
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.lower_virtual_threads import lower_virtual_threads
from weft.loop.passes.narrow_indices import narrow_indices
from weft.loop.passes.partition_loops import partition_loops
from weft.loop.passes.place_allocations import place_allocations
from weft.loop.passes.reuse_storage import reuse_storage
from weft.loop.passes.simplify_func import simplify_func
from weft.loop.passes.vectorize import vectorize
from weft.targets.base import Target, run_passes

Passes = tuple[Callable[[Func], Func], ...]

TO_STATEMENTS: Passes = (
    decompose_init,
    check_regions,
    lower_blocks,
    bind_independent,
    lower_virtual_threads,
    place_allocations,
    insert_barriers,
    double_buffer,
    check_bounds_on_device,
)
"""From blocks to statements of threads, with the barriers and pipelines between them."""
TO_VECTORS: Passes = (flatten, vectorize, simplify_func)
"""From tensors to flat memory, and vectors of it."""
TO_CODE: Passes = (hoist, reuse_storage, narrow_indices)
"""What is left to do once every statement is the last of its form."""
PASSES: Passes = (*TO_STATEMENTS, partition_loops, *TO_VECTORS, *TO_CODE)


def lower(func: Func, target: Target, passes: Passes = PASSES) -> Func:
    """The program as the code generator takes it."""
    return run_passes(func, passes)

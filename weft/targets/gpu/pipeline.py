"""The passes of a target with blocks of threads, in order: from a scheduled program to what codegen/c takes.

Unrolled loops stay loops: the compiler after us unrolls them, which is quicker than to read every copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.core.knobs import knobs
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
from weft.loop.passes.partition_loops import partition_loops
from weft.loop.passes.place_allocations import place_allocations
from weft.loop.passes.reuse_storage import reuse_storage
from weft.loop.passes.simplify_func import simplify_func
from weft.loop.passes.vectorize import vectorize

PASSES: tuple[Callable[[Func], Func], ...] = (
    decompose_init,
    check_regions,
    lower_blocks,
    lower_virtual_threads,
    place_allocations,
    insert_barriers,
    double_buffer,
    check_bounds_on_device,
    partition_loops,
    flatten,
    vectorize,
    simplify_func,
    hoist,
    reuse_storage,
    narrow_indices,
)


def lower(func: Func, passes: Sequence[Callable[[Func], Func]] = PASSES) -> Func:
    """The program as the code generator takes it."""
    for run in passes:
        func = run(func)
        if knobs.verify:
            from weft.loop.verifier import verify

            verify(func)
    return func

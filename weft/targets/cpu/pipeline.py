"""The passes of a CPU target, in order: from a scheduled program to what the LLVM code generator takes; and the CPU's
own instructions, which a schedule can use by tensorize: importing this module declares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weft.expr.nodes import FloorMod, int_value
from weft.loop.ir import Func
from weft.loop.passes.check_bounds import check_bounds, check_regions
from weft.loop.passes.decompose_init import decompose_init
from weft.loop.passes.double_buffer import double_buffer
from weft.loop.passes.flatten import flatten
from weft.loop.passes.hoist import hoist
from weft.loop.passes.insert_prefetch import insert_prefetch
from weft.loop.passes.interleave_stores import interleave_stores
from weft.loop.passes.lower_blocks import lower_blocks
from weft.loop.passes.lower_virtual_threads import lower_virtual_threads
from weft.loop.passes.partition_loops import partition_loops
from weft.loop.passes.reuse_storage import reuse_storage
from weft.loop.passes.serialize_threads import serialize_threads
from weft.loop.passes.shift_tiles import shift_tiles
from weft.loop.passes.simplify_func import simplify_func
from weft.loop.passes.skip_padding import skip_padding
from weft.loop.passes.skip_zeros import skip_zeros
from weft.loop.passes.transpose_stores import transpose_stores
from weft.loop.passes.turn_loops import turn_loops
from weft.loop.passes.unroll import unroll
from weft.loop.passes.unswitch import unswitch
from weft.loop.passes.vectorize import vectorize
from weft.loop.visit import walk_exprs
from weft.targets.base import Target, run_passes
from weft.targets.cpu import amx, bits, dot


def prefetch(func: Func) -> Func:
    """`insert_prefetch`, for what loads of tiles read too."""
    return insert_prefetch(func, amx.ROW_LOADS)


def join_quotients(func: Func) -> Func:
    """`simplify_func`, where loops over open sizes were made one: i // n * n + i % n is i before it has lanes."""
    found = [e for e in walk_exprs(func.body, FloorMod) if isinstance(e, FloorMod)] if func.size_vars else []
    return simplify_func(func) if any(int_value(e.b) is None for e in found) else func


PASSES: tuple[Callable[[Func], Func], ...] = (
    decompose_init,
    check_regions,
    skip_padding,
    lower_blocks,
    lower_virtual_threads,
    serialize_threads,
    double_buffer,
    check_bounds,
    shift_tiles,
    partition_loops,
    flatten,
    join_quotients,
    vectorize,
    unroll,
    simplify_func,
    prefetch,
    skip_zeros,
    unswitch,
    turn_loops,
    hoist,
    reuse_storage,
    interleave_stores,
    transpose_stores,
    amx.configure_tiles,
)


def lower(func: Func, target: Target) -> Func:
    """The program as the code generator takes it."""
    return run_passes(func, PASSES)


def intrinsics(target: Target) -> Mapping[str, Any]:
    """name -> emitter, for what the target has."""
    tiles = amx.EMITTERS if amx.available(target) else {}
    return {**bits.emitters(target), **dot.emitters(target), **tiles}

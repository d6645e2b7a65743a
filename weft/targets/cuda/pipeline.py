"""The passes of CUDA (those of `gpu/pipeline.py`, with steps of its own), its instructions, and its code generator."""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.c.context import Emitter
from weft.codegen.c.dialects import CUDA
from weft.codegen.c.generate import generate as generate_c
from weft.codegen.c.program import DeviceProgram
from weft.loop.ir import Func
from weft.loop.passes.double_buffer import double_buffer
from weft.loop.passes.overlay_shared import overlay_shared
from weft.loop.passes.tabulate import tabulate
from weft.targets.base import Target
from weft.targets.cuda import (
    banks,
    bulk,
    cluster,
    copies,
    early,
    fragments,
    lanes,
    mma,
    producer,
    spread,
    stagger,
    stay,
    steps,
    streamed_tiles,
    streamed_words,
    swizzle,
    wgmma,
)
from weft.targets.gpu import pipeline
from weft.targets.gpu.nest import threads_of

_PIPELINES = pipeline.TO_STATEMENTS.index(double_buffer)
PASSES: pipeline.Passes = (
    *pipeline.TO_STATEMENTS[:_PIPELINES],
    producer.fetch_beside,
    double_buffer,
    early.begin_early,
    *pipeline.TO_STATEMENTS[_PIPELINES + 1 :],
    fragments.skip_masks,
    wgmma.begin_products,
    stagger.stagger,
    wgmma.promote_products,
    wgmma.overlap_products,
    producer.unroll_turns,
    overlay_shared,
    cluster.add_up_together,
    *pipeline.TO_VECTORS,
    early.load_early,
    early.fetch_early,
    copies.copy_asynchronously,
    swizzle.swizzle_tiles,
    tabulate,
    banks.go_back_and_forth,
    stay.stay_for_steps,
    *pipeline.TO_CODE,
)
_DECLARING = (banks, bulk, cluster, copies, early, mma, wgmma, fragments, lanes, stay, spread, steps,
              streamed_tiles, streamed_words, swizzle)  # fmt: skip
"""What declares instructions."""


def lower(func: Func, target: Target) -> Func:
    """The program as the code generator takes it."""
    return pipeline.lower(func, target, PASSES)


def intrinsics(target: Target) -> Mapping[str, Emitter]:
    """Emitters of asynchronous copies and tensor cores, by name."""
    made: dict[str, Emitter] = {}
    for one in _DECLARING:
        made.update(one.EMITTERS)
    return {**made, **mma.CONVERSIONS} if "float8" in threads_of(target).tensor_cores else made


def generate(func: Func, target: Target) -> DeviceProgram:
    """CUDA C and launches of a lowered program."""
    own = fragments.own_registers(cluster.own_parts(func))
    machine = threads_of(target)
    func = lanes.keep_in_registers(banks.move_sums(own), machine)
    func = spread.in_words(spread.add_up_in_lanes(func, machine), machine)
    return generate_c(func, target, CUDA, intrinsics=target.intrinsics())

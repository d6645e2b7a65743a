"""A TPU-like accelerator (hardware/vdla): int8 products, decoupled units that meet through tokens."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from weft.targets.base import Algorithms, DeviceSpec, Target, TargetSpec, later, plain_scopes

if TYPE_CHECKING:
    from weft.loop.ir import Func
    from weft.targets.vdla.isa import Config

VDLA = Target(
    kind="vdla", name="vdla", triple="vdla", cpu="vdla-16x16", features=frozenset(), vector_bytes=0, vector_registers=0,
    cache_bytes=(0, 0, 0), cores=1, has_fma=False, is_host=True,
    scopes=plain_scopes("global", "local", "shared", "inp", "wgt", "acc"),
)  # fmt: skip


def parse(text: str) -> Target | None:
    """ "vdla", or "vdla:latency=128,word_cycles=2": sizes that are other than the usual ones."""
    kind, _, sizes = text.partition(":")
    if kind != "vdla":
        return None
    config_of(sizes)
    return replace(VDLA, name=text)


@lru_cache
def config_of(sizes: str) -> Config:
    """The machine that the part of a target's name after the colon describes."""
    from weft.core.errors import TargetError
    from weft.targets.vdla.isa import Config

    known, words = [one.name for one in fields(Config)], [word.partition("=") for word in sizes.split(",") if word]
    wrong = [f"{name}={value}" for name, _, value in words if name not in known or not value.isdecimal()]
    reason = f"{wrong and wrong[0]!r} is not one of {', '.join(known)} with a number, such as latency=128"
    try:
        if not wrong:
            return Config(**{name: int(value) for name, _, value in words})
    except ValueError as error:
        reason = str(error)
    raise TargetError(f"{sizes!r} does not describe an accelerator: {reason}")


def lower(func: Func, target: Target) -> Func:
    """The program as the writer takes it: loops, accesses with one index, virtual threads still as loops."""
    from weft.loop.passes.check_bounds import check_regions
    from weft.loop.passes.decompose_init import decompose_init
    from weft.loop.passes.flatten import flatten
    from weft.loop.passes.lower_blocks import lower_blocks
    from weft.loop.passes.simplify_func import simplify_func

    return simplify_func(flatten(lower_blocks(check_regions(decompose_init(func)))))


TARGET = TargetSpec(
    kind="vdla",
    forms=(
        "vdla                                     a TPU-like accelerator, run by its cycle-level model",
        "vdla:latency=128,word_cycles=2           the same with other sizes: block, inp, wgt, acc, queue, …",
    ),
    parse=parse,
    lower=lower,
    schedule=later("weft.targets.vdla.schedule:schedule"),
    algorithms=Algorithms(offload=later("weft.targets.vdla.offload:offload")),
    intrinsics=later("weft.targets.vdla.intrinsics:calls"),
    device=DeviceSpec(
        generate=later("weft.targets.vdla.program:generate"),
        open=later("weft.targets.vdla.program:open_device"),
        rest="native",
        stages={"stream": (lambda program, target: program.source, "asm")},
    ),
)

"""Devices with OpenCL, through pyopencl: GPUs of any maker, and processors (PoCL)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from weft.targets.base import Algorithms, Device, DeviceSpec, Target, TargetSpec
from weft.targets.opencl.parse import FORMS, local_devices, parse

if TYPE_CHECKING:
    from weft.codegen.c.program import DeviceProgram
    from weft.expr.nodes import Buffer
    from weft.loop.ir import Func
    from weft.schedule.schedule import Schedule


def _lower(func: Func, target: Target) -> Func:
    from weft.targets.gpu.pipeline import lower

    return lower(func)


def _schedule(schedule: Schedule, target: Target, constants: Collection[Buffer]) -> None:
    from weft.targets.gpu.families import default_schedule

    default_schedule(schedule, target, constants)


def _generate(func: Func, target: Target) -> DeviceProgram:
    from weft.targets.opencl.pipeline import generate

    return generate(func, target)


def _open(target: Target) -> Device:
    from weft.targets.opencl.device import open_device

    return open_device(target)


def _attention(target: Target) -> Callable[[Sequence[int], str], Sequence[int] | None]:
    from weft.targets.gpu.attention import attention_proposer

    return attention_proposer(target)


def _source(program: DeviceProgram, target: Target) -> str:
    return program.source


TARGET = TargetSpec(
    kind="opencl",
    forms=FORMS,
    parse=parse,
    lower=_lower,
    schedule=_schedule,
    device=DeviceSpec(generate=_generate, open=_open, stages={"opencl": (_source, "c")}),
    algorithms=Algorithms(attention=_attention),
    local_devices=local_devices,
)

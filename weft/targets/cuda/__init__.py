"""NVIDIA GPUs: CUDA C compiled by NVRTC at run time, launched through the driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.targets.base import Algorithms, Device, DeviceSpec, Target, TargetSpec
from weft.targets.cuda.parse import FORMS, local_devices, parse

if TYPE_CHECKING:
    from weft.codegen.c.program import DeviceProgram
    from weft.expr.nodes import Buffer
    from weft.loop.ir import Func
    from weft.schedule.schedule import Schedule
    from weft.targets.peaks import Peaks


def _lower(func: Func, target: Target) -> Func:
    from weft.targets.cuda.pipeline import lower

    return lower(func, target)


def _schedule(schedule: Schedule, target: Target, constants: Collection[Buffer]) -> None:
    from weft.targets.cuda.families import default_schedule

    default_schedule(schedule, target, constants)


def _intrinsics(target: Target) -> Mapping[str, Any]:
    from weft.targets.cuda.intrinsics import intrinsics

    return intrinsics(target)


def _generate(func: Func, target: Target) -> DeviceProgram:
    from weft.targets.cuda.pipeline import generate

    return generate(func, target)


def _open(target: Target) -> Device:
    from weft.targets.cuda.device import open_device

    return open_device(target)


def _machine_codes(programs: Sequence[DeviceProgram], target: Target) -> list[bytes]:
    from weft.targets.cuda.device import machine_codes

    return machine_codes(programs, target)


def _attention(target: Target) -> Callable[[Sequence[int], str], Sequence[int] | None]:
    from weft.targets.gpu.attention import attention_proposer

    return attention_proposer(target)


def _source(program: DeviceProgram, target: Target) -> str:
    return program.source


def _ptx(program: DeviceProgram, target: Target) -> str:
    from weft.targets.cuda.stages import ptx

    return ptx(program, target)


def _sass(program: DeviceProgram, target: Target) -> str:
    from weft.targets.cuda.stages import sass

    return sass(program, target)


def _peaks(target: Target, threads: int) -> Peaks:
    from weft.targets.cuda.peaks import measure

    return measure(target, threads)


TARGET = TargetSpec(
    kind="cuda",
    forms=FORMS,
    parse=parse,
    lower=_lower,
    schedule=_schedule,
    intrinsics=_intrinsics,
    device=DeviceSpec(
        generate=_generate,
        open=_open,
        machine_codes=_machine_codes,
        stages={"cuda": (_source, "cuda"), "ptx": (_ptx, "text"), "sass": (_sass, "text")},
    ),
    algorithms=Algorithms(attention=_attention),
    peaks=_peaks,
    local_devices=local_devices,
)

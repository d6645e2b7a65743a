"""CPUs, through LLVM: this machine ("native"), or any x86, Arm, RISC-V or WebAssembly machine by its triple."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.targets.base import Algorithms, Check, Target, TargetSpec
from weft.targets.cpu.parse import FORMS, parse

if TYPE_CHECKING:
    from weft.expr.nodes import Buffer
    from weft.graph.ir import Array, Node
    from weft.graph.passes.algorithms import Alternative
    from weft.graph.passes.pad_channels import Prices
    from weft.loop.ir import Func
    from weft.schedule.schedule import Schedule
    from weft.targets.peaks import Peaks


def _lower(func: Func, target: Target) -> Func:
    from weft.targets.cpu.pipeline import lower

    return lower(func, target)


def _schedule(schedule: Schedule, target: Target, constants: Collection[Buffer]) -> None:
    from weft.targets.cpu.default import default_schedule

    default_schedule(schedule, target, constants)


def _intrinsics(target: Target) -> Mapping[str, Any]:
    from weft.targets.cpu.intrinsics import intrinsics

    return intrinsics(target)


def _attention(target: Target) -> Callable[[Sequence[int], str], Sequence[int] | None]:
    from weft.targets.cpu.algorithms import attention_proposer

    return attention_proposer(target)


def _weights(target: Target) -> Callable[[Array, int], tuple[Array, Array, Array] | None]:
    from weft.targets.cpu.algorithms import weight_fixer

    return weight_fixer(target)


def _products(target: Target, model_bytes: int) -> Callable[[Node, Array], Sequence[Alternative]]:
    from weft.targets.cpu.algorithms import proposer

    return proposer(target, model_bytes)


def _channels(target: Target, model_bytes: int) -> Prices | None:
    from weft.targets.cpu.channels import prices

    return prices(target, model_bytes)


def _peaks(target: Target, threads: int) -> Peaks:
    from weft.targets.cpu.peaks import measure

    return measure(target, threads)


def _startup(target: Target, codes: Iterable[bytes]) -> str:
    from weft.targets.cpu.startup import startup_ir

    return startup_ir(target, codes)


def _examine(target: Target) -> Iterable[Check]:
    from weft.targets.cpu.examine import examine

    return examine(target)


TARGET = TargetSpec(
    kind="cpu",
    forms=FORMS,
    parse=parse,
    lower=_lower,
    schedule=_schedule,
    intrinsics=_intrinsics,
    algorithms=Algorithms(
        attention=_attention,
        causal_block=256,
        split_windows=True,
        weights=_weights,
        products=_products,
        channels=_channels,
    ),
    peaks=_peaks,
    startup=_startup,
    examine=_examine,
)

"""The stages of a kernel as text: what `weft inspect` prints and `weft explore` shows.

In: a module that was compiled here. Out: its kernels (`Compiled`), and for each stage a function from one of them to
text and the language of that text (STAGES). Nothing is chosen or compiled again but the assembly, which LLVM writes
from the same IR as the machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from weft.codegen.llvm.compile import emit_assembly
from weft.compiler import Module
from weft.compiler.kernels.program import build_program
from weft.compiler.lowering.lower import program_of
from weft.graph.ir import Graph
from weft.targets.base import Target
from weft.te.tensor import Tensor
from weft.te.text import format_tensors


@dataclass(frozen=True)
class Compiled:
    """One kernel call of a compiled model: its place, and all that is known of it."""

    number: int
    launch: Any
    graph: Graph
    target: Target
    lowered: Any

    @property
    def title(self) -> str:
        """How a person names it."""
        return f"{self.number} {self.launch.kernel.label}"


def specializations(module: Module) -> Iterator[Any]:
    """Every compiled form of a model, those of parts that wait for shapes and of subgraphs included."""
    return (one for one, _ in _placed(module))


def _placed(module: Module) -> Iterator[tuple[Any, Target]]:
    """The same, and whom each is for: what a device has nothing for is another target's."""
    waiting = [(one, module.target) for one in module.specializations]
    while waiting:
        one, target = waiting.pop(0)
        yield one, target
        for step in one.runner.program.steps:  # those of `lowered` are made again for a form of the cache
            for holder in (step, *getattr(step, "inner", {}).values()):
                executor = getattr(holder, "executor", None)
                if executor is not None:
                    waiting += [(part, executor.target) for part in getattr(executor, "specializations", ())]


def kernels(module: Module) -> Iterator[Compiled]:
    """The kernel calls of a model in order; a kernel that is called again is not listed again."""
    seen: set[str] = set()
    for one, target in _placed(module):
        for launch in one.launches:
            if launch.kernel.symbol not in seen:
                seen.add(launch.kernel.symbol)
                yield Compiled(len(seen) - 1, launch, one.graph, target, one.lowered)


def program(one: Compiled) -> Any:
    """The tensor program of a kernel, built again."""
    return program_of(one.launch, one.graph, one.lowered)


def expressions_text(one: Compiled) -> str:
    """The tensor expressions of the operators."""
    plain = build_program(one.launch.nodes, one.launch.writes, one.graph.constants, one.launch.kernel.scheduled.name)
    return format_tensors([buffer for _, buffer in plain.outputs if isinstance(buffer, Tensor)])


def te_text(one: Compiled) -> str:
    """The tensor expressions of the operators, and the loops before scheduling, in the layouts of the values around."""
    return f"{expressions_text(one)}\n\n{program(one).schedule.func!r}"


def plan_text(one: Compiled) -> str:
    """What was tried for a kernel: with which numbers, which of it stands, and why the rest does not."""
    return "\n".join(f"{'refused ' if tried.refused else 'taken   '}{tried}" for tried in one.launch.kernel.tried)


def schedule_text(one: Compiled) -> str:
    """The steps of the schedule, as Python."""
    return "\n".join(step.as_python() for step in one.launch.kernel.trace.steps)


def loops_text(one: Compiled) -> str:
    """The scheduled loops."""
    return repr(one.launch.kernel.scheduled)


def lowered_text(one: Compiled) -> str:
    """The loops after the target's passes."""
    return repr(one.target.lower(one.launch.kernel.scheduled))


def llvm_text(one: Compiled) -> str:
    """The LLVM IR."""
    return str(one.launch.kernel.llvm_ir)


def asm_text(one: Compiled) -> str:
    """The assembly."""
    return emit_assembly(one.launch.kernel.llvm_ir, one.target)


STAGES: dict[str, tuple[Callable[[Compiled], str], str]] = {
    "te": (te_text, "python"),
    "plan": (plan_text, "text"),
    "schedule": (schedule_text, "python"),
    "loops": (loops_text, "python"),
    "lowered": (lowered_text, "python"),
    "llvm": (llvm_text, "llvm"),
    "asm": (asm_text, "asm"),
}

NATIVE_STAGES = ["llvm", "asm"]
"""Those of code that LLVM makes; a device has its own."""

"""CPUs, through LLVM: this machine ("native"), or any x86, Arm, RISC-V or WebAssembly machine by its triple."""

from __future__ import annotations

from weft.targets.cpu.parse import FORMS, parse

__all__ = ["FORMS", "parse"]

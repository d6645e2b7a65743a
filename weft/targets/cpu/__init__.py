"""CPUs, through LLVM: this machine ("native"), or any x86, Arm, RISC-V or WebAssembly machine by its triple."""

from __future__ import annotations

from weft.targets.base import Algorithms, TargetSpec, later
from weft.targets.cpu.parse import FORMS, parse

TARGET = TargetSpec(
    kind="cpu",
    forms=FORMS,
    parse=parse,
    lower=later("weft.targets.cpu.pipeline:lower"),
    schedule=later("weft.targets.cpu.families:default_schedule"),
    intrinsics=later("weft.targets.cpu.pipeline:intrinsics"),
    algorithms=Algorithms(
        attention=later("weft.targets.cpu.algorithms:attention_proposer"),
        open_attention=True,
        causal_block=256,
        skips_taps=True,
        caches=True,
        loops_by_data=True,
        weights=later("weft.targets.cpu.algorithms:weight_fixer"),
        few_bits=later("weft.targets.cpu.algorithms:panel_proposer"),
        dots=later("weft.targets.cpu.algorithms:dotted_channels"),
        signed=later("weft.targets.cpu.algorithms:multiplies_signed"),
        narrow=later("weft.targets.cpu.algorithms:waits_for_weights"),
        merged=later("weft.targets.cpu.algorithms:merger"),
        products=later("weft.targets.cpu.algorithms:proposer"),
        channels=later("weft.targets.cpu.channels:prices"),
    ),
    peaks=later("weft.targets.cpu.peaks:measure"),
    calibrate=later("weft.targets.cpu.calibrate:calibrate"),
    startup=later("weft.targets.cpu.startup:startup_ir"),
    flags=later("weft.targets.cpu.examine:flags_of"),
    examine=later("weft.targets.cpu.examine:examine"),
)

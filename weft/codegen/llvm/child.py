"""The part of compilation that only needs llvmlite, and the child process that runs it for other machines.

python -m weft.codegen.llvm.child      stdin: one line of JSON (triple, cpu, features, form, tuning), then LLVM IR
                                       stdout: the object file, assembly or IR; any other end is a failure
"""

from __future__ import annotations

import json
import sys
from typing import Any

import llvmlite.binding as llvm

_ready: set[str] = set()

# LLVM 22 takes `bytes * shuffle(bytes / constant)` of at most 8 lanes for zero on processors with AVX2 where it thinks
# variable shuffles cheap (all since Haswell): instruction selection combines the shuffles wrongly. Without that tuning
# the code is right, and 2 of 100 kernels differ at all. tests/codegen/test_llvm_faults.py shows the fault.
_X86_TUNING = "-fast-variable-perlane-shuffle"


def host_triple() -> str:
    """The triple of this process."""
    return str(llvm.get_process_triple())


def same_machine(triple: str, other: str) -> bool:
    """Whether two triples name the same processor family and system."""
    a, b = triple.split("-"), other.split("-")
    return a[0] == b[0] and a[2:3] == b[2:3]


def _initialize(triple: str) -> None:
    native = same_machine(triple, host_triple())
    kind = "native" if native else "all"
    if kind in _ready:
        return
    if native:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        llvm.initialize_native_asmparser()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    _ready.add(kind)


def parse(text: str) -> Any:
    """A verified module."""
    module = llvm.parse_assembly(text)
    module.verify()
    return module


def target_machine(triple: str, cpu: str, features: str) -> Any:
    """An llvmlite TargetMachine."""
    _initialize(triple)
    target = llvm.Target.from_triple(triple)
    if triple.startswith(("x86_64-", "i386-", "i686-")):
        features = f"{features},{_X86_TUNING}" if features else _X86_TUNING
    abi = "lp64d" if triple.startswith("riscv64") and "+d" in features.split(",") else ""
    return target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="default", abiname=abi
    )  # fmt: skip


def optimize(module: Any, machine: Any, tuning: str) -> Any:
    """Runs LLVM's passes over a module, in place."""
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2 if tuning == "shaped" else 3)
    # Loops with vectors of their own say by metadata that they stay as they are; scalar ones are LLVM's to vectorize.
    options.loop_vectorization = options.loop_interleaving = True
    # SLP leaves our kernels about as long as they are (180 compared), and it can make shuffles of bytes that LLVM 22
    # selects wrongly (see _X86_TUNING) or never ends on (`<64 x i8>`, computed, with each lane of its half doubled).
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def emit(module: Any, request: dict[str, str]) -> bytes:
    """What a request asks for, from a verified module."""
    machine = target_machine(request["triple"], request["cpu"], request["features"])
    module = optimize(module, machine, request["tuning"])
    if request["form"] == "object":
        return bytes(machine.emit_object(module))
    return (machine.emit_assembly(module) if request["form"] == "assembly" else str(module)).encode()


def main() -> None:
    """Reads a request from stdin and answers on stdout."""
    header, text = sys.stdin.buffer.read().split(b"\n", 1)
    sys.stdout.buffer.write(emit(parse(text.decode()), json.loads(header)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

"""The part of compilation that only needs llvmlite, and the child process that runs it for other machines.

python -m weft.codegen.llvm.child      stdin: one line of JSON (triple, cpu, features, form, tuning), then LLVM IR
                                       stdout: the object file, assembly or IR; any other end is a failure
"""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm

_ready: set[str] = set()
_options = threading.Lock()

_LEVELS = {"called": 0, "shaped": 1, "straight": 1, "simplified": 1, "mixed": 2, "plain": 3}
_KEEP_ADDRESSES = ("-disable-lsr", "true", "false")
_KEEP_ORDER = ("-enable-misched", "false", "true")
_SETTINGS = {"shaped": (_KEEP_ADDRESSES, _KEEP_ORDER), "straight": (_KEEP_ADDRESSES,)}
"""How code is made of programs that get few passes, where their addresses are written as they are to be computed: a
setting, its value then, and its value otherwise."""

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


def is_arm(triple: str) -> bool:
    """Whether a triple names a processor with 31 registers for addresses."""
    return triple.startswith(("aarch64", "arm64"))


def is_placed(triple: str) -> bool:
    """Whether programs for a processor say where each part of an address is computed (`Context.element`)."""
    return is_arm(triple) or triple.startswith(("x86_64-", "i386-", "i686-"))


def keeps_addresses(tuning: str) -> bool:
    """Whether a program gets few passes, and its addresses as they are written."""
    return tuning in _SETTINGS


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


@functools.lru_cache(maxsize=16)
def target_machine(triple: str, cpu: str, features: str, level: int = 3) -> Any:
    """An llvmlite TargetMachine; one for many modules, since each works out the processor's tables once (1 ms)."""
    _initialize(triple)
    target = llvm.Target.from_triple(triple)
    if triple.startswith(("x86_64-", "i386-", "i686-")):
        features = f"{features},{_X86_TUNING}" if features else _X86_TUNING
    abi = "lp64d" if triple.startswith("riscv64") and "+d" in features.split(",") else ""
    return target.create_target_machine(
        cpu=cpu, features=features, opt=level, reloc="pic", codemodel="default", abiname=abi
    )  # fmt: skip


def optimize(module: Any, machine: Any, tuning: str) -> Any:
    """Runs LLVM's passes over a module, in place: few where the schedule has shaped the loops, else all of them.

    `python -m benchmarks.llvm_settings` compares the ways: shaped kernels get no slower by the short one, which
    together with `_SETTINGS` takes half of LLVM's time away. Where terms of addresses stand outside of loops already
    (`Context.place`) two passes are enough: tiles become registers, and short loops straight code, whose tiles do too;
    but not for all programs (`compile.tuning_for`): "simplified" is the whole short way. What only calls kernels
    ("called") has nothing to gain.
    """
    module.data_layout = str(machine.target_data)
    if not _LEVELS[tuning]:
        return module
    options = llvm.create_pipeline_tuning_options(speed_level=_LEVELS[tuning])
    # Loops with vectors of their own say by metadata that they stay as they are; scalar ones are LLVM's to vectorize.
    options.loop_vectorization = options.loop_interleaving = True
    # SLP leaves our kernels about as long as they are (180 compared), and it can make shuffles of bytes that LLVM 22
    # selects wrongly (see _X86_TUNING) or never ends on (`<64 x i8>`, computed, with each lane of its half doubled).
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    if _LEVELS[tuning] > 1:
        builder.getModulePassManager().run(module, builder)
        return module
    inline = llvm.create_new_module_pass_manager()
    inline.add_always_inliner_pass()
    inline.run(module, builder)
    if is_placed(machine.triple) and tuning != "simplified":
        simplify = llvm.create_new_function_pass_manager()
        simplify.add_sroa_pass()
        simplify.add_loop_unroll_pass()
        simplify.add_sroa_pass()
    else:
        simplify = builder.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            simplify.run(function, builder)
    return module


@contextmanager
def _as_written(settings: Sequence[tuple[str, str, str]]) -> Iterator[None]:
    """While code is made: settings of LLVM's, which are the process's.

    Another module is made before or after, and others find them as they were.
    """
    with _options:
        for name, value, _ in settings:
            llvm.set_option("weft", f"{name}={value}")
        try:
            yield
        finally:
            for name, _, otherwise in settings:
                llvm.set_option("weft", f"{name}={otherwise}")


@contextmanager
def nobody_in_llvm() -> Iterator[None]:
    """While no other thread is inside LLVM, nor between two calls that belong together: a fork finds its locks free."""
    with _options, llvm.ffi.lib._lock:
        yield


def emit(module: Any, request: dict[str, str]) -> bytes:
    """What a request asks for, from a verified module.

    In the code of shaped loops addresses stay as they are, and instructions about in their order: what LLVM does
    instead (loop strength reduction, scheduling) takes a third of its time, on x86 more than half of that for machine
    code, and costs register tiles a few spilled accumulators. Long straight stretches do gain from scheduling, but not
    from doing it again after registers are assigned; with the few registers of x86 all loops do.
    """
    triple, features, tuning = request["triple"], request["features"], request["tuning"]
    settings = _SETTINGS.get(tuning, ()) if is_placed(triple) else ()
    if settings and not is_arm(triple):
        settings = (_KEEP_ADDRESSES,)
    elif settings:
        features = f"{features},-use-postra-scheduler".lstrip(",")
    machine = target_machine(triple, request["cpu"], features, 3 if _LEVELS[tuning] else 0)
    module = optimize(module, machine, tuning)
    if request["form"] == "llvm":
        return str(module).encode()
    with _as_written(settings):
        if request["form"] == "object":
            return bytes(machine.emit_object(module))
        return bytes(machine.emit_assembly(module).encode())


def main() -> None:
    """Reads a request from stdin and answers on stdout."""
    header, text = sys.stdin.buffer.read().split(b"\n", 1)
    sys.stdout.buffer.write(emit(parse(text.decode()), json.loads(header)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()

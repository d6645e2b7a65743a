"""A module as a folder: a library (shared, static, WebAssembly, or plain C), how it is called, and an example."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from weft.codegen.llvm import compile as llvm_compile
from weft.compiler.export import tools, wasm
from weft.compiler.export.api import api_ir, weights_symbol
from weft.compiler.export.c_source import c_sources
from weft.compiler.export.header import example_text, header_text
from weft.compiler.export.plan import ExportError, LibraryPlan, make_plan
from weft.compiler.export.serial import serial_ir
from weft.compiler.lowering.native import driver_ir, fetched_ahead
from weft.compiler.module import Module
from weft.runtime.model.module_file import padded
from weft.runtime.native import has_threads, native_ir

FORMS = ("so", "a", "c", "wasm")


def export_library(
    module: Module, folder: str | os.PathLike[str], name: str | None = None, form: str = "so", beside: bool = False
) -> list[Path]:
    """Writes the library of a module and what goes with it; gives the files. `name` is the model's in C.

    `form` is one of FORMS; `beside` puts the weights into a file of their own, which the caller reads.
    """
    if module.target.spec.startup is None:
        raise ExportError(f"libraries are for CPUs; {module.graph.name} is compiled for {module.target.name}")
    if form not in FORMS:
        raise ExportError(f"a library has one of the forms {', '.join(FORMS)}, not {form!r}")
    plan = make_plan(module, name)
    where = Path(folder)
    is_new = not where.exists()
    where.mkdir(parents=True, exist_ok=True)
    try:
        return _write(plan, where, form, beside)
    finally:
        if is_new and not any(where.iterdir()):  # refused
            where.rmdir()


def _write(plan: LibraryPlan, where: Path, form: str, beside: bool) -> list[Path]:
    make = {"c": _plain_c, "wasm": _web}.get(form, _library)
    with tempfile.TemporaryDirectory(prefix="weft-export-", dir=where.absolute()) as scratch:
        weights = Path(scratch) / f"{plan.name}.bin"
        _write_weights(plan, weights)
        files = make(plan, Path(scratch), form, beside)
        made = [*files, weights] if beside else files
        for file in made:
            os.replace(file, where / file.name)
    return [where / file.name for file in made]


def _write_weights(plan: LibraryPlan, path: Path) -> None:
    """The arrays one after the other, each at its offset."""
    with path.open("wb") as file:
        for array in plan.arrays:
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            file.write(raw.data)
            file.write(bytes(padded(raw.size) - raw.size))
        if not plan.arrays:
            file.write(bytes(padded(0)))


def _texts(scratch: Path, texts: dict[str, str]) -> list[Path]:
    for name, text in texts.items():
        (scratch / name).write_text(text, encoding="utf-8")
    return [scratch / name for name in texts]


def _objects(plan: LibraryPlan, scratch: Path, form: str, beside: bool) -> list[Path]:
    """The object files of a library: kernels and drivers, the functions to call, the runtime, the weights."""
    target = plan.target
    assert target.spec.startup is not None
    codes = plan.form.native.objects()
    check = target.spec.startup(target, codes)
    if all(step.calls for step in plan.steps):
        # Drivers under names of the model's own, so that a program may be linked with several models.
        plan.calls = [(f"weft_{plan.name}_part{at}", bases) for at, (_, bases) in enumerate(plan.calls)]
        codes += [
            llvm_compile.emit_object(
                driver_ir(symbol, step.calls, target.triple, fetched=fetched_ahead(target)), target
            )
            for (symbol, _), step in zip(plan.calls, plan.steps)
        ]
    elif form == "a":
        raise ExportError(f"{plan.title} is read from a module file: a static library is made from the model itself")
    runtime = native_ir(target.triple) if has_threads(target.triple) else serial_ir(target)
    functions = api_ir(plan, check, beside)
    own = [runtime, functions] if llvm_compile.is_native(target) else [runtime]
    codes += [llvm_compile.emit_object(text, target) for text in own]
    files = [scratch / f"{plan.name}_{at}.o" for at in range(len(codes))]
    for file, code in zip(files, codes):
        file.write_bytes(code)
    if functions not in own:
        # It may ask the processor by instructions that LLVM in this process can assemble for this machine only.
        files.append(scratch / f"{plan.name}.o")
        tools.compile_text(functions, ".ll", files[-1], target)
    if not beside:
        files.append(scratch / f"{plan.name}_weights.o")
        tools.weights_object(scratch / f"{plan.name}.bin", weights_symbol(plan), files[-1], target)
    return files


def _library(plan: LibraryPlan, scratch: Path, form: str, beside: bool) -> list[Path]:
    target = plan.target
    if target.triple.startswith("wasm"):
        raise ExportError(f"{target.name} has no libraries of that form: a WebAssembly module is --format wasm")
    if form == "so" and tools.object_format(target) != "elf":
        raise ExportError(f"shared libraries are written for Linux; for {target.name} there is --format a")
    objects = _objects(plan, scratch, form, beside)
    if form == "a":
        made = scratch / f"lib{plan.name}.a"
        tools.archive(objects, made, target)
    else:
        made = scratch / f"lib{plan.name}.so"
        llvm_compile.link_shared(objects, made, target, exported=f"weft_{plan.name}_*")
    return [made, *_texts(scratch, {f"{plan.name}.h": header_text(plan, beside), "main.c": example_text(plan, beside)})]


def _web(plan: LibraryPlan, scratch: Path, form: str, beside: bool) -> list[Path]:
    if not plan.target.triple.startswith("wasm"):
        raise ExportError(f"a WebAssembly module is compiled for wasm32-unknown-unknown, not for {plan.target.name}")
    made = scratch / f"{plan.name}.wasm"
    exported = [*plan.functions, "weft_allocate"]
    tools.link_wasm(_objects(plan, scratch, form, beside), made, exported, plan.target)
    return [made, *_texts(scratch, wasm.package(plan, beside))]


def _plain_c(plan: LibraryPlan, scratch: Path, form: str, beside: bool) -> list[Path]:
    return _texts(scratch, c_sources(plan, beside))

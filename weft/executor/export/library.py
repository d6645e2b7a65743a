"""A module as a folder: libNAME.so, NAME.h and main.c."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from weft.codegen.llvm import compile as llvm_compile
from weft.executor.export.api import WEIGHTS, api_ir
from weft.executor.export.elf import write_data_object
from weft.executor.export.header import example_text, header_text
from weft.executor.export.plan import ExportError, make_plan
from weft.executor.module import Module
from weft.runtime.native import native_ir


def export_library(module: Module, folder: str | os.PathLike[str], name: str | None = None) -> list[Path]:
    """Writes the library of a module and what goes with it; gives the files. `name` is the model's in C."""
    plan = make_plan(module, name)
    target = plan.target
    codes = module.specializations[0].native.objects()
    if target.spec.startup is None:
        raise ExportError(f"shared libraries are for CPUs; {plan.title} is compiled for {target.name}")
    check = target.spec.startup(target, codes)
    codes += [llvm_compile.emit_object(text, target) for text in (api_ir(plan, check), native_ir(target.triple))]
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    files = [where / f"lib{plan.name}.so", where / f"{plan.name}.h", where / "main.c"]
    with tempfile.TemporaryDirectory(prefix="weft-export-", dir=where) as scratch:
        weights, made = Path(scratch) / "weights.o", Path(scratch) / files[0].name
        write_data_object(weights, WEIGHTS, plan.arrays, target.triple)
        llvm_compile.link_shared([*codes, weights], made, target, exported=f"weft_{plan.name}_*")
        os.replace(made, files[0])
    files[1].write_text(header_text(plan), encoding="utf-8")
    files[2].write_text(example_text(plan), encoding="utf-8")
    return files

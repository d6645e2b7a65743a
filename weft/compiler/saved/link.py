"""The native code of a compiled form as a shared library, so that a module file runs without the compiler.

In: the object files of a form and the seal of what the manifest says of it (`runtime/model/manifest.py`). Out: the
bytes of a library that `runtime/library.py` opens. It shows

    the drivers of the form, and its seal as a name
    int32_t weft_startup(void)                               0, or why this processor cannot run it
    void    weft_bind(parallel_for, allocate, release, ahead)    the runtime that its kernels call from now on
    weft_own_…                                               the native runtime that it brings, for a process without
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weft.codegen.llvm import compile as llvm_compile
from weft.compiler.steps import NativeStep, Program
from weft.runtime.library import OWN
from weft.runtime.native import native_ir
from weft.targets.base import Target

_BRIDGE = """
@weft.table = internal global [4 x ptr] zeroinitializer, align 8

define void @weft_bind(ptr %parallel_for, ptr %allocate, ptr %release, ptr %ahead) nounwind {
  store ptr %parallel_for, ptr @weft.table, align 8
  store ptr %allocate, ptr getelementptr ([4 x ptr], ptr @weft.table, i64 0, i64 1), align 8
  store ptr %release, ptr getelementptr ([4 x ptr], ptr @weft.table, i64 0, i64 2), align 8
  store ptr %ahead, ptr getelementptr ([4 x ptr], ptr @weft.table, i64 0, i64 3), align 8
  ret void
}

define hidden void @weft_parallel_for(ptr %body, ptr %environment, i64 %count, i64 %threads) {
  %function = load ptr, ptr @weft.table, align 8
  tail call void %function(ptr %body, ptr %environment, i64 %count, i64 %threads)
  ret void
}

define hidden ptr @weft_allocate(i64 %bytes) {
  %function = load ptr, ptr getelementptr ([4 x ptr], ptr @weft.table, i64 0, i64 1), align 8
  %made = tail call ptr %function(i64 %bytes)
  ret ptr %made
}

define hidden void @weft_release(ptr %pointer) {
  %function = load ptr, ptr getelementptr ([4 x ptr], ptr @weft.table, i64 0, i64 2), align 8
  tail call void %function(ptr %pointer)
  ret void
}

define hidden void @weft_ahead(i64 %place, i64 %bytes, i64 %most) {
  %function = load ptr, ptr getelementptr ([4 x ptr], ptr @weft.table, i64 0, i64 3), align 8
  tail call void %function(i64 %place, i64 %bytes, i64 %most)
  ret void
}

define i32 @weft_startup() nounwind {
  %code = call i32 @weft.startup()
  ret i32 %code
}
"""


def link_form(program: Program, objects: Sequence[bytes], seal: str, target: Target) -> bytes:
    """The library; a TargetError where no linker is found, or the target has no native runtime."""
    assert target.spec.startup is not None
    check = target.spec.startup(target, objects)
    if not llvm_compile.is_native(target) and "@syscall" not in check:
        # LLVM reads assembly for this machine alone. What the check asks by it, /proc/cpuinfo tells before.
        check = "define internal i32 @weft.startup() nounwind {\n  ret i32 0\n}\n"
    text = f'target triple = "{target.triple}"\n{check}{_BRIDGE}\n@{seal} = constant i8 0\n'
    codes = [*objects, llvm_compile.emit_object(text, target), _runtime_object(target)]
    drivers = [step.symbol for step in program.steps if isinstance(step, NativeStep)]
    shown = "; ".join([*drivers, seal, "weft_bind", "weft_startup", f"{OWN}*"])
    with tempfile.TemporaryDirectory(prefix="weft-link-") as folder:
        path = Path(folder) / "form.so"
        llvm_compile.link_shared(codes, path, target, exported=shown)
        return path.read_bytes()


@functools.lru_cache(maxsize=4)
def _runtime_object(target: Target) -> bytes:
    """The native runtime under names of its own."""
    return llvm_compile.emit_object(re.sub(r"@weft_(?=\w)", f"@{OWN}", native_ir(target.triple)), target)

"""Object code of LLVM modules that every process needs, kept in the cache folder.

In: the text of a module and a target machine. Out: its object file, compiled now or by an earlier process. Reading it
takes a millisecond where compiling takes a hundred, and leaves most of LLVM untouched in memory.

A file is its SHA-256 and the object code; it is named by a hash of the text, the machine and LLVM. One that does not
fit its checksum is made again. `WEFT_CACHE=0` turns this off.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from weft.core.knobs import knobs

_MOST_FILES = 64


def cached_object(text: str, machine: Any) -> bytes:
    """The object file of a module."""
    if not knobs.cache:
        return _compile(text, machine)
    facts = (text, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), llvmlite.__version__)
    name = hashlib.sha256("\0".join((*facts, str(llvm.llvm_version_info))).encode()).hexdigest()[:40]
    path = Path(knobs.cache_dir) / "runtime" / f"{name}.o"
    found = _read(path)
    if found is None:
        found = _compile(text, machine)
        _write(path, found)
    return found


def _compile(text: str, machine: Any) -> bytes:
    module = llvm.parse_assembly(text)
    module.verify()
    made: bytes = machine.emit_object(module)
    return made


def _read(path: Path) -> bytes | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def _write(path: Path, code: bytes) -> None:
    """Keeps a file, where that is possible; it appears whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        others = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in others[: max(0, len(others) - _MOST_FILES + 1)]:
            old.unlink(missing_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except OSError:
        return

"""Shared libraries for the device server's tests: from C, and of tensor expressions."""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from weft import te
from weft.builder import build
from weft.codegen.llvm.generate import entry_symbol
from weft.pool.jobs import library_of
from weft.pool.server import ARCHITECTURES, can_count, emulator_of, host_architecture

TRIPLES = {
    "aarch64": "aarch64-unknown-linux-gnu",
    "armv7": "armv7-unknown-linux-gnueabihf",
    "riscv64": "riscv64-unknown-linux-gnu",
    "x86_64": "x86_64-unknown-linux-gnu",
}


def need_compiler() -> None:
    """Skips where nothing compiles a device server."""
    if platform.system() != "Linux":
        pytest.skip("device servers run on Linux")
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("there is no ziglang here to compile device servers with")


def need_emulator(architecture: str, counts: bool = False) -> None:
    """Skips where QEMU does not run an architecture, or takes no plugins."""
    need_compiler()
    found = emulator_of(architecture)
    if found is None:
        pytest.skip(f"there is no emulator of {architecture} here (Debian: qemu-user)")
    if counts and not can_count(found):
        pytest.skip(f"{found} takes no plugins (Debian: qemu-user, not qemu-user-static)")


def from_c(text: str, architecture: str | None = None) -> bytes:
    """The library of a C program without a C library."""
    triple = ARCHITECTURES[architecture or host_architecture()][0]
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "x.c", Path(folder) / "x.so"
        source.write_text(f"#include <stdint.h>\n{text}")
        command = [sys.executable, "-m", "ziglang", "cc", "-target", triple, "-shared", "-nostdlib", "-O1", "-fPIC"]
        subprocess.run([*command, "-Wl,--hash-style=both", "-o", str(made), str(source)], check=True)
        return made.read_bytes()


def product(triple: str) -> tuple[bytes, str, np.ndarray, np.ndarray]:
    """A matrix product for a machine: its library, its function, and arrays for it."""
    A, B = te.placeholder((24, 40), name="A"), te.placeholder((40, 36), name="B")
    k = te.reduce_axis(40, "k")
    C = te.compute((24, 36), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    made = build(te.create_schedule(C), [A, B, C], triple, plan=True)
    made = getattr(made, "built", made)
    random = np.random.default_rng(0)
    a, b = random.standard_normal((24, 40), "float32"), random.standard_normal((40, 36), "float32")
    return library_of(made), entry_symbol(made.lowered.name), a, b

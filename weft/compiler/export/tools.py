"""The tools that put a library together, for any machine: assembler, archiver and linkers of the ziglang package.

For this machine the system's own C compiler does where ziglang is not installed.

Weights are given to the assembler as a file (`.incbin`): a compiler would hold all of them in memory several times. In
the library they lie in a section of constants, which the loader maps lazily and shares between processes.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from weft.codegen.llvm.compile import is_native
from weft.core.errors import TargetError
from weft.core.install import hint
from weft.runtime.model.module_file import ALIGNMENT
from weft.targets.base import Target

_SYSTEMS = {"linux": "linux", "windows": "windows", "apple": "macos", "darwin": "macos", "macosx": "macos"}


def zig() -> list[str] | None:
    """The command that runs zig's tools; None where it is not installed."""
    return [sys.executable, "-m", "ziglang"] if importlib.util.find_spec("ziglang") else None


def zig_target(triple: str) -> str:
    """What zig calls a machine: its processor, system and binary interface."""
    processor, *rest = triple.split("-")
    processor = "arm" if processor.startswith("arm") and not processor.startswith("arm64") else processor
    processor = {"arm64": "aarch64", "amd64": "x86_64"}.get(processor, processor)
    system = next((name for part in rest for start, name in _SYSTEMS.items() if part.startswith(start)), "freestanding")
    interface = {"linux": rest[-1], "windows": "gnu"}.get(system)
    return "-".join(filter(None, (processor, system, interface)))


def object_format(target: Target) -> str:
    """The kind of object files that a machine has: elf, coff, macho or wasm."""
    kind = zig_target(target.triple)
    if kind.startswith("wasm"):
        return "wasm"
    return "coff" if "-windows" in kind else "macho" if "-macos" in kind else "elf"


def run(command: Sequence[str], what: str) -> None:
    """Runs a tool; what it complains of is a TargetError."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise TargetError(f"{what} failed ({' '.join(command[:5])} …): {done.stderr.strip()[-2000:]}")


def tool(name: str, target: Target) -> list[str]:
    """The command of a tool for a machine: zig's, else the system's."""
    found = zig()
    if found is not None:
        return [*found, name, *(["-target", zig_target(target.triple)] if name == "cc" else [])]
    system = shutil.which(name) if is_native(target) else None
    if system is None:
        raise TargetError(f"there is no {name} for {target.name} here: install the ziglang package ({hint('link')})")
    return [system]


_SECTIONS = {
    "elf": '.section .note.GNU-stack,"",%progbits\n.section {section},{flags},%progbits\n.hidden {symbol}',
    "coff": '.section .rdata,"dr"',
    "macho": ".section __TEXT,__const\n.private_extern {symbol}",
    "wasm": '.section .rodata.{symbol},"",@\n.hidden {symbol}',
}


def weights_object(weights: Path, symbol: str, made: Path, target: Target) -> None:
    """An object file that defines a symbol: the bytes of a file."""
    form = object_format(target)
    # On x86-64 code reaches 2 GB around itself: large data has a section that linkers put behind everything else.
    section, flags = (".lrodata", '"al"') if target.triple.startswith("x86_64") else (".rodata", '"a"')
    symbol = f"_{symbol}" if form == "macho" else symbol
    size = f".size {symbol}, {weights.stat().st_size}\n" if form in ("elf", "wasm") else ""
    text = _SECTIONS[form].format(section=section, flags=flags, symbol=symbol)
    file = weights.as_posix().replace("\\", "\\\\").replace('"', '\\"')
    lines = [text, f".globl {symbol}", f".balign {ALIGNMENT}", f"{symbol}:", f'.incbin "{file}"', size]
    compile_text("\n".join(lines), ".s", made, target)


def compile_text(text: str, ending: str, made: Path, target: Target) -> None:
    """An object file of assembly (.s) or LLVM IR (.ll)."""
    source = made.with_suffix(ending)
    source.write_text(text, encoding="utf-8")
    run([*tool("cc", target), "-w", "-c", str(source), "-o", str(made)], f"assembling for {target.name}")


def archive(objects: Sequence[Path], made: Path, target: Target) -> None:
    """A static library of object files."""
    run([*tool("ar", target), "rcs", str(made), *map(str, objects)], f"archiving for {target.name}")


def link_wasm(objects: Sequence[Path], made: Path, exported: Sequence[str], target: Target) -> None:
    """A WebAssembly module; functions that no object defines are its imports."""
    options = ["--no-entry", "--allow-undefined", "--stack-first", "-z", "stack-size=1048576", "--strip-debug"]
    names = [f"--export={name}" for name in exported]
    run([*tool("wasm-ld", target), *options, *names, "-o", str(made), *map(str, objects)], "linking WebAssembly")

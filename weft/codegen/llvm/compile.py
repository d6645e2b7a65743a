"""From LLVM IR text to machine code: optimisation, just-in-time linking, object files, assembly, shared libraries.

LLVM ends the whole process when it cannot select an instruction. Code for this machine is compiled here; code for any
other is compiled in a child process (`child.py`), whose end becomes a TargetError.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from weft.codegen.llvm import child
from weft.codegen.llvm.context import SUMS_IN_MEMORY, Machine
from weft.core import model
from weft.core.errors import InternalError, TargetError
from weft.core.install import hint
from weft.runtime.jit import JitModule, defined_names, known_symbols

_CHILD_SECONDS = 300
_DECLARED = re.compile(r'\ndeclare [^@]*@"?([\w.$]+)"?\(')


def is_native(target: Machine) -> bool:
    """Whether a target is of this machine's family, so that LLVM can be trusted to compile for it in this process."""
    return child.same_machine(target.triple, child.host_triple())


def feature_text(target: Machine) -> str:
    """The features as LLVM takes them: "+avx2,+fma,-avx512fp16"."""
    return ",".join(f if f[0] in "+-" else f"+{f}" for f in sorted(target.features))


_VECTOR = re.compile(r"<\d+ x (?!ptr)\w+>")
_SHAPED_LOOP = re.compile(r"\n  br i1 .*!llvm\.loop")
_SCALAR_LOOP = re.compile(r"add nuw nsw i64 %\S+, 1\n.*icmp slt .*\n  br i1 [^!\n]*$", re.MULTILINE)
_PRODUCT = re.compile(r"= (?:fmul |call [^@\n]*@llvm\.fm)")
_NARROWED = re.compile(r"= trunc <")


def tuning_of(ir_text: str) -> str:
    """What LLVM should add to a program: next to nothing where its loops have vectors of their own, or there are none
    ("shaped", or "straight" where they hold much more than a register tile), its vectorizers where they do not
    ("plain"), else both ("mixed"). What only moves data gains from short sums of addresses ("simplified"), and from the
    rest of LLVM's passes nothing (42 such kernels on a Neoverse N1: 0.998 of the time in the mean, at most 1.019).
    """
    if not _VECTOR.search(ir_text):
        return "plain" if " = phi " in ir_text else "shaped"
    loops, products = len(_SHAPED_LOOP.findall(ir_text)), len(_PRODUCT.findall(ir_text))
    scalar = len(_SCALAR_LOOP.findall(ir_text))
    if 2 * scalar > loops or (scalar and not products):
        return "mixed"
    if not products:
        return "simplified"
    return "straight" if products > model.STRAIGHT_PRODUCTS * max(loops, 1) else "shaped"


def tuning_for(ir_text: str, target: Machine) -> str:
    """What LLVM should add to a program for a machine: `tuning_of`, or all of the short way ("simplified").

    That takes sums that a loop keeps in memory into registers (13 % of an LSTM on x86; a Neoverse N1 runs a language
    model's 1.12 times as fast, four layers 1.18 to 1.6 times, three alike). On x86 it also makes operations on bytes of
    those on wider numbers (half of the instructions of weights of four bits). Without AVX-512BW, LLVM 22 stops at
    comparisons of bytes that its own passes would have changed. What only moves data runs as before by it on x86, too
    (48 kernels on an Emerald Rapids, busy: 1.003 of the time in the mean), but for pools of maxima (up to 1.25).
    """
    tuning = tuning_of(ir_text)
    if not child.keeps_addresses(tuning):
        pools = tuning == "simplified" and not child.is_arm(target.triple) and "= fcmp " in ir_text
        return "mixed" if pools else tuning
    lacks_bytes = "avx512f" in target.features and "avx512bw" not in target.features
    bytes_first = not child.is_arm(target.triple) and (lacks_bytes or _NARROWED.search(ir_text) is not None)
    return "simplified" if bytes_first or SUMS_IN_MEMORY in ir_text else tuning


def _parse(ir_text: str) -> Any:
    try:
        return child.parse(ir_text)
    except RuntimeError as error:
        raise InternalError(f"the generated LLVM IR is not valid: {error}") from None


# --------------------------------------------------------------------------------------------- into this process


def jit(ir_text: str, target: Machine) -> tuple[Callable[[str], int], Any]:
    """Machine code in this process: a function from symbol to address, and what owns the code (keep it)."""
    _on_host(target)
    loaded = load([emit_object(ir_text, target)], defined_names(ir_text), external_names(ir_text), target)
    return loaded.address, loaded


def load(objects: Iterable[bytes], names: Iterable[str], externals: Iterable[str], target: Machine) -> JitModule:
    """Functions of object files in this process; `externals` are the C functions that they call."""
    _on_host(target)
    return JitModule(objects, names, known_symbols(externals))


def _on_host(target: Machine) -> None:
    if not target.is_host:
        raise TargetError(
            f"{target.name} is for another machine ({target.triple}, {target.cpu}): its code does not run here"
        )


def external_names(ir_text: str) -> list[str]:
    """The C functions that a module calls, the native runtime's own left out."""
    return [name for name in _DECLARED.findall(ir_text) if not name.startswith(("llvm.", "weft_"))]


# -------------------------------------------------------------------------------------------------- into a file


def emit_object(ir_text: str, target: Machine, tuning: str | None = None) -> bytes:
    """An object file (position-independent); for another machine it is made in a child process.

    `tuning` is what LLVM should add, where its text does not tell ("called": a driver, which only calls kernels).
    """
    return _emit(ir_text, target, "object", tuning)


def emit_assembly(ir_text: str, target: Machine) -> str:
    """The assembly of the optimised module."""
    return _emit(ir_text, target, "assembly").decode()


def optimized_text(ir_text: str, target: Machine) -> str:
    """The LLVM IR after optimisation, to read."""
    return _emit(ir_text, target, "llvm").decode()


def _emit(ir_text: str, target: Machine, form: str, tuning: str | None = None) -> bytes:
    request = {
        "triple": target.triple, "cpu": target.cpu, "features": feature_text(target), "form": form,
        "tuning": tuning or tuning_for(ir_text, target),
    }  # fmt: skip
    if is_native(target):
        return child.emit(_parse(ir_text), request)
    return _emit_in_child(ir_text, target, request)


def _emit_in_child(ir_text: str, target: Machine, request: dict[str, str]) -> bytes:
    code, output, complaints = run_child(ir_text, request)
    if code != 0 or not output:
        lines = [line for line in complaints.splitlines() if line.strip()]
        reason = next((line for line in lines if "LLVM ERROR" in line), lines[-1] if lines else f"exit code {code}")
        raise TargetError(f"LLVM cannot make code for {target.name} ({target.triple}): {reason}")
    return output


def run_child(ir_text: str, request: dict[str, str]) -> tuple[int, bytes, str]:
    """A request (see `child`) in a process of its own: its exit code, what it made, and what LLVM complained of."""
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, "-m", "weft.codegen.llvm.child"]
    message = json.dumps(request).encode() + b"\n" + ir_text.encode()
    try:
        done = subprocess.run(command, input=message, capture_output=True, env=environment, timeout=_CHILD_SECONDS)
    except subprocess.TimeoutExpired:
        raise TargetError(f"LLVM did not finish code for {request['triple']} in {_CHILD_SECONDS} seconds") from None
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def link_shared(
    objects: Sequence[bytes | Path], path: str | os.PathLike[str], target: Machine, exported: str | None = None
) -> None:
    """A shared library of object files. Symbols that they do not define are looked up when the library is loaded.

    `exported` is a pattern: only names that match it are seen from outside, and the library names itself and the C
    libraries that it needs, so that a program can be linked with it.
    """
    if not objects:
        raise TargetError("there are no object files to link")
    with tempfile.TemporaryDirectory(prefix="weft-link-") as folder:
        files = []
        for number, data in enumerate(objects):
            file = os.path.join(folder, f"part{number}.o")
            if isinstance(data, bytes):
                Path(file).write_bytes(data)
            files.append(file if isinstance(data, bytes) else os.fspath(data))
        linker = _linker(target)
        options = [] if exported is None else _options(linker, os.path.basename(path), exported, Path(folder), target)
        command = linker + ["-o", os.fspath(path), *files, *options]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise TargetError(
            f"linking for {target.name} failed ({' '.join(command[:4])} …): {done.stderr.strip()[-2000:]}"
        )


def _options(linker: list[str], name: str, exported: str, folder: Path, target: Machine) -> list[str]:
    """What makes a library fit to be linked with: its name, what it shows, and the C libraries that it needs."""
    script = folder / "exported.map"
    script.write_text(f"{{ global: {exported}; local: *; }};\n")
    options = [f"-soname={name}", f"--version-script={script}"]
    if "ld.lld" not in linker:
        return [f"-Wl,{option}" for option in options] + ["-lm"]
    # LLD knows no system libraries: it is shown empty ones of the same names, and the loader finds the real ones.
    empty = folder / "empty.o"
    empty.write_bytes(emit_object(f'target triple = "{target.triple}"\n', target))
    for library in ("libc.so",) if "musl" in target.triple else ("libm.so.6", "libc.so.6"):
        stub = folder / library
        subprocess.run([*linker, f"-soname={library}", "-o", str(stub), str(empty)], capture_output=True, check=True)
        options += ["--no-as-needed", str(stub)]
    return options


def _linker(target: Machine) -> list[str]:
    """The command that links for a target: LLD from the ziglang package, else the host's own C compiler."""
    wasm = target.triple.startswith("wasm")
    if importlib.util.find_spec("ziglang") is not None:
        zig = [sys.executable, "-m", "ziglang"]
        if wasm:
            return [*zig, "wasm-ld", "--no-entry", "--export-all", "--allow-undefined"]
        return [*zig, "ld.lld", "-shared"]
    if is_native(target) and not wasm:
        for compiler in ("cc", "gcc", "clang"):
            found = shutil.which(compiler)
            if found:
                # Device servers find symbols by the older of the two tables.
                linux = ["-Wl,--no-as-needed,--hash-style=both", "-lm"] if "linux" in target.triple else []
                return [found, "-shared", *linux]
    raise TargetError(f"there is no linker for {target.name} here: install the ziglang package ({hint('link')})")

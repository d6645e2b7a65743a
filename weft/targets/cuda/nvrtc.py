"""CUDA C to machine code (cubin) or PTX in this process, by NVRTC: no nvcc on the user's machine, no GPU needed.

    compile_source(text, "sm_90a")     -> bytes of a cubin
    compile_ptx(text, "sm_90a")        -> PTX as text

The library comes from the pip package `nvidia-cuda-nvrtc` or from the system.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from pathlib import Path

from weft.core.errors import TargetError
from weft.core.install import hint
from weft.targets.cuda.driver import first_library

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
_PARTS = ("cu13/lib", "cuda_nvrtc/lib", "cu12/lib")
_SYSTEM = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/lib/x86_64-linux-gnu")
MISSING = (
    "CUDA code needs NVRTC, NVIDIA's run-time compiler, and it was not found: install it with "
    f"{hint('cuda')}, or install the CUDA toolkit"
)


def _folders() -> list[Path]:
    """Where the libraries may lie: the pip package's folder first, then the system's."""
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or ()) if spec is not None else []
    found = [Path(root) / part for root in roots for part in _PARTS]
    return [folder for folder in (*found, *map(Path, _SYSTEM)) if folder.is_dir()]


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    for folder in _folders():
        # NVRTC looks for this one by name when it compiles.
        first_library(sorted(folder.glob("libnvrtc-builtins.so*")), ctypes.RTLD_GLOBAL)
        found = first_library(sorted(folder.glob("libnvrtc.so.*"), key=lambda path: ".alt." in str(path)))
        if found is not None:
            return found
    found = first_library(_NAMES)
    if found is None:
        raise TargetError(MISSING)
    return found


def is_available() -> bool:
    """Whether NVRTC is there."""
    try:
        _library()
    except TargetError:
        return False
    return True


def version() -> str:
    """Which NVRTC it is."""
    numbers = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(*map(ctypes.byref, numbers)))
    return ".".join(str(number.value) for number in numbers)


def include_folders() -> list[Path]:
    """Folders with the CUDA headers (cuda_fp16.h), where the pip package or a toolkit brings them."""
    found = [*[folder.parent / "include" for folder in _folders()], Path("/usr/local/cuda/include")]
    return [folder for folder in dict.fromkeys(found) if (folder / "cuda_fp16.h").is_file()]


def compile_source(source: str, architecture: str, name: str = "program") -> bytes:
    """CUDA C as a cubin for one architecture ("sm_90a")."""
    return _compile(source, architecture, name, "nvrtcGetCUBIN")


def compile_ptx(source: str, architecture: str, name: str = "program") -> str:
    """CUDA C as PTX."""
    virtual = architecture.replace("sm_", "compute_")
    return _compile(source, virtual, name, "nvrtcGetPTX").rstrip(b"\0").decode()


def _compile(source: str, architecture: str, name: str, result: str) -> bytes:
    library = _library()
    program = ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None))
    try:
        given = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device", "--diag-suppress=177"]
        given += [f"--include-path={folder}" for folder in include_folders()]
        flags = (ctypes.c_char_p * len(given))(*[option.encode() for option in given])
        code = library.nvrtcCompileProgram(program, len(given), flags)
        if code:
            raise TargetError(_explain(source, architecture, name, _bytes(program, "nvrtcGetProgramLog").decode()))
        return _bytes(program, result)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(program: ctypes.c_void_p, getter: str) -> bytes:
    library = _library()
    size = ctypes.c_size_t()
    _check(getattr(library, f"{getter}Size")(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    _check(getattr(library, getter)(program, data))
    return data.raw


def _check(code: int) -> None:
    if code:
        library = _library()
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise TargetError(f"NVRTC failed: {library.nvrtcGetErrorString(code).decode()}")


def _explain(source: str, architecture: str, name: str, log: str) -> str:
    """The compiler's first complaints, each with the source line it speaks of."""
    lines = source.splitlines()
    shown: list[str] = []
    for line in log.rstrip("\0\n ").splitlines():
        shown.append(f"  {line}")
        place = re.match(rf"{re.escape(name)}\.cu\((\d+)\)", line)
        if place and 0 < int(place[1]) <= len(lines):
            shown.append(f"    {int(place[1])} | {lines[int(place[1]) - 1].strip()}")
        if len(shown) > 30:
            shown.append("  …")
            break
    return f"NVRTC could not compile {name} for {architecture}:\n" + "\n".join(shown)

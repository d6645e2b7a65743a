"""Object code in the cache folder: of modules that every process needs, and of single kernels.

In: the text of a module and a target machine. Out: its object file, compiled now or by an earlier process. Reading it
takes a millisecond where compiling takes a hundred, and leaves most of LLVM untouched in memory. A kernel is kept as
soon as it is made: a compile that is stopped finds it again, and so does another model.

A file is its SHA-256 and the object code; it is named by a hash of the text, the machine, LLVM, and this package's own
source, which makes and links it. One that does not fit its checksum is made again. `WEFT_CACHE=0` turns this off.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from weft.core import model
from weft.core.knobs import knobs
from weft.runtime.cache_folder import cache_folder, read_file, read_or_remove, remove, write_whole

logger = logging.getLogger("weft.cache")


def cached_object(text: str, machine: Any) -> bytes:
    """The object file of a module that every process needs."""
    facts = (text, str(machine.triple), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    folder = cache_folder("runtime") if knobs.cache else None
    return kept_object(folder, (*facts, _source()), lambda: _compile(text, machine), model.OBJECTS_KEPT)


def kept_object(
    folder: Path | None, facts: Sequence[str], make: Callable[[], bytes], most: int, least_seconds: float = 0.0
) -> bytes:
    """The object file that these facts decide, from a folder or made now; then it is one of at most so many there.

    What takes less processor time than `least_seconds` is not worth a file.
    """
    if folder is None:
        return make()
    versions = (llvmlite.__version__, str(llvm.llvm_version_info))
    path = folder / f"{hashlib.sha256(repr((*facts, *versions)).encode()).hexdigest()[:40]}.o"
    found = read_or_remove(path, lambda: _read(path))
    if found is None:
        start = time.thread_time()
        found = make()
        if time.thread_time() - start >= least_seconds:
            _write(path, found, most)
    return found


@functools.lru_cache(maxsize=1)
def _source() -> str:
    """A hash of this package: how object code is asked for and linked is no fact of the text."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _compile(text: str, machine: Any) -> bytes:
    module = llvm.parse_assembly(text)
    module.verify()
    made: bytes = machine.emit_object(module)
    return made


def _read(path: Path) -> bytes:
    data = read_file(path)
    if hashlib.sha256(data[32:]).digest() != data[:32]:
        raise ValueError("it does not fit its checksum")
    return data[32:]


def _write(path: Path, code: bytes, most: int) -> None:
    """Keeps a file, where that is possible."""
    try:
        with os.scandir(path.parent) as files:
            others = []
            for one in files:
                with contextlib.suppress(FileNotFoundError):  # another process has finished or removed it
                    others.append((one.stat(follow_symlinks=False).st_mtime, one.path))
        for _, old in sorted(others)[: max(0, len(others) - most + 1)]:
            remove(Path(old))
        with write_whole(path) as file:
            file.write(hashlib.sha256(code).digest() + code)
    except OSError as error:
        logger.info("%s could not be kept in the cache: %s", path.name, error)

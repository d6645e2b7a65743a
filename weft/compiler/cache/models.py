"""Compiled models on disk, so that compiling the same model again is a matter of reading it.

In: a graph, the shapes (and values) that it is compiled for, and the target. Out: a compiled form, if one was kept. An
entry is a file under `<cache_dir>/models`, named by a hash of everything that decides what is compiled: the graph and
its constants, the shapes, the target's facts, the settings, operators that the user registered, and Weft itself, its
own source included. A changed model, operator, compiler or setting is therefore another entry, and none is ever changed
after it was written.

Files appear whole (they are renamed into place) and carry a checksum. Whatever goes wrong with one means that it is
removed and the model compiled: several processes may write, read and clear the same folder at once. Where the folder
cannot be written, or others can (`runtime/cache_folder.py`), nothing is kept and compiling goes on. `WEFT_CACHE=0`
turns it off; `WEFT_CACHE_MEGABYTES` bounds it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding as llvm

from weft.compiler.cache.code_key import Opaque, operators_key, target_key
from weft.core import model
from weft.core.knobs import knobs
from weft.core.version import VERSION
from weft.graph.ir import Array, Graph, dtype_name
from weft.graph.text import constant_table, format_graph
from weft.plan import overrides
from weft.runtime.abi import abi_hash
from weft.runtime.cache_folder import (
    cache_folder,
    mark_used,
    read_file,
    read_or_remove,
    remove,
    write_whole,
)
from weft.runtime.fingerprint import fingerprint, fingerprint_file
from weft.targets.base import Target, text_of

Form = TypeVar("Form")

logger = logging.getLogger("weft.compiler")

_ABANDONED_SECONDS = 3600
"""A file that was begun so long ago and is not in place yet will never be."""

NO_MATTER = frozenset(
    {
        "num_threads",
        "pin_threads",
        "thread_priority",
        "cache_dir",
        "cache",
        "cache_megabytes",
        "debug",
        "verify",
        "sizes",
        "forms_megabytes",
        "tensor_megabytes",
        "records",
    }
)
"""Settings that do not change what is compiled. Those not named here do."""


def folder() -> Path:
    """Where entries are."""
    return knobs.cache_dir / "models"


@dataclass(frozen=True)
class Entry:
    """The place of one compiled form, and the shapes that it is for."""

    path: Path
    shapes: Mapping[str, Sequence[int]]

    def read(self, read: Callable[[Path], Form]) -> Form | None:
        """The form that is kept here; None where there is none."""
        found = read_or_remove(self.path, lambda: read(self.path))
        if found is not None:
            mark_used(self.path)
        return found

    def write(self, arrays: Iterable[Array], write: Callable[[Path], None]) -> Path | None:
        """Keeps a form of these arrays, and says where; where that is not possible, nothing happens."""
        limit = knobs.cache_megabytes << 20
        weights = sum(array.nbytes for array in arrays)
        if weights > limit // 2:
            logger.info("%s is not kept in the cache: %d MB is over half of its limit", self.path.name, weights >> 20)
            return None
        try:
            write(self.path)
            if weights >= model.ANNOUNCED_BYTES:
                said = "`weft cache` lists and clears, WEFT_CACHE=0 keeps nothing"
                logger.warning("%.1f GB are kept in the cache, in %s: %s", weights / 2**30, self.path.parent, said)
            clear(limit)
        except Exception as error:  # noqa: BLE001 — the model is compiled whatever happens
            logger.info("%s could not be kept in the cache: %r", self.path.name, error)
            return None
        return self.path


def entry_for(
    graph: Graph,
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Array],
    target: Target,
    precision: str | None,
) -> Entry | None:
    """Where the form of a graph for these shapes is kept; None where none is kept."""
    place = _folder_for(target)
    if place is None:
        return None
    constants = constant_table(graph)
    if any(array.dtype == object for array in (*constants.values(), *values.values())):
        return None
    described = {
        "graph": _without_invented_names(graph),
        "constants": [[name, *_described(array)] for name, array in constants.items()],
        "shapes": [[name, list(shape)] for name, shape in shapes.items()],
        "values": [[name, *_described(array)] for name, array in values.items()],
    }
    name = _name(described, target, precision)
    return None if name is None else Entry(place / f"{name}.weft", shapes)


def _folder_for(target: Target) -> Path | None:
    """The folder where forms for a target are kept; None where none are, or where others could put some."""
    return cache_folder("models") if knobs.cache and target.is_host else None


def _name(described: dict[str, Any], target: Target, precision: str | None) -> str | None:
    """The name of an entry: a hash of what is compiled, for what, how and by what; None where that cannot be said."""
    try:
        registered = operators_key() + target_key(target.spec)
    except Opaque as reason:
        logger.info("nothing is kept in the cache: %s", reason)
        return None
    whole = {
        **described,
        "target": text_of(target),
        "precision": precision,
        "knobs": [[one.name, repr(one.value)] for one in knobs.describe() if one.name not in NO_MATTER],
        "operators": registered,
        "schedules": overrides.identity(),
        "weft": weft_itself(),
    }
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:40]


def _without_invented_names(graph: Graph) -> str:
    """The graph's text, with the sizes that inference named (anew each time) numbered in order."""
    given = {name for value in graph.inputs for name in _NAME.findall(repr(value.type))}
    numbers: dict[str, str] = {}

    def rename(match: re.Match[str]) -> str:
        name = match.group()
        return name if name in given else numbers.setdefault(name, f"size{len(numbers)}")

    lines = []
    for line in format_graph(graph).splitlines():
        left, equals, right = line.partition(" = ")
        if equals:
            left = _SIZES.sub(lambda match: _NAME.sub(rename, match.group()), left)
        lines.append(left + equals + right)
    return "\n".join(lines)


_SIZES = re.compile(r"(?<=\w\[)[^\]]*")
_NAME = re.compile(r"[A-Za-z_]\w*")


def _described(array: Array) -> list[Any]:
    return [dtype_name(array.dtype), list(array.shape), fingerprint(array).hex()]


@functools.lru_cache(maxsize=1)
def weft_itself() -> list[str]:
    """What compiles: the version, every line of the package, and the packages that it stands on."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} ".encode())
        digest.update(path.read_bytes())
    versions = [f"{name} {metadata.version(name)}" for name in ("numpy", "llvmlite", "ml_dtypes")]
    return [VERSION, digest.hexdigest(), sys.version, str(llvm.llvm_version_info), abi_hash(), *versions]


# ------------------------------------------------------------------------------------------------------------ files


@dataclass(frozen=True)
class FileEntry:
    """A model's file, by its bytes: a link to the compiled form, so that the file need not even be parsed."""

    link: Path
    source: Path
    bytes_of_source: bytes

    def find(self) -> Path | None:
        """The compiled form; None where there is none."""
        form = read_or_remove(self.link, lambda: _linked(self.link))
        return form if form is not None and form.exists() else None

    def keep(self, form: Path) -> None:
        """Links the file to a form; not where it takes weights from other files, which may change alone, nor where it
        was changed while it was compiled: the form is then of what came after.
        """
        try:
            if not self.is_same():
                return
            if _names(self.source, b"location"):
                return
            with write_whole(self.link) as link:
                link.write(form.name.encode())
        except (OSError, ValueError) as error:
            logger.info("%s could not be linked in the cache: %s", self.source.name, error)

    def is_same(self) -> bool:
        """Whether the file holds what it held."""
        return _bytes_of(self.source) == self.bytes_of_source


def _names(path: Path, word: bytes) -> bool:
    """Whether a word is somewhere in a file, which is at no time all in memory."""
    end = b""
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            if word in end + piece:
                return True
            end = piece[1 - len(word) :]
    return False


def _linked(link: Path) -> Path:
    """The compiled form that a link names."""
    name = read_file(link, 100).decode("ascii")
    if re.fullmatch(r"[0-9a-f]{40}\.weft", name) is None:
        raise ValueError("it names no compiled form")
    return link.parent / name


def file_entry(
    path: str | os.PathLike[str], shapes: Mapping[str, Sequence[Any]] | None, target: Target, precision: str | None
) -> FileEntry | None:
    """The entry of a model's file; None where nothing is kept."""
    place, source = _folder_for(target), Path(path)
    found = None if place is None else _bytes_of(source)
    if place is None or found is None:
        return None
    listed = [[n, [d if isinstance(d, int) else repr(d) for d in shape]] for n, shape in (shapes or {}).items()]
    name = _name({"file": found.hex(), "shapes": listed}, target, precision)
    return None if name is None else FileEntry(place / f"{name}.link", source, found)


def _bytes_of(path: Path) -> bytes | None:
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return fingerprint_file(file.fileno(), os.fstat(file.fileno()).st_size)
    except OSError:
        return None


# ------------------------------------------------------------------------------------------------------------ keeping


def usage() -> tuple[int, int]:
    """How many entries there are, and how many bytes they take."""
    sizes = [size for _, size, _ in entries() if size >= 0]
    return len(sizes), sum(sizes)


def clear(limit: int = 0) -> None:
    """Removes the entries that were not used for longest, until the others take at most so many bytes."""
    now = time.time()
    for path in folder().glob(".*"):
        try:
            if now - path.stat().st_mtime > _ABANDONED_SECONDS:
                remove(path)
        except OSError:
            continue
    for link in folder().glob("*.link"):
        try:
            if not _linked(link).exists():
                remove(link)
        except (OSError, ValueError):
            remove(link)
    found = sorted(entries())
    total = sum(size for _, size, _ in found)
    for _, size, path in found:
        if total <= limit:
            break
        remove(path)
        total -= size


def entries() -> list[tuple[float, int, Path]]:
    """The entries: when each was last used, its size, its place. One that another process removes is left out."""
    found = []
    for path in folder().glob("*.weft"):
        try:
            status = path.stat()
        except OSError:
            continue
        if not path.name.startswith("."):
            found.append((status.st_mtime, status.st_size, path))
    return found

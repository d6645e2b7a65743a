"""The cache folder, as far as it can be trusted: what is taken from it is run as machine code.

In: the name of a part ("models"). Out: its folder, made now and for this user only; None where somebody else owns it or
may write there, which a warning says once. Files in it appear whole (`write_whole`), and one that cannot be used goes
(`remove`), whatever it is.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from weft.core.knobs import knobs

logger = logging.getLogger("weft.cache")

_said: set[str] = set()


def cache_folder(part: str = "") -> Path | None:
    """The cache folder or a part of it; None where it cannot be made or is not this user's alone."""
    root = knobs.cache_dir
    folder = root / part
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        for one in (root, folder):
            one.mkdir(exist_ok=True, mode=0o700)
        problem = _problem(root) or _problem(folder)
    except OSError as error:
        logger.info("the cache folder %s cannot be made: %s", folder, error)
        return None
    if problem is not None and problem not in _said:
        _said.add(problem)
        logger.warning("%s; nothing is kept there or taken from there", problem)
    return folder if problem is None else None


def cache_problem() -> str | None:
    """Why the cache folder is not used although it is there; None where it is used, or is not there yet."""
    try:
        return _problem(knobs.cache_dir)
    except OSError:
        return None


def _problem(folder: Path) -> str | None:
    """Why others could put code into a folder; None where they cannot. (Windows says nothing of this by mode bits.)"""
    if not hasattr(os, "geteuid"):
        return None
    found = folder.stat()
    if found.st_uid != os.geteuid():
        return f"the cache folder {folder} belongs to another user: name one of your own with WEFT_CACHE_DIR"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others may write in the cache folder {folder}: remove it, or empty it and `chmod 700` it"
    return None


@contextmanager
def write_whole(path: Path, mode: int = 0o666, together: int = -1) -> Iterator[BinaryIO]:
    """A file that appears whole, under its name, when the block ends, and not at all where that fails.

    It gets the mode that any new file of this user gets (`mode`, less the umask), not a temporary file's; so many bytes
    are written `together`.
    """
    beside = path.with_name(f".{path.name}-{os.urandom(8).hex()}")
    try:
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None  # nobody knows the name of the other
    try:
        with os.fdopen(handle, "w+b", together) as file:
            yield file
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def read_file(path: Path, most: int = -1) -> bytes:
    """The bytes of a file, `most` of them; OSError where something else took its place: a pipe or device never ends."""
    # A pipe is opened without waiting for its other end.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no file")
        return file.read(most)


def read_facts(path: Path) -> dict[str, Any]:
    """What was measured and kept in a file; nothing where it is missing or damaged."""
    try:
        found = json.loads(read_file(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def mark_used(path: Path) -> None:
    """Notes that an entry was used now; one in a folder that can only be read is as good as any other."""
    try:
        os.utime(path)
    except OSError as error:
        logger.debug("that %s was used cannot be noted: %s", path.name, error)


def remove(path: Path) -> None:
    """Removes an entry, be it a file or whatever took its place."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        logger.info("%s cannot be removed from the cache: %s", path, error)


T = TypeVar("T")


def read_or_remove(path: Path, read: Callable[[], T]) -> T | None:
    """What a reader makes of an entry; None where there is none, or, after removing it, where it cannot be used.

    Whatever goes wrong inside a reader, the model can still be compiled: an entry never stands in the way of that.
    """
    try:
        return read()
    except FileNotFoundError:
        return None
    except Exception as error:  # noqa: BLE001 — whatever it is, the model is compiled instead
        logger.info("the cache's %s cannot be used and is removed: %r", path.name, error)
        remove(path)
        return None

"""The module file: a zip of a manifest, machine code and weights, and at its end a checksum.

    manifest.json    format, ABI, the model's signature, for each machine and set of shapes its steps     deflated
    code/N.o         object code of kernels and drivers                                                  deflated
    library/N.so     the code of one form, linked, which the system's loader opens                       stored
    weights.bin      every array, at offsets that are multiples of 64                                    stored
    (the zip's comment, the last bytes of the file)     checksum of all before it, and its signature where it has one

Arrays of strings stand in the manifest. With each set of shapes goes the report that was made when it was compiled.
A file is as dangerous as a shared library: its code is run. What protects the reader, in this order, before any of it
is run: the checksum, the signature where a key is given, format and ABI, the kinds of all fields (`manifest.py`); then
for each form the seal of its library (`stored.py`) or, where the compiler reads it, `compiler/saved/check_file.py`,
which believes no number. Weights are mapped, not read.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import stat
import struct
import weakref
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from weft.core.array_types import NARROW, PLAIN, element_bytes, numpy_type
from weft.core.errors import WeftError
from weft.core.version import VERSION
from weft.runtime.abi import FORMAT, abi_hash
from weft.runtime.fingerprint import checksum, digest
from weft.runtime.model.keys import Key, is_signature, read_key, signature_of
from weft.runtime.model.manifest import ModuleFileError, check_manifest
from weft.runtime.model.program import Array

ALIGNMENT = 64
TRAILER = "weft module: checksum {checksum:64} signature {signature:64}\n"
TRAILER_BYTES = len(TRAILER.format(checksum="", signature=""))
UNSIGNED = "-" * 64

MOST_SWELLING, MOST_SMALL = 100, 1 << 24
"""A packed member may be so many times as large when it is read, and so many bytes more."""

T = TypeVar("T")


def padded(size: int) -> int:
    """The room that an array of so many bytes takes."""
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def refusing(read: Callable[[], T], path: Path) -> T:
    """What reading gives; whatever goes wrong is a ModuleFileError that names the file."""
    try:
        return read()
    except OSError as error:
        raise ModuleFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # noqa: BLE001 — raised again, with the name of the file
        text = str(error) if isinstance(error, WeftError) else f"it is damaged ({error!r})"
        raise ModuleFileError(text if str(path) in text else f"{path} cannot be loaded: {text}") from error


class ModuleFile:
    """An opened module file, whose checksum (and signature, where a key is given) fits."""

    def __init__(self, path: Path, key: Key | None = None) -> None:
        self.path = path
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModuleFileError(f"{path} is no file")
        self._file = path.open("rb")
        weakref.finalize(self, self._file.close)
        size = self._file.seek(0, os.SEEK_END)
        if size <= TRAILER_BYTES:
            raise ModuleFileError(f"{path} is no Weft module: it has only {size} bytes")
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        prefer_large_pages(mapped)
        self.whole = memoryview(mapped)
        self.content = self.whole[:-TRAILER_BYTES]
        self.signature = self._trailer()
        if key is not None:
            self._check_signature(key)
        forget_pages(mapped)
        self.archive = zipfile.ZipFile(self._file)
        self.manifest = json.loads(self._member("manifest.json"))
        self._check_version()
        check_manifest(self.manifest)
        self.memory = self._stored("weights.bin", self.manifest["start"])
        self._check_arrays()
        self._arrays: dict[int, Array] = {}

    def _trailer(self) -> str:
        """The signature, from the last bytes of the file, whose checksum fits."""
        words = bytes(self.whole[-TRAILER_BYTES:]).decode("ascii", "replace").split()
        if words[:3] != ["weft", "module:", "checksum"] or len(words) != 6:
            raise ModuleFileError(
                f"{self.path} is no Weft module, or it was cut off, or an older Weft wrote it: compile the model again "
                "and save it"
            )
        if checksum(self.content, len(self.content)) != words[3]:
            raise ModuleFileError(f"{self.path} is damaged: it does not fit its checksum")
        return words[5]

    def _check_signature(self, key: Key) -> None:
        if self.signature == UNSIGNED:
            raise ModuleFileError(f"{self.path} is not signed: `weft sign {self.path} --key FILE` signs it")
        if not is_signature(self.signature, self.content, key):
            raise ModuleFileError(f"{self.path} was not signed with this key, or it was changed afterwards")

    def _check_version(self) -> None:
        """Refuses what another Weft wrote: its code may rely on what is not so here."""
        head = self.manifest if isinstance(self.manifest, dict) else {}
        names = ("format", "weft", "abi")
        found, wanted = [head.get(name) for name in names], [FORMAT, VERSION, abi_hash()]
        if found != wanted:
            said = [", ".join(f"{name} {value}" for name, value in zip(names, row)) for row in (found, wanted)]
            raise ModuleFileError(
                f"{self.path} was written by another Weft ({said[0][:120]}; this one has {said[1]}): compile the model "
                "again with this one and save it, or load it with the one that wrote it"
            )

    def _stored(self, name: str, skipped: int) -> memoryview:
        """A member that is stored as it is, as mapped memory, without so many bytes, up to where it is aligned."""
        info = self.archive.getinfo(name)
        names, extra = struct.unpack_from("<HH", self.whole, info.header_offset + 26)
        start = info.header_offset + 30 + names + extra
        data = self.whole[start + skipped : start + info.file_size]
        is_plain = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
        if not is_plain or (start + skipped) % ALIGNMENT or len(data) != info.file_size - skipped:
            raise ModuleFileError(f"{self.path} is damaged: its {name} cannot be mapped")
        return data

    def _check_arrays(self) -> None:
        """Arrays lie one behind another, as they were written, and fill the weights."""
        size = 0
        for number, row in enumerate(self.manifest["arrays"]):
            dtype, count, texts = row["dtype"], math.prod(row["shape"]), row.get("strings")
            if (dtype == "string") != (texts is not None) or texts is not None and len(texts) != count:
                raise ModuleFileError(f"array {number} is no {dtype[:40]}")
            if texts is None:
                if dtype not in PLAIN and dtype not in NARROW:
                    raise ModuleFileError(f"array {number} is no {dtype[:40]}")
                if row["offset"] != size:
                    raise ModuleFileError(f"array {number} does not follow the one before it")
                size += padded(count * element_bytes(dtype))
        if size != len(self.memory):
            raise ModuleFileError(f"the arrays take {size} bytes, and there are {len(self.memory)}")

    def array(self, number: int) -> Array:
        """An array over the mapped memory."""
        found = self._arrays.get(number)
        if found is None:
            row = self.manifest["arrays"][number]
            shape = tuple(row["shape"])
            if row["dtype"] == "string":
                found = np.array(row["strings"], object).reshape(shape)
            else:
                found = self.raw(number).view(numpy_type(row["dtype"])).reshape(shape)
            self._arrays[number] = found
        return found

    def raw(self, number: int) -> Array:
        """The bytes of an array that holds no strings: all that native code needs of a weight."""
        row = self.manifest["arrays"][number]
        size = math.prod(row["shape"]) * element_bytes(row["dtype"])
        return np.frombuffer(self.memory, np.uint8, size, row["offset"])

    def digests(self, form: Mapping[str, Any]) -> list[str]:
        """Of the weights of a form that may be indices: they are not tested again when they are used."""
        wide = [n for n in form["weights"] if self.manifest["arrays"][n]["dtype"] in INDEX_TYPES]
        return [index_digest(self.raw(number)) for number in wide]

    def code(self, number: int) -> bytes:
        """An object file."""
        return self._member(f"code/{number}.o")

    def library(self, number: int) -> bytes:
        """A shared library."""
        return self._member(f"library/{number}.so")

    def _member(self, name: str) -> bytes:
        """A member of the archive, whole; not one that swells as no real one does."""
        info = self.archive.getinfo(name)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or (
            info.file_size > MOST_SWELLING * info.compress_size + MOST_SMALL
        ):
            raise ModuleFileError(f"{self.path} is damaged: its {name} would take {info.file_size:,} bytes")
        with self.archive.open(info) as member:
            return member.read(info.file_size)


INDEX_TYPES = ("int32", "int64", "uint32", "uint64")


def index_digest(array: Array) -> str:
    """The digest of an array of whole numbers."""
    return digest(np.ascontiguousarray(array).data)


def close_file(file: BinaryIO, signature: str = UNSIGNED) -> None:
    """Fills the last bytes of a file that is being written: its checksum, and the signature."""
    file.flush()
    size = file.seek(0, os.SEEK_END) - TRAILER_BYTES
    found = checksum(file.fileno(), size)
    file.seek(size)
    file.write(TRAILER.format(checksum=found, signature=signature).encode())


def sign_module(path: str | os.PathLike[str], key: Key) -> None:
    """Signs a module file where it lies; what it holds is not changed."""
    place = Path(path)
    signature = signature_of(refusing(lambda: ModuleFile(place), place).content, key)
    with place.open("r+b") as file:
        file.seek(-len(signature) - 1, os.SEEK_END)
        file.write(f"{signature}\n".encode())


def check_signature(path: str | os.PathLike[str], key: Key) -> None:
    """Refuses a file that is damaged or was not signed with a key; nothing of it is run."""
    secret, place = read_key(key), Path(path)
    refusing(lambda: ModuleFile(place, secret), place)


def forget_pages(memory: mmap.mmap) -> None:
    """What a checksum has read is no memory of this process until it is used: some weights seldom are."""
    if hasattr(mmap, "MADV_DONTNEED"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_DONTNEED)


def prefer_large_pages(memory: mmap.mmap) -> None:
    """Asks for large pages where those of a mapped file are not in memory yet; small ones serve too."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)

"""Fingerprints of bytes: 32 bytes that nobody can make two different contents agree in.

In: an array, or anything that shows its bytes. Out: the root of a tree of SHA-256,

    leaf = SHA-256("leaf" + up to 1 MB of the bytes)         root = SHA-256("root" + how many bytes + the leaves)

whose leaves are computed by all cores at once: a core of today hashes 1.5 to 2 GB a second. Sums under fixed keys are
several times as fast, but whoever knows the keys solves for other bytes of the same sum, and a fingerprint names what
the cache takes to be the same model, or what a key signed.

The checksum of a file has CRC-32s for leaves: it finds damage, which nobody makes on purpose. It and `digest` need no
OpenSSL, which `hashlib` brings: 4 MB that a process with a small model would notice.
"""

from __future__ import annotations

import os
import threading
import zlib
from _blake2 import blake2b
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from weft.runtime.threads import get_threads

LEAF_BYTES = 1 << 20


def fingerprint(data: Any) -> bytes:
    """The fingerprint of an array's bytes (in C order), its type and shape left out; or of bytes.

    Of an array that lies in another order a few rows are copied at a time.
    """
    if isinstance(data, np.ndarray):
        if data.ndim > 1 and data.nbytes > LEAF_BYTES and not data.flags.c_contiguous:
            return _joined(data.nbytes, [_leaf(piece) for piece in _pieces(data)])
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    whole = memoryview(data)
    return _root(whole.nbytes, lambda start: whole[start : start + LEAF_BYTES])


def fingerprint_file(descriptor: int, size: int) -> bytes:
    """The fingerprint of the first bytes of an open file, which are at no time all in memory."""
    return _root(size, lambda start: os.pread(descriptor, min(LEAF_BYTES, size - start), start))


def mark(array: Any) -> int:
    """Tells in this process whether an array has the bytes that it had: by a keyed hash, 8 times as fast as SHA-256."""
    rows = np.atleast_1d(array)
    some = max(1, LEAF_BYTES * len(rows) // max(array.nbytes, 1))
    return hash((array.nbytes, *(hash(rows[at : at + some].tobytes()) for at in range(0, len(rows), some))))


def checksum(data: memoryview | int, size: int) -> str:
    """What tells that the first bytes of a memory, or of an open file (by its descriptor), are whole."""

    def leaf(start: int) -> bytes:
        many = min(LEAF_BYTES, size - start)
        part = os.pread(data, many, start) if isinstance(data, int) else data[start : start + many]
        return zlib.crc32(part).to_bytes(4, "little")

    return digest(size.to_bytes(8, "little") + b"".join(_map(leaf, range(0, size, LEAF_BYTES))))


def digest(data: Any) -> str:
    """A cryptographic hash of a few bytes, as 64 digits."""
    return blake2b(data, digest_size=32).hexdigest()


def _root(size: int, read: Callable[[int], bytes | memoryview]) -> bytes:
    """The root over so many bytes; `read` gives those of the leaf that starts somewhere."""
    return _joined(size, list(_map(lambda start: _leaf(read(start)), range(0, size, LEAF_BYTES))))


def _leaf(data: bytes | memoryview) -> bytes:
    return _sha256(b"leaf", data)


def _joined(size: int, leaves: list[bytes]) -> bytes:
    return _sha256(b"root" + size.to_bytes(8, "little"), b"".join(leaves))


def _sha256(*parts: bytes | memoryview) -> bytes:
    import hashlib

    made = hashlib.sha256()
    for part in parts:
        made.update(part)
    return made.digest()


def _pieces(data: Any) -> Iterator[memoryview]:
    """The leaves of an array in C order, from copies of some of its rows."""
    rows = max(1, 8 * LEAF_BYTES * len(data) // data.nbytes)
    rest: Any = np.zeros(0, np.uint8)
    for first in range(0, len(data), rows):
        some = np.ascontiguousarray(data[first : first + rows]).reshape(-1).view(np.uint8)
        rest = np.concatenate([rest, some]) if rest.size else some
        whole = rest.size - rest.size % LEAF_BYTES
        yield from (memoryview(rest[at : at + LEAF_BYTES]) for at in range(0, whole, LEAF_BYTES))
        rest = rest[whole:]
    if rest.size:
        yield memoryview(rest)


def _map(leaf: Callable[[int], bytes], starts: range) -> list[bytes]:
    """The leaves, by plain threads: nobody waits for a pool of them to be imported."""
    found: list[bytes] = [b""] * len(starts)
    stride = max(1, min(get_threads(), len(starts)))

    def share(first: int) -> None:
        for at in range(first, len(starts), stride):
            found[at] = leaf(starts[at])

    others = [threading.Thread(target=share, args=(at,), name="weft-hash") for at in range(1, stride)]
    for one in others:
        one.start()
    share(0)
    for one in others:
        one.join()
    return found

"""Fingerprints of bytes: 32 bytes that nobody can make two different contents agree in.

In: an array, or anything that shows its bytes. Out: the root of a tree of SHA-256,

    leaf = SHA-256("leaf" + up to 1 MB of the bytes)         root = SHA-256("root" + how many bytes + the leaves)

whose leaves are computed by all cores at once: a core of today hashes 1.5 to 2 GB a second. Sums under fixed keys are
several times as fast, but whoever knows the keys solves for other bytes of the same sum, and a fingerprint names what
the cache takes to be the same model. It is also the checksum of cache entries and module files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from weft.runtime.threads import get_threads

LEAF_BYTES = 1 << 20


def fingerprint(data: Any) -> bytes:
    """The fingerprint of an array's bytes (in C order), its type and shape left out; or of bytes."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    whole = memoryview(data)
    starts = range(0, whole.nbytes, LEAF_BYTES)

    def leaf(start: int) -> bytes:
        made = hashlib.sha256(b"leaf")
        made.update(whole[start : start + LEAF_BYTES])
        return made.digest()

    root = hashlib.sha256(b"root" + whole.nbytes.to_bytes(8, "little"))
    root.update(b"".join(_map(leaf, starts)))
    return root.digest()


def _map(leaf: Callable[[int], bytes], starts: range) -> list[bytes]:
    threads = min(get_threads(), len(starts))
    if threads < 2:
        return list(map(leaf, starts))
    with ThreadPoolExecutor(threads, thread_name_prefix="weft-hash") as pool:
        return list(pool.map(leaf, starts))

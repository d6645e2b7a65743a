"""Fingerprints: equal for equal bytes, different for every change, and right by a second way of computing them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from weft.runtime import fingerprint as module
from weft.runtime.fingerprint import fingerprint


def reference(array: np.ndarray) -> bytes:
    """The fingerprint by Python's own whole numbers."""
    data = array.tobytes()
    keys = hashlib.shake_256(b"weft fingerprint").digest(8 * (1024 + 8))
    digest = hashlib.sha256(len(data).to_bytes(8, "little"))
    whole = len(data) // 8192

    def half(text: bytes, at: int) -> int:
        return int.from_bytes(text[4 * at : 4 * at + 4], "little")

    for block in range(whole):
        words = data[block * 8192 : block * 8192 + 8192]
        for shift in (0, 16):
            total = 0
            for i in range(0, 2048, 2):
                low = (half(words, i) + half(keys, i + shift)) % 2**32
                high = (half(words, i + 1) + half(keys, i + 1 + shift)) % 2**32
                total += low * high
            digest.update((total % 2**64).to_bytes(8, "little"))
    digest.update(data[whole * 8192 :])
    return digest.digest()


@pytest.mark.parametrize("size", [0, 1, 100, 8191, 8192, 8193, 30000])
def test_it_is_what_the_text_says(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert fingerprint(data) == reference(data)


def test_every_change_is_seen():
    data = np.random.default_rng(0).standard_normal(5000).astype("float32")
    seen = {fingerprint(data), fingerprint(-data), fingerprint(data[::-1]), fingerprint(data[:-1])}
    swapped = data.copy()
    swapped[[0, 2]] = swapped[[2, 0]]
    flipped = data.copy()
    flipped[[1, 3]] *= -1
    blocks = np.roll(data, 2048)
    seen |= {fingerprint(swapped), fingerprint(flipped), fingerprint(blocks)}
    assert len(seen) == 7
    raw = data.view(np.uint8).copy()
    for at in range(0, raw.size, 97):
        raw[at] ^= 1 << (at % 8)
        assert fingerprint(raw) not in seen
        raw[at] ^= 1 << (at % 8)
    assert fingerprint(raw) in seen


def test_order_and_place_in_memory_do_not_matter():
    data = np.arange(40000, dtype="float32").reshape(200, 200)
    room = np.zeros(data.nbytes + 1, np.uint8)
    moved = room[1:].view("float32").reshape(data.shape)
    moved[...] = data
    assert fingerprint(moved) == fingerprint(data) == fingerprint(np.asfortranarray(data))
    assert module._block_sums.cache_info().currsize == 1

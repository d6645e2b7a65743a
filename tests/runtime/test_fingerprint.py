"""Fingerprints: equal for equal bytes, different for every change, also for those that an attacker computes."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from weft.core.knobs import knobs
from weft.runtime.fingerprint import LEAF_BYTES, checksum, fingerprint, mark


def reference(data: bytes) -> bytes:
    """The fingerprint as its text says."""
    parts = [data[at : at + LEAF_BYTES] for at in range(0, len(data), LEAF_BYTES)]
    leaves = b"".join(hashlib.sha256(b"leaf" + part).digest() for part in parts)
    return hashlib.sha256(b"root" + len(data).to_bytes(8, "little") + leaves).digest()


@pytest.mark.parametrize("size", [0, 1, 100, LEAF_BYTES - 1, LEAF_BYTES, LEAF_BYTES + 1, 3 * LEAF_BYTES + 5])
def test_it_is_what_the_text_says(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    for threads in (1, 3):
        with knobs.override(num_threads=threads):
            assert fingerprint(data) == fingerprint(data.tobytes()) == reference(data.tobytes())


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


def test_leaves_do_not_stand_for_a_root():
    """The bytes of an inner node are not a content of the same fingerprint, nor is a content cut elsewhere."""
    data = bytes(2 * LEAF_BYTES)
    leaf = hashlib.sha256(b"leaf" + data[:LEAF_BYTES]).digest()
    assert len({fingerprint(data), fingerprint(leaf * 2), fingerprint(leaf), fingerprint(data[:-1])}) == 4


def test_order_and_place_in_memory_do_not_matter():
    data = np.arange(700 * 800, dtype="float32").reshape(700, 800)  # more than a leaf
    room = np.zeros(data.nbytes + 1, np.uint8)
    moved = room[1:].view("float32").reshape(data.shape)
    moved[...] = data
    assert fingerprint(moved) == fingerprint(data) == fingerprint(np.asfortranarray(data))


# ---------------------------------------------------------------------------------------------- solved for, with keys


def forged_pair(words: int = 1024) -> tuple[np.ndarray, np.ndarray]:
    """Two blocks of weights, 8 KB, that the fingerprint of old (sums under keys that all could read) took for one.

    Its sum was Σ (a + k)·(b + l) modulo 2^64 over words with halves a and b, and once more with the keys k, l shifted
    by eight. Two words with a = -k do not count in the first sum; in the second their factors are differences of keys,
    d and e, and d·(x + e) + e·y = d·x + e·(y + d): what the one half gains, the other may lose.
    """
    keys = np.frombuffer(hashlib.shake_256(b"weft fingerprint").digest(8 * (words + 8)), np.uint32).reshape(-1, 2)
    low, high = keys[:, 0], keys[:, 1]
    halves = np.random.default_rng(0).standard_normal(2 * words).astype("float32").view(np.uint32).reshape(-1, 2)
    for i in range(words):
        for j in range(i):
            at = np.array([i, j])
            factors = low[at + 8] - low[at]
            first, second = halves.copy(), halves.copy()
            first[at, 0] = second[at, 0] = 0 - low[at]
            first[at, 1] = factors[::-1] * np.array([1, 0], np.uint32) - high[at + 8]
            second[at, 1] = factors[::-1] * np.array([0, 1], np.uint32) - high[at + 8]
            pair = first.view(np.float32).reshape(-1), second.view(np.float32).reshape(-1)
            if all(np.isfinite(one).all() and 1e-3 < abs(one[2 * i + 1]) < 1e3 for one in pair):
                return pair
    raise AssertionError("no such pair")


def old_sums(weights: np.ndarray) -> list[int]:
    """The two sums of one block, by Python's own whole numbers."""
    keys = np.frombuffer(hashlib.shake_256(b"weft fingerprint").digest(8 * (1024 + 8)), np.uint32).reshape(-1, 2)
    halves = weights.view(np.uint32).reshape(-1, 2)
    return [
        sum(int(a) * int(b) for a, b in halves + keys[shift : shift + 1024]) % 2**64  # the halves wrap, as they did
        for shift in (0, 8)
    ]


def test_weights_that_were_solved_for_are_told_apart():
    first, second = forged_pair()
    assert np.count_nonzero(first != second) == 2 and old_sums(first) == old_sums(second)
    assert fingerprint(first) != fingerprint(second)


def test_a_checksum_finds_damage_in_memory_and_in_a_file(tmp_path):
    data = bytearray(np.random.default_rng(1).bytes(2 * LEAF_BYTES + 77))
    whole = checksum(memoryview(data), len(data))
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as file:
        assert checksum(file.fileno(), len(data)) == whole != checksum(file.fileno(), len(data) - 1)
    for place in (0, LEAF_BYTES - 1, LEAF_BYTES, len(data) - 1):
        data[place] ^= 4
        assert checksum(memoryview(data), len(data)) != whole
        data[place] ^= 4
    swapped = bytes(data[LEAF_BYTES : 2 * LEAF_BYTES] + data[:LEAF_BYTES] + data[2 * LEAF_BYTES :])
    assert checksum(memoryview(swapped), len(data)) != whole == checksum(memoryview(data), len(data))


@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (300, 1200), (1200, 300, 2)])
def test_a_mark_sees_every_change_and_no_order_in_memory(shape):
    data = np.random.default_rng(0).standard_normal(shape).astype("float32")
    assert mark(data) == mark(np.asfortranarray(data)) == mark(data.copy())
    for at in (0, data.size // 2, data.size - 1) if data.size else ():
        changed = data.copy().reshape(-1)
        changed[at] *= -1
        assert mark(changed.reshape(shape)) != mark(data)
    assert mark(data) != mark(np.concatenate([data.reshape(-1), np.zeros(1, "float32")]))

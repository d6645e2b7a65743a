"""Weights in blocks: each keeps its values and its alignment, whatever comes after it."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from weft.compiler.lowering.weights import _HELD, ALIGNMENT, WeightBlocks, held
from weft.core import model
from weft.runtime.model.module_file import prefer_large_pages
from weft.runtime.model.program import aligned_array

RANDOM = np.random.default_rng(0)


def test_weights_lie_side_by_side_and_do_not_overlap() -> None:
    blocks = WeightBlocks()
    given = [RANDOM.standard_normal((n, 3)).astype(np.float32) for n in (7, 1000, 1, 33)]
    given.append(RANDOM.integers(-128, 128, (5, 13)).astype(np.int8))
    made = [blocks.copy(array) for array in given]
    for want, got in zip(given, made):
        assert got.ctypes.data % ALIGNMENT == 0 and got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
    assert len({id(array.base) for array in made}) == 1


def test_a_weight_larger_than_a_block_gets_its_own() -> None:
    blocks = WeightBlocks()
    small = blocks.copy(np.arange(10))
    large = blocks.copy(np.ones(model.WEIGHT_BLOCK_BYTES + 8, np.uint8)[::1])
    turned = blocks.copy(np.arange(12).reshape(3, 4).T)
    assert large.size == model.WEIGHT_BLOCK_BYTES + 8 and large.all() and large.ctypes.data % ALIGNMENT == 0
    np.testing.assert_array_equal(small, np.arange(10))
    np.testing.assert_array_equal(turned, np.arange(12).reshape(3, 4).T)
    assert turned.flags.c_contiguous


def test_a_mapped_file_is_readable_whatever_the_system_gives(tmp_path: Path):
    path = tmp_path / "file"
    path.write_bytes(b"weights" * 1000)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    prefer_large_pages(mapped)
    assert mapped[-7:] == b"weights"


def test_memory_behind_the_last_weight_is_there():
    """Kernels fetch ahead of what they read: pages that nobody wrote to would be looked for in vain each time."""
    blocks = WeightBlocks()
    blocks._block = np.full(1 << 20, 7, np.uint8)
    first, second = (blocks.copy(np.full((3, 100), number, np.float32)) for number in (1, 2))
    assert (first == 1).all() and (second == 2).all()
    behind = blocks._block[blocks._used :]
    assert not behind[: model.FETCHED_BEHIND].any() and (behind[model.FETCHED_BEHIND :] == 7).all()


def test_what_another_form_holds_is_held_once():
    """As long as somebody holds it, and only if all of it is the same."""
    source = RANDOM.standard_normal((300, 200)).astype(np.float32)
    blocks = WeightBlocks()
    first, again = (blocks.hold(source.T, source) for _ in range(2))
    assert again is first and first.flags.c_contiguous
    np.testing.assert_array_equal(first, source.T)
    other = source.copy()
    other[0, 1] += 1  # not one of the bytes by which weights are looked for
    changed = WeightBlocks().hold(other.T, other)
    assert not np.shares_memory(changed, first)
    np.testing.assert_array_equal(changed, other.T)
    np.testing.assert_array_equal(first, source.T)
    before = len(_HELD)
    del first, again
    assert len(_HELD) == before - 1


def test_what_lies_in_the_memory_of_a_caller_is_nobody_elses():
    """A constant that kernels read where the caller has it may be changed by the caller."""
    room = np.ones(20000, np.float32)
    start = -room.ctypes.data % ALIGNMENT // 4
    mine = room[start : start + 10000].reshape(100, 100)
    assert WeightBlocks().hold(mine, mine) is mine
    own = held(np.ones((100, 100), np.float32))
    assert not np.shares_memory(own, mine)
    mine[:] = 2
    assert (own == 1).all()


def test_weights_that_need_no_packing_lie_in_a_block_too():
    """A token of a decoder reads all its weights, and those that a pass has made lie as kernels want them: in arrays
    of small pages each."""
    blocks = WeightBlocks()
    given = [RANDOM.integers(0, 256, (300, 1000), np.uint8) for _ in range(2)]
    first, second = (blocks.hold(array, array) for array in given)
    assert second.ctypes.data - first.ctypes.data == -(-first.nbytes // ALIGNMENT) * ALIGNMENT
    np.testing.assert_array_equal(np.stack([first, second]), np.stack(given))
    large = aligned_array(np.zeros(model.LARGE_ARRAY_BYTES, np.uint8))
    assert blocks.hold(large, large) is large

"""Weights lie side by side in a few large blocks of memory, not each in an array of its own.

A large block is made of large pages (numpy asks Linux for them from 4 MB on): a model that reads all its weights in
every call would otherwise wait for an address translation at each 4 KB of them, which takes longer than the reading.
Memory of a block that was never written does not exist; that behind the last weight is written, for kernels fetch ahead
of what they read: to look in vain for the pages there took a transposed convolution 2.8 times as long on a Neoverse N1,
in those processes that got no large page. Kernels of six built-in models measured 1.02 to 1.11 times as
fast as with small pages only. A mapped file gets large pages as it is read from the disk, where the file system can.

Forms of one model for several sizes pack most weights alike: what one form holds, the next one reads there.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from weft.core import model
from weft.graph.ir import Array
from weft.runtime.model.program import aligned_array, is_aligned

ALIGNMENT = 64
_HELD: weakref.WeakValueDictionary[Any, Array] = weakref.WeakValueDictionary()
"""Packed weights that forms hold, by type, shape and some of their elements. Nobody ever writes to them."""


def held(array: Array) -> Array:
    """The same elements where another form holds them already, else the array itself: contiguous, and ours alone."""
    if array.nbytes < model.STAYING_BYTES or array.nbytes % 8 or array.dtype.hasobject:
        return array
    words = array.reshape(-1).view(np.uint64)
    key = (array.dtype.str, array.shape, words[:: words.size // model.WORDS_SEEN].tobytes())
    known = _HELD.setdefault(key, array)
    return known if known is array or np.array_equal(known.reshape(-1).view(np.uint64), words) else array


class WeightBlocks:
    """Room for the weights of one program."""

    def __init__(self) -> None:
        self._block: Array = np.empty(0, np.uint8)
        self._used = 0

    def copy(self, array: Array) -> Array:
        """The elements of an array in a block, contiguous and aligned."""
        if self._used + array.nbytes > self._block.nbytes:
            room = np.empty(max(array.nbytes, model.WEIGHT_BLOCK_BYTES) + ALIGNMENT, np.uint8)
            self._block, self._used = room[-room.ctypes.data % ALIGNMENT :], 0
        made = self._block[self._used : self._used + array.nbytes].view(array.dtype).reshape(array.shape)
        copy_in_order(array, made)
        self._used += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        self._block[self._used : self._used + model.FETCHED_BEHIND] = 0
        return made

    def hold(self, array: Array, source: Array) -> Array:
        """A source, or its elements as a kernel wants them: where another form has the same, else in a block if they
        are many; in the source's own memory where they lie there as they should, and in large pages or are few.
        """
        before = self._block, self._used
        large = array is source and array.nbytes >= model.LARGE_ARRAY_BYTES and is_aligned(array)
        made = aligned_array(array) if large or array.nbytes < model.NEAR_BYTES else self.copy(array)
        found = made if np.may_share_memory(made, source) else held(made)
        if found is not made:
            self._block, self._used = before
        return found


def copy_in_order(array: Array, made: Array) -> None:
    """Writes elements that lie in another order into a contiguous array.

    numpy would read a matrix column by column, and copy each few elements that belong together by a loop of their own:
    columns of 4 out of 1.6 GB take 8 times as long.
    """
    if array.ndim > 1 and array.strides[-1] == array.itemsize:
        together = f"V{array.shape[-1] * array.itemsize}"
        array, made = array.view(together)[..., 0], made.view(together)[..., 0]
    slowest = max(range(array.ndim), key=lambda axis: array.strides[axis], default=0)
    if slowest == 0:
        made[...] = array
        return
    source, target = np.moveaxis(array, slowest, 0), np.moveaxis(made, slowest, 0)
    for start in range(0, len(source), model.ROWS_TOGETHER):
        target[start : start + model.ROWS_TOGETHER] = source[start : start + model.ROWS_TOGETHER]

"""DLPack capsules of memory that the processor does not read: described rightly, alive as long as they are used.

The memory here is the host's, so that a consumer (torch) can be asked.
"""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from weft.core.dtypes import dtype
from weft.core.errors import ArgumentError
from weft.runtime.dlpack_device import borrow_capsule, contiguous_strides, export_device


class Owner:
    """What the memory belongs to."""

    def __init__(self):
        self.array = np.arange(64, dtype=np.uint8)


@pytest.mark.parametrize(
    "name, shape",
    [
        ("float32", (4, 3)),
        ("bfloat16", (3,)),
        ("bool", (2, 2)),
        ("int64", ()),
        ("float32", (0, 3)),
        ("int8", (2, 1, 3)),
    ],
)
def test_a_capsule_keeps_its_memory(name, shape):
    torch = pytest.importorskip("torch")
    owner = Owner()
    alive, address = weakref.ref(owner), owner.array.ctypes.data
    capsule = export_device(address, shape, dtype(name), (1, 0), owner)
    found = borrow_capsule(capsule)
    assert found.shape == shape and found.dtype == dtype(name) and (found.address == address or 0 in shape)
    tensor = torch.from_dlpack(capsule)
    del capsule, owner
    gc.collect()
    assert alive() is not None and str(tensor.dtype).removeprefix("torch.") == name and tuple(tensor.shape) == shape
    assert 0 in shape or tensor.data_ptr() == address
    del tensor
    gc.collect()
    assert alive() is None


def test_a_consumer_may_let_go_while_an_exception_is_on_its_way():
    torch = pytest.importorskip("torch")
    owner = Owner()
    alive = weakref.ref(owner)
    held = [torch.from_dlpack(export_device(owner.array.ctypes.data, (4,), dtype("float32"), (1, 0), owner))]
    del owner

    class LetsGo:
        def __index__(self):
            raise ValueError("on its way")

        def __del__(self):
            held.clear()

    with pytest.raises(ValueError, match="on its way"):
        [1, 2, 3][LetsGo()]
    gc.collect()
    assert alive() is None


def test_a_capsule_that_nobody_takes_lets_go():
    owner = Owner()
    alive = weakref.ref(owner)
    capsule = export_device(owner.array.ctypes.data, (4,), dtype("float32"), (2, 0), owner)
    del owner
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_what_does_not_lie_together_is_refused():
    with pytest.raises(ArgumentError, match="one after the other"):
        borrow_capsule(np.zeros((4, 6), np.float32)[:, ::2].__dlpack__())
    assert contiguous_strides((2, 3, 4)) == [12, 4, 1] and contiguous_strides(()) == []

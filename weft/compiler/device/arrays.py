"""Arrays in a device's memory: what a model on a device takes and gives without copies.

y = m(m.to_device(x))         a DeviceArray in, a DeviceArray out
y.numpy()                     a copy on the host, when the device is done
torch.from_dlpack(y)          where the device shares its memory: DLPack and __cuda_array_interface__, no copy
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.dtypes import dtype as core_dtype
from weft.core.errors import ArgumentError
from weft.graph.ir import Array, TensorType, dtype_name
from weft.runtime.dlpack_device import export_device
from weft.targets.base import Device


class Lease:
    """Memory of a pool: it goes back there when nobody refers to it, unless others may still use it."""

    def __init__(self, memory: Any, pool: list[Any]) -> None:
        self.memory = memory
        self.pool = pool
        self.is_shared = False

    def __del__(self) -> None:
        if not self.is_shared:
            self.pool.append(self.memory)


class DeviceArray:
    """A contiguous array in a device's memory. `stream` is where what makes it is queued (None: the device's own).

    `check` raises what went wrong in the run that makes it, once the host waits for it.
    """

    check: Callable[[Any], None] | None = None

    def __init__(
        self, device: Device, memory: Any, shape: Sequence[int], dtype: str, stream: Any = None, keep: Any = None
    ) -> None:
        self.device, self.memory, self.stream = device, memory, stream
        self.shape = tuple(shape)
        self.dtype_name = dtype
        self._keep = keep

    @property
    def dtype(self) -> Any:
        """The element type, as numpy has it."""
        return TensorType(self.dtype_name, None).numpy

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def meets(self, other: DeviceArray) -> bool:
        """Whether the two share memory."""
        mine, theirs = self.device.address(self.memory), other.device.address(other.memory)
        if mine is None or theirs is None:
            return self.memory is other.memory or bool(self.memory == other.memory)
        return mine < theirs + other.nbytes and theirs < mine + self.nbytes

    def numpy(self, into: Array | None = None) -> Array:
        """The elements on the host; waits until they are there."""
        made = np.empty(self.shape, self.dtype) if into is None else into
        self.device.read(self.memory, made, self.stream)
        if self.check is not None:
            self.check(self.stream)
        return made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the array lies on a device: it cannot be read without a copy")
        made = self.numpy()
        return made if dtype is None else made.astype(dtype)

    def _address(self, attribute: str) -> int:
        address = self.device.address(self.memory)
        if address is None:
            raise AttributeError(f"{self.device.name} has no {attribute}: its memory has no address for others")
        return address

    def _share(self) -> None:
        """From here on others may use the memory in streams of their own: it is not used again for another array."""
        if isinstance(self._keep, Lease):
            self._keep.is_shared = True

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        address = self._address("__cuda_array_interface__")
        self._share()
        self.device.synchronize(self.stream)
        if self.check is not None:
            self.check(self.stream)
        kind = self.dtype if self.dtype.isbuiltin == 1 else np.dtype(f"u{self.dtype.itemsize}")
        return {"shape": self.shape, "typestr": kind.str, "data": (address, False), "version": 3, "strides": None}

    @property
    def __dlpack__(self) -> Any:
        self._address("__dlpack__")
        return self._export

    @property
    def __dlpack_device__(self) -> Any:
        self._address("__dlpack_device__")
        return self.device.dlpack_device

    def _export(self, *, stream: int | None = None, **options: Any) -> Any:
        place = self.device.dlpack_device()
        assert place is not None
        if not self.device.share(self.stream, stream):
            self._share()
        address = self._address("__dlpack__")
        return export_device(address, self.shape, core_dtype(self.dtype_name), place, self)

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype_name}{list(self.shape)} on {self.device.name})"


def is_on_device(given: Any) -> bool:
    """Whether something is an array in the memory of a device: ours, or another library's."""
    if isinstance(given, np.ndarray) or given is None:
        return False
    if isinstance(given, DeviceArray):
        return True
    where = getattr(given, "__dlpack_device__", None)  # first: torch's tensors with gradients refuse the next question
    if where is not None and int(where()[0]) not in (1, 3):
        return True
    return hasattr(given, "__cuda_array_interface__") or hasattr(given, "base_data")


def on_device(given: Any, device: Device, stream: Any) -> DeviceArray:
    """An array as a model on this device takes it; one of another library is borrowed."""
    if isinstance(given, DeviceArray):
        if given.device is not device:
            raise ArgumentError(f"it lies on {given.device.name}, and the model runs on {device.name}: use .numpy()")
        return given
    found = device.borrow(given, stream)
    if found is None:
        raise ArgumentError(f"a {type(given).__name__} cannot be used on {device.name}: copy it to the CPU first")
    return DeviceArray(device, found.memory, found.shape, dtype_name(np.dtype(found.dtype)), stream, found.keep)

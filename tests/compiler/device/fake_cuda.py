"""A CUDA driver that computes nothing but keeps the books: what is allocated, copied, captured and launched.

Memory is host memory, so that copies are real. `log` has one entry for each thing put into a stream.
"""

from __future__ import annotations

import ctypes
from typing import Any


class FakeDriver:
    """The functions of libcuda that `weft.targets.cuda.driver` calls; each gives 0, or the code in `failing`."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.allocations: dict[int, Any] = {}
        self.functions: dict[int, str] = {}
        self.captures: dict[int, list[tuple[str, Any]]] = {}
        self.graphs: dict[int, list[tuple[str, Any]]] = {}
        self.failing: dict[str, int] = {}
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        do = getattr(FakeDriver, f"_{name}", None)

        def call(*arguments: Any) -> int:
            if name in self.failing:
                return self.failing[name]
            if do is not None:
                do(self, *arguments)
            return 0

        return call

    def _next(self) -> int:
        self.count += 1
        return 0x1000 + self.count

    def _put(self, stream: Any, entry: tuple[str, Any]) -> None:
        captured = self.captures.get(stream.value or 0)
        (self.log if captured is None else captured).append(entry)

    def _cuDeviceGetCount(self, count: Any) -> None:
        count._obj.value = 1

    def _cuDeviceGetName(self, text: Any, size: int, number: int) -> None:
        text.value = b"no device"

    def _cuGetErrorName(self, code: int, name: Any) -> None:
        name._obj.value = f"CUDA_ERROR_{code}".encode()

    def _cuGetErrorString(self, code: int, text: Any) -> None:
        text._obj.value = b"an error"

    def _cuStreamCreate(self, handle: Any, flags: int) -> None:
        handle._obj.value = self._next()

    def _cuMemAlloc_v2(self, address: Any, size: Any) -> None:
        room = ctypes.create_string_buffer(size.value + 256)
        start = -(-ctypes.addressof(room) // 256) * 256
        self.allocations[start] = (room, size.value)
        address._obj.value = start

    def _cuMemFree_v2(self, address: Any) -> None:
        del self.allocations[address.value]

    def _cuMemcpyHtoDAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> None:
        ctypes.memmove(to.value, source.value, size.value)
        self._put(stream, ("in", size.value))

    def _cuMemcpyDtoHAsync_v2(self, to: Any, source: Any, size: Any, stream: Any) -> None:
        ctypes.memmove(to.value, source.value, size.value)
        self._put(stream, ("out", size.value))

    def _cuModuleLoadData(self, handle: Any, code: bytes) -> None:
        assert code[1:4] == b"ELF"
        handle._obj.value = self._next()

    def _cuModuleGetFunction(self, handle: Any, module: Any, name: bytes) -> None:
        handle._obj.value = self._next()
        self.functions[handle._obj.value] = name.decode()

    def _cuLaunchKernelEx(self, config: Any, function: Any, pointers: Any, extra: Any) -> None:
        given = config._obj
        sizes = tuple(getattr(given, f"{what}_{axis}") for what in ("grid", "block") for axis in "xyz")
        stream = ctypes.c_void_p(given.stream)
        assert given.count == 1 and given.attributes[0].number == 6
        values = [ctypes.c_uint64.from_address(place).value for place in pointers]
        self._put(stream, ("kernel", (self.functions[function.value], sizes, values)))

    def _cuStreamBeginCapture_v2(self, stream: Any, mode: int) -> None:
        self.captures[stream.value] = []

    def _cuStreamEndCapture(self, stream: Any, graph: Any) -> None:
        graph._obj.value = self._next()
        self.graphs[graph._obj.value] = self.captures.pop(stream.value)

    def _cuGraphInstantiateWithFlags(self, run: Any, graph: Any, flags: Any) -> None:
        run._obj.value = graph.value

    def _cuGraphLaunch(self, run: Any, stream: Any) -> None:
        self._put(stream, ("graph", self.graphs[run.value]))

    def _cuEventRecordWithFlags(self, event: Any, stream: Any, flags: int) -> None:
        self._put(stream, ("event", flags))

    def _cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        self._put(stream, ("wait", stream.value))

    def inside(self, address: int) -> bool:
        """Whether an address lies in memory that is allocated now."""
        return any(start <= address < start + max(size, 16) for start, (_, size) in self.allocations.items())

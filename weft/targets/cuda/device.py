"""Runs device programs on an NVIDIA GPU: memory, loaded programs, and launches recorded as one graph.

Programs are compiled by NVRTC when they are loaded; machine code is kept for the life of the process, by source.
"""

from __future__ import annotations

import ctypes
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.codegen.c.program import DeviceKernel, DeviceProgram, number
from weft.core.errors import RuntimeFault, TargetError
from weft.targets.base import Target
from weft.targets.cuda import driver, nvrtc

MOST_CACHED = 1024
_CODE: OrderedDict[tuple[str, str], bytes] = OrderedDict()


def machine_code(program: DeviceProgram, architecture: str) -> bytes:
    """The cubin of a program, compiled once for each source."""
    key = (architecture, program.source)
    found = _CODE.get(key)
    if found is None:
        found = _CODE[key] = nvrtc.compile_source(program.source, architecture, program.name)
        if len(_CODE) > MOST_CACHED:
            _CODE.popitem(last=False)
    return found


def open_device(target: Target) -> CudaDevice:
    """The device that a target stands for."""
    if not target.is_host:
        raise TargetError(
            f"{target.name} is no device of this machine: its programs can be compiled (weft.build gives the source "
            "and machine code) but not run"
        )
    position = target.name.partition(":")[2]
    return _open(int(position) if position.isdigit() else 0, target.cpu)


@functools.lru_cache(maxsize=16)
def _open(number_of_device: int, architecture: str) -> CudaDevice:
    return CudaDevice(number_of_device, architecture)


class CudaDevice:
    """A GPU with a stream of its own. What is put into the stream runs in order."""

    def __init__(self, position: int, architecture: str) -> None:
        self.context = driver.context(position)
        self.name = self.context.name
        self.architecture = architecture
        self.stream = driver.Stream()

    def allocate(self, size: int) -> driver.Memory:
        """Memory of so many bytes, freed when nothing refers to it any more."""
        self.context.activate()
        return driver.Memory(size)

    def write(self, memory: Any, source: Any) -> None:
        """Copies a contiguous numpy array into device memory; done when it returns."""
        self.context.activate()
        driver.copy_in(address_of(memory), source.ctypes.data, source.nbytes, self.stream)
        self.stream.synchronize()

    def read(self, memory: Any, into: Any) -> None:
        """Copies device memory into a contiguous numpy array, after all that was queued; done when it returns."""
        self.context.activate()
        driver.copy_out(into.ctypes.data, address_of(memory), into.nbytes, self.stream)
        self.stream.synchronize()

    def synchronize(self) -> None:
        """Waits until all that was queued is done; a kernel that went wrong is an error here."""
        self.context.activate()
        self.stream.synchronize()

    def load(self, program: DeviceProgram) -> CudaExecutable:
        """A program, compiled and ready to run."""
        self.context.activate()
        return CudaExecutable(self, program)

    def capture(self, record: Callable[[], None]) -> driver.Graph:
        """What a function puts into the stream, as one graph to launch."""
        self.context.activate()
        self.stream.begin_capture()
        try:
            record()
        except BaseException:
            self.stream.end_capture()
            raise
        return self.stream.end_capture()

    def launch(self, graph: driver.Graph) -> None:
        """Queues a captured graph."""
        self.context.activate()
        graph.launch(self.stream)


def address_of(memory: Any) -> int:
    """The device address of memory: ours, or anything with `__cuda_array_interface__`, or a plain address."""
    if isinstance(memory, driver.Memory):
        return memory.address
    if isinstance(memory, int) and not isinstance(memory, bool):
        return memory
    shared = getattr(memory, "__cuda_array_interface__", None)
    if shared is None:
        raise RuntimeFault(f"{type(memory).__name__} is no memory of the GPU: use device.allocate, or a CUDA array")
    return int(shared["data"][0])


class CudaExecutable:
    """A program on a device: its kernels and workspaces, which live as long as it does."""

    def __init__(self, device: CudaDevice, program: DeviceProgram) -> None:
        self.device = device
        self.program = program
        self.module = driver.Module(machine_code(program, device.architecture), program.name)
        self._workspaces: dict[str, driver.Memory] = {}

    def run(self, arguments: Mapping[str, Any], stream: driver.Stream | None = None) -> None:
        """Queues the kernels in order; returns before they are done."""
        self.device.context.activate()
        sizes = {name: int(value) for name, value in arguments.items() if isinstance(value, np.integer)}
        program = self.program.with_sizes(sizes)
        given = dict(arguments)
        for workspace in program.workspaces:
            size = max(number(workspace.elements, sizes), 1) * workspace.dtype.bytes
            given[workspace.name] = self._workspace(workspace.name, size)
        for kernel in program.kernels:
            self._launch(kernel, given, stream or self.device.stream)

    def _workspace(self, name: str, size: int) -> driver.Memory:
        held = self._workspaces.get(name)
        if held is None or held.bytes < size:
            held = self._workspaces[name] = driver.Memory(size)
        return held

    def _launch(self, kernel: DeviceKernel, given: Mapping[str, Any], stream: driver.Stream) -> None:
        x, y, z = (int(size) for size in kernel.grid if isinstance(size, int))
        if 0 in (x, y, z):
            return
        function = self.module.function(kernel.name, kernel.dynamic_shared_bytes)
        values = [
            ctypes.c_int64(kernel.constants[name]) if name in kernel.constants else _passed(given[name])
            for name in kernel.params
        ]
        function.launch((x, y, z), kernel.block, values, stream, kernel.dynamic_shared_bytes)


def _passed(value: Any) -> Any:
    """An argument as a kernel takes it: an address, or the bytes of a scalar."""
    if isinstance(value, np.generic):
        data = np.asarray(value).tobytes()
        return (ctypes.c_char * max(len(data), 8)).from_buffer_copy(data.ljust(8, b"\0"))
    return ctypes.c_uint64(address_of(value))

"""Runs device programs on an NVIDIA GPU: memory, loaded programs, and launches recorded as one graph.

Programs are compiled by NVRTC when they are loaded; machine code is kept for the life of the process, by source.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from weft.codegen.c.program import DeviceKernel, DeviceProgram, merged_source
from weft.core.errors import RuntimeFault, TargetError
from weft.targets.base import Borrowed, Target
from weft.targets.cuda import driver, nvrtc
from weft.targets.cuda import launches as launching
from weft.targets.cuda.launches import BoundLaunch, Recording, stream_of
from weft.targets.gpu.executable import LoadedProgram

MOST_CACHED = 1024
COMPILERS = min(8, os.cpu_count() or 1)
"""How many sources of a model are compiled at the same time."""
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


def compiled_together(programs: Sequence[DeviceProgram], architecture: str) -> list[bytes]:
    """The machine code of programs: every n-th of them stands in one of n sources, which are compiled side by side."""
    count = min(COMPILERS, len(programs))
    sources = [DeviceProgram("model", merged_source(programs[at::count]), (), (), ()) for at in range(count)]
    with ThreadPoolExecutor(max(count, 1), thread_name_prefix="weft-nvrtc") as pool:
        return list(pool.map(lambda source: machine_code(source, architecture), sources))


def machine_codes(programs: Sequence[DeviceProgram], target: Target) -> list[bytes]:
    """The machine code of programs together; nothing where there is no NVRTC."""
    return compiled_together(programs, target.cpu) if nvrtc.is_available() else []


def open_device(target: Target) -> CudaDevice:
    """The device that a target stands for."""
    if not target.is_host:
        if ":" not in target.name:
            driver.context(0)  # which says what is missing: the driver, or a device
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

    def write(self, memory: Any, source: Any, stream: driver.Stream | None = None) -> None:
        """Copies a contiguous numpy array into device memory; done when it returns."""
        self.context.activate()
        driver.copy_in(address_of(memory), source.ctypes.data, source.nbytes, stream or self.stream)
        (stream or self.stream).synchronize()

    def read(self, memory: Any, into: Any, stream: driver.Stream | None = None) -> None:
        """Copies device memory into a contiguous numpy array, after all that was queued; done when it returns."""
        self.context.activate()
        driver.copy_out(into.ctypes.data, address_of(memory), into.nbytes, stream or self.stream)
        (stream or self.stream).synchronize()

    def copy(self, memory: Any, source: Any, size: int, stream: driver.Stream | None = None) -> None:
        """Queues a copy from one memory to another."""
        self.context.activate()
        driver.copy_within(address_of(memory), address_of(source), size, stream or self.stream)

    def synchronize(self, stream: driver.Stream | None = None) -> None:
        """Waits until all that was queued is done; a kernel that went wrong is an error here."""
        self.context.activate()
        (stream or self.stream).synchronize()

    def load(self, program: DeviceProgram) -> CudaExecutable:
        """A program, compiled and ready to run."""
        self.context.activate()
        return CudaExecutable(self, program)

    def load_all(self, programs: Sequence[DeviceProgram], codes: Sequence[bytes] = ()) -> list[CudaExecutable]:
        """Programs, compiled together."""
        self.context.activate()
        made = list(codes) or compiled_together(programs, self.architecture)
        modules = [driver.Module(code, "the model's kernels") for code in made]
        return [CudaExecutable(self, one, modules[at % len(modules)]) for at, one in enumerate(programs)]

    def part(self, memory: Any, offset: int, size: int) -> int:
        """The address of a place inside memory."""
        return address_of(memory) + offset

    def record(self, launches: Sequence[BoundLaunch]) -> Recording:
        """Launches as one graph."""
        self.context.activate()
        return Recording(self, launches)

    def timer(self, launches: Sequence[BoundLaunch]) -> Callable[[], list[float]]:
        """A function that runs launches and tells how many seconds each took."""
        self.context.activate()
        return launching.timer(self, launches)

    def stream_of(self, given: Any) -> driver.Stream:
        """The stream of a handle, or of an object that has one."""
        return stream_of(given)

    def borrow(self, given: Any, stream: driver.Stream | None = None) -> Borrowed | None:
        """An array of another library on this GPU (`__cuda_array_interface__`, DLPack); None for anything else."""
        return launching.borrow(given, self.context.number, stream or self.stream)

    def address(self, memory: Any) -> int:
        """Where memory lies."""
        return address_of(memory)

    def dlpack_device(self) -> tuple[int, int]:
        """CUDA, and the number of the device."""
        return launching.DLPACK_CUDA, self.context.number

    def stream_near(self, given: Any) -> driver.Stream | None:
        """The stream in which torch works now, for a tensor of torch's."""
        return launching.stream_near(given)

    def share(self, ours: driver.Stream | None, theirs: int | None) -> bool:
        """Lets another library's stream wait for ours; -1 is DLPack's word for "no need to"."""
        if theirs == -1:
            return False
        self.context.activate()
        other = stream_of(1 if theirs is None else theirs)
        launching.wait(other, ours or self.stream)
        return other == (ours or self.stream)


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


class CudaExecutable(LoadedProgram):
    """A program on a GPU."""

    def __init__(self, device: CudaDevice, program: DeviceProgram, module: driver.Module | None = None) -> None:
        super().__init__(device, program)
        self.module = module or driver.Module(machine_code(program, device.architecture), program.name)

    def queue(self, kernel: DeviceKernel, given: Mapping[str, Any], stream: Any) -> None:
        """Puts a launch into a stream."""
        self.bound(kernel, given).queue(stream or self.device.stream)

    def bound(self, kernel: DeviceKernel, given: Mapping[str, Any]) -> BoundLaunch:
        """A launch with its arguments."""
        self.device.context.activate()
        function = self.module.function(kernel.name, kernel.dynamic_shared_bytes)
        values = [
            ctypes.c_int64(kernel.constants[name]) if name in kernel.constants else _passed(given[name])
            for name in kernel.params
        ]
        return BoundLaunch(function, kernel, values)


def _passed(value: Any) -> Any:
    """An argument as a kernel takes it: an address, or the bytes of a scalar."""
    if isinstance(value, np.generic):
        data = np.asarray(value).tobytes()
        return (ctypes.c_char * max(len(data), 8)).from_buffer_copy(data.ljust(8, b"\0"))
    return ctypes.c_uint64(address_of(value))

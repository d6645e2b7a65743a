"""Runs device programs on an NVIDIA GPU: memory, loaded programs, launches recorded as one graph, others' arrays.

Programs are compiled by NVRTC when they are loaded, each by itself; machine code is kept in the cache folder.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from weft.codegen.c.program import DeviceKernel, DeviceProgram
from weft.core import model as core_model
from weft.core.errors import ArgumentError, RuntimeFault, TargetError
from weft.core.knobs import knobs
from weft.runtime.cache_folder import cache_folder
from weft.runtime.dlpack_device import borrow_capsule, contiguous_strides
from weft.runtime.object_cache import kept_object
from weft.targets.base import Borrowed, Device, Recording, Residence, Target
from weft.targets.cuda import driver, nvrtc
from weft.targets.gpu.executable import LoadedProgram, kernel_arguments

COMPILERS = os.cpu_count() or 1
"""How many sources of a model are compiled at the same time."""
DLPACK_CUDA = 2
_DEFAULT_STREAMS = (0, 1)
"""Two names of the default stream, the driver's and DLPack's."""


def machine_code(source: str, architecture: str, name: str) -> bytes:
    """The cubin of a source: from the cache folder, or compiled now."""
    folder, facts = cache_folder("kernels") if knobs.cache else None, (source, architecture, nvrtc.version())
    make = functools.partial(nvrtc.compile_source, source, architecture, name)
    return kept_object(folder, facts, make, core_model.KERNELS_KEPT)


def compiled_together(programs: Sequence[DeviceProgram], architecture: str) -> list[bytes]:
    """The machine code of each program, compiled side by side, the longest first; NVRTC lets all threads in."""
    if len(programs) == 1:
        return [machine_code(programs[0].source, architecture, programs[0].name)]
    longest = sorted({program.source: program.name for program in programs}.items(), key=lambda one: -len(one[0]))
    with ThreadPoolExecutor(max(1, min(COMPILERS, len(longest))), thread_name_prefix="weft-nvrtc") as pool:
        made = pool.map(lambda one: machine_code(one[0], architecture, one[1]), longest)
        found = dict(zip([source for source, _ in longest], made))
    return [found[program.source] for program in programs]


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


class CudaDevice(Device):
    """A GPU with a stream of its own. What is put into the stream runs in order."""

    def __init__(self, position: int, architecture: str) -> None:
        self.context = driver.context(position)
        self.name = self.context.name
        self.architecture = architecture
        self.stream = driver.Stream()

    def in_stream(self, stream: driver.Stream | None) -> driver.Stream:
        """A stream, or the device's own, in a thread that may now use it."""
        self.context.activate()
        return stream or self.stream

    def allocate(self, size: int) -> driver.Memory:
        """Memory of so many bytes, freed when nothing refers to it any more."""
        self.context.activate()
        return driver.Memory(size)

    def write(self, memory: Any, source: Any, stream: driver.Stream | None = None) -> None:
        """Copies a contiguous numpy array into device memory; done when it returns."""
        driver.copy("HtoD", address_of(memory), source.ctypes.data, source.nbytes, self.in_stream(stream))
        self.synchronize(stream)

    def read(self, memory: Any, into: Any, stream: driver.Stream | None = None) -> None:
        """Copies device memory into a contiguous numpy array, after all that was queued; done when it returns."""
        driver.copy("DtoH", into.ctypes.data, address_of(memory), into.nbytes, self.in_stream(stream))
        self.synchronize(stream)

    def copy(self, memory: Any, source: Any, size: int, stream: driver.Stream | None = None) -> None:
        """Queues a copy from one memory to another."""
        driver.copy("DtoD", address_of(memory), address_of(source), size, self.in_stream(stream))

    def synchronize(self, stream: driver.Stream | None = None) -> None:
        """Waits until all that was queued is done; a kernel that went wrong is an error here."""
        self.in_stream(stream).synchronize()

    def load_all(self, programs: Sequence[DeviceProgram], codes: Sequence[bytes] = ()) -> list[CudaExecutable]:
        """Programs, compiled together."""
        self.context.activate()
        made = list(codes) or compiled_together(programs, self.architecture)
        modules = [driver.Module(code, "the model's kernels") for code in made]
        return [CudaExecutable(self, one, modules[at % len(modules)]) for at, one in enumerate(programs)]

    def part(self, memory: Any, offset: int, size: int) -> int:
        """The address of a place inside memory."""
        return address_of(memory) + offset

    def record(self, launches: Sequence[BoundLaunch]) -> GraphRecording:
        """Launches as one graph."""
        self.context.activate()
        return GraphRecording(self, launches)

    def timer(self, launches: Sequence[BoundLaunch]) -> Callable[[], list[float]]:
        """Seconds of each launch; events stand between them in one graph, so that the host's pace does not show.

        What two events with nothing between them take, at least so far, is not counted: it takes longer at times.
        """
        return self._timed([[launch] for launch in launches])

    def stretch(self, launches: Sequence[BoundLaunch]) -> Callable[[], float]:
        """Seconds of launches one after another; each may begin while the one before it ends, as in a recording."""
        timer = self._timed([launches])
        return lambda: timer()[0]

    def _timed(self, parts: Sequence[Sequence[BoundLaunch]]) -> Callable[[], list[float]]:
        """Seconds of each part, with an event behind it."""
        self.context.activate()
        events, nothing = [driver.Event() for _ in range(len(parts) + 2)], math.inf

        def put(stream: driver.Stream) -> None:
            events[0].record(stream, in_graph=True)
            for part, event in zip(parts, events[1:]):
                for launch in part:
                    launch.launch(stream)
                event.record(stream, in_graph=True)
            events[-1].record(stream, in_graph=True)

        graph = driver.Graph(put)

        def run() -> list[float]:
            nonlocal nothing
            graph.launch(self.in_stream(None))
            self.synchronize()
            *spans, empty = [after.seconds_since(before) for before, after in zip(events, events[1:])]
            nothing = min(nothing, empty)
            return [max(span - nothing, 0.0) for span in spans]

        return run

    def residence(self, launch: BoundLaunch) -> Residence:
        """By the driver's own count; no hardware counter is read."""
        kernel, threads = launch.kernel, math.prod(launch.kernel.block)
        resident, registers = launch.function.held(threads, kernel.dynamic_shared_bytes)
        machine = (self.context.attribute(name) for name in ("multiprocessors", "multiprocessor_threads"))
        return Residence(math.prod(launch.grid), threads, registers, kernel.shared_bytes, resident, *machine)

    def stream_of(self, given: Any) -> driver.Stream:
        """The stream of a handle, or of an object that has one (`cuda_stream` of torch, `ptr` of cupy)."""
        if isinstance(given, driver.Stream):
            return given
        names = ("cuda_stream", "ptr", "handle")
        handle = next((getattr(given, name) for name in names if hasattr(given, name)), given)
        if not isinstance(handle, int) or isinstance(handle, bool):
            raise ArgumentError(f"a stream is a CUDA stream's handle or an object that has one, not {given!r}")
        return driver.Stream(0 if handle in _DEFAULT_STREAMS else handle)

    def borrow(self, given: Any, stream: driver.Stream | None = None) -> Borrowed | None:
        """An array of another library on this GPU (`__cuda_array_interface__`, DLPack); None for anything else."""
        number, ours = self.context.number, stream or self.stream
        if hasattr(given, "__dlpack__") and hasattr(given, "__dlpack_device__"):
            kind, place = (int(one) for one in given.__dlpack_device__())
            if kind == DLPACK_CUDA:
                if place != number:
                    raise ArgumentError(
                        f"the array lies on cuda:{place}, the model runs on cuda:{number}: move it there"
                    )
                return _by_dlpack(given, ours)
        shared = getattr(given, "__cuda_array_interface__", None)
        if shared is None:
            return None
        if shared.get("stream") is not None:
            ours.wait_for(self.stream_of(int(shared["stream"])))
        return _by_interface(given, shared)

    def address(self, memory: Any) -> int:
        """Where memory lies."""
        return address_of(memory)

    def dlpack_device(self) -> tuple[int, int]:
        """CUDA, and the number of the device."""
        return DLPACK_CUDA, self.context.number

    def stream_near(self, given: Any) -> driver.Stream | None:
        """The stream in which torch works now, for a tensor of torch's."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(given, torch.Tensor):
            return None
        return self.stream_of(int(torch.cuda.current_stream(given.device).cuda_stream))

    def share(self, ours: driver.Stream | None, theirs: int | None) -> bool:
        """Lets another library's stream wait for ours; -1 is DLPack's word for "no need to"."""
        if theirs == -1:
            return False
        own, other = self.in_stream(ours), self.stream_of(1 if theirs is None else theirs)
        other.wait_for(own)
        return other == own


def _by_dlpack(given: Any, stream: driver.Stream) -> Borrowed:
    try:
        capsule = given.__dlpack__(stream=stream.handle.value or 1)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise ArgumentError(f"it cannot be shared: {error} (for a torch tensor: .detach())") from error
    found = borrow_capsule(capsule)
    return Borrowed(found.address, found.shape, found.dtype.numpy, capsule)


def _by_interface(given: Any, shared: dict[str, Any]) -> Borrowed:
    kind, shape = np.dtype(shared["typestr"]), tuple(int(size) for size in shared["shape"])
    strides = shared.get("strides")
    if strides is not None and [*strides] != [kind.itemsize * step for step in contiguous_strides(shape)]:
        raise ArgumentError("its elements do not lie one after the other: make a contiguous copy first")
    return Borrowed(int(shared["data"][0]), shape, kind, given)


def address_of(memory: Any) -> int:
    """The device address of memory: ours, or anything with `__cuda_array_interface__`, or a plain address."""
    if isinstance(memory, driver.Memory):
        return memory.address
    if isinstance(memory, int) and not isinstance(memory, bool):
        return memory
    try:
        shared = getattr(memory, "__cuda_array_interface__", None)
    except KeyError:  # torch's, of a type that the protocol has no name for (float8)
        return int(memory.data_ptr())
    if shared is None:
        raise RuntimeFault(f"{type(memory).__name__} is no memory of the GPU: use device.allocate, or a CUDA array")
    return int(shared["data"][0])


class CudaExecutable(LoadedProgram):
    """A program on a GPU."""

    def __init__(self, device: CudaDevice, program: DeviceProgram, module: driver.Module) -> None:
        super().__init__(device, program)
        self.module = module

    def bound(self, kernel: DeviceKernel, given: Mapping[str, Any]) -> BoundLaunch:
        """A launch with its arguments."""
        self.device.context.activate()
        function = self.module.function(kernel.name, kernel.dynamic_shared_bytes)
        values = kernel_arguments(kernel, given, ctypes.c_int64, _passed)
        for one in kernel.maps:
            values.append(
                driver.tensor_map(address_of(given[one.source]), one.element_bytes, one.shape, one.strides, one.box)
            )
        return BoundLaunch(self.device, function, kernel, values)


def _passed(value: Any) -> Any:
    """An argument as a kernel takes it: an address, or the bytes of a scalar."""
    if isinstance(value, np.generic):
        data = np.asarray(value).tobytes()
        return (ctypes.c_char * max(len(data), 8)).from_buffer_copy(data.ljust(8, b"\0"))
    return ctypes.c_uint64(address_of(value))


class BoundLaunch:
    """One kernel with its arguments: ctypes values, in the order of its parameters."""

    def __init__(
        self, device: CudaDevice, function: driver.Function, kernel: DeviceKernel, values: Sequence[Any]
    ) -> None:
        self.device, self.function, self.kernel, self.values = device, function, kernel, list(values)
        self.grid = [int(size) for size in kernel.grid if isinstance(size, int)]

    def launch(self, stream: driver.Stream | None = None) -> None:
        """Puts it into a stream."""
        kernel, into = self.kernel, stream or self.device.stream
        self.function.launch(self.grid, kernel.block, self.values, into, kernel.dynamic_shared_bytes, kernel.waits,
                             kernel.is_whole)  # fmt: skip


class GraphRecording(Recording):
    """Launches as one graph; a single driver call queues them all. Nothing to launch is no graph.

    It is recorded in a stream of its own: nothing is put into one that somebody else may use.
    """

    def __init__(self, device: CudaDevice, launches: Sequence[BoundLaunch]) -> None:
        super().__init__(launches)
        self.device, self.graph = device, driver.Graph(super().launch) if launches else None

    def launch(self, stream: driver.Stream | None = None) -> None:
        """Queues the graph."""
        if self.graph is not None:
            self.graph.launch(self.device.in_stream(stream))

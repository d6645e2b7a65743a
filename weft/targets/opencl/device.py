"""Writes device programs as OpenCL C, and runs them by pyopencl: a context and a queue for each device.

The passes before that are those of any machine with threads.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.codegen.c.dialects import OPENCL
from weft.codegen.c.generate import generate as generate_c
from weft.codegen.c.program import DeviceKernel, DeviceProgram, merged_source
from weft.core.errors import ArgumentError, RuntimeFault, TargetError
from weft.loop.ir import Func
from weft.targets.base import Borrowed, Device, Target
from weft.targets.gpu.executable import LoadedProgram, kernel_arguments
from weft.targets.opencl.parse import devices


def generate(func: Func, target: Target) -> DeviceProgram:
    """OpenCL C and launches of a lowered program."""
    program = generate_c(func, target, OPENCL)
    if "fp64" not in target.features and re.search(r"\bdouble\b", program.source):
        raise TargetError(f"{func.name} computes in float64, which {target.cpu} does not have: use float32")
    return program


def open_device(target: Target) -> OpenCLDevice:
    """The device that a target stands for."""
    if not target.is_host:
        raise TargetError(f"{target.name} is no device of this machine: its code can be printed but not run")
    return _open(int(target.name.partition(":")[2] or 0))


@functools.lru_cache(maxsize=16)
def _open(position: int) -> OpenCLDevice:
    return OpenCLDevice(devices()[position])


class OpenCLDevice(Device):
    """A device with its queue. Commands run in the order they are given."""

    def __init__(self, device: Any) -> None:
        import pyopencl

        self.opencl = pyopencl
        self.name = device.name.strip()
        self.context = pyopencl.Context([device])
        self.queue = pyopencl.CommandQueue(self.context)
        exact = device.single_fp_config & pyopencl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        self.options = ["-cl-std=CL1.2"] + (["-cl-fp32-correctly-rounded-divide-sqrt"] if exact else [])

    def allocate(self, size: int) -> Any:
        """Memory of so many bytes."""
        try:
            return self.opencl.Buffer(self.context, self.opencl.mem_flags.READ_WRITE, max(size, 16))
        except self.opencl.Error as error:
            raise RuntimeFault(f"{self.name} has no memory for an array of {size} bytes: {error}") from None

    def write(self, memory: Any, source: Any, stream: Any = None) -> None:
        """Copies a contiguous array to the device."""
        if source.nbytes:
            self.opencl.enqueue_copy(stream or self.queue, memory, source, is_blocking=True)

    def read(self, memory: Any, into: Any, stream: Any = None) -> None:
        """Copies device memory into a contiguous array."""
        if into.nbytes:
            self.opencl.enqueue_copy(stream or self.queue, into, memory, is_blocking=True)

    def copy(self, memory: Any, source: Any, size: int, stream: Any = None) -> None:
        """Queues a copy from one memory to another."""
        if size:
            self.opencl.enqueue_copy(stream or self.queue, memory, source, byte_count=size)

    def synchronize(self, stream: Any = None) -> None:
        """Waits until all that was queued is done."""
        (stream or self.queue).finish()

    def load_all(self, programs: Sequence[DeviceProgram], codes: Sequence[bytes] = ()) -> list[OpenCLExecutable]:
        """Programs, compiled together."""
        name, source = (programs[0].name, programs[0].source) if len(programs) == 1 else ("the model", "")
        built = self._built(name, source or merged_source(programs)) if programs else None
        return [OpenCLExecutable(self, program, built) for program in programs]

    def _built(self, name: str, source: str) -> Any:
        opencl = self.opencl
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", opencl.CompilerWarning)  # which says what was done, not only faults
                return opencl.Program(self.context, source).build(options=self.options)
        except opencl.Error as error:
            numbered = "\n".join(f"{n:4} {line}" for n, line in enumerate(source.splitlines(), 1))
            raise TargetError(f"{self.name} cannot compile {name}: {error}\n{numbered}") from None

    def part(self, memory: Any, offset: int, size: int) -> Any:
        """A buffer that begins inside another."""
        return memory.get_sub_region(offset, max(size, 1))

    def timer(self, launches: Sequence[BoundLaunch]) -> Callable[[], list[float]]:
        """A function that runs launches in a queue that measures."""
        measured = self.opencl.command_queue_properties.PROFILING_ENABLE
        queue = self.opencl.CommandQueue(self.context, properties=measured)

        def run() -> list[float]:
            self.queue.finish()
            events = [launch.launch(queue) for launch in launches]
            queue.finish()
            return [(event.profile.end - event.profile.start) * 1e-9 for event in events]

        return run

    def stream_of(self, given: Any) -> Any:
        """A command queue of this device."""
        if not isinstance(given, self.opencl.CommandQueue) or given.context != self.context:
            raise ArgumentError(f"a stream of {self.name} is a pyopencl.CommandQueue of its context, not {given!r}")
        return given

    def borrow(self, given: Any, stream: Any = None) -> Borrowed | None:
        """An array of pyopencl's (`pyopencl.array.Array`) in this device's context; None for anything else."""
        memory = getattr(given, "base_data", None)
        if not isinstance(memory, self.opencl.Buffer):
            return None
        if memory.context != self.context:
            raise ArgumentError("the pyopencl array belongs to another context: make it with target.device().queue")
        if not given.flags.c_contiguous or given.offset:
            raise ArgumentError("a pyopencl array must be contiguous and start where its buffer starts: .copy() it")
        return Borrowed(memory, tuple(map(int, given.shape)), given.dtype, given)

    def stream_near(self, given: Any) -> Any:
        """The queue of a pyopencl array."""
        return getattr(given, "queue", None)


class OpenCLExecutable(LoadedProgram):
    """A program on a device: compiled kernels."""

    def __init__(self, device: OpenCLDevice, program: DeviceProgram, built: Any) -> None:
        super().__init__(device, program)
        self.built = built

    def bound(self, kernel: DeviceKernel, given: Mapping[str, Any]) -> BoundLaunch:
        """A launch with a kernel object of its own."""
        return BoundLaunch(self.device, kernel, self.device.opencl.Kernel(self.built, kernel.name), given)


class BoundLaunch:
    """One kernel with its arguments."""

    def __init__(self, device: OpenCLDevice, kernel: DeviceKernel, compiled: Any, given: Mapping[str, Any]) -> None:
        self.device, self.kernel, self.compiled = device, kernel, compiled
        grid = [int(size) for size in kernel.grid if isinstance(size, int)]
        self.total = [count * size for count, size in zip(grid, kernel.block)]
        self.values = kernel_arguments(kernel, given, np.int64, _passed)  # which live as long as it does
        try:
            compiled.set_args(*self.values)
        except device.opencl.Error as error:
            raise self._explained(error) from None

    def launch(self, stream: Any = None) -> Any:
        """Queues it; the event of its end."""
        opencl, queue = self.device.opencl, stream or self.device.queue
        try:
            return opencl.enqueue_nd_range_kernel(queue, self.compiled, self.total, list(self.kernel.block))
        except opencl.Error as error:
            raise self._explained(error) from None

    def _explained(self, error: Any) -> RuntimeFault:
        kernel = self.kernel
        return RuntimeFault(
            f"{self.device.name} cannot launch {kernel.name} with grid {kernel.grid}, block {kernel.block} and "
            f"{kernel.shared_bytes} bytes of local memory: {error}"
        )


def _passed(value: Any) -> Any:
    """A scalar as a kernel takes it: bools as bytes, 16-bit floats by their bits."""
    if isinstance(value, np.bool_):
        return np.uint8(value)
    if isinstance(value, np.generic) and value.dtype.itemsize == 2 and value.dtype.kind not in "iu":
        return np.asarray(value).view(np.uint16)[()]
    return value

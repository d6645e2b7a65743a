"""Runs device programs through pyopencl: a context and an in-order queue for each device of this machine."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.codegen.c.program import DeviceKernel, DeviceProgram, number
from weft.core.errors import RuntimeFault, TargetError
from weft.targets.base import Target
from weft.targets.opencl.parse import devices


def open_device(target: Target) -> OpenCLDevice:
    """The device that a target stands for."""
    if not target.is_host:
        raise TargetError(f"{target.name} is no device of this machine: its code can be printed but not run")
    return _open(int(target.name.partition(":")[2] or 0))


@functools.lru_cache(maxsize=16)
def _open(position: int) -> OpenCLDevice:
    return OpenCLDevice(devices()[position])


class OpenCLDevice:
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

    def write(self, memory: Any, source: Any) -> None:
        """Copies a contiguous array to the device."""
        if source.nbytes:
            self.opencl.enqueue_copy(self.queue, memory, source, is_blocking=True)

    def read(self, memory: Any, into: Any) -> None:
        """Copies device memory into a contiguous array."""
        if into.nbytes:
            self.opencl.enqueue_copy(self.queue, into, memory, is_blocking=True)

    def load(self, program: DeviceProgram) -> OpenCLExecutable:
        """A program, compiled."""
        return OpenCLExecutable(self, program)


class OpenCLExecutable:
    """A program on a device: compiled kernels and their workspaces, which live as long as it does."""

    def __init__(self, device: OpenCLDevice, program: DeviceProgram) -> None:
        self.device = device
        self.program = program
        built = _built(device, program)
        names = {kernel.name for kernel in program.kernels}
        self.kernels = {name: device.opencl.Kernel(built, name) for name in names}
        self._workspaces: dict[str, tuple[int, Any]] = {}
        self._lock = threading.Lock()

    def run(self, arguments: Mapping[str, Any]) -> None:
        """Launches the kernels in order; the queue runs one call's kernels after the other's, also of other threads."""
        sizes = {name: int(value) for name, value in arguments.items() if isinstance(value, np.integer)}
        program = self.program.with_sizes(sizes)
        given = dict(arguments)
        with self._lock:
            for workspace in program.workspaces:
                count = max(number(workspace.elements, sizes), 1)
                given[workspace.name] = self._workspace(workspace.name, count * workspace.dtype.bytes)
            for kernel in program.kernels:
                self._launch(kernel, given)

    def _workspace(self, name: str, size: int) -> Any:
        held, memory = self._workspaces.get(name, (-1, None))
        if held < size:
            memory = self.device.allocate(size)
            self._workspaces[name] = (size, memory)
        return memory

    def _launch(self, kernel: DeviceKernel, given: Mapping[str, Any]) -> None:
        grid = [int(size) for size in kernel.grid if isinstance(size, int)]
        if 0 in grid:
            return
        values = [
            np.int64(kernel.constants[name]) if name in kernel.constants else _passed(given[name])
            for name in kernel.params
        ]
        opencl = self.device.opencl
        compiled = self.kernels[kernel.name]
        total = [count * size for count, size in zip(grid, kernel.block)]
        try:
            compiled.set_args(*values)
            opencl.enqueue_nd_range_kernel(self.device.queue, compiled, total, list(kernel.block))
        except opencl.Error as error:
            raise RuntimeFault(
                f"{self.device.name} cannot launch {kernel.name} with grid {tuple(grid)}, block {kernel.block} and "
                f"{kernel.shared_bytes} bytes of local memory: {error}"
            ) from None


def _passed(value: Any) -> Any:
    """A scalar as a kernel takes it: bools as bytes, 16-bit floats by their bits."""
    if isinstance(value, np.bool_):
        return np.uint8(value)
    if isinstance(value, np.generic) and value.dtype.itemsize == 2 and value.dtype.kind not in "iu":
        return np.asarray(value).view(np.uint16)[()]
    return value


def _built(device: OpenCLDevice, program: DeviceProgram) -> Any:
    opencl = device.opencl
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", opencl.CompilerWarning)  # compilers report what they did, not only faults
            return opencl.Program(device.context, program.source).build(options=device.options)
    except opencl.Error as error:
        numbered = "\n".join(f"{n:4} {line}" for n, line in enumerate(program.source.splitlines(), 1))
        raise TargetError(f"{device.name} cannot compile {program.name}: {error}\n{numbered}") from None

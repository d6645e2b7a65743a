"""A program that a device has loaded: what CUDA and OpenCL do alike with its launches and workspaces."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.codegen.c.program import DeviceKernel, DeviceProgram, number


def kernel_arguments(
    kernel: DeviceKernel, given: Mapping[str, Any], size: Callable[[int], Any], passed: Callable[[Any], Any]
) -> list[Any]:
    """What a kernel takes, in order: its constant sizes, and what was given for its other parameters."""
    known = kernel.constants
    return [size(known[name]) if name in known else passed(given[name]) for name in kernel.params]


class LoadedProgram(ABC):
    """Kernels and their workspaces, which live as long as it does."""

    def __init__(self, device: Any, program: DeviceProgram) -> None:
        self.device, self.program = device, program
        self._workspaces: dict[str, tuple[int, Any]] = {}
        self._lock = threading.Lock()

    def run(self, arguments: Mapping[str, Any], stream: Any = None) -> None:
        """Queues the kernels in order, those of one call after those of another; returns before they are done."""
        sizes = {name: int(value) for name, value in arguments.items() if isinstance(value, np.integer)}
        program = self.program.with_sizes(sizes)
        given = dict(arguments)
        with self._lock:
            for workspace in program.workspaces:
                size = max(number(workspace.elements, sizes), 1) * workspace.dtype.bytes
                given[workspace.name] = self._workspace(workspace.name, size)
            for kernel in program.kernels:
                if 0 not in kernel.grid:
                    self.bound(kernel, given).launch(stream)

    def _workspace(self, name: str, size: int) -> Any:
        held, memory = self._workspaces.get(name, (-1, None))
        if held < size:
            memory = self.device.allocate(size)
            self._workspaces[name] = (size, memory)
        return memory

    def bind(self, arguments: Mapping[str, Any]) -> list[Any]:
        """The launches with their arguments."""
        return [self.bound(kernel, arguments) for kernel in self.program.kernels if 0 not in kernel.grid]

    @abstractmethod
    def bound(self, kernel: DeviceKernel, given: Mapping[str, Any]) -> Any:
        """A launch with its arguments: `launch(stream)` queues it, as often as one likes."""

"""Launches with their arguments, recorded as one CUDA graph, timed by events; and arrays of other libraries.

Nothing is put into a stream that somebody else may use while it is recorded: a recording has a stream of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.codegen.c.program import DeviceKernel
from weft.core.errors import ArgumentError, RuntimeFault
from weft.runtime.dlpack_device import borrow_capsule, contiguous_strides
from weft.targets.base import Borrowed
from weft.targets.cuda import driver

DLPACK_CUDA = 2
_EXTERNAL = 1
"""cuEventRecordWithFlags: in a captured graph, a node that records the event whenever the graph runs."""
_DEFAULT_STREAMS = (0, 1)
"""Two names of the default stream, the driver's and DLPack's."""


class BoundLaunch:
    """One kernel with its arguments: ctypes values, in the order of its parameters."""

    def __init__(self, function: driver.Function, kernel: DeviceKernel, values: Sequence[Any]) -> None:
        self.function, self.kernel, self.values = function, kernel, list(values)
        x, y, z = (int(size) for size in kernel.grid if isinstance(size, int))
        self.grid = (x, y, z)

    def queue(self, stream: driver.Stream) -> None:
        """Puts it into a stream."""
        kernel = self.kernel
        self.function.launch(self.grid, kernel.block, self.values, stream, kernel.dynamic_shared_bytes)


class Recording:
    """Launches as one graph; a single driver call queues them all. Nothing to launch is no graph."""

    def __init__(self, device: Any, launches: Sequence[BoundLaunch]) -> None:
        self.device = device
        self.launches = list(launches)
        self.graph = _captured(lambda stream: _queue(self.launches, stream)) if self.launches else None

    def launch(self, stream: driver.Stream | None = None) -> None:
        """Queues the graph."""
        if self.graph is not None:
            self.device.context.activate()
            self.graph.launch(stream or self.device.stream)


def _queue(launches: Sequence[BoundLaunch], stream: driver.Stream) -> None:
    for launch in launches:
        launch.queue(stream)


def _captured(put: Callable[[driver.Stream], None]) -> driver.Graph:
    """What a function puts into a stream, as a graph."""
    stream = driver.Stream()
    stream.begin_capture()
    try:
        put(stream)
    except BaseException:
        try:
            stream.end_capture()
        except RuntimeFault:
            pass  # what went wrong first is the better story
        raise
    return stream.end_capture()


def timer(device: Any, launches: Sequence[BoundLaunch]) -> Callable[[], list[float]]:
    """Seconds of each launch; events stand between them in one graph, so that the host's pace does not show."""
    events = [driver.Event() for _ in range(len(launches) + 1)]

    def put(stream: driver.Stream) -> None:
        _mark(events[0], stream)
        for launch, event in zip(launches, events[1:]):
            launch.queue(stream)
            _mark(event, stream)

    graph = _captured(put)

    def run() -> list[float]:
        device.context.activate()
        graph.launch(device.stream)
        device.stream.synchronize()
        return [after.seconds_since(before) for before, after in zip(events, events[1:])]

    return run


def _mark(event: driver.Event, stream: driver.Stream) -> None:
    driver._call("cuEventRecordWithFlags", event.handle, stream.handle, _EXTERNAL, doing="recording an event")


def stream_of(given: Any) -> driver.Stream:
    """The stream of a handle, or of an object that has one (`cuda_stream` of torch, `ptr` of cupy)."""
    if isinstance(given, driver.Stream):
        return given
    handle = next((getattr(given, name) for name in ("cuda_stream", "ptr", "handle") if hasattr(given, name)), given)
    if not isinstance(handle, int) or isinstance(handle, bool):
        raise ArgumentError(f"a stream is a CUDA stream's handle or an object that has one, not {given!r}")
    return driver.Stream(0 if handle in _DEFAULT_STREAMS else handle)


def stream_near(given: Any) -> driver.Stream | None:
    """The stream in which torch works now, for a tensor of torch's."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(given, torch.Tensor):
        return None
    return stream_of(int(torch.cuda.current_stream(given.device).cuda_stream))


def wait(stream: driver.Stream, other: driver.Stream) -> None:
    """What is put into a stream from here on waits for what is in another now."""
    if stream == other:
        return
    event = driver.Event()
    event.record(other)
    driver._call("cuStreamWaitEvent", stream.handle, event.handle, 0, doing="letting a stream wait")


def borrow(given: Any, number: int, stream: driver.Stream) -> Borrowed | None:
    """An array of another library on the device of this number; work in `stream` comes after what makes it."""
    if hasattr(given, "__dlpack__") and hasattr(given, "__dlpack_device__"):
        kind, place = (int(one) for one in given.__dlpack_device__())
        if kind == DLPACK_CUDA:
            if place != number:
                raise ArgumentError(f"the array lies on cuda:{place}, the model runs on cuda:{number}: move it there")
            return _by_dlpack(given, stream)
    shared = getattr(given, "__cuda_array_interface__", None)
    return None if shared is None else _by_interface(given, shared, stream)


def _by_dlpack(given: Any, stream: driver.Stream) -> Borrowed:
    handle = stream.handle.value or 1
    try:
        capsule = given.__dlpack__(stream=handle)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise ArgumentError(f"it cannot be shared: {error} (for a torch tensor: .detach())") from error
    found = borrow_capsule(capsule)
    return Borrowed(found.address, found.shape, found.dtype.numpy, capsule)


def _by_interface(given: Any, shared: dict[str, Any], stream: driver.Stream) -> Borrowed:
    kind = np.dtype(shared["typestr"])
    shape = tuple(int(size) for size in shared["shape"])
    strides = shared.get("strides")
    if strides is not None and [*strides] != [kind.itemsize * step for step in contiguous_strides(shape)]:
        raise ArgumentError("its elements do not lie one after the other: make a contiguous copy first")
    other = shared.get("stream")
    if other is not None:
        wait(stream, stream_of(int(other)))
    return Borrowed(int(shared["data"][0]), shape, kind, given)

"""NVIDIA's driver by ctypes: contexts, modules, memory, streams, launches, events and captured graphs.

Nothing here knows programs: `weft.targets.cuda.device` runs those. Every call's result is checked; a failure is a
`RuntimeFault` (something went wrong while it ran) or a `TargetError` (there is no driver or no device) that says what
happened and what to do.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from weft.core.errors import RuntimeFault, TargetError

_LIBRARIES = ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "nvcuda.dll")
_OUT_OF_MEMORY, _NO_DEVICE = 2, 100
_STICKY = {
    700: "read or wrote memory that is not its own",
    702: "ran too long and was stopped",
    710: "hit an assertion",
    715: "hit an illegal instruction",
    716: "used a misaligned address",
    717: "used a bad address space",
    718: "jumped to a bad address",
    719: "failed",
}
_ATTRIBUTES = {
    "block_threads": 1, "shared_bytes": 97, "warp": 10, "multiprocessors": 16, "multiprocessor_threads": 39,
    "cache_bytes": 38, "multiprocessor_shared_bytes": 81, "registers": 82, "clock_khz": 13, "major": 75, "minor": 76,
}  # fmt: skip
_DYNAMIC_SHARED = 8
_OF_FUNCTIONS = {"registers": 4}
_CAPTURE_RELAXED = 2
_EXTERNAL = 1
_WAYS = {"HtoD": "to", "DtoH": "from", "DtoD": "on"}


_LAUNCH = {"whole": 2, "early": 6}
"""Attributes of a launch: its blocks all run at a time; it need not wait for the one before it."""


class _LaunchAttribute(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_int), ("padding", ctypes.c_char * 4), ("value", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    ]  # fmt: skip


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"), *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)), ("count", ctypes.c_uint),
    ]  # fmt: skip


def first_library(names: Iterable[str | Path], mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL | None:
    """The first of some libraries that is there and can be loaded."""
    for name in names:
        try:
            return ctypes.CDLL(str(name), mode=mode)
        except OSError:
            continue
    return None


@functools.lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    library = first_library(_LIBRARIES)
    if library is None:
        raise TargetError(
            "there is no NVIDIA driver on this machine (libcuda was not found): programs can be compiled for cuda "
            "here, but not run"
        )
    code = library.cuInit(0)
    if code == _NO_DEVICE:
        raise TargetError("the NVIDIA driver finds no device on this machine (is one visible? CUDA_VISIBLE_DEVICES)")
    if code:
        raise TargetError(f"the NVIDIA driver does not start: {_text(library, code)}")
    return library


def _text(library: ctypes.CDLL, code: int) -> str:
    name, sentence = ctypes.c_char_p(), ctypes.c_char_p()
    library.cuGetErrorName(code, ctypes.byref(name))
    library.cuGetErrorString(code, ctypes.byref(sentence))
    return f"{(sentence.value or b'unknown error').decode()} ({(name.value or str(code).encode()).decode()})"


def _call(function: str, *arguments: Any, doing: str) -> None:
    library = _library()
    code = getattr(library, function)(*arguments)
    if not code:
        return
    if code == _OUT_OF_MEMORY:
        raise RuntimeFault(f"the GPU has not enough memory for {doing}: free some, or use smaller inputs")
    if code in _STICKY:
        raise RuntimeFault(
            f"a kernel {_STICKY[code]} ({_text(library, code)}), noticed while {doing}. The process cannot use the GPU "
            "any more: start it again; compute-sanitizer tells which kernel it was"
        )
    raise RuntimeFault(f"{doing} failed on the GPU: {_text(library, code)}")


def device_count() -> int:
    """How many devices there are; 0 without a driver."""
    try:
        library = _library()
    except TargetError:
        return 0
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return count.value


class Context:
    """One device and its primary context, which every library of this process shares."""

    def __init__(self, number: int) -> None:
        count = device_count()
        if not count:
            _library()
        if not 0 <= number < count:
            raise TargetError(f"there is no device cuda:{number}: this machine has {count} (cuda:0 is the first)")
        self.number = number
        self.handle = ctypes.c_void_p()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(self.handle), number, doing=f"opening cuda:{number}")
        self.activate()

    def activate(self) -> None:
        """Makes it the context of this thread."""
        _call("cuCtxSetCurrent", self.handle, doing=f"choosing cuda:{self.number}")

    @property
    def name(self) -> str:
        """What the device is called."""
        text = ctypes.create_string_buffer(128)
        _call("cuDeviceGetName", text, 128, self.number, doing="asking for the device's name")
        return text.value.decode()

    def attribute(self, name: str) -> int:
        """One fact about the device: a key of _ATTRIBUTES."""
        value = ctypes.c_int()
        _call("cuDeviceGetAttribute", ctypes.byref(value), _ATTRIBUTES[name], self.number, doing=f"asking for {name}")
        return value.value

    def memory(self) -> tuple[int, int]:
        """Free bytes, and bytes in all."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total), doing="asking for free memory")
        return free.value, total.value


@functools.lru_cache(maxsize=16)
def context(number: int) -> Context:
    """The context of a device, opened once."""
    return Context(number)


class _Owned:
    """Something that the driver made, given back when nothing refers to it any more."""

    back = ""
    """The driver's function that takes it back."""

    def __init__(self, make: str, *arguments: Any, doing: str) -> None:
        self.handle = ctypes.c_void_p()
        _call(make, ctypes.byref(self.handle), *arguments, doing=doing)

    def __del__(self) -> None:
        if self.back and self.handle:
            getattr(_library(), self.back)(self.handle)


class Stream(_Owned):
    """A queue of work. `handle` may be one that another library made (torch's, say); 0 is the default one."""

    def __init__(self, handle: int | None = None) -> None:
        self.handle = ctypes.c_void_p(handle)
        if handle is None:
            super().__init__("cuStreamCreate", 1, doing="making a stream")
            self.back = "cuStreamDestroy_v2"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.handle.value or 0) == (other.handle.value or 0)

    def __hash__(self) -> int:
        return hash(self.handle.value or 0)

    def synchronize(self) -> None:
        """Waits until everything in it is done."""
        _call("cuStreamSynchronize", self.handle, doing="waiting for kernels")

    def wait_for(self, other: Stream) -> None:
        """What is put in from here on waits for what is in another now."""
        if self != other:
            event = Event()
            event.record(other)
            _call("cuStreamWaitEvent", self.handle, event.handle, 0, doing="letting a stream wait")


class Graph(_Owned):
    """What a function puts into a stream, recorded: one call launches it."""

    back = "cuGraphExecDestroy"

    def __init__(self, put: Callable[[Stream], None]) -> None:
        stream, self._graph = Stream(), ctypes.c_void_p()
        _call("cuStreamBeginCapture_v2", stream.handle, _CAPTURE_RELAXED, doing="starting to capture a graph")
        try:
            put(stream)
        except BaseException:
            _library().cuStreamEndCapture(stream.handle, ctypes.byref(self._graph))  # what went wrong first is told
            raise
        _call("cuStreamEndCapture", stream.handle, ctypes.byref(self._graph), doing="capturing a graph")
        super().__init__("cuGraphInstantiateWithFlags", self._graph, ctypes.c_ulonglong(0), doing="making a graph")

    def launch(self, stream: Stream) -> None:
        """Puts the recorded work into a stream."""
        _call("cuGraphLaunch", self.handle, stream.handle, doing="launching a graph")

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            super().__del__()
        if self._graph:
            _library().cuGraphDestroy(self._graph)


class Event(_Owned):
    """A point in a stream, with its time."""

    back = "cuEventDestroy_v2"

    def __init__(self) -> None:
        super().__init__("cuEventCreate", 0, doing="making an event")

    def record(self, stream: Stream, in_graph: bool = False) -> None:
        """Puts the point into a stream; `in_graph`: of a captured graph, whenever it runs."""
        name, flags = ("cuEventRecordWithFlags", [_EXTERNAL]) if in_graph else ("cuEventRecord", [])
        _call(name, self.handle, stream.handle, *flags, doing="recording an event")

    def seconds_since(self, earlier: Event) -> float:
        """Time between two points; waits for this one."""
        _call("cuEventSynchronize", self.handle, doing="waiting for an event")
        elapsed = ctypes.c_float()
        _call("cuEventElapsedTime", ctypes.byref(elapsed), earlier.handle, self.handle, doing="reading a time")
        return elapsed.value * 1e-3


class Memory(_Owned):
    """Bytes on the device."""

    back = "cuMemFree_v2"

    def __init__(self, size: int) -> None:
        super().__init__("cuMemAlloc_v2", ctypes.c_size_t(max(size, 16)), doing=f"{size:,} bytes")

    @property
    def address(self) -> int:
        """Where it lies."""
        return self.handle.value or 0


def copy(way: str, to: int, source: int, size: int, stream: Stream) -> None:
    """Memory to memory, by addresses; `way` is a key of _WAYS. Done when the stream gets there."""
    if size:
        places = ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size)
        doing = f"copying {size:,} bytes {_WAYS[way]} the device"
        _call(f"cuMemcpy{way}Async_v2", *places, stream.handle, doing=doing)


class Module(_Owned):
    """Machine code on the device."""

    back = "cuModuleUnload"

    def __init__(self, code: bytes, name: str) -> None:
        super().__init__("cuModuleLoadData", code, doing=f"loading {name}")
        self._functions: dict[str, Function] = {}

    def function(self, name: str, dynamic_shared_bytes: int = 0) -> Function:
        """A kernel by name, allowed so much shared memory."""
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = Function(self, name)
        found.allow_shared(dynamic_shared_bytes)
        return found


_BY_BYTES = {1: 0, 2: 1, 4: 2}
_SWIZZLE_128, _PROMOTION_128 = 3, 2


def tensor_map(
    address: int, element_bytes: int, shape: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> Any:
    """What the copy engine knows a tensor by, for boxes of it in swizzled lines, zero beyond the tensor."""
    room, rank = (ctypes.c_char * 192)(), len(shape)
    skipped = -ctypes.addressof(room) % 64
    dimensions = (ctypes.c_uint64 * rank)(*reversed(shape))
    steps = (ctypes.c_uint64 * max(rank - 1, 1))(*[step * element_bytes for step in reversed(strides[:-1])])
    boxes, ones = (ctypes.c_uint32 * rank)(*reversed(box)), (ctypes.c_uint32 * rank)(*[1] * rank)
    made = (ctypes.c_char * 128).from_buffer(room, skipped)
    _call(
        "cuTensorMapEncodeTiled", made, _BY_BYTES[element_bytes], rank, ctypes.c_void_p(address), dimensions, steps,
        boxes, ones, 0, _SWIZZLE_128, _PROMOTION_128, 0, doing=f"describing a tensor of {tuple(shape)}",
    )  # fmt: skip
    return made


class Function(_Owned):
    """One kernel; it belongs to its module."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.name = module, name
        super().__init__("cuModuleGetFunction", module.handle, name.encode(), doing=f"finding {name}")
        self._allowed = 48 * 1024

    def allow_shared(self, size: int) -> None:
        """Above 48 KB a kernel must be told how much shared memory its launches ask for."""
        if size > self._allowed:
            _call("cuFuncSetAttribute", self.handle, _DYNAMIC_SHARED, size, doing=f"{size:,} bytes of shared memory")
            self._allowed = size

    def held(self, threads: int, dynamic_shared_bytes: int) -> tuple[int, int]:
        """Blocks of so many threads that a multiprocessor holds at a time, and registers of a thread."""
        blocks, registers, asked = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t(dynamic_shared_bytes)
        name, about = "cuOccupancyMaxActiveBlocksPerMultiprocessor", f"asking about {self.name}"
        _call(name, ctypes.byref(blocks), self.handle, threads, asked, doing=about)
        _call("cuFuncGetAttribute", ctypes.byref(registers), _OF_FUNCTIONS["registers"], self.handle, doing=about)
        return blocks.value, registers.value

    def launch(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        stream: Stream,
        shared_bytes: int = 0,
        waits: bool = False,
        is_whole: bool = False,
    ) -> None:
        """Puts a launch into a stream. `arguments` are ctypes values, in the order of the kernel's parameters.

        A kernel that `waits` by itself may be launched while the one before it runs. Where blocks wait for one another
        (`is_whole`), it begins when there is room for all of them.
        """
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(value) for value in arguments])
        doing = f"launching {self.name} with {tuple(grid)} blocks of {tuple(block)} threads"
        if not waits and not is_whole:  # which drivers before 11.8 know, too
            sizes = (*grid, *block, shared_bytes)
            _call("cuLaunchKernel", self.handle, *sizes, stream.handle, pointers, None, doing=doing)
            return
        early = (_LaunchAttribute * 1)(_LaunchAttribute(_LAUNCH["whole" if is_whole else "early"], b"", 1))
        config = _LaunchConfig(*grid, *block, shared_bytes, stream.handle, early, 1)
        _call("cuLaunchKernelEx", ctypes.byref(config), self.handle, pointers, None, doing=doing)

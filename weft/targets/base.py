"""What the rest of the compiler may ask about a machine.

A `Target` is a record of facts; generic code asks for facts, never for a name. Its folder under `weft/targets` adds

    __init__.py     parse(text) -> Target | None, FORMS: lines that show what parse reads
    pipeline.py     lower(func, target) -> Func      the passes from a scheduled Func to what the code generator takes
    intrinsics.py   intrinsics(target) -> {name: emitter}

and, for a machine with blocks of threads (`Target.threads`),

    pipeline.py     generate(func, target) -> DeviceProgram   the source and launches of a lowered Func
    device.py       open_device(target) -> Device             memory, and programs to run (see `Device`)
                    machine_codes(programs, target)           machine code of programs, where that needs no device
    stages.py       STAGES: name -> (text of a DeviceProgram, language), what `weft inspect` can show
    __init__.py     local_devices() -> list of LocalDevice    those of this machine
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from weft.core import log
from weft.core.errors import TargetError

logger = logging.getLogger("weft.targets")


@dataclass(frozen=True, slots=True)
class Scope:
    """A kind of memory. `slots` > 0: no addresses but so many registers (or banks) of `slot_bytes` each."""

    name: str
    slots: int = 0
    slot_bytes: int = 0
    threads: int = 0
    """How many threads hold a slot together; 0: those of a warp."""


def plain_scopes(*names: str) -> dict[str, Scope]:
    """Scopes that are ordinary memory."""
    return {name: Scope(name) for name in names}


@dataclass(frozen=True, slots=True)
class LocalDevice:
    """A device of this machine, as `weft devices` lists it."""

    target: Target
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """What a machine with blocks of threads has: what schedules for "blockIdx" and "threadIdx" are made from."""

    multiprocessors: int
    """How many blocks can run at the same time, each on a part of the machine of its own."""
    warp: int
    """Threads that run in step."""
    block_threads: int
    """The most threads of a block."""
    multiprocessor_threads: int
    """The most threads that a multiprocessor holds at a time."""
    shared_bytes: int
    """The most shared memory of a block."""
    multiprocessor_shared_bytes: int
    registers: int
    """32-bit registers of a multiprocessor; 0 where that is not known."""
    cache_bytes: int
    """The cache that all multiprocessors share."""
    vector_bytes: int = 16
    """The widest load or store of one thread."""
    tensor_cores: frozenset[str] = frozenset()
    """The element types that matrix instructions take: "float16", "bfloat16", "tfloat32", "int8"."""
    has_warpgroups: bool = False
    """Whether matrix instructions take operands in shared memory for 128 threads together."""
    has_async_copy: bool = False
    """Whether copies into shared memory can run while threads do other work."""
    gigahertz: float = 1.0
    lanes: int = 128
    """Multiplications and additions of float32 that a multiprocessor does in one cycle."""
    matrix_products: int = 0
    """Products of 16-bit floats that its matrix instructions do in one cycle; bytes are twice as many, tf32 half."""
    model: Any = None
    """The numbers of a cost model that were fitted to the machine; None where nobody has measured it."""


class Executable(Protocol):
    """A program that a device has loaded."""

    def run(self, arguments: Mapping[str, Any]) -> None:
        """Launches all its kernels: device memory for each buffer, a numpy scalar for each scalar and size, by name.

        Returns when they are queued, which may be before they are done.
        """

    def bind(self, arguments: Mapping[str, Any]) -> list[Any]:
        """The launches of a program of fixed sizes, in order, each with its arguments, for `Device.record`.

        `arguments` has memory for the workspaces too.
        """


class Recording(Protocol):
    """Launches that are queued together, as often as one likes."""

    def launch(self, stream: Any = None) -> None:
        """Queues them all; returns before they are done."""


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An array of another library in the device's memory: the memory, and what keeps it alive."""

    memory: Any
    shape: tuple[int, ...]
    dtype: Any
    """As numpy names it."""
    keep: Any


class Device(Protocol):
    """A device of this machine. Memory is whatever `allocate` gives; its start is a multiple of 16 bytes at least.

    A stream is a queue in which work is done in order; None is the device's own.
    """

    name: str

    def allocate(self, size: int) -> Any:
        """Memory of so many bytes, freed when nothing refers to it any more."""

    def write(self, memory: Any, source: Any, stream: Any = None) -> None:
        """Copies a contiguous numpy array into device memory; done when it returns."""

    def read(self, memory: Any, into: Any, stream: Any = None) -> None:
        """Copies device memory into a contiguous numpy array, after all that was queued; done when it returns."""

    def copy(self, memory: Any, source: Any, size: int, stream: Any = None) -> None:
        """Queues a copy of so many bytes from one memory to another."""

    def synchronize(self, stream: Any = None) -> None:
        """Waits until all that was queued is done."""

    def load(self, program: Any) -> Executable:
        """A DeviceProgram compiled and ready to run."""

    def load_all(self, programs: Sequence[Any], codes: Sequence[bytes] = ()) -> list[Executable]:
        """Several, compiled together; `codes` is their machine code where `Target.machine_codes` made it before."""

    def part(self, memory: Any, offset: int, size: int) -> Any:
        """The memory that begins so many bytes (a multiple of `Target.part_bytes`) after the start of another."""

    def record(self, launches: Sequence[Any]) -> Recording:
        """Bound launches as one thing to queue."""

    def timer(self, launches: Sequence[Any]) -> Callable[[], list[float]]:
        """A function that runs bound launches and tells how many seconds each took."""

    def stream_of(self, given: Any) -> Any:
        """The stream that something of another library stands for (its handle, or an object that has one)."""

    def borrow(self, given: Any, stream: Any = None) -> Borrowed | None:
        """An array of another library that lies on this device, ready for use in a stream; None for anything else."""

    def address(self, memory: Any) -> int | None:
        """The address by which other libraries know memory; None where there is no such thing."""

    def dlpack_device(self) -> tuple[int, int] | None:
        """How DLPack names the device; None where its memory is not shared."""

    def stream_near(self, given: Any) -> Any:
        """The stream in which the library of an array works now; None where it does not say."""

    def share(self, ours: Any, theirs: int | None) -> bool:
        """Lets a stream of another library (DLPack's number for it) wait for ours; whether the two are one."""


@dataclass(frozen=True, slots=True)
class Target:
    """The facts about one machine."""

    kind: str
    """What sort of machine: the name of its folder."""
    name: str
    """How a person names it: the text that `find_target` read."""
    triple: str
    cpu: str
    features: frozenset[str]
    """What the processor has, as LLVM names it; an entry "-avx2" says that it lacks something its cpu has."""
    vector_bytes: int
    """Bytes of one vector register; 0 where there are none."""
    vector_registers: int
    cache_bytes: tuple[int, int, int]
    """First (data), second and third level; the third is shared by the cores. 0 where there is none."""
    cores: int
    has_fma: bool
    pointer_bytes: int = 8
    scopes: Mapping[str, Any] = field(default_factory=lambda: plain_scopes("global", "local", "shared"))
    package: str = ""
    """The folder's module name, for its pipeline and intrinsics."""
    is_host: bool = False
    """Whether this process can run its code."""
    threads: ThreadFacts | None = None
    """For a machine with blocks of threads, what it has of them; None for one without."""
    part_bytes: int = 64
    """Values that share a piece of memory begin at multiples of so many bytes."""

    def __hash__(self) -> int:
        return hash((self.kind, self.triple, self.cpu, self.features))

    def lanes(self, dtype: Any) -> int:
        """How many elements of a dtype one vector register holds; at least 1."""
        return max(1, self.vector_bytes // int(dtype.bytes))

    def with_features(self, *changes: str) -> Target:
        """The same machine with features added ("avx512bf16") or taken away ("-avx512f"). Its other facts stay."""
        names = {change.lstrip("+-") for change in changes}
        kept = {feature for feature in self.features if feature.lstrip("-") not in names}
        return replace(self, features=frozenset(kept | {change.lstrip("+") for change in changes}))

    def lower(self, func: Any) -> Any:
        """A scheduled Func as this target's code generator takes it."""
        lowered = self._part("pipeline").lower(func, self)
        if logger.isEnabledFor(log.PROGRAM):
            logger.log(log.PROGRAM, "for %s:\n%r", self.name, lowered)
        return lowered

    def generate(self, func: Any) -> Any:
        """The DeviceProgram of a lowered Func; only where there are blocks of threads."""
        return self._part("pipeline").generate(func, self)

    def device(self) -> Device:
        """The device of this machine that runs the target's programs."""
        found: Device = self._part("device").open_device(self)
        return found

    def machine_codes(self, programs: Sequence[Any]) -> list[bytes]:
        """The machine code of device programs together; nothing where only the device itself compiles them."""
        found: list[bytes] = self._part("device").machine_codes(programs, self)
        return found

    def stages(self) -> Mapping[str, Any]:
        """What can be shown of a program: name -> (function of the program and the target, language)."""
        found: Mapping[str, Any] = self._part("stages").STAGES if self.threads is not None else {}
        return found

    def intrinsics(self) -> Mapping[str, Any]:
        """The target's own intrinsics: name -> emitter."""
        found: Mapping[str, Any] = self._part("intrinsics").intrinsics(self)
        return found

    def _part(self, part: str) -> Any:
        name = f"{self.package}.{part}"
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, self.package):
                raise
            raise TargetError(f"the target {self.name} has no {part} ({name} is missing)") from None

    def __str__(self) -> str:
        return self.name

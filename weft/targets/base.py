"""What the rest of the compiler may ask about a machine, and what a machine must bring.

A `Target` is a record of facts about one machine; generic code asks for facts, never for a name. How code is made for
machines of its kind stands in a `TargetSpec`, the manifest: plain functions and data, checked when it is made. A folder
under `weft/targets` has one as `TARGET`; a package of somebody else's hands one to `registry.register`, or names it as
an entry point in the group "weft.targets". docs/add-a-target.md builds one from nothing.

    TARGET = TargetSpec(
        kind="cpu",
        forms=("native    this machine",),        what `parse` reads, a line for each form
        parse=parse,                              text -> Target, or None
        lower=lower,                              scheduled Func -> Func as the code generator takes it
        schedule=default_schedule,                chooses the schedule of a program, in place
        device=None,                              native code through LLVM; a DeviceSpec: programs for a device
    )
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weft.core import log
from weft.core.errors import ArgumentError, TargetError
from weft.core.knobs import knobs

if TYPE_CHECKING:
    from weft.codegen.c.program import DeviceProgram
    from weft.expr.nodes import Buffer, Var
    from weft.graph.ir import Array, Graph, Node
    from weft.graph.passes.algorithms import Alternative
    from weft.graph.passes.pad_channels import Prices
    from weft.loop.ir import Func
    from weft.schedule.schedule import Schedule
    from weft.targets.peaks import Peaks

logger, passes_logger = logging.getLogger("weft.targets"), logging.getLogger("weft.lower")


@dataclass(frozen=True, slots=True)
class Scope:
    """A kind of memory. `slots` > 0: no addresses but so many registers (or banks) of `slot_bytes` each."""

    name: str
    slots: int = 0
    slot_bytes: int = 0
    threads: int = 0
    """How many threads hold a slot together; 0: those of a warp."""


def later(path: str) -> Callable[..., Any]:
    """The function "module:name" for a manifest, imported when it is called.

    Manifests are read whenever any target is looked for: what they name is imported by those who use it.
    """
    made, (module, _, name) = functools.partial(_imported, path), path.partition(":")
    vars(made).update(__module__=module, __name__=name)
    return made


def _imported(path: str, *arguments: Any) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)


def plain_scopes(*names: str) -> dict[str, Scope]:
    """Scopes that are ordinary memory."""
    return {name: Scope(name) for name in names}


def run_passes(func: Func, passes: Iterable[Callable[[Func], Func]]) -> Func:
    """A program through passes, in order: what a target's `lower` is made of. The log says which took long."""
    taken: list[tuple[float, str]] = []
    is_verified = knobs.verify
    for run in passes:
        start = time.thread_time()
        func = run(func)
        taken.append((time.thread_time() - start, run.__name__))
        if is_verified:
            from weft.loop.verifier import verify

            verify(func)
    if passes_logger.isEnabledFor(logging.DEBUG):
        most = ", ".join(f"{name} {seconds:.3f}" for seconds, name in sorted(taken, reverse=True)[:5])
        passes_logger.debug("%s: %.3f s in passes: %s", func.name, sum(seconds for seconds, _ in taken), most)
    return func


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
    """The element types that matrix instructions take: "float16", "bfloat16", "tfloat32", "int8", "float8"."""
    has_warpgroups: bool = False
    """Whether matrix instructions take operands in shared memory for 128 threads together."""
    has_async_copy: bool = False
    """Whether copies into shared memory can run while threads do other work."""
    overlaps_launches: bool = False
    """Whether a kernel can be launched while the one before it runs, and wait for it by itself."""
    exchanges_registers: bool = False
    """Whether threads that run in step can read one another's registers."""
    gigahertz: float = 1.0
    lanes: int = 128
    """Multiplications and additions of float32 that a multiprocessor does in one cycle."""
    matrix_products: int = 0
    """Products of 16-bit floats that its matrix instructions do in one cycle; bytes are twice as many, tf32 half."""
    model: Any = None
    """The numbers of a cost model that were fitted to the machine; None where nobody has measured it."""


@dataclass(frozen=True, slots=True)
class MatrixFacts:
    """Instructions that multiply several narrow elements of a row at once: tile registers, or dot products."""

    dtypes: frozenset[str]
    """The elements that they take: of a few channels they would leave most of an operand idle."""
    rows: int = 1
    """Rows of a tile register; 1 where an instruction takes vectors."""
    most_bytes: int = 1
    """Of the widest of the elements."""
    together: int = 0
    """Bytes of channels that an instruction takes of a place: neighbours then lie side by side; 0 where it is more."""


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


class Recording:
    """Launches that are queued together, as often as one likes: here, each in turn by its own `launch(stream)`."""

    def __init__(self, launches: Sequence[Any]) -> None:
        self.launches = list(launches)

    def launch(self, stream: Any = None) -> None:
        """Queues them all; returns before they are done."""
        for launch in self.launches:
            launch.launch(stream)


@dataclass(frozen=True, slots=True)
class Borrowed:
    """An array of another library in the device's memory: the memory, and what keeps it alive."""

    memory: Any
    shape: tuple[int, ...]
    dtype: Any
    """As numpy names it."""
    keep: Any


@dataclass(frozen=True, slots=True)
class Residence:
    """How a launch lies on a machine of multiprocessors: what is counted, not measured."""

    blocks: int
    threads: int
    """Of a block."""
    registers: int
    """Of a thread."""
    shared_bytes: int
    resident: int
    """Blocks that a multiprocessor holds at a time."""
    multiprocessors: int
    multiprocessor_threads: int

    @property
    def waves(self) -> float:
        """Blocks over those that the machine holds at a time: below 1 it is not full, a little above it is twice."""
        return self.blocks / max(1, self.resident * self.multiprocessors)

    @property
    def occupancy(self) -> float:
        """The part of the machine's threads that run at a time."""
        held = min(self.resident, -(-self.blocks // self.multiprocessors))
        return held * self.threads / self.multiprocessor_threads * min(1.0, self.blocks / self.multiprocessors)


class Device(Protocol):
    """A device of this machine. Memory is whatever `allocate` gives; its start is a multiple of 16 bytes at least.

    A stream is a queue in which work is done in order; None is the device's own. A class that derives from this one has
    what can be said of any device: one that shares nothing with other libraries, and has no clock of its own.
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
        """Waits until all that was queued is done; nothing to wait for where a launch returns when it is done."""

    def load(self, program: Any) -> Executable:
        """A DeviceProgram compiled and ready to run."""
        return self.load_all([program])[0]

    def load_all(self, programs: Sequence[Any], codes: Sequence[bytes] = ()) -> Sequence[Executable]:
        """Several, compiled together; `codes` is their machine code where `Target.machine_codes` made it before."""

    def part(self, memory: Any, offset: int, size: int) -> Any:
        """The memory that begins so many bytes (a multiple of `Target.part_bytes`) after the start of another."""

    def record(self, launches: Sequence[Any]) -> Recording:
        """Bound launches as one thing to queue."""
        return Recording(launches)

    def timer(self, launches: Sequence[Any]) -> Callable[[], list[float]]:
        """A function that runs bound launches and tells how many seconds each took: here, by the host's clock."""

        def measured(launch: Any) -> float:
            begin = time.perf_counter()
            launch.launch()
            self.synchronize()
            return time.perf_counter() - begin

        return lambda: [measured(launch) for launch in launches]

    def stretch(self, launches: Sequence[Any]) -> Callable[[], float]:
        """A function that runs bound launches as a model does, and tells the seconds from the first to the last."""
        timer = self.timer(launches)
        return lambda: sum(timer())

    def residence(self, launch: Any) -> Residence | None:
        """How a bound launch lies on the machine; None where that is not known."""
        return None

    def stream_of(self, given: Any) -> Any:
        """The stream that something of another library stands for (its handle, or an object that has one)."""
        raise ArgumentError(f"{self.name} has no streams but its own")

    def borrow(self, given: Any, stream: Any = None) -> Borrowed | None:
        """An array of another library that lies on this device, ready for use in a stream; None for anything else."""
        return None

    def address(self, memory: Any) -> int | None:
        """The address by which other libraries know memory; None where there is no such thing."""
        return None

    def dlpack_device(self) -> tuple[int, int] | None:
        """How DLPack names the device; None where its memory is not shared."""
        return None

    def stream_near(self, given: Any) -> Any:
        """The stream in which the library of an array works now; None where it does not say."""
        return None

    def share(self, ours: Any, theirs: int | None) -> bool:
        """Lets a stream of another library (DLPack's number for it) wait for ours; whether the two are one."""
        raise ArgumentError(f"{self.name} shares no stream through DLPack")


def fact_text(value: Any) -> str:
    """Facts as text that is the same in every process: sets have no order of their own, in whatever they stand."""
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(fact_text, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(f'{key!r}: {fact_text(one)}' for key, one in value.items()))}}}"
    if is_dataclass(value) and not isinstance(value, type):
        facts = ", ".join(f"{one.name}={fact_text(getattr(value, one.name))}" for one in fields(value))
        return f"{type(value).__name__}({facts})"
    return repr(value)


@functools.lru_cache(maxsize=16)
def text_of(target: Target) -> str:
    """The facts about a machine as text."""
    return fact_text(target)


@dataclass(frozen=True, slots=True)
class Target:
    """The facts about one machine."""

    kind: str
    """What sort of machine: the name in its manifest."""
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
    scopes: Mapping[str, Scope] = field(default_factory=lambda: plain_scopes("global", "local", "shared"))
    is_host: bool = False
    """Whether its code can run here: in this process, or on a device of this machine."""
    threads: ThreadFacts | None = None
    """For a machine with blocks of threads, what it has of them; None for one without."""
    matrix: MatrixFacts | None = None
    """For a processor whose vectors or tiles multiply narrow elements together, which; None for one without."""
    narrow_products: frozenset[str] = frozenset()
    """Elements narrower than float32 whose matrix products are faster: inputs are worth converting to them."""
    precisions: frozenset[str] = frozenset({"bf16"})
    """Precisions below float32 that it runs no slower: "bf16", "fp16", and "tf32", which rounds operands as they are
    read."""
    blocks_channels: bool = False
    """Whether a vector of channels lies together in values between kernels."""
    channels_last: frozenset[str] = frozenset()
    """Types of values between kernels of which all channels of a place lie together: a convolution reads rows of them,
    as a matrix product does."""
    part_bytes: int = 64
    """Values that share a piece of memory begin at multiples of so many bytes."""
    measured: tuple[tuple[str, float], ...] = ()
    """Facts that were measured on this machine (`weft doctor --calibrate`), by name; they replace what is listed."""

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

    @property
    def spec(self) -> TargetSpec:
        """The manifest of its kind."""
        from weft.targets.registry import manifest_of

        return manifest_of(self.kind)

    @property
    def on_device(self) -> bool:
        """Whether its kernels are programs for a device with memory of its own; else they are native code."""
        return self.spec.device is not None

    def lower(self, func: Func) -> Func:
        """A scheduled Func as this target's code generator takes it."""
        lowered = self.spec.lower(func, self)
        if logger.isEnabledFor(log.PROGRAM):
            logger.log(log.PROGRAM, "for %s:\n%r", self.name, lowered)
        return lowered

    def intrinsics(self) -> Mapping[str, Any]:
        """The target's own intrinsics: name -> emitter."""
        return self.spec.intrinsics(self)

    def generate(self, func: Func) -> DeviceProgram:
        """The program of a lowered Func, for a device."""
        return self._device_spec().generate(func, self)

    def device(self) -> Device:
        """The device of this machine that runs the target's programs."""
        return self._device_spec().open(self)

    def machine_codes(self, programs: Sequence[DeviceProgram]) -> list[bytes]:
        """The machine code of device programs together; nothing where only the device itself compiles them."""
        return self._device_spec().machine_codes(programs, self)

    def _device_spec(self) -> DeviceSpec:
        found = self.spec.device
        if found is None:
            raise TargetError(f"the target {self.name} is no device: its programs are native code, made by weft.build")
        return found

    def __str__(self) -> str:
        return self.name


# ------------------------------------------------------------------------------------------------------- manifests


Stage = tuple[Callable[["DeviceProgram", Target], str], str]
"""A text of a device program that `weft inspect` shows, and the language it is in."""


class Check(NamedTuple):
    """What `weft doctor` tells of a machine: whether it is as it should be, and else how to mend it."""

    what: str
    is_right: bool
    detail: str
    mend: str = ""


def _function(*takes: str, default: Any = None, may_lack: bool = False) -> Any:
    """A field that is a function of these; one without a default has to be given, or else `may_lack`.

    A manifest that lacks others is refused with all that is wrong.
    """
    return field(default=default, metadata={"takes": takes, "may_lack": may_lack})


@dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """How the lowered programs of a kind of machine become programs of a device, and what runs them."""

    generate: Callable[[Func, Target], DeviceProgram] = _function("func", "target")
    """What the device takes (source text or a stream of instructions), its launches, and the memory between them."""
    open: Callable[[Target], Device] = _function("target")
    """The device that a target stands for; a TargetError where it is none of this machine."""
    machine_codes: Callable[[Sequence[DeviceProgram], Target], list[bytes]] = _function(
        "programs", "target", default=lambda programs, target: []
    )
    """Machine code of programs, where it can be made without the device: a module file keeps it."""
    stages: Mapping[str, Stage] = field(default_factory=dict)
    """What `weft inspect` can show of a program, by name."""
    rest: str = ""
    """The target that compiles the nodes whose programs the device refuses; without one the host interprets them."""


_optional = functools.partial(_function, "target", may_lack=True)


@dataclass(frozen=True, kw_only=True)
class Algorithms:
    """What a kind of machine proposes for parts of a graph, by facts and prices: functions that make the proposers.

    None: nothing of that sort.
    """

    attention: Callable[[Target], Callable[[Sequence[int], str], Sequence[int] | None]] | None = _optional()
    """For `fuse_attention`: the padded sizes of attention in one kernel, or None."""
    joined: Callable[[Target], Callable[[Sequence[int], str], bool]] | None = _optional()
    """For `join_heads`: whether attention of these sizes turns its queries itself."""
    open_attention: bool = False
    """Whether it is asked about open sizes: of minus a typical number it gives minus the factor of what it pads to."""
    causal_block: int | None = None
    """Queries of the blocks that causal attention is worth cutting into; None: a kernel computes all scores."""
    skips_taps: bool = False
    """Whether loops pass over the zeros that `fill_kernels` puts behind kernels of transposed convolutions."""
    caches: bool = False
    """Whether its driver knows `update_caches`."""
    loops_by_data: bool = False
    """Whether loops whose ends or writes data decide serve `cached_attention` and `find_places`."""
    weights: Callable[[Target], Callable[[Array, int], tuple[Array, Array, Array] | None]] | None = _optional()
    """For `fix_weights`: a weight in fewer bytes, or None."""
    few_bits: Callable[[Target], Callable[[int, int], tuple[str, int] | None]] | None = _optional()
    """For `few_bits`: the type of bytes and the width of panels for a product of so many rows and columns, or None."""
    dots: Callable[[Target], Mapping[tuple[str, str], int]] | None = _optional()
    """For `fill_rows`: how many channels of images operators on a type multiply at once, and only so."""
    signed: Callable[[Target], bool] | None = _optional()
    """For `signed_data`: whether bytes are multiplied fast where both are signed, and not where one is."""
    narrow: Callable[[Target], Callable[[int, int], bool]] | None = _optional()
    """For `narrow_weights`: whether so many rows wait for a weight of so many bytes."""
    merged: Callable[[Target], Callable[[int, int, Sequence[int], bool], bool]] | None = _optional()
    """For `merge_products`: whether products of so many rows (0: an open number) and elements with matrices of so many
    columns each are faster as one, where elementwise work on them is or is not an epilogue of theirs."""
    streams: Callable[[Target], Callable[[int, int], bool]] | None = _optional()
    """For `fuse`: whether a product of so many rows of so many elements with constants computes the rows itself."""
    groups: Callable[[Target], Callable[[int, int, int, tuple[int, ...], int], int]] | None = _optional()
    """For `groups_in_parts`: of batch, channels, groups, space and bytes of an element the places of a part, or 0."""
    products: Callable[[Target, int, Mapping[Var, int]], Callable[[Node, Array], Sequence[Alternative]]] | None = (
        _optional("model_bytes", "sizes")
    )
    """For `choose_algorithms`, in a model with so many bytes of weights and typical open sizes: the other algorithms
    for a node."""
    offload: Callable[[Graph, Target], Graph] | None = _function("graph", "target", may_lack=True)
    """Puts operators of the machine's own for what it is made for; the answers of the graph stay the same."""
    channels: Callable[[Target, int], Prices | None] | None = _optional("model_bytes")
    """For `pad_channels`, in a model with so many bytes of weights: what operators take with so many channels."""


@dataclass(frozen=True, kw_only=True)
class TargetSpec:
    """The manifest of a kind of machine: all that the compiler asks of it. Checked when it is made.

    A manifest is read whenever any target is looked for: functions in other files stand in it by `later`.
    """

    kind: str = None  # type: ignore[assignment]
    forms: tuple[str, ...] = None  # type: ignore[assignment]
    """Lines that show what `parse` reads: a text, spaces, what it means."""
    parse: Callable[[str], Target | None] = _function("text")
    """The target that a text stands for; None when it speaks of something else."""
    lower: Callable[[Func, Target], Func] = _function("func", "target")
    """The passes from a scheduled program to what the code generator takes."""
    schedule: Callable[[Schedule, Target, Collection[Buffer]], None] = _function("schedule", "target", "constants")
    """Chooses the schedule of a program, in place; the buffers never change, so that copies of them are made once."""
    device: DeviceSpec | None = None
    """How programs become a device's; None: they become native code for a processor, through LLVM."""
    intrinsics: Callable[[Target], Mapping[str, Any]] = _function("target", default=lambda target: {})
    """Emitters of the machine's own instructions, by name, for `codegen/llvm` or `codegen/c`."""
    algorithms: Algorithms = Algorithms()
    """What is proposed for parts of a graph."""
    peaks: Callable[[Target, int], Peaks] | None = _optional("threads")
    """Measures what the machine can do at most, for so many threads."""
    calibrate: Callable[[Target], Mapping[str, float]] | None = _optional()
    """Measures the facts that its costs are made of, and keeps them for `parse`; None where that cannot be done."""
    startup: Callable[[Target, Iterable[bytes]], str] | None = _optional("codes")
    """LLVM IR of the check that an exported library begins with; None: no libraries are made."""
    flags: Callable[[Target], list[str]] = _function("target", default=lambda target: [])
    """What a processor must list in /proc/cpuinfo to run code for a target: what a module file is refused by."""
    local_devices: Callable[[], list[LocalDevice]] = _function(default=lambda: [])  # noqa: PIE807 — ours, in a file
    """The devices of this machine, as `weft devices` lists them."""
    examine: Callable[[Target], Iterable[Check]] = _function("target", default=lambda target: ())
    """What `weft doctor` tells of a machine."""

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise TargetError(f"the manifest of the target {self.kind!r} is wrong: {'; '.join(problems)}")

    def parts(self) -> dict[str, Any]:
        """All that is given, by its path: "kind", "device.open", …"""
        return {path: value for path, value, _ in parts_of(self)}


def parts_of(spec: Any, path: str = "") -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """The parts of a manifest: path, what is given, and for a function what it is called with ("takes")."""
    for one in fields(spec):
        value = getattr(spec, one.name)
        if isinstance(value, (DeviceSpec, Algorithms)):
            yield from parts_of(value, f"{one.name}.")
        else:
            yield f"{path}{one.name}", value, one.metadata


def _problems(spec: TargetSpec) -> Iterable[str]:
    """What is wrong with a manifest, a sentence each."""
    if not isinstance(spec.kind, str) or not spec.kind.isidentifier():
        yield f"kind is a name such as 'cuda', not {spec.kind!r}"
    if (
        not isinstance(spec.forms, tuple)
        or not spec.forms
        or not all(isinstance(line, str) and line.strip() and "\n" not in line for line in spec.forms)
    ):
        yield f"forms is a tuple of lines that show what parse reads, at least one, not {spec.forms!r}"
    if spec.device is not None and not isinstance(spec.device, DeviceSpec):
        yield f"device is a DeviceSpec, or None for native code, not {spec.device!r}"
    if not isinstance(spec.algorithms, Algorithms):
        yield f"algorithms is a record Algorithms(…), not {spec.algorithms!r}"
    for name, value, known in parts_of(spec):
        if "takes" in known and not (value is None and known["may_lack"]):
            yield from _misfits(name, value, known["takes"])
    stages = spec.device.stages if isinstance(spec.device, DeviceSpec) else {}
    if not isinstance(stages, Mapping):
        yield f"device.stages is a mapping from names to pairs, not {stages!r}"
        stages = {}
    for name, stage in stages.items():
        if not (isinstance(stage, tuple) and len(stage) == 2 and isinstance(stage[1], str)):
            yield f"device.stages[{name!r}] is a pair of a function (program, target) and a language"
        else:
            yield from _misfits(f"device.stages[{name!r}]", stage[0], ("program", "target"))
    if spec.startup is not None and spec.device is not None:
        yield "startup is for native code: a device's programs make no library"


def _misfits(name: str, function: Any, takes: tuple[str, ...]) -> Iterable[str]:
    wanted = f"{name} is a function of ({', '.join(takes)})"
    if function is None:
        yield f"{name} is missing: {wanted}"
    elif not callable(function):
        yield f"{wanted}, not {function!r}"
    else:
        try:
            inspect.signature(function).bind(*takes)
        except ValueError:
            return  # a function of C's that does not say what it takes
        except TypeError:
            given = getattr(function, "__qualname__", repr(function))
            yield f"{wanted}, and {given}{inspect.signature(function)} cannot be called so"

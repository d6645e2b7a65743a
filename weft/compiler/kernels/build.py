"""Scheduled programs to machine code: constants packed ahead, kernels deduplicated, lowered and compiled on all cores.

In: a `GroupProgram`. Out: a `Kernel` (symbol, object code, how it got there) and the parameters that a call takes.
A copy of a constant that a schedule makes (a packed weight) is taken out of the kernel: it is made now, once.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from weft.builder import with_arguments
from weft.codegen.c.program import DeviceProgram
from weft.codegen.llvm import compile as llvm_compile
from weft.codegen.llvm.generate import entry_symbol, generate
from weft.compiler.cache.models import weft_itself
from weft.compiler.kernels.borders import fill_borders
from weft.compiler.kernels.inplace import overwritable
from weft.compiler.kernels.program import GroupProgram, Programs
from weft.compiler.kernels.workers import Job, Workers, elsewhere
from weft.core import model
from weft.core.errors import ExpressionError, TargetError
from weft.core.knobs import knobs
from weft.expr.digits import Digit, are_whole, digit_of
from weft.expr.nodes import LT, Buffer, Const, Expr, Load, Select, Var, int_value, is_true
from weft.expr.visit import free_vars, uses_any
from weft.graph.ir import Array, Graph, Value
from weft.graph.passes.layout import Layout
from weft.graph.shapes import typical
from weft.loop.ir import Block, Func, Seq, Stmt, Store, seq
from weft.loop.passes.keep_wide import keep_wide
from weft.loop.passes.turn_loops import turns_by_call
from weft.loop.regions import conjuncts
from weft.loop.tree import BUFFER_NOTES, blocks_in, loops_in
from weft.loop.verifier import verify
from weft.plan.overrides import Records, apply_override, apply_record, digest, records
from weft.plan.planner import picks_by_default
from weft.plan.typical import plan_typical
from weft.runtime.cache_folder import cache_folder
from weft.runtime.object_cache import kept_object
from weft.schedule.schedule import Tried
from weft.schedule.trace import Trace
from weft.targets.base import Target, text_of

logger = logging.getLogger("weft.compiler")


@dataclass(frozen=True)
class Code:
    """What lowering and LLVM make of a kernel: the text of LLVM IR, object code, and whether it turns by the call.

    For a device it is a `program` (source and launches) instead of LLVM IR, and its machine code where that is made
    without the device.
    """

    llvm_ir: str
    object_code: bytes
    turns: bool
    program: DeviceProgram | None = None


@dataclass
class Kernel:
    """One piece of machine code, `int32_t symbol(const int64_t *args, int64_t threads)`, and how it came about."""

    symbol: str
    label: str
    scheduled: Func
    code: Job[Code] = field(default_factory=lambda: Job(lambda: Code("", b"", False)))
    """Nothing of a kernel that is only planned."""
    record: Trace | None = None
    """The tuner's record that it was scheduled by; None where the planner chose."""
    trace: Trace = field(default_factory=Trace)
    """The steps of its schedule, those that lay out its parameters included."""
    tried: Sequence[Tried] = ()
    """What the planner tried, with what it would have tried next."""

    @property
    def object_code(self) -> bytes:
        """The object file; of a device its machine code, empty where only the device makes that."""
        return self.code.result().object_code

    @property
    def program(self) -> DeviceProgram | None:
        """What a device takes; None for native code."""
        return self.code.result().program

    @property
    def llvm_ir(self) -> str:
        """The program that LLVM gets; empty for a device."""
        return self.code.result().llvm_ir

    @property
    def turns(self) -> bool:
        """Whether it is told which call is an odd one."""
        return self.code.result().turns


Part = tuple[int, Digit]
"""An axis, and which digit of it."""


@dataclass(frozen=True)
class Packing:
    """A constant as a kernel wants it: padded to `sizes`, axes cut into digits and put in order (None: always 0)."""

    source: int
    sizes: tuple[int, ...]
    order: tuple[Part | None, ...]
    first: Packing | None = None
    """What is done to the constant before."""

    def apply(self, array: Array) -> Array:
        """The packed array, zeros where an axis does not fill its digits."""
        return np.ascontiguousarray(self.view(array))

    def view(self, array: Array) -> Array:
        """The packed array, but where its elements lie in memory."""
        array = array if self.first is None else self.first.view(array)
        pads: list[tuple[int, int]] = []
        shape: list[int] = []
        place: dict[Part, int] = {}
        for axis, size in enumerate(self.sizes):
            digits = sorted(_digits(self.order, axis), key=lambda digit: -digit.step)
            tops = -(-size // digits[0].step)
            pads.append((0, tops * digits[0].step - array.shape[axis]))
            for digit in digits:
                place[(axis, digit)] = len(shape)
                shape.append(digit.count or tops)
        padded = np.pad(array, pads) if any(after for _, after in pads) else array
        ordered = padded.reshape(shape).transpose([place[part] for part in self.order if part is not None])
        units = [position for position, part in enumerate(self.order) if part is None]
        return np.expand_dims(ordered, units)


def _digits(order: Sequence[Part | None], axis: int) -> list[Digit]:
    return [part[1] for part in order if part is not None and part[0] == axis]


@dataclass(frozen=True)
class Lifted:
    """A kernel's program, and its parameters: positions of the group's, or packings of constant ones."""

    func: Func
    parameters: tuple[int | Packing, ...]


def plan_schedule(
    program: GroupProgram,
    target: Target,
    fixed: Sequence[Buffer],
    sizes: Mapping[str, int] | None = None,
    record: Trace | None = None,
) -> bool:
    """Gives a program its schedule: a record's, or what the target chooses without a trial; whether it is the record's.

    `fixed` are parameters that never change, `sizes` what its open sizes typically are.
    """
    if record is not None and apply_record(program.schedule, record):
        return True
    if program.schedule.func.size_vars:
        plan_typical(program.schedule, target, fixed, sizes or {})
    else:
        program.schedule.plan(target, fixed)
    return False


def program_text(program: GroupProgram, fixed: Sequence[Buffer]) -> str:
    """What a program is known by before it is planned, on any machine."""
    func = with_arguments(program.schedule.func, program.buffers).replace(name="kernel")
    borders = [(buffer.name, layout) for buffer, layout in program.bordered]
    return f"{[b.name for b in fixed]}|{borders}|{func!r}"


def program_key(text: str) -> str:
    """The key that records of a program have."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def lift_scheduled(program: GroupProgram, fixed: Sequence[Buffer]) -> Lifted:
    """A program that has its schedule, as a kernel: borders filled, copies of constants taken out."""
    func = fill_borders(with_arguments(program.schedule.func, program.buffers), program.bordered)
    return lift_packing(func, list(fixed))


@dataclass(frozen=True)
class _Scheduled:
    """A program that has its schedule, with a name, and how it came about."""

    func: Func
    parameters: tuple[int | Packing, ...]
    record: Trace | None
    trace: Trace
    tried: Sequence[Tried]
    size: int
    """The letters of its program's text."""


class KernelCompiler:
    """Compiles programs for one target; other processes lower one while the next is planned."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.layouts: Mapping[Value, Layout] = {}
        """How values between kernels lie in memory, where that is not plainly."""
        self.often_zero: Collection[Value] = ()
        """Values that hold many zeros."""
        self.sizes: Collection[Var] = ()
        """Sizes that are open."""
        self.whole: Graph | None = None
        """The graph with the arithmetic of shapes that kernels for open sizes do not need."""
        self.typical: Mapping[Var, int] = {}
        """What they typically are."""
        self.block = 1
        """How many channels of a convolution's sums lie together."""
        self.machine = text_of(target)
        """The facts about the target, as a part of what kernels are known by."""
        self.programs = Programs()
        self._workers = Workers()
        self._handed: dict[str, Kernel] = {}
        self._in_force: dict[str, bool] = {}
        self._refused: dict[str, Exception] = {}
        self._folder = cache_folder("kernels") if knobs.cache and target.is_host and not target.on_device else None

    def compile(
        self, program: GroupProgram, constants: Mapping[Value, Array], label: str, given: Trace | None = None
    ) -> tuple[Kernel, tuple[int | Packing, ...]]:
        """The kernel of a program, and its parameters; raises a WeftError where there is none.

        `given` is a schedule that a user gave for it.
        """
        fixed = [buffer for value, buffer in program.inputs if value in constants]
        if given is not None or not picks_by_default():
            made = self._make(program, fixed, label, given)
            made[0].code.result()  # what a user gave is refused here
            return made
        key, record = self._key(program, fixed)
        found = _CACHE.get(key) or self._make(program, fixed, label, record=record)
        self._remember(key, found)
        return found

    def _remember(self, key: str, made: tuple[Kernel, tuple[int | Packing, ...]]) -> None:
        _CACHE[key] = made
        _CACHE.move_to_end(key)
        if len(_CACHE) > model.KERNELS_REMEMBERED:
            _CACHE.popitem(last=False)
        self._handed[key] = made[0]

    def plan_ahead(self, programs: Sequence[tuple[GroupProgram, str]], constants: Mapping[Value, Array]) -> None:
        """Has programs for a device planned and compiled by all cores at once; what fails there fails again later."""
        device = self.target.spec.device
        if device is None or device.rest or not picks_by_default():
            return
        jobs: dict[str, tuple[str, Job[tuple[_Scheduled, Code]]]] = {}
        for program, label in programs:
            fixed = [buffer for value, buffer in program.inputs if value in constants]
            key, record = self._key(program, fixed)
            if key not in _CACHE and key not in jobs:
                own = replace(program, schedule=program.schedule.copy())
                jobs[key] = label, Job(functools.partial(self._planned_code, own, fixed, label, record))
                self._workers.submit(jobs[key][1])
        self._workers.finish()
        for key, (label, job) in jobs.items():
            if job.is_made:
                scheduled, code = job.result()
                self._remember(key, (self._kernel(scheduled, label, Job.of(code)), scheduled.parameters))

    def _planned_code(
        self, program: GroupProgram, fixed: list[Buffer], label: str, record: Trace | None
    ) -> tuple[_Scheduled, Code]:
        made = self._scheduled(program, fixed, label, None, record)
        return made, self._device_code(made.func)

    def _key(self, program: GroupProgram, fixed: list[Buffer]) -> tuple[str, Trace | None]:
        """What a program is known by before it is planned, and the record in force for it."""
        text = program_text(program, fixed)
        in_use = records() or Records()
        name = program_key(text) if in_use.traces else ""
        record = in_use.traces.get(name)
        if record is not None and name not in self._in_force:
            self._in_force[name] = self._holds(program, fixed, in_use.beside.get(name))
        record = record if self._in_force.get(name) else None
        # Everything that a choice may use: the program, the facts, the record.
        described = f"{self.machine}|{'' if record is None else record.to_json()}|{self._typical(program)}|{text}"
        return hashlib.sha256(described.encode()).hexdigest(), record

    def _holds(self, program: GroupProgram, fixed: list[Buffer], beside: str | None) -> bool:
        """Whether the planner chooses what it chose when a record was measured, where that is known."""
        if beside is None:
            return True
        own = program.schedule.copy()
        own.plan(self.target, fixed)
        return digest(own.trace) == beside

    def _typical(self, program: GroupProgram) -> dict[str, int]:
        """What a program's open sizes typically are."""
        known = {name: size for name, size in program.sizes.items() if all(v in self.typical for v in free_vars(size))}
        return dict(zip(known, typical(known.values(), self.typical)))

    def _make(
        self,
        program: GroupProgram,
        fixed: list[Buffer],
        label: str,
        given: Trace | None = None,
        record: Trace | None = None,
    ) -> tuple[Kernel, tuple[int | Packing, ...]]:
        made = self._scheduled(program, fixed, label, given, record)
        return self._kernel(made, label, self._generated(made.func, label, made.size)), made.parameters

    def _scheduled(
        self, program: GroupProgram, fixed: list[Buffer], label: str, given: Trace | None, record: Trace | None
    ) -> _Scheduled:
        start = time.thread_time()
        if given is not None:
            apply_override(program.schedule, given, label)
        elif not plan_schedule(program, self.target, fixed, self._typical(program), record):
            record = None
        logger.debug("%s: %.3f s for its schedule", label, time.thread_time() - start)
        lifted = lift_scheduled(program, fixed)
        plain = re.sub(r"\W", "_", label)[:40]
        # Kernels are told apart by what they do: two schedules of one program are two kernels.
        text = repr(lifted.func.replace(name="kernel"))
        scheduled = hashlib.sha256(f"{self.machine}|{text}".encode()).hexdigest()
        named = _with_overlaps(lifted.func.replace(name=f"k_{plain}_{scheduled[:12]}"))
        if named.name in self._refused:
            raise self._refused[named.name]
        try:
            verify(named)
        except RecursionError:
            raise ExpressionError("the program nests too deep") from None
        schedule = program.schedule
        return _Scheduled(named, lifted.parameters, record, schedule.trace, schedule.tried, len(text))

    def _kernel(self, made: _Scheduled, label: str, code: Job[Code]) -> Kernel:
        name = made.func.name
        symbol = entry_symbol(name) if self.target.spec.device is None else name
        return Kernel(symbol, label, made.func, code, made.record, made.trace, made.tried)

    def _generated(self, func: Func, label: str, size: int) -> Job[Code]:
        """The code of a kernel, made at some time."""
        if (device := self.target.spec.device) is not None:
            made = Job(lambda: self._device_code(func), size)
            if device.rest:
                made.result()  # what the device refuses is known before the rest is planned
            else:
                self._workers.submit(made)
            return made
        job, send = Job(lambda: self.code(func, label), size), elsewhere.get()
        asked = None if send is None else send(func, self.target)
        self._workers.submit(job, None if asked is None else lambda: self._kept(Code(*asked())))
        return job

    def _device_code(self, func: Func) -> Code:
        program = self.target.generate(self.target.lower(func if knobs.exact else keep_wide(func)))
        try:
            codes = self.target.machine_codes([program]) if self.target.is_host else []
        except TargetError as error:  # raised again where the program is loaded
            logger.debug("%s: %s", program.name, error)
            codes = []
        return Code("", b"".join(codes), False, program)

    def _kept(self, made: Code) -> Code:
        """Code that others made, in the cache folder too."""
        kept_object(self._folder, self._facts(made.llvm_ir), lambda: made.object_code, model.KERNELS_KEPT)
        return made

    def _facts(self, text: str) -> Sequence[str]:
        return () if self._folder is None else (text, self.machine, *weft_itself())

    def code(self, func: Func, label: str) -> Code:
        """Machine code; it is kept in the cache folder as soon as it is there."""
        start = time.thread_time()
        lowered = self.target.lower(func)
        text = generate(lowered, self.target, intrinsics=self.target.intrinsics())
        middle = time.thread_time()
        make = functools.partial(llvm_compile.emit_object, text, self.target)
        code = kept_object(self._folder, self._facts(text), make, model.KERNELS_KEPT, model.KERNEL_KEPT_SECONDS)
        said = "%s: lowered in %.3f s, %.3f s in LLVM for %d KB of text"
        logger.debug(said, label, middle - start, time.thread_time() - middle, len(text) >> 10)
        return Code(text, code, turns_by_call(lowered))

    def refusal(self, kernel: Kernel) -> Exception | None:
        """Why a kernel has no code; None where it has."""
        return self._refused.get(kernel.scheduled.name)

    def finish(self) -> bool:
        """Waits for the code of all kernels; whether there are some that turn out to have none (`refusal`)."""
        self._workers.finish()
        refused = len(self._refused)
        for key, kernel in self._handed.items():
            try:
                kernel.code.result()
            except RecursionError:
                self._refused[kernel.scheduled.name] = ExpressionError("the program nests too deep")
            except Exception as error:  # noqa: BLE001 — raised again where the kernel is wanted
                self._refused[kernel.scheduled.name] = error
            if kernel.scheduled.name in self._refused:
                _CACHE.pop(key, None)
        self._handed = {}
        return len(self._refused) > refused

    def tend(self) -> None:
        """Gives other processes what waits."""
        self._workers.tend()

    def close(self) -> None:
        """Ends the processes that still work."""
        self._workers.close()


_CACHE: OrderedDict[str, tuple[Kernel, tuple[int | Packing, ...]]] = OrderedDict()


def _with_overlaps(func: Func) -> Func:
    """The program with a note of the parameters that the memory plan may place over one another."""
    pairs = overwritable(func)
    names = sorted({func.params[at].name for pair in pairs for at in pair})
    return func.replace(annotations={**func.annotations, "may_overlap": names}) if names else func


# ---------------------------------------------------------------------------------------------------------- packing


def lift_packing(func: Func, fixed: list[Buffer]) -> Lifted:
    """Takes the copies of constants out of a program; each becomes a parameter."""
    params = [p for p in func.params if isinstance(p, Buffer)]
    places: dict[Buffer, int | Packing] = {buffer: position for position, buffer in enumerate(params)}
    body = list(func.body.stmts) if isinstance(func.body, Seq) else [func.body]
    kept: list[Stmt] = []
    moved: list[Buffer] = []
    for stmt in body:
        found = _packing_of(func, stmt, fixed, places)
        if found is None:
            kept.append(stmt)
            continue
        buffer, packing = found
        places[buffer] = packing
        fixed = [*fixed, buffer]
        moved.append(buffer)
    if not moved or not kept:
        return Lifted(func, tuple(range(len(params))))
    rest = seq(*kept)
    used = {r.buffer for block in blocks_in(rest) for r in (*block.reads, *block.writes)}
    outputs = [p for p in params if p not in fixed]
    new = [p for p in params if p in outputs or p in used]
    inputs_first = [*new, *(buffer for buffer in moved if buffer in used)]
    annotations = {key: note for key, note in func.annotations.items() if key not in BUFFER_NOTES}
    made = func.replace(
        params=inputs_first,
        allocations=[b for b in func.allocations if b not in moved],
        body=rest,
        annotations={**annotations, **_notes(func, moved)},
    )
    return Lifted(made, tuple(places[p] for p in inputs_first))


def _notes(func: Func, moved: list[Buffer]) -> dict[str, object]:
    """The notes on buffers that stay."""
    names = {buffer.name for buffer in moved}
    out: dict[str, object] = {}
    for key in BUFFER_NOTES & func.annotations.keys():
        old = func.annotations[key]
        kept = (
            {n: v for n, v in old.items() if n not in names}
            if isinstance(old, dict)
            else [n for n in old if n not in names]
        )
        if kept:
            out[key] = kept
    return out


def _packing_of(
    func: Func, stmt: Stmt, fixed: list[Buffer], places: dict[Buffer, int | Packing]
) -> tuple[Buffer, Packing] | None:
    """The packing that a statement is: one block that copies a whole constant under other indices."""
    blocks = blocks_in(stmt)
    if len(blocks) != 1:
        return None
    block = blocks[0]
    body = block.body
    if not isinstance(body, Store) or block.init is not None or not _runs_everywhere(block, stmt):
        return None
    if body.buffer.scope != "global":  # a copy into memory of the machine's own, which each call fills
        return None
    found = _copied(body.value)
    if found is None:
        return None
    load, tests = found
    source, target = load.buffer, body.buffer
    if source not in fixed or target not in func.allocations or source.strides is not None:
        return None
    axes = [axis.var for axis in block.axes]
    sizes = _covered(block, source, tests) if list(load.indices) == axes else None
    if sizes is None:
        return None
    order: list[Part | None] = []
    for index in body.indices:
        found_digit = digit_of(index)
        if found_digit is not None and found_digit[0] in axes:
            order.append((axes.index(found_digit[0]), found_digit[1]))
        elif int_value(index) == 0:
            order.append(None)
        else:
            return None
    if not all(are_whole(_digits(order, axis)) for axis in range(len(axes))):
        return None
    place = places[source]
    if isinstance(place, Packing):
        return target, Packing(place.source, sizes, tuple(order), place)
    return target, Packing(place, sizes, tuple(order))


def _runs_everywhere(block: Block, around: Stmt) -> bool:
    """Whether a block has no test, but for the end of a loop over all of its points, or vectors, that threads share."""
    test, points = block.predicate, math.prod(int_value(axis.extent) or 0 for axis in block.axes)
    if is_true(test) or not isinstance(test, LT):
        return is_true(test)
    others = [int_value(loop.extent) or 0 for loop in loops_in(around) if not uses_any(test.a, {loop.var})]
    return 0 < points == math.prod(others) * (int_value(test.b) or 0)


def _copied(value: Expr) -> tuple[Load, list[Expr]] | None:
    """The load that a value is, and the tests beyond which it is 0 instead."""
    tests: list[Expr] = []
    while isinstance(value, Select) and isinstance(value.otherwise, Const) and value.otherwise.value == 0:
        tests += conjuncts(value.condition)
        value = value.then
    return (value, tests) if isinstance(value, Load) else None


def _covered(block: Block, source: Buffer, tests: list[Expr]) -> tuple[int, ...] | None:
    """The extents of a block that copies the whole of a constant, and zeros past its ends; None for another block."""
    extents = [int_value(axis.extent) for axis in block.axes]
    shape = [int_value(size) for size in source.shape]
    if len(extents) != len(shape):
        return None
    wanted = {axis.var: size for axis, size, extent in zip(block.axes, shape, extents) if size != extent}
    limits = {t.a: int_value(t.b) for t in tests if isinstance(t, LT) and isinstance(t.a, Var)}
    if len(limits) != len(tests) or limits != wanted:
        return None
    if any(e is None or s is None or e < s for e, s in zip(extents, shape)):
        return None
    return tuple(extent or 0 for extent in extents)

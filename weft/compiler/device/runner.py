"""Runs a `Program` on a machine with blocks of threads: weights and arena in its memory, one launch for each stretch.

A call takes a slot: an arena, and a place for each value that enters or leaves the device. The kernels of a stretch are
bound to the addresses once and recorded; after that a call copies its inputs there, launches the recording, and copies
the results back. Inputs that lie on the device already are read where they are (a recording for their addresses), and
then the results stay there too. Host nodes run on the host, with the copies that they need.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.codegen.c.program import DeviceProgram
from weft.compiler.device.arrays import DeviceArray, Lease
from weft.compiler.lowering.memory import aligned
from weft.compiler.run import HostRunner, Inner
from weft.compiler.steps import HostStep, NativeStep, Program, RestStep
from weft.core import model
from weft.core.array_types import ArrayType
from weft.core.errors import RuntimeFault
from weft.graph.ir import Array, dtype_name
from weft.loop.passes.check_bounds import ERRORS
from weft.runtime.faults import OUTSIDE, REASONS
from weft.runtime.model.fastcall import Fast
from weft.targets.base import Device, Recording, Target

ALIGNMENT = 16
"""Bytes that the start of every buffer is a multiple of."""


class LoadedModel:
    """A program's kernels and weights on the device."""

    def __init__(
        self, program: Program, kernels: Mapping[str, DeviceProgram], target: Target, codes: Sequence[bytes]
    ) -> None:
        self.program, self.kernels, self.part_bytes = program, kernels, target.part_bytes
        self.device: Device = target.device()
        self.executables = dict(zip(kernels, self.device.load_all(list(kernels.values()), codes)))
        self.weights = [self._upload(array) for array in program.weights]
        self.arena_bytes = aligned(program.arena_bytes, self.part_bytes)
        scratch = [sum(aligned(w.bytes, self.part_bytes) for w in kernel.workspaces) for kernel in kernels.values()]
        self.total_bytes = self.arena_bytes + max(scratch, default=0)
        self.reporters: dict[tuple[str, int], str] = {
            (step.symbol, at): step.kernels[at]
            for step in program.steps
            if isinstance(step, NativeStep)
            for at, call in enumerate(step.calls)
            if any(parameter.name == ERRORS for parameter in kernels[call.symbol].parameters)
        }
        """The calls that may report an index outside of its dimension, and what they compute."""

    def _upload(self, array: Array) -> Any:
        memory = self.device.allocate(array.nbytes)
        self.device.write(memory, np.ascontiguousarray(array))
        return memory

    def _place(self, memory: Any) -> Any:
        return self.device.address(memory) or id(memory)

    def launches(self, step: NativeStep, bases: Sequence[Any], arena: Any, errors: Any) -> list[list[Any]]:
        """The launches of each call of a stretch, for these addresses."""
        found: list[list[Any]] = []
        places = {key: at * self.part_bytes for at, key in enumerate(self.reporters)}
        for at, call in enumerate(step.calls):
            if call.copies and len({(self._place(bases[base]), offset) for base, offset in call.arguments}) == 1:
                found.append([])  # a cache that is updated where it lies
                continue
            program = self.kernels[call.symbol]
            given: dict[str, Any] = {}
            for parameter, (base, offset) in zip(program.parameters, call.arguments):
                is_whole = step.bases[base][0] != "arena"
                memory = bases[base]
                given[parameter.name] = memory if is_whole else self.device.part(memory, offset, parameter.bytes)
            start = self.arena_bytes
            for workspace in program.workspaces:
                given[workspace.name] = self.device.part(arena, start, workspace.bytes)
                start += aligned(workspace.bytes, self.part_bytes)
            if (step.symbol, at) in places:
                given[ERRORS] = self.device.part(errors, places[step.symbol, at], self.part_bytes)
            found.append(self.executables[call.symbol].bind(given))
        return found


class Slot:
    """The device memory of one call at a time, and the recordings for it."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        self.arena = model.device.allocate(model.total_bytes)
        self.errors = None
        if model.reporters:
            self._no_errors = np.zeros((len(model.reporters), model.part_bytes // 4), np.int32)
            self.errors = model.device.allocate(self._no_errors.nbytes)
            model.device.write(self.errors, self._no_errors)
        self.places: dict[int, Any] = {}
        self._recordings: OrderedDict[Any, tuple[list[Any], Recording]] = OrderedDict()

    def check(self, stream: Any = None) -> None:
        """Waits for what is queued in a stream; an error where a kernel of this slot was given an index outside."""
        if self.errors is None:
            return
        found = np.empty_like(self._no_errors)
        self.model.device.read(self.errors, found, stream)
        if found.any():
            self.model.device.write(self.errors, self._no_errors, stream)
            wrong = [what for what, row in zip(self.model.reporters.values(), found) if row.any()]
            raise RuntimeFault(f"{wrong[0]} failed: {REASONS[OUTSIDE]}")

    def place(self, number: int, size: int) -> Any:
        """The memory of a value of this slot; a value always has the same size."""
        found = self.places.get(number)
        if found is None:
            found = self.places[number] = self.model.device.allocate(size)
        return found

    def recording(self, at: int, step: NativeStep, bases: list[Any]) -> Recording:
        """The launches of a step at these addresses: made once, as long as they are used now and then."""
        key = (at, *(base if isinstance(base, int) else id(base) for base in bases))
        found = self._recordings.get(key)
        if found is None:
            launches = [one for call in self.model.launches(step, bases, self.arena, self.errors) for one in call]
            # The addresses are kept with the recording: no other memory gets the identity of one of them meanwhile.
            found = self._recordings[key] = (bases, self.model.device.record(launches))
            if len(self._recordings) > model.MOST_RECORDINGS:
                self._recordings.popitem(last=False)
        else:
            self._recordings.move_to_end(key)
        return found[1]


class Values:
    """The values of one call: on the host, on the device, or on both."""

    def __init__(self, program: Program, slot: Slot, stream: Any) -> None:
        self.slot, self.stream = slot, stream
        self.device: Device = slot.model.device
        self.host: list[Any] = [None] * program.count
        self.there: dict[int, Any] = {}
        self.kinds: dict[int, ArrayType] = {}
        for number, array in program.constants.items():
            self.host[number] = array

    def take(self, number: int, given: Any) -> None:
        """An input."""
        if not isinstance(given, DeviceArray):
            self.host[number] = given
            return
        self.kinds[number] = ArrayType(given.dtype_name, given.shape)
        address = self.device.address(given.memory)
        self.there[number] = given.memory
        if address is not None and address % ALIGNMENT:
            self.there[number] = self.slot.place(number, given.nbytes)
            self.device.copy(self.there[number], given.memory, given.nbytes, self.stream)

    def memory(self, number: int) -> Any:
        """A value on the device; copied there where only the host has it."""
        found = self.there.get(number)
        if found is None:
            array = np.ascontiguousarray(self.host[number])
            found = self.there[number] = self.slot.place(number, array.nbytes)
            self.device.write(found, array, self.stream)
        return found

    def array(self, number: int, into: Array | None = None) -> Any:
        """A value on the host; copied there where only the device has it."""
        found = self.host[number]
        if found is None and number in self.there:
            kind = self.kinds[number]
            found = self.host[number] = np.empty(kind.static, kind.numpy) if into is None else into
            self.device.read(self.there[number], found, self.stream)
        return found

    def make(self, number: int, kind: ArrayType) -> None:
        """A value that the device is about to write: in its own place, unless the caller gave one."""
        self.kinds[number] = kind
        self.host[number] = None
        if number not in self.there:
            self.there[number] = self.slot.place(number, _bytes(kind))

    def forget(self, number: int) -> None:
        """Lets go of a value that nothing needs any more."""
        self.host[number] = None
        self.there.pop(number, None)


def _bytes(kind: ArrayType) -> int:
    return int(np.prod(kind.static, dtype=np.int64)) * int(kind.numpy.itemsize)


class DeviceRunner(HostRunner):
    """A program with its kernels for a device; it is loaded there when that is a device of this machine."""

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, DeviceProgram],
        target: Target,
        inner: Inner,
        model: LoadedModel | None = None,
        codes: Sequence[bytes] = (),
    ) -> None:
        """`model` is the program on the device, where it is there already, `codes` machine code from a file."""
        super().__init__(program, inner)
        self.kernels, self.target = kernels, target
        self._lock = threading.Lock()
        self._model = model
        self._codes = list(codes)
        self._slots: dict[Any, list[Slot]] = {}
        self._free: dict[Any, list[Any]] = {}
        if target.is_host:
            self.loaded()

    def loaded(self) -> LoadedModel:
        """The model on the device; an error that says why where there is none."""
        with self._lock:
            if self._model is None:
                self._model = LoadedModel(self.program, self.kernels, self.target, self._codes)
            return self._model

    def codes(self) -> list[bytes]:
        """Machine code for a module file."""
        return self._codes or self.target.machine_codes(list(self.kernels.values()))

    def fast(self, types: Sequence[ArrayType]) -> Fast | None:
        """There is no shorter way."""
        return None

    def run(self, arrays: Sequence[Any], threads: int, out: Sequence[Array | None] | None = None) -> list[Any]:
        """The outputs for inputs that fit the program's types: on the host, in the arrays of `out` where that can be.

        Where an input lies on the device, the outputs do too.
        """
        if any(isinstance(array, DeviceArray) for array in arrays):
            return list(self.queue(arrays, threads))
        slot = self._take(None)
        values = Values(self.program, slot, None)
        self._steps(arrays, values, threads)
        results = []
        for at, number in enumerate(self.program.outputs):
            given = None if out is None else out[at]
            fits = given is not None and number in values.kinds and _fits(given, values.kinds[number])
            results.append(self.program.own(at, number, values.array(number, given if fits else None)))
        self._give(None, slot)
        slot.check()
        return results

    def queue(
        self, arrays: Sequence[Any], threads: int, stream: Any = None, out: Sequence[DeviceArray] | None = None
    ) -> list[DeviceArray]:
        """Queues a run in a stream; the outputs are on the device, and there when the stream gets there."""
        slot = self._take(stream)
        values = Values(self.program, slot, stream)
        results = self._results(values, stream) if out is None else dict(zip(self.program.outputs, out))
        for number, array in results.items():
            values.there[number] = array.memory
        self._steps(arrays, values, threads)
        found = [self._result(number, values, results, at) for at, number in enumerate(self.program.outputs)]
        if out is not None:
            for array, made in zip(out, found):
                if made is not array:
                    values.device.copy(array.memory, made.memory, array.nbytes, stream)
            found = list(out)
        for array in found:
            array.check = slot.check
        self._give(stream, slot)
        return found

    def calls(self, arrays: Sequence[Any], out: Sequence[DeviceArray]) -> tuple[list[list[Any]], Any] | None:
        """The launches of each call of such a run, and what they need alive; None where it is no single step."""
        found = self._fixed(arrays, out, None)
        if found is None:
            return None
        slot, step, bases = found
        return slot.model.launches(step, bases, slot.arena, slot.errors), (slot, bases, list(arrays), list(out))

    def _fixed(
        self, arrays: Sequence[Any], out: Sequence[DeviceArray], stream: Any
    ) -> tuple[Slot, NativeStep, list[Any]] | None:
        """Memory for runs at fixed places, their only step and its addresses; None where there are several."""
        program = self.program
        step = program.steps[0] if len(program.steps) == 1 else None
        made = {number for number, _ in step.makes} if isinstance(step, NativeStep) else set()
        numbers = program.outputs
        if not isinstance(step, NativeStep) or not made.issuperset(numbers) or len(set(numbers)) != len(numbers):
            return None
        slot = Slot(self.loaded())
        values = Values(program, slot, stream)
        values.there.update({number: array.memory for number, array in zip(numbers, out)})
        for number, array in zip(program.inputs, arrays):
            values.take(number, array)
        return slot, step, self._bases(step, values)

    def bound(self, arrays: Sequence[Any], out: Sequence[DeviceArray], stream: Any) -> Callable[[], None]:
        """A run with inputs and outputs at fixed places of the device, to be queued again and again."""
        found = self._fixed(arrays, out, stream)
        if found is None:

            def run_again() -> None:
                self.queue(arrays, 1, stream, out)

            return run_again
        slot, step, bases = found
        recording = slot.recording(0, step, bases)
        for array in out:
            array.check = slot.check
        kept = (slot, list(arrays), list(out))

        def launch_again(alive: Any = kept) -> None:
            recording.launch(stream)

        return launch_again

    def _results(self, values: Values, stream: Any) -> dict[int, DeviceArray]:
        """Memory for the outputs that kernels write."""
        kinds = {n: kind for step in self.program.steps if isinstance(step, NativeStep) for n, kind in step.makes}
        return {n: self._new_array(kinds[n], values, stream) for n in self.program.outputs if n in kinds}

    def _new_array(self, kind: ArrayType, values: Values, stream: Any) -> DeviceArray:
        size = _bytes(kind)
        pool = self._free.setdefault((stream, size), [])
        try:
            memory = pool.pop()
        except IndexError:
            memory = values.device.allocate(size)
        return DeviceArray(values.device, memory, kind.static, kind.dtype, stream, Lease(memory, pool))

    def _result(self, number: int, values: Values, made: Mapping[int, DeviceArray], at: int) -> DeviceArray:
        """An output on the device; what the host made, what is passed on or returned twice is copied there."""
        if number in made and number not in self.program.outputs[:at]:
            return made[number]
        if number in values.kinds:
            kind = values.kinds[number]
        else:
            array = values.array(number)
            if not isinstance(array, np.ndarray) or array.dtype == object:
                raise RuntimeFault(f"output {at} is no array of numbers: it cannot stay on the device")
            kind = ArrayType(dtype_name(array.dtype), array.shape)
        new = self._new_array(kind, values, values.stream)
        values.device.copy(new.memory, values.memory(number), new.nbytes, values.stream)
        return new

    # ------------------------------------------------------------------------------------------------------- steps

    def _steps(self, arrays: Sequence[Any], values: Values, threads: int) -> None:
        program = self.program
        for number, array in zip(program.inputs, arrays):
            values.take(number, array)
        for at, (step, finished) in enumerate(zip(program.steps, program.last_use)):
            if isinstance(step, NativeStep):
                self._stretch(at, step, values)
            elif isinstance(step, HostStep):
                self._on_host(step, values, threads)
            else:
                self._rest(step, values, threads)
            for number in finished:
                if number not in program.constants:
                    values.forget(number)

    def _stretch(self, at: int, step: NativeStep, values: Values) -> None:
        values.slot.recording(at, step, self._bases(step, values)).launch(values.stream)

    def _bases(self, step: NativeStep, values: Values) -> list[Any]:
        """The memory of each base of a stretch; what only the host has is copied to the device."""
        for number, kind in step.makes:
            values.make(number, kind)
        model = values.slot.model
        bases: list[Any] = []
        for kind_of_base, number in step.bases:
            if kind_of_base == "weight":
                bases.append(model.weights[number])
            elif kind_of_base == "arena":
                bases.append(values.slot.arena)
            else:
                bases.append(values.memory(number))
        return bases

    def _on_host(self, step: HostStep, values: Values, threads: int) -> None:
        for number in (*step.inputs, *(number for _, number in step.captured)):
            if number is not None:
                values.array(number)
        with np.errstate(all="ignore"):
            self._host(step, values.host, threads)

    def _rest(self, step: RestStep, values: Values, threads: int) -> None:
        made = step.executor.run([values.array(number) for number in step.inputs], threads)
        for number, array in zip(step.outputs, made):
            values.host[number] = array

    # ------------------------------------------------------------------------------------------------------- slots

    def _take(self, stream: Any) -> Slot:
        """A slot that nothing else uses; those of a stream are used in that stream only, whose order protects them."""
        model = self.loaded()
        try:
            return self._slots[stream].pop()
        except (KeyError, IndexError):
            return Slot(model)

    def _give(self, stream: Any, slot: Slot) -> None:
        kept = self._slots.setdefault(stream, [])
        if len(kept) < model.MOST_SLOTS:
            kept.append(slot)


def _fits(array: Array, kind: ArrayType) -> bool:
    return bool(array.flags.carray) and array.shape == kind.static and array.dtype == kind.numpy

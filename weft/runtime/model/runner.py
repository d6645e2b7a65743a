"""Runs a `Program`: binds its native code and weights once, then serves calls from any thread.

A call takes an arena from a small pool, so that calls from several threads do not meet. Results are new
arrays, or the arrays that the caller gives for them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weft.core import model
from weft.core.array_types import ArrayType
from weft.core.errors import RuntimeFault, TargetError
from weft.core.knobs import UNASKED_BYTES
from weft.runtime.addresses import OBJECTS_ARE_READABLE
from weft.runtime.faults import KERNEL_SHIFT, reason_of
from weft.runtime.library import running_runtime
from weft.runtime.model.fastcall import ENTRY, Fast, fast_call, is_direct, step_call
from weft.runtime.model.program import Array, NativeStep, Program, memory

if TYPE_CHECKING:
    from typing_extensions import Self

Arena = tuple[int, Array]
"""Memory for the intermediates of one call: its address, and the array that owns it."""

Found = tuple[tuple[int, ...], tuple[int, ...], int]
"""The sizes of a call, the offsets of its arena's slots, and the arena's bytes."""

Find = Callable[[Sequence[Any]], "Found | None"]
"""The numbers of a call from its arrays; None for sizes that no kernel is made for."""


class Engine(Protocol):
    """Machine code in this process, as long as this object lives."""

    def address(self, name: str) -> int:
        """Where a function of it is."""


def _foreign(*_: Any) -> int:
    raise TargetError(
        "the model was compiled for another machine, and its code does not run here: what Module.save and weft export "
        "write runs there"
    )


class NativeRunner:
    """A program with its native code: something that gives the address of each driver."""

    def __init__(self, program: Program, engine: Engine | None) -> None:
        self.program = program
        self._engine = engine
        self._arenas: list[Arena] = []
        self._fast: Fast | None = None
        self._addresses = [w.ctypes.data for w in program.weights]
        for step in program.steps:
            if isinstance(step, NativeStep):
                step.entry = _foreign if engine is None else ENTRY(engine.address(step.symbol))
        self._on_host = any(not isinstance(step, NativeStep) for step in program.steps)
        native = [step for step in program.steps if isinstance(step, NativeStep)]
        own = {number for step in native for number, _ in step.makes}
        self._calls = {id(step): step_call(step, self._addresses, own) for step in native}
        self._first: list[Any] = [program.constants.get(number) for number in range(program.count)]
        finished = [[n for n in numbers if n not in program.constants] for numbers in program.last_use]
        self._steps = list(zip(program.steps, finished))
        self._promised: dict[int, list[tuple[int, Sequence[int]]]] = {}
        self._known: dict[Any, Found | None] = {}
        """What was found for shapes that were met, where sizes are open; None where the graph does not take them."""
        self.settled: dict[Any, Found] = {}
        """The same for shapes that no other form answers: a short call takes those."""

    def fast(self, types: Sequence[ArrayType]) -> Fast | None:
        """The short way of a call for inputs of these types (always the same ones); None where there is none."""
        runtime, is_foreign = running_runtime(), bool(self.program.steps) and self._engine is None
        if self._fast is None and runtime is not None and not is_foreign and OBJECTS_ARE_READABLE:
            self._fast = self._make_fast(types, runtime.call) if is_direct(self.program) else None
        return self._fast

    def _make_fast(self, types: Sequence[ArrayType], call: Callable[..., int]) -> Fast:
        steps = [step for step in self.program.steps if isinstance(step, NativeStep)]
        scope: dict[str, Any] = {"take_arena": self.take_arena, "keep_arena": self.give_arena, "call": call}
        scope.update(settled=self.settled, large_arena=self._large_arena)
        # The function may outlive the runner: it holds the engine and the weights too.
        scope.update(entry=steps[0].entry if steps else None, alive=(self._engine, self.program))
        scope["fault"] = functools.partial(fault, steps[0].kernels if steps else [])
        return fast_call(self.program, types, self._addresses, scope)

    def settle(self, arrays: Sequence[Any]) -> None:
        """Calls with such shapes go the short way from now on, without asking which form answers them."""
        shapes = tuple([getattr(array, "shape", None) for array in arrays])
        found = self._known.get(shapes)
        if found is not None:
            self.settled[shapes] = found

    def run(self, arrays: Sequence[Any], threads: int, out: Sequence[Array | None] | None = None) -> list[Any]:
        """The outputs for inputs that fit the program's types; made in the arrays of `out` where that can be."""
        if not self._on_host:
            return self._run(arrays, threads, out)
        with np.errstate(all="ignore"):
            return self._run(arrays, threads, out)

    def _run(self, arrays: Sequence[Any], threads: int, out: Sequence[Array | None] | None) -> list[Any]:
        made = self._run_steps(arrays, threads, {} if out is None else self._usable(arrays, out), self.take_arena())
        assert made is not None
        return made

    def _run_steps(
        self, arrays: Sequence[Any], threads: int, given: dict[int, Array], arena: Arena, sizes: Sequence[int] = (),
        slots: Sequence[int] = (),
    ) -> list[Any] | None:  # fmt: skip
        """The outputs; None where a host node makes another shape than inference has promised."""
        program = self.program
        values = self._first.copy()
        for number, array in zip(program.inputs, arrays):
            values[number] = array
        try:
            for step, finished in self._steps:
                if isinstance(step, NativeStep):
                    self._native(step, values, given, arena, threads, sizes, slots)
                else:
                    self._other(step, values, threads)
                    for number, shape in self._promised.get(id(step), ()):
                        if values[number].shape != tuple(d if d >= 0 else sizes[~d] for d in shape):
                            return None
                for number in finished:
                    values[number] = None
        finally:
            self.give_arena(arena)
        return [program.own(at, number, values[number]) for at, number in enumerate(program.outputs)]

    def _other(self, step: Any, values: list[Any], threads: int) -> None:
        """Runs a step that is no native call."""
        step.fill(values)

    def _usable(self, arrays: Sequence[Any], out: Sequence[Array | None]) -> dict[int, Array]:
        """The caller's arrays that native code may write: contiguous, and apart from every input and each other, but
        for an input that is updated there."""
        kinds = {n: kind for step in self.program.steps if isinstance(step, NativeStep) for n, kind in step.makes}
        found: dict[int, Array] = {}
        given = {n: array for n, array in zip(self.program.inputs, arrays) if isinstance(array, np.ndarray)}
        updated = {made: given.get(before) for before, made in self.program.updates}
        for number, array in zip(self.program.outputs, out):
            if array is None or number not in kinds or number in found or not array.flags.carray:
                continue
            fits = array.shape == kinds[number].static and array.dtype == kinds[number].numpy
            before = updated.get(number)
            if before is None or before.ctypes.data != array.ctypes.data or not before.flags.c_contiguous:
                before = None
            others = [*(other for other in given.values() if other is not before), *found.values()]
            if fits and not any(np.may_share_memory(array, other) for other in others):
                found[number] = array
        return found

    # ------------------------------------------------------------------------------------------------------ native

    def _native(
        self, step: NativeStep, values: list[Any], given: dict[int, Array], arena: Arena, threads: int, *found: Any
    ) -> None:
        code = self._calls[id(step)](values, given, arena[0], threads, *found)
        if code:
            raise fault(step.kernels, code)

    def take_arena(self) -> Arena:
        """An arena for one call; `give_arena` takes it back."""
        # Taking from a list is one operation: no lock is needed between threads.
        try:
            return self._arenas.pop()
        except IndexError:
            return self._new_arena()

    def _new_arena(self, room: int = 0) -> Arena:
        room = room or max(self.program.arena_bytes, 64)
        whole = memory(room + 64)
        start = -whole.ctypes.data % 64
        return whole.ctypes.data + start, whole[start : start + room]

    def _large_arena(self, room: int) -> Arena:
        """An arena of so many bytes: one that is kept, or a new one in its place.

        Sizes that come later may be larger, and the first touch of each page of an arena takes time: a new one has
        room for those too, which is no memory before somebody touches it.
        """
        kept = self.take_arena() if self._arenas else None
        if kept is not None and kept[1].nbytes >= room:
            return kept
        return self._new_arena(max(room, min(model.ARENA_GROWTH * room, UNASKED_BYTES - 64)))

    def give_arena(self, arena: Arena) -> None:
        """Keeps an arena for the next call."""
        if len(self._arenas) < model.MOST_ARENAS and arena[1].nbytes <= model.ARENA_KEPT_BYTES:
            self._arenas.append(arena)


class OpenSizes(NativeRunner):
    """A program for every size; `interpret` gives the outputs for sizes that no kernel is made for, or that a call
    brings and the graph does not take.
    """

    def open(self, takes: Callable[[Sequence[int]], bool], interpret: Callable[[Sequence[Any]], list[Any]]) -> Self:
        """The runner itself: `takes` says whether the graph takes the sizes of a call."""
        program = self.program
        self._takes = takes
        assert program.numbers is not None
        self.find = find_numbers(program.numbers)
        self.interpret = interpret
        others = [step for step in program.steps if not isinstance(step, NativeStep)]
        self._promised = {id(s): [(n, program.promised[n]) for n in s.outputs if n in program.promised] for s in others}
        return self

    def _run(self, arrays: Sequence[Any], threads: int, out: Sequence[Array | None] | None) -> list[Any]:
        shapes = tuple([getattr(array, "shape", None) for array in arrays])
        try:
            found = self._known[shapes]
        except KeyError:
            found = self.find(arrays)
            found = None if found is None or not self._takes(found[0]) else found
            if len(self._known) >= model.SHAPES_REMEMBERED:
                self._known.clear()
                self.settled.clear()
            self._known[shapes] = found
        if found is not None:
            sizes, slots, room = found
            made = self._run_steps(arrays, threads, {}, self._large_arena(room), sizes, slots)
            if made is not None:
                return made
        with np.errstate(all="ignore"):
            return [np.array(one) if isinstance(one, np.ndarray) else one for one in self.interpret(arrays)]


def find_numbers(source: str) -> Find:
    """The function that source of `Numbers` is."""
    scope: dict[str, Any] = {}
    exec(compile(source, "<the numbers of a call>", "exec"), scope)  # noqa: S102
    found: Find = scope["numbers"]
    return found


def fault(kernels: Sequence[str], code: int) -> RuntimeFault:
    """The error for the code of a native call that failed; `kernels` says what each of its kernels computes."""
    number = code >> KERNEL_SHIFT
    where = kernels[number] if number < len(kernels) else "the compiled model"
    return RuntimeFault(f"{where} failed: {reason_of(code)}")

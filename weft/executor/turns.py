"""Many turns of a loop at once: a body that is one native call, called again and again by native code.

In: the compiled form of a body, its inputs, and what a loop does with its outputs (`Repetition`). Out: the states after
as many turns as were run, and the rows that were kept. Two buffers hold each state: a turn reads one and writes the
other. A row that is kept is written where it stays, and so is what a turn puts behind a state (`Append`). What is
wanted twice, or is an input handed on, is copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.array_types import ArrayType
from weft.executor.run import Runner
from weft.executor.steps import NativeStep, empty_array
from weft.graph.ir import Array
from weft.graph.opspec import Repeated, Repetition
from weft.runtime.addresses import address_of
from weft.runtime.runner import fault
from weft.runtime.turns import run_turns

KEPT_BYTES = 1 << 22
"""Rows are kept for as many turns at a time as fill so many bytes."""

LEAST_TURNS, MOST_TURNS = 64, 1 << 16
"""The turns of one native call: at least so many in spite of that, and at most so many."""

Address = tuple[int, int, int]
"""Where a value lies in even turns, in odd turns, and by how much that moves on after a turn."""


@dataclass(frozen=True)
class Append:
    """An output that is an input with a part put behind it: the place of the input, that of the part, and the axis."""

    place: int
    made: int
    axis: int


class _Declined(Exception):
    """This loop cannot be run so."""


def repeat(
    runner: Runner,
    used: Sequence[int],
    picks: Sequence[int | Append],
    arrays: Sequence[Any],
    wanted: Repetition,
    threads: int,
) -> Repeated | None:
    """Runs turns of a body; None where they cannot be run by native code.

    `used` are the places of the arrays that the program takes; `picks` says for each output of the body which of the
    arrays it is, or ~place of which output of the program, or what is put behind which.
    """
    try:
        plan = _Plan(runner, used, picks, arrays, wanted)
    except _Declined:
        return None
    return plan.run(threads)


class _Plan:
    """The addresses of one loop. Everything whose address is in use is kept in `alive`."""

    def __init__(
        self,
        runner: Runner,
        used: Sequence[int],
        picks: Sequence[int | Append],
        arrays: Sequence[Any],
        wanted: Repetition,
    ) -> None:
        self.runner, self.program, self.picks, self.wanted = runner, runner.program, picks, wanted
        (step,) = self.program.steps
        assert isinstance(step, NativeStep)
        self.step = step
        self.arrays = [a if a.flags.c_contiguous and a.flags.aligned else np.array(a, order="C") for a in arrays]
        self.alive: list[Any] = [self.arrays]
        self.cells = np.array([wanted.turn, 0, 0], np.int64)
        self.places = dict(zip(self.program.inputs, used))
        self.kinds: dict[int, ArrayType] = dict(step.makes)
        self.inputs: list[Address] = [self.fixed(array) for array in self.arrays]
        self.made: dict[int, Address] = {}
        self.copies: list[tuple[Address, Address, int]] = []
        self.limit = wanted.limit
        self.states = [self.state(*pair) for pair in wanted.carried]
        self.grown = [output for output, _ in wanted.carried if isinstance(picks[output], Append)]
        self.settle_inputs()
        self.settle_states()
        self.kept = self.settle_kept()
        self.settle_condition()
        for number, kind in step.makes:
            if number not in self.made:
                self.made[number] = self.fixed(self.new(kind.static, kind.numpy))

    # ------------------------------------------------------------------------------------------------------- values

    def new(self, shape: Sequence[int], dtype: Any) -> Array:
        """A new array that stays as long as the plan."""
        made = empty_array(shape, dtype)
        self.alive.append(made)
        return made

    @staticmethod
    def fixed(array: Array) -> Address:
        """An array that every turn finds at the same place."""
        return address_of(array), address_of(array), 0

    def source(self, output: int) -> int | Array:
        """What an output is: the place of an input, ~number of a value that the call makes, or a constant."""
        pick = self.picks[output]
        if isinstance(pick, Append):
            return self.of_program(pick.made)
        return pick if pick >= 0 else self.of_program(~pick)

    def of_program(self, place: int) -> int | Array:
        """What an output of the program is, in the same terms."""
        number = self.program.outputs[place]
        if number in self.places:
            return self.places[number]
        return ~number if number in self.kinds else self.program.constants[number]

    def like(self, source: int | Array) -> tuple[tuple[int, ...], Any]:
        """The shape and element type of a source."""
        if isinstance(source, int) and source < 0:
            return self.kinds[~source].static, self.kinds[~source].numpy
        array = self.arrays[source] if isinstance(source, int) else source
        return array.shape, array.dtype

    def put(self, source: int | Array, target: Address) -> None:
        """Has a source end up at a target after each turn: made there if nobody else wants it, else copied."""
        if isinstance(source, int) and source < 0 and ~source not in self.made:
            self.made[~source] = target
            return
        shape, dtype = self.like(source)
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if not isinstance(source, int):
            constant = np.ascontiguousarray(source)
            self.alive.append(constant)
            found = self.fixed(constant)
        else:
            found = self.inputs[source] if source >= 0 else self.made[~source]
        self.copies.append((found, target, size))

    # ------------------------------------------------------------------------------------------------------ settling

    def state(self, output: int, place: int) -> tuple[int | Array, int, Array, Array] | None:
        """A state's source, its place among the inputs and its two buffers; None for one that no turn changes."""
        source, array = self.source(output), self.arrays[place]
        pick = self.picks[output]
        if isinstance(pick, Append):
            if pick.place != place:
                raise _Declined
            return None
        if isinstance(source, int) and source == place:
            return None
        if self.like(source) != (array.shape, array.dtype):
            raise _Declined
        first, second = self.new(array.shape, array.dtype), self.new(array.shape, array.dtype)
        np.copyto(first, array)
        return source, place, first, second

    def settle_inputs(self) -> None:
        """Addresses of the inputs that are not the same in every turn."""
        if self.wanted.counter is not None:
            self.inputs[self.wanted.counter] = self.fixed(self.cells)
        for place, rows in self.wanted.rows.items():
            self.inputs[place] = address_of(rows), address_of(rows), rows.strides[0]
        for one in self.states:
            if one is not None:
                self.inputs[one[1]] = address_of(one[2]), address_of(one[3]), 0

    def settle_states(self) -> None:
        for one in self.states:
            if one is not None:
                self.put(one[0], (address_of(one[3]), address_of(one[2]), 0))

    def settle_kept(self) -> list[Array]:
        """Arrays for the rows of as many turns as are run at once."""
        kept = [*self.wanted.kept, *self.grown]
        if any(isinstance(self.picks[output], Append) for output in self.wanted.kept):
            raise _Declined
        kinds = [(source, *self.like(source)) for source in map(self.source, kept)]
        sizes = [int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize for _, shape, dtype in kinds]
        most = max(KEPT_BYTES // max(sum(sizes), 1), LEAST_TURNS)
        self.limit = min(self.limit, most, MOST_TURNS)
        found = []
        for (source, shape, dtype), size in zip(kinds, sizes):
            rows = self.new((self.limit, *shape), dtype)
            found.append(rows)
            self.put(source, (address_of(rows), address_of(rows), size))
        return found

    def settle_condition(self) -> None:
        if self.wanted.condition is None:
            return
        source = self.source(self.wanted.condition)
        shape, dtype = self.like(source)
        if np.dtype(dtype) != np.bool_ or int(np.prod(shape, dtype=np.int64)) != 1:
            raise _Declined
        if isinstance(source, int) and source >= 0 and self.inputs[source] == self.fixed(self.arrays[source]):
            source = self.arrays[source]
        if not isinstance(source, int):  # it is the same in every turn
            self.limit = self.limit if bool(source.reshape(-1)[0]) else min(self.limit, 1)
            return
        going = self.new((1,), np.bool_)
        self.put(source, self.fixed(going))
        self.cells[1] = address_of(going)

    # ------------------------------------------------------------------------------------------------------- running

    def run(self, threads: int) -> Repeated:
        """Runs the turns."""
        arena = self.runner.take_arena()
        try:
            addresses = [self.base(kind, number, arena[0]) for kind, number in self.step.bases]
            tables = np.array(addresses, np.int64).reshape(-1, 3).T.copy()
            rows = [(*source[:2], *target[:2], source[2], target[2], size) for source, target, size in self.copies]
            copies = np.array(rows, np.int64).reshape(-1, 7)
            entry = ctypes.cast(self.step.entry, ctypes.c_void_p).value or 0
            turns = run_turns(
                entry, address_of(tables), tables.shape[1], address_of(copies), len(copies),
                address_of(self.cells), self.limit, threads,
            )  # fmt: skip
        finally:
            self.runner.give_arena(arena)
        if self.cells[2]:
            raise fault(self.step.kernels, int(self.cells[2]))
        return self.result(turns)

    def base(self, kind: str, number: int, arena: int) -> Address:
        """The address of one base of the native call."""
        if kind == "weight":
            found = self.runner.weight_address(number)
            return found, found, 0
        if kind == "arena":
            return arena, arena, 0
        return self.inputs[self.places[number]] if number in self.places else self.made[number]

    def result(self, turns: int) -> Repeated:
        """What the turns left: states in one of their two buffers, and rows."""
        kept = [rows[:turns] for rows in self.kept]
        behind = dict(zip(self.grown, kept[len(self.wanted.kept) :]))
        states = []
        for one, (output, place) in zip(self.states, self.wanted.carried):
            pick, state = self.picks[output], self.arrays[place]
            if one is not None:
                state = one[3] if turns % 2 else one[2]
            states.append(_longer(state, behind[output], pick.axis) if isinstance(pick, Append) else state)
        return Repeated(turns, self.going(turns), states, kept[: len(self.wanted.kept)])

    def going(self, turns: int) -> bool:
        """Whether the body would go on."""
        if self.wanted.condition is None or not turns:
            return True
        source = self.source(self.wanted.condition)
        if self.cells[1]:
            return bool(ctypes.c_bool.from_address(int(self.cells[1])).value)
        array = self.arrays[source] if isinstance(source, int) else source
        return bool(array.reshape(-1)[0])


def _longer(state: Array, rows: Array, axis: int) -> Array:
    """A state with the parts of all turns put behind it, one after another."""
    moved = np.moveaxis(rows, 0, axis)
    shape = (*moved.shape[:axis], moved.shape[axis] * moved.shape[axis + 1], *moved.shape[axis + 2 :])
    return np.concatenate((state, moved.reshape(shape)), axis=axis)

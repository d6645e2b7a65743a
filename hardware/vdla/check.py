"""Is a stream right, whatever the timing? A checker that follows tokens, and an interpreter that tries every order.

Units run on their own, and a token FIFO has one giver and one taker; so whether a stream ends does not depend on who is
quicker, and one order tells it for all. What memory holds at the end may depend on it: two instructions of different
units that touch an entry, one of them writing, need a chain of tokens between them. `check` finds those that have none
(by counting, for every instruction, which instructions of the other units must be over); `explore` runs the stream in
all orders and gives all ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from weft.targets.vdla.isa import FIFOS, RANGE, UNITS, Config, Instruction, is_legal
from weft.targets.vdla.machine import Machine, cycles_of
from weft.targets.vdla.tokens import History

LONGEST = 1 << 24
"""Cycles of one instruction: a run takes no more unless it is told to, and to follow more fills this host's memory."""


class State(NamedTuple):
    """How many instructions each unit has begun, and whether the last of them has still to push its tokens."""

    begun: tuple[int, ...] = (0, 0, 0)
    pushing: tuple[bool, ...] = (False, False, False)


class Step(NamedTuple):
    """What a unit can do next: begin an instruction, or push the tokens of one."""

    unit: int
    one: Instruction
    begins: bool
    after: State


class Stream:
    """Instructions by unit, and the tokens that the first n of a unit have given and taken."""

    def __init__(self, program: Sequence[Instruction], config: Config) -> None:
        self.config = config
        self.places = [[i for i, one in enumerate(program) if one.unit == unit] for unit in UNITS]
        self.units = [[program[place] for place in places] for places in self.places]
        self.given = {fifo: _sums(self.units[UNITS.index(fifo[0])], fifo, "pushes") for fifo in FIFOS}
        self.taken = {fifo: _sums(self.units[UNITS.index(fifo[1])], fifo, "pops") for fifo in FIFOS}

    def tokens(self, state: State, fifo: tuple[str, str]) -> int:
        """How many tokens a FIFO holds."""
        giver, taker = UNITS.index(fifo[0]), UNITS.index(fifo[1])
        over = state.begun[giver] - state.pushing[giver]
        return self.given[fifo][over] - self.taken[fifo][state.begun[taker]]

    def fetched(self, state: State) -> float:
        """Where in the program fetch waits for a place in a queue; what comes before it lies in the queues."""
        ends = (begun + self.config.queue for begun in state.begun)
        return min(places[end] if end < len(places) else float("inf") for places, end in zip(self.places, ends))

    def steps(self, state: State) -> Iterator[Step]:
        """All that can happen next."""
        for unit, (begun, pushing) in enumerate(zip(*state)):
            if pushing:
                one = self.units[unit][begun - 1]
                if all(self.tokens(state, fifo) < self.config.tokens for fifo in one.pushes):
                    yield Step(unit, one, False, State(state.begun, _put(state.pushing, unit, False)))
            elif begun < len(self.units[unit]) and self.places[unit][begun] < self.fetched(state):
                one = self.units[unit][begun]
                if all(self.tokens(state, fifo) for fifo in one.pops):
                    after = State(_put(state.begun, unit, begun + 1), _put(state.pushing, unit, True))
                    yield Step(unit, one, True, after)

    def is_done(self, state: State) -> bool:
        """Whether every instruction is over."""
        return not any(state.pushing) and all(begun == len(unit) for begun, unit in zip(state.begun, self.units))

    def waits(self, state: State) -> Iterator[str]:
        """Why a stream that is not done does not go on."""
        for unit, (begun, pushing) in enumerate(zip(*state)):
            place = begun - 1 if pushing else begun
            if place >= len(self.units[unit]):
                continue
            one, number = self.units[unit][place], self.places[unit][place]
            fifos = [f for f in one.pushes if self.tokens(state, f) >= self.config.tokens] if pushing else one.pops
            for giver, taker in fifos:
                if pushing:
                    yield f"instruction {number} ({one}) of {giver} waits for {taker} to take one of its tokens"
                elif not self.tokens(state, (giver, taker)):
                    yield f"instruction {number} ({one}) of {taker} waits for a token of {giver}"


def _sums(unit: list[Instruction], fifo: tuple[str, str], kind: str) -> list[int]:
    made = [0]
    for one in unit:
        made.append(made[-1] + (fifo in getattr(one, kind)))
    return made


def _put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


@dataclass
class Verdict:
    """What the checker has to say of a stream."""

    done: bool = True
    """Whether it comes to an end: all that tokens decide, and what the machine's error bit DEADLOCK denies."""
    problems: list[str] = field(default_factory=list)


def check(machine: Machine, program: Sequence[Instruction]) -> Verdict:
    """Runs a stream on a machine in one order; finds missing and surplus tokens, races, addresses out of range."""
    verdict = Verdict()
    for number, one in enumerate(program):
        if not is_legal(one):
            verdict.problems.append(f"instruction {number} ({one}) does not exist")
        elif (cycles := cycles_of(one, machine.config)) >= LONGEST:
            verdict.problems.append(f"instruction {number} ({one}) would take {cycles:,} cycles, beyond every limit")
    if verdict.problems:
        verdict.done = False
        return verdict
    stream, state, races = Stream(program, machine.config), State(), _Races(machine)
    while (step := next(stream.steps(state), None)) is not None:
        state = step.after
        if not step.begins:
            races.push(step)
            continue
        number = stream.places[step.unit][state.begun[step.unit] - 1]
        machine.errors = 0
        verdict.problems += [f"instruction {number} ({step.one}) {what}" for what in races.begin(step, stream)]
        machine.execute(step.one)
        if machine.errors & RANGE:
            verdict.problems.append(f"instruction {number} ({step.one}) reaches beyond the end of a memory")
    verdict.done = stream.is_done(state)
    if not verdict.done:
        verdict.problems += list(stream.waits(state))
    else:
        left = {fifo: stream.tokens(state, fifo) for fifo in FIFOS}
        verdict.problems += [f"{count} tokens of {a} for {b} are left over" for (a, b), count in left.items() if count]
    return verdict


class _Races:
    """Conflicts with instructions that need not be over yet.

    `known[u][v]` counts the instructions of unit v that are over for sure when unit u goes on: tokens carry it along.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine, self.history = machine, History(machine)
        self.known = [[0] * len(UNITS) for _ in UNITS]
        self.carried: dict[tuple[str, str], deque[list[int]]] = {fifo: deque() for fifo in FIFOS}

    def push(self, step: Step) -> None:
        known = self.known[step.unit]
        known[step.unit] = step.after.begun[step.unit]
        for fifo in step.one.pushes:
            self.carried[fifo].append(list(known))

    def begin(self, step: Step, stream: Stream) -> Iterator[str]:
        known = self.known[step.unit]
        for fifo in step.one.pops:
            known[:] = map(max, known, self.carried[fifo].popleft())
        for access in self.machine.accesses(step.one):
            for other, wrote, count in self.history.conflicts(step.unit, access):
                if count > known[other]:
                    does, place = "writes" if access.writes else "reads", stream.places[other][count - 1]
                    yield f"{does} {access.memory} that instruction {place} may still {'write' if wrote else 'read'}"
            self.history.mark(step.unit, access, step.after.begun[step.unit])


def explore(machine: Machine, program: Sequence[Instruction], most: int = 1 << 16) -> list[Machine | None]:
    """The different ends of a stream over every order that its tokens allow; None is an end that never comes."""
    stream = Stream(program, machine.config)
    seen, ends = {(State(), _digest(machine))}, {}
    todo = [(State(), machine)]
    while todo:
        state, at = todo.pop()
        steps = list(stream.steps(state))
        if not steps:
            done = stream.is_done(state)
            ends[_digest(at) if done else None] = at if done else None
        for step in steps:
            after = at
            if step.begins:
                after = at.copy()
                after.execute(step.one)
            key = (step.after, _digest(after))
            if key not in seen:
                seen.add(key)
                todo.append((step.after, after))
        if len(seen) > most:
            raise ValueError(f"more than {most} states: give a shorter stream")
    return list(ends.values())


def _digest(machine: Machine) -> int:
    memories = (machine.inp, machine.wgt, machine.acc, machine.uop, machine.dram)
    return hash(b"".join(memory.tobytes() for memory in memories))

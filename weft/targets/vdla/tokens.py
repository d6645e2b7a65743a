"""Places tokens: a sequence of instructions becomes a stream whose units run side by side and still do the same.

    load memory=inp …                       load memory=inp … push_next
    gemm …                           ->     gemm … pop_prev push_prev
    load memory=inp … (the same place)      load memory=inp … pop_next

Instructions come in an order in which they would be right one after the other. For each, the last instruction of
another unit that touches what it touches gives it a token, unless tokens placed so far already keep them apart. The
k-th pop of a FIFO takes the k-th push because the instructions that give are later and later ones.

Virtual threads are nothing more than an order: two threads with a half of the memories each, whose instructions
alternate (`interleave`). While one computes, the other loads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from weft.targets.vdla.isa import UNITS, Instruction
from weft.targets.vdla.machine import Access, Machine

LOAD, COMPUTE, STORE = range(3)
T = TypeVar("T")


class History:
    """Which instruction of each unit has last read and last written every entry; instructions are counted from 1."""

    def __init__(self, machine: Machine) -> None:
        config = machine.config
        depths = {"inp": config.inp, "wgt": config.wgt, "acc": config.acc, "dram": config.dram}
        self.last = {name: np.zeros((len(UNITS), 2, depth), np.int32) for name, depth in depths.items()}

    def conflicts(self, unit: int, access: Access) -> Iterator[tuple[int, bool, int]]:
        """The last instructions of other units that must be over: which unit, whether it writes, its count."""
        for other in range(len(UNITS)):
            for writes in (False, True) if access.writes else (True,):
                if other != unit and access.entries.size:
                    yield other, writes, int(self.last[access.memory][other, int(writes), access.entries].max())

    def mark(self, unit: int, access: Access, count: int) -> None:
        """The instruction `count` of a unit has touched this."""
        self.last[access.memory][unit, int(access.writes), access.entries] = count


class _Placer:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.history = machine, History(machine)
        self.stream: list[Instruction] = []
        self.places: list[list[int]] = [[] for _ in UNITS]
        self.known = [[0] * len(UNITS) for _ in UNITS]
        self.after: list[list[list[int]]] = [[] for _ in UNITS]  # what a unit knew after each of its instructions

    def add(self, one: Instruction, needs: dict[int, int]) -> None:
        """An instruction that others must be over for: {unit: count}."""
        unit = UNITS.index(one.unit)
        for other in sorted(range(len(UNITS)), key=lambda other: -abs(other - unit)):
            if needs.get(other, 0) <= self.known[unit][other]:
                continue
            if abs(other - unit) == 2:  # load and store have no FIFO: an instruction of compute that does nothing helps
                self.add(Instruction("gemm"), {other: needs[other]})
                needs[COMPUTE] = len(self.places[COMPUTE])
                continue
            giver = self.places[other][needs[other] - 1]
            to, of = ("next", "prev") if other < unit else ("prev", "next")
            self.stream[giver] = self.stream[giver].replace(**{f"push_{to}": 1})
            one = one.replace(**{f"pop_{of}": 1})
            self.known[unit] = [max(both) for both in zip(self.known[unit], self.after[other][needs[other] - 1])]
        self.places[unit].append(len(self.stream))
        self.stream.append(one)
        self.known[unit][unit] += 1
        self.after[unit].append(list(self.known[unit]))


def place_tokens(machine: Machine, program: Sequence[Instruction]) -> list[Instruction]:
    """The stream of a sequence; `machine` has in DRAM the micro-ops that it loads."""
    placer = _Placer(machine)
    for one in program:
        unit, accesses = UNITS.index(one.unit), machine.accesses(one)
        needs: dict[int, int] = {}
        for access in accesses:
            for other, _, count in placer.history.conflicts(unit, access):
                needs[other] = max(needs.get(other, 0), count)
        placer.add(one, needs)
        for access in accesses:
            placer.history.mark(unit, access, len(placer.places[unit]))
        if one.opcode == "load" and one.memory_name == "uop":
            machine.execute(one)
    return placer.stream


def interleave(threads: Sequence[Sequence[Sequence[T]]]) -> list[T]:
    """Virtual threads, each a sequence of groups, become one sequence: a group of each thread by turns."""
    return [one for groups in zip_longest(*threads, fillvalue=()) for group in groups for one in group]

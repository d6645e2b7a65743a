"""The fast model: the same cycles as the RTL, by jumping from one event to the next.

Fetch, the three units and the DRAM port run side by side. Fetch and each unit is a generator that yields the cycle in
which it goes on, or NEVER when it waits for another. What a part changes (an entry of a queue, a token) the others
see in the next cycle, as registers do; so the order in which parts are stepped within a cycle does not matter.

    a transfer:     issue · latency cycles · request until the port is granted · words · drain · push
    gemm and alu:   issue · one cycle for each step · drain · drain · push
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from weft.targets.vdla.isa import DEADLOCK, FIFOS, ILLEGAL, TIMEOUT, UNITS, Instruction
from weft.targets.vdla.machine import Machine, cycles_of

NEVER = 1 << 62
PRIORITY = ("fetch", "compute", "store", "load")
"""Who gets the DRAM port first of those who ask in one cycle; who has it keeps it to the end of the transfer."""


@dataclass
class Result:
    """How a run ended."""

    cycles: int = 0
    errors: int = 0
    gemm: int = 0
    """Cycles in which the GEMM core multiplied: gemm / cycles is its utilisation."""
    trace: list[tuple[str, int, int, Instruction]] = field(default_factory=list)
    """Unit, first cycle, the cycle after the last, instruction: what ran when."""


class Model(Machine):
    """A machine that knows the time."""

    def run(self, program: int, count: int, limit: int = 1 << 24, effects: bool = True) -> Result:
        """Runs `count` instructions that lie in DRAM from word `program` on, for at most `limit` cycles.

        Without `effects` on memory it tells only the cycles, which do not depend on data.
        """
        self.errors, self.result, self.effects = 0, Result(), effects
        self.queues: dict[str, deque[Instruction]] = {unit: deque() for unit in UNITS}
        self.tokens = dict.fromkeys(FIFOS, 0)
        self.requests: dict[str, int] = {}
        self.changes: list[Callable[[], object]] = []
        self.unfinished = 0  # instructions that were not dropped and have not pushed their tokens
        self.now, self.port_free, self.progress = 0, 0, -1
        parts = {"fetch": self._fetch(program), **{unit: self._unit(unit) for unit in UNITS}}
        self.wake = dict.fromkeys(parts, 0)
        self.fetching = count
        while True:
            self.now = min(min(self.wake.values()), self.port_free if self.requests else NEVER)
            if self.now >= limit:
                break
            self.progress = self.now - 1  # somebody was at work until then
            for name, at in self.wake.items():
                if at <= self.now:
                    self.wake[name] = next(parts[name], NEVER)
            self._grant()
            self._commit()
        stuck = self.fetching or self.unfinished
        self.errors |= TIMEOUT if self.now < NEVER else DEADLOCK if stuck else 0
        self.result.cycles = limit if self.now < NEVER else self.progress + 1
        self.result.errors = self.errors
        return self.result

    def _commit(self) -> None:
        """The end of a cycle: changes are seen from the next one on, and those who wait look again."""
        if self.changes:
            self.progress = self.now
            for change in self.changes:
                change()
            self.changes.clear()
            for name, at in self.wake.items():
                if at == NEVER and name not in self.requests:
                    self.wake[name] = self.now + 1

    def _grant(self) -> None:
        if self.requests and self.port_free <= self.now:
            name = next(name for name in PRIORITY if name in self.requests)
            cycles = self.requests.pop(name)
            self.port_free = self.now + cycles + 1
            self.wake[name] = self.now + cycles + 2

    def _transfer(self, name: str, cycles: int) -> Iterator[int]:
        """From the cycle of the issue to the one after the drain."""
        if not cycles:
            yield self.now + 2
            return
        yield self.now + self.config.latency + 1
        self.requests[name] = cycles
        yield NEVER

    def _fetch(self, at: int) -> Iterator[int]:
        step = self.config.instruction_words
        while self.fetching:
            chunk = min(self.fetching, self.config.fetch)
            yield from self._transfer("fetch", chunk * step * self.config.word_cycles)
            for one in [self.read_instruction(at + i * step) for i in range(chunk)]:
                if one is None:
                    self.errors |= ILLEGAL
                    self.changes.append(int)  # nothing changes, but time passes
                else:
                    queue = self.queues[one.unit]
                    while len(queue) >= self.config.queue:
                        yield NEVER
                    self.changes.append(partial(queue.append, one))
                    self.unfinished += 1
                self.fetching -= 1
                yield self.now + 1
            at += chunk * step

    def _unit(self, name: str) -> Iterator[int]:
        queue = self.queues[name]
        while True:
            while not (queue and all(self.tokens[fifo] for fifo in queue[0].pops)):
                yield NEVER
            one, start = queue[0], self.now
            self.changes.append(queue.popleft)
            self.changes += [partial(self._count, fifo, -1) for fifo in one.pops]
            cycles = cycles_of(one, self.config)
            if one.opcode in ("load", "store"):
                yield from self._transfer(name, cycles)
            else:
                yield self.now + cycles + 3
                self.result.gemm += cycles if one.opcode == "gemm" else 0
            if self.effects:
                self.execute(one)
            while any(self.tokens[fifo] >= self.config.tokens for fifo in one.pushes):
                yield NEVER
            self.changes += [partial(self._count, fifo, 1) for fifo in one.pushes] or [int]
            self.unfinished -= 1
            self.result.trace.append((name, start, self.now, one))
            yield self.now + 1

    def _count(self, fifo: tuple[str, str], by: int) -> None:
        self.tokens[fifo] += by

"""A stream as text, with names for places in DRAM; and the device that runs it: the fast model.

.uop 0 4194306                                  micro-ops, which the first instruction loads
load memory=inp dram=@X+128 rows=4 columns=16   addresses count words from the start of a buffer
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from weft.codegen.c.program import DeviceKernel, DeviceProgram, Parameter
from weft.core.errors import RuntimeFault, TargetError
from weft.expr.nodes import Address, Buffer, Load, int_value
from weft.expr.visit import walk
from weft.loop.ir import Func, Store
from weft.loop.visit import walk_exprs, walk_stmts
from weft.runtime.array_memory import ArrayMemory
from weft.targets.base import Device, Target
from weft.targets.vdla import config_of
from weft.targets.vdla.isa import CLOCK, Config, Instruction, assemble, disassemble
from weft.targets.vdla.machine import Machine
from weft.targets.vdla.model import Model, Result
from weft.targets.vdla.stream import Placed, Writer
from weft.targets.vdla.tokens import place_tokens

UOPS = "uops"


def generate(func: Func, target: Target) -> DeviceProgram:
    """The stream of a lowered program, and the memory that it works on."""
    config = config_of(target.name.partition(":")[2])
    if func.size_vars or not all(isinstance(one, Buffer) for one in func.params):
        raise TargetError("the accelerator's programs have buffers of constant sizes, and nothing else")
    buffers = [one for one in func.params if isinstance(one, Buffer)]
    sizes = {one.name: int(np.prod([int_value(size) or 0 for size in one.shape])) for one in buffers}
    stores = [s for s in walk_stmts(func.body) if isinstance(s, Store)]
    reads = Counter(buffer for s in stores for buffer in {e.buffer for e in walk(s.value) if isinstance(e, Load)})
    writer = Writer(config, {one: one.name for one in buffers}, reads)
    words = {one.name: -(-sizes[one.name] * one.dtype.bytes // config.block) for one in buffers}
    placed = list(writer.write(func.body, {}))
    per_word = config.block // 4
    uops = writer.uops + [0] * (-len(writer.uops) % per_word)
    at, free = {UOPS: 0, "": 0}, len(uops) // per_word
    for one in buffers:
        at[one.name], free = free, free + words[one.name]
    for transfer in (one for one in placed if one.buffer):
        _check_inside(transfer, words[transfer.buffer], config)
    machine = Machine(replace(config, dram=1 << max(2, free.bit_length())))
    machine.dram.reshape(-1)[: len(uops) * 4] = np.array(uops, np.uint32).view(np.uint8)
    first = Instruction("load", memory="uop", dram=0, rows=1, columns=len(uops) // per_word)
    sequence = [first] + [_moved(one.one, at[one.buffer]) for one in placed]
    stream = place_tokens(machine, sequence)
    lines = [".uop " + " ".join(map(str, uops))] + [_named(one, at) for one in stream]
    written = {s.buffer for s in stores}
    written |= {e.buffer for e in walk_exprs(func.body) if isinstance(e, Address) and "w" in e.mode}
    parameters = tuple(Parameter(one.name, one.dtype, True, one in written, sizes[one.name]) for one in buffers)
    kernel = DeviceKernel(func.name, (1, 1, 1), (1, 1, 1), 0, 0, tuple(one.name for one in buffers))
    program = DeviceProgram(func.name, "\n".join(lines) + "\n", parameters, (kernel,), ())
    cycles(program, config)
    return program


def _check_inside(placed: Placed, words: int, config: Config) -> None:
    """Whether a transfer stays in its buffer."""
    one = placed.one
    beats = config.beats[one.memory_name]
    last = one.dram + max(0, one.rows - 1) * one.stride + max(0, one.columns - 1) * beats + beats - 1
    if one.rows and one.columns and last >= words:
        raise TargetError(f"a transfer reaches word {last} of {placed.buffer}, which has {words}: {one}")


def _moved(one: Instruction, by: int) -> Instruction:
    return one.replace(dram=one.dram + by) if one.opcode in ("load", "store") else one


def _named(one: Instruction, at: Mapping[str, int]) -> str:
    """The line of an instruction, its address from the start of the buffer that it lies in."""
    if one.opcode not in ("load", "store"):
        return disassemble([one])
    name = max((name for name in at if name and at[name] <= one.dram), key=lambda name: at[name])
    text = disassemble([one.replace(dram=0)])
    return re.sub(r"memory=\w+", lambda found: f"{found[0]} dram=@{name}+{one.dram - at[name]}", text)


class Image:
    """A program and its memory in DRAM: micro-ops, buffers, instructions."""

    def __init__(self, source: str, sizes: Mapping[str, int], config: Config) -> None:
        first, _, text = source.partition("\n")
        uops = np.array(first.split()[1:], np.uint32).view(np.uint8)
        block = config.block
        self.places, free = {UOPS: 0}, -(-len(uops) // block)
        for name, size in sizes.items():
            self.places[name], free = free, free + -(-size // block)
        self.program = free
        self.stream = assemble(re.sub(r"@(\w+)\+(\d+)", lambda at: str(self.places[at[1]] + int(at[2])), text))
        words = free + len(self.stream) * config.instruction_words
        self.model = Model(replace(config, dram=1 << max(2, words.bit_length())))
        self.model.dram.reshape(-1)[: len(uops)] = uops
        self.model.write_program(self.stream, free)

    def memory(self, name: str, size: int) -> Any:
        """The bytes of a buffer."""
        return self.model.dram.reshape(-1)[self.places[name] * self.model.config.block :][:size]

    def run(self, effects: bool = True) -> Result:
        """Runs the stream."""
        return self.model.run(self.program, len(self.stream), limit=1 << 30, effects=effects)


def cycles(program: DeviceProgram, config: Config) -> int:
    """How long a program runs; nothing is computed. One that would not end is refused."""
    result = _timed(program.source, tuple((one.name, one.bytes) for one in program.parameters), config)
    if result.errors:
        raise TargetError(f"the stream of {program.name} does not end: error bits {result.errors}")
    return result.cycles


@lru_cache(maxsize=64)
def _timed(source: str, sizes: tuple[tuple[str, int], ...], config: Config) -> Result:
    return replace(Image(source, dict(sizes), config).run(effects=False), trace=[])


@dataclass
class Launch:
    """A stream with the memory that it names, ready to run."""

    device: VdlaDevice
    program: DeviceProgram
    given: Mapping[str, Any]

    def launch(self, stream: Any = None) -> None:
        """Copies the arguments to the accelerator's DRAM, runs, and copies them back."""
        arrays = {name: one for name, one in self.given.items() if isinstance(one, np.ndarray)}
        image = Image(self.program.source, {name: one.nbytes for name, one in arrays.items()}, self.device.config)
        for name, one in arrays.items():
            image.memory(name, one.nbytes)[...] = one
        self.device.result = self.device.execute(image)
        if self.device.result.errors:
            raise RuntimeFault(f"the accelerator stopped with error bits {self.device.result.errors}")
        for name, one in arrays.items():
            one[...] = image.memory(name, one.nbytes)


@dataclass
class Executable:
    """A program on the device."""

    device: VdlaDevice
    program: DeviceProgram

    def bind(self, arguments: Mapping[str, Any]) -> list[Launch]:
        """Ready to run on these arguments."""
        return [Launch(self.device, self.program, arguments)]

    def run(self, arguments: Mapping[str, Any]) -> None:
        """Runs on these arguments."""
        self.bind(arguments)[0].launch()


class VdlaDevice(ArrayMemory, Device):
    """The fast model behind a driver's interface: memory, and programs to run. `result` tells of the last run."""

    name = "the accelerator's cycle-level model"

    def __init__(self, config: Config) -> None:
        self.config = config
        self.result = Result()

    def execute(self, image: Image) -> Result:
        """Runs a program in DRAM to its end; an FPGA's driver, or the RTL's, does this in another way."""
        return image.run()

    def timer(self, launches: Sequence[Any]) -> Callable[[], list[float]]:
        """Runs launches, and tells the machine's own time: cycles at its clock."""

        def cycles_of(launch: Launch) -> float:
            launch.launch()
            return self.result.cycles / CLOCK

        return lambda: [cycles_of(launch) for launch in launches]

    def load_all(self, programs: Sequence[DeviceProgram], codes: Sequence[bytes] = ()) -> list[Executable]:
        """Programs ready to run."""
        return [Executable(self, program) for program in programs]


@lru_cache
def device(config: Config) -> VdlaDevice:
    """The one of these sizes in this process."""
    return VdlaDevice(config)


def open_device(target: Target) -> VdlaDevice:
    """The device of a target."""
    return device(config_of(target.name.partition(":")[2]))

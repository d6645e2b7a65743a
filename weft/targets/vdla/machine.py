"""What instructions do to memory, without time: the meaning that the model, the interpreter and the RTL share.

Every instruction has a meaning: an address beyond the end of a memory wraps around and sets the error bit RANGE.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weft.targets.vdla import isa
from weft.targets.vdla.isa import OPERATIONS, RANGE, UOP, Config, Instruction, decode, encode

Array = Any


class Transfer(NamedTuple):
    """The entries of a transfer: all of them on the chip, those that are no padding, and the words of these in DRAM."""

    sram: Array
    inside: Array
    dram: Array


class Access(NamedTuple):
    """Entries of a memory ("inp", "wgt", "acc" or "dram") that an instruction reads or writes."""

    memory: str
    writes: bool
    entries: Array


class Machine:
    """The memories of the accelerator, its DRAM, and the error bits that its instructions have set."""

    def __init__(self, config: Config) -> None:
        block = config.block
        self.config = config
        self.inp = np.zeros((config.inp, block), np.int8)
        self.wgt = np.zeros((config.wgt, block, block), np.int8)
        self.acc = np.zeros((config.acc, block), np.int32)
        self.uop = np.zeros(config.uop, np.uint32)
        self.dram = np.zeros((config.dram, block), np.uint8)
        self.errors = 0

    def copy(self) -> Machine:
        """Another machine with the same in its memories."""
        other = Machine(self.config)
        for name in ("inp", "wgt", "acc", "uop", "dram"):
            getattr(other, name)[...] = getattr(self, name)
        return other

    def write_program(self, program: Sequence[Instruction | int], at: int) -> None:
        """Instructions (or any 128 bits) into DRAM, from word `at` on."""
        size = self.config.instruction_words * self.config.block
        codes = [one if isinstance(one, int) else encode(one) for one in program]
        data = np.frombuffer(b"".join(code.to_bytes(size, "little") for code in codes), np.uint8)
        self.dram[at : at + len(codes) * self.config.instruction_words] = data.reshape(-1, self.config.block)

    def read_instruction(self, word: int) -> Instruction | None:
        """The instruction at a word of DRAM, None where there is none."""
        words = word + np.arange(self.config.instruction_words)
        return _decoded(self.dram[self._wrap(words, self.config.dram)].tobytes()[:16])

    def _wrap(self, entries: Array, depth: int) -> Array:
        if entries.size and entries.max() >= depth:
            self.errors |= RANGE
            return entries & depth - 1
        return entries

    def transfer(self, one: Instruction) -> Transfer:
        """The entries that a load or a store moves."""
        memory, config = one.memory_name, self.config
        rows, columns = (one.pad_top + one.rows + one.pad_bottom), (one.pad_left + one.columns + one.pad_right)
        sram = one.sram + np.arange(rows * columns)
        row, column = np.divmod(np.arange(one.rows * one.columns), max(one.columns, 1))
        inside = (row + one.pad_top) * columns + column + one.pad_left
        first = one.dram + row * one.stride + column * config.beats[memory]
        dram = first[:, None] + np.arange(config.beats[memory])
        return Transfer(self._wrap(sram, config.depth[memory]), inside, self._wrap(dram, config.dram))

    def loops(self, one: Instruction) -> tuple[Array, Array, Array]:
        """Destination, source and weights of each step of a gemm or an alu, in order; empty where there is none."""
        which = np.arange(one.uop_begin, one.uop_end if _steps(one) else 0)
        dst, src, wgt = _steps_of(one, self.uop[self._wrap(which, self.config.uop)].tobytes())
        uses = one.opcode == "gemm" or not one.immediate
        source = self.config.inp if one.opcode == "gemm" else self.config.acc
        dst = self._wrap(dst, self.config.acc)
        src = self._wrap(src, source) if uses else src[:0]
        return dst, src, self._wrap(wgt, self.config.wgt) if one.opcode == "gemm" else wgt[:0]

    def accesses(self, one: Instruction) -> list[Access]:
        """What an instruction touches of the memories that more than one unit knows."""
        if one.opcode in ("gemm", "alu"):
            dst, src, wgt = self.loops(one)
            source = Access("inp" if one.opcode == "gemm" else "acc", False, src)
            return [source, Access("wgt", False, wgt), Access("acc", True, dst)]
        sram, inside, dram = self.transfer(one)
        if one.opcode == "store":
            return [Access("acc", False, sram[inside]), Access("dram", True, dram.ravel())]
        read = [Access("dram", False, dram.ravel())]
        return read if one.memory_name == "uop" else [*read, Access(one.memory_name.removesuffix("8"), True, sram)]

    def execute(self, one: Instruction) -> None:
        """The whole of an instruction's effect on memory."""
        getattr(self, f"_{one.opcode}")(one)

    def _load(self, one: Instruction) -> None:
        sram, inside, dram = self.transfer(one)
        data = np.zeros((len(sram), dram.shape[1] * self.config.block), np.uint8)
        data[inside] = self.dram[dram].reshape(len(inside), data.shape[1])
        if one.memory_name == "acc8":
            self.acc[sram] = data.view(np.int8)
        elif one.memory_name == "uop":
            self.uop.reshape(-1, self.config.block // 4)[sram] = data.view(np.uint32)
        else:
            memory = getattr(self, one.memory_name)
            memory[sram] = data.view(memory.dtype).reshape(-1, *memory.shape[1:])

    def _store(self, one: Instruction) -> None:
        sram, inside, dram = self.transfer(one)
        data = self.acc[sram[inside]]
        if one.memory_name == "acc8":
            data = np.clip(data, -128, 127).astype(np.int8)
        self.dram[dram] = data.view(np.uint8).reshape(*dram.shape, self.config.block)

    def _gemm(self, one: Instruction) -> None:
        dst, src, wgt = self.loops(one)
        block = self.config.block
        for to, sources, weights in _products(dst.tobytes(), src.tobytes(), wgt.tobytes()):
            if one.overwrite:  # the last product stays
                sources, weights = sources[:, -1:], weights[-1:]
            depth = len(weights) * block
            exact = np.float32 if depth << 14 <= 1 << 24 else np.float64  # sums of int8 products without rounding
            left: Array = self.inp[sources].reshape(len(to), depth).astype(exact)
            right = self.wgt[weights].transpose(0, 2, 1).reshape(depth, block).astype(exact)
            total = (left @ right).astype(np.int64).astype(np.int32)
            self.acc[to] = total if one.overwrite else self.acc[to] + total

    def _alu(self, one: Instruction) -> None:
        dst, src, _ = self.loops(one)
        name = next(name for name, code in OPERATIONS.items() if code == one.operation)
        apart = one.immediate or np.array_equal(src, dst) or not np.isin(src, dst).any()
        if apart and len(np.unique(dst)) == len(dst):
            steps = [(dst, src)]
        else:  # a step sees what an earlier one has written
            steps = [(dst[i : i + 1], src[i : i + 1]) for i in range(len(dst))]
        for to, other in steps:
            made = operate(name, self.acc[to], np.int32(one.value) if one.immediate else self.acc[other])
            self.acc[to] = made if one.immediate else second_stage(made, one.value)


def operate(name: str, x: Array, y: Array) -> Array:
    """One operation of the vector ALU on int32, as OPERATION_TEXT says."""
    with np.errstate(over="ignore"):
        if name == "shr":
            return np.where(y >= 0, x >> (y & 31), x << (-y & 31))
        if name == "clip":
            return np.minimum(np.maximum(x, ~y), y)
        if name == "mulh":
            return (np.multiply(x, y, dtype=np.int64) >> 16).astype(np.int32)
        if name == "round":
            wide, by = x.astype(np.int64), y & 31
            half = np.where(by > 0, (np.int64(1) << by >> 1) - 1 + (wide >> by & 1), 0)
            return (wide + half >> by).astype(np.int32)
        return {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}[name](x, y)


def second_stage(x: Array, value: int) -> Array:
    """What follows an operation with an operand in acc, as STAGE_TEXT says."""
    made = operate("round" if value & isa.ROUNDS else "shr", x, np.int32(value & isa.SHIFT_BITS))
    return np.maximum(made, 0) if value & isa.POSITIVE else made


def _steps(one: Instruction) -> int:
    return int(max(0, one.uop_end - one.uop_begin) * one.outer * one.inner)


def cycles_of(one: Instruction, config: Config) -> int:
    """How long the unit itself works: steps of a gemm or an alu; the time that a transfer keeps the DRAM port."""
    if one.opcode in ("gemm", "alu"):
        return _steps(one)
    cells = (one.pad_top + one.rows + one.pad_bottom) * (one.pad_left + one.columns + one.pad_right)
    inside = one.rows * one.columns
    return int((cells - inside + inside * config.word_cycles) * config.beats[one.memory_name])


@lru_cache(maxsize=1 << 16)
def _decoded(code: bytes) -> Instruction | None:
    return decode(int.from_bytes(code, "little"))


@lru_cache(maxsize=256)
def _steps_of(one: Instruction, uops: bytes) -> tuple[Array, Array, Array]:
    made, place = [], 0
    outer, inner = np.arange(one.outer)[:, None, None], np.arange(one.inner)[:, None]
    for field in UOP:
        base = np.frombuffer(uops, np.uint32).astype(np.int64) >> place & (1 << field.bits) - 1
        by = [one.values.get(f"{field.name}_{loop}", 0) for loop in ("outer", "inner")]
        made.append((base + outer * by[0] + inner * by[1]).ravel())
        place += field.bits
    return made[0], made[1], made[2]


@lru_cache(maxsize=256)
def _products(dst: bytes, src: bytes, wgt: bytes) -> list[tuple[Array, Array, Array]]:
    """Steps as few products of matrices: destinations that share weights, their sources in order, the weights."""
    to, sources, weights = (np.frombuffer(part, np.int64) for part in (dst, src, wgt))
    order = np.argsort(to, kind="stable")
    groups: dict[bytes, list[Array]] = {}
    for steps in np.split(order, np.flatnonzero(np.diff(to[order])) + 1) if len(order) else ():
        groups.setdefault(weights[steps].tobytes(), []).append(steps)
    stacked = [np.stack(steps) for steps in groups.values()]
    return [(to[steps[:, 0]], sources[steps], weights[steps[0]]) for steps in stacked]

"""Random programs for the accelerator: tensor programs with a NumPy answer, and streams that nobody vouches for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.targets.vdla.isa import (
    AFTER,
    BEFORE,
    FIFOS,
    FORMATS,
    OPERATIONS,
    TOKENS,
    Config,
    Instruction,
    encode,
    encode_uop,
    is_legal,
)
from weft.targets.vdla.machine import Machine

SMALL = Config(
    block=8, inp=64, wgt=16, acc=64, uop=64, queue=4, tokens=2, fetch=4, dram=1 << 11, latency=7, word_cycles=1
)  # fmt: skip
"""A machine that is quick to build and to simulate, with queues that fill up."""
PROGRAM = 1 << 9
"""Where programs lie in DRAM: data before it, results from RESULT on."""
RESULT = 3 << 9


@dataclass
class TensorProgram:
    """alu(x · wᵀ + bias) in tiles; the data that it needs in DRAM, and the words of DRAM that NumPy expects."""

    program: list[Instruction]
    dram: np.ndarray
    answer: np.ndarray


def operate(name: str, x: np.ndarray, y: np.ndarray | int) -> np.ndarray:
    """The vector ALU once more, in int64 and cut to 32 bits: not the code under test."""
    wide, y = (np.asarray(part, np.int64) for part in (x, y))
    if name == "shr":
        wide = np.where(y >= 0, wide >> (y % 32), wide << (-y % 32))
    elif name == "round":
        by = y % 32
        below, half = wide % (1 << by), (1 << by) / 2
        up = (below > half) | ((below == half) & ((wide >> by) % 2 == 1) & (by > 0))
        wide = (wide >> by) + up
    elif name == "mulh":
        wide = wide * y >> 16
    elif name == "clip":
        wide = np.minimum(np.maximum(wide, -y - 1), y)
    else:
        wide = {"add": wide + y, "mul": wide * y, "max": np.maximum(wide, y), "min": np.minimum(wide, y)}[name]
    return (wide & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def second_stage(x: np.ndarray, value: int) -> np.ndarray:
    """The second stage once more."""
    bits = value & 0xFFFF
    made = operate("round" if bits >> 5 & 1 else "shr", x, bits & 31)
    return np.maximum(made, 0) if bits >> 6 & 1 else made


def tensor_program(rng: np.random.Generator, config: Config) -> TensorProgram:
    """Tiles of a product, in the two halves of the memories by turns; a tile ends with a few ALU instructions."""
    block = config.block
    tiles, rows, depth = (int(rng.integers(1, most)) for most in (5, 5, 4))
    top, bottom = (int(rng.integers(0, 2)) if rows > 2 else 0 for _ in range(2))
    x = rng.integers(-128, 128, (tiles, rows - top - bottom, depth, block)).astype(np.int8)
    w = rng.integers(-128, 128, (depth, block, block)).astype(np.int8)
    bias = rng.integers(-(1 << 20), 1 << 20, (tiles, rows, block)).astype(np.int32)
    gemm, pattern = _loops(int(rng.integers(3)), rows, depth)
    halves = [(half * config.acc // 2, half * config.inp // 2) for half in range(2)]
    uops = []
    for (
        acc,
        inp,
    ) in halves:  # the product's, then three for the ALU: each with itself, with the next, with the one before
        uops += [encode_uop(acc + dst, inp + src, wgt) for dst, src, wgt in pattern]
        uops += [encode_uop(acc, acc), encode_uop(acc, acc + 1), encode_uop(acc + 1, acc)]
    dram, at = np.zeros((config.dram, block), np.uint8), {}
    free = 0
    for name, data in (("x", x), ("w", w), ("bias", bias), ("uop", np.array(uops, np.uint32))):
        raw = np.resize(data.reshape(-1).view(np.uint8), -(-data.nbytes // block) * block).reshape(-1, block)
        dram[free : free + len(raw)], at[name], free = raw, free, free + len(raw)
    steps = [_alu(rng, rows) for _ in range(rng.integers(0, 4))]
    memory = str(rng.choice(["acc", "acc8"]))
    program = [
        Instruction("load", memory="uop", dram=at["uop"], rows=1, columns=at_least(len(uops) * 4, block)),
        Instruction("load", memory="wgt", dram=at["w"], rows=1, columns=depth),
    ]
    for tile in range(tiles):
        (acc, inp), first, again = halves[tile % 2], tile % 2 * (len(pattern) + 3), tile + 2 < tiles
        inner = rows - top - bottom
        program += [
            Instruction(
                "load", memory="inp", sram=inp, dram=at["x"] + tile * inner * depth, rows=inner, columns=depth,
                stride=depth, pad_top=top, pad_bottom=bottom, pop_next=int(tile >= 2), push_next=1,
            ),
            Instruction(
                "load", memory="acc", sram=acc, dram=at["bias"] + tile * rows * 4, rows=1, columns=rows,
                pop_next=int(tile >= 2),
            ),
            gemm.replace(uop_begin=first, uop_end=first + len(pattern), pop_prev=1, push_prev=int(again)),
        ]  # fmt: skip
        for step, which, _ in steps:
            begin = first + len(pattern) + which
            program.append(step.replace(uop_begin=begin, uop_end=begin + 1))
        program[-1] = program[-1].replace(push_next=1)
        words = config.beats[memory] * rows
        place = RESULT + tile * words
        program.append(
            Instruction(
                "store", memory=memory, sram=acc, dram=place, rows=1, columns=rows, pop_prev=1, push_prev=int(again)
            )
        )
    sums = bias.copy()
    sums[:, top : rows - bottom] += np.einsum("trki,koi->tro", x.astype(np.int32), w.astype(np.int32))
    for tile in sums:
        for step, which, name in steps:
            for row in range(step.inner):
                to, other = row + (which == 2), row + (which == 1)
                made = operate(name, tile[to], step.value if step.immediate else tile[other])
                tile[to] = made if step.immediate else second_stage(made, step.value)
    made = sums if memory == "acc" else np.clip(sums, -128, 127).astype(np.int8)
    return TensorProgram(program, dram, made.reshape(-1).view(np.uint8).reshape(-1, block))


def at_least(count: int, unit: int) -> int:
    """How many units hold `count`."""
    return -(-count // unit)


def _loops(kind: int, rows: int, depth: int) -> tuple[Instruction, list[tuple[int, int, int]]]:
    """One product said in three ways: all steps as micro-ops, or one loop, or two loops around a micro-op."""
    if kind == 0:
        pattern = [(row, row * depth + k, k) for row in range(rows) for k in range(depth)]
        return Instruction("gemm", outer=1, inner=1), pattern
    if kind == 1:
        return Instruction("gemm", outer=1, inner=rows, dst_inner=1, src_inner=depth), [(0, k, k) for k in range(depth)]
    steps = Instruction("gemm", outer=rows, dst_outer=1, src_outer=depth, inner=depth, src_inner=1, wgt_inner=1)
    return steps, [(0, 0, 0)]


def _alu(rng: np.random.Generator, rows: int) -> tuple[Instruction, int, str]:
    which, name = int(rng.integers(3)), str(rng.choice(list(OPERATIONS)))
    inner = rows if which == 0 else rows - 1
    immediate = int(rng.integers(2))
    least, most = (-40, 40) if immediate and name in ("shr", "round") else (-(1 << 15), 1 << 15)
    value = int(rng.integers(least, most))
    step = Instruction(
        "alu", operation=name, outer=1, inner=inner, dst_inner=1, src_inner=1, immediate=immediate, value=value
    )
    return step, which, name


def random_instruction(rng: np.random.Generator, config: Config, tokens: float = 0.3) -> Instruction:
    """A legal one of small size, with tokens as they come; stores stay clear of the program."""
    while True:
        opcode = str(rng.choice(list(FORMATS)))
        bits = {name: int(rng.random() < tokens) for name in TOKENS}
        small = lambda most: int(rng.integers(0, most))
        if opcode in ("load", "store"):
            pads = {f"pad_{side}": small(2) for side in ("top", "bottom", "left", "right")}
            one = Instruction(
                opcode, memory=small(5), sram=small(4), dram=RESULT + small(64) if opcode == "store" else small(64),
                rows=small(3), columns=small(4), stride=small(8), **pads, **bits,
            )  # fmt: skip
        else:
            begin = small(8)
            strides = {name: small(3) for name in ("dst_outer", "dst_inner", "src_outer", "src_inner")}
            more = {"wgt_outer": small(2), "wgt_inner": small(2), "overwrite": small(2)}
            if opcode == "alu":
                more = {"operation": small(len(OPERATIONS)), "immediate": small(2), "value": small(200) - 100}
            one = Instruction(
                opcode, uop_begin=begin, uop_end=begin + small(3), outer=small(4), inner=small(4),
                **strides, **more, **bits,
            )  # fmt: skip
        if is_legal(one):
            return one


def hostile_word(rng: np.random.Generator, config: Config) -> int:
    """Bits of an instruction that may not exist, or reach beyond memories."""
    word = encode(random_instruction(rng, config))
    kind = rng.integers(4)
    if kind == 0:  # other opcode, tokens or memory
        return word ^ int(rng.integers(1 << 10))
    if kind == 1:  # far addresses on the chip or in DRAM
        one = random_instruction(rng, config)
        if one.opcode == "store":
            return encode(
                one.replace(dram=int(rng.integers(config.dram - 4, config.dram)), sram=int(rng.integers(1 << 16)))
            )
        if one.opcode == "load":
            return encode(one.replace(sram=int(rng.integers(1 << 16)), dram=int(rng.integers(1 << 32))))
        return encode(one.replace(dst_outer=int(rng.integers(1 << 11)), src_inner=int(rng.integers(1 << 11))))
    if kind == 2:
        return int.from_bytes(rng.bytes(16), "little") & ~7 | int(rng.choice([0, 5, 6, 7]))
    return word


def token_stream(rng: np.random.Generator, config: Config, count: int) -> list[Instruction]:
    """A stream that ends when it runs in its own order; in half of them, some token bits are changed."""
    held = dict.fromkeys(FIFOS, 0)
    program = []
    for _ in range(count):
        one = random_instruction(rng, config, 0.5)
        for bit, (giver, taker) in zip(("pop_prev", "pop_next"), _neighbours(one, pops=True)):
            if getattr(one, bit) and not held.get((giver, taker)):
                one = one.replace(**{bit: 0})
        for bit, (giver, taker) in zip(("push_prev", "push_next"), _neighbours(one, pops=False)):
            if getattr(one, bit) and held.get((giver, taker), config.tokens) >= config.tokens:
                one = one.replace(**{bit: 0})
        for fifo in one.pops:
            held[fifo] -= 1
        for fifo in one.pushes:
            held[fifo] += 1
        program.append(one)
    for _ in range(rng.integers(1, 4) if rng.integers(2) else 0):
        place, bit = int(rng.integers(count)), str(rng.choice(TOKENS))
        other = program[place].replace(**{bit: 1 - getattr(program[place], bit)})
        program[place] = other if is_legal(other) else program[place]
    return program


def _neighbours(one: Instruction, pops: bool) -> list[tuple[str, str]]:
    others = BEFORE.get(one.unit, ""), AFTER.get(one.unit, "")
    return [(other, one.unit) if pops else (one.unit, other) for other in others]


def fresh(rng: np.random.Generator, machine: Machine, program: list[Instruction | int]) -> None:
    """Other data before the program, the program, and zeros where results go; memories on the chip stay."""
    machine.dram[:] = 0
    machine.dram[:PROGRAM] = rng.integers(0, 256, machine.dram[:PROGRAM].shape)
    machine.write_program(program, PROGRAM)

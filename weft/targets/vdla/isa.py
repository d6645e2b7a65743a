"""The instruction set, said once. Assembler, disassembler, both decoders (model and RTL) and ISA.md come from here.

An instruction is 128 bits: an opcode, four bits for tokens, and the fields of its format, lowest bits first.

    program = assemble("load memory=inp rows=1 columns=4 push_next\\n gemm uop_end=1 outer=4 inner=1 pop_prev")
    words = [encode(instruction) for instruction in program]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

INSTRUCTION_BITS = 128
CLOCK = 100e6
"""Cycles a second on an FPGA, by which cycles are told as seconds."""
UNITS = ("load", "compute", "store")
BEFORE, AFTER = {"compute": "load", "store": "compute"}, {"load": "compute", "compute": "store"}
FIFOS = (("load", "compute"), ("compute", "load"), ("compute", "store"), ("store", "compute"))
"""Of tokens: who pushes, who pops."""
ILLEGAL, RANGE, DEADLOCK, TIMEOUT = 1, 2, 4, 8
ERRORS = {
    ILLEGAL: "an instruction that does not exist; it is dropped",
    RANGE: "an address beyond the end of a memory; it wraps around",
    DEADLOCK: "every unit waits for a token, and nobody is left who could push one; the machine stops",
    TIMEOUT: "the limit of cycles is reached; the machine stops",
}


class Memory(NamedTuple):
    """What a transfer moves to or from: `beats(block)` words of the DRAM port for each entry."""

    code: int
    unit: str
    stores: bool
    meaning: str


MEMORIES = {
    "inp": Memory(0, "load", False, "a vector of `block` int8: the input of one product"),
    "wgt": Memory(1, "load", False, "a matrix of `block` × `block` int8, a row for each output"),
    "uop": Memory(2, "compute", False, "`block` / 4 micro-ops"),
    "acc": Memory(3, "compute", True, "a vector of `block` int32"),
    "acc8": Memory(4, "compute", True, "the same memory, int8 in DRAM: a load extends it, a store saturates"),
}  # fmt: skip
OPERATIONS = {"add": 0, "max": 1, "min": 2, "shr": 3, "clip": 4, "mul": 5, "round": 6, "mulh": 7}
OPCODES = {"load": 1, "store": 2, "gemm": 3, "alu": 4}
TOKENS = ("pop_prev", "pop_next", "push_prev", "push_next")


class Field(NamedTuple):
    """A part of an instruction: how many bits, what they mean, names of values, and whether it has a sign."""

    name: str
    bits: int
    meaning: str
    names: dict[str, int] | None = None
    signed: bool = False


HEAD = (
    Field("opcode", 3, "which instruction", OPCODES),
    Field("pop_prev", 1, "waits for a token of the unit before (load → compute → store)"),
    Field("pop_next", 1, "waits for a token of the unit after"),
    Field("push_prev", 1, "at its end, gives a token to the unit before"),
    Field("push_next", 1, "at its end, gives a token to the unit after"),
)
TRANSFER = (
    Field("memory", 3, "which on-chip memory", {name: memory.code for name, memory in MEMORIES.items()}),
    Field("sram", 16, "the first entry on the chip; the others follow it"),
    Field("dram", 32, "the first word in DRAM"),
    Field("rows", 16, "rows in DRAM"),
    Field("columns", 16, "entries of a row"),
    Field("stride", 16, "words from a row to the next"),
    Field("pad_top", 4, "rows of zeros before; a store leaves padding out"),
    Field("pad_bottom", 4, "rows of zeros after"),
    Field("pad_left", 4, "zero entries before each row"),
    Field("pad_right", 4, "zero entries after each row"),
)
LOOPS = (
    Field("uop_begin", 13, "the first micro-op"),
    Field("uop_end", 14, "the one after the last"),
    Field("outer", 14, "iterations of the outer loop"),
    Field("inner", 14, "iterations of the inner loop"),
    Field("dst_outer", 11, "what an outer iteration adds to the micro-op's destination"),
    Field("dst_inner", 11, "what an inner iteration adds to it"),
    Field("src_outer", 11, "the same for the source"),
    Field("src_inner", 11, "and for each inner iteration"),
)
FORMATS = {
    "load": TRANSFER,
    "store": TRANSFER,
    "gemm": (
        *LOOPS,
        Field("wgt_outer", 10, "what an outer iteration adds to the micro-op's weights"),
        Field("wgt_inner", 10, "what an inner iteration adds to it"),
        Field("overwrite", 1, "a destination becomes the product; otherwise the product is added to it"),
    ),
    "alu": (
        *LOOPS,
        Field("operation", 3, "what is done to each destination", OPERATIONS),
        Field("immediate", 1, "the operand is `value`, not acc[src]"),
        Field("value", 16, "the operand of all lanes; beside an operand in acc, the second stage", signed=True),
    ),
}
UOP = (
    Field("dst", 11, "an entry of acc"),
    Field("src", 11, "an entry of inp (gemm) or of acc (alu)"),
    Field("wgt", 10, "an entry of wgt"),
)
SHIFT_BITS, ROUNDS, POSITIVE = 31, 32, 64
STAGE_TEXT = """An `alu` whose operand is in acc has a second stage in the same cycle, said by `value`: what it made is
shifted right by bits 4:0, with its sign; rounded to the nearest, halves to even, where bit 5 is set; and is at least 0
where bit 6 is set."""
OPERATION_TEXT = {
    "add": "dst + operand", "max": "the larger", "min": "the smaller", "mul": "dst × operand, the low 32 bits",
    "shr": "dst >> operand, with its sign; a negative operand shifts left; 5 bits of the distance count",
    "clip": "at least -operand - 1, and then at most operand",
    "round": "dst / 2 ** operand, rounded to the nearest, halves to even; 5 bits of the operand count",
    "mulh": "dst × operand without its lowest 16 bits: bits 16 to 47 of the product",
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """The sizes of one machine. Depths are entries; all are powers of two.

    The usual ones are those of the TVM paper's (section 6.4): 16 × 16 products, 32 kB for activations, 32 kB for
    weights, 32 kB of micro-ops and 128 kB of sums, on a Zynq-7000. A port of its fabric to DRAM gives 1.2 GB/s (64 bits
    at 150 MHz: UG585, chapter 22), six bytes for each cycle of the paper's 200 MHz, and a word of 16 takes three.
    """

    block: int = 16
    """The side of the GEMM core: block × block products of int8 a cycle; a word of the DRAM port is `block` bytes."""
    inp: int = 2048
    wgt: int = 128
    acc: int = 2048
    uop: int = 8192
    queue: int = 32
    """Instructions that wait for one unit."""
    tokens: int = 16
    """Tokens that one of the four FIFOs holds."""
    fetch: int = 16
    """Instructions that are fetched at once."""
    dram: int = 1 << 20
    """Words in DRAM."""
    latency: int = 64
    """Cycles from the request of a transfer until its first word could come."""
    word_cycles: int = 3
    """Cycles that each word takes: block / word_cycles is the bandwidth in bytes a cycle."""

    def __post_init__(self) -> None:
        limits = {"block": (8, 32), "inp": (2, 2048), "wgt": (2, 1024), "acc": (2, 2048), "dram": (4, 1 << 31)}
        limits |= {"uop": (self.block // 4, 8192), "queue": (1, 1 << 16), "tokens": (1, 1 << 16), "fetch": (1, 256)}
        for name, (least, most) in limits.items():
            value = getattr(self, name)
            if not least <= value <= most or value & (value - 1):
                raise ValueError(f"{name} = {value}: it is a power of two from {least} to {most}")
        if not (0 <= self.latency < 1 << 16 and 0 < self.word_cycles < 1 << 8):
            raise ValueError("latency is from 0 to 65535, word_cycles from 1 to 255")

    @cached_property
    def depth(self) -> dict[str, int]:
        """Entries of what a transfer names; a uop entry is a word of them."""
        words = self.uop * 4 // self.block
        return {"inp": self.inp, "wgt": self.wgt, "uop": words, "acc": self.acc, "acc8": self.acc}

    @cached_property
    def beats(self) -> dict[str, int]:
        """Words of DRAM for each entry."""
        return {"inp": 1, "wgt": self.block, "uop": 1, "acc": 4, "acc8": 1}

    @property
    def instruction_words(self) -> int:
        """Words from an instruction to the next: a wide machine leaves the rest of a word empty."""
        return max(1, INSTRUCTION_BITS // 8 // self.block)


class Instruction:
    """An opcode and the values of its fields, as attributes; what is not said is 0."""

    def __init__(self, opcode: str, **values: Any) -> None:
        self._set(opcode, dict.fromkeys(fields_of(opcode), 0), values)

    def _set(self, opcode: str, known: dict[str, int], values: dict[str, Any]) -> None:
        """Takes over what is known, and checks the values that are not."""
        self.opcode, self.values, fields = opcode, dict(known), fields_of(opcode)
        for name, value in values.items():
            if name not in fields:
                raise ValueError(f"{opcode} has no field {name!r}; it has {', '.join(fields)}")
            field = fields[name]
            if isinstance(value, str):
                if field.names is None or value not in field.names:
                    raise ValueError(f"{opcode}: {name} = {value!r} is none of {', '.join(field.names or ())}")
                value = field.names[value]
            least = -(1 << field.bits - 1) if field.signed else 0
            if not least <= value < least + (1 << field.bits):
                raise ValueError(f"{opcode}: {name} = {value} does not fit into {field.bits} bits")
            self.values[name] = value
        self.__dict__.update(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Instruction) and (self.opcode, self.values) == (other.opcode, other.values)

    def __hash__(self) -> int:
        return hash((self.opcode, *self.values.values()))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"an instruction without a field {name!r}")

    def __repr__(self) -> str:
        return disassemble([self])

    @cached_property
    def unit(self) -> str:
        """Which of the three units runs it."""
        if self.opcode == "load":
            return MEMORIES[self.memory_name].unit
        return "store" if self.opcode == "store" else "compute"

    @cached_property
    def memory_name(self) -> str:
        """The memory of a transfer."""
        return next(name for name, memory in MEMORIES.items() if memory.code == self.memory)

    @cached_property
    def pops(self) -> list[tuple[str, str]]:
        """The token FIFOs that it waits for."""
        neighbours = ((self.pop_prev, BEFORE), (self.pop_next, AFTER))
        return [(of[self.unit], self.unit) for bit, of in neighbours if bit]

    @cached_property
    def pushes(self) -> list[tuple[str, str]]:
        """The token FIFOs that it gives to."""
        neighbours = ((self.push_prev, BEFORE), (self.push_next, AFTER))
        return [(self.unit, of[self.unit]) for bit, of in neighbours if bit]

    def replace(self, **values: Any) -> Instruction:
        """A copy with other values."""
        made = object.__new__(Instruction)
        made._set(self.opcode, self.values, values)
        return made


@lru_cache
def fields_of(opcode: str) -> dict[str, Field]:
    """The fields of an instruction after its opcode, by their names."""
    return {field.name: field for field in (*HEAD[1:], *FORMATS[opcode])}


def encode(instruction: Instruction) -> int:
    """The 128 bits of an instruction."""
    word, place = OPCODES[instruction.opcode], HEAD[0].bits
    for field in fields_of(instruction.opcode).values():
        word |= (instruction.values[field.name] & (1 << field.bits) - 1) << place
        place += field.bits
    return word


def decode(word: int) -> Instruction | None:
    """The instruction that 128 bits stand for; None where there is none."""
    opcode = next((name for name, code in OPCODES.items() if code == word & 7), None)
    if opcode is None:
        return None
    values, place = {}, HEAD[0].bits
    for field in fields_of(opcode).values():
        value = word >> place & (1 << field.bits) - 1
        values[field.name] = value - (1 << field.bits) if field.signed and value >> field.bits - 1 else value
        place += field.bits
    instruction = Instruction(opcode, **values)
    return instruction if is_legal(instruction) else None


def is_legal(instruction: Instruction) -> bool:
    """Whether values that have names are among them, and tokens have a neighbour to go to."""
    if instruction.opcode in ("load", "store"):
        known = [one for one in MEMORIES.values() if one.code == instruction.memory]
        if not known or (instruction.opcode == "store" and not known[0].stores):
            return False
    if instruction.unit == "load":
        return not (instruction.pop_prev or instruction.push_prev)
    return not (instruction.unit == "store" and (instruction.pop_next or instruction.push_next))


def encode_uop(dst: int, src: int = 0, wgt: int = 0) -> int:
    """The 32 bits of a micro-op."""
    return dst | src << 11 | wgt << 22


def disassemble(program: Iterable[Instruction]) -> str:
    """A line for each instruction, which `assemble` reads: fields that are not 0, and bits by their names."""
    return "\n".join(_line(instruction) for instruction in program)


def _line(instruction: Instruction) -> str:
    words = [instruction.opcode]
    for field in FORMATS[instruction.opcode]:
        value = instruction.values[field.name]
        name = next((name for name, code in (field.names or {}).items() if code == value), value)
        if field.names is not None or (value and field.bits > 1):
            words.append(f"{field.name}={name}")
        elif value:
            words.append(field.name)
    return " ".join(words + [name for name in TOKENS if instruction.values[name]])


def assemble(text: str) -> list[Instruction]:
    """The instructions of a text, one on a line; what follows a # is a comment."""
    program = []
    for number, line in enumerate(text.splitlines(), 1):
        opcode, *words = line.split("#")[0].split() or [""]
        if not opcode:
            continue
        if opcode not in FORMATS:
            raise ValueError(f"line {number}: {opcode!r} is no instruction; there are {', '.join(FORMATS)}")
        values: dict[str, Any] = {}
        for word in words:
            name, _, value = word.partition("=")
            values[name] = int(value, 0) if value.lstrip("-")[:1].isdigit() else value or 1
        try:
            program.append(Instruction(opcode, **values))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return program


def document() -> str:
    """ISA.md."""
    command = "Written by `python -m hardware.vdla.simulate --document`; a test compares it with `isa.py`."
    lines = ["# The instruction set", "", command, ""]
    for name, fields in [("every instruction", HEAD), *FORMATS.items(), ("micro-op", UOP)]:
        code = f" (opcode {OPCODES[name]})" if name in OPCODES else ""
        lines += [f"## {name}{code}", "| bits | field | meaning |", "|---|---|---|"]
        place = 0 if fields in (HEAD, UOP) else sum(field.bits for field in HEAD)
        for field in fields:
            names = ": " + ", ".join(f"{key} {value}" for key, value in field.names.items()) if field.names else ""
            lines.append(f"| {place + field.bits - 1}:{place} | {field.name} | {field.meaning}{names} |")
            place += field.bits
        lines.append("")
    lines += ["## Memories", "| name | unit | an entry |", "|---|---|---|"]
    lines += [f"| {name} | {memory.unit} | {memory.meaning} |" for name, memory in MEMORIES.items()]
    lines += ["", "## Operations of the vector ALU, on int32", "| name | result |", "|---|---|"]
    lines += [f"| {name} | {OPERATION_TEXT[name]} |" for name in OPERATIONS]
    lines += ["", STAGE_TEXT]
    lines += ["", "## Error bits", "| bit | meaning |", "|---|---|"]
    lines += [f"| {bit} | {meaning} |" for bit, meaning in ERRORS.items()]
    return "\n".join(lines) + "\n"

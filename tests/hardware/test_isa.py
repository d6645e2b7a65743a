"""The instruction set: texts, bits and the page say the same."""

from pathlib import Path

import numpy as np
import pytest

from tests.hardware.streams import SMALL, hostile_word, random_instruction
from weft.targets.vdla import isa
from weft.targets.vdla.isa import Config, Instruction, assemble, decode, disassemble, encode


def test_the_page_is_up_to_date():
    page = (Path(__file__).resolve().parents[2] / "hardware" / "vdla" / "ISA.md").read_text(encoding="utf-8")
    assert page == isa.document(), "python -m hardware.vdla.simulate --document writes it again"


def test_every_format_fits_and_numbers_are_apart():
    for opcode in isa.FORMATS:
        assert sum(field.bits for field in (*isa.HEAD, *isa.FORMATS[opcode])) <= isa.INSTRUCTION_BITS
    assert sum(field.bits for field in isa.UOP) == 32
    for names in (isa.OPCODES, isa.OPERATIONS, {name: memory.code for name, memory in isa.MEMORIES.items()}):
        assert len(set(names.values())) == len(names)


def test_bits_and_texts_come_back():
    rng = np.random.default_rng(0)
    program = [random_instruction(rng, SMALL) for _ in range(200)]
    assert [decode(encode(one)) for one in program] == program
    assert assemble(disassemble(program)) == program


def test_bits_that_mean_nothing_are_refused():
    assert decode(0) is None  # memory that nobody wrote is no program
    assert decode(encode(Instruction("load", memory="inp", pop_prev=1))) is None  # nobody is before load
    assert decode(encode(Instruction("store", memory="acc", push_next=1))) is None
    assert decode(encode(Instruction("store", memory=isa.MEMORIES["wgt"].code))) is None
    assert decode(encode(Instruction("gemm")) ^ 5) is None  # 6 is no opcode
    rng = np.random.default_rng(1)
    for _ in range(300):  # and whatever is read is an instruction that comes back
        word = hostile_word(rng, SMALL)
        one = decode(word)
        assert one is None or isa.is_legal(one)


@pytest.mark.parametrize(
    "text, reason",
    [
        ("jump", "'jump' is no instruction"),
        ("load memory=far", "'far' is none of inp, wgt, uop, acc, acc8"),
        ("gemm depth=3", "gemm has no field 'depth'"),
        ("load memory=inp\ngemm outer=99999", "line 2: gemm: outer = 99999 does not fit into 14 bits"),
    ],
)
def test_errors_of_the_assembler(text, reason):
    with pytest.raises(ValueError, match="line") as caught:
        assemble(text)
    assert reason in str(caught.value)


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="block = 12: it is a power of two from 8 to 32"):
        Config(block=12)

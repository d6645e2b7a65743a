"""Placed tokens: a sequence becomes a stream without problems that does what the sequence does."""

from dataclasses import replace

import numpy as np

from hardware.vdla.check import check, explore
from tests.hardware.streams import PROGRAM, SMALL, random_instruction
from weft.targets.vdla.isa import assemble, disassemble
from weft.targets.vdla.machine import Machine
from weft.targets.vdla.model import Model
from weft.targets.vdla.tokens import interleave, place_tokens


def test_tokens_stand_where_units_meet():
    program = assemble("""
        load memory=inp rows=1 columns=4
        gemm uop_end=1 outer=4 inner=1 src_outer=1
        load memory=inp rows=1 columns=4
        gemm uop_end=1 outer=4 inner=1 src_outer=1
        store memory=acc8 dram=1536 rows=1 columns=1
    """)
    assert disassemble(place_tokens(Machine(SMALL), program)).split("\n") == [
        "load memory=inp rows=1 columns=4 push_next",
        "gemm uop_end=1 outer=4 inner=1 src_outer=1 pop_prev push_prev",
        "load memory=inp rows=1 columns=4 pop_next push_next",
        "gemm uop_end=1 outer=4 inner=1 src_outer=1 pop_prev push_next",
        "store memory=acc8 dram=1536 rows=1 columns=1 pop_prev",
    ]


def test_load_waits_for_store_by_way_of_compute():
    program = assemble("store memory=acc8 dram=1536 rows=1 columns=1\nload memory=inp dram=1536 rows=1 columns=1")
    stream = place_tokens(Machine(SMALL), program)
    assert [one.opcode for one in stream] == ["store", "gemm", "load"]
    assert not check(Machine(SMALL), stream).problems


def after(model, stream):
    model.write_program(stream, PROGRAM)
    model.run(PROGRAM, len(stream))
    return model


def test_random_sequences():
    """Tokens of random sequences: none is missing, none is left, and every order gives what the sequence gives."""
    config = replace(SMALL, tokens=16)
    for seed in range(40):
        rng = np.random.default_rng(seed)
        machine = Model(config)
        for memory in (machine.dram[:PROGRAM], machine.inp, machine.wgt, machine.acc):
            memory[...] = rng.integers(0, 100, memory.shape)
        program = [random_instruction(rng, config, tokens=0) for _ in range(rng.integers(2, 30))]
        expected = machine.copy()
        for one in program:
            expected.execute(one)
        stream = place_tokens(machine.copy(), program)
        problems = [text for text in check(machine.copy(), stream).problems if "beyond" not in text]
        assert not problems, f"seed {seed}"
        for end in explore(machine.copy(), stream) if len(stream) < 8 else [after(machine, stream)]:
            assert end is not None
            np.testing.assert_array_equal(end.dram[3 << 9 :], expected.dram[3 << 9 :], f"seed {seed}")
            np.testing.assert_array_equal(end.acc, expected.acc, f"seed {seed}")


def test_virtual_threads_alternate():
    assert interleave([[["a0", "a1"], ["a2"]], [["b0"]]]) == ["a0", "a1", "b0", "a2"]

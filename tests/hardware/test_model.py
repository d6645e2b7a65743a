"""The fast model: answers against NumPy, cycles against its docstring, and streams that are wrong."""

from dataclasses import replace

import numpy as np
import pytest

from tests.hardware.streams import PROGRAM, RESULT, SMALL, fresh, hostile_word, tensor_program
from weft.targets.vdla.isa import DEADLOCK, ILLEGAL, RANGE, TIMEOUT, Config, Instruction, assemble, encode_uop
from weft.targets.vdla.model import Model


def compare_with_numpy(count, config):
    model = Model(config)
    for seed in range(count):
        one = tensor_program(np.random.default_rng(seed), config)
        model.dram[:] = one.dram
        model.write_program(one.program, PROGRAM)
        result = model.run(PROGRAM, len(one.program))
        assert result.errors == 0, f"seed {seed}"
        np.testing.assert_array_equal(model.dram[RESULT : RESULT + len(one.answer)], one.answer, f"seed {seed}")


@pytest.mark.parametrize("block", [8, 16, 32])
def test_tensor_programs(block):
    compare_with_numpy(40, replace(SMALL, block=block))


@pytest.mark.slow
def test_many_tensor_programs():
    compare_with_numpy(2000, SMALL)


def run(text, config=SMALL, **options):
    model = Model(config)
    program = assemble(text)
    model.write_program(program, PROGRAM)
    return model, model.run(PROGRAM, len(program), **options)


def test_cycles_of_one_transfer():
    """Fetch: latency, request, two words, drain, dispatch; then the same for the load, and its push."""
    _, result = run("load memory=inp rows=2 columns=3 stride=8")
    fetched = 1 + SMALL.latency + 1 + 2 + 1 + 1
    assert result.cycles == fetched + 1 + SMALL.latency + 1 + 6 + 1 + 1
    _, slow = run("load memory=inp rows=2 columns=3 stride=8 pad_left=1", replace(SMALL, word_cycles=4))
    assert slow.cycles == result.cycles + 3 * (2 + 6) + 2  # words of DRAM take longer, zeros do not


def test_cycles_of_a_product_and_utilisation():
    one = "gemm uop_end=4 outer=5 inner=6"
    _, result = run(one)
    _, two = run(f"{one}\n{one}")
    assert two.cycles - result.cycles == 4 * 5 * 6 + 4 + 2  # issue, drain, drain, push; two words more to fetch
    assert two.gemm == 2 * result.gemm == 240


def test_units_work_side_by_side():
    """Loads into two halves: the second hides behind the product of the first."""
    load = "load memory=inp rows=1 columns=32 {} push_next"
    steps = [load.format("sram=0"), "gemm uop_end=1 outer=40 inner=1 pop_prev"]
    steps += [load.format("sram=32"), "gemm uop_end=1 outer=40 inner=1 pop_prev"]
    _, apart = run("\n".join(steps))
    steps[1], steps[2] = steps[1] + " push_prev", steps[2] + " pop_next"
    _, chained = run("\n".join(steps))
    hidden = [(start, end) for unit, start, end, _ in apart.trace if unit == "load"][1]
    assert apart.cycles < chained.cycles and hidden[0] < apart.trace[1][2]


@pytest.mark.parametrize(
    "text, errors",
    [
        ("gemm uop_end=1 outer=1 inner=1 pop_prev", DEADLOCK),  # nobody pushes
        ("load memory=inp push_next\n" * 3, DEADLOCK),  # nobody takes, and two fill the FIFO
        ("load memory=inp sram=63 rows=1 columns=2", RANGE),
        ("load memory=wgt dram=2047 rows=1 columns=1", RANGE),
        ("gemm uop_end=1 outer=2 inner=1 dst_outer=64", RANGE),
        ("alu uop_begin=64 uop_end=65 outer=1 inner=1 immediate", RANGE),
        ("gemm uop_end=8191 outer=16383 inner=16383", TIMEOUT),
        ("load memory=acc rows=65535 columns=65535", TIMEOUT),
    ],
)
def test_wrong_streams_set_a_bit_and_end(text, errors):
    assert run(text, limit=10_000)[1].errors == errors


def test_bits_that_are_no_instruction_are_dropped():
    model = Model(SMALL)
    good = Instruction("store", memory="acc", dram=RESULT, rows=1, columns=1)
    model.acc[0] = 7
    model.write_program([0, good, (1 << 128) - 1], PROGRAM)
    assert model.run(PROGRAM, 3).errors == ILLEGAL
    assert (model.dram[RESULT : RESULT + 4].reshape(-1).view(np.int32) == 7).all()


def test_hostile_streams_never_hang():
    rng, model, seen = np.random.default_rng(5), Model(SMALL), 0
    for _ in range(150):
        words = [hostile_word(rng, SMALL) for _ in range(rng.integers(1, 16))]
        fresh(rng, model, words)
        result = model.run(PROGRAM, len(words), limit=5_000)
        assert result.cycles <= 5_000
        seen |= result.errors
    assert seen == ILLEGAL | RANGE | DEADLOCK | TIMEOUT


def test_a_step_sees_what_an_earlier_one_wrote():
    """acc[i + 1] += acc[i], and a product that adds to one destination over and over."""
    model = Model(Config(dram=1 << 10))
    model.acc[:8] = 1
    model.uop[:2] = [encode_uop(1, 0), encode_uop(20, 0, 0)]
    model.inp[:4], model.wgt[0] = 3, 2
    text = (
        "alu uop_end=1 outer=1 inner=7 dst_inner=1 src_inner=1\ngemm uop_begin=1 uop_end=2 outer=4 inner=1 src_outer=1"
    )
    model.write_program(assemble(text), 0)
    assert model.run(0, 2).errors == 0
    assert model.acc[:8, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert (model.acc[20] == 4 * 16 * 6).all()

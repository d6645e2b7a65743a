"""The RTL against the fast model: cycle for cycle, bit for bit, on programs that are right, wrong and hostile."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.vdla import LAYERS, compiled, image_of
from hardware.vdla.check import check
from tests.hardware.streams import PROGRAM, SMALL, fresh, hostile_word, random_instruction, tensor_program, token_stream
from weft.targets.vdla.isa import DEADLOCK, TIMEOUT
from weft.targets.vdla.model import Model

pytest.importorskip("amaranth.hdl", reason="the RTL is written in Amaranth: pip install 'weft-compiler[hardware]'")
from hardware.vdla.simulate import Verilated, run_amaranth  # noqa: E402

LIMIT = 20_000


def same(result, other, what=""):
    """Both stop in one cycle with the same error bits; in the midst of work (a timeout), only that bit is sure."""
    bits = TIMEOUT if result.errors & TIMEOUT else ~0
    assert (result.cycles, result.errors & bits) == (other.cycles, other.errors & bits), what


def test_one_program_in_amaranths_simulator():
    config = replace(SMALL, inp=16, wgt=4, acc=16, uop=32)
    one = tensor_program(np.random.default_rng(3), config)
    model = Model(config)
    model.dram[:] = one.dram
    model.write_program(one.program, PROGRAM)
    dram = model.dram.copy()
    same(run_amaranth(dram, config, PROGRAM, len(one.program)), model.run(PROGRAM, len(one.program)))
    np.testing.assert_array_equal(dram, model.dram)


needs_verilator = pytest.mark.skipif(not shutil.which("verilator"), reason="no verilator: the system's package has it")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("verilated")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_verilator
@pytest.mark.parametrize(
    "config",
    [SMALL, replace(SMALL, block=16, word_cycles=2, queue=2, tokens=1, latency=0), replace(SMALL, block=32, fetch=16)],
    ids=["8x8", "16x16", "32x32"],
)
def test_random_programs_in_verilator(folder, config):
    model, rtl = Model(config), Verilated(config, folder)
    kinds = ["tensor"] * 120 + ["stream"] * 400 + ["hostile"] * 200
    for seed, kind in enumerate(kinds):
        rng = np.random.default_rng(seed)
        if kind == "tensor":
            one = tensor_program(rng, config)
            program = one.program
            model.dram[:] = one.dram
            model.write_program(program, PROGRAM)
        else:
            count = int(rng.integers(1, 24))
            program = token_stream(rng, config, count)
            if kind == "hostile":
                program = [hostile_word(rng, config) for _ in range(count)]
            fresh(rng, model, program)
        # a race has no right answer: it is the cycles that must agree
        raceless = kind != "hostile" and not check(model.copy(), program).problems
        dram = model.dram.copy()
        result = model.run(PROGRAM, len(program), LIMIT)
        same(rtl.run(dram, PROGRAM, len(program), LIMIT), result, f"{kind} {seed}")
        if result.errors & TIMEOUT:  # stopped in the midst of work: the memories differ from here on
            rtl.close()
            rtl.start()
            model = Model(config)
        elif raceless:
            np.testing.assert_array_equal(dram, model.dram, f"seed {seed}")
    rtl.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_verilator
def test_a_layer_of_resnet(folder):
    """The first 3 × 3 convolution, about half a million cycles on the machine of the default sizes."""
    image, expected = image_of(LAYERS[0], compiled(LAYERS[0]))
    dram, model = image.model.dram.copy(), image.model
    result = image.run()
    rtl = Verilated(model.config, folder)
    same(rtl.run(dram, image.program, len(image.stream)), result)
    np.testing.assert_array_equal(dram, model.dram)
    made = image.memory("narrow", expected.nbytes).view(np.int8)
    np.testing.assert_array_equal(made.reshape(expected.shape), expected)
    rtl.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@needs_verilator
def test_verdicts_are_the_rtls(folder):
    """10,000 streams: done or deadlock, as the checker says."""
    model, rtl = Model(SMALL), Verilated(SMALL, folder)
    for seed in range(10_000):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 24))
        program = token_stream(rng, SMALL, count)
        if seed % 4 == 0:
            program = [random_instruction(rng, SMALL, 0.1) for _ in range(count)]
        fresh(rng, model, program)
        result = rtl.run(model.dram.copy(), PROGRAM, count, LIMIT)
        verdict = check(model, program)
        assert not result.errors & TIMEOUT and verdict.done == (not result.errors & DEADLOCK), f"seed {seed}"
    rtl.close()

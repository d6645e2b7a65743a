"""weft bench --decode: what is measured is what is said."""

import functools

import numpy as np
import pytest

from tests.models.test_llama import LITTLE
from weft.cli import decoding
from weft.cli.main import main
from weft.models.llama import llama_110m


@pytest.mark.slow
def test_decode_in_float32(monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(decoding, "llama_110m", functools.partial(llama_110m, **LITTLE))
    told = ["bench", "llama_110m", "--decode", "9", "--prompt", "3", "--weights", "float32", "--against", "ort"]
    assert main(told) == 0
    assert float(capsys.readouterr().out.split("logits differ by ")[1]) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("against", [[], ["--against", "ort"]])
def test_decode(monkeypatch, capsys, against):
    if against:
        pytest.importorskip("onnxruntime")
    monkeypatch.setattr(decoding, "llama_110m", functools.partial(llama_110m, **LITTLE))
    assert main(["bench", "llama_110m", "--decode", "9", "--prompt", "3", "--weights", "int8", *against]) == 0
    said = capsys.readouterr().out
    assert "tokens/s" in said and "of the floor" in said
    # On processors with dot products one of the two rounds activations to 8 bits, which the model allows.
    assert not against or float(said.split("logits differ by ")[1]) < 1e-2


def test_other_models_and_options_are_refused(capsys):
    assert main(["bench", "dqn", "--decode", "4"]) == 1
    assert "llama_110m" in capsys.readouterr().err
    assert main(["bench", "dqn", "--prompt", "4"]) == 1
    assert "--decode" in capsys.readouterr().err


def test_the_weights_that_a_token_reads():
    graph = llama_110m(weights="int4", **LITTLE)
    weights = 64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 96 + 128 * 64  # attention (half as many key heads), SwiGLU, logits
    assert decoding.weight_bytes(graph) == weights // 2 + weights // 32 * 4
    assert decoding.reader(1 << 20, 1)() > 0
    assert np.array_equal(decoding.last(2, 5), [4, 4])


def test_the_floor_is_read_in_turns_among_the_tokens(monkeypatch):
    monkeypatch.setattr(decoding, "SETTLE_SECONDS", 0)
    said: list[str] = []

    def step(name):
        return lambda tokens, places: said.append(name) or np.zeros((1, 3))

    def read():
        said.append("floor")
        return 1.0

    count = decoding.TURN + 3
    times, floor, error = decoding.decode(
        {"weft": step("weft"), "ort": step("ort")}, read, np.zeros((1, count), np.int64), 4
    )
    assert floor == [1.0] * count and error == 0 and [len(taken) for taken in times.values()] == [count] * 2
    assert said == [name for turn in (decoding.TURN, 3) for name in ("floor", "weft", "ort") for _ in range(2 * turn)]

"""DFT and STFT: ONNX's cases, and random ones against numpy's FFT."""

import numpy as np
import pytest

from tests.ops.cases import cases, check_case
from tests.ops.nodes import check_node, numbers, run_node
from weft.graph.ir import GraphError
from weft.ops.signal_fourier import factors

# Before opset 20 the axis was an attribute: the importer brings such models to the form of today.
CASES = [case for case in cases("DFT", "STFT") if not case.name.endswith("opset19")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_onnx_case(case):
    assert check_case(case), "no compiled form"


def parts(values):
    return np.stack([values.real, values.imag], axis=-1)


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("axis,length", [(1, None), (-2, 5), (1, 12)])
def test_dft_of_complex_numbers(inverse, axis, length):
    x = numbers(2, 7, 6, 2)
    values = x[..., 0] + 1j * x[..., 1]
    function = np.fft.ifft if inverse else np.fft.fft
    wanted = parts(function(values, length, axis=axis if axis > 0 else axis + 1))
    arrays = [x, None if length is None else np.array(length), np.array(axis)]
    check_node("DFT", arrays, wanted, inverse=inverse)


@pytest.mark.parametrize("length", [1, 2, 8, 15, 17, 60])
def test_lengths_of_many_factors(length):
    x = numbers(2, length, 2)
    for inverse, function in ((0, np.fft.fft), (1, np.fft.ifft)):
        values = x.astype("float64")[..., 0] + 1j * x.astype("float64")[..., 1]
        (made,) = run_node("DFT", x, inverse=inverse)[1]
        wanted = parts(function(values, axis=1))
        assert np.abs(made - wanted).max() <= 1e-6 * max(1, np.abs(wanted).max())
    (made,) = run_node("DFT", x[..., :1], onesided=1)[1]
    wanted = parts(np.fft.rfft(x[..., 0].astype("float64"), axis=1))
    assert np.abs(made - wanted).max() <= 1e-6 * max(1, np.abs(wanted).max())


def test_the_product_of_the_factors_is_the_length():
    for length in (1, 2, 12, 97, 1024, 2 * 3 * 5 * 7 * 11):
        assert np.prod(factors(length)) == length
    assert factors(40) == [2, 4, 5] and factors(9) == [3, 3]


@pytest.mark.parametrize("size,length", [(8, None), (7, None), (7, 10), (9, 6)])
def test_onesided_there_and_back(size, length):
    x = numbers(3, size, 1)
    spectrum = np.fft.rfft(x[..., 0], length, axis=1)
    given = [] if length is None else [np.array(length)]
    check_node("DFT", [x, *given], parts(spectrum), onesided=1)
    whole = np.fft.irfft(spectrum, length or size, axis=1)[..., None]
    back = [parts(spectrum).astype("float32"), np.array(length or size)]
    check_node("DFT", back, whole, onesided=1, inverse=1)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_stft(onesided, windowed):
    x, window = numbers(2, 50, 1), np.hanning(12).astype("float32")
    frames = np.stack([x[:, i : i + 12, 0] for i in range(0, 39, 5)], axis=1) * (window if windowed else 1)
    wanted = parts(np.fft.rfft(frames) if onesided else np.fft.fft(frames))
    rest = [window] if windowed else [None, np.array(12)]
    check_node("STFT", [x, np.array(5), *rest], wanted, onesided=onesided)


def test_refuses():
    with pytest.raises(GraphError, match="last dimension"):
        run_node("DFT", numbers(2, 3, 2), None, np.array(-1))
    with pytest.raises(GraphError, match="frame_step"):
        run_node("STFT", numbers(1, 9, 1), np.array(0), None, np.array(4))

"""DFT and STFT: discrete Fourier transforms (`signal_fourier` has the algorithm).

Complex numbers are a last dimension of two (real, imaginary); a last dimension of one is a real signal. A transform of
float32 is computed in float32, as numpy and the runtimes compute it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, Dim, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import divided, minus, normal_axis, plus, times, unknown_dim
from weft.ops.convolution import accumulator, exact_type
from weft.ops.signal_fourier import Parts, Transform

# ---------------------------------------------------------------------------------------------------------------- DFT


def _axis(use: Use, value: Array | None, rank: int) -> int:
    axis = -2 if value is None else int(value.reshape(()))
    axis = normal_axis(axis, rank, use.error)
    if axis == rank - 1:
        raise use.error("the last dimension holds real and imaginary parts: a transform along it has no meaning")
    return axis


def _modes(use: Use) -> tuple[bool, bool]:
    return bool(use.get("inverse", 0)), bool(use.get("onesided", 0))


def _length(use: Use, size: Dim) -> Dim:
    """The length of the transform where none is given."""
    return times(minus(size, 1), 2) if all(_modes(use)) else size


def _infer_dft(c: Infer) -> list[Type]:
    x = c.tensor(0)
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    inverse, onesided = _modes(c)
    parts: Dim = 1 if inverse and onesided else 2
    if c.has(2) and c.value(2) is None:
        return [TensorType(x.dtype, (*[unknown_dim("dft") for _ in x.dims[:-1]], parts))]
    axis = _axis(c, c.value(2), x.rank)
    given = c.value(1)
    length: Dim = _length(c, x.dims[axis]) if given is None else int(given.reshape(()))
    if c.has(1) and given is None:
        length = unknown_dim("dft_length")
    if isinstance(length, int) and length < 1:
        raise c.error(f"a transform of length {length} has no meaning")
    shape = list(x.dims)
    shape[axis] = plus(divided(length, 2), 1) if onesided and not inverse else length
    shape[-1] = parts
    return [TensorType(x.dtype, shape)]


def _complex(x: Array) -> Array:
    """The complex numbers that the last dimension holds."""
    kind = np.complex128 if x.dtype == np.float64 else np.complex64
    wide = x.astype(exact_type(str(x.dtype)) or x.dtype)
    return np.asarray(
        wide[..., 0].astype(kind) if x.shape[-1] == 1 else (wide[..., 0] + 1j * wide[..., 1]).astype(kind)
    )


def _evaluate_dft(c: Evaluate, x: Array, dft_length: Any = None, axis: Any = None) -> Array:
    along = _axis(c, axis, x.ndim)
    inverse, onesided = _modes(c)
    size = x.shape[along]
    length = _length(c, size) if dft_length is None else int(dft_length.reshape(()))
    assert isinstance(length, int)
    values = _complex(x)
    if inverse and onesided:
        made = np.fft.irfft(values, length, axis=along)[..., None]
    else:
        spectrum = (np.fft.ifft if inverse else np.fft.fft)(values, length, axis=along)
        if onesided:
            spectrum = spectrum.take(range(length // 2 + 1), axis=along)
        made = np.stack([spectrum.real, spectrum.imag], axis=-1)
    return np.asarray(made.astype(x.dtype))


def _compute_dft(c: Compute, x: te.Tensor, dft_length: Any = None, axis: Any = None) -> Any:
    inverse, onesided = _modes(c)
    shape, kind = c.shape(0), c.outputs[0].dtype
    along, wide = _axis(c, c.value(2), len(shape)), accumulator(c.outputs[0].dtype)
    out = c.out_shape()
    given = c.value(1)
    length = _length(c, shape[along]) if given is None else int(given.reshape(()))
    assert isinstance(length, int)
    used = min(shape[along], length // 2 + 1 if inverse and onesided else length)

    def part(place: tuple[Expr, ...], i: Expr, number: int) -> Expr:
        value = x[(*place, number)].astype(wide)
        return value if used == length else te.if_then_else(i < used, value, te.const(0.0, wide))

    def read(others: tuple[Expr, ...], i: Expr) -> Parts:
        place = (*others[:along], i, *others[along:])
        real, imaginary = part(place, i, 0), part(place, i, 1) if shape[-1] == 2 else None
        return _doubled(real, imaginary, i, length) if inverse and onesided else (real, imaginary)

    transform = Transform(out[:-1], along, length, wide, inverse)
    real, imaginary = transform.run(read, is_real=shape[-1] == 1, complex_result=out[-1] == 2)
    scale = te.const(1.0 / length if inverse else 1.0, wide)
    return _joined(out, real, imaginary, lambda value: (value * scale).astype(kind), "dft")


def _joined(out: tuple[int, ...], real: Any, imaginary: Any, finish: Callable[[Expr], Expr], name: str) -> te.Tensor:
    """Real and imaginary parts side by side in a last dimension."""

    def body(*at: Expr) -> Expr:
        if imaginary is None:
            return finish(real[at[:-1]])
        return finish(te.if_then_else(at[-1] < 1, real[at[:-1]], imaginary[at[:-1]]))

    return te.stage(out, body, name)


def _doubled(real: Expr, imaginary: Expr | None, i: Expr, length: int) -> tuple[Expr, Expr | None]:
    """A half spectrum's element with its mirror image: all but the first, and the middle one, stand for two."""
    single = te.equal(i, 0) if length % 2 else te.any(te.equal(i, 0), te.equal(i, length // 2))
    zero, two = te.const(0.0, real.dtype), te.const(2.0, real.dtype)
    # The parts that stand alone are real by symmetry: what their imaginary part holds does not count.
    other = None if imaginary is None else te.if_then_else(single, zero, two * imaginary)
    return te.if_then_else(single, real, two * real), other


register(
    "DFT",
    _infer_dft,
    _evaluate_dft,
    _compute_dft,
    "complex",
    shape_inputs=(1, 2),
    takes="input:float[_ *s 1]|[_ *s 2], dft_length:int[]|[1]?, axis:int[]|[1]?",
)

# --------------------------------------------------------------------------------------------------------------- STFT


def _frame(use: Use, size: Dim, window: tuple[Dim, ...] | None, length: Array | None) -> Dim:
    if length is not None:
        return int(length.reshape(()))
    return window[0] if window is not None else size


def _infer_stft(c: Infer) -> list[Type]:
    x, step = c.tensor(0), c.value(1)
    if x.shape is None:
        return [TensorType(x.dtype, None)]
    window = c.tensor(2).shape if c.has(2) else None
    frame = _frame(c, x.dims[1], window, c.value(3))
    if c.has(3) and c.value(3) is None:
        frame = unknown_dim("frame_length")
    if window and isinstance(window[0], int) and isinstance(frame, int) and window[0] != frame:
        raise c.error(f"a window of {window[0]} elements for frames of {frame}")
    if isinstance(frame, int) and frame < 1:
        raise c.error(f"frames of {frame} elements")
    onesided = bool(c.get("onesided", 1))
    bins = plus(divided(frame, 2), 1) if onesided else frame
    frames: Dim = unknown_dim("frames")
    if step is not None:
        if int(step.reshape(())) < 1:
            raise c.error(f"frame_step is {int(step.reshape(()))}; it must be at least 1")
        frames = plus(divided(minus(x.dims[1], frame), int(step.reshape(()))), 1)
        if isinstance(frames, int) and frames < 0:
            raise c.error(f"frames of {frame} are longer than the signal of {x.dims[1]}")
    return [TensorType(x.dtype, (x.dims[0], frames, bins, 2))]


def _evaluate_stft(c: Evaluate, x: Array, frame_step: Array, window: Any = None, frame_length: Any = None) -> Array:
    signal = x if x.ndim == 3 else x[..., None]
    step = int(frame_step.reshape(()))
    frame = _frame(c, signal.shape[1], None if window is None else window.shape, frame_length)
    assert isinstance(frame, int)
    values = _complex(signal)
    count = (values.shape[1] - frame) // step + 1
    place = np.arange(count)[:, None] * step + np.arange(frame)[None, :]
    frames = values[:, place]
    if window is not None:
        frames = frames * window.astype(frames.real.dtype)
    spectrum = np.fft.fft(frames, axis=-1)
    if c.get("onesided", 1):
        spectrum = spectrum[..., : frame // 2 + 1]
    return np.asarray(np.stack([spectrum.real, spectrum.imag], axis=-1).astype(x.dtype))


def _compute_stft(c: Compute, x: te.Tensor, step: Any, window: Any = None, length: Any = None) -> Any:
    stride = c.value(1)
    if stride is None:
        return None
    shape, kind, out = c.shape(0), c.outputs[0].dtype, c.out_shape()
    wide, hop = accumulator(kind), int(stride.reshape(()))
    frame = _frame(c, shape[1], None if window is None else c.shape(2), c.value(3))
    assert isinstance(frame, int)

    def read(others: tuple[Expr, ...], i: Expr) -> Parts:
        place = (others[0], others[1] * hop + i)
        made = [x[place] if len(shape) == 2 else x[(*place, p)] for p in range(2 if shape[2:] == (2,) else 1)]
        values: list[Expr] = [v.astype(wide) for v in made]
        if window is not None:
            values = [v * window[i].astype(wide) for v in values]
        return values[0], values[1] if len(values) == 2 else None

    is_real = shape[2:] != (2,)
    real, imaginary = Transform(out[:-1], 2, frame, wide, inverse=False).run(read, is_real, complex_result=True)
    return _joined(out, real, imaginary, lambda value: value.astype(kind), "stft")


register(
    "STFT",
    _infer_stft,
    _evaluate_stft,
    _compute_stft,
    "complex",
    shape_inputs=(1, 3),
    takes="signal:float[b l]|[b l 1]|[b l 2], frame_step:int[]|[1], window:float[w]?, frame_length:int[]|[1]?",
)

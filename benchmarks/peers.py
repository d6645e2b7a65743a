"""What Weft is measured against: PyTorch's matrix multiplications on the CPU (MKL and oneDNN underneath).

    peer = matmul(a, b, threads=1)[0]        numpy arrays in; float32, float64, bfloat16 or int8
    peer.run()                               multiplies once, into memory that was set aside before
    peer.result()                            the product as a numpy array, to check both sides against each other

int8 has two peers: the plain product (int32 sums) and oneDNN's quantised linear layer with weights packed beforehand.
PyTorch is imported when the first peer is made; it comes with the `[bench]` extra.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from weft.core.install import hint


class PeerMissing(RuntimeError):
    """A peer that is not installed, or that cannot do what is asked here."""


@dataclass(frozen=True)
class Peer:
    """One way to compute something with another library."""

    name: str
    run: Callable[[], object]
    result: Callable[[], np.ndarray[Any, Any]]


def load(package: str) -> Any:
    """The package, or a message that says how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PeerMissing(
            f"the peers need {package} ({error}): run `make bench`, or install it with {hint('bench')}"
        ) from error


def to_torch(array: np.ndarray[Any, Any]) -> Any:
    """The array as a tensor on the same memory; bfloat16, which numpy has only through ml_dtypes, by its bits."""
    torch = load("torch")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> np.ndarray[Any, Any]:
    """The tensor as an array on the same memory."""
    torch = load("torch")
    if tensor.dtype == torch.bfloat16:
        bits: np.ndarray[Any, Any] = tensor.view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    array: np.ndarray[Any, Any] = tensor.numpy()
    return array


def matmul(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], threads: int = 1) -> list[Peer]:
    """Every peer that multiplies two matrices of this type."""
    name = np.dtype(a.dtype).name
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"no product of {name}{a.shape} and {np.dtype(b.dtype).name}{b.shape}")
    if name in ("float32", "float64", "bfloat16"):
        return [_float_matmul(a, b, threads)]
    if name == "int8":
        return [_int8_matmul(a, b, threads), *_int8_linear(a, b, threads)]
    raise PeerMissing(f"there is no peer for a product of {name} matrices")


def _with_threads(run: Callable[[], object], threads: int) -> Callable[[], object]:
    """Run with so many threads: PyTorch's count is global, and another peer in the same run may want another."""
    torch = load("torch")
    if threads < 1:
        raise ValueError(f"threads is {threads}, but must be 1 or more")
    get_count, set_count = torch.get_num_threads, torch.set_num_threads

    def run_threaded() -> object:
        if get_count() != threads:
            set_count(threads)
        return run()

    return run_threaded


def _float_matmul(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], threads: int) -> Peer:
    torch = load("torch")
    left, right = to_torch(a), to_torch(b)
    out = torch.empty(a.shape[0], b.shape[1], dtype=left.dtype)
    run = _with_threads(lambda: torch.mm(left, right, out=out), threads)
    return Peer("torch", run, lambda: from_torch(out))


def _int8_matmul(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], threads: int) -> Peer:
    """int8 times int8 into int32."""
    torch = load("torch")
    left, right = to_torch(a), to_torch(b)
    out = torch.empty(a.shape[0], b.shape[1], dtype=torch.int32)
    return Peer("torch", _with_threads(lambda: torch._int_mm(left, right, out=out), threads), lambda: from_torch(out))


def _int8_linear(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], threads: int) -> list[Peer]:
    """oneDNN's quantised linear layer: the second matrix packed beforehand, sums scaled (here by 1) to float32.

    Its first matrix is uint8 with a zero point, so a is shifted by 128 and 128 is that zero point.
    """
    torch = load("torch")
    shifted = to_torch((a.astype(np.int16) + 128).astype(np.uint8))
    scales, zeros = torch.ones(b.shape[1]), torch.zeros(b.shape[1], dtype=torch.int64)
    out: list[Any] = [None]
    try:
        packed = torch.ops.onednn.qlinear_prepack(to_torch(np.ascontiguousarray(b.T)), list(a.shape))

        def run() -> None:
            out[0] = torch.ops.onednn.qlinear_pointwise(
                shifted, 1.0, 128, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
            )

        run()
    except (AttributeError, RuntimeError, NotImplementedError):
        return []  # built without oneDNN's quantised operators: the plain product remains
    return [Peer("torch, packed", _with_threads(run, threads), lambda: from_torch(out[0]))]

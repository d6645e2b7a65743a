"""The peers compute what we compute."""

import sys

import ml_dtypes
import numpy as np
import pytest

from benchmarks import peers


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(peers.PeerMissing, match=r"need torch .*weft-compiler\[bench\]"):
        peers.matmul(np.ones((2, 2), np.float32), np.ones((2, 2), np.float32))


@pytest.mark.parametrize("shape", [(64, 96, 32), (37, 17, 53), (1, 64, 8)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_matmul(dtype, shape):
    pytest.importorskip("torch")
    m, k, n = shape
    random = np.random.default_rng(0)
    numpy_type = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    a = random.integers(-128, 128, (m, k)).astype(numpy_type)
    b = random.integers(-128, 128, (k, n)).astype(numpy_type)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    found = peers.matmul(a, b, threads=2)
    assert len(found) == len({peer.name for peer in found})
    for peer in found:
        peer.run()
        np.testing.assert_allclose(peer.result().astype(np.float64), expected, rtol=2**-7 if dtype == "bfloat16" else 0)


def test_each_peer_runs_with_its_own_threads():
    torch = pytest.importorskip("torch")
    square = np.ones((8, 8), np.float32)
    one, two = (peers.matmul(square, square, threads)[0] for threads in (1, 2))
    for peer, threads in ((one, 1), (two, 2), (one, 1)):
        peer.run()
        assert torch.get_num_threads() == threads


def test_junk_is_refused():
    pytest.importorskip("torch")
    square = np.ones((8, 8), np.float32)
    with pytest.raises(ValueError, match=r"no product of float32\(8, 8\) and float32\(7, 8\)"):
        peers.matmul(square, square[:7])
    with pytest.raises(ValueError, match="threads is 0"):
        peers.matmul(square, square, threads=0)
    with pytest.raises(peers.PeerMissing, match="no peer for a product of complex64"):
        peers.matmul(square.astype(np.complex64), square.astype(np.complex64))

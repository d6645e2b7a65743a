"""Products of one- and two-bit numbers: NumPy's answers, packed and tensorized, and the instructions that count."""

import numpy as np
import pytest

import weft
from weft import te
from weft.core.errors import ShapeError, TargetError
from weft.targets.cpu import bits
from weft.targets.registry import find_target
from weft.te import bitserial

NATIVE = find_target("native")
needs_counting = pytest.mark.skipif(not bits.kinds_of(NATIVE), reason="no instruction that counts bits of vectors")


def packed(x, count, line=bitserial.LINE):
    given = te.placeholder(x.shape, "uint8", name="x")
    made = bitserial.pack_bits(given, count, line)
    out = np.zeros([int(size.value) for size in made.shape], np.uint8)
    weft.build(te.create_schedule(made.op), [given, made])(x, out)
    return out


def expected(x, w, bipolar, bits=1):
    weights = w.astype(np.int32) * 2 - (2**bits - 1) if bipolar else w.astype(np.int32)
    return x.astype(np.int32) @ weights.T


def product(a, w, bipolar, target=NATIVE, tensorized=True):
    left, right = (te.placeholder(one.shape, "uint8", name=name) for name, one in (("a", a), ("w", w)))
    total, counts = bitserial.dense(left, right, bipolar)
    s = te.create_schedule(total.op)
    if tensorized:
        bits.schedule(s, total, counts, target)
    return s, [left, right, total]


def test_planes_of_bits():
    x = np.array([[0, 1, 2, 3, 3, 0, 0, 0, 1]], np.uint8)
    made = packed(x, 2)
    assert made.shape == (2, 1, 16)
    assert made[0, 0, :2].tolist() == [0b00011010, 1] and made[1, 0, :2].tolist() == [0b00011100, 0]
    assert not made[:, :, 2:].any()


@needs_counting
@pytest.mark.parametrize(
    "rows, columns, depth, a_bits, w_bits, bipolar",
    [
        (6, 8, 100, 2, 1, False),
        (9, 12, 128, 2, 1, True),
        (7, 4, 1200, 2, 2, False),
        (3, 8, 64, 1, 1, True),
        (5, 8, 90, 2, 2, True),
    ],
)
def test_products(rows, columns, depth, a_bits, w_bits, bipolar):
    """By the plain program, and by the intrinsic; two-bit weights, and bits that stand for -1 and 1."""
    rng = np.random.default_rng(depth)
    x = rng.integers(0, 1 << a_bits, (rows, depth)).astype(np.uint8)
    w = rng.integers(0, 1 << w_bits, (columns, depth)).astype(np.uint8)
    line = bits.line_of(NATIVE)
    planes = packed(x, a_bits, line), packed(w, w_bits, line)
    for tensorized in (False, True):
        made = np.zeros((rows, columns), np.int32)
        s, arguments = product(*planes, bipolar, tensorized=tensorized)
        weft.build(s, arguments)(*planes, made)
        np.testing.assert_array_equal(made, expected(x, w, bipolar, w_bits))


@needs_counting
def test_a_convolution():
    """3 × 3 over an image with a border of zeros, stride 2: windows of bits, and a product."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (1, 7, 7, 16)).astype(np.uint8)
    w = rng.integers(0, 2, (8, 3, 3, 16)).astype(np.uint8)
    image = packed(x, 2, line=2)  # a pixel's channels are not filled up: its windows are
    weights = packed(w, 1, line=2).reshape(1, 8, -1)
    weights = np.pad(weights, ((0, 0), (0, 0), (0, -weights.shape[2] % bitserial.LINE)))
    given, right = te.placeholder(image.shape, "uint8", name="x"), te.placeholder(weights.shape, "uint8", name="w")
    total, counts = bitserial.dense(bitserial.windows(given, (3, 3), 2, 1), right)
    s = te.create_schedule(total.op)
    bits.schedule(s, total, counts, NATIVE)
    made = np.zeros((16, 8), np.int32)
    weft.build(s, [given, right, total])(image, weights, made)
    padded = np.pad(x.astype(np.int32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    wanted = sum(
        padded[0, i : i + 7 : 2, j : j + 7 : 2] @ w[:, i, j].astype(np.int32).T for i in range(3) for j in range(3)
    )
    np.testing.assert_array_equal(made, wanted.reshape(16, 8))


@pytest.mark.parametrize(
    "target, instruction",
    [
        ("aarch64-unknown-linux-gnu,features=+neon", "uaddlp"),
        ("x86_64-unknown-linux-gnu,cpu=haswell", "vpsadbw"),
        ("x86_64-unknown-linux-gnu,cpu=icelake-server,features=+avx512vpopcntdq", "vpopcntq"),
    ],
)
def test_code_of_other_machines(target, instruction):
    planes = np.zeros((2, 4, 64), np.uint8), np.zeros((1, 4, 64), np.uint8)
    s, arguments = product(*planes, False, find_target(target))
    made = weft.build(s, arguments, target=target)
    assert instruction in getattr(made, "built", made).assembly()


def test_what_has_no_counterpart_is_refused():
    planes = np.zeros((2, 4, 24), np.uint8), np.zeros((1, 4, 24), np.uint8)
    with pytest.raises(TargetError, match="rows of 24 bytes"):
        product(*planes, False)
    with pytest.raises(ShapeError, match="planes of 16 and 32 bytes"):
        product(np.zeros((1, 4, 16), np.uint8), np.zeros((2, 4, 32), np.uint8), True)

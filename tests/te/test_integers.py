"""Integers of every width, bool, and types that are packed into bytes."""

import numpy as np
import pytest

from tests.te.support import check
from weft import te

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def sample(dtype, size=40, seed=0):
    """Values over the whole range, with its ends."""
    kind = te.placeholder((1,), dtype).dtype
    random = np.random.default_rng(seed).integers(kind.min, kind.max, size, dtype=kind.numpy, endpoint=True)
    random[:4] = [kind.min, kind.max, 0, 1]
    return random


def divisors(dtype, size=40):
    """Values without 0 (and without -1, by which the least number cannot be divided)."""
    made = sample(dtype, size, seed=1)
    made[np.isin(made, np.array([0, -1 if dtype[0] == "i" else 0], made.dtype))] = 7
    return made


def truncated(a, b):
    """C's division, exactly (Python's integers do not overflow)."""
    pairs = [(int(x), int(y)) for x, y in zip(a, b)]
    quotients = [abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]
    rests = [x - q * y for (x, y), q in zip(pairs, quotients)]
    return np.array(quotients, a.dtype), np.array(rests, a.dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_arithmetic_wraps(dtype):
    A, B = te.placeholder((40,), dtype, name="A"), te.placeholder((40,), dtype, name="B")
    a, b = sample(dtype), divisors(dtype)
    makes = [
        lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x // y, lambda x, y: x % y,
        lambda x, y: -x, lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: ~x,
    ]  # fmt: skip
    outputs = [te.compute((40,), lambda i, f=f: f(A[i], B[i]), name=f"C{n}") for n, f in enumerate(makes)]
    functions = [te.maximum, te.minimum, te.truncdiv, te.truncmod]
    outputs += [te.compute((40,), lambda i, f=f: f(A[i], B[i]), name=f"D{n}") for n, f in enumerate(functions)]
    tests = [lambda x, y: x < y, lambda x, y: x <= y, lambda x, y: x > y, lambda x, y: x >= y]
    outputs += [te.compute((40,), lambda i, f=f: f(A[i], B[i]), name=f"E{n}") for n, f in enumerate(tests)]
    outputs += [
        te.compute((40,), lambda i, f=f: f(A[i], B[i]), name=f"F{n}") for n, f in enumerate((te.equal, te.not_equal))
    ]
    with np.errstate(all="ignore"):
        wanted = [f(a, b) for f in makes] + [np.maximum(a, b), np.minimum(a, b), *truncated(a, b)]
        wanted += [f(a, b) for f in tests] + [a == b, a != b]
    check(outputs, {A: a, B: b}, wanted)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_and_bits(dtype):
    A, S = te.placeholder((40,), dtype, name="A"), te.placeholder((40,), dtype, name="S")
    bits = A.dtype.bits
    a = sample(dtype)
    shifts = (np.arange(40) % bits).astype(dtype)
    unsigned = [int(x) % (1 << bits) for x in a]
    outputs = [
        te.compute((40,), lambda i: A[i] << S[i], name="left"), te.compute((40,), lambda i: A[i] >> S[i], name="right"),
        te.compute((40,), lambda i: te.popcount(A[i]), name="bits"),
        te.compute((40,), lambda i: te.clz(A[i]), name="zeros"),
        te.compute((40,), lambda i: A[i] << 3, name="left3"), te.compute((40,), lambda i: 1 << S[i], name="one"),
        te.compute((40,), lambda i: 5 & (7 ^ (2 | A[i])), name="mixed"),
    ]  # fmt: skip
    wanted = [
        a << shifts, a >> shifts, np.array([bin(x).count("1") for x in unsigned], dtype),
        np.array([bits - x.bit_length() for x in unsigned], dtype), a << a.dtype.type(3),
        a.dtype.type(1) << shifts, 5 & (7 ^ (2 | a)),
    ]  # fmt: skip
    check(outputs, {A: a, S: shifts}, wanted)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_abs_sign_and_the_division_of_constants(dtype):
    A = te.placeholder((40,), dtype, name="A")
    a = sample(dtype)
    outputs = [
        te.compute((40,), lambda i: te.abs(A[i]), name="abs"), te.compute((40,), lambda i: te.sign(A[i]), name="sign"),
        te.compute((40,), lambda i: A[i] // 7, name="div"), te.compute((40,), lambda i: A[i] % 10, name="mod"),
        te.compute((40,), lambda i: te.clip(A[i], 3, 90), name="clip"),
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        check(outputs, {A: a}, [np.abs(a), np.sign(a), a // 7, a % 10, a.clip(3, 90)])


def test_mixed_widths_take_the_wider():
    A, B = te.placeholder((8,), "int8", name="A"), te.placeholder((8,), "int32", name="B")
    C = te.compute((8,), lambda i: A[i] + B[i], name="C")
    F = te.compute((8,), lambda i: A[i] * 0.5, name="F")
    assert C.dtype.name == "int32" and F.dtype.name == "float32"
    a, b = sample("int8", 8), sample("int32", 8)
    with np.errstate(all="ignore"):
        check([C, F], {A: a, B: b}, [a.astype("int32") + b, a * np.float32(0.5)])


def test_bools():
    A, B = te.placeholder((4,), "bool", name="A"), te.placeholder((4,), "bool", name="B")
    makes = [lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: ~x]
    outputs = [te.compute((4,), lambda i, f=f: f(A[i], B[i]), name=f"C{n}") for n, f in enumerate(makes)]
    outputs.append(te.compute((4,), lambda i: te.all(A[i], te.not_(B[i])), name="D"))
    outputs.append(te.compute((4,), lambda i: te.any(A[i], B[i]), name="E"))
    outputs.append(te.compute((4,), lambda i: te.select(A[i], 2, 3), name="F", dtype="int32"))
    outputs.append(te.compute((4,), lambda i: A[i].astype("float32"), name="G"))
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    wanted = [a & b, a | b, a ^ b, ~a, a & ~b, a | b, np.where(a, 2, 3).astype("int32"), a.astype("float32")]
    check(outputs, {A: a, B: b}, wanted)


# ----------------------------------------------------------------------------------------------------------- packed

PACKED = ["int4", "uint4", "int2", "uint2", "uint1", "int1"]


@pytest.mark.parametrize("shape", [(16,), (3, 5), (2, 3, 9), (1,), (0,), (4, 1)])
@pytest.mark.parametrize("dtype", PACKED)
def test_packed_inputs_and_outputs(dtype, shape):
    A = te.placeholder(shape, dtype, name="A")
    wide = te.compute(shape, lambda *i: A[i].astype("int32"), name="wide")
    copy = te.compute(shape, lambda *i: A[i], name="copy")
    inverse = te.compute(shape, lambda *i: ~A[i], name="inverse")
    kind = A.dtype
    a = np.random.default_rng(0).integers(kind.min, kind.max + 1, shape)
    small = a.astype("int8" if kind.is_signed else "uint8")
    mask = (1 << kind.bits) - 1
    flipped = ~small if kind.is_signed else (~small & mask).astype("uint8")
    check([wide, copy, inverse], {A: a}, [a.astype("int32"), small, flipped])


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint1"])
def test_packed_intermediates(dtype):
    A = te.placeholder((3, 10), "int32", name="A")
    P = te.compute((3, 10), lambda i, j: A[i, j].astype(dtype), name="P")
    B = te.compute((3, 10), lambda i, j: P[i, 9 - j].astype("int32"), name="B")
    a = np.random.default_rng(0).integers(-100, 100, (3, 10)).astype("int32")
    bits = P.dtype.bits
    low = a & ((1 << bits) - 1)
    if P.dtype.is_signed:
        low = np.where(low >> (bits - 1), low - (1 << bits), low)
    check(B, {A: a}, low[:, ::-1].astype("int32"))


def test_four_bit_matrix_product():
    A, B = te.placeholder((4, 16), "uint4", name="A"), te.placeholder((16, 6), "int4", name="B")
    k = te.reduce_axis(16)
    C = te.compute((4, 6), lambda i, j: te.sum(A[i, k].astype("int32") * B[k, j].astype("int32"), axis=k), name="C")
    random = np.random.default_rng(0)
    a, b = random.integers(0, 16, (4, 16)), random.integers(-8, 8, (16, 6))
    check(C, {A: a, B: b}, (a @ b).astype("int32"))


def test_one_bit_dot_product():
    """The paper's ultra-low-precision operator: popcount of the and of two bit vectors."""
    A, B = te.placeholder((3, 32), "uint1", name="A"), te.placeholder((5, 32), "uint1", name="B")
    k = te.reduce_axis(32)
    C = te.compute((3, 5), lambda i, j: te.sum((A[i, k] & B[j, k]).astype("int32"), axis=k), name="C")
    random = np.random.default_rng(0)
    a, b = random.integers(0, 2, (3, 32)), random.integers(0, 2, (5, 32))
    check(C, {A: a, B: b}, (a @ b.T).astype("int32"))


@pytest.mark.parametrize(
    "source, to", [("uint8", "int8"), ("uint16", "int16"), ("uint32", "int32"), ("uint64", "int64")]
)
def test_an_unsigned_number_read_as_a_signed_one_may_be_negative(source, to):
    A = te.placeholder((40,), source, name="A")
    a = sample(source)
    outputs = [
        te.compute((40,), lambda i: A[i].astype(to) // 7, name="quotient"),
        te.compute((40,), lambda i: A[i].astype(to) % 7, name="rest"),
        te.compute((40,), lambda i: te.truncdiv(A[i].astype(to), te.const(8, to)), name="towards_zero"),
    ]
    signed = a.view(to)
    check(outputs, {A: a}, [signed // 7, signed % 7, truncated(signed, np.full_like(signed, 8))[0]])


def test_index_arithmetic_on_data_wraps_as_any_other():
    """int64 is the type of indices, which never overflow; numbers that were read may."""
    A, B = te.placeholder((40,), "int64", name="A"), te.placeholder((40,), "uint8", name="B")
    a, b = sample("int64"), sample("uint8")
    makes = [
        lambda x, y: (x * 16) // 16, lambda x, y: (x * 3) % 3, lambda x, y: (x + x) // 2,
        lambda x, y: (y * 2**60) // 2**60, lambda x, y: (x + 5 < 8), lambda x, y: x * 4 < 64,
    ]  # fmt: skip
    outputs = [
        te.compute((40,), lambda i, f=f: f(A[i], B[i].astype("int64")), name=f"C{n}") for n, f in enumerate(makes)
    ]
    outputs += [
        te.compute((40,), lambda i: te.truncmod(te.maximum(A[i], 0) + 5, 16), name="D"),
        te.compute((40,), lambda i: te.maximum(-te.minimum(A[i], 0), 0), name="E"),
    ]
    with np.errstate(all="ignore"):
        wanted = [f(a, b.astype("int64")) for f in makes]
        wanted += [truncated(np.maximum(a, 0) + 5, np.full_like(a, 16))[1], np.maximum(-np.minimum(a, 0), 0)]
    check(outputs, {A: a, B: b}, wanted)

"""Faults of LLVM that Weft keeps clear of: each is shown in LLVM IR, and as a program of ours that met it."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.support import buffer, ramp, run
from weft.codegen.llvm import child
from weft.expr.nodes import Add, Broadcast, FloorDiv, FloorMod, Load, Max, Mul, Sub, const
from weft.loop.ir import Func, Store

BYTES = """
define void @f(ptr %a, ptr %b, ptr %o) {{
  %x = load <{lanes} x i8>, ptr %a, align 1
  %k = load <{lanes} x i8>, ptr %b, align 1
  %q = {operation} <{lanes} x i8> %x, splat (i8 3)
  %s = shufflevector <{lanes} x i8> %q, <{lanes} x i8> poison, <{lanes} x i32> <{order}>
  %r = mul <{lanes} x i8> %k, %s
  store <{lanes} x i8> %r, ptr %o, align 1
  ret void
}}
"""


@pytest.mark.thin(3)
@pytest.mark.parametrize("cpu", ["haswell", "x86-64-v3", "skylake-avx512", "sapphirerapids", "znver4"])
@pytest.mark.parametrize("operation", ["udiv", "urem", "sdiv"])
@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_a_product_with_shuffled_quotients_of_bytes_is_not_taken_for_zero(cpu, operation, lanes):
    order = ", ".join(f"i32 {lane}" for lane in reversed(range(lanes)))
    text = BYTES.format(lanes=lanes, operation=operation, order=order)
    machine = child.target_machine("x86_64-unknown-linux-gnu", cpu, "")
    # One multiplication for the quotient and one for the product; the fault leaves neither.
    assert len(re.findall(r"\bvpm(?:ul|add)\w+", machine.emit_assembly(child.parse(text)))) >= 2


@pytest.mark.parametrize("divide", [FloorDiv, FloorMod])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_quotients_of_bytes_read_backwards_times_bytes(divide, kind, lanes):
    a, k, o = (buffer(name, kind, lanes) for name in "AKO")
    quotients = divide(Load(a, [ramp(lanes - 1, -1, lanes)]), Broadcast(const(3, kind), lanes))
    along = ramp(0, 1, lanes)
    func = Func("f", [a, k, o], Store(o, [along], Mul(quotients, Load(k, [along]))))
    rng = np.random.default_rng(lanes)
    x, y = (rng.integers(1, 120, lanes).astype(kind) for _ in range(2))
    out = np.zeros(lanes, kind)
    run(func, x, y, out)
    np.testing.assert_array_equal(out, (x[::-1] // 3 if divide is FloorDiv else x[::-1] % 3) * y)


BINARY = {Add: np.add, Sub: np.subtract, Mul: np.multiply, Max: np.maximum}
BY_CONSTANT = {FloorDiv: np.floor_divide, FloorMod: np.remainder}


@given(st.data())
def test_random_arithmetic_on_short_vectors_of_bytes(data):
    """Loads in every order that becomes a shuffle, under arithmetic: numpy says what it should be."""
    kind, lanes = data.draw(st.sampled_from(["uint8", "int8", "int16"])), data.draw(st.sampled_from([2, 4, 8, 16]))
    source, out = buffer("A", kind, 4 * lanes), buffer("O", kind, lanes)
    values = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, 4 * lanes).astype(kind)
    known = []
    for _ in range(3):
        stride = data.draw(st.sampled_from([-1, 0, 1, 2]))
        first = data.draw(st.integers(lanes if stride < 0 else 0, 2 * lanes))
        known.append((Load(source, [ramp(first, stride, lanes)]), values[first + stride * np.arange(lanes)]))
    for _ in range(data.draw(st.integers(2, 6))):
        make = data.draw(st.sampled_from([*BINARY, *BY_CONSTANT]))
        x, want = data.draw(st.sampled_from(known))
        if make in BY_CONSTANT:
            by = data.draw(st.sampled_from([2, 3, 7, 100]))
            known.append((make(x, Broadcast(const(by, kind), lanes)), BY_CONSTANT[make](want, want.dtype.type(by))))
        else:
            y, other = data.draw(st.sampled_from(known))
            known.append((make(x, y), BINARY[make](want, other)))
    result = np.zeros(lanes, kind)
    run(Func("f", [source, out], Store(out, [ramp(0, 1, lanes)], known[-1][0])), values, result)
    np.testing.assert_array_equal(result, known[-1][1])

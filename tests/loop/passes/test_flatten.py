"""flatten: strides, packed data types, addresses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loop.passes.strategies import expect, same_meaning
from weft.core.dtypes import dtype
from weft.core.errors import TargetError
from weft.expr.nodes import Buffer, Load, Var, cast, index_expr
from weft.loop.interpreter import interpret
from weft.loop.ir import For, Func, Store
from weft.loop.parser import parse_func
from weft.loop.passes.flatten import flatten, strides_of
from weft.loop.passes.unroll import unroll
from weft.loop.passes.vectorize import vectorize
from weft.loop.verifier import verify
from weft.loop.visit import walk_stmts


def test_row_major_and_declared_strides():
    func = parse_func("""
func f(A: float32[4, 6, 5], C: float32[4, 6] strides [1, 4], s: float32[]):
    for i in range(4):
        for j in range(6):
            C[i, j] = A[i, j, 2] + s[]
""")
    expect(
        flatten(func),
        """
func f(A: float32[4, 6, 5], C: float32[4, 6] strides [1, 4], s: float32[]) @{"flat": true}:
    for i in range(4):
        for j in range(6):
            C[i + j*4] = A[i*30 + j*5 + 2] + s[0]
""",
    )
    verify(flatten(func))
    assert flatten(flatten(func)).body is not None


def test_symbolic_strides():
    func = parse_func("""
func f(A: float32[m, n], C: float32[m, n]):
    for i in range(m):
        for j in range(n):
            C[i, j] = A[i, j]
""")
    done = flatten(func)
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    result = np.zeros_like(values)
    interpret(done, values, result)
    np.testing.assert_array_equal(result, values)
    assert [repr(s) for s in strides_of(func.buffers[0])] == ["n", "1"]


def packed_copy(name: str, kind: str, columns: int = 5) -> Func:
    """C = A by way of int32, with a change that wraps, for a packed dtype."""
    element = dtype(name)
    source, target = Buffer("A", element, (3, columns)), Buffer("C", element, (3, columns))
    wide = Buffer("W", dtype("int32"), (3, columns))
    i, j = Var("i"), Var("j")
    body = For(j, columns, Store(wide, (i, j), cast(Load(source, (i, j)), "int32")), "serial")
    k = Var("k")
    copy = For(k, columns, Store(target, (i, k), cast(Load(wide, (i, k)) + 1, element)), kind)
    from weft.loop.ir import seq

    return Func("f", [source, target, wide], For(i, 3, seq(body, copy)))


@pytest.mark.parametrize("name", ["int1", "int2", "int4", "uint1", "uint2", "uint4"])
@pytest.mark.parametrize("kind", ["serial", "vectorized", "parallel", "unrolled"])
def test_packed_types_keep_their_meaning(name, kind):
    func = packed_copy(name, "serial")
    scheduled = packed_copy(name, kind)
    done = unroll(vectorize(flatten(scheduled)))
    verify(done)
    bits = dtype(name).bits
    row = -(-5 * bits // 8)
    generator = np.random.default_rng(1)
    source = generator.integers(0, 256, (3, row)).astype(np.uint8)
    start = generator.integers(0, 256, (3, row)).astype(np.uint8)
    results = []
    for program in (func, done):
        target, wide = start.copy(), np.zeros((3, 5), np.int32)
        interpret(program, source.copy(), target, wide)
        results.append((target, wide))
    np.testing.assert_array_equal(results[0][1], results[1][1])
    np.testing.assert_array_equal(results[0][0], results[1][0])
    unsigned = source[:, 0] & ((1 << bits) - 1)
    signed = unsigned.astype(np.int32) - ((unsigned >> (bits - 1)).astype(np.int32) << bits)
    np.testing.assert_array_equal(results[1][1][:, 0], signed if name.startswith("i") else unsigned)


def test_a_packed_parameter_becomes_bytes():
    done = flatten(packed_copy("int4", "vectorized"))
    assert repr(done.params[0]) == "A: uint8[3, 3]"
    assert all(s.kind == "serial" for s in walk_stmts(done.body) if isinstance(s, For))


def test_iterations_that_own_their_bytes_stay_parallel():
    target, source = Buffer("C", dtype("uint4"), (8,)), Buffer("A", dtype("uint8"), (8,))
    o, i = Var("o"), Var("i")
    place = o * 2 + i
    inner = For(i, 2, Store(target, (place,), cast(Load(source, (place,)), "uint4")))
    func = Func("f", [source, target], For(o, 4, inner, "parallel"))
    done = flatten(func)
    assert isinstance(done.body, For) and done.body.kind == "parallel"
    values, result = np.arange(8, dtype=np.uint8), np.zeros(4, np.uint8)
    interpret(done, values, result)
    np.testing.assert_array_equal(result, values[::2] | values[1::2] << 4)


def test_packed_strides_that_cannot_be():
    buffer = Buffer("C", dtype("int4"), (2, 3), strides=(3, 1))
    func = Func("f", [buffer], Store(buffer, (index_expr(0), index_expr(0)), cast(index_expr(1), "int4")))
    with pytest.raises(TargetError, match="start at a byte"):
        flatten(func)


def test_rank_one_is_left_as_it_is():
    func = parse_func("""
func f(A: float32[4], C: float32[4]):
    for i in range(4):
        C[i] = A[i]
""")
    same_meaning(func, flatten(func))

"""vectorize: the exact vector programs, and what stays a loop."""

from __future__ import annotations

import pytest

import weft
from tests.loop.passes.strategies import expect, same_meaning
from weft import te
from weft.expr.visit import walk
from weft.loop.ir import For
from weft.loop.parser import parse_func
from weft.loop.passes.flatten import flatten
from weft.loop.passes.vectorize import vectorize
from weft.loop.visit import child_exprs, walk_stmts


def check(text: str, wanted: str | None = None, **options):
    func = flatten(parse_func(text))
    done = vectorize(func, **options)
    assert not any(isinstance(s, For) and s.kind == "vectorized" for s in walk_stmts(done.body))
    same_meaning(func, done)
    if wanted is not None:
        expect(done, wanted)
    return done


def test_ramps_and_broadcasts():
    check(
        """
func f(A: float32[4, 8], B: float32[4], C: float32[4, 8]):
    for i in range(4):
        for j in range(8) vectorized:
            C[i, j] = A[i, j]*B[i]
""",
        """
func f(A: float32[4, 8], B: float32[4], C: float32[4, 8]) @{"flat": true}:
    for i in range(4):
        C[ramp(i*8, 1, 8)] = A[ramp(i*8, 1, 8)]*broadcast(B[i], 8)
""",
    )


def test_a_vector_condition_becomes_a_mask():
    check(
        """
func f(A: float32[10], C: float32[10]):
    for io in range(3):
        for ii in range(4) vectorized:
            if io*4 + ii < 10:
                C[io*4 + ii] = A[io*4 + ii]
""",
        """
func f(A: float32[10], C: float32[10]) @{"flat": true}:
    for o in range(3):
        C[ramp(o*4, 1, 4)] = select(MASK, A[ramp(o*4, 1, 4)], broadcast(0.0, 4)) where MASK
""".replace("MASK", "ramp(o*4, 1, 4) < broadcast(10, 4)"),
    )


def test_a_mask_that_its_branch_changes_is_kept():
    check("""
func f(A: float32[8], C: float32[8]):
    for i in range(8) vectorized:
        if A[i] < 0.0:
            A[i] = 5.0
            C[i] = 1.0
        else:
            C[i] = 2.0
""")


@pytest.mark.parametrize("lanes", [2, 8, 13, 48])
def test_any_number_of_lanes(lanes):
    check(f"""
func f(A: float32[{lanes}], C: float32[{lanes}]):
    for i in range({lanes}) vectorized:
        C[i] = max(A[i], float32(i)) + A[{lanes - 1} - i]
""")


@pytest.mark.parametrize("extent", [1, 8, 16, 17, 20, 27])
def test_long_vectors_are_cut(extent):
    done = check(
        f"""
func f(A: float32[{extent}], C: float32[{extent}]):
    for i in range({extent}) vectorized:
        C[i] = A[i]*2.0
""",
        max_lanes=8,
    )
    assert f", {extent})" not in repr(done) or extent <= 8


def test_vectors_have_a_power_of_two_of_lanes():
    check(
        """
func f(A: float32[4], B: float32[4, 13], C: float32[13]):
    for k in range(4):
        for j in range(13) vectorized:
            C[j] = C[j] + A[k]*B[k, j]
""",
        """
func f(A: float32[4], B: float32[4, 13], C: float32[13]) @{"flat": true}:
    for k in range(4):
        C[ramp(0, 1, 8)] = C[ramp(0, 1, 8)] + broadcast(A[k], 8)*B[ramp(k*13, 1, 8)]
        C[ramp(8, 1, 4)] = C[ramp(8, 1, 4)] + broadcast(A[k], 4)*B[ramp(k*13 + 8, 1, 4)]
        C[12] = C[12] + A[k]*B[k*13 + 12]
""",
    )


@pytest.mark.parametrize("extent", [3, 12, 16, 24, 28, 32, 63, 64, 67, 100])
def test_no_lane_count_is_odd_in_any_statement(extent):
    """Names, masks, temporaries and loops inside the vectorized loop are there once for each vector."""
    done = check(f"""
func f(A: float32[{extent}, 4], C: float32[{extent}]):
    for i in range({extent}) vectorized:
        allocate t: float32[2]:
            t[0] = 0.0
            for k in range(4):
                t[0] = t[0] + A[i, k]
            let x = max(t[0], 1.0)
            if A[i, 0] < 1.0:
                C[i] = x*x
""")
    exprs = (node for stmt in walk_stmts(done.body) for e in child_exprs(stmt) for node in walk(e))
    assert {node.dtype.lanes.bit_count() for node in exprs} == {1}


@pytest.mark.parametrize("lanes", [24, 28, 32])
def test_a_tile_of_any_width_is_vectors_in_machine_code(lanes):
    """24 lanes were 745 instructions where 16 were 48: each lane by itself, in and out of a vector."""

    def instructions(width):
        A, W = te.placeholder((60, 256), name="A"), te.placeholder((256, 3360), name="W")
        k = te.reduce_axis((0, 256), name="k")
        C = te.compute((60, 3360), lambda i, j: te.sum(A[i, k] * W[k, j], axis=k), name="C")
        s = te.create_schedule(C.op)
        i, j = s[C].op.axis
        (io, ii), (jo, ji) = s[C].split(i, 6), s[C].split(j, width)
        s[C].reorder(io, jo, s[C].op.reduce_axis[0], ii, ji)
        s[C].unroll(ii)
        s[C].vectorize(ji)
        made = weft.build(s, [A, W, C], target="x86_64-unknown-linux-gnu,cpu=skylake-avx512")
        text = getattr(made, "built", made).assembly()  # a function, where this is such a machine
        return sum(line.startswith("\t") and not line.startswith("\t.") for line in text.splitlines())

    assert instructions(lanes) < 4 * instructions(16)


def test_a_reduction_stays_serial():
    func = flatten(
        parse_func("""
func f(A: float32[8], C: float32[1]):
    for i in range(8) vectorized:
        C[0] = C[0] + A[i]
""")
    )
    expect(
        vectorize(func),
        """
func f(A: float32[8], C: float32[1]) @{"flat": true}:
    for i in range(8):
        C[0] = C[0] + A[i]
""",
    )


def test_inner_loops_and_lets_become_vectors():
    check(
        """
func f(A: float32[8, 4], C: float32[8]):
    for i in range(8) vectorized:
        let t = A[i, 0]*2.0
        C[i] = t
        for k in range(4):
            C[i] = C[i] + A[i, k]*t
""",
        """
func f(A: float32[8, 4], C: float32[8]) @{"flat": true}:
    let t = A[ramp(0, 4, 8)]*broadcast(2.0, 8)
    C[ramp(0, 1, 8)] = t
    for k in range(4):
        C[ramp(0, 1, 8)] = C[ramp(0, 1, 8)] + A[ramp(k, 4, 8)]*t
""",
    )


def test_a_temporary_gets_a_lane_each():
    done = check("""
func f(A: float32[8, 4], C: float32[8]):
    for i in range(8) vectorized:
        allocate t: float32[2]:
            t[0] = 0.0
            for k in range(4):
                t[0] = t[0] + A[i, k]
            C[i] = t[0]
""")
    assert not any(isinstance(s, For) and s.kind == "serial" and s.var.name == "i" for s in walk_stmts(done.body))


def test_an_extent_that_differs_between_lanes_stays_serial():
    check("""
func f(A: float32[8, 8], C: float32[8]):
    for i in range(8) vectorized:
        C[i] = 0.0
        for k in range(i):
            C[i] = C[i] + A[i, k]
""")


def test_nested_vectors():
    done = check("""
func f(A: float32[4, 8], C: float32[4, 8]):
    for i in range(4) vectorized:
        for j in range(8) vectorized:
            C[i, j] = A[i, j]
""")
    assert isinstance(done.body, For) and done.body.kind == "unrolled"


def test_division_of_a_ramp_stays_scalar_where_it_can():
    check(
        """
func f(A: float32[4], C: float32[64]):
    for i in range(4):
        for j in range(16) vectorized:
            C[i*16 + j] = A[(i*16 + j)//16] + float32((i*16 + j)%16)
""",
        """
func f(A: float32[4], C: float32[64]) @{"flat": true}:
    for i in range(4):
        C[ramp(i*16, 1, 16)] = broadcast(A[i*16//16], 16) + float32x16(ramp(0, 1, 16))
""",
    )

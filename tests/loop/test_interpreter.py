"""The interpreter on hand-built programs: blocks, layouts, dtypes, arguments, allocations, effects."""

import ml_dtypes
import numpy as np
import pytest

from tests.work import calls_of
from weft.core.dtypes import BOOL, FLOAT32, INDEX, INT32, dtype
from weft.core.errors import ArgumentError, InterpreterError
from weft.expr.nodes import (
    Add,
    Address,
    Broadcast,
    Buffer,
    Call,
    Const,
    Load,
    Ramp,
    Select,
    Var,
    cast,
    const,
    equal,
    logical_and,
    maximum,
    select,
)
from weft.loop.interpreter import EFFECTS, generate_source, interpret, register_effect
from weft.loop.ir import Allocate, Axis, Block, Evaluate, For, Func, If, Let, Store, seq

random = np.random.default_rng(0)


def floats(*shape):
    return random.standard_normal(shape).astype(np.float32)


def buffer(name, shape, kind="float32", **more):
    return Buffer(name, dtype(kind), shape, **more)


def zero(kind="float32"):
    return const(0, kind)


def nest(loops, body):
    for var, extent in reversed(loops):
        body = For(var, extent, body)
    return body


def variables(names):
    return [Var(name) for name in names.split()]


def matmul_block(A, B, C, n, m, k, bindings, predicate=None):
    vi, vj, vk = variables("vi vj vk")
    body = Store(C, (vi, vj), Load(C, (vi, vj)) + Load(A, (vi, vk)) * Load(B, (vk, vj)))
    axes = [Axis(vi, n), Axis(vj, m), Axis(vk, k, "reduce")]
    more = {} if predicate is None else {"predicate": predicate}
    return Block("matmul", axes, bindings, (), (), body, init=Store(C, (vi, vj), zero(C.dtype)), **more)


def matmul(n, m, k):
    A, B, C = buffer("A", (n, k)), buffer("B", (k, m)), buffer("C", (n, m))
    i, j, r = variables("i j r")
    return Func("matmul", [A, B, C], nest([(i, n), (j, m), (r, k)], matmul_block(A, B, C, n, m, k, [i, j, r])))


def copy_func(n, kind="float32", index=None, **loop):
    """B[index(i)] = A[i]."""
    A, B, i = buffer("A", (n,), kind), buffer("B", (n,), kind), Var("i")
    where = i if index is None else index(i)
    return Func("copy", [A, B], For(i, n, Store(B, (where,), Load(A, (i,))), **loop))


# ------------------------------------------------------------------------------------------------------- blocks


def test_matmul_starts_from_its_init_whatever_was_there():
    a, b, c = floats(4, 6), floats(6, 5), np.full((4, 5), np.nan, np.float32)
    interpret(matmul(4, 5, 6), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("check", [True, False])
def test_tiles_with_tails_run_where_the_predicate_holds(check):
    n, m, k = 7, 5, 6
    A, B, C = buffer("A", (n, k)), buffer("B", (k, m)), buffer("C", (n, m))
    io, ii, jo, ji, ro, ri = variables("io ii jo ji ro ri")
    i, j, r = io * 4 + ii, jo * 2 + ji, ro * 4 + ri
    block = matmul_block(A, B, C, n, m, k, [i, j, r], logical_and(i < n, j < m, r < k))
    func = Func("tiled", [A, B, C], nest([(ro, 2), (io, 2), (jo, 3), (ri, 4), (ii, 4), (ji, 2)], block))
    a, b, c = floats(n, k), floats(k, m), np.full((n, m), 7, np.float32)
    interpret(func, a, b, c, check=check)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_a_binding_that_leaves_its_axis_is_an_error():
    A, i, v = buffer("A", (8,)), Var("i"), Var("v")
    block = Block("fill", [Axis(v, 7)], [i], (), (), Store(A, (v,), zero()))
    with pytest.raises(InterpreterError, match=r"axis v is bound to 7, outside 0\.\.6, in block 'fill'.* at i=7"):
        interpret(Func("f", [A], For(i, 8, block)), floats(8))


def test_argmax_keeps_two_outputs_in_step_with_lets():
    n, m = 3, 9
    A, value, index = buffer("A", (n, m)), buffer("value", (n,)), buffer("index", (n,), "int32")
    i, j, vi, vj = variables("i j vi vj")
    better, old, new, at = Var("better", BOOL), Var("old", FLOAT32), Var("new", FLOAT32), Var("at", INT32)
    stores = seq(
        Store(value, (vi,), select(better, new, old)),
        Store(index, (vi,), select(better, cast(vj, "int32"), at)),
    )
    body = Let(
        old,
        Load(value, (vi,)),
        Let(at, Load(index, (vi,)), Let(new, Load(A, (vi, vj)), Let(better, new > old, stores))),
    )
    init = seq(Store(value, (vi,), const(float("-inf"), "float32")), Store(index, (vi,), const(-1, "int32")))
    block = Block("argmax", [Axis(vi, n), Axis(vj, m, "reduce")], [i, j], (), (), body, init=init)
    a, v, at_most = floats(n, m), np.zeros(n, np.float32), np.zeros(n, np.int32)
    interpret(Func("argmax", [A, value, index], nest([(i, n), (j, m)], block)), a, v, at_most)
    np.testing.assert_array_equal(at_most, a.argmax(1))
    np.testing.assert_array_equal(v, a.max(1))


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (1, 1, 1), (2, 1, 3)])
def test_loops_of_zero_and_one_iterations(shape):
    n, m, k = shape
    a, b, c = floats(n, k), floats(k, m), np.zeros((n, m), np.float32)
    interpret(matmul(n, m, k), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5, atol=1e-5)


def test_scalars_of_rank_zero():
    A, S, i = buffer("A", (5,)), buffer("S", ()), Var("i")
    body = seq(Store(S, (), zero()), For(i, 5, Store(S, (), Load(S, ()) + Load(A, (i,)))))
    a, s = floats(5), np.zeros((), np.float32)
    interpret(Func("sum", [A, S], body), a, s)
    assert s[()] == pytest.approx(a.sum(), rel=1e-5)


def test_many_nested_loops_are_not_too_deep_for_python():
    A = buffer("A", (1,))
    loops = [(Var(f"i{d}"), 1 if d else 2) for d in range(30)]
    index = loops[0][0]
    for var, _ in loops[1:]:
        index = index + var
    a = np.zeros(1, np.float32)
    interpret(Func("deep", [A], nest(loops, Store(A, (index // 2,), Load(A, (index // 2,)) + 1.0))), a)
    assert a[0] == 2


def test_long_sums_are_not_too_deep_for_python():
    A, i = buffer("A", (1,)), Var("i")
    total, whole = Load(A, (i,)), i
    for _ in range(250):
        total, whole = Add(total, const(1.0, "float32")), Add(whole, const(0))
    a = np.zeros(1, np.float32)
    interpret(Func("long", [A], For(i, 1, Store(A, (whole,), total))), a)
    assert a[0] == 250


# ------------------------------------------------------------------------------------------------------- checks


def test_out_of_bounds_names_everything():
    func = copy_func(8, index=lambda i: i * 2)
    with pytest.raises(InterpreterError) as caught:
        interpret(func, floats(8), floats(8))
    assert str(caught.value) == "out of bounds: store of B[8] in 'copy' at i=4: index 0 is 8, outside 0..7"


def test_a_negative_index_is_out_of_bounds():
    A, B, i = buffer("A", (4,)), buffer("B", (4,)), Var("i")
    func = Func("shift", [A, B], For(i, 4, Store(B, (i,), Load(A, (i - 1,)))))
    with pytest.raises(InterpreterError, match=r"load of A\[-1\] in 'shift' at i=0"):
        interpret(func, floats(4), floats(4))


@pytest.mark.parametrize("index", [9, -1])
def test_an_unchecked_program_that_leaves_its_memory_does_not_crash(index):
    A = buffer("A", (4,))
    func = Func("f", [A], Store(A, (Const(index, INDEX),), zero()))
    try:
        interpret(func, floats(4), check=False)
    except InterpreterError as error:
        assert "check=True" in str(error)


def test_uninitialised_read_of_an_intermediate():
    A, T, i, j = buffer("A", (4,)), buffer("T", (4,)), *variables("i j")
    body = seq(For(i, 3, Store(T, (i,), Load(A, (i,)))), For(j, 4, Store(A, (j,), Load(T, (j,)))))
    for func in (Func("f", [A], Allocate(T, body)), Func("f", [A], body, [T])):
        with pytest.raises(InterpreterError, match=r"uninitialised: load of T\[3\] in 'f' at j=3"):
            interpret(func, floats(4))


def test_an_allocation_is_undefined_each_time_it_is_entered():
    A, T, i = buffer("A", (2,)), buffer("T", (1,)), Var("i")
    once = If(equal(i, 0), Store(T, (const(0),), zero()))
    inside = For(i, 2, Allocate(T, seq(once, Store(A, (i,), Load(T, (const(0),))))))
    with pytest.raises(InterpreterError, match="uninitialised.* at i=1"):
        interpret(Func("f", [A], inside), floats(2))
    outside = Allocate(T, For(i, 2, seq(once, Store(A, (i,), Load(T, (const(0),))))))
    interpret(Func("f", [A], outside), floats(2))


def test_division_by_zero_names_the_loops():
    A, B, i = buffer("A", (3,), "int32"), buffer("B", (3,), "int32"), Var("i")
    func = Func("f", [A, B], For(i, 3, Store(B, (i,), const(7, "int32") // Load(A, (i,)))))
    with pytest.raises(InterpreterError, match="division by zero: // in 'f' at i=1"):
        interpret(func, np.array([1, 0, 2], np.int32), np.zeros(3, np.int32))


def test_select_and_connectives_do_not_load_what_they_do_not_choose():
    n = 4
    A, B, i = buffer("A", (n,)), buffer("B", (n + 2,)), Var("i")
    inside = logical_and(i >= 1, i < n + 1)
    padded = select(logical_and(inside, Load(A, (i - 1,)) > 0.0), Load(A, (i - 1,)), zero())
    a, b = floats(n), np.full(n + 2, 9, np.float32)
    interpret(Func("pad", [A, B], For(i, n + 2, Store(B, (i,), padded))), a, b)
    np.testing.assert_array_equal(b, np.pad(np.maximum(a, 0), 1))


# ----------------------------------------------------------------------------------------------------- arguments


def test_symbolic_sizes_come_from_the_arrays():
    n, m = Var("n"), Var("m")
    A, B, i, j = buffer("A", (n, m)), buffer("B", (m, n)), *variables("i j")
    func = Func("transpose", [A, B], nest([(i, m), (j, n)], Store(B, (i, j), Load(A, (j, i)))))
    for shape in ((3, 4), (1, 1), (0, 2)):
        a, b = floats(*shape), np.zeros(shape[::-1], np.float32)
        interpret(func, a, b)
        np.testing.assert_array_equal(b, a.T)
    with pytest.raises(ArgumentError, match=r"argument B .* shape \(4, 4\); it must be \(4, 3\) with n=3, m=4"):
        interpret(func, floats(3, 4), floats(4, 4))


def test_sizes_that_no_shape_gives_are_asked_for():
    n, i = Var("n"), Var("i")
    A = buffer("A", (n * 2,))
    func = Func("f", [A], For(i, n, Store(A, (i * 2,), zero())))
    with pytest.raises(ArgumentError, match="size n .* sizes="):
        interpret(func, floats(6))
    a = np.ones(6, np.float32)
    interpret(func, a, sizes={"n": 3})
    np.testing.assert_array_equal(a, [0, 1, 0, 1, 0, 1])
    with pytest.raises(ArgumentError, match="no size 'm'"):
        interpret(func, a, sizes={"m": 3})


def test_scalar_parameters():
    A, alpha, n, i = buffer("A", (8,)), Var("alpha", FLOAT32), Var("n"), Var("i")
    func = Func("scale", [A, alpha, n], For(i, n, Store(A, (i,), Load(A, (i,)) * alpha)))
    a = np.ones(8, np.float32)
    interpret(func, a, 0.1, 3)
    np.testing.assert_array_equal(a, np.array([0.1] * 3 + [1] * 5, np.float32))
    with pytest.raises(ArgumentError, match="alpha"):
        interpret(func, a, "x", 3)
    with pytest.raises(ArgumentError, match="argument n .* fit"):
        interpret(func, a, 1.0, 2**70)


@pytest.mark.parametrize(
    "args, message",
    [
        (lambda: (floats(8),), "takes 2 arguments"),
        (lambda: (floats(8), [1.0] * 8), "numpy array"),
        (lambda: (floats(8), np.zeros(8)), "dtype float64; it must be float32"),
        (lambda: (floats(8), floats(8, 1)), "2 dimensions"),
        (lambda: (floats(8), floats(9)), r"shape \(9,\); it must be \(8,\)"),
    ],
)
def test_wrong_arguments_are_named(args, message):
    with pytest.raises(ArgumentError, match=message):
        interpret(copy_func(8), *args())


def test_a_read_only_array_can_be_read_but_not_written():
    a, b = floats(4), np.zeros(4, np.float32)
    a.flags.writeable = False
    interpret(copy_func(4), a, b)
    np.testing.assert_array_equal(a, b)
    with pytest.raises(ArgumentError, match="read-only"):
        interpret(copy_func(4), b, a)


def test_arrays_need_not_be_contiguous():
    a, wide = floats(6, 4), np.zeros((8, 12), np.float32)
    b, c = a.T, wide[::2, 1::3]
    interpret(matmul(4, 4, 6), b, np.flip(a, 1), c)
    np.testing.assert_allclose(c, a.T @ np.flip(a, 1), rtol=1e-5, atol=1e-5)
    assert not wide[1::2].any()


def test_flat_programs_index_memory_through_declared_strides():
    n, m = 3, 4
    A, B, i, j = buffer("A", (n, m), strides=(6, 1)), buffer("B", (m, n), strides=(1, 5)), *variables("i j")
    body = Store(B, (i + j * 5,), Load(A, (j * 6 + i,)))
    func = Func("transpose", [A, B], nest([(i, m), (j, n)], body), annotations={"flat": True})
    shaped = Func("transpose", [A, B], nest([(i, m), (j, n)], Store(B, (i, j), Load(A, (j, i)))))
    for program in (func, shaped):
        a, b = floats(n, m), np.zeros((m, n), np.float32)
        interpret(program, a, b)
        np.testing.assert_array_equal(b, a.T)
    bad = Func("f", [A], For(i, 20, Store(A, (i,), zero())), annotations={"flat": True})
    with pytest.raises(InterpreterError, match=r"A\[16\].*outside 0\.\.15"):
        interpret(bad, floats(n, m))


def test_stride_variables_come_from_the_array():
    s, i = Var("s"), Var("i")
    A = buffer("A", (4,), strides=(s,))
    func = Func("f", [A], For(i, 4, Store(A, (i * s,), zero())), annotations={"flat": True})
    a = np.ones(12, np.float32)
    interpret(func, a[::3])
    np.testing.assert_array_equal(a, [0, 1, 1] * 4)


def test_allocations_whose_size_depends_on_a_loop():
    A, i, j, k = buffer("A", (5,)), *variables("i j k")
    T = buffer("T", (i + 1,))
    body = seq(For(j, i + 1, Store(T, (j,), zero())), For(k, i + 1, Store(A, (k,), Load(T, (k,)) + cast(i, FLOAT32))))
    a = floats(5)
    interpret(Func("f", [A], For(i, 5, Allocate(T, body))), a)
    np.testing.assert_array_equal(a, [4] * 5)
    worse = For(i, 5, Allocate(T, Store(T, (i + 1,), zero())))
    with pytest.raises(InterpreterError, match=r"T\[1\].*index 0 is 1, outside 0\.\.0"):
        interpret(Func("f", [A], worse), a)


def test_a_variable_or_buffer_from_nowhere_is_an_error():
    A, T, i = buffer("A", (5,)), buffer("T", (5,)), Var("i")
    with pytest.raises(InterpreterError, match="variable 'i'"):
        interpret(Func("f", [A], Store(A, (i,), zero())), floats(5))
    with pytest.raises(InterpreterError, match="buffer 'T' has no memory"):
        interpret(Func("f", [A], Store(T, (const(0),), zero())), floats(5))
    with pytest.raises(InterpreterError, match="has 2 indices"):
        interpret(Func("f", [A], Store(A, (const(0), const(0)), zero())), floats(5))


# -------------------------------------------------------------------------------------------------------- dtypes


def pack(values, bits):
    per_byte = 8 // bits
    rows = np.asarray(values)
    extra = -rows.shape[-1] % per_byte
    rows = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, extra)]).astype(np.int64) & ((1 << bits) - 1)
    grouped = rows.reshape(*rows.shape[:-1], -1, per_byte) << (np.arange(per_byte) * bits)
    return grouped.sum(-1).astype(np.uint8)


@pytest.mark.parametrize("kind, n", [("int4", 5), ("uint4", 4), ("int2", 7), ("uint1", 11), ("int1", 8)])
def test_packed_dtypes_wrap_and_pack_each_row(kind, n):
    element = dtype(kind)
    A, B, i, j = buffer("A", (3, n), kind), buffer("B", (3, n), kind), *variables("i j")
    body = Store(B, (i, j), Load(A, (i, j)) + Load(A, (i, j)))
    values = random.integers(element.min, element.max, (3, n), endpoint=True)
    packed, result = pack(values, element.bits), np.full((3, -(-n * element.bits // 8)), 0xFF, np.uint8)
    interpret(Func("twice", [A, B], nest([(i, 3), (j, n)], body)), packed, result)
    used = pack(np.full((3, n), -1), element.bits)
    np.testing.assert_array_equal(result & used, pack(values * 2, element.bits))
    np.testing.assert_array_equal(result | used, 0xFF)


def test_bit_serial_dot_product_of_uint1():
    n = 13
    A, B, S, i = buffer("A", (n,), "uint1"), buffer("B", (n,), "uint1"), buffer("S", (1,), "int32"), Var("i")
    both = cast(Load(A, (i,)) & Load(B, (i,)), "int32")
    body = seq(Store(S, (const(0),), zero("int32")), For(i, n, Store(S, (const(0),), Load(S, (const(0),)) + both)))
    a, b, s = random.integers(0, 2, n), random.integers(0, 2, n), np.zeros(1, np.int32)
    interpret(Func("dot", [A, B, S], body), pack(a, 1), pack(b, 1), s)
    assert s[0] == (a & b).sum()


def test_the_last_packed_dimension_is_given_by_name():
    n, i = Var("n"), Var("i")
    A, S = buffer("A", (n,), "uint4"), buffer("S", (1,), "int32")
    body = For(i, n, Store(S, (const(0),), Load(S, (const(0),)) + cast(Load(A, (i,)), "int32")))
    func = Func("sum", [A, S], body)
    with pytest.raises(ArgumentError, match="size n"):
        interpret(func, pack([1, 2, 3], 4), np.zeros(1, np.int32))
    s = np.zeros(1, np.int32)
    interpret(func, pack([1, 2, 3], 4), s, sizes={"n": 3})
    assert s[0] == 6


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_floats_round_after_each_operation(kind):
    n = 64
    number = dtype(kind).numpy
    A, B, C, i = buffer("A", (n,), kind), buffer("B", (n,), kind), buffer("C", (n,), kind), Var("i")
    a, b = Load(A, (i,)), Load(B, (i,))
    func = Func("f", [A, B, C], For(i, n, Store(C, (i,), maximum((a + b) * a / b - a, b * b))))
    x, y = (random.standard_normal((2, n)) * 100).astype(number)
    c = np.zeros(n, number)
    with np.errstate(all="ignore"):
        interpret(func, x, y, c)
        np.testing.assert_array_equal(c, np.maximum((x + y) * x / y - x, y * y))


def test_half_precision_overflows_to_infinity_and_keeps_nan():
    for kind, big in (("float16", 60000.0), ("bfloat16", 3e38)):
        number = dtype(kind).numpy
        A, i = buffer("A", (4,), kind), Var("i")
        a = np.array([big, -big, np.nan, 1], number)
        interpret(Func("f", [A], For(i, 4, Store(A, (i,), Load(A, (i,)) + Load(A, (i,))))), a)
        np.testing.assert_array_equal(a.astype(np.float32), [np.inf, -np.inf, np.nan, 2])
    assert ml_dtypes.bfloat16 is dtype("bfloat16").numpy.type


def test_bool_buffers():
    A, B, i = buffer("A", (4,)), buffer("B", (4,), "bool"), Var("i")
    func = Func("f", [A, B], For(i, 4, Store(B, (i,), Load(A, (i,)) > 0.0)))
    b = np.zeros(4, bool)
    interpret(func, np.array([1, -1, np.nan, np.inf], np.float32), b)
    np.testing.assert_array_equal(b, [True, False, False, True])


# ------------------------------------------------------------------------------------------------------- vectors


def lanes(base, count, stride=1):
    return Ramp(base, const(stride), count)


def test_vector_store_computes_every_lane_before_it_stores():
    A = buffer("A", (8,))
    func = Func("reverse", [A], Store(A, (lanes(const(0), 8),), Load(A, (lanes(const(7), 8, -1),))))
    a = np.arange(8, dtype=np.float32)
    interpret(func, a)
    np.testing.assert_array_equal(a, np.arange(8)[::-1])


def test_masked_lanes_neither_read_nor_write():
    n, width = 10, 4
    A, B, i = buffer("A", (n,)), buffer("B", (n,)), Var("i")
    index = lanes(i * width, width)
    mask = index < Broadcast(const(n), width)
    func = Func(
        "copy", [A, B], For(i, 3, Store(B, (index,), Load(A, (index,)) * Broadcast(const(2.0, FLOAT32), width), mask))
    )
    a, b = floats(n), np.zeros(n, np.float32)
    interpret(func, a, b)
    np.testing.assert_array_equal(b, a * 2)
    unmasked = Func("copy", [A, B], For(i, 3, Store(B, (index,), Load(A, (index,)))))
    with pytest.raises(InterpreterError, match=r"B\[10\]"):
        interpret(unmasked, a, b)


def test_vector_select_loads_only_the_chosen_lanes():
    A, B = buffer("A", (2,)), buffer("B", (4,))
    index = lanes(const(0), 4)
    value = Select(index < Broadcast(const(2), 4), Load(A, (index,)), Broadcast(zero(), 4))
    b = np.ones(4, np.float32)
    interpret(Func("f", [A, B], Store(B, (index,), value)), np.array([5, 6], np.float32), b)
    np.testing.assert_array_equal(b, [5, 6, 0, 0])


def test_vector_lets_and_gathers():
    A, I, B = buffer("A", (6,)), buffer("I", (4,), "int64"), buffer("B", (4,))
    index, gathered = Var("index", INDEX.with_lanes(4)), Var("gathered", FLOAT32.with_lanes(4))
    here = lanes(const(0), 4)
    body = Let(index, Load(I, (here,)), Let(gathered, Load(A, (index,)), Store(B, (here,), gathered * gathered)))
    a, at, b = floats(6), np.array([5, 0, 3, 3]), np.zeros(4, np.float32)
    interpret(Func("gather", [A, I, B], body), a, at, b)
    np.testing.assert_array_equal(b, a[at] * a[at])


def test_two_lanes_of_one_store_must_not_meet():
    A = buffer("A", (8,))
    func = Func("f", [A], Store(A, (lanes(const(3), 4, 0),), Broadcast(zero(), 4)))
    with pytest.raises(InterpreterError, match=r"data race: store of A\[3\].*two lanes"):
        interpret(func, floats(8))


def test_reinterpret_views_bits_also_across_lanes():
    A, B, C, i = buffer("A", (4,)), buffer("B", (4,), "int32"), buffer("C", (16,), "uint8"), Var("i")
    body = seq(
        For(i, 4, Store(B, (i,), Call("reinterpret", (Load(A, (i,)),), INT32))),
        Store(C, (lanes(const(0), 16),), Call("reinterpret", (Load(A, (lanes(const(0), 4),)),), dtype("uint8x16"))),
    )
    a, b, c = floats(4), np.zeros(4, np.int32), np.zeros(16, np.uint8)
    interpret(Func("bits", [A, B, C], body), a, b, c)
    np.testing.assert_array_equal(b, a.view(np.int32))
    np.testing.assert_array_equal(c, a.view(np.uint8))


# ------------------------------------------------------------------------------------------------------- effects


@pytest.fixture
def effects():
    saved = dict(EFFECTS)
    yield register_effect
    EFFECTS.clear()
    EFFECTS.update(saved)


def gemm_tile(c, a, b, size):
    c.view((size, size))[...] += a.view((size, size)) @ b.view((size, size))


def tensorized(n, size):
    A, B, C = buffer("A", (n, n)), buffer("B", (n, n)), buffer("C", (n, n))
    i, j, r = variables("i j r")
    at = [i * size, j * size, r * size]
    call = Call(
        "gemm_tile",
        (
            Address(C, (at[0], at[1]), "rw"),
            Address(A, (at[0], at[2]), "r"),
            Address(B, (at[2], at[1]), "r"),
            const(size),
        ),
        INT32,
    )
    return Func("gemm", [A, B, C], nest([(i, n // size), (j, n // size), (r, n // size)], Evaluate(call)))


def test_an_effect_works_on_tiles_through_pointers(effects):
    effects("gemm_tile", gemm_tile)
    a, b, c = floats(8, 8), floats(8, 8), np.zeros((8, 8), np.float32)
    interpret(tensorized(8, 4), a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def test_an_unknown_effect_says_how_to_register_it():
    with pytest.raises(
        InterpreterError, match=r"'gemm_tile' in 'gemm' at i=0, j=0, r=0 .*register_effect\('gemm_tile'"
    ):
        interpret(tensorized(8, 4), floats(8, 8), floats(8, 8), floats(8, 8))


def test_a_view_out_of_bounds_and_a_function_that_raises_are_reported(effects):
    effects("gemm_tile", lambda c, a, b, size: a.view((8, 8)))
    with pytest.raises(
        InterpreterError, match=r"out of bounds: a view of shape \(8, 8\).*of A .*'gemm_tile' of 'gemm' at"
    ):
        interpret(tensorized(8, 4), floats(8, 8), floats(8, 8), floats(8, 8))
    effects("gemm_tile", lambda c, a, b, size: 1 // 0)
    with pytest.raises(InterpreterError, match="raised ZeroDivisionError"):
        interpret(tensorized(8, 4), floats(8, 8), floats(8, 8), floats(8, 8))


def test_effects_read_only_what_is_initialised(effects):
    effects("read", lambda p: p.view((4,)).sum())
    effects("write", lambda p: p.view((4,)).fill(2))
    A, T = buffer("A", (1,)), buffer("T", (4,))
    read = Store(A, (const(0),), Call("read", (Address(T, (const(0),), "r"),), FLOAT32))
    write = Evaluate(Call("write", (Address(T, (const(0),), "w"),), INT32))
    a = np.zeros(1, np.float32)
    interpret(Func("f", [A], Allocate(T, seq(write, read))), a)
    assert a[0] == 8
    with pytest.raises(InterpreterError, match="uninitialised: an effect reads element 0 of T"):
        interpret(Func("f", [A], Allocate(T, read)), a)


def test_effects_race_too(effects):
    effects("write", lambda p: p.view((4,)).fill(2))
    A, i = buffer("A", (16,)), Var("i")
    for step, races in ((4, False), (3, True)):
        func = Func("f", [A], For(i, 4, Evaluate(Call("write", (Address(A, (i * step,), "w"),), INT32)), "parallel"))
        if races:
            with pytest.raises(InterpreterError, match="data race: an effect writes element 3 of A"):
                interpret(func, floats(16))
        else:
            interpret(func, floats(16))


def test_an_effect_in_a_vector_statement_happens_once(effects):
    calls = []
    effects("draw", lambda: calls.append(0) or [1.0, 2.0, 3.0, 4.0])
    A = buffer("A", (4,))
    value = Call("draw", (), FLOAT32.with_lanes(4))
    a = np.zeros(4, np.float32)
    interpret(Func("f", [A], Store(A, (lanes(const(0), 4),), value + value)), a)
    np.testing.assert_array_equal(a, [2, 4, 6, 8])
    assert len(calls) == 1


def test_the_generated_source_can_be_read():
    source = generate_source(copy_func(4), floats(4), floats(4))
    assert source.startswith("def program():") and "for v_i_" in source


def test_ill_typed_programs_are_reported_not_crashed():
    A, x = buffer("A", (4,)), Var("x", INT32)
    with pytest.raises(InterpreterError, match="a store of int32 to 'A', which holds float32"):
        interpret(Func("f", [A, x], Store(A, (const(0),), x)), floats(4), 3)
    with pytest.raises(InterpreterError, match="exp takes 1 arguments, not 2"):
        call = Call("exp", (zero(), zero()), FLOAT32)
        interpret(Func("f", [A], Store(A, (const(0),), call)), floats(4))


def test_ten_thousand_blocks_are_translated_once():
    """Nothing is called for each block: all of them are one Python function."""
    a, b, c = floats(22, 22), floats(22, 22), floats(22, 22)
    assert calls_of(lambda: interpret(matmul(22, 22, 22), a, b, c), also_native=True) < 2000

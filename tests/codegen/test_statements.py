"""Loops, branches, names, allocation, parallel loops, calls."""

import ctypes

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.codegen.support import Compiled, buffer, ramp, run
from weft.codegen.llvm.compile import emit_assembly
from weft.codegen.llvm.generate import entry_symbol, generate
from weft.core.dtypes import FLOAT32, HANDLE, INT32, INT64, dtype
from weft.core.errors import TargetError
from weft.expr.nodes import (
    EQ,
    LT,
    Add,
    Address,
    Broadcast,
    Call,
    Cast,
    Const,
    FloorMod,
    Load,
    Mul,
    Ramp,
    Var,
    const,
    index_expr,
)
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Store, seq
from weft.targets.base import Scope
from weft.targets.registry import find_target

rng = np.random.default_rng(11)


def test_loops_of_every_length():
    a, n, i, j = buffer("A", "int64", Var("size")), Var("n"), Var("i"), Var("j")
    index = i * 3 + j
    for count in (0, 1, 2, 5):
        for kind in ("serial", "unrolled", "vectorized", "parallel"):
            body = For(i, n, For(j, 3, Store(a, [index], Load(a, [index]) + index + 1)), kind)
            x = np.zeros(32, np.int64)
            run(Func("loops", [a, n], body), x, count, 32)
            np.testing.assert_array_equal(x, np.where(np.arange(32) < count * 3, np.arange(32) + 1, 0))
        x = np.zeros(8, np.int64)
        run(Func("loops", [a, n], For(i, count, Store(a, [i], index_expr(7)))), x, 0, 8)
        assert (x == 7).sum() == count


def test_if_and_let_and_empty_sequences():
    a, i, even = buffer("A", "int64", 16), Var("i"), Var("even", dtype("bool"))
    then, other = Store(a, [i], i * 2), Store(a, [i], i - 1)
    body = For(i, 16, Let(even, EQ(FloorMod(i, index_expr(2)), index_expr(0)), If(even, then, other)))
    x = np.zeros(16, np.int64)
    run(Func("branches", [a], seq(Seq(()), body, If(Const(True, dtype("bool")), Seq(())))), x)
    np.testing.assert_array_equal(x, np.where(np.arange(16) % 2 == 0, np.arange(16) * 2, np.arange(16) - 1))


def test_scalar_parameters_of_every_dtype():
    kinds = ["int8", "uint8", "int16", "int32", "uint32", "int64", "float16", "bfloat16", "float32", "float64", "bool"]
    values = [-5, 250, -300, -70000, 4_000_000_000, -(1 << 40), 1.5, -2.5, 0.1, 0.1, True]
    scalars = [Var(f"s{n}", dtype(kind)) for n, kind in enumerate(kinds)]
    outs = [buffer(f"o{n}", kind, 1) for n, kind in enumerate(kinds)]
    func = Func("scalars", [*scalars, *outs], seq(*[Store(o, [index_expr(0)], s) for o, s in zip(outs, scalars)]))
    arrays = [np.zeros(1, dtype(kind).numpy) for kind in kinds]
    run(func, *values, *arrays)
    for array, value in zip(arrays, values):
        assert array[0] == array.dtype.type(value)


def test_symbolic_sizes_come_after_the_parameters():
    n, i = Var("n"), Var("i")
    a, b, s = buffer("A", "float32", n), buffer("B", "float32", n), Var("s", FLOAT32)
    func = Func("scale", [a, b, s], For(i, n, Store(b, [i], Load(a, [i]) * s)))
    x, y = rng.normal(size=37).astype(np.float32), np.zeros(37, np.float32)
    run(func, x, y, 2.5, 37)
    np.testing.assert_array_equal(y, x * np.float32(2.5))


@pytest.mark.parametrize("size", [16, 900, 5000, 40000])
@pytest.mark.parametrize("scope", ["global", "local", "shared"])
def test_allocation_of_every_size(size, scope):
    a, t, i, j = buffer("A", "float32", size), buffer("T", "float32", size, scope=scope), Var("i"), Var("j")
    fill, back = For(i, size, Store(t, [i], Load(a, [i]) + 1.0)), For(j, size, Store(a, [j], Load(t, [j]) * 2.0))
    x = rng.normal(size=size).astype(np.float32)
    expected = (x + 1) * 2
    compiled = Compiled(Func("buffers", [a], Allocate(t, seq(fill, back))))
    assert compiled(x) == 0
    np.testing.assert_array_equal(x, expected)
    on_stack = size * 4 <= (64 * 1024 if scope == "local" else 4096)
    assert ("weft_allocate" in compiled.text) != on_stack


def test_symbolic_allocation_inside_a_parallel_loop():
    n, i, j, k = Var("n"), Var("i"), Var("j"), Var("k")
    a, t = buffer("A", "float32", 8, n), buffer("T", "float32", n + 3)
    fill, back = For(j, n, Store(t, [j], Load(a, [i * n + j]))), For(k, n, Store(a, [i * n + k], Load(t, [n - 1 - k])))
    func = Func("rows", [a], For(i, 8, Allocate(t, seq(fill, back)), "parallel"))
    x = rng.normal(size=(8, 100)).astype(np.float32)
    expected = x[:, ::-1].copy()
    run(func, x, 100, threads=2)
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_running_out_of_memory_is_a_code(kind):
    a, i, n = buffer("A", "float32", 4), Var("i"), Var("n")
    held, huge = buffer("held", "float32", 5000), buffer("huge", "float32", n)
    inner = Allocate(huge, Store(huge, [index_expr(0)], const(1.0, FLOAT32)))
    func = Func(
        "huge", [a, n], Allocate(held, seq(For(i, 4, inner, kind), Store(a, [index_expr(0)], const(1.0, FLOAT32))))
    )
    compiled = Compiled(func)
    x = np.zeros(4, np.float32)
    assert compiled(x, 1 << 58, threads=2) == 1
    assert x[0] == 0
    assert compiled(x, 16, threads=2) == 0
    assert x[0] == 1


def test_parallel_loop_captures_values_vectors_and_buffers():
    a, b, s, v, i, j = (
        buffer("A", "float32", 256),
        buffer("B", "float32", 256),
        Var("s", FLOAT32),
        Var("v", dtype("float32x16")),
        Var("i"),
        Var("j"),
    )
    table, flag = buffer("T", "float32", 16, scope="local"), Var("flag", dtype("bool"))
    index = ramp(i * 16, 1, 16)
    value = Add(Mul(Load(a, [index]), v), Load(table, [ramp(0, 1, 16)]))
    loop = For(i, 16, If(flag, Store(b, [index], value)), "parallel")
    filled = For(j, 16, Store(table, [j], Cast(FLOAT32, j)))
    body = Allocate(table, seq(filled, Let(v, Broadcast(s, 16), Let(flag, LT(const(0.0, FLOAT32), s), loop))))
    x, y = rng.normal(size=256).astype(np.float32), np.zeros(256, np.float32)
    for threads in (1, 2):
        run(Func("capture", [a, b, s], body), x, y, 3.0, threads=threads)
        np.testing.assert_allclose(y, x * 3 + np.tile(np.arange(16, dtype=np.float32), 16), rtol=1e-6)


def test_vector_ramp_named_outside_a_parallel_loop():
    a, v, i, base = buffer("A", "float32", 64), Var("v", INT64.with_lanes(16)), Var("i"), Var("base")
    body = Let(
        base,
        index_expr(8),
        Let(
            v,
            Ramp(base * 2, index_expr(1), 16),
            For(i, 2, Store(a, [v], Broadcast(const(1.0, FLOAT32), 16)), "parallel"),
        ),
    )
    x = np.zeros(64, np.float32)
    run(Func("named", [a], body), x)
    np.testing.assert_array_equal(x, (np.arange(64) // 16 == 1).astype(np.float32))


def test_nested_parallel_loop_runs_serially():
    a, i, j = buffer("A", "int64", 64), Var("i"), Var("j")
    func = Func("nested", [a], For(i, 8, For(j, 8, Store(a, [i * 8 + j], i * 8 + j), "parallel"), "parallel"))
    assert generate(func, find_target("native")).count("call void @weft_parallel_for") == 1
    x = np.zeros(64, np.int64)
    run(func, x, threads=2)
    np.testing.assert_array_equal(x, np.arange(64))


def test_two_parallel_loops_one_after_the_other():
    a, i, j = buffer("A", "int64", 64), Var("i"), Var("j")
    body = seq(For(i, 64, Store(a, [i], i), "parallel"), For(j, 64, Store(a, [j], Load(a, [j]) * 3), "parallel"))
    x = np.zeros(64, np.int64)
    run(Func("two", [a], body), x, threads=2)
    np.testing.assert_array_equal(x, np.arange(64) * 3)


def test_variables_used_again_after_their_loop():
    """One Var in two loops, the second inside a parallel one: nothing of the first is captured."""
    a, i, j, v = buffer("A", "int64", 64), Var("i"), Var("j"), Var("v")
    inner = Let(v, j * 2, Store(a, [i * 8 + j], v))
    body = seq(For(i, 8, For(j, 8, inner)), For(i, 8, For(j, 8, Let(v, j * 3, Store(a, [i * 8 + j], v))), "parallel"))
    x = np.zeros(64, np.int64)
    run(Func("again", [a], body), x, threads=2)
    np.testing.assert_array_equal(x, np.tile(np.arange(8) * 3, 8))


def test_external_function():
    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_float), ctypes.c_int64, ctypes.c_float, ctypes.c_bool)
    def weft_test_callback(pointer, count, factor, flag):
        seen.append((count, factor, flag))
        for n in range(count):
            pointer[n] *= factor
        return 5

    llvm.add_symbol("test_callback", ctypes.cast(weft_test_callback, ctypes.c_void_p).value)
    a, out = buffer("A", "float32", 8), buffer("O", "int32", 1)
    arguments = (Address(a, [index_expr(2)]), index_expr(3), const(2.0, FLOAT32), Const(True, dtype("bool")))
    body = seq(
        Store(out, [index_expr(0)], Call("extern:test_callback", arguments, INT32)),
        Evaluate(Call("extern:test_callback", arguments, INT32)),
    )
    x, code = np.ones(8, np.float32), np.zeros(1, np.int32)
    run(Func("calls", [a, out], body), x, code)
    np.testing.assert_array_equal(x, [1, 1, 4, 4, 4, 1, 1, 1])
    assert code[0] == 5 and seen == [(3, 2.0, True)] * 2


def test_unknown_calls_are_refused():
    a = buffer("A", "float32", 8)
    native = find_target("native")
    with pytest.raises(TargetError, match="native has no intrinsic named 'frobnicate'"):
        generate(Func("f", [a], Evaluate(Call("frobnicate", (), INT32))), native)
    with pytest.raises(TargetError, match="'no_such_function', which is not in this process"):
        Compiled(Func("f", [a], Evaluate(Call("extern:no_such_function", (), INT32))))
    with pytest.raises(TargetError, match="does not name a C function"):
        generate(Func("f", [a], Evaluate(Call("extern:no such", (), INT32))), native)


def test_prefetch():
    a = buffer("A", "float32", 64)
    body = Evaluate(Call("prefetch", (Address(a, [index_expr(16)]), index_expr(0), index_expr(3)), INT32))
    x86 = find_target("x86_64-unknown-linux-gnu")
    assert "prefetcht0" in emit_assembly(generate(Func("f", [a], body), x86), x86)


def test_intrinsics_of_a_target():
    """An emitter gets pointers, values, constants and slots."""
    from dataclasses import replace

    target = find_target("native")
    target = replace(target, scopes={**target.scopes, "tile": Scope("tile", slots=4, slot_bytes=1024)})
    seen = []

    def fill(c, call):
        pointer, value = c.pointer(call.args[0]), c.value(call.args[1])
        c.line(f"store float {value}, ptr {pointer}, align 4")
        seen.append((c.slot(call.args[2]), c.constant(call.args[3])))
        return "0"

    a = buffer("A", "float32", 4)
    tiles, other = buffer("tiles", "float32", 512, scope="tile"), buffer("other", "float32", 256, scope="tile")
    call = lambda tile, at: Evaluate(
        Call(
            "fill",
            (Address(a, [index_expr(1)]), const(4.0, FLOAT32), Address(tile, [index_expr(at)]), index_expr(9)),
            HANDLE,
        )
    )
    func = Func(
        "f",
        [a],
        seq(
            Allocate(tiles, seq(call(tiles, 0), call(tiles, 256), Allocate(other, call(other, 0)))),
            Allocate(other, call(other, 0)),
        ),
    )
    text = generate(func, target, intrinsics={"fill": fill})
    assert seen == [(0, 9), (1, 9), (2, 9), (0, 9)]
    assert text.count("store float") == 4
    with pytest.raises(TargetError, match="only intrinsics of that scope"):
        generate(Func("f", [a], Allocate(tiles, Store(tiles, [index_expr(0)], const(0.0, FLOAT32)))), target)
    big = buffer("big", "float32", 2000, scope="tile")
    with pytest.raises(TargetError, match="needs 8 slots of scope 'tile'"):
        generate(Func("f", [a], Allocate(big, Seq(()))), target)


def test_scopes_and_thread_loops_of_other_machines_are_refused():
    a, w, i = buffer("A", "float32", 8), buffer("W", "float32", 8, scope="wmma"), Var("i")
    native = find_target("native")
    with pytest.raises(TargetError, match="native has no memory scope 'wmma'; it has global, local, shared"):
        generate(Func("f", [a], Allocate(w, Seq(()))), native)
    loop = For(i, 8, Store(a, [i], const(0.0, FLOAT32)), "thread", "threadIdx.x")
    with pytest.raises(TargetError, match="loop 'i' is bound to threadIdx.x"):
        generate(Func("f", [a], loop), native)


def test_names_that_mean_something_to_c():
    assert entry_symbol("matmul") == "matmul"
    for name in ("exp", "expf", "memcpy", "main", "fused add", "2x", "__x", "weft_allocate", "größe"):
        symbol = entry_symbol(name)
        assert symbol.startswith("weft_fn_") and symbol.isidentifier()
    a = buffer("A", "float64", 4)
    i = Var("i")
    x = np.ones(4)
    run(Func("exp", [a], For(i, 4, Store(a, [i], Call("exp", (Load(a, [i]),), dtype("float64"))))), x)
    np.testing.assert_allclose(x, np.e)


def test_buffers_do_not_alias():
    """The load of B[0] leaves the loop although the loop stores to A."""
    a, b, i = buffer("A", "float32", 64), buffer("B", "float32", 4), Var("i")
    value = Add(Load(a, [ramp(i * 16, 1, 16)]), Broadcast(Load(b, [index_expr(0)]), 16))
    x86 = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")
    text = emit_assembly(generate(Func("f", [a, b], For(i, 4000, Store(a, [ramp(i * 16, 1, 16)], value))), x86), x86)
    loop = text[text.index(".LBB") :]
    assert "vbroadcastss" in text and "vbroadcastss" not in loop


def test_what_a_test_writes_is_not_carried_round_a_loop():
    """A tile that a test fills is undefined before: LLVM then keeps nothing of the round before in registers."""
    lanes = find_target("native").vector_bytes // 4
    a, c = buffer("A", "float32", 8 * lanes), buffer("C", "float32", 8 * lanes)
    tile = buffer("tile", "float32", lanes, scope="local")
    i, n = Var("i"), Var("n")
    row, whole = ramp(i * lanes, 1, lanes), ramp(0, 1, lanes)
    fill = If(LT(i, n), Store(tile, (whole,), Load(a, (row,))))
    use = If(LT(i, n), Store(c, (row,), Add(Load(tile, (whole,)), Load(tile, (whole,)))))
    func = Func("f", [a, c, n], For(i, 8, Allocate(tile, seq(fill, use))))
    assert "undef" in generate(func, find_target("native"))
    plain = Func("f", [a, c, n], For(i, 8, Allocate(tile, seq(fill.then, use))))
    assert "undef" not in generate(plain, find_target("native"))
    given, made = rng.standard_normal(8 * lanes).astype(np.float32), np.zeros(8 * lanes, np.float32)
    run(func, given, made, 5)
    np.testing.assert_array_equal(made, np.where(np.arange(8 * lanes) < 5 * lanes, 2 * given, 0))

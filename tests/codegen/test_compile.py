"""Machine code: register tiles stay in registers, compilation is quick, other machines, shared libraries, aborts."""

import ctypes
import re
import shutil

import numpy as np
import pytest

import weft
from tests.codegen.support import ENTRY, Compiled, buffer, elementwise, ramp
from tests.work import calls_of
from weft import te
from weft.codegen.llvm import child
from weft.codegen.llvm.compile import (
    emit_assembly,
    emit_object,
    feature_text,
    jit,
    link_shared,
    optimized_text,
    tuning_for,
    tuning_of,
)
from weft.codegen.llvm.generate import generate
from weft.core.dtypes import FLOAT32, dtype
from weft.core.errors import InternalError, TargetError
from weft.expr.nodes import LT, Add, Broadcast, Call, Cast, Load, Max, Mul, Ramp, Select, Var, const, index_expr
from weft.loop.ir import Allocate, For, Func, Store, seq
from weft.targets.registry import find_target

rng = np.random.default_rng(2)
TRIPLES = [
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "riscv64-unknown-linux-gnu",
    "riscv64-unknown-linux-gnu,features=+v",
    "armv7-unknown-linux-gnueabihf",
    "wasm32-unknown-unknown",
]


def gemm(rows, columns, depth, height, width, lanes=16):
    """C = A B from packed panels, by register tiles of height rows and width vectors."""
    panel = width * lanes
    a = buffer("A", "float32", rows * depth)
    b = buffer("B", "float32", columns * depth)
    c = buffer("C", "float32", rows * columns)
    tile = buffer("tile", "float32", height * panel, scope="local")
    i, j, k = Var("i"), Var("j"), Var("k")
    places = [(r, v, ramp(r * panel + v * lanes, 1, lanes)) for r in range(height) for v in range(width)]
    zero = [Store(tile, [at], Broadcast(const(0.0, FLOAT32), lanes)) for _, _, at in places]
    update = []
    for r, v, at in places:
        left = Broadcast(Load(a, [i * (depth * height) + k * height + r]), lanes)
        right = Load(b, [Ramp(j * (depth * panel) + k * panel + v * lanes, index_expr(1), lanes)])
        update.append(Store(tile, [at], Add(Load(tile, [at]), Mul(left, right))))
    out = [
        Store(c, [Ramp((i * height + r) * columns + j * panel + v * lanes, index_expr(1), lanes)], Load(tile, [at]))
        for r, v, at in places
    ]
    body = Allocate(tile, seq(*zero, For(k, depth, seq(*update)), *out))
    return Func("gemm", [a, b, c], For(i, rows // height, For(j, columns // panel, body), "parallel"))


def test_gemm_is_right_and_little_work_to_generate():
    rows, columns, depth = 28, 64, 40
    func = gemm(rows, columns, depth, 14, 2)
    compiled = Compiled(func)
    assert generate(func, find_target("native")) == compiled.text
    assert calls_of(lambda: generate(func, find_target("native"))) < 28_000
    a, b = rng.normal(size=(rows, depth)).astype(np.float32), rng.normal(size=(depth, columns)).astype(np.float32)
    left = np.ascontiguousarray(a.reshape(rows // 14, 14, depth).transpose(0, 2, 1))
    right = np.ascontiguousarray(b.reshape(depth, columns // 32, 32).transpose(1, 0, 2))
    c = np.zeros((rows, columns), np.float32)
    assert compiled(left, right, c, threads=2) == 0
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def inner_loop(text):
    """The instructions of the block with most fused multiply-adds."""
    blocks = re.split(r"^\.?\w+:", text, flags=re.MULTILINE)
    block = max(blocks, key=lambda block: block.count("vfmadd"))
    return block[: re.search(r"\tj\w+\t", block).end()]


def test_register_tile_never_leaves_the_registers():
    x86 = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")
    loop = inner_loop(emit_assembly(generate(gemm(28, 64, 256, 14, 2), x86), x86))
    assert loop.count("vfmadd") == 28
    assert "rsp" not in loop and "rbp" not in loop
    assert not re.search(r"vmov\w+\s+%zmm\d+,\s*[-\d]*\(", loop), "a store in the inner loop"
    # two loads of B and, where it is not folded into the multiply-add, one broadcast of A a row
    assert loop.count("vmovup") <= 2 and loop.count("\n") <= 28 + 2 + 14 + 8


def test_masked_register_tile_never_leaves_the_registers():
    """The tail of a tile: accumulators stored under a mask are still registers, updated under a mask register."""
    a, b, c = buffer("A", "float32", 256), buffer("B", "float32", 256 * 21), buffer("C", "float32", 21)
    tile, k = buffer("tile", "float32", 32, scope="local"), Var("k")
    places = [(v, ramp(v * 16, 1, 16), LT(ramp(v * 16, 1, 16), Broadcast(index_expr(21), 16))) for v in range(2)]
    zero = [Store(tile, [at], Broadcast(const(0.0, FLOAT32), 16), mask) for _, at, mask in places]
    update = [
        Store(
            tile,
            [at],
            Add(
                Load(tile, [at]), Mul(Broadcast(Load(a, [k]), 16), Load(b, [Ramp(k * 21 + v * 16, index_expr(1), 16)]))
            ),
            mask,
        )
        for v, at, mask in places
    ]
    out = [Store(c, [at], Load(tile, [at]), mask) for _, at, mask in places]
    func = Func("tail", [a, b, c], Allocate(tile, seq(*zero, For(k, 256, seq(*update)), *out)))
    x86 = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")
    loop = inner_loop(emit_assembly(generate(func, x86), x86))
    assert loop.count("vfmadd") == 2 and "rsp" not in loop and "{%k" in loop
    x, y = rng.normal(size=256).astype(np.float32), rng.normal(size=(256, 21)).astype(np.float32)
    result = np.zeros(21, np.float32)
    assert Compiled(func)(x, y, result) == 0
    np.testing.assert_allclose(result, x @ y, rtol=1e-4, atol=1e-4)


def test_short_loops_of_vectors_become_registers():
    """A tile that is indexed by short loops, not unrolled by the schedule."""
    a, c, tile, k = buffer("A", "float32", 4096), buffer("C", "float32", 64), buffer("T", "float32", 64), Var("k")
    loops = [Var(f"i{n}") for n in range(3)]
    at = [Ramp(i * 16, index_expr(1), 16) for i in loops]
    zero = For(loops[0], 4, Store(tile, [at[0]], Broadcast(const(0.0, FLOAT32), 16)))
    step = Mul(Broadcast(Load(a, [k]), 16), Load(a, [at[1]]))
    update = For(k, 4096, For(loops[1], 4, Store(tile, [at[1]], Add(Load(tile, [at[1]]), step))))
    out = For(loops[2], 4, Store(c, [at[2]], Load(tile, [at[2]])))
    x86 = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")
    text = generate(Func("short", [a, c], Allocate(tile, seq(zero, update, out))), x86)
    loop = inner_loop(emit_assembly(text, x86))
    assert loop.count("vfmadd") == 4 and "rsp" not in loop


def nest(rounds, stores, tile=None):
    """Rounds of a loop around another one, which stores so often, to a buffer on the stack or to a parameter."""
    a, b, i, j = buffer("A", "float32", 4096), buffer("B", "float32", 4096), Var("i"), Var("j")
    at = [Ramp(i * 256 + j * 16 + 64 * n, index_expr(1), 16) for n in range(stores)]
    body = For(i, rounds, For(j, 4, seq(*[Store(tile or b, [to], Load(a, [to]) * Load(a, [at[0]])) for to in at])))
    out = For(Var("k"), 64, Store(b, [ramp(0, 1, 16)], Load(tile or b, [ramp(16, 1, 16)])))
    whole = seq(body, out)
    return Func("nest", [a, b], whole if tile is None else Allocate(tile, whole))


@pytest.mark.parametrize(
    "func,unrolled",
    [
        (nest(2, 2), [True, True]),
        (nest(16, 2), [True, False]),
        (nest(2, 60), [False, False]),
        (nest(8, 4), [True, False]),
        (nest(8, 4, buffer("T", "float32", 4096, scope="local")), [True, True]),
    ],
    ids=["small", "rounds", "lines", "around", "stack"],
)
def test_llvm_is_asked_to_unroll_only_what_it_would(func, unrolled):
    """Inner loop, outer loop: by the lines of all rounds, and around other loops where the stack's registers gain."""
    text = generate(func, find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512"))
    loops = [dict(re.findall(r"(!\d+) = distinct !{(.*)}", text))[at] for at in re.findall("llvm.loop (!.*)", text)]
    stays = re.findall(r'(!\d+) = !{!"llvm.loop.unroll.disable"}', text)
    assert [not any(one in loop.split(", ") for one in stays) for loop in loops[:2]] == unrolled


def test_scalar_loops_are_left_to_llvm_to_vectorize():
    a, b, i = buffer("A", "float32", 4096), buffer("B", "float32", 4096), Var("i")
    func = Func("f", [a, b], For(i, 4096, Store(b, [i], Load(a, [i]) * 2.0)))
    x86 = find_target("x86_64-unknown-linux-gnu,cpu=haswell")
    assert "ymm" in emit_assembly(generate(func, x86), x86)


def wide(lanes, columns):
    """Instructions of a matrix product, four rows of `lanes` columns at a time, on a machine of 16 lanes."""
    a, b, k = te.placeholder((16, 64), name="a"), te.placeholder((64, columns), name="b"), te.reduce_axis(64, name="k")
    c = te.compute((16, columns), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    s = te.create_schedule(c)
    rows, panels, row, lane = s[c].tile(s[c].axis[0], s[c].axis[1], 4, lanes)
    s[c].reorder(rows, panels, s[c].reduce_axis[0], row, lane)
    s[c].unroll(row)
    s[c].vectorize(lane)
    made = weft.build(s, [a, b, c], "x86_64-unknown-linux-gnu,cpu=skylake-avx512,cores=3")
    text = getattr(made, "built", made).assembly()
    return [line for line in text.splitlines() if line.startswith("\t") and not line.startswith("\t.")]


@pytest.mark.parametrize(("lanes", "columns"), [(24, 960), (28, 840), (32, 984), (48, 960), (64, 1000)])
def test_vectors_wider_than_the_machine_are_no_cliff(lanes, columns):
    """Nor is a rest of 24 lanes (984 columns by 32) or 40. As one vector each, these took four to ten times as many
    instructions: LLVM kept the accumulators as scalars.
    """
    made = wide(lanes, columns)
    assert len(made) / lanes < 1.5 * len(wide(16, 960)) / 16, "instructions for each lane"
    assert not any(re.search(r"vinsertps|vunpcklps|vextract\w+", line) for line in made)


def everything(lanes):
    """A program with masks, casts, halves, division, mathematics, a parallel loop and memory from the runtime."""
    a, h, b = buffer("A", "float32", 256), buffer("H", "float16", 256), buffer("B", "float32", 256)
    q, t, n, i = buffer("Q", "int8", 256), buffer("T", "float32", 8192), Var("n"), Var("i")
    index = ramp(i * lanes, 1, lanes)
    x = Load(a, [index])
    half = Cast(x.dtype, Load(h, [index]))
    quantised = Cast(dtype("int8").with_lanes(lanes), Call("round", (x,), x.dtype))
    mask = LT(index, Broadcast(n, lanes))
    body = seq(
        Store(t, [index], Call("tanh", (Add(Mul(x, half), x),), x.dtype)),
        Store(q, [index], quantised // 3),
        Store(b, [index], Select(mask, Max(Load(t, [index]), half), Call("exp", (x,), x.dtype)), mask),
        Store(h, [index], Cast(dtype("float16").with_lanes(lanes), x)),
        Store(t, [ramp(i, 7, lanes)], Call("sin", (x,), x.dtype)),
    )
    return Func("everything", [a, h, b, q, n], Allocate(t, For(i, 256 // lanes, body, "parallel")))


@pytest.mark.parametrize("text", TRIPLES)
def test_objects_for_every_machine(text):
    target = find_target(text)
    lanes = max(4, target.vector_bytes // 4)
    data = emit_object(generate(everything(lanes), target), target)
    assert data[:4] == (b"\0asm" if text.startswith("wasm") else b"\x7fELF")
    assert b"weft_parallel_for" in data and b"everything" in data


def test_half_precision_needs_no_runtime_library():
    for text in TRIPLES:
        target = find_target(text)
        for kind in ("float16", "bfloat16"):
            func = elementwise(lambda x: Add(x, x), 64, 8, kind, kind)
            data = emit_object(generate(func, target), target)
            assert b"__extendhf" not in data and b"__gnu_h2f" not in data and b"__truncsf" not in data


def test_neon_and_risc_vector_instructions():
    func = elementwise(lambda x, y, z: Add(Mul(x, y), z), 64, 4, "float32", "float32", "float32", "float32")
    arm = find_target("aarch64-unknown-linux-gnu")
    assert "fmla\tv" in emit_assembly(generate(func, arm), arm)
    risc = find_target("riscv64-unknown-linux-gnu,features=+v")
    assert re.search(r"vfm(add|acc)\.vv", emit_assembly(generate(func, risc), risc))


def test_an_abort_of_llvm_is_an_error():
    """`llvm.x86.sse2.pause` cannot be selected on RISC-V: LLVM ends its process, which is not ours."""
    target = find_target("riscv64-unknown-linux-gnu")
    assert not target.is_host, "code for the host is made in our own process"
    text = f'target triple = "{target.triple}"\n' + (
        "declare void @llvm.x86.sse2.pause()\ndefine void @f() {\n  call void @llvm.x86.sse2.pause()\n  ret void\n}\n"
    )
    with pytest.raises(TargetError, match="LLVM cannot make code for riscv64-unknown-linux-gnu"):
        emit_object(text, target)


def test_bad_text_is_an_internal_error():
    with pytest.raises(InternalError, match="not valid"):
        jit("define i32 @f( {", find_target("native"))


def test_code_for_another_machine_does_not_run_here():
    target = find_target("wasm32-unknown-unknown")
    with pytest.raises(TargetError, match="its code does not run here"):
        jit("", target)


def test_optimized_text_can_be_read():
    native = find_target("native")
    func = elementwise(lambda x: Mul(x, x), 64, 16, "float32", "float32")
    assert "fmul <16 x float>" in optimized_text(generate(func, native), native)


def has_linker():
    import importlib.util

    return importlib.util.find_spec("ziglang") is not None or any(shutil.which(c) for c in ("cc", "gcc", "clang"))


@pytest.mark.skipif(not has_linker(), reason="no linker on this machine")
def test_shared_library(tmp_path):
    native = find_target("native")
    func = elementwise(lambda x: Mul(x, x), 64, 16, "float32", "float32")
    second = Func("other", func.params, func.body)
    path = tmp_path / "library.so"
    link_shared([emit_object(generate(f, native), native) for f in (func, second)], path, native)
    library = ctypes.CDLL(str(path))
    for name in ("elementwise", "other"):
        x, y = rng.normal(size=64).astype(np.float32), np.zeros(64, np.float32)
        slots = np.array([x.ctypes.data, y.ctypes.data], np.int64)
        assert ENTRY((name, library))(slots.ctypes.data, 1) == 0
        np.testing.assert_array_equal(y, x * x)


def test_linking_nothing_or_nonsense_is_an_error(tmp_path):
    native = find_target("native")
    with pytest.raises(TargetError, match="no object files"):
        link_shared([], tmp_path / "x.so", native)
    if has_linker():
        with pytest.raises(TargetError, match="linking for native failed"):
            link_shared([b"nonsense"], tmp_path / "x.so", native)


def test_settings_of_shaped_loops_do_not_reach_other_modules():
    """LLVM's settings are the process's: code is the same whatever was made before it."""
    func, native = gemm(4, 32, 16, 2, 2), find_target("native")
    request = {"triple": native.triple, "cpu": native.cpu, "features": feature_text(native), "form": "object"}
    text = generate(func, native)
    made = {way: child.emit(child.parse(text), {**request, "tuning": way}) for way in ("mixed", "shaped", "straight")}
    for way in ("straight", "mixed", "shaped", "mixed"):
        assert child.emit(child.parse(text), {**request, "tuning": way}) == made[way]


def test_sums_in_memory_get_the_whole_short_way_and_bytes_on_x86():
    a, i = buffer("A", "float32", 64), Var("i")
    one, at = Ramp(index_expr(0), index_expr(1), 16), Ramp(i * 16, index_expr(1), 16)
    twice = Load(a, [at]) * const(2.0, FLOAT32)
    for machine in map(find_target, ("x86_64-unknown-linux-gnu,cpu=skylake-avx512", "aarch64-unknown-linux-gnu")):
        sums, moves = (
            generate(Func("f", [a], For(i, 4, Store(a, [to], Load(a, [to]) + twice))), machine) for to in (one, at)
        )
        assert tuning_of(sums) == tuning_of(moves) == tuning_for(moves, machine) == "shaped"
        assert tuning_for(sums, machine) == "simplified"
    knl = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512,features=-avx512bw")
    assert tuning_for(generate(Func("f", [a], For(i, 4, Store(a, [at], twice))), knl), knl) == "simplified"


@pytest.mark.parametrize("step,simplified", [(16, True), (0, False)])
def test_sums_in_an_array_on_the_stack_are_told_by_their_index(step, simplified):
    """What lies at an index that is no number has no register of its own before loops are looked at."""
    a, b, i, j = buffer("A", "float32", 64), buffer("B", "float32", 64), Var("i"), Var("j")
    index = j * step if step else index_expr(0)
    to, at = Ramp(index, index_expr(1), 16), Ramp(i * 16, index_expr(1), 16)
    add = For(i, 4, Store(b, [to], Load(b, [to]) + Load(a, [at]) * const(2.0, FLOAT32)))
    whole = For(j, 4, seq(add, Store(a, [to], Load(b, [to]))))
    machine = find_target("aarch64-unknown-linux-gnu")
    text = generate(Func("f", [a], Allocate(b, whole)), machine)
    assert " = alloca " in text and (tuning_for(text, machine) == "simplified") == simplified


def test_programs_are_told_by_their_loops():
    native = find_target("native")
    assert tuning_of(generate(gemm(28, 64, 256, 14, 2), native)) == "shaped"
    a, i = buffer("A", "float32", 64), Var("i")
    assert tuning_of(generate(Func("plain", [a], For(i, 64, Store(a, [i], Load(a, [i]) * 2))), native)) == "plain"
    at = Ramp(i * 16, index_expr(1), 16)
    move, scalar = For(i, 4, Store(a, [at], Load(a, [at]))), For(Var("j"), 64, Store(a, [i], Load(a, [i])))
    moved = generate(Func("move", [a], move), native)
    x86, arm = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512"), find_target("aarch64-unknown-linux-gnu")
    pooled = generate(Func("pool", [a], For(i, 4, Store(a, [at], Max(Load(a, [at]), Load(a, [ramp(0, 1, 16)]))))), x86)
    assert tuning_of(moved) == tuning_for(moved, arm) == tuning_for(moved, x86) == "simplified"
    assert [tuning_for(pooled, arm), tuning_for(pooled, x86)] == ["simplified", "mixed"]
    assert tuning_of(generate(Func("both", [a, i], seq(move, scalar)), native)) == "mixed"
    many = seq(*[Store(a, [at], Load(a, [at]) * const(float(n), FLOAT32)) for n in range(120)])
    assert tuning_of(generate(Func("long", [a], For(i, 4, many)), native)) == "straight"


def test_a_machine_is_made_once_and_drivers_get_no_passes():
    native = find_target("native")
    facts = (native.triple, native.cpu, feature_text(native))
    assert child.target_machine(*facts) is child.target_machine(*facts)
    text = generate(gemm(28, 64, 256, 14, 2), native)
    module, machine = child.parse(text), child.target_machine(*facts, 0)
    before = [str(function) for function in module.functions]
    assert [str(function) for function in child.optimize(module, machine, "called").functions] == before
    assert emit_object(text, native, "called") not in (b"", emit_object(text, native))

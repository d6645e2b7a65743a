"""AMX tiles, VNNI and the Arm dot product through tensorize: numpy, the interpreter and machine code agree."""

import ml_dtypes
import numpy as np
import pytest

import weft
from weft import te
from weft.core.errors import WeftError
from weft.loop.interpreter import interpret
from weft.targets.cpu import amx, pipeline
from weft.targets.registry import find_target

NATIVE = find_target("native")
assert pipeline.intrinsics  # importing it declares what tensorize finds
needs_amx = pytest.mark.skipif(not amx.available(NATIVE), reason="this machine has no AMX, or does not permit it")
needs_vnni = pytest.mark.skipif("avx512vnni" not in NATIVE.features, reason="this machine has no AVX-512 VNNI")
needs_dotprod = pytest.mark.skipif("dotprod" not in NATIVE.features, reason="this machine has no Arm dot product")

# dtypes of A and B, of the sum, elements in a group, and the intrinsics' names
AMX = {
    "bf16": ("bfloat16", "bfloat16", "float32", 2, "amx_load_bf16", "amx_load_bf16x2", "amx_dot_bf16", "amx_store_f32"),
    "u8s8": ("uint8", "int8", "int32", 4, "amx_load_u8", "amx_load_s8x4", "amx_dot_u8s8", "amx_store_i32"),
    "s8s8": ("int8", "int8", "int32", 4, "amx_load_s8", "amx_load_s8x4", "amx_dot_s8s8", "amx_store_i32"),
}


def amx_product(kind, m, n, depth, parallel=False):
    """C = A @ B in tiles of 16 × 16: B is packed in groups, four accumulators stay in tile registers."""
    left, right, wide, group, load_a, load_b, dot, store = AMX[kind]
    A, B = te.placeholder((m, depth), left, name="A"), te.placeholder((depth, n), right, name="B")
    k = te.reduce_axis((0, depth), name="k")
    packed = te.compute(
        (n // 16, depth // group, 16, group), lambda jo, p, ji, t: B[p * group + t, jo * 16 + ji], name="packed"
    )
    T = te.compute(
        (m, n),
        lambda i, j: te.sum(A[i, k].astype(wide) * packed[j // 16, k // group, j % 16, k % group].astype(wide), axis=k),
        name="T",
    )
    C = te.compute((m, n), lambda i, j: T[i, j], name="C")
    s = te.create_schedule(C.op)
    i, j = s[C].op.axis
    io, jo, ii, ji = s[C].tile(i, j, 32, 32)
    if parallel:
        s[C].parallel(io)
    iv, il = s[C].split(ii, factor=16)
    jv, jl = s[C].split(ji, factor=16)
    s[C].reorder(iv, jv, il, jl)
    s[C].unroll(iv)
    s[C].unroll(jv)
    s[T].compute_at(s[C], jo)
    s[T].set_scope("amx.tile")
    s.transform_layout(T, lambda i, j: (i // 16, j // 16, i % 16, j % 16))
    ci, cj = s[T].op.axis
    (ck,) = s[T].op.reduce_axis
    cio, cii = s[T].split(ci, factor=16)
    cjo, cji = s[T].split(cj, factor=16)
    cko, cki = s[T].split(ck, factor=16 * group)
    s[T].reorder(cko, cio, cjo, cii, cji, cki)
    s[T].unroll(cio)
    s[T].unroll(cjo)
    AT, BT = s.cache_read(A, "amx.tile", [T]), s.cache_read(packed, "amx.tile", [T])
    s[AT].compute_at(s[T], cko)
    s[BT].compute_at(s[T], cko)
    a0, a1 = s[AT].split(s[AT].op.axis[0], factor=16)
    s[AT].unroll(a0)
    s[AT].tensorize(a1, load_a)
    s[BT].unroll(s[BT].op.axis[0])
    s[BT].tensorize(s[BT].op.axis[1], load_b)
    s[T].tensorize(cii, dot)
    s[C].tensorize(il, store)
    return s, [A, B, C]


def operands(kind, m, n, depth):
    random = np.random.default_rng(0)
    if kind == "bf16":
        values = [random.integers(-8, 9, shape) / 8 for shape in ((m, depth), (depth, n))]
        a, b = (v.astype(ml_dtypes.bfloat16) for v in values)
        return a, b, a.astype("float32") @ b.astype("float32")
    low, high = (0, 256) if kind[0] == "u" else (-128, 128)
    a = random.integers(low, high, (m, depth)).astype("uint8" if kind[0] == "u" else "int8")
    b = random.integers(-128, 128, (depth, n)).astype("int8")
    return a, b, a.astype("int32") @ b.astype("int32")


@pytest.mark.parametrize("kind", AMX)
def test_amx_means_what_it_computes(kind):
    """The interpreter runs the tensorized program: no AMX is needed for that."""
    s, _ = amx_product(kind, 32, 32, 64)
    a, b, want = operands(kind, 32, 32, 64)
    c = np.full(want.shape, 77, want.dtype)
    interpret(s.func, a, b, c)
    np.testing.assert_array_equal(c, want)


@needs_amx
@pytest.mark.parametrize("shape", [(32, 32, 64), (64, 96, 128)])
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("kind", AMX)
def test_amx_product(kind, parallel, shape):
    s, args = amx_product(kind, *shape, parallel=parallel)
    a, b, want = operands(kind, *shape)
    f = weft.build(s, args)
    assert {"bf16": "tdpbf16ps", "u8s8": "tdpbusd", "s8s8": "tdpbssd"}[kind] in f.built.assembly()
    for threads in (1, 2):
        c = np.full(want.shape, 77, want.dtype)
        f(a, b, c, threads=threads)
        np.testing.assert_array_equal(c, want)


def test_amx_code_for_a_machine_that_has_it():
    s, args = amx_product("u8s8", 32, 32, 64)
    built = weft.build(s, args, target="x86_64-unknown-linux-gnu,cpu=sapphirerapids")
    code = getattr(built, "built", built)
    assert "tdpbusd" in code.assembly() and "ldtilecfg" in code.assembly() and "tilerelease" in code.assembly()


def test_amx_is_refused_where_there_is_none():
    s, args = amx_product("bf16", 32, 32, 64)
    with pytest.raises(WeftError, match="amx"):
        weft.build(s, args, target="x86_64-unknown-linux-gnu")


# ------------------------------------------------------------------------------------------------ vector dot products


def dot_product(left, columns, intrin, m, n, depth):
    """C = A @ B with groups of four bytes: B packed so that a vector holds the groups of its columns."""
    A, B = te.placeholder((m, depth), left, name="A"), te.placeholder((depth, n), "int8", name="B")
    k = te.reduce_axis((0, depth), name="k")
    packed = te.compute(
        (n // columns, depth // 4, columns, 4), lambda jo, p, ji, t: B[p * 4 + t, jo * columns + ji], name="packed"
    )
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(
            A[i, k].astype("int32") * packed[j // columns, k // 4, j % columns, k % 4].astype("int32"), axis=k
        ),
        name="C",
    )
    s = te.create_schedule(C.op)
    i, j = s[C].op.axis
    jo, ji = s[C].split(j, factor=columns)
    ko, ki = s[C].split(k, factor=4)
    s[C].reorder(jo, i, ko, ji, ki)
    s[C].tensorize(ji, intrin)
    return s, [A, B, C]


DOTS = {"vnni": ("uint8", 16, "vnni_dot_u8s8", "u8s8"), "neon": ("int8", 4, "neon_dot_s8s8", "s8s8")}


@pytest.mark.parametrize("name", DOTS)
def test_dot_products_mean_what_they_compute(name):
    left, columns, intrin, kind = DOTS[name]
    s, _ = dot_product(left, columns, intrin, 3, columns * 2, 16)
    a, b, want = operands(kind, 3, columns * 2, 16)
    c = np.full(want.shape, 77, "int32")
    interpret(s.func, a, b, c)
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("shape", [(1, 16, 4), (5, 48, 64)])
@pytest.mark.parametrize(
    "name, instruction",
    [pytest.param("vnni", "vpdpbusd", marks=needs_vnni), pytest.param("neon", "sdot", marks=needs_dotprod)],
)
def test_dot_products_run_where_there_are_any(name, instruction, shape):
    left, columns, intrin, kind = DOTS[name]
    s, args = dot_product(left, columns, intrin, *shape)
    a, b, want = operands(kind, *shape)
    f = weft.build(s, args)
    assert instruction in f.built.assembly()
    c = np.full(want.shape, 77, "int32")
    f(a, b, c)
    np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize(
    "name, target, instruction",
    [
        ("vnni", "x86_64-unknown-linux-gnu,cpu=cascadelake", "vpdpbusd"),
        ("neon", "aarch64-unknown-linux-gnu,features=+dotprod", "sdot"),
    ],
)
def test_dot_products_for_a_machine_that_has_them(name, target, instruction):
    left, columns, intrin, _ = DOTS[name]
    s, args = dot_product(left, columns, intrin, 4, 32, 16)
    made = weft.build(s, args, target=target)
    built = getattr(made, "built", made)
    assert instruction in built.assembly() and built.object_code()[:4] == b"\x7fELF"


@pytest.mark.parametrize(
    "name, target",
    [
        ("vnni", "x86_64-unknown-linux-gnu"),
        ("neon", "aarch64-unknown-linux-gnu"),
        ("neon", "x86_64-unknown-linux-gnu,cpu=cascadelake"),
        ("vnni", "aarch64-unknown-linux-gnu,features=+dotprod"),
    ],
)
def test_dot_products_are_refused_where_there_are_none(name, target):
    left, columns, intrin, _ = DOTS[name]
    s, args = dot_product(left, columns, intrin, 4, 16, 16)
    with pytest.raises(WeftError, match=intrin.split("_")[0]):
        weft.build(s, args, target=target)

"""Loads and stores: contiguous, strided, gathered, masked; lanes that are off never touch memory."""

import ctypes
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.support import Compiled, buffer, ramp, run
from tests.hosts import lesser
from weft.codegen.llvm.compile import emit_assembly
from weft.codegen.llvm.generate import generate
from weft.core.dtypes import FLOAT32, INT64, dtype
from weft.core.errors import InternalError
from weft.expr.nodes import (
    LE,
    LT,
    Add,
    And,
    Broadcast,
    Cast,
    FloorDiv,
    FloorMod,
    Load,
    Mul,
    Not,
    Or,
    Ramp,
    Select,
    Var,
    const,
    index_expr,
)
from weft.loop.ir import Allocate, For, Func, Let, Store, seq
from weft.targets.registry import find_target

KINDS = ["int8", "int32", "uint64", "float16", "bfloat16", "float32", "float64", "bool"]
rng = np.random.default_rng(5)


def sample(kind, count):
    if kind == "bool":
        return rng.integers(0, 2, count).astype(bool)
    return rng.integers(0, 100, count).astype(dtype(kind).numpy)


class Page:
    """Memory that ends (or begins) where no memory is: touching one element too many ends the process."""

    def __init__(self, numpy, count, at_end=True):
        size = mmap.PAGESIZE
        needed = count * np.dtype(numpy).itemsize
        inner = -(-needed // size)
        self.map = mmap.mmap(-1, (inner + 2) * size)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for page in (0, inner + 1):
            assert protect(start + page * size, size, 0) == 0
        offset = (inner + 1) * size - needed if at_end else size
        self.array = np.frombuffer(self.map, numpy, count, offset)


@pytest.mark.parametrize(
    "target,loads,stores",
    [
        ("aarch64-unknown-linux-gnu", 4, 4),
        ("aarch64-unknown-linux-gnu,cpu=neoverse-v1", 0, 0),
        ("x86_64-unknown-linux-gnu,cpu=haswell", 0, 4),
        ("x86_64-unknown-linux-gnu,cpu=skylake-avx512", 0, 0),
    ],
)
def test_lanes_of_ramps_are_loaded_and_stored_alone_where_nothing_gathers_them(target, loads, stores):
    """LLVM would compute their addresses in vectors, and take these apart."""
    a, b = buffer("A", "float32", 64), buffer("B", "float32", 64)
    text = generate(Func("f", [a, b], Store(b, [ramp(0, 7, 4)], Load(a, [ramp(1, 5, 4)]))), find_target(target))
    assert (text.count("load float"), text.count("store float")) == (loads, stores)


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stride", [1, 0, -1, 2, 3, -2])
def test_ramps_load_and_store(kind, stride):
    lanes, count = 8, 64
    a, b, c = buffer("A", kind, count), buffer("B", kind, count), buffer("C", kind, count)
    base = 28
    body = seq(
        Store(b, [ramp(8, 1, lanes)], Load(a, [ramp(base, stride, lanes)])),
        Store(c, [ramp(base, stride, lanes)], Load(a, [ramp(8, 1, lanes)])) if stride else None,
    )
    data = sample(kind, count)
    loaded, stored = np.zeros_like(data), np.zeros_like(data)
    run(Func("ramps", [a, b, c], body), data, loaded, stored)
    index = base + stride * np.arange(lanes)
    expected = np.zeros_like(data)
    expected[8:16] = data[index]
    np.testing.assert_array_equal(loaded.view(np.uint8), expected.view(np.uint8))
    expected = np.zeros_like(data)
    if stride:
        expected[index] = data[8:16]
    np.testing.assert_array_equal(stored.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("lanes", [4, 16])
def test_gather_and_scatter_with_computed_indices(lanes):
    a, order, b, c = (
        buffer("A", "float32", 64),
        buffer("I", "int32", 64),
        buffer("B", "float32", 64),
        buffer("C", "float32", 64),
    )
    i = Var("i")
    here = ramp(i * lanes, 1, lanes)
    index = Cast(INT64.with_lanes(lanes), Load(order, [here]))
    body = seq(Store(b, [here], Load(a, [index])), Store(c, [index], Load(a, [here])))
    x, p = rng.normal(size=64).astype(np.float32), rng.permutation(64).astype(np.int32)
    gathered, scattered = np.zeros((2, 64), np.float32)
    run(Func("gather", [a, order, b, c], For(i, 64 // lanes, body)), x, p, gathered, scattered)
    np.testing.assert_array_equal(gathered, x[p])
    np.testing.assert_array_equal(scattered[p], x)


@pytest.mark.parametrize("target", ["native", *lesser(x86=("-avx512f", "-avx"))])
@pytest.mark.parametrize("kind", ["float32", "float64", "int8"])
def test_two_ramps_that_take_turns(kind, target):
    """A row put together of two others, as behind a transposed convolution: two loads and a shuffle, no gather."""
    half, lanes = 24, 8
    a, b, i = buffer("A", kind, 2 * half + 5), buffer("B", kind, 2 * half), Var("i")
    here = ramp(i * lanes, 1, lanes)
    two, apart, start = (Broadcast(index_expr(n), lanes) for n in (2, half, 5))
    woven = Load(a, [FloorMod(here, two) * apart + FloorDiv(here, two) + start])
    x, y = sample(kind, 2 * half + 5), np.zeros(2 * half, dtype(kind).numpy)
    run(Func("weave", [a, b], For(i, 2 * half // lanes, Store(b, [here], woven))), x, y, target=target)
    np.testing.assert_array_equal(y, x[5:].reshape(2, half).T.ravel())


@pytest.mark.parametrize("target", ["native", *lesser(x86=("-avx512f", "-avx"))])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", ["float32", "float64", "int8"])
def test_a_few_neighbours_again_and_again(kind, count, target):
    """Channels of groups that take turns: the neighbours are loaded once, and all lanes repeat them."""
    lanes, rounds = 16, 5
    a, b, i = buffer("A", kind, rounds * count + 1), buffer("B", kind, rounds * lanes), Var("i")
    lane = FloorMod(ramp(index_expr(0), 1, lanes), Broadcast(index_expr(count), lanes))
    few = Load(a, [Broadcast(i * count + 1, lanes) + lane])
    x, y = sample(kind, rounds * count + 1), np.zeros(rounds * lanes, dtype(kind).numpy)
    run(Func("repeat", [a, b], For(i, rounds, Store(b, [ramp(i * lanes, 1, lanes)], few))), x, y, target=target)
    np.testing.assert_array_equal(y.reshape(rounds, lanes), x[1:].reshape(rounds, count)[:, np.arange(lanes) % count])


@pytest.mark.parametrize("step", [2, 3])
def test_masked_lanes_of_every_second_element(step):
    """Lanes that are off read nothing: the last that is on is the last of its page."""
    count, lanes = 21, 16
    last = (count - 1) * step + 1
    a, b, n, i = buffer("A", "float32", last), buffer("B", "float32", 2 * lanes), Var("n"), Var("i")
    here = ramp(i * lanes, 1, lanes)
    loaded = Load(a, [ramp(i * lanes * step, step, lanes)])
    body = Store(b, [here], Select(LT(here, Broadcast(n, lanes)), loaded, Broadcast(const(-1.0, FLOAT32), lanes)))
    source, result = Page(np.float32, last), np.zeros(2 * lanes, np.float32)
    source.array[:] = np.arange(last)
    run(Func("every", [a, b, n], For(i, 2, body)), source.array, result, count)
    np.testing.assert_array_equal(result, [*range(0, last, step), *[-1.0] * (2 * lanes - count)])


def test_scalar_value_stored_to_a_vector_and_run_time_stride():
    a, s = buffer("A", "float32", 64), Var("s")
    body = seq(
        Store(a, [ramp(0, 1, 16)], const(3.0, FLOAT32)),
        Store(a, [Ramp(index_expr(16), s, 8)], Broadcast(const(5.0, FLOAT32), 8)),
        Store(a, [ramp(40, 0, 4)], Cast(FLOAT32.with_lanes(4), ramp(0, 1, 4))),
    )
    x = np.zeros(64, np.float32)
    run(Func("strides", [a, s], body), x, 3)
    expected = np.zeros(64, np.float32)
    expected[:16], expected[16:40:3], expected[40] = 3, 5, 3
    np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("target", ["native", *lesser(x86=("-avx512f", "-avx"))])
def test_masked_tail_touches_nothing_beyond_the_end(kind, target):
    count, lanes = 21, 16
    a, b, n, i = buffer("A", kind, count), buffer("B", kind, count), Var("n"), Var("i")
    index = ramp(i * lanes, 1, lanes)
    func = Func("tail", [a, b, n], For(i, 2, Store(b, [index], Load(a, [index]), LT(index, Broadcast(n, lanes)))))
    source, result = Page(dtype(kind).numpy, count), Page(dtype(kind).numpy, count)
    source.array[:] = sample(kind, count)
    run(func, source.array, result.array, count, target=target)
    np.testing.assert_array_equal(result.array.view(np.uint8), source.array.view(np.uint8))


def test_a_mask_is_computed_once_and_one_of_numbers_not_at_all():
    lanes, x86 = 16, find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")
    a, b, n, i = buffer("A", "float32", 64), buffer("B", "float32", 64), Var("n"), Var("i")

    def text(limit, first):
        at = [ramp(first + step, 1, lanes) for step in (0, 32)]
        test = LT(ramp(first, 1, lanes), Broadcast(limit, lanes))
        return generate(Func("f", [a, b, n, i], seq(*[Store(b, [x], Load(a, [x]), test) for x in at])), x86)

    assert text(n, i).count("icmp slt <16 x i32>") == 1
    known = text(index_expr(2), index_expr(0))
    assert "icmp" not in known and f"<i1 1, i1 1, {', '.join(['i1 0'] * 14)}>" in known


@pytest.mark.parametrize("stride", [-1, 2, 3])
def test_masked_strides_touch_nothing_outside(stride):
    lanes, count = 16, 10
    size = (count - 1) * abs(stride) + 1
    a, b, n = buffer("A", "float32", size), buffer("B", "float32", size), Var("n")
    first = size - 1 if stride < 0 else 0
    index = ramp(first, stride, lanes)
    mask = LT(ramp(0, 1, lanes), Broadcast(n, lanes))
    func = Func(
        "tail", [a, b, n], Store(b, [index], Add(Load(a, [index]), Broadcast(const(1.0, FLOAT32), lanes)), mask)
    )
    source, result = (Page(np.float32, size, at_end=stride > 0) for _ in range(2))
    source.array[:] = rng.normal(size=size)
    run(func, source.array, result.array, count)
    chosen = first + stride * np.arange(count)
    np.testing.assert_array_equal(result.array[chosen], source.array[chosen] + np.float32(1))


def test_scalar_shared_by_lanes_is_read_only_if_a_lane_is_on():
    """A[k] stands outside the memory when no lane is on; the store and the load of B are masked."""
    a, b, n, k = buffer("A", "float32", 4), buffer("B", "float32", 16), Var("n"), Var("k")
    index = ramp(0, 1, 16)
    shared = Broadcast(Load(a, [k]), 16)
    for mask in (LT(index, Broadcast(n, 16)), LE(index, Broadcast(n - 1, 16)), Not(LE(Broadcast(n, 16), index))):
        compiled = Compiled(Func("shared", [a, b, n, k], Store(b, [index], shared, mask)))
        source, out = Page(np.float32, 4), np.zeros(16, np.float32)
        source.array[:] = [1, 2, 3, 4]
        assert compiled(source.array, out, 0, 4) == 0
        assert not out.any()
        assert compiled(source.array, out, 5, 3) == 0
        np.testing.assert_array_equal(out, np.where(np.arange(16) < 5, 4, 0))


@given(st.integers(-3, 20), st.integers(-3, 20), st.sampled_from(["lt", "le", "gt", "ge"]))
def test_lane_masks_of_every_form(base, limit, form):
    b, x, y = buffer("B", "int32", 16), Var("x"), Var("y")
    lanes = Ramp(x, index_expr(1), 16)
    wide = Broadcast(y, 16)
    mask = {"lt": LT(lanes, wide), "le": LE(lanes, wide), "gt": LT(wide, lanes), "ge": LE(wide, lanes)}[form]
    body = Store(b, [ramp(0, 1, 16)], Select(mask, const(1, dtype("int32x16")), const(0, dtype("int32x16"))))
    out = np.zeros(16, np.int32)
    run(Func("mask", [b, x, y], body), out, base, limit)
    lane = base + np.arange(16)
    expected = {"lt": lane < limit, "le": lane <= limit, "gt": lane > limit, "ge": lane >= limit}[form]
    np.testing.assert_array_equal(out, expected.astype(np.int32))


def test_lane_mask_is_one_comparison_into_a_mask_register():
    a, b, n, i = buffer("A", "float32", 640), buffer("B", "float32", 640), Var("n"), Var("i")
    index = ramp(i * 16, 1, 16)
    func = Func("tail", [a, b, n], For(i, 40, Store(b, [index], Load(a, [index]), LT(index, Broadcast(n, 16)))))
    x86 = find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512")
    text = emit_assembly(generate(func, x86), x86)
    assert "{%k" in text and text.count("vpcmp") == 1 and "vpcmpgtq" not in text


def test_select_arms_read_only_where_chosen():
    a, b, n, i = buffer("A", "float32", 5), buffer("B", "float32", 16), Var("n"), Var("i")
    zero = const(0.0, FLOAT32)
    # scalar: branches
    scalar = For(i, 16, Store(b, [i], Select(LT(i, n), Load(a, [i]), zero)))
    # vector: masked loads in both arms
    index = ramp(0, 1, 16)
    inside = LT(index, Broadcast(n, 16))
    reverse = Load(a, [Ramp(index_expr(4), index_expr(-1), 16)])
    nested = Select(
        inside,
        Add(Load(a, [index]), Select(LT(index, Broadcast(index_expr(2), 16)), reverse, Broadcast(zero, 16))),
        Broadcast(zero, 16),
    )
    swapped = Select(Not(inside), Broadcast(zero, 16), Load(a, [index]))
    for body, extra in ((scalar, 0), (Store(b, [index], nested), 1), (Store(b, [index], swapped), 0)):
        source, out = Page(np.float32, 5), np.full(16, 9, np.float32)
        source.array[:] = [1, 2, 3, 4, 5]
        run(Func("arms", [a, b, n], body), source.array, out, 5)
        expected = np.zeros(16, np.float32)
        expected[:5] = source.array
        if extra:
            expected[:2] += [5, 4]
        np.testing.assert_array_equal(out, expected)


def test_connectives_are_lazy():
    a, b, n, i = buffer("A", "float32", 5), buffer("B", "int32", 16), Var("n"), Var("i")
    zero = const(0.0, FLOAT32)
    one, none = const(1, dtype("int32")), const(0, dtype("int32"))

    def positive(index, lanes):
        return LT(zero if lanes == 1 else Broadcast(zero, lanes), Load(a, [index]))

    vector = ramp(0, 1, 16)
    wide = LT(vector, Broadcast(n, 16))
    ones, zeros = Broadcast(one, 16), Broadcast(none, 16)
    cases = [
        For(i, 16, Store(b, [i], Select(And(LT(i, n), positive(i, 1)), one, none))),
        For(i, 16, Store(b, [i], Select(Or(LE(n, i), positive(i, 1)), none, one))),
        Store(b, [vector], Select(And(wide, positive(vector, 16)), ones, zeros)),
        Store(b, [vector], Select(Or(Not(wide), positive(vector, 16)), zeros, ones)),
    ]
    data = np.array([1, -1, 2, -2, 3], np.float32)
    for number, body in enumerate(cases):
        source, out = Page(np.float32, 5), np.full(16, 9, np.int32)
        source.array[:] = data
        run(Func("lazy", [a, b, n], body), source.array, out, 5)
        inside = np.concatenate([data > 0 if number % 2 == 0 else data <= 0, np.zeros(11, bool)])
        np.testing.assert_array_equal(out, inside.astype(np.int32))


def test_predicated_scalar_store_and_scalar_predicate_of_a_vector_store():
    a, n = buffer("A", "float32", 32), Var("n")
    two = const(2.0, FLOAT32)
    body = seq(
        Store(a, [index_expr(0)], two, LT(n, index_expr(5))),
        Store(a, [index_expr(1)], two, LT(index_expr(5), n)),
        Store(a, [ramp(16, 1, 8)], Broadcast(two, 8), Broadcast(LT(n, index_expr(5)), 8)),
        Store(a, [ramp(24, 1, 8)], Broadcast(two, 8), LT(index_expr(5), n)),
    )
    x = np.zeros(32, np.float32)
    run(Func("predicates", [a, n], body), x, 3)
    expected = np.zeros(32, np.float32)
    expected[0], expected[16:24] = 2, 2
    np.testing.assert_array_equal(x, expected)


def test_vector_named_by_let_is_still_contiguous():
    a, b, i, v = buffer("A", "float32", 64), buffer("B", "float32", 64), Var("i"), Var("v", INT64.with_lanes(16))
    body = Let(v, Ramp(i * 16, index_expr(1), 16), Store(b, [v], Mul(Load(a, [v]), Load(a, [v]))))
    func = Func("named", [a, b], For(i, 4, body))
    x, y = rng.normal(size=64).astype(np.float32), np.zeros(64, np.float32)
    run(func, x, y)
    np.testing.assert_array_equal(y, x * x)
    assert "gather" not in generate(func, find_target("native"))


def test_parameters_need_only_the_alignment_of_their_elements():
    a, b, i = buffer("A", "float32", 64), buffer("B", "float32", 64), Var("i")
    func = Func("copy", [a, b], For(i, 4, Store(b, [ramp(i * 16, 1, 16)], Load(a, [ramp(i * 16, 1, 16)]))))
    compiled = Compiled(func)
    assert "align 4" in compiled.text and "align 64" not in compiled.text
    memory = np.zeros(200, np.float32)
    for offset in range(3):
        x, y = memory[offset : offset + 64], memory[100 + offset : 164 + offset]
        x[:] = rng.normal(size=64)
        assert compiled(x, y) == 0
        np.testing.assert_array_equal(x, y)


def test_unflattened_and_mistyped_programs_are_refused():
    a = buffer("A", "float32", 4, 4)
    zero = index_expr(0)
    with pytest.raises(InternalError, match="was not flattened"):
        generate(Func("f", [a], Store(a, [zero, zero], const(0.0, FLOAT32))), find_target("native"))
    with pytest.raises(InternalError, match="store of float64"):
        generate(Func("f", [a], Store(a, [zero], const(0.0, dtype("float64")))), find_target("native"))


def test_a_load_is_repeated_only_behind_a_store_to_its_buffer():
    a, b, c = (buffer(name, "float32", 8) for name in "abc")
    one, two = Load(a, [index_expr(0)]), Load(a, [index_expr(0)])
    stores = [Store(b, [index_expr(0)], one), Store(c, [index_expr(0)], two), Store(a, [index_expr(0)], one + two)]
    text = generate(
        Func("f", [a, b, c], seq(*stores, Store(b, [index_expr(1)], Load(a, [index_expr(0)])))), find_target("native")
    )
    assert text.count("load float, ") == 2


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9), st.booleans(), st.booleans()), max_size=12))
def test_stores_to_the_stack_by_any_index(steps):
    """tile[to] += a[from], by one or four lanes, at places known before the program runs or not."""
    i, a, out = Var("i"), buffer("A", "int32", 16), buffer("B", "int32", 16)
    tile = buffer("T", "int32", 16, scope="local")
    wanted, given_ = np.zeros(16, "int32"), np.arange(1, 17, dtype="int32")
    body = [Store(tile, [ramp(4 * n, 1, 4)], Broadcast(const(0, "int32"), 4)) for n in range(4)]
    for source, to, wide, open_ in steps:
        lanes, first = 4 if wide else 1, i + to if open_ else index_expr(to)
        at = Ramp(first, index_expr(1), lanes) if wide else first
        read = Load(a, [ramp(source, 1, lanes) if wide else index_expr(source)])
        body.append(Store(tile, [at], Load(tile, [at]) + read))
        place = slice(to + 2 * open_, to + 2 * open_ + lanes)
        wanted[place] += given_[source : source + lanes]
    body += [Store(out, [ramp(4 * n, 1, 4)], Load(tile, [ramp(4 * n, 1, 4)])) for n in range(4)]
    result = np.zeros(16, "int32")
    run(Func("f", [a, out, i], Allocate(tile, seq(*body))), given_, result, 2)
    np.testing.assert_array_equal(result, wanted)


def test_terms_of_addresses_stand_where_their_variables_are():
    """On Arm, where LLVM is not asked to move them; a sum that has a name is taken apart for that."""
    i, j, k, at = Var("i"), Var("j"), Var("k"), Var("at")
    a, b = buffer("A", "float32", 4 * 8 * 16), buffer("B", "float32", 4 * 8 * 16)
    inner = For(k, 16, Store(b, [at + k], Load(a, [i * 128 + j * 16 + k]) + Load(a, [at + k])))
    func = Func("terms", [a, b], For(i, 4, For(j, 8, Let(at, i * 128 + j * 16, inner))))
    text = generate(func, find_target("aarch64-unknown-linux-gnu,cpu=neoverse-n1"))
    blocks = text.split("\nloop.")[1:]
    assert [block.count("getelementptr float") for block in blocks] == [2, 2, 2]  # one of each buffer
    numbers, made = np.arange(512, dtype="float32"), np.zeros(512, "float32")
    run(func, numbers, made)
    np.testing.assert_array_equal(made, 2 * numbers)


def test_pointers_go_along_with_inner_loops():
    """On x86, where LLVM is told to leave addresses; a loop then only counts its rounds, down to zero."""
    i, k = Var("i"), Var("k")
    a, b = buffer("A", "float32", 4 * 32 * 16), buffer("B", "float32", 4 * 32 * 16)
    near, far = (Ramp(i * 512 + k * 16 + n, index_expr(1), 8) for n in (0, 8))
    body = seq(*[Store(b, [at], Load(a, [at]) * const(2.0, FLOAT32)) for at in (near, far)])
    func = Func("along", [a, b], For(i, 4, For(k, 32, body)))
    text = generate(func, find_target("x86_64-unknown-linux-gnu,cpu=skylake-avx512"))
    for part, count in zip(text.split("\nloop.")[1:], (4, 32), strict=True):
        assert part.count(" = phi ptr ") == 2 and f"phi i64 [ {count}, " in part  # one of each buffer
    assert part.count("getelementptr i8") == 2 and "mul i64" not in text
    numbers, made = np.arange(2048, dtype="float32"), np.zeros(2048, "float32")
    run(func, numbers, made)
    np.testing.assert_array_equal(made, 2 * numbers)

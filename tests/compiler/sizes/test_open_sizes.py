"""Forms for every size: one compile, whatever sizes the calls bring."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

import weft
from tests.compiler.graphs import check, mlp, random_inputs
from tests.fuzz.driver import ROOT
from weft.compiler import specialize
from weft.compiler.module import SizeWarning
from weft.compiler.sizes import background
from weft.compiler.sizes.open_checks import conditions_of
from weft.compiler.sizes.open_sizes import Numbers
from weft.core import model
from weft.core.errors import ArgumentError, WeftError
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, TensorType, Value
from weft.graph.passes.infer import infer
from weft.models.builder import Builder
from weft.runtime.model import runner
from weft.runtime.model.fastcall import fitting
from weft.runtime.model.runner import find_numbers


@pytest.fixture(autouse=True)
def no_background():
    with knobs.override(sizes="first", cache=False):
        yield


def layer(batch: Var, length: Var) -> Graph:
    """Heads of attention as exporters write them: shapes by Shape, Slice and Concat, then rows and a product."""
    b = Builder("layer")
    x = Value("x", TensorType("float32", (batch, length, 16)))
    b.inputs.append(x)
    sizes = b.node("Slice", b.node("Shape", x), b.ints(0), b.ints(2))
    shape = b.node("Concat", sizes, b.ints(4, 4), axis=0)
    q = b.node("Transpose", b.node("Reshape", b.dense(x, 16, 16), shape), perm=[0, 2, 1, 3])
    k = b.node("Transpose", b.node("Reshape", x, shape), perm=[0, 2, 3, 1])
    v = b.node("Transpose", b.node("Reshape", x, shape), perm=[0, 2, 1, 3])
    mixed = b.node("MatMul", b.node("Softmax", b.node("MatMul", q, k), axis=-1), v)
    rows = b.node("Reshape", b.node("Transpose", mixed, perm=[0, 2, 1, 3]), b.ints(0, 0, 16))
    return infer(b.finish(b.node("Add", x, b.dense(rows, 16, 16))))


def image(height: Var, width: Var) -> Graph:
    """Windows over an image of any size."""
    b = Builder("image")
    x = Value("x", TensorType("float32", (2, 3, height, width)))
    b.inputs.append(x)
    y = b.relu(b.conv(x, 3, 8, 3, 2, 1, bias=True))
    y = b.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    y = b.node("AveragePool", y, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return infer(b.finish(b.node("Add", y, b.node("GlobalAveragePool", y))))


def compiles(monkeypatch):
    """Counts how often a form is made."""
    made = []
    build = specialize.Executor._build
    monkeypatch.setattr(specialize.Executor, "_build", lambda *a: (made.append(a[1]), build(*a))[1])
    return made


@pytest.mark.parametrize("sizes", [[(2, 5), (1, 1), (3, 17), (2, 0), (0, 3), (7, 64), (2, 5), (1, 130)]])
def test_no_call_after_the_first_compiles(monkeypatch, sizes):
    made = compiles(monkeypatch)
    graph = layer(Var("batch"), Var("length"))
    module = weft.compile(graph)
    for at, (batch, length) in enumerate(sizes):
        check(graph, random_inputs(graph, at, {"batch": batch, "length": length}), module)
        assert len(made) == 2, sizes[: at + 1]
    assert module.specializations[-1].host_nodes == []


@pytest.mark.parametrize("sizes", [(9, 12), (32, 7), (8, 8), (1, 1), (40, 33), (3, 0)])
def test_images_of_any_size(sizes):
    graph = image(Var("height"), Var("width"))
    with knobs.override(sizes="open"):
        module = weft.compile(graph)
    module(np.zeros((2, 3, 16, 16), "float32"))
    (form,) = module.specializations
    assert form.host_nodes == []
    arrays = random_inputs(graph, 3, dict(zip(("height", "width"), sizes)))
    try:
        wanted = interpret_graph(graph, arrays)
    except weft.WeftError:
        with pytest.raises(weft.WeftError):
            module(*arrays)
        return
    np.testing.assert_allclose(module(*arrays), wanted[0], rtol=1e-4, atol=1e-5)


def two_inputs(first: tuple, second: tuple) -> Graph:
    b = Builder("sum")
    x, y = Value("x", TensorType("float32", first)), Value("y", TensorType("float32", second))
    b.inputs += [x, y]
    return infer(b.finish(b.node("Mul", b.node("Add", x, y), b.constant(np.float32(2)))))


@pytest.mark.parametrize("shapes", [((4,), (4,)), ((1,), (5,)), ((6,), (1,)), ((1,), (1,)), ((0,), (1,))])
def test_one_of_two_open_sizes_may_be_one(shapes):
    graph = two_inputs((Var("a"),), (Var("b"),))
    with knobs.override(sizes="open"):
        module = weft.compile(graph)
    x, y = (np.arange(*shape, dtype="float32") for shape in shapes)
    np.testing.assert_array_equal(module(x, y), (x + y) * 2)


def test_open_sizes_that_do_not_fit_are_an_error():
    with knobs.override(sizes="open"):
        module = weft.compile(two_inputs((Var("a"),), (Var("b"),)))
    module(np.ones(3, "float32"), np.ones(3, "float32"))
    with pytest.raises(weft.WeftError):
        module(np.ones(3, "float32"), np.ones(4, "float32"))


def test_an_open_size_beside_a_number_is_that_or_one():
    with knobs.override(sizes="open", cache=False):
        module = weft.compile(two_inputs((Var("a"), Var("b")), (4, Var("c"))))
    for rows in (64, 2):  # the first call, which says what sizes are usual, is wrong
        with pytest.raises(weft.WeftError):
            module(np.ones((rows, 3), "float32"), np.ones((4, 3), "float32"))
    for rows in (1, 4):
        np.testing.assert_array_equal(module(np.ones((rows, 3), "float32"), np.ones((4, 3), "float32")), 4)


def matrices(first: tuple, second: tuple, op: str, **attributes) -> Graph:
    b = Builder("two")
    x, y = Value("x", TensorType("float32", first)), Value("y", TensorType("float32", second))
    b.inputs += [x, y]
    return infer(b.finish(b.node(op, x, y, **attributes)))


@pytest.mark.parametrize("op, wrong", [("MatMul", ((2, 3), (4, 5))), ("Concat", ((2, 3), (3, 3)))])
def test_sizes_that_a_graph_does_not_take_are_refused_in_the_call(op, wrong):
    axis = {"axis": 1} if op == "Concat" else {}
    with knobs.override(sizes="open"):
        module = weft.compile(matrices((Var("a"), Var("b")), (Var("c"), Var("d")), op, **axis))
    square = np.ones((3, 3), "float32")
    for _ in range(2):
        module(square, square)
        with pytest.raises(weft.WeftError):
            module(*(np.ones(shape, "float32") for shape in wrong))


def test_only_nodes_with_conditions_are_asked():
    a, b, c = Var("a"), Var("b"), Var("c")
    assert [k.node.op for k in conditions_of(matrices((a, b), (b, c), "MatMul"), {}).checks] == []
    assert [k.node.op for k in conditions_of(matrices((a, b), (c, 3), "MatMul"), {}).checks] == ["MatMul"]


def test_a_name_that_two_inputs_share_may_have_two_sizes():
    n = Var("n")
    b = Builder("shared")
    x, y = Value("x", TensorType("float32", (n, 3))), Value("y", TensorType("float32", (n, 3)))
    b.inputs += [x, y]
    module = weft.compile(infer(b.finish(b.node("Concat", x, y, axis=0))))
    ones = np.ones((4, 3), "float32")
    assert module(ones, ones).shape == (8, 3)
    with pytest.warns(SizeWarning, match="size n is 4 in input 'x' and 2 in input 'y'"):
        assert module(ones, ones[:2]).shape == (6, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module(ones[:1], ones).shape == (5, 3)


def test_ranges_are_compiled_ahead_and_checked(monkeypatch):
    made = compiles(monkeypatch)
    module = weft.compile(mlp(Var("batch")), shapes={"x": (range(1, 9), 20)})
    assert len(made) == 1
    for size in (1, 8, 5):
        assert module(np.ones((size, 20), "float32")).shape == (size, 7)
    assert len(made) == 1
    with pytest.raises(ArgumentError, match=r"sizes of range\(1, 9\) along axis 0"):
        module(np.ones((9, 20), "float32"))


def test_threads_with_different_sizes():
    graph = layer(Var("batch"), Var("length"))
    module = weft.compile(graph, threads=1)
    cases = [random_inputs(graph, n, {"batch": n % 3 + 1, "length": 5 + 11 * n}) for n in range(6)]
    wanted = [interpret_graph(graph, case)[0] for case in cases]
    module(*cases[0])
    failed: list[int] = []

    def call(at: int) -> None:
        for turn in range(20):
            at = (at + turn) % len(cases)
            if not np.allclose(module(*cases[at]), wanted[at], rtol=1e-3, atol=1e-4):
                failed.append(at)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_arenas_do_not_grow_with_the_number_of_sizes():
    graph = mlp(Var("batch"))
    with knobs.override(sizes="open"):
        module = weft.compile(graph)
    met = set()
    for size in [*range(1, 41), *range(40, 0, -1)]:
        module(np.zeros((size, 20), "float32"))
        (form,) = module.specializations
        met.add(form.runner._arenas[0][0])
    assert len(form.runner._arenas) == 1
    assert form.runner._arenas[0][1].nbytes <= model.ARENA_GROWTH * (40 * (33 + 16) * 4 + 256)
    assert len(met) <= 4, "pages that were touched stay, while sizes grow"


def test_a_large_arena_has_no_more_room_than_a_call_needs(monkeypatch):
    monkeypatch.setattr(runner, "UNASKED_BYTES", 4096)
    graph = mlp(Var("batch"))
    with knobs.override(sizes="open"):
        module = weft.compile(graph)
    rooms = []
    for size in (1, 1000):
        check(graph, random_inputs(graph, size, {"batch": size}), module)
        (form,) = module.specializations
        rooms.append(form.runner._arenas[0][1].nbytes)
    needed = form.runner.find([np.zeros((1000, 20))])[2]
    assert rooms[0] < 4096 and rooms[1] == needed > 4096


def test_a_saved_module_takes_other_sizes(tmp_path):
    graph = mlp(Var("batch"))
    module = weft.compile(graph)
    module(np.zeros((3, 20), "float32"))
    module.save(tmp_path / "m.weft")
    loaded = weft.load(tmp_path / "m.weft")
    for size in (3, 5, 1):
        check(graph, random_inputs(graph, size, {"batch": size}), loaded)


def test_what_has_no_open_form_is_compiled_for_each_size():
    b = Builder("recurrent")
    x = Value("x", TensorType("float32", (Var("steps"), 2, 5)))
    b.inputs.append(x)
    weight, recurrence = b.normal(1, 32, 5, scale=0.4), b.normal(1, 32, 8, scale=0.4)
    graph = infer(b.finish(b.node("LSTM", x, weight, recurrence, hidden_size=8)))
    module = weft.compile(graph)
    for steps in (3, 5):
        check(graph, random_inputs(graph, steps, {"steps": steps}), module)
    assert len(module.specializations) == 2 and "LSTM" in (module._executor._closed or "")
    assert "no form for all sizes" in module.report()


def test_the_numbers_of_a_call():
    n = Var("n")
    graph = mlp(n)
    numbers = Numbers(graph)
    assert numbers.shape((n, 4, n * 2)) == (~0, 4, ~1)
    find = find_numbers(numbers.finish())
    assert find([np.zeros((3, 20))]) == ((3, 6), (), 0)
    assert find([np.zeros((0, 20))]) is None


@pytest.mark.slow
def test_sizes_that_come_often_get_a_form_in_the_background(monkeypatch):
    monkeypatch.setattr(background, "is_faster", lambda *_: True)
    graph = mlp(Var("batch"))
    with knobs.override(sizes="background"):
        module = weft.compile(graph)
    for size in (2, 6, 6, 6, 9):
        check(graph, random_inputs(graph, size, {"batch": size}), module)
    assert background.settle(120)
    assert [key[0][0] for key, _ in module._executor.items()] == [(2, 20), (6, 20)]
    check(graph, random_inputs(graph, 1, {"batch": 6}), module)
    # From now on calls find it by their shapes; the executor hears of one in 64, and may drop it.
    executor, asked = module._executor, []
    real = executor.specialization
    monkeypatch.setattr(executor, "specialization", lambda arrays: asked.append(len(arrays[0])) or real(arrays))
    for size in (6, 2) * 64:
        module(np.zeros((size, 20), "float32"))
    assert len(asked) == 2
    with executor._lock:
        executor._found.pop(next(key for key in executor._found if key[0][0] == (6, 20)))
    gc.collect()
    del asked[:]
    check(graph, random_inputs(graph, 1, {"batch": 6}), module)
    assert asked == [6]


class _Form:
    """A form whose first calls another process delays."""

    def __init__(self, seconds, delayed=0):
        self.runner, self.seconds, self.delayed, self.threads = self, seconds, delayed, set()

    def run(self, arrays, threads):
        self.threads.add(threads)
        self.delayed -= 1
        time.sleep(self.seconds * (20 if self.delayed >= 0 else 1))


def test_a_form_is_not_thrown_away_for_what_another_process_did():
    form, other = _Form(0.0005, delayed=4), _Form(0.003)
    assert background.is_faster(form, other, [], 3)
    assert not background.is_faster(other, form, [], 3)
    assert form.threads == other.threads == {3}


@pytest.mark.slow
def test_a_form_that_is_not_faster_is_dropped(monkeypatch):
    monkeypatch.setattr(background, "is_faster", lambda *_: False)
    with knobs.override(sizes="background"):
        module = weft.compile(mlp(Var("batch")))
    for size in (2, 6, 6, 6):
        module(np.zeros((size, 20), "float32"))
    assert background.settle(120)
    assert len(module._executor.items()) == 1


def test_products_whose_sizes_are_all_open():
    """Batches that broadcast either way, tiles that no row or column fills, and reductions that end anywhere."""
    b = Builder("products")
    x = Value("x", TensorType("float32", tuple(map(Var, "bhmk"))))
    y = Value("y", TensorType("float32", tuple(map(Var, "ciln"))))
    b.inputs += [x, y]
    random = np.random.default_rng(0)
    with knobs.override(sizes="open"):
        m = weft.compile(infer(b.finish(b.node("MatMul", x, y))))
    for left, right in (((2, 3), (2, 3)), ((1, 3), (2, 1)), ((2, 1), (1, 1)), ((1, 1), (1, 3))):
        for rows, depth, columns in ((4, 8, 6), (1, 1, 1), (7, 5, 17), (6, 4, 16), (13, 3, 31), (5, 9, 40), (8, 6, 3)):
            a = random.standard_normal((*left, rows, depth)).astype("f4")
            c = random.standard_normal((*right, depth, columns)).astype("f4")
            np.testing.assert_allclose(m(a, c), a @ c, rtol=1e-4, atol=1e-4)


def test_calls_with_other_sizes_in_turns_take_the_short_way(monkeypatch):
    """What a call needs of Python is made once for each form, not each time that the form changes."""
    rows = Var("rows")
    b = Builder("rows")
    x = Value("x", TensorType("float32", (rows, 64)))
    b.inputs.append(x)
    module = weft.compile(infer(b.finish(b.relu(b.dense(x, 64, 32)))))
    given = {n: np.random.default_rng(n).standard_normal((n, 64)).astype("float32") for n in range(1, 30)}
    for n in (8, 3):
        module(given[n])
    forms, compiled = module.specializations, fitting.cache_info().misses
    assert len(forms) == 2

    def refuse(*_, **__):
        raise AssertionError("the long way, or source that was compiled again")

    monkeypatch.setattr(weft.runtime.model.module.Module, "_run", refuse)
    monkeypatch.setattr(runner, "fast_call", refuse)
    for n in (8, 3, 8, *range(1, 30), 8):
        np.testing.assert_allclose(module(given[n]), interpret_graph(module.graph, [given[n]])[0], rtol=1e-4, atol=1e-5)
        assert len(module.run(None, {"x": given[n]})) == 1
    assert module.specializations == forms and fitting.cache_info().misses == compiled


@pytest.mark.parametrize("gap", [1, 2])
def test_windows_by_channel_over_images_lower_than_their_padding(gap):
    """Rows of a tile that are beyond such an image read nothing, not the last row less the padding."""
    b = Builder("rows")
    x = Value("x", TensorType("float32", (1, 3, Var("height"), 12)))
    b.inputs.append(x)
    windows = {"pads": [gap] * 4, "dilations": [gap] * 2}
    graph = infer(b.finish(b.node("Conv", x, b.normal(3, 1, 3, 3), group=3, **windows)))
    with knobs.override(sizes="open"):
        module = weft.compile(graph)
    for height in (16, 1, 2, 3, 9, 33, 1):
        arrays = random_inputs(graph, height, {"height": height})
        np.testing.assert_allclose(module(*arrays), interpret_graph(graph, arrays)[0], rtol=1e-4, atol=1e-5)


def test_outputs_that_no_size_changes_need_no_native_call():
    b = Builder("columns")
    x = Value("x", TensorType("float32", (Var("rows"), 4)))
    b.inputs.append(x)
    module = weft.compile(infer(b.finish(b.node("Shape", x, start=1))))
    for rows in (3, 1, 5, 3, 1, 0):
        np.testing.assert_array_equal(module(np.ones((rows, 4), "float32")), [4])


def test_forms_of_one_model_hold_weights_that_they_pack_alike_once():
    rows = Var("rows")
    b = Builder("rows")
    x = Value("x", TensorType("float32", (rows, 256)))
    b.inputs.append(x)
    module = weft.compile(infer(b.finish(b.dense(x, 256, 512))))
    for n in (64, 63):
        given = np.random.default_rng(n).standard_normal((n, 256)).astype("float32")
        np.testing.assert_allclose(module(given), interpret_graph(module.graph, [given])[0], rtol=1e-4, atol=1e-4)
    first, second = (form.runner.program.weights for form in module.specializations)
    large = [array for array in first if array.nbytes > 1 << 18]
    assert large and all(any(array is other for other in second) for array in large)


@pytest.mark.parametrize("sizes", ["first", "open"])
@pytest.mark.parametrize("tail", [(), (4,)])
def test_a_shape_that_a_tensor_does_not_have_is_refused(sizes, tail):
    """Expand to the sizes of another input: every pair of them, as numpy takes or refuses it."""
    n, m = Var("n"), Var("m")
    b = Builder("expand")
    x, y = Value("x", TensorType("float32", (n, *tail))), Value("y", TensorType("float32", (m, *(1 for _ in tail))))
    b.inputs += [x, y]
    graph = infer(b.finish(b.node("Expand", x, b.node("Shape", y))))
    with knobs.override(sizes=sizes):
        module = weft.compile(graph)
    for have in range(1, 6):
        for want in range(1, 6):
            given = np.random.default_rng(have).standard_normal((have, *tail)).astype("float32")
            other = np.zeros((want, *(1 for _ in tail)), "float32")
            if have == want or 1 in (have, want):
                shape = np.broadcast_shapes(given.shape, other.shape)
                np.testing.assert_array_equal(module(given, other), np.broadcast_to(given, shape))
            else:
                with pytest.raises(WeftError, match="broadcast"):
                    module(given, other)


def test_the_tail_of_open_sizes_reads_nothing_behind_its_inputs():
    """LLVM 22 folds a masked load into a masked sum of a product, and takes it out again without its mask."""
    code = """
import numpy as np
from tests.fuzz import guard
guard.install()
import weft
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.models.builder import Builder
b = Builder("line")
x = b.input("x", (Var("n"),))
half, more = b.constant(np.array([0.5], "f4")), b.constant(np.array([0.25], "f4"))
with knobs.override(sizes="open", cache=False):
    module = weft.compile(b.finish(b.node("Add", b.node("Mul", x, half), more)))
for n in (100, 1, 3, 17, 20, 70):
    given = np.arange(n, dtype="f4")
    np.testing.assert_array_equal(module(guard.place(given)), given * 0.5 + 0.25)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

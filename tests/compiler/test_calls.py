"""Calls: the short way accepts what the long way accepts, results go where the caller wants them, and it is quick."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

from tests.compiler.graphs import check, convnet, mlp, random_inputs
from tests.work import calls_of
from weft.compiler import compile
from weft.core.errors import ArgumentError
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph
from weft.models.builder import Builder


def two_outputs() -> Graph:
    """x + y, and x * 2; x itself is passed on, and the sum is returned twice."""
    b = Builder("pair")
    x, y = b.input("x", (3, 4)), b.input("y", (3, 4))
    total, double = b.node("Add", x, y), b.node("Mul", x, b.constant(np.float32(2)))
    return Graph("pair", [x, y], [total, double, x, total], b.nodes, b.constants)


def arrays_of(seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((3, 4)).astype("float32") for _ in range(2)]


def test_repeated_calls_take_the_short_way_and_agree():
    graph = two_outputs()
    module = compile(graph)
    for seed in range(4):
        x, y = arrays_of(seed)
        for made in (module(x, y), module.run(None, {"y": y, "x": x}), module(y=y, x=x)):
            for have, want in zip(made, interpret_graph(graph, [x, y]), strict=True):
                np.testing.assert_array_equal(have, want)
            assert len({id(one) for one in made}) == 4 and not np.shares_memory(made[0], made[3])
            assert not np.shares_memory(made[2], x)
    assert module._fast is not None


def test_a_model_without_outputs_runs():
    b = Builder("silent")
    module = compile(Graph("silent", [b.input("x", (3, 4))], [], [], {}))
    for _ in range(3):
        assert not module.run(None, {"x": arrays_of()[0]})


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_that_walk_their_weights_backwards_agree_to_the_bit(threads):
    """A weight larger than a cache is read forwards and backwards in turn, whoever calls, from however many threads."""
    b = Builder("wide")
    x = b.input("x", (1, 2000))
    weights = np.random.default_rng(0).standard_normal((2000, 612)).astype("float32")
    y = b.node("Relu", b.node("MatMul", x, b.constant(weights)))
    graph = Graph("wide", [x], [y], b.nodes, b.constants)
    module = compile(graph, threads=threads)
    if "avx512f" in module.target.features:
        assert [call.turns for step in module.specializations[0].lowered.program.steps for call in step.calls] == [True]
    inputs = random_inputs(graph)
    check(graph, inputs, module)
    first = module(*inputs)
    wrong: list[int] = []

    def many() -> None:
        wrong.extend(at for at in range(20) if not np.array_equal(module(*inputs), first))

    callers = [threading.Thread(target=many) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.parametrize("make", ["strided", "big_endian", "unaligned", "list", "torch", "subclass", "read_only"])
def test_unusual_inputs_still_work_after_a_plain_call(make):
    graph = mlp()
    module = compile(graph)
    plain = random_inputs(graph)[0]
    want = module(plain)
    if make == "torch":
        given = pytest.importorskip("torch").from_numpy(plain.copy())
    elif make == "unaligned":
        room = np.zeros(plain.nbytes + 1, np.uint8)
        given = room[1:].view("float32").reshape(plain.shape)
        given[...] = plain
    elif make == "read_only":
        given = plain.copy()
        given.flags.writeable = False
    else:
        given = {
            "strided": lambda: np.asfortranarray(plain),
            "big_endian": lambda: plain.astype(">f4"),
            "list": lambda: plain.tolist(),
            "subclass": lambda: plain.view(np.matrix),
        }[make]()
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(module(given)), want)


def test_arrays_from_another_process_take_the_short_way():
    """Their type is equal to float32, but another object."""
    module = compile(two_outputs())
    module(*arrays_of())
    x, y = pickle.loads(pickle.dumps(arrays_of(1)))
    assert x.dtype is not np.dtype("float32") and x.dtype == np.dtype("float32")
    assert module._fast is not None and module._fast((x, y), 1, None) is not None
    assert module._fast((x.astype(">f4"), y), 1, None) is None


@pytest.mark.parametrize("size", [100, 1 << 14, (1 << 14) + 7, 1 << 18])
def test_large_results_start_at_a_line_of_the_cache(size):
    b = Builder("large")
    x = b.input("x", (size,))
    module = compile(Graph("large", [x], [b.node("Neg", x)], b.nodes, b.constants))
    given = np.arange(size, dtype="float32")
    for array in (given, given[::-1][::-1], np.ascontiguousarray(given)):
        made = module(array)
        assert size < 1 << 14 or made.ctypes.data % 64 == 0
        np.testing.assert_array_equal(made, -given)


def test_wrong_inputs_are_explained_after_a_plain_call():
    module = compile(mlp())
    x = np.zeros((4, 20), "float32")
    module(x)
    for arrays, named, text in (
        ([x, x], {}, "takes 1 inputs"),
        ([], {}, "missing: x"),
        ([x], {"z": x}, "unknown: z"),
        ([x.astype("float64")], {}, "float64"),
        ([x[:, :3]], {}, "shape"),
        ([x[None]], {}, "shape"),
    ):
        with pytest.raises(ArgumentError, match=text):
            module(*arrays, **named)
    with pytest.raises(ArgumentError, match="unknown: z"):
        module.run(None, {"z": x})


def test_shapes_may_alternate():
    graph = mlp(Var("batch"))
    module = compile(graph)
    for size in (2, 5, 2, 2, 5, 5, 3):
        check(graph, random_inputs(graph, size, {"batch": size}), module)


def test_values_that_choose_the_form_are_looked_at_every_time():
    b = Builder("deciding")
    x, shape = b.input("x", (2, 6)), b.input("shape", (2,), "int64")
    graph = b.finish(b.node("Relu", b.node("Reshape", b.node("Neg", x), shape)))
    module = compile(graph)
    for wanted in ([3, 4], [3, 4], [12, 1], [3, 4]):
        made = module(np.ones((2, 6), "float32"), np.array(wanted))
        assert made.shape == tuple(wanted)


def test_graphs_without_inputs_or_without_nodes():
    b = Builder("fixed")
    fixed = Graph("fixed", [], [b.constant(np.arange(3, dtype="float32"))], [], b.constants)
    module = compile(fixed)
    for _ in range(3):
        made = module()
        np.testing.assert_array_equal(made, [0, 1, 2])
        made[0] = 9


# ------------------------------------------------------------------------------------------------------------- out=


def test_results_go_into_the_callers_arrays():
    graph = two_outputs()
    module = compile(graph)
    x, y = arrays_of()
    want = interpret_graph(graph, [x, y])
    for _ in range(3):
        out = [np.full((3, 4), 7, "float32") for _ in range(4)]
        made = module(x, y, out=out)
        assert all(a is b for a, b in zip(made, out))
        for have, expected in zip(out, want):
            np.testing.assert_array_equal(have, expected)
        some = [np.zeros((3, 4), "float32")]
        assert module.run([module.outputs[1].name], {"x": x, "y": y}, out=some)[0] is some[0]
        np.testing.assert_array_equal(some[0], want[1])


def test_one_output_takes_one_array():
    graph = convnet()
    module = compile(graph)
    arrays = random_inputs(graph)
    want = module(*arrays)
    out = np.zeros_like(want)
    for _ in range(3):
        out[...] = 0
        assert module(*arrays, out=out) is out
        np.testing.assert_array_equal(out, want)
        assert module.run(None, {"image": arrays[0]}, [out])[0] is out


def test_out_may_overlap_an_input_or_have_gaps():
    b = Builder("turned")
    x = b.input("x", (5, 5))
    graph = b.finish(b.node("Add", b.node("Transpose", x, perm=[1, 0]), x))
    module = compile(graph)
    for turn in range(3):
        given = np.random.default_rng(turn).standard_normal((5, 5)).astype("float32")
        want = given.T + given
        wide = np.zeros((5, 10), "float32")
        module(given, out=wide[:, ::2])
        np.testing.assert_array_equal(wide[:, ::2], want)
        assert not wide[:, 1::2].any()
        module(given, out=given)
        np.testing.assert_array_equal(given, want)


def test_out_that_holds_an_input_which_is_passed_on():
    graph = two_outputs()
    module = compile(graph)
    x, y = arrays_of()
    want = [one.copy() for one in interpret_graph(graph, [x, y])]
    others = [np.zeros((3, 4), "float32") for _ in range(3)]
    module(x, y, out=[x, *others])
    for have, expected in zip([x, *others], want):
        np.testing.assert_array_equal(have, expected)


def test_wrong_out_is_explained():
    module = compile(two_outputs())
    x, y = arrays_of()
    good = [np.zeros((3, 4), "float32") for _ in range(4)]
    frozen = np.zeros((3, 4), "float32")
    frozen.flags.writeable = False
    for _ in range(2):
        for out, text in (
            (good[:2], "each of 4 outputs"),
            (good[0], "each of 4 outputs"),
            ([*good[:3], [1, 2]], "not a list"),
            ([*good[:3], frozen], "read-only"),
            ([*good[:3], np.zeros((3, 4))], "float64"),
            ([*good[:3], np.zeros((4, 3), "float32")], r"\[4, 3\]"),
            ([*good[:3], good[0]], "shares memory"),
        ):
            with pytest.raises(ArgumentError, match=text):
                module(x, y, out=out)
        module(x, y)


def test_out_of_a_size_that_only_the_run_tells():
    b = Builder("unique")
    graph = b.finish(b.node("Unique", b.input("x", (6,)), sorted=1))
    with pytest.warns(UserWarning):
        module = compile(graph)
    x = np.array([1, 2, 1, 2, 3, 3], "float32")
    out = np.zeros(3, "float32")
    assert module(x, out=out) is out and out.tolist() == [1, 2, 3]
    with pytest.raises(ArgumentError, match="came out as"):
        module(x, out=np.zeros(2, "float32"))


def test_an_input_may_be_called_out():
    b = Builder("named")
    x = b.input("out", (2,))
    module = compile(b.finish(b.node("Neg", x)))
    np.testing.assert_array_equal(module(out=np.ones(2, "float32")), [-1, -1])
    into = np.zeros(2, "float32")
    module.run(None, {"out": np.ones(2, "float32")}, [into])
    np.testing.assert_array_equal(into, [-1, -1])


# ---------------------------------------------------------------------------------------------------- threads, time


def test_threads_share_a_module():
    graph = two_outputs()
    module = compile(graph)
    module(*arrays_of())
    wrong = []

    def work(seed: int) -> None:
        x, y = arrays_of(seed)
        for _ in range(300):
            total, double, same, _ = module(x, y)
            if not ((total == x + y).all() and (double == x * 2).all() and (same == x).all()):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_takes_the_short_way():
    """Ten to twenty calls of Python and C, all told: about 2 µs more than numpy's own."""
    b = Builder("add")
    x, y = b.input("x", (8,)), b.input("y", (8,))
    add = compile(b.finish(b.node("Add", x, y)))
    e = Builder("empty")
    empty = compile(e.finish(e.input("x", (8,))))
    one, two, out = np.ones(8, "float32"), np.ones(8, "float32"), np.zeros(8, "float32")
    for call in (lambda: add(one, two), lambda: add(one, two, out=out), lambda: empty(one)):
        call()
        assert calls_of(call, also_native=True) <= 25

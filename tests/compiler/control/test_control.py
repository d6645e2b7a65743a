"""Loops as one native call: what they refuse, what fails inside them, and what they hold."""

import ctypes
import os
import signal
import threading

import numpy as np
import pytest

import weft
from tests.compiler.control.test_bodies import Part, check, growing, is_native, weight
from weft.compiler.control import bodies
from weft.compiler.control import form as control_form
from weft.compiler.specialize import Executor
from weft.compiler.steps import HostStep
from weft.core import model as numbers
from weft.core.errors import RuntimeFault
from weft.core.knobs import knobs
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import GraphError
from weft.graph.passes.infer import infer
from weft.targets.registry import find_target

pytestmark = pytest.mark.filterwarnings("ignore::weft.compiler.HostWarning")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(numbers, "BODY_PRICE", 0.0)


def region_of(module):
    (step,) = [s for one in module.specializations for s in one.runner.program.steps if isinstance(s, HostStep)]
    return step.region


def listing(start, reads, turns=4):
    """A list that grows by a row each turn from `start` rows; its mean is read before or after that."""
    main, body = Part("main"), Part("body")
    x, rows = main.input("x", "float32", (1, 4)), main.input("rows", "float32", (start, 4))
    turn, go, state, so_far = (body.input(n) for n in ("turn", "go", "state", "so_far"))
    longer = body("Concat", so_far, state, axis=0)
    mean = body("ReduceMean", {"before": so_far, "after": longer}[reads], body.constant([0], "int64"))
    graph = body.finish([turn, go, state, so_far], [go, body("Tanh", mean), longer])
    results = main("Loop", main.constant(turns, "int64"), None, x, rows, outputs=2, body=graph)
    return infer(main.finish([x, rows], results)), [weight(1, 4), weight(max(start, 1), 4)[:start]]


def test_a_list_may_start_empty():
    graph, arrays = listing(0, "after")
    module = weft.compile(graph)
    check(module, arrays, interpret_graph(graph, arrays), 3)
    assert is_native(module) and region_of(module)._declined == 0


def test_a_kernel_that_meets_nothing_leaves_the_loop_to_the_host():
    graph, arrays = listing(0, "before")
    module = weft.compile(graph)
    check(module, arrays, interpret_graph(graph, arrays), numbers.MOST_DECLINED + 1)
    region = region_of(module)
    assert region.closed and region._declined == numbers.MOST_DECLINED


def chosen(most):
    """A loop in which the rows whose sum is greater than something are looked for, and their mean is added to all."""
    main, body = Part("main"), Part("body")
    x = main.input("x", "float32", (6, 4))
    turn, go, state = (body.input(n) for n in ("turn", "go", "state"))
    sums = body("ReduceSum", state, body.constant([1], "int64"), keepdims=0)
    places = body("NonZero", body("Greater", sums, body.constant(most)))
    rows = body("Gather", state, body("Squeeze", places, body.constant([0], "int64")), axis=0)
    mean = body("ReduceMean", rows, body.constant([0], "int64"), keepdims=1)
    graph = body.finish([turn, go, state], [go, body("Add", body("Tanh", state), mean)])
    return infer(main.finish([x], [main("Loop", main.constant(5, "int64"), None, x, body=graph)])), [weight(6, 4)]


def test_sizes_that_are_data():
    graph, arrays = chosen(0.0)
    module = weft.compile(graph)
    check(module, arrays, interpret_graph(graph, arrays), 3)
    assert is_native(module) and region_of(module)._declined == 0
    others = [-arrays[0]]
    check(module, others, interpret_graph(graph, others), 1)


def test_nothing_found_leaves_the_loop_to_the_host():
    graph, arrays = chosen(100.0)
    module = weft.compile(graph)
    check(module, arrays, interpret_graph(graph, arrays), numbers.MOST_DECLINED + 1)
    assert region_of(module).closed


def test_who_holds_a_shorter_list_keeps_it():
    """Two states start as one list and grow apart: what is put behind one is not behind the other."""
    main, body = Part("main"), Part("body")
    x = main.input("x", "float32", (2, 4))
    turn, go, a, b = (body.input(n) for n in ("turn", "go", "a", "b"))
    row = body("Unsqueeze", body("ReduceSum", a, body.constant([0], "int64"), keepdims=0), body.constant([0], "int64"))
    longer = body("Concat", a, row, axis=0)
    other = body("Concat", a, body("Neg", row), axis=0)
    graph = body.finish([turn, go, a, b], [go, longer, other])
    results = main("Loop", main.constant(5, "int64"), None, x, x, outputs=2, body=graph)
    graph, arrays = infer(main.finish([x], results)), [weight(2, 4)]
    module = weft.compile(graph)
    check(module, arrays, interpret_graph(graph, arrays), 3)
    assert is_native(module)


def test_a_fault_in_a_turn_names_the_node():
    main, body = Part("main"), Part("body")
    table, first = main.input("table", "int64", (5,)), main.input("first", "int64", ())
    turn, go, place = (body.input(n) for n in ("turn", "go", "place"))
    after = body("Gather", table, place, axis=0)
    graph = body.finish([turn, go, place], [go, after, after])
    results = main("Loop", main.constant(9, "int64"), None, first, outputs=2, body=graph)
    graph = infer(main.finish([table, first], results))
    module = weft.compile(graph)
    good, bad = np.array([1, 2, 3, 4, 0]), np.array([1, 2, 3, 77, 0])
    for _ in range(3):
        check(module, [good, np.array(0)], interpret_graph(graph, [good, np.array(0)]), 1)
        with pytest.raises(RuntimeFault, match="Gather.*index"):
            module(bad, np.array(0))
    assert is_native(module)


def test_a_list_that_grows_too_large_is_left_to_the_host(monkeypatch):
    monkeypatch.setattr("weft.compiler.control.form.UNASKED_BYTES", 1 << 16)
    main, body = Part("main"), Part("body")
    x = main.input("x", "float32", (64, 64))
    turn, go, rows = (body.input(n) for n in ("turn", "go", "rows"))
    graph = body.finish([turn, go, rows], [go, body("Concat", rows, x, axis=0)])
    graph = infer(main.finish([x], [main("Loop", main.constant(40, "int64"), None, x, body=graph)]))
    with knobs.override(tensor_megabytes=1):
        module = weft.compile(graph)
        made = module(weight(64, 64))
    np.testing.assert_array_equal(made, np.tile(weight(64, 64), (41, 1)))
    assert region_of(module)._declined == 1


def test_rows_of_other_sizes_are_an_error_of_the_node():
    main, body = Part("main"), Part("body")
    x = main.input("x", "float32", (1, 4))
    turn, go, rows = (body.input(n) for n in ("turn", "go", "rows"))
    longer = body("Concat", rows, x, axis=0)
    graph = body.finish([turn, go, rows], [go, longer, longer])
    results = main("Loop", main.constant(3, "int64"), None, x, outputs=2, body=graph)
    module = weft.compile(infer(main.finish([x], results)))
    for _ in range(2):
        with pytest.raises(GraphError, match="differ from turn to turn"):
            module(weight(1, 4))


def test_calls_from_several_threads():
    graph, arrays = growing(20)
    module = weft.compile(graph)
    wanted = interpret_graph(graph, arrays)
    check(module, arrays, wanted, 2)
    wrong = []

    def call():
        for _ in range(50):
            for got, want in zip(module(*arrays), wanted, strict=True):
                if not np.allclose(got, want, rtol=1e-5, atol=1e-6):
                    wrong.append(got)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sizes_of_the_inputs_that_change_get_one_form():
    main, body = Part("main"), Part("body")
    rows, start = main.input("rows", "float32", None), main.input("start", "float32", (1, 4))
    turn, go, state, grown = (body.input(n) for n in ("turn", "go", "state", "grown"))
    made = body("Tanh", body("Add", state, body("ReduceMean", grown, body.constant([0], "int64"))))
    graph = body.finish([turn, go, state, grown], [go, made, body("Concat", grown, made, axis=0)])
    limit = main.input("limit", "int64", ())
    results = main("Loop", limit, None, start, rows, outputs=2, body=graph)
    graph = main.finish([rows, start, limit], results)
    region = Executor(graph, find_target("cpu")).inner(graph, {}, True)
    for count in (3, 5, 2, 9, 1, 7, 4, 30):
        arrays = [weight(count, 4), weight(1, 4, seed=count), np.array(count)]
        found = region.native(arrays, 1)
        assert found is not None
        for got, want in zip(found, interpret_graph(infer(graph), arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert region.compiled <= 3


def patient():
    """A loop of as many turns as the caller says."""
    main, body = Part("main"), Part("body")
    turns, x = main.input("turns", "int64", ()), main.input("x", "float32", (4,))
    turn, go, state = (body.input(n) for n in ("turn", "go", "state"))
    graph = body.finish([turn, go, state], [go, body("Tanh", state)])
    return infer(main.finish([turns, x], [main("Loop", turns, None, x, body=graph)]))


def test_a_loop_heeds_ctrl_c(monkeypatch, request):
    module, x = weft.compile(patient()), np.ones(4, np.float32)
    for _ in range(3):
        module(np.array(20), x)
    assert is_native(module)
    microseconds = ctypes.cast(ctypes.CDLL(None).clock, ctypes.c_void_p).value
    found = (microseconds, *control_form._asked()[1:])
    monkeypatch.setattr(control_form, "_asked", lambda: found)
    given = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, given))
    for _ in range(2):  # what a call held when it was stopped, the next one may use
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            module(np.array(1 << 27), x)  # so many that a test which fails ends some time
        timer.join()


def test_a_fault_of_the_compiler_is_no_refusal(monkeypatch):
    def broken(*arguments):
        raise AttributeError("a fault")

    module = weft.compile(listing(1, "after")[0])
    monkeypatch.setattr(bodies, "ControlForm", broken)
    with pytest.raises(AttributeError, match="a fault"):
        module(*listing(1, "after")[1])


def test_the_short_way_takes_what_fits_and_leaves_the_rest():
    """Once a loop is one native call, arrays that fit go straight there; others are converted or refused as before."""
    main, body = Part("main"), Part("body")
    x = main.input("x", "float32", (2, 4))
    turn, go, state = (body.input(n) for n in ("turn", "go", "state"))
    graph = body.finish([turn, go, state], [go, body("Tanh", body("Add", state, state))])
    looped = main("Loop", main.constant(5, "int64"), None, x, body=graph)
    graph = infer(main.finish([x], [looped, looped, x]))
    module = weft.compile(graph)
    for seed in range(4):
        given = np.random.default_rng(seed).standard_normal((2, 4)).astype(np.float32)
        check(module, [given], interpret_graph(graph, [given]), 1)
    assert is_native(module) and module._fast is not None
    assert module._fast([given], 1, None) is not None
    wide = np.random.default_rng(9).standard_normal((4, 2)).astype(np.float32)
    check(module, [wide.T], interpret_graph(graph, [wide.T.copy()]), 2)
    for other in (given.astype(np.float64), given[:1], given.tolist()):
        assert module._fast([other], 1, None) is None
    first, second, passed = module(given)
    assert not np.shares_memory(first, second) and not np.shares_memory(passed, given)
    out = [np.empty_like(given) for _ in range(3)]
    module(given, out=out)
    np.testing.assert_array_equal(out[0], first)
    with pytest.raises(weft.WeftError):
        module(given[:1])

"""The parts that commands share: options, random inputs, errors as figures, graphs as ONNX, the screen."""

import argparse

import numpy as np
import pytest

import weft.models
from weft.cli.doctor_command import Finding, guarded
from weft.cli.facts import array_facts, relative_error
from weft.cli.given import UsageError
from weft.cli.screen import Screen, plain, seconds, size
from weft.cli.sources import input_shapes, make_feeds, pairs
from weft.compiler.reports.inputs import random_array
from weft.core.errors import WeftError
from weft.expr.nodes import Var
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import NUMPY_TYPES, TensorType, Value


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_random_arrays_have_their_type(dtype):
    made = random_array(dtype, (2, 3), np.random.default_rng(0))
    assert made.shape == (2, 3) and made.dtype == NUMPY_TYPES[dtype]


def test_pairs_take_names_with_signs():
    assert pairs(["a=1", "b=c=2"], "--size") == {"a": "1", "b=c": "2"}
    with pytest.raises(UsageError):
        pairs(["=2"], "--size")


def given(**changes):
    return argparse.Namespace(**{"model": "m", "shape": [], "size": [], "input": [], "seed": 0, **changes})


def test_shapes_from_options():
    n = Var("N")
    inputs = [Value("x", TensorType("float32", (n, 4))), Value("y", TensorType("float32", (n, "M")))]
    screen = Screen()
    assert input_shapes(inputs, given(size=["N=3", "M=2"]), screen) == {"x": (3, 4), "y": (3, 2)}
    assert input_shapes(inputs, given(shape=["x=7,4"]), screen) == {"x": (7, 4), "y": (1, 1)}


def test_an_unknown_rank_needs_a_shape():
    inputs = [Value("x", TensorType("float32", None))]
    with pytest.raises(UsageError, match="give its shape"):
        input_shapes(inputs, given(), Screen())
    assert make_feeds(inputs, given(shape=["x=2,2"]), Screen())["x"].shape == (2, 2)


def test_the_same_seed_gives_the_same_inputs():
    inputs = [Value("x", TensorType("float32", (4,)))]
    first, again = (make_feeds(inputs, given(), Screen())["x"] for _ in range(2))
    other = make_feeds(inputs, given(seed=1), Screen())["x"]
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@pytest.mark.parametrize("text", ["[1.5]", "[300]", "[-1]", "[1e30]", "[NaN]", "[1,[2]]", "null"])
def test_numbers_that_the_input_cannot_hold_are_refused(text):
    with pytest.raises(WeftError, match="input x|input 'x'"):
        make_feeds([Value("x", TensorType("uint8", (1,)))], given(input=[f"x={text}"]), Screen())


@pytest.mark.parametrize("text", ["²", "-1", "1.5", "99999999999999999999"])
def test_sizes_that_are_none_are_refused(text):
    inputs = [Value("x", TensorType("float32", ("N",)))]
    with pytest.raises(UsageError, match="--size takes"):
        input_shapes(inputs, given(size=[f"N={text}"]), Screen())


@pytest.mark.parametrize(
    ("got", "want", "error"),
    [
        (np.array([1.0, 2.0]), np.array([1.0, 2.0]), 0),
        (np.array([1.0, 2.5]), np.array([1.0, 2.0]), 0.25),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf]), 0),
        (np.array([np.nan]), np.array([1.0]), np.inf),
        (np.array([np.inf, 1.0]), np.array([-np.inf, 1.0]), np.inf),
        (np.zeros(2), np.zeros(3), np.inf),
        (np.zeros(0), np.zeros(0), 0),
        (np.array([True]), np.array([False]), np.inf),
        (np.array(["a"], object), np.array(["a"], object), 0),
        ([np.ones(1)], [np.ones(1), np.ones(1)], np.inf),
        ([np.ones(1)], [np.full(1, 2.0)], 0.5),
        (None, None, 0),
        (None, np.ones(1), np.inf),
    ],
)
def test_relative_errors(got, want, error):
    assert relative_error(got, want) == error


def test_facts_of_arrays():
    assert array_facts(np.array([1.0, 3.0], "float32"))["mean"] == 2
    assert array_facts(np.array([], "float32"))["shape"] == [0]
    assert array_facts([1, 2])["length"] == 2
    assert array_facts(np.array(["a"], object))["first"] == ["a"]


def test_json_holds_only_what_json_has():
    assert plain({"a": np.float32(0.5), "b": float("inf"), "c": (np.int64(1), np.ones(1))}) == {
        "a": 0.5,
        "b": None,
        "c": [1, [1.0]],
    }


def test_figures_for_people():
    assert [seconds(1.5), seconds(0.0015), seconds(1.5e-6)] == ["1.5 s", "1.5 ms", "1.5 µs"]
    assert [size(10), size(2048), size(3 * 1024**2), size(5 * 1024**3)] == ["10 bytes", "2.0 KB", "3.0 MB", "5.0 GB"]


def test_no_progress_where_there_is_no_terminal(capsys):
    with Screen().working("sleeping"):
        pass
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


def test_a_check_that_fails_is_a_finding():
    def broken():
        yield Finding("first", "ok", "")
        raise OSError("no such thing")

    (found,) = guarded(broken)
    assert found.state == "bad" and "no such thing" in found.detail


def test_a_graph_as_onnx_keeps_its_meaning():
    pytest.importorskip("onnx")
    from weft.cli.to_onnx import to_onnx
    from weft.frontends.onnx import load

    graph = weft.models.dqn()
    x = np.random.default_rng(0).standard_normal((1, 4, 84, 84), "float32")
    (want,), (got,) = interpret_graph(graph, [x]), interpret_graph(load(to_onnx(graph)), [x])
    np.testing.assert_array_equal(got, want)

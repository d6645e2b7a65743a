"""The short way through a call: what Python can read, however much a model takes; arrays that meet in memory."""

from __future__ import annotations

import pickle
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import weft
from weft.core.array_types import ArrayType
from weft.core.errors import ArgumentError
from weft.core.knobs import knobs
from weft.expr.nodes import Var
from weft.graph.ir import TensorType, Value
from weft.models.builder import Builder
from weft.runtime.model.fastcall import _packed, fitting
from weft.runtime.model.module import SizeWarning
from weft.runtime.model.stored import bound_key


def test_thousands_of_addresses_are_packed() -> None:
    """Weights and values in turn: a + b + c + … is more than Python's compiler takes."""
    for count in (1, 3, 5000):
        scope: dict[str, object] = {}
        source = _packed([("weight", 0), ("value", 1)] * count, [7], scope, lambda kind, number: "8")
        assert eval(source, scope) == struct.pack("<2q", 7, 8) * count  # noqa: S307


def test_arrays_that_lie_elsewhere_are_looked_at_again() -> None:
    """Outputs apart from the inputs, on them, half over them, over each other, and apart again."""
    b = Builder("two", 0)
    x, y = b.input("x", (64,)), b.input("y", (64,))
    module = weft.compile(b.finish(b.node("Add", x, y), b.node("Sub", x, y), names=["sum", "difference"]))
    room = np.arange(512, dtype=np.float32)
    places = [(0, 64, 128, 192), (0, 64, 128, 192), (0, 64, 0, 192), (0, 64, 96, 192), (0, 64, 128, 192),
              (0, 64, 64, 0), (64, 0, 128, 192), (0, 0, 128, 192), (0, 64, 256, 192)]  # fmt: skip
    for at in places:
        room[:] = np.arange(512)
        given = [room[start : start + 64] for start in at]
        wanted = given[0] + given[1], given[0] - given[1]
        module(*given[:2], out=given[2:])
        np.testing.assert_array_equal(given[3], wanted[1])
        if abs(at[2] - at[3]) >= 64:
            np.testing.assert_array_equal(given[2], wanted[0])


def test_arrays_of_another_kind_are_left_to_the_long_way() -> None:
    """Strided, read-only, unaligned and of another shape: each right, or refused, after a call that was short."""
    b = Builder("one", 0)
    module = weft.compile(b.finish(b.node("Neg", b.input("x", (64,))), names=["y"]))
    x = np.arange(64, dtype=np.float32)
    out = np.empty_like(x)
    module(x, out=out)
    wide = np.arange(128, dtype=np.float32)
    np.testing.assert_array_equal(module(wide[::2]), -wide[::2])
    bytes_ = np.zeros(64 * 4 + 1, np.uint8)[1:].view(np.float32)
    bytes_[:] = x
    np.testing.assert_array_equal(module(bytes_), -x)
    np.testing.assert_array_equal(module(x, out=bytes_), -x)
    module(x, out=wide[::2])
    np.testing.assert_array_equal(wide[::2], -x)
    out.flags.writeable = False
    try:
        module(x, out=out)
    except (weft.WeftError, ValueError):
        pass
    else:
        raise AssertionError("a read-only array was written")


def test_what_is_no_such_array_is_left_to_the_long_way() -> None:
    """Other objects, subclasses, other bytes, other ranks; an element type that another process sent is the same."""
    b = Builder("two", 0)
    x, y = b.input("x", (2, 3)), b.input("y", (2, 3))
    module = weft.compile(b.finish(b.node("Add", x, y), names=["sum"]))
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    module(given, given)
    short = module._fast
    assert short is not None
    sent = pickle.loads(pickle.dumps(given.astype(">f4"))).astype("<f4")
    same = given.view(pickle.loads(pickle.dumps(np.dtype("<f4"))))
    for one in (given, sent, same, np.asfortranarray(given[:1].repeat(2, 0)).copy("C")):
        made = short((given, one), 1, None)
        assert made is not None
        np.testing.assert_array_equal(made[0], given + one)
    others = [None, 1.0, "x", given.tolist(), np.float32(1), given.astype(">f4"), given.astype(np.int32), given[0],
              given.reshape(3, 2), given.reshape(2, 3, 1), np.asfortranarray(given), given[:, ::-1], module,
              np.ma.array(given), given.view(type("Other", (np.ndarray,), {})), np.zeros((2, 0), "f4")]  # fmt: skip
    for other in others:
        assert short((given, other), 1, None) is None and short((other, given), 1, None) is None
        assert short((given, given), 1, [other]) is None
    assert short((given,), 1, None) is None and short((given, given), 1, [given.copy()] * 2) is None
    assert short([given, given], 1, [given]) is None, "an output on an input"
    apart = np.empty_like(given)
    assert short([given, given], 1, [apart])[0] is apart


def test_lists_that_shrink_while_they_are_read() -> None:
    """What native code counts on is a tuple's length, whatever happens to a list meanwhile (here by a profiler)."""
    b = Builder("one", 0)
    module = weft.compile(b.finish(b.relu(b.input("x", (8, 64)))))
    x, result = np.ones((8, 64), np.float32), np.empty((8, 64), np.float32)
    module(x, out=[result])
    short = module._fast
    assert short is not None

    def shrink(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and frame.f_code.co_name == "fast" and function is len:
            counted.append(1)
            if len(counted) == last:
                arrays.clear()
                out.clear()

    for last in (1, 2):
        arrays, out, counted = [x], [result], list[int]()
        sys.setprofile(shrink)
        try:
            made = short(arrays, 1, out)
        finally:
            sys.setprofile(None)
        assert (made is None) == (last == 1), "outputs are read after the inputs are counted"
    np.testing.assert_array_equal(result, x)


def test_objects_with_shapes_of_their_own() -> None:
    """The short way of all sizes asks only numpy's arrays for their shapes."""

    class Image:
        def __init__(self, array: np.ndarray) -> None:
            self.array, self.shape = array, list(array.shape)

        def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
            return self.array

    class Lazy(Image):
        shape = property(lambda self: 1 // 0, lambda self, shape: None)

    b = Builder("open", 0)
    x = Value("x", TensorType("float32", (Var("n"), 16)))
    b.inputs.append(x)
    with knobs.override(sizes="open"):
        module = weft.compile(b.finish(b.relu(x)))
    for kind in (Image, Lazy):
        for size in (5, 3, 5):
            assert module(kind(np.ones((size, 16), np.float32))).shape == (size, 16)


def test_calls_from_several_threads_have_frames_of_their_own() -> None:
    """Outputs are of the arrays that a thread gave, whatever the others do."""
    b = Builder("chain", 0)
    module = weft.compile(
        b.finish(b.relu(b.dense(b.relu(b.dense(b.input("x", (8, 64)), 64, 64)), 64, 64)), names=["y"])
    )
    random = np.random.default_rng(0)
    given = [random.standard_normal((8, 64)).astype(np.float32) for _ in range(6)]
    wanted = [module(x) for x in given]

    def call(number: int) -> bool:
        out = np.empty((8, 64), np.float32)
        return all(
            np.array_equal(module(given[number], out=out if at % 2 else None), wanted[number]) for at in range(300)
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(call, range(6)))


def test_arrays_fit_types_with_names_for_sizes() -> None:
    """Numbers are as they are, names the same wherever they are; anything but a plain array is left to the long way."""
    fits = fitting((ArrayType("float32", ("n", 3, "m")), ArrayType("int64", ("m",)), ArrayType("float32", ())))
    x, y, z = np.zeros((2, 3, 5), np.float32), np.zeros(5, np.int64), np.zeros((), np.float32)
    assert fits([x, y, z]) and fits((np.zeros((9, 3, 0), np.float32), np.zeros(0, np.int64), z))
    others = [[x, y], [x, np.zeros(4, np.int64), z], [x[:, :2], y, z], [x[::-1], y, z], [x[0], y, z],
              [x.astype(float), y, z], [x.tolist(), y, z], [x, y.astype(np.int32), z], [x, y, np.float32(0)],
              [x.astype(">f4"), y, z], [np.ma.array(x), y, z]]  # fmt: skip
    assert not any(fits(one) for one in others)


def test_the_short_way_of_all_sizes_is_left_where_it_does_not_lead() -> None:
    """One form for all sizes: calls that fit, that do not, that are refused, and sizes that get a form of their own."""
    b = Builder("sum", 0)
    n = Var("n")
    x, y = (Value(name, TensorType("float32", (n, 4))) for name in "xy")
    b.inputs += [x, y]
    graph = b.finish(b.node("Add", x, y), names=["sum"])
    with knobs.override(sizes="open", cache=False):
        module = weft.compile(graph, shapes={"x": (range(1, 9), 4), "y": (range(1, 9), 4)})
    random = np.random.default_rng(0)
    for size in (3, 7, 1, 3):
        given = [random.standard_normal((size, 4)).astype(np.float32) for _ in range(2)]
        np.testing.assert_array_equal(module(*given), given[0] + given[1])
        out = np.empty_like(given[0])
        np.testing.assert_array_equal(module(*given, out=out), out)
        np.testing.assert_array_equal(module(given[0][::-1], given[1].tolist()), given[0][::-1] + given[1])
    short, (form,) = module._fast, module.specializations
    assert set(form.runner.settled) == {((size, 4), (size, 4)) for size in (1, 3, 7)}
    assert short is not None and short(given, 1, None) is not None
    opened = form.runner.fast([value.type for value in module._executor.signature.inputs])
    assert opened is not None and opened(given, 1, None) is not None and opened(given, 1, [out]) is None
    assert opened([given[0], given[1].astype(float)], 1, None) is None
    assert opened([one[:2] for one in given], 1, None) is None
    assert short([given[0].tolist(), given[1]], 1, None) is None
    with pytest.raises(ArgumentError, match=r"range\(1, 9\)"):
        module(*(np.zeros((9, 4), np.float32) for _ in range(2)))
    own = weft.compile(graph, shapes={"x": (3, 4), "y": (3, 4)}).specializations[0]
    module._executor.keep(bound_key(given, ()), own)
    assert own.runner._fast is None and not form.runner.settled
    np.testing.assert_array_equal(module(*given), given[0] + given[1])
    assert own.runner._fast is not None and module._fast is short
    with pytest.warns(SizeWarning):
        np.testing.assert_array_equal(module(given[0], given[1][:1]), given[0] + given[1][:1])

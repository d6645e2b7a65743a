"""The short way through a call: what Python can read, however much a model takes; arrays that meet in memory."""

from __future__ import annotations

import struct

import numpy as np

import weft
from weft.models.builder import Builder
from weft.runtime.model.fastcall import _packed


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

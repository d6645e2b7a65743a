"""The source of a call: what Python can read, however much a model takes."""

from __future__ import annotations

import struct

from weft.runtime.model.fastcall import _packed


def test_thousands_of_addresses_are_packed() -> None:
    """Weights and values in turn: a + b + c + … is more than Python's compiler takes."""
    for count in (1, 3, 5000):
        scope: dict[str, object] = {}
        source = _packed([("weight", 0), ("value", 1)] * count, [7], scope, lambda kind, number: "8")
        assert eval(source, scope) == struct.pack("<2q", 7, 8) * count  # noqa: S307

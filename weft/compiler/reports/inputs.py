"""Arrays to try a model with, where nobody gives any."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.graph.ir import Array, TensorType


def random_array(dtype: str, shape: Sequence[int], random: np.random.Generator) -> Array:
    """Random elements of a type: floats around 0; whole numbers 0 and 1, which are good indices of anything."""
    kind = TensorType(dtype, shape).numpy
    if dtype == "string":
        return np.full(tuple(shape), "weft", object)
    if dtype == "bool":
        return random.random(tuple(shape)) < 0.5
    if dtype in ("uint8", "int8"):
        return random.integers(0, 128, tuple(shape)).astype(kind)
    if "int" in dtype:
        return random.integers(0, 2, tuple(shape)).astype(kind)
    if dtype.startswith("complex"):
        return (random.standard_normal(tuple(shape)) + 1j * random.standard_normal(tuple(shape))).astype(kind)
    return random.standard_normal(tuple(shape), "float32").astype(kind)

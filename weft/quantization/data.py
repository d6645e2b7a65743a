"""Calibration data in the forms that people keep it in, as what a model is called with.

An array for an input of the shape (4, 3, 224, 224) may be

    (4, 3, 224, 224)       one call
    (100, 4, 3, 224, 224)  stacked: 100 calls
    (400, 3, 224, 224)     samples in a row: 100 calls of 4
    (3, 224, 224)          one sample, for an input whose batch is 1

and several inputs are cut alike. A size that the model leaves open takes what comes; nothing is cut along it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft.core.errors import ArgumentError
from weft.graph.ir import Array, TensorType, Value

Shape = Sequence[Any]


def calls_of(inputs: Sequence[Value], item: Any) -> Iterator[dict[str, Array]]:
    """What the model is called with, from one item of calibration data: arrays by name, in order, or one array."""
    names = [value.name for value in inputs]
    if isinstance(item, Mapping):
        given = dict(item)
        if set(given) != set(names):
            raise ArgumentError(f"calibration data has the arrays {sorted(given)}; the model takes {', '.join(names)}")
    else:
        arrays = list(item) if isinstance(item, (list, tuple)) else [item]
        if len(arrays) != len(names):
            raise ArgumentError(f"calibration_data gives {len(arrays)} arrays for the inputs {', '.join(names)}")
        given = dict(zip(names, arrays))
    cut = {value.name: _cut(value, np.asarray(given[value.name])) for value in inputs}
    counts = {name: len(parts) for name, parts in cut.items()}
    if len(set(counts.values())) > 1:
        raise ArgumentError(f"calibration data gives inputs unequal numbers of calls: {counts}")
    for at in range(next(iter(counts.values()), 0)):
        yield {name: parts[at] for name, parts in cut.items()}


def _cut(value: Value, array: Array) -> Sequence[Array]:
    """An array for one input as the arrays of single calls."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    if shape is None or _fits(shape, array.shape):
        return [array]
    if _fits(shape, array.shape[1:]):
        return list(array)
    batch = shape[0] if shape else None
    if isinstance(batch, int) and batch == 1 and _fits(shape[1:], array.shape):
        return [array[None]]
    if isinstance(batch, int) and batch > 0 and _fits(shape[1:], array.shape[1:]):
        if len(array) % batch:
            raise ArgumentError(
                f"calibration data for the input {value.name!r}: {len(array)} samples are no whole number of batches "
                f"of {batch}"
            )
        return [array[at : at + batch] for at in range(0, len(array), batch)]
    raise ArgumentError(
        f"calibration data for the input {value.name!r} has the shape {list(array.shape)}; one call takes "
        f"{value.type!r}, and more of them are stacked along a new first axis or in a row along the first one"
    )


def _fits(shape: Shape, found: Sequence[int]) -> bool:
    return len(shape) == len(found) and all(not isinstance(d, int) or d == n for d, n in zip(shape, found))

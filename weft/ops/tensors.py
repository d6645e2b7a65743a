"""The tensor expressions of a node, as the compiler asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.graph.opspec import Compute, OpSpec
from weft.ops.movement_indices import fill, output_type


def tensors_of(spec: OpSpec, c: Compute, given: Sequence[Any]) -> list[Any] | None:
    """The outputs of a node as tensors; None where this use has no kernel. Those without elements need no operator."""
    if spec.compute is not None and "empties" not in spec.traits and all(0 in kind.dims for kind in c.outputs):
        return [fill(kind.dims, 0, output_type(c, at)) for at, kind in enumerate(c.outputs)]
    return spec.tensors(c, given)

"""The operators of the domain com.microsoft are made of ONNX's own (`expansion.py`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from weft.graph.ir import Value
from weft.graph.opspec import OpSpec
from weft.ops import expansion
from weft.ops.expansion import Builder

DOMAIN = "com.microsoft"

compose = functools.partial(expansion.compose, domain=DOMAIN)


def alias(name: str, shape_inputs: Sequence[int] = (), traits: str = "") -> OpSpec:
    """An operator of the domain that means what ONNX's operator of that name means."""

    def body(b: Builder, *inputs: Value | None) -> Any:
        return b.several(b.output_count, name, *inputs, **b.use.attributes)

    return compose(name, body, shape_inputs, traits=traits)

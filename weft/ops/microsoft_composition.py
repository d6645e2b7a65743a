"""How the operators of the domain com.microsoft are made of ONNX's own (`expansion.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.graph.ir import Node, TensorType, Type, Value
from weft.graph.opspec import Infer, OpSpec, register
from weft.graph.passes.support import Replacement, Scope
from weft.ops.elementwise_support import signature_of
from weft.ops.expansion import Builder, Unexpanded, by_expansion, types_by

DOMAIN = "com.microsoft"

Body = Callable[..., Any]


def compose(
    name: str,
    body: Body,
    shape_inputs: Sequence[int] = (),
    domain: str = DOMAIN,
    traits: str = "",
    infer: Callable[[Infer], Sequence[Type]] | None = None,
) -> OpSpec:
    """Registers an operator whose meaning is a body of other operators; `infer` where its types say more than those."""

    def made(b: Builder, *inputs: Value | None) -> list[Value]:
        found = body(b, *inputs)
        return (list(found) if isinstance(found, (tuple, list)) else [found])[: max(b.output_count, 1)]

    def expand(node: Node, scope: Scope) -> Replacement:
        if any(v is not None and not isinstance(v.type, TensorType) for v in node.inputs):
            return None
        b = Builder(node, scope)
        try:
            results = made(b, *node.inputs)
        except Unexpanded:
            return None
        return [node for at, value in enumerate(results) for node in b.last("Identity", [value], at)]

    evaluate, takes = by_expansion(expand, by_value=True), signature_of(body)
    types = infer or (lambda c: types_by(made, c))
    return register(name, types, evaluate, None, "opaque", shape_inputs, domain, expand, takes, traits=traits)


def alias(name: str, shape_inputs: Sequence[int] = (), traits: str = "") -> OpSpec:
    """An operator of the domain that means what ONNX's operator of that name means."""

    def body(b: Builder, *inputs: Value | None) -> Any:
        return b.several(b.output_count, name, *inputs, **b.use.attributes)

    return compose(name, body, shape_inputs, traits=traits)

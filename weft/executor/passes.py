"""The passes between a graph as it was loaded and the graph that is compiled."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from weft.core.knobs import knobs
from weft.graph.ir import Array, Graph, Value
from weft.graph.passes.algorithms import choose_algorithms
from weft.graph.passes.attention import fuse_attention
from weft.graph.passes.fill_kernels import fill_kernels
from weft.graph.passes.fix_weights import fix_weights
from weft.graph.passes.fold_strides import NARROW as FOLDED
from weft.graph.passes.fold_strides import fold_strides
from weft.graph.passes.normalize import normalize
from weft.graph.passes.precision import NARROW, lower_precision
from weft.graph.passes.quantized import quantized
from weft.graph.passes.specialize import specialize
from weft.graph.passes.turn_products import turn_products
from weft.targets.base import Target

MATRIX_SCOPE = "amx.tile"
"""The memory scope of a matrix unit's registers."""

BYTE_DOTS = "avx512vnni"
"""The feature of processors whose vectors multiply groups of bytes."""


def optimize(graph: Graph, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
    """The graph for these shapes and values of inputs, in the form that fusion and the kernels want.

    Inputs stay as they are, those that are bound to a value too, though nothing reads them then.
    """
    bound = specialize(graph, shapes)
    given = {v: values[v.name] for v in bound.inputs if v.name in values}
    if given:
        rest = [v for v in bound.inputs if v not in given]
        bound = bound.replace(inputs=rest, constants={**bound.constants, **given})
    made = normalize(quantized(bound))
    kept = {v.name: v for v in made.inputs}
    return made.replace(inputs=[kept.get(v.name, Value(v.name, v.type)) for v in graph.inputs])


def for_target(graph: Graph, target: Target, precision: str | None = None) -> Graph:
    """The graph in a precision, with the algorithms that a target proposes (its `algorithms` module)."""
    algorithms = _algorithms_of(target)
    narrow = None if precision is None else NARROW[precision]
    if algorithms is not None and knobs.attention:
        graph = fuse_attention(graph, algorithms.attention_proposer(target), narrow)
    if precision is not None:
        graph = lower_precision(graph, precision, _multiplies(target, precision))
    graph = turn_products(fill_kernels(graph))
    if algorithms is None:
        return graph
    if knobs.exact:
        return graph
    graph = fold_strides(graph, _folded_kinds(target))
    if knobs.fixed_weights:
        graph = fix_weights(graph, algorithms.weight_fixer(target))
    if knobs.winograd and any(node.op == "Conv" for node in graph.nodes):
        weights = sum(array.nbytes for array in graph.constants.values())
        graph = choose_algorithms(graph, algorithms.proposer(target, weights))
    return graph


def _multiplies(target: Target, precision: str) -> bool:
    """Whether a target multiplies narrow matrices faster than float32 ones."""
    return target.threads is not None or (MATRIX_SCOPE in target.scopes and precision == "bf16")


def _folded_kinds(target: Target) -> Collection[str]:
    """The types of which a few channels leave idle what multiplies them: a matrix unit, dot products of bytes."""
    if MATRIX_SCOPE in target.scopes:
        return FOLDED
    return ("uint8",) if BYTE_DOTS in target.features else ()


def _algorithms_of(target: Target) -> Any:
    name = f"{target.package}.algorithms"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return None

"""The passes between a graph as it was loaded and the graph that is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.core.knobs import knobs
from weft.graph.ir import Array, Graph, Value
from weft.graph.passes.algorithms import asked, choose_algorithms
from weft.graph.passes.attention import fuse_attention
from weft.graph.passes.cached_attention import cached_attention
from weft.graph.passes.causal_blocks import cut_causal
from weft.graph.passes.crop_windows import split_windows
from weft.graph.passes.few_bits import few_bits
from weft.graph.passes.fill_kernels import fill_kernels
from weft.graph.passes.fill_rows import fill_rows
from weft.graph.passes.fix_weights import fix_weights
from weft.graph.passes.fold_strides import fold_strides
from weft.graph.passes.history import run
from weft.graph.passes.merge_products import merge_products
from weft.graph.passes.narrow_weights import narrow_weights, plain_products
from weft.graph.passes.normalize import normalize
from weft.graph.passes.pad_channels import pad_channels
from weft.graph.passes.precision import NARROW, lower_precision
from weft.graph.passes.quantized import quantized
from weft.graph.passes.specialize import specialize
from weft.graph.passes.turn_products import turn_products
from weft.graph.passes.update_caches import update_caches
from weft.targets.base import Target


def optimize(graph: Graph, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Array]) -> Graph:
    """The graph for these shapes and values of inputs, in the form that fusion and the kernels want.

    Inputs stay as they are, those that are bound to a value too, though nothing reads them then.
    """
    bound = run(specialize, graph, shapes)
    inputs = bound.inputs
    given = {v: values[v.name] for v in inputs if v.name in values}
    if given:
        rest = [v for v in inputs if v not in given]
        bound = bound.replace(inputs=rest, constants={**bound.constants, **given})
    made = normalize(run(quantized, bound))
    kept = {v.name: v for v in made.inputs}
    return made.replace(inputs=[kept.get(v.name, Value(v.name, v.type)) for v in inputs])


def for_target(
    graph: Graph, target: Target, precision: str | None = None, typical: Mapping[str, int] | None = None
) -> Graph:
    """The graph in a precision, with the algorithms that a target proposes; open sizes are typically so large."""
    proposed = target.spec.algorithms
    if precision is not None and asked("* precision", precision, "fp32") == "fp32":
        precision = None
    narrow = None if precision is None else NARROW[precision]
    if proposed.merged is not None and not knobs.exact:
        graph = run(merge_products, graph, proposed.merged(target))
    if proposed.caches:
        graph = run(update_caches, graph)
    if proposed.loops_by_data:
        graph = run(cached_attention, graph)
    if proposed.attention is not None and knobs.attention:
        propose = proposed.attention(target)
        own = frozenset[str]() if knobs.exact else target.narrow_products
        fused = run(fuse_attention, graph, propose, narrow, own)
        if fused is not graph and asked("* attention", "fused", "apart") == "fused":
            graph = fused
        if proposed.causal_block is not None and not knobs.exact:
            graph = run(cut_causal, graph, proposed.causal_block, propose, narrow)
    if precision is not None:
        graph = run(lower_precision, graph, precision, narrow in target.narrow_products)
    if proposed.offload is not None:
        graph = run(proposed.offload, graph, target)
    waits = None if proposed.narrow is None or precision is not None else proposed.narrow(target)
    graph = run(plain_products, graph, target.narrow_products, waits)
    graph = run(turn_products, run(fill_kernels, graph))
    if knobs.exact:
        return graph
    if target.channels_last and knobs.layout:
        graph = fill_rows(fold_strides(graph, target.channels_last), target.channels_last)
    if proposed.few_bits is not None:
        graph = run(few_bits, graph, proposed.few_bits(target))
    if proposed.narrow is not None and precision is None:
        graph = run(narrow_weights, graph, proposed.narrow(target))
    if target.matrix is not None:
        graph = run(fold_strides, graph, target.matrix.dtypes)
    if proposed.weights is not None and knobs.fixed_weights:
        graph = run(fix_weights, graph, proposed.weights(target))
    if any(node.op == "Conv" for node in graph.nodes):
        if proposed.split_windows:
            graph = run(split_windows, graph)
        weights = sum(array.nbytes for array in graph.constants.values())
        prices = proposed.channels(target, weights) if proposed.channels is not None and knobs.pad_channels else None
        padded = graph if prices is None else run(pad_channels, graph, prices)
        if padded is not graph and asked("* channels", "padded", "as they are") == "padded":
            graph = padded
        if proposed.products is not None and knobs.winograd:
            sizes = {var: typical[name] for name, var in graph.symbols.items() if typical and name in typical}
            graph = run(choose_algorithms, graph, proposed.products(target, weights, sizes))
    return graph

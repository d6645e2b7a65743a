"""The passes between a graph as it was loaded and the graph that is compiled: `specialize`, `expand`, `quantized`,
those that bring it to one form (`graph/passes/normalize.py`), then the list for a target below.

Each is run by `graph/passes/history.py`, which notes for whoever watches what it changed, logs what it took, and with
`WEFT_VERIFY=1` checks the graph behind it: `weft inspect MODEL --print-after PASS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.dtypes import dtype
from weft.core.knobs import knobs
from weft.core.model import ROW_BYTES
from weft.graph.ir import Array, Graph, Value
from weft.graph.passes.algorithms import asked, choose_algorithms
from weft.graph.passes.attention import fuse_attention
from weft.graph.passes.cached_attention import cached_attention
from weft.graph.passes.causal_blocks import cut_causal
from weft.graph.passes.expand import expand
from weft.graph.passes.few_bits import few_bits
from weft.graph.passes.fill_kernels import fill_kernels
from weft.graph.passes.fill_rows import fill_rows
from weft.graph.passes.find_places import find_places
from weft.graph.passes.fix_weights import fix_weights
from weft.graph.passes.fold_strides import fold_strides
from weft.graph.passes.history import run
from weft.graph.passes.infer import infer
from weft.graph.passes.merge_products import merge_products
from weft.graph.passes.narrow_weights import narrow_weights, plain_products
from weft.graph.passes.normalize import normalize
from weft.graph.passes.pad_channels import pad_channels
from weft.graph.passes.precision import NARROW, lower_precision
from weft.graph.passes.quantized import quantized
from weft.graph.passes.signed_data import signed_data
from weft.graph.passes.specialize import specialize
from weft.graph.passes.turn_later import turn_later
from weft.graph.passes.turn_products import turn_products
from weft.graph.passes.update_caches import join_heads, update_caches, update_heads
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
    made = normalize(run(quantized, run(expand, infer(bound))))
    kept = {v.name: v for v in made.inputs}
    return made.replace(inputs=[kept.get(v.name, Value(v.name, v.type)) for v in inputs])


class Context:
    """What passes for a target ask: what it may do, in which precision, and what open sizes typically are."""

    def __init__(self, target: Target, precision: str | None, typical: Mapping[str, int]) -> None:
        # On a device a narrower type is never the slower one: there is nothing to try.
        if precision is not None and not target.on_device and asked("* precision", precision, "fp32") == "fp32":
            precision = None
        self.target, self.may, self.precision, self.typical = target, target.spec.algorithms, precision, typical
        self.narrow = None if precision is None else NARROW[precision]
        self.attention = self.may.attention(target) if self.may.attention is not None and knobs.attention else None
        self.waits = None if self.may.narrow is None or precision is not None else self.may.narrow(target)
        self.last = target.channels_last if knobs.layout else frozenset[str]()
        self.weights = -1

    def windows(self, graph: Graph) -> bool:
        """Whether there are convolutions; what their algorithms add to the weights is counted from the first time."""
        found = any(node.op == "Conv" for node in graph.nodes)
        if found and self.weights < 0:
            self.weights = sum(array.nbytes for array in graph.constants.values())
        return found

    def together(self) -> dict[tuple[str, str], int]:
        """How many channels of a place operators on a type fetch or multiply together."""
        rows = {("Conv", name): ROW_BYTES // int(dtype(name).bytes) for name in self.last}
        return {**rows, **(self.may.dots(self.target) if self.may.dots is not None else {})}

    def sizes(self, graph: Graph) -> dict[Any, int]:
        """What the open sizes of a graph typically are."""
        return {var: self.typical[name] for name, var in graph.symbols.items() if name in self.typical}


@dataclass(frozen=True)
class Pass:
    """One pass: what it takes beside the graph, as a tuple (anything else: it does not run)."""

    step: Callable[..., Graph]
    given: Callable[[Context, Graph], Any]
    is_exact: bool = False
    """Whether it runs where results must be those of the model's own arithmetic."""
    choice: tuple[str, str, str] | None = None
    """Its name, with, without: the tuner may want the graph as it was."""


def offload(graph: Graph, own: Callable[..., Graph], target: Target) -> Graph:
    """What a target takes out of a graph by a pass of its own."""
    return own(graph, target)


PASSES: tuple[Pass, ...] = (
    Pass(merge_products, lambda c, g: c.may.merged and (
        c.may.merged(c.target), c.may.streams and c.may.streams(c.target),
    )),
    Pass(turn_later, lambda c, g: c.last and (c.last | {"float32"} if c.narrow in c.last else c.last,), True),
    Pass(update_caches, lambda c, g: c.may.caches and (), True),
    Pass(update_heads, lambda c, g: c.may.caches and (), True),
    Pass(find_places, lambda c, g: c.may.loops_by_data and (), True),
    Pass(cached_attention, lambda c, g: c.may.loops_by_data and (), True),
    Pass(fuse_attention, lambda c, g: c.attention and (
        c.attention, c.narrow, frozenset() if knobs.exact else c.target.narrow_products,
        c.sizes(g) if c.may.open_attention else None,
    ), True, ("* attention", "fused", "apart")),
    Pass(join_heads, lambda c, g: c.attention and c.may.joined and c.may.caches and (c.may.joined(c.target),), True),
    Pass(cut_causal, lambda c, g: c.attention and c.may.causal_block is not None and (
        c.may.causal_block, c.attention, c.narrow,
    )),
    Pass(lower_precision, lambda c, g: c.precision and (c.precision, c.narrow in c.target.narrow_products), True),
    Pass(offload, lambda c, g: c.may.offload and (c.may.offload, c.target), True),
    Pass(signed_data, lambda c, g: c.may.signed and c.may.signed(c.target) and (), True),
    Pass(plain_products, lambda c, g: (c.target.narrow_products, c.waits), True),
    Pass(fill_kernels, lambda c, g: (c.may.skips_taps,), True),
    Pass(turn_products, lambda c, g: (), True),
    Pass(fold_strides, lambda c, g: c.last and (c.last,)),
    Pass(fill_rows, lambda c, g: (together := c.together()) and (together,), True),
    Pass(few_bits, lambda c, g: c.may.few_bits and (c.may.few_bits(c.target),)),
    Pass(narrow_weights, lambda c, g: c.waits and (c.waits,)),
    Pass(fold_strides, lambda c, g: c.target.matrix and (c.target.matrix.dtypes,)),
    Pass(fix_weights, lambda c, g: c.may.weights and knobs.fixed_weights and (c.may.weights(c.target),)),
    Pass(pad_channels, lambda c, g: (
        c.windows(g) and c.may.channels and knobs.pad_channels
        and (prices := c.may.channels(c.target, c.weights)) is not None and (prices,)
    ), choice=("* channels", "padded", "as they are")),
    Pass(choose_algorithms, lambda c, g: c.windows(g) and c.may.products and knobs.winograd and (
        c.may.products(c.target, c.weights, c.sizes(g)),
    )),
)  # fmt: skip
"""The passes for a target, in order."""


def for_target(
    graph: Graph, target: Target, precision: str | None = None, typical: Mapping[str, int] | None = None
) -> Graph:
    """The graph in a precision, with the algorithms that a target proposes; open sizes are typically so large."""
    context = Context(target, precision, typical or {})
    for one in PASSES:
        given = one.given(context, graph) if one.is_exact or not knobs.exact else None
        if isinstance(given, tuple):
            made = run(one.step, graph, *given)
            if made is graph or one.choice is None or asked(*one.choice) == one.choice[1]:
                graph = made
    return graph

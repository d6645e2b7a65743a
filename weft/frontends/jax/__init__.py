"""JAX: functions, jitted or plain, to graphs, by way of the jaxpr.

source       what the user gave, traced; how it is called
importer     a jaxpr to a Graph, equation by equation
table        the converters by the names of primitives; they stand in elementwise, special, movement, indexing,
             reductions, windows, layers, control, random
emit         what converters write nodes with: subgraphs, and JAX's own definitions written out

Why the jaxpr, and not StableHLO: it is an object in this process, whose equations carry the user's line and whose
constants share their memory; it keeps what StableHLO has taken apart (cumsum, argmax, top_k, erf_inv, threefry, sort by
keys, products and convolutions with their dimension numbers as data), and it needs no reader of MLIR, whose Python
bindings are jaxlib's own. What only StableHLO can do is to come from a file without the program (`jax.export`).
"""

from weft.frontends.jax.source import load

__all__ = ["load"]

"""Weights of float32 that hold no more than 16 bits are kept as those, where few rows wait for them.

    %y = MatMul(%x, const w)     ->     %y = weft.NarrowMatMul(%x, const narrow)        w as bfloat16, or float16

Weights (or both operands) of float8 come from `quantized`, and stay where a machine multiplies them, or waits for them;
with several rows of float32 a machine that multiplies both narrow types gets such weights as bfloat16, which hold them.

Nothing is rounded: every weight has a number of the narrow type for its own. (A model with such weights and float32
activations has a Cast before each product, which folding has computed.) Weights are widened in registers, products and
sums are float32 as before; half as many bytes are read. How many rows are few, a callback says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container

import numpy as np

from weft.core import model
from weft.expr.intrinsics import FLOAT8_FORMS
from weft.graph.ir import NUMPY_TYPES, Array, Graph, Node, TensorType
from weft.graph.opspec import has
from weft.graph.passes.support import Replacement, Scope, rewritten, swap

NAME, DOMAIN = "NarrowMatMul", "weft"

Worth = Callable[[int, int], bool]
"""Whether a product of so many rows with a weight of so many bytes waits for the weight."""


def narrow_weights(graph: Graph, worth: Worth) -> Graph:
    """The graph with such weights narrow; the same object where there are none."""
    return rewritten(graph, lambda node, scope: _narrow(node, scope, worth))


def _narrow(node: Node, scope: Scope, worth: Worth) -> Replacement:
    if node.domain or not has(node, "product") or len(node.inputs) < 2:
        return None
    x, weight = node.inputs[:2]
    array = scope.constant(weight)
    if array is None or x is None or weight is None or not isinstance(x.type, TensorType) or not x.type.is_static:
        return None
    if array.dtype != np.float32 or array.ndim != 2 or not worth(math.prod(x.type.static[:-1]), array.nbytes):
        return None
    if node.op == "Gemm":
        plain = all(float(node.attributes.get(name, 1.0)) == 1 for name in ("alpha", "beta"))
        if not plain or node.attributes.get("transA", 0):
            return None
        array = array.T if node.attributes.get("transB", 0) else array
    found = narrow_form(array)
    if found is None:
        return None
    inputs = [x, scope.new_constant(found, f"{weight.name}_narrow")]
    if node.op != "Gemm":
        return [Node(NAME, inputs, node.outputs, {}, node.name, node.origin, DOMAIN)]
    product = scope.make(node, NAME, inputs, DOMAIN)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return product if bias is None else swap(node, "Add", [product, bias])


def plain_products(graph: Graph, known: Container[str], worth: Worth | None) -> Graph:
    """The graph with products of float8 as those of float32, where a machine has none and does not wait for them."""

    def plain(node: Node, scope: Scope) -> Replacement:
        if (node.op, node.domain) != (NAME, DOMAIN) or None in node.inputs:
            return None
        (a, b), (x, w) = node.inputs, (value.tensor for value in node.inputs if value is not None)
        if w.dtype not in FLOAT8_FORMS or (x.dtype in known and w.dtype in known):
            return None
        if x.dtype == "float32" and worth is not None and x.is_static and scope.constant(b) is not None:
            rows, takes_rows = math.prod(x.static[:-1]), w.dtype in known and "bfloat16" in known
            if worth(rows, 4 * math.prod(w.static)) and not (rows > 1 and takes_rows):
                return None
        wide = []
        for value in (a, b):
            array = scope.constant(value)
            if array is not None:
                value = scope.new_constant(array.astype(np.float32), f"{node.outputs[0].name}_wide")
            elif value is not None and value.tensor.dtype != "float32":
                value = scope.make(node, "Cast", [value], to=1)
            wide.append(value)
        return swap(node, "MatMul", wide)

    return rewritten(graph, plain)


def narrow_form(array: Array) -> Array | None:
    """The array in a type of 16 bits that holds every element of it; None where there is none."""
    flat = array.ravel(order="K")  # a transposed matrix is not copied
    for kind, fits in ((NUMPY_TYPES["bfloat16"], _fits_bfloat16), (np.float16, _fits_float16)):
        if all(fits(flat[at : at + model.SAMPLED_WEIGHTS]) for at in range(0, flat.size, model.SAMPLED_WEIGHTS)):
            return np.ascontiguousarray(array.astype(kind))
    return None


def _fits_bfloat16(flat: Array) -> bool:
    return not (flat.view(np.uint32) & 0xFFFF).any()


def _fits_float16(flat: Array) -> bool:
    with np.errstate(over="ignore"):
        return bool((flat.astype(np.float16).astype(np.float32) == flat).all())

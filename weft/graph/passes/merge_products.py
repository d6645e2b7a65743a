"""Products of one value with several constant matrices become one product with the matrices side by side.

    %q = MatMul(%x, const a)                    %m = MatMul(%x, const [a b c])
    %k = MatMul(%x, const b)            ->      %q, %k, %v = Split(%m, axis = -1)
    %v = MatMul(%x, const c)

The same for Gemm, MatMulNBits and narrow weights, and for constant vectors that are added to products, or that these
are multiplied by (scales of float8). Parts that are all cut into heads are cut before the Split, so that whoever reads
a head reads it where it lies:

    %h = Reshape(%q, [.., 12, 64]), …   ->      %h, … = Split(Reshape(%m, [.., 36, 64]), axis = -2)

Of two such products of few rows that elementwise work reads (the gate of a hidden layer), the columns take turns: who
computes neighbours has what goes together, and the work is its epilogue (`fuse`):

    %m = MatMul(%x, const [a0 b0 a1 b1 …]);     Mul(Swish(%m[…, 0::2]), %m[…, 1::2])

A machine gets one larger kernel instead of several, and reads x once. Elementwise work on the parts is an epilogue of
none of them any more. Whether that is worth it, a callback says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core import model
from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.passes.layout import is_elementwise
from weft.graph.passes.narrow_weights import DOMAIN, NAME, narrow_form
from weft.graph.passes.support import Replacement, Scope, count_uses, rewritten
from weft.graph.shapes import product, same_shape, times

Worth = Callable[[int, int, Sequence[int], bool], bool]
"""For rows (0: an open number), elements of a row, columns of each matrix: whether to merge. The last one says whether
elementwise work on the parts would have been epilogues."""
Streams = Callable[[int, int], bool]
"""For rows and elements of a row: whether a product takes columns that take turns together."""


@dataclass(frozen=True)
class _Part:
    """A product, its columns, and, where a constant vector is added to it or multiplied by it, what that gives."""

    node: Node
    columns: int
    bias: Array | None
    made: Value
    """What the product and the sum give."""
    by: str = "none"
    """Add, or Mul."""


def merge_products(graph: Graph, worth: Worth, streams: Streams | None = None) -> Graph:
    """The graph with such products merged where that is worth it; the same object where there are none."""
    merged: dict[Value, tuple[list[_Part], bool]] = {}
    gone: set[Value] = set()
    readers = graph.consumers()
    for parts in _groups(graph, readers):
        x = parts[0].node.inputs[0]
        assert x is not None
        rows = product(x.tensor.dims[:-1])
        shared = any(is_elementwise(reader) for part in parts for reader in readers.get(part.made, ()))
        inner, columns = x.tensor.dims[-1], [part.columns for part in parts]
        if not worth(rows if isinstance(rows, int) else 0, int(inner), columns, shared):  # type: ignore[arg-type]
            continue
        few = streams is not None and isinstance(rows, int) and streams(rows, int(inner))  # type: ignore[arg-type]
        merged[parts[0].node.outputs[0]] = parts, few and shared and len(parts) == 2 and columns[0] == columns[1]
        gone.update(v for part in parts for v in (part.node.outputs[0], part.made))
    if not merged:
        return graph

    def rule(node: Node, scope: Scope) -> Replacement:
        """Products of one value with constant matrices are one product."""
        if scope.parent is not None or not node.outputs or node.outputs[0] not in gone:
            return None
        found = merged.get(node.outputs[0])
        return [] if found is None else _merge(*found, node, scope)

    return _heads(rewritten(graph, rule))


# ------------------------------------------------------------------------------------------------------------- products


def _groups(graph: Graph, readers: dict[Value, list[Node]]) -> list[list[_Part]]:
    """Products that may be merged, in the order of the graph; two at least in each list."""
    uses = count_uses(graph)
    found: dict[Any, list[_Part]] = {}
    for node in graph.nodes:
        key = _key(node, graph)
        if key is None:
            continue
        columns = key[1]
        part = _with_bias(node, columns, graph, readers, uses[node.outputs[0]] == 1)
        found.setdefault((node.inputs[0], part.by, *key[0]), []).append(part)
    return [parts for parts in found.values() if len(parts) > 1]


def _key(node: Node, graph: Graph) -> tuple[tuple[Any, ...], int] | None:
    """What products must have in common to be merged, and the columns of one; None for what is no such product."""
    x, weight = [*node.inputs, None, None][:2]
    if x is None or not isinstance(x.type, TensorType) or x.type.shape is None:
        return None
    if weight is None or weight not in graph.constants:
        return None
    if not x.type.dims or not isinstance(x.type.dims[-1], int):
        return None
    array = graph.constants[weight]
    if node.op == "MatMul" and not node.domain and array.ndim == 2 and "output_dtype" not in node.attributes:
        return ("MatMul", array.dtype, _narrow_type(array)), array.shape[1]
    if (node.op, node.domain) == (NAME, DOMAIN) and array.ndim == 2:
        return (NAME, array.dtype), array.shape[1]
    if node.op == "Gemm" and not node.domain:
        turned, bias = int(node.attributes.get("transB", 0)), node.inputs[2] if len(node.inputs) > 2 else None
        columns = array.shape[1 - turned]
        plain = all(float(node.attributes.get(name, 1.0)) == 1 for name in ("alpha", "beta"))
        known = bias is None or bias in graph.constants and graph.constants[bias].shape == (columns,)
        if not plain or not known or node.attributes.get("transA", 0):
            return None
        return ("Gemm", array.dtype, _narrow_type(array), turned, bias is None), columns
    if node.op != "MatMulNBits" or node.domain != "com.microsoft":
        return None
    given = [*node.inputs[2:], *[None] * 4][:4]
    if given[2] is not None or any(v is not None and v not in graph.constants for v in given):
        return None
    arrays = [None if v is None else graph.constants[v].dtype for v in given]
    names = ("K", "bits", "block_size", "accuracy_level")
    return ("NBits", array.dtype, *arrays, *(node.attributes.get(n) for n in names)), int(node.attributes["N"])


def _narrow_type(array: Array) -> Any:
    """The type of 16 bits that the first weights would fit into: `narrow_weights` should find all of one kind."""
    found = narrow_form(array.flat[: model.SAMPLED_WEIGHTS]) if array.dtype == np.float32 else None
    return None if found is None else found.dtype


def _with_bias(node: Node, columns: int, graph: Graph, readers: dict[Value, list[Node]], alone: bool) -> _Part:
    """A product with the constant vector that its only reader adds; of narrow weights, or multiplies."""
    output = node.outputs[0]
    plain = _Part(node, columns, None, output)
    add = readers.get(output, [])
    if not alone or len(add) != 1 or add[0].op not in ("Add", *(["Mul"] if node.op == NAME else [])) or add[0].domain:
        return plain
    others = [v for v in add[0].inputs if v is not output]
    array = graph.constants.get(others[0]) if len(others) == 1 and others[0] is not None else None
    kind = output.tensor
    if array is None or array.shape != (columns,) or array.dtype != kind.numpy:
        return plain
    return _Part(node, columns, array, add[0].outputs[0], add[0].op)


def _merge(parts: Sequence[_Part], turns: bool, node: Node, scope: Scope) -> list[Node]:
    """The merged product, with its bias, and the Split or, where columns take turns, the slices that give the parts."""
    name, x = node.outputs[0].name, node.inputs[0]

    def joined(at: int, axis: int | None) -> Value | None:
        """An input of all parts; one without an axis is flat, so many numbers for each column."""
        arrays = [scope.constant(part.node.inputs[at]) for part in parts if len(part.node.inputs) > at]
        known = [array for array in arrays if array is not None]
        if known and axis is None:
            made = beside([array.reshape(part.columns, -1) for array, part in zip(known, parts)], 0).reshape(-1)
        elif known:
            made = beside(known, axis or 0)
        return scope.new_constant(made, f"{name}_merged") if known else None

    def beside(arrays: Sequence[Array], axis: int) -> Array:
        shape = arrays[0].shape
        turned = np.stack(arrays, axis + 1) if turns else np.concatenate(arrays, axis)
        return turned.reshape(*shape[:axis], -1, *shape[axis + 1 :])

    if node.op in ("MatMul", NAME):
        made = scope.make(node, node.op, [x, joined(1, 1)], node.domain)
    elif node.op == "Gemm":
        axis = 0 if node.attributes.get("transB", 0) else 1
        made = scope.make(node, "Gemm", [x, joined(1, axis), joined(2, 0)], **node.attributes)
    else:
        attributes = {**node.attributes, "N": sum(part.columns for part in parts)}
        inputs = [x, joined(1, 0), joined(2, None), joined(3, None), None, joined(5, None)]
        while inputs[-1] is None:
            inputs.pop()
        made = scope.make(node, "MatMulNBits", inputs, node.domain, **attributes)
    biases = [part.bias for part in parts if part.bias is not None]
    if biases:
        made = scope.make(node, parts[0].by, [made, scope.new_constant(beside(biases, 0), f"{name}_bias")])
    if turns:
        ends = [scope.new_constant(np.array([n]), f"{name}_turns") for n in (2**31 - 1, -1, len(parts))]
        starts = [scope.new_constant(np.array([at]), f"{name}_turn") for at in range(len(parts))]
        return [
            Node("Slice", [made, start, *ends], [part.made], {}, node.name, node.origin)
            for part, start in zip(parts, starts)
        ]
    columns = np.array([part.columns for part in parts], np.int64)
    inputs = [made, scope.new_constant(columns, f"{name}_columns")]
    return [Node("Split", inputs, [part.made for part in parts], {"axis": -1}, node.name, node.origin)]


# ---------------------------------------------------------------------------------------------------------------- heads


def _heads(graph: Graph) -> Graph:
    """The graph with parts cut into heads before they are split off, where all of them are."""
    readers, uses, gone = graph.consumers(), count_uses(graph), set[Value]()

    def rule(node: Node, scope: Scope) -> Replacement:
        """Columns are cut into heads before they are split."""
        if scope.parent is not None or not node.outputs:
            return None
        if node.outputs[0] in gone:
            return []
        if node.op != "Split" or node.domain or node.attributes.get("axis") != -1:
            return None
        reshapes = [cut for v in node.outputs if uses[v] == 1 for cut in readers.get(v, ())]
        reshapes = [cut for cut in reshapes if cut.op == "Reshape" and not cut.domain]
        axis = _common_axis(node, reshapes, graph) if len(reshapes) == len(node.outputs) else None
        if axis is None:
            return None
        gone.update(cut.outputs[0] for cut in reshapes)
        shape = np.array(scope.constant(reshapes[0].inputs[1]))
        counts = np.array([int(cut.outputs[0].tensor.dims[axis]) for cut in reshapes], np.int64)  # type: ignore[arg-type]
        shape[axis] = counts.sum()
        name = node.outputs[0].name
        whole = scope.make(node, "Reshape", [node.inputs[0], scope.new_constant(shape, f"{name}_shape")])
        inputs = [whole, scope.new_constant(counts, f"{name}_heads")]
        outputs = [cut.outputs[0] for cut in reshapes]
        return [Node("Split", inputs, outputs, {"axis": axis}, node.name, node.origin)]

    return rewritten(graph, rule)


def _common_axis(split: Node, reshapes: Sequence[Node], graph: Graph) -> int | None:
    """The axis along which all of the cut parts lie beside each other in memory; None where there is none."""
    source = split.inputs[0]
    shapes = [cut.outputs[0].tensor.dims for cut in reshapes]
    known = all(cut.inputs[1] in graph.constants for cut in reshapes)
    if source is None or not known or any(len(shape) != len(shapes[0]) for shape in shapes):
        return None
    rows = [d for d in source.tensor.dims[:-1] if d != 1]
    for axis in range(len(shapes[0])):
        lead, after = shapes[0][:axis], shapes[0][axis + 1 :]
        inner = product(after)
        fits = all(
            same_shape(shape[:axis], lead)
            and same_shape(shape[axis + 1 :], after)
            and isinstance(shape[axis], int)
            and times(shape[axis], inner) == part.tensor.dims[-1]
            for shape, part in zip(shapes, split.outputs)
        )
        if fits and isinstance(inner, int) and same_shape([d for d in lead if d != 1], rows):
            return axis
    return None

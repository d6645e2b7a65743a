"""Transposes go where they cost nothing: behind elementwise work, past products, and next to convolutions.

    %t = Transpose(%m, perm = [0, 3, 1, 2])                  %s = Mul(%m, %scale)           an epilogue of what makes m
    %s = Mul(%t, %scale)                             ->      %a = Add(%s, %r)
    %a = Add(%s, Transpose(%r, …))                           %y = Transpose(%a, …)

    %f = Reshape(%conv)              [n, c, h * w]           %t = Transpose(%conv)          [n, h, w, c], in its memory
    %y = Transpose(%f)               [n, h * w, c]   ->      %y = Reshape(%t)

    %t = Transpose(%x, perm = [1, 0, 2])                     %m = MatMul(%x, const)
    %m = MatMul(%t, const)                           ->      %y = Transpose(%m, …)          read by attention as it lies

    %h = Transpose(%a, perm = [2, 0, 1, 3])                  %h = Transpose(%a, perm = [0, 2, 1, 3])
    %m = Gemm(Reshape(%h), …)                        ->      %m = Gemm(Reshape(%h), …)
    %y = Transpose(Reshape(%m), perm = [1, 0, 2])            %y = Reshape(%m)

For machines where all channels of a place lie together between kernels (`Target.channels_last`): there a Transpose that
brings them last, or from there, moves nothing, and what stood before and behind it becomes one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from weft.graph.ir import Array, Graph, Node, TensorType, Value
from weft.graph.opspec import has
from weft.graph.passes.layout import CHANNEL, is_elementwise
from weft.graph.passes.simplify_movement import reshape, transpose
from weft.graph.passes.support import Replacement, Scope, swap, until_stable


def turn_later(graph: Graph, together: Collection[str]) -> Graph:
    """The graph with such transposes moved, of the types whose channels lie together; else the same object."""
    if not any(node.op == "Transpose" for node in graph.nodes):
        return graph
    readers = graph.consumers()

    def rule(node: Node, scope: Scope) -> Replacement:
        kind = node.outputs[0].type if node.outputs else None
        if node.domain or not isinstance(kind, TensorType) or not kind.is_static or kind.dtype not in together:
            return None
        if node.op == "Transpose":
            return transpose(node, scope) or _of_places(node, scope) or _of_rows(node, scope)
        if node.op == "Reshape":
            return reshape(node, scope) or _to_places(node, scope)
        if node.op == "MatMul":
            return _past_product(node, scope, readers)
        return _behind(node, scope) if _is_plain(node) else None

    return until_stable(graph, rule)


def _perm(node: Node) -> list[int]:
    rank = len(node.outputs[0].tensor.dims)
    return [int(n) for n in node.attributes.get("perm") or range(rank)[::-1]]


def _first(rank: int) -> list[int]:
    """The order that brings channels from the end to where they belong."""
    return [0, rank - 1, *range(1, rank - 1)]


def _last(rank: int) -> list[int]:
    """The order that brings channels to the end."""
    return [0, *range(2, rank), CHANNEL]


def _sizes(value: Value | None) -> tuple[int, ...]:
    kind = None if value is None else value.type
    return kind.static if isinstance(kind, TensorType) and kind.is_static else ()


def _is_plain(node: Node) -> bool:
    """Whether all inputs of a node meet in the same place, lined up from the right."""
    if len(node.outputs) != 1 or has(node, "channelwise") or "axis" in node.attributes:
        return False
    return is_elementwise(node)


# ------------------------------------------------------------------------------------------------- elementwise before


def _behind(node: Node, scope: Scope) -> Replacement:
    """f(Transpose(x), …) -> Transpose(f(x, …)), where each operand can be had in x's order."""
    shape = _sizes(node.outputs[0])
    turned = [scope.producer(v, "Transpose") for v in node.inputs if v is not None and _sizes(v) == shape]
    order = next((_perm(one) for one in turned if one is not None and _is_free(one, scope)), None)
    if order is None:
        return None
    given = [v for v in node.inputs if v is not None]
    found = {v: _in_order(v, order, node, scope) for v in given}
    if None in found.values():
        return None
    inputs = [None if v is None or (make := found[v]) is None else make() for v in node.inputs]
    return swap(node, "Transpose", [scope.make(node, node.op, inputs, **node.attributes)], perm=order)


def _is_free(node: Node, scope: Scope) -> bool:
    """Whether a Transpose may stand behind what reads it: it turns channels, or the rows of a product."""
    order = _perm(node)
    if len(order) >= 4 and order == _first(len(order)):
        return True
    maker = scope.producer(node.inputs[0], "MatMul", "Add")
    return len(order) >= 3 and order[-1] == len(order) - 1 and maker is not None


def _in_order(value: Value, order: Sequence[int], node: Node, scope: Scope) -> Callable[[], Value | None] | None:
    """How an operand is had before a transposition; None where that costs more than it brings."""
    shape, array = _sizes(node.outputs[0]), scope.constant(value)
    if array is not None:
        return lambda: _constant(array, value, order, node, scope)
    before = scope.producer(value, "Transpose")
    if before is not None and _perm(before) == list(order):
        return lambda: before.inputs[0]
    maker = scope.producer(value)
    if maker is None or _sizes(value) != shape or list(order) != _first(len(shape)) or not _is_convolved(maker, scope):
        return None
    return lambda: scope.make(node, "Transpose", [value], perm=_last(len(shape)))


def _constant(array: Array, value: Value, order: Sequence[int], node: Node, scope: Scope) -> Value:
    """A constant that meets a tensor before it is turned as the given one does after."""
    if array.size == 1 or array.ndim > len(order):
        return value
    whole = array.reshape((1,) * (len(order) - array.ndim) + array.shape)
    turned = np.ascontiguousarray(whole.transpose(np.argsort(order)))
    first = next((at for at, size in enumerate(turned.shape) if size != 1), turned.ndim)
    return scope.new_constant(turned.reshape(turned.shape[first:]), f"{node.outputs[0].name}_constant")


def _is_convolved(maker: Node, scope: Scope) -> bool:
    """Whether a node makes images whose channels lie together: a convolution, or elementwise work on what one makes."""
    for _ in range(8):
        if has(maker, "convolution"):
            return True
        large = [v for v in maker.inputs if v is not None and _sizes(v) == _sizes(maker.outputs[0])]
        before = scope.producer(large[0]) if large and is_elementwise(maker) else None
        if before is None:
            return False
        maker = before
    return False


# -------------------------------------------------------------------------------------------------- places of an image


def _of_places(node: Node, scope: Scope) -> Replacement:
    """Transpose(Reshape(images to [n, c, places])) -> Reshape(Transpose(images))."""
    before = scope.producer(node.inputs[0], "Reshape")
    source = before.inputs[0] if before is not None else None
    given, flat = _sizes(source), _sizes(node.inputs[0])
    if source is None or len(flat) != 3 or _perm(node) != [0, 2, 1] or len(given) < 4 or given[:2] != flat[:2]:
        return None
    turned = scope.make(node, "Transpose", [source], perm=_last(len(given)))
    return swap(node, "Reshape", [turned, shape_constant(node, flat[0], flat[2], flat[1], scope=scope)])


def _to_places(node: Node, scope: Scope) -> Replacement:
    """Reshape(Transpose(rows of places to [n, c, places]) to images) -> Transpose(Reshape(rows))."""
    before = scope.producer(node.inputs[0], "Transpose")
    source = before.inputs[0] if before is not None else None
    made, flat = _sizes(node.outputs[0]), _sizes(node.inputs[0])
    if before is None or source is None or len(flat) != 3 or len(made) < 4 or made[:2] != flat[:2]:
        return None
    if _perm(before) != [0, 2, 1]:
        return None
    images = scope.make(node, "Reshape", [source, shape_constant(node, made[0], *made[2:], made[1], scope=scope)])
    return swap(node, "Transpose", [images], perm=_first(len(made)))


def shape_constant(node: Node, *sizes: int, scope: Scope) -> Value:
    """A shape as an operand of what a node becomes."""
    return scope.new_constant(np.array(sizes, np.int64), f"{node.outputs[0].name}_shape")


# ------------------------------------------------------------------------------------------------------------- products


def _past_product(node: Node, scope: Scope, readers: Mapping[Value, Sequence[Node]]) -> Replacement:
    """MatMul(Transpose(x), const) -> Transpose(MatMul(x, const)), where rows change places and attention reads it."""
    before, weight = scope.producer(node.inputs[0], "Transpose"), scope.constant(node.inputs[1])
    if before is None or weight is None or weight.ndim != 2 or node.attributes:
        return None
    order = _perm(before)
    if len(order) < 3 or order[-1] != len(order) - 1 or not _only_attention(node.outputs[0], scope, readers):
        return None
    return swap(node, "Transpose", [scope.make(node, "MatMul", [before.inputs[0], node.inputs[1]])], perm=order)


def _only_attention(value: Value, scope: Scope, readers: Mapping[Value, Sequence[Node]]) -> bool:
    """Whether a value is read by attention alone, through what it reads its operands through and sums with constants.
    Those behind a node are still as they were."""
    waiting, seen = [value], 0
    while waiting:
        one = waiting.pop()
        found = readers.get(one, ())
        seen += 1
        if not found or one in scope.graph.outputs or seen > 64:
            return False
        for reader in found:
            if reader.op == "Attention" or (reader.op == "MatMul" and scope.constant(reader.inputs[1]) is None):
                continue
            others = [v for v in reader.inputs if v is not None and v is not one]
            is_sum = reader.op == "Add" and all(scope.constant(v) is not None for v in others)
            if reader.domain or not (is_sum or has(reader, "moves")):
                return False
            waiting += reader.outputs
    return True


def _of_rows(node: Node, scope: Scope) -> Replacement:
    """Transpose(Reshape(Gemm(Reshape(Transpose(x)), …))) of the first two axes: the inner one does it, too."""
    shape = _sizes(node.inputs[0])
    if len(shape) < 3 or _perm(node) != [1, 0, *range(2, len(shape))]:
        return None
    apart = scope.single(node.inputs[0], "Reshape")
    product = scope.single(apart.inputs[0], "Gemm") if apart is not None else None
    if product is None or "transA" in product.attributes or len(product.inputs) < 2:
        return None
    bias = scope.constant(product.inputs[2]) if len(product.inputs) > 2 and product.inputs[2] is not None else None
    if scope.constant(product.inputs[1]) is None or (len(product.inputs) > 2 and (bias is None or bias.ndim > 1)):
        return None
    joined = scope.single(product.inputs[0], "Reshape")
    inner = scope.single(joined.inputs[0], "Transpose") if joined is not None else None
    if joined is None or inner is None or inner.inputs[0] is None:
        return None
    rows, given = _sizes(joined.outputs[0]), _sizes(inner.outputs[0])
    if len(given) < 3 or given[:2] != shape[:2] or math.prod(given[:2]) != rows[0]:
        return None
    order = _perm(inner)
    turned = scope.make(inner, "Transpose", [inner.inputs[0]], perm=[order[1], order[0], *order[2:]])
    again = scope.make(joined, "Reshape", [turned, shape_constant(joined, *rows, scope=scope)])
    made = scope.make(product, "Gemm", [again, *product.inputs[1:]], **product.attributes)
    return swap(node, "Reshape", [made, shape_constant(node, *_sizes(node.outputs[0]), scope=scope)])

"""Rules of `simplify` for operators that move elements without changing them.

Squeeze, Unsqueeze, Flatten        -> Reshape with a constant shape
Reshape(Reshape(x))                -> Reshape(x)
Transpose(Transpose(x))            -> Transpose(x); a Transpose that only moves sizes of 1 -> Reshape
Identity, Dropout, Cast to the same type, Concat or Split of one, a Pad of nothing, a Slice of everything, …  -> x
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.graph.interpreter import operator_of
from weft.graph.ir import Array, Dim, Node, TensorType, Value
from weft.graph.opspec import has
from weft.graph.passes.infer import same_type
from weft.graph.passes.support import Replacement, Rule, Scope, swap


def identity(node: Node, scope: Scope) -> Replacement:
    """Identity(x) -> x."""
    return node.inputs[0]


def dropout(node: Node, scope: Scope) -> Replacement:
    """Dropout(x) -> x, unless it is told to train."""
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if len(node.outputs) != 1 or (training is not None and scope.scalar(training) != 0):
        return None
    return node.inputs[0]


def _unchanged(node: Node) -> bool:
    kind = None if node.inputs[0] is None else node.inputs[0].type
    return isinstance(kind, TensorType) and kind.shape is not None and same_type(kind, node.outputs[0].type)


def reshape(node: Node, scope: Scope) -> Replacement:
    """Reshapes become one Reshape with its sizes written out, or nothing."""
    source = node.inputs[0]
    if source is None:
        return None
    if _unchanged(node):
        return source
    wanted = _sizes(node.outputs[0])
    if wanted is None:
        return None
    reduction = _reduction_of_shape(node, scope)
    if reduction is not None:
        return reduction
    before = scope.producer(source)
    origin = before.inputs[0] if before is not None and has(before, "reshapes") else None
    if origin is not None:
        return origin if same_type(origin.type, node.outputs[0].type) else _reshape_to(node, origin, wanted, scope)
    written = scope.constant(node.inputs[1]) if node.op == "Reshape" and len(node.inputs) > 1 else None
    if written is not None and written.tolist() == wanted and "allowzero" not in node.attributes:
        return None
    return _reshape_to(node, source, wanted, scope)


def _reduction_of_shape(node: Node, scope: Scope) -> Replacement:
    """A reshape that only adds or drops the reduced sizes of 1 -> the reduction keeps them, or does not."""
    before = scope.single(node.inputs[0])
    if before is None or not has(before, "statistic"):
        return None
    other = before.replace(
        attributes={**before.attributes, "keepdims": 1 - int(before.attributes.get("keepdims", 1))},
        outputs=node.outputs,
    )
    return [other] if same_type(scope.type_of(other), node.outputs[0].type) else None


def _sizes(value: Value) -> list[int] | None:
    """The operand of a Reshape to this value: its sizes, -1 for the one that is not a number."""
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        return None
    dims: Sequence[Dim] = value.type.shape
    if sum(not isinstance(d, int) for d in dims) > 1 or any(isinstance(d, int) and d == 0 for d in dims):
        return None
    return [d if isinstance(d, int) else -1 for d in dims]


def _reshape_to(node: Node, source: Value, sizes: list[int], scope: Scope) -> list[Node]:
    shape = scope.new_constant(np.array(sizes, np.int64), f"{node.outputs[0].name}_shape")
    return swap(node, "Reshape", [source, shape])


def transpose(node: Node, scope: Scope) -> Replacement:
    """Transposes of transposes become one; those that keep the order of memory become a Reshape, or nothing."""
    source = node.inputs[0]
    if source is None or not isinstance(source.type, TensorType) or source.type.shape is None:
        return None
    rank = source.type.rank
    order = list(node.attributes.get("perm") or range(rank)[::-1])
    if order == list(range(rank)):
        return source
    before = scope.producer(source, "Transpose")
    if before is not None and before.inputs[0] is not None:
        inner = list(before.attributes.get("perm") or range(rank)[::-1])
        return swap(node, "Transpose", [before.inputs[0]], perm=[inner[axis] for axis in order])
    dims = source.type.shape
    moving = [axis for axis in order if not (isinstance(dims[axis], int) and dims[axis] == 1)]
    wanted = _sizes(node.outputs[0])
    if moving == sorted(moving) and wanted is not None:
        return _reshape_to(node, source, wanted, scope)
    return None


def concat(node: Node, scope: Scope) -> Replacement:
    """Concat of one tensor -> that; empty parts are left out."""
    if len(node.inputs) == 1:
        return node.inputs[0]
    axis = int(node.attributes.get("axis", 0))
    kept = [v for v in node.inputs if v is not None and not _is_empty(v, axis)]
    if kept and len(kept) < len(node.inputs):
        return swap(node, "Concat", kept, axis=axis)
    return None


def _is_empty(value: Value, axis: int) -> bool:
    if not isinstance(value.type, TensorType) or not value.type.shape:
        return False
    dim = value.type.shape[axis]
    return isinstance(dim, int) and dim == 0


def split(node: Node, scope: Scope) -> Replacement:
    """Split into one part -> the tensor."""
    return node.inputs[0] if len(node.outputs) == 1 and _unchanged(node) else None


def same_shape(node: Node, scope: Scope) -> Replacement:
    """An Expand or Tile to the shape that the tensor has -> the tensor."""
    return node.inputs[0] if _unchanged(node) else None


def pad(node: Node, scope: Scope) -> Replacement:
    """A Pad of nothing -> the tensor."""
    amounts = scope.constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return node.inputs[0] if amounts is not None and not amounts.any() else None


def slice_all(node: Node, scope: Scope) -> Replacement:
    """A Slice of everything, forwards -> the tensor."""
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    numbers = scope.constant(steps)
    if steps is not None and (numbers is None or (numbers != 1).any()):
        return None
    return node.inputs[0] if _unchanged(node) else None


# ---------------------------------------------------------------------------------------------------------- casts

_WIDTHS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def loses_nothing(source: str, to: str) -> bool:
    """Whether every number of one element type is also one of the other."""
    if source == to or source == "bool":
        return to not in ("string", "bool") or source == to
    floats = ("float16", "float32", "float64")
    if source in _WIDTHS and to in _WIDTHS:
        chain = floats if source != "bfloat16" else ("bfloat16", "float32", "float64")
        return source in chain and to in chain and chain.index(source) <= chain.index(to)
    if not source.lstrip("u").startswith("int"):
        return False
    bits = int(source.lstrip("uint"))
    signed = not source.startswith("u")
    if to in _WIDTHS:
        return bits - signed <= _WIDTHS[to] and to != "float16" or bits <= 8 and to == "float16"
    if not to.lstrip("u").startswith("int"):
        return False
    room = int(to.lstrip("uint"))
    return (room >= bits and signed == (not to.startswith("u"))) or (
        not signed and not to.startswith("u") and room > bits
    )


def cast(node: Node, scope: Scope) -> Replacement:
    """A Cast to the same type -> x; a Cast of a Cast that lost nothing -> one Cast."""
    source, output = node.inputs[0], node.outputs[0]
    if source is None or not isinstance(source.type, TensorType) or not isinstance(output.type, TensorType):
        return None
    if source.type.dtype == output.type.dtype:
        return source
    before = scope.producer(source, "Cast")
    origin = before.inputs[0] if before is not None else None
    if origin is None or not isinstance(origin.type, TensorType):
        return None
    if not loses_nothing(origin.type.dtype, source.type.dtype):
        return None
    if origin.type.dtype == output.type.dtype:
        return origin
    return [node.replace(inputs=[origin])]


# ------------------------------------------------------------------------------------------- elementwise before reshape


def reshape_later(node: Node, scope: Scope) -> Replacement:
    """f(Reshape(x)) -> Reshape(f(x)): then f can be fused with what makes x, and the reshape costs nothing."""
    before = scope.single(node.inputs[0], "Reshape") if node.inputs and is_elementwise(node) else None
    source = before.inputs[0] if before is not None else None
    maker = scope.single(source)
    if before is None or source is None or maker is None:
        return None
    if not has(maker, "product", "convolution") and not is_elementwise(maker):
        return None
    if not same_type(before.outputs[0].type, node.outputs[0].type) or not isinstance(source.type, TensorType):
        return None
    inputs: list[Value | None] = [source]
    for other in node.inputs[1:]:
        array = scope.constant(other)
        moved = None if array is None else _before_reshape(array, source.type, before.outputs[0].tensor)
        if moved is not None and moved is not array:
            other = scope.new_constant(moved, f"{node.outputs[0].name}_constant")
        elif moved is None and other is not None and not _is_number(other):
            return None
        inputs.append(other)
    made = scope.make(node, node.op, inputs, **node.attributes)
    return [before.replace(inputs=[made, *before.inputs[1:]], outputs=node.outputs)]


def _is_number(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape == ()


def is_elementwise(node: Node) -> bool:
    """Whether all inputs of a node meet in the same place, lined up from the right."""
    return operator_of(node).kind_of(node) == "elementwise" and not has(node, "channelwise")


def _before_reshape(array: Array, source: TensorType, result: TensorType) -> Array | None:
    """A constant that meets a tensor before it is reshaped as the given one does after."""
    if array.size == 1:
        return array.reshape(())
    if not source.is_static or not result.is_static:
        return None
    before, after = source.static, result.static
    if array.ndim > len(after) or any(a not in (1, b) for a, b in zip(reversed(array.shape), reversed(after))):
        return None  # it does not meet the elements: a CastLike takes any shape
    lead = next(at for at, size in enumerate(array.shape) if size != 1)
    tail = array.shape[lead:]
    if before[len(before) - len(tail) :] == after[len(after) - len(tail) :] and len(before) >= len(tail):
        return array if array.ndim <= len(before) else array.reshape(tail)
    sizes = [1] * (len(after) - array.ndim) + list(array.shape)
    split = len(after) - len(before) + 1
    if split > 1 and before[1:] == after[split:] and 2 * math.prod(sizes[split:]) <= math.prod(after[split:]):
        # Images that were taken apart, say into windows: the constant is written out for all of them.
        return np.broadcast_to(array.reshape(sizes), [*after[:split], *sizes[split:]]).reshape(-1, *sizes[split:])
    if [d for d in before if d != 1] != [d for d in after if d != 1]:
        return None
    kept = iter([size for size, dim in zip(sizes, after) if dim != 1])
    return array.reshape([next(kept) if dim != 1 else 1 for dim in before])


MOVEMENT_RULES: dict[str, list[Rule]] = {
    "Identity": [identity],
    "Dropout": [dropout],
    "Reshape": [reshape],
    "Squeeze": [reshape],
    "Unsqueeze": [reshape],
    "Flatten": [reshape],
    "Transpose": [transpose],
    "Concat": [concat],
    "Split": [split],
    "Expand": [same_shape],
    "Tile": [same_shape],
    "Pad": [pad],
    "Slice": [slice_all],
    "Cast": [cast],
}
"""The rules by operator; `reshape_later` is for all that are elementwise."""

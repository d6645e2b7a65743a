"""A rule of `simplify`: normalization of groups of channels, as exporters wrote it before it was one operator.

%r = Reshape(%x, [n, groups, -1])
%i = InstanceNormalization(%r, ones, zeros)
%e = Reshape(%i, shape of %x)                    ->      %y = GroupNormalization(%x, w, b, num_groups=groups)
%m = Mul(%e, w)                  w: [channels, 1, 1]
%y = Add(%m, b)                  b: [channels, 1, 1]
"""

from __future__ import annotations

import numpy as np

from weft.graph.ir import Array, Node, TensorType, Value
from weft.graph.passes.infer import same_type
from weft.graph.passes.support import Replacement, Scope, swap


def group_norm(node: Node, scope: Scope) -> Replacement:
    """The last Add of such a normalization."""
    scaled, bias = _with_constant(node, scope)
    product = scope.single(scaled, "Mul")
    if product is None or bias is None:
        return None
    shaped, scale = _with_constant(product, scope)
    back = scope.single(shaped, "Reshape")
    norm = scope.single(back.inputs[0], "InstanceNormalization") if back is not None else None
    grouped = scope.single(norm.inputs[0], "Reshape") if norm is not None else None
    if scale is None or norm is None or grouped is None or grouped.inputs[0] is None:
        return None
    source, groups = grouped.inputs[0], _groups(grouped, scope)
    weight, shift = (_of_channels(array, source) for array in (scale, bias))
    if groups is None or weight is None or shift is None or not same_type(source.type, node.outputs[0].type):
        return None
    if not _is_neutral(norm, scope):
        return None
    name = node.outputs[0].name
    inputs = [source, scope.new_constant(weight, f"{name}_scale"), scope.new_constant(shift, f"{name}_bias")]
    epsilon = norm.attributes.get("epsilon", 1e-5)
    return swap(node, "GroupNormalization", inputs, num_groups=groups, epsilon=epsilon)


def _with_constant(node: Node, scope: Scope) -> tuple[Value | None, Array | None]:
    """The operand that is computed, and the other, which is a constant; None where there is none."""
    for value, other in (node.inputs, node.inputs[::-1]):
        array = scope.constant(other)
        if array is not None:
            return value, array
    return None, None


def _groups(node: Node, scope: Scope) -> int | None:
    """How many groups a reshape makes of the channels; None where it does anything else."""
    source, made = node.inputs[0], node.outputs[0]
    if source is None or not isinstance(source.type, TensorType) or not isinstance(made.type, TensorType):
        return None
    if not source.type.is_static or not made.type.is_static or source.type.rank < 3 or made.type.rank < 3:
        return None
    before, after = source.type.static, made.type.static
    return after[1] if before[0] == after[0] and after[1] > 0 and before[1] % after[1] == 0 else None


def _of_channels(array: Array, image: Value) -> Array | None:
    """A constant that broadcasts along the channels of an image, as a vector; None for any other."""
    shape = image.tensor.static
    wanted = (shape[1], *[1] * (len(shape) - 2))
    full = array.shape if len(array.shape) < len(shape) else array.shape[1:] if array.shape[0] == 1 else ()
    return np.ascontiguousarray(array.reshape(-1)) if tuple(full) == wanted else None


def _is_neutral(norm: Node, scope: Scope) -> bool:
    """Whether a normalization neither scales nor shifts."""
    scale, shift = (scope.constant(value) for value in norm.inputs[1:3])
    return scale is not None and shift is not None and bool((scale == 1).all() and (shift == 0).all())

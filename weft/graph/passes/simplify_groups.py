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
from weft.graph.passes.patterns import Anything, Op
from weft.graph.passes.support import Replacement, Scope, swap

X, SCALE, BIAS = Anything(), Anything(), Anything()
GROUPED = Op("Reshape", X, Anything())
NORM = Op("InstanceNormalization", GROUPED, Anything(), Anything())
GROUP_NORM = Op("Add", Op("Mul", Op("Reshape", NORM, Anything()), SCALE), BIAS)


def group_norm(node: Node, scope: Scope) -> Replacement:
    """The last Add of such a normalization."""
    found = GROUP_NORM.find(node, scope)
    if found is None or not same_type(found[X].type, node.outputs[0].type):
        return None
    source, norm, groups = found[X], scope.producers[found[NORM]], _groups(scope.producers[found[GROUPED]])
    scale, bias = (scope.constant(found[part]) for part in (SCALE, BIAS))
    if groups is None or scale is None or bias is None or not _is_neutral(norm, scope):
        return None
    weight, shift = (_of_channels(array, source) for array in (scale, bias))
    if weight is None or shift is None:
        return None
    name = node.outputs[0].name
    inputs = [source, scope.new_constant(weight, f"{name}_scale"), scope.new_constant(shift, f"{name}_bias")]
    epsilon = norm.attributes.get("epsilon", 1e-5)
    return swap(node, "GroupNormalization", inputs, num_groups=groups, epsilon=epsilon)


def _groups(node: Node) -> int | None:
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

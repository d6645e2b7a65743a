"""Attention written out in small operators becomes one node (weft/ops/attention_fused.py).

    %s = MatMul(%q, Transpose(%k))
    %t = Mul / Div / Add / Where on %s                ->      %y = weft.FusedAttention(%q1, %k1, %v1, mask…)
    %y = MatMul(Softmax(%t), %v)                              %q1, %k1, %v1: the values that q, k and v are views of
    %y = Attention(%q, %k, %v, mask…)

Operands are read through transposes, splits, slices and reshapes, as far as one distance for each axis describes where
an element lies, and through factors that nothing else reads. A Transpose of the result that brings the heads inside is
part of the node. Scores that something else reads stay as they are. Whether a node is worth it on a machine, and the
sizes that its tiles want, a callback says.

Batch, queries and keys may be open. An input is then no vector but keeps its axes, but for the last ones whose sizes
are numbers: an index of an open axis is that of the batch or of a place, and how long it is need not be known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.core import model
from weft.expr.nodes import Expr, Mul, Var, int_value
from weft.expr.structural import structural_equal
from weft.graph.ir import Array, Dim, Graph, Node, TensorType, Value, same_dim
from weft.graph.opspec import has
from weft.graph.passes.infer import is_random, results_of, same_type, static_size
from weft.graph.passes.support import Replacement, Scope, rewritten
from weft.graph.shapes import follows, product, same_shape, times, typical

NAME, DOMAIN = "FusedAttention", "weft"
KINDS = ("float32", "float16", "bfloat16")
"""Element types of attention that becomes one node. What is narrow is rounded less often in it: scores stay float32."""


Propose = Callable[[Sequence[int], str], Sequence[int] | None]
"""(batch, heads, queries, keys, size, value size) and the element type -> padded sizes, or None: leave it. Of an open
size minus what it typically is -> minus the number of which a padded one is a multiple."""


def fuse_attention(
    graph: Graph,
    propose_for: Propose,
    narrow: str | None = None,
    own: Container[str] = frozenset(),
    sizes: Mapping[Var, int] | None = None,
) -> Graph:
    """The graph with attention as single nodes where that is worth it; the same object where there is none.

    `narrow` is the element type to which products are lowered afterwards: the one that the callback is asked about.
    `own` are the narrow types that a graph may have by itself. `sizes` are what open sizes typically are; without them
    attention over open sizes stays as it is.
    """
    if not any(node.op in ("Softmax", "Attention") for node in graph.nodes):
        return graph
    known = {var: max((sizes or {}).get(var, 0), model.LEAST_TYPICAL) for var in graph.symbols.values()}

    def propose(dims: Sequence[Dim], dtype: str) -> Sequence[int] | None:
        is_open = [not isinstance(n, int) for n in dims]
        if any(is_open) and (sizes is None or any(is_open[at] for at in (1, 4, 5))):
            return None
        numbers = [-n if negative else n for n, negative in zip(typical(dims, known), is_open)]
        if dtype == "float32":
            return propose_for(numbers, narrow or dtype)
        return propose_for(numbers, dtype) if dtype in own else None

    def is_known(node: Node) -> bool:
        values = [v.type for v in (*node.inputs, *node.outputs) if v is not None]
        return all(follows(kind, () if sizes is None else known) for kind in values)

    def rule(node: Node, scope: Scope) -> Replacement:
        if node.domain or scope.parent is not None:
            return None
        if node.op == "MatMul":
            return _whole(node, scope, propose) if is_known(node) else None
        if node.op == "Attention":
            return _operator(node, scope, propose) if is_known(node) else None
        return _heads_inside(node, scope) if node.op == "Transpose" and is_known(node) else None

    return rewritten(graph, rule)


# ---------------------------------------------------------------------------------------------------------- operands


@dataclass(frozen=True)
class View:
    """Elements of a value's memory: where the first lies, and for each axis its size and the distance of neighbours."""

    source: Value
    offset: Dim
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    factor: float = 1.0

    def along(self, order: Sequence[int]) -> View:
        """The view with some of its axes, in an order."""
        shape, strides = (tuple(part[at] for at in order) for part in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)


def _whole_value(value: Value) -> View:
    shape = tuple(value.tensor.dims)
    return View(value, 0, shape, tuple(product(shape[at + 1 :]) for at in range(len(shape))))


def view_of(value: Value, scope: Scope) -> View:
    """A value as a view of one before it that was stored anyway, and whose axes its indices go along."""
    found = _view_of(value, scope)
    return found if _along_axes(found) is not None else _whole_value(value)


def _view_of(value: Value, scope: Scope) -> View:
    node = scope.producer(value)
    source = node.inputs[0] if node is not None and node.inputs else None
    if node is None or node.domain or source is None or not _is_plain(source) or not _is_plain(value):
        return _whole_value(value)
    if not follows(source.type, () if value.tensor.is_static else scope.graph.symbols.values()):
        return _whole_value(value)
    if node.op in ("Mul", "Div"):
        return _scaled(node, value, scope)
    found: View | None = None
    shape = tuple(value.tensor.dims)
    if node.op == "Identity":
        found = _view_of(source, scope)
    elif has(node, "reshapes"):
        found = _split_again(source, shape, scope) or _reshaped(_view_of(source, scope), shape)
    elif node.op == "Transpose":
        order = [int(n) for n in node.attributes.get("perm", reversed(range(len(shape))))]
        found = _view_of(source, scope).along(order)
    elif node.op == "Split":
        found = _part(node, value, _view_of(source, scope))
    elif node.op == "Slice":
        found = _slice(node, value, _view_of(source, scope), scope)
    elif node.op == "Gather":
        found = _chosen(node, _view_of(source, scope), scope)
    return _whole_value(value) if found is None else found


def _is_plain(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.shape is not None and value.type.dtype in KINDS


def _scaled(node: Node, value: Value, scope: Scope) -> View:
    """A value times a number: the factor goes to the scores, if nothing else needs the products."""
    a, b = node.inputs
    number = scope.scalar(b)
    if number is None and node.op == "Mul":
        a, number = b, scope.scalar(a)
    if number is None or a is None or scope.uses[value] != 1 or not same_type(a.type, value.type):
        return _whole_value(value)
    if not math.isfinite(number) or node.op == "Div" and number == 0:
        return _whole_value(value)
    before = _view_of(a, scope)
    return replace(before, factor=before.factor * number if node.op == "Mul" else before.factor / number)


def _factors(dim: Dim) -> tuple[int, list[Expr]]:
    """A dimension as a number times others that are none."""
    if isinstance(dim, int) or int_value(dim) is not None:
        return dim if isinstance(dim, int) else int_value(dim) or 0, []
    if not isinstance(dim, Mul):
        return 1, [dim]
    (a, left), (b, right) = _factors(dim.a), _factors(dim.b)
    return a * b, left + right


def _quotient(a: Dim, b: Dim) -> Dim | None:
    """a / b, where that is whole whatever the open sizes are."""
    (above, left), (below, right) = _factors(a), _factors(b)
    for one in right:
        at = next((at for at, other in enumerate(left) if structural_equal(one, other)), None)
        if at is None:
            return None
        del left[at]
    return None if not below or above % below else times(above // below, product(left))


def _reshaped(view: View, shape: tuple[Dim, ...]) -> View | None:
    """The view with other axes, if one distance for each of them still says where an element lies."""
    old = [(n, step) for n, step in zip(view.shape, view.strides) if n != 1]
    strides: list[Dim] = []
    for size in shape:
        if isinstance(size, int) and size == 1:
            strides.append(0)
            continue
        # The new axis is the front of an old one, or several old ones that follow each other without a gap.
        while len(old) > 1 and _quotient(size, old[0][0]) not in (None, 1) and _follows(old):
            old[:2] = [(times(old[0][0], old[1][0]), old[1][1])]
        rest = _quotient(old[0][0], size) if old else None
        if rest is None:
            return None
        strides.append(times(old[0][1], rest))
        old[:1] = [] if rest == 1 else [(rest, old[0][1])]
    return None if old else replace(view, shape=shape, strides=tuple(strides))


def _follows(axes: Sequence[tuple[Dim, Dim]]) -> bool:
    return same_dim(axes[0][1], times(axes[1][0], axes[1][1]))


def _split_again(turned: Value, shape: tuple[Dim, ...], scope: Scope) -> View | None:
    """Axes that were joined, transposed and split again where they had been joined: never joined at all.

    (50, 4, 96) -> (50, 12, 32) -> (12, 50, 32) -> (4, 3, 50, 32)     as     (50, 4, 3, 32) -> (4, 3, 50, 32)
    """
    transpose = scope.producer(turned, "Transpose")
    joined = transpose.inputs[0] if transpose is not None else None
    before = scope.producer(joined) if joined is not None else None
    if transpose is None or joined is None or before is None or not has(before, "reshapes"):
        return None
    source = before.inputs[0]
    if source is None or not _is_plain(source) or not _is_plain(joined):
        return None
    sizes = joined.tensor.dims
    order = [int(n) for n in transpose.attributes.get("perm", reversed(range(len(sizes))))]
    factors = _common_factors([sizes[axis] for axis in order], shape)
    if factors is None:
        return None
    split = {axis: list(part) for axis, part in zip(order, factors)}
    view = _reshaped(_view_of(source, scope), tuple(n for axis in range(len(sizes)) for n in split[axis]))
    if view is None:
        return None
    starts = {axis: sum(len(split[n]) for n in range(axis)) for axis in order}
    places = [starts[axis] + at for axis in order for at in range(len(split[axis]))]
    return _reshaped(view.along(places), shape)


def _common_factors(sizes: Sequence[Dim], shape: Sequence[Dim]) -> list[list[Dim]] | None:
    """For each of some sizes the factors in which another shape splits it; None where it does not."""
    rest = [n for n in shape if n != 1]
    found = []
    for size in sizes:
        factors: list[Dim] = []
        left: Dim | None = size
        while left != 1:
            left = _quotient(left, rest[0]) if rest and left is not None else None
            if left is None:
                return None
            factors.append(rest.pop(0))
        found.append(factors)
    return found


def _part(node: Node, value: Value, view: View) -> View | None:
    axis = int(node.attributes.get("axis", 0)) % len(view.shape)
    before = [output.tensor.dims[axis] for output in node.outputs[: node.outputs.index(value)]]
    if not all(isinstance(n, int) for n in before) or not isinstance(view.strides[axis], int) and before:
        return None
    return _from(view, axis, sum(n for n in before if isinstance(n, int)), value)


def _from(view: View, axis: int, first: int, value: Value) -> View | None:
    """A part of a view, from an index of an axis on."""
    offset, step = view.offset, view.strides[axis]
    if first:
        if not isinstance(offset, int) or not isinstance(step, int):
            return None
        offset += first * step
    return replace(view, offset=offset, shape=tuple(value.tensor.dims))


def _slice(node: Node, value: Value, view: View, scope: Scope) -> View | None:
    given = [scope.constant(v) for v in node.inputs[1:]]
    if len(given) < 2 or given[0] is None or (len(node.inputs) > 3 and node.inputs[3] is not None and given[2] is None):
        return None
    if len(node.inputs) > 4 and node.inputs[4] is not None and (given[3] is None or (given[3] != 1).any()):
        return None
    starts = [int(n) for n in given[0].reshape(-1)]
    axes = range(len(starts)) if len(given) < 3 or given[2] is None else [int(n) for n in given[2].reshape(-1)]
    found: View | None = view
    for start, axis in zip(starts, axes):
        size = view.shape[axis]
        if start and not isinstance(size, int):
            return None
        first = min(max(start + size if start < 0 else start, 0), size) if isinstance(size, int) else 0
        found = None if found is None else _from(found, axis, first, value)
    return found


def _chosen(node: Node, view: View, scope: Scope) -> View | None:
    """One index of an axis, which is no axis any more: a part of stacked queries, keys and values."""
    index = scope.constant(node.inputs[1]) if node.inputs[1] is not None else None
    if index is None or index.ndim:
        return None
    axis = int(node.attributes.get("axis", 0)) % len(view.shape)
    at, size, step = int(index), view.shape[axis], view.strides[axis]
    if not isinstance(size, int) or not isinstance(step, int) or not isinstance(view.offset, int):
        return None
    kept = [place for place in range(len(view.shape)) if place != axis]
    return replace(view.along(kept), offset=view.offset + (at + size if at < 0 else at) * step)


def _axes(source: Value) -> tuple[Dim, ...]:
    """The shape in which a source is read: its last axes are one, as far as their sizes are numbers."""
    dims = source.tensor.dims
    first = next((at + 1 for at in reversed(range(len(dims))) if not isinstance(dims[at], int)), 0)
    return (*dims[:first], product(dims[first:])) if first < len(dims) or not dims else tuple(dims)


def _along_axes(view: View) -> list[list[int]] | None:
    """For each axis in which the source is read the offset and the steps by the view's indices; None where numbers do
    not say it, or not that it is inside."""
    dims = _axes(view.source)
    found = [[0] * (1 + len(view.shape)) for _ in dims]
    if not isinstance(view.offset, int):
        return None
    found[-1][0] = view.offset
    for at, (size, stride) in enumerate(zip(view.shape, view.strides), 1):
        if size == 1 or stride == 0:
            continue
        steps = [_quotient(stride, product(dims[axis + 1 :])) for axis in range(len(dims))]
        axis = next((axis for axis, step in enumerate(steps) if isinstance(step, int)), None)
        if axis is None:
            return None
        step = steps[axis]
        found[axis][at] = step if isinstance(step, int) else 0
    for dim, (offset, *by) in zip(dims, found):
        taken = [(step, size) for step, size in zip(by, view.shape) if step]
        if isinstance(dim, int):
            last = [step * (size - 1) for step, size in taken if isinstance(size, int)]
            if len(last) < len(taken) or offset + sum(last) >= dim:
                return None
        elif offset or (taken and (len(taken) > 1 or taken[0][0] != 1 or not same_dim(taken[0][1], dim))):
            return None
    return found


def _four(view: View, shape: Sequence[Dim]) -> list[int] | None:
    """Offset and the four distances of an operand, for each axis of its source, where it broadcasts to so many
    matrices; None where it does not."""
    rank, places = len(view.shape), _along_axes(view)
    if rank > 4 or places is None:
        return None
    sizes: list[Dim] = [*(1,) * (4 - rank), *view.shape]
    if any(n != 1 and not same_dim(n, wanted) for n, wanted in zip(sizes, shape)):
        return None
    return [n for offset, *steps in places for n in (offset, *(0,) * (4 - rank), *steps)]


# ----------------------------------------------------------------------------------------------------------- pattern


@dataclass
class _Scores:
    """What stands before the softmax: the product, and the steps after it, the last one first."""

    product: Node
    steps: list[tuple[str, float, Value | None]]


def _maker(value: Value | None, scope: Scope) -> Node | None:
    """What makes a score, if nothing else reads it."""
    return scope.single(value, "MatMul", "Mul", "Div", "Add", "Where", "Identity", "Cast")


def _changes(cast: Node, narrow: str) -> bool:
    """Whether a Cast makes float32 of a narrow type or narrows it again: rounding that the node does without."""
    given, made = cast.inputs[0], cast.outputs[0]
    if given is None or not (_is_plain(given) and _is_plain(made)):
        return False
    return {given.tensor.dtype, made.tensor.dtype} == {narrow, "float32"}


def _scores(value: Value | None, scope: Scope, kind: str) -> _Scores | None:
    """The product under the softmax, through steps that nothing else reads; its operands are of a kind."""
    steps: list[tuple[str, float, Value | None]] = []
    while len(steps) <= model.MOST_SCORE_STEPS:
        node = _maker(value, scope)
        if node is None or value is None:
            return None
        if node.op == "MatMul":
            return _Scores(node, steps[::-1]) if "output_dtype" not in node.attributes else None
        found = _step(node, value, scope, kind)
        if found is None:
            return None
        value, step = found
        if step is not None:
            steps.append(step)
    return None


def _step(
    node: Node, value: Value, scope: Scope, kind: str
) -> tuple[Value, tuple[str, float, Value | None] | None] | None:
    """What a step works on, and the step; None for one that is not known."""
    if len(node.inputs) == 1 and node.inputs[0] is not None:
        return (node.inputs[0], None) if node.op == "Identity" or _changes(node, kind) else None
    first, second = node.inputs[-2], node.inputs[-1]
    for through, other in ((first, second), (second, first)):
        if through is None or other is None or not same_type(through.type, value.type):
            continue
        if _maker(through, scope) is None:
            continue
        number = scope.scalar(other)
        if node.op == "Add":
            return through, ("add", 0.0, other)
        if node.op == "Where":
            if number is None or node.inputs[0] is None:
                return None
            return through, ("keep" if through is first else "drop", number, node.inputs[0])
        if number is None or (node.op == "Div" and (through is second or number == 0)):
            continue
        return through, ("scale", number if node.op == "Mul" else 1 / number, None)
    return None


def _whole(node: Node, scope: Scope, propose: Propose) -> Replacement:
    """One node for the second product of an attention."""
    shares, value = node.inputs
    kind = node.outputs[0].tensor.dtype
    softmax, empty_rows = _softmax(shares, scope, kind)
    if softmax is None or value is None or not _is_plain(value) or not _is_plain(node.outputs[0]):
        return None
    found = _scores(softmax.inputs[0], scope, kind)
    if found is None or shares is None:
        return None
    if int(softmax.attributes.get("axis", -1)) not in (-1, len(shares.tensor.dims) - 1):
        return None
    query, key = found.product.inputs
    if query is None or key is None or not (_is_plain(query) and _is_plain(key)) or "output_dtype" in node.attributes:
        return None
    if any(v.tensor.dtype != kind for v in (query, key, value)):
        return None
    views = [view_of(v, scope) for v in (query, key, value)]
    if views[2].factor != 1:  # a factor of the values is none of the scores
        views[2] = _whole_value(value)
    made = _attributes(node, softmax, views, found.steps, propose)
    if made is None:
        return None
    made["empty_rows"] = empty_rows
    sources = [_flat(view.source, node, scope) for view in views]
    return _replacement(node, [*sources, *(v for _, _, v in found.steps if v is not None)], made, scope)


def _softmax(shares: Value | None, scope: Scope, kind: str) -> tuple[Node | None, int]:
    """The softmax that gives the shares, and what an empty row gives: Where(IsNaN(s), 0, s) makes zeros of it."""
    cast = scope.single(shares, "Cast")
    if cast is not None and _changes(cast, kind):
        shares = cast.inputs[0]
    where = scope.single(shares, "Where")
    if where is None:
        return scope.single(shares, "Softmax"), 0
    test, zero, value = where.inputs
    is_nan, softmax = scope.single(test, "IsNaN"), scope.producer(value, "Softmax")
    if is_nan is None or softmax is None or value is None or is_nan.inputs[0] is not value:
        return None, 0
    return (softmax, 2) if scope.scalar(zero) == 0 and scope.uses[value] == 2 else (None, 0)


def _operator(node: Node, scope: Scope, propose: Propose) -> Replacement:
    """One node for the standard's Attention without a past, a soft cap or windows."""
    query, key, value, mask, *past, lengths = [*node.inputs, *[None] * 7][:7]
    given = node.attributes
    if any(v is not None for v in past) or len(node.outputs) > 1:
        return None
    if given.get("softcap") or given.get("softmax_precision", 1) not in (0, 1):
        return None
    if max(given.get("left_window_size", -1), given.get("right_window_size", -1)) >= 0:
        return None
    if query is None or key is None or value is None or not all(map(_is_plain, (query, key, value))):
        return None
    if mask is not None and mask.tensor.dtype not in ("bool", *KINDS):
        return None
    heads = [int(given.get(f"{name}_num_heads", 0)) for name in ("q", "kv", "kv")]
    views = [_in_heads(view_of(v, scope), v, n) for v, n in zip((query, key, value), heads)]
    if any(view is None for view in views):
        return None
    made = _operator_attributes(node, [view for view in views if view is not None], mask, lengths, propose, scope)
    if made is None:
        return None
    sources = [_flat(view.source, node, scope) for view in views if view is not None]
    more = [v for v in (mask, lengths) if v is not None and not {"allow", "add", "until"}.isdisjoint(made["steps"])]
    return _replacement(node, [*sources, *more], made, scope)


def _later_keys(mask: Value, scope: Scope) -> int | None:
    """Which key the first query sees last, where a mask that constants make hides just the keys after one more for each
    query; None for any other mask."""
    array = _of_constants(mask, scope)
    if array is None or array.ndim < 2 or 0 in array.shape:
        return None
    seen = array if array.dtype == np.bool_ else array == 0
    if array.dtype != np.bool_:
        kind = array.dtype.type
        if not (array[~seen] <= np.nextafter(kind(-np.inf), kind(0))).all():  # the least number, of bfloat16 too
            return None
    queries, keys = array.shape[-2:]
    later = int(seen.reshape(-1, queries, keys)[0, 0].sum()) - 1
    wanted = np.arange(keys) <= np.arange(queries)[:, None] + later
    return later if later >= 0 and min(queries, keys) > 1 and (seen == wanted).all() else None


def _of_constants(value: Value, scope: Scope, nodes: int = 8) -> Array | None:
    """What a value is that a few nodes make of constants alone, although it is too large to be one itself."""
    array, maker = scope.constant(value), scope.producer(value)
    if array is not None or maker is None or not nodes or maker.graphs or is_random(maker):
        return array
    size = static_size(value.type)
    if size is None or size > model.MOST_MASK:
        return None
    given = [None if v is None else _of_constants(v, scope, nodes - 1) for v in maker.inputs]
    if any(v is not None and found is None for v, found in zip(maker.inputs, given)):
        return None
    made = results_of(maker, given)
    return None if made is None else made[maker.outputs.index(value)]


def _in_heads(view: View, value: Value, heads: int) -> View | None:
    """A packed operand as (batch, heads, length, size); what a factor scales is read as it is stored."""
    if view.factor != 1:
        view = _whole_value(value)
    if len(view.shape) == 4:
        return view
    batch, length, width = view.shape
    size = _quotient(width, heads)
    found = None if size is None else _reshaped(view, (batch, length, heads, size))
    return None if found is None else found.along([0, 2, 1, 3])


def _operator_attributes(
    node: Node, views: Sequence[View], mask: Value | None, lengths: Value | None, propose: Propose, scope: Scope
) -> dict[str, Any] | None:
    """The attributes for an Attention; heads of queries that share keys are neighbours, or queries of one head."""
    packed = len(node.outputs[0].tensor.dims) == 3
    (batch, heads, queries, size), (_, key_heads, keys, _), (*_, value_size) = (v.shape for v in views)
    if not all(isinstance(n, int) for n in (heads, key_heads, size)):
        return None
    shared, around = heads // key_heads, (batch, heads)
    is_causal, later = bool(node.attributes.get("is_causal", 0)), None
    if mask is not None and not is_causal and lengths is None and same_shape(mask.tensor.dims[-2:], (queries, keys)):
        later = _later_keys(mask, scope)
        mask = mask if later is None else None
    last = queries if is_causal else 0  # of the lengths; a lone query sees all of them
    if not isinstance(last, int):
        if lengths is not None:
            return None
        last = 0
    if queries == 1 and shared > 1 and not packed and mask is None and (lengths is not None or not is_causal):
        rows = _reshaped(views[0], (batch, key_heads, shared, size))
        if rows is not None:
            shared, around, queries, last, views = 1, (batch, key_heads), shared, 0, [rows, *views[1:]]
    if mask is not None and mask.tensor.dims and mask.tensor.dims[-1] != 1 and not same_dim(mask.tensor.dims[-1], keys):
        return None
    sizes: list[Any] = [*around, queries, keys, size, value_size]
    extents = ((queries, size), (keys, size), (keys, value_size))
    owners = (around, *((batch, key_heads),) * 2)
    places = [_four(view, (*owner, *extent)) for view, owner, extent in zip(views, owners, extents)]
    scale = node.attributes.get("scale")
    steps = [("scale", float(scale) if scale is not None else max(size, 1) ** -0.5)]
    if mask is not None:
        steps.append(("allow" if mask.tensor.dtype == "bool" else "add", 0.0))
    if lengths is not None:
        steps.append(("until", float(last)))
    elif is_causal or later is not None:
        steps.append(("causal", float(later or 0)))
    more = {"shared": shared} if shared > 1 else {}
    return _proposed(node, sizes, places, steps, propose, heads_inside=int(packed), empty_rows=1, **more)


def _attributes(
    node: Node, softmax: Node, views: list[View], steps: list[tuple[str, float, Value | None]], propose: Propose
) -> dict[str, Any] | None:
    """The attributes of the new node; None where the shapes are none that it takes, or it is not worth it."""
    scores, out = softmax.outputs[0].tensor.dims, node.outputs[0].tensor.dims
    query, key, value = views
    if min(len(v.shape) for v in views) < 2 or not 2 <= len(out) <= 4 or len(scores) != len(out):
        return None
    batch, heads, queries, keys = [1] * (4 - len(scores)) + list(scores)
    # The scores have the shape of the result, but for the last axis: values bring no matrices of their own.
    if not same_shape(scores[:-1], out[:-1]) or any(len(v.tensor.dims) > 4 for _, _, v in steps if v is not None):
        return None
    sizes: list[Any] = [batch, heads, queries, keys, query.shape[-1], out[-1]]
    turned = key.along([*range(len(key.shape) - 2), -1, -2])
    factor = query.factor * key.factor
    places = [
        _four(view, (batch, heads, n, size))
        for view, n, size in ((query, queries, sizes[4]), (turned, keys, sizes[4]), (value, keys, sizes[5]))
    ]
    if not math.isfinite(factor):
        return None
    named = [(step, number) for step, number, _ in steps]
    return _proposed(node, sizes, places, [("scale", factor), *named] if factor != 1 else named, propose)


def _proposed(
    node: Node, sizes: list[Any], places: Sequence[Any], steps: Sequence[Any], propose: Propose, **more: Any
) -> dict[str, Any] | None:
    """The attributes of an attention of these sizes, if operands lie so that it takes them, and it is worth it."""
    padded = propose(sizes, node.outputs[0].tensor.dtype) if all(places) and 0 not in sizes else None
    if padded is None:
        return None
    return {
        "sizes": [n if isinstance(n, int) else 0 for n in sizes], "query": places[0], "key": places[1],
        "value": places[2], "steps": [step for step, _ in steps], "numbers": [number for _, number in steps],
        "padded": [int(n) for n in padded], "heads_inside": 0, **more,
    }  # fmt: skip


def _flat(source: Value, like: Node, scope: Scope) -> Value:
    """A value as one row of elements, or with its first axes where they are open, in the same memory."""
    axes = _axes(source)
    if len(source.tensor.dims) == len(axes):
        return source
    shape = [*(0,) * (len(axes) - 1), -1]
    return scope.make(like, "Reshape", [source, scope.new_constant(np.array(shape, np.int64), "flat")])


def _replacement(node: Node, inputs: Sequence[Value], attributes: dict[str, Any], scope: Scope) -> list[Node] | None:
    """The new node, and a Reshape where the result has other axes."""
    whole = Node(NAME, inputs, node.outputs, attributes, node.name, node.origin, DOMAIN)
    made = Value(scope.names.fresh(f"{node.outputs[0].name}_heads"), scope.type_of(whole))
    if same_type(made.type, node.outputs[0].type):
        return [whole]
    pairs = itertools.zip_longest(node.outputs[0].tensor.dims, made.tensor.dims[: len(node.outputs[0].tensor.dims)])
    sizes = [n if isinstance(n, int) else 0 if same_dim(n, other) else -1 for n, other in pairs]
    if sizes.count(-1) > 1:
        return None
    shape = scope.new_constant(np.array(sizes, np.int64), "shape")
    reshape = Node("Reshape", [made, shape], node.outputs, {}, node.name, node.origin)
    return [whole.replace(outputs=[made]), reshape]


def _heads_inside(node: Node, scope: Scope) -> Replacement:
    """A Transpose that swaps heads and queries of an attention: the node writes its result so."""
    source = node.inputs[0]
    perm = list(node.attributes.get("perm", ()))
    maker = scope.producer(source)
    if source is None or maker is None or scope.uses[source] != 1:
        return None
    reshaped = maker.op == "Reshape" and not maker.domain
    if reshaped:
        inner = maker.inputs[0]
        maker = scope.producer(inner)
        if inner is None or maker is None or scope.uses[inner] != 1:
            return None
    if maker.op != NAME or maker.domain != DOMAIN or maker.attributes.get("heads_inside"):
        return None
    attributes = {**maker.attributes, "heads_inside": 1}
    inputs = [v for v in maker.inputs if v is not None]
    swaps = perm == [0, 2, 1, 3]
    if reshaped:
        batch, *rest = maker.outputs[0].tensor.dims
        swaps = perm == [1, 0, 2] and batch == 1 and same_shape(source.tensor.dims, rest)
    return _replacement(node, inputs, attributes, scope) if swaps else None

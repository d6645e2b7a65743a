"""Attention as one kernel: softmax(steps(q · kᵀ)) · v, the scores of a few queries at a time.

    FusedAttention(q, k, v, operand…)                                                        domain "weft"
        sizes        batch, heads, queries, keys, size of a key, size of a value
        query, key, value   where an element lies in its input: [offset, steps by batch, head, place and element]
        steps        what happens to a score before the softmax, in order (STEPS)
        numbers      one number a step, for those that take one
        padded       queries, keys and elements of a value, rounded up to the tiles of a schedule
        empty_rows   0: a query that sees no key gives no numbers (Softmax's meaning); 1: zeros (Attention's);
                     2: zeros for any row without numbers (as exporters write Attention)
        heads_inside 0: the result is (batch, heads, queries, elements); 1: (batch, queries, heads, elements)

q, k and v are vectors: a pass (`graph/passes/attention.py`) reads through the transposes, splits and reshapes before
them, so that nothing is stored only to lie in another order. Operands of steps broadcast to (batch, heads, queries,
keys).

As a tensor program:

    queries, keys, values   copies in the order in which the products read them, zeros in the padding
    scores, masked          products, and the steps on them; minus infinity in the padding
    top, grown, total       the softmax before its division
    mixed                   products with the values
    attention               mixed · (1 / total)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, OpSpec, Use, register
from weft.ops.activations_softmax import softmax_array
from weft.ops.attention import probabilities
from weft.ops.elementwise_support import expect_broadcast, expect_floats, kernel

DOMAIN = "weft"
NAME = "FusedAttention"

QUERIES, KEYS, VALUES, SCORES, MASKED, TOP, GROWN, TOTAL, MIXED, RESULT = (
    "attention_queries", "attention_keys", "attention_values", "attention_scores", "attention_masked",
    "attention_top", "attention_grown", "attention_total", "attention_mixed", "attention",
)  # fmt: skip
"""The stages of the program, by which a schedule knows them."""

OPERANDS = ("query", "key", "value")
STEPS = {
    "scale": "times the number",
    "add": "plus the operand",
    "keep": "where the operand is false, the number instead",
    "drop": "where the operand is true, the number instead",
    "allow": "where the operand is false, plus minus infinity",
    "causal": "for keys later than the query, by more than the number, minus infinity instead",
}
ALONE = ("scale", "causal")
"""Steps without an operand."""

_MINUS = float("-inf")


class Sizes(NamedTuple):
    """What is computed: `size` elements of a query and a key, `value_size` of a value and of the result."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    value_size: int


class Padded(NamedTuple):
    """Sizes of the stages, rounded up."""

    queries: int
    keys: int
    value_size: int


def _sizes(c: Use) -> Sizes:
    return Sizes(*(int(n) for n in c.need("sizes")))


def _extents(sizes: Sizes) -> dict[str, tuple[int, int, int, int]]:
    """The four sizes of each operand."""
    return {
        "query": (sizes.batch, sizes.heads, sizes.queries, sizes.size),
        "key": (sizes.batch, sizes.heads, sizes.keys, sizes.size),
        "value": (sizes.batch, sizes.heads, sizes.keys, sizes.value_size),
    }


def _steps(c: Use) -> list[tuple[str, float]]:
    return [(str(step), float(number)) for step, number in zip(c.get("steps", ()), c.get("numbers", ()))]


def _out_shape(c: Use, sizes: Sizes) -> tuple[int, int, int, int]:
    if c.get("heads_inside", 0):
        return sizes.batch, sizes.queries, sizes.heads, sizes.value_size
    return sizes.batch, sizes.heads, sizes.queries, sizes.value_size


def _infer(c: Infer) -> Sequence[Type]:
    expect_floats(c, 0, 1, 2)
    sizes, steps = _sizes(c), _steps(c)
    if min(sizes) < 1 or any(step not in STEPS for step, _ in steps):
        raise c.error(f"its sizes {list(sizes)} must be positive, and its steps be among {', '.join(STEPS)}")
    if len(c.types) != 3 + sum(step not in ALONE for step, _ in steps):
        raise c.error(f"it has {len(c.types)} inputs, which do not fit its steps {[step for step, _ in steps]}")
    for position, (name, extents) in enumerate(_extents(sizes).items()):
        _expect_view(c, position, name, extents)
    for position in range(3, len(c.types)):
        expect_broadcast(c, position, (sizes.batch, sizes.heads, sizes.queries, sizes.keys))
    return [TensorType(c.tensor(0).dtype, _out_shape(c, sizes))]


def _expect_view(c: Infer, position: int, name: str, extents: Sequence[int]) -> None:
    """That an operand's elements lie inside its input."""
    offset, *strides = (int(n) for n in c.need(name))
    kind = c.tensor(position)
    last = offset + sum(step * (n - 1) for step, n in zip(strides, extents))
    outside = kind.rank != 1 or (isinstance(kind.dims[0], int) and last >= kind.dims[0])
    if outside or len(strides) != 4 or min(offset, *strides) < 0:
        raise c.error(f"{name}={[offset, *strides]} does not lie inside input {position}, {kind!r}")
    if kind.dtype != c.tensor(0).dtype:
        raise c.error(f"input {position} must be {c.tensor(0).dtype}, as the first")


# ---------------------------------------------------------------------------------------------------- numpy meaning


def _evaluate(c: Evaluate, *arrays: Array) -> Array:
    sizes = _sizes(c)
    q, k, v = (_seen(c, name, x, shape) for x, (name, shape) in zip(arrays, _extents(sizes).items()))
    scores = np.matmul(q, k.swapaxes(-1, -2))
    operands = iter(arrays[3:])
    for step, number in _steps(c):
        value = np.array(number, scores.dtype)
        if step == "scale":
            scores = scores * value
        elif step == "causal":
            seen = np.arange(sizes.keys) <= np.arange(sizes.queries)[:, None] + int(number)
            scores = np.where(seen, scores, np.array(_MINUS, scores.dtype))
        elif step == "add":
            scores = scores + next(operands)
        elif step == "allow":
            scores = scores + np.where(next(operands), 0, _MINUS).astype(scores.dtype)
        else:
            arms = (scores, value) if step == "keep" else (value, scores)
            scores = np.where(next(operands), *arms)
    empty = int(c.get("empty_rows", 0))
    shares = probabilities(scores) if empty == 1 else softmax_array(scores, -1)
    made = np.matmul(np.nan_to_num(shares, nan=0.0) if empty == 2 else shares, v)
    return np.ascontiguousarray(made.swapaxes(1, 2)) if c.get("heads_inside", 0) else made


def _seen(c: Use, name: str, x: Array, shape: Sequence[int]) -> Array:
    offset, *strides = (int(n) for n in c.need(name))
    return np.lib.stride_tricks.as_strided(x[offset:], shape, [n * x.itemsize for n in strides], writeable=False)


# ------------------------------------------------------------------------------------------------ tensor expression


def _read(c: Use, name: str, tensor: te.Tensor, at: Sequence[Any]) -> Expr:
    """The element of an operand at (batch, head, place, element)."""
    offset, *strides = (int(n) for n in c.need(name))
    place: Any = offset
    for index, step in zip(at, strides):
        place = place + index * step if step else place
    return tensor[place]


def _inside(at: Sequence[Any], limits: Sequence[int | None], value: Expr, otherwise: Expr) -> Expr:
    """A value where each index is under its limit (None: it always is)."""
    tests = [index < limit for index, limit in zip(at, limits) if limit is not None]
    return te.select(te.all(*tests), value, otherwise) if tests else value


@kernel
def _compute(c: Compute, query: te.Tensor, key: te.Tensor, value: te.Tensor, *operands: te.Tensor) -> Any:
    sizes = _sizes(c)
    padded = Padded(*(int(n) for n in c.get("padded", (sizes.queries, sizes.keys, sizes.value_size))))
    around, steps = (sizes.batch, sizes.heads), _steps(c)
    zero = te.const(0, query.dtype)
    limits = [None if n == limit else limit for n, limit in zip(padded, (sizes.queries, sizes.keys, sizes.value_size))]
    # A factor that comes first is cheaper on the queries than on the scores.
    factor = te.const(steps[0][1], query.dtype) if steps and steps[0][0] == "scale" else None

    def asked(*at: Any) -> Expr:
        found = _read(c, "query", query, at)
        return _inside(at[2:], limits[:1], found if factor is None else found * factor, zero)

    def held(*at: Any) -> Expr:
        return _inside(at[2:], limits[1:2], _read(c, "key", key, at), zero)

    def given(*at: Any) -> Expr:
        return _inside(at[3:], limits[2:], _read(c, "value", value, at), zero)

    queries = te.compute((*around, padded.queries, sizes.size), asked, name=QUERIES)
    keys = te.compute((*around, padded.keys, sizes.size), held, name=KEYS)
    values = te.compute((*around, sizes.keys, padded.value_size), given, name=VALUES)
    d = te.reduce_axis(sizes.size, name="d")
    scores = te.compute(
        (*around, padded.queries, padded.keys),
        lambda b, h, i, j: te.sum(queries[b, h, i, d] * keys[b, h, j, d], axis=d),
        name=SCORES,
    )
    masked = _masked(scores, operands, steps if factor is None else steps[1:], limits)
    empty = int(c.get("empty_rows", 0))
    mixed, total = _mixed(masked, values, empty == 1)

    def share(b: Any, h: Any, i: Any, e: Any) -> Expr:
        # One division a row; a sum of powers is at least 1, that of the greatest score.
        made: Expr = mixed[b, h, i, e] * (te.const(1, query.dtype) / total[b, h, i])
        if empty == 0:
            return made
        if empty == 1:
            return te.select(te.equal(total[b, h, i], zero), zero, made)
        return te.select(total[b, h, i] > zero, made, zero)  # neither is a sum that is no number

    inside = bool(c.get("heads_inside", 0))
    return te.compute(
        _out_shape(c, sizes), lambda b, x, y, e: share(b, y, x, e) if inside else share(b, x, y, e), name=RESULT
    )


def _masked(
    scores: te.Tensor,
    operands: Sequence[te.Tensor],
    steps: Sequence[tuple[str, float]],
    limits: Sequence[int | None],
) -> te.Tensor:
    """The scores after their steps; minus infinity for keys of the padding."""
    kind = scores.dtype
    minus = te.const(_MINUS, kind)

    def body(b: Any, h: Any, i: Any, j: Any) -> Expr:
        # Queries of the padding read the operands of the last one: nobody reads what they give.
        row = i if limits[0] is None else te.minimum(i, limits[0] - 1)
        made: Expr = scores[b, h, i, j]
        rest = iter(operands)
        for step, number in steps:
            other = te.const(number, kind)
            operand: Any = None if step in ALONE else te.broadcast_read(next(rest), (b, h, row, j))
            if step == "scale":
                made = made * other
            elif step == "causal":
                made = te.select(j <= i + int(number), made, minus)
            elif step == "add":
                made = made + operand
            elif step == "allow":
                made = made + te.select(operand, te.const(0, kind), minus)
            else:
                made = te.select(operand, made, other) if step == "keep" else te.select(operand, other, made)
        return _inside((j,), limits[1:2], made, minus)

    made: te.Tensor = te.compute(scores.shape, body, name=MASKED)
    return made


def _mixed(masked: te.Tensor, values: te.Tensor, zeros: bool) -> tuple[te.Tensor, te.Tensor]:
    """Values weighed by the powers of the scores, and the sums of the powers: 0 for an empty row, if `zeros`."""
    lowest = te.const(float(np.finfo(masked.dtype.name).min), masked.dtype)
    shape, (keys, size) = masked.shape, values.shape[2:]
    j = [te.reduce_axis(n, name=name) for n, name in ((shape[3], "top_key"), (shape[3], "sum_key"), (keys, "key"))]
    top = te.compute(shape[:3], lambda b, h, i: te.max(masked[b, h, i, j[0]], axis=j[0]), name=TOP)

    def grow(b: Any, h: Any, i: Any, k: Any) -> Expr:
        greatest = te.maximum(top[b, h, i], lowest) if zeros else top[b, h, i]
        return te.exp(masked[b, h, i, k] - greatest)

    grown = te.compute(shape, grow, name=GROWN)
    total = te.compute(shape[:3], lambda b, h, i: te.sum(grown[b, h, i, j[1]], axis=j[1]), name=TOTAL)
    mixed = te.compute(
        (*shape[:3], size),
        lambda b, h, i, e: te.sum(grown[b, h, i, j[2]] * values[b, h, j[2], e], axis=j[2]),
        name=MIXED,
    )
    return mixed, total


register(OpSpec(NAME, _infer, _evaluate, _compute, kind="complex", domain=DOMAIN))

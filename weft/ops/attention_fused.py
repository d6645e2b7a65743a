"""Attention as one kernel: softmax(steps(q · kᵀ)) · v, the scores of a few queries at a time.

    FusedAttention(q, k, v, operand…)                                                        domain "weft"
        sizes        batch, heads, queries, keys, size of a key, size of a value; 0 for a size that is open: that of the
                     axis of an input along which it goes
        query, key, value   where an element lies in its input: [offset, steps by batch, head, place and element], for
                     each axis of the input
        steps        what happens to a score before the softmax, in order (STEPS)
        numbers      one number a step, for those that take one
        padded       queries, keys and elements of a value, rounded up to the tiles of a schedule; a fourth number cuts
                     the keys into parts of so many, or, if it is 0, has the powers divided before they weigh values;
                     a fifth is the size of a key, rounded up; without it narrow operands are widened as they are read;
                     a negative one: rounded up to a multiple of so many, as an open size is
        shared       neighbouring heads of queries with the same keys and values: one, if it is not said
        empty_rows   0: a query that sees no key gives no numbers (Softmax's meaning); 1: zeros (Attention's);
                     2: zeros for any row without numbers (as exporters write Attention)
        heads_inside 0: the result is (batch, heads, queries, elements); 1: (batch, queries, heads, elements)
        fresh        where a key and a value lie in q, as `key` says it of k, that are not in k and v yet: those of the
                     place that the operand of the last step, "until", says. Two inputs more, cosine and sine, turn this
                     key and the queries, as RotaryEmbedding does

Narrow operands (bfloat16) are multiplied as they are; sums and scores are float32, powers narrow again.

q, k and v are vectors, or matrices where sizes are open: a pass (`graph/passes/attention.py`) reads through the
transposes, splits and reshapes before them, so that nothing is stored only to lie in another order. Operands of steps
broadcast to (batch, heads, queries, keys).

As a tensor program:

    queries, keys, values   copies in the order in which the products read them, zeros in the padding
    scores, masked          products, and the steps on them; minus infinity in the padding
    top, grown, total       the softmax before its division
    mixed                   products with the values
    attention               mixed · (1 / total)

Where powers are divided first (`_shares`), the softmax is whole before the second product: three kernels, each of the
kind that any matrix product or softmax has.

In parts, each part of the keys has a softmax of its own: top, total and mixed have one more axis, and the parts are
weighed by the power of their top when they are added up. Of narrow operands a part hands nothing on: a schedule adds
the parts up as they come, by a running maximum (`Schedule.online`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from weft import te
from weft.core.dtypes import DType
from weft.expr.nodes import Expr, index_expr, int_value
from weft.graph.ir import Array, Dim, TensorType, Type, same_dim
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.shapes import divided, times
from weft.ops.activations_softmax import softmax_array
from weft.ops.attention import probabilities
from weft.ops.attention_positions import partner_of, rotated, turned_by
from weft.ops.convolution import dims_of
from weft.ops.elementwise_support import expect_broadcast, expect_shape, widen

DOMAIN = "weft"
NAME = "FusedAttention"

QUERIES, KEYS, VALUES, SCORES, MASKED, TOP, GROWN, TOTAL, MIXED, RESULT = (
    "attention_queries", "attention_keys", "attention_values", "attention_scores", "attention_masked",
    "attention_top", "attention_grown", "attention_total", "attention_mixed", "attention",
)  # fmt: skip
"""The stages of the program, by which a schedule knows them."""

PLAIN = "attention_"
"""What the names of stages lack where powers are divided first: each is scheduled as any other of its kind."""

PART, LIMIT, PEAK, SHARE, WHOLE_TOTAL, WHOLE = (
    "attention_part", "attention_limit", "attention_peak", "attention_share", "attention_whole_total",
    "attention_whole",
)  # fmt: skip
"""The stages that only a program in parts has: what a part hands on, and the sums over the parts."""

FRESH, OWN, PARTNER, COSINE, SINE, PAST_KEYS, PAST_VALUES = (
    "attention_fresh", "attention_own", "attention_partner", "attention_cosine", "attention_sine",
    "attention_past_keys", "attention_past_values",
)  # fmt: skip
"""The stages that only a program with fresh rows has: queries, a key and a value, of what; and the caches."""

OPERANDS = ("query", "key", "value")

STEPS = {
    "scale": "times the number",
    "add": "plus the operand",
    "keep": "where the operand is false, the number instead",
    "drop": "where the operand is true, the number instead",
    "allow": "where the operand is false, plus minus infinity",
    "causal": "for keys later than the query, by more than the number, minus infinity instead",
    "until": "for keys from the operand's number for the batch on, minus infinity instead; causal, if the number says "
    "how many queries are the last ones of that; of minus a number, for keys so many further on",
}
ALONE = ("scale", "causal")
"""Steps without an operand."""

HIDING = ("causal", "until", "allow")
"""Steps that leave a score as it is, or make it minus infinity."""

_MINUS = float("-inf")
_FAR = 1e38
"""Numbers beyond are not multiplied by units: they would leave the range."""


class Sizes(NamedTuple):
    """What is computed: `size` elements of a query and a key, `value_size` of a value and of the result."""

    batch: Any
    heads: Any
    queries: Any
    keys: Any
    size: int
    value_size: int


class Padded(NamedTuple):
    """Sizes of the stages, rounded up."""

    queries: Any
    keys: Any
    value_size: int


class Read(NamedTuple):
    """A stage of parts, and how its elements are read."""

    stage: te.Tensor
    at: Callable[[Any], Expr]


def _places(c: Use, name: str) -> list[list[int]]:
    """For each axis of an input its offset and the steps by batch, head, place and element."""
    numbers = [int(n) for n in c.need(name)]
    return [numbers[at : at + 5] for at in range(0, len(numbers), 5)]


def _sizes(c: Use, shapes: Sequence[Sequence[Dim]]) -> Sizes:
    """The sizes, for inputs of these shapes."""
    given = [int(n) for n in c.need("sizes")]
    found: dict[int, Any] = {}
    for name, shape in zip(OPERANDS, shapes):
        for size, place in zip(shape, _places(c, name)):
            for at, step in enumerate(place[1:4]):
                if step:
                    found.setdefault(at if at < 2 or name == "query" else 3, size)
    return Sizes(*(n or found.get(at, 0) for at, n in enumerate(given)))


def _shared(c: Use) -> int:
    return int(c.get("shared", 1))


def _extents(c: Use, sizes: Sizes) -> dict[str, tuple[Any, Any, Any, int]]:
    """The four sizes of each operand."""
    heads = sizes.heads // _shared(c)
    return {
        "query": (sizes.batch, sizes.heads, sizes.queries, sizes.size),
        "key": (sizes.batch, heads, sizes.keys, sizes.size),
        "value": (sizes.batch, heads, sizes.keys, sizes.value_size),
    }


def _steps(c: Use) -> list[tuple[str, float]]:
    return [(str(step), float(number)) for step, number in zip(c.get("steps", ()), c.get("numbers", ()))]


def _out_shape(c: Use, sizes: Sizes) -> tuple[Any, Any, Any, int]:
    if c.get("heads_inside", 0):
        return sizes.batch, sizes.queries, sizes.heads, sizes.value_size
    return sizes.batch, sizes.heads, sizes.queries, sizes.value_size


def _infer(c: Infer) -> Sequence[Type]:
    sizes, steps = _sizes(c, [c.tensor(at).dims for at in range(3)]), _steps(c)
    if any(isinstance(n, int) and n < 1 for n in sizes) or any(step not in STEPS for step, _ in steps):
        raise c.error(f"its sizes {list(sizes)} must be positive, and its steps be among {', '.join(STEPS)}")
    if _shared(c) < 1 or _shared(c) > 1 and (not isinstance(sizes.heads, int) or sizes.heads % _shared(c)):
        raise c.error(f"its {sizes.heads} heads are no multiple of the {_shared(c)} that share keys")
    fresh = 2 if c.get("fresh", ()) else 0
    if len(c.types) != 3 + sum(step not in ALONE for step, _ in steps) + fresh:
        raise c.error(f"it has {len(c.types)} inputs, which do not fit its steps {[step for step, _ in steps]}")
    for position, (name, extents) in enumerate(_extents(c, sizes).items()):
        _expect_view(c, position, name, extents)
    if fresh and (not steps or steps[-1][0] != "until"):
        raise c.error("the place of fresh rows is missing")
    taking = [step for step, _ in steps if step not in ALONE]
    for position, step in enumerate(taking, 3):
        if step == "until":
            expect_shape(c, position, (sizes.batch,))
        else:
            expect_broadcast(c, position, (sizes.batch, sizes.heads, sizes.queries, sizes.keys))
    return [TensorType(c.tensor(0).dtype, _out_shape(c, sizes))]


def _expect_view(c: Infer, position: int, name: str, extents: Sequence[Any]) -> None:
    """That an operand's elements lie inside its input: along an open axis all of it lies, place by place."""
    kind, places = c.tensor(position), _places(c, name)
    fits = len(kind.dims) == len(places)
    for size, (offset, *strides) in zip(kind.dims, places):
        fits = fits and len(strides) == 4 and min(offset, *strides) >= 0
        taken = [(step, n) for step, n in zip(strides, extents) if step]
        if all(isinstance(n, int) for _, n in taken):
            fits = fits and (not isinstance(size, int) or offset + sum(step * (n - 1) for step, n in taken) < size)
        else:
            fits = fits and offset == 0 and [step for step, _ in taken] == [1]
            fits = fits and (isinstance(size, int) or same_dim(taken[0][1], size))
    if not fits:
        raise c.error(f"{name}={places} does not lie inside input {position}, {kind!r}")


# ---------------------------------------------------------------------------------------------------- numpy meaning


def _evaluate(c: Evaluate, *arrays: Array) -> Array:
    sizes = _sizes(c, [x.shape for x in arrays])
    kind = arrays[0].dtype
    wide = np.dtype(np.float32) if kind.itemsize < 4 else kind
    extents = _extents(c, sizes)
    q, k, v = (_seen(_places(c, name), x.astype(wide), shape) for x, (name, shape) in zip(arrays, extents.items()))
    if c.get("fresh", ()):
        q, k, v = _joined(c, arrays, q, k, v)
        arrays = arrays[:-2]
    k, v = (np.repeat(x, _shared(c), 1) for x in (k, v))
    scores = np.matmul(q, k.swapaxes(-1, -2))
    operands = iter(arrays[3:])
    for step, number in _steps(c):
        value = np.array(number, scores.dtype)
        if step == "scale":
            scores = scores * value
        elif step == "causal":
            seen = np.arange(sizes.keys) <= np.arange(sizes.queries)[:, None] + int(number)
            scores = np.where(seen, scores, np.array(_MINUS, scores.dtype))
        elif step == "until":
            ends = next(operands).reshape(-1, 1, 1, 1)
            last = ends - (int(number) - 1 - np.arange(sizes.queries)[:, None] if number > 0 else int(number))
            scores = np.where(np.arange(sizes.keys) < last, scores, np.array(_MINUS, scores.dtype))
        elif step == "add":
            scores = scores + next(operands)
        elif step == "allow":
            scores = scores + np.where(next(operands), 0, _MINUS).astype(scores.dtype)
        else:
            arms = (scores, value) if step == "keep" else (value, scores)
            scores = np.where(next(operands), *arms)
    empty = int(c.get("empty_rows", 0))
    shares = probabilities(scores) if empty == 1 else softmax_array(scores, -1)
    made = np.matmul(np.nan_to_num(shares, nan=0.0) if empty == 2 else shares, v).astype(kind)
    return np.ascontiguousarray(made.swapaxes(1, 2)) if c.get("heads_inside", 0) else made


def _seen(places: Sequence[Sequence[int]], x: Array, shape: Sequence[int]) -> Array:
    first = x[tuple(slice(place[0], None) for place in places)]
    strides = [sum(place[at] * n for place, n in zip(places, x.strides)) for at in range(1, 5)]
    return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)


def _joined(c: Evaluate, arrays: Sequence[Array], q: Array, *caches: Array) -> tuple[Array, Array, Array]:
    """Queries that are turned, and caches with their fresh rows."""
    x, *_, starts, cosine, sine = arrays
    made, (batch, heads, _, size) = [cache.copy() for cache in caches], caches[0].shape
    for at, (place, cache) in enumerate(zip(_places(c, "fresh"), made)):
        rows = _seen([place], x, (batch, heads, 1, size))
        rows = rows if at else rotated(c, rows, cosine, sine, starts[:, None])
        cache[np.arange(batch), :, starts] = rows[:, :, 0]
    turned = rotated(c, q.astype(x.dtype), cosine, sine, np.broadcast_to(starts[:, None], (batch, q.shape[2])))
    return turned.astype(q.dtype), made[0], made[1]


# ------------------------------------------------------------------------------------------------ tensor expression


def _read(places: Sequence[Sequence[int]], tensor: te.Tensor, at: Sequence[Any]) -> Expr:
    """The element of an operand at (batch, head, place, element)."""
    return tensor[tuple(_place(place, at) for place in places)]


def _place(place: Sequence[int], at: Sequence[Any]) -> Any:
    """An index of an input, by an offset and steps by batch, head, place and element."""
    offset, *strides = place
    return sum((index * step for index, step in zip(at, strides) if step), start=offset)


def _rounded(given: int, size: Any) -> Any:
    """A size of a stage: a number, or the next multiple of one."""
    return given if given > 0 else times(divided(size, -given, up=True), -given)


def _inside(at: Sequence[Any], limits: Sequence[Any], value: Expr, otherwise: Expr) -> Expr:
    """A value where each index is under its limit (None: it always is)."""
    tests = [index < limit for index, limit in zip(at, limits) if limit is not None]
    return te.select(te.all(*tests), value, otherwise) if tests else value


def _fresh_rows(
    c: Use, sizes: Sizes, x: te.Tensor, starts: te.Tensor, angles: Sequence[te.Tensor], kind: Any
) -> te.Tensor:
    """The rows of a head that are not in a cache: queries and a key of this call, turned by its place; a value."""
    queries, shared = sizes.queries, _shared(c)
    query, key, value = *_places(c, "query"), *_places(c, "fresh")
    columns = int_value(angles[0].shape[1]) or 1
    turns = [
        te.stage((sizes.batch, columns), lambda b, at, one=one: widen(one[index_expr(starts[b]), at]), name=name)
        for one, name in zip(angles, (COSINE, SINE))
    ]

    def element(b: Any, h: Any, r: Any, d: Any) -> Expr:
        kept = te.select(r < queries + 1, *(_place(one, (b, h // shared, 0, d)) for one in (key, value)))
        return widen(x[te.select(r < queries, _place(query, (b, h, te.minimum(r, queries - 1), d)), kept)])

    def row(b: Any, h: Any, r: Any, e: Any) -> Expr:
        angle = [lambda at, one=one: one[b, at] for one in turns]
        made = turned_by(c, e, sizes.size, own[b, h, r, e], partner[b, h, r, e], *angle)
        return te.select(r < queries + 1, made, own[b, h, r, e]).astype(x.dtype).astype(kind)

    shape = sizes.batch, sizes.heads, queries + 2, sizes.size
    own = te.stage(shape, element, name=OWN)
    partner = te.stage(shape, lambda b, h, r, e: element(b, h, r, partner_of(c, e, sizes.size)), name=PARTNER)
    return te.stage(shape, row, name=FRESH)


def _with_fresh(cache: te.Tensor, row: int, places: te.Tensor, rows: te.Tensor) -> Callable[..., Expr]:
    """A cache with one of the fresh rows in its place."""
    return lambda b, h, j, e: te.select(te.equal(j, index_expr(places[b])), rows[b, h, row, e], cache[b, h, j, e])


def _compute(c: Compute, query: te.Tensor, key: te.Tensor, value: te.Tensor, *operands: te.Tensor) -> Any:
    sizes = _sizes(c, [dims_of(x) for x in (query, key, value)])
    real = (sizes.queries, sizes.keys, sizes.value_size)
    given_sizes = [int(n) for n in c.get("padded", real)]
    padded, part = Padded(*map(_rounded, given_sizes, real)), given_sizes[3] if len(given_sizes) > 3 else 0
    depth = given_sizes[4] if len(given_sizes) > 4 else sizes.size
    deep = None if depth == sizes.size else sizes.size
    around, steps = (sizes.batch, sizes.heads), _steps(c)
    operands, angles = (operands[:-2], operands[-2:]) if c.get("fresh", ()) else (operands, ())
    narrow = query.dtype.bytes < 4 and not (part and len(given_sizes) == 4)
    wide = "float32" if query.dtype.bytes < 4 else query.dtype
    kind = query.dtype if narrow else wide
    zero = te.const(0, kind)
    ends = next((x for x, (step, _) in zip(operands, [s for s in steps if s[0] not in ALONE]) if step == "until"), None)
    limits = [None if same_dim(n, limit) else limit for n, limit in zip(padded, real)]
    # A factor that comes first is cheaper on the queries than on the scores; narrow queries would be rounded.
    first = steps[0] if steps and steps[0][0] == "scale" and not narrow else None
    factor = None if first is None else te.const(first[1], kind)
    # Matrix instructions take whole steps of the second product too: keys of the padding have values, zeros.
    filled = bool(part) or narrow
    divides_first = len(given_sizes) > 3 and not part

    rows = _fresh_rows(c, sizes, query, operands[-1], angles, kind) if angles else None

    def asked(*at: Any) -> Expr:
        found = _read(_places(c, "query"), query, at).astype(kind) if rows is None else rows[at]
        return _inside(at[2:], [limits[0], deep], found if factor is None else found * factor, zero)

    def shared(name: str, tensor: te.Tensor, at: Sequence[Any]) -> Expr:
        b, h, *place = at
        own = (b, h if _shared(c) == 1 else h // _shared(c), *place)
        found = _read(_places(c, name), tensor, own).astype(kind)
        return found if ends is None else te.select(place[0] < index_expr(ends[b]), found, zero)  # none is read behind

    def held(*at: Any) -> Expr:
        return _inside(at[2:], [limits[1], deep], shared("key", key, at), zero)

    def given(*at: Any) -> Expr:
        return _inside(at[2:], [limits[1] if filled else None, limits[2]], shared("value", value, at), zero)

    def named(stage: str) -> str:
        return stage.removeprefix(PLAIN) if divides_first else stage

    queries = te.compute((*around, padded.queries, depth), asked, name=named(QUERIES))
    count = padded.keys if filled else sizes.keys
    stages: list[Any] = [((*around, padded.keys, depth), held), ((*around, count, padded.value_size), given)]
    if rows is not None:
        caches = [te.stage(shape, element, name) for (shape, element), name in zip(stages, (PAST_KEYS, PAST_VALUES))]
        new = [_with_fresh(*pair, operands[-1], rows) for pair in zip(caches, (sizes.queries, sizes.queries + 1))]
        stages = [(cache.shape, element) for cache, element in zip(caches, new)]
    keys, values = (te.stage(shape, element, named(name)) for (shape, element), name in zip(stages, (KEYS, VALUES)))
    d = te.reduce_axis(depth, name="d")
    empty = int(c.get("empty_rows", 0))
    whole = None if part else (*around, sizes.queries, sizes.keys)
    masking = Masking(operands, steps if factor is None else steps[1:], limits, whole)
    if part:
        if narrow:
            mixed, total = _narrow_in_parts(queries, keys, values, masking, part)
        else:
            mixed, total = _in_parts(queries, keys, values, masking, part, empty == 1)
        return _divided(c, sizes, mixed, total, empty, query.dtype)
    scores = te.compute(
        (*around, padded.queries, padded.keys),
        lambda b, h, i, j: te.sum(queries[b, h, i, d].astype(wide) * keys[b, h, j, d].astype(wide), axis=d),
        name=named(SCORES),
    )
    masked = te.stage(
        scores.shape, lambda b, h, i, j: masking.score(scores[b, h, i, j], (b, h, i, j)), name=named(MASKED)
    )
    if divides_first:
        return _weighed(c, sizes, _shares(masked, empty, query.dtype), values)
    mixed, total = _mixed(masked, values, empty == 1)
    return _divided(c, sizes, mixed, total, empty, query.dtype)


def _divided(c: Compute, sizes: Sizes, mixed: te.Tensor, total: te.Tensor, empty: int, kind: DType) -> te.Tensor:
    """The result: what was mixed, divided by the sums of the powers."""
    zero = te.const(0, mixed.dtype)

    def share(b: Any, h: Any, i: Any, e: Any) -> Expr:
        # One division a row; a sum of powers is at least 1, that of the greatest score.
        made: Expr = mixed[b, h, i, e] * (te.const(1, mixed.dtype) / total[b, h, i])
        if empty == 1:
            made = te.select(te.equal(total[b, h, i], zero), zero, made)
        if empty == 2:
            made = te.select(total[b, h, i] > zero, made, zero)  # neither is a sum that is no number
        return made.astype(kind)

    inside = bool(c.get("heads_inside", 0))
    return te.stage(
        _out_shape(c, sizes), lambda b, x, y, e: share(b, y, x, e) if inside else share(b, x, y, e), name=RESULT
    )


@dataclass(frozen=True)
class Masking:
    """What is done to scores before the softmax: steps with their operands; keys of the padding are never seen."""

    operands: Sequence[te.Tensor]
    steps: Sequence[tuple[str, float]]
    limits: Sequence[Any]
    """Of queries and keys, beyond which the padding is; None: there is none."""
    whole: Sequence[Any] | None = None
    """The sizes of the scores, which operands broadcast to."""

    def score(self, made: Expr, at: Sequence[Any], unit: float = 1.0) -> Expr:
        """The score of (batch, head, query, key) after its steps, in a unit: so much is 1."""
        (b, h, i, j), steps, limits = at, self.steps, self.limits
        kind = made.dtype
        minus = te.const(_MINUS, kind)

        def in_units(e: Expr) -> Expr:  # a power of a number that is so far below is 0 in any unit
            return te.select(e > te.const(-_FAR, kind), e * te.const(unit, kind), e)

        if unit != 1 and (not steps or steps[0][0] != "scale"):
            steps = [("scale", 1.0), *steps]
        # Places of the padding read the operands of the last one: nobody reads what they give.
        row = i if limits[0] is None else te.minimum(i, limits[0] - 1)
        rest = iter(self.operands)
        for at_step, (step, number) in enumerate(steps):
            other = te.const(number * unit if abs(number) < _FAR else number, kind)
            operand: Any = None if step in ALONE else next(rest)
            if operand is not None and step != "until":
                operand = te.broadcast_read(operand, (b, h, row, j), self.whole)
            if step == "scale":
                made = made * te.const(number * unit if at_step == 0 else number, kind)
            elif step == "causal":
                made = te.select(j <= i + int(number), made, minus)
            elif step == "until":
                end = index_expr(operand[b])
                last = end - (int(number) - 1 - i) if number > 0 else end + int(-number) if number else end
                made = te.select(j < last, made, minus)
            elif step == "add":
                made = made + (operand.astype(kind) if unit == 1 else in_units(operand.astype(kind)))
            elif step == "allow":
                made = made + te.select(operand, te.const(0, kind), minus)
            else:
                made = te.select(operand, made, other) if step == "keep" else te.select(operand, other, made)
        return _inside((j,), limits[1:2], made, minus)


def _mixed(masked: te.Tensor, values: te.Tensor, zeros: bool) -> tuple[te.Tensor, te.Tensor]:
    """Values weighed by the powers of the scores, and the sums of the powers: 0 for an empty row, if `zeros`."""
    lowest = te.const(float(np.finfo(masked.dtype.name).min), masked.dtype)
    shape, (keys, size) = masked.shape, values.shape[2:]
    j = [te.reduce_axis(n, name=name) for n, name in ((shape[3], "top_key"), (shape[3], "sum_key"), (keys, "key"))]
    top = te.compute(shape[:3], lambda b, h, i: te.max(masked[b, h, i, j[0]], axis=j[0]), name=TOP)

    def grow(b: Any, h: Any, i: Any, k: Any) -> Expr:
        greatest = te.maximum(top[b, h, i], lowest) if zeros else top[b, h, i]
        return te.exp(masked[b, h, i, k] - greatest).astype(values.dtype)

    grown = te.compute(shape, grow, name=GROWN)
    wide = masked.dtype
    total = te.compute(shape[:3], lambda b, h, i: te.sum(grown[b, h, i, j[1]].astype(wide), axis=j[1]), name=TOTAL)
    mixed = te.compute(
        (*shape[:3], size),
        lambda b, h, i, e: te.sum(grown[b, h, i, j[2]].astype(wide) * values[b, h, j[2], e].astype(wide), axis=j[2]),
        name=MIXED,
    )
    return mixed, total


def _shares(masked: te.Tensor, empty: int, kind: DType) -> te.Tensor:
    """The softmax of the scores, as narrow as the values; of a row without keys zeros, if that is meant."""
    shape, wide = masked.shape, masked.dtype
    lowest, zero = te.const(float(np.finfo(wide.name).min), wide), te.const(0, wide)
    j = [te.reduce_axis(shape[3], name=name) for name in ("top_key", "sum_key")]
    top = te.compute(shape[:3], lambda b, h, i: te.max(masked[b, h, i, j[0]], axis=j[0]), name="top")

    def power(b: Any, h: Any, i: Any, k: Any) -> Expr:
        return te.exp(masked[b, h, i, k] - (te.maximum(top[b, h, i], lowest) if empty == 1 else top[b, h, i]))

    total = te.compute(shape[:3], lambda b, h, i: te.sum(power(b, h, i, j[1]), axis=j[1]), name="total")

    def share(b: Any, h: Any, i: Any, k: Any) -> Expr:
        made: Expr = power(b, h, i, k) * (te.const(1, wide) / total[b, h, i])
        if empty == 1:
            made = te.select(te.equal(total[b, h, i], zero), zero, made)
        if empty == 2:
            made = te.select(total[b, h, i] > zero, made, zero)
        return made.astype(kind)

    return te.stage(shape, share, name="shares")


def _weighed(c: Compute, sizes: Sizes, shares: te.Tensor, values: te.Tensor) -> te.Tensor:
    """Values weighed by their shares: the result."""
    j, wide = te.reduce_axis(values.shape[2], name="key"), "float32"
    mixed = te.compute(
        (*shares.shape[:3], values.shape[3]),
        lambda b, h, i, e: te.sum(shares[b, h, i, j].astype(wide) * values[b, h, j, e].astype(wide), axis=j),
        name="mixed",
    )
    inside = bool(c.get("heads_inside", 0))
    return te.stage(
        _out_shape(c, sizes),
        lambda b, x, y, e: (mixed[b, y, x, e] if inside else mixed[b, x, y, e]).astype(values.dtype),
        name=RESULT,
    )


def _in_parts(
    queries: te.Tensor, keys: te.Tensor, values: te.Tensor, masking: Masking, part: int, zeros: bool
) -> tuple[te.Tensor, te.Tensor]:
    """What `_mixed` gives, by parts of the keys; a part alone needs no sums over parts."""
    batch, heads, rows, _ = queries.shape
    count, width = (int_value(keys.shape[2]) or part) // part, values.shape[3]
    scores = _scores_in_parts(queries, keys, part)
    lowest = te.const(float(np.finfo(keys.dtype.name).min), keys.dtype)
    masked = _masked_in_parts(scores, masking)
    shape, j = scores.shape[:4], [te.reduce_axis(part, name=f"{name}_key") for name in ("top", "sum", "mix")]
    top = te.compute(shape, lambda *at: te.max(masked[(*at, j[0])], axis=j[0]), name=TOP)

    def greatest(value: Expr) -> Expr:  # of a part (or row) without keys the powers are 0, not undefined
        return te.maximum(value, lowest) if zeros or count > 1 else value

    grown = te.compute(scores.shape, lambda *at: te.exp(masked[at] - greatest(top[at[:4]])), name=GROWN)
    total = te.compute(shape, lambda *at: te.sum(grown[(*at, j[1])], axis=j[1]), name=TOTAL)
    mixed = te.compute(
        (*shape, width),
        lambda b, h, p, i, e: te.sum(grown[b, h, p, i, j[2]] * values[b, h, p * part + j[2], e], axis=j[2]),
        name=MIXED,
    )
    if count == 1:
        only = te.const(0)
        flat = te.compute((batch, heads, rows), lambda b, h, i: total[b, h, only, i], name=WHOLE_TOTAL)
        return te.compute((batch, heads, rows, width), lambda b, h, i, e: mixed[b, h, only, i, e], name=WHOLE), flat

    def power(b: Any, h: Any, q: Any, i: Any, peak: Expr) -> Expr:
        return te.exp(handed[0].at((b, h, q, i)) - greatest(peak))

    handed = _handed_on(top, total, mixed)
    return _added_up(*handed, power)


def _scores_in_parts(queries: te.Tensor, keys: te.Tensor, part: int) -> te.Tensor:
    batch, heads, rows, size = queries.shape
    count, d = (int_value(keys.shape[2]) or part) // part, te.reduce_axis(size, name="d")
    wide = "float32" if keys.dtype.bytes < 4 else keys.dtype
    return te.stage(
        (batch, heads, count, rows, part),
        lambda b, h, p, i, k: te.sum(
            queries[b, h, i, d].astype(wide) * keys[b, h, p * part + k, d].astype(wide), axis=d
        ),
        name=SCORES,
    )


def _masked_in_parts(scores: te.Tensor, masking: Masking, unit: float = 1.0) -> te.Tensor:
    part = int_value(scores.shape[4]) or 1
    return te.stage(
        scores.shape,
        lambda b, h, p, i, k: masking.score(scores[b, h, p, i, k], (b, h, i, p * part + k), unit),
        name=MASKED,
    )


def _narrow_in_parts(
    queries: te.Tensor, keys: te.Tensor, values: te.Tensor, masking: Masking, part: int
) -> tuple[te.Tensor, te.Tensor]:
    """The same of narrow operands: powers of two, of which multiplying by one number makes powers of e.

    A factor before steps that only hide keys is left to the powers: the top of a row is the same without it.
    """
    kind, wide, unit, steps = keys.dtype, "float32", math.log2(math.e), masking.steps
    hiding = bool(steps) and steps[0][0] == "scale" and all(step in HIDING for step, _ in steps[1:])
    late = steps[0][1] * unit if hiding and 0 < steps[0][1] * unit <= 1 else None
    scores = _scores_in_parts(queries, keys, part)
    masked = _masked_in_parts(scores, *((replace(masking, steps=steps[1:]),) if late else (masking, unit)))
    shape, j = scores.shape[:4], [te.reduce_axis(part, name=f"{name}_key") for name in ("top", "sum", "mix")]
    lowest = te.const(float(np.finfo(wide).min), wide)

    def scaled(e: Expr) -> Expr:
        return e * te.const(late, wide) if late else e

    top = te.compute(shape, lambda *at: te.max(masked[(*at, j[0])], axis=j[0]), name=TOP)
    limit = te.compute(shape, lambda *at: scaled(te.maximum(top[at], lowest)), name=LIMIT)
    grown = te.compute(scores.shape, lambda *at: te.exp2(scaled(masked[at]) - limit[at[:4]]), name=GROWN)
    total = te.compute(shape, lambda *at: te.sum(grown[(*at, j[1])], axis=j[1]), name=TOTAL)
    mixed = te.compute(
        (*shape, values.shape[3]),
        lambda b, h, p, i, e: te.sum(
            grown[b, h, p, i, j[2]].astype(kind).astype(wide) * values[b, h, p * part + j[2], e].astype(wide), axis=j[2]
        ),
        name=MIXED,
    )

    def power(b: Any, h: Any, q: Any, i: Any, peak: Expr) -> Expr:
        return te.exp2(limit[b, h, q, i] - peak)

    tops, totals, sums = (Read(stage, stage.__getitem__) for stage in (limit, total, mixed))
    return _added_up(tops, totals, sums, power)


def _handed_on(top: te.Tensor, total: te.Tensor, mixed: te.Tensor) -> tuple[Read, Read, Read]:
    """What a part hands on: its top and its sum stand behind what it mixed."""
    width = int_value(mixed.shape[4]) or 1

    def handed(b: Any, h: Any, q: Any, i: Any, e: Any) -> Expr:
        behind = te.select(te.equal(e, width), top[b, h, q, i], total[b, h, q, i])
        return te.select(e < width, mixed[b, h, q, i, te.minimum(e, width - 1)], behind)

    part = te.compute((*top.shape, width + 2), handed, name=PART)
    behind = (lambda at: part[(*at, width)]), (lambda at: part[(*at, width + 1)])
    return Read(top, behind[0]), Read(total, behind[1]), Read(mixed, part.__getitem__)


def _added_up(top: Read, total: Read, mixed: Read, power: Callable[..., Expr]) -> tuple[te.Tensor, te.Tensor]:
    """Parts weighed by the powers of their tops."""
    batch, heads, count, rows = top.stage.shape
    p = [te.reduce_axis(count, name=f"{name}_part") for name in ("peak", "total", "whole")]
    peak = te.compute((batch, heads, rows), lambda b, h, i: te.max(top.at((b, h, p[0], i)), axis=p[0]), name=PEAK)
    share = te.compute(top.stage.shape, lambda b, h, q, i: power(b, h, q, i, peak[b, h, i]), name=SHARE)
    whole_total = te.compute(
        (batch, heads, rows),
        lambda b, h, i: te.sum(total.at((b, h, p[1], i)) * share[b, h, p[1], i], axis=p[1]),
        name=WHOLE_TOTAL,
    )
    whole = te.compute(
        (batch, heads, rows, mixed.stage.shape[4]),
        lambda b, h, i, e: te.sum(mixed.at((b, h, p[2], i, e)) * share[b, h, p[2], i], axis=p[2]),
        name=WHOLE,
    )
    return whole, whole_total


register(
    NAME,
    _infer,
    _evaluate,
    _compute,
    "complex",
    domain=DOMAIN,
    takes="Q:float, K:Q, V:Q, operand?, ...",
    traits="attention heavy",
    multiplies=3,
)

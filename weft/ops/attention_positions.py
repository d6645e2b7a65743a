"""Beside attention: RotaryEmbedding turns queries and keys by their place, TensorScatter writes into a cache.

Copy and UpdateRows are what TensorScatter becomes where the cache is updated in place (graph/passes/update_caches.py);
UpdateHeads is all of that for a token at once, or the writing alone for the caches of many layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr, Var, index_expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, Use, register
from weft.graph.passes.update_caches import COPY, DOMAIN, HEADS, UPDATE
from weft.graph.shapes import normal_axis
from weft.graph.signature import OneOf
from weft.loop.ir import For, If, Let, Stmt, Store
from weft.loop.passes.bind_independent import NAME as INDEPENDENT
from weft.ops.elementwise_support import expect_shape, infer_same, wide, widen

At = Callable[[Any], Expr]
"""A value at a place."""

# -------------------------------------------------------------------------------------------------- RotaryEmbedding


def _infer_rotary(c: Infer) -> Sequence[Type]:
    kind = c.tensor(0)
    if kind.shape is not None:
        if kind.rank == 3 and int(c.get("num_heads", 0)) < 1:
            raise c.error("an input of 3 dimensions needs the attribute num_heads")
        _check_caches(c, kind)
    return [kind]


def _check_caches(c: Infer, kind: TensorType) -> None:
    """The caches have a row for each place (or one for each position), and half the columns that are turned."""
    packed = kind.rank == 3
    batch, length = kind.dims[0], kind.dims[1 if packed else 2]
    width = kind.dims[-1]
    if not isinstance(width, int):
        return
    columns = _turned_size(c, width // int(c.get("num_heads", 1)) if packed else width) // 2
    for position in (1, 2):
        rows = c.tensor(1).shape
        if not c.has(3):
            expect_shape(c, position, (batch, length, columns))
        elif rows:
            expect_shape(c, position, (rows[0], columns))
    expect_shape(c, 3, (batch, length))


def _turned_size(c: Use, head_size: int) -> int:
    size = int(c.get("rotary_embedding_dim", 0)) or head_size
    if size % 2 or size > head_size:
        raise c.error(f"it cannot turn {size} of {head_size} elements: the number must be even, and not greater")
    return size


def rotated(c: Evaluate, x: Array, cosine: Array, sine: Array, places: Array | None = None) -> Array:
    """What RotaryEmbedding gives."""
    packed = x.ndim == 3
    data = wide(x)
    heads = data.reshape(*x.shape[:2], int(c.get("num_heads", 0)), -1) if packed else data.transpose(0, 2, 1, 3)
    size = _turned_size(c, heads.shape[3])
    if places is not None:
        if ((places < 0) | (places >= len(cosine))).any():
            raise c.error(f"a position lies outside the {len(cosine)} rows of the cache")
        cosine, sine = cosine[places], sine[places]
    turn, quarter = wide(cosine)[:, :, None, :], wide(sine)[:, :, None, :]
    if turn.shape[3] != size // 2:
        raise c.error(f"its caches have {turn.shape[3]} columns and {size // 2} are needed")
    first, second = slice(size // 2), slice(size // 2, size)
    if c.get("interleaved", 0):
        first, second = slice(0, size, 2), slice(1, size, 2)
    made = heads.copy()
    made[..., first] = turn * heads[..., first] - quarter * heads[..., second]
    made[..., second] = quarter * heads[..., first] + turn * heads[..., second]
    return np.asarray(made.reshape(x.shape) if packed else made.transpose(0, 2, 1, 3)).astype(x.dtype)


def _compute_rotary(
    c: Compute, x: te.Tensor, cosine: te.Tensor, sine: te.Tensor, places: te.Tensor | None = None
) -> te.Tensor:
    shape = c.shape(0)
    packed = len(shape) == 3
    head_size = shape[2] // int(c.need("num_heads")) if packed else shape[3]

    def row(tensor: te.Tensor, b: Any, s: Any, column: Any) -> Expr:
        if places is None:
            return widen(te.broadcast_read(tensor, (b, s, column)))
        return widen(tensor[index_expr(places[b, s]), column])

    def body(*i: Any) -> Expr:
        b, s, d = i[0], i[1] if packed else i[2], i[2] % head_size if packed else i[3]
        angles = (lambda at: row(cosine, b, s, at)), lambda at: row(sine, b, s, at)
        return turned(c, d, head_size, lambda place: widen(x[(*i[:-1], i[-1] - d + place)]), *angles)

    return te.stage(shape, body, name="rotary", dtype=x.dtype)


def turned(c: Use, d: Any, head_size: int, element: At, cosine: At, sine: At) -> Expr:
    """Element d of a head that is turned, by its elements and the angles of their columns."""
    return turned_by(c, d, head_size, element(d), element(partner_of(c, d, head_size)), cosine, sine)


def partner_of(c: Use, d: Any, head_size: int) -> Any:
    """The element with which element d of a head is turned."""
    half, interleaved = _turned_size(c, head_size) // 2, bool(c.get("interleaved", 0))
    step = 1 if interleaved else half
    is_first = te.equal(d % 2, 0) if interleaved else d < half
    return te.minimum(te.maximum(te.select(is_first, d + step, d - step), 0), head_size - 1)


def turned_by(c: Use, d: Any, head_size: int, own: Expr, partner: Expr, cosine: At, sine: At) -> Expr:
    """Element d of a head that is turned, by itself, its partner, and the angles of their column."""
    size, interleaved = _turned_size(c, head_size), bool(c.get("interleaved", 0))
    half = size // 2
    column = te.minimum(d // 2 if interleaved else d % half, half - 1)
    is_first = te.equal(d % 2, 0) if interleaved else d < half
    turn, quarter = cosine(column), sine(column)
    turned = te.select(is_first, turn * own - quarter * partner, quarter * partner + turn * own)
    return turned if size == head_size else te.select(d < size, turned, own)


register(
    "RotaryEmbedding",
    _infer_rotary,
    rotated,
    _compute_rotary,
    "injective",
    takes="X:float[_ _ _]|[_ _ _ _], cos_cache:X, sin_cache:X, position_ids:index?",
)


# ---------------------------------------------------------------------------------------------------- TensorScatter


def _axis(c: Use, rank: int) -> int:
    axis = normal_axis(c.get("axis", -2), rank, c.error)
    if axis == 0:
        raise c.error("its axis cannot be the batch")
    return axis


_MODES = (OneOf("mode", ("linear", "circular")),)


def _infer_scatter(c: Infer) -> Sequence[Type]:
    if c.tensor(0).shape:
        expect_shape(c, 2, (c.tensor(0).dims[0],))
    past, update = c.tensor(0), c.tensor(1)
    if past.is_static and update.is_static:
        axis = _axis(c, past.rank)
        fits = past.rank == update.rank and all(
            a >= b if d == axis else a == b for d, (a, b) in enumerate(zip(past.static, update.static))
        )
        if not fits:
            raise c.error(f"the update {update!r} does not fit into {past!r} along axis {axis}")
    return infer_same(c)


def _scatter(c: Evaluate, past: Array, update: Array, starts: Array | None = None) -> Array:
    axis = _axis(c, past.ndim)
    made = past.copy()
    for sample in range(past.shape[0]):
        start = 0 if starts is None else int(starts.reshape(-1)[sample])
        if c.get("mode", "linear") == "circular":
            start %= max(past.shape[axis], 1)
        elif start < 0 or start + update.shape[axis] > past.shape[axis]:
            raise c.error(f"sample {sample} is written from {start} on, outside the {past.shape[axis]} places")
        places = (start + np.arange(update.shape[axis])) % max(past.shape[axis], 1)
        np.moveaxis(made[sample], axis - 1, 0)[places] = np.moveaxis(update[sample], axis - 1, 0)
    return made


def _compute_scatter(c: Compute, past: te.Tensor, update: te.Tensor, starts: te.Tensor | None = None) -> te.Tensor:
    shape = c.shape(0)
    axis = _axis(c, len(shape))
    length, circular = c.shape(1)[axis], c.get("mode", "linear") == "circular"

    def body(*i: Any) -> Expr:
        start = te.const(0) if starts is None else index_expr(starts[i[0]])
        place = (i[axis] - start % shape[axis]) % shape[axis] if circular else i[axis] - start
        inside = te.all(place >= 0, place < length)
        safe = te.minimum(te.maximum(place, 0), length - 1)
        kept = i[axis]
        if starts is not None and not circular:
            # An update that does not fit leaves a place unwritten: what is read there lies outside, which fails.
            kept = te.select(te.all(start >= 0, start <= shape[axis] - length), kept, -1)
        return te.select(inside, update[(*i[:axis], safe, *i[axis + 1 :])], past[(*i[:axis], kept, *i[axis + 1 :])])

    return te.stage(shape, body, name="tensor_scatter")


register(
    "TensorScatter",
    _infer_scatter,
    _scatter,
    _compute_scatter,
    "injective",
    takes="past_cache[_ *s], update:past_cache, write_indices:index[_]?",
    requires=_MODES,
)


# ------------------------------------------------------------------------------------------------ a cache in its place


def _update_rows(c: Compute, past: te.Tensor, update: te.Tensor, starts: te.Tensor) -> Any:
    """Only the rows: the rest of the result is in its memory already. Rows that do not fit are not written, and the
    call fails."""
    shape, axis = c.shape(1), _axis(c, len(c.shape(0)))
    if 0 in shape:
        return None

    def build(given: Sequence[te.Tensor], made: Sequence[te.Tensor]) -> Stmt:
        variables = [Var(f"r{k}") for k in range(len(shape))]
        start = Var("start")
        at = [start + v if k == axis else v for k, v in enumerate(variables)]
        body: Stmt = Store(made[0], at, given[0][tuple(variables)])
        for variable, extent in reversed(list(zip(variables[1:], shape[1:]))):
            body = For(variable, extent, body, annotations={INDEPENDENT: True})
        body = Let(start, index_expr(given[1][variables[0]]), body)
        return For(variables[0], shape[0], body, annotations={INDEPENDENT: True})

    return te.extern(c.shape(0), [update, starts], build, name="update_rows", dtype=c.outputs[0].dtype)


def _copy(c: Compute, x: te.Tensor) -> te.Tensor:
    return te.stage(x.shape, lambda *at: x[at], name="copied")


register(COPY, infer_same, lambda c, x: x.copy(), _copy, "opaque", domain=DOMAIN, takes="X")
register(
    UPDATE,
    _infer_scatter,
    _scatter,
    _update_rows,
    "opaque",
    domain=DOMAIN,
    takes="past_cache[_ *s], update:past_cache, write_indices:index[_]",
    requires=_MODES,
    traits="updates",
)


def _caches(c: Use) -> int:
    """How many pairs of caches a node updates: it has one X for each, and queries come out of a lone one."""
    return int(c.need("updated")) // 2


def _infer_heads(c: Infer) -> Sequence[Type]:
    pairs, axis = _caches(c), int(c.need("split"))
    if pairs < 1 or len(c.types) != 3 * pairs + 4:
        raise c.error(f"it has {len(c.types)} inputs, which are not those of {pairs} pairs of caches")
    made: list[Type] = [c.tensor(at) for at in range(2 * pairs)]
    for at in range(pairs):
        keys, x = c.tensor(2 * at), c.tensor(2 * pairs + at)
        if not keys.is_static or not x.is_static:
            return [*made, TensorType(x.dtype, None)][: len(made) + int(c.get("turned", 1))]
        if {keys.rank, x.rank} != {4}:
            raise c.error("caches and heads have four axes")
        (batch, shared, _, size), length = keys.static, x.static[2]
        heads = x.static[1] if axis == 0 else x.static[1] - 2 * shared
        whole = (3 * batch, shared, length, size) if axis == 0 else (batch, heads + 2 * shared, length, size)
        expect_shape(c, 2 * pairs + at, whole)
        expect_shape(c, 3 * pairs + 2, (batch, length))
    return [*made, TensorType(x.dtype, (batch, heads, length, size))][: len(made) + int(c.get("turned", 1))]


def _heads(c: Evaluate, *arrays: Array) -> tuple[Array, ...]:
    pairs, axis, made = _caches(c), int(c.need("split")), []
    *given, cosine, sine, places, starts = arrays
    for keys, values, x in zip(given[: 2 * pairs : 2], given[1 : 2 * pairs : 2], given[2 * pairs :]):
        shared = keys.shape[0 if axis == 0 else 1]
        query, key, value = np.split(x, [x.shape[axis] - 2 * shared, x.shape[axis] - shared], axis)
        turned, key = (rotated(c, part, cosine, sine, places) for part in (query, key))
        made += [_scatter(c, keys, key, starts), _scatter(c, values, value, starts)]
    return (*made, turned)[: len(made) + int(c.get("turned", 1))]


def _update_heads(c: Compute, *tensors: te.Tensor) -> Any:
    """A thread for each element of queries, keys and values: the first are stored, the others written into caches."""
    pairs = _caches(c)
    (batch, shared, _, size), (_, count, length, _) = c.shape(0), c.shape(2 * pairs)
    axis, cache = int(c.need("split")), _axis(c, 4)
    heads = c.outputs[2].static[1] if c.get("turned", 1) else 0
    before = count - 2 * shared if axis else 0  # heads of queries in X, before those of keys

    def build(given: Sequence[te.Tensor], made: Sequence[te.Tensor]) -> Stmt:
        *all_x, cosine, sine, places, starts = given
        pair, b, h, s, d, start, angle = (Var(name) for name in ("pair", "b", "h", "s", "d", "start", "angle"))
        angles = [lambda at, one=one: widen(one[angle, at]) for one in (cosine, sine)]

        def part(x: te.Tensor, target: te.Tensor, number: int, first: int) -> Stmt:
            """The store of a query, a key or a value, whose heads begin at one of all."""
            own = h - first
            place = (b + number * batch, own) if axis == 0 else (b, own + (0, before, before + shared)[number])

            def element(at: Any) -> Expr:
                return widen(x[(*place, s, at)])

            value = element(d) if number == 2 else turned(c, d, size, element, *angles)
            at = [b, own, s, d]
            if number:
                at[cache] = at[cache] + start
            return Store(target, at, value.astype(x.dtype))

        bodies: list[Stmt] = []
        for at, x in enumerate(all_x):
            keys, values = (part(x, made[2 * at + n], n + 1, heads + n * shared) for n in range(2))
            body: Stmt = If(h < heads + shared, keys, values)
            bodies.append(If(h < heads, part(x, made[2], 0, 0), body) if heads else body)
        body = bodies[-1]
        for at, other in reversed(list(enumerate(bodies[:-1]))):
            body = If(te.equal(pair, at), other, body)
        body = Let(angle, index_expr(places[b, s]), Let(start, index_expr(starts[b]), body))
        for variable, extent in ((d, size), (s, length), (h, heads + 2 * shared), (b, batch), (pair, pairs)):
            body = For(variable, extent, body, annotations={INDEPENDENT: True})
        return body

    shapes, kinds = [kind.static for kind in c.outputs], [kind.dtype for kind in c.outputs]
    return te.extern(shapes, list(tensors[2 * pairs :]), build, name="update_heads", dtype=kinds)


register(
    HEADS,
    _infer_heads,
    _heads,
    _update_heads,
    "opaque",
    domain=DOMAIN,
    takes="past_keys:float[_ _ _ _], past_values:past_keys[_ _ _ _], more, ...",
    traits="updates",
)

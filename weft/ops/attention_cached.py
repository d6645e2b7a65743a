"""CachedAttention: few queries over a cache of fixed capacity, of which only the keys that are there are read.

    Q [batch, heads, queries, size], K, V [batch, key heads, capacity, size], lengths [batch]

It is what Attention with nonpad_kv_seqlen and no mask becomes on a processor (`graph/passes/cached_attention.py`). The
loops end where a sequence does: a token costs as much as it has keys before it, whatever the capacity is. Written as
loops, because how often they run is data:

    for each batch and head, query:                               threads
        for each key:        products with the query in lanes, their sum; the greatest score so far
        for each vector:     powers, their sum
        for each key:        its value, weighed, into sums in registers
        the sums, divided by that of the powers; zeros for a query that sees no key
"""

from __future__ import annotations

from typing import Any

from weft import te
from weft.core.dtypes import FLOAT32
from weft.expr.nodes import Expr, Var, index_expr
from weft.graph.ir import Array, TensorType, Type
from weft.graph.opspec import Compute, Evaluate, Infer, find_operator, register
from weft.graph.passes.cached_attention import DOMAIN, LANES, NAME
from weft.loop.ir import For, If, Let, Stmt, Store, seq


def _infer(c: Infer) -> list[Type]:
    query, value = c.tensor(0), c.tensor(2)
    if query.shape is None or value.shape is None:
        return [TensorType(query.dtype, None)]
    return [TensorType(query.dtype, (*query.dims[:-1], value.dims[-1]))]


def _evaluate(c: Evaluate, query: Array, keys: Array, values: Array, lengths: Array) -> Any:
    attention = find_operator("Attention")
    assert attention is not None
    return attention.meaning()(c, query, keys, values, None, None, None, lengths)


def _lanes(body: Any, width: int = LANES, start: int = 0) -> Stmt:
    lane = Var("lane")
    return For(lane, width, body(lane + start if start else lane), "vectorized")


class _Query:
    """The statements for one query of one head."""

    def __init__(self, c: Compute, given: Any, made: Any, at: tuple[Any, Any, Any]) -> None:
        self.c, (self.query, self.keys, self.values, self.lengths) = c, given
        self.out, self.scores, self.at = made[0], made[1], at
        (_, heads, self.queries, self.size), (_, shared, self.capacity, _) = c.shape(0), c.shape(1)
        self.width, self.shared = c.shape(2)[3], heads // shared
        self.dot, self.total, self.mixed, self.top = made[2:]
        self.zero, self.nothing = te.const(0.0, "float32"), te.const(float("-inf"), "float32")

    def key(self, place: Any) -> tuple[Any, ...]:
        """Where a key lies."""
        b, h, _ = self.at
        return (b, h // self.shared, place)

    def statement(self) -> Stmt:
        """All of it, for the keys from `first` on, `count` of them."""
        b, _, i = self.at
        first, count, last = Var("first"), Var("count"), Var("last")
        end = index_expr(self.lengths[b])
        place = end if not self.c.get("is_causal", 0) else end - self.queries + i + 1
        window = int(self.c.get("left_window_size", -1))
        own = end - self.queries + i
        start = index_expr(0) if window < 0 else te.minimum(te.maximum(own - window, 0), self.capacity)
        limit = te.minimum(te.maximum(place, 0), self.capacity)
        body: Stmt = seq(
            Store(self.top, (*self.at, index_expr(0)), self.nothing),
            self.score(first, count),
            self.powers(count),
            self.mix(first, count),
            self.divide(),
        )
        return Let(last, limit, Let(first, start, Let(count, te.maximum(last - first, 0), body)))

    def score(self, first: Var, count: Var) -> Stmt:
        """The scores of all keys, and their greatest."""
        j, score = Var("j"), Var("score", FLOAT32)
        place = self.key(first + j)

        def product(at: Any) -> Any:
            return self.query[(*self.at, at)] * self.keys[(*place, at)]

        steps = [_lanes(lambda x: Store(self.dot, (*self.at, x), product(x)))]
        steps += [
            _lanes(lambda x, k=k: Store(self.dot, (*self.at, x), self.dot[(*self.at, x)] + product(x + k)))
            for k in range(LANES, self.size, LANES)
        ]
        width = LANES // 2
        while width >= 4:
            steps.append(
                _lanes(
                    lambda x, w=width: Store(
                        self.dot, (*self.at, x), self.dot[(*self.at, x)] + self.dot[(*self.at, x + w)]
                    ),
                    width,
                )
            )
            width //= 2
        d = [self.dot[(*self.at, k)] for k in range(4)]
        scaled: Expr = ((d[0] + d[1]) + (d[2] + d[3])) * te.const(float(self.c.need("scale")), "float32")
        cap = float(self.c.get("softcap", 0.0) or 0.0)
        if cap:
            scaled = te.tanh(scaled / te.const(cap, "float32")) * te.const(cap, "float32")
        keep = seq(
            Store(self.scores, (*self.at, j), score),
            Store(self.top, (*self.at, index_expr(0)), te.maximum(self.top[(*self.at, 0)], score)),
        )
        return For(j, count, seq(*steps, Let(score, scaled, keep)))

    def powers(self, count: Var) -> Stmt:
        """Powers of the scores, in whole vectors: behind the last there is minus infinity, whose power is 0."""
        pad, v = Var("pad"), Var("v")
        behind = For(pad, LANES, Store(self.scores, (*self.at, count + pad), self.nothing))

        def power(x: Any) -> Stmt:
            at = (*self.at, v * LANES + x)
            made = te.exp(self.scores[at] - self.top[(*self.at, 0)])
            return seq(
                Store(self.scores, at, made),
                Store(self.total, (*self.at, x), self.total[(*self.at, x)] + self.scores[at]),
            )

        clear = _lanes(lambda x: Store(self.total, (*self.at, x), self.zero))
        vectors = For(v, (count + LANES - 1) // LANES, _lanes(power))
        return seq(behind, clear, If(count > 0, vectors))

    def mix(self, first: Var, count: Var) -> Stmt:
        """Values, weighed by the powers."""
        j, share = Var("n"), Var("share", FLOAT32)
        place = self.key(first + j)
        parts = range(0, self.width, LANES)
        clear = [_lanes(lambda x: Store(self.mixed, (*self.at, x), self.zero), LANES, k) for k in parts]
        add = [
            _lanes(
                lambda x: Store(
                    self.mixed, (*self.at, x), self.mixed[(*self.at, x)] + share * self.values[(*place, x)]
                ),
                LANES,
                k,
            )
            for k in parts
        ]
        return seq(*clear, For(j, count, Let(share, self.scores[(*self.at, j)], seq(*add))))

    def divide(self) -> Stmt:
        """The result."""
        whole, factor = Var("whole", FLOAT32), Var("factor", FLOAT32)
        total: Any = self.total[(*self.at, 0)]
        for k in range(1, LANES):
            total = total + self.total[(*self.at, k)]
        inverse = te.select(te.equal(whole, self.zero), self.zero, te.const(1.0, "float32") / whole)
        stores = [
            _lanes(lambda x: Store(self.out, (*self.at, x), self.mixed[(*self.at, x)] * factor), LANES, k)
            for k in range(0, self.width, LANES)
        ]
        return Let(whole, total, Let(factor, inverse, seq(*stores)))


def _compute(c: Compute, query: te.Tensor, keys: te.Tensor, values: te.Tensor, lengths: te.Tensor) -> Any:
    batch, heads, queries, _ = c.shape(0)
    capacity = c.shape(1)[2]

    def build(given: Any, made: Any) -> Stmt:
        head, i = Var("head"), Var("i")
        one = _Query(c, given, made, (head // heads, head % heads, i)).statement()
        return For(head, batch * heads, For(i, queries, one), "parallel")

    room = (capacity // LANES + 2) * LANES
    made = te.extern(
        [c.out_shape(), *((batch, heads, queries, n) for n in (room, LANES, LANES, c.shape(2)[3], 1))],
        [query, keys, values, lengths],
        build,
        name="cached_attention",
        dtype=["float32"] * 6,
    )
    return made[0]


register(
    NAME,
    _infer,
    _evaluate,
    _compute,
    "opaque",
    domain=DOMAIN,
    takes="Q:float32[_ _ _ d], K:float32[_ _ _ d], V:float32, lengths:int[_]",
    traits="attention heavy",
    multiplies=3,
)

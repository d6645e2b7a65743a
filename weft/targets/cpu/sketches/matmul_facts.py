"""Which axis plays which part in a matrix product: C[.., row, lane] += left[.., row, k] * right[.., k, lane].

In: a product as the default schedule found it (`Unit`). Out: a `Product`, for operands in any transposition, with any
axes in front; None for what is no matrix product (a convolution's window, a product without columns).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.expr.nodes import Add, Cast, Const, Expr, Load, Mul, Var, int_value, sub
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import uses_any
from weft.loop.ir import Axis
from weft.plan.planner import Unit
from weft.schedule.facts import Facts, extent, facts_of
from weft.schedule.schedule import Stage


@dataclass(frozen=True)
class Product:
    """A matrix product: its operands, the axes by their part, and the dimension of `right` that the columns index."""

    left: Load
    right: Load
    lane: Axis
    row: Axis | None
    depth: Axis
    outer: tuple[Axis, ...]
    lane_dim: int
    facts: Facts
    low: Load | None = None
    """Where `right` holds the upper part of whole numbers: the lower part, at the same place."""

    @property
    def m(self) -> int:
        """Rows of one product."""
        return 1 if self.row is None else extent(self.row)

    @property
    def n(self) -> int:
        """Columns."""
        return extent(self.lane)

    @property
    def k(self) -> int:
        """Length of the sums."""
        return extent(self.depth)

    @property
    def count(self) -> int:
        """How many products there are."""
        return math.prod(extent(axis) for axis in self.outer)

    @property
    def batch(self) -> tuple[Axis, ...]:
        """The outer axes with a right operand of their own."""
        return tuple(axis for axis in self.outer if uses(self.right, axis.var))

    @property
    def right_steps(self) -> tuple[int | None, int | None]:
        """How far apart the right operand's neighbours lie along the columns, and along the reduction."""
        return self.facts.step(self.right, self.lane.var), self.facts.step(self.right, self.depth.var)


def uses(load: Load, variable: Var) -> bool:
    """Whether a load's place depends on a variable."""
    return any(uses_any(index, {variable}) for index in load.indices)


def product_of(unit: Unit) -> Product | None:
    """The parts that the axes of a product play."""
    facts = unit.facts
    loads = operands(facts)
    if loads is None or len(facts.reduce) != 1 or any(axis.kind != "spatial" for axis in facts.spatial):
        return None
    lane = _lane_axis(unit)
    depth = facts.reduce[0]
    if lane is None:
        return None
    right, left = loads if uses(loads[0], lane.var) else loads[::-1]
    if not uses(right, lane.var) or uses(left, lane.var) or not all(uses(load, depth.var) for load in loads):
        return None
    dim = lane_dimension(facts, right, lane)
    if dim is None:
        return None
    alone = [a for a in facts.spatial if a is not lane and uses(left, a.var) and not uses(right, a.var)]
    row = max(alone, key=extent, default=None)
    row = None if row is None or extent(row) < 2 else row
    axes = [depth] if row is None else [depth, row]
    if any(facts.step(left, axis.var) is None for axis in axes) or facts.step(right, depth.var) is None:
        return None
    outer = tuple(a for a in facts.spatial if a is not lane and a is not row)
    return Product(left, right, lane, row, depth, outer, dim, facts, low_part(facts, right))


def operands(facts: Facts) -> tuple[Load, Load] | None:
    """The two loads of a sum of products, each perhaps converted."""
    store = facts.store
    if store is None or store.predicate is not None or type(store.value) is not Add:
        return None
    own = Load(store.buffer, store.indices)
    value = store.value
    term = value.b if structural_equal(value.a, own) else value.a
    if type(term) is not Mul or not (structural_equal(value.a, own) or structural_equal(value.b, own)):
        return None
    a, b = _plain(term.a), _plain(term.b)
    return None if a is None or b is None or a is b else (a, b)


def _plain(e: Expr) -> Load | None:
    """The load of an operand, perhaps converted or scaled; of a number in two parts (high * c + low) the first."""
    if type(e) is Mul and type(e.b) is Const:
        e = e.a
    while type(e) is Cast:
        e = e.value
    if type(e) is Add and type(e.a) is Mul and type(e.a.b) is Const:
        high, low = _plain(e.a.a), _plain(e.b)
        return high if high is not None and low is not None and _same_place(high, low) else None
    return e if type(e) is Load else None


def _same_place(a: Load, b: Load) -> bool:
    return len(a.indices) == len(b.indices) and all(map(structural_equal, a.indices, b.indices))


def low_part(facts: Facts, load: Load) -> Load | None:
    """The lower part of a number whose upper part a load holds."""
    others = (e for e in facts.loads if e.buffer is not load.buffer and e.buffer is not facts.target)
    return next((e for e in others if load.buffer.dtype.is_integer and _same_place(load, e)), None)


def _lane_axis(unit: Unit) -> Axis | None:
    """The axis along which neighbours are stored side by side: by the block that takes the sums, if there is one."""
    facts = unit.facts
    final = facts if unit.epilogue is None else facts_of(unit.epilogue)
    for axis in facts.spatial:
        at = axis.var if unit.epilogue is None else unit.to_epilogue[axis.var]
        if extent(axis) > 1 and final.store_step(at) == 1:
            return axis
    return None


def lane_dimension(facts: Facts, load: Load, axis: Axis) -> int | None:
    """The one dimension of a load that an axis indexes: by itself, or after a start that does not depend on it."""
    using = [d for d, index in enumerate(load.indices) if uses_any(index, {axis.var})]
    if len(using) != 1:
        return None
    start = simplify(sub(load.indices[using[0]], axis.var), facts.ranges)
    return None if uses_any(start, {axis.var}) else using[0]


def is_whole(product: Product) -> bool:
    """Whether the columns are a whole dimension of the right operand, so that a copy of it can be padded."""
    return product.right.indices[product.lane_dim] is product.lane.var and (
        int_value(product.right.buffer.shape[product.lane_dim]) == product.n
    )


def sums_and_final(unit: Unit) -> tuple[Stage, Stage, dict[Var, Var]]:
    """The stage that sums, the stage that takes the sums, and the latter's axis for each axis of the product."""
    s, facts = unit.schedule, unit.facts
    if unit.epilogue is not None:
        return s[facts.block.name], s[unit.epilogue.name], unit.to_epilogue
    sums = s.cache_write(facts.target.name, "local")
    final = s[facts.block.name]
    sums.set_scope("global")
    return sums, final, {axis.var: new.var for axis, new in zip(facts.spatial, final.block.axes)}

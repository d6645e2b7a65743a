"""Which axis plays which part in a matrix product: C[.., row, lane] += left[.., row, k] * right[.., k, lane].

In: a product as the default schedule found it (`Unit`). Out: a `Product`, for operands in any transposition, with any
axes in front; None for what is no matrix product (a convolution's window, a product without columns).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.expr.nodes import Load, Var, int_value
from weft.loop.ir import Axis
from weft.plan.contraction import dimension_of, low_part_of, operands_of, uses
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
        return tuple(axis for axis in self.outer if uses(self.right, axis))

    @property
    def right_steps(self) -> tuple[int | None, int | None]:
        """How far apart the right operand's neighbours lie along the columns, and along the reduction."""
        return self.facts.step(self.right, self.lane.var), self.facts.step(self.right, self.depth.var)


def product_of(unit: Unit) -> Product | None:
    """The parts that the axes of a product play."""
    facts = unit.facts
    loads = operands_of(facts)
    if loads is None or len(facts.reduce) != 1 or any(axis.kind != "spatial" for axis in facts.spatial):
        return None
    lane = _lane_axis(unit)
    depth = facts.reduce[0]
    if lane is None:
        return None
    right, left = loads if uses(loads[0], lane) else loads[::-1]
    if not uses(right, lane) or uses(left, lane) or not all(uses(load, depth) for load in loads):
        return None
    dim = dimension_of(facts, right, lane)
    if dim is None:
        return None
    alone = [a for a in facts.spatial if a is not lane and uses(left, a) and not uses(right, a)]
    row = max(alone, key=extent, default=None)
    row = None if row is None or extent(row) < 2 else row
    axes = [depth] if row is None else [depth, row]
    if any(facts.step(left, axis.var) is None for axis in axes) or facts.step(right, depth.var) is None:
        return None
    outer = tuple(a for a in facts.spatial if a is not lane and a is not row)
    return Product(left, right, lane, row, depth, outer, dim, facts, low_part_of(facts, right))


def _lane_axis(unit: Unit) -> Axis | None:
    """The axis along which neighbours are stored side by side: by the block that takes the sums, if there is one."""
    facts = unit.facts
    final = facts if unit.epilogue is None else facts_of(unit.epilogue)
    for axis in facts.spatial:
        at = axis.var if unit.epilogue is None else unit.to_epilogue[axis.var]
        if extent(axis) > 1 and final.store_step(at) == 1:
            return axis
    return None


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

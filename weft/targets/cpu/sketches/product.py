"""Which axis plays which part in a matrix product: C[.., row, lane] += left[.., row, k] * right[.., k, lane].

In: a product as the planner found it (`Unit`), or a step of a recurrence. Out: a `Product`, for operands in any
transposition, with any axes in front; None for what is no matrix product (a convolution's window, a product without
columns).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from weft.expr.nodes import Buffer, Load, int_value
from weft.expr.simplify import simplify
from weft.loop.ir import Axis
from weft.plan.contraction import Contraction, contraction_of, dimensions, start_along, uses
from weft.plan.planner import Unit
from weft.schedule.facts import Facts, extent
from weft.targets.cpu import model
from weft.targets.cpu.microkernels import MicroKernel
from weft.targets.cpu.sketches import nest


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
    is_open: bool = False
    """Whether there may be more or fewer rows than `m`."""

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
    def kinds(self) -> tuple[str, str, str]:
        """The element types of the operands, and of the sums."""
        return self.left.buffer.dtype.name, self.right.buffer.dtype.name, self.facts.target.dtype.name

    @property
    def right_steps(self) -> tuple[int | None, int | None]:
        """How far apart the right operand's neighbours lie along the columns, and along the reduction."""
        return self.facts.step(self.right, self.lane.var), self.facts.step(self.right, self.depth.var)

    @property
    def left_dims(self) -> tuple[int, int]:
        """The dimensions of the left operand that the reduction and the rows index (the first, for a single row)."""
        (down,) = dimensions(self.left, self.depth)
        (across,) = [0] if self.row is None else dimensions(self.left, self.row)
        return down, across

    @property
    def right_depth(self) -> list[int]:
        """The dimensions of the right operand that the reduction indexes."""
        return dimensions(self.right, self.depth)

    def has_rows_of_groups(self, group: int) -> bool:
        """Whether the left operand can be read where it lies, so many steps of the reduction at a time."""
        return group == 1 or (self.k % group == 0 and self.facts.step(self.left, self.depth.var) == 1)

    @property
    def has_all_columns(self) -> bool:
        """Whether the columns are a whole dimension of the right operand, so that a copy of it can be padded."""
        return self.has_whole(self.right, self.lane)

    def has_whole(self, load: Load, axis: Axis) -> bool:
        """Whether an axis is a whole dimension of an operand, so that a copy of it can be padded."""
        found = start_along(self.facts, load, axis)
        if found is None or load.indices[found[0]] is not axis.var:
            return False
        return int_value(load.buffer.shape[found[0]]) == extent(axis)

    def can_cut(self, load: Load, axis: Axis, size: int) -> bool:
        """Whether an axis is a whole dimension of an operand, or whole tiles of one."""
        found = start_along(self.facts, load, axis)
        if found is None or self.has_whole(load, axis):
            return found is not None
        return extent(axis) % size == 0 and int_value(simplify(found[1] % size, self.facts.ranges)) == 0

    def transposed(self, kernel: MicroKernel) -> int:
        """Where columns of the right operand lie as rows in memory, in whole squares or tiles: the side of those."""
        if kernel.depth == 1:
            return nest.side_of_squares(self.k, kernel.lanes) if self.right_steps[1] == 1 else 0
        rank = len(self.right.indices)
        lies = self.lane_dim == rank - 2 and self.right_depth == [rank - 1]
        return kernel.lanes if lies and self.n % (2 * kernel.lanes) == 0 and self.k % kernel.depth == 0 else 0


def product_of(unit: Unit) -> Product | None:
    """The parts that the axes of a product play. Columns are what lies side by side in the result."""
    found, axes = unit.contraction, unit.facts.spatial
    lane = next((axis for axis in axes if extent(axis) > 1 and nest.result_step(unit, axis.var) == 1), None)
    product = None if lane is None or found is None or unit.facts.is_ordered else _product(found, lane)
    return None if product is None else replace(product, is_open=unit.is_open(product.row))


def step_product(facts: Facts, constants: Collection[Buffer]) -> Product | None:
    """The product of a state with weights in each step of a recurrence; None for another block.

    What is not packed ahead is packed in each call, where enough rows meet it in all steps together.
    """
    lane, found = facts.spatial[-1], contraction_of(facts)
    if found is None or facts.spatial[0].kind != "ordered" or lane.kind != "spatial" or extent(lane) < 2:
        return None
    product = _product(found, lane) if facts.store_step(lane.var) == 1 else None
    if product is None:
        return None
    if product.m * extent(facts.spatial[0]) < model.LEAST_PACKED_ROWS and not is_packed_ahead(product, constants):
        return None
    return None if any(uses(product.right, axis) for axis in facts.spatial if axis is not lane) else product


def is_packed_ahead(product: Product, constants: Collection[Buffer]) -> bool:
    """Whether weights are packed when a model is compiled: those that never change, for all their columns at once."""
    return product.right.buffer in constants and product.has_all_columns


def _product(found: Contraction, lane: Axis) -> Product | None:
    """The parts of the axes beside that of the columns."""
    facts, (first, second) = found.facts, found.operands
    right, left = (first, second) if uses(first, lane) else (second, first)
    columns = start_along(facts, right, lane)
    if columns is None or uses(left, lane) or len(facts.reduce) != 1:
        return None
    depth = facts.reduce[0]
    row = max((a for a in found.only(left) if a.kind == "spatial" and extent(a) > 1), key=extent, default=None)
    steps = [facts.step(right, depth.var), *(facts.step(left, axis.var) for axis in (depth, row) if axis is not None)]
    if None in steps or not (uses(left, depth) and uses(right, depth)):
        return None
    outer = tuple(axis for axis in facts.spatial if axis is not lane and axis is not row)
    return Product(left, right, lane, row, depth, outer, columns[0], facts, found.low_part(right))

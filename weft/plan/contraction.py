"""The one recogniser of a product: which operands a block multiplies and sums, and which part each axis plays.

    C[n, co, y, x] += A[n, ci, y + ky, x + kx] * W[co, ci, ky, kx]

        operands      A, W          perhaps converted, scaled by a number, or a whole number in two parts
        only(A)       n, y, x       "rows" of the matrix product that it is: the pixels
        only(W)       co            its "columns"
        both          none          a batch: each product has operands of its own
        reduce        ci, ky, kx    of which ky and kx are a window: they share an index of A with a spatial axis

A matrix product, a batched or transposed one, a convolution in any layout, a depthwise one and a step of a recurrence
are all of this form; a sketch asks for the parts that it needs, and takes None for an answer where there are others.
In: `Facts` of a block. Out: a `Contraction`, or None.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from weft.core import model
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Add, Buffer, Cast, Const, Expr, FloorDiv, Load, Mul, Select, Var, int_value, sub
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import free_vars, uses_any, walk
from weft.loop.ir import Axis
from weft.loop.regions import conjuncts
from weft.loop.tree import writers
from weft.schedule.facts import Facts, extent, facts_of, sole_reader
from weft.schedule.schedule import Schedule


def uses(load: Load, axis: Axis) -> bool:
    """Whether a load's place depends on an axis."""
    return any(uses_any(index, {axis.var}) for index in load.indices)


def taps_along(facts: Facts, load: Load, axis: Axis) -> list[Axis]:
    """The axes of a reduction that move through what an axis indexes: the taps of a window along it."""
    indices = [index for index in load.indices if uses_any(index, {axis.var})]
    return [tap for tap in facts.reduce if any(uses_any(index, {tap.var}) for index in indices)]


def load_bytes(load: Load) -> int:
    """The size of what a load reads from."""
    return math.prod(int_value(size) or 1 for size in load.buffer.shape) * int(load.buffer.dtype.bytes)


def dimensions(load: Load, *axes: Axis) -> list[int]:
    """The dimensions of what a load reads that some axes index."""
    used = {axis.var for axis in axes}
    return [d for d, index in enumerate(load.indices) if uses_any(index, used)]


def start_along(facts: Facts, load: Load, axis: Axis) -> tuple[int, Expr] | None:
    """The one dimension of what a load reads that an axis indexes by itself, and where it starts there."""
    using = dimensions(load, axis)
    if len(using) != 1:
        return None
    start = simplify(sub(load.indices[using[0]], axis.var), facts.ranges)
    return None if uses_any(start, {axis.var}) else (using[0], start)


@dataclass(frozen=True)
class Contraction:
    """A sum of products: its block's facts, and the two operands, each read by one load."""

    facts: Facts
    operands: tuple[Load, Load]

    def other(self, operand: Load) -> Load:
        """The other operand."""
        return self.operands[1] if operand is self.operands[0] else self.operands[0]

    def only(self, operand: Load) -> tuple[Axis, ...]:
        """The spatial axes along which one operand moves and the other stays."""
        other = self.other(operand)
        return tuple(axis for axis in self.facts.spatial if uses(operand, axis) and not uses(other, axis))

    def weights(self, constants: Collection[Buffer]) -> tuple[Load, Load] | None:
        """The operand that changes, and the one that never does; None where that is not one each."""
        fixed = [load for load in self.operands if load.buffer in constants]
        return (self.other(fixed[0]), fixed[0]) if len(fixed) == 1 else None

    def low_part(self, operand: Load) -> Load | None:
        """Where an operand is the upper part of whole numbers: the load of the lower part, at the same place."""
        others = (e for e in self.facts.loads if e.buffer is not operand.buffer and _same_place(operand, e))
        return next(others, None) if operand.buffer.dtype.is_integer else None


def group_of(load: Load, axis: Axis) -> int | None:
    """How many neighbours along an axis read the same elements.

    All of them where a load does not move, those of a group where it moves by quotients, 1 where each has its own; None
    where that varies.
    """
    sizes: set[int] = set()
    for index in load.indices:
        divided = [e for e in walk(index) if isinstance(e, FloorDiv) and e.a is axis.var]
        if index is axis.var:
            sizes.add(1)
        elif sum(e is axis.var for e in walk(index)) != len(divided):
            return None
        sizes.update(int_value(e.b) or 0 for e in divided)
    size = sizes.pop() if len(sizes) == 1 else 0 if sizes else extent(axis)
    return size if size > 0 and extent(axis) % size == 0 else None


def is_sum_of_products(facts: Facts) -> bool:
    """Whether a block multiplies operands that spread over different axes and adds up: whatever they are made of."""
    store = facts.store
    if store is None or len(facts.loads) < 2 or facts.depth < model.LEAST_SUM:
        return False
    if not any(node.dtype is store.value.dtype for node in walk(store.value, Mul)):
        return False
    terms = [e for e in (store.value.a, store.value.b) if type(e) is Mul] if type(store.value) is Add else []
    if any(structural_equal(term.a, term.b) for term in terms):
        return False  # squares have one operand
    spread = {frozenset(axis.var for axis in facts.spatial if uses(load, axis)) for load in facts.loads}
    return len(spread) > 1


def tests_of(facts: Facts) -> list[Expr]:
    """The tests of a sum's own axes that choose which products count: loops are cut so that others are passed over."""
    store = facts.store
    term = store.value.b if store is not None and type(store.value) is Add else None
    if type(term) is not Select or walk(term.condition, Load):
        return []
    return conjuncts(term.condition)


def counted(facts: Facts) -> float:
    """The part of a sum's products that its tests let count, each test by itself."""
    share, sizes = 1.0, {axis.var: extent(axis) for axis in facts.block.axes}
    for test in tests_of(facts):
        axes = free_vars(test)
        points = itertools.product(*(range(sizes.get(var, 1)) for var in axes))
        holds = [bool(evaluate(test, dict(zip(axes, point)))) for point in points]
        share *= sum(holds) / len(holds)
    return share


def contraction_of(facts: Facts) -> Contraction | None:
    """The contraction that a block is, where it is a sum of products of two loads; None for any other block."""
    store = facts.store
    if store is None or store.predicate is not None or type(store.value) is not Add or not is_sum_of_products(facts):
        return None
    own = Load(store.buffer, store.indices)
    value = store.value
    term = value.b if structural_equal(value.a, own) else value.a
    if type(term) is not Mul or not (structural_equal(value.a, own) or structural_equal(value.b, own)):
        return None
    a, b = _operand(term.a), _operand(term.b)
    return None if a is None or b is None or a is b else Contraction(facts, (a, b))


def _operand(e: Expr) -> Load | None:
    """The load of an operand, perhaps converted or scaled; of a number in two parts (high * c + low) the first."""
    if type(e) is Mul and type(e.b) is Const:
        e = e.a
    while type(e) is Cast:
        e = e.value
    if type(e) is Add and type(e.a) is Mul and type(e.a.b) is Const:
        high, low = _operand(e.a.a), _operand(e.b)
        return high if high is not None and low is not None and _same_place(high, low) else None
    return e if type(e) is Load else None


def _same_place(a: Load, b: Load) -> bool:
    return len(a.indices) == len(b.indices) and all(map(structural_equal, a.indices, b.indices))


# ---------------------------------------------------------------------------------------------------------- epilogues


def same_points(maker: Facts, reader: Facts, indices: list[Expr]) -> Mapping[Var, Var] | None:
    """The reader's axis for each axis of a maker whose element it reads at `indices`, where both walk over the same.

    Axes of length 1 pair up: what broadcasts is read at 0.
    """
    if list(maker.block.writes[0].mins) != [axis.var for axis in maker.spatial]:
        return None
    single = [axis.var for axis in reader.spatial if extent(axis) == 1 and axis.var not in indices]
    mapping: dict[Var, Var] = {}
    for axis, index in zip(maker.spatial, indices):
        if extent(axis) == 1 and not isinstance(index, Var) and single:
            mapping[axis.var] = single.pop(0)
        elif isinstance(index, Var) and index not in mapping.values():
            mapping[axis.var] = index
        else:
            return None
    walked = {axis.var for axis in reader.spatial} - set(single)
    return mapping if walked == set(mapping.values()) else None


def attention_order(final: Facts, sums: str) -> list[int] | None:
    """The positions of batch, head, query and element among the axes of the block that divides an attention's sums."""
    variables = [axis.var for axis in final.block.axes]
    places = [list(load.indices) for load in final.loads if load.buffer.name == sums]
    if final.is_reduction or not places or any(place != places[0] for place in places):
        return None
    found = [variables.index(i) for i in places[0] if isinstance(i, Var) and i in variables]
    return found if len(found) == 4 and sorted(found) == list(range(len(variables))) else None


def producers_of_epilogue(s: Schedule, reader: Facts) -> list[tuple[Facts, dict[Var, Var]]]:
    """The reductions whose results a block takes, each at the block's own element and by it alone; largest first."""
    found: list[tuple[Facts, dict[Var, Var]]] = []
    for region in reader.block.reads:
        if region.buffer in s.func.buffers or sole_reader(s.func, region.buffer) is None:
            continue
        makers = writers(s.func.body, region.buffer)
        maker = facts_of(makers[0]) if len(makers) == 1 else None
        if maker is None or not maker.is_reduction or any(int_value(size) != 1 for size in region.extents):
            continue
        mapping = same_points(maker, reader, list(region.mins))
        if mapping is not None:
            found.append((maker, dict(mapping)))
    return sorted(found, key=lambda pair: -pair[0].points * pair[0].depth)

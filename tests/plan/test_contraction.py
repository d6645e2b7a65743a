"""The one recogniser of products: which part each axis plays, and None for what is no product of two loads."""

from __future__ import annotations

from typing import Any

import pytest

from weft import te
from weft.plan.contraction import (
    Contraction,
    contraction_of,
    group_of,
    is_sum_of_products,
    load_bytes,
    producers_of_epilogue,
    same_points,
    start_along,
    taps_along,
    uses,
)
from weft.schedule.facts import Facts, block_named, facts_of


def facts(out: Any) -> Facts:
    """The facts about the block that computes a tensor."""
    return facts_of(block_named(te.create_schedule(out.op), out.name))


def found(out: Any) -> Contraction:
    contraction = contraction_of(facts(out))
    assert contraction is not None
    return contraction


def both(one: Contraction) -> tuple[Any, ...]:
    return tuple(axis for axis in one.facts.spatial if all(uses(load, axis) for load in one.operands))


def kinds(one: Contraction) -> tuple[str, ...]:
    return tuple(buffer.dtype.name for buffer in (*(load.buffer for load in one.operands), one.facts.target))


def along(one: Contraction, operand: Any, axis: Any) -> tuple[Any, ...]:
    return tuple(taps_along(one.facts, operand, axis))


def dimension(one: Contraction, operand: Any, axis: Any) -> int | None:
    place = start_along(one.facts, operand, axis)
    return None if place is None else place[0]


def product(m: int, n: int, k: int, batch: tuple[int, ...] = (), shared: bool = False, turned: bool = False) -> Any:
    a = te.placeholder((*batch, m, k), name="A")
    b = te.placeholder((*(() if shared else batch), *((n, k) if turned else (k, n))), name="B")
    r = te.reduce_axis(k, "r")

    def element(*at: Any) -> Any:
        *lead, i, j = at
        right = [j, r.var] if turned else [r.var, j]
        return te.sum(a[(*lead, i, r.var)] * b[(*([] if shared else lead), *right)], axis=r)

    return te.compute((*batch, m, n), element, name="C")


@pytest.mark.parametrize("turned", [False, True])
def test_a_matrix_product(turned: bool) -> None:
    one = found(product(8, 12, 16, turned=turned))
    a, b = one.operands
    row, column = one.facts.spatial
    assert (a.buffer.name, b.buffer.name) == ("A", "B") and one.other(a) is b and one.other(b) is a
    assert one.only(a) == (row,) and one.only(b) == (column,) and both(one) == () and not one.facts.is_ordered
    assert dimension(one, a, row) == 0 and dimension(one, b, column) == (0 if turned else 1)
    assert dimension(one, a, column) is None
    assert along(one, a, row) == along(one, b, column) == ()
    assert group_of(a, column) == 12, "all columns meet the same row"
    assert kinds(one) == ("float32",) * 3 and load_bytes(a) == 8 * 16 * 4


@pytest.mark.parametrize("shared", [False, True])
def test_a_batch_of_products(shared: bool) -> None:
    one = found(product(8, 12, 16, batch=(3, 2), shared=shared))
    a, b = one.operands
    *lead, row, column = one.facts.spatial
    assert both(one) == (() if shared else tuple(lead))
    assert one.only(a) == ((*lead, row) if shared else (row,)) and one.only(b) == (column,)


def convolution(groups: int = 1, depthwise: bool = False, channels: int = 8, features: int = 8) -> Any:
    """A 3 × 3 convolution in the plain layout."""
    x = te.placeholder((2, channels, 10, 12), name="X")
    each = 1 if depthwise else channels // groups
    w = te.placeholder((features, each, 3, 3), name="W")
    c, y, z = te.reduce_axis(each, "ci"), te.reduce_axis(3, "ky"), te.reduce_axis(3, "kx")

    def element(n: Any, o: Any, i: Any, j: Any) -> Any:
        channel = o if depthwise else c.var if groups == 1 else o // (features // groups) * each + c.var
        return te.sum(x[n, channel, i + y.var, j + z.var] * w[o, c.var, y.var, z.var], axis=(c, y, z))

    return te.compute((2, features, 8, 10), element, name="Y")


def test_a_convolution() -> None:
    one = found(convolution())
    x, w = one.operands
    n, feature, row, pixel = one.facts.spatial
    channel, down, across = one.facts.reduce
    assert one.only(x) == (n, row, pixel) and one.only(w) == (feature,) and both(one) == ()
    assert along(one, x, row) == (down,) and along(one, x, pixel) == (across,) and along(one, x, n) == ()
    assert group_of(x, feature) == 8 and dimension(one, x, pixel) == 3
    assert one.weights([w.buffer]) == (x, w), "what changes, and what never does"
    assert one.weights([]) is None and one.weights([x.buffer, w.buffer]) is None


@pytest.mark.parametrize("groups", [2, 4])
def test_groups_of_channels(groups: int) -> None:
    one = found(convolution(groups, features=16))
    x, w = one.operands
    feature = one.facts.spatial[1]
    assert both(one) == (feature,) and one.only(w) == ()
    assert group_of(x, feature) == 16 // groups


def test_a_depthwise_convolution() -> None:
    one = found(convolution(depthwise=True))
    x, w = one.operands
    n, channel, row, pixel = one.facts.spatial
    assert both(one) == (channel,) and one.only(x) == (n, row, pixel) and one.only(w) == ()
    assert group_of(x, channel) == 1


def test_a_convolution_in_blocks_of_channels() -> None:
    lanes = 4
    x = te.placeholder((1, 2, 10, 12, lanes), name="X")
    w = te.placeholder((12, 8, 3, 3), name="W")
    c, y, z = te.reduce_axis(8, "ci"), te.reduce_axis(3, "ky"), te.reduce_axis(3, "kx")

    def element(n: Any, o: Any, i: Any, j: Any, lane: Any) -> Any:
        image = x[n, c.var // lanes, i + y.var, j + z.var, c.var % lanes]
        return te.sum(image * w[o * lanes + lane, c.var, y.var, z.var], axis=(c, y, z))

    one = found(te.compute((1, 3, 8, 10, lanes), element, name="Y"))
    image, weight = one.operands
    n, block, row, pixel, lane = one.facts.spatial
    assert one.only(image) == (n, row, pixel) and one.only(weight) == (block, lane) and both(one) == ()
    assert along(one, image, row) == one.facts.reduce[1:2]
    assert dimension(one, weight, lane) == 0 and dimension(one, weight, block) is None


def test_a_window_that_moves_by_an_expression_has_no_dimension_of_its_own() -> None:
    x, w = te.placeholder((21,), name="X"), te.placeholder((5,), name="W")
    k = te.reduce_axis(5, "k")
    one = found(te.compute((9,), lambda i: te.sum(x[2 * i + k.var] * w[k.var], axis=k), name="Y"))
    assert dimension(one, one.operands[0], one.facts.spatial[0]) is None, "its start moves too"
    assert along(one, one.operands[0], one.facts.spatial[0]) == one.facts.reduce


def in_parts(low_at: Any = lambda k, j: (k, j)) -> Any:
    """A product with weights of 24 bits: 16 above, 8 below."""
    a = te.placeholder((4, 16), name="A")
    high, low = te.placeholder((16, 16), "int16", name="high"), te.placeholder((16, 16), "uint8", name="low")
    k = te.reduce_axis(16, "k")

    def element(i: Any, j: Any) -> Any:
        whole = high[k.var, j].astype("int32") * 256 + low[low_at(k.var, j)].astype("int32")
        return te.sum(a[i, k.var] * whole.astype("float32"), axis=k)

    return te.compute((4, 16), element, name="C")


def test_whole_numbers_in_two_parts() -> None:
    one = found(in_parts())
    a, high = one.operands
    low = one.low_part(high)
    assert (a.buffer.name, high.buffer.name) == ("A", "high") and low is not None and low.buffer.name == "low"
    assert one.low_part(a) is None and kinds(one) == ("float32", "int16", "float32")
    assert contraction_of(facts(in_parts(lambda k, j: (j, k)))) is None, "the lower part lies elsewhere"


def test_operands_may_be_converted_and_scaled() -> None:
    a, b = te.placeholder((8, 16), "float16", name="A"), te.placeholder((16, 8), "float16", name="B")
    k = te.reduce_axis(16, "k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(a[i, k.var].astype("float32") * te.const(0.5, "float32") * b[k.var, j].astype("float32"), axis=k)

    one = found(te.compute((8, 8), element, name="C"))
    assert kinds(one) == ("float16", "float16", "float32")


def not_products() -> dict[str, Any]:
    a, b = te.placeholder((8, 16), name="A"), te.placeholder((16, 8), name="B")
    k, few = te.reduce_axis(16, "k"), te.reduce_axis(3, "few")
    return {
        "elementwise": te.compute((8, 16), lambda i, j: a[i, j] * 2.0, name="C"),
        "a sum": te.compute((8,), lambda i: te.sum(a[i, k.var], axis=k), name="C"),
        "squares": te.compute((8,), lambda i: te.sum(a[i, k.var] * a[i, k.var], axis=k), name="C"),
        "a largest": te.compute((8, 8), lambda i, j: te.max(a[i, k.var] * b[k.var, j], axis=k), name="C"),
        "few": te.compute((8, 8), lambda i, j: te.sum(a[i, few.var] * b[few.var, j], axis=few), name="C"),
        "differences": te.compute((8, 8), lambda i, j: te.sum(a[i, k.var] - b[k.var, j], axis=k), name="C"),
    }


@pytest.mark.parametrize("kind", not_products())
def test_what_is_no_product(kind: str) -> None:
    assert contraction_of(facts(not_products()[kind])) is None


def test_a_product_of_more_than_loads_is_a_sum_of_products_without_two_operands() -> None:
    """A register tile serves it all the same."""
    a, b = te.placeholder((8, 16), name="A"), te.placeholder((16, 8), name="B")
    k = te.reduce_axis(16, "k")
    one = facts(te.compute((8, 8), lambda i, j: te.sum(te.exp(a[i, k.var]) * b[k.var, j], axis=k), name="C"))
    assert is_sum_of_products(one) and contraction_of(one) is None


def test_a_step_of_a_recurrence_is_not_plain() -> None:
    x, w, state = (
        te.placeholder(shape, name=name) for shape, name in (((5, 8), "x"), ((8, 8), "w"), ((5, 8), "state"))
    )
    k = te.reduce_axis(8, "k")
    first = te.compute((1, 8), lambda t, i: x[0, i], name="first")
    part = te.compute((5, 8), lambda t, i: te.sum(state[t - 1, k.var] * w[i, k.var], axis=k), name="part")
    update = te.compute((5, 8), lambda t, i: part[t, i] + x[t, i], name="update")
    s = te.create_schedule(te.scan(first, update, state).op)
    one = contraction_of(facts_of(block_named(s, "part")))
    assert one is not None and one.facts.is_ordered


# ----------------------------------------------------------------------------------------------------------- epilogues


def test_the_producers_of_an_epilogue_largest_first() -> None:
    large = product(8, 12, 16)
    left, right, r = te.placeholder((8, 5), name="L"), te.placeholder((5, 12), name="R"), te.reduce_axis(5, "r")
    small = te.compute((8, 12), lambda i, j: te.sum(left[i, r.var] * right[r.var, j], axis=r), name="S")
    out = te.compute((8, 12), lambda i, j: small[i, j] + large[i, j], name="out")
    s = te.create_schedule(out.op)
    makers = producers_of_epilogue(s, facts_of(block_named(s, "out")))
    assert [maker.block.name for maker, _ in makers] == ["C", "S"]
    for maker, mapping in makers:
        assert [mapping[axis.var] for axis in maker.spatial] == [a.var for a in block_named(s, "out").axes]


def test_what_two_blocks_read_is_nobodys_epilogue() -> None:
    one = product(8, 12, 16)
    first = te.compute((8, 12), lambda i, j: one[i, j] + 1.0, name="first")
    second = te.compute((8, 12), lambda i, j: one[i, j] * first[i, j], name="second")
    s = te.create_schedule(second.op)
    assert producers_of_epilogue(s, facts_of(block_named(s, "second"))) == []


def test_same_points() -> None:
    """A transposed reader walks over the same points in another order; a shifted one does not."""
    one = product(8, 12, 16)
    maker = facts(one)

    def mapping(shape: tuple[int, ...], body: Any) -> Any:
        reader = facts(te.compute(shape, body, name="out"))
        (load,) = [load for load in reader.loads if load.buffer.name == one.name]
        return same_points(maker, reader, list(load.indices)), reader

    pairs, reader = mapping((12, 8), lambda j, i: one[i, j])
    assert [pairs[axis.var] for axis in maker.spatial] == [axis.var for axis in reversed(reader.spatial)]
    assert mapping((7, 12), lambda i, j: one[i + 1, j])[0] is None
    assert mapping((8, 12, 2), lambda i, j, k: one[i, j])[0] is None, "each of its points is read twice"

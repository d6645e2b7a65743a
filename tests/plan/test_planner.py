"""The planner: what matches is offered, the cheapest legal point stands, and refusals keep their reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from weft import te
from weft.core.errors import InternalError, ScheduleError
from weft.loop.tree import block_path, loops_on
from weft.plan.inline import Inlining
from weft.plan.planner import Choice, Families, Match, Unit, analytic, choose, picking, picks_by_default
from weft.plan.sketch import Point, Sketch
from weft.schedule.facts import block_named, facts_of
from weft.schedule.schedule import Schedule


def program(epilogue: bool = False) -> Schedule:
    """A product, and perhaps a block that takes its sums."""
    a, b = te.placeholder((8, 16), name="A"), te.placeholder((16, 8), name="B")
    k = te.reduce_axis(16, "k")
    out = te.compute((8, 8), lambda i, j: te.sum(a[i, k.var] * b[k.var, j], axis=k), name="C")
    if epilogue:
        sums = out
        out = te.compute((8, 8), lambda i, j: sums[i, j] * 2.0, name="D")
    return te.create_schedule(out.op)


def splits(
    name: str, cost: float, knobs: tuple[int, ...] = (2,), then: Callable[[Unit], None] = lambda unit: None
) -> Match:
    """A match whose points split the rows; each takes `cost` seconds and as many more as its number."""

    def match(unit: Unit) -> Sketch:
        def apply(point: Point) -> None:
            stage = unit.schedule[unit.name]
            stage.split(stage.axis[0], factor=point["by"])
            unit.done.add(f"marked by {name}")
            then(unit)

        return Sketch(name, {"by": knobs}, apply, lambda columns: cost + columns["by"])

    return match


def refuses(unit: Unit) -> None:
    raise ScheduleError("split", unit.name, "not today")


def unit_of(s: Schedule) -> Unit:
    return Unit(s, facts_of(block_named(s, "C")), None, ())


def test_the_cheapest_of_all_sketches_that_match_is_taken() -> None:
    s = program()
    assert choose(unit_of(s), [splits("first", 9.0), lambda unit: None, splits("second", 1.0, (4, 2))], analytic)
    assert [(tried.name, tried.point, tried.cost) for tried in s.tried] == [("second", {"by": 2}, 3.0)]
    assert len(s["C"].loops) == 4


def test_what_is_refused_falls_through_with_its_reason_and_leaves_nothing() -> None:
    s = program()
    unit = unit_of(s)
    assert choose(unit, [splits("fine", 9.0), splits("refused", 1.0, (4, 2), refuses)], analytic)
    assert [(tried.name, tried.point["by"], bool(tried)) for tried in s.tried] == [
        ("refused", 2, False), ("refused", 4, False), ("fine", 2, True),
    ]  # fmt: skip
    assert all("not today" in str(tried) for tried in s.tried[:2])
    assert len(s["C"].loops) == 4 and unit.done == {"marked by fine"}


def test_nothing_changes_where_nothing_is_legal() -> None:
    s = program()
    before = repr(s.func)
    assert not choose(unit_of(s), [splits("refused", 1.0, (2, 4), refuses)], analytic)
    assert not choose(unit_of(s), [], analytic)
    assert repr(s.func) == before and len(s.trace.steps) == len(program().trace.steps)


def test_points_of_several_sketches_are_merged_by_their_cost() -> None:
    unit = unit_of(program())
    matches = [splits("a", 0.0, (1, 4, 8)), splits("b", 1.0, (2, 4))]
    offered = list(analytic(unit, [match(unit) for match in matches]))  # type: ignore[misc]
    assert [(sketch.name, cost) for sketch, _, cost in offered] == [
        ("a", 1.0), ("b", 3.0), ("a", 4.0), ("b", 5.0), ("a", 8.0),
    ]  # fmt: skip


def test_a_mistake_of_ours_is_not_taken_for_a_refusal() -> None:
    def mistake(unit: Unit) -> None:
        raise InternalError("a bug")

    with pytest.raises(InternalError, match="a bug"):
        choose(unit_of(program()), [splits("broken", 1.0, then=mistake), splits("fine", 9.0)], analytic)
    with pytest.raises(InternalError, match="a bug"):
        families(contractions=(splits("broken", 1.0, then=mistake),)).schedule(program(), None)


# --------------------------------------------------------------------------------------------------- whole programs


def families(**more: Any) -> Families:
    """A target's offer that does nothing but what is given."""
    nothing = Families(Inlining((), twice=0, readers=0), whole=(), contractions=(), rest=(), plain=plain)
    return replace(nothing, **more)


def plain(unit: Unit) -> None:
    unit.schedule[unit.name].parallel(unit.schedule[unit.name].axis[0])


def kinds(s: Schedule) -> dict[str, str]:
    """Whether the loops around each block are shared by threads."""
    return {name: "parallel" if "parallel" in kinds_of(s, name) else "serial" for name in ("C", "D")}


def kinds_of(s: Schedule, name: str) -> list[str]:
    return [loop.kind for loop in loops_on(block_path(s.func, name, "test"))]


def test_a_contraction_is_offered_with_its_epilogue() -> None:
    seen: list[tuple[str, str | None]] = []

    def match(unit: Unit) -> None:
        seen.append((unit.facts.block.name, None if unit.epilogue is None else unit.epilogue.name))
        assert unit.contraction is not None and len(unit.to_epilogue) == (2 if unit.name == "D" else 0)

    s = program(epilogue=True)
    families(contractions=(match,), plain=lambda unit: None).schedule(s, None)
    assert seen == [("C", "D"), ("C", None)], "and alone, where no sketch takes both"


def test_what_no_sketch_matches_gets_the_plain_way() -> None:
    s = program(epilogue=True)
    families().schedule(s, None)
    assert kinds(s) == {"C": "parallel", "D": "parallel"}


def test_the_ways_for_the_rest_are_asked_in_order() -> None:
    asked: list[str] = []

    def no(unit: Unit) -> bool:
        asked.append("no")
        return False

    def yes(unit: Unit) -> bool:
        asked.append("yes")
        return True

    families(rest=(no, yes, no)).schedule(program(), None)
    assert asked == ["no", "yes"]


def test_a_way_that_fails_leaves_the_plain_way() -> None:
    def way(unit: Unit) -> bool:
        stage = unit.schedule[unit.name]
        stage.split(stage.axis[0], factor=2)
        refuses(unit)
        return True

    s = program()
    families(rest=(way,)).schedule(s, None)
    assert kinds_of(s, "C") == ["parallel", "serial", "serial"]
    assert [(tried.name, bool(tried)) for tried in s.tried] == [("unit C", False)]


def test_a_sketch_of_the_whole_program_comes_first() -> None:
    def match(unit: Unit) -> Sketch:
        def apply(point: Point) -> None:
            unit.done.update(["C", "D"])

        return Sketch("whole", {}, apply, lambda columns: 1.0)

    s = program(epilogue=True)
    families(whole=(match,), contractions=(splits("never", 0.0),)).schedule(s, None)
    assert [tried.name for tried in s.tried] == ["whole"] and kinds(s) == {"C": "serial", "D": "serial"}


def test_a_product_that_is_read_once_is_no_contraction() -> None:
    s = program()
    families(contractions=(splits("never", 0.0),), reads_once=lambda facts, constants: True).schedule(s, None)
    assert "never" not in [tried.name for tried in s.tried]


def test_picking() -> None:
    """Another pick is asked for everything that is planned inside, and for nothing behind."""
    offered: list[str] = []

    def dearest(unit: Unit, sketches: Sequence[Sketch]) -> Iterator[Choice]:
        offered.extend(sketch.name for sketch in sketches)
        yield from reversed(list(analytic(unit, sketches)))

    wanted = families(contractions=(splits("a", 0.0), splits("b", 5.0, (2, 4))))
    assert picks_by_default()
    s = program()
    with picking(dearest):
        assert not picks_by_default()
        wanted.schedule(s, None)
    assert offered == ["a", "b"] and [tried.point for tried in s.tried if tried.name == "b"] == [{"by": 4}]
    assert picks_by_default()
    s = program()
    wanted.schedule(s, None)
    assert [tried.name for tried in s.tried if tried.cost] == ["a"] and len(offered) == 2


def test_picking_ends_with_an_error() -> None:
    with pytest.raises(ValueError), picking(lambda unit, sketches: ()):
        raise ValueError
    assert picks_by_default()

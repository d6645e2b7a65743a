"""The last of several tiles starts earlier: no tests, and the same results for every size."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import te
from weft.loop.interpreter import interpret
from weft.loop.ir import For
from weft.loop.parser import parse_func
from weft.loop.passes.shift_tiles import NOTE, shift_tiles, tile_counts, tile_sizes
from weft.loop.visit import walk_stmts
from weft.plan.typical import plan_typical
from weft.targets.cpu import pipeline
from weft.targets.registry import find_target


def sums(n):
    """Products of rows that lie in blocks of four, and something after them."""
    a, b = te.placeholder((n, 6), name="A"), te.placeholder((6, 8), name="B")
    axis = te.reduce_axis(6, "k")
    c = te.compute((n, 8), lambda i, j: te.sum(a[i, axis.var] * b[axis.var, j], axis=axis), name="C")
    d = te.compute((n, 8), lambda i, j: te.maximum(c[i, j], 0.0), name="D")
    return te.create_schedule(d.op), [a, b, d]


def tiled(tile: int = 4):
    s, args = sums(te.var("n"))
    outer, inner = s["D"].split(s["D"].axis[0], factor=tile)
    s["D"].unroll(inner)
    s["C"].compute_at(s["D"], outer)
    s["C"].set_scope("local")
    s.apply("overrun", block="C", axis=0)
    s.apply("annotate", target=outer.name, key=NOTE, value=tile)
    return s.func, args, outer.name


def lowered(func, last):
    for run in pipeline.PASSES:
        func = run(func)
        if run is last:
            return func
    raise AssertionError(last)


def test_whole_tiles_have_no_tests():
    func, _, name = tiled()
    made = lowered(func, shift_tiles)
    text = repr(made)
    assert "if 2 <= n:" in text and f"let {name}_start = min({name}*4, n - 4)" in text
    whole = text[text.index("if 2 <= n:") : text.index("else:")]
    assert "< n" not in whole and f"min({name}*4 +" not in whole


@pytest.mark.parametrize("n", [1, 3, 4, 5, 7, 8, 11])
def test_every_size_is_right(n):
    func, _, _ = tiled()
    random = np.random.default_rng(n)
    a, b = random.standard_normal((n, 6)).astype("f4"), random.standard_normal((6, 8)).astype("f4")
    for last in (shift_tiles, pipeline.PASSES[-1]):
        made = np.full((n, 8), np.nan, "f4")
        interpret(lowered(func, last), a, b, made, check=False)
        np.testing.assert_allclose(made, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-5)


def test_what_is_left_over_is_computed_in_smaller_tiles():
    """Of 26 rows 12 and 12 and 3, of 10 (fewer than a tile) 6 and 6; with tests only where there are fewer than 3."""
    func, _, name = tiled(12)
    made = lowered(func, shift_tiles)
    assert tile_sizes(12) == [12, 6, 3] and "if 3 <= n:" in repr(made) and f"{name}_done" in repr(made)
    tiles = [x for x in walk_stmts(made.body) if isinstance(x, For) and x.kind == "unrolled"]
    assert {str(x.extent) for x in tiles} == {"12", "6", "3"}
    counts = {26: [2, 0, 1], 24: [2, 0, 0], 22: [2, 0, 0], 20: [1, 1, 1], 10: [0, 2, 0], 5: [0, 0, 2], 2: [0, 0, 1]}
    assert all(tile_counts(12, n) == wanted for n, wanted in counts.items())


@pytest.mark.parametrize("tile", [5, 8, 11, 12])
def test_smaller_tiles_are_right(tile):
    func, _, _ = tiled(tile)
    func = lowered(func, pipeline.PASSES[-1])
    for n in range(1, 2 * tile + 3):
        random = np.random.default_rng(n)
        a, b = random.standard_normal((n, 6)).astype("f4"), random.standard_normal((6, 8)).astype("f4")
        made = np.full((n, 8), np.nan, "f4")
        interpret(func, a, b, made, check=False)
        np.testing.assert_allclose(made, np.maximum(a @ b, 0), rtol=1e-4, atol=1e-5)


def test_tiles_that_read_what_they_write_stay():
    n = te.var("n")
    a = te.placeholder((n,), name="A")
    b = te.compute((n,), lambda i: a[i] + 1.0, name="B")
    s = te.create_schedule(b.op)
    outer, _ = s["B"].split(s["B"].axis[0], factor=4)
    s.apply("annotate", target=outer.name, key=NOTE, value=4)
    shifted = lowered(s.func, shift_tiles)
    assert "_start" in repr(shifted)
    loop = next(
        x for x in walk_stmts(lowered(s.func, pipeline.check_bounds).body) if isinstance(x, For) and x.annotations
    )
    stored = next(x for x in walk_stmts(loop.body) if hasattr(x, "value"))
    again = s.func.replace(
        body=loop.replace(
            body=type(stored)(stored.buffer, stored.indices, stored.value + stored.buffer[stored.indices])
        )
    )
    assert "_start" not in repr(shift_tiles(again))


ADDING = """
func f(A: float32[3, n], B: float32[n]):
    for k in range(3):
        for o in range((n + 11) // 12) @{"whole_tiles": 12}:
            allocate C: float32[12] local:
                for i in range(12):
                    C[i] = A[k, min(o * 12 + i, n - 1)]
                for j in range(12):
                    if o * 12 + j < n:
                        B[o * 12 + j] = B[o * 12 + j] + C[j]
"""


@pytest.mark.parametrize("n", [*range(1, 14), 23, 24, 25, 26, 33])
def test_tiles_that_add_do_what_is_left_over_once(n):
    """In tiles of 6 and 3, of which only the last have tests."""
    func = shift_tiles(parse_func(ADDING))
    loops = [x for x in walk_stmts(func.body) if isinstance(x, For) and x.var.name in ("i", "j")]
    assert [str(x.extent) for x in loops] == ["12", "12", "6", "6", "3", "3"] and repr(func).count("if ") == 1
    a, made = np.random.default_rng(n).standard_normal((3, n)).astype("f4"), np.ones(n, "f4")
    interpret(func, a, made)
    np.testing.assert_allclose(made, 1 + a.sum(axis=0), rtol=1e-5, atol=1e-5)


STRETCHES = """
func f(A: float32[(n + 17)//18*20], B: float32[(n + 17)//18, 18]):
    for s in range((n + 17) // 18):
        for o in range(5) @{"whole_tiles": 4}:
            allocate C: float32[4] local:
                for i in range(4) unrolled:
                    if s * 9 + o * 2 < (n + 1) // 2:
                        C[i] = A[s * 18 + o * 4 + i]
                for j in range(4) unrolled:
                    if s * 18 + o * 4 + j < (n + 1) // 2 * 2 and o * 4 + j < 18:
                        B[s, o * 4 + j] = C[j]
"""


@pytest.mark.parametrize("n", [1, 2, 4, 7, 17, 18, 19, 20, 33, 36, 37])
def test_a_stretch_of_tiles_ends_with_what_is_open(n):
    """A loop of a known length has as many tiles as there are: of each stretch of 18, and of what there is in all."""
    func = shift_tiles(parse_func(STRETCHES))
    assert "let o_start = min(o*4, min(min((n + 1)//2*2 - s*18, 18), 20) - 4)" in repr(func)
    stretches = -(-n // 18)
    a, made = np.arange(stretches * 20, dtype="f4"), np.full((stretches, 18), -1, "f4")
    interpret(func, a, made, sizes={"n": n})
    plain = np.full((stretches, 18), -1, "f4")
    interpret(parse_func(STRETCHES), a, plain, sizes={"n": n}, check=False)
    np.testing.assert_array_equal(made, plain)


def test_tiles_that_read_others_results_stay():
    assert "_start" not in repr(shift_tiles(parse_func(ADDING.replace("B[o * 12 + j] + C", "B[n - 1] + C"))))


@pytest.mark.parametrize("period", [2, 4])
def test_what_follows_from_the_place_in_a_tile_stays(period):
    n = te.var("n")
    a, t = te.placeholder((n,), name="A"), te.placeholder((period,), name="T")
    b = te.compute((n,), lambda i: a[i] + t[i % period], name="B")
    s = te.create_schedule(b.op)
    outer, _ = s["B"].split(s["B"].axis[0], factor=4)
    s.apply("annotate", target=outer.name, key=NOTE, value=4)
    made = lowered(s.func, pipeline.PASSES[-1])
    for size in (3, 4, 5, 6, 9):
        x, table, out = np.zeros(size, "f4"), np.arange(period, dtype="f4"), np.full(size, np.nan, "f4")
        interpret(made, x, table, out, check=False)
        np.testing.assert_array_equal(out, np.arange(size) % period)


def test_a_place_in_a_tile_that_is_stored_stays():
    """The number that is stored is the very variable of the index of the tile's own memory."""
    func = parse_func("""
func f(B: int64[n]):
    for o in range((n + 3) // 4) @{"whole_tiles": 4}:
        allocate C: int64[4] local:
            for i in range(4):
                C[i] = i
            for j in range(4):
                if o * 4 + j < n:
                    B[o * 4 + j] = C[j]
""")
    assert "_start" not in repr(shift_tiles(func))


def test_windows_that_move_by_two():
    """What a tile reads lies in no memory of its own, and its loop over elements has no test of its own."""
    n = te.var("n")
    a = te.placeholder((2 * n + 1,), name="A")
    p = te.compute((2 * n + 1,), lambda i: a[i] + 1.0, name="P")
    axis = te.reduce_axis(3, "k")
    c = te.compute((n,), lambda i: te.sum(p[2 * i + axis.var], axis=axis), name="C")
    d = te.compute((n,), lambda i: c[i] * 2.0, name="D")
    s = te.create_schedule(d.op)
    outer, _ = s["D"].split(s["D"].axis[0], factor=4)
    s["C"].compute_at(s["D"], outer)
    s["C"].set_scope("local")
    s.apply("overrun", block="C", axis=0, tile=4)
    s.apply("annotate", target=outer.name, key=NOTE, value=4)
    assert "min(" not in repr(lowered(s.func, pipeline.check_bounds))
    func = lowered(s.func, shift_tiles)
    assert f"{outer.name}_start*2" in repr(func)
    for size in (1, 4, 6, 11):
        x = np.random.default_rng(size).standard_normal(2 * size + 1).astype("f4")
        made = np.full(size, np.nan, "f4")
        interpret(func, x, made, check=False)
        wanted = [2 * (x[2 * i : 2 * i + 3] + 1).sum() for i in range(size)]
        np.testing.assert_allclose(made, wanted, rtol=1e-5, atol=1e-6)


def test_the_planner_notes_tiles():
    s, args = sums(te.var("n"))
    plan_typical(s, find_target("native"), [], {"n": 64})
    f = weft.build(s, args)
    for n in (1, 5, 64, 67):
        a, b = np.ones((n, 6), "f4"), np.ones((6, 8), "f4")
        d = np.full((n, 8), np.nan, "f4")
        f(a, b, d)
        assert (d == 6).all()


COLUMNS = """
func f(A: float32[n], C: float32[n]):
    for o in range((n + 7) // 8) @{"whole_tiles": 8}:
        allocate B: float32[8] local:
            for x in range(2):
                for y in range(4):
                    B[x * 4 + y] = select(o * 8 + x * 4 + y < n, A[o * 8 + x * 4 + y], 0.0) * 2.0
            for u in range(4):
                for v in range(2):
                    if o * 8 + u * 2 + v < n:
                        C[o * 8 + u * 2 + v] = B[u * 2 + v]
"""


def test_elements_of_two_loops():
    func = parse_func(COLUMNS)
    made = shift_tiles(func)
    whole = repr(made)[: repr(made).index("else:")]
    assert "let o_start = min(o*8, n - 8)" in whole and "select" not in whole and "< n" not in whole
    for size in (1, 7, 8, 9, 13, 16):
        x, out = np.arange(size, dtype="f4"), np.full(size, np.nan, "f4")
        interpret(made, x, out, check=False)
        np.testing.assert_array_equal(out, x * 2)


@pytest.mark.parametrize("was, now", [("B[x * 4 + y] =", "B[y * 2 + x] ="), ("B[u * 2 + v]", "B[v * 4 + u]")])
def test_elements_in_anothers_place_stay(was, now):
    assert "_start" not in repr(shift_tiles(parse_func(COLUMNS.replace(was, now))))


def test_elements_that_read_others_stay():
    assert "_start" not in repr(shift_tiles(parse_func(COLUMNS.replace("A[o * 8 + x * 4 + y]", "A[o * 8 + x + y]"))))

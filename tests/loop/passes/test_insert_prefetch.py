"""Which lines a round fetches ahead: those of all rows of a window, each once."""

from __future__ import annotations

import numpy as np
import pytest

from weft.core import model
from weft.loop.interpreter import interpret
from weft.loop.ir import For
from weft.loop.parser import parse_func
from weft.loop.passes.insert_prefetch import insert_prefetch
from weft.loop.visit import walk_stmts

WINDOW = """
func window(A: float32[{size}], B: float32[4]):
    for c in range(4) @{{"prefetch": [["A", 1]]}}:
        for kh in range({rows}):
            for kw in range(3):
                B[c] = B[c] + A[c*{channel} + kh*{row} + kw]
"""


def window(rows: int, row: int):
    channel = rows * row + 8
    return parse_func(WINDOW.format(size=5 * channel, rows=rows, row=row, channel=channel))


def fetches(func) -> list[str]:
    return [line.strip() for line in repr(insert_prefetch(func)).splitlines() if "prefetch(" in line]


def test_each_row_of_a_window_is_fetched():
    assert [line.split("A[")[1] for line in fetches(window(3, 20))] == [
        '(c + 1)*68], "r"))',
        '(c + 1)*68 + 20], "r"))',
        '(c + 1)*68 + 40], "r"))',
    ]


@pytest.mark.parametrize(("rows", "row"), [(3, 4), (model.MOST_ROUNDS_FETCHED + 1, 20)])
def test_rows_that_share_lines_or_are_many_are_not(rows, row):
    assert len(fetches(window(rows, row))) == 1


@pytest.mark.parametrize("row", [4, 20])
def test_results_stay(row):
    func = window(3, row)
    made = insert_prefetch(func)
    assert not any("prefetch" in s.annotations for s in walk_stmts(made.body) if isinstance(s, For))
    a = np.arange(5 * (3 * row + 8), dtype=np.float32)
    results = []
    for one in (func, made):
        b = np.zeros(4, np.float32)
        interpret(one, a, b)
        results.append(b)
    assert results[0].any()
    np.testing.assert_array_equal(*results)


PANELS = """
func panels(A: float32[40, 8], B: float32[1024], C: float32[40]):
    for panel in range(4):
        for tile in range(40):
            for outer in range(2):
                for k in range(4) @{"prefetch": [["B", 4, "tile", 4]]}:
                    C[tile] = C[tile] + A[tile, outer*4 + k] * B[panel*256 + outer*128 + k*32]
                    C[tile] = C[tile] + A[tile, outer*4 + k] * B[panel*256 + outer*128 + k*32 + 16]
"""


def test_what_lies_behind_is_fetched_in_shares_while_tiles_read_the_same():
    """A fourth of two lines in each step, but no less than one: a tile fetches half of the next panel."""
    (fetch,) = fetches(parse_func(PANELS))
    place = fetch.split("B[")[1].split("]")[0]
    for panel, tile, outer, k in [(0, 0, 0, 0), (1, 0, 0, 3), (2, 1, 0, 0), (0, 1, 1, 3)]:
        wanted = (panel + 1) * 256 + tile * 128 + (outer * 4 + k) * 16
        assert eval(place, {"panel": panel, "tile": tile, "outer": outer, "k": k}) == wanted  # noqa: S307


def test_panels_that_are_read_with_gaps_are_not_fetched_so():
    assert not fetches(parse_func(PANELS.replace("outer*128", "outer*160")))

"""The register tile of a convolution in blocks, and its reduction, which LLVM leaves as it is."""

import pytest

from weft import te
from weft.builder import lower
from weft.codegen.llvm.generate import generate
from weft.targets.cpu.spaces.conv import Walk, _by_rows, _pieces, _tile
from weft.targets.registry import find_target

NEAR = Walk(576, 2.0, 8)


@pytest.mark.parametrize("blocks", [1, 2, 5, 9, 16])
@pytest.mark.parametrize("rows,places", [(1, 1), (1, 3000), (7, 7), (14, 14), (17, 17), (56, 56), (2, 2)])
def test_the_tile_fits_the_registers(rows, places, blocks):
    for walked in (NEAR, Walk(12, 2.0, 8), Walk(6912, 4.0, 1)):
        vectors, high, wide = _tile(rows, places, blocks, tuple(range(1, min(blocks, 6) + 1)), 32, walked)
        assert vectors * high * wide + vectors < 32 and vectors <= blocks and high <= rows and wide <= places
        assert high == 1 or wide == places


def test_what_tiles_are_chosen():
    many = tuple(range(1, 7))
    assert _tile(56, 56, 4, (1, 2, 3, 4), 32, NEAR) == (2, 1, 14)
    # Weights that do not stay in the cache: fewer vectors of them for more places.
    assert _tile(14, 14, 16, many, 32, Walk(6912, 4.0, 1)) == (1, 2, 14)
    assert _tile(7, 7, 32, many, 32, Walk(4608, 4.0, 1)) == (1, 4, 7)
    # Blocks that do not divide by two: three at a time.
    assert _tile(17, 17, 12, many, 32, Walk(1344, 2.0, 4))[0] == 3


def test_pieces():
    assert _pieces(28, 14) == [(14, 2)] and _pieces(17, 9) == [(9, 1), (8, 1)] and _pieces(3, 5) == [(3, 1)]


def test_a_loop_can_be_kept_from_llvm():
    a, b = te.placeholder((4, 16), name="a"), te.placeholder((16,), name="b")
    k = te.reduce_axis(4, "k")
    c = te.compute((16,), lambda i: te.sum(a[k.var, i] * b[i], axis=k), name="c")
    texts = []
    for rolled in (False, True):
        s = te.create_schedule(c)
        s[c].reorder(s[c].reduce_axis[0], s[c].axis[0])
        s[c].vectorize(s[c].axis[0])
        if rolled:
            s[c].pragma(s[c].reduce_axis[0], "rolled")
        texts.append(generate(lower(s, [a, b, c]), find_target("native")))
    assert ["llvm.loop.unroll.disable" in text for text in texts] == [False, True]


def test_what_stays_in_the_cache():
    cache = 2 << 20
    assert _by_rows(100, 100, cache) and not _by_rows(99, 100, cache)
    assert _by_rows(3 << 19, 2 << 20, cache) and not _by_rows(3 << 19, 4 << 20, cache)

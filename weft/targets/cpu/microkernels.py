"""Micro-kernels: a record for each instruction that multiplies and adds, with all that a nest of loops asks about it.

    record     sums         steps      operands
    fma        1 × lanes    1          floats                     c[j] += a * b[j]
    dot        1 × 16 | 4   4          bytes                      c[j] += sum over t < 4 of a[t] * b[j, t]
    square     2 × 2        8          bytes                      c[i, j] += sum over t < 8 of a[i, t] * b[j, t]
    amx        16 × 16      32, 64     bfloat16, bytes            tiles in registers of their own

A nest (`sketches/nest.py`) packs operands, cuts loops and replaces the innermost of them as the record says, so that
a product, a convolution, a step of a recurrence and attention are written once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.core.dtypes import DType
from weft.targets.base import Target
from weft.targets.cpu import amx, dot


@dataclass(frozen=True)
class MicroKernel:
    """One instruction: `rows` × `lanes` sums, to each of which it adds `depth` products."""

    name: str
    rows: int
    lanes: int
    depth: int
    group: int
    """Steps of the reduction that lie side by side, for each column, in the packed right operand."""
    dot: str = ""
    """The intrinsic that replaces the innermost loops; without one, the innermost loop becomes a vector."""
    takes_lane: bool = False
    """Whether the left operand may be a lane of a register; else it fills one, at best as it is loaded."""
    store: str = ""
    """The intrinsic that stores sums of several rows as rows."""
    tiles: amx.Tiles | None = None
    """What moves tiles in and out of registers of their own, where the sums are in such."""

    def family(self, name: str) -> str:
        """The name of a sketch of this family on this micro-kernel."""
        return name if self.name == "fma" else f"{name}_{self.name}"

    def products_a_cycle(self, multiply_adds: float, lanes: int) -> float:
        """Multiply-adds of a core in a cycle: one row of a full tile, or so many vector instructions of `lanes`."""
        if self.tiles is not None:
            return float(amx.TILE * amx.TILE * self.group)
        return multiply_adds * (self.rows * self.lanes if self.rows > 1 else lanes) * self.group

    @property
    def vector(self) -> int:
        """Lanes of a register of sums."""
        return self.lanes if self.tiles is not None else self.rows * self.lanes

    def panel(self, column: str, steps: Sequence[str], width: int) -> tuple[list[str], list[str]]:
        """How a column and the steps of the right operand are stored: the place of a panel of `width`, the place in it.

        A step's columns lie side by side, then those of the next step; tiles are whole, in the order of their use.
        """
        if self.depth == 1:
            return [f"{column} // {width}", *steps], [f"{column} % {width}"]
        (k,) = steps
        inside = [f"{k} % {self.depth} // {self.group}"] if self.depth > self.group else []
        tile = [] if self.tiles is None else [f"{column} % {width} // {self.lanes}"]
        inside += [f"{column} % {self.lanes if tile else width}", f"{k} % {self.group}"]
        return [f"{column} // {width}", f"{k} // {self.depth}"], [*tile, *inside]

    def rows_of_tiles(self, i: str, k: str, height: int) -> list[str]:
        """How row i and step k of the left operand are stored: in tiles, the `height` rows of a step side by side.

        Tiles that lay far apart would share few places of the first-level cache, and nothing would fetch them ahead.
        """
        tile = [f"{i} // {height}", f"{k} // {self.depth}", f"{i} % {height} // {self.rows}"]
        return [*tile, f"{i} % {self.rows}", f"{k} % {self.depth}"]


VECTOR = MicroKernel("fma", 1, 1, 1, 1)
"""A vector of multiply-adds, of any number of lanes."""


def fma(dtype: DType, target: Target, columns: int) -> MicroKernel:
    """A vector of multiply-adds; no more lanes than so many columns need."""
    return replace(VECTOR, lanes=min(target.lanes(dtype), 1 << (columns - 1).bit_length()))


def dots(kinds: tuple[str, str, str], target: Target, columns: int = 0) -> MicroKernel | None:
    """The dot product for operands and sums of these types whose lanes divide the columns; None where there is none."""
    fits = (one for one in dot.DOTS if (one.left, one.right, "int32") == kinds and columns % one.columns == 0)
    return next((_of_dot(one) for one in fits if one.runs_on(target)), None)


def digit_dots(target: Target) -> tuple[str, MicroKernel] | None:
    """The type of codes that signed digits are multiplied with, and the dot product; None where there is none."""
    return next(((one.right, _of_dot(one)) for one in dot.DIGITS if one.runs_on(target)), None)


def _of_dot(one: dot.Dot) -> MicroKernel:
    return MicroKernel("dot", 1, one.columns, dot.GROUP, dot.GROUP, one.name, one.takes_lane)


def squares(kinds: tuple[str, str, str], target: Target, step: int = 1) -> MicroKernel | None:
    """Products of squares of bytes; None where there are none. The left operand's rows lie `step` apart."""
    left, right, wide = kinds
    if "i8mm" not in target.features or wide != "int32" or (left, right) not in dot.SQUARES:
        return None
    return MicroKernel("square", 2, 2, dot.SQUARE, dot.SQUARE, dot.square(left, right, step), store=dot.STORE_SQUARE)


def tiles(
    kinds: Sequence[str], target: Target, shape: tuple[int, int, int] | None = None, step: int = 1
) -> MicroKernel | None:
    """AMX tiles for operands and sums of these types; None where there are none.

    `shape` is rows, depth and columns of tiles that are not full; the left operand's rows lie `step` apart.
    """
    left, right, wide = kinds
    found = amx.DOTS.get((left, right))
    if found is None or found[0] != wide or not amx.available(target):
        return None
    rows, depth, lanes = shape or (amx.TILE, amx.TILE * found[1], amx.TILE)
    calls = amx.tiles(left, right, shape, step)
    return MicroKernel("amx", rows, lanes, depth, found[1], calls.dot, store=calls.store, tiles=calls)

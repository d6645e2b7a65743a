"""Schedules for programs whose sizes are open: those of a twin with typical sizes, step for step.

    C[i, j] += A[i, k] * B[k, j]    i < s0         ->     planned as if s0 were 128: 8 rows at a time, 16 blocks of rows
    split(i, 8) in the twin: no rest               ->     split(i, 8): the last block tests i < s0

In: a schedule, numbers for its open sizes, and what plans a program of numbers. A step is plain data that names blocks
and loops, so what was found for the twin is taken on the program itself: primitives cut loops by constant factors and
guard what is left over, and refuse what would be wrong for another size. Every sketch, its cost and the search for its
best point serve open sizes as they are. The other design, sketches that cost a range of sizes, asks each of them what
an extent is; steps that hold for all sizes are what it would have to give in the end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from weft.core import model
from weft.expr.evaluate import evaluate
from weft.expr.nodes import Buffer, Expr, Var, const, int_value
from weft.expr.visit import substitute, uses_any
from weft.loop.ir import Func
from weft.loop.passes.shift_tiles import NOTE as TILES
from weft.loop.passes.support import linear
from weft.loop.passes.unswitch import NOTE as UNSWITCH
from weft.loop.tree import block_path, blocks_in, loop_of, loop_path, loops_on, reduction_loops
from weft.loop.visit import BufferReplacer, substitute_stmt
from weft.plan.planner import OPEN, avoiding
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Step, Trace

FIXED = ("unroll", "vectorize", "tensorize", "bind")
"""What loops of a known length are marked with."""


def plan_typical(schedule: Schedule, target: Any, constants: Sequence[Buffer], sizes: Mapping[str, int]) -> None:
    """Plans a program with open sizes; `sizes` are typical ones, by name."""
    numbers: dict[Var, Expr] = {
        v: const(max(sizes.get(v.name, 0), model.LEAST_TYPICAL)) for v in schedule.func.size_vars
    }
    func, buffers = with_sizes(schedule.func, numbers)
    is_open = {
        block.name: [axis.var.name for axis in block.axes if int_value(axis.extent) is None]
        for block in blocks_in(schedule.func.body)
    }
    met: dict[Var, Expr] = {v: const(sizes.get(v.name) or model.LEAST_TYPICAL) for v in numbers}
    refused: set[str] = set()
    while True:
        twin = Schedule(func.replace(annotations={**func.annotations, OPEN: is_open}))
        with avoiding(refused):
            steps = twin.plan(target, [buffers.get(buffer, buffer) for buffer in constants])
        with schedule.attempt("typical sizes") as tried:
            _Replay(schedule, numbers, met, max(target.cores, 1)).run(steps)
        schedule.tried += twin.tried
        stood = {one.name for one in twin.tried if one and one.cost}
        if tried or not stood:
            break
        refused |= stood  # other sketches may do without what an open size does not allow
    if not tried:
        schedule.plan(target, constants)


def _has_fixed_length(loop: str, steps: Sequence[Step]) -> bool:
    """Whether steps rely on how long a loop is: of one that is cut again, on its number of parts."""
    for at, step in enumerate(steps):
        if step.primitive in FIXED and loop in step.arguments.values():
            return True
        if step.primitive == "split" and step.arguments["loop"] == loop:
            return _has_fixed_length(step.results[0], steps[at + 1 :])
    return False


class _Replay:
    """Takes the steps of a twin on a program whose sizes are open.

    A loop that a step cuts into a single part stays whole, however long it is. Loops that would be one for threads stay
    apart from the first that was cut along an open size: a quotient by an open size hides where a loop ends.
    """

    def __init__(self, schedule: Schedule, numbers: Mapping[Var, Expr], met: Mapping[Var, Expr], cores: int) -> None:
        self.schedule, self.numbers, self.met, self.cores = schedule, numbers, met, cores
        self.renamed: dict[str, str] = {}

    def run(self, trace: Trace) -> None:
        """All steps, and whole tiles at the edges."""
        for at, step in enumerate(trace.steps):
            arguments, later = {key: self.named(value) for key, value in step.arguments.items()}, trace.steps[at + 1 :]
            made_parallel = {s.arguments["loop"] for s in later if s.primitive == "parallel"}
            if step.primitive == "split":
                arguments["factors"] = self.factors(arguments, step, later)
            if step.primitive == "fuse" and step.results[0] in made_parallel:
                kept = self.together(arguments["loops"])
                if len(kept) == 1:
                    self.renamed[step.results[0]] = kept[0]
                    continue
                arguments["loops"] = kept
            made = self.schedule.apply(step.primitive, **arguments)
            names = [made] if isinstance(made, str) else list(made or ())
            self.renamed.update({old: new for old, new in zip(step.results, names) if old != new})
        self.whole_tiles()

    def named(self, value: Any) -> Any:
        """An argument, with the names that loops have here."""
        if isinstance(value, list):
            return [self.named(one) for one in value]
        return self.renamed.get(value, value) if isinstance(value, str) else value

    def extent(self, loop: str) -> Expr:
        """The extent of a loop."""
        return loop_of(loop_path(self.schedule.func, loop, "typical sizes")).extent

    def factors(self, arguments: Mapping[str, Any], step: Step, later: Sequence[Step]) -> list[int | None]:
        """The factors of a split: one part of everything where the twin's loop was one part that is cut again."""
        factors, extent = list(arguments["factors"]), self.extent(arguments["loop"])
        if _has_fixed_length(step.results[-1], later):
            return factors
        if len(factors) == 2 and factors[0] is None and isinstance(factors[1], int) and int_value(extent) is None:
            if int(evaluate(substitute(extent, self.numbers), {})) <= factors[1]:
                return [1, None]
        return factors

    def together(self, loops: Sequence[str]) -> list[str]:
        """The first of some loops that can be one, up to the next that was cut; where those are surely fewer rounds
        than there are cores, the loops from such a one on that are typically most."""
        extents = [self.extent(loop) for loop in loops]
        typical = [int(evaluate(substitute(extent, self.met), {})) for extent in extents]
        starts = [at for at, e in enumerate(extents) if not at or (int_value(e) is None and not isinstance(e, Var))]
        runs = [range(start, end) for start, end in zip(starts, [*starts[1:], len(loops)])]
        first = runs[0]
        if math.prod(int_value(extents[at]) or 1 for at in first) < self.cores:
            first = max(runs, key=lambda run: math.prod(typical[at] for at in run))
        return [loops[at] for at in first]

    def whole_tiles(self) -> None:
        """Sums in registers are computed for whole tiles, but those that most rounds of a loop are to leave out.

        A tile is what lies inside the loops of the reduction: what is around them is tested once for a tile.
        """
        for block in blocks_in(self.schedule.func.body):
            around = loops_on(block_path(self.schedule.func, block.name, "typical sizes"))
            if any(UNSWITCH in loop.annotations for loop in around):
                continue
            summed = reduction_loops(block, around)
            if not summed or block.writes[0].buffer.scope != "local":
                continue
            first = [loop.var in summed for loop in around].index(True)
            inside = {loop.var for loop in around[first:] if int_value(loop.extent) != 1}
            for at, axis in enumerate(block.axes):
                if axis.kind == "spatial" and int_value(axis.extent) is None and uses_any(block.bindings[at], inside):
                    form = linear(block.bindings[at]).terms
                    own = [loop for loop in around[first:] if loop.var in form and loop.var not in summed]
                    tile = math.prod(int_value(loop.extent) or 1 for loop in own)
                    tiles = [loop for loop in around[:first] if form.get(loop.var) == tile]
                    # Of a stretch with a known number of tiles those that there are not are passed over as a whole.
                    is_known = any(int_value(loop.extent) is not None for loop in tiles)
                    with self.schedule.attempt("whole tiles") as done:
                        self.schedule.apply("overrun", block=block.name, axis=at, tile=0 if is_known else tile)
                    for loop in tiles if done else ():
                        self.schedule.apply("annotate", target=loop.var.name, key=TILES, value=tile)


def with_sizes(func: Func, numbers: Mapping[Var, Expr]) -> tuple[Func, dict[Buffer, Buffer]]:
    """A program with numbers for its open sizes, and the buffers that became others."""
    buffers: dict[Buffer, Buffer] = {}
    for buffer in (*func.buffers, *func.allocations):
        shape = [substitute(size, numbers) for size in buffer.shape]
        if any(a is not b for a, b in zip(shape, buffer.shape)):
            buffers[buffer] = buffer.replace(shape=shape)
    params = [buffers.get(p, p) if isinstance(p, Buffer) else p for p in func.params]
    body = substitute_stmt(BufferReplacer(buffers).stmt(func.body), numbers)
    allocations = [buffers.get(buffer, buffer) for buffer in func.allocations]
    return func.replace(params=params, body=body, allocations=allocations), buffers

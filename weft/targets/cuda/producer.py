"""A group of threads that does nothing but fetch, beside those that multiply; and blocks that stay for many tiles.

In: a pipeline (a loop annotated "pipeline_stages" and BULK, its fills boxes: `bulk.box_of`) with its barriers.

    for z in range(2):                       thread     for z in range(3):                                     thread
      for k in range(8):                                  init full, empty; barrier()
        fill t with tile k                                if z < 2:
        use t                                               for k in range(8):
      …                                          ->           wait(full[k % 4], k // 4 % 2); use t[k % 4]
                                                              if k > 0: arrive(empty[(k - 1) % 4])
                                                            …
                                                          else:
                                                            for k in range(8):
                                                              wait(empty[k % 4], (k // 4 + 1) % 2)
                                                              expect(full[k % 4], bytes); copy tile k to t[k % 4]

Products run into the next step (the mark of a lag, see `wgmma.overlap_products`): a part is given back one step later.

A loop annotated PERSISTENT: [blocks, rows, resident] becomes that many blocks (times `resident`, where a multiprocessor
holds several), each of which takes one tile after another, in an order in which neighbours share what is in the cache:
down `rows` tiles, then on to the next column. The fetching group is then ahead by several steps while the others still
write a tile out.

    for i in range(32): for j in range(16):  blocks     for b in range(132):                                   blocks
      …                                          ->       for round in range((643 - b) // 132):
                                                            let i = …, j = …  of tile b + 132 round

PERSISTENT may say more: [blocks, rows, resident, down, across], clusters of blocks below or beside one another.
What all blocks of a cluster read (the columns of those below one another) each fetches a part of, for all of them:

    for b in range(66):                                                                                    blocks
      for rank in range(2):                                                                         clusterRank.x
        …     wait(empty[rank, …]); expect(full[rank, …], bytes); copy …; share half of a tile with both blocks
        …     arrive at empty[0, …] and empty[1, …]

`cluster` makes two blocks of that. Where their number is odd, the last one has no tile of its own, and stores nothing.

A loop whose fills are no boxes is left to `double_buffer`, with copies by all threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.codegen.c.generate import LAUNCH_WAIT
from weft.core.dtypes import INT32, INT64
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    Address,
    Buffer,
    Call,
    Expr,
    Select,
    Var,
    add,
    equal,
    floordiv,
    floormod,
    index_expr,
    int_value,
    less,
    logical_and,
    maximum,
    minimum,
    mul,
    sub,
)
from weft.expr.visit import substitute, uses_any
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.double_buffer import LAG, Plan, lift, plan_of
from weft.loop.passes.insert_barriers import barrier
from weft.loop.passes.support import Copier, Names, Part, buffers_written, is_barrier, make_if, rename_repeated
from weft.loop.visit import Mutator, child_stmts, substitute_stmt, walk_stmts
from weft.targets.cuda import bulk
from weft.targets.cuda.cluster import RANK
from weft.targets.cuda.early import given
from weft.targets.cuda.stagger import STAGGER

BULK, PERSISTENT, TURNS, CONSTANTS = "bulk_copy", "persistent", "turns", "constants"
GROUP, WARP, REGISTERS, FEWEST = 128, 32, 65536, 24
WAIT_BEFORE = Evaluate(Call(LAUNCH_WAIT, (), INT32))
"""Threads of a group, and of a warp; registers of a multiprocessor; what a thread that only fetches needs."""


def fetch_beside(func: Func) -> Func:
    """The program whose marked pipelines are fetched by a group of threads of its own."""
    if not any(isinstance(s, For) and s.annotations.get(BULK) for s in walk_stmts(func.body)):
        return func
    return _Kernels(lift(rename_repeated(func))).run()


def unroll_turns(func: Func) -> Func:
    """The program whose pipelines go by whole turns of their stages, unrolled: the stage of a step is a known number.

    Where it is not, threads work out quotients between the products that they begin.
    """
    marked = any(isinstance(s, For) and TURNS in s.annotations for s in walk_stmts(func.body))
    return rename_repeated(_ByTurns().func(func)) if marked else func


class _Kernels(Mutator):
    """Finds the kernels that have such a pipeline."""

    def __init__(self, func: Func) -> None:
        self.source, self.names = func, Names(func)

    def run(self) -> Func:
        """The whole program."""
        return self.func(self.source)

    def visit_For(self, s: For) -> Stmt:
        if s.kind != "thread":
            return self.generic_stmt(s)
        marked = [one for one in walk_stmts(s) if isinstance(one, For) and one.annotations.get(BULK)]
        plan = plan_of(self.source, marked[0]) if len(marked) == 1 else None
        ranges = Ranges()
        for one in walk_stmts(s):
            if isinstance(one, For):
                ranges = ranges.with_loop(one.var, one.extent)
        first = _filled_before(s, marked[0]) if plan is not None else []
        boxes = [bulk.box_of(fill, ranges) for fill in (*plan.fill, *first)] if plan is not None else []
        if plan is None or None in boxes:
            return s
        made = _Kernel(self, s, marked[0], plan, [box for box in boxes if box is not None], first)
        return made.run() if made.is_apart() else s


def _filled_before(kernel: For, loop: For) -> list[Stmt]:
    """The statements that fill what a pipeline reads in every step (the names of its "async_copy")."""
    names: Any = loop.annotations.get("async_copy")
    if not isinstance(names, (list, tuple)):
        return []
    fills = [s for s in walk_stmts(kernel) if isinstance(s, (For, Store)) and _writes_only(s, set(names))]
    return [s for s in fills if not any(s is not other and s in walk_stmts(other) for other in fills)]


def _writes_only(s: Stmt, names: set[str]) -> bool:
    written = {b.name for b in buffers_written(s)}
    return bool(written) and written <= names


class _Kernel:
    """One kernel: its blocks, its threads, what they do."""

    def __init__(
        self, owner: _Kernels, kernel: For, loop: For, plan: Plan, boxes: Sequence[bulk.Box], first: Sequence[Stmt]
    ) -> None:
        self.loop, self.plan, self.names, self.first = loop, plan, owner.names, first
        self.boxes, self.whole = [*boxes[: len(plan.fill)]], boxes[len(plan.fill) :]
        self.blocks: list[For] = []
        self.memory: list[Buffer] = []
        self.threads: list[For] = []
        self.body: Stmt = kernel
        while isinstance(self.body, Allocate) or (isinstance(self.body, For) and self.body.kind == "thread"):
            if isinstance(self.body, Allocate):
                if "." in self.body.buffer.scope:
                    break
                self.memory.append(self.body.buffer)
            elif (self.body.thread or "").startswith("blockIdx"):
                self.blocks.append(self.body)
            elif self.threads and any(one.thread == self.body.thread for one in self.threads):
                break
            else:
                self.threads.append(self.body)
            self.body = self.body.body
        marks = [s.annotations[PERSISTENT] for s in self.blocks if s.annotations.get(PERSISTENT)]
        self.wanted = [int(number) for number in marks[0]] if marks else []
        if self.wanted:  # tiles of a product: what is summed is what the steps go along
            for at, box in enumerate(self.boxes):
                apart = tuple(d for d, place in enumerate(box.corner) if not uses_any(place, {loop.var}))
                self.boxes[at] = replace(box, apart=apart)
        self.round: Var | None = None
        self.is_once = False
        """Whether each block has one tile alone."""
        self.down, self.across = self.wanted[3:5] if len(self.wanted) > 3 else (1, 1)
        along = "blockIdx.y" if self.down > 1 else "blockIdx.x"
        self.along = next((one for one in self.blocks if one.thread == along), None)
        """The loop over tiles of which a cluster has several."""
        if self.many > 1 and not any(map(self._is_shared, self.boxes)):
            self.down = self.across = 1
        self.rank = Var(self.names.fresh("rank")) if self.many > 1 else None
        known = given(owner.source) if self.rank is None else set()
        named = loop.annotations.get(CONSTANTS, ())
        self.early = [at for at, box in enumerate(self.boxes) if box.source in known and box.source.name in named]
        """Boxes of constants: a block with one tile asks for them before the kernel waits for the one before it."""
        odd = self.rank is not None and self.along is not None and (int_value(self.along.extent) or 0) % self.many
        self.place = Var(self.names.fresh("place")) if odd else None
        """Where a block's tile would be, if that may lie beyond the last."""
        self.halves = {
            old: new.replace(shape=(index_expr(self.many * plan.stages), *new.shape[1:])) if self.many > 1 else new
            for old, new in plan.halves.items()
        }
        self.full, self.empty = (
            Buffer(self.names.fresh(n), INT64, (self.many * plan.stages,), scope="shared") for n in ("full", "empty")
        )
        self.ready = Buffer(self.names.fresh("ready"), INT64, (1,), scope="shared") if first else None

    @property
    def many(self) -> int:
        """Blocks of a cluster."""
        return self.down * self.across

    def _is_shared(self, box: bulk.Box) -> bool:
        """Whether all blocks of a cluster read the same box, and can fetch parts of it."""
        own = {self.along.var} if self.along is not None else set()
        is_divided = self.along is not None and box.divided(self.many) is not None
        return is_divided and not any(uses_any(place, own) for place in box.corner)

    def is_apart(self) -> bool:
        """Whether one thread can fetch for all, and nothing but the pipeline makes threads wait for one another."""
        inner = [s for s in walk_stmts(self.body) if isinstance(s, For) and s.kind == "thread"]
        own = {s.var for s in (*self.threads, *inner) if int_value(s.extent) != 1}
        if not self.threads or any(uses_any(place, own) for box in (*self.boxes, *self.whole) for place in box.corner):
            return False
        pipeline = set(walk_stmts(self.loop))
        return not any(is_barrier(s) and s not in pipeline for s in walk_stmts(self.body))

    # ------------------------------------------------------------------------------------------------ the launch

    def run(self) -> Stmt:
        """The kernel with its two roles."""
        groups = math.prod(int_value(one.extent) or 1 for one in self.threads) // GROUP
        *outer, lane = self.threads
        last = int_value(outer[0].extent) or 1 if outer else 1
        first = outer[0] if outer else For(Var(self.names.fresh("role")), 1, Seq(()), "thread", "threadIdx.y")
        outer = [first.replace(extent=index_expr(last + 1)), *outer[1:]]
        outer = [one.replace(annotations={**one.annotations, "of_warp": True}) for one in outer]
        stages = self.plan.stages
        tiles = self._tiles()
        self.early = self.early if self.is_once else []
        parts = [self.halves[box.tile] for box in self.boxes]
        own = mul(self.rank, index_expr(stages)) if self.rank is not None else index_expr(0)
        starts, whole = (
            [Address(part, [own, *[index_expr(0)] * (len(part.shape) - 1)], "w") for part in some]
            for some in (parts, [box.tile for box in self.whole])
        )
        ready = None if self.ready is None else bulk.call(bulk.INIT, self._at(self.ready, index_expr(0)), 1, 1, *whole)
        made = seq(
            If(
                logical_and(*[equal(one.var, 0) for one in (*outer, lane)]),
                seq(
                    bulk.call(bulk.INIT, self._at(self.full, own), stages, 1, *starts),
                    bulk.call(bulk.INIT, self._at(self.empty, own), stages, groups * GROUP // WARP * self.many),
                    ready,
                ),
            ),
            barrier(),
            None if self.early or self.rank is not None or not self.wanted else WAIT_BEFORE,
            If(
                less(first.var, index_expr(last)),
                seq(
                    WAIT_BEFORE if self.early else None,
                    self._registers(groups, True),
                    self._rounds(self._consumer(lane.var), tiles),
                ),
                seq(
                    self._registers(groups, False),
                    If(equal(lane.var, 0), seq(self._rounds(self._producer(), tiles), self._end(tiles))),
                ),
            ),
        )
        for loop in (lane, *reversed(outer)):
            made = loop.replace(body=made)
        kept = [self.halves.get(buffer, buffer) for buffer in self.memory]
        for buffer in (*kept, self.full, self.empty, *([self.ready] if self.ready is not None else [])):
            made = Allocate(buffer, made)
        if self.round is None:
            for block in reversed(self.blocks):
                made = block.replace(body=made)
            return made
        if self.rank is not None:
            made = For(self.rank, self.many, made, "thread", RANK)
        return For(self.block, self.count, made, "thread", "blockIdx.x", annotations={"resident": self.wanted[2]})

    def _end(self, tiles: int) -> Stmt | None:
        """No block of a cluster ends while another may still arrive in it: it waits until all stages are given back."""
        if self.rank is None or self.round is None:
            return None
        rounds = floordiv(sub(index_expr(tiles + self.count - 1), self.block), index_expr(self.count))
        stage = Var(self.names.fresh("stage"))
        step = add(mul(rounds, self.loop.extent), stage)
        wait = bulk.call(bulk.WAIT, self._at(self.empty, self._stage(step)), self._parity(step, 1))
        return For(stage, self.plan.stages, wait)

    def _registers(self, groups: int, more: bool) -> Stmt | None:
        """Registers of those that fetch go to those that multiply, where a block has its multiprocessor to itself."""
        alone = self.round is not None or any(one.annotations.get("resident") == 1 for one in self.blocks)
        resident = self.wanted[2] if self.round is not None else 1
        if not alone or groups * resident < 2:
            return None
        left = (REGISTERS // resident - GROUP * FEWEST) // (GROUP * groups) // 8 * 8
        return bulk.call(bulk.REGISTERS, min(left, 240) if more else FEWEST, int(more))

    def _tiles(self) -> int:
        """How many tiles there are; from here on it is known whether blocks stay."""
        along = {"blockIdx.y": self.down, "blockIdx.x": self.across}
        tiles = math.prod(-(-(int_value(one.extent) or 0) // along.get(str(one.thread), 1)) for one in self.blocks)
        if self.wanted and tiles:
            blocks, _, resident = self.wanted[:3]
            self.count, self.round = min(blocks * resident // self.many, tiles), Var(self.names.fresh("round"))
            self.block, self.is_once = Var(self.names.fresh("block")), tiles == self.count
        return tiles

    def _rounds(self, body: Stmt, tiles: int) -> Stmt:
        """What a role does for each of its tiles."""
        if self.round is None:
            return body
        extents = {one.thread: (one.var, int_value(one.extent) or 1) for one in self.blocks}
        x, y, z = (extents.get(f"blockIdx.{d}", (None, 1)) for d in "xyz")
        of_tiles = x[1], y[1]
        across, down = -(-x[1] // self.across), -(-y[1] // self.down)
        tile = add(self.block, mul(self.round, index_expr(self.count)))
        each = across * down
        rows, inside = min(max(1, self.wanted[1] // self.down), down), floormod(tile, index_expr(each))
        rows = 1 if across == 1 else rows  # one tile below the other, whose column is known to be the first
        bands, left = divmod(down, rows)
        whole = index_expr(rows * across)
        within = floormod(inside, whole)
        column, row = (
            floordiv(within, index_expr(rows)),
            add(mul(floordiv(inside, whole), index_expr(rows)), floormod(within, index_expr(rows))),
        )
        if left:  # the last band has fewer rows; what is chosen is inside, which the ends say for all to see
            after = maximum(sub(inside, index_expr(bands * rows * across)), index_expr(0))
            is_whole = less(inside, index_expr(bands * rows * across))
            column = minimum(Select(is_whole, column, floordiv(after, index_expr(left))), index_expr(across - 1))
            last = add(index_expr(bands * rows), floormod(after, index_expr(left)))
            row = minimum(Select(is_whole, row, last), index_expr(down - 1))
        values = [column, row, floordiv(tile, index_expr(each)) if z[1] > 1 else index_expr(0)]
        along = int(self.down > 1)
        if self.rank is not None:  # a cluster's tile is one for each of its blocks
            values[along] = add(mul(values[along], index_expr(self.many)), self.rank)
        place, last = values[along], index_expr(of_tiles[along] - 1)
        if self.place is not None:
            values[along] = minimum(self.place, last)
        for (var, _), value in zip((x, y, z), values):
            if var is not None:
                body = Let(var, value, body)
        if self.place is not None:
            body = Let(self.place, place, body)
        rest = sub(index_expr(tiles + self.count - 1), self.block)
        return Copier(self.names).stmt(For(self.round, floordiv(rest, index_expr(self.count)), body))

    # ------------------------------------------------------------------------------------------------- the roles

    def _at(self, bars: Buffer, stage: Expr) -> Address:
        return Address(bars, [stage], "rw")

    def _step(self) -> Expr:
        """How many steps came before this one, in all rounds."""
        step: Expr = self.loop.var
        return step if self.round is None else add(mul(self.round, self.loop.extent), step)

    def _stage(self, step: Expr) -> Expr:
        own = floormod(step, index_expr(self.plan.stages))
        return own if self.rank is None else add(mul(self.rank, index_expr(self.plan.stages)), own)

    def _parity(self, step: Expr, other: int) -> Expr:
        return floormod(add(floordiv(step, index_expr(self.plan.stages)), index_expr(other)), index_expr(2))

    def _turns(self) -> dict[str, Any]:
        """The mark of a product's loop whose tiles all begin with the first stage."""
        stages, steps = self.plan.stages, int_value(self.loop.extent) or 1
        return {TURNS: stages} if self.round is not None and (self.is_once or steps % stages == 0) else {}

    def _begun(self, known: Stmt, others: Stmt, body: Stmt) -> Stmt:
        """The fills of a tile, the first ones of constants before the kernel waits for the one before it."""
        loop, steps = self.loop, int_value(self.loop.extent) or 1
        many = min(self.plan.stages, steps)

        def some(count: int, one: Stmt) -> Stmt | None:
            made = loop.replace(extent=index_expr(count), body=one, annotations=self._turns())
            return Copier(self.names).stmt(made) if count else None

        later = substitute_stmt(body, {loop.var: add(loop.var, index_expr(many))})
        return seq(some(many, known), WAIT_BEFORE, some(many, others), some(steps - many, later))

    def _consumer(self, lane: Var) -> Stmt:
        """Everything but the fills."""
        loop, step, plan = self.loop, self._step(), self.plan

        def give_back(at: Expr) -> Stmt:
            # a warp knows of its own products alone
            one, place = floormod(lane, index_expr(WARP)), self._at(self.empty, self._stage(at))
            if self.rank is None:
                return If(equal(one, 0), bulk.call(bulk.ARRIVE, place))
            there = bulk.call(bulk.ARRIVE_AT, place, one, self.rank, plan.stages)
            return If(less(one, index_expr(self.many)), there)

        before = sub(step, index_expr(1))
        wait = bulk.call(bulk.WAIT, self._at(self.full, self._stage(step)), self._parity(step, 0))
        done = Part(self.halves, self._stage(step)).stmt(seq(*plan.use))
        last = substitute(step, {loop.var: sub(loop.extent, index_expr(1))})
        if loop.annotations.get("pipeline_lag"):
            body = seq(wait, done, make_if(less(index_expr(0), loop.var), give_back(before)))
            made = seq(loop.replace(body=body, annotations={LAG: 1, **self._turns()}), give_back(last))
        else:
            notes = {STAGGER: True} if loop.annotations.get(STAGGER) else {}
            made = loop.replace(body=seq(wait, done, give_back(step)), annotations=notes)
        if self.ready is not None:
            made = seq(bulk.call(bulk.WAIT, self._at(self.ready, index_expr(0)), 0), made)
        own = less(self.place, self.along.extent) if self.place is not None and self.along is not None else None
        whole = _Replace(loop, made, own).stmt(self.body)
        for fill in self.first:
            whole = _Replace(fill, Seq(())).stmt(whole)
        return whole

    def _producer(self) -> Stmt:
        """The fills alone, with the loops around them."""
        step = self._step()
        stage = self._stage(step)
        full = self._at(self.full, stage)
        shared = {box: self.rank is not None and self._is_shared(box) for box in self.boxes}
        copies = [
            box.copies(self.halves[box.tile], stage, full, *((self.many, self.rank) if shared[box] else ()))
            for box in self.boxes
        ]
        bytes_: Expr = index_expr(0)
        for box in self.boxes:
            bytes_ = add(bytes_, box.expected(self.many if shared[box] else 1))
        body = seq(
            bulk.call(bulk.WAIT, self._at(self.empty, stage), self._parity(step, 1)),
            bulk.call(bulk.EXPECT, full, bytes_),
            *copies,
        )
        made: Stmt = Copier(self.names).stmt(self.loop.replace(body=body, annotations=self._turns()))
        if self.early:
            known = seq(bulk.call(bulk.EXPECT, full, bytes_), *[copies[at] for at in self.early])
            others = seq(*[one for at, one in enumerate(copies) if at not in self.early])
            made = self._begun(known, others, body)
        if self.ready is not None:
            ready = self._at(self.ready, index_expr(0))
            copies, bytes_ = [box.copies(box.tile, None, ready) for box in self.whole], index_expr(0)
            for box in self.whole:
                bytes_ = add(bytes_, box.expected())
            made = seq(bulk.call(bulk.EXPECT, ready, bytes_), *copies, made)
        return Copier(self.names).stmt(_around(self.body, self.loop, made))


class _ByTurns(Mutator):
    """Puts turns of all stages, and the steps that are left, in place of steps."""

    def visit_For(self, s: For) -> Stmt:
        turn, steps, stage = s.annotations.get(TURNS), int_value(s.extent), Var(f"{s.var.name}_stage")
        if turn is None or steps is None:
            return self.generic_stmt(s)

        def some(many: int, first: Expr) -> Stmt | None:
            body = substitute_stmt(s.body, {s.var: add(mul(first, index_expr(turn)), stage)})
            return For(stage, many, body, "unrolled") if many else None

        whole, turns = Var(f"{s.var.name}_turn"), steps // turn
        each = some(turn, whole) if turns else None
        return seq(For(whole, turns, each) if each is not None else None, some(steps % turn, index_expr(turns)))


class _Replace(Mutator):
    """One statement in place of another; what follows it only where a test holds, if there is one."""

    def __init__(self, old: Stmt, new: Stmt, test: Expr | None = None) -> None:
        self.old, self.new, self.test = old, new, test

    def visit_Seq(self, s: Seq) -> Stmt:
        at = next((i for i, one in enumerate(s.stmts) if any(x is self.old for x in walk_stmts(one))), None)
        if at is None or self.test is None:
            return self.generic_stmt(s)
        after = s.stmts[at + 1 :]
        return seq(*s.stmts[:at], self.stmt(s.stmts[at]), If(self.test, seq(*after)) if after else None)

    def stmt(self, s: Stmt) -> Stmt:
        return self.new if s is self.old else super().stmt(s)


def _around(s: Stmt, loop: Stmt, made: Stmt) -> Stmt:
    """A statement in place of a loop, with the loops around that one alone; threads but at index 0 do not come here."""
    if s is loop:
        return made
    inside = next(child for child in child_stmts(s) if any(one is loop for one in walk_stmts(child)))
    body = _around(inside, loop, made)
    if isinstance(s, For):
        return (
            Let(s.var, index_expr(0), body) if s.kind == "thread" or int_value(s.extent) == 1 else s.replace(body=body)
        )
    if isinstance(s, Let):
        return Let(s.var, s.value, body)
    if isinstance(s, If):
        return If(s.condition, body)
    return body

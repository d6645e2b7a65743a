"""Primitives that add up weighed parts as they come: online, stop_at_mask, beneath_peak.

A softmax over parts weighs each by a power of its top beneath the greatest top, which is known when all parts are. One
pass is enough with a running maximum: what was added up so far is weighed anew whenever a greater top comes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.core.errors import ScheduleError
from weft.expr.bounds import Ranges
from weft.expr.nodes import (
    LE,
    LT,
    Add,
    Buffer,
    Call,
    Const,
    Expr,
    Load,
    Max,
    Mul,
    Select,
    Sub,
    Var,
    add,
    floordiv,
    index_expr,
    int_value,
    is_true,
    maximum,
    minimum,
    mul,
    sub,
)
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import free_vars, substitute, uses_any
from weft.loop.ir import Axis, Block, For, Func, Let, Seq, Stmt, Store, seq
from weft.loop.passes.decompose_init import init_nest
from weft.loop.passes.support import linear
from weft.loop.regions import block_regions, conjuncts
from weft.loop.tree import (
    axis_loops,
    block_of,
    block_path,
    blocks_in,
    loop_of,
    loop_path,
    loops_on,
    ranges_of,
    readers,
    replace_last,
    taken_names,
    unique_name,
    without_buffers,
    writers,
)
from weft.loop.visit import Mutator
from weft.schedule.registry import Result, primitive


@primitive(str, str, str, Sequence[str])
def online(func: Func, block: str, loop: str, peak: str, sums: Sequence[str] = ()) -> Result:
    """Sums over parts, weighed by powers beneath their greatest top, in one loop over the parts.

    rewrite: for i: for p: P[i] max= T[p, i]
             for i: for p: L[i] += l[p, i] * exp(T[p, i] - P[i])
             for p: for i: W[i] += w[p, i] * exp(T[p, i] - P[i])
             ->  for i: P[i], L[i], W[i] = lowest, 0, 0
                 for p: for i: n = max(P[i], T[p, i]); C[i], S[i], P[i] = exp(P[i] - n), exp(T[p, i] - n), n
                        for i: L[i] = L[i] * C[i] + l[p, i] * S[i]
                        for i: W[i] = W[i] * C[i] + w[p, i] * S[i]

    `block` is W with its loop over the parts, `peak` is P, `sums` are others like L, whose elements W's readers read
    with W's own. The parts keep their order from then on. Gives the names of the blocks that begin P, L and W, and of
    the buffers C and S.
    """
    return _Online(func, block, loop, peak, sums).result()


class _Online:
    """One application of the primitive."""

    def __init__(self, func: Func, block: str, loop: str, peak: str, sums: Sequence[str]) -> None:
        self.func, self.place = func, f"{block}, {loop}"
        self.path = loop_path(func, loop, "online")
        self.parts = loop_of(self.path)
        self.main = block_of(block_path(func, block, "online"))
        self.inner = loops_on(block_path(func, block, "online"))[len(loops_on(self.path)) - 1 :]
        self.peak = block_of(block_path(func, peak, "online"))
        self.sums = [block_of(block_path(func, name, "online")) for name in sums]
        self.taken = taken_names(func)
        self.check()

    def fail(self, reason: str) -> ScheduleError:
        """The error of this application."""
        return ScheduleError("online", self.place, reason)

    def check(self) -> None:
        """Raises unless the blocks have the forms that are known, and nobody else sees what changes."""
        if self.parts.kind != "serial" or blocks_in(self.parts) != [self.main]:
            raise self.fail(f"{self.parts.var.name} is not a plain loop around {self.main.name} alone")
        for block in (self.main, self.peak, *self.sums):
            reduced = [axis for axis in block.axes if axis.kind == "reduce"]
            plain = isinstance(block.body, Store) and all(i in _spatial(block) for i in block.body.indices)
            if len(reduced) != 1 or block.init is None or not plain or not is_true(block.predicate):
                raise self.fail(f"{block.name} is no plain reduction along one axis, with its init")
            if any(writer is not block for writer in writers(self.func.body, block.writes[0].buffer)):
                raise self.fail(f"other blocks write what {block.name} computes")
            if block.writes[0].buffer in self.func.buffers:
                raise self.fail(f"{block.writes[0].buffer.name} is an output")
        (at,) = [i for i, axis in enumerate(self.main.axes) if axis.kind == "reduce"]
        others = [b for i, b in enumerate(self.main.bindings) if i != at]
        if self.main.bindings[at] is not self.parts.var or any(uses_any(b, {self.parts.var}) for b in others):
            raise self.fail(f"{self.parts.var.name} does not run over the parts of {self.main.name}")
        body = self.peak.body
        assert isinstance(body, Store)
        if not isinstance(body.value, Max) or not isinstance(body.value.b, Load):
            raise self.fail(f"{self.peak.name} is no maximum of elements")
        weighed = [self.main, *self.sums]
        if any(reader not in weighed for reader in readers(self.func.body, body.buffer) if reader is not self.peak):
            raise self.fail(f"others than {', '.join(b.name for b in weighed)} read {body.buffer.name}")
        self._check_readers()

    def _check_readers(self) -> None:
        """Who reads a sum reads it where it reads the main one: the loops compute no more of it than of that."""
        main = self.main.writes[0].buffer
        for block in self.sums:
            mine = self.axes_of(block)
            where = [_spatial(self.main).index(mine[v]) for v in block.body.indices]  # type: ignore[attr-defined]
            for reader in readers(self.func.body, block.writes[0].buffer):
                if reader is block:
                    continue
                regions = {region.buffer: region.mins for region in reader.reads}
                stored = self.main.body.indices  # type: ignore[attr-defined]
                order = [_spatial(self.main).index(v) for v in stored]
                read = regions[block.writes[0].buffer]
                if main not in regions or any(
                    not structural_equal(i, regions[main][order.index(at)]) for i, at in zip(read, where)
                ):
                    raise self.fail(f"{reader.name} reads {block.name} elsewhere than {self.main.name}")

    def parts_of(self, block: Block) -> tuple[Expr, Expr, list[Expr]]:
        """What a sum adds: the element, its power, and the arguments of that: the top, and what is beneath it."""
        body = block.body
        assert isinstance(body, Store)
        value = body.value
        old = Load(body.buffer, body.indices)
        if isinstance(value, Add) and structural_equal(value.a, old) and isinstance(value.b, Mul):
            for x, power in ((value.b.a, value.b.b), (value.b.b, value.b.a)):
                if isinstance(power, Call) and power.name in ("exp", "exp2") and isinstance(power.args[0], Sub):
                    return x, power, [power.args[0].a, power.args[0].b]
        raise self.fail(f"{block.name} does not add elements times exp(top - greatest top)")

    def axes_of(self, block: Block) -> dict[Var, Var]:
        """The axes of a block by those of the main one, from where both read the greatest top."""
        if block is self.main:
            return {axis.var: axis.var for axis in block.axes}
        stored = self.peak.body.indices  # type: ignore[attr-defined]
        at = [self._peak_load(b).indices for b in (self.main, *([] if block is self.peak else [block]))]
        own = stored if block is self.peak else at[-1]
        found = {v: m for v, m in zip(own, at[0]) if isinstance(v, Var) and isinstance(m, Var)}
        reduced = [[axis.var for axis in b.axes if axis.kind == "reduce"][0] for b in (block, self.main)]
        found[reduced[0]] = reduced[1]
        if len(found) != len(block.axes) or not set(found.values()) <= {axis.var for axis in self.main.axes}:
            raise self.fail(f"{block.name} has other axes than {self.main.name}")
        return found

    def _peak_load(self, block: Block) -> Load:
        beneath = self.parts_of(block)[2][1]
        if isinstance(beneath, Max) and isinstance(beneath.b, Const):
            beneath = beneath.a
        if not isinstance(beneath, Load) or beneath.buffer is not self.peak.writes[0].buffer:
            raise self.fail(f"{block.name} does not weigh by {self.peak.name}")
        return beneath

    def result(self) -> Result:
        """The new program."""
        peak, peaks = self.peak, self.peak.writes[0].buffer
        scale, share = (
            peaks.replace(name=unique_name(f"{peaks.name}_{name}", self.taken)) for name in ("scale", "share")
        )
        starts: list[Stmt] = []
        names: list[str] = []
        steps: list[Stmt] = []
        axes: dict[str, Sequence[str | None]] = {}
        for block in (peak, *self.sums, self.main):
            renamed = self.axes_of(block)
            body = self._peak_step(scale, share) if block is peak else self._sum_step(block, scale, share)
            made, loops = self._placed(block, body, renamed)
            start, name = init_nest(self.func, made, loops, unique_name(f"{block.name}_start", self.taken))
            starts.append(start)
            names.append(name)
            ordered = [Axis(a.var, a.extent, "ordered" if a.kind == "reduce" else a.kind) for a in made.axes]
            nest: Stmt = made.replace(init=None, axes=ordered)
            axes[block.name] = axis_loops(nest)  # type: ignore[arg-type]
            for loop in reversed(loops[1:]):
                nest = loop.replace(body=nest)
            steps.append(nest)
        notes = {**self.parts.annotations, "online": True}
        new = replace_last(self.func, self.path, seq(*starts, self.parts.replace(body=seq(*steps), annotations=notes)))
        for block in (peak, *self.sums):
            found = [p for p in _paths(new, block.name) if block_of(p) is block]
            new = replace_last(new, found[0], None)
        allocations = [*new.allocations, scale, share]
        return Result(new.replace(allocations=allocations), [*names, scale.name, share.name], axes)

    def _peak_step(self, scale: Buffer, share: Buffer) -> Stmt:
        body = self.peak.body
        assert isinstance(body, Store) and isinstance(body.value, Max)
        at, old, top = body.indices, body.value.a, body.value.b
        _, power, (_, beneath) = self.parts_of(self.main)
        assert isinstance(power, Call)

        def bounded(e: Expr) -> Expr:
            return maximum(e, beneath.b) if isinstance(beneath, Max) else e

        new = Var("new", top.dtype)
        limit = bounded(new)
        stores = seq(
            Store(scale, at, Call(power.name, (sub(bounded(old), limit),), top.dtype)),
            Store(share, at, Call(power.name, (sub(top, limit),), top.dtype)),
            Store(body.buffer, at, new),
        )
        return Let(new, maximum(old, top), stores)

    def _sum_step(self, block: Block, scale: Buffer, share: Buffer) -> Stmt:
        body = block.body
        assert isinstance(body, Store)
        x, _, (top, _) = self.parts_of(block)
        load = self._peak_load(block)
        made, theirs = self.peak.body, self.axes_of(self.peak)
        assert isinstance(made, Store) and isinstance(made.value, Max)
        mine = {main: own for own, main in self.axes_of(block).items()}
        expected = substitute(made.value.b, {v: mine[m] for v, m in theirs.items()})
        if not structural_equal(top, expected):
            raise self.fail(f"{block.name} weighs by other tops than those of {self.peak.name}")
        old = mul(Load(body.buffer, body.indices), Load(scale, load.indices))
        return Store(body.buffer, body.indices, add(old, mul(x, Load(share, load.indices))))

    def _placed(self, block: Block, body: Stmt, renamed: dict[Var, Var]) -> tuple[Block, list[For]]:
        """A block in loops of its own inside the loop over the parts: those of the main one that its axes take."""
        bound = dict(zip((axis.var for axis in self.main.axes), self.main.bindings))
        bindings: list[Expr] = [bound[renamed[axis.var]] for axis in block.axes]
        used = {v for binding in bindings for v in free_vars(binding)}
        loops = [self.inner[0], *[loop for loop in self.inner[1:] if loop.var in used]]
        if block is not self.main:
            fresh: dict[Var, Expr] = {loop.var: Var(unique_name(loop.var.name, self.taken)) for loop in loops[1:]}
            bindings = [substitute(binding, fresh) for binding in bindings]
            loops = [loops[0], *[For(fresh[one.var], one.extent, one.body) for one in loops[1:]]]  # type: ignore[arg-type]
        reads, writes = block_regions(body, block.init)
        return block.replace(bindings=bindings, body=body, reads=reads, writes=writes), loops


@primitive(str, str)
def stop_at_mask(func: Func, loop: str, block: str) -> Result:
    """A loop of `online` that ends where a block of scores gives minus infinity for all parts that are left.

    rewrite: for p in range(8): M[i, k] = s if 64 * p + k <= i else -inf
             ->  for p in range(min(8, (greatest i) // 64 + 1)): …

    Such a part has powers of 0: it changes neither sums nor maximum. The first part always runs.
    """
    place = f"{loop}, {block}"
    path = loop_path(func, loop, "stop_at_mask")
    parts, count = loop_of(path), int_value(loop_of(path).extent)
    scores = block_of(block_path(func, block, "stop_at_mask"))
    if not parts.annotations.get("online") or not any(b is scores for b in blocks_in(parts)) or count is None:
        raise ScheduleError("stop_at_mask", place, f"{loop} is not a loop that `online` made around {block}")
    if not _is_softmax(parts, scores):
        raise ScheduleError("stop_at_mask", place, f"others than a maximum and powers that are summed read {block}")
    loops = loops_on(block_path(func, block, "stop_at_mask"))
    ranges = ranges_of(func, loops)
    # Threads of a block run all its parts together: the last one that any of them needs.
    threads = [one for one in loops_on(path) if (one.thread or "").startswith("threadIdx")]
    inner = {one.var: one.extent for one in [*threads, *loops[len(loops_on(path)) :]]}
    bound = dict(zip((axis.var for axis in scores.axes), scores.bindings))
    ends = [_end(test, parts.var, inner, bound, ranges) for test in _tests(scores)]
    last: Expr = index_expr(count)
    for end in ends:
        last = last if end is None else minimum(last, end)
    made = simplify(maximum(last, index_expr(1)), ranges)
    return Result(replace_last(func, path, parts.replace(extent=made)))


def _tests(block: Block) -> list[Expr]:
    """The conditions of which each has to hold, or the block gives minus infinity."""
    value = block.body.value if isinstance(block.body, Store) else None
    found: list[Expr] = []
    while isinstance(value, Select) and isinstance(value.otherwise, Const) and value.otherwise.value == -math.inf:
        found += conjuncts(value.condition)
        value = value.then
    return found


def _end(test: Expr, part: Var, inner: Mapping[Var, Expr], bound: Mapping[Var, Expr], ranges: Ranges) -> Expr | None:
    """The first part from which on a test a <= b (or a < b) never holds, in terms of the loops around the parts."""
    if not isinstance(test, (LE, LT)):
        return None
    distance = linear(simplify(substitute(sub(test.a, test.b), dict(bound)), ranges))
    step = distance.terms.get(part, 0)
    if step <= 0 or any(not isinstance(term, Var) for term in distance.terms):
        return None
    rest: Expr = index_expr(-distance.constant - (1 if isinstance(test, LT) else 0))
    for term, factor in distance.terms.items():
        extent = int_value(inner[term]) if isinstance(term, Var) and term in inner else None
        if isinstance(term, Var) and term in inner:
            if extent is None:
                return None
            rest = sub(rest, index_expr(min(0, factor * (extent - 1))))
        elif term is not part:
            rest = sub(rest, mul(term, index_expr(factor)))
    return add(floordiv(rest, index_expr(step)), index_expr(1))


def _is_softmax(parts: For, scores: Block) -> bool:
    """Whether what is read of scores is their maximum, and their powers, which are only summed."""
    buffer = scores.writes[0].buffer
    for reader in readers(parts, buffer):
        value = reader.body.value if isinstance(reader.body, Store) else None
        is_power = isinstance(value, Call) and value.name in ("exp", "exp2") and isinstance(value.args[0], Sub)
        if is_power and not all(_is_sum(one) for one in readers(parts, reader.writes[0].buffer)):
            return False
        if not is_power and not (isinstance(value, Max) and reader.init is not None):
            return False
    return True


def _is_sum(block: Block) -> bool:
    value = block.body.value if isinstance(block.body, Store) else None
    return isinstance(value, Add) and block.init is not None


def _spatial(block: Block) -> list[Var]:
    return [axis.var for axis in block.axes if axis.kind == "spatial"]


def _paths(func: Func, name: str) -> list[list[Stmt]]:
    """The paths to all blocks of a name."""
    found: list[list[Stmt]] = []

    def walk(s: Stmt, path: list[Stmt]) -> None:
        if isinstance(s, Block):
            found.extend([[*path, s]] * (s.name == name))
        elif isinstance(s, For):
            walk(s.body, [*path, s])
        else:
            for child in getattr(s, "stmts", ()):
                walk(child, [*path, s])

    walk(func.body, [])
    return found


@primitive(str, str, str)
def beneath_peak(func: Func, loop: str, powers: str, product: str) -> Result:
    """Powers of `online`'s parts beneath the running maximum instead of the part's own top; a product adds to its sums.

    rewrite: for p: …; C[i], S[i], P[i] = exp(P[i] - n), exp(T[p, i] - n), n
                    G[p, i, k] = exp(s - T[p, i]);  l[p, i] += G[p, i, k];  M[p, i, e] += G[p, i, k] * v[p, k, e]
                    L[i] = L[i] * C[i] + l[p, i] * S[i];  W[i, e] = W[i, e] * C[i] + M[p, i, e] * S[i]
             ->  for p: …; C[i], P[i] = exp(P[i] - n), n
                    G[p, i, k] = exp(s - P[i]);  l[p, i] += G[p, i, k]
                    L[i] = L[i] * C[i] + l[p, i];  W[i, e] = W[i, e] * C[i];  W[i, e] += G[p, i, k] * v[p, k, e]

    `powers` is G, `product` is M, which needs no memory of its own any more.
    """
    return _Beneath(func, loop, powers, product).result()


class _Beneath:
    """One application of the primitive."""

    def __init__(self, func: Func, loop: str, powers: str, product: str) -> None:
        self.func, self.place = func, f"{loop}, {powers}"
        self.path = loop_path(func, loop, "beneath_peak")
        self.parts = loop_of(self.path)
        self.power, self.product = (block_of(block_path(func, name, "beneath_peak")) for name in (powers, product))
        inside = blocks_in(self.parts)
        peaks = [block for block in inside if isinstance(block.body, Let)]
        if not self.parts.annotations.get("online") or len(peaks) != 1 or not {self.power, self.product} <= {*inside}:
            raise self.fail(f"{loop} is not a loop that `online` made around {powers} and {product}")
        self.peak = peaks[0]
        let = self.peak.body
        assert isinstance(let, Let) and isinstance(let.value, Max) and isinstance(let.value.b, Load)
        self.top = let.value.b
        _, share, last = (s for s in let.body.stmts)  # type: ignore[attr-defined]
        self.share, self.running, self.at = share.buffer, last.buffer, list(last.indices)
        self.sums = [block for block in readers(self.parts, self.share) if block is not self.peak]
        self.check()

    def fail(self, reason: str) -> ScheduleError:
        """The error of this application."""
        return ScheduleError("beneath_peak", self.place, reason)

    def check(self) -> None:
        """Raises unless the powers are only summed, and their sums only weighed by the shares."""
        body, tops = self.power.body, self.top.buffer
        value = body.value if isinstance(body, Store) else None
        below = value.args[0].b if isinstance(value, Call) and isinstance(value.args[0], Sub) else None
        if (
            value is None
            or getattr(value, "name", "") not in ("exp", "exp2")
            or getattr(below, "buffer", None) is not tops
        ):
            raise self.fail(f"{self.power.name} is no power of a number beneath {tops.name}")
        if {block.name for block in readers(self.func.body, tops)} != {self.power.name, self.peak.name}:
            raise self.fail(f"others than {self.power.name} and {self.peak.name} read {tops.name}")
        for block in readers(self.func.body, self.power.writes[0].buffer):
            taken = readers(self.func.body, block.writes[0].buffer)
            if not _is_sum(block) or any(one is not block and one not in self.sums for one in taken):
                raise self.fail(f"{block.name} is no sum that is weighed by {self.share.name} alone")
        if self.product.writes[0].buffer not in {self.weighed(block).buffer for block in self.sums}:
            raise self.fail(f"{self.product.name} is no sum that is weighed by {self.share.name}")

    def weighed(self, block: Block) -> Load:
        """What a sum over the parts adds, without its share."""
        value = block.body.value if isinstance(block.body, Store) else None
        added = value.b if isinstance(value, Add) and isinstance(value.b, Mul) else None
        if added is None or not isinstance(added.a, Load) or getattr(added.b, "buffer", None) is not self.share:
            raise self.fail(f"{block.name} does not add elements times {self.share.name}")
        return added.a

    def result(self) -> Result:
        """The new program."""
        made = {self.peak: self._alone(), self.power: self._lower()}
        places = list(self.parts.body.stmts) if isinstance(self.parts.body, Seq) else [self.parts.body]
        buffer = self.product.writes[0].buffer
        for block in self.sums:
            body = block.body
            assert isinstance(body, Store) and isinstance(body.value, Add)
            element = self.weighed(block)
            is_main = element.buffer is buffer
            value = body.value.a if is_main else add(body.value.a, element)
            made[block] = _with_body(block, Store(body.buffer, body.indices, value))
            if is_main:
                made[self.product] = self._in_place(element, body)
                first, second = (next(s for s in places if b in blocks_in(s)) for b in (self.product, block))
                places.remove(second)
                places.insert(places.index(first), second)
        body = _Blocks(made).stmt(seq(*places))
        new = replace_last(self.func, self.path, self.parts.replace(body=body))
        begun = {b: _with_body(b, b.body) for b in writers(new.body, self.share)}
        return Result(without_buffers(new.replace(body=_Blocks(begun).stmt(new.body)), [buffer, self.share]))

    def _alone(self) -> Block:
        """The step of the maximum without shares."""
        let = self.peak.body
        assert isinstance(let, Let) and isinstance(let.body, Seq)
        kept = [s for s in let.body.stmts if not (isinstance(s, Store) and s.buffer is self.share)]
        return _with_body(self.peak, Let(let.var, let.value, seq(*kept)))

    def _lower(self) -> Block:
        """The powers, beneath the running maximum."""
        body = self.power.body
        assert isinstance(body, Store) and isinstance(body.value, Call) and isinstance(body.value.args[0], Sub)
        number, below = body.value.args[0].a, body.value.args[0].b
        assert isinstance(below, Load)
        at = [below.indices[list(self.top.indices).index(index)] for index in self.at]
        value = Call(body.value.name, (sub(number, Load(self.running, at)),), body.value.dtype)
        return _with_body(self.power, Store(body.buffer, body.indices, value))

    def _in_place(self, element: Load, main: Store) -> Block:
        """The product that adds to the sums over the parts, which were weighed anew before."""
        old = self.product.body
        assert isinstance(old, Store) and isinstance(old.value, Add)
        own = dict(zip(element.indices, old.indices))
        at = [own[index] for index in main.indices]
        kept = {v for index in at for v in free_vars(index)}
        body = Store(main.buffer, at, add(Load(main.buffer, at), old.value.b))
        axes = [
            axis if axis.kind == "reduce" or axis.var in kept else Axis(axis.var, axis.extent, "ordered")
            for axis in self.product.axes
        ]
        return _with_body(self.product.replace(init=None, axes=axes), body)


def _with_body(block: Block, body: Stmt) -> Block:
    reads, writes = block_regions(body, block.init)
    return block.replace(body=body, reads=reads, writes=writes)


class _Blocks(Mutator):
    """Blocks in place of others."""

    def __init__(self, made: Mapping[Block, Block]) -> None:
        self.made = made

    def visit_Block(self, s: Block) -> Stmt:
        return self.made.get(s, s)

"""From a lowered loop program to the accelerator's stream of instructions.

The writer runs the loops. A nest of loops around one statement becomes instructions: copies between DRAM and the
memories of the chip become transfers (rectangles with padding), tensorized products become `gemm`, expressions of sums
become `alu` in place. Loops tagged "vthread" become virtual threads: each has its share of every memory, and their
instructions alternate. Then tokens are placed.

    for v in range(2) thread vthread:                  load memory=inp dram=@X …
        for k in range(4):                             load memory=inp sram=1024 dram=@X+64 …
            X_inp[…] = X[v, k, …]                ->    gemm … pop_prev push_prev
            vdla_gemm(X_inp[…], W_wgt[…], Y_acc[…])    gemm … pop_prev push_prev
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress, groupby, permutations
from typing import Any

import numpy as np

from weft.core.errors import TargetError
from weft.expr.classes import Add, Binary, Max, Min, Mul
from weft.expr.nodes import Address, Buffer, Call, Cast, Const, Expr, Load, Select, Var, int_value
from weft.expr.simplify import simplify
from weft.expr.structural import structural_equal
from weft.expr.visit import children, free_vars, walk
from weft.loop.ir import Allocate, Evaluate, For, If, Let, Seq, Stmt, Store
from weft.loop.passes.support import linear
from weft.targets.vdla.isa import POSITIVE, ROUNDS, Config, Instruction, encode_uop
from weft.targets.vdla.operator import high_product, round_shift
from weft.targets.vdla.tokens import interleave

Array = Any
SCOPES = {"inp": "int8", "wgt": "int8", "acc": "int32"}
NUMBERS: dict[str, Any] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "FloorDiv": np.floor_divide, "FloorMod": np.mod,
    "Min": np.minimum, "Max": np.maximum, "EQ": np.equal, "NE": np.not_equal, "LT": np.less, "LE": np.less_equal,
    "And": np.logical_and, "Or": np.logical_or, "Not": np.logical_not, "Select": np.where,
}  # fmt: skip


@dataclass
class Placed:
    """An instruction, and the buffer in DRAM that its address counts from."""

    one: Instruction
    buffer: str = ""


@dataclass
class Nest:
    """Loops around one statement: their extents, and variables as arrays over all iterations, to be broadcast.

    Loops over the elements of an entry are no part of it: there the variables are 0.
    """

    extents: tuple[int, ...]
    values: dict[Var, Array]
    body: Stmt


@dataclass
class Writer:
    """Writes the instructions of a lowered program, still without tokens."""

    config: Config
    names: Mapping[Buffer, str]
    readers: Mapping[Buffer, int]
    """How many statements read each buffer."""
    uops: list[int] = field(default_factory=list)
    kernels: dict[tuple[int, ...], int] = field(default_factory=dict)
    places: dict[Buffer, int] = field(default_factory=dict)
    """The first entry of each buffer on the chip; one that is not written yet is at -1."""
    zeroed: Array = None
    """Sums that begin at zero: a product that follows overwrites them."""

    def __post_init__(self) -> None:
        self.share = {name: (0, getattr(self.config, name)) for name in SCOPES}
        self.live: dict[Buffer, tuple[int, int]] = {}
        self.looked: dict[Stmt, Any] = {}
        self.chains: dict[Expr, Any] = {}
        self.last: tuple[Placed, Array] | None = None  # an alu that has just been written, and what it changes
        """What was found about statements and expressions, which loops come back to again and again."""

    def value(self, e: Expr, values: Mapping[Var, Any]) -> Any:
        """A number, or an array of them over a nest."""
        if isinstance(e, Var):
            return values[e]
        if isinstance(e, Const):
            return e.value
        if type(e).__name__ not in NUMBERS:
            raise TargetError(f"the accelerator cannot compute an address with {type(e).__name__}")
        return NUMBERS[type(e).__name__](*(self.value(part, values) for part in children(e)))

    def write(self, s: Stmt, values: dict[Var, Any]) -> Iterator[Placed]:
        """The instructions of a statement."""
        nest = self._nest(s, values)
        if nest is not None:
            yield from self._statement(nest)
        elif isinstance(s, Seq):
            for part in s.stmts:
                yield from self.write(part, values)
        elif isinstance(s, For) and s.thread == "vthread":
            yield from self._threads(s, values)
        elif isinstance(s, For):
            for i in range(self.value(s.extent, values)):
                yield from self.write(s.body, {**values, s.var: i})
        elif isinstance(s, If):
            chosen = s.then if self.value(s.condition, values) else s.otherwise
            yield from () if chosen is None else self.write(chosen, values)
        elif isinstance(s, Let):
            yield from self.write(s.body, {**values, s.var: self.value(s.value, values)})
        elif isinstance(s, Allocate):
            if SCOPES.get(s.buffer.scope) != s.buffer.dtype.name:
                raise TargetError(f"{s.buffer.name} is {s.buffer.dtype} in {s.buffer.scope!r}, not one of {SCOPES}")
            self.places[s.buffer] = -1
            yield from self.write(s.body, values)
            self.live.pop(s.buffer, None)
        else:
            raise TargetError(f"the accelerator has nothing for {type(s).__name__}")

    def _nest(self, s: Stmt, values: dict[Var, Any]) -> Nest | None:
        loops = []
        while isinstance(s, For) and s.thread is None and int_value(s.extent) is not None:
            loops.append((s.var, int_value(s.extent) or 0))
            s = s.body
        if not isinstance(s, (Evaluate, Store)):
            return None
        within = {}
        if isinstance(s, Store):
            if s not in self.looked:
                self.looked[s] = self._lane_loops(loops, s)
            loops, within = self.looked[s]
        extents = tuple(extent for _, extent in loops)
        grid = np.ogrid[tuple(slice(extent) for extent in extents)]
        return Nest(extents, {**values, **within, **{var: grid[i] for i, (var, _) in enumerate(loops)}}, s)

    def _lane_loops(self, loops: list[tuple[Var, int]], s: Store) -> tuple[list[tuple[Var, int]], dict[Var, Any]]:
        """The loops without those over the elements of an entry, which must lie together in all that is touched."""
        lanes = loops[-2:] if s.buffer in self.places and s.buffer.scope == "wgt" else loops[-1:]
        if any(extent != self.config.block for _, extent in lanes) or not lanes or s.predicate is not None:
            raise TargetError(f"{s.buffer.name} is not written by vectors of {self.config.block}")
        steps = {var: self.config.block**place for place, (var, _) in enumerate(reversed(lanes))}
        accesses: list[tuple[Buffer, Expr, bool]] = [(s.buffer, s.indices[0], True)]
        accesses += [(e.buffer, e.indices[0], True) for e in walk(s.value) if isinstance(e, Load)]
        accesses += [(s.buffer, e.condition, False) for e in walk(s.value) if isinstance(e, Select)]
        for buffer, index, moves in accesses:
            terms = linear(index).terms if moves else {index: 1}
            found = {var: sum(by for term, by in terms.items() if var in free_vars(term)) for var in steps}
            apart = any(var in free_vars(term) for var in steps for term in terms if term is not var)
            if apart or (moves and found != steps):
                raise TargetError(f"the elements of {buffer.name} that {s.buffer.name} needs do not lie together")
        return loops[: -len(lanes)], dict.fromkeys(steps, 0)

    def _threads(self, loop: For, values: dict[Var, Any]) -> Iterator[Placed]:
        """Virtual threads, each in its own share of the memories; a group of each by turns.

        Where there are fewer "contexts" than threads, a thread takes over the share of one that is over.
        """
        extent, share = int_value(loop.extent) or 0, self.share
        count = min(int(loop.annotations.get("contexts", extent)), extent)
        threads: list[list[list[Placed]]] = [[] for _ in range(count)]
        for number in range(extent):
            self.share = {
                name: tuple(begin + (number % count + more) * (end - begin) // count for more in (0, 1))
                for name, (begin, end) in share.items()
            }  # fmt: skip
            made = list(self.write(loop.body, {**values, loop.var: number}))
            threads[number % count] += [list(group) for _, group in groupby(made, key=lambda placed: placed.one.unit)]
        self.share = share
        yield from interleave(threads)

    def _place(self, buffer: Buffer) -> None:
        """Memory for a buffer that is about to be written: the first gap that is large enough."""
        size = -(-int(np.prod([int_value(extent) or 0 for extent in buffer.shape])) // self._lanes(buffer.scope))
        begin, end = self.share[buffer.scope]
        for other, (start, length) in sorted(self.live.items(), key=lambda item: item[1]):
            if other.scope == buffer.scope and start < begin + size and begin < start + length:
                begin = start + length
        if begin + size > end:
            raise TargetError(f"there is no place for {buffer.name}: {size} entries of {buffer.scope}, up to {end}")
        self.places[buffer], self.live[buffer] = begin, (begin, size)

    def _lanes(self, scope: str) -> int:
        """Elements of an entry."""
        return self.config.block ** (2 if scope == "wgt" else 1)

    def _entries(self, buffer: Buffer, index: Expr, nest: Nest) -> Array:
        """Entries on the chip, or words of DRAM, that begin at an index; one for each iteration of the nest."""
        inside = buffer in self.places
        if inside and self.places[buffer] < 0:
            self._place(buffer)
        unit = self._lanes(buffer.scope) if inside else self.config.block // buffer.dtype.bytes
        at = np.broadcast_to(np.asarray(self.value(index, nest.values)), nest.extents)
        if not unit or np.any(at % unit):
            raise TargetError(f"{buffer.name} is not accessed by whole vectors of {self.config.block}")
        return self.places.get(buffer, 0) + at // unit

    def _statement(self, nest: Nest) -> Iterator[Placed]:
        body = nest.body
        if isinstance(body, Evaluate):
            call = body.value
            if not isinstance(call, Call) or call.name not in ("vdla_zero", "vdla_gemm"):
                raise TargetError(f"the accelerator has no {getattr(call, 'name', call)}")
            addresses = [one for one in call.args if isinstance(one, Address)]
            steps = [int_value(one) for one in call.args if not isinstance(one, Address)]
            expected = (["inp", "wgt", "acc"], [1, self.config.block, 1, 1])
            expected = (["acc"], [1]) if call.name == "vdla_zero" else expected
            if ([one.buffer.scope for one in addresses], steps) != expected:
                raise TargetError(f"{call.name} works on vectors and matrices that lie together, in {expected[0]}")
            places = [self._entries(one.buffer, one.indices[0], nest) for one in addresses]
            if call.name == "vdla_zero":
                yield from self._flush()
                self.zeroed = places[0]
            else:
                yield from self._gemm(*places)
            return
        assert isinstance(body, Store)
        scope = body.buffer.scope if body.buffer in self.places else "dram"
        if scope == "acc" and int_value(body.value) == 0:
            yield from self._flush()
            self.zeroed = self._entries(body.buffer, body.indices[0], nest)
        elif scope in ("inp", "wgt") or (scope == "acc" and _reads_dram(body.value, self.places)):
            yield from self._load(nest, body)
        else:
            yield from self._flush()
            yield from self._alu(nest, body) if scope == "acc" else self._store(nest, body)

    def _load(self, nest: Nest, body: Store) -> Iterator[Placed]:
        value, inside, memory = body.value, np.ones(nest.extents, bool), body.buffer.scope
        if isinstance(value, Select) and isinstance(value.otherwise, Const) and value.otherwise.value == 0:
            inside = np.broadcast_to(np.asarray(self.value(value.condition, nest.values), bool), nest.extents)
            value = value.then
        if isinstance(value, Cast) and value.value.dtype.name == "int8" and value.dtype.name == "int32":
            value, memory = value.value, "acc8"
        if not isinstance(value, Load) or value.buffer in self.places:
            raise TargetError(f"{body.buffer.name} is filled by more than a copy from memory")
        sram = self._entries(body.buffer, body.indices[0], nest)
        at = np.broadcast_to(np.asarray(self.value(value.indices[0], nest.values)), nest.extents)
        unit = self.config.block // value.buffer.dtype.bytes
        if np.any(at[inside] % unit):
            raise TargetError(f"{value.buffer.name} is not read by whole vectors of {self.config.block}")
        yield from self._transfer("load", memory, sram, at // unit, inside, self.names[value.buffer])

    def _store(self, nest: Nest, body: Store) -> Iterator[Placed]:
        value, memory = body.value, "acc"
        if body.buffer.dtype.name == "int8":
            value, memory = _saturated(value), "acc8"
        if not isinstance(value, Load) or (value.buffer.scope, value.dtype.name) != ("acc", "int32"):
            raise TargetError(f"{body.buffer.name} is not the sums of acc, or those clipped to int8")
        sram, dram = (self._entries(one.buffer, one.indices[0], nest) for one in (value, body))
        yield from self._transfer("store", memory, sram, dram, np.ones(nest.extents, bool), self.names[body.buffer])

    def _transfer(self, op: str, memory: str, sram: Array, dram: Array, inside: Array, name: str) -> Iterator[Placed]:
        """One rectangle where it is one; otherwise those of the outermost loop's iterations."""
        one = moved_rectangle(self.config.beats[memory], sram.ravel(), dram.ravel(), inside.ravel())
        if one is not None:
            self.last = None
            yield Placed(Instruction(op, memory=memory, **one), name)
        elif sram.ndim == 0:
            raise TargetError(f"a transfer of {name} is no rectangle")
        else:
            for part in zip(sram, dram, inside):
                yield from self._transfer(op, memory, *part, name)

    def _flush(self) -> Iterator[Placed]:
        """Zeros that no product has overwritten."""
        if self.zeroed is not None:
            zeroed, self.zeroed = self.zeroed, None
            yield from self._loops("alu", zeroed, zeroed, None, operation="mul", immediate=1, value=0)

    def _gemm(self, src: Array, wgt: Array, dst: Array) -> Iterator[Placed]:
        fresh = self.zeroed is not None and bool(np.isin(dst, self.zeroed).all())
        if fresh:
            left = np.setdiff1d(self.zeroed, dst)
            self.zeroed = left if len(left) else None
        else:
            yield from self._flush()
        yield from self._loops("gemm", dst, src, wgt, fresh=fresh)

    def _alu(self, nest: Nest, body: Store) -> Iterator[Placed]:
        """Operations in place: the result takes over the memory of the sums that it is made from."""
        if body.value not in self.chains:
            self.chains[body.value] = _chain(body.value)
        first, steps = self.chains[body.value]
        if self.readers.get(first.buffer, 0) > 1:
            raise TargetError(f"{body.buffer.name} would take over {first.buffer.name}, which is read again")
        src = self._entries(first.buffer, first.indices[0], nest)
        if self.places[body.buffer] < 0:
            offset = src.flat[0] - np.asarray(self.value(body.indices[0], nest.values)).flat[0] // self.config.block
            self.places[body.buffer] = int(offset)
            self.live[body.buffer] = self.live.pop(first.buffer)
        dst = self._entries(body.buffer, body.indices[0], nest)
        if not np.array_equal(dst, src):
            raise TargetError(f"{body.buffer.name} and {first.buffer.name} have their vectors in another order")
        for number, (operation, operand) in enumerate(steps):
            if isinstance(operand, Load):
                other = self._entries(operand.buffer, operand.indices[0], nest)
                if np.isin(other, dst).any() and (number or not np.array_equal(other, dst)):
                    raise TargetError(f"{operand.buffer.name} is needed again after it was overwritten")
                yield from self._loops("alu", dst, other, None, operation=operation)
            elif not self._second_stage(dst, operation, operand):
                yield from self._loops("alu", dst, dst, None, operation=operation, immediate=1, value=operand)

    def _second_stage(self, dst: Array, operation: str, number: int) -> bool:
        """Whether the alu before, which changes the same sums, does this in its second stage: a shift, then max 0."""
        if self.last is None or self.last[0].one.immediate or not np.array_equal(np.sort(dst, None), self.last[1]):
            return False
        placed, _ = self.last
        value = placed.one.value
        if operation in ("shr", "round") and value == 0:
            value = number | (ROUNDS if operation == "round" else 0)
        elif (operation, number) == ("max", 0) and value < POSITIVE:
            value |= POSITIVE
        else:
            return False
        placed.one = placed.one.replace(value=value)
        return True

    def _loops(
        self, opcode: str, dst: Array, src: Array, wgt: Array | None, fresh: bool = False, **more: Any
    ) -> Iterator[Placed]:
        """Two of the nest's loops in the instruction, the others as micro-ops; what sums begin with comes first."""
        arrays = [dst, src] if wgt is None else [dst, src, wgt]
        dims = _moved_strides(arrays)
        spatial = sorted((dim for dim in dims if dim[1][0]), key=lambda dim: -dim[0])
        most = [max(*by[:2], *(2 * weight for weight in by[2:])) for _, by in spatial]
        loops = [dim for dim, step in zip(spatial, most) if dim[0] < 1 << 14 and step < 2048][:2]
        rest = [dim for dim in dims if not any(dim is one for one in loops)]
        if np.prod([extent for extent, _ in rest], dtype=float) > self.config.uop:
            raise TargetError(f"a nest needs more than {self.config.uop} micro-ops")
        base, again = [int(array.flat[0]) for array in arrays], [not by[0] for _, by in rest]
        steps = sorted(np.ndindex(*(extent for extent, _ in rest)), key=lambda at: (any(compress(at, again)), at))
        moved = [[sum(i * by[k] for i, (_, by) in zip(at, rest)) for k in range(len(arrays))] for at in steps]
        uops = [encode_uop(*(start + more for start, more in zip(base, by))) for by in moved]
        begin = self._uops(tuple(uops))
        once = (1, (0,) * len(arrays))
        for name, (extent, by) in zip(("outer", "inner"), (*loops, once, once)):
            more[name] = extent
            more |= {f"{what}_{name}": by[k] for k, what in enumerate(("dst", "src", "wgt")[: len(arrays)])}
        firsts = sum(not any(compress(at, again)) for at in steps) if fresh else 0
        if firsts:
            yield Placed(Instruction(opcode, uop_begin=begin, uop_end=begin + firsts, overwrite=1, **more))
        if firsts < len(uops):
            made = Placed(Instruction(opcode, uop_begin=begin + firsts, uop_end=begin + len(uops), **more))
            self.last = (made, np.sort(dst, None)) if opcode == "alu" else None
            yield made

    def _uops(self, made: tuple[int, ...]) -> int:
        if made not in self.kernels:
            self.kernels[made] = len(self.uops)
            self.uops += made
            if len(self.uops) > self.config.uop:
                raise TargetError(f"the program needs more than {self.config.uop} micro-ops")
        return self.kernels[made]


def moved_rectangle(beats: int, sram: Array, dram: Array, inside: Array) -> dict[str, int] | None:
    """`rectangle`, found once for all transfers of one shape."""
    first = int(dram[inside][0]) if inside.any() else 0
    steps = (np.ascontiguousarray(one) for one in (sram - sram[0], np.where(inside, dram - first, 0), inside))
    found = _rectangle(beats, *(one.tobytes() for one in steps))
    if found is None or first + found["dram"] < 0:
        return None
    return {**found, "sram": int(sram[0]), "dram": first + found["dram"]}


@lru_cache(maxsize=1 << 12)
def _rectangle(beats: int, sram: bytes, dram: bytes, inside: bytes) -> dict[str, int] | None:
    return rectangle(beats, np.frombuffer(sram, np.int64), np.frombuffer(dram, np.int64), np.frombuffer(inside, bool))


def rectangle(beats: int, sram: Array, dram: Array, inside: Array) -> dict[str, int] | None:
    """The fields of a transfer that moves these entries, or None. Padding is what is not `inside`."""
    count = len(sram)
    if np.any(np.diff(sram) != 1):
        return None
    for columns in (one for one in range(count, 0, -1) if count % one == 0):
        is_data, words = inside.reshape(-1, columns), dram.reshape(-1, columns)
        rows, across = np.flatnonzero(is_data.any(1)), np.flatnonzero(is_data.any(0))
        if not len(rows):  # nothing but padding
            across = np.arange(columns)
        top, left = int(rows[0]) if len(rows) else len(is_data), int(across[0])
        bottom, right = len(is_data) - top - len(rows), columns - left - len(across)
        pads = {"pad_top": top, "pad_bottom": bottom, "pad_left": left, "pad_right": right}
        part = words[top : top + len(rows), left : left + len(across)]
        stride = int(part[1, 0] - part[0, 0]) if len(part) > 1 else 0
        first = int(part[0, 0]) if part.size else 0
        straight = first + np.arange(len(rows))[:, None] * stride + np.arange(len(across)) * beats
        whole = is_data[top : top + len(rows), left : left + len(across)].all() and is_data.sum() == part.size
        fits = first >= 0 and max(pads.values()) < 16 and max(stride, len(rows), len(across)) < 1 << 16
        if whole and fits and stride >= 0 and np.array_equal(part, straight):
            sizes = {"rows": len(rows), "columns": len(across), "stride": stride}
            return {"sram": int(sram[0]), "dram": first, **sizes, **pads}
    return None


def _moved_strides(arrays: Sequence[Array]) -> list[tuple[int, tuple[int, ...]]]:
    """`_strides`, found once for all nests of one form."""
    return _known_strides(arrays[0].shape, *((array - array.flat[0]).tobytes() for array in arrays))


@lru_cache(maxsize=1 << 12)
def _known_strides(shape: tuple[int, ...], *arrays: bytes) -> list[tuple[int, tuple[int, ...]]]:
    return _strides([np.frombuffer(array, np.int64).reshape(shape) for array in arrays])


def _strides(arrays: Sequence[Array]) -> list[tuple[int, tuple[int, ...]]]:
    """The loops of a nest: extents, and what each adds to the arrays; loops that continue one another are merged."""
    dims: list[tuple[int, tuple[int, ...]]] = []
    for axis, extent in enumerate(arrays[0].shape):
        if extent > 1:
            by = tuple(int((np.take(a, 1, axis) - np.take(a, 0, axis)).ravel()[0]) for a in arrays)
            if dims and dims[-1][1] == tuple(extent * one for one in by) and dims[-1][0] * extent < 1 << 14:
                dims[-1] = (dims[-1][0] * extent, by)
            else:
                dims.append((extent, by))
    for k, array in enumerate(arrays):
        straight = np.asarray(array.ravel()[0])
        for extent, by in dims:
            straight = straight[..., None] + np.arange(extent) * by[k]
        if not np.array_equal(straight.ravel(), array.ravel()) or any(by[k] < 0 for _, by in dims):
            raise TargetError("an instruction of the accelerator steps through its memories by constant strides")
    return dims


def _reads_dram(e: Expr, places: Mapping[Buffer, int]) -> bool:
    return (isinstance(e, Load) and e.buffer not in places) or any(_reads_dram(part, places) for part in children(e))


def _saturated(e: Expr) -> Expr:
    """x of int8(min(max(x, -128), 127)), or the expression itself."""
    if isinstance(e, Cast) and isinstance(e.value, Min):
        inner, limit = sides(e.value)
        if isinstance(inner, Max) and int_value(limit) == 127:
            x, least = sides(inner)
            return x if int_value(least) == -128 else e
    return e


OPERATIONS: dict[type[Expr], str] = {Add: "add", Mul: "mul", Min: "min", Max: "max"}


def sides(e: Binary) -> tuple[Expr, Expr]:
    """What an operation is done to, and its operand: a number, or what is read, where only one side is."""
    plain = [2 * isinstance(side, Const) + isinstance(side, Load) for side in (e.a, e.b)]
    return (e.b, e.a) if plain[0] > plain[1] else (e.a, e.b)


DECLARED: dict[str, Callable[[Expr, Expr], Expr]] = {"round": round_shift, "mulh": high_product}
"""Operations of the ALU that are larger expressions elsewhere: what they mean, in those."""


def _declared(e: Expr) -> tuple[str, Expr, Expr] | None:
    """The operation that an expression is the meaning of, what it is done to, and its operand."""
    loads = {load.buffer: load for load in walk(e) if isinstance(load, Load) and load.buffer.scope == "acc"}
    operands = [*loads.values(), *({e.args[1]} if isinstance(e, Call) and len(e.args) == 2 else ())]
    for name, meaning in DECLARED.items():
        for x, operand in permutations(operands, 2):
            if isinstance(x, Load) and structural_equal(simplify(meaning(x, operand)), simplify(e)):
                return name, x, operand
    return None


def _chain(e: Expr) -> tuple[Load, list[tuple[str, Load | int]]]:
    """An expression of sums as one operation after the other on the first of them."""
    if isinstance(e, Load) and e.buffer.scope == "acc":
        return e, []
    if isinstance(e, Binary) and type(e) in OPERATIONS:
        (rest, operand), name = sides(e), OPERATIONS[type(e)]
    elif (found := _declared(e)) is not None:
        name, rest, operand = found
    elif isinstance(e, Call) and e.name == "shift_right":
        (rest, operand), name = e.args, "shr"
    else:
        raise TargetError(f"the vector ALU has nothing for {type(e).__name__}: {e!r}")
    first, steps = _chain(rest)
    if isinstance(operand, Load) and operand.buffer.scope == "acc":
        return first, [*steps, (name, operand)]
    number = int_value(operand)
    if number is None or not (0 <= number < 32 if name in ("shr", "round") else -(1 << 15) <= number < 1 << 15):
        raise TargetError(f"an operand of the vector ALU is in acc or a number of 16 bits, not {operand!r}")
    return first, [*steps, (name, number)]

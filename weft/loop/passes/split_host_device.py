"""A program with thread loops as a list of kernel launches.

    allocate W: float32[64]                                  workspace W: float32[64]
    blockIdx.x for b in range(4):                            launch 1: grid 4, block 16: W[…] = A[…] * 2
        threadIdx.x for t in range(16): W[…] = A[…] * 2
    blockIdx.x for c in range(64): B[c] = W[c]         ->    launch 2: grid 64, block 1: B[c] = W[c]

Every outermost nest with thread loops is one launch; statements between them that belong to no thread are launches of
one thread. Serial loops around launches run on the host: each iteration launches the same kernels with another value of
its variable; so do block loops that have more than one nest of further block loops inside. Conditions and names around
a launch move into it. What is allocated around launches is a workspace; memory of a block or thread that is too large
for it becomes a workspace with a part for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Union

from weft.core.dtypes import INDEX
from weft.core.errors import TargetError
from weft.expr.nodes import Address, Broadcast, Buffer, Expr, Load, Var, index_expr, int_value, maximum, product
from weft.expr.visit import free_vars, walk
from weft.loop.ir import Allocate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import Copier, Names
from weft.loop.visit import AccessMutator, BufferReplacer, child_exprs, walk_stmts

TAGS = tuple(f"{group}.{dim}" for group in ("blockIdx", "threadIdx") for dim in "xyz")
MOST_LAUNCHES = 1 << 16


@dataclass(frozen=True)
class Launch:
    """One kernel: its body and arguments, the extents of its blocks and threads, and the host loops' variables."""

    name: str
    body: Stmt
    params: tuple[Union[Buffer, Var], ...]
    grid: tuple[Expr, Expr, Expr]
    block: tuple[int, int, int]
    constants: Mapping[Var, int] = field(default_factory=dict)


@dataclass(frozen=True)
class HostProgram:
    """Launches in order, and the device memory between them."""

    launches: tuple[Launch, ...]
    workspaces: tuple[Buffer, ...]


def split_host_device(func: Func, shared_bytes: int = 48 << 10, local_bytes: int = 16 << 10) -> HostProgram:
    """The launches of a flat program; a block has so many bytes of shared memory, a thread so many of its own."""
    return _Splitter(func, shared_bytes, local_bytes).split()


def _has_threads(s: Stmt) -> bool:
    return any(isinstance(x, For) and x.kind == "thread" for x in walk_stmts(s))


def _is_launch(s: For) -> bool:
    """Whether a loop is the outermost of one launch: its block loops stand directly in each other.

    Blocks cannot wait for each other. Where a block loop stands beside something, or inside a serial loop, what
    follows may need what all of its blocks did, so the loops around it are the host's.
    """
    inner: Stmt = s
    while isinstance(inner, (Allocate, Let, If)) or (isinstance(inner, For) and inner.kind == "thread"):
        if isinstance(inner, If):
            if inner.otherwise is not None:
                break
            inner = inner.then
        else:
            inner = inner.body
    return s.kind == "thread" and not any(
        isinstance(x, For) and (x.thread or "").startswith("blockIdx") for x in walk_stmts(inner)
    )


class _Splitter:
    def __init__(self, func: Func, shared_bytes: int, local_bytes: int) -> None:
        self.source = func
        self.limits = {"shared": shared_bytes, "local": local_bytes}
        self.names = Names(func)
        self.kernels: list[Launch] = []
        self.order: list[tuple[int, dict[Var, int]]] = []
        self.workspaces: list[Buffer] = []
        self.around: list[Stmt] = []
        self.host: list[Var] = []

    def split(self) -> HostProgram:
        plan = self._visit(self.source.body)
        launches: list[Launch] = []
        for number, values in self._expand(plan, {}):
            kernel = self.kernels[number]
            used = {var: value for var, value in values.items() if var in kernel.params}
            launches.append(replace(kernel, constants=used))
        return HostProgram(tuple(launches), tuple(self.workspaces))

    # ------------------------------------------------------------------ the plan: kernels and the host's loops

    def _visit(self, s: Stmt) -> list[_Step]:
        if isinstance(s, Seq):
            return self._sequence(s)
        if not _has_threads(s) and not isinstance(s, Allocate):
            return [self._kernel(s)]
        if isinstance(s, Allocate):
            made = s.buffer.replace(scope="global")
            self.workspaces.append(made)
            return self._visit(BufferReplacer({s.buffer: made}).stmt(s.body))
        if isinstance(s, For) and not _is_launch(s):
            self.host.append(s.var)
            inner = self._visit(s.body)
            self.host.pop()
            return [_HostLoop(s, inner)]
        if isinstance(s, (If, Let)):
            return self._inside(s)
        return [self._kernel(s)]

    def _sequence(self, s: Seq) -> list[_Step]:
        """Statements without threads that follow one another are one kernel."""
        steps: list[_Step] = []
        waiting: list[Stmt] = []
        for child in s.stmts:
            if not _has_threads(child) and not isinstance(child, Allocate):
                waiting.append(child)
                continue
            if waiting:
                steps.append(self._kernel(seq(*waiting)))
                waiting = []
            steps += self._visit(child)
        return steps + ([self._kernel(seq(*waiting))] if waiting else [])

    def _inside(self, s: If | Let) -> list[_Step]:
        """A condition or a name around launches: each launch has it around its body."""
        tested = s.condition if isinstance(s, If) else s.value
        steps: list[_Step] = []
        if any(isinstance(node, Load) for node in walk(tested)):
            # The launches inside may change what was loaded, so the value is kept.
            kept = Buffer(self.names.fresh("kept"), tested.dtype, (1,))
            self.workspaces.append(kept)
            steps.append(self._kernel(Store(kept, (index_expr(0),), tested)))
            tested = Load(kept, (index_expr(0),))
        branches: list[tuple[Stmt, Stmt]]
        branches = [(s.then, If(tested, Seq(())))] if isinstance(s, If) else [(s.body, Let(s.var, tested, Seq(())))]
        if isinstance(s, If) and s.otherwise is not None:
            branches.append((s.otherwise, If(tested, Seq(()), Seq(()))))
        for body, wrapper in branches:
            self.around.append(wrapper)
            steps += self._visit(body)
            self.around.pop()
        return steps

    def _expand(self, plan: Sequence[_Step], values: dict[Var, int]) -> list[tuple[int, dict[Var, int]]]:
        out: list[tuple[int, dict[Var, int]]] = []
        for step in plan:
            if isinstance(step, int):
                out.append((step, values))
                continue
            extent = int_value(step.loop.extent)
            if extent is None:
                raise TargetError(
                    f"the loop {step.loop.var.name} around kernels has no constant extent: {step.loop.extent!r}; "
                    "bind a loop outside of it to blockIdx, or move it inside the threads"
                )
            for value in range(extent):
                out += self._expand(step.body, {**values, step.loop.var: value})
                if len(out) > MOST_LAUNCHES:
                    raise TargetError(
                        f"the loop {step.loop.var.name} launches kernels {len(out)} times and more: "
                        "bind it to threads, or move it inside them"
                    )
        return out

    # ----------------------------------------------------------------------------------------------- one kernel

    def _kernel(self, s: Stmt) -> int:
        for wrapper in reversed(self.around):
            if isinstance(wrapper, Let):
                s = Let(wrapper.var, wrapper.value, s)
            elif isinstance(wrapper, If):
                s = If(wrapper.condition, s) if wrapper.otherwise is None else If(wrapper.condition, Seq(()), s)
        if any(isinstance(wrapper, Let) for wrapper in self.around):
            s = Copier(self.names).stmt(s)
        grid, block = _extents(s)
        s = self._spilled(s, grid, block)
        number = len(self.kernels)
        name = f"{self.source.name}_{number}"
        self.kernels.append(Launch(name, s, self._params(s, grid), grid, block))
        return number

    def _params(self, body: Stmt, grid: tuple[Expr, ...]) -> tuple[Union[Buffer, Var], ...]:
        """What a kernel takes: parameters of the program, workspaces and variables, in a fixed order."""
        used: set[Union[Buffer, Var]] = set(free_vars(*grid))
        for stmt in walk_stmts(body):
            if isinstance(stmt, Store):
                used.add(stmt.buffer)
            for e in child_exprs(stmt):
                for node in walk(e):
                    if isinstance(node, (Load, Address)):
                        used.add(node.buffer)
                    elif isinstance(node, Var):
                        used.add(node)
        known = (*self.source.params, *self.workspaces, *self.source.size_vars, *self.host)
        return tuple(p for p in known if p in used)

    def _spilled(self, s: Stmt, grid: tuple[Expr, Expr, Expr], block: tuple[int, int, int]) -> Stmt:
        """The kernel with allocations that are too large for shared or private memory in a workspace."""
        spiller = _Spiller(self.limits, grid, block, self.names)
        done = spiller.kernel(s)
        self.workspaces += spiller.workspaces
        return done


@dataclass(frozen=True)
class _HostLoop:
    loop: For
    body: Sequence[_Step]


_Step = Union[int, _HostLoop]
"""The number of a kernel, or a loop of the host."""


def _extents(s: Stmt) -> tuple[tuple[Expr, Expr, Expr], tuple[int, int, int]]:
    """The largest extents of each dimension of blocks and threads."""
    found: dict[str, Expr] = {}
    for loop in walk_stmts(s):
        if isinstance(loop, For) and loop.kind == "thread":
            assert loop.thread is not None
            if loop.thread not in TAGS:
                raise TargetError(f"loop {loop.var.name!r} is bound to {loop.thread}, which was not lowered")
            before = found.get(loop.thread)
            found[loop.thread] = loop.extent if before is None else maximum(before, loop.extent)
    sizes = [found.get(tag, index_expr(1)) for tag in TAGS]
    block = [int_value(size) for size in sizes[3:]]
    if None in block:
        raise TargetError("the extent of a loop bound to threadIdx must be constant; split it by a constant first")
    x, y, z = (int(size or 1) for size in block)
    return (sizes[0], sizes[1], sizes[2]), (x, y, z)


class _Spiller(AccessMutator):
    """Moves large allocations of blocks and threads into workspaces: one part for each block (or thread)."""

    def __init__(
        self, limits: Mapping[str, int], grid: tuple[Expr, Expr, Expr], block: tuple[int, int, int], names: Names
    ) -> None:
        self.limits, self.grid, self.block, self.names = limits, grid, block, names
        self.used = {"shared": 0, "local": 0}
        self.workspaces: list[Buffer] = []
        self.moved: dict[Buffer, tuple[Buffer, Expr]] = {}
        self.indices: dict[str, Var] = {}

    def kernel(self, s: Stmt) -> Stmt:
        """The kernel's body; where something moved, every dimension has a loop around it all."""
        done = self.stmt(s)
        sizes: tuple[Expr | int, ...] = (*self.grid, *self.block)
        for tag, extent in zip(TAGS, sizes):
            if tag in self.indices:
                done = For(self.indices[tag], extent, done, "thread", tag)
        return done

    def visit_Allocate(self, s: Allocate) -> Stmt:
        kind = "local" if s.buffer.scope == "global" else s.buffer.scope.split(".")[0]
        count = int_value(product(s.buffer.shape)) if s.buffer.strides is None else None
        size = None if count is None else count * s.buffer.dtype.bytes
        if kind not in self.limits or s.buffer.strides is not None:
            return self.generic_stmt(s)
        if size is not None and self.used[kind] + size <= self.limits[kind]:
            self.used[kind] += size
            return self.generic_stmt(s)
        if free_vars(*s.buffer.shape):
            bound = [v.name for v in free_vars(*s.buffer.shape)]
            if any(isinstance(x, (For, Let)) and x.var.name in bound for x in walk_stmts(s)):
                raise TargetError(f"buffer {s.buffer.name!r} in a kernel has a size that changes: {s.buffer.shape!r}")
        parts = self._number("blockIdx") if kind == "shared" else self._number("threadIdx", self._number("blockIdx"))
        total = product((*self.grid, *(self.block if kind == "local" else ())))
        made = Buffer(self.names.fresh(s.buffer.name), s.buffer.dtype, (total, *s.buffer.shape))
        self.workspaces.append(made)
        self.moved[s.buffer] = (made, parts * product(s.buffer.shape))
        return self.stmt(s.body)

    def _number(self, group: str, first: Expr | None = None) -> Expr:
        """The number of this block, or of this thread counted after its block."""
        sizes: tuple[Expr | int, ...] = self.grid if group == "blockIdx" else self.block
        number = first
        for dim, size in zip("xyz", sizes):
            tag = f"{group}.{dim}"
            if int_value(size) == 1:
                continue
            if tag not in self.indices:
                self.indices[tag] = Var(self.names.fresh(tag.replace("Idx.", "_")), INDEX)
            number = self.indices[tag] if number is None else number * index_expr(size) + self.indices[tag]
        return index_expr(0) if number is None else number

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        """An access of what was moved."""
        if buffer not in self.moved:
            return buffer, indices
        (made, offset), index = self.moved[buffer], indices[0]
        if index.dtype.lanes > 1:
            offset = Broadcast(offset, index.dtype.lanes)
        return made, (index + offset,)

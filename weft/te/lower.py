"""Tensor expressions to loop IR: each operation becomes a loop nest around one block.

    C = te.compute((m, n), lambda y, x: te.sum(A[k, y] * B[k, x], axis=k))
->
    for y in range(m):
        for x in range(n):
            for k in range(l):
                block C(y: m = y, x: n = x, k: reduce l = k):
                    init: C[y, x] = 0
                    C[y, x] = C[y, x] + A[k, y]*B[k, x]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core.errors import ExpressionError
from weft.expr.bounds import Ranges, prove
from weft.expr.nodes import (
    Add,
    And,
    Binary,
    Buffer,
    Expr,
    Load,
    Max,
    Min,
    Mul,
    Or,
    Var,
    index_expr,
    int_value,
    is_true,
    less,
    less_equal,
    select,
)
from weft.expr.structural import structural_equal
from weft.expr.visit import walk
from weft.loop.ir import Axis, Block, For, Func, Let, Param, Region, Stmt, Store, seq
from weft.loop.regions import block_regions
from weft.loop.visit import BufferReplacer, Mutator, substitute_stmt
from weft.te.access import check_reads
from weft.te.axis import IterVar
from weft.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, Reduce, ScanOp, Tensor

Time = tuple[Var, int]
"""The loop variable of a scan, and the first step that it computes."""

SIMPLE_COMBINERS = (Add, Mul, Min, Max, And, Or)


class Lowering:
    """State of one lowering: the names taken, the buffers, and which axis of which block an IterVar became."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.bound: set[Var] = set()
        self.inputs: list[Tensor] = []
        self.intermediates: list[Buffer] = []
        self.handles: dict[tuple[str, Var], int] = {}
        self.replaced: dict[Buffer, Buffer] = {}

    def unique(self, name: str) -> str:
        """A name that nothing else in the program has."""
        made, count = name, 0
        while made in self.names:
            count += 1
            made = f"{name}_{count}"
        self.names.add(made)
        return made

    def name_tensor(self, tensor: Tensor) -> None:
        """Gives the tensor a name of its own: loops, blocks and traces speak of buffers by name."""
        tensor.name = self.unique(tensor.name)


def sort_operations(outputs: Sequence[Operation]) -> list[Operation]:
    """Operations in an order in which each comes after what it reads."""
    order: dict[Operation, None] = {}
    stack: list[tuple[Operation, bool]] = [(op, False) for op in reversed(outputs)]
    while stack:
        op, done = stack.pop()
        if done:
            order[op] = None
        elif op not in order:
            stack.append((op, True))
            stack.extend((t.op, False) for t in reversed(op.inputs) if t.op not in order)
    return list(order)


def lower(outputs: Sequence[Operation], name: str = "main") -> tuple[Func, dict[tuple[str, Var], int]]:
    """The program that computes the outputs, and the block axis that each te axis became."""
    state = Lowering()
    order = sort_operations(outputs)
    in_scan, states = _scan_members(order)
    body: list[Stmt | None] = []
    for op in order:
        if isinstance(op, PlaceholderOp):
            if op.outputs[0] not in states:
                state.name_tensor(op.outputs[0])
                state.inputs.append(op.outputs[0])
        elif op not in in_scan:
            for tensor in op.outputs:
                state.name_tensor(tensor)
            state.intermediates.extend(t for t in op.outputs if op not in outputs)
            if isinstance(op, ScanOp):
                body.append(_lower_scan(op, order, in_scan, state))
            else:
                body.append(_lower_operation(op, state))
    if not any(body):
        raise ExpressionError("nothing to compute: the outputs are placeholders")
    for op in order:
        if isinstance(op, ComputeOp) and op not in in_scan:
            check_reads(op)
    params: list[Param] = [*state.inputs, *[t for op in outputs for t in op.outputs]]
    return Func(name, params, seq(*body), state.intermediates), state.handles


def _lower_operation(op: Operation, state: Lowering, time: Time | None = None) -> Stmt:
    if isinstance(op, ComputeOp):
        return _lower_compute(op, state, time)
    assert isinstance(op, ExternOp) and op.statement is not None
    reads = [Region(t, [0] * len(t.shape), t.shape) for t in op.inputs]
    writes = [Region(t, [0] * len(t.shape), t.shape) for t in op.outputs]
    return Block(op.outputs[0].name, [], [], reads, writes, _FreshLoops(state).stmt(op.statement), origin=op.origin)


class _FreshLoops(Mutator):
    """Gives the loops of a statement written by hand names that no other loop has."""

    def __init__(self, state: Lowering) -> None:
        self.state = state

    def visit_For(self, s: For) -> Stmt:
        """A loop with a variable of its own."""
        variable = Var(self.state.unique(s.var.name))
        return s.replace(var=variable, body=self.stmt(substitute_stmt(s.body, {s.var: variable})))


def _axis_vars(op: ComputeOp, block: str, state: Lowering) -> tuple[list[Var], dict[Var, Expr]]:
    """The block's axis variables: the te axes' own, or fresh ones where an axis serves several operations."""
    variables: list[Var] = []
    renamed: dict[Var, Expr] = {}
    for position, axis in enumerate((*op.axis, *op.reduce_axis)):
        variable = axis.var
        if variable in state.bound:
            variable = Var(axis.name)
            renamed[axis.var] = variable
        state.bound.add(variable)
        state.handles[(block, axis.var)] = position
        variables.append(variable)
    return variables, renamed


def _lower_compute(op: ComputeOp, state: Lowering, time: Time | None = None) -> Stmt:
    block = op.outputs[0].name
    axes: list[IterVar] = [*op.axis, *op.reduce_axis]
    variables, renamed = _axis_vars(op, block, state)
    kinds = [axis.kind for axis in axes]
    if time:
        kinds[0] = "ordered"
    targets = [state.replaced.get(t, t) for t in op.outputs]
    indices = tuple(variables[: len(op.axis)])
    init, body = _bodies(op, targets, indices)
    if renamed:
        init = None if init is None else substitute_stmt(init, renamed)
        body = substitute_stmt(body, renamed)
    if state.replaced:
        replacer = BufferReplacer(state.replaced)
        init, body = None if init is None else replacer.stmt(init), replacer.stmt(body)
    if any(int_value(axis.extent) == 0 for axis in op.reduce_axis if axis.extent is not None):
        assert init is not None  # the reduction of nothing is the identity
        body, init = init, None
        axes = [*op.axis]
    loops = [Var(state.unique(axis.name)) for axis in axes]
    bindings: list[Expr] = list(loops)
    if time:
        bindings[0] = time[0] + index_expr(time[1])
    extents = [index_expr(axis.extent) for axis in axes if axis.extent is not None]
    block_axes = [Axis(v, e, kind) for v, e, kind in zip(variables, extents, kinds)]
    reads, writes = block_regions(body, init)
    nest: Stmt = Block(block, block_axes, bindings, reads, writes, body, init, origin=op.origin)
    for position in reversed(range(len(axes))):
        if not (time and position == 0):
            nest = For(loops[position], extents[position], nest)
    return nest


def _bodies(op: ComputeOp, targets: Sequence[Buffer], indices: tuple[Var, ...]) -> tuple[Stmt | None, Stmt]:
    """The init (of a reduction) and the update of an operation, as stores."""
    first = op.bodies[0]
    if not isinstance(first, Reduce):
        if len(op.bodies) == 1:
            return None, Store(targets[0], indices, first)
        values = [body for body in op.bodies if isinstance(body, Expr)]
        variables = [Var(f"v{position}", value.dtype) for position, value in enumerate(values)]
        stored = seq(*[Store(target, indices, variable) for target, variable in zip(targets, variables)])
        return None, _let_all(list(zip(variables, values)), stored)
    init = seq(*[Store(t, indices, value) for t, value in zip(targets, first.identity)])
    sources = [
        s if is_true(first.condition) else select(first.condition, s, neutral)
        for s, neutral in zip(first.sources, first.reducer.identity([s.dtype for s in first.sources]))
    ]
    olds = [Load(t, indices) for t in targets]
    combined = list(first.reducer.combine(olds, sources))
    only = combined[0]
    if len(targets) == 1 and type(only) in SIMPLE_COMBINERS and isinstance(only, Binary) and only.a is olds[0]:
        return init, Store(targets[0], indices, combined[0])
    names = [Var(f"source{i}", s.dtype) for i, s in enumerate(sources)]
    combined = list(first.reducer.combine(olds, names))
    results = [Var(f"result{i}", value.dtype) for i, value in enumerate(combined)]
    stores = seq(*[Store(t, indices, r) for t, r in zip(targets, results)])
    return init, _let_all([*zip(names, sources), *zip(results, combined)], stores)


def _let_all(bindings: Sequence[tuple[Var, Expr]], body: Stmt) -> Stmt:
    for variable, value in reversed(list(bindings)):
        body = Let(variable, value, body)
    return body


# ------------------------------------------------------------------------------------------------------------ scan


def _scan_members(order: Sequence[Operation]) -> tuple[dict[Operation, ScanOp], set[Tensor]]:
    """The operations that run inside each scan's time loop: those between its state and its update."""
    members: dict[Operation, ScanOp] = {}
    states: set[Tensor] = set()
    for scan in (op for op in order if isinstance(op, ScanOp)):
        states.update(scan.state)
        depends = set(scan.state)
        for op in order:
            if not isinstance(op, (PlaceholderOp, ScanOp)) and any(t in depends for t in op.inputs):
                depends.update(op.outputs)
        reached = {t.op for t in scan.update}
        for op in reversed(order):
            if op in reached:
                reached.update(t.op for t in op.inputs if t in depends and not isinstance(t.op, PlaceholderOp))
        for op in order:
            if op in reached:
                if not isinstance(op, ComputeOp) or not op.axis or not _same_size(op.axis[0].extent, scan.steps):
                    raise ExpressionError(
                        f"te.scan {scan.name}: {op.name} depends on the state, so it must be a compute whose first "
                        "axis is time"
                    )
                members[op] = scan
                _check_step(scan, op, depends)
    return members, states


def _check_step(scan: ScanOp, op: ComputeOp, depends: set[Tensor]) -> None:
    """A step reads earlier rows of the state, and what the same step computed."""
    time = op.axis[0].var
    rows = int_value(scan.init[0].shape[0]) or 0
    ranges = Ranges().with_range(time, rows, scan.steps - 1)
    for axis in (*op.axis[1:], *op.reduce_axis):
        if axis.extent is not None:
            ranges = ranges.with_loop(axis.var, axis.extent)
    for load in (node for e in op.expressions for node in walk(e, Load) if isinstance(node, Load)):
        if load.buffer in scan.state:
            at = load.indices[0]
            if not prove(less(at, time), ranges) or not prove(less_equal(index_expr(0), at), ranges):
                raise ExpressionError(
                    f"te.scan {scan.name}: {op.name} reads {load!r}, but a step reads only the past of the state, down "
                    f"to {rows} steps back (as many as {scan.init[0].name} gives): {load.buffer.name}[{time.name} - 1]"
                )
        elif load.buffer in depends and load.indices[0] is not time:
            raise ExpressionError(
                f"te.scan {scan.name}: {op.name} reads {load!r}, which is computed inside the step: "
                f"its first index must be {time.name}; to look back, read the state"
            )


def _same_size(a: Expr | None, b: Expr) -> bool:
    return a is not None and structural_equal(a, b)


def _lower_scan(scan: ScanOp, order: Sequence[Operation], in_scan: dict[Operation, ScanOp], state: Lowering) -> Stmt:
    nests: list[Stmt | None] = []
    first_rows = int_value(scan.init[0].shape[0])
    assert first_rows is not None
    for result, init in zip(scan.outputs, scan.init):
        variables = [Var(f"i{d}") for d in range(len(init.shape))]
        loops = [Var(state.unique(f"{result.name}_i{d}")) for d in range(len(init.shape))]
        copy: Any = Store(result, variables, Load(init, variables))
        reads, writes = block_regions(copy, None)
        axes = [Axis(v, e) for v, e in zip(variables, init.shape)]
        copy = Block(state.unique(f"{result.name}_init"), axes, loops, reads, writes, copy, origin=scan.origin)
        for loop, extent in zip(reversed(loops), reversed(init.shape)):
            copy = For(loop, extent, copy)
        nests.append(copy)
    state.replaced.update(zip(scan.state, scan.outputs))
    state.replaced.update(zip(scan.update, scan.outputs))
    time = Var(state.unique("t"))
    body: list[Stmt | None] = []
    for op in order:
        if in_scan.get(op) is scan:
            for tensor in op.outputs:
                state.name_tensor(tensor)
            state.intermediates.extend(t for t in op.outputs if t not in scan.update)
            body.append(_lower_operation(op, state, (time, first_rows)))
    steps = scan.steps - index_expr(first_rows)
    return seq(*nests, For(time, steps, seq(*body)))

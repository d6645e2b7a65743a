"""Counts the steps of an operator from its tensor expression, for what folding may spend (`weft/graph/steps.py`).

sum over k of A[i, k] * B[k, j], for 8 x 4 points and 16 values of k    ->    2 loads x 8 x 4 x 16 = 1,024 steps
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft import te
from weft.core.errors import WeftError
from weft.expr.nodes import Load, int_value
from weft.expr.visit import walk
from weft.graph.ir import Array, Node, TensorType, dtype_name
from weft.graph.opspec import Compute, OpSpec
from weft.graph.steps import count_with
from weft.loop.ir import For, Stmt
from weft.loop.visit import child_stmts
from weft.ops.tensors import tensors_of
from weft.te.lower import sort_operations
from weft.te.tensor import ComputeOp, ExternOp, Operation, ScanOp

TURN = 1 << 18
"""The steps of one turn of a recurrence on the host, beside its arithmetic: Python's own work, some 0.2 ms."""


def count_steps(spec: OpSpec, node: Node, arrays: Sequence[Array | None]) -> int | None:
    """The steps of a node on these arrays; None where it has no tensor expression whose sizes are numbers."""
    outputs = [v.type for v in node.outputs if isinstance(v.type, TensorType) and v.type.is_static]
    types = [None if a is None else TensorType(dtype_name(a.dtype), a.shape) for a in arrays]
    if len(outputs) != len(node.outputs) or any(t is not None and t.core is None for t in types):
        return None
    given = [
        None if t is None or at in spec.shape_inputs else te.placeholder(t.static, t.dtype, name=f"in{at}")
        for at, t in enumerate(types)
    ]
    try:
        made = tensors_of(spec, Compute(node, types, outputs, arrays), given)
    except WeftError:
        return None  # there is no kernel either, and the host will say what is wrong
    if made is None:
        return None
    counts = [_steps(op) for op in sort_operations([tensor.op for tensor in made])]
    return None if None in counts else sum(count or 0 for count in counts)


def _steps(op: Operation) -> int | None:
    if isinstance(op, ComputeOp):
        sizes = [None if axis.extent is None else int_value(axis.extent) for axis in (*op.axis, *op.reduce_axis)]
        loads = sum(isinstance(e, Load) for expression in op.expressions for e in walk(expression))
        return None if None in sizes else max(loads, 1) * math.prod(size or 0 for size in sizes)
    if isinstance(op, ScanOp):
        turns = int_value(op.steps)
        return None if turns is None else turns * TURN
    return _turns(op.statement) if isinstance(op, ExternOp) and op.statement is not None else 0


def _turns(s: Stmt) -> int | None:
    """How many statements run, if all loops run to their ends."""
    inner = [_turns(child) for child in child_stmts(s)]
    times = int_value(s.extent) if isinstance(s, For) else 1
    return None if times is None or None in inner else times * max(sum(count or 0 for count in inner), 1)


count_with(count_steps)

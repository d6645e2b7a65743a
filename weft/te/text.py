"""Tensor expressions as text, as one would write them in Python.

In: tensors. Out: a line for everything that they are made of, for example

    A = te.placeholder((64, 32), "float32")
    k = te.reduce_axis((0, 32))
    B = te.compute((64,), lambda i: te.sum(A[i, k], axis=[k]))

A statement that was written by hand (`te.extern`) stands below its line, a recurrence names its tensors. It is for
reading: names are those of the tensors, whether or not two have the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.expr.nodes import Expr, is_true
from weft.expr.text import format_expr
from weft.loop.printer import format_stmt
from weft.te.lower import sort_operations
from weft.te.tensor import ComputeOp, ExternOp, Operation, Reduce, ScanOp, Tensor


def format_tensors(outputs: Sequence[Tensor]) -> str:
    """The tensors, and those that they are computed from, each after what it reads."""
    operations = sort_operations(list(dict.fromkeys(tensor.op for tensor in outputs)))
    return "\n".join(line for operation in operations for line in _lines(operation))


def _lines(operation: Operation) -> list[str]:
    made = _names(operation.outputs)
    sizes = _sizes(operation.outputs[0].shape)
    if isinstance(operation, ComputeOp):
        axes = [f"{axis.name} = te.reduce_axis((0, {axis.extent!r}))" for axis in operation.reduce_axis]
        indices = ", ".join(axis.name for axis in operation.axis)
        bodies = dict.fromkeys(_body(body) for body in operation.bodies)
        inside = next(iter(bodies)) if len(bodies) == 1 else f"({', '.join(bodies)})"
        return [*axes, f"{made} = te.compute({sizes}, lambda {indices}: {inside})"]
    if isinstance(operation, ExternOp):
        shapes = ", ".join(_sizes(tensor.shape) for tensor in operation.outputs)
        body = format_stmt(operation.statement).splitlines() if operation.statement is not None else []
        return [f"{made} = te.extern([{shapes}], [{_names(operation.inputs)}], …)", *(f"    {line}" for line in body)]
    if isinstance(operation, ScanOp):
        return [
            f"{made} = te.scan([{_names(operation.init)}], [{_names(operation.update)}], [{_names(operation.state)}])"
        ]
    return [f'{made} = te.placeholder({sizes}, "{operation.outputs[0].dtype}")']


def _body(body: Expr | Reduce) -> str:
    if not isinstance(body, Reduce):
        return format_expr(body)
    sources = ", ".join(map(format_expr, body.sources))
    where = "" if is_true(body.condition) else f", where={format_expr(body.condition)}"
    over = ", ".join(axis.name for axis in body.axes)
    return f"te.{body.reducer.name}({sources}, axis=[{over}]{where})"


def _names(tensors: Sequence[Tensor]) -> str:
    return ", ".join(tensor.name for tensor in tensors)


def _sizes(shape: Sequence[Expr]) -> str:
    return f"({', '.join(map(format_expr, shape))}{',' * (len(shape) == 1)})"

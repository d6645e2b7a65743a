"""Schedules and tensor intrinsics of tensor expressions: create_schedule, decl_tensor_intrin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.core.errors import ExpressionError
from weft.expr.nodes import Address, Buffer, Call, const, equal, index_expr, int_value, logical_and
from weft.loop.interpreter import EFFECTS, interpret, register_effect
from weft.loop.ir import Block, Evaluate, For, Func, If, Stmt
from weft.loop.visit import walk_stmts
from weft.schedule.intrinsic import BufferView, Lowered, TensorIntrin, register_intrinsic
from weft.schedule.schedule import Schedule
from weft.te.lower import lower
from weft.te.tensor import ComputeOp, Operation, Tensor


def _operations(what: Any) -> list[Operation]:
    given = list(what) if isinstance(what, (list, tuple)) else [what]
    ops = [x.op if isinstance(x, Tensor) else x for x in given]
    for op in ops:
        if not isinstance(op, Operation):
            raise ExpressionError(f"create_schedule takes operations or tensors, not {op!r}")
    if not ops:
        raise ExpressionError("create_schedule needs at least one operation")
    return list(dict.fromkeys(ops))


def create_schedule(ops: Any, name: str = "main") -> Schedule:
    """A schedule of the program that computes the given operations' outputs, with its naive loops."""
    wanted = _operations(ops)
    try:
        func, handles = lower(wanted, name)
    except RecursionError:
        names = ", ".join(op.name for op in wanted)
        raise ExpressionError(f"an expression that {names} needs nests too deep: compute it in several steps") from None
    return Schedule(func, handles)


def decl_tensor_intrin(op: Operation, rule: Callable[[Any, Any], Any], name: str | None = None) -> TensorIntrin:
    """Declares a hardware instruction: the operation says what it computes, the rule builds the calls.

    The rule gets views of the inputs and outputs and gives one call, or (compute, reset, update) for a reduction:
    the whole computation, its start, and its continuation. Calls without an interpretation of their own get the
    operation's meaning, so that a tensorized program runs in the interpreter.
    """
    if not isinstance(op, ComputeOp) or len(op.outputs) != 1:
        raise ExpressionError("a tensor intrinsic is described by a te.compute with one output")
    if not callable(rule):
        raise ExpressionError(f"the lowering rule of a tensor intrinsic is a function, not {rule!r}")
    func, _ = lower([op], "intrinsic")
    output = op.outputs[0]
    inputs = [b for b in func.buffers if b is not output]
    for buffer in func.buffers:
        if func.allocations or any(int_value(size) is None for size in buffer.shape):
            raise ExpressionError("a tensor intrinsic is one te.compute of placeholders of constant shapes")
    intrin = TensorIntrin(name or "", func, inputs, output, rule)
    views = [BufferView(b, [index_expr(0)] * len(b.shape), b.shape) for b in (*inputs, output)]
    lowered = intrin.lower(views[:-1], views[-1])
    if not intrin.name:
        intrin.name = _first_call(lowered[0])
    _give_meaning(intrin, lowered)
    return register_intrinsic(intrin)


def _calls(s: Stmt | None) -> list[Call]:
    if s is None:
        return []
    return [x.value for x in walk_stmts(s) if isinstance(x, Evaluate) and isinstance(x.value, Call)]


def _first_call(s: Stmt) -> str:
    calls = _calls(s)
    if not calls:
        raise ExpressionError("the lowering rule makes no call: give the intrinsic a name")
    return calls[0].name


def _give_meaning(intrin: TensorIntrin, lowered: Lowered) -> None:
    """Lets the interpreter run calls it does not know.

    Where compute, reset or update is one such call, it means what that part of the description says.
    """
    variants: list[tuple[Stmt | None, Func]] = [(lowered[0], intrin.description)]
    if intrin.block.init is not None:
        variants.append((lowered[1], _only(intrin.description, "init")))
        variants.append((lowered[2], _only(intrin.description, "update")))
    for stmt, meaning in variants:
        calls = _calls(stmt)
        if len(calls) != 1 or calls[0].name in EFFECTS:
            continue
        order = [arg.buffer for arg in calls[0].args if isinstance(arg, Address)]
        if len(order) == len(calls[0].args):
            register_effect(calls[0].name, _meaning(meaning, order))


def _only(func: Func, part: str) -> Func:
    """The description with only its init, or only its update."""

    def go(s: Stmt) -> Stmt:
        if isinstance(s, For):
            return s.replace(body=go(s.body))
        assert isinstance(s, Block)
        if part == "update":
            return s.replace(init=None)
        assert s.init is not None
        first = logical_and(*[equal(a.var, const(0)) for a in s.axes if a.kind == "reduce"])
        return s.replace(init=None, body=If(first, s.init))

    return func.replace(body=go(func.body))


def _meaning(func: Func, order: Sequence[Buffer]) -> Callable[..., None]:
    def run(*pointers: Any) -> None:
        by_buffer = dict(zip(order, pointers))
        arrays = []
        for buffer in func.buffers:
            shape = tuple(int_value(size) or 0 for size in buffer.shape)
            pointer = by_buffer.get(buffer)
            if pointer is None:  # reset gets no inputs, and reads none
                arrays.append(np.zeros(shape, buffer.dtype.numpy))
            else:
                arrays.append(pointer.view(shape, pointer.strides[len(pointer.strides) - len(shape) :]))
        interpret(func, *arrays)

    return run

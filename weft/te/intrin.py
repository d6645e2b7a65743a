"""Schedules and tensor intrinsics of tensor expressions: create_schedule, decl_tensor_intrin."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from weft.core.errors import ExpressionError
from weft.expr.nodes import Address, Buffer
from weft.loop.interpreter import EFFECTS, interpret, register_effect
from weft.loop.ir import Evaluate, Func, Stmt
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
    return list(dict.fromkeys(ops))


def create_schedule(ops: Any, name: str = "main") -> Schedule:
    """A schedule of the program that computes the given operations' outputs, with its naive loops."""
    func, handles = lower(_operations(ops), name)
    return Schedule(func, handles)


def decl_tensor_intrin(op: Operation, rule: Callable[[Any, Any], Any], name: str | None = None) -> TensorIntrin:
    """Declares a hardware instruction: the operation says what it computes, the rule builds the calls.

    The rule gets views of the inputs and outputs and gives one call, or (compute, reset, update) for a reduction:
    the whole computation, its start, and its continuation. Calls without an interpretation of their own get the
    operation's meaning, so that a tensorized program runs in the interpreter.
    """
    if not isinstance(op, ComputeOp):
        raise ExpressionError("a tensor intrinsic is described by a te.compute")
    func, _ = lower([op], "intrinsic")
    inputs, output = [b for b in func.buffers if b is not op.outputs[0]], op.outputs[0]
    intrin = TensorIntrin(name or "", func, inputs, output, rule)
    views = [BufferView(b, [b.shape[0] * 0] * len(b.shape), b.shape) for b in (*inputs, output)]
    lowered = intrin.lower(views[:-1], views[-1])
    if not intrin.name:
        intrin.name = _call_names(lowered[0])[0]
    _give_meaning(intrin, lowered)
    return register_intrinsic(intrin)


def _calls(s: Stmt | None) -> list[Any]:
    return [] if s is None else [x.value for x in walk_stmts(s) if isinstance(x, Evaluate)]


def _call_names(s: Stmt) -> list[str]:
    names = [call.name for call in _calls(s)]
    if not names:
        raise ExpressionError("the lowering rule makes no call: give the intrinsic a name")
    return names


def _give_meaning(intrin: TensorIntrin, lowered: Lowered) -> None:
    """Where compute, reset or update is one call that the interpreter does not know, it means what the description says."""
    block = intrin.block
    variants: list[tuple[Stmt | None, Any]] = [(lowered[0], intrin.description)]
    if block.init is not None:
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
    from weft.expr.nodes import const, equal, logical_and
    from weft.loop.ir import Block, For, If

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
        import numpy as np

        arrays = []
        for buffer in func.buffers:
            shape = tuple(int(s.value) for s in buffer.shape)  # type: ignore[attr-defined]
            pointer = by_buffer.get(buffer)
            if pointer is None:
                arrays.append(np.zeros(shape, buffer.dtype.numpy))
            else:
                arrays.append(pointer.view(shape, pointer.strides[len(pointer.strides) - len(shape) :]))
        interpret(func, *arrays)

    return run

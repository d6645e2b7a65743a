"""Converters of control flow (torch.cond, while_loop, scan, map): If, Loop and Scan, with graphs inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.frontends.emit import Emitter, Operand, Unsupported
from weft.frontends.torch.table import enter, name_of
from weft.graph.ir import TensorType, Value


def _values(c: Emitter, given: Sequence[Operand]) -> list[Value]:
    return [c.value(one, "") for one in given]


def _cond(c: Emitter, predicate: Operand, then: Any, otherwise: Any, operands: Sequence[Any] = ()) -> list[Value]:
    if not isinstance(predicate, Value):
        return c.inline(then if predicate else otherwise, operands)
    graphs = [c.subgraph(name, [], lambda _, one=one: _values(c, c.inline(one, operands)))  # type: ignore[misc]
              for name, one in (("then_branch", then), ("else_branch", otherwise))]  # fmt: skip
    chosen = c.reshape(c.cast(predicate, "bool"), [])
    return c.several(len(graphs[0].outputs), "If", chosen, then_branch=graphs[0], else_branch=graphs[1])


def _while_loop(c: Emitter, test: Any, body: Any, carried: Sequence[Any], more: Sequence[Any] = ()) -> list[Value]:
    states = _values(c, carried)

    def goes_on(values: Sequence[Value]) -> Value:
        return c.reshape(c.cast(_values(c, c.inline(test, [*values, *more]))[0], "bool"), [])

    def turn(inputs: list[Value]) -> list[Value]:
        after = _values(c, c.inline(body, [*inputs[2:], *more]))
        return [goes_on(after), *after]

    types = [TensorType("int64", ()), TensorType("bool", ()), *(one.tensor for one in states)]
    return c.several(len(states), "Loop", None, goes_on(states), *states, body=c.subgraph("body", types, turn))


def _rows(
    c: Emitter, states: Sequence[Value], rows: Sequence[Value], step: Callable[[list[Value]], Any]
) -> list[Value]:
    """What a step makes of states and of each row in turn: the last states, and its other results stacked."""
    types = [*(one.tensor for one in states), *(TensorType(one.tensor.dtype, one.tensor.dims[1:]) for one in rows)]
    body = c.subgraph("body", types, lambda inputs: _values(c, step(inputs)))
    return c.several(len(body.outputs), "Scan", *states, *rows, body=body, num_scan_inputs=len(rows))


def _with_effects(c: Emitter, token: Any, op: Any, *args: Any, **given: Any) -> list[Any]:
    """An operator that is called for what it does: checks of results, which torch makes, and what is printed."""
    if name_of(op) not in ("_linalg_check_errors", "_print"):
        raise Unsupported(f"{name_of(op)}, which has effects")
    return [()]


enter(
    {
        "torch.ops.higher_order.with_effects": _with_effects,
        "torch.ops.higher_order.cond": _cond,
        "torch.ops.higher_order.while_loop": _while_loop,
        "torch.ops.higher_order.scan": lambda c, step, states, rows, more=(): _rows(
            c, states, rows, lambda inputs: c.inline(step, [*inputs, *more])
        ),
        "torch.ops.higher_order.map_impl": lambda c, step, rows, more=(): _rows(
            c, [], rows, lambda inputs: c.inline(step, [*inputs, *more])
        ),
    }
)

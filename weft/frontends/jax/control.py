"""Converters of control flow: while, scan and cond become Loop, Scan and If; calls are written where they stand."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.frontends.emit import Unsupported
from weft.frontends.jax.emit import JaxEmitter, type_of
from weft.frontends.jax.reductions import reduced
from weft.frontends.jax.table import primitive
from weft.graph.ir import Graph, TensorType, Value

CALLS = frozenset(
    "jit pjit closed_call core_call core_closed_call remat remat2 checkpoint custom_jvp_call custom_vjp_call call "
    "custom_vjp_call_jaxpr custom_lin custom_vmap_call custom_jvp_call_jaxpr composite".split()
)
"""Primitives that only call a jaxpr."""

CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
"""The parameters that may hold it."""

CONTROL = frozenset(("while", "scan", "cond"))


@primitive("while")
def _while(
    c: JaxEmitter, *operands: Value, cond_jaxpr: Any, body_jaxpr: Any, cond_nconsts: int, body_nconsts: int, **_: Any
) -> list[Value]:
    tests, given = operands[:cond_nconsts], operands[cond_nconsts : cond_nconsts + body_nconsts]
    states = operands[cond_nconsts + body_nconsts :]

    def wanted(values: Sequence[Value]) -> Value:
        made: Value = c.inline(cond_jaxpr, [*tests, *values])[0]
        return made

    def goes_on(values: Sequence[Value]) -> Value:
        """Whether one of a batch of loops goes on."""
        found = wanted(values)
        return reduced(c, "or", found, range(found.tensor.rank))

    def body(inputs: list[Value]) -> list[Value]:
        before = inputs[2:]
        after = c.inline(body_jaxpr, [*given, *before])
        rank = len(cond_jaxpr.out_avals[0].shape)
        if rank:  # those of a batch that have ended stay as they are
            going = wanted(before)
            after = [
                c.where(c.unsqueeze(going, *range(rank, new.tensor.rank)), new, old, new.tensor.dtype)
                for new, old in zip(after, before)
            ]
        return [goes_on(after), *after]

    return _loop(c, None, goes_on(states), states, body)


def _loop(c: JaxEmitter, count: int | None, first: Value | None, states: Sequence[Value], body: Any) -> list[Value]:
    """A Loop whose body makes the condition, the states, and rows to stack."""
    types = [TensorType("int64", ()), TensorType("bool", ()), *(one.tensor for one in states)]
    graph = c.subgraph("body", types, body)
    limit = None if count is None else c.constant(np.int64(count))
    return c.several(len(graph.outputs) - 1, "Loop", limit, first, *states, body=graph)


@primitive("scan")
def _scan(c: JaxEmitter, *operands: Value, jaxpr: Any, length: int, reverse: bool, **told: Any) -> list[Value]:
    if "ft_in" in told:  # JAX 0.11 and later: a tree of the operands
        num_consts, num_carry, _ = (len(list(part)) for part in told["ft_in"].update(operands).unpack())
    else:
        num_consts, num_carry = told["num_consts"], told["num_carry"]
    constants, states = operands[:num_consts], operands[num_consts : num_consts + num_carry]
    rows = operands[num_consts + num_carry :]
    if not length:
        return [*states, *(c.constant(np.zeros(type_of(a).static, type_of(a).numpy)) for a in c.results[num_carry:])]
    if not rows:

        def turn(inputs: list[Value]) -> list[Value]:
            return [c.constant(np.bool_(True)), *c.inline(jaxpr, [*constants, *inputs[2:]])]

        made = _loop(c, length, None, states, turn)
        for at in range(num_carry, len(made)):
            made[at].type = type_of(c.results[at])
            if reverse:
                made[at] = c.slice(made[at], 0, -1, -(1 << 62), -1)
        return made
    types = [*(one.tensor for one in states), *(TensorType(r.tensor.dtype, r.tensor.dims[1:]) for r in rows)]
    graph = c.subgraph("body", types, lambda inputs: c.inline(jaxpr, [*constants, *inputs]))
    kept = len(graph.outputs) - num_carry
    back = {"scan_input_directions": [1] * len(rows), "scan_output_directions": [1] * kept} if reverse else {}
    return c.several(len(graph.outputs), "Scan", *states, *rows, body=graph, num_scan_inputs=len(rows), **back)


@primitive("cond")
def _cond(c: JaxEmitter, index: Value, *operands: Value, branches: Sequence[Any], **_: Any) -> list[Value]:
    results = len(branches[0].jaxpr.outvars)
    if not results:
        return []

    def choose(low: int, high: int) -> list[Value]:
        """The results of one of the branches from low up to high."""
        if high - low == 1:
            return c.inline(branches[low], operands)
        middle = (low + high) // 2
        above = c.op("GreaterOrEqual", index, c.like(middle, index)) if index.tensor.dtype != "bool" else index
        graphs: list[Graph] = []
        for name, ends in (("then_branch", (middle, high)), ("else_branch", (low, middle))):
            make = functools.partial(choose, *ends)
            graphs.append(c.subgraph(name, [], lambda _, make=make: make()))  # type: ignore[misc]
        return c.several(results, "If", above, then_branch=graphs[0], else_branch=graphs[1])

    return choose(0, len(branches))


@primitive("debug_callback", "debug_print")
def _print(c: JaxEmitter, *_: Value, **__: Any) -> list[Value]:
    """What is printed while a function runs is no part of its result."""
    if c.results:
        raise Unsupported("a callback with results")
    return []


@primitive("custom_linear_solve")
def _linear_solve(c: JaxEmitter, *operands: Value, const_lengths: Any, jaxprs: Any, **_: Any) -> list[Value]:
    counts = list(const_lengths)
    total = sum(counts)
    before = counts[0] + counts[1]
    solve = operands[before : before + counts[2]]
    return c.inline(jaxprs.solve, [*solve, *operands[total:]])

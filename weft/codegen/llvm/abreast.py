"""Elementary functions of stores that follow one another, computed abreast.

    y[0:16]  = a * sigmoid(a)              s = @weft.sigmoid.v32(a, b)
    y[16:32] = b * sigmoid(b)      ->      y[0:16]  = a * s[0:16]
                                           y[16:32] = b * s[16:32]

Such a function is a chain of some twenty instructions, each of which waits for the one before. A processor looks ahead
by instructions: of chains written one after another it has two or three at work, and its units wait. LLVM does every
operation on a vector of four registers four times in a row, so that four chains alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.codegen.llvm import math as vector_math
from weft.codegen.llvm.arithmetic import unfused
from weft.codegen.llvm.context import Context
from weft.codegen.llvm.convert import widen
from weft.expr.nodes import Call, Expr, Load, Select
from weft.expr.visit import children, walk
from weft.loop.ir import Stmt, Store

_REGISTERS_OF_A_CHAIN = 8
"""Of the processor's vector registers, so that chains abreast leave some to what waits for its turn."""


def groups(c: Context, stmts: Sequence[Stmt]) -> Iterator[Sequence[Stmt]]:
    """The statements in order; those that compute the same functions, of what none of them stores, together."""
    at = 0
    while at < len(stmts):
        size = _alike(c, stmts, at)
        yield stmts[at : at + size]
        at += size


def prepare(c: Context, stores: Sequence[Stmt]) -> None:
    """Computes the functions of a group: their calls find the results in `c.abreast`."""
    calls = [_calls(s.value) for s in stores if isinstance(s, Store)]
    for level in zip(*calls):
        lanes = level[0].dtype.lanes
        given = c.joined("float", [_argument(c, e) for e in level], lanes)
        made = vector_math.call(c, level[0].name, given, lanes * len(level))
        for number, e in enumerate(level):
            c.abreast[id(e)] = c.part("float", made, lanes * len(level), number * lanes, lanes)


def _argument(c: Context, e: Call) -> str:
    """What an elementary function is applied to, in float32.

    A softmax subtracts the greatest value, which is rounded: of one that is not, large numbers leave a difference.
    """
    value = unfused(c, e.args[0]) if e.name == "exp" else c.value(e.args[0])
    return widen(c, value, e.dtype) if e.dtype.bits == 16 else value


def _alike(c: Context, stmts: Sequence[Stmt], at: int) -> int:
    """How many statements from this one on are a group: 1, 2, 4…"""
    first = stmts[at]
    if at + 1 == len(stmts) or not isinstance(first, Store) or first.predicate is not None or c.mask is not None:
        return 1
    calls = _calls(first.value)
    machine = c.module.machine
    chains, lanes = machine.vector_registers // _REGISTERS_OF_A_CHAIN, first.value.dtype.lanes
    most = chains * machine.vector_bytes // 4 // lanes
    if not calls or lanes == 1 or most < 2:
        return 1
    names, stored, end = [e.name for e in calls], {first.buffer}, at + 1
    while end < min(at + most, len(stmts)):
        one = stmts[end]
        if not isinstance(one, Store) or one.predicate is not None or one.value.dtype.lanes != lanes:
            break
        calls = _calls(one.value)
        if [e.name for e in calls] != names or any(
            isinstance(e, Load) and e.buffer in stored for call in calls for e in walk(call, Load)
        ):
            break
        stored.add(one.buffer)
        end += 1
    return 1 << ((end - at).bit_length() - 1)


def _calls(e: Expr) -> list[Call]:
    """The functions in an expression whose arguments can be computed whatever the rest is, inner ones first."""
    if not e.holds & Call.bit or isinstance(e, (Load, Select)):
        return []
    found = [call for child in children(e) for call in _calls(child)]
    if isinstance(e, Call) and e.name in vector_math.CHAINS and e.dtype.lanes > 1 and e.dtype.bits <= 32:
        found.append(e)
    return found

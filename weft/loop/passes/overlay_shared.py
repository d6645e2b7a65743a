"""Shared memory used twice: what a kernel needs only at its end lies where earlier tiles were.

    allocate x: float16[4096] shared:             allocate x: float16[4096] shared:
    allocate out: float32[2048] shared:           allocate out: float32[2048] shared:
        for k in range(8):                            for k in range(8):
            fill x; use x                   ->            fill x; use x
        out[…] = …                                    barrier()
        D[…] = out[…]                                 out[…] = …
                                                      D[…] = out[…]
                                              @{"shared_overlay": [["x"], ["out"]]}

Buffers that are used before and after lie elsewhere. The buffers stay apart in the program; the annotation tells the
code generator that the two groups may begin at the same place, and the barrier makes sure that no thread still uses
the first when another begins with the second. Runs after barriers were inserted.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core import model
from weft.expr.nodes import Address, Buffer, Load, int_value
from weft.loop.ir import Allocate, For, Func, Let, Seq, Stmt, Store, seq
from weft.loop.passes.insert_barriers import barrier
from weft.loop.passes.support import is_barrier
from weft.loop.visit import walk_exprs, walk_stmts


def overlay_shared(func: Func) -> Func:
    """The program with groups of shared buffers that may lie over another, in each kernel where there is one."""
    buffers = _allocated(func.body)
    if len({b.name for b in buffers}) != len(buffers):
        return func
    kernels = [s for s in walk_stmts(func.body) if isinstance(s, For) and s.thread == "blockIdx.x"]
    for own in [_allocated(kernel) for kernel in kernels]:
        func = _overlay(func, own, {b: _bytes(b) or 0 for b in own}) if all(map(_bytes, own)) else func
    return func


def _allocated(s: Stmt) -> list[Buffer]:
    return [x.buffer for x in walk_stmts(s) if isinstance(x, Allocate) and x.buffer.scope == "shared"]


def _overlay(func: Func, buffers: list[Buffer], sizes: dict[Buffer, int]) -> Func:
    """The program with one of the buffers of a kernel over others."""
    for last in sorted(buffers, key=lambda b: -sizes[b]):
        first = [b for b in buffers if b is not last and _separated(func.body, {b}, last) is not None]
        if min(sizes[last], sum(sizes[b] for b in first)) < model.LEAST_OVERLAID:
            continue
        body = _separated(func.body, set(first), last)
        if body is not None:
            groups = [*func.annotations.get("shared_overlay", ()), [b.name for b in first], [last.name]]
            return func.replace(body=body, annotations={**func.annotations, "shared_overlay": groups})
    return func


def _bytes(buffer: Buffer) -> int | None:
    total = buffer.dtype.bytes
    for size in buffer.shape:
        extent = int_value(size)
        if extent is None:
            return None
        total *= extent
    return total


def _uses(s: Stmt, buffers: set[Buffer]) -> bool:
    if any(isinstance(x, Store) and x.buffer in buffers for x in walk_stmts(s)):
        return True
    return any(isinstance(e, (Load, Address)) and e.buffer in buffers for e in walk_exprs(s, Load, Address))


def _separated(s: Stmt, first: set[Buffer], last: Buffer) -> Stmt | None:
    """The statement with a barrier where the use of one group ends and that of the other begins, or None."""
    if isinstance(s, Seq):
        return _in_sequence(s, first, last)
    if isinstance(s, For) and (s.kind == "thread" or int_value(s.extent) == 1):
        return _inside(s.body, first, last, lambda body: s.replace(body=body))
    if isinstance(s, Allocate):
        return _inside(s.body, first, last, lambda body: Allocate(s.buffer, body))
    if isinstance(s, Let):
        return _inside(s.body, first, last, lambda body: Let(s.var, s.value, body))
    return None


def _inside(body: Stmt, first: set[Buffer], last: Buffer, rebuild: Callable[[Stmt], Stmt]) -> Stmt | None:
    made = _separated(body, first, last)
    return None if made is None else rebuild(made)


def _in_sequence(s: Seq, first: set[Buffer], last: Buffer) -> Stmt | None:
    early = [place for place, part in enumerate(s.stmts) if _uses(part, first)]
    late = [place for place, part in enumerate(s.stmts) if _uses(part, {last})]
    if not early or not late or late[0] < early[-1]:
        return None
    if late[0] > early[-1]:
        between = s.stmts[early[-1] + 1 : late[0]]
        wait = None if any(is_barrier(part) for part in between) else barrier()
        return seq(*s.stmts[: late[0]], wait, *s.stmts[late[0] :])
    inner = _separated(s.stmts[late[0]], first, last)  # one statement uses both
    if inner is None:
        return None
    return seq(*s.stmts[: late[0]], inner, *s.stmts[late[0] + 1 :])

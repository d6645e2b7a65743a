"""Copies from global into shared memory that run beside the threads (cp.async).

    t[i] = A[j]                            copy_async(address(t[i]), address(A[j]), 4, true)
    t[ramp(i, 1, 4)] = A[ramp(j, 1, 4)]    ->  copy_async(address(t[i]), address(A[j]), 16, true)
    t[i] = A[j] if c else 0.0              copy_async(address(t[i]), address(A[j]), 4, c)        zero where c is false

Only for the buffers in `func.annotations["async_copy"]`, whose pipeline (see `double_buffer`) waits for the copies. A
store that has no such form stays a store: the barrier after the wait orders it as well.
"""

from __future__ import annotations

from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import INT32
from weft.core.errors import InterpreterError
from weft.expr.nodes import (
    TRUE,
    Address,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Ramp,
    Select,
    cast,
    index_expr,
    int_value,
)
from weft.loop.interpreter import Pointer, register_effect
from weft.loop.ir import Evaluate, Func, Stmt, Store
from weft.loop.passes.double_buffer import COMMIT, WAIT
from weft.loop.visit import Mutator

COPY = "copy_async"
SIZES = (4, 8, 16)
"""The bytes that one copy may move."""


def copy_asynchronously(func: Func) -> Func:
    """The program with the fetches of its pipelines as asynchronous copies."""
    names = set(func.annotations.get("async_copy") or ())
    return _Copies(names).func(func) if names else func


class _Copies(Mutator):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Store(self, s: Store) -> Stmt:
        """A store that is a copy."""
        if s.buffer.name not in self.names or s.buffer.scope != "shared" or s.predicate is not None:
            return s
        condition, source = _source(s.value)
        if source is None or source.buffer.scope != "global" or source.buffer.dtype is not s.buffer.dtype:
            return s
        to, start = _base(s.indices), _base(source.indices)
        if to is None or start is None:
            return s
        size = s.value.dtype.lanes * s.buffer.dtype.bytes
        if size not in SIZES or condition.dtype.lanes != 1:
            return s
        if condition is not TRUE:
            start = Select(condition, start, index_expr(0))  # an address outside the buffer is never made
        places = Address(s.buffer, (to,), "w"), Address(source.buffer, (start,), "r")
        return Evaluate(Call(COPY, (*places, index_expr(size), condition), INT32))


def _source(value: Expr) -> tuple[Expr, Load | None]:
    """What is loaded, and where: elsewhere it is zero."""
    if isinstance(value, Load):
        return TRUE, value
    if isinstance(value, Select) and isinstance(value.then, Load):
        otherwise = value.otherwise.value if isinstance(value.otherwise, Broadcast) else value.otherwise
        condition = value.condition.value if isinstance(value.condition, Broadcast) else value.condition
        if isinstance(otherwise, Const) and otherwise.value == 0:
            return condition, value.then
    return TRUE, None


def _base(indices: tuple[Expr, ...]) -> Expr | None:
    """The first element of an access to neighbours."""
    if len(indices) != 1:
        return None
    at = indices[0]
    if at.dtype.lanes == 1:
        return at
    return at.base if isinstance(at, Ramp) and int_value(at.stride) == 1 else None


# ---------------------------------------------------------------------------------------------------------- emitting


def _copy(c: Context, call: Call) -> str:
    to, source, _, there = call.args
    size = c.constant(call.args[2])
    start = chosen = source.indices[0]  # type: ignore[attr-defined]
    while isinstance(chosen, Cast):
        chosen = chosen.value
    if isinstance(chosen, Select):  # nothing is read by a copy of no bytes, so that any address will do
        source = Address(source.buffer, (cast(chosen.then, start.dtype),), "r")  # type: ignore[attr-defined]
    name = f"weft_copy_async_{size}"
    c.helper(
        name,
        f"""DEVICE void {name}(void *to, const void *from, bool there) {{
  const uint32_t place = (uint32_t)__cvta_generic_to_shared(to);
  const int32_t given = there ? {size} : 0;
  asm volatile("cp.async.{"cg" if size == 16 else "ca"}.shared.global [%0], [%1], {size}, %2;"
               : : "r"(place), "l"(from), "r"(given) : "memory");
}}""",
    )
    return f"{name}({c.pointer(to)}, {c.pointer(source)}, {c.value(there)})"


def instruction(text: str) -> Emitter:
    """The emitter of an instruction that is nothing but its text, with the constants of the call in its places."""
    return lambda c, call: f'asm volatile("{text.format(*map(c.constant, call.args))};" : : : "memory")'


EMITTERS = {COPY: _copy, COMMIT: instruction("cp.async.commit_group"), WAIT: instruction("cp.async.wait_group {}")}

# ----------------------------------------------------------------------------------------- meaning, for the interpreter


def _copied(to: Pointer, source: Pointer, size: int, there: bool) -> int:
    """What a copy does, for the interpreter."""
    bytes_ = to.buffer.dtype.bytes
    for place in (to, source) if there else (to,):
        if place.offset * bytes_ % int(size):
            raise InterpreterError(
                f"misaligned: a copy of {size} bytes begins at element {place.offset} of {place.buffer.name}"
            )
    count = int(size) // bytes_
    to.view((count,), (1,))[:] = source.view((count,), (1,)) if there else 0
    return 0


register_effect(COPY, _copied)
register_effect(COMMIT, lambda: 0)
register_effect(WAIT, lambda pending: 0)

"""Allocations whose lifetimes do not overlap share memory, and no allocation happens inside a serial loop.

    for i in range(8):                      allocate a: float32[64]
        allocate a: float32[64]             for i in range(8):
            …a…                        ->       …a…
        allocate b: float32[32]                 …a in place of b…
            …b…

A *region* is the function, or the body of a parallel or thread loop: allocations never leave theirs. Its statements
are numbered in program order; a buffer lives from its first use to its last, and where a use is in a loop inside the
allocation, through all of that loop. Two buffers of one scope and data type whose lifetimes are apart share one
slot, as large as the larger (sizes that are not constant must be equal). Shared memory is left alone (reuse there
would need barriers), and so are small local buffers, which a code generator keeps in registers.
"""

from __future__ import annotations

from typing import Any

from weft.core import model
from weft.expr.nodes import Address, Buffer, Expr, Load, Var, int_value, product
from weft.expr.structural import structural_key
from weft.expr.visit import bits, children, free_vars
from weft.loop.ir import Allocate, For, Func, Stmt, Store
from weft.loop.passes.support import rename_repeated
from weft.loop.visit import BufferReplacer, Mutator, child_exprs, child_stmts, walk_stmts

_NONE: frozenset[Buffer] = frozenset()
_ACCESSES = bits((Load, Address))


def reuse_storage(func: Func) -> Func:
    """The flat program with fewer, shared allocations, outside of serial loops."""
    sizes = set(func.size_vars) | {param for param in func.params if isinstance(param, Var)}
    allocations = [s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)]
    if not func.annotations.get("flat") or not any(_movable(buffer, sizes) for buffer in allocations):
        return func
    func = rename_repeated(func)
    return func.replace(body=_Regions(sizes).region(func.body))


class _Regions(Mutator):
    """Rewrites each region from the inside out."""

    def __init__(self, sizes: set[Var]) -> None:
        self.sizes = sizes
        self.read: dict[Expr, frozenset[Buffer]] = {}

    def visit_For(self, s: For) -> Stmt:
        if s.kind not in ("parallel", "thread"):
            return self.generic_stmt(s)
        body = self.region(s.body)
        return s if body is s.body else s.replace(body=body)

    def region(self, body: Stmt) -> Stmt:
        """The body of a region with its allocations in front."""
        body = self.stmt(body)
        lives = _Lifetimes(self.sizes, self.read)
        lives.visit(body)
        if not lives.buffers:
            return body
        slots = _assign(lives)
        mapping = {buffer: slot.buffer for slot in slots for buffer in slot.members}
        result = _Remover(mapping).stmt(body)
        for slot in reversed(slots):
            result = Allocate(slot.buffer, result)
        return result


class _Lifetimes:
    """First and last position of the uses of each buffer that is allocated in a region and may move."""

    def __init__(self, sizes: set[Var], read: dict[Expr, frozenset[Buffer]]) -> None:
        self.sizes = sizes
        self.position = 0
        self.buffers: dict[Buffer, list[int]] = {}
        self.read = read

    def visit(self, s: Stmt, movable: bool = True) -> set[Buffer]:
        """The buffers used in a statement, and their lifetimes widened by it; `movable`: not inside another region."""
        self.position += 1
        start = self.position
        used = {buffer for e in child_exprs(s) for buffer in self._read(e)}
        if isinstance(s, Store):
            used.add(s.buffer)
        self._extend(used, start)
        if isinstance(s, Allocate) and movable and _movable(s.buffer, self.sizes):
            self.buffers[s.buffer] = []
        inside = movable and not (isinstance(s, For) and s.kind in ("parallel", "thread"))
        for child in child_stmts(s):
            used |= self.visit(child, inside)
        if isinstance(s, Allocate):
            used.discard(s.buffer)
        if isinstance(s, For):  # what the loop uses and is allocated outside of it lives through all of it
            self.position += 1
            self._extend(used, start)
        return used

    def _read(self, e: Expr) -> frozenset[Buffer]:
        """The buffers of an expression, remembered for each part of it."""
        if not e.holds & _ACCESSES:
            return _NONE
        found = self.read.get(e)
        if found is None:
            found = frozenset((e.buffer,)) if isinstance(e, (Load, Address)) else _NONE
            for part in children(e):
                found |= self._read(part)
            self.read[e] = found
        return found

    def _extend(self, used: set[Buffer], start: int) -> None:
        for buffer in used:
            life = self.buffers.get(buffer)
            if life is not None:
                life[:] = [min([start, *life]), max([self.position, *life])]


def _movable(buffer: Buffer, sizes: set[Var]) -> bool:
    """Whether an allocation may move and share: not shared memory, not registers, its size known everywhere."""
    if buffer.scope == "shared" or buffer.strides is not None or any(v not in sizes for v in free_vars(*buffer.shape)):
        return False
    size = _bytes(buffer)
    return buffer.scope == "global" or size is None or size > model.REGISTER_BYTES


def _bytes(buffer: Buffer) -> int | None:
    count = int_value(product(buffer.shape))
    return None if count is None else count * buffer.dtype.bytes


class _Slot:
    """Memory that several buffers use one after the other."""

    __slots__ = ("buffer", "members", "end")

    def __init__(self, buffer: Buffer, end: int) -> None:
        self.buffer = buffer
        self.members = [buffer]
        self.end = end


def _assign(lives: _Lifetimes) -> list[_Slot]:
    """Slots for the buffers in the order in which they start to live; the best-fitting free slot is taken."""
    slots: list[_Slot] = []
    used = [(life, buffer) for buffer, life in lives.buffers.items() if life]
    for (start, end), buffer in sorted(used, key=lambda item: item[0][0]):
        free = [slot for slot in slots if slot.end < start and _compatible(slot.buffer, buffer)]
        if not free:
            slots.append(_Slot(buffer, end))
            continue
        slot = min(free, key=lambda candidate: _misfit(candidate.buffer, buffer))
        slot.members.append(buffer)
        slot.end = end
        slot.buffer = _joined(slot.buffer, buffer)
    return slots


def _compatible(a: Buffer, b: Buffer) -> bool:
    if a.scope != b.scope or a.dtype is not b.dtype:
        return False
    if _bytes(a) is not None and _bytes(b) is not None:
        return True
    return bool(_size_key(a) == _size_key(b))


def _size_key(buffer: Buffer) -> Any:
    return tuple(structural_key(extent) for extent in buffer.shape)


def _misfit(a: Buffer, b: Buffer) -> int:
    return abs((_bytes(a) or 0) - (_bytes(b) or 0))


def _joined(a: Buffer, b: Buffer) -> Buffer:
    """A buffer large enough for both, under the first one's name."""
    alignment = max(a.alignment, b.alignment)
    larger = b if (_bytes(b) or 0) > (_bytes(a) or 0) else a
    return a.replace(shape=larger.shape, strides=None, alignment=alignment)


class _Remover(BufferReplacer):
    """Takes out the allocations that moved and names their slots in every access."""

    def visit_Allocate(self, s: Allocate) -> Stmt:
        if s.buffer in self.mapping:
            return self.stmt(s.body)
        return self.generic_stmt(s)

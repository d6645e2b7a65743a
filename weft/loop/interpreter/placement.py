"""Where the intermediates of a scheduled program live, and where its threads wait for one another.

A scheduled program lists its intermediates in `Func.allocations`; lowering will place each at the lowest loop that
covers its uses. Here a "shared" buffer gets one instance per block of threads and a "local" one per thread: its memory
is made at the innermost of those loops that is around all its uses. Any other scope is made once. `around` are all the
loops around all uses: iterations of these that run at once will not share the memory when lowered, so they may
write the same element, but must not read what another of them wrote. A shared buffer that lives inside a vthread loop
has an instance for each virtual thread, as it will when these are lowered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.expr.nodes import Address, Buffer, Call, Load
from weft.expr.visit import walk
from weft.loop.interpreter.emitter import is_local, is_shared
from weft.loop.ir import Allocate, Block, Evaluate, For, Func, Seq, Stmt, Store
from weft.loop.passes.support import GRID_BARRIER, is_barrier, is_call
from weft.loop.visit import child_exprs, child_stmts, walk_stmts

BLOCKING: set[str] = set()
"""Names of calls that let a thread wait until another one did something."""
COLLECTIVE: set[str] = set()
"""Names of calls that threads along threadIdx.x do together."""


class Allocation(NamedTuple):
    """One intermediate: the loops around all its uses, and whose instance it is: of each thread, of each vthread."""

    buffer: Buffer
    around: frozenset[For] = frozenset()
    keyed: bool = False
    virtual: tuple[For, ...] = ()


def _uses(func: Func) -> dict[Buffer, list[tuple[For, ...]]]:
    """For each intermediate, the loops around each of its uses."""
    wanted = set(func.allocations)
    found: dict[Buffer, list[tuple[For, ...]]] = {buffer: [] for buffer in func.allocations}
    stack: list[tuple[Stmt, tuple[For, ...]]] = [(func.body, ())]
    while stack and wanted:
        stmt, loops = stack.pop()
        touched = {
            node.buffer for e in child_exprs(stmt) for node in walk(e) if isinstance(node, (Load, Address))
        }  # fmt: skip
        if isinstance(stmt, Store):
            touched.add(stmt.buffer)
        for buffer in touched & wanted:
            found[buffer].append(loops)
        inner = (*loops, stmt) if isinstance(stmt, For) else loops
        stack.extend((child, inner) for child in child_stmts(stmt))
    return found


def _common(chains: Sequence[tuple[For, ...]]) -> tuple[For, ...]:
    if not chains:
        return ()
    common = chains[0]
    for chain in chains[1:]:
        length = 0
        while length < min(len(common), len(chain)) and common[length] is chain[length]:
            length += 1
        common = common[:length]
    return common


def launches(loops: Sequence[For], prefixes: tuple[str, ...]) -> list[For]:
    """Of nested loops, those that launch a thread dimension: the outermost of each tag, and every vthread loop."""
    seen: set[str] = set()
    found = []
    for loop in loops:
        tag = loop.thread
        if tag is None or not tag.startswith(prefixes):
            continue
        if tag == "vthread" or tag not in seen:
            found.append(loop)
        seen.add(tag)
    return found


def place_intermediates(func: Func) -> dict[For | None, list[Allocation]]:
    """For each loop (None: the whole function) the intermediates whose memory is made in each of its iterations."""
    placed: dict[For | None, list[Allocation]] = {}
    for buffer, chains in _uses(func).items():
        common = _common(chains)
        home: For | None = None
        keyed = False
        virtual: tuple[For, ...] = ()
        if is_shared(buffer):
            virtual = tuple(loop for loop in common if loop.thread == "vthread")
            owners = launches(common, ("blockIdx",))
            home = owners[-1] if owners else None
        elif is_local(buffer):
            owners = launches(common, ("blockIdx", "clusterRank", "threadIdx", "vthread"))
            home = owners[-1] if owners else None
            inside = set(common)
            keyed = any(
                loop not in inside for chain in chains for loop in launches(chain, ("clusterRank", "threadIdx"))
            )
        placed.setdefault(home, []).append(Allocation(buffer, frozenset(common), keyed, virtual))
    return placed


def shared_inside(s: Stmt, virtual: tuple[For, ...] = ()) -> list[Allocation]:
    """The shared buffers allocated in a lowered loop over threads, which the block of threads has in common."""
    found = [Allocation(s.buffer, virtual=virtual)] if isinstance(s, Allocate) and is_shared(s.buffer) else []
    if isinstance(s, For) and s.thread == "vthread":
        virtual = (*virtual, s)
    for child in child_stmts(s):
        found += shared_inside(child, virtual)
    return found


def written_buffers(func: Func) -> set[Buffer]:
    """The buffers that somebody may write."""
    found = set()
    for stmt in walk_stmts(func.body):
        if isinstance(stmt, Store):
            found.add(stmt.buffer)
        for e in child_exprs(stmt):
            for node in walk(e):
                if isinstance(node, Address) and "w" in node.mode:
                    found.add(node.buffer)
    return found


def is_blocking(stmt: Stmt) -> bool:
    """Whether this is a call that may let a thread wait."""
    return isinstance(stmt, Evaluate) and isinstance(stmt.value, Call) and stmt.value.name in BLOCKING


class Waits:
    """Which statements make a thread wait: barriers, and in a scheduled program sequences of blocks."""

    def __init__(self, func: Func) -> None:
        self.scheduled = any(isinstance(stmt, Block) for stmt in walk_stmts(func.body))
        self._blocks: dict[int, bool] = {}
        self._waits: dict[int, bool] = {}

    def has_blocks(self, stmt: Stmt) -> bool:
        """Whether there is a block in a statement."""
        known = self._blocks.get(id(stmt))
        if known is None:
            known = isinstance(stmt, Block) or any(self.has_blocks(child) for child in child_stmts(stmt))
            self._blocks[id(stmt)] = known
        return known

    def between(self, stmt: Seq) -> bool:
        """Whether threads wait for one another between the statements of a sequence."""
        return len(stmt.stmts) > 1 and self.has_blocks(stmt)

    def implicit(self, stmt: Stmt) -> bool:
        """Whether threads wait between statements somewhere in here."""
        return self.scheduled and any(isinstance(child, Seq) and self.between(child) for child in walk_stmts(stmt))

    def inside(self, stmt: Stmt) -> bool:
        """Whether a thread that runs this may wait in it."""
        known = self._waits.get(id(stmt))
        if known is None:
            known = (
                is_barrier(stmt)
                or is_call(stmt, GRID_BARRIER)
                or is_blocking(stmt)
                or (isinstance(stmt, Seq) and self.between(stmt))
            )
            known = known or any(self.inside(child) for child in child_stmts(stmt))
            self._waits[id(stmt)] = known
        return known

"""The rules of loop IR: in goes a Func; out comes nothing, or a VerifyError that names the place and the rule broken.

Of a program as a whole: every variable is bound once and used only inside what binds it; block names are unique, and
loop names too while there are blocks (schedule steps name them); every buffer in use is a parameter, an allocation or
Allocate'd around its use. Of a block: it has one binding per axis; bindings and predicate speak of what is outside;
body, init and regions speak of the axes, sizes and parameters only; what the body stores to is declared in `writes`,
what it loads from in `reads` or `writes`. Of expressions: both sides of one dtype, conditions bool, indices int64, as
many indices as dimensions (one, once the program is flat), stored values of the buffer's dtype with the index's lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.core.dtypes import BOOL, INDEX
from weft.core.errors import VerifyError
from weft.expr.nodes import Address, Buffer, Call, Expr, Load, Var, int_value
from weft.expr.visit import children
from weft.loop.expr_rules import RULES
from weft.loop.ir import (
    AXIS_KINDS,
    CLUSTER_RANK,
    LOOP_KINDS,
    THREAD_TAGS,
    Allocate,
    Block,
    Evaluate,
    For,
    Func,
    If,
    Let,
    Region,
    Seq,
    Stmt,
    Store,
)
from weft.loop.printer import flatten

_LOOP, _AXIS, _LET, _GLOBAL = "loop variable", "block axis", "let", "size or parameter"


def verify(func: Func) -> None:
    """Raises VerifyError if the program breaks a rule of the IR."""
    _Verifier(func).run()


class _BlockUse:
    """What the body around the current place may touch: the buffers its block declares, and those allocated inside."""

    __slots__ = ("name", "reads", "writes")

    def __init__(self, block: Block) -> None:
        self.name = block.name
        self.writes = {region.buffer for region in block.writes}
        self.reads = {region.buffer for region in block.reads} | self.writes


class _Verifier:
    """One walk over a program. `visible` holds what a variable may be used as here, `bound` all that ever was bound."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.flat = bool(func.annotations.get("flat"))
        self.visible: dict[Var, str] = {}
        self.hidden: dict[Var, str] = {}  # what is visible outside the block around, for a better message
        self.globals: dict[Var, str] = {}
        self.bound: set[Var] = set()
        self.buffers: set[Buffer] = set()
        self.loop_names: set[str] = set()
        self.block_names: set[str] = set()
        self.use: _BlockUse | None = None
        self.path: list[Stmt] = []
        self.same_name: VerifyError | None = None  # two loops of one name, wrong only if there are blocks

    # ------------------------------------------------------------------------------------------------ messages

    def fail(self, problem: str) -> VerifyError:
        """An error that says where in the program the walk is."""
        place = " > ".join([f"func {self.func.name}", *[_describe(stmt) for stmt in self.path]])
        return VerifyError(f"{place}: {problem}")

    # ------------------------------------------------------------------------------------------------ declarations

    def run(self) -> None:
        """The whole program."""
        func = self.func
        for param in func.params:
            if isinstance(param, Buffer):
                self.declare(param, "parameter")
            else:
                self.bind(param, _GLOBAL)
        for size in func.size_vars:
            if not size.dtype.is_integer:
                raise self.fail(f"the size {size.name} is {size.dtype}; a size is an integer")
            self.bind(size, _GLOBAL)
        self.globals = dict(self.visible)
        for buffer in func.allocations:
            self.declare(buffer, "allocation")
        for buffer in (*func.buffers, *func.allocations):
            self.declaration(buffer)
        self.suite(func.body)
        if self.same_name is not None and self.block_names:
            raise self.same_name

    def bind(self, var: Var, kind: str) -> None:
        """A variable comes into being; nothing else may bind it."""
        if var in self.bound:
            raise self.fail(f"the variable {var.name} is bound twice; every binding needs a variable of its own")
        self.bound.add(var)
        self.visible[var] = kind

    def declare(self, buffer: Buffer, kind: str) -> None:
        if buffer in self.buffers:
            raise self.fail(f"the buffer {buffer.name} is declared twice; its second place is as {kind}")
        self.buffers.add(buffer)

    def declaration(self, buffer: Buffer) -> None:
        """The sizes and strides of a buffer."""
        for what, values in (("size", buffer.shape), ("stride", buffer.strides or ())):
            for value in values:
                self.typed(value, f"a {what} of buffer {buffer.name}")
                if what == "size" and (int_value(value) or 0) < 0:
                    raise self.fail(f"buffer {buffer.name} has the negative size {value!r}")
        if buffer.strides is not None and len(buffer.strides) != len(buffer.shape):
            raise self.fail(f"buffer {buffer.name} has {len(buffer.strides)} strides, but rank {len(buffer.shape)}")
        if buffer.alignment < 1 or buffer.alignment & (buffer.alignment - 1):
            raise self.fail(f"buffer {buffer.name} has alignment {buffer.alignment}, which is not a power of two")
        if not buffer.scope:
            raise self.fail(f"buffer {buffer.name} has no scope")

    # ------------------------------------------------------------------------------------------------ expressions

    def typed(self, e: Expr, what: str) -> None:
        """An expression that must be a scalar int64."""
        self.expr(e)
        if e.dtype is not INDEX:
            raise self.fail(f"{what} is {e.dtype}, not int64: {e!r}")

    def condition(self, e: Expr, what: str) -> None:
        """An expression that must be a scalar bool."""
        self.expr(e)
        if e.dtype is not BOOL:
            raise self.fail(f"{what} is {e.dtype}, not a scalar bool: {e!r}")

    def expr(self, e: Expr) -> None:
        """Every node of an expression, without recursion."""
        stack = [e]
        visible = self.visible
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind is Var:
                if node not in visible:
                    raise self.unbound(node)
                continue
            if kind is Load or kind is Address:
                self.access(node)
            else:
                rule = RULES.get(kind)
                problem = rule(node) if rule is not None else f"{kind.__name__} is not an expression of Weft"
                if problem is not None:
                    raise self.fail(f"{problem}: {node!r}")
            stack.extend(children(node))

    def unbound(self, var: Any) -> VerifyError:
        """The error for a variable that is not visible here."""
        kind = self.hidden.get(var)
        if kind is not None:
            return self.fail(
                f"the body of block {self.use.name if self.use else '?'} uses the {kind} {var.name} from outside; "
                "it may use only its own axes, sizes and parameters: bind an axis to it"
            )
        if var in self.bound:
            return self.fail(f"the variable {var.name} is used outside the scope of what binds it")
        return self.fail(f"the variable {var.name} is bound nowhere: no loop, axis, let, size or parameter is it")

    def access(self, e: Any) -> None:
        """The buffer and indices of a Load or Address."""
        buffer: Buffer = e.buffer
        lanes = self.indexed(buffer, e.indices, e)
        use = self.use
        if type(e) is Load:
            expected = buffer.dtype if lanes == 1 else buffer.dtype.with_lanes(lanes)
            if e.dtype is not expected:
                raise self.fail(f"the load is {e.dtype}, but its buffer and indices give {expected}: {e!r}")
            if use is not None and buffer not in use.reads:
                raise self.fail(f"block {use.name} loads {buffer.name}, which is not in its reads or writes: {e!r}")
            return
        if e.mode not in ("r", "w", "rw", ""):
            raise self.fail(f'the mode {e.mode!r} of an address is none of "r", "w", "rw", "": {e!r}')
        if lanes != 1:
            raise self.fail(f"an address takes scalar indices: {e!r}")
        if use is not None and "r" in e.mode and buffer not in use.reads:
            raise self.fail(f"block {use.name} reads {buffer.name}, which is not in its reads or writes: {e!r}")
        if use is not None and "w" in e.mode and buffer not in use.writes:
            raise self.fail(f"block {use.name} writes {buffer.name}, which is not in its writes: {e!r}")

    def indexed(self, buffer: Buffer, indices: Sequence[Expr], access: Expr | Stmt) -> int:
        """Checks that a buffer is there and its indices fit; gives the lanes of the access."""
        if buffer not in self.buffers:
            raise self.fail(
                f"the buffer {buffer.name} is no parameter or allocation, and not allocated around: {access!r}"
            )
        rank = 1 if self.flat else len(buffer.shape)
        if len(indices) != rank:
            why = "a flat program takes one index" if self.flat else f"the buffer has {rank} dimensions"
            raise self.fail(f"{len(indices)} indices, but {why}: {access!r}")
        lanes = 1
        for index in indices:
            if index.dtype.scalar is not INDEX:
                raise self.fail(f"the index {index!r} is {index.dtype}, not int64: {access!r}")
            if index.dtype.lanes != 1:
                if lanes not in (1, index.dtype.lanes):
                    raise self.fail(f"indices of {lanes} and {index.dtype.lanes} lanes: {access!r}")
                lanes = index.dtype.lanes
        return lanes

    # ------------------------------------------------------------------------------------------------ statements

    def suite(self, stmt: Stmt) -> None:
        """A statement and all inside it; chains of Let and Allocate at the end are walked without recursion."""
        lets: list[Var] = []
        allocated: list[Buffer] = []
        depth = len(self.path)
        stmts = flatten(stmt)
        while stmts:
            for child in stmts[:-1]:
                self.stmt(child)
            last = stmts[-1]
            if type(last) is Let:
                self.let_header(last)
                lets.append(last.var)
            elif type(last) is Allocate:
                self.allocate_header(last)
                allocated.append(last.buffer)
                self.path.append(last)
            else:
                self.stmt(last)
                break
            stmts = flatten(last.body)
        del self.path[depth:]
        for var in lets:
            del self.visible[var]
        self.release(allocated)

    def stmt(self, s: Stmt) -> None:
        handler = _CHECK.get(type(s))
        if handler is None:
            raise self.fail(f"{type(s).__name__} is not a statement of loop IR")
        self.path.append(s)
        handler(self, s)
        self.path.pop()

    def inner_suite(self, s: Let | Allocate) -> None:
        """A Let or Allocate that is not the last of its suite."""
        self.path.pop()
        self.suite(s)
        self.path.append(s)

    def let_header(self, s: Let) -> None:
        self.path.append(s)
        self.expr(s.value)
        if s.var.dtype is not s.value.dtype:
            raise self.fail(f"the variable is {s.var.dtype}, but its value is {s.value.dtype}")
        self.bind(s.var, _LET)
        self.path.pop()

    def allocate_header(self, s: Allocate) -> None:
        self.path.append(s)
        if self.func.allocations:
            raise self.fail("Allocate belongs to the lowered form; this program still has Func.allocations")
        self.declare(s.buffer, "Allocate")
        self.declaration(s.buffer)
        if self.use is not None:
            self.use.reads.add(s.buffer)
            self.use.writes.add(s.buffer)
        self.path.pop()

    def release(self, buffers: Iterable[Buffer]) -> None:
        """The end of the bodies of some Allocates."""
        for buffer in buffers:
            self.buffers.discard(buffer)

    def store(self, s: Store) -> None:
        for index in s.indices:
            self.expr(index)
        self.expr(s.value)
        lanes = self.indexed(s.buffer, s.indices, s)
        expected = s.buffer.dtype if lanes == 1 else s.buffer.dtype.with_lanes(lanes)
        if s.value.dtype is not expected:
            raise self.fail(f"the stored value is {s.value.dtype}, but the buffer and indices take {expected}")
        if s.predicate is not None:
            self.expr(s.predicate)
            if not s.predicate.dtype.is_bool or s.predicate.dtype.lanes not in (1, lanes):
                raise self.fail(f"the predicate of the store is {s.predicate.dtype}, not bool with {lanes} lanes")
        if self.use is not None and s.buffer not in self.use.writes:
            raise self.fail(f"block {self.use.name} stores to {s.buffer.name}, which is not in its writes")

    def evaluate(self, s: Evaluate) -> None:
        if type(s.value) is not Call:
            raise self.fail("only a call can be evaluated for its effect")
        self.expr(s.value)

    def if_(self, s: If) -> None:
        self.condition(s.condition, "the condition")
        self.suite(s.then)
        if s.otherwise is not None:
            self.suite(s.otherwise)

    def for_(self, s: For) -> None:
        if s.kind not in LOOP_KINDS:
            raise self.fail(f"unknown kind of loop {s.kind!r}; known are {', '.join(LOOP_KINDS)}")
        if s.kind == "thread" and s.thread not in THREAD_TAGS and s.thread != CLUSTER_RANK:
            raise self.fail(f"unknown thread tag {s.thread!r}; known are {', '.join(THREAD_TAGS)}")
        if s.kind != "thread" and s.thread is not None:
            raise self.fail(f"a {s.kind} loop has the thread tag {s.thread!r}; only a thread loop may")
        if s.var.dtype is not INDEX:
            raise self.fail(f"the loop variable is {s.var.dtype}, not int64")
        self.typed(s.extent, "the extent")
        if s.kind == "vectorized" and int_value(s.extent) is None:
            raise self.fail(f"a vectorized loop needs a constant extent, not {s.extent!r}: split it first")
        if s.var.name in self.loop_names and self.same_name is None:
            self.same_name = self.fail(
                f"two loops are named {s.var.name}; loop names are unique, for schedules to name them"
            )
        self.loop_names.add(s.var.name)
        self.bind(s.var, _LOOP)
        self.suite(s.body)
        del self.visible[s.var]

    # ------------------------------------------------------------------------------------------------ blocks

    def block(self, s: Block) -> None:
        if s.name in self.block_names:
            raise self.fail(f"two blocks are named {s.name}; block names are unique, for schedules to name them")
        self.block_names.add(s.name)
        if len(s.bindings) != len(s.axes):
            raise self.fail(f"{len(s.axes)} axes, but {len(s.bindings)} bindings; every axis has one")
        for axis, binding in zip(s.axes, s.bindings):
            if axis.kind not in AXIS_KINDS:
                raise self.fail(f"axis {axis.var.name} has the unknown kind {axis.kind!r}, none of {AXIS_KINDS}")
            if axis.var.dtype is not INDEX:
                raise self.fail(f"axis {axis.var.name} is {axis.var.dtype}, not int64")
            self.typed(axis.extent, f"the extent of axis {axis.var.name}")
            self.typed(binding, f"the binding of axis {axis.var.name}")
            self.outside_only(binding, axis.var.name)
        self.condition(s.predicate, "the predicate")

        outer, outer_hidden, outer_use = self.visible, self.hidden, self.use
        self.nested_regions(s)
        self.hidden = {**outer_hidden, **{var: kind for var, kind in outer.items() if kind is not _GLOBAL}}
        self.visible = dict(self.globals)
        for axis in s.axes:
            self.bind(axis.var, _AXIS)
        self.use = None
        for what, regions in (("reads", s.reads), ("writes", s.writes)):
            for region in regions:
                self.region(region, what)
        self.use = _BlockUse(s)
        if s.init is not None:
            self.suite(s.init)
        self.suite(s.body)
        self.visible, self.hidden, self.use = outer, outer_hidden, outer_use

    def outside_only(self, binding: Expr, axis: str) -> None:
        """A binding is arithmetic on loop variables, sizes and parameters."""
        stack = [binding]
        while stack:
            node = stack.pop()
            if type(node) is Load:
                raise self.fail(f"the binding of axis {axis} loads from memory: {binding!r}")
            if type(node) is Var and self.visible[node] is _LET:
                raise self.fail(f"the binding of axis {axis} uses {node.name}, which a let binds: {binding!r}")
            stack.extend(children(node))

    def nested_regions(self, s: Block) -> None:
        """What an inner block declares, the block around it must have declared too."""
        if self.use is None:
            return
        for what, regions, allowed in (("reads", s.reads, self.use.reads), ("writes", s.writes, self.use.writes)):
            for region in regions:
                if region.buffer not in allowed:
                    raise self.fail(f"it {what} {region.buffer.name}, but the block {self.use.name} around it does not")

    def region(self, region: Region, what: str) -> None:
        buffer = region.buffer
        if buffer not in self.buffers:
            raise self.fail(f"{what} {buffer.name}, which is no parameter or allocation, and not allocated around")
        if len(region.mins) != len(buffer.shape) or len(region.extents) != len(buffer.shape):
            count = min(len(region.mins), len(region.extents))
            raise self.fail(f"{what} a region of {buffer.name} with {count} of its {len(buffer.shape)} dimensions")
        for value in (*region.mins, *region.extents):
            self.typed(value, f"a bound of the region of {buffer.name} in {what}")


def _describe(stmt: Stmt) -> str:
    """A statement in a few words, for the path to an error."""
    if isinstance(stmt, For):
        return f"loop {stmt.var.name}"
    if isinstance(stmt, Block):
        return f"block {stmt.name}"
    if isinstance(stmt, Let):
        return f"let {stmt.var.name}"
    if isinstance(stmt, Allocate):
        return f"allocate {stmt.buffer.name}"
    if isinstance(stmt, If):
        return f"if {stmt.condition!r}"
    text = repr(stmt)
    return text if len(text) <= 120 else text[:117] + "..."


_CHECK: dict[type[Stmt], Callable[[_Verifier, Any], None]] = {
    Store: _Verifier.store, Evaluate: _Verifier.evaluate, For: _Verifier.for_, If: _Verifier.if_,
    Let: _Verifier.inner_suite, Allocate: _Verifier.inner_suite, Block: _Verifier.block, Seq: _Verifier.suite,
}  # fmt: skip

__all__ = ["verify"]

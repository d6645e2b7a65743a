"""Statements: loops, branches, names, allocation, and the outlined bodies of parallel loops.

    for i in parallel(n): body      ->      env = { values and pointers that body uses, 0 }
                                            weft_parallel_for(body, &env, n, threads); if (env.failed) return 1
    void body(begin, end, env)              for i in begin .. end: body

A parallel loop inside a parallel loop runs serially. Small buffers live on the stack of the function that uses them,
where LLVM turns those with constant indices into registers; larger ones come from `weft_allocate`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from weft.codegen.llvm import abreast, calls, memory, types
from weft.codegen.llvm.analysis import divisor, interval, named_interval, power_of_two, touches_memory
from weft.codegen.llvm.context import SUMS_IN_MEMORY, Context, Module, StmtHandler, Walk
from weft.core import model
from weft.core.dtypes import INDEX
from weft.core.errors import TargetError
from weft.expr.intrinsics import REPORT
from weft.expr.nodes import (
    Add,
    Address,
    Buffer,
    Call,
    Const,
    Expr,
    FloorDiv,
    Load,
    Max,
    Mul,
    Sub,
    Var,
    elements,
    index_expr,
    int_value,
)
from weft.expr.visit import children, free_vars, walk
from weft.loop.ir import Allocate, Evaluate, For, If, Let, Seq, Stmt, Store
from weft.loop.visit import child_exprs, child_stmts, walk_stmts
from weft.runtime.faults import NO_MEMORY, OUTSIDE

_LOCAL_LIMIT = 64 * 1024
"""Bytes of a "local" buffer that may live on the stack."""
_STACK_LIMIT = 4 * 1024
"""Bytes of any other buffer that may live on the stack."""
_MOST_BYTES = 2.0**60
_ALIGNMENT = 64
_SHORT = 16
"""Loops of vectors up to this length LLVM may unroll, so that small buffers indexed by them become registers."""
ROLLED = "pragma_rolled"
"""The annotation of a loop that LLVM must not unroll: what its rounds have in common would not fit the registers."""


def _seq(c: Context, s: Seq) -> None:
    for group in abreast.groups(c, s.stmts):
        if len(group) > 1:
            abreast.prepare(c, group)
        for child in group:
            c.run(child)
        c.abreast.clear()


def _let(c: Context, s: Let) -> None:
    name(c, s.var, s.value, c.value(s.value))
    if s.var.dtype is INDEX:
        homed, rest = c.terms(s.value)
        c.settle(s.var)
        if not rest:
            c.sums[s.var] = homed
    c.run(s.body)


def name(c: Context, var: Var, meaning: Expr, value: str) -> None:
    """Gives a variable its value, and remembers what is known about it."""
    c.values[var] = value
    c.definitions.pop(var, None)
    c.multiples = {}
    if var.dtype.is_integer:
        c.ranges[var] = named_interval(meaning, c.ranges)
        c.divisors[var] = divisor(meaning, c.divisors)
        if var.dtype.lanes > 1 and not touches_memory(meaning):
            c.definitions[var] = meaning


def _evaluate(c: Context, s: Evaluate) -> None:
    c.value(s.value)


def _if(c: Context, s: If) -> None:
    condition = c.value(s.condition)
    then, done = c.new_label("then"), c.new_label("done")
    other = done if s.otherwise is None else c.new_label("else")
    c.branch_if(condition, then, other)
    c.start(then)
    c.run(s.then)
    c.branch(done)
    if s.otherwise is not None:
        c.start(other)
        c.run(s.otherwise)
        c.branch(done)
    c.start(done)


# ---------------------------------------------------------------------------------------------------------- loops


def has_vectors(s: Stmt) -> bool:
    """Whether a statement computes with vectors, or hands them to what stores them."""
    for e in child_exprs(s):
        if e.dtype.lanes > 1 or (type(e) is Call and any(argument.dtype.lanes > 1 for argument in e.args)):
            return True
    return any(has_vectors(child) for child in child_stmts(s))


def _hints(c: Context, s: For, most: int) -> str:
    """Loops that the schedule has shaped stay as they are, but short ones of at most so many rounds; plain scalar ones
    are LLVM's to improve."""
    if has_vectors(s.body):
        unroll = [] if _is_short(s, min(most, _SHORT)) else ['!"llvm.loop.unroll.disable"']
        return c.module.loop_metadata('!"llvm.loop.vectorize.enable", i1 false', *unroll)
    if s.kind == "unrolled":
        return c.module.loop_metadata('!"llvm.loop.unroll.enable"')
    if s.kind == "vectorized":
        return c.module.loop_metadata('!"llvm.loop.vectorize.enable", i1 true')
    return ""


def _is_short(s: For, most: int = _SHORT) -> bool:
    """Whether LLVM may make straight code of a loop with vectors."""
    return isinstance(s.extent, Const) and s.extent.value <= most and ROLLED not in s.annotations


def _height(s: Stmt) -> int:
    """How many loops are left around the innermost statement."""
    inside = max((_height(child) for child in child_stmts(s) if type(child) is not Store), default=0)
    return inside + (type(s) is For and not _is_short(s))


def _loop(c: Context, s: For, first: str, end: str, guard: bool, rounds: Var | None = None) -> None:
    """The loop proper: tested at its end, and before it if it may run zero times; backwards in odd rounds."""
    body, done = c.new_label("loop"), c.new_label("after")
    before, others = c.label, c.loops
    if guard:
        c.branch_if(c.once(f"icmp slt i64 {first}, {end}"), body, done)
    else:
        c.branch(body)
    c.start(body)
    names, phi, c.stored = c.known, len(c.lines), []
    variable, following = c.fresh(), c.fresh()
    c.lines.append("")
    c.values[s.var] = variable if rounds is None else _turned(c, variable, first, end, c.values[rounds])
    c.settle(s.var)
    walk = Walk()
    if first == "0" and rounds is None and not c.module.is_aarch64 and _height(s.body) <= 1 and has_vectors(s.body):
        c.walks[variable] = walk  # further out a multiplication is seldom enough
    c.run(s.body)
    step, test = "add nuw nsw i64 {}, 1", f"icmp slt i64 {following}, {end}"
    if walk.pointers and not _mentions(c.lines[phi + 1 :], variable):  # only counted: a test for zero is free on x86
        first, step, test = end, "add nsw i64 {}, -1", f"icmp ne i64 {following}, 0"
    counter = f"  {variable} = phi i64 [ {first}, %{before} ], [ {following}, %{c.label} ]"
    c.lines[phi] = [counter, *walk.starts(before, c.label)]
    c.lines.append(walk.steps())
    c.line(f"{following} = {step.format(variable)}")
    if c.label == body and _keeps_sums(c, names, c.lines[phi:]):
        c.module.note = SUMS_IN_MEMORY
    most = model.UNROLLED_LINES if c.loops == others or s.var in c.indexing else model.UNROLLED_NEST
    c.loops += 1
    c.branch_if(c.once(test), body, done, _hints(c, s, most // (len(c.lines) - phi)))
    c.start(done)


def _keeps_sums(c: Context, names: int, lines: Sequence[str | list[str]]) -> bool:
    """Whether a loop of one block, written since so many names were known, stores to one place in all its rounds:
    outside of the stack, or products in an array there at an index."""
    for buffer, index in c.stored:
        if c.is_made(index, names) or (buffer in c.private and not free_vars(index)):
            continue
        if buffer not in c.private or any(" = fmul " in line or "@llvm.fm" in line for line in lines):
            return True
    return False


def _mentions(lines: Sequence[str | list[str]], value: str) -> bool:
    """Whether an instruction uses a value."""
    text = "\n".join([line if type(line) is str else "\n".join(line) for line in lines])
    return re.search(value + r"\b", text) is not None


def _turned(c: Context, variable: str, first: str, end: str, rounds: str) -> str:
    """The place of an iteration that counts down in odd rounds."""
    last = c.once(f"sub i64 {c.once(f'add i64 {first}, {end}')}, 1")
    odd = c.once(f"trunc i64 {rounds} to i1")
    return c.once(f"select i1 {odd}, i64 {c.once(f'sub i64 {last}, {variable}')}, i64 {variable}")


def _for(c: Context, s: For) -> None:
    if s.kind == "thread":
        raise TargetError(
            f"loop {s.var.name!r} is bound to {s.thread}, but {c.module.machine.name} has no such threads"
        )
    high = interval(s.extent, c.ranges)[1]
    c.divisors.pop(s.var, None)
    c.ranges[s.var] = (0, None if high is None else max(high - 1, 0))
    if s.kind == "parallel" and not c.outlined:
        return _parallel(c, s)
    extent = s.extent.value if isinstance(s.extent, Const) else None
    if extent is not None and extent <= 0:
        return
    if extent == 1:
        name(c, s.var, Const(0, s.var.dtype), "0")
        return c.run(s.body)
    _loop(c, s, "0", c.value(s.extent), extent is None)


# ------------------------------------------------------------------------------------------------- parallel loops


def _captured(s: For) -> tuple[dict[Var, None], dict[Buffer, None]]:
    """Variables and buffers that a loop's body mentions and does not itself define."""
    variables: dict[Var, None] = {}
    buffers: dict[Buffer, None] = {}
    expressions: list[Expr] = []
    own: set[Var | Buffer] = {s.var}
    for stmt in walk_stmts(s.body):
        expressions.extend(child_exprs(stmt))
        if isinstance(stmt, Store):
            buffers[stmt.buffer] = None
        elif isinstance(stmt, (For, Let)):
            own.add(stmt.var)
        elif isinstance(stmt, Allocate):
            own.add(stmt.buffer)
            expressions.extend(stmt.buffer.shape)
            expressions.extend(stmt.buffer.strides or ())
    seen: set[Expr] = set()
    while expressions:
        node = expressions.pop()
        if type(node) is Var:
            variables[node] = None
        elif type(node) is not Const and node not in seen:
            seen.add(node)
            if type(node) is Load or type(node) is Address:
                buffers[node.buffer] = None
            expressions.extend(children(node))
    outer = {var: None for var in variables if var not in own}
    return outer, {buffer: None for buffer in buffers if buffer not in own}


class _Environment:
    """The struct through which an outlined body gets its values: the failure flag first, then one field for each."""

    def __init__(self, c: Context, s: For) -> None:
        variables, buffers = _captured(s)
        by = s.annotations.get("zigzag")
        self.rounds = next((v for v in reversed(c.values) if v.name == by and v.dtype.lanes == 1), None)
        if self.rounds is not None:
            variables[self.rounds] = None
        used = {definition for var in variables for definition in _mentioned(c, var)}
        self.variables = [v for v in c.values if v in variables or v in used]
        self.buffers = [b for b in c.pointers if b in buffers]
        fields = [types.llvm_type(v.dtype) for v in self.variables] + ["ptr"] * len(self.buffers)
        self.type = "{ i32" + "".join(f", {field}" for field in fields) + " }"

    def field(self, c: Context, pointer: str, number: int) -> str:
        return c.once(f"getelementptr inbounds {self.type}, ptr {pointer}, i32 0, i32 {number}")

    def fill(self, c: Context, pointer: str) -> None:
        c.line(f"store i32 0, ptr {pointer}, align 8")
        for number, var in enumerate(self.variables, 1):
            c.line(f"store {types.llvm_type(var.dtype)} {c.values[var]}, ptr {self.field(c, pointer, number)}")
        for number, buffer in enumerate(self.buffers, 1 + len(self.variables)):
            c.line(f"store ptr {c.pointers[buffer]}, ptr {self.field(c, pointer, number)}")

    def unpack(self, c: Context, pointer: str) -> None:
        for number, var in enumerate(self.variables, 1):
            c.values[var] = c.emit(f"load {types.llvm_type(var.dtype)}, ptr {self.field(c, pointer, number)}")
        for number, buffer in enumerate(self.buffers, 1 + len(self.variables)):
            c.pointers[buffer] = c.emit(f"load ptr, ptr {self.field(c, pointer, number)}")
        c.settle(*(var for var in self.variables if var.dtype is INDEX))


def _mentioned(c: Context, var: Var) -> set[Var]:
    """The variables in what a vector variable stands for, which its uses as a ramp speak of."""
    meaning = c.definitions.get(var)
    if meaning is None:
        return set()
    found = {node for node in walk(meaning) if isinstance(node, Var)}
    return found.union(*(_mentioned(c, inner) for inner in found)) if found else found


def _parallel(c: Context, s: For) -> None:
    module = c.module
    count = c.value(s.extent)
    environment = _Environment(c, s)
    symbol = f"{module.symbol}.parallel.{len(module.functions)}"
    pointer = c.alloca(environment.type, 64)
    environment.fill(c, pointer)
    module.helpers.add(symbol)
    _outline(c, s, environment, symbol)
    arguments = [f"ptr {types.quote(symbol)}", f"ptr {pointer}", f"i64 {count}", "i64 %threads"]
    c.call("void", "weft_parallel_for", arguments)
    may_fail, may_report = _may_fail(s)
    if may_fail or may_report:
        code = c.emit(f"load i32, ptr {pointer}, align 8")
        fail_if(c, c.once(f"icmp eq i32 {code}, {NO_MEMORY}"))
    if may_report:
        calls.remember(c, c.once(f"icmp ne i32 {code}, 0"))


def _may_fail(s: For) -> tuple[bool, bool]:
    """Whether a body may run out of memory, and whether it may report that something is wrong."""
    allocates = reports = False
    for stmt in walk_stmts(s.body):
        allocates = allocates or isinstance(stmt, Allocate)
        reports = reports or (isinstance(stmt, Evaluate) and isinstance(stmt.value, Call) and stmt.value.name == REPORT)
    return allocates, reports


def _outline(outer: Context, s: For, environment: _Environment, symbol: str) -> None:
    """Writes the body of a parallel loop as a function of its own."""
    c = Context(outer.module)
    c.outlined = True
    c.aligned, c.base_slots, c.slots_used = dict(outer.aligned), dict(outer.base_slots), dict(outer.slots_used)
    c.ranges, c.divisors, c.definitions = dict(outer.ranges), dict(outer.divisors), dict(outer.definitions)
    environment.unpack(c, "%env")
    body, buffers = s.body, []
    while isinstance(body, Allocate) and s.var not in free_vars(*body.buffer.shape, *(body.buffer.strides or ())):
        buffers.append(body.buffer)  # memory that an iteration takes first serves all of them
        body = body.body
    inner = s.replace(body=body)
    _with_memory(c, buffers, lambda: _loop(c, inner, "%begin", "%end", True, environment.rounds))
    wrong = calls.remembered(c)
    if wrong is not None:
        bad, good = c.new_label("outside"), c.new_label("inside")
        c.branch_if(wrong, bad, good, ", !prof !1")
        c.start(bad)
        c.line(f"store atomic i32 {OUTSIDE}, ptr %env monotonic, align 8")
        c.branch(good)
        c.start(good)
    c.line("ret void")
    position = len(outer.module.functions)
    text = c.text(f"define internal void {types.quote(symbol)}(i64 %begin, i64 %end, ptr noalias %env) #0")
    outer.module.functions.insert(position, text)


# ----------------------------------------------------------------------------------------------------- allocation


def fail_if(c: Context, failed: str) -> None:
    """Gives up, after releasing what is held, if a condition holds."""
    bad, good = c.new_label("failed"), c.new_label("fine")
    c.branch_if(failed, bad, good, ", !prof !1")
    c.start(bad)
    for held in reversed(c.heap):
        c.call("void", "weft_release", [f"ptr {held}"])
    if c.outlined:
        c.line(f"store atomic i32 {NO_MEMORY}, ptr %env monotonic, align 8")
        c.line("ret void")
    else:
        c.line(f"ret i32 {NO_MEMORY}")
    c.start(good)


def _constant_size(buffer: Buffer) -> int | None:
    count = int_value(elements(buffer))
    return None if count is None else max(count, 0) * buffer.dtype.bytes


def _allocate(c: Context, s: Allocate) -> None:
    def run() -> None:
        if s.buffer in c.private and s.buffer.scope == "local" and _is_written_by_test(s.body, s.buffer):
            _forget(c, s.buffer)
        c.run(s.body)

    _with_memory(c, [s.buffer], run)


def _is_written_by_test(s: Stmt, buffer: Buffer) -> bool:
    """Whether a test decides if some of a buffer is written."""
    tests = [stmt for stmt in walk_stmts(s) if isinstance(stmt, If)]
    return any(isinstance(one, Store) and one.buffer is buffer for test in tests for one in walk_stmts(test))


def _forget(c: Context, buffer: Buffer) -> None:
    """Says that memory begins without a value, by vectors: it is the same in all rounds of the loops around, and LLVM
    would carry in registers what a round before may have left there, wherever this one writes by a test only."""
    element, size = types.memory_type(buffer.dtype), buffer.dtype.bytes
    lanes = c.module.machine.vector_bytes // size
    if lanes < 2:
        return
    count = (_constant_size(buffer) or 0) // size
    for first in range(0, count - lanes + 1, lanes):
        pointer = c.element(buffer, index_expr(first))
        c.store(f"store <{lanes} x {element}> undef, ptr {pointer}, align {size}", c.module.access(buffer))


def _with_memory(c: Context, buffers: Sequence[Buffer], run: Callable[[], None]) -> None:
    """Runs what needs memory for some buffers."""
    if not buffers:
        return run()
    buffer, inside = buffers[0], functools.partial(_with_memory, c, buffers[1:], run)
    facts = c.module.machine.scopes.get(buffer.scope)
    if facts is None:
        known = ", ".join(c.module.machine.scopes)
        raise TargetError(
            f"buffer {buffer.name!r}: {c.module.machine.name} has no memory scope {buffer.scope!r}; it has {known}"
        )
    if facts.slot_bytes:
        return _in_slots(c, buffer, facts, inside)
    size = _constant_size(buffer)
    if size is not None and size <= (_LOCAL_LIMIT if buffer.scope == "local" else _STACK_LIMIT):
        count = max(size // buffer.dtype.bytes, 1)
        alignment = max(_ALIGNMENT, power_of_two(buffer.alignment))
        c.pointers[buffer] = c.alloca(f"[{count} x {types.memory_type(buffer.dtype)}]", alignment)
        c.aligned[buffer] = alignment
        c.private.add(buffer)
        return inside()
    bytes_needed = str(size) if size is not None else _symbolic_size(c, buffer)
    pointer = c.call("ptr", "weft_allocate", [f"i64 {bytes_needed}"])
    fail_if(c, c.once(f"icmp eq ptr {pointer}, null"))
    c.pointers[buffer], c.aligned[buffer] = pointer, _ALIGNMENT
    c.heap.append(pointer)
    inside()
    c.heap.pop()
    c.call("void", "weft_release", [f"ptr {pointer}"])


def _symbolic_size(c: Context, buffer: Buffer) -> str:
    """The bytes of a buffer, or -1, which nobody can allocate, where 64 bits do not hold their number."""
    span = elements(buffer)
    count = c.value(span)
    fits = c.once(f"fcmp olt double {_approximate(c, span)}, {_MOST_BYTES / buffer.dtype.bytes:e}")
    return c.once(f"select i1 {fits}, i64 {c.once(f'mul i64 {count}, {buffer.dtype.bytes}')}, i64 -1")


def _approximate(c: Context, e: Any) -> str:
    """An index expression in floating point, where sums and products do not wrap."""
    operator = {Add: "fadd", Sub: "fsub", Mul: "fmul", FloorDiv: "fdiv"}.get(type(e))
    if operator is not None:
        return c.once(f"{operator} double {_approximate(c, e.a)}, {_approximate(c, e.b)}")
    if isinstance(e, Max):
        return c.call("double", "llvm.maxnum.f64", [f"double {_approximate(c, side)}" for side in (e.a, e.b)])
    return c.once(f"sitofp i64 {c.value(e)} to double")


def _in_slots(c: Context, buffer: Buffer, facts: Any, run: Callable[[], None]) -> None:
    """A buffer in a register scope takes the next free slots while its body runs."""
    size = _constant_size(buffer)
    if size is None:
        raise TargetError(f"buffer {buffer.name!r} in scope {buffer.scope!r} needs a constant size")
    needed = -(-size // int(facts.slot_bytes))
    used = c.slots_used.get(buffer.scope, 0)
    if used + needed > facts.slots:
        raise TargetError(
            f"buffer {buffer.name!r} needs {needed} slots of scope {buffer.scope!r}, "
            f"but {used} of its {facts.slots} are in use: use smaller tiles"
        )
    c.base_slots[buffer] = used
    c.slots_used[buffer.scope] = used + needed
    run()
    c.slots_used[buffer.scope] = used


def use_param(c: Context, buffer: Buffer, pointer: str) -> None:
    """Makes a parameter's pointer known; the caller promises no more than the alignment of one element."""
    c.pointers[buffer] = pointer
    c.aligned[buffer] = buffer.dtype.bytes


def setup(module: Module) -> None:
    """Metadata that statements refer to by number: !1 says that a failure is unlikely."""
    module.metadata.append('!1 = !{!"branch_weights", i32 1, i32 2000}')


TABLE: dict[type[Stmt], StmtHandler] = {
    Seq: _seq, Let: _let, Evaluate: _evaluate, If: _if, For: _for, Allocate: _allocate, Store: memory.store,
}  # fmt: skip

"""Statements, loads and stores.

A thread loop becomes the index of this thread; where it is shorter than the launch, a test. Loads and stores of
neighbouring elements in memory that threads share are wide where their alignment is known (and, in OpenCL, always).
Memory of one thread alone is a plain array with scalar accesses, so that compilers keep it in registers.
"""

from __future__ import annotations

from weft.codegen.c import expressions, types
from weft.codegen.c.context import Context, Handler, StmtHandler, bare
from weft.codegen.c.expressions import from_bits, is_index, to_bits
from weft.codegen.llvm.analysis import as_ramp, divisor, interval, named_interval, power_of_two, touches_memory
from weft.core.dtypes import INDEX, INT32, DType
from weft.core.errors import InternalError, TargetError
from weft.expr.nodes import (
    Address,
    Broadcast,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Select,
    elements,
    int_value,
    is_true,
)
from weft.expr.visit import uses_any, walk
from weft.loop.ir import Allocate, Evaluate, For, If, Let, Seq, Stmt, Store
from weft.loop.visit import child_exprs, walk_stmts

SHARED_ALIGNMENT, SHARED_LINE = 16, 128
"""What shared memory begins at a multiple of, and where it holds as much, so that no line of copies lies in two."""
_UNROLLED = 64
"""Loops up to this length that index a thread's own memory are unrolled, so that it can live in registers."""
_INT32_MAX = (1 << 31) - 1


# ------------------------------------------------------------------------------------------------ loads and stores


def _index_of(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    if len(indices) != 1:
        raise InternalError(f"buffer {buffer.name!r} has {len(indices)} indices: the program was not flattened")
    return indices[0]


def _from_memory(text: str, dtype: DType) -> str:
    if dtype.is_bool:
        return f"({text} != 0)"
    return from_bits(text, dtype) if types.is_half(dtype) else text


def to_memory(text: str, dtype: DType) -> str:
    """A value as it lies in memory."""
    if types.is_half(dtype):
        return to_bits(text, dtype)
    return f"({text} ? 1 : 0)" if dtype.is_bool else text


def _scalars(c: Context, buffer: Buffer, index: Expr) -> list[str]:
    """The place of each lane, as `A[i]`."""
    base = c.base(buffer)
    if index.dtype.lanes == 1:
        return [f"{base}[{c.index(index)}]"]
    ramp = _ramp_of(c, index)
    if ramp is None or not isinstance(ramp[1], Const):
        return [f"{base}[{bare(text)}]" for text in c.lanes(index)]
    stride, first = int(ramp[1].value), _first(c, ramp[0])
    return [f"{base}[{_offset(first, stride * lane)}]" for lane in range(index.dtype.lanes)]


def _ramp_of(c: Context, index: Expr) -> tuple[Expr, Expr] | None:
    """A vector index as (base, stride), also where it was computed in 32 bits."""
    if isinstance(index, Cast) and index.dtype.scalar is INDEX and index.value.dtype.scalar is INT32:
        found = as_ramp(index.value, c.definitions)
        return None if found is None else (Cast(INDEX, found[0]), found[1])
    return as_ramp(index, c.definitions)


def _first(c: Context, base: Expr) -> str:
    """The index of a vector's first element, named where a statement may stand."""
    is_narrow = (isinstance(base, Cast) and base.value.dtype is INT32) or base in c.narrow
    text = c.index(base)
    return c.temporary("int32_t" if is_narrow else "int64_t", text if text.isidentifier() else f"({text})")


def _offset(first: str, by: int) -> str:
    if by == 0:
        return bare(first)
    return f"{first} {'-' if by < 0 else '+'} {abs(by)}"


def _chunk(c: Context, buffer: Buffer, index: Expr, stride: Expr, base: Expr) -> int:
    """How many lanes one access can take; 1 where there is no wide access."""
    lanes, dialect = index.dtype.lanes, c.dialect
    if not dialect.vectors or buffer in c.private or not isinstance(stride, Const) or stride.value != 1:
        return 1
    size = buffer.dtype.bytes
    most = min(dialect.most_vector_bytes // size, 16)
    if dialect.vectors != "native":
        known = min(c.aligned.get(buffer, size), power_of_two(divisor(base, c.divisors) * size))
        most = min(most, known // size)
    chunk = 1
    while chunk * 2 <= most and lanes % (chunk * 2) == 0:
        chunk *= 2
    return chunk


def _load(c: Context, e: Load) -> list[str]:
    buffer, index = e.buffer, _index_of(e.buffer, e.indices)
    lanes, dtype = index.dtype.lanes, e.buffer.dtype
    ramp = _ramp_of(c, index) if lanes > 1 else None
    if ramp is not None and isinstance(ramp[1], Const) and ramp[1].value == 0:
        text = _from_memory(f"{c.base(buffer)}[{c.index(ramp[0])}]", dtype)
        return [c.temporary(types.register_type(dtype), text)] * lanes
    chunk = 1 if ramp is None or c.conditional else _chunk(c, buffer, index, ramp[1], ramp[0])
    if ramp is None or chunk == 1:
        return [_from_memory(text, dtype) for text in _scalars(c, buffer, index)]
    first = _first(c, ramp[0])
    texts: list[str] = []
    for start in range(0, lanes, chunk):
        vector = _load_vector(c, buffer, _offset(first, start), chunk)
        texts += [_from_memory(text, dtype) for text in vector]
    return texts


def _load_vector(c: Context, buffer: Buffer, index: str, lanes: int) -> list[str]:
    kind = types.memory_type(buffer.dtype)
    place = f"{c.base(buffer)} + {index}"
    if c.dialect.vectors == "native":
        name = c.temporary(_native(kind, lanes), f"vload{lanes}(0, {place})")
        return [f"{name}.s{lane:x}" for lane in range(lanes)]
    vector = c.module.vector_type(kind, lanes)
    name = c.temporary(vector, f"*(const {c.space(buffer)}{vector} *)({place})")
    return [f"{name}.lane[{lane}]" for lane in range(lanes)]


def _select_of(c: Context, e: Select) -> list[str]:
    """A choice; where it is one of vectors in memory, of the place of one, so that threads that choose others load
    together."""
    loads = _chosen_loads(e)
    if e.dtype.lanes == 1 or c.conditional or c.dialect.vectors in ("", "native"):
        return expressions.select(c, e)
    if loads is None:
        return _or_zeros(c, e) or expressions.select(c, e)
    for load in loads:
        index = _index_of(load.buffer, load.indices)
        ramp = _ramp_of(c, index)
        if ramp is None or _chunk(c, load.buffer, index, ramp[1], ramp[0]) != e.dtype.lanes:
            return expressions.select(c, e)
        if load.buffer.dtype is not loads[0].buffer.dtype or c.space(load.buffer) != c.space(loads[0].buffer):
            return expressions.select(c, e)
    vector = c.module.vector_type(types.memory_type(loads[0].buffer.dtype), e.dtype.lanes)
    name = c.temporary(vector, f"*(const {c.space(loads[0].buffer)}{vector} *)({_place(c, e)})")
    return [_from_memory(f"{name}.lane[{lane}]", e.dtype.scalar) for lane in range(e.dtype.lanes)]


def _or_zeros(c: Context, e: Select) -> list[str]:
    """A vector of 16-bit elements, or zeros: chosen as whole registers, of which each holds two. Nothing where it is no
    such choice."""
    other = e.otherwise.value if isinstance(e.otherwise, Broadcast) else e.otherwise
    condition = e.condition.value if isinstance(e.condition, Broadcast) else e.condition
    is_zero = isinstance(other, Const) and repr(float(other.value)) == "0.0"
    load, lanes = e.then, e.dtype.lanes
    if not isinstance(load, Load) or not is_zero or condition.dtype.lanes > 1 or lanes not in (2, 4, 8):
        return []
    index = _index_of(load.buffer, load.indices)
    ramp = _ramp_of(c, index)
    if not types.is_half(e.dtype.scalar) or ramp is None or c.dialect.name != "cuda":
        return []
    if _chunk(c, load.buffer, index, ramp[1], ramp[0]) != lanes:
        return []
    kind, parts = {2: ("uint32_t", [""]), 4: ("uint2", [".x", ".y"]), 8: ("uint4", [".x", ".y", ".z", ".w"])}[lanes]
    name = c.fresh("chosen")
    c.line(f"{kind} {name} = {'0' if lanes == 2 else '{}'};")
    c.line(f"if ({bare(c.value(condition))}) {{")
    c.depth += 1
    c.line(f"{name} = *(const {c.space(load.buffer)}{kind} *)({c.base(load.buffer)} + {_first(c, ramp[0])});")
    c.depth -= 1
    c.line("}")
    halves = [text for part in parts for text in (f"(uint16_t){name}{part}", f"(uint16_t)({name}{part} >> 16)")]
    return [_from_memory(text, e.dtype.scalar) for text in halves]


def _chosen_loads(e: Expr) -> list[Load] | None:
    """The loads of which choices take one, each with one condition for all lanes; None where there is anything else."""
    if isinstance(e, Load):
        return None if any(walk(index, Load) for index in e.indices) else [e]
    if not isinstance(e, Select):
        return None
    condition = e.condition.value if isinstance(e.condition, Broadcast) else e.condition
    first, second = _chosen_loads(e.then), _chosen_loads(e.otherwise)
    if condition.dtype.lanes > 1 or walk(condition, Load) or first is None or second is None:
        return None
    return first + second


def _place(c: Context, e: Expr) -> str:
    """Where the vector lies that choices take."""
    if isinstance(e, Select):
        condition = e.condition.value if isinstance(e.condition, Broadcast) else e.condition
        return f"({bare(c.value(condition))} ? {_place(c, e.then)} : {_place(c, e.otherwise)})"
    assert isinstance(e, Load)
    ramp = _ramp_of(c, _index_of(e.buffer, e.indices))
    assert ramp is not None
    return f"{c.base(e.buffer)} + {_first(c, ramp[0])}"


def _native(kind: str, lanes: int) -> str:
    names = {"int8_t": "char", "int16_t": "short", "int32_t": "int", "int64_t": "long"}
    base = f"u{names[kind[1:]]}" if kind.startswith("u") else names.get(kind, kind)
    return f"{base}{lanes}"


def _store(c: Context, s: Store) -> None:
    buffer, index = s.buffer, _index_of(s.buffer, s.indices)
    lanes = max(index.dtype.lanes, s.value.dtype.lanes)
    predicate = None if s.predicate is None or is_true(s.predicate) else s.predicate
    if lanes == 1:
        return _store_scalar(c, buffer, index, s.value, predicate)
    c.line("{")
    c.depth += 1
    if predicate is None:
        _store_lanes(c, buffer, index, s.value, lanes)
    elif isinstance(predicate, Broadcast) or predicate.dtype.lanes == 1:
        inner = predicate.value if isinstance(predicate, Broadcast) else predicate
        c.line(f"if ({bare(c.value(inner))}) {{")
        c.depth += 1
        _store_lanes(c, buffer, index, s.value, lanes)
        c.depth -= 1
        c.line("}")
    else:
        _store_masked(c, buffer, index, s.value, predicate, lanes)
    c.depth -= 1
    c.line("}")


def _store_scalar(c: Context, buffer: Buffer, index: Expr, value: Expr, predicate: Expr | None) -> None:
    test = "" if predicate is None else f"if ({bare(c.value(predicate))}) "
    c.conditional += bool(test)
    (place,), text = _scalars(c, buffer, index), bare(to_memory(c.value(value), buffer.dtype))
    c.conditional -= bool(test)
    c.line(f"{test}{place} = {text};")


def _store_lanes(c: Context, buffer: Buffer, index: Expr, value: Expr, lanes: int) -> None:
    """All lanes are computed before the first is stored."""
    kind, dtype = types.memory_type(buffer.dtype), buffer.dtype
    texts = c.lanes(value)
    texts = texts * lanes if len(texts) == 1 else texts
    values = [c.temporary(kind, to_memory(text, dtype)) for text in texts]
    ramp = _ramp_of(c, index)
    chunk = 1 if ramp is None else _chunk(c, buffer, index, ramp[1], ramp[0])
    if ramp is None or chunk == 1:
        places = _scalars(c, buffer, index)
        for place, text in zip(places, values):
            c.line(f"{place} = {bare(text)};")
        return
    first = _first(c, ramp[0])
    for start in range(0, lanes, chunk):
        _store_vector(c, buffer, _offset(first, start), values[start : start + chunk])


def _store_vector(c: Context, buffer: Buffer, index: str, values: list[str]) -> None:
    kind, lanes = types.memory_type(buffer.dtype), len(values)
    place, listed = f"{c.base(buffer)} + {index}", ", ".join(map(bare, values))
    if c.dialect.vectors == "native":
        return c.line(f"vstore{lanes}(({_native(kind, lanes)})({listed}), 0, {place});")
    vector = c.module.vector_type(kind, lanes)
    name = c.fresh("packed")
    c.line(f"const {vector} {name} = {{{{{listed}}}}};")
    c.line(f"*({c.space(buffer)}{vector} *)({place}) = {name};")


def _store_masked(c: Context, buffer: Buffer, index: Expr, value: Expr, predicate: Expr, lanes: int) -> None:
    """Lane by lane where the predicate holds; what is loaded for a lane that is off is never loaded."""
    kind = types.memory_type(buffer.dtype)
    tests = [c.temporary("bool", text) for text in c.lanes(predicate)]
    harmful = touches_memory(value) or touches_memory(index)
    c.conditional += harmful
    texts = [to_memory(text, buffer.dtype) for text in c.lanes(value)]
    places = _scalars(c, buffer, index)
    c.conditional -= harmful
    texts = texts * lanes if len(texts) == 1 else texts
    held = [c.fresh("held") for _ in texts]
    for name, test, text in zip(held, tests, texts):
        c.line(f"const {kind} {name} = {test} ? {text} : 0;")
    for name, test, place in zip(held, tests, places):
        c.line(f"if ({test}) {place} = {name};")


def _address(c: Context, e: Address) -> list[str]:
    return [c.pointer(e)]


# ----------------------------------------------------------------------------------------------------- statements


def _seq(c: Context, s: Seq) -> None:
    for child in s.stmts:
        c.run(child)


def _let(c: Context, s: Let) -> None:
    kind = types.register_type(s.var.dtype)
    texts = c.lanes(s.value)
    names = [c.fresh(s.var.name if len(texts) == 1 else f"{s.var.name}_{lane}") for lane in range(len(texts))]
    for name, text in zip(names, texts):
        c.line(f"const {kind} {name} = {bare(text)};")
    if len(texts) == 1:
        c.names[s.var] = names[0]
    else:
        c.variable_lanes[s.var] = names
    if s.var.dtype.is_integer:
        if is_index(c, s.value):
            c.indices.add(s.var)
        c.ranges[s.var] = named_interval(s.value, c.ranges)
        c.divisors[s.var] = divisor(s.value, c.divisors)
        if s.var.dtype.lanes > 1 and not touches_memory(s.value):
            c.definitions[s.var] = s.value
    c.run(s.body)


def _evaluate(c: Context, s: Evaluate) -> None:
    for text in c.lanes(s.value):
        if text and not text.isidentifier():
            c.line(f"{bare(text)};")


def _block(c: Context, head: str, body: Stmt) -> None:
    c.line(head)
    c.depth += 1
    c.run(body)
    c.depth -= 1


def _if(c: Context, s: If) -> None:
    _block(c, f"if ({bare(c.value(s.condition))}) {{", s.then)
    if s.otherwise is not None:
        _block(c, "} else {", s.otherwise)
    c.line("}")


def _for(c: Context, s: For) -> None:
    extent = int_value(s.extent)
    high = interval(s.extent, c.ranges)[1]
    c.divisors.pop(s.var, None)
    c.indices.add(s.var)
    c.ranges[s.var] = (0, None if high is None else max(high - 1, 0))
    if s.kind == "thread":
        return _thread(c, s, extent)
    if extent is not None and extent <= 0:
        return
    name = c.names[s.var] = c.fresh(s.var.name)
    kind = "int64_t"
    if high is not None and high <= _INT32_MAX and s.var.dtype is INDEX:
        kind = "int32_t"
        c.narrow.add(s.var)
    limit = c.index(s.extent) if extent is not None else c.temporary(kind, f"({c.index(s.extent)})")
    if c.dialect.unroll and extent is not None and (s.kind == "unrolled" or _indexes_private(c, s, extent)):
        c.line(c.dialect.unroll)
    _block(c, f"for ({kind} {name} = 0; {name} < {limit}; ++{name}) {{", s.body)
    c.line("}")


def _indexes_private(c: Context, s: For, extent: int) -> bool:
    """Whether a short loop runs over a thread's own array."""
    if extent > _UNROLLED:
        return False
    for stmt in walk_stmts(s.body):
        if isinstance(stmt, Store) and stmt.buffer in c.private and any(uses_any(i, {s.var}) for i in stmt.indices):
            return True
        for e in child_exprs(stmt):
            for node in walk(e):
                if isinstance(node, (Load, Address)) and (node.buffer in c.private or node.buffer in c.fragments):
                    if any(uses_any(index, {s.var}) for index in node.indices):
                        return True
    return False


def _thread(c: Context, s: For, extent: int | None) -> None:
    """A thread loop: its variable is the index of this thread (or block)."""
    tag = s.thread or ""
    if not c.dialect.thread_index or tag not in c.launch:
        raise TargetError(f"loop {s.var.name!r} is bound to {tag}, but {c.dialect.name} code has no such threads")
    name = c.threads.get(tag)
    if name is None:
        name = c.threads[tag] = c.fresh(s.var.name)
        group, letter = tag.split(".")
        pattern = c.dialect.block_index if group == "blockIdx" else c.dialect.thread_index
        text = pattern.format(c.dialect.dimensions["xyz".index(letter)])
        text = c.dialect.of_warp.format(text) if s.annotations.get("of_warp") else text
        c.top.append(f"  const int32_t {name} = (int32_t){text};")
    c.names[s.var] = name
    c.narrow.add(s.var)
    launched = c.launch[tag]
    if launched is not None and extent == launched:
        return c.run(s.body)
    _block(c, f"if ({name} < ({c.index(s.extent)})) {{", s.body)
    c.line("}")


# ----------------------------------------------------------------------------------------------------- allocation


def _allocate(c: Context, s: Allocate) -> None:
    buffer = s.buffer
    facts = None if c.module.machine is None else c.module.machine.scopes.get(buffer.scope)
    if facts is None and c.module.machine is not None:
        known = ", ".join(c.module.machine.scopes)
        raise TargetError(
            f"buffer {buffer.name!r}: {c.module.machine.name} has no memory scope {buffer.scope!r}; it has {known}"
        )
    name = c.names[buffer] = c.fresh(buffer.name)
    count = int_value(elements(buffer))
    if facts is not None and facts.slot_bytes:
        return _allocate_fragment(c, s, name, count, facts)
    if not c.dialect.thread_index:
        return _allocate_plain(c, s, name, count)
    if count is None:
        raise TargetError(f"buffer {buffer.name!r} in a kernel needs a constant size, not {elements(buffer)!r}")
    if buffer.scope.split(".")[0] == "shared":
        size = max(count, 1) * buffer.dtype.bytes
        least = SHARED_LINE if size >= SHARED_LINE else SHARED_ALIGNMENT
        c.aligned[buffer] = max(least, power_of_two(buffer.alignment))
        c.shared.append((buffer, name, size))
    else:
        c.private.add(buffer)
        c.line(f"{types.memory_type(buffer.dtype)} {name}[{max(count, 1)}];")
    c.run(s.body)


def _allocate_fragment(c: Context, s: Allocate, name: str, count: int | None, facts: object) -> None:
    """Registers that the threads of a warp hold together: an array of this thread's share of each slot."""
    buffer, machine = s.buffer, c.module.machine
    slot_bytes = int(getattr(facts, "slot_bytes", 0))
    threads = getattr(machine, "threads", None)
    warp = int(getattr(facts, "threads", 0)) or (1 if threads is None else int(threads.warp))
    if count is None:
        raise TargetError(f"buffer {buffer.name!r} in scope {buffer.scope!r} needs a constant size")
    slots = -(-count * buffer.dtype.bytes // slot_bytes)
    words = max(1, slot_bytes // (4 * warp))
    kind = {"float32": "float", "int32": "int32_t"}.get(buffer.dtype.name, "uint32_t")
    c.fragments[buffer] = words
    c.line(f"{kind} {name}[{slots * words}];")
    c.run(s.body)


_STACK_BYTES, _SMALL_STACK_BYTES = 16 * 1024, 1024


def _allocate_plain(c: Context, s: Allocate, name: str, count: int | None) -> None:
    """Plain C: small buffers on the stack, large ones on the heap (without memory the function returns 1), or in what
    the caller gives."""
    buffer, kind = s.buffer, types.memory_type(s.buffer.dtype)
    c.private.add(buffer)
    size = None if count is None else max(count, 1) * buffer.dtype.bytes
    if size is not None and size <= (_STACK_BYTES if c.given is None else _SMALL_STACK_BYTES):
        c.line(f"{kind} {name}[{max(count or 1, 1)}];")
        return c.run(s.body)
    if c.given is not None:
        return _allocate_given(c, s, name, size)
    wanted = f"(size_t)({bare(c.value(elements(buffer)))}) * sizeof({kind})"
    c.line(f"{kind} *{name} = ({kind} *)malloc({wanted} + 1);")
    releases = " ".join(f"free({held});" for held in reversed(c.heap))
    c.line(f"if (!{name}) {{ {releases + ' ' if releases else ''}return 1; }}")
    c.heap.append(name)
    c.run(s.body)
    c.heap.pop()
    c.line(f"free({name});")


def _allocate_given(c: Context, s: Allocate, name: str, size: int | None) -> None:
    """Memory behind that of the buffers around it; what is allocated side by side shares one place."""
    if size is None:
        raise TargetError(f"buffer {s.buffer.name!r} needs a constant size where memory is given, not {s.buffer!r}")
    assert c.given is not None
    kind, start = types.memory_type(s.buffer.dtype), c.given
    c.line(f"{kind} *{name} = ({kind} *)(void *)(scratch + {start});")
    c.given = start + -(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT
    c.most_given = max(c.most_given, c.given)
    c.run(s.body)
    c.given = start


STATEMENTS: dict[type[Stmt], StmtHandler] = {
    Seq: _seq, Let: _let, Evaluate: _evaluate, If: _if, For: _for, Allocate: _allocate, Store: _store,
}  # fmt: skip
EXPRESSIONS: dict[type[Expr], Handler] = {Load: _load, Address: _address, Select: _select_of}

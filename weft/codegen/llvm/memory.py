"""Loads and stores.

    index                          load                        store
    scalar                         load float                  store float
    Ramp(b, 1)                     load <16 x float>           store <16 x float>
    Ramp(b, 0), Broadcast(b)       load float, broadcast       scatter (the last lane wins)
    Ramp(b, -1)                    load <16 x float>, reverse  reverse, store <16 x float>
    Ramp(b, 2)                     two loads and a shuffle     scatter
    two ramps, lanes in turns      two loads and a shuffle     scatter
    b, b + 1, b, b + 1, …          load <2 x float>, broadcast scatter
    any other vector               gather                      scatter

Machines that have no instructions for gathers and scatters get a load or a store for each lane of a ramp.
Under a mask (a predicated Store, an arm of a vector Select) they become masked loads, stores, gathers and scatters;
a scalar that all lanes share is then read only if some lane is on: otherwise from a zero on the stack. Where an index
cannot leave its buffer, the load needs no mask. A masked store to a buffer on this function's own stack is a load, a
select and a store, so that LLVM can still keep the buffer in registers.
"""

from __future__ import annotations

from weft.codegen.llvm import types
from weft.codegen.llvm.analysis import as_ramp, as_spread, divisor, interval, power_of_two
from weft.codegen.llvm.arithmetic import masked
from weft.codegen.llvm.context import Context, Handler
from weft.core.dtypes import DType
from weft.core.errors import InternalError
from weft.expr.nodes import Address, Broadcast, Buffer, Const, Expr, Load, is_true
from weft.loop.ir import Store


def _index(buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
    if len(indices) != 1:
        raise InternalError(f"buffer {buffer.name!r} has {len(indices)} indices: the program was not flattened")
    if buffer.dtype.is_packed:
        raise InternalError(f"buffer {buffer.name!r} has the packed dtype {buffer.dtype}: it should have become bytes")
    return indices[0]


def _alignment(c: Context, buffer: Buffer, index: Expr) -> int:
    """What the address of an element is known to be a multiple of."""
    found = c.multiples.get((buffer, index))
    if found is None:
        known, size = c.aligned.get(buffer, 1), buffer.dtype.bytes
        found = max(min(known, power_of_two(divisor(index, c.divisors) * size)), min(size, known))
        c.multiples[buffer, index] = found
    return found


def _from_memory(c: Context, value: str, dtype: DType) -> str:
    if not dtype.is_bool:
        return value
    return c.once(f"icmp ne {types.memory_type(dtype)} {value}, {types.splat('i8', '0', dtype.lanes)}")


def _to_memory(c: Context, value: str, dtype: DType) -> str:
    if not dtype.is_bool:
        return value
    return c.once(f"zext {types.llvm_type(dtype)} {value} to {types.memory_type(dtype)}")


def _in_bounds(c: Context, buffer: Buffer, index: Expr) -> bool:
    """Whether an index is inside a buffer of constant size whatever happens."""
    size = 1
    for extent in buffer.shape:
        if not isinstance(extent, Const) or buffer.strides is not None:
            return False
        size *= extent.value
    low, high = interval(index, c.ranges)
    return low is not None and high is not None and low >= 0 and high < size


def _load(c: Context, e: Load) -> str:
    if c.mask is not None:
        return _loaded(c, e)
    known = c.loaded.setdefault(c.module.access(e.buffer), {})
    found = known.get(e)  # copies of a loop share what they load
    if found is None:
        found = known[e] = _loaded(c, e)
    return found


def _loaded(c: Context, e: Load) -> str:
    index = _index(e.buffer, e.indices)
    if index.dtype.lanes == 1:
        return _from_memory(c, _load_scalar(c, e.buffer, index), e.dtype)
    ramp = as_ramp(index, c.definitions)
    stride = ramp[1].value if ramp is not None and isinstance(ramp[1], Const) else None
    mask = None if c.mask is None or _in_bounds(c, e.buffer, index) else c.mask
    if ramp is not None and stride == 0:
        one = _load_scalar(c, e.buffer, ramp[0])
        value = c.broadcast(types.memory_type(e.buffer.dtype), one, e.dtype.lanes)
    elif ramp is not None and stride == 1:
        align = _alignment(c, e.buffer, ramp[0])
        value = _load_vector(c, e.buffer, ramp[0], e.dtype.lanes, align, mask)
    elif ramp is not None and stride == -1:
        value = _load_reversed(c, e.buffer, ramp[0], e.dtype.lanes, mask)
    elif ramp is not None and stride == 2 and (mask is None or _loads_lanes(c, e)):
        value = _load_even(c, e.buffer, ramp[0], e.dtype.lanes, mask)
    elif ramp is None and mask is None and (pair := _two_ramps(c, index)) is not None:
        value = _load_in_turns(c, e.buffer, *pair, e.dtype.lanes // 2)
    elif ramp is None and mask is None and (few := _repeated(c, index)) is not None:
        kind, align = f"<{few[1]} x {types.memory_type(e.buffer.dtype)}>", _alignment(c, e.buffer, few[0])
        some = _load_vector(c, e.buffer, few[0], few[1], align, None)
        value = c.shuffle(kind, some, "poison", [lane % few[1] for lane in range(e.dtype.lanes)])
    else:
        value = _gather(c, e.buffer, index, ramp, e.dtype.lanes, mask)
    return _from_memory(c, value, e.dtype)


def _load_scalar(c: Context, buffer: Buffer, index: Expr) -> str:
    kind, align = types.memory_type(buffer.dtype), min(buffer.dtype.bytes, c.aligned.get(buffer, 1))
    access = c.module.access(buffer)
    if c.mask is None or _in_bounds(c, buffer, index):
        return c.load(f"load {kind}, ptr {c.element(buffer, index)}, align {align}", access)
    assert c.any_lane is not None
    some = c.any_lane()
    nothing = c.alloca("i64", 8)
    c.entry.append(f"  store i64 0, ptr {nothing}, align 8")
    pointer = c.element(buffer, index, "")
    chosen = c.once(f"select i1 {some}, ptr {pointer}, ptr {nothing}")
    return c.emit(f"load {kind}, ptr {chosen}, align {align}{access}")


def _load_vector(c: Context, buffer: Buffer, index: str | Expr, lanes: int, align: int, mask: str | None) -> str:
    kind = f"<{lanes} x {types.memory_type(buffer.dtype)}>"
    if mask is None:
        return c.load(f"load {kind}, ptr {c.element(buffer, index)}, align {align}", c.module.access(buffer))
    pointer = c.element(buffer, index, "")
    name = f"llvm.masked.load.{types.mangle(kind)}.p0"
    c.module.declare(kind, name, ["ptr", f"<{lanes} x i1>", kind])
    arguments = f"ptr align {align} {pointer}, <{lanes} x i1> {mask}, {kind} zeroinitializer"
    return c.load(f"call {kind} @{name}({arguments})", c.module.access(buffer))


def _reverse(c: Context, value: str, kind: str, lanes: int) -> str:
    return c.shuffle(kind, value, "poison", range(lanes - 1, -1, -1))


def _load_reversed(c: Context, buffer: Buffer, base: Expr, lanes: int, mask: str | None) -> str:
    kind = f"<{lanes} x {types.memory_type(buffer.dtype)}>"
    start = c.once(f"sub i64 {c.value(base)}, {lanes - 1}")
    mask = None if mask is None else _reverse(c, mask, f"<{lanes} x i1>", lanes)
    return _reverse(c, _load_vector(c, buffer, start, lanes, _scalar_align(c, buffer), mask), kind, lanes)


def _scalar_align(c: Context, buffer: Buffer) -> int:
    return min(buffer.dtype.bytes, c.aligned.get(buffer, 1))


def _loads_lanes(c: Context, e: Load) -> bool:
    """Whether a masked load of a whole vector is an instruction: then two of them are quicker than a gather."""
    return (
        e.dtype.lanes % 2 == 0 and e.dtype.bits >= 32 and not {"avx2", "avx512f"}.isdisjoint(c.module.machine.features)
    )


def _load_even(c: Context, buffer: Buffer, base: Expr, lanes: int, mask: str | None) -> str:
    """Every second element: two whole loads that end exactly at the last one wanted, and a shuffle."""
    kind = f"<{lanes} x {types.memory_type(buffer.dtype)}>"
    index = c.value(base)
    picks = [2 * i if 2 * i < lanes else 2 * i + 1 for i in range(lanes)]

    def lanes_on(start: int) -> str | None:
        """The mask of one of the loads: on where an element that is on is picked from it."""
        if mask is None:
            return None
        owners = [picks.index(place) if place in picks else lanes for place in range(start, start + lanes)]
        return c.shuffle(f"<{lanes} x i1>", mask, "zeroinitializer", owners)

    first = _load_vector(c, buffer, index, lanes, _alignment(c, buffer, base), lanes_on(0))
    after = c.once(f"add i64 {index}, {lanes - 1}")
    second = _load_vector(c, buffer, after, lanes, _scalar_align(c, buffer), lanes_on(lanes))
    return c.shuffle(kind, first, second, picks)


def _two_ramps(c: Context, index: Expr) -> tuple[Expr, int, int] | None:
    """A base, and where from it two ramps begin that take turns in the lanes of an index; None for any other."""
    found = as_spread(index, c.definitions, c.divisors)
    if found is None or len(found[1]) % 2:
        return None
    base, offsets = found
    first, second = offsets[:2]
    wanted = tuple(start + i for i in range(len(offsets) // 2) for start in (first, second))
    return (base, first, second) if offsets == wanted else None


def _repeated(c: Context, index: Expr) -> tuple[Expr, int] | None:
    """A base and how many elements from it on all lanes of an index repeat, in order; None for any other."""
    found = as_spread(index, c.definitions, c.divisors)
    count = 0 if found is None else max(found[1]) + 1
    if found is None or count < 2 or found[1] != tuple(lane % count for lane in range(len(found[1]))):
        return None
    return found[0], count


def _load_in_turns(c: Context, buffer: Buffer, base: Expr, first: int, second: int, half: int) -> str:
    """Two ramps of `half` lanes each, woven together."""
    kind, start = f"<{half} x {types.memory_type(buffer.dtype)}>", c.value(base)
    places = [c.once(f"add i64 {start}, {offset}") for offset in (first, second)]
    one, other = (_load_vector(c, buffer, place, half, _scalar_align(c, buffer), None) for place in places)
    return c.shuffle(kind, one, other, [side * half + i for i in range(half) for side in (0, 1)])


def _pointers(c: Context, buffer: Buffer, index: Expr, ramp: tuple[Expr, Expr] | None, lanes: int) -> str:
    """A pointer for each lane; a ramp of constant stride is one pointer and constant offsets."""
    element = types.memory_type(buffer.dtype)
    if ramp is not None and isinstance(ramp[1], Const):
        start = c.element(buffer, ramp[0], "")
        offsets = types.constant_vector("i64", [ramp[1].value * lane for lane in range(lanes)])
        return c.once(f"getelementptr {element}, ptr {start}, <{lanes} x i64> {offsets}")
    return c.once(f"getelementptr {element}, ptr {c.base(buffer)}, <{lanes} x i64> {c.value(index)}")


_GATHERS, _SCATTERS = frozenset({"avx2", "avx512f", "sve", "v"}), frozenset({"avx512f", "sve", "v"})
"""What a processor has that loads, or stores, the lanes of a vector wherever they lie."""


def _places(
    c: Context, buffer: Buffer, ramp: tuple[Expr, Expr] | None, lanes: int, wanted: frozenset[str]
) -> list[str]:
    """A pointer for each lane of a ramp of constant stride, where lanes are loaded and stored one by one anyway: LLVM
    would compute them in vectors, and take these apart. None where the processor has what is wanted for all of them."""
    if ramp is None or not isinstance(ramp[1], Const) or wanted & c.module.machine.features:
        return []
    start, element = c.element(buffer, ramp[0], ""), types.memory_type(buffer.dtype)
    steps = [ramp[1].value * lane for lane in range(lanes)]
    return [c.once(f"getelementptr {element}, ptr {start}, i64 {step}") if step else start for step in steps]


def _gather(
    c: Context, buffer: Buffer, index: Expr, ramp: tuple[Expr, Expr] | None, lanes: int, mask: str | None
) -> str:
    element = types.memory_type(buffer.dtype)
    kind = f"<{lanes} x {element}>"
    if mask is None and (places := _places(c, buffer, ramp, lanes, _GATHERS)):
        value = "poison"
        for lane, place in enumerate(places):
            one = c.load(f"load {element}, ptr {place}, align {_scalar_align(c, buffer)}", c.module.access(buffer))
            value = c.once(f"insertelement {kind} {value}, {element} {one}, i32 {lane}")
        return value
    pointers = _pointers(c, buffer, index, ramp, lanes)
    mask = mask or types.splat("i1", "true", lanes)
    arguments = [
        f"<{lanes} x ptr> align {_scalar_align(c, buffer)} {pointers}", f"<{lanes} x i1> {mask}",
        f"{kind} zeroinitializer",
    ]  # fmt: skip
    name = f"llvm.masked.gather.{types.mangle(kind)}.v{lanes}p0"
    return c.call(kind, name, arguments, c.module.access(buffer))


def _address(c: Context, e: Address) -> str:
    return c.pointer(e)


# --------------------------------------------------------------------------------------------------------- stores


def store(c: Context, s: Store) -> None:
    """A Store, with or without a predicate."""
    predicate = s.predicate
    if predicate is None or is_true(predicate):
        return _store(c, s, None)
    if isinstance(predicate, Broadcast):
        predicate = predicate.value
    if predicate.dtype.lanes == 1:
        then, done = c.new_label("store"), c.new_label("stored")
        c.branch_if(c.value(predicate), then, done)
        c.start(then)
        _store(c, s, None)
        c.branch(done)
        return c.start(done)
    _store(c, s, c.value(predicate), predicate)


def _store(c: Context, s: Store, mask: str | None, predicate: Expr | None = None) -> None:
    buffer, index = s.buffer, _index(s.buffer, s.indices)
    lanes = index.dtype.lanes
    if s.value.dtype.lanes not in (1, lanes):
        raise InternalError(f"store of {s.value.dtype} to {lanes} lanes of buffer {buffer.name!r}")
    value = c.value(s.value) if mask is None else masked(c, s.value, mask, lanes, predicate)
    value = _to_memory(c, value, s.value.dtype)
    element = types.memory_type(buffer.dtype)
    if s.value.dtype.scalar is not buffer.dtype:
        raise InternalError(f"store of {s.value.dtype} to buffer {buffer.name!r} of {buffer.dtype}")
    if lanes == 1:
        c.stored.append((buffer, index))
        pointer = c.element(buffer, index)
        align = _scalar_align(c, buffer)
        return c.store(f"store {element} {value}, ptr {pointer}, align {align}", c.module.access(buffer))
    kind = f"<{lanes} x {element}>"
    if s.value.dtype.lanes == 1:
        value = c.broadcast(element, value, lanes)
    ramp = as_ramp(index, c.definitions)
    stride = ramp[1].value if ramp is not None and isinstance(ramp[1], Const) else None
    if ramp is not None and stride == 1:
        place, align = ramp[0], _alignment(c, buffer, ramp[0])
        if mask is not None and buffer in c.private and _in_bounds(c, buffer, index):
            old = _load_vector(c, buffer, place, lanes, align, None)
            value, mask = c.once(f"select <{lanes} x i1> {mask}, {kind} {value}, {kind} {old}"), None
        _store_vector(c, buffer, place, value, lanes, align, mask)
    elif ramp is not None and stride == -1:
        start = c.once(f"sub i64 {c.value(ramp[0])}, {lanes - 1}")
        mask = None if mask is None else _reverse(c, mask, f"<{lanes} x i1>", lanes)
        _store_vector(c, buffer, start, _reverse(c, value, kind, lanes), lanes, _scalar_align(c, buffer), mask)
    else:
        _scatter(c, buffer, index, ramp, value, lanes, mask)
    if mask is None:
        c.stored.append((buffer, index))


def _store_vector(
    c: Context, buffer: Buffer, index: str | Expr, value: str, lanes: int, align: int, mask: str | None
) -> None:
    kind = f"<{lanes} x {types.memory_type(buffer.dtype)}>"
    if mask is None:
        pointer = c.element(buffer, index)
        return c.store(f"store {kind} {value}, ptr {pointer}, align {align}", c.module.access(buffer))
    pointer = c.element(buffer, index, "")
    name = f"llvm.masked.store.{types.mangle(kind)}.p0"
    value = _fenced(c, buffer, value, lanes)
    c.module.declare("void", name, [kind, "ptr", f"<{lanes} x i1>"])
    arguments = f"{kind} {value}, ptr align {align} {pointer}, <{lanes} x i1> {mask}"
    c.store(f"call void @{name}({arguments})", c.module.access(buffer))


def _fenced(c: Context, buffer: Buffer, value: str, lanes: int) -> str:
    """Keeps LLVM from making one instruction of a truncation and a masked store.

    Where the mask turns out to be one lane, LLVM 22 then stores the element before the truncation: 4 bytes for 1.
    """
    words, rest = divmod(lanes * buffer.dtype.bits, 32)
    if buffer.dtype.bits not in (8, 16) or rest or "avx512bw" not in c.module.machine.features:
        return value
    kind, fence = f"<{lanes} x {types.memory_type(buffer.dtype)}>", types.vector("float", words)
    bits = c.once(f"bitcast {kind} {value} to {fence}")
    kept = c.call(fence, f"llvm.arithmetic.fence.{types.mangle(fence)}", [f"{fence} {bits}"])
    return c.once(f"bitcast {fence} {kept} to {kind}")


def _scatter(
    c: Context, buffer: Buffer, index: Expr, ramp: tuple[Expr, Expr] | None, value: str, lanes: int, mask: str | None
) -> None:
    element = types.memory_type(buffer.dtype)
    kind = f"<{lanes} x {element}>"
    if mask is None and (places := _places(c, buffer, ramp, lanes, _SCATTERS)):
        for lane, place in enumerate(places):
            one = c.once(f"extractelement {kind} {value}, i32 {lane}")
            c.store(f"store {element} {one}, ptr {place}, align {_scalar_align(c, buffer)}", c.module.access(buffer))
        return
    pointers = _pointers(c, buffer, index, ramp, lanes)
    name = f"llvm.masked.scatter.{types.mangle(kind)}.v{lanes}p0"
    arguments = [
        f"{kind} {value}", f"<{lanes} x ptr> align {_scalar_align(c, buffer)} {pointers}",
        f"<{lanes} x i1> {mask or types.splat('i1', 'true', lanes)}",
    ]  # fmt: skip
    c.call("void", name, arguments, c.module.access(buffer))


TABLE: dict[type[Expr], Handler] = {Load: _load, Address: _address}

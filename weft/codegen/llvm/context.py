"""The text of an LLVM module, and of the function that is being written.

`Module` collects declarations, finished functions and metadata. `Context` writes one function: it knows the LLVM value
of every variable in scope, the pointer of every buffer, and the lanes that are switched on (`mask`).

An intrinsic's emitter is a function `(context, call) -> value`; what it may use of a Context:

    value(expr)            the LLVM value of an expression          typed(expr)    "i64 %v3"
    pointer(address)       the pointer an Address stands for        constant(expr) the int of a literal
    slot(address)          the number of the register (or bank) that an Address in a slot scope stands for
    call(result, name, [typed arguments])   calls (and declares) a function; result "void" gives ""
    emit(text)             one instruction with a result            line(text)     one without
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from weft.codegen.llvm import types
from weft.codegen.llvm.analysis import Interval
from weft.core import model
from weft.core.errors import InternalError, TargetError
from weft.expr.nodes import Add, Address, Broadcast, Buffer, Call, Const, Expr, Load, Mul, Sub, Var
from weft.expr.visit import free_vars


class Machine(Protocol):
    """What the generator asks of a target (`weft.targets.base.Target` has it all)."""

    @property
    def name(self) -> str:
        """How a person names the target."""

    @property
    def triple(self) -> str:
        """The LLVM triple."""

    @property
    def cpu(self) -> str:
        """The LLVM name of the processor."""

    @property
    def features(self) -> frozenset[str]:
        """What the processor has, as LLVM names it: "avx2", "fma"."""

    @property
    def is_host(self) -> bool:
        """Whether this process can run its code."""

    @property
    def has_fma(self) -> bool:
        """Whether a fused multiply-add is one instruction."""

    @property
    def vector_bytes(self) -> int:
        """Bytes of one vector register; 0 where there are none."""

    @property
    def vector_registers(self) -> int:
        """How many vector registers there are."""

    @property
    def scopes(self) -> Mapping[str, Any]:
        """The memory scopes, by name."""


Handler = Callable[["Context", Any], str]
Emitter = Callable[["Context", Call], str]
StmtHandler = Callable[["Context", Any], None]


SUMS_IN_MEMORY = "\n; sums stay in memory"
"""What the text of a module says where a loop stores to one place in all its rounds."""

Home = tuple[int, list[str]]
"""Where instructions that need just a variable can still be added: how many names are known there, and lines."""


class Walk:
    """The pointers that go along with a loop, one step further in each round."""

    def __init__(self) -> None:
        self.pointers: dict[tuple[str, str, int], tuple[str, str]] = {}
        """What each is called, here and in the next round, by the type of the elements, its start and its step."""

    def starts(self, before: str, latch: str) -> list[str]:
        """Where the pointers come from, in the first round and in the others."""
        return [
            f"  {name} = phi ptr [ {start}, %{before} ], [ {following}, %{latch} ]"
            for (_, start, _), (name, following) in self.pointers.items()
        ]

    def steps(self) -> list[str]:
        """The pointers of the next round."""
        return [
            f"  {following} = getelementptr {kind}, ptr {name}, i64 {step}"
            for (kind, _, step), (name, following) in self.pointers.items()
        ]


class Module:
    """An LLVM module as text, and what all its functions share."""

    def __init__(self, machine: Machine, intrinsics: Mapping[str, Emitter]) -> None:
        self.machine = machine
        self.intrinsics = intrinsics
        self.expressions: Mapping[type[Expr], Handler] = {}
        self.statements: Mapping[type[Any], StmtHandler] = {}
        self.declarations: dict[str, str] = {}
        self.functions: list[str] = []
        self.helpers: set[str] = set()
        self.metadata: list[str] = ["!0 = distinct !{!0}"]
        self.symbol = "main"
        self.note = ""
        """What LLVM should know and cannot be told: `SUMS_IN_MEMORY`."""
        self.overlapping: set[str] = set()
        """Parameters that the caller may place into one another's memory: nothing is promised about those."""
        self._access: dict[Buffer | None, tuple[int, str]] = {}
        self.is_aarch64 = machine.triple.startswith(("aarch64", "arm64"))
        self.is_placed = self.is_aarch64 or machine.triple.startswith(("x86_64", "i386", "i686"))
        """Whether addresses are written as they are to be computed: see `Context.element`."""

    def declare(self, result: str, name: str, parameters: Sequence[str]) -> None:
        """Makes sure that a function is declared."""
        if name not in self.declarations and name not in self.helpers:
            self.declarations[name] = f"declare {result} {types.quote(name)}({', '.join(parameters)})"

    def access(self, buffer: Buffer) -> str:
        """Metadata for a load or store: buffers do not overlap each other, but for those said to."""
        key = None if buffer.name in self.overlapping else buffer
        found = self._access.get(key)
        if found is None:
            number = self.reserve(3)
            found = (number, f", !alias.scope !{number + 1}, !noalias !{number + 2}")
            self._access[key] = found
        return found[1]

    def reserve(self, count: int = 1) -> int:
        """Numbers for metadata nodes whose text comes later."""
        first = len(self.metadata)
        self.metadata.extend([""] * count)
        return first

    def loop_metadata(self, *hints: str) -> str:
        """The attachment of a loop's latch."""
        number = self.reserve()
        nodes = []
        for hint in hints:
            self.metadata.append(f"!{len(self.metadata)} = !{{{hint}}}")
            nodes.append(f"!{len(self.metadata) - 1}")
        self.metadata[number] = f"!{number} = distinct !{{{', '.join([f'!{number}', *nodes])}}}"
        return f", !llvm.loop !{number}"

    def text(self) -> str:
        """The whole module."""
        numbers = {buffer: number for buffer, (number, _) in self._access.items()}
        for number in numbers.values():
            others = ", ".join(f"!{other}" for other in numbers.values() if other != number)
            self.metadata[number] = f"!{number} = distinct !{{!{number}, !0}}"
            self.metadata[number + 1] = f"!{number + 1} = !{{!{number}}}"
            self.metadata[number + 2] = f"!{number + 2} = !{{{others}}}"
        head = f'target triple = "{self.machine.triple}"'
        return "\n".join([head, *self.declarations.values(), *self.functions, *self.metadata]) + self.note + "\n"


class Context:
    """One LLVM function being written."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.lines: list[str | list[str]] = []
        self.homes: dict[Var, Home] = {}
        self.sums: dict[Var, list[tuple[Home, str, int]]] = {}
        """Variables of this function that are sums of such with homes."""
        self.late: dict[str, str] = {}
        self.walks: dict[str, Walk] = {}
        """Loops that pointers may go along with, by the value of their variable."""
        self.common: dict[str, str] = {}
        self.near: dict[tuple[Buffer, Expr], str] = {}
        """The addresses of this block, without what is constant in their indices."""
        self.multiples: dict[tuple[Buffer, Expr], int] = {}
        """What addresses of this block are multiples of."""
        self.loaded: dict[str, dict[str | Expr, str]] = {}
        """The loads of this block that nothing was stored over, by what is known of their buffer."""
        self.loops = 0
        """How many loops are written."""
        self.stored: list[tuple[Buffer, Expr]] = []
        """The stores of the innermost loop."""
        self.indexing: set[Var] = set()
        """The variables in indices of buffers on the stack."""
        self.entry: list[str] = []
        self.values: dict[Var, str] = {}
        self.pointers: dict[Buffer, str] = {}
        self.aligned: dict[Buffer, int] = {}
        self.private: set[Buffer] = set()
        self.base_slots: dict[Buffer, int] = {}
        self.slots_used: dict[str, int] = {}
        self.ranges: dict[Var, Interval] = {}
        self.divisors: dict[Var, int] = {}
        self.definitions: dict[Var, Expr] = {}
        self.mask: str | None = None
        self.mask_source: Expr | None = None
        self.any_lane: Callable[[], str] | None = None
        self.heap: list[str] = []
        self.outlined = False
        self.flags: dict[int, str] = {}
        self.abreast: dict[int, str] = {}
        """Results, in float32, of calls that were computed with others."""
        self.label = "entry"
        self._count = 0
        self._handlers = module.expressions
        self._stmt_handlers = module.statements

    # ------------------------------------------------------------------------------------------------ instructions

    @property
    def known(self) -> int:
        """How many names there are."""
        return self._count

    def is_made(self, index: Expr, count: int) -> bool:
        """Whether an index needs what was computed or loaded since so many names were known."""
        values = [self.values.get(var, "") for var in free_vars(index)]
        return bool(index.holds & (Load.bit | Call.bit)) or any(v[:2] == "%v" and int(v[2:]) > count for v in values)

    def fresh(self) -> str:
        """A new local name."""
        self._count += 1
        return f"%v{self._count}"

    def emit(self, text: str) -> str:
        """One instruction; its result."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {text}")
        return name

    def once(self, text: str) -> str:
        """One instruction that reads no memory; its result, or that of the same one earlier in this block."""
        found = self.common.get(text)
        if found is None:
            found = self.common[text] = self.emit(text)
        return found

    def load(self, text: str, access: str) -> str:
        """A load; its result, or that of the same one earlier in this block. `access`: see `Module.access`."""
        known = self.loaded.setdefault(access, {})
        found = known.get(text)
        if found is None:
            found = known[text] = self.emit(text + access)
        return found

    def store(self, text: str, access: str) -> None:
        """A store: what was loaded from its buffer may be another value now."""
        self.lines.append(f"  {text}{access}")
        self.loaded.pop(access, None)

    def line(self, text: str) -> None:
        """One instruction without a result; it may have changed any memory."""
        self.lines.append("  " + text)
        self.loaded = {}

    def new_label(self, hint: str) -> str:
        """A new label, not placed yet."""
        self._count += 1
        return f"{hint}.{self._count}"

    def start(self, label: str) -> None:
        """Places a label: what follows belongs to its block."""
        self.lines.append(f"{label}:")
        self.label = label
        self.common, self.loaded, self.near, self.multiples = {}, {}, {}, {}

    def branch(self, label: str) -> None:
        """Jumps."""
        self.line(f"br label %{label}")

    def branch_if(self, condition: str, then: str, otherwise: str, attachment: str = "") -> None:
        """Jumps to one of two labels."""
        self.line(f"br i1 {condition}, label %{then}, label %{otherwise}{attachment}")

    def call(self, result: str, name: str, arguments: Sequence[str], attachment: str = "") -> str:
        """Calls a function, which is declared if it has to be. Arguments carry their types: "i64 %v3"."""
        self.module.declare(result, name, [_type_of(argument) for argument in arguments])
        text = f"call {result} {types.quote(name)}({', '.join(arguments)}){attachment}"
        if result == "void":
            self.line(text)
            return ""
        if not name.startswith("llvm."):
            self.loaded = {}
        return self.emit(text)

    def intrinsic(self, name: str, type_text: str, *arguments: str) -> str:
        """Calls an overloaded LLVM intrinsic whose result and arguments are all of one type."""
        name = f"{name}.{types.mangle(type_text)}"
        self.module.declare(type_text, name, [type_text] * len(arguments))
        return self.once(f"call {type_text} {types.quote(name)}({', '.join([f'{type_text} {a}' for a in arguments])})")

    def alloca(self, type_text: str, alignment: int) -> str:
        """Stack memory of the function, taken once at its start."""
        name = self.fresh()
        self.entry.append(f"  {name} = alloca {type_text}, align {alignment}")
        return name

    def broadcast(self, element: str, value: str, lanes: int) -> str:
        """A scalar in every lane."""
        if lanes == 1:
            return value
        if value[0] != "%":
            return types.splat(element, value, lanes)
        kind = f"<{lanes} x {element}>"
        first = self.once(f"insertelement {kind} poison, {element} {value}, i64 0")
        return self.once(f"shufflevector {kind} {first}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def shuffle(self, kind: str, a: str, b: str, order: Sequence[int]) -> str:
        """Some of the lanes of two vectors of a type."""
        picks = types.constant_vector("i32", order)
        return self.once(f"shufflevector {kind} {a}, {kind} {b}, <{len(order)} x i32> {picks}")

    def joined(self, element: str, values: Sequence[str], lanes: int) -> str:
        """Vectors of so many lanes, 1, 2, 4… of them, as one."""
        while len(values) > 1:
            pairs, order = zip(values[::2], values[1::2]), range(2 * lanes)
            values, lanes = [self.shuffle(types.vector(element, lanes), *pair, order) for pair in pairs], 2 * lanes
        return values[0]

    def part(self, element: str, value: str, lanes: int, first: int, count: int) -> str:
        """Lanes of a vector, from the first on."""
        if lanes == count or value == "zeroinitializer":
            return value
        return self.shuffle(types.vector(element, lanes), value, "poison", range(first, first + count))

    def guarded(self, condition: str, type_text: str, make: Callable[[], str], otherwise: Callable[[], str]) -> str:
        """`make()` in a block that runs only where the condition holds, else `otherwise()`; their common result."""
        then, other, done = self.new_label("then"), self.new_label("else"), self.new_label("join")
        self.branch_if(condition, then, other)
        self.start(then)
        a, from_a = make(), self.label
        self.branch(done)
        self.start(other)
        b, from_b = otherwise(), self.label
        self.branch(done)
        self.start(done)
        return self.emit(f"phi {type_text} [ {a}, %{from_a} ], [ {b}, %{from_b} ]")

    # ------------------------------------------------------------------------------------------------- expressions

    def value(self, e: Expr) -> str:
        """The LLVM value of an expression."""
        return self._handlers[type(e)](self, e)

    def typed(self, e: Expr) -> str:
        """The LLVM value of an expression with its type in front."""
        return f"{types.llvm_type(e.dtype)} {self.value(e)}"

    def constant(self, e: Expr) -> int:
        """The value of an integer literal; anything else is an error."""
        if isinstance(e, Broadcast):
            e = e.value
        if isinstance(e, Const) and not e.dtype.is_float:
            return int(e.value)
        raise TargetError(f"an intrinsic of {self.module.machine.name} needs a constant here, not {e!r}")

    def pointer(self, e: Expr) -> str:
        """The pointer that an Address stands for."""
        if not isinstance(e, Address):
            return self.value(e)
        return self.element(e.buffer, e.indices[0], "")

    def element(self, buffer: Buffer, index: str | Expr, flags: str = " inbounds") -> str:
        """The address of an element: what it has in common with others first, then the constant.

        LLVM brings addresses into that form itself, one by one: given it, it takes a tenth less time, and finds shorter
        code. It is then told to leave them so (`child._SETTINGS`), which takes away half of the time for machine code.
        """
        base, kind = self.base(buffer), types.memory_type(buffer.dtype)
        if self.module.is_placed and (type(index) is Add or type(index) is Sub) and type(index.b) is Const:
            near = self.near.get((buffer, index.a))  # copies of a loop share what their indices have in common
            if near is None:
                near = self.place(buffer, base, kind, index.a)
                near = near or self.once(f"getelementptr {kind}, ptr {base}, i64 {self.value(index.a)}")
                self.near[buffer, index.a] = near
            offset = index.b.value * buffer.dtype.bytes
            return self.once(f"getelementptr i8, ptr {near}, i64 {offset if type(index) is Add else -offset}")
        if self.module.is_placed and not isinstance(index, str):
            found = self.place(buffer, base, kind, index)
            if found is not None:
                return found
        number = index if isinstance(index, str) else self.value(index)
        return base if number == "0" else self.once(f"getelementptr{flags} {kind}, ptr {base}, i64 {number}")

    def place(self, buffer: Buffer, base: str, kind: str, index: Expr) -> str | None:
        """The address of an element, each term of its index added where its variable gets its value: what LLVM's motion
        out of loops would do, if it were asked. None where no term is just a variable's.
        """
        if buffer in self.private:
            self.indexing.update(free_vars(index))
            return None
        homed, rest = self.terms(index)
        place = base
        for (names, lines), value, factor in sorted(homed, key=lambda step: step[0][0]):
            if base.startswith("%v") and int(base[2:]) > names:
                return None
            walk = self.walks.get(value)
            if walk is not None and (pointer := self._along(walk, kind, place, factor)):
                place = pointer
                continue
            if factor != 1:
                value = self._late(lines, f"mul i64 {value}, {factor}")
            place = self._late(lines, f"getelementptr {kind}, ptr {place}, i64 {value}")
        for term in rest if homed else ():
            place = self.once(f"getelementptr {kind}, ptr {place}, i64 {self.value(term)}")
        return place if homed else None

    def _along(self, walk: Walk, kind: str, start: str, step: int) -> str | None:
        """A pointer that goes along with a loop; None where registers would not hold one more."""
        found = walk.pointers.get((kind, start, step))
        if found is None and len(walk.pointers) < model.WALKING_POINTERS:
            found = walk.pointers[kind, start, step] = self.fresh(), self.fresh()
        return found and found[0]

    def _late(self, lines: list[str], text: str) -> str:
        found = self.late.get(text)
        if found is None:
            found = self.late[text] = self.fresh()
            lines.append(f"  {found} = {text}")
        return found

    def terms(self, index: Expr) -> tuple[list[tuple[Home, str, int]], list[Expr]]:
        """The terms of a sum: those that are a variable with a home, each with its factor, and the others."""
        if type(index) is Add:
            (homed, rest), (more, others) = self.terms(index.a), self.terms(index.b)
            return homed + more, rest + others
        var, factor = (index.a, index.b.value) if type(index) is Mul and type(index.b) is Const else (index, 1)
        if type(var) is not Var or var not in self.homes:
            return [], [index]
        if factor == 1 and var in self.sums:
            return self.sums[var], []
        return [(self.homes[var], self.values[var], factor)], []

    def settle(self, *variables: Var) -> None:
        """Notes that these variables have their values here."""
        lines: list[str] = []
        self.lines.append(lines)
        self.homes.update(dict.fromkeys(variables, (self._count, lines)))

    def base(self, buffer: Buffer) -> str:
        """The base pointer of a buffer."""
        found = self.pointers.get(buffer)
        if found is not None:
            return found
        if buffer in self.base_slots:
            raise TargetError(
                f"buffer {buffer.name!r} lives in scope {buffer.scope!r}, which has no addresses: "
                "only intrinsics of that scope can read or write it"
            )
        raise InternalError(f"buffer {buffer.name!r} is used but is neither a parameter nor allocated")

    def slot(self, e: Expr) -> int:
        """The number of the slot that an Address in a slot scope stands for."""
        if not isinstance(e, Address) or e.buffer not in self.base_slots:
            raise TargetError(
                f"an intrinsic of {self.module.machine.name} needs an address in a register scope, not {e!r}"
            )
        facts = self.module.machine.scopes[e.buffer.scope]
        offset = self.constant(e.indices[0]) * e.buffer.dtype.bytes
        return self.base_slots[e.buffer] + offset // int(facts.slot_bytes)

    # -------------------------------------------------------------------------------------------------- statements

    def run(self, s: Any) -> None:
        """Writes a statement."""
        handler = self._stmt_handlers.get(type(s))
        if handler is None:
            raise TargetError(
                f"{type(s).__name__} cannot be compiled: the program was not lowered before code generation"
            )
        handler(self, s)

    def text(self, header: str) -> str:
        """The finished function."""
        lines = [line for one in self.lines for line in ((one,) if type(one) is str else one)]
        return "\n".join([header + " {", "entry:", *self.entry, *lines, "}"])


def _type_of(argument: str) -> str:
    """The type in front of a typed argument: "<16 x float> align 4 %v" has "<16 x float>"."""
    if argument[0] == "<":
        return argument[: argument.index(">") + 1]
    return argument.split(" ", 1)[0]

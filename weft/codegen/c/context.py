"""The text of C sources, and of the function that is being written.

`Module` collects helper functions and finished functions of one source. `Context` writes one function: it knows the C
name of every variable and buffer in scope, and puts out statements at the right depth.

An expression of several lanes is one text for each lane: a vector is never a value of C, only loads and stores are
wide. So an intrinsic's emitter is a function `(context, call) -> text | list of texts`; what it may use of a Context:

    value(expr)            the text of a scalar                     lanes(expr)     the texts of each lane
    pointer(address)       the pointer an Address stands for        constant(expr)  the int of a literal
    fragment(address)      the registers an Address in a slot scope stands for, as a pointer
    line(text)             one statement                            temporary(type, text)   names a value
    helper(name, text)     makes sure that a function of the target's own stands above
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from weft.codegen.c import types
from weft.codegen.c.dialects import Dialect
from weft.codegen.c.helpers import helper_text, used_helpers
from weft.codegen.llvm.analysis import Interval
from weft.codegen.llvm.context import Machine
from weft.core.dtypes import INDEX, INT32
from weft.core.errors import InternalError, TargetError
from weft.expr.nodes import Address, Broadcast, Buffer, Call, Cast, Const, Expr, Var

Handler = Callable[["Context", Any], list[str]]
Emitter = Callable[["Context", Call], Union[str, list[str]]]
StmtHandler = Callable[["Context", Any], None]

_RESERVED = frozenset(
    # C, C++ and OpenCL keywords; macros of compilers; what generated code itself calls
    """alignas alignof and and_eq asm atomic auto bitand bitor bool break case catch char class compl complex concept
    const const_cast constexpr continue decltype default delete do double dynamic_cast else enum event_t explicit
    export extern false float for friend global goto half if image1d_t image2d_t image3d_t imaginary inline int kernel
    local constant private generic long mutable namespace new noexcept not not_eq nullptr operator or or_eq pipe
    private protected public quad read_only read_write register reinterpret_cast requires restrict return sampler_t
    short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try
    typedef typeid typename typeof uchar uint ulong union unsigned ushort using vec_step virtual void volatile wchar_t
    while write_only xor xor_eq linux unix i386 NAN NULL EOF main args threads scratch code
    barrier get_group_id get_local_id blockIdx threadIdx blockDim gridDim warpSize memcpy malloc free
    abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf exp exp2 expm1 fabs floor fma fmod log log10
    log1p log2 max min pow rint round rsqrt sin sinh sqrt tan tanh trunc clz popcount vload_half
    size_t ptrdiff_t""".split()
)
_TYPES = re.compile(r"(u?int\d+_t|(u?(char|short|int|long)|float|double|half|bool)\d*|.*_x\d+|[vV](load|store).*)$")


class Module:
    """A source text, and what all its functions share."""

    def __init__(self, dialect: Dialect, machine: Machine | None, intrinsics: Mapping[str, Emitter]) -> None:
        self.dialect = dialect
        self.machine = machine
        self.intrinsics = intrinsics
        self.expressions: Mapping[type[Expr], Handler] = {}
        self.statements: Mapping[type[Any], StmtHandler] = {}
        self.functions: list[str] = []
        self.overlay: Sequence[Sequence[str]] = ()
        """Names of shared buffers in groups that may lie over one another."""
        self._own: dict[str, str] = {}

    def helper(self, name: str, text: str) -> None:
        """Makes sure that a definition stands above the functions (after the helpers it calls)."""
        self._own.setdefault(name, text)

    def vector_type(self, element: str, lanes: int) -> str:
        """The name of an aligned struct of lanes."""
        name = f"{element.removesuffix('_t')}_x{lanes}"
        bytes_ = lanes * {"float": 4, "double": 8}.get(element, 0) or lanes * int(re.sub(r"\D", "", element) or 8) // 8
        self.helper(name, f"typedef struct __align__({bytes_}) {{ {element} lane[{lanes}]; }} {name};")
        return name

    def text(self) -> str:
        """The whole source."""
        prelude, definitions, own, functions = self._sections()
        parts = ["\n".join(prelude), "\n".join(definitions), "\n".join(own), "\n\n".join(functions)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def pieces(self) -> tuple[str, ...]:
        """The definitions of the source, each of which may stand once in a source made of several."""
        return tuple(piece for section in self._sections() for piece in section)

    def _sections(self) -> tuple[list[str], list[str], list[str], list[str]]:
        """Prelude, the helpers that are used, definitions of the target's own, functions."""
        dialect = self.dialect
        body = "\n\n".join(self.functions)
        own = "\n".join(self._own.values())
        definitions: dict[str, str] = {}

        def define(text: str) -> None:
            for name in used_helpers(text):
                if name not in definitions and name not in self._own:
                    made = helper_text(name, dialect)
                    define(made.split("(", 1)[1])
                    definitions[name] = made

        define(own + body)
        prelude = [dialect.prelude.strip()]
        if dialect.doubles and re.search(r"\bdouble\b", body + own + "".join(definitions.values())):
            prelude.insert(0, dialect.doubles)
        named = [text.replace("DEVICE", dialect.device) for text in self._own.values()]
        return prelude, list(definitions.values()), named, list(self.functions)


class Context:
    """One C function being written."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.dialect = module.dialect
        self.lines: list[str] = []
        self.top: list[str] = []
        self.depth = 1
        self.names: dict[Var | Buffer, str] = {}
        self.variable_lanes: dict[Var, list[str]] = {}
        self.narrow: set[Var] = set()
        self.indices: set[Var] = set()
        self.aligned: dict[Buffer, int] = {}
        self.private: set[Buffer] = set()
        self.fragments: dict[Buffer, int] = {}
        self.ranges: dict[Var, Interval] = {}
        self.divisors: dict[Var, int] = {}
        self.definitions: dict[Var, Expr] = {}
        self.conditional = 0
        self.is_rounded = False
        """Whether what is written becomes a number of 16 bits."""
        self.launch: dict[str, int | None] = {}
        self.threads: dict[str, str] = {}
        self.shared: list[tuple[Buffer, str, int]] = []
        self.heap: list[str] = []
        self.maps: dict[tuple[Buffer, tuple[tuple[int, ...], ...]], str] = {}
        """The C names of tensors' maps: a parameter, its shape and strides, and a box of it."""
        self.given: int | None = None
        """Bytes that are in use of the memory that the caller gives; None where there is none."""
        self.most_given = 0
        self._taken: set[str] = set()
        self._count = 0

    # ------------------------------------------------------------------------------------------------- statements

    def line(self, text: str) -> None:
        """One statement (or part of one)."""
        if self.conditional:
            raise InternalError("a statement inside an expression that may not run")
        self.lines.append("  " * self.depth + text)

    def run(self, s: Any) -> None:
        """Writes a statement of the loop IR."""
        self.module.statements[type(s)](self, s)

    def fresh(self, wanted: str) -> str:
        """A C name that is not taken, close to the wanted one."""
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII) or "x"
        if base[0].isdigit() or base[0] == "_" or base.startswith("weft"):
            base = "x" + base
        if base in _RESERVED or _TYPES.match(base) or (base.isupper() and len(base) > 2):
            base += "_"
        name, number = base, 0
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def temporary(self, kind: str, text: str) -> str:
        """A name for a value; the text itself where no statement may stand or nothing is gained."""
        if self.conditional or re.fullmatch(r"[\w.]+|\(-?[\w.]+\)", text):
            return text
        wanted, start = f" = {bare(text)};", f"{'  ' * self.depth}const {kind} "
        for line in reversed(self.lines):  # of a statement that says the same twice
            if not line.startswith("const ", 2 * self.depth):
                break
            if (
                line.startswith(start)
                and line.endswith(wanted)
                and (name := line[len(start) : -len(wanted)]).isidentifier()
            ):
                return name
        self._count += 1
        name = f"v{self._count}"
        while name in self._taken:
            self._count += 1
            name = f"v{self._count}"
        self._taken.add(name)
        self.line(f"const {kind} {name} = {bare(text)};")
        return name

    def helper(self, name: str, text: str) -> None:
        """Makes sure that a function of the target's own stands above; "DEVICE" in the text is the dialect's prefix."""
        self.module.helper(name, text)

    # ------------------------------------------------------------------------------------------------ expressions

    def lanes(self, e: Expr) -> list[str]:
        """The text of each lane."""
        return self.module.expressions[type(e)](self, e)

    def value(self, e: Expr) -> str:
        """The text of a scalar."""
        found = self.lanes(e)
        if len(found) != 1:
            raise InternalError(f"a scalar is wanted here, not {e!r}")
        return found[0]

    def index(self, e: Expr) -> str:
        """An index: C widens narrow ones itself."""
        if isinstance(e, Cast) and e.dtype is INDEX and e.value.dtype is INT32:
            return bare(self.value(e.value))
        if isinstance(e, Var) and e in self.narrow:
            return self.names[e]
        return bare(self.value(e))

    def constant(self, e: Expr) -> int:
        """The value of an integer literal; anything else is an error."""
        if isinstance(e, Broadcast):
            e = e.value
        if isinstance(e, Const) and not e.dtype.is_float:
            return int(e.value)
        raise TargetError(f"an intrinsic needs a constant here, not {e!r}")

    def base(self, buffer: Buffer) -> str:
        """The C name of a buffer's first element's address."""
        found = self.names.get(buffer)
        if found is None:
            raise InternalError(f"buffer {buffer.name!r} is used but is neither a parameter nor allocated")
        return found

    def pointer(self, e: Expr) -> str:
        """The pointer that an Address stands for."""
        if not isinstance(e, Address):
            return self.value(e)
        return f"({self.base(e.buffer)} + ({self.index(e.indices[0])}))"

    def fragment(self, e: Expr) -> str:
        """The registers of this thread that an Address in a slot scope stands for, as a pointer."""
        if not isinstance(e, Address) or e.buffer not in self.fragments:
            raise TargetError(f"an intrinsic needs an address in a register scope here, not {e!r}")
        words, elements = self.fragments[e.buffer], self.slot_elements(e.buffer)
        index = e.indices[0]
        if isinstance(index, Const):
            return f"({self.base(e.buffer)} + {int(index.value) // elements * words})"
        return f"({self.base(e.buffer)} + {self.value(index)} / {elements} * {words})"

    def slot_elements(self, buffer: Buffer) -> int:
        """How many elements one slot of a buffer's scope holds."""
        assert self.module.machine is not None
        return max(1, int(self.module.machine.scopes[buffer.scope].slot_bytes) // buffer.dtype.bytes)

    def tensor_map(self, buffer: Buffer, *seen: tuple[int, ...]) -> str:
        """The C name of the parameter that tells a copy engine about a buffer."""
        self.helper("weft_tensor_map", "struct __align__(64) weft_tensor_map { uint64_t words[16]; };")
        key = (buffer, seen)
        if key not in self.maps:
            self.maps[key] = self.fresh(f"{self.base(buffer)}_map")
        return self.maps[key]

    def space(self, buffer: Buffer) -> str:
        """The address space of a pointer to a buffer's elements."""
        if buffer.scope.split(".")[0] == "shared":
            return self.dialect.shared_pointer
        return "" if buffer in self.private else self.dialect.global_space

    def element_type(self, buffer: Buffer) -> str:
        """The C type of a buffer's elements in memory."""
        return types.memory_type(buffer.dtype)


def bare(text: str) -> str:
    """A text without the parentheses around all of it."""
    if not text.startswith("(") or not text.endswith(")"):
        return text
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]

"""From a flat Func to LLVM IR text.

func f(A: float32[16], B: float32[16]):          define i32 @f(ptr %args, i64 %threads) {
  B[ramp(0, 1, 16)] = A[ramp(0, 1, 16)]     ->     %A = load ptr, ptr %args …
                                                   %v = load <16 x float>, ptr %A … store … ret i32 0 }
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.llvm import arithmetic, calls, memory, statements, types
from weft.codegen.llvm.context import Context, Emitter, Machine, Module
from weft.codegen.llvm.math import keep_called
from weft.expr.nodes import Buffer, Var
from weft.loop.ir import Func
from weft.loop.passes.turn_loops import turns_by_call
from weft.runtime.abi import TURN_BIT
from weft.runtime.faults import OUTSIDE

_EXPRESSIONS = {**arithmetic.TABLE, **memory.TABLE, **calls.TABLE}
_LIBRARY = frozenset(
    "main abort exit malloc free calloc realloc printf puts abs labs div time signal read write open close "
    "memcpy memmove memset memcmp strlen strcpy strcmp strcat bcmp stpcpy "
    "fabs fmin fmax fmod fma floor ceil trunc round rint nearbyint roundeven sqrt cbrt hypot ldexp frexp exp10 "
    "sincos erfc tgamma lgamma remainder logb modf copysign nan pow10".split()
) | frozenset(calls._LIBM)


def entry_symbol(name: str) -> str:
    """The symbol of a Func's entry: its name, unless that is not a C name or means something to the C library."""
    base = name[:-1] if name.endswith(("f", "l")) else name
    plain = name.isidentifier() and name.isascii()
    if plain and name not in _LIBRARY and base not in _LIBRARY and not name.startswith(("_", "weft_", "llvm")):
        return name
    return "weft_fn_" + "".join(ch if ch.isascii() and ch.isalnum() else "_" for ch in name)


def generate(func: Func, target: Machine, *, intrinsics: Mapping[str, Emitter] | None = None) -> str:
    """LLVM IR of a lowered, flat Func; the entry `entry_symbol(func.name)` has the ABI of docs/architecture.md."""
    module = Module(target, intrinsics or {})
    module.overlapping.update(func.annotations.get("may_overlap", ()))
    module.symbol = entry_symbol(func.name)
    module.expressions, module.statements = _EXPRESSIONS, statements.TABLE
    statements.setup(module)
    if not module.is_aarch64 and not statements.has_vectors(func.body):
        module.is_placed = False  # LLVM makes vectors of its loops, and proves more of addresses that are indices
    c = Context(module)
    turns = turns_by_call(func)
    if turns:
        c.line(f"%threads = and i64 %threads_and_turn, {(1 << TURN_BIT) - 1}")
    for number, param in enumerate((*func.params, *func.size_vars)):
        _bind(c, param, number)
    c.run(func.body)
    wrong = calls.remembered(c)
    c.line("ret i32 0" if wrong is None else f"ret i32 {c.emit(f'select i1 {wrong}, i32 {OUTSIDE}, i32 0')}")
    module.helpers.add(module.symbol)
    threads = "%threads_and_turn" if turns else "%threads"
    header = f"define i32 {types.quote(module.symbol)}(ptr noalias nocapture readonly %args, i64 {threads}) #0"
    module.functions.append(c.text(header))
    keep_called(module)
    module.functions.append("attributes #0 = { nounwind }")
    return module.text()


def _bind(c: Context, param: Buffer | Var, number: int) -> None:
    """Reads a parameter from its slot; machines are little-endian, so a small value stands in the low bytes."""
    slot = "%args" if number == 0 else c.emit(f"getelementptr inbounds i64, ptr %args, i64 {number}")
    if isinstance(param, Buffer):
        statements.use_param(c, param, c.emit(f"load ptr, ptr {slot}, align 8"))
        return
    value = c.emit(f"load {types.memory_type(param.dtype)}, ptr {slot}, align 8")
    c.values[param] = c.emit(f"icmp ne i8 {value}, 0") if param.dtype.is_bool else value

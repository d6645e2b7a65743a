"""The functions that a C program calls, as LLVM IR (the header says what they do).

    int32_t             weft_NAME_create(int32_t threads, weft_NAME **made)
    int32_t             weft_NAME_run(weft_NAME *model, const void *const *inputs, void *const *outputs)
    void                weft_NAME_destroy(weft_NAME *model)
    int32_t             weft_NAME_threads(const weft_NAME *model)
    const weft_tensor  *weft_NAME_input(int32_t number)      weft_NAME_output(int32_t number)
    const char         *weft_NAME_error(int32_t code)

An instance is one block of memory: the number of threads, where the weights are, and the arena from byte 64 on. The
weights are in the library, or beside it: then `create` takes their address after the threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from weft.codegen.llvm.types import quote
from weft.compiler.export.plan import LibraryPlan, Tensor
from weft.runtime.faults import KERNEL_SHIFT, OUTSIDE, REASONS
from weft.runtime.native import has_threads

ERRORS = {
    0: "no error",
    1: "there is not enough memory",
    2: "an argument is a null pointer, or memory that does not begin where it must",
    3: "the library was compiled for $cpu, and this processor lacks some of its instructions",
    4: "the system does not let this process use the processor's matrix registers",
    OUTSIDE: REASONS[OUTSIDE],
}
"""The text of each code; codes 3 and 4 come from the target's `startup` check."""


def weights_symbol(plan: LibraryPlan) -> str:
    """The name of the weights in the library."""
    return f"weft_{plan.name}_weights"


def api_ir(plan: LibraryPlan, startup: str, beside: bool = False) -> str:
    """The module's text. `startup` defines `i32 @weft.startup()`: 0, or why the code cannot run here."""
    drivers = dict.fromkeys(symbol for symbol, _ in plan.calls)
    parts = [
        f'target triple = "{plan.target.triple}"',
        startup,
        # Reached through the table of addresses, since the weights may lie further away than code can point.
        "" if beside else f"@{weights_symbol(plan)} = external global i8",
        *(f"declare i32 {quote(symbol)}(ptr, i64)" for symbol in drivers),
        _tensors(plan.inputs, f"weft_{plan.name}_input", "in"),
        _tensors(plan.outputs, f"weft_{plan.name}_output", "out"),
        _error_texts(plan),
        Template(_INSTANCE + (_CORES if has_threads(plan.target.triple) else _ONE_CORE)).substitute(
            name=plan.name,
            bytes=64 + max(64, -(-plan.arena_bytes // 64) * 64),
            given=", ptr %weights" if beside else "",
            weights="%weights" if beside else f"@{weights_symbol(plan)}",
        ),
        _run(plan),
    ]
    return "\n".join(parts) + "\n"


_CORES = """
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i64 @llvm.ctpop.i64(i64)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; The threads to use: as many as are given, else one for each processor that this process may run on (the mask has room
; for 1024), at least 1.
define internal i64 @weft.threads(i32 %given) nounwind {
entry:
  %mask = alloca [16 x i64], align 8
  %chosen = icmp sgt i32 %given, 0
  br i1 %chosen, label %as_given, label %ask
as_given:
  %wide = sext i32 %given to i64
  ret i64 %wide
ask:
  call void @llvm.memset.p0.i64(ptr %mask, i8 0, i64 128, i1 false)
  %code = call i32 @sched_getaffinity(i32 0, i64 128, ptr %mask)
  br label %word
word:
  %index = phi i64 [ 0, %ask ], [ %next_index, %word ]
  %sum = phi i64 [ 0, %ask ], [ %next_sum, %word ]
  %at = getelementptr i64, ptr %mask, i64 %index
  %bits = load i64, ptr %at, align 8
  %count = call i64 @llvm.ctpop.i64(i64 %bits)
  %next_sum = add i64 %sum, %count
  %next_index = add i64 %index, 1
  %more = icmp ult i64 %next_index, 16
  br i1 %more, label %word, label %done
done:
  %none = icmp eq i64 %next_sum, 0
  %cores = select i1 %none, i64 1, i64 %next_sum
  ret i64 %cores
}
"""

_ONE_CORE = """
define internal i64 @weft.threads(i32 %given) nounwind {
  ret i64 1
}
"""

_INSTANCE = """
declare ptr @weft_allocate(i64)
declare void @weft_release(ptr)
declare void @weft_trim()
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i32 @weft_${name}_create(i32 %threads$given, ptr %made) nounwind {
entry:
  %nowhere = icmp eq ptr %made, null
  %nothing = icmp eq ptr $weights, null
  %place = ptrtoint ptr $weights to i64
  %astray = and i64 %place, 63
  %misplaced = icmp ne i64 %astray, 0
  %unfit_weights = or i1 %nothing, %misplaced
  %bad_argument = or i1 %nowhere, %unfit_weights
  br i1 %bad_argument, label %bad, label %check
bad:
  ret i32 2
check:
  store ptr null, ptr %made
  %code = call i32 @weft.startup()
  %unfit = icmp ne i32 %code, 0
  br i1 %unfit, label %refuse, label %allocate
refuse:
  ret i32 %code
allocate:
  %block = call ptr @weft_allocate(i64 $bytes)
  %none = icmp eq ptr %block, null
  br i1 %none, label %full, label %fill
full:
  ret i32 1
fill:
  %count = call i64 @weft.threads(i32 %threads)
  store i64 %count, ptr %block, align 8
  %weights_at = getelementptr i8, ptr %block, i64 8
  store ptr $weights, ptr %weights_at
  store ptr %block, ptr %made
  ret i32 0
}

define void @weft_${name}_destroy(ptr %model) nounwind {
  call void @weft_release(ptr %model)
  call void @weft_trim()
  ret void
}

define i32 @weft_${name}_threads(ptr %model) nounwind {
entry:
  %none = icmp eq ptr %model, null
  br i1 %none, label %done, label %some
some:
  %count = load i64, ptr %model, align 8
  %narrow = trunc i64 %count to i32
  br label %done
done:
  %threads = phi i32 [ 0, %entry ], [ %narrow, %some ]
  ret i32 %threads
}
"""


def _text(name: str, text: str) -> str:
    """A C string as a constant."""
    raw = text.encode() + b"\0"
    shown = "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in raw)
    return f'@{name} = private unnamed_addr constant [{len(raw)} x i8] c"{shown}"'


def _chosen(function: str, table: str, element: str, count: int, result: str, beyond: str) -> str:
    """A function from a number to an element of a table; `beyond` for a number that it has not."""
    return f"""
define ptr @{function}(i32 %number) nounwind {{
entry:
  %inside = icmp ult i32 %number, {count}
  br i1 %inside, label %some, label %none
some:
  %wide = zext i32 %number to i64
  %at = getelementptr {element}, ptr @{table}, i64 %wide
  {result}
  ret ptr %found
none:
  ret ptr {beyond}
}}"""


def _tensors(tensors: Sequence[Tensor], function: str, prefix: str) -> str:
    """The table of inputs or outputs, and the function that reads it."""
    kind = "{ ptr, ptr, i64, i64, ptr }"
    lines, rows = [], []
    for at, one in enumerate(tensors):
        names = [f"weft.{prefix}{at}.{part}" for part in ("name", "dtype", "shape")]
        shape = ", ".join(f"i64 {size}" for size in one.shape) or "i64 1"
        lines += [_text(names[0], one.name), _text(names[1], one.dtype)]
        lines.append(f"@{names[2]} = private constant [{max(1, len(one.shape))} x i64] [{shape}]")
        rows.append(
            f"{kind} {{ ptr @{names[0]}, ptr @{names[1]}, i64 {one.bytes}, i64 {len(one.shape)}, ptr @{names[2]} }}"
        )
    table = f"weft.{prefix}"
    lines.append(f"@{table} = private constant [{len(rows)} x {kind}] [{', '.join(rows)}]")
    lines.append(_chosen(function, table, kind, len(rows), "%found = getelementptr i8, ptr %at, i64 0", "null"))
    return "\n".join(lines)


def _error_texts(plan: LibraryPlan) -> str:
    texts = [Template(text).safe_substitute(cpu=plan.target.cpu) for text in ERRORS.values()]
    lines = [_text(f"weft.error{at}", text) for at, text in enumerate([*texts, "an unknown error"])]
    rows = ", ".join(f"ptr @weft.error{at}" for at in range(len(texts)))
    lines.append(f"@weft.errors = private constant [{len(texts)} x ptr] [{rows}]")
    unknown = f"@weft.error{len(texts)}"
    name = f"weft_{plan.name}_error"
    lines.append(_chosen(name, "weft.errors", "ptr", len(texts), "%found = load ptr, ptr %at", unknown))
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------------- run


def _run(plan: LibraryPlan) -> str:
    """The function that runs the model: argument checks, the native calls, and outputs that are copies."""
    longest = max((len(bases) for _, bases in plan.calls), default=1)
    lines = [
        f"define i32 @weft_{plan.name}_run(ptr %model, ptr %inputs, ptr %outputs) nounwind {{",
        "entry:",
        f"  %bases = alloca [{max(1, longest)} x i64], align 64",
        *_refuse_null("model", "%model"),
        *_refuse_null("inputs", "%inputs"),
        *_refuse_null("outputs", "%outputs"),
        "  %threads = load i64, ptr %model, align 8",
        "  %weights_at = getelementptr i8, ptr %model, i64 8",
        "  %weights = load ptr, ptr %weights_at",
        "  %arena.0 = getelementptr i8, ptr %model, i64 64",
    ]
    for kind, tensors in (("input", plan.inputs), ("output", plan.outputs)):
        for at in range(len(tensors)):
            lines += [
                f"  %at.{kind}.{at} = getelementptr ptr, ptr %{kind}s, i64 {at}",
                f"  %{kind}.{at} = load ptr, ptr %at.{kind}.{at}",
                *_refuse_null(f"{kind}.{at}", f"%{kind}.{at}"),
            ]
    for number, offset in enumerate(plan.offsets):
        lines.append(f"  %array.{number} = getelementptr i8, ptr %weights, i64 {offset}")
    for number, (symbol, bases) in enumerate(plan.calls):
        lines += _call(number, symbol, bases)
    for copy in plan.copies:
        size = plan.outputs[copy.output].bytes
        source = f"%{copy.kind}.{copy.number}"
        lines.append(
            f"  call void @llvm.memcpy.p0.p0.i64(ptr %output.{copy.output}, ptr {source}, i64 {size}, i1 false)"
        )
    return "\n".join([*lines, "  ret i32 0", "bad:", "  ret i32 2", "}"])


def _refuse_null(label: str, pointer: str) -> list[str]:
    return [
        f"  %null.{label} = icmp eq ptr {pointer}, null",
        f"  br i1 %null.{label}, label %bad, label %has.{label}",
        f"has.{label}:",
    ]


def _call(number: int, symbol: str, bases: Sequence[tuple[str, int]]) -> list[str]:
    lines = []
    for at, (kind, index) in enumerate(bases):
        lines += [
            f"  %address.{number}.{at} = ptrtoint ptr %{kind}.{index} to i64",
            f"  %slot.{number}.{at} = getelementptr i64, ptr %bases, i64 {at}",
            f"  store i64 %address.{number}.{at}, ptr %slot.{number}.{at}, align 8",
        ]
    return [
        *lines,
        f"  %code.{number} = call i32 {quote(symbol)}(ptr %bases, i64 %threads)",
        f"  %failed.{number} = icmp ne i32 %code.{number}, 0",
        f"  br i1 %failed.{number}, label %stop.{number}, label %next.{number}",
        f"stop.{number}:",
        f"  %reason.{number} = and i32 %code.{number}, {(1 << KERNEL_SHIFT) - 1}",
        f"  ret i32 %reason.{number}",
        f"next.{number}:",
    ]

"""Native code of a model: drivers that call kernels in order.

A driver is `int32_t name(const int64_t *bases, int64_t threads)`. `bases` are addresses: of the arena, of weights, of
arrays. Each call of a kernel gets an argument block filled with `bases[i] + offset`. The first kernel that fails ends
the driver with its code, and its number in the bits above KERNEL_SHIFT. A driver with a clock also writes when it
began and when each kernel ended (see `profile`).

Before each kernel the driver says where the weights of the next one lie that waits for them: threads that have ended a
loop fetch what they will read of these first, until the next loop begins. That goes on after a call, before the next.

Where a kernel wants to know whether this is an odd call, the driver counts them. Only the order turns in which a kernel
reads its weights, never what it computes, so it does not matter how calls from several threads are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.codegen.llvm.types import quote
from weft.core import model
from weft.runtime.abi import TURN_BIT
from weft.runtime.faults import KERNEL_SHIFT
from weft.runtime.native import has_threads
from weft.targets.base import Target

Place = tuple[int, int]
"""An address: the number of a base, and an offset in bytes."""


@dataclass(frozen=True)
class Call:
    """One call of a kernel."""

    symbol: str
    arguments: tuple[Place, ...]
    turns: bool = False
    """Whether some of its loops run backwards in every second call of the driver."""
    copies: bool = False
    """Whether it copies its first argument to its second: not where both are one place."""
    awaited: tuple[int, int] | None = None
    """The base of the weights that it waits for, and their bytes."""


def fetched_ahead(target: Target) -> int:
    """Bytes of weights that a waiting thread fetches at most; 0 where nobody waits."""
    return target.cache_bytes[1] // model.FETCHED_SHARE if has_threads(target.triple) else 0


def driver_ir(name: str, calls: Sequence[Call], triple: str, clock: int | None = None, fetched: int = 0) -> str:
    """LLVM IR of a driver; `clock` is the number of the base that takes one struct timespec before all calls and one
    after each, `fetched` what a waiting thread fetches at most.
    """
    longest = max((len(call.arguments) for call in calls), default=1)
    lines = [f'target triple = "{triple}"']
    lines += [f"declare i32 {quote(symbol)}(ptr, i64)" for symbol in dict.fromkeys(c.symbol for c in calls)]
    lines += [
        f"define i32 {quote(name)}(ptr noalias readonly %bases, i64 %threads) {{",
        "entry:",
        f"  %args = alloca [{max(longest, 1)} x i64], align 64",
        *_time_ir(clock, 0),
    ]
    if any(call.turns for call in calls):
        counter = quote(f"{name}.calls")
        lines.insert(1, f"{counter} = internal global i64 0, align 64")
        lines += [
            f"  %calls = atomicrmw add ptr {counter}, i64 1 monotonic, align 8",
            "  %odd = and i64 %calls, 1",
            f"  %turn = shl i64 %odd, {TURN_BIT}",
            "  %threads_and_turn = or i64 %threads, %turn",
        ]
    ahead = [call.awaited if fetched else None for call in (*calls[1:], *calls)]
    lines.insert(1, "declare void @weft_ahead(i64, i64, i64)")
    if fetched and not any(ahead):
        lines.append("  call void @weft_ahead(i64 0, i64 0, i64 0)")
    for number, call in enumerate(calls):
        if following := next((weight for weight in ahead[number:] if weight), None):
            lines += [
                f"  %h{number} = getelementptr inbounds i64, ptr %bases, i64 {following[0]}",
                f"  %w{number} = load i64, ptr %h{number}, align 8",
                f"  call void @weft_ahead(i64 %w{number}, i64 {following[1]}, i64 {fetched})",
            ]
        for position, (base, offset) in enumerate(call.arguments):
            tag = f"{number}.{position}"
            loaded = f"b{tag}" if offset else f"p{tag}"
            lines += [
                f"  %s{tag} = getelementptr inbounds i64, ptr %bases, i64 {base}",
                f"  %{loaded} = load i64, ptr %s{tag}, align 8",
                *([f"  %p{tag} = add i64 %b{tag}, {offset}"] if offset else []),
                f"  %a{tag} = getelementptr inbounds i64, ptr %args, i64 {position}",
                f"  store i64 %p{tag}, ptr %a{tag}, align 8",
            ]
        threads = "%threads_and_turn" if call.turns else "%threads"
        if call.copies:
            lines += [
                f"  %same{number} = icmp eq i64 %p{number}.0, %p{number}.1",
                f"  br i1 %same{number}, label %next{number}, label %copy{number}",
                f"copy{number}:",
            ]
        lines += [
            f"  %r{number} = call i32 {quote(call.symbol)}(ptr %args, i64 {threads})",
            f"  %f{number} = icmp ne i32 %r{number}, 0",
            f"  br i1 %f{number}, label %failed{number}, label %next{number}",
            f"failed{number}:",
            f"  %c{number} = or i32 %r{number}, {number << KERNEL_SHIFT}",
            f"  ret i32 %c{number}",
            f"next{number}:",
            *_time_ir(clock, number + 1),
        ]
    lines += ["  ret i32 0", "}", ""]
    if clock is not None:
        lines.insert(1, "declare i32 @clock_gettime(i32, ptr)")
    return "\n".join(lines)


def _time_ir(clock: int | None, place: int) -> list[str]:
    """Writes the monotonic clock (1) into a place of the base that takes times."""
    if clock is None:
        return []
    return [
        f"  %cs{place} = getelementptr inbounds i64, ptr %bases, i64 {clock}",
        f"  %cb{place} = load ptr, ptr %cs{place}, align 8",
        f"  %cp{place} = getelementptr inbounds i64, ptr %cb{place}, i64 {2 * place}",
        f"  %cr{place} = call i32 @clock_gettime(i32 1, ptr %cp{place})",
    ]

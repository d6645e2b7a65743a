"""NVIDIA's tensor cores by wgmma (Hopper, sm_90a): four warps multiply tiles that lie in shared memory.

A schedule keeps sums in the scope "wgmma.c" and the operands in shared memory, in lines of 128 bytes:

    wgmma_dot_<kind>_<form>_<width>     C[i, j] += wide(a) * wide(b) for 64 × width × a line
    wgmma_dot_…_first_<n>               the same of lines along k whose elements from n on are zeros: these are left out
    wgmma_store_<width>_<sum>           C[i, j] to memory, 64 × width; sums are f32 or s32

Kinds are those of `mma`; of a float32 (tf32) the multiplication cuts off all but 10 bits of mantissa. `form` says what
lies along a line, in the letters of `mma`. Of a (rows of C), n: a[i, k]; t: a[i // 64, k, i % 64]. Of b (columns of C),
t: b[j, k]; n: b[j // 64, k, j % 64]. Of kinds that are not of 16 bits the instruction reads lines along k alone; rows
of tf32 that lie otherwise, a[i // 32, k, i % 32], are loaded into registers, each number by the thread that holds it
there. `swizzle` puts the lines into the order that the instruction takes. A statement on such a tile belongs to 128
threads: threadIdx.x runs over them.

The products run beside the threads. A call waits until at most `pending` groups of them are on their way, 0 by its
rule; `overlap_products` lets those of one step run into the next where the pipeline around them keeps their operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.context import Context, Emitter
from weft.core.dtypes import INDEX, INT32
from weft.core.errors import TargetError
from weft.expr.nodes import (
    Address,
    Buffer,
    Call,
    Expr,
    Var,
    add,
    cast,
    equal,
    floormod,
    index_expr,
    int_value,
    less,
    logical_or,
    mul,
)
from weft.expr.structural import structural_equal
from weft.loop.interpreter import register_effect
from weft.loop.ir import Allocate, Evaluate, For, Func, If, Let, Seq, Stmt, seq
from weft.loop.passes.double_buffer import LAG
from weft.loop.passes.support import is_barrier, is_call, rename_repeated
from weft.loop.visit import Mutator, child_stmts, walk_stmts
from weft.targets.cuda import mma
from weft.targets.cuda import model as fit
from weft.targets.cuda.copies import instruction
from weft.targets.cuda.swizzle import seen_by

ROWS = 64
"""Rows of a tile of sums."""
LINE = 64
"""Elements of a line of a 16-bit kind."""
WIDTHS = (64, 80, 96, 128, 160, 192, 224, 256)
"""Columns of a tile of sums; where b does not lie along k, half of its last line may be of no use."""
DOT, ZERO, STORE, WAIT, PUBLISH = "wgmma_dot_", "wgmma_zero", "wgmma_store", "wgmma_wait", "wgmma_publish"
WAIT_FOR, ADD, HELD, FIRST = "wgmma_wait_for", "wgmma_add", f"{DOT}held_", "_first_"
LOADED = f"{DOT}loaded_tf32"
"""A product whose rows go through registers: after its sums it has the tile of these, and that of the step before."""
MANY = 8
"""More groups of products than an instruction can wait for: none is waited for."""


def line_depth(kind: mma.Kind) -> int:
    """Elements of k that one call sums: those of a line."""
    return 128 // kind.bytes


# ------------------------------------------------------------------------------------------------------- emitting

PLACE = """DEVICE uint64_t weft_wgmma_operand(const void *from, int32_t block) {
  const uint32_t place = (uint32_t)__cvta_generic_to_shared(from);
  return (uint64_t)((place & 0x3ffffu) >> 4) | ((uint64_t)(uint32_t)(block >> 4) << 16) | ((uint64_t)64 << 32)
         | ((uint64_t)1 << 62);
}"""
"""How an operand lies: the bytes from one block of 64 columns to the next, 1,024 from 8 lines to the next, swizzled."""

ROW = """DEVICE uint32_t weft_wgmma_row(const void *from, int32_t block) {
  const uint32_t lane = threadIdx.x & 31u, warp = (threadIdx.x >> 5) & 3u, k = (lane & 3) + 4 * (lane & 1);
  return (uint32_t)__cvta_generic_to_shared(from) + (warp >> 1) * block + k * 128
         + (((((warp & 1) << 2) + (lane >> 4)) ^ k) << 4) + (((lane >> 2) & 3) << 2);
}"""
LOAD = """DEVICE void weft_wgmma_load(int32_t *words, uint32_t from) {
  #pragma unroll
  for (int32_t half = 0; half < 2; ++half) {
    int32_t x, y;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(from ^ (32 * half)) : "memory");
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(y) : "r"(from ^ (32 * half) ^ 576) : "memory");
    words[half] = threadIdx.x & 1u ? y : x;
    words[half + 2] = threadIdx.x & 1u ? x : y;
  }
}"""
"""The numbers of 64 rows and 8 k of tf32 that a thread holds: of rows i and i + 8, k and k + 4. Odd threads load the
second k first, so that a warp meets every bank once."""
IN_WORDS = [f'"r"(words[4 * k + {i}])' for i in range(4)]
"""Rows in registers, as `products` takes them."""


def _sum_type(wide: str) -> str:
    return "float" if wide == "float32" else "int32_t"


def finish(sums: str) -> str:
    """The end of a product: its group, and the wait, after which its sums may be read."""
    return f"""  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
  if (pending == 0) asm volatile("wgmma.wait_group.sync.aligned 0;" : {sums} : : "memory");
  else if (pending < {MANY}) asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(pending) : "memory");"""


def products(shape: str, count: int, rows: Sequence[str], right: int, options: str, steps: int = 4) -> str:
    """So many products on `count` sums, one after another along k: of rows in registers, or at an address."""
    sums = ", ".join(f'"+{"f" if ".f32." in shape else "r"}"(sum[{i}])' for i in range(count))
    registers = ", ".join(f"%{i}" for i in range(count))
    left, end = ", ".join(f"%{count + i}" for i in range(len(rows))), count + len(rows)
    return f"""  asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
  #pragma unroll
  for (int32_t k = 0; k < {steps}; ++k) {{
    asm volatile("{{\\n.reg .pred p;\\nsetp.eq.b32 p, %{end + 1}, 0;\\n"
                 "wgmma.mma_async.sync.aligned.{shape} {{{registers}}}, "
                 "{f"{{{left}}}" if len(rows) > 1 else left}, %{end}, {", ".join(filter(None, ("p", options)))};\\n}}"
                 : {sums}
                 : {", ".join(rows)}, "l"(right + (uint64_t)(k * {right})),
                   "r"((int32_t)(fresh && k == 0)));
  }}
"""


def _dot(kind: mma.Kind, first: int = 0) -> Emitter:
    """Multiplies, the `first` elements of a line or all. A quarter of k on are 32 bytes along a line, or 16 lines."""
    line, far = line_depth(kind), (2, 128)
    steps = (first or line) // kind.depth

    def emit(c: Context, call: Call) -> str:
        a, b, out = call.args[:3]
        a_line, a_block, b_line, b_block, form, width = (c.constant(e) for e in call.args[3:9])
        order, pending = (c.constant(e) for e in call.args[10:])
        if not order or (a_line, b_line) != (line, line):
            raise TargetError(f"operands of wgmma lie in swizzled lines of {line} elements; these are not such lines")
        turned_a, turned_b, count = form & 1, 1 - (form >> 1), width // 2
        if turned_a and not kind.transposes:
            return _loaded(c, call)
        name = f"weft_wgmma_dot_{kind.name}_{turned_a}{turned_b}_{width}{FIRST + str(first) if first else ''}"
        sums = ", ".join(f'"+{kind.constraint}"(sum[{i}])' for i in range(count))
        options = f"1, 1, {turned_a}, {turned_b}" if kind.transposes else "1, 1" if kind.wide == "float32" else ""
        shape = f"m64n{width}k{kind.depth}.{mma.SUMS[kind.wide]}.{kind.a}.{kind.b}"
        c.helper("weft_wgmma_operand", PLACE)
        c.helper(
            name,
            f"""template <int32_t pending> DEVICE void {name}({_sum_type(kind.wide)} *sum, const void *a,
    int32_t a_block, const void *b, int32_t b_block, bool fresh) {{
  const uint64_t left = weft_wgmma_operand(a, a_block), right = weft_wgmma_operand(b, b_block);
{products(shape, count, [f'"l"(left + (uint64_t)(k * {far[turned_a]}))'], far[turned_b], options, steps)}{finish(sums)}
}}""",
        )
        operands = f"{c.pointer(a)}, {kind.bytes * a_block}, {c.pointer(b)}, {kind.bytes * b_block}"
        operands += f", {c.value(call.args[9])}"
        return f"{name}<{pending}>({c.fragment(out)}, {operands})"

    return emit


def _loaded(c: Context, call: Call) -> str:
    """Multiplies rows of tf32 that go through registers.

    A register that is read by a product must not be set before that is through, which the compiler does not see to. So
    steps take turns with two tiles of registers that outlive them, and the wait names those of the step before; a step
    by itself waits for its own.
    """
    is_kept = call.name == LOADED
    a, b, out, *numbers = call.args[:3] + call.args[3 + 2 * is_kept :]
    a_block, width, pending = (c.constant(numbers[i]) for i in (1, 5, 8))
    count, name = width // 2, f"weft_wgmma_loaded_{width}"
    multiplied = products(f"m64n{width}k8.f32.tf32.tf32", count, IN_WORDS, 2, "1, 1")
    c.helper("weft_wgmma_operand", PLACE)
    c.helper("weft_wgmma_row", ROW)
    c.helper("weft_wgmma_load", LOAD)
    before = ", ".join(f'"+r"(before[{i}])' for i in range(16))
    c.helper(
        name,
        f"""template <int32_t pending> DEVICE void {name}(float *sum, int32_t *words, int32_t *before, const void *a,
    int32_t a_block, const void *b, bool fresh) {{
  const uint32_t left = weft_wgmma_row(a, a_block);
  const uint64_t right = weft_wgmma_operand(b, 0);
  #pragma unroll
  for (int32_t k = 0; k < 4; ++k) weft_wgmma_load(words + 4 * k, left + 1024 * k);
{multiplied}  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
  asm volatile("wgmma.wait_group.sync.aligned %16;" : {before} : "n"(pending) : "memory");
}}""",
    )
    operands = f"{c.pointer(a)}, {4 * a_block}, {c.pointer(b)}, {c.value(numbers[6])}"
    if is_kept:
        tiles = ", ".join(c.fragment(tile) for tile in call.args[3:5])
        return f"{name}<{pending}>({c.fragment(out)}, {tiles}, {operands})"
    return f"[&](float *sum) {{ int32_t words[16]; {name}<0>(sum, words, words, {operands}); }}({c.fragment(out)})"


def _store(c: Context, call: Call) -> str:
    """Sums to memory; the empty instruction keeps their registers in place until the products are through."""
    source, target, stride, width = call.args[0], call.args[1], call.args[2], c.constant(call.args[5])
    wide = source.buffer.dtype.name  # type: ignore[attr-defined]
    kind, name = _sum_type(wide), f"weft_wgmma_store_{width}_{mma.SUMS[wide]}"
    sums = ", ".join(f'"+{"f" if wide == "float32" else "r"}"(sum[{i}])' for i in range(width // 2))
    c.helper("weft_mma_store", mma.STORE)
    c.helper(
        name,
        f"""DEVICE void {name}({kind} *to, {kind} *sum, int32_t stride) {{
  asm volatile("" : {sums} : : "memory");
  weft_mma_store<{width // 8}>(to + (int32_t)((threadIdx.x >> 5) & 3u) * 16 * stride, sum, stride);
}}""",
    )
    return f"{name}({c.pointer(target)}, {c.fragment(source)}, (int32_t)({c.value(stride)}))"


def _wait_for(c: Context, call: Call) -> str:
    """Waits for products until so many groups are on their way; sums are read only afterwards."""
    count, pending = c.constant(call.args[1]) // 2, c.constant(call.args[2])
    wide = call.args[0].buffer.dtype.name  # type: ignore[attr-defined]
    sums = ", ".join(f'"+{"f" if wide == "float32" else "r"}"(sum[{i}])' for i in range(count))
    name = f"weft_wgmma_wait_for_{count}_{mma.SUMS[wide]}"
    c.helper(
        name,
        f"""template <int32_t pending> DEVICE void {name}({_sum_type(wide)} *sum) {{
  asm volatile("wgmma.wait_group.sync.aligned %{count};" : {sums} : "n"(pending) : "memory");
}}""",
    )
    return f"{name}<{pending}>({c.fragment(call.args[0])})"


def _add(c: Context, call: Call) -> str:
    c.helper(
        "weft_wgmma_add",
        "template <int32_t count> DEVICE void weft_wgmma_add(const float *part, float *sum) {\n  #pragma unroll\n"
        "  for (int32_t i = 0; i < count; ++i) sum[i] += part[i];\n}",
    )
    return f"weft_wgmma_add<{c.constant(call.args[2]) // 2}>({c.fragment(call.args[0])}, {c.fragment(call.args[1])})"


def _shorter() -> Iterator[tuple[mma.Kind, int]]:
    """Kinds of 16 bits, and parts of a line that are whole steps of theirs."""
    kinds = [kind for kind in mma.KINDS.values() if kind.transposes]
    return ((kind, first) for kind in kinds for first in range(kind.depth, LINE, kind.depth))


EMITTERS: Mapping[str, Emitter] = {
    WAIT_FOR: _wait_for,
    ADD: _add,
    ZERO: lambda c, call: mma.zero_tile(c, call, c.constant(call.args[1]) // 2),
    STORE: _store,
    WAIT: instruction("wgmma.wait_group.sync.aligned 0"),
    PUBLISH: instruction("fence.proxy.async.shared::cta"),
    LOADED: _loaded,
    **{f"{DOT}{name}": _dot(kind) for name, kind in mma.KINDS.items()},
    **{f"{DOT}{kind.name}{FIRST}{first}": _dot(kind, first) for kind, first in _shorter()},
}

# ----------------------------------------------------------------------------------------- meaning, for the interpreter


def operand_seen(kind: mma.Kind, tile: Any, line: int, block: int, count: int, k_inside: bool, order: int) -> Any:
    """An operand as a plain matrix, [row, k]."""
    depth = line_depth(kind)
    if k_inside:
        seen = seen_by(tile, (count, depth), (int(line), 1), order)
    else:  # lines have as many elements along rows as along k
        seen = seen_by(tile, (-(-count // depth), depth, depth), (int(block), int(line), 1), order)
        seen = seen.transpose(0, 2, 1).reshape(-1, depth)[:count]
    return cut_tf32(seen) if kind.name == "tf32" else seen


def cut_tf32(values: Any) -> Any:
    """Float32 numbers without all but 10 bits of mantissa."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _mean_dot(kind: mma.Kind, first: int | None = None) -> Callable[..., None]:
    def run(a: Any, b: Any, out: Any, *numbers: int) -> None:
        a_line, a_block, b_line, b_block, form, width, fresh, order, _ = numbers
        left = operand_seen(kind, a, a_line, a_block, ROWS, not int(form) & 1, order)
        right = operand_seen(kind, b, b_line, b_block, int(width), bool(int(form) & 2), order)
        mma.add_products(kind, out, left[:, :first], right[:, :first], bool(fresh))

    return run


register_effect(ZERO, mma.mean_zero(ROWS))
register_effect(STORE, mma.mean_store)
register_effect(WAIT, lambda: 0)
register_effect(WAIT_FOR, lambda tile, width, pending: 0)


def _mean_add(part: Any, out: Any, width: int) -> None:
    shape, strides = (ROWS, int(width)), (int(width), 1)
    out.view(shape, strides)[...] += part.view(shape, strides)


register_effect(ADD, _mean_add)
register_effect(PUBLISH, lambda: 0)
for _kind in mma.KINDS.values():
    register_effect(f"{DOT}{_kind.name}", _mean_dot(_kind))
for _kind, _first in _shorter():
    register_effect(f"{DOT}{_kind.name}{FIRST}{_first}", _mean_dot(_kind, _first))
register_effect(LOADED, lambda a, b, out, rows, before, *numbers: _mean_dot(mma.KINDS["tf32"])(a, b, out, *numbers))

# ----------------------------------------------------------------------------------------------------- declaring


def dot_name(kind: mma.Kind, turned_a: bool, turned_b: bool, width: int) -> str:
    """The name of a product."""
    return f"{DOT}{kind.name}_{mma.form_of(turned_a, turned_b)}_{width}"


def _lines(name: str, element: str, count: int, depth: int, k_inside: bool) -> mma.At:
    """How an operand is read whose lines lie along k, or else along its rows."""
    lines = te.placeholder((count, depth) if k_inside else (-(-count // depth), depth, depth), element, name=name)
    return lambda row, k: lines[row, k] if k_inside else lines[row // depth, k, row % depth]


def _declare_dot(kind: mma.Kind, turned_a: bool, turned_b: bool, width: int, shorter: str = "") -> None:
    depth = line_depth(kind)

    def calls(left: Any, right: Any, out: Any) -> tuple[Call, Call]:
        steps = [left.stride(1), left.stride(0)] if turned_a else [left.stride(0), te.const(0)]
        steps += [right.stride(0), te.const(0)] if turned_b else [right.stride(1), right.stride(0)]
        places = (left.access_ptr("r"), right.access_ptr("r"), out.access_ptr("rw"))
        numbers = map(te.const, (int(turned_a) + 2 * int(turned_b), width, 0, 0, 0))
        reset = Call(ZERO, (out.access_ptr("w"), te.const(width)), INT32)
        return reset, Call(f"{DOT}{kind.name}{shorter}", (*places, *steps, *numbers), INT32)

    a = _lines("a", kind.elements[0], ROWS, depth, not turned_a)
    b = _lines("b", kind.elements[1], width, depth, turned_b)
    mma.declare_dot(dot_name(kind, turned_a, turned_b, width) + shorter, kind, (ROWS, width, depth), a, b, calls)


for _width in WIDTHS:
    for _wide, _sums in mma.SUMS.items():
        mma.declare_copy(f"wgmma_store_{_width}_{_sums}", STORE, (ROWS, _width), _wide, False)
    for _kind in mma.KINDS.values():
        for _form in range(4) if _kind.transposes else (2, 3) if _kind.name == "tf32" else (2,):
            _declare_dot(_kind, bool(_form & 1), bool(_form & 2), _width)
for _width in fit.ATTENTION_PARTS:
    for _kind, _first in _shorter():
        _declare_dot(_kind, False, True, _width, f"{FIRST}{_first}")

# ------------------------------------------------------------------------------------------------------ overlapping


def overlap_products(func: Func) -> Func:
    """The program with products that run into the next step of their pipeline, and what they read made visible.

    for k in range(8):                                 for k in range(8):
        barrier()                                          publish()          what threads wrote, to the tensor cores
        dot(…, pending=0)          {lag: 1}   ->           barrier()
    store(…)                                               dot(…, pending=1)
                                                       wait()
                                                       store(…)

    `double_buffer` leaves the mark of a lag on a loop whose parts stay as they are for one more step.
    """
    made = _Overlap().func(func) if any(is_dot(s) for s in walk_stmts(func.body)) else func
    return rename_repeated(made) if any(map(_loads_rows, walk_stmts(func.body))) else made


def is_dot(s: Stmt) -> bool:
    """Whether a statement is a product."""
    return isinstance(s, Evaluate) and isinstance(s.value, Call) and s.value.name.startswith(DOT)


def groups_of(s: Stmt) -> int | None:
    """How many products a statement begins, in every thread that comes by; None where that is not known."""
    if is_dot(s):
        return 1
    counts = [groups_of(child) for child in child_stmts(s)]
    if None in counts:
        return None
    total = sum(count or 0 for count in counts)
    if total and isinstance(s, If):
        return None
    if total and isinstance(s, For) and s.kind != "thread":
        extent = int_value(s.extent)
        return None if extent is None else total * extent
    return total


class _Overlap(Mutator):
    def __init__(self) -> None:
        self.pending = 0
        self.rows: list[Buffer] = []
        """Where this step and the one before load rows to."""

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        if is_barrier(s):
            return seq(Evaluate(Call(PUBLISH, (), INT32)), s)
        if not self.rows or not is_dot(s):
            return _with(s, index_expr(self.pending)) if self.pending and is_dot(s) else s
        a, b, out, *numbers, _ = s.value.args  # type: ignore[attr-defined]
        tiles = [Address(rows, [index_expr(0)], "rw") for rows in self.rows]
        return Evaluate(Call(LOADED, (a, b, out, *tiles, *numbers, index_expr(self.pending)), INT32))

    def visit_For(self, s: For) -> Stmt:
        count = groups_of(s.body) if s.annotations.get(LAG) else None
        loads_rows = any(map(_loads_rows, walk_stmts(s)))
        if not count or (loads_rows and (count > 1 or int_value(s.extent) is None)):
            return self.generic_stmt(s)
        outer, self.pending = self.pending, count
        done = self._in_turns(s) if loads_rows else seq(self.generic_stmt(s), Evaluate(Call(WAIT, (), INT32)))
        self.pending = outer
        return done

    def _in_turns(self, s: For) -> Stmt:
        """The loop by two steps at a time, of which each loads rows into a tile of its own.

        for k in range(7): dot(…)   ->   dot(rows1, rows0, …)
                                         for h in range(3): dot(rows0, rows1, …); dot(rows1, rows0, …)
        """
        total, half, deep = int_value(s.extent) or 0, Var(f"{s.var.name}_half"), line_depth(mma.KINDS["tf32"])
        tiles = [Buffer(f"rows{at}", INT32, (ROWS * deep,), scope="wgmma.c") for at in (0, 1)]

        def step(at: int, number: Expr) -> Stmt:
            self.rows = [tiles[at], tiles[1 - at]]
            return Let(s.var, number, self.stmt(s.body))

        first = step(1, index_expr(0)) if total % 2 else None
        both = [step(at, add(mul(half, index_expr(2)), index_expr(total % 2 + at))) for at in (0, 1)]
        self.rows = []
        starts = [Address(tile, [index_expr(0)], "rw") for tile in tiles]
        zeros = [Evaluate(Call(ZERO, (at, index_expr(deep)), INT32)) for at in starts]
        waits = [wait_for(at, index_expr(deep)) for at in starts]
        made = seq(*zeros, first, For(half, total // 2, seq(*both)) if total > 1 else None, *waits)
        return Allocate(tiles[0], Allocate(tiles[1], made))


def _loads_rows(s: Stmt) -> bool:
    """Whether a statement is a product whose rows go through registers."""
    return is_dot(s) and s.value.name == f"{DOT}tf32" and bool((int_value(s.value.args[7]) or 0) & 1)  # type: ignore[attr-defined]


def _with(s: Stmt, pending: Expr, fresh: Expr | None = None) -> Evaluate:
    """A product that waits until so many groups are on their way, and begins its sums where `fresh` says so."""
    assert isinstance(s, Evaluate) and isinstance(s.value, Call)
    *args, begins, order, _ = s.value.args
    return Evaluate(Call(s.value.name, (*args, begins if fresh is None else fresh, order, pending), s.value.dtype))


# --------------------------------------------------------------------------------------------------------- promoting


def promote_products(func: Func) -> Func:
    """The program whose products of float8 are added up in float32 by the threads, every few steps of a pipeline.

    for k in range(8): dot(…, C)      ->      for k in range(8): dot(…, T, fresh=k % 4 == 0)
                                                                 if k % 4 == 3: wait_for(T); C += T
    """
    return _Promote().func(func) if any(is_dot(s) and _is_short(s) for s in walk_stmts(func.body)) else func


def _is_short(s: Stmt) -> bool:
    """Whether the sums of a product have fewer bits than their type."""
    kind = mma.KINDS.get(s.value.name.removeprefix(DOT))  # type: ignore[attr-defined]
    return kind is not None and kind.bytes == 1 and kind.wide == "float32"


class _Promote(Mutator):
    def __init__(self) -> None:
        self.loop: For | None = None
        self.parts: dict[Buffer, Buffer] = {}

    def visit_For(self, s: For) -> Stmt:
        if not s.annotations.get(LAG) or (int_value(s.extent) or 0) <= fit.PROMOTED:
            return self.generic_stmt(s)
        self.loop, self.parts = s, {}
        made = self.generic_stmt(s)
        self.loop = None
        for part in self.parts.values():
            made = Allocate(part, made)
        return made

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        if self.loop is None or not is_dot(s) or not _is_short(s):
            return s
        assert isinstance(s.value, Call)
        a, b, out, *numbers = s.value.args
        assert isinstance(out, Address)
        part = self.parts.setdefault(out.buffer, out.buffer.replace(name=f"{out.buffer.name}_part"))
        step, many, at = self.loop.var, index_expr(fit.PROMOTED), Address(part, out.indices, "rw")
        begins = cast(equal(floormod(step, many), index_expr(0)), INDEX)
        dot = _with(Evaluate(Call(s.value.name, (a, b, at, *numbers), INT32)), index_expr(0), begins)
        ends = logical_or(
            equal(floormod(step, many), index_expr(fit.PROMOTED - 1)), equal(step, self.loop.extent - index_expr(1))
        )
        width = numbers[5]
        added = [wait_for(at, width), Evaluate(Call(ADD, (at, out, width), INT32))]
        return seq(dot, If(ends, seq(*added)))


# --------------------------------------------------------------------------------------------------------- beginning


def begin_products(func: Func) -> Func:
    """The program whose products begin their sums themselves, and wait once where several follow one another.

    zero(C)                                        for k in range(2): dot(…, C, fresh=k < 1, pending=8)
    for k in range(2): dot(…, C, pending=0)   ->   wait_for(C, 0)

    So do products of rows in registers, which add to sums that were there before.
    """
    return _Begin().func(func)


class _Begin(Mutator):
    def visit_Seq(self, s: Seq) -> Stmt:
        """Sums that are set to zero right before the products."""
        stmts = list(s.stmts)
        done: list[Stmt] = []
        while stmts:
            one = stmts.pop(0)
            begun = _begun(one, stmts[0]) if stmts and is_call(one, ZERO) else None
            if begun is not None:
                stmts.pop(0)
            done.append(self.stmt(one) if begun is None else begun)
        return seq(*done)

    def visit_For(self, s: For) -> Stmt:
        """Products that add to what is there."""
        if s.kind != "unrolled" or not is_held(s.body):
            return self.generic_stmt(s)
        return seq(s.replace(body=_with(s.body, index_expr(MANY))), _wait_of(s.body))

    def visit_Evaluate(self, s: Evaluate) -> Stmt:
        """One such product."""
        return seq(_with(s, index_expr(MANY)), _wait_of(s)) if is_held(s) else s


def _begun(zero: Stmt, after: Stmt) -> Stmt | None:
    """Products right after their sums were set to zero, without that; None where it is something else."""
    assert isinstance(zero, Evaluate) and isinstance(zero.value, Call)
    inner = after.body if isinstance(after, For) and after.kind in ("serial", "unrolled") else after
    if not is_dot(inner) or not isinstance(inner, Evaluate):
        return None
    target, width = zero.value.args
    out = inner.value.args[2]  # type: ignore[attr-defined]
    if not isinstance(target, Address) or out.buffer is not target.buffer:
        return None
    if not all(structural_equal(i, j) for i, j in zip(out.indices, target.indices)):
        return None
    if not isinstance(after, For):
        return seq(_with(inner, index_expr(MANY), index_expr(1)), wait_for(out, width))
    fresh = cast(less(after.var, index_expr(1)), INDEX)
    return seq(after.replace(body=_with(inner, index_expr(MANY), fresh)), wait_for(out, width))


def wait_for(out: Expr, width: Expr, pending: int = 0) -> Stmt:
    """The statement that waits for the products that a tile sums."""
    return Evaluate(Call(WAIT_FOR, (out, width, index_expr(pending)), INT32))


def _wait_of(dot: Stmt) -> Stmt:
    """The wait for a product of rows in registers; sums of columns that it leaves out are nobody's to wait for."""
    assert isinstance(dot, Evaluate) and isinstance(dot.value, Call)
    _, _, first = dot.value.name.partition(FIRST)
    return wait_for(dot.value.args[2], index_expr(int(first)) if first else dot.value.args[-4])


def is_held(s: Stmt) -> bool:
    """Whether a statement is a product of rows in registers."""
    return is_dot(s) and s.value.name.startswith(HELD)  # type: ignore[attr-defined]

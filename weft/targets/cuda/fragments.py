"""What threads do with the sums of `wgmma` where they lie: in registers that four warps hold together.

A tile of 64 rows in the scope "wgmma.c" is as many numbers of each of 128 threads: of column j and row i, thread
32 (i // 16) + 4 (i % 8) + j % 8 // 2 has them. A number for each row (scope "wgmma.row") is held by the four threads
that share the row.

    wgmma_held_<kind>_<width>     C[i, j] += wide(narrow(a[i, k])) * wide(b) for 64 × width × 64; a is a tile of sums
    wgmma_held_…_first_<n>        the same of columns that are zeros from n on: their sums stay as they are
    wgmma_pack_<kind>             the narrow numbers of a tile of sums, two in a word: a may be such words, too
    wgmma_row_max_<width>, wgmma_row_sum_<width>     of each row of a tile; four threads put theirs together

Loops over the rows and columns of tiles are plain loops until code is generated, annotated "fragment": "rows" or
"columns". `own_registers` then has each thread run over its own elements alone:

    for i in range(64):  {fragment: rows}              for half in range(2):
      for j in range(128): {fragment: columns}   ->      for group in range(16): for one in range(2):
        T[i, j] = exp(S[i, j] - top[i])                    T.own[4 group + 2 half + one] = exp(S.own[…] - top.own[half])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.codegen.c.calls import quick
from weft.codegen.c.context import Context, Emitter
from weft.codegen.c.statements import to_memory
from weft.core.dtypes import INDEX, INT32, dtype
from weft.core.errors import InternalError, TargetError
from weft.expr.nodes import (
    LE,
    LT,
    TRUE,
    Add,
    Address,
    Buffer,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Mul,
    Select,
    Sub,
    Var,
    add,
    cast,
    const,
    floordiv,
    floormod,
    index_expr,
    int_value,
    logical_and,
    mul,
    sub,
)
from weft.expr.visit import ExprMutator, free_vars, substitute, uses_any
from weft.loop.interpreter import register_effect
from weft.loop.ir import Evaluate, For, Func, If, Let, Seq, Stmt, Store, seq
from weft.loop.passes.support import linear
from weft.loop.regions import conjuncts
from weft.loop.visit import Mutator, substitute_stmt, walk_exprs
from weft.targets.cuda import mma, wgmma
from weft.targets.cuda.machine import SUM_COLUMNS

FRAGMENT = "fragment"
"""The annotation of a loop over "rows" or "columns" of tiles."""
HELD, PACK, MAX, SUM = wgmma.HELD, "wgmma_pack_", "wgmma_row_max", "wgmma_row_sum"
GET, SET, PAIR, POWER = "fragment_get", "fragment_set", "fragment_pair", "fragment_power"
QUAD = "fragment_quad"

# ------------------------------------------------------------------------------------------------------- emitting


def _own(c: Context, e: Expr, stride: int) -> str:
    """The registers of this thread from a place on in a tile whose rows are so far apart."""
    assert isinstance(e, Address)
    index, tile = c.value(e.indices[0]), wgmma.ROWS * stride
    return f"({c.base(e.buffer)} + ({index}) / {tile} * {stride // 2} + ({index}) % {tile} / 2)"


def _held(kind: mma.Kind, first: int = 0) -> Emitter:
    """Multiplies rows in registers by all columns, or by the `first` ones."""

    def emit(c: Context, call: Call) -> str:
        a, b, out = call.args[:3]
        a_stride, b_line, b_block, width = (c.constant(e) for e in call.args[3:7])
        order, pending = (c.constant(e) for e in call.args[8:])
        if not order or b_line != wgmma.LINE:
            raise TargetError(f"operands of wgmma lie in swizzled lines of {wgmma.LINE} elements; these are not such")
        packed = a.buffer.dtype.is_integer  # type: ignore[attr-defined]
        width = first or width
        count, name = width // 2, f"weft_wgmma_{'packed' if packed else 'held'}_{kind.name}_{width}"
        sums = ", ".join(f'"+f"(sum[{i}])' for i in range(count))
        shape = f"m64n{width}k16.f32.{kind.a}.{kind.b}"
        c.helper("weft_wgmma_operand", wgmma.PLACE)
        _pack_helper(c, kind)
        given_as = "const uint32_t *words" if packed else "const float *a"
        made = "" if packed else f"  uint32_t words[16];\n  weft_wgmma_pack_{kind.name}<16>(words, a);\n"
        c.helper(
            name,
            f"""template <int32_t pending> DEVICE void {name}(float *sum, {given_as}, const void *b,
    int32_t b_block, bool fresh) {{
{made}  const uint64_t right = weft_wgmma_operand(b, b_block);
{wgmma.products(shape, count, wgmma.IN_WORDS, 128, "1, 1, 1")}{wgmma.finish(sums)}
}}""",
        )
        operands = f"{_own(c, a, a_stride)}, {c.pointer(b)}, {2 * b_block}, {c.value(call.args[7])}"
        return f"{name}<{pending}>({c.fragment(out)}, {operands})"

    return emit


def _pack_helper(c: Context, kind: mma.Kind) -> None:
    c.helper(
        f"weft_wgmma_pack_{kind.name}",
        f"""template <int32_t count> DEVICE void weft_wgmma_pack_{kind.name}(uint32_t *words, const float *a) {{
  #pragma unroll
  for (int32_t i = 0; i < count; ++i)
    asm("cvt.rn.{kind.a}x2.f32 %0, %1, %2;" : "=r"(words[i]) : "f"(a[2 * i + 1]), "f"(a[2 * i]));
}}""",
    )


def _pack(kind: mma.Kind) -> Emitter:
    def emit(c: Context, call: Call) -> str:
        _pack_helper(c, kind)
        source, target, width = call.args[0], call.args[1], c.constant(call.args[2])
        return f"weft_wgmma_pack_{kind.name}<{width // 4}>({c.fragment(target)}, {c.fragment(source)})"

    return emit


def _row(name: str, combined: str) -> Emitter:
    """A reduction of each row: of a thread's own numbers, then of four threads."""

    def emit(c: Context, call: Call) -> str:
        source, target, width = call.args[0], call.args[1], c.constant(call.args[2])
        c.helper(
            f"weft_{name}",
            f"""template <int32_t count> DEVICE void weft_{name}(float *to, const float *a) {{
  #pragma unroll
  for (int32_t half = 0; half < 2; ++half) {{
    float x = a[2 * half], y = a[2 * half + 1];
    #pragma unroll
    for (int32_t i = 1; i < count; ++i) {{
      x = {combined.format("x", "a[4 * i + 2 * half]")};
      y = {combined.format("y", "a[4 * i + 2 * half + 1]")};
    }}
    x = {combined.format("x", "y")};
    x = {combined.format("x", "__shfl_xor_sync(0xffffffffu, x, 1)")};
    to[half] = {combined.format("x", "__shfl_xor_sync(0xffffffffu, x, 2)")};
  }}
}}""",
        )
        return f"weft_{name}<{width // 8}>({c.fragment(target)}, {c.fragment(source)})"

    return emit


def _get(c: Context, call: Call) -> str:
    return f"{c.base(call.args[0].buffer)}[{c.index(call.args[1])}]"  # type: ignore[attr-defined]


def _pair(c: Context, call: Call) -> str:
    """Two neighbours in memory."""
    buffer = call.args[0].buffer  # type: ignore[attr-defined]
    c.helper(
        "weft_store_pair",
        """template <typename T> DEVICE void weft_store_pair(T *to, T a, T b) {
  struct alignas(2 * sizeof(T)) Pair { T a, b; };
  *(Pair *)to = Pair{a, b};
}""",
    )
    texts = ", ".join(to_memory(c.value(e), buffer.dtype) for e in call.args[1:])
    return f"weft_store_pair<{c.element_type(buffer)}>({c.pointer(call.args[0])}, {texts})"


def _quad(c: Context, call: Call) -> str:
    """Eight neighbours in memory, of four threads that have two of each of four eights."""
    buffer = call.args[0].buffer  # type: ignore[attr-defined]
    c.helper(
        "weft_store_quad",
        """DEVICE void weft_store_quad(void *to, bool there, uint16_t a0, uint16_t a1, uint16_t b0, uint16_t b1,
    uint16_t c0, uint16_t c1, uint16_t d0, uint16_t d1) {
  const uint32_t odd = threadIdx.x & 1u, high = threadIdx.x & 2u;
  const uint32_t a = a0 | ((uint32_t)a1 << 16), b = b0 | ((uint32_t)b1 << 16), c = c0 | ((uint32_t)c1 << 16),
                 d = d0 | ((uint32_t)d1 << 16);
  const uint32_t p = __shfl_xor_sync(0xffffffffu, odd ? a : b, 1), q = __shfl_xor_sync(0xffffffffu, odd ? c : d, 1);
  const uint32_t e = odd ? p : a, f = odd ? b : p, g = odd ? q : c, h = odd ? d : q;
  const uint32_t r = __shfl_xor_sync(0xffffffffu, high ? e : g, 2), s = __shfl_xor_sync(0xffffffffu, high ? f : h, 2);
  struct alignas(16) Words { uint32_t w, x, y, z; };
  if (there) *(Words *)to = high ? Words{r, s, g, h} : Words{e, f, r, s};
}""",
    )
    texts = ", ".join(to_memory(c.value(e), buffer.dtype) for e in call.args[2:])
    return f"weft_store_quad({c.pointer(call.args[0])}, {c.value(call.args[1])}, {texts})"


WIDTHS = tuple(width for width in wgmma.WIDTHS if width % wgmma.LINE == 0)
FIRST_COLUMNS = range(SUM_COLUMNS, wgmma.LINE, SUM_COLUMNS)
"""How many columns of a tile of one line may be of use; of two lines, 80 of 128 columns gained nothing clear."""
NARROW = {name: kind for name, kind in mma.KINDS.items() if kind.transposes}
EMITTERS: Mapping[str, Emitter] = {
    MAX: _row(MAX, "fmaxf({}, {})"),
    SUM: _row(SUM, "{} + {}"),
    GET: _get,
    SET: lambda c, call: f"{_get(c, call)} = {c.value(call.args[2])}",
    PAIR: _pair,
    QUAD: _quad,
    POWER: lambda c, call: quick(c, "exp2", c.value(call.args[0])),
    **{f"{HELD}{name}": _held(kind) for name, kind in NARROW.items()},
    **{f"{HELD}{name}{wgmma.FIRST}{n}": _held(kind, n) for name, kind in NARROW.items() for n in FIRST_COLUMNS},
    **{f"{PACK}{name}": _pack(kind) for name, kind in NARROW.items()},
}

# ----------------------------------------------------------------------------------------- meaning, for the interpreter


def _mean_held(kind: mma.Kind, first: int = 0) -> Callable[..., None]:
    def run(a: Any, b: Any, out: Any, *numbers: int) -> None:
        a_stride, b_line, b_block, width, fresh, order, _ = numbers
        narrow = dtype(kind.elements[0]).numpy
        if a.buffer.dtype.is_integer:
            left = a.view((wgmma.ROWS, wgmma.LINE // 2), (int(a_stride), 1)).copy().view(narrow)
        else:
            left = a.view((wgmma.ROWS, wgmma.LINE), (int(a_stride), 1)).astype(narrow)
        right = wgmma.operand_seen(kind, b, b_line, b_block, int(width), False, order)
        if first:
            right = np.where(np.arange(int(width))[:, None] < first, right, np.zeros((), right.dtype))
        mma.add_products(kind, out, left, right, bool(fresh))

    return run


def _mean_pack(kind: mma.Kind) -> Callable[..., None]:
    def run(source: Any, target: Any, width: int) -> None:
        numbers = source.view((wgmma.ROWS, int(width)), (int(width), 1)).astype(dtype(kind.elements[0]).numpy)
        target.view((wgmma.ROWS, int(width) // 2), (int(width) // 2, 1))[...] = numbers.view(np.uint32)

    return run


def _mean_row(combine: Any) -> Callable[..., None]:
    def run(source: Any, target: Any, width: int) -> None:
        target.view((wgmma.ROWS,), (1,))[...] = combine(source.view((wgmma.ROWS, int(width)), (int(width), 1)), axis=1)

    return run


register_effect(MAX, _mean_row(np.max))
register_effect(SUM, _mean_row(np.sum))
for _name, _kind in NARROW.items():
    register_effect(f"{HELD}{_name}", _mean_held(_kind))
    for _first in FIRST_COLUMNS:
        register_effect(f"{HELD}{_name}{wgmma.FIRST}{_first}", _mean_held(_kind, _first))
    register_effect(f"{PACK}{_name}", _mean_pack(_kind))

# ----------------------------------------------------------------------------------------------------- declaring


def _declare_held(kind: mma.Kind, width: int, narrower: str = "") -> None:
    a = te.placeholder((wgmma.ROWS, wgmma.LINE), "float32", name="a")
    b = te.placeholder((width // wgmma.LINE, wgmma.LINE, wgmma.LINE), kind.elements[1], name="b")

    def calls(left: Any, right: Any, out: Any) -> tuple[Call, Call]:
        places = (left.access_ptr("r"), right.access_ptr("r"), out.access_ptr("rw"))
        numbers = (left.stride(0), right.stride(1), right.stride(0), *map(te.const, (width, 0, 0, 0)))
        reset = Call(wgmma.ZERO, (out.access_ptr("w"), te.const(width)), INT32)
        return reset, Call(f"{HELD}{kind.name}{narrower}", (*places, *numbers), INT32)

    mma.declare_dot(
        f"wgmma_held_{kind.name}_{width}{narrower}", kind, (wgmma.ROWS, width, wgmma.LINE),
        lambda i, k: a[i, k].astype(kind.elements[0]), lambda j, k: b[j // wgmma.LINE, k, j % wgmma.LINE], calls,
    )  # fmt: skip


def _declare_row(name: str, reduce: Any, width: int) -> None:
    a, k = te.placeholder((wgmma.ROWS, width), "float32", name="a"), te.reduce_axis(width, name="k")
    out = te.compute((wgmma.ROWS,), lambda i: reduce(a[i, k], axis=k), name="out")

    def rule(inputs: Any, outputs: Any) -> Call:
        return Call(name, (inputs[0].access_ptr("r"), outputs[0].access_ptr("w"), te.const(width)), INT32)

    te.decl_tensor_intrin(out.op, rule, f"{name}_{width}")


for _width in WIDTHS:
    _declare_row(MAX, te.max, _width)
    _declare_row(SUM, te.sum, _width)
    for _kind in NARROW.values():
        _declare_held(_kind, _width)
for _first in FIRST_COLUMNS:
    for _kind in NARROW.values():
        _declare_held(_kind, wgmma.LINE, f"{wgmma.FIRST}{_first}")

# ------------------------------------------------------------------------------------------ tiles that no mask cuts


def skip_masks(func: Func) -> Func:
    """The program whose tiles are tested as a whole before their elements are.

    for i: for j: M[i, j] = s if k + j <= q + i else -inf   ->   if k + 127 <= q: for i: for j: M[i, j] = s
                                                                 else: …
    """
    return _Masks().func(func)


class _Masks(Mutator):
    def visit_For(self, s: For) -> Stmt:
        """A loop over the rows of a tile that stores to it."""
        inner = s.body
        if s.annotations.get(FRAGMENT) != "rows" or not isinstance(inner, For) or not isinstance(inner.body, Store):
            return self.generic_stmt(s)
        value, tests = inner.body.value, list[Expr]()
        while isinstance(value, Select) and isinstance(value.otherwise, Const) and value.otherwise.value == -math.inf:
            tests += conjuncts(value.condition)
            value = value.then
        whole = [_everywhere(test, (s, inner)) for test in tests]
        if not whole or None in whole:
            return s
        store = Store(inner.body.buffer, inner.body.indices, value, inner.body.predicate)
        plain = s.replace(body=inner.replace(body=store))
        return If(logical_and(*[test for test in whole if test is not None]), plain, s)


def _everywhere(test: Expr, loops: Sequence[For]) -> Expr | None:
    """Whether a <= b (or a < b) holds at all points of loops; None where that is not known."""
    if not isinstance(test, (LE, LT)):
        return None
    form = linear(sub(test.a, test.b))
    for loop in loops:
        factor, extent = form.terms.get(loop.var, 0), int_value(loop.extent)
        if extent is None or any(term is not loop.var and uses_any(term, {loop.var}) for term in form.terms):
            return None
        form = form.without(loop.var).shifted(max(factor, 0) * (extent - 1))
    return type(test)(form.expr(), index_expr(0))


# --------------------------------------------------------------------------------------------- each thread its own


def own_registers(func: Func) -> Func:
    """The program whose loops over tiles run over the elements of one thread."""
    return _Own().func(func)


class _Own(Mutator):
    def __init__(self) -> None:
        self.thread: Var | None = None
        self.rows: dict[Var, Expr] = {}
        self.columns: dict[Var, Expr] = {}
        self.known: dict[Var, Expr] = {}
        self.unrolled: set[Var] = set()

    def visit_Let(self, s: Let) -> Stmt:
        """An index that was worked out before is seen through."""
        if s.var.dtype.is_integer:
            self.known[s.var] = substitute(s.value, self.known)
        return self.generic_stmt(s)

    def visit_For(self, s: For) -> Stmt:
        """A loop over a tile becomes one over a thread's own elements."""
        if s.thread == "threadIdx.x" and self.thread is None:
            self.thread = s.var
            done = self.generic_stmt(s)
            self.thread = None
            return done
        role, extent = s.annotations.get(FRAGMENT), int_value(s.extent)
        if role is None:
            if extent == 1:
                self.known[s.var] = index_expr(0)  # a block that is alone does not know it
            elif s.kind == "unrolled":
                self.unrolled.add(s.var)
            return self.generic_stmt(s)
        if self.thread is None or extent is None:
            raise TargetError(f"the loop {s.var.name} over {role} of a tile needs its threads, threadIdx.x, around it")
        warp, lane = floordiv(self.thread, index_expr(32)), floormod(self.thread, index_expr(32))
        if role == "rows":
            half = Var(f"{s.var.name}_half")
            self.rows[s.var] = half
            place = add(add(mul(warp, index_expr(16)), mul(half, index_expr(8))), floordiv(lane, index_expr(4)))
            inside = self.stmt(s.body)
            del self.rows[s.var]
            return For(half, 2, Let(s.var, place, inside), "unrolled")
        whole, rest = extent // 32 * 32, Var(f"{s.var.name}_rest")
        if 0 < whole < extent:  # those of which threads exchange 32, and the others
            body = substitute_stmt(s.body, {s.var: add(rest, index_expr(whole))})
            others = For(rest, extent - whole, body, s.kind, s.thread, s.annotations)
            return seq(self.stmt(s.replace(extent=index_expr(whole))), self.stmt(others))
        group, one = Var(f"{s.var.name}_group"), Var(f"{s.var.name}_one")
        self.columns[s.var] = add(mul(group, index_expr(4)), one)
        place = add(add(mul(group, index_expr(8)), mul(floormod(lane, index_expr(4)), index_expr(2))), one)
        paired = self._pair(s)
        if isinstance(paired, For):
            del self.columns[s.var]
            return paired
        if paired is not None:
            inner: Stmt = Let(s.var, substitute(place, {one: index_expr(0)}), paired)
        else:
            inner = For(one, 2, Let(s.var, place, self.stmt(s.body)), "unrolled")
        del self.columns[s.var]
        return For(group, extent // 8, inner, "unrolled")

    def visit_If(self, s: If) -> Stmt:
        """A test of a row goes into the loops over its columns: the threads of a warp exchange what they store, so all
        of them have to come there, whatever their rows."""
        test = substitute(s.condition, self.known)
        if not self.rows or self.columns or s.otherwise is not None or not uses_any(test, set(self.rows)):
            return self.generic_stmt(s)
        inside = self.stmt(_with_test(s.then, s.condition))
        exchanged = any(isinstance(e, Call) and e.name == QUAD for e in walk_exprs(inside, Call))
        return inside if exchanged else self.generic_stmt(s)

    def _pair(self, s: For) -> Stmt | None:
        """Two neighbouring columns that are stored to memory, as one store; None where they are not such."""
        store, tests = s.body, list[Expr]()
        while isinstance(store, If) and store.otherwise is None:
            tests += conjuncts(store.condition)
            store = store.then
        if not isinstance(store, Store) or store.buffer.scope != "global" or store.predicate is not None:
            return None
        form = linear(wide_index(substitute(store.indices[0], self.known)))
        even = form.constant % 2 == 0 and all(n % 2 == 0 for v, n in form.terms.items() if v is not s.var)
        if form.terms.get(s.var) != 1 or not even or not all(_in_pairs(test, s.var) for test in tests):
            return None
        if store.buffer.dtype.bytes == 2 and int_value(s.extent) % 32 == 0:  # type: ignore[operator]
            eighths = all(n % 8 == 0 for n in (form.constant, *[n for v, n in form.terms.items() if v is not s.var]))
            if eighths and all(_in_pairs(test, s.var, 8) for test in tests):
                return self._quads(s, store, tests)
        values = []
        whole, column = self.columns[s.var], s.var
        for at in (0, 1):
            self.columns[column] = _at(whole, at)
            value = substitute(store.value, {column: add(column, index_expr(1))}) if at else store.value
            values.append(self.expr(value))
        self.columns[column] = whole
        place = Address(store.buffer, [self.expr(store.indices[0])], "w")
        made: Stmt = Evaluate(Call(PAIR, (place, *values), INT32))
        for test in reversed(tests):
            made = If(self.expr(test), made)
        return made

    def _quads(self, s: For, store: Store, tests: list[Expr]) -> For:
        """Four threads of a row exchange pairs of 32 columns, so that each stores 8 neighbours at a time."""
        assert self.thread is not None
        column, four, fourth = s.var, Var(f"{s.var.name}_four"), floormod(self.thread, index_expr(4))

        def put(e: Expr, group: Expr, inside: Expr) -> Expr:
            """An expression at a place among the 32 columns."""
            at = add(mul(add(mul(four, index_expr(4)), group), index_expr(8)), inside)
            return substitute(self.expr(e), {column: at})

        def there(group: Expr, inside: Expr) -> Expr:
            return logical_and(*[put(test, group, inside) for test in tests]) if tests else TRUE

        values, twice = [], mul(fourth, index_expr(2))
        for group in map(index_expr, range(4)):
            for one in (0, 1):
                self.columns[column] = add(mul(add(mul(four, index_expr(4)), group), index_expr(4)), index_expr(one))
                e = substitute(store.value, {column: add(column, index_expr(1))}) if one else store.value
                value = put(e, group, twice)
                values.append(_Inside(there(group, twice)).expr(value) if tests else value)
        place = Address(store.buffer, [put(store.indices[0], fourth, index_expr(0))], "w")
        made = Evaluate(Call(QUAD, (place, there(fourth, index_expr(0)), *values), INT32))
        return For(four, int_value(s.extent) // 32, made, "unrolled")  # type: ignore[operator]

    def visit_Load(self, e: Load) -> Expr:
        """An element of a tile, in the thread's registers."""
        if "." not in e.buffer.scope:
            return self.generic(e)
        return Call(GET, (Address(e.buffer, [index_expr(0)], "r"), self._register(e.buffer, e.indices[0])), e.dtype)

    def visit_Store(self, s: Store) -> Stmt:
        """An element of a tile that is set."""
        if "." not in s.buffer.scope:
            return self.generic_stmt(s)
        place = (Address(s.buffer, [index_expr(0)], "w"), self._register(s.buffer, s.indices[0]))
        return Evaluate(Call(SET, (*place, self.expr(s.value)), INT32))

    def visit_Call(self, e: Call) -> Expr:
        """Powers of a softmax: what is narrow afterwards needs no more than the instruction gives."""
        done = self.generic(e)
        if (self.rows or self.columns) and e.name == "exp2" and e.dtype.name == "float32":
            return Call(POWER, done.args, e.dtype)  # type: ignore[attr-defined]
        return done

    def _register(self, buffer: Buffer, index: Expr) -> Expr:
        """The number of the register that an element of a tile is in."""
        form = linear(wide_index(substitute(index, self.known)))
        row = next((v for v in form.terms if v in self.rows), None)
        column = next((v for v in form.terms if v in self.columns), None)
        in_rows = buffer.scope.endswith("row")
        if not isinstance(row, Var) or isinstance(column, Var) == in_rows:
            raise TargetError(f"{buffer.name} is held by threads: only loops over its rows and columns may use it")
        stride = form.terms[row]
        each = 2 if in_rows else stride // 2  # registers of a tile
        place = mul(self.rows[row], index_expr(1 if in_rows else 2))
        if isinstance(column, Var):
            place = add(place, self.columns[column])
        others = {term: factor for term, factor in form.terms.items() if term is not row and term is not column}
        for term, factor in [*others.items(), (index_expr(1), form.constant)]:
            if not all(var in self.unrolled for var in free_vars(term)):
                raise InternalError(
                    f"{buffer.name} is held by registers, and which one is not known before the program runs ({term})"
                )
            tiles, rest = divmod(factor, wgmma.ROWS * stride)
            place = add(place, mul(term, index_expr(tiles * each + rest // 2)))
        return place


class _Inside(ExprMutator):
    """Loads only where a test holds; all else is computed, since threads that part wait for one another."""

    def __init__(self, test: Expr) -> None:
        self.test = test

    def visit_Load(self, e: Load) -> Expr:
        return Select(self.test, e, const(0, e.dtype))


def _with_test(s: Stmt, test: Expr) -> Stmt:
    """A statement under a test, inside its loops over columns."""
    if isinstance(s, Seq):
        return seq(*[_with_test(one, test) for one in s.stmts])
    if isinstance(s, Let):
        return Let(s.var, s.value, _with_test(s.body, test))
    if isinstance(s, For) and s.annotations.get(FRAGMENT) == "columns":
        return s.replace(body=If(test, s.body))
    if isinstance(s, For):
        return s.replace(body=_with_test(s.body, test))
    return If(test, s)


def _at(column: Expr, one: int) -> Expr:
    """The register of the first or second of two neighbouring columns."""
    assert isinstance(column, Add)
    return add(column.a, index_expr(one))


def _in_pairs(test: Expr, column: Var, many: int = 2) -> bool:
    """Whether a test holds for all of two (or so many) neighbouring columns, from an even one on, or for none."""
    if not uses_any(test, {column}):
        return True
    if not isinstance(test, LT) or int_value(wide_index(test.b)) is None:
        return False
    form = linear(wide_index(test.a))
    even = all(factor % many == 0 for term, factor in form.terms.items() if term is not column)
    return form.terms.get(column) == 1 and even and (int_value(wide_index(test.b)) - form.constant) % many == 0  # type: ignore[operator]


def wide_index(e: Expr) -> Expr:
    """An index in 64 bits throughout, as it was before it was narrowed."""
    if isinstance(e, Cast) and e.value.dtype.is_integer:
        return wide_index(e.value)
    if isinstance(e, Const):
        return index_expr(int(e.value))
    if isinstance(e, (Add, Sub, Mul)):
        return {Add: add, Sub: sub, Mul: mul}[type(e)](wide_index(e.a), wide_index(e.b))
    return e if e.dtype is INDEX else cast(e, INDEX)

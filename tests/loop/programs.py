"""Programs for the tests of printer, parser and verifier: hand-built ones by name, and a strategy of random ones."""

from hypothesis import strategies as st

from weft.core.dtypes import BOOL, FLOAT32, INDEX, INT32, dtype
from weft.expr.nodes import (
    COMPARE,
    EQ,
    TRUE,
    Add,
    Address,
    And,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Div,
    FloorDiv,
    FloorMod,
    Load,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Ramp,
    Select,
    Sub,
    TruncDiv,
    TruncMod,
    Var,
    const,
    index_expr,
)
from weft.loop.ir import (
    THREAD_TAGS,
    Allocate,
    Axis,
    Block,
    Evaluate,
    For,
    Func,
    If,
    Let,
    Region,
    Seq,
    Store,
    seq,
)

F16, F64, U8 = dtype("float16"), dtype("float64"), dtype("uint8")


def point(buffer, *mins):
    return Region(buffer, mins, [1] * len(mins))


def matmul():
    A, B, C = (Buffer(name, FLOAT32, [1024, 1024]) for name in "ABC")
    yo, xo, yi, xi, k = map(Var, ["yo", "xo", "yi", "xi", "k"])
    y, x, r = map(Var, "yxk")
    block = Block(
        "C",
        [Axis(y, 1024), Axis(x, 1024), Axis(r, 1024, "reduce")],
        [yo * 32 + yi, xo * 32 + xi, k],
        [point(A, r, y), point(B, r, x)],
        [point(C, y, x)],
        Store(C, [y, x], Load(C, [y, x]) + Load(A, [r, y]) * Load(B, [r, x])),
        init=Store(C, [y, x], const(0, FLOAT32)),
        predicate=(yo * 32 + yi) < 1000,
    )
    nest = For(k, 1024, For(xi, 32, block, "vectorized"))
    body = For(yo, 32, For(xo, 32, For(yi, 32, nest)), "parallel")
    return Func("matmul", [A, B, C], body, [Buffer("C_local", FLOAT32, [1024, 1024], "local")])


def dynamic_rows():
    """Sizes by name, a scalar parameter, strides, two blocks with axes of one name."""
    n, m, scale = Var("n"), Var("m"), Var("scale", FLOAT32)
    A = Buffer("A", FLOAT32, [n, m], strides=[m + 8, 1], alignment=4)
    total, out = Buffer("total", FLOAT32, [n], "shared"), Buffer("out", F16, [n, m])
    i, k, i2, j2 = map(Var, ["i", "k", "i2", "j2"])
    y, r, y2, x2 = map(Var, ["i", "k", "i", "j"])
    add = Block(
        "total",
        [Axis(y, n), Axis(r, m, "reduce")],
        [i, k],
        [point(A, y, r)],
        [point(total, y)],
        Store(total, [y], Load(total, [y]) + Call("exp", [Load(A, [y, r])], FLOAT32)),
        init=Store(total, [y], const(0, FLOAT32)),
        annotations={"pragma": ["a", 1, None, True], "note": 'say "hi" # not a comment'},
    )
    value = Load(A, [y2, x2]) / Load(total, [y2]) * scale
    divide = Block(
        "out", [Axis(y2, n), Axis(x2, m)], [i2, j2], [point(A, y2, x2), point(total, y2)], [point(out, y2, x2)],
        Store(out, [y2, x2], Cast(F16, value)),
    )  # fmt: skip
    body = seq(For(i, n, For(k, m, add)), For(i2, n, For(j2, m, divide), "parallel", None, {"chunk": 4}))
    return Func("dynamic_rows", [A, out, scale], body, [total], {"origin": "test"})


def padded_convolution():
    I, W, O = Buffer("I", F16, [64, 64]), Buffer("W", F16, [3, 3]), Buffer("O", FLOAT32, [64, 64])
    y, x, ky, kx = map(Var, ["y", "x", "ky", "kx"])
    a, b, r, s = map(Var, ["y", "x", "ky", "kx"])
    inside = And(And(1 <= a + r, a + r < 65), And(1 <= b + s, b + s < 65))
    padded = Select(inside, Load(I, [a + r - 1, b + s - 1]), const(0, F16))
    block = Block(
        "O",
        [Axis(a, 64), Axis(b, 64), Axis(r, 3, "reduce"), Axis(s, 3, "ordered")],
        [y, x, ky, kx],
        [Region(I, [a - 1, b - 1], [3, 3]), Region(W, [0, 0], [3, 3])],
        [point(O, a, b)],
        Store(O, [a, b], Load(O, [a, b]) + Cast(FLOAT32, padded * Load(W, [r, s]))),
        init=Store(O, [a, b], const(0, FLOAT32)),
    )
    nest = For(ky, 3, For(kx, 3, block, "unrolled"), "unrolled")
    return Func("padded_convolution", [I, W, O], For(y, 64, For(x, 64, nest)))


def tensorized():
    """A block over a tile: wide regions, loops and a nested block in its body, addresses, a call with a dtype."""
    A, C = Buffer("A", dtype("int8"), [64, 64]), Buffer("C", INT32, [64, 64])
    o, i, j, t = Var("o"), Var("i"), Var("j"), Var("t")
    tile, inner = Var("o"), Var("v")
    leaf = Block(
        "leaf", [Axis(inner, 8)], [i], [point(A, inner, 0)], [point(C, inner, 0)],
        Store(C, [inner, 0 * inner], Cast(INT32, Load(A, [inner, index_expr(0)]))),
    )  # fmt: skip
    call = Call("dot.4x4", [Address(C, [tile * 8, index_expr(0)]), Address(A, [tile * 8, t], "r")], dtype("int64"))
    body = seq(For(t, 4, Evaluate(call)), For(i, 8, leaf), For(j, 8, Evaluate(Call("flush cache", [j], INT32))))
    whole = [Region(A, [tile * 8, 0], [8, 64])], [Region(C, [tile * 8, 0], [8, 64])]
    block = Block("a tile", [Axis(tile, 8)], [o], *whole, body)
    return Func("my func", [A, C], For(o, 8, block))


def threads():
    n, A, S = Var("n"), Buffer("A", FLOAT32, [256]), Buffer("S", FLOAT32, [64], "shared", None, 128)
    bx, tx, vt = Var("bx"), Var("tx"), Var("vt")
    load = Store(S, [tx], Load(A, [bx * 64 + tx]))
    barrier = Evaluate(Call("barrier", [], INT32))
    back = If(
        bx * 64 + tx < n,
        Store(A, [bx * 64 + tx], Load(S, [63 - tx])),
        If(EQ(tx, index_expr(0)), Store(A, [tx], const(1, FLOAT32)), Seq([])),
    )
    body = For(tx, 64, seq(load, barrier, For(vt, 2, back, "thread", "vthread")), "thread", "threadIdx.x")
    return Func("threads", [A, n], Allocate(S, For(bx, 4, body, "thread", "blockIdx.x")))


def lowered():
    """Allocations in one another, lets at the end and in the middle, predicates, every way of dividing."""
    n, A = Var("n"), Buffer("A", INT32, [128])
    T, U = Buffer("T", INT32, [8], "local"), Buffer("U", INT32, [8], "local", [2], 16)
    i, s, t, s2, t2, u = Var("i"), *[Var(name, INT32) for name in ("s", "t", "s", "t")], Var("u", BOOL)
    zero = index_expr(0)
    inner = seq(
        Let(s, Load(T, [zero]), Store(U, [zero], s)),
        Let(t, Load(U, [zero]), Let(u, Not(Or(t < 4, n < 4)), Store(T, [i], t, u))),
    )
    divided = Add(TruncDiv(s2, t2), TruncMod(FloorDiv(s2, t2), FloorMod(Min(s2, t2), Max(s2, t2))))
    grouped = Sub(s2, Sub(t2, Mul(Add(s2, t2), Mul(s2, t2))))
    store = Store(A, [i], Select(TRUE, divided, Add(grouped, const(-7, INT32))))
    tail = Let(s2, Load(A, [i]), Let(t2, Load(A, [i + 1]), store))
    return Func("lowered", [A, n], For(i, n, seq(Allocate(T, Allocate(U, inner)), tail)))


def flat_vectors():
    A, B = Buffer("A", FLOAT32, [16, 16]), Buffer("B", FLOAT32, [16, 16])
    i, lanes = Var("i"), Var("v", dtype("float32x8"))
    index = Ramp(i * 16, const(1), 8)
    value = Mul(Load(A, [index]), Broadcast(Load(B, [i]), 8))
    half = Cast(dtype("float16x8"), lanes)
    body = Let(
        lanes,
        value,
        seq(
            Store(B, [index], Select(index < Broadcast(i, 8), Cast(dtype("float32x8"), half), lanes)),
            Store(B, [index], Call("sqrt", [lanes], lanes.dtype), index < Broadcast(const(99), 8)),
        ),
    )
    return Func("flat_vectors", [A, B], For(i, 16, body), annotations={"flat": True})


def literals():
    A = Buffer("A", FLOAT32, [])
    values = [
        const(3), const(-3), Const(2**63 - 1, INDEX), Const(-(2**63), INDEX), const(2**64 - 1, "uint64"),
        const(-128, "int8"), const(1, "uint1"), const(-1, "int1"), const(0.1, FLOAT32), const(-0.0, FLOAT32),
        const(1e-45, FLOAT32), const(1e300, F64), const(float("inf"), FLOAT32), const(float("-inf"), F16),
        const(float("nan"), F64), const(float("nan"), FLOAT32), const(1.5, "bfloat16"), const(float("inf"), "bfloat16"),
        const(True, BOOL), const(False, BOOL), const(0, "handle"), Const(2, FLOAT32),
    ]  # fmt: skip
    calls = [Evaluate(Call("use", [value], INT32)) for value in values]
    odd = [
        Call("reinterpret", [const(1.0, FLOAT32)], INT32), Call("isnan", [Load(A, [])], BOOL),
        Call("select", [const(1)], FLOAT32), Call("float32", [], INT32), Call("for", [], U8), Call("", [], INT32),
        Call("exp", [const(1)], FLOAT32), Call("llvm.x86.thing", [], dtype("float32x4")),
    ]  # fmt: skip
    return Func("literals", [A], seq(*calls, *map(Evaluate, odd), Store(A, [], const(0.5, FLOAT32))))


def clashing_names():
    """Everything is called i, or by a word of the language."""
    n, size, word = Var("i"), Var("i", INT32), Var("for")
    A, B, C = Buffer("i", FLOAT32, [n]), Buffer("A.b", FLOAT32, [Cast(INDEX, size)]), Buffer("nan", FLOAT32, [4])
    loop, axis, inner, odd = Var("i"), Var("i"), Var("i"), Var("x y")
    block = Block(
        "i", [Axis(axis, n), Axis(odd, 1)], [loop, word], [point(A, axis)], [point(B, axis), point(C, 0)],
        For(inner, 4, seq(Store(B, [axis], Load(A, [axis])), Store(C, [inner], Load(A, [inner + odd])))),
    )  # fmt: skip
    shadow_axis, shadow = Var("k"), Var("k")
    second = Block("k", [Axis(shadow_axis, n)], [shadow + 1], [], [], Seq([]))
    return Func("func", [A, B, C, word], For(loop, n, seq(block, For(shadow, 2, second))))


PROGRAMS = {
    f.__name__: f
    for f in (
        matmul, dynamic_rows, padded_convolution, tensorized, threads, lowered, flat_vectors, literals, clashing_names,
    )
}  # fmt: skip

# ------------------------------------------------------------------------------------------------ random programs

NAMES = st.sampled_from("i j k n A B for nan i_1 i.o float32 reduce é 1a x where".split() + ["x y", ""])
KINDS = [dtype(name) for name in "int64 float32 float16 int32 uint8 uint64 bool float64 bfloat16 int4".split()]
VALUES = st.floats(allow_nan=True, allow_infinity=True)


class Maker:
    """Draws a well-formed program."""

    def __init__(self, draw):
        self.draw = draw
        self.loop_names = set()
        self.counter = 0
        self.vars = []
        self.buffers = []

    def pick(self, options):
        return self.draw(st.sampled_from(options))

    def chance(self, of=3):
        return self.draw(st.integers(0, of)) == 0

    def literal(self, kind):
        if kind.is_float:
            return Const(self.draw(VALUES), kind)
        if kind.is_bool:
            return Const(self.draw(st.booleans()), kind)
        return Const(self.draw(st.integers(kind.min, kind.max)), kind)

    def expr(self, kind, depth=3, loads=True):
        scalar = kind.scalar
        options = ["leaf"]
        if depth > 0:
            options += ["select", "cast", "leaf"]
            options += ["compare", "logic", "not"] if kind.is_bool else ["binary", "binary", "binary", "call"]
            options += ["vector"] if kind.lanes > 1 else (["load"] if loads else [])
        choice = self.pick(options)
        return getattr(self, f"make_{choice}")(kind, scalar, depth - 1, loads)

    def make_leaf(self, kind, scalar, depth, loads):
        fitting = [v for v in self.vars if v.dtype is kind]
        if fitting and not self.chance():
            return self.pick(fitting)
        return self.literal(scalar) if kind.lanes == 1 else Broadcast(self.literal(scalar), kind.lanes)

    def make_binary(self, kind, scalar, depth, loads):
        kinds = [Add, Sub, Mul, Min, Max] + ([Div] if kind.is_float else [FloorDiv, FloorMod, TruncDiv, TruncMod])
        return self.pick(kinds)(self.expr(kind, depth, loads), self.expr(kind, depth, loads))

    def make_compare(self, kind, scalar, depth, loads):
        side = self.pick(KINDS).with_lanes(kind.lanes)
        return self.pick(list(COMPARE[:4]))(self.expr(side, depth, loads), self.expr(side, depth, loads))

    def make_logic(self, kind, scalar, depth, loads):
        return self.pick([And, Or])(self.expr(kind, depth, loads), self.expr(kind, depth, loads))

    def make_not(self, kind, scalar, depth, loads):
        return Not(self.expr(kind, depth, loads))

    def make_select(self, kind, scalar, depth, loads):
        condition = self.expr(BOOL.with_lanes(kind.lanes), depth, loads)
        return Select(condition, self.expr(kind, depth, loads), self.expr(kind, depth, loads))

    def make_cast(self, kind, scalar, depth, loads):
        return Cast(kind, self.expr(self.pick(KINDS).with_lanes(kind.lanes), depth, loads))

    def make_call(self, kind, scalar, depth, loads):
        name = self.pick(["abs", "reinterpret", "odd name", "min", "fma"] + (["exp", "neg"] if kind.is_float else []))
        count = {"fma": 3, "min": 2}.get(name, 1)
        return Call(name, [self.expr(kind, depth, loads) for _ in range(count)], kind)

    def make_vector(self, kind, scalar, depth, loads):
        value = self.expr(scalar, depth, loads)
        if scalar.is_bool or self.chance(1):
            return Broadcast(value, kind.lanes)
        return Ramp(value, self.expr(scalar, depth, loads), kind.lanes)

    def make_load(self, kind, scalar, depth, loads):
        fitting = [b for b in self.buffers if b.dtype is kind]
        if not fitting:
            return self.literal(scalar)
        buffer = self.pick(fitting)
        return Load(buffer, [self.expr(INDEX, min(depth, 1)) for _ in buffer.shape])

    def buffer(self):
        shape = [self.expr(INDEX, 1, False) if self.chance() else index_expr(self.draw(st.integers(0, 99)))
                 for _ in range(self.draw(st.integers(0, 2)))]  # fmt: skip
        shape = [index_expr(7) if type(size) is Const and size.value < 0 else size for size in shape]
        strides = [index_expr(3) for _ in shape] if self.chance() else None
        scope = self.pick(["global", "shared", "local", "my scope", "strides"])
        return Buffer(self.draw(NAMES), self.pick(KINDS), shape, scope, strides, self.pick([64, 16, 128]))

    def loop_var(self, unique):
        name = self.draw(NAMES)
        while unique and name in self.loop_names:
            name += "_"
        self.loop_names.add(name)
        return Var(name)

    def annotations(self):
        return self.pick([{}, {}, {"a": 1}, {"é": [1.5, None, {"x": "y\n"}]}])

    def store(self, lanes=1):
        buffer = self.pick(self.buffers)
        indices = [self.expr(INDEX, 2) for _ in buffer.shape]
        if lanes > 1 and indices:
            indices[-1] = self.expr(INDEX.with_lanes(lanes), 2)
        wide = max([index.dtype.lanes for index in indices], default=1)
        predicate = self.expr(BOOL.with_lanes(wide), 2) if self.chance() else None
        return Store(buffer, indices, self.expr(buffer.dtype.with_lanes(wide), 3), predicate)

    def body_stmt(self, depth, lowered):
        """A statement of a block's body, or of the lowered form."""
        choices = ["store", "store", "evaluate"]
        if depth > 0:
            choices += ["for", "if", "let", "seq"] + (["allocate"] if lowered else [])
        choice = self.pick(choices)
        if choice == "store":
            return self.store(self.pick([1, 1, 4]))
        if choice == "evaluate":
            buffer = self.pick(self.buffers)
            where = Address(buffer, [self.expr(INDEX, 1) for _ in buffer.shape], self.pick(["r", "w", "rw", ""]))
            return Evaluate(Call(self.pick(["barrier", "call", "a b"]), [where], self.pick([INT32, INDEX])))
        if choice == "for":
            return self.loop(lambda: self.body_stmt(depth - 1, lowered), unique=not lowered)
        if choice == "if":
            condition, then = self.expr(BOOL, 2), self.body_stmt(depth - 1, lowered)
            otherwise = self.pick([None, Seq([]), "more"])
            return If(condition, then, self.body_stmt(depth - 1, lowered) if otherwise == "more" else otherwise)
        if choice == "let":
            value = self.expr(self.pick([*KINDS, dtype("float32x4")]), 2)
            var = Var(self.draw(NAMES), value.dtype)
            self.vars.append(var)
            body = self.body_stmt(depth - 1, lowered)
            self.vars.remove(var)
            return Let(var, value, body)
        if choice == "allocate":
            buffer = self.buffer()
            self.buffers.append(buffer)
            body = self.body_stmt(depth - 1, lowered)
            self.buffers.remove(buffer)
            return Allocate(buffer, body)
        return Seq([self.body_stmt(depth - 1, lowered) for _ in range(self.draw(st.integers(0, 3)))])

    def loop(self, make_body, unique):
        kind = self.pick(["serial", "parallel", "vectorized", "unrolled", "thread"])
        extent = index_expr(self.draw(st.integers(1, 64))) if kind == "vectorized" else self.expr(INDEX, 2, False)
        var = self.loop_var(unique)
        self.vars.append(var)
        body = make_body()
        self.vars.remove(var)
        tag = self.pick(THREAD_TAGS) if kind == "thread" else None
        return For(var, extent, body, kind, tag, self.annotations())

    def block(self, globals_):
        self.counter += 1
        names = [self.draw(NAMES) for _ in range(self.draw(st.integers(0, 3)))]
        kinds = [self.pick(["spatial", "reduce", "ordered"]) for _ in names]
        axes = [Axis(Var(name), self.expr(INDEX, 1, False), kind) for name, kind in zip(names, kinds)]
        bindings = [self.expr(INDEX, 2, False) for _ in axes]
        predicate = self.expr(BOOL, 2, False) if self.chance() else TRUE
        outer = self.vars
        self.vars = [*globals_, *[axis.var for axis in axes]]
        regions = [
            Region(b, [self.expr(INDEX, 1, False) for _ in b.shape],
                   [1 if self.chance(1) else self.expr(INDEX, 1, False) for _ in b.shape])
            for b in self.buffers
        ]  # fmt: skip
        init = self.body_stmt(1, False) if self.chance() else None
        body = self.body_stmt(2, False)
        self.vars = outer
        name = f"{self.draw(NAMES)}{self.counter}"
        reads = regions if self.chance(1) else []
        return Block(name, axes, bindings, reads, regions, body, init, predicate, self.annotations())

    def scheduled(self, depth, globals_):
        choice = self.pick(["block"] if depth == 0 else ["block", "for", "for", "seq"])
        if choice == "block":
            return self.block(globals_)
        if choice == "for":
            return self.loop(lambda: self.scheduled(depth - 1, globals_), unique=True)
        return seq(*[self.scheduled(depth - 1, globals_) for _ in range(self.draw(st.integers(0, 3)))])

    def func(self):
        sizes = [Var(self.draw(NAMES), kind) for kind in (INDEX, INDEX, INT32)]
        scalars = [Var(self.draw(NAMES), self.pick(KINDS)) for _ in range(self.draw(st.integers(0, 2)))]
        self.vars = sizes + [v for v in scalars if v.dtype.is_integer]
        params = [self.buffer() for _ in range(self.draw(st.integers(1, 3)))] + scalars
        params = self.draw(st.permutations(params))
        draft = Func("f", params, Seq([]))
        globals_ = [*scalars, *draft.size_vars]
        self.vars = list(globals_)
        self.buffers = list(draft.buffers)
        lowered = self.chance(1)
        allocations = [] if lowered else [self.buffer() for _ in range(self.draw(st.integers(0, 2)))]
        self.buffers += allocations
        body = self.body_stmt(4, True) if lowered else self.scheduled(3, globals_)
        name = self.pick(["f", "my func", "for"])
        return Func(name, params, body, allocations, self.annotations())


@st.composite
def programs(draw):
    """Random programs of both forms, that obey every rule of the IR."""
    return Maker(draw).func()

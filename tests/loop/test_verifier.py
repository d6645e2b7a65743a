"""The rules of loop IR: good programs pass, and each rule refuses a program that breaks it, by place and reason."""

import re

import pytest
from hypothesis import given

from tests.loop.programs import PROGRAMS, point, programs
from weft.core.dtypes import BOOL, FLOAT32, INDEX, INT32, dtype
from weft.core.errors import VerifyError
from weft.expr.nodes import (
    LT,
    Add,
    Address,
    And,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Const,
    Div,
    Expr,
    FloorDiv,
    Load,
    Mul,
    Not,
    Ramp,
    Select,
    Var,
    const,
    index_expr,
)
from weft.loop.ir import Allocate, Axis, Block, Evaluate, For, Func, If, Let, Region, Seq, Stmt, Store, seq
from weft.loop.parser import parse_func
from weft.loop.printer import format_func
from weft.loop.verifier import verify

# One breaks a rule of exp's argument, the other has two loops of one name, both on purpose.
GOOD = [name for name in PROGRAMS if name not in ("literals", "clashing_names")]

n, i, j = Var("n"), Var("i"), Var("j")
A, B = Buffer("A", FLOAT32, [8]), Buffer("B", FLOAT32, [8, n])
ZERO, ONE = const(0), const(1.0, FLOAT32)
write = Store(A, [ZERO], ONE)


def func(body, *params, **fields):
    return Func("f", [A, B, *params], body, **fields)


def evaluate(e):
    return func(Evaluate(Call("use", [e], INT32)))


def block(name="b", axes=None, bindings=None, reads=(), writes=None, body=write, **fields):
    axes = [Axis(Var("v"), 8)] if axes is None else axes
    bindings = [ZERO] * len(axes) if bindings is None else bindings
    return Block(name, axes, bindings, reads, [point(A, 0)] if writes is None else writes, body, **fields)


@pytest.mark.parametrize("name", GOOD)
def test_good_programs(name):
    verify(PROGRAMS[name]())


@given(programs())
def test_random_programs_obey_the_rules_and_still_do_when_read_back(program):
    verify(program)
    verify(parse_func(format_func(program)))


def test_what_is_allowed():
    v, inner, t = Var("v"), Var("inner"), Var("t", FLOAT32)
    C = Buffer("C", FLOAT32, [4], "local")
    body = For(inner, n, Let(t, ONE, Allocate(C, seq(Store(C, [inner], t), Store(A, [v + inner], Load(C, [inner]))))))
    verify(func(For(i, 8, block(axes=[Axis(v, 8)], bindings=[i], body=body))))
    # A program without blocks may have loops of one name: copies that passes make.
    verify(func(seq(For(Var("i"), 4, write), For(Var("i"), 4, write))))
    # Blocks and Allocate together, once Func.allocations is empty.
    verify(func(Allocate(C, block())))
    verify(evaluate(Call("unknown effect", [ONE, ZERO], FLOAT32)))
    verify(func(Store(B, [Ramp(ZERO, const(1), 4)], Broadcast(ONE, 4)), annotations={"flat": True}))


K, U = Var("k"), Buffer("U", FLOAT32, [8])
F16 = dtype("float16")
VECTOR = Ramp(ZERO, const(1), 4)
T = Var("t", FLOAT32)
axis = Var("v")

CASES = {
    # variables
    "bound nowhere": (func(Store(A, [K], ONE)), "f > A[k] = 1.0: the variable k is bound nowhere"),
    "loop variable after its loop": (func(seq(For(i, 4, write), Store(A, [i], ONE))), "i is used outside the scope"),
    "let after its body": (func(seq(Let(T, ONE, write), Store(A, [ZERO], T))), "t is used outside the scope"),
    "bound twice": (func(For(i, 4, For(i, 4, write))), "loop i > loop i: the variable i is bound twice"),
    "bound twice in a row": (func(seq(For(i, 4, write), For(i, 4, write))), "i is bound twice"),
    "parameter bound by a loop": (func(For(K, 4, write), K), "k is bound twice"),
    "axis bound twice": (func(block(axes=[Axis(axis, 8), Axis(axis, 8)])), "v is bound twice"),
    "extent in terms of its own loop": (func(For(i, i + 1, write)), "i is bound nowhere"),
    "size of an allocation": (func(write, allocations=[Buffer("C", FLOAT32, [K])]), "k is bound nowhere"),
    "let dtype": (func(Let(T, ZERO, write)), "let t: the variable is float32, but its value is int64"),
    "a float size": (Func("f", [Buffer("X", FLOAT32, [Cast(INDEX, T)])], Seq([])), "size t is float32"),
    # names
    "two blocks": (func(seq(block(), block())), "two blocks are named b"),
    "two loops": (func(seq(For(Var("i"), 4, block()), For(Var("i"), 4, write))), "two loops are named i"),
    # loops
    "loop kind": (func(For(i, 4, write, "odd")), "unknown kind of loop 'odd'; known are serial"),
    "thread tag": (func(For(i, 4, write, "thread", "warp")), "unknown thread tag 'warp'"),
    "no thread tag": (func(For(i, 4, write, "thread")), "unknown thread tag None"),
    "tag without thread": (func(For(i, 4, write, "serial", "vthread")), "only a thread loop may"),
    "vectorized extent": (func(For(i, n, write, "vectorized")), "needs a constant extent, not n"),
    "loop variable dtype": (func(For(Var("i", INT32), 4, write)), "the loop variable is int32"),
    "vector extent": (func(For(i, VECTOR, write)), "the extent is int64x4, not int64"),
    # statements
    "if condition": (func(If(ZERO, write)), "the condition is int64, not a scalar bool: 0"),
    "vector condition": (func(If(VECTOR < 4, write)), "the condition is boolx4"),
    "store dtype": (func(Store(A, [ZERO], ZERO)), "the stored value is int64, but the buffer and indices take float32"),
    "store lanes": (func(Store(A, [VECTOR], ONE)), "take float32x4"),
    "store index": (func(Store(A, [const(0, INT32)], ONE)), "the index 0i32 is int32, not int64"),
    "store rank": (func(Store(B, [ZERO], ONE)), "1 indices, but the buffer has 2 dimensions: B[0] = 1.0"),
    "store predicate": (func(Store(A, [ZERO], ONE, ZERO)), "the predicate of the store is int64"),
    "predicate lanes": (func(Store(A, [ZERO], ONE, VECTOR < 4)), "is boolx4, not bool with 1 lanes"),
    "mixed lanes": (func(Store(B, [VECTOR, Ramp(ZERO, const(1), 8)], ONE)), "indices of 4 and 8 lanes"),
    "evaluate": (func(Evaluate(ZERO)), "only a call can be evaluated"),
    "load rank": (evaluate(Load(B, [ZERO])), "1 indices, but the buffer has 2 dimensions: B[0]"),
    "flat rank": (func(Store(B, [ZERO, ZERO], ONE), annotations={"flat": True}), "a flat program takes one index"),
    # buffers
    "unknown buffer": (func(Store(U, [ZERO], ONE)), "buffer U is no parameter or allocation"),
    "after its allocation": (func(seq(Allocate(U, write), Store(U, [ZERO], ONE))), "buffer U is no parameter"),
    "declared twice": (func(write, A), "the buffer A is declared twice"),
    "allocated twice": (func(Allocate(U, Allocate(U, write))), "allocate U: the buffer U is declared twice"),
    "both forms": (func(Allocate(U, write), allocations=[Buffer("C", FLOAT32, [4])]), "belongs to the lowered form"),
    "negative size": (func(write, Buffer("C", FLOAT32, [-1])), "buffer C has the negative size -1"),
    "strides": (func(write, Buffer("C", FLOAT32, [4], strides=[4, 1])), "has 2 strides, but rank 1"),
    "alignment": (func(write, Buffer("C", FLOAT32, [4], alignment=24)), "alignment 24, which is not a power of two"),
    "scope": (func(write, Buffer("C", FLOAT32, [4], "")), "buffer C has no scope"),
    # blocks
    "bindings": (func(block(bindings=[])), "block b: 1 axes, but 0 bindings"),
    "axis kind": (func(block(axes=[Axis(Var("v"), 8, "odd")])), "axis v has the unknown kind 'odd'"),
    "axis dtype": (func(block(axes=[Axis(Var("v", INT32), 8)])), "axis v is int32"),
    "binding dtype": (func(block(bindings=[ONE])), "the binding of axis v is float32, not int64"),
    "binding of an axis": (func(block(axes=[Axis(axis, 8)], bindings=[axis])), "v is bound nowhere"),
    "binding that loads": (func(block(bindings=[Cast(INDEX, Load(A, [ZERO]))])), "the binding of axis v loads"),
    "binding of a let": (func(Let(K, ZERO, block(bindings=[K]))), "uses k, which a let binds"),
    "block predicate": (func(block(predicate=ZERO)), "the predicate is int64, not a scalar bool"),
    "body uses a loop": (
        func(For(i, 8, block(body=Store(A, [i], ONE)))),
        "func f > loop i > block b > A[i] = 1.0: the body of block b uses the loop variable i from outside",
    ),
    "region uses a loop": (func(For(i, 8, block(writes=[point(A, i)]))), "the loop variable i from outside"),
    "inner body uses an outer axis": (
        func(block(axes=[Axis(axis, 8)], body=block("c", body=Store(A, [axis], ONE)))),
        "the body of block c uses the block axis v",
    ),
    "axis after its block": (func(seq(block(axes=[Axis(axis, 8)]), Store(A, [axis], ONE))), "v is used outside"),
    "undeclared write": (func(block(writes=[])), "block b stores to A, which is not in its writes"),
    "read is no write": (func(block(reads=[point(A, 0)], writes=[])), "which is not in its writes"),
    "undeclared init": (func(block(writes=[point(B, 0, 0)], init=write, body=Seq([]))), "block b stores to A"),
    "undeclared read": (
        func(block(body=Store(A, [ZERO], Load(B, [ZERO, ZERO])))),
        "block b loads B, which is not in its reads or writes: B[0, 0]",
    ),
    "undeclared address": (
        func(block(reads=[point(B, 0, 0)], body=Evaluate(Call("x", [Address(B, [ZERO, ZERO], "rw")], INT32)))),
        "block b writes B, which is not in its writes",
    ),
    "undeclared address read": (
        func(block(body=Evaluate(Call("x", [Address(B, [ZERO, ZERO], "r")], INT32)))),
        "block b reads B, which is not in its reads",
    ),
    "nested block": (func(block(body=block("c", writes=[point(B, 0, 0)]))), "it writes B, but the block b around it"),
    "region rank": (func(block(writes=[point(B, 0)])), "writes a region of B with 1 of its 2 dimensions"),
    "region buffer": (func(block(reads=[point(U, 0)])), "reads U, which is no parameter"),
    "region dtype": (func(block(writes=[Region(A, [VECTOR], [1])])), "a bound of the region of A in writes is int64x4"),
    # expressions
    "sides": (evaluate(Add(ZERO, ONE)), "the sides are int64 and float32; they must have one dtype: 0 + 1.0"),
    "compare sides": (evaluate(LT(ZERO, ONE)), "the sides are int64 and float32"),
    "arithmetic": (evaluate(Mul(ZERO < n, ZERO < n)), "arithmetic is not defined on bool"),
    "float division": (evaluate(Div(ZERO, ZERO)), "'/' is not defined on int64"),
    "integer division": (evaluate(FloorDiv(ONE, ONE)), "integer division is not defined on float32"),
    "and": (evaluate(And(ZERO, ZERO)), "'and' and 'or' take bools"),
    "not": (evaluate(Not(ZERO)), "'not' of int64"),
    "select arms": (evaluate(Select(ZERO < n, ZERO, ONE)), "the arms of the select are int64 and float32"),
    "select condition": (evaluate(Select(n, ZERO, ZERO)), "the condition of the select is int64"),
    "cast lanes": (evaluate(Cast(FLOAT32, VECTOR)), "changes the lanes"),
    "cast handle": (evaluate(Cast(INDEX, Address(A, [ZERO]))), "no cast leads from handle to int64"),
    "arity": (evaluate(Call("exp", [ONE, ONE], FLOAT32)), "exp takes 1 arguments, not 2"),
    "call dtype": (evaluate(Call("exp", [ONE], F16)), "exp of float32 is float32, but the call says float16"),
    "call arguments": (evaluate(Call("pow", [ONE, ZERO], FLOAT32)), "the arguments of pow are float32 and int64"),
    "float call": (evaluate(Call("exp", [ZERO], INDEX)), "exp takes a float, not int64"),
    "ramp": (evaluate(Ramp(VECTOR, const(1), 4)), "a ramp's base and stride are scalars"),
    "ramp dtype": (evaluate(Ramp(ZERO, ONE, 4)), "its stride float32"),
    "broadcast": (evaluate(Broadcast(VECTOR, 4)), "only a scalar can be broadcast"),
    "literal": (evaluate(Const(300, dtype("uint8"))), "the literal does not fit uint8: 300u8"),
    "literal lanes": (evaluate(Const(0, dtype("int64x4"))), "a literal is scalar, not int64x4"),
    "literal of the wrong class": (evaluate(Const(1, BOOL)), "the literal holds a int, not a bool"),
    "address mode": (evaluate(Address(A, [ZERO], "x")), "the mode 'x' of an address"),
    "address lanes": (evaluate(Address(A, [VECTOR])), "an address takes scalar indices"),
}


@pytest.mark.parametrize("name", CASES)
def test_refusals(name):
    program, message = CASES[name]
    with pytest.raises(VerifyError, match=re.escape(message)) as caught:
        verify(program)
    assert str(caught.value).startswith("func f")


def test_a_load_whose_dtype_was_tampered_with():
    load = Load(A, [ZERO])
    load.dtype = INT32
    with pytest.raises(VerifyError, match="the load is int32, but its buffer and indices give float32"):
        verify(evaluate(load))


def test_classes_that_are_no_nodes():
    class Strange(Expr):
        def __init__(self):
            self.dtype, self.holds = FLOAT32, 0

    class Odd(Stmt):
        pass

    with pytest.raises(VerifyError, match="Odd is not a statement"):
        verify(func(Odd()))
    strange = Strange()
    with pytest.raises(VerifyError, match="Strange is not an expression"):
        verify(func(Store(A, [ZERO], strange)))


def test_long_chains_do_not_use_up_the_stack():
    body = write
    for number in range(3000):
        body = Let(Var(f"t{number}"), index_expr(number), body)
    total = ZERO
    for _ in range(5000):
        total = Add(total, n)
    verify(func(seq(body, Store(A, [total], ONE))))

"""reuse_storage: which allocations share memory, and where they end up."""

from __future__ import annotations

from tests.loop.passes.strategies import same_meaning
from weft.expr.nodes import Var, index_expr
from weft.loop.ir import Allocate, For, Let
from weft.loop.parser import parse_func
from weft.loop.passes.flatten import flatten
from weft.loop.passes.reuse_storage import reuse_storage
from weft.loop.visit import walk_stmts


def check(text: str):
    func = flatten(parse_func(text))
    done = reuse_storage(func)
    same_meaning(func, done)
    return done


def buffers(func):
    return [repr(s.buffer) for s in walk_stmts(func.body) if isinstance(s, Allocate)]


def in_loops(func):
    loops = [s for s in walk_stmts(func.body) if isinstance(s, For)]
    return [s for loop in loops for s in walk_stmts(loop.body) if isinstance(s, Allocate)]


STAGE = """
{indent}allocate {name}: {dtype}[{size}]:
{indent}    for {name}i in range({size}):
{indent}        {name}[{name}i] = {value}
{indent}    for {name}j in range(4):
{indent}        C[{name}j] = C[{name}j] + float32({name}[{name}j])
"""


def stage(name, size, depth, dtype="float32", value="1.0"):
    return STAGE.format(indent="    " * depth, name=name, size=size, dtype=dtype, value=value)


def test_buffers_one_after_the_other_share():
    done = check("func f(C: float32[4]):" + stage("a", 8, 1) + stage("b", 16, 1) + stage("c", 4, 1))
    assert buffers(done) == ["a: float32[16]"]


def test_allocations_leave_serial_loops():
    done = check("func f(C: float32[4]):\n    for i in range(3):" + stage("a", 8, 2) + stage("b", 16, 2))
    assert buffers(done) == ["a: float32[16]"] and not in_loops(done)


def test_allocations_stay_in_parallel_loops():
    text = """
func f(C: float32[4]):
    for i in range(4) parallel:
        for k in range(2):
            allocate a: float32[8]:
                a[k] = 2.0
                C[i] = a[k]
"""
    done = check(text)
    assert len(in_loops(done)) == 1
    assert isinstance(done.body, For) and isinstance(done.body.body, Allocate)


def test_other_dtypes_do_not_share():
    done = check("func f(C: float32[4]):" + stage("a", 8, 1) + stage("b", 8, 1, "int32", "int32(1)"))
    assert len(buffers(done)) == 2


def test_a_value_carried_by_a_loop_keeps_its_memory():
    done = check("""
func f(C: float32[4]):
    allocate a: float32[4]:
        for i in range(4):
            a[i] = 0.0
        for k in range(3):
            allocate b: float32[4]:
                for j in range(4):
                    b[j] = a[j] + 1.0
                for m in range(4):
                    a[m] = b[m]
        for n in range(4):
            C[n] = a[n]
""")
    assert len(buffers(done)) == 2


def test_a_chain_of_stages_needs_two_buffers():
    text = "func f(C: float32[4]):\n"
    for number in range(5):
        text += "    " * (1 + number) + f"allocate s{number}: float32[4]:\n"
    for number in range(5):
        value = "1.0" if number == 0 else f"s{number - 1}[i{number}] + 1.0"
        text += f"{'    ' * 6}for i{number} in range(4):\n{'    ' * 7}s{number}[i{number}] = {value}\n"
    text += f"{'    ' * 6}for z in range(4):\n{'    ' * 7}C[z] = s4[z]\n"
    assert len(buffers(check(text))) == 2


def test_small_local_and_shared_memory_is_left_alone():
    text = "func f(C: float32[4]):" + stage("a", 8, 1) + stage("b", 8, 1)
    for scope in ("local", "shared"):
        assert len(buffers(check(text.replace("[8]:", f"[8] {scope}:")))) == 2


def test_hundreds_of_names_do_not_nest_too_deep():
    """A kernel over open sizes names the places that its loops begin at: many, each inside the one before."""
    func = flatten(parse_func("func f(C: float32[4]):\n    for i in range(3):\n" + stage("A", "4", 2)))
    body = func.body
    for at in range(600):
        body = Let(Var(f"name{at}"), index_expr(at), body)
    done = reuse_storage(func.replace(body=body))
    assert sum(isinstance(s, Let) for s in walk_stmts(done.body)) == 600 and not in_loops(done)

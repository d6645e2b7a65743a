"""The schedule's face: handles, tiles, traces; and junk for every argument of every primitive is a ScheduleError."""

from __future__ import annotations

import json
from typing import get_type_hints

import numpy as np
import pytest

from tests.schedule.checking import assert_same, check_compiled, check_trace, run
from tests.schedule.intrinsics import declare_intrinsics
from tests.schedule.programs import SIZE, chain, copy, grid, matmul, rows
from tests.schedule.random_programs import arguments_of
from weft import te
from weft.core.errors import ScheduleError
from weft.loop.verifier import verify
from weft.schedule.registry import _SIGNATURES, PRIMITIVES
from weft.schedule.schedule import Schedule
from weft.schedule.trace import Trace

declare_intrinsics()

VALID = {
    "split": {"loop": "i", "factors": [None, 2], "names": ["a", "b"]},
    "fuse": {"loops": ["io", "ii"], "name": "f"},
    "reorder": {"loops": ["ii", "io"]},
    "parallel": {"loop": "i"},
    "vectorize": {"loop": "i"},
    "unroll": {"loop": "i"},
    "bind": {"loop": "i", "thread": "threadIdx.x"},
    "annotate": {"target": "i", "key": "note", "value": 1},
    "software_pipeline": {"loop": "i", "stages": [0], "order": [0]},
    "prefetch": {"buffer": "A", "loop": "i", "distance": 1, "outer": None},
    "compute_at": {"block": "B", "loop": "j", "exact": True},
    "reverse_compute_at": {"block": "C", "loop": "i"},
    "compute_inline": {"block": "B"},
    "reverse_compute_inline": {"block": "C"},
    "cache_read": {"buffer": "A", "scope": "local", "consumers": ["B"]},
    "cache_write": {"buffer": "B", "scope": "local"},
    "decompose_reduction": {"block": "C", "loop": "k"},
    "rfactor": {"block": "C", "loop": "k", "factor_axis": 0},
    "tensorize": {"loop": "i", "intrin": "test_increment_int32_4"},
    "transform_layout": {"buffer": "B", "inputs": ["i"], "outputs": ["i"]},
    "set_scope": {"buffer": "B", "scope": "local"},
    "storage_align": {"buffer": "D", "dim": 0, "factor": 8, "offset": 1},
    "double_buffer": {"buffer": "B"},
    "pad": {"block": "B", "loop": "i", "factor": 3},
    "overrun": {"block": "B", "axis": 0},
    "zigzag": {"loop": "ii", "by": "io"},
    "split_axis": {"block": "B", "axis": "i", "factor": 2},
    "last_axis": {"block": "B", "axis": "i"},
    "lay_out": {"buffer": "A", "dimension": 0, "factor": 2, "before": [0], "after": [0], "fill": 0},
    "merge_loops": {"first": "i", "second": "j"},
    "release_axis": {"block": "P", "axis": "t"},
    "cache_operand": {"block": "B", "buffer": "A", "scope": "local", "axes": ["i"]},
    "matrix_form": {"block": "P", "pads": [4, 4, 2], "order": [0], "parts": 2, "k_last": [0, 1]},
    "online": {"block": "W", "loop": "q", "peak": "P", "sums": ["L"]},
    "stop_at_mask": {"loop": "q", "block": "M"},
    "beneath_peak": {"loop": "q", "powers": "G", "product": "w"},
    "reverse": {"loop": "i"},
}
"""A legal use of each primitive with all its arguments."""

JUNK = [None, -1, 0, 7, 10**30, 1.5, float("nan"), True, "", "x", "i", "a b", "é", "B", [], [None], ["x"], [-1], [[1]],
        {"a": 1}, {1: 2}, object(), b"i", np.int64(2), np.float32(1), np.zeros(3), ["i", "i"],
        [0, 1, 2, 3], lambda: 0]  # fmt: skip


def steps() -> Schedule:
    """A recurrence through a block that has no past of its own: P[t] = S[t - 1] * 2, S[t] = P[t] + X[t]."""
    x, state = te.placeholder((4, 6), "int32", name="X"), te.placeholder((4, 6), "int32", name="state")
    first = te.compute((1, 6), lambda t, i: x[0, i], name="first")
    doubled = te.compute((4, 6), lambda t, i: state[t - 1, i] * 2, name="P")
    update = te.compute((4, 6), lambda t, i: doubled[t, i] + x[t, i], name="U")
    return te.create_schedule(te.scan(first, update, state, inputs=[x], name="S").op)


def parts() -> Schedule:
    """A softmax in parts of two keys, each weighed beneath the greatest top; its parts are the outermost loop."""
    x = te.placeholder((3, 4, 2), name="X")
    k, r = [te.reduce_axis(2, name=f"k{n}") for n in range(3)], [te.reduce_axis(3, name=n) for n in "pqr"]
    minus = te.const(float("-inf"), "float32")
    masked = te.compute((3, 4, 2), lambda p, i, j: te.select(p * 2 + j <= i, x[p, i, j], minus), name="M")
    top = te.compute((3, 4), lambda p, i: te.max(masked[p, i, k[0]], axis=k[0]), name="T")
    grown = te.compute((3, 4, 2), lambda p, i, j: te.exp(masked[p, i, j] - top[p, i]), name="G")
    total = te.compute((3, 4), lambda p, i: te.sum(grown[p, i, k[1]], axis=k[1]), name="l")
    mixed = te.compute((3, 4), lambda p, i: te.sum(grown[p, i, k[2]] * 2.0, axis=k[2]), name="w")
    peak = te.compute((4,), lambda i: te.max(top[r[0], i], axis=r[0]), name="P")
    whole = te.compute((4,), lambda i: te.sum(mixed[r[1], i] * te.exp(top[r[1], i] - peak[i]), axis=r[1]), name="W")
    sums = te.compute((4,), lambda i: te.sum(total[r[2], i] * te.exp(top[r[2], i] - peak[i]), axis=r[2]), name="L")
    s = te.create_schedule(te.compute((4,), lambda i: whole[i] / sums[i], name="Y").op)
    i, q = s["W"].loops
    s["W"].reorder(q, i)
    return s


def subject(primitive: str) -> Schedule:
    """A schedule on which the valid use of the primitive is legal."""
    if primitive in ("fuse", "reorder", "zigzag"):
        s = chain()
        s.apply("split", loop="i", factors=[None, 2])
        return s
    if primitive == "overrun":
        s = chain()
        s.apply("split", loop="i", factors=[None, 3])
        return s
    if primitive in ("decompose_reduction", "rfactor"):
        return rows()
    if primitive == "tensorize":
        return copy(4)
    if primitive == "release_axis":
        return steps()
    if primitive == "matrix_form":
        a, b = te.placeholder((3, 5), "int32", name="A"), te.placeholder((5, 6), "int32", name="B")
        k = te.reduce_axis((0, 5), "k")
        return te.create_schedule(te.compute((3, 6), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="P").op)
    if primitive in ("online", "stop_at_mask", "beneath_peak"):
        s = parts()
        if primitive != "online":
            s.apply("online", **VALID["online"])
            for name in "wlGTM":
                s.apply("compute_at", block=name, loop="q")
        return s
    if primitive == "storage_align":
        a = te.placeholder((4, 6), "int32", name="A")
        d = te.compute((4, 6), lambda i, j: a[i, j] + 1, name="D")
        return te.create_schedule(te.compute((4, 6), lambda i, j: d[i, j] * 2, name="E").op)
    return chain()


def test_a_valid_use_of_every_primitive_is_known():
    assert set(VALID) == set(PRIMITIVES)


@pytest.mark.parametrize("primitive", sorted(VALID))
def test_a_primitive_is_registered_with_its_own_types(primitive):
    hints = get_type_hints(PRIMITIVES[primitive])
    if not hints:
        pytest.skip("native code has no annotations")
    taken = {name: hint for name, hint in hints.items() if name not in ("func", "return")}
    assert {name: hint for name, (hint, _) in _SIGNATURES[primitive].items()} == taken


@pytest.mark.parametrize("primitive", sorted(VALID))
def test_valid_use(primitive):
    schedule = subject(primitive)
    schedule.apply(primitive, **VALID[primitive])
    verify(schedule.func)


@pytest.mark.parametrize("primitive", sorted(VALID))
def test_junk_is_a_schedule_error(primitive):
    """Whatever stands in the place of one argument: the step is legal, or a ScheduleError says why not."""
    for name in VALID[primitive]:
        for junk in JUNK:
            schedule = subject(primitive)
            try:
                schedule.apply(primitive, **{**VALID[primitive], name: junk})
            except ScheduleError as error:
                assert error.reason
                continue
            verify(schedule.func)
            json.loads(schedule.trace.to_json())
    with pytest.raises(ScheduleError, match="there is no argument nonsense"):
        subject(primitive).apply(primitive, nonsense=1)
    with pytest.raises(ScheduleError, match="give the argument"):
        subject(primitive).apply(primitive)


def test_unknown_primitive():
    with pytest.raises(ScheduleError, match="there is no such primitive; known are annotate, be"):
        copy().apply("explode", loop="i")


def test_junk_for_the_stage_methods():
    s = grid()
    i, j = s["B"].loops
    for call in (
        lambda: s["X"],
        lambda: s[5],
        lambda: s["B"].split("x", factor=2),
        lambda: s["B"].split(i),
        lambda: s["B"].split(i, factor=2, nparts=2),
        lambda: s["B"].split(i, nparts=0),
        lambda: s["B"].split(i, factor="2"),
        lambda: s["B"].split(i, factors=3),
        lambda: s["B"].split(5, factor=2),
        lambda: s["B"].tile(i, j, 2),
        lambda: s["B"].tile(),
        lambda: s["B"].tile(i, j, 2, "2"),
        lambda: s["B"].tile(i, j, 2, -2),
        lambda: s["B"].fuse(),
        lambda: s["B"].reorder(i, "x"),
        lambda: s["B"].bind(i, 5),
        lambda: s["B"].bind(i, te.thread_axis((0, 5), "threadIdx.x")),
        lambda: s["B"].tensorize(i),
        lambda: s["B"].tensorize(i, 5),
        lambda: s["B"].compute_at(s["B"], i),
        lambda: s["B"].compute_at(s["B"], 3),
        lambda: s["B"].storage_align(0, 8),
        lambda: s["B"].storage_align(i, 8),
        lambda: s["B"].storage_align("x", 8),
        lambda: s["B"].annotate("note", object()),
        lambda: s["B"].software_pipeline(i, 5),
        lambda: s.cache_read("X", "local"),
        lambda: s.cache_read("A", 5),
        lambda: s.cache_write("B", None),
        lambda: s.rfactor("B", i),
        lambda: s.transform_layout("B", lambda a, b: (a, b)),
    ):
        func = s.func
        with pytest.raises(ScheduleError):
            call()
        assert s.func is func


def test_tile_is_all_or_nothing():
    s = grid()
    i, j = s["B"].loops
    before = repr(s.func)
    with pytest.raises(ScheduleError, match="at least 1, not 0"):
        s["B"].tile(i, j, 2, 0)
    assert repr(s.func) == before and len(s.trace) == 0
    assert [v.name for v in s["B"].tile(i, j, 2, 3)] == ["io", "jo", "ii", "ji"]
    assert [v.name for v in s["B"].loops] == ["io", "jo", "ii", "ji"]


def test_axes_are_handles_until_they_are_used_up():
    a = te.placeholder((4, 6), "int32", name="A")
    b = te.compute((4, 6), lambda i, j: a[i, j] + 1, name="B")
    s = te.create_schedule(b.op)
    io, ii = s[b].split(b.op.axis[0], nparts=2)
    assert [v.name for v in (io, ii)] == ["io", "ii"]
    s[b].vectorize(s[b].op.axis[1])
    with pytest.raises(ScheduleError, match="the loop i was split into io, ii: use those"):
        s[b].unroll(b.op.axis[0])
    with pytest.raises(ScheduleError, match="the loop i was split into io, ii: use those"):
        s[b].unroll(s[b].op.axis[0])
    with pytest.raises(ScheduleError, match="no block computes A"):
        s[a]
    s[b].pragma(io, "unroll_hint", 4)
    assert s[b].block.annotations == {} and '"pragma_unroll_hint": 4' in repr(s.func)


def test_handles_follow_cached_and_inlined_blocks():
    a = te.placeholder((8,), "int32", name="A")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    c = te.compute((8,), lambda j: b[j] * 2, name="C")
    s = te.create_schedule(c.op)
    s[c].reverse_compute_inline()
    assert [v.name for v in s[c].op.axis] == ["i"]
    cached = s.cache_write(c, "local")
    s[cached].split(c.op.axis[0] if False else s[cached].op.axis[0], factor=4)
    s[c].vectorize(s[c].op.axis[0])
    verify(s.func)


def test_bind_compares_the_thread_axis():
    s = copy(SIZE)
    s["B"].bind("i", te.thread_axis("blockIdx.x"))
    s = copy()
    with pytest.raises(ScheduleError, match="the loop has 6 iterations and the thread axis 8"):
        s["B"].bind("i", te.thread_axis((0, 8), "threadIdx.x"))
    s["B"].bind("i", te.thread_axis((0, 6), "threadIdx.x"))


def test_a_copy_of_a_schedule_is_its_own():
    s = grid()
    s["B"].split("i", factor=2)
    other = s.copy()
    other["B"].fuse("io", "ii")
    assert "ioii" in repr(other.func) and "ioii" not in repr(s.func)
    assert len(s.trace) == 1 and len(other.trace) == 2


# ------------------------------------------------------------------------------------------------------------ traces


def test_trace_as_python_with_awkward_names():
    s = grid()
    start = s.func
    s.apply("split", loop="i", factors=[None, 2], names=["s", "lambda_"])
    s.apply("split", loop="j", factors=[None, 3], names=["a.b", "c"])
    s.apply("annotate", target="s", key='quote"s', value={"x": [1, None, True, 0.5, "é"]})
    check_trace(start, s)
    schedule = Schedule(start)
    exec(s.trace.as_python("plan"), {"plan": schedule})
    assert repr(schedule.func) == repr(s.func)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "nonsense", "null", '{"weft_trace": 2, "steps": []}', '{"weft_trace": 1, "steps": 3}',
     '{"weft_trace": 1, "steps": [3]}', '{"weft_trace": 1, "steps": [{"primitive": "explode", "arguments": {}}]}',
     '{"weft_trace": 1, "steps": [{"primitive": [], "arguments": {}}]}',
     '{"weft_trace": 1, "steps": [{"primitive": "split", "arguments": 3}]}',
     '{"weft_trace": 1, "steps": [{"primitive": "split", "arguments": {}, "results": [1]}]}', None, 5],
)  # fmt: skip
def test_text_that_is_no_trace(text):
    with pytest.raises(ScheduleError):
        Trace.from_json(text)


def test_replay_on_another_program_says_what_is_missing():
    s = grid()
    s["B"].split("j", factor=2)
    with pytest.raises(ScheduleError, match="there is no loop named j"):
        copy().replay(s.trace)


# -------------------------------------------------------------------------------------- programs that were once wrong


def same_after(schedule: Schedule, *steps: tuple[str, dict]) -> None:
    """The steps keep the meaning, in the interpreter and compiled."""
    start = schedule.func
    arrays = arguments_of(start, 7, 3)
    want = run(start, arrays)
    for name, arguments in steps:
        schedule.apply(name, **arguments)
    assert_same(run(schedule.func, arrays), want, repr(schedule.func))
    assert check_compiled(schedule.func, arrays, want)


def test_padded_strides_have_room():
    s = grid()
    s.cache_write("B", "local")
    same_after(s, ("storage_align", {"buffer": "B_local", "dim": 0, "factor": 8, "offset": 5}))


def test_cached_reduction_is_copied_when_it_is_complete():
    """With another block inside the reduction loop the copy still comes after that loop."""
    same_after(
        matmul(),
        ("reorder", {"loops": ["k", "i", "j"]}),
        ("cache_read", {"buffer": "A", "scope": "local"}),
        ("compute_at", {"block": "A_local", "loop": "k"}),
        ("cache_write", {"buffer": "C", "scope": "local"}),
    )


def test_init_of_a_fused_and_split_reduction_stays_inside():
    same_after(
        rows(),
        ("fuse", {"loops": ["i", "k"]}),
        ("split", {"loop": "ik", "factors": [None, 16]}),
        ("split", {"loop": "iki", "factors": [None, 8]}),
    )


def test_recomputed_reduction_keeps_its_init():
    a = te.placeholder((6,), "int32", name="A")
    k = te.reduce_axis(6, "k")
    total = te.compute((), lambda: te.sum(a[k], axis=k), name="T")
    out = te.compute((6,), lambda i: a[i] - total[()], name="O")
    s = te.create_schedule(out.op)
    s.apply("compute_at", block="T", loop="i")
    with pytest.raises(ScheduleError, match="computed anew"):
        s.apply("decompose_reduction", block="T", loop="i")
    same_after(s, ("decompose_reduction", {"block": "T", "loop": "k"}))


def test_rfactor_needs_a_neutral_start():
    a = te.placeholder((8,), "int32", name="A")
    k = te.reduce_axis(8, "k")
    s = te.create_schedule(te.compute((), lambda: te.sum(a[k], axis=k, init=5), name="T").op)
    with pytest.raises(ScheduleError, match="starts from 5i32"):
        s.apply("rfactor", block="T", loop="k")


def test_an_attempt_is_all_or_nothing_and_says_why() -> None:
    A = te.placeholder((16,), "float32", name="A")
    C = te.compute((16,), lambda i: A[i] + 1.0, name="C")
    s = te.create_schedule(C.op)
    before, done = repr(s.func), {"kept"}
    with s.attempt("too wide", done, point={"lanes": 4}) as tried:
        done.add("C")
        with s.attempt("inside"):
            s[C].split(C.op.axis[0], factor=4)
        s[C].vectorize("nothing")
    assert (
        not tried and "nothing" in tried.refused and repr(s.func) == before and done == {"kept"} and not s.trace.steps
    )
    with s.attempt("four") as tried:
        s[C].vectorize(s[C].split(C.op.axis[0], factor=4)[1])
    assert tried and len(s.trace.steps) == 2
    assert [(one.name, bool(one)) for one in s.tried] == [("too wide", False), ("four", True)]
    with s.attempt("never") as tried:
        s[C].unroll(s[C].loops[0])
        tried.refuse("it is not worth it")
    assert tried.refused == "it is not worth it" and str(s.tried[-1]) == "never: refused, it is not worth it"
    with pytest.raises(ZeroDivisionError), s.attempt("a bug is no refusal"):
        raise ZeroDivisionError

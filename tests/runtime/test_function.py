"""Compiled functions: binding of arguments, errors, and the call itself."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.core.dtypes import dtype
from weft.core.errors import ArgumentError, InternalError, RuntimeFault, ShapeError
from weft.runtime import CompiledFunction, Parameter, Signature, array, empty
from weft.runtime.arguments import bind, encode_scalar, fast_binder, slot_format
from weft.runtime.jit import compile_module
from weft.runtime.signature import evaluate, solve

F32, F64, I64, INT4 = dtype("float32"), dtype("float64"), dtype("int64"), dtype("int4")

KERNELS = """
declare void @weft_parallel_for(ptr, ptr, i64, i64)

; slots: A, B, scale (float32), n:   B[i] = A[i] + scale
define internal void @body(i64 %begin, i64 %end, ptr %slots) {
entry:
  %a = load ptr, ptr %slots
  %b_at = getelementptr i64, ptr %slots, i64 1
  %b = load ptr, ptr %b_at
  %scale_at = getelementptr i64, ptr %slots, i64 2
  %scale = load float, ptr %scale_at
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %from = getelementptr float, ptr %a, i64 %i
  %to = getelementptr float, ptr %b, i64 %i
  %x = load float, ptr %from
  %y = fadd float %x, %scale
  store float %y, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %done
done:
  ret void
}

define i32 @shift(ptr %slots, i64 %threads) {
  %n_at = getelementptr i64, ptr %slots, i64 3
  %n = load i64, ptr %n_at
  call void @weft_parallel_for(ptr @body, ptr %slots, i64 %n, i64 %threads)
  ret i32 0
}

define i32 @nothing(ptr %slots, i64 %threads) {
  ret i32 0
}

; the code it returns is the number of threads
define i32 @threads(ptr %slots, i64 %threads) {
  %code = trunc i64 %threads to i32
  ret i32 %code
}
"""


@pytest.fixture(scope="module")
def kernels():
    return compile_module(KERNELS)


SHIFT = Signature(
    "shift",
    (Parameter("A", F32, ("n",)), Parameter("B", F32, ("n",), written=True), Parameter("by", F32, None)),
    ("n",),
)
PAIR = Signature("pair", (Parameter("A", F32, ("n", "m")), Parameter("B", F32, ("n", "m"), written=True)), ("n", "m"))


@pytest.fixture
def shift(kernels):
    return CompiledFunction(SHIFT, kernels.address("shift"), kernels)


@pytest.mark.parametrize("size", [0, 1, 2, 17, 1000])
@pytest.mark.parametrize("threads", [None, 1, 2, 5])
def test_a_call(shift, size, threads):
    a, b = np.arange(size, dtype=np.float32), np.zeros(size, np.float32)
    shift(a, b, 1.5, threads=threads)
    assert np.array_equal(b, a + 1.5)


def test_a_call_with_every_kind_of_array(shift):
    torch = pytest.importorskip("torch")
    a = torch.arange(10, dtype=torch.float32)
    for b in (torch.zeros(10), empty(10, "float32"), np.zeros(10, np.float32).view(type("Own", (np.ndarray,), {}))):
        shift(a, b, np.float32(2))
        assert np.array_equal(np.asarray(b), np.arange(10, dtype=np.float32) + 2)
    read_only = np.arange(10, dtype=np.float32)
    read_only.flags.writeable = False
    shift(read_only, b, 2)


def test_calls_from_many_python_threads(shift):
    failures = []

    def work(seed):
        a = np.full(500, seed, np.float32)
        b = np.zeros(500, np.float32)
        for index in range(200):
            shift(a, b, float(index), threads=2)
            if not (b == seed + index).all():
                failures.append(index)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_threads_of_a_call(kernels):
    signature = Signature("f", ())
    function = CompiledFunction(signature, kernels.address("threads"), kernels, threads=77)
    with pytest.raises(RuntimeFault, match="code 77"):
        function()
    with pytest.raises(RuntimeFault, match="code 6"):
        function(threads=6)
    with pytest.raises(RuntimeFault, match="not enough memory"):
        function(threads=1)
    with pytest.raises(ArgumentError, match="threads is 0"):
        function(threads=0)


def test_no_address_is_our_own_fault():
    with pytest.raises(InternalError):
        CompiledFunction(SHIFT, 0)


def test_the_overhead_of_a_call(kernels):
    """Counted in functions of Python, not in microseconds, which a busy machine stretches."""
    function = CompiledFunction(PAIR, kernels.address("nothing"), kernels)
    a, b = np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32)
    function(a, b)
    entered = []
    sys.setprofile(lambda frame, event, argument: event == "call" and entered.append(frame.f_code.co_name))
    try:
        function(a, b)
    finally:
        sys.setprofile(None)
    assert "__call__" in entered and len(entered) <= 3, entered


# ---------------------------------------------------------------- errors


def a32(*shape):
    return np.zeros(shape, np.float32)


def read_only(*shape):
    made = a32(*shape)
    made.flags.writeable = False
    return made


SHARED = a32(8, 4)
BAD_CALLS = [
    ((a32(2, 3),), r"takes 2 arguments \(A, B\), but got 1"),
    ((a32(2, 3), a32(2, 3), 1), "but got 3"),
    ((a32(2, 3), np.zeros((2, 3))), r"parameter 'B'.*float32.*float64 array of shape \(2, 3\).*astype"),
    ((a32(6), a32(2, 3)), r"parameter 'A': expected 2 axes, shape \(n, m\).*\(6,\)"),
    ((a32(2, 3), a32(2, 4)), r"parameter 'B': expected shape \(n=2, m=3\), but an array of shape \(2, 4\)"),
    ((a32(3, 2).T, a32(2, 3)), "parameter 'A'.*C-contiguous.*numpy.ascontiguousarray"),
    ((a32(2, 6)[:, ::2], a32(2, 3)), "parameter 'A'.*C-contiguous"),
    ((a32(2, 3), read_only(2, 3)), "parameter 'B'.*read-only.*copy"),
    ((SHARED[:4], SHARED[:4]), "parameter 'B'.*overlaps that of 'A'.*copy"),
    ((SHARED[:4], SHARED[3:7]), "overlaps"),
    (([[1.0]], a32(1, 1)), "parameter 'A'.*list.*numpy.asarray"),
    ((None, a32(1, 1)), "parameter 'A'.*None"),
    ((np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3), a32(2, 3)), "multiple of 4 bytes"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_CALLS)
def test_bad_calls_say_what_is_wrong(kernels, arguments, message):
    function = CompiledFunction(PAIR, kernels.address("nothing"), kernels)
    with pytest.raises(ArgumentError, match=message) as caught:
        function(*arguments)
    assert str(caught.value).startswith("pair")


def test_neighbours_do_not_overlap(kernels):
    function = CompiledFunction(PAIR, kernels.address("nothing"), kernels)
    function(SHARED[:4], SHARED[4:])
    function(SHARED[4:], SHARED[:4])
    function(SHARED[2:2], SHARED[0:0])


def test_two_inputs_may_be_the_same():
    signature = Signature("f", (Parameter("A", F32, (4,)), Parameter("B", F32, (4,)), Parameter("C", F32, (4,), True)))
    same = a32(4)
    assert fast_binder(signature)((same, same, a32(4))) is not None
    assert bind(signature, (same, same, a32(4)))


def test_alignment_is_honoured():
    signature = Signature("f", (Parameter("A", F32, (16,), alignment=64),))
    aligned = empty(32, "float32").numpy()
    assert fast_binder(signature)((aligned[16:],)) == bind(signature, (aligned[16:],))[0]
    assert fast_binder(signature)((aligned[4:20],)) is None
    with pytest.raises(ArgumentError, match="multiple of 64 bytes.*16 bytes past.*weft.runtime.array"):
        bind(signature, (aligned[4:20],))


# ---------------------------------------------------------------- scalars


@pytest.mark.parametrize(
    ("kind", "value", "bits"),
    [
        ("int8", -128, -128),
        ("int64", 2**63 - 1, 2**63 - 1),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("int32", np.int64(5), 5),
        ("int32", True, 1),
        ("bool", True, 1),
        ("bool", np.bool_(False), 0),
        ("float32", 1.5, struct.unpack("<I", struct.pack("<f", 1.5))[0]),
        ("float64", -2, struct.unpack("<Q", struct.pack("<d", -2.0))[0]),
        ("float16", 0.1, int(np.float16(0.1).view(np.uint16))),
        ("bfloat16", 0.1, int(np.array(0.1).astype(ml_dtypes.bfloat16).view(np.uint16))),
        ("float32", float("inf"), 0x7F800000),
        ("bfloat16", float("-inf"), 0xFF80),
        ("handle", 2**64 - 1, 2**64 - 1),
    ],
)
def test_scalars(kind, value, bits):
    assert encode_scalar(value, dtype(kind), "f") == bits
    signature = Signature("f", (Parameter("x", dtype(kind), None),))
    assert bind(signature, (value,))[0] == struct.pack(slot_format(signature), bits)
    assert fast_binder(signature)((value,)) in (None, bind(signature, (value,))[0])


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("int8", 128, "does not fit int8"),
        ("uint8", -1, "does not fit uint8"),
        ("int32", 1.0, "whole number"),
        ("int32", "1", "str '1'"),
        ("float32", 1e300, "too large for float32"),
        ("float16", 65520.0, "too large for float16"),
        ("bfloat16", 3.4e38 * 1.01, "too large for bfloat16"),
        ("float32", 10**400, "float32 number"),
        ("float32", "1", "scalar"),
        ("float32", None, "float32 number"),
        ("float32", np.zeros(1), "scalar"),
        ("float32", 1j, "float32 number"),
        ("bool", 1, "True or False"),
    ],
)
def test_scalars_that_are_refused(kind, value, message):
    signature = Signature("f", (Parameter("x", dtype(kind), None),))
    assert fast_binder(signature)((value,)) is None
    with pytest.raises(ArgumentError, match=f"f: parameter 'x'.*{message}"):
        bind(signature, (value,))


# ---------------------------------------------------------------- sizes


def test_a_scalar_parameter_gives_a_size():
    signature = Signature("f", (Parameter("n", I64, None), Parameter("A", F32, ("n", ("mul", "n", 2)))))
    good = (3, a32(3, 6))
    assert fast_binder(signature)(good) == bind(signature, good)[0]
    assert fast_binder(signature)((2, a32(3, 6))) is None
    with pytest.raises(ArgumentError, match=r"expected shape \(n=2, \(n=2 \* 2\)\)"):
        bind(signature, (2, a32(3, 6)))


@pytest.mark.parametrize(
    ("dim", "extent", "size"),
    [
        (("mul", "n", 4), 12, 3),
        (("mul", 4, "n"), 0, 0),
        (("add", "n", 2), 5, 3),
        (("sub", "n", 2), 5, 7),
        (("sub", 9, "n"), 5, 4),
        (("add", ("mul", 2, "n"), 1), 7, 3),
    ],
)
def test_sizes_are_solved_for(dim, extent, size):
    signature = Signature("f", (Parameter("A", F32, (dim,)),), ("n",))
    packed = bind(signature, (a32(extent),))[0]
    assert struct.unpack("<qq", packed)[1] == size
    assert fast_binder(signature)((a32(extent),)) is not None


@pytest.mark.parametrize(("dim", "extent"), [(("mul", "n", 4), 13), (("add", "n", 2), 1), (("sub", 3, "n"), 5)])
def test_sizes_without_a_solution(dim, extent):
    signature = Signature("f", (Parameter("A", F32, (dim,)),), ("n",))
    assert fast_binder(signature)((a32(extent),)) is None
    with pytest.raises(ArgumentError, match="parameter 'A'"):
        bind(signature, (a32(extent),))


def test_a_size_that_divides_by_zero():
    signature = Signature("f", (Parameter("A", F32, ("n",)), Parameter("B", F32, (("floordiv", 8, "n"),))), ("n",))
    assert bind(signature, (a32(2), a32(4)))
    assert fast_binder(signature)((a32(0), a32(4))) is None
    with pytest.raises(ArgumentError, match="divides by zero"):
        bind(signature, (a32(0), a32(4)))


@pytest.mark.parametrize(
    ("parameters", "names", "message"),
    [
        ((Parameter("A", F32, (("floordiv", "n", 2),)),), ("n",), "'n' cannot be found"),
        ((Parameter("A", F32, ("n",)),), (), "'n', which is neither"),
        ((Parameter("A", F32, (4,)),), ("n",), "'n' cannot be found"),
    ],
)
def test_signatures_whose_sizes_cannot_be_found(parameters, names, message):
    with pytest.raises(ShapeError, match=message):
        Signature("f", parameters, names)


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": (1.5,)},
        {"shape": (("pow", "n", 2),)},
        {"shape": (True,)},
        {"shape": None, "written": True},
        {"shape": (4,), "alignment": 3},
        {"shape": (4,), "strides": (1, 2)},
        {"shape": (), "dtype": INT4},
        {"shape": (4,), "dtype": dtype("float32x4")},
    ],
)
def test_parameters_that_make_no_sense(fields):
    with pytest.raises(ShapeError, match="parameter 'A'"):
        Parameter(**{"name": "A", "dtype": F32, **fields})


# ---------------------------------------------------------------- strides, packed types


STRIDED = Signature("f", (Parameter("A", F32, ("n", "m"), True, 4, ("s", 1)),), ("n", "m", "s"))


def test_strides():
    whole = a32(6, 10)
    assert struct.unpack("<4q", bind(STRIDED, (whole[1:4, 2:7],))[0])[1:] == (3, 5, 10)
    assert struct.unpack("<4q", bind(STRIDED, (whole[::2, :1],))[0])[1:] == (3, 1, 20)
    assert struct.unpack("<4q", bind(STRIDED, (whole[::-1],))[0])[1:] == (6, 10, -10)
    with pytest.raises(ArgumentError, match=r"expected strides \(s=20, 1\) in elements"):
        bind(STRIDED, (whole[::2, ::2],))
    with pytest.raises(ArgumentError, match="share memory"):
        bind(STRIDED, (np.lib.stride_tricks.as_strided(whole, (3, 5), (0, 4)),))
    assert bind(STRIDED, (whole[:0],))


def test_strided_arrays_that_overlap():
    signature = Signature(
        "f",
        (Parameter("A", F32, ("n", 2), False, 4, ("s", 1)), Parameter("B", F32, ("n", 2), True, 4, ("s", 1))),
        ("n", "s"),
    )
    whole = a32(8, 2)
    assert bind(signature, (whole[:4], whole[4:]))
    with pytest.raises(ArgumentError, match="overlaps"):
        bind(signature, (whole[::2], whole[1::2]))
    with pytest.raises(ArgumentError, match="overlaps"):
        bind(signature, (whole[3::-1], whole[2:6][::-1]))


def test_packed_types():
    signature = Signature("f", (Parameter("A", INT4, ("n",)), Parameter("B", F32, ("n",))), ("n",))
    for size in (0, 1, 2, 3, 8, 9):
        stored = np.zeros(-(-size // 2), np.uint8)
        assert fast_binder(signature)((stored, a32(size))) is not None
        assert struct.unpack("<3q", bind(signature, (stored, a32(size)))[0])[2] == size
        assert bind(signature, (array(np.zeros(size), "int4"), a32(size)))
    with pytest.raises(ArgumentError, match=r"that is uint8 of shape \(3,\), but an array of shape \(2,\)"):
        bind(signature, (np.zeros(2, np.uint8), a32(5)))
    with pytest.raises(ArgumentError, match=r"but an array of shape \(6,\)"):
        bind(signature, (array(np.zeros(6), "int4"), a32(5)))


def test_packed_types_alone_give_the_size():
    signature = Signature("f", (Parameter("A", INT4, ("n",)),), ("n",))
    bare = np.zeros(3, np.uint8)
    assert struct.unpack("<2q", bind(signature, (bare,))[0])[1] == 6
    assert fast_binder(signature)((bare,)) == bind(signature, (bare,))[0]
    assert struct.unpack("<2q", bind(signature, (array(np.zeros(5), "int4"),))[0])[1] == 5


# ---------------------------------------------------------------- properties


SIZES = ("n", "m", "k")
dims = st.one_of(
    st.sampled_from(SIZES),
    st.integers(0, 3),
    st.tuples(
        st.sampled_from(["add", "sub", "mul", "floordiv", "floormod", "min", "max", "ceildiv"]),
        st.sampled_from(SIZES),
        st.integers(0, 3),
    ),
)
parameters = st.lists(
    st.builds(
        Parameter,
        name=st.just("P"),
        dtype=st.sampled_from([F32, INT4, dtype("bfloat16"), dtype("int8")]),
        shape=st.lists(dims, min_size=1, max_size=3).map(tuple),
        written=st.booleans(),
        alignment=st.sampled_from([1, 4]),
    ),
    max_size=3,
).map(tuple)


@st.composite
def signatures(draw):
    head = Parameter("H", F32, SIZES)
    return Signature("f", (head, *draw(parameters)), SIZES)


@given(signature=signatures())
def test_json_round_trip(signature):
    assert Signature.from_json(signature.to_json()) == signature


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"name": 1, "parameters": [{}], "size_names": []}', "null"])
def test_json_junk(text):
    with pytest.raises(ShapeError, match="signature"):
        Signature.from_json(text)


def fitting_extent(dim, sizes, parameter, is_last):
    extent = max(0, evaluate(dim, sizes))
    return -(-extent * parameter.dtype.bits // 8) if parameter.dtype.is_packed and is_last else extent


@settings(max_examples=300)
@given(data=st.data(), signature=signatures())
def test_the_quick_way_accepts_only_what_the_other_accepts(data, signature):
    """And both give the same slots. Arguments mostly fit; some extents, layouts and types do not."""
    sizes = {name: data.draw(st.integers(0, 4)) for name in SIZES}
    arguments = []
    for parameter in signature.parameters:
        try:
            shape = [
                fitting_extent(dim, sizes, parameter, axis == len(parameter.shape) - 1)
                for axis, dim in enumerate(parameter.shape)
            ]
        except ZeroDivisionError:
            shape = [1] * len(parameter.shape)
        twist = data.draw(st.sampled_from(["none"] * 6 + ["extent", "order", "type", "rank", "read-only", "same"]))
        if twist == "extent":
            shape[data.draw(st.integers(0, len(shape) - 1))] += 1
        made = np.zeros(shape, np.int32 if twist == "type" else parameter.dtype.numpy)
        if twist == "order":
            made = np.zeros(shape[::-1], parameter.dtype.numpy).T
        elif twist == "rank":
            made = made[None]
        elif twist == "read-only":
            made.flags.writeable = False
        elif twist == "same" and arguments:
            made = arguments[-1]
        arguments.append(made)
    try:
        expected = bind(signature, arguments)[0]
    except ArgumentError:
        expected = None
    quick = fast_binder(signature)(tuple(arguments))
    assert quick == expected or (quick is None and any(argument.size == 0 for argument in arguments))


@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["add", "sub", "mul"]), st.integers(1, 5), st.booleans()), max_size=4
    ),
    size=st.integers(0, 50),
)
def test_solve_undoes_evaluate(operations, size):
    dim = "n"
    for operation, number, swapped in operations:
        dim = (operation, number, dim) if swapped else (operation, dim, number)
    assert solve(dim, "n", evaluate(dim, {"n": size}), {}) == size


def test_the_slots_are_what_the_code_reads(kernels):
    seen = []

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)
    def entry(slots, threads):
        seen.append((list(slots[:4]), threads))
        return 0

    a, b = a32(2, 3), a32(2, 3)
    function = CompiledFunction(PAIR, ctypes.cast(entry, ctypes.c_void_p).value, entry)
    function(a, b, threads=3)
    assert seen == [([a.ctypes.data, b.ctypes.data, 2, 3], 3)]
    assert "pair(A, B)" in repr(function)

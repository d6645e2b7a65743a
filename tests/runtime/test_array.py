"""Arrays and DLPack."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.dtypes import dtype
from weft.core.errors import ArgumentError, DTypeError, ShapeError, WeftError
from weft.runtime import Array, array, empty, from_dlpack
from weft.runtime.arrays import as_argument, pack, unpack
from weft.runtime.dlpack import import_array

torch = pytest.importorskip("torch")

KINDS = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]


@pytest.mark.parametrize("kind", [*KINDS, "uint16", "uint32", "uint64", "int4", "uint1", "int2"])
@pytest.mark.parametrize("shape", [(3,), (2, 5), (0,), (4, 0, 2), (1, 1)])
def test_empty(kind, shape):
    made = empty(shape, kind)
    assert made.shape == shape and made.dtype is dtype(kind)
    assert made.numpy().ctypes.data % 64 == 0 or made.numpy().size == 0
    assert made.numpy().flags.carray


def test_empty_takes_a_number_and_no_axes():
    assert empty(3).shape == (3,)
    assert empty((), "int32").shape == ()


@pytest.mark.parametrize("shape", [-1, (2, -1), (1.5,), ("n",), (True,)])
def test_empty_refuses_what_is_no_shape(shape):
    with pytest.raises(ShapeError, match="shape"):
        empty(shape)


def test_array_copies_and_converts():
    source = np.arange(6.0).reshape(2, 3)
    made = array(source, "float32")
    source[:] = 0
    assert np.array_equal(made, np.arange(6, dtype=np.float32).reshape(2, 3))
    assert array([1, 2, 3]).dtype is dtype("int64")
    assert array(torch.ones(2, dtype=torch.bfloat16)).dtype is dtype("bfloat16")
    assert np.array_equal(np.asarray(array([1, 2], "bfloat16"), dtype=np.float32), [1, 2])
    again = array(array([1, -2, 3], "int4"))
    assert again.dtype is dtype("int4") and list(np.asarray(again)) == [1, -2, 3]
    assert array(np.array([[1, 2], [3, 4]], order="F")[:, ::-1]).numpy().flags.c_contiguous


@pytest.mark.parametrize("value", ["text", [[1], [1, 2]], None, np.array([1 + 2j]), object(), np.array(["a"])])
def test_array_refuses_what_has_no_numbers(value):
    with pytest.raises(DTypeError):
        array(value)


def test_array_refuses_vectors():
    with pytest.raises(DTypeError, match="float32x4"):
        empty(3, "float32x4")


@given(
    kind=st.sampled_from(["int4", "uint4", "int2", "uint2", "int1", "uint1"]),
    rows=st.integers(0, 3),
    columns=st.integers(0, 20),
    seed=st.integers(0, 999),
)
def test_packing_round_trip(kind, rows, columns, seed):
    element = dtype(kind)
    values = np.random.default_rng(seed).integers(element.min, element.max + 1, (rows, columns))
    packed = pack(values, element)
    assert packed.shape == (rows, -(-columns * element.bits // 8)) and packed.dtype == np.uint8
    assert np.array_equal(unpack(packed, element, columns), values)
    for column in range(columns):
        byte, shift = divmod(column * element.bits, 8)
        found = (packed[:, byte] >> shift) & ((1 << element.bits) - 1)
        assert np.array_equal(found, values[:, column] & ((1 << element.bits) - 1))


def test_packed_needs_an_axis_and_matching_bytes():
    with pytest.raises(ShapeError, match="axis"):
        empty((), "int4")
    with pytest.raises(ShapeError, match="stored as"):
        Array(np.zeros(3, np.uint8), "int4", (4,))


# ---------------------------------------------------------------- DLPack


@pytest.mark.parametrize("kind", KINDS)
def test_torch_to_weft_shares_memory(kind):
    tensor = torch.zeros(2, 3, dtype=getattr(torch, kind))
    shared = from_dlpack(tensor)
    assert shared.dtype is dtype(kind) and shared.shape == (2, 3)
    shared.numpy()[1, 2] = 1
    assert tensor[1, 2].item() == 1
    tensor[0, 0] = 1
    assert shared.numpy()[0, 0] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_weft_to_torch_shares_memory(kind):
    made = array(np.zeros((2, 3)), kind)
    tensor = torch.from_dlpack(made)
    assert tensor.dtype is getattr(torch, kind) and tuple(tensor.shape) == (2, 3)
    tensor[1, 2] = 1
    assert made.numpy()[1, 2] == 1
    made.numpy()[0, 0] = 1
    assert tensor[0, 0].item() == 1


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_the_memory_outlives_the_exporter(kind):
    made = array(np.arange(1000), kind)
    watch = weakref.ref(made.numpy().base if made.numpy().base is not None else made.numpy())
    tensor = torch.from_dlpack(made)
    del made
    gc.collect()
    filler = [np.ones(1000, np.float32) for _ in range(50)]
    assert tensor[999].item() == np.array(999).astype(dtype(kind).numpy) and filler
    assert watch() is not None
    del tensor
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_memory_outlives_the_tensor(kind):
    freed = []
    backing = np.arange(64, dtype=np.float32)
    tensor = torch.from_numpy(backing)
    weakref.finalize(backing, freed.append, True)
    del backing
    if kind is torch.bfloat16:
        tensor = tensor.view(torch.bfloat16)
    expected = tensor.clone()
    view = import_array(tensor)[3:]
    del tensor
    gc.collect()
    assert not freed
    assert torch.equal(torch.from_dlpack(Array(np.ascontiguousarray(view))), expected[3:])
    del view
    gc.collect()
    assert freed


def test_an_unused_capsule_frees_its_memory():
    made = array(np.arange(10), "bfloat16")
    watch = weakref.ref(made.numpy().base)
    capsule = made.__dlpack__()
    del made
    gc.collect()
    assert watch() is not None and capsule is not None
    del capsule
    gc.collect()
    assert watch() is None


def test_views_keep_their_strides():
    tensor = torch.arange(12.0).reshape(3, 4)
    assert np.array_equal(import_array(tensor.t()), tensor.t().numpy())
    assert np.array_equal(import_array(tensor[1:, ::2]), tensor[1:, ::2].numpy())
    assert import_array(torch.empty(0, 3)).shape == (0, 3)
    assert import_array(torch.tensor(2.5)).shape == ()


def test_numpy_through_dlpack_keeps_read_only():
    values = np.arange(3.0)
    values.flags.writeable = False
    try:
        values.__dlpack__(max_version=(1, 0))
    except (TypeError, BufferError):
        pytest.skip("this numpy does not export read-only arrays")
    assert not import_array(values).flags.writeable


class FakeCuda:
    shape, dtype = (3,), "float32"

    def __dlpack__(self, **_):
        raise AssertionError("asked for memory that the CPU cannot read")

    def __dlpack_device__(self):
        return (2, 0)


class NoCapsule:
    def __dlpack__(self):
        return 5

    def __dlpack_device__(self):
        return (1, 0)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (FakeCuda(), "CUDA.*copy it to the CPU"),
        (NoCapsule(), "no unused DLPack capsule"),
        (torch.ones(3, requires_grad=True), "detach"),
        (torch.ones(3, dtype=torch.complex64).conj().imag, "resolve_neg"),
        (torch.ones(3, dtype=torch.complex64), "element type"),
        ([1.0, 2.0], "numpy.asarray"),
        (2.0, "numpy.asarray"),
        (None, "numpy.asarray"),
        (np.zeros(3), r"float64 array of shape \(3,\).*astype\('float32'\)"),
        (np.zeros(3, ">f4"), "expected an array of float32"),
        (np.zeros(3, ml_dtypes.bfloat16), "bfloat16"),
        (torch.zeros(3, dtype=torch.float64), "torch.float64"),
        (np.array(["a"]), "expected an array of float32"),
    ],
)
def test_arguments_that_are_refused(value, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        as_argument(value, dtype("float32"), "f: parameter 'A'")
    assert str(caught.value).startswith("f: parameter 'A': ")


def test_packed_arguments_tell_their_types_apart():
    with pytest.raises(ArgumentError, match="uint4"):
        as_argument(array([1, 2], "uint4"), dtype("int4"), "A")
    assert as_argument(array([1, 2], "int4"), dtype("int4"), "A").dtype == np.uint8
    assert as_argument(np.zeros(1, np.uint8), dtype("int4"), "A").dtype == np.uint8


def test_every_error_is_for_people():
    with pytest.raises(WeftError, match="__dlpack__"):
        from_dlpack([1, 2])


def test_array_interface_of_numpy():
    made = array([1.0, 2.0], "float32")
    assert np.shares_memory(np.asarray(made), made.numpy())
    assert np.asarray(made, np.float64).dtype == np.float64
    assert len(made) == 2 and "float32" in repr(made)
    with pytest.raises(ValueError, match="copy"):
        made.__array__(np.float64, copy=False)
    assert not np.shares_memory(made.__array__(copy=True), made.numpy())

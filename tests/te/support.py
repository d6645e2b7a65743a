"""One check for all of te: numpy's answer, the interpreter's and the compiled function's are the same."""

import numpy as np

import weft
from weft import te
from weft.loop.interpreter import interpret
from weft.loop.verifier import verify
from weft.runtime.arrays import pack, storage_shape, unpack

TOLERANCE = {"float16": 4e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}


def stored(values, kind):
    """Values as a compiled function takes them (packed types: bytes)."""
    values = np.asarray(values)
    return pack(values, kind) if kind.is_packed else np.array(values, kind.numpy, order="C")


def blank(shape, kind):
    """An output array full of junk."""
    return np.full(storage_shape(shape, kind), 0x5A, kind.numpy)


def values_of(array, kind, shape):
    return unpack(array, kind, shape[-1]) if kind.is_packed else array


def assert_same(got, want, what, rtol=None, atol=None):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape} is not {want.shape}"
    name = got.dtype.name
    if name not in TOLERANCE:
        assert np.array_equal(got, want), f"{what}: {got!r} is not {want!r}"
        return
    rtol = TOLERANCE[name] if rtol is None else rtol
    atol = rtol if atol is None else atol
    np.testing.assert_allclose(
        got.astype("float64"), want.astype("float64"), rtol=rtol, atol=atol, equal_nan=True, err_msg=what
    )


def check(outputs, inputs, wanted, schedule=None, rtol=None, atol=None):
    """`inputs` is {tensor: numpy values}; `wanted` numpy's answers, one for each output."""
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    wanted = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    assert len(outputs) == len(wanted)
    s = schedule or te.create_schedule([t.op for t in outputs])
    verify(s.func)
    given = [stored(values, tensor.dtype) for tensor, values in inputs.items()]
    shapes = [np.shape(want) for want in wanted]
    runs = {"interpreted": [blank(x, t.dtype) for x, t in zip(shapes, outputs)]}
    runs["compiled"] = [array.copy() for array in runs["interpreted"]]
    compiled = weft.build(s, [*inputs, *outputs])
    order = dict(zip([*inputs, *outputs], [*given, *runs["interpreted"]]))
    interpret(s.func, *[order[buffer] for buffer in s.func.buffers])
    compiled(*given, *runs["compiled"])
    for how, arrays in runs.items():
        for tensor, array, want, shape in zip(outputs, arrays, wanted, shapes):
            assert_same(values_of(array, tensor.dtype, shape), want, f"{tensor.name} {how}", rtol, atol)


def numbers(*shape, dtype="float32", seed=0, low=-2.0, high=2.0):
    """Random values of a dtype."""
    made = np.random.default_rng(seed).uniform(low, high, shape)
    return made.astype(te.placeholder((1,), dtype).dtype.numpy)

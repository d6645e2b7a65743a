"""What the tables of a model mean: slots of fields, numbers of types and operators (TFLite's schema, version 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.core.errors import FrontendError
from weft.frontends.emit import Unsupported
from weft.frontends.tflite.flatbuffer import Table, root
from weft.graph.ir import NUMPY_TYPES, Array

TYPES = (
    "float32 float16 int32 uint8 int64 string bool int16 complex64 int8 float64 complex128 uint64 resource variant "
    "uint32 uint16 int4 bfloat16"
).split()
OPERATORS = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT
LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL
LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW
ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS
SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG
ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
BATCH_MATMUL PLACEHOLDER CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND
HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS
RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD
UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
""".split()
"""Operators by number."""


@dataclass(frozen=True)
class Quantization:
    """What whole numbers mean: real = scale (number - zero), along an axis where there are several scales."""

    scale: Array
    zero: Array
    axis: int

    def same(self, other: Quantization | None) -> bool:
        """Whether two say the same."""
        return (
            other is not None
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero, other.zero)
            and self.scale.size == 1
        )


@dataclass(eq=False)
class Tensor:
    """One tensor of a subgraph."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Array | None
    quantization: Quantization | None
    signature: tuple[int, ...] = ()
    """The shape with -1 for sizes that a caller chooses; empty where there are none."""


@dataclass(eq=False)
class Operator:
    """One use of an operator. Inputs that are left out are None."""

    name: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    options: Table | None
    custom: bytes

    def option(self, slot: int, kind: str = "i", default: Any = 0) -> Any:
        """An option by its slot."""
        return default if self.options is None else self.options.number(slot, kind, default)


@dataclass(eq=False)
class Subgraph:
    """A graph of the model."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    operators: list[Operator]


def read(data: memoryview) -> list[Subgraph]:
    """The subgraphs of a model; the first is the model itself."""
    if bytes(data[4:8]) != b"TFL3":
        raise FrontendError("this is no TFLite model: bytes 4 to 8 of one are TFL3")
    model = root(data)
    names = [_operator_name(code) for code in model.tables(1)]
    buffers = model.tables(4)
    found = []
    for subgraph in model.tables(2):
        tensors = [_tensor(table, buffers, data) for table in subgraph.tables(0)]
        found.append(
            Subgraph(
                subgraph.text(4),
                [_at(tensors, index) for index in subgraph.ints(1)],
                [_at(tensors, index) for index in subgraph.ints(2)],
                [_operator(table, names, tensors) for table in subgraph.tables(3)],
            )
        )
    if not found:
        raise FrontendError("the model has no graph")
    return found


def _at(items: list[Any], index: int) -> Any:
    if not 0 <= index < len(items):
        raise FrontendError(f"the file is damaged: it names number {index} of {len(items)}")
    return items[index]


def _operator_name(code: Table) -> str:
    number = max(code.number(0, "b"), code.number(3, "i"))
    name = OPERATORS[number] if 0 <= number < len(OPERATORS) else f"operator {number}"
    return f"CUSTOM {code.text(1)}" if name == "CUSTOM" else name


def _operator(table: Table, names: list[str], tensors: list[Tensor]) -> Operator:
    custom = table.numbers(5, "u1")
    return Operator(
        _at(names, table.number(0, "I")),
        [None if index == -1 else _at(tensors, index) for index in table.ints(1)],
        [_at(tensors, index) for index in table.ints(2)],
        table.table(4),
        b"" if custom is None else custom.tobytes(),
    )


def _tensor(table: Table, buffers: list[Table], data: memoryview) -> Tensor:
    kind = _at(TYPES, table.number(1, "b"))
    shape = tuple(table.ints(0))
    if any(size < 0 for size in shape):
        raise FrontendError(f"the tensor {table.text(3)!r} has the shape {list(shape)}")
    stored = _bytes(_at(buffers, table.number(2, "I")), data)
    array = None
    if stored is not None and stored.size and kind in NUMPY_TYPES and kind != "string":
        array = _array(stored, kind, shape, table)
    return Tensor(table.text(3), kind, shape, array, _quantization(table.table(4)), tuple(table.ints(7)))


def _bytes(buffer: Table, data: memoryview) -> Array | None:
    offset, size = buffer.number(1, "Q"), buffer.number(2, "Q")
    if offset > 1:  # large models keep their weights behind the flatbuffer
        if offset + size > len(data):
            raise FrontendError("the file is damaged: a buffer reaches over its end")
        return np.frombuffer(data, np.uint8, size, offset)
    return buffer.numbers(0, "u1")


def _array(stored: Array, kind: str, shape: tuple[int, ...], table: Table) -> Array:
    sparsity = table.table(6)
    count = int(np.prod(shape))
    if kind == "int4":
        low = (stored << 4).astype(np.int8) >> 4
        pairs = np.stack([low, stored.astype(np.int8) >> 4], 1).reshape(-1)
        return np.asarray(pairs[:count].reshape(shape))
    dtype = np.dtype(NUMPY_TYPES[kind])
    if sparsity is not None:
        return _dense(stored.view(dtype), sparsity, shape)
    if stored.size != count * dtype.itemsize:
        raise FrontendError(f"the tensor {table.text(3)!r} has {stored.size} bytes for the shape {list(shape)}")
    aligned = stored if stored.ctypes.data % dtype.itemsize == 0 else stored.copy()
    return np.asarray(aligned.view(dtype).reshape(shape))


def _dense(values: Array, sparsity: Table, shape: tuple[int, ...]) -> Array:
    """A sparse tensor written out: axes in the order of their traversal, blocks last; dense or compressed each."""
    order, blocks = sparsity.ints(0), sparsity.ints(1)
    levels = sparsity.tables(2)
    rank = len(shape)
    sizes = [level.number(1, "i") for level in levels if level.number(0, "b") == 0]
    block = {axis: levels[rank + at].number(1, "i") for at, axis in enumerate(blocks)}
    if len(order) != len(levels) or not sizes:
        raise Unsupported("a sparse tensor of this form")
    made = np.zeros(shape, values.dtype)
    # every stored value's coordinates, level by level
    places = np.zeros((1, 0), np.int64)
    nodes = np.zeros(1, np.int64)
    for level in levels:
        if level.number(0, "b") == 0:
            size = level.number(1, "i")
            places = np.concatenate([places.repeat(size, 0), np.tile(np.arange(size), len(places))[:, None]], 1)
            nodes = (nodes[:, None] * size + np.arange(size)).reshape(-1)
        else:
            segments, indices = (_indices(level, slot) for slot in (2, 4))
            counts = np.diff(segments)[nodes]
            starts = segments[nodes]
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            nodes = np.repeat(starts, counts) + within
            places = np.concatenate([places.repeat(counts, 0), indices[nodes][:, None]], 1)
    coordinates = np.zeros((len(places), rank), np.int64)
    for at, axis in enumerate(order):
        if axis < rank:
            coordinates[:, axis] += places[:, at] * block.get(axis, 1)
        else:
            coordinates[:, blocks[axis - rank]] += places[:, at]
    made[tuple(coordinates.T)] = values[nodes]
    return made


def _indices(level: Table, slot: int) -> Array:
    """A vector of a sparse axis, of one of three widths."""
    kind = {1: "i4", 2: "u2", 3: "u1"}.get(level.number(slot, "B"))
    inner = level.table(slot + 1)
    found = None if kind is None or inner is None else inner.numbers(0, kind)
    if found is None:
        raise Unsupported("a sparse tensor of this form")
    return found.astype(np.int64)


def _quantization(table: Table | None) -> Quantization | None:
    scale = None if table is None else table.numbers(2, "f4")
    if table is None or scale is None or not scale.size:
        return None
    zero = table.numbers(3, "i8")
    zero = np.zeros(scale.size, np.int64) if zero is None or not zero.size else zero
    if zero.size != scale.size:
        zero = np.broadcast_to(zero[:1], scale.shape)
    return Quantization(scale.copy(), zero.copy(), table.number(6, "i"))

"""Convolution: Conv in any number of spatial dimensions, with groups, strides, dilations and padding.

The functions here are shared by the operators of the same shape (quantized, fused and causal convolutions):

    infer_convolution      types, symbolic sizes included
    convolve_arrays        the meaning, by blocks of im2col and a matrix product
    convolve_tensors       padding as an injective stage, then one sum over (channel, kernel…); depthwise: over kernel…
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import te
from weft.expr.nodes import Expr
from weft.graph.ir import NUMPY_TYPES, Array, Dim, TensorType, Type, dtype_name
from weft.graph.opspec import Compute, Evaluate, Infer, Use, numbers_in, register
from weft.graph.shapes import in_turns, tidy, unknown_dim
from weft.ops.convolution_window import Pads, Window, kernel_axes, pad_array, pad_tensor, tap, volume, windows_of
from weft.ops.elementwise_support import element_type

BLOCK_ELEMENTS = 1 << 22
"""How many elements of unfolded input the numpy meaning holds at once."""

ACCUMULATORS = {
    "float16": "float32",
    "bfloat16": "float32",
    "int8": "int32",
    "uint8": "int32",
    "int16": "int32",
    "uint16": "int32",
}


def accumulator(dtype: str) -> str:
    """The type in which sums of products of a type are kept."""
    return ACCUMULATORS.get(dtype, dtype)


def result_type(use: Use, dtype: str) -> str:
    """The element type of a product of operands of a type: the same, or the one that `output_dtype` names.

    The attribute is our own: with it the sums of bfloat16 products stay float32 for what follows them.
    """
    return element_type(use, "output_dtype", dtype)


# ---------------------------------------------------------------------------------------------------------- inference


def kernel_sizes(use: Use, weight: Sequence[Dim]) -> tuple[int, ...] | None:
    """The kernel's spatial sizes, from the attribute or the weight; None where they are not known."""
    given = use.get("kernel_shape")
    sizes: Sequence[Dim] = list(given) if given else weight[2:]
    if given and len(sizes) != len(weight) - 2:
        raise use.error(f"kernel_shape {list(given)} does not fit a weight of {len(weight)} dimensions")
    for named, held in zip(sizes, weight[2:]):
        if isinstance(named, int) and isinstance(held, int) and named != held:
            raise use.error(f"kernel_shape is {list(sizes)}, but the weight is {list(weight)}")
    return tuple(int(s) for s in sizes if isinstance(s, int)) if all(isinstance(s, int) for s in sizes) else None


def infer_convolution(c: Infer, data: int, weight: int, dtype: str) -> list[Type]:
    """The type of a convolution's result; `data` and `weight` are the positions of its inputs."""
    x, w = c.tensor(data), c.tensor(weight)
    if x.shape is None or w.shape is None:
        known = x.shape if x.shape is not None else None
        shape = None if known is None else (known[0], *[unknown_dim("conv") for _ in known[1:]])
        return [TensorType(dtype, shape)]
    if x.rank < 3 or x.rank != w.rank:
        raise c.error(f"a convolution of {x!r} with a weight {w!r}: the ranks must be equal and at least 3")
    check_groups(c, x.dims[1], w.dims)
    kernel = kernel_sizes(c, w.dims)
    spatial = [unknown_dim("conv") for _ in x.dims[2:]] if kernel is None else Window(c, kernel).out_dims(x.dims[2:])
    return [TensorType(dtype, (x.dims[0], w.dims[0], *spatial))]


def check_groups(c: Use, channels: Dim, weight: Sequence[Dim]) -> None:
    """Refuses channels that the groups do not divide, or that the weight was not made for."""
    group = int(c.get("group", 1))
    if group < 1:
        raise c.error(f"group is {group}; it must be at least 1")
    if isinstance(channels, int) and isinstance(weight[1], int) and weight[1] * group != channels:
        raise c.error(
            f"the input has {channels} channels; the weight {list(weight)} with group={group} takes {weight[1] * group}"
        )
    if isinstance(weight[0], int) and weight[0] % group:
        raise c.error(f"{weight[0]} output channels do not divide into {group} groups")


def turns_of(use: Use) -> int:
    """How many groups take turns in the channels of images and weights: 1 where they stand one behind the other.

    The attribute is our own: of 4 groups of 2 channels, 2 in turns, the channels are a0 b0 a1 b1 c0 d0 c1 d1.
    """
    return int(use.get("turns", 1))


def check_bias(c: Infer, features: Dim) -> None:
    """Refuses a bias (the third input) that is not one number for each channel of the output."""
    bias = c.types[2] if len(c.types) > 2 else None
    shape = bias.shape if isinstance(bias, TensorType) else None
    if shape is None or (len(shape) == 1 and not (isinstance(shape[0], int) and isinstance(features, int))):
        return
    if shape != (features,):
        raise c.error(f"the bias has the shape {list(shape)}; one number for each of {features} channels is needed")


# ------------------------------------------------------------------------------------------------------------- arrays


def exact_type(dtype: str) -> Any:
    """The numpy type in which products are summed: floats widen, short integers go through float64, which is exact."""
    if dtype in ("float16", "bfloat16"):
        return np.float32
    return np.float64 if dtype in ("int8", "uint8", "int16", "uint16") else None


def convolve_arrays(x: Array, w: Array, window: Window, group: int) -> Array:
    """A convolution of arrays in their own type (floats, or integers small enough), by blocks of rows."""
    outs = tuple(int(d) for d in window.out_dims(x.shape[2:]) if isinstance(d, int))
    batch, channels, features = x.shape[0], x.shape[1], w.shape[0]
    result = np.zeros((batch, features, *outs), x.dtype)
    if result.size == 0 or w.size == 0:
        return result
    padded = pad_array(x, window.reach(x.shape[2:], outs))
    view = windows_of(padded, window, outs)
    rank = len(outs)
    depth, taps, row = channels // group, volume(window.kernel), volume(outs[1:])
    matrix = w.reshape(group, features // group, depth * taps)
    rows = max(1, BLOCK_ELEMENTS // max(1, channels * taps * row))
    order = (0, *range(1 + rank, 1 + 2 * rank), *range(1, 1 + rank))
    for n in range(batch):
        for start in range(0, outs[0], rows):
            part = view[n, :, start : start + rows]
            columns = part.transpose(order).reshape(group, depth * taps, -1)
            made = np.matmul(matrix, columns)
            result[n, :, start : start + rows] = made.reshape(features, part.shape[1], *outs[1:])
    return result


def add_channel(y: Array, bias: Array | None) -> Array:
    """Adds one number for each channel."""
    return y if bias is None else y + bias.reshape(1, -1, *[1] * (y.ndim - 2))


def evaluate_convolution(c: Evaluate, x: Array, w: Array, bias: Array | None = None) -> Array:
    """Conv on arrays."""
    kernel = kernel_sizes(c, w.shape)
    assert kernel is not None
    wide, turns = exact_type(str(x.dtype)) or x.dtype, turns_of(c)
    order = in_turns(len(w), w.shape[1], turns) if turns > 1 else []
    if turns > 1:
        x, w = x[:, np.argsort(order)], w[np.argsort(order)]
    made = convolve_arrays(x.astype(wide), w.astype(wide), Window(c, kernel), int(c.get("group", 1)))
    made = made[:, order] if turns > 1 else made
    kind = NUMPY_TYPES[result_type(c, dtype_name(x.dtype))]
    return np.asarray(add_channel(made, None if bias is None else bias.astype(wide)).astype(kind))


# ------------------------------------------------------------------------------------------------------------ tensors


def sizes_of(tensor: te.Tensor) -> tuple[int, ...]:
    """The static shape of a tensor."""
    return numbers_in(dims_of(tensor))


def dims_of(tensor: te.Tensor) -> tuple[Dim, ...]:
    """The shape of a tensor, numbers where they are."""
    return tuple(map(tidy, tensor.shape))


def convolve_tensors(
    x: te.Tensor,
    w: te.Tensor,
    window: Window,
    group: int,
    product: Callable[[Expr, Expr], Expr],
    padding: Callable[[], Any] = lambda: 0,
    name: str = "conv",
    turns: int = 1,
) -> te.Tensor:
    """The sum over channels of a group and kernel positions of `product(input element, weight element)`.

    Where groups of as many channels before as behind take `turns`, those of one lie so far apart.
    """
    sizes, weight = dims_of(x), sizes_of(w)
    outs = window.out_dims(sizes[2:])
    pads: Pads = window.reach(sizes[2:], outs)
    padded = pad_tensor(x, sizes, pads, padding)
    depth, per_group = weight[1], weight[0] // group
    taps = kernel_axes(window)
    channel = [te.reduce_axis(depth, "ci")] if depth > 1 else []

    def body(n: Expr, co: Expr, *at: Expr) -> Any:
        first = co if per_group == 1 else co // per_group
        inner = channel[0].var if channel else te.const(0)
        source = inner if group == 1 else first * depth + inner if channel else first
        if turns > 1:
            source = co // (turns * depth) * (turns * depth) + inner * turns + co % turns
        element = padded[(n, source, *tap(window, at, taps))]
        order = [*taps[:-1], *channel, *taps[-1:]] if turns > 1 else [*channel, *taps]
        return te.sum(product(element, w[(co, inner, *[k.var for k in taps])]), axis=order)

    return te.stage((sizes[0], weight[0], *outs), lambda n, co, *at: body(n, co, *at), name=name)


def wide_product(kind: str) -> Callable[[Expr, Expr], Expr]:
    """A product in the type of the sum."""
    return lambda a, b: a.astype(kind) * b.astype(kind)


def finish(c: Compute, made: te.Tensor, bias: te.Tensor | None, name: str = "conv_bias") -> te.Tensor:
    """Bias for each channel and the cast to the result's type, in one injective stage; none where neither is needed."""
    kind, wanted = str(made.dtype), c.outputs[0].dtype
    if bias is None and kind == wanted:
        return made

    def body(n: Expr, co: Expr, *at: Expr) -> Expr:
        value: Expr = made[(n, co, *at)]
        if bias is not None:
            value = value + bias[co].astype(kind)
        return value.astype(wanted)

    return te.stage(c.out_dims(), lambda n, co, *at: body(n, co, *at), name=name)


def compute_convolution(c: Compute, x: te.Tensor, w: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor | None:
    """Conv as a tensor expression."""
    kernel = kernel_sizes(c, c.shape(1))
    assert kernel is not None
    product = wide_product(accumulator(c.outputs[0].dtype))
    made = convolve_tensors(x, w, Window(c, kernel), int(c.get("group", 1)), product, turns=turns_of(c))
    return finish(c, made, bias)


def _infer(c: Infer) -> list[Type]:
    (made,) = infer_convolution(c, 0, 1, result_type(c, c.tensor(0).dtype))
    if (turns := turns_of(c)) != 1:
        image, weight = c.tensor(0), c.tensor(1)
        same = image.shape is not None and weight.shape is not None and image.dims[1] == weight.dims[0]
        if turns < 1 or int(c.get("group", 1)) % turns or not same:
            raise c.error(f"{turns} groups in turns: they must divide all, with as many channels before as behind")
    if isinstance(made, TensorType) and made.shape is not None:
        check_bias(c, made.dims[1])
    return [made]


register(
    "Conv",
    _infer,
    evaluate_convolution,
    compute_convolution,
    "complex",
    takes="X:number[n c *s], W:X|float[m _ *k], B:number[m]?",
    traits="bordered heavy",
    multiplies=2,
)

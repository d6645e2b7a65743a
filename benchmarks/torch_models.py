"""A graph as a PyTorch module, so that PyTorch runs the very model that the others run: same operators, same weights.

    module = to_torch(graph)             an fx GraphModule: plain Python code that calls torch.nn's layers
    module(*tensors)

Layers with weights become torch.nn modules (Conv2d, BatchNorm2d, LSTM, …), so that memory formats, freezing and
compiling treat them as in any PyTorch model. Operators that the built-in models do not use are refused with a
`NoTorchModel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers import load
from weft.graph.ir import Array, Graph, Node, Value


class NoTorchModel(RuntimeError):
    """A model that uses what this translation does not know; the text says what."""


class Translation:
    """The fx graph so far."""

    def __init__(self, graph: Graph) -> None:
        fx = load("torch.fx")
        self.constants = dict(graph.constants)
        self.root = load("torch").nn.Module()
        self.made = fx.Graph()
        self.values: dict[Value, Any] = {value: self.made.placeholder(f"x{i}") for i, value in enumerate(graph.inputs)}

    def constant(self, node: Node, position: int) -> Array | None:
        """The constant at a position of a node's inputs; None where nothing is given there."""
        value = node.inputs[position] if position < len(node.inputs) else None
        if value is None:
            return None
        if value not in self.constants:
            raise NoTorchModel(f"{node.op} with a computed input {position}")
        return self.constants[value]

    def needed(self, node: Node, position: int) -> Array:
        """The constant at a position, which must be there."""
        found = self.constant(node, position)
        if found is None:
            raise NoTorchModel(f"{node.op} without input {position}")
        return found

    def value(self, value: Value | None) -> Any:
        """The fx node of a value: made before, or a parameter."""
        assert value is not None
        if value not in self.values:
            name = f"c{len(self.values)}"
            self.root.register_buffer(name, _tensor(self.constants[value]))
            self.values[value] = self.made.get_attr(name)
        return self.values[value]

    def layer(self, node: Node, module: Any) -> Any:
        """A call of a layer on a node's first input."""
        name = f"m{len(self.values)}"
        self.root.add_module(name, module.eval())
        return self.made.call_module(name, (self.value(node.inputs[0]),))

    def call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """A call of a function."""
        return self.made.call_function(function, arguments, named)


def to_torch(graph: Graph) -> Any:
    """The module; it takes the graph's inputs in order, and gives its output, or a tuple of them."""
    torch, fx = load("torch"), load("torch.fx")
    state = Translation(graph)
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "Identity" and node.inputs[0] in state.constants:
                state.constants[node.outputs[0]] = state.constants[node.inputs[0]]
                continue
            rule = RULES.get(node.op) if node.domain == "" else None
            if rule is None:
                raise NoTorchModel(f"no translation of {node.op} to PyTorch")
            made = rule(state, node)
            results = made if isinstance(made, list) else [made]
            state.values.update(zip(node.outputs, results))
    outputs = [state.value(value) for value in graph.outputs]
    state.made.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
    return fx.GraphModule(state.root, state.made).eval()


def _tensor(array: Array) -> Any:
    return load("torch").from_numpy(np.array(array))


def _fill(parameter: Any, array: Array) -> None:
    parameter.copy_(_tensor(array).reshape(parameter.shape))


# ------------------------------------------------------------------------------------------------------ layers


def _window(node: Node, rank: int = 2) -> tuple[tuple[int, ...], ...]:
    """kernel, strides, padding and dilation of a window whose padding is the same on both sides."""
    attributes = node.attributes
    kernel = tuple(attributes["kernel_shape"])
    pads = tuple(attributes.get("pads", (0,) * 2 * rank))
    plain = len(kernel) == rank and pads[:rank] == pads[rank:] and attributes.get("auto_pad", "NOTSET") == "NOTSET"
    if not plain or attributes.get("ceil_mode") or attributes.get("output_shape"):
        raise NoTorchModel(f"{node.op} with a window that is not plain and of {rank} dimensions")
    ones = (1,) * rank
    return kernel, tuple(attributes.get("strides", ones)), pads[:rank], tuple(attributes.get("dilations", ones))


def _convolution(state: Translation, node: Node) -> Any:
    weight, bias = state.needed(node, 1), state.constant(node, 2)
    rank = weight.ndim - 2
    kernel, strides, padding, dilation = _window(node, rank)
    groups = int(node.attributes.get("group", 1))
    transposed = node.op == "ConvTranspose"
    inputs, outputs = (
        (weight.shape[0], weight.shape[1] * groups) if transposed else (weight.shape[1] * groups, len(weight))
    )
    if rank not in (1, 2, 3):
        raise NoTorchModel(f"{node.op} in {rank} dimensions")
    kind = getattr(load("torch").nn, f"Conv{'Transpose' * transposed}{rank}d")
    more = {"output_padding": tuple(node.attributes.get("output_padding", (0,) * rank))} if transposed else {}
    made = kind(
        inputs, outputs, kernel, strides, padding, groups=groups, dilation=dilation, bias=bias is not None, **more
    )
    _fill(made.weight, weight)
    if bias is not None:
        _fill(made.bias, bias)
    return state.layer(node, made)


def _batch_norm(state: Translation, node: Node) -> Any:
    scale, bias, mean, variance = (state.needed(node, i) for i in range(1, 5))
    made = load("torch").nn.BatchNorm2d(len(scale), eps=node.attributes.get("epsilon", 1e-5))
    for parameter, array in zip(
        (made.weight, made.bias, made.running_mean, made.running_var), (scale, bias, mean, variance)
    ):
        _fill(parameter, array)
    return state.layer(node, made)


def _layer_norm(state: Translation, node: Node) -> Any:
    scale, bias = state.needed(node, 1), state.needed(node, 2)
    made = load("torch").nn.LayerNorm(scale.shape, eps=node.attributes.get("epsilon", 1e-5))
    _fill(made.weight, scale)
    _fill(made.bias, bias)
    return state.layer(node, made)


def _gemm(state: Translation, node: Node) -> Any:
    attributes = node.attributes
    if attributes.get("transA") or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
        raise NoTorchModel("Gemm that is no linear layer")
    weight, bias = state.needed(node, 1), state.constant(node, 2)
    return state.layer(node, _linear(weight if attributes.get("transB") else weight.T, bias))


def _linear(weight: Array, bias: Array | None) -> Any:
    made = load("torch").nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    _fill(made.weight, weight)
    if bias is not None:
        _fill(made.bias, np.broadcast_to(bias, (weight.shape[0],)))
    return made


def _matmul(state: Translation, node: Node) -> Any:
    """A product with a constant matrix is a linear layer, which is how a PyTorch user would have written it."""
    right = node.inputs[1]
    if right in state.constants and state.constants[right].ndim == 2:
        return state.layer(node, _linear(state.constants[right].T, None))
    return state.call(load("torch").matmul, state.value(node.inputs[0]), state.value(right))


def _lstm(state: Translation, node: Node) -> Any:
    """One direction, no initial state; ONNX orders the gates i o f c, PyTorch i f c o."""
    torch = load("torch")
    if len(node.attributes.keys() - {"hidden_size"}) or len(node.outputs) != 1 or len(node.inputs) > 4:
        raise NoTorchModel("LSTM with more than weights and a bias")
    weight, recurrence, bias = (state.needed(node, i)[0] for i in (1, 2, 3))
    size = int(node.attributes["hidden_size"])
    order = np.concatenate([np.arange(size) + gate * size for gate in (0, 2, 3, 1)])
    made = torch.nn.LSTM(weight.shape[1], size)
    _fill(made.weight_ih_l0, weight[order])
    _fill(made.weight_hh_l0, recurrence[order])
    _fill(made.bias_ih_l0, bias[: 4 * size][order])
    _fill(made.bias_hh_l0, bias[4 * size :][order])
    states = state.call(_first, state.layer(node, made))
    return state.call(torch.unsqueeze, states, 1)


def _first(pair: Any) -> Any:
    return pair[0]


# --------------------------------------------------------------------------------------------------- functions


def _function(name: str, **named: Any) -> Callable[[Translation, Node], Any]:
    """A function of torch that takes a node's inputs as they are."""

    def rule(state: Translation, node: Node) -> Any:
        function = load("torch")
        for part in name.split("."):
            function = getattr(function, part)
        return state.call(function, *map(state.value, node.inputs), **named)

    return rule


def _max_pool(state: Translation, node: Node) -> Any:
    kernel, strides, padding, dilation = _window(node)
    pool = load("torch").nn.functional.max_pool2d
    return state.call(pool, state.value(node.inputs[0]), kernel, strides, padding, dilation)


def _average(state: Translation, node: Node) -> Any:
    return state.call(load("torch").nn.functional.adaptive_avg_pool2d, state.value(node.inputs[0]), 1)


def _flatten(state: Translation, node: Node) -> Any:
    if node.attributes.get("axis", 1) != 1:
        raise NoTorchModel("Flatten along another axis than 1")
    return state.call(load("torch").flatten, state.value(node.inputs[0]), 1)


def _clip(state: Translation, node: Node) -> Any:
    low, high = (float(state.needed(node, i).item()) for i in (1, 2))
    return state.call(load("torch").nn.functional.hardtanh, state.value(node.inputs[0]), low, high)


def _gather(state: Translation, node: Node) -> Any:
    if node.attributes.get("axis", 0) != 0 or node.inputs[0] not in state.constants:
        raise NoTorchModel("Gather that is no embedding")
    return state.call(load("torch").nn.functional.embedding, state.value(node.inputs[1]), state.value(node.inputs[0]))


def _transpose(state: Translation, node: Node) -> Any:
    return state.call(load("torch").permute, state.value(node.inputs[0]), tuple(node.attributes["perm"]))


def _reshape(state: Translation, node: Node) -> Any:
    shape = tuple(int(size) for size in state.needed(node, 1))
    if node.attributes.get("allowzero") or 0 in shape:
        raise NoTorchModel("Reshape that keeps sizes by 0")
    return state.call(load("torch").reshape, state.value(node.inputs[0]), shape)


def _squeeze(state: Translation, node: Node) -> Any:
    axes = tuple(int(axis) for axis in state.needed(node, 1))
    return state.call(load("torch").squeeze, state.value(node.inputs[0]), axes)


def _split(state: Translation, node: Node) -> Any:
    sizes = [int(size) for size in state.needed(node, 1)]
    parts = state.call(load("torch").split, state.value(node.inputs[0]), sizes, node.attributes.get("axis", 0))
    return [state.call(_item, parts, i) for i in range(len(sizes))]


def _item(parts: Any, position: Any) -> Any:
    return parts[position]


def _softmax(state: Translation, node: Node) -> Any:
    return state.call(load("torch").softmax, state.value(node.inputs[0]), node.attributes.get("axis", -1))


def _gelu(state: Translation, node: Node) -> Any:
    approximate = node.attributes.get("approximate", "none")
    return state.call(load("torch").nn.functional.gelu, state.value(node.inputs[0]), approximate=approximate)


def _hard_sigmoid(state: Translation, node: Node) -> Any:
    if abs(node.attributes.get("alpha", 0.2) - 1 / 6) > 1e-6 or node.attributes.get("beta", 0.5) != 0.5:
        raise NoTorchModel("HardSigmoid with other numbers")
    return state.call(load("torch").nn.functional.hardsigmoid, state.value(node.inputs[0]))


def _hard_swish(state: Translation, node: Node) -> Any:
    return state.call(load("torch").nn.functional.hardswish, state.value(node.inputs[0]))


def _reduce_mean(state: Translation, node: Node) -> Any:
    axes = tuple(int(axis) for axis in state.needed(node, 1))
    return state.call(load("torch").mean, state.value(node.inputs[0]), axes, bool(node.attributes.get("keepdims", 1)))


def _concat(state: Translation, node: Node) -> Any:
    return state.call(load("torch").cat, [state.value(v) for v in node.inputs], node.attributes["axis"])


def _slice(state: Translation, node: Node) -> Any:
    starts, ends, axes, steps = (state.needed(node, at).tolist() for at in range(1, 5))
    if len(axes) != 1 or steps != [1]:
        raise NoTorchModel("Slice along several axes, or with a step")
    index = (*[slice(None)] * axes[0], slice(starts[0], ends[0]))
    return state.call(_item, state.value(node.inputs[0]), index)


RULES: dict[str, Callable[[Translation, Node], Any]] = {
    "Conv": _convolution, "ConvTranspose": _convolution, "BatchNormalization": _batch_norm, "Gemm": _gemm,
    "LayerNormalization": _layer_norm, "MatMul": _matmul, "LSTM": _lstm, "Add": _function("add"),
    "Mul": _function("mul"), "Relu": _function("relu"), "Tanh": _function("tanh"), "MaxPool": _max_pool,
    "GlobalAveragePool": _average, "Flatten": _flatten, "Clip": _clip, "Gather": _gather, "Transpose": _transpose,
    "Sigmoid": _function("sigmoid"), "HardSigmoid": _hard_sigmoid, "HardSwish": _hard_swish,
    "ReduceMean": _reduce_mean, "Concat": _concat, "Slice": _slice, "Reshape": _reshape, "Squeeze": _squeeze,
    "Split": _split, "Softmax": _softmax, "Gelu": _gelu,
}  # fmt: skip
"""How each operator is written in PyTorch."""

"""Small models of the kinds that are met in the wild, made on the spot: each a ModelProto and the arrays to feed it.

Modules of torch are exported by its TorchScript exporter, which writes the graphs that most published files have; what
it cannot write (trees, sequences, quantized graphs) is put together with onnx.helper.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

Made = tuple[onnx.ModelProto, list[np.ndarray]]
MODELS: dict[str, Callable[[], Made]] = {}
OPEN: list[str] = []


def wild(function: Callable[[], Made]) -> Callable[[], Made]:
    """Adds a model to the table."""
    MODELS[function.__name__] = function
    return function


def wild_and_open(function: Callable[[], Made]) -> Callable[[], Made]:
    """Adds a model with open sizes to the table."""
    OPEN.append(function.__name__)
    return wild(function)


def exported(module: nn.Module, *inputs: torch.Tensor, dynamic: Any = None, opset: int = 17) -> Made:
    """A module as torch writes it; `dynamic` names open dimensions: {input: {axis: name}}."""
    names = [f"x{i}" for i in range(len(inputs))]
    file = io.BytesIO()
    torch.backends.mha.set_fastpath_enabled(False)  # its one operator for a whole layer has no ONNX form
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), inputs, file, input_names=names, opset_version=opset, dynamic_axes=dynamic, dynamo=False
        )
    return onnx.load_from_string(file.getvalue()), [x.numpy() for x in inputs]


def graph_of(
    nodes: Sequence[Any],
    inputs: Sequence[tuple[str, int, Sequence[Any]]],
    outputs: Sequence[tuple[str, int]],
    constants: dict[str, np.ndarray],
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model of nodes; the shapes of outputs are left open."""
    graph = helper.make_graph(
        nodes,
        "wild",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 3) for name in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Random floats."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


# ------------------------------------------------------------------------------------------------- vision, detection


@wild
def detector_with_nms() -> Made:
    """Boxes and scores from a head, TopK before, NonMaxSuppression after: as many boxes as the picture has."""
    torch.manual_seed(0)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 16, 3, 2, 1), nn.SiLU())
            self.boxes, self.scores = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 3, 1)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.body(x)
            places = self.boxes(y).flatten(2).transpose(1, 2)
            corner, size = places[..., :2] * 4 + 8, places[..., 2:].exp() * 3
            return torch.cat([corner - size / 2, corner + size / 2], -1), self.scores(y).sigmoid().flatten(2)

    model, inputs = exported(Head(), torch.randn(1, 3, 64, 64))
    boxes, scores = (value.name for value in model.graph.output)
    constants = {
        "most": np.array([20], np.int64), "overlap": np.array([0.4], np.float32), "least": np.array([0.3], np.float32),
        "one": np.array([1], np.int64), "last": np.array([2], np.int64), "end": np.array([3], np.int64),
        "zero": np.array([0], np.int64), "k": np.array([5], np.int64), "flat": np.array([-1], np.int64),
        "axis1": np.array([1], np.int64),
    }  # fmt: skip
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    model.graph.node.extend(
        [
            helper.make_node("NonMaxSuppression", [boxes, scores, "most", "overlap", "least"], ["kept"]),
            helper.make_node("Slice", ["kept", "last", "end", "axis1"], ["which"]),
            helper.make_node("Reshape", ["which", "flat"], ["which_flat"]),
            helper.make_node("Squeeze", [boxes, "zero"], ["all_boxes"]),
            helper.make_node("Gather", ["all_boxes", "which_flat"], ["chosen"], axis=0),
            helper.make_node("ReduceMax", [scores], ["best"], axes=[1], keepdims=0),
            helper.make_node("TopK", ["best", "k"], ["top_scores", "top_places"], axis=1),
        ]
    )
    del model.graph.output[:]
    model.graph.output.extend(
        [helper.make_tensor_value_info(name, kind, None) for name, kind in
         (("chosen", 1), ("kept", 7), ("top_scores", 1), ("top_places", 7))]
    )  # fmt: skip
    return model, inputs


@wild
def segmentation_at_1024() -> Made:
    """An encoder at a sixteenth of the resolution, and bilinear enlargement to 1024 x 1024."""
    torch.manual_seed(1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Sequential(
                nn.Conv2d(3, 8, 7, 4, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 4, 1), nn.ReLU()
            )
            self.wide = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=d, dilation=d) for d in (1, 6, 12))
            self.head = nn.Conv2d(24, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.down(x)
            y = self.head(torch.cat([w(y) for w in self.wide], 1))
            return F.interpolate(y, size=x.shape[2:], mode="bilinear", align_corners=False)

    return exported(Net(), torch.randn(1, 3, 1024, 1024))


@wild_and_open
def unet_with_odd_sizes() -> Made:
    """Transposed convolutions, cropped and joined with what came before; group norm; open sizes."""
    torch.manual_seed(2)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.norm = nn.GroupNorm(4, 16)
            self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 1, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.a(x).relu()
            b = F.gelu(self.norm(self.b(a)))
            up = self.up(b)[:, :, : a.shape[2], : a.shape[3]]
            return self.out(torch.cat([a, up], 1)).sigmoid()

    return exported(Net(), torch.randn(1, 3, 37, 45), dynamic={"x0": {2: "height", 3: "width"}})


@wild
def style_transfer() -> Made:
    """Instance norm, reflection padding, nearest enlargement."""
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.ReflectionPad2d(4), nn.Conv2d(3, 8, 9), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
        nn.Conv2d(8, 8, 3, 2, 1), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
        nn.Upsample(scale_factor=2, mode="nearest"), nn.ReflectionPad2d(1), nn.Conv2d(8, 3, 3), nn.Tanh(),
    )  # fmt: skip
    return exported(net, torch.randn(1, 3, 40, 48))


@wild
def spatial_transformer() -> Made:
    """affine_grid and grid_sample."""
    torch.manual_seed(4)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place = nn.Linear(3 * 16 * 16, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            theta = self.place(x.flatten(1)).reshape(-1, 2, 3) * 0.3
            steps = torch.linspace(-1, 1, 12)
            y, z = torch.meshgrid(steps, steps, indexing="ij")
            base = torch.stack([z, y, torch.ones_like(z)], -1).reshape(1, -1, 3)
            grid = (base @ theta.transpose(1, 2)).reshape(-1, 12, 12, 2)
            return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)

    return exported(Net(), torch.randn(2, 3, 16, 16))


@wild_and_open
def patch_transformer() -> Made:
    """A vision transformer: patches by a strided convolution, a class token, pre-norm attention."""
    torch.manual_seed(5)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.token = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.randn(1, 1, 32))
            self.place = nn.Parameter(torch.randn(1, 17, 32))
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True, activation="gelu")
            self.body, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.patch(x).flatten(2).transpose(1, 2)
            y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.place
            return self.head(self.body(y)[:, 0])

    return exported(Net(), torch.randn(2, 3, 32, 32), dynamic={"x0": {0: "batch"}})


@wild
def shuffled_channels() -> Made:
    """Grouped convolutions with channel shuffle, hard swish, squeeze and excitation, pixel shuffle."""
    torch.manual_seed(6)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 16, 1, groups=4), nn.Conv2d(16, 16, 3, padding=1, groups=16)
            self.squeeze, self.excite = nn.Conv2d(16, 4, 1), nn.Conv2d(4, 16, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.hardswish(self.a(x))
            n, c, h, w = y.shape
            y = y.reshape(n, 4, c // 4, h, w).transpose(1, 2).reshape(n, c, h, w)
            y = self.b(y)
            y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
            return F.pixel_shuffle(y, 2)

    return exported(Net(), torch.randn(1, 8, 14, 10))


# ---------------------------------------------------------------------------------------------------------- speech


@wild_and_open
def vocoder() -> Made:
    """Text to speech: dilated convolutions, transposed ones, leaky relu, an open length."""
    torch.manual_seed(7)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv1d(20, 32, 7, padding=3)
            self.ups = nn.ModuleList([nn.ConvTranspose1d(32, 16, 8, 4, 2), nn.ConvTranspose1d(16, 8, 4, 2, 1)])
            self.blocks = nn.ModuleList(
                nn.ModuleList(nn.Conv1d(c, c, 3, padding=d, dilation=d) for d in (1, 3, 5)) for c in (16, 8)
            )
            self.last = nn.Conv1d(8, 1, 7, padding=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            for up, block in zip(self.ups, self.blocks):
                y = up(F.leaky_relu(y, 0.1))
                for layer in block:
                    y = y + layer(F.leaky_relu(y, 0.1))
            return self.last(F.leaky_relu(y)).tanh()

    return exported(Net(), torch.randn(1, 20, 33), dynamic={"x0": {2: "frames"}})


@wild_and_open
def speech_recognizer() -> Made:
    """Convolutions that shorten, bidirectional GRU and LSTM, log softmax; open batch and length."""
    torch.manual_seed(8)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Conv1d(12, 16, 3, stride=2)
            self.gru = nn.GRU(16, 12, 2, bidirectional=True, batch_first=True)
            self.lstm, self.out = nn.LSTM(24, 8, bidirectional=True, batch_first=True), nn.Linear(16, 9)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, _ = self.gru(self.front(x).relu().transpose(1, 2))
            y, (h, _) = self.lstm(y)
            return F.log_softmax(self.out(y), -1) + h.mean()

    return exported(Net(), torch.randn(2, 12, 31), dynamic={"x0": {0: "batch", 2: "frames"}})


@wild_and_open
def length_regulator() -> Made:
    """Text to speech again: durations become a range, a comparison, and a product that repeats states."""
    torch.manual_seed(9)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.durations = nn.Embedding(30, 16), nn.Linear(16, 1)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            y = self.table(ids)
            lengths = (self.durations(y).squeeze(-1).exp() * 2).round().clamp(min=1)
            ends = lengths.cumsum(1)
            total = ends[0, -1].to(torch.int64)
            place = torch.arange(total).unsqueeze(0).unsqueeze(-1)
            path = ((place < ends.unsqueeze(1)) & (place >= (ends - lengths).unsqueeze(1))).to(y.dtype)
            return path @ y

    return exported(Net(), torch.randint(0, 30, (1, 7)), dynamic={"x0": {1: "letters"}})


# -------------------------------------------------------------------------------------------------- language, graphs


@wild_and_open
def einsum_attention() -> Made:
    """Attention written with einsum, rotary positions, a causal mask from tril."""
    torch.manual_seed(10)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96, bias=False), nn.Linear(32, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, n, _ = x.shape
            q, k, v = self.qkv(x).reshape(b, n, 3, 4, 8).unbind(2)
            angle = torch.arange(n).unsqueeze(-1) / torch.tensor([1.0, 10.0, 100.0, 1000.0])
            cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)

            def turn(t: torch.Tensor) -> torch.Tensor:
                a, c = t[..., :4], t[..., 4:]
                return torch.cat([a * cos - c * sin, a * sin + c * cos], -1)

            scores = torch.einsum("bihd,bjhd->bhij", turn(q), turn(k)) / 8**0.5
            mask = torch.ones(n, n).tril() == 0
            weights = scores.masked_fill(mask, float("-inf")).softmax(-1)
            return self.out(torch.einsum("bhij,bjhd->bihd", weights, v).reshape(b, n, 32))

    return exported(Net(), torch.randn(2, 11, 32), dynamic={"x0": {1: "words"}})


@wild_and_open
def graph_network() -> Made:
    """Messages along edges: gather the ends, a layer, scatter with addition; mean by degree."""
    torch.manual_seed(11)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.message, self.update = nn.Linear(16, 8), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
            source, target = edges[0], edges[1]
            message = self.message(torch.cat([x[source], x[target]], -1)).relu()
            where = target.unsqueeze(-1).expand_as(message)
            total = torch.zeros_like(x).scatter_add(0, where, message)
            degree = torch.zeros_like(x).scatter_add(0, where, torch.ones_like(message)).clamp(min=1)
            return self.update(torch.cat([x, total / degree], -1))

    edges = torch.randint(0, 9, (2, 25))
    dynamic = {"x0": {0: "nodes"}, "x1": {1: "edges"}}
    return exported(Net(), torch.randn(9, 8), edges, dynamic=dynamic, opset=18)


@wild
def gathered_points() -> Made:
    """Point clouds: distances, the nearest by TopK, GatherND of their features, max over them."""
    torch.manual_seed(12)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            apart = (x.unsqueeze(2) - x.unsqueeze(1)).square().sum(-1)
            near = apart.topk(4, dim=-1, largest=False).indices
            batch = torch.arange(x.shape[0]).reshape(-1, 1, 1).expand_as(near)
            around = x[batch, near]
            both = torch.cat([around, x.unsqueeze(2).expand_as(around)], -1)
            return self.layer(both).relu().amax(2)

    return exported(Net(), torch.randn(2, 20, 3))


@wild
def quantized_block() -> Made:
    """An int8 transformer block as quantizers write it: QuantizeLinear and DequantizeLinear around every product."""
    generator = np.random.default_rng(13)
    nodes: list[Any] = []
    constants: dict[str, np.ndarray] = {"nothing": np.array(0, np.int8), "root": np.array(32**-0.5, np.float32)}

    def rounded(name: str, scale: float) -> str:
        if f"{name}_scale" in constants:
            return f"{name}_d"
        constants[f"{name}_scale"] = np.array(scale, np.float32)
        nodes.append(helper.make_node("QuantizeLinear", [name, f"{name}_scale", "nothing"], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_scale", "nothing"], [f"{name}_d"]))
        return f"{name}_d"

    def dense(x: str, name: str, rows: int, columns: int, scale: float) -> str:
        constants[f"{name}_w"] = generator.integers(-127, 128, (rows, columns)).astype(np.int8)
        constants[f"{name}_s"] = (generator.random(columns) * 0.002 + 0.001).astype(np.float32)
        constants[f"{name}_z"] = np.zeros(columns, np.int8)
        constants[f"{name}_b"] = (generator.standard_normal(columns) * 0.1).astype(np.float32)
        names = [f"{name}_w", f"{name}_s", f"{name}_z"]
        nodes.append(helper.make_node("DequantizeLinear", names, [f"{name}_wd"], axis=1))
        nodes.append(helper.make_node("MatMul", [rounded(x, scale), f"{name}_wd"], [f"{name}_m"]))
        nodes.append(helper.make_node("Add", [f"{name}_m", f"{name}_b"], [name]))
        return name

    q, k, v = (dense("x", name, 32, 32, 0.03) for name in "qkv")
    nodes.append(helper.make_node("Transpose", [rounded(k, 0.05)], ["kt"], perm=[0, 2, 1]))
    nodes.append(helper.make_node("MatMul", [rounded(q, 0.05), "kt"], ["raw"]))
    nodes.append(helper.make_node("Mul", ["raw", "root"], ["scores"]))
    nodes.append(helper.make_node("Softmax", ["scores"], ["weights"], axis=-1))
    nodes.append(helper.make_node("MatMul", [rounded("weights", 1 / 127), rounded(v, 0.05)], ["mixed"]))
    nodes.append(helper.make_node("Add", ["x", dense("mixed", "o", 32, 32, 0.05)], ["left"]))
    constants["gain"], constants["shift"] = numbers(32, seed=1), numbers(32, seed=2)
    nodes.append(helper.make_node("LayerNormalization", ["left", "gain", "shift"], ["normal"], axis=-1))
    nodes.append(helper.make_node("Relu", [dense("normal", "up", 32, 64, 0.03)], ["active"]))
    dense("active", "y", 64, 32, 0.03)
    return graph_of(nodes, [("x", 1, [1, 10, 32])], [("y", 1)], constants), [numbers(1, 10, 32, seed=3)]


# ------------------------------------------------------------------------------------------------ trees, control flow


@wild_and_open
def tree_ensemble() -> Made:
    """Gradient-boosted trees with what comes after them: scaler before, softmax of the sums."""
    generator = np.random.default_rng(14)
    columns: dict[str, list[Any]] = {key: [] for key in ("tree", "node", "mode", "feature", "value", "yes", "no")}
    leaves: dict[str, list[Any]] = {key: [] for key in ("tree", "node", "class", "weight")}
    for tree in range(12):
        for node in range(15):
            leaf = node >= 7
            row = (tree, node, "LEAF" if leaf else "BRANCH_LEQ", 0 if leaf else int(generator.integers(0, 6)),
                   0.0 if leaf else float(generator.standard_normal()), 0 if leaf else 2 * node + 1,
                   0 if leaf else 2 * node + 2)  # fmt: skip
            for key, one in zip(columns, row):
                columns[key].append(one)
            if leaf:
                for key, one in zip(leaves, (tree, node, tree % 3, float(generator.standard_normal()))):
                    leaves[key].append(one)
    trees = helper.make_node(
        "TreeEnsembleClassifier", ["scaled"], ["label", "scores"], domain="ai.onnx.ml",
        classlabels_int64s=[0, 1, 2], nodes_treeids=columns["tree"], nodes_nodeids=columns["node"],
        nodes_modes=columns["mode"], nodes_featureids=columns["feature"], nodes_values=columns["value"],
        nodes_truenodeids=columns["yes"], nodes_falsenodeids=columns["no"], class_treeids=leaves["tree"],
        class_nodeids=leaves["node"], class_ids=leaves["class"], class_weights=leaves["weight"],
        post_transform="SOFTMAX",
    )  # fmt: skip
    scaler = helper.make_node(
        "Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=[0.1] * 6, scale=[1.5, 1.0, 0.5, 1.0, 2.0, 1.0]
    )
    outputs = [("label", 7), ("scores", 1)]
    model = graph_of([scaler, trees], [("x", 1, ["rows", 6])], outputs, {}, domains=["ai.onnx.ml"])
    return model, [numbers(9, 6, seed=15)]


@wild
def beam_search() -> Made:
    """A Loop that keeps the best continuations: a product, TopK over all beams, gathered histories, an early end."""
    body_constants = {
        "four": np.array([3], np.int64), "flat": np.array([1, -1], np.int64), "beams": np.array([3, 1], np.int64),
        "words": np.array(10, np.int64), "column": np.array([3, 1], np.int64), "axis1": np.array([1], np.int64),
        "axis0": np.array([0], np.int64), "limit": np.array(-40, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Slice", ["history", "minus", "huge", "axis1"], ["recent"]),
        helper.make_node("Squeeze", ["recent", "axis1"], ["ids"]),
        helper.make_node("Gather", ["table", "ids"], ["states"], axis=0),
        helper.make_node("MatMul", ["states", "weight"], ["logits"]),
        helper.make_node("LogSoftmax", ["logits"], ["chances"], axis=-1),
        helper.make_node("Add", ["chances", "so_far"], ["totals"]),
        helper.make_node("Reshape", ["totals", "flat"], ["all"]),
        helper.make_node("TopK", ["all", "four"], ["best", "places"], axis=1),
        helper.make_node("Div", ["places", "words"], ["beam"]),
        helper.make_node("Mod", ["places", "words"], ["word"]),
        helper.make_node("Squeeze", ["beam", "axis0"], ["beam_flat"]),
        helper.make_node("Gather", ["history", "beam_flat"], ["kept"], axis=0),
        helper.make_node("Reshape", ["word", "column"], ["word_column"]),
        helper.make_node("Concat", ["kept", "word_column"], ["history_out"], axis=1),
        helper.make_node("Reshape", ["best", "beams"], ["so_far_out"]),
        helper.make_node("ReduceMax", ["best"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "limit"], ["go_on_out"]),
        helper.make_node("Identity", ["best"], ["trace"]),
    ]
    body_constants["minus"], body_constants["huge"] = np.array([-1], np.int64), np.array([2**31], np.int64)
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        nodes, "body",
        [info("step", 7, []), info("go_on", 9, []), info("history", 7, [3, None]), info("so_far", 1, [3, 1])],
        [info("go_on_out", 9, []), info("history_out", 7, [3, None]), info("so_far_out", 1, [3, 1]),
         info("trace", 1, [1, 3])],
        [numpy_helper.from_array(array, name) for name, array in body_constants.items()],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["steps", "", "start", "nothing"], ["found", "scores", "traces"], body=body)
    constants = {
        "table": numbers(10, 16, seed=16), "weight": numbers(16, 10, seed=17), "nothing": np.zeros((3, 1), np.float32),
    }  # fmt: skip
    inputs = [("steps", TensorProto.INT64, []), ("start", TensorProto.INT64, [3, 1])]
    model = graph_of([loop], inputs, [("found", 7), ("scores", 1), ("traces", 1)], constants)
    return model, [np.array(6, np.int64), np.array([[1], [4], [7]], np.int64)]


@wild
def branches_of_other_shapes() -> Made:
    """If whose branches give other shapes: what comes after must take both."""
    info = helper.make_tensor_value_info
    yes = helper.make_graph([helper.make_node("Relu", ["x"], ["a"])], "yes", [], [info("a", 1, None)])
    no = helper.make_graph(
        [helper.make_node("Concat", ["x", "x"], ["doubled"], axis=0), helper.make_node("Neg", ["doubled"], ["b"])],
        "no", [], [info("b", 1, None)],
    )  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "limit"], ["large"]),
        helper.make_node("If", ["large"], ["chosen"], then_branch=yes, else_branch=no),
        helper.make_node("MatMul", ["chosen", "weight"], ["y"]),
        helper.make_node("Shape", ["y"], ["shape"]),
    ]
    constants = {"limit": np.array(0, np.float32), "weight": numbers(5, 4, seed=18)}
    return graph_of(nodes, [("x", 1, [3, 5])], [("y", 1), ("shape", 7)], constants), [numbers(3, 5, seed=19) - 0.5]


@wild
def sequence_of_parts() -> Made:
    """Sequences: split, one taken out, one put in, joined again."""
    nodes = [
        helper.make_node("SplitToSequence", ["x", "sizes"], ["parts"], axis=0),
        helper.make_node("SequenceAt", ["parts", "one"], ["second"]),
        helper.make_node("Mul", ["second", "second"], ["square"]),
        helper.make_node("SequenceInsert", ["parts", "square", "zero"], ["longer"]),
        helper.make_node("SequenceErase", ["longer", "last"], ["shorter"]),
        helper.make_node("ConcatFromSequence", ["shorter"], ["joined"], axis=0),
        helper.make_node("SequenceLength", ["shorter"], ["count"]),
        helper.make_node("Softmax", ["joined"], ["y"], axis=-1),
    ]
    constants = {
        "sizes": np.array([2, 3, 1], np.int64), "one": np.array(1, np.int64), "zero": np.array(0, np.int64),
        "last": np.array(-1, np.int64),
    }  # fmt: skip
    return graph_of(nodes, [("x", 1, [6, 4])], [("y", 1), ("count", 7)], constants), [numbers(6, 4, seed=20)]


@wild_and_open
def state_space_scan() -> Made:
    """Scan: a state that is multiplied and added to, step by step, with an output of every step."""
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "turn"], ["moved"]),
            helper.make_node("Add", ["moved", "part"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["state_out"]),
            helper.make_node("ReduceMean", ["state_out"], ["mean"], keepdims=1, axes=[-1]),
        ],
        "body",
        [info("state", 1, [2, 8]), info("part", 1, [2, 8])],
        [info("state_out", 1, [2, 8]), info("mean", 1, [2, 1])],
    )
    scan = helper.make_node("Scan", ["start", "x"], ["end", "means"], body=body, num_scan_inputs=1)
    constants = {"turn": numbers(8, 8, seed=21, scale=0.3), "start": np.zeros((2, 8), np.float32)}
    model = graph_of([scan], [("x", 1, ["steps", 2, 8])], [("end", 1), ("means", 1)], constants)
    return model, [numbers(14, 2, 8, seed=22)]


@wild_and_open
def recommender() -> Made:
    """Embedding tables, pairwise products, wide and deep parts, one score for each row."""
    torch.manual_seed(23)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(50, 8) for _ in range(4))
            self.deep = nn.Sequential(nn.Linear(38, 16), nn.PReLU(), nn.BatchNorm1d(16), nn.Linear(16, 1))

        def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
            rows = torch.stack([table(ids[:, i]) for i, table in enumerate(self.tables)], 1)
            pairs = torch.bmm(rows, rows.transpose(1, 2))
            upper = pairs.triu(1)
            return (self.deep(torch.cat([rows.flatten(1), dense], 1)) + upper.sum((1, 2)).unsqueeze(1)).sigmoid()

    inputs = (torch.randint(0, 50, (5, 4)), torch.randn(5, 6))
    return exported(Net(), *inputs, dynamic={"x0": {0: "rows"}, "x1": {0: "rows"}})


@wild
def three_dimensions() -> Made:
    """Volumes: 3-D convolutions, pooling with ceil, trilinear enlargement."""
    torch.manual_seed(24)
    net = nn.Sequential(
        nn.Conv3d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2, ceil_mode=True), nn.Conv3d(4, 4, (1, 3, 3)),
        nn.ELU(), nn.Upsample(scale_factor=2, mode="trilinear", align_corners=True), nn.AvgPool3d(3, 2, 1),
    )  # fmt: skip
    return exported(net, torch.randn(1, 1, 7, 13, 12))


@wild_and_open
def anomaly_memory() -> Made:
    """Cosine likeness to a memory, ArgMin, one-hot, weighted by Where; integer and bool arithmetic between."""
    torch.manual_seed(25)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.memory = nn.Parameter(torch.randn(13, 8))

        def forward(self, x: torch.Tensor) -> Any:
            likeness = F.normalize(x, dim=-1) @ F.normalize(self.memory, dim=-1).T
            nearest = likeness.argmax(-1)
            hot = F.one_hot(nearest, 13).to(x.dtype)
            far = (likeness.amax(-1) < 0.4) | (nearest % 3 == 0)
            return torch.where(far.unsqueeze(-1), torch.zeros_like(x), hot @ self.memory), nearest, far.sum()

    return exported(Net(), torch.randn(6, 8), dynamic={"x0": {0: "rows"}})

"""More models of the kinds met in the wild: stages after detection, decoding, caches, pipelines of numbers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from onnx import helper
from torch import nn

from tests.real_models.wild import Made, exported, graph_of, numbers, wild, wild_and_open


@wild
def two_stage_detector() -> Made:
    """Boxes that survive NonMaxSuppression, RoiAlign of as many as there are, a layer for each."""
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"]),
        helper.make_node("Slice", ["kept", "two", "three", "one"], ["column"]),
        helper.make_node("Squeeze", ["column", "one"], ["which"]),
        helper.make_node("Squeeze", ["boxes", "zero"], ["flat"]),
        helper.make_node("Gather", ["flat", "which"], ["rois"], axis=0),
        helper.make_node("Shape", ["which"], ["count"]),
        helper.make_node("ConstantOfShape", ["count"], ["batch"], value=helper.make_tensor("v", 7, [1], [0])),
        helper.make_node(
            "RoiAlign", ["features", "rois", "batch"], ["crops"],
            output_height=4, output_width=4, sampling_ratio=2, spatial_scale=0.5,
        ),
        helper.make_node("Flatten", ["crops"], ["rows"]),
        helper.make_node("Gemm", ["rows", "weight"], ["y"]),
    ]  # fmt: skip
    boxes = np.abs(numbers(1, 30, 4)) * 8
    boxes[..., 2:] += boxes[..., :2] + 2
    constants = {
        "most": np.array([9]), "overlap": np.array([0.5], np.float32), "least": np.array([0.2], np.float32),
        "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3]),
        "weight": numbers(64, 5),
    }  # fmt: skip
    inputs = [("boxes", 1, [1, 30, 4]), ("scores", 1, [1, 2, 30]), ("features", 1, [1, 4, 16, 16])]
    scores = np.random.default_rng(0).random((1, 2, 30)).astype(np.float32)
    return graph_of(nodes, inputs, [("y", 1), ("rois", 1)], constants), [boxes, scores, numbers(1, 4, 16, 16)]


@wild_and_open
def cached_attention() -> Made:
    """A decoder's step: keys and values of the past, of which there are none at first, and the new after them."""
    torch.manual_seed(30)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor, past_k: torch.Tensor, past_v: torch.Tensor) -> Any:
            b, n, _ = x.shape

            def heads(t: torch.Tensor) -> torch.Tensor:
                return t.reshape(b, n, 2, 8).transpose(1, 2)

            k = torch.cat([past_k, heads(self.k(x))], 2)
            v = torch.cat([past_v, heads(self.v(x))], 2)
            scores = heads(self.q(x)) @ k.transpose(2, 3) / 8**0.5
            all_keys = k.shape[2]
            later = torch.arange(all_keys)[None] > torch.arange(n)[:, None] + (all_keys - n)
            mixed = scores.masked_fill(later, -1e9).softmax(-1) @ v
            return mixed.transpose(1, 2).reshape(b, n, 16), k, v

    past = torch.randn(1, 2, 4, 8)
    dynamic = {"x0": {1: "words"}, "x1": {2: "past"}, "x2": {2: "past"}}
    model, _ = exported(Net(), torch.randn(1, 3, 16), past, past, dynamic=dynamic)
    return model, [numbers(1, 3, 16), numbers(1, 2, 0, 8), numbers(1, 2, 0, 8)]


@wild_and_open
def greedy_decoder() -> Made:
    """The best letter of each frame, repetitions and blanks taken out; Unique and NonZero of them."""
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        helper.make_node("Slice", ["best", "one", "huge"], ["later"]),
        helper.make_node("Slice", ["best", "zero", "minus"], ["before"]),
        helper.make_node("Equal", ["later", "before"], ["same"]),
        helper.make_node("Not", ["same"], ["new"]),
        helper.make_node("Greater", ["later", "blank"], ["letter"]),
        helper.make_node("And", ["new", "letter"], ["keep"]),
        helper.make_node("Compress", ["later", "keep"], ["text"], axis=0),
        helper.make_node("NonZero", ["keep"], ["places"]),
        helper.make_node("Unique", ["later"], ["kinds", "first", "which", "counts"], sorted=1),
    ]
    constants = {
        "zero": np.array([0]), "one": np.array([1]), "huge": np.array([2**40]), "minus": np.array([-1]),
        "blank": np.array(0),
    }  # fmt: skip
    outputs = [(name, 7) for name in ("text", "places", "kinds", "which", "counts")]
    return graph_of(nodes, [("x", 1, ["frames", 6])], outputs, constants), [numbers(40, 6)]


@wild_and_open
def pipeline_of_numbers() -> Made:
    """What scikit-learn's pipelines become: imputer, normaliser, support vectors, chosen columns."""
    domain = {"domain": "ai.onnx.ml"}
    nodes = [
        helper.make_node(
            "Imputer", ["x"], ["filled"], imputed_value_floats=[1.0, 2.0, 3.0],
            replaced_value_float=float("nan"), **domain,
        ),
        helper.make_node("Normalizer", ["filled"], ["unit"], norm="L2", **domain),
        helper.make_node(
            "SVMRegressor", ["unit"], ["y"], coefficients=[0.5, -0.3], kernel_params=[0.7, 0.0, 3.0],
            kernel_type="RBF", n_supports=2, rho=[0.2], support_vectors=[0.1, 0.2, 0.3, -0.4, 0.5, 0.6], **domain,
        ),
        helper.make_node("ArrayFeatureExtractor", ["unit", "columns"], ["chosen"], **domain),
        helper.make_node("Binarizer", ["chosen"], ["bits"], threshold=0.3, **domain),
    ]  # fmt: skip
    x = numbers(5, 3)
    x[1, 2] = np.nan
    constants = {"columns": np.array([2, 0])}
    outputs = [("y", 1), ("bits", 1)]
    return graph_of(nodes, [("x", 1, ["rows", 3])], outputs, constants, domains=["ai.onnx.ml"]), [x]


@wild
def packed_recurrence() -> Made:
    """Sequences of several lengths through two bidirectional layers, as pack_padded_sequence exports them."""
    torch.manual_seed(31)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(5, 7, 2, bidirectional=True, batch_first=True)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            made, (h, c) = self.layers(packed)
            return nn.utils.rnn.pad_packed_sequence(made, batch_first=True)[0], h, c

    return exported(Net(), torch.randn(3, 9, 5), torch.tensor([9, 6, 2]))


@wild
def indexed_assignment() -> Made:
    """Assignments to places and by a condition, gathers, flips, rolls, overlapping windows."""

    class Net(nn.Module):
        def forward(self, x: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> Any:
            y = x.clone()
            y[:, places] = values
            y[y > 1] = 0.5
            picked = torch.gather(x, 1, places[None].expand(x.shape[0], -1))
            return y, picked, x.index_select(1, places).flip(1), torch.roll(x, 2, 1), x.unfold(1, 3, 2)

    torch.manual_seed(32)
    return exported(Net(), torch.randn(3, 9), torch.tensor([1, 4, 7]), torch.randn(3, 3))


@wild
def scripted_loop() -> Made:
    """A while loop of TorchScript: how often it turns, the data decide."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor):
            count = 0
            while bool(x.abs().sum() > 0.5) and count < 9:
                x = self.layer(x) * 0.6
                count += 1
            return x, torch.tensor(count)

    torch.manual_seed(33)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(Net())
    return exported(scripted, torch.randn(2, 4) * 3)

"""The built-in models as torch modules, and a function that gives them the weights of a graph."""

import numpy as np
import torch
from torch import nn


def _conv(channels, width, kernel, stride=1, padding=0, groups=1, activation=None):
    made = [nn.Conv2d(channels, width, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(width)]
    return nn.Sequential(*made, *([activation()] if activation else []))


class Around(nn.Module):
    """A body around which the input goes, projected where there is a projection."""

    def __init__(self, body, projection=None, activation=None):
        super().__init__()
        self.body, self.projection, self.activation = body, projection, activation

    def forward(self, x):
        y = self.body(x) + (x if self.projection is None else self.projection(x))
        return y if self.activation is None else self.activation(y)


def _residual(body, channels, width, stride):
    projection = _conv(channels, width, 1, stride) if stride != 1 or channels != width else None
    return Around(body, projection, nn.ReLU())


def _resnet(bottleneck, stages):
    layers, channels = [_conv(3, 64, 7, 2, 3, activation=nn.ReLU), nn.MaxPool2d(3, 2, 1)], 64
    for width, first_stride, count in stages:
        for i in range(count):
            stride, out = first_stride if i == 0 else 1, width * (4 if bottleneck else 1)
            if bottleneck:
                body = [
                    _conv(channels, width, 1, activation=nn.ReLU),
                    _conv(width, width, 3, stride, 1, activation=nn.ReLU),
                    _conv(width, out, 1),
                ]
            else:
                body = [_conv(channels, width, 3, stride, 1, activation=nn.ReLU), _conv(width, width, 3, 1, 1)]
            layers.append(_residual(nn.Sequential(*body), channels, out, stride))
            channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def resnet18():
    return _resnet(False, [(64, 1, 2), (128, 2, 2), (256, 2, 2), (512, 2, 2)])


def resnet50():
    return _resnet(True, [(64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)])


def mobilenet_v1():
    layers, channels = [_conv(3, 32, 3, 2, 1, activation=nn.ReLU)], 32
    for width, stride in (
        [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)]
        + [(512, 1)] * 5
        + [
            (1024, 2),
            (1024, 1),
        ]
    ):
        layers.append(_conv(channels, channels, 3, stride, 1, channels, nn.ReLU))
        layers.append(_conv(channels, width, 1, activation=nn.ReLU))
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


def mobilenet_v2():
    layers, channels = [_conv(3, 32, 3, 2, 1, activation=nn.ReLU6)], 32
    stages = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for expansion, width, count, first_stride in stages:
        for i in range(count):
            stride, hidden = first_stride if i == 0 else 1, channels * expansion
            body = [] if expansion == 1 else [_conv(channels, hidden, 1, activation=nn.ReLU6)]
            body += [_conv(hidden, hidden, 3, stride, 1, hidden, nn.ReLU6), _conv(hidden, width, 1)]
            made = nn.Sequential(*body)
            layers.append(Around(made) if stride == 1 and channels == width else made)
            channels = width
    layers.append(_conv(320, 1280, 1, activation=nn.ReLU6))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def dqn():
    convolutions = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3)]
    return nn.Sequential(*convolutions, nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 18))


def dcgan():
    layers, widths = [], [100, 512, 256, 128, 64]
    for i, (channels, width) in enumerate(zip(widths, widths[1:])):
        stride, padding = (1, 0) if i == 0 else (2, 1)
        layers += [
            nn.ConvTranspose2d(channels, width, 4, stride, padding, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10000, 650)
        self.first, self.second = nn.LSTM(650, 650, batch_first=True), nn.LSTM(650, 650, batch_first=True)
        self.out = nn.Linear(650, 10000)

    def forward(self, words):
        return self.out(self.second(self.first(self.embedding(words))[0])[0])


class EncoderLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.joined, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first_norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.second_norm = nn.LayerNorm(width)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.joined(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(batch, tokens, width)
        x = self.first_norm(x + self.projection(mixed))
        return self.second_norm(x + self.narrow(nn.functional.gelu(self.wide(x))))


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30522, 768)
        self.position = nn.Embedding(128, 768)
        self.layers = nn.Sequential(*[EncoderLayer(768, 12) for _ in range(12)])

    def forward(self, tokens):
        return self.layers(self.embedding(tokens) + self.position.weight)


MODELS = {
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet_v1": mobilenet_v1,
    "mobilenet_v2": mobilenet_v2,
    "lstm_lm": LanguageModel,
    "dqn": dqn,
    "dcgan": dcgan,
    "bert_base": Bert,
}


def with_weights(module, graph):
    """The module with the weights of the graph, which lie in the order in which the module lists its own."""
    matrices = {node.inputs[1] for node in graph.nodes if node.op == "MatMul"}
    arrays = []
    for value, array in graph.constants.items():
        if array.dtype != np.float32 or array.ndim == 0:
            continue
        recurrent = value.name.startswith(("weight", "recurrence", "bias")) and array.shape[0] == 1 and array.ndim < 4
        arrays += _lstm_arrays(array) if recurrent else [array.T if value in matrices else array]
    state = {key: tensor for key, tensor in module.state_dict().items() if "num_batches" not in key}
    assert len(state) == len(arrays), (len(state), len(arrays))
    for (key, tensor), array in zip(state.items(), arrays):
        assert tuple(tensor.shape) == array.shape, (key, tensor.shape, array.shape)
    filled = {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in zip(state, arrays)}
    module.load_state_dict(filled, strict=False)
    return module.eval()


def _lstm_arrays(array):
    """Weights of an LSTM layer in torch's order of gates (input, forget, cell, output), not ONNX's (i, o, f, c)."""
    parts = np.split(array[0], 2) if array.ndim == 2 else [array[0]]
    return [np.concatenate([np.split(part, 4)[gate] for gate in (0, 2, 3, 1)]) for part in parts]

"""Six networks, each written for PyTorch, for JAX and for Keras: the same layers, small, with weights of their own.

Images lie channels first in all three. `torch_network(name)` and so on give what weft.compile takes.
"""

import functools
import os

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "jax")

NAMES = ("resnet18", "mobilenet_v2", "lstm", "dqn", "dcgan", "bert_layer")
SHAPES = {
    "resnet18": (1, 3, 64, 64), "mobilenet_v2": (1, 3, 32, 32), "lstm": (2, 6, 8), "dqn": (1, 4, 44, 44),
    "dcgan": (1, 16, 1, 1), "bert_layer": (2, 12, 32),
}  # fmt: skip
STAGES = ((8, 1), (16, 2), (32, 2), (64, 2))
"""Widths and strides of ResNet's stages, two blocks each."""
INVERTED = ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 2, 2))
"""MobileNet v2: expansion, width, blocks, stride."""
HEADS, WIDTH = 4, 32


def example(name):
    return np.random.default_rng(0).normal(size=SHAPES[name]).astype("f")


# ------------------------------------------------------------------------------------------------------------ PyTorch


def torch_network(name):
    import torch
    from torch import nn

    def conv(channels, width, kernel=3, stride=1, groups=1):
        return [
            nn.Conv2d(channels, width, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(width),
        ]

    class Block(nn.Module):
        def __init__(self, channels, width, stride):
            super().__init__()
            self.body = nn.Sequential(*conv(channels, width, 3, stride), nn.ReLU(), *conv(width, width))
            self.skip = nn.Sequential(*conv(channels, width, 1, stride)) if stride > 1 or channels != width else None

        def forward(self, x):
            return torch.relu(self.body(x) + (x if self.skip is None else self.skip(x)))

    class Inverted(nn.Module):
        def __init__(self, channels, width, stride, expansion):
            super().__init__()
            hidden = channels * expansion
            first = [*conv(channels, hidden, 1), nn.ReLU6()] if expansion > 1 else []
            self.body = nn.Sequential(
                *first, *conv(hidden, hidden, 3, stride, hidden), nn.ReLU6(), *conv(hidden, width, 1)
            )
            self.adds = stride == 1 and channels == width

        def forward(self, x):
            return x + self.body(x) if self.adds else self.body(x)

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 5)

        def forward(self, x):
            return self.head(self.body(x)[0])

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
            self.first, self.last = nn.LayerNorm(WIDTH, 1e-12), nn.LayerNorm(WIDTH, 1e-12)

        def forward(self, x):
            b, n, _ = x.shape
            q, k, v = (f(x).view(b, n, HEADS, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
            scores = torch.softmax(q @ k.transpose(2, 3) / (WIDTH // HEADS) ** 0.5, -1)
            x = self.first(x + self.out((scores @ v).transpose(1, 2).reshape(b, n, WIDTH)))
            return self.last(x + self.down(nn.functional.gelu(self.up(x))))

    if name == "resnet18":
        blocks, channels = [*conv(3, 8, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 8
        for width, stride in STAGES:
            blocks += [Block(channels, width, stride), Block(width, width, 1)]
            channels = width
        made = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
    elif name == "mobilenet_v2":
        blocks, channels = [*conv(3, 8, 3, 2), nn.ReLU6()], 8
        for expansion, width, count, stride in INVERTED:
            for turn in range(count):
                blocks.append(Inverted(channels, width, stride if turn == 0 else 1, expansion))
                channels = width
        blocks += [*conv(channels, 32, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
        made = nn.Sequential(*blocks)
    elif name == "dqn":
        made = nn.Sequential(
            nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 6)
        )
    elif name == "dcgan":
        made = nn.Sequential(
            nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
            nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False), nn.Tanh(),
        )  # fmt: skip
    else:
        made = Recurrent() if name == "lstm" else Bert()
    torch.manual_seed(0)
    for layer in made.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
            nn.init.normal_(layer.running_mean)
    return made.eval()


# ---------------------------------------------------------------------------------------------------------------- JAX


def jax_network(name):
    import jax
    import jax.numpy as jnp
    from jax import lax

    draw = np.random.default_rng(0)

    def weight(*shape):
        return jnp.asarray(draw.normal(size=shape).astype("f") * 0.1)

    def conv(x, width, kernel=3, stride=1, groups=1, pad=None, bias=False):
        pad = kernel // 2 if pad is None else pad
        w = weight(width, x.shape[1] // groups, kernel, kernel)
        y = lax.conv_general_dilated(x, w, (stride, stride), [(pad, pad)] * 2, feature_group_count=groups)
        return y + weight(width)[None, :, None, None] if bias else y

    def norm(x):
        scale, shift, mean = (weight(x.shape[1])[:, None, None] for _ in range(3))
        variance = jnp.abs(weight(x.shape[1]))[:, None, None] + 0.5
        return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift

    def dense(x, width):
        return x @ weight(x.shape[-1], width) + weight(width)

    def pool(x):
        return x.mean((2, 3))

    def block(x, width, stride):
        y = norm(conv(jax.nn.relu(norm(conv(x, width, 3, stride))), width))
        x = norm(conv(x, width, 1, stride, pad=0)) if stride > 1 or x.shape[1] != width else x
        return jax.nn.relu(y + x)

    def inverted(x, width, stride, expansion):
        hidden = x.shape[1] * expansion
        y = jax.nn.relu6(norm(conv(x, hidden, 1))) if expansion > 1 else x
        y = jax.nn.relu6(norm(conv(y, hidden, 3, stride, hidden)))
        y = norm(conv(y, width, 1))
        return x + y if stride == 1 and x.shape[1] == width else y

    def resnet18(x):
        x = jax.nn.relu(norm(conv(x, 8, 7, 2)))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1)))
        for width, stride in STAGES:
            x = block(block(x, width, stride), width, 1)
        return dense(pool(x), 10)

    def mobilenet_v2(x):
        x = jax.nn.relu6(norm(conv(x, 8, 3, 2)))
        for expansion, width, count, stride in INVERTED:
            for turn in range(count):
                x = inverted(x, width, stride if turn == 0 else 1, expansion)
        return dense(pool(jax.nn.relu6(norm(conv(x, 32, 1)))), 10)

    def lstm(x):
        w, u, b = weight(8, 48), weight(12, 48), weight(48)

        def step(state, row):
            h, c = state
            i, f, g, o = jnp.split(row @ w + h @ u + b, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[0], 12))
        return dense(lax.scan(step, (zero, zero), x.transpose(1, 0, 2))[1].transpose(1, 0, 2), 5)

    def dqn(x):
        x = jax.nn.relu(conv(x, 8, 8, 4, pad=0, bias=True))
        x = jax.nn.relu(conv(x, 16, 4, 2, pad=0, bias=True))
        return dense(x.reshape(x.shape[0], -1), 6)

    def transposed(x, width, stride, pad):
        w = weight(width, x.shape[1], 4, 4)
        return lax.conv_general_dilated(x, w, (1, 1), [(3 - pad, 3 - pad)] * 2, lhs_dilation=(stride, stride))

    def dcgan(x):
        x = jax.nn.relu(norm(transposed(x, 32, 1, 0)))
        x = jax.nn.relu(norm(transposed(x, 16, 2, 1)))
        return jnp.tanh(transposed(x, 3, 2, 1))

    def layer_norm(x):
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-12) * weight(WIDTH) + weight(WIDTH)

    def bert_layer(x):
        b, n, _ = x.shape
        q, k, v = (dense(x, WIDTH).reshape(b, n, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3) for _ in range(3))
        scores = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / (WIDTH // HEADS) ** 0.5)
        x = layer_norm(x + dense((scores @ v).transpose(0, 2, 1, 3).reshape(b, n, WIDTH), WIDTH))
        return layer_norm(x + dense(jax.nn.gelu(dense(x, 64), approximate=False), WIDTH))

    return jax.jit({one.__name__: one for one in (resnet18, mobilenet_v2, lstm, dqn, dcgan, bert_layer)}[name])


# -------------------------------------------------------------------------------------------------------------- Keras


def keras_network(name):
    import keras
    from keras import layers, ops

    first = {"data_format": "channels_first"}

    def conv(x, width, kernel=3, stride=1, groups=1, bias=False):
        if kernel > 1:
            x = layers.ZeroPadding2D(kernel // 2, **first)(x)
        x = layers.Conv2D(width, kernel, stride, groups=groups, use_bias=bias, **first)(x)
        return layers.BatchNormalization(axis=1, epsilon=1e-5)(x)

    def block(x, width, stride):
        y = conv(layers.ReLU()(conv(x, width, 3, stride)), width)
        x = conv(x, width, 1, stride) if stride > 1 or x.shape[1] != width else x
        return layers.ReLU()(layers.Add()([y, x]))

    def inverted(x, width, stride, expansion):
        hidden = x.shape[1] * expansion
        y = layers.ReLU(6.0)(conv(x, hidden, 1)) if expansion > 1 else x
        y = layers.ZeroPadding2D(1, **first)(y)
        y = layers.DepthwiseConv2D(3, stride, use_bias=False, **first)(y)
        y = layers.ReLU(6.0)(layers.BatchNormalization(axis=1, epsilon=1e-5)(y))
        y = conv(y, width, 1)
        return layers.Add()([x, y]) if stride == 1 and x.shape[1] == width else y

    def resnet18(x):
        x = layers.ReLU()(conv(x, 8, 7, 2))
        x = layers.ZeroPadding2D(1, **first)(x)  # of what is not negative: zeros change no maximum
        x = layers.MaxPooling2D(3, 2, **first)(x)
        for width, stride in STAGES:
            x = block(block(x, width, stride), width, 1)
        return layers.Dense(10)(layers.GlobalAveragePooling2D(**first)(x))

    def mobilenet_v2(x):
        x = layers.ReLU(6.0)(conv(x, 8, 3, 2))
        for expansion, width, count, stride in INVERTED:
            for turn in range(count):
                x = inverted(x, width, stride if turn == 0 else 1, expansion)
        return layers.Dense(10)(layers.GlobalAveragePooling2D(**first)(layers.ReLU(6.0)(conv(x, 32, 1))))

    def lstm(x):
        return layers.Dense(5)(layers.LSTM(12, return_sequences=True)(x))

    def dqn(x):
        x = layers.Conv2D(8, 8, 4, activation="relu", **first)(x)
        x = layers.Conv2D(16, 4, 2, activation="relu", **first)(x)
        return layers.Dense(6)(layers.Flatten()(x))

    def transposed(x, width, stride, padding):
        return layers.Conv2DTranspose(width, 4, stride, padding, use_bias=False, **first)(x)

    def dcgan(x):
        x = layers.ReLU()(layers.BatchNormalization(axis=1)(transposed(x, 32, 1, "valid")))
        x = layers.ReLU()(layers.BatchNormalization(axis=1)(transposed(x, 16, 2, "same")))
        return layers.Activation("tanh")(transposed(x, 3, 2, "same"))

    def bert_layer(x):
        b, n, _ = x.shape

        def heads(y):
            return ops.transpose(ops.reshape(y, (-1, n, HEADS, WIDTH // HEADS)), (0, 2, 1, 3))

        q, k, v = (heads(layers.Dense(WIDTH)(x)) for _ in range(3))
        scores = ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / (WIDTH // HEADS) ** 0.5)
        y = ops.reshape(ops.transpose(ops.matmul(scores, v), (0, 2, 1, 3)), (-1, n, WIDTH))
        x = layers.LayerNormalization(epsilon=1e-12)(x + layers.Dense(WIDTH)(y))
        return layers.LayerNormalization(epsilon=1e-12)(x + layers.Dense(WIDTH)(layers.Dense(64, "gelu")(x)))

    made = {one.__name__: one for one in (resnet18, mobilenet_v2, lstm, dqn, dcgan, bert_layer)}[name]
    given = keras.Input(batch_shape=SHAPES[name])
    model, draw = keras.Model(given, made(given)), np.random.default_rng(0)
    model.set_weights([draw.uniform(0.1, 0.3, one.shape).astype("f") for one in model.get_weights()])
    return model


# -------------------------------------------------------------------------------------------------------------- graphs


@functools.cache
def graph(door, name):
    """A network as the graph that a front end gives."""
    if door == "jax":
        from weft.frontends.jax import load

        return load(jax_network(name), (example(name),)).graph
    if door == "keras":
        from weft.frontends.keras import load

        return load(keras_network(name), (example(name),)).graph
    import torch

    model, inputs = torch_network(name), (torch.from_numpy(example(name)),)
    if door == "torch":
        from weft.frontends.torch import load

        return load(model, inputs).graph
    import io
    import warnings

    from weft.frontends.onnx import load

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if door == "onnx":
            torch.onnx.export(model, inputs, file, dynamo=False)
        else:
            torch.onnx.export(model, inputs, dynamo=True, verbose=False).save(file)
    return load(file.getvalue())

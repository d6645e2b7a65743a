"""Small members of the families that people bring: each a function that gives a module and its example inputs."""

import torch
import torch.nn.functional as F
from torch import nn


def _conv(channels, width, kernel=3, stride=1, groups=1, activation=nn.ReLU):
    made = [nn.Conv2d(channels, width, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(width)]
    return nn.Sequential(*made, *([activation()] if activation else []))


class Residual(nn.Module):
    def __init__(self, body, projection=None, activation=None):
        super().__init__()
        self.body, self.projection, self.activation = body, projection or nn.Identity(), activation or nn.Identity()

    def forward(self, x):
        return self.activation(self.body(x) + self.projection(x))


class Excite(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width, gate):
        super().__init__()
        self.down, self.up, self.gate = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1), gate

    def forward(self, x):
        return x * self.gate(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


def _image(side=32):
    return (torch.randn(2, 3, side, side),)


def _head(channels):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


def resnet():
    block = Residual(
        nn.Sequential(_conv(16, 32, stride=2), _conv(32, 32, activation=None)),
        _conv(16, 32, 1, 2, activation=None),
        nn.ReLU(),
    )
    return nn.Sequential(_conv(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), block, *_head(32)), _image()


def mobilenet_v2():
    block = nn.Sequential(
        _conv(16, 48, 1, activation=nn.ReLU6), _conv(48, 48, 3, 1, 48, nn.ReLU6), _conv(48, 16, 1, activation=None)
    )
    return nn.Sequential(
        _conv(3, 16, stride=2, activation=nn.ReLU6), Residual(block), nn.Dropout(0.2), *_head(16)
    ), _image()


def mobilenet_v3():
    block = nn.Sequential(
        _conv(16, 24, 5, 1, activation=nn.Hardswish), Excite(24, nn.Hardsigmoid()), _conv(24, 16, 1, activation=None)
    )
    return nn.Sequential(_conv(3, 16, stride=2, activation=nn.Hardswish), Residual(block), *_head(16)), _image()


def efficientnet():
    block = nn.Sequential(
        _conv(16, 32, 1, activation=nn.SiLU), Excite(32, nn.Sigmoid()), _conv(32, 16, 1, activation=None)
    )
    return nn.Sequential(_conv(3, 16, stride=2, activation=nn.SiLU), Residual(block), *_head(16)), _image()


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(_conv(16 + 8 * at, 8) for at in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def densenet():
    return nn.Sequential(
        _conv(3, 16, stride=2), Dense(), nn.AvgPool2d(2, 2), nn.BatchNorm2d(40), nn.ReLU(), *_head(40)
    ), _image()


class Next(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x):
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def convnext():
    return nn.Sequential(nn.Conv2d(3, 16, 4, 4), Next(16), *_head(16)), _image()


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 8, 8)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 32)), nn.Parameter(torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.encoder(x)[:, 0])


def vit():
    return Vit(), _image()


class Swin(nn.Module):
    """Attention in windows that are shifted, with a table of relative places."""

    def __init__(self, width=16, side=4, heads=2):
        super().__init__()
        self.qkv, self.out, self.side, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), side, heads
        self.table = nn.Parameter(torch.randn((2 * side - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        apart = (at[:, :, None] - at[:, None, :]) + side - 1
        self.register_buffer("places", apart[0] * (2 * side - 1) + apart[1])

    def forward(self, x):
        b, h, w, c = x.shape
        s, heads = self.side, self.heads
        x = (
            torch.roll(x, (-2, -2), (1, 2))
            .view(b, h // s, s, w // s, s, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(-1, s * s, c)
        )
        q, k, v = self.qkv(x).reshape(-1, s * s, 3, heads, c // heads).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (c // heads) ** -0.5) @ k.transpose(-2, -1)
        bias = self.table[self.places.view(-1)].view(s * s, s * s, heads).permute(2, 0, 1)
        x = self.out((torch.softmax(scores + bias[None], -1) @ v).transpose(1, 2).reshape(-1, s * s, c))
        x = x.view(b, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return torch.roll(x, (2, 2), (1, 2))


def swin():
    return Swin(), (torch.randn(2, 8, 8, 16),)


class Bert(nn.Module):
    def __init__(self, causal=False):
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(50, 32), nn.Embedding(16, 32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down, self.last = nn.Linear(32, 64), nn.Linear(64, 32), nn.LayerNorm(32)
        self.causal = causal

    def forward(self, ids, mask=None):
        b, n = ids.shape
        x = self.norm(self.words(ids) + self.places(torch.arange(n, device=ids.device)))
        q, k, v = (one.view(b, n, 4, 8).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        if mask is not None:
            mask = torch.where(mask[:, None, None, :] > 0, 0.0, torch.finfo(x.dtype).min)
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, 32))
        x = self.last(x + self.down(F.gelu(self.up(x), approximate="tanh" if self.causal else "none")))
        return {"hidden": x, "pooled": torch.tanh(x[:, 0])} if not self.causal else x @ self.words.weight.T


def bert():
    return Bert(), (torch.randint(0, 50, (2, 12)), torch.tensor([[1] * 12, [1] * 7 + [0] * 5]))


def gpt():
    return Bert(True), (torch.randint(0, 50, (2, 12)),)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed, self.body, self.head = (
            nn.Embedding(20, 8),
            kind(8, 12, 2, batch_first=True, bidirectional=True),
            nn.Linear(24, 20),
        )

    def forward(self, ids):
        made, state = self.body(self.embed(ids))
        return F.log_softmax(self.head(made), -1), state


def lstm():
    return Recurrent(nn.LSTM), (torch.randint(0, 20, (3, 6)),)


def gru():
    return Recurrent(nn.GRU), (torch.randint(0, 20, (3, 6)),)


class Unet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.down, self.up = nn.Conv2d(16, 32, 3, 2, 1), nn.ConvTranspose2d(32, 16, 2, 2)
        self.last = nn.Conv2d(48, 3, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        a = F.silu(self.norm(self.first(x)))
        b = F.silu(self.down(a))
        up = F.interpolate(b[:, :16], scale_factor=2, mode="nearest")
        smooth = F.interpolate(self.up(b), size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.last(torch.cat([a, up, smooth], 1))


def unet():
    return Unet(), _image(16)


def dcgan():
    return nn.Sequential(
        nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False), nn.Tanh(),
    ), (torch.randn(2, 16, 1, 1),)  # fmt: skip


def dqn():
    return nn.Sequential(
        nn.Conv2d(4, 8, 8, 4), nn.ReLU(), nn.Conv2d(8, 16, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 6)
    ), (torch.randn(1, 4, 44, 44),)  # fmt: skip


MODELS = [
    *(resnet, mobilenet_v2, mobilenet_v3, efficientnet, densenet, convnext, vit, swin, bert, gpt),
    *(lstm, gru, unet, dcgan, dqn),
]


def make(family):
    """A member of a family with settled weights, and its inputs."""
    torch.manual_seed(0)
    module, inputs = family()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
            nn.init.normal_(layer.running_mean, 0, 0.1)
    return module.eval(), inputs

"""The models of `benchmarks.gpu_zoo`: some of torchvision and of transformers, and a diffusion model's UNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
    """A residual block of a diffusion UNet: two convolutions, norms of groups, and the time."""

    def __init__(self, channels: int, out: int, times: int = 1280) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(times, out)
        self.norm2, self.conv2 = nn.GroupNorm(32, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Any, t: Any) -> Any:
        """The block."""
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class Heads(nn.Module):
    """Attention over the places of an image, or from these to words."""

    def __init__(self, channels: int, heads: int, words: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels, bias=False)
        self.key, self.value = (nn.Linear(words, channels, bias=False) for _ in range(2))
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Any, words: Any) -> Any:
        """The attention."""
        b, n, c = x.shape
        q, k, v = (
            layer(y).view(b, -1, self.heads, c // self.heads).transpose(1, 2)
            for layer, y in ((self.query, x), (self.key, words), (self.value, words))
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))


class Transformer(nn.Module):
    """A transformer's layer over the places of an image."""

    def __init__(self, channels: int, heads: int = 8, words: int = 768) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.enter, self.leave = (nn.Conv2d(channels, channels, 1) for _ in range(2))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(channels) for _ in range(3))
        self.itself, self.words = Heads(channels, heads, channels), Heads(channels, heads, words)
        self.up, self.down = nn.Linear(channels, 8 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Any, words: Any) -> Any:
        """The layer."""
        b, c, h, w = x.shape
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norm1(y)
        y = y + self.itself(normed, normed)
        y = y + self.words(self.norm2(y), words)
        u, gate = self.up(self.norm3(y)).chunk(2, -1)
        y = y + self.down(u * F.gelu(gate))
        return x + self.leave(y.transpose(1, 2).reshape(b, c, h, w))


class Block(nn.Module):
    """One block of such a UNet."""

    def __init__(self, channels: int = 320) -> None:
        super().__init__()
        self.residual, self.transformer = Residual(channels, channels), Transformer(channels)

    def forward(self, x: Any, t: Any, words: Any) -> Any:
        """The block."""
        return self.transformer(self.residual(x, t), words)


class UNet(nn.Module):
    """A small UNet: three levels, a block of each kind on the way down, in the middle, and on the way up."""

    def __init__(self, widths: tuple[int, ...] = (320, 640, 1280)) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(320, 1280), nn.SiLU(), nn.Linear(1280, 1280))
        self.first, self.down, self.up = nn.Conv2d(4, widths[0], 3, padding=1), nn.ModuleList(), nn.ModuleList()
        before = widths[0]
        for width in widths:
            smaller = nn.Conv2d(width, width, 3, 2, 1) if width != widths[-1] else nn.Identity()
            self.down.append(nn.ModuleList([Residual(before, width), Transformer(width), smaller]))
            before = width
        self.middle = nn.ModuleList([Residual(before, before), Transformer(before), Residual(before, before)])
        for width in reversed(widths):
            larger = nn.Conv2d(width, width, 3, padding=1) if width != widths[0] else nn.Identity()
            self.up.append(nn.ModuleList([Residual(before + width, width), Transformer(width), larger]))
            before = width
        self.norm, self.last = nn.GroupNorm(32, before), nn.Conv2d(before, 4, 3, padding=1)

    def forward(self, x: Any, t: Any, words: Any) -> Any:
        """The noise in an image."""
        t, x, kept = self.time(t), self.first(x), []
        for residual, transformer, smaller in self.down:
            x = transformer(residual(x, t), words)
            kept.append(x)
            x = smaller(x)
        residual, transformer, last = self.middle
        x = last(transformer(residual(x, t), words), t)
        for residual, transformer, larger in self.up:
            x = transformer(residual(torch.cat([x, kept.pop()], 1), t), words)
            if not isinstance(larger, nn.Identity):
                x = larger(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.last(F.silu(self.norm(x)))


class First(nn.Module):
    """A model of transformers, as its first output."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any) -> Any:
        """The last hidden state."""
        return self.model(ids, **self.model.more).last_hidden_state


Made = tuple[Any, tuple[Any, ...]]


def _vision(name: str) -> Callable[[int], Made]:
    def made(batch: int) -> Made:
        import torchvision

        return getattr(torchvision.models, name)(weights=None), (torch.randn(batch, 3, 224, 224),)

    return made


def _text(name: str, words: int, **more: Any) -> Callable[[int], Made]:
    def made(batch: int) -> Made:
        import transformers

        model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")())
        model.more = more
        return First(model), (torch.randint(0, 30000, (batch, words)),)

    return made


def _diffusion(kind: type[nn.Module], channels: int, times: int) -> Callable[[int], Made]:
    """With and without words, as such a model is run: a batch of 1 is two images."""

    def made(batch: int) -> Made:
        sizes = ((channels, 64, 64), (times,), (77, 768))
        return kind(), tuple(torch.randn(2 * batch, *size) for size in sizes)

    return made


MODELS: dict[str, Callable[[int], Made]] = {
    "vit_b_16": _vision("vit_b_16"), "unet_block": _diffusion(Block, 320, 1280), "convnext_tiny":
    _vision("convnext_tiny"), "gpt2": _text("GPT2", 512, use_cache=False), "bert": _text("Bert", 384),
    "swin_t": _vision("swin_t"), "densenet121": _vision("densenet121"), "unet": _diffusion(UNet, 4, 320),
    "efficientnet_b0": _vision("efficientnet_b0"), "resnet50": _vision("resnet50"),
}  # fmt: skip


def build(name: str, batch: int) -> Made:
    """A model in float32 and its inputs, at random; what was drawn as a constant is disturbed."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](batch)
    with torch.no_grad():
        for one in model.parameters():
            if one.numel() > 1 and float(one.std()) == 0:
                one.add_(0.02 * torch.randn_like(one))
    return model.eval(), inputs

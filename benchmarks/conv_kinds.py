"""Every kind of convolution against the peers: grouped, depthwise, dilated, transposed, in one and three dimensions.

    python -m benchmarks.conv_kinds                                  both thread counts
    python -m benchmarks.conv_kinds --only grouped convnext_56 --threads 1 --seconds 2
    python -m benchmarks.conv_kinds --json kinds.json

Shapes that networks have and the paper's table 2 (`benchmarks.conv`) has not. Everything else is as there: float32, one
Conv or ConvTranspose with constant weights, the caller's layout in and out, candidates that take turns. The error is
against PyTorch's convolution in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import conv
from benchmarks.peers import load


@dataclass(frozen=True)
class Kind:
    """One convolution in any number of dimensions; numbers are for all dimensions, or one for each."""

    family: str
    name: str
    image: tuple[int, ...]
    inputs: int
    outputs: int
    window: int | tuple[int, ...]
    strides: int | tuple[int, ...] = 1
    pads: int | tuple[int, ...] = 0
    dilations: int | tuple[int, ...] = 1
    groups: int = 1
    batch: int = 1
    transposed: bool = False
    behind: int = 0
    """`output_padding` of a transposed convolution."""

    def every(self, number: int | tuple[int, ...]) -> tuple[int, ...]:
        """One number for each dimension."""
        return (number,) * len(self.image) if isinstance(number, int) else number

    @property
    def places(self) -> tuple[int, ...]:
        """The sizes of the result without batch and channels."""
        rows = zip(self.image, *map(self.every, (self.window, self.strides, self.pads, self.dilations)), strict=True)
        if self.transposed:
            return tuple((n - 1) * s - 2 * p + d * (k - 1) + 1 + self.behind for n, k, s, p, d in rows)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows)

    @property
    def operations(self) -> int:
        """Floating-point operations: two for every product, those with padding too."""
        meeting = self.image if self.transposed else self.places
        channels = self.inputs * self.outputs // self.groups
        return 2 * self.batch * math.prod(meeting) * math.prod(self.every(self.window)) * channels

    @property
    def shape(self) -> str:
        """Its sizes, for the table."""
        parts = [f"{_sizes(self.image)}, {self.inputs}→{self.outputs}, {_sizes(self.every(self.window))}"]
        parts += [f"/{_sizes(self.every(self.strides))}" if self.strides != 1 else ""]
        parts += [f" d{_sizes(self.every(self.dilations))}" if self.dilations != 1 else ""]
        parts += [f" g{self.groups}" if self.groups > 1 else "", f" n{self.batch}" if self.batch > 1 else ""]
        return "".join(parts)

    def write(self, folder: Path) -> tuple[Path, dict[str, Any]]:
        """The ONNX model in a folder, and its input."""
        import onnx

        from weft.cli.to_onnx import to_onnx
        from weft.models.builder import Builder

        b = Builder(self.name)
        image = b.input("image", (self.batch, self.inputs, *self.image))
        window, pads = self.every(self.window), self.every(self.pads)
        channels = (self.inputs, self.outputs // self.groups) if self.transposed else (self.outputs, self.depth)
        scale = (2.0 / (self.depth * math.prod(window))) ** 0.5
        weight = b.normal(*channels, *window, scale=scale)
        attributes = {
            "kernel_shape": list(window), "strides": list(self.every(self.strides)), "pads": [*pads, *pads],
            "dilations": list(self.every(self.dilations)), "group": self.groups,
        }  # fmt: skip
        if self.behind:
            attributes["output_padding"] = list(self.every(self.behind))
        made = b.node("ConvTranspose" if self.transposed else "Conv", image, weight, **attributes)
        path = folder / f"{self.name}.onnx"
        onnx.save(to_onnx(b.finish(made)), path)
        values = np.random.default_rng(0).standard_normal((self.batch, self.inputs, *self.image), "float32")
        return path, {"image": values}

    @property
    def depth(self) -> int:
        """Channels that one sum goes over."""
        return self.inputs // self.groups

    def reference(self, path: Path, feeds: dict[str, Any]) -> np.ndarray[Any, Any]:
        """PyTorch's answer in float64."""
        import onnx

        torch = load("torch")
        weight = torch.from_numpy(onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0]).copy()).double()
        name = f"conv{'_transpose' * self.transposed}{len(self.image)}d"
        window = [self.every(number) for number in (self.strides, self.pads)]
        more = {"output_padding": self.every(self.behind)} if self.transposed else {}
        with torch.inference_mode():
            made = getattr(torch.nn.functional, name)(
                torch.from_numpy(feeds["image"]).double(), weight, None, *window,
                dilation=self.every(self.dilations), groups=self.groups, **more,
            )  # fmt: skip
        return np.asarray(made.numpy())

    def as_json(self) -> dict[str, Any]:
        """Its sizes."""
        return {
            "family": self.family, "batch": self.batch, "image": self.image, "inputs": self.inputs,
            "outputs": self.outputs, "window": self.every(self.window), "strides": self.every(self.strides),
            "pads": self.every(self.pads), "dilations": self.every(self.dilations), "groups": self.groups,
            "transposed": self.transposed, "output_padding": self.every(self.behind),
        }  # fmt: skip


def _sizes(numbers: Sequence[int]) -> str:
    if len(numbers) > 1 and len(set(numbers)) == 1:
        return f"{numbers[0]}{'²³'[len(numbers) - 2]}"
    return "×".join(map(str, numbers))


def _depthwise(name: str, size: int, channels: int, window: int, stride: int = 1, **more: Any) -> Kind:
    return Kind(
        "depthwise", name, (size, size), channels, more.pop("outputs", channels), window, stride,
        more.pop("pads", window // 2), groups=channels, **more,
    )  # fmt: skip


GROUPED = [
    Kind("grouped", "resnext_4", (56, 56), 128, 128, 3, pads=1, groups=32),
    Kind("grouped", "resnext_8", (28, 28), 256, 256, 3, pads=1, groups=32),
    Kind("grouped", "resnext_8_s2", (56, 56), 256, 256, 3, 2, 1, groups=32),
    Kind("grouped", "resnext_16", (14, 14), 512, 512, 3, pads=1, groups=32),
    Kind("grouped", "resnext_32", (7, 7), 1024, 1024, 3, pads=1, groups=32),
    Kind("grouped", "resnext_8_n4", (28, 28), 256, 256, 3, pads=1, groups=32, batch=4),
    Kind("grouped", "regnet_24", (14, 14), 240, 240, 3, pads=1, groups=10),
    Kind("grouped", "shufflenet_g3", (28, 28), 240, 60, 1, groups=3),
    Kind("grouped", "shufflenet_g8", (28, 28), 96, 384, 1, groups=8),
    Kind("grouped", "alexnet_2", (27, 27), 96, 256, 5, pads=2, groups=2),
    Kind("grouped", "tens", (20, 20), 30, 30, 3, pads=1, groups=3),
]
DEPTHWISE = [
    _depthwise("efficient_5_s2", 56, 144, 5, 2),
    _depthwise("efficient_5_28", 28, 240, 5),
    _depthwise("efficient_5_14", 14, 672, 5),
    _depthwise("efficient_5_7", 7, 1152, 5),
    _depthwise("convnext_56", 56, 96, 7),
    _depthwise("convnext_14", 14, 384, 7),
    _depthwise("convnext_7", 7, 768, 7),
    _depthwise("replk_31", 28, 64, 31),
    _depthwise("double", 56, 32, 3, outputs=64),
    _depthwise("eightfold", 112, 3, 3, outputs=24),
    _depthwise("aspp_depthwise", 33, 256, 3, pads=12, dilations=12),
    _depthwise("depthwise_n8", 14, 192, 3, batch=8),
    Kind("depthwise", "conformer_31", (250,), 256, 256, 31, pads=15, groups=256),
]
DILATED = [
    Kind("dilated", "aspp_12", (33, 33), 256, 256, 3, pads=12, dilations=12),
    Kind("dilated", "resnet_d2", (28, 28), 256, 256, 3, pads=2, dilations=2),
    Kind("dilated", "wavenet_8", (4000,), 64, 128, 2, dilations=8),
    Kind("dilated", "tcn_16", (1000,), 128, 128, 3, pads=16, dilations=16),
]
TRANSPOSED = [
    Kind("transposed", "dcgan_4", (4, 4), 1024, 512, 4, 2, 1, transposed=True),
    Kind("transposed", "dcgan_16", (16, 16), 256, 128, 4, 2, 1, transposed=True),
    Kind("transposed", "dcgan_32", (32, 32), 128, 3, 4, 2, 1, transposed=True),
    Kind("transposed", "unet_28", (28, 28), 512, 256, 2, 2, transposed=True),
    Kind("transposed", "unet_112", (112, 112), 128, 64, 2, 2, transposed=True),
    Kind("transposed", "enet_3", (64, 64), 32, 16, 3, 2, 1, behind=1, transposed=True),
    Kind("transposed", "fcn_16", (28, 28), 21, 21, 16, 8, 4, transposed=True),
    Kind("transposed", "hifigan_8", (100,), 512, 256, 16, 8, 4, transposed=True),
    Kind("transposed", "hifigan_2", (6400,), 128, 64, 4, 2, 1, transposed=True),
    Kind("transposed", "volume_2", (16, 16, 16), 64, 32, 2, 2, transposed=True),
]
LINES = [
    Kind("1-D", "whisper_1", (3000,), 80, 384, 3, pads=1),
    Kind("1-D", "whisper_2", (3000,), 384, 384, 3, 2, 1),
    Kind("1-D", "wav2vec_first", (16000,), 1, 512, 10, 5),
    Kind("1-D", "wav2vec_3", (3199,), 512, 512, 3, 2),
    Kind("1-D", "wav2vec_positions", (49,), 768, 768, 128, pads=64, groups=16),
    Kind("1-D", "hifigan_11", (1600,), 64, 64, 11, pads=5),
    Kind("1-D", "tdnn_5", (300,), 512, 512, 5),
    Kind("1-D", "pointwise_1d", (250,), 256, 512, 1),
]
VOLUMES = [
    Kind("3-D", "c3d_1", (16, 56, 56), 3, 64, 3, pads=1),
    Kind("3-D", "c3d_4", (4, 14, 14), 256, 256, 3, pads=1),
    Kind("3-D", "r2plus1d_space", (8, 28, 28), 64, 144, (1, 3, 3), pads=(0, 1, 1)),
    Kind("3-D", "r2plus1d_time", (8, 28, 28), 144, 64, (3, 1, 1), pads=(1, 0, 0)),
    Kind("3-D", "swin3d_patches", (16, 112, 112), 3, 96, (2, 4, 4), (2, 4, 4)),
    Kind("3-D", "volume_1", (32, 32, 32), 1, 16, 3, pads=1),
]
FIRST = [
    Kind("first", "vit_patches", (224, 224), 3, 192, 16, 16),
    Kind("first", "convnext_patches", (224, 224), 3, 96, 4, 4),
    Kind("first", "alexnet_1", (224, 224), 3, 64, 11, 4, 2),
    Kind("first", "grey_7_s2", (224, 224), 1, 64, 7, 2, 3),
    Kind("first", "mobilenet_1", (224, 224), 3, 32, 3, 2, 1),
    Kind("first", "lenet_1", (28, 28), 1, 6, 5),
]
ODD = [
    Kind("odd", "ten_seventeen", (32, 32), 10, 17, 3, pads=1),
    Kind("odd", "seventeen_ten", (45, 45), 17, 10, 5, pads=2),
    Kind("odd", "threes", (64, 64), 3, 3, 3, pads=1),
    Kind("odd", "inception_1_7", (17, 17), 192, 192, (1, 7), pads=(0, 3)),
    Kind("odd", "inception_7_1", (17, 17), 192, 192, (7, 1), pads=(3, 0)),
    Kind("odd", "batch_8", (28, 28), 64, 64, 3, pads=1, batch=8),
    Kind("odd", "pointwise_n16", (7, 7), 512, 128, 1, batch=16),
    Kind("odd", "one_place", (1, 1), 480, 120, 1),
    Kind("odd", "two_by_two", (2, 2), 256, 256, 3, pads=1),
    Kind("odd", "large_16", (512, 512), 16, 16, 3, pads=1),
    Kind("odd", "super_resolution", (256, 256), 32, 12, 3, pads=1),
]

KINDS = [*GROUPED, *DEPTHWISE, *DILATED, *TRANSPOSED, *LINES, *VOLUMES, *FIRST, *ODD]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a result of ours is wrong."""
    return conv.run(KINDS, __doc__, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
